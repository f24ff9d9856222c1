/* What a caller with a life of its own needs: tensors that move, gradients that are not there, scales that become known at the
 * step, batches that are thrown away, statistics that are joined over ranks. */
#include "optim/optim_fixture.h"

static const char *const devices[] = {"ref", "cpu"};
static const char *const rules[] = {"sgd", "adamw"};
/* every method, and what of it has numbers or triangles of its own */
static const char *const cases[][3] = {
    {"mac", "damping", "0.3"},  {"mac", "damping", "adaptive"},    {"smac", "damping", "0.01"}, {"foof", "damping", "0.1"},
    {"kfac", "kfac", "expand"}, {"kfac", "kfac-inverse", "eigen"}, {"eva", "damping", "0.01"},  {"lngd", "mu", "0.5"},
};
enum { CASES = sizeof cases / sizeof *cases, EXAMPLES = 12, PARAMS = 5, MAPS = 3 };

/* A linear layer (4 <- 3) with a bias, a convolution of two groups (4 <- 2 * (1, 2)) without, a parameter of no layer. */
enum { WEIGHT, BIAS, KERNEL, KERNEL_BIAS, OTHER };
static const int64_t shapes[PARAMS][4] = {{4, 3}, {4}, {4, 1, 1, 2}, {4}, {5}};
static const int dims[PARAMS] = {2, 1, 4, 1, 1};
static const char *const names[PARAMS] = {"fc.weight", "fc.bias", "conv.weight", "conv.bias", "scale"};

typedef struct outside {
    abar_context *ctx;
    abar_device *dev;
    abar_optim *optim;
    abar_optim_param params[PARAMS];
    abar_tensor input[2], output_grad[2]; /* (N, 3), (N, 4); (N, 2, 2, 4), (N, 4, 2, 3) */
    uint32_t noise;
} outside;

static double draw(outside *o)
{
    o->noise = o->noise * 1664525u + 1013904223u;
    return (double)(o->noise >> 8) / 8388608.0 - 1.0;
}

static abar_tensor tensor(outside *o, int ndim, const int64_t *dim)
{
    abar_tensor t = abar_tensor_wrap(o->dev, NULL, abar_device_dtype(o->dev), ndim, dim);
    t.data = calloc(1, abar_tensor_bytes(&t));
    assert_non_null(t.data);
    return t;
}

static void fill(outside *o, const abar_tensor *t)
{
    for (int64_t i = 0; i < abar_tensor_count(t); i++) fixture_set(t, i, draw(o));
}

/* A new batch with its gradients; any two of the same age get the same. */
static void draw_batch(outside *o)
{
    for (int i = 0; i < 2; i++) {
        fill(o, &o->input[i]);
        fill(o, &o->output_grad[i]);
    }
    for (int i = 0; i < PARAMS; i++) fill(o, &o->params[i].grad);
}

static void *method_config(const outside *o, const char *const setting[3])
{
    const abar_method *m = abar_method_find(setting[0]);
    void *config = calloc(1, m->config_size);
    assert_non_null(config);
    abar_options_default(m->options, config);
    assert_int_equal(abar_options_set(o->ctx, m->options, config, setting[1], setting[2]), ABAR_OK);
    return config;
}

static abar_layer layer(const outside *o, int weight)
{
    const abar_optim_param *p = &o->params[weight];
    abar_layer l = {.name = weight == WEIGHT ? "fc" : "conv",
                    .weight = p[0].value,
                    .weight_grad = p[0].grad,
                    .bias = p[1].value,
                    .bias_grad = p[1].grad,
                    .window = abar_window_unit()};
    if (weight == KERNEL) l.window = (abar_window){{1, 2}, {1, 1}, {0, 0}, {1, 1}, 2};
    return l;
}

