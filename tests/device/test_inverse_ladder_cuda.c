/* The ladder that inverses on the cuda device climb when they fail (methods.md section 9), its end in double precision, and
 * partners, which are renewed together. */
#include "inverse_cuda.h"

static void ladder_is_climbed_by_each_factor_for_itself(void **unused)
{
    (void)unused;
    rig r = {0};
    for (int64_t d = 3; d < 200; d += 64) {
        add(&r, INDEFINITE, d, 1.0, 0.01);
        add(&r, DEFINITE, d, 2.0, 0.1);
        add(&r, HOPELESS, d + 1, 1.0, 0.5);
        add(&r, SINGULAR, d, 0.5, 0.0);
        add(&r, BAD_DIAGONAL, d, 1.0, 0.1);
        add(&r, BAD_CORNER, d, 1.0, 0.1);
        add(&r, ZERO, d, 1.0, 0.0);
    }
    start(&r);
    invert(&r, ~0u, TOLERANCE);
    invert(&r, 0x5555555, TOLERANCE);
    stop(&r);
}

/* 2^30 (1 1; 1 1) and zeros: float32 does not see a shift below 64, and five times ten from 1e-8 tr/d reaches but 54. */
static void add_stiff(rig *r)
{
    const int64_t d = 4000;
    add(r, ZERO, d, 1.0, 1e-6);
    subject *s = &r->of[r->n - 1];
    s->square[0] = s->square[1] = s->square[d + 1] = 1073741824.0f;
    cuda_move(cuda, s->device_square, s->square, square_bytes(s));
}

/* Its inverse is 1 / shift times (.5 -.5; -.5 .5), but for 2^-31 of it, and ones; or, not renewed, what it was. */
static void check_stiff(const rig *r, int i, bool renewed)
{
    const subject *s = &r->of[i];
    abar__cuda_inversion told;
    float *found = malloc(full_bytes(s)), *square = malloc(square_bytes(s));
    cuda_move(cuda, &told, r->asked + i, sizeof told);
    cuda_move(cuda, found, s->f.inverse, full_bytes(s));
    cuda_move(cuda, square, s->device_square, square_bytes(s));
    assert_int_equal(told.valid, renewed);
    assert_int_equal(told.raised, 5);
    assert_int_equal(told.doubled, 1);
    assert_memory_equal(square, s->square, square_bytes(s));
    if (!renewed) assert_memory_equal(found, s->inverse, full_bytes(s));
    for (int64_t e = 0; renewed && e < s->d * s->d; e++) {
        const int64_t row = e / s->d, column = e % s->d;
        const double expected = row < 2 && column < 2 ? (row == column ? 0.5 : -0.5) : row == column;
        assert_true(fabs((double)found[e] * told.shift - expected) < (row < 2 && column < 2 ? 1e-5 : 1e-6));
    }
    free(found);
    free(square);
}

static void ladder_ends_in_double_precision(void **unused)
{
    (void)unused;
    if (cuda_only("ABAR_TEST_SMALL")) skip();
    rig r = {0};
    add_stiff(&r);
    start(&r);
    ask(&r, 1);
    assert_int_equal(abar__cuda_invert_wanted(cuda, r.inverter), ABAR_OK);
    check_stiff(&r, 0, true);
    stop(&r);
}

/* There is room for one at a time: who has found its inverse may not keep it while it waits for its partner. */
static void partners_take_turns_in_double_precision(void **unused)
{
    (void)unused;
    if (cuda_only("ABAR_TEST_SMALL")) skip();
    rig r = {0};
    add_stiff(&r);
    add(&r, HOPELESS, 200, 1.0, 0.5);
    add_stiff(&r);
    pair(&r, 0, 2);
    start(&r);
    ask(&r, 7);
    assert_int_equal(abar__cuda_invert_wanted(cuda, r.inverter), ABAR_OK);
    check_stiff(&r, 0, true);
    check_stiff(&r, 2, true);
    stop(&r);
}

