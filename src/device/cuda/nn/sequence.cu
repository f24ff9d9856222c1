/* Sequences (N, T, D): made from texts (embedding, in embedding.cu) and images (tokens), with a class token in front, merged
 * by fours (Swin), and reduced to their mean or first token. */
#include "device/cuda/nn/sequence.h"

/* ---- sums over samples ------------------------------------------------------------------------------------------- */

enum { SAMPLE_LANES = 8, AHEAD = 4 };

/* The destinations of sums over samples; NULL: not wanted. */
typedef struct sums {
    float *to;    /* (count) */
    float *first; /* (head): also the first of them */
    int64_t head;
    bool add;   /* to existing values */
    void *rest; /* (N, count - head): not a sum, but a copy of each sample from `head` on */
} sums;

/* Sums of from (samples, count). Threads (32, SAMPLE_LANES): threadIdx.x chooses V neighbours, threadIdx.y every
 * SAMPLE_LANES-th sample, of which it loads AHEAD before it adds the first; the lanes are added in order. */
template <typename T, int V> static __global__ void sample_sums(int64_t samples, int64_t count, const T *from, sums s)
{
    __shared__ float part[SAMPLE_LANES][32][V];
    const int64_t i = ((int64_t)blockIdx.x * 32 + threadIdx.x) * V, end = i < count ? samples : 0;
    T *rest = i >= s.head && s.rest ? (T *)s.rest + i - s.head : NULL;
    lanes<V> sum = {};
    for (int64_t n0 = threadIdx.y; n0 < end; n0 += AHEAD * SAMPLE_LANES) {
        lanes<V> v[AHEAD] = {};
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (n0 + j * SAMPLE_LANES < end) v[j] = load_lanes<V>(from + (n0 + j * SAMPLE_LANES) * count + i);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int64_t n = n0 + j * SAMPLE_LANES;
            if (rest && n < end) store_lanes<V>(rest + n * (count - s.head), v[j]);
#pragma unroll
            for (int k = 0; k < V; k++) sum.v[k] += v[j].v[k];
        }
    }
#pragma unroll
    for (int k = 0; k < V; k++) part[threadIdx.y][threadIdx.x][k] = sum.v[k];
    __syncthreads();
    if (threadIdx.y != 0 || i >= count) return;
#pragma unroll
    for (int k = 0; k < V; k++) {
        float all = 0.0f;
        for (int l = 0; l < SAMPLE_LANES; l++) all += part[l][threadIdx.x][k];
        if (s.to) s.to[i + k] = s.add ? s.to[i + k] + all : all;
        if (s.first && i + k < s.head) s.first[i + k] = s.add ? s.first[i + k] + all : all;
    }
}

template <typename T, int V> static void sum_as(abar_device *dev, int64_t samples, int64_t count, const void *from, sums s)
{
    abar__cuda_launch(dev, sample_sums<T, V>, dim3((unsigned)abar__cuda_blocks(count, 32 * V)), dim3(32, SAMPLE_LANES), 0,
                      samples, count, (const T *)from, s);
}

template <typename T> static void sum_of(abar_device *dev, int64_t samples, int64_t count, const void *from, sums s)
{
    if (count % pack<T>::n == 0 && s.head % pack<T>::n == 0)
        sum_as<T, pack<T>::n>(dev, samples, count, from, s);
    else
        sum_as<T, 1>(dev, samples, count, from, s);
}

static void sum(abar_device *dev, int64_t samples, int64_t count, const void *from, sums s)
{
    if (!s.to && !s.first && !s.rest) return;
    if (abar__cuda_is_bf16(dev))
        sum_of<bf16>(dev, samples, count, from, s);
    else
        sum_of<float>(dev, samples, count, from, s);
}

void abar__cuda_sum_samples(abar_device *dev, int64_t samples, int64_t count, const void *from, bool add, float *to)
{
    sum(dev, samples, count, from, {.to = to, .first = NULL, .head = 0, .add = add, .rest = NULL});
}

