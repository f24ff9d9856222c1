/* How long each stage takes from a file to a training image: reading, decoding with crop and resize, the policy. */
#ifndef ABAR_IMAGES_RATES_H
#define ABAR_IMAGES_RATES_H

#include "abar/data.h"

typedef struct abar__image_rates {
    double read, view, policy; /* images per second of each stage alone, all threads together; policy 0: there is none */
} abar__image_rates;

/* On `count` training images, drawn by the seed and read once before, so that their files are in memory. */
abar_status abar__image_rates_measure(const abar_dataset *data, const abar_augment_config *augment, uint64_t seed, int threads,
                                      int64_t count, abar__image_rates *out);

#endif
