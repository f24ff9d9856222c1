/* What the two ways of timing steps share. */
#ifndef ABAR_BENCH_IMPL_H
#define ABAR_BENCH_IMPL_H

#include "train/train_impl.h"

double abar__median(double *values, int64_t n); /* sorts them */

/* Seconds of each of `steps` whole steps, and out's times of the parts. period: steps between statistics. */
abar_status abar__bench_queued(abar_device *dev, const abar__stepper *stepper, int64_t period, int64_t warmup, int64_t steps,
                               double *seconds, abar_bench_result *out);

#endif
