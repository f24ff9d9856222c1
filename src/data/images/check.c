/* Checking the files of an image set: every pixel is decoded, the findings are kept in the index's cache, and files with equal
 * bytes are found by their size and CRC-32. */
#include "data/images/check.h"
#include "base/clock.h"
#include "data/images/crew.h"
#include "data/images/index.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define NAME_MAX_BYTES 4608
#define SAVE_SECONDS 60.0  /* between two writes of the cache: a check that is killed loses no more */
#define HEADER_BYTES 65536 /* nearly all headers are within them */

/* Places count through both parts: training images first. */
typedef struct line {
    int64_t place, other; /* other: of the image with the same bytes */
    char reason[sizeof((abar__image_fault *)0)->text];
} line;

/* The lines with the smallest places, ascending, and how many there were. */
typedef struct line_list {
    line lines[ABAR_IMAGE_LINES_MAX];
    int64_t count;
} line_list;

typedef struct worker {
    abar__image_reader *reader;
    uint8_t *buffer;
    size_t capacity;
    int64_t now;
} worker;

typedef enum ending { GOOD, CHANGED, MEMORY } ending;

struct abar_image_check {
    abar_context *ctx;
    abar_image_source source;
    abar__text strings[3]; /* of the source */
    bool headers;
    abar__images_index *index;
    int64_t count; /* of both parts */
    abar__images_known *known;
    int threads;
    worker workers[ABAR_CREW_MAX];
    atomic_bool stop;
    double save_every, saved_at; /* seconds; save_every 0: at each report of progress */
    bool ran, unsaved;           /* unsaved: the cache cannot be written, and is not tried again before the end */
    abar_image_report report;
    line_list list[3];
    pthread_mutex_t lock;                                      /* over the list of damaged images, and ... */
    ending end;                                                /* ... why the work ended early, ... */
    int64_t ended_at;                                          /* ... at which place */
    char text[2 * NAME_MAX_BYTES + sizeof((line *)0)->reason]; /* of abar_image_check_line */
};

static int part_of(const abar_image_check *c, int64_t place) { return place >= c->report.part[0].images; }
static int64_t index_of(const abar_image_check *c, int64_t place)
{
    return part_of(c, place) ? place - c->report.part[0].images : place;
}

/* ---- one file --------------------------------------------------------------------------------------------------- */

static void list_add(line_list *list, int64_t place, int64_t other, const char *reason)
{
    int64_t n = list->count < ABAR_IMAGE_LINES_MAX ? list->count : ABAR_IMAGE_LINES_MAX;
    list->count++;
    int64_t at = n;
    while (at > 0 && list->lines[at - 1].place > place) at--;
    if (at == ABAR_IMAGE_LINES_MAX) return;
    if (n == ABAR_IMAGE_LINES_MAX) n--;
    memmove(&list->lines[at + 1], &list->lines[at], (size_t)(n - at) * sizeof *list->lines);
    list->lines[at] = (line){.place = place, .other = other};
    snprintf(list->lines[at].reason, sizeof list->lines[at].reason, "%s", reason);
}

static void add_damaged(abar_image_check *c, int64_t place, const char *reason)
{
    pthread_mutex_lock(&c->lock);
    list_add(&c->list[ABAR_IMAGE_DAMAGED], place, 0, reason);
    pthread_mutex_unlock(&c->lock);
}

/* Ends the check. Returns false, for crew.h. */
static bool end(abar_image_check *c, ending why, int64_t place)
{
    pthread_mutex_lock(&c->lock);
    if (c->end == GOOD) c->end = why, c->ended_at = place;
    pthread_mutex_unlock(&c->lock);
    return false;
}

static bool reserve(abar_image_check *c, worker *w, size_t bytes)
{
    if (bytes <= w->capacity) return true;
    const size_t more = bytes + bytes / 2;
    void *memory = abar__alloc_in_thread(c->ctx, more);
    if (!memory) return false;
    abar__free(c->ctx, w->buffer, w->capacity);
    w->buffer = memory;
    w->capacity = more;
    return true;
}

