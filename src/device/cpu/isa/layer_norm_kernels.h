/* One row of layer norm. */
#ifndef ABAR_LAYER_NORM_KERNELS_H
#define ABAR_LAYER_NORM_KERNELS_H

#include "device/cpu/isa.h"

#include <stdint.h>

typedef struct abar__layer_norm_kernels {
    /* y = (x - mean) rstd scale + shift (NULL: 0); writes mean and rstd to stat. */
    void (*forward)(const float *x, const float *scale, const float *shift, double eps, int64_t n, float *y, float stat[2]);
    /* Writes dx unless it is NULL; adds to dscale and dshift. */
    void (*backward)(const float *dy, const float *x, const float *scale, const float stat[2], int64_t n, float *dx,
                     double *dscale, double *dshift);
} abar__layer_norm_kernels;

ABAR_ISA_EXTERN(abar__layer_norm_kernels, abar__layer_norm);

#endif
