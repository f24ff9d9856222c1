/* The loader of streamed images: rows against their definition, that threads change nothing, seeking, the order with
 * repetitions, views, memory and what is refused. */
#include "data/loader_testing.h"

#include "data/data_impl.h"
#include "data/images/stream.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

enum { TRAIN = 41, TEST = 13, SIDE = 24, BATCH = 12, BATCHES = TRAIN / BATCH };

static const abar_augment_config torchvision = {.on = true,
                                                .style = ABAR_STYLE_TORCHVISION,
                                                .flip = true,
                                                .policy = ABAR_POLICY_TRIVIAL,
                                                .erase = 0.5,
                                                .mixup = 0.2,
                                                .cutmix = 1.0,
                                                .mix_group = 6};
static const abar_augment_config timm = {.on = true,
                                         .style = ABAR_STYLE_TIMM,
                                         .flip = true,
                                         .policy = ABAR_POLICY_RAND_TIMM,
                                         .erase = 0.25,
                                         .mixup = 0.8,
                                         .cutmix = 1.0,
                                         .mix_group = 4,
                                         .repeat = 3};

static fixture begin(int train, int test, int64_t side) { return fixture_open(make_images(train, test, 20), side); }

static uint64_t batch_checksum(const abar_batch *b, int64_t rows)
{
    uint64_t hash = checksum(CHECKSUM_START, b->images, (size_t)(rows * 3 * b->height * b->width));
    hash = checksum(hash, b->labels, (size_t)rows * sizeof(int32_t));
    if (b->rows) hash = checksum(hash, b->rows, (size_t)rows * sizeof *b->rows);
    const int64_t numbers[] = {b->count, b->epoch, b->index, b->timm, (int64_t)b->seed, b->height, b->width};
    return checksum(hash, numbers, sizeof numbers);
}

/* ---- rows ----------------------------------------------------------------------------------------------------- */

static abar__stream *make_stream(const fixture *f)
{
    abar__stream *stream;
    assert_int_equal(abar__stream_create(f->ctx, 64, 0, &stream), ABAR_OK);
    return stream;
}

static void read_sample(const fixture *f, abar__stream *stream, bool test, int64_t i, const abar__stream_view *view,
                        const abar__draw_key *key, uint8_t *out)
{
    abar__stream_fault fault;
    assert_int_equal(abar__stream_read(stream, f->data->images, test, i, view, key, out, &fault), ABAR_STREAM_READ);
}

/* The file decoded, then the policy's operations one by one. */
static void define_pixels(const fixture *f, int64_t i, const abar__draw_key *key, const abar_augment_config *a, uint8_t *out)
{
    uint8_t file[65536], other[3 * SIDE * SIDE];
    const size_t n = (size_t)abar__images_size(f->data->images, 0, i);
    abar__image_reader *reader;
    abar__image_header header;
    abar__image_fault fault;
    abar__image_change changes[ABAR_CHANGES_MAX];
    assert_true(n <= sizeof file);
    assert_int_equal(abar__images_read(f->data->images, 0, i, file), ABAR_IMAGES_READ);
    assert_int_equal(abar__image_reader_create(f->ctx, &reader), ABAR_OK);
    assert_true(abar__image_look(file, n, &header, &fault));
    const abar__image_view view = abar__draw_view(key, a, header.width, header.height, SIDE);
    assert_true(abar__image_read(reader, file, n, &view, out, &fault));
    const int count = abar__draw_changes(key, a, SIDE, changes);
    for (int k = 0; k < count; k++) {
        abar__image_apply(&changes[k], SIDE, SIDE, out, other);
        memcpy(out, other, sizeof other);
    }
    abar__image_reader_destroy(reader);
}

static void check_row(const fixture *f, const abar_batch *b, int64_t r, const abar_augment_config *a, uint64_t seed)
{
    const abar_row *row = &b->rows[r];
    const abar__draw_key key = {seed, (uint32_t)b->epoch, row->sample, row->repetition};
    uint8_t expected[3 * SIDE * SIDE];
    int16_t erase[4];
    define_pixels(f, row->sample, &key, a, expected);
    assert_memory_equal(b->images + r * (int64_t)sizeof expected, expected, sizeof expected);
    abar__draw_erasing(&key, a, SIDE, erase);
    assert_memory_equal(row->erase, erase, sizeof erase);
    assert_int_equal(row->epoch, b->epoch);
    assert_int_equal(b->labels[r], abar_dataset_label(f->data, false, row->sample));
    assert_int_equal(row->label, b->labels[r]);
}

