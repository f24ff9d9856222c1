/* A curvature method in front of Muon, and --damping trace:G (methods.md section 11). */
#include "curvature_lab.h"

#define EVERY_STEP "tcov=1 tinv=1 "
#define MUON "rule=muon base-lr=1 aux-lr=1 "

static const lab_shape linear = {.name = "fc", .in = 12, .out = 8};
static const lab_shape biased = {.name = "fc", .in = 12, .out = 8, .bias = true};
static const lab_shape tokens = {.name = "fc", .in = 7, .out = 9, .tokens = 5};
static const lab_shape convolution = {
    .name = "conv", .in = 4, .out = 8, .image = {6, 5}, .window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}};
static const lab_shape attention = {
    .name = "qkv", .in = 12, .out = 24, .tokens = 5, .attention = {.heads = 2, .value_row = 16, .value_rows = 8}};
static const lab_shape *const hidden[] = {&linear, &tokens, &convolution};

/* Two labs with the same batches, one behind a method, one without. */
static void step_both(lab *a, lab *b)
{
    lab_new_batch(a);
    lab_copy_batch(a, b);
    lab_observed_step(a);
    lab_observed_step(b);
}

static void close_both(lab *a, lab *b)
{
    lab_close(a);
    lab_close(b);
}

/* ---- where nothing is in front ----------------------------------------------------------------------------------------- */

static void mac_muon_without_activations_is_muon(void **state)
{
    for (int i = 0; i < 3; i++) {
        lab a, b;
        lab_open(&a, *state, NULL, hidden[i], 1, 6, 3);
        lab_open(&b, *state, NULL, hidden[i], 1, 6, 3);
        lab_optimizer(&a, "mac", MUON EVERY_STEP);
        lab_optimizer(&b, NULL, MUON);
        for (int k = 0; k < 3; k++) {
            lab_new_batch(&a);
            for (int64_t j = 0; j < abar_tensor_count(&a.layer[0].x); j++) lab_set(&a.layer[0].x, j, 0.0);
            lab_copy_batch(&a, &b);
            lab_observed_step(&a);
            lab_observed_step(&b);
            lab_check_same(&a, &b, "mac+muon with a = 0 against muon", 1e-12, 1e-5);
        }
        close_both(&a, &b);
    }
}

static void foof_muon_with_large_damping_is_muon(void **state)
{
    for (int i = 0; i < 3; i++) {
        lab a, b;
        lab_open(&a, *state, NULL, hidden[i], 1, 6, 5);
        lab_open(&b, *state, NULL, hidden[i], 1, 6, 5);
        lab_optimizer(&a, "foof", MUON EVERY_STEP "damping=1e12 muon-eps=1e-30");
        lab_optimizer(&b, NULL, MUON);
        for (int k = 0; k < 3; k++) {
            step_both(&a, &b);
            lab_check_same(&a, &b, "foof+muon with rho = 1e12 against muon", 1e-9, 1e-4);
        }
        assert_int_equal(abar_optim_blocks(a.optim)->small, 0);
        close_both(&a, &b);
    }
}

/* Inputs 2 e_i: their second moment is a multiple of the identity, which normalising takes away again. */
static void foof_muon_with_round_activations_is_muon(void **state)
{
    const int64_t n = linear.in;
    lab a, b;
    lab_open(&a, *state, NULL, &linear, 1, n, 7);
    lab_open(&b, *state, NULL, &linear, 1, n, 7);
    lab_optimizer(&a, "foof", MUON EVERY_STEP "damping=0.1");
    lab_optimizer(&b, NULL, MUON);
    for (int k = 0; k < 3; k++) {
        lab_new_batch(&a);
        for (int64_t i = 0; i < n * n; i++) lab_set(&a.layer[0].x, i, i % (n + 1) == 0 ? 2.0 : 0.0);
        lab_copy_batch(&a, &b);
        lab_observed_step(&a);
        lab_observed_step(&b);
        lab_check_same(&a, &b, "foof+muon with A = cI against muon", 1e-9, 1e-4);
    }
    close_both(&a, &b);
}

