/* AdaHessian and Sophia on given gradients and diagonals: against the float64 oracle (tests/oracle/hessian.py), and what
 * happens to extra gradients that are missing or not finite (optimizers.md section 3). */
#include "optim/golden_steps.h"
#include "optim/optim_snapshot.h"

static const char *const devices[] = {"ref", "cpu"};

static const char *const names[] = {"matrix", "conv", "bias", "scalar"};
static const shape shapes[] = {{2, {24, 10}}, {4, {8, 3, 3, 3}}, {1, {13}}, {1, {1}}};
enum { PARAMS = 4, MAPS = 2, TERMS = 7 };

typedef struct lab {
    rig r;
    abar_tensor extra[PARAMS];
    int n;
} lab;

static void lab_open(lab *l, const char *device, const shape *these, int n, int maps)
{
    rig_open(&l->r, device, these, n);
    l->n = n;
    for (int i = 0; i < n; i++) l->extra[i] = fixture_tensor(&l->r.f, abar_tensor_count(&l->r.f.params[i].value));
    for (int i = 0; i < maps; i++) rig_layer(&l->r, i, -1);
}

static void lab_close(lab *l)
{
    for (int i = 0; i < l->n; i++) abar_device_free(l->r.f.dev, l->extra[i].data, abar_tensor_bytes(&l->extra[i]));
    rig_close(&l->r);
}

static abar_status lab_try(lab *l, const char *rule, const char *const *settings, const char *method, bool extra)
{
    void *config = fixture_config(&l->r.f, rule, settings), *grads[PARAMS];
    for (int i = 0; i < l->n; i++) grads[i] = l->extra[i].data;
    const abar_status status =
        abar_optim_create(l->r.f.dev,
                          &ABAR_CONFIG(abar_optim_config, .rule = rule, .rule_config = config, .params = l->r.f.params,
                                       .n_params = l->n, .layers = l->r.layers, .n_layers = l->r.n_layers, .base_lr = 0.02,
                                       .method = method, .extra_grads = extra ? grads : NULL, .loss_terms = TERMS, .seed = 3),
                          &l->r.optim);
    free(config);
    return status;
}

static void lab_rule(lab *l, const char *rule, const char *const *settings)
{
    if (lab_try(l, rule, settings, NULL, true) != ABAR_OK) fail_msg("%s", abar_context_error(l->r.f.ctx));
}

/* h: by its definition, from the weights as they are. */
static double step_of(const lab *l, int maps, double relative)
{
    double sum = 0.0, count = 0.0;
    for (int i = 0; i < maps; i++) {
        const abar_tensor *w = &l->r.f.params[i].value;
        for (int64_t j = 0; j < abar_tensor_count(w); j++) sum += fixture_get(w, j) * fixture_get(w, j);
        count += (double)abar_tensor_count(w);
    }
    return fmax(relative * sqrt(sum / count), 1e-8);
}

static void perturb_all(abar_optim *optim)
{
    assert_int_equal(abar_optim_perturb(optim, 1), ABAR_OK);
    assert_int_equal(abar_optim_perturb(optim, -1), ABAR_OK);
    assert_int_equal(abar_optim_perturb(optim, 0), ABAR_OK);
}

/* ---- the oracle ------------------------------------------------------------------------------------------------------ */

static void fill(const abar_tensor *to, const abar_tensor *from, int64_t k, double scale)
{
    const int64_t count = abar_tensor_count(to);
    for (int64_t j = 0; j < count; j++) fixture_set(to, j, scale * golden_get(from, k * count + j));
}

static void golden_step(lab *l, const abar__safetensors *file, int k, double lr, double clip)
{
    abar_optim *optim = l->r.optim;
    const abar_step_config step = {.size = sizeof step, .lr = lr, .clip = clip};
    const abar_extra extra = abar_optim_extra(optim);
    const double h = step_of(l, MAPS, 0.01);
    for (int i = 0; i < PARAMS; i++) {
        const abar_tensor grads = golden(file, "grad", names[i]), given = golden(file, "extra", names[i]);
        fill(&l->r.f.params[i].grad, &grads, k, 1.0);
        fill(&l->extra[i], &given, k, extra == ABAR_EXTRA_DIFFERENCE ? 2.0 * h : 1.0);
    }
    if (extra == ABAR_EXTRA_DIFFERENCE) perturb_all(optim);
    assert_false(fixture_step(optim, lr, clip, 0.0).skipped);
    if (extra == ABAR_EXTRA_SAMPLED) assert_int_equal(abar_optim_take_sampled(optim, &step), ABAR_OK);
}

