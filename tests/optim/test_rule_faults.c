/* What every update rule owes its caller, whatever it computes: bad gradients change nothing, zeros and huge numbers stay
 * finite, a parameter without a gradient is left alone (methods.md section 9), and state that is put back goes on bit for bit.
 */
#include "optim/muon_rig.h"
#include "optim/optim_snapshot.h"
#include "repeated.h"

enum { PARAMS = 3, TERMS = 7 };

static const char *const devices[] = {"ref", "cpu"};

/* Settings beside the defaults; rules without a row are run with these alone. */
static const char *const variants[][2] = {{"sgd", "nesterov=true"},       {"adamw", "cautious=true"},
                                          {"muon", "normuon=true"},       {"muon", "hyperball=true"},
                                          {"shampoo", "graft=adam"},      {"shampoo", "shampoo-freq=2"},
                                          {"shampoo", "shampoo-block=7"}, {"shampoo", "shampoo-preset=mac-paper"},
                                          {"soap", "soap-freq=2"},        {"soap", "soap-factors=kl"},
                                          {"soap", "soap-conv=modes"},    {"soap", "hyperball=true"},
                                          {"soap", "cautious=true"},      {"adahessian", "hessian-every=2"},
                                          {"sophia", "hessian-every=2"}};
enum { VARIANTS = sizeof variants / sizeof *variants };

typedef struct lab {
    rig r;
    abar_tensor extra[PARAMS]; /* gradients of further passes */
} lab;

static void lab_open(lab *l, const char *device, const char *rule, const char *setting)
{
    void *grads[PARAMS];
    rig_open(&l->r, device, mixed, PARAMS);
    rig_layer(&l->r, 0, 1);
    rig_layer(&l->r, 2, -1);
    for (int i = 0; i < PARAMS; i++) {
        l->r.f.params[i].weight_decay = 0.0;
        l->extra[i] = fixture_tensor(&l->r.f, abar_tensor_count(&l->r.f.params[i].value));
        grads[i] = l->extra[i].data;
    }
    void *config = fixture_config(&l->r.f, rule, SETTINGS(setting));
    const abar_status status =
        abar_optim_create(l->r.f.dev,
                          &ABAR_CONFIG(abar_optim_config, .rule = rule, .rule_config = config, .params = l->r.f.params,
                                       .n_params = PARAMS, .layers = l->r.layers, .n_layers = l->r.n_layers, .base_lr = 0.02,
                                       .extra_grads = grads, .loss_terms = TERMS, .seed = 3),
                          &l->r.optim);
    free(config);
    if (status != ABAR_OK) fail_msg("%s: %s", rule, abar_context_error(l->r.f.ctx));
}

static void lab_close(lab *l)
{
    for (int i = 0; i < PARAMS; i++) abar_device_free(l->r.f.dev, l->extra[i].data, abar_tensor_bytes(&l->extra[i]));
    rig_close(&l->r);
}

/* One step with the further passes that the rule asks for, their gradients random. Whether it was skipped. */
static bool lab_step(lab *l)
{
    abar_optim *optim = l->r.optim;
    const abar_step_config step = {.size = sizeof step, .lr = 0.02};
    const abar_extra extra = abar_optim_extra(optim);
    if (extra != ABAR_EXTRA_NONE)
        for (int i = 0; i < PARAMS; i++) fixture_fill(&l->r.f, &l->extra[i], 0.1);
    for (int sign = 1; sign >= -1 && extra == ABAR_EXTRA_DIFFERENCE; sign -= 2)
        assert_int_equal(abar_optim_perturb(optim, sign), ABAR_OK);
    if (extra == ABAR_EXTRA_DIFFERENCE) assert_int_equal(abar_optim_perturb(optim, 0), ABAR_OK);
    const bool skipped = fixture_step(optim, 0.02, 0.0, 0.0).skipped;
    if (extra == ABAR_EXTRA_SAMPLED && !skipped) assert_int_equal(abar_optim_take_sampled(optim, &step), ABAR_OK);
    return skipped;
}

static void random_steps(lab *l, int n)
{
    for (int k = 0; k < n; k++) {
        fixture_fill_grads(&l->r.f, 1.0);
        assert_false(lab_step(l));
    }
}

