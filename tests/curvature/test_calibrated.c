/* A layer that was calibrated on the data set (methods.md sections 0 and 1) is ready from step 0 on, whether or not anything is
 * ever committed to it; and the mean activation, as it can be read. */
#include "curvature_lab.h"

static const lab_shape first = {.name = "first", .in = 2, .out = 1, .first = true};
static const lab_shape first_and_other[] = {
    {.name = "first", .in = 3, .out = 2, .bias = true, .first = true},
    {.name = "other", .in = 4, .out = 3, .bias = true},
};

/* ---- ready from step 0 --------------------------------------------------------------------------------------------------- */

/* A linear layer 2 -> 1 without bias, calibrated on the single example (1, 1): E[a] = (1, 1), E[a aT] full of ones. */
static void open_pair(lab *l, const char *device, const char *method, const char *options)
{
    lab_open(l, device, NULL, &first, 1, 1, 1);
    lab_optimizer(l, method, options);
    lab_draw_batch(l);
    for (int i = 0; i < 2; i++) lab_set(&l->layer[0].x, i, 1.0);
    lab_calibrate(l);
}

/* A step on the gradient (1, 1) takes `each` off both weights. */
static void check_step(lab *l, bool observes, double each, const char *what)
{
    lab_clear_weights(l);
    for (int i = 0; i < 2; i++) lab_set(&l->layer[0].gw, i, 1.0);
    if (observes) lab_observe(l);
    assert_false(lab_step(l, 1.0).skipped);
    double *taken = lab_taken(l, 0, 0);
    for (int i = 0; i < 2; i++)
        if (!(fabs(taken[i] - each) <= 1e-6 * each)) fail_msg("%s: %g is taken off, not %g", what, taken[i], each);
    free(taken);
}

/* (1, 1) (I - a aT / (1 + 2)) = (1/3, 1/3), and the same by the inverse of (a aT + I). smac divides by p + rho too: p is 0
 * until the first commit, 8 in it. */
static const struct {
    const char *method, *options;
    double at_first, later;
} cases[] = {
    {"mac", "first-layer=dataset-mean", 1.0 / 3.0, 1.0 / 3.0},
    {"mac", "first-layer=dataset-cov", 1.0 / 3.0, 1.0 / 3.0},
    {"mac", "first-layer=dataset-mean damping=0.5 damping-form=coupled", 2.0 / 5.0, 2.0 / 5.0},
    {"smac", "first-layer=dataset-mean", 1.0 / 3.0, 1.0 / 27.0},
    {"smac", "first-layer=dataset-cov", 1.0 / 3.0, 1.0 / 27.0},
    {"smac", "first-layer=dataset-cov damping=0.5", 2.0 / 5.0, 0.2 / 8.5},
    {"smac", "first-layer=dataset-mean damping=0.5 damping-form=coupled", 4.0 / 5.0, 0.4 / 8.5},
};
enum { CASES = sizeof cases / sizeof *cases };

static void calibrated_layers_are_ready_after_a_skipped_first_step(void **state)
{
    for (int i = 0; i < CASES; i++) {
        lab l;
        char all[256];
        open_pair(&l, *state, cases[i].method, lab_with(all, cases[i].options, "tcov=5 tinv=1"));
        lab_set(&l.layer[0].p, 0, sqrt(8.0));
        lab_set(&l.layer[0].gw, 1, (double)NAN);
        lab_observe(&l);
        assert_true(lab_step(&l, 1.0).skipped);
        for (int k = 1; k < 5; k++) check_step(&l, true, cases[i].at_first, cases[i].options);
        assert_int_equal(lab_map(&l, "first", 0).commits, 0);
        check_step(&l, true, cases[i].later, cases[i].options);
        lab_close(&l);
    }
}

static void calibrated_layers_are_ready_without_being_observed(void **state)
{
    for (int i = 0; i < CASES; i++) {
        lab l;
        char all[256];
        open_pair(&l, *state, cases[i].method, lab_with(all, cases[i].options, "tcov=1 tinv=3"));
        for (int k = 0; k < 5; k++) check_step(&l, false, cases[i].at_first, cases[i].options);
        lab_close(&l);
    }
}

/* The refresh of smac's diagonal stays due until the first commit, however far the next one is. */
static void calibrated_layers_refresh_at_the_first_commit(void **state)
{
    for (int i = 0; i < CASES; i++) {
        lab l;
        char all[256];
        open_pair(&l, *state, cases[i].method, lab_with(all, cases[i].options, "tcov=1 tinv=1000"));
        lab_set(&l.layer[0].p, 0, sqrt(8.0));
        for (int k = 0; k < 3; k++) check_step(&l, false, cases[i].at_first, cases[i].options);
        for (int k = 0; k < 3; k++) check_step(&l, true, cases[i].later, cases[i].options);
        lab_close(&l);
    }
}

