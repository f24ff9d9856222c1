/* Micro-batches and ranks joined on a queued device (train/join_queued.c), without a GPU: the device is cpu with a queue whose
 * work is done at once, and with sums in plain C. Ranks exchange through the host, or over tests/fake/nccl.c. Weights and state
 * have the bits of cpu's own join. */
#include "queued_support.h"

/* ---- tests
 * ---------------------------------------------------------------------------------------------------------------------- */

static void queued_gradients_have_the_hosts_bits(void **state)
{
    check(*state, "lenet5", "sgd", RUN "micro=6 clip=0.5");
    check(*state, "lenet5", "muon", RUN "micro=6 reduce=fixed");
}

/* One micro-batch a rank (4 ranks), two nodes a rank (6 micro-batches on 2), a tree that is not full. */
static void queued_nodes_of_any_shape_have_the_hosts_bits(void **state)
{
    check(*state, "mlp", "mac", RUN "micro=4 widths=784-12-10 tcov=2 tinv=2");
    check(*state, "mlp", "mac", RUN "micro=8 widths=784-12-10 tcov=1 tinv=1");
}

static void queued_statistics_have_the_hosts_bits(void **state)
{
    static const char *const methods[] = {"mac", "smac", "foof", "eva", "lngd"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        check(*state, "lenet5", methods[i], RUN "micro=6 tcov=2 tinv=2");
    check(*state, "lenet5", "kfac", RUN "micro=6 tcov=2 tinv=2 clip=0.5 kl-clip=0.0001");
}

static void queued_batch_norms_have_the_hosts_bits(void **state)
{
    check(*state, "resnet20", "mac", RUN "micro=6 tcov=2 tinv=2");
}

static void queued_sums_of_attention_have_the_hosts_bits(void **state)
{
    check(*state, "deit-tiny", "smac", RUN "micro=6 image-size=32 classes=10 width=16 heads=2 depth=1 tcov=2 tinv=2");
    check(*state, "swin-tiny", "mac",
          RUN "micro=12 image-size=56 classes=10 patch=4 window=7 width=16 depths=1-1 heads=1-2 tcov=2 tinv=2");
}

static void queued_further_gradients_have_the_hosts_bits(void **state)
{
    check(*state, "lenet5", "adahessian", RUN "micro=6 hessian-every=2");
}

static void queued_parts_of_a_pipeline_have_the_hosts_bits(void **state)
{
    check_way(*state, PIPED, "resnet20", "mac", RUN "micro=6 tcov=2 tinv=2");
    check_way(*state, PIPED, "lenet5", "adahessian", RUN "micro=12 hessian-every=2");
}

/* Labels are drawn by the number of the step, which cpu's operations do not read from the queue: ranks are compared alone. */
static void queued_drawn_labels_have_the_bits_of_one_rank(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "sophia", RUN "micro=6 hessian-every=2");
    const snapshot one = train_apart(f, setup, 1, QUEUED, -1);
    compare(one, train_apart(f, setup, 2, QUEUED, -1), "2 ranks");
    compare(one, train_apart(f, setup, 4, QUEUED, -1), "4 ranks");
    compare(one, train_apart(f, setup, 2, PIPED, -1), "2 ranks in parts");
    free(one.bytes);
    abar_setup_destroy(f->ctx, setup);
}

static void queued_loss_that_is_not_finite_is_skipped_by_all(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet20", "mac", RUN "micro=6 tcov=2 tinv=2");
    for (int64_t bad = 0; bad < 4; bad += 3) {
        const snapshot one = train_apart(f, setup, 1, QUEUED, bad);
        compare(one, train_apart(f, setup, 2, QUEUED, bad), "2 ranks");
        free(one.bytes);
    }
    abar_setup_destroy(f->ctx, setup);
}

/* The way of ranks that have a GPU each. */
static void queued_exchanges_over_nccl_have_the_hosts_bits(void **state)
{
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    check_way(*state, NCCL, "resnet20", "mac", RUN "micro=6 tcov=2 tinv=2");
    check_way(*state, NCCL, "lenet5", "kfac", RUN "micro=4 tcov=2 tinv=2 clip=0.5 kl-clip=0.0001");
    check_way(*state, NCCL, "lenet5", "adahessian", RUN "micro=6 hessian-every=2");
    check_way(*state, NCCL, "lenet5", "mac", RUN "micro=12 tcov=2 tinv=2 reduce=fast"); /* a sum of two has one order */
}

/* Buckets of any size, of which several are complete after a layer or one after several; gradients of one micro-batch a rank,
 * of several, of several nodes. */
static void queued_gradients_in_buckets_have_the_hosts_bits(void **state)
{
    static const size_t sizes[] = {256, 4096, 40000};
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bucket_bytes = sizes[i];
        check_way(*state, NCCL, "mlp", "mac", RUN "micro=4 widths=784-12-10 tcov=2 tinv=2");
        if (i > 0) check_way(*state, NCCL, "lenet5", "sgd", RUN "micro=6 clip=0.5");
        if (i > 0) check_way(*state, NCCL, "lenet5", "adahessian", RUN "micro=12 zero=1 hessian-every=2");
    }
    bucket_bytes = 0;
}

