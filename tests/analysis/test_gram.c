/* Sums of products of columns: every instruction set against plain loops, exactly. */
#include "device/cpu/stats_gram.h"
#include "analysis_testing.h"
#include "isa_testing.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Small integers: every sum is exact, whatever its order. */
static double number(int64_t i) { return (double)((i * 7919 + i / 3) % 17 - 8); }

static void make_matrix(int64_t rows, int64_t columns, double *x)
{
    for (int64_t i = 0; i < rows * columns; i++) x[i] = number(i);
}

static double dot_of_columns(int64_t rows, const double *x, int64_t n, int64_t i, const double *y, int64_t m, int64_t j)
{
    double sum = 0.0;
    for (int64_t r = 0; r < rows; r++) sum += x[r * n + i] * y[r * m + j];
    return sum;
}

static double *numbers(int64_t n)
{
    double *x = test_calloc((size_t)n, sizeof *x);
    return x;
}

static void check_add(const abar_context *ctx, int64_t rows, int64_t columns)
{
    const int64_t side = abar__gram_side(columns);
    double *x = numbers(rows * columns), *panels = numbers(rows * side), *sums = numbers(side * side);
    make_matrix(rows, columns, x);
    abar__gram_pack(x, rows, columns, columns, 1, panels);
    for (int64_t i = 0; i < side * side; i++) sums[i] = 3.0; /* it adds */
    abar__gram_add(ctx, rows, side, panels, sums);
    for (int64_t i = 0; i < side; i++)
        for (int64_t j = 0; j <= i; j++) {
            const bool inside = i < columns && j < columns;
            const double expected = 3.0 + (inside ? dot_of_columns(rows, x, columns, i, x, columns, j) : 0.0);
            assert_true(sums[i * side + j] == expected);
        }
    test_free(x);
    test_free(panels);
    test_free(sums);
}

static void check_multiply(const abar_context *ctx, int64_t rows, int64_t a_columns, int64_t b_columns)
{
    const int64_t a_side = abar__gram_side(a_columns), b_side = abar__gram_side(b_columns);
    double *a = numbers(rows * a_columns), *b = numbers(rows * b_columns), *sums = numbers(a_side * b_side);
    double *a_panels = numbers(rows * a_side), *b_panels = numbers(rows * b_side);
    make_matrix(rows, a_columns, a);
    make_matrix(rows, b_columns, b);
    abar__gram_pack(a, rows, a_columns, a_columns, 1, a_panels);
    abar__gram_pack(b, rows, b_columns, b_columns, 1, b_panels);
    abar__gram_multiply(ctx, rows, a_side, a_panels, b_side, b_panels, sums);
    for (int64_t i = 0; i < a_columns; i++)
        for (int64_t j = 0; j < b_columns; j++)
            assert_true(sums[i * b_side + j] == dot_of_columns(rows, a, a_columns, i, b, b_columns, j));
    test_free(a);
    test_free(b);
    test_free(sums);
    test_free(a_panels);
    test_free(b_panels);
}

/* Rows and columns below, at and above what a panel and a block hold. */
static void gram_of_any_shape_equals_plain_loops(void **state)
{
    static const int64_t rows[] = {1, 2, 255, 256, 257, 600}, columns[] = {1, 7, 8, 9, 16, 17, 24, 65, 130};
    char *saved = isa_save();
    (void)state;
    for (int isa = 0; isa <= (int)abar__isa_supported(); isa++) {
        abar_context *ctx;
        isa_force(abar__isa_name((abar__isa)isa));
        assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
                check_add(ctx, rows[r], columns[c]);
                check_multiply(ctx, rows[r], columns[c], columns[(c + 4) % (sizeof columns / sizeof *columns)]);
            }
        abar_context_destroy(ctx);
    }
    isa_restore(saved);
}

static void gram_of_columns_equals_that_of_the_transpose(void **state)
{
    enum { N = 11, M = 13, SIDE = 16 };
    double x[N * M], t[M * N], from_rows[N * SIDE], from_columns[N * SIDE];
    (void)state;
    make_matrix(N, M, x);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < M; j++) t[j * N + i] = x[i * M + j];
    abar__gram_pack(x, N, M, M, 1, from_rows);
    abar__gram_pack(t, N, M, 1, N, from_columns);
    assert_memory_equal(from_rows, from_columns, sizeof from_rows);
}

/* Sums of numbers that round: the same bits from one thread and from several. */
static void gram_does_not_depend_on_the_number_of_threads(void **state)
{
    enum { ROWS = 300, SIDE = 136 };
    const int before = omp_get_max_threads();
    abar_context *ctx;
    double *panels = numbers(ROWS * SIDE), *one = numbers(SIDE * SIDE), *several = numbers(SIDE * SIDE);
    (void)state;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    for (int64_t i = 0; i < ROWS * SIDE; i++) panels[i] = number(i) / 3.0;
    omp_set_num_threads(1);
    abar__gram_add(ctx, ROWS, SIDE, panels, one);
    for (int threads = 2; threads <= 5; threads++) {
        memset(several, 0, SIDE * SIDE * sizeof *several);
        omp_set_num_threads(threads);
        abar__gram_add(ctx, ROWS, SIDE, panels, several);
        assert_memory_equal(one, several, SIDE * SIDE * sizeof *several);
    }
    omp_set_num_threads(before);
    abar_context_destroy(ctx);
    test_free(panels);
    test_free(one);
    test_free(several);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gram_of_any_shape_equals_plain_loops),
        cmocka_unit_test(gram_of_columns_equals_that_of_the_transpose),
        cmocka_unit_test(gram_does_not_depend_on_the_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
