/* The cpu's square statistics, inverses, eigenvectors and two-sided products: against ref where it has the same, otherwise by
 * what makes them right. Failures must leave no trace. */
#include "stats_testing.h"

/* ---- squares ------------------------------------------------------------------------------------------ */

static const int64_t sides[] = {1, 2, 5, 31, 33, 64, 130, 290};

/* Average and pending interleaved in (d + 1) rows, as the methods keep them: float, and the same in double. */
static void fill_interleaved(int64_t d, float *x, double *same)
{
    for (int64_t i = 0; i < (d + 1) * d; i++) {
        x[i] = (float)uniform();
        same[i] = (double)x[i];
    }
}

static void squares_commit_clear_and_trace_equal_ref(void **unused)
{
    (void)unused;
    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++)
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            const int64_t d = sides[k], n = (d + 1) * d;
            const abar__stats_ops *s = cpu[threads]->ops->stats;
            float *x = malloc((size_t)n * sizeof *x);
            double *same = malloc((size_t)n * sizeof *same);
            fill_interleaved(d, x, same);
            s->commit(cpu[threads], d, true, x, x + d, 0.75, 0.5);
            ref->ops->stats->commit(ref, d, true, same, same + d, 0.75, 0.5);
            for (int64_t i = 0; i < n; i++) assert_true(fabs((double)x[i] - same[i]) < 1e-6);
            assert_true(fabs(s->trace(cpu[threads], d, x) - ref->ops->stats->trace(ref, d, same)) < 1e-4);
            fill_interleaved(d, x, same);
            s->clear(cpu[threads], d, true, x + d);
            ref->ops->stats->clear(ref, d, true, same + d);
            for (int64_t i = 0; i < n; i++) assert_true((double)x[i] == same[i]);
            free(x);
            free(same);
        }
}

static void squares_all_finite_sees_the_lower_triangle_alone(void **unused)
{
    (void)unused;
    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++) {
        const int64_t d = sides[k];
        abar_device *dev = cpu[1 + k % MAX_THREADS];
        float *x = malloc((size_t)(d * d) * sizeof *x);
        fill_square(d, x); /* NaN above the diagonal */
        assert_true(dev->ops->stats->all_finite(dev, d, true, x, 1.0));
        for (int trial = 0; trial < 20; trial++) {
            const int64_t i = below(d), j = below(i + 1);
            const float kept = x[i * d + j];
            x[i * d + j] = trial % 2 ? INFINITY : NAN;
            assert_false(dev->ops->stats->all_finite(dev, d, true, x, 1.0));
            x[i * d + j] = kept;
        }
        free(x);
    }
}

/* A positive definite average in the upper triangle (B Bᵀ / d of a random B, rank deficient when asked), NaN below. */
static void make_average(int64_t d, int64_t rank, float *average)
{
    double *b = malloc((size_t)(d * rank) * sizeof *b);
    for (int64_t i = 0; i < d * rank; i++) b[i] = uniform();
    memset(average, 0xff, (size_t)(d * d) * sizeof *average);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i; j < d; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < rank; k++) sum += b[i * rank + k] * b[j * rank + k];
            average[i * d + j] = (float)(sum / (double)rank);
        }
    free(b);
}

static double entry(int64_t d, const float *average, int64_t i, int64_t j)
{
    return (double)(i < j ? average[i * d + j] : average[j * d + i]);
}

/* Largest element of every step-th row of (scale * average + shift I) x - I. */
static double inverse_error(int64_t d, const float *average, double scale, double shift, const float *x, int64_t step)
{
    double worst = 0.0;
    for (int64_t i = 0; i < d; i += step)
        for (int64_t j = 0; j < d; j++) {
            double sum = shift * (double)x[i * d + j] - (i == j ? 1.0 : 0.0);
            for (int64_t k = 0; k < d; k++) sum += scale * entry(d, average, i, k) * (double)x[k * d + j];
            if (!(fabs(sum) <= worst)) worst = fabs(sum);
        }
    return worst;
}

