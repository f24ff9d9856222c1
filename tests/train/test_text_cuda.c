/* Text models on cuda: the losses are ref's, whether the text is resident on the device or streamed; runs repeat and resume
 * to the bit; nothing is allocated in a step; every precision learns; and what is sampled is what ref samples. */
#include "cuda_testing.h"
#include "text_support.h"

#include <math.h>

/* Every epoch's losses of a run on a device. */
static void losses_of(fixture *f, const char *device, const char *options, abar__epoch out[3])
{
    char all[512];
    snprintf(all, sizeof all, "epochs=3 %s", options);
    abar_setup *setup = text_setup(f, "mac+adamw", all);
    abar_trainer *t;
    set(f, setup, "device", device);
    if (strcmp(device, "cuda") == 0) set(f, setup, "deterministic", "true");
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    memcpy(out, t->history, 3 * sizeof *out);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

static void losses_are_refs(void **state)
{
    fixture *f = *state;
    static const char *const cases[] = {"", "accumulate=2", "batch=5 context=13", "text=bytes"};
    for (int i = 0; i < 4; i++) {
        abar__epoch cuda[3], ref[3];
        char options[128];
        losses_of(f, "ref", cases[i], ref);
        snprintf(options, sizeof options, "precision=fp32 %s", cases[i]);
        losses_of(f, "cuda", options, cuda);
        for (int e = 0; e < 3; e++) {
            if (!(fabs(cuda[e].train_loss - ref[e].train_loss) < 1e-3 * ref[e].train_loss))
                fail_msg("\"%s\", epoch %d: loss %.9g, not %.9g", cases[i], e, cuda[e].train_loss, ref[e].train_loss);
            if (!(fabs(cuda[e].test_loss - ref[e].test_loss) < 1e-3 * ref[e].test_loss))
                fail_msg("\"%s\", epoch %d: test loss %.9g, not %.9g", cases[i], e, cuda[e].test_loss, ref[e].test_loss);
        }
    }
}

static void stopped_runs_resume_bit_for_bit(void **state)
{
    fixture *f = *state;
    static const int64_t stops[] = {1, 10, 14};
    abar_setup *setup = text_setup(f, "mac+adamw", "deterministic=true");
    set(f, setup, "device", "cuda");
    set_out(f, setup, "whole");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    for (int i = 0; i < 3; i++) {
        char parts[32];
        snprintf(parts, sizeof parts, "parts-%d", (int)stops[i]);
        set_out(f, setup, parts);
        assert_int_equal(run_until(f, setup, false, stops[i]), ABAR_STOPPED);
        assert_int_equal(resume(f, parts, 0), ABAR_OK);
        assert_same_runs(f, "whole", parts);
    }
    abar_setup_destroy(f->ctx, setup);
}

static void training_allocates_nothing(void **state)
{
    fixture *f = *state;
    abar_setup *setup = text_setup(f, "mac+adamw", "accumulate=2");
    abar_trainer *t;
    set(f, setup, "device", "cuda");
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    const uint64_t before = abar_context_memory(f->ctx).allocations;
    need(f, abar_trainer_run(t));
    assert_int_equal(abar_context_memory(f->ctx).allocations, before);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

/* Learns the pattern; an evaluation, which streams the text, gives the loss of the last test, which had it on the device; and
 * the likeliest text is the pattern. */
static void every_precision_learns_and_writes(void **state)
{
    fixture *f = *state;
    static const char *const precisions[] = {"fp32", "tf32", "bf16"};
    for (int i = 0; i < 3; i++) {
        char weights[PATH_MAX_TEST], name[64];
        abar_setup *setup = text_setup(f, "adamw", "epochs=20");
        abar_evaluation e = {.size = sizeof e};
        abar__run_state at;
        made m = {.n = 0};
        set(f, setup, "device", "cuda");
        set(f, setup, "precision", precisions[i]);
        set_out(f, setup, precisions[i]);
        assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
        abar__epoch *history = history_of(f, precisions[i], &at);
        const double last = history[at.epoch - 1].test_loss;
        abar__free(f->ctx, history, (size_t)at.epoch * sizeof *history);
        if (!(last < 0.8)) fail_msg("%s: loss %g", precisions[i], last);
        snprintf(name, sizeof name, "%s/state.safetensors", precisions[i]);
        path_in(f, name, weights);
        need(f, abar_evaluate(f->ctx, setup, weights, &e));
        if (!(fabs(e.loss - last) < 1e-3)) fail_msg("%s: %.9g evaluated, %.9g in training", precisions[i], e.loss, last);
        need(f, sample(f, setup, name, (abar_sample_config){.prompt = "abc", .length = 23}, &m));
        assert_string_equal(m.text, "abcdefg hij. abcdefg hij. ");
        abar_setup_destroy(f->ctx, setup);
    }
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        with_fixture(losses_are_refs),
        with_fixture(stopped_runs_resume_bit_for_bit),
        with_fixture(training_allocates_nothing),
        with_fixture(every_precision_learns_and_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