/* ---- the mean activation ------------------------------------------------------------------------------------------------- */

/* Adds what a batch makes of the average: 0.3 of the mean of its rows. */
static void average_rows(const lab *l, int layer, double *average)
{
    const lab_layer *y = &l->layer[layer];
    const int64_t rows = l->examples * y->rows, d = y->columns;
    double *a = lab_rows(l, layer, 0);
    for (int64_t k = 0; k < d; k++) {
        double sum = 0.0;
        for (int64_t r = 0; r < rows; r++) sum += a[r * d + k];
        average[k] = 0.7 * average[k] + 0.3 * sum / (double)rows;
    }
    free(a);
}

static void mean_activation_is_the_unbiased_average(void **state)
{
    static const char *const methods[] = {"mac", "smac", "eva"};
    for (int i = 0; i < 3; i++) {
        lab l;
        double average[8] = {0.0}, found[8];
        lab_open(&l, *state, NULL, first_and_other, 2, 5, 9);
        lab_optimizer(&l, methods[i], "tcov=2 tinv=100 stat-decay=0.7");
        const int map = lab_map_index(&l, "other", 0);
        assert_int_equal(abar_optim_mean_activation(l.optim, map, found), ABAR_E_STATE);
        assert_non_null(strstr(abar_context_error(l.ctx), "other"));
        for (int k = 0; k < 6; k++) {
            lab_new_batch(&l);
            lab_observed_step(&l);
            if (k % 2 == 0) average_rows(&l, 1, average);
            NEED(&l, abar_optim_mean_activation(l.optim, map, found));
            const double unbias = 1.0 / (1.0 - pow(0.7, k / 2 + 1));
            double expected[8];
            for (int c = 0; c < 5; c++) expected[c] = unbias * average[c];
            lab_check(&l, methods[i], found, expected, 5, 1e-12, 1e-6);
            assert_true(fabs(found[4] - 1.0) <= 1e-6);
        }
        lab_close(&l);
    }
}

/* Batches after the calibration do not change it. */
static void mean_activation_of_a_calibrated_layer_is_the_data_sets(void **state)
{
    lab l;
    double average[4] = {0.0}, found[4];
    lab_open(&l, *state, NULL, first_and_other, 2, 5, 9);
    lab_optimizer(&l, "mac", "tcov=1 first-layer=dataset-mean damping=adaptive");
    const int map = lab_map_index(&l, "first", 0);
    assert_int_equal(abar_optim_mean_activation(l.optim, map, found), ABAR_E_STATE);
    lab_draw_batch(&l);
    average_rows(&l, 0, average);
    for (int c = 0; c < 4; c++) average[c] /= 0.3;
    lab_calibrate(&l);
    for (int k = 0; k < 3; k++) {
        NEED(&l, abar_optim_mean_activation(l.optim, map, found));
        lab_check(&l, "dataset-mean", found, average, 4, 1e-12, 1e-6);
        lab_new_batch(&l);
        lab_observed_step(&l);
    }
    lab_close(&l);
}

static void mean_activation_is_refused_where_there_is_none(void **state)
{
    static const char *const options[][2] = {{"foof", ""}, {"kfac", ""}, {"lngd", ""}, {"mac", "first-layer=dataset-cov"}};
    for (int i = 0; i < 4; i++) {
        lab l;
        double found[8];
        lab_open(&l, *state, NULL, first_and_other, 2, 5, 9);
        lab_optimizer(&l, options[i][0], options[i][1]);
        assert_int_equal(abar_optim_mean_activation(l.optim, lab_map_index(&l, "first", 0), found), ABAR_E_UNSUPPORTED);
        assert_int_equal(abar_optim_mean_activation(l.optim, -1, found), ABAR_E_ARGUMENT);
        assert_int_equal(abar_optim_mean_activation(l.optim, 2, found), ABAR_E_ARGUMENT);
        lab_optimizer(&l, NULL, "");
        assert_int_equal(abar_optim_mean_activation(l.optim, 0, found), ABAR_E_UNSUPPORTED);
        lab_close(&l);
    }
}

int main(void)
{
    const int missing = lab_begin();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        ON_BOTH(calibrated_layers_are_ready_after_a_skipped_first_step),
        ON_BOTH(calibrated_layers_are_ready_without_being_observed),
        ON_BOTH(calibrated_layers_refresh_at_the_first_commit),
        ON_BOTH(mean_activation_is_the_unbiased_average),
        ON_BOTH(mean_activation_of_a_calibrated_layer_is_the_data_sets),
        ON_BOTH(mean_activation_is_refused_where_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
