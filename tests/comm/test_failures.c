/* A rank that dies, stops, hangs or leaves, in every kind of call: all others fail with one text that names it, and nobody
 * waits for ever. */
#include "ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, LENGTH = 200000, ROUNDS = 1000000 };

typedef enum call { BARRIER, BROADCAST, GATHER, EXCHANGE, SUM, TREE, CALLS } call;
typedef enum end { KILLED, STOPPED, ENDED, CRASHED, LEFT, HANGS } end;

static int pack(call k, int victim, end how) { return (int)k + 16 * victim + 256 * (int)how; }

static abar_status tree_sum(abar_comm *c, abar_context *ctx, float *x)
{
    abar__tree_sum *s;
    const int64_t first[RANKS] = {0, 1, 2}, count[RANKS] = {1, 1, 1};
    abar_status status = abar__tree_sum_create(ctx, c, RANKS, first, count, ABAR_TREE_FLOAT, LENGTH, &s);
    if (status < 0) return status;
    status = abar__tree_sum_run(s, (const void *const[]){x}, x, LENGTH);
    abar__tree_sum_destroy(s);
    return status;
}

/* One call of the kind; data is (RANKS, LENGTH). */
static abar_status make_call(call k, abar_comm *c, abar_context *ctx, float *data, int round)
{
    const size_t slice = LENGTH / RANKS * sizeof *data;
    const void *send[RANKS];
    void *recv[RANKS];
    size_t bytes[RANKS];
    for (int r = 0; r < RANKS; r++) {
        send[r] = data + LENGTH / RANKS * r, recv[r] = data + LENGTH + LENGTH / RANKS * r, bytes[r] = slice;
    }
    switch (k) {
    case BARRIER: return abar__comm_barrier(c);
    case BROADCAST: return abar__comm_broadcast(c, round % RANKS, data, LENGTH * sizeof *data);
    case GATHER: return abar__comm_gather(c, data, LENGTH * sizeof *data, data);
    case EXCHANGE: return abar__comm_exchange(c, send, bytes, recv, bytes);
    case SUM: return abar__comm_sum_floats(c, data, LENGTH);
    default: return tree_sum(c, ctx, data);
    }
}

static void meet_end(end how)
{
    switch (how) {
    case KILLED: kill(getpid(), SIGKILL); break;
    case STOPPED: kill(getpid(), SIGSTOP); break;
    case ENDED: _exit(3);
    case CRASHED: signal(SIGSEGV, SIG_DFL), raise(SIGSEGV); break;
    default:
        for (;;) pause();
    }
}

/* Another rank ends the victim in the midst of its calls, where that can be done from outside. */
static void strike(board *b, int victim, end how)
{
    const pid_t pid = (pid_t)atomic_load(&b->pid[victim]);
    if (how == KILLED) kill(pid, SIGKILL);
    if (how == STOPPED) kill(pid, SIGSTOP);
}

static int failing_part(abar_comm *c, abar_context *ctx, board *b)
{
    const call k = (call)(b->argument % 16);
    const int victim = b->argument / 16 % 16, rank = abar_comm_rank(c);
    const end how = (end)(b->argument / 256);
    const bool from_outside = how == KILLED || how == STOPPED;
    float *data = calloc((size_t)RANKS * LENGTH, sizeof *data);
    abar_status status = abar__comm_barrier(c); /* all pids are on the board */
    for (int round = 0; round < ROUNDS && status == ABAR_OK; round++) {
        if (round == 3 && rank == (victim + 1) % RANKS) strike(b, victim, how);
        if (round == 3 && rank == victim && how == LEFT) return free(data), 0;
        if (round == 3 && rank == victim && !from_outside) meet_end(how);
        status = make_call(k, c, ctx, data, round);
    }
    char text[512];
    snprintf(text, sizeof text, "%s", abar_context_error(ctx));
    CHECK(status == ABAR_E_PEER && text[0]);
    for (int again = 0; again < CALLS; again++) { /* the same failure, at once, in all kinds of calls */
        CHECK(make_call((call)again, c, ctx, data, 0) == ABAR_E_PEER);
        CHECK(!strcmp(abar_context_error(ctx), text));
    }
    free(data);
    return 0;
}

static void check_texts(const started *s, int victim, const char *expected)
{
    char host[64] = {0}, text[512];
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "rank %d on %s: %s", victim, host, expected);
    for (int r = 0; r < RANKS; r++)
        if (r != victim && strncmp(s->board->text[r], text, strlen(text)))
            fail_msg("%s, call %d: rank %d reports '%s', not '%s'", s->ranks.transport, s->ranks.argument % 16, r,
                     s->board->text[r], text);
    const int one = victim == 0 ? 1 : 0, other = victim == 2 ? 1 : 2;
    assert_string_equal(s->board->text[one], s->board->text[other]);
}

