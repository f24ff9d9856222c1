/* The tar reader. All arithmetic on offsets is checked against the end of the archive: nothing in it is believed. */
#include "data/images/tar.h"
#include "data/images/index_impl.h"
#include "io/files_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK ((uint64_t)512)
#define EXTENDED_MAX ((uint64_t)1 << 20) /* bytes of a pax header or a long name */

/* Where the fields of a header are. */
enum { NAME = 0, NAME_BYTES = 100, SIZE = 124, SIZE_BYTES = 12, SUM = 148, SUM_BYTES = 8, TYPE = 156, MAGIC = 257 };
enum { PREFIX = 345, PREFIX_BYTES = 155 };

/* ---- bytes --------------------------------------------------------------------------------------------------- */

static abar_status cut_short(const abar__tar *tar)
{
    return abar__fail(tar->ctx, ABAR_E_FORMAT,
                      "%s: is cut short, it ends after %" PRIu64 " bytes, replace it with a fresh copy", tar->label,
                      tar->end - tar->start);
}

static abar_status damaged(const abar__tar *tar, const char *what)
{
    return abar__fail(tar->ctx, ABAR_E_FORMAT, "%s: %s at byte %" PRIu64 ", replace it with a fresh copy", tar->label, what,
                      tar->at - tar->start);
}

/* n bytes at an offset, which the archive must have. */
static abar_status read_at(abar__tar *tar, uint64_t at, void *out, size_t n)
{
    if (at > tar->end || n > tar->end - at) return cut_short(tar);
    if (tar->fd < 0) {
        memcpy(out, tar->bytes + at, n);
        return ABAR_OK;
    }
    const bool inside =
        at >= tar->window_at && at - tar->window_at <= tar->window_bytes && n <= tar->window_bytes - (at - tar->window_at);
    const bool direct = n > sizeof tar->window;
    if (!inside) {
        const ssize_t got =
            direct ? abar__images_pread(tar->fd, out, n, at) : abar__images_pread(tar->fd, tar->window, sizeof tar->window, at);
        tar->window_bytes = 0;
        if (got < 0) return abar__fail_errno(tar->ctx, tar->label, errno);
        if ((size_t)got < n) return cut_short(tar);
        if (direct) return ABAR_OK;
        tar->window_at = at;
        tar->window_bytes = (size_t)got;
    }
    memcpy(out, tar->window + (at - tar->window_at), n);
    return ABAR_OK;
}

static bool is_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i]) return false;
    return true;
}

/* ---- fields of a header -------------------------------------------------------------------------------------- */

/* An octal number, or GNU's binary one. False: it is neither, or not below 2^62. */
static bool number_of(const uint8_t *field, size_t n, uint64_t *out)
{
    uint64_t value = 0;
    size_t i = 0;
    if (field[0] & 0x80) {
        if (field[0] != 0x80) return false; /* negative, or above 2^88 */
        for (i = 1; i < n; i++) {
            if (value >> 54) return false;
            value = value << 8 | field[i];
        }
        *out = value;
        return value >> 62 == 0;
    }
    while (i < n && field[i] == ' ') i++;
    const size_t first = i;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++) value = value << 3 | (uint64_t)(field[i] - '0');
    const bool any = i > first;
    for (; i < n; i++)
        if (field[i] != ' ' && field[i] != '\0') return false;
    *out = value;
    return any || is_zero(field, n);
}

/* Old archivers added signed characters. */
static bool sum_is_right(const uint8_t *header)
{
    uint64_t stated;
    int64_t plain = 0, with_sign = 0;
    for (int i = 0; i < (int)BLOCK; i++) {
        const uint8_t byte = i >= SUM && i < SUM + SUM_BYTES ? ' ' : header[i];
        plain += byte;
        with_sign += (int8_t)byte;
    }
    if (!number_of(header + SUM, SUM_BYTES, &stated)) return false;
    return (int64_t)stated == plain || (int64_t)stated == with_sign;
}

static const char *compression_of(const uint8_t *b)
{
    if (b[0] == 0x1f && b[1] == 0x8b) return "gzip";
    if (memcmp(b, "BZh", 3) == 0) return "bzip2";
    if (memcmp(b,
               "\xfd"
               "7zXZ",
               5) == 0)
        return "xz";
    if (memcmp(b, "\x28\xb5\x2f\xfd", 4) == 0) return "zstd";
    return NULL;
}

