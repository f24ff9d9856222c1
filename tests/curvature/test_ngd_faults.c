/* What exact natural gradient does when numbers go wrong (methods.md section 9, optimizers.md section 9), when gradients are
 * missing, and what it refuses. */
#include "curvature_lab.h"

static const lab_shape two[] = {
    {.name = "fc", .in = 4, .out = 3, .bias = true},
    {.name = "image",
     .in = 2,
     .out = 2,
     .image = {4, 4},
     .bias = true,
     .window = {.kernel = {3, 3}, .stride = {1, 1}, .pad = {1, 1}, .dilation = {1, 1}, .groups = 1}},
};

/* Whether what was taken off the weights of a layer is its gradient. */
static bool is_gradient(const lab *l, int layer)
{
    double *taken = lab_taken(l, layer, 0), *g = lab_gradient(l, layer, 0);
    const int64_t n = l->layer[layer].outputs * l->layer[layer].columns;
    const bool same = lab_difference(taken, g, n) < 1e-6;
    free(taken);
    free(g);
    return same;
}

static void check_finite(lab *l)
{
    lab_state kept;
    lab_state_take(l, &kept);
    assert_null(lab_state_not_finite(&kept));
    lab_state_drop(&kept);
}

static void rows_that_are_not_finite_leave_the_gradients_of_their_block(void **state)
{
    static const double bad[] = {NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        const bool layer = i >= 2;
        lab l;
        lab_open(&l, *state, NULL, two, 2, 5, 3);
        lab_optimizer(&l, "ngd", layer ? "fisher-blocks=layer" : "");
        lab_new_batch(&l);
        lab_set(&l.layer[0].x, 7, bad[i % 2]);
        lab_observed_step(&l);
        assert_true(is_gradient(&l, 0));
        assert_int_equal(is_gradient(&l, 1), !layer);
        assert_int_equal(lab_map(&l, "fc", 0).dropped, 1);
        assert_int_equal(lab_map(&l, "image", 0).dropped, !layer);
        assert_int_equal(lab_map(&l, "fc", 0).commits, 0);
        lab_new_batch(&l); /* and the next step is as good as ever */
        lab_observed_step(&l);
        assert_false(is_gradient(&l, 0));
        assert_int_equal(lab_map(&l, "fc", 0).commits, 1);
        check_finite(&l);
        lab_close(&l);
    }
}

static void a_gradient_that_is_not_finite_skips_the_step(void **state)
{
    lab l;
    lab_state before, after;
    lab_open(&l, *state, NULL, two, 2, 5, 3);
    lab_optimizer(&l, "ngd", "rule=sgd momentum=0.9");
    lab_new_batch(&l);
    lab_observed_step(&l);
    lab_state_take(&l, &before);
    lab_set(&l.layer[1].gw, 3, NAN);
    lab_observe(&l);
    assert_true(lab_step(&l, 1.0).skipped);
    lab_state_take(&l, &after);
    assert_string_equal(lab_state_changed(&before, &after), "curvature.steps");
    lab_state_drop(&before);
    lab_state_drop(&after);
    lab_new_batch(&l); /* what was observed for it is forgotten */
    lab_observed_step(&l);
    assert_int_equal(lab_map(&l, "fc", 0).commits, 2);
    lab_close(&l);
}

/* A caller that skips a step forgets its rows, those of further passes too. */
static void a_skipped_step_forgets_its_passes(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, two, 2, 5, 3);
    lab_optimizer(&l, "ngd", "fisher=mc:2");
    lab_new_batch(&l);
    NEED(&l, abar_optim_begin_rows(l.optim, 0));
    lab_observe(&l);
    abar_optim_skip(l.optim);
    assert_false(abar_optim_observes(l.optim));
    for (int i = 0; i < 2; i++) {
        NEED(&l, abar_optim_begin_rows(l.optim, i));
        lab_observe(&l);
    }
    assert_false(lab_step(&l, 1.0).skipped);
    assert_int_equal(lab_map(&l, "fc", 0).commits, 1);
    lab_close(&l);
}