static void invert_well_conditioned_matrices_gives_symmetric_inverses(void **unused)
{
    (void)unused;
    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++)
        for (int in_double = 0; in_double < 2; in_double++) {
            const int64_t d = sides[k];
            abar_device *dev = cpu[1 + (k + (size_t)in_double) % MAX_THREADS];
            const size_t bytes = dev->ops->stats->invert_scratch(dev, d);
            void *scratch = take(dev, bytes);
            float *average = malloc((size_t)(3 * d * d) * sizeof *average), *inverse = average + d * d,
                  *again = inverse + d * d;
            make_average(d, 2 * d, average);
            assert_true(dev->ops->stats->invert(dev, d, average, 1.7, 0.5, in_double, inverse, scratch));
            assert_true(inverse_error(d, average, 1.7, 0.5, inverse, 1) < 1e-5);
            assert_true(dev->ops->stats->invert(dev, d, average, 1.7, 0.5, in_double, again, scratch));
            assert_memory_equal(inverse, again, (size_t)(d * d) * sizeof *again);
            for (int64_t i = 0; i < d; i++)
                for (int64_t j = 0; j < i; j++) assert_true(inverse[i * d + j] == inverse[j * d + i]);
            free(average);
            abar_device_free(dev, scratch, bytes);
        }
}

/* LAPACK has those from 2048 on to itself. */
static void invert_large_matrices(void **unused)
{
    (void)unused;
    const int64_t d = 2050;
    abar_device *dev = cpu[MAX_THREADS];
    const size_t bytes = dev->ops->stats->invert_scratch(dev, d);
    void *scratch = take(dev, bytes);
    float *average = malloc((size_t)(2 * d * d) * sizeof *average), *inverse = average + d * d;
    make_average(d, 3, average);
    assert_true(dev->ops->stats->invert(dev, d, average, 1.7, 0.5, false, inverse, scratch));
    assert_true(inverse_error(d, average, 1.7, 0.5, inverse, d / 5) < 1e-3);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < i; j++) assert_true(inverse[i * d + j] == inverse[j * d + i]);
    free(average);
    abar_device_free(dev, scratch, bytes);
}

static void invert_gives_the_same_bits_on_any_number_of_threads(void **unused)
{
    (void)unused;
    enum { D = 301, TRIALS = 20 };
    static float average[D * D], inverse[D * D], again[D * D];
    make_average(D, 2 * D, average);
    for (int trial = 0; trial < TRIALS; trial++) {
        abar_device *dev = cpu[1 + trial % MAX_THREADS];
        const size_t bytes = dev->ops->stats->invert_scratch(dev, D);
        void *scratch = take(dev, bytes);
        assert_true(dev->ops->stats->invert(dev, D, average, 1.0, 0.5, false, trial ? again : inverse, scratch));
        if (trial) assert_memory_equal(inverse, again, sizeof inverse);
        abar_device_free(dev, scratch, bytes);
    }
}

static void invert_bad_matrices_fails_and_leaves_the_inverse(void **unused)
{
    (void)unused;
    for (size_t k = 1; k < sizeof sides / sizeof *sides; k++)
        for (int variant = 0; variant < 6; variant++) {
            const int64_t d = sides[k];
            const bool in_double = variant & 1;
            abar_device *dev = cpu[1 + (k + (size_t)variant) % MAX_THREADS];
            const size_t bytes = dev->ops->stats->invert_scratch(dev, d);
            void *scratch = take(dev, bytes);
            float *average = calloc((size_t)(2 * d * d), sizeof *average), *inverse = average + d * d;
            double shift = 0.0;
            if (variant / 2 == 0) /* indefinite */
                make_average(d, d, average), shift = -0.5;
            if (variant / 2 == 1) /* not a number */
                make_average(d, d, average), average[below(d) * d + d - 1] = NAN;
            for (int64_t i = 0; i < d * d; i++) inverse[i] = (float)i; /* variant / 2 == 2: zero */
            assert_false(dev->ops->stats->invert(dev, d, average, 1.0, shift, in_double, inverse, scratch));
            for (int64_t i = 0; i < d * d; i++) assert_true(inverse[i] == (float)i);
            free(average);
            abar_device_free(dev, scratch, bytes);
        }
}

