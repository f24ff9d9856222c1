/* Newton-Muon's line (methods.md section 11) against a float64 oracle (tests/oracle/newton_muon.py), and the identities of what
 * it needs: inverses of diagonal blocks and by some eigenvectors, averages that begin elsewhere, a first step with statistics.
 */
#include "curvature_lab.h"

#include "io/io.h"

#define LINE                                                                                                  \
    "rule=muon ns=exact base-lr=0.025 weight-decay=0.05 aux-lr=0.01 aux-weight-decay=0.01 damping=trace:0.2 " \
    "stat-decay=0.95 stat-init=0.001 tcov=5 tinv=5 toffset=4 foof-width=6 homogeneous=false"
enum { LAYERS = 3, STEPS = 23, BATCH = 6 };

static const lab_shape shapes[LAYERS] = {
    {.name = "qkv", .in = 12, .out = 24, .tokens = 5, .attention = {.heads = 2, .value_row = 16, .value_rows = 8}},
    {.name = "down", .in = 24, .out = 8},
    {.name = "fc", .in = 10, .out = 9, .bias = true}};
static const lab_shape plain = {.name = "fc", .in = 7, .out = 9, .tokens = 5, .bias = true};

/* ---- the oracle ---------------------------------------------------------------------------------------------------------- */

static double golden(const abar__safetensors *file, const char *layer, const char *what, int64_t i)
{
    char name[64];
    abar_tensor t;
    float single;
    double value;
    snprintf(name, sizeof name, "%s.%s", layer, what);
    assert_true(abar__safetensors_find(file, name, &t));
    assert_in_range(i, 0, abar_tensor_count(&t) - 1);
    memcpy(&single, (const char *)t.data + (size_t)(t.dtype == ABAR_F32 ? i : 0) * sizeof single, sizeof single);
    if (t.dtype == ABAR_F32) return (double)single;
    memcpy(&value, (const char *)t.data + (size_t)i * sizeof value, sizeof value);
    return value;
}

/* Part k of what the file has for all steps. */
static void load(const abar__safetensors *file, const char *layer, const char *what, int64_t k, const abar_tensor *to)
{
    const int64_t n = abar_tensor_count(to);
    for (int64_t i = 0; i < n; i++) lab_set(to, i, golden(file, layer, what, k * n + i));
}

static double difference(const abar__safetensors *file, const char *layer, const char *what, const abar_tensor *found)
{
    double error = 0.0, largest = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(found); i++) {
        const double expected = golden(file, layer, what, i);
        error = fmax(error, fabs(lab_get(found, i) - expected));
        largest = fmax(largest, fabs(expected));
    }
    return error / largest;
}

static void the_line_is_the_oracles_over_23_steps(void **state)
{
    lab l;
    abar__safetensors *file;
    lab_open(&l, *state, NULL, shapes, LAYERS, BATCH, 1);
    NEED(&l, abar__safetensors_open(l.ctx, ABAR_TEST_DATA "/golden/newton_muon.safetensors", &file));
    lab_optimizer(&l, "foof", LINE);
    lab_draw_batch(&l); /* output gradients, which nothing reads */
    for (int i = 0; i < LAYERS; i++) load(file, shapes[i].name, "w", 0, &l.layer[i].weight);
    load(file, "fc", "b", 0, &l.layer[2].bias);
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < LAYERS; i++) {
            load(file, shapes[i].name, "x", k, &l.layer[i].x);
            load(file, shapes[i].name, "gw", k, &l.layer[i].gw);
        }
        load(file, "fc", "gb", k, &l.layer[2].gb);
        lab_observe(&l);
        assert_false(lab_step(&l, 0.025).skipped);
    }
    const double most = strcmp(*state, "ref") == 0 ? 1e-9 : 1e-4;
    for (int i = 0; i < LAYERS; i++) {
        const double error = difference(file, shapes[i].name, "w_end", &l.layer[i].weight);
        if (!(error <= most)) fail_msg("%s: %g from the oracle", shapes[i].name, error);
    }
    assert_true(difference(file, "fc", "b_end", &l.layer[2].bias) <= most);
    assert_int_equal(lab_map(&l, "down", 0).commits, 4);
    abar__safetensors_close(file);
    lab_close(&l);
}

/* ---- identities ---------------------------------------------------------------------------------------------------------- */

