/* Reading a file whole, or from first to last through a window, gzip decompressed. Every failure names the file. */
#ifndef ABAR_SOURCE_H
#define ABAR_SOURCE_H

#include "base/base_impl.h"

#define ZLIB_CONST
#include <zlib.h>

#define ABAR_SOURCE_MAX ((size_t)1 << 32) /* bytes of a file: data sets are held in memory */

/* The whole of a file in memory of the context: free with abar__free(ctx, *bytes, *n). An empty file, or one of more than max
 * bytes, is a failure. */
abar_status abar__source_load(abar_context *ctx, const char *path, size_t max, uint8_t **bytes, size_t *n);
/* Its size alone. */
abar_status abar__source_size(abar_context *ctx, const char *path, size_t *n);

typedef struct abar__source {
    abar_context *ctx;
    const char *label;
    const uint8_t *bytes; /* input not yet handed to zlib, or not yet read */
    size_t left;
    int fd;          /* -1: no file, all is in bytes */
    size_t unread;   /* bytes of the file not yet in the window */
    uint8_t *window; /* buffer for fd, owned */
    bool gzip;
    z_stream z;
} abar__source;

/* bytes and label stay the caller's and must outlive the source. Close it in any case, failed or not. */
abar_status abar__source_open(abar__source *source, abar_context *ctx, const char *label, const uint8_t *bytes, size_t n);
/* The same from a file; label is its path. */
abar_status abar__source_open_file(abar__source *source, abar_context *ctx, const char *path);
/* Exactly n bytes; out NULL drops them. */
abar_status abar__source_read(abar__source *source, uint8_t *out, size_t n);
/* Whether the source could still yield n bytes: to be asked before a header's size is allocated. */
bool abar__source_could_hold(const abar__source *source, uint64_t n);
/* Fails unless everything was read, and (gzip) the checksum is right. */
abar_status abar__source_end(abar__source *source);
void abar__source_close(abar__source *source);

#endif
