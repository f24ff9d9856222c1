/* What surrounds a rule: clipping, skipped steps, state, memory, and arguments that must be refused. */
#include "optim/optim_snapshot.h"

static const char *const devices[] = {"ref", "cpu"};
static const char *const rules[] = {"sgd", "adamw"};
static const int64_t sizes[] = {5, 33, 1, 200};
#define SIZES ((int)(sizeof sizes / sizeof *sizes))

/* ---- looking at the state ----------------------------------------------------------------------------------------- */

static bool same_snapshot(const snapshot *a, const snapshot *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++)
        same = strcmp(a->names[i], b->names[i]) == 0 && fixture_same_bits(&a->tensors[i], &b->tensors[i]);
    return same;
}

static void optim_visit_names_all_state(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "cpu", 1, (const int64_t[]){4, 6}, 2);
    const int64_t shape[] = {2, 3};
    f.params[1].value = abar_tensor_wrap(f.dev, f.params[1].value.data, ABAR_F32, 2, shape);
    abar_optim *optim = fixture_optim(&f, "adamw", NULL);
    fixture_step(optim, 0.1, 0.0, 0.0);
    snapshot s = take(&f, optim);
    static const char *const names[] = {"exp_avg.p0", "exp_avg.p1", "exp_avg_sq.p0", "exp_avg_sq.p1", "updates"};
    assert_int_equal(s.n, 5);
    for (int i = 0; i < s.n; i++) assert_string_equal(s.names[i], names[i]);
    assert_int_equal(s.tensors[1].ndim, 2);
    assert_int_equal(s.tensors[1].dim[1], 3);
    assert_int_equal(s.tensors[4].dtype, ABAR_I64);
    assert_int_equal(*(int64_t *)s.tensors[4].data, 1);
    for (int64_t i = 0; i < 4; i++) { /* the moments themselves, not copies of something else */
        double g = fixture_get(&f.params[0].grad, i);
        assert_true(fabs(fixture_get(&s.tensors[0], i) - 0.1 * g) <= 1e-7);
        assert_true(fabs(fixture_get(&s.tensors[2], i) - 0.001 * g * g) <= 1e-7);
    }
    drop(&s);
    abar_optim_destroy(optim);
    fixture_close(&f);
}

static void optim_without_momentum_keeps_no_state(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, sizes, SIZES);
    abar_optim *optim = fixture_optim(&f, "sgd", (const char *const[]){"momentum=0", NULL});
    snapshot s = take(&f, optim);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.names[0], "updates");
    drop(&s);
    abar_optim_destroy(optim);
    fixture_close(&f);
}

static abar_status refuse(void *user, const char *name, const abar_tensor *t)
{
    (void)name;
    (void)t;
    return ++*(int *)user == 2 ? ABAR_E_IO : ABAR_OK;
}

static void optim_visit_stops_at_the_visitors_failure(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, sizes, SIZES);
    abar_optim *optim = fixture_optim(&f, "sgd", NULL);
    int calls = 0;
    assert_int_equal(abar_optim_visit(optim, refuse, &calls), ABAR_E_IO);
    assert_int_equal(calls, 2);
    abar_optim_destroy(optim);
    fixture_close(&f);
}

/* Five steps from where the optimizer stands, with gradients that depend on the step alone. */
static void run_steps(fixture *f, abar_optim *optim, int from, int to)
{
    for (int k = from; k < to; k++) {
        f->noise = 1000u + (uint32_t)k;
        fixture_fill_grads(f, 1.0);
        fixture_step(optim, 0.05, 3.0, 0.0);
    }
}

