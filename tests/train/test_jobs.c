/* Trainings side by side give the numbers of trainings one after the other, whatever is stopped, fails or finds no memory; and
 * how many of them run. Small enough for the thread sanitizer. */
#include "compare_support.h"

#include <math.h>
#include <stdatomic.h>

#define TINY \
    "limit-train=80 limit-test=24 batch=16 epochs=3 threads=1 workers=1 device=cpu widths=784-8-10" /* 5 steps an epoch */

/* Runs the comparison one training after the other, in a folder of this name. */
static void run_one_by_one(fixture *f, const char *folder, const char *optims, int64_t seeds, char dir[PATH_MAX_TEST])
{
    plan p;
    watcher w = {.jobs = 1};
    make_plan(f, &p, folder, optims, seeds, TINY);
    assert_int_equal(run_new(f, &p, &w), ABAR_OK);
    assert_int_equal(w.most_running, 1);
    assert_true(isnan(abar_compare_row_of(w.compare, 0)->ms_alone));
    abar_compare_destroy(w.compare);
    strcpy(dir, p.dir);
    drop_plan(f, &p);
}

static void trainings_side_by_side_give_the_numbers_of_one_after_the_other(void **state)
{
    fixture *f = *state;
    plan p;
    char alone[PATH_MAX_TEST], name[16];
    run_one_by_one(f, "alone", "sgd mac kfac", 2, alone);
    for (int jobs = 2; jobs <= 6; jobs += 2) {
        watcher w = {.jobs = jobs};
        snprintf(name, sizeof name, "jobs-%d", jobs);
        make_plan(f, &p, name, "sgd mac kfac", 2, TINY);
        assert_int_equal(run_new(f, &p, &w), ABAR_OK);
        assert_int_equal(w.ended, 6);
        assert_near(w.done, 1.0, 1e-12);
        assert_true(w.most_running <= jobs);
        assert_non_null(strstr(w.news, "side by side"));
        for (int m = 0; m < 3; m++) assert_true(abar_compare_row_of(w.compare, m)->ms_alone > 0.0);
        for (int i = 0; i < 6; i++) assert_true(abar_compare_run_of(w.compare, i)->side_by_side <= jobs);
        abar_compare_destroy(w.compare);
        assert_same_comparison(alone, p.dir);
        drop_plan(f, &p);
    }
}

static void assert_has_checkpoint(const abar_compare *c, int i)
{
    char path[ABAR_RUN_PATH_MAX + 32];
    struct stat info;
    assert_int_equal(abar__compare_run_dir(c, i, path), ABAR_OK);
    strcat(path, "/state.safetensors");
    assert_int_equal(stat(path, &info), 0);
}

/* Stopped at various moments, then continued with as many, with more, and with one at a time. */
static void stopped_side_by_side_all_are_saved_and_go_on(void **state)
{
    static const int64_t stops[] = {1, 9, 22, 33};
    fixture *f = *state;
    plan p;
    char alone[PATH_MAX_TEST], name[16];
    run_one_by_one(f, "alone", "sgd mac", 2, alone);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        watcher w = {.jobs = 2, .stop_at = stops[i]};
        snprintf(name, sizeof name, "stop-%d", (int)stops[i]);
        make_plan(f, &p, name, "sgd mac", 2, TINY);
        assert_int_equal(run_new(f, &p, &w), ABAR_STOPPED);
        for (int k = 0; k < w.compare->runs; k++) { /* a busy machine may start one thread after the other's stop */
            const abar_progress *at = &w.compare->record[k].at;
            if (at->epoch > 0 || at->step > 0) assert_has_checkpoint(w.compare, k);
        }
        abar_compare_destroy(w.compare);
        w = (watcher){.jobs = 3, .stop_at = 4};
        assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_STOPPED);
        abar_compare_destroy(w.compare);
        w = (watcher){.jobs = i % 2 ? 1 : 4};
        assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_OK);
        abar_compare_destroy(w.compare);
        assert_same_comparison(alone, p.dir);
        drop_plan(f, &p);
    }
}

static void one_that_fails_is_a_row_and_its_neighbours_go_on(void **state)
{
    fixture *f = *state;
    plan p;
    watcher w = {.jobs = 3};
    make_plan(f, &p, "failing", "adamw sgd mac", 1, TINY " epochs=4");
    set(f, p.setup[1], "lr", "1e6");
    set(f, p.setup[1], "weight-decay", "1"); /* times -1e6 a step: infinite within ten, whatever the seed and the rounding */
    set(f, p.setup[1], "schedule", "constant");
    assert_int_equal(run_new(f, &p, &w), ABAR_OK);
    assert_int_equal(w.ended, 3);
    assert_non_null(strstr(abar_compare_run_of(w.compare, 1)->failure, "not finite"));
    assert_null(abar_compare_run_of(w.compare, 0)->failure);
    assert_int_equal(abar_compare_run_of(w.compare, 2)->epochs, 4);
    abar_compare_destroy(w.compare);
    drop_plan(f, &p);
}

