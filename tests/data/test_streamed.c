/* Data sets of image files: what opening tells, classes, limits, views, the validation part, the digest. */
#include "data/images_support.h"

#include "data/data_impl.h"
#include "data/images/index.h"

enum { TRAIN = 50, TEST = 11, SIDE = 12 };

typedef struct fixture {
    abar_context *ctx;
    folder dir;
} fixture;

static fixture begin(void) { return (fixture){.ctx = plain_context(), .dir = make_images(TRAIN, TEST, 8)}; }

static void end(fixture *f)
{
    assert_int_equal(abar_context_memory(f->ctx).now, 0);
    abar_context_destroy(f->ctx);
    folder_remove(&f->dir);
}

static void streamed_set_tells_what_its_files_are(void **state)
{
    (void)state;
    fixture f = begin();
    const size_t before = abar_context_memory(f.ctx).now;
    abar_dataset *data = open_images(f.ctx, &f.dir, (abar_dataset_config){.view = SIDE});
    const abar_dataset_info *info = abar_dataset_info_of(data);
    assert_string_equal(info->name, "imagefolder");
    assert_string_equal(info->where, f.dir.path);
    assert_true(info->streamed && !info->text && !info->floats && info->shrunk == 0);
    assert_true(info->channels == 3 && info->height == SIDE && info->width == SIDE && info->classes == 3);
    assert_true(info->train == TRAIN && info->test == TEST);
    assert_true(info->mean[0] == 0.485 && info->std[2] == 0.225);
    assert_null(abar_dataset_image(data, false, 0));
    assert_null(abar_dataset_image_floats(data, false, 0));
    assert_int_equal(abar_dataset_label(data, false, 0), 0);
    assert_int_equal(abar_dataset_label(data, false, TRAIN - 1), 2);
    assert_int_equal(abar_dataset_label(data, true, TEST - 1), 2);
    assert_int_equal(abar_dataset_label(data, true, TEST), -1);
    assert_int_equal(abar_dataset_label(data, true, -1), -1);
    assert_int_equal(abar_context_memory(f.ctx).now - before, abar_dataset_bytes(data));
    abar_dataset_close(data);
    data = open_images(f.ctx, &f.dir, (abar_dataset_config){0});
    assert_int_equal(abar_dataset_info_of(data)->height, 224);
    abar_dataset_close(data);
    end(&f);
}

static void streamed_set_names_classes_and_samples(void **state)
{
    (void)state;
    fixture f = begin();
    char path[512], expected[512], small[8];
    abar_dataset *data = open_images(f.ctx, &f.dir, (abar_dataset_config){0});
    assert_string_equal(abar_dataset_class(data, 0), "a");
    assert_string_equal(abar_dataset_class(data, 2), "c");
    assert_null(abar_dataset_class(data, 3));
    assert_null(abar_dataset_class(data, -1));
    assert_null(abar_dataset_class_readable(data, 1));
    abar_dataset_sample_name(data, true, 0, path, sizeof path);
    snprintf(expected, sizeof expected, "%s/val/a/0000.jpg", f.dir.path);
    assert_string_equal(path, expected);
    abar_dataset_sample_name(data, true, TEST, path, sizeof path);
    assert_string_equal(path, "");
    abar_dataset_sample_name(data, false, 0, small, sizeof small);
    assert_int_equal(strlen(small), sizeof small - 1);
    for (size_t n = 0; n < sizeof small; n++) { /* nothing is written behind a buffer of any size */
        memset(small, '#', sizeof small);
        abar_dataset_sample_name(data, false, 0, small, n);
        assert_true(n == 0 || memchr(small, '\0', n));
        for (size_t i = n; i < sizeof small; i++) assert_int_equal(small[i], '#');
    }
    abar_dataset_close(data);
    assert_int_equal(abar_dataset_open(f.ctx, "synthetic", NULL, &data), ABAR_OK);
    assert_null(abar_dataset_class(data, 0));
    abar_dataset_sample_name(data, false, 0, path, sizeof path);
    assert_string_equal(path, "");
    abar_dataset_close(data);
    end(&f);
}

