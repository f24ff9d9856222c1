/* The running average of the weights against its formula in double; what is tested, exported and kept of it; resuming. */
#include "train_runs.h"

#include <math.h>
#include <sys/wait.h>

#define RUN "limit-train=80 limit-test=24 batch=16 epochs=4 threads=1 workers=0 "
#define NET RUN "blocks=1-1 width=4 classes=5 image-size=16 "
#define EVERY2 "ema=0.9 ema-steps=2 "

static char self[PATH_MAX_TEST]; /* this program, for the test that needs a process to kill */

/* ---- the formula ---------------------------------------------------------------------------------------------- */

static void decay_is_that_of_the_definition(void **state)
{
    (void)state;
    abar_train_config c = {.ema = 0.99998, .ema_steps = 32, .batch = 1024, .epochs = 100};
    assert_true(fabs(abar__ema_decay(&c) - 0.9934464) < 1e-12);
    c.epochs = 1; /* 1 - 2e-5 * 1024 * 32 = 0.34464 */
    assert_true(fabs(abar__ema_decay(&c) - 0.34464) < 1e-12);
    c.ema = 0.5; /* the new value's share would be above 1 */
    assert_true(abar__ema_decay(&c) == 0.0);
}

static void warm_up_epochs_and_the_first_update_copy(void **state)
{
    (void)state;
    abar_train_config c = {.warmup = 0.0};
    assert_true(abar__ema_copies(&c, 0, 0));
    assert_false(abar__ema_copies(&c, 0, 2));
    assert_false(abar__ema_copies(&c, 1, 0));
    c.warmup = 2.0;
    assert_true(abar__ema_copies(&c, 0, 4));
    assert_true(abar__ema_copies(&c, 1, 4));
    assert_true(abar__ema_copies(&c, 2, 0)); /* torchvision's count of averages is 0 then */
    assert_false(abar__ema_copies(&c, 2, 4));
    assert_false(abar__ema_copies(&c, 3, 0));
    c.warmup = 0.4;
    assert_true(abar__ema_copies(&c, 0, 4));
    assert_true(abar__ema_copies(&c, 1, 0));
    assert_false(abar__ema_copies(&c, 1, 2));
}

/* Running statistics of more bytes than the gradients, which are the scratch: nothing behind these is written. */
static void statistics_larger_than_the_gradients_are_averaged(void **state)
{
    fixture *f = *state;
    enum { VALUES = 16, RUNNING = 100 };
    float values[VALUES], grads[2 * VALUES], running[RUNNING], e_values[VALUES], e_running[RUNNING];
    abar_device *dev;
    need(f, abar_device_open(f->ctx, "cpu", NULL, &dev));
    for (int i = 0; i < RUNNING; i++) running[i] = (float)i, e_running[i] = 1.0f;
    for (int i = 0; i < VALUES; i++) values[i] = (float)-i, e_values[i] = 2.0f, grads[VALUES + i] = 7.0f;
    abar__ema e = {.ctx = f->ctx, .dev = dev, .values = e_values, .running = e_running};
    e.blocks.values = values;
    e.blocks.grads = grads;
    e.blocks.value_bytes = sizeof values;
    e.blocks.running = running;
    e.blocks.running_bytes = sizeof running;
    need(f, abar__ema_update(&e, 0.75));
    for (int i = 0; i < VALUES; i++) assert_true(e_values[i] == 1.5f - 0.25f * (float)i && grads[VALUES + i] == 7.0f);
    for (int i = 0; i < RUNNING; i++) assert_true(e_running[i] == 0.75f + 0.25f * (float)i);
    abar_device_close(dev);
}

/* The average in double, from the weights after every step. */
typedef struct oracle {
    fixture *f;
    abar_trainer *trainer;
    int64_t steps, every;
    double decay;
    double **average; /* of every tensor of the state dict */
    double *now;
} oracle;