static void check_restore(const char *device, const char *rule)
{
    fixture one, two;
    fixture_open(&one, device, 0, sizes, SIZES);
    fixture_open(&two, device, 0, sizes, SIZES);
    abar_optim *straight = fixture_optim(&one, rule, NULL), *stopped = fixture_optim(&two, rule, NULL);
    run_steps(&one, straight, 0, 10);
    run_steps(&two, stopped, 0, 5);
    snapshot s = take(&two, stopped);
    abar_optim_destroy(stopped);
    abar_optim *resumed = fixture_optim(&two, rule, NULL);
    assert_int_equal(abar_optim_visit(resumed, restore, &s), ABAR_OK);
    drop(&s);
    run_steps(&two, resumed, 5, 10);
    for (int i = 0; i < SIZES; i++) assert_true(fixture_same_bits(&one.params[i].value, &two.params[i].value));
    snapshot a = take(&one, straight), b = take(&two, resumed);
    assert_true(same_snapshot(&a, &b));
    drop(&a);
    drop(&b);
    abar_optim_destroy(straight);
    abar_optim_destroy(resumed);
    fixture_close(&one);
    fixture_close(&two);
}

static void optim_restored_state_continues_bit_for_bit(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int r = 0; r < 2; r++) check_restore(devices[d], rules[r]);
}

/* ---- gradients: norm, clipping, not finite -------------------------------------------------------------------------- */

static void optim_clip_limits_the_global_norm(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        fixture f;
        fixture_open(&f, devices[d], 1, (const int64_t[]){1, 1}, 2);
        for (int i = 0; i < 2; i++) {
            f.params[i].weight_decay = 0.0;
            fixture_set(&f.params[i].value, 0, 0.0);
            fixture_set(&f.params[i].grad, 0, i == 0 ? 30.0 : 40.0);
        }
        abar_optim *optim = fixture_optim(&f, "sgd", (const char *const[]){"momentum=0", NULL});
        abar_step_report report = fixture_step(optim, 1.0, 1.0, 0.1); /* scaled first: norm 5, then to 1 */
        assert_true(fabs(report.grad_norm - 5.0) <= 1e-12);
        const double factor = 1.0 / (5.0 + 1e-6);
        assert_true(fabs(fixture_get(&f.params[0].value, 0) + 3.0 * factor) <= 1e-7);
        assert_true(fabs(fixture_get(&f.params[1].value, 0) + 4.0 * factor) <= 1e-7);
        fixture_step(optim, 1.0, 6.0, 0.1); /* below the limit: untouched */
        assert_true(fabs(fixture_get(&f.params[0].value, 0) + 3.0 * factor + 3.0) <= 1e-6);
        abar_optim_destroy(optim);
        fixture_close(&f);
    }
}

static void optim_large_finite_gradients_are_not_mistaken_for_infinite(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "cpu", 1, (const int64_t[]){67}, 1);
    abar_optim *optim = fixture_optim(&f, "sgd", NULL);
    for (int64_t i = 0; i < 67; i++) fixture_set(&f.params[0].grad, i, 3e38);
    abar_step_report report = fixture_step(optim, 1e-30, 1.0, 0.0);
    assert_false(report.skipped);
    assert_true(fabs(report.grad_norm / (3e38 * sqrt(67.0)) - 1.0) <= 1e-6);
    abar_optim_destroy(optim);
    fixture_close(&f);
}

/* In double precision their squares overflow, or become 0, where they themselves do neither. */
static void optim_norm_is_right_where_squares_are_not(void **state)
{
    (void)state;
    static const double values[] = {1e160, 1e307, 1.7e308, 1e-200, 5e-324, 0.0};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        fixture f;
        fixture_open(&f, "ref", 1, (const int64_t[]){16, 9}, 2);
        abar_optim *optim = fixture_optim(&f, "sgd", (const char *const[]){"momentum=0", NULL});
        double norm = 0.0;
        for (int i = 0; i < 2; i++) {
            f.params[i].lr_scale = 1.0;
            for (int64_t k = 0; k < abar_tensor_count(&f.params[i].grad); k++) {
                fixture_set(&f.params[i].value, k, 0.0);
                fixture_set(&f.params[i].grad, k, k % 2 ? -values[v] : values[v]);
            }
        }
        const abar_step_report report = fixture_step(optim, 1.0, 2.5, 0.0);
        assert_false(report.skipped);
        assert_true(isfinite(report.grad_norm));
        const double expected = fmin(5.0 * values[v], 1.7976931348623157e308); /* sqrt(16 + 9) */
        assert_true(fabs(report.grad_norm - expected) <= 1e-12 * expected);
        for (int i = 0; i < 2; i++)
            for (int64_t k = 0; k < abar_tensor_count(&f.params[i].value); k++)
                norm += fixture_get(&f.params[i].value, k) * fixture_get(&f.params[i].value, k);
        if (values[v] < 1e308) assert_true(fabs(sqrt(norm) - fmin(2.5, expected)) <= 1e-12);
        abar_optim_destroy(optim);
        fixture_close(&f);
    }
}

