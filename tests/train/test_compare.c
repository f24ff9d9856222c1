/* Comparisons: the table against numbers by hand, files, stopping and continuing, and refusals. */
#include "compare_support.h"

#include <math.h>

#define TINY "limit-train=80 limit-test=24 batch=16 epochs=2 threads=1 device=ref widths=784-8-10" /* 5 steps an epoch */
/* ---- the table -------------------------------------------------------------------------------------------------- */

static void spread_of_some_numbers_is_mean_and_sample_deviation(void **state)
{
    (void)state;
    const double four[] = {2.0, 4.0, 4.0, 6.0}; /* squares of the deviations: 4 + 0 + 0 + 4 */
    abar_compare_spread s = abar__spread(four, 4);
    assert_near(s.mean, 4.0, 1e-15);
    assert_near(s.std, sqrt(8.0 / 3.0), 1e-15);
    s = abar__spread(four, 1);
    assert_near(s.mean, 2.0, 0.0);
    assert_true(isnan(s.std));
    assert_true(isnan(abar__spread(four, 0).mean));
}

/* Writes the report.json of a run of two epochs. */
static void write_report(const abar_compare *c, int i, double accuracy, double loss, double ms, int64_t bytes,
                         const char *failure)
{
    char path[ABAR_RUN_PATH_MAX];
    assert_int_equal(abar__compare_run_dir(c, i, path), ABAR_OK);
    mkdir(path, 0777);
    strcat(path, "/report.json");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"label\": \"x\", \"failure\": %s, \"epochs\": 2, \"test_acc\": %g, \"best_acc\": %g, \"test_loss\": %g, "
            "\"train_acc\": 50, \"train_loss\": %g, \"seconds\": 3, \"ms_per_step\": %g, \"memory_bytes\": %lld, "
            "\"optimizer_bytes\": 7, \"skipped_steps\": 0, \"history\": [",
            failure, accuracy, accuracy + 1, loss + 1, loss, ms, (long long)bytes);
    for (int e = 1; e <= 2; e++)
        fprintf(file,
                "%s{\"epoch\": %d, \"train_loss\": %g, \"train_acc\": 50, \"test_loss\": %g, \"test_acc\": %g, "
                "\"lr\": 0.1, \"seconds\": 1.5, \"skipped_steps\": 0}",
                e > 1 ? ", " : "", e, loss * (3 - e), loss + 0.5 * e, accuracy + 2 - e); /* the first epoch tested best */
    fputs("]}\n", file);
    fclose(file);
}

/* mac, sgd and adamw with three seeds: known numbers, one failed run of adamw. */
static abar_compare *known_comparison(fixture *f)
{
    static const double accuracy[] = {90.0, 88.0, 70.0, 91.0, 87.0, 72.0, 92.0, 89.0, 74.0};
    plan p;
    abar_compare *c;
    make_plan(f, &p, "known", "mac sgd adamw", 3, TINY " seed=0"); /* nothing trains: files of known names */
    need(f, abar_compare_create(f->ctx, &p.config, NULL, &c));
    need(f, abar__folder_make(f->ctx, p.dir));
    need(f, abar__compare_save(c));
    for (int i = 0; i < 9; i++)
        write_report(c, i, accuracy[i], 0.25 * (1 + i % 3), i % 3 == 0 ? 3.0 : 2.0, i % 3 == 0 ? 1500 + i : 1000,
                     i == 5 ? "\"training: broke\"" : "null");
    abar_compare_destroy(c);
    need(f, abar_compare_load(f->ctx, p.dir, 0, NULL, &c));
    drop_plan(f, &p);
    return c;
}

