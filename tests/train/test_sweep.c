/* Sweeps: what varies, cells, the best rate of a toy, files, and what is refused. */
#include "sweep_support.h"

#include <math.h>

#define TINY "limit-train=80 batch=16 epochs=1 threads=1 device=ref widths=784-4-10"

/* ---- what varies ------------------------------------------------------------------------------------------------- */

static const char *const labels[] = {"sgd", "mac"};

static abar__space *parse(fixture *f, const char *text, bool any)
{
    abar__space *s = calloc(1, sizeof *s);
    need(f, abar__space_parse(f->ctx, text, labels, 2, any, s));
    return s;
}

static void lists_and_ranges_are_read(void **state)
{
    fixture *f = *state;
    abar__space *s = parse(f, "lr=0.1, 0.3,1e-2", false);
    assert_string_equal(s->name, "lr");
    assert_int_equal(s->values, 3);
    assert_string_equal(s->value[1], "0.3"); /* as it was written */
    free(s);
    s = parse(f, "mac.damping=0.001:3:8log", false);
    assert_string_equal(s->label, "mac");
    assert_true(s->range && s->logarithmic);
    assert_near(abar__space_at(s, 0.0), 0.001, 0.0);
    assert_near(abar__space_at(s, 1.0), 3.0, 0.0);
    assert_near(abar__space_at(s, 0.5), 0.05477, 1e-12); /* sqrt(0.003), in four digits */
    free(s);
    s = parse(f, "momentum=0:0.9:4", false);
    assert_false(s->logarithmic);
    assert_near(abar__space_at(s, 1.0 / 3.0), 0.3, 1e-12);
    free(s);
    s = parse(f, "lr=0.01:1:log", true);
    assert_int_equal(s->values, 0);
    assert_true(s->logarithmic);
    free(s);
    s = parse(f, "split=a:b,c", false); /* not numbers: a list */
    assert_int_equal(s->values, 2);
    free(s);
}

static void spaces_that_are_none_are_refused(void **state)
{
    fixture *f = *state;
    static const char *const wrong[][2] = {{"lr", "names no setting"},          {"=3", "names no setting"},
                                           {"lr=", "a value is empty"},         {"lr=0.1,,0.3", "a value is empty"},
                                           {"lr=0.1,0.1", "listed twice"},      {"lr=0.1,0.10", "listed twice"},
                                           {"lr=0.01:1", "how many values"},    {"lr=0.01:1:log", "how many values"},
                                           {"lr=0.01:1:5lag", "is no range"},   {"lr=1:0.01:5log", "below its high end"},
                                           {"lr=0:1:5log", "no logarithms"},    {"lr=0.1:1:1", "2 to 256 values"},
                                           {"lr=0.1:1:999", "2 to 256 values"}, {"adam.lr=0.1", "none of the optimizers"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        abar__space *s = calloc(1, sizeof *s);
        assert_int_equal(abar__space_parse(f->ctx, wrong[i][0], labels, 2, false, s), ABAR_E_ARGUMENT);
        assert_error(f, wrong[i][1]);
        free(s);
    }
}

/* ---- cells ------------------------------------------------------------------------------------------------------- */

/* A sweep of these optimizers, not run. over: separated by spaces. */
static abar_status make_sweep(fixture *f, const char *optims, const char *over, bool single, abar_compare **out)
{
    plan p;
    char text[512], *rest = text;
    const char *list[8];
    abar_sweep_config config = {.size = sizeof config, .seeds = 1, .over = list, .one_at_a_time = single};
    make_plan(f, &p, "sweep", optims, 1, TINY);
    snprintf(text, sizeof text, "%s", over);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) list[config.n_over++] = word;
    config.out = p.dir;
    config.setups = p.config.setups;
    config.optimizers = p.config.methods;
    const abar_status status = abar_sweep_create(f->ctx, &config, NULL, out);
    drop_plan(f, &p);
    return status;
}

static double rate_of(const abar_compare *c, int cell) { return abar_compare_setup(c, cell)->train.lr; }

