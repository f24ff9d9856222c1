/* What the host's stages of blocks call (device/blocks.h): averages and products along a mode, inverse roots; on ref by their
 * definitions, on cpu beside ref. And where the elements of a block are. */
#include "stats_testing.h"

#include "device/host/blocks.h"
#include "plan/block_plan.h"

#define GUARD 64

typedef struct geometry {
    int64_t before, n, behind;
} geometry;

static const geometry geometries[] = {{1, 1, 1}, {1, 7, 1},   {5, 3, 1},   {1, 4, 9},
                                      {3, 5, 4}, {2, 33, 17}, {40, 21, 1}, {1, 70, 90}};
enum { GEOMETRIES = sizeof geometries / sizeof *geometries };

static double *numbers(int64_t n)
{
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (double)(float)uniform();
    return x;
}

static void *on_device(const abar_device *dev, const double *x, int64_t n)
{
    void *out = malloc((size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        if (dev->ops->dtype == ABAR_F64)
            ((double *)out)[i] = x[i];
        else
            ((float *)out)[i] = (float)x[i];
    }
    return out;
}

static double at(const abar_device *dev, const void *x, int64_t i)
{
    return dev->ops->dtype == ABAR_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static double tolerance(const abar_device *dev) { return dev->ops->dtype == ABAR_F64 ? 1e-12 : 1e-5; }

static void on_each(void (*check)(abar_device *))
{
    check(ref);
    for (int threads = 1; threads <= MAX_THREADS; threads++) check(cpu[threads]);
}

/* ---- products along a mode ----------------------------------------------------------------------------------------------- */

static double x_at(const geometry *g, const double *x, int64_t a, int64_t i, int64_t b)
{
    return x[(a * g->n + i) * g->behind + b];
}

/* The lower triangle is not touched. */
static void check_average(abar_device *dev)
{
    for (int k = 0; k < GEOMETRIES; k++) {
        const geometry *g = &geometries[k];
        const int64_t n = g->n, count = g->before * n * g->behind;
        double *x = numbers(count), *s = numbers(n * n);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < i; j++) s[i * n + j] = NAN;
        void *own = on_device(dev, x, count), *average = on_device(dev, s, n * n);
        dev->ops->stats->average_mode(dev, g->before, n, g->behind, own, 0.75, 0.5, average);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0.0;
                for (int64_t a = 0; a < g->before; a++)
                    for (int64_t b = 0; b < g->behind; b++) sum += x_at(g, x, a, i, b) * x_at(g, x, a, j, b);
                const double expected = 0.75 * s[i * n + j] + 0.5 * sum, found = at(dev, average, i * n + j);
                if (j < i ? !isnan(found) : !(fabs(found - expected) <= tolerance(dev) * (double)(g->before * g->behind)))
                    fail_msg("geometry %d, element (%d, %d): %g, not %g", k, (int)i, (int)j, found, expected);
            }
        free(x), free(s), free(own), free(average);
    }
}

static void check_multiply(abar_device *dev)
{
    for (int k = 0; k < GEOMETRIES; k++) {
        const geometry *g = &geometries[k];
        const int64_t n = g->n, count = g->before * n * g->behind;
        double *x = numbers(count), *f = numbers(n * n); /* not symmetric: the order counts */
        void *own = on_device(dev, x, count), *factor = on_device(dev, f, n * n), *y = on_device(dev, x, count);
        dev->ops->stats->multiply_mode(dev, g->before, n, g->behind, factor, false, own, y);
        for (int64_t a = 0; a < g->before; a++)
            for (int64_t i = 0; i < n; i++)
                for (int64_t b = 0; b < g->behind; b++) {
                    double sum = 0.0;
                    for (int64_t j = 0; j < n; j++) sum += f[i * n + j] * x_at(g, x, a, j, b);
                    const double found = at(dev, y, (a * n + i) * g->behind + b);
                    if (!(fabs(found - sum) <= tolerance(dev) * (double)n)) fail_msg("geometry %d: %g, not %g", k, found, sum);
                }
        free(x), free(f), free(own), free(factor), free(y);
    }
}

static void averages_along_a_mode_are_those_of_the_unfolding(void **unused)
{
    (void)unused;
    on_each(check_average);
}

static void products_along_a_mode_are_those_of_the_unfolding(void **unused)
{
    (void)unused;
    on_each(check_multiply);
}

/* ---- roots ------------------------------------------------------------------------------------------------------------------
 */

