/* Muon through an optimizer: against the float64 oracle (tests/oracle/muon.py), and the identities of methods.md section 11.
 * Its state: test_muon_state.c; which parameter gets which rule: tests/train/test_muon_runs.c. */
#include "optim/muon_rig.h"

#include "io/io.h"

#include <cjson/cJSON.h>

#define STEPS 20

/* Largest difference of the first count elements, relative to the largest of b. */
static double difference(const abar_tensor *a, int64_t first, const abar_tensor *b)
{
    double error = 0.0, largest = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(b); i++) {
        error = fmax(error, fabs(fixture_get(a, first + i) - fixture_get(b, i)));
        largest = fmax(largest, fabs(fixture_get(b, i)));
    }
    return error / largest;
}

/* ---- the oracle ------------------------------------------------------------------------------------------------------ */

static const char *const cases[] = {"defaults", "plain_momentum", "match_rms",     "unclamped",   "exact",
                                    "cubic",    "quintic",        "polar_express", "no_momentum", "normuon"};
static const char *const names[] = {"tall", "wide", "square", "conv"};
static const shape shapes[] = {{2, {24, 10}}, {2, {9, 30}}, {2, {14, 14}}, {4, {8, 3, 3, 3}}};

static double number(const cJSON *settings, const char *key) { return cJSON_GetObjectItem(settings, key)->valuedouble; }
static const char *word(const cJSON *settings, const char *key) { return cJSON_GetObjectItem(settings, key)->valuestring; }

static const char *boolean(const cJSON *settings, const char *key)
{
    return cJSON_IsTrue(cJSON_GetObjectItem(settings, key)) ? "true" : "false";
}

static abar_tensor golden(const abar__safetensors *file, const char *prefix, const char *name)
{
    char full[64];
    abar_tensor t;
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    assert_true(abar__safetensors_find(file, full, &t));
    return t;
}

/* Element i of a golden tensor, which may be unaligned. */
static double golden_get(const abar_tensor *t, int64_t i)
{
    float single;
    double value;
    if (t->dtype == ABAR_F32) {
        memcpy(&single, (const char *)t->data + (size_t)i * sizeof single, sizeof single);
        return (double)single;
    }
    assert_int_equal(t->dtype, ABAR_F64);
    memcpy(&value, (const char *)t->data + (size_t)i * sizeof value, sizeof value);
    return value;
}

static void golden_optim(rig *r, const cJSON *settings)
{
    char text[8][48];
    snprintf(text[0], sizeof text[0], "momentum=%.17g", number(settings, "momentum"));
    snprintf(text[1], sizeof text[1], "nesterov=%s", boolean(settings, "nesterov"));
    snprintf(text[2], sizeof text[2], "ns=%s", word(settings, "ns"));
    snprintf(text[3], sizeof text[3], "ns-steps=%d", (int)number(settings, "ns_steps"));
    snprintf(text[4], sizeof text[4], "muon-adjust=%s", word(settings, "adjust"));
    snprintf(text[5], sizeof text[5], "normuon=%s", boolean(settings, "normuon"));
    snprintf(text[6], sizeof text[6], "normuon-beta2=%.17g", number(settings, "beta2"));
    for (int i = 0; i < r->f.n; i++) r->f.params[i].weight_decay = number(settings, "weight_decay");
    rig_optim(r, SETTINGS(text[0], text[1], text[2], text[3], text[4], text[5], text[6], "ns-precision=fp32"));
}

