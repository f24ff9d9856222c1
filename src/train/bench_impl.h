/* What the two ways of timing steps share. */
#ifndef ABAR_BENCH_IMPL_H
#define ABAR_BENCH_IMPL_H

#include "train/train_impl.h"

double abar__median(double *values, int64_t n); /* sorts them */

/* What a profile is made of, beside the times that the net keeps: sums over all profiled steps. */
typedef struct abar__bench_profile {
    double steps;    /* profiled: what the net's times are divided by, */
    double observed; /* and what those of its statistics are, so that they come out spread over the steps between */
    double update_seconds;
    double copy_rate, product_rate; /* 0: unknown */
} abar__bench_profile;

/* Seconds of each of `steps` whole steps, and out's times of the parts. period: steps between statistics. profile: NULL, or
 * filled from steps of their own, run after the others. */
abar_status abar__bench_queued(abar_device *dev, const abar__stepper *stepper, int64_t period, int64_t warmup, int64_t steps,
                               double *seconds, abar_bench_result *out, abar__bench_profile *profile);

/* Bytes per second, read and written, of a copy within the device's memory; flops per second of a large matrix product. */
abar_status abar__bench_rates(abar_device *dev, double *copy_rate, double *product_rate);

/* Row i of a profile; the update comes after the net's operations. period 0: no statistics are taken. */
abar_bench_row abar__bench_row(const abar__stepper *stepper, const abar__bench_profile *profile, int64_t period, int i);

/* Steps as training takes them, given again and again: to time several at a time, or in turns. */
typedef struct abar__replays abar__replays;
abar_status abar__replays_create(abar_device *dev, const abar__stepper *stepper, int64_t period, abar__replays **out);
void abar__replays_destroy(abar__replays *r);
abar_status abar__replays_run(abar__replays *r, int64_t steps); /* and waits for them; the first call warms up first */

/* A bench that was built and has run nothing; any device. */
abar_status abar__bench_open(abar_context *ctx, const abar_setup *setup, abar_bench **out);
/* The wall-clock seconds of so many steps; those of the first call warm up, too. Another thread than the one that opened it
 * may call. */
abar_status abar__bench_steps(abar_bench *b, int64_t steps, double *seconds);
abar_device *abar__bench_device(const abar_bench *b);

#endif
