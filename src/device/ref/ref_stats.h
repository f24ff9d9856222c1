/* The reference device's sums over rows that attention weighs (ref_stats_values.c), for its table in ref_stats.c. */
#ifndef ABAR_REF_STATS_H
#define ABAR_REF_STATS_H

#include "device/stats_impl.h"

void abar__ref_value_sums(abar_device *dev, const abar__rows *r, const abar__value_sums *v);
void abar__ref_position_sums(abar_device *dev, const abar__rows *r, const abar__position_sums *v);
void abar__ref_position_product(abar_device *dev, const abar__position_sums *p, int64_t in, bool bias, double sequences,
                                void *sum, double *square);

#endif
