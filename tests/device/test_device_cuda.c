/* The basis of the cuda back end: copies between every dtype and layout, memory that is zero and counted, captured graphs,
 * events, provisional state, and missing devices. */
#include "cuda_testing.h"

#include <math.h>

static abar_context *ctx;
static abar_device *cuda;

static int open_device(void **unused)
{
    (void)unused;
    return abar_context_create(NULL, &ctx) != ABAR_OK || abar_device_open(ctx, "cuda", NULL, &cuda) != ABAR_OK;
}

static int close_device(void **unused)
{
    (void)unused;
    abar_device_close(cuda);
    size_t held = abar_context_memory(ctx).now;
    abar_context_destroy(ctx);
    return held != 0;
}

/* ---- copies ---------------------------------------------------------------------------------------------------------- */

typedef enum form { DENSE, NHWC, LAST, GAPS, FORMS } form;
static const char *const form_names[] = {"dense", "nhwc", "channels-last strides", "gaps"};
static const abar_dtype dtypes[] = {ABAR_F64, ABAR_F32, ABAR_BF16, ABAR_F16};

static abar_tensor view_of(form f, abar_dtype dtype, const int64_t dim[4])
{
    abar_tensor t = abar_tensor_wrap(NULL, NULL, dtype, 4, dim);
    if (f == NHWC) t.layout = ABAR_LAYOUT_NHWC;
    if (f == LAST) return abar_tensor_wrap_channels_last(NULL, NULL, dtype, dim);
    for (int i = 0; f == GAPS && i < 4; i++) t.stride[i] *= 2;
    return t;
}

/* Host memory with every byte set, and the tensor's elements where it has any. */
static abar_tensor on_host(abar_tensor t, bool filled)
{
    t.data = malloc(abar_tensor_bytes(&t));
    assert_non_null(t.data);
    memset(t.data, 0x55, abar_tensor_bytes(&t));
    int64_t index[4] = {0};
    for (int64_t k = 0; filled && k < abar_tensor_count(&t); k++) {
        for (int64_t i = 3, rest = k; i >= 0; rest /= t.dim[i--]) index[i] = rest % t.dim[i];
        abar__tensor_store(&t, abar__tensor_offset(&t, index), sin((double)k) * 3.0);
    }
    return t;
}

/* host -> device -> device in another form -> host, each as a copy on the host has it. */
static void check_copy(abar_tensor from, abar_tensor to, const char *label)
{
    abar_tensor source = on_host(from, true), expected = on_host(to, false), got = on_host(to, false);
    abar__tensor_copy_host(&expected, &source);
    abar_tensor a = from, b = to;
    a.dev = b.dev = cuda;
    a.data = cuda_upload(cuda, source.data, abar_tensor_bytes(&source));
    b.data = cuda_upload(cuda, got.data, abar_tensor_bytes(&got));
    abar_status status = abar_tensor_copy(ctx, &b, &a); /* on the device */
    if (status != ABAR_OK) fail_msg("%s: %s", label, abar_context_error(ctx));
    cuda_wait(cuda, label);
    cuda_move(cuda, got.data, b.data, abar_tensor_bytes(&b));
    if (memcmp(got.data, expected.data, abar_tensor_bytes(&to)) != 0) fail_msg("%s: differs on the device", label);
    memset(got.data, 0x55, abar_tensor_bytes(&to));
    cuda_move(cuda, b.data, got.data, abar_tensor_bytes(&b));
    if (abar_tensor_copy(ctx, &b, &source) != ABAR_OK) fail_msg("%s: %s", label, abar_context_error(ctx));
    cuda_move(cuda, got.data, b.data, abar_tensor_bytes(&b));
    if (memcmp(got.data, expected.data, abar_tensor_bytes(&to)) != 0) fail_msg("%s: differs from the host", label);
    memset(got.data, 0x55, abar_tensor_bytes(&to));
    if (abar_tensor_copy(ctx, &got, &a) != ABAR_OK) fail_msg("%s: %s", label, abar_context_error(ctx));
    cuda_wait(cuda, label);
    if (memcmp(got.data, expected.data, abar_tensor_bytes(&to)) != 0) fail_msg("%s: differs to the host", label);
    abar_device_free(cuda, a.data, abar_tensor_bytes(&a));
    abar_device_free(cuda, b.data, abar_tensor_bytes(&b));
    free(source.data);
    free(expected.data);
    free(got.data);
}

