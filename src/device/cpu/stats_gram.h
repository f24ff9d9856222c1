/* Sums of products of columns, in double precision and by several threads: second moments, per-example gradients and their
 * Gram matrices. Not OpenBLAS's dsyrk, which is slow on processors newer than the library, and has threads of its own in some
 * builds. Every sum is made in the order of the rows, so results do not depend on the number of threads. */
#ifndef ABAR_CPU_STATS_GRAM_H
#define ABAR_CPU_STATS_GRAM_H

#include "device/cpu/isa/stats_gram_kernels.h"

/* Columns in whole panels. */
static inline int64_t abar__gram_side(int64_t columns)
{
    return (columns + ABAR_GRAM_WIDTH - 1) / ABAR_GRAM_WIDTH * ABAR_GRAM_WIDTH;
}

/* Packs x (rows, columns), element (i, j) at i * row + j * column, into panels (side / 8, rows, 8); columns beyond the last
 * are 0. */
void abar__gram_pack(const double *x, int64_t rows, int64_t columns, int64_t row, int64_t column, double *panels);

/* sums (side, side) += xT x: the lower triangle, in whole blocks of 8 x 8. panels: x (rows, side). */
void abar__gram_add(const abar_context *ctx, int64_t rows, int64_t side, const double *panels, double *sums);

/* sums (side, side) += g gT for g (examples, numbers), side: examples in whole panels. panels: workspace (side,
 * ABAR_GRAM_BLOCK). */
enum { ABAR_GRAM_BLOCK = 512 };
void abar__gram_add_rows(const abar_context *ctx, int64_t examples, int64_t numbers, const double *g, double *panels,
                         double *sums);

/* sums (a_side, b_side) += aT b, by the calling thread alone. */
void abar__gram_multiply(const abar_context *ctx, int64_t rows, int64_t a_side, const double *a, int64_t b_side,
                         const double *b, double *sums);

#endif
