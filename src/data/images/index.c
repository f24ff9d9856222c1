/* An index: opened from the cache or by a scan, limited, asked. */
#include "data/images/index_impl.h"
#include "base/hash.h"
#include "io/files_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- printing ------------------------------------------------------------------------------------------------ */

/* The bytes of the printable character at p: ASCII, or well-formed UTF-8 from U+00A0 on. 0: none. */
static size_t printable(const uint8_t *p)
{
    if (p[0] >= 0x20 && p[0] < 0x7f) return 1;
    const size_t n = p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    const bool control = n == 2 && p[0] == 0xc2 && p[1] < 0xa0;
    const bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    const bool surrogate = p[0] == 0xed && p[1] >= 0xa0, beyond = p[0] == 0xf4 && p[1] >= 0x90;
    const bool separator = p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9); /* of lines, of paragraphs */
    return control || overlong || surrogate || beyond || (n == 3 && separator) ? 0 : n;
}

/* Goes past one character; returns how many bytes it takes when it is printed. */
static size_t step(const uint8_t **p)
{
    const size_t bytes = printable(*p);
    *p += bytes ? bytes : 1;
    return bytes ? bytes : 4;
}

/* Prints one character, and a zero behind it; returns its bytes. */
static size_t put(const uint8_t **p, char *out)
{
    const uint8_t *from = *p;
    const size_t bytes = step(p);
    if (printable(from))
        memcpy(out, from, bytes);
    else
        snprintf(out, bytes + 1, "\\x%02x", *from);
    out[bytes] = '\0';
    return bytes;
}

void abar__images_escape(const char *path, char *out, size_t n)
{
    const uint8_t *p = (const uint8_t *)path;
    size_t needed = 1, used = 0; /* needed: for what is left, with its zero */
    if (n == 0) return;
    out[0] = '\0';
    for (const uint8_t *q = p; *q;) needed += step(&q);
    if (needed > n) { /* the beginning, an archive perhaps, and as much of the end as fits */
        if (n < sizeof "...") return;
        for (const uint8_t *q = p; *p && used + step(&q) <= n / 3; q = p) {
            const size_t bytes = put(&p, out + used);
            used += bytes;
            needed -= bytes;
        }
        while (*p && used + 3 + needed > n) needed -= step(&p);
        used += (size_t)snprintf(out + used, n - used, "...");
    }
    while (*p) used += put(&p, out + used);
}

/* ---- the fingerprint ----------------------------------------------------------------------------------------- */

static uint64_t hash_string(uint64_t hash, const char *text) { return abar__hash(hash, text, strlen(text) + 1); }

static uint64_t hash_number(uint64_t hash, uint64_t number)
{
    uint8_t bytes[8]; /* little-endian on every machine */
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> 8 * i);
    return abar__hash(hash, bytes, sizeof bytes);
}

static uint64_t fingerprint_of(const abar__images_index *index)
{
    uint64_t hash = ABAR_HASH_START;
    const abar__class_row *classes = index->section[ABAR_SECTION_CLASSES];
    for (int64_t c = 0; c < index->summary.classes; c++) hash = hash_string(hash, abar__images_string(index, classes[c].name));
    for (int part = 0; part < 2; part++) {
        hash = hash_number(hash, (uint64_t)index->summary.count[part]);
        for (int64_t i = 0; i < index->summary.count[part]; i++) {
            const abar__sample *s = abar__images_sample(index, part, index->chosen[part] ? index->chosen[part][i] : i);
            hash = hash_string(hash, abar__images_string(index, abar__images_place(index, s->place)->path));
            hash = hash_string(hash, abar__images_string(index, s->name));
            hash = hash_number(hash, s->size);
            hash = hash_number(hash, (uint64_t)s->label);
        }
    }
    return hash;
}

/* ---- limits -------------------------------------------------------------------------------------------------- */

