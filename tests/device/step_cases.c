/* Steps beside those of ref; losses, copies, measurements. */
#include "step_rig.h"

#include "step_cases.h"

#include <math.h>

#define TOLERANCE 2e-5      /* of the largest weight: 12 steps in float32 */
#define MUON_TOLERANCE 1e-5 /* of the largest change: each step is as large as any other */

/* Twelve steps beside ref; returns how many were skipped. */
static int run_beside_ref(const char *device, const rig_config *config)
{
    rig r;
    int skipped = 0;
    rig_open(&r, device, config);
    while (r.k < RIG_STEPS) {
        rig_draw(&r);
        const abar_step_report expected = rig_step(&r, &r.ref);
        rig_enqueue(&r);
        NEED(&r, abar_device_wait(r.side.dev));
        assert_int_equal(rig_outcome(&r, r.k)->k, r.k);
        const abar_step_note note = *abar_optim_note(r.side.optim, r.k);
        assert_int_equal(note.skipped, expected.skipped);
        if (!expected.skipped && !(fabs(note.grad_norm - expected.grad_norm) <= 1e-5 * expected.grad_norm))
            fail_msg("step %d: the norm is %g, not %g", (int)r.k, note.grad_norm, expected.grad_norm);
        skipped += expected.skipped;
        r.k++;
        rig_check_weights(&r, rig_is_muon(config) ? MUON_TOLERANCE : TOLERANCE, rig_is_muon(config));
        rig_check_maps(&r, r.k - skipped);
    }
    rig_close(&r);
    return skipped;
}

static void steps_of_every_rule_and_method_equal_ref(void **state)
{
    for (int i = 0; i < RIG_CONFIGS; i += rig_stride()) {
        print_message("%s%s%s, case %d\n", rig_configs[i].rule, rig_configs[i].method ? " with " : "",
                      rig_configs[i].method ? rig_configs[i].method : "", i);
        assert_int_equal(run_beside_ref(*state, &rig_configs[i]), 0);
    }
}

static void steps_with_clipping_equal_ref(void **state)
{
    static const int cases[] = {
        0,           RIG_MAC + 1, RIG_SMAC,    RIG_EVA,       RIG_FOOF, RIG_KFAC,       RIG_LNGD,   RIG_NORMUON, RIG_MUON_MAC,
        RIG_SHAMPOO, RIG_NADAMW,  RIG_SFADAMW, RIG_HYPERBALL, RIG_SOAP, RIG_ADAHESSIAN, RIG_SOPHIA, RIG_NGD,     RIG_NGD_DRAWN};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride()) {
        rig_config config = rig_configs[cases[i]];
        config.clip = 0.5;
        assert_int_equal(run_beside_ref(*state, &config), 0);
        config.clip = 1e6;
        config.grad_scale = 0.25;
        assert_int_equal(run_beside_ref(*state, &config), 0);
    }
}

static void steps_from_micro_batches_equal_ref(void **state)
{
    static const int cases[] = {RIG_MAC,  RIG_SMAC, RIG_SMAC_ADAPTIVE, RIG_EVA,        RIG_FOOF,
                                RIG_KFAC, RIG_LNGD, RIG_MUON_MAC,      RIG_SFADAMW_MAC};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride()) {
        rig_config config = rig_configs[cases[i]];
        config.parts = 4; /* of 1, 2, 1 and 2 examples */
        config.grad_scale = 0.5;
        assert_int_equal(run_beside_ref(*state, &config), 0);
    }
}

/* At a step that would commit and refresh, at one that does neither. */
static void steps_with_bad_gradients_are_skipped_as_on_ref(void **state)
{
    for (int i = 0; i < RIG_CONFIGS; i += rig_stride())
        for (int bad = 5; bad <= 6; bad++) {
            rig_config config = rig_configs[i];
            config.bad_step = bad;
            assert_int_equal(run_beside_ref(*state, &config), 1);
        }
}

