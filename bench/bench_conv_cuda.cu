/* Times every implementation of a convolution of the CUDA device on the layers of ResNets and DenseNets in bf16, and compares
 * their results with the plain implementation's. One line each: microseconds of forward, backward and backward without dx,
 * medians over replays of a captured graph, and the largest differences of y, dx and dw, relative to the largest element.
 *
 *   bench_conv_cuda [batch [part]]        (default 128; only layers with part in their names) */
#include "cuda_timing.h"
#include "device/cuda/nn/cuda_nn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PER_GRAPH = 20, REPLAYS = 51 };

typedef struct layer_case {
    const char *name;
    int64_t n; /* 0: the batch */
    int64_t c, h, w, o, kernel, stride;
    bool bias_relu, need_dx;
} layer_case;

static const layer_case layers[] = {
    {"3 -> 16, 32x32", 0, 3, 32, 32, 16, 3, 1, false, false},
    {"16 -> 16, 32x32", 0, 16, 32, 32, 16, 3, 1, false, true},
    {"16 -> 32, 32x32 / 2", 0, 16, 32, 32, 32, 3, 2, false, true},
    {"32 -> 32, 16x16", 0, 32, 16, 16, 32, 3, 1, false, true},
    {"32 -> 64, 16x16 / 2", 0, 32, 16, 16, 64, 3, 2, false, true},
    {"64 -> 64, 8x8", 0, 64, 8, 8, 64, 3, 1, false, true},
    {"16 -> 64, 32x32, 1x1", 0, 16, 32, 32, 64, 1, 1, false, true},
    {"32 -> 64, 16x16 / 2, 1x1", 0, 32, 16, 16, 64, 1, 2, false, true},
    {"odd: 48 -> 16, 13x9, act", 5, 48, 13, 9, 16, 3, 1, true, true},
    {"odd: 16 -> 48, 13x9 / 2, act", 5, 16, 13, 9, 48, 3, 2, true, true},
    {"odd: 32 -> 64, 7x5 / 2, 1x1", 3, 32, 7, 5, 64, 1, 2, true, true},
    {"odd: 3 -> 48, 11x27, 5x5", 3, 3, 11, 27, 48, 5, 1, true, false},
    {"64 -> 64, 56x56", 64, 64, 56, 56, 64, 3, 1, false, true},
    {"1 -> 32, 28x28, 5x5", 0, 1, 28, 28, 32, 5, 1, true, false},
    {"wrn: 160 -> 160, 32x32", 0, 160, 32, 32, 160, 3, 1, false, true},
    {"wrn: 640 -> 640, 8x8", 0, 640, 8, 8, 640, 3, 1, false, true},
    {"densenet: 256 -> 128, 32x32, 1x1", 0, 256, 32, 32, 128, 1, 1, false, true},
    {"densenet: 128 -> 32, 32x32", 0, 128, 32, 32, 32, 3, 1, false, true},
    {"densenet: 512 -> 128, 8x8, 1x1", 0, 512, 8, 8, 128, 1, 1, false, true},
    {"resnet50: 64 -> 64, 44x44", 256, 64, 44, 44, 64, 3, 1, false, true},
    {"resnet50: 64 -> 64, 44x44, 1x1", 256, 64, 44, 44, 64, 1, 1, false, true},
    {"resnet50: 64 -> 256, 44x44, 1x1", 256, 64, 44, 44, 256, 1, 1, false, true},
    {"resnet50: 256 -> 64, 44x44, 1x1", 256, 256, 44, 44, 64, 1, 1, false, true},
    {"resnet50: 128 -> 512, 22x22, 1x1", 256, 128, 22, 22, 512, 1, 1, false, true},
    {"resnet50: 1024 -> 256, 11x11, 1x1", 256, 1024, 11, 11, 256, 1, 1, false, true},
    {"resnet50: 512 -> 2048, 6x6, 1x1", 256, 512, 6, 6, 2048, 1, 1, false, true},
    {"resnet50: 256 -> 512, 44x44 / 2, 1x1", 256, 256, 44, 44, 512, 1, 2, false, true},
};

