/* K-BFGS (optimizers.md section 7): its identities, and what becomes of a step whose second pass fails. Its numbers are
 * compared with the oracle's in test_curvature_golden.c. Two labs of one seed draw the same batches. */
#include "curvature_lab.h"

#include "device/device_impl.h"

static const lab_shape shapes[] = {
    {.name = "fc", .in = 5, .out = 4, .bias = true, .first = true},
    {.name = "tokens", .in = 4, .out = 3, .tokens = 3},
    {.name = "grouped", .in = 4, .out = 4, .bias = true, .image = {4, 3}, .window = {{3, 2}, {1, 1}, {1, 0}, {1, 1}, 2}},
};
enum { LAYERS = sizeof shapes / sizeof *shapes, EXAMPLES = 4 };

static void start(lab *l, const char *device, const char *options, uint64_t seed)
{
    lab_open(l, device, NULL, shapes, LAYERS, EXAMPLES, seed);
    lab_optimizer(l, "kbfgs", options);
    for (int i = 0; i < LAYERS; i++) lab_fill(l, &l->layer[i].weight, 0.5);
}

/* The second pass sees another batch: what weights would make of this one is nobody's business here. Returns whether the step
 * was undone. */
static bool second_pass(lab *l, bool finite)
{
    bool undone = false;
    assert_true(abar_optim_wants_pass(l->optim));
    lab_draw_batch(l);
    lab_observe(l);
    NEED(l, abar_optim_end_pass(l->optim, finite, 1.0, &undone));
    assert_false(abar_optim_wants_pass(l->optim));
    return undone;
}

static void take_step(lab *l)
{
    lab_draw_batch(l);
    lab_observe(l);
    assert_false(lab_step(l, 0.1).skipped);
    assert_false(second_pass(l, true));
}

static void check_weights(lab *a, lab *b, const char *what, double exact, double rounded)
{
    for (int i = 0; i < a->n; i++) {
        const abar_tensor *const from[2] = {&a->layer[i].weight, &a->layer[i].bias};
        const abar_tensor *const to[2] = {&b->layer[i].weight, &b->layer[i].bias};
        for (int k = 0; k < 2 && from[k]->data; k++) {
            abar_tensor x = lab_host_copy(from[k]), y = lab_host_copy(to[k]);
            lab_check(a, what, x.data, y.data, abar_tensor_count(&x), exact, rounded);
            free(x.data);
            free(y.data);
        }
    }
}

/* A state tensor as doubles that the caller frees. */
static double *read_state(lab *l, const char *name, int64_t *n)
{
    lab_state s;
    lab_state_take(l, &s);
    const abar_tensor *t = lab_state_find(&s, "%s", name);
    if (!t) fail_msg("there is no %s", name);
    *n = abar_tensor_count(t);
    double *copy = malloc((size_t)*n * sizeof *copy);
    for (int64_t i = 0; i < *n; i++) copy[i] = lab_get(t, i);
    lab_state_drop(&s);
    return copy;
}

static double dot(int64_t n, const double *x, const double *y)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* ---- identities ---------------------------------------------------------------------------------------------------------- */

static void kbfgs_first_step_is_foof_with_the_root_of_the_damping(void **state)
{
    lab own, foof;
    start(&own, *state, "damping=0.25", 3);
    start(&foof, *state, "damping=0.25", 3);
    lab_optimizer(&foof, "foof", "damping=0.5 tcov=1 tinv=1");
    lab_draw_batch(&own);
    lab_draw_batch(&foof);
    lab_observe(&own);
    lab_observe(&foof);
    lab_step(&own, 1.0);
    lab_step(&foof, 1.0);
    check_weights(&own, &foof, "the first step", 1e-12, 1e-5);
    second_pass(&own, true);
    check_weights(&own, &foof, "behind the second pass", 1e-12, 1e-5);
    lab_close(&own);
    lab_close(&foof);
}