static double golden_case(lab *l, const abar__safetensors *file, const char *name, const cJSON *settings)
{
    const char *options[GOLDEN_OPTIONS_MAX] = {NULL};
    int n = 0;
    const cJSON *option;
    double error = 0.0, largest = 0.0;
    cJSON_ArrayForEach(option, cJSON_GetObjectItem(settings, "options")) options[n++] = option->valuestring;
    assert_in_range(n, 4, 6);
    for (int i = 0; i < PARAMS; i++) {
        const abar_tensor initial = golden(file, "initial", names[i]);
        l->r.f.params[i].weight_decay = cJSON_GetObjectItem(settings, "weight_decay")->valuedouble;
        fill(&l->r.f.params[i].value, &initial, 0, 1.0);
    }
    lab_rule(l, cJSON_GetObjectItem(settings, "rule")->valuestring, options);
    for (int k = 0; k < GOLDEN_STEPS; k++)
        golden_step(l, file, k, cJSON_GetObjectItem(settings, "lr")->valuedouble,
                    cJSON_GetObjectItem(settings, "clip")->valuedouble);
    for (int i = 0; i < PARAMS; i++) {
        const abar_tensor expected = golden(file, name, names[i]);
        for (int64_t j = 0; j < abar_tensor_count(&expected); j++) {
            error = fmax(error, fabs(fixture_get(&l->r.f.params[i].value, j) - golden_get(&expected, j)));
            largest = fmax(largest, fabs(golden_get(&expected, j)));
        }
    }
    abar_optim_destroy(l->r.optim);
    l->r.optim = NULL;
    return error / largest;
}

static void check_golden(const char *name, const char *device, double tolerance)
{
    lab l;
    lab_open(&l, device, shapes, PARAMS, MAPS);
    abar__safetensors *file;
    char path[256];
    snprintf(path, sizeof path, ABAR_TEST_DATA "/golden/%s.safetensors", name);
    assert_int_equal(abar__safetensors_open(l.r.f.ctx, path, &file), ABAR_OK);
    cJSON *cases = cJSON_Parse(abar__safetensors_metadata(file, "cases"));
    assert_in_range(cJSON_GetArraySize(cases), 8, 64);
    const cJSON *one;
    cJSON_ArrayForEach(one, cases)
    {
        cJSON *settings = cJSON_Parse(abar__safetensors_metadata(file, one->valuestring));
        const double error = golden_case(&l, file, one->valuestring, settings);
        if (!(error <= tolerance)) fail_msg("%s on %s: error %g", one->valuestring, device, error);
        cJSON_Delete(settings);
    }
    cJSON_Delete(cases);
    abar__safetensors_close(file);
    lab_close(&l);
}

static void steps_on_ref_are_the_oracles(void **state)
{
    (void)state;
    check_golden("hessian_steps", "ref", 1e-9);
}

static void steps_on_cpu_are_the_oracles(void **state)
{
    (void)state;
    check_golden("hessian_steps", "cpu", 1e-4);
}

/* By amirgholami/adahessian, timm and Liuhong99/Sophia in double precision (tests/oracle/check_rules.py). */
static void steps_are_those_of_the_authors(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) check_golden("hessian_peer", devices[d], 1e-5);
}

/* ---- perturbing ------------------------------------------------------------------------------------------------------- */

/* Element e of all parameters, one after the other. */
static double element(const lab *l, int64_t e)
{
    int i = 0;
    for (; e >= abar_tensor_count(&l->r.f.params[i].value); i++) e -= abar_tensor_count(&l->r.f.params[i].value);
    return fixture_get(&l->r.f.params[i].value, e);
}

enum { ALL = 337 };