/* Shrunk below --muon-eps, the gradient is not normalised to 1, and that is told. */
static void foof_muon_counts_blocks_that_damping_made_too_small(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, &linear, 1, 6, 5);
    lab_optimizer(&l, "foof", MUON EVERY_STEP "damping=1e12");
    lab_new_batch(&l);
    lab_observed_step(&l);
    assert_int_equal(abar_optim_blocks(l.optim)->small, 1);
    lab_close(&l);
}

/* ---- what is in front -------------------------------------------------------------------------------------------------- */

/* Muon of a gradient that sgd's lab has preconditioned is the method's muon: momentum 0, so that O is that of G^. */
static void check_composed(const char *device, const char *method, const char *options, const lab_shape *shape)
{
    lab front, plain, muon;
    char all[256];
    lab_open(&front, device, NULL, shape, 1, 6, 11);
    lab_open(&plain, device, NULL, shape, 1, 6, 11);
    lab_open(&muon, device, NULL, shape, 1, 6, 11);
    lab_optimizer(&front, method, lab_with(all, MUON EVERY_STEP "momentum=0 ", options));
    lab_optimizer(&plain, method, lab_with(all, EVERY_STEP, options));
    lab_optimizer(&muon, NULL, MUON "momentum=0");
    for (int k = 0; k < 3; k++) {
        lab_new_batch(&front);
        lab_copy_batch(&front, &plain);
        lab_observed_step(&plain); /* from zero: minus its weight is the preconditioned gradient */
        lab_copy_batch(&front, &muon);
        lab_observed_step(&front);
        const lab_layer *from = &plain.layer[0];
        lab_layer *to = &muon.layer[0];
        for (int64_t i = 0; i < abar_tensor_count(&from->weight); i++) lab_set(&to->gw, i, -lab_get(&from->weight, i));
        (void)lab_step(&muon, 1.0);
        lab_check_same(&front, &muon, method, 1e-9, 1e-3);
    }
    lab_close(&front);
    lab_close(&plain);
    lab_close(&muon);
}

static void methods_act_on_the_gradient_that_muon_averages(void **state)
{
    static const char *const with[][2] = {{"mac", ""},
                                          {"mac", "damping=trace:0.2"},
                                          {"smac", ""},
                                          {"foof", "damping=0.5"},
                                          {"foof", "damping=trace:0.2"},
                                          {"kfac", "kl-clip=0"}};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        for (int s = 0; s < 3; s++) check_composed(*state, with[i][0], with[i][1], hidden[s]);
    check_composed(*state, "mac", "", &attention); /* maps of q and k, and of v; blocks of q, of k and of v */
    check_composed(*state, "mac", "value-stat=per-head", &attention);
    check_composed(*state, "foof", "", &attention);
}

/* AdamW's first step from zero takes g / (|g| + eps) off: the bias has the preconditioned gradient. */
static void bias_behind_a_method_goes_to_adamw(void **state)
{
    lab front, plain;
    lab_open(&front, *state, NULL, &biased, 1, 6, 13);
    lab_open(&plain, *state, NULL, &biased, 1, 6, 13);
    lab_optimizer(&front, "mac", MUON EVERY_STEP "damping=0.1 aux-eps=1");
    lab_optimizer(&plain, "mac", EVERY_STEP "damping=0.1");
    step_both(&front, &plain);
    double *taken = lab_taken(&front, 0, 0), *hat = lab_taken(&plain, 0, 0), *grad = lab_gradient(&plain, 0, 0);
    double expected[8], found[8], moved = 0.0;
    for (int i = 0; i < 8; i++) {
        const double g = hat[i * 13 + 12];
        expected[i] = g / (fabs(g) + 1.0);
        found[i] = taken[i * 13 + 12];
        moved = fmax(moved, fabs(g - grad[i * 13 + 12]));
    }
    lab_check(&front, "bias", found, expected, 8, 1e-12, 1e-5);
    assert_true(moved > 1e-3); /* or the test says nothing */
    free(taken);
    free(hat);
    free(grad);
    close_both(&front, &plain);
}

