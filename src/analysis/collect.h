/* What the analyses need of every map, summed over an observation pass in double precision. */
#ifndef ABAR_ANALYSIS_COLLECT_H
#define ABAR_ANALYSIS_COLLECT_H

#include "abar/analysis.h"
#include "analysis/attention.h"
#include "analysis/dump.h"
#include "analysis/observe.h"

enum { ABAR_MAP_NAME_MAX = 192 };

typedef struct abar__map_stats {
    char name[ABAR_MAP_NAME_MAX]; /* of the layer; with groups LAYER#GROUP */
    int layer;
    abar__row_shape shape;
    bool homogeneous;               /* rows end in 1 */
    abar_moments *inputs;           /* rows a */
    abar_moments *grads;            /* rows p at the scale of single examples; NULL: not wanted */
    abar_moments *grad_means;       /* their means over the rows of an example */
    double *gram;                   /* of the gradients of the first fisher_samples examples, in whole panels of gram.h */
    abar__attention_sums attention; /* sum NULL: feeds none */
    abar_attention layout;          /* of that attention: heads, windows */
} abar__map_stats;

enum { ABAR_COLLECT_INPUTS = 1, ABAR_COLLECT_GRADS = 2, ABAR_COLLECT_FISHER = 4, ABAR_COLLECT_ATTENTION = 8 };

typedef struct abar__collect_config {
    unsigned wanted;
    const char *layers;                             /* pattern with * and ?; "": all */
    bool homogeneous;                               /* append the 1 where a layer has a bias */
    bool training;                                  /* inputs in training mode, not in evaluation */
    bool drawn;                                     /* output gradients for labels drawn from the softmax */
    int64_t fisher_samples;                         /* examples of the Fisher matrices, at most a batch; 0: 256, or a batch */
    void (*announce)(void *user, const char *text); /* how much memory will be taken; NULL: nobody is told */
    void *user;
} abar__collect_config;

typedef struct abar__collection {
    abar__pass *pass;
    abar__collect_config config;
    abar__map_stats *maps;
    int n, capacity, threads;
    int64_t d_max, out_max;
    float *host;  /* two tensors of one batch: a layer's input, output or gradient */
    double *rows; /* rows of a few examples, inputs then gradients */
    size_t host_bytes, rows_bytes;
    int64_t batch;    /* that is being added */
    abar__dump *dump; /* what is observed is copied into it, too; NULL: no */
} abar__collection;

/* Numbers of a row of the map, the homogeneous 1 included. */
static inline int64_t abar__map_side(const abar__map_stats *m) { return m->shape.d + m->homogeneous; }

/* Bytes that create takes, beyond the network's own, are announced first, and refused where the machine has less memory. */
abar_status abar__collection_create(abar__pass *pass, const abar__collect_config *config, abar__collection *out);
void abar__collection_free(abar__collection *c);
/* Forgets all sums, for other weights. */
abar_status abar__collection_reset(abar__collection *c);
/* Adds batch b. Fisher matrices are made from batch 0 alone. */
abar_status abar__collection_add(abar__collection *c, int64_t b);

#endif
