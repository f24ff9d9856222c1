/* The kernels of the resize: every instruction set gives the bytes of the plain loops and stays within its padding. */
#include "image/resize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIDE_MAX = 300, GUARD = 0xA5 };

static uint32_t seed = 7;

static uint32_t next(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)seed * below) >> 32);
}

static uint8_t *noise(size_t n)
{
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    /* mostly extremes: sums that need clipping */
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(next(3) == 0 ? next(256) : next(2) ? 255 : 0);
    return bytes;
}

static uint8_t *guarded(size_t n)
{
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    memset(bytes, GUARD, n);
    return bytes;
}

typedef struct resize {
    int32_t in, out, from, n;
    abar__image_filter filter;
    void *memory;
    abar__resize_axis axis;
} resize;

static resize draw_resize(void)
{
    resize r = {.filter = next(2) ? ABAR_IMAGE_BILINEAR : ABAR_IMAGE_BICUBIC};
    r.in = 1 + (int32_t)next(next(4) ? SIDE_MAX : 12);
    r.out = 1 + (int32_t)next(next(4) ? SIDE_MAX : 12);
    r.n = 1 + (int32_t)next((uint32_t)r.out);
    r.from = (int32_t)next((uint32_t)(r.out - r.n + 1));
    r.memory = malloc(abar__resize_axis_bytes(r.in, r.out, r.filter, r.n));
    assert_non_null(r.memory);
    abar__resize_axis_make(r.in, r.out, r.filter, r.from, r.n, next(2), r.memory, &r.axis);
    return r;
}

/* Inputs that the axis reads. */
static int32_t inputs(const resize *r)
{
    int32_t first, last;
    abar__resize_range(r->in, r->out, r->filter, r->from, r->n, &first, &last);
    return last - first;
}

static void axis_reads_its_range_and_weighs_to_one(void **state)
{
    (void)state;
    for (int i = 0; i < 500; i++) {
        resize r = draw_resize();
        int32_t range = inputs(&r);
        assert_true(range >= 1 && range <= r.in);
        for (int32_t x = 0; x < r.n; x++) {
            const int32_t *weights = r.axis.weights + (size_t)x * (size_t)r.axis.taps;
            int64_t sum = 0;
            for (int32_t k = 0; k < r.axis.taps; k++) {
                sum += weights[k];
                if (k >= r.axis.count[x]) assert_int_equal(weights[k], 0);
            }
            assert_true(r.axis.first[x] >= 0 && r.axis.first[x] + r.axis.count[x] <= range);
            assert_true(r.axis.first[x] == 0 || r.axis.first[x] + r.axis.taps <= range);
            assert_true(llabs(sum - (1 << 22)) <= r.axis.count[x]); /* each is rounded */
        }
        free(r.memory);
    }
}

static void check_across(const abar__resize_kernels *kernels)
{
    resize r = draw_resize();
    int32_t n = 1 + (int32_t)next(ABAR_RESIZE_ROWS);
    size_t row = 3 * (size_t)inputs(&r) + ABAR_RESIZE_PAD, used = 3 * (size_t)r.n, stride = used + ABAR_RESIZE_PAD;
    uint8_t *expected = guarded(stride * ABAR_RESIZE_ROWS), *found = guarded(stride * ABAR_RESIZE_ROWS + 1);
    uint8_t *rows[ABAR_RESIZE_ROWS];
    for (int i = 0; i < ABAR_RESIZE_ROWS; i++) rows[i] = noise(row); /* each ends where a sanitizer sees it */
    abar__resize_plain.across(&r.axis, (const uint8_t *const *)rows, n, expected, stride);
    kernels->across(&r.axis, (const uint8_t *const *)rows, n, found, stride);
    for (int32_t i = 0; i < n; i++) assert_memory_equal(found + (size_t)i * stride, expected + (size_t)i * stride, used);
    for (size_t i = (size_t)n * stride; i < ABAR_RESIZE_ROWS * stride; i++) assert_int_equal(found[i], GUARD);
    for (int i = 0; i < ABAR_RESIZE_ROWS; i++) free(rows[i]);
    free(expected);
    free(found);
    free(r.memory);
}

static void check_down(const abar__resize_kernels *kernels)
{
    resize r = draw_resize();
    size_t used = 1 + next(400), stride = abar__round_up(used, ABAR_RESIZE_PAD) + ABAR_RESIZE_PAD * next(2);
    uint8_t *rows = noise((size_t)inputs(&r) * stride), *expected = guarded(stride), *found = guarded(stride);
    for (int32_t y = 0; y < r.n; y++) {
        abar__resize_plain.down(&r.axis, y, rows, stride, used, expected);
        kernels->down(&r.axis, y, rows, stride, used, found);
        assert_memory_equal(found, expected, used);
    }
    free(rows);
    free(expected);
    free(found);
    free(r.memory);
}

static void check_split(const abar__resize_kernels *kernels)
{
    int32_t n = (int32_t)next(100);
    size_t plane = (size_t)n + next(3);
    uint8_t *rgb = noise(3 * (size_t)n + 1), *out = guarded(3 * plane + 1);
    kernels->split(rgb, n, out, plane);
    for (size_t c = 0; c < 3; c++)
        for (size_t i = 0; i < plane; i++) assert_int_equal(out[c * plane + i], i < (size_t)n ? rgb[3 * i + c] : GUARD);
    assert_int_equal(out[3 * plane], GUARD);
    free(rgb);
    free(out);
}

static void kernels_give_the_bytes_of_the_plain_ones(void **state)
{
    (void)state;
    const abar__resize_kernels *sets[] = {&abar__resize_plain, abar__resize_avx2()};
    for (size_t k = 0; k < sizeof sets / sizeof *sets; k++)
        for (int i = 0; sets[k] && i < 400; i++) {
            check_across(sets[k]);
            check_down(sets[k]);
            check_split(sets[k]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(axis_reads_its_range_and_weighs_to_one),
        cmocka_unit_test(kernels_give_the_bytes_of_the_plain_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