static void statistics_with_bad_numbers_are_dropped_as_on_ref(void **state)
{
    static const int cases[] = {RIG_MAC,   7,        RIG_SMAC,     RIG_SMAC_ADAPTIVE, RIG_EVA,     RIG_FOOF,     RIG_KFAC,
                                RIG_EIGEN, RIG_LNGD, RIG_MUON_MAC, RIG_NGD,           RIG_NGD + 1, RIG_NGD_DRAWN};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride())
        for (int layer = 0; layer < RIG_LAYERS; layer += rig_stride()) {
            rig_config config = rig_configs[cases[i]];
            config.bad_input_step = 6;
            config.bad_layer = layer;
            assert_int_equal(run_beside_ref(*state, &config), 0);
        }
}

/* At a step that draws: the diagonal stays, once and for all it would be infinite. */
static void drawn_gradients_with_squares_too_large_are_dropped_as_on_ref(void **state)
{
    for (int clipped = 0; clipped < 2; clipped++) {
        rig_config config = rig_configs[RIG_SOPHIA + 1];
        config.far_step = 5;
        config.clip = clipped ? 1e24 : 0.0;
        assert_int_equal(run_beside_ref(*state, &config), 0);
    }
}

/* ---- without gradient ------------------------------------------------------------------------------------------ */

/* One has no gradient for three steps: nothing of it changes, and the others go on as on ref. */
static void parameters_without_gradient_stay_as_on_ref(void **state)
{
    static const int params[] = {0, 1, 5}; /* fc's weight and bias, the weight of wide */
    static const int cases[] = {0,
                                4,
                                RIG_MAC,
                                RIG_FOOF,
                                RIG_NORMUON,
                                RIG_MUON_MAC,
                                RIG_SHAMPOO_ADAM,
                                RIG_NADAMW,
                                RIG_SFADAMW,
                                RIG_SFADAMW_MAC,
                                RIG_HYPERBALL,
                                RIG_SOAP,
                                RIG_SOAP_KL,
                                RIG_ADAHESSIAN,
                                RIG_SOPHIA + 1,
                                RIG_NGD,
                                RIG_NGD_DRAWN};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride())
        for (int which = 0; which < 3; which += rig_stride()) {
            rig r;
            const int p = params[which];
            rig_open(&r, *state, &rig_configs[cases[i]]);
            for (; r.k < RIG_STEPS; r.k++) {
                const bool with_grad = r.k < 4 || r.k >= 7;
                if (r.k == 4 || r.k == 7) {
                    rig_set_param(&r, &r.side, p, with_grad);
                    rig_set_param(&r, &r.ref, p, with_grad);
                }
                rig_draw(&r);
                (void)rig_step(&r, &r.ref);
                (void)rig_step(&r, &r.side);
                rig_check_weights(&r, rig_is_muon(&r.config) ? MUON_TOLERANCE : TOLERANCE, rig_is_muon(&r.config));
            }
            rig_check_maps(&r, RIG_STEPS);
            rig_close(&r);
        }
}

/* Matrices of different sizes have gradients in turn: as many as before, but larger ones. */
static void matrices_with_gradients_in_turn_equal_ref(void **state)
{
    enum { FC = 0, CONV = 2, WIDE = 5 };
    rig r;
    rig_open(&r, *state, &rig_configs[RIG_NORMUON]);
    rig_side *const sides[] = {&r.ref, &r.side};
    for (; r.k < RIG_STEPS; r.k++) {
        for (int i = 0; i < 2 && r.k % 4 == 0; i++) {
            rig_set_param(&r, sides[i], FC, r.k == 0);
            rig_set_param(&r, sides[i], CONV, r.k == 4);
            rig_set_param(&r, sides[i], WIDE, r.k == 8);
        }
        rig_draw(&r);
        (void)rig_step(&r, &r.ref);
        (void)rig_step(&r, &r.side);
        rig_check_weights(&r, MUON_TOLERANCE, true);
    }
    rig_close(&r);
}

