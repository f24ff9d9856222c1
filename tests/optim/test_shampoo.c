/* Shampoo through an optimizer: against the float64 oracle (tests/oracle/shampoo.py), and the identities of optimizers.md
 * section 1. Its state: test_shampoo_state.c. */
#include "optim/golden_steps.h"
#include "repeated.h"

static const char *const devices[] = {"ref", "cpu"};
static double tolerance_on(const char *device) { return strcmp(device, "ref") == 0 ? 1e-11 : 1e-4; }

static void rig_shampoo(rig *r, const char *const *settings)
{
    if (rig_try_rule(r, "shampoo", settings) != ABAR_OK) fail_msg("%s", abar_context_error(r->f.ctx));
}

/* ---- the oracle ------------------------------------------------------------------------------------------------------ */

static const char *const names[] = {"matrix", "wide", "square", "conv", "bias", "scalar"};
static const shape shapes[] = {{2, {24, 10}}, {2, {9, 30}}, {2, {14, 14}}, {4, {8, 3, 3, 3}}, {1, {13}}, {1, {1}}};
enum { PARAMS = 6 };

static const golden_set steps = {.rule = "shampoo",
                                 .file = ABAR_TEST_DATA "/golden/shampoo_steps.safetensors",
                                 .names = names,
                                 .shapes = shapes,
                                 .n = PARAMS,
                                 .layers = 4,
                                 .cases = 16,
                                 .options = 10};

static void shampoo_on_ref_is_the_oracles(void **state)
{
    (void)state;
    golden_check(&steps, "ref", 1e-9);
}

static void shampoo_on_cpu_is_the_oracles(void **state)
{
    (void)state;
    golden_check(&steps, "cpu", 1e-4);
}

/* The MAC paper's comparator: as its code runs, and as it was meant. */
static const char *const paper_names[] = {"matrix", "long", "conv", "tensor", "merged", "bias"};
static const shape paper_shapes[] = {{2, {12, 12}}, {2, {129, 3}}, {4, {4, 4, 3, 3}}, {3, {2, 65, 2}}, {2, {5, 5}}, {1, {7}}};
static const golden_set paper = {.rule = "shampoo",
                                 .file = ABAR_TEST_DATA "/golden/shampoo_paper.safetensors",
                                 .names = paper_names,
                                 .shapes = paper_shapes,
                                 .n = 6,
                                 .layers = 3,
                                 .cases = 2,
                                 .options = 2};
static const char *const intended_names[] = {"matrix", "rows", "bias"};
static const shape intended_shapes[] = {{2, {12, 11}}, {3, {11, 12, 2}}, {1, {7}}};
static const golden_set intended = {.rule = "shampoo",
                                    .file = ABAR_TEST_DATA "/golden/shampoo_intended.safetensors",
                                    .names = intended_names,
                                    .shapes = intended_shapes,
                                    .n = 3,
                                    .layers = 1,
                                    .cases = 2,
                                    .options = 2,
                                    .steps = 55};

static void presets_on_ref_are_the_oracles(void **state)
{
    (void)state;
    golden_check(&paper, "ref", 1e-9);
    golden_check(&intended, "ref", 1e-9);
}

static void presets_on_cpu_are_the_oracles(void **state)
{
    (void)state;
    golden_check(&paper, "cpu", 1e-4);
    golden_check(&intended, "cpu", 1e-4);
}

/* By facebookresearch/optimizers' DistributedShampoo and by hseung88/mac's Shampoo, both in double precision
 * (tests/oracle/check_rules.py). */
static void shampoo_is_its_authors(void **state)
{
    (void)state;
    golden_set peer = steps, paper_peer = paper;
    peer.file = ABAR_TEST_DATA "/golden/shampoo_peer.safetensors";
    paper_peer.file = ABAR_TEST_DATA "/golden/shampoo_paper_peer.safetensors";
    for (int d = first_device(); d < 2; d++) {
        golden_check(&peer, devices[d], 1e-5);
        golden_check(&paper_peer, devices[d], 1e-5);
    }
}

/* ---- identities ------------------------------------------------------------------------------------------------------ */

static void no_decay(rig *r)
{
    for (int i = 0; i < r->f.n; i++) r->f.params[i].weight_decay = 0.0;
}