/* Pairs that all fit are the matrix they make. */
static void kbfgs_with_all_pairs_is_kbfgs(void **state)
{
    lab whole, pairs;
    start(&whole, *state, "damping=0.3 momentum=0.9 weight-decay=0.01", 4);
    start(&pairs, *state, "damping=0.3 momentum=0.9 weight-decay=0.01 kbfgs-pairs=20", 4);
    for (int k = 0; k < 12; k++) {
        take_step(&whole);
        take_step(&pairs);
        check_weights(&whole, &pairs, "all pairs", 1e-10, 1e-4);
    }
    lab_close(&whole);
    lab_close(&pairs);
}

/* The pair that is kept is the damped one: H y = s, sT y >= sqrt(lambda) sT s. */
static void kbfgs_inverse_maps_the_newest_difference_to_its_step(void **state)
{
    const double root = sqrt(0.2);
    lab whole, pairs;
    start(&whole, *state, "damping=0.2", 5);
    start(&pairs, *state, "damping=0.2 kbfgs-pairs=1", 5);
    take_step(&whole);
    take_step(&pairs);
    int64_t n, n_pair;
    double *h = read_state(&whole, "curvature.fc.H_p", &n), *pair = read_state(&pairs, "curvature.fc.pairs", &n_pair);
    const int64_t out = n_pair / 2;
    const double *s = pair, *y = pair + out;
    double found[4];
    assert_int_equal(n, out * out);
    assert_int_equal(out, 4);
    for (int64_t i = 0; i < out; i++) found[i] = dot(out, h + i * out, y);
    lab_check(&whole, "H y = s", found, s, out, 1e-12, 1e-5);
    assert_true(dot(out, s, y) >= (1.0 - 1e-5) * root * dot(out, s, s));
    assert_true(dot(out, s, y) >= 0.2 * dot(out, y, y) * fmin(1.0, root) * (1.0 - 1e-5)); /* H was I */
    free(h);
    free(pair);
    lab_close(&whole);
    lab_close(&pairs);
}

/* The difference is small beside the gradients that it is taken from: as long as rounding of them may be. */
static void kbfgs_learns_nothing_from_small_differences_of_large_gradients(void **state)
{
    for (int large = 0; large < 2; large++) {
        lab l;
        int64_t n;
        start(&l, *state, "damping=0.2", 5);
        lab_draw_batch(&l);
        const abar_tensor *p = &l.layer[0].p;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = 0; i < abar_tensor_count(p); i++) lab_set(p, i, (large ? 1e7 : 2.0) - pass);
            lab_observe(&l);
            if (pass == 0) lab_step(&l, 0.1);
        }
        NEED(&l, abar_optim_end_pass(l.optim, true, 1.0, NULL));
        double *h = read_state(&l, "curvature.fc.H_p", &n), away = 0.0;
        for (int64_t i = 0; i < n; i++) away = fmax(away, fabs(h[i] - (i % 5 == 0 ? 1.0 : 0.0)));
        assert_true(large ? away == 0.0 : away > 1e-3);
        free(h);
        lab_close(&l);
    }
}

static void kbfgs_inverses_are_symmetric_and_positive(void **state)
{
    static const char *const names[] = {"curvature.fc.H_p", "curvature.fc.H_a", "curvature.grouped#1.H_p",
                                        "curvature.grouped#1.H_a"};
    lab l;
    start(&l, *state, "damping=0.3 momentum=0.9", 6);
    for (int k = 0; k < 15; k++) take_step(&l);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t n;
        double *h = read_state(&l, names[i], &n), v[64];
        const int64_t d = (int64_t)(sqrt((double)n) + 0.5);
        assert_int_equal(d * d, n);
        double off = 0.0, size = sqrt(dot(n, h, h));
        for (int64_t r = 0; r < d; r++)
            for (int64_t c = 0; c < d; c++) off = fmax(off, fabs(h[r * d + c] - h[c * d + r]));
        assert_true(off <= 1e-5 * size);
        for (int k = 0; k < 50; k++) {
            double value = 0.0;
            for (int64_t r = 0; r < d; r++) v[r] = lab_draw(&l);
            for (int64_t r = 0; r < d; r++) value += v[r] * dot(d, h + r * d, v);
            assert_true(value > 0.0);
        }
        free(h);
    }
    lab_close(&l);
}

