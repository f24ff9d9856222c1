/* SOAP through an optimizer: against the float64 oracle (tests/oracle/soap.py), and the identities of optimizers.md section 2.
 * Its state: test_soap_state.c. */
#include "optim/golden_steps.h"
#include "optim/rotations.h"
#include "repeated.h"

static const char *const devices[] = {"ref", "cpu"};
static double tolerance_on(const char *device) { return strcmp(device, "ref") == 0 ? 1e-9 : 1e-4; }

static void rig_soap(rig *r, const char *const *settings)
{
    if (rig_try_rule(r, "soap", settings) != ABAR_OK) fail_msg("%s", abar_context_error(r->f.ctx));
}

/* ---- the oracle ------------------------------------------------------------------------------------------------------ */

static const char *const names[] = {"matrix", "wide", "square", "conv", "bias", "scalar"};
static const shape shapes[] = {{2, {24, 10}}, {2, {9, 30}}, {2, {12, 12}}, {4, {9, 3, 3, 3}}, {1, {13}}, {1, {1}}};
enum { PARAMS = 6 };

static const golden_set steps = {.rule = "soap",
                                 .file = ABAR_TEST_DATA "/golden/soap_steps.safetensors",
                                 .names = names,
                                 .shapes = shapes,
                                 .n = PARAMS,
                                 .layers = 4,
                                 .cases = 17,
                                 .options = 12};

static void soap_on_ref_is_the_oracles(void **state)
{
    (void)state;
    golden_check(&steps, "ref", 1e-9);
}

static void soap_on_cpu_is_the_oracles(void **state)
{
    (void)state;
    golden_check(&steps, "cpu", 1e-4);
}

/* By nikhilvyas/SOAP, run in double precision (tests/oracle/check_rules.py). */
static void soap_is_its_authors(void **state)
{
    (void)state;
    golden_set peer = steps;
    peer.file = ABAR_TEST_DATA "/golden/soap_peer.safetensors";
    peer.cases = 10;
    peer.options = 10;
    for (int d = first_device(); d < 2; d++) golden_check(&peer, devices[d], 1e-5);
}

/* ---- hyperball and cautious decay ------------------------------------------------------------------------------------- */

static double norm_of(const abar_tensor *t, int64_t first, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = first; i < first + n; i++) sum += fixture_get(t, i) * fixture_get(t, i);
    return sqrt(sum);
}

/* Every matrix of a fused projection keeps its own norm, from the first step on, which moves nothing; a vector does not. */
static void soap_on_the_hyperball_keeps_norms(void **state)
{
    (void)state;
    static const shape two[] = {{2, {24, 12}}, {1, {12}}};
    for (int d = 0; d < 2; d++)
        for (int kl = 0; kl < 2; kl++) {
            rig r;
            double before[3];
            rig_open(&r, devices[d], two, 2);
            r.f.params[0].weight_decay = r.f.params[1].weight_decay = 0.0;
            rig_layer(&r, 0, -1)->attention = (abar_attention){.heads = 2, .value_row = 16, .value_rows = 8};
            rig_soap(&r, SETTINGS("hyperball=true", kl ? "soap-factors=kl" : "soap-freq=2"));
            assert_int_equal(abar_optim_param_info(r.optim, 0)->blocks, 3);
            for (int b = 0; b < 3; b++) before[b] = norm_of(&r.f.params[0].value, 96 * b, 96);
            const double vector = norm_of(&r.f.params[1].value, 0, 12);
            for (int k = 0; k < 6; k++) {
                const double first = fixture_get(&r.f.params[0].value, 7);
                fixture_fill_grads(&r.f, 1.0);
                assert_false(fixture_step(r.optim, 0.1, 0.0, 0.0).skipped);
                assert_true((fixture_get(&r.f.params[0].value, 7) == first) == (k == 0));
            }
            for (int b = 0; b < 3; b++) {
                const double now = norm_of(&r.f.params[0].value, 96 * b, 96);
                assert_true(fabs(now - before[b]) <= (d == 0 ? 1e-12 : 1e-5) * before[b]);
            }
            assert_true(fabs(norm_of(&r.f.params[1].value, 0, 12) - vector) > 1e-3 * vector);
            rig_close(&r);
        }
}

