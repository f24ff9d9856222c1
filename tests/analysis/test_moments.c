/* Mean, second moment and what follows from them, on rows whose numbers are known in closed form. */
#include "abar/analysis.h"
#include "analysis_testing.h"
#include "base/rng.h"

#include <stdlib.h>

static abar_moments *make(abar_context *ctx, int64_t d)
{
    abar_moments *m;
    assert_fine(ctx, abar_moments_create(ctx, d, &m));
    return m;
}

static void add(abar_context *ctx, abar_moments *m, const double *rows, int64_t n)
{
    const int64_t dim[2] = {n, abar_moments_side(m)};
    const abar_tensor t = abar_tensor_wrap(NULL, (void *)(uintptr_t)rows, ABAR_F64, 2, dim);
    assert_fine(ctx, abar_moments_add(m, &t));
}

static abar_moments_summary summary(abar_context *ctx, const abar_moments *m, double damping, double *values, int64_t n)
{
    abar_moments_summary s = {.size = sizeof s};
    assert_fine(ctx, abar_moments_summarise(m, damping, &s, values, n));
    return s;
}

static double draw(uint64_t seed, int64_t i)
{
    double pair[2];
    abar__normal(abar__random(seed, ABAR_DRAW_ANALYSIS, 0, (uint64_t)i), pair);
    return pair[0];
}

/* Rows c e_1 +- sqrt(d l_i) e_i: mean c e_1, covariance diag(l), A = diag(l) + c^2 e_1 e_1^T. */
static void add_axes(abar_context *ctx, abar_moments *m, const double *l, double c)
{
    const int64_t d = abar_moments_side(m);
    for (int64_t i = 0; i < d; i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double row[16] = {c};
            row[i] += sign * sqrt((double)d * l[i]);
            add(ctx, m, row, 1);
        }
}

static void moments_of_axes_are_exact(void **state)
{
    const double l[4] = {16.0, 4.0, 1.0, 0.25}, c = 8.0;
    double values[4], mean[4], second[16];
    abar_moments *m = make(*state, 4);
    add_axes(*state, m, l, c);
    const abar_moments_summary s = summary(*state, m, 1.0, values, 4);
    assert_fine(*state, abar_moments_read(m, mean, second));
    assert_near(values[0], 80.0, 80e-12);
    assert_near(values[1], 4.0, 4e-12);
    assert_near(values[2], 1.0, 1e-12);
    assert_near(values[3], 0.25, 1e-12);
    for (int i = 0; i < 4; i++) assert_near(mean[i], i == 0 ? 8.0 : 0.0, 1e-12);
    for (int i = 0; i < 16; i++) assert_near(second[i], i % 5 ? 0.0 : l[i / 5] + (i == 0 ? 64.0 : 0.0), 1e-11);
    assert_near(s.trace, 85.25, 1e-10);
    assert_near(s.mean_square, 64.0, 1e-11);
    assert_near(s.covariance_trace, 21.25, 1e-11);
    assert_near(s.covariance_norm, sqrt(256.0 + 16.0 + 1.0 + 0.0625), 1e-11);
    assert_near(s.covariance_spectral, 16.0, 1e-11);
    assert_near(s.cosine, 1.0, 1e-12);
    assert_near(s.gap, 76.0 / 80.0, 1e-12);
    assert_near(s.effective_rank, 85.25 / 80.0, 1e-12);
    assert_near(s.rank1_share, 64.0 / 85.25, 1e-12);
    assert_near(s.adaptive_damping, 21.25 / 4.0, 1e-11);
    abar_moments_destroy(m);
}

static void moments_isotropic_covariance_is_perfectly_preconditioned(void **state)
{
    const double l[3] = {0.25, 0.25, 0.25};
    abar_moments *m = make(*state, 3);
    add_axes(*state, m, l, 2.0);
    abar_moments_summary s = summary(*state, m, 0.25, NULL, 0);
    assert_near(s.cosine, 1.0, 1e-12);
    assert_near(s.largest, 4.25, 1e-12);
    assert_near(s.condition_sgd, 4.25 / 0.25, 1e-10);
    assert_near(s.condition_mac, 1.0, 1e-10); /* rho = s^2 */
    assert_near(s.adaptive_damping, 0.25, 1e-12);
    assert_near(s.kappa_mac, (4.0 + 0.25) / 0.5, 1e-11);
    assert_near(s.kappa_kfac, (4.25 + 0.25) / 0.5, 1e-11);
    s = summary(*state, m, 1.0, NULL, 0);
    assert_near(s.condition_mac, (4.25 / 5.0) / (0.25 / 1.0), 1e-10);
    assert_near(s.condition_foof, (4.25 / 5.25) / (0.25 / 1.25), 1e-10);
    abar_moments_destroy(m);
}

