/* A program's own network and data in the trainer: they train as the same things under a name do, bit for bit, and what a
 * resumed run must be given again. */
#include "train_runs.h"

#include "abar/compare.h"
#include "data/data_impl.h"

#include <math.h>

#define SETTINGS "limit-train=80 limit-test=24 batch=16 epochs=3 threads=1 lr=0.05 weight-decay=5e-4 tcov=2 tinv=4 "
enum { TRAIN = 80, TEST = 24, PIXELS = 28 * 28 };

/* ---- what a program has ----------------------------------------------------------------------------------------- */

/* LeNet-5 through the program's own function. */
static abar_value build_lenet(void *user, abar_net *net, abar_value x, int64_t classes)
{
    const abar_model *model = abar_model_find("lenet5");
    void *config = calloc(1, model->config_size);
    ++*(int *)user;
    abar_options_default(model->options, config);
    x = model->build(model, net, x, classes, config);
    free(config);
    return x;
}

/* As wide as user says. */
static abar_value build_wide(void *user, abar_net *net, abar_value x, int64_t classes)
{
    const int64_t width = *(const int64_t *)user;
    x = abar_linear(net, abar_flatten(net, x), "first", &ABAR_CONFIG(abar_linear_config, .out = width, .bias = true));
    return abar_linear(net, abar_relu(net, x), "last", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

static abar_value build_eleven(void *user, abar_net *net, abar_value x, int64_t classes)
{
    (void)user;
    return abar_linear(net, abar_flatten(net, x), "fc", &ABAR_CONFIG(abar_linear_config, .out = classes + 1));
}

static abar_value build_wrong(void *user, abar_net *net, abar_value x, int64_t classes)
{
    (void)user;
    return abar_linear(net, x, "fc", &ABAR_CONFIG(abar_linear_config, .out = classes)); /* of an image */
}

/* The samples of synthetic, as a program would hold them. */
typedef struct held {
    uint8_t *bytes[2];
    float *floats[2];
    int32_t *labels[2];
    abar_dataset_images images; /* of the bytes */
} held;

static void hold(fixture *f, held *h)
{
    abar_dataset *data;
    need(f, abar_dataset_open(f->ctx, "synthetic", &ABAR_CONFIG(abar_dataset_config, .limit_train = TRAIN, .limit_test = TEST),
                              &data));
    const abar_dataset_info *info = abar_dataset_info_of(data);
    for (int test = 0; test < 2; test++) {
        const int n = test ? TEST : TRAIN;
        double table[256];
        h->bytes[test] = malloc((size_t)n * PIXELS);
        h->floats[test] = malloc((size_t)n * PIXELS * sizeof(float));
        h->labels[test] = malloc((size_t)n * sizeof(int32_t));
        abar__normalise_table(info, 0, table);
        for (int i = 0; i < n; i++) {
            memcpy(h->bytes[test] + i * PIXELS, abar_dataset_image(data, test, i), PIXELS);
            h->labels[test][i] = abar_dataset_label(data, test, i);
            for (int p = 0; p < PIXELS; p++) h->floats[test][i * PIXELS + p] = (float)table[h->bytes[test][i * PIXELS + p]];
        }
    }
    h->images = ABAR_CONFIG(abar_dataset_images, .channels = 1, .height = 28, .width = 28, .classes = 10, .train = TRAIN,
                            .test = TEST, .train_images = h->bytes[0], .test_images = h->bytes[1], .train_labels = h->labels[0],
                            .test_labels = h->labels[1]);
    memcpy(h->images.mean, info->mean, sizeof info->mean);
    memcpy(h->images.std, info->std, sizeof info->std);
    abar_dataset_close(data);
}

static void drop(held *h)
{
    for (int test = 0; test < 2; test++) {
        free(h->bytes[test]);
        free(h->floats[test]);
        free(h->labels[test]);
    }
}

static abar_setup *own_setup(fixture *f, const char *model, const char *data, const char *options, const char *device)
{
    abar_setup *setup;
    char text[512], *rest = text;
    need(f, abar_setup_create(f->ctx, model, data, "mac", &setup));
    snprintf(text, sizeof text, "%s", options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        set(f, setup, word, value + 1);
    }
    set(f, setup, "device", device);
    return setup;
}

static const char *const devices[] = {"ref", "cpu", "cuda"};

static int device_count(void) { return abar_device_count("cuda") > 0 ? 3 : 2; }

/* ---- the same as under a name ------------------------------------------------------------------------------------ */

static void own_network_trains_as_the_model_it_is(void **state)
{
    fixture *f = *state;
    for (int d = 0; d < device_count(); d++) {
        char named[32], own[32];
        int built = 0;
        snprintf(named, sizeof named, "named-%s", devices[d]);
        snprintf(own, sizeof own, "own-%s", devices[d]);
        abar_setup *a = own_setup(f, "lenet5", "synthetic", SETTINGS, devices[d]);
        abar_setup *b = own_setup(f, "own", "synthetic", SETTINGS, devices[d]);
        need(f, abar_setup_set_network(f->ctx, b, build_lenet, &built));
        set_out(f, a, named);
        set_out(f, b, own);
        assert_int_equal(run_until(f, a, false, 0), ABAR_OK);
        assert_int_equal(run_until(f, b, false, 0), ABAR_OK);
        assert_int_equal(built, 1);
        assert_same_runs(f, named, own);
        abar_setup_destroy(f->ctx, a);
        abar_setup_destroy(f->ctx, b);
    }
}

static void check_data(fixture *f, const char *device, const abar_dataset_images *images, const char *reference,
                       const char *name, const char *augment)
{
    abar_dataset *data;
    char options[256];
    snprintf(options, sizeof options, SETTINGS "augment=%s", augment);
    abar_setup *setup = own_setup(f, "lenet5", "memory", options, device);
    need(f, abar_dataset_wrap(f->ctx, images, &data));
    need(f, abar_setup_set_data(f->ctx, setup, data));
    set_out(f, setup, name);
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    assert_same_runs(f, reference, name);
    abar_setup_destroy(f->ctx, setup);
    abar_dataset_close(data);
}

static void own_data_train_as_the_set_they_are(void **state)
{
    fixture *f = *state;
    held h;
    hold(f, &h);
    for (int d = 0; d < device_count(); d++)
        for (int augment = 0; augment < 2; augment++) {
            const char *said = augment ? "true" : "false";
            char options[256], reference[32], name[48];
            snprintf(options, sizeof options, SETTINGS "augment=%s", said);
            snprintf(reference, sizeof reference, "set-%s-%d", devices[d], augment);
            abar_setup *setup = own_setup(f, "lenet5", "synthetic", options, devices[d]);
            set_out(f, setup, reference);
            assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
            abar_setup_destroy(f->ctx, setup);
            snprintf(name, sizeof name, "%s-bytes", reference);
            check_data(f, devices[d], &h.images, reference, name, said);
            /* floats have zeros where a crop hangs over the image, bytes what 0 is normalised to; ref normalises in double */
            if (augment || d == 0) continue;
            abar_dataset_images floats = h.images;
            floats.floats = true;
            floats.train_images = h.floats[0];
            floats.test_images = h.floats[1];
            snprintf(name, sizeof name, "%s-floats", reference);
            check_data(f, devices[d], &floats, reference, name, said);
        }
    drop(&h);
}

/* With values that are whole numbers, floats are cropped and mirrored as bytes are. */
static void own_floats_are_augmented_as_bytes_are(void **state)
{
    fixture *f = *state;
    held h;
    hold(f, &h);
    for (int test = 0; test < 2; test++)
        for (int i = 0; i < (test ? TEST : TRAIN) * PIXELS; i++) h.floats[test][i] = h.bytes[test][i];
    abar_dataset_images floats = h.images;
    floats.floats = true;
    floats.train_images = h.floats[0];
    floats.test_images = h.floats[1];
    abar_dataset *a, *b;
    abar_loader *x, *y;
    need(f, abar_dataset_wrap(f->ctx, &h.images, &a));
    need(f, abar_dataset_wrap(f->ctx, &floats, &b));
    assert_null(abar_dataset_image(b, false, 0));
    assert_null(abar_dataset_image_floats(a, false, 0));
    assert_true(abar_dataset_image_floats(b, true, TEST - 1) == h.floats[1] + (TEST - 1) * PIXELS);
    assert_null(abar_dataset_image_floats(b, true, TEST));
    const abar_loader_config config = {.size = sizeof config, .batch = 16, .seed = 3, .crop_pad = 5, .flip = true};
    need(f, abar_loader_create(f->ctx, a, &config, &x));
    need(f, abar_loader_create(f->ctx, b, &config, &y));
    for (int k = 0; k < 10; k++) {
        abar_batch p = {.size = sizeof p}, q = {.size = sizeof q};
        need(f, abar_loader_next(x, &p));
        need(f, abar_loader_next(y, &q));
        assert_null(q.images);
        assert_null(p.floats);
        assert_memory_equal(p.labels, q.labels, 16 * sizeof *p.labels);
        for (int i = 0; i < 16 * PIXELS; i++) assert_true(q.floats[i] == (float)p.images[i]);
    }
    abar_loader_destroy(x);
    abar_loader_destroy(y);
    abar_dataset_close(a);
    abar_dataset_close(b);
    drop(&h);
}

/* ---- resuming ---------------------------------------------------------------------------------------------------- */

static abar_status resume_own(fixture *f, const char *name, int64_t *width, const abar_dataset *data, int64_t stop_at)
{
    char dir[PATH_MAX_TEST];
    abar_setup *setup;
    abar_trainer *t;
    path_in(f, name, dir);
    need(f, abar_setup_load(f->ctx, dir, &setup));
    if (width) need(f, abar_setup_set_network(f->ctx, setup, build_wide, width));
    if (data) need(f, abar_setup_set_data(f->ctx, setup, data));
    watcher w = {.stop_at = stop_at};
    abar_trainer_events events = {sizeof events, watch, &w};
    abar_status status = abar_trainer_create(f->ctx, setup, true, &events, &t);
    w.trainer = t;
    if (status == ABAR_OK) status = abar_trainer_run(t);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
    return status;
}

static void own_run_resumes_bit_for_bit_with_what_it_is_given_again(void **state)
{
    fixture *f = *state;
    held h;
    abar_dataset *data;
    int64_t width = 12, other = 13;
    hold(f, &h);
    need(f, abar_dataset_wrap(f->ctx, &h.images, &data));
    abar_setup *setup = own_setup(f, "own", "memory", SETTINGS, "cpu");
    need(f, abar_setup_set_network(f->ctx, setup, build_wide, &width));
    need(f, abar_setup_set_data(f->ctx, setup, data));
    set_out(f, setup, "whole");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    set_out(f, setup, "parts");
    assert_int_equal(run_until(f, setup, false, 7), ABAR_STOPPED);
    abar_setup_destroy(f->ctx, setup);

    assert_int_equal(resume_own(f, "parts", NULL, data, 0), ABAR_E_STATE);
    assert_error(f, "abar_setup_set_network");
    assert_int_equal(resume_own(f, "parts", &width, NULL, 0), ABAR_E_STATE);
    assert_error(f, "abar_setup_set_data");
    assert_true(resume_own(f, "parts", &other, data, 0) < 0);
    assert_error(f, "first.weight");
    assert_int_equal(resume_own(f, "parts", &width, data, 3), ABAR_STOPPED);
    assert_int_equal(resume_own(f, "parts", &width, data, 0), ABAR_OK);
    assert_same_runs(f, "whole", "parts");
    abar_dataset_close(data);
    drop(&h);
}

/* ---- everything else that takes a setup -------------------------------------------------------------------------- */

static void own_setup_serves_evaluation_plans_and_reports(void **state)
{
    fixture *f = *state;
    held h;
    abar_dataset *data;
    abar_trainer *t;
    const char *report;
    int64_t width = 12;
    char path[PATH_MAX_TEST];
    hold(f, &h);
    need(f, abar_dataset_wrap(f->ctx, &h.images, &data));
    abar_setup *setup = own_setup(f, "own", "memory", SETTINGS, "cpu");
    need(f, abar_setup_set_network(f->ctx, setup, build_wide, &width));
    need(f, abar_setup_set_data(f->ctx, setup, data));
    set_out(f, setup, "run");
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_run(t));
    assert_int_equal(abar_tensor_count(&abar_net_param(abar_trainer_net(t), 0)->value), width * PIXELS);
    need(f, abar_trainer_report(t, &report));
    const char *said = strstr(report, "\"test_acc\": ");
    assert_non_null(said);
    const double accuracy = strtod(said + 12, NULL);
    assert_non_null(strstr(report, "\"model\": \"own\""));
    abar_trainer_destroy(t);

    abar_evaluation e = {.size = sizeof e};
    path_in(f, "run/model.safetensors", path);
    need(f, abar_evaluate(f->ctx, setup, path, &e));
    assert_true(fabs(e.accuracy - accuracy) < 1e-9);
    assert_int_equal(e.samples, TEST);
    abar_memory_plan plan = {.size = sizeof plan};
    need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
    assert_int_equal(plan.data, 0); /* it is the program's */
    assert_in_range(plan.parameters, (size_t)(width * (PIXELS + 1 + 10) + 10) * sizeof(float), 1 << 20);
    abar_bench_result b = {.size = sizeof b};
    need(f, abar_bench_run(f->ctx, setup, &ABAR_CONFIG(abar_bench_config, .steps = 2), &b, NULL));
    abar_setup_destroy(f->ctx, setup);
    abar_dataset_close(data);
    drop(&h);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void own_network_that_does_not_fit_is_refused(void **state)
{
    fixture *f = *state;
    abar_trainer *t;
    abar_setup *setup = own_setup(f, "own", "synthetic", SETTINGS, "cpu");
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_STATE);
    assert_error(f, "abar_setup_set_network");
    assert_int_equal(abar_setup_set_network(f->ctx, setup, NULL, NULL), ABAR_E_ARGUMENT);
    need(f, abar_setup_set_network(f->ctx, setup, build_eleven, NULL));
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "10 logits");
    need(f, abar_setup_set_network(f->ctx, setup, build_wrong, NULL));
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "flatten it first");
    abar_setup_destroy(f->ctx, setup);
    setup = own_setup(f, "lenet5", "synthetic", SETTINGS, "cpu");
    assert_int_equal(abar_setup_set_network(f->ctx, setup, build_wrong, NULL), ABAR_E_ARGUMENT);
    assert_error(f, "lenet5");
    abar_setup_destroy(f->ctx, setup);
    assert_null(abar_model_find("own")); /* it is none of the command's */
}

