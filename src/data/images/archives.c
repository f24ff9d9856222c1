/* Images in tar archives: ImageNet's official ones, and shards. */
#include "data/images/scan.h"
#include "data/images/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An archive that is being indexed. */
typedef struct archive {
    const char *path; /* relative */
    char label[640];
    uint32_t place;
    uint64_t bytes;
    int fd;
} archive;

static abar_status open_archive(abar__scan *s, const char *path, archive *out)
{
    struct stat info;
    out->path = path;
    out->fd = -1;
    abar__scan_path(s, path, "", out->label, sizeof out->label);
    ABAR_TRY(abar__scan_add_file(s, ABAR_PLACE_ARCHIVE, path, &out->place, &info));
    out->bytes = (uint64_t)info.st_size;
    out->fd = openat(s->index->folder, path, O_RDONLY | O_CLOEXEC);
    return out->fd < 0 ? abar__scan_fail_errno(s, path, "", errno) : ABAR_OK;
}

static void close_archive(archive *a)
{
    if (a->fd >= 0) close(a->fd);
}

/* path: of the archive the member is in. */
static abar_status add_image(abar__scan *s, const char *path, uint32_t place, const abar__tar_member *m, int32_t label)
{
    abar__found found = {.place = place, .offset = m->offset, .size = (uint32_t)m->size, .label = label};
    if (m->size > UINT32_MAX)
        return abar__scan_fail(s, ABAR_E_UNSUPPORTED, path, m->name, "has more than 4 GiB, which no image has, remove it");
    ABAR_TRY(abar__scan_string(s, m->name, strlen(m->name), &found.name));
    return abar__scan_add_found(s, &found);
}

/* ---- the official archives ----------------------------------------------------------------------------------- */

/* All images of an archive with one label. */
static abar_status read_images(abar__scan *s, abar__tar *tar, const char *path, uint32_t place, int32_t label)
{
    for (;;) {
        abar__tar_member m;
        bool more;
        ABAR_TRY(abar__tar_next(tar, &m, &more));
        if (!more) return ABAR_OK;
        const abar__name_kind kind = m.regular ? abar__name_kind_of(abar__last_component(m.name)) : ABAR_NAME_OTHER;
        if (kind == ABAR_NAME_REFUSED) return abar__scan_refuse(s, path, m.name);
        if (kind == ABAR_NAME_IMAGE)
            ABAR_TRY(add_image(s, path, place, &m, label));
        else
            s->index->head.ignored++;
    }
}

/* A class of the training archive. */
typedef struct inner {
    const char *class;
    uint64_t offset, size;
} inner;

typedef struct inner_list {
    abar__text names, rows; /* rows: inner */
    int64_t count;
} inner_list;

static int compare_inner(const void *a, const void *b) { return strcmp(((const inner *)a)->class, ((const inner *)b)->class); }

static abar_status find_inner(abar__scan *s, const archive *a, abar__tar *tar, inner_list *out)
{
    for (;;) {
        abar__tar_member m;
        bool more;
        ABAR_TRY(abar__tar_next(tar, &m, &more));
        if (!more) break;
        const char *name = abar__last_component(m.name);
        if (!m.regular || !abar__name_is_tar(name)) {
            s->index->head.ignored++;
            continue;
        }
        const inner row = {.offset = m.offset, .size = m.size};
        ABAR_TRY(abar__text_append(s->ctx, &out->names, name, strlen(name) - strlen(".tar")));
        ABAR_TRY(abar__text_append(s->ctx, &out->names, "", 1));
        ABAR_TRY(abar__text_append(s->ctx, &out->rows, &row, sizeof row));
        out->count++;
    }
    inner *rows = (inner *)out->rows.data;
    const char *name = out->names.data;
    for (int64_t i = 0; i < out->count; i++, name += strlen(name) + 1) rows[i].class = name;
    if (out->count > 1) qsort(rows, (size_t)out->count, sizeof *rows, compare_inner);
    for (int64_t i = 1; i < out->count; i++)
        if (strcmp(rows[i].class, rows[i - 1].class) == 0)
            return abar__scan_fail(s, ABAR_E_FORMAT, a->path, rows[i].class,
                                   "is in the archive twice, replace it with a fresh copy");
    if (out->count > 0) return ABAR_OK;
    return abar__scan_fail(s, ABAR_E_FORMAT, a->path, "", "has no tar of a class in it, replace it with a fresh copy");
}

