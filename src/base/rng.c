/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
#include "base/rng.h"

#include <math.h>

abar__draw abar__philox(const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (uint32_t round = 0; round < 10; round++) abar__philox_round(&c0, &c1, &c2, &c3, key[0], key[1], round);
    return (abar__draw){{c0, c1, c2, c3}};
}

abar__draw abar__random(uint64_t seed, abar__purpose purpose, uint32_t when, uint64_t index)
{
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), when, (uint32_t)purpose};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    return abar__philox(counter, key);
}

void abar__normal(abar__draw d, double out[2])
{
    uint64_t a = ((uint64_t)d.u[0] << 32 | d.u[1]) >> 11, b = ((uint64_t)d.u[2] << 32 | d.u[3]) >> 11;
    double radius = sqrt(-2.0 * log(((double)a + 0.5) * 0x1p-53));
    double angle = 6.283185307179586476925 * ((double)b * 0x1p-53);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}
