/* Training with a validation part: what is held out, and the test set, never influence the weights; the split is the same for
 * every seed, device and number of threads, and after a resume; reports name and count it. */
#include "text_support.h"

#include "data/data_impl.h"

#include <math.h>

enum { TRAIN = 100, TEST = 16, SIDE = 6, PIXELS = SIDE * SIDE, CLASSES = 4, HELD = 20 };
#define POISON 1e4f
#define FRACTION "0.2"

static const char *const devices[] = {"ref", "cpu", "cuda"};

static int device_count(void) { return abar_device_count("cuda") > 0 ? 3 : 2; }

/* ---- images in memory -------------------------------------------------------------------------------------------- */

typedef struct images {
    float train[TRAIN][PIXELS], test[TEST][PIXELS];
    int32_t train_labels[TRAIN], test_labels[TEST];
    abar_dataset *data;
} images;

static images *images_make(void)
{
    images *m = calloc(1, sizeof *m);
    assert_non_null(m);
    for (int i = 0; i < TRAIN + TEST; i++) {
        float *image = i < TRAIN ? m->train[i] : m->test[i - TRAIN];
        const int label = i % CLASSES;
        for (int p = 0; p < PIXELS; p++) image[p] = sinf((float)(i * 31 + p * 7)) + (p % CLASSES == label ? 1.0f : 0.0f);
        *(i < TRAIN ? &m->train_labels[i] : &m->test_labels[i - TRAIN]) = label;
    }
    return m;
}

static void images_wrap(fixture *f, images *m)
{
    need(f,
         abar_dataset_wrap(f->ctx,
                           &ABAR_CONFIG(abar_dataset_images, .channels = 1, .height = SIDE, .width = SIDE, .classes = CLASSES,
                                        .train = TRAIN, .test = TEST, .train_images = m->train, .test_images = m->test,
                                        .train_labels = m->train_labels, .test_labels = m->test_labels, .floats = true),
                           &m->data));
}

static void images_drop(images *m)
{
    abar_dataset_close(m->data);
    free(m);
}

/* Writes numbers into the test images and into those that are held out, which no training survives unchanged. */
static void poison(fixture *f, images *m, double fraction, uint64_t seed)
{
    images *copy = images_make();
    int poisoned = 0;
    for (int i = 0; i < TRAIN; i++) copy->train[i][0] = (float)i; /* to recognise them */
    images_wrap(f, copy);
    abar_dataset *split;
    need(f, abar__dataset_view(f->ctx, copy->data, 0, 0, &split));
    need(f, abar__dataset_hold_out(split, fraction, seed));
    for (int64_t i = 0; i < split->part[1].count; i++, poisoned++) {
        const int index = (int)abar_dataset_image_floats(split, true, i)[0];
        for (int p = 0; p < PIXELS; p++) m->train[index][p] = POISON;
    }
    for (int i = 0; i < TEST; i++)
        for (int p = 0; p < PIXELS; p++) m->test[i][p] = POISON;
    assert_int_equal(poisoned, HELD);
    abar_dataset_close(split);
    images_drop(copy);
}