/* Singular but for rounding: the damping decides. */
static void invert_in_double_goes_where_float_cannot(void **unused)
{
    (void)unused;
    enum { D = 40 };
    static float average[D * D], inverse[D * D];
    const size_t bytes = cpu[1]->ops->stats->invert_scratch(cpu[1], D);
    void *scratch = take(cpu[1], bytes);
    for (int i = 0; i < D; i++)
        for (int j = i; j < D; j++) average[i * D + j] = 1024.0f; /* rank 1, exactly */
    assert_false(cpu[1]->ops->stats->invert(cpu[1], D, average, 1.0, 1e-6, false, inverse, scratch));
    assert_true(cpu[1]->ops->stats->invert(cpu[1], D, average, 1.0, 1e-6, true, inverse, scratch));
    /* (c 11ᵀ + s I)⁻¹ = (I − 11ᵀ / (D + s / c)) / s */
    assert_true(fabs((double)inverse[0] * 1e-6 - (1.0 - 1.0 / D)) < 1e-4);
    assert_true(fabs((double)inverse[1] * 1e-6 + 1.0 / D) < 1e-4);
    abar_device_free(cpu[1], scratch, bytes);
}

static void eigen_vectors_rebuild_the_matrix(void **unused)
{
    (void)unused;
    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++) {
        const int64_t d = sides[k];
        abar_device *dev = cpu[1 + k % MAX_THREADS];
        const size_t bytes = dev->ops->stats->eigen_scratch(dev, d);
        void *scratch = take(dev, bytes);
        float *average = malloc((size_t)(2 * d * d + d) * sizeof *average), *vectors = average + d * d,
              *values = vectors + d * d;
        make_average(d, d, average);
        assert_true(dev->ops->stats->eigen(dev, d, average, 2.0, values, vectors, scratch));
        for (int64_t i = 1; i < d; i++) assert_true(values[i - 1] <= values[i]);
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < d; j++) {
                double sum = 0.0, inner = 0.0;
                for (int64_t v = 0; v < d; v++) {
                    sum += (double)values[v] * (double)vectors[v * d + i] * (double)vectors[v * d + j];
                    inner += (double)vectors[i * d + v] * (double)vectors[j * d + v];
                }
                assert_true(fabs(sum - 2.0 * entry(d, average, i, j)) < 2e-5);
                assert_true(fabs(inner - (i == j ? 1.0 : 0.0)) < 2e-5);
            }
        free(average);
        abar_device_free(dev, scratch, bytes);
    }
}

static void eigen_of_bad_numbers_fails_and_leaves_the_outputs(void **unused)
{
    (void)unused;
    enum { D = 20 };
    const size_t bytes = cpu[2]->ops->stats->eigen_scratch(cpu[2], D);
    void *scratch = take(cpu[2], bytes);
    static float average[D * D], vectors[D * D], values[D];
    make_average(D, D, average);
    average[3 * D + 7] = NAN;
    assert_false(cpu[2]->ops->stats->eigen(cpu[2], D, average, 1.0, values, vectors, scratch));
    for (int i = 0; i < D * D; i++) assert_true(vectors[i] == 0.0f && values[i % D] == 0.0f);
    abar_device_free(cpu[2], scratch, bytes);
}

/* ---- two-sided products ----------------------------------------------------------------------------------------------------
 */

static void check_sandwich(abar_device *dev, int64_t m, int64_t n, unsigned how)
{
    const bool left = how & 1, right = how & 2, left_t = how & 4, right_t = how & 8, in_place = how & 16;
    const int64_t count[] = {m * m, m * n, n * n, m * n, m * n};
    float *mine[5];
    double *same[5];
    for (int i = 0; i < 5; i++) {
        mine[i] = take(dev, (size_t)count[i] * sizeof **mine);
        same[i] = malloc((size_t)count[i] * sizeof **same);
        for (int64_t k = 0; k < count[i]; k++) same[i][k] = (double)(mine[i][k] = (float)uniform());
    }
    const int y = in_place ? 1 : 3;
    /* ref multiplies straight into y: give it its own */
    ref->ops->stats->sandwich(ref, m, n, left ? same[0] : NULL, left_t, same[1], right ? same[2] : NULL, right_t, same[3],
                              same[4]);
    dev->ops->stats->sandwich(dev, m, n, left ? mine[0] : NULL, left_t, mine[1], right ? mine[2] : NULL, right_t, mine[y],
                              mine[4]);
    for (int64_t k = 0; k < m * n; k++)
        if (!(fabs((double)mine[y][k] - same[3][k]) < 1e-6 * (double)((left ? m : 1) * (right ? n : 1))))
            fail_msg("sandwich %lld x %lld, variant %u, %d threads: element %lld is off", (long long)m, (long long)n, how,
                     abar_device_threads(dev), (long long)k);
    for (int i = 0; i < 5; i++) {
        abar_device_free(dev, mine[i], (size_t)count[i] * sizeof **mine);
        free(same[i]);
    }
}

