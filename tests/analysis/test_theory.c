/* The convergence theorem, as printed and as corrected, on beds whose numbers are known in closed form. */
#include "analysis/theory.h"
#include "analysis_testing.h"

#include <string.h>

static const double pi = 3.14159265358979323846;

static const abar__theory_statement *find(const abar__theory *t, const char *name)
{
    for (int i = 0; i < t->statements; i++)
        if (strcmp(t->statement[i].name, name) == 0) return &t->statement[i];
    fail_msg("no statement %s", name);
    return NULL;
}

static void assert_holds(const abar__theory *t, const char *name)
{
    const abar__theory_statement *s = find(t, name);
    if (s->verdict != ABAR_VERDICT_HOLDS) fail_msg("%s: verdict %d at step %lld", name, (int)s->verdict, (long long)s->at);
}

static void assert_all_hold(const abar__theory *t)
{
    static const char *const always[] = {"I0", "I1", "I2", "I4", "I5", "I6", "I6b", "I7", "I8"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) assert_holds(t, always[i]);
}

static abar__theory run(abar_context *ctx, abar__theory_config config)
{
    abar__theory t;
    if (config.delta == 0.0) config.delta = 0.1;
    assert_fine(ctx, abar__theory_run(ctx, &config, &t));
    return t;
}

/* Closed form: lambda = 1/4, lambda(G) = (1/2 - c/4) / rho and (1/2 - c (n+1) / 4) / rho with c = 1 / (n^2 rho + n). */
static void theory_orthonormal_points_give_the_closed_form(void **state)
{
    abar__theory t = run(
        *state, (abar__theory_config){.points = ABAR_POINTS_ORTHONORMAL, .n = 16, .d = 16, .m = 64, .rho = 0.1, .steps = 1});
    assert_near(t.sigma_limit, 0.25, 1e-13);
    assert_near(t.gram_min, 1.0, 1e-12);
    assert_near(t.gram_max, 1.0, 1e-12);
    assert_near(t.mean_square, 1.0 / 16.0, 1e-15);
    assert_near(t.g_limit_max, 4.939904, 1e-6);
    assert_near(t.g_limit_min, 3.978365, 1e-6);
    const double c = 1.0 / (16.0 * 16.0 * 0.1 + 16.0);
    assert_near(t.g_limit_max, (0.5 - c / 4.0) / 0.1, 1e-12);
    assert_near(t.g_limit_min, (0.5 - c * 17.0 / 4.0) / 0.1, 1e-12);
    abar__theory_free(&t);
}

static void theory_two_close_points_give_a_small_eigenvalue(void **state)
{
    const double angle = 0.01, x[4] = {1.0, 0.0, cos(angle), sin(angle)};
    abar__theory t = run(
        *state, (abar__theory_config){.points = ABAR_POINTS_GIVEN, .given = x, .n = 2, .d = 2, .m = 8, .rho = 1.0, .steps = 1});
    assert_near(t.sigma_limit, angle / (2.0 * pi), 1e-12);
    abar__theory_free(&t);
}

static void theory_wide_network_meets_every_statement(void **state)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        abar__theory t = run(
            *state, (abar__theory_config){
                        .points = ABAR_POINTS_ORTHONORMAL, .n = 16, .d = 16, .m = 4096, .rho = 1.0, .steps = 60, .seed = seed});
        assert_all_hold(&t);
        assert_holds(&t, "I7c");
        assert_holds(&t, "I8b");
        assert_holds(&t, "I9");
        assert_true(t.condition2 < 0.4);
        assert_true(sqrt(t.step[60].residual) < 1e-12);
        assert_near(t.eta, 0.9 / t.g_limit_max, 1e-15);
        abar__theory_free(&t);
    }
}

static void theory_sphere_and_positive_points_meet_the_statements(void **state)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        abar__theory sphere =
            run(*state, (abar__theory_config){
                            .points = ABAR_POINTS_SPHERE, .n = 8, .d = 32, .m = 1024, .rho = 0.1, .steps = 40, .seed = seed});
        assert_all_hold(&sphere);
        assert_int_equal(find(&sphere, "I9")->verdict, ABAR_VERDICT_VACUOUS); /* n < d: lambda_min(X^T X) = 0 */
        abar__theory_free(&sphere);
        abar__theory positive = run(
            *state, (abar__theory_config){
                        .points = ABAR_POINTS_POSITIVE, .n = 32, .d = 16, .m = 1024, .rho = 0.1, .steps = 40, .seed = seed});
        assert_all_hold(&positive);
        abar__theory_free(&positive);
    }
}

