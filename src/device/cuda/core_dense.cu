/* Products of rows and products of matrices, by the textbook and in double precision: one pass before training (--first-layer
 * dataset-cov) and the tests use them. */
#include "device/cuda/core_stats.h"

#include <math.h>

#define SIDE 16 /* of a tile of outputs: one thread each */

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
