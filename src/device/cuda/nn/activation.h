/* Activations and their derivatives, for the kernels of activations alone and of linear layers that end in one.
 *
 * In bf16 GELU is bound by arithmetic, not by memory, if every exponential and quotient is computed to the last bit of a float,
 * and subnormal numbers are kept: the instructions of the special function unit alone are accurate enough. */
#ifndef ABAR_CUDA_NN_ACTIVATION_H
#define ABAR_CUDA_NN_ACTIVATION_H

#include "device/cuda/nn/cuda_nn.h"

/* y = activation(x) over count elements; y may be x. */
void abar__cuda_activate(abar_device *dev, abar__activation kind, const void *x, void *y, int64_t count);

#define SQRT_HALF 0.70710678f
#define INV_SQRT_2PI 0.39894228f
#define SQRT_2_OVER_PI 0.79788456f
#define GELU_CUBIC 0.044715f
#define LOG2_E 1.44269504f

/* 2^v and 1 / v; 0 for results below the smallest normal number. */
__device__ static inline float quick_exp2(float v)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

__device__ static inline float quick_inverse(float v)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* The normal distribution at v and, if asked for, its density; T: the type of the result. With q = e^(-v^2/2), which both
 * share, and t = 1 / (1 + 0.2316419 |v|): 1 - P(|v|) = q t (b1 + t (b2 + ...)) / sqrt(2 pi) (Abramowitz and Stegun 26.2.17,
 * error below 1e-7). It takes a third of the instructions of erff, and is accurate enough for bf16. */
template <typename T> __device__ static inline float normal_distribution(float v, float *density)
{
    if constexpr (sizeof(T) == sizeof(float)) {
        if (density) *density = INV_SQRT_2PI * expf(-0.5f * v * v);
        return 0.5f * (1.0f + erff(v * SQRT_HALF));
    } else {
        const float t = quick_inverse(1.0f + 0.2316419f * fabsf(v)), q = quick_exp2(v * (-0.5f * LOG2_E * v));
        const float b1 = 0.319381530f * INV_SQRT_2PI, b2 = -0.356563782f * INV_SQRT_2PI, b3 = 1.781477937f * INV_SQRT_2PI;
        const float b4 = -1.821255978f * INV_SQRT_2PI, b5 = 1.330274429f * INV_SQRT_2PI;
        const float beyond = q * (t * (b1 + t * (b2 + t * (b3 + t * (b4 + t * b5)))));
        if (density) *density = INV_SQRT_2PI * q;
        return v < 0.0f ? beyond : 1.0f - beyond;
    }
}

/* (1 + tanh v) / 2 = 1 / (1 + e^(-2v)). */
template <typename T> __device__ static inline float logistic(float v)
{
    if constexpr (sizeof(T) == sizeof(float))
        return 0.5f * (1.0f + tanhf(v));
    else
        return quick_inverse(1.0f + quick_exp2(-2.0f * LOG2_E * v));
}

template <typename T, abar__activation KIND> __device__ static inline float activate(float x)
{
    switch (KIND) {
    case ABAR_ACT_NONE: break;
    case ABAR_ACT_RELU: return x < 0.0f ? 0.0f : x; /* keeps a NaN, which fmaxf would drop */
    case ABAR_ACT_TANH: return tanhf(x);
    case ABAR_ACT_GELU_ERF: return x * normal_distribution<T>(x, NULL);
    case ABAR_ACT_GELU_TANH: return x * logistic<T>(x * (SQRT_2_OVER_PI + SQRT_2_OVER_PI * GELU_CUBIC * (x * x)));
    }
    return x;
}

/* The gradient g times the derivative, from the output for ReLU and tanh, from the input for GELU. */
template <typename T, abar__activation KIND> __device__ static inline float apply_slope(float g, float v)
{
    switch (KIND) {
    case ABAR_ACT_NONE: break;
    case ABAR_ACT_RELU: return v > 0.0f ? g : 0.0f;
    case ABAR_ACT_TANH: return g * (1.0f - v * v);
    case ABAR_ACT_GELU_ERF: {
        float density, below = normal_distribution<T>(v, &density);
        return g * (below + v * density);
    }
    case ABAR_ACT_GELU_TANH: {
        const float square = v * v, h = logistic<T>(v * (SQRT_2_OVER_PI + SQRT_2_OVER_PI * GELU_CUBIC * square));
        const float inner = 2.0f * SQRT_2_OVER_PI + 6.0f * SQRT_2_OVER_PI * GELU_CUBIC * square;
        return g * (h + v * (h - h * h) * inner);
    }
    }
    return g;
}

#endif