/* Device memory of one layer; elements of x, y, weight and bias. */
typedef struct buffers {
    int64_t nx, ny, nw, no;
    bf16 *x, *y, *dy, *dx, *shadow;
    float *weight, *bias, *dw, *db;
} buffers;

typedef struct results { /* on the host */
    bf16 *y, *dx;
    float *dw;
} results;

static void *device_memory(abar_device *dev, size_t bytes)
{
    void *memory = NULL;
    if (bytes) check(dev, abar_device_alloc(dev, bytes, &memory));
    return memory;
}

static void *host_memory(size_t bytes)
{
    void *memory = malloc(bytes);
    stop_unless(memory, "out of memory");
    return memory;
}

static float draw(uint64_t *state) /* -1 .. 1 */
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 8388608.0f - 1.0f;
}

static bf16 *random_bf16(abar_device *dev, int64_t n, uint64_t seed)
{
    const size_t bytes = (size_t)n * sizeof(bf16);
    bf16 *host = (bf16 *)host_memory(bytes), *memory = (bf16 *)device_memory(dev, bytes);
    for (int64_t i = 0; i < n; i++) host[i] = __float2bfloat16(draw(&seed));
    check(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
    free(host);
    return memory;
}

static abar__op_desc describe(const layer_case *l, int64_t batch, bool need_dx)
{
    abar__op_desc d = {};
    d.kind = ABAR_OP_CONV2D, d.n_in = 1;
    d.in[0] = {4, {l->n ? l->n : batch, l->c, l->h, l->w}};
    d.window = {{l->kernel, l->kernel}, {l->stride, l->stride}, {l->kernel / 2, l->kernel / 2}, {1, 1}, 1};
    d.out = {4, {d.in[0].dim[0], l->o, abar_window_out(&d.window, 0, l->h), abar_window_out(&d.window, 1, l->w)}};
    d.in_layout[0] = d.out_layout = ABAR_LAYOUT_NHWC;
    d.need_dx[0] = need_dx;
    d.bias = l->bias_relu;
    d.activation = l->bias_relu ? ABAR_ACT_RELU : ABAR_ACT_NONE;
    return d;
}

static buffers buffers_create(abar_device *dev, const abar__op_desc *d)
{
    const int64_t taps = d->window.kernel[0] * d->window.kernel[1];
    buffers b = {};
    b.nx = abar__shape_count(&d->in[0]), b.ny = abar__shape_count(&d->out);
    b.no = d->out.dim[1], b.nw = b.no * taps * d->in[0].dim[1];
    b.x = random_bf16(dev, b.nx, 1), b.dy = random_bf16(dev, b.ny, 2), b.shadow = random_bf16(dev, b.nw, 3);
    b.y = (bf16 *)device_memory(dev, (size_t)b.ny * sizeof(bf16)),
    b.dx = (bf16 *)device_memory(dev, (size_t)b.nx * sizeof(bf16));
    b.weight = (float *)device_memory(dev, (size_t)b.nw * sizeof(float)); /* unused in bf16 */
    b.bias = (float *)device_memory(dev, (size_t)b.no * sizeof(float));   /* zeros */
    b.dw = (float *)device_memory(dev, (size_t)b.nw * sizeof(float)),
    b.db = (float *)device_memory(dev, (size_t)b.no * sizeof(float));
    return b;
}

static void buffers_destroy(abar_device *dev, const buffers *b)
{
    abar_device_free(dev, b->x, (size_t)b->nx * sizeof(bf16));
    abar_device_free(dev, b->dx, (size_t)b->nx * sizeof(bf16));
    abar_device_free(dev, b->y, (size_t)b->ny * sizeof(bf16));
    abar_device_free(dev, b->dy, (size_t)b->ny * sizeof(bf16));
    abar_device_free(dev, b->shadow, (size_t)b->nw * sizeof(bf16));
    abar_device_free(dev, b->weight, (size_t)b->nw * sizeof(float));
    abar_device_free(dev, b->dw, (size_t)b->nw * sizeof(float));
    abar_device_free(dev, b->bias, (size_t)b->no * sizeof(float));
    abar_device_free(dev, b->db, (size_t)b->no * sizeof(float));
}

/* Prepares one implementation for one layer; false where it does not support the layer. */
typedef struct instance {
    abar__op op;
    abar__op_args args;
    abar__run run;
} instance;

static bool instance_create(abar_device *dev, const abar__op_impl *impl, const abar__op_desc *d, const buffers *b, instance *t)
{
    *t = {};
    t->op.dev = dev, t->op.impl = impl, t->op.desc = *d;
    t->op.in_layout[0] = d->in_layout[0], t->op.out_layout = d->out_layout;
    const abar_status status = impl->create(&t->op);
    if (status == ABAR_E_UNSUPPORTED) return false;
    check(dev, status);
    t->run.training = true, t->run.valid = d->in[0].dim[0], t->run.loss_scale = 1.0;
    t->args.run = &t->run;
    t->args.x[0] = b->x, t->args.y = b->y, t->args.dy = b->dy, t->args.dx[0] = d->need_dx[0] ? b->dx : NULL;
    t->args.param[0] = b->weight, t->args.param[1] = b->bias, t->args.shadow[0] = b->shadow;
    t->args.dparam[0] = b->dw, t->args.dparam[1] = b->db;
    t->args.saved = device_memory(dev, t->op.saved_bytes), t->args.scratch = device_memory(dev, t->op.scratch_bytes);
    return true;
}

static void instance_destroy(instance *t)
{
    abar_device *dev = t->op.dev;
    if (t->args.saved) abar_device_free(dev, t->args.saved, t->op.saved_bytes);
    if (t->args.scratch) abar_device_free(dev, t->args.scratch, t->op.scratch_bytes);
    if (t->op.impl->destroy) t->op.impl->destroy(&t->op);
    abar__free(dev->ctx, t->op.priv, t->op.priv_bytes);
}

/* Microseconds of one call. A first call runs before the capture. */
static double time_call(instance *t, abar_status (*call)(abar__op *op, const abar__op_args *a))
{
    abar_device *dev = t->op.dev;
    check(dev, call(&t->op, &t->args));
    check(dev, abar_device_wait(dev));
    return time_recorded(dev, PER_GRAPH, REPLAYS, [&] { return call(&t->op, &t->args); });
}

/* Runs both directions once, over poisoned results, and copies the results to the host. */
static results run_once(instance *t, const buffers *b)
{
    abar_device *dev = t->op.dev;
    check(cudaMemset(b->y, 0xff, (size_t)b->ny * sizeof(bf16)));
    check(cudaMemset(b->dx, 0xff, (size_t)b->nx * sizeof(bf16)));
    check(cudaMemset(b->dw, 0xff, (size_t)b->nw * sizeof(float)));
    check(cudaDeviceSynchronize());
    check(dev, t->op.impl->forward(&t->op, &t->args));
    check(dev, t->op.impl->backward(&t->op, &t->args));
    check(dev, abar_device_wait(dev));
    results r = {(bf16 *)host_memory((size_t)b->ny * sizeof(bf16)), (bf16 *)host_memory((size_t)b->nx * sizeof(bf16)),
                 (float *)host_memory((size_t)b->nw * sizeof(float))};
    check(cudaMemcpy(r.y, b->y, (size_t)b->ny * sizeof(bf16), cudaMemcpyDeviceToHost));
    check(cudaMemcpy(r.dx, b->dx, (size_t)b->nx * sizeof(bf16), cudaMemcpyDeviceToHost));
    check(cudaMemcpy(r.dw, b->dw, (size_t)b->nw * sizeof(float), cudaMemcpyDeviceToHost));
    return r;
}

static void results_free(results *r) { free(r->y), free(r->dx), free(r->dw); }

static float number(float v) { return v; }
static float number(bf16 v) { return __bfloat162float(v); }

/* max |a - b| / max |b|; infinite where a is not finite. */
template <typename T> static double difference(const T *a, const T *b, int64_t n)
{
    double worst = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double u = number(a[i]), v = number(b[i]);
        if (!isfinite(u)) return INFINITY;
        worst = fmax(worst, fabs(u - v)), size = fmax(size, fabs(v));
    }
    return size > 0.0 ? worst / size : worst;
}

