/* TensorBoard's event files, byte for byte as TensorBoard's own writer makes them. */
#include "io/io_test.h"

#include "io/io.h"

#include <math.h>

/* file_version at 1700000000.25; train/loss step 0: 2.302585; train/loss step 300 at 1700000001.5: NaN; a tag of 130 t's at
 * step -1, 1700000002: -0.5. Made with tensorboard 2.21's Event protobuf and RecordWriter. */
static const char golden[] = "\x18\x00\x00\x00\x00\x00\x00\x00\xA3\x7F\x4B\x22\x09\x00\x00\x10"
                             "\x40\xFC\x54\xD9\x41\x1A\x0D\x62\x72\x61\x69\x6E\x2E\x45\x76\x65"
                             "\x6E\x74\x3A\x32\x33\x8D\x2F\xE9\x1E\x00\x00\x00\x00\x00\x00\x00"
                             "\xD9\xDC\x12\x32\x09\x00\x00\x10\x40\xFC\x54\xD9\x41\x2A\x13\x0A"
                             "\x11\x0A\x0A\x74\x72\x61\x69\x6E\x2F\x6C\x6F\x73\x73\x15\x8D\x5D"
                             "\x13\x40\x0E\x62\xAE\xFD\x21\x00\x00\x00\x00\x00\x00\x00\x01\x7B"
                             "\xEC\xF6\x09\x00\x00\x60\x40\xFC\x54\xD9\x41\x10\xAC\x02\x2A\x13"
                             "\x0A\x11\x0A\x0A\x74\x72\x61\x69\x6E\x2F\x6C\x6F\x73\x73\x15\x00"
                             "\x00\xC0\x7F\xF8\xC1\xB3\xA6\xA4\x00\x00\x00\x00\x00\x00\x00\x41"
                             "\x13\xB8\x28\x09\x00\x00\x80\x40\xFC\x54\xD9\x41\x10\xFF\xFF\xFF"
                             "\xFF\xFF\xFF\xFF\xFF\xFF\x01\x2A\x8D\x01\x0A\x8A\x01\x0A\x82\x01"
                             "\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74"
                             "\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74"
                             "\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74"
                             "\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74"
                             "\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74"
                             "\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74"
                             "\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74"
                             "\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74\x74"
                             "\x74\x74\x15\x00\x00\x00\xBF\xFE\xBB\x91\x7E";
#define GOLDEN_BYTES (sizeof golden - 1)
#define HEAD_BYTES 86 /* the version and the first scalar */
#define SCALARS 3

static abar_context *ctx;
static test_memory memory;
static char long_tag[131];

static int setup(void **state)
{
    memset(long_tag, 't', 130);
    ctx = test_context(&memory);
    return test_folder_setup(state);
}

static int teardown(void **state)
{
    test_context_end(ctx, &memory);
    return test_folder_teardown(state);
}

static abar_status write_scalar(abar__tfevents *log, int i)
{
    if (i == 0) return abar__tfevents_scalar(log, "train/loss", 0, 1700000000.25, 2.302585);
    if (i == 1) return abar__tfevents_scalar(log, "train/loss", 300, 1700000001.5, NAN);
    return abar__tfevents_scalar(log, long_tag, -1, 1700000002.0, -0.5);
}

static void tfevents_are_tensorboards_bytes(void **state)
{
    char path[TEST_PATH];
    abar__tfevents *log;
    assert_int_equal(GOLDEN_BYTES, 315);
    assert_int_equal(abar__tfevents_open(ctx, test_path(state, "events", path), 0, &log), ABAR_OK);
    assert_int_equal(write_scalar(log, 0), ABAR_OK);
    assert_int_equal(abar__tfevents_bytes(log), 0); /* still in memory */
    assert_int_equal(abar__tfevents_flush(log), ABAR_OK);
    assert_int_equal(abar__tfevents_bytes(log), HEAD_BYTES);
    assert_file(path, golden, HEAD_BYTES);
    assert_int_equal(write_scalar(log, 1), ABAR_OK);
    assert_int_equal(write_scalar(log, 2), ABAR_OK);
    assert_int_equal(abar__tfevents_close(log), ABAR_OK);
    assert_file(path, golden, GOLDEN_BYTES);
    assert_int_equal(abar__tfevents_close(NULL), ABAR_OK);
}

