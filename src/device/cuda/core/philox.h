/* Random numbers in kernels: abar__random of base/rng.h, to the bit. */
#ifndef ABAR_CUDA_CORE_PHILOX_H
#define ABAR_CUDA_CORE_PHILOX_H

#include "device/cuda/core/cuda_impl.h"

extern "C" {
#include "base/rng.h"
}

__device__ static inline uint4 abar__cuda_random(uint64_t seed, abar__purpose purpose, uint32_t when, uint64_t index)
{
    uint4 c = make_uint4((uint32_t)index, (uint32_t)(index >> 32), when, (uint32_t)purpose);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint32_t high0 = __umulhi(c.x, 0xD2511F53u), low0 = c.x * 0xD2511F53u;
        const uint32_t high1 = __umulhi(c.z, 0xCD9E8D57u), low1 = c.z * 0xCD9E8D57u;
        c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
    }
    return c;
}

#endif
