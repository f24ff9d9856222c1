/* A table of choices and its file: a header, one line per choice, and a checksum over everything before it. What a library
 * compiled for a choice is in a file of its own: a header, the problem, the bytes, and such a checksum. */
#include "device/autotune_cache.h"
#include "base/cache_folder.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HEAD "abar choices 1: "
#define SUM_LENGTH 21 /* "sum 0123456789abcdef\n" */
#define LARGEST ((size_t)4 << 20)
#define COMPILED_HEAD "abar compiled 1: "
#define COMPILED_LARGEST ((size_t)32 << 20)
#define MOST 8192 /* choices of a table: looking one up reads them all */

typedef struct pair {
    char problem[ABAR_AUTOTUNE_MAX], choice[ABAR_AUTOTUNE_MAX];
} pair;

struct abar__autotune_cache {
    abar_context *ctx;
    char title[ABAR_AUTOTUNE_MAX], path[PATH_MAX]; /* path empty: no file */
    pair *pairs;
    int n, capacity;
    bool told; /* a damaged or unwritable file has been logged */
};

/* ---- the table ------------------------------------------------------------------------------------------------------ */

static pair *find(const abar__autotune_cache *c, const char *problem)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->pairs[i].problem, problem) == 0) return &c->pairs[i];
    return NULL;
}

/* keep: an existing entry is not replaced. A full table takes no more. */
static abar_status put(abar__autotune_cache *c, const char *problem, const char *choice, bool keep)
{
    pair *p = find(c, problem);
    if ((p && keep) || (!p && c->n == MOST)) return ABAR_OK;
    if (!p && c->n == c->capacity) {
        const int more = c->capacity ? 2 * c->capacity : 64;
        void *bigger;
        ABAR_TRY(abar__alloc(c->ctx, (size_t)more * sizeof *c->pairs, &bigger));
        if (c->n) memcpy(bigger, c->pairs, (size_t)c->n * sizeof *c->pairs);
        abar__free(c->ctx, c->pairs, (size_t)c->capacity * sizeof *c->pairs);
        c->pairs = bigger;
        c->capacity = more;
    }
    if (!p) p = &c->pairs[c->n++];
    snprintf(p->problem, sizeof p->problem, "%s", problem);
    snprintf(p->choice, sizeof p->choice, "%s", choice);
    return ABAR_OK;
}

static bool is_one_line(const char *text)
{
    const size_t length = strlen(text);
    return length > 0 && length < ABAR_AUTOTUNE_MAX && !strpbrk(text, "\t\r\n");
}

/* ---- the file's text -------------------------------------------------------------------------------------------------- */

abar_status abar__autotune_cache_write(const abar__autotune_cache *c, abar__text *out)
{
    ABAR_TRY(abar__text_printf(c->ctx, out, HEAD "%s\n", c->title));
    for (int i = 0; i < c->n; i++)
        ABAR_TRY(abar__text_printf(c->ctx, out, "%s\t%s\n", c->pairs[i].problem, c->pairs[i].choice));
    return abar__text_printf(c->ctx, out, "sum %016" PRIx64 "\n", abar__hash(ABAR_HASH_START, out->data, out->length));
}

static bool is_whole(const abar__autotune_cache *c, const char *text, size_t n)
{
    char expected[SUM_LENGTH + 1];
    const size_t head = strlen(HEAD), title = strlen(c->title);
    if (!text || n < head + title + 1 + SUM_LENGTH || memchr(text, '\0', n)) return false;
    if (memcmp(text, HEAD, head) != 0 || memcmp(text + head, c->title, title) != 0 || text[head + title] != '\n') return false;
    snprintf(expected, sizeof expected, "sum %016" PRIx64 "\n", abar__hash(ABAR_HASH_START, text, n - SUM_LENGTH));
    return memcmp(text + n - SUM_LENGTH, expected, SUM_LENGTH) == 0;
}

/* Adds the lines of a valid file to the table; existing entries are kept. Modifies text. */
static abar_status take_lines(abar__autotune_cache *c, char *text, size_t n)
{
    char *end = text + n - SUM_LENGTH, *line = text + strlen(HEAD) + strlen(c->title) + 1;
    while (line < end) {
        char *stop = memchr(line, '\n', (size_t)(end - line)), *tab;
        if (!stop) break;
        *stop = '\0';
        tab = strchr(line, '\t');
        if (tab) {
            *tab = '\0';
            if (is_one_line(line) && is_one_line(tab + 1)) ABAR_TRY(put(c, line, tab + 1, true));
        }
        line = stop + 1;
    }
    return ABAR_OK;
}

/* ---- the file --------------------------------------------------------------------------------------------------------- */