static void copies_between_all_dtypes_and_layouts_equal_the_hosts(void **unused)
{
    (void)unused;
    static const int64_t dims[][4] = {{3, 5, 4, 7}, {1, 16, 3, 3}, {4, 1, 2, 5}};
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < FORMS * 4; i++)
            for (int k = 0; k < FORMS * 4; k++) {
                if ((i + k + s) % 3 && cuda_only("ABAR_TEST_SMALL")) continue;
                char label[120];
                snprintf(label, sizeof label, "%s %s to %s %s", form_names[i / 4], abar_dtype_name(dtypes[i % 4]),
                         form_names[k / 4], abar_dtype_name(dtypes[k % 4]));
                check_copy(view_of((form)(i / 4), dtypes[i % 4], dims[s]), view_of((form)(k / 4), dtypes[k % 4], dims[s]),
                           label);
            }
}

static void copies_of_integers_keep_their_bits(void **unused)
{
    (void)unused;
    int32_t labels[] = {3, -1, 7, 2000000000}, back[4] = {0};
    abar_tensor host = abar_tensor_wrap(NULL, labels, ABAR_I32, 1, (int64_t[]){4}), device = host, again = host;
    device.dev = cuda;
    device.data = cuda_alloc(cuda, sizeof labels);
    again.data = back;
    assert_int_equal(abar_tensor_copy(ctx, &device, &host), ABAR_OK);
    assert_int_equal(abar_tensor_copy(ctx, &again, &device), ABAR_OK);
    cuda_wait(cuda, "copy");
    assert_memory_equal(labels, back, sizeof labels);
    abar_device_free(cuda, device.data, sizeof labels);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

static void memory_is_zero_aligned_and_counted(void **unused)
{
    (void)unused;
    const size_t sizes[] = {1, 100, 4096, 3 << 20};
    for (int i = 0; i < 4; i++) {
        unsigned char *host = malloc(sizes[i]), *device = cuda_alloc(cuda, sizes[i]);
        memset(host, 1, sizes[i]);
        assert_true((uintptr_t)device % 64 == 0);
        cuda_move(cuda, host, device, sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(host[k], 0);
        memset(host, 1, sizes[i]); /* released memory must be cleared before it is used again */
        cuda_move(cuda, device, host, sizes[i]);
        abar_device_free(cuda, device, sizes[i]);
        free(host);
    }
    const size_t free_bytes = cuda->ops->stream->memory_free(cuda);
    assert_true(free_bytes > (1u << 30));
    void *none = NULL;
    assert_int_equal(abar_device_alloc(cuda, (size_t)1 << 50, &none), ABAR_E_MEMORY);
    assert_non_null(strstr(abar_context_error(ctx), "memory"));
    assert_null(none);
    cuda_wait(cuda, "after a request that failed"); /* and nothing else is broken */
}

/* ---- the queue --------------------------------------------------------------------------------------------------------- */

static void recordings_replay_what_was_written_down(void **unused)
{
    (void)unused;
    const abar__stream_ops *q = cuda->ops->stream;
    float host[3] = {1.0f, 2.0f, 3.0f}, got[3] = {0};
    float *a = cuda_upload(cuda, host, sizeof host), *b = cuda_alloc(cuda, sizeof host);
    void *graph = NULL;
    assert_int_equal(q->capture_begin(cuda), ABAR_OK);
    assert_int_equal(q->copy_bytes(cuda, b, a, sizeof host), ABAR_OK);
    assert_int_equal(q->capture_end(cuda, &graph), ABAR_OK);
    assert_non_null(graph);
    cuda_move(cuda, got, b, sizeof host);
    assert_true(got[0] == 0.0f && got[2] == 0.0f); /* not executed during capture */
    for (int i = 0; i < 3; i++) {
        host[1] = (float)i;
        cuda_move(cuda, a, host, sizeof host);
        assert_int_equal(q->replay(cuda, graph), ABAR_OK);
        cuda_move(cuda, got, b, sizeof host);
        assert_memory_equal(got, host, sizeof host);
    }
    q->forget(cuda, graph);
    q->forget(cuda, NULL);
    abar_device_free(cuda, a, sizeof host);
    abar_device_free(cuda, b, sizeof host);
}

static void marks_pass_in_order_and_tell_the_time_between(void **unused)
{
    (void)unused;
    const abar__stream_ops *q = cuda->ops->stream;
    enum { BYTES = 64 << 20 };
    void *from, *to, *a = cuda_alloc(cuda, BYTES), *b = cuda_alloc(cuda, BYTES);
    assert_int_equal(q->event_create(cuda, &from), ABAR_OK);
    assert_int_equal(q->event_create(cuda, &to), ABAR_OK);
    assert_int_equal(q->event_record(cuda, from), ABAR_OK);
    for (int i = 0; i < 20; i++) assert_int_equal(q->copy_bytes(cuda, a, b, BYTES), ABAR_OK);
    assert_int_equal(q->event_record(cuda, to), ABAR_OK);
    assert_int_equal(q->event_wait(cuda, to), ABAR_OK);
    assert_true(q->event_done(cuda, from) && q->event_done(cuda, to));
    const double ms = q->event_elapsed(cuda, from, to);
    if (!(ms > 0.05 && ms < 5000.0)) fail_msg("%g ms between the marks", ms); /* 2.5 GB cannot move in less */
    q->event_destroy(cuda, from);
    q->event_destroy(cuda, to);
    abar_device_free(cuda, a, BYTES);
    abar_device_free(cuda, b, BYTES);
}

static void shared_memory_is_zero_and_seen_by_both_sides(void **unused)
{
    (void)unused;
    const abar__stream_ops *q = cuda->ops->stream;
    void *memory;
    assert_int_equal(q->shared_alloc(cuda, 4 * sizeof(double), &memory), ABAR_OK);
    double *shared = memory, value = 2.5, back = 0.0, *device = cuda_upload(cuda, &value, sizeof value);
    for (int i = 0; i < 4; i++) assert_true(shared[i] == 0.0);
    cuda_move(cuda, &shared[1], device, sizeof value);
    assert_true(shared[1] == 2.5);
    shared[2] = -7.0;
    cuda_move(cuda, device, &shared[2], sizeof value);
    cuda_move(cuda, &back, device, sizeof value);
    assert_true(back == -7.0);
    abar_device_free(cuda, device, sizeof value);
    q->shared_free(cuda, shared, 4 * sizeof(double));
}

static void settling_keeps_or_forgets_by_the_flag(void **unused)
{
    (void)unused;
    const float kept[] = {1, 2, 3, 4, 5}, fresh[] = {6, 7, 8, 9, 10};
    for (int32_t flag = 0; flag < 2; flag++) {
        float got[2][5];
        float *dst = cuda_upload(cuda, kept, sizeof kept), *src = cuda_upload(cuda, fresh, sizeof fresh);
        int32_t *skipped = cuda_upload(cuda, &flag, sizeof flag);
        cuda->ops->stream->settle(cuda, dst, src, sizeof kept, skipped);
        cuda_wait(cuda, "settle");
        cuda_move(cuda, got[0], dst, sizeof kept);
        cuda_move(cuda, got[1], src, sizeof kept);
        for (int i = 0; i < 2; i++) assert_memory_equal(got[i], flag ? kept : fresh, sizeof kept);
        abar_device_free(cuda, dst, sizeof kept);
        abar_device_free(cuda, src, sizeof kept);
        abar_device_free(cuda, skipped, sizeof flag);
    }
}

static void devices_that_are_not_there_are_refused(void **unused)
{
    (void)unused;
    abar_device *dev;
    assert_true(abar_device_open(ctx, "cuda:200", NULL, &dev) < 0);
    assert_non_null(strstr(abar_context_error(ctx), "200"));
    assert_null(dev);
    assert_true(abar_device_open(ctx, "cuda:x", NULL, &dev) < 0);
    assert_int_equal(abar_device_open(ctx, "cuda:0", NULL, &dev), ABAR_OK);
    assert_non_null(strstr(abar_device_describe(dev), "cuda"));
    abar_device_close(dev);
}

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_between_all_dtypes_and_layouts_equal_the_hosts),
        cmocka_unit_test(copies_of_integers_keep_their_bits),
        cmocka_unit_test(memory_is_zero_aligned_and_counted),
        cmocka_unit_test(recordings_replay_what_was_written_down),
        cmocka_unit_test(marks_pass_in_order_and_tell_the_time_between),
        cmocka_unit_test(shared_memory_is_zero_and_seen_by_both_sides),
        cmocka_unit_test(settling_keeps_or_forgets_by_the_flag),
        cmocka_unit_test(devices_that_are_not_there_are_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