static double length_of(const abar_tensor *t, const double *from)
{
    double sum = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(t); i++) {
        const double d = fixture_get(t, i) - (from ? from[i] : 0.0);
        sum += d * d;
    }
    return sqrt(sum);
}

/* With the graft sgd one step is as long as that of plain gradient descent, whatever the roots. */
static void shampoo_grafted_to_sgd_moves_as_far_as_the_gradient(void **state)
{
    (void)state;
    static const shape one[] = {{2, {12, 9}}};
    for (int d = first_device(); d < 2; d++) {
        rig r;
        double start[108];
        rig_open(&r, devices[d], one, 1);
        no_decay(&r);
        rig_layer(&r, 0, -1);
        rig_shampoo(&r, SETTINGS("graft=sgd", "beta1=0", "shampoo-eps=1e-4", "shampoo-block=12"));
        fixture_fill_grads(&r.f, 1.0);
        for (int i = 0; i < 108; i++) start[i] = fixture_get(&r.f.params[0].value, i);
        const double expected = 0.1 * length_of(&r.f.params[0].grad, NULL);
        fixture_step(r.optim, 0.1, 0.0, 0.0);
        const double moved = length_of(&r.f.params[0].value, start);
        assert_true(fabs(moved - expected) <= tolerance_on(devices[d]) * expected);
        rig_close(&r);
    }
}

/* R_i of exponent 0 is the identity. */
static void shampoo_with_exponent_0_is_sgd(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig a, b;
        rig_open(&a, devices[d], shapes, PARAMS);
        rig_open(&b, devices[d], shapes, PARAMS);
        no_decay(&a), no_decay(&b);
        rig_shampoo(&a, SETTINGS("shampoo-exponent=0", "graft=sgd", "beta1=0"));
        assert_int_equal(rig_try_rule(&b, "sgd", SETTINGS("momentum=0")), ABAR_OK);
        for (int k = 0; k < 4; k++) {
            fixture_fill_grads(&a.f, 1.0);
            fixture_fill_grads(&b.f, 1.0);
            fixture_step(a.optim, 0.1, 1.0, 0.0);
            fixture_step(b.optim, 0.1, 1.0, 0.0);
        }
        for (int i = 0; i < PARAMS; i++)
            assert_true(rig_difference(&a.f.params[i].value, 0, &b.f.params[i].value) <= tolerance_on(devices[d]));
        rig_close(&a);
        rig_close(&b);
    }
}

/* Blocks of 1: S is the sum of squares, and its root exponent makes W <- W - eta g / sqrt(sum g^2). */
static void shampoo_with_blocks_of_1_is_adagrad(void **state)
{
    (void)state;
    static const shape one[] = {{2, {5, 4}}};
    for (int d = first_device(); d < 2; d++) {
        rig r;
        double w[20], s[20] = {0.0};
        rig_open(&r, devices[d], one, 1);
        no_decay(&r);
        rig_shampoo(&r, SETTINGS("beta1=0", "shampoo-eps=0", "shampoo-block=1"));
        for (int i = 0; i < 20; i++) w[i] = fixture_get(&r.f.params[0].value, i);
        for (int k = 0; k < 5; k++) {
            fixture_fill_grads(&r.f, 1.0);
            for (int i = 0; i < 20; i++) {
                const double g = fixture_get(&r.f.params[0].grad, i);
                s[i] += g * g;
                w[i] -= 0.1 * g / sqrt(s[i]);
            }
            fixture_step(r.optim, 0.1, 0.0, 0.0);
        }
        for (int i = 0; i < 20; i++) assert_true(fabs(fixture_get(&r.f.params[0].value, i) - w[i]) <= tolerance_on(devices[d]));
        rig_close(&r);
    }
}

/* Entry (i, j) of -W G^T, 7 x 7. */
static double product(const rig *r, const double *g, int i, int j)
{
    double sum = 0.0;
    for (int k = 0; k < 7; k++) sum -= fixture_get(&r->f.params[0].value, i * 7 + k) * g[j * 7 + k];
    return sum;
}

/* One step from zero of a square matrix without eps: U V^T. Its product with itself is the identity, that with G symmetric and
 * positive definite. */