/* up: which elements W + hz has moved up. */
static void check_perturbations(lab *l, bool up[ALL])
{
    const double h = step_of(l, 1, 0.25);
    double start[ALL];
    int ups = 0;
    for (int64_t e = 0; e < ALL; e++) start[e] = element(l, e);
    for (int sign = 1; sign >= -1; sign -= 2) {
        assert_int_equal(abar_optim_perturb(l->r.optim, sign), ABAR_OK);
        for (int64_t e = 0; e < ALL; e++) {
            const double moved = sign * (element(l, e) - start[e]);
            assert_true(fabs(fabs(moved) - h) <= 1e-6 * (fabs(start[e]) + h));
            if (sign > 0) up[e] = moved > 0.0;
            assert_true(up[e] == (moved > 0.0));
            ups += moved > 0.0;
        }
    }
    assert_int_equal(abar_optim_perturb(l->r.optim, 0), ABAR_OK);
    for (int64_t e = 0; e < ALL; e++) assert_true(element(l, e) == start[e]);
    assert_in_range(ups, 2 * ALL / 3, 4 * ALL / 3);
}

/* W + hz and W - hz are h away from W, on opposite sides; W comes back bit by bit; another step has other signs; the devices
 * agree about them. */
static void perturb_moves_by_signs_and_restores(void **state)
{
    (void)state;
    static const shape these[] = {{2, {30, 11}}, {1, {7}}};
    bool signs[2][2][ALL];
    for (int d = 0; d < 2; d++) {
        lab l;
        lab_open(&l, devices[d], these, 2, 1);
        lab_rule(&l, "adahessian", SETTINGS("fd-step=0.25"));
        for (int k = 0; k < 2; k++) {
            check_perturbations(&l, signs[d][k]);
            fixture_step(l.r.optim, 0.0, 0.0, 0.0);
        }
        lab_close(&l);
    }
    assert_memory_equal(signs[0], signs[1], sizeof signs[0]);
    assert_memory_not_equal(signs[0][0], signs[0][1], sizeof signs[0][0]);
}

/* ---- identities --------------------------------------------------------------------------------------------------------- */

enum { N = 6 };

/* The gradient of the quadratic w H w / 2 + b w at the weights as they are, times sign, added to what is there. */
static void add_gradient(const abar_tensor *w, double h[N][N], const double *b, double sign, const abar_tensor *to)
{
    for (int i = 0; i < N; i++) {
        double g = b[i];
        for (int j = 0; j < N; j++) g += h[i][j] * fixture_get(w, j);
        fixture_set(to, i, fixture_get(to, i) + sign * g);
    }
}

/* One step on the quadratic, with its further passes; z: the signs. */
static void quadratic_step(lab *l, double h[N][N], const double *b, double lr, double z[N])
{
    const abar_tensor *w = &l->r.f.params[0].value, *g = &l->r.f.params[0].grad, *extra = &l->extra[0];
    double start[N];
    for (int i = 0; i < N; i++) {
        start[i] = fixture_get(w, i);
        fixture_set(g, i, 0.0), fixture_set(extra, i, 0.0);
    }
    add_gradient(w, h, b, 1.0, g);
    for (int sign = 1; sign >= -1; sign -= 2) {
        assert_int_equal(abar_optim_perturb(l->r.optim, sign), ABAR_OK);
        for (int i = 0; i < N; i++) z[i] = sign * copysign(1.0, fixture_get(w, i) - start[i]);
        add_gradient(w, h, b, sign, extra);
    }
    assert_int_equal(abar_optim_perturb(l->r.optim, 0), ABAR_OK);
    assert_false(fixture_step(l->r.optim, lr, 0.0, 0.0).skipped);
}

static void lab_quadratic(lab *l, const char *device, const char *const *settings)
{
    static const shape one[] = {{2, {2, 3}}};
    lab_open(l, device, one, 1, 1);
    l->r.f.params[0].weight_decay = 0.0;
    lab_rule(l, "adahessian", settings);
}