static abar_status set_inner_classes(abar__scan *s, const inner_list *list)
{
    void *memory;
    const size_t bytes = (size_t)list->count * sizeof(const char *);
    ABAR_TRY(abar__alloc(s->ctx, bytes, &memory));
    const char **names = memory;
    for (int64_t i = 0; i < list->count; i++) names[i] = ((const inner *)list->rows.data)[i].class;
    const abar_status status = abar__scan_set_classes(s, names, list->count);
    abar__free(s->ctx, memory, bytes);
    return status;
}

static abar_status read_inner(abar__scan *s, const archive *a, const inner *row, int32_t label)
{
    char path[ABAR_IMAGES_PATH_MAX], name[ABAR_IMAGES_PATH_MAX + 8], full[640];
    const struct stat none = {0};
    uint32_t place;
    abar__tar tar;
    snprintf(name, sizeof name, "%s.tar", row->class);
    ABAR_TRY(abar__scan_join(s, a->path, name, path));
    ABAR_TRY(abar__scan_add_place(s, ABAR_PLACE_INNER, path, a->place, &none, &place));
    abar__scan_path(s, path, "", full, sizeof full);
    abar__tar_open(&tar, s->ctx, full, a->fd, row->offset, row->offset + row->size);
    const abar_status status = read_images(s, &tar, path, place, label);
    abar__tar_close(&tar);
    ABAR_TRY(status);
    if (abar__scan_found_count(s) == 0)
        return abar__scan_fail(s, ABAR_E_NOT_FOUND, path, "", "has no images, replace the archive with a fresh copy");
    return ABAR_OK;
}

static abar_status read_official_train(abar__scan *s, const archive *a, inner_list *list)
{
    abar__tar tar;
    abar__tar_open(&tar, s->ctx, a->label, a->fd, 0, a->bytes);
    const abar_status status = find_inner(s, a, &tar, list);
    abar__tar_close(&tar);
    ABAR_TRY(status);
    ABAR_TRY(set_inner_classes(s, list));
    for (int64_t c = 0; c < abar__scan_classes(s); c++) {
        const inner key = {.class = abar__scan_class(s, c)};
        const inner *row = bsearch(&key, list->rows.data, (size_t)list->count, sizeof key, compare_inner);
        ABAR_TRY(read_inner(s, a, row, (int32_t)c));
        ABAR_TRY(abar__scan_emit(s, 0, false));
    }
    return ABAR_OK;
}

static abar_status read_official_val(abar__scan *s, const archive *a, const char *labels)
{
    abar__tar tar;
    abar__tar_open(&tar, s->ctx, a->label, a->fd, 0, a->bytes);
    const abar_status status = read_images(s, &tar, a->path, a->place, -1);
    abar__tar_close(&tar);
    ABAR_TRY(status);
    ABAR_TRY(abar__scan_apply_labels(s, labels));
    return abar__scan_emit(s, 1, false);
}

abar_status abar__scan_official(abar__scan *s, const abar__listing *root, const abar__listing *val)
{
    archive a;
    inner_list list = {0};
    char labels[ABAR_IMAGES_PATH_MAX];
    ABAR_TRY(abar__scan_find_labels(s, root, val, labels));
    if (!*labels)
        return abar__scan_fail(
            s, ABAR_E_NOT_FOUND, ABAR_IMAGENET_VAL, "",
            "needs a label file such as imagenet_2012_validation_synset_labels.txt beside it, see --val-labels");
    abar_status status = open_archive(s, ABAR_IMAGENET_TRAIN, &a);
    if (status >= 0) status = read_official_train(s, &a, &list);
    close_archive(&a);
    abar__text_free(s->ctx, &list.names);
    abar__text_free(s->ctx, &list.rows);
    ABAR_TRY(status);
    status = open_archive(s, ABAR_IMAGENET_VAL, &a);
    if (status >= 0) status = read_official_val(s, &a, labels);
    close_archive(&a);
    return status;
}

