/* What joins micro-batches in the memory of a queued device (train/join_queued.c). Everything is enqueued, and may be captured.
 * The numbers are float32, or double where it is said. */
#ifndef ABAR_JOIN_OPS_H
#define ABAR_JOIN_OPS_H

#include "abar/device.h"
#include "base/both.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum abar__pending_kind {
    ABAR_PENDING_VECTOR,
    ABAR_PENDING_TRIANGLE, /* the lower one of a square of n rows, row by row */
    ABAR_PENDING_DOUBLES
} abar__pending_kind;

/* A part of what is pending, and its place among the doubles of abar_optim_pending_read. */
typedef struct abar__pending_span {
    abar__pending_kind kind;
    void *memory;
    int64_t n, at;
} abar__pending_span;

typedef abar_status (*abar__pending_visitor)(void *user, const abar__pending_span *span);

#define ABAR_RESULT_NUMBERS 4 /* of a micro-batch: loss times count, correct, count, 1 where the loss is finite */

typedef struct abar__join_ops {
    /* to += from, n numbers; wide: doubles. */
    abar_status (*add)(abar_device *dev, void *to, const void *from, int64_t n, bool wide);
    /* What a forward pass left in result (memory the device reads), as a micro-batch's numbers. */
    abar_status (*note)(abar_device *dev, double *to, const void *result);
    /* The numbers of n micro-batches, summed in the order of comm/comm.h's tree, into the losses of the step; results: of each
     * rank `each` and one with its word, whose first number is not 0 where it wants to stop. */
    abar_status (*total)(abar_device *dev, void *losses, const double *results, int64_t n, int64_t each);
    abar_status (*pack)(abar_device *dev, const abar__pending_span *span, double *packed); /* leaves zeros */
    abar_status (*unpack)(abar_device *dev, const abar__pending_span *span, const double *packed);
    /* n batches one after the other: running = (1 - momentum) running + momentum batch, `length` numbers each, `stride` bytes
     * apart. */
    abar_status (*average)(abar_device *dev, int64_t length, double momentum, void *running, const void *batches, int64_t n,
                           size_t stride);
    /* n counters that every rank had as they were before, and has counted on: counters = before + what all have added to it.
     * all: (ranks, n). */
    abar_status (*count)(abar_device *dev, int64_t *counters, const int64_t *before, const int64_t *all, int n, int ranks);
} abar__join_ops;

ABAR_BOTH int64_t abar__join_counted(int64_t before, const int64_t *all, int i, int n, int ranks)
{
    int64_t sum = before;
    for (int r = 0; r < ranks; r++) sum += all[r * n + i] - before;
    return sum;
}

/* How many sums are complete after term i of n: abar__tree_merges of a rank that has all of them. Term i + 1 of n completes as
 * many nodes as the binary number i has ones at its end; the last term completes the root. */
ABAR_BOTH int abar__join_merges(int64_t n, int64_t i)
{
    int before = 0, after = 0;
    for (int64_t rest = i; rest; rest &= rest - 1) before++;
    for (int64_t rest = i + 1; rest; rest &= rest - 1) after++;
    return before + 1 - (i + 1 == n ? 1 : after);
}

#endif
