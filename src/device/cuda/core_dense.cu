/* Products of rows, factorisations and products of matrices, by the textbook and in double precision: one pass before training
 * (--first-layer dataset-cov) and the tests use them. */
#include "device/cuda/core_stats.h"

#include <math.h>

#define SIDE 16      /* of a tile of outputs: one thread each */
#define THREADS 1024 /* of the one block that factorises */

/* ---- elements of rows --------------------------------------------------------------------------------------------- */

/* Input tensors are strided here. Element k of row r of example n, or the homogeneous 1 behind it. */
__device__ static double input_at(const abar__rows &s, int64_t n, int64_t r, int64_t k)
{
    const abar_tensor &t = s.input;
    if (k == s.in) return 1.0;
    if (!s.convolution)
        return load_any(t.data, t.dtype, n * t.stride[0] + (t.ndim == 3 ? r * t.stride[1] : 0) + k * t.stride[t.ndim - 1]);
    const abar_window &w = s.window;
    const int64_t kw = w.kernel[1], kernel = w.kernel[0] * kw, c = k / kernel, i = k % kernel / kw, j = k % kw;
    const int64_t columns = (t.dim[3] + 2 * w.pad[1] - w.dilation[1] * (kw - 1) - 1) / w.stride[1] + 1;
    const int64_t y = r / columns * w.stride[0] - w.pad[0] + i * w.dilation[0];
    const int64_t x = r % columns * w.stride[1] - w.pad[1] + j * w.dilation[1];
    if (y < 0 || y >= t.dim[2] || x < 0 || x >= t.dim[3]) return 0.0;
    const int64_t channel = s.group * (t.dim[1] / w.groups) + c;
    return load_any(t.data, t.dtype, n * t.stride[0] + channel * t.stride[1] + y * t.stride[2] + x * t.stride[3]);
}

__device__ static double grad_at(const abar__rows &s, int64_t n, int64_t r, int64_t o)
{
    const abar_tensor &t = s.output_grad;
    int64_t at = n * t.stride[0];
    if (s.convolution)
        at += (s.group * s.out + o) * t.stride[1] + r / t.dim[3] * t.stride[2] + r % t.dim[3] * t.stride[3];
    else
        at += (t.ndim == 3 ? r * t.stride[1] : 0) + o * t.stride[t.ndim - 1];
    return s.grad_scale * load_any(t.data, t.dtype, at);
}

enum { INPUT, GRAD, INPUT_MEAN, GRAD_MEAN };

/* Element k of row `row` of those that this kind has: all rows, or one mean per example. */
template <int KIND> __device__ static double row_at(const abar__rows &s, int64_t row, int64_t k)
{
    if (KIND == INPUT) return input_at(s, row / s.per_example, row % s.per_example, k);
    if (KIND == GRAD) return grad_at(s, row / s.per_example, row % s.per_example, k);
    double sum = 0.0;
    for (int64_t r = 0; r < s.per_example; r++) sum += KIND == INPUT_MEAN ? input_at(s, row, r, k) : grad_at(s, row, r, k);
    return sum / (double)s.per_example;
}

static abar__rows strided_rows(const abar__rows *r)
{
    abar__rows s = *r;
    if (s.input.ndim) s.input = abar__cuda_strided(&s.input);
    if (s.output_grad.ndim) s.output_grad = abar__cuda_strided(&s.output_grad);
    return s;
}

/* ---- lengths of mean rows ----------------------------------------------------------------------------------------- */

