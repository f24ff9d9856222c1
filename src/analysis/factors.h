/* Spectra of Kronecker products and of a layer's Fisher matrix, and what a matrix of output gradients looks like. */
#ifndef ABAR_ANALYSIS_FACTORS_H
#define ABAR_ANALYSIS_FACTORS_H

#include "base/base_impl.h"

/* The k largest products a_i b_j of two descending, non-negative lists: the spectrum of a Kronecker product without forming
 * it. Returns how many there are. */
abar_status abar__top_products(abar_context *ctx, const double *a, int64_t n, const double *b, int64_t m, int64_t k,
                               double *out, int64_t *found);

/* The Gram matrix of per-example gradients of one map, K_nm = sum_rs (p_nr p_ms) (a_nr a_ms), from inputs (examples, R, d) and
 * output gradients (examples, R, out). The nonzero eigenvalues of K / examples are those of the layer's Fisher matrix. */
abar_status abar__fisher_gram(abar_context *ctx, int64_t examples, int64_t rows, int64_t d, int64_t out, const double *a,
                              const double *p, double *gram);

/* log l_i(F) - log l_i(P) = c + residual over the first n positive pairs: c and the rms of the residual in decades, and the
 * number of pairs. */
typedef struct abar__rescaling {
    double factor, rms;
    int64_t pairs;
} abar__rescaling;
abar__rescaling abar__compare_spectra(const double *f, const double *p, int64_t n);

/* How diagonal a symmetric matrix is: of itself, and of its correlations P_ij / sqrt(P_ii P_jj). */
typedef struct abar__diagonality {
    double ratio, share;                        /* mean |diagonal| / mean |off-diagonal|; |diagonal|^2 / |all|^2 */
    double correlation_mean, correlation_share; /* mean |off-diagonal|, and share, of the correlations */
    double row_sum;                             /* largest |sum of a row| / largest |entry| */
} abar__diagonality;
abar__diagonality abar__diagonality_of(int64_t n, const double *a);

#endif
