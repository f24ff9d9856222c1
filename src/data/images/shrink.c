/* A smaller copy of an image set, as tar shards. It is made in TO.partial, which becomes TO when all is there, so that nobody
 * trains on a part of it. README says what it is a copy of; a copy is continued if that is the same. */
#include "abar/images.h"
#include "base/clock.h"
#include "data/images/crew.h"
#include "data/images/index.h"
#include "data/images/shard.h"
#include "io/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SIDE_MAX 8192 /* pixels of a copy's short side */
#define BLOCK_EACH 16 /* images that a thread makes before they are written */
#define NAME_MAX_BYTES 4608

/* One image of a block. */
typedef struct slot {
    uint8_t *jpeg;
    size_t bytes, capacity;
    enum { GOOD, DAMAGED, CHANGED, FAILED, MEMORY } end;
    int error;
    char reason[sizeof((abar__image_fault *)0)->text];
} slot;

typedef struct worker {
    abar__image_reader *reader;
    uint8_t *buffer;
    size_t capacity;
} worker;

struct abar_image_shrink {
    abar_context *ctx;
    abar__images_index *index;
    int32_t side;
    char to[ABAR_SHARD_PATH_MAX], partial[ABAR_SHARD_PATH_MAX];
    abar__text readme;
    int lock;
    abar__shards shards[2];
    int threads;
    worker workers[ABAR_CREW_MAX];
    slot *slots; /* (threads * BLOCK_EACH) */
    int part;    /* of the block being made, ... */
    int64_t at;  /* ... and its first sample */
    atomic_bool stop;
    void (*progress)(void *user, int64_t done, int64_t all);
    void *user;
    int64_t done; /* images before this block */
    abar_image_shrink_report report;
};

/* ---- one image -------------------------------------------------------------------------------------------------- */

static bool reserve(abar_context *ctx, uint8_t **memory, size_t *capacity, size_t bytes)
{
    if (bytes <= *capacity) return true;
    void *more = abar__alloc_in_thread(ctx, bytes + bytes / 2);
    if (!more) return false;
    abar__free(ctx, *memory, *capacity);
    *memory = more;
    *capacity = bytes + bytes / 2;
    return true;
}

static void shrink_image(abar_image_shrink *s, worker *w, int64_t i, slot *to)
{
    const int64_t bytes = abar__images_size(s->index, s->part, i);
    const uint8_t *jpeg;
    abar__image_fault fault = {0};
    to->end = MEMORY;
    if ((size_t)bytes <= ABAR_IMAGE_BYTES_MAX && !reserve(s->ctx, &w->buffer, &w->capacity, (size_t)bytes)) return;
    if ((size_t)bytes > ABAR_IMAGE_BYTES_MAX) {
        to->end = DAMAGED;
        snprintf(to->reason, sizeof to->reason, "has more than 512 MiB");
        return;
    }
    const abar__images_found found = abar__images_read(s->index, s->part, i, w->buffer);
    to->error = errno;
    to->end = found == ABAR_IMAGES_READ ? DAMAGED : found == ABAR_IMAGES_CHANGED ? CHANGED : FAILED;
    if (to->end != DAMAGED) return;
    if (!abar__image_shrink(w->reader, w->buffer, (size_t)bytes, s->side, &jpeg, &to->bytes, &fault)) {
        if (fault.memory) to->end = MEMORY;
        snprintf(to->reason, sizeof to->reason, "%s", fault.text);
        return;
    }
    to->end = reserve(s->ctx, &to->jpeg, &to->capacity, to->bytes) ? GOOD : MEMORY;
    if (to->end == GOOD) memcpy(to->jpeg, jpeg, to->bytes);
}

static bool shrink_item(void *user, int number, int64_t i)
{
    abar_image_shrink *s = user;
    shrink_image(s, &s->workers[number], s->at + i, &s->slots[i]);
    return true; /* to the end of the block: the first failure in order is the one that is reported */
}

static abar_status fail_image(abar_image_shrink *s, int64_t i, const slot *from)
{
    char name[NAME_MAX_BYTES];
    abar__images_name(s->index, s->part, i, name, sizeof name);
    switch (from->end) {
    case DAMAGED:
        return abar__fail(s->ctx, ABAR_E_FORMAT, "%s: %s, repair or remove it; abar data finds all that are damaged", name,
                          from->reason);
    case CHANGED:
        abar__images_drop_cache(s->index);
        return abar__fail(s->ctx, ABAR_E_IO, "%s: changed since it was indexed, remove %s and begin again", name, s->partial);
    case FAILED: return abar__fail_errno(s->ctx, name, from->error);
    default: return abar__fail(s->ctx, ABAR_E_MEMORY, "memory: too little to make smaller images, use fewer --workers");
    }
}