static void grid_has_every_combination_and_what_lacks_a_setting_varies_less(void **state)
{
    fixture *f = *state;
    abar_compare *c;
    need(f, make_sweep(f, "sgd mac", "lr=0.1,0.2 damping=1,2,3", false, &c));
    assert_int_equal(abar_compare_method_count(c), 2 + 6); /* sgd has no damping */
    assert_int_equal(abar_sweep_axis_count(c), 2);
    assert_near(rate_of(c, 1), 0.2, 0.0);
    assert_string_equal(abar_sweep_cell_value(c, 1, 1), "");
    assert_string_equal(abar_sweep_cell_value(c, 3, 1), "2");
    assert_string_equal(abar_compare_row_of(c, 3)->label, "mac-lr=0.1-damping=2");
    abar_compare_destroy(c);
    need(f, make_sweep(f, "sgd mac", "lr=0.1,0.2 mac.lr=0.7", false, &c)); /* its own in place of that for all */
    assert_int_equal(abar_compare_method_count(c), 3);
    assert_near(rate_of(c, 2), 0.7, 0.0);
    abar_compare_destroy(c);
    need(f, make_sweep(f, "sgd mac", "lr=0.1,0.2 damping=1,2,3", true, &c));
    assert_int_equal(abar_compare_method_count(c), 2 + 2 + 3);
    assert_int_equal(abar_sweep_cell_axis(c, 6), 1);
    abar_compare_destroy(c);
    need(f, make_sweep(f, "sgd mac", "damping=1,2", false, &c));
    assert_int_equal(abar_compare_method_count(c), 1 + 2); /* sgd once, as a measure */
    abar_compare_destroy(c);
    need(f, make_sweep(f, "mac", "tinv=1:6:11", false, &c)); /* whole numbers, each once */
    assert_int_equal(abar_compare_method_count(c), 6);
    abar_compare_destroy(c);
    need(f, make_sweep(f, "sgd mac adamw", "epochs=1:20:10log", false, &c)); /* rounded once: the same for all */
    assert_int_equal(abar_compare_method_count(c), 3 * 9);                   /* 1 2 3 4 5 7 10 14 20 */
    assert_string_equal(abar_sweep_cell_value(c, 2, 0), "3");
    abar_compare_destroy(c);
    need(f, make_sweep(f, "sgd", "batch=8,16 epochs=1,2", false, &c)); /* settings of the problem vary, too */
    assert_int_equal(abar_compare_setup(c, 3)->train.batch, 16);
    assert_int_equal(abar_compare_setup(c, 3)->train.epochs, 2);
    abar_compare_destroy(c);
}

