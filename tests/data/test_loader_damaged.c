/* Damaged, changed and missing image files: what ends a run, what takes their place, and that threads do not matter. */
#include "data/loader_testing.h"

#include "data/data_impl.h"
#include "data/images/stream.h"

enum { TRAIN = 240, TEST = 130, SIDE = 8, BATCH = 20, BATCHES = TRAIN / BATCH };

/* Damages these images of a part: half of the file is missing. */
static void damage(const folder *f, bool test, const int *images, int n)
{
    for (int k = 0; k < n; k++) {
        char name[64];
        image_name(test, images[k], name);
        bytes b = images[k] % 5 == 4 ? make_png(24, 24, 1) : make_jpeg(24, 24, 1);
        b.n /= 2;
        folder_write(f, name, b);
        free(b.data);
    }
}

static fixture begin(const int *train, int n_train, const int *test, int n_test)
{
    folder dir = make_images(TRAIN, TEST, 10);
    damage(&dir, false, train, n_train);
    damage(&dir, true, test, n_test);
    return fixture_open(dir, SIDE);
}

/* The sample of a set whose file is this image. */
static int64_t sample_of(const abar_dataset *data, bool test, int image)
{
    char name[64], path[512];
    image_name(test, image, name);
    const int64_t n = test ? abar_dataset_info_of(data)->test : abar_dataset_info_of(data)->train;
    for (int64_t i = 0; i < n; i++) {
        abar_dataset_sample_name(data, test, i, path, sizeof path);
        if (strlen(path) > strlen(name) && strcmp(path + strlen(path) - strlen(name), name) == 0) return i;
    }
    fail_msg("%s: not in the set", name);
    return -1;
}

/* Takes batches until one fails; returns how many there were before. */
static int take_until_failure(abar_loader *loader, int most)
{
    abar_batch batch = {.size = sizeof batch};
    int k = 0;
    while (k < most && abar_loader_next(loader, &batch) == ABAR_OK) k++;
    return k;
}

static void damaged_file_ends_a_run_at_its_turn(void **state)
{
    (void)state;
    static const int train[] = {17, 100, 101};
    fixture f = begin(train, 3, NULL, 0);
    char first[256] = "";
    int batches = -1;
    for (int threads = 0; threads <= 8; threads += threads < 2 ? 1 : 3) {
        abar_loader *loader =
            make_loader(&f, (abar_loader_config){.batch = BATCH, .seed = 1, .threads = threads, .prefetch = 4});
        const int k = take_until_failure(loader, BATCHES);
        assert_true(k < BATCHES);
        const char *text = abar_context_error(f.ctx);
        if (batches < 0) {
            batches = k;
            snprintf(first, sizeof first, "%s", text);
            check_contains(text, f.dir.path);
            check_contains(text, "train/");
            check_contains(text, "--damaged skip");
        }
        assert_int_equal(k, batches);
        assert_string_equal(text, first);
        abar_batch batch = {.size = sizeof batch};
        assert_int_equal(abar_loader_next(loader, &batch), ABAR_E_FORMAT); /* again, until a seek */
        assert_int_equal(abar_loader_seek(loader, 0, k), ABAR_OK);
        assert_int_equal(abar_loader_next(loader, &batch), ABAR_E_FORMAT);
        assert_string_equal(abar_context_error(f.ctx), first);
        assert_int_equal(abar_loader_seek(loader, 0, 0), ABAR_OK);
        for (int i = 0; i < k; i++) next(loader);
        abar_loader_destroy(loader);
    }
    fixture_end(&f);
}

