/* SOAP through a setup and the trainer: runs that learn, take what was planned, and resume bit for bit. */
#include "train_runs.h"

#include "optim/optim_impl.h"

#include <math.h>

#define SMALL "device=cpu threads=1 workers=0 limit-test=32 augment=false limit-train=256 batch=16 "

static void soap_learns_within_its_plan(void **state)
{
    fixture *f = *state;
    static const char *const row[][2] = {{"soap", "epochs=6"},
                                         {"soap", "epochs=6 soap-factors=kl soap-freq=2"},
                                         {"soap", "epochs=6 soap-conv=modes"},
                                         {"mac+soap", "epochs=6 tinv=5"}};
    for (int i = 0; i < 4; i++) {
        char settings[256];
        snprintf(settings, sizeof settings, SMALL "%s", row[i][1]);
        abar_setup *setup = make_setup(f, "lenet5", row[i][0], settings);
        abar_memory_plan plan = {.size = sizeof plan};
        abar_trainer *t;
        need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        assert_int_equal(plan.optimizer, abar_optim_bytes(t->optim) - t->optim->text_bytes);
        const uint64_t before = abar_context_memory(f->ctx).allocations;
        need(f, abar_trainer_run(t));
        assert_int_equal(abar_context_memory(f->ctx).allocations, before);
        const double first = t->history[0].train_loss, last = t->history[5].train_loss;
        if (!(last < 0.9 * first && last < log(10.0))) fail_msg("%s: loss %g, then %g", row[i][1], first, last);
        assert_int_equal(t->at.skipped, 0);
        assert_int_equal(abar_optim_blocks(t->optim)->dropped, 0);
        assert_int_equal(abar_optim_blocks(t->optim)->kept, 0);
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

static void soap_resumes_bit_for_bit(void **state)
{
    fixture *f = *state;
    static const char *const dirs[][2] = {{"a0", "b0"}, {"a1", "b1"}};
    for (int i = 0; i < 2; i++) {
        abar_setup *setup = make_setup(f, "lenet5", i ? "mac+soap" : "soap",
                                       i ? SMALL "epochs=2 soap-freq=3" : SMALL "epochs=2 soap-freq=3 soap-factors=kl");
        set_out(f, setup, dirs[i][0]);
        assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
        set_out(f, setup, dirs[i][1]);
        assert_int_equal(run_until(f, setup, false, 11), ABAR_STOPPED);
        assert_int_equal(resume(f, dirs[i][1], 0), ABAR_OK);
        assert_same_tensors(f, dirs[i][0], dirs[i][1], "state.safetensors");
        abar_setup_destroy(f->ctx, setup);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(soap_learns_within_its_plan, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(soap_resumes_bit_for_bit, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