/* Weights and state before and after a step that one bad element must prevent. */
static void check_skip(fixture *f, abar_optim *optim, int param, int64_t element, double bad)
{
    abar_tensor *grad = &f->params[param].grad;
    double good = fixture_get(grad, element), weights[4];
    for (int i = 0; i < SIZES; i++) weights[i] = fixture_get(&f->params[i].value, 0);
    snapshot before = take(f, optim);
    fixture_set(grad, element, bad);
    abar_step_report report = fixture_step(optim, 0.1, element % 2 == 0 ? 1.0 : 0.0, 0.0);
    assert_true(report.skipped && !isfinite(report.grad_norm));
    fixture_set(grad, element, good);
    snapshot after = take(f, optim);
    assert_true(same_snapshot(&before, &after));
    for (int i = 0; i < SIZES; i++) assert_true(weights[i] == fixture_get(&f->params[i].value, 0));
    drop(&before);
    drop(&after);
}

static void check_skips(const char *device, const char *rule)
{
    fixture f, untouched;
    fixture_open(&f, device, 0, sizes, SIZES);
    fixture_open(&untouched, device, 0, sizes, SIZES);
    abar_optim *optim = fixture_optim(&f, rule, NULL), *other = fixture_optim(&untouched, rule, NULL);
    fixture_step(optim, 0.1, 0.0, 0.0);
    fixture_step(other, 0.1, 0.0, 0.0);
    const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (int i = 0; i < SIZES; i++)
        for (int64_t j = 0; j < sizes[i]; j++) check_skip(&f, optim, i, j, bad[j % 3]);
    for (int i = 0; i < SIZES; i++) assert_true(fixture_same_bits(&f.params[i].value, &untouched.params[i].value));
    fixture_step(optim, 0.1, 0.0, 0.0); /* and Adam's count has not moved */
    fixture_step(other, 0.1, 0.0, 0.0);
    for (int i = 0; i < SIZES; i++) assert_true(fixture_same_bits(&f.params[i].value, &untouched.params[i].value));
    abar_optim_destroy(optim);
    abar_optim_destroy(other);
    fixture_close(&f);
    fixture_close(&untouched);
}

static void optim_one_bad_gradient_element_skips_the_step(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int r = 0; r < 2; r++) check_skips(devices[d], rules[r]);
}

static void optim_bad_element_anywhere_in_a_large_parameter_is_seen(void **state)
{
    (void)state;
    fixture f;
    const int64_t count = 300007;
    fixture_open(&f, "cpu", 3, &count, 1);
    abar_optim *optim = fixture_optim(&f, "sgd", NULL);
    for (int64_t i = 0; i < count; i += i < count - 40 ? 4999 : 1) {
        fixture_set(&f.params[0].grad, i, (double)NAN);
        assert_true(fixture_step(optim, 0.1, 0.0, 0.0).skipped);
        fixture_set(&f.params[0].grad, i, 0.0);
    }
    assert_false(fixture_step(optim, 0.1, 0.0, 0.0).skipped);
    abar_optim_destroy(optim);
    fixture_close(&f);
}

