/* Vector kernels are plain C in src/device/cpu/isa/, compiled once per instruction set. Each file exports one table of
 * functions, named ABAR_ISA_NAME(abar__family); users declare it with ABAR_ISA_EXTERN and select an entry by
 * abar__isa_best(ctx). */
#ifndef ABAR_ISA_H
#define ABAR_ISA_H

#include "base/base_impl.h"

typedef enum abar__isa { ABAR_ISA_BASELINE, ABAR_ISA_AVX2, ABAR_ISA_AVX512 } abar__isa;

abar__isa abar__isa_supported(void); /* the best set that this machine and this build have */
/* The set to use: the supported one, or a lesser one that the environment variable ABAR_ISA named when the context was created.
 */
abar__isa abar__isa_best(const abar_context *ctx);
/* Fails where ABAR_ISA named no set, or one above supported. Opening the device calls it. */
abar_status abar__isa_check(abar_context *ctx, abar__isa supported);
const char *abar__isa_name(abar__isa isa);

#define ABAR_ISA_JOIN2(a, b) a##_##b
#define ABAR_ISA_JOIN(a, b) ABAR_ISA_JOIN2(a, b)
#define ABAR_ISA_NAME(family) ABAR_ISA_JOIN(family, ABAR_ISA)

#ifdef ABAR_HAVE_X86_KERNELS
#define ABAR_ISA_EXTERN(type, family) extern const type family##_baseline, family##_avx2, family##_avx512
#define ABAR_ISA_TABLE(family)                               \
    {                                                        \
        &family##_baseline, &family##_avx2, &family##_avx512 \
    }
#else
#define ABAR_ISA_EXTERN(type, family) extern const type family##_baseline
#define ABAR_ISA_TABLE(family)                                     \
    {                                                              \
        &family##_baseline, &family##_baseline, &family##_baseline \
    }
#endif

#endif
