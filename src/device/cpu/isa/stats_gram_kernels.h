/* Products of columns summed over rows, in double precision: the inner loop of the analyses' second moments. */
#ifndef ABAR_STATS_GRAM_KERNELS_H
#define ABAR_STATS_GRAM_KERNELS_H

#include "device/cpu/isa.h"

#include <stdint.h>

enum { ABAR_GRAM_WIDTH = 8 }; /* columns of a panel */

/* A panel holds eight columns of a matrix, row after row: (rows, 8). */
typedef struct abar__gram_strip {
    int64_t rows, panels;
    const double *a, *b; /* one panel, and the first of several, step numbers apart */
    int64_t step;
    double *sums; /* (8, 8 panels), rows at pitch: += aT b */
    int64_t pitch;
} abar__gram_strip;

typedef struct abar__gram_kernels {
    void (*add)(const abar__gram_strip *strip);
} abar__gram_kernels;

ABAR_ISA_EXTERN(abar__gram_kernels, abar__gram);

#endif