static void make_optim(outside *o, const char *const setting[3], const char *rule)
{
    static const char *const common_settings[][2] = {{"tcov", "1"}, {"tinv", "2"}, {"stat-decay", "0.5"}};
    void *common = calloc(1, abar_curvature_config_size());
    abar_options_default(abar_curvature_options(), common);
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            abar_options_set(o->ctx, abar_curvature_options(), common, common_settings[i][0], common_settings[i][1]), ABAR_OK);
    void *config = method_config(o, setting);
    const abar_layer layers[] = {layer(o, WEIGHT), layer(o, KERNEL)};
    const abar_optim_config c = {.size = sizeof c,
                                 .rule = rule,
                                 .method = setting[0],
                                 .method_config = config,
                                 .curvature = common,
                                 .params = o->params,
                                 .n_params = PARAMS,
                                 .layers = layers,
                                 .n_layers = 2,
                                 .base_lr = 0.1};
    assert_int_equal(abar_optim_create(o->dev, &c, &o->optim), ABAR_OK);
    free(config);
    free(common);
}

static void open_one(outside *o, const char *device, const char *const setting[3], const char *rule)
{
    *o = (outside){.noise = 3};
    const int64_t n = EXAMPLES;
    assert_int_equal(abar_context_create(NULL, &o->ctx), ABAR_OK);
    assert_int_equal(abar_device_open(o->ctx, device, NULL, &o->dev), ABAR_OK);
    o->input[0] = tensor(o, 2, (const int64_t[]){n, 3});
    o->output_grad[0] = tensor(o, 2, (const int64_t[]){n, 4});
    o->input[1] = tensor(o, 4, (const int64_t[]){n, 2, 2, 4});
    o->output_grad[1] = tensor(o, 4, (const int64_t[]){n, 4, 2, 3});
    for (int i = 0; i < PARAMS; i++) {
        o->params[i] = (abar_optim_param){.name = names[i],
                                          .value = tensor(o, dims[i], shapes[i]),
                                          .grad = tensor(o, dims[i], shapes[i]),
                                          .lr_scale = 1.0,
                                          .weight_decay = 0.01};
        fill(o, &o->params[i].value);
    }
    make_optim(o, setting, rule);
}

static void close_one(outside *o)
{
    abar_optim_destroy(o->optim);
    abar_device_close(o->dev);
    assert_int_equal(abar_context_memory(o->ctx).now, 0);
    abar_context_destroy(o->ctx);
    for (int i = 0; i < PARAMS; i++) {
        free(o->params[i].value.data);
        free(o->params[i].grad.data);
    }
    for (int i = 0; i < 2; i++) {
        free(o->input[i].data);
        free(o->output_grad[i].data);
    }
}

/* Examples first .. first + count - 1 of a tensor whose first dimension they are. */
static abar_tensor slice(const abar_tensor *t, int64_t first, int64_t count)
{
    abar_tensor s = *t;
    s.data = (char *)t->data + (size_t)(first * t->stride[0]) * abar_dtype_size(t->dtype);
    s.dim[0] = count;
    return s;
}

static void observe(outside *o, int64_t first, int64_t count, double scale)
{
    for (int i = 0; i < 2; i++) {
        const abar_layer l = {.input = slice(&o->input[i], first, count),
                              .output_grad = slice(&o->output_grad[i], first, count),
                              .output_grad_scale = scale};
        assert_int_equal(abar_optim_observe(o->optim, i, &l), ABAR_OK);
    }
}

static void step_scaled(outside *o, double observed_scale)
{
    const abar_step_config step = {.size = sizeof step, .lr = 0.1, .observed_scale = observed_scale};
    abar_step_report report = {.size = sizeof report};
    assert_int_equal(abar_optim_step(o->optim, &step, &report), ABAR_OK);
    assert_false(report.skipped);
}

static void set(outside *o, int i, void *value, void *grad)
{
    assert_int_equal(abar_optim_set_param(o->optim, i, value, grad, o->params[i].lr_scale, o->params[i].weight_decay), ABAR_OK);
}

static void set_grad(outside *o, int i, bool there)
{
    set(o, i, o->params[i].value.data, there ? o->params[i].grad.data : NULL);
}

