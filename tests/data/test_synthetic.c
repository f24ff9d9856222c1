/* The synthetic data set: the same bytes everywhere, any shape, learnable but not trivially so. */
#include "data/support.h"

static abar_dataset *open_synthetic(abar_context *ctx, const abar_dataset_config *config)
{
    abar_dataset *data;
    if (abar_dataset_open(ctx, "synthetic", config, &data) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    return data;
}

static uint64_t checksum_of(const abar_dataset *data)
{
    const abar_dataset_info *info = abar_dataset_info_of(data);
    size_t image = (size_t)(info->channels * info->height * info->width);
    uint64_t hash = CHECKSUM_START;
    for (int test = 0; test < 2; test++)
        for (int64_t i = 0; i < (test ? info->test : info->train); i++) {
            uint8_t label = (uint8_t)abar_dataset_label(data, test, i);
            hash = checksum(hash, abar_dataset_image(data, test, i), image);
            hash = checksum(hash, &label, 1);
        }
    return hash;
}

static void synthetic_bytes_are_pinned(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset_config small = {
        .size = sizeof small, .channels = 3, .height = 9, .width = 17, .classes = 7, .train = 50, .test = 20};
    abar_dataset *data = open_synthetic(ctx, &small);
    uint64_t first = checksum_of(data);
    abar_dataset_close(data);
    small.seed = 1;
    data = open_synthetic(ctx, &small);
    uint64_t second = checksum_of(data);
    abar_dataset_close(data);
    data = open_synthetic(ctx, NULL);
    uint64_t standard = checksum_of(data);
    abar_dataset_close(data);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    if (first != 0xb6e45c7e8a5f0559u || second != 0x98134738040176efu || standard != 0xf66c0cb2a6563daau)
        fail_msg("checksums 0x%llx 0x%llx 0x%llx", (unsigned long long)first, (unsigned long long)second,
                 (unsigned long long)standard);
}

static void synthetic_defaults_are_as_documented(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *data = open_synthetic(ctx, NULL);
    const abar_dataset_info *info = abar_dataset_info_of(data);
    assert_int_equal(info->channels, 1);
    assert_int_equal(info->height, 28);
    assert_int_equal(info->width, 28);
    assert_int_equal(info->classes, 10);
    assert_int_equal(info->train, 8192);
    assert_int_equal(info->test, 1024);
    assert_string_equal(info->where, "");
    int64_t seen[10] = {0};
    for (int64_t i = 0; i < info->train; i++) seen[abar_dataset_label(data, false, i)]++;
    for (int c = 0; c < 10; c++) assert_in_range(seen[c], 819, 820);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void synthetic_limits_give_the_beginning_of_the_whole(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset_config config = {.size = sizeof config, .limit_train = 10, .limit_test = 5};
    abar_dataset *whole = open_synthetic(ctx, NULL), *part = open_synthetic(ctx, &config);
    assert_int_equal(abar_dataset_info_of(part)->train, 10);
    assert_int_equal(abar_dataset_info_of(part)->test, 5);
    assert_memory_equal(abar_dataset_image(part, false, 0), abar_dataset_image(whole, false, 0), 10 * 784);
    assert_memory_equal(abar_dataset_image(part, true, 0), abar_dataset_image(whole, true, 0), 5 * 784);
    assert_memory_not_equal(abar_dataset_image(whole, true, 0), abar_dataset_image(whole, false, 0), 784);
    abar_dataset_close(part);
    abar_dataset_close(whole);
    abar_context_destroy(ctx);
}

static void synthetic_any_shape_can_be_made(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 1, 1}, {5, 1, 33, 2}, {2, 40, 3, 300}, {3, 64, 64, 1000}, {1, 4096, 1, 4}};
    abar_context *ctx = plain_context();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int64_t *s = shapes[i];
        abar_dataset_config config = {
            .size = sizeof config, .channels = s[0], .height = s[1], .width = s[2], .classes = s[3], .train = 20, .test = 3};
        abar_dataset *data = open_synthetic(ctx, &config);
        assert_int_equal(abar_dataset_label(data, false, 19), 19 % s[3]);
        assert_int_equal(abar_dataset_bytes(data), abar_context_memory(ctx).now);
        abar_dataset_close(data);
    }
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
}

