/* What ranks divide of a step on a queued device, and how they stop and fail together there, without a GPU (queued_support.h).
 */
#include "queued_support.h"

#include "comm/comm_impl.h"

#include <sys/mman.h>

/* ---- what ranks divide ----------------------------------------------------------------------------------------------------
 */

static void check_every_way(fixture *f, const char *model, const char *optim, const char *options)
{
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    check_way(f, PIPED, model, optim, options);
    check_way(f, NCCL, model, optim, options);
}

static void queued_states_that_ranks_divide_have_the_hosts_bits(void **state)
{
    check_every_way(*state, "lenet5", "sgd", RUN "micro=6 zero=1 clip=0.5");
    check_every_way(*state, "lenet5", "muon", RUN "micro=6 zero=1 normuon=true");
    check_every_way(*state, "lenet5", "shampoo", RUN "micro=6 zero=1 shampoo-start=1 shampoo-freq=2");
    check_every_way(*state, "lenet5", "soap", RUN "micro=4 zero=1");
    check_every_way(*state, "resnet20", "sfadamw", RUN "micro=6 zero=1 schedule=constant");
    check_every_way(*state, "lenet5", "adahessian", RUN "micro=6 zero=1 hessian-every=2");
}

static void queued_states_behind_methods_have_the_hosts_bits(void **state)
{
    check_every_way(*state, "lenet5", "mac", RUN "micro=6 zero=1 tcov=2 tinv=2");
    check_every_way(*state, "lenet5", "kfac+muon", RUN "micro=6 zero=1 tcov=1 tinv=2");
    check_every_way(*state, "lenet5", "kfac", RUN "micro=6 zero=1 tcov=2 tinv=3 kl-clip=0.0001");
}

/* Blocks that are too small are met by their owners, and counted by all. */
static void queued_events_of_divided_blocks_are_counted(void **state)
{
    check_every_way(*state, "lenet5", "muon", RUN "micro=6 zero=1 muon-eps=1 clip=0.01");
}

static void queued_steps_that_are_skipped_change_no_state(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "kfac+muon", RUN "micro=6 zero=1 tcov=1 tinv=2");
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    const snapshot one = train_apart(f, setup, 1, QUEUED, 3); /* a refresh was due: it is made later, by every rank */
    compare(one, train_apart(f, setup, 2, QUEUED, 3), "2 ranks");
    compare(one, train_apart(f, setup, 4, NCCL, 3), "4 ranks over NCCL");
    free(one.bytes);
    abar_setup_destroy(f->ctx, setup);
}

static void queued_refreshes_of_every_kind_have_the_hosts_bits(void **state)
{
    check_every_way(*state, "lenet5", "kfac", RUN "micro=6 kfac-inverse=eigen tcov=1 tinv=1");
    check_every_way(*state, "lenet5", "kfac", RUN "micro=6 refresh=spread tcov=1 tinv=3");
    check_every_way(*state, "lenet5", "foof", RUN "micro=6 tcov=2 tinv=3");
    check_every_way(*state, "lenet5", "lngd", RUN "micro=4 tcov=1 tinv=1");
}

/* Which steps are divided, and that this rank makes a part of their refreshes alone. */
static int divide_some(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2};
    abar_comm *comm;
    joined *j = calloc(1, sizeof *j);
    if (!j || abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    build(j, f, setup, comm, QUEUED);
    need(f, abar__data_feed_seek(&j->e.feed, j->e.loader, 0, 0));
    for (int64_t k = 0; k < 4; k++) {
        abar__step_parts parts;
        int owned = 0, all = 0;
        need(f, abar__stepper_begin(&j->e.stepper, &parts));
        if (abar__parts_meet(&parts, ABAR_STAGE_COMMIT) != (k % 2 == 0) || (parts.kind >= 2) != (k % 2 == 0)) return 3;
        (void)queued_step_of(j, k, -1);
        for (int i = 0; i < j->e.optim->derived->n; i++, all++)
            owned += j->e.optim->derived->list[i].owner == abar_comm_rank(comm);
        if (owned == 0 || owned == all) return 4;
    }
    drop(j);
    abar_comm_close(comm);
    return 0;
}

