/* The arena planner: buffers that are alive at the same time do not overlap, and memory is shared where possible. */
#include "net_testing.h"

#include "net/plan.h"

static void assert_disjoint(const abar__buffer *b, int n, size_t total)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(b[i].offset % ABAR_ALIGN, 0);
        assert_true(b[i].offset + b[i].bytes <= total);
        for (int j = 0; j < i; j++) {
            bool together = b[i].first <= b[j].last && b[j].first <= b[i].last;
            bool overlap = b[i].offset < b[j].offset + b[j].bytes && b[j].offset < b[i].offset + b[i].bytes;
            assert_false(together && overlap && b[i].bytes && b[j].bytes);
        }
    }
}

static void plan_random_buffers_never_overlap(void **state)
{
    (void)state;
    abar_context *ctx;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    for (uint32_t round = 0; round < 50; round++) {
        abar__buffer b[60];
        int n = 1 + (int)(round % 60);
        size_t sum = 0;
        for (int i = 0; i < n; i++) {
            abar__draw d = abar__random(round, ABAR_DRAW_SYNTHETIC, 0, (uint64_t)i);
            int first = (int)(d.u[0] % 40);
            b[i] = (abar__buffer){.bytes = d.u[1] % 5000, .first = first, .last = first + (int)(d.u[2] % 15)};
            sum += abar__round_up(b[i].bytes, ABAR_ALIGN);
        }
        size_t total;
        OK(ctx, abar__plan_arena(ctx, b, n, &total));
        assert_disjoint(b, n, total);
        assert_true(total <= sum);
    }
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
}

static void plan_buffers_of_different_times_share(void **state)
{
    (void)state;
    abar_context *ctx;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    abar__buffer b[] = {{640, 0, 1, 0}, {640, 1, 2, 0}, {640, 2, 3, 0}, {640, 3, 4, 0}};
    size_t total;
    OK(ctx, abar__plan_arena(ctx, b, 4, &total));
    assert_disjoint(b, 4, total);
    assert_int_equal(total, 1280);
    abar_context_destroy(ctx);
}

static void plan_nothing_needs_nothing(void **state)
{
    (void)state;
    abar_context *ctx;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    size_t total = 1;
    OK(ctx, abar__plan_arena(ctx, NULL, 0, &total));
    assert_int_equal(total, 0);
    abar_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_random_buffers_never_overlap),
        cmocka_unit_test(plan_buffers_of_different_times_share),
        cmocka_unit_test(plan_nothing_needs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