/* ---- tokens: with channels last, an image's pixels are tokens already ----------------------------------------------- */

static abar_status dense(abar__op *op)
{
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    return ABAR_OK;
}

static abar_status tokens_create(abar__op *op)
{
    op->in_layout[0] = ABAR_LAYOUT_NHWC;
    op->out_layout = ABAR_LAYOUT_STRIDED;
    op->y_is_x = true;
    return ABAR_OK;
}

static abar_status copy(abar__op *op, const void *from, void *to)
{
    const size_t bytes = abar__shape_bytes(op->dev, &op->desc.out, ABAR_LAYOUT_STRIDED);
    if (from == to || !to) return ABAR_OK;
    CUDA_TRY(op->dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, abar__cuda_of(op->dev)->stream));
    return ABAR_OK;
}

static abar_status tokens_forward(abar__op *op, const abar__op_args *a) { return copy(op, a->x[0], a->y); }
static abar_status tokens_backward(abar__op *op, const abar__op_args *a) { return copy(op, a->dy, a->dx[0]); }

const abar__op_impl abar__cuda_tokens = {"cuda-tokens", ABAR_OP_TOKENS, tokens_create, tokens_forward, tokens_backward, NULL};

/* ---- class token: [token; x] + positions ----------------------------------------------------------------------------- */

/* blockIdx.x is the sample; a thread owns every gridDim.y-th V-vector of its rest + width elements. */
template <typename T, int V>
static __global__ void class_kernel(int rest, int width, const T *x, const float *token, const float *positions, T *y)
{
    const int units = (rest + width) / V;
    x += (int64_t)blockIdx.x * rest;
    y += (int64_t)blockIdx.x * (rest + width);
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const int i = u * V;
        lanes<V> v = i < width ? load_floats<V>(token + i) : load_lanes<V>(x + i - width);
        const lanes<V> position = load_floats<V>(positions + i);
#pragma unroll
        for (int k = 0; k < V; k++) v.v[k] += position.v[k];
        store_lanes<V>(y + i, v);
    }
}

template <typename T, int V> static void class_launch(abar__op *op, const abar__op_args *a)
{
    const int width = (int)op->desc.out.dim[2], rest = (int)op->desc.in[0].dim[1] * width;
    abar__cuda_launch(op->dev, class_kernel<T, V>, abar__cuda_image_grid(op->desc.out.dim[0], (rest + width) / V),
                      dim3(ABAR_CUDA_THREADS), 0, rest, width, (const T *)a->x[0], (const float *)a->param[0],
                      (const float *)a->param[1], (T *)a->y);
}

template <typename T> static void class_as(abar__op *op, const abar__op_args *a)
{
    if (op->desc.out.dim[2] % pack<T>::n == 0)
        class_launch<T, pack<T>::n>(op, a);
    else
        class_launch<T, 1>(op, a);
}

static abar_status class_forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        class_as<bf16>(op, a);
    else
        class_as<float>(op, a);
    return abar__cuda_status(op->dev);
}

/* dx is dy without the token's row; it is copied while the sums are computed. */
static abar_status class_backward(abar__op *op, const abar__op_args *a)
{
    const int64_t samples = op->desc.out.dim[0], width = op->desc.out.dim[2];
    sum(op->dev, samples, op->desc.out.dim[1] * width, a->dy,
        {.to = (float *)a->dparam[1], .first = (float *)a->dparam[0], .head = width, .add = a->accumulate, .rest = a->dx[0]});
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_class_token = {"cuda-class-token", ABAR_OP_CLASS_TOKEN, dense,
                                              class_forward,      class_backward,      NULL};

/* ---- patch merge: four neighbours become one token ----------------------------------------------------------------- */

/* together (N, rows/2 * columns/2, 4 width), part 2x + y being the neighbour at row y, column x; apart (N, rows * columns,
 * width). blockIdx.x is the sample; a thread owns every gridDim.y-th V-vector of it, in the order of together. */
template <typename T, int V>
static __global__ void merge_kernel(int rows, int columns, int width, bool merge, const T *from, T *to)
{
    const int per = width / V, units = rows * columns * per;
    const int64_t sample = (int64_t)blockIdx.x * rows * columns * width;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const int part = u / per % 4, t = u / per / 4;
        const int y = t / (columns / 2) * 2 + part % 2, x = t % (columns / 2) * 2 + part / 2;
        const int64_t together = sample + (int64_t)u * V, apart = sample + (int64_t)(y * columns + x) * width + u % per * V;
        store_lanes<V>(to + (merge ? together : apart), load_lanes<V>(from + (merge ? apart : together)));
    }
}