static double golden_error(rig *r, const abar__safetensors *file, const char *name)
{
    cJSON *settings = cJSON_Parse(abar__safetensors_metadata(file, name));
    assert_non_null(settings);
    golden_optim(r, settings);
    double error = 0.0, largest = 0.0;
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < r->f.n; i++) {
            const abar_tensor initial = golden(file, "initial", names[i]), grads = golden(file, "grad", names[i]);
            const abar_optim_param *p = &r->f.params[i];
            const int64_t count = abar_tensor_count(&p->value);
            for (int64_t j = 0; j < count; j++) {
                if (k == 0) fixture_set(&p->value, j, golden_get(&initial, j));
                fixture_set(&p->grad, j, golden_get(&grads, k * count + j));
            }
        }
        assert_false(fixture_step(r->optim, number(settings, "lr"), 0.0, 0.0).skipped);
    }
    for (int i = 0; i < r->f.n; i++) {
        const abar_tensor expected = golden(file, name, names[i]);
        for (int64_t j = 0; j < abar_tensor_count(&expected); j++) {
            error = fmax(error, fabs(fixture_get(&r->f.params[i].value, j) - golden_get(&expected, j)));
            largest = fmax(largest, fabs(golden_get(&expected, j)));
        }
    }
    abar_optim_destroy(r->optim);
    r->optim = NULL;
    cJSON_Delete(settings);
    return error / largest;
}

static void check_golden(const char *device, double tolerance)
{
    rig r;
    rig_open(&r, device, shapes, 4);
    for (int i = 0; i < 4; i++) rig_layer(&r, i, -1);
    abar__safetensors *file;
    assert_int_equal(abar__safetensors_open(r.f.ctx, ABAR_TEST_DATA "/golden/muon_steps.safetensors", &file), ABAR_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double error = golden_error(&r, file, cases[i]);
        if (!(error <= tolerance)) fail_msg("%s on %s: error %g", cases[i], device, error);
    }
    abar__safetensors_close(file);
    rig_close(&r);
}

static void muon_on_ref_is_the_oracles(void **state)
{
    (void)state;
    check_golden("ref", 1e-9);
}

static void muon_on_cpu_is_the_oracles(void **state)
{
    (void)state;
    check_golden("cpu", 1e-5);
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
            assert_true(difference(&a.f.params[i].value, 0, &b.f.params[i].value) <= tolerance_on(devices[d]));
        rig_close(&a);
        rig_close(&b);
    }
}

/* Parameter 0 of a is made of the parameters of b, one below the other. */
static void check_pieces(rig *a, rig *b, double tolerance)
{
    for (int k = 0; k < 6; k++) {
        int64_t at = 0;
        for (int i = 0; i < b->f.n; i++) {
            const abar_optim_param *whole = &a->f.params[0], *piece = &b->f.params[i];
            fixture_fill(&b->f, &piece->grad, 1.0);
            for (int64_t j = 0; j < abar_tensor_count(&piece->value); j++, at++) {
                if (k == 0) fixture_set(&whole->value, at, fixture_get(&piece->value, j));
                fixture_set(&whole->grad, at, fixture_get(&piece->grad, j));
            }
        }
        fixture_step(a->optim, 0.02, 0.0, 0.0);
        fixture_step(b->optim, 0.02, 0.0, 0.0);
    }
    int64_t at = 0;
    for (int i = 0; i < b->f.n; i++) {
        assert_true(difference(&a->f.params[0].value, at, &b->f.params[i].value) <= tolerance);
        at += abar_tensor_count(&b->f.params[i].value);
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
            check_pieces(&a, &b, tolerance_on(devices[d]));
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
        check_pieces(&a, &b, tolerance_on(devices[d]));
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
        check_pieces(&a, &b, 0.0);
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
        for (int k = 0; k < 4; k++) {
            fixture_fill_grads(&a.f, 1.0);
            fixture_fill_grads(&b.f, 4.0);
            fixture_step(a.optim, 0.02, 0.0, 0.0);
            fixture_step(b.optim, 0.02, 0.0, 0.25);
        }
        for (int i = 0; i < 2; i++)
            assert_true(difference(&a.f.params[i].value, 0, &b.f.params[i].value) <= tolerance_on(devices[d]));
        rig_close(&a);
        rig_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(muon_on_ref_is_the_oracles),
        cmocka_unit_test(muon_on_cpu_is_the_oracles),
        cmocka_unit_test(muon_of_scaled_gradients_is_the_same),
        cmocka_unit_test(muon_of_fused_qkv_is_that_of_its_pieces),
        cmocka_unit_test(muon_of_a_grouped_convolution_is_that_of_its_groups),
        cmocka_unit_test(muon_of_a_pointwise_convolution_is_that_of_a_linear_layer),
        cmocka_unit_test(muon_divides_accumulated_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
