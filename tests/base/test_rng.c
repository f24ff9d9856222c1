/* Philox against its published vectors, and the distributions made from it. */
#include "io/io_test.h"

#include "base/rng.h"

#include <math.h>

/* Random123's kat_vectors, philox4x32 with 10 rounds. */
static void philox_known_inputs_give_published_outputs(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar__draw d = abar__philox(cases[i].counter, cases[i].key);
        assert_memory_equal(d.u, cases[i].out, sizeof d.u);
    }
}

static void random_places_its_arguments(void **state)
{
    (void)state;
    uint64_t seed = 0x299f31d0a4093822u, index = 0x85a308d3243f6a88u;
    abar__draw d = abar__random(seed, (abar__purpose)0x03707344, 0x13198a2e, index);
    static const uint32_t expected[] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    assert_memory_equal(d.u, expected, sizeof expected);
}

static void uniform_stays_in_range(void **state)
{
    (void)state;
    assert_true(abar__uniform(0) == 0.0);
    assert_true(abar__uniform(~0u) < 1.0);
    assert_int_equal(abar__below(~0u, 10), 9);
    assert_int_equal(abar__below(0, 10), 0);
    int counts[7] = {0};
    double sum = 0;
    enum { DRAWS = 50000 };
    for (uint64_t i = 0; i < DRAWS; i++) {
        abar__draw d = abar__random(1, ABAR_DRAW_ORDER, 0, i);
        for (int k = 0; k < 4; k++) {
            sum += abar__uniform(d.u[k]);
            counts[abar__below(d.u[k], 7)]++;
        }
    }
    double n = 4.0 * DRAWS;
    assert_true(fabs(sum / n - 0.5) < 5 * sqrt(1.0 / 12 / n));
    for (int k = 0; k < 7; k++) assert_true(fabs(counts[k] - n / 7) < 5 * sqrt(n * 6 / 49));
}

/* Mean 0, variance 1, skewness 0, kurtosis 3, and the pair uncorrelated: each within five standard errors. */
static void normal_has_its_moments(void **state)
{
    (void)state;
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, cross = 0;
    enum { DRAWS = 200000 };
    for (uint64_t i = 0; i < DRAWS; i++) {
        double z[2];
        abar__normal(abar__random(42, ABAR_DRAW_INIT, 3, i), z);
        for (int k = 0; k < 2; k++) {
            assert_true(isfinite(z[k]));
            m1 += z[k];
            m2 += z[k] * z[k];
            m3 += z[k] * z[k] * z[k];
            m4 += z[k] * z[k] * z[k] * z[k];
        }
        cross += z[0] * z[1];
    }
    double n = 2.0 * DRAWS;
    assert_true(fabs(m1 / n) < 5 * sqrt(1 / n));
    assert_true(fabs(m2 / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs(m3 / n) < 5 * sqrt(15 / n));
    assert_true(fabs(m4 / n - 3) < 5 * sqrt(96 / n));
    assert_true(fabs(cross / DRAWS) < 5 * sqrt(1.0 / DRAWS));
}

static void normal_of_extreme_words_is_finite(void **state)
{
    (void)state;
    for (int low = 0; low < 2; low++) {
        uint32_t u = low ? 0 : ~0u;
        double z[2];
        abar__normal((abar__draw){{u, u, u, u}}, z);
        assert_true(isfinite(z[0]) && isfinite(z[1]));
        assert_true(fabs(z[0]) < 9 && fabs(z[1]) < 9);
    }
}

/* A neighbouring seed, purpose, time or index gives unrelated numbers. */
static void random_neighbours_differ_in_half_the_bits(void **state)
{
    (void)state;
    enum { DRAWS = 4000 };
    int64_t bits[4] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        abar__draw base = abar__random(i, ABAR_DRAW_INIT, 5, i);
        abar__draw other[4] = {abar__random(i + 1, ABAR_DRAW_INIT, 5, i), abar__random(i, ABAR_DRAW_ORDER, 5, i),
                               abar__random(i, ABAR_DRAW_INIT, 6, i), abar__random(i, ABAR_DRAW_INIT, 5, i + 1)};
        for (int o = 0; o < 4; o++)
            for (int k = 0; k < 4; k++)
                for (uint32_t x = base.u[k] ^ other[o].u[k]; x; x &= x - 1) bits[o]++;
    }
    for (int o = 0; o < 4; o++) assert_true(fabs((double)bits[o] - 64.0 * DRAWS) < 5 * sqrt(32.0 * DRAWS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_inputs_give_published_outputs),
        cmocka_unit_test(random_places_its_arguments),
        cmocka_unit_test(uniform_stays_in_range),
        cmocka_unit_test(normal_has_its_moments),
        cmocka_unit_test(normal_of_extreme_words_is_finite),
        cmocka_unit_test(random_neighbours_differ_in_half_the_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
