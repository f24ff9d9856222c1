/* Targets and significance of comparisons: Student's t and Welch's test against SciPy's numbers, steps to a target by reports
 * written by hand, equal methods that are not told apart and different ones that are. */
#include "compare_support.h"

#include "train/compare/student.h"

#include <math.h>

#define TINY "limit-train=80 limit-test=24 batch=16 epochs=4 threads=1 device=ref widths=784-8-10 seed=0"

/* ---- SciPy's numbers --------------------------------------------------------------------------------------------- */

static cJSON *golden(void)
{
    char *text = read_text(ABAR_TEST_DATA "/golden", "welch.json");
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    free(text);
    return root;
}

static double at(const cJSON *array, int i) { return cJSON_GetNumberValue(cJSON_GetArrayItem(array, i)); }
static double member(const cJSON *object, const char *name) { return cJSON_GetNumberValue(cJSON_GetObjectItem(object, name)); }
static void assert_relative(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance * fabs(expected))) fail_msg("%.17g, not %.17g", value, expected);
}

static void quantiles_and_tails_are_scipys(void **state)
{
    (void)state;
    cJSON *root = golden(), *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "quantiles"))
        assert_relative(abar__student_quantile(at(row, 1), at(row, 0)), at(row, 2), 1e-11);
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "tails"))
        assert_relative(abar__student_above(at(row, 1), at(row, 0)), at(row, 2), 1e-12);
    assert_true(isnan(abar__student_quantile(0.0, 3.0)) && isnan(abar__student_quantile(0.1, 0.0)));
    cJSON_Delete(root);
}

static abar__sample sample_of(const cJSON *array)
{
    double value[64];
    const int n = cJSON_GetArraySize(array);
    for (int i = 0; i < n; i++) value[i] = at(array, i);
    const abar_compare_spread s = abar__spread(value, n);
    return (abar__sample){s.mean, s.std, n};
}

static void welch_of_two_samples_is_scipys(void **state)
{
    (void)state;
    cJSON *root = golden(), *row, *interval;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "cases"))
    {
        const abar__welch w =
            abar__welch_test(sample_of(cJSON_GetObjectItem(row, "a")), sample_of(cJSON_GetObjectItem(row, "b")));
        assert_near(w.difference, member(row, "difference"), 1e-12);
        assert_relative(w.df, member(row, "df"), 1e-9);
        assert_relative(w.p, member(row, "p"), 1e-9);
        cJSON_ArrayForEach(interval, cJSON_GetObjectItem(row, "intervals"))
        {
            const double margin = abar__welch_margin(&w, at(interval, 0));
            assert_near(w.difference - margin, at(interval, 1), 1e-9);
            assert_near(w.difference + margin, at(interval, 2), 1e-9);
        }
    }
    cJSON_Delete(root);
}

static void welch_without_spread_or_values_has_no_p(void **state)
{
    (void)state;
    const abar__sample one = {90.0, NAN, 1}, flat = {91.0, 0.0, 3}, two = {90.0, 0.5, 2};
    assert_true(isnan(abar__welch_test(one, two).p));
    assert_true(isnan(abar__welch_test(two, one).p));
    assert_true(isnan(abar__welch_test(flat, flat).p));
    assert_true(abar__welch_test(flat, two).p > 0.0);
    assert_int_equal(abar__seeds_needed(1.0, NAN, 0.5, 0.05), 0);
    assert_int_equal(abar__seeds_needed(0.0, 1.0, 1.0, 0.05), 0);
    assert_int_equal(abar__seeds_needed(1e-9, 1.0, 1.0, 0.05), 0);
}

static void holm_and_seeds_needed_are_by_definition(void **state)
{
    (void)state;
    cJSON *root = golden(), *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "holm"))
    {
        double p[8], adjusted[8], level[8];
        int order[8];
        const int n = cJSON_GetArraySize(cJSON_GetObjectItem(row, "p"));
        for (int i = 0; i < n; i++) p[i] = at(cJSON_GetObjectItem(row, "p"), i);
        abar__holm(p, n, 0.05, adjusted, level, order);
        for (int i = 0; i < n; i++) {
            assert_near(adjusted[i], at(cJSON_GetObjectItem(row, "adjusted"), i), 1e-15);
            assert_near(level[i], at(cJSON_GetObjectItem(row, "level"), i), 1e-15);
            assert_int_equal(adjusted[i] <= 0.05, p[i] <= level[i]); /* the interval agrees with the test */
        }
    }
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "seeds"))
        assert_int_equal(abar__seeds_needed(at(row, 0), at(row, 1), at(row, 2), at(row, 3)), (int64_t)at(row, 4));
    cJSON_Delete(root);
}

/* ---- comparisons written by hand --------------------------------------------------------------------------------- */

