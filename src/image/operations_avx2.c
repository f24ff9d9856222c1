/* The same loops of operations, compiled for AVX2. */
#include "image/operations_loops.h"

#ifdef ABAR_HAVE_X86_KERNELS

#define AVX2 __attribute__((target("avx2")))

AVX2 static void interpolate(const abar__affine_job *job, const abar__affine_line *right, const abar__affine_line *down,
                             int32_t y, abar__affine_run run, bool clamped, const uint8_t *in, uint8_t *out)
{
    interpolate_loop(job, right, down, y, run, clamped, in, out);
}

AVX2 static void blend_with_gray(float factor, int64_t n, const uint8_t *in, uint8_t *out) { gray_loop(factor, n, in, out); }

AVX2 static int64_t sum_gray(int64_t n, const uint8_t *in) { return sum_loop(n, in); }

AVX2 static void sharpen(float factor, int32_t width, int32_t n, const uint8_t *in, uint8_t *out)
{
    sharpen_loop(factor, width, n, in, out);
}

const abar__operation_loops *abar__operations_avx2(void)
{
    static const abar__operation_loops loops = {"avx2", interpolate, blend_with_gray, sum_gray, sharpen};
    return __builtin_cpu_supports("avx2") ? &loops : NULL;
}

#else

const abar__operation_loops *abar__operations_avx2(void) { return NULL; }

#endif
