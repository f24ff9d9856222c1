/* What Shampoo keeps and what it does when numbers go wrong (optimizers.md section 1), its arguments, and mistakes in the plans
 * of blocks. What holds for every rule: test_rule_faults.c. */
#include "optim/muon_rig.h"
#include "optim/optim_snapshot.h"

#include "plan/block_plan.h"
#include "repeated.h"

static const char *const devices[] = {"ref", "cpu"};
static void open_mixed(rig *r, const char *device, const char *const *settings)
{
    rig_open_mixed(r, device, "shampoo", settings);
}

/* ---- state ------------------------------------------------------------------------------------------------------------ */

static void shampoo_names_its_state(void **state)
{
    (void)state;
    static const char *const expected[] = {"factors.p0",  "factors.p1",  "factors.p2", "squares.p0",     "squares.p1",
                                           "squares.p2",  "roots.p0",    "roots.p1",   "roots.p2",       "momentum.p0",
                                           "momentum.p1", "momentum.p2", "updates",    "blocks_dropped", "blocks_kept"};
    rig r;
    open_mixed(&r, "cpu", SETTINGS("graft=adam", "shampoo-block=16"));
    snapshot s = take(&r.f, r.optim);
    assert_int_equal(s.n, sizeof expected / sizeof *expected);
    for (int i = 0; i < s.n; i++) assert_string_equal(s.names[i], expected[i]);
    assert_int_equal(abar_rule_find("shampoo")->states, 4); /* of each parameter: memory plans count on it */
    /* 12 x 20 in pieces of 16: 12 x 16 and 12 x 4; a vector of 12; 8 x 3 x 9 (27 is more than 16) */
    assert_int_equal(abar_tensor_count(&s.tensors[0]), 2 * 144 + 256 + 16);
    assert_int_equal(abar_tensor_count(&s.tensors[1]), 144);
    assert_int_equal(abar_tensor_count(&s.tensors[2]), 64 + 9 + 81);
    assert_int_equal(abar_tensor_count(&s.tensors[9]), 240);
    assert_int_equal(abar_optim_blocks(r.optim)->blocks, 4);
    assert_int_equal(abar_optim_param_info(r.optim, 0)->blocks, 2);
    assert_int_equal(abar_optim_param_info(r.optim, 0)->block_columns, 16);
    drop(&s);
    rig_close(&r);
}

static void shampoo_without_graft_and_momentum_keeps_factors_alone(void **state)
{
    (void)state;
    rig r;
    open_mixed(&r, "ref", SETTINGS("beta1=0", "graft=sgd"));
    snapshot s = take(&r.f, r.optim);
    assert_int_equal(s.n, 6 + 3);
    fixture_step(r.optim, 0.02, 0.0, 0.0);
    drop(&s);
    rig_close(&r);
}

static void shampoo_plans_its_bytes(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) rig_check_bytes(devices[d], "shampoo", SETTINGS("graft=adam", "shampoo-block=7"));
}

static void shampoo_takes_new_settings(void **state)
{
    (void)state;
    rig r;
    open_mixed(&r, "ref", NULL);
    assert_int_equal(rig_set(&r, "shampoo", SETTINGS("shampoo-eps=1e-3", "shampoo-freq=4", "beta1=0.5")), ABAR_OK);
    const char *const *refused[] = {SETTINGS("beta1=0"), SETTINGS("graft=adam"), SETTINGS("shampoo-block=4")};
    for (int i = 0; i < 3; i++) assert_int_equal(rig_set(&r, "shampoo", refused[i]), ABAR_E_ARGUMENT);
    fixture_step(r.optim, 0.02, 0.0, 0.0);
    rig_close(&r);
}

static void shampoo_refuses_impossible_settings(void **state)
{
    (void)state;
    const char *const *refused[] = {SETTINGS("beta3=-0.5"), SETTINGS("beta1=0", "beta3=0.5"), SETTINGS("shampoo-exponent=-0.5"),
                                    SETTINGS("split=heads:0")};
    for (int i = 0; i < 4; i++) {
        rig r;
        rig_open(&r, "ref", mixed, 3);
        assert_int_equal(rig_try_rule(&r, "shampoo", refused[i]), ABAR_E_ARGUMENT);
        assert_null(r.optim);
        rig_close(&r);
    }
}

/* ---- numbers that go wrong --------------------------------------------------------------------------------------------- */