/* The tool can say no: the mean is orthogonal to the top eigenvector. */
static void moments_orthogonal_mean_has_cosine_zero(void **state)
{
    const double rows[4] = {1.0, 2.0, 1.0, -2.0};
    abar_moments *m = make(*state, 2);
    add(*state, m, rows, 2);
    const abar_moments_summary s = summary(*state, m, 1.0, NULL, 0);
    assert_near(s.cosine, 0.0, 1e-12);
    assert_near(s.distance, sqrt(2.0), 1e-12);
    abar_moments_destroy(m);
}

static void moments_zero_mean_has_no_cosine(void **state)
{
    const double rows[4] = {1.0, 2.0, -1.0, -2.0};
    abar_moments *m = make(*state, 2);
    add(*state, m, rows, 2);
    const abar_moments_summary s = summary(*state, m, 1.0, NULL, 0);
    assert_true(isnan(s.cosine) && isnan(s.rank1_error) && isnan(s.davis_kahan));
    abar_moments_destroy(m);
}

/* Two dimensions: the top eigenvector of x x^T + diag(s) has the angle atan2(2 a b, a^2 + s1 - b^2 - s2) / 2. */
static void moments_plane_has_the_closed_form_angle(void **state)
{
    for (int trial = 0; trial < 20; trial++) {
        const double a = draw(1, 4 * trial), b = draw(1, 4 * trial + 1), s1 = fabs(draw(1, 4 * trial + 2)),
                     s2 = fabs(draw(1, 4 * trial + 3));
        const double rows[8] = {a + sqrt(2.0 * s1), b, a - sqrt(2.0 * s1), b, a, b + sqrt(2.0 * s2), a, b - sqrt(2.0 * s2)};
        const double angle = 0.5 * atan2(2.0 * a * b, a * a + s1 - b * b - s2);
        abar_moments *m = make(*state, 2);
        add(*state, m, rows, 4);
        const abar_moments_summary s = summary(*state, m, 1.0, NULL, 0);
        assert_near(s.cosine, fabs(cos(angle) * a + sin(angle) * b) / hypot(a, b), 1e-9);
        abar_moments_destroy(m);
    }
}

/* Davis-Kahan: the distance of the mean's direction from the top eigenvector stays below both bounds. Identities of traces
 * and norms on the way. */
static void moments_random_rows_obey_bounds_and_identities(void **state)
{
    enum { D = 5, N = 12 };
    for (int trial = 0; trial < 1000; trial++) {
        double rows[N * D], second[D * D], mean[D], spread = pow(10.0, draw(2, trial)), square = 0.0, cross = 0.0;
        for (int i = 0; i < N * D; i++) rows[i] = (i % D == 0) + spread * draw(3, trial * N * D + i);
        abar_moments *m = make(*state, D);
        add(*state, m, rows, N);
        const abar_moments_summary s = summary(*state, m, 0.1, NULL, 0);
        assert_fine(*state, abar_moments_read(m, mean, second));
        assert_true(s.distance <= s.davis_kahan * (1.0 + 1e-12));
        assert_true(s.distance <= s.davis_kahan_sharp * (1.0 + 1e-12));
        assert_near(s.trace, s.covariance_trace + s.mean_square, 1e-12 * s.trace);
        for (int i = 0; i < D; i++)
            for (int j = 0; j < D; j++) {
                square += second[i * D + j] * second[i * D + j];
                cross += mean[i] * (second[i * D + j] - mean[i] * mean[j]) * mean[j];
            }
        assert_near(square, s.covariance_norm * s.covariance_norm + 2.0 * cross + s.mean_square * s.mean_square,
                    1e-11 * square);
        assert_true(s.mean_square <= s.largest * (1.0 + 1e-12));
        assert_true(s.largest <= (s.mean_square + s.covariance_spectral) * (1.0 + 1e-12));
        abar_moments_destroy(m);
    }
}

/* Proposition 1 and its weaker condition: |E|^2 <= eps m |x|^2 gives |X^T X - m x x^T| <= eps |m x x^T|, that is rank1_error
 * <= eps. */