static void optim_decay_and_lr_scale_are_per_parameter(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int r = 0; r < 2; r++) {
            fixture f;
            fixture_open(&f, devices[d], 1, (const int64_t[]){20, 20, 20}, 3);
            const double lr_scale[] = {1.0, 1.0, 0.0}, decay[] = {0.5, 0.0, 0.5};
            for (int i = 0; i < 3; i++) {
                f.params[i].lr_scale = lr_scale[i];
                f.params[i].weight_decay = decay[i];
                for (int64_t j = 0; j < 20; j++) {
                    fixture_set(&f.params[i].value, j, 1.0);
                    fixture_set(&f.params[i].grad, j, 0.0);
                }
            }
            abar_optim *optim = fixture_optim(&f, rules[r], NULL);
            fixture_step(optim, 0.1, 0.0, 0.0);
            for (int64_t j = 0; j < 20; j++) {
                assert_true(fabs(fixture_get(&f.params[0].value, j) - 0.95) <= 1e-7); /* gradient 0: decay alone */
                assert_true(fixture_get(&f.params[1].value, j) == 1.0);
                assert_true(fixture_get(&f.params[2].value, j) == 1.0);
            }
            abar_optim_destroy(optim);
            fixture_close(&f);
        }
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void optim_step_allocates_nothing(void **state)
{
    (void)state;
    for (int r = 0; r < 2; r++) {
        fixture f;
        fixture_open(&f, "cpu", 0, sizes, SIZES);
        abar_optim *optim = fixture_optim(&f, rules[r], NULL);
        uint64_t before = abar_context_memory(f.ctx).allocations;
        for (int k = 0; k < 5; k++) fixture_step(optim, 0.1, 1.0, 0.0);
        snapshot s = take(&f, optim);
        drop(&s);
        assert_int_equal(abar_context_memory(f.ctx).allocations, before);
        abar_optim_destroy(optim);
        fixture_close(&f);
    }
}

static void check_bytes(const char *device, const char *rule, const char *const *settings)
{
    fixture f;
    fixture_open(&f, device, 1, sizes, SIZES);
    void *config = fixture_config(&f, rule, settings);
    size_t plan, before = abar_context_memory(f.ctx).now;
    assert_int_equal(plan_optim(&f, rule, config, &plan), ABAR_OK);
    abar_optim *optim = fixture_optim(&f, rule, settings);
    size_t held = abar_context_memory(f.ctx).now - before;
    assert_int_equal(abar_optim_bytes(optim), held);
    assert_in_range(held, plan, plan + 64); /* the names */
    abar_optim_destroy(optim);
    assert_int_equal(abar_context_memory(f.ctx).now, before);
    free(config);
    fixture_close(&f);
}

static void optim_plan_equals_what_create_allocates(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        check_bytes(devices[d], "sgd", NULL);
        check_bytes(devices[d], "sgd", (const char *const[]){"momentum=0", NULL});
        check_bytes(devices[d], "adamw", NULL);
    }
}

static void optim_plan_of_an_unknown_rule_fails(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, sizes, SIZES);
    size_t bytes;
    assert_int_equal(plan_optim(&f, "sgdd", NULL, &bytes), ABAR_E_NOT_FOUND);
    assert_non_null(strstr(abar_context_error(f.ctx), "did you mean sgd"));
    assert_int_equal(plan_optim(&f, "sgd", NULL, &bytes), ABAR_OK);
    assert_true(bytes > 0);
    fixture_close(&f);
}

typedef struct miser {
    int left; /* allocations still granted; below 0: all */
} miser;

static void *grudging_alloc(void *user, size_t bytes, size_t align)
{
    miser *m = user;
    if (m->left == 0) return NULL;
    if (m->left > 0) m->left--;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void plain_release(void *user, void *memory, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(memory);
}

static void optim_create_survives_every_failing_allocation(void **state)
{
    (void)state;
    miser m = {.left = -1};
    const abar_context_config config = {.size = sizeof config, .allocator = {grudging_alloc, plain_release, &m}};
    abar_context *ctx;
    abar_device *dev;
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "cpu", NULL, &dev), ABAR_OK);
    float value[8] = {0}, grad[8] = {0};
    const int64_t count = 8;
    const abar_optim_param param = {.name = "p",
                                    .value = abar_tensor_wrap(dev, value, ABAR_F32, 1, &count),
                                    .grad = abar_tensor_wrap(dev, grad, ABAR_F32, 1, &count),
                                    .lr_scale = 1.0};
    size_t before = abar_context_memory(ctx).now;
    abar_optim *optim = NULL;
    int failures = 0;
    for (; !optim && failures < 100; failures++) {
        m.left = failures;
        abar_status status = create_optim(dev, "adamw", NULL, &param, 1, &optim);
        if (status == ABAR_OK) break;
        assert_int_equal(status, ABAR_E_MEMORY);
        assert_null(optim);
        assert_int_equal(abar_context_memory(ctx).now, before);
    }
    assert_non_null(optim);
    assert_true(failures >= 3);
    abar_optim_destroy(optim);
    assert_int_equal(abar_context_memory(ctx).now, before);
    abar_device_close(dev);
    abar_context_destroy(ctx);
}

