/* ReLU, tanh and both forms of GELU. Each function and slope is written once, for one element. */
#include "device/cpu/isa/activation_kernels.h"
#include "device/cpu/isa/lane_math.h"
#include "device/cpu/isa/lanes.h"

#include <stddef.h>

typedef float function(float x);

ABAR_SPECIALIZED void apply(function *f, const float *restrict x, float *restrict y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = f(x[i]);
}

/* dx may be dy. */
ABAR_SPECIALIZED void chain(function *slope, const float *dy, const float *restrict dy2, const float *restrict value, float *dx,
                            int64_t n)
{
    if (dy2) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dx[i] = (dy[i] + dy2[i]) * slope(value[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * slope(value[i]);
    }
}

ABAR_SPECIALIZED float relu_at(float x) { return x < 0 ? 0 : x; } /* NaN stays NaN */
ABAR_SPECIALIZED float relu_slope(float y) { return y > 0 ? 1.0f : 0.0f; }
static void relu(const float *x, float *y, int64_t n) { apply(relu_at, x, y, n); }
static void relu_grad(const float *dy, const float *dy2, const float *y, float *dx, int64_t n)
{
    chain(relu_slope, dy, dy2, y, dx, n);
}

ABAR_SPECIALIZED float tanh_slope(float y) { return 1.0f - y * y; }
static void tanh_(const float *x, float *y, int64_t n) { apply(abar__lane_tanh, x, y, n); }
static void tanh_grad(const float *dy, const float *dy2, const float *y, float *dx, int64_t n)
{
    chain(tanh_slope, dy, dy2, y, dx, n);
}

/* x Phi(x), Phi the normal distribution; its slope Phi(x) + x phi(x). */
ABAR_SPECIALIZED float gelu_erf_at(float x)
{
    float density, below;
    abar__lane_normal(x, &density, &below);
    return x * below;
}

ABAR_SPECIALIZED float gelu_erf_slope(float x)
{
    float density, below;
    abar__lane_normal(x, &density, &below);
    return below + x * density;
}

static void gelu_erf(const float *x, float *y, int64_t n) { apply(gelu_erf_at, x, y, n); }
static void gelu_erf_grad(const float *dy, const float *dy2, const float *x, float *dx, int64_t n)
{
    chain(gelu_erf_slope, dy, dy2, x, dx, n);
}

/* x (1 + tanh u) / 2 = x s with s = 1 / (1 + e), e = e^-2u, 2u = A x (1 + B x^2), A = 2 sqrt(2 / pi). In the slope,
 * 1 - s = e s keeps its digits where s is near 1. */
#define GELU_A 1.59576912f
#define GELU_B 0.044715f

ABAR_SPECIALIZED float gelu_exp(float x) { return abar__lane_exp(-GELU_A * x * (1.0f + GELU_B * x * x)); }
ABAR_SPECIALIZED float gelu_tanh_at(float x) { return x * (1.0f / (1.0f + gelu_exp(x))); }
ABAR_SPECIALIZED float gelu_tanh_slope(float x)
{
    float e = gelu_exp(x), s = 1.0f / (1.0f + e);
    return s + x * s * (e * s) * GELU_A * (1.0f + 3.0f * GELU_B * x * x);
}

static void gelu_tanh(const float *x, float *y, int64_t n) { apply(gelu_tanh_at, x, y, n); }
static void gelu_tanh_grad(const float *dy, const float *dy2, const float *x, float *dx, int64_t n)
{
    chain(gelu_tanh_slope, dy, dy2, x, dx, n);
}

const abar__activation_kernels ABAR_ISA_NAME(abar__activation) = {relu,      tanh_,     gelu_erf,      gelu_tanh,
                                                                  relu_grad, tanh_grad, gelu_erf_grad, gelu_tanh_grad};
