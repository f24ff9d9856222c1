/* Times the parts of a step with dense curvature on the CUDA device, for the maps of three networks in bf16: the products of
 * all gradients with the inverses (FOOF: from the right; KFAC: from both sides), and the inversion of all factors, and of none.
 * One line each: microseconds, medians over replays of a captured graph, with operations and bytes per second.
 *
 *   bench_dense_cuda [precision [once]]        (bf16, tf32 or fp32)
 *
 * once: everything runs once without a graph, for a profiler, which does not see the rounds of an inversion inside a graph. */
#include "cuda_timing.h"
#include "device/cuda/factors/dense.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPLAYS = 11, MAX_MAPS = 160 };

typedef struct shape {
    int64_t out, channels, kernel, bias;
} shape;

typedef struct network {
    const char *name;
    int n;
    shape maps[MAX_MAPS];
} network;

/* The device memory of one network's maps. */
typedef struct memory {
    abar_device *dev;
    float *base;
    size_t floats, taken;
} memory;

/* ---- networks ----------------------------------------------------------------------------------------------------- */

static void add(network *n, int times, int64_t out, int64_t channels, int64_t kernel, int64_t bias)
{
    for (int i = 0; i < times; i++) n->maps[n->n++] = {out, channels, kernel, bias};
}

static network resnet110(void)
{
    network n = {};
    n.name = "resnet110";
    add(&n, 1, 16, 3, 9, 0);
    for (int64_t c = 16; c <= 64; c *= 2) {
        add(&n, c == 16 ? 36 : 35, c, c, 9, 0);
        if (c > 16) add(&n, 1, c, c / 2, 9, 0);
    }
    add(&n, 1, 10, 64, 1, 1);
    return n;
}

static network densenet121(void)
{
    const int layers[] = {6, 12, 24, 16};
    network n = {};
    int64_t channels = 64;
    n.name = "densenet121";
    add(&n, 1, 64, 3, 9, 0);
    for (int b = 0; b < 4; b++) {
        for (int i = 0; i < layers[b]; i++, channels += 32) {
            add(&n, 1, 128, channels, 1, 0);
            add(&n, 1, 32, 128, 9, 0);
        }
        if (b < 3) add(&n, 1, channels / 2, channels, 1, 0), channels /= 2;
    }
    add(&n, 1, 10, channels, 1, 1);
    return n;
}

static network wrn28_10(void)
{
    network n = {};
    int64_t before = 16;
    n.name = "wrn28-10";
    add(&n, 1, 16, 3, 9, 0);
    for (int64_t c = 160; c <= 640; before = c, c *= 2) {
        add(&n, 1, c, before, 9, 0);
        add(&n, 1, c, before, 1, 0);
        add(&n, 7, c, c, 9, 0);
    }
    add(&n, 1, 10, 640, 1, 1);
    return n;
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

/* Small numbers of both signs. */
static __global__ void fill(float *x, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = 1e-3f * (float)((int)(i * 2654435761u >> 16 & 1023) - 512);
}

/* A positive definite average: ones on the diagonal, small numbers elsewhere. The pending triangle of (d + 1, d) is zero. */
static __global__ void fill_factor(float *x, int64_t d)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < d * (d + 1); i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / d, column = i % d;
        const float small = 0.5f / (float)d * (float)((row * 7 + column * 13) % 17 - 8) / 8.0f;
        x[i] = row > column ? 0.0f : row == column ? 1.0f : small;
    }
}

/* The next n floats, aligned; only counted before the memory is allocated. */
static float *take(memory *m, int64_t n)
{
    float *at = m->base ? m->base + m->taken : NULL;
    m->taken += (size_t)(n + 63) / 64 * 64;
    return at;
}

static int64_t side_of(const shape *s) { return s->channels * s->kernel + s->bias; }

/* ---- timing ------------------------------------------------------------------------------------------------------- */

typedef struct task {
    abar_device *dev;
    abar__cuda_multiplier *multiplier;
    abar__cuda_inverter *inverter; /* NULL: multiply */
    const int32_t *active;
    double *sums;
    int32_t *broken;
    abar__cuda_inversion *asked; /* (n_asked) on the device, and their values before every replay */
    const abar__cuda_inversion *before;
    int n_asked;
    bool once;
} task;

