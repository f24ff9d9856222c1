/* The numbers of every analysis, for each snapshot and each map. */
#ifndef ABAR_ANALYSIS_RESULTS_H
#define ABAR_ANALYSIS_RESULTS_H

#include "analysis/collect.h"
#include "analysis/factors.h"

enum { ABAR_TOP = 50 };  /* eigenvalues that are kept and drawn */
#define ABAR_NOISE 1e-12 /* activations are single precision: eigenvalues below this part of the largest are rounding */

/* The largest eigenvalues of one matrix, descending. */
typedef struct abar__top {
    int64_t n;
    double value[ABAR_TOP];
} abar__top;

typedef struct abar__map_result {
    abar_moments_summary inputs; /* rows 0: not collected */
    abar__top a;
    abar__top p, p_reduce; /* R E[p p^T] and E[mean mean^T], at the scale that was asked for */
    abar__top kfac;        /* products of a and p: the spectrum of A x P */
    abar__top fisher;      /* of the layer's own Fisher matrix */
    double p_trace, p_effective_rank;
    double a_over_p;          /* median of a_i / p_i */
    abar__rescaling rescaled; /* kfac against p */
    abar__rescaling exact;    /* kfac against fisher */
    abar__diagonality diagonality;
    double *p_matrix; /* (out, out): R E[p p^T]; NULL: not kept */
    size_t p_bytes;
    abar__attention_summary attention; /* count 0: none */
    double *attention_values;          /* (3, n): |eigenvalues|, singular values, column means */
    size_t attention_bytes;
} abar__map_result;

typedef struct abar__snapshot {
    char name[64];         /* "epoch 12", "initial", "final", or the file's name */
    double epoch;          /* NaN: unknown */
    bool training;         /* inputs were observed in training mode ... */
    bool at_start;         /* ... because batch norm's running statistics were at their start */
    abar__map_result *map; /* one per map of the collection */
} abar__snapshot;

typedef struct abar__results_config {
    double damping;
    bool batch_mean; /* p at the scale of the batch mean: divided by the batch */
} abar__results_config;

/* From what was collected. keep_p: keep P for a heat map. */
abar_status abar__result_make(const abar__collection *c, int map, const abar__results_config *config, bool keep_p,
                              abar__map_result *out);
void abar__result_free(abar_context *ctx, abar__map_result *r);

#endif