/* Two damaged files in succession: both places go to the sample behind them. */
static void damaged_file_is_replaced_by_the_next_sample(void **state)
{
    (void)state;
    enum { STEPS = 2 * BATCHES };
    static const int train[] = {99, 102};
    const abar_augment_config a = {.on = true, .erase = 0.3, .policy = ABAR_POLICY_TRIVIAL, .flip = true};
    fixture f = begin(train, 2, NULL, 0);
    const int64_t first = sample_of(f.data, false, 99);
    assert_int_equal(sample_of(f.data, false, 102), first + 1);
    uint64_t expected[STEPS];
    for (int threads = 0; threads <= 8; threads += threads < 2 ? 1 : 3) {
        abar_loader *loader = make_loader(
            &f, (abar_loader_config){.batch = BATCH, .seed = 1, .threads = threads, .skip_damaged = true, .augment = a});
        int replaced = 0;
        for (int k = 0; k < STEPS; k++) {
            abar_batch b = next(loader);
            for (int64_t r = 0; r < BATCH; r++) {
                const int64_t sample = b.rows[r].sample, used = sample == first || sample == first + 1 ? first + 2 : sample;
                assert_int_equal(b.labels[r], abar_dataset_label(f.data, false, used));
                assert_int_equal(b.rows[r].label, b.labels[r]);
                replaced += used != sample;
            }
            const uint64_t sum =
                checksum(checksum(CHECKSUM_START, b.images, BATCH * 3 * SIDE * SIDE), b.rows, BATCH * sizeof *b.rows);
            if (threads == 0) expected[k] = sum;
            assert_true(sum == expected[k]);
        }
        abar_damage found = {.size = sizeof found};
        assert_int_equal(abar_loader_damage(loader, &found), ABAR_OK);
        assert_int_equal(found.files, 2);
        assert_int_equal(found.places, replaced);
        assert_int_equal(found.places, 2 * STEPS / BATCHES);
        assert_true((found.first[0] == first && found.first[1] == first + 1) ||
                    (found.first[0] == first + 1 && found.first[1] == first));
        abar_loader_destroy(loader);
    }
    fixture_end(&f);
}

/* The draws are the place's, the pixels the other sample's. */
static void damaged_file_keeps_the_draws_of_its_place(void **state)
{
    (void)state;
    static const int train[] = {99};
    const abar_augment_config a = {.on = true, .erase = 0.9, .flip = true};
    fixture f = begin(train, 1, NULL, 0);
    const int64_t damaged = sample_of(f.data, false, 99);
    abar_loader *loader =
        make_loader(&f, (abar_loader_config){.batch = BATCH, .seed = 6, .threads = 2, .skip_damaged = true, .augment = a});
    abar__stream *stream;
    assert_int_equal(abar__stream_create(f.ctx, SIDE, 0, &stream), ABAR_OK);
    bool seen = false;
    for (int k = 0; k < BATCHES; k++) {
        abar_batch b = next(loader);
        for (int64_t r = 0; r < BATCH; r++) {
            if (b.rows[r].sample != damaged) continue;
            uint8_t expected[3 * SIDE * SIDE];
            int16_t erase[4];
            abar__stream_fault fault;
            const abar__draw_key key = {.seed = 6, .epoch = 0, .sample = (uint32_t)damaged};
            const abar__stream_view view = {.side = SIDE, .augment = a};
            assert_int_equal(abar__stream_read(stream, f.data->images, 0, damaged + 1, &view, &key, expected, &fault),
                             ABAR_STREAM_READ);
            assert_memory_equal(b.images + r * (int64_t)sizeof expected, expected, sizeof expected);
            abar__draw_erasing(&key, &a, SIDE, erase);
            assert_memory_equal(b.rows[r].erase, erase, sizeof erase);
            seen = true;
        }
    }
    assert_true(seen);
    abar__stream_destroy(stream);
    abar_loader_destroy(loader);
    fixture_end(&f);
}