/* ---- all images ------------------------------------------------------------------------------------------------- */

static int64_t image_count(const abar_image_shrink *s)
{
    const abar__images_summary *all = abar__images_summary_of(s->index);
    return all->count[0] + all->count[1];
}

static void forward_progress(void *user, int64_t done)
{
    const abar_image_shrink *s = user;
    if (s->progress) s->progress(s->user, s->done + done, image_count(s));
}

/* Makes n images from s->at on and writes them. */
static abar_status make_block(abar_image_shrink *s, int64_t n)
{
    const abar__crew_job job = {.threads = s->threads < n ? s->threads : (int)n,
                                .count = n,
                                .work = shrink_item,
                                .progress = forward_progress,
                                .user = s};
    abar__crew_run(&job);
    for (int64_t k = 0; k < n; k++) {
        const slot *made = &s->slots[k];
        if (made->end != GOOD) return fail_image(s, s->at + k, made);
        ABAR_TRY(
            abar__shards_add(&s->shards[s->part], abar__images_label(s->index, s->part, s->at + k), made->jpeg, made->bytes));
        s->report.bytes += (int64_t)made->bytes;
        s->report.bytes_before += abar__images_size(s->index, s->part, s->at + k);
        s->report.images++;
    }
    s->done += n;
    return ABAR_OK;
}

/* The shard being written is completed when the copy is stopped: it is then a small one. */
static abar_status make_part(abar_image_shrink *s, int part)
{
    abar__shards *shards = &s->shards[part];
    const int64_t count = abar__images_summary_of(s->index)->count[part], most = (int64_t)s->threads * BLOCK_EACH;
    s->part = part;
    while (shards->next < count && !atomic_load(&s->stop)) {
        s->at = shards->next;
        ABAR_TRY(make_block(s, count - s->at < most ? count - s->at : most));
    }
    return abar__shards_finish(shards);
}

/* ---- the folder ------------------------------------------------------------------------------------------------- */