static void table_of_known_runs_has_the_numbers_by_hand(void **state)
{
    fixture *f = *state;
    abar_compare *c = known_comparison(f);
    assert_int_equal(abar_compare_baseline(c), 1); /* sgd, though it is not the first */
    abar_compare_row mac = *abar_compare_row_of(c, 0), adamw = *abar_compare_row_of(c, 2);
    assert_string_equal(mac.label, "mac");
    assert_int_equal(mac.runs, 3);
    assert_int_equal(mac.failures, 0);
    assert_near(mac.test_accuracy.mean, 91.0, 1e-12);
    assert_near(mac.test_accuracy.std, 1.0, 1e-12); /* of 90, 91, 92 */
    assert_near(mac.best_accuracy.mean, 92.0, 1e-12);
    assert_near(mac.best_loss.mean, 0.75, 1e-12);
    assert_int_equal(abar_compare_run_of(c, 0)->best_accuracy_epoch, 1);
    assert_int_equal(abar_compare_run_of(c, 0)->best_loss_epoch, 1);
    assert_near(mac.epoch_seconds.mean, 1.5, 1e-12); /* of 3 s and two epochs, alone */
    assert_near(mac.train_loss.mean, 0.25, 1e-12);
    assert_near(mac.test_loss.mean, 1.25, 1e-12);
    assert_near(mac.time_ratio, 1.5, 1e-12);
    assert_near(mac.memory_bytes, 1506.0, 0.0); /* the most of 1500, 1503, 1506 */
    assert_near(mac.memory_ratio, 1.506, 1e-12);
    assert_int_equal(adamw.runs, 3);
    assert_int_equal(adamw.failures, 1);
    assert_near(adamw.test_accuracy.mean, 72.0, 1e-12); /* of 70 and 74: the failed run does not count */
    assert_near(adamw.test_accuracy.std, sqrt(8.0), 1e-12);
    assert_near(adamw.time_ratio, 1.0, 1e-12);
    assert_string_equal(abar_compare_run_of(c, 5)->failure, "training: broke");
    assert_true(abar_compare_run_of(c, 8)->ended);
    abar_compare_destroy(c);
}

static void json_and_csv_of_known_runs_say_what_the_table_says(void **state)
{
    fixture *f = *state;
    abar_compare *c = known_comparison(f);
    need(f, abar_compare_run_all(c)); /* nothing left to run: writes the files */
    char *csv = read_text(abar_compare_dir(c), "compare.csv"), *json = read_text(abar_compare_dir(c), "compare.json");
    assert_int_equal(count(csv, "\n"), 1 + 9 * 2);
    assert_non_null(strstr(csv, "\nmac,0,2,0.25,50,1.25,90,0.1,1.5,3,0,0,1\n"));
    assert_non_null(strstr(csv, "\nadamw,1,1,1.5,50,1.25,73,0.1,1.5,1.5,0,1,1\n")); /* failed: the last column */
    cJSON *root = cJSON_Parse(json);
    assert_non_null(root);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(root, "complete")));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "runs")), 9);
    cJSON *table = cJSON_GetObjectItem(root, "table"), *rows = cJSON_GetObjectItem(table, "rows");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(table, "baseline")), "sgd");
    assert_int_equal(cJSON_GetArraySize(rows), 3);
    assert_near(cJSON_GetObjectItem(cJSON_GetArrayItem(rows, 0), "test_acc_std")->valuedouble, 1.0, 1e-12);
    assert_near(cJSON_GetObjectItem(cJSON_GetArrayItem(rows, 0), "memory_ratio")->valuedouble, 1.506, 1e-12);
    cJSON_Delete(root);
    free(csv);
    free(json);
    abar_compare_destroy(c);
}

/* ---- the picture ------------------------------------------------------------------------------------------------ */

/* Whether tags nest and attributes are quoted. */
static bool is_well_formed(const char *xml)
{
    char open[64][16];
    int depth = 0;
    for (const char *at = strchr(xml, '<'); at; at = strchr(at, '<')) {
        const char *end = at + 1;
        for (bool quoted = false; *end && (quoted || *end != '>'); end++) quoted ^= *end == '\'';
        if (!*end) return false;
        char name[16] = "";
        sscanf(at + 1 + (at[1] == '/'), "%15[a-zA-Z]", name);
        if (at[1] == '/') {
            if (depth == 0 || strcmp(open[--depth], name) != 0) return false;
        } else if (at[1] != '?' && end[-1] != '/') {
            if (depth == 64) return false;
            strcpy(open[depth++], name);
        }
        at = end;
    }
    return depth == 0;
}

