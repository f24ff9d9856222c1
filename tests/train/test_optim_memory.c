/* Every optimizer takes the memory that `abar models --optim` announces, on every device that there is: every update rule,
 * every method on sgd, and methods in front of rules with state of their own. */
#include "train_support.h"

#include "optim/optim_impl.h"

#include <math.h>

#define SMALL "limit-train=32 limit-test=16 batch=16 epochs=1 threads=1 workers=0 augment=false "

/* Names, and options that change what is kept. */
static const char *const further[][2] = {{"mac+adamw", ""},
                                         {"mac+muon", ""},
                                         {"foof+muon", "normuon=true"},
                                         {"kfac+muon", ""},
                                         {"mac+shampoo", ""},
                                         {"mac+soap", ""},
                                         {"skfac+nadamw", ""},
                                         {"kfac+sfadamw", ""},
                                         {"shampoo", "shampoo-preset=mac-paper"},
                                         {"soap", "soap-factors=kl"},
                                         {"soap", "soap-conv=modes max-dim=100"},
                                         {"kpsvd", "kpsvd-terms=2"}};
enum { FURTHER = sizeof further / sizeof *further };

typedef void visitor(fixture *f, const char *device, const char *optim, const char *options);

static void each_optimizer(fixture *f, const char *device, visitor *visit)
{
    for (const char *const *name = abar_rule_names(); *name; name++) visit(f, device, *name, "");
    for (const char *const *name = abar_method_names(); *name; name++) visit(f, device, *name, "");
    for (int i = 0; i < FURTHER; i++) visit(f, device, further[i][0], further[i][1]);
}

/* A convolutional network, and one with fused projections and a token. */
static abar_setup *setup_of(fixture *f, bool attends, const char *device, const char *optim, const char *options)
{
    abar_setup *setup = make_setup(f, attends ? "deit-tiny" : "lenet5", optim, SMALL);
    if (attends) set_all(f, setup, "image-size=16 patch=8 width=32 depth=1 heads=2");
    set(f, setup, "device", device);
    set_all(f, setup, options);
    return setup;
}

/* What making the optimizer adds to the context's memory. */
static size_t taken(fixture *f, const abar_setup *setup, size_t *names)
{
    abar_dataset_info info;
    abar_device *dev;
    abar_net *net, *extra;
    abar_optim *optim;
    const abar__net_request request = {.batch = setup->train.batch / setup->train.accumulate, .training = true};
    need(f, abar__data_look(f->ctx, setup, &info));
    need(f, abar__device_open(f->ctx, setup, &dev));
    need(f, abar__net_build(f->ctx, setup, &info, dev, &request, &net));
    need(f, abar__extra_net_build(f->ctx, setup, &info, dev, net, false, &extra));
    const size_t before = abar_context_memory(f->ctx).now;
    need(f, abar__optim_build(f->ctx, setup, dev, net, extra, &optim));
    const size_t bytes = abar_context_memory(f->ctx).now - before;
    assert_int_equal(bytes, abar_optim_bytes(optim));
    *names = optim->text_bytes;
    abar_optim_destroy(optim);
    assert_int_equal(abar_context_memory(f->ctx).now, before);
    abar_net_destroy(extra);
    abar_net_destroy(net);
    abar_device_close(dev);
    return bytes;
}

static void check_announced(fixture *f, const char *device, const char *optim, const char *options)
{
    for (int attends = 0; attends < 2; attends++) {
        abar_setup *setup = setup_of(f, attends, device, optim, options);
        abar_memory_plan plan = {.size = sizeof plan};
        size_t names;
        const abar_status status = abar_setup_memory_plan(f->ctx, setup, &plan);
        if (status == ABAR_E_UNSUPPORTED) {
            print_message("%s\n", abar_context_error(f->ctx));
        } else {
            need(f, status);
            const size_t bytes = taken(f, setup, &names);
            if (plan.optimizer != bytes - names)
                fail_msg("%s %s on %s: announced %zu bytes, took %zu", optim, options, device, plan.optimizer, bytes - names);
        }
        abar_setup_destroy(f->ctx, setup);
    }
}

static void announced_memory_of_every_optimizer_is_what_it_takes(void **state)
{
    static const char *const devices[] = {"ref", "cpu", "cuda"};
    for (int d = 0; d < 2 + (abar_device_count("cuda") > 0); d++) each_optimizer(*state, devices[d], check_announced);
}

/* The whole run, within two percent; and no step asks for more. */
static void check_run(fixture *f, const char *device, const char *optim, const char *options)
{
    abar_setup *setup = setup_of(f, false, device, optim, options);
    abar_memory_plan plan = {.size = sizeof plan};
    abar_trainer *t;
    char out[32];
    snprintf(out, sizeof out, "run%d", f->runs++);
    set_out(f, setup, out);
    need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
    const size_t before = abar_context_memory(f->ctx).now;
    abar_context_reset_peak(f->ctx);
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    const double peak = (double)(abar_context_memory(f->ctx).peak - before), planned = (double)plan.total;
    if (fabs(peak - planned) > 0.02 * peak) fail_msg("%s %s: planned %.0f bytes, took %.0f", optim, options, planned, peak);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

static void runs_of_every_optimizer_stay_within_their_plan(void **state) { each_optimizer(*state, "cpu", check_run); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(announced_memory_of_every_optimizer_is_what_it_takes, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(runs_of_every_optimizer_stay_within_their_plan, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