/* Its products would be infinite: factors stay, the step is made with the roots there are, the next steps go on. */
static void shampoo_keeps_its_factors_when_products_overflow(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig r;
        open_mixed(&r, devices[d], SETTINGS("graft=adam", "shampoo-block=20", "beta1=0", "shampoo-eps=1e-3"));
        fixture_fill_grads(&r.f, 1.0);
        fixture_step(r.optim, 0.02, 0.0, 0.0);
        snapshot before = take(&r.f, r.optim);
        fixture_fill_grads(&r.f, 1.0);
        fixture_fill(&r.f, &r.f.params[0].grad, d == 0 ? 1e150 : 1e18);
        assert_false(fixture_step(r.optim, 0.02, 0.0, 0.0).skipped);
        snapshot after = take(&r.f, r.optim);
        assert_true(fixture_same_bits(&before.tensors[0], &after.tensors[0])); /* factors and squares of p0, */
        assert_true(fixture_same_bits(&before.tensors[3], &after.tensors[3]));
        assert_false(fixture_same_bits(&before.tensors[1], &after.tensors[1])); /* but not those of p1 */
        assert_string_equal(after.names[after.n - 1], "blocks_kept");
        assert_int_equal(*(const int64_t *)after.tensors[after.n - 1].data, 2);
        assert_int_equal(abar_optim_blocks(r.optim)->kept, 2);
        fixture_fill_grads(&r.f, 1.0);
        fixture_step(r.optim, 0.02, 0.0, 0.0);
        for (int64_t i = 0; i < 240; i++) assert_true(isfinite(fixture_get(&r.f.params[0].value, i)));
        drop(&before);
        drop(&after);
        rig_close(&r);
    }
}

/* Without eps the factors of a zero gradient have no roots: the identity serves, and the parameter only decays. */
static void shampoo_without_roots_multiplies_by_the_identity(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig r;
        open_mixed(&r, devices[d], SETTINGS("shampoo-eps=0", "shampoo-block=20", "beta1=0"));
        for (int i = 0; i < 3; i++)
            for (int64_t k = 0; k < abar_tensor_count(&r.f.params[i].grad); k++) fixture_set(&r.f.params[i].grad, k, 0.0);
        const double weight = fixture_get(&r.f.params[0].value, 5);
        fixture_step(r.optim, 0.02, 0.0, 0.0);
        snapshot s = take(&r.f, r.optim);
        assert_int_equal(*(const int64_t *)s.tensors[s.n - 1].data, 2 + 1 + 3); /* modes: 12 x 20, 12, 8 x 3 x 9 */
        assert_int_equal(*(const int64_t *)s.tensors[s.n - 2].data, 0);
        assert_true(fabs(fixture_get(&r.f.params[0].value, 5) - (1.0 - 0.02 * 0.1) * weight) <= 1e-7 * fabs(weight));
        drop(&s);
        rig_close(&r);
    }
}

/* diag(2, 3, 0) has singular factors, whose roots do not exist without eps: it is raised to 1e-8 of the mean eigenvalue, and
 * the step is diag(1, 1, 0). */
static void shampoo_raises_eps_until_there_are_roots(void **state)
{
    (void)state;
    static const shape one[] = {{2, {3, 3}}};
    for (int d = first_device(); d < 2; d++) {
        rig r;
        rig_open(&r, devices[d], one, 1);
        r.f.params[0].weight_decay = 0.0;
        assert_int_equal(rig_try_rule(&r, "shampoo", SETTINGS("shampoo-eps=0", "shampoo-block=3", "beta1=0")), ABAR_OK);
        for (int i = 0; i < 9; i++) {
            fixture_set(&r.f.params[0].value, i, 0.0);
            fixture_set(&r.f.params[0].grad, i, i == 0 ? 2.0 : i == 4 ? 3.0 : 0.0);
        }
        fixture_step(r.optim, 1.0, 0.0, 0.0);
        for (int i = 0; i < 9; i++)
            assert_true(fabs(fixture_get(&r.f.params[0].value, i) + (i == 0 || i == 4 ? 1.0 : 0.0)) <= 1e-6);
        assert_int_equal(abar_optim_blocks(r.optim)->kept, 0);
        rig_close(&r);
    }
}

/* ---- huge shapes --------------------------------------------------------------------------------------------------------- */