static void fill_with(const abar_tensor *t, double value)
{
    for (int64_t i = 0; t->ndim && i < abar_tensor_count(t); i++) lab_set(t, i, value);
}

static void zeros_stay_zeros(void **state)
{
    static const char *const options[] = {"", "fisher=mc:1"};
    for (int i = 0; i < 4; i++) { /* rows of zeros too, or only the gradient */
        lab l;
        lab_open(&l, *state, NULL, two, 2, 5, 3);
        lab_optimizer(&l, "ngd", options[i % 2]);
        lab_new_batch(&l);
        for (int j = 0; j < l.n; j++) {
            if (i < 2) fill_with(&l.layer[j].p, 0.0);
            fill_with(&l.layer[j].gw, 0.0);
            fill_with(&l.layer[j].gb, 0.0);
        }
        if (i % 2 == 0 && i >= 2) { /* their mean is 0: two equal examples of opposite signs, and others of 0 */
            for (int j = 0; j < l.n; j++) {
                lab_layer *y = &l.layer[j];
                const int64_t x = abar_tensor_count(&y->x) / 5, p = abar_tensor_count(&y->p) / 5;
                for (int64_t e = 0; e < x; e++) lab_set(&y->x, x + e, lab_get(&y->x, e));
                for (int64_t e = 0; e < p; e++) lab_set(&y->p, p + e, -lab_get(&y->p, e));
                for (int64_t e = 2 * p; e < 5 * p; e++) lab_set(&y->p, e, 0.0);
            }
        }
        if (i % 2 == 1) NEED(&l, abar_optim_begin_rows(l.optim, 0));
        lab_observe(&l);
        assert_false(lab_step(&l, 1.0).skipped);
        for (int j = 0; j < l.n; j++) {
            double *taken = lab_taken(&l, j, 0);
            for (int64_t e = 0; e < l.layer[j].outputs * l.layer[j].columns; e++) assert_true(fabs(taken[e]) < 1e-10);
            free(taken);
        }
        assert_int_equal(lab_map(&l, "fc", 0).kept, 0);
        lab_close(&l);
    }
}

/* Equal examples: K is singular, and its pivots are exactly 0 beside a damping that rounding loses. */
static void a_singular_matrix_climbs_the_ladder(void **state)
{
    const lab_shape shape = {.name = "x", .in = 1, .out = 1};
    lab l;
    lab_open(&l, *state, NULL, &shape, 1, 4, 3);
    lab_optimizer(&l, "ngd", "damping=1e-30");
    lab_new_batch(&l);
    fill_with(&l.layer[0].x, 1.0);
    fill_with(&l.layer[0].p, 1.0);
    fill_with(&l.layer[0].gw, 4.0);
    lab_observed_step(&l);
    const abar_map_info map = lab_map(&l, "x", 0);
    assert_true(map.raised >= 1 && map.kept == 0);
    assert_true(map.damping >= 1e-8 && map.damping < 1e-6);
    double *taken = lab_taken(&l, 0, 0); /* g / (g^2 + rho) */
    assert_true(fabs(taken[0] - 0.25) < 1e-6);
    free(taken);
    lab_close(&l);
}

/* Numbers at the border of float32: the gradient is kept where its new form would overflow. */
static void nothing_that_overflows_reaches_the_weights(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, two, 2, 5, 3);
    lab_optimizer(&l, "ngd", "damping=1e-30 fisher=mc:1");
    lab_new_batch(&l);
    for (int j = 0; j < l.n; j++) {
        fill_with(&l.layer[j].p, 0.0);
        for (int64_t i = 0; i < abar_tensor_count(&l.layer[j].gw); i++)
            lab_set(&l.layer[j].gw, i, 1e20 * lab_get(&l.layer[j].gw, i));
    }
    NEED(&l, abar_optim_begin_rows(l.optim, 0));
    lab_observe(&l);
    assert_false(lab_step(&l, 1e-20).skipped);
    assert_int_equal(lab_map(&l, "fc", 0).kept, abar_device_dtype(l.dev) != ABAR_F64);
    check_finite(&l);
    for (int j = 0; j < l.n; j++) {
        lab_fill(&l, &l.layer[j].x, 1e30);
        lab_fill(&l, &l.layer[j].p, 1e30);
    }
    NEED(&l, abar_optim_begin_rows(l.optim, 0));
    lab_observe(&l);
    assert_false(lab_step(&l, 1e-20).skipped);
    check_finite(&l);
    lab_close(&l);
}

