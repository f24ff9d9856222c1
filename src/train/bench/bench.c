/* Times training steps on a batch that is already in memory: the cost of the engine without the loader. */
#include "base/rng.h"
#include "train/bench/bench_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct abar_bench {
    abar_context *ctx;
    abar_setup *setup;
    abar_device *dev;
    abar_net *net, *extra; /* extra: of the further passes that some rules need; NULL: there are none */
    abar_optim *optim;
    abar_dataset_info info;
    abar__stepper stepper;
    abar__bench_ranks ranks;
    abar__nccl *nccl; /* of one rank, whose exchanges are timed, too; NULL: none */
    double *times;    /* of each step: whole, forward, backward, update, in exchanges of ranks */
    int64_t steps;
    int64_t period; /* steps between statistics, 0: none are taken */
    abar__bench_profile profile;
    abar_bench_row *rows;   /* one per operation and the update; NULL: not profiled */
    abar__replays *replays; /* of abar__bench_steps on a queued device */
    int64_t given;          /* steps on the host so far */
    abar__exchange exchange;
};

enum { WHOLE, FORWARD, BACKWARD, UPDATE, EXCHANGE, TIMES };

/* The classes in turn. */
static abar_status fill_labels(abar_bench *b, const abar_tensor *to)
{
    const int64_t count = abar_tensor_count(to);
    void *label;
    ABAR_TRY(abar__alloc(b->ctx, (size_t)count * sizeof(int32_t), &label));
    for (int64_t i = 0; i < count; i++) ((int32_t *)label)[i] = (int32_t)(i % b->info.classes);
    const abar_tensor host = abar_tensor_wrap(NULL, label, ABAR_I32, to->ndim, to->dim);
    abar_status status = abar_tensor_copy(b->ctx, to, &host);
    abar__free(b->ctx, label, (size_t)count * sizeof(int32_t));
    return status;
}

/* Normal noise for the input, or tokens in turn; labels in turn. */
static abar_status fill_input(abar_bench *b, const abar_net *net, int64_t seed)
{
    abar_tensor input = abar_net_input(net), target = abar_net_target(net);
    int64_t count = abar_tensor_count(&input);
    void *noise;
    ABAR_TRY(fill_labels(b, &target));
    if (b->info.text) return fill_labels(b, &input);
    ABAR_TRY(abar__alloc(b->ctx, (size_t)count * sizeof(float), &noise));
    for (int64_t i = 0; i < count; i += 2) {
        double normal[2];
        abar__normal(abar__random((uint64_t)seed, ABAR_DRAW_SYNTHETIC, 0, (uint64_t)i), normal);
        for (int64_t j = i; j < i + 2 && j < count; j++) ((float *)noise)[j] = (float)normal[j - i];
    }
    abar_tensor host = abar_tensor_wrap(NULL, noise, ABAR_F32, input.ndim, input.dim);
    abar_status status = abar_tensor_copy(b->ctx, &input, &host);
    abar__free(b->ctx, noise, (size_t)count * sizeof(float));
    return status;
}

/* What NCCL costs where there is nobody to exchange with. */
static abar_status join_over_nccl(abar_bench *b, const abar_setup *setup)
{
    ABAR_TRY(abar__exchange_over_nccl(b->ctx, NULL, b->dev, &b->nccl));
    abar__join_config config = abar__join_request(setup, b->dev, b->net, b->extra, abar_optim_pending_count(b->optim));
    config.nccl = b->nccl;
    ABAR_TRY(abar__join_create(b->ctx, &config, &b->ranks.join));
    b->stepper.join = &b->ranks.join;
    b->stepper.accumulate = b->ranks.join.count;
    return ABAR_OK;
}

