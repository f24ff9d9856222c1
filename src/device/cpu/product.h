/* c = op(a) op(b) + beta c, all row-major, computed by the calling thread. The rows of a, b and c lie lda, ldb and ldc floats
 * apart. */
#ifndef ABAR_CPU_PRODUCT_H
#define ABAR_CPU_PRODUCT_H

#include "abar/base.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct abar__product {
    bool trans_a, trans_b;
    int64_t m, n, k; /* c (m, n), op(a) (m, k), op(b) (k, n) */
    const float *a, *b;
    int64_t lda, ldb;
    float *c;
    int64_t ldc;
    float beta; /* 0: c need not hold numbers */
} abar__product;

/* By oneDNN, in a build without it by OpenBLAS. Both would start threads of their own outside of a parallel region:
 * abar__blas_single() keeps them from it. Fails for lack of memory; the caller says so (threads share the context). */
abar_status abar__multiply(const abar__product *p);

/* Makes what the first product would make: kernels take memory. Called where an operation is created. */
abar_status abar__multiply_ready(void);

extern const char abar__multiply_name[]; /* whose kernels they are */

#endif
