/* Products of matrices that stay in the caches, read where they are: nothing is packed (methods.md sections 4 to 6). */
#ifndef ABAR_STATS_MATRIX_KERNELS_H
#define ABAR_STATS_MATRIX_KERNELS_H

#include "device/cpu/isa.h"

#include <stdbool.h>
#include <stdint.h>

/* Columns begin .. end - 1 of y (rows, n) = x (rows, k) b (k, n), or with last: x has one more column, b one more row.
 * Every element is one sum in the order of k, so that it does not depend on how rows and columns are shared out. */
typedef struct abar__matrix_product {
    int64_t rows, k, n, begin, end;
    const float *x, *last; /* element (i, l) of x at i * x_row + l * x_step; last (rows); NULL: none */
    int64_t x_row, x_step;
    const float *b; /* rows at b_pitch, of which all n columns may be read */
    int64_t b_pitch;
    float *y;
    int64_t y_pitch;
    bool add; /* to what is in y */
} abar__matrix_product;

typedef struct abar__matrix_kernels {
    void (*product)(const abar__matrix_product *p);
    float (*dot)(const float *x, const float *y, int64_t n);
    /* 0 if all of x is finite, and still is times largest */
    float (*finite)(const float *x, int64_t n, float largest);
    /* y = beta * y + add * x, matrices of rows at their pitches */
    void (*blend)(float *y, int64_t y_pitch, const float *x, int64_t x_pitch, int64_t rows, int64_t n, float beta, float add);
    void (*scale)(float *x, int64_t n, float factor);
    /* sums[0..2] += <x, x>, <x, y>, <y, y>, in double */
    void (*compare)(const float *x, const float *y, int64_t n, double *sums);
} abar__matrix_kernels;

ABAR_ISA_EXTERN(abar__matrix_kernels, abar__matrix);

#endif