/* Block n: |mean row of example n|^2. */
template <int KIND> static __global__ void mean_squares(const __grid_constant__ abar__rows s, int64_t d, double *out)
{
    __shared__ double shared[32];
    double sum = 0.0;
    for (int64_t k = threadIdx.x; k < d; k += blockDim.x) {
        const double v = row_at<KIND>(s, blockIdx.x, k);
        sum += v * v;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <int KIND> static void take_mean_squares(abar_device *dev, const abar__rows *r, int64_t d, double *out)
{
    for (int64_t first = 0; first < r->examples; first += ABAR_STATS_EXAMPLES) {
        const int64_t left = r->examples - first, n = left < ABAR_STATS_EXAMPLES ? left : ABAR_STATS_EXAMPLES;
        const abar__rows strided = strided_rows(r), part = abar__rows_slice(&strided, first, n);
        abar__cuda_launch(dev, mean_squares<KIND>, dim3((unsigned)n), dim3(256), 0, part, d, abar__cuda_upper(dev));
        if (!abar__cuda_carry(dev, out + first, abar__cuda_upper(dev), (size_t)n * sizeof *out)) return;
    }
}

extern "C" void abar__cuda_input_mean_squares(abar_device *dev, const abar__rows *r, double *out)
{
    take_mean_squares<INPUT_MEAN>(dev, r, abar__rows_d(r), out);
}

extern "C" void abar__cuda_grad_mean_squares(abar_device *dev, const abar__rows *r, double *out)
{
    take_mean_squares<GRAD_MEAN>(dev, r, r->out, out);
}

/* ---- sums of outer products --------------------------------------------------------------------------------------- */

/* Block (tile, split): SIDE x SIDE outputs of the lower triangle, one split of the rows; thread: one output, in double.
 * partial: (splits, d, d). */
template <int KIND>
static __global__ void __launch_bounds__(SIDE *SIDE)
    add_products(const __grid_constant__ abar__rows s, int64_t d, int64_t rows, const double *weight, double *partial)
{
    __shared__ double a[SIDE][SIDE + 1], b[SIDE][SIDE + 1];
    int64_t down = 0, left = blockIdx.x; /* tile (down, left) of those on and below the diagonal */
    while (left > down) left -= ++down;
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    const int64_t from = rows * blockIdx.y / gridDim.y, to = rows * (blockIdx.y + 1) / gridDim.y;
    const int64_t per_example = KIND == INPUT || KIND == GRAD ? s.per_example : 1;
    double sum = 0.0;
    for (int64_t row = from; row < to; row += SIDE) {
        const int64_t own = row + y, i = down * SIDE + x, j = left * SIDE + x;
        const double w = own < to && weight ? weight[own / per_example] : 1.0;
        a[y][x] = own < to && i < d ? w * row_at<KIND>(s, own, i) : 0.0;
        b[y][x] = own < to && j < d ? row_at<KIND>(s, own, j) : 0.0;
        __syncthreads();
        for (int r = 0; r < SIDE; r++) sum += a[r][y] * b[r][x];
        __syncthreads();
    }
    const int64_t i = down * SIDE + y, j = left * SIDE + x;
    if (i < d && j <= i) partial[(int64_t)blockIdx.y * d * d + i * d + j] = sum;
}

/* One thread per element: adds the splits in order to the lower triangle. */
static __global__ void add_splits(int64_t d, int splits, const double *partial, float *square)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < d * d; i += (int64_t)gridDim.x * blockDim.x) {
        if (i % d > i / d) continue;
        double sum = 0.0;
        for (int k = 0; k < splits; k++) sum += partial[k * d * d + i];
        square[i] += (float)sum;
    }
}

static int64_t tiles_of(int64_t d)
{
    const int64_t n = abar__cuda_blocks(d, SIDE);
    return n * (n + 1) / 2;
}

/* Enough blocks to fill the device, whatever the number of rows. */
static int64_t splits_of(const abar_device *dev, int64_t d)
{
    const int64_t n = 4 * (int64_t)abar__cuda_of(dev)->processors / tiles_of(d);
    return n < 1 ? 1 : n > 64 ? 64 : n;
}

extern "C" size_t abar__cuda_product_scratch(abar_device *dev, const abar__rows *r)
{
    const int64_t d = abar__rows_d(r), out = r->out;
    const int64_t input = splits_of(dev, d) * d * d, grad = out > 0 ? splits_of(dev, out) * out * out : 0;
    return (size_t)(input > grad ? input : grad) * sizeof(double);
}

template <int KIND>
static void take_product(abar_device *dev, const abar__rows *r, int64_t d, const double *weight, void *square, void *scratch)
{
    const bool means = KIND == INPUT_MEAN || KIND == GRAD_MEAN;
    const int64_t splits = splits_of(dev, d);
    const abar__rows strided = strided_rows(r);
    for (int64_t first = 0; first < r->examples; first += ABAR_STATS_EXAMPLES) {
        const int64_t left = r->examples - first, n = left < ABAR_STATS_EXAMPLES ? left : ABAR_STATS_EXAMPLES;
        const abar__rows part = abar__rows_slice(&strided, first, n);
        const double *w = weight ? abar__cuda_upper(dev) : NULL;
        if (weight && !abar__cuda_carry(dev, abar__cuda_upper(dev), weight + first, (size_t)n * sizeof *weight)) return;
        abar__cuda_launch(dev, add_products<KIND>, dim3((unsigned)tiles_of(d), (unsigned)splits), dim3(SIDE * SIDE), 0, part, d,
                          means ? n : n * r->per_example, w, (double *)scratch);
        abar__cuda_launch(dev, add_splits, dim3(abar__cuda_grid(dev, d * d, 256)), dim3(256), 0, d, (int)splits,
                          (const double *)scratch, (float *)square);
    }
}

