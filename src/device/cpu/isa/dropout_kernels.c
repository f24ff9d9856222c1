/* Dropout's factors: abar__random of base/rng.h, one draw per vector lane. */
#include "device/cpu/isa/dropout_kernels.h"
#include "base/rng.h"

static void factors(const abar__dropout_key *key, uint64_t draw, float *restrict out)
{
    enum { N = ABAR_DROPOUT_DRAWS };
    const uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    uint32_t c0[N], c1[N], c2[N], c3[N];
    for (int i = 0; i < N; i++) {
        uint64_t index = draw + (uint64_t)i;
        c0[i] = (uint32_t)index;
        c1[i] = (uint32_t)(index >> 32);
        c2[i] = key->when;
        c3[i] = ABAR_DRAW_DROPOUT;
    }
    for (uint32_t round = 0; round < 10; round++)
#pragma omp simd
        for (int i = 0; i < N; i++) abar__philox_round(&c0[i], &c1[i], &c2[i], &c3[i], k0, k1, round);
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
