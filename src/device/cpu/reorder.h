/* The interface of the kernels in isa/reorder_kernels.c. */
#ifndef ABAR_REORDER_H
#define ABAR_REORDER_H

#include "device/cpu/isa.h"

#include <stdint.h>

typedef struct abar__reorder_kernels {
    /* dst[q * dst_stride + r] = src[r * src_stride + q] for r < rows, q < columns; 0 for rows <= r < padded. */
    void (*transpose)(const float *src, int64_t src_stride, float *dst, int64_t dst_stride, int64_t rows, int64_t columns,
                      int64_t padded);
} abar__reorder_kernels;

ABAR_ISA_EXTERN(abar__reorder_kernels, abar__reorder);

#endif