static bool read_all(abar_image_check *c, worker *w, int64_t place);

/* The first n bytes of a file, or all of them, are in the worker's buffer. */
static bool decode(abar_image_check *c, worker *w, int64_t place, size_t n)
{
    abar__images_known known = {.checked = true};
    abar__image_fault fault = {0};
    int64_t warnings = 0;
    if (!c->headers) known.crc = (uint32_t)crc32_z(0, w->buffer, n);
    const bool good = c->headers ? abar__image_look(w->buffer, n, &known.header, &fault)
                                 : abar__image_check(w->reader, w->buffer, n, &known.header, &warnings, &fault);
    const bool whole = n == (size_t)abar__images_size(c->index, part_of(c, place), index_of(c, place));
    if (!good && !whole) return read_all(c, w, place); /* the header may be longer */
    if (!good && fault.memory) return end(c, MEMORY, place);
    known.damaged = !good;
    known.warned = good && warnings > 0;
    if (!good) add_damaged(c, place, fault.text);
    c->known[place] = known;
    if (!c->headers) abar__images_know(c->index, part_of(c, place), index_of(c, place), &known);
    w->now++;
    return true;
}

static bool read_bytes(abar_image_check *c, worker *w, int64_t place, size_t n)
{
    char reason[128] = "";
    if (!reserve(c, w, n)) return end(c, MEMORY, place);
    switch (abar__images_read_start(c->index, part_of(c, place), index_of(c, place), w->buffer, n)) {
    case ABAR_IMAGES_READ: return decode(c, w, place, n);
    case ABAR_IMAGES_CHANGED: return end(c, CHANGED, place);
    case ABAR_IMAGES_FAILED: break;
    }
    const int error = errno;
    if (strerror_r(error, reason, sizeof reason) != 0 || !reason[0]) snprintf(reason, sizeof reason, "error %d", error);
    add_damaged(c, place, reason);
    return true;
}

static bool read_all(abar_image_check *c, worker *w, int64_t place)
{
    const size_t bytes = (size_t)abar__images_size(c->index, part_of(c, place), index_of(c, place));
    if (bytes <= ABAR_IMAGE_BYTES_MAX) return read_bytes(c, w, place, bytes);
    add_damaged(c, place, "has more than 512 MiB");
    return true;
}

static bool check_file(void *user, int number, int64_t place)
{
    abar_image_check *c = user;
    const int part = part_of(c, place);
    const int64_t i = index_of(c, place);
    if (c->known[place].checked && !c->known[place].damaged) {
        const abar__images_found found = abar__images_read_start(c->index, part, i, NULL, 0);
        if (found == ABAR_IMAGES_READ) return true;
        if (found == ABAR_IMAGES_CHANGED) return end(c, CHANGED, place);
    }
    c->known[place] = (abar__images_known){0}; /* damage is not kept with its reason */
    const bool start = c->headers && abar__images_size(c->index, part, i) > HEADER_BYTES;
    return start ? read_bytes(c, &c->workers[number], place, HEADER_BYTES) : read_all(c, &c->workers[number], place);
}

/* ---- what all of them are --------------------------------------------------------------------------------------- */

static abar_status count_classes(abar_image_check *c, int part)
{
    abar_image_part *p = &c->report.part[part];
    const size_t bytes = (size_t)c->report.classes * sizeof(int64_t);
    void *memory;
    ABAR_TRY(abar__alloc(c->ctx, bytes, &memory));
    int64_t *of = memory;
    for (int64_t i = 0; i < p->images; i++) of[abar__images_label(c->index, part, i)]++;
    for (int64_t k = 0; k < c->report.classes; k++) {
        if (k == 0 || of[k] < p->fewest) p->fewest = of[k];
        if (of[k] > p->most) p->most = of[k];
    }
    abar__free(c->ctx, memory, bytes);
    return ABAR_OK;
}

