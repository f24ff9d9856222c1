/* The kernels that join micro-batches and ranks on cuda (device/join_impl.h). */
#include "cuda_testing.h"
#include "comm/comm.h"

#include <math.h>

enum { N = 13, LARGE = 5000 };

/* A square of which the lower triangle is packed, and a vector of doubles behind it. */
static void pack_moves_the_triangle_and_leaves_zeros(void **state)
{
    abar_context *ctx;
    abar_device *dev;
    const int64_t triangle = N * (N + 1) / 2;
    float square[N * N], back[N * N];
    double numbers[3] = {1.5, -2.5, 1e300}, packed[N * (N + 1) / 2 + 3];
    (void)state;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "cuda", NULL, &dev), ABAR_OK);
    for (int i = 0; i < N * N; i++) square[i] = (float)(i * i % 97) + 0.25f;
    float *there = cuda_upload(dev, square, sizeof square);
    double *doubles = cuda_upload(dev, numbers, sizeof numbers), *out = cuda_alloc(dev, sizeof packed);
    const abar__pending_span spans[2] = {{ABAR_PENDING_TRIANGLE, there, N, 0}, {ABAR_PENDING_DOUBLES, doubles, 3, triangle}};
    for (int i = 0; i < 2; i++) assert_int_equal(dev->ops->join->pack(dev, &spans[i], out), ABAR_OK);
    cuda_move(dev, packed, out, sizeof packed);
    cuda_move(dev, back, there, sizeof back);
    for (int64_t row = 0, at = 0; row < N; row++)
        for (int64_t column = 0; column < N; column++) {
            const bool low = column <= row;
            if (low) assert_true(packed[at++] == (double)square[row * N + column]);
            assert_true(back[row * N + column] == (low ? 0.0f : square[row * N + column]));
        }
    for (int i = 0; i < 3; i++) assert_true(packed[triangle + i] == numbers[i]);
    for (int i = 0; i < 2; i++) assert_int_equal(dev->ops->join->unpack(dev, &spans[i], out), ABAR_OK);
    cuda_move(dev, back, there, sizeof back);
    cuda_move(dev, numbers, doubles, sizeof numbers);
    assert_memory_equal(back, square, sizeof back);
    assert_true(numbers[2] == 1e300);
    abar_device_free(dev, there, sizeof square);
    abar_device_free(dev, doubles, sizeof numbers);
    abar_device_free(dev, out, sizeof packed);
    abar_device_close(dev);
    abar_context_destroy(ctx);
}

/* Aligned and not, whole quads and not, floats and doubles. */
static void sums_are_those_of_the_host(void **state)
{
    abar_context *ctx;
    abar_device *dev;
    static float a[LARGE], b[LARGE], got[LARGE];
    static double x[LARGE], y[LARGE], wide[LARGE];
    (void)state;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "cuda", NULL, &dev), ABAR_OK);
    for (int i = 0; i < LARGE; i++) {
        a[i] = (float)sin(i) * 1e3f, b[i] = (float)cos(3 * i);
        x[i] = sin(i) * 1e9, y[i] = cos(3 * i);
    }
    float *p = cuda_upload(dev, a, sizeof a), *q = cuda_upload(dev, b, sizeof b);
    double *r = cuda_upload(dev, x, sizeof x), *s = cuda_upload(dev, y, sizeof y);
    assert_int_equal(dev->ops->join->add(dev, p, q, LARGE - 1, false), ABAR_OK);
    assert_int_equal(dev->ops->join->add(dev, p + 1, q + 1, LARGE - 1, false), ABAR_OK);
    assert_int_equal(dev->ops->join->add(dev, r, s, LARGE, true), ABAR_OK);
    cuda_move(dev, got, p, sizeof got);
    cuda_move(dev, wide, r, sizeof wide);
    abar__tree_add_floats(a, b, LARGE - 1);
    abar__tree_add_floats(a + 1, b + 1, LARGE - 1);
    abar__tree_add_doubles(x, y, LARGE);
    assert_memory_equal(got, a, sizeof a);
    assert_memory_equal(wide, x, sizeof x);
    abar_device_free(dev, p, sizeof a);
    abar_device_free(dev, q, sizeof b);
    abar_device_free(dev, r, sizeof x);
    abar_device_free(dev, s, sizeof y);
    abar_device_close(dev);
    abar_context_destroy(ctx);
}

/* Counters that three ranks had alike, and have counted on. */
static void counts_of_all_ranks_are_added(void **state)
{
    enum { RANKS = 3 };
    abar_context *ctx;
    abar_device *dev;
    const int64_t before[ABAR_BLOCK_EVENTS] = {7, 0, ((int64_t)1 << 40) + 1};
    int64_t all[RANKS][ABAR_BLOCK_EVENTS], got[ABAR_BLOCK_EVENTS];
    (void)state;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, "cuda", NULL, &dev), ABAR_OK);
    for (int r = 0; r < RANKS; r++)
        for (int k = 0; k < ABAR_BLOCK_EVENTS; k++) all[r][k] = before[k] + r * k;
    int64_t *of_before = cuda_upload(dev, before, sizeof before), *of_all = cuda_upload(dev, all, sizeof all),
            *counters = cuda_alloc(dev, sizeof got);
    assert_int_equal(dev->ops->join->count(dev, counters, of_before, of_all, ABAR_BLOCK_EVENTS, RANKS), ABAR_OK);
    cuda_move(dev, got, counters, sizeof got);
    for (int k = 0; k < ABAR_BLOCK_EVENTS; k++) assert_true(got[k] == before[k] + 3 * k);
    abar_device_free(dev, of_before, sizeof before);
    abar_device_free(dev, of_all, sizeof all);
    abar_device_free(dev, counters, sizeof got);
    abar_device_close(dev);
    abar_context_destroy(ctx);
}

int main(int argc, char **argv)
{
    const int missing = cuda_missing();
    if (missing) return missing;
    cuda_choose_tests(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pack_moves_the_triangle_and_leaves_zeros),
        cmocka_unit_test(sums_are_those_of_the_host),
        cmocka_unit_test(counts_of_all_ranks_are_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