static void tfevents_resumed_go_on_at_the_checkpoint(void **state)
{
    char path[TEST_PATH];
    abar__tfevents *log;
    test_write(test_path(state, "events", path), golden, GOLDEN_BYTES - 7); /* the last record half written */
    assert_int_equal(abar__tfevents_open(ctx, path, HEAD_BYTES, &log), ABAR_OK);
    assert_int_equal(abar__tfevents_bytes(log), HEAD_BYTES);
    assert_int_equal(write_scalar(log, 1), ABAR_OK); /* and no second version record */
    assert_int_equal(write_scalar(log, 2), ABAR_OK);
    assert_int_equal(abar__tfevents_close(log), ABAR_OK);
    assert_file(path, golden, GOLDEN_BYTES);
    assert_int_equal(abar__tfevents_open(ctx, path, GOLDEN_BYTES + 1, &log), ABAR_E_FORMAT);
    assert_null(log);
    assert_error(ctx, "events: has 315 of the 316 bytes");
    assert_int_equal(abar__tfevents_open(ctx, path, 0, &log), ABAR_OK); /* from the beginning */
    assert_int_equal(abar__tfevents_close(log), ABAR_OK);
    assert_file(path, "", 0);
}

static void tfevents_many_are_written_before_the_flush(void **state)
{
    char path[TEST_PATH];
    abar__tfevents *log;
    assert_int_equal(abar__tfevents_open(ctx, test_path(state, "events", path), 0, &log), ABAR_OK);
    for (int i = 0; i < 2000; i++) assert_int_equal(abar__tfevents_scalar(log, "a", i + 1, 0.0, i), ABAR_OK);
    assert_true(abar__tfevents_bytes(log) > 60000);
    size_t held = abar_context_memory(ctx).now;
    for (int i = 0; i < 20000; i++) assert_int_equal(abar__tfevents_scalar(log, "a", i + 1, 0.0, i), ABAR_OK);
    assert_int_equal(abar_context_memory(ctx).now, held); /* memory does not grow with the run */
    assert_int_equal(abar__tfevents_close(log), ABAR_OK);
}

static void tfevents_on_a_full_device_report(void **state)
{
    (void)state;
    abar__tfevents *log;
    if (access("/dev/full", W_OK) != 0) skip();
    assert_int_equal(abar__tfevents_open(ctx, "/dev/full", 0, &log), ABAR_OK);
    assert_int_equal(write_scalar(log, 0), ABAR_OK);
    assert_int_equal(abar__tfevents_flush(log), ABAR_E_IO);
    assert_error(ctx, "/dev/full: no space left on device");
    assert_int_equal(abar__tfevents_bytes(log), 0);
    assert_int_equal(abar__tfevents_close(log), ABAR_E_IO);
}

/* A scalar that failed for lack of memory is dropped whole and can be written again. */
static void tfevents_with_every_allocation_failing_in_turn(void **state)
{
    char path[TEST_PATH];
    test_path(state, "events", path);
    int failures = 1;
    for (long k = 1; failures > 0; k++) {
        abar__tfevents *log;
        failures = 0;
        memory.calls = 0;
        memory.fail_at = k;
        abar_status status = abar__tfevents_open(ctx, path, 0, &log);
        if (status == ABAR_OK) {
            for (int i = 0; i < SCALARS; i++) {
                status = write_scalar(log, i);
                if (status == ABAR_OK) continue;
                assert_int_equal(status, ABAR_E_MEMORY);
                failures++;
                assert_int_equal(write_scalar(log, i), ABAR_OK);
            }
            assert_int_equal(abar__tfevents_close(log), ABAR_OK);
            assert_file(path, golden, GOLDEN_BYTES);
        } else {
            assert_int_equal(status, ABAR_E_MEMORY);
            failures++;
        }
        assert_int_equal(abar_context_memory(ctx).now, 0);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tfevents_are_tensorboards_bytes),
        TEST(tfevents_resumed_go_on_at_the_checkpoint),
        TEST(tfevents_many_are_written_before_the_flush),
        TEST(tfevents_on_a_full_device_report),
        TEST(tfevents_with_every_allocation_failing_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
