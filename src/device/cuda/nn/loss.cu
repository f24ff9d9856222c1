/* Softmax cross entropy and squared error: the mean over the first run->valid samples, and its gradient, zero for the
 * others. Cross entropy of a row x against q = (1 - s) target + s / K: sum_k q_k (log sum e^x - x_k), dx = softmax(x) - q.
 *
 * Logits, soft targets and those of the squared error are dev->activation, labels int32. A pair of labels is a target with
 * the share of the first in one place and the rest in another. A label outside the classes makes the loss NaN, without host
 * synchronisation. */
#include "device/cuda/core/chain.h"
#include "device/cuda/nn/labels.h"

#include <float.h>
#include <limits.h>
#include <math.h>

#define THREADS 1024
#define WARPS (THREADS / 32)
#define MAX_PARTS 1024 /* blocks that share a loss */
#define WIDE 1024      /* rows with at least so many classes get a block each, not a warp */
#define WIDE_THREADS 256
#define AT_ONCE 4 /* packs of a wide row that a thread loads before it uses them */

typedef struct part_sum { /* of one block */
    double loss;
    long long correct;
} part_sum;

/* ---- one number from many blocks ----------------------------------------------------------------------------------- */

/* Writes the block's sum to its place in parts; a single block writes the result at once. All threads must call. */
__device__ static void leave(part_sum mine, part_sum *parts, double per, int64_t count, abar_loss *result)
{
    __shared__ double losses[32];
    __shared__ long long corrects[32];
    const double loss = block_sum(mine.loss, losses);
    const long long correct = block_sum(mine.correct, corrects);
    if (threadIdx.x != 0) return;
    if (gridDim.x > 1)
        parts[blockIdx.x] = {loss, correct};
    else
        *result = {count > 0 ? loss / per : 0.0, correct, count};
}

/* One block adds the parts, a thread every blockDim-th of them. */
static __global__ void join_kernel(int n, const part_sum *parts, double per, int64_t count, abar_loss *result)
{
    __shared__ double losses[32];
    __shared__ long long corrects[32];
    part_sum sum = {};
    chain_wait();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        sum.loss += parts[i].loss;
        sum.correct += parts[i].correct;
    }
    sum.loss = block_sum(sum.loss, losses);
    sum.correct = block_sum(sum.correct, corrects);
    if (threadIdx.x == 0) *result = {count > 0 ? sum.loss / per : 0.0, sum.correct, count};
}

/* The number of blocks for work of `grain` units each, at least one. */
static int parts_for(int64_t units, int64_t grain)
{
    const int64_t parts = abar__cuda_blocks(units, grain);
    return parts < 1 ? 1 : parts < MAX_PARTS ? (int)parts : MAX_PARTS;
}

static abar_status create(abar__op *op)
{
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = ABAR_NEEDS_X;
    op->scratch_bytes = MAX_PARTS * sizeof(part_sum);
    return ABAR_OK;
}

static abar_status join(abar__op *op, const abar__op_args *a, int parts, double per, int64_t count)
{
    if (parts > 1)
        abar__cuda_launch_chained(op->dev, join_kernel, dim3(1), dim3(128), 0, parts, (const part_sum *)a->scratch, per, count,
                                  a->result);
    return abar__cuda_status(op->dev);
}

/* ---- softmax cross entropy ------------------------------------------------------------------------------------------ */

/* The largest of a row and its first position, over a warp whose lanes each have their own candidate. */
__device__ static inline void warp_first_maximum(float &value, int &at)
{
#pragma unroll
    for (int lane = 16; lane; lane /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, lane);
        const int where = __shfl_xor_sync(0xffffffffu, at, lane);
        if (other > value || (other == value && where < at)) value = other, at = where;
    }
}