extern "C" void abar__cuda_input_product(abar_device *dev, const abar__rows *r, const double *weight, void *square,
                                         void *scratch)
{
    take_product<INPUT>(dev, r, abar__rows_d(r), weight, square, scratch);
}

extern "C" void abar__cuda_grad_product(abar_device *dev, const abar__rows *r, void *square, void *scratch)
{
    take_product<GRAD>(dev, r, r->out, NULL, square, scratch);
}

extern "C" void abar__cuda_input_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch)
{
    take_product<INPUT_MEAN>(dev, r, abar__rows_d(r), NULL, square, scratch);
}

extern "C" void abar__cuda_grad_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch)
{
    take_product<GRAD_MEAN>(dev, r, r->out, NULL, square, scratch);
}

/* ---- products of matrices ----------------------------------------------------------------------------------------- */

/* y (m, n) = a (m, k) b (k, n), each given or transposed. Block: a SIDE x SIDE tile of y. */
static __global__ void __launch_bounds__(SIDE *SIDE)
    multiply(int64_t m, int64_t k, int64_t n, const float *a, bool at, const float *b, bool bt, float *y)
{
    __shared__ float left[SIDE][SIDE + 1], right[SIDE][SIDE + 1];
    const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    const int64_t i = (int64_t)blockIdx.y * SIDE + ty, j = (int64_t)blockIdx.x * SIDE + tx;
    double sum = 0.0;
    for (int64_t l = 0; l < k; l += SIDE) {
        const int64_t across = l + tx, down = l + ty;
        left[ty][tx] = i < m && across < k ? a[at ? across * m + i : i * k + across] : 0.0f;
        right[ty][tx] = down < k && j < n ? b[bt ? j * k + down : down * n + j] : 0.0f;
        __syncthreads();
        for (int r = 0; r < SIDE; r++) sum += (double)left[ty][r] * (double)right[r][tx];
        __syncthreads();
    }
    if (i < m && j < n) y[i * n + j] = (float)sum;
}

static void launch_multiply(abar_device *dev, int64_t m, int64_t k, int64_t n, const void *a, bool at, const void *b, bool bt,
                            void *y)
{
    const dim3 grid((unsigned)abar__cuda_blocks(n, SIDE), (unsigned)abar__cuda_blocks(m, SIDE));
    abar__cuda_launch(dev, multiply, grid, dim3(SIDE * SIDE), 0, m, k, n, (const float *)a, at, (const float *)b, bt,
                      (float *)y);
}

extern "C" void abar__cuda_sandwich(abar_device *dev, int64_t m, int64_t n, const void *left, bool left_t, const void *x,
                                    const void *right, bool right_t, void *y, void *scratch)
{
    const void *from = x;
    if (left) {
        launch_multiply(dev, m, m, n, left, left_t, from, false, scratch);
        from = scratch;
    }
    if (right) {
        void *to = from == y ? scratch : y; /* y may be x, the scratch is not in use then */
        launch_multiply(dev, m, n, n, from, false, right, right_t, to);
        from = to;
    }
    if (from != y)
        abar__cuda_remember(dev, cudaMemcpyAsync(y, from, (size_t)(m * n) * sizeof(float), cudaMemcpyDeviceToDevice,
                                                 abar__cuda_of(dev)->stream));
}

/* ---- inverting ---------------------------------------------------------------------------------------------------- */

/* One block: L of scale * average + shift * I = L L^T into the lower triangle of l (d, d); column: (d). bad: a pivot that is
 * not positive, or not finite. */
static __global__ void __launch_bounds__(THREADS)
    factorise(int64_t d, const float *average, double scale, double shift, double *l, double *column, int32_t *bad)
{
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int64_t i = y; i < d; i += 32)
        for (int64_t j = x; j <= i; j += 32) l[i * d + j] = scale * (double)average[j * d + i] + (i == j ? shift : 0.0);
    __syncthreads();
    for (int64_t k = 0; k < d; k++) {
        const double pivot = l[k * d + k];
        if (!(pivot > 0.0) || !isfinite(pivot)) { /* the same for all threads */
            if (threadIdx.x == 0) *bad = 1;
            return;
        }
        const double root = sqrt(pivot);
        __syncthreads(); /* all have read the pivot */
        for (int64_t i = k + threadIdx.x; i < d; i += THREADS) {
            const double v = i == k ? root : l[i * d + k] / root;
            l[i * d + k] = column[i] = v;
        }
        __syncthreads();
        for (int64_t i = k + 1 + y; i < d; i += 32)
            for (int64_t j = k + 1 + x; j <= i; j += 32) l[i * d + j] -= column[i] * column[j];
        __syncthreads();
    }
}

