/* Batch norm, optionally with an added residual and a ReLU: y = relu((x - mean) rstd scale + shift + residual). With g = (dy
 * + dy2) masked by the ReLU: dresidual = g, dx = scale rstd (g - mean(g) - xh mean(g xh)), xh = (x - mean) rstd.
 *
 * The value is (rows, channels) in memory. It is cut into tiles of channels and slabs of rows, a block each. Forward and
 * backward have two phases: sums over every slab, written to scratch, then the elementwise part, before which each block
 * adds the sums of its channels over all slabs in order. Where a slab fits into shared memory, both phases are one kernel
 * with a barrier over the grid between them, and memory is read once; else they are two kernels. Moments that a
 * concatenation or a convolution has computed are used as they are. Without a residual the ReLU's mask is computed from x
 * again, and y is not read at all. x may be some channels of a wider value, and dx may be added to an existing gradient.
 * saved: the means, then the reciprocal deviations. */
#include "device/cuda/nn/norm/batch_norm_phases.h"

#include <cooperative_groups.h>

#define SMALL ((size_t)16 << 20) /* bytes: values up to this size stay in the L2 cache and need not be read in long lines */

extern __shared__ uint4 kept_words[]; /* x, and in backward g, kept between the phases of a single kernel */

/* ---- forward ---------------------------------------------------------------------------------------------------- */

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1) moments_kernel(cut k, const T *x, float2 *partial)
{
    chain_wait();
    take_moments<T, V, false>(k, x, NULL, NULL, 0, partial);
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    normalise_kernel(cut k, cut taken, statistics s, bool relu, const T *x, const T *residual, T *y)
{
    __shared__ affine tile[MAX_TILE];
    const own o = own_of<V>(k);
    inputs<T, V> first;
    chain_wait();
    fetch_inputs<T, V>(k, o, x, NULL, residual, o.count - 1, first);
    settle_statistics<V>(k, taken, s, tile);
    normalise<T, V>(k, o, tile, relu, x, NULL, residual, first, y);
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    whole_forward_kernel(cut k, statistics s, bool relu, const T *x, const T *residual, float2 *partial, T *y)
{
    __shared__ affine tile[MAX_TILE];
    const own o = own_of<V>(k);
    inputs<T, V> first;
    take_moments<T, V, true>(k, x, kept_words, NULL, 0, partial);
    fetch_inputs<T, V>(k, o, x, kept_words, residual, o.count - 1, first);
    cooperative_groups::this_grid().sync();
    settle_statistics<V>(k, k, s, tile);
    normalise<T, V>(k, o, tile, relu, x, kept_words, residual, first, y);
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    sums_kernel(cut k, streams<T> s, coefficients f, T *dresidual, float2 *partial)
{
    chain_wait();
    sum_gradients<T, V, false>(k, s, f, dresidual, NULL, NULL, partial);
}

/* dx NULL: computes only the gradients of the parameters. */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    input_kernel(cut k, streams<T> s, coefficients f, gradients p, T *dresidual, bool add, T *dx)
{
    __shared__ affine tile[MAX_TILE];
    __shared__ slopes slope[MAX_TILE];
    const own o = own_of<V>(k);
    words<T, V> first[GRADS_AHEAD];
    chain_wait();
    if (dx) fetch_rows(k, o, s, o.count - 1, first);
    settle_gradients<V>(k, f, p, tile, slope);
    if (dx) input_gradient<T, V, false>(k, tile, slope, s, NULL, NULL, first, dresidual, add, dx);
}

/* slots: the largest number of rows that a thread keeps. */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    whole_backward_kernel(cut k, int slots, streams<T> s, coefficients f, gradients p, float2 *partial, T *dresidual, bool add,
                          T *dx)
{
    __shared__ affine tile[MAX_TILE];
    __shared__ slopes slope[MAX_TILE];
    uint4 *kept_g = kept_words + slots * THREADS;
    sum_gradients<T, V, true>(k, s, f, dresidual, kept_words, kept_g, partial);
    cooperative_groups::this_grid().sync();
    settle_gradients<V>(k, f, p, tile, slope);
    if (dx) input_gradient<T, V, true>(k, tile, slope, s, kept_words, kept_g, NULL, NULL, add, dx);
}

/* ---- the operation ------------------------------------------------------------------------------------------------------ */

typedef struct batch_norm {
    cut k;
    int tiles, slots;
    bool vectors;
    size_t forward_shared, backward_shared; /* bytes of the single kernel; 0: two kernels */
} batch_norm;

/* One block per multiprocessor, as far as tiles and slabs allow: picks the tile width that keeps most of them busy. Among
 * equals a small value gets narrow tiles, whose few sums are added quickly, and a large one wide tiles, which are read in
 * long lines. */
static int choose_across(int64_t groups, bool small, int processors)
{
    int best = 1;
    int64_t most = 0;
    if (groups == 1) return 0;
    for (int i = 0; i < 3; i++) {
        const int across = small ? 1 + i : 3 - i;
        if (across > 1 && groups % (1 << across) != 0) continue;
        const int64_t tiles = abar__cuda_blocks(groups, 1 << across), slabs = tiles < processors ? processors / tiles : 1;
        if (tiles * slabs <= most) continue;
        most = tiles * slabs;
        best = across;
    }
    return best;
}

static batch_norm plan(const abar__op *op)
{
    const abar__shape *s = &op->desc.in[0];
    const int64_t channels = s->dim[1], rows = abar__shape_count(s) / channels;
    const int processors = abar__cuda_of(op->dev)->processors, pack_size = (int)(16 / abar_dtype_size(op->dev->activation));
    batch_norm b = {};
    b.vectors = channels % pack_size == 0;
    const int64_t groups = b.vectors ? channels / pack_size : channels;
    const bool small = abar__shape_bytes(op->dev, s, op->in_layout[0]) <= SMALL;
    b.k.across = b.vectors ? choose_across(groups, small, processors) : 3; /* single elements: some columns may be idle */
    b.tiles = (int)abar__cuda_blocks(groups, 1 << b.k.across);
    const int64_t most = abar__cuda_blocks(rows, THREADS >> b.k.across);
    int64_t slabs = b.tiles < processors ? processors / b.tiles : 1;
    if (slabs > most) slabs = most;
    b.k.share = rows / slabs;
    b.k.rest = rows % slabs;
    b.k.channels = (int)channels;
    b.k.slabs = (int)slabs;
    b.k.per = 1.0 / (double)rows;
    b.k.unbias = rows > 1 ? (double)rows / (double)(rows - 1) : 0.0;
    b.slots = (int)abar__cuda_blocks(abar__cuda_blocks(rows, slabs), THREADS >> b.k.across);
    return b;
}

/* Whether all blocks of the single kernel can be resident at once with so many bytes of shared memory each. */
static abar_status fits(const abar__op *op, const batch_norm *b, const void *kernel, size_t bytes, bool *out)
{
    const abar__cuda *cuda = abar__cuda_of(op->dev);
    cudaFuncAttributes of;
    int blocks;
    *out = false;
    CUDA_TRY(op->dev, cudaFuncGetAttributes(&of, kernel));
    if (of.sharedSizeBytes + bytes > cuda->shared_memory) return ABAR_OK;
    CUDA_TRY(op->dev, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)(cuda->shared_memory - of.sharedSizeBytes)));
    CUDA_TRY(op->dev, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, THREADS, bytes));
    *out = (int64_t)b->tiles * b->k.slabs <= (int64_t)blocks * cuda->processors;
    return ABAR_OK;
}

