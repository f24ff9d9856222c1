/* The idx reader: what it accepts, every fault it must name, and Fashion-MNIST itself where it is installed. */
#include "data/support.h"

#include "data/data_impl.h"

enum { TRAIN = 6, TEST = 4, HEIGHT = 2, WIDTH = 3 };
static const char *const file_names[4] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                                          "t10k-labels-idx1-ubyte"};

/* A valid little set: files[i] may be changed before it is written. */
typedef struct idx_set {
    folder dir;
    bytes files[4];
    char spec[300];
} idx_set;

static idx_set set_make(void)
{
    idx_set s = {.dir = folder_make()};
    for (int i = 0; i < 4; i++) {
        uint32_t dim[3] = {i < 2 ? TRAIN : TEST, HEIGHT, WIDTH};
        bool labels = i % 2 == 1;
        s.files[i] =
            make_idx(labels ? 0x801 : 0x803, labels ? 1 : 3, dim, dim[0] * (labels ? 1 : HEIGHT * WIDTH), labels ? 10 : 256);
    }
    snprintf(s.spec, sizeof s.spec, "mnist:%s", s.dir.path);
    return s;
}

static void set_write(const idx_set *s)
{
    for (int i = 0; i < 4; i++)
        if (s->files[i].data) folder_write(&s->dir, file_names[i], s->files[i]);
}

static void set_drop(idx_set *s)
{
    for (int i = 0; i < 4; i++) free(s->files[i].data);
    folder_remove(&s->dir);
}

static void resize(bytes *b, size_t n)
{
    bytes changed = bytes_make(n);
    memcpy(changed.data, b->data, n < b->n ? n : b->n);
    free(b->data);
    *b = changed;
}

static void compress_file(bytes *b)
{
    bytes packed = make_gzip(*b);
    free(b->data);
    *b = packed;
}

/* Writes the set, and expects opening it to fail over file i. */
static void check_fault(idx_set *s, int i, const char *reason)
{
    set_write(s);
    check_open_fails(s->spec, ABAR_E_FORMAT, file_names[i], reason, "replace");
    set_drop(s);
}

static void idx_plain_files_are_read(void **state)
{
    (void)state;
    idx_set s = set_make();
    set_write(&s);
    abar_context *ctx = plain_context();
    abar_dataset *data;
    assert_int_equal(abar_dataset_open(ctx, s.spec, NULL, &data), ABAR_OK);
    const abar_dataset_info *info = abar_dataset_info_of(data);
    assert_string_equal(info->name, "mnist");
    assert_string_equal(info->where, s.dir.path);
    assert_int_equal(info->channels, 1);
    assert_int_equal(info->height, HEIGHT);
    assert_int_equal(info->width, WIDTH);
    assert_int_equal(info->classes, 10);
    assert_int_equal(info->train, TRAIN);
    assert_int_equal(info->test, TEST);
    assert_false(info->augment);
    for (int test = 0; test < 2; test++)
        for (int i = 0; i < (test ? TEST : TRAIN); i++) {
            assert_memory_equal(abar_dataset_image(data, test, i), s.files[2 * test].data + 16 + i * HEIGHT * WIDTH,
                                HEIGHT * WIDTH);
            assert_int_equal(abar_dataset_label(data, test, i), (i + 7) % 10);
        }
    assert_null(abar_dataset_image(data, false, TRAIN));
    assert_null(abar_dataset_image(data, true, -1));
    assert_int_equal(abar_dataset_label(data, true, TEST), -1);
    assert_int_equal(abar_context_memory(ctx).now, abar_dataset_bytes(data));
    abar_dataset_close(data);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    set_drop(&s);
}

static void check_probed(abar_context *ctx, const idx_set *s, int64_t height, int64_t width)
{
    abar_dataset_probe probe = {.size = sizeof probe};
    assert_int_equal(abar_dataset_probe_name(ctx, s->spec, &probe), ABAR_OK);
    assert_true(probe.found);
    assert_int_equal(probe.info.height, height);
    assert_int_equal(probe.info.width, width);
    assert_int_equal(probe.info.train, 60000);
    assert_int_equal(abar_context_memory(ctx).now, 0);
}

static void idx_probe_tells_the_shape_that_the_files_have(void **state)
{
    (void)state;
    idx_set s = set_make();
    abar_context *ctx = plain_context();
    set_write(&s);
    check_probed(ctx, &s, HEIGHT, WIDTH);
    compress_file(&s.files[0]);
    set_write(&s);
    check_probed(ctx, &s, HEIGHT, WIDTH);
    resize(&s.files[0], 9);
    set_write(&s);
    check_probed(ctx, &s, 28, 28); /* damaged: as published */
    abar_context_destroy(ctx);
    set_drop(&s);
}

