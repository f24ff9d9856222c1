/* The validation part of a data set: every sample is in one of the two parts, the draw depends on its seed and the number of
 * samples alone, loaders of the training part never yield a sample that was held out, and what is refused. */
#include "support.h"

#include "base/rng.h"
#include "data/data_impl.h"

#include <math.h>

enum { N_MAX = 2000, SIDE = 2, IMAGE = SIDE * SIDE };

/* ---- images that carry their index ------------------------------------------------------------------------------ */

typedef struct numbered {
    uint8_t images[N_MAX][IMAGE];
    int32_t labels[N_MAX];
    uint8_t test_images[1][IMAGE];
    int32_t test_labels[1];
} numbered;

/* The test image is none of the others. */
static numbered *numbered_make(void)
{
    numbered *set = calloc(1, sizeof *set);
    assert_non_null(set);
    for (int i = 0; i < N_MAX; i++) {
        set->images[i][0] = (uint8_t)(i & 255);
        set->images[i][1] = (uint8_t)(i >> 8);
        set->labels[i] = i % 7;
    }
    set->test_images[0][2] = 1;
    return set;
}

static abar_dataset *wrap(abar_context *ctx, const numbered *set, int64_t n)
{
    abar_dataset *data;
    const abar_dataset_images images =
        ABAR_CONFIG(abar_dataset_images, .channels = 1, .height = SIDE, .width = SIDE, .classes = 7, .train = n, .test = 1,
                    .train_images = set->images, .train_labels = set->labels, .test_images = set->test_images,
                    .test_labels = set->test_labels);
    assert_int_equal(abar_dataset_wrap(ctx, &images, &data), ABAR_OK);
    return data;
}

/* The index that an image carries. */
static int index_of(const uint8_t *image)
{
    assert_int_equal(image[2], 0);
    return image[0] | image[1] << 8;
}

/* The indices of the validation part of n samples, and in held how often each sample is in it. */
static void hold_out(int64_t n, double fraction, uint64_t seed, int *held)
{
    abar_context *ctx = plain_context();
    numbered *set = numbered_make();
    abar_dataset *data = wrap(ctx, set, n);
    assert_int_equal(abar__dataset_hold_out(data, fraction, seed), ABAR_OK);
    for (int64_t i = 0; i < data->part[1].count; i++) held[index_of(abar_dataset_image(data, true, i))]++;
    abar_dataset_close(data);
    abar_context_destroy(ctx);
    free(set);
}

/* ---- the split -------------------------------------------------------------------------------------------------- */

static void check_partition(int64_t n, double fraction, int64_t expected)
{
    abar_context *ctx = plain_context();
    numbered *set = numbered_make(), *before = numbered_make();
    int seen[N_MAX] = {0};
    abar_dataset *data = wrap(ctx, set, n);
    assert_int_equal(abar__dataset_hold_out(data, fraction, 3), ABAR_OK);
    const abar_dataset_info *info = abar_dataset_info_of(data);
    assert_true(info->validation);
    assert_int_equal(info->test, expected);
    assert_int_equal(info->train, n - expected);
    for (int part = 0; part < 2; part++) {
        for (int64_t i = 0; i < (part ? info->test : info->train); i++) {
            const int index = index_of(abar_dataset_image(data, part, i));
            assert_int_equal(abar_dataset_label(data, part, i), index % 7); /* labels go with their images */
            seen[index]++;
        }
    }
    for (int i = 0; i < N_MAX; i++) assert_int_equal(seen[i], i < n);
    assert_memory_equal(set, before, sizeof *set); /* the program's memory */
    assert_int_equal(abar_context_memory(ctx).now, abar_dataset_bytes(data));
    abar_dataset_close(data);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    free(set);
    free(before);
}

static void hold_out_every_sample_is_in_one_part(void **state)
{
    (void)state;
    check_partition(2000, 0.1, 200);
    check_partition(1999, 0.1, 200); /* 199.9 */
    check_partition(15, 0.1, 2);     /* 1.5 */
    check_partition(14, 0.1, 1);
    check_partition(2, 0.499, 1);
    check_partition(3, 0.499, 1);
}

/* The shuffle of validation.c on a list: another order of draws would make another split of old runs. */
static void hold_out_draws_by_counter(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        int held[N_MAX] = {0}, list[100];
        hold_out(100, 0.2, seed, held);
        for (int i = 0; i < 100; i++) list[i] = i;
        for (int p = 99; p >= 80; p--) {
            const int q =
                (int)((uint64_t)abar__random(seed, ABAR_DRAW_HOLD_OUT, 0, (uint64_t)p).u[0] * (uint64_t)(p + 1) >> 32);
            const int moved = list[p];
            list[p] = list[q];
            list[q] = moved;
        }
        for (int p = 0; p < 100; p++) assert_int_equal(held[list[p]], p >= 80);
    }
}

