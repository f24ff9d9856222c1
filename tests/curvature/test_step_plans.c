/* Plans that a method describes wrongly are refused with a line that says what is wrong. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base_impl.h"
#include "plan/plan.h"

enum { OUT = 3, IN = 4, D = 5 };

static void assert_refused(const abar__plan *p, const char *text)
{
    abar_context *ctx;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar__plan_check(ctx, p, "method"), ABAR_E_STATE);
    if (!strstr(abar_context_error(ctx), text)) fail_msg("\"%s\" does not say \"%s\"", abar_context_error(ctx), text);
    abar_context_destroy(ctx);
}

static void assert_accepted(const abar__plan *p)
{
    abar_context *ctx;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    if (abar__plan_check(ctx, p, "method") != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    abar_context_destroy(ctx);
}

static abar__plan rows_scaled(void)
{
    abar__plan p = abar__plan_begin(OUT, IN, D);
    const abar__stat pp = abar__plan_average(&p, "pp", ABAR_GRAD_SQUARES, ABAR_PER_ROW);
    abar__plan_scale_rows(&p, abar__plan_reciprocals(&p, "r", pp, NULL, abar__plan_value(&p, 0.5)), 0.5);
    return p;
}

static void plan_that_scales_rows_alone_is_accepted(void **state)
{
    (void)state;
    const abar__plan p = rows_scaled();
    assert_accepted(&p);
    assert_true(abar__plan_reads_grad(&p));
    assert_true(p.apply.bound == 2.0);
}

static void plan_that_does_nothing_is_refused(void **state)
{
    (void)state;
    abar__plan p = abar__plan_begin(OUT, IN, D);
    (void)abar__plan_average(&p, "a", ABAR_INPUT_MEAN, ABAR_PER_ROW);
    assert_refused(&p, "never says what becomes of the gradient");
    assert_false(abar__plan_reads_grad(&p));
}

static void plan_that_treats_the_gradient_twice_is_refused(void **state)
{
    (void)state;
    abar__plan p = abar__plan_begin(OUT, IN, D);
    const abar__stat a = abar__plan_average(&p, "A", ABAR_INPUT_PRODUCT, ABAR_PER_ROW);
    const abar__stat g = abar__plan_average(&p, "p", ABAR_GRAD_MEAN, ABAR_PER_ROW);
    abar__plan_sandwich(&p, ABAR_IDENTITY, abar__plan_inverse(&p, "A_inverse", a, abar__plan_value(&p, 1.0)));
    assert_accepted(&p);
    p.apply.u = abar__plan_vector(&p, "u", g, abar__plan_value(&p, 1.0)).index;
    assert_refused(&p, "in two ways");
}

static void plan_with_a_factor_of_another_size_is_refused(void **state)
{
    (void)state;
    abar__plan p = abar__plan_begin(OUT, IN, D);
    const abar__stat g = abar__plan_average(&p, "p", ABAR_GRAD_MEAN, ABAR_PER_ROW);
    abar__plan_subtract_rank1(&p, abar__plan_vector(&p, "u", g, abar__plan_value(&p, 1.0))); /* (out) for (d) */
    assert_refused(&p, "does not fit the gradient");
}

static void plan_that_mistakes_matrices_for_vectors_is_refused(void **state)
{
    (void)state;
    abar__plan p = rows_scaled();
    const abar__stat a = abar__plan_average(&p, "A", ABAR_INPUT_PRODUCT, ABAR_PER_ROW);
    abar__plan q = p, r = p;
    (void)abar__plan_reciprocals(&p, "x", a, NULL, abar__plan_value(&p, 1.0));
    assert_refused(&p, "reciprocals of a matrix");
    (void)abar__plan_vector(&q, "x", a, abar__plan_value(&q, 1.0));
    assert_refused(&q, "a vector of a matrix");
    (void)abar__plan_square(&r, a);
    assert_refused(&r, "squares a matrix");
}

static void plan_that_inverts_a_vector_is_refused(void **state)
{
    (void)state;
    abar__plan p = rows_scaled();
    const abar__stat a = abar__plan_average(&p, "a", ABAR_INPUT_MEAN, ABAR_PER_ROW);
    (void)abar__plan_inverse(&p, "x", a, abar__plan_value(&p, 1.0));
    assert_refused(&p, "inverts a vector");
}

static void plan_that_divides_by_an_unknown_damping_is_refused(void **state)
{
    (void)state;
    abar__plan p = rows_scaled();
    abar__plan_over_damping(&p);
    assert_refused(&p, "never reports");
    abar__plan_report(&p, ABAR_REAL_DAMPING, abar__plan_value(&p, 1.0));
    assert_accepted(&p);
}

static void plan_with_half_of_the_weighed_statistics_is_refused(void **state)
{
    (void)state;
    abar__plan p = abar__plan_begin(OUT, IN, D);
    const abar__stat psi = abar__plan_average(&p, "Psi", ABAR_GRAD_WEIGHED_SQUARES, ABAR_PER_EXAMPLE);
    abar__plan_scale_rows(&p, abar__plan_reciprocals(&p, "r", psi, NULL, abar__plan_value(&p, 1.0)), 1.0);
    assert_refused(&p, "come together");
}

static void plan_with_too_much_is_refused(void **state)
{
    (void)state;
    abar__plan p = rows_scaled(), q = rows_scaled(), r = rows_scaled();
    for (int i = 0; i < ABAR_PLAN_SCALARS; i++) (void)abar__plan_value(&p, 1.0);
    assert_refused(&p, "ABAR_PLAN_SCALARS");
    for (int i = 0; i < ABAR_PLAN_DERIVED; i++)
        (void)abar__plan_reciprocals(&q, "x", (abar__stat){1}, NULL, abar__plan_value(&q, 1.0));
    assert_refused(&q, "ABAR_PLAN_DERIVED");
    (void)abar__plan_average(&r, "p", ABAR_GRAD_MEAN, ABAR_PER_ROW);
    assert_refused(&r, "two statistics of one side");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_that_scales_rows_alone_is_accepted),
        cmocka_unit_test(plan_that_does_nothing_is_refused),
        cmocka_unit_test(plan_that_treats_the_gradient_twice_is_refused),
        cmocka_unit_test(plan_with_a_factor_of_another_size_is_refused),
        cmocka_unit_test(plan_that_mistakes_matrices_for_vectors_is_refused),
        cmocka_unit_test(plan_that_inverts_a_vector_is_refused),
        cmocka_unit_test(plan_that_divides_by_an_unknown_damping_is_refused),
        cmocka_unit_test(plan_with_half_of_the_weighed_statistics_is_refused),
        cmocka_unit_test(plan_with_too_much_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
