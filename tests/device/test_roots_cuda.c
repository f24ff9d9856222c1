/* Inverse roots on the cuda device (cuda/factors/roots.h): many factors of many sizes and exponents at once against ref, what
 * becomes of singular ones, and recordings in which the device decides. */
#include "cuda_testing.h"
#include "device/cuda/factors/roots.h"

#include <math.h>

#define MOST 32

static abar_context *ctx;
static abar_device *cuda, *ref;
static uint64_t noise = 1;

static double uniform(void) /* -1 .. 1 */
{
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)noise / 9223372036854775808.0;
}

static int open_devices(void **unused)
{
    (void)unused;
    abar_device_config config = cuda_config(ABAR_PRECISION_FP32, true);
    return abar_context_create(NULL, &ctx) != ABAR_OK || abar_device_open(ctx, "ref", NULL, &ref) != ABAR_OK ||
           abar_device_open(ctx, "cuda", &config, &cuda) != ABAR_OK;
}

static int close_devices(void **unused)
{
    (void)unused;
    abar_device_close(cuda);
    abar_device_close(ref);
    size_t held = abar_context_memory(ctx).now;
    abar_context_destroy(ctx);
    return held != 0;
}

typedef struct subject {
    int64_t n;
    double exponent;
    int64_t rank;      /* of the average; below n it is singular */
    float *average;    /* host, the upper triangle; below is NaN */
    abar__cuda_root f; /* device memory */
} subject;

typedef struct rig {
    int n;
    subject of[MOST];
    abar__cuda_root_call now, *call; /* the host's copy; device memory */
    abar__cuda_rooter *rooter;
} rig;

static size_t square_bytes(const subject *s) { return (size_t)(s->n * s->n) * sizeof(float); }

static void add(rig *r, int64_t n, double exponent, int64_t rank)
{
    assert_true(r->n < MOST);
    subject *s = &r->of[r->n++];
    *s = (subject){.n = n, .exponent = exponent, .rank = rank, .average = malloc((size_t)(n * n) * sizeof(float))};
    double *x = malloc((size_t)(rank * n + 1) * sizeof *x);
    for (int64_t i = 0; i < rank * n; i++) x[i] = uniform();
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < rank; k++) sum += x[k * n + i] * x[k * n + j];
            s->average[i * n + j] = j < i ? NAN : (float)sum;
        }
    free(x);
    float *before = calloc(1, square_bytes(s));
    before[0] = 7.0f;
    s->f = (abar__cuda_root){.n = n,
                             .average = cuda_upload(cuda, s->average, square_bytes(s)),
                             .root = cuda_upload(cuda, before, square_bytes(s)),
                             .exponent = exponent};
    free(before);
}

