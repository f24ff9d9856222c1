/* The update rules and the gradient norm over one span, written so that the compiler vectorises every loop.
 * Equations: core_kernels.h and methods.md section 8. */
#include "device/cpu/isa/core_kernels.h"

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

/* Comparisons that the compiler turns into one instruction each; what is not a number becomes a number. */
static inline float within(float g, float largest)
{
    g = g < largest ? g : largest;
    return g > -largest ? g : -largest;
}

static void adamw(float *restrict weight, const float *restrict grad, float *restrict first, float *restrict second, int64_t n,
                  const abar__adamw_coefficients *coefficients)
{
    const abar__adamw_coefficients c = *coefficients;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = within(c.grad_scale * grad[i], c.largest);
        float m = c.beta1 * first[i] + c.one_minus_beta1 * g;
        float v = c.beta2 * second[i] + c.one_minus_beta2 * g * g;
        first[i] = m;
        second[i] = v;
        weight[i] = w - (c.decay * w + c.lr * m / (c.root * sqrtf(v) + c.eps));
    }
}

/* ---- rows of preconditioned maps ------------------------------------------------------------------------------------ */

static float dot(const float *restrict x, const float *restrict y, int64_t n)
{
    float lane[LANES] = {0.0f};
    int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
#pragma omp simd
        for (int j = 0; j < LANES; j++) lane[j] += x[i + j] * y[i + j];
    }
    for (int64_t i = whole; i < n; i++) lane[i - whole] += x[i] * y[i];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) lane[j] += lane[j + width];
    return lane[0];
}

static void sgd_row(float *restrict weight, const float *restrict grad, const abar__row *row, int64_t n,
                    const abar__sgd_coefficients *coefficients)
{
    const abar__sgd_coefficients c = *coefficients;
    const float *restrict right = row->right;
    const float s = row->c;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = c.grad_scale * (grad[i] - s * right[i]) + c.coupled * w;
        weight[i] = w - (c.decoupled * w + c.lr_grad * g);
    }
}

static void sgd_momentum_row(float *restrict weight, const float *restrict grad, float *restrict velocity, const abar__row *row,
                             int64_t n, const abar__sgd_coefficients *coefficients)
{
    const abar__sgd_coefficients c = *coefficients;
    const float *restrict right = row->right;
    const float s = row->c;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = c.grad_scale * (grad[i] - s * right[i]) + c.coupled * w;
        float v = c.momentum * velocity[i] + g;
        velocity[i] = v;
        weight[i] = w - (c.decoupled * w + c.lr_grad * g + c.lr_velocity * v);
    }
}

static void adamw_row(float *restrict weight, const float *restrict grad, float *restrict first, float *restrict second,
                      const abar__row *row, int64_t n, const abar__adamw_coefficients *coefficients)
{
    const abar__adamw_coefficients c = *coefficients;
    const float *restrict right = row->right;
    const float s = row->c;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = within(c.grad_scale * (grad[i] - s * right[i]), c.largest);
        float m = c.beta1 * first[i] + c.one_minus_beta1 * g;
        float v = c.beta2 * second[i] + c.one_minus_beta2 * g * g;
        first[i] = m;
        second[i] = v;
        weight[i] = w - (c.decay * w + c.lr * m / (c.root * sqrtf(v) + c.eps));
    }
}

/* ---- sums of statistics ------------------------------------------------------------------------------------------- */

static void momentum(float *grad, float *average, const abar__row *row, int64_t n,
                     const abar__momentum_coefficients *coefficients)
{
    const abar__momentum_coefficients c = *coefficients;
    if (row) {
        const float *right = row->right;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) grad[i] -= row->c * right[i];
    }
    if (!average) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) grad[i] *= c.grad_scale;
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = c.grad_scale * grad[i], m = c.momentum * average[i] + c.rest * g;
        average[i] = m;
        grad[i] = c.of_grad * g + c.of_average * m;
    }
}

static void add(float *restrict acc, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) acc[i] += x[i];
}

/* The lanes of consecutive pixels are consecutive: sum everything modulo 64, then fold. */
static void lane_sums(const float *restrict x, int64_t n, int64_t lanes, bool squares, float *restrict sum)
{
    float part[64] = {0.0f};
    int64_t count = n * lanes, whole = count - count % 64;
    for (int64_t i = 0; i < whole; i += 64) {
        if (squares) {
#pragma omp simd
            for (int j = 0; j < 64; j++) part[j] += x[i + j] * x[i + j];
        } else {
#pragma omp simd
            for (int j = 0; j < 64; j++) part[j] += x[i + j];
        }
    }
    for (int64_t i = whole; i < count; i++) part[i - whole] += squares ? x[i] * x[i] : x[i];
    for (int64_t l = 0; l < lanes; l++) {
        sum[l] = 0.0f;
        for (int64_t j = l; j < 64; j += lanes) sum[l] += part[j];
    }
}

const abar__core_kernels ABAR_ISA_NAME(abar__core) = {
    .sum_squares = sum_squares,
    .sgd = sgd,
    .sgd_momentum = sgd_momentum,
    .adamw = adamw,
    .dot = dot,
    .sgd_row = sgd_row,
    .sgd_momentum_row = sgd_momentum_row,
    .adamw_row = adamw_row,
    .momentum = momentum,
    .add = add,
    .lane_sums = lane_sums,
};