/* Thread c: column c of L^-1 by forward substitution, into (d, d) z. */
static __global__ void invert_lower(int64_t d, const double *l, double *z)
{
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= d) return;
    for (int64_t i = 0; i < c; i++) z[i * d + c] = 0.0;
    for (int64_t i = c; i < d; i++) {
        double sum = i == c ? 1.0 : 0.0;
        for (int64_t k = c; k < i; k++) sum -= l[i * d + k] * z[k * d + c];
        z[i * d + c] = sum / l[i * d + i];
    }
}

/* Thread (i, j): element of L^-T L^-1. */
static __global__ void square_lower(int64_t d, const double *z, double *out, int32_t *bad)
{
    const int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= d || j >= d) return;
    double sum = 0.0;
    for (int64_t k = i > j ? i : j; k < d; k++) sum += z[k * d + i] * z[k * d + j];
    out[i * d + j] = sum;
    if (!isfinite((float)sum)) atomicOr(bad, 1);
}

static __global__ void narrow(int64_t n, const double *from, float *to)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = (float)from[i];
}

/* What a kernel left in a flag, which is cleared before it. */
static int32_t *clear_flag(abar_device *dev)
{
    int32_t *flag = (int32_t *)abar__cuda_upper(dev);
    abar__cuda_remember(dev, cudaMemsetAsync(flag, 0, sizeof *flag, abar__cuda_of(dev)->stream));
    return flag;
}

static bool is_set(abar_device *dev, const int32_t *flag)
{
    int32_t value = 1;
    return !abar__cuda_carry(dev, &value, flag, sizeof value) || value != 0;
}

extern "C" size_t abar__cuda_invert_scratch(abar_device *dev, int64_t d)
{
    (void)dev;
    return (size_t)(2 * d * d + d) * sizeof(double);
}

/* Always in double: L, then L^-1, then their product in place of L. */
extern "C" bool abar__cuda_invert(abar_device *dev, int64_t d, const void *average, double scale, double shift, bool in_double,
                                  void *inverse, void *scratch)
{
    (void)in_double;
    double *l = (double *)scratch, *z = l + d * d, *column = z + d * d;
    int32_t *bad = clear_flag(dev);
    abar__cuda_launch(dev, factorise, dim3(1), dim3(THREADS), 0, d, (const float *)average, scale, shift, l, column, bad);
    if (is_set(dev, bad)) return false;
    abar__cuda_launch(dev, invert_lower, dim3((unsigned)abar__cuda_blocks(d, 32)), dim3(32), 0, d, l, z);
    const dim3 grid((unsigned)abar__cuda_blocks(d, 32), (unsigned)abar__cuda_blocks(d, 8));
    abar__cuda_launch(dev, square_lower, grid, dim3(32, 8), 0, d, z, l, bad);
    if (is_set(dev, bad)) return false;
    abar__cuda_launch(dev, narrow, dim3(abar__cuda_grid(dev, d * d, 256)), dim3(256), 0, d * d, l, (float *)inverse);
    return true;
}

/* ---- eigenvalues -------------------------------------------------------------------------------------------------- */

/* Pair t of round r when m players (m even) meet everyone once in m - 1 rounds; smaller first. */
__device__ static void meet(int64_t m, int64_t r, int64_t t, int64_t *p, int64_t *q)
{
    const int64_t a = t == 0 ? m - 1 : (r + t) % (m - 1), b = t == 0 ? r : (r - t + m - 1) % (m - 1);
    *p = a < b ? a : b;
    *q = a < b ? b : a;
}

/* The rotation that clears element (p, q): cosine and sine; 1 and 0 where there is nothing to do. */
__device__ static void rotation(const double *a, int64_t d, int64_t p, int64_t q, double *c, double *s)
{
    *c = 1.0;
    *s = 0.0;
    if (q >= d || a[p * d + q] == 0.0) return;
    const double theta = (a[q * d + q] - a[p * d + p]) / (2.0 * a[p * d + q]);
    const double t = (theta >= 0.0 ? 1.0 : -1.0) / (fabs(theta) + sqrt(theta * theta + 1.0));
    *c = 1.0 / sqrt(t * t + 1.0);
    *s = t * *c;
}

