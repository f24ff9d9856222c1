/* The inner loops of batch norm. Every layout is treated as rows of up to sixteen floats whose lanes have their own
 * coefficients: sixteen channels (C16), eight channels twice (C8), or one channel sixteen times. */
#ifndef ABAR_BATCH_NORM_KERNELS_H
#define ABAR_BATCH_NORM_KERNELS_H

#include "device/cpu/isa.h"

#include <stdbool.h>
#include <stdint.h>

/* Rows of a value: the first at float begin, stride floats apart, lanes floats each. */
typedef struct abar__norm_rows {
    int64_t begin, rows, stride;
    int lanes; /* 1 to 16 */
} abar__norm_rows;

/* Per lane. Forward: (x - MEAN) SCALE + SHIFT. Backward: g SCALE + (x - MEAN) FROM_X + OFFSET. */
enum { ABAR_NORM_MEAN, ABAR_NORM_SCALE, ABAR_NORM_SHIFT, ABAR_NORM_FROM_X, ABAR_NORM_OFFSET, ABAR_NORM_COEFS };
typedef struct abar__norm_coef {
    float v[ABAR_NORM_COEFS][16];
} abar__norm_coef;

/* Where a fused ReLU passes the gradient: everywhere, where y > 0, or where the y computed from x is > 0, which saves
 * reading y. */
typedef enum abar__norm_mask { ABAR_NORM_ALL, ABAR_NORM_BY_Y, ABAR_NORM_BY_X } abar__norm_mask;

/* The inputs of the backward passes, which form g = (dy + dy2) masked. */
typedef struct abar__norm_grad {
    const float *dy, *dy2, *y, *x; /* dy2 NULL: none; y only for ABAR_NORM_BY_Y */
    abar__norm_mask mask;
} abar__norm_grad;

typedef struct abar__batch_norm_kernels {
    /* Adds the sums of x and of x*x, per lane. */
    void (*moments)(const abar__norm_rows *at, const float *x, double *sum, double *square);
    /* residual may be NULL. */
    void (*normalize)(const abar__norm_rows *at, const abar__norm_coef *coef, const float *x, const float *residual, float *y,
                      bool relu);
    /* Adds the sums of g and of g (x - mean), per lane; writes g to `keep` unless that is NULL. */
    void (*gradient_sums)(const abar__norm_rows *at, const abar__norm_coef *coef, const abar__norm_grad *grad, float *keep,
                          double *sum, double *with_x);
    /* add: to what dx holds. */
    void (*gradient_input)(const abar__norm_rows *at, const abar__norm_coef *coef, const abar__norm_grad *grad, float *dx,
                           bool add);
} abar__batch_norm_kernels;

ABAR_ISA_EXTERN(abar__batch_norm_kernels, abar__batch_norm);

/* The moments of a channel that a convolution or a concatenation computes for all batch norms that read it. */
typedef struct abar__norm_moments {
    double sum, square;
} abar__norm_moments;

#endif
