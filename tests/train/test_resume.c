/* Stopping, being killed, and going on: the end must be the same, bit for bit; and what is refused on the way. */
#include "train_runs.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

#define SMALL "limit-train=80 limit-test=24 batch=16 epochs=3 threads=1" /* 5 steps an epoch */
#define TINY SMALL " device=ref widths=784-16-10"

static char self[PATH_MAX_TEST]; /* this program, for tests that need a process to kill */

/* ---- stopping ------------------------------------------------------------------------------------------------- */

static void stopped_run_resumes_bit_for_bit_on_ref(void **state)
{
    check_stop_and_resume(*state, "mlp", "sgd", TINY);
    check_stop_and_resume(*state, "mlp", "adamw", TINY);
}

static void stopped_run_resumes_bit_for_bit_on_cpu(void **state)
{
    check_stop_and_resume(*state, "lenet5", "sgd", SMALL);
    check_stop_and_resume(*state, "lenet5", "adamw", SMALL);
    check_stop_and_resume(*state, "resnet20", "sgd", "limit-train=10 limit-test=5 batch=2 epochs=3 threads=1");
}

static void stopped_trainer_can_run_on_without_a_folder(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", TINY);
    watcher w = {.stop_at = 7};
    abar_trainer_events events = {sizeof events, watch, &w};
    const char *report;
    need(f, abar_trainer_create(f->ctx, setup, false, &events, &w.trainer));
    assert_int_equal(abar_trainer_run(w.trainer), ABAR_STOPPED);
    need(f, abar_trainer_report(w.trainer, &report));
    assert_non_null(strstr(report, "\"stopped\": true"));
    assert_non_null(strstr(report, "\"epochs\": 1,"));
    assert_int_equal(abar_trainer_run(w.trainer), ABAR_OK);
    assert_int_equal(w.calls, 3 * 5 + 3);
    abar_trainer_destroy(w.trainer);
    abar_setup_destroy(f->ctx, setup);
}

static void stop_after_keeps_the_schedule_and_resumes_to_the_end(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", TINY), *again;
    char dir[PATH_MAX_TEST];
    set_out(f, setup, "whole");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    set_out(f, setup, "parts");
    set(f, setup, "stop-after", "1");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    assert_int_equal(lines_in(f, "parts", "\"test_acc\""), 1);
    path_in(f, "parts", dir);
    need(f, abar_setup_load(f->ctx, dir, &again));
    set(f, again, "stop-after", "0");
    assert_int_equal(run_until(f, again, true, 0), ABAR_OK);
    assert_same_runs(f, "whole", "parts");
    abar_setup_destroy(f->ctx, again);
    abar_setup_destroy(f->ctx, setup);
}

static void epochs_may_be_raised_on_resume(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", TINY), *again;
    char dir[PATH_MAX_TEST];
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    path_in(f, "run", dir);
    need(f, abar_setup_load(f->ctx, dir, &again));
    set(f, again, "epochs", "5");
    assert_int_equal(run_until(f, again, true, 0), ABAR_OK);
    assert_non_null(strstr(f->log, "--epochs is 5 now, was 3"));
    assert_int_equal(lines_in(f, "run", "\"test_acc\""), 5);
    set(f, again, "epochs", "2");
    abar_trainer *t;
    assert_true(abar_trainer_create(f->ctx, again, true, NULL, &t) < 0);
    assert_error(f, "raise --epochs");
    abar_setup_destroy(f->ctx, again);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- being killed --------------------------------------------------------------------------------------------- */

static int run_child(const char *dir, int64_t die_at)
{
    fixture f = {0};
    abar_setup *setup;
    watcher w = {.stop_at = die_at, .die = true};
    abar_trainer_events events = {sizeof events, watch, &w};
    if (abar_context_create(NULL, &f.ctx) < 0 || abar_setup_load(f.ctx, dir, &setup) < 0) return 1;
    if (abar_trainer_create(f.ctx, setup, true, &events, &w.trainer) < 0) return 2;
    return abar_trainer_run(w.trainer) < 0 ? 3 : 0;
}

/* Another process goes on with the run in dir and is killed in the middle of it. */
static void resume_and_kill(const char *dir, int64_t die_at)
{
    char number[32];
    snprintf(number, sizeof number, "%d", (int)die_at);
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, "--run", dir, number, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void killed_run_resumes_bit_for_bit(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "adamw", SMALL);
    char dir[PATH_MAX_TEST];
    set_out(f, setup, "whole");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    set_out(f, setup, "parts");
    set(f, setup, "checkpoint-every", "2");
    assert_int_equal(run_until(f, setup, false, 1), ABAR_STOPPED);
    path_in(f, "parts", dir);
    static const int64_t deaths[] = {4, 2, 6};
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) resume_and_kill(dir, deaths[i]);
    assert_int_equal(resume(f, "parts", 0), ABAR_OK);
    assert_same_runs(f, "whole", "parts");
    assert_int_equal(lines_in(f, "parts", "\"test_acc\""), 3);
    abar_setup_destroy(f->ctx, setup);
}