static void refuse(fixture *f, const abar_dataset_images *images, const char *part)
{
    abar_dataset *data;
    assert_int_equal(abar_dataset_wrap(f->ctx, images, &data), ABAR_E_ARGUMENT);
    assert_null(data);
    assert_error(f, part);
}

static void own_data_that_do_not_fit_are_refused(void **state)
{
    fixture *f = *state;
    held h;
    hold(f, &h);
    abar_dataset *data;
#define REFUSED(change, part)                  \
    do {                                       \
        abar_dataset_images images = h.images; \
        change;                                \
        refuse(f, &images, part);              \
    } while (0)
    h.floats[1][TEST * PIXELS - 1] = (float)INFINITY;
    REFUSED(images.train_images = NULL, "train_images");
    REFUSED(images.test_labels = NULL, "test_labels");
    REFUSED(images.channels = 0, "0 x 28 x 28");
    REFUSED(images.height = images.width = INT64_MAX, "check the shape");
    REFUSED(images.classes = 0, "0 classes");
    REFUSED(images.classes = 3, "labels go from 0 to 2");
    REFUSED(images.test = 0, "0 test samples");
    REFUSED(images.train = -1, "-1 training");
    REFUSED(images.std[1] = 0.0, "std 0");
    REFUSED(images.mean[2] = (double)NAN, "mean nan");
    REFUSED(images.floats = true; images.train_images = h.floats[0];
            images.test_images = h.floats[1], "test images is not finite");
#undef REFUSED
    abar_setup *setup = own_setup(f, "lenet5", "memory", SETTINGS, "cpu");
    abar_trainer *t;
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_STATE);
    assert_error(f, "abar_setup_set_data");
    assert_int_equal(abar_setup_set_data(f->ctx, setup, NULL), ABAR_E_ARGUMENT);
    need(f, abar_dataset_open(f->ctx, "synthetic", NULL, &data));
    assert_int_equal(abar_setup_set_data(f->ctx, setup, data), ABAR_E_ARGUMENT);
    abar_dataset_close(data);
    abar_setup_destroy(f->ctx, setup);
    setup = own_setup(f, "lenet5", "synthetic", SETTINGS, "cpu");
    need(f, abar_dataset_wrap(f->ctx, &h.images, &data));
    assert_int_equal(abar_setup_set_data(f->ctx, setup, data), ABAR_E_ARGUMENT);
    assert_error(f, "synthetic");
    abar_dataset_close(data);
    abar_setup_destroy(f->ctx, setup);
    drop(&h);
}

