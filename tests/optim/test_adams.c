/* AdamW's relatives (methods.md section 8, optimizers.md section 4): nadamw, sfadamw, cautious decay. Against the float64
 * oracle (tests/oracle/adams.py), against timm's, PyTorch's and the authors' code (check_adams.py), and their identities. */
#include "optim/golden_steps.h"
#include "optim/optim_snapshot.h"

static const char *const devices[] = {"ref", "cpu"};
static double tolerance_on(const char *device) { return strcmp(device, "ref") == 0 ? 1e-11 : 1e-5; }

static const char *const names[] = {"matrix", "wide", "conv", "bias", "scalar"};
static const shape shapes[] = {{2, {24, 10}}, {2, {9, 30}}, {4, {8, 3, 3, 3}}, {1, {13}}, {1, {1}}};
enum { PARAMS = 5 };

static void rig_rule(rig *r, const char *device, const char *rule, const char *const *settings)
{
    rig_open(r, device, shapes, PARAMS);
    if (rig_try_rule(r, rule, settings) != ABAR_OK) fail_msg("%s", abar_context_error(r->f.ctx));
}

/* ---- the oracle and other people's code -------------------------------------------------------------------------------- */

#define GOLDEN(name) ABAR_TEST_DATA "/golden/" name ".safetensors"
#define SET .names = names, .shapes = shapes, .n = PARAMS, .layers = 3

static const golden_set steps[] = {
    {.rule = "adamw", .file = GOLDEN("adamw_steps"), SET, .cases = 3, .options = 4},
    {.rule = "nadamw", .file = GOLDEN("nadamw_steps"), SET, .cases = 5, .options = 3},
    {.rule = "sfadamw", .file = GOLDEN("sfadamw_steps"), SET, .cases = 6, .options = 5},
};
static const golden_set peers[] = {
    {.rule = "nadamw", .file = GOLDEN("nadamw_peer"), SET, .cases = 6, .options = 3},
    {.rule = "sfadamw", .file = GOLDEN("sfadamw_peer"), SET, .cases = 6, .options = 5},
};

static void adams_on_ref_are_the_oracles(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) golden_check(&steps[i], "ref", 1e-9);
}

static void adams_on_cpu_are_the_oracles(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) golden_check(&steps[i], "cpu", 1e-4);
}

static void adams_are_those_of_timm_and_the_authors(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 2; i++) golden_check(&peers[i], devices[d], 1e-5);
}

/* ---- identities ------------------------------------------------------------------------------------------------------ */

static double difference(const abar_tensor *a, const abar_tensor *b)
{
    double error = 0.0, largest = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(b); i++) {
        error = fmax(error, fabs(fixture_get(a, i) - fixture_get(b, i)));
        largest = fmax(largest, fabs(fixture_get(b, i)));
    }
    return error / largest;
}

static void step_both(rig *a, rig *b, int k)
{
    for (int i = 0; i < k; i++) {
        fixture_fill_grads(&a->f, 1.0);
        fixture_fill_grads(&b->f, 1.0);
        fixture_step(a->optim, 0.02, 0.0, 0.0);
        fixture_step(b->optim, 0.02, 0.0, 0.0);
    }
}

static void nadamw_with_beta1_0_is_adamw(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        rig a, b;
        rig_rule(&a, devices[d], "nadamw", SETTINGS("beta1=0"));
        rig_rule(&b, devices[d], "adamw", SETTINGS("beta1=0"));
        step_both(&a, &b, 6);
        for (int i = 0; i < PARAMS; i++)
            assert_true(difference(&a.f.params[i].value, &b.f.params[i].value) <= tolerance_on(devices[d]));
        rig_close(&a);
        rig_close(&b);
    }
}

/* At a constant rate x is the mean of z_1, z_2, ..., and y = (1 - beta1) z + beta1 x. */
static void sfadamw_tests_the_mean_of_z(void **state)
{
    (void)state;
    enum { N = 240, STEPS = 9 };
    static const shape one[] = {{2, {24, 10}}};
    for (int d = 0; d < 2; d++) {
        rig r;
        rig_open(&r, devices[d], one, 1);
        assert_int_equal(rig_try_rule(&r, "sfadamw", SETTINGS("beta1=0.8")), ABAR_OK);
        const abar_tensor *w = &r.f.params[0].value;
        double y[N], z[N], sum[N] = {0.0};
        for (int k = 0; k < STEPS; k++) {
            fixture_fill_grads(&r.f, 1.0);
            fixture_step(r.optim, 0.05, 0.0, 0.0);
            snapshot s = take(&r.f, r.optim);
            assert_string_equal(s.names[0], "z_minus_y.p0");
            for (int i = 0; i < N; i++) sum[i] += z[i] = fixture_get(w, i) + fixture_get(&s.tensors[0], i);
            drop(&s);
        }
        for (int i = 0; i < N; i++) y[i] = fixture_get(w, i);
        assert_int_equal(abar_optim_average(r.optim), ABAR_OK);
        for (int i = 0; i < N; i++) {
            const double x = fixture_get(w, i);
            assert_true(fabs(x - sum[i] / STEPS) <= tolerance_on(devices[d]));
            assert_true(fabs(y[i] - 0.2 * z[i] - 0.8 * x) <= tolerance_on(devices[d]));
        }
        rig_close(&r);
    }
}