template <typename T> __device__ static inline float row_maximum(const T *row, int width, int &at)
{
    float top = -INFINITY;
    at = width;
    for (int k = threadIdx.x % 32; k < width; k += 32) {
        const float v = load(row, k);
        if (v > top || at == width) top = v, at = k;
    }
    warp_first_maximum(top, at);
    return top;
}

typedef struct entropy {
    int64_t rows, valid, pitch; /* pitch: from row to row of the logits and their gradient */
    int width;
    float smoothing;
    bool soft;
    const float *share; /* pairs of labels: (rows), of the first; else NULL */
} entropy;

/* The target of a row without soft targets: the labels, and the share of the first. */
typedef struct label_pair {
    int own, partner;
    float share, rest;
} label_pair;

__device__ static inline label_pair labels_of(const entropy &e, const void *target, int64_t row)
{
    const int32_t *label = (const int32_t *)target;
    if (!e.share) return {label[row], label[row], 1.0f, 0.0f};
    const float share = e.share[row];
    return {label[2 * row], label[2 * row + 1], share, 1.0f - share};
}

/* The target at class k, before smoothing. */
__device__ static inline float share_of(const label_pair &p, int k)
{
    return (p.own == k ? p.share : 0.0f) + (p.partner == k ? p.rest : 0.0f);
}

/* The cost of a row x before smoothing, where log_sum = log sum e^(x - top). */
template <typename T>
__device__ static inline float pair_cost(const label_pair &p, const T *x, int width, float top, float log_sum)
{
    if (p.own < 0 || p.own >= width || p.partner < 0 || p.partner >= width) return NAN;
    const float cost = log_sum - (load(x, p.own) - top);
    return p.rest == 0.0f ? cost : p.share * cost + p.rest * (log_sum - (load(x, p.partner) - top));
}

/* The cost of one row, on every lane; saved (2): the largest logit, 1 / the sum of exponentials. */
template <typename T>
__device__ static float entropy_row(const entropy &e, const T *x, const void *target, int64_t row, float *saved, bool &hit)
{
    const int lane = threadIdx.x % 32;
    int guess, truth;
    const float top = row_maximum(x, e.width, guess);
    float sum = 0.0f, distance = 0.0f, surprise = 0.0f; /* of e^(x - top), of x - top, of target (x - top) */
    const T *soft = e.soft ? (const T *)target + row * e.width : NULL;
    float mass = 0.0f; /* of the target: 1 up to rounding */
    for (int k = lane; k < e.width; k += 32) {
        const float d = load(x, k) - top;
        sum += expf(d);
        distance += d;
        if (soft) surprise += load(soft, k) * d, mass += load(soft, k);
    }
    sum = warp_sum(sum);
    const float log_sum = logf(sum);
    float cost;
    if (soft) {
        row_maximum(soft, e.width, truth);
        cost = log_sum * warp_sum(mass) - warp_sum(surprise);
    } else {
        const label_pair p = labels_of(e, target, row);
        truth = p.share < p.rest ? p.partner : p.own;
        cost = pair_cost(p, x, e.width, top, log_sum);
    }
    if (e.smoothing > 0.0f) cost = (1.0f - e.smoothing) * cost + e.smoothing * (log_sum - warp_sum(distance) / (float)e.width);
    if (saved && lane == 0) saved[0] = top, saved[1] = 1.0f / sum;
    hit = guess == truth;
    return cost;
}