static int by_area(const void *a, const void *b)
{
    const abar_image_size *x = a, *y = b;
    const int64_t p = (int64_t)x->width * x->height, q = (int64_t)y->width * y->height;
    if (p != q) return p < q ? -1 : 1;
    return (x->width > y->width) - (x->width < y->width);
}

/* Formats and sizes. */
static abar_status measure(abar_image_check *c)
{
    abar_image_report *r = &c->report;
    const size_t bytes = (size_t)c->count * sizeof(abar_image_size);
    void *memory;
    int64_t n = 0;
    ABAR_TRY(abar__alloc(c->ctx, bytes, &memory));
    abar_image_size *sizes = memory;
    for (int64_t place = 0; place < c->count; place++) {
        const abar__images_known *k = &c->known[place];
        r->checked += k->checked;
        if (!k->checked || k->damaged) continue;
        const bool jpeg = k->header.format == ABAR_IMAGE_JPEG;
        sizes[n++] = (abar_image_size){k->header.width, k->header.height};
        r->jpeg += jpeg;
        r->png += !jpeg;
        r->warned += k->warned;
        r->progressive += jpeg && k->header.progressive;
        r->gray += jpeg && k->header.components == 1;
        r->cmyk += jpeg && k->header.components == 4;
    }
    qsort(sizes, (size_t)n, sizeof *sizes, by_area);
    if (n > 0) r->smallest = sizes[0], r->median = sizes[n / 2], r->largest = sizes[n - 1];
    abar__free(c->ctx, memory, bytes);
    return ABAR_OK;
}

typedef struct content {
    int64_t bytes, place;
    uint32_t crc;
} content;