/* The report.json of run i with these accuracies after its epochs, 20 steps and 1.5 s each; losses are 2 - accuracy / 50. */
static void write_report(const abar_compare *c, int i, const double *accuracy, int epochs, const char *failure)
{
    char path[ABAR_RUN_PATH_MAX];
    assert_int_equal(abar__compare_run_dir(c, i, path), ABAR_OK);
    mkdir(path, 0777);
    strcat(path, "/report.json");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    const double last = accuracy[epochs - 1];
    fprintf(file,
            "{\"label\": \"x\", \"failure\": %s, \"epochs\": %d, \"test_acc\": %.17g, \"test_loss\": %.17g, \"train_acc\": 50, "
            "\"train_loss\": 1, \"seconds\": %g, \"ms_per_step\": 2, \"memory_bytes\": 1000, \"optimizer_bytes\": 7, "
            "\"skipped_steps\": 0, \"steps_per_epoch\": 20, \"history\": [",
            failure, epochs, last, 2.0 - last / 50.0, 1.5 * epochs);
    for (int e = 0; e < epochs; e++)
        fprintf(file,
                "%s{\"epoch\": %d, \"train_loss\": 1, \"train_acc\": 50, \"test_loss\": %.17g, \"test_acc\": %.17g, "
                "\"lr\": 0.1, \"seconds\": 1.5, \"skipped_steps\": 0}",
                e ? ", " : "", e + 1, 2.0 - accuracy[e] / 50.0, accuracy[e]);
    fputs("]}\n", file);
    fclose(file);
}

/* A comparison whose runs are still to be written by write_report. */
static abar_compare *begin(fixture *f, const char *folder, const char *optims, int64_t seeds)
{
    plan p;
    abar_compare *c;
    make_plan(f, &p, folder, optims, seeds, TINY);
    need(f, abar_compare_create(f->ctx, &p.config, NULL, &c));
    need(f, abar__folder_make(f->ctx, p.dir));
    need(f, abar__compare_save(c));
    drop_plan(f, &p);
    return c;
}

static abar_compare *reload(fixture *f, abar_compare *c)
{
    char dir[ABAR_RUN_PATH_MAX];
    snprintf(dir, sizeof dir, "%s", abar_compare_dir(c));
    abar_compare_destroy(c);
    need(f, abar_compare_load(f->ctx, dir, 0, NULL, &c));
    return c;
}

static void steps_to_a_target_are_those_of_the_logs(void **state)
{
    fixture *f = *state;
    abar_compare *c = begin(f, "target", "mac sgd", 3);        /* runs: mac0 sgd0 mac1 sgd1 mac2 sgd2 */
    write_report(c, 0, (double[]){50, 93, 92, 94}, 4, "null"); /* first reached counts, though it was lost again */
    write_report(c, 1, (double[]){50, 60, 92.99, 92}, 4, "null");
    write_report(c, 2, (double[]){50, 70, 80, 93.5}, 4, "null");
    write_report(c, 3, (double[]){50, 60, 70, 95}, 4, "null");
    write_report(c, 4, (double[]){94, 10}, 2, "\"training: broke\"");
    write_report(c, 5, (double[]){50, 60}, 2, "\"training: broke\"");
    c = reload(f, c);
    assert_int_equal(abar_compare_row_of(c, 0)->reached + abar_compare_row_of(c, 0)->never, 0); /* none is set */
    need(f, abar_compare_target(c, "acc=93"));
    abar_compare_row mac = *abar_compare_row_of(c, 0), sgd = *abar_compare_row_of(c, 1);
    assert_int_equal(mac.reached, 3);
    assert_int_equal(mac.never, 0);
    assert_near(mac.target_epochs.mean, 7.0 / 3.0, 1e-12); /* 2, 4 and 1 */
    assert_near(mac.target_steps.mean, 20.0 * 7.0 / 3.0, 1e-12);
    assert_near(mac.target_seconds.mean, 1.5 * 7.0 / 3.0, 1e-12);
    assert_near(mac.target_epochs.std, sqrt(7.0 / 3.0), 1e-12);
    assert_int_equal(sgd.reached, 1);
    assert_int_equal(sgd.never, 2);
    assert_near(sgd.target_steps.mean, 80.0, 1e-12);
    assert_true(isnan(sgd.target_steps.std));
    need(f, abar_compare_target(c, "loss=0.8")); /* accuracy 60 */
    assert_near(abar_compare_row_of(c, 1)->target_epochs.mean, 2.0, 1e-12);
    assert_int_equal(abar_compare_row_of(c, 1)->reached, 3);
    need(f, abar_compare_run_all(c));
    c = reload(f, c);
    assert_string_equal(abar_compare_target_of(c), "loss=0.8"); /* it is kept */
    char *md = read_text(abar_compare_dir(c), "compare.md"), *json = read_text(abar_compare_dir(c), "compare.json");
    assert_non_null(strstr(md, "| sgd | 2.0 \xc2\xb1 0.0 | 40 \xc2\xb1 0 | 3.0 \xc2\xb1 0.0 | 3 | 0 |"));
    assert_non_null(strstr(json, "\"reached\": 3, \"never\": 0, \"target_epochs\": 2,"));
    free(md);
    free(json);
    need(f, abar_compare_target(c, ""));
    assert_string_equal(abar_compare_target_of(c), "");
    abar_compare_destroy(c);
}

