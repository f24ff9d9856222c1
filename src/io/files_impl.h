/* Shared by the writers of this folder: files that are replaced whole, files that only grow, and the texts for errno. */
#ifndef ABAR_FILES_IMPL_H
#define ABAR_FILES_IMPL_H

#include "base/base_impl.h"

/* Fails with the text for errno about path, and what to do. */
abar_status abar__fail_errno(abar_context *ctx, const char *path, int error);

/* Appends what is left of an open file, as abar__file_read. */
abar_status abar__read_all(abar_context *ctx, const char *path, int fd, size_t max, abar__text *out);

/* Writes all n bytes; false with errno set. */
bool abar__write_all(int fd, const void *bytes, size_t n);

/* A file being replaced: begin, write, ..., commit. The bytes go to a temporary file beside path, which must live until the
 * end. The first failure removes the temporary file and leaves path unchanged; the caller has nothing to clean up. */
typedef struct abar__replacement {
    abar_context *ctx;
    const char *path;
    abar__text temporary;
    int fd;
} abar__replacement;

abar_status abar__replacement_begin(abar_context *ctx, const char *path, abar__replacement *out);
abar_status abar__replacement_write(abar__replacement *r, const void *bytes, size_t n);
/* Overwrites the first n bytes; at least n have been written. */
abar_status abar__replacement_rewrite(abar__replacement *r, const void *bytes, size_t n);
abar_status abar__replacement_commit(abar__replacement *r);
void abar__replacement_abandon(abar__replacement *r); /* instead of commit: path is unchanged */

/* A file that only grows. keep as in io.h. A failed write is undone. */
typedef struct abar__growing {
    abar_context *ctx;
    abar__text path;
    int fd;
    uint64_t bytes;
} abar__growing;

abar_status abar__growing_open(abar_context *ctx, const char *path, uint64_t keep, abar__growing *out);
abar_status abar__growing_write(abar__growing *file, const void *bytes, size_t n);
abar_status abar__growing_sync(abar__growing *file); /* fsync */
abar_status abar__growing_close(abar__growing *file);

#endif
