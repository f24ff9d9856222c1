/* Bases on the cuda device (cuda/factors/bases.h): eigenvectors at first and then orthogonal iteration, many sizes at once,
 * against ref; singular averages, and recordings in which the device decides. */
#include "base/clock.h"
#include "cuda_testing.h"
#include "device/cuda/factors/bases.h"

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
    int64_t n, rank;    /* of the average; below n it is singular */
    float *average;     /* host, the upper triangle; below is NaN */
    float *basis;       /* host: before the turn */
    abar__cuda_basis f; /* device memory */
} subject;

typedef struct rig {
    int n;
    subject of[MOST];
    abar__cuda_root_call now, *call; /* the host's copy; device memory */
    abar__cuda_turner *turner;
} rig;

static size_t square_bytes(const subject *s) { return (size_t)(s->n * s->n) * sizeof(float); }

/* A sum of rank products whose sizes are apart: quotients are well ordered. */
static void draw_average(subject *s)
{
    double *x = malloc((size_t)(s->rank * s->n + 1) * sizeof *x);
    for (int64_t i = 0; i < s->rank * s->n; i++) x[i] = uniform();
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t j = 0; j < s->n; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < s->rank; k++) sum += x[k * s->n + i] * x[k * s->n + j];
            if (i == j && s->rank >= s->n) sum += (double)(i + 1); /* far from a multiple of the identity */
            s->average[i * s->n + j] = j < i ? NAN : (float)sum;
        }
    free(x);
}

static void add(rig *r, int64_t n, int64_t rank)
{
    assert_true(r->n < MOST);
    subject *s = &r->of[r->n++];
    *s = (subject){.n = n,
                   .rank = rank,
                   .average = malloc((size_t)(n * n) * sizeof(float)),
                   .basis = calloc((size_t)(n * n), sizeof(float))};
    draw_average(s);
    int32_t *order = calloc((size_t)n, sizeof *order);
    s->f = (abar__cuda_basis){.n = n,
                              .average = cuda_upload(cuda, s->average, square_bytes(s)),
                              .basis = cuda_upload(cuda, s->basis, square_bytes(s)),
                              .order = cuda_upload(cuda, order, (size_t)n * sizeof *order)};
    free(order);
}

static void create(rig *r, bool ordered)
{
    abar__cuda_basis bases[MOST];
    for (int i = 0; i < r->n; i++) bases[i] = r->of[i].f;
    r->call = cuda_alloc(cuda, sizeof *r->call);
    if (abar__cuda_turner_create(cuda, bases, r->n, ordered, r->call, &r->turner) != ABAR_OK)
        fail_msg("%s", abar_context_error(ctx));
}

static void destroy(rig *r)
{
    abar__cuda_turner_destroy(cuda, r->turner);
    abar_device_free(cuda, r->call, sizeof *r->call);
    for (int i = 0; i < r->n; i++) {
        abar_device_free(cuda, (void *)(uintptr_t)r->of[i].f.average, square_bytes(&r->of[i]));
        abar_device_free(cuda, r->of[i].f.basis, square_bytes(&r->of[i]));
        abar_device_free(cuda, r->of[i].f.order, (size_t)r->of[i].n * sizeof(int32_t));
        free(r->of[i].average);
        free(r->of[i].basis);
    }
}

static void ask(rig *r, int wanted)
{
    r->now = (abar__cuda_root_call){.wanted = wanted};
    cuda_move(cuda, r->call, &r->now, sizeof r->now);
}