static void keep_blocks(void *user, const abar_param_info *info) { *(int64_t *)user = info->blocks; }

/* Parameters have shapes, but no memory. */
static void shampoo_refuses_more_blocks_than_it_can_count(void **state)
{
    (void)state;
    static const struct {
        shape shape;
        const char *block, *refusal;
        int64_t blocks;
    } row[] = {{{2, {65536, 65536}}, "shampoo-block=1", "p0 is cut into 4294967296 blocks", 0},
               {{2, {70000, 70000}}, "shampoo-block=1", "p0 is cut into 4900000000 blocks", 0},
               {{3, {INT64_C(1) << 20, INT64_C(1) << 20, INT64_C(1) << 20}}, "shampoo-block=1", "choose larger blocks", 0},
               {{1, {INT64_C(1) << 46}}, "shampoo-block=1048576", "choose smaller blocks", 0},
               {{2, {70000, 70000}}, "shampoo-block=1024", NULL, 69 * 69}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        rig r;
        int64_t blocks = 0;
        rig_open(&r, "cpu", mixed, 1);
        const abar_tensor t = abar_tensor_wrap(r.f.dev, NULL, abar_device_dtype(r.f.dev), row[i].shape.ndim, row[i].shape.dim);
        const abar_optim_param param = {.name = "p0", .value = t, .grad = t, .lr_scale = 1.0};
        void *config = fixture_config(&r.f, "shampoo", SETTINGS(row[i].block));
        const abar_optim_config c = {
            .size = sizeof c, .rule = "shampoo", .rule_config = config, .params = &param, .n_params = 1, .base_lr = 0.02};
        const abar_status status = abar_optim_plan_params(r.f.dev, &c, keep_blocks, &blocks);
        assert_int_equal(status, row[i].refusal ? ABAR_E_ARGUMENT : ABAR_OK);
        assert_int_equal(blocks, row[i].blocks);
        if (row[i].refusal && !strstr(abar_context_error(r.f.ctx), row[i].refusal)) fail_msg("%s", abar_context_error(r.f.ctx));
        free(config);
        rig_close(&r);
    }
}

/* ---- plans --------------------------------------------------------------------------------------------------------------- */

static void plans_of_blocks_refuse_handles_of_another_kind(void **state)
{
    (void)state;
    abar__block_plan p = {0};
    const abar__factors s = abar__blocks_average(&p, "S", ABAR_LEFT, 0.9);
    assert_null(p.wrong);
    abar__blocks_multiply(&p, s); /* an average is no root */
    assert_non_null(p.wrong);
    p = (abar__block_plan){0};
    const abar__moments v = abar__blocks_squares(&p, "V", 0.9);
    abar__blocks_inverse_root(&p, "R", (abar__factors){v.index}, true, 0.25, 1e-3, 1, 1);
    assert_non_null(p.wrong);
    p = (abar__block_plan){0};
    abar__blocks_rescale(&p); /* to nothing */
    assert_non_null(p.wrong);
    p = (abar__block_plan){0};
    const abar__factors r =
        abar__blocks_inverse_root(&p, "R", abar__blocks_average(&p, "S", ABAR_RIGHT, 1.0), true, 0.5, 0.0, 0, 1);
    assert_non_null(p.wrong); /* there is no update 0 */
    assert_int_equal(p.state[r.index].modes, ABAR_RIGHT);
    p = (abar__block_plan){0};
    for (int i = 0; i < ABAR_BLOCK_STATES; i++) abar__blocks_squares(&p, "V", 0.9);
    assert_null(p.wrong);
    abar__blocks_squares(&p, "V", 0.9);
    assert_non_null(p.wrong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shampoo_names_its_state),
        cmocka_unit_test(shampoo_without_graft_and_momentum_keeps_factors_alone),
        cmocka_unit_test(shampoo_plans_its_bytes),
        cmocka_unit_test(shampoo_takes_new_settings),
        cmocka_unit_test(shampoo_refuses_impossible_settings),
        cmocka_unit_test(shampoo_keeps_its_factors_when_products_overflow),
        cmocka_unit_test(shampoo_without_roots_multiplies_by_the_identity),
        cmocka_unit_test(shampoo_raises_eps_until_there_are_roots),
        cmocka_unit_test(shampoo_refuses_more_blocks_than_it_can_count),
        cmocka_unit_test(plans_of_blocks_refuse_handles_of_another_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
