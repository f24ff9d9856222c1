/* Runs with Schedule-Free AdamW: gradients are taken at y, tests and exports are those of x (optimizers.md section 4). */
#include "train_runs.h"

#include <math.h>

#define RUN "device=cpu limit-train=80 limit-test=24 batch=16 epochs=3 threads=1 workers=0 "
#define NORMS RUN "blocks=1-1 width=4 classes=5 image-size=16 " /* of resnet50: with batch norms */
#define PLAIN RUN "widths=784-16-10 "                           /* of mlp */

static double element(const abar_tensor *t, int64_t i)
{
    float single;
    double value;
    if (t->dtype == ABAR_F64) {
        memcpy(&value, (const char *)t->data + (size_t)i * sizeof value, sizeof value);
        return value;
    }
    memcpy(&single, (const char *)t->data + (size_t)i * sizeof single, sizeof single);
    return (double)single;
}

/* The export is y + (1 - 1/beta1) (z - y) of the checkpoint, and not y. Returns whether the two have the same statistics of
 * batch norms. */
static bool check_export(fixture *f, const char *run, double beta1)
{
    abar__safetensors *state = open_in(f, run, "state.safetensors"), *model = open_in(f, run, "model.safetensors");
    bool moved = false, same = true;
    for (int k = 0; k < abar__safetensors_count(model); k++) {
        abar_tensor x, y, apart;
        char full[256];
        const char *name = abar__safetensors_get(model, k, &x);
        assert_true(abar__safetensors_find(state, name, &y));
        if (strstr(name, "num_batches")) continue;
        if (strstr(name, "running_")) {
            for (int64_t i = 0; i < abar_tensor_count(&x); i++) same = same && element(&x, i) == element(&y, i);
            continue;
        }
        snprintf(full, sizeof full, "optim.z_minus_y.%s", name);
        assert_true(abar__safetensors_find(state, full, &apart));
        for (int64_t i = 0; i < abar_tensor_count(&x); i++) {
            const double expected = element(&y, i) + (1.0 - 1.0 / beta1) * element(&apart, i);
            assert_true(fabs(element(&x, i) - expected) <= 1e-6 * (1.0 + fabs(expected)));
            moved = moved || element(&x, i) != (double)(float)element(&y, i);
        }
    }
    assert_true(moved);
    abar__safetensors_close(state);
    abar__safetensors_close(model);
    return same;
}

static double reported_loss(fixture *f, abar_trainer *t)
{
    const char *json, *at;
    need(f, abar_trainer_report(t, &json));
    at = strstr(json, "\"test_loss\": ");
    assert_non_null(at);
    return strtod(at + strlen("\"test_loss\": "), NULL);
}

/* What the run reports is the loss of the export; what is read from a checkpoint is x, too. */
static void check_run(fixture *f, const char *model, const char *options, const char *device, double beta1)
{
    char run[64], path[PATH_MAX_TEST];
    abar_setup *setup = make_setup(f, model, "sfadamw", options);
    abar_trainer *t;
    set(f, setup, "device", device);
    set(f, setup, "deterministic", "true");
    set(f, setup, "precision", "fp32");
    snprintf(run, sizeof run, "%s-%s-%d", model, device, f->runs++);
    set_out(f, setup, run);
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    const double loss = reported_loss(f, t);
    abar_trainer_destroy(t);
    const double tolerance = strcmp(device, "cpu") == 0 ? 0.0 : 1e-5; /* the export is in float32 */
    abar_evaluation exported = {.size = sizeof exported}, kept = {.size = sizeof kept};
    snprintf(path, sizeof path, "%s/%s/model.safetensors", f->dir, run);
    need(f, abar_evaluate(f->ctx, setup, path, &exported));
    assert_true(fabs(exported.loss - loss) <= tolerance * loss);
    const bool plain = check_export(f, run, beta1);
    snprintf(path, sizeof path, "%s/%s/state.safetensors", f->dir, run);
    if (strcmp(model, "mlp") == 0) {
        need(f, abar_evaluate(f->ctx, setup, path, &kept));
        assert_true(fabs(kept.loss - loss) <= 1e-5 * loss);
    } else {
        assert_false(plain); /* statistics of x are not those of y */
        assert_int_equal(abar_evaluate(f->ctx, setup, path, &kept), ABAR_E_UNSUPPORTED);
        assert_error(f, "take model.safetensors");
    }
    abar_setup_destroy(f->ctx, setup);
}

static void averaged_weights_are_tested_and_exported(void **state)
{
    fixture *f = *state;
    static const char *const devices[] = {"ref", "cpu", "cuda"};
    for (int d = 0; d < 2 + (abar_device_count("cuda") > 0); d++) {
        check_run(f, "mlp", PLAIN, devices[d], 0.9);
        check_run(f, "mlp", PLAIN "beta1=0.7 warmup=1 accumulate=2", devices[d], 0.7);
        check_run(f, "resnet50", NORMS "augment=true", devices[d], 0.9);
        check_run(f, "resnet50", NORMS "label-smoothing=0.1 accumulate=2", devices[d], 0.9); /* another net tests */
    }
}

