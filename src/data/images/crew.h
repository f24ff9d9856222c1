/* Threads that work through the files of an image set: whoever is free takes the next one. */
#ifndef ABAR_IMAGES_CREW_H
#define ABAR_IMAGES_CREW_H

#include "base/base_impl.h"

#include <stdatomic.h>

#define ABAR_CREW_MAX 256

typedef struct abar__crew_job {
    int threads; /* 1 to ABAR_CREW_MAX */
    int64_t count;
    /* Item i, in the thread `worker`, below threads. Uses the context for abar__alloc_in_thread and abar__free alone. False:
     * no further items are begun. */
    bool (*work)(void *user, int worker, int64_t i);
    void (*progress)(void *user, int64_t done); /* ten times a second, in the caller's thread; may be NULL */
    void *user;
    const atomic_bool *stop; /* may be NULL */
} abar__crew_job;

/* Returns when every item is done, or one returned false, or stop was set: then after the items in progress. */
void abar__crew_run(const abar__crew_job *job);
/* As many threads as were asked for, 0: one per core; from 1 to ABAR_CREW_MAX. */
int abar__crew_threads(int asked);

#endif