static void picture_of_known_runs_is_well_formed_and_has_every_curve(void **state)
{
    fixture *f = *state;
    abar_compare *c = known_comparison(f);
    need(f, abar_compare_run_all(c));
    char *svg = read_text(abar_compare_dir(c), "compare.svg");
    assert_true(is_well_formed(svg));
    assert_int_equal(count(svg, "class='line'"), 4 * 3);
    assert_int_equal(count(svg, "<clipPath"), 4);
    assert_int_equal(count(svg, ": failed</title>"), 4); /* the failed run, by itself, in every panel */
    assert_non_null(strstr(svg, "91.00 \xc2\xb1 1.00 %"));
    assert_non_null(strstr(svg, "mlp on synthetic"));
    assert_null(strstr(svg, "nan"));
    free(svg);
    abar_compare_destroy(c);
}

static void picture_before_any_run_is_well_formed(void **state)
{
    fixture *f = *state;
    plan p;
    abar_compare *c;
    abar__text svg = {0};
    make_plan(f, &p, "none", "sgd mac", 1, TINY);
    need(f, abar_compare_create(f->ctx, &p.config, NULL, &c));
    need(f, abar__compare_svg_write(c, &svg));
    assert_true(is_well_formed(svg.data));
    assert_int_equal(count(svg.data, "class='line'"), 0);
    abar__text_free(f->ctx, &svg);
    abar_compare_destroy(c);
    drop_plan(f, &p);
}

/* Three curves of three points; the third is an outlier. */
static void make_curves(abar__curves *curves, abar__curve *curve, abar__curve_point *point, double astray)
{
    static const double loss[] = {0.9, 0.5, 0.4};
    for (int i = 0; i < 9; i++) {
        double value = i / 3 < 2 ? loss[i % 3] + 0.01 * (i / 3) : astray;
        point[i] = (abar__curve_point){.epoch = 1 + i % 3, .seconds = 20.0 * (1 + i % 3)};
        for (int kind = 0; kind < ABAR_CURVE_KINDS; kind++) {
            double v = kind == ABAR_CURVE_LOSS ? value : 100.0 * (1.0 - value / 2.5);
            point[i].mean[kind] = point[i].low[kind] = point[i].high[kind] = v;
        }
    }
    for (int i = 0; i < 3; i++) curve[i] = (abar__curve){.method = i, .runs = 1, .n = 3, .point = point + 3 * i};
    *curves = (abar__curves){.curve = curve, .count = 3, .points = point};
}

