/* The inside of a data set: two parts of images, image files or tokens, the table row it came from, and the readers that fill
 * it. */
#ifndef ABAR_DATA_IMPL_H
#define ABAR_DATA_IMPL_H

#include "abar/data.h"
#include "base/base_impl.h"

#define ABAR_DATA_FILES_MAX 8
#define ABAR_PATH_MAX 1024 /* a folder (info.where) and a file name */

typedef struct abar__part {
    uint8_t *images;  /* (count, C, H, W); float where info.floats */
    int32_t *labels;  /* (count) */
    uint16_t *tokens; /* (count), instead of images and labels */
    int64_t count;
    /* streamed, instead of images and labels: */
    int side;            /* the part of the index that the samples are of */
    int32_t *files;      /* (count): their numbers in it; NULL: 0, 1, ... */
    int64_t files_owned; /* length of the list, if it is this part's own; else 0 */
} abar__part;

/* What the tokens of a text stand for: bytes, or characters in the order of their code points. */
#define ABAR_VOCABULARY_MAX 65536

typedef struct abar__vocabulary {
    bool bytes;
    int64_t count;
    uint32_t *codes; /* (count), ascending; NULL: bytes */
    char *text;      /* the same as UTF-8, zero-terminated */
    size_t text_bytes;
} abar__vocabulary;

/* One data set the library knows: a row of the table in dataset.c. A new format is a reader in its own file, a new set
 * of a known format is a row. */
typedef struct abar__data_kind {
    const char *name, *summary;
    const char *folder;                     /* default folder; NULL: the spec must name one */
    const char *subfolder;                  /* folder that the published archive unpacks into; NULL: none */
    const char *files[ABAR_DATA_FILES_MAX]; /* all are needed; none: the set is not read from files */
    bool gzip;                              /* FILE.gz is accepted for FILE */
    bool text;                              /* the spec names a file, not a folder */
    bool streamed;                          /* a folder of image files */
    const char *remedy;                     /* how to get it, for errors and `abar data` */
    abar_status (*read)(abar_dataset *data, const abar_dataset_config *config);
    /* reads the shape alone into info; NULL: the shape is always the one below */
    abar_status (*look)(abar_dataset *data, const abar_dataset_config *config);
    int64_t shape[3];       /* channels, height, width */
    int64_t count[2];       /* training and test samples, as published */
    int64_t label_range[2]; /* number of values of each label byte; the last byte is the class */
    double mean[3], std[3];
} abar__data_kind;

struct abar_dataset {
    abar_context *ctx;
    const abar__data_kind *kind;
    abar_dataset_info info;      /* a reader sets the shape before it allocates a part; open sets the counts */
    abar__part part[2];          /* training, test; of a text, or with info.validation, in one block that the first owns */
    abar__vocabulary vocabulary; /* text */
    int64_t tokens;              /* text: of the whole file */
    bool borrowed;               /* the parts are the caller's, or another data set's */
    struct abar__images_index *images; /* streamed */
};

abar_status abar__idx_read(abar_dataset *data, const abar_dataset_config *config);
abar_status abar__idx_look(abar_dataset *data, const abar_dataset_config *config);
abar_status abar__cifar_read(abar_dataset *data, const abar_dataset_config *config);
abar_status abar__synthetic_make(abar_dataset *data, const abar_dataset_config *config);
abar_status abar__text_read(abar_dataset *data, const abar_dataset_config *config);
abar_status abar__streamed_read(abar_dataset *data, const abar_dataset_config *config);
abar_status abar__streamed_look(abar_dataset *data, const abar_dataset_config *config);

/* ---- dataset.c ------------------------------------------------------------------------------------------------ */

const abar__data_kind *abar__data_find(const char *name, size_t length); /* NULL: no such data set */
/* Images and labels for count samples of info's shape; abar_dataset_close frees them, half-made ones too. */
abar_status abar__part_alloc(abar_dataset *data, abar__part *part, int64_t count);
/* The path of a file of the set, or of its .gz if only that exists. */
void abar__data_path(const abar_dataset *data, const char *file, char path[ABAR_PATH_MAX]);
static inline int64_t abar__limited(int64_t count, int64_t limit) { return limit > 0 && limit < count ? limit : count; }
static inline int64_t abar__image_bytes(const abar_dataset_info *info)
{
    return info->channels * info->height * info->width * (info->floats ? (int64_t)sizeof(float) : 1);
}

/* The same samples, or the first of them (limits as in abar_dataset_config), without a copy: from must outlive it. */
abar_status abar__dataset_view(abar_context *ctx, const abar_dataset *from, int64_t limit_train, int64_t limit_test,
                               abar_dataset **out);

/* ---- streamed.c ----------------------------------------------------------------------------------------------- */