/* With one batch for ever A does not change, and the inverse that it begins with stays. */
static void kbfgs_inverse_of_activations_is_a_fixed_point(void **state)
{
    lab l;
    int64_t n, again;
    start(&l, *state, "damping=0.3 stat-decay=0.7", 7);
    lab_draw_batch(&l);
    double *first = NULL;
    for (int k = 0; k < 6; k++) {
        for (int pass = 0; pass < 2; pass++) {
            lab_observe(&l);
            if (pass == 0) lab_step(&l, 0.01);
        }
        NEED(&l, abar_optim_end_pass(l.optim, true, 1.0, NULL));
        double *now = read_state(&l, "curvature.grouped#0.H_a", &again);
        if (!first) {
            first = read_state(&l, "curvature.grouped#0.H_a", &n);
        } else {
            lab_check(&l, "H_a", now, first, n, 1e-10, 1e-4);
        }
        free(now);
    }
    free(first);
    lab_close(&l);
}

/* ---- second passes that fail ------------------------------------------------------------------------------------------------
 */

static void assert_state(lab *l, const lab_state *before, const char *what)
{
    lab_state now;
    lab_state_take(l, &now);
    const char *changed = lab_state_changed(before, &now);
    if (changed && strcmp(changed, "curvature.steps") != 0) fail_msg("%s: %s changed", what, changed);
    lab_state_drop(&now);
}

typedef enum failure { LOSS, INPUT, GRADIENT, SKIPPED, FAILURES } failure;

/* A step that is undone, in one way or another. */
static void fail_step(lab *l, failure how)
{
    lab_state before;
    bool undone = how == SKIPPED;
    lab_state_take(l, &before);
    lab_draw_batch(l);
    lab_observe(l);
    assert_false(lab_step(l, 0.1).skipped);
    lab_draw_batch(l);
    if (how == INPUT) lab_set(&l->layer[2].x, 3, INFINITY);
    if (how == GRADIENT) lab_set(&l->layer[0].p, 2, NAN);
    lab_observe(l);
    if (how == SKIPPED)
        abar_optim_skip(l->optim);
    else
        NEED(l, abar_optim_end_pass(l->optim, how != LOSS, 1.0, &undone));
    assert_true(undone);
    assert_false(abar_optim_wants_pass(l->optim));
    assert_state(l, &before, "undone");
    lab_state_drop(&before);
}

static void kbfgs_step_whose_second_pass_fails_is_undone(void **state)
{
    static const char *const variants[] = {"damping=0.3 momentum=0.9 weight-decay=0.1", "damping=0.3 kbfgs-pairs=3"};
    for (int v = 0; v < 2; v++)
        for (int at = 0; at < 3; at++) { /* the first step, too */
            lab l, other;
            start(&l, *state, variants[v], 8);
            start(&other, *state, variants[v], 8);
            for (int k = 0; k < 5; k++) {
                for (failure how = LOSS; k == at && how < FAILURES; how++) fail_step(&l, how);
                for (int i = 0; k == at && i < 2 * FAILURES; i++) lab_draw_batch(&other); /* which it does not see */
                take_step(&l);
                take_step(&other);
                check_weights(&l, &other, "after a step that was undone", 0.0, 0.0);
            }
            lab_close(&l);
            lab_close(&other);
        }
}

