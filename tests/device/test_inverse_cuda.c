/* Inverses and eigenvectors that a step on the cuda device keeps (cuda/factors/dense.h): many factors of many sizes at once
 * against inverses in double precision, the ladder of methods.md section 9, and recordings in which the device decides. */
#include "cuda_testing.h"
#include "device/cuda/factors/dense.h"

#include <math.h>

static abar_context *ctx;
static abar_device *cuda;
static uint64_t noise = 1;

static double uniform(void) /* -1 .. 1 */
{
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)noise / 9223372036854775808.0;
}

static int open_device(void **unused)
{
    (void)unused;
    abar_device_config config = cuda_config(ABAR_PRECISION_FP32, true);
    return abar_context_create(NULL, &ctx) != ABAR_OK || abar_device_open(ctx, "cuda", &config, &cuda) != ABAR_OK;
}

static int close_device(void **unused)
{
    (void)unused;
    abar_device_close(cuda);
    size_t held = abar_context_memory(ctx).now;
    abar_context_destroy(ctx);
    return held != 0;
}

/* ---- factors and what is known of them -------------------------------------------------------------------------------- */

typedef enum matrix_kind {
    DEFINITE,
    CORRELATED,
    INDEFINITE,
    HOPELESS,
    SINGULAR,
    ZERO,
    BAD_DIAGONAL,
    BAD_CORNER,
    EIGEN,
    BAD_EIGEN
} matrix_kind;

typedef struct subject {
    matrix_kind kind;
    int64_t d;
    double scale, shift;
    float *square;       /* (d + 1, d): what is in device memory, average above and pending below */
    float *inverse;      /* (d, d): the last one that the device should have, or NULL: compared with a new one */
    float *values;       /* (d) of eigenvectors */
    abar__cuda_factor f; /* device memory */
    float *device_square;
} subject;

#define MOST 32

typedef struct rig {
    int n;
    subject of[MOST];
    abar__cuda_inversion now[MOST], *asked; /* host's copy; device memory */
    abar__cuda_inverter *inverter;
} rig;

static size_t square_bytes(const subject *s) { return (size_t)(s->d * (s->d + 1)) * sizeof(float); }
static size_t full_bytes(const subject *s) { return (size_t)(s->d * s->d) * sizeof(float); }

/* Element (i, j) of the average, i <= j. */
static float *average_at(const subject *s, int64_t i, int64_t j) { return &s->square[i * s->d + j]; }

/* Rows that overlap: positive definite, with eigenvalues from about 0.1 on, and not diagonal. */
static void fill_average(subject *s)
{
    const int64_t d = s->d, rows = d + 8;
    if (s->kind == ZERO) return; /* as it is; the sums below would take minutes for a large one */
    double *x = malloc((size_t)(rows * d) * sizeof *x);
    for (int64_t i = 0; i < rows * d; i++) x[i] = uniform();
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i; j < d; j++) {
            double sum = i == j ? 0.1 : 0.0;
            for (int64_t r = 0; r < rows; r++) sum += x[r * d + i] * x[r * d + j] / (double)rows;
            *average_at(s, i, j) = (float)sum;
        }
    free(x);
    for (int64_t i = 0; i < d && s->kind == CORRELATED; i++) /* one eigenvalue of about d, the others of about 0.01 */
        for (int64_t j = i; j < d; j++) *average_at(s, i, j) = 1.0f + 0.01f * *average_at(s, i, j);
    for (int64_t i = 0; i < d && s->kind == INDEFINITE; i++) /* one eigenvalue of -3 */
        for (int64_t j = i; j < d; j++) *average_at(s, i, j) = i != j ? 0.0f : i == d / 2 ? -3.0f : 1.0f;
    for (int64_t i = 0; i < d && s->kind == SINGULAR; i++) /* one of 0 */
        for (int64_t j = i; j < d; j++) *average_at(s, i, j) = i == j && i != d - 1 ? 2.0f : 0.0f;
    if (s->kind == HOPELESS) *average_at(s, d - 1, d - 1) = -1e9f;
    if (s->kind == BAD_DIAGONAL) *average_at(s, d / 2, d / 2) = NAN;
    if (s->kind == BAD_CORNER || s->kind == BAD_EIGEN) *average_at(s, 0, d - 1) = NAN;
}

