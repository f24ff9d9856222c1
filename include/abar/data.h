/* Data sets held as bytes, and a loader that yields them shuffled, augmented and in time. */
#ifndef ABAR_DATA_H
#define ABAR_DATA_H

#include "abar/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_dataset abar_dataset;

typedef struct abar_dataset_info {
    const char *name; /* "fashion-mnist" */
    char where[512];  /* the folder it was read from; "" for synthetic */
    int64_t channels, height, width, classes;
    int64_t train, test;    /* sample counts */
    double mean[3], std[3]; /* normalisation of value/255, per channel */
    bool augment;           /* its recipe crops and flips */
} abar_dataset_info;

typedef struct abar_dataset_config {
    size_t size;                     /* sizeof(abar_dataset_config) */
    int64_t limit_train, limit_test; /* 0: all; the first so many otherwise */
    /* synthetic only; 0: the defaults 1 x 28 x 28, 10 classes, 8192 + 1024 samples */
    int64_t channels, height, width, classes, train, test;
    uint64_t seed;
} abar_dataset_config;

/* spec: NAME or NAME:DIR, as on the command line. */
abar_status abar_dataset_open(abar_context *ctx, const char *spec, const abar_dataset_config *config, abar_dataset **out);
void abar_dataset_close(abar_dataset *data);
const abar_dataset_info *abar_dataset_info_of(const abar_dataset *data);
size_t abar_dataset_bytes(const abar_dataset *data); /* memory it holds */
/* Sample i of the training (or test) part: channels x height x width bytes, and its label. */
const uint8_t *abar_dataset_image(const abar_dataset *data, bool test, int64_t i);
int32_t abar_dataset_label(const abar_dataset *data, bool test, int64_t i);

const char *const *abar_dataset_names(void); /* NULL-terminated */
/* For `abar data`: where NAME would be looked for, and whether it is there. Never fails for a known name. */
typedef struct abar_dataset_probe {
    const char *summary;
    char where[512];
    bool found;
    char remedy[256]; /* what to do when it is not */
} abar_dataset_probe;
abar_status abar_dataset_probe_name(abar_context *ctx, const char *spec, abar_dataset_probe *out);

typedef struct abar_loader abar_loader;

typedef struct abar_loader_config {
    size_t size; /* sizeof(abar_loader_config) */
    bool test;   /* the test part, in order, no augmentation, last partial batch kept */
    int64_t batch;
    uint64_t seed;
    int threads;      /* workers; 0: made in the caller's thread */
    int prefetch;     /* batches made ahead; 0: 2 */
    int64_t crop_pad; /* zero-pad this much on each side, then crop at random; 0: off */
    bool flip;        /* mirror every second image at random */
} abar_loader_config;

/* A batch, valid until the next call of next or seek. */
typedef struct abar_batch {
    const uint8_t *images; /* (batch, C, H, W); rows past count repeat row 0 */
    const int32_t *labels; /* (batch) */
    int64_t count;         /* real samples: batch, less in the last one of a test pass */
    int64_t epoch, index;  /* which epoch, which batch of it */
} abar_batch;

abar_status abar_loader_create(abar_context *ctx, const abar_dataset *data, const abar_loader_config *config,
                               abar_loader **out);
void abar_loader_destroy(abar_loader *loader);
int64_t abar_loader_batches(const abar_loader *loader);                                         /* per epoch */
size_t abar_loader_bytes(const abar_loader *loader);                                            /* memory it holds */
size_t abar_loader_plan_bytes(const abar_dataset_info *info, const abar_loader_config *config); /* what create would hold */
/* Batches follow one another without end, epoch after epoch. */
abar_status abar_loader_next(abar_loader *loader, abar_batch *out);
/* Goes on at the given batch of the given epoch, as if all before had been taken. */
abar_status abar_loader_seek(abar_loader *loader, int64_t epoch, int64_t index);

#ifdef __cplusplus
}
#endif
#endif