static void kbfgs_undone_step_is_reported_as_skipped(void **state)
{
    lab l;
    start(&l, *state, "damping=0.3", 9);
    take_step(&l);
    lab_draw_batch(&l);
    lab_observe(&l);
    lab_step(&l, 0.1);
    assert_false(abar_optim_note(l.optim, 1)->skipped);
    assert_true(second_pass(&l, false));
    assert_true(abar_optim_note(l.optim, 1)->skipped);
    assert_int_equal(abar_optim_steps(l.optim), 2);
    lab_close(&l);
}

/* ---- other faults -------------------------------------------------------------------------------------------------------- */

static void kbfgs_skipped_step_wants_no_second_pass_and_changes_nothing(void **state)
{
    lab l;
    lab_state before;
    start(&l, *state, "damping=0.3 momentum=0.9", 10);
    for (int k = 0; k < 4; k++) {
        lab_state_take(&l, &before);
        lab_draw_batch(&l);
        lab_set(&l.layer[1].gw, 0, k % 2 ? NAN : INFINITY);
        lab_observe(&l);
        assert_true(lab_step(&l, 0.1).skipped);
        assert_false(abar_optim_wants_pass(l.optim));
        assert_state(&l, &before, "skipped");
        lab_state_drop(&before);
        take_step(&l);
    }
    lab_close(&l);
}

/* A map whose first pass is not finite learns nothing from it; the others do. */
static void kbfgs_statistics_that_are_not_finite_are_dropped(void **state)
{
    for (int at = 0; at < 2; at++) {
        lab l;
        start(&l, *state, "damping=0.3 momentum=0.9", 11);
        for (int k = 0; k < 5; k++) {
            lab_draw_batch(&l);
            if (k == at) lab_set(&l.layer[0].x, 1, NAN);
            lab_observe(&l);
            assert_false(lab_step(&l, 0.1).skipped);
            assert_false(second_pass(&l, true));
        }
        assert_int_equal(lab_map(&l, "fc", 0).dropped, 1);
        assert_int_equal(lab_map(&l, "fc", 0).commits, 4);
        assert_int_equal(lab_map(&l, "tokens", 0).dropped, 0);
        assert_int_equal(lab_map(&l, "tokens", 0).commits, 5);
        lab_state s;
        lab_state_take(&l, &s);
        assert_null(lab_state_not_finite(&s));
        lab_state_drop(&s);
        lab_close(&l);
    }
}

/* Zero activations, output gradients and gradients: singular factors, no differences. */
static void kbfgs_zeros_stay_finite(void **state)
{
    lab l;
    lab_state s;
    start(&l, *state, "damping=1e-8 weight-decay=0.01 kbfgs-decay=0", 12);
    for (int k = 0; k < 6; k++) {
        lab_draw_batch(&l);
        for (int i = 0; i < LAYERS; i++) {
            if (k != 1) memset(l.layer[i].x.data, 0, abar_tensor_bytes(&l.layer[i].x));
            memset(l.layer[i].p.data, 0, abar_tensor_bytes(&l.layer[i].p));
            memset(l.layer[i].gw.data, 0, abar_tensor_bytes(&l.layer[i].gw));
        }
        lab_observe(&l);
        assert_false(lab_step(&l, 0.01).skipped);
        lab_observe(&l);
        NEED(&l, abar_optim_end_pass(l.optim, true, 1.0, NULL));
    }
    lab_state_take(&l, &s);
    assert_null(lab_state_not_finite(&s));
    lab_state_drop(&s);
    lab_close(&l);
}