static void idx_gzipped_files_equal_plain_ones(void **state)
{
    (void)state;
    idx_set s = set_make();
    for (int i = 0; i < 4; i++) {
        char name[64];
        bytes packed = make_gzip(s.files[i]);
        snprintf(name, sizeof name, "%s.gz", file_names[i]);
        folder_write(&s.dir, name, packed);
        free(packed.data);
    }
    abar_context *ctx = plain_context();
    abar_dataset *data;
    assert_int_equal(abar_dataset_open(ctx, s.spec, NULL, &data), ABAR_OK);
    for (int i = 0; i < TEST; i++) {
        assert_memory_equal(abar_dataset_image(data, true, i), s.files[2].data + 16 + i * HEIGHT * WIDTH, HEIGHT * WIDTH);
        assert_int_equal(abar_dataset_label(data, true, i), (i + 7) % 10);
    }
    abar_dataset_close(data);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    set_drop(&s);
}

static void idx_limits_keep_the_first_samples_and_are_clamped(void **state)
{
    (void)state;
    idx_set s = set_make();
    compress_file(&s.files[0]); /* the name does not decide what a file is */
    set_write(&s);
    abar_context *ctx = plain_context();
    abar_dataset *data;
    abar_dataset_config config = {.size = sizeof config, .limit_train = 2, .limit_test = 1000};
    assert_int_equal(abar_dataset_open(ctx, s.spec, &config, &data), ABAR_OK);
    assert_int_equal(abar_dataset_info_of(data)->train, 2);
    assert_int_equal(abar_dataset_info_of(data)->test, TEST);
    assert_int_equal(abar_dataset_image(data, false, 1)[0], 7 + HEIGHT * WIDTH);
    assert_int_equal(abar_dataset_label(data, false, 1), 8);
    assert_int_equal(abar_context_memory(ctx).now, abar_dataset_bytes(data));
    abar_dataset_close(data);
    config.limit_train = -1;
    assert_int_equal(abar_dataset_open(ctx, s.spec, &config, &data), ABAR_E_ARGUMENT);
    assert_null(data);
    abar_context_destroy(ctx);
    set_drop(&s);
}

static void idx_damage_past_the_limit_is_still_found(void **state)
{
    (void)state;
    idx_set s = set_make();
    s.files[1].data[8 + TRAIN - 1] = 10;
    set_write(&s);
    abar_context *ctx = plain_context();
    abar_dataset *data;
    abar_dataset_config config = {.size = sizeof config, .limit_train = 2};
    assert_int_equal(abar_dataset_open(ctx, s.spec, &config, &data), ABAR_E_FORMAT);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    set_drop(&s);
}

static void idx_missing_file_names_what_was_tried(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        idx_set s = set_make();
        char tried[128];
        snprintf(tried, sizeof tried, "neither %s nor %s.gz", file_names[i], file_names[i]);
        free(s.files[i].data);
        s.files[i].data = NULL;
        set_write(&s);
        check_open_fails(s.spec, ABAR_E_NOT_FOUND, s.dir.path, tried, "give mnist:DIR");
        set_drop(&s);
    }
}

static void idx_empty_folder_names_a_remedy(void **state)
{
    (void)state;
    folder dir = folder_make();
    char spec[300];
    snprintf(spec, sizeof spec, "fashion-mnist:%s", dir.path);
    check_open_fails(spec, ABAR_E_NOT_FOUND, dir.path, file_names[0], "install the package dataset-fashion-mnist");
    folder_remove(&dir);
    check_open_fails(spec, ABAR_E_NOT_FOUND, dir.path, "no folder", "or give fashion-mnist:DIR");
}

static void idx_file_faults_are_named(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        idx_set s = set_make();
        resize(&s.files[i], 0);
        check_fault(&s, i, "is empty");

        s = set_make();
        resize(&s.files[i], 3);
        check_fault(&s, i, "ends 1 bytes early");

        s = set_make();
        resize(&s.files[i], 7);
        check_fault(&s, i, "early");

        s = set_make();
        resize(&s.files[i], s.files[i].n - 1);
        check_fault(&s, i, "too short");

        s = set_make();
        resize(&s.files[i], s.files[i].n + 1);
        check_fault(&s, i, "goes on after");

        s = set_make();
        s.files[i].data[2] = 0x0d; /* floats */
        check_fault(&s, i, i % 2 ? "not with 00000801" : "not with 00000803");

        s = set_make();
        put_u32(s.files[i].data + 4, 0);
        check_fault(&s, i, "cannot be");

        s = set_make();
        put_u32(s.files[i].data + 4, 0xffffffff);
        check_fault(&s, i, "cannot be");
    }
}

