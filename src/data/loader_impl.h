/* The inside of a loader.
 *
 *     loader_plan.c     what a config means, what is refused, and where things are in memory
 *     loader_order.c    which samples are in which batch
 *     loader_fill.c     rows of a batch: images, windows, what stands in for damaged files
 *     loader.c          threads, the next batch, seeking */
#ifndef ABAR_LOADER_IMPL_H
#define ABAR_LOADER_IMPL_H

#include "data/data_impl.h"
#include "data/images/stream.h"

#include <pthread.h>
#include <stdatomic.h>

/* A batch that is made, or that the caller holds: of a rank that shares batches with others, its rows of it. Arrays have
 * plan.own_rows elements, but for samples and repetitions, which are chosen for the whole batch first. */
typedef struct abar__slot {
    uint8_t *images;      /* (rows, C, H, W), or ... */
    int32_t *tokens;      /* ... (rows, context), in the same place */
    int32_t *labels;      /* (rows), or (rows, context) */
    int32_t *samples;     /* (batch): indices into the part */
    int64_t wanted;       /* rows that are filled from samples; the others repeat the first */
    int64_t next, filled; /* rows that threads have begun, and finished */
    int64_t count, epoch, index;
    bool ready;
    /* streamed */
    uint8_t *repetitions;        /* (batch) */
    int32_t *damaged;            /* (batch): damaged files from the row's sample on, before the one that took its place */
    abar_row *rows;              /* (batch); NULL: nothing is left to do */
    abar_encoded *files;         /* (batch); NULL: nothing is left to decode */
    abar__encoded_block *blocks; /* (batch): memory of files */
    bool counted;                /* damaged files are in the loader's count */
    int64_t failed_row;          /* the first row that could not be filled; -1: none */
    int64_t failed_sample;
    abar__stream_result failure;
    abar__stream_fault fault;
} abar__slot;

/* One thread, or the caller where there are none. */
typedef struct abar__loader_worker {
    abar_loader *loader;
    pthread_t thread;
    abar__stream *stream; /* streamed; else NULL */
    size_t bytes;         /* of stream, as last seen under the lock */
} abar__loader_worker;

/* A config with its defaults filled in. */
typedef struct abar__loader_plan {
    abar_loader_config config;
    abar__stream_view view; /* streamed */
    int64_t height, width;  /* of the images; text: 0 */
    int64_t repeat;         /* copies of a sample in an epoch */
    bool finishes;          /* rows are erased or mixed on the device */
    bool mixes;
    int64_t group;                                 /* rows that are mixed with each other */
    int64_t own_first, own_rows;                   /* of the whole batch that are this loader's */
    int64_t claim;                                 /* rows that a thread takes at once */
    int64_t batches, samples;                      /* per epoch */
    int slot_count, workers;                       /* slots: prefetch, and the one the caller holds; workers: at least 1 */
    size_t order, slots, worker, marks, slot_data; /* offsets in the loader's memory */
    size_t labels, images, repetitions, damaged, rows, files, blocks, slot_bytes; /* offsets in a slot's, and its size */
    size_t total;
} abar__loader_plan;

struct abar_loader {
    abar_context *ctx;
    const abar_dataset *data;
    const abar_dataset_info *info;
    const abar__part *part;
    abar__loader_plan plan;
    abar__slot *slots;
    abar__loader_worker *workers; /* (plan.workers) */
    int started;                  /* threads */
    atomic_bool abandon;          /* what is being filled is of no use any more */
    abar_damage damage;           /* the caller's thread alone; also marks */
    uint8_t *marks;               /* (samples / 8): bits of damaged samples */

    pthread_mutex_t lock; /* over everything below; next, filled, ready and failure of the slots; bytes of the workers */
    pthread_cond_t room;  /* signalled to threads: rows may be begun */
    pthread_cond_t done;  /* signalled to the caller: a batch was filled, or a thread stopped */
    int32_t *order;       /* (samples): final up to shuffled */
    int64_t shuffled;
    int64_t epoch, index;   /* the batch to be begun next */
    int64_t claimed, taken; /* counts since create or seek; batch number n is in slot n mod slot_count */
    int filling;
    bool paused, quit;
};

/* ---- loader_plan.c -------------------------------------------------------------------------------------------- */

/* Reads and checks a config. */
abar_status abar__loader_plan_make(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *config,
                                   abar__loader_plan *out);

/* ---- loader_order.c ------------------------------------------------------------------------------------------- */

void abar__loader_begin_epoch(abar_loader *l);
/* Makes places 0 .. end of the epoch final. */
void abar__loader_shuffle_to(abar_loader *l, int64_t end);
/* Assigns the next batch its epoch, index and samples. */
abar__slot *abar__loader_begin_batch(abar_loader *l);

/* ---- loader_fill.c -------------------------------------------------------------------------------------------- */

/* Fills rows from .. to. False: abandoned. */
bool abar__loader_fill(abar_loader *l, abar__slot *s, abar__stream *stream, int64_t from, int64_t to);
/* When all rows are filled: those that repeat the first, and mixing. */
void abar__loader_complete(const abar_loader *l, abar__slot *s);
/* A batch that the caller is about to take: why it cannot have it, and which of its files are damaged. */
abar_status abar__loader_inspect(abar_loader *l, abar__slot *s);

#endif