/* Parameters without a gradient do not move; a map without its weight's learns nothing. */
static void kbfgs_parameter_without_gradient_is_left_alone(void **state)
{
    lab l;
    start(&l, *state, "damping=0.3 momentum=0.9 weight-decay=0.1", 13);
    take_step(&l);
    abar_tensor *const frozen[2] = {&l.layer[1].weight, &l.layer[0].bias}; /* parameters 2 and 1 */
    NEED(&l, abar_optim_set_param(l.optim, 2, frozen[0]->data, NULL, 1.0, 0.1));
    NEED(&l, abar_optim_set_param(l.optim, 1, frozen[1]->data, NULL, 1.0, 0.1));
    abar_tensor before[2] = {lab_host_copy(frozen[0]), lab_host_copy(frozen[1])};
    for (int k = 0; k < 3; k++) take_step(&l);
    for (int i = 0; i < 2; i++) {
        abar_tensor after = lab_host_copy(frozen[i]);
        assert_memory_equal(after.data, before[i].data, abar_tensor_bytes(&after));
        free(after.data);
        free(before[i].data);
    }
    assert_int_equal(lab_map(&l, "tokens", 0).commits, 1);
    assert_int_equal(lab_map(&l, "fc", 0).commits, 4);
    lab_close(&l);
}

static void kbfgs_extreme_numbers_stay_finite(void **state)
{
    static const double sizes[] = {1e-30, 1e-12, 1e12, 1e18};
    for (int i = 0; i < 4; i++) {
        lab l;
        lab_state s;
        start(&l, *state, "damping=0.3 momentum=0.9", 14);
        for (int k = 0; k < 8; k++) {
            lab_draw_batch(&l);
            if (k % 2)
                for (int64_t e = 0; e < abar_tensor_count(&l.layer[0].x); e++)
                    lab_set(&l.layer[0].x, e, sizes[i] * lab_get(&l.layer[0].x, e));
            if (k % 3 == 1)
                for (int64_t e = 0; e < abar_tensor_count(&l.layer[0].p); e++)
                    lab_set(&l.layer[0].p, e, sizes[i] * lab_get(&l.layer[0].p, e));
            lab_observe(&l);
            if (lab_step(&l, 1e-3).skipped) continue;
            lab_observe(&l);
            NEED(&l, abar_optim_end_pass(l.optim, true, 1.0, NULL));
        }
        lab_state_take(&l, &s);
        const char *bad = lab_state_not_finite(&s);
        if (bad) fail_msg("size %g: %s is not finite", sizes[i], bad);
        lab_state_drop(&s);
        lab_close(&l);
    }
}

/* ---- accumulation and state ---------------------------------------------------------------------------------------------- */

static void observe_in_parts(lab *l)
{
    for (int i = 0; i < LAYERS; i++) {
        lab_observe_layer(l, i, 0, 1, 1.0, 1.0);
        lab_observe_layer(l, i, 1, EXAMPLES - 1, 1.0, 1.0);
    }
}

static void kbfgs_micro_batches_are_one_batch(void **state)
{
    lab whole, parts;
    start(&whole, *state, "damping=0.3 momentum=0.9", 15);
    start(&parts, *state, "damping=0.3 momentum=0.9", 15);
    for (int k = 0; k < 6; k++) {
        take_step(&whole);
        for (int pass = 0; pass < 2; pass++) {
            lab_draw_batch(&parts);
            if (pass == 1 && k == 2) { /* a second pass that is begun anew */
                lab_observe_layer(&parts, 0, 0, 2, 1.0, 1.0);
                abar_optim_forget(parts.optim);
            }
            observe_in_parts(&parts);
            if (pass == 0) lab_step(&parts, 0.1);
        }
        NEED(&parts, abar_optim_end_pass(parts.optim, true, 1.0, NULL));
        check_weights(&parts, &whole, "micro-batches", 1e-11, 1e-4);
    }
    lab_close(&whole);
    lab_close(&parts);
}

