/* A tar archive, read from header to header: ustar, pax (path, size) and GNU long names, checksums verified. Sparse and
 * compressed archives, those that are cut short, and whatever follows the end are errors, which name the archive. */
#ifndef ABAR_IMAGES_TAR_H
#define ABAR_IMAGES_TAR_H

#include "base/base_impl.h"

#define ABAR_TAR_WINDOW 4096 /* bytes: a small member and the headers around it take one read */

typedef struct abar__tar {
    abar_context *ctx;
    const char *label;    /* the archive, in errors */
    int fd;               /* -1: the archive is in bytes */
    const uint8_t *bytes; /* from offset 0 */
    uint64_t start, at, end;
    abar__text name;   /* of the current member */
    uint64_t pax_size; /* of the next member, where a pax header says it */
    bool has_name, has_size;
    uint64_t window_at;
    size_t window_bytes;
    uint8_t window[ABAR_TAR_WINDOW];
} abar__tar;

typedef struct abar__tar_member {
    const char *name;      /* valid until the next one */
    uint64_t offset, size; /* in the file */
    bool regular;          /* a file, not a directory or link */
} abar__tar_member;

/* The archive that fills [start, end) of a file or of memory. Close it in any case. */
void abar__tar_open(abar__tar *tar, abar_context *ctx, const char *label, int fd, uint64_t start, uint64_t end);
void abar__tar_open_memory(abar__tar *tar, abar_context *ctx, const char *label, const uint8_t *bytes, size_t n);
/* *more false: that was the last one. */
abar_status abar__tar_next(abar__tar *tar, abar__tar_member *out, bool *more);
/* The first n bytes of a member, which has as many. */
abar_status abar__tar_read(abar__tar *tar, const abar__tar_member *member, void *out, size_t n);
void abar__tar_close(abar__tar *tar);

#endif