/* README's first line is what two copies of the same images have in common. */
static abar_status write_readme(abar_image_shrink *s, const char *folder)
{
    const abar__images_summary *all = abar__images_summary_of(s->index);
    char real[PATH_MAX];
    if (!realpath(folder, real)) snprintf(real, sizeof real, "%s", folder);
    for (char *c = real; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    ABAR_TRY(abar__text_printf(s->ctx, &s->readme,
                               ABAR_IMAGES_SHRUNK "%" PRId32 ", %" PRId64 " + %" PRId64 " images, set %016" PRIx64 "\n",
                               s->side, all->count[0], all->count[1], all->fingerprint));
    return abar__text_printf(s->ctx, &s->readme,
                             "\nSmaller copies of the images in %s:\n"
                             "short side at most %" PRId32 " pixels (bicubic, never enlarged), JPEG of quality 90, 4:2:0.\n"
                             "Accuracy on them is not accuracy on the originals.\n\n"
                             "train-*.tar, val-*.tar: KEY.jpg and KEY.cls (the label), in the order of the originals\n"
                             "classes.txt: the names of the labels\n",
                             real, s->side);
}

/* Whether the folder has a README with the first line of ours. */
static bool is_ours(const abar_image_shrink *s, const char *folder)
{
    char path[ABAR_SHARD_PATH_MAX + 16];
    const size_t first = strcspn(s->readme.data, "\n") + 1;
    char text[256];
    snprintf(path, sizeof path, "%s/" ABAR_IMAGES_README, folder);
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    const size_t n = fread(text, 1, sizeof text, file);
    fclose(file);
    return n >= first && memcmp(text, s->readme.data, first) == 0;
}

/* Nothing but what a copy leaves behind that was killed before its README was there. */
static bool is_empty(const char *path)
{
    bool empty = true;
    DIR *folder = opendir(path);
    if (!folder) return false;
    for (struct dirent *entry; empty && (entry = readdir(folder));) {
        const char *name = entry->d_name;
        empty = !strcmp(name, ".") || !strcmp(name, "..") || !strcmp(name, ".lock") ||
                !strncmp(name, ABAR_IMAGES_README ".tmp-", strlen(ABAR_IMAGES_README ".tmp-"));
    }
    closedir(folder);
    return empty;
}

static abar_status check_place(abar_image_shrink *s, const char *path, bool *exists)
{
    struct stat info;
    *exists = lstat(path, &info) == 0;
    if (!*exists) return errno == ENOENT ? ABAR_OK : abar__fail_errno(s->ctx, path, errno);
    if (stat(path, &info) != 0) return abar__fail_errno(s->ctx, path, errno);
    if (!S_ISDIR(info.st_mode))
        return abar__fail(s->ctx, ABAR_E_ARGUMENT, "%s: is not a folder, give --to a name that is free", path);
    if (is_empty(path) || is_ours(s, path)) return ABAR_OK;
    return abar__fail(s->ctx, ABAR_E_ARGUMENT, "%s: has other files, or a copy of other images, %s--to a name that is free",
                      path, path == s->partial ? "remove it if the set has changed, or give " : "give ");
}

/* Copies inside the set would become a part of it. */
static abar_status check_outside(abar_image_shrink *s, const char *folder)
{
    char set[PATH_MAX], to[PATH_MAX], parent[ABAR_SHARD_PATH_MAX];
    snprintf(parent, sizeof parent, "%s", s->to);
    while (!realpath(parent, to)) { /* the first folder above it that is there */
        char *slash = strrchr(parent, '/');
        if (slash == parent) return ABAR_OK;
        if (slash)
            *slash = '\0';
        else if (strcmp(parent, ".") != 0)
            strcpy(parent, ".");
        else
            return ABAR_OK;
    }
    if (!realpath(folder, set)) return ABAR_OK;
    const size_t n = strlen(set);
    if (strncmp(to, set, n) != 0 || (to[n] != '\0' && to[n] != '/')) return ABAR_OK;
    return abar__fail(s->ctx, ABAR_E_ARGUMENT, "--to %s: is inside the data set, choose a folder outside", s->to);
}

static abar_status check_side(abar_image_shrink *s)
{
    const int64_t already = abar__images_summary_of(s->index)->shrunk;
    if (already == 0 || already > s->side) return ABAR_OK;
    return abar__fail(s->ctx, ABAR_E_ARGUMENT,
                      "--shrink %" PRId32 ": the images are copies with a short side of %" PRId64
                      " already, shrink the originals",
                      s->side, already);
}

static abar_status write_classes(abar_image_shrink *s)
{
    char path[ABAR_SHARD_PATH_MAX + 16];
    abar__text text = {0};
    abar_status status = ABAR_OK;
    for (int64_t k = 0; k < abar__images_summary_of(s->index)->classes && status == ABAR_OK; k++) {
        const char *name = abar__images_class(s->index, k), *readable = abar__images_readable(s->index, k);
        if (strpbrk(name, "\n\r\t"))
            status = abar__fail(s->ctx, ABAR_E_UNSUPPORTED,
                                "class %" PRId64 ": its name has a line break or tab, rename its folder", k);
        else
            status = abar__text_printf(s->ctx, &text, "%s%s%s\n", name, readable ? "\t" : "", readable ? readable : "");
    }
    snprintf(path, sizeof path, "%s/classes.txt", s->partial);
    if (status == ABAR_OK) status = abar__file_replace(s->ctx, path, text.data, text.length);
    abar__text_free(s->ctx, &text);
    return status;
}

/* Makes or continues TO.partial. */
static abar_status begin(abar_image_shrink *s)
{
    char path[ABAR_SHARD_PATH_MAX + 16];
    ABAR_TRY(abar__folder_make(s->ctx, s->partial));
    const abar_status status = abar__folder_lock(s->ctx, s->partial, &s->lock);
    if (status == ABAR_E_BUSY)
        return abar__fail(s->ctx, status, "%s: another process is making this copy, wait for it", s->partial);
    ABAR_TRY(status);
    snprintf(path, sizeof path, "%s/" ABAR_IMAGES_README, s->partial);
    ABAR_TRY(abar__file_replace(s->ctx, path, s->readme.data, s->readme.length));
    ABAR_TRY(write_classes(s));
    ABAR_TRY(abar__shards_open(s->ctx, s->partial, "train", &s->shards[0]));
    ABAR_TRY(abar__shards_open(s->ctx, s->partial, "val", &s->shards[1]));
    s->report.kept = s->report.images = s->done = s->shards[0].next + s->shards[1].next;
    return ABAR_OK;
}

/* TO.partial becomes TO, which is empty if it is there. */
static abar_status publish(abar_image_shrink *s)
{
    char path[ABAR_SHARD_PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/.lock", s->to); /* of a folder that is_empty calls empty */
    unlink(path);
    snprintf(path, sizeof path, "%s/.lock", s->partial);
    unlink(path);
    if (rename(s->partial, s->to) != 0)
        return abar__fail(s->ctx, ABAR_E_IO, "%s: the finished copy cannot be renamed to %s (%s), do it by hand", s->partial,
                          s->to, strerror(errno));
    return ABAR_OK;
}

abar_status abar_image_shrink_run(abar_image_shrink *s)
{
    const double began = abar__seconds();
    if (s->report.existed) return ABAR_OK;
    for (int part = 0; part < 2; part++) {
        abar_status status = make_part(s, part);
        if (status < 0) {
            abar__shards_abandon(&s->shards[part]);
            return status;
        }
    }
    s->report.shards = s->shards[0].count + s->shards[1].count;
    s->report.seconds = abar__seconds() - began;
    if (s->report.images < image_count(s)) return ABAR_STOPPED;
    return publish(s);
}

void abar_image_shrink_stop(abar_image_shrink *s) { atomic_store(&s->stop, true); }

const abar_image_shrink_report *abar_image_shrink_report_of(const abar_image_shrink *s) { return &s->report; }

/* ---- creating --------------------------------------------------------------------------------------------------- */

/* The paths, without slashes at the end. */
static abar_status set_paths(abar_image_shrink *s, const char *to)
{
    size_t n = strlen(to);
    while (n > 1 && to[n - 1] == '/') n--;
    if (n + 64 > sizeof s->to) return abar__fail(s->ctx, ABAR_E_ARGUMENT, "--to: name too long, choose a shorter one");
    snprintf(s->to, sizeof s->to, "%.*s", (int)n, to);
    snprintf(s->partial, sizeof s->partial, "%.*s.partial", (int)n, to);
    return ABAR_OK;
}

static abar_status prepare(abar_image_shrink *s, const abar_image_source *source, const char *to)
{
    const abar__images_request request = {
        .folder = source->folder, .classes = source->classes_file, .val_labels = source->labels_file};
    bool exists;
    void *memory;
    ABAR_TRY(set_paths(s, to));
    ABAR_TRY(abar__images_open(s->ctx, &request, &s->index));
    ABAR_TRY(check_side(s));
    ABAR_TRY(check_outside(s, source->folder));
    ABAR_TRY(write_readme(s, source->folder));
    ABAR_TRY(check_place(s, s->to, &exists));
    s->report.existed = exists && !is_empty(s->to);
    if (s->report.existed) return ABAR_OK;
    ABAR_TRY(check_place(s, s->partial, &exists));
    ABAR_TRY(begin(s));
    s->threads = abar__crew_threads(source->threads);
    for (int i = 0; i < s->threads; i++) ABAR_TRY(abar__image_reader_create(s->ctx, &s->workers[i].reader));
    ABAR_TRY(abar__alloc(s->ctx, (size_t)s->threads * BLOCK_EACH * sizeof *s->slots, &memory));
    s->slots = memory;
    return ABAR_OK;
}

abar_status abar_image_shrink_create(abar_context *ctx, const abar_image_source *source, int64_t side, const char *to,
                                     abar_image_shrink **out)
{
    abar_image_source own;
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__struct_read(ctx, "abar_image_source", source, &own, sizeof own));
    if (!own.folder || !own.folder[0]) return abar__fail(ctx, ABAR_E_ARGUMENT, "image folder: it has no name, give one");
    if (!to || !to[0]) return abar__fail(ctx, ABAR_E_ARGUMENT, "--to: the folder of the copy has no name, give one");
    if (side < 1 || side > SIDE_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--shrink: give a short side from 1 to %d pixels", SIDE_MAX);
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_image_shrink), &memory));
    abar_image_shrink *s = memory;
    s->ctx = ctx;
    s->side = (int32_t)side;
    s->lock = -1;
    s->progress = own.progress;
    s->user = own.user;
    atomic_init(&s->stop, false);
    abar_status status = prepare(s, &own, to);
    if (status == ABAR_OK)
        *out = s;
    else
        abar_image_shrink_destroy(s);
    return status;
}

void abar_image_shrink_destroy(abar_image_shrink *s)
{
    if (!s) return;
    for (int i = 0; i < s->threads; i++) {
        abar__image_reader_destroy(s->workers[i].reader);
        abar__free(s->ctx, s->workers[i].buffer, s->workers[i].capacity);
    }
    for (int i = 0; s->slots && i < s->threads * BLOCK_EACH; i++) abar__free(s->ctx, s->slots[i].jpeg, s->slots[i].capacity);
    abar__free(s->ctx, s->slots, (size_t)s->threads * BLOCK_EACH * sizeof *s->slots);
    abar__folder_unlock(s->lock);
    abar__images_close(s->index);
    abar__text_free(s->ctx, &s->readme);
    abar__free(s->ctx, s, sizeof *s);
}
