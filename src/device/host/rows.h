/* Stages on rows that a plan keeps until the step: nearest Kronecker factors, and products of gradients with inverses that rows
 * stand for. */
#ifndef ABAR_HOST_ROWS_H
#define ABAR_HOST_ROWS_H

#include "device/device_impl.h"

typedef enum abar__rows_result {
    ABAR_ROWS_JOINED, /* the factors are pending, finite or not */
    ABAR_ROWS_ZERO    /* a factor is zero: there is nothing to commit */
} abar__rows_result;

static inline bool abar__plan_is_nearest(const abar__plan *p) { return p->average[0].source == ABAR_INPUT_NEAREST; }

/* Before the commit: scales the kept rows by to_mean, and makes the nearest factors from them, which are then pending. scratch:
 * abar__rows_nearest_scratch bytes, which hold the next start and a second term until abar__rows_keep. */
abar__rows_result abar__rows_nearest(abar_device *dev, const abar__plan *p, const abar__map_state *state,
                                     const double to_mean[2], void *scratch);
bool abar__rows_second_is_finite(abar_device *dev, const abar__plan *p, void *scratch); /* or there is none */
/* Once the factors are committed: the next start, and averages of a second term. */
void abar__rows_keep(abar_device *dev, const abar__plan *p, double beta, void *scratch);
size_t abar__rows_nearest_scratch(const abar_device *dev, const abar__plan *p);

/* y (out, d) = left x right, where rows stand for one of the factors; y is not x. spare: (out, d). scratch:
 * abar__rows_treat_scratch bytes. */
void abar__rows_treat(abar_device *dev, const abar__plan *p, const void *x, void *y, void *spare, void *scratch);
size_t abar__rows_treat_scratch(const abar_device *dev, const abar__plan *p);
/* Whether rows stand for a factor of the plan. */
bool abar__plan_treats_by_rows(const abar__plan *p);

#endif
