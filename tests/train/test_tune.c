/* Tuning: trials and rounds, the best rate of a toy, stopping and continuing, and what is refused. */
#include "sweep_support.h"

#include <math.h>

static abar_tune_config config_of(const toy *t, const char *dir, const char *const *over, int n, int trials)
{
    return (abar_tune_config){.size = sizeof(abar_tune_config),
                              .out = dir,
                              .setups = (const abar_setup *const *)&t->setup,
                              .optimizers = 1,
                              .over = over,
                              .n_over = n,
                              .trials = trials,
                              .seeds = 2};
}

static void rounds_keep_a_third_and_grow_threefold(void **state)
{
    fixture *f = *state;
    static const struct {
        int trials;
        const char *epochs;
        int rounds;
        abar_tune_round round[4];
    } cases[] = {{9, "9", 2, {{9, 3}, {3, 9}}},
                 {27, "9", 3, {{27, 1}, {9, 3}, {3, 9}}},
                 {10, "2", 3, {{10, 1}, {4, 1}, {2, 2}}},
                 {3, "5", 1, {{3, 5}}},
                 {1, "1", 1, {{1, 1}}}};
    const char *over[] = {"lr=0.1:30:log"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        toy *t = make_toy(f, cases[i].epochs, "0.1");
        abar_tune *tune;
        const abar_tune_config config = config_of(t, "none", over, 1, cases[i].trials);
        need(f, abar_tune_create(f->ctx, &config, NULL, &tune));
        assert_int_equal(abar_tune_round_count(tune), cases[i].rounds);
        for (int r = 0; r < cases[i].rounds; r++) {
            assert_int_equal(abar_tune_round_of(tune, r)->trials, cases[i].round[r].trials);
            assert_int_equal(abar_tune_round_of(tune, r)->epochs, cases[i].round[r].epochs);
        }
        abar_tune_destroy(tune);
        drop_toy(f, t);
    }
}

/* One setting: equal distances; two: all different, and every third of each axis has some. */
static void trials_fill_the_space(void **state)
{
    fixture *f = *state;
    toy *t = make_toy(f, "9", "0.1");
    const char *over[] = {"lr=0.1:10:log", "momentum=0:0.9"};
    abar_tune *tune;
    abar_tune_config config = config_of(t, "none", over, 1, 5);
    need(f, abar_tune_create(f->ctx, &config, NULL, &tune));
    static const char *const line[] = {"0.1", "0.3162", "1", "3.162", "10"};
    for (int i = 0; i < 5; i++) assert_string_equal(tune->optimizer[0].trial[i].value[0], line[i]);
    abar_tune_destroy(tune);
    config = config_of(t, "none", over, 2, 27);
    need(f, abar_tune_create(f->ctx, &config, NULL, &tune));
    int in[2][3] = {{0}};
    for (int i = 0; i < 27; i++) {
        const double lr = atof(tune->optimizer[0].trial[i].value[0]), momentum = atof(tune->optimizer[0].trial[i].value[1]);
        assert_true(lr >= 0.1 && lr <= 10.0 && momentum >= 0.0 && momentum <= 0.9);
        in[0][(int)fmin(2.0, 3.0 * log10(lr / 0.1) / 2.0)]++;
        in[1][(int)fmin(2.0, 3.0 * momentum / 0.9)]++;
    }
    for (int a = 0; a < 2; a++)
        for (int k = 0; k < 3; k++) assert_in_range(in[a][k], 7, 11); /* of 27 points, 9 each if they were spread evenly */
    abar_tune_destroy(tune);
    drop_toy(f, t);
}

static void spaces_that_cannot_be_tuned_are_refused(void **state)
{
    fixture *f = *state;
    static const char *const wrong[][2] = {{"lr=0.1,0.2", "has only 2 different values, give at most 2"},
                                           {"epochs=1:9", "epochs are the budget"},
                                           {"seed=1,2", "--seeds"},
                                           {"lr=0.1:1:lag", "is no range"},
                                           {"lr=0.1:1e30:log", "--lr"},
                                           {"damping=1:2", "none of the optimizers"}};
    toy *t = make_toy(f, "9", "0.1");
    abar_tune *tune;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const abar_tune_config config = config_of(t, "none", &wrong[i][0], 1, 9);
        assert_int_equal(abar_tune_create(f->ctx, &config, NULL, &tune), ABAR_E_ARGUMENT);
        assert_error(f, wrong[i][1]);
        assert_null(tune);
    }
    const char *over[] = {"lr=0.1:1"};
    set(f, t->setup, "validation", "0");
    const abar_tune_config config = config_of(t, "none", over, 1, 9);
    assert_int_equal(abar_tune_create(f->ctx, &config, NULL, &tune), ABAR_E_ARGUMENT);
    assert_error(f, "chosen on a validation part");
    set(f, t->setup, "validation", "0.1");
    set(f, t->setup, "stop-after", "1");
    assert_int_equal(abar_tune_create(f->ctx, &config, NULL, &tune), ABAR_E_ARGUMENT);
    assert_error(f, "--stop-after 1: trials are whole runs");
    drop_toy(f, t);
}

/* Stops the tuning after so many reports of progress. */
typedef struct stopper {
    abar_tune *tune;
    int calls, stop_at;
} stopper;

static void count_calls(void *user, const abar_compare_progress *p)
{
    stopper *s = user;
    if (!p->news && ++s->calls == s->stop_at) abar_tune_stop(s->tune);
}

