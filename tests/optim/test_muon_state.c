/* What Muon keeps and what it does when numbers go wrong (methods.md section 11), and its arguments. */
#include "optim/muon_rig.h"
#include "optim/optim_snapshot.h"

static const char *const devices[] = {"ref", "cpu"};

/* ---- state ------------------------------------------------------------------------------------------------------------ */

static void open_mixed(rig *r, const char *device, const char *const *settings) { rig_open_mixed(r, device, "muon", settings); }

static void muon_names_its_state(void **state)
{
    (void)state;
    static const char *const expected[] = {"momentum.p0",   "exp_avg.p1", "momentum.p2",    "row_moment.p0", "exp_avg_sq.p1",
                                           "row_moment.p2", "updates",    "blocks_dropped", "blocks_small"};
    rig r;
    open_mixed(&r, "cpu", SETTINGS("normuon=true"));
    snapshot s = take(&r.f, r.optim);
    assert_int_equal(s.n, sizeof expected / sizeof *expected);
    for (int i = 0; i < s.n; i++) assert_string_equal(s.names[i], expected[i]);
    assert_int_equal(abar_tensor_count(&s.tensors[3]), 12); /* one number a row */
    drop(&s);
    rig_close(&r);
}

static void muon_without_momentum_keeps_none(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        rig with, without;
        open_mixed(&with, devices[d], NULL);
        open_mixed(&without, devices[d], SETTINGS("momentum=0"));
        snapshot s = take(&without.f, without.optim);
        for (int i = 0; i < s.n; i++) assert_null(strstr(s.names[i], "momentum"));
        const size_t element = abar_dtype_size(abar_device_dtype(with.f.dev)), most = (12 * 20 + 8 * 27) * element;
        assert_true(abar_optim_state_bytes(with.optim) - abar_optim_state_bytes(without.optim) >= most);
        fixture_step(without.optim, 0.02, 0.0, 0.0);
        drop(&s);
        rig_close(&with);
        rig_close(&without);
    }
}

static void step_both(rig *a, rig *b)
{
    fixture_fill_grads(&a->f, 1.0);
    for (int i = 0; i < a->f.n; i++)
        memcpy(b->f.params[i].grad.data, a->f.params[i].grad.data, abar_tensor_bytes(&a->f.params[i].grad));
    fixture_step(a->optim, 0.02, 0.0, 0.0);
    fixture_step(b->optim, 0.02, 0.0, 0.0);
}

static void muon_restored_goes_on_bit_for_bit(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        rig a, b;
        open_mixed(&a, devices[d], SETTINGS("normuon=true"));
        open_mixed(&b, devices[d], SETTINGS("normuon=true"));
        for (int k = 0; k < 3; k++) {
            fixture_fill_grads(&a.f, 1.0);
            fixture_step(a.optim, 0.02, 0.0, 0.0);
        }
        snapshot s = take(&a.f, a.optim);
        s.ctx = b.f.ctx;
        assert_int_equal(abar_optim_visit(b.optim, restore, &s), ABAR_OK);
        for (int i = 0; i < 3; i++)
            memcpy(b.f.params[i].value.data, a.f.params[i].value.data, abar_tensor_bytes(&a.f.params[i].value));
        for (int k = 0; k < 3; k++) step_both(&a, &b);
        for (int i = 0; i < 3; i++) assert_true(fixture_same_bits(&a.f.params[i].value, &b.f.params[i].value));
        drop(&s);
        rig_close(&a);
        rig_close(&b);
    }
}

static void muon_takes_new_settings(void **state)
{
    (void)state;
    rig r;
    open_mixed(&r, "ref", NULL);
    assert_int_equal(rig_set(&r, "muon", SETTINGS("muon-adjust=none", "aux-lr=1e-3")), ABAR_OK);
    assert_true(fabs(abar_optim_param_info(r.optim, 1)->lr_scale - 0.05) < 1e-12); /* 1e-3 / 0.02 */
    const char *const *refused[] = {SETTINGS("momentum=0"), SETTINGS("normuon=true"), SETTINGS("muon-skip=p0")};
    for (int i = 0; i < 3; i++) assert_int_equal(rig_set(&r, "muon", refused[i]), ABAR_E_ARGUMENT);
    fixture_step(r.optim, 0.02, 0.0, 0.0);
    rig_close(&r);
}

static void muon_plans_its_bytes(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) rig_check_bytes(devices[d], "muon", NULL);
}

/* ---- numbers that go wrong --------------------------------------------------------------------------------------------- */

