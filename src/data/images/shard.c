#include "data/images/shard.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 512 /* bytes of a tar header, and what data is padded to */
#define DIGITS 9

/* ---- what is there ---------------------------------------------------------------------------------------------- */

/* "train-000000000-000002311.tar" */
static bool read_name(const char *name, const char *part, int64_t *first, int64_t *end)
{
    char expected[64];
    const char *numbers = name + strlen(part);
    if (strncmp(name, part, strlen(part)) != 0 || sscanf(numbers, "-%9" SCNd64 "-%9" SCNd64, first, end) != 2) return false;
    snprintf(expected, sizeof expected, "%s-%09" PRId64 "-%09" PRId64 ".tar", part, *first, *end);
    return strcmp(name, expected) == 0 && *first < *end;
}

/* The end of the shard that begins at s->next; 0: there is none. */
static abar_status find_next(const abar__shards *s, int64_t *out)
{
    DIR *folder = opendir(s->folder);
    *out = 0;
    if (!folder) return abar__fail_errno(s->ctx, s->folder, errno);
    for (struct dirent *entry; (entry = readdir(folder));) {
        int64_t first, end;
        if (read_name(entry->d_name, s->part, &first, &end) && first == s->next) *out = end;
    }
    closedir(folder);
    return ABAR_OK;
}

abar_status abar__shards_open(abar_context *ctx, const char *folder, const char *part, abar__shards *out)
{
    *out = (abar__shards){.ctx = ctx, .folder = folder, .part = part, .limit = ABAR_SHARD_BYTES};
    for (int64_t end;; out->next = end, out->count++) {
        ABAR_TRY(find_next(out, &end));
        if (end == 0) return ABAR_OK;
    }
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* A ustar header. Everything but name and size is always the same, so that equal copies have equal bytes. */
static void fill_header(const char *name, size_t size, char out[BLOCK])
{
    unsigned sum = 0;
    memset(out, 0, BLOCK);
    snprintf(out, 100, "%s", name);
    memcpy(out + 100,
           "0000644\0"
           "0000000\0"
           "0000000\0",
           24); /* mode, user, group */
    snprintf(out + 124, 12, "%011zo", size);
    memcpy(out + 136,
           "00000000000\0"
           "        "
           "0",
           21); /* time, blanks for the checksum, a regular file */
    memcpy(out + 257,
           "ustar\0"
           "00",
           8);
    for (int i = 0; i < BLOCK; i++) sum += (unsigned char)out[i];
    snprintf(out + 148, 8, "%06o", sum);
}

static int64_t padded(size_t n) { return (int64_t)abar__round_up(n, BLOCK); }

static abar_status write_member(abar__shards *s, const char *name, const void *bytes, size_t n)
{
    static const char zeros[BLOCK];
    char header[BLOCK];
    fill_header(name, n, header);
    ABAR_TRY(abar__replacement_write(&s->file, header, BLOCK));
    ABAR_TRY(abar__replacement_write(&s->file, bytes, n));
    ABAR_TRY(abar__replacement_write(&s->file, zeros, (size_t)padded(n) - n));
    s->bytes += BLOCK + padded(n);
    return ABAR_OK;
}

static abar_status begin(abar__shards *s)
{
    s->first = s->next;
    s->bytes = 0;
    const int n = snprintf(s->path, sizeof s->path, "%s/%s-%0*" PRId64 ".tar", s->folder, s->part, DIGITS, s->first);
    if (n >= (int)sizeof s->path - DIGITS - 1)
        return abar__fail(s->ctx, ABAR_E_ARGUMENT, "%s: name too long, choose a shorter one", s->folder);
    ABAR_TRY(abar__replacement_begin(s->ctx, s->path, &s->file));
    s->open = true;
    return ABAR_OK;
}

static abar_status write_sample(abar__shards *s, int32_t label, const uint8_t *jpeg, size_t n)
{
    char name[32], number[16];
    const int digits = snprintf(number, sizeof number, "%" PRId32, label);
    snprintf(name, sizeof name, "%0*" PRId64 ".cls", DIGITS, s->next);
    ABAR_TRY(write_member(s, name, number, (size_t)digits));
    snprintf(name, sizeof name, "%0*" PRId64 ".jpg", DIGITS, s->next);
    return write_member(s, name, jpeg, n);
}

abar_status abar__shards_add(abar__shards *s, int32_t label, const uint8_t *jpeg, size_t n)
{
    const int64_t bytes = 3 * BLOCK + padded(n); /* two headers and the label; the end of the archive has two blocks more */
    if (s->open && s->bytes + bytes + 2 * BLOCK > s->limit) ABAR_TRY(abar__shards_finish(s));
    if (!s->open) ABAR_TRY(begin(s));
    abar_status status = write_sample(s, label, jpeg, n);
    if (status < 0) s->open = false; /* the failure has removed the file */
    if (status == ABAR_OK) s->next++;
    return status;
}

abar_status abar__shards_finish(abar__shards *s)
{
    static const char end[2 * BLOCK];
    if (!s->open) return ABAR_OK;
    s->open = false;
    ABAR_TRY(abar__replacement_write(&s->file, end, sizeof end));
    char *extension = s->path + strlen(s->path) - strlen(".tar"); /* the file gets the path's present value */
    sprintf(extension, "-%0*" PRId64 ".tar", DIGITS, s->next);
    ABAR_TRY(abar__replacement_commit(&s->file));
    s->count++;
    return ABAR_OK;
}

void abar__shards_abandon(abar__shards *s)
{
    if (s->open) abar__replacement_abandon(&s->file);
    s->open = false;
}