static void add(rig *r, matrix_kind kind, int64_t d, double scale, double shift)
{
    assert_true(r->n < MOST);
    subject *s = &r->of[r->n++];
    *s = (subject){.kind = kind, .d = d, .scale = scale, .shift = shift};
    const bool eigen = kind == EIGEN || kind == BAD_EIGEN;
    s->square = calloc(1, square_bytes(s));
    s->inverse = malloc(full_bytes(s));
    s->values = malloc((size_t)d * sizeof(float));
    fill_average(s);
    for (int64_t i = 0; i < d * d; i++) s->inverse[i] = (float)(i / d * (i % d)) + 0.5f; /* symmetric */
    for (int64_t i = 0; i < d; i++) s->values[i] = -1.0f;
    s->device_square = cuda_upload(cuda, s->square, square_bytes(s));
    s->f = (abar__cuda_factor){.d = d,
                               .average = s->device_square,
                               .pending = s->device_square + d,
                               .inverse = cuda_upload(cuda, s->inverse, full_bytes(s)),
                               .values = eigen ? cuda_upload(cuda, s->values, (size_t)d * sizeof(float)) : NULL,
                               .partner = -1};
}

static void pair(rig *r, int a, int b)
{
    r->of[a].f.partner = b;
    r->of[b].f.partner = a;
}

static void start(rig *r)
{
    abar__cuda_factor factors[MOST];
    for (int i = 0; i < r->n; i++) factors[i] = r->of[i].f;
    r->asked = cuda_alloc(cuda, MOST * sizeof *r->asked);
    if (abar__cuda_inverter_create(cuda, factors, r->n, r->asked, NULL, &r->inverter) != ABAR_OK)
        fail_msg("%s", abar_context_error(ctx));
    assert_true(abar__cuda_inverter_bytes(r->inverter) > 0);
}

static void stop(rig *r)
{
    abar__cuda_inverter_destroy(cuda, r->inverter);
    abar_device_free(cuda, r->asked, MOST * sizeof *r->asked);
    for (int i = 0; i < r->n; i++) {
        subject *s = &r->of[i];
        abar_device_free(cuda, s->device_square, square_bytes(s));
        abar_device_free(cuda, s->f.inverse, full_bytes(s));
        abar_device_free(cuda, s->f.values, (size_t)s->d * sizeof(float));
        free(s->square);
        free(s->inverse);
        free(s->values);
    }
}

static void ask(rig *r, uint32_t wanted)
{
    for (int i = 0; i < r->n; i++)
        r->now[i] = (abar__cuda_inversion){.wanted = wanted >> i & 1,
                                           .valid = 7,
                                           .raised = 7,
                                           .doubled = 7,
                                           .scale = r->of[i].scale,
                                           .shift = r->of[i].shift,
                                           .condition = -1.0};
    cuda_move(cuda, r->asked, r->now, sizeof r->now);
}

/* ---- what is right ----------------------------------------------------------------------------------------------------- */

static double element(const subject *s, int64_t i, int64_t j) { return (double)*average_at(s, i < j ? i : j, i < j ? j : i); }