/* ---- each rule on each device ------------------------------------------------------------------------------------------- */

typedef void checker(const char *device, const char *rule, const char *setting);

static void on_each(checker *check)
{
    for (int d = first_device(); d < 2; d++) {
        for (const char *const *rule = abar_rule_names(); *rule; rule++) check(devices[d], *rule, NULL);
        for (int i = 0; i < VARIANTS; i++) check(devices[d], variants[i][0], variants[i][1]);
    }
}

typedef struct weights {
    double at[PARAMS][240];
} weights;

static weights weights_of(const lab *l)
{
    weights w = {{{0.0}}};
    for (int i = 0; i < PARAMS; i++)
        for (int64_t j = 0; j < abar_tensor_count(&l->r.f.params[i].value); j++)
            w.at[i][j] = fixture_get(&l->r.f.params[i].value, j);
    return w;
}

static void assert_finite(lab *l, const char *rule)
{
    const weights w = weights_of(l);
    snapshot s = take(&l->r.f, l->r.optim);
    for (int i = 0; i < PARAMS; i++)
        for (int j = 0; j < 240; j++)
            if (!isfinite(w.at[i][j])) fail_msg("%s: a weight of p%d is %g", rule, i, w.at[i][j]);
    for (int i = 0; i < s.n; i++)
        for (int64_t j = 0; s.tensors[i].dtype != ABAR_I64 && j < abar_tensor_count(&s.tensors[i]); j++)
            if (!isfinite(fixture_get(&s.tensors[i], j))) fail_msg("%s: %s is not finite", rule, s.names[i]);
    drop(&s);
}

/* Of one parameter, "" of all. The count of steps, skipped ones included, does not belong to the state of a parameter. */
static void assert_same_state(const snapshot *a, const snapshot *b, const char *param, const char *rule)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        const char *dot = strrchr(a->names[i], '.');
        if (*param ? !dot || strcmp(dot + 1, param) != 0 : strcmp(a->names[i], "steps") == 0) continue;
        if (!fixture_same_bits(&a->tensors[i], &b->tensors[i])) fail_msg("%s: %s has changed", rule, a->names[i]);
    }
}

/* ---- bad gradients ----------------------------------------------------------------------------------------------------------
 */

static void check_bad(const char *device, const char *rule, const char *setting)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    lab l;
    lab_open(&l, device, rule, setting);
    random_steps(&l, 3);
    for (int p = 0; p < PARAMS; p++) {
        const weights before = weights_of(&l);
        snapshot was = take(&l.r.f, l.r.optim);
        fixture_fill_grads(&l.r.f, 1.0);
        fixture_set(&l.r.f.params[p].grad, 5, bad[p]);
        assert_true(lab_step(&l));
        const weights after = weights_of(&l);
        snapshot is = take(&l.r.f, l.r.optim);
        assert_memory_equal(&before, &after, sizeof before);
        assert_same_state(&was, &is, "", rule);
        drop(&was);
        drop(&is);
    }
    random_steps(&l, 2);
    assert_finite(&l, rule);
    lab_close(&l);
}

static void bad_gradients_change_nothing(void **state)
{
    (void)state;
    on_each(check_bad);
}

/* ---- zeros and huge numbers -------------------------------------------------------------------------------------------------
 */

static void check_zeros(const char *device, const char *rule, const char *setting)
{
    lab l;
    lab_open(&l, device, rule, setting);
    const weights before = weights_of(&l);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < PARAMS; i++) memset(l.r.f.params[i].grad.data, 0, abar_tensor_bytes(&l.r.f.params[i].grad));
        assert_false(lab_step(&l));
    }
    const weights after = weights_of(&l);
    for (int i = 0; i < PARAMS; i++) /* hyperball divides by norms and multiplies by them again */
        for (int j = 0; j < 240; j++)
            if (!(fabs(after.at[i][j] - before.at[i][j]) <= 1e-6 * fabs(before.at[i][j])))
                fail_msg("%s: zeros move p%d", rule, i);
    assert_finite(&l, rule);
    random_steps(&l, 3);
    assert_finite(&l, rule);
    const weights later = weights_of(&l);
    for (int i = 0; i < PARAMS; i++) assert_true(later.at[i][3] != after.at[i][3]);
    lab_close(&l);
}