/* Settings, which ranks must have in common. */
static abar_status settle(abar_bench *b, const abar_setup *given)
{
    ABAR_TRY(abar__setup_copy(b->ctx, given, &b->setup));
    ABAR_TRY(abar__ranks_compare_settings(b->ctx, b->ranks.comm, b->setup, false));
    ABAR_TRY(abar_setup_check(b->ctx, b->setup));
    ABAR_TRY(abar__ranks_settle(b->ctx, b->ranks.comm, b->setup));
    return ABAR_OK;
}

static abar_status make(abar_bench *b)
{
    const abar_setup *setup = b->setup;
    const abar_train_config *train = &setup->train;
    abar__net_request request = {.batch = abar__micro_of(train), .training = true};
    ABAR_TRY(abar__data_look(b->ctx, setup, &b->info));
    ABAR_TRY(abar__device_open(b->ctx, setup, &b->dev));
    if (b->dev->ops->stream &&
        (abar_comm_size(b->ranks.comm) > 1 || (train->micro > 0 && train->transport != ABAR_TRANSPORT_NCCL)))
        return abar__fail(b->ctx, ABAR_E_UNSUPPORTED,
                          "--device %s: bench times ranks and --micro on the CPU, and one rank with --transport nccl",
                          train->device);
    ABAR_TRY(abar__net_build(b->ctx, setup, &b->info, b->dev, &request, &b->net));
    ABAR_TRY(abar__extra_net_build(b->ctx, setup, &b->info, b->dev, b->net, false, &b->extra));
    ABAR_TRY(abar__optim_build(b->ctx, setup, b->dev, b->net, b->extra, &b->optim));
    b->exchange = (abar__exchange){.comm = b->ranks.comm, .dev = b->dev};
    ABAR_TRY(abar__ranks_divide(&b->exchange, b->optim));
    b->stepper = (abar__stepper){.ctx = b->ctx,
                                 .net = b->net,
                                 .extra = b->extra,
                                 .optim = b->optim,
                                 .info = &b->info,
                                 .micro = request.batch,
                                 .accumulate = abar__passes_of(train),
                                 .clip = train->clip,
                                 .seed = (uint64_t)train->seed};
    if (setup->train.transport == ABAR_TRANSPORT_NCCL)
        ABAR_TRY(join_over_nccl(b, setup));
    else if (!b->dev->ops->stream)
        ABAR_TRY(abar__bench_ranks_make(&b->ranks, setup, abar_optim_pending_count(b->optim), &b->stepper));
    const int64_t seed = train->seed + abar_comm_rank(b->ranks.comm);
    ABAR_TRY(fill_input(b, b->net, seed));
    return b->extra ? fill_input(b, b->extra, seed) : ABAR_OK;
}

/* All ranks, or none. */
static abar_status build(abar_bench *b, const abar_setup *given)
{
    abar_status status = settle(b, given);
    if (status == ABAR_OK) status = make(b);
    return abar_ranks_agree(b->ctx, b->ranks.comm, status, NULL);
}

