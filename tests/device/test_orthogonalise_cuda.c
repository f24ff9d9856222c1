/* Newton-Schulz and NorMuon on the cuda device, in float32 and with bfloat16 products: the shared cases, blocks of many sizes
 * at once against ref, captured runs, new addresses, and steps that are skipped. */
#include "cuda_testing.h"
#include "device/cuda/step/orthogonalise.h"
#include "orthogonalise_cases.h"

#include <math.h>

static abar_context *ctx;
static abar_device *ref, *cuda, *fixed; /* fixed: deterministic, with cuBLASLt's first suggestions */

static int open_devices(void **unused)
{
    (void)unused;
    const abar_device_config measured = cuda_config(ABAR_PRECISION_BF16, false),
                             deterministic = cuda_config(ABAR_PRECISION_BF16, true);
    return abar_context_create(NULL, &ctx) != ABAR_OK || abar_device_open(ctx, "ref", NULL, &ref) != ABAR_OK ||
           abar_device_open(ctx, "cuda", &measured, &cuda) != ABAR_OK ||
           abar_device_open(ctx, "cuda", &deterministic, &fixed) != ABAR_OK;
}

static int close_devices(void **unused)
{
    (void)unused;
    abar_device_close(fixed);
    abar_device_close(cuda);
    abar_device_close(ref);
    size_t held = abar_context_memory(ctx).now;
    abar_context_destroy(ctx);
    return held != 0;
}

/* ---- blocks in device memory
 * -------------------------------------------------------------------------------------------------- */

enum { MOST = 32 };

typedef struct uploaded {
    abar_device *dev;
    int n;
    abar__ns_block blocks[MOST];
    int32_t *verdict, *skip; /* device memory */
    abar__cuda_orthogonaliser *o;
} uploaded;

