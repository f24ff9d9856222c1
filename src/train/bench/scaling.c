/* Timing several ranks: what their exchanges cost in a step, and how much faster they are than one of them. */
#include "train/bench/bench_impl.h"

abar_status abar__bench_ranks_make(abar__bench_ranks *r, const abar_setup *setup, int64_t pending, abar__stepper *stepper)
{
    if (setup->train.micro == 0) return ABAR_OK;
    abar__join_config config =
        abar__join_request(setup, abar_net_param(stepper->net, 0)->value.dev, stepper->net, stepper->extra, pending);
    config.comm = r->comm;
    ABAR_TRY(abar__join_create(stepper->ctx, &config, &r->join));
    stepper->join = &r->join;
    stepper->accumulate = r->join.count;
    return ABAR_OK;
}

void abar__bench_ranks_release(abar__bench_ranks *r) { abar__join_release(&r->join); }

/* ---- exchanges ---------------------------------------------------------------------------------------------------------- */

/* Of each step the mean over ranks, and how much less the rank has that all others waited for: it is the last to come, and does
 * not wait itself. */
static void summarise_exchanges(const double *all, int ranks, int64_t steps, double *mean, double *waiting)
{
    for (int64_t k = 0; k < steps; k++) {
        double sum = 0.0, least = all[k];
        for (int r = 0; r < ranks; r++) {
            const double seconds = all[r * steps + k];
            sum += seconds;
            least = seconds < least ? seconds : least;
        }
        mean[k] = sum / ranks;
        waiting[k] = mean[k] - least;
    }
}

static abar_status measure_exchanges(abar_context *ctx, abar_comm *comm, const double *own, int64_t steps,
                                     abar_bench_result *out)
{
    const int ranks = abar_comm_size(comm);
    const size_t bytes = (size_t)((ranks + 2) * steps) * sizeof *own;
    void *memory;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    double *all = memory, *mean = all + ranks * steps, *waiting = mean + steps;
    const abar_status status = abar__comm_gather(comm, own, (size_t)steps * sizeof *own, all);
    if (status == ABAR_OK) {
        summarise_exchanges(all, ranks, steps, mean, waiting);
        out->ms_exchange = 1e3 * abar__median(mean, steps);
        out->ms_waiting = 1e3 * abar__median(waiting, steps);
    }
    abar__free(ctx, memory, bytes);
    return status;
}

/* ---- one rank ----------------------------------------------------------------------------------------------------------- */

/* After every step the others hear that rank 0 is alive, and whether it has failed. seconds NULL: not timed. */
static abar_status run_alone(abar_comm *comm, const abar__stepper *alone, int64_t k, int64_t steps, double *seconds)
{
    for (int64_t i = 0; i < steps; i++) {
        const double began = abar__seconds();
        abar__step_result r;
        abar_status status = ABAR_OK;
        if (abar_comm_rank(comm) == 0) status = abar__stepper_run(alone, NULL, k + i, 0.0, &r);
        if (seconds) seconds[i] = abar__seconds() - began;
        ABAR_TRY(abar_ranks_agree(alone->ctx, comm, status, NULL));
    }
    return ABAR_OK;
}

static abar_status measure_alone(abar_comm *comm, const abar_setup *setup, const abar__stepper *stepper, int64_t k,
                                 int64_t steps, abar_bench_result *out)
{
    abar__bench_ranks one = {0};
    abar__stepper alone = *stepper;
    abar_context *ctx = stepper->ctx;
    void *seconds = NULL;
    abar_status status = abar__alloc(ctx, (size_t)steps * sizeof(double), &seconds);
    if (status == ABAR_OK && abar_comm_rank(comm) == 0)
        status = abar__bench_ranks_make(&one, setup, stepper->join->config.pending, &alone);
    if (status == ABAR_OK) status = abar__ranks_divide(&(abar__exchange){0}, stepper->optim);
    status = abar_ranks_agree(ctx, comm, status, NULL);
    if (status == ABAR_OK) status = run_alone(comm, &alone, k, 2, NULL); /* warm */
    if (status == ABAR_OK) status = run_alone(comm, &alone, k + 2, steps, seconds);
    if (status == ABAR_OK && abar_comm_rank(comm) == 0) {
        out->ms_alone = 1e3 * abar__median(seconds, steps);
        out->samples_per_second_alone = 1e3 * (double)(setup->train.batch * abar__context_of(setup)) / out->ms_alone;
    }
    abar__bench_ranks_release(&one);
    abar__free(ctx, seconds, (size_t)steps * sizeof(double));
    return status;
}

abar_status abar__bench_ranks_measure(abar__bench_ranks *r, const abar_setup *setup, const abar__stepper *stepper, int64_t k,
                                      const double *exchanging, int64_t steps, abar_bench_result *out)
{
    out->ranks = abar_comm_size(r->comm);
    if (out->ranks == 1) return ABAR_OK;
    ABAR_TRY(measure_exchanges(stepper->ctx, r->comm, exchanging, steps, out));
    return measure_alone(r->comm, setup, stepper, k, steps, out);
}