static abar_status give(const task *t)
{
    if (t->inverter) return abar__cuda_invert_wanted(t->dev, t->inverter);
    return abar__cuda_multiply(t->dev, t->multiplier, 0, t->active, t->sums, t->broken);
}

/* Restores the requests before a replay. */
static void ask(const task *t)
{
    const size_t bytes = (size_t)t->n_asked * sizeof *t->asked;
    if (t->inverter) check(cudaMemcpyAsync(t->asked, t->before, bytes, cudaMemcpyHostToDevice, abar__cuda_of(t->dev)->stream));
}

/* Microseconds of one replay; 0 without a graph. */
static double measure(const task *t)
{
    if (!t->once)
        return time_recorded(
            t->dev, 1, REPLAYS, [&] { return give(t); }, [&] { ask(t); });
    ask(t);
    check(t->dev, give(t));
    check(t->dev, abar_device_wait(t->dev));
    return 0.0;
}

static void print_line(const char *network, const char *what, double us, double operations, double bytes)
{
    printf("%-12s %-26s", network, what);
    if (us > 0.0) printf(" %9.1f us %9.1f GFLOP/s %8.1f GB/s", us, operations * 1e-3 / us, bytes * 1e-3 / us);
    printf("\n");
    fflush(stdout);
}

/* ---- products ----------------------------------------------------------------------------------------------------- */

static void place_products(const network *n, bool left, memory *m, abar__cuda_product *products)
{
    m->taken = 0;
    for (int i = 0; i < n->n; i++) {
        const shape *s = &n->maps[i];
        abar__cuda_product p = {};
        p.out = s->out, p.columns = s->channels * s->kernel, p.kernel = s->kernel, p.d = side_of(s);
        p.grad = take(m, p.out * p.columns);
        if (s->bias) p.bias_grad = take(m, p.out);
        p.right = take(m, p.d * p.d);
        if (left) p.left = take(m, p.out * p.out);
        p.result = take(m, p.out * p.d);
        products[i] = p;
    }
}

static void bench_products(abar_device *dev, const network *n, bool left, bool once)
{
    static abar__cuda_product products[MAX_MAPS];
    memory m = {dev, NULL, 0, 0};
    task t = {};
    int32_t ones[MAX_MAPS] = {}, *active;
    double operations = 0.0, bytes = 0.0;
    place_products(n, left, &m, products);
    m.floats = m.taken;
    check(dev, abar_device_alloc(dev, m.floats * sizeof(float), (void **)&m.base));
    place_products(n, left, &m, products);
    fill<<<1024, 256, 0, abar__cuda_of(dev)->stream>>>(m.base, m.floats);
    for (int i = 0; i < n->n; i++) {
        const double out = (double)products[i].out, d = (double)products[i].d;
        operations += 2.0 * out * d * (left ? d + out : d);
        bytes += 4.0 * (d * d + (left ? out * out : 0.0) + 2.0 * out * d);
        ones[i] = 1;
    }
    t.dev = dev;
    t.once = once;
    check(dev, abar_device_alloc(dev, sizeof ones, (void **)&active));
    check(dev, abar_device_alloc(dev, 3 * MAX_MAPS * sizeof(double), (void **)&t.sums));
    check(dev, abar_device_alloc(dev, MAX_MAPS * sizeof(int32_t), (void **)&t.broken));
    check(dev, dev->ops->stream->copy_bytes(dev, active, ones, sizeof ones));
    t.active = active;
    check(dev, abar__cuda_multiplier_create(dev, products, n->n, NULL, &t.multiplier));
    print_line(n->name, left ? "multiply, both sides" : "multiply, right", measure(&t), operations, bytes);
    abar__cuda_multiplier_destroy(dev, t.multiplier);
    abar_device_free(dev, active, sizeof ones);
    abar_device_free(dev, t.sums, 3 * MAX_MAPS * sizeof(double));
    abar_device_free(dev, t.broken, MAX_MAPS * sizeof(int32_t));
    abar_device_free(dev, m.base, m.floats * sizeof(float));
}

