/* Ranks for tests: each of several processes runs the same function, and the test sees which check of which rank failed. */
#ifndef ABAR_TESTS_COMM_RANKS_H
#define ABAR_TESTS_COMM_RANKS_H

#include "comm/comm.h"
#include "base/base_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 16

/* In memory that all processes of a test share. */
typedef struct board {
    atomic_int
        line[RANKS_MAX]; /* 0: the rank has not ended its part; -1: all checks held; else the line of the first that failed */
    char text[RANKS_MAX][512]; /* its context's last failure */
    double seconds[RANKS_MAX]; /* how long the rank's last call took, where a part measures it */
    atomic_int pid[RANKS_MAX];
    atomic_int turn;
    atomic_int enough; /* what the test tells the ranks, where a part asks */
    int argument;
} board;

/* A rank's part: 0, or the line of the check that failed. */
typedef int (*part)(abar_comm *c, abar_context *ctx, board *b);

#define CHECK(holds)                   \
    do {                               \
        if (!(holds)) return __LINE__; \
    } while (0)

typedef struct ranks {
    const char *transport; /* "local" or "store" */
    int ranks;
    double timeout; /* 0: 60 */
    int argument;
    int may_fail; /* a bit for each rank that may end in the middle */
} ranks;

/* parts.c */
int names_part(abar_comm *c, abar_context *ctx, board *b);
int barrier_part(abar_comm *c, abar_context *ctx, board *b);
int broadcast_part(abar_comm *c, abar_context *ctx, board *b);
int gather_part(abar_comm *c, abar_context *ctx, board *b);
int exchange_part(abar_comm *c, abar_context *ctx, board *b);
int sum_part(abar_comm *c, abar_context *ctx, board *b);
int agreement_part(abar_comm *c, abar_context *ctx, board *b);
int mixed_part(abar_comm *c, abar_context *ctx, board *b);
int telling_part(abar_comm *c, abar_context *ctx, board *b); /* leaves all calls failed */

/* failing.c: ranks make calls of one kind until the victim meets its end and all others fail. */
enum { FAILING_RANKS = 3 };
typedef enum call { BARRIER, BROADCAST, GATHER, EXCHANGE, SUM, TREE, FAILING_CALLS } call;
typedef enum fate { KILLED, STOPPED, ENDED, CRASHED, LEFT, HANGS } fate;
static inline int pack_failing(call k, int victim, fate how)
{
    return (int)k + 16 * victim + 256 * (int)how;
} /* the argument */
int failing_part(abar_comm *c, abar_context *ctx, board *b);

/* Runs the part on every rank and fails the test if a check of one failed. The board is there until the next call. An alarm
 * ends a test that hangs. */
board *run_ranks(const ranks *r, part p);

/* The same in two steps, so that several can run at once: those that wait for a timeout. */
typedef struct started {
    ranks ranks;
    board *board;
    int pids[RANKS_MAX], processes;
} started;

started start_ranks(const ranks *r, part p);
board *end_ranks(started *s);
/* After the last look at its board. */
void free_board(board *b);
/* A context without log. */
abar_context *new_context(void);
/* A port of this machine that nobody uses, and that no other program of these tests gets while this one runs. */
int free_port(void);

/* Seconds after which a process that hangs is ended. They pass in a failure alone: a loaded machine may take most of them. */
#define HANGS_AFTER 240

#endif
