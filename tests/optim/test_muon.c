/* Muon through an optimizer: against the float64 oracle (tests/oracle/muon.py), and the identities of methods.md section 11.
 * Its state: test_muon_state.c; which parameter gets which rule: tests/train/test_muon_runs.c. */
#include "optim/golden_steps.h"
#include "optim/rotations.h"

/* ---- the oracle ------------------------------------------------------------------------------------------------------ */

static const char *const names[] = {"tall", "wide", "square", "conv"};
static const shape shapes[] = {{2, {24, 10}}, {2, {9, 30}}, {2, {14, 14}}, {4, {8, 3, 3, 3}}};

static const golden_set steps = {.rule = "muon",
                                 .file = ABAR_TEST_DATA "/golden/muon_steps.safetensors",
                                 .names = names,
                                 .shapes = shapes,
                                 .n = 4,
                                 .layers = 4,
                                 .cases = 13,
                                 .options = 10};

static void muon_on_ref_is_the_oracles(void **state)
{
    (void)state;
    golden_check(&steps, "ref", 1e-9);
}

static void muon_on_cpu_is_the_oracles(void **state)
{
    (void)state;
    golden_check(&steps, "cpu", 1e-5);
}

/* ---- identities ------------------------------------------------------------------------------------------------------ */

static const char *const devices[] = {"ref", "cpu"};
static double tolerance_on(const char *device) { return strcmp(device, "ref") == 0 ? 1e-11 : 1e-5; }

static void muon_of_scaled_gradients_is_the_same(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        rig a, b;
        rig_open(&a, devices[d], shapes, 4);
        rig_open(&b, devices[d], shapes, 4);
        for (int i = 0; i < 4; i++) rig_layer(&a, i, -1), rig_layer(&b, i, -1);
        rig_optim(&a, NULL);
        rig_optim(&b, NULL);
        for (int k = 0; k < 5; k++) {
            fixture_fill_grads(&a.f, 1.0);
            fixture_fill_grads(&b.f, 1000.0);
            fixture_step(a.optim, 0.02, 0.0, 0.0);
            fixture_step(b.optim, 0.02, 0.0, 0.0);
        }
        for (int i = 0; i < 4; i++)
            assert_true(rig_difference(&a.f.params[i].value, 0, &b.f.params[i].value) <= tolerance_on(devices[d]));
        rig_close(&a);
        rig_close(&b);
    }
}

/* NS(PXQ) = P NS(X) Q: weights and gradients rotated by orthogonal matrices have rotated trajectories. */
static void muon_follows_rotations(void **state)
{
    (void)state;
    static const shape squares[] = {{2, {SIDE, SIDE}}, {2, {SIDE, SIDE}}};
    double left[SQUARE], right[SQUARE];
    fill_rotation(0.4, left);
    fill_rotation(1.1, right);
    for (int d = 0; d < 2; d++) {
        rig r;
        rig_open(&r, d == 0 ? "ref" : "cpu", squares, 2);
        for (int i = 0; i < 2; i++) rig_layer(&r, i, -1);
        rig_optim(&r, NULL);
        const abar_optim_param *straight = &r.f.params[0], *turned = &r.f.params[1];
        rotate_into(left, &straight->value, right, &turned->value);
        for (int k = 0; k < 8; k++) {
            fixture_fill(&r.f, &straight->grad, 1.0);
            rotate_into(left, &straight->grad, right, &turned->grad);
            fixture_step(r.optim, 0.02, 0.0, 0.0);
        }
        rotate_into(left, &straight->value, right, &straight->grad);
        assert_true(rig_difference(&turned->value, 0, &straight->grad) <= (d == 0 ? 1e-11 : 1e-4));
        rig_close(&r);
    }
}

static void muon_of_fused_qkv_is_that_of_its_pieces(void **state)
{
    (void)state;
    static const shape fused[] = {{2, {24, 12}}}, third[] = {{2, {8, 12}}, {2, {8, 12}}, {2, {8, 12}}};
    static const shape head[] = {{2, {4, 12}}, {2, {4, 12}}, {2, {4, 12}}, {2, {4, 12}}, {2, {4, 12}}, {2, {4, 12}}};
    static const struct {
        const char *split;
        const shape *pieces;
        int n;
    } all[] = {{"split=qkv", third, 3}, {"split=heads:2", third, 3}, {"split=heads:1", head, 6}, {"split=none", fused, 1}};
    for (int d = 0; d < 2; d++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            rig a, b;
            rig_open(&a, devices[d], fused, 1);
            rig_open(&b, devices[d], all[i].pieces, all[i].n);
            rig_layer(&a, 0, -1)->attention = (abar_attention){.heads = 2, .value_row = 16, .value_rows = 8};
            for (int k = 0; k < all[i].n; k++) rig_layer(&b, k, -1);
            rig_optim(&a, SETTINGS(all[i].split, "normuon=true"));
            rig_optim(&b, SETTINGS("normuon=true"));
            rig_check_pieces(&a, &b, tolerance_on(devices[d]));
            rig_close(&a);
            rig_close(&b);
        }
}

