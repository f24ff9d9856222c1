/* The files of an image set: their order, labels and places on disk (docs/images.md), found by a scan that is kept in a cache.
 * An open index does not change, but for what `abar data` learns of the files; any thread may read it.
 *
 * The cache is not valid for a directory or archive that changed less than two seconds before it was scanned: the next open
 * scans again, and abar__images_keep scans again before it writes. */
#ifndef ABAR_IMAGES_INDEX_H
#define ABAR_IMAGES_INDEX_H

#include "base/base_impl.h"
#include "image/image.h"

typedef struct abar__images_index abar__images_index;

typedef enum abar__images_layout {
    ABAR_LAYOUT_FOLDERS,  /* train/CLASS/..., val/CLASS/... */
    ABAR_LAYOUT_TINY,     /* Tiny ImageNet's own: val/images and val/val_annotations.txt */
    ABAR_LAYOUT_ARCHIVES, /* ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar */
    ABAR_LAYOUT_SHARDS,   /* tars of KEY.jpg and KEY.cls */
} abar__images_layout;

typedef struct abar__images_request {
    const char *folder;
    const char *classes, *val_labels; /* files; NULL or "": none given */
    int64_t limit[2]; /* of training and test part; 0: all. The first of every class, then the second of every class, ...; they
                         keep the order of the set */
    bool rescan;      /* do not read the cache */
} abar__images_request;

typedef struct abar__images_summary {
    abar__images_layout layout;
    int64_t classes, count[2];
    int64_t ignored;      /* names that are no images */
    int64_t untested;     /* classes without an image in the test part */
    int64_t bytes[2];     /* of the files */
    uint64_t fingerprint; /* over classes, names, sizes and labels, in order; of the limited parts */
    int64_t shrunk;       /* short side of a copy made by --shrink; 0: originals */
    bool from_cache;
} abar__images_summary;

/* A copy made by --shrink has this first line in the file README of its folder: the text, the short side as a decimal number,
 * and anything after it ("abar shrink: short side 256, made from ..."). */
#define ABAR_IMAGES_README "README"
#define ABAR_IMAGES_SHRUNK "abar shrink: short side "

/* Replaces the numbers of samples of the classes by how many of each a limit takes: the first of every class, then the second
 * of every class, ... limit: at most their sum. */
void abar__images_share_limit(int64_t *counts, int64_t classes, int64_t limit);

/* Every failure names a path. The context must outlive the index. */
abar_status abar__images_open(abar_context *ctx, const abar__images_request *request, abar__images_index **out);
void abar__images_close(abar__images_index *index);
const abar__images_summary *abar__images_summary_of(const abar__images_index *index);
size_t abar__images_index_bytes(const abar__images_index *index);

const char *abar__images_class(const abar__images_index *index, int64_t label);    /* as the files call it */
const char *abar__images_readable(const abar__images_index *index, int64_t label); /* for printing; NULL: not known */

/* Samples of a part (0: training, 1: test) in the order of the data set. */
int32_t abar__images_label(const abar__images_index *index, int part, int64_t i);
int64_t abar__images_size(const abar__images_index *index, int part, int64_t i); /* bytes of the file */
/* The path, or ARCHIVE/MEMBER, for printing: unprintable bytes escaped, a long one without its beginning. n: at least 8. */
void abar__images_name(const abar__images_index *index, int part, int64_t i, char *out, size_t n);

typedef enum abar__images_found { ABAR_IMAGES_READ, ABAR_IMAGES_CHANGED, ABAR_IMAGES_FAILED } abar__images_found;
/* Reads the whole file into buffer, which holds abar__images_size bytes. CHANGED: its size is another than was indexed, or it
 * is no file any more. FAILED: errno says why (after the retries of an I/O error, which take six seconds). Thread-safe. */
abar__images_found abar__images_read(const abar__images_index *index, int part, int64_t i, uint8_t *buffer);
/* The same for the first n bytes; 0: whether its size is still the indexed one. */
abar__images_found abar__images_read_start(const abar__images_index *index, int part, int64_t i, uint8_t *buffer, size_t n);

/* What a check found in a file, kept in the cache. */
typedef struct abar__images_known {
    bool checked;
    bool damaged;
    bool warned; /* decoded with a warning */
    abar__image_header header;
    uint32_t crc; /* CRC-32 of the file's bytes */
} abar__images_known;
void abar__images_know(abar__images_index *index, int part, int64_t i, const abar__images_known *known); /* thread-safe */
abar__images_known abar__images_known_of(const abar__images_index *index, int part, int64_t i);
/* Takes over what was known of the files that an earlier index of the folder has at the same place of the order. */
void abar__images_learn(abar__images_index *index, const abar__images_index *earlier);
/* The largest file; and, once every file has been checked, the largest width and height. 0: not known. */
void abar__images_largest(const abar__images_index *index, int64_t *bytes, int32_t *width, int32_t *height);
/* Writes the cache, during or after a check: other threads may read files and call abar__images_know meanwhile. What cannot be
 * written is a log line, not a failure: *written, which may be NULL, says so. */
abar_status abar__images_keep(abar__images_index *index, bool *written);
/* Removes the cache: a file is not what was indexed, and its folder does not show it. The next open scans again. */
void abar__images_drop_cache(const abar__images_index *index);

#endif
