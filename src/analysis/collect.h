/* What the analyses need of every map, summed over an observation pass in double precision. */
#ifndef ABAR_ANALYSIS_COLLECT_H
#define ABAR_ANALYSIS_COLLECT_H

#include "abar/analysis.h"
#include "analysis/attention.h"
#include "analysis/observe.h"

enum { ABAR_MAP_NAME_MAX = 192 };

typedef struct abar__map_stats {
    char name[ABAR_MAP_NAME_MAX]; /* of the layer; with groups LAYER#GROUP */
    int layer;
    abar__row_shape shape;
    bool homogeneous;         /* rows end in 1 */
    abar_moments *inputs;     /* rows a */
    abar_moments *grads;      /* rows p at the scale of single examples; NULL: not wanted */
    abar_moments *grad_means; /* their means over the rows of an example */
    double *gradients;        /* (fisher_samples, out * d): per-example gradients; NULL: not wanted */
    int64_t fisher_done;
    abar__attention_sums attention; /* sum NULL: feeds none */
    abar_attention layout;          /* of that attention: heads, windows */
} abar__map_stats;

enum { ABAR_COLLECT_INPUTS = 1, ABAR_COLLECT_GRADS = 2, ABAR_COLLECT_FISHER = 4, ABAR_COLLECT_ATTENTION = 8 };

typedef struct abar__collect_config {
    unsigned wanted;
    const char *layers;     /* pattern with * and ?; "": all */
    bool homogeneous;       /* append the 1 where a layer has a bias */
    bool training;          /* inputs in training mode, not in evaluation */
    bool drawn;             /* output gradients for labels drawn from the softmax */
    int64_t fisher_samples; /* examples whose gradients are kept */
} abar__collect_config;

typedef struct abar__collection {
    abar__pass *pass;
    abar__collect_config config;
    abar__map_stats *maps;
    int n, capacity;
    int64_t d_max, out_max, rows_max;
    float *host;  /* a layer's input, output or gradient of one batch */
    double *rows; /* rows of one example, inputs then gradients */
    size_t host_bytes, rows_bytes, bytes;
} abar__collection;

/* Bytes that create takes, beyond the network's own, are announced through the context's log and refused where the machine has
 * less memory. */
abar_status abar__collection_create(abar__pass *pass, const abar__collect_config *config, abar__collection *out);
void abar__collection_free(abar__collection *c);
/* Forgets all sums, for other weights. */
abar_status abar__collection_reset(abar__collection *c);
/* Adds batch b. */
abar_status abar__collection_add(abar__collection *c, int64_t b);

#endif
