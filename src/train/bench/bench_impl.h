/* Internals of the benchmark: shared by timing on the host and on a queued device. */
#ifndef ABAR_BENCH_IMPL_H
#define ABAR_BENCH_IMPL_H

#include "train/train_impl.h"

double abar__median(double *values, int64_t n); /* sorts values */

/* Sums over the profiled steps, beside the times that the net keeps. */
typedef struct abar__bench_profile {
    double steps;    /* profiled steps: divisor of the net's times */
    double observed; /* divisor of the times of its statistics, which makes them averages over all steps */
    double update_seconds;
    double copy_rate, product_rate; /* 0: unknown */
} abar__bench_profile;

/* Seconds of each of `steps` whole steps, and the times of the parts in out. period: steps between statistics. profile: NULL,
 * or filled by further steps after the timed ones. */
abar_status abar__bench_queued(abar_device *dev, const abar__stepper *stepper, int64_t period, int64_t warmup, int64_t steps,
                               double *seconds, abar_bench_result *out, abar__bench_profile *profile);

/* Bytes read and written per second by a copy within the device's memory; flops per second of a large matrix product. */
abar_status abar__bench_rates(abar_device *dev, double *copy_rate, double *product_rate);

/* Row i of a profile; the update follows the net's operations. period 0: no statistics. */
abar_bench_row abar__bench_row(const abar__stepper *stepper, const abar__bench_profile *profile, int64_t period, int i);

/* Steps as in training, replayed any number of times: to time several benches side by side, or in turns. */
typedef struct abar__replays abar__replays;
abar_status abar__replays_create(abar_device *dev, const abar__stepper *stepper, int64_t period, abar__replays **out);
void abar__replays_destroy(abar__replays *r);
abar_status abar__replays_run(abar__replays *r, int64_t steps); /* waits for them; the first call warms up before */

/* A step as several ranks make it, each with its share of the micro-batches (scaling.c). */
typedef struct abar__bench_ranks {
    abar_comm *comm; /* NULL: one rank */
    abar__join join; /* without ctx: there is none */
} abar__bench_ranks;

/* Gives the stepper a join, where micro-batches are joined. Several ranks: setup is settled. pending: abar_optim_pending_count
 * before the first step. */
abar_status abar__bench_ranks_make(abar__bench_ranks *r, const abar_setup *setup, int64_t pending, abar__stepper *stepper);
/* All ranks, after the timed steps: what exchanges cost, from this rank's seconds in those of each step, and one rank alone. k:
 * of the next step. */
abar_status abar__bench_ranks_measure(abar__bench_ranks *r, const abar_setup *setup, const abar__stepper *stepper, int64_t k,
                                      const double *exchanging, int64_t steps, abar_bench_result *out);
void abar__bench_ranks_release(abar__bench_ranks *r);

/* A bench that has not run yet; any device. */
abar_status abar__bench_open(abar_context *ctx, const abar_setup *setup, abar_bench **out);
/* Wall-clock seconds of so many steps; in the first call with a warm-up. May be called from another thread than open. */
abar_status abar__bench_steps(abar_bench *b, int64_t steps, double *seconds);
abar_device *abar__bench_device(const abar_bench *b);

#endif
