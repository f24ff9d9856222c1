/* Newton-Schulz and NorMuon on ref and cpu: the shared cases, and on cpu blocks that all threads work on. */
#include "orthogonalise_cases.h"
#include "stats_testing.h"

/* Elements of the device's dtype, and back. */
static void to_device(const abar_device *dev, int64_t n, const double *from, void *to)
{
    for (int64_t i = 0; i < n; i++)
        if (dev->ops->dtype == ABAR_F64)
            ((double *)to)[i] = from[i];
        else
            ((float *)to)[i] = (float)from[i];
}

static void from_device(const abar_device *dev, int64_t n, const void *from, double *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = dev->ops->dtype == ABAR_F64 ? ((const double *)from)[i] : (double)((const float *)from)[i];
}

enum { MOST = 16, GUARD = 64 };

/* Every other block in place. Nothing is written behind the scratch that was asked for. */
static void run(const ns_rig *rig, const abar__ns *ns, ns_case *cases, int n, double beta)
{
    abar_device *dev = rig->user;
    abar__ns_block blocks[MOST];
    int32_t verdict[MOST];
    assert_true(n <= MOST);
    for (int i = 0; i < n; i++) {
        const ns_case *c = &cases[i];
        const int64_t count = c->rows * c->columns;
        void *in = malloc((size_t)count * sizeof(double)), *out = i % 2 ? in : malloc((size_t)count * sizeof(double));
        void *moment = c->moment ? malloc((size_t)c->rows * sizeof(double)) : NULL;
        to_device(dev, count, c->in, in);
        if (moment) to_device(dev, c->rows, c->moment, moment);
        blocks[i] = (abar__ns_block){
            .rows = c->rows, .columns = c->columns, .in = in, .out = out, .scale = c->scale, .row_moment = moment};
        verdict[i] = -1;
    }
    const size_t bytes = dev->ops->stats->orthogonalise_scratch(dev, blocks, n);
    char *scratch = take(dev, bytes + GUARD);
    memset(scratch, 0xff, bytes + GUARD);
    dev->ops->stats->orthogonalise(dev, ns, blocks, n, beta, verdict, scratch);
    for (int i = 0; i < GUARD; i++) assert_int_equal(scratch[bytes + (size_t)i], (char)0xff);
    abar_device_free(dev, scratch, bytes + GUARD);
    for (int i = 0; i < n; i++) {
        ns_case *c = &cases[i];
        from_device(dev, c->rows * c->columns, blocks[i].out, c->out);
        if (c->moment) from_device(dev, c->rows, blocks[i].row_moment, c->moment);
        c->verdict = verdict[i];
        if (blocks[i].out != blocks[i].in) free(blocks[i].out);
        free((void *)(uintptr_t)blocks[i].in);
        free(blocks[i].row_moment);
    }
}

static void on_each(void (*check)(const ns_rig *rig))
{
    check(&(ns_rig){.run = run, .user = ref, .tolerance = 1e-9, .condition = 1e9});
    for (int threads = 1; threads <= MAX_THREADS; threads++)
        check(&(ns_rig){.run = run, .user = cpu[threads], .tolerance = 1e-5, .condition = 10.0});
}

static void golden_blocks_of_all_sets_are_right(void **unused)
{
    (void)unused;
    on_each(ns_check_golden);
}

static void fewer_and_more_steps_are_right(void **unused)
{
    (void)unused;
    on_each(ns_check_steps);
}

static void scales_multiply_the_result(void **unused)
{
    (void)unused;
    on_each(ns_check_scales);
}

static void normuon_keeps_moments_over_rounds(void **unused)
{
    (void)unused;
    on_each(ns_check_normuon);
}

static void exact_gives_the_orthogonal_factor(void **unused)
{
    (void)unused;
    on_each(ns_check_exact_is_orthogonal);
}

static void transposed_blocks_give_transposed_results(void **unused)
{
    (void)unused;
    on_each(ns_check_transposed);
}

static void orthogonal_matrices_come_back(void **unused)
{
    (void)unused;
    on_each(ns_check_orthogonal_inputs);
}

static void rank_one_is_divided_by_its_norm(void **unused)
{
    (void)unused;
    on_each(ns_check_rank_one);
}

static void magnitude_of_the_input_does_not_matter(void **unused)
{
    (void)unused;
    on_each(ns_check_magnitudes);
}

static void zeros_give_zeros(void **unused)
{
    (void)unused;
    on_each(ns_check_zeros);
}

static void inputs_below_eps_are_reported(void **unused)
{
    (void)unused;
    on_each(ns_check_below_eps);
}

static void inputs_that_are_not_finite_drop_their_block_alone(void **unused)
{
    (void)unused;
    on_each(ns_check_not_finite);
}

