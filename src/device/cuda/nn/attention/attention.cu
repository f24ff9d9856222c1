/* The attention operation: picks its kernels when it is created (attention.h), and adds up their partial results. */
#include "device/cuda/nn/attention/attention.h"

#define DELTA_WARPS 8

typedef struct attention_plan {
    const attention_kernels *kernels;
    attention a; /* without the random key of a run */
    int blocks;
} attention_plan;

abar_status abar__attention_allow(abar_device *dev, const void *kernel, size_t bytes)
{
    cudaFuncAttributes of;
    CUDA_TRY(dev, cudaFuncGetAttributes(&of, kernel));
    if (of.sharedSizeBytes + bytes > abar__cuda_of(dev)->shared_memory) return ABAR_E_UNSUPPORTED;
    CUDA_TRY(dev, abar__cuda_allow_shared(dev, kernel));
    return ABAR_OK;
}

/* ---- delta -------------------------------------------------------------------------------------------------------- */

/* delta[n, h, t] = y[n, t, h] dy[n, t, h]. A warp owns one (n, t, h), in that order. */
template <typename T> static __global__ void delta_kernel(attention a, const T *y, const T *dy, float *delta)
{
    const int64_t item = (int64_t)blockIdx.x * DELTA_WARPS + threadIdx.x / 32;
    if (item >= a.samples * a.tokens * a.heads) return;
    const int64_t at = item * a.width;
    float sum = 0.0f;
    for (int c = threadIdx.x % 32; c < a.width; c += 32) sum += load(y, at + c) * load(dy, at + c);
    sum = warp_sum(sum);
    const int64_t token = item / a.heads;
    const int64_t to = (token / a.tokens * a.heads + item % a.heads) * a.tokens + token % a.tokens;
    if (threadIdx.x % 32 == 0) delta[to] = sum;
}

void abar__attention_delta(abar_device *dev, const attention *a, const attention_memory *m)
{
    const dim3 blocks((unsigned)abar__cuda_blocks(a->samples * a->tokens * a->heads, DELTA_WARPS));
    if (abar__cuda_is_bf16(dev))
        abar__cuda_launch(dev, delta_kernel<bf16>, blocks, dim3(32 * DELTA_WARPS), 0, *a, (const bf16 *)m->y,
                          (const bf16 *)m->dy, m->delta);
    else
        abar__cuda_launch(dev, delta_kernel<float>, blocks, dim3(32 * DELTA_WARPS), 0, *a, (const float *)m->y,
                          (const float *)m->dy, m->delta);
}

/* ---- the gradient of the bias table ------------------------------------------------------------------------------- */

/* dtable (relative positions, heads) from partial (slabs, heads, length, length). A block owns one (position, head); its
 * threads divide the pairs (query, key) with this relative position, and the slabs. */
static __global__ void table_kernel(attention a, const float *partial, int slabs, float *dtable, bool accumulate)
{
    __shared__ float shared[32];
    const int span = 2 * a.side - 1, position = blockIdx.x, head = blockIdx.y;
    const int down = position / span - (a.side - 1), right = position % span - (a.side - 1); /* query minus key */
    const int high = a.side - abs(down), wide = a.side - abs(right), pairs = high * wide;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < pairs * slabs; i += blockDim.x) {
        const int slab = i / pairs, y = i % pairs / wide + max(down, 0), x = i % wide + max(right, 0);
        const int query = y * a.side + x, key = (y - down) * a.side + x - right;
        sum += partial[(((int64_t)slab * a.heads + head) * a.length + query) * a.length + key];
    }
    sum = block_sum(sum, shared);
    float *to = dtable + (int64_t)position * a.heads + head;
    if (threadIdx.x == 0) *to = accumulate ? *to + sum : sum;
}

/* ---- the operation ------------------------------------------------------------------------------------------------- */

static attention describe(const abar__op_desc *d)
{
    attention a = {};
    a.samples = d->in[0].dim[0];
    a.tokens = d->in[0].dim[1];
    a.heads = (int)d->heads;
    a.width = (int)(d->out.dim[2] / d->heads);
    a.length = (int)(d->side ? d->side * d->side : a.tokens);
    a.rows = (int)d->grid[0];
    a.columns = (int)d->grid[1];
    a.side = (int)d->side;
    a.shift = (int)d->shift;
    a.across = d->side ? (int)(d->grid[1] / d->side) : 1;
    a.windows = d->side ? (int)(d->grid[0] / d->side) * a.across : 1;
    a.causal = d->causal;
    a.scale = (float)(1.0 / sqrt((double)a.width));
    a.column_share = 1.0f / (float)a.length;
    return a;
}

