/* Folders of image files: checking all of them, and making a smaller copy. This is what `abar data` does. */
#ifndef ABAR_IMAGES_H
#define ABAR_IMAGES_H

#include "abar/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the files are: as in abar_dataset_config. */
typedef struct abar_image_source {
    size_t size;              /* sizeof(abar_image_source) */
    const char *folder;       /* of the data set, without its name */
    const char *classes_file; /* the order of the classes; NULL: by their names */
    const char *labels_file;  /* the labels of the test part, where its files do not say; NULL: the names that are usual */
    int threads;              /* 0: one per core */
    /* Called now and then while files are read, in the thread of run; may be NULL. */
    void (*progress)(void *user, int64_t done, int64_t all);
    void *user;
} abar_image_source;

/* ---- checking --------------------------------------------------------------------------------------------------- */

typedef struct abar_image_check abar_image_check;

typedef struct abar_image_part {
    int64_t images, bytes;
    int64_t fewest, most; /* images of a class */
} abar_image_part;

typedef struct abar_image_size {
    int32_t width, height;
} abar_image_size;

/* What is known of the files so far. Numbers after checked are of the images that were checked, damaged ones left out. */
typedef struct abar_image_report {
    const char *layout; /* "class folders" */
    int64_t classes;
    abar_image_part part[2];                   /* training, test */
    int64_t untested;                          /* classes without a test image */
    int64_t ignored;                           /* names that are not of images */
    int64_t shrunk;                            /* short side of a copy that abar_image_shrink made; 0: originals */
    int64_t checked;                           /* images, now or in an earlier check */
    int64_t now;                               /* those of this check */
    double seconds;                            /* that it took */
    int64_t jpeg, png;                         /* images of each format; of the JPEG files ... */
    int64_t progressive, gray, cmyk;           /* ... so many are so */
    int64_t warned;                            /* images that were decoded with a warning, such as bad codes */
    abar_image_size smallest, median, largest; /* by area */
    int64_t repeated;                          /* training images with the bytes of an earlier one */
    int64_t leaked;                            /* test images with the bytes of a training image */
    int64_t damaged;                           /* images that cannot be read or decoded */
} abar_image_report;

/* Finds the files. headers: pixels are not decoded, so that most damage goes unnoticed; copies are not looked for, and nothing
 * is kept. */
abar_status abar_image_check_create(abar_context *ctx, const abar_image_source *source, bool headers, abar_image_check **out);
void abar_image_check_destroy(abar_image_check *check);
/* Decodes every file that no earlier check has found good; once for each check. ABAR_STOPPED after abar_image_check_stop. What
 * was found is written to the cache every minute and at the end, and the next check continues there. */
abar_status abar_image_check_run(abar_image_check *check);
/* May be called from a signal handler or another thread. */
void abar_image_check_stop(abar_image_check *check);
const abar_image_report *abar_image_check_report(const abar_image_check *check);

/* The first images of a kind, in the order of the data set. */
#define ABAR_IMAGE_LINES_MAX 50
typedef enum abar_image_line {
    ABAR_IMAGE_DAMAGED,  /* "path: reason" */
    ABAR_IMAGE_REPEATED, /* "path = path of the earlier one" */
    ABAR_IMAGE_LEAKED    /* "path = path of the training image" */
} abar_image_line;
/* Line i, valid until the next call; NULL: there are fewer, or ABAR_IMAGE_LINES_MAX. */
const char *abar_image_check_line(abar_image_check *check, abar_image_line kind, int64_t i);

/* ---- a smaller copy --------------------------------------------------------------------------------------------- */

typedef struct abar_image_shrink abar_image_shrink;

typedef struct abar_image_shrink_report {
    int64_t images, kept;        /* written in all; of these by an earlier call that was interrupted */
    int64_t bytes, bytes_before; /* of the images that were written now, and of their originals */
    int64_t shards;
    double seconds;
    bool existed; /* the copy was there: nothing was written */
} abar_image_shrink_report;

/* A copy of all images with their short side at most `side`, as tar shards in the folder `to`, which appears when all is done.
 * Until then it is to.partial; a call with the same arguments continues what is there. Anything else in either place is
 * refused. */
abar_status abar_image_shrink_create(abar_context *ctx, const abar_image_source *source, int64_t side, const char *to,
                                     abar_image_shrink **out);
void abar_image_shrink_destroy(abar_image_shrink *shrink);
abar_status abar_image_shrink_run(abar_image_shrink *shrink); /* ABAR_STOPPED after abar_image_shrink_stop */
void abar_image_shrink_stop(abar_image_shrink *shrink);       /* as abar_image_check_stop */
const abar_image_shrink_report *abar_image_shrink_report_of(const abar_image_shrink *shrink);

#ifdef __cplusplus
}
#endif
#endif
