/* Embedding: y[n, t] = table[token[n, t]] + positions[t]. Its gradients sum over all places of a token, in their order,
 * without a sort. For a small vocabulary the sums are in shared memory, one slab of places after another; for a large one
 * the first place of each token searches for the others up to the last. A token outside the vocabulary yields a NaN and no
 * gradient, without host synchronisation. */
#include "device/cuda/nn/bias_relu.h"
#include "device/cuda/nn/sequence.h"

#include <limits.h>
#include <math.h>

enum { COLUMNS = 32, LANES = 4, SMALL_VOCABULARY = 192, MAX_SLABS = 64, SEARCH = 256, LIST = 512, AHEAD = 4 };

/* ---- forward ------------------------------------------------------------------------------------------------------ */

/* A thread owns V neighbouring columns of one place. */
template <typename T, int V>
static __global__ void embed_kernel(int64_t units, int tokens, int width, int64_t vocabulary, const int32_t *token,
                                    const float *table, const float *positions, T *y)
{
    const int64_t u = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (u >= units) return;
    const int64_t at = u * V, place = at / width;
    const int c = (int)(at % width);
    const int32_t which = token[place];
    const bool known = which >= 0 && which < vocabulary;
    const lanes<V> row = load_floats<V>(table + (known ? which : 0) * (int64_t)width + c);
    lanes<V> v = load_floats<V>(positions + place % tokens * width + c);
#pragma unroll
    for (int k = 0; k < V; k++) v.v[k] = known ? row.v[k] + v.v[k] : NAN;
    store_lanes<V>(y + at, v);
}

template <typename T> static void embed(abar__op *op, const abar__op_args *a)
{
    const int tokens = (int)op->desc.out.dim[1], width = (int)op->desc.out.dim[2];
    const bool packs = width % pack<T>::n == 0;
    const int64_t units = abar__shape_count(&op->desc.out) / (packs ? pack<T>::n : 1);
    const dim3 grid((unsigned)abar__cuda_blocks(units, ABAR_CUDA_THREADS));
    if (packs)
        abar__cuda_launch(op->dev, embed_kernel<T, pack<T>::n>, grid, dim3(ABAR_CUDA_THREADS), 0, units, tokens, width,
                          op->desc.vocabulary, (const int32_t *)a->x[0], (const float *)a->param[0], (const float *)a->param[1],
                          (T *)a->y);
    else
        abar__cuda_launch(op->dev, embed_kernel<T, 1>, grid, dim3(ABAR_CUDA_THREADS), 0, units, tokens, width,
                          op->desc.vocabulary, (const int32_t *)a->x[0], (const float *)a->param[0], (const float *)a->param[1],
                          (T *)a->y);
}

/* ---- the gradient of a small table ---------------------------------------------------------------------------------- */

/* partial (slabs, vocabulary, width): sums of dy over the places of a slab, by token. Threads (COLUMNS, LANES): blockIdx.x and
 * threadIdx.x choose a column, blockIdx.y the slab, threadIdx.y every LANES-th place of it, with sums of its own. */
template <typename T>
static __global__ void small_kernel(int64_t places, int width, int vocabulary, const int32_t *token, const T *dy,
                                    float *partial)
{
    extern __shared__ float sums[]; /* (LANES, vocabulary, COLUMNS) */
    const int c = blockIdx.x * COLUMNS + threadIdx.x, table = vocabulary * COLUMNS;
    const int64_t begin = places * blockIdx.y / gridDim.y, end = places * (blockIdx.y + 1) / gridDim.y;
    float *mine = sums + threadIdx.y * table + threadIdx.x;
    for (int v = 0; v < vocabulary; v++) mine[v * COLUMNS] = 0.0f;
    for (int64_t r = begin + threadIdx.y; r < end; r += LANES) {
        const int32_t which = token[r];
        if (c < width && which >= 0 && which < vocabulary) mine[which * COLUMNS] += load(dy, r * width + c);
    }
    __syncthreads();
    if (c >= width) return;
    for (int v = threadIdx.y; v < vocabulary; v += LANES) {
        const float *from = sums + v * COLUMNS + threadIdx.x;
        float sum = 0.0f;
        for (int l = 0; l < LANES; l++) sum += from[l * table];
        partial[((int64_t)blockIdx.y * vocabulary + v) * width + c] = sum;
    }
}