/* Looks at the first block; a compressed archive may be shorter than that. */
static abar_status check_start(abar__tar *tar)
{
    uint8_t first[BLOCK] = {0};
    const uint64_t left = tar->end - tar->start;
    if (left > 0) ABAR_TRY(read_at(tar, tar->start, first, left < BLOCK ? (size_t)left : BLOCK));
    const char *compression = compression_of(first);
    if (!compression) return ABAR_OK;
    return abar__fail(tar->ctx, ABAR_E_UNSUPPORTED, "%s: is compressed (%s), unpack it first", tar->label, compression);
}

static abar_status check_header(const abar__tar *tar, const uint8_t *header)
{
    if (sum_is_right(header)) return ABAR_OK;
    if (tar->at == tar->start)
        return abar__fail(tar->ctx, ABAR_E_FORMAT, "%s: is not a tar archive, replace or rename it", tar->label);
    return damaged(tar, "the checksum of a header is wrong");
}

/* The name in a header: prefix/name in ustar. */
static abar_status take_name(abar__tar *tar, const uint8_t *header)
{
    const bool ustar = memcmp(header + MAGIC, "ustar\0", 6) == 0; /* GNU's "ustar  " uses the prefix for something else */
    tar->name.length = 0;
    if (ustar && header[PREFIX]) {
        ABAR_TRY(
            abar__text_append(tar->ctx, &tar->name, header + PREFIX, strnlen((const char *)header + PREFIX, PREFIX_BYTES)));
        ABAR_TRY(abar__text_append(tar->ctx, &tar->name, "/", 1));
    }
    return abar__text_append(tar->ctx, &tar->name, header + NAME, strnlen((const char *)header + NAME, NAME_BYTES));
}

/* ---- extended headers ---------------------------------------------------------------------------------------- */

static abar_status set_name(abar__tar *tar, const char *bytes, size_t n)
{
    if (n == 0 || n >= ABAR_IMAGES_PATH_MAX || memchr(bytes, '\0', n)) return damaged(tar, "a name is empty or too long");
    tar->name.length = 0;
    tar->has_name = true;
    return abar__text_append(tar->ctx, &tar->name, bytes, n);
}

static abar_status refuse_sparse(const abar__tar *tar)
{
    return abar__fail(tar->ctx, ABAR_E_UNSUPPORTED, "%s: has sparse files, unpack it first and make it without --sparse",
                      tar->label);
}

static bool is_key(const char *key, size_t n, const char *name) { return n == strlen(name) && memcmp(key, name, n) == 0; }

static abar_status take_record(abar__tar *tar, const char *key, size_t key_bytes, const char *value, size_t n)
{
    if ((key_bytes >= 10 && memcmp(key, "GNU.sparse", 10) == 0) || is_key(key, key_bytes, "SCHILY.realsize"))
        return refuse_sparse(tar);
    if (is_key(key, key_bytes, "path")) return set_name(tar, value, n);
    if (!is_key(key, key_bytes, "size")) return ABAR_OK;
    uint64_t size = 0;
    for (size_t i = 0; i < n; i++) {
        if (value[i] < '0' || value[i] > '9' || size > ((uint64_t)1 << 62) / 10 - 1) return damaged(tar, "a size is no number");
        size = 10 * size + (uint64_t)(value[i] - '0');
    }
    if (n == 0) return damaged(tar, "a size is no number");
    tar->pax_size = size;
    tar->has_size = true;
    return ABAR_OK;
}

/* Records "LENGTH KEY=VALUE\n"; the length counts all of it. */
static abar_status take_records(abar__tar *tar, const char *bytes, size_t n)
{
    while (n > 0) {
        size_t length = 0, i = 0;
        for (; i < n && bytes[i] >= '0' && bytes[i] <= '9' && length <= n; i++) length = 10 * length + (size_t)(bytes[i] - '0');
        if (i == 0 || i >= n || bytes[i] != ' ' || length < i + 3 || length > n || bytes[length - 1] != '\n')
            return damaged(tar, "a pax header is damaged");
        const char *key = bytes + i + 1, *equals = memchr(key, '=', length - i - 2);
        if (!equals) return damaged(tar, "a pax header is damaged");
        const char *end = bytes + length - 1;
        ABAR_TRY(take_record(tar, key, (size_t)(equals - key), equals + 1, (size_t)(end - equals - 1)));
        bytes += length;
        n -= length;
    }
    return ABAR_OK;
}

