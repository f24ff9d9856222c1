/* Which parameters decay: with zero gradients a step shows it. */
#include "train_support.h"

#include <math.h>

/* Norms, biases, positions and tokens, by their names. */
static bool is_spared(const char *name)
{
    static const char *const words[] = {"norm", "ln_", "bias", "pos_embed", "cls_token", "wpe", NULL};
    for (const char *const *w = words; *w; w++)
        if (strstr(name, *w)) return true;
    return false;
}

/* One step from ones at rate 0.1 and decay 0.5. */
static void check_decay(fixture *f, const char *model, const char *options, bool all)
{
    abar_setup *setup = make_setup(f, model, "sgd", options);
    set(f, setup, "device", "ref");
    set(f, setup, "weight-decay", "0.5");
    if (all) set(f, setup, "decay-all", "true");
    abar_dataset_info info = {0};
    abar_device *dev;
    abar_net *net;
    abar_optim *optim;
    need(f, abar__data_look(f->ctx, setup, &info));
    need(f, abar__device_open(f->ctx, setup, &dev));
    need(f, abar__net_build(f->ctx, setup, &info, dev, &(abar__net_request){.batch = 1, .training = true}, &net));
    need(f, abar__optim_build(f->ctx, setup, dev, net, NULL, &optim));
    for (int i = 0; i < abar_net_param_count(net); i++) {
        const abar_param *p = abar_net_param(net, i);
        memset(p->grad.data, 0, abar_tensor_bytes(&p->grad));
        for (int64_t k = 0; k < abar_tensor_count(&p->value); k++) ((double *)p->value.data)[k] = 1.0;
    }
    need(f, abar_optim_step(optim, &(abar_step_config){.size = sizeof(abar_step_config), .lr = 0.1}, NULL));
    int spared = 0;
    for (int i = 0; i < abar_net_param_count(net); i++) {
        const abar_param *p = abar_net_param(net, i);
        const double want = !all && is_spared(p->name) ? 1.0 : 0.95;
        spared += want == 1.0;
        for (int64_t k = 0; k < abar_tensor_count(&p->value); k++)
            if (!(fabs(((double *)p->value.data)[k] - want) <= 1e-15)) fail_msg("%s of %s: decays wrongly", p->name, model);
    }
    assert_true(all || spared > 0);
    abar_optim_destroy(optim);
    abar_net_destroy(net);
    abar_device_close(dev);
    abar_setup_destroy(f->ctx, setup);
}

static void decay_of_transformers_spares_norms_biases_positions_and_tokens(void **state)
{
    check_decay(*state, "deit-tiny", "image-size=8 classes=3 width=4 heads=1 depth=1", false);
    check_decay(*state, "swin-tiny", "image-size=8 classes=3 patch=2 width=4 depths=1-1 heads=1-1 window=2", false);
    check_decay(*state, "gpt2", "layers=1 heads=1 width=4 context=4 vocabulary=5", false);
    check_decay(*state, "gpt-char", "layers=1 heads=1 width=4 context=4 vocabulary=5", false);
}

static void decay_of_all_spares_nothing(void **state)
{
    check_decay(*state, "deit-tiny", "image-size=8 classes=3 width=4 heads=1 depth=1", true);
    check_decay(*state, "gpt2", "layers=1 heads=1 width=4 context=4 vocabulary=5", true);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(decay_of_transformers_spares_norms_biases_positions_and_tokens),
        with_fixture(decay_of_all_spares_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
