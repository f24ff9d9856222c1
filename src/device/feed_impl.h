/* A feed: batches made in device memory. Internal to libabar: libabar_optim takes its gradients from the caller. */
#ifndef ABAR_FEED_IMPL_H
#define ABAR_FEED_IMPL_H

#include "device/device_impl.h"

/* Images, or a text, in device memory, made into batches there: order, crop, flip, normalise, cut windows exactly as on the
 * host. */
typedef struct abar__feed abar__feed;

typedef struct abar__feed_desc {
    const uint8_t *images; /* (count, C, H, W), host; NULL: batches are streamed */
    bool floats;           /* they are float32 and taken as they are */
    const int32_t *labels; /* (count) */
    int64_t count, channels, height, width;
    int64_t context;        /* tokens of a window; 0: images, and the next two have no meaning */
    const uint16_t *tokens; /* (count), host: a text in place of images and labels; NULL: batches are streamed */
    int64_t windows;        /* that an order may have */
    int64_t batch;          /* samples of one fill: the micro-batch */
    int64_t step_batch;     /* samples of one step; staged: of this rank */
    const float *table;     /* (channels, 256): normalised value of each byte; text and floats: NULL */
    bool rows;              /* staged batches may have rows; three channels */
    const float *noise;     /* (ABAR_FEED_NOISE): of erased boxes, where rows are mixed as timm does; else NULL */
    bool encoded;           /* staged batches have files that the device decodes; with rows, square images */
    uint64_t seed;
    int64_t crop_pad; /* 0: off */
    bool flip;
} abar__feed_desc;

#define ABAR_FEED_NOISE 4096

/* One step's batch, in host memory. */
typedef struct abar__feed_batch {
    const void *samples;       /* bytes, floats, or of a text I32, as the loader yields them */
    const int32_t *labels;     /* (step_batch), of a text (step_batch, context) */
    const abar_row *rows;      /* (step_batch): what is left to do to images (device/finish_row.h); NULL: nothing */
    int64_t first_row;         /* rows: whose partners are numbered from here on */
    bool timm;                 /* rows */
    uint64_t seed;             /* rows: of the noise */
    const abar_encoded *files; /* (step_batch): decoded on the device, in place of samples where there is a file; NULL: none */
} abar__feed_batch;

typedef struct abar__feed_ops {
    abar_status (*create)(abar_device *dev, const abar__feed_desc *desc, abar__feed **out);
    void (*destroy)(abar_device *dev, abar__feed *f);
    size_t (*bytes)(const abar__feed_desc *desc); /* device memory that create would take */
    /* The samples of an epoch from its step `first` on: order has the whole epoch's, (n) host; of a text, where its windows
     * begin. */
    abar_status (*epoch)(abar_device *dev, abar__feed *f, int64_t epoch, int64_t first, const int32_t *order, int64_t n);
    /* Samples first .. first + batch of the current step into input (NHWC or dense, the device's activation dtype; tokens: I32
     * (batch, context)) and target (I32). share: F32 (batch), then target has pairs of labels; no dimensions: it has labels.
     * Recordable. */
    abar_status (*fill)(abar_device *dev, abar__feed *f, int64_t first, const abar_tensor *input, const abar_tensor *target,
                        const abar_tensor *share);
    abar_status (*advance)(abar_device *dev, abar__feed *f); /* to the next step. Recordable. */
    /* Streaming: one step's batch for the fills that follow (of a resident set too, until its next epoch). The batch's memory
     * is free when it returns. Its copy to the device runs beside the work that was enqueued before: there are two device
     * buffers, and the host is at most three batches ahead of the copies. */
    abar_status (*stage)(abar_device *dev, abar__feed *f, const abar__feed_batch *batch);
} abar__feed_ops;

extern const abar__feed_ops *const abar__cuda_feed;

const abar__feed_ops *abar__feed_of(const abar_device *dev); /* NULL: the device reads batches from host memory */

#endif