/* A warp owns a row, then the one WARPS * gridDim.x further. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    entropy_kernel(entropy e, const T *x, const void *target, float *saved, part_sum *parts, abar_loss *result)
{
    part_sum mine = {};
    chain_wait();
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < e.valid; row += (int64_t)gridDim.x * WARPS) {
        bool hit;
        const float cost = entropy_row(e, x + row * e.pitch, target, row, saved ? saved + 2 * row : NULL, hit);
        if (threadIdx.x % 32 == 0) mine.loss += cost, mine.correct += hit;
    }
    leave(mine, parts, (double)e.valid, e.valid, result);
}

/* dx = (softmax(x) - q) share. blockIdx.x is the row; a thread owns every blockDim.x-th class. */
template <typename T>
static __global__ void entropy_grad_kernel(entropy e, const T *x, const void *target, const float *saved, float share, T *dx)
{
    const int64_t row = blockIdx.x;
    x += row * e.pitch;
    dx += row * e.pitch;
    const bool counts = row < e.valid;
    chain_wait();
    const float top = counts ? saved[2 * row] : 0.0f, by_sum = counts ? saved[2 * row + 1] : 0.0f;
    const label_pair p = counts && !e.soft ? labels_of(e, target, row) : label_pair{-1, -1, 0.0f, 0.0f};
    for (int k = threadIdx.x; k < e.width; k += blockDim.x) {
        float g = 0.0f;
        if (counts) {
            const float wanted = e.soft ? load((const T *)target, row * e.width + k) : share_of(p, k);
            const float q = (1.0f - e.smoothing) * wanted + e.smoothing / (float)e.width;
            g = (expf(load(x, k) - top) * by_sum - q) * share;
        }
        store(dx, k, g);
    }
}

/* ---- rows of many classes ------------------------------------------------------------------------------------------- */

/* A row of elements that need not begin on a multiple of 16 bytes: single ones, packs, single ones. The block's threads
 * divide it; a thread gets its elements in ascending order. */
template <typename T, typename Work> __device__ static inline void for_row(const T *row, int width, Work work)
{
    constexpr int V = pack<T>::n;
    const int skew = (int)((uintptr_t)row % 16 / sizeof(T)), head = min(width, (V - skew) % V), packs = (width - head) / V;
    const int tail = head + packs * V, step = (int)blockDim.x;
    if ((int)threadIdx.x < head) work(threadIdx.x, lanes<1>{{load(row, threadIdx.x)}});
    for (int i = threadIdx.x; i < packs; i += AT_ONCE * step) {
        lanes<V> v[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i + u * step < packs) v[u] = load_lanes<V>(row + head + (i + u * step) * V);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i + u * step < packs) work(head + (i + u * step) * V, v[u]);
    }
    if (tail + (int)threadIdx.x < width) work(tail + threadIdx.x, lanes<1>{{load(row, tail + threadIdx.x)}});
}

/* e^v, with the accuracy that the result's type needs. */
template <typename T> __device__ static inline float exponential(float v)
{
    if constexpr (sizeof(T) == sizeof(float))
        return expf(v);
    else
        return __expf(v);
}

/* What a thread, and then a block, knows of a row: its largest value and approximately its first position (-1: none), sums
 * of e^(x - top), of x, of the soft target and of its products with x. top is finite while x is: minus infinity adds
 * nothing, and a NaN makes the sum NaN. */
typedef struct row_sums {
    float top, sum, plain, mass, product;
    int at;
} row_sums;

/* V neighbours from place k on. */
template <typename T, int V> __device__ static inline void take(row_sums &r, const lanes<V> &v, int k)
{
    float most = v.v[0];
#pragma unroll
    for (int i = 1; i < V; i++) most = fmaxf(most, v.v[i]);
    if (most > r.top) {
        r.sum *= exponential<T>(r.top - most);
        r.top = most;
        r.at = k;
    }
#pragma unroll
    for (int i = 0; i < V; i++) r.sum += exponential<T>(v.v[i] - r.top);
}

/* The first maximum over a block whose threads each have their own candidate (at < 0: none). */
__device__ static inline void block_first_maximum(float &value, int &at)
{
    __shared__ float values[32];
    __shared__ int places[32];
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    if (at < 0) value = -INFINITY, at = INT_MAX;
    warp_first_maximum(value, at);
    __syncthreads();
    if (lane == 0) values[threadIdx.x / 32] = value, places[threadIdx.x / 32] = at;
    __syncthreads();
    value = lane < warps ? values[lane] : -INFINITY;
    at = lane < warps ? places[lane] : INT_MAX;
    warp_first_maximum(value, at);
}