template <typename T> static abar_status plan_whole(const abar__op *op, batch_norm *b)
{
    const size_t bytes = (size_t)b->slots * THREADS * sizeof(uint4);
    bool forward, backward;
    ABAR_TRY(fits(op, b, (const void *)whole_forward_kernel<T, pack<T>::n>, bytes, &forward));
    ABAR_TRY(fits(op, b, (const void *)whole_backward_kernel<T, pack<T>::n>, 2 * bytes, &backward));
    if (forward) b->forward_shared = bytes;
    if (backward) b->backward_shared = 2 * bytes;
    return ABAR_OK;
}

static abar_status create(abar__op *op)
{
    const abar__op_desc *d = &op->desc;
    if (d->activation != ABAR_ACT_NONE && d->activation != ABAR_ACT_RELU) return ABAR_E_UNSUPPORTED;
    op->in_layout[0] = op->out_layout = abar__cuda_layout(&d->in[0]);
    if (d->residual) op->in_layout[1] = op->in_layout[0];
    batch_norm b = plan(op);
    if (b.vectors) ABAR_TRY(abar__cuda_is_bf16(op->dev) ? plan_whole<bf16>(op, &b) : plan_whole<float>(op, &b));
    op->takes_dy2 = true;
    op->takes_sums = b.vectors && abar__cuda_is_bf16(op->dev) && d->in[0].ndim == 4 && d->need_dx[0];
    op->view_align = d->in[0].ndim != 4 ? 0 : b.vectors ? (int)(16 / abar_dtype_size(op->dev->activation)) : 1;
    if (op->view_align) op->moment_bytes = moment_bytes(&d->in[0]);
    op->backward_needs = ABAR_NEEDS_X | (d->residual && d->activation == ABAR_ACT_RELU ? ABAR_NEEDS_Y : 0);
    op->saved_bytes = 2 * (size_t)b.k.channels * sizeof(float);
    op->scratch_bytes = (size_t)b.k.channels * (size_t)b.k.slabs * sizeof(float2);
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof b, &op->priv));
    op->priv_bytes = sizeof b;
    *(batch_norm *)op->priv = b;
    return ABAR_OK;
}

/* Launches a kernel whose blocks are all resident at once and may wait for each other. */
template <typename... Parameters, typename... Arguments>
static void launch_whole(abar_device *dev, void (*kernel)(Parameters...), dim3 grid, size_t shared, Arguments... arguments)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared;
    config.stream = cuda->stream;
    config.attrs = &together;
    config.numAttrs = 1;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
    if (error != cudaSuccess && cuda->failure == cudaSuccess) cuda->failure = error;
}

