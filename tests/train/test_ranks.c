/* Several ranks that train together: the same bits on any number of them, with different data on every rank. */
#include "data/images_support.h"
#include "ranks_support.h"
#include "text_support.h"

#include <math.h>

#define RUN "device=cpu threads=1 workers=1 limit-train=72 limit-test=30 batch=24 micro=6 epochs=1 "
#define NORMS RUN "blocks=1-1 width=4 classes=5 image-size=16 " /* of resnet50: with batch norms */

static const int usual[] = {1, 2, 4, 0};

/* ---- optimizers --------------------------------------------------------------------------------------------------------- */

static void check_optimizer(fixture *f, const char *optim, bool method)
{
    abar_setup *setup = make_setup(f, "lenet5", optim, RUN "augment=true");
    if (method) set_all(f, setup, "tcov=2 tinv=2");
    if (strcmp(optim, "mfac") == 0) set_all(f, setup, "mfac-gradients=4");
    if (strcmp(optim, "kbfgs") == 0) set_all(f, setup, "limit-train=48");
    if (strcmp(optim, "sophia") == 0 || strcmp(optim, "adahessian") == 0) set_all(f, setup, "hessian-every=2");
    if (strcmp(optim, "sfadamw") == 0) set_all(f, setup, "schedule=constant");
    check_same(f, setup, optim, usual);
}

static void ranks_every_method_gives_the_same_bits(void **state)
{
    for (const char *const *m = abar_method_names(); *m; m++)
        if (!abar_method_takes_whole_batch(*m)) check_optimizer(*state, *m, true);
}

static void ranks_every_rule_gives_the_same_bits(void **state)
{
    for (const char *const *r = abar_rule_names(); *r; r++) check_optimizer(*state, *r, false);
}

static void ranks_methods_of_the_whole_batch_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "ngd", "threads=1 limit-train=72 batch=24");
    assert_int_equal(run_ranks(f, setup, 2, false, NULL), ABAR_E_UNSUPPORTED);
    assert_error(f, "--optim ngd: needs the gradients of all examples in one process");
    abar_setup_destroy(f->ctx, setup);
}

/* ---- networks and settings ------------------------------------------------------------------------------------------------
 */

static void ranks_batch_norms_give_the_same_bits(void **state)
{
    fixture *f = *state;
    abar_setup *setup;
    check_same(f, make_setup(f, "resnet50", "mac", NORMS "tcov=1 ema=0.9 ema-steps=2 clip=0.5"), "mac with batch norms", usual);
    check_same(f, make_setup(f, "resnet50", "sfadamw", NORMS "schedule=constant"), "sfadamw with batch norms", usual);
    need(f, abar_setup_create(f->ctx, "resnet20", "synthetic", "kfac", &setup));
    set(f, setup, "seed", test_seed());
    set_all(f, setup,
            "threads=1 limit-train=24 limit-test=9 batch=12 micro=3 epochs=1 augment=true kl-clip=0.001 tcov=1 tinv=1");
    check_same(f, setup, "resnet20", usual);
}

static void ranks_text_with_dropout_gives_the_same_bits(void **state)
{
    fixture *f = *state;
    check_same(f, text_setup(f, "mac", "device=cpu threads=1 batch=8 micro=2 epochs=1 tcov=2"), "gpt-char", usual);
}

static void ranks_settings_that_join_all_gradients_give_the_same_bits(void **state)
{
    fixture *f = *state;
    check_same(f, make_setup(f, "lenet5", "mac", RUN "clip=0.05 accumulate=4"), "clip, accumulate", usual);
    check_same(f, make_setup(f, "lenet5", "eva", RUN "kl-clip=0.0001 label-smoothing=0.1"), "kl-clip", usual);
    check_same(f, make_setup(f, "lenet5", "mac", RUN "first-layer=dataset-cov validation=0.25 limit-test=0"), "calibration",
               usual);
}

/* Micro-batches that are no power of 2, and ranks that have several nodes of the tree. */
static void ranks_of_any_number_give_the_same_bits(void **state)
{
    fixture *f = *state;
    static const int odd[] = {1, 3, 6, 0}, five[] = {1, 5, 0};
    check_same(f, make_setup(f, "lenet5", "kfac", RUN "micro=4 tcov=1"), "6 micro-batches", odd);
    check_same(f, make_setup(f, "mlp", "skfac", RUN "batch=30 micro=2 widths=784-8-10 tcov=1"), "15 micro-batches", five);
}