/* By Cholesky: (scale * average + shift * I)^-1; the caller frees it. */
static double *inverse_of(const subject *s, double shift)
{
    const int64_t d = s->d;
    double *l = calloc((size_t)(d * d), sizeof *l), *z = calloc((size_t)(d * d), sizeof *z);
    for (int64_t j = 0; j < d; j++)
        for (int64_t i = j; i < d; i++) {
            double sum = s->scale * element(s, i, j) + (i == j ? shift : 0.0);
            for (int64_t k = 0; k < j; k++) sum -= l[i * d + k] * l[j * d + k];
            if (i == j && !(sum > 0.0)) fail_msg("the test's own matrix is not positive definite");
            l[i * d + j] = i == j ? sqrt(sum) : sum / l[j * d + j];
        }
    for (int64_t c = 0; c < d; c++)
        for (int64_t i = c; i < d; i++) { /* L^-1, by columns */
            double sum = i == c ? 1.0 : 0.0;
            for (int64_t k = c; k < i; k++) sum -= l[i * d + k] * z[c * d + k];
            z[c * d + i] = sum / l[i * d + i];
        }
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < d; j++) {
            double sum = 0.0;
            for (int64_t k = i > j ? i : j; k < d; k++) sum += z[i * d + k] * z[j * d + k];
            l[i * d + j] = sum;
        }
    free(z);
    return l;
}

static void assert_inverse(const subject *s, const float *found, double shift, double condition, double tolerance)
{
    const int64_t d = s->d;
    double *expected = inverse_of(s, shift), largest = 0.0, trace = 0.0, squares = 0.0;
    for (int64_t i = 0; i < d * d; i++) largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < d * d; i++) {
        if (!(fabs((double)found[i] - expected[i]) <= tolerance * largest))
            fail_msg("d %lld, kind %d: element (%lld, %lld) is %.9g, not %.9g", (long long)d, s->kind, (long long)(i / d),
                     (long long)(i % d), (double)found[i], expected[i]);
        assert_true(found[i] == found[i % d * d + i / d]);
        squares += expected[i] * expected[i];
    }
    for (int64_t i = 0; i < d; i++) trace += element(s, i, i);
    const double bound = (s->scale * trace + shift * (double)d) * sqrt(squares);
    if (!(fabs(condition - bound) <= 10.0 * tolerance * bound)) fail_msg("condition is %g, not %g", condition, bound);
    free(expected);
}

/* Row i of vectors is the i-th: V scale A V^T = diag(values), ascending, and V V^T = I. */
static void assert_eigen(const subject *s, const float *vectors, const float *values)
{
    const int64_t d = s->d;
    for (int64_t i = 1; i < d; i++) assert_true(values[i] >= values[i - 1]);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < d; j++) {
            double product = 0.0, form = 0.0;
            for (int64_t k = 0; k < d; k++) {
                double row = 0.0;
                for (int64_t l = 0; l < d; l++) row += element(s, k, l) * (double)vectors[j * d + l];
                form += s->scale * (double)vectors[i * d + k] * row;
                product += (double)vectors[i * d + k] * (double)vectors[j * d + k];
            }
            assert_true(fabs(product - (i == j ? 1.0 : 0.0)) < 1e-5);
            assert_true(fabs(form - (i == j ? (double)values[i] : 0.0)) < 1e-5 * (1.0 + fabs((double)values[d - 1])));
        }
}

/* Rungs that a kind must climb from this shift, and what the shift is then. */
static void expect_ladder(const subject *s, int *raised, int *doubled, bool *valid, double *shift)
{
    double trace = 0.0;
    for (int64_t i = 0; i < s->d; i++) trace += element(s, i, i);
    const double least = 1e-8 * s->scale * trace / (double)s->d;
    *raised = *doubled = 0;
    *valid = true;
    *shift = s->shift;
    if (s->kind == INDEFINITE) *raised = (int)ceil(log10(3.0 * s->scale / s->shift));
    if (s->kind == SINGULAR) *raised = 1;
    if (s->kind == HOPELESS || s->kind == ZERO || s->kind == BAD_DIAGONAL || s->kind == BAD_CORNER) {
        *raised = 5;
        *doubled = 1;
        *valid = false;
    }
    if (s->kind == BAD_EIGEN) *valid = false;
    for (int i = 0; i < *raised; i++) *shift = fmax(10.0 * *shift, least);
}