/* entropy_row for a whole block. */
template <typename T>
__device__ static float wide_row(const entropy &e, const T *x, const void *target, int64_t row, float *saved, bool &hit)
{
    __shared__ float shared[32];
    const T *soft = e.soft ? (const T *)target + row * e.width : NULL;
    row_sums r = {-FLT_MAX, 0.0f, 0.0f, 0.0f, 0.0f, -1};
    float most = -INFINITY; /* of the soft target, and its position */
    int truth = -1;
    for_row(x, e.width, [&](int k, auto v) {
        constexpr int V = (int)(sizeof v / sizeof(float));
        take<T>(r, v, k);
#pragma unroll
        for (int i = 0; i < V && e.smoothing > 0.0f; i++) r.plain += v.v[i];
#pragma unroll
        for (int i = 0; i < V && soft; i++) {
            const float t = load(soft, k + i);
            r.mass += t;
            r.product += t * v.v[i];
            if (t > most || truth < 0) most = t, truth = k + i;
        }
    });
    while (r.at >= 0 && r.at + 1 < e.width && load(x, r.at) != r.top) r.at++; /* among its neighbours */
    const float mine = r.top;
    block_first_maximum(r.top, r.at);
    const float top = fmaxf(r.top, -FLT_MAX), sum = block_sum(r.sum * exponential<T>(mine - top), shared);
    const float log_sum = top + logf(sum);
    float cost;
    if (soft) {
        block_first_maximum(most, truth);
        cost = log_sum * block_sum(r.mass, shared) - block_sum(r.product, shared);
    } else {
        const label_pair p = labels_of(e, target, row);
        truth = p.share < p.rest ? p.partner : p.own;
        cost = pair_cost(p, x, e.width, 0.0f, log_sum);
    }
    if (e.smoothing > 0.0f)
        cost = (1.0f - e.smoothing) * cost + e.smoothing * (log_sum - block_sum(r.plain, shared) / (float)e.width);
    if (saved && threadIdx.x == 0) saved[0] = top, saved[1] = 1.0f / sum;
    hit = r.at == truth;
    return cost;
}

/* A block owns a row, then the one gridDim.x further. */
template <typename T>
static __global__ void __launch_bounds__(WIDE_THREADS)
    wide_kernel(entropy e, const T *x, const void *target, float *saved, part_sum *parts, abar_loss *result)
{
    part_sum mine = {};
    chain_wait();
    for (int64_t row = blockIdx.x; row < e.valid; row += gridDim.x) {
        bool hit;
        const float cost = wide_row(e, x + row * e.pitch, target, row, saved ? saved + 2 * row : NULL, hit);
        if (threadIdx.x == 0) mine.loss += cost, mine.correct += hit;
    }
    leave(mine, parts, (double)e.valid, e.valid, result);
}

/* As entropy_grad_kernel. dx has the same alignment as x. */
template <typename T>
static __global__ void __launch_bounds__(WIDE_THREADS)
    wide_grad_kernel(entropy e, const T *x, const void *target, const float *saved, float share, T *dx)
{
    const int64_t row = blockIdx.x;
    x += row * e.pitch;
    dx += row * e.pitch;
    const bool counts = row < e.valid;
    chain_wait();
    const float top = counts ? saved[2 * row] : 0.0f, by_sum = counts ? saved[2 * row + 1] : 0.0f;
    const T *soft = e.soft ? (const T *)target + row * e.width : NULL;
    const label_pair p = counts && !e.soft ? labels_of(e, target, row) : label_pair{-1, -1, 0.0f, 0.0f};
    const float factor = by_sum * share, sure = (1.0f - e.smoothing) * share, even = e.smoothing / (float)e.width * share;
    for_row(x, e.width, [&](int k, auto v) {
        constexpr int V = (int)(sizeof v / sizeof(float));
#pragma unroll
        for (int i = 0; i < V; i++) v.v[i] = counts ? exponential<T>(v.v[i] - top) * factor - even : 0.0f;
        if (soft && counts) {
#pragma unroll
            for (int i = 0; i < V; i++) v.v[i] -= sure * load(soft, k + i);
        } else if ((p.own >= k && p.own < k + V) || (p.partner >= k && p.partner < k + V)) {
#pragma unroll
            for (int i = 0; i < V; i++) v.v[i] -= sure * share_of(p, k + i);
        }
        store_lanes<V>(dx + k, v);
    });
}

