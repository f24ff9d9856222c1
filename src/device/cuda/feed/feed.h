/* What the kernels of the feed share: where the set and the staged batches are in device memory. */
#ifndef ABAR_CUDA_FEED_H
#define ABAR_CUDA_FEED_H

#include "device/cuda/core/core_impl.h"

extern "C" {
#include "device/feed_impl.h"
}

#define STAGED 2 /* device buffers: one is read by the current step while the next one is written */

/* Which samples a fill makes. In device memory: a captured fill goes through an epoch, or through the staged batches. */
typedef struct epoch_position {
    int64_t epoch, step, n; /* n: samples in the order */
    int32_t staged;         /* not 0: the batch that was staged last, in buffer staged - 1 */
} epoch_position;

/* The head of a staged batch. */
typedef struct staged_head {
    uint64_t seed;
    int32_t rows, timm; /* rows: it has them */
} staged_head;

/* What the kernels read, in device memory. */
typedef struct source {
    const uint8_t *images; /* (count, C, H, W), float where floats */
    const int32_t *labels; /* (count) */
    const uint16_t *text;  /* (count), instead of both */
    const int32_t *order;  /* (n) */
    /* A staged batch: a head, labels (step_batch) or (step_batch, context), rows (step_batch), then images or tokens. */
    const char *staged[STAGED];
    size_t labels_at, rows_at, samples_at;
    const float *table; /* (C, 256) */
    const float *noise; /* (ABAR_FEED_NOISE) */
    epoch_position *at;
    int64_t channels, height, width, context, step_batch;
    uint64_t seed;
    int32_t pad, flip, floats;
} source;

/* Where a fill writes. */
typedef struct fill_output {
    void *data;
    abar_dtype dtype;
    int64_t stride[4]; /* of n, c, y, x in elements */
    int32_t *target;   /* (batch), with share (batch, 2) */
    float *share;      /* (batch); NULL: one label a row */
} fill_output;

__device__ static inline void write_target(const fill_output &out, int64_t i, int32_t own, int32_t partner, float share)
{
    if (!out.share) {
        out.target[i] = own;
        return;
    }
    out.target[2 * i] = own;
    out.target[2 * i + 1] = partner;
    out.share[i] = share;
}

/* Images of three channels that were staged: erased, mixed, normalised (rows.cu). */
void abar__cuda_fill_rows(abar_device *dev, const source *s, int64_t first, int64_t batch, const fill_output *out);

#endif