/* The samples of all classes if at most r of each are taken. */
static int64_t taken(const int64_t *counts, int64_t classes, int64_t r)
{
    int64_t sum = 0;
    for (int64_t c = 0; c < classes; c++) sum += counts[c] < r ? counts[c] : r;
    return sum;
}

/* As many rounds over all classes as fit in limit, and then one of each of the first that have more. */
void abar__images_share_limit(int64_t *counts, int64_t classes, int64_t limit)
{
    int64_t low = 0, high = limit; /* low rounds fit, high + 1 do not, or need not */
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (taken(counts, classes, middle) <= limit)
            low = middle;
        else
            high = middle - 1;
    }
    int64_t left = limit - taken(counts, classes, low);
    for (int64_t c = 0; c < classes; c++) {
        const bool one_more = counts[c] > low && left > 0;
        left -= one_more;
        if (counts[c] > low) counts[c] = low + one_more;
    }
}

static abar_status apply_limit(abar__images_index *index, int part, int64_t limit)
{
    const int64_t all = abar__images_all(index, part), classes = index->summary.classes;
    void *chosen, *memory;
    index->summary.count[part] = all;
    if (limit <= 0 || limit >= all) return ABAR_OK;
    ABAR_TRY(abar__alloc(index->ctx, (size_t)classes * sizeof(int64_t), &memory));
    int64_t *counts = memory;
    for (int64_t i = 0; i < all; i++) counts[abar__images_sample(index, part, i)->label]++;
    abar__images_share_limit(counts, classes, limit);
    index->chosen_bytes[part] = (size_t)limit * sizeof(int32_t);
    const abar_status status = abar__alloc(index->ctx, index->chosen_bytes[part], &chosen);
    if (status >= 0) {
        index->chosen[part] = chosen;
        index->summary.count[part] = limit;
        for (int64_t i = 0, n = 0; i < all && n < limit; i++)
            if (counts[abar__images_sample(index, part, i)->label]-- > 0) index->chosen[part][n++] = (int32_t)i;
    }
    abar__free(index->ctx, memory, (size_t)classes * sizeof(int64_t));
    return status;
}