static void zeros_move_nothing(void **state)
{
    (void)state;
    on_each(check_zeros);
}

/* Squares of the gradients do not fit. */
static void check_huge(const char *device, const char *rule, const char *setting)
{
    lab l;
    lab_open(&l, device, rule, setting);
    random_steps(&l, 3);
    for (int k = 0; k < 2; k++) {
        fixture_fill_grads(&l.r.f, strcmp(device, "ref") == 0 ? 1e160 : 1e25);
        lab_step(&l);
        assert_finite(&l, rule);
    }
    random_steps(&l, 3);
    assert_finite(&l, rule);
    lab_close(&l);
}

static void huge_gradients_stay_finite(void **state)
{
    (void)state;
    on_each(check_huge);
}

/* ---- a parameter without a gradient ----------------------------------------------------------------------------------------
 */

static void set_gradient(lab *l, int p, bool there)
{
    const abar_optim_param *param = &l->r.f.params[p];
    assert_int_equal(abar_optim_set_param(l->r.optim, p, param->value.data, there ? param->grad.data : NULL, 1.0, 0.0),
                     ABAR_OK);
}

/* before: steps that it has a gradient in, at first. */
static void check_absence(const char *device, const char *rule, const char *setting, int p, int before)
{
    char name[16];
    lab l;
    snprintf(name, sizeof name, "p%d", p);
    lab_open(&l, device, rule, setting);
    random_steps(&l, before);
    set_gradient(&l, p, false);
    const weights was = weights_of(&l);
    snapshot state = take(&l.r.f, l.r.optim);
    random_steps(&l, 3);
    const weights is = weights_of(&l);
    snapshot later = take(&l.r.f, l.r.optim);
    assert_memory_equal(was.at[p], is.at[p], sizeof was.at[p]);
    assert_same_state(&state, &later, name, rule);
    for (int i = 0; i < PARAMS; i++) assert_true(i == p || was.at[i][1] != is.at[i][1]);
    drop(&state);
    drop(&later);
    set_gradient(&l, p, true);
    random_steps(&l, 4);
    assert_finite(&l, rule);
    assert_true(weights_of(&l).at[p][1] != is.at[p][1]);
    lab_close(&l);
}

static void check_absences(const char *device, const char *rule, const char *setting)
{
    for (int p = 0; p < PARAMS; p++) {
        check_absence(device, rule, setting, p, 0);
        check_absence(device, rule, setting, p, 3);
    }
}

static void parameter_without_gradient_is_left_alone(void **state)
{
    (void)state;
    on_each(check_absences);
}

/* ---- state ------------------------------------------------------------------------------------------------------------------
 */

static void check_restored(const char *device, const char *rule, const char *setting)
{
    for (int done = 0; done < 4; done++) {
        lab a, b;
        lab_open(&a, device, rule, setting);
        lab_open(&b, device, rule, setting);
        random_steps(&a, done);
        snapshot s = take(&a.r.f, a.r.optim);
        s.ctx = b.r.f.ctx;
        assert_int_equal(abar_optim_visit(b.r.optim, restore, &s), ABAR_OK);
        b.r.f.noise = a.r.f.noise;
        for (int i = 0; i < PARAMS; i++)
            memcpy(b.r.f.params[i].value.data, a.r.f.params[i].value.data, abar_tensor_bytes(&a.r.f.params[i].value));
        random_steps(&a, 4);
        random_steps(&b, 4);
        for (int i = 0; i < PARAMS; i++)
            if (!fixture_same_bits(&a.r.f.params[i].value, &b.r.f.params[i].value))
                fail_msg("%s: p%d differs after %d steps", rule, i, done);
        drop(&s);
        lab_close(&a);
        lab_close(&b);
    }
}

static void state_put_back_goes_on_bit_for_bit(void **state)
{
    (void)state;
    on_each(check_restored);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_gradients_change_nothing),       cmocka_unit_test(zeros_move_nothing),
        cmocka_unit_test(huge_gradients_stay_finite),         cmocka_unit_test(parameter_without_gradient_is_left_alone),
        cmocka_unit_test(state_put_back_goes_on_bit_for_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