static void killed_before_the_first_checkpoint_starts_over(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", TINY), *again;
    char dir[PATH_MAX_TEST];
    abar_trainer *t;
    set_out(f, setup, "run");
    path_in(f, "run", dir);
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t)); /* writes config.json and no checkpoint */
    assert_false(abar_trainer_started_over(t));
    abar_trainer_destroy(t);
    resume_and_kill(dir, 3);
    need(f, abar_setup_load(f->ctx, dir, &again));
    need(f, abar_trainer_create(f->ctx, again, true, NULL, &t));
    assert_true(abar_trainer_started_over(t));
    assert_non_null(strstr(f->log, "starting over"));
    need(f, abar_trainer_run(t));
    abar_trainer_destroy(t);
    set_out(f, setup, "whole");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    assert_same_runs(f, "whole", "run");
    abar_setup_destroy(f->ctx, again);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- what is refused ------------------------------------------------------------------------------------------ */

static void finished_folder_refuses_a_fresh_run_and_a_second_process(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", TINY);
    abar_trainer *t, *second;
    set_out(f, setup, "run");
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &second), ABAR_E_BUSY);
    need(f, abar_trainer_run(t));
    abar_trainer_destroy(t);
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "already holds a run");
    assert_error(f, "--resume");
    assert_null(t);
    assert_int_equal(resume(f, "run", 0), ABAR_OK); /* nothing left to do */
    abar_setup_destroy(f->ctx, setup);
}

static void resume_with_another_model_is_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", TINY), *other = make_setup(f, "lenet5", "sgd", SMALL);
    abar_trainer *t;
    set_out(f, setup, "run");
    set_out(f, other, "run");
    assert_int_equal(run_until(f, setup, false, 2), ABAR_STOPPED);
    assert_int_equal(abar_trainer_create(f->ctx, other, true, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "--model lenet5");
    abar_setup_destroy(f->ctx, other);
    abar_setup_destroy(f->ctx, setup);
}

