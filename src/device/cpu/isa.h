/* Vector kernels are plain C, compiled once per instruction set from src/device/cpu/isa/. Each file there exports one table
 * of functions, named ABAR_ISA_NAME(abar__family); users declare ABAR_ISA_EXTERN and pick by abar__isa_best(). */
#ifndef ABAR_ISA_H
#define ABAR_ISA_H

typedef enum abar__isa { ABAR_ISA_BASELINE, ABAR_ISA_AVX2, ABAR_ISA_AVX512 } abar__isa;

/* What this machine can run. */
abar__isa abar__isa_best(void);
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
