/* Shared by local.c and local_watch.c. */
#ifndef ABAR_SRC_COMM_LOCAL_IMPL_H
#define ABAR_SRC_COMM_LOCAL_IMPL_H

#include "comm/comm_impl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#define ABAR_LOCAL_GRACE 2.0 /* seconds that rank 0 leaves the others to end after a failure */

/* Of one rank, in shared memory. */
typedef struct seat {
    _Alignas(ABAR_ALIGN) atomic_uint bell; /* counts changes that the rank may wait for; it sleeps on it */
    atomic_int sleeping;                   /* it has to be woken */
    atomic_int left;                       /* it has closed its side */
    atomic_uint_fast64_t beat;             /* when it was last seen in a call: nanoseconds of the monotonic clock */
} seat;

typedef struct shared {
    atomic_int failed; /* 1: text is being written, 2: it is complete */
    char text[ABAR_COMM_FAILURE];
    seat seats[]; /* (size), then the rings, then their bytes */
} shared;

typedef struct abar__local {
    shared *shared;
    size_t mapped; /* bytes */
    size_t ring;   /* bytes of one ring */
    int rank, size, spins;
    size_t *sent, *received; /* of the present call, (size) each */
    /* Rank 0's. */
    pid_t *children; /* (size); 0: none, or its end is known */
    int forked;      /* children that were made: ranks 1 .. forked */
    bool watching;
    pthread_t watcher;
    int stop; /* an eventfd that ends the watcher */
    char host[ABAR_COMM_HOST];
} abar__local;

/* Tells all ranks of a failure; the first text stays. */
void abar__local_fail(abar__local *l, const char *text);
void abar__local_free(abar_context *ctx, abar__local *l);
/* Rank 0: a thread that waits for the end of the others and reports it. */
abar_status abar__local_watch(abar_context *ctx, abar__local *l);
/* Ends the thread, waits for the other ranks to end, and kills those that do not within `grace` seconds. */
void abar__local_unwatch(abar__local *l, double grace);

#endif