/* The data of a header that describes the next member: x pax, L a long name. */
static abar_status take_extended(abar__tar *tar, char type, uint64_t offset, uint64_t size)
{
    void *memory;
    if (size > EXTENDED_MAX) return damaged(tar, "an extended header is too long");
    ABAR_TRY(abar__alloc(tar->ctx, (size_t)size + 1, &memory));
    abar_status status = read_at(tar, offset, memory, (size_t)size);
    if (status >= 0)
        status = type == 'x' ? take_records(tar, memory, (size_t)size)
                             : set_name(tar, memory, strnlen(memory, (size_t)size)); /* zero-terminated, or not */
    abar__free(tar->ctx, memory, (size_t)size + 1);
    return status;
}

/* ---- members ------------------------------------------------------------------------------------------------- */

void abar__tar_open(abar__tar *tar, abar_context *ctx, const char *label, int fd, uint64_t start, uint64_t end)
{
    *tar = (abar__tar){.ctx = ctx, .label = label, .fd = fd, .start = start, .at = start, .end = end};
}

void abar__tar_open_memory(abar__tar *tar, abar_context *ctx, const char *label, const uint8_t *bytes, size_t n)
{
    *tar = (abar__tar){.ctx = ctx, .label = label, .fd = -1, .bytes = bytes, .end = n};
}

void abar__tar_close(abar__tar *tar) { abar__text_free(tar->ctx, &tar->name); }

/* After the block of zeros that ends an archive only zeros may follow: an archive joined to it by cat would be overlooked. */
static abar_status check_end(abar__tar *tar)
{
    uint8_t part[ABAR_TAR_WINDOW];
    while (tar->at < tar->end) {
        const uint64_t left = tar->end - tar->at;
        const size_t n = left < sizeof part ? (size_t)left : sizeof part;
        ABAR_TRY(read_at(tar, tar->at, part, n));
        if (!is_zero(part, n))
            return abar__fail(tar->ctx, ABAR_E_FORMAT,
                              "%s: goes on after its end at byte %" PRIu64 ", join archives with tar -A, not with cat",
                              tar->label, tar->at - tar->start);
        tar->at += n;
    }
    return ABAR_OK;
}

/* Which types have data, as their size says. */
static bool has_data(char type) { return !strchr("123456", type) || type == '\0'; }

static abar_status take_header(abar__tar *tar, const uint8_t *header, abar__tar_member *out, bool *done)
{
    const char type = (char)header[TYPE];
    ABAR_TRY(check_header(tar, header));
    uint64_t size;
    if (!number_of(header + SIZE, SIZE_BYTES, &size)) return damaged(tar, "a size is no number");
    const bool extended = type == 'x' || type == 'L' || type == 'g' || type == 'K';
    if (!extended && tar->has_size) size = tar->pax_size;
    if (!has_data(type)) size = 0;
    const uint64_t offset = tar->at + BLOCK;
    if (size > tar->end - offset) return cut_short(tar);
    if (type == 'S') return refuse_sparse(tar);
    if (type == 'M') return damaged(tar, "a file is continued from another volume");
    if (type == 'x' || type == 'L') ABAR_TRY(take_extended(tar, type, offset, size));
    if (!extended) {
        if (!tar->has_name) ABAR_TRY(take_name(tar, header));
        const bool folder = tar->name.length > 0 && tar->name.data[tar->name.length - 1] == '/';
        *out = (abar__tar_member){tar->name.data, offset, size, (type == '0' || type == '\0' || type == '7') && !folder};
        tar->has_name = tar->has_size = false;
        *done = true;
    }
    const uint64_t padding = (BLOCK - size % BLOCK) % BLOCK, left = tar->end - offset - size;
    tar->at = offset + size + (padding < left ? padding : left);
    return ABAR_OK;
}

abar_status abar__tar_next(abar__tar *tar, abar__tar_member *out, bool *more)
{
    uint8_t header[BLOCK];
    bool done = false;
    *more = false;
    if (tar->at == tar->start) ABAR_TRY(check_start(tar));
    while (!done) {
        ABAR_TRY(read_at(tar, tar->at, header, sizeof header));
        if (is_zero(header, sizeof header)) {
            if (tar->has_name || tar->has_size) return damaged(tar, "a file is missing after its extended header");
            return check_end(tar);
        }
        ABAR_TRY(take_header(tar, header, out, &done));
    }
    *more = true;
    return ABAR_OK;
}

abar_status abar__tar_read(abar__tar *tar, const abar__tar_member *member, void *out, size_t n)
{
    return read_at(tar, member->offset, out, n);
}
