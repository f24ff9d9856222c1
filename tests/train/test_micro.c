/* Micro-batches whose gradients are summed in a fixed order (--micro): the steps are those of a plain recomputation of it. */
#include "train_runs.h"

#include "data/data_impl.h"

#include <math.h>

#define RUN "threads=1 workers=0 limit-test=16 "
#define NORMS RUN "blocks=1-1 width=4 classes=5 image-size=16 " /* of resnet50: with batch norms */

/* ---- the definition ----------------------------------------------------------------------------------------------------- */

/* Terms from `first` on, `width` of them, a power of 2, as far as there are so many: (n, length). */
static void sum_tree(float *terms, int64_t n, int64_t length, int64_t first, int64_t width)
{
    const int64_t right = first + width / 2;
    if (width == 1) return;
    sum_tree(terms, n, length, first, width / 2);
    if (right >= n) return;
    sum_tree(terms, n, length, right, width / 2);
    for (int64_t i = 0; i < length; i++) terms[first * length + i] += terms[right * length + i];
}

/* One step of a trainer that was made for plain accumulation, with the gradients summed here. */
static void step_by_hand(fixture *f, abar_trainer *t, int64_t n, int64_t k)
{
    const abar__net_blocks blocks = abar__net_blocks_of(t->net);
    const int64_t length = (int64_t)(blocks.value_bytes / sizeof(float)), micro = t->stepper.micro;
    float *terms = malloc((size_t)n * blocks.value_bytes);
    abar_batch batch = {.size = sizeof batch};
    const abar_dataset_info *info = abar_dataset_info_of(t->data);
    need(f, abar_loader_next(t->train, &batch));
    for (int64_t i = 0; i < n; i++) {
        const abar_batch part = abar__batch_part(info, &batch, i * micro);
        const abar_tensor input = abar_net_input(t->net);
        need(f, abar_batch_normalise(f->ctx, info, &part, micro, &input));
        need(f, abar_net_set_labels(t->net, part.labels));
        const abar_run_config run = {.size = sizeof run,
                                     .training = true,
                                     .seed = t->stepper.seed,
                                     .step = k,
                                     .sample0 = i * micro,
                                     .loss_scale = 1.0 / (double)n};
        need(f, abar_net_forward(t->net, &run, NULL));
        need(f, abar_net_backward(t->net, false, NULL));
        memcpy(terms + i * length, blocks.grads, blocks.value_bytes);
    }
    int64_t width = 1;
    while (width < n) width *= 2;
    sum_tree(terms, n, length, 0, width);
    memcpy(blocks.grads, terms, blocks.value_bytes);
    free(terms);
    const abar_step_config step = {.size = sizeof step, .lr = abar_schedule_lr(&t->schedule, k), .clip = t->setup->train.clip};
    need(f, abar_optim_step(t->optim, &step, NULL));
}

static void check_recomputed(fixture *f, int64_t n)
{
    char options[256];
    snprintf(options, sizeof options, RUN "limit-train=%d batch=%d epochs=1 clip=0.5", (int)(8 * n), (int)(4 * n));
    abar_setup *setup = make_setup(f, "mlp", "sgd", options);
    set(f, setup, "widths", "784-16-10");
    abar_trainer *joined, *plain;
    set(f, setup, "micro", "4");
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &joined));
    set(f, setup, "micro", "0");
    snprintf(options, sizeof options, "%d", (int)n);
    set(f, setup, "accumulate", options);
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &plain));
    const uint64_t before = abar_context_memory(f->ctx).allocations;
    need(f, abar_trainer_run(joined));
    assert_int_equal(abar_context_memory(f->ctx).allocations, before);
    for (int64_t k = 0; k < 2; k++) step_by_hand(f, plain, n, k);
    const abar__net_blocks a = abar__net_blocks_of(joined->net), b = abar__net_blocks_of(plain->net);
    if (memcmp(a.values, b.values, a.value_bytes) != 0) fail_msg("%d micro-batches: other weights", (int)n);
    abar_trainer_destroy(joined);
    abar_trainer_destroy(plain);
    abar_setup_destroy(f->ctx, setup);
}

static void micro_any_number_equals_a_plain_recomputation(void **state)
{
    for (int64_t n = 1; n <= 9; n++) check_recomputed(*state, n);
}

/* ---- in double, against micro-batches that are added one after another -------------------------------------------------- */