static double *values_of(oracle *o, const abar_tensor *t, double *out)
{
    const int64_t n = abar_tensor_count(t);
    if (!out) out = calloc((size_t)n, sizeof *out);
    if (t->dtype == ABAR_I64) {
        out[0] = (double)*(const int64_t *)t->data;
        return out;
    }
    abar_tensor host = abar_tensor_wrap(NULL, out, ABAR_F64, t->ndim, t->dim);
    need(o->f, abar_tensor_copy(o->f->ctx, &host, t));
    return out;
}

static void follow(void *user, const abar_progress *p)
{
    oracle *o = user;
    abar_net *net = abar_trainer_net(o->trainer);
    const int64_t step = p->step - 1;
    if (p->epoch_done || step % o->every) return;
    const bool copy = abar__ema_copies(&o->trainer->setup->train, p->epoch, step);
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name;
        abar_tensor t;
        abar_net_tensor(net, i, &name, &t);
        double *w = values_of(o, &t, NULL), *e = o->average[i];
        const bool all = copy || t.dtype == ABAR_I64;
        for (int64_t k = 0; k < abar_tensor_count(&t); k++) e[k] = all ? w[k] : o->decay * e[k] + (1.0 - o->decay) * w[k];
        free(w);
    }
}

/* On a queued device the state after a step is read only where nothing runs ahead of it, as with --diagnose 1. */
static void check_formula(fixture *f, const char *device, const char *optim, const char *options)
{
    abar_setup *setup = make_setup(f, "resnet50", optim, NET EVERY2 "deterministic=true precision=fp32");
    char text[256], *rest = text;
    snprintf(text, sizeof text, "%s", options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        set(f, setup, word, value);
    }
    set(f, setup, "device", device);
    char name[32];
    snprintf(name, sizeof name, "formula-%d", f->runs++);
    set_out(f, setup, name);
    oracle o = {.f = f, .every = 2, .decay = 1.0 - 0.1 * 16.0 * 2.0 / 4.0};
    const abar_trainer_events events = {sizeof events, follow, &o};
    need(f, abar_trainer_create(f->ctx, setup, false, &events, &o.trainer));
    abar_net *net = abar_trainer_net(o.trainer);
    const int n = abar_net_tensor_count(net);
    assert_true(fabs(abar__ema_decay(&setup->train) - o.decay) < 1e-15);
    o.average = calloc((size_t)n, sizeof *o.average);
    for (int i = 0; i < n; i++) {
        const char *tensor;
        abar_tensor t;
        abar_net_tensor(net, i, &tensor, &t);
        o.average[i] = values_of(&o, &t, NULL);
    }
    need(f, abar_trainer_run(o.trainer));
    const double tolerance = strcmp(device, "ref") == 0 ? 1e-14 : 1e-6;
    bool moved = false;
    for (int i = 0; i < n; i++) {
        const char *tensor;
        abar_tensor t, own;
        abar__ema_tensor(&o.trainer->average, i, &tensor, &t);
        abar_net_tensor(net, i, &tensor, &own);
        double *e = values_of(&o, &t, NULL), *w = values_of(&o, &own, NULL);
        for (int64_t k = 0; k < abar_tensor_count(&t); k++) {
            if (fabs(e[k] - o.average[i][k]) > tolerance * (1.0 + fabs(o.average[i][k])))
                fail_msg("%s[%lld] is %.17g, expected %.17g", tensor, (long long)k, e[k], o.average[i][k]);
            moved = moved || e[k] != w[k];
        }
        free(e);
        free(w);
        free(o.average[i]);
    }
    assert_true(moved);
    free(o.average);
    abar_trainer_destroy(o.trainer);
    abar_setup_destroy(f->ctx, setup);
}

static void average_follows_the_formula(void **state)
{
    fixture *f = *state;
    static const char *const options[] = {"", "warmup=2", "accumulate=2 augment=true"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        check_formula(f, "ref", "sgd", options[i]);
        check_formula(f, "cpu", "mac", options[i]);
    }
    if (abar_device_count("cuda") > 0) check_formula(f, "cuda", "mac", "diagnose=1 warmup=2");
}