/* However long the differences are: the diagonal is |Hz|. */
static void difference_of_a_quadratic_is_exact(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        lab l;
        double h[N][N], b[N], z[N];
        lab_quadratic(&l, devices[d], SETTINGS("fd-step=2"));
        for (int i = 0; i < N; i++)
            for (int j = 0; j <= i; j++) h[i][j] = h[j][i] = fixture_noise(&l.r.f);
        for (int i = 0; i < N; i++) b[i] = fixture_noise(&l.r.f);
        for (int k = 0; k < 3; k++) {
            quadratic_step(&l, h, b, 0.01, z);
            snapshot s = take(&l.r.f, l.r.optim);
            assert_string_equal(s.names[2], "hessian.p0");
            for (int i = 0; i < N; i++) {
                double hz = 0.0;
                for (int j = 0; j < N; j++) hz += h[i][j] * z[j];
                assert_true(fabs(fixture_get(&s.tensors[2], i) - fabs(hz)) <= (d == 0 ? 1e-12 : 1e-5));
            }
            drop(&s);
        }
        lab_close(&l);
    }
}

/* Without averages and eps, at rate 1, a step on a diagonal quadratic is Newton's: the minimum. */
static void one_step_on_a_diagonal_quadratic_is_newtons(void **state)
{
    (void)state;
    static const double diagonal[N] = {0.25, 1.0, 3.0, 0.5, 8.0, 2.0}, b[N] = {1.0, -2.0, 0.5, 0.0, 4.0, -1.0};
    for (int d = 0; d < 2; d++) {
        lab l;
        double h[N][N] = {{0.0}}, z[N];
        lab_quadratic(&l, devices[d], SETTINGS("beta1=0", "beta2=0", "eps=0", "fd-step=0.5"));
        for (int i = 0; i < N; i++) h[i][i] = diagonal[i];
        quadratic_step(&l, h, b, 1.0, z);
        for (int i = 0; i < N; i++)
            assert_true(fabs(fixture_get(&l.r.f.params[0].value, i) + b[i] / diagonal[i]) <= (d == 0 ? 1e-12 : 1e-5));
        lab_close(&l);
    }
}

/* kappa = 0 and eps = 0: gradient descent with Adam's momentum, whatever the diagonal. */
static void without_a_power_it_is_momentum(void **state)
{
    (void)state;
    static const shape one[] = {{2, {6, 5}}};
    for (int d = 0; d < 2; d++) {
        lab l;
        double w[30], m[30] = {0.0};
        lab_open(&l, devices[d], one, 1, 1);
        l.r.f.params[0].weight_decay = 0.0;
        lab_rule(&l, "adahessian", SETTINGS("hessian-power=0", "eps=0", "beta1=0.8"));
        for (int i = 0; i < 30; i++) w[i] = fixture_get(&l.r.f.params[0].value, i);
        for (int t = 1; t <= 5; t++) {
            fixture_fill_grads(&l.r.f, 1.0);
            fixture_fill(&l.r.f, &l.extra[0], 3.0);
            for (int i = 0; i < 30; i++) {
                m[i] = 0.8 * m[i] + 0.2 * fixture_get(&l.r.f.params[0].grad, i);
                w[i] -= 0.1 * m[i] / (1.0 - pow(0.8, t));
            }
            perturb_all(l.r.optim);
            fixture_step(l.r.optim, 0.1, 0.0, 0.0);
        }
        for (int i = 0; i < 30; i++)
            assert_true(fabs(fixture_get(&l.r.f.params[0].value, i) - w[i]) <= (d == 0 ? 1e-12 : 1e-5));
        lab_close(&l);
    }
}

/* While every element is clipped, as before the first diagonal, a step is the sign of the momentum: gradients times any
 * constant give the same weights. */
static void clipped_steps_ignore_the_scale_of_gradients(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        lab a, b;
        lab_open(&a, devices[d], shapes, PARAMS, MAPS);
        lab_open(&b, devices[d], shapes, PARAMS, MAPS);
        lab_rule(&a, "sophia", NULL);
        lab_rule(&b, "sophia", NULL);
        for (int k = 0; k < 5; k++) {
            fixture_fill_grads(&a.r.f, 1.0);
            for (int i = 0; i < PARAMS; i++)
                for (int64_t j = 0; j < abar_tensor_count(&a.r.f.params[i].grad); j++)
                    fixture_set(&b.r.f.params[i].grad, j, 1024.0 * fixture_get(&a.r.f.params[i].grad, j));
            fixture_step(a.r.optim, 0.01, 0.0, 0.0);
            fixture_step(b.r.optim, 0.01, 0.0, 0.0);
        }
        for (int i = 0; i < PARAMS; i++) assert_true(fixture_same_bits(&a.r.f.params[i].value, &b.r.f.params[i].value));
        lab_close(&a);
        lab_close(&b);
    }
}

