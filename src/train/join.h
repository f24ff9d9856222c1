/* Micro-batches joined to one batch, of one rank or of several (docs/scaling.md). What a micro-batch leaves is summed in the
 * fixed order of comm/comm.h, or gathered in the order of micro-batches, so that a step has the same bits on any number of
 * ranks:
 *
 *     gradients, further gradients      summed, in the device's numbers
 *     pending statistics                summed, in double
 *     loss, correct, count              summed, in double
 *     kept rows, batch norms' moments   gathered
 *
 * step.c calls it: for each micro-batch abar__join_add, then abar__join_end. Nothing here allocates after create.
 *
 * On a queued device all of this is in its memory and enqueued (join_queued.c). Several ranks exchange over NCCL, in the queue,
 * gradients in buckets beside the last backward pass; or through the host: then a step is cut in two, between which the host
 * exchanges what has been copied to pinned memory. */
#ifndef ABAR_JOIN_H
#define ABAR_JOIN_H

#include "abar/train.h"
#include "comm/comm.h"
#include "comm/nccl.h"

#include <stdatomic.h>

typedef struct abar__stepper abar__stepper;
typedef struct abar__step_result abar__step_result;

/* The sum of one vector per micro-batch. */
typedef struct abar__stack_sum {
    abar__tree_sum *tree; /* NULL: there is none */
    abar__tree_type type;
    int64_t capacity, length; /* elements: at most, of this sum */
    int64_t next;             /* term that is added next */
    int depth, filled;        /* nodes that are kept, at most and now: (depth, capacity) in slots */
    char *slots;
    size_t bytes; /* of slots */
} abar__stack_sum;

/* What a rank tells the others of a micro-batch. */
typedef struct abar__part_result {
    double loss, correct, count; /* loss: mean times count */
    double finite;
} abar__part_result;

typedef struct abar__join_config {
    abar_comm *comm; /* NULL: one rank */
    int64_t n;       /* micro-batches of a step, of all ranks together; a multiple of the ranks */
    bool fast;       /* ranks are joined by the transport's own sums, in no fixed order */
    bool wide;       /* the device computes in double */
    size_t grad_bytes, extra_bytes;
    int64_t pending;         /* doubles, at most */
    size_t statistics_bytes; /* of the batch norms of a micro-batch */
    int64_t test_batches;    /* of an evaluation, of all ranks together; not used by one rank */
    const atomic_bool *stop; /* this rank wants to stop; NULL: never */
    abar_device *dev;        /* a queued device; NULL: micro-batches are in host memory */
    abar__nccl *nccl;        /* over which its ranks exchange; NULL: through the host */
    size_t bucket_bytes;     /* over NCCL: gradients are exchanged so many at a time; 0: ABAR_BUCKET */
} abar__join_config;

#define ABAR_BUCKET ((size_t)16 << 20)

typedef struct abar__join {
    abar_context *ctx;
    abar__join_config config;
    int rank, ranks;
    int64_t first, count; /* micro-batches of this rank */
    abar__stack_sum grads, extra, pending;
    double *pending_own;        /* (pending): of one micro-batch, and the total */
    abar__part_result *results; /* (ranks, record): count of them, and one with what a rank has to say itself */
    abar__part_result *tests;   /* (ranks, test_share) */
    int64_t test_share;
    char *statistics; /* (n + 1, statistics_bytes): of the micro-batches, and the running ones before them */
    char *memory;
    size_t bytes;
    bool stops; /* some rank wanted to stop when the last step was joined */
    /* of a queued device, in whose memory slots, pending_own and statistics are: */
    double *numbers;   /* results there */
    char *host;        /* pinned, laid out as memory; NULL: one rank */
    size_t host_bytes; /* of it: all, or results and tests alone */
    bool staged;       /* ranks exchange through it */
    bool direct;       /* the rank has one micro-batch, whose terms stay where they are: there are no slots */
    int nodes;         /* of this rank, when all its micro-batches are added */
    int64_t bucket;    /* elements of a bucket; 0: gradients are joined as a whole, when there are all */
    int64_t joined;    /* of this step: gradients from this element on are joined, or on their way, on the side of ranks */
    void *joining;     /* gradients of the last micro-batch, into which they are joined */
} abar__join;

/* Bytes that a join of these settings holds. */
abar_status abar__join_bytes(abar_context *ctx, const abar__join_config *config, size_t *out);
abar_status abar__join_create(abar_context *ctx, const abar__join_config *config, abar__join *out);
void abar__join_release(abar__join *j);

/* ---- a step; s->join is j ---------------------------------------------------------------------------------------------- */