static void tell(abar__autotune_cache *c, const char *what)
{
    if (!c->told) abar__log(c->ctx, ABAR_LOG_WARNING, "%s: %s", c->path, what);
    c->told = true;
}

/* Reads the whole file; ABAR_E_IO: it cannot be read, or is too long to be one of ours. */
static abar_status slurp(abar_context *ctx, const char *path, size_t largest, abar__text *text)
{
    char part[4096];
    abar_status status = ABAR_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ABAR_E_IO;
    for (ssize_t got = 1; got != 0 && status >= 0;) {
        got = read(fd, part, sizeof part);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 || text->length > largest)
            status = ABAR_E_IO;
        else if (got > 0)
            status = abar__text_append(ctx, text, part, (size_t)got);
    }
    close(fd);
    return status;
}

/* Adds the entries of the file to the table. */
static abar_status join_file(abar__autotune_cache *c)
{
    abar__text text = {0};
    if (access(c->path, F_OK) != 0) return ABAR_OK;
    abar_status status = slurp(c->ctx, c->path, LARGEST, &text);
    if (status >= 0 && is_whole(c, text.data, text.length))
        status = take_lines(c, text.data, text.length);
    else if (status != ABAR_E_MEMORY) {
        tell(c, "this cache of measured choices cannot be read or is damaged: they are measured again, and it is replaced");
        status = ABAR_OK;
    }
    abar__text_free(c->ctx, &text);
    return status;
}

static bool write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        const ssize_t done = write(fd, text, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        text += done;
        n -= (size_t)done;
    }
    return true;
}

/* No fsync: a file that a power cut leaves half written fails its checksum, and its choices are measured again. */
static bool replace_file(const abar__autotune_cache *c, const char *path, const abar__text *text)
{
    char temporary[PATH_MAX + 64];
    abar__cache_make_folder(path);
    const int fd = abar__cache_begin(path, c, temporary, sizeof temporary);
    return fd >= 0 && abar__cache_end(fd, write_all(fd, text->data, text->length), temporary, path);
}

static void keep_file(abar__autotune_cache *c, const char *path, const abar__text *text)
{
    if (!replace_file(c, path, text)) tell(c, "cannot be written: what was measured is not remembered, see ABAR_CACHE");
}

static abar_status save(abar__autotune_cache *c)
{
    abar__text text = {0};
    if (!c->path[0]) return ABAR_OK;
    abar_status status = join_file(c);
    if (status >= 0) status = abar__autotune_cache_write(c, &text);
    if (status >= 0) keep_file(c, c->path, &text);
    abar__text_free(c->ctx, &text);
    return status;
}

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

/* "NVIDIA H200, driver 13000" -> "nvidia-h200-driver-13000" */
static void name_of(const char *title, char *out)
{
    size_t n = 0;
    for (const char *p = title; *p; p++) {
        const bool upper = *p >= 'A' && *p <= 'Z', digit = *p >= '0' && *p <= '9', lower = *p >= 'a' && *p <= 'z';
        if (upper || lower || digit || *p == '.')
            out[n++] = (char)(upper ? *p - 'A' + 'a' : *p);
        else if (n > 0 && out[n - 1] != '-')
            out[n++] = '-';
    }
    out[n] = '\0';
}

abar_status abar__autotune_cache_create(abar_context *ctx, const char *title, abar__autotune_cache **out)
{
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar__autotune_cache), &memory));
    *out = memory;
    (*out)->ctx = ctx;
    snprintf((*out)->title, sizeof(*out)->title, "%s", title);
    return ABAR_OK;
}

abar_status abar__autotune_cache_open(abar_context *ctx, const char *title, abar__autotune_cache **out)
{
    char folder[PATH_MAX], name[ABAR_AUTOTUNE_MAX];
    abar__autotune_cache *c;
    *out = NULL;
    if (!is_one_line(title) || !abar__cache_folder(folder, sizeof folder)) return ABAR_OK;
    name_of(title, name);
    ABAR_TRY(abar__autotune_cache_create(ctx, title, &c));
    const int length = snprintf(c->path, sizeof c->path, "%s/%s.txt", folder, name);
    const bool fits = length > 0 && (size_t)length < sizeof c->path;
    if (fits) abar__cache_sweep(c->path);
    const abar_status status = fits ? join_file(c) : ABAR_OK;
    if (fits && status >= 0)
        *out = c;
    else
        abar__autotune_cache_close(c);
    return status;
}