static void check_mixing(const abar_batch *b, int64_t r, const abar_augment_config *a, uint64_t seed)
{
    const abar_row *row = &b->rows[r];
    const int64_t group = a->mix_group, first = r / group * group, i = r - first;
    abar__mixing mixing;
    assert_true(
        abar__draw_mixing(seed, (uint32_t)b->epoch, (uint32_t)(b->index * (BATCH / group) + r / group), a, SIDE, &mixing));
    assert_int_equal(row->partner, first + (a->style == ABAR_STYLE_TIMM ? group - 1 - i : (i + group - 1) % group));
    assert_int_equal(row->partner_label, b->labels[row->partner]);
    assert_true(row->share == (float)mixing.share && row->rest == (float)(1.0 - mixing.share));
    const int16_t none[4] = {0};
    assert_memory_equal(row->box, mixing.cutmix ? mixing.box : none, sizeof none);
}

static void loader_rows_are_as_defined(void **state)
{
    (void)state;
    fixture f = begin(TRAIN, TEST, SIDE);
    for (int style = 0; style < 2; style++) {
        const abar_augment_config *a = style ? &timm : &torchvision;
        int erased = 0, cut = 0, mixed = 0;
        abar_loader *loader = make_loader(&f, (abar_loader_config){.batch = BATCH, .seed = 5, .threads = 2, .augment = *a});
        for (int k = 0; k < 4 * BATCHES; k++) {
            abar_batch b = next(loader);
            assert_true(b.timm == (style == 1) && b.seed == 5 && b.height == SIDE && b.width == SIDE && b.count == BATCH);
            for (int64_t r = 0; r < BATCH; r++) {
                check_row(&f, &b, r, a, 5);
                check_mixing(&b, r, a, 5);
                erased += b.rows[r].erase[2] > 0;
                cut += b.rows[r].box[2] > 0;
                mixed += b.rows[r].box[2] == 0;
            }
        }
        assert_true(erased > 0 && cut > 0 && mixed > 0);
        abar_loader_destroy(loader);
    }
    fixture_end(&f);
}

/* A net that takes a batch in parts gets the values of the whole. */
static void loader_micro_batches_give_the_same_input(void **state)
{
    (void)state;
    enum { VALUES = 3 * SIDE * SIDE };
    static float whole[BATCH * VALUES], part[BATCH * VALUES];
    fixture f = begin(TRAIN, TEST, SIDE);
    const abar_dataset_info *info = abar_dataset_info_of(f.data);
    for (int style = 0; style < 2; style++) {
        const abar_augment_config *a = style ? &timm : &torchvision;
        abar_loader *loader = make_loader(&f, (abar_loader_config){.batch = BATCH, .seed = 8, .threads = 1, .augment = *a});
        for (int k = 0; k < BATCHES; k++) {
            const abar_batch b = next(loader);
            abar_tensor to = abar_tensor_wrap(NULL, whole, ABAR_F32, 4, (int64_t[]){BATCH, 3, SIDE, SIDE});
            assert_int_equal(abar_batch_normalise(f.ctx, info, &b, BATCH, &to), ABAR_OK);
            for (int64_t micro = a->mix_group; micro <= BATCH; micro += a->mix_group)
                for (int64_t first = 0; first < BATCH && BATCH % micro == 0; first += micro) {
                    const abar_batch some = abar__batch_part(info, &b, first);
                    to = abar_tensor_wrap(NULL, part, ABAR_F32, 4, (int64_t[]){micro, 3, SIDE, SIDE});
                    assert_int_equal(abar_batch_normalise(f.ctx, info, &some, micro, &to), ABAR_OK);
                    assert_memory_equal(part, whole + first * VALUES, (size_t)(micro * VALUES) * sizeof(float));
                }
        }
        abar_loader_destroy(loader);
    }
    fixture_end(&f);
}

/* ---- threads, seeking ------------------------------------------------------------------------------------------- */

