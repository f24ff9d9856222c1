/* Element-wise functions and their gradients, over n floats in any layout. */
#ifndef ABAR_ACTIVATION_KERNELS_H
#define ABAR_ACTIVATION_KERNELS_H

#include "device/cpu/isa.h"

#include <stdint.h>

/* value: y for relu and tanh, x for gelu. dy2: a second summand of dy, or NULL. dx may be dy. */
typedef void abar__act_forward(const float *x, float *y, int64_t n);
typedef void abar__act_backward(const float *dy, const float *dy2, const float *value, float *dx, int64_t n);

typedef struct abar__activation_kernels {
    abar__act_forward *relu, *tanh, *gelu_erf, *gelu_tanh;
    abar__act_backward *relu_grad, *tanh_grad, *gelu_erf_grad, *gelu_tanh_grad;
} abar__activation_kernels;

ABAR_ISA_EXTERN(abar__activation_kernels, abar__activation);

#endif