static void on_all_calls(const char *transport, int victim, end how, double timeout, const char *expected)
{
    started s[CALLS];
    for (int k = 0; k < CALLS; k++)
        s[k] = start_ranks(&(ranks){.transport = transport,
                                    .ranks = RANKS,
                                    .timeout = timeout,
                                    .may_fail = 1 << victim,
                                    .argument = pack((call)k, victim, how)},
                           failing_part);
    for (int k = 0; k < CALLS; k++) {
        end_ranks(&s[k]);
        check_texts(&s[k], victim, expected);
        free_board(s[k].board);
    }
}

static void local_rank_killed_is_named(void **state)
{
    (void)state;
    on_all_calls("local", 1, KILLED, 40, "ended by signal 9 (killed)");
    on_all_calls("local", 2, KILLED, 40, "ended by signal 9 (killed)");
}

static void local_rank_that_ends_is_named(void **state)
{
    (void)state;
    on_all_calls("local", 1, ENDED, 40, "ended with status 3");
    on_all_calls("local", 2, CRASHED, 40, "ended by signal 11 (segmentation fault)");
}

static void local_rank_that_leaves_is_named(void **state)
{
    (void)state;
    on_all_calls("local", 1, LEFT, 40, "has left the run");
    on_all_calls("local", 0, LEFT, 40, "has left the run");
}

static void local_rank_stopped_is_named(void **state)
{
    (void)state;
    on_all_calls("local", 1, STOPPED, 1.5, "no answer for 1.5 seconds");
    on_all_calls("local", 0, STOPPED, 1.5, "no answer for 1.5 seconds");
}

static void local_rank_that_hangs_is_named(void **state)
{
    (void)state;
    on_all_calls("local", 2, HANGS, 1.5, "no answer for 1.5 seconds");
}

/* ---- over TCP: an end without a word is a lost connection, whoever it is ------------------------------------------------ */

static void store_rank_killed_is_named(void **state)
{
    (void)state;
    on_all_calls("store", 1, KILLED, 40, "the connection was lost");
    on_all_calls("store", 0, KILLED, 40, "the connection was lost");
}

static void store_rank_that_ends_is_named(void **state)
{
    (void)state;
    on_all_calls("store", 2, ENDED, 40, "the connection was lost");
    on_all_calls("store", 1, CRASHED, 40, "the connection was lost");
}

static void store_rank_that_leaves_is_named(void **state)
{
    (void)state;
    on_all_calls("store", 1, LEFT, 40, "has left the run");
    on_all_calls("store", 0, LEFT, 40, "has left the run");
}

static void store_rank_stopped_is_named(void **state)
{
    (void)state;
    on_all_calls("store", 1, STOPPED, 1.5, "no answer for 1.5 seconds");
    on_all_calls("store", 0, STOPPED, 1.5, "no answer for 1.5 seconds");
}

static void store_rank_that_hangs_is_named(void **state)
{
    (void)state;
    on_all_calls("store", 2, HANGS, 1.5, "no answer for 1.5 seconds");
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
    started s = start_ranks(&(ranks){.transport = "local", .ranks = RANKS, .timeout = 40}, endless_part);
    alarm(60);
    for (int i = 0; i < RANKS; i++) {
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
    run_ranks(&(ranks){.transport = "local", .ranks = RANKS, .timeout = 40, .may_fail = 2}, reaped_part);
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
    run_ranks(&(ranks){.transport = "local", .ranks = RANKS, .timeout = 0.5, .may_fail = 2 + 4}, closing_part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_rank_killed_is_named),           cmocka_unit_test(local_rank_that_ends_is_named),
        cmocka_unit_test(local_rank_that_leaves_is_named),      cmocka_unit_test(local_rank_stopped_is_named),
        cmocka_unit_test(local_rank_that_hangs_is_named),       cmocka_unit_test(local_ranks_end_with_rank_0),
        cmocka_unit_test(local_rank_reaped_by_others_is_named), cmocka_unit_test(local_close_ends_ranks_that_hang),
        cmocka_unit_test(store_rank_killed_is_named),           cmocka_unit_test(store_rank_that_ends_is_named),
        cmocka_unit_test(store_rank_that_leaves_is_named),      cmocka_unit_test(store_rank_stopped_is_named),
        cmocka_unit_test(store_rank_that_hangs_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
