/* Kronecker spectra, Fisher matrices by the Gram trick, diagonality, attention, and the eigen-solvers behind them. */
#include "abar/analysis.h"
#include "analysis/attention.h"
#include "analysis/dense.h"
#include "analysis/factors.h"
#include "analysis_testing.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

static double draw(uint64_t seed, int64_t i)
{
    double pair[2];
    abar__normal(abar__random(seed, ABAR_DRAW_ANALYSIS, 0, (uint64_t)i), pair);
    return pair[0];
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

static void products_of_small_spectra_are_those_of_the_text(void **state)
{
    const double a[3] = {4.0, 2.0, 1.0}, p[2] = {8.0, 3.0}, expected[6] = {32.0, 16.0, 12.0, 8.0, 6.0, 3.0};
    double out[10];
    int64_t found;
    assert_fine(*state, abar__top_products(*state, a, 3, p, 2, 10, out, &found));
    assert_int_equal(found, 6);
    for (int i = 0; i < 6; i++) assert_near(out[i], expected[i], 0.0);
}

static void products_equal_sorting_all_of_them(void **state)
{
    enum { N = 40, M = 23, K = 300 };
    double a[N], b[M], all[N * M], out[K];
    int64_t found;
    for (int i = 0; i < N; i++) a[i] = i % 5 == 4 ? 0.0 : fabs(draw(1, i));
    for (int i = 0; i < M; i++) b[i] = fabs(draw(2, i));
    qsort(a, N, sizeof *a, descending);
    qsort(b, M, sizeof *b, descending);
    for (int i = 0; i < N * M; i++) all[i] = a[i / M] * b[i % M];
    qsort(all, N * M, sizeof *all, descending);
    assert_fine(*state, abar__top_products(*state, a, N, b, M, K, out, &found));
    assert_int_equal(found, K);
    for (int i = 0; i < K; i++) assert_near(out[i], all[i], 0.0);
}

/* ---- Fisher --------------------------------------------------------------------------------------------------------- */

/* The explicit Fisher matrix E[g g^T], g = vec sum_r p a^T. */
static void explicit_fisher(int64_t examples, int64_t rows, int64_t d, int64_t out, const double *a, const double *p, double *f)
{
    const int64_t side = d * out;
    double *g = malloc(sizeof *g * (size_t)side);
    assert_non_null(g);
    memset(f, 0, sizeof *f * (size_t)(side * side));
    for (int64_t n = 0; n < examples; n++) {
        memset(g, 0, sizeof *g * (size_t)side);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < side; i++) g[i] += p[(n * rows + r) * out + i / d] * a[(n * rows + r) * d + i % d];
        for (int64_t i = 0; i < side; i++)
            for (int64_t j = 0; j < side; j++) f[i * side + j] += g[i] * g[j] / (double)examples;
    }
    free(g);
}

static void check_gram(abar_context *ctx, int64_t examples, int64_t rows, int64_t d, int64_t out)
{
    const int64_t side = d * out;
    double *a = malloc(sizeof *a * (size_t)(examples * rows * d)), *p = malloc(sizeof *p * (size_t)(examples * rows * out));
    double *gram = malloc(sizeof *gram * (size_t)(examples * examples)),
           *fisher = malloc(sizeof *fisher * (size_t)(side * side));
    double *left = malloc(sizeof *left * (size_t)examples), *right = malloc(sizeof *right * (size_t)side);
    assert_true(a && p && gram && fisher && left && right);
    for (int64_t i = 0; i < examples * rows * d; i++) a[i] = draw(3, i);
    for (int64_t i = 0; i < examples * rows * out; i++) p[i] = draw(4, i);
    assert_fine(ctx, abar__fisher_gram(ctx, examples, rows, d, out, a, p, gram));
    explicit_fisher(examples, rows, d, out, a, p, fisher);
    assert_fine(ctx, abar__eigen_symmetric(ctx, examples, gram, false, left));
    assert_fine(ctx, abar__eigen_symmetric(ctx, side, fisher, false, right));
    const int64_t both = examples < side ? examples : side;
    for (int64_t i = 0; i < both; i++) assert_near(left[i] / (double)examples, right[i], 1e-10 * right[0]);
    for (int64_t i = both; i < side; i++) assert_near(right[i], 0.0, 1e-10 * right[0]);
    free(a);
    free(p);
    free(gram);
    free(fisher);
    free(left);
    free(right);
}

