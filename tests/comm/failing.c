/* Ranks that make calls until one of them fails. */
#include "ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { LENGTH = 200000, ROUNDS = 1000000 };

static abar_status tree_sum(abar_comm *c, abar_context *ctx, float *x)
{
    abar__tree_sum *s;
    const int64_t first[FAILING_RANKS] = {0, 1, 2}, count[FAILING_RANKS] = {1, 1, 1};
    abar_status status = abar__tree_sum_create(ctx, c, FAILING_RANKS, first, count, ABAR_TREE_FLOAT, LENGTH, &s);
    if (status < 0) return status;
    status = abar__tree_sum_run(s, (const void *const[]){x}, x, LENGTH);
    abar__tree_sum_destroy(s);
    return status;
}

/* One call of the kind; data is (FAILING_RANKS, LENGTH). */
static abar_status make_call(call k, abar_comm *c, abar_context *ctx, float *data, int round)
{
    const size_t slice = LENGTH / FAILING_RANKS * sizeof *data;
    const void *send[FAILING_RANKS];
    void *recv[FAILING_RANKS];
    size_t bytes[FAILING_RANKS];
    for (int r = 0; r < FAILING_RANKS; r++) {
        send[r] = data + LENGTH / FAILING_RANKS * r, recv[r] = data + LENGTH + LENGTH / FAILING_RANKS * r, bytes[r] = slice;
    }
    switch (k) {
    case BARRIER: return abar__comm_barrier(c);
    case BROADCAST: return abar__comm_broadcast(c, round % FAILING_RANKS, data, LENGTH * sizeof *data);
    case GATHER: return abar__comm_gather(c, data, LENGTH * sizeof *data, data);
    case EXCHANGE: return abar__comm_exchange(c, send, bytes, recv, bytes);
    case SUM: return abar__comm_sum_floats(c, data, LENGTH);
    default: return tree_sum(c, ctx, data);
    }
}

static void meet_end(fate how)
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
static void strike(board *b, int victim, fate how)
{
    const pid_t pid = (pid_t)atomic_load(&b->pid[victim]);
    if (how == KILLED) kill(pid, SIGKILL);
    if (how == STOPPED) kill(pid, SIGSTOP);
}

int failing_part(abar_comm *c, abar_context *ctx, board *b)
{
    const call k = (call)(b->argument % 16);
    const int victim = b->argument / 16 % 16, rank = abar_comm_rank(c);
    const fate how = (fate)(b->argument / 256);
    const bool from_outside = how == KILLED || how == STOPPED;
    float *data = calloc((size_t)FAILING_RANKS * LENGTH, sizeof *data);
    abar_status status = abar__comm_barrier(c); /* all pids are on the board */
    for (int round = 0; round < ROUNDS && status == ABAR_OK; round++) {
        if (round == 3 && rank == (victim + 1) % FAILING_RANKS) strike(b, victim, how);
        if (round == 3 && rank == victim && how == LEFT) return free(data), 0;
        if (round == 3 && rank == victim && !from_outside) meet_end(how);
        status = make_call(k, c, ctx, data, round);
    }
    char text[512];
    snprintf(text, sizeof text, "%s", abar_context_error(ctx));
    CHECK(status == ABAR_E_PEER && text[0]);
    for (int again = 0; again < FAILING_CALLS; again++) { /* the same failure, at once, in all kinds of calls */
        CHECK(make_call((call)again, c, ctx, data, 0) == ABAR_E_PEER);
        CHECK(!strcmp(abar_context_error(ctx), text));
    }
    free(data);
    return 0;
}
