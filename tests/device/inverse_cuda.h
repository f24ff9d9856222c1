/* For tests of what a step on the cuda device inverts (cuda/factors/dense.h): factors of every kind, what is right of them, and
 * inverting many at once. Each program has its own. */
#ifndef INVERSE_CUDA_H
#define INVERSE_CUDA_H

#include "cuda_testing.h"
#include "device/cuda/factors/dense.h"

#include <math.h>

#define TOLERANCE 2e-6 /* of the largest element; float32 with condition numbers of about 30 */

static abar_context *ctx;
static abar_device *cuda;
static uint64_t noise = 1;

static inline double uniform(void) /* -1 .. 1 */
{
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)noise / 9223372036854775808.0;
}

static inline int open_device(void **unused)
{
    (void)unused;
    abar_device_config config = cuda_config(ABAR_PRECISION_FP32, true);
    return abar_context_create(NULL, &ctx) != ABAR_OK || abar_device_open(ctx, "cuda", &config, &cuda) != ABAR_OK;
}

static inline int close_device(void **unused)
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

static inline size_t square_bytes(const subject *s) { return (size_t)(s->d * (s->d + 1)) * sizeof(float); }
static inline size_t full_bytes(const subject *s) { return (size_t)(s->d * s->d) * sizeof(float); }

/* Element (i, j) of the average, i <= j. */
static inline float *average_at(const subject *s, int64_t i, int64_t j) { return &s->square[i * s->d + j]; }

/* Rows that overlap: positive definite, with eigenvalues from about 0.1 on, and not diagonal. */
static inline void fill_average(subject *s)
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

static inline void add(rig *r, matrix_kind kind, int64_t d, double scale, double shift)
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

static inline void pair(rig *r, int a, int b)
{
    r->of[a].f.partner = b;
    r->of[b].f.partner = a;
}

static inline void start(rig *r)
{
    abar__cuda_factor factors[MOST];
    for (int i = 0; i < r->n; i++) factors[i] = r->of[i].f;
    r->asked = cuda_alloc(cuda, MOST * sizeof *r->asked);
    if (abar__cuda_inverter_create(cuda, factors, r->n, r->asked, NULL, &r->inverter) != ABAR_OK)
        fail_msg("%s", abar_context_error(ctx));
    assert_true(abar__cuda_inverter_bytes(r->inverter) > 0);
}

static inline void stop(rig *r)
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

static inline void ask(rig *r, uint32_t wanted)
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

static inline double element(const subject *s, int64_t i, int64_t j)
{
    return (double)*average_at(s, i < j ? i : j, i < j ? j : i);
}

/* By Cholesky: (scale * average + shift * I)^-1; the caller frees it. */
static inline double *inverse_of(const subject *s, double shift)
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

static inline void assert_inverse(const subject *s, const float *found, double shift, double condition, double tolerance)
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
static inline void assert_eigen(const subject *s, const float *vectors, const float *values)
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
static inline void expect_ladder(const subject *s, int *raised, int *doubled, bool *valid, double *shift)
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
static inline bool is_renewed(const rig *r, int i, uint32_t wanted)
{
    int raised, doubled, partner = r->of[i].f.partner;
    bool valid, also = true;
    double shift;
    expect_ladder(&r->of[i], &raised, &doubled, &valid, &shift);
    if (partner >= 0 && wanted >> partner & 1) expect_ladder(&r->of[partner], &raised, &doubled, &also, &shift);
    return (wanted >> i & 1) && valid && also;
}

/* After an inversion of those in wanted: what the device tells and holds. Remembers the new inverses. */
static inline void check(rig *r, uint32_t wanted, double tolerance)
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

static inline void invert(rig *r, uint32_t wanted, double tolerance)
{
    ask(r, wanted);
    if (abar__cuda_invert_wanted(cuda, r->inverter) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    check(r, wanted, tolerance);
}

#endif
