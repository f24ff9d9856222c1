/* Dropout's random numbers on the device. nn_impl.h defines the index of each draw: a mask is equal on every device, and
 * backward draws it again. */
#ifndef ABAR_CUDA_NN_DROPOUT_H
#define ABAR_CUDA_NN_DROPOUT_H

#include "device/cuda/core/philox.h"
#include "device/cuda/nn/cuda_nn.h"

#include <math.h>

typedef struct dropout_key {
    uint64_t seed;
    const int64_t *step_now; /* device memory; NULL: step */
    uint32_t step, number;
    uint32_t least; /* elements with smaller words are dropped */
    float scale;    /* the factor of elements that are kept */
} dropout_key;

static inline dropout_key dropout_key_of(const abar__op_desc *d, const abar__run *run)
{
    const double least = ceil(d->drop * 0x1p32);
    dropout_key key = {};
    key.seed = run->seed;
    key.step_now = run->step_now;
    key.step = run->step;
    key.number = d->number;
    if (least >= 0x1p32) return key; /* all elements are dropped: every factor is the zero scale */
    key.least = (uint32_t)least;
    key.scale = (float)(1.0 / (1.0 - d->drop));
    return key;
}

__device__ static inline uint32_t dropout_when(const dropout_key &key)
{
    return (key.step_now ? (uint32_t)*key.step_now : key.step) * 256u + key.number;
}

__device__ static inline uint4 dropout_draw(const dropout_key &key, uint32_t when, uint64_t index)
{
    return abar__cuda_random(key.seed, ABAR_DRAW_DROPOUT, when, index);
}

/* Word i % 4. */
__device__ static inline uint32_t word_of(const uint4 &draw, uint32_t i)
{
    const uint32_t low = i & 1 ? draw.y : draw.x, high = i & 1 ? draw.w : draw.z;
    return i & 2 ? high : low;
}

#endif
