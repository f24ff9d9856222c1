/* The table of statistics, with the small operations on vectors and matrices. Those that return a number wait for it: a
 * training step on this device uses none of them, its step decides in device memory (step/). */
#include "device/cuda/stats/stats.h"

#include "device/step_rules.h"

#define THREADS 256
#define PARTIALS 512 /* blocks of a reduction */

/* ---- sums for the host -------------------------------------------------------------------------------------------- */

/* out[b]: what block b adds up of f(0) .. f(n - 1). */
template <class Term> static __global__ void __launch_bounds__(THREADS) add_terms(Term f, int64_t n, double *out)
{
    __shared__ double shared[32];
    double sum = 0.0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) sum += f(i);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <class Term> static double sum_terms(abar_device *dev, Term f, int64_t n)
{
    if (n == 0) return 0.0;
    double *partial = (double *)abar__cuda_of(dev)->workspace, result[PARTIALS], sum = 0.0;
    const int64_t wanted = abar__cuda_blocks(n, THREADS * 4);
    const unsigned blocks = (unsigned)(wanted < PARTIALS ? wanted : PARTIALS);
    abar__cuda_launch(dev, add_terms<Term>, dim3(blocks), dim3(THREADS), 0, f, n, partial);
    if (!abar__cuda_carry(dev, result, partial, blocks * sizeof *result)) return 0.0;
    for (unsigned b = 0; b < blocks; b++) sum += result[b];
    return sum;
}

struct product_term {
    const float *x, *y;
    __device__ double operator()(int64_t i) const { return (double)x[i] * (double)y[i]; }
};

static double dot(abar_device *dev, int64_t n, const void *x, const void *y)
{
    return sum_terms(dev, product_term{(const float *)x, (const float *)y}, n);
}

struct bilinear_term {
    const float *left, *x, *right;
    int64_t n;
    __device__ double operator()(int64_t i) const { return (double)left[i / n] * (double)x[i] * (double)right[i % n]; }
};

static double bilinear(abar_device *dev, int64_t m, int64_t n, const void *left, const void *x, const void *right)
{
    return sum_terms(dev, bilinear_term{(const float *)left, (const float *)x, (const float *)right, n}, m * n);
}

struct plain_term {
    const float *x;
    int64_t step;
    __device__ double operator()(int64_t i) const { return (double)x[i * step]; }
};

static double total(abar_device *dev, int64_t n, const void *x) { return sum_terms(dev, plain_term{(const float *)x, 1}, n); }

static double trace(abar_device *dev, int64_t d, const void *average)
{
    return sum_terms(dev, plain_term{(const float *)average, d + 1}, d);
}

/* 1 for every element that is not finite, or not times scale; of a square: in its lower triangle. */
struct broken_term {
    const float *x;
    int64_t side; /* 0: a vector */
    double scale;
    __device__ double operator()(int64_t i) const
    {
        if (side && i % side > i / side) return 0.0;
        return isfinite(x[i]) && isfinite((float)(scale * (double)x[i])) ? 0.0 : 1.0;
    }
};

static bool all_finite(abar_device *dev, int64_t n, bool square, const void *pending, double scale)
{
    const broken_term term = {(const float *)pending, square ? n : 0, scale};
    const double broken = sum_terms(dev, term, square ? n * n : n);
    return broken == 0.0 && abar__cuda_of(dev)->failure == cudaSuccess;
}

/* ---- averages ----------------------------------------------------------------------------------------------------- */

/* One thread per element of the vector or the square; squares: lower triangle of pending, upper of average. */
static __global__ void commit_elements(int64_t n, bool square, float *average, float *pending, double beta, double add)
{
    const int64_t count = square ? n * n : n;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = square ? i / n : 0, column = square ? i % n : 0, to = square ? column * n + row : i;
        if (column > row) continue;
        if (average) average[to] = (float)(beta * (double)average[to] + add * (double)pending[i]);
        pending[i] = 0.0f;
    }
}

static void commit(abar_device *dev, int64_t n, bool square, void *average, void *pending, double beta, double add)
{
    abar__cuda_launch(dev, commit_elements, dim3(abar__cuda_grid(dev, square ? n * n : n, THREADS)), dim3(THREADS), 0, n,
                      square, (float *)average, (float *)pending, beta, add);
}

