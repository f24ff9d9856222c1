/* Layer norm over the last dimension of a dense value, (rows, width): y = scale (x - mean) rstd + shift. With
 * xh = (x - mean) rstd and g = scale dy: dx = rstd (g - mean(g) - xh mean(g xh)), dscale = sum dy xh, dshift = sum dy over
 * rows. saved, (rows, 2): mean and rstd.
 *
 * A warp that can hold a row in its registers reads it once; backward keeps the column sums there, too. Other widths take
 * kernels that read a row again for every pass over it. */
#include "device/cuda/bias_relu.h"

#define ROWS_PER_BLOCK 8 /* a warp each */
#define COLUMN_LANES 8   /* threads that share a column of a slab */
#define MAX_SLABS 512    /* of rows, summed apart and then joined in order */
#define MAX_HELD 48      /* elements of a row that a lane holds */

/* ---- rows in registers: K packs a lane ------------------------------------------------------------------------------- */

/* The lane's part of a row: packs lane, lane + 32, ...; zeros past its end. */
template <typename T, int K> struct held_row {
    static const int V = pack<T>::n;
    lanes<pack<T>::n> part[K];
    __device__ void read(const T *row, int width)
    {
#pragma unroll
        for (int j = 0; j < K; j++) {
            const int c = (threadIdx.x % 32 + 32 * j) * V;
            part[j] = {};
            if (c < width) part[j] = load_lanes<V>(row + c);
        }
    }
    __device__ void write(T *row, int width) const
    {
#pragma unroll
        for (int j = 0; j < K; j++) {
            const int c = (threadIdx.x % 32 + 32 * j) * V;
            if (c < width) store_lanes<V>(row + c, part[j]);
        }
    }
};

/* Calls work(j, k, column) for every element that the lane holds. */
template <typename T, int K, typename Work> __device__ static inline void for_held(int width, Work work)
{
#pragma unroll
    for (int j = 0; j < K; j++) {
        const int c = (threadIdx.x % 32 + 32 * j) * pack<T>::n;
        if (c >= width) continue;
#pragma unroll
        for (int k = 0; k < pack<T>::n; k++) work(j, k, c + k);
    }
}

/* A warp owns a row. */
template <typename T, int K>
static __global__ void __launch_bounds__(32 * ROWS_PER_BLOCK)
    forward_held_kernel(int64_t rows, int width, float eps, const T *x, const float *scale, const float *shift, T *y,
                        float *saved)
{
    const int64_t row = (int64_t)blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / 32;
    if (row >= rows) return;
    held_row<T, K> v;
    v.read(x + row * width, width);
    float sum = 0.0f, square = 0.0f;
    for_held<T, K>(width, [&](int j, int k, int) { sum += v.part[j].v[k]; });
    const float mean = warp_sum(sum) / (float)width;
    for_held<T, K>(width, [&](int j, int k, int) { square += (v.part[j].v[k] - mean) * (v.part[j].v[k] - mean); });
    const float rstd = 1.0f / sqrtf(warp_sum(square) / (float)width + eps);
    for_held<T, K>(width, [&](int j, int k, int c) {
        v.part[j].v[k] = (v.part[j].v[k] - mean) * rstd * scale[c] + (shift ? shift[c] : 0.0f);
    });
    v.write(y + row * width, width);
    if (saved && threadIdx.x % 32 == 0) saved[2 * row] = mean, saved[2 * row + 1] = rstd;
}

/* dx, and partial (gridDim.x, 2, width): a block's sums of dy xh and of dy. A warp owns every so many-th row of all; the sums
 * of a block's warps are joined in order in shared memory, (ROWS_PER_BLOCK, width). */