/* ---- shards -------------------------------------------------------------------------------------------------- */

/* The members with one key: an image and its class, in any order. */
typedef struct sample {
    abar__text key, image; /* names; empty: none yet */
    int64_t label;         /* -1: none yet */
    uint64_t offset, size;
} sample;

/* KEY and what follows it: NAME up to the first dot of its last component. */
static size_t key_of(const char *name)
{
    const char *last = abar__last_component(name), *dot = strchr(last, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

static abar_status finish_sample(abar__scan *s, const archive *a, sample *p)
{
    abar_status status = ABAR_OK;
    if (p->image.length > 0 && p->label < 0)
        return abar__scan_fail(s, ABAR_E_FORMAT, a->path, p->image.data,
                               "has no .cls with its class next to it, make the shard anew");
    if (p->image.length == 0 && p->label >= 0)
        return abar__scan_fail(s, ABAR_E_FORMAT, a->path, p->key.data,
                               "has a .cls but no image next to it, make the shard anew");
    if (p->image.length > 0) {
        const abar__tar_member m = {p->image.data, p->offset, p->size, true};
        status = add_image(s, a->path, a->place, &m, (int32_t)p->label);
    }
    p->key.length = p->image.length = 0;
    p->label = -1;
    return status;
}

/* An ASCII integer with white space around it. */
static abar_status read_class(abar__scan *s, const archive *a, abar__tar *tar, const abar__tar_member *m, int64_t *out)
{
    char text[32] = "";
    char *end = text;
    const size_t n = m->size < sizeof text - 1 ? (size_t)m->size : sizeof text - 1;
    ABAR_TRY(abar__tar_read(tar, m, text, n));
    const bool digits = n == m->size && strspn(text, "0123456789 \t\r\n") == n;
    errno = 0;
    const long value = digits ? strtol(text, &end, 10) : -1;
    if (end == text || end[strspn(end, " \t\r\n")] || errno != 0 || value < 0 || value >= INT32_MAX)
        return abar__scan_fail(s, ABAR_E_FORMAT, a->path, m->name, "is no class number, write a whole number from 0 into it");
    *out = value;
    return ABAR_OK;
}

static abar_status take_member(abar__scan *s, const archive *a, abar__tar *tar, const abar__tar_member *m, sample *p)
{
    const char *last = abar__last_component(m->name);
    const size_t key = key_of(m->name);
    const char *rest = m->name + key;
    if (!m->regular || *last == '.' || !*last) {
        s->index->head.ignored++;
        return ABAR_OK;
    }
    if (p->key.length != key || memcmp(p->key.data, m->name, key) != 0) {
        ABAR_TRY(finish_sample(s, a, p));
        ABAR_TRY(abar__text_append(s->ctx, &p->key, m->name, key));
    }
    if (strcmp(rest, ".cls") == 0 && p->label >= 0)
        return abar__scan_fail(s, ABAR_E_FORMAT, a->path, m->name, "is in the shard twice, make it anew");
    if (strcmp(rest, ".cls") == 0) return read_class(s, a, tar, m, &p->label);
    /* KEY.mask.png and the like are not the image */
    const abar__name_kind kind = *rest && !strchr(rest + 1, '.') ? abar__name_kind_of(last) : ABAR_NAME_OTHER;
    if (kind == ABAR_NAME_REFUSED) return abar__scan_refuse(s, a->path, m->name);
    if (kind == ABAR_NAME_OTHER) {
        s->index->head.ignored++;
        return ABAR_OK;
    }
    if (p->image.length > 0)
        return abar__scan_fail(s, ABAR_E_FORMAT, a->path, m->name, "is a second image with the same key, make the shard anew");
    p->offset = m->offset;
    p->size = m->size;
    return abar__text_append(s->ctx, &p->image, m->name, strlen(m->name));
}

static abar_status read_members(abar__scan *s, const archive *a, abar__tar *tar, sample *p)
{
    for (;;) {
        abar__tar_member m;
        bool more;
        ABAR_TRY(abar__tar_next(tar, &m, &more));
        if (!more) return finish_sample(s, a, p);
        ABAR_TRY(take_member(s, a, tar, &m, p));
    }
}

static abar_status read_shard(abar__scan *s, int part, const char *path)
{
    archive a;
    abar__tar tar;
    sample p = {.label = -1};
    abar_status status = open_archive(s, path, &a);
    if (status >= 0) {
        abar__tar_open(&tar, s->ctx, a.label, a.fd, 0, a.bytes);
        status = read_members(s, &a, &tar, &p);
        abar__tar_close(&tar);
    }
    close_archive(&a);
    abar__text_free(s->ctx, &p.key);
    abar__text_free(s->ctx, &p.image);
    return status < 0 ? status : abar__scan_emit(s, part, true);
}

/* The path of a sample of a shard, for a failure. */
static abar_status fail_sample(const abar__scan *s, const abar__sample *of, const char *reason)
{
    const abar__place *places = (const abar__place *)s->index->text[ABAR_SECTION_PLACES].data;
    return abar__scan_fail(s, ABAR_E_FORMAT, s->names->data + places[of->place].path, s->names->data + of->name,
                           "has the class %d%s", of->label, reason);
}

/* Without a file of classes the numbers are their names: every one up to the largest of train. */
static abar_status number_classes(abar__scan *s)
{
    const abar__text *train = &s->index->text[ABAR_SECTION_SAMPLES];
    const abar__sample *samples = (const abar__sample *)train->data;
    const int64_t count = (int64_t)(train->length / sizeof *samples);
    int64_t largest = -1;
    for (int64_t i = 0; i < count; i++) {
        if (samples[i].label > largest) largest = samples[i].label;
        if (samples[i].label >= count)
            return fail_sample(s, &samples[i],
                               " but there are fewer images in train, so classes lack images: number them from 0");
    }
    return abar__scan_number_classes(s, largest + 1);
}

/* Every label is a class, and every class has an image in train. */
static abar_status check_classes(abar__scan *s)
{
    void *memory;
    const int64_t classes = abar__scan_classes(s);
    ABAR_TRY(abar__alloc(s->ctx, (size_t)classes, &memory));
    uint8_t *seen = memory;
    abar_status status = ABAR_OK;
    for (int part = 0; part < 2 && status >= 0; part++) {
        const abar__text *text = &s->index->text[ABAR_SECTION_SAMPLES + part];
        const abar__sample *samples = (const abar__sample *)text->data;
        for (size_t i = 0; i < text->length / sizeof *samples && status >= 0; i++) {
            if (samples[i].label >= classes)
                status = fail_sample(s, &samples[i], ", which is not below the number of classes, correct its .cls");
            else if (part == 0)
                seen[samples[i].label] = 1;
        }
    }
    for (int64_t c = 0; c < classes && status >= 0; c++)
        if (!seen[c])
            status = abar__scan_fail(s, ABAR_E_NOT_FOUND, "", "",
                                     "class %" PRId64 " has no images in train, add some or number the classes from 0", c);
    abar__free(s->ctx, memory, (size_t)classes);
    return status;
}

abar_status abar__scan_shards(abar__scan *s, const abar__listing *root, const abar__text paths[2])
{
    for (int part = 0; part < 2; part++) {
        for (const char *path = paths[part].data; path < paths[part].data + paths[part].length; path += strlen(path) + 1)
            ABAR_TRY(read_shard(s, part, path));
    }
    if (s->index->text[ABAR_SECTION_SAMPLES].length == 0)
        return abar__scan_fail(s, ABAR_E_NOT_FOUND, "", "", "its training shards have no images, add some");
    const abar__entry *file = abar__listing_find(root, "classes.txt");
    if (*s->classes_file)
        ABAR_TRY(abar__scan_read_classes(s, s->classes_file));
    else if (file && !file->folder)
        ABAR_TRY(abar__scan_read_classes(s, "classes.txt"));
    else
        ABAR_TRY(number_classes(s));
    return check_classes(s);
}