static void methods_take_no_statistics_of_what_muon_leaves(void **state)
{
    const lab_shape both[] = {{.name = "first", .in = 12, .out = 8, .first = true}, linear};
    lab a, b;
    lab_open(&a, *state, NULL, both, 2, 6, 17);
    lab_open(&b, *state, NULL, both, 2, 6, 17);
    lab_optimizer(&a, "foof", MUON EVERY_STEP);
    lab_optimizer(&b, NULL, MUON);
    assert_int_equal(abar_optim_map_count(a.optim), 1);
    assert_string_equal(abar_optim_map(a.optim, 0)->layer, "fc");
    step_both(&a, &b);
    double *with = lab_taken(&a, 0, 0), *without = lab_taken(&b, 0, 0);
    lab_check(&a, "first layer", with, without, 12 * 8, 0.0, 0.0);
    free(with);
    free(without);
    close_both(&a, &b);
}

/* Without a config of the method, there is no KL clip in front of muon, and kfac's usual one in front of sgd. */
static void kfac_muon_does_not_clip_by_default(void **state)
{
    for (int muon = 0; muon < 2; muon++) {
        lab l;
        lab_request request;
        lab_open(&l, *state, NULL, &linear, 1, 6, 19);
        lab_request_make(&l, "kfac", muon ? MUON EVERY_STEP : EVERY_STEP "base-lr=1", &request);
        request.config.method_config = NULL;
        NEED(&l, abar_optim_create(l.dev, &request.config, &l.optim));
        lab_request_drop(&request);
        lab_new_batch(&l);
        lab_observed_step(&l);
        const double scale = abar_optim_times(l.optim)->kl_scale;
        assert_true(muon ? scale == 1.0 : scale < 1.0);
        lab_close(&l);
    }
}

static void restored_goes_on_bit_for_bit(void **state)
{
    static const char *const methods[] = {"mac", "foof", "kfac"};
    for (int i = 0; i < 3; i++) {
        lab a, b;
        lab_state before, after[2];
        lab_open(&a, *state, NULL, &convolution, 1, 4, 23);
        lab_open(&b, *state, NULL, &convolution, 1, 4, 23);
        lab_optimizer(&a, methods[i], MUON "tcov=2 tinv=3 normuon=true");
        lab_optimizer(&b, methods[i], MUON "tcov=2 tinv=3 normuon=true");
        for (int k = 0; k < 4; k++) {
            lab_new_batch(&a);
            lab_observed_step(&a);
        }
        lab_state_take(&a, &before);
        lab_state_put(&b, &before);
        for (int k = 0; k < 4; k++) step_both(&a, &b);
        lab_state_take(&a, &after[0]);
        lab_state_take(&b, &after[1]);
        assert_null(lab_state_changed(&after[0], &after[1]));
        lab_state_drop(&before);
        for (int k = 0; k < 2; k++) lab_state_drop(&after[k]);
        close_both(&a, &b);
    }
}

/* ---- rho from the trace -------------------------------------------------------------------------------------------------- */

