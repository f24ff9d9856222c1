/* The context: sizes of its config, memory counters, error texts, growing strings. */
#include "io/io_test.h"

static void context_of_a_bad_config_is_refused(void **state)
{
    (void)state;
    abar_context *ctx = (abar_context *)state;
    abar_context_config config = {.size = 0};
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_E_ARGUMENT);
    assert_null(ctx);
    config.size = sizeof config + 1; /* a newer caller than this library */
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_E_ARGUMENT);
    config = (abar_context_config){.size = sizeof config, .allocator = {.alloc = test_alloc}};
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_E_ARGUMENT); /* an allocator without release */
    assert_int_equal(abar_context_create(NULL, NULL), ABAR_E_ARGUMENT);
}

static void context_of_an_older_config_is_taken(void **state)
{
    (void)state;
    abar_context *ctx;
    abar_context_config config = {.size = sizeof(size_t), .allocator = {.alloc = test_alloc}}; /* not read: beyond its size */
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_OK);
    abar_context_destroy(ctx);
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_string_equal(abar_context_error(ctx), "");
    abar_context_destroy(ctx);
    abar_context_destroy(NULL);
}

static void context_without_memory_fails(void **state)
{
    (void)state;
    test_memory memory = {.fail_at = 1};
    abar_context_config config = {.size = sizeof config, .allocator = {test_alloc, test_release, &memory}};
    abar_context *ctx;
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_E_MEMORY);
    assert_null(ctx);
}

static void context_counts_memory(void **state)
{
    (void)state;
    test_memory memory;
    abar_context *ctx = test_context(&memory);
    void *a, *b, *none = ctx;
    assert_int_equal(abar__alloc(ctx, 100, &a), ABAR_OK);
    assert_int_equal(abar__alloc(ctx, 1000, &b), ABAR_OK);
    assert_int_equal((uintptr_t)a % ABAR_ALIGN, 0);
    for (int i = 0; i < 100; i++) assert_int_equal(((char *)a)[i], 0);
    assert_int_equal(abar__alloc(ctx, 0, &none), ABAR_OK);
    assert_null(none);
    abar__free(ctx, b, 1000);
    abar__count_memory(ctx, 5); /* a device's memory, which the allocator never sees */
    assert_int_equal(abar_context_memory(ctx).now, 105);
    assert_int_equal(abar_context_memory(ctx).allocations, 3);
    abar__uncount_memory(ctx, 5);
    abar_memory_stats stats = abar_context_memory(ctx);
    assert_int_equal(stats.now, 100);
    assert_int_equal(stats.peak, 1100);
    assert_int_equal(stats.allocations, 3);
    abar_context_reset_peak(ctx);
    assert_int_equal(abar_context_memory(ctx).peak, 100);
    abar__free(ctx, a, 100);
    abar__free(ctx, NULL, 100);
    test_context_end(ctx, &memory);
}

static void alloc_that_fails_says_how_much(void **state)
{
    (void)state;
    test_memory memory;
    abar_context *ctx = test_context(&memory);
    void *p = ctx;
    memory.fail_at = 1;
    assert_int_equal(abar__alloc(ctx, 12345, &p), ABAR_E_MEMORY);
    assert_null(p);
    assert_error(ctx, "12345");
    assert_int_equal(abar_context_memory(ctx).allocations, 0);
    test_context_end(ctx, &memory);
}

static void fail_keeps_one_line(void **state)
{
    (void)state;
    test_memory memory;
    abar_context *ctx = test_context(&memory);
    assert_int_equal(abar__fail(ctx, ABAR_E_FORMAT, "%s: bad", "a\n\x1b[31m\x7f\xC4\x81"), ABAR_E_FORMAT);
    assert_string_equal(abar_context_error(ctx), "a??[31m?\xC4\x81: bad");
    assert_int_equal(abar__fail(ctx, ABAR_E_IO, "%s, twice", abar_context_error(ctx)), ABAR_E_IO);
    assert_string_equal(abar_context_error(ctx), "a??[31m?\xC4\x81: bad, twice");
    char text[5000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    abar__fail(ctx, ABAR_E_IO, "%s", text);
    assert_int_equal(strlen(abar_context_error(ctx)), 1023);
    test_context_end(ctx, &memory);
}

static void log_text(void *user, abar_log_level level, const char *text)
{
    assert_int_equal(level, ABAR_LOG_WARNING);
    snprintf(user, 32, "%s", text);
}

static void log_goes_to_the_callback(void **state)
{
    (void)state;
    char text[32] = "";
    abar_context_config config = {.size = sizeof config, .log = log_text, .log_user = text};
    abar_context *ctx;
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_OK);
    abar__log(ctx, ABAR_LOG_WARNING, "%d steps", 3);
    assert_string_equal(text, "3 steps");
    abar_context_destroy(ctx);
}

static void status_text_is_never_missing(void **state)
{
    (void)state;
    for (int s = ABAR_E_PEER; s <= ABAR_STOPPED; s++)
        assert_string_not_equal(abar_status_text((abar_status)s), "unknown status");
    assert_string_equal(abar_status_text((abar_status)99), "unknown status");
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", ABAR_VERSION_MAJOR, ABAR_VERSION_MINOR, ABAR_VERSION_PATCH);
    assert_string_equal(abar_version(), version);
}

static void text_grows_and_stays_terminated(void **state)
{
    (void)state;
    test_memory memory;
    abar_context *ctx = test_context(&memory);
    abar__text text = {0};
    assert_int_equal(abar__text_append(ctx, &text, NULL, 0), ABAR_OK);
    assert_string_equal(text.data, "");
    for (int i = 0; i < 1000; i++) assert_int_equal(abar__text_printf(ctx, &text, "%03d,", i), ABAR_OK);
    assert_int_equal(text.length, 4000);
    assert_int_equal(strlen(text.data), 4000);
    assert_memory_equal(text.data + 4 * 567, "567,", 4);
    memory.fail_at = memory.calls + 1;
    char more[8000] = {0};
    assert_int_equal(abar__text_append(ctx, &text, more, sizeof more), ABAR_E_MEMORY);
    assert_int_equal(text.length, 4000); /* existing text stays */
    assert_memory_equal(text.data + 3996, "999,", 5);
    abar__text_free(ctx, &text);
    assert_null(text.data);
    test_context_end(ctx, &memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_of_a_bad_config_is_refused), cmocka_unit_test(context_of_an_older_config_is_taken),
        cmocka_unit_test(context_without_memory_fails),       cmocka_unit_test(context_counts_memory),
        cmocka_unit_test(alloc_that_fails_says_how_much),     cmocka_unit_test(fail_keeps_one_line),
        cmocka_unit_test(log_goes_to_the_callback),           cmocka_unit_test(status_text_is_never_missing),
        cmocka_unit_test(text_grows_and_stays_terminated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
