/* Data sets, held in memory or read from image files when they are needed, and loaders, which make batches of them: images
 * shuffled and augmented, texts cut into windows. */
#ifndef ABAR_DATA_H
#define ABAR_DATA_H

#include "abar/base.h"
#include "abar/device.h"
#include "abar/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- data sets ------------------------------------------------------------------------------------------------ */

typedef struct abar_dataset abar_dataset;

typedef struct abar_dataset_info {
    const char *name; /* "fashion-mnist" */
    char where[512];  /* the folder (text: the file) it was read from; "" if none */
    bool text;        /* tokens instead of images: it has no shape, and classes is the vocabulary's size */
    int64_t channels, height, width, classes;
    int64_t train, test;    /* numbers of samples; text: of tokens */
    double mean[3], std[3]; /* of value/255, for normalisation, per channel; channels after the third use the third's */
    bool floats;            /* images are float32, and used without normalisation */
    bool validation;        /* the test part is a validation part: see abar_dataset_config */
    bool streamed;          /* images are files that loaders decode when they are needed; height and width are those of the
                               training view */
    int64_t shrunk;         /* streamed: the files are copies with this short side; 0: originals */
} abar_dataset_info;

typedef struct abar_dataset_config {
    size_t size;                     /* sizeof(abar_dataset_config) */
    int64_t limit_train, limit_test; /* use only the first so many samples, of image folders the first of every class, then
                                        the second of every class and so on; 0: all */
    /* synthetic only; 0: the defaults, 1 x 28 x 28, 10 classes, 8192 + 1024 samples */
    int64_t channels, height, width, classes, train, test;
    uint64_t seed;
    /* text only */
    bool bytes;             /* tokens are bytes; otherwise characters */
    const char *vocabulary; /* of characters, as abar_dataset_vocabulary returns it; NULL: the characters of the file */
    /* A validation part, in place of the test part, which is not kept: this fraction of the training samples (after
     * limit_train), below 0.5; 0: none. It is held out of the training part. Images are drawn at random; a draw depends on
     * validation_seed and the number of samples alone. Of a text it is the end. */
    double validation;
    uint64_t validation_seed;
    /* image folders only */
    const char *classes_file; /* the order of the classes, one name a line; NULL: by their names */
    const char *labels_file;  /* the labels of the test part, where its files do not say; NULL: the names that are usual */
    int64_t view;             /* side of the training view in pixels; 0: 224, tiny-imagenet 64 */
} abar_dataset_config;

/* Reads a data set into memory. spec is NAME, NAME:DIR or text:FILE, as on the command line; config may be NULL. Files are
 * checked completely, whatever the limits. The first nine tenths of a text are for training, the rest for testing. Of an image
 * folder only the names, sizes and labels of the files are read; they are kept in a cache. */
abar_status abar_dataset_open(abar_context *ctx, const char *spec, const abar_dataset_config *config, abar_dataset **out);
void abar_dataset_close(abar_dataset *data);

/* Images in the caller's memory. */
typedef struct abar_dataset_images {
    size_t size; /* sizeof(abar_dataset_images) */
    int64_t channels, height, width, classes;
    int64_t train, test;                       /* numbers of samples, each at least 1 */
    const void *train_images, *test_images;    /* (count, channels, height, width), dense: uint8_t, or float if floats is set */
    const int32_t *train_labels, *test_labels; /* (count), each 0 to classes - 1 */
    bool floats;                               /* float32, used without normalisation */
    double mean[3], std[3];                    /* of bytes, as in abar_dataset_info; std all 0: mean 0, std 1 */
} abar_dataset_images;

/* A data set over that memory, without a copy: it must not change until the data set is closed. Labels must be in range and
 * floats finite; both are checked. The data set's name is "memory". */
abar_status abar_dataset_wrap(abar_context *ctx, const abar_dataset_images *images, abar_dataset **out);

const abar_dataset_info *abar_dataset_info_of(const abar_dataset *data);
size_t abar_dataset_bytes(const abar_dataset *data); /* memory it holds */
/* Image i of the training or test part, as bytes or as floats, whichever the data set has (the other function returns NULL;
 * of streamed images both do), and its label. Past the end: NULL and -1. */
const uint8_t *abar_dataset_image(const abar_dataset *data, bool test, int64_t i);
const float *abar_dataset_image_floats(const abar_dataset *data, bool test, int64_t i);
int32_t abar_dataset_label(const abar_dataset *data, bool test, int64_t i);
/* Image folders: a class as the files call it, and in words (NULL: not known); the path of a sample, or ARCHIVE/MEMBER, with
 * unprintable bytes escaped. Other data sets and past the end: NULL and "". */