static void shampoo_of_one_gradient_is_orthogonal(void **state)
{
    (void)state;
    static const shape one[] = {{2, {7, 7}}};
    for (int d = first_device(); d < 2; d++) {
        rig r;
        double g[49];
        rig_open(&r, devices[d], one, 1);
        no_decay(&r);
        rig_shampoo(&r, SETTINGS("beta1=0", "shampoo-eps=0", "shampoo-block=7"));
        for (int i = 0; i < 49; i++) {
            fixture_set(&r.f.params[0].value, i, 0.0);
            fixture_set(&r.f.params[0].grad, i, 0.3 * fixture_noise(&r.f) + (i % 8 == 0 ? 2.0 : 0.0));
            g[i] = fixture_get(&r.f.params[0].grad, i);
        }
        fixture_step(r.optim, 1.0, 0.0, 0.0);
        for (int i = 0; i < 7; i++)
            for (int j = 0; j < 7; j++) {
                double sum = 0.0;
                for (int k = 0; k < 7; k++)
                    sum += fixture_get(&r.f.params[0].value, i * 7 + k) * fixture_get(&r.f.params[0].value, j * 7 + k);
                assert_true(fabs(sum - (i == j)) <= tolerance_on(devices[d]));
                assert_true(fabs(product(&r, g, i, j) - product(&r, g, j, i)) <= 3.0 * tolerance_on(devices[d]));
                assert_true(i == j || fabs(product(&r, g, i, j)) < product(&r, g, i, i) / 6.0); /* hence definite */
            }
        rig_close(&r);
    }
}

/* Of a diagonal gradient it is the signs of the diagonal, of a vector g / |g|; eps, without which a vector's factor is
 * singular, shortens both: x / sqrt(x^2 + eps). */
static void shampoo_of_one_diagonal_or_vector_is_its_direction(void **state)
{
    (void)state;
    static const shape two[] = {{2, {4, 4}}, {1, {5}}};
    static const double diagonal[] = {0.5, -2.0, 3.0, -0.125}, vector[] = {3.0, -1.0, 0.0, 2.0, -0.5}, eps = 1e-3;
    const double length = sqrt(9.0 + 1.0 + 4.0 + 0.25 + eps);
    for (int d = first_device(); d < 2; d++) {
        rig r;
        rig_open(&r, devices[d], two, 2);
        no_decay(&r);
        rig_shampoo(&r, SETTINGS("beta1=0", "shampoo-eps=1e-3", "shampoo-block=5"));
        for (int i = 0; i < 16; i++) {
            fixture_set(&r.f.params[0].value, i, 0.0);
            fixture_set(&r.f.params[0].grad, i, i % 5 == 0 ? diagonal[i / 5] : 0.0);
        }
        for (int i = 0; i < 5; i++) {
            fixture_set(&r.f.params[1].value, i, 0.0);
            fixture_set(&r.f.params[1].grad, i, vector[i]);
        }
        fixture_step(r.optim, 1.0, 0.0, 0.0);
        for (int i = 0; i < 16; i++) {
            const double x = i % 5 == 0 ? diagonal[i / 5] : 0.0;
            assert_true(fabs(fixture_get(&r.f.params[0].value, i) + x / sqrt(x * x + eps)) <= tolerance_on(devices[d]));
        }
        for (int i = 0; i < 5; i++)
            assert_true(fabs(fixture_get(&r.f.params[1].value, i) + vector[i] / length) <= tolerance_on(devices[d]));
        rig_close(&r);
    }
}

