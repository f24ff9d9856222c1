/* One step: micro-batches join to the whole batch, steps that go wrong change nothing, and nothing allocates. */
#include "train_engine.h"

#include <math.h>

/* ---- tests ---------------------------------------------------------------------------------------------------- */

static void micro_batches_join_to_the_whole_batch(void **state)
{
    fixture *f = *state;
    const char *common = "device=ref workers=0 limit-train=64 limit-test=8 batch=32";
    engine *whole = make_engine(f, make_setup(f, "lenet5", "sgd", common));
    abar_setup *split = make_setup(f, "lenet5", "sgd", common);
    set(f, split, "accumulate", "4");
    engine *parts = make_engine(f, split);
    for (int k = 0; k < 3; k++) {
        abar__step_result a = train_on(whole, k), b = train_on(parts, k);
        assert_int_equal(a.loss.count, 32);
        assert_int_equal(b.loss.count, 32);
        assert_int_equal(a.loss.correct, b.loss.correct);
        assert_true(fabs(a.loss.loss - b.loss.loss) <= 1e-12 * fabs(a.loss.loss));
    }
    for (int i = 0; i < abar_net_param_count(whole->net); i++) {
        const abar_tensor *a = &abar_net_param(whole->net, i)->value, *b = &abar_net_param(parts->net, i)->value;
        for (int64_t j = 0; j < abar_tensor_count(a); j++)
            assert_true(fabs(((double *)a->data)[j] - ((double *)b->data)[j]) <= 1e-12);
    }
    drop_engine(whole);
    drop_engine(parts);
}

/* A net with batch norm that has already taken a step, so that every kind of state is there. */
static engine *warm_engine(fixture *f, const char *optim, const char *accumulate)
{
    abar_setup *setup = make_setup(f, "resnet20", optim, "device=ref workers=0 limit-train=8 limit-test=2 batch=2");
    set(f, setup, "accumulate", accumulate);
    engine *e = make_engine(f, setup);
    assert_false(train_on(e, 0).skipped);
    return e;
}

static void step_with_a_loss_that_is_not_finite_changes_nothing(void **state)
{
    fixture *f = *state;
    engine *e = warm_engine(f, "adamw", "2");
    snapshot before = take(e);
    abar_tensor input = abar_net_input(e->net);
    ((double *)input.data)[0] = NAN;
    abar__step_result r;
    need(f, abar__stepper_run(&e->stepper, NULL, 1, 0.1, &r));
    assert_true(r.skipped);
    assert_unchanged(e, &before);
    assert_false(train_on(e, 2).skipped);
    free(before.bytes);
    drop_engine(e);
}

/* Input 0 is infinite and reaches only units that it switches off: the loss is finite, 0 x infinity in the gradient is not. */
static void step_with_a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    fixture *f = *state;
    engine *e =
        make_engine(f, make_setup(f, "mlp", "sgd", "device=ref workers=0 limit-train=8 limit-test=2 batch=4 widths=784-8-10"));
    assert_false(train_on(e, 0).skipped);
    const abar_tensor *w = &abar_net_param(e->net, 0)->value; /* (8, 784) */
    for (int64_t o = 0; o < 8; o++) ((double *)w->data)[o * 784] = -1.0;
    snapshot before = take(e);
    abar_tensor input = abar_net_input(e->net);
    ((double *)input.data)[0] = INFINITY;
    abar__step_result r;
    need(f, abar__stepper_run(&e->stepper, NULL, 1, 0.1, &r));
    assert_true(isfinite(r.loss.loss));
    assert_true(r.skipped);
    assert_unchanged(e, &before);
    free(before.bytes);
    drop_engine(e);
}

static void step_updates_running_statistics_once_per_micro_batch(void **state)
{
    engine *e = warm_engine(*state, "sgd", "2");
    for (int i = 0; i < abar_net_tensor_count(e->net); i++) {
        const char *name;
        abar_tensor t;
        abar_net_tensor(e->net, i, &name, &t);
        if (strstr(name, "num_batches_tracked")) assert_int_equal(*(int64_t *)t.data, 2);
    }
    drop_engine(e);
}

static void training_allocates_nothing(void **state)
{
    fixture *f = *state;
    static const char *const devices[] = {"ref", "cpu"};
    for (int i = 0; i < 2; i++) {
        abar_setup *setup =
            make_setup(f, "lenet5", "adamw", "limit-train=64 limit-test=40 batch=16 accumulate=2 epochs=2 threads=1");
        set(f, setup, "device", devices[i]);
        set(f, setup, "augment", "true");
        abar_trainer *t;
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        uint64_t before = abar_context_memory(f->ctx).allocations;
        need(f, abar_trainer_run(t));
        assert_int_equal(abar_context_memory(f->ctx).allocations, before);
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(micro_batches_join_to_the_whole_batch),
        with_fixture(step_with_a_loss_that_is_not_finite_changes_nothing),
        with_fixture(step_with_a_gradient_that_is_not_finite_changes_nothing),
        with_fixture(step_updates_running_statistics_once_per_micro_batch),
        with_fixture(training_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