static void loader_threads_change_no_streamed_batch(void **state)
{
    (void)state;
    enum { STEPS = 2 * BATCHES + 1 };
    static const int settings[][2] = {{0, 0}, {1, 1}, {1, 0}, {3, 1}, {3, 4}, {8, 1}, {8, 3}};
    fixture f = begin(TRAIN, TEST, SIDE);
    for (int kind = 0; kind < 3; kind++) { /* torchvision, timm, testing */
        uint64_t expected[STEPS];
        for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
            abar_loader *loader = make_loader(&f, (abar_loader_config){.batch = BATCH,
                                                                       .seed = 9,
                                                                       .test = kind == 2,
                                                                       .threads = settings[s][0],
                                                                       .prefetch = settings[s][1],
                                                                       .augment = kind ? timm : torchvision});
            for (int k = 0; k < STEPS; k++) {
                abar_batch b = next(loader);
                const uint64_t sum = batch_checksum(&b, BATCH);
                if (s == 0) expected[k] = sum;
                assert_true(sum == expected[k]);
            }
            abar_loader_destroy(loader);
        }
    }
    fixture_end(&f);
}

static void loader_seek_gives_the_same_streamed_batches(void **state)
{
    (void)state;
    enum { STEPS = 3 * BATCHES };
    fixture f = begin(TRAIN, TEST, SIDE);
    abar_loader_config config = {.batch = BATCH, .seed = 2, .augment = timm};
    uint64_t expected[STEPS + 1];
    abar_loader *loader = make_loader(&f, config);
    for (int k = 0; k <= STEPS; k++) {
        abar_batch b = next(loader);
        expected[k] = batch_checksum(&b, BATCH);
    }
    abar_loader_destroy(loader);
    for (config.threads = 0; config.threads <= 8; config.threads += 4) {
        loader = make_loader(&f, config);
        for (int n = 0; n < STEPS; n++) {
            const int k = n * 5 % STEPS;
            assert_int_equal(abar_loader_seek(loader, k / BATCHES, k % BATCHES), ABAR_OK);
            for (int step = 0; step < 2; step++) {
                abar_batch b = next(loader);
                assert_true(batch_checksum(&b, BATCH) == expected[k + step]);
            }
        }
        abar_loader_destroy(loader);
    }
    fixture_end(&f);
}

static void loader_of_images_can_be_destroyed_at_any_moment(void **state)
{
    (void)state;
    fixture f = begin(TRAIN, TEST, SIDE);
    const size_t held = abar_context_memory(f.ctx).now;
    for (int k = 0; k < 20; k++) {
        abar_loader *loader = make_loader(
            &f, (abar_loader_config){.batch = BATCH, .threads = k % 5, .prefetch = 1 + k % 3, .augment = torchvision});
        for (int i = 0; i < k % 4; i++) next(loader);
        if (k % 3 == 0) assert_int_equal(abar_loader_seek(loader, k, k % BATCHES), ABAR_OK);
        abar_loader_destroy(loader);
        assert_int_equal(abar_context_memory(f.ctx).now, held);
    }
    fixture_end(&f);
}

/* ---- order ---------------------------------------------------------------------------------------------------- */

static void loader_repetitions_come_after_first_copies(void **state)
{
    (void)state;
    enum { N = 20, ROWS = 8 };
    static const uint32_t samples[ROWS] = {4, 1, 8, 4, 1, 8, 4, 1}, repetitions[ROWS] = {0, 0, 0, 1, 1, 1, 2, 2};
    fixture f = begin(N, 3, 8);
    const abar_augment_config a = {.on = true, .erase = 0.5, .repeat = 3};
    abar_loader *loader = make_loader(&f, (abar_loader_config){.batch = ROWS, .seed = 7, .augment = a});
    assert_int_equal(abar_loader_batches(loader), N / ROWS);
    for (int epoch = 0; epoch < 3; epoch++) {
        int32_t order[N];
        assert_int_equal(abar_loader_order_count(loader), N);
        abar_loader_order(loader, epoch, order);
        for (int k = 0; k < N / ROWS; k++) {
            abar_batch b = next(loader);
            for (int r = 0; r < ROWS; r++) {
                assert_int_equal(b.rows[r].sample, order[k * ROWS + r]);
                if (epoch > 0 || k > 0) continue;
                assert_int_equal(b.rows[r].sample, samples[r]);
                assert_int_equal(b.rows[r].repetition, repetitions[r]);
            }
        }
    }
    abar_loader_destroy(loader);
    fixture_end(&f);
}

