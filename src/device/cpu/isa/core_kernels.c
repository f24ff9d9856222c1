/* The update rules and the gradient norm over one span, written so that the compiler vectorises every loop.
 * Equations: core_kernels.h and methods.md section 8. */
#include "device/cpu/core_kernels.h"

#include <math.h>

#define LANES 32 /* independent partial sums: enough to hide the latency of the addition */

/* In double: squares of large finite floats must not overflow, and 36 million of them must add up. */
static double sum_squares(const float *restrict grad, int64_t n)
{
    double lane[LANES] = {0.0};
    int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
#pragma omp simd
        for (int j = 0; j < LANES; j++) lane[j] += (double)grad[i + j] * (double)grad[i + j];
    }
    for (int64_t i = whole; i < n; i++) lane[i - whole] += (double)grad[i] * (double)grad[i];
    double sum = 0.0;
    for (int j = 0; j < LANES; j++) sum += lane[j];
    return sum;
}

static void sgd(float *restrict weight, const float *restrict grad, int64_t n, const abar__sgd_coefficients *coefficients)
{
    const abar__sgd_coefficients c = *coefficients;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = c.grad_scale * grad[i] + c.coupled * w;
        weight[i] = w - (c.decoupled * w + c.lr_grad * g);
    }
}

static void sgd_momentum(float *restrict weight, const float *restrict grad, float *restrict velocity, int64_t n,
                         const abar__sgd_coefficients *coefficients)
{
    const abar__sgd_coefficients c = *coefficients;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = c.grad_scale * grad[i] + c.coupled * w;
        float v = c.momentum * velocity[i] + g;
        velocity[i] = v;
        weight[i] = w - (c.decoupled * w + c.lr_grad * g + c.lr_velocity * v);
    }
}

static void adamw(float *restrict weight, const float *restrict grad, float *restrict first, float *restrict second, int64_t n,
                  const abar__adamw_coefficients *coefficients)
{
    const abar__adamw_coefficients c = *coefficients;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = c.grad_scale * grad[i];
        float m = c.beta1 * first[i] + c.one_minus_beta1 * g;
        float v = c.beta2 * second[i] + c.one_minus_beta2 * g * g;
        first[i] = m;
        second[i] = v;
        weight[i] = w - (c.decay * w + c.lr * m / (c.root * sqrtf(v) + c.eps));
    }
}

const abar__core_kernels ABAR_ISA_NAME(abar__core) = {sum_squares, sgd, sgd_momentum, adamw};