/* ---- the point that is tested ---------------------------------------------------------------------------------------- */

/* Of every parameter, one that has no gradient any more included. */
static void averaged_weights_equal_ref(void **state)
{
    enum { FC = 0 };
    static const int cases[] = {RIG_SFADAMW, RIG_SFADAMW + 1, RIG_SFADAMW_MAC};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        rig_config config = rig_configs[cases[i]];
        config.bad_step = RIG_STEPS - 1; /* the last step is skipped: its flag must not stop the averaging */
        rig_open(&r, *state, &config);
        rig_side *const sides[] = {&r.ref, &r.side};
        for (; r.k < RIG_STEPS; r.k++) {
            for (int s = 0; s < 2 && r.k == 8; s++) rig_set_param(&r, sides[s], FC, false);
            rig_draw(&r);
            for (int s = 0; s < 2; s++) (void)rig_step(&r, sides[s]);
        }
        double *y = malloc((size_t)r.param[FC].count * sizeof *y), *x = malloc((size_t)r.param[FC].count * sizeof *x);
        assert_true(y && x);
        rig_get(&r, y, &r.side.value[FC]);
        for (int s = 0; s < 2; s++) NEED(&r, abar_optim_average(sides[s]->optim));
        rig_get(&r, x, &r.side.value[FC]);
        assert_true(x[0] != y[0]);
        rig_check_weights(&r, TOLERANCE, false);
        free(y), free(x);
        rig_close(&r);
    }
}

/* ---- losses, copies, measurements ------------------------------------------------------------------------------------------
 */

/* Memory that host and device both address. */
static abar_loss *shared_losses(const rig *r, int n)
{
    void *memory;
    const abar__stream_ops *q = r->side.dev->ops->stream;
    const size_t bytes = (size_t)n * sizeof(abar_loss);
    NEED(r, q ? q->shared_alloc(r->side.dev, bytes, &memory) : abar_device_alloc(r->side.dev, bytes, &memory));
    return memory;
}

static void free_losses(const rig *r, abar_loss *losses, int n)
{
    const abar__stream_ops *q = r->side.dev->ops->stream;
    const size_t bytes = (size_t)n * sizeof *losses;
    if (q)
        q->shared_free(r->side.dev, losses, bytes);
    else
        abar_device_free(r->side.dev, losses, bytes);
}

static void losses_of_micro_batches_are_summed_in_the_result(void **state)
{
    rig r;
    rig_open(&r, *state, &rig_configs[RIG_MAC]);
    abar_loss *losses = shared_losses(&r, 2);
    abar_optim *o = r.side.optim;
    for (; r.k < 4; r.k++) {
        const double second = 2.0 + (double)r.k;
        losses[0] = (abar_loss){1.5, 3, 8};
        losses[1] = (abar_loss){r.k == 2 ? NAN : second, 1, 4};
        rig_draw(&r);
        NEED(&r, abar_optim_begin(o));
        for (int i = 0; i < 2; i++) NEED(&r, abar_optim_add_loss(o, &losses[i]));
        NEED(&r, abar_optim_queue(o, &(abar_step_config){.size = sizeof(abar_step_config)}));
        NEED(&r, abar_device_wait(r.side.dev));
        const abar__step_outcome *outcome = rig_outcome(&r, r.k);
        assert_int_equal(outcome->skipped != 0, r.k == 2); /* a loss that is not finite skips the step */
        if (r.k == 2) continue;
        assert_true(fabs(outcome->loss - (1.5 * 8 + second * 4)) < 1e-9);
        assert_int_equal(outcome->correct, 4);
        assert_int_equal(outcome->count, 12);
        const abar_step_note *note = abar_optim_note(o, r.k);
        assert_true(fabs(note->loss.loss - (1.5 * 8 + second * 4) / 12) < 1e-9);
        assert_int_equal(note->loss.correct, 4);
        assert_int_equal(note->loss.count, 12);
    }
    free_losses(&r, losses, 2);
    rig_close(&r);
}