/* A convolution whose factor is calibrated on the data set, batch norm, a linear layer. */
static abar_value build_net(void *user, abar_net *net, abar_value x, int64_t classes)
{
    (void)user;
    x = abar_conv2d(net, x, "conv", &ABAR_CONFIG(abar_conv2d_config, .out = 4, .kernel = 3, .pad = 1));
    x = abar_flatten(net, abar_relu(net, abar_batch_norm(net, x, "bn")));
    return abar_linear(net, x, "fc", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

static abar_setup *own_setup(fixture *f, const images *m, const char *device, const char *out)
{
    static const char *const options[][2] = {{"batch", "8"},
                                             {"epochs", "3"},
                                             {"lr", "0.05"},
                                             {"tcov", "1"},
                                             {"tinv", "2"},
                                             {"threads", "1"},
                                             {"deterministic", "true"},
                                             {"first-layer", "dataset-mean"}};
    abar_setup *setup;
    need(f, abar_setup_create(f->ctx, "own", "memory", "mac", &setup));
    need(f, abar_setup_set_network(f->ctx, setup, build_net, NULL));
    need(f, abar_setup_set_data(f->ctx, setup, m->data));
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) set(f, setup, options[i][0], options[i][1]);
    set(f, setup, "device", device);
    set(f, setup, "seed", test_seed());
    if (out) set_out(f, setup, out);
    return setup;
}

static double last_test_loss(fixture *f, const char *run)
{
    abar__run_state at;
    abar__epoch *history = history_of(f, run, &at);
    const double loss = history[at.epoch - 1].test_loss;
    abar__free(f->ctx, history, (size_t)at.epoch * sizeof *history);
    return loss;
}

static void train_to(fixture *f, const images *m, const char *device, const char *run, const char *validation,
                     const char *workers)
{
    abar_setup *setup = own_setup(f, m, device, run);
    set(f, setup, "validation", validation);
    set(f, setup, "workers", workers);
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    abar_setup_destroy(f->ctx, setup);
}

/* Convolution, batch norm's running statistics, calibration, curvature: none of them sees a poisoned sample. */
static void validation_never_trains_on_what_is_held_out(void **state)
{
    fixture *f = *state;
    images *clean = images_make(), *bad = images_make();
    poison(f, bad, strtod(FRACTION, NULL), 0);
    images_wrap(f, clean);
    images_wrap(f, bad);
    for (int d = 0; d < device_count(); d++) {
        char a[32], b[32], c[32];
        snprintf(a, sizeof a, "clean-%s", devices[d]);
        snprintf(b, sizeof b, "bad-%s", devices[d]);
        snprintf(c, sizeof c, "all-%s", devices[d]);
        train_to(f, clean, devices[d], a, FRACTION, "0");
        train_to(f, bad, devices[d], b, FRACTION, "2");
        assert_same_tensors(f, a, b, "state.safetensors");
        assert_same_tensors(f, a, b, "model.safetensors");
        assert_true(fabs(last_test_loss(f, a) - last_test_loss(f, b)) > 0.1); /* but it is measured on it */
        train_to(f, bad, devices[d], c, "0", "0");
        assert_true(fabs(last_test_loss(f, c) - last_test_loss(f, b)) > 0.1); /* and the poison is one */
    }
    images_drop(clean);
    images_drop(bad);
}

/* ---- the same split everywhere ------------------------------------------------------------------------------------ */

/* The counts and checksums of the two parts, in a checkpoint. */
static void digest_of(fixture *f, const char *run, char text[256])
{
    abar__safetensors *file = open_in(f, run, "state.safetensors");
    snprintf(text, 256, "%s", abar__safetensors_metadata(file, "data"));
    abar__safetensors_close(file);
}

static void validation_split_is_that_of_its_seed_alone(void **state)
{
    fixture *f = *state;
    static const char *const changes[][2] = {{"seed", "7"}, {"workers", "3"}, {"threads", "2"}, {"batch", "16"}};
    images *m = images_make();
    char first[256], other[256], run[32];
    images_wrap(f, m);
    train_to(f, m, "cpu", "first", FRACTION, "0");
    digest_of(f, "first", first);
    assert_non_null(strstr(first, "\"train\": 80,"));
    assert_non_null(strstr(first, "\"test\": 20,"));
    for (size_t i = 0; i < sizeof changes / sizeof *changes + (size_t)device_count() + 1; i++) {
        const size_t n = sizeof changes / sizeof *changes;
        const bool seeded = i == n + (size_t)device_count();
        snprintf(run, sizeof run, "other-%zu", i);
        abar_setup *setup = own_setup(f, m, i >= n && !seeded ? devices[i - n] : "cpu", run);
        set(f, setup, "validation", FRACTION);
        set(f, setup, "epochs", "1");
        if (i < n) set(f, setup, changes[i][0], changes[i][1]);
        if (seeded) set(f, setup, "validation-seed", "1");
        assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
        digest_of(f, run, other);
        assert_int_equal(strcmp(first, other) == 0, !seeded);
        abar_setup_destroy(f->ctx, setup);
    }
    images_drop(m);
}

static void validation_resumes_to_the_same_bits(void **state)
{
    fixture *f = *state;
    static const int64_t stops[] = {1, 5, 6, 9};
    abar_setup *setup = make_setup(f, "lenet5", "mac",
                                   "limit-train=100 validation=0.2 validation-seed=4 batch=16 epochs=3 threads=1 tcov=2 tinv=4 "
                                   "augment=true");
    set_out(f, setup, "whole");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        char run[32];
        snprintf(run, sizeof run, "parts-%zu", i);
        set_out(f, setup, run);
        assert_int_equal(run_until(f, setup, false, stops[i]), ABAR_STOPPED);
        assert_int_equal(resume(f, run, 3), ABAR_STOPPED);
        assert_int_equal(resume(f, run, 0), ABAR_OK);
        assert_same_runs(f, "whole", run);
        assert_int_equal(lines_in(f, run, "\"validation_acc\""), 3);
        assert_int_equal(lines_in(f, run, "\"test_"), 0);
    }
    abar_setup_destroy(f->ctx, setup);
}