/* Place p of an epoch is repetition p mod r of the sample at place p / r of the shuffle. */
static void loader_repetitions_follow_the_shuffle(void **state)
{
    (void)state;
    fixture f = begin(TRAIN, 3, 8);
    for (int64_t repeat = 2; repeat < 8; repeat++) {
        int32_t shuffled[TRAIN];
        abar_augment_config a = {.on = true, .erase = 0.5, .repeat = repeat};
        abar_loader *plain = make_loader(&f, (abar_loader_config){.batch = TRAIN, .seed = 3});
        abar_loader *loader = make_loader(&f, (abar_loader_config){.batch = BATCH, .seed = 3, .augment = a});
        abar_loader_order(plain, 0, shuffled);
        for (int64_t k = 0; k < BATCHES; k++) {
            abar_batch b = next(loader);
            bool seen[BATCH] = {false};
            for (int64_t r = 0; r < BATCH; r++) {
                int64_t p = k * BATCH;
                while (p < (k + 1) * BATCH && (seen[p - k * BATCH] || shuffled[p / repeat] != (int32_t)b.rows[r].sample ||
                                               p % repeat != b.rows[r].repetition))
                    p++;
                assert_true(p < (k + 1) * BATCH);
                seen[p - k * BATCH] = true;
                assert_true(r == 0 || b.rows[r].repetition >= b.rows[r - 1].repetition);
            }
        }
        abar_loader_destroy(loader);
        abar_loader_destroy(plain);
    }
    fixture_end(&f);
}

/* ---- views ---------------------------------------------------------------------------------------------------- */

static void loader_test_view_is_the_centre_in_order(void **state)
{
    (void)state;
    enum { T = 16, R = 19, ROWS = 5 };
    fixture f = begin(TRAIN, TEST, SIDE);
    const abar__stream_view view = {.side = T, .resize = R, .filter = ABAR_IMAGE_BICUBIC};
    abar__stream *stream = make_stream(&f);
    abar_loader *loader = make_loader(&f, (abar_loader_config){.test = true,
                                                               .batch = ROWS,
                                                               .threads = 3,
                                                               .test_resize = R,
                                                               .test_size = T,
                                                               .test_filter = ABAR_FILTER_BICUBIC,
                                                               .augment = timm});
    assert_int_equal(abar_loader_samples(loader), TEST);
    for (int64_t k = 0; k < (TEST + ROWS - 1) / ROWS; k++) {
        abar_batch b = next(loader);
        uint8_t expected[3 * T * T];
        assert_true(b.height == T && b.width == T && !b.rows && !b.timm);
        assert_int_equal(b.count, TEST - k * ROWS < ROWS ? TEST - k * ROWS : ROWS);
        for (int64_t r = 0; r < ROWS; r++) {
            const int64_t sample = k * ROWS + (r < b.count ? r : 0);
            read_sample(&f, stream, true, sample, &view, NULL, expected);
            assert_memory_equal(b.images + r * (int64_t)sizeof expected, expected, sizeof expected);
            assert_int_equal(b.labels[r], abar_dataset_label(f.data, true, sample));
        }
    }
    abar_loader_destroy(loader);
    abar__stream_destroy(stream);
    fixture_end(&f);
}