/* z_t weighs t times the largest rate so far, squared: a rate that falls does not lower it. */
static void sfadamw_weighs_z_by_the_largest_rate_so_far(void **state)
{
    (void)state;
    static const double rates[] = {0.01, 0.05, 0.02, 0.0, 0.03, 0.06, 0.01};
    static const shape one[] = {{1, {10}}};
    enum { N = 10, STEPS = sizeof rates / sizeof *rates };
    for (int d = 0; d < 2; d++) {
        rig r;
        rig_open(&r, devices[d], one, 1);
        assert_int_equal(rig_try_rule(&r, "sfadamw", SETTINGS("beta1=0.8", "sf-time-power=1")), ABAR_OK);
        const abar_tensor *w = &r.f.params[0].value;
        double sum[N] = {0.0}, weights = 0.0, largest = 0.0;
        for (int k = 0; k < STEPS; k++) {
            fixture_fill_grads(&r.f, 1.0);
            fixture_step(r.optim, rates[k], 0.0, 0.0);
            largest = fmax(largest, rates[k]);
            const double weight = (k + 1) * largest * largest;
            snapshot s = take(&r.f, r.optim);
            for (int i = 0; i < N; i++) sum[i] += weight * (fixture_get(w, i) + fixture_get(&s.tensors[0], i));
            weights += weight;
            drop(&s);
        }
        assert_int_equal(abar_optim_average(r.optim), ABAR_OK);
        for (int i = 0; i < N; i++) assert_true(fabs(fixture_get(w, i) - sum[i] / weights) <= tolerance_on(devices[d]));
        rig_close(&r);
    }
}

/* Before the first update, and for every other rule, the weights are what is tested. */
static void average_of_other_rules_changes_nothing(void **state)
{
    (void)state;
    static const char *const rules[] = {"sfadamw", "nadamw", "adamw", "sgd"};
    for (int k = 0; k < 4; k++) {
        rig r;
        double before[PARAMS];
        rig_rule(&r, "cpu", rules[k], SETTINGS(NULL));
        if (k > 0) fixture_step(r.optim, 0.1, 0.0, 0.0);
        for (int i = 0; i < PARAMS; i++) before[i] = fixture_get(&r.f.params[i].value, 0);
        assert_int_equal(abar_optim_average(r.optim), ABAR_OK);
        for (int i = 0; i < PARAMS; i++) assert_true(before[i] == fixture_get(&r.f.params[i].value, 0));
        rig_close(&r);
    }
}

/* A warm-up that begins at rate 0: the sum of the weights is 0 then, and so is c. */
static void sfadamw_at_rate_0_stays(void **state)
{
    (void)state;
    rig r;
    rig_rule(&r, "cpu", "sfadamw", SETTINGS(NULL));
    const double before = fixture_get(&r.f.params[0].value, 3);
    fixture_step(r.optim, 0.0, 0.0, 0.0);
    assert_true(fixture_get(&r.f.params[0].value, 3) == before);
    fixture_step(r.optim, 0.1, 0.0, 0.0);
    assert_true(isfinite(fixture_get(&r.f.params[0].value, 3)) && fixture_get(&r.f.params[0].value, 3) != before);
    rig_close(&r);
}

/* One step by hand: decay acts where the step (that of the sign of g at t = 1) has the weight's sign. */
static void cautious_decay_agrees_with_the_step(void **state)
{
    (void)state;
    static const shape one[] = {{1, {4}}};
    static const double w[] = {1.0, 1.0, -1.0, -1.0}, g[] = {2.0, -2.0, 2.0, -2.0}, end[] = {0.85, 1.1, -1.1, -0.85};
    for (int d = 0; d < 2; d++) {
        rig r;
        rig_open(&r, devices[d], one, 1);
        r.f.params[0].weight_decay = 0.5;
        for (int i = 0; i < 4; i++) fixture_set(&r.f.params[0].value, i, w[i]), fixture_set(&r.f.params[0].grad, i, g[i]);
        assert_int_equal(rig_try_rule(&r, "adamw", SETTINGS("cautious=true")), ABAR_OK);
        fixture_step(r.optim, 0.1, 0.0, 0.0);
        for (int i = 0; i < 4; i++) assert_true(fabs(fixture_get(&r.f.params[0].value, i) - end[i]) <= 1e-6);
        rig_close(&r);
    }
}