/* ---- comparisons ------------------------------------------------------------------------------------------------- */

/* Loaded with its builder and its data, it goes on as it would have; without them its results can be read. */
static void own_comparison_is_loaded_and_continued(void **state)
{
    fixture *f = *state;
    held h;
    int built = 0;
    char dir[PATH_MAX_TEST];
    abar_dataset *data;
    abar_compare *c;
    hold(f, &h);
    need(f, abar_dataset_wrap(f->ctx, &h.images, &data));
    abar_setup *setup = own_setup(f, "own", "memory", SETTINGS, "cpu");
    const abar_setup *setups[] = {setup};
    path_in(f, "own-comparison", dir);
    const abar_compare_config config = {.size = sizeof config, .out = dir, .setups = setups, .methods = 1, .seeds = 1};
    need(f, abar_compare_create(f->ctx, &config, NULL, &c)); /* they may come later */
    assert_int_equal(abar_compare_run_all(c), ABAR_E_STATE);
    assert_error(f, "abar_compare_set_network");
    need(f, abar_compare_set_network(c, build_lenet, &built));
    assert_int_equal(abar_compare_run_all(c), ABAR_E_STATE);
    assert_error(f, "abar_compare_set_data");
    need(f, abar_compare_set_data(c, data));
    assert_int_equal(abar_compare_run_all(c), ABAR_OK);
    abar_compare_destroy(c);

    need(f, abar_compare_load(f->ctx, dir, 0, NULL, &c));
    assert_int_equal(abar_compare_run_count(c), 1);
    const double accuracy = abar_compare_run_of(c, 0)->test_accuracy;
    assert_true(abar_compare_run_of(c, 0)->ended && accuracy > 0.0);
    assert_int_equal(abar_compare_run_all(c), ABAR_OK); /* there is nothing left to run */
    abar_compare_destroy(c);

    need(f, abar_compare_load(f->ctx, dir, 2, NULL, &c));
    assert_int_equal(abar_compare_run_all(c), ABAR_E_STATE);
    need(f, abar_compare_set_network(c, build_lenet, &built));
    need(f, abar_compare_set_data(c, data));
    assert_int_equal(abar_compare_run_all(c), ABAR_OK);
    assert_true(abar_compare_run_of(c, 0)->test_accuracy == accuracy && abar_compare_run_of(c, 1)->ended);
    abar_compare_destroy(c);
    abar_setup_destroy(f->ctx, setup);
    abar_dataset_close(data);
    drop(&h);
}

int main(void)
{
#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)
    const struct CMUnitTest tests[] = {
        with_fixture(own_network_trains_as_the_model_it_is),
        with_fixture(own_data_train_as_the_set_they_are),
        with_fixture(own_floats_are_augmented_as_bytes_are),
        with_fixture(own_run_resumes_bit_for_bit_with_what_it_is_given_again),
        with_fixture(own_setup_serves_evaluation_plans_and_reports),
        with_fixture(own_network_that_does_not_fit_is_refused),
        with_fixture(own_data_that_do_not_fit_are_refused),
        with_fixture(own_comparison_is_loaded_and_continued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