/* The layer is left out by most samples: of some micro-batches it gets no gradient at all. */
static abar_value build_dropping(void *user, abar_net *net, abar_value x, int64_t classes)
{
    (void)user;
    x = abar_linear(net, abar_flatten(net, x), "first", &ABAR_CONFIG(abar_linear_config, .out = 12, .bias = true));
    abar_value branch =
        abar_linear(net, abar_relu(net, x), "branch", &ABAR_CONFIG(abar_linear_config, .out = 12, .bias = true));
    x = abar_add(net, x, abar_drop_path(net, branch, 0.8));
    return abar_linear(net, abar_relu(net, x), "last", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

static void ranks_layer_without_gradient_gives_the_same_bits(void **state)
{
    fixture *f = *state;
    static const char *const optimizers[] = {"mac", "kfac", "muon", "adahessian", NULL};
    for (int i = 0; optimizers[i]; i++) {
        abar_setup *setup = make_setup(f, "own", optimizers[i], RUN "micro=2 batch=16 limit-train=64");
        need(f, abar_setup_set_network(f->ctx, setup, build_dropping, NULL));
        check_same(f, setup, optimizers[i], usual);
    }
}

static void ranks_mixed_images_give_the_same_bits(void **state)
{
    fixture *f = *state;
    folder data = make_images(48, 20, 30);
    char spec[300];
    static const char *const styles[] = {"torchvision", "timm"};
    for (int i = 0; i < 2; i++) {
        abar_setup *setup;
        snprintf(spec, sizeof spec, "imagefolder:%s", data.path);
        need(f, abar_setup_create(f->ctx, "resnet50", spec, "sgd", &setup));
        set(f, setup, "seed", test_seed());
        set_all(
            f, setup,
            "size=16 test-resize=28 test-size=24 batch=16 micro=4 mix-group=2 mixup=0.8 cutmix=1 erase=0.5 epochs=1 threads=1 "
            "device=cpu warmup=0 blocks=1-1 width=4 stem=small repeat=2");
        set(f, setup, "style", styles[i]);
        check_same(f, setup, styles[i], usual);
    }
    folder_remove(&data);
}

/* ---- numbers that are not finite -------------------------------------------------------------------------------------------
 */

enum { SAMPLES = 48, PIXELS = 16 };
static float poisoned[SAMPLES * PIXELS]; /* of each process its own */

/* After the first step: one sample, which one rank has in its share. */
static void poison(abar_trainer *t, int rank, int64_t calls)
{
    (void)t;
    (void)rank;
    if (calls == 1) poisoned[17 * PIXELS] = NAN;
}

static void ranks_loss_that_is_not_finite_on_one_is_skipped_by_all(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = poison};
    int32_t labels[SAMPLES];
    abar_dataset *data;
    for (int i = 0; i < SAMPLES * PIXELS; i++) poisoned[i] = (float)((i * 37 % 101) - 50) / 50.0f;
    for (int i = 0; i < SAMPLES; i++) labels[i] = i % 3;
    need(f, wrap_tiny_images(f, SAMPLES, 10, poisoned, poisoned, labels, true, &data));
    static const char *const optimizers[] = {"mac", "kbfgs", "skfac", "sophia", NULL};
    for (int i = 0; optimizers[i]; i++) {
        abar_setup *setup;
        char name[64];
        need(f, abar_setup_create(f->ctx, "mlp", "memory", optimizers[i], &setup));
        set_all(f, setup, "widths=16-8-3 threads=1 workers=0 batch=12 micro=3 epochs=2 device=cpu lr=0.01 warmup=0");
        set(f, setup, "seed", test_seed());
        need(f, abar_setup_set_data(f->ctx, setup, data));
        snprintf(name, sizeof name, "run%d-on-4", f->runs);
        check_with(f, setup, optimizers[i], usual, &plan);
        abar__run_state at;
        abar__epoch *history = history_of(f, name, &at);
        assert_in_range(at.skipped, 1, 2); /* one an epoch, unless it was in the first step */
        abar__free(f->ctx, history, (size_t)at.epoch * sizeof *history);
    }
    abar_dataset_close(data);
}

/* ---- resuming --------------------------------------------------------------------------------------------------------------
 */

static void stop_second(abar_trainer *t, int rank, int64_t calls)
{
    if (rank == 1 && calls == 4) abar_trainer_stop(t); /* one rank alone */
}

static void stop_first(abar_trainer *t, int rank, int64_t calls)
{
    if (rank == 0 && calls == 2) abar_trainer_stop(t);
}

/* Every rank knows the epochs before, for what its program is told. */
static void look_at_history(abar_trainer *t, int rank, int64_t calls)
{
    (void)calls;
    if (t->at.epoch == 0 || t->history[0].train_loss > 0.0) return;
    fprintf(stderr, "rank %d: has no history\n", rank);
    abort();
}

static abar_setup *load(fixture *f, const char *name)
{
    char dir[PATH_MAX_TEST];
    abar_setup *setup;
    path_in(f, name, dir);
    need(f, abar_setup_load(f->ctx, dir, &setup));
    return setup;
}

static void ranks_resume_on_any_number(void **state)
{
    fixture *f = *state;
    static const char *const optimizers[] = {"mac", "soap", "kbfgs", NULL};
    for (int i = 0; optimizers[i]; i++) {
        const rank_plan second = {.watch = stop_second}, first = {.watch = stop_first}, last = {.watch = look_at_history};
        abar_setup *setup = make_setup(f, "lenet5", optimizers[i], RUN "micro=2 epochs=4");
        char whole[32], parts[32];
        if (i == 0) set_all(f, setup, "ema=0.9 ema-steps=2");
        snprintf(whole, sizeof whole, "whole%d", i);
        snprintf(parts, sizeof parts, "parts%d", i);
        set_out(f, setup, whole);
        need_ranks(f, setup, 1, false, NULL);
        set_out(f, setup, parts);
        assert_int_equal(run_ranks(f, setup, 4, false, &second), ABAR_STOPPED);
        abar_setup_destroy(f->ctx, setup);
        setup = load(f, parts);
        assert_int_equal(run_ranks(f, setup, 1, true, &first), ABAR_STOPPED);
        assert_int_equal(run_ranks(f, setup, 2, true, &first), ABAR_STOPPED);
        need_ranks(f, setup, 3, true, &last);
        assert_same_runs(f, whole, parts);
        abar_setup_destroy(f->ctx, setup);
    }
}

/* The micro-batch that follows from the number of ranks stays. */
static void ranks_default_micro_is_kept(void **state)
{
    fixture *f = *state;
    const rank_plan plan = {.watch = stop_second};
    abar_setup *setup = make_setup(f, "lenet5", "mac", RUN "micro=0 epochs=3");
    set_out(f, setup, "whole");
    need_ranks(f, setup, 4, false, NULL);
    set_out(f, setup, "parts");
    assert_int_equal(run_ranks(f, setup, 4, false, &plan), ABAR_STOPPED);
    abar_setup_destroy(f->ctx, setup);
    setup = load(f, "parts");
    assert_int_equal(setup->train.micro, 6);
    need_ranks(f, setup, 2, true, NULL);
    assert_same_runs(f, "whole", "parts");
    abar_setup_destroy(f->ctx, setup);
}

/* ---- any order -------------------------------------------------------------------------------------------------------------
 */

static void compare_to_rounding(fixture *f, const char *fixed, const char *fast)
{
    abar__safetensors *a = open_in(f, fixed, "model.safetensors"), *b = open_in(f, fast, "model.safetensors");
    for (int i = 0; i < abar__safetensors_count(a); i++) {
        abar_tensor x, y;
        const char *name = abar__safetensors_get(a, i, &x);
        double scale = 0.0, apart = 0.0;
        assert_true(abar__safetensors_find(b, name, &y));
        for (int64_t e = 0; e < abar_tensor_count(&x); e++) {
            scale = fmax(scale, fabs((double)((const float *)x.data)[e]));
            apart = fmax(apart, fabs((double)((const float *)x.data)[e] - (double)((const float *)y.data)[e]));
        }
        if (!(apart <= 1e-4 * scale)) fail_msg("%s is %g apart, its largest element is %g", name, apart, scale);
    }
    abar__safetensors_close(a);
    abar__safetensors_close(b);
}

/* One micro-batch a rank, and three, which are two nodes of the tree. */
static void ranks_fast_sums_agree_to_rounding(void **state)
{
    static const int ranks[] = {4, 2};
    static const char *const micro[] = {"6", "4"};
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        char fixed[16], fast[16];
        abar_setup *setup = make_setup(f, "lenet5", "mac", RUN "check-replicas=1");
        set(f, setup, "micro", micro[i]);
        snprintf(fixed, sizeof fixed, "fixed%d", i);
        snprintf(fast, sizeof fast, "fast%d", i);
        set_out(f, setup, fixed);
        need_ranks(f, setup, ranks[i], false, NULL);
        set_all(f, setup, "reduce=fast");
        set_out(f, setup, fast);
        need_ranks(f, setup, ranks[i], false, NULL); /* replicas are compared after every step */
        compare_to_rounding(f, fixed, fast);
        abar_setup_destroy(f->ctx, setup);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_every_method_gives_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_every_rule_gives_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_methods_of_the_whole_batch_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_batch_norms_give_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_text_with_dropout_gives_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_settings_that_join_all_gradients_give_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_of_any_number_give_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_layer_without_gradient_gives_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_mixed_images_give_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_loss_that_is_not_finite_on_one_is_skipped_by_all, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_resume_on_any_number, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_default_micro_is_kept, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_fast_sums_agree_to_rounding, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
