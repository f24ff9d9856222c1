/* Dense linear algebra for the analyses: double precision, row-major, on the host, by LAPACK. */
#ifndef ABAR_ANALYSIS_DENSE_H
#define ABAR_ANALYSIS_DENSE_H

#include "base/base_impl.h"

/* Eigenvalues of a symmetric (d, d) matrix in descending order. Only the lower triangle is read; a is overwritten: by the
 * eigenvectors, one per row in the order of the values, where vectors is set. ABAR_E_NUMERIC: a number is not finite, or no
 * convergence. */
abar_status abar__eigen_symmetric(abar_context *ctx, int64_t d, double *a, bool vectors, double *values);

/* Eigenvalues re + i im of a general (n, n) matrix by descending absolute value, and the left eigenvector (n, unit length)
 * of the first where left is not NULL. a is overwritten. */
abar_status abar__eigen_general(abar_context *ctx, int64_t n, double *a, double *re, double *im, double *left);

/* Singular values of (m, n) in descending order, min(m, n) of them, and the first right singular vector (n). a is
 * overwritten. */
abar_status abar__singular_values(abar_context *ctx, int64_t m, int64_t n, double *a, double *values, double *right);

/* The k largest eigenvalues of a symmetric operator y = A x on R^d, and the eigenvector of the first where top is not NULL,
 * by Lanczos with full reorthogonalisation. */
typedef void (*abar__operator)(const void *user, const double *x, double *y);
abar_status abar__eigen_lanczos(abar_context *ctx, int64_t d, abar__operator multiply, const void *user, int64_t k,
                                double *values, double *top);

/* Lanczos beyond this side, LAPACK up to it. */
#define ABAR_EIGEN_DENSE_MAX 2048

double abar__dot(int64_t n, const double *x, const double *y);

#endif