/* ---- refusals ----------------------------------------------------------------------------------------------------------- */

static void rules_without_a_way_to_make_passes_are_refused(void **state)
{
    (void)state;
    static const char *const rules[] = {"adahessian", "sophia"};
    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < 2; i++) {
            lab l;
            lab_open(&l, devices[d], shapes, PARAMS, MAPS);
            assert_int_equal(lab_try(&l, rules[i], NULL, NULL, false), ABAR_E_UNSUPPORTED);
            assert_non_null(strstr(abar_context_error(l.r.f.ctx), "further passes"));
            assert_int_equal(lab_try(&l, rules[i], NULL, "mac", true), ABAR_E_ARGUMENT);
            assert_non_null(strstr(abar_context_error(l.r.f.ctx), "without a method"));
            lab_close(&l);
        }
    }
}

static void step_without_its_passes_is_refused(void **state)
{
    (void)state;
    lab l;
    const abar_step_config step = {.size = sizeof step, .lr = 0.1};
    lab_open(&l, "ref", shapes, PARAMS, MAPS);
    lab_rule(&l, "adahessian", SETTINGS("hessian-every=2"));
    assert_int_equal(abar_optim_step(l.r.optim, &step, NULL), ABAR_E_STATE);
    assert_int_equal(abar_optim_perturb(l.r.optim, 1), ABAR_OK);
    assert_int_equal(abar_optim_step(l.r.optim, &step, NULL), ABAR_E_STATE); /* still perturbed */
    assert_int_equal(abar_optim_perturb(l.r.optim, -1), ABAR_OK);
    assert_int_equal(abar_optim_perturb(l.r.optim, 0), ABAR_OK);
    assert_int_equal(abar_optim_step(l.r.optim, &step, NULL), ABAR_OK);
    assert_int_equal(abar_optim_extra(l.r.optim), ABAR_EXTRA_NONE);
    assert_int_equal(abar_optim_perturb(l.r.optim, 1), ABAR_E_STATE);
    assert_int_equal(abar_optim_step(l.r.optim, &step, NULL), ABAR_OK);
    assert_int_equal(abar_optim_extra(l.r.optim), ABAR_EXTRA_DIFFERENCE);
    lab_close(&l);
}

/* ---- numbers that are not finite ------------------------------------------------------------------------------------------
 */

/* The first difference that is not finite skips the step; a later one leaves the diagonal as it was. */
static void difference_that_is_not_finite_keeps_the_last(void **state)
{
    (void)state;
    static const shape one[] = {{2, {6, 5}}};
    for (int d = 0; d < 2; d++) {
        lab l;
        lab_open(&l, devices[d], one, 1, 1);
        l.r.f.params[0].weight_decay = 0.0;
        lab_rule(&l, "adahessian", SETTINGS("beta1=0", "beta2=0", "eps=0"));
        const abar_tensor *w = &l.r.f.params[0].value, *g = &l.r.f.params[0].grad;
        const double before = fixture_get(w, 0);
        for (int64_t j = 0; j < 30; j++) fixture_set(g, j, 1.0);
        fixture_set(&l.extra[0], 0, NAN);
        perturb_all(l.r.optim);
        assert_true(fixture_step(l.r.optim, 1.0, 0.0, 0.0).skipped);
        assert_true(fixture_get(w, 0) == before);
        for (int k = 0; k < 2; k++) { /* D = 4, then kept */
            const double start = fixture_get(w, 0), h = step_of(&l, 1, d == 0 ? 1e-5 : 0.01);
            for (int64_t j = 0; j < 30; j++) fixture_set(&l.extra[0], j, k == 0 ? 8.0 * h : (double)INFINITY);
            perturb_all(l.r.optim);
            assert_false(fixture_step(l.r.optim, 1.0, 0.0, 0.0).skipped);
            assert_true(fabs(fixture_get(w, 0) - (start - 0.25)) <= 1e-5);
        }
        lab_close(&l);
    }
}

