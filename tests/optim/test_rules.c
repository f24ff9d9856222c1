/* The update rules: against torch.optim in float64 (tests/oracle/golden_optim.py), by hand, and every vector kernel and
 * thread count against ref. */
#include "isa_testing.h"
#include "optim/optim_fixture.h"

#include "io/io.h"

#include <cjson/cJSON.h>

#define STEPS 50

/* ---- torch -------------------------------------------------------------------------------------------------------- */

static const char *const golden_cases[] = {
    "sgd_plain",          "sgd_momentum",      "sgd_nesterov",      "sgd_decay", "sgd_momentum_decay",
    "sgd_nesterov_decay", "sgd_decoupled",     "sgd_momentum_clip", "adamw",     "adamw_decay",
    "adamw_betas",        "adamw_betas_decay", "adamw_clip"};
static const char *const golden_names[] = {"a", "b", "c"};

static double number(const cJSON *settings, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(settings, key);
    return item ? item->valuedouble : 0.0;
}

static abar_tensor golden_tensor(const abar__safetensors *file, const char *prefix, const char *name)
{
    char full[64];
    abar_tensor t;
    snprintf(full, sizeof full, "%s.%s", prefix, name);
    assert_true(abar__safetensors_find(file, full, &t));
    assert_int_equal(t.dtype, ABAR_F64);
    return t;
}

/* Copies count elements from the i-th of equal slices of a golden tensor, which may be unaligned. */
static void copy_slice(const abar_tensor *to, const abar_tensor *from, int64_t i)
{
    for (int64_t j = 0, count = abar_tensor_count(to); j < count; j++) {
        double value;
        memcpy(&value, (const char *)from->data + (size_t)(i * count + j) * sizeof value, sizeof value);
        fixture_set(to, j, value);
    }
}

static abar_optim *golden_optim(fixture *f, const cJSON *settings)
{
    const char *rule = cJSON_GetObjectItem(settings, "rule")->valuestring;
    char text[3][64];
    if (strcmp(rule, "sgd") == 0) {
        snprintf(text[0], sizeof text[0], "momentum=%.17g", number(settings, "momentum"));
        snprintf(text[1], sizeof text[1], "nesterov=%s",
                 cJSON_IsTrue(cJSON_GetObjectItem(settings, "nesterov")) ? "true" : "false");
        snprintf(text[2], sizeof text[2], "decay=%s", cJSON_HasObjectItem(settings, "decoupled") ? "decoupled" : "coupled");
    } else {
        const cJSON *betas = cJSON_GetObjectItem(settings, "betas");
        snprintf(text[0], sizeof text[0], "beta1=%.17g", cJSON_GetArrayItem(betas, 0)->valuedouble);
        snprintf(text[1], sizeof text[1], "beta2=%.17g", cJSON_GetArrayItem(betas, 1)->valuedouble);
        snprintf(text[2], sizeof text[2], "eps=%.17g", number(settings, "eps"));
    }
    for (int i = 0; i < f->n; i++) f->params[i].weight_decay = number(settings, "weight_decay");
    return fixture_optim(f, rule, (const char *const[]){text[0], text[1], text[2], NULL});
}

/* Largest difference over all parameters, relative to the largest weight. */
static double golden_error(fixture *f, const abar__safetensors *file, const char *name)
{
    cJSON *settings = cJSON_Parse(abar__safetensors_metadata(file, name));
    assert_non_null(settings);
    abar_optim *optim = golden_optim(f, settings);
    double error = 0.0, largest = 0.0;
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < f->n; i++) {
            const abar_tensor initial = golden_tensor(file, "initial", golden_names[i]);
            const abar_tensor grads = golden_tensor(file, "grad", golden_names[i]);
            if (k == 0) copy_slice(&f->params[i].value, &initial, 0);
            copy_slice(&f->params[i].grad, &grads, k);
        }
        assert_false(fixture_step(optim, number(settings, "lr"), number(settings, "clip"), 0.0).skipped);
    }
    for (int i = 0; i < f->n; i++) {
        const abar_tensor expected = golden_tensor(file, name, golden_names[i]);
        for (int64_t j = 0; j < abar_tensor_count(&expected); j++) {
            double e;
            memcpy(&e, (const char *)expected.data + (size_t)j * sizeof e, sizeof e);
            error = fmax(error, fabs(fixture_get(&f->params[i].value, j) - e));
            largest = fmax(largest, fabs(e));
        }
    }
    abar_optim_destroy(optim);
    cJSON_Delete(settings);
    return error / largest;
}