static void fisher_of_single_rows_equals_the_explicit_one(void **state) { check_gram(*state, 8, 1, 12, 10); }
static void fisher_of_many_small_rows_equals_the_explicit_one(void **state) { check_gram(*state, 9, 20, 5, 3); }
static void fisher_of_few_wide_rows_equals_the_explicit_one(void **state) { check_gram(*state, 7, 2, 40, 6); }

static void spectra_that_differ_by_a_factor_have_no_residual(void **state)
{
    double f[20], p[20];
    (void)state;
    for (int i = 0; i < 20; i++) p[i] = f[i] = pow(0.5, i);
    for (int i = 0; i < 20; i++) f[i] *= 7.0;
    abar__rescaling r = abar__compare_spectra(f, p, 20);
    assert_near(r.factor, 7.0, 1e-12);
    assert_near(r.rms, 0.0, 1e-7);
    assert_int_equal(r.pairs, 20);
    for (int i = 0; i < 20; i++) f[i] = i % 2 ? 10.0 * p[i] : p[i];
    r = abar__compare_spectra(f, p, 20);
    assert_near(r.rms, 0.5, 1e-12);
    f[3] = 0.0;
    assert_int_equal(abar__compare_spectra(f, p, 20).pairs, 3);
}

/* ---- diagonality ---------------------------------------------------------------------------------------------------- */

static void diagonality_can_say_yes_and_no(void **state)
{
    enum { N = 5 };
    double a[N * N];
    (void)state;
    for (int i = 0; i < N * N; i++) a[i] = i % (N + 1) ? 0.0 : 1.0 + i;
    abar__diagonality d = abar__diagonality_of(N, a);
    assert_near(d.share, 1.0, 1e-15);
    assert_near(d.correlation_share, 1.0, 1e-15);
    assert_near(d.correlation_mean, 0.0, 1e-15);
    for (int i = 0; i < N * N; i++) a[i] = 3.0; /* p = c 1 */
    d = abar__diagonality_of(N, a);
    assert_near(d.ratio, 1.0, 1e-15);
    assert_near(d.share, 1.0 / N, 1e-15);
    assert_near(d.correlation_mean, 1.0, 1e-15);
    assert_near(d.row_sum, N, 1e-15);
    for (int i = 0; i < N * N; i++) a[i] = i % (N + 1) ? -0.25 : 1.0; /* softmax gradients sum to 0 */
    assert_near(abar__diagonality_of(N, a).row_sum, 0.0, 1e-15);
}

static void diagonality_of_independent_numbers_is_small_correlation(void **state)
{
    enum { N = 8, ROWS = 20000 };
    double a[N * N] = {0};
    (void)state;
    for (int64_t r = 0; r < ROWS; r++) {
        double x[N];
        for (int i = 0; i < N; i++) x[i] = (1.0 + i) * draw(5, r * N + i);
        for (int i = 0; i < N * N; i++) a[i] += x[i / N] * x[i % N] / ROWS;
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i; j++) assert_true(fabs(a[i * N + j]) / sqrt(a[i * N + i] * a[j * N + j]) < 5.0 / sqrt(ROWS));
    assert_true(abar__diagonality_of(N, a).correlation_share > 0.99);
}

/* ---- attention ------------------------------------------------------------------------------------------------------ */

static abar__attention_summary attention(abar_context *ctx, int64_t n, const double *t, double *eigenvalues, double *columns)
{
    abar__attention_sums sums;
    abar__attention_summary s;
    assert_fine(ctx, abar__attention_create(ctx, n, &sums));
    assert_fine(ctx, abar__attention_add(&sums, t));
    assert_fine(ctx, abar__attention_add(&sums, t));
    assert_fine(ctx, abar__attention_summarise(&sums, &s, eigenvalues, NULL, columns));
    abar__attention_free(&sums);
    return s;
}

static void attention_uniform_is_rank_one(void **state)
{
    enum { N = 20 };
    double t[N * N], values[N];
    for (int i = 0; i < N * N; i++) t[i] = 1.0 / N;
    const abar__attention_summary s = attention(*state, N, t, values, NULL);
    assert_near(values[0], 1.0, 1e-12);
    for (int i = 1; i < N; i++) assert_near(values[i], 0.0, 1e-12);
    assert_near(s.cosine_stationary, 1.0, 1e-12);
    assert_near(s.cosine_singular, 1.0, 1e-12);
    assert_near(s.cosine_lower, 1.0, 1e-12);
    assert_near(s.rank1, 0.0, 1e-12);
    assert_near(s.printed, 1.0 - 1.0 / N, 1e-12);
    assert_near(s.share, 1.0, 1e-12);
}