/* A view with limits has the samples that opening with limits has. */
static void streamed_view_limits_by_class(void **state)
{
    (void)state;
    fixture f = begin();
    abar_dataset *all = open_images(f.ctx, &f.dir, (abar_dataset_config){0});
    for (int64_t limit = 1; limit <= TRAIN + 1; limit++) {
        char one[512], other[512];
        abar_dataset *view, *opened = open_images(f.ctx, &f.dir, (abar_dataset_config){.limit_train = limit, .limit_test = 4});
        assert_int_equal(abar__dataset_view(f.ctx, all, limit, 4, &view), ABAR_OK);
        assert_int_equal(abar_dataset_info_of(view)->train, limit < TRAIN ? limit : TRAIN);
        for (int part = 0; part < 2; part++) {
            const int64_t n = part ? 4 : abar_dataset_info_of(opened)->train;
            assert_int_equal(part ? abar_dataset_info_of(view)->test : abar_dataset_info_of(view)->train, n);
            for (int64_t i = 0; i < n; i++) {
                abar_dataset_sample_name(view, part, i, one, sizeof one);
                abar_dataset_sample_name(opened, part, i, other, sizeof other);
                assert_string_equal(one, other);
                assert_int_equal(abar_dataset_label(view, part, i), abar_dataset_label(opened, part, i));
            }
            assert_true(abar__data_crc(view, part) == abar__data_crc(opened, part));
        }
        abar_dataset_close(view);
        abar_dataset_close(opened);
    }
    abar_dataset_close(all);
    end(&f);
}

/* Every training file is in one of the parts, which are those that images in memory would have. */
static void check_split(const abar_dataset *data, const abar_dataset *all, uint64_t seed)
{
    int32_t expected[TRAIN];
    const int64_t held = abar__validation_count(TRAIN, 0.2), kept = TRAIN - held;
    for (int i = 0; i < TRAIN; i++) expected[i] = i;
    for (int64_t p = TRAIN - 1; p >= kept; p--) {
        const int64_t q = abar__hold_out_place(seed, p);
        const int32_t moved = expected[p];
        expected[p] = expected[q];
        expected[q] = moved;
    }
    assert_true(abar_dataset_info_of(data)->validation);
    assert_int_equal(abar_dataset_info_of(data)->train, kept);
    assert_int_equal(abar_dataset_info_of(data)->test, held);
    for (int64_t i = 0; i < TRAIN; i++) {
        char one[512], other[512];
        const bool test = i >= kept;
        abar_dataset_sample_name(data, test, test ? i - kept : i, one, sizeof one);
        abar_dataset_sample_name(all, false, expected[i], other, sizeof other);
        assert_string_equal(one, other);
        assert_int_equal(abar_dataset_label(data, test, test ? i - kept : i), abar_dataset_label(all, false, expected[i]));
    }
}

static void streamed_validation_part_is_a_list_of_files(void **state)
{
    (void)state;
    fixture f = begin();
    abar_dataset *all = open_images(f.ctx, &f.dir, (abar_dataset_config){0}), *view;
    for (uint64_t seed = 0; seed < 3; seed++) {
        const size_t before = abar_context_memory(f.ctx).now;
        abar_dataset *data = open_images(f.ctx, &f.dir, (abar_dataset_config){.validation = 0.2, .validation_seed = seed});
        check_split(data, all, seed);
        assert_int_equal(abar_context_memory(f.ctx).now - before, abar_dataset_bytes(data));
        abar_dataset_close(data);
        assert_int_equal(abar__dataset_view(f.ctx, all, 0, 0, &view), ABAR_OK);
        assert_int_equal(abar__dataset_hold_out(view, 0.2, seed), ABAR_OK);
        check_split(view, all, seed);
        abar_dataset_close(view);
    }
    assert_int_equal(abar_dataset_info_of(all)->train, TRAIN);
    assert_int_equal(abar__dataset_view(f.ctx, all, TRAIN / 2, 4, &view), ABAR_OK); /* lists of its own are replaced */
    assert_int_equal(abar__dataset_hold_out(view, 0.2, 1), ABAR_OK);
    assert_int_equal(abar_dataset_info_of(view)->train + abar_dataset_info_of(view)->test, TRAIN / 2);
    abar_dataset_close(view);
    abar_dataset_close(all);
    end(&f);
}