static void muon_skips_a_gradient_that_is_not_finite(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        rig r;
        open_mixed(&r, devices[d], SETTINGS("normuon=true"));
        fixture_step(r.optim, 0.02, 0.0, 0.0);
        snapshot before = take(&r.f, r.optim);
        abar_tensor weights = r.f.params[0].value;
        weights.data = malloc(abar_tensor_bytes(&weights));
        memcpy(weights.data, r.f.params[0].value.data, abar_tensor_bytes(&weights));
        fixture_fill_grads(&r.f, 1.0);
        fixture_set(&r.f.params[2].grad, 5, NAN);
        assert_true(fixture_step(r.optim, 0.02, 0.0, 0.0).skipped);
        snapshot after = take(&r.f, r.optim);
        for (int i = 0; i < before.n; i++) assert_true(fixture_same_bits(&before.tensors[i], &after.tensors[i]));
        assert_true(fixture_same_bits(&weights, &r.f.params[0].value));
        free(weights.data);
        drop(&before);
        drop(&after);
        rig_close(&r);
    }
}

/* In double precision the norm of a block of the largest numbers overflows. */
static void muon_drops_the_update_of_a_block_that_is_not_finite(void **state)
{
    (void)state;
    rig r;
    open_mixed(&r, "ref", SETTINGS("momentum=0.5", "normuon=true"));
    fixture_fill_grads(&r.f, 1.0);
    for (int64_t i = 0; i < 12 * 20; i++) fixture_set(&r.f.params[0].grad, i, 1.5e308);
    abar_tensor before[2];
    for (int i = 0; i < 2; i++) {
        before[i] = r.f.params[2 * i].value;
        before[i].data = malloc(abar_tensor_bytes(&before[i]));
        memcpy(before[i].data, r.f.params[2 * i].value.data, abar_tensor_bytes(&before[i]));
    }
    assert_false(fixture_step(r.optim, 0.02, 0.0, 0.0).skipped);
    assert_true(fixture_same_bits(&before[0], &r.f.params[0].value)); /* not even decayed */
    assert_false(fixture_same_bits(&before[1], &r.f.params[2].value));
    snapshot s = take(&r.f, r.optim);
    assert_true(fixture_get(&s.tensors[0], 0) == 0.75e308);                             /* the average is kept, */
    for (int64_t i = 0; i < 12; i++) assert_true(fixture_get(&s.tensors[3], i) == 0.0); /* and NorMuon's untouched */
    const abar_block_counts counts = *abar_optim_blocks(r.optim);
    assert_int_equal(counts.blocks, 2);
    assert_int_equal(counts.dropped, 1);
    assert_int_equal(counts.small, 0);
    for (int i = 0; i < 2; i++) free(before[i].data);
    drop(&s);
    rig_close(&r);
}

static void muon_counts_blocks_too_small_to_be_normalised(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        rig r;
        open_mixed(&r, devices[d], NULL);
        fixture_fill_grads(&r.f, 1.0);
        fixture_fill(&r.f, &r.f.params[0].grad, 1e-12);
        for (int64_t i = 0; i < 8 * 27; i++) fixture_set(&r.f.params[2].grad, i, 0.0); /* zero only decays: nothing to count */
        const double weight = fixture_get(&r.f.params[2].value, 3);
        fixture_step(r.optim, 0.02, 0.0, 0.0);
        assert_int_equal(abar_optim_blocks(r.optim)->small, 1);
        assert_int_equal(abar_optim_blocks(r.optim)->dropped, 0);
        assert_true(fabs(fixture_get(&r.f.params[2].value, 3) - (1.0 - 0.02 * 0.1) * weight) <= 1e-7 * fabs(weight));
        rig_close(&r);
    }
}

/* ---- parameters ---------------------------------------------------------------------------------------------------------- */

static void muon_leaves_its_biases_to_adamw(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, "ref", mixed, 3);
    rig_layer(&r, 0, 1);
    r.f.params[2].weight_decay = 0.0;
    rig_optim(&r, SETTINGS("aux-lr=1e-3", "aux-weight-decay=0.3"));
    const abar_param_info weight = *abar_optim_param_info(r.optim, 0), bias = *abar_optim_param_info(r.optim, 1);
    const abar_param_info other = *abar_optim_param_info(r.optim, 2); /* of no layer */
    assert_string_equal(weight.rule, "muon");
    assert_int_equal(weight.blocks, 1);
    assert_true(weight.weight_decay == 0.1 && weight.lr_scale == 1.0);
    assert_string_equal(bias.rule, "adamw");
    assert_true(bias.weight_decay == 0.3 && fabs(bias.lr_scale - 0.05) < 1e-12 && bias.blocks == 0);
    assert_string_equal(other.rule, "adamw");
    assert_true(other.weight_decay == 0.0); /* without decay before, and still */
    rig_close(&r);
}

