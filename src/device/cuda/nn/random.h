/* Dropout's random numbers on the device: Philox4x32-10 as in base/rng.c. nn_impl.h defines the index of each draw: a mask
 * is equal on every device, and backward draws it again. */
#ifndef ABAR_CUDA_NN_RANDOM_H
#define ABAR_CUDA_NN_RANDOM_H

#include "device/cuda/nn/cuda_nn.h"

extern "C" {
#include "base/rng.h"
}

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

__device__ static inline uint4 philox(uint64_t seed, uint32_t when, uint64_t index)
{
    uint4 c = make_uint4((uint32_t)index, (uint32_t)(index >> 32), when, ABAR_DRAW_DROPOUT);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint32_t high0 = __umulhi(c.x, 0xD2511F53u), low0 = c.x * 0xD2511F53u;
        const uint32_t high1 = __umulhi(c.z, 0xCD9E8D57u), low1 = c.z * 0xCD9E8D57u;
        c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
    }
    return c;
}

/* Word i % 4. */
__device__ static inline uint32_t word_of(const uint4 &draw, uint32_t i)
{
    const uint32_t low = i & 1 ? draw.y : draw.x, high = i & 1 ? draw.w : draw.z;
    return i & 2 ? high : low;
}

#endif