/* ---- the operation --------------------------------------------------------------------------------------------------- */

/* A sample has one row of logits, or T rows. */
static int64_t rows_a_sample(const abar__op *op) { return op->desc.in[0].ndim == 3 ? op->desc.in[0].dim[1] : 1; }

static entropy entropy_of(const abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    const int64_t width = d->in[0].dim[d->in[0].ndim - 1], each = rows_a_sample(op);
    const int64_t pitch = abar__row_pitch(op->dev, width, op->in_layout[0]);
    return {d->in[0].dim[0] * each,          a->run->valid * each, pitch, (int)width, (float)d->smoothing, d->soft_targets,
            d->label_pairs ? a->share : NULL};
}

static abar_status entropy_create(abar__op *op)
{
    ABAR_TRY(create(op));
    if (op->desc.in_layout[0] == ABAR_LAYOUT_PADDED) op->in_layout[0] = ABAR_LAYOUT_PADDED;
    op->saved_bytes = (size_t)(op->desc.in[0].dim[0] * rows_a_sample(op)) * 2 * sizeof(float);
    return ABAR_OK;
}

template <typename T> static int entropy_launch(abar__op *op, const abar__op_args *a, const entropy &e)
{
    const bool wide = e.width >= WIDE;
    const int parts = wide                         ? parts_for(e.valid, 1)
                      : e.valid * e.width <= 65536 ? 1 /* a second kernel costs more than one block */
                                                   : parts_for(e.valid, WARPS);
    abar__cuda_launch_chained(op->dev, wide ? wide_kernel<T> : entropy_kernel<T>, dim3((unsigned)parts),
                              dim3(wide ? WIDE_THREADS : THREADS), 0, e, (const T *)a->x[0], a->target, (float *)a->saved,
                              (part_sum *)a->scratch, a->result);
    return parts;
}

static abar_status entropy_forward(abar__op *op, const abar__op_args *a)
{
    const entropy e = entropy_of(op, a);
    if (a->run->draw_labels)
        abar__cuda_draw_labels(op->dev, a->run, a->x[0], e.valid, e.pitch, e.width, a->run->sample0 * rows_a_sample(op),
                               (int32_t *)(uintptr_t)a->target); /* the net's own memory */
    if (a->run->one_class) abar__cuda_set_labels(op->dev, a->run, e.valid, (int32_t *)(uintptr_t)a->target);
    const int parts = abar__cuda_is_bf16(op->dev) ? entropy_launch<bf16>(op, a, e) : entropy_launch<float>(op, a, e);
    return join(op, a, parts, (double)e.valid, e.valid);
}

template <typename T> static void entropy_grad_launch(abar__op *op, const abar__op_args *a, const entropy &e)
{
    const bool wide = e.width >= WIDE;
    const float share = e.valid > 0 ? (float)(a->run->loss_scale / (double)e.valid) : 0.0f;
    abar__cuda_launch_chained(op->dev, wide ? wide_grad_kernel<T> : entropy_grad_kernel<T>, dim3((unsigned)e.rows),
                              dim3(wide             ? WIDE_THREADS
                                   : e.width <= 32  ? 32
                                   : e.width <= 128 ? 128
                                                    : 256),
                              0, e, (const T *)a->x[0], a->target, (const float *)a->saved, share, (T *)a->dx[0]);
}