static void check_golden(const char *device, double tolerance)
{
    fixture f;
    fixture_open(&f, device, 0, (const int64_t[]){15, 7, 24}, 3);
    for (int i = 0; i < f.n; i++) {
        f.params[i].name = golden_names[i];
        f.params[i].lr_scale = 1.0;
    }
    abar__safetensors *file;
    assert_int_equal(abar__safetensors_open(f.ctx, ABAR_TEST_DATA "/golden/optim.safetensors", &file), ABAR_OK);
    for (size_t i = 0; i < sizeof golden_cases / sizeof *golden_cases; i++) {
        double error = golden_error(&f, file, golden_cases[i]);
        if (!(error <= tolerance)) fail_msg("%s on %s: error %g", golden_cases[i], device, error);
    }
    abar__safetensors_close(file);
    fixture_close(&f);
}

static void rules_fifty_steps_on_ref_match_torch(void **state)
{
    (void)state;
    check_golden("ref", 1e-12);
}

static void rules_fifty_steps_on_cpu_match_torch(void **state)
{
    (void)state;
    check_golden("cpu", 1e-5);
}

/* ---- by hand ------------------------------------------------------------------------------------------------------ */

/* The weight after two steps from w = 1 with gradients 0.5 and -0.25, lr 0.1 and decay 0.2. */
static double two_steps(const char *device, const char *rule, const char *const *settings)
{
    fixture f;
    fixture_open(&f, device, 1, (const int64_t[]){1}, 1);
    f.params[0].weight_decay = 0.2;
    fixture_set(&f.params[0].value, 0, 1.0);
    abar_optim *optim = fixture_optim(&f, rule, settings);
    for (int k = 0; k < 2; k++) {
        fixture_set(&f.params[0].grad, 0, k == 0 ? 0.5 : -0.25);
        fixture_step(optim, 0.1, 0.0, 0.0);
    }
    double weight = fixture_get(&f.params[0].value, 0);
    abar_optim_destroy(optim);
    fixture_close(&f);
    return weight;
}

static void check_by_hand(const char *device, double tolerance)
{
    const char *const plain[] = {"momentum=0", NULL}, *const momentum[] = {"momentum=0.5", NULL},
                      *const nesterov[] = {"momentum=0.5", "nesterov=true", NULL},
                      *const decoupled[] = {"momentum=0.5", "decay=decoupled", NULL},
                      *const plain_decoupled[] = {"momentum=0", "decay=decoupled", NULL};
    /* g = 0.5 + 0.2: w = 0.93; then g = -0.25 + 0.186 = -0.064 */
    assert_true(fabs(two_steps(device, "sgd", plain) - 0.9364) <= tolerance);
    /* v = 0.7, w = 0.93; then v = 0.35 - 0.064 = 0.286 */
    assert_true(fabs(two_steps(device, "sgd", momentum) - 0.9014) <= tolerance);
    /* step 0.7 + 0.35: w = 0.895; then g = -0.25 + 0.179 = -0.071, v = 0.279, step -0.071 + 0.1395 */
    assert_true(fabs(two_steps(device, "sgd", nesterov) - 0.88815) <= tolerance);
    /* v = 0.5, w = 0.98 - 0.05 = 0.93; then v = 0, w = 0.98 * 0.93 */
    assert_true(fabs(two_steps(device, "sgd", decoupled) - 0.9114) <= tolerance);
    /* w = 0.93; then 0.98 * 0.93 + 0.025 */
    assert_true(fabs(two_steps(device, "sgd", plain_decoupled) - 0.9364) <= tolerance);
    /* m / (1 - b1) = 0.5 = sqrt(v / (1 - b2)): w = 0.98 - 0.1; then with b1 = b2 = 0.5: m = 0, so w = 0.98 * 0.88 */
    const char *const adam[] = {"beta1=0.5", "beta2=0.5", "eps=1e-20", NULL};
    assert_true(fabs(two_steps(device, "adamw", adam) - 0.8624) <= tolerance);
}

