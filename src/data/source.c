/* Files read whole, and a forward reader over a file or memory that decompresses gzip. zlib allocates from the context too. */
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WINDOW ((size_t)1 << 16)         /* bytes of a file that are buffered */
#define CHUNK_MAX ((size_t)1 << 30)      /* zlib counts in unsigned int */
#define DEFLATE_RATIO_MAX 1032           /* deflate cannot shrink further than this */
#define INFLATE_PENDING ((uint64_t)1024) /* bytes zlib may have read but not yet written */

/* ---- files ---------------------------------------------------------------------------------------------------- */

static abar_status open_file(abar_context *ctx, const char *path, size_t max, int *out_fd, size_t *out_size)
{
    *out_fd = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe must not block */
    if (fd < 0 && errno == ENOENT)
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: no such file, put it there or name another folder", path);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        int error = errno;
        if (fd >= 0) close(fd);
        return abar__fail(ctx, ABAR_E_IO, "%s: %s, make it readable or name another folder", path, strerror(error));
    }
    const char *fault = S_ISDIR(info.st_mode)    ? "is a folder, give a file"
                        : !S_ISREG(info.st_mode) ? "is a pipe or a device, write it into a file first"
                        : info.st_size == 0      ? "is empty, replace it with a fresh copy"
                                                 : NULL;
    if (fault) {
        close(fd);
        return abar__fail(ctx, ABAR_E_FORMAT, "%s: %s", path, fault);
    }
    if ((uintmax_t)info.st_size > max) {
        close(fd);
        return abar__fail(ctx, ABAR_E_UNSUPPORTED,
                          "%s: has %jd bytes, abar reads files of up to %zu, give a part of it or check that it is the right "
                          "file",
                          path, (intmax_t)info.st_size, max);
    }
    *out_fd = fd;
    *out_size = (size_t)info.st_size;
    return ABAR_OK;
}