/* Exchanges begin while the pass goes on. */
static int64_t layers_left;

static abar_status count_left(void *user, int index, const abar_layer *layer)
{
    (void)user, (void)layer;
    if (sides_begun[ABAR_SIDE_RANKS] > 0 && index < layers_left) layers_left = index;
    return ABAR_OK;
}

static void queued_buckets_are_sent_beside_the_backward_pass(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "sgd", RUN "micro=24");
    joined *j = calloc(1, sizeof *j);
    const abar_observer observer = {sizeof observer, count_left, NULL};
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    bucket_bytes = 4096;
    build(j, f, setup, NULL, NCCL);
    bucket_bytes = 0;
    const abar__grad_watcher watcher = {abar__join_watch, &j->join};
    const abar_run_config run = {.size = sizeof run, .training = true};
    memset(sides_begun, 0, sizeof sides_begun);
    layers_left = abar_net_layer_count(j->e.net);
    need(f, abar__join_plan(&j->join, &j->e.stepper));
    need(f, abar__join_enqueue_begin(&j->join, &j->e.stepper));
    assert_true(abar__join_watches(&j->join, 0));
    abar__join_begin_watching(&j->join, &j->e.stepper);
    need(f, abar_net_forward(j->e.net, &run, NULL));
    need(f, abar__net_backward_watched(j->e.net, false, &observer, &watcher));
    assert_true(sides_begun[ABAR_SIDE_RANKS] > 2);
    assert_int_equal(layers_left, 0); /* the first layer comes last, when others are on their way */
    assert_int_equal(j->join.joined, 0);
    drop(j);
    free(j);
    abar_setup_destroy(f->ctx, setup);
}

/* Ranks that have several nodes add them first, on the device or on the host. */
static void queued_fast_sums_of_several_nodes_have_the_bits_of_the_host(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "mac", RUN "micro=4 tcov=2 tinv=2 reduce=fast");
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    const snapshot there = train_apart(f, setup, 2, QUEUED, -1);
    compare(there, train_apart(f, setup, 2, NCCL, -1), "2 ranks");
    free(there.bytes);
    abar_setup_destroy(f->ctx, setup);
}

static void queued_exchanges_over_nccl_skip_together(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "mac", RUN "micro=6 tcov=2 tinv=2");
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    const snapshot one = train_apart(f, setup, 1, QUEUED, 3);
    compare(one, train_apart(f, setup, 2, NCCL, 3), "2 ranks");
    free(one.bytes);
    abar_setup_destroy(f->ctx, setup);
}

/* Nothing is joined then: cpu's step without a join has the same bits. */
static void queued_micro_batch_of_the_whole_batch_changes_nothing(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "resnet20", "mac", RUN "micro=24 tcov=2 tinv=2");
    joined *j = calloc(1, sizeof *j);
    build(j, f, setup, NULL, HOST);
    j->e.stepper.join = NULL;
    for (int64_t k = 0; k < STEPS; k++) assert_false(train_on(&j->e, k).skipped);
    const snapshot plain = take(&j->e);
    drop(j);
    memset(j, 0, sizeof *j);
    build(j, f, setup, NULL, QUEUED);
    need(f, abar__data_feed_seek(&j->e.feed, j->e.loader, 0, 0));
    for (int64_t k = 0; k < STEPS; k++) assert_false(queued_step_of(j, k, -1));
    compare(plain, take(&j->e), "one micro-batch");
    drop(j);
    free(j);
    free(plain.bytes);
    abar_setup_destroy(f->ctx, setup);
}

/* The device's rule for sums is the tree's. */
static void merges_of_the_device_are_the_trees(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 130; n++)
        for (int64_t i = 0; i < n; i++) assert_int_equal(abar__join_merges(n, i), abar__tree_merges(n, 0, i));
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_of_the_device_are_the_trees),
        with_fixture(queued_gradients_have_the_hosts_bits),
        with_fixture(queued_nodes_of_any_shape_have_the_hosts_bits),
        with_fixture(queued_statistics_have_the_hosts_bits),
        with_fixture(queued_batch_norms_have_the_hosts_bits),
        with_fixture(queued_sums_of_attention_have_the_hosts_bits),
        with_fixture(queued_further_gradients_have_the_hosts_bits),
        with_fixture(queued_parts_of_a_pipeline_have_the_hosts_bits),
        with_fixture(queued_drawn_labels_have_the_bits_of_one_rank),
        with_fixture(queued_loss_that_is_not_finite_is_skipped_by_all),
        with_fixture(queued_exchanges_over_nccl_have_the_hosts_bits),
        with_fixture(queued_gradients_in_buckets_have_the_hosts_bits),
        with_fixture(queued_fast_sums_of_several_nodes_have_the_bits_of_the_host),
        with_fixture(queued_exchanges_over_nccl_skip_together),
        with_fixture(queued_buckets_are_sent_beside_the_backward_pass), /* from here on they compute in this process */
        with_fixture(queued_micro_batch_of_the_whole_batch_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