const char *abar_dataset_class(const abar_dataset *data, int64_t label);
const char *abar_dataset_class_readable(const abar_dataset *data, int64_t label);
void abar_dataset_sample_name(const abar_dataset *data, bool test, int64_t i, char *out, size_t n);
/* Text: the tokens of a part, and the vocabulary: as UTF-8 the characters of tokens 0, 1, ... (ascending code points). Images:
 * NULL. Bytes have no vocabulary: NULL. */
const uint16_t *abar_dataset_tokens(const abar_dataset *data, bool test);
const char *abar_dataset_vocabulary(const abar_dataset *data);

const char *const *abar_dataset_names(void); /* NULL-terminated */

/* Where abar_dataset_open would look for a data set, and whether its files are there. The numbers of an image folder are those
 * of its files, which are listed unless the cache has them. */
typedef struct abar_dataset_probe {
    size_t size; /* sizeof(abar_dataset_probe) */
    const char *summary;
    char where[512]; /* "": nowhere; it needs no files, or a folder or file that was not given */
    bool found;
    char remedy[256];       /* what to do if it was not found */
    abar_dataset_info info; /* as published (synthetic: the defaults); the shape from the files, if found. Text: only the
                               numbers of samples, in bytes */
} abar_dataset_probe;
abar_status abar_dataset_probe_name(abar_context *ctx, const char *spec, abar_dataset_probe *out);
/* The same for an image folder that is opened with this config: its files of classes and labels, its view. Limits and a
 * validation part do not change the numbers. */
abar_status abar_dataset_probe_with(abar_context *ctx, const char *spec, const abar_dataset_config *config,
                                    abar_dataset_probe *out);

/* ---- the loader ----------------------------------------------------------------------------------------------- */

typedef struct abar_loader abar_loader;

/* Augmentation of streamed images: docs/images.md has the definitions. All zero: none, the training view is then the test view
 * at its own size. */
typedef enum abar_style { ABAR_STYLE_TORCHVISION, ABAR_STYLE_TIMM } abar_style;
typedef enum abar_policy {
    ABAR_POLICY_NONE,
    ABAR_POLICY_TRIVIAL,
    ABAR_POLICY_RAND,
    ABAR_POLICY_RAND_TIMM,
    ABAR_POLICY_JITTER
} abar_policy;
typedef enum abar_filter { ABAR_FILTER_STYLE, ABAR_FILTER_NEAREST, ABAR_FILTER_BILINEAR, ABAR_FILTER_BICUBIC } abar_filter;

typedef struct abar_augment_config {
    bool on;
    int64_t style;              /* abar_style: what differs between the two families of references */
    double area_low, area_high; /* shares of the image's area that a crop may have; both 0: 0.08 to 1 */
    bool flip;                  /* mirrors with probability 1/2 */
    int64_t policy;             /* abar_policy */
    int64_t policy_magnitude;   /* rand: bin 0 to 30 */
    int64_t policy_filter;      /* abar_filter; STYLE: as the style has it */
    double jitter;              /* jitter: strength */
    double erase;               /* probability */
    double mixup, cutmix;       /* parameters of their Beta distributions; 0: off */
    int64_t mix_group;          /* rows that are mixed with each other; 0: 256, or the batch if smaller */
    int64_t repeat;             /* copies of a sample in an epoch; 0: 1 */
} abar_augment_config;

typedef struct abar_loader_config {
    size_t size; /* sizeof(abar_loader_config) */
    bool test;   /* the test part: in order, without augmentation, with the last partial batch */
    int64_t batch;
    uint64_t seed;
    int threads;      /* that make batches; 0: the caller's thread does */
    int prefetch;     /* batches made in advance by the threads; 0: 2 */
    int64_t crop_pad; /* images in memory: pads each side with so many zeros, then crops at random; 0: off */
    bool flip;        /* images in memory: mirrors each with probability 1/2 */
    int64_t context;  /* text: tokens per window, at least 1 */
    int64_t steps;    /* text: training batches per epoch; 0: tokens / (context x batch) */
    /* streamed images; without meaning for others */
    abar_augment_config augment;                 /* of the training part */
    int64_t test_resize, test_size, test_filter; /* test view: short side, then its centre; abar_filter; 0: the training view's
                                                      size for both, bilinear */
    bool skip_damaged;                           /* another sample takes the place of a damaged file; else it is an error */
    bool encoded;                                /* training: JPEG files are left to a device that decodes (abar_batch.files) */
    /* Training: batches have rows first_row .. first_row + rows of the whole batch alone, for ranks that share it; rows 0: all.
     * Groups of rows that are mixed are not cut. */
    int64_t first_row, rows;
} abar_loader_config;

