/* When numbers go wrong (methods.md section 9): statistics that are not finite are dropped, steps whose gradients are not
 * finite are skipped, and nothing else changes; extreme numbers do no lasting harm. Factors that cannot be factorised:
 * test_ladder.c. */
#include "curvature_lab.h"

#include "curvature/curvature_impl.h"

static const lab_shape shapes[] = {
    {.name = "fc", .in = 5, .out = 4, .bias = true, .first = true},
    {.name = "tokens", .in = 4, .out = 3, .tokens = 3},
    {.name = "conv", .in = 3, .out = 2, .bias = true, .image = {4, 4}, .window = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}},
    {.name = "grouped", .in = 4, .out = 4, .image = {3, 3}, .window = {{2, 2}, {1, 1}, {0, 0}, {1, 1}, 2}},
};
enum { LAYERS = sizeof shapes / sizeof *shapes, GROUPED = LAYERS - 1, EXAMPLES = 6, NO_COUNT = -1 };

#define RUN "tcov=1 tinv=2 momentum=0.9 weight-decay=0.01"

static void open_lab(lab *l, const char *device, const char *method, const char *options, uint64_t seed)
{
    char all[256];
    lab_open(l, device, NULL, shapes, LAYERS, EXAMPLES, seed);
    lab_optimizer(l, method, lab_with(all, options, RUN));
}

static void clean_step(lab *l)
{
    lab_draw_batch(l);
    lab_observe(l);
    assert_false(lab_step(l, 0.05).skipped);
}

static void assert_finite(lab *l, const char *what)
{
    lab_state s;
    lab_state_take(l, &s);
    const char *bad = lab_state_not_finite(&s);
    if (bad) fail_msg("%s on %s: %s is not finite", what, abar_device_name(l->dev), bad);
    lab_state_drop(&s);
}

/* Clears one of the counts of every map, for comparisons that it may not spoil. */
static void forget_count(const lab_state *s, int which)
{
    for (int i = 0; i < s->n && which != NO_COUNT; i++) {
        const char *dot = strrchr(s->name[i], '.');
        if (dot && strcmp(dot, ".counts") == 0) ((int64_t *)s->tensor[i].data)[which] = 0;
    }
}

static void assert_same(lab *a, lab *b, int except, const char *what)
{
    lab_state x, y;
    lab_state_take(a, &x);
    lab_state_take(b, &y);
    forget_count(&x, except);
    forget_count(&y, except);
    const char *changed = lab_state_changed(&x, &y);
    if (changed) fail_msg("%s on %s: %s differs", what, abar_device_name(a->dev), changed);
    lab_state_drop(&x);
    lab_state_drop(&y);
}

/* ---- statistics that are not finite ----------------------------------------------------------------------------------- */

typedef struct poison {
    bool output_grad; /* or input */
    int layer, step;  /* where and when */
    double value;
} poison;

/* A run with one number poisoned, and one where that layer was not observed at that step: the same, bit for bit. */
static void check_dropped(const char *device, const char *method, const char *options, const poison *p)
{
    lab struck, spared;
    char what[200];
    const bool drops = !p->output_grad || lab_uses_output_grad(method);
    snprintf(what, sizeof what, "%s %.80s, %g in the %s of %s at step %d", method, options, p->value,
             p->output_grad ? "output gradient" : "input", shapes[p->layer].name, p->step);
    open_lab(&struck, device, method, options, 9);
    open_lab(&spared, device, method, options, 9);
    for (int k = 0; k < 6; k++) {
        lab_draw_batch(&struck);
        lab_draw_batch(&spared);
        const lab_layer *y = &struck.layer[p->layer];
        const abar_tensor *t = p->output_grad ? &y->p : &y->x;
        if (k == p->step) lab_set(t, abar_tensor_count(t) / 2, p->value);
        lab_observe(&struck);
        for (int i = 0; i < LAYERS; i++)
            if (!(drops && k == p->step && i == p->layer)) lab_observe_layer(&spared, i, 0, EXAMPLES, 1.0, 1.0);
        assert_false(lab_step(&struck, 0.05).skipped);
        assert_false(lab_step(&spared, 0.05).skipped);
        assert_same(&struck, &spared, ABAR_COUNT_DROPPED, what);
        for (int i = 0; i < LAYERS; i++) {
            const bool hit = drops && i == p->layer && k >= p->step;
            const abar_map_info info = lab_map(&struck, shapes[i].name, 0);
            if (info.dropped != hit || info.commits != k + 1 - hit)
                fail_msg("%s: step %d, %s: %d dropped, %d commits", what, k, info.layer, (int)info.dropped, (int)info.commits);
        }
    }
    assert_finite(&struck, what);
    lab_close(&struck);
    lab_close(&spared);
}