static void damaged_files_are_left_out_of_a_test(void **state)
{
    (void)state;
    enum { ROWS = 30 };
    static const int test[] = {63};
    fixture f = begin(NULL, 0, test, 1);
    const int64_t damaged = sample_of(f.data, true, 63);
    for (int threads = 0; threads < 4; threads++)
        for (int64_t rows = 1; rows <= ROWS; rows += ROWS - 1) { /* rows 1: a batch of no image at all */
            abar_loader *loader =
                make_loader(&f, (abar_loader_config){.test = true, .batch = rows, .threads = threads, .skip_damaged = true});
            int64_t sample = 0, count = 0;
            for (int64_t k = 0; k < abar_loader_batches(loader); k++) {
                abar_batch b = next(loader);
                const int64_t end_of_batch = (k + 1) * rows < TEST ? (k + 1) * rows : TEST;
                for (int64_t r = 0; sample < end_of_batch; sample++) {
                    if (sample == damaged) continue;
                    assert_true(r < b.count);
                    assert_int_equal(b.labels[r++], abar_dataset_label(f.data, true, sample));
                }
                for (int64_t r = b.count; r < rows && b.count > 0; r++) {
                    assert_int_equal(b.labels[r], b.labels[0]);
                    assert_memory_equal(b.images + r * 3 * SIDE * SIDE, b.images, 3 * SIDE * SIDE);
                }
                count += b.count;
            }
            assert_int_equal(count, TEST - 1);
            abar_damage found = {.size = sizeof found};
            assert_int_equal(abar_loader_damage(loader, &found), ABAR_OK);
            assert_true(found.files == 1 && found.places == 1 && found.first[0] == damaged);
            abar_loader_destroy(loader);
        }
    fixture_end(&f);
}

static void more_than_one_percent_damaged_ends_the_run(void **state)
{
    (void)state;
    static const int scattered[] = {5, 77, 150}, together[] = {30, 33, 36}, test[] = {9, 50};
    for (int kind = 0; kind < 2; kind++) {
        fixture f = begin(kind ? together : scattered, 3, test, 2);
        int batches[2] = {-1, -1};
        for (int threads = 0; threads <= 4; threads += 2)
            for (int part = 0; part < 2; part++) {
                abar_loader *loader = make_loader(
                    &f, (abar_loader_config){.batch = BATCH, .test = part, .threads = threads, .skip_damaged = true});
                const int k = take_until_failure(loader, BATCHES);
                assert_true(k < abar_loader_batches(loader));
                check_contains(abar_context_error(f.ctx), "more than 1 %");
                check_contains(abar_context_error(f.ctx),
                               part ? "2 of the 130 files of the test part" : "3 of the 240 files of the training part");
                if (batches[part] < 0) batches[part] = k;
                assert_int_equal(k, batches[part]);
                abar_loader_destroy(loader);
            }
        fixture_end(&f);
    }
}

static void changed_and_missing_files_end_a_run(void **state)
{
    (void)state;
    fixture f = begin(NULL, 0, NULL, 0);
    char name[64], path[512];
    image_name(true, 20, name);
    for (int missing = 0; missing < 2; missing++) {
        bytes other = make_jpeg(30, 30, 5);
        snprintf(path, sizeof path, "%s/%s", f.dir.path, name);
        if (missing)
            assert_int_equal(unlink(path), 0);
        else
            folder_write(&f.dir, name, other);
        abar_loader *loader =
            make_loader(&f, (abar_loader_config){.test = true, .batch = BATCH, .threads = 2, .skip_damaged = true});
        assert_true(take_until_failure(loader, BATCHES) < abar_loader_batches(loader));
        check_contains(abar_context_error(f.ctx), name);
        if (!missing)
            check_contains(abar_context_error(f.ctx),
                           "changed since it was indexed, begin again with the files as they are now");
        abar_batch batch = {.size = sizeof batch};
        assert_int_equal(abar_loader_next(loader, &batch), ABAR_E_IO);
        abar_loader_destroy(loader);
        free(other.data);
    }
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_file_ends_a_run_at_its_turn),
        cmocka_unit_test(damaged_file_is_replaced_by_the_next_sample),
        cmocka_unit_test(damaged_file_keeps_the_draws_of_its_place),
        cmocka_unit_test(damaged_files_are_left_out_of_a_test),
        cmocka_unit_test(more_than_one_percent_damaged_ends_the_run),
        cmocka_unit_test(changed_and_missing_files_end_a_run),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