static void axes_cover_the_curves_but_for_those_astray(void **state)
{
    (void)state;
    abar__curves curves;
    abar__curve curve[3];
    abar__curve_point point[9];
    double scratch[9];
    make_curves(&curves, curve, point, 0.6);
    abar__axis axis = abar__axis_values(&curves, ABAR_CURVE_LOSS, scratch);
    assert_false(axis.logarithmic);
    assert_true(axis.low < 0.4 && axis.low > 0.3 && axis.high > 0.91 && axis.high < 1.0);
    assert_true(axis.ticks >= 3);
    for (int i = 0; i < axis.ticks; i++) assert_true(axis.tick[i] >= axis.low && axis.tick[i] <= axis.high);
    assert_near(abar__axis_place(&axis, axis.low), 0.0, 1e-12);
    assert_near(abar__axis_place(&axis, axis.high), 1.0, 1e-12);

    make_curves(&curves, curve, point, 0.004); /* two decades */
    axis = abar__axis_values(&curves, ABAR_CURVE_LOSS, scratch);
    assert_true(axis.logarithmic);
    assert_true(abar__axis_place(&axis, 0.004) > 0.0 && abar__axis_place(&axis, 0.91) < 1.0);
    assert_near(abar__axis_place(&axis, 0.04) - abar__axis_place(&axis, 0.004),
                abar__axis_place(&axis, 0.4) - abar__axis_place(&axis, 0.04), 1e-12);

    axis = abar__axis_epochs(&curves);
    assert_int_equal(axis.ticks, 3);
    assert_near(axis.tick[0], 1.0, 0.0);
    assert_int_equal(abar__axis_time_unit(&curves), 1); /* 60 s: seconds */
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static void runs_of_a_comparison_are_those_of_a_trainer(void **state)
{
    fixture *f = *state;
    plan p;
    watcher w = {0};
    make_plan(f, &p, "all", "sgd adamw", 2, TINY " seed=3");
    assert_int_equal(run_new(f, &p, &w), ABAR_OK);
    assert_int_equal(w.ended, 4);
    assert_int_equal(w.calls, 4 * (2 * (5 + 1) + 1));
    assert_near(w.done, 1.0, 1e-12);
    assert_near(w.left, 0.0, 1e-12);
    const abar_compare_run *run = abar_compare_run_of(w.compare, 3); /* the second seed, the second method */
    assert_string_equal(run->label, "adamw");
    assert_int_equal(run->seed, 4);

    abar_trainer *t;
    set(f, p.setup[1], "seed", "4");
    need(f, abar_trainer_create(f->ctx, p.setup[1], false, NULL, &t));
    need(f, abar_trainer_run(t));
    assert_int_equal(run->epochs, 2);
    assert_true(run->test_loss == t->history[1].test_loss);
    assert_true(run->train_loss == t->history[1].train_loss);
    assert_true(run->best_accuracy >= run->test_accuracy);
    assert_int_equal(run->optimizer_bytes, abar_optim_state_bytes(t->optim));
    abar_trainer_destroy(t);

    abar_compare_row sgd = *abar_compare_row_of(w.compare, 0), adamw = *abar_compare_row_of(w.compare, 1);
    assert_near(sgd.memory_ratio, 1.0, 0.0);
    assert_true(adamw.memory_ratio > 1.0 && adamw.memory_ratio < 2.0); /* a second moment more, on the same data */
    abar_compare_destroy(w.compare);
    drop_plan(f, &p);
}

static void stopped_comparison_goes_on_to_the_same_numbers(void **state)
{
    static const int64_t stops[] = {3, 12, 13, 30}; /* mid-epoch; end of the first run; its result; in the third run */
    fixture *f = *state;
    plan p;
    watcher w = {0};
    char whole[PATH_MAX_TEST], name[16];
    make_plan(f, &p, "whole", "mac sgd", 2, TINY);
    assert_int_equal(run_new(f, &p, &w), ABAR_OK);
    abar_compare_destroy(w.compare);
    snprintf(whole, sizeof whole, "%s", p.dir);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        snprintf(name, sizeof name, "parts-%d", (int)stops[i]);
        path_in(f, name, p.dir);
        w = (watcher){.stop_at = stops[i]};
        assert_int_equal(run_new(f, &p, &w), ABAR_STOPPED);
        char *json = read_text(p.dir, "compare.json");
        assert_non_null(strstr(json, "\"complete\": false"));
        free(json);
        abar_compare_destroy(w.compare);
        w = (watcher){.stop_at = 4};
        assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_STOPPED);
        abar_compare_destroy(w.compare);
        w = (watcher){0};
        assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_OK);
        abar_compare_destroy(w.compare);
        assert_same_comparison(whole, p.dir);
    }
    drop_plan(f, &p);
}

static void more_seeds_leave_the_runs_there_are(void **state)
{
    fixture *f = *state;
    plan p;
    watcher w = {0};
    make_plan(f, &p, "grown", "sgd adamw", 1, TINY);
    assert_int_equal(run_new(f, &p, &w), ABAR_OK);
    abar_compare_destroy(w.compare);
    w = (watcher){0};
    assert_int_equal(run_on(f, p.dir, 2, &w), ABAR_OK);
    assert_int_equal(w.ended, 2); /* the other two are kept */
    assert_int_equal(abar_compare_run_count(w.compare), 4);
    abar_compare_destroy(w.compare);
    assert_int_equal(abar_compare_load(f->ctx, p.dir, 1, NULL, &w.compare), ABAR_E_ARGUMENT);
    assert_error(f, "has 2 already");
    drop_plan(f, &p);
}