static void synthetic_impossible_wishes_are_refused(void **state)
{
    (void)state;
    const abar_dataset_config wrong[] = {{.size = sizeof wrong[0], .channels = -1},
                                         {.size = sizeof wrong[0], .height = 5000},
                                         {.size = sizeof wrong[0], .width = INT64_MAX},
                                         {.size = sizeof wrong[0], .channels = 4096, .height = 4096, .width = 4096},
                                         {.size = sizeof wrong[0], .classes = -3},
                                         {.size = sizeof wrong[0], .train = -1},
                                         {.size = sizeof wrong[0], .test = INT64_MAX}};
    abar_context *ctx = plain_context();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        abar_dataset *data;
        assert_int_equal(abar_dataset_open(ctx, "synthetic", &wrong[i], &data), ABAR_E_ARGUMENT);
        check_contains(abar_context_error(ctx), "synthetic: ");
        check_contains(abar_context_error(ctx), "choose");
        assert_int_equal(abar_context_memory(ctx).now, 0);
    }
    abar_context_destroy(ctx);
}

/* Percent of test samples nearest, in squared distance, to the training mean of their own class. */
static double nearest_mean_accuracy(const abar_dataset *data)
{
    enum { PIXELS = 784, CLASSES = 10 };
    static double mean[CLASSES][PIXELS];
    const abar_dataset_info *info = abar_dataset_info_of(data);
    int64_t seen[CLASSES] = {0}, right = 0;
    memset(mean, 0, sizeof mean);
    for (int64_t i = 0; i < info->train; i++) {
        int32_t label = abar_dataset_label(data, false, i);
        seen[label]++;
        for (int p = 0; p < PIXELS; p++) mean[label][p] += abar_dataset_image(data, false, i)[p];
    }
    for (int64_t i = 0; i < info->test; i++) {
        double best = 1e300;
        int nearest = -1;
        for (int c = 0; c < CLASSES; c++) {
            double distance = 0.0;
            for (int p = 0; p < PIXELS; p++) {
                double d = abar_dataset_image(data, true, i)[p] - mean[c][p] / (double)seen[c];
                distance += d * d;
            }
            if (distance < best) {
                best = distance;
                nearest = c;
            }
        }
        right += nearest == abar_dataset_label(data, true, i);
    }
    return 100.0 * (double)right / (double)info->test;
}

static void synthetic_is_learnable_but_not_trivial(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    for (uint64_t seed = 0; seed < 3; seed++) {
        abar_dataset_config config = {.size = sizeof config, .seed = seed};
        abar_dataset *data = open_synthetic(ctx, &config);
        double accuracy = nearest_mean_accuracy(data);
        if (accuracy < 60.0 || accuracy > 95.0) fail_msg("seed %d: %.1f %%", (int)seed, accuracy);
        abar_dataset_close(data);
    }
    abar_context_destroy(ctx);
}

static void synthetic_failing_allocations_are_reported_and_leak_nothing(void **state)
{
    (void)state;
    abar_dataset_config config = {.size = sizeof config, .train = 10, .test = 5};
    check_every_allocation_failing("synthetic", &config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synthetic_bytes_are_pinned),
        cmocka_unit_test(synthetic_defaults_are_as_documented),
        cmocka_unit_test(synthetic_limits_give_the_beginning_of_the_whole),
        cmocka_unit_test(synthetic_any_shape_can_be_made),
        cmocka_unit_test(synthetic_impossible_wishes_are_refused),
        cmocka_unit_test(synthetic_is_learnable_but_not_trivial),
        cmocka_unit_test(synthetic_failing_allocations_are_reported_and_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