/* Whether factor i gets a new inverse: a good one, and its partner, where that is wanted, one too. */
static bool is_renewed(const rig *r, int i, uint32_t wanted)
{
    int raised, doubled, partner = r->of[i].f.partner;
    bool valid, also = true;
    double shift;
    expect_ladder(&r->of[i], &raised, &doubled, &valid, &shift);
    if (partner >= 0 && wanted >> partner & 1) expect_ladder(&r->of[partner], &raised, &doubled, &also, &shift);
    return (wanted >> i & 1) && valid && also;
}

/* After an inversion of those in wanted: what the device tells and holds. Remembers the new inverses. */
static void check(rig *r, uint32_t wanted, double tolerance)
{
    abar__cuda_inversion told[MOST];
    cuda_wait(cuda, "inversion");
    cuda_move(cuda, told, r->asked, sizeof told);
    for (int i = 0; i < r->n; i++) {
        subject *s = &r->of[i];
        const abar__cuda_inversion *t = &told[i];
        float *square = malloc(square_bytes(s)), *inverse = malloc(full_bytes(s)),
              *values = malloc((size_t)s->d * sizeof(float));
        cuda_move(cuda, square, s->device_square, square_bytes(s));
        cuda_move(cuda, inverse, s->f.inverse, full_bytes(s));
        memcpy(values, s->values, (size_t)s->d * sizeof(float));
        if (s->f.values) cuda_move(cuda, values, s->f.values, (size_t)s->d * sizeof(float));
        int raised = 0, doubled = 0;
        bool valid = false;
        double shift = s->shift;
        if (wanted >> i & 1) expect_ladder(s, &raised, &doubled, &valid, &shift);
        valid = is_renewed(r, i, wanted);
        if (t->wanted || t->valid != valid || t->raised != raised || t->doubled != doubled)
            fail_msg("d %lld, kind %d: wanted %d, valid %d, raised %d, doubled %d; not 0, %d, %d, %d", (long long)s->d, s->kind,
                     t->wanted, t->valid, t->raised, t->doubled, valid, raised, doubled);
        assert_true(fabs(t->shift - shift) <= 1e-12 * shift);
        assert_memory_equal(square, s->square, square_bytes(s)); /* the average as it was, and nothing pending */
        if (!valid || s->f.values) assert_true(t->condition == -1.0);
        if (!valid) {
            assert_memory_equal(inverse, s->inverse, full_bytes(s));
            assert_memory_equal(values, s->values, (size_t)s->d * sizeof(float));
        } else if (s->f.values) {
            assert_eigen(s, inverse, values);
        } else {
            assert_inverse(s, inverse, shift, t->condition, tolerance);
        }
        memcpy(s->inverse, inverse, full_bytes(s));
        memcpy(s->values, values, (size_t)s->d * sizeof(float));
        free(square);
        free(inverse);
        free(values);
    }
}

