/* A whole run from outside: it learns, says so, plans its memory and times its steps. */
#include "train_support.h"

#include <cjson/cJSON.h>
#include <math.h>

typedef struct witness {
    int64_t steps, epochs;
    abar_progress last;
    bool sane;
} witness;

static void witness_progress(void *user, const abar_progress *p)
{
    witness *w = user;
    w->steps += !p->epoch_done;
    w->epochs += p->epoch_done;
    w->sane = w->sane && p->epoch == (w->steps - 1) / p->steps && p->step >= 1 && p->step <= p->steps && isfinite(p->loss) &&
              p->accuracy >= 0.0 && p->accuracy <= 100.0 && p->lr >= 0.0 && p->seconds >= 0.0 && p->seconds_left >= 0.0 &&
              p->samples_per_second > 0.0;
    w->last = *p;
}

static double number(const cJSON *o, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, name);
    if (!cJSON_IsNumber(item)) fail_msg("the report has no number %s", name);
    return item->valuedouble;
}

static void run_learns_reports_and_writes_its_files(void **state)
{
    fixture *f = *state;
    abar_setup *setup =
        make_setup(f, "mlp", "sgd", "limit-train=1024 limit-test=300 batch=32 epochs=4 threads=1 widths=784-32-10");
    witness w = {.sane = true};
    abar_trainer_events events = {sizeof events, witness_progress, &w};
    abar_trainer *t;
    const char *json;
    set_out(f, setup, "run");
    need(f, abar_trainer_create(f->ctx, setup, false, &events, &t));
    assert_int_equal(abar_trainer_run(t), ABAR_OK);
    assert_true(w.sane && w.last.epoch_done);
    assert_int_equal(w.steps, 4 * 32);
    assert_int_equal(w.epochs, 4);
    assert_true(w.last.test_accuracy > 50.0); /* of 10 classes: chance is 10 */
    need(f, abar_trainer_report(t, &json));
    cJSON *report = cJSON_Parse(json);
    assert_non_null(report);
    assert_true(number(report, "test_acc") == w.last.test_accuracy);
    assert_true(number(report, "best_acc") == w.last.best_accuracy);
    assert_true(number(report, "best_loss") == w.last.best_loss);
    const abar__epoch *best = &t->history[(int)number(report, "best_loss_epoch") - 1];
    assert_true(best->test_loss == w.last.best_loss && w.last.best_loss <= w.last.test_loss);
    assert_true(t->history[(int)number(report, "best_acc_epoch") - 1].test_accuracy == w.last.best_accuracy);
    assert_true(number(report, "train_loss") > 0.0 && number(report, "ms_per_step") > 0.0);
    assert_true(number(report, "seconds") > 0.0 && number(report, "samples_per_second") > 0.0);
    assert_true(number(report, "peak_bytes") == (double)abar_context_memory(f->ctx).peak);
    assert_true(number(report, "optimizer_bytes") >= 4.0 * 784 * 32);
    assert_true(number(report, "skipped_steps") == 0.0);
    const cJSON *history = cJSON_GetObjectItem(report, "history");
    assert_int_equal(cJSON_GetArraySize(history), 4);
    assert_true(number(cJSON_GetArrayItem(history, 0), "train_loss") > number(cJSON_GetArrayItem(history, 3), "train_loss"));
    assert_true(number(cJSON_GetArrayItem(history, 3), "epoch") == 4.0);
    const cJSON *config = cJSON_GetObjectItem(report, "config");
    assert_true(number(cJSON_GetObjectItem(config, "train"), "batch") == 32.0);
    cJSON_Delete(report);
    abar_trainer_destroy(t);
    static const char *const files[] = {"config.json", "log.jsonl", "state.safetensors", "model.safetensors",
                                        "events.out.tfevents.0.abar"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[PATH_MAX_TEST];
        struct stat info;
        snprintf(path, sizeof path, "%s/run/%s", f->dir, files[i]);
        assert_int_equal(stat(path, &info), 0);
        assert_true(info.st_size > 0);
    }
    abar_setup_destroy(f->ctx, setup);
}

static void batch_larger_than_the_data_is_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", "batch=100000");
    abar_trainer *t;
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "--batch 100000");
    abar_setup_destroy(f->ctx, setup);
}

static void checkpoints_without_a_folder_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", "checkpoint-every=5");
    abar_trainer *t;
    assert_int_equal(abar_setup_check(f->ctx, setup), ABAR_OK); /* the check alone accepts it */
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "--checkpoint-every: there is no folder");
    abar_setup_destroy(f->ctx, setup);
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

