/* Pieces of a device's memory of which every rank makes some, and all ranks get all: refreshes that are divided, and weights
 * with --zero 1.
 *
 *                                send                                meet                  take
 *     ref, cpu                   exchanges them where they are       –                     –
 *     over NCCL                  the same, enqueued                  –                     –
 *     through the host (staged)  enqueues copies to pinned memory    waits, exchanges      enqueues copies back */
#ifndef ABAR_OPTIM_PIECES_H
#define ABAR_OPTIM_PIECES_H

#include "device/device_impl.h"

typedef struct abar__shared_piece {
    int owner;
    void *memory;
    size_t bytes, at; /* at: in pinned memory */
} abar__shared_piece;

typedef struct abar__pieces {
    abar_device *dev;
    abar__owners ranks;
    bool staged;
    int n, capacity; /* capacity 0: there is nothing to exchange */
    abar__shared_piece *list;
    int *next;     /* (ranks): the piece of each in a walk over the list */
    size_t *first; /* (ranks + 1): where the pieces of each begin in pinned memory */
    void **recv;   /* (ranks), and recv_bytes: arguments of exchanges */
    size_t *recv_bytes;
    void *memory;
    size_t memory_bytes;
    char *host; /* pinned, where it is staged */
    size_t host_bytes;
} abar__pieces;

/* For at most so many pieces of so many bytes together. */
abar_status abar__pieces_make(abar_device *dev, const abar__owners *ranks, int capacity, size_t bytes, abar__pieces *out);
void abar__pieces_release(abar__pieces *p);
size_t abar__pieces_bytes(const abar__pieces *p);
/* The list of what is sent next: begin, and each piece, in the same order on all ranks. */
void abar__pieces_begin(abar__pieces *p);
abar_status abar__pieces_add(void *pieces, int owner, void *memory, size_t bytes); /* an abar__piece_visitor */
abar_status abar__pieces_send(abar__pieces *p);
/* Where it is staged: between what send and what take have enqueued, and at every replay of these. */
abar_status abar__pieces_meet(abar__pieces *p);
abar_status abar__pieces_take(const abar__pieces *p);

#endif