/* Each of 20 samples is in a part of 5 in a quarter of the draws, and each pair in 4/19 of those. */
static void hold_out_is_uniform(void **state)
{
    (void)state;
    enum { SEEDS = 4000 };
    int times[N_MAX] = {0}, pairs = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int held[N_MAX] = {0};
        hold_out(20, 0.25, seed, held);
        for (int i = 0; i < 20; i++) times[i] += held[i];
        pairs += held[0] && held[19];
    }
    const double p = 0.25, q = p * 4.0 / 19.0;
    for (int i = 0; i < 20; i++) assert_true(fabs(times[i] - SEEDS * p) < 5.0 * sqrt(SEEDS * p * (1.0 - p)));
    assert_true(fabs(pairs - SEEDS * q) < 5.0 * sqrt(SEEDS * q * (1.0 - q)));
}

/* A file's or a generated set: the split is that of a program's images, the limit comes first, the test part is gone. */
static void hold_out_of_a_set_that_owns_its_images(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *whole, *split;
    int held[N_MAX] = {0}, found = 0;
    const abar_dataset_config all = ABAR_CONFIG(abar_dataset_config, .train = 300, .test = 10, .limit_train = 200);
    abar_dataset_config part = all;
    part.validation = 0.3;
    part.validation_seed = 11;
    hold_out(200, 0.3, 11, held);
    assert_int_equal(abar_dataset_open(ctx, "synthetic", &all, &whole), ABAR_OK);
    assert_int_equal(abar_dataset_open(ctx, "synthetic", &part, &split), ABAR_OK);
    assert_int_equal(abar_dataset_info_of(split)->train, 140);
    assert_int_equal(abar_dataset_info_of(split)->test, 60);
    assert_false(abar_dataset_info_of(whole)->validation);
    for (int i = 0; i < 200; i++)
        for (int j = 0; j < 60; j++)
            if (memcmp(abar_dataset_image(whole, false, i), abar_dataset_image(split, true, j), 28 * 28) == 0) {
                assert_int_equal(held[i], 1);
                assert_int_equal(abar_dataset_label(whole, false, i), abar_dataset_label(split, true, j));
                found++;
            }
    assert_int_equal(found, 60);
    abar_dataset_close(whole);
    abar_dataset_close(split);
    abar_context_destroy(ctx);
    check_every_allocation_failing("synthetic", &part);
}

/* A program's images are copied: a copy that fails is reported and leaks nothing. */
static void hold_out_of_borrowed_images_without_memory_fails(void **state)
{
    (void)state;
    failing f;
    abar_context *ctx = failing_context(&f);
    numbered *set = numbered_make();
    f.fail_at = 0;
    for (long k = 1; k <= 3; k++) {
        abar_dataset *data = wrap(ctx, set, 50);
        f.calls = 0;
        f.fail_at = k;
        assert_int_equal(abar__dataset_hold_out(data, 0.2, 0), k < 3 ? ABAR_E_MEMORY : ABAR_OK); /* images, labels */
        f.fail_at = 0;
        abar_dataset_close(data);
        assert_int_equal(abar_context_memory(ctx).now, 0);
    }
    abar_context_destroy(ctx);
    free(set);
}

/* ---- loaders ---------------------------------------------------------------------------------------------------- */

/* How often each sample came in three epochs of a part. */
static void count_batches(abar_context *ctx, const abar_dataset *data, bool test, int threads, int *times)
{
    abar_loader *loader;
    const abar_loader_config config =
        ABAR_CONFIG(abar_loader_config, .test = test, .batch = 7, .seed = 5, .threads = threads, .flip = true);
    assert_int_equal(abar_loader_create(ctx, data, &config, &loader), ABAR_OK);
    int32_t *order = malloc((size_t)abar_loader_order_count(loader) * sizeof *order);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        abar_loader_order(loader, epoch, order);
        for (int64_t b = 0; b < abar_loader_batches(loader); b++) {
            abar_batch batch = {.size = sizeof batch};
            assert_int_equal(abar_loader_next(loader, &batch), ABAR_OK);
            for (int64_t i = 0; i < batch.count; i++) { /* what a device would read by the order is what the host reads */
                const int32_t place = order[b * 7 + i];
                assert_int_equal(batch.labels[i], abar_dataset_label(data, test, place));
                times[index_of(abar_dataset_image(data, test, place))]++;
            }
        }
    }
    free(order);
    abar_loader_destroy(loader);
}

static void hold_out_is_never_in_a_training_batch(void **state)
{
    (void)state;
    int held[N_MAX] = {0}, first[N_MAX] = {0};
    hold_out(100, 0.3, 2, held);
    for (int threads = 0; threads < 4; threads += 3) {
        abar_context *ctx = plain_context();
        numbered *set = numbered_make();
        abar_dataset *data = wrap(ctx, set, 100);
        int trained[N_MAX] = {0}, tested[N_MAX] = {0};
        assert_int_equal(abar__dataset_hold_out(data, 0.3, 2), ABAR_OK);
        count_batches(ctx, data, false, threads, trained);
        count_batches(ctx, data, true, threads, tested);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(trained[i], held[i] ? 0 : 3); /* 70 samples: ten batches of seven */
            assert_int_equal(tested[i], held[i] ? 3 : 0);
        }
        if (threads == 0) memcpy(first, trained, sizeof first);
        assert_memory_equal(first, trained, sizeof first);
        abar_dataset_close(data);
        abar_context_destroy(ctx);
        free(set);
    }
}