/* ---- missing gradients ------------------------------------------------------------------------------------------------- */

/* A map whose weight has no gradient is not in F, nor is a bias without one. */
static void what_has_no_gradient_is_left_out(void **state)
{
    for (int part = 0; part < 2; part++) { /* the convolution's weight and bias, then its bias alone */
        lab a, b;
        lab_shape fewer[] = {two[0], two[1]};
        fewer[1].bias = false;
        lab_open(&a, *state, NULL, two, 2, 5, 3);
        lab_open(&b, *state, NULL, fewer, part == 0 ? 1 : 2, 5, 4);
        lab_optimizer(&a, "ngd", "damping=0.3 fisher=mc:1");
        lab_optimizer(&b, "ngd", "damping=0.3 fisher=mc:1");
        lab_new_batch(&a);
        for (int j = 0; j < b.n; j++) {
            const lab_layer *from = &a.layer[j];
            lab_layer *to = &b.layer[j];
            memcpy(to->x.data, from->x.data, abar_tensor_bytes(&from->x));
            memcpy(to->p.data, from->p.data, abar_tensor_bytes(&from->p));
            memcpy(to->gw.data, from->gw.data, abar_tensor_bytes(&from->gw));
            if (to->gb.ndim) memcpy(to->gb.data, from->gb.data, abar_tensor_bytes(&from->gb));
        }
        lab_clear_weights(&b);
        NEED(&a, abar_optim_begin_rows(a.optim, 0));
        NEED(&b, abar_optim_begin_rows(b.optim, 0));
        lab_observe(&a);
        lab_observe(&b);
        if (part == 0) NEED(&a, abar_optim_set_param(a.optim, 2, a.layer[1].weight.data, NULL, 1.0, 0.0));
        NEED(&a, abar_optim_set_param(a.optim, 3, a.layer[1].bias.data, NULL, 1.0, 0.0));
        lab_step(&a, 1.0);
        lab_step(&b, 1.0);
        double *x = lab_taken(&a, 0, 0), *y = lab_taken(&b, 0, 0), *conv = lab_taken(&a, 1, 0);
        lab_check(&a, "fc", x, y, 15, 1e-12, 1e-6);
        for (int64_t i = 0; i < 2 * 19; i++)
            if (part == 0 || i % 19 == 18) assert_true(conv[i] == 0.0);
        double *same = part == 1 ? lab_taken(&b, 1, 0) : NULL;
        for (int64_t i = 0; same && i < 2 * 18; i++)
            assert_true(fabs(conv[i / 18 * 19 + i % 18] - same[i]) <= 1e-4 * (1.0 + fabs(same[i])));
        free(x);
        free(y);
        free(conv);
        free(same);
        lab_close(&a);
        lab_close(&b);
    }
}

static void layers_that_are_left_out_keep_their_gradient(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, two, 2, 5, 3);
    lab_optimizer(&l, "ngd", "skip-layers=image");
    assert_int_equal(abar_optim_map_count(l.optim), 1);
    lab_new_batch(&l);
    lab_observed_step(&l);
    assert_true(is_gradient(&l, 1));
    assert_false(is_gradient(&l, 0));
    lab_close(&l);
}

/* Without any rows a step is that of the rule. */
static void a_step_that_was_not_observed_takes_the_gradient(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, two, 2, 5, 3);
    lab_optimizer(&l, "ngd", "");
    lab_new_batch(&l);
    lab_step(&l, 1.0);
    assert_true(is_gradient(&l, 0) && is_gradient(&l, 1));
    lab_close(&l);
}

/* ---- what is refused ---------------------------------------------------------------------------------------------------- */

