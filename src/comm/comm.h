/* Exchanges between ranks. A transport is one file that fills abar__comm_ops; comm.c finds the one to use and checks calls.
 *
 * Every call is collective: all ranks make the same calls in the same order, with sizes that agree. Memory is the host's. A
 * call fails with ABAR_E_PEER on every rank within the timeout when a rank has died, hangs, or cannot be reached, with a text
 * that names it; after a failure every later call fails in the same way at once. Nothing here allocates after open. */
#ifndef ABAR_SRC_COMM_COMM_H
#define ABAR_SRC_COMM_COMM_H

#include "abar/comm.h"

abar_status abar__comm_barrier(abar_comm *c);
/* root's bytes to all others. */
abar_status abar__comm_broadcast(abar_comm *c, int root, void *data, size_t bytes);
/* all: (n, bytes), the parts of all ranks in their order; own may be its place there. */
abar_status abar__comm_gather(abar_comm *c, const void *own, size_t bytes, void *all);
/* The same of parts of any size: own's bytes to all others, recv_bytes[r] from each other rank r to recv[r]. */
abar_status abar__comm_gather_parts(abar_comm *c, const void *own, size_t bytes, void *const *recv, const size_t *recv_bytes);
/* Sends send_bytes[r] bytes to each rank r and receives recv_bytes[r] from it; n pointers each. What a rank sends to itself is
 * copied. */
abar_status abar__comm_exchange(abar_comm *c, const void *const *send, const size_t *send_bytes, void *const *recv,
                                const size_t *recv_bytes);
/* Sums in place over the ranks, in whatever order is fastest; the result is the same on all ranks. */
abar_status abar__comm_sum_floats(abar_comm *c, float *data, int64_t n);
abar_status abar__comm_sum_doubles(abar_comm *c, double *data, int64_t n);
#define ABAR_COMM_TEXT 512 /* bytes of a failure's text */
/* Not collective, for ranks that wait for each other elsewhere. This one has failed: the others' calls fail with this text, as
 * do its own from now on. */
void abar__comm_tell(abar_comm *c, const char *text);
/* The same with the name of this rank and the error of the context. */
void abar__comm_tell_error(abar_comm *c, const abar_context *ctx);
/* Whether a rank has told so, or has ended or left the run; waits for nothing. ABAR_E_PEER then, as in a call. */
abar_status abar__comm_hear(abar_comm *c);
uint64_t abar__comm_sent(const abar_comm *c);  /* bytes that this rank has sent to others so far */
double abar__comm_seconds(const abar_comm *c); /* that it has spent in exchanges so far, waiting included */

/* Cores that this process may use: a launcher, a container or taskset may bind it to some. And its share of those that the
 * ranks of its machine may use together. At least 1. */
int abar__cores_allowed(void);
int abar__comm_cores(const abar_comm *c);

/* ---- sums in a fixed order (tree.c) ----------------------------------------------------------------------------------
 *
 * n terms, such as the gradients of n micro-batches, are summed in a binary tree over their indices: node (level, j) is the sum
 * of nodes (level - 1, 2j) and (level - 1, 2j + 1), or the first alone where the second has no terms; (0, j) is term j. The
 * result does not depend on which rank has which terms. A rank has consecutive terms and sums them to the largest nodes that
 * they fill completely: at most 2 log2 n, one where n and the ranks are powers of 2. */

#define ABAR_TREE_NODES 64 /* of one rank, at most */

typedef struct abar__tree_node {
    int level;
    int64_t index;
} abar__tree_node;

/* The nodes that terms first .. first + count of n fill completely, in the order of their terms. Returns how many. n is at most
 * 2^31. */
int abar__tree_cover(int64_t n, int64_t first, int64_t count, abar__tree_node out[ABAR_TREE_NODES]);
/* Nodes that a rank keeps at most while it sums `count` terms from `first` on one after another, beside the term that comes
 * next: one that completes a node is added to it. */
int abar__tree_depth(int64_t n, int64_t first, int64_t count);
/* A rank whose terms begin with `first` keeps a stack of buffers and puts each term on top. After `term` it adds the top buffer
 * to the one below, and drops the top, so many times. After its last term the stack holds the nodes of abar__tree_cover. */
int abar__tree_merges(int64_t n, int64_t first, int64_t term);
/* to += from, as the tree adds. */
void abar__tree_add_floats(float *to, const float *from, int64_t length);
void abar__tree_add_doubles(double *to, const double *from, int64_t length);

/* The sum of all terms, on all ranks. Every rank owns a part of the elements, receives this part of every node of every rank,
 * adds them in the tree's order, and sends the sum to all. Creating it allocates the workspace, running it does not.
 *
 * Bytes that a rank sends in a run (abar__comm_sent), for R ranks, L elements of e bytes, m nodes and a part of l elements:
 * m (L - l) e + (R - 1) l e. With one node per rank that is 2 (R - 1) / R L e, as a ring's. */
typedef struct abar__tree_sum abar__tree_sum;

typedef enum abar__tree_type { ABAR_TREE_FLOAT = 4, ABAR_TREE_DOUBLE = 8 } abar__tree_type; /* bytes of an element */

/* first, count: the terms of each rank, (size of c). Each of the n terms belongs to one rank. length: elements of a run, at
 * most. */
abar_status abar__tree_sum_create(abar_context *ctx, abar_comm *c, int64_t n, const int64_t *first, const int64_t *count,
                                  abar__tree_type type, int64_t length, abar__tree_sum **out);
/* Sums whose terms are not in host memory: where the workspace is, and how bytes are copied, added and exchanged there
 * (comm.h's exchange, with own sizes 0). A NaN in such a sum is any NaN. */
typedef struct abar__tree_place {
    void *user;
    abar_status (*alloc)(void *user, size_t bytes, void **out);
    void (*release)(void *user, void *memory, size_t bytes);
    abar_status (*copy)(void *user, void *to, const void *from, size_t bytes);
    abar_status (*add)(void *user, void *to, const void *from, int64_t n, abar__tree_type type);
    abar_status (*exchange)(void *user, const void *const *send, const size_t *send_bytes, void *const *recv,
                            const size_t *recv_bytes);
} abar__tree_place;

/* place: copied; NULL: host memory. */
abar_status abar__tree_sum_create_in(abar_context *ctx, abar_comm *c, const abar__tree_place *place, int64_t n,
                                     const int64_t *first, const int64_t *count, abar__tree_type type, int64_t length,
                                     abar__tree_sum **out);
/* nodes: this rank's, as abar__tree_cover lists them, `length` elements each. sum: may be nodes[0], no other node. A NaN in it
 * is the positive quiet one without payload, so that its bits do not depend on the ranks either. */
abar_status abar__tree_sum_run(abar__tree_sum *s, const void *const *nodes, void *sum, int64_t length);
size_t abar__tree_sum_bytes(const abar__tree_sum *s); /* of its workspace */
void abar__tree_sum_destroy(abar__tree_sum *s);

#endif