static void print_times(instance *t, const abar__op_desc *no_dx, const buffers *b)
{
    const abar__op_impl *impl = t->op.impl;
    instance weights_alone;
    printf(" %8.2f %8.2f", time_call(t, impl->forward), time_call(t, impl->backward));
    if (instance_create(t->op.dev, impl, no_dx, b, &weights_alone)) {
        printf(" %8.2f", time_call(&weights_alone, impl->backward));
        instance_destroy(&weights_alone);
    }
}

/* Returns how many implementations were wrong; the plain one is not timed. Each gets a fresh dy, because a fused ReLU changes
 * it in place. */
static int bench_layer(abar_device *dev, const layer_case *l, int64_t batch)
{
    int wrong = 0;
    results truth = {};
    const abar__op_desc d = describe(l, batch, l->need_dx), no_dx = describe(l, batch, false);
    const abar__op_impl *plain = &abar__cuda_conv_plain;
    for (int i = -1; i < 0 || abar__cuda_nn[i]; i++) {
        const abar__op_impl *impl = i < 0 ? plain : abar__cuda_nn[i];
        if (impl->kind != ABAR_OP_CONV2D || (i >= 0 && impl == plain)) continue;
        buffers b = buffers_create(dev, &d);
        instance t;
        if (instance_create(dev, impl, &d, &b, &t)) {
            results r = run_once(&t, &b);
            if (i < 0) truth = r;
            const double y = difference(r.y, truth.y, b.ny), dw = difference(r.dw, truth.dw, b.nw);
            const double dx = l->need_dx ? difference(r.dx, truth.dx, b.nx) : 0.0;
            const bool good = y < 0.01 && dx < 0.01 && dw < 1e-3;
            stop_unless(good || i >= 0, "the plain convolution's results are not finite");
            wrong += !good;
            if (i >= 0) {
                printf("%-36s %-20s", l->name, impl->name);
                print_times(&t, &no_dx, &b);
                printf("   %.1e %.1e %.1e%s\n", y, dx, dw, good ? "" : "  WRONG");
                fflush(stdout);
                results_free(&r);
            }
            instance_destroy(&t);
        }
        buffers_destroy(dev, &b);
    }
    results_free(&truth);
    return wrong;
}

int main(int argc, char **argv)
{
    const int64_t batch = argc > 1 ? atoll(argv[1]) : 128;
    const char *part = argc > 2 ? argv[2] : "";
    stop_unless(batch > 0, "usage: bench_conv_cuda [batch [part]]");
    abar_context *ctx;
    abar_device *dev;
    abar_device_config config = {};
    config.size = sizeof config, config.precision = ABAR_PRECISION_BF16;
    stop_unless(abar_context_create(NULL, &ctx) >= 0, "no context");
    stop_unless(abar_device_open(ctx, "cuda", &config, &dev) >= 0, abar_context_error(ctx));
    printf("%s, batch %lld, microseconds\n", abar_device_describe(dev), (long long)batch);
    printf("%-36s %-20s %8s %8s %8s   %s\n", "layer", "implementation", "forward", "backward", "only dw", "y       dx      dw");
    int wrong = 0;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        if (strstr(layers[i].name, part)) wrong += bench_layer(dev, &layers[i], batch);
    abar_device_close(dev);
    abar_context_destroy(ctx);
    return wrong != 0;
}
