/* One sample of a streamed image set: the file is read, its view decoded, the policy's operations applied. */
#ifndef ABAR_IMAGES_STREAM_H
#define ABAR_IMAGES_STREAM_H

#include "data/images/draws.h"
#include "data/images/index.h"

/* Which pixels of an image, and as how many. */
typedef struct abar__stream_view {
    int32_t side;                /* of the result, (3, side, side) */
    abar_augment_config augment; /* on: a random crop and the policy; else the centre ... */
    int32_t resize;              /* ... of the image with this short side */
    abar__image_filter filter;
} abar__stream_view;

typedef enum abar__stream_result {
    ABAR_STREAM_READ,
    ABAR_STREAM_DAMAGED, /* the image's fault, which another one may stand in for; the others end the run */
    ABAR_STREAM_CHANGED, /* since it was indexed */
    ABAR_STREAM_FAILED,  /* the disk's fault */
    ABAR_STREAM_MEMORY,
} abar__stream_result;

typedef struct abar__stream_fault {
    abar__image_fault image; /* damaged */
    int error;               /* failed: errno */
} abar__stream_fault;

/* The buffers of one thread. They grow to the largest image seen; nothing else allocates. */
typedef struct abar__stream abar__stream;

/* side: of the largest result. file_bytes: of the largest file, if it is known; else 0. */
abar_status abar__stream_create(abar_context *ctx, int32_t side, int64_t file_bytes, abar__stream **out);
void abar__stream_destroy(abar__stream *stream);
size_t abar__stream_bytes(const abar__stream *stream);

/* Sample i of a part of the index as (3, side, side) bytes. key has no meaning without augmentation. */
abar__stream_result abar__stream_read(abar__stream *stream, const abar__images_index *index, int part, int64_t i,
                                      const abar__stream_view *view, const abar__draw_key *key, uint8_t *out,
                                      abar__stream_fault *fault);

#endif