static void settings_that_cannot_vary_are_refused(void **state)
{
    fixture *f = *state;
    static const char *const wrong[][2] = {{"model=mlp,lenet5", "one model at a time"},
                                           {"seed=1,2", "--seeds"},
                                           {"optim=sgd,mac", "--optim"},
                                           {"validation=0.1,0.2", "one validation part"},
                                           {"lrr=0.1", "did you mean --lr"},
                                           {"damping=1", "none of the optimizers has such an option"},
                                           {"lr=0.1 lr=0.2", "given twice"},
                                           {"lr=0.1,fast", "fast: not a number"},
                                           {"batch=0", "batch 0: out of range"},
                                           {"lr=0.1:1:256 momentum=0:0.5:200", "too many"},
                                           {"", "--over: says what varies"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        abar_compare *c;
        assert_int_equal(make_sweep(f, "sgd", wrong[i][0], false, &c), ABAR_E_ARGUMENT);
        assert_error(f, wrong[i][1]);
        assert_null(c);
    }
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void sweep_finds_the_best_rate_of_the_toy(void **state)
{
    fixture *f = *state;
    char dir[PATH_MAX_TEST];
    const char *over[] = {"lr=0.03,0.3,3.125,9,30"};
    path_in(f, "toy", dir);
    for (int held = 0; held < 2; held++) { /* on the test part, and on a validation part */
        toy *t = make_toy(f, "4", held ? "0.1" : "0");
        abar_compare *c;
        snprintf(dir + strlen(dir), sizeof dir - strlen(dir), "%d", held);
        const abar_sweep_config config = {.size = sizeof config,
                                          .out = dir,
                                          .setups = (const abar_setup *const *)&t->setup,
                                          .optimizers = 1,
                                          .seeds = 1,
                                          .over = over,
                                          .n_over = 1};
        need(f, abar_sweep_create(f->ctx, &config, NULL, &c));
        need(f, abar_compare_run_all(c));
        const abar_sweep_best *best = abar_sweep_best_of(c, 0);
        assert_near(rate_of(c, best->cell), TOY_RATE, 0.0);
        assert_int_equal(isnan(best->test_loss.mean), !held);
        /* entropy of the coin: no rate gets below it on the test part, and the best one reaches it */
        const double entropy = -0.8 * log(0.8) - 0.2 * log(0.2);
        assert_near(held ? best->test_loss.mean : best->loss.mean, entropy, 2e-3);
        char *csv = read_text(dir, "sweep.csv"), *svg = read_text(dir, "sweep.svg");
        assert_int_equal(count(csv, "\n"), 1 + 5);
        assert_non_null(strstr(csv, held ? "lr,optimizer,seed,validation_acc" : "lr,optimizer,seed,test_acc"));
        assert_null(strstr(svg, "nan"));
        free(csv);
        free(svg);
        abar_compare_destroy(c);
        drop_toy(f, t);
    }
}

static void better_scores_are_known(void **state)
{
    (void)state;
    const abar__score good = {90, 0.3}, tie = {90, 0.2}, bad = {80, 0.1}, none = {NAN, NAN}, odd = {90, NAN};
    assert_true(abar__score_is_better(good, bad) && !abar__score_is_better(bad, good));
    assert_true(abar__score_is_better(tie, good) && !abar__score_is_better(good, tie));
    assert_true(abar__score_is_better(bad, none) && !abar__score_is_better(none, bad));
    assert_true(abar__score_is_better(good, odd) && !abar__score_is_better(odd, good));
    assert_false(abar__score_is_better(good, good));
}

/* Writes what sweep.json says, and loads it. */
static void sweep_json_is_read_as_it_was_written(void **state)
{
    fixture *f = *state;
    abar_compare *c, *again;
    const char *json;
    need(f, make_sweep(f, "sgd mac", "lr=0.1,0.2 damping=1,2,3", false, &c));
    need(f, abar_compare_report(c, &json));
    need(f, abar__sweep_parse(f->ctx, "sweep.json", json, strlen(json), &again));
    assert_int_equal(abar_compare_method_count(again), 8);
    assert_string_equal(abar_sweep_cell_value(again, 3, 1), "2");
    const char *copy;
    need(f, abar_compare_report(again, &copy));
    assert_string_equal(json, copy);
    abar_compare_destroy(again);
    /* every damaged form is refused, none crashes */
    char *text = strdup(json);
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i += 1 + n / 300) {
        const char was = text[i];
        text[i] = '}';
        if (abar__sweep_parse(f->ctx, "sweep.json", text, n, &again) >= 0) abar_compare_destroy(again);
        text[i] = was;
    }
    free(text);
    abar_compare_destroy(c);
}

static abar_status load_and_write(abar_context *ctx, const char *dir)
{
    abar_compare *c;
    const char *json;
    abar__text svg = {0}, csv = {0};
    ABAR_TRY(abar_sweep_load(ctx, dir, 0, NULL, &c));
    abar_status status = abar_compare_report(c, &json);
    if (status >= 0) status = abar__sweep_svg_write(c, &svg);
    if (status >= 0) status = abar__sweep_csv_write(c, &csv);
    abar__text_free(ctx, &svg);
    abar__text_free(ctx, &csv);
    abar_compare_destroy(c);
    return status;
}

static abar_status create(abar_context *ctx, const char *dir)
{
    abar_setup *setup;
    abar_compare *c = NULL;
    const char *over[] = {"lr=0.1:1:3log", "damping=1,2"};
    ABAR_TRY(abar_setup_create(ctx, "mlp", "synthetic", "mac", &setup));
    const abar_sweep_config config = {.size = sizeof config,
                                      .out = dir,
                                      .setups = (const abar_setup *const *)&setup,
                                      .optimizers = 1,
                                      .seeds = 2,
                                      .over = over,
                                      .n_over = 2};
    const abar_status status = abar_sweep_create(ctx, &config, NULL, &c);
    abar_compare_destroy(c);
    abar_setup_destroy(ctx, setup);
    return status;
}

static void any_allocation_that_fails_is_told_and_nothing_leaks(void **state)
{
    fixture *f = *state;
    char dir[PATH_MAX_TEST];
    abar_compare *c;
    need(f, make_sweep(f, "sgd mac", "lr=0.1,0.2 damping=1,2", false, &c));
    need(f, abar_compare_run_all(c));
    abar_compare_destroy(c);
    path_in(f, "sweep", dir);
    assert_true(fail_every_allocation(load_and_write, dir) > 50);
    path_in(f, "new", dir);
    assert_true(fail_every_allocation(create, dir) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lists_and_ranges_are_read, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(spaces_that_are_none_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(grid_has_every_combination_and_what_lacks_a_setting_varies_less, make_fixture,
                                        drop_fixture),
        cmocka_unit_test_setup_teardown(settings_that_cannot_vary_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(sweep_finds_the_best_rate_of_the_toy, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(sweep_json_is_read_as_it_was_written, make_fixture, drop_fixture),
        cmocka_unit_test(better_scores_are_known),
        cmocka_unit_test_setup_teardown(any_allocation_that_fails_is_told_and_nothing_leaks, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
