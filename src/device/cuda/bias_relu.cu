/* Bias and ReLU behind a product, and their gradients, one pass each: y = act(y + b); dz = dy [y > 0], db = sum of dz over
 * rows. Rows are cut into slices, summed by blocks, and the slices are joined in order: the same sum every time. */
#include "device/cuda/bias_relu.h"

enum { THREADS = 256, ROWS_PER_THREAD = 16, MAX_SLICES = 256 };

__device__ static inline float forward_value(float v, bool relu) { return relu && v < 0.0f ? 0.0f : v; }

/* A thread owns every gridDim-th element of y, or pack of them. */
template <typename T> static __global__ void bias_relu(T *y, const float *bias, bool relu, int64_t count, int64_t width)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        store(y, i, forward_value(load(y, i) + (bias ? bias[i % width] : 0.0f), relu));
}

template <typename T> static __global__ void bias_relu_packs(T *y, const float *bias, bool relu, int64_t packs, int64_t width)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += step) {
        const int64_t at = i * pack<T>::n, column = at % width;
        pack<T> v = load_pack(y + at);
#pragma unroll
        for (int k = 0; k < pack<T>::n; k++) v.v[k] = forward_value(v.v[k] + (bias ? bias[column + k] : 0.0f), relu);
        store_pack(y + at, v);
    }
}

template <typename T> static void run_forward(abar_device *dev, T *y, const float *bias, bool relu, int64_t rows, int64_t width)
{
    const bool packs = width % pack<T>::n == 0;
    const int64_t count = packs ? rows * width / pack<T>::n : rows * width;
    int64_t blocks = abar__cuda_blocks(count, THREADS);
    if (blocks > 8 * abar__cuda_of(dev)->processors) blocks = 8 * abar__cuda_of(dev)->processors;
    if (packs)
        abar__cuda_launch(dev, bias_relu_packs<T>, dim3((unsigned)blocks), THREADS, 0, y, bias, relu, count, width);
    else
        abar__cuda_launch(dev, bias_relu<T>, dim3((unsigned)blocks), THREADS, 0, y, bias, relu, count, width);
}

void abar__cuda_bias_relu(abar_device *dev, void *y, const float *bias, bool relu, int64_t rows, int64_t width)
{
    if (!bias && !relu) return;
    if (abar__cuda_is_bf16(dev))
        run_forward(dev, (bf16 *)y, bias, relu, rows, width);
    else
        run_forward(dev, (float *)y, bias, relu, rows, width);
}

/* How the columns and rows of (rows, width) are shared out: a block has `lanes` vectors of columns side by side, THREADS /
 * lanes rows at a time, and one slice of the rows. */
typedef struct cut {
    int vector, lanes;
    int64_t tiles, slices, slice_rows;
} cut;

static cut cut_rows(const abar_device *dev, int64_t rows, int64_t width)
{
    const int whole = abar__cuda_is_bf16(dev) ? pack<bf16>::n : pack<float>::n;
    cut c = {width % whole == 0 ? whole : 1, 1, 1, 1, rows};
    const int64_t vectors = width / c.vector;
    while (c.lanes < 32 && c.lanes < vectors) c.lanes *= 2;
    c.tiles = abar__cuda_blocks(vectors, c.lanes);
    int64_t most = abar__cuda_blocks(4 * abar__cuda_of(dev)->processors, c.tiles);
    if (most > MAX_SLICES) most = MAX_SLICES;
    c.slices = abar__cuda_blocks(rows, (int64_t)(THREADS / c.lanes) * ROWS_PER_THREAD);
    if (c.slices > most) c.slices = most;
    c.slice_rows = abar__cuda_blocks(rows, c.slices);
    c.slices = abar__cuda_blocks(rows, c.slice_rows);
    return c;
}

/* Block (tile, slice): masks its part of dy by y where y is not NULL, and writes the part's column sums to sums (slices,
 * width), or adds them where add is set and there is one slice. sums NULL: only masks. A thread owns V columns. */