/* ---- what a run does with it ---------------------------------------------------------------------------------- */

static double number_in(const char *json, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *at = strstr(json, key);
    if (!at) fail_msg("no %s in %s", name, json);
    return strtod(at + strlen(key), NULL);
}

/* The trainer's number is that of abar eval on the second export, and training itself is untouched. */
static void average_is_tested_and_exported_beside_the_net(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet50", "sgd", NET EVERY2 "label-smoothing=0.1"), *plain;
    char path[PATH_MAX_TEST];
    const char *json;
    abar_trainer *t;
    set_out(f, setup, "with");
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    need(f, abar_trainer_report(t, &json));
    abar_evaluation own = {.size = sizeof own}, average = {.size = sizeof average};
    path_in(f, "with/model.safetensors", path);
    need(f, abar_evaluate(f->ctx, setup, path, &own));
    path_in(f, "with/model_ema.safetensors", path);
    need(f, abar_evaluate(f->ctx, setup, path, &average));
    assert_true(number_in(json, "test_loss") == own.loss);
    assert_true(number_in(json, "ema_test_loss") == average.loss);
    assert_true(number_in(json, "ema_test_acc") == average.accuracy);
    assert_true(own.loss != average.loss);
    double best = 0.0;
    for (int i = 0; i < 4; i++) best = fmax(best, t->history[i].ema_accuracy);
    assert_true(number_in(json, "best_ema_acc") == best);
    assert_int_equal(lines_in(f, "with", "\"ema_test_loss\""), 4);
    abar_trainer_destroy(t);

    plain = make_setup(f, "resnet50", "sgd", NET "label-smoothing=0.1");
    set_out(f, plain, "without");
    assert_int_equal(run_until(f, plain, false, 0), ABAR_OK);
    assert_same_tensors(f, "with", "without", "model.safetensors");
    assert_int_equal(lines_in(f, "without", "ema"), 0);
    path_in(f, "without/model_ema.safetensors", path);
    assert_int_not_equal(access(path, F_OK), 0);
    abar_setup_destroy(f->ctx, plain);
    abar_setup_destroy(f->ctx, setup);
}

static void names_follow_the_validation_part(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", "limit-train=80 batch=16 epochs=2 threads=1 validation=0.2 " EVERY2);
    const char *json;
    abar_trainer *t;
    set_out(f, setup, "run");
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    need(f, abar_trainer_report(t, &json));
    assert_true(number_in(json, "ema_validation_loss") > 0.0);
    assert_int_equal(lines_in(f, "run", "\"ema_validation_acc\""), 2);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

/* Announced memory is used memory, the average's included. */
static void memory_plan_counts_the_average(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet50", "sgd", NET EVERY2 "label-smoothing=0.1 device=cpu");
    abar_memory_plan plan = {.size = sizeof plan};
    abar_trainer *t;
    need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    assert_int_equal(plan.average, plan.parameters + plan.buffers / 2);
    assert_int_equal(abar_context_memory(f->ctx).now > plan.average, true);
    const double held = (double)abar_context_memory(f->ctx).now;
    assert_true(fabs(held / (double)plan.total - 1.0) < 0.02);
    const size_t before = abar_context_memory(f->ctx).now;
    need(f, abar_trainer_run(t));
    assert_int_equal(abar_context_memory(f->ctx).now, before);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- stopping and resuming ------------------------------------------------------------------------------------ */

#define RESUMED EVERY2 "accumulate=2 warmup=1"

static void stopped_run_resumes_bit_for_bit(void **state)
{
    fixture *f = *state;
    check_stop_and_resume(f, "resnet50", "mac", NET RESUMED);
    check_stop_and_resume(f, "mlp", "adamw", RUN RESUMED " device=ref widths=784-16-10 label-smoothing=0.1");
    assert_same_tensors(f, "resnet50-mac-0", "resnet50-mac-0-9", "model_ema.safetensors");
}

/* --ema of a run is fixed: a checkpoint has the average, or has not. */
static void average_cannot_begin_or_end_on_resume(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", RUN EVERY2), *again;
    char dir[PATH_MAX_TEST];
    abar_trainer *t;
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 3), ABAR_STOPPED);
    path_in(f, "run", dir);
    need(f, abar_setup_load(f->ctx, dir, &again));
    assert_true(again->train.ema == 0.9 && again->train.ema_steps == 2);
    set(f, again, "ema", "0");
    set(f, again, "ema-steps", "32");
    assert_int_equal(abar_trainer_create(f->ctx, again, true, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "--ema 0: the run to resume was made with 0.9");
    abar_setup_destroy(f->ctx, again);
    abar_setup_destroy(f->ctx, setup);
}

static void steps_without_an_average_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", RUN "ema-steps=8");
    assert_int_equal(abar_setup_check(f->ctx, setup), ABAR_E_ARGUMENT);
    assert_error(f, "--ema-steps 8: there is no average of the weights");
    abar_setup_destroy(f->ctx, setup);
}