static void statistics_that_are_not_finite_are_dropped_and_counted(void **state)
{
    static const double values[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; lab_cases[i][0]; i++)
        for (int v = 0; v < 3; v++)
            for (int layer = 0; layer < GROUPED; layer++) {
                const poison p = {(v + layer) % 2, layer, v == 0 ? 0 : 2 + layer % 2, values[v]};
                const poison q = {(v + layer + 1) % 2, layer, v == 2 ? 0 : 3, values[v]};
                check_dropped(*state, lab_cases[i][0], lab_cases[i][1], &p);
                check_dropped(*state, lab_cases[i][0], lab_cases[i][1], &q);
            }
}

static void statistics_of_one_group_are_dropped_alone(void **state)
{
    for (int i = 0; lab_cases[i][0]; i++) {
        lab l;
        open_lab(&l, *state, lab_cases[i][0], lab_cases[i][1], 2);
        clean_step(&l);
        lab_draw_batch(&l);
        lab_set(&l.layer[GROUPED].x, 2 * 9 + 4, NAN); /* channel 2, in the second group */
        lab_observe(&l);
        assert_false(lab_step(&l, 0.05).skipped);
        assert_int_equal(lab_map(&l, "grouped", 0).dropped, 0);
        assert_int_equal(lab_map(&l, "grouped", 0).commits, 2);
        assert_int_equal(lab_map(&l, "grouped", 1).dropped, 1);
        assert_int_equal(lab_map(&l, "grouped", 1).commits, 1);
        clean_step(&l);
        assert_int_equal(lab_map(&l, "grouped", 1).commits, 2);
        assert_finite(&l, lab_cases[i][0]);
        lab_close(&l);
    }
}

/* Only the joined batch counts: a micro-batch that is not finite takes the others with it, once. */
static void statistics_with_one_bad_micro_batch_are_dropped_once(void **state)
{
    for (int i = 0; lab_cases[i][0]; i++) {
        lab l;
        open_lab(&l, *state, lab_cases[i][0], lab_cases[i][1], 2);
        clean_step(&l);
        lab_draw_batch(&l);
        lab_set(&l.layer[0].x, 0, INFINITY);
        for (int part = 0; part < 3; part++) lab_observe_layer(&l, 0, 2 * part, 2, 1.0, 1.0);
        assert_false(lab_step(&l, 0.05).skipped);
        assert_int_equal(lab_map(&l, "fc", 0).dropped, 1);
        assert_int_equal(lab_map(&l, "fc", 0).commits, 1);
        clean_step(&l);
        assert_int_equal(lab_map(&l, "fc", 0).commits, 2);
        lab_close(&l);
    }
}

/* ---- steps that are skipped -------------------------------------------------------------------------------------------- */

/* Skips the step of a lab whose batch is observed: nothing may change but the number of the step, and what is due. */
static void skip_step(lab *l, const lab_state *before, const abar_tensor *gradient, double value)
{
    lab_state after;
    lab_set(gradient, 1, value);
    abar_step_report report = lab_step(l, 0.05);
    assert_true(report.skipped);
    assert_true(!isfinite(report.grad_norm));
    lab_state_take(l, &after);
    forget_count(before, ABAR_COUNT_DUE);
    forget_count(&after, ABAR_COUNT_DUE);
    int64_t *steps = lab_state_find(&after, "curvature.steps")->data;
    assert_int_equal(--*steps, *(int64_t *)lab_state_find(before, "curvature.steps")->data);
    const char *changed = lab_state_changed(before, &after);
    if (changed) fail_msg("the skipped step changed %s", changed);
    lab_state_drop(&after);
}

