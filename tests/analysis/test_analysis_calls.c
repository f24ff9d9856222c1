/* abar_analysis_create and run from C: refusals, and data in the caller's memory. */
#include "abar/analyze.h"
#include "analysis_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 24, D = 12, CLASSES = 3 };

static abar_value build(void *user, abar_net *net, abar_value x, int64_t classes)
{
    (void)user;
    return abar_linear(net, abar_flatten(net, x), "fc", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

/* A linear network on numbers in memory: bytes, or the same as floats. */
typedef struct problem {
    abar_setup *setup;
    abar_dataset *data;
    uint8_t bytes[N * D];
    float floats[N * D];
    int32_t labels[N];
    char dir[64];
    void *options;
} problem;

static void open_problem(abar_context *ctx, problem *p, bool floats)
{
    for (int i = 0; i < N * D; i++) {
        p->bytes[i] = (uint8_t)(37 * i % 256);
        p->floats[i] = (float)p->bytes[i] / 255.0f;
    }
    for (int i = 0; i < N; i++) p->labels[i] = i % CLASSES;
    const void *images = floats ? (const void *)p->floats : (const void *)p->bytes;
    const abar_dataset_images from = {.size = sizeof from,
                                      .channels = 1,
                                      .height = 3,
                                      .width = 4,
                                      .classes = CLASSES,
                                      .train = N,
                                      .test = N,
                                      .train_images = images,
                                      .test_images = images,
                                      .train_labels = p->labels,
                                      .test_labels = p->labels,
                                      .floats = floats};
    assert_fine(ctx, abar_dataset_wrap(ctx, &from, &p->data));
    assert_fine(ctx, abar_setup_create(ctx, "own", "memory", "sgd", &p->setup));
    assert_fine(ctx, abar_setup_set(ctx, p->setup, "batch", "8"));
    assert_fine(ctx, abar_setup_set_network(ctx, p->setup, build, NULL));
    assert_fine(ctx, abar_setup_set_data(ctx, p->setup, p->data));
    snprintf(p->dir, sizeof p->dir, "/tmp/abar-analyze-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    p->options = calloc(1, abar_analysis_config_size("covariance"));
    assert_non_null(p->options);
    const abar_option *table = abar_analysis_options("covariance");
    abar_options_default(table, p->options);
    assert_fine(ctx, abar_options_set(ctx, table, p->options, "out", p->dir));
    assert_fine(ctx, abar_options_set(ctx, table, p->options, "batch", "8"));
}

static void close_problem(abar_context *ctx, problem *p)
{
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", p->dir);
    assert_int_equal(system(command), 0);
    free(p->options);
    abar_setup_destroy(ctx, p->setup);
    abar_dataset_close(p->data);
}

static const char *const initial[] = {""};

/* The table of a covariance analysis of the initial weights. */
static char *run_covariance(abar_context *ctx, problem *p)
{
    abar_analysis *a;
    char path[128], *text = calloc(1, 65536);
    assert_non_null(text);
    assert_fine(ctx, abar_analysis_create(ctx, "covariance", p->setup, initial, 1, p->options, NULL, &a));
    assert_fine(ctx, abar_analysis_run(a));
    abar_analysis_destroy(a);
    snprintf(path, sizeof path, "%s/covariance.csv", p->dir);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, 65535, file) > 0);
    fclose(file);
    return text;
}

static void analysis_of_floats_in_memory_equals_that_of_bytes(void **state)
{
    problem bytes = {0}, floats = {0};
    open_problem(*state, &bytes, false);
    open_problem(*state, &floats, true);
    char *a = run_covariance(*state, &bytes), *b = run_covariance(*state, &floats);
    assert_string_equal(a, b);
    free(a);
    free(b);
    close_problem(*state, &bytes);
    close_problem(*state, &floats);
}

static void analysis_without_options_or_with_bad_ones_is_refused(void **state)
{
    problem p = {0};
    abar_analysis *a;
    open_problem(*state, &p, false);
    assert_int_equal(abar_analysis_create(*state, "covariance", p.setup, initial, 1, NULL, NULL, &a), ABAR_E_ARGUMENT);
    memset((char *)p.options + abar_options_find(abar_analysis_options("covariance"), "batch")->offset, 0, sizeof(int64_t));
    assert_int_equal(abar_analysis_create(*state, "covariance", p.setup, initial, 1, p.options, NULL, &a), ABAR_E_ARGUMENT);
    assert_int_equal(abar_analysis_create(*state, "covarianze", p.setup, initial, 1, p.options, NULL, &a), ABAR_E_NOT_FOUND);
    assert_null(abar_analysis_options("covarianze"));
    assert_int_equal(abar_analysis_config_size("covarianze"), 0);
    close_problem(*state, &p);
}

static void analysis_without_the_data_of_its_setup_is_refused(void **state)
{
    problem p = {0};
    abar_setup *setup;
    abar_analysis *a;
    open_problem(*state, &p, false);
    assert_fine(*state, abar_setup_create(*state, "own", "memory", "sgd", &setup));
    assert_true(abar_analysis_create(*state, "covariance", setup, initial, 1, p.options, NULL, &a) < 0);
    abar_setup_destroy(*state, setup);
    close_problem(*state, &p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(analysis_of_floats_in_memory_equals_that_of_bytes, open_context, close_context),
        cmocka_unit_test_setup_teardown(analysis_without_options_or_with_bad_ones_is_refused, open_context, close_context),
        cmocka_unit_test_setup_teardown(analysis_without_the_data_of_its_setup_is_refused, open_context, close_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