static void keep_rule(void *user, const abar_param_info *param)
{
    const char ***next = user;
    *(*next)++ = param->rule;
}

/* Without memory a layer's weight is known by its name, not by its shape alone. */
static void muon_planned_without_memory_takes_the_same(void **state)
{
    (void)state;
    static const shape equal[] = {{2, {20, 12}}, {2, {20, 12}}, {2, {20, 12}}};
    const char *rules[3], **next = rules;
    rig r;
    rig_open(&r, "ref", equal, 3);
    r.f.params[0].name = "embedding.weight";
    r.f.params[1].name = "hidden.weight";
    r.f.params[2].name = "head.weight";
    rig_layer(&r, 1, -1)->name = "hidden";
    rig_layer(&r, 2, -1)->name = "head";
    abar_optim_param params[3];
    for (int i = 0; i < 3; i++) {
        params[i] = r.f.params[i];
        params[i].value.data = params[i].grad.data = NULL;
    }
    for (int i = 0; i < 2; i++) r.layers[i].weight.data = r.layers[i].weight_grad.data = NULL;
    const abar_optim_config c = {.size = sizeof c,
                                 .rule = "muon",
                                 .params = params,
                                 .n_params = 3,
                                 .layers = r.layers,
                                 .n_layers = 2,
                                 .base_lr = 0.02,
                                 .yields_output = (const bool[]){false, true}};
    assert_int_equal(abar_optim_plan_params(r.f.dev, &c, keep_rule, &next), ABAR_OK);
    assert_string_equal(rules[0], "adamw");
    assert_string_equal(rules[1], "muon");
    assert_string_equal(rules[2], "adamw");
    rig_close(&r);
}

static void muon_leaves_blocks_of_odd_shapes(void **state)
{
    (void)state;
    static const shape odd[] = {{2, {12, 20}}, {4, {16, 1, 3, 3}}, {4, {8, 4, 3, 3}},
                                {2, {3, 40}},  {2, {4, 516}},      {2, {4, 512}}};
    static const char *const why[] = {"hidden layer",   "one input channel per group", "a side below 4",
                                      "a side below 4", "longer than 128 to 1",        "hidden layer"};
    rig r;
    rig_open(&r, "ref", odd, 6);
    for (int i = 0; i < 6; i++) rig_layer(&r, i, -1);
    r.layers[1].window.groups = 16;
    r.layers[2].window.groups = 4; /* blocks of 2 x 36 */
    rig_optim(&r, NULL);
    for (int i = 0; i < 6; i++) assert_string_equal(abar_optim_param_info(r.optim, i)->why, why[i]);
    fixture_step(r.optim, 0.02, 0.0, 0.0);
    rig_close(&r);
}

static void muon_with_nothing_to_take_is_an_error(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, "ref", mixed, 3);
    assert_int_equal(rig_try(&r, NULL), ABAR_E_ARGUMENT); /* no layers */
    assert_non_null(strstr(abar_context_error(r.f.ctx), "--muon-take"));
    rig_layer(&r, 0, 1);
    assert_int_equal(rig_try(&r, SETTINGS("muon-skip=*")), ABAR_E_ARGUMENT);
    assert_int_equal(rig_try(&r, SETTINGS("split=rows")), ABAR_E_ARGUMENT);
    assert_int_equal(rig_try(&r, NULL), ABAR_OK);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(muon_names_its_state),
        cmocka_unit_test(muon_without_momentum_keeps_none),
        cmocka_unit_test(muon_restored_goes_on_bit_for_bit),
        cmocka_unit_test(muon_takes_new_settings),
        cmocka_unit_test(muon_plans_its_bytes),
        cmocka_unit_test(muon_skips_a_gradient_that_is_not_finite),
        cmocka_unit_test(muon_drops_the_update_of_a_block_that_is_not_finite),
        cmocka_unit_test(muon_counts_blocks_too_small_to_be_normalised),
        cmocka_unit_test(muon_leaves_its_biases_to_adamw),
        cmocka_unit_test(muon_planned_without_memory_takes_the_same),
        cmocka_unit_test(muon_leaves_blocks_of_odd_shapes),
        cmocka_unit_test(muon_with_nothing_to_take_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
