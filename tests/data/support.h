/* What the data tests share: a temporary folder with files in it, gzip, an allocator that fails on demand, and checks on
 * error texts. */
#ifndef ABAR_TESTS_DATA_SUPPORT_H
#define ABAR_TESTS_DATA_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#include "abar/data.h"

/* ---- bytes ---------------------------------------------------------------------------------------------------- */

typedef struct bytes {
    uint8_t *data;
    size_t n;
} bytes;

static inline bytes bytes_make(size_t n)
{
    bytes b = {calloc(n ? n : 1, 1), n};
    assert_non_null(b.data);
    return b;
}

static inline void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* An idx file with this header and n elements 7, 8, 9, ... modulo range. */
static inline bytes make_idx(uint32_t magic, int ndim, const uint32_t *dim, size_t n, unsigned range)
{
    bytes b = bytes_make(4 + 4 * (size_t)ndim + n);
    put_u32(b.data, magic);
    for (int i = 0; i < ndim; i++) put_u32(b.data + 4 + 4 * i, dim[i]);
    for (size_t i = 0; i < n; i++) b.data[4 + 4 * (size_t)ndim + i] = (uint8_t)((i + 7) % range);
    return b;
}

static inline bytes make_gzip(bytes in)
{
    bytes b = bytes_make(in.n + in.n / 100 + 1024);
    z_stream z = {.next_in = in.data, .avail_in = (unsigned)in.n, .next_out = b.data, .avail_out = (unsigned)b.n};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    b.n = z.total_out;
    deflateEnd(&z);
    return b;
}

/* ---- a temporary folder --------------------------------------------------------------------------------------- */

typedef struct folder {
    char path[256];
} folder;

static inline folder folder_make(void)
{
    folder f;
    const char *base = getenv("TMPDIR");
    snprintf(f.path, sizeof f.path, "%s/abar-test-XXXXXX", base && strlen(base) < 200 ? base : "/tmp");
    assert_non_null(mkdtemp(f.path));
    return f;
}

static inline void folder_write(const folder *f, const char *name, bytes b)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(b.data, 1, b.n, file), b.n);
    assert_int_equal(fclose(file), 0);
}

static inline void folder_remove(const folder *f)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", f->path);
    assert_int_equal(system(command), 0);
}

/* ---- an allocator that fails ---------------------------------------------------------------------------------- */

typedef struct failing {
    atomic_long calls;
    long fail_at; /* the allocation with this number (from 1) fails; 0: none */
} failing;

static inline void *failing_alloc(void *user, size_t n, size_t align)
{
    failing *f = user;
    return ++f->calls == f->fail_at ? NULL : aligned_alloc(align, (n + align - 1) / align * align);
}

static inline void failing_release(void *user, void *memory, size_t n)
{
    (void)user;
    (void)n;
    free(memory);
}

static inline abar_context *failing_context(failing *f)
{
    abar_context_config config = {.size = sizeof config, .allocator = {failing_alloc, failing_release, f}};
    abar_context *ctx;
    f->calls = f->fail_at = 0;
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_OK);
    f->calls = 0;
    return ctx;
}

static inline abar_context *plain_context(void)
{
    abar_context *ctx;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    return ctx;
}

/* Opening spec must succeed after some number of failed allocations, each of which is reported and leaks nothing. */
static inline void check_every_allocation_failing(const char *spec, const abar_dataset_config *config)
{
    failing f;
    abar_context *ctx = failing_context(&f);
    abar_dataset *data = NULL;
    long k = 0;
    abar_status status;
    do {
        f.calls = 0;
        f.fail_at = ++k;
        status = abar_dataset_open(ctx, spec, config, &data);
        if (status == ABAR_OK) break;
        assert_int_equal(status, ABAR_E_MEMORY);
        assert_null(data);
        assert_int_equal(abar_context_memory(ctx).now, 0);
    } while (k < 1000);
    assert_int_equal(status, ABAR_OK);
    assert_true(k > 3); /* the set itself, images, labels, ... */
    assert_int_equal(abar_context_memory(ctx).now, abar_dataset_bytes(data));
    abar_dataset_close(data);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
}

/* ---- errors --------------------------------------------------------------------------------------------------- */

static inline void check_contains(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* Opening must fail with this status, in one line that holds all three texts, and leave no memory behind. */
static inline void check_open_fails(const char *spec, abar_status expected, const char *subject, const char *reason,
                                    const char *remedy)
{
    abar_context *ctx = plain_context();
    abar_dataset *data = (abar_dataset *)ctx;
    abar_status status = abar_dataset_open(ctx, spec, NULL, &data);
    const char *text = abar_context_error(ctx);
    if (status != expected) fail_msg("%s: status %d, not %d: %s", spec, status, expected, text);
    assert_null(data);
    check_contains(text, subject);
    check_contains(text, reason);
    check_contains(text, remedy);
    assert_null(strchr(text, '\n'));
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
}

/* FNV-1a, to pin generated bytes down. */
static inline uint64_t checksum(uint64_t hash, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}
#define CHECKSUM_START 0xcbf29ce484222325u

#endif