static float *upload(abar_device *dev, const double *x, int64_t n)
{
    float *host = malloc((size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++) host[i] = (float)x[i];
    float *device = cuda_upload(dev, host, (size_t)n * sizeof *host);
    free(host);
    return device;
}

static void download(abar_device *dev, double *x, const void *from, int64_t n)
{
    float *host = malloc((size_t)n * sizeof *host);
    cuda_move(dev, host, from, (size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++) x[i] = (double)host[i];
    free(host);
}

/* Every other block is in place. */
static void upload_blocks(uploaded *u, abar_device *dev, const ns_case *cases, int n)
{
    *u = (uploaded){.dev = dev, .n = n};
    assert_true(n <= MOST);
    for (int i = 0; i < n; i++) {
        const ns_case *c = &cases[i];
        const int64_t count = c->rows * c->columns;
        float *in = upload(dev, c->in, count);
        u->blocks[i] = (abar__ns_block){.rows = c->rows,
                                        .columns = c->columns,
                                        .in = in,
                                        .out = i % 2 ? (void *)in : cuda_alloc(dev, (size_t)count * sizeof(float)),
                                        .scale = c->scale,
                                        .row_moment = c->moment ? upload(dev, c->moment, c->rows) : NULL};
    }
    int32_t verdict[MOST];
    for (int i = 0; i < MOST; i++) verdict[i] = -1;
    u->verdict = cuda_upload(dev, verdict, sizeof verdict);
    u->skip = cuda_alloc(dev, sizeof *u->skip);
}

static void create(uploaded *u, const abar__ns *ns, bool exact)
{
    const size_t before = abar_context_memory(ctx).now;
    if (abar__cuda_orthogonaliser_create(u->dev, ns, u->blocks, u->n, exact, &u->o) != ABAR_OK)
        fail_msg("%s", abar_context_error(ctx));
    assert_true(abar__cuda_orthogonaliser_bytes(u->o) == abar_context_memory(ctx).now - before);
}

static void enqueue(uploaded *u, double beta)
{
    const size_t before = abar_context_memory(ctx).now;
    if (abar__cuda_orthogonaliser_run(u->dev, u->o, beta, u->skip, u->verdict) != ABAR_OK)
        fail_msg("%s", abar_context_error(ctx));
    assert_true(abar_context_memory(ctx).now == before);
}

static void download_blocks(uploaded *u, ns_case *cases)
{
    int32_t verdict[MOST];
    cuda_wait(u->dev, "orthogonalise");
    cuda_move(u->dev, verdict, u->verdict, sizeof verdict);
    for (int i = 0; i < u->n; i++) {
        download(u->dev, cases[i].out, u->blocks[i].out, cases[i].rows * cases[i].columns);
        if (cases[i].moment) download(u->dev, cases[i].moment, u->blocks[i].row_moment, cases[i].rows);
        cases[i].verdict = verdict[i];
    }
}

static void release_blocks(uploaded *u)
{
    abar__cuda_orthogonaliser_destroy(u->dev, u->o);
    for (int i = 0; i < u->n; i++) {
        const abar__ns_block *b = &u->blocks[i];
        const size_t bytes = (size_t)(b->rows * b->columns) * sizeof(float);
        if (b->out != b->in) abar_device_free(u->dev, b->out, bytes);
        abar_device_free(u->dev, (void *)(uintptr_t)b->in, bytes);
        abar_device_free(u->dev, b->row_moment, (size_t)b->rows * sizeof(float));
    }
    abar_device_free(u->dev, u->verdict, MOST * sizeof *u->verdict);
    abar_device_free(u->dev, u->skip, sizeof *u->skip);
}

/* ---- the shared cases
 * ----------------------------------------------------------------------------------------------------------- */

typedef struct precision {
    abar_device *dev;
    bool exact;
} precision;

static void run(const ns_rig *rig, const abar__ns *ns, ns_case *cases, int n, double beta)
{
    const precision *p = rig->user;
    uploaded u;
    upload_blocks(&u, p->dev, cases, n);
    create(&u, ns, p->exact);
    enqueue(&u, beta);
    download_blocks(&u, cases);
    release_blocks(&u);
}

static void in_each(void (*check)(const ns_rig *rig))
{
    precision single = {cuda, true}, half = {cuda, false}, half_fixed = {fixed, false};
    check(&(ns_rig){.run = run, .user = &single, .tolerance = 1e-5, .condition = 10.0});
    check(&(ns_rig){.run = run, .user = &half, .tolerance = 2e-2, .condition = 2.0});
    check(&(ns_rig){.run = run, .user = &half_fixed, .tolerance = 2e-2, .condition = 2.0});
}

static void golden_blocks_of_all_sets_are_right(void **unused)
{
    (void)unused;
    in_each(ns_check_golden);
}

static void fewer_and_more_steps_are_right(void **unused)
{
    (void)unused;
    in_each(ns_check_steps);
}

static void scales_multiply_the_result(void **unused)
{
    (void)unused;
    in_each(ns_check_scales);
}

static void normuon_keeps_moments_over_rounds(void **unused)
{
    (void)unused;
    in_each(ns_check_normuon);
}

static void exact_gives_the_orthogonal_factor(void **unused)
{
    (void)unused;
    in_each(ns_check_exact_is_orthogonal);
}

static void transposed_blocks_give_transposed_results(void **unused)
{
    (void)unused;
    in_each(ns_check_transposed);
}

static void orthogonal_matrices_come_back(void **unused)
{
    (void)unused;
    in_each(ns_check_orthogonal_inputs);
}

static void rank_one_is_divided_by_its_norm(void **unused)
{
    (void)unused;
    in_each(ns_check_rank_one);
}

static void magnitude_of_the_input_does_not_matter(void **unused)
{
    (void)unused;
    in_each(ns_check_magnitudes);
}

static void zeros_give_zeros(void **unused)
{
    (void)unused;
    in_each(ns_check_zeros);
}

static void inputs_below_eps_are_reported(void **unused)
{
    (void)unused;
    in_each(ns_check_below_eps);
}

static void inputs_that_are_not_finite_drop_their_block_alone(void **unused)
{
    (void)unused;
    in_each(ns_check_not_finite);
}

static void results_that_are_not_finite_drop_their_block(void **unused)
{
    (void)unused;
    in_each(ns_check_divergence);
}

/* ---- many sizes
 * ------------------------------------------------------------------------------------------------------------------ */

/* Small ones of every padding, large ones that share a padded size, long ones that do not fit into shared memory, tall and wide
 * ones; every third has moments. */
static const int64_t shapes[][2] = {{16, 144},  {32, 288},  {64, 576},  {33, 50},   {64, 64},  {1, 1},
                                    {2, 300},   {144, 16},  {65, 64},   {65, 65},   {70, 65},  {72, 66},
                                    {66, 72},   {128, 130}, {48, 8000}, {8000, 48}, {300, 50}, {257, 400},
                                    {400, 257}, {63, 1500}, {17, 4000}, {512, 512}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static double *numbers(int64_t n, uint64_t seed)
{
    double *x = malloc((size_t)n * sizeof *x);
    ns_fill(x, n, seed);
    return x;
}

static int make_cases(ns_case *cases)
{
    const int n = cuda_only("ABAR_TEST_SMALL") ? SHAPES - 8 : SHAPES;
    for (int i = 0; i < n; i++) {
        const int64_t rows = shapes[i][0], count = rows * shapes[i][1];
        cases[i] = (ns_case){.rows = rows,
                             .columns = shapes[i][1],
                             .in = numbers(count, (uint64_t)i + 7),
                             .out = malloc((size_t)count * sizeof(double)),
                             .moment = i % 3 == 2 ? calloc((size_t)rows, sizeof(double)) : NULL,
                             .scale = 0.5 + i};
    }
    return n;
}

static void free_cases(ns_case *cases, int n)
{
    for (int i = 0; i < n; i++) {
        free((void *)(uintptr_t)cases[i].in);
        free(cases[i].out);
        free(cases[i].moment);
    }
}

static void run_ref(const abar__ns *ns, ns_case *cases, int n, double beta)
{
    abar__ns_block blocks[MOST];
    int32_t verdict[MOST];
    for (int i = 0; i < n; i++)
        blocks[i] = (abar__ns_block){.rows = cases[i].rows,
                                     .columns = cases[i].columns,
                                     .in = cases[i].in,
                                     .out = cases[i].out,
                                     .scale = cases[i].scale,
                                     .row_moment = cases[i].moment};
    void *scratch = malloc(ref->ops->stats->orthogonalise_scratch(ref, blocks, n));
    ref->ops->stats->orthogonalise(ref, ns, blocks, n, beta, verdict, scratch);
    free(scratch);
}

/* quintic: of the sets with five steps the one that magnifies rounding least. */
static void blocks_of_many_sizes_equal_ref(void **unused)
{
    (void)unused;
    abar__ns ns;
    ns_case expected[MOST], found[MOST];
    assert_true(abar__ns_find("quintic", 0, &ns));
    int n = make_cases(expected);
    run_ref(&ns, expected, n, 0.9);
    for (int exact = 0; exact < 2; exact++) {
        precision p = {cuda, exact};
        make_cases(found);
        run(&(ns_rig){.user = &p}, &ns, found, n, 0.9);
        for (int i = 0; i < n; i++) {
            const double of_out = ns_deviation(found[i].rows * found[i].columns, found[i].out, expected[i].out),
                         of_moment = found[i].moment ? ns_deviation(found[i].rows, found[i].moment, expected[i].moment) : 0.0;
            assert_int_equal(found[i].verdict, ABAR_NS_FINE);
            if (!(of_out <= (exact ? 1e-5 : 2e-2) && of_moment <= (exact ? 2e-5 : 4e-2)))
                fail_msg("%lld x %lld, exact %d: off by %.3g, moments by %.3g", (long long)found[i].rows,
                         (long long)found[i].columns, exact, of_out, of_moment);
        }
        free_cases(found, n);
    }
    free_cases(expected, n);
}

/* A run that is captured does the same, replay after replay, and takes new addresses and the skip flag from device memory. */
static void captured_runs_repeat_rebind_and_skip(void **unused)
{
    (void)unused;
    const abar__stream_ops *stream = cuda->ops->stream;
    abar__ns ns;
    ns_case first[MOST], again[MOST];
    uploaded u, other;
    void *graph;
    assert_true(abar__ns_find("original", 0, &ns));
    const int n = make_cases(first);
    make_cases(again);
    for (int i = 0; i < n; i++) { /* without moments, which each run changes, and not in place: u.blocks[i].in stays */
        free(first[i].moment);
        free(again[i].moment);
        first[i].moment = again[i].moment = NULL;
    }
    upload_blocks(&u, cuda, first, n);
    upload_blocks(&other, cuda, again, n);
    for (int i = 1; i < n; i += 2) {
        u.blocks[i].out = cuda_alloc(cuda, (size_t)(first[i].rows * first[i].columns) * sizeof(float));
        other.blocks[i].out = cuda_alloc(cuda, (size_t)(first[i].rows * first[i].columns) * sizeof(float));
    }
    create(&u, &ns, false);
    enqueue(&u, 0.0);
    download_blocks(&u, first);

    assert_int_equal(stream->capture_begin(cuda), ABAR_OK);
    enqueue(&u, 0.0);
    assert_int_equal(stream->capture_end(cuda, &graph), ABAR_OK);
    for (int replay = 0; replay < 3; replay++) assert_int_equal(stream->replay(cuda, graph), ABAR_OK);
    download_blocks(&u, again);
    for (int i = 0; i < n; i++)
        assert_memory_equal(again[i].out, first[i].out, (size_t)(first[i].rows * first[i].columns) * sizeof(double));

    const int32_t yes = 1, no = 0;
    if (abar__cuda_orthogonaliser_rebind(cuda, u.o, other.blocks) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    cuda_move(cuda, u.skip, &yes, sizeof yes);
    assert_int_equal(stream->replay(cuda, graph), ABAR_OK);
    download_blocks(&other, again);
    for (int i = 0; i < n; i++) /* zeros, as they were allocated */
        for (int64_t k = 0; k < again[i].rows * again[i].columns; k++) assert_true(again[i].out[k] == 0.0);
    cuda_move(cuda, u.skip, &no, sizeof no);
    assert_int_equal(stream->replay(cuda, graph), ABAR_OK);
    download_blocks(&other, again);
    for (int i = 0; i < n; i++)
        assert_memory_equal(again[i].out, first[i].out, (size_t)(first[i].rows * first[i].columns) * sizeof(double));

    other.blocks[0].rows++;
    assert_int_equal(abar__cuda_orthogonaliser_rebind(cuda, u.o, other.blocks), ABAR_E_UNSUPPORTED);
    other.blocks[0].rows--;
    stream->forget(cuda, graph);
    release_blocks(&u);
    release_blocks(&other);
    free_cases(first, n);
    free_cases(again, n);
}

static void no_blocks_are_no_work(void **unused)
{
    (void)unused;
    abar__ns ns;
    uploaded u;
    assert_true(abar__ns_find("original", 0, &ns));
    upload_blocks(&u, cuda, NULL, 0);
    create(&u, &ns, false);
    enqueue(&u, 0.0);
    release_blocks(&u);
}

int main(int argc, char **argv)
{
    cuda_choose_tests(argc, argv);
    const int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_blocks_of_all_sets_are_right),
        cmocka_unit_test(fewer_and_more_steps_are_right),
        cmocka_unit_test(scales_multiply_the_result),
        cmocka_unit_test(normuon_keeps_moments_over_rounds),
        cmocka_unit_test(exact_gives_the_orthogonal_factor),
        cmocka_unit_test(transposed_blocks_give_transposed_results),
        cmocka_unit_test(orthogonal_matrices_come_back),
        cmocka_unit_test(rank_one_is_divided_by_its_norm),
        cmocka_unit_test(magnitude_of_the_input_does_not_matter),
        cmocka_unit_test(zeros_give_zeros),
        cmocka_unit_test(inputs_below_eps_are_reported),
        cmocka_unit_test(inputs_that_are_not_finite_drop_their_block_alone),
        cmocka_unit_test(results_that_are_not_finite_drop_their_block),
        cmocka_unit_test(blocks_of_many_sizes_equal_ref),
        cmocka_unit_test(captured_runs_repeat_rebind_and_skip),
        cmocka_unit_test(no_blocks_are_no_work),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