static void sandwich_every_side_transpose_and_place_equals_ref(void **unused)
{
    (void)unused;
    const int64_t shapes[][2] = {{1, 1}, {10, 85}, {6, 26}, {85, 10}, {70, 130}, {1, 300}, {200, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned how = 0; how < 32; how++) check_sandwich(cpu[1 + how % MAX_THREADS], shapes[i][0], shapes[i][1], how);
}

/* ---- a map's gradient between two factors ----------------------------------------------------------------------------------
 */

enum { WEIGHT, BIAS, LEFT, RIGHT, SCALE, ARRAYS };
enum { WITH_LEFT = 1, WITH_BIAS = 2, BIAS_IS_ZERO = 4, WITH_SCALE = 8, VARIANTS = 16 };

/* G^ and the three products in double, from the definition. G, (out, d), gets what G^ is. */
static void precondition_slowly(int64_t out, int64_t d, double *g, const double *left, const double *right, const double *scale,
                                double products[3])
{
    double *half = malloc((size_t)(out * d) * sizeof *half), *result = malloc((size_t)(out * d) * sizeof *result);
    ref->ops->stats->sandwich(ref, out, d, left, false, g, right, false, result, half);
    products[0] = products[1] = products[2] = 0.0;
    for (int64_t i = 0; i < out * d; i++) {
        if (scale) result[i] *= scale[i / d];
        products[0] += g[i] * g[i];
        products[1] += g[i] * result[i];
        products[2] += result[i] * result[i];
    }
    memcpy(g, result, (size_t)(out * d) * sizeof *g);
    free(half);
    free(result);
}

static void check_precondition(abar_device *dev, int64_t out, int64_t in, unsigned how)
{
    const bool left = how & WITH_LEFT, bias = how & WITH_BIAS, zero = how & BIAS_IS_ZERO, scaled = how & WITH_SCALE;
    const int64_t d = in + (bias || zero), most = d > 8 ? d : 8;
    const int64_t count[ARRAYS] = {out * in, out, out * out, d * d, out};
    float *mine[ARRAYS];
    double *same[ARRAYS], *g = malloc((size_t)(out * d) * sizeof *g), products[3], expected[3];
    for (int i = 0; i < ARRAYS; i++) {
        mine[i] = malloc((size_t)count[i] * sizeof **mine); /* each by itself: reading beyond an end would be seen */
        same[i] = malloc((size_t)count[i] * sizeof **same);
        for (int64_t k = 0; k < count[i]; k++) same[i][k] = (double)(mine[i][k] = (float)uniform());
    }
    for (int64_t i = 0; i < out * d; i++) g[i] = i % d < in ? same[WEIGHT][i / d * in + i % d] : bias ? same[BIAS][i / d] : 0.0;
    precondition_slowly(out, d, g, left ? same[LEFT] : NULL, same[RIGHT], scaled ? same[SCALE] : NULL, expected);
    const size_t bytes = 3 * abar__round_up((size_t)(out * most) * sizeof(float), ABAR_ALIGN);
    void *scratch = take(dev, bytes);
    const abar__dense_gradient job = {.out = out,
                                      .in = in,
                                      .d = d,
                                      .weight = mine[WEIGHT],
                                      .bias = bias ? mine[BIAS] : NULL,
                                      .left = left ? mine[LEFT] : NULL,
                                      .right = mine[RIGHT],
                                      .row_scale = scaled ? mine[SCALE] : NULL,
                                      .largest = 1.0};
    assert_true(dev->ops->stats->precondition(dev, &job, scratch, products));
    const double close = 1e-6 * (double)((left ? out : 1) * d);
    for (int64_t i = 0; i < out * d; i++) {
        if (i % d == in && !bias) continue;
        const double got = (double)(i % d < in ? mine[WEIGHT][i / d * in + i % d] : mine[BIAS][i / d]);
        if (!(fabs(got - g[i]) < close))
            fail_msg("precondition %lld x %lld, variant %u, %d threads: element %lld is off", (long long)out, (long long)d, how,
                     abar_device_threads(dev), (long long)i);
    }
    for (int k = 0; k < 3; k++)
        assert_true(fabs(products[k] - expected[k]) <= 1e-5 * sqrt(expected[0] * expected[2]) + 1e-4 * fabs(expected[k]));
    for (int i = 0; i < ARRAYS; i++) {
        free(mine[i]);
        free(same[i]);
    }
    free(g);
    abar_device_free(dev, scratch, bytes);
}

static void precondition_equals_the_definition(void **unused)
{
    (void)unused;
    const int64_t shapes[][2] = {{1, 1},   {3, 5},   {10, 84},  {6, 25},   {13, 15},
                                 {85, 10}, {33, 31}, {84, 120}, {70, 400}, {5, 1300}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned how = 0; how < VARIANTS; how++)
            check_precondition(cpu[1 + (how + i) % MAX_THREADS], shapes[i][0], shapes[i][1], how);
}

static void precondition_leaves_the_gradient_where_the_result_is_not_finite(void **unused)
{
    (void)unused;
    enum { OUT = 90, IN = 100 };
    static float weight[OUT * IN], bias[OUT], right[(IN + 1) * (IN + 1)];
    for (int threads = 1; threads <= MAX_THREADS; threads++)
        for (int trial = 0; trial < 3; trial++) {
            const size_t bytes = 3 * abar__round_up(OUT * (IN + 1) * sizeof(float), ABAR_ALIGN);
            void *scratch = take(cpu[threads], bytes);
            for (int i = 0; i < OUT * IN; i++) weight[i] = 1.0f;
            for (int i = 0; i < OUT; i++) bias[i] = 1.0f;
            for (int i = 0; i <= IN; i++) right[i * (IN + 2)] = 1.0f; /* the identity */
            if (trial == 0) bias[OUT - 1] = INFINITY;
            if (trial == 1) right[IN] = NAN;
            const abar__dense_gradient job = {.out = OUT,
                                              .in = IN,
                                              .d = IN + 1,
                                              .weight = weight,
                                              .bias = bias,
                                              .right = right,
                                              .largest = trial == 2 ? 4e38 : 1.0}; /* finite, but not for long */
            assert_false(cpu[threads]->ops->stats->precondition(cpu[threads], &job, scratch, NULL));
            for (int i = 0; i < OUT * IN; i++) assert_true(weight[i] == 1.0f);
            right[IN] = 0.0f;
            abar_device_free(cpu[threads], scratch, bytes);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(squares_commit_clear_and_trace_equal_ref),
        cmocka_unit_test(squares_all_finite_sees_the_lower_triangle_alone),
        cmocka_unit_test(invert_well_conditioned_matrices_gives_symmetric_inverses),
        cmocka_unit_test(invert_large_matrices),
        cmocka_unit_test(invert_gives_the_same_bits_on_any_number_of_threads),
        cmocka_unit_test(invert_bad_matrices_fails_and_leaves_the_inverse),
        cmocka_unit_test(invert_in_double_goes_where_float_cannot),
        cmocka_unit_test(eigen_vectors_rebuild_the_matrix),
        cmocka_unit_test(eigen_of_bad_numbers_fails_and_leaves_the_outputs),
        cmocka_unit_test(sandwich_every_side_transpose_and_place_equals_ref),
        cmocka_unit_test(precondition_equals_the_definition),
        cmocka_unit_test(precondition_leaves_the_gradient_where_the_result_is_not_finite),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
