/* The loader: which samples come when, that threads change nothing, seeking, memory and an early end. */
#include "data/support.h"

#include "base/rng.h"
#include "data/data_impl.h"

enum { H = 8, W = 6, TRAIN = 53, TEST = 10, BATCH = 7, BATCHES = TRAIN / BATCH };

/* Every image carries its number in its first two pixels, so that a batch tells which samples it holds. */
static abar_dataset *open_numbered(abar_context *ctx)
{
    abar_dataset_config config = {.size = sizeof config, .height = H, .width = W, .train = TRAIN, .test = TEST};
    abar_dataset *data;
    assert_int_equal(abar_dataset_open(ctx, "synthetic", &config, &data), ABAR_OK);
    for (int test = 0; test < 2; test++)
        for (int64_t i = 0; i < data->part[test].count; i++) {
            data->part[test].images[i * H * W] = (uint8_t)i;
            data->part[test].images[i * H * W + 1] = (uint8_t)(i ^ 0x5a);
        }
    return data;
}

static abar_loader *make_loader(abar_context *ctx, const abar_dataset *data, abar_loader_config config)
{
    abar_loader *loader;
    config.size = sizeof config;
    if (abar_loader_create(ctx, data, &config, &loader) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    return loader;
}

static abar_batch next(abar_loader *loader)
{
    abar_batch batch = {.size = sizeof batch};
    assert_int_equal(abar_loader_next(loader, &batch), ABAR_OK);
    return batch;
}

static uint64_t batch_checksum(const abar_batch *batch, int64_t rows)
{
    uint64_t hash = checksum(CHECKSUM_START, batch->images, (size_t)rows * H * W);
    hash = checksum(hash, batch->labels, (size_t)rows * sizeof(int32_t));
    const int64_t numbers[3] = {batch->count, batch->epoch, batch->index};
    return checksum(hash, numbers, sizeof numbers);
}

/* Which sample row r is; checks that its image and label are that sample's own. */
static int sample_of(const abar_dataset *data, bool test, const abar_batch *batch, int64_t r)
{
    int i = batch->images[r * H * W];
    assert_memory_equal(batch->images + r * H * W, abar_dataset_image(data, test, i), H * W);
    assert_int_equal(batch->labels[r], abar_dataset_label(data, test, i));
    return i;
}

static void loader_epoch_is_a_fisher_yates_shuffle(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    abar_loader *loader = make_loader(ctx, data, (abar_loader_config){.batch = BATCH, .seed = 11});
    assert_int_equal(abar_loader_batches(loader), BATCHES);
    int unlike_before = 0, before[TRAIN] = {0};
    for (int epoch = 0; epoch < 4; epoch++) {
        int order[TRAIN], seen[TRAIN] = {0};
        for (int i = 0; i < TRAIN; i++) order[i] = i;
        for (int p = 0; p < TRAIN; p++) {
            uint32_t u = abar__random(11, ABAR_DRAW_ORDER, (uint32_t)epoch, (uint64_t)p).u[0];
            int q = p + (int)abar__below(u, (uint32_t)(TRAIN - p)), moved = order[p];
            order[p] = order[q];
            order[q] = moved;
        }
        for (int k = 0; k < BATCHES; k++) {
            abar_batch batch = next(loader);
            assert_int_equal(batch.epoch, epoch);
            assert_int_equal(batch.index, k);
            assert_int_equal(batch.count, BATCH);
            for (int r = 0; r < BATCH; r++) {
                int i = sample_of(data, false, &batch, r);
                assert_int_equal(i, order[k * BATCH + r]);
                assert_int_equal(seen[i]++, 0);
                unlike_before += before[k * BATCH + r] != i;
                before[k * BATCH + r] = i;
            }
        }
    }
    assert_true(unlike_before > 4 * BATCHES * BATCH * 8 / 10);
    abar_loader_destroy(loader);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_whole_set_as_batch_is_a_permutation(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    abar_loader *loader = make_loader(ctx, data, (abar_loader_config){.batch = TRAIN, .threads = 1});
    for (int epoch = 0; epoch < 5; epoch++) {
        bool seen[TRAIN] = {false};
        abar_batch batch = next(loader);
        assert_int_equal(batch.epoch, epoch);
        for (int r = 0; r < TRAIN; r++) seen[sample_of(data, false, &batch, r)] = true;
        for (int i = 0; i < TRAIN; i++) assert_true(seen[i]);
    }
    abar_loader_destroy(loader);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_test_part_comes_in_order_with_its_rest(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    static const int64_t batches[] = {1, 3, 5, TEST, 2 * TEST + 1};
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++)
        for (int threads = 0; threads < 3; threads++) {
            int64_t batch_size = batches[b], expected = 0;
            abar_loader *loader = make_loader(
                ctx, data,
                (abar_loader_config){.test = true, .batch = batch_size, .threads = threads, .crop_pad = 2, .flip = true});
            assert_int_equal(abar_loader_batches(loader), (TEST + batch_size - 1) / batch_size);
            for (int64_t k = 0; k < 2 * abar_loader_batches(loader); k++) {
                abar_batch batch = next(loader);
                assert_int_equal(batch.epoch, k / abar_loader_batches(loader));
                for (int64_t r = 0; r < batch.count; r++, expected++)
                    assert_int_equal(sample_of(data, true, &batch, r), expected % TEST);
                for (int64_t r = batch.count; r < batch_size; r++) {
                    assert_memory_equal(batch.images + r * H * W, batch.images, H * W);
                    assert_int_equal(batch.labels[r], batch.labels[0]);
                }
            }
            assert_int_equal(expected, 2 * TEST);
            abar_loader_destroy(loader);
        }
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_threads_and_prefetch_change_nothing(void **state)
{
    (void)state;
    enum { STEPS = 3 * BATCHES + 2 };
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    uint64_t expected[STEPS];
    static const int settings[][2] = {{0, 0}, {0, 9}, {1, 1}, {1, 0}, {3, 1}, {3, 2}, {3, 40}, {8, 3}};
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        abar_loader_config config = {
            .batch = BATCH, .seed = 3, .threads = settings[s][0], .prefetch = settings[s][1], .crop_pad = 2, .flip = true};
        abar_loader *loader = make_loader(ctx, data, config);
        for (int k = 0; k < STEPS; k++) {
            abar_batch batch = next(loader);
            uint64_t sum = batch_checksum(&batch, BATCH);
            if (s == 0) expected[k] = sum;
            assert_true(sum == expected[k]);
        }
        abar_loader_destroy(loader);
    }
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_held_batch_stays_as_it_was(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    abar_loader *loader = make_loader(ctx, data, (abar_loader_config){.batch = BATCH, .threads = 2, .prefetch = 1});
    for (int k = 0; k < 20; k++) {
        abar_batch batch = next(loader);
        uint64_t before = batch_checksum(&batch, BATCH);
        usleep(500); /* time for the workers to go as far ahead as they may */
        assert_true(batch_checksum(&batch, BATCH) == before);
    }
    abar_loader_destroy(loader);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_seek_equals_having_iterated(void **state)
{
    (void)state;
    enum { EPOCHS = 3, STEPS = EPOCHS * BATCHES };
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    abar_loader_config config = {.batch = BATCH, .seed = 8, .crop_pad = 1, .flip = true};
    uint64_t expected[STEPS + 1];
    abar_loader *loader = make_loader(ctx, data, config);
    for (int k = 0; k <= STEPS; k++) {
        abar_batch batch = next(loader);
        expected[k] = batch_checksum(&batch, BATCH);
    }
    abar_loader_destroy(loader);
    for (config.threads = 0; config.threads <= 3; config.threads += 3) {
        loader = make_loader(ctx, data, config);
        for (int n = 0; n < STEPS; n++) {
            int k = n * 5 % STEPS; /* forth and back */
            assert_int_equal(abar_loader_seek(loader, k / BATCHES, k % BATCHES), ABAR_OK);
            for (int ahead = 0; ahead < 2; ahead++) {
                abar_batch batch = next(loader);
                assert_true(batch_checksum(&batch, BATCH) == expected[k + ahead]);
            }
        }
        assert_int_equal(abar_loader_seek(loader, 0, BATCHES), ABAR_OK); /* the end of an epoch is the next one's start */
        abar_batch batch = next(loader);
        assert_true(batch_checksum(&batch, BATCH) == expected[BATCHES]);
        assert_int_equal(abar_loader_seek(loader, 0, BATCHES + 1), ABAR_E_ARGUMENT);
        assert_int_equal(abar_loader_seek(loader, -1, 0), ABAR_E_ARGUMENT);
        assert_int_equal(abar_loader_seek(loader, 0, -1), ABAR_E_ARGUMENT);
        batch = next(loader);
        assert_true(batch_checksum(&batch, BATCH) == expected[BATCHES + 1]); /* a refused seek moves nothing */
        abar_loader_destroy(loader);
    }
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_seek_while_batches_are_being_made_is_safe(void **state)
{
    (void)state;
    enum {
        SIDE = 64,
        SAMPLES = 60,
        ROWS = 20,
        BATCHES_HERE = SAMPLES / ROWS
    }; /* large images: seeks meet workers in the middle of a batch */
    abar_context *ctx = plain_context();
    abar_dataset_config set = {
        .size = sizeof set, .channels = 3, .height = SIDE, .width = SIDE, .classes = SAMPLES, .train = SAMPLES, .test = 1};
    abar_dataset *data;
    assert_int_equal(abar_dataset_open(ctx, "synthetic", &set, &data), ABAR_OK);
    abar_loader *loader = make_loader(ctx, data, (abar_loader_config){.batch = ROWS, .threads = 3, .prefetch = 4});
    for (int k = 0; k < 300; k++) {
        int64_t epoch = k % 7, index = k % BATCHES_HERE;
        assert_int_equal(abar_loader_seek(loader, epoch, index), ABAR_OK);
        for (int64_t n = index; n < index + 1 + k % 4; n++) {
            abar_batch batch = next(loader);
            assert_int_equal(batch.epoch, epoch + n / BATCHES_HERE);
            assert_int_equal(batch.index, n % BATCHES_HERE);
            for (int r = 0; r < ROWS; r++) /* as many classes as samples: the label is the sample's number */
                assert_memory_equal(batch.images + r * 3 * SIDE * SIDE, abar_dataset_image(data, false, batch.labels[r]),
                                    3 * SIDE * SIDE);
        }
    }
    abar_loader_destroy(loader);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_augments_by_sample_and_epoch(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    abar_loader *plain = make_loader(ctx, data, (abar_loader_config){.batch = BATCH, .seed = 21});
    abar_loader *augmented =
        make_loader(ctx, data, (abar_loader_config){.batch = BATCH, .seed = 21, .threads = 2, .crop_pad = 3, .flip = true});
    int changed = 0;
    for (int k = 0; k < 2 * BATCHES; k++) {
        abar_batch a = next(plain), b = next(augmented);
        for (int r = 0; r < BATCH; r++) {
            uint8_t expected[H * W];
            int sample = sample_of(data, false, &a, r);
            abar__augment_apply(abar__augment_draw(21, a.epoch, sample, 3, true), 1, H, W, 1, a.images + r * H * W, expected);
            assert_memory_equal(b.images + r * H * W, expected, H * W);
            changed += memcmp(a.images + r * H * W, expected, H * W) != 0;
        }
    }
    assert_true(changed > BATCHES * BATCH);
    abar_loader_destroy(augmented);
    abar_loader_destroy(plain);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_can_be_destroyed_at_any_moment(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    size_t held = abar_context_memory(ctx).now;
    for (int k = 0; k < 40; k++) {
        abar_loader *loader =
            make_loader(ctx, data, (abar_loader_config){.batch = BATCH, .threads = 1 + k % 4, .prefetch = 1 + k % 3});
        for (int i = 0; i < k % 5; i++) next(loader);
        if (k % 7 == 0) assert_int_equal(abar_loader_seek(loader, k, k % BATCHES), ABAR_OK);
        abar_loader_destroy(loader);
        assert_int_equal(abar_context_memory(ctx).now, held);
    }
    abar_loader_destroy(NULL);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_holds_what_was_planned_and_allocates_once(void **state)
{
    (void)state;
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    for (int threads = 0; threads < 4; threads++)
        for (int test = 0; test < 2; test++) {
            abar_loader_config config = {
                .size = sizeof config, .batch = BATCH, .threads = threads, .prefetch = threads, .test = test};
            size_t before = abar_context_memory(ctx).now, planned;
            assert_int_equal(abar_loader_plan_bytes(ctx, abar_dataset_info_of(data), &config, &planned), ABAR_OK);
            abar_loader *loader = make_loader(ctx, data, config);
            uint64_t allocations = abar_context_memory(ctx).allocations;
            assert_int_equal(abar_context_memory(ctx).now - before, planned);
            assert_int_equal(abar_loader_bytes(loader), planned);
            assert_true(planned >= BATCH * H * W);
            for (int k = 0; k < 20; k++) next(loader);
            assert_int_equal(abar_loader_seek(loader, 3, 1), ABAR_OK);
            next(loader);
            assert_int_equal(abar_context_memory(ctx).allocations, allocations);
            abar_loader_destroy(loader);
            assert_int_equal(abar_context_memory(ctx).now, before);
        }
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_impossible_wishes_are_refused(void **state)
{
    (void)state;
    static const struct {
        abar_loader_config config;
        const char *reason;
    } wrong[] = {
        {{.size = sizeof(abar_loader_config), .batch = 0}, "batch 0: holds no sample"},
        {{.size = sizeof(abar_loader_config), .batch = -4}, "batch -4"},
        {{.size = sizeof(abar_loader_config), .batch = 70},
         "batch 70: the training set has only 53 samples, choose a smaller batch"},
        {{.size = sizeof(abar_loader_config), .batch = INT64_MAX, .test = true}, "choose a smaller batch"},
        {{.size = sizeof(abar_loader_config), .batch = 1, .threads = -1}, "-1 threads"},
        {{.size = sizeof(abar_loader_config), .batch = 1, .threads = 100000}, "100000 threads"},
        {{.size = sizeof(abar_loader_config), .batch = 1, .prefetch = -2}, "-2 batches ahead"},
        {{.size = sizeof(abar_loader_config), .batch = 1, .crop_pad = -1}, "crop padding -1"},
        {{.size = sizeof(abar_loader_config), .batch = 1, .crop_pad = W}, "the images are 8 x 6, choose 0 to 5"},
        {{.size = 0, .batch = 1}, "sizeof(abar_loader_config)"},
        {{.size = 1000, .batch = 1}, "sizeof(abar_loader_config)"},
    };
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    size_t held = abar_context_memory(ctx).now;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        abar_loader *loader = (abar_loader *)ctx;
        assert_int_equal(abar_loader_create(ctx, data, &wrong[i].config, &loader), ABAR_E_ARGUMENT);
        assert_null(loader);
        check_contains(abar_context_error(ctx), wrong[i].reason);
        assert_int_equal(abar_context_memory(ctx).now, held);
    }
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

static void loader_failing_allocation_is_reported(void **state)
{
    (void)state;
    failing f;
    abar_context *ctx = failing_context(&f);
    abar_dataset *data = open_numbered(ctx);
    size_t held = abar_context_memory(ctx).now;
    abar_loader_config config = {.size = sizeof config, .batch = BATCH, .threads = 2};
    abar_loader *loader;
    f.calls = 0;
    f.fail_at = 1;
    assert_int_equal(abar_loader_create(ctx, data, &config, &loader), ABAR_E_MEMORY);
    assert_null(loader);
    assert_int_equal(abar_context_memory(ctx).now, held);
    assert_int_equal(abar_loader_create(ctx, data, &config, &loader), ABAR_OK);
    assert_int_equal(f.calls, 2);
    abar_loader_destroy(loader);
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

/* Of a batch that is shared: the rows of each share are those of the whole batch, with its augmentation. */
static void loader_share_has_its_rows_of_every_batch(void **state)
{
    (void)state;
    enum { ROWS = 3 };
    abar_context *ctx = plain_context();
    abar_dataset *data = open_numbered(ctx);
    const abar_loader_config config = {.batch = 2 * ROWS + 1, .seed = 3, .crop_pad = 2, .flip = true};
    for (int first = 0; first <= 4; first += 2) {
        abar_loader_config own = config;
        own.first_row = first;
        own.rows = ROWS;
        own.threads = first / 2;
        abar_loader *whole = make_loader(ctx, data, config), *share = make_loader(ctx, data, own);
        assert_int_equal(abar_loader_batches(share), abar_loader_batches(whole));
        for (int64_t b = 0; b < 2 * abar_loader_batches(whole); b++) {
            const abar_batch all = next(whole), part = next(share);
            assert_int_equal(part.count, ROWS);
            assert_int_equal(part.first, first);
            assert_int_equal(part.index, all.index);
            assert_memory_equal(part.images, all.images + first * H * W, ROWS * H * W);
            assert_memory_equal(part.labels, all.labels + first, ROWS * sizeof(int32_t));
        }
        assert_true(abar_loader_bytes(share) < abar_loader_bytes(whole) || own.threads > 0);
        abar_loader_destroy(whole);
        abar_loader_destroy(share);
    }
    static const int64_t wrong[][2] = {{5, 3}, {-1, 3}, {0, 8}, {0, -1}};
    for (int i = 0; i < 4; i++) {
        abar_loader_config own = config;
        abar_loader *loader;
        own.size = sizeof own;
        own.first_row = wrong[i][0];
        own.rows = wrong[i][1];
        assert_int_equal(abar_loader_create(ctx, data, &own, &loader), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(ctx), "of a batch of 7"));
    }
    abar_dataset_close(data);
    abar_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loader_epoch_is_a_fisher_yates_shuffle),
        cmocka_unit_test(loader_share_has_its_rows_of_every_batch),
        cmocka_unit_test(loader_whole_set_as_batch_is_a_permutation),
        cmocka_unit_test(loader_test_part_comes_in_order_with_its_rest),
        cmocka_unit_test(loader_threads_and_prefetch_change_nothing),
        cmocka_unit_test(loader_held_batch_stays_as_it_was),
        cmocka_unit_test(loader_seek_equals_having_iterated),
        cmocka_unit_test(loader_seek_while_batches_are_being_made_is_safe),
        cmocka_unit_test(loader_augments_by_sample_and_epoch),
        cmocka_unit_test(loader_can_be_destroyed_at_any_moment),
        cmocka_unit_test(loader_holds_what_was_planned_and_allocates_once),
        cmocka_unit_test(loader_impossible_wishes_are_refused),
        cmocka_unit_test(loader_failing_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