abar_status abar__autotune_cache_parse(abar_context *ctx, const char *title, const char *text, size_t n,
                                       abar__autotune_cache **out)
{
    abar__text copy = {0};
    *out = NULL;
    if (!is_one_line(title)) return ABAR_OK;
    ABAR_TRY(abar__autotune_cache_create(ctx, title, out));
    abar_status status = abar__text_append(ctx, &copy, text, n);
    if (status >= 0) status = is_whole(*out, copy.data, n) ? take_lines(*out, copy.data, n) : ABAR_E_FORMAT;
    abar__text_free(ctx, &copy);
    if (status >= 0) return ABAR_OK;
    abar__autotune_cache_close(*out);
    *out = NULL;
    return status;
}

void abar__autotune_cache_close(abar__autotune_cache *c)
{
    if (!c) return;
    abar__free(c->ctx, c->pairs, (size_t)c->capacity * sizeof *c->pairs);
    abar__free(c->ctx, c, sizeof *c);
}

const char *abar__autotune_cache_path(const abar__autotune_cache *c) { return c->path; }

const char *abar__autotune_cache_find(const abar__autotune_cache *c, const char *problem)
{
    const pair *p = c ? find(c, problem) : NULL;
    return p ? p->choice : NULL;
}

abar_status abar__autotune_cache_put(abar__autotune_cache *c, const char *problem, const char *choice)
{
    if (!c || !is_one_line(problem) || !is_one_line(choice)) return ABAR_OK;
    ABAR_TRY(put(c, problem, choice, false));
    return save(c);
}

/* ---- compiled for a choice ----------------------------------------------------------------------------------------- */

/* ".../nvidia-h200-driver-13000.txt" -> ".../nvidia-h200-driver-13000-0123456789abcdef.compiled" */
static bool compiled_path(const abar__autotune_cache *c, const char *problem, char *out, size_t size)
{
    const int stem = (int)(strlen(c->path) - strlen(".txt"));
    const uint64_t number = abar__hash(ABAR_HASH_START, problem, strlen(problem));
    const int length = snprintf(out, size, "%.*s-%016" PRIx64 ".compiled", stem, c->path, number);
    return length > 0 && (size_t)length < size;
}

abar_status abar__autotune_cache_put_compiled(abar__autotune_cache *c, const char *problem, const void *bytes, size_t n)
{
    char path[PATH_MAX];
    abar__text text = {0};
    if (!c || !c->path[0] || !is_one_line(problem) || n > COMPILED_LARGEST || !compiled_path(c, problem, path, sizeof path))
        return ABAR_OK;
    abar_status status = abar__text_printf(c->ctx, &text, COMPILED_HEAD "%s\n%s\n", c->title, problem);
    if (status >= 0) status = abar__text_append(c->ctx, &text, bytes, n);
    if (status >= 0)
        status = abar__text_printf(c->ctx, &text, "sum %016" PRIx64 "\n", abar__hash(ABAR_HASH_START, text.data, text.length));
    if (status >= 0) {
        abar__cache_sweep(path);
        keep_file(c, path, &text);
    }
    abar__text_free(c->ctx, &text);
    return status;
}

/* Appends the bytes of a valid file to out; another problem may have the same number. */
static abar_status take_compiled(abar__autotune_cache *c, const char *problem, const abar__text *text, abar__text *out)
{
    abar__text head = {0};
    char sum[SUM_LENGTH + 1];
    ABAR_TRY(abar__text_printf(c->ctx, &head, COMPILED_HEAD "%s\n%s\n", c->title, problem));
    const size_t before = head.length, n = text->length;
    const bool ours = n >= before + SUM_LENGTH && memcmp(text->data, head.data, before) == 0;
    abar__text_free(c->ctx, &head);
    if (ours) snprintf(sum, sizeof sum, "sum %016" PRIx64 "\n", abar__hash(ABAR_HASH_START, text->data, n - SUM_LENGTH));
    if (!ours || memcmp(text->data + n - SUM_LENGTH, sum, SUM_LENGTH) != 0) return ABAR_OK;
    return abar__text_append(c->ctx, out, text->data + before, n - SUM_LENGTH - before);
}

abar_status abar__autotune_cache_get_compiled(abar__autotune_cache *c, const char *problem, abar__text *out)
{
    char path[PATH_MAX];
    abar__text text = {0};
    if (!c || !c->path[0] || !is_one_line(problem) || !compiled_path(c, problem, path, sizeof path)) return ABAR_OK;
    abar_status status = access(path, F_OK) == 0 ? slurp(c->ctx, path, COMPILED_LARGEST, &text) : ABAR_E_IO;
    if (status >= 0) status = take_compiled(c, problem, &text, out);
    abar__text_free(c->ctx, &text);
    return status == ABAR_E_IO ? ABAR_OK : status;
}