/* ---- inverses ----------------------------------------------------------------------------------------------------- */

/* Factors of the inputs, and of the outputs' gradients where left is set; returns how many. */
static int place_factors(const network *n, bool left, memory *m, abar__cuda_factor *factors)
{
    int count = 0;
    m->taken = 0;
    for (int i = 0; i < n->n; i++)
        for (int side = 0; side <= left; side++) {
            abar__cuda_factor f = {};
            f.partner = left ? count + 1 - 2 * side : -1;
            f.d = side ? n->maps[i].out : side_of(&n->maps[i]);
            float *triangles = take(m, (f.d + 1) * f.d);
            f.average = triangles;
            f.pending = triangles ? triangles + f.d : NULL;
            f.inverse = take(m, f.d * f.d);
            factors[count++] = f;
        }
    return count;
}

static void bench_inverses(abar_device *dev, const network *n, bool left, bool once)
{
    static abar__cuda_factor factors[2 * MAX_MAPS];
    static abar__cuda_inversion all[2 * MAX_MAPS], none[2 * MAX_MAPS];
    memory m = {dev, NULL, 0, 0};
    task t = {};
    double operations = 0.0, bytes = 0.0;
    place_factors(n, left, &m, factors);
    m.floats = m.taken;
    check(dev, abar_device_alloc(dev, m.floats * sizeof(float), (void **)&m.base));
    t.n_asked = place_factors(n, left, &m, factors);
    for (int i = 0; i < t.n_asked; i++) {
        const double d = (double)factors[i].d;
        fill_factor<<<1024, 256, 0, abar__cuda_of(dev)->stream>>>((float *)(uintptr_t)factors[i].average, factors[i].d);
        operations += d * d * d; /* Cholesky and two triangular products */
        bytes += 4.0 * 1.5 * d * d;
        all[i] = {};
        all[i].scale = 1.0, all[i].shift = 0.1;
        none[i] = all[i];
        all[i].wanted = 1;
    }
    t.dev = dev;
    t.once = once;
    const size_t asked_bytes = (size_t)t.n_asked * sizeof *t.asked;
    check(dev, abar_device_alloc(dev, asked_bytes, (void **)&t.asked));
    check(dev, abar__cuda_inverter_create(dev, factors, t.n_asked, t.asked, NULL, &t.inverter));
    t.before = all;
    print_line(n->name, left ? "invert all, both sides" : "invert all, right", measure(&t), operations, bytes);
    t.before = none;
    print_line(n->name, left ? "invert none, both sides" : "invert none, right", measure(&t), 0.0, 0.0);
    abar__cuda_inverter_destroy(dev, t.inverter);
    abar_device_free(dev, t.asked, asked_bytes);
    abar_device_free(dev, m.base, m.floats * sizeof(float));
}

static abar_precision precision_named(const char *name)
{
    const char *const names[] = {"fp32", "tf32", "bf16"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) return (abar_precision)i;
    stop_unless(false, "usage: bench_dense_cuda [bf16|tf32|fp32 [once]]");
    return ABAR_PRECISION_BF16;
}

int main(int argc, char **argv)
{
    const network networks[] = {resnet110(), densenet121(), wrn28_10()};
    abar_context *ctx;
    abar_device *dev;
    abar_device_config config = {};
    const bool once = argc > 2 && strcmp(argv[2], "once") == 0;
    stop_unless(argc < 3 || once, "usage: bench_dense_cuda [bf16|tf32|fp32 [once]]");
    config.size = sizeof config, config.precision = precision_named(argc > 1 ? argv[1] : "bf16");
    stop_unless(abar_context_create(NULL, &ctx) >= 0, "no context");
    stop_unless(abar_device_open(ctx, "cuda", &config, &dev) >= 0, abar_context_error(ctx));
    printf("%s\n", abar_device_describe(dev));
    for (const network &n : networks)
        for (int left = 0; left < 2; left++) bench_products(dev, &n, left, once);
    for (const network &n : networks)
        for (int left = 0; left < 2; left++) bench_inverses(dev, &n, left, once);
    abar_device_close(dev);
    abar_context_destroy(ctx);
    return 0;
}