static void muon_of_a_grouped_convolution_is_that_of_its_groups(void **state)
{
    (void)state;
    static const shape grouped[] = {{4, {16, 2, 3, 3}}}, groups[] = {{4, {8, 2, 3, 3}}, {4, {8, 2, 3, 3}}};
    for (int d = 0; d < 2; d++) {
        rig a, b;
        rig_open(&a, devices[d], grouped, 1);
        rig_open(&b, devices[d], groups, 2);
        rig_layer(&a, 0, -1)->window.groups = 2;
        for (int k = 0; k < 2; k++) rig_layer(&b, k, -1);
        rig_optim(&a, NULL);
        rig_optim(&b, NULL);
        rig_check_pieces(&a, &b, tolerance_on(devices[d]));
        rig_close(&a);
        rig_close(&b);
    }
}

static void muon_of_a_pointwise_convolution_is_that_of_a_linear_layer(void **state)
{
    (void)state;
    static const shape pointwise[] = {{4, {10, 20, 1, 1}}}, linear[] = {{2, {10, 20}}};
    for (int d = 0; d < 2; d++) {
        rig a, b;
        rig_open(&a, devices[d], pointwise, 1);
        rig_open(&b, devices[d], linear, 1);
        rig_layer(&a, 0, -1);
        rig_layer(&b, 0, -1);
        rig_optim(&a, NULL);
        rig_optim(&b, NULL);
        rig_check_pieces(&a, &b, 0.0);
        rig_close(&a);
        rig_close(&b);
    }
}

/* Gradients of a sum over micro-batches, divided by the step, are those of the mean; AdamW would notice. */
static void muon_divides_accumulated_gradients(void **state)
{
    (void)state;
    static const shape both[] = {{2, {12, 20}}, {1, {12}}};
    for (int d = 0; d < 2; d++) {
        rig a, b;
        rig_open(&a, devices[d], both, 2);
        rig_open(&b, devices[d], both, 2);
        rig_layer(&a, 0, 1), rig_layer(&b, 0, 1);
        rig_optim(&a, SETTINGS("aux-eps=0.1"));
        rig_optim(&b, SETTINGS("aux-eps=0.1"));
        rig_check_divided(&b, &a, tolerance_on(devices[d]));
        rig_close(&a);
        rig_close(&b);
    }
}

/* ---- hyperball and cautious decay ------------------------------------------------------------------------------------- */

static double norm_of(const abar_tensor *t, int64_t first, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = first; i < first + n; i++) sum += fixture_get(t, i) * fixture_get(t, i);
    return sqrt(sum);
}

static void no_decay(rig *r)
{
    for (int i = 0; i < r->f.n; i++) r->f.params[i].weight_decay = 0.0;
}

/* Every block of a fused projection keeps its own norm, and adj cancels. */
static void muon_on_the_hyperball_keeps_norms_whatever_adj_is(void **state)
{
    (void)state;
    static const shape fused[] = {{2, {24, 12}}};
    for (int d = 0; d < 2; d++) {
        rig r[2];
        double before[3];
        for (int k = 0; k < 2; k++) {
            rig_open(&r[k], devices[d], fused, 1);
            no_decay(&r[k]);
            rig_layer(&r[k], 0, -1)->attention = (abar_attention){.heads = 2, .value_row = 16, .value_rows = 8};
            rig_optim(&r[k], SETTINGS("hyperball=true", k == 0 ? "muon-adjust=none" : "muon-adjust=match-rms"));
        }
        assert_int_equal(abar_optim_param_info(r[0].optim, 0)->blocks, 3);
        for (int b = 0; b < 3; b++) before[b] = norm_of(&r[0].f.params[0].value, 96 * b, 96);
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 6; i++) {
                fixture_fill_grads(&r[k].f, 1.0);
                fixture_step(r[k].optim, 0.1, 0.0, 0.0);
            }
        for (int b = 0; b < 3; b++) {
            const double now = norm_of(&r[0].f.params[0].value, 96 * b, 96);
            assert_true(fabs(now - before[b]) <= tolerance_on(devices[d]) * before[b]);
        }
        assert_true(rig_difference(&r[0].f.params[0].value, 0, &r[1].f.params[0].value) <= tolerance_on(devices[d]));
        rig_close(&r[0]), rig_close(&r[1]);
    }
}