/* T = alpha I + (1 - alpha) 1 t^T: eigenvalues 1 and alpha, stationary distribution t. */
static void attention_mixed_with_the_identity_has_known_eigenvalues(void **state)
{
    enum { N = 12 };
    const double alpha = 0.3;
    double t[N * N], target[N], values[N], columns[N], sum = 0.0, dot = 0.0, a = 0.0, b = 0.0;
    for (int j = 0; j < N; j++) sum += target[j] = 1.0 + j;
    for (int j = 0; j < N; j++) target[j] /= sum;
    for (int i = 0; i < N * N; i++) t[i] = (i % (N + 1) ? 0.0 : alpha) + (1.0 - alpha) * target[i % N];
    const abar__attention_summary s = attention(*state, N, t, values, columns);
    assert_near(values[0], 1.0, 1e-12);
    for (int i = 1; i < N; i++) assert_near(values[i], alpha, 1e-10);
    for (int j = 0; j < N; j++) {
        const double mean = alpha / N + (1.0 - alpha) * target[j];
        assert_near(columns[j], mean, 1e-14);
        dot += mean * target[j];
        a += mean * mean;
        b += target[j] * target[j];
    }
    assert_near(s.cosine_stationary, dot / sqrt(a * b), 1e-12);
}

/* Causal and uniform: T_ij = 1 / (i + 1) for j <= i. The stationary distribution is the first token, far from the columns; the
 * published code's number looks like agreement, with an "eigenvalue" that no stochastic matrix has. */
static void attention_causal_uniform_contradicts_the_published_number(void **state)
{
    enum { N = 50 };
    double t[N * N] = {0}, values[N], columns[N], length = 0.0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j <= i; j++) t[i * N + j] = 1.0 / (i + 1);
    const abar__attention_summary s = attention(*state, N, t, values, columns);
    for (int i = 0; i < N; i++) {
        assert_near(values[i], 1.0 / (i + 1), 1e-9);
        length += columns[i] * columns[i];
    }
    assert_near(s.cosine_stationary, columns[0] / sqrt(length), 1e-9);
    assert_near(s.cosine_stationary, 0.460, 5e-4);
    assert_near(s.cosine_lower, 0.988, 5e-4);
    assert_near(s.lower_largest, 2.49, 5e-3);
}

/* ---- solvers -------------------------------------------------------------------------------------------------------- */

typedef struct matrix {
    int64_t d;
    const double *a;
} matrix;

static void multiply(const void *user, const double *x, double *y)
{
    const matrix *m = user;
    for (int64_t i = 0; i < m->d; i++) y[i] = abar__dot(m->d, m->a + i * m->d, x);
}

/* The public calls, on matrices that are strided and single. */
static void probabilities_are_summed_and_checked(void **state)
{
    enum { N = 4 };
    abar_probabilities *p;
    abar_probabilities_summary s = {.size = sizeof s};
    float data[2 * N * N];
    double singular[N], columns[N];
    for (int i = 0; i < 2 * N * N; i++) data[i] = 1.0f / N;
    abar_tensor t = abar_tensor_wrap(NULL, data, ABAR_F32, 3, (int64_t[]){2, N, N});
    assert_fine(*state, abar_probabilities_create(*state, N, &p));
    assert_int_equal(abar_probabilities_summarise(p, &s, NULL, NULL, NULL), ABAR_E_STATE);
    assert_fine(*state, abar_probabilities_add(p, &t));
    assert_fine(*state, abar_probabilities_summarise(p, &s, NULL, singular, columns));
    assert_near(s.matrices, 2.0, 0.0);
    assert_near(s.cosine_stationary, 1.0, 1e-12);
    assert_near(s.rank1_error, 0.0, 1e-12);
    assert_near(s.printed_error, 1.0 - 1.0 / N, 1e-12);
    assert_near(s.top_share, 1.0, 1e-12);
    assert_near(singular[0], 1.0, 1e-12);
    for (int i = 0; i < N; i++) assert_near(columns[i], 1.0 / N, 1e-12);
    data[N * N + 1] = 0.9f;
    assert_int_equal(abar_probabilities_add(p, &t), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(*state), "sums to"));
    t.dim[2] = N - 1;
    assert_int_equal(abar_probabilities_add(p, &t), ABAR_E_ARGUMENT);
    abar_probabilities_destroy(p);
    assert_int_equal(abar_probabilities_create(*state, 0, &p), ABAR_E_ARGUMENT);
    abar_probabilities_destroy(NULL);
}