/* The counter-example to the theorem as printed. */
static void theory_circle_violates_the_printed_bound(void **state)
{
    static const struct {
        int64_t n, at, at_small_rate;
    } cases[] = {{11, 194, 819}, {21, 57, 230}, {41, 40, 158}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar__theory_config config = {
            .points = ABAR_POINTS_CIRCLE, .n = cases[i].n, .d = 2, .rho = 1.0, .steps = 1000, .one_point = true};
        abar__theory t = run(*state, config);
        assert_near(t.mean_square, 0.0, 1e-28);
        assert_int_equal(find(&t, "I9")->verdict, ABAR_VERDICT_VIOLATED);
        assert_int_equal(find(&t, "I9")->at, cases[i].at);
        assert_holds(&t, "I7");
        config.rate = config.rho / t.gram_max;
        abar__theory_free(&t);
        t = run(*state, config);
        assert_int_equal(find(&t, "I9")->at, cases[i].at_small_rate);
        assert_holds(&t, "I7");
        abar__theory_free(&t);
    }
}

static void theory_circle_limit_has_known_numbers(void **state)
{
    abar__theory t = run(
        *state,
        (abar__theory_config){.points = ABAR_POINTS_CIRCLE, .n = 21, .d = 2, .rho = 1.0, .steps = 20000, .one_point = true});
    assert_near(t.sigma_limit, 0.01217522, 1e-8);
    assert_near(t.g_limit_min, 0.01260634, 1e-8);
    assert_near(t.g_limit_max, 2.63704, 1e-5);
    assert_near(t.eta, 0.379213, 1e-6);
    assert_holds(&t, "I7");
    abar__theory_free(&t);
}

/* Circulant: eigenvalues of S are sums of one row times cosines. */
static void theory_circle_eigenvalues_are_those_of_a_transform(void **state)
{
    abar__theory t =
        run(*state,
            (abar__theory_config){.points = ABAR_POINTS_CIRCLE, .n = 21, .d = 2, .rho = 1.0, .steps = 1, .one_point = true});
    double least = INFINITY;
    for (int j = 0; j < 21; j++) {
        double sum = 0.0;
        for (int i = 0; i < 21; i++) {
            const double angle = 2.0 * pi * i / 21.0;
            sum += (pi - acos(cos(angle))) / (2.0 * pi) * cos(angle * j);
        }
        least = fmin(least, sum);
    }
    assert_near(t.sigma_limit, least, 1e-13);
    abar__theory_free(&t);
}

/* Mutation: q uniform on (-1, 1), as the paper prints it, gives a third of B * S. */
static void theory_uniform_signs_break_the_identity(void **state)
{
    abar__theory t =
        run(*state,
            (abar__theory_config){
                .points = ABAR_POINTS_ORTHONORMAL, .n = 16, .d = 16, .m = 4096, .rho = 0.1, .steps = 60, .uniform_q = true});
    assert_int_equal(find(&t, "I0")->verdict, ABAR_VERDICT_VIOLATED);
    assert_int_equal(find(&t, "I7c")->verdict, ABAR_VERDICT_UNMET);
    abar__theory plain = run(
        *state, (abar__theory_config){.points = ABAR_POINTS_ORTHONORMAL, .n = 16, .d = 16, .m = 4096, .rho = 0.1, .steps = 60});
    assert_true(t.step[60].residual > 1e6 * plain.step[60].residual);
    abar__theory_free(&plain);
    abar__theory_free(&t);
}

/* The paper's own step size, rho / (lambda_max(X^T X) lambda), with the constant 1. */
static void theory_printed_step_size_diverges(void **state)
{
    abar__theory_config config = {.points = ABAR_POINTS_SPHERE, .n = 32, .d = 8, .m = 1024, .rho = 0.1, .steps = 1};
    abar__theory t = run(*state, config);
    config.rate = config.rho / (t.gram_max * t.sigma_limit);
    config.steps = 30;
    abar__theory_free(&t);
    t = run(*state, config);
    assert_true(t.eta * t.g_limit_max > 2.0);
    assert_true(t.step[30].residual > 1e6 * t.step[0].residual);
    assert_int_equal(find(&t, "I6")->verdict, ABAR_VERDICT_UNMET);
    abar__theory_free(&t);
}