static abar_status read_all(abar_context *ctx, const char *path, int fd, uint8_t *bytes, size_t n)
{
    for (size_t have = 0; have < n;) {
        ssize_t got = read(fd, bytes + have, n - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return abar__fail(ctx, ABAR_E_IO, "%s: %s, check the disk and try again", path, strerror(errno));
        if (got == 0) return abar__fail(ctx, ABAR_E_IO, "%s: shrank while it was read, try again", path);
        have += (size_t)got;
    }
    return ABAR_OK;
}

abar_status abar__source_size(abar_context *ctx, const char *path, size_t *n)
{
    int fd;
    ABAR_TRY(open_file(ctx, path, ABAR_SOURCE_MAX, &fd, n));
    close(fd);
    return ABAR_OK;
}

abar_status abar__source_load(abar_context *ctx, const char *path, size_t max, uint8_t **bytes, size_t *n)
{
    int fd;
    void *memory = NULL;
    *bytes = NULL;
    ABAR_TRY(open_file(ctx, path, max, &fd, n));
    abar_status status = abar__alloc(ctx, *n, &memory);
    if (status == ABAR_OK) status = read_all(ctx, path, fd, memory, *n);
    close(fd);
    if (status == ABAR_OK)
        *bytes = memory;
    else
        abar__free(ctx, memory, *n);
    return status;
}

/* ---- zlib ----------------------------------------------------------------------------------------------------- */

/* zlib does not pass the size when it frees, so each block begins with it. */
static void *zlib_alloc(void *ctx, unsigned items, unsigned size)
{
    size_t bytes = ABAR_ALIGN + (size_t)items * size;
    void *memory;
    if (abar__alloc(ctx, bytes, &memory) != ABAR_OK) return NULL;
    memcpy(memory, &bytes, sizeof bytes);
    return (char *)memory + ABAR_ALIGN;
}

static void zlib_free(void *ctx, void *memory)
{
    void *block = (char *)memory - ABAR_ALIGN;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    abar__free(ctx, block, bytes);
}

/* Reads the next window when the current one is used up. */
static abar_status refill(abar__source *source)
{
    if (source->left > 0 || source->unread == 0) return ABAR_OK;
    size_t n = source->unread < WINDOW ? source->unread : WINDOW;
    ABAR_TRY(read_all(source->ctx, source->label, source->fd, source->window, n));
    source->bytes = source->window;
    source->left = n;
    source->unread -= n;
    return ABAR_OK;
}

/* Unpacks up to n bytes (more than 0); fewer only at the end of the stream, which zlib reports after checking the
 * checksum. */
static abar_status inflate_up_to(abar__source *source, uint8_t *out, size_t n, size_t *made)
{
    z_stream *z = &source->z;
    for (*made = 0; *made < n;) {
        if (z->avail_in == 0) {
            ABAR_TRY(refill(source));
            z->next_in = source->bytes;
            z->avail_in = (unsigned)(source->left < CHUNK_MAX ? source->left : CHUNK_MAX);
            source->bytes += z->avail_in;
            source->left -= z->avail_in;
        }
        unsigned room = (unsigned)(n - *made < CHUNK_MAX ? n - *made : CHUNK_MAX);
        z->next_out = out + *made;
        z->avail_out = room;
        int code = inflate(z, Z_NO_FLUSH);
        *made += room - z->avail_out;
        if (code == Z_STREAM_END) return ABAR_OK;
        if (code == Z_MEM_ERROR) return ABAR_E_MEMORY; /* abar__alloc has set the error */
        if (code == Z_BUF_ERROR && source->left == 0 && source->unread == 0 && z->avail_in == 0)
            return abar__fail(source->ctx, ABAR_E_FORMAT, "%s: the compressed data stops short, replace it with a fresh copy",
                              source->label);
        if (code != Z_OK && code != Z_BUF_ERROR)
            return abar__fail(source->ctx, ABAR_E_FORMAT,
                              "%s: the compressed data is damaged (%s), replace it with a fresh copy", source->label,
                              z->msg ? z->msg : "not gzip");
    }
    return ABAR_OK;
}

/* ---- the reader ----------------------------------------------------------------------------------------------- */

static abar_status begin(abar__source *source)
{
    abar_context *ctx = source->ctx;
    const char *label = source->label;
    if (source->left < 2 || source->bytes[0] != 0x1f || source->bytes[1] != 0x8b) return ABAR_OK;
    source->z.zalloc = zlib_alloc;
    source->z.zfree = zlib_free;
    source->z.opaque = ctx;
    int code = inflateInit2(&source->z, 16 + MAX_WBITS); /* 16: a gzip header and its checksum */
    if (code == Z_MEM_ERROR) return ABAR_E_MEMORY;       /* abar__alloc has set the error */
    if (code != Z_OK) return abar__fail(ctx, ABAR_E_BACKEND, "%s: zlib failed to start, unpack it with gunzip", label);
    source->gzip = true;
    return ABAR_OK;
}

abar_status abar__source_open(abar__source *source, abar_context *ctx, const char *label, const uint8_t *bytes, size_t n)
{
    *source = (abar__source){.ctx = ctx, .label = label, .bytes = bytes, .left = n, .fd = -1};
    return begin(source);
}

abar_status abar__source_open_file(abar__source *source, abar_context *ctx, const char *path)
{
    *source = (abar__source){.ctx = ctx, .label = path, .fd = -1};
    void *window;
    ABAR_TRY(open_file(ctx, path, ABAR_SOURCE_MAX, &source->fd, &source->unread));
    ABAR_TRY(abar__alloc(ctx, WINDOW, &window));
    source->window = window;
    ABAR_TRY(refill(source));
    return begin(source);
}

static abar_status too_short(const abar__source *source, size_t missing)
{
    return abar__fail(source->ctx, ABAR_E_FORMAT, "%s: ends %zu bytes early, replace it with a fresh copy", source->label,
                      missing);
}

abar_status abar__source_read(abar__source *source, uint8_t *out, size_t n)
{
    if (!source->gzip) {
        if (n > source->left + source->unread) return too_short(source, n - source->left - source->unread);
        while (n > 0) {
            ABAR_TRY(refill(source));
            size_t part = n < source->left ? n : source->left;
            if (out) memcpy(out, source->bytes, part);
            if (out) out += part;
            source->bytes += part;
            source->left -= part;
            n -= part;
        }
        return ABAR_OK;
    }
    uint8_t dropped[8192];
    while (n > 0) {
        size_t want = out || n < sizeof dropped ? n : sizeof dropped, made;
        ABAR_TRY(inflate_up_to(source, out ? out : dropped, want, &made));
        if (made < want) return too_short(source, n - made);
        if (out) out += made;
        n -= made;
    }
    return ABAR_OK;
}

bool abar__source_could_hold(const abar__source *source, uint64_t n)
{
    uint64_t left = source->left + source->unread;
    if (!source->gzip) return n <= left;
    return n <= (left + source->z.avail_in) * DEFLATE_RATIO_MAX + INFLATE_PENDING;
}

abar_status abar__source_end(abar__source *source)
{
    size_t after = source->left + source->unread, unpacked = 0;
    if (source->gzip) {
        uint8_t byte;
        ABAR_TRY(inflate_up_to(source, &byte, 1, &unpacked));
        after = source->left + source->unread + source->z.avail_in;
    }
    if (unpacked == 0 && after == 0) return ABAR_OK;
    return abar__fail(source->ctx, ABAR_E_FORMAT, "%s: goes on after what its header declares, replace it with a fresh copy",
                      source->label);
}

void abar__source_close(abar__source *source)
{
    if (source->gzip) inflateEnd(&source->z);
    if (source->fd >= 0) close(source->fd);
    abar__free(source->ctx, source->window, WINDOW);
    source->gzip = false;
    source->fd = -1;
    source->window = NULL;
}