static void partner_that_needed_double_precision_keeps_its_inverse(void **unused)
{
    (void)unused;
    if (cuda_only("ABAR_TEST_SMALL")) skip();
    rig r = {0};
    add(&r, BAD_CORNER, 20, 1.0, 0.5);
    add_stiff(&r);
    pair(&r, 0, 1);
    start(&r);
    ask(&r, 3);
    assert_int_equal(abar__cuda_invert_wanted(cuda, r.inverter), ABAR_OK);
    check_stiff(&r, 1, false);
    stop(&r);
}

static void partners_are_renewed_together_or_not_at_all(void **unused)
{
    (void)unused;
    rig r = {0};
    add(&r, DEFINITE, 144, 1.3, 0.1); /* both fine, at different times */
    add(&r, DEFINITE, 16, 1.0, 0.2);
    add(&r, DEFINITE, 200, 1.0, 0.1); /* one fails for good: before the other is there, after it, and both */
    add(&r, BAD_DIAGONAL, 3, 1.0, 0.1);
    add(&r, HOPELESS, 200, 1.0, 0.5);
    add(&r, DEFINITE, 20, 1.0, 0.1);
    add(&r, BAD_CORNER, 65, 1.0, 0.1);
    add(&r, HOPELESS, 130, 1.0, 0.5);
    add(&r, INDEFINITE, 70, 1.0, 0.01); /* one climbs, and both */
    add(&r, DEFINITE, 64, 2.0, 0.1);
    add(&r, SINGULAR, 130, 0.5, 0.0);
    add(&r, INDEFINITE, 33, 1.0, 0.1);
    add(&r, INDEFINITE, 40, 1.0, 0.01); /* climbs for nothing */
    add(&r, ZERO, 90, 1.0, 0.0);
    add(&r, DEFINITE, 100, 1.0, 0.1); /* alone */
    for (int i = 0; i < 14; i += 2) pair(&r, i, i + 1);
    start(&r);
    invert(&r, ~0u, TOLERANCE);
    invert(&r, 0x3330, TOLERANCE);
    invert(&r, 0x5aa9, TOLERANCE); /* where one is wanted alone it is on its own */
    stop(&r);
}

static void bases_of_partners_are_renewed_together_or_not_at_all(void **unused)
{
    (void)unused;
    rig r = {0};
    add(&r, EIGEN, 17, 0.5, 0.0);
    add(&r, EIGEN, 4, 1.0, 0.0);
    add(&r, EIGEN, 9, 1.0, 0.0);
    add(&r, BAD_EIGEN, 12, 1.0, 0.0);
    add(&r, BAD_EIGEN, 3, 1.0, 0.0);
    add(&r, BAD_EIGEN, 5, 1.0, 0.0);
    add(&r, EIGEN, 6, 1.0, 0.0); /* and of different kinds */
    add(&r, DEFINITE, 70, 1.0, 0.1);
    add(&r, EIGEN, 6, 1.0, 0.0);
    add(&r, HOPELESS, 70, 1.0, 0.1);
    add(&r, INDEFINITE, 66, 1.0, 0.01);
    add(&r, BAD_EIGEN, 7, 1.0, 0.0);
    for (int i = 0; i < r.n; i += 2) pair(&r, i, i + 1);
    start(&r);
    invert(&r, ~0u, TOLERANCE);
    invert(&r, 0x0f6, TOLERANCE);
    stop(&r);
}

int main(int argc, char **argv)
{
    cuda_choose_tests(argc, argv);
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ladder_is_climbed_by_each_factor_for_itself),
        cmocka_unit_test(ladder_ends_in_double_precision),
        cmocka_unit_test(partners_take_turns_in_double_precision),
        cmocka_unit_test(partner_that_needed_double_precision_keeps_its_inverse),
        cmocka_unit_test(partners_are_renewed_together_or_not_at_all),
        cmocka_unit_test(bases_of_partners_are_renewed_together_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
