/* The sums of a loss over one row. */
#ifndef ABAR_LOSS_KERNELS_H
#define ABAR_LOSS_KERNELS_H

#include "device/cpu/isa.h"

#include <stdint.h>

typedef struct abar__loss_kernels {
    /* The largest element, NaNs ignored. */
    float (*largest)(const float *x, int64_t n);
    /* Sum of e^(x - top); NaN where an element is NaN. */
    double (*sum_exp)(const float *x, float top, int64_t n);
    /* Sum of weight (log_sum - (x - top)): minus the log probabilities. weight NULL: all 1. */
    double (*surprise)(const float *x, const float *weight, float top, float log_sum, int64_t n);
    /* y = e^(x - top) factor + offset */
    void (*scaled_exp)(const float *x, float top, float factor, float offset, float *y, int64_t n);
    /* y += weight factor */
    void (*add_scaled)(const float *weight, float factor, float *y, int64_t n);
    /* Sum of (x - t)^2, and y = (x - t) factor. */
    double (*distance)(const float *x, const float *t, int64_t n);
    void (*difference)(const float *x, const float *t, float factor, float *y, int64_t n);
} abar__loss_kernels;

ABAR_ISA_EXTERN(abar__loss_kernels, abar__loss);

#endif