static void clear(abar_device *dev, int64_t n, bool square, void *pending)
{
    abar__cuda_launch(dev, commit_elements, dim3(abar__cuda_grid(dev, square ? n * n : n, THREADS)), dim3(THREADS), 0, n,
                      square, (float *)NULL, (float *)pending, 0.0, 0.0);
}

/* ---- element by element ------------------------------------------------------------------------------------------- */

template <class Body> static __global__ void for_each(Body body, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) body(i);
}

template <class Body> static void run_each(abar_device *dev, Body body, int64_t n)
{
    if (n > 0) abar__cuda_launch(dev, for_each<Body>, dim3(abar__cuda_grid(dev, n, THREADS)), dim3(THREADS), 0, body, n);
}

struct scale_rows_body {
    float *x;
    const float *factor;
    double scale;
    int64_t n;
    __device__ void operator()(int64_t i) const { x[i] *= (float)(scale * (factor ? (double)factor[i / n] : 1.0)); }
};

static void scale_rows(abar_device *dev, int64_t m, int64_t n, void *x, const void *factor, double scale)
{
    run_each(dev, scale_rows_body{(float *)x, (const float *)factor, scale, n}, m * n);
}

struct affine_body {
    const float *x;
    float *y;
    double scale, shift;
    bool invert;
    __device__ void operator()(int64_t i) const
    {
        const double v = scale * (double)x[i] + shift;
        y[i] = (float)(invert ? 1.0 / v : v);
    }
};

static void affine(abar_device *dev, int64_t n, const void *x, double scale, double shift, void *y)
{
    run_each(dev, affine_body{(const float *)x, (float *)y, scale, shift, false}, n);
}

static void reciprocal(abar_device *dev, int64_t n, const void *x, double scale, double shift, void *y)
{
    run_each(dev, affine_body{(const float *)x, (float *)y, scale, shift, true}, n);
}

struct divide_body {
    float *x;
    const float *rows, *columns;
    double shift, least;
    int64_t n;
    __device__ void operator()(int64_t i) const
    {
        x[i] = (float)((double)x[i] / abar__outer_divisor((double)rows[i / n], (double)columns[i % n], shift, least));
    }
};

static void divide_outer(abar_device *dev, int64_t m, int64_t n, void *x, const void *rows, const void *columns, double shift,
                         double least)
{
    run_each(dev, divide_body{(float *)x, (const float *)rows, (const float *)columns, shift, least, n}, m * n);
}

struct join_body {
    float *weight, *bias, *joined;
    int64_t in, d;
    bool back; /* from joined to weight and bias */
    __device__ void operator()(int64_t i) const
    {
        const int64_t o = i / d, k = i % d;
        float *apart = k < in ? weight + o * in + k : bias + o;
        if (back)
            *apart = joined[i];
        else
            joined[i] = *apart;
    }
};

static void gather(abar_device *dev, int64_t out, int64_t in, const void *weight, const void *bias, void *joined)
{
    const int64_t d = in + (bias ? 1 : 0);
    run_each(dev, join_body{(float *)weight, (float *)bias, (float *)joined, in, d, false}, out * d);
}

static void scatter(abar_device *dev, int64_t out, int64_t in, const void *joined, void *weight, void *bias)
{
    const int64_t d = in + (bias ? 1 : 0);
    run_each(dev, join_body{(float *)weight, (float *)bias, (float *)joined, in, d, true}, out * d);
}

/* ---- comparing G with its preconditioned form --------------------------------------------------------------------- */

typedef struct row_pair {
    int64_t out, in;
    const float *weight, *bias, *right, *coefficient, *row_scale;
    double scale, rr;
} row_pair;

/* Block b: every gridDim-th row; its three sums to out[3 b]. */
static __global__ void __launch_bounds__(THREADS) compare_rows(row_pair p, double *out)
{
    __shared__ double shared[32];
    double sums[3] = {0.0, 0.0, 0.0};
    for (int64_t o = blockIdx.x; o < p.out; o += gridDim.x) {
        double gg = 0.0, gr = 0.0;
        for (int64_t i = threadIdx.x; i < p.in + (p.bias ? 1 : 0); i += THREADS) {
            const double g = i < p.in ? p.weight[o * p.in + i] : p.bias[o];
            gg += g * g;
            if (p.right) gr += g * (double)p.right[i];
        }
        gg = block_sum(gg, shared);
        gr = block_sum(gr, shared);
        const double c = p.coefficient ? (double)p.coefficient[o] : gr;
        const double scale = p.scale * (p.row_scale ? (double)p.row_scale[o] : 1.0);
        sums[0] += gg;
        sums[1] += scale * (gg - c * gr);
        sums[2] += scale * scale * (gg - 2.0 * c * gr + c * c * p.rr);
    }
    for (int i = 0; i < 3 && threadIdx.x == 0; i++) out[3 * blockIdx.x + i] = sums[i];
}