static void invert(rig *r, uint32_t wanted, double tolerance)
{
    ask(r, wanted);
    if (abar__cuda_invert_wanted(cuda, r->inverter) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    check(r, wanted, tolerance);
}

static const int64_t sizes[] = {1, 2, 63, 64, 65, 144, 300, 130};

#define TOLERANCE 2e-6 /* of the largest element; float32 with condition numbers of about 30 */

/* ---- tests -------------------------------------------------------------------------------------------------------------- */

static void inverses_of_many_sizes_at_once_are_right(void **unused)
{
    (void)unused;
    rig r = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add(&r, DEFINITE, sizes[i], 1.7, 0.05 + 0.01 * (double)i);
    start(&r);
    invert(&r, ~0u, TOLERANCE);
    invert(&r, ~0u, TOLERANCE); /* nothing of the first is in the way */
    stop(&r);
}

/* Large ones are swept on tensor cores, in as many rows of tiles as are odd or even, and not where rows are not aligned. */
static void inverses_of_large_factors_are_right(void **unused)
{
    (void)unused;
    rig r = {0};
    add(&r, DEFINITE, 708, 1.7, 0.05);
    add(&r, DEFINITE, 65, 1.0, 0.1);
    add(&r, CORRELATED, 644, 1.0, 0.005);
    add(&r, BAD_CORNER, 640, 1.0, 0.1);
    if (!cuda_only("ABAR_TEST_SMALL")) add(&r, DEFINITE, 641, 1.0, 0.1);
    start(&r);
    invert(&r, 0x13, TOLERANCE);
    invert(&r, 0x0c, 1e-4);
    stop(&r);
}

/* Condition numbers of some ten thousand, as rows of images have them: the error may not grow faster than they do. */
static void inverses_of_correlated_factors_are_right(void **unused)
{
    (void)unused;
    rig r = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add(&r, CORRELATED, sizes[i], 1.0, 0.005);
    start(&r);
    invert(&r, ~0u, 1e-4);
    stop(&r);
}

/* Rounded ones are the others to the nearest with 10 bits behind the point, whatever the device would cut off. */
static void rounded_inverses_are_the_nearest(void **unused)
{
    (void)unused;
    rig r = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add(&r, DEFINITE, sizes[i], 1.0, 0.1);
    start(&r);
    invert(&r, ~0u, TOLERANCE);
    float *exact[MOST];
    for (int i = 0; i < r.n; i++) {
        exact[i] = malloc(full_bytes(&r.of[i]));
        cuda_move(cuda, exact[i], r.of[i].f.inverse, full_bytes(&r.of[i]));
        r.of[i].f.rounded = true;
    }
    abar__cuda_inverter_destroy(cuda, r.inverter);
    abar_device_free(cuda, r.asked, MOST * sizeof *r.asked);
    start(&r);
    invert(&r, ~0u, 1e-3);
    for (int i = 0; i < r.n; i++) {
        const subject *s = &r.of[i];
        float *found = malloc(full_bytes(s));
        cuda_move(cuda, found, s->f.inverse, full_bytes(s));
        for (int64_t e = 0; e < s->d * s->d; e++) {
            int exponent;
            const double unit = ldexp(1.0, (frexp((double)exact[i][e], &exponent), exponent - 11));
            assert_true(fmod((double)found[e], unit) == 0.0);
            assert_true(fabs((double)found[e] - (double)exact[i][e]) <= 0.5 * unit);
        }
        free(found);
        free(exact[i]);
    }
    stop(&r);
}

static void inverses_are_touched_only_where_wanted(void **unused)
{
    (void)unused;
    rig r = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add(&r, DEFINITE, sizes[i], 1.0, 0.1);
    start(&r);
    invert(&r, 0, TOLERANCE);
    invert(&r, 0x15, TOLERANCE);
    invert(&r, 0x20, TOLERANCE);
    invert(&r, 0xca, TOLERANCE);
    stop(&r);
}

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

static void eigenvectors_come_with_inverses(void **unused)
{
    (void)unused;
    rig r = {0};
    add(&r, EIGEN, 1, 1.0, 0.0);
    add(&r, DEFINITE, 70, 1.0, 0.1);
    add(&r, EIGEN, 17, 0.5, 0.0);
    add(&r, BAD_EIGEN, 12, 1.0, 0.0);
    add(&r, EIGEN, 40, 2.0, 0.0);
    start(&r);
    invert(&r, 0x0e, TOLERANCE);
    invert(&r, 0x1f, TOLERANCE);
    stop(&r);
}

static void recordings_do_what_is_wanted_when_they_are_replayed(void **unused)
{
    (void)unused;
    const abar__stream_ops *stream = cuda->ops->stream;
    const uint32_t wants[] = {0x3f, 0, 0x02, 0x39, 0, 0x04, 0x3f};
    rig r = {0};
    add(&r, DEFINITE, 65, 1.0, 0.1);
    add(&r, INDEFINITE, 130, 1.0, 0.01);
    add(&r, HOPELESS, 20, 1.0, 0.5);
    add(&r, EIGEN, 9, 1.0, 0.0);
    add(&r, DEFINITE, 1, 1.0, 0.1);
    add(&r, DEFINITE, 200, 1.3, 0.1);
    pair(&r, 0, 5);
    pair(&r, 1, 2);
    start(&r);
    ask(&r, 0x3f);
    void *recorded = NULL;
    if (stream->capture_begin(cuda) != ABAR_OK || stream->side_begin(cuda, ABAR_SIDE_STATS) != ABAR_OK ||
        stream->side_end(cuda, ABAR_SIDE_STATS) != ABAR_OK || stream->side_join(cuda, ABAR_SIDE_STATS) != ABAR_OK ||
        abar__cuda_invert_wanted(cuda, r.inverter) != ABAR_OK || stream->capture_end(cuda, &recorded) != ABAR_OK)
        fail_msg("%s", abar_context_error(ctx));
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        ask(&r, wants[i]);
        if (stream->replay(cuda, recorded) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
        check(&r, wants[i], TOLERANCE);
    }
    stream->forget(cuda, recorded);
    stop(&r);
}

static void single_inverses_are_right_in_both_precisions(void **unused)
{
    (void)unused;
    const abar__stats_ops *stats = cuda->ops->stats;
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        const bool in_double = i % 2;
        rig r = {0};
        add(&r, DEFINITE, sizes[i / 2], 1.0, 0.1);
        add(&r, HOPELESS, sizes[i / 2], 1.0, 0.1);
        for (int k = 0; k < 2; k++) {
            subject *s = &r.of[k];
            const size_t bytes = stats->invert_scratch(cuda, s->d);
            void *scratch = cuda_alloc(cuda, bytes);
            float *found = malloc(full_bytes(s));
            const bool fine = stats->invert(cuda, s->d, s->f.average, 1.5, 0.2, in_double, s->f.inverse, scratch);
            assert_int_equal(fine, k == 0);
            cuda_move(cuda, found, s->f.inverse, full_bytes(s));
            s->scale = 1.5;
            double trace = 0.0, squares = 0.0;
            for (int64_t j = 0; j < s->d; j++) trace += element(s, j, j);
            for (int64_t j = 0; j < s->d * s->d; j++) squares += (double)found[j] * (double)found[j];
            if (k == 0)
                assert_inverse(s, found, 0.2, (1.5 * trace + 0.2 * (double)s->d) * sqrt(squares), in_double ? 2e-7 : TOLERANCE);
            if (k == 1) assert_memory_equal(found, s->inverse, full_bytes(s));
            free(found);
            abar_device_free(cuda, scratch, bytes);
        }
        stop(&r);
    }
}