/* Without a graft and eps, with sums for factors, gradients times any constant give the same weights. */
static void shampoo_without_eps_ignores_the_scale_of_gradients(void **state)
{
    (void)state;
    static const shape two[] = {{2, {6, 6}}, {2, {6, 6}}};
    for (int d = first_device(); d < 2; d++) {
        rig r;
        rig_open(&r, devices[d], two, 2);
        rig_shampoo(&r, SETTINGS("shampoo-eps=0", "shampoo-block=6"));
        for (int i = 0; i < 36; i++) fixture_set(&r.f.params[1].value, i, fixture_get(&r.f.params[0].value, i));
        for (int k = 0; k < 6; k++) {
            for (int i = 0; i < 36; i++) {
                const double g = 0.3 * fixture_noise(&r.f) + (i % 7 == 0 ? 2.0 : 0.0);
                fixture_set(&r.f.params[0].grad, i, g);
                fixture_set(&r.f.params[1].grad, i, 1000.0 * fixture_get(&r.f.params[0].grad, i));
            }
            fixture_step(r.optim, 0.05, 0.0, 0.0);
        }
        assert_true(rig_difference(&r.f.params[1].value, 0, &r.f.params[0].value) <= tolerance_on(devices[d]));
        rig_close(&r);
    }
}

static void shampoo_of_fused_qkv_and_of_groups_is_that_of_their_parts(void **state)
{
    (void)state;
    static const shape fused[] = {{2, {24, 12}}}, third[] = {{2, {8, 12}}, {2, {8, 12}}, {2, {8, 12}}};
    static const shape grouped[] = {{4, {16, 2, 3, 3}}}, groups[] = {{4, {8, 2, 3, 3}}, {4, {8, 2, 3, 3}}};
    for (int d = first_device(); d < 2; d++) {
        rig a, b;
        rig_open(&a, devices[d], fused, 1);
        rig_open(&b, devices[d], third, 3);
        rig_layer(&a, 0, -1)->attention = (abar_attention){.heads = 2, .value_row = 16, .value_rows = 8};
        for (int k = 0; k < 3; k++) rig_layer(&b, k, -1);
        rig_shampoo(&a, SETTINGS("shampoo-block=12", "graft=adam", "shampoo-eps=1e-3"));
        rig_shampoo(&b, SETTINGS("shampoo-block=12", "graft=adam", "shampoo-eps=1e-3"));
        rig_check_pieces(&a, &b, 0.0);
        rig_close(&a);
        rig_close(&b);
        rig_open(&a, devices[d], grouped, 1);
        rig_open(&b, devices[d], groups, 2);
        rig_layer(&a, 0, -1)->window.groups = 2;
        for (int k = 0; k < 2; k++) rig_layer(&b, k, -1);
        rig_shampoo(&a, SETTINGS("shampoo-block=20", "shampoo-eps=1e-3"));
        rig_shampoo(&b, SETTINGS("shampoo-block=20", "shampoo-eps=1e-3"));
        rig_check_pieces(&a, &b, 0.0);
        rig_close(&a);
        rig_close(&b);
    }
}

/* Gradients of a sum over micro-batches, divided by the step, are those of the mean. */
static void shampoo_divides_accumulated_gradients(void **state)
{
    (void)state;
    for (int d = first_device(); d < 2; d++) {
        rig a, b;
        rig_open(&a, devices[d], shapes, PARAMS);
        rig_open(&b, devices[d], shapes, PARAMS);
        rig_shampoo(&a, SETTINGS("shampoo-block=16", "shampoo-eps=0.1"));
        rig_shampoo(&b, SETTINGS("shampoo-block=16", "shampoo-eps=0.1"));
        rig_check_divided(&b, &a, tolerance_on(devices[d]));
        rig_close(&a);
        rig_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shampoo_on_ref_is_the_oracles),
        cmocka_unit_test(shampoo_on_cpu_is_the_oracles),
        cmocka_unit_test(presets_on_ref_are_the_oracles),
        cmocka_unit_test(presets_on_cpu_are_the_oracles),
        cmocka_unit_test(shampoo_is_its_authors),
        cmocka_unit_test(shampoo_grafted_to_sgd_moves_as_far_as_the_gradient),
        cmocka_unit_test(shampoo_with_exponent_0_is_sgd),
        cmocka_unit_test(shampoo_with_blocks_of_1_is_adagrad),
        cmocka_unit_test(shampoo_of_one_gradient_is_orthogonal),
        cmocka_unit_test(shampoo_of_one_diagonal_or_vector_is_its_direction),
        cmocka_unit_test(shampoo_without_eps_ignores_the_scale_of_gradients),
        cmocka_unit_test(shampoo_of_fused_qkv_and_of_groups_is_that_of_their_parts),
        cmocka_unit_test(shampoo_divides_accumulated_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
