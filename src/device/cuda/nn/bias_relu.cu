/* Bias and ReLU after a product, y = act(y + b), and the gradients of bias and activation: dz = dy act'(z), db = sum of dz
 * over rows; one pass each. Rows are cut into slices, which are summed by blocks and then added in a fixed order: the sum is
 * the same every time. */
#include "device/cuda/nn/bias_relu.h"
#include "device/cuda/nn/activation.h"

enum {
    THREADS = 256,
    AT_ONCE = 4,         /* rows that a thread loads before it uses them */
    ROWS_PER_THREAD = 8, /* at least, where there are enough rows */
    MAX_SLICES = 256,
    SLICE_LANES = 16, /* threads that share the slices of an element */
    MANY = 1 << 15,   /* elements: enough to fill the device with one thread each */
};

__device__ static inline float forward_value(float v, bool relu) { return relu && v < 0.0f ? 0.0f : v; }

/* A thread owns every gridDim-th vector of V neighbours in the rows of y; per: vectors per row. */
template <typename T, int V>
static __global__ void bias_relu(T *y, const float *bias, bool relu, int64_t vectors, int64_t per, int64_t pitch)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += step) {
        const int64_t row = i / per, column = i % per * V;
        lanes<V> v = load_lanes<V>(y + row * pitch + column);
#pragma unroll
        for (int k = 0; k < V; k++) v.v[k] = forward_value(v.v[k] + (bias ? bias[column + k] : 0.0f), relu);
        store_lanes<V>(y + row * pitch + column, v);
    }
}

template <typename T>
static void run_forward(abar_device *dev, T *y, const float *bias, bool relu, int64_t rows, int64_t width, int64_t pitch)
{
    const bool packs = width % pack<T>::n == 0 && pitch % pack<T>::n == 0;
    const int64_t per = packs ? width / pack<T>::n : width;
    int64_t blocks = abar__cuda_blocks(rows * per, THREADS);
    if (blocks > 8 * abar__cuda_of(dev)->processors) blocks = 8 * abar__cuda_of(dev)->processors;
    abar__cuda_launch(dev, packs ? bias_relu<T, pack<T>::n> : bias_relu<T, 1>, dim3((unsigned)blocks), THREADS, 0, y, bias,
                      relu, rows * per, per, pitch);
}

void abar__cuda_bias_relu(abar_device *dev, void *y, const float *bias, bool relu, int64_t rows, int64_t width, int64_t pitch)
{
    if (!bias && !relu) return;
    if (pitch == 0) pitch = width;
    if (abar__cuda_is_bf16(dev))
        run_forward(dev, (bf16 *)y, bias, relu, rows, width, pitch);
    else
        run_forward(dev, (float *)y, bias, relu, rows, width, pitch);
}

/* How the columns and rows of (rows, width) are divided: a block has `lanes` vectors of columns side by side, THREADS /
 * lanes rows at a time, and one slice of the rows. */
typedef struct cut {
    int vector, lanes;
    int64_t tiles, slices, slice_rows;
} cut;

static cut cut_rows(const abar_device *dev, int64_t rows, int64_t width, int64_t pitch)
{
    const int whole = abar__cuda_is_bf16(dev) ? pack<bf16>::n : pack<float>::n;
    cut c = {width % whole == 0 && pitch % whole == 0 ? whole : 1, 1, 1, 1, rows};
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

/* The vectors of V columns at `at` in rows r, r + step, ... before end, loaded together so that none waits for another;
 * multiplied by the derivative of KIND, which follows from value, and added to sum. */
template <abar__activation KIND, typename T, int V>
__device__ static inline void slope_and_add(T *dy, const T *value, int64_t at, int64_t r, int64_t step, int64_t end,
                                            int64_t pitch, lanes<V> &sum)
{
    constexpr bool changes = KIND != ABAR_ACT_NONE;
    lanes<V> dz[AT_ONCE] = {}, v[AT_ONCE] = {};
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        if (r + u * step >= end) continue;
        dz[u] = load_lanes<V>(dy + (r + u * step) * pitch + at);
        if (changes) v[u] = load_lanes<V>(value + (r + u * step) * pitch + at);
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
#pragma unroll
        for (int k = 0; k < V; k++) {
            dz[u].v[k] = apply_slope<T, KIND>(dz[u].v[k], v[u].v[k]);
            sum.v[k] += dz[u].v[k];
        }
        if (changes && r + u * step < end) store_lanes<V>(dy + (r + u * step) * pitch + at, dz[u]);
    }
}

/* Block (tile, slice): replaces its part of dy by dz, unless KIND is none, and writes the part's column sums to sums (slices,
 * width), or adds them where add is set and there is one slice. sums NULL: none. A thread owns V columns. */
template <typename T, int V, abar__activation KIND>
static __global__ void __launch_bounds__(THREADS) slope_and_sum(T *dy, const T *value, float *sums, bool add, int64_t rows,
                                                                int64_t width, int64_t pitch, int64_t slice_rows, int across)
{
    __shared__ float part[V][THREADS];
    const int lane = (int)threadIdx.x % across, row_of_block = (int)threadIdx.x / across, at_once = THREADS / across;
    const int64_t column = ((int64_t)blockIdx.x * across + lane) * V, first = (int64_t)blockIdx.y * slice_rows;
    const int64_t end = first + slice_rows < rows ? first + slice_rows : rows;
    lanes<V> sum = {};
    if (column < width)
        for (int64_t r = first + row_of_block; r < end; r += AT_ONCE * at_once)
            slope_and_add<KIND>(dy, value, column, r, at_once, end, pitch, sum);
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

/* ---- joining slices ----------------------------------------------------------------------------------------------- */

/* A thread owns an element and adds its slices in order. For many elements. */
static __global__ void join_slices(const float *sums, int64_t slices, int64_t count, float *to, bool add)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0.0f;
    for (int64_t s = 0; s < slices; s++) sum += sums[s * count + i];
    to[i] = add ? to[i] + sum : sum;
}