static void assert_close(const outside *a, const outside *b, int param, double tolerance, const char *what)
{
    const abar_tensor *x = &a->params[param].value, *y = &b->params[param].value;
    for (int64_t i = 0; i < abar_tensor_count(x); i++) {
        const double p = fixture_get(x, i), q = fixture_get(y, i);
        if (!(fabs(p - q) <= tolerance * fmax(1.0, fabs(q))))
            fail_msg("%s: %s[%d] is %g, not %g", what, names[param], (int)i, p, q);
    }
}

static double tolerance(const char *device) { return strcmp(device, "ref") == 0 ? 1e-12 : 2e-5; }

/* ---- moving tensors --------------------------------------------------------------------------------------------- */

/* The same numbers somewhere else; the old place is overwritten before it is given up. */
static void move(outside *o, abar_tensor *t)
{
    void *place = calloc(1, abar_tensor_bytes(t));
    assert_non_null(place);
    memcpy(place, t->data, abar_tensor_bytes(t));
    memset(t->data, 0xff, abar_tensor_bytes(t));
    free(t->data);
    t->data = place;
    (void)o;
}

static void check_moving(const char *device, const char *const setting[3], const char *rule)
{
    outside still, moving;
    open_one(&still, device, setting, rule);
    open_one(&moving, device, setting, rule);
    for (int k = 0; k < 4; k++) {
        draw_batch(&still);
        draw_batch(&moving);
        observe(&still, 0, EXAMPLES, 1.0);
        observe(&moving, 0, EXAMPLES, 1.0);
        for (int i = 0; i < PARAMS; i++) {
            move(&moving, &moving.params[i].value);
            move(&moving, &moving.params[i].grad);
            set_grad(&moving, i, true);
        }
        step_scaled(&still, 0.0);
        step_scaled(&moving, 0.0);
        for (int i = 0; i < PARAMS; i++) assert_true(fixture_same_bits(&still.params[i].value, &moving.params[i].value));
    }
    close_one(&still);
    close_one(&moving);
}

static void set_param_moved_tensors_give_the_same_bits(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < CASES; i++)
            for (int r = 0; r < 2; r++) check_moving(devices[d], cases[i], rules[r]);
}

static void set_param_factors_are_in_force_at_the_next_step(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, (const int64_t[]){1}, 1);
    abar_optim *optim = fixture_optim(&f, "sgd", (const char *const[]){"momentum=0", NULL});
    fixture_set(&f.params[0].value, 0, 2.0);
    fixture_set(&f.params[0].grad, 0, 3.0);
    assert_int_equal(abar_optim_set_param(optim, 0, f.params[0].value.data, f.params[0].grad.data, 0.5, 0.25), ABAR_OK);
    fixture_step(optim, 0.1, 0.0, 0.0);
    assert_true(fabs(fixture_get(&f.params[0].value, 0) - (2.0 - 0.05 * (3.0 + 0.25 * 2.0))) <= 1e-15);
    abar_optim_destroy(optim);
    fixture_close(&f);
}

/* ---- absent gradients ----------------------------------------------------------------------------------------------- */

/* Before a step all gradients are there; then those of one parameter are not, and lie in poisoned memory. */
static void check_absent(const char *device, const char *const setting[3], const char *rule, int absent)
{
    outside o;
    open_one(&o, device, setting, rule);
    draw_batch(&o);
    observe(&o, 0, EXAMPLES, 1.0);
    step_scaled(&o, 0.0);
    abar_tensor before = tensor(&o, dims[absent], shapes[absent]);
    memcpy(before.data, o.params[absent].value.data, abar_tensor_bytes(&before));
    for (int k = 0; k < 2; k++) {
        draw_batch(&o);
        fixture_set(&o.params[absent].grad, 0, (double)NAN);
        set_grad(&o, absent, false);
        observe(&o, 0, EXAMPLES, 1.0);
        step_scaled(&o, 0.0);
        assert_true(fixture_same_bits(&before, &o.params[absent].value)); /* neither gradient, momentum nor decay */
    }
    for (int i = 0; i < PARAMS; i++) /* and nothing of it reached the others */
        for (int64_t k = 0; k < abar_tensor_count(&o.params[i].value); k++)
            assert_true(isfinite(fixture_get(&o.params[i].value, k)));
    draw_batch(&o);
    set_grad(&o, absent, true);
    step_scaled(&o, 0.0);
    assert_false(fixture_same_bits(&before, &o.params[absent].value));
    free(before.data);
    close_one(&o);
}

