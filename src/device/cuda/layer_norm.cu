/* Layer norm over the last dimension of a dense value, (rows, width): y = scale (x - mean) rstd + shift. With
 * xh = (x - mean) rstd and g = scale dy: dx = rstd (g - mean(g) - xh mean(g xh)), dscale = sum dy xh, dshift = sum dy over
 * rows. saved, (rows, 2): mean and rstd. */
#include "device/cuda/cuda_nn.h"

#define ROWS_PER_BLOCK 8 /* a warp each */
#define COLUMN_LANES 8   /* threads that share a column of a slab */
#define MAX_SLABS 64     /* of rows, summed apart and then joined in order */

/* ---- forward ------------------------------------------------------------------------------------------------------- */

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

/* ---- backward ------------------------------------------------------------------------------------------------------ */

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

/* A thread owns one element of dscale (the first width) or dshift, and adds its slabs in order. */
static __global__ void join_kernel(int slabs, int width, const float *partial, float *dscale, float *dshift, bool accumulate)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= 2 * width) return;
    float *to = i < width ? dscale : dshift;
    if (!to) return;
    to += i < width ? i : i - width;
    float sum = accumulate ? *to : 0.0f;
    for (int s = 0; s < slabs; s++) sum += partial[(int64_t)s * 2 * width + i];
    *to = sum;
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

static int slabs_of(const abar__op *op)
{
    const int64_t slabs = abar__cuda_blocks(rows_of(op), 8 * COLUMN_LANES);
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

template <typename T> static void forward_as(abar__op *op, const abar__op_args *a)
{
    const int width = width_of(op);
    if (width % pack<T>::n == 0)
        forward_launch<T, pack<T>::n>(op, a, rows_of(op), width);
    else
        forward_launch<T, 1>(op, a, rows_of(op), width);
}

template <typename T> static void backward_as(abar__op *op, const abar__op_args *a)
{
    const int width = width_of(op), slabs = slabs_of(op);
    const int64_t rows = rows_of(op);
    if (a->dx[0] && width % pack<T>::n == 0)
        input_grad_launch<T, pack<T>::n>(op, a, rows, width);
    else if (a->dx[0])
        input_grad_launch<T, 1>(op, a, rows, width);
    abar__cuda_launch(op->dev, column_sums_kernel<T>, dim3((unsigned)abar__cuda_blocks(width, 32), (unsigned)slabs),
                      dim3(32, COLUMN_LANES), 0, rows, width, (const T *)a->dy, (const T *)a->x[0], (const float *)a->saved,
                      (float *)a->scratch);
    abar__cuda_launch(op->dev, join_kernel, dim3((unsigned)abar__cuda_blocks(2 * width, ABAR_CUDA_THREADS)),
                      dim3(ABAR_CUDA_THREADS), 0, slabs, width, (const float *)a->scratch, (float *)a->dparam[0],
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