static abar_status offer(lab *l, int64_t examples)
{
    lab_request request;
    lab_request_make(l, "ngd", "", &request);
    abar_layer layer = request.layers[0];
    const int64_t x[2] = {examples, 4}, p[2] = {examples, 3};
    abar_tensor input = abar_tensor_wrap(l->dev, NULL, abar_device_dtype(l->dev), 2, x), grad = input;
    NEED(l, abar_device_alloc(l->dev, abar_tensor_bytes(&input), &input.data));
    grad = abar_tensor_wrap(l->dev, NULL, abar_device_dtype(l->dev), 2, p);
    NEED(l, abar_device_alloc(l->dev, abar_tensor_bytes(&grad), &grad.data));
    layer.input = input;
    layer.output_grad = grad;
    const abar_status status = abar_optim_observe(l->optim, 0, &layer);
    abar_device_free(l->dev, input.data, abar_tensor_bytes(&input));
    abar_device_free(l->dev, grad.data, abar_tensor_bytes(&grad));
    lab_request_drop(&request);
    return status;
}

static void says(const lab *l, abar_status status, abar_status wanted, const char *part)
{
    assert_int_equal(status, wanted);
    if (!strstr(abar_context_error(l->ctx), part)) fail_msg("%s", abar_context_error(l->ctx));
}

static void micro_batches_and_ranks_are_refused(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, two, 1, 5, 3);
    lab_optimizer(&l, "ngd", "");
    assert_true(abar_method_takes_whole_batch("ngd") && !abar_method_takes_whole_batch("kfac"));
    assert_int_equal(offer(&l, 3), ABAR_OK);
    says(&l, offer(&l, 2), ABAR_E_STATE, "without accumulation");
    abar_optim_forget(l.optim);
    says(&l, offer(&l, 6), ABAR_E_ARGUMENT, "at most 5");
    assert_int_equal(offer(&l, 5), ABAR_OK);
    double numbers[64];
    assert_in_range(abar_optim_pending_count(l.optim), 1, 64);
    says(&l, abar_optim_pending_read(l.optim, numbers), ABAR_E_UNSUPPORTED, "one process");
    lab_close(&l);
}

static void steps_without_their_passes_are_refused(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, two, 2, 5, 3);
    lab_optimizer(&l, "ngd", "fisher=mc:2");
    lab_new_batch(&l);
    lab_load_gradients(&l);
    const abar_step_config step = {.size = sizeof step, .lr = 1.0};
    says(&l, abar_optim_step(l.optim, &step, NULL), ABAR_E_STATE, "0 of 2 further passes");
    NEED(&l, abar_optim_begin_rows(l.optim, 0));
    lab_observe(&l);
    says(&l, abar_optim_step(l.optim, &step, NULL), ABAR_E_STATE, "1 of 2 further passes");
    says(&l, abar_optim_begin_rows(l.optim, 2), ABAR_E_ARGUMENT, "no pass 2");
    NEED(&l, abar_optim_begin_rows(l.optim, 1));
    lab_observe(&l);
    NEED(&l, abar_optim_step(l.optim, &step, NULL));
    lab_optimizer(&l, "kfac", "");
    assert_int_equal(abar_optim_row_passes(l.optim), 0);
    says(&l, abar_optim_begin_rows(l.optim, 0), ABAR_E_ARGUMENT, "kfac needs 0");
    lab_close(&l);
}

