/* What SOAP keeps and what it does when numbers go wrong (optimizers.md section 2), its arguments, and mistakes in plans with
 * bases. What holds for every rule: test_rule_faults.c. */
#include "optim/muon_rig.h"
#include "optim/optim_snapshot.h"

#include "plan/block_plan.h"
#include "repeated.h"

static const char *const devices[] = {"ref", "cpu"};

static void open_mixed(rig *r, const char *device, const char *const *settings) { rig_open_mixed(r, device, "soap", settings); }

/* ---- state ------------------------------------------------------------------------------------------------------------ */

static void check_names(const char *const *settings, const char *const *names, const int64_t *counts, int n)
{
    rig r;
    open_mixed(&r, "cpu", settings);
    snapshot s = take(&r.f, r.optim);
    assert_int_equal(s.n, n);
    for (int i = 0; i < n; i++) {
        assert_string_equal(s.names[i], names[i]);
        if (counts[i] > 0) assert_int_equal(abar_tensor_count(&s.tensors[i]), counts[i]);
    }
    drop(&s);
    rig_close(&r);
}

/* A vector has no factors, nor has a side beyond max-dim. */
static void soap_names_its_state(void **state)
{
    (void)state;
    static const char *const matrix[] = {"factors.p0",  "factors.p2",     "bases.p0",   "bases.p2",   "momentum.p0",
                                         "momentum.p1", "momentum.p2",    "squares.p0", "squares.p1", "squares.p2",
                                         "updates",     "blocks_dropped", "blocks_kept"};
    static const int64_t short_sides[] = {144, 64, 144, 64, 240, 12, 216, 240, 12, 216, 0, 0, 0};
    static const int64_t all_sides[] = {144 + 400, 64 + 729, 144 + 400, 64 + 729, 240, 12, 216, 240, 12, 216, 0, 0, 0};
    static const int64_t modes[] = {144 + 400, 64 + 27, 144 + 400, 64 + 27, 240, 12, 216, 240, 12, 216, 0, 0, 0};
    check_names(SETTINGS("max-dim=12"), matrix, short_sides, 13);
    check_names(NULL, matrix, all_sides, 13);
    check_names(SETTINGS("soap-conv=modes"), matrix, modes, 13);
    static const char *const plain[] = {"momentum.p0", "momentum.p1", "momentum.p2",    "squares.p0", "squares.p1",
                                        "squares.p2",  "updates",     "blocks_dropped", "blocks_kept"};
    static const int64_t plain_counts[] = {240, 12, 216, 240, 12, 216, 0, 0, 0};
    check_names(SETTINGS("max-dim=0"), plain, plain_counts, 9);
    static const char *const kl[] = {"factors.p0", "factors.p2",  "bases.p0",    "bases.p2",       "scales.p0",
                                     "scales.p2",  "momentum.p0", "momentum.p1", "momentum.p2",    "squares.p0",
                                     "squares.p1", "squares.p2",  "updates",     "blocks_dropped", "blocks_kept"};
    static const int64_t kl_counts[] = {544, 793, 544, 793, 32, 35, 240, 12, 216, 240, 12, 216, 0, 0, 0};
    check_names(SETTINGS("soap-factors=kl"), kl, kl_counts, 15);
}

static void soap_plans_its_bytes(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) rig_check_bytes(devices[d], "soap", SETTINGS("soap-factors=kl"));
}

static void soap_takes_new_settings(void **state)
{
    (void)state;
    rig r;
    open_mixed(&r, "ref", NULL);
    assert_int_equal(rig_set(&r, "soap", SETTINGS("eps=1e-3", "soap-freq=4", "beta1=0.5", "normalize=true")), ABAR_OK);
    const char *const *refused[] = {SETTINGS("max-dim=12"), SETTINGS("soap-factors=kl"), SETTINGS("soap-conv=modes")};
    for (int i = 0; i < 3; i++) assert_int_equal(rig_set(&r, "soap", refused[i]), ABAR_E_ARGUMENT);
    fixture_step(r.optim, 0.02, 0.0, 0.0);
    rig_close(&r);
}

/* Other parts of a fused projection are other blocks, with other factors. */
static void rules_with_blocks_refuse_other_parts(void **state)
{
    (void)state;
    static const shape one[] = {{2, {12, 4}}};
    static const char *const rules[] = {"soap", "shampoo", "muon"};
    for (int i = 0; i < 3; i++) {
        rig r;
        rig_open(&r, "ref", one, 1);
        rig_layer(&r, 0, -1)->attention = (abar_attention){.heads = 2, .value_row = 8, .value_rows = 4};
        assert_int_equal(rig_try_rule(&r, rules[i], NULL), ABAR_OK);
        assert_int_equal(rig_set(&r, rules[i], SETTINGS("split=none")), ABAR_E_ARGUMENT);
        fixture_step(r.optim, 0.02, 0.0, 0.0);
        rig_close(&r);
    }
}