static void lanczos_agrees_with_lapack(void **state)
{
    enum { D = 200, K = 20 };
    double *a = malloc(sizeof *a * D * D), *copy = malloc(sizeof *copy * D * D), *rows = malloc(sizeof *rows * D * D),
           values[D], found[K], top[D];
    assert_true(a && copy && rows);
    for (int i = 0; i < D * D; i++) rows[i] = draw(7, i) * pow(0.9, i % D);
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) {
            a[i * D + j] = 0.0;
            for (int k = 0; k < D; k++) a[i * D + j] += rows[k * D + i] * rows[k * D + j];
        }
    memcpy(copy, a, sizeof *a * D * D);
    const matrix m = {D, copy};
    assert_fine(*state, abar__eigen_symmetric(*state, D, a, true, values));
    assert_fine(*state, abar__eigen_lanczos(*state, D, multiply, &m, K, found, top));
    for (int i = 0; i < K; i++) assert_near(found[i], values[i], 1e-9 * values[0]);
    assert_near(fabs(abar__dot(D, top, a)), 1.0, 1e-9);
    free(a);
    free(copy);
    free(rows);
}

/* An invariant subspace is left by a new direction. */
static void lanczos_survives_a_multiple_of_the_identity(void **state)
{
    double a[16] = {0}, values[3];
    for (int i = 0; i < 4; i++) a[5 * i] = 2.0;
    const matrix m = {4, a};
    assert_fine(*state, abar__eigen_lanczos(*state, 4, multiply, &m, 3, values, NULL));
    for (int i = 0; i < 3; i++) assert_near(values[i], 2.0, 1e-12);
}

static void singular_values_of_a_wide_matrix_are_known(void **state)
{
    double a[6] = {3.0, 0.0, 0.0, 0.0, 0.0, 2.0}, values[2], right[3];
    assert_fine(*state, abar__singular_values(*state, 2, 3, a, values, right));
    assert_near(values[0], 3.0, 1e-14);
    assert_near(values[1], 2.0, 1e-14);
    assert_near(fabs(right[0]), 1.0, 1e-14);
}

static void eigenvalues_of_what_is_not_finite_are_refused(void **state)
{
    double a[4] = {1.0, NAN, NAN, 1.0}, values[2], im[2];
    assert_int_equal(abar__eigen_symmetric(*state, 2, a, false, values), ABAR_E_NUMERIC);
    assert_int_equal(abar__eigen_general(*state, 2, a, values, im, NULL), ABAR_E_NUMERIC);
    assert_int_equal(abar__singular_values(*state, 2, 2, a, values, NULL), ABAR_E_NUMERIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(products_of_small_spectra_are_those_of_the_text, open_context, close_context),
        cmocka_unit_test_setup_teardown(products_equal_sorting_all_of_them, open_context, close_context),
        cmocka_unit_test_setup_teardown(fisher_of_single_rows_equals_the_explicit_one, open_context, close_context),
        cmocka_unit_test_setup_teardown(fisher_of_many_small_rows_equals_the_explicit_one, open_context, close_context),
        cmocka_unit_test_setup_teardown(fisher_of_few_wide_rows_equals_the_explicit_one, open_context, close_context),
        cmocka_unit_test_setup_teardown(spectra_that_differ_by_a_factor_have_no_residual, open_context, close_context),
        cmocka_unit_test_setup_teardown(diagonality_can_say_yes_and_no, open_context, close_context),
        cmocka_unit_test_setup_teardown(diagonality_of_independent_numbers_is_small_correlation, open_context, close_context),
        cmocka_unit_test_setup_teardown(attention_uniform_is_rank_one, open_context, close_context),
        cmocka_unit_test_setup_teardown(attention_mixed_with_the_identity_has_known_eigenvalues, open_context, close_context),
        cmocka_unit_test_setup_teardown(attention_causal_uniform_contradicts_the_published_number, open_context, close_context),
        cmocka_unit_test_setup_teardown(probabilities_are_summed_and_checked, open_context, close_context),
        cmocka_unit_test_setup_teardown(lanczos_agrees_with_lapack, open_context, close_context),
        cmocka_unit_test_setup_teardown(lanczos_survives_a_multiple_of_the_identity, open_context, close_context),
        cmocka_unit_test_setup_teardown(singular_values_of_a_wide_matrix_are_known, open_context, close_context),
        cmocka_unit_test_setup_teardown(eigenvalues_of_what_is_not_finite_are_refused, open_context, close_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