static void create(rig *r)
{
    abar__cuda_root roots[MOST];
    for (int i = 0; i < r->n; i++) roots[i] = r->of[i].f;
    r->call = cuda_alloc(cuda, sizeof *r->call);
    if (abar__cuda_rooter_create(cuda, roots, r->n, r->call, &r->rooter) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
}

static void destroy(rig *r)
{
    abar__cuda_rooter_destroy(cuda, r->rooter);
    abar_device_free(cuda, r->call, sizeof *r->call);
    for (int i = 0; i < r->n; i++) {
        abar_device_free(cuda, (void *)(uintptr_t)r->of[i].f.average, square_bytes(&r->of[i]));
        abar_device_free(cuda, r->of[i].f.root, square_bytes(&r->of[i]));
        free(r->of[i].average);
    }
}

static void ask(rig *r, int wanted, double scale, double eps)
{
    r->now = (abar__cuda_root_call){.wanted = wanted, .scale = scale, .eps = eps};
    cuda_move(cuda, r->call, &r->now, sizeof r->now);
}

static void run(rig *r)
{
    if (abar__cuda_rooter_run(cuda, r->rooter) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    cuda_wait(cuda, "roots");
    cuda_move(cuda, &r->now, r->call, sizeof r->now);
}

/* The root that ref takes, (n, n). */
static double *expected_of(const subject *s, double scale, double eps)
{
    const size_t count = (size_t)(s->n * s->n);
    double *a = malloc(count * sizeof *a), *out = malloc(count * sizeof *out);
    void *scratch = malloc(ref->ops->stats->inverse_root_scratch(ref, s->n));
    for (size_t i = 0; i < count; i++) a[i] = (double)s->average[i];
    assert_true(ref->ops->stats->inverse_root(ref, s->n, a, scale, eps, NULL, s->exponent, out, scratch));
    free(scratch);
    free(a);
    return out;
}

static void check(const rig *r, double scale, double eps)
{
    for (int i = 0; i < r->n; i++) {
        const subject *s = &r->of[i];
        double *expected = expected_of(s, scale, eps), error = 0.0, largest = 0.0;
        float *found = malloc(square_bytes(s));
        cuda_move(cuda, found, s->f.root, square_bytes(s));
        for (int64_t k = 0; k < s->n * s->n; k++) {
            error = fmax(error, fabs((double)found[k] - expected[k]));
            largest = fmax(largest, fabs(expected[k]));
            assert_true(isfinite(found[k]));
        }
        if (!(error <= 1e-6 * largest))
            fail_msg("side %d, exponent %g: error %g of %g", (int)s->n, s->exponent, error, largest);
        free(found);
        free(expected);
    }
}

static void fill(rig *r)
{
    static const double exponents[] = {0.5, 0.25, 1.0 / 6.0, 0.125, 1.0, 1.0 / 3.0};
    static const int64_t sides[] = {1, 2, 17, 63, 64, 65, 130};
    *r = (rig){0};
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < 3; k++) add(r, sides[i], exponents[(i + 2 * k) % 6], sides[i] + 5);
    add(r, 40, 0.4, 45); /* by eigenvalues */
    add(r, 65, 0.0, 70);
    if (cuda_only("ABAR_TEST_SMALL")) return;
    add(r, 300, 0.25, 320);
    add(r, 300, 0.3, 320);
}

static void roots_of_many_sizes_and_exponents_equal_ref(void **unused)
{
    (void)unused;
    rig r;
    fill(&r);
    create(&r);
    ask(&r, 1, 2.0, 0.1);
    run(&r);
    assert_int_equal(r.now.kept, 0);
    check(&r, 2.0, 0.1);
    destroy(&r);
}

static void roots_that_are_not_wanted_stay(void **unused)
{
    (void)unused;
    rig r;
    fill(&r);
    create(&r);
    ask(&r, 0, 2.0, 0.1);
    run(&r);
    for (int i = 0; i < r.n; i++) {
        float first;
        cuda_move(cuda, &first, r.of[i].f.root, sizeof first);
        assert_true(first == 7.0f);
    }
    destroy(&r);
}

/* Rounding makes eigenvalues of a singular average negative: eps is raised until there is a root. It is finite, positive on the
 * diagonal, and on the range of the average that of the average. Zeros without eps have none: the previous one stays. */
static void singular_averages_have_roots_and_zeros_have_none(void **unused)
{
    (void)unused;
    rig r = {0};
    add(&r, 64, 0.25, 5);
    add(&r, 100, 0.5, 20);
    add(&r, 30, 0.25, 0);
    create(&r);
    ask(&r, 1, 1.0, 0.0);
    run(&r);
    assert_int_equal(r.now.kept, 1);
    for (int i = 0; i < 2; i++) {
        const subject *s = &r.of[i];
        float *found = malloc(square_bytes(s));
        cuda_move(cuda, found, s->f.root, square_bytes(s));
        for (int64_t k = 0; k < s->n * s->n; k++) assert_true(isfinite(found[k]));
        for (int64_t k = 0; k < s->n; k++) assert_true(found[k * (s->n + 1)] > 0.0f);
        free(found);
    }
    float first;
    cuda_move(cuda, &first, r.of[2].f.root, sizeof first);
    assert_true(first == 7.0f);
    destroy(&r);
}

/* What a ridge adds stays in the average. */
static void ridges_are_taken_of_the_largest_eigenvalue(void **unused)
{
    (void)unused;
    rig r = {0};
    add(&r, 130, 0.25, 140);
    subject *s = &r.of[0];
    const size_t count = (size_t)(s->n * s->n);
    double *a = malloc(count * sizeof *a), *expected = malloc(count * sizeof *expected), ridge = 0.01;
    float *average = malloc(square_bytes(s)), *found = malloc(square_bytes(s));
    void *scratch = malloc(ref->ops->stats->inverse_root_scratch(ref, s->n));
    s->f.ridge = ridge;
    create(&r);
    ask(&r, 1, 1.0, 0.1);
    run(&r);
    assert_int_equal(r.now.kept, 0);
    for (size_t i = 0; i < count; i++) a[i] = (double)s->average[i];
    assert_true(ref->ops->stats->inverse_root(ref, s->n, a, 1.0, 0.1, &ridge, s->exponent, expected, scratch));
    cuda_move(cuda, average, s->f.average, square_bytes(s));
    cuda_move(cuda, found, s->f.root, square_bytes(s));
    for (int64_t i = 0; i < s->n; i++)
        assert_true(fabs((double)average[i * (s->n + 1)] - a[i * (s->n + 1)] - ridge) <= 1e-5 * a[i * (s->n + 1)]);
    for (size_t i = 0; i < count; i++) assert_true(fabs((double)found[i] - expected[i]) <= 1e-6 * expected[0]);
    free(scratch);
    free(found);
    free(average);
    free(expected);
    free(a);
    destroy(&r);
}

/* More factors than fit into the workspace at once. */
static void roots_in_several_waves_equal_ref(void **unused)
{
    (void)unused;
    rig r = {0};
    if (cuda_only("ABAR_TEST_SMALL")) return;
    for (int i = 0; i < 24; i++) add(&r, 330, 0.25, 350); /* 6 MB of workspace each, of 128 */
    create(&r);
    ask(&r, 1, 1.0, 1.0);
    run(&r);
    assert_int_equal(r.now.kept, 0);
    for (int i = 1; i < r.n; i++) { /* ref is slow: the first and the last */
        if (i == r.n - 1) continue;
        float first;
        cuda_move(cuda, &first, r.of[i].f.root, sizeof first);
        assert_true(first > 0.0f && first != 7.0f);
    }
    rig ends = r;
    ends.n = 2;
    ends.of[1] = r.of[r.n - 1];
    check(&ends, 1.0, 1.0);
    destroy(&r);
}

/* The same bits as without a recording, at every replay that wants them. */
static void recorded_roots_equal_others_bit_for_bit(void **unused)
{
    (void)unused;
    const abar__stream_ops *stream = cuda->ops->stream;
    rig r;
    void *graph;
    fill(&r);
    create(&r);
    ask(&r, 1, 2.0, 0.1);
    run(&r);
    float *before[MOST];
    for (int i = 0; i < r.n; i++) {
        before[i] = malloc(square_bytes(&r.of[i]));
        cuda_move(cuda, before[i], r.of[i].f.root, square_bytes(&r.of[i]));
    }
    assert_int_equal(stream->capture_begin(cuda), ABAR_OK);
    assert_int_equal(abar__cuda_rooter_run(cuda, r.rooter), ABAR_OK);
    assert_int_equal(stream->capture_end(cuda, &graph), ABAR_OK);
    for (int replay = 0; replay < 3; replay++) {
        const bool wanted = replay != 1;
        const float mark = 5.0f;
        for (int i = 0; i < r.n; i++) cuda_move(cuda, r.of[i].f.root, &mark, sizeof mark);
        ask(&r, wanted, 2.0, 0.1);
        assert_int_equal(stream->replay(cuda, graph), ABAR_OK);
        cuda_wait(cuda, "replay");
        for (int i = 0; i < r.n; i++) {
            float *found = malloc(square_bytes(&r.of[i]));
            cuda_move(cuda, found, r.of[i].f.root, square_bytes(&r.of[i]));
            if (wanted)
                assert_memory_equal(found, before[i], square_bytes(&r.of[i]));
            else
                assert_true(found[0] == mark);
            free(found);
        }
    }
    stream->forget(cuda, graph);
    for (int i = 0; i < r.n; i++) free(before[i]);
    destroy(&r);
}

int main(void)
{
    const int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roots_of_many_sizes_and_exponents_equal_ref),
        cmocka_unit_test(roots_that_are_not_wanted_stay),
        cmocka_unit_test(singular_averages_have_roots_and_zeros_have_none),
        cmocka_unit_test(roots_in_several_waves_equal_ref),
        cmocka_unit_test(ridges_are_taken_of_the_largest_eigenvalue),
        cmocka_unit_test(recorded_roots_equal_others_bit_for_bit),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