static void swapping_in_and_out_restores_the_net(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", RUN EVERY2 "device=ref widths=784-16-10");
    abar_trainer *t;
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    const abar_param *p = abar_net_param(t->net, 0);
    const double first = *(const double *)p->value.data;
    need(f, abar__ema_swap_in(&t->average));
    const double averaged = *(const double *)p->value.data;
    assert_true(averaged != first);
    assert_true(averaged == *(const double *)t->average.values);
    need(f, abar__ema_swap_out(&t->average));
    assert_true(*(const double *)p->value.data == first);
    need(f, abar__ema_swap_out(&t->average)); /* nothing to give back */
    assert_true(*(const double *)p->value.data == first);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

static int run_child(const char *dir, const char *seed)
{
    abar_context *ctx;
    abar_setup *setup;
    watcher w = {.stop_at = 9, .die = true}; /* behind the checkpoint after step 8 */
    abar_trainer_events events = {sizeof events, watch, &w};
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 1;
    if (abar_setup_create(ctx, "resnet50", "synthetic", "mac", &setup) != ABAR_OK) return 1;
    char text[512], *rest = text;
    snprintf(text, sizeof text, "%s %s out=%s seed=%s checkpoint-every=2", NET, RESUMED, dir, seed);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        if (abar_setup_set(ctx, setup, word, value) != ABAR_OK) return 1;
    }
    if (abar_trainer_create(ctx, setup, false, &events, &w.trainer) != ABAR_OK) return 1;
    abar_trainer_run(w.trainer);
    return 1; /* it should have been killed */
}

static void killed_run_resumes_bit_for_bit(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet50", "mac", NET RESUMED " checkpoint-every=2");
    char dir[PATH_MAX_TEST];
    set_out(f, setup, "whole");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    path_in(f, "killed", dir);
    const pid_t child = fork();
    if (child == 0) {
        execl(self, self, "--child", dir, test_seed(), (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(resume(f, "killed", 0), ABAR_OK);
    assert_same_runs(f, "whole", "killed");
    assert_same_tensors(f, "whole", "killed", "model_ema.safetensors");
    abar_setup_destroy(f->ctx, setup);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--child") == 0) return run_child(argv[2], argv[3]);
    snprintf(self, sizeof self, "%s", argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(statistics_larger_than_the_gradients_are_averaged, make_fixture, drop_fixture),
        cmocka_unit_test(decay_is_that_of_the_definition),
        cmocka_unit_test(warm_up_epochs_and_the_first_update_copy),
        cmocka_unit_test_setup_teardown(average_follows_the_formula, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(average_is_tested_and_exported_beside_the_net, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(names_follow_the_validation_part, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(memory_plan_counts_the_average, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(stopped_run_resumes_bit_for_bit, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(average_cannot_begin_or_end_on_resume, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(steps_without_an_average_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(swapping_in_and_out_restores_the_net, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(killed_run_resumes_bit_for_bit, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