/* J written out: one row per point, (r, j) its columns. Checks I0, and the spectral norm of the change by power iteration. */
static void theory_kernel_equals_the_explicit_jacobian(void **state)
{
    enum { N = 4, D = 3, M = 7 };
    const double rho = 0.3;
    abar__theory t = run(
        *state, (abar__theory_config){.points = ABAR_POINTS_SPHERE, .n = N, .d = D, .m = M, .rho = rho, .steps = 3, .seed = 3});
    double w[M][D], q[M], jacobian[N][M][D], mean[D] = {0};
    abar__theory_network(&t.config, &w[0][0], q);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < D; j++) mean[j] += t.x[i * D + j] / N;
    for (int i = 0; i < N; i++)
        for (int r = 0; r < M; r++) {
            double z = 0.0;
            for (int j = 0; j < D; j++) z += w[r][j] * t.x[i * D + j];
            for (int j = 0; j < D; j++) jacobian[i][r][j] = z >= 0.0 ? q[r] * t.x[i * D + j] / sqrt(M) : 0.0;
        }
    double inverse[D][D], kernel[N][N], trace = 0.0, square = 0.0;
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) inverse[i][j] = ((i == j) - mean[i] * mean[j] / (rho + t.mean_square)) / rho;
    for (int a = 0; a < N; a++)
        for (int b = 0; b < N; b++) {
            kernel[a][b] = 0.0;
            for (int r = 0; r < M; r++)
                for (int i = 0; i < D; i++)
                    for (int j = 0; j < D; j++) kernel[a][b] += jacobian[a][r][i] * inverse[i][j] * jacobian[b][r][j];
            trace += a == b ? kernel[a][b] : 0.0;
            square += kernel[a][b] * kernel[a][b];
        }
    double g_trace = 0.0, g_square = 0.0;
    for (int i = 0; i < N; i++) {
        g_trace += t.start_kernel[i * N + i];
        for (int j = 0; j < N; j++) {
            assert_near(t.start_kernel[i * N + j], kernel[i][j], 1e-12);
            g_square += t.start_kernel[i * N + j] * t.start_kernel[i * N + j];
        }
    }
    assert_near(g_trace, trace, 1e-12);
    assert_near(g_square, square, 1e-12);
    abar__theory_free(&t);
}

static void theory_bad_settings_are_refused(void **state)
{
    static const abar__theory_config bad[] = {
        {.points = ABAR_POINTS_ORTHONORMAL, .n = 16, .d = 8, .m = 8, .rho = 1.0, .steps = 1, .delta = 0.1},
        {.points = ABAR_POINTS_CIRCLE, .n = 16, .d = 2, .m = 8, .rho = 1.0, .steps = 1, .delta = 0.1},
        {.points = ABAR_POINTS_SPHERE, .n = 1, .d = 2, .m = 8, .rho = 1.0, .steps = 1, .delta = 0.1},
        {.points = ABAR_POINTS_SPHERE, .n = 4, .d = 2, .m = 8, .rho = 0.0, .steps = 1, .delta = 0.1},
        {.points = ABAR_POINTS_SPHERE, .n = 4, .d = 1, .m = 8, .rho = 1.0, .steps = 1, .delta = 0.1}, /* parallel */
        {.points = ABAR_POINTS_SPHERE, .n = 4, .d = 2, .m = 8, .rho = 1.0, .steps = 1, .delta = 0.1, .one_point = true},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        abar__theory t;
        assert_int_equal(abar__theory_run(*state, &bad[i], &t), ABAR_E_ARGUMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(theory_orthonormal_points_give_the_closed_form, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_two_close_points_give_a_small_eigenvalue, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_wide_network_meets_every_statement, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_sphere_and_positive_points_meet_the_statements, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_circle_violates_the_printed_bound, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_circle_limit_has_known_numbers, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_circle_eigenvalues_are_those_of_a_transform, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_uniform_signs_break_the_identity, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_printed_step_size_diverges, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_kernel_equals_the_explicit_jacobian, open_context, close_context),
        cmocka_unit_test_setup_teardown(theory_bad_settings_are_refused, open_context, close_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
