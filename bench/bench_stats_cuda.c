/* Times the observation of a layer: the sums of outer products of FOOF, KFAC and LNGD (methods.md sections 4 to 6), in bf16
 * with batch 128, captured and replayed as in training. Microseconds of one call. */
#include "device/device_impl.h"

#include <stdio.h>
#include <stdlib.h>

#define REPLAYS 20
#define CALLS 10 /* per graph */

typedef struct layer {
    const char *name;
    int64_t channels, out, side; /* side 0: vectors */
    int64_t kernel;
    int64_t examples, tokens;
} layer;

static const layer layers[] = {
    {"resnet 16, 32x32", 16, 16, 32, 3, 128, 0},
    {"resnet 32, 16x16", 32, 32, 16, 3, 128, 0},
    {"resnet 64, 8x8", 64, 64, 8, 3, 128, 0},
    {"resnet first", 3, 16, 32, 3, 128, 0},
    {"densenet 3x3, 32x32", 128, 32, 32, 3, 128, 0},
    {"densenet 3x3, 8x8", 128, 32, 8, 3, 128, 0},
    {"densenet 1x1 256, 16x16", 256, 128, 16, 1, 128, 0},
    {"densenet 1x1 1024, 8x8", 1024, 128, 8, 1, 128, 0},
    {"wrn 160, 32x32", 160, 160, 32, 3, 128, 0},
    {"wrn 320, 16x16", 320, 320, 16, 3, 128, 0},
    {"wrn 640, 8x8", 640, 640, 8, 3, 128, 0},
    {"deit 384", 384, 1536, 0, 1, 256, 197},
    {"deit 1536", 1536, 384, 0, 1, 256, 197},
};

typedef enum call { INPUT, WEIGHTED, INPUT_MEAN, GRAD_MEAN, BOTH_MEANS, WEIGHTS, SQUARES, CALL_KINDS } call;
static const char *const call_names[] = {"a aT", "w a aT", "means a", "means p", "both", "weights", "squares"};

typedef struct bench {
    abar_context *ctx;
    abar_device *dev;
    abar__rows rows;
    void *square, *grad_square, *scratch;
    double *weights; /* (2, N), then their count */
} bench;

static void need(abar_context *ctx, abar_status status)
{
    if (status >= 0) return;
    fprintf(stderr, "bench_stats_cuda: %s\n", abar_context_error(ctx));
    exit(1);
}

