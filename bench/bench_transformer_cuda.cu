/* Times the operations of transformers on the CUDA device in bf16, at the sizes of DeiT-Small, Swin-Tiny, GPT-2 and gpt-char.
 * One line each, of attention one for every implementation that takes the case: microseconds of forward and backward, medians
 * over replays of a captured graph, and the rate: TFLOP/s for attention and linear (attention: 4 T^2 d per head forward, 10 T^2
 * d backward, half of that where causal), for the others GB/s of the bytes that must at least be read and written.
 *
 *   bench_transformer_cuda [PART OF A NAME]... */
#include "cuda_timing.h"
#include "device/cuda/nn/cuda_nn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PER_GRAPH = 10, REPLAYS = 21 };

/* ---- cases ---------------------------------------------------------------------------------------------------------- */

typedef struct bench_case {
    const char *name;
    abar__op_desc desc;
    double forward_work, backward_work; /* floating-point operations, or bytes */
    bool bytes;
} bench_case;

static abar__op_desc rows_to_rows(abar__op_kind kind, int64_t n, int64_t t, int64_t in, int64_t out)
{
    abar__op_desc d = {};
    d.kind = kind, d.n_in = 1, d.need_dx[0] = true;
    d.in[0] = {3, {n, t, in}};
    d.out = {3, {n, t, out}};
    return d;
}

static bench_case attention(const char *name, int64_t n, int64_t t, int64_t heads, int64_t width, bool causal, double drop,
                            int64_t grid, int64_t side, int64_t shift)
{
    bench_case c = {name, rows_to_rows(ABAR_OP_ATTENTION, n, t, 3 * heads * width, heads * width), 0.0, 0.0, false};
    c.desc.heads = heads, c.desc.causal = causal, c.desc.drop = drop;
    c.desc.grid[0] = c.desc.grid[1] = grid, c.desc.side = side, c.desc.shift = shift;
    const double seen = side ? (double)(side * side) : (double)t * (causal ? 0.5 : 1.0);
    c.forward_work = 4.0 * (double)(n * heads * t * width) * seen;
    c.backward_work = 2.5 * c.forward_work;
    return c;
}

static bench_case linear(const char *name, int64_t rows, int64_t in, int64_t out, bool bias)
{
    bench_case c = {name, rows_to_rows(ABAR_OP_LINEAR, 1, rows, in, out), 2.0 * (double)(rows * in * out), 0.0, false};
    c.backward_work = 2.0 * c.forward_work;
    c.desc.bias = bias;
    return c;
}

static bench_case norm(const char *name, int64_t rows, int64_t width)
{
    const double bytes = 2.0 * (double)(rows * width);
    bench_case c = {name, rows_to_rows(ABAR_OP_LAYER_NORM, 1, rows, width, width), 2.0 * bytes, 3.0 * bytes, true};
    c.desc.eps = 1e-6;
    return c;
}

static bench_case gelu(const char *name, int64_t rows, int64_t width, abar__activation kind)
{
    const double bytes = 2.0 * (double)(rows * width);
    bench_case c = {name, rows_to_rows(ABAR_OP_ACTIVATION, 1, rows, width, width), 2.0 * bytes, 3.0 * bytes, true};
    c.desc.activation = kind;
    return c;
}

static bench_case entropy(const char *name, int64_t n, int64_t t, int64_t classes)
{
    const double bytes = 2.0 * (double)(n * t * classes);
    return {name, rows_to_rows(ABAR_OP_SOFTMAX_CROSS_ENTROPY, n, t, classes, 1), bytes, 2.0 * bytes, true};
}

static bench_case embedding(const char *name, int64_t n, int64_t t, int64_t vocabulary, int64_t width)
{
    const double bytes = 2.0 * (double)(n * t * width);
    bench_case c = {name, rows_to_rows(ABAR_OP_EMBEDDING, n, t, 0, width), 3.0 * bytes, 2.0 * bytes, true};
    c.desc.in[0] = {2, {n, t}};
    c.desc.need_dx[0] = false;
    c.desc.vocabulary = vocabulary, c.desc.positions = t;
    return c;
}

