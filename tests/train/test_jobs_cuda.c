/* Trainings side by side on one GPU, each with its own streams, handles and recordings: the numbers of one after the other. */
#include "compare_support.h"
#include "cuda_testing.h"

#include <math.h>

#define SMALL                                                                                                       \
    "device=cuda deterministic=true limit-train=320 limit-test=64 batch=32 epochs=3 workers=0" /* 10 steps an epoch \
                                                                                                */

static void compare_orders(fixture *f, const char *model, const char *optims, const char *options)
{
    plan p;
    char alone[PATH_MAX_TEST], names[2][64];
    for (int i = 0; i < 2; i++) {
        watcher w = {.jobs = i ? 4 : 1};
        snprintf(names[i], sizeof names[i], "%s-%d", model, w.jobs);
        make_plan_of(f, &p, model, names[i], optims, 2, options);
        abar_status status = run_new(f, &p, &w);
        if (status != ABAR_OK) fail_msg("%s: %s", names[i], abar_context_error(f->ctx));
        for (int k = 0; k < abar_compare_run_count(w.compare); k++)
            if (abar_compare_run_of(w.compare, k)->failure) fail_msg("%s", abar_compare_run_of(w.compare, k)->failure);
        abar_compare_destroy(w.compare);
        if (i == 0) strcpy(alone, p.dir);
        if (i == 1) assert_same_comparison(alone, p.dir);
        drop_plan(f, &p);
    }
}

static void trainings_of_resnet20_side_by_side_lose_what_they_lose_alone(void **state)
{
    compare_orders(*state, "resnet20", "sgd mac smac adamw", SMALL " precision=bf16");
    compare_orders(*state, "lenet5", "sgd mac", SMALL " precision=fp32");
}

/* One begins, is recorded and replayed while the next allocates and is measured; then all are stopped, and go on. */
static void stopped_trainings_go_on_to_the_same_numbers(void **state)
{
    fixture *f = *state;
    plan p;
    watcher w = {.jobs = 1};
    char alone[PATH_MAX_TEST];
    make_plan_of(f, &p, "resnet20", "whole", "sgd mac", 2, SMALL " precision=bf16");
    assert_int_equal(run_new(f, &p, &w), ABAR_OK);
    abar_compare_destroy(w.compare);
    strcpy(alone, p.dir);
    path_in(f, "parts", p.dir);
    w = (watcher){.jobs = 4, .stop_at = 17};
    assert_int_equal(run_new(f, &p, &w), ABAR_STOPPED);
    abar_compare_destroy(w.compare);
    w = (watcher){.jobs = 2};
    assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_OK);
    abar_compare_destroy(w.compare);
    assert_same_comparison(alone, p.dir);
    drop_plan(f, &p);
}

static void number_of_jobs_is_measured_on_the_device(void **state)
{
    fixture *f = *state;
    plan p;
    watcher w = {0};
    abar_compare_events events = {sizeof events, watch, &w};
    make_plan_of(f, &p, "resnet20", "many", "sgd mac", 2, SMALL " batch=128 precision=bf16");
    need(f, abar_compare_create(f->ctx, &p.config, &events, &w.compare));
    int jobs = abar__compare_measure_jobs(w.compare, 1e9);
    assert_true(jobs == 1 || jobs == 2 || jobs == 4);
    assert_non_null(strstr(w.news, "side by side"));
    print_message("%s", w.news);
    for (int m = 0; m < 2; m++) assert_true(abar_compare_row_of(w.compare, m)->ms_alone > 0.0);
    abar_compare_destroy(w.compare);
    drop_plan(f, &p);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        with_fixture(trainings_of_resnet20_side_by_side_lose_what_they_lose_alone),
        with_fixture(stopped_trainings_go_on_to_the_same_numbers),
        with_fixture(number_of_jobs_is_measured_on_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