static void overwrite(fixture *f, const char *name, const char *text)
{
    char path[PATH_MAX_TEST];
    path_in(f, name, path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void damaged_folder_is_refused_by_name(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", TINY), *again;
    abar_trainer *t;
    char dir[PATH_MAX_TEST];
    set_out(f, setup, "run");
    path_in(f, "run", dir);
    assert_int_equal(run_until(f, setup, false, 2), ABAR_STOPPED);
    overwrite(f, "run/config.json", "{\"train\": {");
    assert_int_equal(abar_setup_load(f->ctx, dir, &again), ABAR_E_FORMAT);
    assert_error(f, "config.json");
    overwrite(f, "run/state.safetensors", "no tensors here");
    assert_int_equal(abar_trainer_create(f->ctx, setup, true, NULL, &t), ABAR_E_FORMAT);
    assert_error(f, "state.safetensors");
    path_in(f, "nowhere", dir);
    assert_int_equal(abar_setup_load(f->ctx, dir, &again), ABAR_E_NOT_FOUND);
    assert_error(f, "holds no run");
    abar_setup_destroy(f->ctx, setup);
}

/* Writes the checkpoint of a run again without one of its tensors, or with one too many. */
static void rewrite_checkpoint(fixture *f, const char *dir, const char *without, const char *extra)
{
    abar__safetensors *file = open_in(f, dir, "state.safetensors");
    abar__safetensors_writer *writer;
    char path[PATH_MAX_TEST];
    snprintf(path, sizeof path, "%s/%s/state.safetensors", f->dir, dir);
    need(f, abar__safetensors_writer_create(f->ctx, &writer));
    static const char *const keys[] = {"config", "progress"};
    for (int i = 0; i < 2; i++)
        need(f, abar__safetensors_writer_metadata(writer, keys[i], abar__safetensors_metadata(file, keys[i])));
    abar_tensor t = {0};
    for (int i = 0; i < abar__safetensors_count(file); i++) {
        const char *name = abar__safetensors_get(file, i, &t);
        if (!without || strcmp(name, without) != 0) need(f, abar__safetensors_writer_add(writer, name, &t));
    }
    if (extra) need(f, abar__safetensors_writer_add(writer, extra, &t));
    need(f, abar__safetensors_writer_write(writer, path));
    abar__safetensors_writer_destroy(writer);
    abar__safetensors_close(file);
}

static void checkpoint_with_other_tensors_is_refused_by_name(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *without, *extra, *error;
    } cases[] = {{"fc2.bias", NULL, "fc2.bias is missing"},
                 {"optim.momentum.fc1.weight", NULL, "optim.momentum.fc1.weight is missing"},
                 {NULL, "fc9.bias", "fc9.bias is none of the model's"},
                 {NULL, "optim.first.fc1.bias", "state that sgd does not have"}};
    abar_setup *setup = make_setup(f, "mlp", "sgd", TINY);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        abar_trainer *t;
        snprintf(name, sizeof name, "run%d", (int)i);
        set_out(f, setup, name);
        assert_int_equal(run_until(f, setup, false, 2), ABAR_STOPPED);
        rewrite_checkpoint(f, name, cases[i].without, cases[i].extra);
        assert_int_equal(abar_trainer_create(f->ctx, setup, true, NULL, &t), ABAR_E_FORMAT);
        assert_error(f, cases[i].error);
    }
    abar_setup_destroy(f->ctx, setup);
}

/* ---- numbers going wrong -------------------------------------------------------------------------------------- */

static void ten_skipped_steps_end_the_run_with_a_usable_checkpoint(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", TINY);
    watcher w = {.stop_at = 3};
    abar_trainer_events events = {sizeof events, watch, &w};
    set_out(f, setup, "good");
    assert_int_equal(run_until(f, setup, false, 3), ABAR_STOPPED);
    set_out(f, setup, "bad");
    need(f, abar_trainer_create(f->ctx, setup, false, &events, &w.trainer));
    assert_int_equal(abar_trainer_run(w.trainer), ABAR_STOPPED);
    abar_dataset_info poison = *w.trainer->stepper.info;
    poison.mean[0] = NAN; /* every image from now on */
    w.trainer->stepper.info = &poison;
    assert_int_equal(abar_trainer_run(w.trainer), ABAR_E_NUMERIC);
    assert_error(f, "--lr");
    assert_int_equal(w.trainer->at.skipped, 10);
    assert_int_equal(w.trainer->at.epoch * 5 + w.trainer->at.step, 13);
    abar_trainer_destroy(w.trainer);
    assert_same_tensors(f, "good", "bad", "state.safetensors");
    assert_int_equal(resume(f, "bad", 0), ABAR_OK);
    abar_setup_destroy(f->ctx, setup);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--run") == 0) return run_child(argv[2], atoi(argv[3]));
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return 1;
    const struct CMUnitTest tests[] = {
        with_fixture(stopped_run_resumes_bit_for_bit_on_ref),
        with_fixture(stopped_run_resumes_bit_for_bit_on_cpu),
        with_fixture(stopped_trainer_can_run_on_without_a_folder),
        with_fixture(stop_after_keeps_the_schedule_and_resumes_to_the_end),
        with_fixture(epochs_may_be_raised_on_resume),
        with_fixture(killed_run_resumes_bit_for_bit),
        with_fixture(killed_before_the_first_checkpoint_starts_over),
        with_fixture(finished_folder_refuses_a_fresh_run_and_a_second_process),
        with_fixture(resume_with_another_model_is_refused),
        with_fixture(damaged_folder_is_refused_by_name),
        with_fixture(checkpoint_with_other_tensors_is_refused_by_name),
        with_fixture(ten_skipped_steps_end_the_run_with_a_usable_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
