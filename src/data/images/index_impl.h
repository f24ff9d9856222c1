/* The inside of an index. All that a scan found is in sections, arrays that refer to each other by number: the cache file is
 * these sections, one after the other. */
#ifndef ABAR_IMAGES_INDEX_IMPL_H
#define ABAR_IMAGES_INDEX_IMPL_H

#include "data/images/index.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/types.h>

#define ABAR_IMAGES_PATH_MAX 4096

typedef enum abar__place_kind { ABAR_PLACE_FOLDER, ABAR_PLACE_ARCHIVE, ABAR_PLACE_INNER, ABAR_PLACE_FILE } abar__place_kind;

/* A directory, an archive, an archive inside it, or a file that labels or names classes. Strings are offsets in the section of
 * names. */
typedef struct abar__place {
    uint64_t device, inode;
    int64_t modified; /* ns since 1970 */
    int64_t size;
    uint32_t path;    /* relative to the folder; of a file that the request names: absolute */
    uint32_t kind;    /* abar__place_kind */
    uint32_t parent;  /* FOLDER: the one it was found in; INNER: its archive; else, and of the first: ABAR_PLACE_NONE */
    uint32_t trusted; /* unchanged for two seconds when it was scanned */
} abar__place;

#define ABAR_PLACE_NONE UINT32_MAX

typedef struct abar__sample {
    uint32_t place, name, size;
    int32_t label;
} abar__sample;

/* What a check found. */
typedef struct abar__fact {
    uint16_t width, height;
    uint32_t crc;
    uint8_t bits, format, components, unused; /* ABAR_FACT_* */
} abar__fact;

enum { ABAR_FACT_CHECKED = 1, ABAR_FACT_DAMAGED = 2, ABAR_FACT_PROGRESSIVE = 4, ABAR_FACT_WARNED = 8 };

typedef struct abar__class_row {
    uint32_t name, readable; /* readable 0: none */
} abar__class_row;

/* In the order of the file. Offsets are those of samples in their archives; empty for sets of plain files. */
enum {
    ABAR_SECTION_PLACES,
    ABAR_SECTION_OFFSETS,                            /* of both parts: uint64_t */
    ABAR_SECTION_SAMPLES = ABAR_SECTION_OFFSETS + 2, /* of both parts */
    ABAR_SECTION_CLASSES = ABAR_SECTION_SAMPLES + 2,
    ABAR_SECTION_FACTS,                          /* of both parts */
    ABAR_SECTION_NAMES = ABAR_SECTION_FACTS + 2, /* zero-terminated strings, the first empty */
    ABAR_SECTIONS
};

typedef struct abar__images_head {
    char magic[8];
    uint32_t version, byte_order;
    uint64_t bytes[ABAR_SECTIONS]; /* of the sections */
    uint32_t layout;
    uint32_t folder, classes_file, labels_file; /* real paths in names; 0: no such file was given */
    int64_t ignored, untested, shrunk;
    int64_t file_bytes[2];
    uint64_t fingerprint;
} abar__images_head;

struct abar__images_index {
    abar_context *ctx;
    abar__images_head head;
    void *section[ABAR_SECTIONS];   /* in the texts, or in the block */
    abar__text text[ABAR_SECTIONS]; /* of a scan */
    void *block;                    /* of a cache file */
    size_t block_bytes;
    int32_t *chosen[2]; /* (summary.count) the samples within the limit; NULL: all */
    size_t chosen_bytes[2];
    abar__images_summary summary;
    int folder;           /* descriptor */
    int *archives;        /* (places) descriptors of archives, -1: not kept open; NULL: no archives */
    pthread_mutex_t lock; /* of the facts */
    bool told;            /* that the cache cannot be written */
};

static inline const char *abar__images_string(const abar__images_index *index, uint32_t at)
{
    return (const char *)index->section[ABAR_SECTION_NAMES] + at;
}
static inline const abar__place *abar__images_place(const abar__images_index *index, uint32_t i)
{
    return (const abar__place *)index->section[ABAR_SECTION_PLACES] + i;
}
/* i counts all samples of the part, not those within the limit. */
static inline const abar__sample *abar__images_sample(const abar__images_index *index, int part, int64_t i)
{
    return (const abar__sample *)index->section[ABAR_SECTION_SAMPLES + part] + i;
}
static inline int64_t abar__images_all(const abar__images_index *index, int part)
{
    return (int64_t)(index->head.bytes[ABAR_SECTION_SAMPLES + part] / sizeof(abar__sample));
}
static inline uint64_t abar__images_offset(const abar__images_index *index, int part, int64_t i)
{
    return ((const uint64_t *)index->section[ABAR_SECTION_OFFSETS + part])[i];
}

/* ---- index.c ------------------------------------------------------------------------------------------------- */

/* Copies a path with unprintable bytes as \xNN; a long one loses its middle. */
void abar__images_escape(const char *path, char *out, size_t n);

/* ---- scan.c -------------------------------------------------------------------------------------------------- */

/* Scans the folder that index->folder is open on, into the texts, sections and head of index. */
abar_status abar__images_scan(abar__images_index *index, const char *folder, const char *classes_file, const char *labels_file);
int64_t abar__images_modified(const struct stat *info);

/* ---- cache.c ------------------------------------------------------------------------------------------------- */

/* Fills index from the cache of this folder and these files. ABAR_E_FORMAT: there is none, or it is not valid. */
abar_status abar__images_cache_read(abar__images_index *index, const char *folder, const char *classes_file,
                                    const char *labels_file);
/* The same from n bytes of a file, which become the index's; whether its places are unchanged is not looked at. On failure they
 * stay the caller's. */
abar_status abar__images_cache_parse(abar__images_index *index, void *bytes, size_t n);
/* Marks a head as one of this version and machine. */
void abar__images_stamp(abar__images_head *head);
/* Logs what goes wrong, and returns false. Facts may be added meanwhile. */
bool abar__images_cache_write(abar__images_index *index);
bool abar__images_trusted(const abar__images_index *index);

/* ---- read.c -------------------------------------------------------------------------------------------------- */

/* Reads n bytes at an offset; fewer at the end of the file; -1: errno says why. I/O errors are tried again. */
ssize_t abar__images_pread(int fd, void *out, size_t n, uint64_t at);
/* Opens the archives. */
abar_status abar__images_open_archives(abar__images_index *index);

#endif