static void sum_bytes(abar__images_index *index, int part)
{
    index->summary.bytes[part] = index->head.file_bytes[part];
    if (!index->chosen[part]) return;
    index->summary.bytes[part] = 0;
    for (int64_t i = 0; i < index->summary.count[part]; i++) index->summary.bytes[part] += abar__images_size(index, part, i);
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

/* The texts of a scan become the sections, with space for what checks will find. */
static abar_status finish_scan(abar__images_index *index)
{
    for (int part = 0; part < 2; part++) {
        const size_t count = index->text[ABAR_SECTION_SAMPLES + part].length / sizeof(abar__sample);
        abar__text *facts = &index->text[ABAR_SECTION_FACTS + part];
        void *memory;
        ABAR_TRY(abar__alloc(index->ctx, count * sizeof(abar__fact), &memory));
        *facts = (abar__text){.data = memory, .length = count * sizeof(abar__fact), .capacity = count * sizeof(abar__fact)};
    }
    for (int k = 0; k < ABAR_SECTIONS; k++) {
        index->section[k] = index->text[k].data;
        index->head.bytes[k] = index->text[k].length;
    }
    abar__images_stamp(&index->head);
    return ABAR_OK;
}

/* The absolute path of a folder or file; "" stays "". flag: what gave it, for the text of a failure. */
static abar_status real_path(abar_context *ctx, const char *flag, const char *path, char out[ABAR_IMAGES_PATH_MAX])
{
    *out = '\0';
    if (!path || !*path) return ABAR_OK;
    char shown[660], *real = realpath(path, NULL);
    int error = real ? 0 : errno;
    if (real && strlen(real) >= ABAR_IMAGES_PATH_MAX) error = ENAMETOOLONG;
    if (error == 0) memcpy(out, real, strlen(real) + 1);
    free(real);
    if (error == 0) return ABAR_OK;
    const int n = snprintf(shown, sizeof shown, "%s", flag);
    abar__images_escape(path, shown + n, sizeof shown - (size_t)n);
    return abar__fail_errno(ctx, shown, error);
}

static abar_status fill(abar__images_index *index, const abar__images_request *request)
{
    char folder[ABAR_IMAGES_PATH_MAX], classes[ABAR_IMAGES_PATH_MAX], labels[ABAR_IMAGES_PATH_MAX], shown[640];
    if (!request->folder || !*request->folder)
        return abar__fail(index->ctx, ABAR_E_ARGUMENT, "image folder: none is named, write imagefolder:DIR");
    ABAR_TRY(real_path(index->ctx, "", request->folder, folder));
    ABAR_TRY(real_path(index->ctx, "--classes ", request->classes, classes));
    ABAR_TRY(real_path(index->ctx, "--val-labels ", request->val_labels, labels));
    index->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (index->folder < 0) {
        const int error = errno;
        abar__images_escape(folder, shown, sizeof shown);
        if (error == ENOTDIR)
            return abar__fail(index->ctx, ABAR_E_NOT_FOUND, "%s: is a file, give the folder that holds train/ and val/", shown);
        return abar__fail_errno(index->ctx, shown, error);
    }
    abar_status status = request->rescan ? ABAR_E_FORMAT : abar__images_cache_read(index, folder, classes, labels);
    if (status >= 0 || status == ABAR_E_MEMORY) {
        index->summary.from_cache = true;
        return status;
    }
    ABAR_TRY(abar__images_scan(index, folder, classes, labels));
    return finish_scan(index);
}

static abar_status summarise(abar__images_index *index, const abar__images_request *request)
{
    abar__images_summary *sum = &index->summary;
    const abar__images_head *head = &index->head;
    sum->layout = (abar__images_layout)head->layout;
    sum->classes = (int64_t)(head->bytes[ABAR_SECTION_CLASSES] / sizeof(abar__class_row));
    sum->ignored = head->ignored;
    sum->untested = head->untested;
    sum->shrunk = head->shrunk;
    for (int part = 0; part < 2; part++) {
        ABAR_TRY(apply_limit(index, part, request->limit[part]));
        sum_bytes(index, part);
    }
    return ABAR_OK;
}

/* The cache holds the whole set, whatever the limits are. */
static void keep_scan(abar__images_index *index)
{
    abar__images_index whole = *index;
    for (int part = 0; part < 2; part++) {
        whole.chosen[part] = NULL;
        whole.summary.count[part] = abar__images_all(index, part);
    }
    index->head.fingerprint = fingerprint_of(&whole);
    if (abar__images_trusted(index)) (void)abar__images_cache_write(index);
}

abar_status abar__images_open(abar_context *ctx, const abar__images_request *request, abar__images_index **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar__images_index), &memory));
    abar__images_index *index = memory;
    index->ctx = ctx;
    index->folder = -1;
    pthread_mutex_init(&index->lock, NULL);
    abar_status status = fill(index, request);
    if (status >= 0) status = summarise(index, request);
    if (status >= 0 && !index->summary.from_cache) keep_scan(index);
    if (status >= 0) status = abar__images_open_archives(index);
    if (status < 0) {
        abar__images_close(index);
        return status;
    }
    const bool limited = index->chosen[0] || index->chosen[1];
    index->summary.fingerprint = limited ? fingerprint_of(index) : index->head.fingerprint;
    if (index->summary.untested > 0) {
        char shown[640];
        abar__images_escape(request->folder, shown, sizeof shown);
        abar__log(ctx, ABAR_LOG_INFO, "%s: classes without images in the test part: %" PRId64, shown, index->summary.untested);
    }
    *out = index;
    return ABAR_OK;
}

static size_t places_of(const abar__images_index *index)
{
    return (size_t)(index->head.bytes[ABAR_SECTION_PLACES] / sizeof(abar__place));
}