static void targets_that_are_none_are_refused(void **state)
{
    fixture *f = *state;
    static const char *const wrong[] = {"93",     "acc",     "acc=",     "acc=x", "acc=0",    "acc=0.93",  "acc=101",
                                        "acc=-3", "speed=3", "loss=nan", "=93",   "acc=93\"", "loss=1e999"};
    abar_compare *c = begin(f, "wrong", "sgd", 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(abar_compare_target(c, wrong[i]), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(f->ctx), "--target"));
    }
    assert_string_equal(abar_compare_target_of(c), "");
    abar_compare_destroy(c);
}

/* Accuracies of three seeds each: mac as sgd, adamw below both by more than any spread. */
static abar_compare *three_methods(fixture *f, const char *folder)
{
    static const double accuracy[3][3] = {{90.1, 90.5, 90.3}, {90.2, 90.6, 90.25}, {80.0, 80.4, 80.1}};
    abar_compare *c = begin(f, folder, "mac sgd adamw", 3);
    for (int i = 0; i < 9; i++) write_report(c, i, &accuracy[i % 3][i / 3], 1, "null");
    return reload(f, c);
}

static void equal_methods_are_not_told_apart_and_different_ones_are(void **state)
{
    fixture *f = *state;
    abar_compare *c = three_methods(f, "pairs");
    int n;
    const abar_compare_pair *pair = abar_compare_pairs(c, &n);
    assert_int_equal(n, 3); /* mac-sgd, mac-adamw, sgd-adamw */
    assert_false(pair[0].apart);
    assert_true(pair[0].low < 0.0 && pair[0].high > 0.0);
    assert_true(pair[0].seeds_needed > 10);
    assert_true(pair[1].apart && pair[2].apart);
    assert_true(pair[1].low > 9.0 && pair[1].high < 11.0);
    assert_near(pair[1].difference, 90.3 - 80.5 / 3.0 - 160.0 / 3.0, 1e-9);
    assert_near(pair[0].holm, pair[0].p, 1e-15); /* the greatest of three is multiplied by one */
    assert_true(pair[1].holm > pair[1].p && pair[2].holm > pair[2].p);
    need(f, abar_compare_run_all(c));
    char *md = read_text(abar_compare_dir(c), "compare.md"), *json = read_text(abar_compare_dir(c), "compare.json");
    assert_int_equal(count(md, "| not told apart |"), 1);
    assert_int_equal(count(md, "| told apart |"), 2);
    assert_int_equal(count(json, "\"told_apart\": true"), 2);
    free(md);
    free(json);
    abar_compare_destroy(c);
}

static void one_seed_or_no_spread_tells_nothing_apart(void **state)
{
    fixture *f = *state;
    int n;
    abar_compare *c = begin(f, "single", "mac sgd", 1);
    write_report(c, 0, (double[]){90}, 1, "null");
    write_report(c, 1, (double[]){20}, 1, "null");
    c = reload(f, c);
    const abar_compare_pair *pair = abar_compare_pairs(c, &n);
    assert_true(n == 1 && !pair->apart && isnan(pair->low) && isnan(pair->p));
    assert_near(pair->difference, 70.0, 1e-12);
    abar_compare_destroy(c);
    c = begin(f, "flat", "mac sgd", 2);
    for (int i = 0; i < 4; i++) write_report(c, i, (double[]){i % 2 ? 90.0 : 91.0}, 1, "null");
    c = reload(f, c);
    pair = abar_compare_pairs(c, &n);
    assert_true(!pair->apart && isnan(pair->low)); /* two equal values each do not show that the spread is 0 */
    abar_compare_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_and_tails_are_scipys),
        cmocka_unit_test(welch_of_two_samples_is_scipys),
        cmocka_unit_test(welch_without_spread_or_values_has_no_p),
        cmocka_unit_test(holm_and_seeds_needed_are_by_definition),
        cmocka_unit_test_setup_teardown(steps_to_a_target_are_those_of_the_logs, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(targets_that_are_none_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(equal_methods_are_not_told_apart_and_different_ones_are, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(one_seed_or_no_spread_tells_nothing_apart, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