static void rules_two_steps_match_arithmetic_by_hand(void **state)
{
    (void)state;
    check_by_hand("ref", 1e-15);
    check_by_hand("cpu", 1e-7);
}

/* ---- gradients whose squares overflow ----------------------------------------------------------------------------- */

static abar_status assert_finite_tensor(void *user, const char *name, const abar_tensor *t)
{
    (void)user;
    if (t->dtype == ABAR_I64) return ABAR_OK;
    for (int64_t i = 0; i < abar_tensor_count(t); i++)
        if (!isfinite(fixture_get(t, i))) fail_msg("%s has %g", name, fixture_get(t, i));
    return ABAR_OK;
}

/* One such gradient makes a step of the usual length; once it is forgotten, steps have that length again. */
static void check_overflow(const char *device, double huge, int steps)
{
    fixture f;
    const int64_t count = 35;
    fixture_open(&f, device, 1, &count, 1);
    f.params[0].weight_decay = 0.0;
    abar_optim *optim = fixture_optim(&f, "adamw", (const char *const[]){"beta1=0.5", "beta2=0.5", NULL});
    for (int64_t i = 0; i < count; i++) fixture_set(&f.params[0].value, i, 0.0);
    for (int k = 0; k < steps; k++) {
        double before[35];
        for (int64_t i = 0; i < count; i++) {
            before[i] = fixture_get(&f.params[0].value, i);
            fixture_set(&f.params[0].grad, i, (i % 2 ? -1.0 : 1.0) * (k == 0 ? huge : 2.0));
        }
        assert_false(fixture_step(optim, 0.01, 0.0, 0.0).skipped);
        assert_int_equal(abar_optim_visit(optim, assert_finite_tensor, NULL), ABAR_OK);
        for (int64_t i = 0; i < count && (k == 0 || k == steps - 1); i++) {
            const double moved = (i % 2 ? 1.0 : -1.0) * (fixture_get(&f.params[0].value, i) - before[i]);
            if (!(fabs(moved - 0.01) <= 1e-5)) fail_msg("%s: step %d after %g moves a weight by %g", device, k, huge, moved);
        }
    }
    abar_optim_destroy(optim);
    fixture_close(&f);
}

static void adamw_state_stays_finite_and_recovers(void **state)
{
    (void)state;
    static const char *const sets[] = {"baseline", "avx2", "avx512"}; /* the machine's best, where it lacks one */
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        assert_int_equal(setenv("ABAR_ISA", sets[i], 1), 0);
        check_overflow("cpu", 3e19, 200);
        check_overflow("cpu", 3e38, 200);
    }
    assert_int_equal(unsetenv("ABAR_ISA"), 0);
    check_overflow("ref", 1e160, 1200);
    check_overflow("ref", 1.7e308, 1200);
}

/* ---- many sizes --------------------------------------------------------------------------------------------------- */

/* Around vector and piece borders, and together enough to be shared among threads. */
static const int64_t sizes[] = {1, 0, 15, 16, 17, 4095, 4096, 4097, 70001, 3, 150000, 31};
#define SIZES ((int)(sizeof sizes / sizeof *sizes))

typedef struct variant {
    const char *rule;
    const char *settings[4];
} variant;

static const variant variants[] = {
    {"sgd", {"momentum=0"}},
    {"sgd", {"momentum=0.9"}},
    {"sgd", {"momentum=0.9", "nesterov=true", "decay=decoupled"}},
    {"adamw", {"beta2=0.99"}},
};
#define VARIANTS (sizeof variants / sizeof *variants)

/* Leaves f open with its parameters after three steps. */
static void run_variant(fixture *f, const variant *v, const char *device, int threads)
{
    fixture_open(f, device, threads, sizes, SIZES);
    abar_optim *optim = fixture_optim(f, v->rule, v->settings);
    for (int k = 0; k < 3; k++) {
        fixture_fill_grads(f, 1.0);
        fixture_step(optim, 0.1, k == 1 ? 50.0 : 0.0, k == 2 ? 0.25 : 0.0);
    }
    abar_optim_destroy(optim);
}