static int64_t places_of(const abar__op *op) { return abar__shape_count(&op->desc.in[0]); }
static bool is_small(const abar__op *op) { return op->desc.vocabulary <= SMALL_VOCABULARY; }

static int slabs_of(const abar__op *op)
{
    const int64_t slabs = abar__cuda_blocks(places_of(op), 64);
    return slabs < MAX_SLABS ? (int)slabs : MAX_SLABS;
}

static size_t small_bytes(const abar__op *op) { return (size_t)(LANES * op->desc.vocabulary * COLUMNS) * sizeof(float); }

template <typename T> static void small_gradient(abar__op *op, const abar__op_args *a, float *dtable, bool add)
{
    const int width = (int)op->desc.out.dim[2], vocabulary = (int)op->desc.vocabulary, slabs = slabs_of(op);
    abar__cuda_launch(op->dev, small_kernel<T>, dim3((unsigned)abar__cuda_blocks(width, COLUMNS), (unsigned)slabs),
                      dim3(COLUMNS, LANES), small_bytes(op), places_of(op), width, vocabulary, (const int32_t *)a->x[0],
                      (const T *)a->dy, (float *)a->scratch);
    abar__cuda_join_slices(op->dev, (const float *)a->scratch, slabs, (int64_t)vocabulary * width, dtable, add);
}

/* ---- the gradient of a large table ---------------------------------------------------------------------------------- */

/* For every token of the vocabulary that occurs: its first place, and the complement of its last. Both are minima, which
 * start from all bits set. */
typedef struct extent {
    unsigned first, last;
} extent;

/* A thread owns a place. Minima do not depend on the order in which they are taken. */
static __global__ void find_extents(int64_t places, int64_t vocabulary, const int32_t *token, extent *extents)
{
    const int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= places || token[r] < 0 || token[r] >= vocabulary) return;
    extent *e = &extents[token[r]];
    atomicMin(&e->first, (unsigned)r);
    atomicMin(&e->last, ~(unsigned)r);
}

/* Appends to list those of SEARCH places from `from` on, before `end`, that have the token, in order; returns the new length
 * of the list. */
__device__ static int gather(const int32_t *token, int64_t end, int64_t from, int32_t which, int *list, int length)
{
    __shared__ int counts[SEARCH / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t r = from + threadIdx.x;
    const bool mine = r < end && token[r] == which;
    const unsigned votes = __ballot_sync(0xffffffffu, mine);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int before = length, all = length;
    for (int w = 0; w < SEARCH / 32; w++) {
        if (w < warp) before += counts[w];
        all += counts[w];
    }
    if (mine) list[before + __popc(votes & ((1u << lane) - 1u))] = (int)r;
    __syncthreads();
    return all;
}

/* sum += the places list[first], list[first + step], .. of dy; AHEAD of them are loaded before the first is added. */
template <int V, typename T>
__device__ static inline void add_places(const T *dy, int width, const int *list, int first, int step, int length,
                                         lanes<V> *sum)
{
    for (int i = first; i < length; i += AHEAD * step) {
        lanes<V> v[AHEAD] = {};
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * step < length) v[j] = load_lanes<V>(dy + (int64_t)list[i + j * step] * width);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
#pragma unroll
            for (int k = 0; k < V; k++) sum->v[k] += v[j].v[k];
    }
}

/* dtable[token] += the sum of dy over the places of that token. blockIdx.x is a place, which works only if it is the first
 * of its token; a thread owns V neighbouring columns, and one of blockDim / (width / V) parts of the places. shared: the
 * sums. */
template <typename T, int V>
static __global__ void __launch_bounds__(SEARCH)
    large_kernel(int width, int64_t vocabulary, const int32_t *token, const extent *extents, const T *dy, float *dtable)
{
    extern __shared__ float shared[]; /* (groups, columns of this block) */
    __shared__ int list[LIST];
    const int32_t which = token[blockIdx.x];
    if (which < 0 || which >= vocabulary || extents[which].first != blockIdx.x) return;
    const int64_t end = (int64_t)~extents[which].last + 1;
    const int units = min(width / V, (int)SEARCH), groups = SEARCH / units, group = threadIdx.x / units;
    for (int first = 0; first < width; first += units * V) {
        const int c = first + (int)threadIdx.x % units * V;
        const bool works = group < groups && c < width;
        lanes<V> sum = {};
        int length = 0;
        for (int64_t from = blockIdx.x; from < end; from += SEARCH) {
            length = gather(token, end, from, which, list, length);
            if (length + SEARCH <= LIST && from + SEARCH < end) continue;
            if (works) add_places<V>(dy + c, width, list, group, groups, length, &sum);
            length = 0;
            __syncthreads();
        }
        if (works) {
#pragma unroll
            for (int k = 0; k < V; k++) shared[group * units * V + c - first + k] = sum.v[k];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < units * V && first + i < width; i += SEARCH) {
            float all = 0.0f;
            for (int g = 0; g < groups; g++) all += shared[g * units * V + i];
            dtable[(int64_t)which * width + first + i] += all;
        }
        __syncthreads();
    }
}

