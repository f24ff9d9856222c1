/* Batch norm's map from its input to its output before the residual: scale x + shift, with mean and deviation included. It is
 * computed and used in one way only, because forward's value and backward's mask must agree in every bit. */
#ifndef ABAR_CUDA_AFFINE_H
#define ABAR_CUDA_AFFINE_H

#include <cuda_runtime.h>

typedef struct affine {
    float scale, shift;
} affine;

__device__ static inline affine affine_of(float mean, float rstd, float scale, float shift)
{
    const float folded = __fmul_rn(scale, rstd);
    return {folded, fmaf(-mean, folded, shift)};
}

__device__ static inline float normal(const affine &c, float x) { return fmaf(x, c.scale, c.shift); }

#endif