static void run(rig *r)
{
    if (abar__cuda_turner_run(cuda, r->turner) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    cuda_wait(cuda, "bases");
    cuda_move(cuda, &r->now, r->call, sizeof r->now);
}

/* New averages for the next turn, in the same memory; what the device has now is the basis before it. */
static void renew(rig *r)
{
    for (int i = 0; i < r->n; i++) {
        subject *s = &r->of[i];
        cuda_move(cuda, s->basis, s->f.basis, square_bytes(s));
        draw_average(s);
        cuda_move(cuda, (void *)(uintptr_t)s->f.average, s->average, square_bytes(s));
    }
}

static void assert_orthonormal(const subject *s, const float *basis)
{
    double worst = 0.0;
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < s->n; k++) sum += (double)basis[i * s->n + k] * (double)basis[j * s->n + k];
            worst = fmax(worst, fabs(sum - (i == j)));
        }
    if (!(worst <= 2e-6)) fail_msg("side %d: %g from orthonormal", (int)s->n, worst);
}

/* What ref makes of the basis before, up to the signs of rows. Rows of singular averages are arbitrary: not compared. */
static void check_turn(const subject *s, const float *found, bool ordered)
{
    const size_t count = (size_t)(s->n * s->n);
    double *a = malloc(count * sizeof *a), *expected = malloc(count * sizeof *expected), worst = 0.0;
    int64_t *order = malloc((size_t)s->n * sizeof *order);
    int32_t *orders = malloc((size_t)s->n * sizeof *orders);
    void *scratch = malloc(ref->ops->stats->basis_scratch(ref, s->n));
    for (size_t i = 0; i < count; i++) a[i] = (double)s->average[i];
    for (size_t i = 0; i < count; i++) expected[i] = (double)s->basis[i];
    assert_true(ref->ops->stats->turn_basis(ref, s->n, a, expected, ordered ? order : NULL, scratch));
    cuda_move(cuda, orders, s->f.order, (size_t)s->n * sizeof *orders);
    for (int64_t i = 0; i < s->n; i++) {
        double inner = 0.0;
        for (int64_t k = 0; k < s->n; k++) inner += expected[i * s->n + k] * (double)found[i * s->n + k];
        worst = fmax(worst, fabs(fabs(inner) - 1.0));
        assert_int_equal(orders[i], ordered ? order[i] : i);
    }
    if (!(worst <= 1e-5)) fail_msg("side %d: a row is %g from ref's", (int)s->n, worst);
    free(scratch);
    free(orders);
    free(order);
    free(expected);
    free(a);
}

static void check(const rig *r, bool ordered, bool first)
{
    for (int i = 0; i < r->n; i++) {
        const subject *s = &r->of[i];
        float *found = malloc(square_bytes(s));
        cuda_move(cuda, found, s->f.basis, square_bytes(s));
        assert_orthonormal(s, found);
        if (!first && s->rank >= s->n) check_turn(s, found, ordered);
        free(found);
    }
}

/* Quotients of the first basis fall, and each is that of an eigenvector: |S b| = b . S b. */
static void check_eigenvectors(const rig *r)
{
    for (int i = 0; i < r->n; i++) {
        const subject *s = &r->of[i];
        float *b = malloc(square_bytes(s));
        double before = INFINITY, largest = 0.0;
        cuda_move(cuda, b, s->f.basis, square_bytes(s));
        for (int64_t row = 0; row < s->n; row++) {
            double quotient = 0.0, length = 0.0;
            for (int64_t j = 0; j < s->n; j++) {
                double sum = 0.0;
                for (int64_t k = 0; k < s->n; k++)
                    sum += (double)s->average[k < j ? k * s->n + j : j * s->n + k] * (double)b[row * s->n + k];
                quotient += sum * (double)b[row * s->n + j];
                length += sum * sum;
            }
            largest = fmax(largest, quotient);
            assert_true(quotient <= before + 1e-5 * largest);
            assert_true(fabs(sqrt(length) - fabs(quotient)) <= 1e-5 * largest);
            before = quotient;
        }
        free(b);
    }
}

static void fill(rig *r)
{
    static const int64_t sides[] = {1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 128, 129, 200};
    const bool small = cuda_only("ABAR_TEST_SMALL");
    const int n = (int)(sizeof sides / sizeof *sides) - (small ? 3 : 0);
    *r = (rig){0};
    for (int i = 0; i < n; i++) add(r, sides[i], sides[i] + 5);
    add(r, 40, 11);
    if (!small) add(r, 150, 20);
}