static void check_skipped(const char *device, const char *method, const char *options, double value, int layer, bool bias)
{
    lab struck, told;
    open_lab(&struck, device, method, options, 4);
    open_lab(&told, device, method, options, 4);
    for (int k = 0; k < 6; k++) {
        lab_state before;
        lab_state_take(&struck, &before);
        lab_draw_batch(&struck);
        lab_draw_batch(&told);
        lab_observe(&struck);
        lab_observe(&told);
        if (k == 0 || k == 3) {
            skip_step(&struck, &before, bias ? &struck.layer[layer].gb : &struck.layer[layer].gw, value);
            abar_optim_skip(told.optim);
        } else {
            assert_false(lab_step(&struck, 0.05).skipped);
            assert_false(lab_step(&told, 0.05).skipped);
        }
        assert_same(&struck, &told, NO_COUNT, method);
        lab_state_drop(&before);
    }
    assert_finite(&struck, method);
    lab_close(&struck);
    lab_close(&told);
}

static void steps_with_gradients_that_are_not_finite_change_nothing(void **state)
{
    for (int i = 0; lab_cases[i][0]; i++) {
        check_skipped(*state, lab_cases[i][0], lab_cases[i][1], NAN, i % LAYERS, false);
        check_skipped(*state, lab_cases[i][0], lab_cases[i][1], INFINITY, 0, true);
        check_skipped(*state, lab_cases[i][0], lab_cases[i][1], -INFINITY, 2, i % 2);
    }
}

/* ---- numbers at the edge ------------------------------------------------------------------------------------------------ */

typedef enum place { INPUT, OUTPUT_GRAD, GRADIENT, PLACES } place;

/* One number of the layer, or all of them, scaled so that the largest is near value. */
static void put(lab *l, int layer, place where, double value, bool all)
{
    const lab_layer *y = &l->layer[layer];
    const abar_tensor *t = where == INPUT ? &y->x : where == OUTPUT_GRAD ? &y->p : &y->gw;
    for (int64_t i = 0; i < abar_tensor_count(t); i++)
        if (all || i == abar_tensor_count(t) / 2) lab_set(t, i, value * lab_get(t, i));
}

/* After a bad step: finite, and three clean batches are committed again by every map. */
static void assert_recovers(lab *l, const char *what)
{
    int64_t commits[16], dropped[16];
    const int maps = abar_optim_map_count(l->optim);
    assert_finite(l, what);
    for (int i = 0; i < maps; i++) {
        commits[i] = abar_optim_map(l->optim, i)->commits;
        dropped[i] = abar_optim_map(l->optim, i)->dropped;
    }
    for (int k = 0; k < 3; k++) clean_step(l);
    assert_finite(l, what);
    for (int i = 0; i < maps; i++) {
        assert_int_equal(abar_optim_map(l->optim, i)->commits, commits[i] + 3);
        assert_int_equal(abar_optim_map(l->optim, i)->dropped, dropped[i]);
    }
}

static void check_extreme(const char *device, const char *method, const char *options, place where, double value, bool all)
{
    static const char *const names[] = {"the input", "the output gradient", "the gradient"};
    char what[200];
    for (int first = 0; first < 2; first++) { /* before anything else was seen, and later */
        lab l;
        snprintf(what, sizeof what, "%s %.80s, %g in %s", method, options, value, names[where]);
        open_lab(&l, device, method, options, 6);
        if (!first) clean_step(&l);
        lab_draw_batch(&l);
        for (int i = 0; i < LAYERS; i++) put(&l, i, where, value, all);
        lab_observe(&l);
        assert_false(lab_step(&l, 0.05).skipped);
        assert_recovers(&l, what);
        lab_close(&l);
    }
}

static void extreme_numbers_leave_everything_finite(void **state)
{
    static const double values[] = {1e30, -1e30, 1e-30, 1e15};
    for (int i = 0; lab_cases[i][0]; i++)
        for (place where = INPUT; where < PLACES; where++)
            for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                check_extreme(*state, lab_cases[i][0], lab_cases[i][1], where, values[v], true);
                check_extreme(*state, lab_cases[i][0], lab_cases[i][1], where, values[v], false);
            }
}