static abar_status entropy_backward(abar__op *op, const abar__op_args *a)
{
    if (!a->dx[0]) return ABAR_OK;
    const entropy e = entropy_of(op, a);
    if (abar__cuda_is_bf16(op->dev))
        entropy_grad_launch<bf16>(op, a, e);
    else
        entropy_grad_launch<float>(op, a, e);
    if (a->run->one_class)
        abar__cuda_weigh_by_class(op->dev, a->run, a->x[0], (const float *)a->saved, e.valid, e.pitch, e.width, a->dx[0]);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_softmax_cross_entropy = {
    "cuda-softmax-cross-entropy", ABAR_OP_SOFTMAX_CROSS_ENTROPY, entropy_create, entropy_forward, entropy_backward, NULL};

/* ---- squared error: mean over all elements of the valid samples ------------------------------------------------------ */

/* A thread owns every (THREADS * gridDim.x)-th of the first n elements. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    square_kernel(int64_t n, int64_t valid, const T *x, const T *target, part_sum *parts, abar_loss *result)
{
    part_sum mine = {};
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
        const double d = (double)(load(x, i) - load(target, i));
        mine.loss += d * d;
    }
    leave(mine, parts, (double)n, valid, result);
}

/* A thread owns one element; the gradient is zero from the n-th on. */
template <typename T>
static __global__ void square_grad_kernel(int64_t all, int64_t n, float factor, const T *x, const T *target, T *dx)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < all) store(dx, i, i < n ? (load(x, i) - load(target, i)) * factor : 0.0f);
}

static int64_t elements_that_count(const abar__op *op, const abar__op_args *a)
{
    return abar__shape_count(&op->desc.in[0]) / op->desc.in[0].dim[0] * a->run->valid;
}

static abar_status square_forward(abar__op *op, const abar__op_args *a)
{
    const int64_t n = elements_that_count(op, a);
    const int parts = parts_for(n, 32 * THREADS);
    if (abar__cuda_is_bf16(op->dev))
        abar__cuda_launch(op->dev, square_kernel<bf16>, dim3((unsigned)parts), dim3(THREADS), 0, n, a->run->valid,
                          (const bf16 *)a->x[0], (const bf16 *)a->target, (part_sum *)a->scratch, a->result);
    else
        abar__cuda_launch(op->dev, square_kernel<float>, dim3((unsigned)parts), dim3(THREADS), 0, n, a->run->valid,
                          (const float *)a->x[0], (const float *)a->target, (part_sum *)a->scratch, a->result);
    return join(op, a, parts, (double)n, a->run->valid);
}

static abar_status square_backward(abar__op *op, const abar__op_args *a)
{
    if (!a->dx[0]) return ABAR_OK;
    const int64_t all = abar__shape_count(&op->desc.in[0]), n = elements_that_count(op, a);
    const float factor = n > 0 ? (float)(2.0 * a->run->loss_scale / (double)n) : 0.0f;
    const dim3 grid((unsigned)abar__cuda_blocks(all, ABAR_CUDA_THREADS));
    if (abar__cuda_is_bf16(op->dev))
        abar__cuda_launch(op->dev, square_grad_kernel<bf16>, grid, dim3(ABAR_CUDA_THREADS), 0, all, n, factor,
                          (const bf16 *)a->x[0], (const bf16 *)a->target, (bf16 *)a->dx[0]);
    else
        abar__cuda_launch(op->dev, square_grad_kernel<float>, grid, dim3(ABAR_CUDA_THREADS), 0, all, n, factor,
                          (const float *)a->x[0], (const float *)a->target, (float *)a->dx[0]);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_squared_error = {"cuda-squared-error", ABAR_OP_SQUARED_ERROR, create,
                                                square_forward,       square_backward,       NULL};