static bench_case class_token(const char *name, int64_t n, int64_t t, int64_t width)
{
    const double bytes = 2.0 * (double)(n * t * width);
    bench_case c = {name, rows_to_rows(ABAR_OP_CLASS_TOKEN, n, t, width, width), 2.0 * bytes, 3.0 * bytes, true};
    c.desc.out.dim[1] = t + 1;
    return c;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static int64_t param_count(const abar__op_desc *d, int i)
{
    const int64_t width = d->out.dim[2], span = 2 * d->side - 1;
    switch (d->kind) {
    case ABAR_OP_ATTENTION: return i == 0 && d->side ? span * span * d->heads : 0;
    case ABAR_OP_LINEAR: return i == 0 ? d->in[0].dim[2] * width : width;
    case ABAR_OP_LAYER_NORM: return width;
    case ABAR_OP_EMBEDDING: return (i == 0 ? d->vocabulary : d->positions) * width;
    case ABAR_OP_CLASS_TOKEN: return i == 0 ? width : d->out.dim[1] * width;
    default: return 0;
    }
}

/* A thread owns an element: noise between -1 and 1 as T, or a number below `below`. */
__device__ static uint32_t noise(int64_t i)
{
    uint32_t h = (uint32_t)i * 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    return h ^ h >> 13;
}

template <typename T> static __global__ void fill(int64_t n, T *to)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) store(to, i, (float)noise(i) * 0x1p-31f - 1.0f);
}

static __global__ void fill_numbers(int64_t n, int32_t below, int32_t *to)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = (int32_t)(noise(i) % (uint32_t)below);
}

typedef struct memory { /* all allocations, for freeing */
    abar_device *dev;
    void *block[16];
    size_t bytes[16];
    int n;
} memory;

static void *take(memory *m, size_t bytes)
{
    if (!bytes) return NULL;
    check(m->dev, abar_device_alloc(m->dev, bytes, &m->block[m->n]));
    m->bytes[m->n] = bytes;
    return m->block[m->n++];
}

template <typename T> static T *take_noise(memory *m, int64_t n)
{
    T *to = (T *)take(m, (size_t)n * sizeof(T));
    if (n) abar__cuda_launch(m->dev, fill<T>, dim3((unsigned)abar__cuda_blocks(n, 256)), dim3(256), 0, n, to);
    return to;
}

static int32_t *take_numbers(memory *m, int64_t n, int64_t below)
{
    int32_t *to = (int32_t *)take(m, (size_t)n * sizeof(int32_t));
    abar__cuda_launch(m->dev, fill_numbers, dim3((unsigned)abar__cuda_blocks(n, 256)), dim3(256), 0, n, below, to);
    return to;
}

static abar__op_args args_create(memory *m, const abar__op *op, const abar__run *run)
{
    const abar__op_desc *d = &op->desc;
    const int64_t nx = abar__shape_count(&d->in[0]), ny = abar__shape_count(&d->out);
    abar__op_args a = {};
    a.run = run;
    a.x[0] = d->kind == ABAR_OP_EMBEDDING ? (void *)take_numbers(m, nx, d->vocabulary) : (void *)take_noise<bf16>(m, nx);
    a.y = take(m, (size_t)ny * sizeof(bf16));
    a.dy = take_noise<bf16>(m, ny);
    a.dx[0] = d->need_dx[0] ? take(m, (size_t)nx * sizeof(bf16)) : NULL;
    for (int i = 0; i < 2; i++) {
        a.param[i] = take_noise<float>(m, param_count(d, i));
        a.dparam[i] = take_noise<float>(m, param_count(d, i));
    }
    if (d->kind == ABAR_OP_LINEAR) a.shadow[0] = take_noise<bf16>(m, param_count(d, 0));
    if (d->kind == ABAR_OP_ATTENTION) a.columns = take(m, (size_t)(d->in[0].dim[0] * d->heads * d->in[0].dim[1]) * 4);
    if (d->kind == ABAR_OP_SOFTMAX_CROSS_ENTROPY) a.target = take_numbers(m, nx / d->in[0].dim[2], d->in[0].dim[2]);
    a.result = (abar_loss *)take(m, sizeof(abar_loss));
    a.saved = take(m, op->saved_bytes);
    a.scratch = take(m, op->scratch_bytes);
    return a;
}

/* ---- timing --------------------------------------------------------------------------------------------------------- */

/* Microseconds of one call. A first call runs before the capture. */
static double time_call(abar__op *op, const abar__op_args *a, abar_status (*call)(abar__op *op, const abar__op_args *a))
{
    check(op->dev, call(op, a));
    check(op->dev, abar_device_wait(op->dev));
    return time_recorded(op->dev, PER_GRAPH, REPLAYS, [&] { return call(op, a); });
}