/* A folder that cannot be made ends the comparison: all runs stop, are saved, and the reason is reported. */
static void trouble_with_a_folder_stops_all_and_is_told(void **state)
{
    fixture *f = *state;
    plan p;
    watcher w = {.jobs = 2};
    char path[PATH_MAX_TEST + 16];
    make_plan(f, &p, "trouble", "sgd mac", 1, TINY " epochs=200 seed=0"); /* of a known name */
    need(f, abar__folder_make(f->ctx, p.dir));
    snprintf(path, sizeof path, "%s/mac-s0", p.dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_true(run_new(f, &p, &w) < 0);
    assert_error(f, "mac-s0");
    assert_false(abar_compare_run_of(w.compare, 1)->ended);
    abar_compare_destroy(w.compare);
    remove(path);
    if (w.calls > 0) { /* the other had begun */
        w = (watcher){.jobs = 2, .stop_at = 3};
        assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_STOPPED);
        abar_compare_destroy(w.compare);
    }
    drop_plan(f, &p);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define PLENTY (1LL << 40)
#define RECORDS_ONLY (1LL << 17) /* enough for the comparison's own records, and for no training */

/* Bytes left to all contexts that share it. */
typedef struct memory_limit {
    atomic_llong left;
} memory_limit;

static void *alloc_limited(void *user, size_t bytes, size_t align)
{
    memory_limit *p = user;
    if (atomic_fetch_sub(&p->left, (long long)bytes) >= (long long)bytes)
        return aligned_alloc(align, abar__round_up(bytes, align));
    atomic_fetch_add(&p->left, (long long)bytes);
    return NULL;
}

static void release_limited(void *user, void *memory, size_t bytes)
{
    memory_limit *p = user;
    free(memory);
    atomic_fetch_add(&p->left, (long long)bytes);
}

/* Replaces the fixture's context by one of limited memory, and back. */
static void make_limited(fixture *f, memory_limit *limit, abar_context **own)
{
    abar_context_config config = {.size = sizeof config, .allocator = {alloc_limited, release_limited, limit}};
    atomic_store(&limit->left, PLENTY);
    *own = f->ctx;
    assert_int_equal(abar_context_create(&config, &f->ctx), ABAR_OK);
}

static void drop_limited(fixture *f, abar_context *own)
{
    assert_int_equal(abar_context_memory(f->ctx).now, 0);
    abar_context_destroy(f->ctx);
    f->ctx = own;
}

/* Creates the comparison with enough memory, and runs it with the given number of bytes. */
static abar_status run_with(fixture *f, const plan *p, memory_limit *limit, long long bytes, watcher *w)
{
    abar_compare_events events = {sizeof events, watch, w};
    need(f, abar_compare_create(f->ctx, &p->config, &events, &w->compare));
    atomic_store(&limit->left, bytes);
    return run_watched(w);
}

/* Memory for one training and a half. */
static void trainings_that_do_not_fit_together_run_one_by_one(void **state)
{
    fixture *f = *state;
    plan p;
    char alone[PATH_MAX_TEST];
    memory_limit limit = {0};
    watcher w = {.jobs = 3};
    abar_context *own;
    run_one_by_one(f, "alone", "sgd adamw", 2, alone);
    char *json = read_text(alone, "compare.json");
    const char *memory = strstr(json, "\"memory_bytes\": ");
    assert_non_null(memory);
    const long long bytes = (long long)(1.6 * atof(memory + 16)) + (1 << 19); /* and for the records of the comparison */
    free(json);
    make_limited(f, &limit, &own);
    make_plan(f, &p, "limited", "sgd adamw", 2, TINY);
    assert_int_equal(run_with(f, &p, &limit, bytes, &w), ABAR_OK);
    assert_non_null(strstr(w.news, "no memory for"));
    abar_compare_destroy(w.compare);
    assert_same_comparison(alone, p.dir);
    drop_plan(f, &p);
    drop_limited(f, own);
}

/* No memory for any training: the last worker reports the failures. */
static void trainings_that_fit_nowhere_are_rows_that_failed(void **state)
{
    fixture *f = *state;
    memory_limit limit = {0};
    abar_context *own;
    make_limited(f, &limit, &own);
    for (int i = 0; i < 20; i++) {
        plan p;
        watcher w = {.jobs = 2};
        char name[16];
        snprintf(name, sizeof name, "none-%d", i);
        atomic_store(&limit.left, PLENTY);
        make_plan(f, &p, name, "sgd adamw", 1, TINY);
        assert_int_equal(run_with(f, &p, &limit, RECORDS_ONLY, &w), ABAR_OK);
        for (int k = 0; k < 2; k++) {
            assert_true(abar_compare_run_of(w.compare, k)->ended);
            assert_non_null(strstr(abar_compare_run_of(w.compare, k)->failure, "memory"));
        }
        abar_compare_destroy(w.compare);
        drop_plan(f, &p);
    }
    drop_limited(f, own);
}

/* With enough memory again, the comparison ends as if it had never been short. */
static void trainings_that_found_no_memory_are_tried_again(void **state)
{
    fixture *f = *state;
    plan p;
    char alone[PATH_MAX_TEST];
    memory_limit limit = {0};
    watcher w = {.jobs = 1};
    abar_context *own;
    run_one_by_one(f, "alone", "sgd adamw", 1, alone);
    make_limited(f, &limit, &own);
    make_plan(f, &p, "again", "sgd adamw", 1, TINY);
    assert_int_equal(run_with(f, &p, &limit, RECORDS_ONLY, &w), ABAR_OK);
    abar_compare_destroy(w.compare);
    atomic_store(&limit.left, PLENTY);

    need(f, abar_compare_load(f->ctx, p.dir, 0, NULL, &w.compare)); /* to read its results */
    for (int i = 0; i < 2; i++) {
        assert_true(abar_compare_run_of(w.compare, i)->retry);
        assert_non_null(strstr(abar_compare_run_of(w.compare, i)->failure, "memory"));
    }
    abar_compare_destroy(w.compare);
    w = (watcher){.jobs = 1, .stop_at = 3}; /* stopping it changes nothing */
    assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_STOPPED);
    abar_compare_destroy(w.compare);
    w = (watcher){.jobs = 1};
    assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_OK);
    assert_int_equal(w.ended, 2);
    for (int i = 0; i < 2; i++) assert_null(abar_compare_run_of(w.compare, i)->failure);
    abar_compare_destroy(w.compare);
    assert_same_comparison(alone, p.dir);
    drop_plan(f, &p);
    drop_limited(f, own);
}