/* After one commit: gamma times the mean over rows and columns of a squared. */
static void damping_by_trace_is_that_of_the_rows(void **state)
{
    static const char *const methods[] = {"mac", "smac", "foof"};
    static const lab_shape *const shapes[] = {&linear, &biased, &tokens, &convolution};
    for (int m = 0; m < 3; m++)
        for (int s = 0; s < 4; s++) {
            lab l;
            lab_open(&l, *state, NULL, shapes[s], 1, 6, 29);
            lab_optimizer(&l, methods[m], EVERY_STEP "damping=trace:0.3");
            lab_new_batch(&l);
            lab_observed_step(&l);
            const int64_t count = l.examples * l.layer[0].rows * l.layer[0].columns;
            double *rows = lab_rows(&l, 0, 0), expected = 0.0;
            for (int64_t i = 0; i < count; i++) expected += rows[i] * rows[i];
            expected = 0.3 * expected / (double)count + 1e-8;
            const double found = lab_map(&l, shapes[s]->name, 0).damping;
            lab_check(&l, "rho", &found, &expected, 1, 1e-12, 1e-5);
            free(rows);
            lab_close(&l);
        }
}

/* On equal rows A is a aT: rho times foof is mac, with the same rho. */
static void foof_by_trace_on_equal_rows_is_mac(void **state)
{
    lab mac, foof;
    lab_open(&mac, *state, NULL, &biased, 1, 5, 31);
    lab_open(&foof, *state, NULL, &biased, 1, 5, 31);
    lab_optimizer(&mac, "mac", EVERY_STEP "damping=trace:0.2 stat-decay=0.6");
    lab_optimizer(&foof, "foof", EVERY_STEP "damping=trace:0.2 stat-decay=0.6");
    for (int k = 0; k < 3; k++) {
        lab_new_batch(&mac);
        for (int64_t i = 0; i < abar_tensor_count(&mac.layer[0].x); i++)
            lab_set(&mac.layer[0].x, i, 0.1 * (double)(i % 12 + 1));
        lab_copy_batch(&mac, &foof);
        lab_observed_step(&mac);
        lab_observed_step(&foof);
        const double rho = lab_map(&foof, "fc", 0).damping;
        double *a = lab_taken(&mac, 0, 0), *b = lab_taken(&foof, 0, 0);
        for (int64_t i = 0; i < 8 * 13; i++) b[i] *= rho;
        lab_check(&mac, "mac against rho foof", a, b, 8 * 13, 1e-9, 1e-4);
        free(a);
        free(b);
    }
    close_both(&mac, &foof);
}

static void damping_that_is_no_number_is_refused(void **state)
{
    static const char *const wrong[][2] = {{"foof", "damping=adaptive"},
                                           {"foof", "damping=trace:"},
                                           {"foof", "damping=0"},
                                           {"mac", "damping=trace:-1"},
                                           {"mac", "damping=trace:x"},
                                           {"smac", "damping=none"},
                                           {"mac", "damping=trace:0.2 first-layer=dataset-cov"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        lab l;
        lab_request request;
        lab_open(&l, *state, NULL, &linear, 1, 4, 37);
        lab_request_try(&l, wrong[i][0], wrong[i][1], &request);
        assert_int_equal(abar_optim_create(l.dev, &request.config, &l.optim), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(l.ctx), "--damping"));
        lab_request_drop(&request);
        lab_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(mac_muon_without_activations_is_muon),
        ON_BOTH(foof_muon_with_large_damping_is_muon),
        ON_BOTH(foof_muon_with_round_activations_is_muon),
        ON_BOTH(foof_muon_counts_blocks_that_damping_made_too_small),
        ON_BOTH(methods_act_on_the_gradient_that_muon_averages),
        ON_BOTH(bias_behind_a_method_goes_to_adamw),
        ON_BOTH(methods_take_no_statistics_of_what_muon_leaves),
        ON_BOTH(kfac_muon_does_not_clip_by_default),
        ON_BOTH(restored_goes_on_bit_for_bit),
        ON_BOTH(damping_by_trace_is_that_of_the_rows),
        ON_BOTH(foof_by_trace_on_equal_rows_is_mac),
        ON_BOTH(damping_that_is_no_number_is_refused),
    };
    const int done = lab_begin();
    return done ? done : cmocka_run_group_tests(tests, NULL, NULL);
}