/* As planned, for the pitch of this x. */
static cut cut_of(const abar__op *op, const abar__op_args *a)
{
    cut k = ((const batch_norm *)op->priv)->k;
    k.pitch = a->x_pitch[0] ? (int)a->x_pitch[0] : k.channels;
    return k;
}

/* How the moments are cut that others have computed. */
template <int V> static cut given_cut(const abar__op *op, const abar__op_args *a, const cut &k)
{
    cut taken = moments_cut(abar__shape_count(&op->desc.in[0]) / k.channels, k.channels, V > 1);
    if (a->moment_parts) taken.slabs = a->moment_parts;
    return taken;
}

template <typename T, int V> static void forward_as(abar__op *op, const abar__op_args *a)
{
    const batch_norm *b = (const batch_norm *)op->priv;
    const cut k = cut_of(op, a);
    const bool relu = op->desc.activation == ABAR_ACT_RELU;
    const dim3 grid((unsigned)b->tiles, (unsigned)b->k.slabs);
    const T *x = (const T *)a->x[0], *residual = op->desc.residual ? (const T *)a->x[1] : NULL;
    const bool given = a->moments && a->run->training;
    float2 *partial = given ? (float2 *)a->moments : (float2 *)a->scratch;
    const statistics s = {partial,
                          given && a->moment_parts ? (const float *)(partial + (int64_t)k.channels * a->moment_parts) : NULL,
                          (float *)a->buffer[0],
                          (float *)a->buffer[1],
                          (const float *)a->param[0],
                          (const float *)a->param[1],
                          (float *)a->saved,
                          op->desc.eps,
                          a->run->own ? 1.0 : op->desc.momentum, /* 1: the batch's alone */
                          a->run->training};
    if constexpr (V > 1)
        if (s.training && !given && b->forward_shared) {
            launch_whole(op->dev, whole_forward_kernel<T, V>, grid, b->forward_shared, k, s, relu, x, residual, partial,
                         (T *)a->y);
            return;
        }
    if (s.training && !given) abar__cuda_launch_chained(op->dev, moments_kernel<T, V>, grid, dim3(THREADS), 0, k, x, partial);
    abar__cuda_launch_chained(op->dev, normalise_kernel<T, V>, grid, dim3(THREADS), 0, k, given ? given_cut<V>(op, a, k) : k, s,
                              relu, x, residual, (T *)a->y);
}

template <typename T, int V> static void backward_as(abar__op *op, const abar__op_args *a)
{
    const batch_norm *b = (const batch_norm *)op->priv;
    const cut k = cut_of(op, a);
    const bool relu = op->desc.activation == ABAR_ACT_RELU;
    const dim3 grid((unsigned)b->tiles, (unsigned)b->k.slabs);
    float2 *partial = (float2 *)(a->sums ? a->sums : a->scratch);
    T *dx = (T *)a->dx[0], *dresidual = op->desc.residual ? (T *)a->dx[1] : NULL;
    const coefficients f = {(const float *)a->param[0], (const float *)a->param[1], (const float *)a->saved};
    const gradients p = {
        partial,         a->sums ? a->sum_parts : k.slabs, (float *)a->dparam[0], (float *)a->dparam[1], a->accumulate,
        a->run->training};
    streams<T> s = {(const T *)a->x[0], (const T *)a->dy, (const T *)a->dy2, NULL, MASK_NONE};
    if (relu) s.by = op->desc.residual ? MASK_BY_Y : MASK_BY_X;
    if (s.by == MASK_BY_Y) s.y = (const T *)a->y;
    if constexpr (V > 1)
        if (b->backward_shared && !a->sums) {
            launch_whole(op->dev, whole_backward_kernel<T, V>, grid, b->backward_shared, k, b->slots, s, f, p, partial,
                         dresidual, a->add_dx, dx);
            return;
        }
    if (!a->sums) {
        abar__cuda_launch_chained(op->dev, sums_kernel<T, V>, grid, dim3(THREADS), 0, k, s, f, dresidual, partial);
        if (dresidual) s = {s.x, dresidual, NULL, NULL, MASK_NONE}; /* g, as it was written */
        dresidual = NULL;
    }
    abar__cuda_launch_chained(op->dev, input_kernel<T, V>, dx ? grid : dim3(grid.x), dim3(THREADS), 0, k, s, f, p, dresidual,
                              a->add_dx, dx);
}

template <typename T> static void run_as(abar__op *op, const abar__op_args *a, bool back)
{
    const bool vectors = ((const batch_norm *)op->priv)->vectors;
    if (back && vectors)
        backward_as<T, pack<T>::n>(op, a);
    else if (back)
        backward_as<T, 1>(op, a);
    else if (vectors)
        forward_as<T, pack<T>::n>(op, a);
    else
        forward_as<T, 1>(op, a);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        run_as<bf16>(op, a, false);
    else
        run_as<float>(op, a, false);
    return abar__cuda_status(op->dev);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        run_as<bf16>(op, a, true);
    else
        run_as<float>(op, a, true);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_batch_norm = {"cuda-batch-norm", ABAR_OP_BATCH_NORM, create, forward, backward, NULL};