/* A loss scale that becomes known at the step, or at the end of the second pass, is undone. */
static void kbfgs_loss_scale_is_taken_off_both_passes(void **state)
{
    lab plain, scaled;
    start(&plain, *state, "damping=0.3", 16);
    start(&scaled, *state, "damping=0.3", 16);
    for (int k = 0; k < 4; k++) {
        take_step(&plain);
        for (int pass = 0; pass < 2; pass++) {
            lab_draw_batch(&scaled);
            for (int i = 0; i < LAYERS; i++)
                for (int64_t e = 0; e < abar_tensor_count(&scaled.layer[i].p); e++)
                    lab_set(&scaled.layer[i].p, e, 1024.0 * lab_get(&scaled.layer[i].p, e));
            lab_observe(&scaled);
            if (pass == 1) break;
            lab_load_gradients(&scaled);
            const abar_step_config step = {.size = sizeof step, .lr = 0.1, .observed_scale = 1.0 / 1024.0};
            NEED(&scaled, abar_optim_step(scaled.optim, &step, NULL));
        }
        NEED(&scaled, abar_optim_end_pass(scaled.optim, true, 1.0 / 1024.0, NULL));
        check_weights(&scaled, &plain, "loss scale", 1e-11, 1e-4);
    }
    lab_close(&plain);
    lab_close(&scaled);
}

static const char *const variants[] = {"damping=0.3 momentum=0.9 weight-decay=0.01", "damping=0.1 kbfgs-pairs=3 momentum=0.5",
                                       "damping=0.3 kbfgs-decay=0 stat-decay=0.5"};
enum { VARIANTS = sizeof variants / sizeof *variants };

static void kbfgs_state_put_back_goes_on_bit_for_bit(void **state)
{
    for (int v = 0; v < VARIANTS; v++) {
        lab whole, fresh;
        lab_state taken, a, b;
        start(&whole, *state, variants[v], 17);
        start(&fresh, *state, variants[v], 18);
        for (int k = 0; k < 6; k++) take_step(&whole);
        take_step(&fresh); /* what it has seen must not matter */
        lab_state_take(&whole, &taken);
        lab_state_put(&fresh, &taken);
        fresh.noise = whole.noise;
        for (int k = 0; k < 6; k++) take_step(&whole);
        for (int k = 0; k < 6; k++) take_step(&fresh);
        lab_state_take(&whole, &a);
        lab_state_take(&fresh, &b);
        const char *changed = lab_state_changed(&a, &b);
        if (changed) fail_msg("%s: %s differs", variants[v], changed);
        lab_state_drop(&taken);
        lab_state_drop(&a);
        lab_state_drop(&b);
        lab_close(&whole);
        lab_close(&fresh);
    }
}

static void kbfgs_memory_is_as_planned_and_steps_allocate_none(void **state)
{
    for (int v = 0; v < VARIANTS; v++) {
        lab l;
        lab_request request;
        size_t plan, names = 0;
        lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 1);
        lab_request_make(&l, "kbfgs", variants[v], &request);
        for (int i = 0; i < request.config.n_params; i++) names += strlen(request.params[i].name) + 1;
        NEED(&l, abar_optim_plan_bytes(l.dev, &request.config, &plan));
        const size_t before = abar_context_memory(l.ctx).now;
        NEED(&l, abar_optim_create(l.dev, &request.config, &l.optim));
        assert_int_equal(abar_context_memory(l.ctx).now - before, abar_optim_bytes(l.optim));
        assert_in_range(abar_optim_bytes(l.optim) - plan, names, names + 64);
        lab_request_drop(&request);
        const uint64_t allocations = abar_context_memory(l.ctx).allocations;
        for (int k = 0; k < 4; k++) take_step(&l);
        fail_step(&l, LOSS);
        abar_optim_measure(l.optim);
        take_step(&l);
        assert_true(isfinite(lab_map(&l, "fc", 0).cosine) && lab_map(&l, "fc", 0).ratio > 0.0);
        assert_int_equal(abar_context_memory(l.ctx).allocations, allocations);
        lab_close(&l);
    }
}

/* ---- misuse -------------------------------------------------------------------------------------------------------------- */

static abar_status ignore(void *user, const char *name, const abar_tensor *t)
{
    (void)user, (void)name, (void)t;
    return ABAR_OK;
}