static void turned_bases_of_many_sizes_equal_ref(void **unused)
{
    (void)unused;
    for (int ordered = 0; ordered < 2; ordered++) {
        rig r;
        fill(&r);
        create(&r, ordered);
        ask(&r, 1);
        run(&r);
        check_eigenvectors(&r);
        check(&r, ordered, true);
        for (int turn = 0; turn < 3; turn++) {
            renew(&r);
            ask(&r, 1);
            run(&r);
            check(&r, ordered, false);
            assert_int_equal(r.now.kept, 0);
        }
        destroy(&r);
    }
}

/* Sides for which rows are kept in registers, and beyond; the first basis is given. */
static void turned_bases_of_long_sides_equal_ref(void **unused)
{
    (void)unused;
    static const int64_t sides[] = {300, 768, 769};
    if (cuda_only("ABAR_TEST_SMALL")) return;
    rig r = {0};
    for (int i = 0; i < 3; i++) add(&r, sides[i], sides[i] + 5);
    for (int i = 0; i < 3; i++) {
        subject *s = &r.of[i];
        for (int64_t k = 0; k < s->n; k++) s->basis[k * (s->n + 1)] = 1.0f;
        cuda_move(cuda, s->f.basis, s->basis, square_bytes(s));
    }
    create(&r, true);
    ask(&r, 1);
    run(&r);
    check(&r, true, false);
    destroy(&r);
}

/* Many pieces of a factor meet in many thread blocks; a singular average has many equal eigenvalues. */
static void first_bases_of_long_sides_are_eigenvectors(void **unused)
{
    (void)unused;
    static const int64_t sides[] = {300, 768, 768, 1025}, ranks[] = {305, 773, 100, 30};
    if (cuda_only("ABAR_TEST_SMALL")) return;
    rig r = {0};
    for (int i = 0; i < 4; i++) add(&r, sides[i], ranks[i]);
    create(&r, true);
    ask(&r, 1);
    const double before = abar__seconds();
    run(&r);
    print_message("first bases of sides 300, 768, 768, 1025: %.2f s\n", abar__seconds() - before);
    assert_int_equal(r.now.kept, 0);
    check_eigenvectors(&r);
    check(&r, true, true);
    destroy(&r);
}

/* More bases than fit into the workspace at once: the bits of one that has it alone. */
static void bases_in_several_waves_equal_those_alone_bit_for_bit(void **unused)
{
    (void)unused;
    enum { SIDE = 2200, BASES = 14 }; /* 78 MB of workspace each, of 1 GiB */
    if (cuda_only("ABAR_TEST_SMALL")) return;
    rig r = {0};
    for (int i = 0; i < BASES; i++) {
        add(&r, SIDE, 8);
        subject *s = &r.of[i];
        for (int64_t k = 0; k < SIDE; k++) s->basis[k * (SIDE + 1)] = 1.0f;
        cuda_move(cuda, s->f.basis, s->basis, square_bytes(s));
    }
    create(&r, true);
    ask(&r, 1);
    run(&r);
    assert_int_equal(r.now.kept, 0);
    float *together = malloc(square_bytes(&r.of[BASES - 1])), *alone = malloc(square_bytes(&r.of[BASES - 1]));
    subject *last = &r.of[BASES - 1];
    cuda_move(cuda, together, last->f.basis, square_bytes(last));
    assert_true(memcmp(together, last->basis, square_bytes(last)) != 0);
    cuda_move(cuda, last->f.basis, last->basis, square_bytes(last));
    rig one = {.n = 1, .of = {*last}};
    create(&one, true);
    ask(&one, 1);
    run(&one);
    cuda_move(cuda, alone, last->f.basis, square_bytes(last));
    assert_memory_equal(together, alone, square_bytes(last));
    abar__cuda_turner_destroy(cuda, one.turner);
    abar_device_free(cuda, one.call, sizeof *one.call);
    free(together);
    free(alone);
    destroy(&r);
}