/* A = I + 1e6 (1 .. 1)T (1 .. 1) with a shift that float32 cannot see. */
static void single_inverses_in_double_go_where_float_cannot(void **unused)
{
    (void)unused;
    const abar__stats_ops *stats = cuda->ops->stats;
    rig r = {0};
    add(&r, ZERO, 150, 1.0, 0.0);
    subject *s = &r.of[0];
    for (int64_t i = 0; i < s->d; i++)
        for (int64_t j = i; j < s->d; j++) *average_at(s, i, j) = 16777216.0f;
    cuda_move(cuda, s->device_square, s->square, square_bytes(s));
    const size_t bytes = stats->invert_scratch(cuda, s->d);
    void *scratch = cuda_alloc(cuda, bytes);
    float *found = malloc(full_bytes(s));
    assert_false(stats->invert(cuda, s->d, s->f.average, 1.0, 0.25, false, s->f.inverse, scratch));
    assert_true(stats->invert(cuda, s->d, s->f.average, 1.0, 0.25, true, s->f.inverse, scratch));
    cuda_move(cuda, found, s->f.inverse, full_bytes(s));
    for (int64_t i = 0; i < s->d * s->d; i++) { /* 4 (I - 11T / (d + 2^-26)) */
        const double expected = 4.0 * ((i / s->d == i % s->d) - 1.0 / ((double)s->d + 1.0 / 67108864.0));
        assert_true(fabs((double)found[i] - expected) < 1e-4);
    }
    free(found);
    abar_device_free(cuda, scratch, bytes);
    stop(&r);
}

