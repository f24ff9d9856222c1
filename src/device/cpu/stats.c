/* The cpu's table of statistics, with the small vector operations; sums over rows are in stats_sums.c and
 * stats_values.c, products and factorisations in stats_dense.c. */
#include "device/cpu/stats.h"

#include "device/cpu/stats_dense.h"
#include "device/step_rules.h"

#include <math.h>
#include <string.h>

static bool all_finite(abar_device *dev, int64_t n, bool square, const void *pending, double scale)
{
    if (square) return abar__cpu_all_finite(dev, n, square, pending, scale);
    const float *x = pending;
    const float s = (float)fmax(scale, 1.0);
    float sum = 0.0f; /* of numbers minus themselves: 0, unless one is not finite */
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += s * x[i] - s * x[i];
    return sum == 0.0f && isfinite(s);
}

static void commit(abar_device *dev, int64_t n, bool square, void *out, void *in, double beta, double add)
{
    if (square) {
        abar__cpu_commit(dev, n, square, out, in, beta, add);
        return;
    }
    float *average = out, *pending = in;
    for (int64_t i = 0; i < n; i++) {
        average[i] = (float)(beta * (double)average[i] + add * (double)pending[i]);
        pending[i] = 0.0f;
    }
}

static void clear(abar_device *dev, int64_t n, bool square, void *pending)
{
    if (square)
        abar__cpu_clear(dev, n, square, pending);
    else
        memset(pending, 0, (size_t)n * sizeof(float));
}