static void results_that_are_not_finite_drop_their_block(void **unused)
{
    (void)unused;
    on_each(ns_check_divergence);
}

/* ---- cpu: blocks that all threads work on -------------------------------------------------------------------------------- */

enum { LARGE = 4 };
static const int64_t large_rows[LARGE] = {300, 259, 1030, 40}, large_columns[LARGE] = {260, 259, 71, 30};

/* With moments where k is odd. */
static void make_large(ns_case *cases)
{
    for (int k = 0; k < LARGE; k++) {
        const int64_t count = large_rows[k] * large_columns[k];
        double *in = malloc((size_t)count * sizeof *in);
        ns_fill(in, count, (uint64_t)k + 20);
        cases[k] = (ns_case){.rows = large_rows[k],
                             .columns = large_columns[k],
                             .in = in,
                             .out = malloc((size_t)count * sizeof(double)),
                             .moment = k % 2 ? calloc((size_t)large_rows[k], sizeof(double)) : NULL,
                             .scale = 0.2};
    }
}

static void free_large(ns_case *cases)
{
    for (int k = 0; k < LARGE; k++) {
        free((void *)(uintptr_t)cases[k].in);
        free(cases[k].out);
        free(cases[k].moment);
    }
}

static void large_blocks_equal_ref_and_repeat_bit_for_bit(void **unused)
{
    (void)unused;
    abar__ns ns;
    ns_case expected[LARGE], found[LARGE], again[LARGE];
    assert_true(abar__ns_find("quintic", 0, &ns));
    make_large(expected);
    run(&(ns_rig){.user = ref}, &ns, expected, LARGE, 0.9);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        const ns_rig rig = {.user = cpu[threads]};
        make_large(found);
        make_large(again);
        run(&rig, &ns, found, LARGE, 0.9);
        run(&rig, &ns, again, LARGE, 0.9);
        for (int k = 0; k < LARGE; k++) {
            const int64_t count = large_rows[k] * large_columns[k];
            assert_true(ns_deviation(count, found[k].out, expected[k].out) < 1e-5);
            if (found[k].moment) assert_true(ns_deviation(large_rows[k], found[k].moment, expected[k].moment) < 1e-5);
            assert_memory_equal(found[k].out, again[k].out, (size_t)count * sizeof(double));
        }
        free_large(found);
        free_large(again);
    }
    free_large(expected);
}

static void large_blocks_that_are_not_finite_are_dropped(void **unused)
{
    (void)unused;
    abar__ns ns;
    ns_case cases[LARGE];
    assert_true(abar__ns_find("original", 0, &ns));
    make_large(cases);
    ((double *)(uintptr_t)cases[1].in)[259 * 259 - 1] = NAN;
    run(&(ns_rig){.user = cpu[MAX_THREADS]}, &ns, cases, LARGE, 0.9);
    for (int k = 0; k < LARGE; k++) assert_int_equal(cases[k].verdict, k == 1 ? ABAR_NS_NOT_FINITE : ABAR_NS_FINE);
    for (int64_t i = 0; i < 259 * 259; i++) assert_true(cases[1].out[i] == 0.0);
    for (int64_t i = 0; i < 259; i++) assert_true(cases[1].moment[i] == 0.0);
    free_large(cases);
}

/* ---- the table --------------------------------------------------------------------------------------------------------- */

static void sets_are_found_by_name_cut_and_continued(void **unused)
{
    (void)unused;
    abar__ns ns;
    assert_true(abar__ns_find("polar-express", 2, &ns));
    assert_int_equal(ns.steps, 2);
    assert_true(ns.c[1][0] == 4.042929935166739 && ns.safety == 1.02 && ns.eps == 1e-7);
    assert_true(abar__ns_find("quintic", ABAR_NS_STEPS_MAX, &ns));
    assert_int_equal(ns.steps, ABAR_NS_STEPS_MAX);
    for (int k = 4; k < ns.steps; k++) assert_true(ns.c[k][0] == 2.8366 && ns.c[k][1] == -3.0525 && ns.c[k][2] == 1.2012);
    assert_true(abar__ns_find("exact", 0, &ns) && ns.steps == 12);
    assert_true(abar__ns_find("cubic", 0, &ns) && ns.steps == 12);
    assert_false(abar__ns_find("exactly", 0, &ns));
    assert_false(abar__ns_find("exact", -1, &ns));
    assert_false(abar__ns_find("exact", ABAR_NS_STEPS_MAX + 1, &ns));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_found_by_name_cut_and_continued),
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
        cmocka_unit_test(large_blocks_equal_ref_and_repeat_bit_for_bit),
        cmocka_unit_test(large_blocks_that_are_not_finite_are_dropped),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