static void check_result(const abar_tune *tune)
{
    const abar_tune_result *r = abar_tune_result_of(tune, 0);
    double rate;
    assert_int_equal(sscanf(r->values, "lr %lf", &rate), 1);
    assert_true(rate > TOY_RATE / 2.05 && rate < TOY_RATE * 2.05); /* the nine values are 2.04 apart */
    assert_int_equal(r->trials, 9);
    assert_int_equal(r->epochs, 9 * 3 + 3 * 9);
    assert_int_equal(r->runs, 2);
    assert_near(r->test_loss.mean, -0.8 * log(0.8) - 0.2 * log(0.2), 2e-3);
    assert_true(r->seconds > 0.0);
}

static void tuning_finds_the_best_rate_of_the_toy(void **state)
{
    fixture *f = *state;
    const char *over[] = {"lr=0.1:30:log"};
    for (int jobs = 1; jobs <= 2; jobs++) {
        char dir[PATH_MAX_TEST];
        toy *t = make_toy(f, "9", "0.1");
        abar_tune *tune;
        path_in(f, jobs == 1 ? "one" : "two", dir);
        const abar_tune_config config = config_of(t, dir, over, 1, 9);
        need(f, abar_tune_create(f->ctx, &config, NULL, &tune));
        abar_tune_jobs(tune, jobs);
        need(f, abar_tune_run(tune));
        check_result(tune);
        char *md = read_text(dir, "tune.md"), *json = read_text(dir, "tune.json");
        assert_non_null(strstr(md, "| sgd | lr=0.1:30:log | 9 | 0 | 54 |"));
        assert_non_null(strstr(md, "9 x 3, 3 x 9"));
        assert_non_null(strstr(json, "\"complete\": true"));
        free(md);
        free(json);
        abar_tune_destroy(tune);
        drop_toy(f, t);
    }
}

static void stopped_tuning_goes_on_to_the_same_choice(void **state)
{
    fixture *f = *state;
    const char *over[] = {"lr=0.1:30:log"};
    char dir[PATH_MAX_TEST];
    toy *t = make_toy(f, "9", "0.1");
    stopper s = {.stop_at = 25}; /* within the first round, then a little later each time */
    const abar_compare_events events = {sizeof events, count_calls, &s};
    path_in(f, "stopped", dir);
    const abar_tune_config config = config_of(t, dir, over, 1, 9);
    need(f, abar_tune_create(f->ctx, &config, &events, &s.tune));
    int stops = 0;
    abar_status status;
    while ((status = abar_tune_run(s.tune)) == ABAR_STOPPED) {
        stops++;
        s.calls = 0;
        assert_true(stops < 20);
    }
    need(f, status);
    assert_true(stops >= 3);
    check_result(s.tune);
    abar_tune_destroy(s.tune);
    drop_toy(f, t);
}

/* Rates at which no trial survives: the failure is told. */
static void tuning_without_a_survivor_says_so(void **state)
{
    fixture *f = *state;
    const char *over[] = {"lr=100:1000:log"};
    char dir[PATH_MAX_TEST];
    toy *t = make_toy(f, "30", "0.1");
    abar_tune *tune;
    set(f, t->setup, "weight-decay", "1e6"); /* multiplies the weights by at least -1e8 a step */
    set(f, t->setup, "decay-all", "true");
    path_in(f, "hopeless", dir);
    abar_tune_config config = config_of(t, dir, over, 1, 3);
    need(f, abar_tune_create(f->ctx, &config, NULL, &tune));
    assert_int_equal(abar_tune_run(tune), ABAR_E_NUMERIC);
    assert_error(f, "every trial failed");
    assert_int_equal(abar_tune_result_of(tune, 0)->failures, 3);
    abar_tune_destroy(tune);
    drop_toy(f, t);
}

static abar_status create_and_report(abar_context *ctx, const char *dir)
{
    abar_setup *setup;
    abar_tune *tune = NULL;
    const char *over[] = {"lr=0.1:1:log", "damping=1,2"}, *json;
    ABAR_TRY(abar_setup_create(ctx, "mlp", "synthetic", "mac", &setup));
    abar_status status = abar_setup_set(ctx, setup, "validation", "0.1");
    const abar_tune_config config = {.size = sizeof config,
                                     .out = dir,
                                     .setups = (const abar_setup *const *)&setup,
                                     .optimizers = 1,
                                     .over = over,
                                     .n_over = 2,
                                     .trials = 4,
                                     .seeds = 2};
    if (status >= 0) status = abar_tune_create(ctx, &config, NULL, &tune);
    if (status >= 0) status = abar_tune_report(tune, &json);
    abar_tune_destroy(tune);
    abar_setup_destroy(ctx, setup);
    return status;
}

static void any_allocation_that_fails_is_told_and_nothing_leaks(void **state)
{
    fixture *f = *state;
    char dir[PATH_MAX_TEST];
    path_in(f, "none", dir);
    assert_true(fail_every_allocation(create_and_report, dir) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rounds_keep_a_third_and_grow_threefold, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(trials_fill_the_space, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(spaces_that_cannot_be_tuned_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(tuning_finds_the_best_rate_of_the_toy, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(stopped_tuning_goes_on_to_the_same_choice, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(tuning_without_a_survivor_says_so, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(any_allocation_that_fails_is_told_and_nothing_leaks, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