static void shadows_are_the_rounded_weights(void **state)
{
    for (int i = 0; i < RIG_CONFIGS; i += i + 4 < RIG_NORMUON ? 4 : 1) {
        rig r;
        rig_open(&r, *state, &rig_configs[i]);
        while (r.k < 3) rig_one_step(&r);
        for (int k = 0; k < r.n_params; k++) {
            const rig_param *p = &r.param[k];
            if (!p->has_shadow) continue;
            const size_t n = (size_t)p->count;
            float *weight = malloc(n * sizeof *weight);
            uint16_t *shadow = malloc(n * sizeof *shadow);
            assert_true(weight && shadow);
            rig_read(&r, weight, r.side.dev, r.side.value[k].data, n * sizeof *weight);
            rig_read(&r, shadow, r.side.dev, r.side.shadow[k], n * sizeof *shadow);
            for (size_t e = 0; e < n; e++)
                if (shadow[e] != abar__bf16_round(weight[e]))
                    fail_msg("%s: element %d is %g, its copy %g", p->name, (int)e, (double)weight[e],
                             (double)abar__bf16_load(shadow[e]));
            free(weight);
            free(shadow);
        }
        rig_close(&r);
    }
}

/* The products <G, G>, <G, T>, <T, T> of a parameter's gradient and what the step took off, divided by rate. */
static void products_of_step(const rig *r, int param, const double *before, double rate, double sum[3])
{
    const rig_param *p = &r->param[param];
    double *after = malloc((size_t)p->count * sizeof *after);
    assert_non_null(after);
    rig_get(r, after, &r->side.value[param]);
    sum[0] = sum[1] = sum[2] = 0.0;
    for (int64_t e = 0; e < p->count; e++) {
        const double g = p->grad[e], taken = (before[e] - after[e]) / rate;
        sum[0] += g * g;
        sum[1] += g * taken;
        sum[2] += taken * taken;
    }
    free(after);
}

/* With sgd and nothing else, what a step takes off is the preconditioned gradient, which measure sees without the KL clip. */
static void measured_products_are_those_of_what_the_step_takes_off(void **state)
{
    static const int cases[] = {RIG_MAC, RIG_SMAC, RIG_EVA, RIG_FOOF, RIG_KFAC, RIG_EIGEN, RIG_LNGD, RIG_NGD_DRAWN};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride()) {
        rig r;
        rig_config config = rig_configs[cases[i]];
        config.momentum = config.weight_decay = 0.0;
        config.tcov = config.tinv = 1;
        double products[RIG_MAPS][3], sum[3];
        rig_open(&r, *state, &config);
        while (r.k < 3) rig_one_step(&r);
        const int w = r.layer[3].weight; /* the last map, alone and without a bias */
        double *before = malloc((size_t)r.param[w].count * sizeof *before);
        assert_non_null(before);
        rig_get(&r, before, &r.side.value[w]);
        abar_optim_measure(r.side.optim);
        rig_one_step(&r);
        NEED(&r, r.side.dev->ops->step->measured(r.side.dev, r.side.optim->step, &products[0][0]));
        const double kl_scale = abar_optim_times(r.side.optim)->kl_scale;
        products_of_step(&r, w, before, rig_rate(&r, 3) * r.param[w].lr_scale * kl_scale, sum);
        for (int k = 0; k < 3; k++)
            if (!(fabs(products[RIG_MAPS - 1][k] - sum[k]) <= 1e-3 * sum[k]))
                fail_msg("%s: product %d is %g, not %g", config.method, k, products[RIG_MAPS - 1][k], sum[k]);
        const abar_map_info *info = abar_optim_map(r.side.optim, RIG_MAPS - 1);
        assert_true(fabs(info->cosine - sum[1] / sqrt(sum[0] * sum[2])) <= 2e-3);
        assert_true(fabs(info->ratio - sqrt(sum[2] / sum[0])) <= 2e-3 * info->ratio);
        free(before);
        rig_close(&r);
    }
}