static void bench_op(abar__op *op, const bench_case *c)
{
    memory m = {};
    abar__run run = {};
    m.dev = op->dev;
    run.training = true, run.valid = c->desc.in[0].dim[0], run.loss_scale = 1.0, run.observing = true;
    const abar__op_args a = args_create(&m, op, &run);
    const double forward = time_call(op, &a, op->impl->forward), backward = time_call(op, &a, op->impl->backward);
    const double unit = c->bytes ? 1e3 : 1e6; /* per microsecond: GB/s, TFLOP/s */
    printf("%-38s %-20s %9.1f %9.1f   %7.0f %7.0f %s\n", c->name, op->impl->name, forward, backward,
           c->forward_work / forward / unit, c->backward_work / backward / unit, c->bytes ? "GB/s" : "TFLOP/s");
    fflush(stdout);
    for (int i = 0; i < m.n; i++) abar_device_free(m.dev, m.block[i], m.bytes[i]);
}

/* The implementation that a network gets, then of attention the others. */
static void bench(abar_device *dev, const bench_case *c)
{
    bool taken = false;
    for (const abar__op_impl *const *impl = abar__cuda_nn; *impl; impl++) {
        if ((*impl)->kind != c->desc.kind || (taken && c->desc.kind != ABAR_OP_ATTENTION)) continue;
        abar__op op = {};
        op.dev = dev, op.impl = *impl, op.desc = c->desc;
        const abar_status status = op.impl->create(&op);
        if (status != ABAR_E_UNSUPPORTED) check(dev, status);
        if (status < 0) continue;
        bench_op(&op, c);
        if (op.impl->destroy) op.impl->destroy(&op);
        abar__free(dev->ctx, op.priv, op.priv_bytes);
        taken = true;
    }
}

/* Whether one of the arguments is a part of the name, or there are none. */
static bool is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strstr(name, argv[i])) return true;
    return argc <= 1;
}

int main(int argc, char **argv)
{
    const bench_case cases[] = {
        attention("attention DeiT-Small, 256 x 197", 256, 197, 6, 64, false, 0.0, 0, 0, 0),
        attention("attention DeiT-Tiny 32^2, 256 x 65", 256, 65, 3, 64, false, 0.0, 0, 0, 0),
        attention("attention GPT-2, 8 x 1024, causal", 8, 1024, 12, 64, true, 0.0, 0, 0, 0),
        attention("attention 8 x 1024, all", 8, 1024, 12, 64, false, 0.0, 0, 0, 0),
        attention("attention gpt-char, 64 x 256, drop", 64, 256, 6, 64, true, 0.2, 0, 0, 0),
        attention("attention Swin-Tiny 1, 128 x 56^2", 128, 3136, 3, 32, false, 0.0, 56, 7, 0),
        attention("attention Swin-Tiny 1, shifted", 128, 3136, 3, 32, false, 0.0, 56, 7, 3),
        attention("attention Swin-Tiny 3, shifted", 128, 196, 12, 32, false, 0.0, 14, 7, 3),
        linear("linear DeiT-Small qkv", 256 * 197, 384, 1152, true),
        linear("linear DeiT-Small fc1", 256 * 197, 384, 1536, true),
        linear("linear DeiT-Small fc2", 256 * 197, 1536, 384, true),
        linear("linear GPT-2 head", 8192, 768, 50257, false),
        norm("layer norm DeiT-Small", 256 * 197, 384),
        norm("layer norm GPT-2", 8192, 768),
        norm("layer norm DeiT-Tiny", 256 * 197, 192),
        gelu("gelu (erf) DeiT-Small", 256 * 197, 1536, ABAR_ACT_GELU_ERF),
        gelu("gelu (tanh) GPT-2", 8192, 3072, ABAR_ACT_GELU_TANH),
        entropy("entropy GPT-2", 8, 1024, 50257),
        entropy("entropy gpt-char", 64, 256, 65),
        embedding("embedding GPT-2", 8, 1024, 50257, 768),
        embedding("embedding gpt-char", 64, 256, 65, 384),
        class_token("class token DeiT-Small", 256, 196, 384),
    };
    abar_context *ctx;
    abar_device *dev;
    abar_device_config config = {};
    config.size = sizeof config, config.precision = ABAR_PRECISION_BF16;
    stop_unless(abar_context_create(NULL, &ctx) >= 0, "no context");
    stop_unless(abar_device_open(ctx, "cuda", &config, &dev) >= 0, abar_context_error(ctx));
    printf("%s, microseconds\n", abar_device_describe(dev));
    printf("%-38s %-20s %9s %9s   %7s %7s\n", "operation", "implementation", "forward", "backward", "forward", "backward");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (is_wanted(cases[i].name, argc, argv)) bench(dev, &cases[i]);
    abar_device_close(dev);
    abar_context_destroy(ctx);
    return 0;
}