template <typename T, int V>
static __global__ void mask_and_sum(T *dy, const T *y, float *sums, bool add, int64_t rows, int64_t width, int64_t slice_rows,
                                    int across)
{
    __shared__ float part[V][THREADS];
    const int lane = (int)threadIdx.x % across, row_of_block = (int)threadIdx.x / across, at_once = THREADS / across;
    const int64_t column = ((int64_t)blockIdx.x * across + lane) * V, first = (int64_t)blockIdx.y * slice_rows;
    const int64_t end = first + slice_rows < rows ? first + slice_rows : rows;
    lanes<V> sum = {};
    if (column < width)
        for (int64_t r = first + row_of_block; r < end; r += at_once) {
            const int64_t i = r * width + column;
            lanes<V> dz = load_lanes<V>(dy + i);
            if (y) {
                const lanes<V> v = load_lanes<V>(y + i);
#pragma unroll
                for (int k = 0; k < V; k++) dz.v[k] = v.v[k] > 0.0f ? dz.v[k] : 0.0f;
                store_lanes<V>(dy + i, dz);
            }
#pragma unroll
            for (int k = 0; k < V; k++) sum.v[k] += dz.v[k];
        }
    if (!sums) return;
#pragma unroll
    for (int k = 0; k < V; k++) part[k][threadIdx.x] = sum.v[k];
    for (int half = at_once / 2; half; half /= 2) {
        __syncthreads();
        if (row_of_block < half) {
#pragma unroll
            for (int k = 0; k < V; k++) part[k][threadIdx.x] += part[k][threadIdx.x + half * across];
        }
    }
    if (row_of_block || column >= width) return;
    float *to = sums + blockIdx.y * width + column;
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = add ? to[k] + part[k][lane] : part[k][lane];
}

/* A thread owns an element: its slices in order. */
static __global__ void join_slices(const float *sums, int64_t slices, int64_t count, float *to, bool add)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0.0f;
    for (int64_t s = 0; s < slices; s++) sum += sums[s * count + i];
    to[i] = add ? to[i] + sum : sum;
}

void abar__cuda_join_slices(abar_device *dev, const float *sums, int64_t slices, int64_t count, float *to, bool add)
{
    abar__cuda_launch(dev, join_slices, dim3((unsigned)abar__cuda_blocks(count, 64)), 64, 0, sums, slices, count, to, add);
}

/* A thread owns an element. */
static __global__ void round_to_bf16(int64_t count, const float *from, bf16 *to)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) store(to, i, from[i]);
}

void abar__cuda_round_bias(abar_device *dev, int64_t count, const float *from, void *to)
{
    abar__cuda_launch(dev, round_to_bf16, dim3((unsigned)abar__cuda_blocks(count, THREADS)), THREADS, 0, count, from,
                      (bf16 *)to);
}

size_t abar__cuda_bias_partials(const abar_device *dev, int64_t rows, int64_t width)
{
    const cut c = cut_rows(dev, rows, width);
    return c.slices > 1 ? (size_t)(c.slices * width) * sizeof(float) : 0;
}

template <typename T>
static void run_gradient(abar_device *dev, T *dy, const T *y, float *db, bool accumulate, int64_t rows, int64_t width,
                         float *partials)
{
    const cut c = cut_rows(dev, rows, width);
    const bool two = db && c.slices > 1;
    abar__cuda_launch(dev, c.vector > 1 ? mask_and_sum<T, pack<T>::n> : mask_and_sum<T, 1>,
                      dim3((unsigned)c.tiles, (unsigned)c.slices), THREADS, 0, dy, y, two ? partials : db, accumulate && !two,
                      rows, width, c.slice_rows, c.lanes);
    if (two) abar__cuda_join_slices(dev, partials, c.slices, width, db, accumulate);
}

void abar__cuda_bias_relu_gradient(abar_device *dev, void *dy, const void *y, float *db, bool accumulate, int64_t rows,
                                   int64_t width, float *partials)
{
    if (!y && !db) return;
    if (abar__cuda_is_bf16(dev))
        run_gradient(dev, (bf16 *)dy, (const bf16 *)y, db, accumulate, rows, width, partials);
    else
        run_gradient(dev, (float *)dy, (const float *)y, db, accumulate, rows, width, partials);
}