/* The root of a square n x n whose upper triangle is a; false: there was none. Checks that scratch is enough. */
static bool root_of(abar_device *dev, int64_t n, const double *a, double scale, double eps, double exponent, double *out)
{
    const size_t bytes = dev->ops->stats->inverse_root_scratch(dev, n);
    char *scratch = take(dev, bytes + GUARD);
    memset(scratch, 0xff, bytes + GUARD);
    void *average = on_device(dev, a, n * n), *root = on_device(dev, out, n * n);
    const bool fine = dev->ops->stats->inverse_root(dev, n, average, scale, eps, NULL, exponent, root, scratch);
    for (int i = 0; i < GUARD; i++) assert_int_equal(scratch[bytes + (size_t)i], (char)0xff);
    for (int64_t i = 0; i < n * n; i++) out[i] = at(dev, root, i);
    abar_device_free(dev, scratch, bytes + GUARD);
    free(average), free(root);
    return fine;
}

static void fill_definite(int64_t n, double *a)
{
    double *x = numbers((n + 3) * n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = i == j ? 0.5 : 0.0;
            for (int64_t r = 0; r < n + 3; r++) sum += x[r * n + i] * x[r * n + j];
            a[i * n + j] = j < i ? NAN : (double)(float)sum; /* the upper triangle counts */
        }
    free(x);
}

static void multiply(int64_t n, const double *a, const double *b, double *out)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            out[i * n + j] = sum;
        }
}

/* R^p times what it is the root of is the identity. */
static void check_roots(abar_device *dev)
{
    static const int64_t sides[] = {1, 2, 9, 40};
    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++)
        for (int p = 1; p <= 6; p++) {
            const int64_t n = sides[k], count = n * n;
            double *a = malloc((size_t)count * sizeof *a), *r = numbers(count), *m = malloc((size_t)count * sizeof *m);
            double *next = malloc((size_t)count * sizeof *next);
            fill_definite(n, a);
            assert_true(root_of(dev, n, a, 2.0, 0.25, 1.0 / p, r));
            for (int64_t i = 0; i < count; i++)
                m[i] = 2.0 * (i / n <= i % n ? a[i] : a[i % n * n + i / n]) + (i / n == i % n ? 0.25 : 0.0);
            for (int i = 0; i < p; i++) {
                multiply(n, r, m, next);
                memcpy(m, next, (size_t)count * sizeof *m);
            }
            for (int64_t i = 0; i < count; i++)
                if (!(fabs(m[i] - (i / n == i % n)) <= 50.0 * tolerance(dev))) fail_msg("side %d, p %d: %g", (int)n, p, m[i]);
            free(a), free(r), free(m), free(next);
        }
}

static void inverse_roots_to_their_power_are_inverses(void **unused)
{
    (void)unused;
    on_each(check_roots);
}

/* diag(-1, 0, 3): shifted so that the least eigenvalue is eps. */
static void check_shift(abar_device *dev)
{
    const double a[9] = {-1.0, 0.0, 0.0, NAN, 0.0, 0.0, NAN, NAN, 3.0};
    double r[9] = {0.0};
    assert_true(root_of(dev, 3, a, 1.0, 0.25, 0.5, r));
    const double expected[3] = {1.0 / sqrt(0.25), 1.0 / sqrt(1.25), 1.0 / sqrt(4.25)};
    for (int i = 0; i < 9; i++) assert_true(fabs(r[i] - (i % 4 == 0 ? expected[i / 4] : 0.0)) <= 10.0 * tolerance(dev));
}

static void check_impossible(abar_device *dev)
{
    const double bad[4] = {1.0, NAN, NAN, 1.0}, singular[4] = {1.0, 1.0, NAN, 1.0}, zero[4] = {0.0};
    double r[4] = {1.0, 2.0, 3.0, 4.0};
    assert_false(root_of(dev, 2, bad, 1.0, 0.1, 0.25, r));
    assert_false(root_of(dev, 2, zero, 1.0, 0.0, 0.5, r));
    for (int i = 0; i < 4; i++) assert_true(r[i] == i + 1.0); /* as it was */
    assert_true(root_of(dev, 2, singular, 1.0, 1e-3, 0.25, r));
    assert_true(root_of(dev, 2, zero, 1.0, 1e-8, 0.25, r));
    assert_true(fabs(r[0] - 100.0) <= 1e-2 && r[1] == 0.0);
}

static void indefinite_averages_are_shifted(void **unused)
{
    (void)unused;
    on_each(check_shift);
}

static void roots_that_are_not_finite_are_not_taken(void **unused)
{
    (void)unused;
    on_each(check_impossible);
}

/* ---- stages ---------------------------------------------------------------------------------------------------------------
 */