void abar__join_begin(abar__join *j, const abar__stepper *s);
/* After the backward pass of micro-batch i of this rank: takes its gradients, statistics and loss. */
abar_status abar__join_add(abar__join *j, const abar__stepper *s, int64_t i, const abar_loss *loss);
/* The loss of micro-batch i was not finite: all ranks skip the step. */
void abar__join_spoil(abar__join *j, int64_t i);
/* All ranks: joins what was added; the net and the optimizer then have what is the batch's. status: of this rank's passes so
 * far; where a rank failed, all do. */
abar_status abar__join_end(abar__join *j, const abar__stepper *s, abar_status status, abar__step_result *out);
/* This rank failed between two steps: the others, which wait in abar__join_end, are told. Returns status. */
abar_status abar__join_fail(abar__join *j, abar_status status);

/* The same of further passes: after the step (gradients alone), */
void abar__join_extra_begin(abar__join *j);
void abar__join_extra_add(abar__join *j, const abar__stepper *s);
abar_status abar__join_extra_end(abar__join *j, const abar__stepper *s);
/* and the second pass of a step, of which statistics are joined. *finite: of all ranks. */
void abar__join_second_begin(abar__join *j, const abar__stepper *s);
abar_status abar__join_second_add(abar__join *j, const abar__stepper *s);
abar_status abar__join_second_end(abar__join *j, const abar__stepper *s, abar_status status, bool *finite);

/* Batch norms' statistics alone: those of micro-batch i of this rank are in the net; then all ranks join them. */
abar_status abar__join_statistics_begin(abar__join *j, const abar__stepper *s);
abar_status abar__join_statistics_add(abar__join *j, const abar__stepper *s, int64_t i);
abar_status abar__join_statistics_end(abar__join *j, const abar__stepper *s, abar_status status);

/* ---- a step on a queued device (join_queued.c) -------------------------------------------------------------------------
 *
 * Host, before anything of the step is enqueued or replayed: what it joins. Then begin and add (of micro-batch i of this rank)
 * are enqueued; where ranks exchange through the host send, which meet waits for, exchanges, and tells other ranks of a
 * failure; and take, after which net, optimizer and the step's losses are the batch's. */

abar_status abar__join_plan(abar__join *j, const abar__stepper *s);
abar_status abar__join_enqueue_begin(abar__join *j, const abar__stepper *s);
abar_status abar__join_enqueue_add(abar__join *j, const abar__stepper *s, int64_t i);
/* Whether gradients of micro-batch i are joined in buckets while its backward pass goes on, and how: they are complete from
 * this byte on (abar__grad_watcher). Before the first call: begin. */
bool abar__join_watches(const abar__join *j, int64_t i);
void abar__join_begin_watching(abar__join *j, const abar__stepper *s);
abar_status abar__join_watch(void *join, size_t from);
abar_status abar__join_send(abar__join *j, const abar__stepper *s);
abar_status abar__join_meet(abar__join *j, abar_status status);
abar_status abar__join_take(abar__join *j, const abar__stepper *s);
/* The same of gradients from further passes after the step. */
void abar__join_extra_enqueue_begin(abar__join *j);
abar_status abar__join_extra_push(abar__join *j, const abar__stepper *s);
abar_status abar__join_extra_send(abar__join *j, const abar__stepper *s);
abar_status abar__join_extra_meet(abar__join *j);
abar_status abar__join_extra_take(abar__join *j, const abar__stepper *s);
abar_status abar__join_statistics_take(abar__join *j, const abar__stepper *s); /* enqueued, exchanged and averaged */
/* Ranks that exchange over NCCL. Waits for an event of the device, no longer than the timeout, and no longer than all ranks go
 * on: what one tells of its failure is the context's error then. */
abar_status abar__join_wait(abar__join *j, void *event);
/* This rank has failed, with the context's error, where the others do not expect it: they are told, and its own steps that wait
 * for them end. Of one rank, and where others have failed, it does nothing. Returns status. */
abar_status abar__join_tell(abar__join *j, abar_status status);
/* join.c's and join_queued.c's own. */
abar_status abar__join_reduce(const abar__join *j, abar__stack_sum *s, void *out);
abar_status abar__join_take_memory(abar__join *j);
void abar__join_free_memory(abar__join *j);
void abar__join_place_tree(const abar__join *j, abar__tree_place *out);

/* ---- an evaluation ----------------------------------------------------------------------------------------------------- */

/* The test batches of this rank: from *first on. Returns how many. */
int64_t abar__join_tests(const abar__join *j, int64_t *first);
void abar__join_test_add(abar__join *j, int64_t i, const abar_loss *loss); /* of the i-th of them */
/* All ranks: the loss of all batches, added up in their order. status as in abar__join_end. ABAR_STOPPED: a rank wants to stop.
 */
abar_status abar__join_tests_end(abar__join *j, abar_status status, abar_loss *out);

#endif