/* Squares of 1e30 are no float: such statistics are dropped where there are squares, and taken where there are none. */
static void extreme_inputs_are_dropped_only_where_their_squares_overflow(void **state)
{
    const bool single = strcmp(*state, "cpu") == 0;
    for (int i = 0; lab_cases[i][0]; i++) {
        lab l;
        open_lab(&l, *state, lab_cases[i][0], lab_cases[i][1], 6);
        lab_draw_batch(&l);
        put(&l, 0, INPUT, 1e30, true);
        lab_observe(&l);
        lab_step(&l, 0.05);
        assert_int_equal(lab_map(&l, "fc", 0).dropped, single && lab_is_dense(lab_cases[i][0]));
        assert_int_equal(lab_map(&l, "tokens", 0).dropped, 0);
        lab_close(&l);
    }
}

/* Without a bias the mean activation is zero: there is nothing to divide by, and nothing to subtract. */
static void check_zero_inputs(const char *device, const char *method, const char *options)
{
    lab l;
    open_lab(&l, device, method, options, 6);
    for (int k = 0; k < 4; k++) {
        lab_draw_batch(&l);
        for (int layer = 0; layer < LAYERS; layer++) put(&l, layer, INPUT, 0.0, true);
        lab_observe(&l);
        lab_step(&l, 0.05);
        assert_finite(&l, method);
    }
    assert_int_equal(lab_map(&l, "tokens", 0).dropped, 0);
    assert_recovers(&l, method);
    lab_close(&l);
}

static void inputs_of_zero_leave_everything_finite(void **state)
{
    for (int i = 0; lab_cases[i][0]; i++) check_zero_inputs(*state, lab_cases[i][0], lab_cases[i][1]);
    check_zero_inputs(*state, "mac", "damping=adaptive damping-form=coupled");
    check_zero_inputs(*state, "kfac", "damping=1e-8");
    check_zero_inputs(*state, "foof", "damping=1e-30");
}

/* No gradient reaches the layer: its weights stay where they are, bit for bit. */
static void dead_layers_stay_where_they_are(void **state)
{
    for (int i = 0; lab_cases[i][0]; i++) {
        lab l;
        char all[256];
        lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 8);
        lab_optimizer(&l, lab_cases[i][0], lab_with(all, lab_cases[i][1], "tcov=1 tinv=1 momentum=0.9"));
        lab_fill(&l, &l.layer[0].weight, 1.0);
        lab_fill(&l, &l.layer[GROUPED].weight, 1.0);
        lab_state before, after;
        lab_state_take(&l, &before);
        for (int k = 0; k < 4; k++) {
            lab_draw_batch(&l);
            for (int dead = 0; dead < LAYERS; dead += GROUPED) {
                put(&l, dead, OUTPUT_GRAD, 0.0, true);
                put(&l, dead, GRADIENT, 0.0, true);
            }
            memset(l.layer[0].gb.data, 0, abar_tensor_bytes(&l.layer[0].gb));
            lab_observe(&l);
            assert_false(lab_step(&l, 0.05).skipped);
            assert_finite(&l, lab_cases[i][0]);
        }
        lab_state_take(&l, &after);
        static const char *const dead[] = {"weight of fc", "bias of fc", "weight of grouped"};
        for (int k = 0; k < 3; k++) {
            const abar_tensor *a = lab_state_find(&before, "%s", dead[k]), *b = lab_state_find(&after, "%s", dead[k]);
            assert_memory_equal(a->data, b->data, abar_tensor_bytes(a));
        }
        assert_memory_not_equal(lab_state_find(&before, "weight of conv")->data, lab_state_find(&after, "weight of conv")->data,
                                abar_tensor_bytes(lab_state_find(&before, "weight of conv")));
        lab_state_drop(&before);
        lab_state_drop(&after);
        lab_close(&l);
    }
}

/* ---- where one factor is small and another large ----------------------------------------------------------------------- */

/* rho is of the size of |a|^2: 1 / rho is no float any more. */
static void coupled_adaptive_damping_of_tiny_inputs_leaves_everything_finite(void **state)
{
    static const double values[] = {1e-30, 1e-22, 1e-15, 1e15, 1e30};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        check_extreme(*state, "mac", "damping=adaptive damping-form=coupled", INPUT, values[v], true);
}