/* ---- texts ------------------------------------------------------------------------------------------------------ */

/* 900 training characters, the last 90 of them digits, and 100 for testing, all of them '#'. */
static bytes marked_text(void)
{
    bytes b = bytes_make(1000);
    for (size_t i = 0; i < 1000; i++) b.data[i] = (uint8_t)(i < 810 ? 'a' + i % 26 : i < 900 ? '0' + i % 10 : '#');
    return b;
}

static void count_kinds(abar_context *ctx, const abar_dataset *data, bool test, int64_t context, int count[3])
{
    abar_loader *loader;
    const char *vocabulary = abar_dataset_vocabulary(data);
    const abar_loader_config config =
        ABAR_CONFIG(abar_loader_config, .test = test, .batch = 4, .context = context, .steps = 100);
    assert_int_equal(abar_loader_create(ctx, data, &config, &loader), ABAR_OK);
    for (int64_t b = 0; b < 5 * abar_loader_batches(loader); b++) {
        abar_batch batch = {.size = sizeof batch};
        assert_int_equal(abar_loader_next(loader, &batch), ABAR_OK);
        for (int64_t i = 0; i < batch.count * context; i++) {
            const char c[] = {vocabulary[batch.tokens[i]], vocabulary[batch.labels[i]]};
            for (int k = 0; k < 2; k++) count[c[k] == '#' ? 2 : c[k] >= '0' && c[k] <= '9' ? 1 : 0]++;
        }
    }
    abar_loader_destroy(loader);
}

static void hold_out_of_a_text_is_its_end_and_no_window_crosses_it(void **state)
{
    (void)state;
    folder dir = folder_make();
    bytes text = marked_text();
    char spec[300];
    folder_write(&dir, "text", text);
    snprintf(spec, sizeof spec, "text:%s/text", dir.path);
    abar_context *ctx = plain_context();
    abar_dataset *data;
    const abar_dataset_config config = ABAR_CONFIG(abar_dataset_config, .validation = 0.1);
    assert_int_equal(abar_dataset_open(ctx, spec, &config, &data), ABAR_OK);
    assert_int_equal(abar_dataset_info_of(data)->train, 810);
    assert_int_equal(abar_dataset_info_of(data)->test, 90);
    assert_ptr_equal(abar_dataset_tokens(data, true), abar_dataset_tokens(data, false) + 810);
    for (int64_t context = 1; context < 90; context += 11) {
        int train[3] = {0}, test[3] = {0};
        count_kinds(ctx, data, false, context, train);
        count_kinds(ctx, data, true, context, test);
        assert_true(train[0] > 0 && test[1] > 0);
        assert_true(train[1] == 0 && train[2] == 0 && test[0] == 0 && test[2] == 0);
    }
    abar_loader *loader;
    const abar_loader_config wide = ABAR_CONFIG(abar_loader_config, .test = true, .batch = 1, .context = 90);
    assert_int_equal(abar_loader_create(ctx, data, &wide, &loader), ABAR_E_ARGUMENT);
    check_contains(abar_context_error(ctx), "its validation part has 90 characters");
    check_contains(abar_context_error(ctx), "a larger --validation");
    abar_dataset_close(data);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    check_every_allocation_failing(spec, &config);
    folder_remove(&dir);
    free(text.data);
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

static void hold_out_of_no_sample_is_refused(void **state)
{
    (void)state;
    static const struct {
        double fraction;
        const char *text;
    } cases[] = {
        {0.5, "below 0.5"},      {1.0, "below 0.5"},
        {-1.0, "below 0.5"},     {NAN, "below 0.5"},
        {INFINITY, "below 0.5"}, {1e-9, "--validation 1e-09: holds out none of the 100 training samples, choose more"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar_context *ctx = plain_context();
        abar_dataset *data = NULL;
        const abar_dataset_config config =
            ABAR_CONFIG(abar_dataset_config, .train = 100, .test = 10, .validation = cases[i].fraction);
        assert_int_equal(abar_dataset_open(ctx, "synthetic", &config, &data), ABAR_E_ARGUMENT);
        assert_null(data);
        check_contains(abar_context_error(ctx), cases[i].text);
        assert_int_equal(abar_context_memory(ctx).now, 0);
        abar_context_destroy(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hold_out_every_sample_is_in_one_part),
        cmocka_unit_test(hold_out_draws_by_counter),
        cmocka_unit_test(hold_out_is_uniform),
        cmocka_unit_test(hold_out_of_a_set_that_owns_its_images),
        cmocka_unit_test(hold_out_of_borrowed_images_without_memory_fails),
        cmocka_unit_test(hold_out_is_never_in_a_training_batch),
        cmocka_unit_test(hold_out_of_a_text_is_its_end_and_no_window_crosses_it),
        cmocka_unit_test(hold_out_of_no_sample_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