static void soap_on_the_hyperball_refuses_decay_and_zero_matrices(void **state)
{
    (void)state;
    static const shape two[] = {{2, {8, 12}}, {1, {12}}};
    const abar_step_config step = {.size = sizeof step, .lr = 0.1};
    rig r;
    rig_open(&r, "cpu", two, 2);
    assert_int_equal(rig_try_rule(&r, "soap", SETTINGS("hyperball=true")), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(r.f.ctx), "--weight-decay 0"));
    r.f.params[0].weight_decay = r.f.params[1].weight_decay = 0.0;
    assert_int_equal(rig_try_rule(&r, "soap", SETTINGS("hyperball=true", "cautious=true")), ABAR_E_ARGUMENT);
    for (int i = 0; i < 96; i++) fixture_set(&r.f.params[0].value, i, 0.0);
    for (int i = 0; i < 12; i++) fixture_set(&r.f.params[1].value, i, 0.0); /* as biases begin */
    rig_soap(&r, SETTINGS("hyperball=true"));
    assert_int_equal(abar_optim_step(r.optim, &step, NULL), ABAR_E_ARGUMENT);
    assert_non_null(
        strstr(abar_context_error(r.f.ctx), "block 0 of p0 is zero and would stay so; initialise it, or leave out"));
    fixture_set(&r.f.params[0].value, 50, 0.5);
    assert_int_equal(abar_optim_step(r.optim, &step, NULL), ABAR_OK);
    rig_close(&r);
}

/* The same step; where it has another sign than the weight there is no decay, elsewhere all of it. */
static void soap_with_cautious_decay_decays_where_the_step_agrees(void **state)
{
    (void)state;
    static const shape one[] = {{2, {8, 12}}};
    for (int d = 0; d < 2; d++) {
        rig r[2];
        double start[96], end[2][96];
        for (int k = 0; k < 2; k++) { /* the last one: no decay at all */
            rig_open(&r[k], devices[d], one, 1);
            r[k].f.params[0].weight_decay = k == 0 ? 1.0 : 0.0;
            rig_soap(&r[k], SETTINGS(k == 0 ? "cautious=true" : "cautious=false"));
            for (int i = 0; i < 96; i++) start[i] = fixture_get(&r[k].f.params[0].value, i);
            for (int i = 0; i < 2; i++) {
                fixture_fill_grads(&r[k].f, 1.0);
                fixture_step(r[k].optim, 0.1, 0.0, 0.0);
            }
            for (int i = 0; i < 96; i++) end[k][i] = fixture_get(&r[k].f.params[0].value, i);
            rig_close(&r[k]);
        }
        int agreed = 0;
        for (int i = 0; i < 96; i++) {
            const bool agrees = (start[i] - end[1][i]) * start[i] >= 0.0;
            agreed += agrees;
            const double expected = end[1][i] - (agrees ? 0.1 * start[i] : 0.0);
            if (!(fabs(end[0][i] - expected) <= 1e-6))
                fail_msg("%s: %g becomes %g, not %g", devices[d], start[i], end[0][i], expected);
        }
        assert_in_range(agreed, 10, 86);
    }
}

/* ---- identities ------------------------------------------------------------------------------------------------------ */

static const shape squares[] = {{2, {SIDE, SIDE}}, {2, {SIDE, SIDE}}};

static void no_decay(rig *r)
{
    for (int i = 0; i < r->f.n; i++) r->f.params[i].weight_decay = 0.0;
}

static double difference(const abar_tensor *a, const abar_tensor *b)
{
    double error = 0.0, largest = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(b); i++) {
        error = fmax(error, fabs(fixture_get(a, i) - fixture_get(b, i)));
        largest = fmax(largest, fabs(fixture_get(b, i)));
    }
    return error / largest;
}

/* A full-rank gradient whose singular values are apart: noise, and a diagonal that falls. */
static void fill_square(rig *r, const abar_tensor *t)
{
    for (int i = 0; i < SQUARE; i++)
        fixture_set(t, i, 0.5 * fixture_noise(&r->f) + (i % (SIDE + 1) == 0 ? 3.0 - 0.4 * (double)(i / SIDE) : 0.0));
}

static void soap_makes_no_first_step(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++)
        for (int kl = 0; kl < 2; kl++) {
            rig r;
            double before[PARAMS];
            rig_open(&r, devices[d], shapes, PARAMS);
            rig_soap(&r, SETTINGS(kl ? "soap-factors=kl" : "normalize=true"));
            for (int i = 0; i < PARAMS; i++) before[i] = fixture_get(&r.f.params[i].value, 0);
            fixture_fill_grads(&r.f, 1.0);
            assert_false(fixture_step(r.optim, 0.1, 0.0, 0.0).skipped);
            for (int i = 0; i < PARAMS; i++) assert_true(fixture_get(&r.f.params[i].value, 0) == before[i]);
            fixture_fill_grads(&r.f, 1.0);
            fixture_step(r.optim, 0.1, 0.0, 0.0);
            for (int i = 0; i < PARAMS; i++) assert_false(fixture_get(&r.f.params[i].value, 0) == before[i]);
            rig_close(&r);
        }
}