/* For few elements. Threads (32, SLICE_LANES): blockIdx.x and threadIdx.x choose an element, threadIdx.y every
 * SLICE_LANES-th slice; these sums are added in order. The first `split` elements go to `to`, the others to `rest`; either
 * may be NULL. */
static __global__ void __launch_bounds__(32 * SLICE_LANES)
    join_columns(const float *sums, int slices, int64_t count, int64_t split, float *to, float *rest, bool add)
{
    __shared__ float part[SLICE_LANES][32];
    const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (i < count) {
#pragma unroll 8
        for (int s = threadIdx.y; s < slices; s += SLICE_LANES) sum += sums[s * count + i];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || i >= count) return;
#pragma unroll
    for (int l = 1; l < SLICE_LANES; l++) sum += part[l][threadIdx.x];
    float *at = i < split ? to : rest;
    if (!at) return;
    at += i < split ? i : i - split;
    *at = add ? *at + sum : sum;
}

static void join_few(abar_device *dev, const float *sums, int64_t slices, int64_t count, int64_t split, float *to, float *rest,
                     bool add)
{
    abar__cuda_launch(dev, join_columns, dim3((unsigned)abar__cuda_blocks(count, 32)), dim3(32, SLICE_LANES), 0, sums, slices,
                      count, split, to, rest, add);
}

void abar__cuda_join_slices(abar_device *dev, const float *sums, int64_t slices, int64_t count, float *to, bool add)
{
    if (count < MANY)
        join_few(dev, sums, slices, count, count, to, NULL, add);
    else
        abar__cuda_launch(dev, join_slices, dim3((unsigned)abar__cuda_blocks(count, 64)), 64, 0, sums, slices, count, to, add);
}

void abar__cuda_join_pairs(abar_device *dev, const float *sums, int64_t slices, int64_t width, float *first, float *second,
                           bool add)
{
    join_few(dev, sums, slices, 2 * width, width, first, second, add);
}

/* ---- gradients ---------------------------------------------------------------------------------------------------- */

size_t abar__cuda_bias_partials(const abar_device *dev, int64_t rows, int64_t width)
{
    /* the larger of both needs, as the pitch is not known yet */
    const cut packs = cut_rows(dev, rows, width, 0), singles = cut_rows(dev, rows, width, 1);
    const int64_t slices = packs.slices > singles.slices ? packs.slices : singles.slices;
    return slices > 1 ? (size_t)(slices * width) * sizeof(float) : 0;
}

template <typename T, int V> static auto kernel_of(abar__activation kind)
{
    switch (kind) {
    case ABAR_ACT_RELU: return slope_and_sum<T, V, ABAR_ACT_RELU>;
    case ABAR_ACT_TANH: return slope_and_sum<T, V, ABAR_ACT_TANH>;
    case ABAR_ACT_GELU_ERF: return slope_and_sum<T, V, ABAR_ACT_GELU_ERF>;
    case ABAR_ACT_GELU_TANH: return slope_and_sum<T, V, ABAR_ACT_GELU_TANH>;
    case ABAR_ACT_NONE: break;
    }
    return slope_and_sum<T, V, ABAR_ACT_NONE>;
}

template <typename T>
static void run_gradient(abar_device *dev, abar__activation kind, T *dy, const T *value, float *db, bool accumulate,
                         int64_t rows, int64_t width, int64_t pitch, float *partials)
{
    const cut c = cut_rows(dev, rows, width, pitch);
    const bool two = db && c.slices > 1;
    abar__cuda_launch(dev, c.vector > 1 ? kernel_of<T, pack<T>::n>(kind) : kernel_of<T, 1>(kind),
                      dim3((unsigned)c.tiles, (unsigned)c.slices), THREADS, 0, dy, value, two ? partials : db,
                      accumulate && !two, rows, width, pitch, c.slice_rows, c.lanes);
    if (two) abar__cuda_join_slices(dev, partials, c.slices, width, db, accumulate);
}

void abar__cuda_activation_gradient(abar_device *dev, abar__activation kind, void *dy, const void *value, float *db,
                                    bool accumulate, int64_t rows, int64_t width, float *partials, int64_t pitch)
{
    if (kind == ABAR_ACT_NONE && !db) return;
    if (pitch == 0) pitch = width;
    if (abar__cuda_is_bf16(dev))
        run_gradient(dev, kind, (bf16 *)dy, (const bf16 *)value, db, accumulate, rows, width, pitch, partials);
    else
        run_gradient(dev, kind, (float *)dy, (const float *)value, db, accumulate, rows, width, pitch, partials);
}

void abar__cuda_bias_relu_gradient(abar_device *dev, void *dy, const void *y, float *db, bool accumulate, int64_t rows,
                                   int64_t width, float *partials, int64_t pitch)
{
    abar__cuda_activation_gradient(dev, y ? ABAR_ACT_RELU : ABAR_ACT_NONE, dy, y, db, accumulate, rows, width, partials, pitch);
}
