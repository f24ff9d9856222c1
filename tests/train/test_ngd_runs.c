/* Exact natural gradient through the trainer: it learns within the memory that was planned, resumes bit for bit, skips what is
 * not finite, leaves statistics alone, and is refused where it cannot be had. */
#include "train_runs.h"

#include "optim/optim_impl.h"

#include <math.h>

#define SMALL "threads=1 workers=0 limit-test=32 augment=false limit-train=256 batch=16 "

static const char *const kinds[] = {"fisher=empirical", "fisher=mc:2", "fisher=exact", "fisher=empirical fisher-blocks=layer"};

static abar_setup *setup_of(fixture *f, const char *model, const char *optim, const char *more, int kind)
{
    char options[512];
    snprintf(options, sizeof options, SMALL "%s %s", more, kinds[kind]);
    return make_setup(f, model, optim, options);
}

static void runs_learn_within_their_plan(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 4; i++) {
        abar_setup *setup = setup_of(f, "mlp", "ngd", "device=cpu widths=784-24-10 epochs=8 damping=0.3 lr=0.01", i);
        abar_memory_plan plan = {.size = sizeof plan};
        abar_trainer *t;
        need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        assert_int_equal(plan.optimizer, abar_optim_bytes(t->optim) - t->optim->text_bytes);
        assert_int_equal(t->extra_net != NULL, i == 1 || i == 2);
        const uint64_t before = abar_context_memory(f->ctx).allocations;
        need(f, abar_trainer_run(t));
        assert_int_equal(abar_context_memory(f->ctx).allocations, before);
        const double first = t->history[0].train_loss, last = t->history[7].train_loss;
        if (!(last < 0.9 * first && last < log(10.0))) fail_msg("%s: loss %g, then %g", kinds[i], first, last);
        assert_int_equal(t->at.skipped, 0);
        for (int m = 0; m < abar_optim_map_count(t->optim); m++) {
            const abar_map_info *map = abar_optim_map(t->optim, m);
            assert_int_equal(map->commits, 128);
            assert_int_equal(map->dropped + map->kept, 0);
        }
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

static void announce_map(void *user, const abar_map_info *map) { *(size_t *)user += map->state_bytes; }

/* What `abar models --optim` prints for the layers is what the run holds for them. */
static void announced_rows_are_those_that_are_held(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 4; i++) {
        abar_setup *setup = setup_of(f, "lenet5", "ngd", "device=cpu epochs=1", i);
        abar_trainer *t;
        size_t announced = 0;
        need(f, abar_setup_maps(f->ctx, setup, announce_map, &announced));
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        assert_int_equal(announced, t->optim->curvature->rows_bytes);
        assert_true(announced > 0 && abar_optim_state_bytes(t->optim) == t->optim->state_bytes[0]); /* the momentum */
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

static void runs_resume_bit_for_bit(void **state)
{
    fixture *f = *state;
    static const char *const dirs[][2] = {{"a0", "b0"}, {"a1", "b1"}, {"a2", "b2"}, {"a3", "b3"}};
    for (int i = 0; i < 4; i++) {
        abar_setup *setup = setup_of(f, "lenet5", "ngd", "device=cpu epochs=2 limit-train=128", i);
        set_out(f, setup, dirs[i][0]);
        assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
        set_out(f, setup, dirs[i][1]);
        assert_int_equal(run_until(f, setup, false, 11), ABAR_STOPPED);
        assert_int_equal(resume(f, dirs[i][1], 0), ABAR_OK);
        assert_same_tensors(f, dirs[i][0], dirs[i][1], "state.safetensors");
        abar_setup_destroy(f->ctx, setup);
    }
}

/* After one step of a network with batch norm: running statistics, and parameters that are in no map, are those of sgd. */
static void further_passes_change_no_statistics(void **state)
{
    fixture *f = *state;
    double running[3] = {0}, scale[3] = {0};
    for (int i = 0; i < 3; i++) {
        abar_setup *setup =
            make_setup(f, "resnet20", i == 0 ? "sgd" : "ngd",
                       "device=cpu threads=1 workers=0 limit-train=4 limit-test=2 batch=4 epochs=1 augment=false "
                       "label-smoothing=0.1 lr=0.01 ");
        abar_trainer *t;
        if (i > 0) set(f, setup, "fisher", i == 1 ? "empirical" : "mc:1");
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        need(f, abar_trainer_run(t));
        assert_int_equal(t->at.skipped, 0);
        for (int k = 0; k < abar_net_tensor_count(t->net); k++) {
            const char *name;
            abar_tensor x;
            abar_net_tensor(t->net, k, &name, &x);
            if (strcmp(name, "bn1.running_mean") == 0) running[i] = (double)((float *)x.data)[0];
            if (strcmp(name, "bn1.weight") == 0) scale[i] = (double)((float *)x.data)[0];
        }
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
    for (int i = 1; i < 3; i++) {
        assert_true(running[i] == running[0] && running[0] != 0.0);
        assert_true(scale[i] == scale[0] && scale[0] != 1.0);
    }
}

static void says(fixture *f, const char *model, const char *options, const char *part)
{
    abar_setup *setup = make_setup(f, model, "ngd", options);
    abar_trainer *t = NULL;
    assert_true(abar_trainer_create(f->ctx, setup, false, NULL, &t) < 0);
    if (!strstr(abar_context_error(f->ctx), part)) fail_msg("%s", abar_context_error(f->ctx));
    assert_null(strchr(abar_context_error(f->ctx), '\n'));
    abar_setup_destroy(f->ctx, setup);
}

static void what_cannot_be_had_is_refused_in_a_line(void **state)
{
    fixture *f = *state;
    says(f, "mlp", "device=cpu accumulate=4 batch=16", "--accumulate 4: ngd needs the gradients of all examples together");
    says(f, "mlp", "device=cpu batch=1024 fisher=exact", "at most 4096");
    says(f, "mlp", "device=cpu batch=16 fisher=no", "--fisher no");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(runs_learn_within_their_plan, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(announced_rows_are_those_that_are_held, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(runs_resume_bit_for_bit, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(further_passes_change_no_statistics, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(what_cannot_be_had_is_refused_in_a_line, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
