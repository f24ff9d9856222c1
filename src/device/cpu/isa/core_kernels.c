/* The update rules and the gradient norm over one span, written so that the compiler vectorises every loop.
 * Equations: core_kernels.h and methods.md section 8. */
#include "device/cpu/isa/core_kernels.h"

#include <math.h>

#define LANES 32 /* independent partial sums: enough to hide the latency of the addition */
#define AHEAD ABAR_CORE_AHEAD
#define AHEAD_1 2048 /* what is read alone. The processor's own prefetching stops at the end of every page */

/* Asks for LANES floats from x[i] on, which may lie behind the end of x. */
static inline void fetch(const float *x, int64_t i)
{
    const uintptr_t at = (uintptr_t)x + (uintptr_t)i * sizeof *x;
    __builtin_prefetch((const void *)at);
    __builtin_prefetch((const void *)(at + 16 * sizeof *x));
}

/* In double: squares of large finite floats must not overflow, and 36 million of them must add up. */
static double sum_squares(const float *restrict grad, int64_t n)
{
    double lane[LANES] = {0.0};
    int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        fetch(grad, i + AHEAD_1);
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

static inline void sgd_momentum_some(float *restrict weight, const float *restrict grad, float *restrict velocity, int64_t n,
                                     abar__sgd_coefficients c)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = c.grad_scale * grad[i] + c.coupled * w;
        float v = c.momentum * velocity[i] + g;
        velocity[i] = v;
        weight[i] = w - (c.decoupled * w + c.lr_grad * g + c.lr_velocity * v);
    }
}

static void sgd_momentum(float *restrict weight, const float *restrict grad, float *restrict velocity, int64_t n,
                         const abar__sgd_coefficients *coefficients)
{
    const abar__sgd_coefficients c = *coefficients;
    const int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        fetch(weight, i + AHEAD);
        fetch(velocity, i + AHEAD);
        fetch(grad, i + AHEAD);
        sgd_momentum_some(weight + i, grad + i, velocity + i, LANES, c);
    }
    sgd_momentum_some(weight + whole, grad + whole, velocity + whole, n - whole, c);
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
        float mean = c.of_first * m + c.of_grad * g, decay = mean * w < 0.0f ? c.against : c.decay;
        weight[i] = w - (decay * w + c.lr * mean / (c.root * sqrtf(v) + c.eps));
    }
}

static void adahessian(float *restrict weight, const float *restrict grad, float *restrict first, float *restrict second,
                       const float *restrict diagonal, int64_t n, const abar__adahessian_coefficients *coefficients)
{
    const abar__adahessian_coefficients c = *coefficients;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float d = diagonal[i] < c.largest ? diagonal[i] : c.largest;
        first[i] = c.beta1 * first[i] + c.one_minus_beta1 * c.grad_scale * grad[i];
        second[i] = c.beta2 * second[i] + c.one_minus_beta2 * d * d;
    }
    const bool plain = c.power == 1.0f; /* powf is not a vector operation */
    for (int64_t i = 0; i < n; i++) {
        const float root = c.root * sqrtf(second[i]), length = (plain ? root : powf(root, c.power)) + c.eps;
        weight[i] -= c.decay * weight[i] + (length > 0.0f ? c.lr * first[i] / length : 0.0f);
    }
}

static void sophia(float *restrict weight, const float *restrict grad, float *restrict first, const float *restrict diagonal,
                   int64_t n, const abar__sophia_coefficients *coefficients)
{
    const abar__sophia_coefficients c = *coefficients;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float w = weight[i], m = c.beta1 * first[i] + c.one_minus_beta1 * c.grad_scale * grad[i];
        const float ratio = fabsf(m) / (c.scale * diagonal[i] + c.least), bounded = ratio < 1.0f ? ratio : 1.0f;
        first[i] = m;
        weight[i] = w - (c.decay * w + c.lr * (m < 0.0f ? -bounded : bounded));
    }
}

/* ---- rows of preconditioned maps ------------------------------------------------------------------------------------ */

static float folded(float *lane)
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) lane[j] += lane[j + width];
    return lane[0];
}

static float dot(const float *restrict x, const float *restrict y, int64_t n)
{
    float lane[LANES] = {0.0f};
    int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
#pragma omp simd
        for (int j = 0; j < LANES; j++) lane[j] += x[i + j] * y[i + j];
    }
    for (int64_t i = whole; i < n; i++) lane[i - whole] += x[i] * y[i];
    return folded(lane);
}

/* Adds the squares of a row to their lanes. */
static inline void add_squares(const float *restrict x, int64_t n, double *restrict squares)
{
    const int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        fetch(x, i + AHEAD_1);
#pragma omp simd
        for (int j = 0; j < LANES; j++) squares[j] += (double)x[i + j] * (double)x[i + j];
    }
    for (int64_t i = whole; i < n; i++) squares[i - whole] += (double)x[i] * (double)x[i];
}