/* A step of zero agrees with every weight: without gradients all of the decay is there. */
static void cautious_decay_acts_where_there_is_no_step(void **state)
{
    (void)state;
    static const shape one[] = {{2, {8, 6}}};
    static const char *const rules[] = {"adamw", "muon", "soap"};
    for (int i = 0; i < 6; i++) {
        rig r;
        rig_open(&r, devices[i % 2], one, 1);
        rig_layer(&r, 0, -1);
        r.f.params[0].weight_decay = 0.5;
        assert_int_equal(rig_try_rule(&r, rules[i / 2], SETTINGS("cautious=true")), ABAR_OK);
        fixture_fill_grads(&r.f, 0.0);
        if (i / 2 == 2) fixture_step(r.optim, 0.1, 0.0, 0.0); /* its first makes none */
        double before[48];
        for (int k = 0; k < 48; k++) before[k] = fixture_get(&r.f.params[0].value, k);
        fixture_step(r.optim, 0.1, 0.0, 0.0);
        for (int k = 0; k < 48; k++)
            assert_true(fabs(fixture_get(&r.f.params[0].value, k) - 0.95 * before[k]) <= 1e-7 * fabs(before[k]));
        rig_close(&r);
    }
}

static void cautious_without_decay_is_adamw(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        rig a, b;
        rig_open(&a, devices[d], shapes, PARAMS), rig_open(&b, devices[d], shapes, PARAMS);
        for (int i = 0; i < PARAMS; i++) a.f.params[i].weight_decay = b.f.params[i].weight_decay = 0.0;
        assert_int_equal(rig_try_rule(&a, "adamw", SETTINGS("cautious=true")), ABAR_OK);
        assert_int_equal(rig_try_rule(&b, "adamw", SETTINGS("cautious=false")), ABAR_OK);
        step_both(&a, &b, 5);
        for (int i = 0; i < PARAMS; i++) assert_true(fixture_same_bits(&a.f.params[i].value, &b.f.params[i].value));
        rig_close(&a);
        rig_close(&b);
    }
}

/* ---- state ------------------------------------------------------------------------------------------------------------ */

/* A parameter whose gradient is gone keeps its y and z; x is still that of both. */
static void sfadamw_averages_a_parameter_without_gradient(void **state)
{
    (void)state;
    rig r;
    rig_rule(&r, "cpu", "sfadamw", SETTINGS(NULL));
    abar_optim_param *p = &r.f.params[1];
    for (int k = 0; k < 3; k++) fixture_step(r.optim, 0.05, 0.0, 0.0);
    assert_int_equal(abar_optim_set_param(r.optim, 1, p->value.data, NULL, 1.0, 0.1), ABAR_OK);
    const double y = fixture_get(&p->value, 0);
    fixture_step(r.optim, 0.05, 0.0, 0.0);
    assert_true(fixture_get(&p->value, 0) == y);
    snapshot s = take(&r.f, r.optim);
    const double apart = fixture_get(&s.tensors[1], 0);
    assert_string_equal(s.names[1], "z_minus_y.p1");
    assert_true(apart != 0.0);
    assert_int_equal(abar_optim_average(r.optim), ABAR_OK);
    assert_true(fabs(fixture_get(&p->value, 0) - (y + (1.0 - 1.0 / 0.9) * apart)) <= 1e-6);
    drop(&s);
    rig_close(&r);
}

static void sfadamw_refuses_beta1_0(void **state)
{
    (void)state;
    fixture f;
    const abar_rule *rule = abar_rule_find("sfadamw");
    fixture_open(&f, "cpu", 1, (const int64_t[]){4}, 1);
    void *config = fixture_config(&f, "sfadamw", NULL);
    assert_true(rule->averages);
    assert_false(abar_rule_find("nadamw")->averages);
    assert_int_not_equal(abar_options_set(f.ctx, rule->options, config, "beta1", "0"), ABAR_OK);
    free(config);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adams_on_ref_are_the_oracles),
        cmocka_unit_test(adams_on_cpu_are_the_oracles),
        cmocka_unit_test(adams_are_those_of_timm_and_the_authors),
        cmocka_unit_test(nadamw_with_beta1_0_is_adamw),
        cmocka_unit_test(sfadamw_tests_the_mean_of_z),
        cmocka_unit_test(sfadamw_weighs_z_by_the_largest_rate_so_far),
        cmocka_unit_test(average_of_other_rules_changes_nothing),
        cmocka_unit_test(sfadamw_at_rate_0_stays),
        cmocka_unit_test(cautious_decay_agrees_with_the_step),
        cmocka_unit_test(cautious_decay_acts_where_there_is_no_step),
        cmocka_unit_test(cautious_without_decay_is_adamw),
        cmocka_unit_test(sfadamw_averages_a_parameter_without_gradient),
        cmocka_unit_test(sfadamw_refuses_beta1_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