static void queued_refreshes_are_divided_when_all_are_due(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "kfac", RUN "micro=6 tcov=1 tinv=2");
    int status = 0;
    const pid_t child = fork_test();
    if (child == 0) _exit(divide_some(f, setup));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- stopping and failing ---------------------------------------------------------------------------------------------------
 */

/* One rank wants to stop: after the step both have its word in the device's memory. */
static int stop_one(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2};
    abar_comm *comm;
    joined *j = calloc(1, sizeof *j);
    if (!j || abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    build(j, f, setup, comm, NCCL);
    need(f, abar__data_feed_seek(&j->e.feed, j->e.loader, 0, 0));
    for (int64_t k = 0; k < 2; k++) {
        atomic_store(&wants_stop, k == 1 && abar_comm_rank(comm) == 1);
        (void)queued_step_of(j, k, -1);
        const double *words[2];
        for (int r = 0; r < 2; r++)
            words[r] = j->join.numbers + (r * (j->join.count + 1) + j->join.count) * ABAR_RESULT_NUMBERS;
        const bool right = words[0][0] == 0.0 && words[1][0] == (k == 1 ? 1.0 : 0.0);
        if (abar_ranks_agree(f->ctx, comm, right ? ABAR_OK : ABAR_E_STATE, "") < 0) return 3;
    }
    drop(j);
    abar_comm_close(comm);
    return 0;
}

static void check_setup_in_child(fixture *f, abar_setup *setup, int (*be_ranks)(fixture *f, abar_setup *setup))
{
    int status = 0;
    setenv("ABAR_NCCL", FAKE_NCCL, 1);
    const pid_t child = fork_test();
    if (child == 0) _exit(be_ranks(f, setup));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    abar_setup_destroy(f->ctx, setup);
}

static void check_in_child(fixture *f, int (*be_ranks)(fixture *f, abar_setup *setup))
{
    check_setup_in_child(f, make_setup(f, "mlp", "sgd", RUN "micro=6 widths=784-8-10"), be_ranks);
}

static void queued_wish_to_stop_reaches_all_ranks(void **state) { check_in_child(*state, stop_one); }

/* Seconds that pass in a failure alone: a busy machine may stop a process for some of them. */
#define PATIENCE 120.0

/* Two ranks wait here for each other, outside of what they test: a rank that leaves first is a reason of its own to stop. */
typedef struct meeting {
    atomic_int connecting; /* a rank has what it needs of the other to connect */
    atomic_int ended;      /* so many ranks */
} meeting;

static meeting *waiting;

static bool comes_to(const atomic_int *n, int wanted)
{
    const double end = abar__seconds() + PATIENCE;
    while (atomic_load(n) < wanted && abar__seconds() < end) usleep(2000);
    return atomic_load(n) >= wanted;
}

static bool meet(void)
{
    atomic_fetch_add(&waiting->ended, 1);
    return comes_to(&waiting->ended, 2);
}

