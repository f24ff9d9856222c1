/* What the tests of image indexes share: a set of files in a temporary folder with a cache of its own, archives, and what an
 * index must say. */
#ifndef ABAR_TESTS_IMAGES_TESTING_H
#define ABAR_TESTS_IMAGES_TESTING_H

#include "data/support.h"
#include "data/images/index.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

typedef struct set {
    folder f;
    char data[300]; /* the image set */
    char cache[300];
    char log[2048]; /* all log lines */
    abar_context *ctx;
    failing memory;
} set;

static inline void set_log(void *user, abar_log_level level, const char *text)
{
    set *s = user;
    (void)level;
    const size_t used = strlen(s->log);
    snprintf(s->log + used, sizeof s->log - used, "%s\n", text);
}

static inline set *set_make(void)
{
    set *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->f = folder_make();
    char *real = realpath(s->f.path, NULL);
    assert_non_null(real);
    snprintf(s->data, sizeof s->data, "%s/data", real);
    snprintf(s->cache, sizeof s->cache, "%s/cache", real);
    free(real);
    assert_int_equal(mkdir(s->data, 0755), 0);
    setenv("ABAR_CACHE", s->cache, 1);
    const abar_context_config config = {
        .size = sizeof config, .log = set_log, .log_user = s, .allocator = {failing_alloc, failing_release, &s->memory}};
    assert_int_equal(abar_context_create(&config, &s->ctx), ABAR_OK);
    return s;
}

static inline void set_free(set *s)
{
    assert_int_equal(abar_context_memory(s->ctx).now, 0);
    abar_context_destroy(s->ctx);
    folder_remove(&s->f);
    free(s);
}

static inline void path_of(const set *s, const char *name, char out[8192]) { snprintf(out, 8192, "%s/%.7800s", s->data, name); }

/* The directories above a file of the set. */
static inline void make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
        *slash = '/';
    }
}