static void compare(abar_device *dev, int64_t out, int64_t in, const void *weight, const void *bias,
                    const abar__precondition *pre, double result[3])
{
    const int64_t d = in + (bias ? 1 : 0);
    const row_pair pair = {out,
                           in,
                           (const float *)weight,
                           (const float *)bias,
                           (const float *)pre->right,
                           (const float *)pre->coefficient,
                           (const float *)pre->row_scale,
                           pre->scale,
                           pre->right ? dot(dev, d, pre->right, pre->right) : 0.0};
    double *partial = (double *)abar__cuda_of(dev)->workspace, sums[3 * PARTIALS];
    const unsigned blocks = (unsigned)(out < PARTIALS ? out : PARTIALS);
    result[0] = result[1] = result[2] = 0.0;
    if (blocks == 0) return;
    abar__cuda_launch(dev, compare_rows, dim3(blocks), dim3(THREADS), 0, pair, partial);
    if (!abar__cuda_carry(dev, sums, partial, 3 * blocks * sizeof *sums)) return;
    for (unsigned i = 0; i < 3 * blocks; i++) result[i % 3] += sums[i];
}

extern "C" const abar__stats_ops abar__cuda_stats = {
    .input_sum = abar__cuda_input_sum,
    .input_square_add = abar__cuda_input_square_add,
    .value_sums = abar__cuda_value_sums,
    .position_sums = abar__cuda_position_sums,
    .position_product = abar__cuda_position_product,
    .grad_sum = abar__cuda_grad_sum,
    .example_weights = abar__cuda_example_weights,
    .grad_squares = abar__cuda_grad_squares,
    .both_sums = abar__cuda_both_sums,
    .input_product = abar__cuda_input_product,
    .grad_product = abar__cuda_grad_product,
    .input_mean_product = abar__cuda_input_mean_product,
    .grad_mean_product = abar__cuda_grad_mean_product,
    .both_mean_products = abar__cuda_both_mean_products,
    .product_scratch = abar__cuda_product_scratch,
    .example_rows = abar__cuda_example_rows,
    .example_rows_scratch = abar__cuda_example_rows_scratch,
    .rows_gram = NULL,
    .solve_shifted = NULL,
    .all_finite = all_finite,
    .commit = commit,
    .clear = clear,
    .trace = trace,
    .invert = abar__cuda_invert,
    .invert_scratch = abar__cuda_invert_scratch,
    .eigen = abar__cuda_eigen,
    .eigen_scratch = abar__cuda_eigen_scratch,
    .sandwich = abar__cuda_sandwich,
    .precondition = NULL, /* the step has its own way (factors/apply.cu) */
    .dot = dot,
    .bilinear = bilinear,
    .scale_rows = scale_rows,
    .affine = affine,
    .reciprocal = reciprocal,
    .divide_outer = divide_outer,
    .sum = total,
    .compare = compare,
    .gather = gather,
    .scatter = scatter,
    .orthogonalise = NULL, /* its step keeps an object for it (step/orthogonalise.h) */
    .orthogonalise_scratch = NULL,
    .example_means = NULL, /* it has no stages of kept rows: plans with them are refused */
    .multiply = NULL,
    .solve_rows = NULL,
    .solve_rows_scratch = NULL,
    .row_products = NULL, /* nor of rings */
    .combine_rows = NULL,
    .solve_gram = NULL,
    .average_mode = NULL, /* its stages of blocks are kernels of their own (step/blocks.h) */
    .inverse_root = NULL,
    .inverse_root_scratch = NULL,
    .multiply_mode = NULL,
    .eigenbasis = NULL,
    .turn_basis = NULL,
    .basis_scratch = NULL,
};
