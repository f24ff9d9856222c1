/* Layers with settings of their own (method_configs of abar_optim_config): each is treated as if all had its settings, and what
 * treats all layers together has one setting. */
#include "curvature_lab.h"

static const lab_shape shapes[] = {
    {.name = "own", .in = 5, .out = 4, .bias = true},
    {.name = "common", .in = 5, .out = 4, .bias = true, .first = true},
};
enum { LAYERS = 2, EXAMPLES = 6 };

#define RUN "tcov=1 tinv=1"

/* The first layer has settings of its own. own: NULL: none has. */
static abar_status try_optimizer(lab *l, const char *method, const char *common, const char *own)
{
    char all[2][256];
    lab_request request, other;
    lab_request_make(l, method, lab_with(all[0], common, RUN), &request);
    lab_request_make(l, method, lab_with(all[1], own ? own : common, RUN), &other);
    const void *const configs[LAYERS] = {other.own, NULL};
    if (own) request.config.method_configs = configs;
    const abar_status status = abar_optim_create(l->dev, &request.config, &l->optim);
    lab_request_drop(&request);
    lab_request_drop(&other);
    return status;
}

static void run(lab *l, const char *device, const char *method, const char *common, const char *own)
{
    lab_open(l, device, NULL, shapes, LAYERS, EXAMPLES, 8);
    NEED(l, try_optimizer(l, method, common, own));
    for (int k = 0; k < 3; k++) {
        lab_new_batch(l);
        lab_observed_step(l);
    }
}

static void layer_is_treated_as_if_all_had_its_settings(void **state)
{
    static const char *const cases[][3] = {{"mac", "damping=0.1", "damping=adaptive damping-form=coupled"},
                                           {"mac", "damping=0.1", "damping=trace:0.2"},
                                           {"smac", "damping=0.1", "damping=adaptive diagonal-damping=0.05"},
                                           {"foof", "damping=0.1", "damping=trace:0.2 foof-width=4"},
                                           {"foof", "damping=0.1 foof-width=2", "damping=0.3 stat-init=0.1"},
                                           {"kfac", "damping=0.1 kl-clip=0", "damping=0.2 kl-clip=0 kfac-inverse=eigen"},
                                           {"kfac", "damping=0.1 kl-clip=0 kfac=expand", "damping=0.3 kl-clip=0 stat-init=0.2"},
                                           {"eva", "damping=0.1 kl-clip=0", "damping=0.4 kl-clip=0"},
                                           {"lngd", "mu=0.1", "nu1=1e-2 nu2=1"},
                                           {"skfac", "damping=0.1", "damping=0.3"},
                                           {"kpsvd", "damping=0.1 kl-clip=0", "damping=0.3 kl-clip=0 kpsvd-terms=2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lab mixed, common, own;
        if (!lab_has(cases[i][0])) continue;
        run(&mixed, *state, cases[i][0], cases[i][1], cases[i][2]);
        run(&common, *state, cases[i][0], cases[i][1], NULL);
        run(&own, *state, cases[i][0], cases[i][2], NULL);
        for (int layer = 0; layer < LAYERS; layer++) {
            double *found = lab_taken(&mixed, layer, 0), *same = lab_taken(layer == 0 ? &own : &common, layer, 0),
                   *other = lab_taken(layer == 0 ? &common : &own, layer, 0);
            if (memcmp(found, same, 24 * sizeof *found) != 0)
                fail_msg("%s, %s and %s: %s has other settings", cases[i][0], cases[i][1], cases[i][2], shapes[layer].name);
            assert_true(lab_difference(found, other, 24) > 1e-4);
            free(found);
            free(same);
            free(other);
        }
        lab_close(&mixed);
        lab_close(&common);
        lab_close(&own);
    }
}

/* method, settings of all, of the first layer, a part of the error */
static void settings_that_no_layer_can_have_alone_are_refused(void **state)
{
    static const char *const cases[][4] = {
        {"mfac", "mfac-gradients=4", "mfac-gradients=4", "together"},
        {"mfac", "mfac-gradients=4 mfac-scope=layer", "mfac-gradients=4", "together"},
        {"mfac", "mfac-gradients=4", "mfac-gradients=4 mfac-scope=layer", "together"},
        {"ngd", "damping=0.1", "damping=0.2", "together"},
        {"kfac", "kl-clip=1e-3", "kl-clip=1e-2", "--kl-clip 0.01 of layer own"},
        {"foof", "damping=0.1", "damping=0.1 foof-width=3 kfac-rank=2", "--kfac-rank 2"},
        {"lngd", "", "nu1=1", "--nu1 1"},
        {"mac", "damping=1", "first-layer=dataset-mean", "--first-layer of own"},
        {"smac", "damping=1", "first-layer=dataset-cov", "--first-layer of own"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lab l;
        lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 8);
        const abar_status status = try_optimizer(&l, cases[i][0], cases[i][1], cases[i][2]);
        if (status != ABAR_E_ARGUMENT || !strstr(abar_context_error(l.ctx), cases[i][3]))
            fail_msg("%s, %s and %s: %d, %s", cases[i][0], cases[i][1], cases[i][2], (int)status, abar_context_error(l.ctx));
        lab_close(&l);
    }
}

int main(void)
{
    const int missing = lab_begin();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        ON_BOTH(layer_is_treated_as_if_all_had_its_settings),
        ON_BOTH(settings_that_no_layer_can_have_alone_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