static void idx_images_and_labels_exchanged_are_told_apart(void **state)
{
    (void)state;
    idx_set s = set_make();
    bytes images = s.files[0];
    s.files[0] = s.files[1];
    s.files[1] = images;
    check_fault(&s, 0, "as an idx file of images does");
}

static void idx_absurd_shapes_are_refused_before_memory_is_taken(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{TRAIN, 0, WIDTH},           {TRAIN, HEIGHT, 0},
                                         {TRAIN, 5000, WIDTH},        {TRAIN, HEIGHT, 0x80000000},
                                         {0x7fffffff, 4096, 4096},    {0xffffffff, 0xffffffff, 0xffffffff},
                                         {0x10000, 0x10000, 0x10000}, {TRAIN + 1, HEIGHT, WIDTH}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int gzip = 0; gzip < 2; gzip++) {
            idx_set s = set_make();
            for (int j = 0; j < 3; j++) put_u32(s.files[0].data + 4 + 4 * j, shapes[i][j]);
            if (gzip) compress_file(&s.files[0]);
            set_write(&s);
            abar_context *ctx = plain_context();
            abar_dataset *data;
            assert_int_equal(abar_dataset_open(ctx, s.spec, NULL, &data), ABAR_E_FORMAT);
            check_contains(abar_context_error(ctx), file_names[0]);
            check_contains(abar_context_error(ctx), "replace");
            assert_int_equal(abar_context_memory(ctx).now, 0);
            assert_true(abar_context_memory(ctx).peak < 1 << 20);
            abar_context_destroy(ctx);
            set_drop(&s);
        }
}

static void idx_counts_that_differ_are_named(void **state)
{
    (void)state;
    for (int test = 0; test < 2; test++) {
        idx_set s = set_make();
        bytes *labels = &s.files[2 * test + 1];
        resize(labels, labels->n - 1);
        put_u32(labels->data + 4, (test ? TEST : TRAIN) - 1);
        check_fault(&s, 2 * test + 1, test ? "3 labels for 4 images" : "5 labels for 6 images");
    }
}

static void idx_label_out_of_range_is_named(void **state)
{
    (void)state;
    idx_set s = set_make();
    s.files[1].data[8 + 3] = 10;
    check_fault(&s, 1, "label 10 of sample 3 is not in 0..9");
}

static void idx_test_images_of_another_shape_are_refused(void **state)
{
    (void)state;
    idx_set s = set_make();
    put_u32(s.files[2].data + 8, WIDTH);
    put_u32(s.files[2].data + 12, HEIGHT);
    set_write(&s);
    check_open_fails(s.spec, ABAR_E_FORMAT, file_names[2], "its images are 3 x 2", "take all files from one data set");
    set_drop(&s);
}

static void idx_damaged_gzip_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        idx_set s = set_make();
        compress_file(&s.files[i]);
        resize(&s.files[i], s.files[i].n - 9);
        check_fault(&s, i, "stops short");

        s = set_make();
        compress_file(&s.files[i]);
        resize(&s.files[i], 5);
        check_fault(&s, i, "stops short");

        s = set_make();
        compress_file(&s.files[i]);
        s.files[i].data[s.files[i].n - 8] ^= 1;
        check_fault(&s, i, "damaged (incorrect data check)");

        s = set_make();
        compress_file(&s.files[i]);
        s.files[i].data[s.files[i].n - 4] ^= 1;
        check_fault(&s, i, "damaged (incorrect length check)");

        s = set_make();
        compress_file(&s.files[i]);
        s.files[i].data[2] = 99;
        check_fault(&s, i, "damaged");

        s = set_make();
        compress_file(&s.files[i]);
        resize(&s.files[i], s.files[i].n + 1);
        check_fault(&s, i, "goes on after");

        s = set_make();
        resize(&s.files[i], s.files[i].n + 1);
        compress_file(&s.files[i]);
        check_fault(&s, i, "goes on after");

        s = set_make();
        resize(&s.files[i], s.files[i].n - 2);
        compress_file(&s.files[i]);
        check_fault(&s, i, "ends 2 bytes early");
    }
}

static void idx_folder_in_place_of_a_file_is_named(void **state)
{
    (void)state;
    idx_set s = set_make();
    char path[400];
    free(s.files[1].data);
    s.files[1].data = NULL;
    set_write(&s);
    snprintf(path, sizeof path, "%s/%s", s.dir.path, file_names[1]);
    assert_int_equal(mkdir(path, 0700), 0);
    check_open_fails(s.spec, ABAR_E_FORMAT, file_names[1], "is a folder", "give a file");
    set_drop(&s);
}

