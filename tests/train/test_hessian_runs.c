/* AdaHessian and Sophia through the trainer: further passes leave what they must alone, join micro-batches, resume bit for bit,
 * take the memory that was planned, and skip what is not finite. */
#include "train_runs.h"

#include "optim/optim_impl.h"
#include "repeated.h"

#include <math.h>

#define SMALL "threads=1 workers=0 limit-test=32 augment=false limit-train=256 batch=16 "

static const char *const optimizers[] = {"adahessian", "sophia"};
static const char *const devices[] = {"ref", "cpu"};

static void runs_learn_within_their_plan(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        abar_setup *setup = make_setup(f, "lenet5", optimizers[i], SMALL "device=cpu epochs=8");
        abar_memory_plan plan = {.size = sizeof plan};
        abar_trainer *t;
        need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        assert_int_equal(plan.optimizer, abar_optim_bytes(t->optim) - t->optim->text_bytes);
        const abar_net_memory own = *abar_net_memory_plan(t->net), extra = *abar_net_memory_plan(t->extra_net);
        assert_int_equal(plan.gradients, own.gradients + extra.gradients);
        assert_int_equal(plan.activations, own.arena + extra.arena);
        const uint64_t before = abar_context_memory(f->ctx).allocations;
        need(f, abar_trainer_run(t));
        assert_int_equal(abar_context_memory(f->ctx).allocations, before);
        const double first = t->history[0].train_loss, last = t->history[7].train_loss;
        if (!(last < 0.9 * first && last < log(10.0))) fail_msg("%s: loss %g, then %g", optimizers[i], first, last);
        assert_int_equal(t->at.skipped, 0);
        assert_int_equal(t->optim->step_state.extra_dropped, 0);
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

/* Steps with and without further passes on both sides of the stop. */
static void runs_resume_bit_for_bit(void **state)
{
    fixture *f = *state;
    static const char *const dirs[][2] = {{"a0", "b0"}, {"a1", "b1"}};
    for (int i = 0; i < 2; i++) {
        abar_setup *setup = make_setup(f, "lenet5", optimizers[i], SMALL "device=cpu epochs=2 hessian-every=3 lr=1e-3");
        set_out(f, setup, dirs[i][0]);
        assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
        set_out(f, setup, dirs[i][1]);
        assert_int_equal(run_until(f, setup, false, 11), ABAR_STOPPED);
        assert_int_equal(resume(f, dirs[i][1], 0), ABAR_OK);
        assert_same_tensors(f, dirs[i][0], dirs[i][1], "state.safetensors");
        abar_setup_destroy(f->ctx, setup);
    }
}

static double final_loss(fixture *f, const char *optim, const char *accumulate)
{
    abar_setup *setup = make_setup(f, "mlp", optim,
                                   "device=ref workers=0 widths=784-12-12-10 limit-train=64 limit-test=16 batch=16 epochs=3 "
                                   "augment=false hessian-every=2 lr=1e-3 ");
    abar_trainer *t;
    set(f, setup, "accumulate", accumulate);
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    const double loss = t->history[2].test_loss;
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
    return loss;
}

/* The difference of gradients rounds at 1e-11 of the diagonal on ref. */
static void micro_batches_join(void **state)
{
    for (int i = 0; i < 2; i++) {
        const double whole = final_loss(*state, optimizers[i], "1"), parts = final_loss(*state, optimizers[i], "4");
        if (!(fabs(whole - parts) <= 1e-6 * whole)) fail_msg("%s: %.12g and %.12g", optimizers[i], whole, parts);
    }
}

static abar_status find_exp_avg(void *user, const char *name, const abar_tensor *t)
{
    if (strcmp(name, "exp_avg.conv1.weight") == 0) *(abar_tensor *)user = *t;
    return ABAR_OK;
}

/* After one step: running statistics and the gradient average are those of adamw, whose step makes one pass. */
static void further_passes_change_no_statistics(void **state)
{
    fixture *f = *state;
    static const char *const rules[] = {"adamw", "adahessian", "sophia"};
    for (int d = first_device(); d < 2; d++) {
        double average[3], running[3] = {0};
        for (int i = 0; i < 3; i++) {
            abar_setup *setup = make_setup(f, "resnet20", rules[i],
                                           "threads=1 workers=0 limit-train=4 limit-test=2 batch=4 epochs=1 "
                                           "beta1=0.5 label-smoothing=0.1 ");
            abar_trainer *t;
            abar_tensor found = {0};
            set(f, setup, "device", devices[d]);
            if (i > 0) set(f, setup, "hessian-every", "1");
            need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
            need(f, abar_trainer_run(t));
            assert_int_equal(t->at.skipped, 0);
            need(f, abar_optim_visit(t->optim, find_exp_avg, &found));
            assert_non_null(found.data);
            average[i] = d == 0 ? ((double *)found.data)[1] : (double)((float *)found.data)[1];
            for (int k = 0; k < abar_net_tensor_count(t->net); k++) {
                const char *name;
                abar_tensor x;
                abar_net_tensor(t->net, k, &name, &x);
                if (strcmp(name, "bn1.running_mean") == 0)
                    running[i] = d == 0 ? ((double *)x.data)[0] : (double)((float *)x.data)[0];
            }
            abar_trainer_destroy(t);
            abar_setup_destroy(f->ctx, setup);
        }
        for (int i = 1; i < 3; i++) {
            assert_true(average[i] == average[0] && average[0] != 0.0);
            assert_true(running[i] == running[0] && running[0] != 0.0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(runs_learn_within_their_plan, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(runs_resume_bit_for_bit, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(micro_batches_join, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(further_passes_change_no_statistics, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