static void check_refused_resume(fixture *f, const char *name, const char *value, const char *was)
{
    char dir[PATH_MAX_TEST], text[128];
    abar_setup *setup;
    abar_trainer *t;
    path_in(f, "run", dir);
    need(f, abar_setup_load(f->ctx, dir, &setup));
    set(f, setup, name, value);
    assert_int_equal(abar_trainer_create(f->ctx, setup, true, NULL, &t), ABAR_E_ARGUMENT);
    snprintf(text, sizeof text, "--%s %s: the run to resume was made with %s,", name, value, was);
    assert_error(f, text);
    abar_setup_destroy(f->ctx, setup);
}

static void validation_of_another_split_is_not_resumed(void **state)
{
    fixture *f = *state;
    abar_setup *setup =
        make_setup(f, "lenet5", "sgd", "limit-train=100 validation=0.2 batch=16 epochs=2 threads=1 stop-after=1");
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    check_refused_resume(f, "validation", "0.25", "0.2");
    check_refused_resume(f, "validation", "0", "0.2");
    check_refused_resume(f, "validation-seed", "1", "0");
    abar_setup_destroy(f->ctx, setup);
}

/* ---- what is reported --------------------------------------------------------------------------------------------- */

static double number_in(const char *report, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *at = strstr(report, key);
    if (!at) fail_msg("the report has no %s", name);
    return strtod(at + strlen(key), NULL);
}

/* Runs the setup in the folder "run", and checks names and counts; evaluating the checkpoint gives the same numbers. */
static void check_report(fixture *f, abar_setup *setup, int64_t train, int64_t held, int64_t measured)
{
    char path[PATH_MAX_TEST];
    const char *report;
    abar_trainer *t;
    last_epoch last = {0};
    set_out(f, setup, "run");
    need(f, abar_trainer_create(f->ctx, setup, false, &ABAR_CONFIG(abar_trainer_events, .progress = keep_last, .user = &last),
                                &t));
    assert_true(abar_trainer_data(t)->validation);
    assert_int_equal(abar_trainer_data(t)->train, train);
    assert_int_equal(abar_trainer_data(t)->test, held);
    need(f, abar_trainer_run(t));
    need(f, abar_trainer_report(t, &report));
    assert_true(last.p.validation);
    assert_true(number_in(report, "train_samples") == (double)train);
    assert_true(number_in(report, "validation_samples") == (double)held);
    assert_true(number_in(report, "validation_loss") == last.p.test_loss);
    assert_true(number_in(report, "validation_acc") == last.p.test_accuracy);
    assert_null(strstr(report, "\"test_"));
    abar_trainer_destroy(t);

    abar_evaluation e = {.size = sizeof e};
    path_in(f, "run/state.safetensors", path); /* in double precision, as ref computes */
    need(f, abar_evaluate(f->ctx, setup, path, &e));
    assert_int_equal(e.samples, measured);
    assert_true(fabs(e.loss - last.p.test_loss) < 1e-9 && fabs(e.accuracy - last.p.test_accuracy) < 1e-9);
    setup->train.validation = 0.0; /* the test set */
    need(f, abar_evaluate(f->ctx, setup, path, &e));
    assert_true(fabs(e.loss - last.p.test_loss) > 1e-9 && e.samples != measured);
}

static void validation_is_named_and_counted_in_the_report(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "sgd", "device=ref limit-train=50 validation=0.2 batch=8 epochs=1 threads=1");
    check_report(f, setup, 40, 10, 10);
    abar_setup_destroy(f->ctx, setup);
}

static void validation_of_a_text_is_named_and_counted_in_the_report(void **state)
{
    fixture *f = *state;
    abar_setup *setup = text_setup(f, "sgd", "validation=0.25 epochs=1"); /* 780 characters, 702 for training */
    check_report(f, setup, 702 - 176, 176, 168);                          /* 21 windows of 8 */
    abar_setup_destroy(f->ctx, setup);
}

static void validation_of_a_text_resumes_to_the_same_bits(void **state)
{
    fixture *f = *state;
    abar_setup *setup = text_setup(f, "adamw", "validation=0.25");
    set_out(f, setup, "whole");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    set_out(f, setup, "parts");
    assert_int_equal(run_until(f, setup, false, 7), ABAR_STOPPED);
    assert_int_equal(resume(f, "parts", 6), ABAR_STOPPED);
    assert_int_equal(resume(f, "parts", 0), ABAR_OK);
    assert_same_runs(f, "whole", "parts");
    abar_setup_destroy(f->ctx, setup);
}