static void too_much_is_refused_in_a_line(void **state)
{
    static const struct {
        const char *options, *part;
        int64_t examples;
        abar_status wanted;
    } cases[] = {{"", "config.examples is 0", 0, ABAR_E_ARGUMENT},
                 {"", "at most 4096", 4097, ABAR_E_ARGUMENT},
                 {"fisher=mc:10", "4100 rows of a batch of 410", 410, ABAR_E_ARGUMENT},
                 {"fisher=exact", "number of classes", 5, ABAR_E_ARGUMENT},
                 {"fisher=exact classes=1000", "lower --batch", 5, ABAR_E_ARGUMENT},
                 {"fisher=mc:0", "mc:S", 5, ABAR_E_ARGUMENT},
                 {"fisher=mc:1.5", "mc:S", 5, ABAR_E_ARGUMENT},
                 {"fisher=other", "takes empirical", 5, ABAR_E_ARGUMENT},
                 {"", "GiB and this machine has", 4096, ABAR_E_MEMORY}};
    lab l;
    lab_open(&l, *state, NULL, two, 2, 5, 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lab_request request;
        lab_request_make(&l, "ngd", cases[i].options, &request);
        request.config.examples = cases[i].examples;
        if (cases[i].wanted == ABAR_E_MEMORY) { /* a gradient of 10^8 numbers for each example; shapes are enough to see that */
            const int64_t weight[2] = {10000, 100000}, input[3] = {1, 4, 100000}, bias = 10000;
            request.layers[0].weight = request.params[0].value =
                abar_tensor_wrap(l.dev, NULL, abar_device_dtype(l.dev), 2, weight);
            request.layers[0].bias = request.params[1].value =
                abar_tensor_wrap(l.dev, NULL, abar_device_dtype(l.dev), 1, &bias);
            request.params[0].grad = request.params[0].value;
            request.params[1].grad = request.params[1].value;
            request.layers[0].input = abar_tensor_wrap(NULL, NULL, ABAR_F32, 3, input);
        }
        size_t bytes;
        says(&l, abar_optim_plan_bytes(l.dev, &request.config, &bytes), cases[i].wanted, cases[i].part);
        assert_null(strchr(abar_context_error(l.ctx), '\n'));
        lab_request_drop(&request);
    }
    lab_close(&l);
}

/* What create takes is what was planned, and a step takes nothing. */
static void memory_is_what_was_planned(void **state)
{
    static const char *const options[] = {"", "fisher=mc:3", "fisher=exact classes=4 fisher-blocks=layer"};
    for (int i = 0; i < 3; i++) {
        lab l;
        lab_request request;
        size_t planned;
        lab_open(&l, *state, NULL, two, 2, 5, 3);
        lab_request_make(&l, "ngd", options[i], &request);
        NEED(&l, abar_optim_plan_bytes(l.dev, &request.config, &planned));
        const size_t before = abar_context_memory(l.ctx).now;
        NEED(&l, abar_optim_create(l.dev, &request.config, &l.optim));
        const size_t held = abar_context_memory(l.ctx).now - before;
        assert_true(abar_optim_bytes(l.optim) >= planned && abar_optim_bytes(l.optim) - planned < 256); /* names */
        if (!l.dev->ops->stream) assert_int_equal(held, abar_optim_bytes(l.optim));
        lab_new_batch(&l);
        const uint64_t taken = abar_context_memory(l.ctx).allocations;
        for (int64_t pass = 0; pass < abar_optim_row_passes(l.optim); pass++) {
            NEED(&l, abar_optim_begin_rows(l.optim, pass));
            lab_observe(&l);
        }
        if (i == 0) lab_observe(&l);
        lab_step(&l, 1.0);
        if (!l.dev->ops->stream) assert_int_equal(abar_context_memory(l.ctx).allocations, taken);
        lab_request_drop(&request);
        lab_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(rows_that_are_not_finite_leave_the_gradients_of_their_block),
        ON_BOTH(a_gradient_that_is_not_finite_skips_the_step),
        ON_BOTH(a_skipped_step_forgets_its_passes),
        ON_BOTH(zeros_stay_zeros),
        ON_BOTH(a_singular_matrix_climbs_the_ladder),
        ON_BOTH(nothing_that_overflows_reaches_the_weights),
        ON_BOTH(what_has_no_gradient_is_left_out),
        ON_BOTH(layers_that_are_left_out_keep_their_gradient),
        ON_BOTH(a_step_that_was_not_observed_takes_the_gradient),
        ON_BOTH(micro_batches_and_ranks_are_refused),
        ON_BOTH(steps_without_their_passes_are_refused),
        ON_BOTH(too_much_is_refused_in_a_line),
        ON_BOTH(memory_is_what_was_planned),
    };
    const int skipped = lab_begin();
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