void abar__images_close(abar__images_index *index)
{
    if (!index) return;
    abar_context *ctx = index->ctx;
    for (size_t i = 0; index->archives && i < places_of(index); i++)
        if (index->archives[i] >= 0) close(index->archives[i]);
    abar__free(ctx, index->archives, places_of(index) * sizeof *index->archives);
    for (int k = 0; k < ABAR_SECTIONS; k++) abar__text_free(ctx, &index->text[k]);
    for (int part = 0; part < 2; part++) abar__free(ctx, index->chosen[part], index->chosen_bytes[part]);
    abar__free(ctx, index->block, index->block_bytes);
    if (index->folder >= 0) close(index->folder);
    pthread_mutex_destroy(&index->lock);
    abar__free(ctx, index, sizeof *index);
}

/* ---- questions ----------------------------------------------------------------------------------------------- */

const abar__images_summary *abar__images_summary_of(const abar__images_index *index) { return &index->summary; }

size_t abar__images_index_bytes(const abar__images_index *index)
{
    size_t bytes = sizeof *index + index->block_bytes + index->chosen_bytes[0] + index->chosen_bytes[1];
    for (int k = 0; k < ABAR_SECTIONS; k++) bytes += index->text[k].capacity;
    return bytes + (index->archives ? places_of(index) * sizeof *index->archives : 0);
}

const char *abar__images_class(const abar__images_index *index, int64_t label)
{
    return abar__images_string(index, ((const abar__class_row *)index->section[ABAR_SECTION_CLASSES])[label].name);
}

const char *abar__images_readable(const abar__images_index *index, int64_t label)
{
    const uint32_t at = ((const abar__class_row *)index->section[ABAR_SECTION_CLASSES])[label].readable;
    return at ? abar__images_string(index, at) : NULL;
}

static int64_t place_in_part(const abar__images_index *index, int part, int64_t i)
{
    return index->chosen[part] ? index->chosen[part][i] : i;
}

int32_t abar__images_label(const abar__images_index *index, int part, int64_t i)
{
    return abar__images_sample(index, part, place_in_part(index, part, i))->label;
}

int64_t abar__images_size(const abar__images_index *index, int part, int64_t i)
{
    return abar__images_sample(index, part, place_in_part(index, part, i))->size;
}

void abar__images_name(const abar__images_index *index, int part, int64_t i, char *out, size_t n)
{
    char path[3 * ABAR_IMAGES_PATH_MAX];
    const abar__sample *sample = abar__images_sample(index, part, place_in_part(index, part, i));
    snprintf(path, sizeof path, "%s/%s/%s", abar__images_string(index, index->head.folder),
             abar__images_string(index, abar__images_place(index, sample->place)->path),
             abar__images_string(index, sample->name));
    abar__images_escape(path, out, n);
}

/* ---- what checks found --------------------------------------------------------------------------------------- */

static abar__fact *fact_at(const abar__images_index *index, int part, int64_t i)
{
    return (abar__fact *)index->section[ABAR_SECTION_FACTS + part] + place_in_part(index, part, i);
}

void abar__images_know(abar__images_index *index, int part, int64_t i, const abar__images_known *known)
{
    const abar__fact fact = {
        .width = (uint16_t)known->header.width,
        .height = (uint16_t)known->header.height,
        .crc = known->crc,
        .bits = (uint8_t)((known->checked ? ABAR_FACT_CHECKED : 0) | (known->damaged ? ABAR_FACT_DAMAGED : 0) |
                          (known->header.progressive ? ABAR_FACT_PROGRESSIVE : 0) | (known->warned ? ABAR_FACT_WARNED : 0)),
        .format = (uint8_t)known->header.format,
        .components = (uint8_t)known->header.components,
    };
    pthread_mutex_lock(&index->lock);
    *fact_at(index, part, i) = fact;
    pthread_mutex_unlock(&index->lock);
}

