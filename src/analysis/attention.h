/* What attention's probabilities look like: spectra of the mean matrix, its agreement with the column means that MAC uses, and
 * how well a rank-1 matrix stands for it (docs/analysis.md, attention). */
#ifndef ABAR_ANALYSIS_ATTENTION_H
#define ABAR_ANALYSIS_ATTENTION_H

#include "base/base_impl.h"

/* Sums over matrices T (n, n), row-stochastic, one per sample, window and head. */
typedef struct abar__attention_sums {
    abar_context *ctx;
    int64_t n;
    double count;
    double *sum;                  /* (n, n) */
    double share, rank1, printed; /* sums of sigma_1^2 / |T|_F^2, |T - 1 t^T|_F / |T|_F, |T - t t^T|_F / |T|_F */
    double *work;                 /* (3, n) */
    size_t bytes;
} abar__attention_sums;

abar_status abar__attention_create(abar_context *ctx, int64_t n, abar__attention_sums *out);
void abar__attention_free(abar__attention_sums *s);
abar_status abar__attention_add(abar__attention_sums *s, const double *t);

/* Queries, keys and values of a batch as a linear map wrote them, and how attention reads them. */
typedef struct abar__attention_view {
    const float *qkv; /* (samples, tokens, 3 width) */
    int64_t samples, tokens, width, heads;
    int64_t grid[2], side, shift; /* windows of side x side tokens on a grid rolled by shift; side 0: all tokens */
    bool causal;
    const float *bias; /* ((2 side - 1)^2, heads): relative positions; NULL: none */
} abar__attention_view;

/* Adds the probabilities of every sample, window and head. */
abar_status abar__attention_add_view(abar__attention_sums *s, const abar__attention_view *v);

typedef struct abar__attention_summary {
    int64_t n;
    double count;
    double cosine_stationary; /* of the left eigenvector for the eigenvalue 1, the stationary distribution, and t */
    double cosine_singular;   /* of the top right singular vector and t */
    double cosine_lower;  /* of the top eigenvector of the lower triangle, mirrored, and t: what the published code computes */
    double lower_largest; /* that matrix's largest eigenvalue; a stochastic matrix has none above 1 */
    double share, rank1, printed; /* means over the matrices */
} abar__attention_summary;

/* t = T^T 1 / n of the mean matrix T; eigenvalues (absolute, descending), singular values and t: (n) each, or NULL. */
abar_status abar__attention_summarise(const abar__attention_sums *s, abar__attention_summary *out, double *eigenvalues,
                                      double *singular, double *columns);

#endif
