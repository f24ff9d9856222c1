/* Philox4x32-10 as in base/rng.c, one draw per vector lane. */
#include "device/cpu/dropout_kernels.h"
#include "base/rng.h"

static void factors(const abar__dropout_key *key, uint64_t draw, float *restrict out)
{
    enum { N = ABAR_DROPOUT_DRAWS };
    uint32_t c0[N], c1[N], c2[N], c3[N], k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    for (int i = 0; i < N; i++) {
        uint64_t index = draw + (uint64_t)i;
        c0[i] = (uint32_t)index;
        c1[i] = (uint32_t)(index >> 32);
        c2[i] = key->when;
        c3[i] = ABAR_DRAW_DROPOUT;
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
#pragma omp simd
        for (int i = 0; i < N; i++) {
            uint64_t p0 = (uint64_t)c0[i] * 0xD2511F53u, p1 = (uint64_t)c2[i] * 0xCD9E8D57u;
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)p1;
            c3[i] = (uint32_t)p0;
        }
    const uint32_t least = key->least; /* local copies, so that the selection below needs no load and no branch */
    const float scale = key->scale;
    for (int i = 0; i < N; i++) {
        out[4 * i] = c0[i] >= least ? scale : 0;
        out[4 * i + 1] = c1[i] >= least ? scale : 0;
        out[4 * i + 2] = c2[i] >= least ? scale : 0;
        out[4 * i + 3] = c3[i] >= least ? scale : 0;
    }
}

const abar__dropout_kernels ABAR_ISA_NAME(abar__dropout) = {factors};
