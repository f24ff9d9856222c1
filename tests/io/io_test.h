/* What the tests of base and io share: a context whose k-th allocation fails, and a folder of their own. */
#ifndef ABAR_IO_TEST_H
#define ABAR_IO_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base_impl.h"

typedef struct test_memory {
    long fail_at; /* this call of alloc (from 1) returns NULL; 0: none */
    long calls;
    size_t live; /* bytes not yet freed */
} test_memory;

static inline void *test_alloc(void *user, size_t bytes, size_t align)
{
    test_memory *memory = user;
    if (++memory->calls == memory->fail_at) return NULL;
    void *p = aligned_alloc(align, abar__round_up(bytes, align));
    if (p) memory->live += bytes;
    return p;
}

static inline void test_release(void *user, void *p, size_t bytes)
{
    ((test_memory *)user)->live -= bytes;
    free(p);
}

/* A context over memory; counting calls begins after it. */
static inline abar_context *test_context(test_memory *memory)
{
    *memory = (test_memory){0};
    abar_context_config config = {.size = sizeof config, .allocator = {test_alloc, test_release, memory}};
    abar_context *ctx;
    assert_int_equal(abar_context_create(&config, &ctx), ABAR_OK);
    memory->calls = 0;
    return ctx;
}

/* Every byte must have been freed. */
static inline void test_context_end(abar_context *ctx, const test_memory *memory)
{
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    assert_int_equal(memory->live, 0);
}

static inline void assert_error(const abar_context *ctx, const char *part)
{
    if (!strstr(abar_context_error(ctx), part)) fail_msg("error \"%s\" does not say \"%s\"", abar_context_error(ctx), part);
}

#define TEST_PATH 256

/* A fresh folder, whose name goes into *state; the teardown removes it with the files in it. */
static inline int test_folder_setup(void **state)
{
    char *path = malloc(TEST_PATH);
    if (!path) return -1;
    const char *root = getenv("TMPDIR");
    snprintf(path, TEST_PATH, "%.200s/abar-test-XXXXXX", root && *root ? root : "/tmp");
    *state = path;
    return mkdtemp(path) ? 0 : -1;
}

static inline int test_folder_files(const char *path, int unlink_them)
{
    int files = 0;
    DIR *folder = opendir(path);
    if (!folder) return -1;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[1024];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(name, sizeof name, "%.500s/%.255s", path, entry->d_name);
        files++;
        if (unlink_them && unlink(name) != 0) {
            test_folder_files(name, 1);
            rmdir(name);
        }
    }
    closedir(folder);
    return files;
}

static inline int test_folder_teardown(void **state)
{
    chmod(*state, 0755);
    test_folder_files(*state, 1);
    int removed = rmdir(*state);
    free(*state);
    return removed;
}

static inline char *test_path(void **state, const char *name, char path[TEST_PATH])
{
    snprintf(path, TEST_PATH, "%.200s/%.50s", (const char *)*state, name);
    return path;
}

static inline void test_write(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* The file's bytes must be these. */
static inline void assert_file(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *read = malloc(n + 1);
    assert_non_null(read);
    assert_int_equal(fread(read, 1, n + 1, file), n);
    if (n > 0) assert_memory_equal(read, bytes, n);
    free(read);
    fclose(file);
}

#endif