static void muon_on_the_hyperball_refuses_decay_and_zero_blocks(void **state)
{
    (void)state;
    static const shape two[] = {{2, {8, 12}}, {2, {24, 12}}};
    rig r;
    rig_open(&r, "cpu", two, 2);
    rig_layer(&r, 0, -1);
    rig_layer(&r, 1, -1)->attention = (abar_attention){.heads = 2, .value_row = 16, .value_rows = 8};
    assert_int_equal(rig_try(&r, SETTINGS("hyperball=true")), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(r.f.ctx), "--weight-decay 0"));
    no_decay(&r);
    assert_int_equal(rig_try(&r, SETTINGS("hyperball=true", "cautious=true")), ABAR_E_ARGUMENT);
    for (int i = 96; i < 192; i++) fixture_set(&r.f.params[1].value, i, 0.0);
    rig_optim(&r, SETTINGS("hyperball=true"));
    const abar_step_config step = {.size = sizeof step, .lr = 0.1};
    assert_int_equal(abar_optim_step(r.optim, &step, NULL), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(r.f.ctx), "block 1 of p1"));
    fixture_set(&r.f.params[1].value, 100, 0.5);
    assert_int_equal(abar_optim_step(r.optim, &step, NULL), ABAR_OK);
    abar_optim_param *p = &r.f.params[0];
    assert_int_equal(abar_optim_set_param(r.optim, 0, p->value.data, p->grad.data, 1.0, 0.1), ABAR_E_ARGUMENT);
    rig_close(&r);
}

/* The same step; where it has another sign than the weight there is no decay, elsewhere all of it. */
static void muon_with_cautious_decay_decays_where_the_step_agrees(void **state)
{
    (void)state;
    static const shape one[] = {{2, {8, 12}}};
    for (int d = 0; d < 2; d++) {
        rig r[3];
        static const char *const cautious[] = {"cautious=true", "cautious=false", "cautious=false"};
        double start[96], end[3][96];
        for (int k = 0; k < 3; k++) { /* the last one: no decay at all */
            rig_open(&r[k], devices[d], one, 1);
            r[k].f.params[0].weight_decay = k == 2 ? 0.0 : 1.0;
            rig_layer(&r[k], 0, -1);
            rig_optim(&r[k], SETTINGS(cautious[k]));
            for (int i = 0; i < 96; i++) start[i] = fixture_get(&r[k].f.params[0].value, i);
            fixture_step(r[k].optim, 0.1, 0.0, 0.0);
            for (int i = 0; i < 96; i++) end[k][i] = fixture_get(&r[k].f.params[0].value, i);
            rig_close(&r[k]);
        }
        int agreed = 0;
        for (int i = 0; i < 96; i++) {
            const bool agrees = (start[i] - end[2][i]) * start[i] >= 0.0;
            agreed += agrees;
            assert_true(fabs(end[0][i] - end[agrees ? 1 : 2][i]) <= 1e-7);
        }
        assert_in_range(agreed, 10, 86);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(muon_on_ref_is_the_oracles),
        cmocka_unit_test(muon_on_cpu_is_the_oracles),
        cmocka_unit_test(muon_of_scaled_gradients_is_the_same),
        cmocka_unit_test(muon_follows_rotations),
        cmocka_unit_test(muon_of_fused_qkv_is_that_of_its_pieces),
        cmocka_unit_test(muon_of_a_grouped_convolution_is_that_of_its_groups),
        cmocka_unit_test(muon_of_a_pointwise_convolution_is_that_of_a_linear_layer),
        cmocka_unit_test(muon_divides_accumulated_gradients),
        cmocka_unit_test(muon_on_the_hyperball_keeps_norms_whatever_adj_is),
        cmocka_unit_test(muon_on_the_hyperball_refuses_decay_and_zero_blocks),
        cmocka_unit_test(muon_with_cautious_decay_decays_where_the_step_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
