/* Every call on one to four ranks, over every transport that needs no launcher. */
#include "ranks.h"

#include "comm/comm_impl.h"

static const char *const transports[] = {"local", "store"};

static void on_all(part p)
{
    for (size_t t = 0; t < sizeof transports / sizeof *transports; t++)
        for (int n = 1; n <= 4; n++) run_ranks(&(ranks){.transport = transports[t], .ranks = n}, p);
}

static void names_tell_rank_and_host(void **state) { (void)state, on_all(names_part); }
static void barrier_waits_for_all(void **state) { (void)state, on_all(barrier_part); }
static void broadcast_from_every_rank_reaches_all(void **state) { (void)state, on_all(broadcast_part); }
static void gather_keeps_the_order_of_ranks(void **state) { (void)state, on_all(gather_part); }
static void exchange_of_any_sizes_arrives(void **state) { (void)state, on_all(exchange_part); }
static void sum_adds_all_ranks(void **state) { (void)state, on_all(sum_part); }
static void sum_is_the_same_on_all_ranks(void **state) { (void)state, on_all(agreement_part); }
static void calls_in_a_row_stay_apart(void **state) { (void)state, on_all(mixed_part); }

static void failure_that_is_told_reaches_all(void **state) { (void)state, on_all(telling_part); }

static void many_ranks_share_two_cores(void **state)
{
    (void)state;
    run_ranks(&(ranks){.transport = "local", .ranks = RANKS_MAX}, mixed_part);
}

static void cores_are_shared_by_the_ranks_of_a_machine(void **state)
{
    const abar__core_set none = {{0}}, two = {{3}}, far = {{0, 12}}, one = {{1}}, many = {{0, ~0ull}};
    abar__core_set together = two;
    (void)state;
    assert_int_equal(abar__cores_each(&two, &two, 1), 2);
    assert_int_equal(abar__cores_each(&two, &two, 2), 1); /* both may use both */
    assert_int_equal(abar__cores_each(&two, &two, 3), 1);
    abar__cores_join(&together, &far);
    assert_int_equal(abar__cores_each(&together, &two, 2), 2); /* a launcher has bound them apart */
    assert_int_equal(abar__cores_each(&together, &one, 2), 1);
    assert_int_equal(abar__cores_each(&many, &many, 3), 21);
    assert_true(abar__cores_each(&none, &none, 1) >= abar__cores_allowed()); /* all of the machine */
}

static void without_a_comm_there_is_one_rank(void **state)
{
    (void)state;
    double x = 3;
    int own = 5, all = 0, there = 0;
    assert_int_equal(abar_comm_rank(NULL), 0);
    assert_int_equal(abar_comm_size(NULL), 1);
    assert_int_equal(abar__comm_barrier(NULL), ABAR_OK);
    assert_int_equal(abar__comm_broadcast(NULL, 0, &x, sizeof x), ABAR_OK);
    assert_int_equal(abar__comm_gather(NULL, &own, sizeof own, &all), ABAR_OK);
    assert_int_equal(all, 5);
    assert_int_equal(abar__comm_sum_doubles(NULL, &x, 1), ABAR_OK);
    assert_true(x == 3);
    const size_t bytes = sizeof own;
    assert_int_equal(abar__comm_exchange(NULL, (const void *const[]){&own}, &bytes, (void *const[]){&there}, &bytes), ABAR_OK);
    assert_int_equal(there, 5);
    abar_comm_close(NULL);
}

static void settings_out_of_range_are_refused(void **state)
{
    (void)state;
    abar_context *ctx = new_context();
    abar_comm *c;
    assert_int_equal(abar_comm_open(ctx, NULL, &c), ABAR_E_ARGUMENT);
    assert_int_equal(abar_comm_open(ctx, &ABAR_CONFIG(abar_comm_config, .ranks = -1), &c), ABAR_E_ARGUMENT);
    assert_int_equal(abar_comm_open(ctx, &ABAR_CONFIG(abar_comm_config, .ranks = 257), &c), ABAR_E_ARGUMENT);
    assert_int_equal(abar_comm_open(ctx, &ABAR_CONFIG(abar_comm_config, .ranks = 1, .timeout = -1), &c), ABAR_E_ARGUMENT);
    assert_null(c);
    abar_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_tell_rank_and_host),
        cmocka_unit_test(barrier_waits_for_all),
        cmocka_unit_test(broadcast_from_every_rank_reaches_all),
        cmocka_unit_test(gather_keeps_the_order_of_ranks),
        cmocka_unit_test(exchange_of_any_sizes_arrives),
        cmocka_unit_test(sum_adds_all_ranks),
        cmocka_unit_test(sum_is_the_same_on_all_ranks),
        cmocka_unit_test(calls_in_a_row_stay_apart),
        cmocka_unit_test(failure_that_is_told_reaches_all),
        cmocka_unit_test(many_ranks_share_two_cores),
        cmocka_unit_test(cores_are_shared_by_the_ranks_of_a_machine),
        cmocka_unit_test(without_a_comm_there_is_one_rank),
        cmocka_unit_test(settings_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
