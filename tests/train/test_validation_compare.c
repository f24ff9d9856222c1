/* A comparison with a validation part: all methods and seeds have the same one, its files name it, and a comparison that was
 * stopped reads them back. */
#include "compare_support.h"

#include <math.h>

#define SETTINGS "limit-train=100 batch=16 epochs=2 threads=1 validation=0.2"

/* The data of a run's checkpoint: counts and checksums of the two parts. */
static void digest_of(fixture *f, const char *run, char text[256])
{
    char path[PATH_MAX_TEST];
    abar__safetensors *file;
    snprintf(path, sizeof path, "%s/%s/state.safetensors", f->dir, run);
    need(f, abar__safetensors_open(f->ctx, path, &file));
    snprintf(text, 256, "%s", abar__safetensors_metadata(file, "data"));
    abar__safetensors_close(file);
}

static void check_names(const char *dir)
{
    static const char *const files[] = {"compare.csv", "compare.json", "compare.md", "compare.svg", "sgd-s0/report.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *text = read_text(dir, files[i]);
        assert_true(count(text, "alidation") > 0);
        assert_int_equal(count(text, "test_acc") + count(text, "test_loss") + count(text, "est accuracy"), 0);
        free(text);
    }
    char *csv = read_text(dir, "compare.csv");
    assert_ptr_equal(strstr(csv, "optim,seed,epoch,train_loss,train_acc,validation_loss,validation_acc,lr,"), csv);
    assert_int_equal(count(csv, "\n"), 1 + 2 * 2 * 2);
    free(csv);
}

/* Synthetic data depend on the seed, so only the runs of one seed have the same samples; all have the same places of them. */
static void comparison_has_one_validation_part(void **state)
{
    fixture *f = *state;
    plan p, q;
    watcher w = {0}, stopped = {.stop_at = 9}, rest = {0};
    char a[256], b[256];
    make_plan(f, &p, "all", "sgd mac", 2, SETTINGS " seed=0");
    assert_int_equal(run_new(f, &p, &w), ABAR_OK);
    check_names(p.dir);
    for (int seed = 0; seed < 2; seed++) {
        char one[32], other[32];
        snprintf(one, sizeof one, "all/sgd-s%d", seed);
        snprintf(other, sizeof other, "all/mac-s%d", seed);
        digest_of(f, one, a);
        digest_of(f, other, b);
        assert_string_equal(a, b);
        assert_non_null(strstr(a, "\"train\": 80,"));
        assert_non_null(strstr(a, "\"test\": 20,"));
    }
    abar_compare_destroy(w.compare);

    make_plan(f, &q, "parts", "sgd mac", 2, SETTINGS " seed=0");
    assert_int_equal(run_new(f, &q, &stopped), ABAR_STOPPED);
    abar_compare_destroy(stopped.compare);
    assert_int_equal(run_on(f, q.dir, 0, &rest), ABAR_OK);
    assert_same_comparison(p.dir, q.dir);
    const abar_compare_row *row = abar_compare_row_of(rest.compare, 0);
    assert_true(row->runs == 2 && row->test_accuracy.mean >= 0.0);
    abar_compare_destroy(rest.compare);
    drop_plan(f, &p);
    drop_plan(f, &q);
}

static void comparison_of_two_validation_parts_is_refused(void **state)
{
    fixture *f = *state;
    static const char *const changes[][2] = {{"validation", "0.3"}, {"validation-seed", "1"}};
    for (int i = 0; i < 2; i++) {
        plan p;
        abar_compare *compare;
        char text[64];
        make_plan(f, &p, "two", "sgd adamw", 1, SETTINGS);
        set(f, p.setup[1], changes[i][0], changes[i][1]);
        assert_int_equal(abar_compare_create(f->ctx, &p.config, NULL, &compare), ABAR_E_ARGUMENT);
        snprintf(text, sizeof text, "--%s: ", changes[i][0]);
        assert_error(f, text);
        assert_error(f, "must be the same for all that are compared");
        drop_plan(f, &p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(comparison_has_one_validation_part, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(comparison_of_two_validation_parts_is_refused, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