/* The diagonal block of s that begins at `first`, as a subject of its own; its average is the caller's to free. */
static subject block_of(const subject *s, int64_t first)
{
    const int64_t d = s->d - first < s->f.width ? s->d - first : s->f.width;
    subject block = {.kind = DEFINITE, .d = d, .scale = s->scale};
    block.square = calloc(1, square_bytes(&block));
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i; j < d; j++) *average_at(&block, i, j) = *average_at(s, first + i, first + j);
    return block;
}

/* Each by its own trace, whatever tiles and panels of 64 they lie in; zeros elsewhere. */
static void diagonal_blocks_are_inverted_by_themselves(void **unused)
{
    (void)unused;
    static const int64_t sides[] = {200, 130, 65}, widths[] = {70, 1, 64};
    rig r = {0};
    for (int i = 0; i < 3; i++) {
        add(&r, DEFINITE, sides[i], 1.7, 0.05);
        r.of[i].f.width = widths[i];
        r.of[i].f.gamma = 0.3;
    }
    start(&r);
    ask(&r, ~0u);
    if (abar__cuda_invert_wanted(cuda, r.inverter) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    cuda_wait(cuda, "inversion");
    for (int k = 0; k < 3; k++) {
        const subject *s = &r.of[k];
        float *found = malloc(full_bytes(s));
        cuda_move(cuda, found, s->f.inverse, full_bytes(s));
        for (int64_t first = 0; first < s->d; first += s->f.width) {
            subject block = block_of(s, first);
            double mean = 0.0;
            for (int64_t i = 0; i < block.d; i++) mean += element(&block, i, i) / (double)block.d;
            double *expected = inverse_of(&block, 0.05 + 0.3 * 1.7 * mean);
            for (int64_t i = 0; i < block.d; i++)
                for (int64_t j = 0; j < s->d; j++) {
                    const bool inside = j >= first && j < first + block.d;
                    const double right = inside ? expected[i * block.d + j - first] : 0.0;
                    if (!(fabs((double)found[(first + i) * s->d + j] - right) <= TOLERANCE * expected[0] * 10.0))
                        fail_msg("side %d, width %d: element (%d, %d) is %g, not %g", (int)s->d, (int)s->f.width,
                                 (int)(first + i), (int)j, (double)found[(first + i) * s->d + j], right);
                }
            free(expected);
            free(block.square);
        }
        free(found);
    }
    stop(&r);
}

int main(int argc, char **argv)
{
    cuda_choose_tests(argc, argv);
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inverses_of_many_sizes_at_once_are_right),
        cmocka_unit_test(inverses_of_large_factors_are_right),
        cmocka_unit_test(inverses_of_correlated_factors_are_right),
        cmocka_unit_test(diagonal_blocks_are_inverted_by_themselves),
        cmocka_unit_test(rounded_inverses_are_the_nearest),
        cmocka_unit_test(inverses_are_touched_only_where_wanted),
        cmocka_unit_test(ladder_is_climbed_by_each_factor_for_itself),
        cmocka_unit_test(ladder_ends_in_double_precision),
        cmocka_unit_test(partners_take_turns_in_double_precision),
        cmocka_unit_test(partner_that_needed_double_precision_keeps_its_inverse),
        cmocka_unit_test(partners_are_renewed_together_or_not_at_all),
        cmocka_unit_test(bases_of_partners_are_renewed_together_or_not_at_all),
        cmocka_unit_test(eigenvectors_come_with_inverses),
        cmocka_unit_test(recordings_do_what_is_wanted_when_they_are_replayed),
        cmocka_unit_test(single_inverses_are_right_in_both_precisions),
        cmocka_unit_test(single_inverses_in_double_go_where_float_cannot),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