/* KL-SOAP's scales grow where gradients vanish, from 0.1^-1/2 to 4000 at most. */
static void kl_scales_are_bounded(void **state)
{
    (void)state;
    static const shape one[] = {{2, {6, 6}}};
    for (int d = first_device(); d < 2; d++) {
        rig r;
        rig_open(&r, devices[d], one, 1);
        assert_int_equal(rig_try_rule(&r, "soap", SETTINGS("soap-factors=kl", "shampoo-beta=0.1")), ABAR_OK);
        for (int k = 0; k < 12; k++) {
            fixture_fill_grads(&r.f, k == 0 ? 1.0 : 0.0);
            fixture_step(r.optim, 0.0, 0.0, 0.0);
        }
        snapshot s = take(&r.f, r.optim);
        int found = 0;
        for (int i = 0; i < s.n; i++)
            for (int64_t k = 0; strcmp(s.names[i], "scales.p0") == 0 && k < 12; k++, found++)
                assert_true(fixture_get(&s.tensors[i], k) == 4000.0);
        assert_int_equal(found, 12);
        drop(&s);
        rig_close(&r);
    }
}

/* In double precision squares of 1e160 are no numbers. A parameter that learns later begins with the first scales. */
static void kl_scales_survive_overflows_and_late_gradients(void **state)
{
    (void)state;
    static const shape two[] = {{2, {6, 6}}, {2, {4, 4}}};
    rig r;
    rig_open(&r, "ref", two, 2);
    assert_int_equal(rig_try_rule(&r, "soap", SETTINGS("soap-factors=kl", "soap-freq=1")), ABAR_OK);
    const abar_optim_param *late = &r.f.params[1];
    assert_int_equal(abar_optim_set_param(r.optim, 1, late->value.data, NULL, 1.0, 0.1), ABAR_OK);
    for (int k = 0; k < 6; k++) {
        snapshot before = take(&r.f, r.optim), after;
        fixture_fill_grads(&r.f, 1.0);
        if (k == 3) fixture_fill(&r.f, &r.f.params[0].grad, 1e160);
        if (k == 2) assert_int_equal(abar_optim_set_param(r.optim, 1, late->value.data, late->grad.data, 1.0, 0.1), ABAR_OK);
        assert_false(fixture_step(r.optim, 0.01, 0.0, 0.0).skipped);
        after = take(&r.f, r.optim);
        for (int i = 0; i < after.n; i++) {
            const bool first = strcmp(after.names[i], "scales.p0") == 0, second = strcmp(after.names[i], "scales.p1") == 0;
            if (first) assert_true(fixture_same_bits(&before.tensors[i], &after.tensors[i]) == (k == 3));
            for (int64_t e = 0; (first || (second && k >= 2)) && e < 8; e++) {
                const double scale = fixture_get(&after.tensors[i], e);
                if (!(scale > 0.0 && scale <= 4000.0)) fail_msg("step %d, %s: %g", k, after.names[i], scale);
            }
        }
        drop(&before);
        drop(&after);
    }
    assert_true(abar_optim_blocks(r.optim)->kept > 0);
    rig_close(&r);
}

static void soap_refuses_impossible_settings(void **state)
{
    (void)state;
    const char *const *refused[] = {SETTINGS("shampoo-beta=-0.5"), SETTINGS("soap-factors=kl", "soap-conv=modes"),
                                    SETTINGS("split=heads:0")};
    for (int i = 0; i < 3; i++) {
        rig r;
        rig_open(&r, "ref", mixed, 3);
        assert_int_equal(rig_try_rule(&r, "soap", refused[i]), ABAR_E_ARGUMENT);
        assert_null(r.optim);
        rig_close(&r);
    }
}

/* ---- numbers that go wrong --------------------------------------------------------------------------------------------- */

static const abar_tensor *named(const snapshot *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->names[i], name) == 0) return &s->tensors[i];
    fail_msg("there is no %s", name);
    return NULL;
}