/* Whatever damping an optimizer accepts, it must be able to divide by. */
static void dampings_that_are_accepted_leave_weights_finite(void **state)
{
    static const char *const cases[][2] = {
        {"mac", "damping-form=coupled damping=%s"},
        {"smac", "damping=%s"},
        {"foof", "damping=%s"},
        {"kfac", "damping=%s"},
        {"kfac", "kfac-inverse=eigen damping=%s"},
        {"eva", "damping=%s"},
        {"lngd", "nu1=%s nu2=1e-20"},
        {"skfac", "damping=%s"},
        {"skfac", "examples=0 damping=%s"},
        {"kpsvd", "damping=%s"},
        {"kpsvd", "kpsvd-terms=2 damping=%s"},
        {"smac", "damping=adaptive diagonal-damping=%s"},
    };
    static const char *const dampings[] = {"1e-30", "1e-37", "1e-40", "1e-300", "1e-310", "1e30"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases * 6; i++) {
        lab l;
        lab_request request;
        char options[128];
        if (!lab_has(cases[i / 6][0])) continue;
        snprintf(options, sizeof options, cases[i / 6][1], dampings[i % 6]);
        lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 6);
        lab_request_try(&l, cases[i / 6][0], options, &request);
        abar_status status = request.refused ? ABAR_E_ARGUMENT : abar_optim_create(l.dev, &request.config, &l.optim);
        lab_request_drop(&request);
        assert_true(status == ABAR_OK || status == ABAR_E_ARGUMENT);
        for (int k = 0; k < 3 && status == ABAR_OK; k++) {
            lab_draw_batch(&l);
            for (int layer = 0; layer < LAYERS; layer++) { /* the most that a method can make of a small gradient */
                put(&l, layer, OUTPUT_GRAD, 0.0, true);
                put(&l, layer, GRADIENT, k == 0 ? 0.0 : 1e-3, true);
            }
            lab_observe(&l);
            lab_step(&l, 1e-6);
            assert_finite(&l, options);
        }
        lab_close(&l);
    }
}

/* Per-example scale multiplies the finished sums by the batch, squared: what was finite may not be any more. */
static void sums_that_overflow_as_averages_are_dropped(void **state)
{
    static const char *const cases[][2] = {{"smac", "pgrad=per-example stat-decay=0.5"},
                                           {"kfac", "pgrad=per-example stat-decay=0.5"},
                                           {"kfac", "pgrad=per-example stat-decay=0.5 kfac-inverse=eigen"},
                                           {"lngd", "pgrad=per-example stat-decay=0.5"},
                                           {"skfac", ""},
                                           {"skfac", "examples=0"},
                                           {"kpsvd", "stat-decay=0.5"},
                                           {"kpsvd", "stat-decay=0.5 kpsvd-terms=2"},
                                           {"eva", "pgrad=per-example stat-decay=0.5"}};
    const double root = strcmp(*state, "cpu") == 0 ? 4e18 : 2.5e153, largest = strcmp(*state, "cpu") == 0 ? 5e37 : 5e307;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lab l;
        char all[256];
        if (!lab_has(cases[i][0])) continue;
        lab_open(&l, *state, NULL, &shapes[0], 1, 12, 6);
        lab_optimizer(&l, cases[i][0], lab_with(all, cases[i][1], "tcov=1 tinv=1"));
        clean_step(&l);
        lab_draw_batch(&l);
        const bool squares = strcmp(cases[i][0], "eva") != 0;
        for (int64_t k = 0; k < abar_tensor_count(&l.layer[0].p); k++)
            lab_set(&l.layer[0].p, k, squares ? root : largest / 3.0);
        lab_observe(&l);
        assert_false(lab_step(&l, 0.05).skipped);
        assert_recovers(&l, cases[i][0]);
        lab_close(&l);
    }
}

/* Finite, so that the step is not skipped; but sums of them are not, in the device's precision. */
static void gradients_near_the_largest_number_leave_weights_finite(void **state)
{
    const double value = strcmp(*state, "cpu") == 0 ? 3e38 : 1e308;
    for (int c = 0; lab_cases[c / 2][0]; c++) {
        lab l;
        char all[256];
        const int i = c / 2;
        lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 6);
        lab_optimizer(&l, lab_cases[i][0],
                      lab_with(all, lab_cases[i][1], c % 2 ? "tcov=1 tinv=1 rule=adamw" : "tcov=1 tinv=1"));
        clean_step(&l);
        lab_draw_batch(&l);
        for (int layer = 0; layer < LAYERS; layer++)
            for (int64_t k = 0; k < abar_tensor_count(&l.layer[layer].gw); k++) lab_set(&l.layer[layer].gw, k, value);
        lab_observe(&l);
        assert_false(lab_step(&l, 1e-3).skipped);
        assert_finite(&l, lab_cases[i][0]);
        lab_close(&l);
    }
}