static size_t extent_bytes(const abar__op *op) { return (size_t)op->desc.vocabulary * sizeof(extent); }

template <typename T, int V> static void large_launch(abar__op *op, const abar__op_args *a, float *dtable)
{
    const int width = (int)op->desc.out.dim[2];
    abar__cuda_launch(op->dev, large_kernel<T, V>, dim3((unsigned)places_of(op)), dim3(SEARCH), SEARCH * V * sizeof(float),
                      width, op->desc.vocabulary, (const int32_t *)a->x[0], (const extent *)a->scratch, (const T *)a->dy,
                      dtable);
}

template <typename T> static void large_gradient(abar__op *op, const abar__op_args *a, float *dtable)
{
    abar__cuda_launch(op->dev, find_extents, dim3((unsigned)abar__cuda_blocks(places_of(op), SEARCH)), dim3(SEARCH), 0,
                      places_of(op), op->desc.vocabulary, (const int32_t *)a->x[0], (extent *)a->scratch);
    if (op->desc.out.dim[2] % pack<T>::n == 0)
        large_launch<T, pack<T>::n>(op, a, dtable);
    else
        large_launch<T, 1>(op, a, dtable);
}

/* ---- the operation ------------------------------------------------------------------------------------------------- */

static abar_status create(abar__op *op)
{
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = ABAR_NEEDS_X; /* the tokens */
    if (!is_small(op)) {
        if (places_of(op) > INT_MAX) return ABAR_E_UNSUPPORTED;
        op->scratch_bytes = extent_bytes(op);
    } else {
        const void *kernel = abar__cuda_is_bf16(op->dev) ? (const void *)small_kernel<bf16> : (const void *)small_kernel<float>;
        CUDA_TRY(op->dev, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)abar__cuda_of(op->dev)->shared_memory));
        op->scratch_bytes = (size_t)(slabs_of(op) * op->desc.vocabulary * op->desc.out.dim[2]) * sizeof(float);
    }
    return ABAR_OK;
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        embed<bf16>(op, a);
    else
        embed<float>(op, a);
    return abar__cuda_status(op->dev);
}

static abar_status table_gradient(abar__op *op, const abar__op_args *a)
{
    const cudaStream_t stream = abar__cuda_of(op->dev)->stream;
    float *dtable = (float *)a->dparam[0];
    const bool add = a->accumulate || a->table_written, half = abar__cuda_is_bf16(op->dev);
    const size_t bytes = (size_t)(op->desc.vocabulary * op->desc.out.dim[2]) * sizeof(float);
    if (is_small(op)) {
        half ? small_gradient<bf16>(op, a, dtable, add) : small_gradient<float>(op, a, dtable, add);
        return ABAR_OK;
    }
    if (!add) CUDA_TRY(op->dev, cudaMemsetAsync(dtable, 0, bytes, stream));
    CUDA_TRY(op->dev, cudaMemsetAsync(a->scratch, 0xff, extent_bytes(op), stream));
    half ? large_gradient<bf16>(op, a, dtable) : large_gradient<float>(op, a, dtable);
    return ABAR_OK;
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const int64_t used = op->desc.out.dim[1] * op->desc.out.dim[2], all = op->desc.positions * op->desc.out.dim[2];
    float *dpositions = (float *)a->dparam[1];
    if (a->dparam[0]) ABAR_TRY(table_gradient(op, a));
    abar__cuda_sum_samples(op->dev, op->desc.out.dim[0], used, a->dy, a->accumulate, dpositions);
    if (dpositions && !a->accumulate && all > used)
        CUDA_TRY(op->dev,
                 cudaMemsetAsync(dpositions + used, 0, (size_t)(all - used) * sizeof(float), abar__cuda_of(op->dev)->stream));
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_embedding = {"cuda-embedding", ABAR_OP_EMBEDDING, create, forward, backward, NULL};
