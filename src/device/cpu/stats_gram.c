/* Sums of products of columns: shares strips of the result among threads. */
#include "device/cpu/stats_gram.h"

#include <string.h>

enum {
    WIDTH = ABAR_GRAM_WIDTH,
    ROWS_AT_ONCE = 256,       /* a panel of so many rows stays in the first-level cache */
    SERIAL_PRODUCTS = 1 << 20 /* below so many products threads cost more than they save */
};

static const abar__gram_kernels *kernels(const abar_context *ctx)
{
    static const abar__gram_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__gram);
    return by_isa[abar__isa_best(ctx)];
}

void abar__gram_pack(const double *x, int64_t rows, int64_t columns, int64_t row, int64_t column, double *panels)
{
    for (int64_t first = 0; first < columns; first += WIDTH, panels += rows * WIDTH) {
        const int64_t n = columns - first < WIDTH ? columns - first : WIDTH;
        if (n < WIDTH) memset(panels, 0, (size_t)(rows * WIDTH) * sizeof *panels);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < n; j++) panels[i * WIDTH + j] = x[i * row + (first + j) * column];
    }
}

/* WIDTH rows of the result: those of panel a, against the first panels of b. */
static void add_strip(const abar__gram_kernels *k, int64_t rows, const double *a, const double *b, int64_t panels, double *sums,
                      int64_t pitch)
{
    for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE)
        k->add(&(abar__gram_strip){.rows = rows - first < ROWS_AT_ONCE ? rows - first : ROWS_AT_ONCE,
                                   .panels = panels,
                                   .a = a + first * WIDTH,
                                   .b = b + first * WIDTH,
                                   .step = rows * WIDTH,
                                   .sums = sums,
                                   .pitch = pitch});
}

void abar__gram_add(const abar_context *ctx, int64_t rows, int64_t side, const double *panels, double *sums)
{
    const abar__gram_kernels *k = kernels(ctx);
    const int64_t n = side / WIDTH;
#pragma omp parallel for schedule(dynamic) if (rows * side * side / 2 > SERIAL_PRODUCTS)
    for (int64_t i = 0; i < n; i++) { /* the longest strips first */
        const int64_t p = n - 1 - i;
        add_strip(k, rows, panels + p * rows * WIDTH, panels, p + 1, sums + p * WIDTH * side, side);
    }
}

void abar__gram_add_rows(const abar_context *ctx, int64_t examples, int64_t numbers, const double *g, double *panels,
                         double *sums)
{
    const int64_t side = abar__gram_side(examples);
    for (int64_t first = 0; first < numbers; first += ABAR_GRAM_BLOCK) {
        const int64_t n = numbers - first < ABAR_GRAM_BLOCK ? numbers - first : ABAR_GRAM_BLOCK;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < side; i += WIDTH)
            abar__gram_pack(g + i * numbers + first, n, examples - i < WIDTH ? examples - i : WIDTH, 1, numbers,
                            panels + i * n);
        abar__gram_add(ctx, n, side, panels, sums);
    }
}

void abar__gram_multiply(const abar_context *ctx, int64_t rows, int64_t a_side, const double *a, int64_t b_side,
                         const double *b, double *sums)
{
    const abar__gram_kernels *k = kernels(ctx);
    for (int64_t p = 0; p < a_side / WIDTH; p++)
        add_strip(k, rows, a + p * rows * WIDTH, b, b_side / WIDTH, sums + p * WIDTH * b_side, b_side);
}
