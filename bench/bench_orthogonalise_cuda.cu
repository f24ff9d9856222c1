/* Times Newton-Schulz of all of Muon's blocks (five steps of `original`), as a step runs it: captured and replayed.
 *
 *   bench_orthogonalise_cuda [gpt2-small | deit-small | resnet110] ... */
#include "cuda_timing.h"
#include "device/cuda/step/orthogonalise.h"

#include <string.h>

enum { MOST = 128 };

typedef struct shape {
    int count;
    int64_t rows, columns;
} shape;

typedef struct model {
    const char *name;
    shape shapes[8];
} model;

/* q, k and v apart; without embeddings, heads and first convolutions. */
static const model models[] = {
    {"gpt2-small", {{48, 768, 768}, {12, 3072, 768}, {12, 768, 3072}}},
    {"deit-small", {{48, 384, 384}, {12, 1536, 384}, {12, 384, 1536}}},
    {"resnet110", {{36, 16, 144}, {1, 32, 144}, {35, 32, 288}, {1, 64, 288}, {35, 64, 576}}},
};

typedef struct blocks {
    abar__ns_block of[MOST];
    int n;
    double flops; /* of one step */
    float *memory, *moments;
    size_t bytes, moment_bytes;
} blocks;

__global__ static void fill(float *x, int64_t n)
{
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t h = (uint32_t)i * 2654435761u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
    x[i] = ((float)h / 4294967296.0f - 0.5f) * 1e-3f;
}

/* Inputs and outputs apart, so that every replay does the same. */
static void make(abar_device *dev, const model *m, bool normuon, blocks *b)
{
    int64_t elements = 0, rows = 0;
    *b = {};
    for (const shape *s = m->shapes; s->count; s++) {
        const double r = (double)(s->rows < s->columns ? s->rows : s->columns), c = (double)(s->rows * s->columns) / r;
        b->flops += s->count * (4.0 * r * r * c + 2.0 * r * r * r);
        elements += s->count * s->rows * s->columns;
        rows += s->count * s->rows;
    }
    b->bytes = (size_t)elements * 2 * sizeof(float);
    b->moment_bytes = (size_t)rows * sizeof(float);
    check(dev, abar_device_alloc(dev, b->bytes, (void **)&b->memory));
    check(dev, abar_device_alloc(dev, b->moment_bytes, (void **)&b->moments));
    fill<<<(unsigned)((elements + 255) / 256), 256, 0, abar__cuda_of(dev)->stream>>>(b->memory, elements);
    float *in = b->memory, *moment = b->moments;
    for (const shape *s = m->shapes; s->count; s++)
        for (int i = 0; i < s->count; i++) {
            b->of[b->n++] = {s->rows, s->columns, in, in + elements, 1.0, normuon ? moment : NULL};
            in += s->rows * s->columns;
            moment += s->rows;
        }
}

static void bench(abar_device *dev, const model *m, bool exact, bool normuon)
{
    blocks b;
    abar__ns ns;
    abar__cuda_orthogonaliser *o;
    int32_t *verdict, host[MOST];
    make(dev, m, normuon, &b);
    stop_unless(abar__ns_find("original", 0, &ns), "no such polynomial");
    check(dev, abar_device_alloc(dev, sizeof host, (void **)&verdict));
    check(dev, abar__cuda_orthogonaliser_create(dev, &ns, b.of, b.n, exact, &o));
    const double us = time_recorded(dev, 1, 21, [&] { return abar__cuda_orthogonaliser_run(dev, o, 0.95, NULL, verdict); });
    check(cudaMemcpy(host, verdict, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < b.n; i++) stop_unless(host[i] == ABAR_NS_FINE, "a block was dropped");
    printf("%-12s %-5s %-8s %4d blocks %9.3f ms %7.1f TFLOP/s %8.1f MB\n", m->name, exact ? "fp32" : "bf16",
           normuon ? "normuon" : "muon", b.n, us * 1e-3, ns.steps * b.flops * 1e-6 / us,
           (double)abar__cuda_orthogonaliser_bytes(o) * 1e-6);
    abar__cuda_orthogonaliser_destroy(dev, o);
    abar_device_free(dev, verdict, sizeof host);
    abar_device_free(dev, b.moments, b.moment_bytes);
    abar_device_free(dev, b.memory, b.bytes);
}

static bool is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return true;
    return argc == 1;
}

int main(int argc, char **argv)
{
    abar_context *ctx;
    abar_device *dev;
    abar_device_config config = {};
    config.size = sizeof config;
    config.precision = ABAR_PRECISION_BF16;
    if (abar_context_create(NULL, &ctx) < 0) return 1;
    if (abar_device_count("cuda") == 0) {
        printf("bench_orthogonalise_cuda: no CUDA device\n");
        return 0;
    }
    stop_unless(abar_device_open(ctx, "cuda", &config, &dev) >= 0, abar_context_error(ctx));
    for (const model &m : models)
        if (is_wanted(m.name, argc, argv)) {
            bench(dev, &m, false, false);
            bench(dev, &m, false, true);
            bench(dev, &m, true, false);
        }
    abar_device_close(dev);
    abar_context_destroy(ctx);
    return 0;
}