/* A batch. Its memory is the loader's, valid until the next call of next, seek or destroy. */
typedef struct abar_batch {
    size_t size;           /* sizeof(abar_batch) */
    const uint8_t *images; /* (batch, C, H, W); NULL: text, or floats */
    const int32_t *tokens; /* text: (batch, context); NULL: images */
    const int32_t *labels; /* (batch); text: (batch, context), the next token of each */
    int64_t count;         /* samples; fewer than batch in the last test batch and in test batches with damaged files, whose
                              other rows repeat the first; 0: all files of a test batch are damaged */
    int64_t epoch, index;  /* the epoch, and the batch's index in it */
    const float *floats;   /* instead of images, if the data set has floats */
    const abar_row *rows;  /* (batch): streamed training images: what is left to do to each; NULL: nothing */
    bool timm;     /* rows: mixed as bytes before they are normalised, erased with noise; else the other way round, with 0 */
    uint64_t seed; /* rows: of the noise */
    int64_t height, width;     /* of the images: the training or the test view */
    int64_t first;             /* a part of a batch: the row of the whole batch that images, labels and rows begin with */
    const abar_encoded *files; /* (batch): rows that are not among the images yet; NULL: all are */
} abar_batch;

/* data must outlive the loader. The batches do not depend on threads or prefetch. Images: an epoch has every image at most
 * once, shuffled (augment.repeat: so often); a last partial training batch is left out. Text: training windows begin at random
 * places; test windows are consecutive, and a rest too short for a window is left out. A loader is used by one thread. Only
 * create allocates memory; but threads that read streamed images have buffers that grow to the largest image seen. */
abar_status abar_loader_create(abar_context *ctx, const abar_dataset *data, const abar_loader_config *config,
                               abar_loader **out);
void abar_loader_destroy(abar_loader *loader);          /* at any time, with batches in progress too */
int64_t abar_loader_batches(const abar_loader *loader); /* per epoch */
int64_t abar_loader_samples(const abar_loader *loader); /* per epoch */
size_t abar_loader_bytes(const abar_loader *loader);    /* memory it holds now */
/* The bytes that abar_loader_create would hold, without the buffers of threads that read streamed images. */
abar_status abar_loader_plan_bytes(abar_context *ctx, const abar_dataset_info *info, const abar_loader_config *config,
                                   size_t *out);
/* The next batch. After an epoch's last comes the first of the next epoch, without end. An image that cannot be read fails the
 * batch it is in, and every later call until a seek. */
abar_status abar_loader_next(abar_loader *loader, abar_batch *out);
/* Continues at this batch of this epoch, as if all before it had been taken. index = abar_loader_batches is the first batch of
 * the next epoch. */
abar_status abar_loader_seek(abar_loader *loader, int64_t epoch, int64_t index);

/* Streamed images that were damaged, in the batches taken so far. Training puts the next sample that can be read in their
 * place, testing leaves them out. More than 1 % of a part is an error. */
#define ABAR_DAMAGE_NAMED 10
typedef struct abar_damage {
    size_t size;                      /* sizeof(abar_damage) */
    int64_t files, places;            /* different files; rows of batches that they were meant for */
    int64_t first[ABAR_DAMAGE_NAMED]; /* the first of the files, as numbers for abar_dataset_sample_name */
} abar_damage;
abar_status abar_loader_damage(const abar_loader *loader, abar_damage *out);

/* The indices of an epoch's samples (text: where the windows begin) in the order of the batches. The rest of a partial last
 * batch repeats its first sample. out holds abar_loader_order_count of them. */
void abar_loader_order(const abar_loader *loader, int64_t epoch, int32_t *out);
int64_t abar_loader_order_count(const abar_loader *loader);

/* Writes the first rows images of a batch to a net's input: bytes as (value/255 - mean)/std, erased and mixed as batch->rows
 * says, floats as they are. input is dense, F32 or F64, in host memory, (rows, C, H, W) or (rows, C*H*W). rows is at most the
 * loader's batch. */
abar_status abar_batch_normalise(abar_context *ctx, const abar_dataset_info *info, const abar_batch *batch, int64_t rows,
                                 const abar_tensor *input);

#ifdef __cplusplus
}
#endif
#endif
