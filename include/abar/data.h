/* Data sets held in memory, and a loader that yields images shuffled and augmented, texts in windows, and both in time. */
#ifndef ABAR_DATA_H
#define ABAR_DATA_H

#include "abar/base.h"
#include "abar/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- data sets ------------------------------------------------------------------------------------------------ */

typedef struct abar_dataset abar_dataset;

typedef struct abar_dataset_info {
    const char *name; /* "fashion-mnist" */
    char where[512];  /* the folder (a text: the file) it was read from; "" for synthetic */
    bool text;        /* tokens instead of images: it has no shape, and classes is the size of its vocabulary */
    int64_t channels, height, width, classes;
    int64_t train, test;    /* sample counts; of a text: tokens */
    double mean[3], std[3]; /* normalisation of value/255, per channel; channels past the third use the third's */
    bool augment;           /* its recipe crops and flips */
} abar_dataset_info;

typedef struct abar_dataset_config {
    size_t size;                     /* sizeof(abar_dataset_config) */
    int64_t limit_train, limit_test; /* 0: all; the first so many otherwise, at most all */
    /* synthetic only; 0: the defaults 1 x 28 x 28, 10 classes, 8192 + 1024 samples */
    int64_t channels, height, width, classes, train, test;
    uint64_t seed;
    /* text only */
    bool bytes;             /* a token is a byte, of 256; else a character of the file's own vocabulary */
    const char *vocabulary; /* characters: take this one (as abar_dataset_vocabulary gives it) instead; NULL: the file's own */
} abar_dataset_config;

/* Reads a whole data set into memory. spec: NAME, NAME:DIR or text:FILE, as on the command line. config may be NULL. Files are
 * checked to their last byte, whatever the limits. The first nine tenths of a text are for training, the rest for testing. */
abar_status abar_dataset_open(abar_context *ctx, const char *spec, const abar_dataset_config *config, abar_dataset **out);
void abar_dataset_close(abar_dataset *data);
const abar_dataset_info *abar_dataset_info_of(const abar_dataset *data);
size_t abar_dataset_bytes(const abar_dataset *data); /* memory it holds */
/* Sample i of the training (or test) part: channels x height x width bytes, and its label. NULL and -1 past the end. */
const uint8_t *abar_dataset_image(const abar_dataset *data, bool test, int64_t i);
int32_t abar_dataset_label(const abar_dataset *data, bool test, int64_t i);
/* Text: the tokens of a part, and the characters they stand for in the order of their numbers (ascending code points), as
 * UTF-8. NULL for images; the vocabulary of bytes is NULL, too. */
const uint16_t *abar_dataset_tokens(const abar_dataset *data, bool test);
const char *abar_dataset_vocabulary(const abar_dataset *data);

const char *const *abar_dataset_names(void); /* NULL-terminated */

/* For `abar data`: where NAME (or NAME:DIR) would be looked for, and whether it is there. Never fails for a known name. */
typedef struct abar_dataset_probe {
    size_t size; /* sizeof(abar_dataset_probe) */
    const char *summary;
    char where[512]; /* "" for synthetic, and for a set that needs a folder or file when none was given */
    bool found;
    char remedy[256];       /* what to do when it is not */
    abar_dataset_info info; /* classes, counts and shape as published (synthetic: as by default), found or not, but the shape
                               as the files have it where they are found; of a text the counts alone, and those in bytes */
} abar_dataset_probe;
abar_status abar_dataset_probe_name(abar_context *ctx, const char *spec, abar_dataset_probe *out);

/* ---- the loader ----------------------------------------------------------------------------------------------- */

typedef struct abar_loader abar_loader;

typedef struct abar_loader_config {
    size_t size; /* sizeof(abar_loader_config) */
    bool test;   /* the test part, in order, no augmentation, last partial batch kept */
    int64_t batch;
    uint64_t seed;
    int threads;      /* workers; 0: made in the caller's thread */
    int prefetch;     /* batches made ahead; 0: 2. Without threads nothing is made ahead */
    int64_t crop_pad; /* zero-pad this much on each side, then crop at random; 0: off */
    bool flip;        /* mirror every second image at random */
    int64_t context;  /* text: tokens of a window, needed */
    int64_t steps;    /* text: training batches that make an epoch; 0: as many as there are disjoint windows for */
} abar_loader_config;

/* A batch, valid until the next call of next, seek or destroy. */
typedef struct abar_batch {
    size_t size;           /* sizeof(abar_batch) */
    const uint8_t *images; /* (batch, C, H, W); rows past count repeat row 0; NULL: text */
    const int32_t *tokens; /* text: (batch, context), likewise; NULL: images */
    const int32_t *labels; /* (batch); text: (batch, context), the token that follows each */
    int64_t count;         /* real samples: batch, less in the last one of a test pass */
    int64_t epoch, index;  /* which epoch, which batch of it */
} abar_batch;

/* data must outlive the loader. What the batches hold depends on data, batch, seed, crop_pad, flip, context and steps, never
 * on threads or prefetch. Images come once in an epoch, shuffled. A text has no epochs of its own: training windows begin
 * anywhere, drawn afresh for every place of every epoch; test windows follow one another, and a rest too short for one is
 * left out. A loader serves one thread; it allocates here and nowhere else. */
abar_status abar_loader_create(abar_context *ctx, const abar_dataset *data, const abar_loader_config *config,
                               abar_loader **out);
void abar_loader_destroy(abar_loader *loader);          /* at any moment */
int64_t abar_loader_batches(const abar_loader *loader); /* per epoch */
int64_t abar_loader_samples(const abar_loader *loader); /* per epoch, or of the part */
size_t abar_loader_bytes(const abar_loader *loader);    /* memory it holds */
/* What create would hold. */
abar_status abar_loader_plan_bytes(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *config,
                                   size_t *out);
/* Batches follow one another without end, epoch after epoch. */
abar_status abar_loader_next(abar_loader *loader, abar_batch *out);
/* Goes on at the given batch of the given epoch, as if all before had been taken. index abar_loader_batches: the first
 * batch of the epoch after. */
abar_status abar_loader_seek(abar_loader *loader, int64_t epoch, int64_t index);

/* The samples of an epoch (text: where their windows begin) in the order in which the batches take them; a partial last batch
 * repeats its first sample. out has room for abar_loader_order_count of them. */
void abar_loader_order(const abar_loader *loader, int64_t epoch, int32_t *out);
int64_t abar_loader_order_count(const abar_loader *loader);

/* The first rows images of a batch as a net wants them, (value/255 - mean)/std. input: dense F32 or F64 in memory the
 * host can write, (rows, C, H, W) or (rows, C*H*W); rows is at most the loader's batch. */
abar_status abar_batch_normalise(abar_context *ctx, const abar_dataset_info *info, const abar_batch *batch, int64_t rows,
                                 const abar_tensor *input);

#ifdef __cplusplus
}
#endif
#endif