/* The first of these that takes the sizes; the list ends with NULL. */
static abar_status choose(abar_device *dev, const attention_kernels *const *kernels, attention_plan *plan)
{
    abar_status status = ABAR_E_UNSUPPORTED;
    for (; *kernels && status == ABAR_E_UNSUPPORTED; kernels++) {
        plan->kernels = *kernels;
        status = plan->kernels->prepare(dev, &plan->a);
    }
    return status;
}

static size_t per_token_bytes(const attention *a) { return (size_t)(a->samples * a->heads * a->tokens) * sizeof(float); }

static abar_status create_of(abar__op *op, const attention_kernels *const *kernels)
{
    const abar__op_desc *d = &op->desc;
    const bool whole_windows = !d->side || (d->grid[0] % d->side == 0 && d->grid[1] % d->side == 0 && d->shift < d->side);
    if (!whole_windows || (d->side && d->causal)) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof(attention_plan), &op->priv));
    op->priv_bytes = sizeof(attention_plan);
    attention_plan *plan = (attention_plan *)op->priv;
    plan->a = describe(d);
    const abar_status status = choose(op->dev, kernels, plan);
    if (status < 0) {
        abar__free(op->dev->ctx, op->priv, op->priv_bytes);
        op->priv = NULL;
        return status;
    }
    plan->blocks = plan->kernels->blocks ? plan->kernels->blocks(op->dev, &plan->a) : 0;
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = ABAR_NEEDS_X | ABAR_NEEDS_Y;
    op->saved_bytes = per_token_bytes(&plan->a);
    const size_t square = (size_t)plan->a.length * (size_t)plan->a.length * sizeof(float);
    op->scratch_bytes = per_token_bytes(&plan->a) + (d->side ? (size_t)plan->blocks * (size_t)plan->a.heads * square : 0);
    return ABAR_OK;
}

static abar_status create(abar__op *op)
{
    static const attention_kernels *const bf16_kernels[] = {&abar__attention_windows, &abar__attention_heads,
                                                            &abar__attention_any_length, &abar__attention_bf16, NULL};
    static const attention_kernels *const float_kernels[] = {&abar__attention_float, NULL};
    return create_of(op, abar__cuda_is_bf16(op->dev) ? bf16_kernels : float_kernels);
}

static abar_status create_wide(abar__op *op)
{
    static const attention_kernels *const kernels[] = {&abar__attention_wide, &abar__attention_wide_windows, NULL};
    return abar__cuda_is_bf16(op->dev) ? create_of(op, kernels) : ABAR_E_UNSUPPORTED;
}

/* plan->a with the random key of this run. */
static attention with_draws(const abar__op *op, const abar__run *run)
{
    attention a = ((const attention_plan *)op->priv)->a;
    a.drops = run->training && op->desc.drop > 0.0;
    if (a.drops) a.key = dropout_key_of(&op->desc, run);
    a.first = (uint64_t)run->sample0 * (uint64_t)a.heads;
    return a;
}

static attention_memory memory_of(const abar__op *op, const abar__op_args *args)
{
    const attention_plan *plan = (const attention_plan *)op->priv;
    attention_memory m = {};
    m.qkv = args->x[0];
    m.y = args->y;
    m.dy = args->dy;
    m.dqkv = args->dx[0];
    m.table = plan->a.side ? (const float *)args->param[0] : NULL;
    m.log_sums = (float *)args->saved;
    m.delta = (float *)args->scratch;
    m.columns = args->run->observing ? (float *)args->columns : NULL;
    m.partial = plan->a.side && args->dparam[0] ? (float *)args->scratch + per_token_bytes(&plan->a) / sizeof(float) : NULL;
    m.blocks = plan->blocks;
    return m;
}

static abar_status forward(abar__op *op, const abar__op_args *args)
{
    const attention a = with_draws(op, args->run);
    const attention_memory m = memory_of(op, args);
    ((const attention_plan *)op->priv)->kernels->forward(op->dev, &a, &m);
    return abar__cuda_status(op->dev);
}

static abar_status backward(abar__op *op, const abar__op_args *args)
{
    const attention a = with_draws(op, args->run);
    const attention_memory m = memory_of(op, args);
    ((const attention_plan *)op->priv)->kernels->backward(op->dev, &a, &m);
    const unsigned span = (unsigned)(2 * a.side - 1);
    if (m.partial)
        abar__cuda_launch(op->dev, table_kernel, dim3(span * span, (unsigned)a.heads), dim3(128), 0, a,
                          (const float *)m.partial, m.blocks, (float *)args->dparam[0], args->accumulate);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_attention_wide = {
    "cuda-attention-wide", ABAR_OP_ATTENTION, create_wide, forward, backward, NULL};
const abar__op_impl abar__cuda_attention = {"cuda-attention", ABAR_OP_ATTENTION, create, forward, backward, NULL};
