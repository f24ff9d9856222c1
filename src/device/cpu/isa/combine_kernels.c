/* Sums and copies of floats. */
#include "device/cpu/isa/combine_kernels.h"
#include "device/cpu/isa/lanes.h"

static void add(const float *restrict a, const float *restrict b, float *restrict y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void add_to(const float *restrict x, float *restrict y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

ABAR_SPECIALIZED void copy_lanes(const float *restrict from, int64_t from_stride, float *restrict to, int64_t to_stride,
                                 int64_t count, int lanes)
{
    for (int64_t i = 0; i < count; i++)
        for (int l = 0; l < lanes; l++) to[i * to_stride + l] = from[i * from_stride + l];
}

static void copy_groups(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t count, int lanes)
{
    switch (lanes) { /* the common cases: a whole block, half a block, a single float */
    case 16: copy_lanes(from, from_stride, to, to_stride, count, 16); break;
    case 8: copy_lanes(from, from_stride, to, to_stride, count, 8); break;
    case 1: copy_lanes(from, from_stride, to, to_stride, count, 1); break;
    default: copy_lanes(from, from_stride, to, to_stride, count, lanes);
    }
}

const abar__combine_kernels ABAR_ISA_NAME(abar__combine) = {add, add_to, copy_groups};