static void streamed_digest_notices_other_files(void **state)
{
    (void)state;
    fixture f = begin();
    abar_dataset *data = open_images(f.ctx, &f.dir, (abar_dataset_config){0});
    const uint32_t train = abar__data_crc(data, false), test = abar__data_crc(data, true);
    abar_dataset_close(data);
    data = open_images(f.ctx, &f.dir, (abar_dataset_config){.limit_test = 5, .view = 99});
    assert_true(abar__data_crc(data, false) == train); /* neither the other part nor the view matters */
    assert_true(abar__data_crc(data, true) != test);
    abar_dataset_close(data);
    data = open_images(f.ctx, &f.dir, (abar_dataset_config){.validation = 0.2});
    assert_true(abar__data_crc(data, false) != train);
    abar_dataset_close(data);
    write_image(&f.dir, true, 100, 9);
    data = open_images(f.ctx, &f.dir, (abar_dataset_config){0});
    assert_true(abar__data_crc(data, false) == train);
    assert_true(abar__data_crc(data, true) != test);
    abar_dataset_close(data);
    end(&f);
}

static void streamed_set_can_be_probed(void **state)
{
    (void)state;
    fixture f = begin();
    char spec[300];
    abar_dataset_probe probe = {.size = sizeof probe};
    snprintf(spec, sizeof spec, "imagefolder:%s", f.dir.path);
    assert_int_equal(abar_dataset_probe_name(f.ctx, spec, &probe), ABAR_OK);
    assert_true(probe.found && probe.info.streamed);
    assert_string_equal(probe.where, f.dir.path);
    assert_true(probe.info.train == TRAIN && probe.info.test == TEST && probe.info.classes == 3 && probe.info.height == 224);
    const abar_dataset_config config = {.size = sizeof config, .view = SIDE, .limit_train = 5, .classes_file = "/nowhere"};
    assert_int_equal(abar_dataset_probe_with(f.ctx, spec, &config, &probe), ABAR_OK);
    assert_true(probe.found && probe.info.classes == 0); /* it cannot be opened so */
    bytes order = {(uint8_t *)(uintptr_t) "c\nb\na\n", 6};
    char classes[300];
    folder_write(&f.dir, "order.txt", order);
    snprintf(classes, sizeof classes, "%s/order.txt", f.dir.path);
    const abar_dataset_config other = {.size = sizeof other, .view = SIDE, .limit_train = 5, .classes_file = classes};
    assert_int_equal(abar_dataset_probe_with(f.ctx, spec, &other, &probe), ABAR_OK);
    assert_true(probe.info.train == TRAIN && probe.info.classes == 3 && probe.info.height == SIDE);
    assert_int_equal(abar_dataset_probe_name(f.ctx, "tiny-imagenet:/nowhere", &probe), ABAR_OK);
    assert_true(!probe.found && probe.info.classes == 200 && probe.info.height == 64);
    check_contains(probe.remedy, "tiny-imagenet:DIR");
    end(&f);
}

static void streamed_specs_without_images_are_explained(void **state)
{
    (void)state;
    folder empty = folder_make();
    char spec[300];
    snprintf(spec, sizeof spec, "imagefolder:%s", empty.path);
    check_open_fails("imagenet", ABAR_E_NOT_FOUND, "imagenet:", "no folder", "give imagenet:DIR");
    check_open_fails("imagefolder:/nowhere", ABAR_E_NOT_FOUND, "imagefolder:", "no folder /nowhere", "give imagefolder:DIR");
    abar_context *ctx = plain_context();
    abar_dataset *data;
    assert_true(abar_dataset_open(ctx, spec, NULL, &data) < 0);
    check_contains(abar_context_error(ctx), empty.path);
    abar_dataset_config config = {.size = sizeof config, .view = 100000};
    assert_int_equal(abar_dataset_open(ctx, spec, &config, &data), ABAR_E_ARGUMENT);
    check_contains(abar_context_error(ctx), "100000 pixels");
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    folder_remove(&empty);
}

static void streamed_set_reports_failing_allocations(void **state)
{
    (void)state;
    fixture f = begin();
    char spec[300];
    snprintf(spec, sizeof spec, "imagefolder:%s", f.dir.path);
    const abar_dataset_config config = {.size = sizeof config, .validation = 0.2};
    check_every_allocation_failing(spec, &config);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_set_tells_what_its_files_are),
        cmocka_unit_test(streamed_set_names_classes_and_samples),
        cmocka_unit_test(streamed_view_limits_by_class),
        cmocka_unit_test(streamed_validation_part_is_a_list_of_files),
        cmocka_unit_test(streamed_digest_notices_other_files),
        cmocka_unit_test(streamed_set_can_be_probed),
        cmocka_unit_test(streamed_specs_without_images_are_explained),
        cmocka_unit_test(streamed_set_reports_failing_allocations),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