static void check_plan(fixture *f, const char *model, const char *optim, const char *options)
{
    abar_setup *setup = make_setup(f, model, optim, options);
    char out[64];
    abar_memory_plan plan = {.size = sizeof plan};
    abar_trainer *t;
    snprintf(out, sizeof out, "%s-%s-%.8s", model, optim, setup->train.device);
    set_out(f, setup, out);
    need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
    size_t before = abar_context_memory(f->ctx).now;
    abar_context_reset_peak(f->ctx);
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    double peak = (double)(abar_context_memory(f->ctx).peak - before), planned = (double)plan.total;
    if (getenv("ABAR_TEST_VERBOSE")) print_message("%s: planned %.0f bytes, took %.0f\n", out, planned, peak);
    if (fabs(peak - planned) > 0.02 * peak) fail_msg("%s: planned %.0f bytes, took %.0f", out, planned, peak);
    assert_int_equal(plan.total, plan.parameters + plan.gradients + plan.buffers + plan.optimizer + plan.activations +
                                     plan.data + plan.loader + plan.other);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

static void memory_plan_is_within_two_percent_of_the_peak(void **state)
{
    fixture *f = *state;
    check_plan(f, "mlp", "adamw", "limit-train=512 limit-test=256 epochs=1 threads=1");
    check_plan(f, "lenet5", "sgd", "limit-train=512 limit-test=256 threads=1 epochs=1 batch=64 accumulate=2");
    check_plan(f, "resnet20", "sgd", "limit-train=64 limit-test=64 threads=1 epochs=1 batch=32");
    check_plan(f, "lenet5", "kbfgs", "limit-train=128 limit-test=64 threads=1 epochs=1 batch=64");
    check_plan(f, "lenet5", "mfac", "limit-train=128 limit-test=64 threads=1 epochs=1 batch=64 mfac-gradients=40");
    check_plan(f, "lenet5", "adamw", "device=ref limit-train=64 limit-test=32 threads=1 epochs=1 batch=32");
}

/* ---- timing --------------------------------------------------------------------------------------------------- */

static double profile_of(const abar_bench *bench)
{
    double us = 0.0;
    for (int i = 0; i < abar_bench_row_count(bench); i++) {
        const abar_bench_row row = *abar_bench_row_at(bench, i);
        for (int k = 0; k < ABAR_BENCH_PHASES; k++) us += row.phase[k].us;
    }
    return us;
}

static int row_named(const abar_bench *bench, const char *name)
{
    for (int i = 0; i < abar_bench_row_count(bench); i++)
        if (strcmp(abar_bench_row_at(bench, i)->name, name) == 0) return i;
    fail_msg("no operation %s", name);
    return -1;
}

typedef struct waits {
    int64_t steps;
    bool early, none, impossible; /* reported too soon; not at all; not a share */
} waits;

static void watch_waiting(void *user, const abar_progress *p)
{
    waits *w = user;
    w->steps += !p->epoch_done;
    w->early |= w->steps < 20 && p->waiting > 0.0;
    w->none |= w->steps >= 20 && !(p->waiting > 0.0);
    w->impossible |= !(p->waiting <= 1.0);
}

/* Without workers the batches are made between the steps, and every step waits for its own. */
static void waiting_for_data_is_reported_after_twenty_steps(void **state)
{
    fixture *f = *state;
    waits w = {0};
    abar_trainer *t;
    abar_trainer_events events = {sizeof events, watch_waiting, &w};
    abar_setup *setup = make_setup(f, "mlp", "sgd", "device=cpu batch=8 limit-train=240 limit-test=16 epochs=5 workers=0");
    need(f, abar_trainer_create(f->ctx, setup, false, &events, &t));
    need(f, abar_trainer_run(t));
    assert_int_equal(w.steps, 150);
    assert_false(w.early);
    assert_false(w.none);
    assert_false(w.impossible);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

static void fed_bench_stays_within_an_epoch_and_writes_nothing(void **state)
{
    fixture *f = *state;
    char path[PATH_MAX_TEST];
    abar_bench_fed_result r = {.size = sizeof r};
    abar_setup *setup = make_setup(f, "mlp", "sgd", "device=cpu batch=8 limit-train=64 limit-test=16 epochs=1");
    set_out(f, setup, "fed");
    need(f, abar_bench_fed(f->ctx, setup, 1, 1000, 5, &r));
    path_in(f, "fed", path);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_true(r.ms_step > 0.0 && r.ms_waited >= 0.0 && r.ms_waited <= r.ms_step);
    assert_true(r.samples_per_second > 0.0);
    assert_true(fabs(r.samples_per_second * 1e-3 * r.ms_step - 8.0) < 1e-6);
    abar_setup_destroy(f->ctx, setup);
}

static abar_bench_result timed(fixture *f, const char *optim, const char *options)
{
    abar_setup *setup = make_setup(f, "lenet5", optim, options);
    const abar_bench_config config = {.size = sizeof config, .steps = 4, .warmup = 1};
    abar_bench_result r = {.size = sizeof r};
    need(f, abar_bench_run(f->ctx, setup, &config, &r, NULL));
    abar_setup_destroy(f->ctx, setup);
    return r;
}

static void bench_makes_the_further_passes_of_a_rule(void **state)
{
    const size_t plain = timed(*state, "adamw", "batch=16 threads=1").peak_bytes;
    const size_t batch = 16 * 28 * 28 * sizeof(float);
    assert_true(timed(*state, "adahessian", "batch=16 threads=1").peak_bytes >= plain + batch); /* a second net */
    assert_true(timed(*state, "sophia", "batch=16 threads=1").peak_bytes >= plain + batch);
    assert_true(timed(*state, "ngd", "batch=16 threads=1 fisher=mc:2").ms_median > 0.0);
    assert_true(timed(*state, "kbfgs", "batch=16 threads=1").ms_median > 0.0);
}

static void bench_times_add_up(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "sgd", "batch=16 accumulate=2 threads=1");
    abar_bench_config config = {.size = sizeof config, .steps = 20, .warmup = 3, .profile = true};
    abar_bench_result r = {.size = sizeof r};
    abar_bench *bench;
    need(f, abar_bench_run(f->ctx, setup, &config, &r, &bench));
    assert_true(r.ms_p10 > 0.0 && r.ms_p10 <= r.ms_median && r.ms_median <= r.ms_p90);
    assert_true(r.ms_forward > 0.0 && r.ms_backward > 0.0 && r.ms_update > 0.0);
    assert_true(fabs(r.samples_per_second - 16e3 / r.ms_median) <= 1e-6 * r.samples_per_second);
    assert_true(r.seconds_to_first_step > 0.0 && r.peak_bytes > 0);
    const double us = profile_of(bench);
    assert_true(us > 0.0 && us <= 1e3 * r.ms_mean);
    abar_bench_release(bench);
    need(f, abar_bench_run(f->ctx, setup, &config, &r, NULL));
    config.steps = 0;
    assert_int_equal(abar_bench_run(f->ctx, setup, &config, &r, &bench), ABAR_E_ARGUMENT);
    abar_setup_destroy(f->ctx, setup);
}

/* conv1 of LeNet-5: 28x28 in, 6 maps of 28x28 out with a ReLU, 156 parameters; the input needs no gradient. */
static void bench_counts_bytes_and_flops(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "sgd", "batch=3 device=ref momentum=0.9");
    abar_bench_config config = {.size = sizeof config, .steps = 2, .warmup = 0, .profile = true};
    abar_bench_result r = {.size = sizeof r};
    abar_bench *bench;
    need(f, abar_bench_run(f->ctx, setup, &config, &r, &bench));
    const abar_bench_row conv = *abar_bench_row_at(bench, row_named(bench, "conv1"));
    const abar_bench_row update = *abar_bench_row_at(bench, abar_bench_row_count(bench) - 1);
    const double in = 3 * 28 * 28 * 8, out = 3 * 6 * 28 * 28 * 8, weights = 156 * 8, products = 2.0 * 3 * 6 * 28 * 28 * 25;
    assert_true(conv.phase[ABAR_BENCH_FORWARD].bytes == in + out + weights);
    assert_true(conv.phase[ABAR_BENCH_FORWARD].flops == products);
    assert_true(conv.phase[ABAR_BENCH_BACKWARD].bytes == in + 2 * out + weights); /* x, dy and the mask's y; dw */
    assert_true(conv.phase[ABAR_BENCH_BACKWARD].flops == products);
    assert_true(conv.phase[ABAR_BENCH_STATISTICS].us == 0.0 && conv.phase[ABAR_BENCH_FORWARD].floor_us == 0.0);
    assert_true(update.phase[ABAR_BENCH_UPDATE].bytes == 61706.0 * 8 * 5); /* weight and momentum twice, gradient once */
    abar_bench_release(bench);
    abar_setup_destroy(f->ctx, setup);
}