abar__images_known abar__images_known_of(const abar__images_index *index, int part, int64_t i)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&index->lock;
    pthread_mutex_lock(lock);
    const abar__fact fact = *fact_at(index, part, i);
    pthread_mutex_unlock(lock);
    return (abar__images_known){
        .checked = fact.bits & ABAR_FACT_CHECKED,
        .damaged = fact.bits & ABAR_FACT_DAMAGED,
        .warned = fact.bits & ABAR_FACT_WARNED,
        .header = {.format = (abar__image_format)fact.format,
                   .width = fact.width,
                   .height = fact.height,
                   .components = fact.components,
                   .progressive = fact.bits & ABAR_FACT_PROGRESSIVE},
        .crc = fact.crc,
    };
}

void abar__images_largest(const abar__images_index *index, int64_t *bytes, int32_t *width, int32_t *height)
{
    bool all = true;
    *bytes = *width = *height = 0;
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < index->summary.count[part]; i++) {
            const int64_t size = abar__images_size(index, part, i);
            const abar__images_known known = abar__images_known_of(index, part, i);
            if (size > *bytes) *bytes = size;
            if (!known.damaged && known.header.width > *width) *width = known.header.width;
            if (!known.damaged && known.header.height > *height) *height = known.header.height;
            all = all && known.checked;
        }
    if (!all) *width = *height = 0;
}

static bool is_same_place(const abar__images_index *a, uint32_t i, const abar__images_index *b, uint32_t k)
{
    const abar__place *p = abar__images_place(a, i), *q = abar__images_place(b, k);
    if (p->kind != q->kind || strcmp(abar__images_string(a, p->path), abar__images_string(b, q->path)) != 0) return false;
    if (p->kind == ABAR_PLACE_INNER) return is_same_place(a, p->parent, b, q->parent);
    return p->device == q->device && p->inode == q->inode && p->modified == q->modified && p->size == q->size;
}

void abar__images_learn(abar__images_index *index, const abar__images_index *earlier)
{
    for (int part = 0; part < 2; part++) {
        abar__fact *to = index->section[ABAR_SECTION_FACTS + part];
        const abar__fact *from = earlier->section[ABAR_SECTION_FACTS + part];
        for (int64_t i = 0; i < abar__images_all(index, part) && i < abar__images_all(earlier, part); i++) {
            const abar__sample *now = abar__images_sample(index, part, i), *was = abar__images_sample(earlier, part, i);
            if (now->size == was->size && is_same_place(index, now->place, earlier, was->place) &&
                strcmp(abar__images_string(index, now->name), abar__images_string(earlier, was->name)) == 0)
                to[i] = from[i];
        }
    }
}

/* A scan that is trusted now, of the same files, takes over what was found. */
static abar_status keep_by_scan(abar__images_index *index, bool *written)
{
    abar__images_index *again;
    const abar__images_request request = {.folder = abar__images_string(index, index->head.folder),
                                          .classes = abar__images_string(index, index->head.classes_file),
                                          .val_labels = abar__images_string(index, index->head.labels_file),
                                          .rescan = true};
    ABAR_TRY(abar__images_open(index->ctx, &request, &again));
    if (again->head.fingerprint == index->head.fingerprint && abar__images_trusted(again)) {
        pthread_mutex_lock(&index->lock);
        for (int k = ABAR_SECTION_FACTS; k < ABAR_SECTION_FACTS + 2; k++)
            memcpy(again->section[k], index->section[k], (size_t)index->head.bytes[k]);
        pthread_mutex_unlock(&index->lock);
        *written = abar__images_cache_write(again);
    }
    abar__images_close(again);
    return ABAR_OK;
}

abar_status abar__images_keep(abar__images_index *index, bool *written)
{
    bool unused;
    if (!written) written = &unused;
    *written = false;
    if (!abar__images_trusted(index)) return keep_by_scan(index, written);
    *written = abar__images_cache_write(index);
    return ABAR_OK;
}