/* The learning rate is 0: the weights do not change, so that every step computes on the same finite numbers. */
static abar_status run(abar_bench *b, int64_t steps, bool profile, double *times)
{
    for (int64_t k = 0; k < steps; k++) {
        abar__step_result r;
        const double began = abar__seconds(), exchanged = abar__comm_seconds(b->ranks.comm);
        ABAR_TRY(abar__stepper_run(&b->stepper, NULL, b->given++, 0.0, &r));
        if (!times) continue;
        if (profile) ABAR_TRY(abar_net_profile_take(b->net));
        times[WHOLE * steps + k] = abar__seconds() - began;
        times[FORWARD * steps + k] = r.forward_seconds;
        times[BACKWARD * steps + k] = r.backward_seconds;
        times[UPDATE * steps + k] = r.update_seconds;
        times[EXCHANGE * steps + k] = abar__comm_seconds(b->ranks.comm) - exchanged;
    }
    return ABAR_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The p-th quantile of n ascending numbers, with linear interpolation. */
static double quantile(const double *sorted, int64_t n, double p)
{
    double place = p * (double)(n - 1);
    int64_t below = (int64_t)place, above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}

double abar__median(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return quantile(values, n, 0.5);
}

static void summarise(abar_bench *b, int64_t batch, abar_bench_result *out)
{
    int64_t n = b->steps;
    for (int i = 0; i < TIMES; i++) qsort(b->times + i * n, (size_t)n, sizeof *b->times, ascending);
    const double *whole = b->times + WHOLE * n;
    out->ms_median = 1e3 * quantile(whole, n, 0.5);
    for (int64_t i = 0; i < n; i++) out->ms_mean += 1e3 * whole[i] / (double)n;
    out->ms_p10 = 1e3 * quantile(whole, n, 0.1);
    out->ms_p90 = 1e3 * quantile(whole, n, 0.9);
    if (!b->dev->ops->stream) {
        out->ms_forward = 1e3 * quantile(b->times + FORWARD * n, n, 0.5);
        out->ms_backward = 1e3 * quantile(b->times + BACKWARD * n, n, 0.5);
        out->ms_update = 1e3 * quantile(b->times + UPDATE * n, n, 0.5);
    }
    out->samples_per_second = 1e3 * (double)batch / out->ms_median;
    if (!b->dev->ops->stream) out->peak_bytes = abar_context_memory(b->ctx).peak;
    snprintf(out->device, sizeof out->device, "%s", abar_device_describe(b->dev));
}

/* Steps on the host, on request with the time of every operation. */
static abar_status measure_host(abar_bench *b, const abar_bench_config *config, abar_bench_result *result)
{
    ABAR_TRY(run(b, config->warmup, false, NULL));
    ABAR_TRY(abar_net_profile(b->net, config->profile));
    const abar_phase_times before = *abar_optim_times(b->optim);
    const uint64_t sent = abar__comm_sent(b->ranks.comm);
    ABAR_TRY(run(b, config->steps, config->profile, b->times));
    result->bytes_per_step = (double)(abar__comm_sent(b->ranks.comm) - sent) / (double)config->steps;
    const abar_phase_times after = *abar_optim_times(b->optim);
    result->ms_observe = 1e3 * (after.observe - before.observe) / (double)config->steps;
    result->ms_refresh = 1e3 * (after.refresh - before.refresh) / (double)config->steps;
    ABAR_TRY(abar__bench_ranks_measure(&b->ranks, b->setup, &b->stepper, b->given, b->times + EXCHANGE * config->steps,
                                       config->steps, result));
    if (!config->profile) return ABAR_OK;
    b->profile.steps = b->profile.observed = (double)config->steps;
    for (int64_t k = 0; k < config->steps; k++) b->profile.update_seconds += b->times[UPDATE * config->steps + k];
    return ABAR_OK;
}

static size_t rows_bytes(const abar_bench *b) { return ((size_t)abar_net_node_count(b->net) + 1) * sizeof *b->rows; }

static abar_status make_rows(abar_bench *b)
{
    void *memory;
    ABAR_TRY(abar__alloc(b->ctx, rows_bytes(b), &memory));
    b->rows = memory;
    for (int i = 0; i <= abar_net_node_count(b->net); i++) b->rows[i] = abar__bench_row(&b->stepper, &b->profile, b->period, i);
    return ABAR_OK;
}

static abar_status measure(abar_bench *b, const abar_setup *setup, const abar_bench_config *config, abar_bench_result *result)
{
    double began = abar__seconds();
    void *memory;
    ABAR_TRY(build(b, setup));
    setup = b->setup;
    b->steps = config->steps;
    ABAR_TRY(abar__alloc(b->ctx, (size_t)(TIMES * b->steps) * sizeof *b->times, &memory));
    b->times = memory;
    result->seconds_to_first_step = abar__seconds() - began;
    b->period = setup->method ? abar__curvature_config_of(setup)->tcov : 0;
    if (b->dev->ops->stream)
        ABAR_TRY(abar__bench_queued(b->dev, &b->stepper, b->period ? b->period : 1, config->warmup, config->steps, b->times,
                                    result, config->profile ? &b->profile : NULL));
    else
        ABAR_TRY(measure_host(b, config, result));
    result->copy_rate = b->profile.copy_rate;
    result->product_rate = b->profile.product_rate;
    summarise(b, setup->train.batch * abar__context_of(setup), result);
    return config->profile ? make_rows(b) : ABAR_OK;
}

abar_status abar_bench_run(abar_context *ctx, const abar_setup *setup, const abar_bench_config *config,
                           abar_bench_result *result, abar_bench **out)
{
    return abar_bench_run_on(ctx, NULL, setup, config, result, out);
}

abar_status abar_bench_run_on(abar_context *ctx, abar_comm *comm, const abar_setup *setup, const abar_bench_config *config,
                              abar_bench_result *result, abar_bench **out)
{
    if (out) *out = NULL;
    abar_bench_config c;
    abar_bench_result measured = {0};
    ABAR_TRY(abar__struct_read(ctx, "abar_bench_config", config, &c, sizeof c));
    ABAR_TRY(abar__struct_check(ctx, "abar_bench_result", result, sizeof measured));
    if (c.steps < 1 || c.steps > 1000000 || c.warmup < 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "bench: give 1 to 1000000 steps, and no negative warmup");
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_bench), &memory));
    abar_bench *b = memory;
    b->ctx = ctx;
    b->ranks.comm = comm;
    abar_status status = measure(b, setup, &c, &measured);
    abar__struct_write(&measured, sizeof measured, result);
    if (status == ABAR_OK && out)
        *out = b;
    else
        abar_bench_release(b);
    return status;
}