static void bench_spreads_statistics_over_steps(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "mac", "batch=16 device=ref tcov=4 tinv=4");
    abar_bench_config config = {.size = sizeof config, .steps = 8, .warmup = 1, .profile = true};
    abar_bench_result r = {.size = sizeof r};
    abar_bench *bench;
    need(f, abar_bench_run(f->ctx, setup, &config, &r, &bench));
    const abar_bench_row conv = *abar_bench_row_at(bench, row_named(bench, "conv1"));
    assert_true(conv.phase[ABAR_BENCH_STATISTICS].us > 0.0);
    assert_true(conv.phase[ABAR_BENCH_STATISTICS].bytes == 16 * 28 * 28 * 8 / 4.0);
    assert_true(profile_of(bench) <= 1e3 * r.ms_mean);
    abar_bench_release(bench);
    config.profile = false;
    need(f, abar_bench_run(f->ctx, setup, &config, &r, &bench));
    assert_int_equal(abar_bench_row_count(bench), 0);
    abar_bench_release(bench);
    abar_setup_destroy(f->ctx, setup);
}

/* A bench has the shapes of a training: images and classes of the data set, whether it is installed or not. */
static void bench_takes_the_shape_of_the_data(void **state)
{
    fixture *f = *state;
    abar_setup *setup;
    abar_bench_config config = {.size = sizeof config, .steps = 2};
    abar_bench_result r = {.size = sizeof r};
    abar_bench *bench;
    need(f, abar_setup_create(f->ctx, "deit-tiny", "cifar10:nowhere", "sgd", &setup)); /* by itself 224 x 224, 1000 classes */
    static const char *const small[][2] = {{"batch", "2"}, {"width", "8"}, {"heads", "1"}, {"depth", "1"}, {"threads", "1"}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) set(f, setup, small[i][0], small[i][1]);
    need(f, abar_bench_run(f->ctx, setup, &config, &r, &bench));
    const abar_net *net = abar_bench_net(bench);
    const abar_tensor input = abar_net_input(net);
    const abar_tensor *head = &abar_net_param(net, abar_net_param_count(net) - 1)->value; /* its bias */
    assert_int_equal(input.dim[1], 3);
    assert_int_equal(input.dim[2], 32);
    assert_int_equal(input.dim[3], 32);
    assert_int_equal(abar_tensor_count(head), 10);
    abar_bench_release(bench);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- running out of memory ------------------------------------------------------------------------------------ */

/* The C library's memory, of which one request fails. */
typedef struct miser {
    int64_t calls, fail_at, live;
} miser;

static void *miser_alloc(void *user, size_t bytes, size_t align)
{
    miser *m = user;
    if (m->calls++ == m->fail_at) return NULL;
    m->live++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void miser_release(void *user, void *memory, size_t bytes)
{
    (void)bytes;
    ((miser *)user)->live--;
    free(memory);
}

static abar_status whole_run(abar_context *ctx, const char *dir)
{
    static const char *const options[][2] = {{"widths", "784-4-10"}, {"device", "ref"},   {"workers", "0"}, {"batch", "4"},
                                             {"limit-train", "8"},   {"limit-test", "4"}, {"epochs", "1"}};
    abar_setup *setup;
    abar_trainer *t = NULL;
    const char *json;
    ABAR_TRY(abar_setup_create(ctx, "mlp", "synthetic", "sgd", &setup));
    abar_status status = abar_setup_set(ctx, setup, "out", dir);
    for (size_t i = 0; i < sizeof options / sizeof *options && status == ABAR_OK; i++)
        status = abar_setup_set(ctx, setup, options[i][0], options[i][1]);
    if (status == ABAR_OK) status = abar_trainer_create(ctx, setup, false, NULL, &t);
    if (status == ABAR_OK) status = abar_trainer_run(t);
    if (status == ABAR_OK) status = abar_trainer_report(t, &json);
    abar_trainer_destroy(t);
    abar_setup_destroy(ctx, setup);
    return status;
}

static void any_allocation_may_fail_and_everything_is_released(void **state)
{
    fixture *f = *state;
    abar_status status = ABAR_E_MEMORY;
    int64_t n = 0;
    for (; status != ABAR_OK && n < 1000; n++) {
        miser m = {.fail_at = n + 1}; /* the first is the context itself */
        abar_context_config config = {.size = sizeof config, .allocator = {miser_alloc, miser_release, &m}};
        abar_context *ctx;
        char dir[PATH_MAX_TEST];
        snprintf(dir, sizeof dir, "%s/%d", f->dir, (int)n);
        assert_int_equal(abar_context_create(&config, &ctx), ABAR_OK);
        status = whole_run(ctx, dir);
        if (status != ABAR_OK && status != ABAR_E_MEMORY) fail_msg("allocation %d: %s", (int)n, abar_context_error(ctx));
        assert_int_equal(m.live, 1);
        abar_context_destroy(ctx);
    }
    assert_int_equal(status, ABAR_OK);
    assert_true(n > 50);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(run_learns_reports_and_writes_its_files),
        with_fixture(batch_larger_than_the_data_is_refused),
        with_fixture(checkpoints_without_a_folder_are_refused),
        with_fixture(memory_plan_is_within_two_percent_of_the_peak),
        with_fixture(waiting_for_data_is_reported_after_twenty_steps),
        with_fixture(fed_bench_stays_within_an_epoch_and_writes_nothing),
        with_fixture(bench_makes_the_further_passes_of_a_rule),
        with_fixture(bench_times_add_up),
        with_fixture(bench_counts_bytes_and_flops),
        with_fixture(bench_spreads_statistics_over_steps),
        with_fixture(bench_takes_the_shape_of_the_data),
        with_fixture(any_allocation_may_fail_and_everything_is_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
