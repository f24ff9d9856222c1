/* What operations on sequences share. */
#ifndef ABAR_CUDA_SEQUENCE_H
#define ABAR_CUDA_SEQUENCE_H

#include "device/cuda/cuda_nn.h"

/* to (count), unless NULL, is written or added to with the sums of from (samples, count), of the device's activation dtype,
 * over samples. */
void abar__cuda_sum_samples(abar_device *dev, int64_t samples, int64_t count, const void *from, bool add, float *to);

#endif