/* The identity where the average is zero; the previous basis, counted, where it is not finite. */
static void bases_of_averages_without_eigenvectors_stay(void **unused)
{
    (void)unused;
    rig r = {0};
    add(&r, 33, 0);
    add(&r, 20, 25);
    create(&r, true);
    ask(&r, 1);
    run(&r);
    float *found = malloc(square_bytes(&r.of[0]));
    cuda_move(cuda, found, r.of[0].f.basis, square_bytes(&r.of[0]));
    for (int64_t k = 0; k < 33 * 33; k++) assert_true(found[k] == (k % 34 == 0 ? 1.0f : 0.0f));
    free(found);
    assert_int_equal(r.now.kept, 0);
    renew(&r);
    r.of[1].average[3] = INFINITY;
    cuda_move(cuda, (void *)(uintptr_t)r.of[1].f.average, r.of[1].average, square_bytes(&r.of[1]));
    ask(&r, 1);
    run(&r);
    assert_int_equal(r.now.kept, 1);
    found = malloc(square_bytes(&r.of[1]));
    cuda_move(cuda, found, r.of[1].f.basis, square_bytes(&r.of[1]));
    assert_memory_equal(found, r.of[1].basis, square_bytes(&r.of[1]));
    free(found);
    destroy(&r);
}

/* The same bits as without a recording, at every replay that wants them. */
static void recorded_turns_equal_others_bit_for_bit(void **unused)
{
    (void)unused;
    const abar__stream_ops *stream = cuda->ops->stream;
    rig r;
    void *graph;
    float *after[MOST];
    fill(&r);
    create(&r, true);
    ask(&r, 1);
    run(&r);
    renew(&r);
    ask(&r, 1);
    run(&r);
    for (int i = 0; i < r.n; i++) {
        after[i] = malloc(square_bytes(&r.of[i]));
        cuda_move(cuda, after[i], r.of[i].f.basis, square_bytes(&r.of[i]));
    }
    assert_int_equal(stream->capture_begin(cuda), ABAR_OK);
    assert_int_equal(abar__cuda_turner_run(cuda, r.turner), ABAR_OK);
    assert_int_equal(stream->capture_end(cuda, &graph), ABAR_OK);
    for (int replay = 0; replay < 3; replay++) {
        const bool wanted = replay != 1;
        for (int i = 0; i < r.n; i++) cuda_move(cuda, r.of[i].f.basis, r.of[i].basis, square_bytes(&r.of[i]));
        ask(&r, wanted);
        assert_int_equal(stream->replay(cuda, graph), ABAR_OK);
        cuda_wait(cuda, "replay");
        for (int i = 0; i < r.n; i++) {
            float *found = malloc(square_bytes(&r.of[i]));
            cuda_move(cuda, found, r.of[i].f.basis, square_bytes(&r.of[i]));
            assert_memory_equal(found, wanted ? after[i] : r.of[i].basis, square_bytes(&r.of[i]));
            free(found);
        }
    }
    stream->forget(cuda, graph);
    for (int i = 0; i < r.n; i++) free(after[i]);
    destroy(&r);
}

int main(int argc, char **argv)
{
    cuda_choose_tests(argc, argv);
    const int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turned_bases_of_many_sizes_equal_ref),
        cmocka_unit_test(turned_bases_of_long_sides_equal_ref),
        cmocka_unit_test(first_bases_of_long_sides_are_eigenvectors),
        cmocka_unit_test(bases_in_several_waves_equal_those_alone_bit_for_bit),
        cmocka_unit_test(bases_of_averages_without_eigenvectors_stay),
        cmocka_unit_test(recorded_turns_equal_others_bit_for_bit),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