static void assert_close(const fixture *a, const fixture *b, double tolerance)
{
    for (int i = 0; i < a->n; i++)
        for (int64_t j = 0; j < abar_tensor_count(&a->params[i].value); j++) {
            double x = fixture_get(&a->params[i].value, j), y = fixture_get(&b->params[i].value, j);
            if (!(fabs(x - y) <= tolerance)) fail_msg("p%d[%lld]: %.9g and %.9g", i, (long long)j, x, y);
        }
}

static void rules_every_instruction_set_agrees_with_ref(void **state)
{
    (void)state;
    char *outer = isa_save();
    for (size_t v = 0; v < VARIANTS; v++) {
        fixture ref, cpu;
        run_variant(&ref, &variants[v], "ref", 1);
        for (int i = 0; i <= (int)abar__isa_supported(); i++) {
            isa_force(abar__isa_name((abar__isa)i));
            run_variant(&cpu, &variants[v], "cpu", 2);
            assert_close(&ref, &cpu, 2e-6);
            fixture_close(&cpu);
        }
        fixture_close(&ref);
    }
    isa_restore(outer);
}

static void rules_any_thread_count_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t v = 0; v < VARIANTS; v++) {
        fixture first, again;
        run_variant(&first, &variants[v], "cpu", 1);
        for (int threads = 1; threads <= 3; threads++) {
            run_variant(&again, &variants[v], "cpu", threads);
            for (int i = 0; i < SIZES; i++) assert_true(fixture_same_bits(&first.params[i].value, &again.params[i].value));
            fixture_close(&again);
        }
        fixture_close(&first);
    }
}

/* ---- registry ----------------------------------------------------------------------------------------------------- */

static void rules_registry_finds_every_name_and_nothing_else(void **state)
{
    (void)state;
    int n = 0;
    for (const char *const *name = abar_rule_names(); *name; name++, n++) {
        const abar_rule *rule = abar_rule_find(*name);
        assert_non_null(rule);
        assert_string_equal(rule->name, *name);
        assert_non_null(rule->summary);
        assert_non_null(rule->options);
    }
    assert_int_equal(n, 9);
    assert_null(abar_rule_find("adam"));
}

/* The text of the error of creating with one option set by hand to a value the table forbids. */
static void assert_refused(fixture *f, const char *rule, const char *option, double value)
{
    abar_optim *optim;
    char *config = fixture_config(f, rule, NULL);
    const abar_option *o = abar_options_find(abar_rule_find(rule)->options, option);
    if (o->type == ABAR_OPTION_REAL)
        memcpy(config + o->offset, &value, sizeof value);
    else
        memcpy(config + o->offset, &(int64_t){(int64_t)value}, sizeof(int64_t));
    assert_int_equal(create_optim(f->dev, rule, config, f->params, f->n, &optim), ABAR_E_ARGUMENT);
    assert_null(optim);
    assert_non_null(strstr(abar_context_error(f->ctx), option));
    free(config);
}

static void rules_impossible_settings_are_refused_by_name(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, "ref", 1, (const int64_t[]){3}, 1);
    assert_refused(&f, "sgd", "momentum", -0.1);
    assert_refused(&f, "sgd", "momentum", (double)NAN);
    assert_refused(&f, "sgd", "decay", 3);
    assert_refused(&f, "adamw", "beta1", 1.0);
    assert_refused(&f, "adamw", "beta2", 1.0);
    assert_refused(&f, "adamw", "eps", 0.0);
    void *config = fixture_config(&f, "sgd", (const char *const[]){"momentum=0", "nesterov=true", NULL});
    abar_optim *optim;
    assert_int_equal(create_optim(f.dev, "sgd", config, f.params, f.n, &optim), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(f.ctx), "nesterov"));
    free(config);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_fifty_steps_on_ref_match_torch),
        cmocka_unit_test(rules_fifty_steps_on_cpu_match_torch),
        cmocka_unit_test(rules_two_steps_match_arithmetic_by_hand),
        cmocka_unit_test(adamw_state_stays_finite_and_recovers),
        cmocka_unit_test(rules_every_instruction_set_agrees_with_ref),
        cmocka_unit_test(rules_any_thread_count_gives_the_same_bits),
        cmocka_unit_test(rules_registry_finds_every_name_and_nothing_else),
        cmocka_unit_test(rules_impossible_settings_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