/* Weights, running statistics and their provisional copy are what they were. */
static void leaving_restores_every_bit(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet50", "sfadamw", NORMS "augment=true");
    abar_trainer *t;
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    const abar__net_blocks b = abar__net_blocks_of(t->net);
    unsigned char *all = malloc(b.value_bytes + b.running_bytes);
    assert_non_null(all);
    memcpy(all, b.values, b.value_bytes);
    memcpy(all + b.value_bytes, b.running, b.running_bytes);
    need(f, abar__tested_enter(t));
    assert_memory_not_equal(all, b.values, b.value_bytes);
    assert_memory_not_equal(all + b.value_bytes, b.pending, b.running_bytes);
    for (int i = 0; i < 2; i++) { /* the second time there is nothing to give back */
        need(f, abar__tested_leave(t));
        assert_memory_equal(all, b.values, b.value_bytes);
        assert_memory_equal(all + b.value_bytes, b.running, b.running_bytes);
        assert_memory_equal(all + b.value_bytes, b.pending, b.running_bytes);
    }
    free(all);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

static void stopped_run_resumes_bit_for_bit(void **state)
{
    fixture *f = *state;
    check_stop_and_resume(f, "resnet50", "sfadamw", NORMS "warmup=1 accumulate=2");
    check_stop_and_resume(f, "mlp", "mac+sfadamw", PLAIN "device=ref");
    check_stop_and_resume(f, "mlp", "nadamw", PLAIN);
    if (abar_device_count("cuda") > 0)
        check_stop_and_resume(f, "resnet50", "sfadamw", NORMS "accumulate=2 device=cuda deterministic=true");
}

/* Of epoch 0, before the first step, and of the last one. */
static void snapshots_are_of_the_averaged_weights(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet50", "sfadamw", NORMS "snapshot=0,3");
    char from[PATH_MAX_TEST], to[PATH_MAX_TEST];
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    path_in(f, "same", to);
    assert_int_equal(mkdir(to, 0777), 0);
    path_in(f, "run/snapshots/epoch-0003.safetensors", from);
    path_in(f, "same/model.safetensors", to);
    assert_int_equal(rename(from, to), 0);
    assert_same_tensors(f, "run", "same", "model.safetensors");
    abar__safetensors *first = open_in(f, "run/snapshots", "epoch-0000.safetensors");
    for (int i = 0; i < abar__safetensors_count(first); i++) { /* nothing was estimated before the first step */
        abar_tensor t;
        if (strstr(abar__safetensors_get(first, i, &t), "running_mean")) assert_true(element(&t, 0) == 0.0);
    }
    abar__safetensors_close(first);
    abar_setup_destroy(f->ctx, setup);
}

/* A new run may begin with what another one tests. */
static void run_begins_with_averaged_weights(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sfadamw", PLAIN), *next = make_setup(f, "mlp", "sgd", PLAIN);
    char path[PATH_MAX_TEST];
    abar_trainer *t;
    abar_tensor x;
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    path_in(f, "run/state.safetensors", path);
    set(f, next, "init", path);
    need(f, abar_trainer_create(f->ctx, next, false, NULL, &t));
    abar__safetensors *model = open_in(f, "run", "model.safetensors");
    const abar_param *p = abar_net_param(t->net, 0);
    assert_true(abar__safetensors_find(model, p->name, &x));
    for (int64_t i = 0; i < abar_tensor_count(&x); i++)
        assert_true(fabs(element(&p->value, i) - element(&x, i)) <= 1e-6 * (1.0 + fabs(element(&x, i))));
    abar__safetensors_close(model);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, next);
    abar_setup_destroy(f->ctx, setup);
}

static void schedules_and_other_averages_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sfadamw", PLAIN);
    need(f, abar_setup_check(f->ctx, setup));
    set(f, setup, "schedule", "cosine");
    assert_int_equal(abar_setup_check(f->ctx, setup), ABAR_E_ARGUMENT);
    assert_error(f, "--schedule constant");
    set(f, setup, "schedule", "constant");
    set(f, setup, "ema", "0.9");
    assert_int_equal(abar_setup_check(f->ctx, setup), ABAR_E_ARGUMENT);
    assert_error(f, "--ema: sfadamw averages the weights itself");
    abar_setup_destroy(f->ctx, setup);
}

static void memory_plan_is_what_is_taken(void **state)
{
    fixture *f = *state;
    static const char *const rules[] = {"sfadamw", "nadamw", "muon"};
    for (int i = 0; i < 3; i++) {
        abar_setup *setup = make_setup(f, "resnet50", rules[i], NORMS "weight-decay=0");
        abar_memory_plan plan = {.size = sizeof plan};
        abar_trainer *t;
        if (i == 2) set(f, setup, "hyperball", "true");
        need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        assert_true(fabs((double)abar_context_memory(f->ctx).now / (double)plan.total - 1.0) < 0.02);
        assert_true(plan.optimizer >= abar_optim_state_bytes(t->optim));
        const size_t before = abar_context_memory(f->ctx).now;
        need(f, abar_trainer_run(t));
        assert_int_equal(abar_context_memory(f->ctx).now, before);
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(averaged_weights_are_tested_and_exported),
        TEST(leaving_restores_every_bit),
        TEST(stopped_run_resumes_bit_for_bit),
        TEST(snapshots_are_of_the_averaged_weights),
        TEST(run_begins_with_averaged_weights),
        TEST(schedules_and_other_averages_are_refused),
        TEST(memory_plan_is_what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
