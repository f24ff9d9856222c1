/* What the writers of this folder share: files that are replaced whole, files that only grow, and errno put into words. */
#ifndef ABAR_FILES_IMPL_H
#define ABAR_FILES_IMPL_H

#include "base/base_impl.h"

/* Fails with what the system said about path and what can be done about it. */
abar_status abar__fail_errno(abar_context *ctx, const char *path, int error);

/* Writes all n bytes; false with errno set. */
bool abar__write_all(int fd, const void *bytes, size_t n);

/* A file being replaced: begin, write, ..., commit. What is written gathers in a temporary file beside path (which must live
 * until the end). The first failure removes it and leaves path as it was; nothing is then left to clean up. */
typedef struct abar__replacement {
    abar_context *ctx;
    const char *path;
    abar__text temporary;
    int fd;
} abar__replacement;

abar_status abar__replacement_begin(abar_context *ctx, const char *path, abar__replacement *out);
abar_status abar__replacement_write(abar__replacement *r, const void *bytes, size_t n);
/* The first n bytes again, where n were written before. */
abar_status abar__replacement_rewrite(abar__replacement *r, const void *bytes, size_t n);
abar_status abar__replacement_commit(abar__replacement *r);
void abar__replacement_abandon(abar__replacement *r); /* instead of commit: the file stays as it was */

/* A file that only grows. keep as in io.h. A write that fails takes back what it left half written. */
typedef struct abar__growing {
    abar_context *ctx;
    abar__text path;
    int fd;
    uint64_t bytes;
} abar__growing;

abar_status abar__growing_open(abar_context *ctx, const char *path, uint64_t keep, abar__growing *out);
abar_status abar__growing_write(abar__growing *file, const void *bytes, size_t n);
abar_status abar__growing_sync(abar__growing *file); /* down to the disk */
abar_status abar__growing_close(abar__growing *file);

#endif
