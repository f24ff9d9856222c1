/* Compares the bandwidth of the fused update with that of a copy: all parameters of a model in one launch, bf16 copies
 * included. A step is norm, maps and passes over the parameters. The update's time is the difference of a step and a step
 * without the passes.
 *
 *   bench_update_cuda [MODEL]        (default wrn28-10) */
#include "optim/optim_impl.h"
#include "train/train_impl.h"

#include <stdio.h>
#include <stdlib.h>

#define REPLAYS 50
#define COPY_BYTES ((size_t)1 << 30)

typedef struct timed {
    abar_device *dev;
    const abar_optim *optim; /* NULL: copy */
    bool passes;
    void *from, *to;
} timed;

static void need(abar_context *ctx, abar_status status)
{
    if (status >= 0) return;
    fprintf(stderr, "bench_update_cuda: %s\n", abar_context_error(ctx));
    exit(1);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A step without statistics, stage by stage as in src/optim/step.c. */
static abar_status enqueue_step(abar_device *dev, const abar_optim *o, bool passes)
{
    const abar__step_ops *ops = dev->ops->step;
    ABAR_TRY(ops->begin(dev, o->step));
    ABAR_TRY(ops->check(dev, o->step, 1.0, 0.0));
    if (o->curvature) {
        ABAR_TRY(ops->commit(dev, o->step, NULL, false));
        ABAR_TRY(ops->precondition(dev, o->step, false));
    }
    for (int i = 0; passes && i < o->n_passes; i++) ABAR_TRY(ops->pass(dev, o->step, i));
    return ABAR_OK;
}

static abar_status enqueue(const timed *t)
{
    if (t->optim) return enqueue_step(t->dev, t->optim, t->passes);
    return t->dev->ops->stream->copy_bytes(t->dev, t->to, t->from, COPY_BYTES);
}

/* Median milliseconds of one run. */
static double measure(abar_context *ctx, const timed *t)
{
    const abar__stream_ops *stream = t->dev->ops->stream;
    void *mark[2];
    double ms[REPLAYS];
    for (int i = 0; i < 2; i++) need(ctx, stream->event_create(t->dev, &mark[i]));
    for (int i = -5; i < REPLAYS; i++) {
        need(ctx, stream->event_record(t->dev, mark[0]));
        need(ctx, enqueue(t));
        need(ctx, stream->event_record(t->dev, mark[1]));
        need(ctx, stream->wait(t->dev));
        if (i >= 0) ms[i] = stream->event_elapsed(t->dev, mark[0], mark[1]);
    }
    for (int i = 0; i < 2; i++) stream->event_destroy(t->dev, mark[i]);
    qsort(ms, REPLAYS, sizeof *ms, ascending);
    return ms[REPLAYS / 2];
}

/* Milliseconds of the passes over the parameters; whole: of the step. */
static double update_ms(abar_context *ctx, abar_device *dev, const abar_optim *o, double *whole)
{
    const timed step = {.dev = dev, .optim = o, .passes = true}, rest = {.dev = dev, .optim = o};
    *whole = measure(ctx, &step);
    return *whole - measure(ctx, &rest);
}

static void bench(abar_context *ctx, const char *model, const char *optim, double copy_rate)
{
    abar_setup *setup;
    abar_device *dev;
    abar_net *net;
    abar_optim *o;
    need(ctx, abar_setup_create(ctx, model, "synthetic", optim, &setup));
    need(ctx, abar_setup_set(ctx, setup, "device", "cuda"));
    need(ctx, abar_setup_set(ctx, setup, "precision", "bf16"));
    need(ctx, abar__device_open(ctx, setup, &dev));
    abar_dataset_info info = {0};
    need(ctx, abar__data_look(ctx, setup, &info));
    need(ctx, abar__net_build(ctx, setup, &info, dev, &(abar__net_request){.batch = 8, .training = true}, &net));
    need(ctx, abar__optim_build(ctx, setup, dev, net, NULL, &o));
    double parameters = 0, shadows = 0, whole;
    for (int i = 0; i < o->n_active; i++) {
        parameters += (double)o->active[i].count;
        if (o->active[i].shadow) shadows += (double)o->active[i].count;
    }
    const double bytes = parameters * 4.0 * 3.0 + 2.0 * (double)abar__optim_rule_bytes(o) + 2.0 * shadows;
    const double ms = update_ms(ctx, dev, o, &whole);
    printf("%-10s %-6s %8.1f MB %9.4f ms %8.2f TB/s %6.1f %% of copy   (norm and maps %.4f ms)\n", model, optim, bytes * 1e-6,
           ms, bytes * 1e-9 / ms, 100.0 * bytes * 1e-9 / ms / copy_rate, whole - ms);
    abar_optim_destroy(o);
    abar_net_destroy(net);
    abar_device_close(dev);
    abar_setup_destroy(ctx, setup);
}

/* TB/s read and written. */
static double copy_rate_of(abar_context *ctx)
{
    timed copy = {0};
    need(ctx, abar_device_open(ctx, "cuda", NULL, &copy.dev));
    need(ctx, abar_device_alloc(copy.dev, COPY_BYTES, &copy.from));
    need(ctx, abar_device_alloc(copy.dev, COPY_BYTES, &copy.to));
    const double rate = 2.0 * (double)COPY_BYTES * 1e-9 / measure(ctx, &copy);
    abar_device_free(copy.dev, copy.from, COPY_BYTES);
    abar_device_free(copy.dev, copy.to, COPY_BYTES);
    abar_device_close(copy.dev);
    return rate;
}

int main(int argc, char **argv)
{
    static const char *const optims[] = {"sgd", "mac", "smac", "adamw", "mac+adamw"};
    const char *model = argc > 1 ? argv[1] : "wrn28-10";
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) < 0) return 1;
    if (abar_device_count("cuda") == 0) {
        printf("bench_update_cuda: no CUDA device\n");
        return 0;
    }
    const double rate = copy_rate_of(ctx);
    printf("copy of %zu MiB: %.2f TB/s\n", COPY_BYTES >> 20, rate);
    for (size_t i = 0; i < sizeof optims / sizeof *optims; i++) bench(ctx, model, optims[i], rate);
    abar_context_destroy(ctx);
    return 0;
}
