/* A scan in progress: what the readers of the layouts share. They append places, names, classes and samples to the texts of an
 * index. */
#ifndef ABAR_IMAGES_SCAN_H
#define ABAR_IMAGES_SCAN_H

#include "data/images/index_impl.h"

#include <string.h>

/* An image whose label and place in the order are not final. */
typedef struct abar__found {
    const char *folder, *text; /* its place's path and its name, set when they are sorted */
    uint64_t offset;
    uint32_t place, name, size;
    int32_t label;
} abar__found;

/* The names in a directory, in the order of their bytes. */
typedef struct abar__entry {
    const char *name;
    bool folder;
} abar__entry;

typedef struct abar__listing {
    abar__text names, entries;
    int64_t count;
    uint32_t place;
} abar__listing;

typedef struct abar__scan {
    abar_context *ctx;
    abar__images_index *index;
    const char *folder;                     /* real path */
    const char *classes_file, *labels_file; /* real paths; "": none */
    abar__text *names;                      /* the index's */
    abar__text found;                       /* abar__found */
    abar__text order;                       /* uint32_t: the classes in the order of their names */
    abar__text pending;                     /* directories that are still to be read */
} abar__scan;

typedef enum abar__name_kind { ABAR_NAME_IMAGE, ABAR_NAME_REFUSED, ABAR_NAME_OTHER } abar__name_kind;
/* By the extension. REFUSED: images that abar does not read. */
abar__name_kind abar__name_kind_of(const char *name);
bool abar__name_is_tar(const char *name);
static inline const char *abar__last_component(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Fails about folder/path/name; path and name may be empty. */
abar_status abar__scan_fail(const abar__scan *s, abar_status status, const char *path, const char *name, const char *format,
                            ...) ABAR_PRINTF(5, 6);
abar_status abar__scan_fail_errno(const abar__scan *s, const char *path, const char *name, int error);
void abar__scan_path(const abar__scan *s, const char *path, const char *name, char *out, size_t n); /* as in failures */
abar_status abar__scan_refuse(const abar__scan *s, const char *path, const char *name);             /* a name of kind REFUSED */

/* Adds a string to the names. */
abar_status abar__scan_string(abar__scan *s, const char *bytes, size_t n, uint32_t *out);
/* path/name, at most ABAR_IMAGES_PATH_MAX bytes. */
abar_status abar__scan_join(const abar__scan *s, const char *path, const char *name, char out[ABAR_IMAGES_PATH_MAX]);
abar_status abar__scan_add_place(abar__scan *s, abar__place_kind kind, const char *path, uint32_t parent,
                                 const struct stat *info, uint32_t *out);
/* The same for a file, which is looked up. Not for directories. */
abar_status abar__scan_add_file(abar__scan *s, abar__place_kind kind, const char *path, uint32_t *out, struct stat *info);

/* Reads one directory. */
abar_status abar__scan_list(abar__scan *s, const char *path, uint32_t parent, abar__listing *out);
const abar__entry *abar__listing_find(const abar__listing *list, const char *name); /* NULL: not there */
static inline const abar__entry *abar__listing_at(const abar__listing *list, int64_t i)
{
    return (const abar__entry *)list->entries.data + i;
}
void abar__listing_free(abar_context *ctx, abar__listing *list);
/* Finds the images in a directory and below it. */
abar_status abar__scan_walk(abar__scan *s, const char *path, uint32_t parent);

static inline abar__found *abar__scan_found_at(const abar__scan *s, int64_t i) { return (abar__found *)s->found.data + i; }
static inline int64_t abar__scan_found_count(const abar__scan *s) { return (int64_t)(s->found.length / sizeof(abar__found)); }
abar_status abar__scan_add_found(abar__scan *s, const abar__found *found);
/* Appends what was found to a part, sorted by label, directory and name, and empties it. keep_order: as it was found. */
abar_status abar__scan_emit(abar__scan *s, int part, bool keep_order);

/* ---- labels.c ------------------------------------------------------------------------------------------------ */

static inline int64_t abar__scan_classes(const abar__scan *s)
{
    return (int64_t)(s->index->text[ABAR_SECTION_CLASSES].length / sizeof(abar__class_row));
}
const char *abar__scan_class(const abar__scan *s, int64_t label);
/* The label of a class; -1: there is no such class. */
int32_t abar__scan_label(const abar__scan *s, const char *name, size_t n);
/* The classes are these names, which are sorted, or those of the classes file in its order: then both must agree. */
abar_status abar__scan_set_classes(abar__scan *s, const char *const *names, int64_t count);
/* The classes are the numbers below count. */
abar_status abar__scan_number_classes(abar__scan *s, int64_t count);
/* The classes are those of a file of the folder or of the request. */
abar_status abar__scan_read_classes(abar__scan *s, const char *path);
/* Readable names from words.txt and LOC_synset_mapping.txt, where they are. */
abar_status abar__scan_read_words(abar__scan *s, const abar__listing *root);
/* The label file of the test part, "" if there is none: the request's, or one with a usual name. val: NULL or the listing of
 * val/. */
abar_status abar__scan_find_labels(abar__scan *s, const abar__listing *root, const abar__listing *val,
                                   char out[ABAR_IMAGES_PATH_MAX]);
/* Labels all that was found from this file. */
abar_status abar__scan_apply_labels(abar__scan *s, const char *path);

/* The same on memory, for fuzzing. label names the bytes in errors. */
abar_status abar__scan_parse_classes(abar__scan *s, const char *label, const char *bytes, size_t n);
abar_status abar__scan_parse_words(abar__scan *s, const char *bytes, size_t n);
abar_status abar__scan_parse_labels(abar__scan *s, const char *label, const char *bytes, size_t n);

/* ---- archives.c ---------------------------------------------------------------------------------------------- */

#define ABAR_IMAGENET_TRAIN "ILSVRC2012_img_train.tar"
#define ABAR_IMAGENET_VAL "ILSVRC2012_img_val.tar"

/* The official archives of ImageNet: a tar of tars, and a flat one with a label file. */
abar_status abar__scan_official(abar__scan *s, const abar__listing *root, const abar__listing *val);
/* Shards: paths[part] are their paths, zero-terminated, one after the other. */
abar_status abar__scan_shards(abar__scan *s, const abar__listing *root, const abar__text paths[2]);

#endif