static void moments_proposition_1_holds_at_its_border(void **state)
{
    enum { D = 4, N = 8 };
    for (int trial = 0; trial < 1000; trial++) {
        double rows[N * D];
        for (int i = 0; i < N * D; i++) rows[i] = 1.0 + exp(draw(4, trial)) * draw(5, trial * N * D + i);
        abar_moments *m = make(*state, D);
        add(*state, m, rows, N);
        const abar_moments_summary s = summary(*state, m, 0.1, NULL, 0);
        const double epsilon = s.covariance_trace / s.mean_square; /* |E|^2 = N tr S: the border of the weaker condition */
        assert_true(s.rank1_error <= epsilon * (1.0 + 1e-12));
        abar_moments_destroy(m);
    }
}

/* ReLU of normal numbers: |x|^2 = d / 2 pi, S = (1/2 - 1/2 pi) I, so the error is 2.1416 / sqrt(d). */
static void moments_of_rectified_normals_are_those_of_the_paper(void **state)
{
    const double pi = 3.14159265358979323846;
    enum { D = 144, N = 20000 };
    double *rows = malloc(sizeof *rows * N * D);
    assert_non_null(rows);
    for (int64_t i = 0; i < N * D; i++) rows[i] = fmax(0.0, draw(6, i));
    abar_moments *m = make(*state, D);
    add(*state, m, rows, N);
    free(rows);
    const abar_moments_summary s = summary(*state, m, 1.0, NULL, 0);
    assert_near(s.mean_square, D / (2.0 * pi), 0.03 * D / (2.0 * pi));
    assert_near(s.adaptive_damping, 0.5 - 0.5 / pi, 0.01);
    assert_near(s.rank1_error, 0.1785, 0.05 * 0.1785);
    assert_true(s.cosine > 0.998);
    abar_moments_destroy(m);
}

static void moments_do_not_lose_a_small_covariance(void **state)
{
    const double l[2] = {1e-12, 1e-14};
    abar_moments *m = make(*state, 2);
    add_axes(*state, m, l, 1000.0);
    const abar_moments_summary s = summary(*state, m, 1.0, NULL, 0);
    assert_near(s.covariance_trace, 1.01e-12, 0.2e-12); /* of 1e6: by differences of squares nothing would be left */
    abar_moments_destroy(m);
}

/* Beyond side 2048 the eigenvalues come by Lanczos. */
static void moments_of_a_large_side_find_the_top_eigenvalues(void **state)
{
    enum { D = 2100, N = 6 };
    double *rows = calloc(sizeof *rows, N * D), values[4];
    assert_non_null(rows);
    for (int i = 0; i < N; i++) rows[i * D + i] = sqrt(N * (6.0 - i)); /* A = diag(6, 5, 4, 3, 2, 1, 0, ...) */
    abar_moments *m = make(*state, D);
    add(*state, m, rows, N);
    free(rows);
    const abar_moments_summary s = summary(*state, m, 1.0, values, 4);
    for (int i = 0; i < 4; i++) assert_near(values[i], 6.0 - i, 1e-9);
    assert_true(isnan(s.least) && isnan(s.entropy_rank));
    assert_near(s.trace, 21.0, 1e-9);
    abar_moments_destroy(m);
}

static void moments_bad_calls_are_refused(void **state)
{
    abar_moments *m = make(*state, 3);
    abar_moments_summary s = {.size = sizeof s};
    double row[3] = {1.0, 2.0, NAN};
    const abar_tensor wrong = abar_tensor_wrap(NULL, row, ABAR_F64, 2, (int64_t[]){1, 2});
    assert_int_equal(abar_moments_summarise(m, 1.0, &s, NULL, 0), ABAR_E_STATE);
    assert_int_equal(abar_moments_add(m, &wrong), ABAR_E_ARGUMENT);
    add(*state, m, row, 1);
    assert_int_equal(abar_moments_summarise(m, 1.0, &s, NULL, 0), ABAR_E_NUMERIC);
    assert_int_equal(abar_moments_summarise(m, -1.0, &s, NULL, 0), ABAR_E_ARGUMENT);
    s.size = sizeof s + 8;
    assert_int_equal(abar_moments_summarise(m, 1.0, &s, NULL, 0), ABAR_E_ARGUMENT);
    abar_moments_destroy(m);
    assert_int_equal(abar_moments_create(*state, 0, &m), ABAR_E_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(moments_of_axes_are_exact, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_isotropic_covariance_is_perfectly_preconditioned, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_orthogonal_mean_has_cosine_zero, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_zero_mean_has_no_cosine, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_plane_has_the_closed_form_angle, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_random_rows_obey_bounds_and_identities, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_proposition_1_holds_at_its_border, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_of_rectified_normals_are_those_of_the_paper, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_do_not_lose_a_small_covariance, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_of_a_large_side_find_the_top_eigenvalues, open_context, close_context),
        cmocka_unit_test_setup_teardown(moments_bad_calls_are_refused, open_context, close_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
