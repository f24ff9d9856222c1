/* A rank that dies, stops, hangs or leaves, in every kind of call: all others fail with one text that names it, and nobody
 * waits for ever. */
#include "ranks.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void check_texts(const started *s, int victim, const char *expected)
{
    char host[64] = {0}, text[512];
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "rank %d on %s: %s", victim, host, expected);
    for (int r = 0; r < FAILING_RANKS; r++)
        if (r != victim && strncmp(s->board->text[r], text, strlen(text)))
            fail_msg("%s, call %d: rank %d reports '%s', not '%s'", s->ranks.transport, s->ranks.argument % 16, r,
                     s->board->text[r], text);
    const int one = victim == 0 ? 1 : 0, other = victim == 2 ? 1 : 2;
    assert_string_equal(s->board->text[one], s->board->text[other]);
}

typedef struct ending {
    int victim;
    fate how;
} ending;

/* Every ending in every kind of call, all at once: those that wait for a timeout wait together. */
static void on_all_calls(const char *transport, const ending *endings, int n, double timeout, const char *expected)
{
    started s[3 * FAILING_CALLS];
    for (int i = 0; i < n * FAILING_CALLS; i++) {
        const ending *e = &endings[i / FAILING_CALLS];
        s[i] = start_ranks(&(ranks){.transport = transport,
                                    .ranks = FAILING_RANKS,
                                    .timeout = timeout,
                                    .may_fail = 1 << e->victim,
                                    .argument = pack_failing((call)(i % FAILING_CALLS), e->victim, e->how)},
                           failing_part);
    }
    for (int i = 0; i < n * FAILING_CALLS; i++) {
        end_ranks(&s[i]);
        check_texts(&s[i], endings[i / FAILING_CALLS].victim, expected);
        free_board(s[i].board);
    }
}

#define ENDINGS(...) (const ending[]){__VA_ARGS__}, (int)(sizeof((const ending[]){__VA_ARGS__}) / sizeof(ending))

/* Ranks that are blamed must have been silent for so long: a healthy one has to get a core within this time. */
#define SILENCE 6.0
#define SILENT_TEXT "no answer for 6 seconds"
static const ending silent[] = {{0, STOPPED}, {1, STOPPED}, {2, HANGS}};

static void local_rank_killed_is_named(void **state)
{
    (void)state;
    on_all_calls("local", ENDINGS({1, KILLED}, {2, KILLED}), 120, "ended by signal 9 (killed)");
}

static void local_rank_that_ends_is_named(void **state)
{
    (void)state;
    on_all_calls("local", ENDINGS({1, ENDED}), 120, "ended with status 3");
    on_all_calls("local", ENDINGS({2, CRASHED}), 120, "ended by signal 11 (segmentation fault)");
}

static void local_rank_that_leaves_is_named(void **state)
{
    (void)state;
    on_all_calls("local", ENDINGS({1, LEFT}, {0, LEFT}), 120, "has left the run");
}

static void local_rank_that_is_silent_is_named(void **state)
{
    (void)state;
    on_all_calls("local", silent, 3, SILENCE, SILENT_TEXT);
}

/* ---- over TCP: an end without a word is a lost connection, whoever it is ------------------------------------------------ */

static void store_rank_killed_is_named(void **state)
{
    (void)state;
    on_all_calls("store", ENDINGS({1, KILLED}, {0, KILLED}), 120, "the connection was lost");
}

static void store_rank_that_ends_is_named(void **state)
{
    (void)state;
    on_all_calls("store", ENDINGS({2, ENDED}, {1, CRASHED}), 120, "the connection was lost");
}

static void store_rank_that_leaves_is_named(void **state)
{
    (void)state;
    on_all_calls("store", ENDINGS({1, LEFT}, {0, LEFT}), 120, "has left the run");
}

static void store_rank_that_is_silent_is_named(void **state)
{
    (void)state;
    on_all_calls("store", silent, 3, SILENCE, SILENT_TEXT);
}

/* ---- a job that stands still ------------------------------------------------------------------------------------------- */

/* Rounds until the test has enough. */
static int patient_part(abar_comm *c, abar_context *ctx, board *b)
{
    enum { LENGTH = 100000 };
    static float x[LENGTH];
    (void)ctx;
    for (int enough = 0; !enough;) {
        CHECK(abar__comm_sum_floats(c, x, LENGTH) == ABAR_OK);
        if (abar_comm_rank(c) == 0) enough = atomic_load(&b->enough);
        CHECK(abar__comm_broadcast(c, 0, &enough, sizeof enough) == ABAR_OK);
        if (abar_comm_rank(c) == 0) atomic_fetch_add(&b->turn, 1);
    }
    return 0;
}