/* A run with --accumulate n and one with --micro, to its end. */
static void run_both(fixture *f, const char *model, const char *optim, const char *options, abar_trainer *out[2])
{
    for (int k = 0; k < 2; k++) {
        abar_setup *setup = make_setup(f, model, optim, options);
        set(f, setup, "device", "ref");
        set(f, setup, k ? "micro" : "accumulate", k ? "4" : "3");
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &out[k]));
        need(f, abar_trainer_run(out[k]));
        assert_int_equal(out[k]->at.skipped, 0);
        abar_setup_destroy(f->ctx, setup);
    }
}

static void drop_both(abar_trainer *t[2])
{
    abar_trainer_destroy(t[0]);
    abar_trainer_destroy(t[1]);
}

/* Of all tensors that have this in their name. Returns how many there are. */
static int compare_tensors(abar_trainer *t[2], const char *optim, const char *part, double tolerance)
{
    int compared = 0;
    for (int i = 0; i < abar_net_tensor_count(t[0]->net); i++) {
        const char *name;
        abar_tensor a, b;
        double scale = 0.0, apart = 0.0;
        abar_net_tensor(t[0]->net, i, &name, &a);
        abar_net_tensor(t[1]->net, i, &name, &b);
        if (!strstr(name, part) || a.dtype != ABAR_F64) continue;
        for (int64_t e = 0; e < abar_tensor_count(&a); e++) {
            const double x = ((const double *)a.data)[e], y = ((const double *)b.data)[e];
            scale = fmax(scale, fabs(x));
            apart = fmax(apart, fabs(x - y));
        }
        if (!(apart <= tolerance * scale)) fail_msg("%s: %s is %g apart, its largest element is %g", optim, name, apart, scale);
        compared++;
    }
    return compared;
}

/* A difference of two gradients has fewer digits. */
static double tolerance_of(const char *optim) { return strcmp(optim, "adahessian") == 0 ? 1e-4 : 1e-8; }

static void check_optimizer(fixture *f, const char *optim, bool method)
{
    abar_trainer *t[2];
    char options[256];
    const bool ring = strcmp(optim, "mfac") == 0, constant = strcmp(optim, "sfadamw") == 0;
    snprintf(options, sizeof options, RUN "widths=784-12-12-10 limit-train=36 batch=12 epochs=1 %s%s%s%s%s",
             method ? "tcov=2 tinv=2 " : "", method && !ring ? "skip-layers=fc1 " : "", ring ? "mfac-gradients=8 " : "",
             constant ? "schedule=constant " : "", strcmp(optim, "adahessian") == 0 ? "lr=1e-3 " : ""); /* its own diverges */
    run_both(f, "mlp", optim, options, t);
    assert_true(compare_tensors(t, optim, "", tolerance_of(optim)) > 0);
    assert_true(fabs(t[0]->history[0].train_loss - t[1]->history[0].train_loss) < 1e-6 * t[0]->history[0].train_loss);
    assert_true(t[0]->history[0].train_accuracy == t[1]->history[0].train_accuracy);
    drop_both(t);
}

/* Every method, and rules with further passes and without; other rules see nothing but the gradient. */
static void micro_every_optimizer_agrees_with_accumulation(void **state)
{
    static const char *const rules[] = {"sgd", "adamw", "muon", "adahessian", "sophia", NULL};
    for (const char *const *m = abar_method_names(); *m; m++)
        if (!abar_method_takes_whole_batch(*m)) check_optimizer(*state, *m, true);
    for (const char *const *r = rules; *r; r++) check_optimizer(*state, *r, false);
}

static void micro_running_statistics_take_micro_batches_in_their_order(void **state)
{
    fixture *f = *state;
    abar_trainer *t[2];
    run_both(f, "resnet50", "mac", NORMS "limit-train=24 batch=12 epochs=1", t);
    assert_true(compare_tensors(t, "mac", "running_", 1e-8) > 4);
    for (int i = 0; i < abar_net_tensor_count(t[1]->net); i++) {
        const char *name;
        abar_tensor view;
        abar_net_tensor(t[1]->net, i, &name, &view);
        if (strstr(name, "num_batches")) assert_int_equal(*(const int64_t *)view.data, 6);
    }
    drop_both(t);
}

/* The running statistics of the weights that are tested are estimated from many batches. */
static void micro_estimated_statistics_agree_with_accumulation(void **state)
{
    abar_trainer *t[2];
    run_both(*state, "resnet50", "sfadamw", NORMS "limit-train=36 batch=12 epochs=1 schedule=constant", t);
    assert_true(fabs(t[0]->history[0].test_loss - t[1]->history[0].test_loss) < 1e-6 * t[0]->history[0].test_loss);
    drop_both(t);
}