static void loader_without_augmentation_has_the_test_view_at_its_size(void **state)
{
    (void)state;
    fixture f = begin(TRAIN, TEST, SIDE);
    const abar__stream_view view = {.side = SIDE, .resize = 29, .filter = ABAR_IMAGE_BILINEAR}; /* 24 * 39 / 32 = 29.25 */
    abar_loader *loader = make_loader(&f, (abar_loader_config){.batch = BATCH, .seed = 4, .test_resize = 39, .test_size = 32});
    abar__stream *stream = make_stream(&f);
    int32_t order[TRAIN];
    abar_loader_order(loader, 0, order);
    abar_batch b = next(loader);
    assert_true(!b.rows && b.height == SIDE);
    for (int64_t r = 0; r < BATCH; r++) {
        uint8_t expected[3 * SIDE * SIDE];
        read_sample(&f, stream, false, order[r], &view, NULL, expected);
        assert_memory_equal(b.images + r * (int64_t)sizeof expected, expected, sizeof expected);
    }
    abar__stream_destroy(stream);
    abar_loader_destroy(loader);
    fixture_end(&f);
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

static void loader_of_images_counts_its_buffers(void **state)
{
    (void)state;
    fixture f = begin(TRAIN, TEST, SIDE);
    for (int threads = 0; threads < 3; threads++) {
        abar_loader_config config = {
            .size = sizeof config, .batch = BATCH, .threads = threads, .augment = threads ? timm : torchvision};
        const size_t before = abar_context_memory(f.ctx).now;
        size_t planned;
        assert_int_equal(abar_loader_plan_bytes(f.ctx, abar_dataset_info_of(f.data), &config, &planned), ABAR_OK);
        abar_loader *loader = make_loader(&f, config);
        for (int k = 0; k < 2 * BATCHES; k++) next(loader);
        const size_t streams = abar_loader_bytes(loader) - planned;
        assert_true(planned >= (threads ? 3 : 1) * BATCH * 3 * SIDE * SIDE);
        assert_true(streams >= (size_t)(threads ? threads : 1) * 3 * SIDE * SIDE);
        assert_true(abar_context_memory(f.ctx).now - before >= planned);
        abar_loader_destroy(loader);
        assert_int_equal(abar_context_memory(f.ctx).now, before);
    }
    fixture_end(&f);
}

static void loader_plan_refuses_what_create_refuses(void **state)
{
    (void)state;
    fixture f = begin(TRAIN, TEST, SIDE);
    static const abar_loader_config wrong[] = {
        {.size = sizeof(abar_loader_config), .batch = BATCH, .threads = 1, .prefetch = INT_MAX},
        {.size = sizeof(abar_loader_config), .batch = BATCH, .threads = INT_MAX},
        {.size = sizeof(abar_loader_config), .batch = BATCH, .threads = -1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        size_t planned;
        abar_loader *loader;
        assert_int_equal(abar_loader_create(f.ctx, f.data, &wrong[i], &loader), ABAR_E_ARGUMENT);
        assert_int_equal(abar_loader_plan_bytes(f.ctx, abar_dataset_info_of(f.data), &wrong[i], &planned), ABAR_E_ARGUMENT);
        check_contains(abar_context_error(f.ctx), "batches ahead, choose 0 to");
    }
    fixture_end(&f);
}

static void loader_of_images_allocates_no_more_once_all_were_seen(void **state)
{
    (void)state;
    fixture f = begin(TRAIN, TEST, SIDE);
    abar_loader *loader = make_loader(&f, (abar_loader_config){.test = true, .batch = TEST});
    next(loader);
    const size_t held = abar_loader_bytes(loader), now = abar_context_memory(f.ctx).now;
    const uint64_t allocations = abar_context_memory(f.ctx).allocations;
    for (int k = 0; k < 5; k++) next(loader);
    assert_int_equal(abar_loader_bytes(loader), held);
    assert_int_equal(abar_context_memory(f.ctx).now, now);
    assert_int_equal(abar_context_memory(f.ctx).allocations, allocations);
    abar_loader_destroy(loader);
    fixture_end(&f);
}

static void loader_of_images_reports_failing_allocations(void **state)
{
    (void)state;
    failing failure;
    fixture f = {.ctx = failing_context(&failure), .dir = make_images(TRAIN, TEST, 20)};
    f.data = open_images(f.ctx, &f.dir, (abar_dataset_config){.view = SIDE});
    const size_t held = abar_context_memory(f.ctx).now;
    abar_loader_config config = {.size = sizeof config, .batch = BATCH, .augment = timm};
    abar_loader *loader;
    abar_status status = ABAR_E_MEMORY;
    for (long k = 1; status != ABAR_OK && k < 100; k++) {
        failure.calls = 0;
        failure.fail_at = k;
        status = abar_loader_create(f.ctx, f.data, &config, &loader);
        if (status == ABAR_OK) { /* the next one fails when an image is read, or never */
            abar_batch b = {.size = sizeof b};
            const abar_status taken = abar_loader_next(loader, &b);
            assert_true(taken == ABAR_OK || taken == ABAR_E_MEMORY);
            if (taken == ABAR_E_MEMORY) status = ABAR_E_MEMORY;
            abar_loader_destroy(loader);
        }
        assert_true(status == ABAR_OK || status == ABAR_E_MEMORY);
        assert_int_equal(abar_context_memory(f.ctx).now, held);
    }
    assert_int_equal(status, ABAR_OK);
    failure.fail_at = 0;
    fixture_end(&f);
}

/* An allocator that has no memory for threads other than the test's. */
typedef struct one_thread {
    pthread_t own;
    atomic_bool closed; /* to other threads */
    atomic_long refused;
} one_thread;

static void *one_thread_alloc(void *user, size_t n, size_t align)
{
    one_thread *o = user;
    if (atomic_load(&o->closed) && !pthread_equal(pthread_self(), o->own)) {
        atomic_fetch_add(&o->refused, 1);
        return NULL;
    }
    return aligned_alloc(align, (n + align - 1) / align * align);
}

/* The error text belongs to the caller's thread, which may read or write it at the same time. */
static void loader_threads_without_memory_leave_the_error_text_alone(void **state)
{
    (void)state;
    one_thread memory = {.own = pthread_self()};
    const abar_context_config config = {.size = sizeof config, .allocator = {one_thread_alloc, failing_release, &memory}};
    fixture f = {.dir = make_images(TRAIN, TEST, 20)};
    abar_batch b = {.size = sizeof b};
    char before[1024];
    assert_int_equal(abar_context_create(&config, &f.ctx), ABAR_OK);
    f.data = open_images(f.ctx, &f.dir, (abar_dataset_config){.view = SIDE});
    abar_loader *refused, *loader;
    assert_int_equal(abar_loader_create(f.ctx, f.data, &(abar_loader_config){.size = sizeof(abar_loader_config)}, &refused),
                     ABAR_E_ARGUMENT);
    snprintf(before, sizeof before, "%s", abar_context_error(f.ctx));
    atomic_store(&memory.closed, true);
    loader = make_loader(&f, (abar_loader_config){.batch = BATCH, .threads = 2});
    while (atomic_load(&memory.refused) == 0) usleep(1000);
    usleep(100000); /* for what the thread does next */
    assert_string_equal(abar_context_error(f.ctx), before);
    assert_int_equal(abar_loader_next(loader, &b), ABAR_E_MEMORY);
    assert_non_null(strstr(abar_context_error(f.ctx), "no memory to decode it"));
    abar_loader_destroy(loader);
    fixture_end(&f);
}

/* ---- refusals ------------------------------------------------------------------------------------------------- */

static void loader_impossible_views_and_groups_are_refused(void **state)
{
    (void)state;
    static const struct {
        abar_loader_config config;
        const char *reason;
    } wrong[] = {
        {{.size = sizeof(abar_loader_config), .batch = 12, .test_resize = 20}, "--test-resize 20"},
        {{.size = sizeof(abar_loader_config), .batch = 12, .test = true, .test_size = -3}, "--test-size -3"},
        {{.size = sizeof(abar_loader_config), .batch = 12, .test_filter = ABAR_FILTER_NEAREST}, "bilinear or bicubic"},
        {{.size = sizeof(abar_loader_config), .batch = 12, .augment = {.on = true, .repeat = 256}}, "1 to 255"},
        {{.size = sizeof(abar_loader_config), .batch = 12, .augment = {.on = true, .mixup = 0.2, .mix_group = 5}},
         "--mix-group 5: does not divide the batch of 12 images, give --mix-group 12"},
        {{.size = sizeof(abar_loader_config), .batch = 15, .augment = {.on = true, .style = ABAR_STYLE_TIMM, .cutmix = 1.0}},
         "choose another --batch"},
        {{.size = sizeof(abar_loader_config), .batch = 12, .augment = {.on = true, .erase = 2.0}}, "erase 2"},
    };
    fixture f = begin(TRAIN, TEST, SIDE);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        abar_loader *loader = (abar_loader *)f.ctx;
        assert_int_equal(abar_loader_create(f.ctx, f.data, &wrong[i].config, &loader), ABAR_E_ARGUMENT);
        assert_null(loader);
        check_contains(abar_context_error(f.ctx), wrong[i].reason);
    }
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loader_rows_are_as_defined),
        cmocka_unit_test(loader_micro_batches_give_the_same_input),
        cmocka_unit_test(loader_threads_change_no_streamed_batch),
        cmocka_unit_test(loader_seek_gives_the_same_streamed_batches),
        cmocka_unit_test(loader_of_images_can_be_destroyed_at_any_moment),
        cmocka_unit_test(loader_repetitions_come_after_first_copies),
        cmocka_unit_test(loader_repetitions_follow_the_shuffle),
        cmocka_unit_test(loader_test_view_is_the_centre_in_order),
        cmocka_unit_test(loader_without_augmentation_has_the_test_view_at_its_size),
        cmocka_unit_test(loader_of_images_counts_its_buffers),
        cmocka_unit_test(loader_plan_refuses_what_create_refuses),
        cmocka_unit_test(loader_of_images_allocates_no_more_once_all_were_seen),
        cmocka_unit_test(loader_of_images_reports_failing_allocations),
        cmocka_unit_test(loader_threads_without_memory_leave_the_error_text_alone),
        cmocka_unit_test(loader_impossible_views_and_groups_are_refused),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