/* The plan counts what is held: of a program's images their copy. */
static void validation_memory_is_planned(void **state)
{
    fixture *f = *state;
    abar_memory_plan plan = {.size = sizeof plan};
    images *m = images_make();
    images_wrap(f, m);
    abar_setup *setup = own_setup(f, m, "cpu", NULL);
    set(f, setup, "validation", FRACTION);
    need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
    assert_int_equal(plan.data, TRAIN * (PIXELS * sizeof(float) + sizeof(int32_t)));
    abar_setup_destroy(f->ctx, setup);
    images_drop(m);

    setup = make_setup(f, "lenet5", "sgd", "limit-train=100 validation=0.2 batch=16");
    need(f, abar_setup_memory_plan(f->ctx, setup, &plan));
    abar_dataset *data;
    need(f, abar__data_open(f->ctx, setup, false, NULL, &data));
    assert_int_equal(abar_dataset_bytes(data), plan.data + sizeof(abar_dataset));
    abar_loader *train, *test;
    const abar_loader_config request[] = {abar__loader_request(setup, false), abar__loader_request(setup, true)};
    need(f, abar_loader_create(f->ctx, data, &request[0], &train));
    need(f, abar_loader_create(f->ctx, data, &request[1], &test));
    assert_int_equal(abar_loader_bytes(train) + abar_loader_bytes(test), plan.loader);
    abar_loader_destroy(train);
    abar_loader_destroy(test);
    abar_dataset_close(data);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- refusals ----------------------------------------------------------------------------------------------------- */

static void check_refused(fixture *f, abar_setup *setup, const char *text)
{
    abar_trainer *t;
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_ARGUMENT);
    assert_null(t);
    assert_error(f, text);
    abar_setup_destroy(f->ctx, setup);
}

static void validation_that_makes_no_sense_is_refused(void **state)
{
    fixture *f = *state;
    static const char *const wrong[] = {"0.5", "0.6", "-1", "-0.1", "nan", "inf", "1e400", "x", ""};
    abar_setup *setup = make_setup(f, "lenet5", "sgd", "limit-train=100");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(abar_setup_set(f->ctx, setup, "validation", wrong[i]), ABAR_E_ARGUMENT);
        assert_error(f, "--validation");
    }
    abar_setup_destroy(f->ctx, setup);
    check_refused(f, make_setup(f, "lenet5", "sgd", "limit-train=100 batch=16 validation=1e-9"),
                  "--validation 1e-09: holds out none of the 100 training samples, choose more");
    check_refused(f, make_setup(f, "lenet5", "sgd", "limit-train=100 batch=91 validation=0.1"),
                  "--batch 91: more than the 90 training samples that --validation leaves, choose less");
    check_refused(f, make_setup(f, "lenet5", "sgd", "limit-train=100 limit-test=10 batch=8 validation=0.1"),
                  "--limit-test: with --validation a part of the training set is measured, and what sweep and tune choose on "
                  "all of the test set");
    check_refused(f, make_setup(f, "lenet5", "sgd", "limit-train=100 batch=8 validation-seed=1"),
                  "there is no validation part");
    check_refused(f, text_setup(f, "sgd", "validation=0.1 validation-seed=1"), "the end of a text is held out");
    check_refused(f, text_setup(f, "sgd", "validation=0.01"), "its validation part has 7 characters");
    check_refused(f, text_setup(f, "sgd", "validation=1e-4"), "holds out none of the 702 training tokens");
    abar_dataset *data = NULL;
    images *m = images_make();
    images_wrap(f, m);
    setup = own_setup(f, m, "cpu", NULL);
    setup->train.validation = 0.7; /* by hand */
    assert_int_equal(abar__data_open(f->ctx, setup, false, NULL, &data), ABAR_E_ARGUMENT);
    assert_null(data);
    abar_setup_destroy(f->ctx, setup);
    images_drop(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(validation_never_trains_on_what_is_held_out, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(validation_split_is_that_of_its_seed_alone, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(validation_resumes_to_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(validation_of_another_split_is_not_resumed, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(validation_is_named_and_counted_in_the_report, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(validation_of_a_text_is_named_and_counted_in_the_report, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(validation_of_a_text_resumes_to_the_same_bits, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(validation_memory_is_planned, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(validation_that_makes_no_sense_is_refused, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