/* One update of a matrix by a plan that keeps at most two states; g: its gradient, then its step. */
static void run_plan(abar_device *dev, const abar__block_plan *plan, int64_t rows, int64_t columns, double *g)
{
    const int64_t count = rows * columns;
    abar__block b = {
        .order = 2, .dim = {rows, columns}, .stride = {columns, 1}, .count = count, .columns = columns, .kernel = 1};
    abar__step_state now = {.t = 1};
    assert_null(plan->wrong);
    b.grad = on_device(dev, g, count);
    for (int k = 0; k < plan->n_states; k++)
        b.state[k] = calloc((size_t)abar__block_factor(&b, &plan->state[k], b.order), sizeof(double));
    const size_t bytes = abar__blocks_scratch(dev, plan, &b, 1);
    void *scratch = take(dev, bytes);
    abar__blocks_run(dev, plan, &b, 1, 0.0, &now, scratch);
    assert_true(now.kept == 0 && now.dropped == 0);
    for (int64_t i = 0; i < count; i++) g[i] = at(dev, b.grad, i);
    abar_device_free(dev, scratch, bytes);
    for (int k = 0; k < plan->n_states; k++) free(b.state[k]);
    free(b.grad);
}

static abar__block_plan divides_by_root(uint32_t modes, bool corrected)
{
    abar__block_plan p = {0};
    const abar__factors s = abar__blocks_average(&p, "S", modes, 0.9);
    abar__blocks_multiply(&p, abar__blocks_inverse_root(&p, "R", s, corrected, 0.5, 0.1, 1, 1));
    return p;
}

static void check_shortest(abar_device *dev)
{
    static const struct {
        int64_t rows, columns;
        uint32_t modes;
    } shapes[] = {{3, 5, ABAR_LEFT}, {5, 3, ABAR_RIGHT}, {4, 4, ABAR_LEFT}, {1, 6, ABAR_LEFT}, {6, 1, ABAR_RIGHT}};
    const abar__block_plan shortest = divides_by_root(ABAR_SHORTEST, true);
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const int64_t rows = shapes[k].rows, columns = shapes[k].columns, count = rows * columns;
        const abar__block_plan given = divides_by_root(shapes[k].modes, true);
        double *a = numbers(count), *b = malloc((size_t)count * sizeof *b);
        memcpy(b, a, (size_t)count * sizeof *b);
        run_plan(dev, &shortest, rows, columns, a);
        run_plan(dev, &given, rows, columns, b);
        assert_memory_equal(a, b, (size_t)count * sizeof *a);
        free(a), free(b);
    }
}

static void the_shortest_mode_is_chosen_block_by_block(void **unused)
{
    (void)unused;
    on_each(check_shortest);
}

/* S = 0.1 * 2^2 at update 1: its root with eps 0.1 is that of 0.5, or with the bias corrected that of 4.1. */
static void check_correction(abar_device *dev)
{
    for (int corrected = 0; corrected < 2; corrected++) {
        const abar__block_plan p = divides_by_root(ABAR_LEFT, corrected);
        double g = 2.0;
        run_plan(dev, &p, 1, 1, &g);
        assert_true(fabs(g - 2.0 / sqrt(corrected ? 4.1 : 0.5)) <= 10.0 * tolerance(dev));
    }
}

static void averages_are_corrected_where_the_rule_says_so(void **unused)
{
    (void)unused;
    on_each(check_correction);
}

/* ---- where elements are
 * ------------------------------------------------------------------------------------------------------- */

/* Columns 2 .. 4 of rows 1 and 2 of a convolution (3, 4, 1, 2) whose memory is (3, 1, 2, 4). */
static void elements_of_a_block_are_found_in_either_order(void **unused)
{
    (void)unused;
    abar__block b = {.order = 2, .dim = {2, 3}, .stride = {8, 1}, .first = 8 + 2, .count = 6, .columns = 8, .kernel = 1};
    const int64_t dense[6] = {10, 11, 12, 18, 19, 20}, last[6] = {9, 13, 10, 17, 21, 18};
    for (int i = 0; i < 6; i++) assert_int_equal(abar__block_at(&b, i), dense[i]);
    b.kernel = 2;
    for (int i = 0; i < 6; i++) assert_int_equal(abar__block_at(&b, i), last[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_along_a_mode_are_those_of_the_unfolding),
        cmocka_unit_test(products_along_a_mode_are_those_of_the_unfolding),
        cmocka_unit_test(inverse_roots_to_their_power_are_inverses),
        cmocka_unit_test(indefinite_averages_are_shifted),
        cmocka_unit_test(roots_that_are_not_finite_are_not_taken),
        cmocka_unit_test(the_shortest_mode_is_chosen_block_by_block),
        cmocka_unit_test(averages_are_corrected_where_the_rule_says_so),
        cmocka_unit_test(elements_of_a_block_are_found_in_either_order),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
