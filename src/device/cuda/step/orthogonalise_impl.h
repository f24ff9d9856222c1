/* Shared by the files of the orthogonaliser: orthogonalise.cu (the object, and the passes around the products of large blocks),
 * orthogonalise_products.cu (these products, by cuBLASLt), orthogonalise_small.cu (small blocks as a whole). */
#ifndef ABAR_CUDA_ORTHOGONALISE_IMPL_H
#define ABAR_CUDA_ORTHOGONALISE_IMPL_H

#include "device/cuda/core/blas_library.h"
#include "device/cuda/step/orthogonalise.h"

/* A block as kernels see it. X is u, or u^T where that has fewer rows. */
typedef struct abar__ns_item {
    const float *in;
    float *out, *moment; /* (rows, columns), (rows); moment NULL: plain Muon */
    float scale;
    int32_t rows, columns;
    int32_t index; /* in the caller's list */
    bool transposed;
} abar__ns_item;

/* The polynomial as kernels need it. */
typedef struct abar__ns_polynomial {
    int32_t steps;
    float c[ABAR_NS_STEPS_MAX][3];
    double safety, eps;
} abar__ns_polynomial;

__host__ __device__ static inline int abar__up(int n, int to) { return (n + to - 1) / to * to; }

/* What X is multiplied by before the first step, from the norm of u; 0 where u is 0 or not finite. */
__device__ static inline double abar__ns_factor(const abar__ns_polynomial &p, double norm)
{
    const double divisor = fmax(p.safety * norm, p.eps);
    return isfinite(norm) && divisor > 0.0 ? 1.0 / divisor : 0.0;
}

__device__ static inline int32_t abar__ns_verdict(const abar__ns_polynomial &p, double norm)
{
    if (!isfinite(norm)) return ABAR_NS_NOT_FINITE;
    return norm > 0.0 && norm < p.eps ? ABAR_NS_BELOW_EPS : ABAR_NS_FINE;
}

/* NorMuon: the moment of a row after one with this sum of squares, and what the row is divided by. */
__device__ static inline float abar__next_moment(float v, double beta, double squares, int columns)
{
    return (float)(beta * (double)v + (1.0 - beta) * (squares / columns));
}

__device__ static inline float abar__row_divisor(float v) { return sqrtf(v) + (float)ABAR_NORMUON_EPS; }

/* ---- products of large blocks ---------------------------------------------------------------------------------------------
 */

/* All blocks whose X has the same size, once that is padded with zeros to multiples of ABAR_NS_PAD. */
typedef struct abar__ns_group {
    int32_t first, count;     /* items */
    int32_t r, c;             /* of the padded X, r <= c */
    int32_t tiles_r, tiles_c; /* of ABAR_NS_TILE squared in X */
} abar__ns_group;

#define ABAR_NS_PAD 8 /* elements: rows of 16 bytes or more, as cuBLASLt's fast kernels need them */
#define ABAR_NS_TILE 64

typedef struct abar__ns_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
} abar__ns_product;

/* S = X X^T,  B = c5 S S + c3 S,  Y = B X + c1 X  for a group. */
typedef struct abar__ns_products {
    cublasLtMatrixLayout_t x, s; /* batches of X and Y, of S and B */
    abar__ns_product of_s, of_b, of_y;
} abar__ns_products;

/* cuBLASLt and its memory; all groups use it one after the other. */
typedef struct abar__ns_blas {
    abar__blas_api api;
    cublasLtHandle_t handle; /* NULL: not open */
    void *x[2], *s, *b;      /* for the largest group; X is in x[0] before the first step */
    void *workspace;         /* ABAR_NS_WORKSPACE bytes */
    bool exact;
} abar__ns_blas;

#define ABAR_NS_WORKSPACE ((size_t)32 << 20)

extern "C" {
abar_status abar__ns_blas_open(abar_device *dev, abar__ns_blas *blas);
void abar__ns_blas_close(abar__ns_blas *blas);
/* measured: the fastest of several algorithms; overwrites blas's memory and waits. */
abar_status abar__ns_products_create(abar_device *dev, const abar__ns_blas *blas, const abar__ns_group *group, bool measured,
                                     abar__ns_products *out);
void abar__ns_products_destroy(const abar__ns_blas *blas, abar__ns_products *p);
/* All steps; *result is which of blas->x holds the last X. */
abar_status abar__ns_products_run(abar_device *dev, const abar__ns_blas *blas, const abar__ns_products *p,
                                  const abar__ns_polynomial *polynomial, int *result);

/* ---- small blocks -----------------------------------------------------------------------------------------------------------
 */

/* Bytes of shared memory for a block; 0: it is not small. */
size_t abar__ns_small_bytes(const abar_device *dev, int64_t rows, int64_t columns, bool exact);
abar_status abar__ns_small_prepare(abar_device *dev);
/* One thread block for each of n items, shared bytes for the largest. */
void abar__ns_small_run(abar_device *dev, const abar__ns_polynomial *polynomial, const abar__ns_item *items, int n,
                        size_t shared, bool exact, double beta, const int32_t *skip, int32_t *verdict);
}

#endif