static void set_param_without_gradient_leaves_the_parameter_alone(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < CASES; i++)
            for (int p = 0; p < PARAMS; p++) check_absent(devices[d], cases[i], rules[p % 2], p);
}

/* Weights without their bias's gradient are updated as with one of zeros. */
static void set_param_without_a_biass_gradient_counts_it_as_zeros(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < CASES; i++) {
            outside zeros, absent;
            open_one(&zeros, devices[d], cases[i], "sgd");
            open_one(&absent, devices[d], cases[i], "sgd");
            for (int k = 0; k < 3; k++) {
                draw_batch(&zeros);
                draw_batch(&absent);
                for (int b = BIAS; b <= KERNEL_BIAS; b += KERNEL_BIAS - BIAS) {
                    for (int64_t j = 0; j < 4; j++) fixture_set(&zeros.params[b].grad, j, 0.0);
                    set_grad(&absent, b, false);
                }
                observe(&zeros, 0, EXAMPLES, 1.0);
                observe(&absent, 0, EXAMPLES, 1.0);
                step_scaled(&zeros, 0.0);
                step_scaled(&absent, 0.0);
            }
            assert_close(&absent, &zeros, WEIGHT, tolerance(devices[d]), cases[i][0]);
            assert_close(&absent, &zeros, KERNEL, tolerance(devices[d]), cases[i][0]);
            close_one(&zeros);
            close_one(&absent);
        }
}

/* W <- W - lr (G + decay W) at the first step: nothing is preconditioned. */
static void set_param_without_a_weights_gradient_leaves_the_bias_to_the_rule(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < CASES; i++) {
            outside o;
            open_one(&o, devices[d], cases[i], "sgd");
            draw_batch(&o);
            set_grad(&o, KERNEL, false);
            double expected[4];
            for (int64_t j = 0; j < 4; j++) {
                const double w = fixture_get(&o.params[KERNEL_BIAS].value, j), g = fixture_get(&o.params[KERNEL_BIAS].grad, j);
                expected[j] = w - 0.1 * (g + 0.01 * w);
            }
            observe(&o, 0, EXAMPLES, 1.0);
            step_scaled(&o, 0.0);
            for (int64_t j = 0; j < 4; j++)
                assert_true(fabs(fixture_get(&o.params[KERNEL_BIAS].value, j) - expected[j]) <= 1e-6);
            close_one(&o);
        }
}

static void optim_created_without_gradients_waits_for_them(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "cpu", 1, (const int64_t[]){3, 2}, 2);
    void *grad = f.params[0].grad.data;
    f.params[0].grad.data = NULL;
    abar_optim *optim = fixture_optim(&f, "sgd", NULL);
    const double before = fixture_get(&f.params[0].value, 1), other = fixture_get(&f.params[1].value, 1);
    fixture_step(optim, 0.1, 0.0, 0.0);
    assert_true(before == fixture_get(&f.params[0].value, 1) && other != fixture_get(&f.params[1].value, 1));
    assert_int_equal(abar_optim_set_param(optim, 0, f.params[0].value.data, grad, 1.0, 0.0), ABAR_OK);
    fixture_step(optim, 0.1, 0.0, 0.0);
    assert_true(before != fixture_get(&f.params[0].value, 1));
    abar_optim_destroy(optim);
    f.params[0].grad.data = grad;
    fixture_close(&f);
}

/* ---- scales, batches, ranks ----------------------------------------------------------------------------------------- */

