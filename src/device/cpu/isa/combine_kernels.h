/* Sums and copies of floats. */
#ifndef ABAR_COMBINE_KERNELS_H
#define ABAR_COMBINE_KERNELS_H

#include "device/cpu/isa.h"

#include <stdint.h>

typedef struct abar__combine_kernels {
    /* y = a + b */
    void (*add)(const float *a, const float *b, float *y, int64_t n);
    /* y += x */
    void (*add_to)(const float *x, float *y, int64_t n);
    /* Copies count groups of lanes floats; groups are from_stride apart in the source and to_stride in the destination. */
    void (*copy_groups)(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t count, int lanes);
} abar__combine_kernels;

ABAR_ISA_EXTERN(abar__combine_kernels, abar__combine);

#endif