/* Likewise, and returns its product with y, as dot does. */
static inline float add_squares_dot(const float *restrict x, const float *restrict y, int64_t n, double *restrict squares)
{
    float lane[LANES] = {0.0f};
    const int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        fetch(x, i + AHEAD_1);
#pragma omp simd
        for (int j = 0; j < LANES; j++) {
            squares[j] += (double)x[i + j] * (double)x[i + j];
            lane[j] += x[i + j] * y[i + j];
        }
    }
    for (int64_t i = whole; i < n; i++) {
        squares[i - whole] += (double)x[i] * (double)x[i];
        lane[i - whole] += x[i] * y[i];
    }
    return folded(lane);
}

static double sum_squares_rows(const float *grad, int64_t rows, int64_t columns, const float *right, float *c)
{
    double squares[LANES] = {0.0}, sum = 0.0;
    for (int64_t o = 0; o < rows; o++) {
        if (right)
            c[o] = add_squares_dot(grad + o * columns, right, columns, squares);
        else
            add_squares(grad + o * columns, columns, squares);
    }
    for (int j = 0; j < LANES; j++) sum += squares[j];
    return sum;
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

static inline void sgd_momentum_row_some(float *restrict weight, const float *restrict grad, float *restrict velocity,
                                         const float *restrict right, float s, int64_t n, abar__sgd_coefficients c)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = c.grad_scale * (grad[i] - s * right[i]) + c.coupled * w;
        float v = c.momentum * velocity[i] + g;
        velocity[i] = v;
        weight[i] = w - (c.decoupled * w + c.lr_grad * g + c.lr_velocity * v);
    }
}

static void sgd_momentum_row(float *restrict weight, const float *restrict grad, float *restrict velocity, const abar__row *row,
                             int64_t n, const abar__sgd_coefficients *coefficients)
{
    const abar__sgd_coefficients c = *coefficients;
    const float *right = row->right;
    const float s = row->c;
    const int64_t ahead = row->ahead, whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        fetch(weight, i + AHEAD);
        fetch(velocity, i + AHEAD);
        fetch(grad, i + ahead);
        sgd_momentum_row_some(weight + i, grad + i, velocity + i, right + i, s, LANES, c);
    }
    sgd_momentum_row_some(weight + whole, grad + whole, velocity + whole, right + whole, s, n - whole, c);
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
        float mean = c.of_first * m + c.of_grad * g, decay = mean * w < 0.0f ? c.against : c.decay;
        weight[i] = w - (decay * w + c.lr * mean / (c.root * sqrtf(v) + c.eps));
    }
}

/* ---- other rules --------------------------------------------------------------------------------------------------- */

static inline void sfadamw_element(float *w, float g, float *apart, float *second, const abar__sfadamw_coefficients *c)
{
    g = within(c->grad_scale * g, c->largest);
    const float a = *apart, v = c->beta2 * *second + c->one_minus_beta2 * g * g;
    const float u = g / (c->root * sqrtf(v) + c->eps) + c->decay * *w;
    *second = v;
    *w += c->share * a - c->step * u;
    *apart = c->keep * (a - c->apart * u);
}

static void sfadamw(float *restrict weight, const float *restrict grad, float *restrict apart, float *restrict second,
                    const abar__row *row, int64_t n, const abar__sfadamw_coefficients *coefficients)
{
    const abar__sfadamw_coefficients c = *coefficients;
    if (!row) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) sfadamw_element(&weight[i], grad[i], &apart[i], &second[i], &c);
        return;
    }
    const float *restrict right = row->right;
    const float s = row->c;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sfadamw_element(&weight[i], grad[i] - s * right[i], &apart[i], &second[i], &c);
}

static void plain(float *restrict weight, const float *restrict grad, int64_t n, const abar__plain_coefficients *coefficients)
{
    const abar__plain_coefficients c = *coefficients;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = weight[i], g = grad[i], decay = g * w < 0.0f ? c.against : c.decay;
        weight[i] = w - (decay * w + c.lr * g);
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
    .sum_squares_rows = sum_squares_rows,
    .sgd = sgd,
    .sgd_momentum = sgd_momentum,
    .adamw = adamw,
    .adahessian = adahessian,
    .sophia = sophia,
    .dot = dot,
    .sgd_row = sgd_row,
    .sgd_momentum_row = sgd_momentum_row,
    .adamw_row = adamw_row,
    .sfadamw = sfadamw,
    .plain = plain,
    .momentum = momentum,
    .add = add,
    .lane_sums = lane_sums,
};