static void *take(const bench *b, size_t bytes)
{
    void *memory;
    need(b->ctx, abar_device_alloc(b->dev, bytes, &memory));
    return memory;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void give(const bench *b, call c)
{
    const abar__stats_ops *s = b->dev->ops->stats;
    double *a = b->weights, *p = a + b->rows.examples, *number = p + b->rows.examples;
    switch (c) {
    case INPUT: s->input_product(b->dev, &b->rows, NULL, b->square, b->scratch); break;
    case WEIGHTED: s->input_product(b->dev, &b->rows, a, b->square, b->scratch); break;
    case INPUT_MEAN: s->input_mean_product(b->dev, &b->rows, b->square, b->scratch); break;
    case GRAD_MEAN: s->grad_mean_product(b->dev, &b->rows, b->square, b->scratch); break;
    case BOTH_MEANS: s->both_mean_products(b->dev, &b->rows, b->square, b->grad_square, b->scratch); break;
    case WEIGHTS: s->example_weights(b->dev, &b->rows, a, p, number); break;
    case SQUARES: s->grad_squares(b->dev, &b->rows, a, b->square); break;
    case CALL_KINDS: break;
    }
}

/* Median microseconds of a call. */
static double measure(const bench *b, call c)
{
    const abar__stream_ops *stream = b->dev->ops->stream;
    void *mark[2], *graph;
    double ms[REPLAYS];
    need(b->ctx, stream->capture_begin(b->dev));
    for (int i = 0; i < CALLS; i++) give(b, c);
    need(b->ctx, stream->capture_end(b->dev, &graph));
    for (int i = 0; i < 2; i++) need(b->ctx, stream->event_create(b->dev, &mark[i]));
    for (int i = -3; i < REPLAYS; i++) {
        need(b->ctx, stream->event_record(b->dev, mark[0]));
        need(b->ctx, stream->replay(b->dev, graph));
        need(b->ctx, stream->event_record(b->dev, mark[1]));
        need(b->ctx, stream->wait(b->dev));
        if (i >= 0) ms[i] = stream->event_elapsed(b->dev, mark[0], mark[1]);
    }
    for (int i = 0; i < 2; i++) stream->event_destroy(b->dev, mark[i]);
    stream->forget(b->dev, graph);
    qsort(ms, REPLAYS, sizeof *ms, ascending);
    return 1e3 * ms[REPLAYS / 2] / CALLS;
}

static abar__rows rows_of(const bench *b, const layer *l)
{
    const int64_t pad = l->kernel / 2, in = l->channels * l->kernel * l->kernel;
    abar__rows r = {.grad_scale = 1.0, .window = abar_window_unit(), .examples = l->examples, .in = in, .out = l->out};
    if (l->side) {
        r.convolution = true;
        r.window.kernel[0] = r.window.kernel[1] = l->kernel;
        r.window.pad[0] = r.window.pad[1] = pad;
        r.per_example = l->side * l->side;
        r.input = abar_tensor_wrap(b->dev, NULL, ABAR_BF16, 4, (int64_t[]){l->examples, l->channels, l->side, l->side});
        r.output_grad = abar_tensor_wrap(b->dev, NULL, ABAR_BF16, 4, (int64_t[]){l->examples, l->out, l->side, l->side});
        r.input.layout = r.output_grad.layout = ABAR_LAYOUT_NHWC;
    } else {
        r.bias = true;
        r.per_example = l->tokens;
        r.input = abar_tensor_wrap(b->dev, NULL, ABAR_BF16, 3, (int64_t[]){l->examples, l->tokens, l->channels});
        r.output_grad = abar_tensor_wrap(b->dev, NULL, ABAR_BF16, 3, (int64_t[]){l->examples, l->tokens, l->out});
    }
    r.input.data = take(b, abar_tensor_bytes(&r.input));
    r.output_grad.data = take(b, abar_tensor_bytes(&r.output_grad));
    return r;
}

static void bench_layer(bench *b, const layer *l)
{
    b->rows = rows_of(b, l);
    const int64_t d = abar__rows_d(&b->rows), side = d > l->out ? d : l->out;
    const size_t square = (size_t)(side * side) * sizeof(float), weights = (size_t)(2 * l->examples + 1) * sizeof(double);
    const size_t grad_square = (size_t)(l->out * l->out) * sizeof(float);
    const size_t scratch = b->dev->ops->stats->product_scratch(b->dev, &b->rows);
    b->square = take(b, square);
    b->grad_square = take(b, grad_square);
    b->scratch = take(b, scratch);
    b->weights = take(b, weights);
    printf("%-24s %5lld %6.1f MB", l->name, (long long)d, (double)scratch * 1e-6);
    for (call c = 0; c < CALL_KINDS; c++) {
        const double us = measure(b, c), rows = (double)(l->examples * b->rows.per_example);
        printf(" %8.1f", us);
        if (c == INPUT) printf(" (%4.0f)", rows * (double)d * (double)d * 1e-6 / us);
        fflush(stdout);
    }
    printf("\n");
    abar_device_free(b->dev, b->weights, weights);
    abar_device_free(b->dev, b->scratch, scratch);
    abar_device_free(b->dev, b->grad_square, grad_square);
    abar_device_free(b->dev, b->square, square);
    abar_device_free(b->dev, b->rows.input.data, abar_tensor_bytes(&b->rows.input));
    abar_device_free(b->dev, b->rows.output_grad.data, abar_tensor_bytes(&b->rows.output_grad));
}

int main(void)
{
    bench b = {0};
    const abar_device_config config = {.size = sizeof config, .precision = ABAR_PRECISION_BF16};
    if (abar_context_create(NULL, &b.ctx) < 0) return 1;
    if (abar_device_count("cuda") == 0) {
        printf("bench_stats_cuda: no CUDA device\n");
        return 0;
    }
    need(b.ctx, abar_device_open(b.ctx, "cuda", &config, &b.dev));
    printf("%-24s %5s %9s", "layer", "d", "scratch");
    for (call c = 0; c < CALL_KINDS; c++) printf(" %8s%s", call_names[c], c == INPUT ? "  (TF)" : "");
    printf("   us; TF: Tflop/s of the lower triangle, row by row\n");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) bench_layer(&b, &layers[i]);
    abar_device_close(b.dev);
    abar_context_destroy(b.ctx);
    return 0;
}