abar_status abar__bench_open(abar_context *ctx, const abar_setup *setup, abar_bench **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_bench), &memory));
    abar_bench *b = memory;
    b->ctx = ctx;
    abar_status status = build(b, setup);
    if (status == ABAR_OK && b->dev->ops->stream)
        status =
            abar__replays_create(b->dev, &b->stepper, setup->method ? abar__curvature_config_of(setup)->tcov : 1, &b->replays);
    if (status == ABAR_OK)
        *out = b;
    else
        abar_bench_release(b);
    return status;
}

abar_status abar__bench_steps(abar_bench *b, int64_t steps, double *seconds)
{
    const double began = abar__seconds();
    if (b->replays) ABAR_TRY(abar__replays_run(b->replays, steps));
    for (int64_t k = 0; k < steps && !b->replays; k++) {
        abar__step_result r;
        ABAR_TRY(abar__stepper_run(&b->stepper, NULL, b->given++, 0.0, &r));
    }
    *seconds = abar__seconds() - began;
    return ABAR_OK;
}

abar_device *abar__bench_device(const abar_bench *b) { return b->dev; }

const abar_net *abar_bench_net(const abar_bench *b) { return b->net; }

int abar_bench_row_count(const abar_bench *b) { return b->rows ? abar_net_node_count(b->net) + 1 : 0; }

const abar_bench_row *abar_bench_row_at(const abar_bench *b, int i) { return &b->rows[i]; }

void abar_bench_release(abar_bench *b)
{
    if (!b) return;
    abar__replays_destroy(b->replays);
    abar__bench_ranks_release(&b->ranks);
    if (b->rows) abar__free(b->ctx, b->rows, rows_bytes(b));
    abar__nccl_close(b->nccl);
    abar_optim_destroy(b->optim);
    abar_net_destroy(b->extra);
    abar_net_destroy(b->net);
    abar_device_close(b->dev);
    abar_setup_destroy(b->ctx, b->setup);
    abar__free(b->ctx, b->times, (size_t)(TIMES * b->steps) * sizeof *b->times);
    abar__free(b->ctx, b, sizeof *b);
}