/* ---- calibration -------------------------------------------------------------------------------------------------------- */

static void calibration_that_fails_can_be_made_again(void **state)
{
    static const char *const options[] = {"first-layer=dataset-mean", "first-layer=dataset-cov"};
    for (int i = 0; i < 4; i++) {
        lab l;
        open_lab(&l, *state, i < 2 ? "mac" : "smac", options[i % 2], 6);
        assert_int_equal(abar_optim_end_calibration(l.optim), ABAR_E_STATE);
        assert_non_null(strstr(abar_context_error(l.ctx), "fc"));
        lab_draw_batch(&l);
        lab_set(&l.layer[0].x, 3, NAN);
        lab_calibrate_part(&l, 0, EXAMPLES);
        assert_int_equal(abar_optim_end_calibration(l.optim), ABAR_E_NUMERIC);
        assert_non_null(strstr(abar_context_error(l.ctx), "fc"));
        assert_true(abar_optim_wants_calibration(l.optim, 0));
        lab_draw_batch(&l);
        lab_calibrate(&l);
        assert_false(abar_optim_wants_calibration(l.optim, 0));
        clean_step(&l);
        lab_draw_batch(&l);
        lab_set(&l.layer[0].x, 3, NAN); /* nobody looks at it any more */
        lab_observe(&l);
        lab_step(&l, 0.05);
        assert_int_equal(lab_map(&l, "fc", 0).dropped, 0);
        assert_recovers(&l, options[i % 2]);
        lab_close(&l);
    }
}

static void first_layer_statistics_without_a_first_layer_are_refused(void **state)
{
    static const char *const options[] = {"first-layer=dataset-mean", "first-layer=dataset-cov"};
    for (int i = 0; i < 4; i++) {
        lab l;
        lab_request request;
        lab_open(&l, *state, NULL, shapes + 1, LAYERS - 1, EXAMPLES, 6);
        lab_request_make(&l, i < 2 ? "mac" : "smac", options[i % 2], &request);
        assert_int_equal(abar_optim_create(l.dev, &request.config, &l.optim), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(l.ctx), "first-layer"));
        lab_request_drop(&request);
        lab_close(&l);
    }
}

/* ---- what does not fit ----------------------------------------------------------------------------------------------------
 */

/* A layer as observe wants it, of these dimensions; the memory is a stage's. */
static abar_status offer_shapes(lab *l, int index, int xd, const int64_t *x, int pd, const int64_t *p)
{
    abar_layer layer = {.name = "any", .output_grad_scale = 1.0, .window = abar_window_unit()};
    layer.input = abar_tensor_wrap(l->dev, l->layer[2].x_stage.data, l->dtype, xd, x);
    if (pd) layer.output_grad = abar_tensor_wrap(l->dev, l->layer[2].p_stage.data, l->dtype, pd, p);
    return abar_optim_observe(l->optim, index, &layer);
}