/* Its products would be infinite: factors and moments stay, the next steps go on. */
static void soap_keeps_its_state_when_products_overflow(void **state)
{
    (void)state;
    static const char *const kept[] = {"factors.p0", "momentum.p0", "squares.p0"};
    for (int d = first_device(); d < 2; d++) {
        rig r;
        open_mixed(&r, devices[d], SETTINGS("soap-freq=10"));
        for (int k = 0; k < 2; k++) {
            fixture_fill_grads(&r.f, 1.0);
            fixture_step(r.optim, 0.02, 0.0, 0.0);
        }
        snapshot before = take(&r.f, r.optim);
        fixture_fill_grads(&r.f, 1.0);
        fixture_fill(&r.f, &r.f.params[0].grad, d == 0 ? 1e150 : 1e18);
        assert_false(fixture_step(r.optim, 0.02, 0.0, 0.0).skipped);
        snapshot after = take(&r.f, r.optim);
        for (int i = 0; i < 3; i++) assert_true(fixture_same_bits(named(&before, kept[i]), named(&after, kept[i])));
        assert_false(fixture_same_bits(named(&before, "factors.p2"), named(&after, "factors.p2")));
        assert_int_equal(abar_optim_blocks(r.optim)->kept, 2);
        fixture_fill_grads(&r.f, 1.0);
        fixture_step(r.optim, 0.02, 0.0, 0.0);
        for (int64_t i = 0; i < 240; i++) assert_true(fabs(fixture_get(&r.f.params[0].value, i)) < 10.0);
        drop(&before);
        drop(&after);
        rig_close(&r);
    }
}

/* The first basis of a zero gradient is the identity, and nothing moves but by decay. */
static void soap_of_zero_gradients_has_the_identity_as_basis(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig r;
        open_mixed(&r, devices[d], SETTINGS("soap-freq=1"));
        const double weight = fixture_get(&r.f.params[0].value, 5);
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < 3; i++)
                for (int64_t e = 0; e < abar_tensor_count(&r.f.params[i].grad); e++) fixture_set(&r.f.params[i].grad, e, 0.0);
            fixture_step(r.optim, 0.02, 0.0, 0.0);
            if (k > 0) continue;
            snapshot s = take(&r.f, r.optim);
            const abar_tensor *basis = named(&s, "bases.p0");
            for (int64_t e = 0; e < 144; e++) assert_true(fixture_get(basis, e) == (e % 13 == 0 ? 1.0 : 0.0));
            drop(&s);
        }
        const double expected = pow(1.0 - 0.02 * 0.1, 2.0) * weight; /* the first update makes no step */
        assert_true(fabs(fixture_get(&r.f.params[0].value, 5) - expected) <= 1e-6 * fabs(weight));
        assert_int_equal(abar_optim_blocks(r.optim)->kept, 0);
        fixture_fill_grads(&r.f, 1.0);
        fixture_step(r.optim, 0.02, 0.0, 0.0);
        assert_true(isfinite(fixture_get(&r.f.params[0].value, 5)));
        rig_close(&r);
    }
}

/* Rows of every basis stay orthonormal, of singular factors too (20 columns of rank 12 at first). */
static void soap_keeps_its_bases_orthonormal(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig r;
        open_mixed(&r, devices[d], SETTINGS("soap-freq=1"));
        for (int k = 0; k < 5; k++) {
            if (k < 3) fixture_fill_grads(&r.f, 1.0); /* the last ones repeat: factors become singular again */
            fixture_step(r.optim, 0.0, 0.0, 0.0);
            snapshot s = take(&r.f, r.optim);
            const abar_tensor *basis = named(&s, "bases.p0");
            for (int64_t i = 0; i < 20; i++)
                for (int64_t j = 0; j <= i; j++) {
                    double sum = 0.0;
                    for (int64_t e = 0; e < 20; e++)
                        sum += fixture_get(basis, 144 + i * 20 + e) * fixture_get(basis, 144 + j * 20 + e);
                    assert_true(fabs(sum - (i == j)) <= 1e-6);
                }
            drop(&s);
        }
        rig_close(&r);
    }
}

/* ---- plans --------------------------------------------------------------------------------------------------------------- */

static void plans_refuse_bases_of_nothing(void **state)
{
    (void)state;
    abar__block_plan p = {0};
    abar__basis b = abar__blocks_basis(&p, "S", "Q", 10, 0.9);
    abar__blocks_rotate(&p, b);
    const abar__adam a = abar__blocks_adam(&p, "m", "v", 0.9, 0.9, 1e-8);
    abar__blocks_turn(&p, b, a, 1);
    assert_null(p.wrong);
    abar__blocks_turn(&p, b, a, 0);
    assert_non_null(p.wrong);
    p = (abar__block_plan){0};
    abar__blocks_basis(&p, "S", "Q", 0, 0.9);
    assert_non_null(p.wrong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(soap_names_its_state),
        cmocka_unit_test(soap_plans_its_bytes),
        cmocka_unit_test(soap_takes_new_settings),
        cmocka_unit_test(rules_with_blocks_refuse_other_parts),
        cmocka_unit_test(kl_scales_are_bounded),
        cmocka_unit_test(kl_scales_survive_overflows_and_late_gradients),
        cmocka_unit_test(soap_refuses_impossible_settings),
        cmocka_unit_test(soap_keeps_its_state_when_products_overflow),
        cmocka_unit_test(soap_of_zero_gradients_has_the_identity_as_basis),
        cmocka_unit_test(soap_keeps_its_bases_orthonormal),
        cmocka_unit_test(plans_refuse_bases_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