template <typename T> static void merge_as(abar__op *op, bool merge, const void *from, void *to)
{
    const int rows = (int)op->desc.grid[0], columns = (int)op->desc.grid[1], width = (int)op->desc.in[0].dim[2];
    const bool packs = width % pack<T>::n == 0;
    const dim3 grid = abar__cuda_image_grid(op->desc.in[0].dim[0], (int64_t)rows * columns * width / (packs ? pack<T>::n : 1));
    if (packs)
        abar__cuda_launch(op->dev, merge_kernel<T, pack<T>::n>, grid, dim3(ABAR_CUDA_THREADS), 0, rows, columns, width, merge,
                          (const T *)from, (T *)to);
    else
        abar__cuda_launch(op->dev, merge_kernel<T, 1>, grid, dim3(ABAR_CUDA_THREADS), 0, rows, columns, width, merge,
                          (const T *)from, (T *)to);
}

static abar_status merge(abar__op *op, bool merge, const void *from, void *to)
{
    if (!to) return ABAR_OK;
    if (abar__cuda_is_bf16(op->dev))
        merge_as<bf16>(op, merge, from, to);
    else
        merge_as<float>(op, merge, from, to);
    return abar__cuda_status(op->dev);
}

static abar_status merge_forward(abar__op *op, const abar__op_args *a) { return merge(op, true, a->x[0], a->y); }
static abar_status merge_backward(abar__op *op, const abar__op_args *a) { return merge(op, false, a->dy, a->dx[0]); }

const abar__op_impl abar__cuda_patch_merge = {"cuda-patch-merge", ABAR_OP_PATCH_MERGE, dense,
                                              merge_forward,      merge_backward,      NULL};

/* ---- reading out: the mean of the tokens, or the first -------------------------------------------------------------- */

/* Threads (32, TOKEN_LANES): blockIdx.x and threadIdx.x choose a column, blockIdx.y the sample, threadIdx.y every
 * TOKEN_LANES-th token. */
#define TOKEN_LANES 8

template <typename T> static __global__ void mean_kernel(int64_t samples, int tokens, int width, const T *x, T *y)
{
    __shared__ float part[TOKEN_LANES][32];
    const int c = blockIdx.x * 32 + threadIdx.x;
    for (int64_t n = blockIdx.y; n < samples; n += gridDim.y) {
        float sum = 0.0f;
        for (int t = threadIdx.y; t < tokens && c < width; t += TOKEN_LANES) sum += load(x, (n * tokens + t) * width + c);
        __syncthreads();
        part[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y != 0 || c >= width) continue;
        for (int l = 1; l < TOKEN_LANES; l++) sum += part[l][threadIdx.x];
        store(y, n * width + c, sum / (float)tokens);
    }
}

/* dx[n, t] = dy[n] / T. blockIdx.x is the sample; a thread owns every gridDim.y-th V-vector of it. */
template <typename T, int V> static __global__ void mean_grad_kernel(int tokens, int width, const T *dy, T *dx)
{
    const int units = tokens * (width / V);
    dy += (int64_t)blockIdx.x * width;
    dx += (int64_t)blockIdx.x * tokens * width;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        lanes<V> v = load_lanes<V>(dy + u % (width / V) * V);
#pragma unroll
        for (int k = 0; k < V; k++) v.v[k] /= (float)tokens;
        store_lanes<V>(dx + (int64_t)u * V, v);
    }
}