__device__ static void turn(double *x, double *y, double c, double s)
{
    const double u = *x, v = *y;
    *x = c * u - s * v;
    *y = s * u + c * v;
}

/* All pairs of one round: they touch different rows and columns. turns: (m), cosine and sine of each pair. */
__device__ static void turn_round(int64_t d, int64_t m, int64_t r, double *a, double *v, double *turns)
{
    for (int64_t t = threadIdx.x; t < m / 2; t += THREADS) {
        int64_t p, q;
        meet(m, r, t, &p, &q);
        rotation(a, d, p, q, &turns[2 * t], &turns[2 * t + 1]);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < m / 2 * d; i += THREADS) { /* rows */
        int64_t p, q;
        meet(m, r, i / d, &p, &q);
        const double c = turns[2 * (i / d)], s = turns[2 * (i / d) + 1];
        if (q >= d || s == 0.0) continue;
        turn(&a[p * d + i % d], &a[q * d + i % d], c, s);
        turn(&v[p * d + i % d], &v[q * d + i % d], c, s);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < m / 2 * d; i += THREADS) { /* columns */
        const int64_t t = i % (m / 2), row = i / (m / 2);
        int64_t p, q;
        meet(m, r, t, &p, &q);
        if (q >= d || turns[2 * t + 1] == 0.0) continue;
        turn(&a[row * d + p], &a[row * d + q], turns[2 * t], turns[2 * t + 1]);
        if (row == p) a[row * d + q] = 0.0;
        if (row == q) a[row * d + p] = 0.0;
    }
    __syncthreads();
}

/* Sum of squares of the lower triangle, without or with the diagonal. */
__device__ static double lower_squares(int64_t d, const double *a, bool diagonal, double *shared)
{
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < d * d; i += THREADS)
        if (i % d < i / d || (diagonal && i % d == i / d)) sum += a[i] * a[i];
    return block_sum(sum, shared);
}

/* One block: cyclic Jacobi on scale * average. a, v: (d, d); turns: (d + 2). Writes only when it has converged; else bad. */
static __global__ void __launch_bounds__(THREADS)
    diagonalise(int64_t d, const float *average, double scale, double *a, double *v, double *turns, float *values,
                float *vectors, int32_t *bad)
{
    __shared__ double shared[32];
    const int64_t m = d + d % 2;
    for (int64_t i = threadIdx.x; i < d * d; i += THREADS) {
        const int64_t row = i / d, column = i % d;
        a[i] = scale * (double)average[row < column ? i : column * d + row];
        v[i] = row == column ? 1.0 : 0.0;
    }
    __syncthreads();
    const double size = lower_squares(d, a, true, shared);
    bool fine = isfinite(size);
    for (int sweep = 0; fine && lower_squares(d, a, false, shared) > 1e-28 * size; sweep++) {
        fine = sweep < 60;
        for (int64_t r = 0; fine && r < m - 1; r++) turn_round(d, m, r, a, v, turns);
    }
    if (!fine) {
        if (threadIdx.x == 0) *bad = 1;
        return;
    }
    for (int64_t i = threadIdx.x; i < d; i += THREADS) { /* its place among the ascending */
        const double own = a[i * d + i];
        int64_t place = 0;
        for (int64_t j = 0; j < d; j++) place += a[j * d + j] < own || (a[j * d + j] == own && j < i);
        values[place] = (float)own;
        for (int64_t k = 0; k < d; k++) vectors[place * d + k] = (float)v[i * d + k];
    }
}

extern "C" size_t abar__cuda_eigen_scratch(abar_device *dev, int64_t d)
{
    (void)dev;
    return (size_t)(2 * d * d + d + 2) * sizeof(double);
}

extern "C" bool abar__cuda_eigen(abar_device *dev, int64_t d, const void *average, double scale, void *values, void *vectors,
                                 void *scratch)
{
    double *a = (double *)scratch, *v = a + d * d, *turns = v + d * d;
    int32_t *bad = clear_flag(dev);
    abar__cuda_launch(dev, diagonalise, dim3(1), dim3(THREADS), 0, d, (const float *)average, scale, a, v, turns,
                      (float *)values, (float *)vectors, bad);
    return !is_set(dev, bad);
}