/* A drawn gradient that is not finite, or whose squares are not, leaves h; with h = 0 the step is the sign. */
static void drawn_gradient_that_is_not_finite_is_dropped(void **state)
{
    (void)state;
    static const shape one[] = {{2, {6, 5}}};
    for (int d = 0; d < 2; d++) {
        lab l;
        const abar_step_config step = {.size = sizeof step, .lr = 0.5};
        lab_open(&l, devices[d], one, 1, 1);
        l.r.f.params[0].weight_decay = 0.0;
        lab_rule(&l, "sophia", SETTINGS("beta1=0", "beta2=0", "hessian-every=1", "sophia-rho=1"));
        const abar_tensor *w = &l.r.f.params[0].value, *g = &l.r.f.params[0].grad;
        for (int64_t j = 0; j < 30; j++) fixture_set(g, j, -3.0);
        for (int k = 0; k < 4; k++) { /* sign descent three times; then |m| / (T h) = 3 / (7 * 1) */
            const double start = fixture_get(w, 1), moved = k < 3 ? 0.5 : 0.5 * 3.0 / 7.0;
            fixture_step(l.r.optim, 0.5, 0.0, 0.0);
            assert_true(fabs(fixture_get(w, 1) - (start + moved)) <= 1e-5);
            for (int64_t j = 0; j < 30; j++) fixture_set(&l.extra[0], j, 1.0);
            if (k == 0) fixture_set(&l.extra[0], 29, -INFINITY);
            if (k == 1) fixture_set(&l.extra[0], 29, d == 0 ? 1e200 : 1e25);
            assert_int_equal(abar_optim_take_sampled(l.r.optim, &step), ABAR_OK);
        }
        lab_close(&l);
    }
}

/* The drawn gradient is clipped as it is scaled: of eight times thirty ones, times an eighth, the half remains. */
static void drawn_gradient_is_scaled_and_clipped(void **state)
{
    (void)state;
    static const shape one[] = {{2, {6, 5}}};
    for (int d = 0; d < 2; d++) {
        lab l;
        const abar_step_config step = {.size = sizeof step, .lr = 0.5, .clip = 0.5 * sqrt(30.0), .grad_scale = 0.125};
        lab_open(&l, devices[d], one, 1, 1);
        l.r.f.params[0].weight_decay = 0.0;
        lab_rule(&l, "sophia", SETTINGS("beta1=0", "beta2=0", "hessian-every=1", "sophia-rho=1"));
        const abar_tensor *w = &l.r.f.params[0].value, *g = &l.r.f.params[0].grad;
        for (int k = 0; k < 2; k++) {
            const double start = fixture_get(w, 1), moved = k == 0 ? 0.5 : 0.5 / (7.0 * 0.25);
            for (int64_t j = 0; j < 30; j++) fixture_set(g, j, -1.0);
            fixture_step(l.r.optim, 0.5, 0.0, 0.0);
            assert_true(fabs(fixture_get(w, 1) - (start + moved)) <= 1e-5);
            for (int64_t j = 0; j < 30; j++) fixture_set(&l.extra[0], j, 8.0);
            assert_int_equal(abar_optim_take_sampled(l.r.optim, &step), ABAR_OK);
        }
        lab_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_on_ref_are_the_oracles),
        cmocka_unit_test(steps_on_cpu_are_the_oracles),
        cmocka_unit_test(steps_are_those_of_the_authors),
        cmocka_unit_test(perturb_moves_by_signs_and_restores),
        cmocka_unit_test(difference_of_a_quadratic_is_exact),
        cmocka_unit_test(one_step_on_a_diagonal_quadratic_is_newtons),
        cmocka_unit_test(without_a_power_it_is_momentum),
        cmocka_unit_test(clipped_steps_ignore_the_scale_of_gradients),
        cmocka_unit_test(rules_without_a_way_to_make_passes_are_refused),
        cmocka_unit_test(step_without_its_passes_is_refused),
        cmocka_unit_test(difference_that_is_not_finite_keeps_the_last),
        cmocka_unit_test(drawn_gradient_that_is_not_finite_is_dropped),
        cmocka_unit_test(drawn_gradient_is_scaled_and_clipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