/* Without one of its gradients it is compiled anew. Where memory is short that fails; later it succeeds. */
static void optim_step_survives_every_failing_allocation(void **state)
{
    (void)state;
    miser m = {.left = -1};
    const abar_context_config config = {.size = sizeof config, .allocator = {grudging_alloc, plain_release, &m}};
    const abar_step_config step = {.size = sizeof step, .lr = 0.1};
    const double rates[] = {0.1, 0.2, 0.3};
    abar_context *ctx;
    abar_device *dev;
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "cpu", NULL, &dev), ABAR_OK);
    float value[2][8] = {{0}}, grad[2][8] = {{1.0f}, {1.0f}};
    const int64_t count = 8;
    abar_optim_param params[2] = {{.name = "p", .lr_scale = 1.0}, {.name = "q", .lr_scale = 1.0}};
    for (int i = 0; i < 2; i++) {
        params[i].value = abar_tensor_wrap(dev, value[i], ABAR_F32, 1, &count);
        params[i].grad = abar_tensor_wrap(dev, grad[i], ABAR_F32, 1, &count);
    }
    const size_t before = abar_context_memory(ctx).now;
    abar_optim *optim;
    assert_int_equal(create_optim(dev, "adamw", NULL, params, 2, &optim), ABAR_OK);
    assert_int_equal(abar_optim_set_param(optim, 1, value[1], NULL, 1.0, 0.0), ABAR_OK);
    int failures = 0;
    for (m.left = 0; abar_optim_step(optim, &step, NULL) != ABAR_OK; m.left = ++failures) assert_in_range(failures, 0, 100);
    assert_true(failures >= 2);
    m.left = 0;
    assert_int_equal(abar_optim_rates(optim, 1, rates, 3), ABAR_E_MEMORY);
    assert_int_equal(abar_optim_begin(optim), ABAR_OK);
    assert_int_equal(abar_optim_queue(optim, &step), ABAR_E_STATE); /* there is no rate for it */
    m.left = -1;
    assert_int_equal(abar_optim_rates(optim, 1, rates, 3), ABAR_OK);
    assert_int_equal(abar_optim_queue(optim, &step), ABAR_OK);
    assert_true(value[0][0] < 0.0f && value[1][0] == 0.0f);
    abar_optim_destroy(optim);
    assert_int_equal(abar_context_memory(ctx).now, before);
    abar_device_close(dev);
    abar_context_destroy(ctx);
}

/* ---- arguments ------------------------------------------------------------------------------------------------------ */

static void assert_refused(fixture *f, const abar_optim_param *params, int n, const char *word)
{
    abar_optim *optim;
    assert_int_equal(create_optim(f->dev, "sgd", NULL, params, n, &optim), ABAR_E_ARGUMENT);
    assert_null(optim);
    if (!strstr(abar_context_error(f->ctx), word)) fail_msg("\"%s\" lacks \"%s\"", abar_context_error(f->ctx), word);
}

static void optim_impossible_parameters_are_refused_with_a_reason(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "cpu", 1, (const int64_t[]){6, 6}, 2);
    const abar_optim_param good = f.params[0];
    const int64_t shape[] = {2, 3}, shorter = 5;
    abar_optim_param bad = good;
    assert_refused(&f, f.params, 0, "no parameters");
    assert_refused(&f, NULL, 2, "no parameters");
    bad.name = "";
    assert_refused(&f, &bad, 1, "name");
    bad.name = NULL;
    assert_refused(&f, &bad, 1, "name");
    f.params[1].name = "p0";
    assert_refused(&f, f.params, 2, "p0");
    bad = good;
    bad.value.dev = NULL;
    assert_refused(&f, &bad, 1, "device");
    bad = good;
    bad.grad.dtype = ABAR_F64;
    assert_refused(&f, &bad, 1, "F64");
    bad = good;
    bad.grad = abar_tensor_wrap(f.dev, good.grad.data, ABAR_F32, 2, shape);
    bad.grad.stride[0] = 1;
    bad.grad.stride[1] = 2;
    assert_refused(&f, &bad, 1, "dense");
    bad.grad = abar_tensor_wrap(f.dev, good.grad.data, ABAR_F32, 1, &shorter);
    assert_refused(&f, &bad, 1, "gradient 5");
    bad = good;
    bad.value.data = NULL;
    assert_refused(&f, &bad, 1, "memory");
    bad = good;
    bad.lr_scale = (double)NAN;
    assert_refused(&f, &bad, 1, "lr_scale");
    bad = good;
    bad.weight_decay = -1.0;
    assert_refused(&f, &bad, 1, "weight_decay");
    fixture_close(&f);
}