static void run_that_fails_is_a_row_and_the_others_go_on(void **state)
{
    fixture *f = *state;
    plan p;
    watcher w = {0};
    make_plan(f, &p, "failing", "adamw sgd", 1, TINY " device=cpu epochs=4");
    set(f, p.setup[1], "lr", "1e6");
    set(f, p.setup[1], "weight-decay", "1"); /* times -1e6 a step: infinite within ten, whatever the seed and the rounding */
    p.config.labels = (const char *const[]){"good", "bad"};
    set(f, p.setup[1], "schedule", "constant");
    assert_int_equal(run_new(f, &p, &w), ABAR_OK);
    abar_compare_row good = *abar_compare_row_of(w.compare, 0), bad = *abar_compare_row_of(w.compare, 1);
    assert_int_equal(good.failures, 0);
    assert_int_equal(bad.failures, 1);
    assert_true(isnan(bad.test_accuracy.mean) && isnan(bad.memory_bytes));
    assert_non_null(strstr(abar_compare_run_of(w.compare, 1)->failure, "not finite"));
    abar_compare_destroy(w.compare);
    w = (watcher){0};
    assert_int_equal(run_on(f, p.dir, 0, &w), ABAR_OK);
    assert_int_equal(w.calls, 0); /* a failed run has ended */
    assert_non_null(strstr(abar_compare_run_of(w.compare, 1)->failure, "not finite"));
    abar_compare_destroy(w.compare);
    drop_plan(f, &p);
}

/* ---- what is refused -------------------------------------------------------------------------------------------- */

static void refuse(fixture *f, const plan *p, abar_status status, const char *why)
{
    abar_compare *c;
    struct stat info;
    assert_int_equal(abar_compare_create(f->ctx, &p->config, NULL, &c), status);
    assert_error(f, why);
    assert_null(c);
    assert_int_not_equal(stat(p->dir, &info), 0);
}

static void comparison_of_unequal_things_is_refused(void **state)
{
    fixture *f = *state;
    plan p;
    make_plan(f, &p, "refused", "sgd mac", 1, TINY);
    set(f, p.setup[1], "batch", "8");
    refuse(f, &p, ABAR_E_ARGUMENT, "--batch: 16 for sgd but 8 for mac");
    set(f, p.setup[1], "batch", "16");
    set(f, p.setup[1], "widths", "784-9-10");
    refuse(f, &p, ABAR_E_ARGUMENT, "--widths");
    set(f, p.setup[1], "widths", "784-8-10");
    p.config.labels = (const char *const[]){"same", "same"};
    refuse(f, &p, ABAR_E_ARGUMENT, "compared twice");
    p.config.labels = (const char *const[]){"../up", "b"};
    refuse(f, &p, ABAR_E_ARGUMENT, "use letters");
    p.config.labels = (const char *const[]){"a-name-of-more-than-thirty-one-letters", "b"};
    refuse(f, &p, ABAR_E_ARGUMENT, "too long");
    p.config.labels = NULL;
    p.config.seeds = 0;
    refuse(f, &p, ABAR_E_ARGUMENT, "--seeds 0");
    drop_plan(f, &p);
}

static void aligned_setups_can_be_compared(void **state)
{
    fixture *f = *state;
    plan p;
    abar_compare *c;
    make_plan(f, &p, "aligned", "sgd mac", 1, TINY);
    set(f, p.setup[1], "epochs", "7");
    set(f, p.setup[1], "widths", "784-9-10");
    set(f, p.setup[1], "lr", "0.25");
    need(f, abar_compare_align(f->ctx, p.setup[0], p.setup[1]));
    assert_int_equal(p.setup[1]->train.epochs, 2);
    assert_near(p.setup[1]->train.lr, 0.25, 0.0); /* the optimizer's own */
    assert_string_equal(p.setup[1]->train.optim, "mac");
    need(f, abar_compare_create(f->ctx, &p.config, NULL, &c));
    abar_compare_destroy(c);
    drop_plan(f, &p);
}

static void comparison_that_cannot_begin_leaves_nothing_behind(void **state)
{
    fixture *f = *state;
    plan p;
    watcher w = {0};
    struct stat info;
    make_plan(f, &p, "nothing", "sgd", 1, TINY " limit-train=0 batch=9000"); /* more than synthetic data have */
    assert_int_equal(run_new(f, &p, &w), ABAR_E_ARGUMENT);
    assert_error(f, "--batch 9000");
    assert_int_not_equal(stat(p.dir, &info), 0);
    abar_compare_destroy(w.compare);
    drop_plan(f, &p);
}