static void observed_scale_equals_the_scale_given_to_observe(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < CASES; i++) {
            outside early, late;
            open_one(&early, devices[d], cases[i], "sgd");
            open_one(&late, devices[d], cases[i], "sgd");
            for (int k = 0; k < 4; k++) {
                const double scale = k == 2 ? 1024.0 : 0.125; /* exact: only the order of roundings may differ */
                draw_batch(&early);
                draw_batch(&late);
                observe(&early, 0, EXAMPLES, scale);
                observe(&late, 0, EXAMPLES, 1.0);
                step_scaled(&early, 0.0);
                step_scaled(&late, scale);
            }
            for (int p = 0; p < PARAMS; p++) assert_close(&late, &early, p, tolerance(devices[d]), cases[i][0]);
            close_one(&early);
            close_one(&late);
        }
}

static void forget_drops_what_was_observed_and_nothing_else(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        outside plain, disturbed;
        open_one(&plain, "cpu", cases[i], "sgd");
        open_one(&disturbed, "cpu", cases[i], "sgd");
        for (int k = 0; k < 3; k++) {
            draw_batch(&plain);
            draw_batch(&disturbed);
            observe(&disturbed, 3, 5, 7.0);
            abar_optim_forget(disturbed.optim);
            observe(&plain, 0, EXAMPLES, 1.0);
            observe(&disturbed, 0, EXAMPLES, 1.0);
            step_scaled(&plain, 0.0);
            step_scaled(&disturbed, 0.0);
            for (int p = 0; p < PARAMS; p++) assert_true(fixture_same_bits(&plain.params[p].value, &disturbed.params[p].value));
        }
        close_one(&plain);
        close_one(&disturbed);
    }
}

/* Two ranks see a part each; their vectors are added, and both go on with the sum. */
static void join(outside *a, outside *b)
{
    const int64_t n = abar_optim_pending_count(a->optim);
    assert_true(n > 0 && n == abar_optim_pending_count(b->optim));
    double *x = calloc((size_t)n, sizeof *x), *y = calloc((size_t)n, sizeof *y);
    assert_true(x && y);
    assert_int_equal(abar_optim_pending_read(a->optim, x), ABAR_OK);
    assert_int_equal(abar_optim_pending_read(b->optim, y), ABAR_OK);
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
    assert_int_equal(abar_optim_pending_write(a->optim, x), ABAR_OK);
    assert_int_equal(abar_optim_pending_write(b->optim, x), ABAR_OK);
    free(x);
    free(y);
}

static void pending_sums_of_two_ranks_join_to_the_whole_batch(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < CASES; i++) {
            outside whole, rank[2];
            open_one(&whole, devices[d], cases[i], "sgd");
            for (int r = 0; r < 2; r++) open_one(&rank[r], devices[d], cases[i], "sgd");
            for (int k = 0; k < 3; k++) {
                draw_batch(&whole);
                observe(&whole, 0, EXAMPLES, 1.0);
                for (int r = 0; r < 2; r++) {
                    draw_batch(&rank[r]);
                    observe(&rank[r], r ? 5 : 0, r ? EXAMPLES - 5 : 5, 1.0);
                }
                join(&rank[0], &rank[1]);
                step_scaled(&whole, 0.0);
                for (int r = 0; r < 2; r++) step_scaled(&rank[r], 0.0);
            }
            for (int p = 0; p < PARAMS; p++) {
                assert_close(&rank[0], &whole, p, tolerance(devices[d]), cases[i][0]);
                assert_true(fixture_same_bits(&rank[0].params[p].value, &rank[1].params[p].value));
            }
            close_one(&whole);
            for (int r = 0; r < 2; r++) close_one(&rank[r]);
        }
}