/* ---- how many ---------------------------------------------------------------------------------------------------- */

static void number_of_jobs_is_measured_and_told(void **state)
{
    fixture *f = *state;
    plan p;
    watcher w = {0};
    abar_compare_events events = {sizeof events, watch, &w};
    make_plan(f, &p, "many", "sgd mac", 2, TINY);
    need(f, abar_compare_create(f->ctx, &p.config, &events, &w.compare));
    assert_int_equal(abar__compare_measure_jobs(w.compare, 3.0), 1); /* too short to gain anything */
    assert_non_null(strstr(w.news, "one training at a time: all of them take about"));
    w.news[0] = '\0';
    int jobs = abar__compare_measure_jobs(w.compare, 1e12);
    assert_true(jobs == 1 || jobs == 2 || jobs == 4);
    assert_non_null(strstr(w.news, sysconf(_SC_NPROCESSORS_ONLN) < 2 ? "no core" : "side by side"));
    for (int m = 0; m < 2; m++) assert_true(abar_compare_row_of(w.compare, m)->ms_alone > 0.0);
    assert_int_equal(abar__compare_choose_jobs(w.compare), 1); /* the default on the host */
    abar_compare_destroy(w.compare);
    drop_plan(f, &p);
}

static void methods_may_have_seeds_of_their_own(void **state)
{
    static const struct {
        const char *label;
        int64_t seed;
    } expected[] = {{"sgd", 5}, {"mac", 5}, {"adamw", 5}, {"mac", 6}, {"adamw", 6}, {"mac", 7}};
    fixture *f = *state;
    plan p;
    watcher w = {.jobs = 2};
    make_plan(f, &p, "seeds", "sgd mac adamw", 2, TINY " seed=5");
    p.config.method_seeds = (const int64_t[]){1, 3, 0}; /* 0: as many as --seeds says */
    assert_int_equal(run_new(f, &p, &w), ABAR_OK);
    assert_int_equal(abar_compare_run_count(w.compare), 6);
    for (int i = 0; i < 6; i++) {
        assert_string_equal(abar_compare_run_of(w.compare, i)->label, expected[i].label);
        assert_int_equal(abar_compare_run_of(w.compare, i)->seed, expected[i].seed);
    }
    assert_int_equal(abar_compare_row_of(w.compare, 1)->runs, 3);
    assert_true(isnan(abar_compare_row_of(w.compare, 0)->test_accuracy.std));
    abar_compare_destroy(w.compare);
    w = (watcher){0};
    assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_OK);
    assert_int_equal(w.calls, 0); /* seeds were read back */
    abar_compare_destroy(w.compare);
    w = (watcher){0};
    assert_int_equal(run_on(f, p.dir, 3, &w), ABAR_OK); /* at least three of each */
    assert_int_equal(w.ended, 3);
    assert_int_equal(abar_compare_run_count(w.compare), 9);
    abar_compare_destroy(w.compare);
    drop_plan(f, &p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(trainings_side_by_side_give_the_numbers_of_one_after_the_other, make_fixture,
                                        drop_fixture),
        cmocka_unit_test_setup_teardown(stopped_side_by_side_all_are_saved_and_go_on, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(one_that_fails_is_a_row_and_its_neighbours_go_on, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(trouble_with_a_folder_stops_all_and_is_told, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(trainings_that_do_not_fit_together_run_one_by_one, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(trainings_that_fit_nowhere_are_rows_that_failed, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(trainings_that_found_no_memory_are_tried_again, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(number_of_jobs_is_measured_and_told, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(methods_may_have_seeds_of_their_own, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