static double dot(abar_device *dev, int64_t n, const void *px, const void *py)
{
    (void)dev;
    const float *x = px, *y = py;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

static double bilinear(abar_device *dev, int64_t m, int64_t n, const void *left, const void *x, const void *right)
{
    const float *l = left;
    double sum = 0.0;
    for (int64_t i = 0; i < m; i++) sum += (double)l[i] * dot(dev, n, (const float *)x + i * n, right);
    return sum;
}

static double total(abar_device *dev, int64_t n, const void *px)
{
    (void)dev;
    const float *x = px;
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}

static void scale_rows(abar_device *dev, int64_t m, int64_t n, void *px, const void *factor, double scale)
{
    (void)dev;
    const float *f = factor;
    for (int64_t i = 0; i < m; i++) {
        float *x = (float *)px + i * n, s = (float)(scale * (f ? (double)f[i] : 1.0));
        for (int64_t j = 0; j < n; j++) x[j] *= s;
    }
}

static void affine(abar_device *dev, int64_t n, const void *px, double scale, double shift, void *py)
{
    (void)dev;
    const float *x = px;
    float *y = py;
    for (int64_t i = 0; i < n; i++) y[i] = (float)(scale * (double)x[i] + shift);
}

static void reciprocal(abar_device *dev, int64_t n, const void *px, double scale, double shift, void *py)
{
    (void)dev;
    const float *x = px;
    float *y = py;
    for (int64_t i = 0; i < n; i++) y[i] = (float)(1.0 / (scale * (double)x[i] + shift));
}

static void divide_outer(abar_device *dev, int64_t m, int64_t n, void *px, const void *rows, const void *columns, double shift,
                         double least)
{
    (void)dev;
    const float *a = rows, *b = columns;
    for (int64_t i = 0; i < m; i++) {
        float *x = (float *)px + i * n;
        for (int64_t j = 0; j < n; j++)
            x[j] = (float)((double)x[j] / abar__outer_divisor((double)a[i], (double)b[j], shift, least));
    }
}

static void compare(abar_device *dev, int64_t out, int64_t in, const void *weight, const void *bias,
                    const abar__precondition *pre, double result[3])
{
    const float *right = pre->right, *coefficient = pre->coefficient, *row_scale = pre->row_scale, *b = bias;
    const double last = right && bias ? (double)right[in] : 0.0;
    const double rr = right ? dot(dev, in, right, right) + last * last : 0.0;
    result[0] = result[1] = result[2] = 0.0;
    for (int64_t o = 0; o < out; o++) {
        const float *g = (const float *)weight + o * in;
        const double gb = bias ? (double)b[o] : 0.0;
        double gg = dot(dev, in, g, g) + gb * gb, gr = right ? dot(dev, in, g, right) + gb * last : 0.0;
        double c = coefficient ? (double)coefficient[o] : gr, scale = pre->scale * (row_scale ? (double)row_scale[o] : 1.0);
        result[0] += gg;
        result[1] += scale * (gg - c * gr);
        result[2] += scale * scale * (gg - 2.0 * c * gr + c * c * rr);
    }
}

static void gather(abar_device *dev, int64_t out, int64_t in, const void *weight, const void *bias, void *joined)
{
    (void)dev;
    const int64_t d = in + (bias ? 1 : 0);
    float *to = joined;
    for (int64_t o = 0; o < out; o++) {
        memcpy(to + o * d, (const float *)weight + o * in, (size_t)in * sizeof *to);
        if (bias) to[o * d + in] = ((const float *)bias)[o];
    }
}

static void scatter(abar_device *dev, int64_t out, int64_t in, const void *joined, void *weight, void *bias)
{
    (void)dev;
    const int64_t d = in + (bias ? 1 : 0);
    const float *from = joined;
    for (int64_t o = 0; o < out; o++) {
        memcpy((float *)weight + o * in, from + o * d, (size_t)in * sizeof *from);
        if (bias) ((float *)bias)[o] = from[o * d + in];
    }
}

const abar__stats_ops abar__cpu_stats = {
    .input_sum = abar__cpu_input_sum,
    .input_square_add = abar__cpu_input_square_add,
    .value_sums = abar__cpu_value_sums,
    .position_sums = abar__cpu_position_sums,
    .position_product = abar__cpu_position_product,
    .grad_sum = abar__cpu_grad_sum,
    .grad_squares = abar__cpu_grad_squares,
    .example_weights = abar__cpu_example_weights,
    .input_product = abar__cpu_input_product,
    .grad_product = abar__cpu_grad_product,
    .input_mean_product = abar__cpu_input_mean_product,
    .grad_mean_product = abar__cpu_grad_mean_product,
    .product_scratch = abar__cpu_product_scratch,
    .all_finite = all_finite,
    .commit = commit,
    .clear = clear,
    .trace = abar__cpu_trace,
    .example_rows = abar__cpu_example_rows,
    .example_rows_scratch = abar__cpu_example_rows_scratch,
    .rows_gram = abar__cpu_rows_gram,
    .solve_shifted = abar__cpu_solve_shifted,
    .invert = abar__cpu_invert,
    .invert_scratch = abar__cpu_invert_scratch,
    .eigen = abar__cpu_eigen,
    .eigen_scratch = abar__cpu_eigen_scratch,
    .sandwich = abar__cpu_sandwich,
    .precondition = abar__cpu_precondition,
    .dot = dot,
    .bilinear = bilinear,
    .sum = total,
    .scale_rows = scale_rows,
    .affine = affine,
    .reciprocal = reciprocal,
    .divide_outer = divide_outer,
    .compare = compare,
    .gather = gather,
    .scatter = scatter,
    .orthogonalise = abar__cpu_orthogonalise,
    .orthogonalise_scratch = abar__cpu_orthogonalise_scratch,
    .example_means = abar__cpu_example_means,
    .multiply = abar__cpu_multiply,
    .solve_rows = abar__cpu_solve_rows,
    .solve_rows_scratch = abar__cpu_solve_rows_scratch,
    .row_products = abar__cpu_row_products,
    .combine_rows = abar__cpu_combine_rows,
    .solve_gram = abar__cpu_solve_gram,
    .average_mode = abar__cpu_average_mode,
    .inverse_root = abar__cpu_inverse_root,
    .inverse_root_scratch = abar__cpu_inverse_root_scratch,
    .multiply_mode = abar__cpu_multiply_mode,
    .eigenbasis = abar__cpu_eigenbasis,
    .turn_basis = abar__cpu_turn_basis,
    .basis_scratch = abar__cpu_basis_scratch,
};