/* Without rotations and eps it is AdamW from the second gradient on. */
static void soap_without_rotations_is_adamw_one_step_later(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig a, b;
        rig_open(&a, devices[d], shapes, PARAMS);
        rig_open(&b, devices[d], shapes, PARAMS);
        no_decay(&a), no_decay(&b);
        rig_soap(&a, SETTINGS("max-dim=0", "eps=0", "beta1=0.9", "beta2=0.99"));
        assert_int_equal(rig_try_rule(&b, "adamw", SETTINGS("beta1=0.9", "beta2=0.99", "eps=1e-30")), ABAR_OK);
        for (int k = 0; k < 6; k++) {
            fixture_fill_grads(&a.f, 1.0);
            for (int i = 0; i < PARAMS; i++)
                memcpy(b.f.params[i].grad.data, a.f.params[i].grad.data, abar_tensor_bytes(&a.f.params[i].grad));
            fixture_step(a.optim, 0.1, 0.0, 0.0);
            if (k > 0) fixture_step(b.optim, 0.1, 0.0, 0.0);
        }
        for (int i = 0; i < PARAMS; i++)
            assert_true(difference(&a.f.params[i].value, &b.f.params[i].value) <= tolerance_on(devices[d]));
        rig_close(&a);
        rig_close(&b);
    }
}

/* With eps it is AdamW with eps / sqrt(1 - beta2^t): that of the uncorrected root. */
static void soap_without_rotations_has_adamws_eps_uncorrected(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig r;
        double w[SQUARE], m[SQUARE] = {0.0}, v[SQUARE] = {0.0};
        rig_open(&r, devices[d], squares, 1);
        no_decay(&r);
        rig_soap(&r, SETTINGS("max-dim=0", "eps=0.1", "beta1=0.9", "beta2=0.99"));
        for (int i = 0; i < SQUARE; i++) w[i] = fixture_get(&r.f.params[0].value, i);
        for (int t = 0; t <= 5; t++) {
            fixture_fill_grads(&r.f, 1.0);
            const double first = 1.0 - pow(0.9, t), second = 1.0 - pow(0.99, t);
            for (int i = 0; i < SQUARE && t > 0; i++) {
                const double g = fixture_get(&r.f.params[0].grad, i);
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.99 * v[i] + 0.01 * g * g;
                w[i] -= 0.05 * (m[i] / first) / (sqrt(v[i] / second) + 0.1 / sqrt(second));
            }
            fixture_step(r.optim, 0.05, 0.0, 0.0);
        }
        for (int i = 0; i < SQUARE; i++)
            assert_true(fabs(fixture_get(&r.f.params[0].value, i) - w[i]) <= tolerance_on(devices[d]));
        rig_close(&r);
    }
}

/* Problem and weights rotated by orthogonal matrices rotate the trajectory. */
static void soap_follows_rotations(void **state)
{
    (void)state;
    double left[SQUARE], right[SQUARE];
    fill_rotation(0.4, left);
    fill_rotation(1.1, right);
    for (int d = first_device(); d < 2; d++)
        for (int kl = 0; kl < 2; kl++) {
            rig r;
            rig_open(&r, devices[d], squares, 2);
            rig_soap(&r, SETTINGS(kl ? "soap-factors=kl" : "soap-factors=shampoo", "soap-freq=2", "eps=1e-3"));
            const abar_optim_param *straight = &r.f.params[0], *turned = &r.f.params[1];
            rotate_into(left, &straight->value, right, &turned->value);
            for (int k = 0; k < 8; k++) {
                fill_square(&r, &straight->grad);
                rotate_into(left, &straight->grad, right, &turned->grad);
                fixture_step(r.optim, 0.02, 0.0, 0.0);
            }
            rotate_into(left, &straight->value, right, &straight->grad);
            assert_true(difference(&turned->value, &straight->grad) <= tolerance_on(devices[d]));
            rig_close(&r);
        }
}

/* Without eps the scale of gradients cancels. Powers of two leave no rounding but that of the overall scale. */
static void soap_without_eps_ignores_the_scale_of_gradients(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig r;
        rig_open(&r, devices[d], squares, 2);
        rig_soap(&r, SETTINGS("soap-freq=2", "eps=0"));
        for (int i = 0; i < SQUARE; i++) fixture_set(&r.f.params[1].value, i, fixture_get(&r.f.params[0].value, i));
        for (int k = 0; k < 8; k++) {
            fill_square(&r, &r.f.params[0].grad);
            for (int i = 0; i < SQUARE; i++) fixture_set(&r.f.params[1].grad, i, 1024.0 * fixture_get(&r.f.params[0].grad, i));
            fixture_step(r.optim, 0.02, 0.0, 0.0);
        }
        assert_true(difference(&r.f.params[1].value, &r.f.params[0].value) <= tolerance_on(devices[d]));
        rig_close(&r);
    }
}