static void pending_count_is_zero_on_steps_without_statistics(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, (const int64_t[]){4}, 1);
    abar_optim *rule = fixture_optim(&f, "sgd", NULL); /* never any without a method */
    assert_int_equal(abar_optim_pending_count(rule), 0);
    assert_int_equal(abar_optim_pending_read(rule, NULL), ABAR_OK);
    abar_optim_forget(rule);
    abar_optim_destroy(rule);
    const int64_t shape[] = {2, 2};
    f.params[0].value = abar_tensor_wrap(f.dev, f.params[0].value.data, ABAR_F64, 2, shape);
    f.params[0].grad = abar_tensor_wrap(f.dev, f.params[0].grad.data, ABAR_F64, 2, shape);
    const abar_layer l = {
        .name = "fc", .weight = f.params[0].value, .weight_grad = f.params[0].grad, .window = abar_window_unit()};
    const abar_optim_config c = {
        .size = sizeof c, .rule = "sgd", .method = "foof", .params = f.params, .n_params = 1, .layers = &l, .n_layers = 1};
    abar_optim *optim;
    assert_int_equal(abar_optim_create(f.dev, &c, &optim), ABAR_OK);
    for (int k = 0; k < 11; k++) { /* three counts and a triangle of 2, every fifth step */
        assert_int_equal(abar_optim_pending_count(optim), k % 5 == 0 ? 3 + 3 : 0);
        fixture_step(optim, 0.1, 0.0, 0.0);
    }
    abar_optim_destroy(optim);
    fixture_close(&f);
}

/* The same numbers in another dtype, and with the dimensions from the second on in the opposite order in memory. */
static abar_tensor rearranged(const outside *o, const abar_tensor *t, abar_dtype dtype)
{
    abar_tensor r = abar_tensor_wrap(o->dev, NULL, dtype, t->ndim, t->dim);
    r.data = calloc((size_t)abar_tensor_count(t), abar_dtype_size(dtype));
    assert_non_null(r.data);
    int64_t stride = 1;
    for (int i = 1; i < t->ndim; stride *= t->dim[i++]) r.stride[i] = stride;
    assert_int_equal(abar_tensor_copy(o->ctx, &r, t), ABAR_OK);
    return r;
}

static void observe_takes_any_floating_dtype_and_strides(void **state)
{
    (void)state;
    static const abar_dtype dtypes[] = {ABAR_F64, ABAR_F32, ABAR_BF16, ABAR_F16};
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < CASES * 4; i++) {
            outside plain, odd;
            open_one(&plain, devices[d], cases[i / 4], "sgd");
            open_one(&odd, devices[d], cases[i / 4], "sgd");
            draw_batch(&plain);
            draw_batch(&odd);
            for (int k = 0; k < 2; k++) { /* the rounding of the dtype belongs to both */
                const abar_tensor x = rearranged(&odd, &odd.input[k], dtypes[i % 4]);
                const abar_tensor p = rearranged(&odd, &odd.output_grad[k], dtypes[i % 4]);
                const abar_layer l = {.input = x, .output_grad = p, .output_grad_scale = 1.0};
                assert_int_equal(abar_optim_observe(odd.optim, k, &l), ABAR_OK);
                abar_tensor rounded_x = x, rounded_p = p;
                rounded_x.dev = rounded_p.dev = plain.dev;
                assert_int_equal(abar_tensor_copy(plain.ctx, &plain.input[k], &rounded_x), ABAR_OK);
                assert_int_equal(abar_tensor_copy(plain.ctx, &plain.output_grad[k], &rounded_p), ABAR_OK);
                free(x.data);
                free(p.data);
            }
            observe(&plain, 0, EXAMPLES, 1.0);
            step_scaled(&plain, 0.0);
            step_scaled(&odd, 0.0);
            for (int p = 0; p < PARAMS; p++) assert_close(&odd, &plain, p, tolerance(devices[d]), cases[i / 4][0]);
            close_one(&plain);
            close_one(&odd);
        }
}

/* ---- the rule's settings, and refusals ------------------------------------------------------------------------------ */

