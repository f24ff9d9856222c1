/* Which instruction set the cpu's own kernels use: the best this machine has, or the one that ABAR_ISA names
 * (base/context.c reads it). */
#include "abar/device.h"
#include "device/cpu/isa.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const names[] = {"baseline", "avx2", "avx512"};

const char *abar__isa_name(abar__isa isa) { return names[isa]; }

abar__isa abar__isa_supported(void)
{
#ifdef ABAR_HAVE_X86_KERNELS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return ABAR_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return ABAR_ISA_AVX2;
#endif
    return ABAR_ISA_BASELINE;
}

/* The index in names of what ABAR_ISA asks for: -1 where it is unset or empty, the number of names where it is none of them. */
static int forced(const char *value)
{
    const int n = sizeof names / sizeof *names;
    if (!*value) return -1;
    int i = 0;
    while (i < n && strcmp(value, names[i]) != 0) i++;
    return i;
}

abar_status abar__isa_check(abar_context *ctx, abar__isa supported)
{
    const char *value = abar__context_isa(ctx);
    int isa = forced(value);
    if (isa <= (int)supported) return ABAR_OK;
    if (isa > (int)ABAR_ISA_AVX512)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "ABAR_ISA=%s: no such instruction set, use baseline, avx2 or avx512", value);
    return abar__fail(ctx, ABAR_E_UNSUPPORTED, "ABAR_ISA=%s: this machine or build has no %s, unset it or use %s", value, value,
                      names[supported]);
}

abar__isa abar__isa_best(const abar_context *ctx)
{
    int isa = forced(abar__context_isa(ctx));
    abar__isa supported = abar__isa_supported();
    return isa >= 0 && isa < (int)supported ? (abar__isa)isa : supported;
}

const char *abar_blas_coretype(void)
{
    static const char *const suitable[] = {NULL, "Haswell", "SkylakeX"};
    /* what OpenBLAS takes for models that it does not know; all are older than AVX2 */
    static const char *const fallbacks[] = {"Prescott", "Core2", "Nehalem", "Barcelona", "Sandybridge", "Generic"};
    const char *told = getenv("OPENBLAS_CORETYPE"), *isa = getenv("ABAR_ISA");
    if ((told && *told) || (isa && *isa)) return NULL;
    for (size_t i = 0; i < sizeof fallbacks / sizeof *fallbacks; i++)
        if (strcasecmp(openblas_get_corename(), fallbacks[i]) == 0) return suitable[abar__isa_supported()];
    return NULL;
}