static void idx_failing_allocations_are_reported_and_leak_nothing(void **state)
{
    (void)state;
    idx_set s = set_make();
    for (int i = 0; i < 4; i++) compress_file(&s.files[i]);
    set_write(&s);
    check_every_allocation_failing(s.spec, NULL);
    set_drop(&s);
}

static void idx_parser_survives_every_truncation_and_byte_change(void **state)
{
    (void)state;
    idx_set s = set_make();
    bytes packed = make_gzip(s.files[0]);
    abar_context *ctx = plain_context();
    const bytes inputs[2] = {s.files[0], packed};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < inputs[k].n; i++) {
            abar__idx idx;
            assert_int_equal(abar__idx_parse(ctx, "cut", inputs[k].data, i, 3, 0, &idx), ABAR_E_FORMAT);
            assert_null(idx.data);
            uint8_t kept = inputs[k].data[i];
            inputs[k].data[i] ^= 0x55;
            if (abar__idx_parse(ctx, "changed", inputs[k].data, inputs[k].n, 3, 0, &idx) == ABAR_OK) abar__idx_free(ctx, &idx);
            inputs[k].data[i] = kept;
            assert_int_equal(abar_context_memory(ctx).now, 0);
        }
    abar_context_destroy(ctx);
    free(packed.data);
    set_drop(&s);
}

static void idx_fashion_mnist_is_as_published(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset_probe probe = {.size = sizeof probe};
    assert_int_equal(abar_dataset_probe_name(ctx, "fashion-mnist", &probe), ABAR_OK);
    if (!probe.found) {
        print_message("fashion-mnist is not in %s: %s\n", probe.where, probe.remedy);
        abar_context_destroy(ctx);
        skip();
    }
    abar_dataset *data;
    assert_int_equal(abar_dataset_open(ctx, "fashion-mnist", NULL, &data), ABAR_OK);
    const abar_dataset_info *info = abar_dataset_info_of(data);
    assert_int_equal(info->train, 60000);
    assert_int_equal(info->test, 10000);
    assert_int_equal(info->height, 28);
    assert_int_equal(info->width, 28);
    static const int32_t first[5] = {9, 0, 0, 3, 0}, first_test[5] = {9, 2, 1, 1, 6};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(abar_dataset_label(data, false, i), first[i]);
        assert_int_equal(abar_dataset_label(data, true, i), first_test[i]);
    }
    double sum = 0.0, squares = 0.0, n = 60000.0 * 784.0;
    for (int64_t i = 0; i < 60000; i++)
        for (int j = 0; j < 784; j++) {
            double v = abar_dataset_image(data, false, i)[j] / 255.0;
            sum += v;
            squares += v * v;
        }
    double mean = sum / n, variance = squares / n - mean * mean;
    assert_true(mean > info->mean[0] - 1e-4 && mean < info->mean[0] + 1e-4);
    assert_true(variance > (info->std[0] - 1e-4) * (info->std[0] - 1e-4) &&
                variance < (info->std[0] + 1e-4) * (info->std[0] + 1e-4));
    abar_dataset_close(data);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idx_plain_files_are_read),
        cmocka_unit_test(idx_probe_tells_the_shape_that_the_files_have),
        cmocka_unit_test(idx_gzipped_files_equal_plain_ones),
        cmocka_unit_test(idx_limits_keep_the_first_samples_and_are_clamped),
        cmocka_unit_test(idx_damage_past_the_limit_is_still_found),
        cmocka_unit_test(idx_missing_file_names_what_was_tried),
        cmocka_unit_test(idx_empty_folder_names_a_remedy),
        cmocka_unit_test(idx_file_faults_are_named),
        cmocka_unit_test(idx_images_and_labels_exchanged_are_told_apart),
        cmocka_unit_test(idx_absurd_shapes_are_refused_before_memory_is_taken),
        cmocka_unit_test(idx_counts_that_differ_are_named),
        cmocka_unit_test(idx_label_out_of_range_is_named),
        cmocka_unit_test(idx_test_images_of_another_shape_are_refused),
        cmocka_unit_test(idx_damaged_gzip_is_named),
        cmocka_unit_test(idx_folder_in_place_of_a_file_is_named),
        cmocka_unit_test(idx_failing_allocations_are_reported_and_leak_nothing),
        cmocka_unit_test(idx_parser_survives_every_truncation_and_byte_change),
        cmocka_unit_test(idx_fashion_mnist_is_as_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