template <typename T, int K>
static __global__ void __launch_bounds__(32 * ROWS_PER_BLOCK)
    backward_held_kernel(int64_t rows, int width, const T *dy, const T *x, const float *scale, const float *saved, T *dx,
                         float *partial)
{
    extern __shared__ float sums[];
    lanes<pack<T>::n> dscale[K] = {}, dshift[K] = {};
    const int warp = threadIdx.x / 32;
    for (int64_t row = (int64_t)blockIdx.x * ROWS_PER_BLOCK + warp; row < rows; row += (int64_t)gridDim.x * ROWS_PER_BLOCK) {
        held_row<T, K> v, g;
        v.read(x + row * width, width);
        g.read(dy + row * width, width);
        const float mean = saved[2 * row], rstd = saved[2 * row + 1];
        float sum = 0.0f, dot = 0.0f; /* of scale dy, and of scale dy xh */
        for_held<T, K>(width, [&](int j, int k, int c) {
            const float xh = (v.part[j].v[k] - mean) * rstd, d = g.part[j].v[k];
            dscale[j].v[k] += d * xh;
            dshift[j].v[k] += d;
            v.part[j].v[k] = xh;
            g.part[j].v[k] = d * scale[c];
            sum += g.part[j].v[k];
            dot += g.part[j].v[k] * xh;
        });
        if (!dx) continue;
        sum = warp_sum(sum) / (float)width;
        dot = warp_sum(dot) / (float)width;
        for_held<T, K>(width,
                       [&](int j, int k, int) { g.part[j].v[k] = rstd * (g.part[j].v[k] - sum - v.part[j].v[k] * dot); });
        g.write(dx + row * width, width);
    }
#pragma unroll
    for (int which = 0; which < 2; which++) {
        __syncthreads();
        for_held<T, K>(width, [&](int j, int k, int c) { sums[warp * width + c] = which ? dshift[j].v[k] : dscale[j].v[k]; });
        __syncthreads();
        for (int c = threadIdx.x; c < width; c += 32 * ROWS_PER_BLOCK) {
            float sum = 0.0f;
            for (int w = 0; w < ROWS_PER_BLOCK; w++) sum += sums[w * width + c];
            partial[((int64_t)blockIdx.x * 2 + which) * width + c] = sum;
        }
    }
}

/* ---- rows of any width: forward ------------------------------------------------------------------------------------ */

/* A warp owns a row, a lane every 32nd V-vector of it. shift may be NULL. */
template <typename T, int V>
static __global__ void forward_kernel(int64_t rows, int width, float eps, const T *x, const float *scale, const float *shift,
                                      T *y, float *saved)
{
    const int64_t row = (int64_t)blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / 32;
    const int first = threadIdx.x % 32 * V;
    if (row >= rows) return;
    x += row * width;
    y += row * width;
    float sum = 0.0f, square = 0.0f;
    for (int c = first; c < width; c += 32 * V) {
        const lanes<V> v = load_lanes<V>(x + c);
#pragma unroll
        for (int k = 0; k < V; k++) sum += v.v[k];
    }
    const float mean = warp_sum(sum) / (float)width;
    for (int c = first; c < width; c += 32 * V) {
        const lanes<V> v = load_lanes<V>(x + c);
#pragma unroll
        for (int k = 0; k < V; k++) square += (v.v[k] - mean) * (v.v[k] - mean);
    }
    const float rstd = 1.0f / sqrtf(warp_sum(square) / (float)width + eps);
    for (int c = first; c < width; c += 32 * V) {
        lanes<V> v = load_lanes<V>(x + c);
#pragma unroll
        for (int k = 0; k < V; k++) v.v[k] = (v.v[k] - mean) * rstd * scale[c + k] + (shift ? shift[c + k] : 0.0f);
        store_lanes<V>(y + c, v);
    }
    if (saved && first == 0) saved[2 * row] = mean, saved[2 * row + 1] = rstd;
}

template <typename T, int V> static void forward_launch(abar__op *op, const abar__op_args *a, int64_t rows, int width)
{
    abar__cuda_launch(op->dev, forward_kernel<T, V>, dim3((unsigned)abar__cuda_blocks(rows, ROWS_PER_BLOCK)),
                      dim3(32 * ROWS_PER_BLOCK), 0, rows, width, (float)op->desc.eps, (const T *)a->x[0],
                      (const float *)a->param[0], (const float *)a->param[1], (T *)a->y, (float *)a->saved);
}

/* ---- rows of any width: backward ----------------------------------------------------------------------------------- */

