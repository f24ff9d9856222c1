/* Texts: what becomes a token, where training ends and testing begins, windows and their seeds, and files that are no text. */
#include "support.h"

#include "base/rng.h"
#include "data/data_impl.h"

static bytes text_bytes(const char *text)
{
    bytes b = bytes_make(strlen(text));
    memcpy(b.data, text, b.n);
    return b;
}

/* A folder with one file, and the spec of it. */
typedef struct case_ {
    folder f;
    char spec[400];
} case_;

static case_ case_make(bytes content)
{
    case_ c = {.f = folder_make()};
    folder_write(&c.f, "text", content);
    snprintf(c.spec, sizeof c.spec, "text:%s/text", c.f.path);
    free(content.data);
    return c;
}

static abar_dataset *open_text(abar_context *ctx, const char *spec, const abar_dataset_config *config)
{
    abar_dataset *data = NULL;
    if (abar_dataset_open(ctx, spec, config, &data) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    return data;
}

/* n characters, the i-th being the (i * i mod 89)-th from ' ' on. */
static bytes squares(size_t n)
{
    bytes b = bytes_make(n);
    for (size_t i = 0; i < n; i++) b.data[i] = (uint8_t)(' ' + i * i % 89);
    return b;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

static void characters_are_numbered_by_code_point(void **unused)
{
    (void)unused;
    /* b a € b é 𝄞 \n a, and twelve more a */
    case_ c = case_make(text_bytes("ba\xe2\x82\xac"
                                   "b\xc3\xa9\xf0\x9d\x84\x9e\naaaaaaaaaaaaa"));
    static const uint16_t begin[] = {2, 1, 4, 2, 3, 5, 0, 1};
    abar_context *ctx = plain_context();
    abar_dataset *data = open_text(ctx, c.spec, NULL);
    const abar_dataset_info *info = abar_dataset_info_of(data);
    assert_true(info->text);
    assert_int_equal(info->classes, 6);
    assert_int_equal(info->train, 18); /* characters, not bytes: nine tenths of 20 */
    assert_int_equal(info->test, 2);
    assert_string_equal(abar_dataset_vocabulary(data), "\nab\xc3\xa9\xe2\x82\xac\xf0\x9d\x84\x9e");
    assert_memory_equal(abar_dataset_tokens(data, false), begin, sizeof begin);
    assert_int_equal(abar_dataset_tokens(data, true)[0], 1);
    assert_null(abar_dataset_image(data, false, 0));
    assert_int_equal(abar_dataset_label(data, false, 0), -1);
    abar_dataset_close(data);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    folder_remove(&c.f);
}

static void bytes_are_their_own_numbers(void **unused)
{
    (void)unused;
    bytes all = bytes_make(300);
    for (size_t i = 0; i < all.n; i++) all.data[i] = (uint8_t)(255 - i); /* no UTF-8, zeros included */
    case_ c = case_make(all);
    abar_context *ctx = plain_context();
    abar_dataset *data = open_text(ctx, c.spec, &(abar_dataset_config){.size = sizeof(abar_dataset_config), .bytes = true});
    assert_int_equal(abar_dataset_info_of(data)->classes, 256);
    assert_int_equal(abar_dataset_info_of(data)->train, 270);
    assert_null(abar_dataset_vocabulary(data));
    for (int i = 0; i < 270; i++) assert_int_equal(abar_dataset_tokens(data, false)[i], (uint8_t)(255 - i));
    for (int i = 270; i < 300; i++) assert_int_equal(abar_dataset_tokens(data, true)[i - 270], (uint8_t)(255 - i));
    abar_dataset_close(data);
    abar_context_destroy(ctx);
    folder_remove(&c.f);
}

static void limits_keep_the_beginnings_of_the_parts(void **unused)
{
    (void)unused;
    case_ c = case_make(squares(1000));
    abar_context *ctx = plain_context();
    abar_dataset *all = open_text(ctx, c.spec, NULL);
    abar_dataset *some = open_text(
        ctx, c.spec, &(abar_dataset_config){.size = sizeof(abar_dataset_config), .limit_train = 100, .limit_test = 30});
    assert_int_equal(abar_dataset_info_of(some)->train, 100);
    assert_int_equal(abar_dataset_info_of(some)->test, 30);
    assert_int_equal(abar_dataset_info_of(some)->classes, abar_dataset_info_of(all)->classes);
    for (int test = 0; test < 2; test++)
        assert_memory_equal(abar_dataset_tokens(some, test), abar_dataset_tokens(all, test), (test ? 30 : 100) * 2);
    abar_dataset_close(all);
    abar_dataset_close(some);
    abar_context_destroy(ctx);
    folder_remove(&c.f);
}

/* Weights that are there know their own characters: another text must be read with their numbers, or not at all. */
static void a_given_vocabulary_replaces_the_texts_own(void **unused)
{
    (void)unused;
    case_ c = case_make(text_bytes("cccccccccccccccccccca"));
    abar_context *ctx = plain_context();
    abar_dataset_config config = {.size = sizeof config, .vocabulary = "abcd"};
    abar_dataset *data = open_text(ctx, c.spec, &config);
    assert_int_equal(abar_dataset_info_of(data)->classes, 4);
    assert_int_equal(abar_dataset_tokens(data, false)[0], 2);
    abar_dataset_close(data);
    static const struct {
        const char *vocabulary, *says;
    } wrong[] = {{"bcd", "the character a, U+0061"}, {"acb", "order of code points"}, {"aabc", "order of code points"}};
    for (int i = 0; i < 3; i++) {
        config.vocabulary = wrong[i].vocabulary;
        assert_true(abar_dataset_open(ctx, c.spec, &config, &data) < 0);
        check_contains(abar_context_error(ctx), wrong[i].says);
        assert_int_equal(abar_context_memory(ctx).now, 0);
    }
    abar_context_destroy(ctx);
    folder_remove(&c.f);
}

/* ---- files that are no text ------------------------------------------------------------------------------------- */

static void files_that_are_no_text_are_refused(void **unused)
{
    (void)unused;
    static const struct {
        const char *content;
        size_t n;
        const char *reason, *remedy;
    } wrong[] = {
        {"", 0, "empty", "replace"},
        {"nineteen characters", 19, "only 19 characters", "at least 20"},
        {"long enough, but with a byte that is none \xff here", 48, "not UTF-8 at byte 42", "--text bytes"},
        {"long enough, but cut in the middle of \xe2\x82", 40, "not UTF-8 at byte 38", "--text bytes"},
        {"an overlong slash is no UTF-8 either: \xc0\xaf", 40, "not UTF-8 at byte 38", "--text bytes"},
        {"long enough, but with a \0 inside", 32, "zero byte at byte 24", "--text bytes"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bytes b = bytes_make(wrong[i].n);
        memcpy(b.data, wrong[i].content, b.n);
        case_ c = case_make(b);
        check_open_fails(c.spec, ABAR_E_FORMAT, c.f.path, wrong[i].reason, wrong[i].remedy);
        folder_remove(&c.f);
    }
}

static void missing_files_are_told_apart(void **unused)
{
    (void)unused;
    folder f = folder_make();
    char spec[400];
    check_open_fails("text", ABAR_E_NOT_FOUND, "text", "no file is named", "text:FILE");
    check_open_fails("text:", ABAR_E_ARGUMENT, "text", "no file after the colon", "text:FILE");
    snprintf(spec, sizeof spec, "text:%s/nowhere", f.path);
    check_open_fails(spec, ABAR_E_NOT_FOUND, "nowhere", "there is no file", "text:FILE");
    snprintf(spec, sizeof spec, "text:%s", f.path);
    check_open_fails(spec, ABAR_E_NOT_FOUND, f.path, "is a folder", "text:FILE");
    folder_remove(&f);
}

static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    case_ c = case_make(squares(500));
    check_every_allocation_failing(c.spec, NULL);
    check_every_allocation_failing(c.spec, &(abar_dataset_config){.size = sizeof(abar_dataset_config), .limit_train = 50});
    folder_remove(&c.f);
}

static void probing_counts_bytes_without_reading(void **unused)
{
    (void)unused;
    case_ c = case_make(squares(500));
    abar_context *ctx = plain_context();
    abar_dataset_probe probe = {.size = sizeof probe};
    assert_int_equal(abar_dataset_probe_name(ctx, c.spec, &probe), ABAR_OK);
    assert_true(probe.found && probe.info.text);
    assert_int_equal(probe.info.train + probe.info.test, 500);
    assert_int_equal(abar_dataset_probe_name(ctx, "text", &probe), ABAR_OK);
    assert_true(!probe.found && probe.remedy[0]);
    abar_context_destroy(ctx);
    folder_remove(&c.f);
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

enum { TOKENS = 1000, TRAIN = 900, TEST = 100, CONTEXT = 7, BATCH = 5, STEPS = 6 };

typedef struct reader {
    case_ c;
    abar_context *ctx;
    abar_dataset *data;
} reader;

static reader reader_open(void)
{
    reader r = {.c = case_make(squares(TOKENS)), .ctx = plain_context()};
    r.data = open_text(r.ctx, r.c.spec, NULL);
    return r;
}

static void reader_close(reader *r)
{
    abar_dataset_close(r->data);
    assert_int_equal(abar_context_memory(r->ctx).now, 0);
    abar_context_destroy(r->ctx);
    folder_remove(&r->c.f);
}

static abar_loader *make_loader(reader *r, bool test, uint64_t seed, int threads, int64_t steps)
{
    const abar_loader_config config = {.size = sizeof config,
                                       .test = test,
                                       .batch = BATCH,
                                       .seed = seed,
                                       .threads = threads,
                                       .context = CONTEXT,
                                       .steps = steps};
    abar_loader *loader;
    if (abar_loader_create(r->ctx, r->data, &config, &loader) != ABAR_OK) fail_msg("%s", abar_context_error(r->ctx));
    size_t planned;
    assert_int_equal(abar_loader_plan_bytes(r->ctx, abar_dataset_info_of(r->data), &config, &planned), ABAR_OK);
    assert_int_equal(abar_loader_bytes(loader), planned);
    return loader;
}

static abar_batch next(abar_loader *loader)
{
    abar_batch b = {.size = sizeof b};
    assert_int_equal(abar_loader_next(loader, &b), ABAR_OK);
    assert_null(b.images);
    return b;
}

/* Row i of the batch is the window that begins at start. */
static void check_window(const reader *r, bool test, const abar_batch *b, int64_t i, int64_t start)
{
    const uint16_t *text = abar_dataset_tokens(r->data, test);
    for (int64_t t = 0; t < CONTEXT; t++) {
        assert_int_equal(b->tokens[i * CONTEXT + t], text[start + t]);
        assert_int_equal(b->labels[i * CONTEXT + t], text[start + t + 1]);
    }
}

/* Where a window may begin is uniform over all places that leave a label for its last token. */
static int64_t drawn_start(uint64_t seed, int64_t epoch, int64_t place)
{
    return abar__below(abar__random(seed, ABAR_DRAW_WINDOW, (uint32_t)epoch, (uint64_t)place).u[0], TRAIN - CONTEXT);
}

static void training_windows_are_drawn_by_counter(void **unused)
{
    (void)unused;
    reader r = reader_open();
    abar_loader *loader = make_loader(&r, false, 42, 0, STEPS);
    assert_int_equal(abar_loader_batches(loader), STEPS);
    assert_int_equal(abar_loader_samples(loader), STEPS * BATCH);
    for (int64_t epoch = 0; epoch < 3; epoch++)
        for (int64_t step = 0; step < STEPS; step++) {
            abar_batch b = next(loader);
            assert_int_equal(b.epoch, epoch);
            assert_int_equal(b.index, step);
            assert_int_equal(b.count, BATCH);
            for (int64_t i = 0; i < BATCH; i++) check_window(&r, false, &b, i, drawn_start(42, epoch, step * BATCH + i));
        }
    abar_loader_destroy(loader);
    reader_close(&r);
}

static void training_windows_reach_both_ends(void **unused)
{
    (void)unused;
    reader r = reader_open();
    abar_loader *loader = make_loader(&r, false, 1, 0, 4000);
    int32_t *order = malloc((size_t)abar_loader_order_count(loader) * sizeof *order), least = TRAIN, most = 0;
    assert_int_equal(abar_loader_order_count(loader), 4000 * BATCH);
    abar_loader_order(loader, 0, order);
    for (int i = 0; i < 4000 * BATCH; i++) {
        least = order[i] < least ? order[i] : least;
        most = order[i] > most ? order[i] : most;
    }
    assert_int_equal(least, 0);
    assert_int_equal(most, TRAIN - CONTEXT - 1); /* its last label is the last token of the part */
    free(order);
    abar_loader_destroy(loader);
    reader_close(&r);
}

static void seeds_and_epochs_differ(void **unused)
{
    (void)unused;
    reader r = reader_open();
    abar_loader *a = make_loader(&r, false, 1, 0, STEPS), *b = make_loader(&r, false, 2, 0, STEPS);
    int32_t x[STEPS * BATCH], y[STEPS * BATCH];
    abar_loader_order(a, 0, x);
    abar_loader_order(b, 0, y);
    assert_memory_not_equal(x, y, sizeof x);
    abar_loader_order(a, 1, y);
    assert_memory_not_equal(x, y, sizeof x);
    abar_loader_destroy(a);
    abar_loader_destroy(b);
    reader_close(&r);
}

static void windows_do_not_depend_on_threads_or_on_what_came_before(void **unused)
{
    (void)unused;
    reader r = reader_open();
    static const int threads[] = {0, 1, 4};
    static const int64_t places[][2] = {{2, 3}, {0, 5}, {1, 0}, {0, STEPS}};
    for (int k = 0; k < 3; k++) {
        abar_loader *loader = make_loader(&r, false, 9, threads[k], STEPS);
        for (int p = 0; p < 4; p++) {
            int64_t epoch = places[p][0], step = places[p][1];
            assert_int_equal(abar_loader_seek(loader, epoch, step), ABAR_OK);
            if (step == STEPS) {
                epoch++;
                step = 0;
            }
            for (int n = 0; n < 2 * STEPS; n++) {
                abar_batch b = next(loader);
                int32_t order[STEPS * BATCH];
                assert_int_equal(b.epoch, epoch);
                assert_int_equal(b.index, step);
                abar_loader_order(loader, epoch, order);
                for (int64_t i = 0; i < BATCH; i++) {
                    assert_int_equal(order[step * BATCH + i], drawn_start(9, epoch, step * BATCH + i));
                    check_window(&r, false, &b, i, order[step * BATCH + i]);
                }
                epoch += ++step == STEPS;
                step %= STEPS;
            }
        }
        abar_loader_destroy(loader);
    }
    reader_close(&r);
}

/* 100 tokens hold 14 windows of 7 with a label each: 5 + 5 + 4; one token is left over. */
static void test_windows_follow_one_another(void **unused)
{
    (void)unused;
    reader r = reader_open();
    for (int threads = 0; threads < 2; threads++) {
        abar_loader *loader = make_loader(&r, true, 3, threads, STEPS);
        assert_int_equal(abar_loader_samples(loader), 14);
        assert_int_equal(abar_loader_batches(loader), 3);
        int32_t order[15];
        assert_int_equal(abar_loader_order_count(loader), 15);
        abar_loader_order(loader, 0, order);
        for (int pass = 0; pass < 2; pass++)
            for (int64_t at = 0; at < 15; at += BATCH) {
                abar_batch b = next(loader);
                assert_int_equal(b.count, at < 10 ? 5 : 4);
                for (int64_t i = 0; i < BATCH; i++) {
                    const int64_t start = (i < b.count ? at + i : at) * CONTEXT;
                    assert_int_equal(order[at + i], start);
                    check_window(&r, true, &b, i, start);
                }
            }
        abar_loader_destroy(loader);
    }
    reader_close(&r);
}

static void an_epoch_without_steps_reads_the_text_once(void **unused)
{
    (void)unused;
    reader r = reader_open();
    abar_loader *loader = make_loader(&r, false, 3, 0, 0);
    assert_int_equal(abar_loader_batches(loader), (TRAIN - 1) / CONTEXT / BATCH); /* 128 windows, 25 batches */
    abar_loader_destroy(loader);
    reader_close(&r);
}

static void windows_that_do_not_fit_are_refused(void **unused)
{
    (void)unused;
    reader r = reader_open();
    static const struct {
        bool test;
        int64_t context, steps, batch;
        const char *says;
    } wrong[] = {{true, TEST, 1, 1, "its test part has 100 characters"},
                 {false, TRAIN, 1, 1, "its training part has 900 characters"},
                 {false, 0, 1, 1, "windows of 0 tokens"},
                 {false, 5, -1, 1, "-1 steps"},
                 {false, 5, 1, 0, "batch 0"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const abar_loader_config config = {.size = sizeof config,
                                           .test = wrong[i].test,
                                           .batch = wrong[i].batch,
                                           .context = wrong[i].context,
                                           .steps = wrong[i].steps};
        abar_loader *loader = (abar_loader *)&r;
        assert_int_equal(abar_loader_create(r.ctx, r.data, &config, &loader), ABAR_E_ARGUMENT);
        assert_null(loader);
        check_contains(abar_context_error(r.ctx), wrong[i].says);
    }
    const abar_loader_config longest = {.size = sizeof longest, .test = true, .batch = 1, .context = TEST - 1};
    abar_loader *loader;
    assert_int_equal(abar_loader_create(r.ctx, r.data, &longest, &loader), ABAR_OK); /* one window, and it fits */
    abar_batch b = next(loader);
    assert_int_equal(b.labels[TEST - 2], abar_dataset_tokens(r.data, true)[TEST - 1]);
    abar_loader_destroy(loader);
    reader_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_are_numbered_by_code_point),
        cmocka_unit_test(bytes_are_their_own_numbers),
        cmocka_unit_test(limits_keep_the_beginnings_of_the_parts),
        cmocka_unit_test(a_given_vocabulary_replaces_the_texts_own),
        cmocka_unit_test(files_that_are_no_text_are_refused),
        cmocka_unit_test(missing_files_are_told_apart),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(probing_counts_bytes_without_reading),
        cmocka_unit_test(training_windows_are_drawn_by_counter),
        cmocka_unit_test(training_windows_reach_both_ends),
        cmocka_unit_test(seeds_and_epochs_differ),
        cmocka_unit_test(windows_do_not_depend_on_threads_or_on_what_came_before),
        cmocka_unit_test(test_windows_follow_one_another),
        cmocka_unit_test(an_epoch_without_steps_reads_the_text_once),
        cmocka_unit_test(windows_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