int64_t abar__streamed_file(const abar__part *part, int64_t i); /* the number in the index of sample i */
int32_t abar__streamed_label(const abar_dataset *data, const abar__part *part, int64_t i);
size_t abar__streamed_bytes(const abar_dataset *data);
void abar__streamed_free(abar_dataset *data);
/* Of the names of the classes, and of sizes and labels of the files. */
uint32_t abar__streamed_crc(const abar_dataset *data, const abar__part *part);
/* The samples of a part from place kept on become the test part. */
abar_status abar__streamed_hold_out(abar_dataset *data, int64_t kept, uint64_t seed);
/* Keeps the first of every class, then the second of every class, ... until there are limit. They stay in order. */
abar_status abar__streamed_limit(abar_dataset *data, int which, int64_t limit);

/* ---- validation.c --------------------------------------------------------------------------------------------- */

/* Step p of the shuffle from the back that draws the validation part: the place that is exchanged with p. */
int64_t abar__hold_out_place(uint64_t seed, int64_t p);
/* How many of the training samples a fraction is. */
int64_t abar__validation_count(int64_t train, double fraction);
/* Replaces the test part by a validation part, as abar_dataset_config says. Images that are borrowed are copied. */
abar_status abar__dataset_hold_out(abar_dataset *data, double fraction, uint64_t seed);

/* CRC-32 of a part as it was kept: images and labels, or tokens. Reads them all; but of image files only what the index says.
 */
uint32_t abar__data_crc(const abar_dataset *data, bool test);

/* ---- the parsers, on memory: label names the bytes in errors --------------------------------------------------- */

/* An idx file of unsigned bytes: images (ndim 3) or labels (ndim 1). */
typedef struct abar__idx {
    int64_t dim[3]; /* as the header says: count, height, width; the last two 1 for labels */
    int64_t kept;   /* samples in data: the first of count */
    uint8_t *data;  /* (kept, height, width); owned */
} abar__idx;

/* bytes may be gzipped. limit 0: keep all. All of the file is checked. On failure out holds nothing. */
abar_status abar__idx_parse(abar_context *ctx, const char *label, const uint8_t *bytes, size_t n, int ndim, int64_t limit,
                            abar__idx *out);
void abar__idx_free(abar_context *ctx, abar__idx *idx);

/* The number of records in n bytes of a CIFAR file; fails unless it is a positive whole number. */
abar_status abar__cifar_count(abar_context *ctx, const char *label, size_t n, const abar__data_kind *kind, int64_t *out);
/* Checks count records and copies the first keep of them. */
abar_status abar__cifar_parse(abar_context *ctx, const char *label, const uint8_t *bytes, int64_t count,
                              const abar__data_kind *kind, int64_t keep, uint8_t *images, int32_t *labels);

/* ---- vocabulary.c --------------------------------------------------------------------------------------------- */

/* The vocabulary of n bytes of UTF-8, and in *characters their length. label names the bytes in errors. */
abar_status abar__vocabulary_find(abar_context *ctx, const char *label, const char *bytes, size_t n, abar__vocabulary *out,
                                  int64_t *characters);
/* The vocabulary with this text; NULL: bytes. */
abar_status abar__vocabulary_parse(abar_context *ctx, const char *label, const char *text, abar__vocabulary *out);
void abar__vocabulary_free(abar_context *ctx, abar__vocabulary *v);
/* The first token of n > 0 bytes, and in *used its bytes; -1: not in the vocabulary. */
int32_t abar__vocabulary_encode(const abar__vocabulary *v, const char *bytes, size_t n, size_t *used);
/* Writes the bytes of a token; returns how many, 1 to 4. */
size_t abar__vocabulary_decode(const abar__vocabulary *v, int32_t token, char out[4]);
/* Encodes n bytes; *count is the number of tokens. tokens has space for one per byte, or for as many as were counted. */
abar_status abar__text_encode(abar_context *ctx, const char *label, const abar__vocabulary *v, const char *bytes, size_t n,
                              uint16_t *tokens, int64_t *count);

/* ---- augment.c ------------------------------------------------------------------------------------------------ */

/* The offset of one sample's crop (pixels to the right and down), and whether it is mirrored. */
typedef struct abar__augmentation {
    int32_t dx, dy; /* -pad .. pad */
    bool flip;
} abar__augmentation;

/* sample is the index in the data set: the result does not depend on order, batch or threads. */
abar__augmentation abar__augment_draw(uint64_t seed, int64_t epoch, int64_t sample, int64_t pad, bool flip);
/* out, in: (C, H, W) elements of so many bytes, which do not overlap; zeros where the crop is outside the image. */
void abar__augment_apply(abar__augmentation a, int64_t channels, int64_t height, int64_t width, size_t element,
                         const uint8_t *in, uint8_t *out);

/* ---- finish.c ------------------------------------------------------------------------------------------------- */

/* A part of a batch of images, from row first on. Partners must be in the same part: mixed groups are not cut. */
abar_batch abar__batch_part(const abar_dataset_info *info, const abar_batch *batch, int64_t first);
/* out[v] = (v/255 - mean)/std */
void abar__normalise_table(const abar_dataset_info *info, int channel, double out[256]);

#endif