/* With normalize every step has the length of the rate, but for the bias correction. */
static void soap_normalized_steps_have_the_rms_of_the_rate(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig r;
        double before[SQUARE], sum = 0.0;
        rig_open(&r, devices[d], squares, 1);
        no_decay(&r);
        rig_soap(&r, SETTINGS("normalize=true", "correct-bias=false", "soap-freq=1"));
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < SQUARE; i++) before[i] = fixture_get(&r.f.params[0].value, i);
            fill_square(&r, &r.f.params[0].grad);
            fixture_step(r.optim, 0.03, 0.0, 0.0);
        }
        for (int i = 0; i < SQUARE; i++) sum += pow(fixture_get(&r.f.params[0].value, i) - before[i], 2.0);
        assert_true(fabs(sqrt(sum / SQUARE) - 0.03) <= 0.03 * tolerance_on(devices[d]));
        rig_close(&r);
    }
}

/* q, k and v of a fused projection, and groups of a convolution, are treated as if they were parameters. */
static void check_parts(const char *device, const shape *whole, const shape *parts, int n, const char *const *settings)
{
    rig a, b;
    rig_open(&a, device, whole, 1);
    rig_open(&b, device, parts, n);
    abar_layer *l = rig_layer(&a, 0, -1);
    if (whole->ndim == 4)
        l->window.groups = n;
    else
        l->attention = (abar_attention){.heads = 2, .value_row = 2 * whole->dim[0] / 3, .value_rows = whole->dim[0] / 3};
    for (int i = 0; i < n; i++) rig_layer(&b, i, -1);
    rig_soap(&a, settings);
    rig_soap(&b, settings);
    for (int k = 0; k < 6; k++) {
        fixture_fill_grads(&a.f, 1.0);
        for (int i = 0; i < n; i++) {
            const size_t bytes = abar_tensor_bytes(&b.f.params[i].grad);
            memcpy(b.f.params[i].grad.data, (char *)a.f.params[0].grad.data + (size_t)i * bytes, bytes);
            if (k == 0) memcpy(b.f.params[i].value.data, (char *)a.f.params[0].value.data + (size_t)i * bytes, bytes);
        }
        fixture_step(a.optim, 0.02, 0.0, 0.0);
        fixture_step(b.optim, 0.02, 0.0, 0.0);
    }
    for (int i = 0; i < n; i++) {
        const size_t bytes = abar_tensor_bytes(&b.f.params[i].value);
        assert_memory_equal(b.f.params[i].value.data, (char *)a.f.params[0].value.data + (size_t)i * bytes, bytes);
    }
    rig_close(&a);
    rig_close(&b);
}

static void soap_of_fused_qkv_and_of_groups_is_that_of_their_parts(void **state)
{
    (void)state;
    static const shape fused[] = {{2, {24, 8}}}, thirds[] = {{2, {8, 8}}, {2, {8, 8}}, {2, {8, 8}}};
    static const shape grouped[] = {{4, {8, 3, 2, 2}}}, halves[] = {{4, {4, 3, 2, 2}}, {4, {4, 3, 2, 2}}};
    for (int d = first_device(); d < 2; d++) {
        check_parts(devices[d], fused, thirds, 3, SETTINGS("soap-freq=2"));
        check_parts(devices[d], fused, thirds, 3, SETTINGS("soap-freq=2", "soap-factors=kl"));
        check_parts(devices[d], grouped, halves, 2, SETTINGS("soap-freq=2"));
        check_parts(devices[d], grouped, halves, 2, SETTINGS("soap-freq=2", "soap-conv=modes"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(soap_on_ref_is_the_oracles),
        cmocka_unit_test(soap_on_cpu_is_the_oracles),
        cmocka_unit_test(soap_is_its_authors),
        cmocka_unit_test(soap_on_the_hyperball_keeps_norms),
        cmocka_unit_test(soap_on_the_hyperball_refuses_decay_and_zero_matrices),
        cmocka_unit_test(soap_with_cautious_decay_decays_where_the_step_agrees),
        cmocka_unit_test(soap_makes_no_first_step),
        cmocka_unit_test(soap_without_rotations_is_adamw_one_step_later),
        cmocka_unit_test(soap_without_rotations_has_adamws_eps_uncorrected),
        cmocka_unit_test(soap_follows_rotations),
        cmocka_unit_test(soap_without_eps_ignores_the_scale_of_gradients),
        cmocka_unit_test(soap_normalized_steps_have_the_rms_of_the_rate),
        cmocka_unit_test(soap_of_fused_qkv_and_of_groups_is_that_of_their_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