static void kbfgs_step_without_its_second_pass_is_refused(void **state)
{
    lab l;
    const abar_step_config step = {.size = sizeof step, .lr = 0.1};
    start(&l, *state, "damping=0.3", 19);
    assert_int_equal(abar_optim_end_pass(l.optim, true, 1.0, NULL), ABAR_E_STATE);
    lab_draw_batch(&l);
    lab_observe(&l);
    lab_step(&l, 0.1);
    assert_int_equal(abar_optim_step(l.optim, &step, NULL), ABAR_E_STATE);
    assert_non_null(strstr(abar_context_error(l.ctx), "abar_optim_end_pass"));
    assert_int_equal(abar_optim_visit(l.optim, ignore, NULL), ABAR_E_STATE);
    second_pass(&l, true);
    take_step(&l);
    lab_close(&l);
}

static void kbfgs_settings_it_has_no_place_for_are_refused(void **state)
{
    static const char *const bad[][2] = {{"rule=adamw", "kbfgs+adamw"},
                                         {"rule=muon", "kbfgs+muon"},
                                         {"momentum=0.9 nesterov=true", "--nesterov"},
                                         {"decay=decoupled", "--decay decoupled"}};
    lab l;
    lab_request request;
    lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lab_request_make(&l, "kbfgs", bad[i][0], &request);
        assert_int_equal(abar_optim_create(l.dev, &request.config, &l.optim), ABAR_E_ARGUMENT);
        if (!strstr(abar_context_error(l.ctx), bad[i][1])) fail_msg("%s: %s", bad[i][0], abar_context_error(l.ctx));
        lab_request_drop(&request);
    }
    lab_request_try(&l, "kbfgs", "damping=1", &request);
    assert_true(request.refused);
    lab_request_drop(&request);
    lab_close(&l);
}

static void kbfgs_is_refused_between_ranks(void **state)
{
    lab l;
    start(&l, *state, "damping=0.3", 20);
    double *pending = calloc((size_t)abar_optim_pending_count(l.optim), sizeof *pending);
    assert_int_equal(abar_optim_pending_read(l.optim, pending), ABAR_E_UNSUPPORTED);
    assert_non_null(strstr(abar_context_error(l.ctx), "kbfgs"));
    free(pending);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(kbfgs_first_step_is_foof_with_the_root_of_the_damping),
        ON_BOTH(kbfgs_with_all_pairs_is_kbfgs),
        ON_BOTH(kbfgs_inverse_maps_the_newest_difference_to_its_step),
        ON_BOTH(kbfgs_learns_nothing_from_small_differences_of_large_gradients),
        ON_BOTH(kbfgs_inverses_are_symmetric_and_positive),
        ON_BOTH(kbfgs_inverse_of_activations_is_a_fixed_point),
        ON_BOTH(kbfgs_step_whose_second_pass_fails_is_undone),
        ON_BOTH(kbfgs_undone_step_is_reported_as_skipped),
        ON_BOTH(kbfgs_skipped_step_wants_no_second_pass_and_changes_nothing),
        ON_BOTH(kbfgs_statistics_that_are_not_finite_are_dropped),
        ON_BOTH(kbfgs_zeros_stay_finite),
        ON_BOTH(kbfgs_parameter_without_gradient_is_left_alone),
        ON_BOTH(kbfgs_extreme_numbers_stay_finite),
        ON_BOTH(kbfgs_micro_batches_are_one_batch),
        ON_BOTH(kbfgs_loss_scale_is_taken_off_both_passes),
        ON_BOTH(kbfgs_state_put_back_goes_on_bit_for_bit),
        ON_BOTH(kbfgs_memory_is_as_planned_and_steps_allocate_none),
        ON_BOTH(kbfgs_step_without_its_second_pass_is_refused),
        ON_BOTH(kbfgs_settings_it_has_no_place_for_are_refused),
        ON_BOTH(kbfgs_is_refused_between_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