static void folder_with_or_without_a_comparison_is_told_apart(void **state)
{
    fixture *f = *state;
    abar_compare *c = known_comparison(f), *other;
    plan p;
    assert_int_equal(abar_compare_load(f->ctx, abar_compare_dir(c), 0, NULL, &other), ABAR_E_BUSY); /* c has the lock */
    abar_compare_destroy(c);
    make_plan(f, &p, "known", "sgd", 1, TINY);
    assert_int_equal(abar_compare_create(f->ctx, &p.config, NULL, &other), ABAR_E_ARGUMENT);
    assert_error(f, "already holds a comparison");
    assert_int_equal(abar_compare_load(f->ctx, f->dir, 0, NULL, &other), ABAR_E_NOT_FOUND);
    assert_error(f, "holds no comparison");
    drop_plan(f, &p);
}

static void damaged_files_are_refused(void **state)
{
    static const struct {
        const char *name, *text, *why;
    } damage[] = {{"mac-s0/report.json", "{\"failure\": null, \"epochs\": 2", "not valid JSON"},
                  {"mac-s0/report.json", "{\"failure\": null, \"history\": []}", "\"epochs\" is missing"},
                  {"compare.json", "[]", "must list 1 to 32 methods"},
                  {"compare.json", "{\"config\": {\"seeds\": 1, \"methods\": [{\"label\": \"sgd\"}]}}", "a label and a setup"},
                  {"compare.json",
                   "{\"config\": {\"seeds\": 1e9, \"methods\": [{\"label\": \"sgd\", \"setup\": "
                   "{\"train\": {\"model\": \"mlp\", \"data\": \"synthetic\", \"optim\": \"sgd\"}}}]}}",
                   "--seeds 1000000000"}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        abar_compare *c = known_comparison(f);
        char path[PATH_MAX_TEST];
        snprintf(path, sizeof path, "%.200s/%s", abar_compare_dir(c), damage[i].name);
        abar_compare_destroy(c);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(damage[i].text, file);
        fclose(file);
        path_in(f, "known", path);
        assert_true(abar_compare_load(f->ctx, path, 0, NULL, &c) < 0);
        assert_error(f, damage[i].why);
        remove_tree(path);
    }
}

/* ---- no memory -------------------------------------------------------------------------------------------------- */

static abar_status load_and_write(abar_context *ctx, const char *dir)
{
    abar_compare *c;
    const char *json;
    abar__text svg = {0}, csv = {0};
    ABAR_TRY(abar_compare_load(ctx, dir, 0, NULL, &c));
    abar_status status = abar_compare_report(c, &json);
    if (status >= 0) status = abar__compare_svg_write(c, &svg);
    if (status >= 0) status = abar__compare_csv_write(c, &csv);
    abar__text_free(ctx, &svg);
    abar__text_free(ctx, &csv);
    abar_compare_destroy(c);
    return status;
}

static void any_allocation_that_fails_is_told_and_nothing_leaks(void **state)
{
    fixture *f = *state;
    char dir[PATH_MAX_TEST];
    abar_compare_destroy(known_comparison(f));
    path_in(f, "known", dir);
    assert_true(fail_every_allocation(load_and_write, dir) > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spread_of_some_numbers_is_mean_and_sample_deviation),
        cmocka_unit_test_setup_teardown(table_of_known_runs_has_the_numbers_by_hand, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(json_and_csv_of_known_runs_say_what_the_table_says, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(picture_of_known_runs_is_well_formed_and_has_every_curve, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(picture_before_any_run_is_well_formed, make_fixture, drop_fixture),
        cmocka_unit_test(axes_cover_the_curves_but_for_those_astray),
        cmocka_unit_test_setup_teardown(runs_of_a_comparison_are_those_of_a_trainer, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(stopped_comparison_goes_on_to_the_same_numbers, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(more_seeds_leave_the_runs_there_are, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(run_that_fails_is_a_row_and_the_others_go_on, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(comparison_of_unequal_things_is_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(aligned_setups_can_be_compared, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(comparison_that_cannot_begin_leaves_nothing_behind, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(folder_with_or_without_a_comparison_is_told_apart, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(damaged_files_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(any_allocation_that_fails_is_told_and_nothing_leaks, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