/* dx. A warp owns a row, a lane every 32nd V-vector of it. */
template <typename T, int V>
static __global__ void input_grad_kernel(int64_t rows, int width, const T *dy, const T *x, const float *scale,
                                         const float *saved, T *dx)
{
    const int64_t row = (int64_t)blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / 32;
    const int first = threadIdx.x % 32 * V;
    if (row >= rows) return;
    x += row * width;
    dy += row * width;
    dx += row * width;
    const float mean = saved[2 * row], rstd = saved[2 * row + 1];
    float sum = 0.0f, dot = 0.0f; /* of g, and of g with xh */
    for (int c = first; c < width; c += 32 * V) {
        const lanes<V> v = load_lanes<V>(x + c), d = load_lanes<V>(dy + c);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const float g = d.v[k] * scale[c + k];
            sum += g;
            dot += g * (v.v[k] - mean) * rstd;
        }
    }
    sum = warp_sum(sum) / (float)width;
    dot = warp_sum(dot) / (float)width;
    for (int c = first; c < width; c += 32 * V) {
        lanes<V> v = load_lanes<V>(x + c), d = load_lanes<V>(dy + c);
#pragma unroll
        for (int k = 0; k < V; k++) v.v[k] = rstd * (d.v[k] * scale[c + k] - sum - (v.v[k] - mean) * rstd * dot);
        store_lanes<V>(dx + c, v);
    }
}

/* partial (slabs, 2, width): sums of dy xh and of dy over a slab of rows. Threads (32, COLUMN_LANES): blockIdx.x and
 * threadIdx.x choose a column, blockIdx.y the slab, threadIdx.y every COLUMN_LANES-th row of it. */
template <typename T>
static __global__ void column_sums_kernel(int64_t rows, int width, const T *dy, const T *x, const float *saved, float *partial)
{
    __shared__ float2 part[COLUMN_LANES][32];
    const int c = blockIdx.x * 32 + threadIdx.x;
    const int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int64_t row = begin + threadIdx.y; row < end && c < width; row += COLUMN_LANES) {
        const float g = load(dy, row * width + c), xh = (load(x, row * width + c) - saved[2 * row]) * saved[2 * row + 1];
        sum.x += g * xh;
        sum.y += g;
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c >= width) return;
    for (int l = 1; l < COLUMN_LANES; l++) {
        sum.x += part[l][threadIdx.x].x;
        sum.y += part[l][threadIdx.x].y;
    }
    partial[(int64_t)blockIdx.y * 2 * width + c] = sum.x;
    partial[((int64_t)blockIdx.y * 2 + 1) * width + c] = sum.y;
}

template <typename T, int V> static void input_grad_launch(abar__op *op, const abar__op_args *a, int64_t rows, int width)
{
    abar__cuda_launch(op->dev, input_grad_kernel<T, V>, dim3((unsigned)abar__cuda_blocks(rows, ROWS_PER_BLOCK)),
                      dim3(32 * ROWS_PER_BLOCK), 0, rows, width, (const T *)a->dy, (const T *)a->x[0],
                      (const float *)a->param[0], (const float *)a->saved, (T *)a->dx[0]);
}

/* ---- the operation -------------------------------------------------------------------------------------------------- */

static int width_of(const abar__op *op) { return (int)op->desc.in[0].dim[op->desc.in[0].ndim - 1]; }
static int64_t rows_of(const abar__op *op) { return abar__shape_count(&op->desc.in[0]) / width_of(op); }

/* Packs of a row that a lane holds; 0: it does not fit. */
static int held_of(const abar__op *op)
{
    const int elements = abar__cuda_is_bf16(op->dev) ? pack<bf16>::n : pack<float>::n, width = width_of(op);
    const int held = (int)abar__cuda_blocks(width, 32 * elements);
    return width % elements == 0 && held * elements <= MAX_HELD ? held : 0;
}

/* Blocks that share the rows in backward. */
static int slabs_of(const abar__op *op)
{
    const int64_t wish = abar__cuda_blocks(rows_of(op), held_of(op) ? ROWS_PER_BLOCK : 8 * COLUMN_LANES);
    const int64_t most = held_of(op) ? 2 * abar__cuda_of(op->dev)->processors : 64;
    const int64_t slabs = wish < most ? wish : most;
    return slabs < MAX_SLABS ? (int)slabs : MAX_SLABS;
}