static inline void put_bytes(const set *s, const char *name, const void *data, size_t n)
{
    char path[8192];
    path_of(s, name, path);
    make_parents(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static inline void put_text(const set *s, const char *name, const char *text) { put_bytes(s, name, text, strlen(text)); }

/* A file of n bytes; the scan does not look at them. */
static inline void put(const set *s, const char *name, size_t n)
{
    char text[4096];
    assert_true(n <= sizeof text);
    memset(text, 'x', sizeof text);
    put_bytes(s, name, text, n);
}

static inline void make_folder(const set *s, const char *name)
{
    char path[8192];
    path_of(s, name, path);
    make_parents(path);
    assert_int_equal(mkdir(path, 0755), 0);
}

static inline void make_link(const set *s, const char *to, const char *name)
{
    char path[8192];
    path_of(s, name, path);
    make_parents(path);
    assert_int_equal(symlink(to, path), 0);
}

static inline void remove_file(const set *s, const char *name)
{
    char path[8192];
    path_of(s, name, path);
    assert_int_equal(remove(path), 0);
}

/* Everything was changed an hour ago, links' targets in the set too. */
static inline void settle(const set *s)
{
    char command[1024];
    snprintf(command, sizeof command, "find '%s' -exec touch -h -d '1 hour ago' {} +", s->data);
    assert_int_equal(system(command), 0);
}

/* ---- archives ---------------------------------------------------------------------------------------------------------- */

typedef struct tar_text {
    uint8_t *bytes;
    size_t n;
} tar_text;

static inline void tar_raw(tar_text *t, const void *data, size_t n)
{
    const size_t padded = (n + 511) / 512 * 512;
    t->bytes = realloc(t->bytes, t->n + padded + 1);
    assert_non_null(t->bytes);
    memset(t->bytes + t->n, 0, padded);
    if (n > 0) memcpy(t->bytes + t->n, data, n);
    t->n += padded;
}

static inline void tar_sum(uint8_t *h)
{
    unsigned sum = 0;
    memset(h + 148, ' ', 8);
    for (int i = 0; i < 512; i++) sum += h[i];
    snprintf((char *)h + 148, 8, "%06o", sum);
    h[155] = ' ';
}

static inline void tar_header(tar_text *t, const char *name, char type, size_t size)
{
    uint8_t h[512] = {0};
    memcpy(h, name, strlen(name) < 100 ? strlen(name) : 100);
    memcpy(h + 100, "0000644", 8);
    memcpy(h + 108, "0000000", 8);
    memcpy(h + 116, "0000000", 8);
    for (int i = 10; i >= 0; i--, size /= 8) h[124 + i] = (uint8_t)('0' + size % 8);
    memcpy(h + 136, "00000000000", 12);
    h[156] = (uint8_t)type;
    memcpy(h + 257, "ustar\00000", 8);
    tar_sum(h);
    tar_raw(t, h, 512);
}

static inline void tar_member(tar_text *t, const char *name, const void *data, size_t n)
{
    tar_header(t, name, '0', n);
    tar_raw(t, data, n);
}

/* A member of n bytes, all of them c. */
static inline void tar_image(tar_text *t, const char *name, size_t n, char c)
{
    char text[4096];
    assert_true(n <= sizeof text);
    memset(text, c, sizeof text);
    tar_member(t, name, text, n);
}

static inline void tar_number(tar_text *t, const char *name, const char *number)
{
    tar_member(t, name, number, strlen(number));
}

static inline void tar_end(tar_text *t)
{
    const uint8_t zeros[1024] = {0};
    tar_raw(t, zeros, sizeof zeros);
}

/* Ends the archive, writes it and frees it. */
static inline void put_tar(const set *s, const char *name, tar_text *t)
{
    tar_end(t);
    put_bytes(s, name, t->bytes, t->n);
    free(t->bytes);
    *t = (tar_text){0};
}

/* ---- what an index must say -----------------------------------------------------------------------------------------------
 */

static inline abar__images_index *open_with(set *s, const abar__images_request *request)
{
    abar__images_request r = request ? *request : (abar__images_request){0};
    abar__images_index *index = NULL;
    r.folder = s->data;
    const abar_status status = abar__images_open(s->ctx, &r, &index);
    if (status != ABAR_OK) fail_msg("opening: status %d: %s", status, abar_context_error(s->ctx));
    assert_non_null(index);
    return index;
}

static inline abar__images_index *open_set(set *s) { return open_with(s, NULL); }

/* Opening fails with one line that names the path (relative to the set) and says why. */
static inline void open_fails_with(set *s, const abar__images_request *request, abar_status expected, const char *path,
                                   const char *reason)
{
    abar__images_request r = request ? *request : (abar__images_request){0};
    abar__images_index *index = (abar__images_index *)s;
    char whole[8192];
    r.folder = s->data;
    const abar_status status = abar__images_open(s->ctx, &r, &index);
    const char *text = abar_context_error(s->ctx);
    if (status != expected) fail_msg("status %d, not %d: %s", status, expected, status < 0 ? text : "");
    assert_null(index);
    if (*path == '/')
        snprintf(whole, sizeof whole, "%s", path);
    else
        snprintf(whole, sizeof whole, "%s%s%s", s->data, *path ? "/" : "", path);
    check_contains(text, whole);
    check_contains(text, reason);
    assert_null(strchr(text, '\n'));
    assert_int_equal(abar_context_memory(s->ctx).now, 0);
}

static inline void open_fails(set *s, abar_status expected, const char *path, const char *reason)
{
    open_fails_with(s, NULL, expected, path, reason);
}

/* The samples of a part as lines "LABEL SIZE PATH", paths relative to the set. */
static inline void check_samples(const set *s, const abar__images_index *index, int part, const char *expected)
{
    char text[8192] = "", name[4096];
    const int64_t count = abar__images_summary_of(index)->count[part];
    for (int64_t i = 0; i < count; i++) {
        const size_t used = strlen(text);
        abar__images_name(index, part, i, name, sizeof name);
        assert_int_equal(strncmp(name, s->data, strlen(s->data)), 0);
        snprintf(text + used, sizeof text - used, "%d %d %s\n", abar__images_label(index, part, i),
                 (int)abar__images_size(index, part, i), name + strlen(s->data) + 1);
    }
    assert_string_equal(text, expected);
}

/* Two classes of two and one images, one test image each. */
static inline set *small_set(void)
{
    set *s = set_make();
    put(s, "train/ant/2.jpg", 2);
    put(s, "train/ant/1.jpg", 1);
    put(s, "train/bee/3.PNG", 3);
    put(s, "val/ant/4.jpeg", 4);
    put(s, "val/bee/5.JPG", 5);
    return s;
}

#define SMALL_TRAIN "0 1 train/ant/1.jpg\n0 2 train/ant/2.jpg\n1 3 train/bee/3.PNG\n"
#define SMALL_VAL "0 4 val/ant/4.jpeg\n1 5 val/bee/5.JPG\n"

#endif