/* Four steps of two labs with the same batches. */
static void check_alike(const char *device, const char *method, const char *one, const char *other, const char *what,
                        double exact, double rounded)
{
    lab a, b;
    char all[256];
    lab_open(&a, device, NULL, &plain, 1, 6, 3);
    lab_open(&b, device, NULL, &plain, 1, 6, 3);
    lab_optimizer(&a, method, lab_with(all, "tcov=1 tinv=1 damping=0.1 ", one));
    lab_optimizer(&b, method, lab_with(all, "tcov=1 tinv=1 damping=0.1 ", other));
    for (int k = 0; k < 4; k++) {
        lab_new_batch(&a);
        lab_copy_batch(&a, &b);
        lab_observed_step(&a);
        lab_observed_step(&b);
        lab_check_same(&a, &b, what, exact, rounded);
    }
    lab_close(&a);
    lab_close(&b);
}

static void blocks_as_wide_as_the_factor_are_the_factor(void **state)
{
    check_alike(*state, "foof", "foof-width=8", "", "one block", 0.0, 0.0);
    check_alike(*state, "foof", "foof-width=100", "", "a wider one", 0.0, 0.0);
}

static void all_eigenvectors_are_the_inverse(void **state)
{
    check_alike(*state, "foof", "kfac-rank=8", "", "all of 8", 0.0, 0.0);
    check_alike(*state, "kfac", "kfac-rank=9", "", "all of 8 and 9", 0.0, 0.0);
}

/* Three examples of one row each: the factor has rank 3, and the rest of the space is 1 / rho. */
static void eigenvectors_of_the_range_are_enough(void **state)
{
    static const lab_shape shape = {.name = "fc", .in = 12, .out = 8};
    lab a, b;
    lab_open(&a, *state, NULL, &shape, 1, 3, 7);
    lab_open(&b, *state, NULL, &shape, 1, 3, 7);
    lab_optimizer(&a, "foof", "tcov=1 tinv=1 damping=0.1 kfac-rank=3");
    lab_optimizer(&b, "foof", "tcov=1 tinv=1 damping=0.1");
    lab_new_batch(&a);
    lab_copy_batch(&a, &b);
    lab_observed_step(&a);
    lab_observed_step(&b);
    lab_check_same(&a, &b, "three eigenvectors of a factor of rank 3", 1e-11, 1e-4);
    lab_close(&a);
    lab_close(&b);
}

/* Beginning at zero is the correction's: with decay 0 both are the last batch. */
static void averages_of_one_batch_forget_where_they_began(void **state)
{
    check_alike(*state, "foof", "stat-decay=0 stat-init=5", "stat-decay=0", "the last batch alone", 0.0, 0.0);
    check_alike(*state, "kfac", "stat-decay=0 stat-init=5", "stat-decay=0", "the last batch alone", 0.0, 0.0);
}

/* Before the first step with statistics the gradient is left alone. */
static void nothing_is_preconditioned_before_the_offset(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, &plain, 1, 6, 9);
    lab_optimizer(&l, "foof", "tcov=2 tinv=2 damping=0.01 toffset=3");
    for (int k = 0; k < 8; k++) {
        lab_new_batch(&l);
        assert_int_equal(abar_optim_observes(l.optim), k >= 3 && k % 2 == 1);
        lab_observed_step(&l);
        double *taken = lab_taken(&l, 0, 0), *gradient = lab_gradient(&l, 0, 0);
        const bool same = lab_difference(taken, gradient, l.layer[0].columns * l.layer[0].outputs) < 1e-6;
        assert_int_equal(same, k < 3);
        free(taken);
        free(gradient);
    }
    assert_int_equal(lab_map(&l, "fc", 0).commits, 3);
    lab_close(&l);
}

/* The bias is the rule's own: as without a method. The weight's statistic has no column for it. */
static void bias_passes_by_rows_that_do_not_end_in_1(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, &plain, 1, 6, 13);
    lab_optimizer(&l, "foof", "tcov=1 tinv=1 damping=0.1 homogeneous=false");
    assert_int_equal(lab_map(&l, "fc", 0).columns, 7);
    lab_new_batch(&l);
    lab_observed_step(&l);
    for (int64_t i = 0; i < 9; i++) assert_true(fabs(lab_get(&l.layer[0].bias, i) + lab_get(&l.layer[0].gb, i)) <= 1e-6);
    lab_close(&l);
}