template <typename T> static void mean_as(abar__op *op, const abar__op_args *a)
{
    const int64_t samples = op->desc.in[0].dim[0];
    const int tokens = (int)op->desc.in[0].dim[1], width = (int)op->desc.in[0].dim[2];
    const dim3 grid((unsigned)abar__cuda_blocks(width, 32), (unsigned)(samples < 65535 ? samples : 65535));
    abar__cuda_launch(op->dev, mean_kernel<T>, grid, dim3(32, TOKEN_LANES), 0, samples, tokens, width, (const T *)a->x[0],
                      (T *)a->y);
}

template <typename T> static void mean_grad_as(abar__op *op, const abar__op_args *a)
{
    const int tokens = (int)op->desc.in[0].dim[1], width = (int)op->desc.in[0].dim[2];
    const bool packs = width % pack<T>::n == 0;
    const dim3 grid = abar__cuda_image_grid(op->desc.in[0].dim[0], (int64_t)tokens * width / (packs ? pack<T>::n : 1));
    if (packs)
        abar__cuda_launch(op->dev, mean_grad_kernel<T, pack<T>::n>, grid, dim3(ABAR_CUDA_THREADS), 0, tokens, width,
                          (const T *)a->dy, (T *)a->dx[0]);
    else
        abar__cuda_launch(op->dev, mean_grad_kernel<T, 1>, grid, dim3(ABAR_CUDA_THREADS), 0, tokens, width, (const T *)a->dy,
                          (T *)a->dx[0]);
}

static abar_status mean_forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        mean_as<bf16>(op, a);
    else
        mean_as<float>(op, a);
    return abar__cuda_status(op->dev);
}

static abar_status mean_backward(abar__op *op, const abar__op_args *a)
{
    if (!a->dx[0]) return ABAR_OK;
    if (abar__cuda_is_bf16(op->dev))
        mean_grad_as<bf16>(op, a);
    else
        mean_grad_as<float>(op, a);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_token_mean = {"cuda-token-mean", ABAR_OP_TOKEN_MEAN, dense, mean_forward, mean_backward, NULL};

static size_t element_bytes(const abar_device *dev) { return abar__cuda_is_bf16(dev) ? sizeof(bf16) : sizeof(float); }

static abar_status first_forward(abar__op *op, const abar__op_args *a)
{
    const abar__shape *x = &op->desc.in[0]; /* (N, T, D) */
    const size_t row = (size_t)x->dim[2] * element_bytes(op->dev);
    CUDA_TRY(op->dev, cudaMemcpy2DAsync(a->y, row, a->x[0], row * (size_t)x->dim[1], row, (size_t)x->dim[0],
                                        cudaMemcpyDeviceToDevice, abar__cuda_of(op->dev)->stream));
    return ABAR_OK;
}

static abar_status first_backward(abar__op *op, const abar__op_args *a)
{
    const abar__shape *x = &op->desc.in[0];
    const size_t row = (size_t)x->dim[2] * element_bytes(op->dev), sample = row * (size_t)x->dim[1];
    cudaStream_t stream = abar__cuda_of(op->dev)->stream;
    if (!a->dx[0]) return ABAR_OK;
    CUDA_TRY(op->dev, cudaMemsetAsync(a->dx[0], 0, sample * (size_t)x->dim[0], stream));
    CUDA_TRY(op->dev,
             cudaMemcpy2DAsync(a->dx[0], sample, a->dy, row, row, (size_t)x->dim[0], cudaMemcpyDeviceToDevice, stream));
    return ABAR_OK;
}

const abar__op_impl abar__cuda_token_first = {"cuda-token-first", ABAR_OP_TOKEN_FIRST, dense,
                                              first_forward,      first_backward,      NULL};