static void wait_for_turns(board *b, int more)
{
    const int until = atomic_load(&b->turn) + more;
    for (int i = 0; i < HANGS_AFTER * 100 && atomic_load(&b->turn) < until; i++) usleep(10000);
}

static void signal_ranks(board *b, int number)
{
    for (int r = 0; r < FAILING_RANKS; r++) {
        kill((pid_t)atomic_load(&b->pid[r]), number);
        usleep(50000); /* the others wait for it by then */
    }
}

/* All ranks are stopped for longer than the timeout, as by Ctrl-Z or a queue that suspends jobs: none is to blame. */
static void job_that_was_suspended_goes_on(void **state)
{
    enum { TIMEOUT = 4 };
    static const char *const transports[] = {"local", "store"};
    started s[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        s[i] = start_ranks(&(ranks){.transport = transports[i], .ranks = FAILING_RANKS, .timeout = TIMEOUT}, patient_part);
        wait_for_turns(s[i].board, 3);
        signal_ranks(s[i].board, SIGSTOP);
    }
    sleep(TIMEOUT + 1);
    for (int i = 0; i < 2; i++) {
        signal_ranks(s[i].board, SIGCONT);
        wait_for_turns(s[i].board, 3);
        atomic_store(&s[i].board->enough, 1);
    }
    for (int i = 0; i < 2; i++) free_board(end_ranks(&s[i]));
}

/* ---- rank 0, the parent of forked ranks -------------------------------------------------------------------------------- */

static int endless_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)ctx;
    CHECK(abar__comm_barrier(c) == ABAR_OK);
    if (abar_comm_rank(c) == 0) kill(getpid(), SIGKILL);
    if (abar_comm_rank(c) == 1) /* computes, and makes no call */
        for (;;) pause();
    (void)abar__comm_barrier(c);
    (void)b;
    for (;;) pause();
}

/* Orphans come to this process, which sees how they ended. */
static void local_ranks_end_with_rank_0(void **state)
{
    (void)state;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    started s = start_ranks(&(ranks){.transport = "local", .ranks = FAILING_RANKS, .timeout = 120}, endless_part);
    alarm(HANGS_AFTER);
    for (int i = 0; i < FAILING_RANKS; i++) {
        int status;
        assert_true(waitpid(-1, &status, 0) > 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    alarm(0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
    free_board(s.board);
}

/* A caller that collects its children itself. */
static int reaped_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)b;
    if (abar_comm_rank(c) == 0) signal(SIGCHLD, SIG_IGN);
    abar_status status = abar__comm_barrier(c); /* rank 1 may end before another rank returns from it */
    if (abar_comm_rank(c) == 1) _exit(3);
    while (status == ABAR_OK) status = abar__comm_barrier(c);
    CHECK(status == ABAR_E_PEER);
    CHECK(strstr(abar_context_error(ctx), "rank 1 on ") && strstr(abar_context_error(ctx), "has ended"));
    return 0;
}

static void local_rank_reaped_by_others_is_named(void **state)
{
    (void)state;
    run_ranks(&(ranks){.transport = "local", .ranks = FAILING_RANKS, .timeout = 120, .may_fail = 2}, reaped_part);
}

/* A rank that ends without a word while rank 0 closes, and one that does not end: closing is bounded. */
static int closing_part(abar_comm *c, abar_context *ctx, board *b)
{
    (void)ctx, (void)b;
    (void)abar__comm_barrier(c);
    if (abar_comm_rank(c) == 1) _exit(3);
    if (abar_comm_rank(c) == 2)
        for (;;) pause();
    return 0;
}

static void local_close_ends_ranks_that_hang(void **state)
{
    (void)state;
    run_ranks(&(ranks){.transport = "local", .ranks = FAILING_RANKS, .timeout = 4, .may_fail = 2 + 4}, closing_part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_rank_killed_is_named),         cmocka_unit_test(local_rank_that_ends_is_named),
        cmocka_unit_test(local_rank_that_leaves_is_named),    cmocka_unit_test(local_rank_that_is_silent_is_named),
        cmocka_unit_test(local_ranks_end_with_rank_0),        cmocka_unit_test(local_rank_reaped_by_others_is_named),
        cmocka_unit_test(local_close_ends_ranks_that_hang),   cmocka_unit_test(store_rank_killed_is_named),
        cmocka_unit_test(store_rank_that_ends_is_named),      cmocka_unit_test(store_rank_that_leaves_is_named),
        cmocka_unit_test(store_rank_that_is_silent_is_named), cmocka_unit_test(job_that_was_suspended_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
