/* Looking at curvature: how much of a layer's activation second moment is its mean, and what that means for MAC.
 *
 * From rows of your own: create moments, add rows, read the summary. docs/analysis.md defines every number. Part of
 * libabar_optim, too. What `abar analyze` does for a trained network is in abar/analyze.h. */
#ifndef ABAR_ANALYSIS_H
#define ABAR_ANALYSIS_H

#include "abar/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Mean and second moment of rows, summed in double precision. */
typedef struct abar_moments abar_moments;

abar_status abar_moments_create(abar_context *ctx, int64_t d, abar_moments **out);
void abar_moments_destroy(abar_moments *m);
/* rows: (n, d) on the host, F64 or F32, strided. */
abar_status abar_moments_add(abar_moments *m, const abar_tensor *rows);
size_t abar_moments_bytes(int64_t d); /* that create takes */

int64_t abar_moments_side(const abar_moments *m);
double abar_moments_rows(const abar_moments *m);
/* mean (d), second (d, d) row-major: E[a] and E[a a^T]; either may be NULL. */
abar_status abar_moments_read(const abar_moments *m, double *mean, double *second);

/* A = E[a a^T], x = E[a], S = A - x x^T. Eigenvalues l1 >= l2 >= ...; NaN where a number does not exist. */
typedef struct abar_moments_summary {
    size_t size; /* sizeof(abar_moments_summary), set by the caller */
    double rows;
    double trace, largest, second, least;  /* of A: its trace and eigenvalues; least is NaN beyond side 2048 */
    double effective_rank;                 /* trace / l1 */
    double entropy_rank;                   /* exp of the entropy of the eigenvalues over their sum; NaN beyond side 2048 */
    double mean_square;                    /* |x|^2 */
    double cosine;                         /* |<v1, x>| / |x|, v1 the top eigenvector of A */
    double gap;                            /* (l1 - l2) / l1 */
    double distance;                       /* min over signs of |x/|x| - v1| */
    double davis_kahan, davis_kahan_sharp; /* bounds on it: 2 sqrt(2) |S|_F / |x|^2, and with the spectral norm */
    double covariance_norm, covariance_spectral, covariance_trace; /* |S|_F, |S|_2, tr S */
    double rank1_error;                                            /* |S|_F / |x|^2: relative error of A ~ x x^T */
    double rank1_share;                                            /* |x|^2 / tr A: how much of A is its mean */
    double adaptive_damping;                                       /* tr S / d */
    /* with the damping rho that was asked for */
    double kappa_kfac, kappa_mac; /* (l1 + rho) / (least + rho), (|x|^2 + rho) / (least + rho): the paper's factors */
    double condition_sgd, condition_mac, condition_foof; /* of M^-1/2 A M^-1/2 for M = I, x x^T + rho I, A + rho I; infinite
                                                            where A is singular */
} abar_moments_summary;

/* values: the first n eigenvalues of A, descending, n at most d; NULL and 0: not wanted. */
abar_status abar_moments_summarise(const abar_moments *m, double damping, abar_moments_summary *out, double *values, int64_t n);

/* ---- attention, from probabilities of your own ---------------------------------------------------------------------- */

/* Matrices T (n, n) whose rows sum to 1, one per sample and head. */
typedef struct abar_probabilities abar_probabilities;

abar_status abar_probabilities_create(abar_context *ctx, int64_t n, abar_probabilities **out);
void abar_probabilities_destroy(abar_probabilities *p);
/* t: (m, n, n) on the host, F64 or F32, strided. */
abar_status abar_probabilities_add(abar_probabilities *p, const abar_tensor *t);

/* Of the mean matrix T, its column means t = T^T 1 / n, and the single matrices. */
typedef struct abar_probabilities_summary {
    size_t size; /* sizeof(abar_probabilities_summary), set by the caller */
    double matrices;
    double cosine_stationary; /* of t and the left eigenvector for the eigenvalue 1, the stationary distribution */
    double cosine_singular;   /* of t and the top right singular vector */
    double top_share;         /* mean over the matrices: largest singular value squared / |T|_F^2 ... */
    double rank1_error;       /* ... |T - 1 t^T|_F / |T|_F, t its own column means ... */
    double printed_error;     /* ... and |T - t t^T|_F / |T|_F, the form the paper prints */
} abar_probabilities_summary;

/* eigenvalues (absolute) and singular values of the mean matrix, descending, and t: (n) each, or NULL. */
abar_status abar_probabilities_summarise(const abar_probabilities *p, abar_probabilities_summary *out, double *eigenvalues,
                                         double *singular, double *columns);

#ifdef __cplusplus
}
#endif
#endif