static void check_pair(fixture *f, abar_setup *setup, int (*be_ranks)(fixture *f, abar_setup *setup))
{
    waiting = mmap(NULL, sizeof *waiting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(waiting != MAP_FAILED);
    check_setup_in_child(f, setup, be_ranks);
    munmap(waiting, sizeof *waiting);
}

static void check_pair_in_child(fixture *f, int (*be_ranks)(fixture *f, abar_setup *setup))
{
    check_pair(f, make_setup(f, "mlp", "sgd", RUN "micro=6 widths=784-8-10"), be_ranks);
}

/* The other rank does not come: waiting ends. */
static int wait_for_nobody(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2, .timeout = PATIENCE};
    abar_comm *comm;
    joined *j = calloc(1, sizeof *j);
    if (!j || abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    build(j, f, setup, comm, NCCL);
    events_end = false;
    comm->timeout = 0.5; /* from here on each waits for itself */
    const double began = abar__seconds();
    const abar_status status = abar__join_wait(&j->join, NULL);
    const double took = abar__seconds() - began;
    if (status != ABAR_E_PEER || !strstr(abar_context_error(f->ctx), "has not ended for 0.5 seconds")) return 3;
    if (took < 0.5 || took > PATIENCE) return 4;
    if (!meet()) return 5;
    if (abar__comm_barrier(comm) != ABAR_E_PEER) return 6; /* later calls fail at once */
    drop(j);
    abar_comm_close(comm);
    return 0;
}

static void queued_wait_for_a_rank_that_is_gone_ends(void **state) { check_pair_in_child(*state, wait_for_nobody); }

/* The other rank has failed: its reason comes, long before the timeout. */
static int hear_the_reason(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2, .timeout = PATIENCE};
    abar_comm *comm;
    joined *j = calloc(1, sizeof *j);
    if (!j || abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    build(j, f, setup, comm, NCCL);
    events_end = false;
    if (!meet()) return 3; /* both are connected */
    const bool fails = abar_comm_rank(comm) == 1;
    const double began = abar__seconds();
    const abar_status own = fails ? abar__fail(f->ctx, ABAR_E_FORMAT, "bird.jpg: is damaged") : ABAR_OK;
    const abar_status status = fails ? abar__join_tell(&j->join, own) : abar__join_wait(&j->join, NULL);
    if (status != (fails ? ABAR_E_FORMAT : ABAR_E_PEER) || abar__seconds() - began > PATIENCE / 2) return 4;
    if (!strstr(abar_context_error(f->ctx), "bird.jpg: is damaged")) return 5;
    if (!fails && strncmp(abar_context_error(f->ctx), "rank 1 on ", 10) != 0) return 6;
    drop(j);
    abar_comm_close(comm);
    return 0;
}

static void queued_reason_of_a_rank_that_fails_reaches_others(void **state) { check_pair_in_child(*state, hear_the_reason); }

static abar_status say_connecting(void *unused)
{
    (void)unused;
    atomic_store(&waiting->connecting, 1);
    return ABAR_OK;
}

/* NCCL's ranks do not find each other. Rank 1 begins when rank 0 has sent what it needs: then neither waits for the other. */
static int connect_to_nobody(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2, .timeout = PATIENCE};
    abar_comm *comm;
    abar__nccl *nccl;
    (void)setup;
    if (abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    comm->timeout = 0.5;
    setenv("FAKE_NCCL_HANGS", "1", 1);
    if (abar_comm_rank(comm) == 1 && !comes_to(&waiting->connecting, 1)) return 3;
    if (abar__nccl_open(f->ctx, comm, say_connecting, NULL, &nccl) != ABAR_E_PEER || nccl) return 4;
    if (!strstr(abar_context_error(f->ctx), "NCCL: the ranks have not connected within 0.5 seconds")) return 5;
    if (!meet()) return 6;
    abar_comm_close(comm);
    return 0;
}

static void nccl_that_does_not_connect_ends(void **state) { check_pair_in_child(*state, connect_to_nobody); }

/* One rank cannot connect: the other, which would wait for it, has its reason. */
static int connect_in_vain(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2, .timeout = PATIENCE};
    abar_comm *comm;
    abar__nccl *nccl;
    (void)setup;
    if (abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    const bool fails = abar_comm_rank(comm) == 1;
    const double began = abar__seconds();
    setenv(fails ? "FAKE_NCCL_FAILS" : "FAKE_NCCL_HANGS", "1", 1);
    const abar_status status = abar__nccl_open(f->ctx, comm, say_connecting, NULL, &nccl);
    if (status != (fails ? ABAR_E_BACKEND : ABAR_E_PEER) || nccl || abar__seconds() - began > PATIENCE / 2) return 3;
    if (!strstr(abar_context_error(f->ctx), "NCCL: failed (ncclCommInitRank)")) return 4;
    if (!fails && strncmp(abar_context_error(f->ctx), "rank 1 on ", 10) != 0) return 5;
    abar_comm_close(comm);
    return 0;
}

static void nccl_that_fails_on_one_rank_is_told(void **state) { check_pair_in_child(*state, connect_in_vain); }

/* Where ranks exchange through the host, one fails in a part of the step behind the first: the others, which wait for what it
 * has derived, have its reason. */
static int fail_behind_the_passes(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2, .timeout = PATIENCE};
    abar_comm *comm;
    abar__step_parts parts;
    joined *j = calloc(1, sizeof *j);
    if (!j || abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    build(j, f, setup, comm, QUEUED);
    const abar__stepper *s = &j->e.stepper;
    const bool fails = abar_comm_rank(comm) == 1;
    const double lr = setup->train.lr;
    need(f, abar__data_feed_seek(&j->e.feed, j->e.loader, 0, 0));
    need(f, abar_optim_rates(j->e.optim, 0, &lr, 1));
    need(f, abar__stepper_begin(s, &parts));
    if (!abar__parts_meet(&parts, ABAR_STAGE_PASSES) || !abar__parts_meet(&parts, ABAR_STAGE_COMMIT)) return 3;
    need(f, abar__stepper_meet(s, ABAR_STAGE_PASSES, abar__stepper_enqueue_part(s, &parts, 0, ABAR_STAGE_PASSES)));
    if (!meet()) return 4; /* both have ended that exchange */
    abar_status status = abar__stepper_enqueue_part(s, &parts, ABAR_STAGE_COMMIT, ABAR_STAGE_COMMIT);
    if (fails) status = abar__fail(f->ctx, ABAR_E_BACKEND, "cuda: has no memory left");
    status = abar__stepper_meet(s, ABAR_STAGE_COMMIT, status);
    if (status != (fails ? ABAR_E_BACKEND : ABAR_E_PEER)) return 5;
    if (!strstr(abar_context_error(f->ctx), "cuda: has no memory left")) return 6;
    if (!fails && strncmp(abar_context_error(f->ctx), "rank 1 on ", 10) != 0) return 7;
    drop(j);
    abar_comm_close(comm);
    return 0;
}

static void queued_reason_of_a_rank_that_fails_late_reaches_others(void **state)
{
    check_pair(*state, make_setup(*state, "lenet5", "kfac", RUN "micro=6 tcov=1 tinv=1"), fail_behind_the_passes);
}

static void nccl_that_is_missing_is_told(void **state)
{
    fixture *f = *state;
    setenv("ABAR_NCCL", "/no/such/libnccl.so.2", 1);
    assert_int_equal(abar__nccl_find(f->ctx), ABAR_E_NOT_FOUND);
    assert_error(f, "NCCL: cannot load /no/such/libnccl.so.2");
    unsetenv("ABAR_NCCL");
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(queued_states_that_ranks_divide_have_the_hosts_bits),
        with_fixture(queued_states_behind_methods_have_the_hosts_bits),
        with_fixture(queued_events_of_divided_blocks_are_counted),
        with_fixture(queued_steps_that_are_skipped_change_no_state),
        with_fixture(queued_refreshes_of_every_kind_have_the_hosts_bits),
        with_fixture(queued_refreshes_are_divided_when_all_are_due),
        with_fixture(queued_wish_to_stop_reaches_all_ranks),
        with_fixture(queued_wait_for_a_rank_that_is_gone_ends),
        with_fixture(queued_reason_of_a_rank_that_fails_reaches_others),
        with_fixture(nccl_that_does_not_connect_ends),
        with_fixture(nccl_that_fails_on_one_rank_is_told),
        with_fixture(queued_reason_of_a_rank_that_fails_late_reaches_others),
        with_fixture(nccl_that_is_missing_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