static void measurements_stay_where_a_measured_step_was_skipped(void **state)
{
    static const int cases[] = {RIG_MAC, RIG_FOOF, RIG_NGD_DRAWN};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride()) {
        rig r;
        rig_config config = rig_configs[cases[i]];
        config.bad_step = 6;
        rig_open(&r, *state, &config);
        while (r.k < 4) rig_one_step(&r);
        abar_optim_measure(r.side.optim);
        rig_one_step(&r);
        const double cosine = abar_optim_map(r.side.optim, 0)->cosine;
        assert_in_range((int)(1000.0 * cosine), 1, 1000);
        while (r.k < 6) rig_one_step(&r);
        abar_optim_measure(r.side.optim);
        rig_one_step(&r);
        assert_true(abar_optim_note(r.side.optim, 6)->skipped);
        assert_true(abar_optim_map(r.side.optim, 0)->cosine == cosine);
        rig_close(&r);
    }
}

/* Ranks that divide refreshes need a list of owners: it is in the bytes of the step, from the moment when it is made. */
static void refreshes_that_ranks_divide_are_in_the_bytes_of_the_step(void **state)
{
    static const int cases[] = {RIG_FOOF, RIG_KFAC, RIG_EIGEN};
    const abar__owners two = {.rank = 1, .ranks = 2}, one = {.ranks = 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)rig_stride()) {
        rig r;
        rig_open(&r, *state, &rig_configs[cases[i]]);
        const abar__step_ops *ops = r.side.dev->ops->step;
        abar__compiled_step *step = r.side.optim->step;
        const size_t bytes = ops->bytes(step), held = abar_context_memory(r.ctx).now;
        NEED(&r, ops->share(r.side.dev, step, &two));
        assert_true(abar_context_memory(r.ctx).now > held);
        assert_int_equal(ops->bytes(step) - bytes, abar_context_memory(r.ctx).now - held);
        NEED(&r, ops->share(r.side.dev, step, &one));
        assert_int_equal(ops->bytes(step), bytes);
        assert_int_equal(abar_context_memory(r.ctx).now, held);
        rig_close(&r);
    }
}

#define CASE(f) cmocka_unit_test_prestate(f, (void *)(uintptr_t)device)

static int cases_beside_ref(const char *device, struct CMUnitTest *out)
{
    const struct CMUnitTest cases[] = {
        CASE(steps_of_every_rule_and_method_equal_ref),
        CASE(steps_with_clipping_equal_ref),
        CASE(steps_from_micro_batches_equal_ref),
        CASE(steps_with_bad_gradients_are_skipped_as_on_ref),
        CASE(statistics_with_bad_numbers_are_dropped_as_on_ref),
        CASE(drawn_gradients_with_squares_too_large_are_dropped_as_on_ref),
        CASE(parameters_without_gradient_stay_as_on_ref),
        CASE(matrices_with_gradients_in_turn_equal_ref),
        CASE(averaged_weights_equal_ref),
        CASE(losses_of_micro_batches_are_summed_in_the_result),
        CASE(measured_products_are_those_of_what_the_step_takes_off),
        CASE(measurements_stay_where_a_measured_step_was_skipped),
        CASE(refreshes_that_ranks_divide_are_in_the_bytes_of_the_step),
        CASE(shadows_are_the_rounded_weights), /* of a device with a queue */
    };
    memcpy(out, cases, sizeof cases);
    return (int)(sizeof cases / sizeof *cases) - (abar__device_find(device)->stream ? 0 : 1);
}

int step_cases_run(const char *device)
{
    struct CMUnitTest tests[STEP_CASES_MAX] = {0}; /* cmocka passes over those without a function */
    const int n = cases_beside_ref(device, tests), bits = step_cases_bits(device, tests + n);
    memset(tests + n + bits, 0, (size_t)(STEP_CASES_MAX - n - bits) * sizeof *tests);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
