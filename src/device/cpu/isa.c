/* Which instruction set to use. ABAR_ISA=baseline|avx2|avx512 in the environment lowers the choice, for tests. */
#include "device/cpu/isa.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"baseline", "avx2", "avx512"};

const char *abar__isa_name(abar__isa isa) { return names[isa]; }

static abar__isa detect(void)
{
#ifdef ABAR_HAVE_X86_KERNELS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return ABAR_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return ABAR_ISA_AVX2;
#endif
    return ABAR_ISA_BASELINE;
}

abar__isa abar__isa_best(void)
{
    abar__isa best = detect();
    const char *wish = getenv("ABAR_ISA");
    for (int i = 0; wish && i < (int)best; i++)
        if (strcmp(wish, names[i]) == 0) return (abar__isa)i;
    return best;
}