static void set_rule_changes_the_next_step(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, (const int64_t[]){1}, 1);
    f.params[0].weight_decay = 0.0;
    abar_optim *optim = fixture_optim(&f, "sgd", (const char *const[]){"momentum=0.5", NULL});
    fixture_set(&f.params[0].value, 0, 0.0);
    fixture_set(&f.params[0].grad, 0, 1.0);
    fixture_step(optim, 1.0, 0.0, 0.0); /* v = 1, w = -1 */
    void *config = fixture_config(&f, "sgd", (const char *const[]){"momentum=0.25", "nesterov=true", NULL});
    assert_int_equal(abar_optim_set_rule(optim, config), ABAR_OK);
    fixture_step(optim, 1.0, 0.0, 0.0); /* v = 1.25, w = -1 - (1 + 0.25 * 1.25) */
    assert_true(fabs(fixture_get(&f.params[0].value, 0) + 2.3125) <= 1e-15);
    free(config);
    config = fixture_config(&f, "sgd", (const char *const[]){"momentum=0", NULL});
    assert_int_equal(abar_optim_set_rule(optim, config), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(f.ctx), "create a new optimizer"));
    free(config);
    fixture_step(optim, 1.0, 0.0, 0.0); /* the settings before hold: v = 1.3125 */
    assert_true(fabs(fixture_get(&f.params[0].value, 0) + 2.3125 + 1.0 + 0.25 * 1.3125) <= 1e-15);
    abar_optim_destroy(optim);
    fixture_close(&f);
}

static void set_param_impossible_arguments_are_refused_and_change_nothing(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, (const int64_t[]){2}, 1);
    abar_optim *optim = fixture_optim(&f, "sgd", NULL);
    void *value = f.params[0].value.data, *grad = f.params[0].grad.data;
    assert_int_equal(abar_optim_set_param(optim, 1, value, grad, 1.0, 0.0), ABAR_E_ARGUMENT);
    assert_int_equal(abar_optim_set_param(optim, -1, value, grad, 1.0, 0.0), ABAR_E_ARGUMENT);
    assert_int_equal(abar_optim_set_param(optim, 0, NULL, grad, 1.0, 0.0), ABAR_E_ARGUMENT);
    assert_int_equal(abar_optim_set_param(optim, 0, value, NULL, (double)NAN, 0.0), ABAR_E_ARGUMENT);
    assert_int_equal(abar_optim_set_param(optim, 0, value, NULL, 1.0, -1.0), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(f.ctx), "p0"));
    const abar_step_config bad = {.size = sizeof bad, .lr = 0.1, .observed_scale = (double)INFINITY};
    assert_int_equal(abar_optim_step(optim, &bad, NULL), ABAR_E_ARGUMENT);
    const double before = fixture_get(&f.params[0].value, 0);
    fixture_step(optim, 0.1, 0.0, 0.0);
    assert_true(before != fixture_get(&f.params[0].value, 0));
    abar_optim_destroy(optim);
    fixture_close(&f);
}

static void method_says_whether_it_reads_output_gradients(void **state)
{
    (void)state;
    assert_false(abar_method_reads_output_grad("mac") || abar_method_reads_output_grad("foof"));
    assert_false(abar_method_reads_output_grad("nothing of the kind"));
    static const char *const readers[] = {"smac", "kfac", "eva", "lngd"};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) assert_true(abar_method_reads_output_grad(readers[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_param_moved_tensors_give_the_same_bits),
        cmocka_unit_test(set_param_factors_are_in_force_at_the_next_step),
        cmocka_unit_test(set_param_without_gradient_leaves_the_parameter_alone),
        cmocka_unit_test(set_param_without_a_biass_gradient_counts_it_as_zeros),
        cmocka_unit_test(set_param_without_a_weights_gradient_leaves_the_bias_to_the_rule),
        cmocka_unit_test(optim_created_without_gradients_waits_for_them),
        cmocka_unit_test(observed_scale_equals_the_scale_given_to_observe),
        cmocka_unit_test(forget_drops_what_was_observed_and_nothing_else),
        cmocka_unit_test(pending_sums_of_two_ranks_join_to_the_whole_batch),
        cmocka_unit_test(pending_count_is_zero_on_steps_without_statistics),
        cmocka_unit_test(observe_takes_any_floating_dtype_and_strides),
        cmocka_unit_test(set_rule_changes_the_next_step),
        cmocka_unit_test(set_param_impossible_arguments_are_refused_and_change_nothing),
        cmocka_unit_test(method_says_whether_it_reads_output_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