static int by_content(const void *a, const void *b)
{
    const content *x = a, *y = b;
    if (x->crc != y->crc) return x->crc < y->crc ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* In a group of equal files the first is a training image, if any is. */
static void compare(abar_image_check *c, const content *all, int64_t n)
{
    for (int64_t first = 0, i = 1; i < n; i++) {
        if (all[i].crc != all[first].crc || all[i].bytes != all[first].bytes)
            first = i;
        else if (part_of(c, all[first].place) == 0)
            list_add(&c->list[part_of(c, all[i].place) ? ABAR_IMAGE_LEAKED : ABAR_IMAGE_REPEATED], all[i].place,
                     all[first].place, "");
    }
}

static abar_status find_copies(abar_image_check *c)
{
    const size_t bytes = (size_t)c->count * sizeof(content);
    void *memory;
    int64_t n = 0;
    ABAR_TRY(abar__alloc(c->ctx, bytes, &memory));
    content *all = memory;
    for (int64_t place = 0; place < c->count; place++)
        if (c->known[place].checked)
            all[n++] = (content){.bytes = abar__images_size(c->index, part_of(c, place), index_of(c, place)),
                                 .place = place,
                                 .crc = c->known[place].crc};
    qsort(all, (size_t)n, sizeof *all, by_content);
    compare(c, all, n);
    abar__free(c->ctx, memory, bytes);
    return ABAR_OK;
}

static abar_status conclude(abar_image_check *c)
{
    ABAR_TRY(measure(c));
    if (!c->headers) ABAR_TRY(find_copies(c));
    for (int i = 0; i < c->threads; i++) c->report.now += c->workers[i].now;
    c->report.damaged = c->list[ABAR_IMAGE_DAMAGED].count;
    c->report.repeated = c->list[ABAR_IMAGE_REPEATED].count;
    c->report.leaked = c->list[ABAR_IMAGE_LEAKED].count;
    return ABAR_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static const char *layout_name(abar__images_layout layout)
{
    static const char *const names[] = {
        [ABAR_LAYOUT_FOLDERS] = "class folders",
        [ABAR_LAYOUT_TINY] = "Tiny ImageNet's folders",
        [ABAR_LAYOUT_ARCHIVES] = "ImageNet's archives",
        [ABAR_LAYOUT_SHARDS] = "tar shards",
    };
    return names[layout];
}

static void close_index(abar_image_check *c)
{
    abar__free(c->ctx, c->known, (size_t)c->count * sizeof *c->known);
    c->known = NULL;
    abar__images_close(c->index);
    c->index = NULL;
}

/* Finds the files, and what is known of them. earlier: NULL, or an index that is no longer true. */
static abar_status open_index(abar_image_check *c, const abar__images_index *earlier)
{
    const abar__images_request request = {
        .folder = c->source.folder, .classes = c->source.classes_file, .val_labels = c->source.labels_file, .rescan = earlier};
    void *memory;
    ABAR_TRY(abar__images_open(c->ctx, &request, &c->index));
    if (earlier) abar__images_learn(c->index, earlier);
    const abar__images_summary *s = abar__images_summary_of(c->index);
    c->count = s->count[0] + s->count[1];
    c->report = (abar_image_report){
        .layout = layout_name(s->layout),
        .classes = s->classes,
        .part = {{.images = s->count[0], .bytes = s->bytes[0]}, {.images = s->count[1], .bytes = s->bytes[1]}},
        .untested = s->untested,
        .ignored = s->ignored,
        .shrunk = s->shrunk};
    ABAR_TRY(abar__alloc(c->ctx, (size_t)c->count * sizeof *c->known, &memory));
    c->known = memory;
    for (int64_t place = 0; place < c->count; place++)
        c->known[place] = abar__images_known_of(c->index, part_of(c, place), index_of(c, place));
    ABAR_TRY(count_classes(c, 0));
    return count_classes(c, 1);
}

static abar_status open_index_again(abar_image_check *c)
{
    abar__images_index *earlier = c->index;
    c->index = NULL;
    close_index(c);
    const abar_status status = open_index(c, earlier);
    abar__images_close(earlier);
    return status;
}

static void save_in_time(abar_image_check *c)
{
    bool written;
    if (c->headers || c->unsaved || abar__seconds() - c->saved_at < c->save_every) return;
    c->unsaved = abar__images_keep(c->index, &written) < 0 || !written;
    c->saved_at = abar__seconds();
}

static void forward_progress(void *user, int64_t done)
{
    abar_image_check *c = user;
    save_in_time(c);
    if (c->source.progress) c->source.progress(c->source.user, done, c->count);
}

static void work_through(abar_image_check *c)
{
    const abar__crew_job job = {.threads = c->threads,
                                .count = c->count,
                                .work = check_file,
                                .progress = forward_progress,
                                .user = c,
                                .stop = &c->stop};
    memset(c->list, 0, sizeof c->list);
    for (int i = 0; i < c->threads; i++) c->workers[i].now = 0;
    c->end = GOOD;
    c->saved_at = abar__seconds();
    abar__crew_run(&job);
}

/* A file may have been replaced in place, which its folder does not show: the index is then made anew, once. */
static abar_status work_through_twice(abar_image_check *c)
{
    char name[NAME_MAX_BYTES];
    work_through(c);
    if (c->end == CHANGED) {
        ABAR_TRY(open_index_again(c));
        if (!c->headers) ABAR_TRY(abar__images_keep(c->index, NULL)); /* the scan has replaced it, without what was known */
        work_through(c);
    }
    if (c->end == GOOD) return ABAR_OK;
    if (!c->headers) (void)abar__images_keep(c->index, NULL); /* the next check continues here */
    if (c->end == MEMORY)
        return abar__fail(c->ctx, ABAR_E_MEMORY, "memory: too little to decode the images, use fewer --workers");
    abar__images_name(c->index, part_of(c, c->ended_at), index_of(c, c->ended_at), name, sizeof name);
    return abar__fail(c->ctx, ABAR_E_IO, "%s: changes while it is read, wait until nobody writes to the data set", name);
}

abar_status abar_image_check_run(abar_image_check *c)
{
    const double began = abar__seconds();
    if (!c->index || c->ran) return abar__fail(c->ctx, ABAR_E_STATE, "check: it has run before, make another one");
    c->ran = true;
    ABAR_TRY(work_through_twice(c));
    c->report.seconds = abar__seconds() - began;
    if (!c->headers) ABAR_TRY(abar__images_keep(c->index, NULL));
    ABAR_TRY(conclude(c));
    return atomic_load(&c->stop) ? ABAR_STOPPED : ABAR_OK;
}

void abar__image_check_save_every(abar_image_check *c, double interval) { c->save_every = interval; }

void abar_image_check_stop(abar_image_check *c) { atomic_store(&c->stop, true); }

const abar_image_report *abar_image_check_report(const abar_image_check *c) { return &c->report; }

static void name_of(const abar_image_check *c, int64_t place, char *out)
{
    abar__images_name(c->index, part_of(c, place), index_of(c, place), out, NAME_MAX_BYTES);
}

const char *abar_image_check_line(abar_image_check *c, abar_image_line kind, int64_t i)
{
    const line_list *list = &c->list[kind];
    if (!c->index || i < 0 || i >= list->count || i >= ABAR_IMAGE_LINES_MAX) return NULL;
    const line *l = &list->lines[i];
    name_of(c, l->place, c->text);
    char *rest = c->text + strlen(c->text);
    if (kind == ABAR_IMAGE_DAMAGED) {
        snprintf(rest, sizeof l->reason + 2, ": %s", l->reason);
    } else {
        memcpy(rest, " = ", 3);
        name_of(c, l->other, rest + 3);
    }
    return c->text;
}

/* ---- creating --------------------------------------------------------------------------------------------------- */

static abar_status keep_text(abar_image_check *c, int i, const char **text)
{
    if (!*text) return ABAR_OK;
    ABAR_TRY(abar__text_append(c->ctx, &c->strings[i], *text, strlen(*text)));
    *text = c->strings[i].data;
    return ABAR_OK;
}

static abar_status prepare(abar_image_check *c)
{
    ABAR_TRY(keep_text(c, 0, &c->source.folder));
    ABAR_TRY(keep_text(c, 1, &c->source.classes_file));
    ABAR_TRY(keep_text(c, 2, &c->source.labels_file));
    c->threads = abar__crew_threads(c->source.threads);
    ABAR_TRY(open_index(c, NULL));
    for (int i = 0; i < c->threads; i++) ABAR_TRY(abar__image_reader_create(c->ctx, &c->workers[i].reader));
    return ABAR_OK;
}

abar_status abar_image_check_create(abar_context *ctx, const abar_image_source *source, bool headers, abar_image_check **out)
{
    abar_image_source own;
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__struct_read(ctx, "abar_image_source", source, &own, sizeof own));
    if (!own.folder || !own.folder[0]) return abar__fail(ctx, ABAR_E_ARGUMENT, "image folder: it has no name, give one");
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_image_check), &memory));
    abar_image_check *c = memory;
    c->ctx = ctx;
    c->source = own;
    c->headers = headers;
    c->save_every = SAVE_SECONDS;
    atomic_init(&c->stop, false);
    pthread_mutex_init(&c->lock, NULL);
    abar_status status = prepare(c);
    if (status == ABAR_OK)
        *out = c;
    else
        abar_image_check_destroy(c);
    return status;
}

void abar_image_check_destroy(abar_image_check *c)
{
    if (!c) return;
    for (int i = 0; i < c->threads; i++) {
        abar__image_reader_destroy(c->workers[i].reader);
        abar__free(c->ctx, c->workers[i].buffer, c->workers[i].capacity);
    }
    close_index(c);
    for (int i = 0; i < 3; i++) abar__text_free(c->ctx, &c->strings[i]);
    pthread_mutex_destroy(&c->lock);
    abar__free(c->ctx, c, sizeof *c);
}