static abar_status create(abar__op *op)
{
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = ABAR_NEEDS_X;
    op->saved_bytes = (size_t)rows_of(op) * 2 * sizeof(float);
    op->scratch_bytes = (size_t)slabs_of(op) * 2 * (size_t)width_of(op) * sizeof(float);
    return ABAR_OK;
}

template <typename T, int K> static void held_launch(abar__op *op, const abar__op_args *a, bool back)
{
    const int width = width_of(op);
    const int64_t rows = rows_of(op);
    const dim3 threads(32 * ROWS_PER_BLOCK);
    if (back)
        abar__cuda_launch(op->dev, backward_held_kernel<T, K>, dim3((unsigned)slabs_of(op)), threads,
                          ROWS_PER_BLOCK * (size_t)width * sizeof(float), rows, width, (const T *)a->dy, (const T *)a->x[0],
                          (const float *)a->param[0], (const float *)a->saved, (T *)a->dx[0], (float *)a->scratch);
    else
        abar__cuda_launch(op->dev, forward_held_kernel<T, K>, dim3((unsigned)abar__cuda_blocks(rows, ROWS_PER_BLOCK)), threads,
                          0, rows, width, (float)op->desc.eps, (const T *)a->x[0], (const float *)a->param[0],
                          (const float *)a->param[1], (T *)a->y, (float *)a->saved);
}

/* K: 1, 2, 3, 4, 6, and for floats 8 and 12. */
template <typename T> static void held_run(abar__op *op, const abar__op_args *a, bool back)
{
    const int held = held_of(op);
    if (held == 1)
        held_launch<T, 1>(op, a, back);
    else if (held == 2)
        held_launch<T, 2>(op, a, back);
    else if (held == 3)
        held_launch<T, 3>(op, a, back);
    else if (held == 4)
        held_launch<T, 4>(op, a, back);
    else if (held <= 6)
        held_launch<T, 6>(op, a, back);
    else if (held <= 8)
        held_launch<float, 8>(op, a, back); /* only floats hold so many */
    else
        held_launch<float, 12>(op, a, back);
}

template <typename T> static void forward_as(abar__op *op, const abar__op_args *a)
{
    const int width = width_of(op);
    if (held_of(op))
        held_run<T>(op, a, false);
    else if (width % pack<T>::n == 0)
        forward_launch<T, pack<T>::n>(op, a, rows_of(op), width);
    else
        forward_launch<T, 1>(op, a, rows_of(op), width);
}

/* partial, and dx where it is wanted, by kernels that read rows again. */
template <typename T> static void backward_streamed(abar__op *op, const abar__op_args *a)
{
    const int width = width_of(op);
    const int64_t rows = rows_of(op);
    if (a->dx[0] && width % pack<T>::n == 0)
        input_grad_launch<T, pack<T>::n>(op, a, rows, width);
    else if (a->dx[0])
        input_grad_launch<T, 1>(op, a, rows, width);
    abar__cuda_launch(op->dev, column_sums_kernel<T>, dim3((unsigned)abar__cuda_blocks(width, 32), (unsigned)slabs_of(op)),
                      dim3(32, COLUMN_LANES), 0, rows, width, (const T *)a->dy, (const T *)a->x[0], (const float *)a->saved,
                      (float *)a->scratch);
}

template <typename T> static void backward_as(abar__op *op, const abar__op_args *a)
{
    if (held_of(op))
        held_run<T>(op, a, true);
    else
        backward_streamed<T>(op, a);
    abar__cuda_join_pairs(op->dev, (const float *)a->scratch, slabs_of(op), width_of(op), (float *)a->dparam[0],
                          (float *)a->dparam[1], a->accumulate);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        forward_as<bf16>(op, a);
    else
        forward_as<float>(op, a);
    return abar__cuda_status(op->dev);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        backward_as<bf16>(op, a);
    else
        backward_as<float>(op, a);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_layer_norm = {"cuda-layer-norm", ABAR_OP_LAYER_NORM, create, forward, backward, NULL};