static void observations_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        int layer, xd, pd;
        int64_t x[4], p[4];
        bool grad; /* only the output gradient is wrong */
    } cases[] = {
        {0, 2, 2, {2, 4}, {2, 4}, false},                   /* columns */
        {0, 1, 2, {5}, {2, 4}, false},                      /* dimensions */
        {0, 2, 2, {2, 5}, {2, 3}, true},                    /* outputs */
        {0, 2, 2, {2, 5}, {1, 4}, true},                    /* examples */
        {0, 2, 0, {2, 5}, {0}, true},                       /* no output gradient */
        {1, 3, 3, {2, 3, 4}, {2, 2, 3}, true},              /* tokens */
        {1, 3, 2, {2, 3, 4}, {6, 3}, true},                 /* joined tokens */
        {2, 4, 4, {1, 2, 4, 4}, {1, 2, 4, 4}, false},       /* channels */
        {2, 4, 4, {1, 3, 4, 4}, {1, 2, 4, 3}, true},        /* positions */
        {2, 2, 2, {2, 27}, {2, 2}, false},                  /* not an image */
        {GROUPED, 4, 4, {1, 5, 3, 3}, {1, 4, 2, 2}, false}, /* channels, one over */
        {GROUPED, 4, 4, {1, 4, 1, 3}, {1, 4, 1, 2}, false}, /* smaller than the window */
        {LAYERS, 2, 2, {2, 5}, {2, 4}, false},              /* no such layer */
        {-1, 2, 2, {2, 5}, {2, 4}, false},
    };
    for (int m = 0; lab_methods[m]; m++) {
        lab l;
        lab_state before, after;
        open_lab(&l, *state, lab_methods[m], "", 6);
        lab_state_take(&l, &before);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const bool fits = cases[i].grad && !lab_uses_output_grad(lab_methods[m]);
            abar_status status = offer_shapes(&l, cases[i].layer, cases[i].xd, cases[i].x, cases[i].pd, cases[i].p);
            if (status != (fits ? ABAR_OK : ABAR_E_ARGUMENT))
                fail_msg("%s, case %d: %s", lab_methods[m], (int)i, abar_status_text(status));
        }
        abar_optim_skip(l.optim);
        lab_state_take(&l, &after);
        forget_count(&after, ABAR_COUNT_DUE);
        --*(int64_t *)lab_state_find(&after, "curvature.steps")->data;
        assert_null(lab_state_changed(&before, &after));
        assert_recovers(&l, lab_methods[m]);
        lab_state_drop(&before);
        lab_state_drop(&after);
        lab_close(&l);
    }
}

/* ---- anything, any time ----------------------------------------------------------------------------------------------- */

static void strike(lab *l, uint64_t *noise)
{
    static const double values[] = {NAN, INFINITY, -INFINITY, 1e30, 1e-30, 0.0, 1e19, -1e-12};
    const int hits = (int)lab_pick(noise, 0, 3);
    for (int i = 0; i < hits; i++)
        put(l, (int)lab_pick(noise, 0, LAYERS - 1), (place)lab_pick(noise, 0, PLACES - 1), values[lab_pick(noise, 0, 7)],
            lab_pick(noise, 0, 1));
}

static void training_survives_any_sequence_of_faults(void **state)
{
    for (int i = 0; lab_cases[i][0]; i++) {
        lab l;
        uint64_t noise = 77 + (uint64_t)i;
        int skipped = 0;
        open_lab(&l, *state, lab_cases[i][0], lab_cases[i][1], noise);
        for (int k = 0; k < 60; k++) {
            lab_draw_batch(&l);
            strike(&l, &noise);
            if (lab_pick(&noise, 0, 9)) lab_observe(&l);
            skipped += lab_step(&l, 0.05).skipped;
            assert_finite(&l, lab_cases[i][0]);
        }
        assert_in_range(skipped, 5, 50);
        lab_state s;
        lab_state_take(&l, &s);
        assert_int_equal(*(int64_t *)lab_state_find(&s, "curvature.steps")->data, 60);
        assert_int_equal(*(int64_t *)lab_state_find(&s, "updates")->data, 60 - skipped);
        lab_state_drop(&s);
        assert_recovers(&l, lab_cases[i][0]);
        lab_close(&l);
    }
}

int main(void)
{
    const int missing = lab_begin();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        ON_BOTH(statistics_that_are_not_finite_are_dropped_and_counted),
        ON_BOTH(statistics_of_one_group_are_dropped_alone),
        ON_BOTH(statistics_with_one_bad_micro_batch_are_dropped_once),
        ON_BOTH(steps_with_gradients_that_are_not_finite_change_nothing),
        ON_BOTH(extreme_numbers_leave_everything_finite),
        ON_BOTH(extreme_inputs_are_dropped_only_where_their_squares_overflow),
        ON_BOTH(inputs_of_zero_leave_everything_finite),
        ON_BOTH(dead_layers_stay_where_they_are),
        ON_BOTH(coupled_adaptive_damping_of_tiny_inputs_leaves_everything_finite),
        ON_BOTH(dampings_that_are_accepted_leave_weights_finite),
        ON_BOTH(sums_that_overflow_as_averages_are_dropped),
        ON_BOTH(gradients_near_the_largest_number_leave_weights_finite),
        ON_BOTH(calibration_that_fails_can_be_made_again),
        ON_BOTH(first_layer_statistics_without_a_first_layer_are_refused),
        ON_BOTH(observations_that_do_not_fit_are_refused),
        ON_BOTH(training_survives_any_sequence_of_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