/* ---- when numbers go wrong ---------------------------------------------------------------------------------------------- */

static void micro_loss_that_is_not_finite_changes_nothing(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet50", "mac", NORMS "device=cpu limit-train=24 batch=12 epochs=1 micro=4");
    abar_trainer *t;
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    const abar__net_blocks b = abar__net_blocks_of(t->net);
    void *values = malloc(b.value_bytes), *running = malloc(b.running_bytes);
    memcpy(values, b.values, b.value_bytes);
    memcpy(running, b.running, b.running_bytes);
    /* The third micro-batch alone has an image that cannot be normalised: the labels of the others are as they were. */
    abar_batch batch = {.size = sizeof batch};
    need(f, abar_loader_next(t->train, &batch));
    float *wide = malloc((size_t)(12 * 3 * 16 * 16) * sizeof *wide);
    for (int64_t i = 0; i < 12 * 3 * 16 * 16; i++) wide[i] = i >= 8 * 3 * 16 * 16 ? NAN : 0.5f;
    abar_dataset_info info = *abar_dataset_info_of(t->data);
    info.floats = true;
    batch.floats = wide;
    batch.images = NULL;
    t->stepper.info = &info;
    abar__step_result result;
    need(f, abar__stepper_run(&t->stepper, &batch, 0, 0.1, &result));
    assert_true(result.skipped);
    assert_memory_equal(values, b.values, b.value_bytes);
    assert_memory_equal(running, b.running, b.running_bytes);
    assert_memory_equal(running, b.pending, b.running_bytes);
    free(values);
    free(running);
    free(wide);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- settings ----------------------------------------------------------------------------------------------------------- */

static void micro_that_does_not_fit_is_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", "batch=24 micro=5");
    assert_int_equal(abar_setup_check(f->ctx, setup), ABAR_E_ARGUMENT);
    assert_error(f, "--micro 5: does not divide the batch of 24");
    set_all(f, setup, "micro=6 accumulate=3");
    assert_int_equal(abar_setup_check(f->ctx, setup), ABAR_E_ARGUMENT);
    assert_error(f, "--micro 6 makes 4 micro-batches");
    set_all(f, setup, "accumulate=4");
    need(f, abar_setup_check(f->ctx, setup));
    abar_setup_destroy(f->ctx, setup);
    setup = make_setup(f, "mlp", "ngd", "batch=24 micro=24");
    assert_int_equal(abar_setup_check(f->ctx, setup), ABAR_E_ARGUMENT);
    assert_error(f, "ngd needs the gradients of all examples together");
    abar_setup_destroy(f->ctx, setup);
}

static void micro_memory_is_announced(void **state)
{
    fixture *f = *state;
    size_t held[2], announced[2];
    for (int k = 0; k < 2; k++) {
        abar_setup *setup = make_setup(f, "resnet50", "kfac", NORMS "device=cpu limit-train=48 batch=24");
        abar_memory_plan plan = {.size = sizeof plan};
        abar_trainer *t;
        set(f, setup, k ? "micro" : "accumulate", k ? "4" : "6");
        need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
        announced[k] = plan.join;
        need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
        held[k] = abar_context_memory(f->ctx).now;
        abar_trainer_destroy(t);
        abar_setup_destroy(f->ctx, setup);
    }
    assert_int_equal(announced[0], 0);
    assert_true(announced[1] > 0);
    assert_int_equal(held[1] - held[0], announced[1]);
}

static void micro_is_kept_on_resume(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "mac", RUN "widths=784-16-10 limit-train=48 batch=12 epochs=2 micro=3");
    set_out(f, setup, "whole");
    need(f, run_until(f, setup, false, 0));
    set_out(f, setup, "parts");
    assert_int_equal(run_until(f, setup, false, 3), ABAR_STOPPED);
    need(f, resume(f, "parts", 0));
    assert_same_runs(f, "whole", "parts");
    abar_setup_destroy(f->ctx, setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(micro_any_number_equals_a_plain_recomputation, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(micro_every_optimizer_agrees_with_accumulation, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(micro_running_statistics_take_micro_batches_in_their_order, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(micro_estimated_statistics_agree_with_accumulation, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(micro_loss_that_is_not_finite_changes_nothing, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(micro_that_does_not_fit_is_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(micro_memory_is_announced, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(micro_is_kept_on_resume, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