static void restored_goes_on_bit_for_bit(void **state)
{
    static const char *const cases[][2] = {
        {"foof", "tcov=2 tinv=3 toffset=1 stat-init=0.1 damping=trace:0.2 foof-width=3 homogeneous=false"},
        {"foof", "tcov=2 tinv=3 toffset=1 damping=0.2 kfac-rank=3"},
        {"kfac", "tcov=2 tinv=3 toffset=1 stat-init=0.1 damping=0.2 kfac-rank=3"}};
    for (int i = 0; i < 3; i++) {
        lab a, b;
        lab_state before, after[2];
        lab_open(&a, *state, NULL, &plain, 1, 4, 23);
        lab_open(&b, *state, NULL, &plain, 1, 4, 23);
        lab_optimizer(&a, cases[i][0], cases[i][1]);
        lab_optimizer(&b, cases[i][0], cases[i][1]);
        for (int k = 0; k < 4; k++) {
            lab_new_batch(&a);
            lab_observed_step(&a);
        }
        lab_state_take(&a, &before);
        lab_state_put(&b, &before);
        for (int k = 0; k < 4; k++) {
            lab_new_batch(&a);
            lab_copy_batch(&a, &b);
            lab_observed_step(&a);
            lab_observed_step(&b);
        }
        lab_state_take(&a, &after[0]);
        lab_state_take(&b, &after[1]);
        assert_null(lab_state_changed(&after[0], &after[1]));
        lab_state_drop(&before);
        for (int k = 0; k < 2; k++) lab_state_drop(&after[k]);
        lab_close(&a);
        lab_close(&b);
    }
}

static void settings_that_exclude_each_other_are_refused(void **state)
{
    static const char *const cases[][3] = {{"foof", "foof-width=3 kfac-rank=2", "--kfac-rank"},
                                           {"kfac", "kfac-inverse=eigen kfac-rank=2", "--kfac-rank"}};
    for (int i = 0; i < 2; i++) {
        lab l;
        lab_request request;
        lab_open(&l, *state, NULL, &plain, 1, 4, 1);
        lab_request_make(&l, cases[i][0], cases[i][1], &request);
        assert_int_equal(abar_optim_create(l.dev, &request.config, &l.optim), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(l.ctx), cases[i][2]));
        lab_request_drop(&request);
        lab_close(&l);
    }
}

/* Of these every step uses its own batch, the first ones too. */
static void offset_has_no_effect_on_methods_that_always_take_statistics(void **state)
{
    static const char *const cases[][2] = {
        {"ngd", "damping=0.1"}, {"kbfgs", "momentum=0.9"}, {"mfac", "mfac-gradients=4 damping=0.1"}};
    for (int i = 0; i < 3; i++) {
        lab l[2];
        lab_state end[2];
        for (int k = 0; k < 2; k++) {
            char all[256];
            lab_open(&l[k], *state, NULL, &plain, 1, BATCH, 3);
            lab_optimizer(&l[k], cases[i][0], lab_with(all, cases[i][1], k == 0 ? "toffset=0" : "toffset=2"));
            for (int step = 0; step < 4; step++) {
                lab_draw_batch(&l[k]);
                lab_observe(&l[k]);
                lab_step(&l[k], 0.01);
                if (!abar_optim_wants_pass(l[k].optim)) continue;
                lab_observe(&l[k]);
                NEED(&l[k], abar_optim_end_pass(l[k].optim, true, 1.0, NULL));
            }
            lab_state_take(&l[k], &end[k]);
        }
        const char *changed = lab_state_changed(&end[0], &end[1]);
        if (changed) fail_msg("%s: --toffset changes %s", cases[i][0], changed);
        for (int k = 0; k < 2; k++) {
            lab_state_drop(&end[k]);
            lab_close(&l[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(the_line_is_the_oracles_over_23_steps),
        ON_BOTH(blocks_as_wide_as_the_factor_are_the_factor),
        ON_BOTH(all_eigenvectors_are_the_inverse),
        ON_BOTH(eigenvectors_of_the_range_are_enough),
        ON_BOTH(averages_of_one_batch_forget_where_they_began),
        ON_BOTH(nothing_is_preconditioned_before_the_offset),
        ON_BOTH(bias_passes_by_rows_that_do_not_end_in_1),
        ON_BOTH(restored_goes_on_bit_for_bit),
        ON_BOTH(settings_that_exclude_each_other_are_refused),
        ON_BOTH(offset_has_no_effect_on_methods_that_always_take_statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