static void optim_unknown_rule_is_refused_with_a_suggestion(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, sizes, SIZES);
    abar_optim *optim;
    assert_int_equal(create_optim(f.dev, "adamv", NULL, f.params, f.n, &optim), ABAR_E_NOT_FOUND);
    assert_non_null(strstr(abar_context_error(f.ctx), "did you mean adamw"));
    assert_int_equal(create_optim(f.dev, NULL, NULL, f.params, f.n, &optim), ABAR_E_NOT_FOUND);
    assert_int_equal(create_optim(NULL, "sgd", NULL, f.params, f.n, &optim), ABAR_E_ARGUMENT);
    abar_optim_destroy(NULL);
    fixture_close(&f);
}

static void optim_impossible_steps_are_refused_and_change_nothing(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, sizes, SIZES);
    abar_optim *optim = fixture_optim(&f, "sgd", NULL);
    const size_t size = sizeof(abar_step_config);
    const abar_step_config bad[] = {{.size = 0, .lr = 0.1},
                                    {.size = size + 8, .lr = 0.1},
                                    {.size = size, .lr = (double)NAN},
                                    {.size = size, .lr = -0.1},
                                    {.size = size, .lr = 0.1, .clip = -1.0},
                                    {.size = size, .lr = 0.1, .grad_scale = (double)INFINITY}};
    double weight = fixture_get(&f.params[0].value, 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(abar_optim_step(optim, &bad[i], NULL), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(f.ctx), i < 2 ? "abar_step_config: size is" : "step: "));
    }
    assert_int_equal(abar_optim_step(optim, NULL, NULL), ABAR_E_ARGUMENT);
    assert_true(weight == fixture_get(&f.params[0].value, 0));
    assert_int_equal(abar_optim_step(optim, &(abar_step_config){.size = size, .lr = 0.1}, NULL), ABAR_OK);
    assert_true(weight != fixture_get(&f.params[0].value, 0));
    abar_optim_destroy(optim);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optim_visit_names_all_state),
        cmocka_unit_test(optim_without_momentum_keeps_no_state),
        cmocka_unit_test(optim_visit_stops_at_the_visitors_failure),
        cmocka_unit_test(optim_restored_state_continues_bit_for_bit),
        cmocka_unit_test(optim_clip_limits_the_global_norm),
        cmocka_unit_test(optim_large_finite_gradients_are_not_mistaken_for_infinite),
        cmocka_unit_test(optim_norm_is_right_where_squares_are_not),
        cmocka_unit_test(optim_one_bad_gradient_element_skips_the_step),
        cmocka_unit_test(optim_bad_element_anywhere_in_a_large_parameter_is_seen),
        cmocka_unit_test(optim_decay_and_lr_scale_are_per_parameter),
        cmocka_unit_test(optim_step_allocates_nothing),
        cmocka_unit_test(optim_plan_equals_what_create_allocates),
        cmocka_unit_test(optim_plan_of_an_unknown_rule_fails),
        cmocka_unit_test(optim_create_survives_every_failing_allocation),
        cmocka_unit_test(optim_step_survives_every_failing_allocation),
        cmocka_unit_test(optim_impossible_parameters_are_refused_with_a_reason),
        cmocka_unit_test(optim_unknown_rule_is_refused_with_a_suggestion),
        cmocka_unit_test(optim_impossible_steps_are_refused_and_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
