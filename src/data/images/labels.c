/* Files of text beside the images: the order of the classes, their readable names, the labels of the test part. */
#include "data/images/scan.h"
#include "data/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX ((size_t)1 << 30) /* bytes of such a file */

/* ---- lines --------------------------------------------------------------------------------------------------- */

typedef struct lines {
    const char *at, *end;
    const char *line; /* the current one, without its end */
    size_t n;
    int64_t number;
} lines;

static bool next_line(lines *l)
{
    if (l->at == l->end) return false;
    const char *stop = memchr(l->at, '\n', (size_t)(l->end - l->at));
    l->line = l->at;
    l->n = (size_t)((stop ? stop : l->end) - l->at);
    l->at = stop ? stop + 1 : l->end;
    l->number++;
    while (l->n > 0 && (l->line[l->n - 1] == '\r' || l->line[l->n - 1] == ' ' || l->line[l->n - 1] == '\t')) l->n--;
    return true;
}

/* Empty lines at the end do not count. */
static lines lines_of(const char *bytes, size_t n)
{
    while (n > 0 && strchr("\r\n \t", bytes[n - 1])) n--;
    return (lines){.at = bytes, .end = bytes + n};
}

/* A part of a line, for a message. */
static const char *shown(const char *bytes, size_t n, char out[128])
{
    char copy[100];
    snprintf(copy, sizeof copy, "%.*s", (int)(n < sizeof copy ? n : sizeof copy - 1), bytes);
    abar__images_escape(copy, out, 128);
    return out;
}

static abar_status check_text(const abar__scan *s, const char *label, const char *bytes, size_t n)
{
    if (!memchr(bytes, '\0', n)) return ABAR_OK;
    return abar__fail(s->ctx, ABAR_E_FORMAT, "%s: is not a text file, give one with a name in each line", label);
}

typedef abar_status parse_text(abar__scan *s, const char *label, const char *bytes, size_t n);

/* Loads a file, relative to the folder or absolute, and records it as a place. */
static abar_status with_file(abar__scan *s, const char *path, parse_text *parse)
{
    char whole[2 * ABAR_IMAGES_PATH_MAX], label[512];
    uint8_t *bytes;
    size_t n;
    struct stat info;
    uint32_t place;
    ABAR_TRY(abar__scan_add_file(s, ABAR_PLACE_FILE, path, &place, &info));
    snprintf(whole, sizeof whole, "%s%s%s", *path == '/' ? "" : s->folder, *path == '/' ? "" : "/", path);
    abar__images_escape(whole, label, sizeof label);
    ABAR_TRY(abar__source_load(s->ctx, whole, TEXT_MAX, &bytes, &n));
    const abar_status status = parse(s, label, (const char *)bytes, n);
    abar__free(s->ctx, bytes, n);
    return status;
}

/* ---- classes ------------------------------------------------------------------------------------------------- */

static abar__class_row *class_rows(const abar__scan *s) { return (abar__class_row *)s->index->text[ABAR_SECTION_CLASSES].data; }

const char *abar__scan_class(const abar__scan *s, int64_t label) { return s->names->data + class_rows(s)[label].name; }

static int compare_name(const char *bytes, size_t n, const char *name)
{
    const int order = strncmp(bytes, name, n);
    return order != 0 ? order : name[n] ? -1 : 0;
}

int32_t abar__scan_label(const abar__scan *s, const char *name, size_t n)
{
    const uint32_t *order = (const uint32_t *)s->order.data;
    if (memchr(name, '\0', n)) return -1;
    for (int64_t low = 0, high = abar__scan_classes(s); low < high;) {
        const int64_t middle = low + (high - low) / 2;
        const int c = compare_name(name, n, abar__scan_class(s, order[middle]));
        if (c == 0) return (int32_t)order[middle];
        if (c < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

typedef struct named {
    const char *name;
    int64_t index;
} named;

static int compare_named(const void *a, const void *b)
{
    const named *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

/* Sorts the classes by name for abar__scan_label. *twice: one whose name occurs before, -1: none. */
static abar_status order_classes(abar__scan *s, int64_t *twice)
{
    const int64_t count = abar__scan_classes(s);
    void *memory;
    *twice = -1;
    s->order.length = 0;
    ABAR_TRY(abar__alloc(s->ctx, (size_t)count * sizeof(named), &memory));
    named *sorted = memory;
    abar_status status = ABAR_OK;
    for (int64_t i = 0; i < count; i++) sorted[i] = (named){abar__scan_class(s, i), i};
    if (count > 1) qsort(sorted, (size_t)count, sizeof *sorted, compare_named);
    for (int64_t i = 0; i < count && status >= 0; i++) {
        const uint32_t label = (uint32_t)sorted[i].index;
        if (i > 0 && strcmp(sorted[i].name, sorted[i - 1].name) == 0) *twice = sorted[i].index;
        status = abar__text_append(s->ctx, &s->order, &label, sizeof label);
    }
    abar__free(s->ctx, memory, (size_t)count * sizeof(named));
    return status;
}

static abar_status add_class(abar__scan *s, const char *name, size_t n, const char *readable, size_t readable_n)
{
    abar__class_row row = {0};
    ABAR_TRY(abar__scan_string(s, name, n, &row.name));
    if (readable_n > 0) ABAR_TRY(abar__scan_string(s, readable, readable_n, &row.readable));
    return abar__text_append(s->ctx, &s->index->text[ABAR_SECTION_CLASSES], &row, sizeof row);
}

/* One name a line, then a tab and a readable name if wanted. */
abar_status abar__scan_parse_classes(abar__scan *s, const char *label, const char *bytes, size_t n)
{
    int64_t twice;
    char text[128];
    ABAR_TRY(check_text(s, label, bytes, n));
    lines l = lines_of(bytes, n);
    while (next_line(&l)) {
        const char *tab = memchr(l.line, '\t', l.n);
        const size_t name = tab ? (size_t)(tab - l.line) : l.n;
        if (name == 0)
            return abar__fail(s->ctx, ABAR_E_FORMAT, "%s: line %" PRId64 " has no class name, write one name in each line",
                              label, l.number);
        ABAR_TRY(add_class(s, l.line, name, tab ? tab + 1 : "", tab ? l.n - name - 1 : 0));
    }
    if (abar__scan_classes(s) == 0)
        return abar__fail(s->ctx, ABAR_E_FORMAT, "%s: names no class, write one name in each line", label);
    ABAR_TRY(order_classes(s, &twice));
    if (twice < 0) return ABAR_OK;
    const char *name = abar__scan_class(s, twice);
    return abar__fail(s->ctx, ABAR_E_FORMAT, "%s: names the class %s twice, in line %" PRId64 " too, remove one", label,
                      shown(name, strlen(name), text), twice + 1);
}

abar_status abar__scan_read_classes(abar__scan *s, const char *path) { return with_file(s, path, abar__scan_parse_classes); }

abar_status abar__scan_set_classes(abar__scan *s, const char *const *names, int64_t count)
{
    int64_t twice;
    char text[128];
    if (!*s->classes_file) {
        for (int64_t i = 0; i < count; i++) ABAR_TRY(add_class(s, names[i], strlen(names[i]), "", 0));
        return order_classes(s, &twice);
    }
    ABAR_TRY(abar__scan_read_classes(s, s->classes_file));
    for (int64_t i = 0; i < count; i++)
        if (abar__scan_label(s, names[i], strlen(names[i])) < 0)
            return abar__scan_fail(s, ABAR_E_FORMAT, s->classes_file, "", "lacks the class %s of train, add it",
                                   shown(names[i], strlen(names[i]), text));
    if (abar__scan_classes(s) == count) return ABAR_OK;
    for (int64_t c = 0; c < abar__scan_classes(s); c++) {
        const char *name = abar__scan_class(s, c);
        int64_t i = 0;
        while (i < count && strcmp(names[i], name) != 0) i++;
        if (i == count)
            return abar__scan_fail(s, ABAR_E_FORMAT, s->classes_file, "", "names the class %s, which train lacks, remove it",
                                   shown(name, strlen(name), text));
    }
    return ABAR_OK;
}

abar_status abar__scan_number_classes(abar__scan *s, int64_t count)
{
    int64_t twice;
    for (int64_t c = 0; c < count; c++) {
        char name[24];
        ABAR_TRY(add_class(s, name, (size_t)snprintf(name, sizeof name, "%" PRId64, c), "", 0));
    }
    return order_classes(s, &twice);
}

/* Lines NAME, tab or space, readable name. Other classes' lines, and those without a readable name, are skipped. */
abar_status abar__scan_parse_words(abar__scan *s, const char *bytes, size_t n)
{
    lines l = lines_of(bytes, n);
    while (next_line(&l)) {
        size_t name = 0;
        while (name < l.n && l.line[name] != '\t' && l.line[name] != ' ') name++;
        const int32_t label = abar__scan_label(s, l.line, name);
        if (label < 0 || name + 1 >= l.n || class_rows(s)[label].readable != 0) continue;
        uint32_t readable;
        ABAR_TRY(abar__scan_string(s, l.line + name + 1, l.n - name - 1, &readable));
        class_rows(s)[label].readable = readable;
    }
    return ABAR_OK;
}

static abar_status parse_words(abar__scan *s, const char *label, const char *bytes, size_t n)
{
    (void)label;
    return abar__scan_parse_words(s, bytes, n);
}

abar_status abar__scan_read_words(abar__scan *s, const abar__listing *root)
{
    static const char *const files[] = {"words.txt", "LOC_synset_mapping.txt"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const abar__entry *entry = abar__listing_find(root, files[i]);
        if (entry && !entry->folder) ABAR_TRY(with_file(s, files[i], parse_words));
    }
    return ABAR_OK;
}

/* ---- labels of the test part --------------------------------------------------------------------------------- */

abar_status abar__scan_find_labels(abar__scan *s, const abar__listing *root, const abar__listing *val,
                                   char out[ABAR_IMAGES_PATH_MAX])
{
    static const char *const files[] = {"val_annotations.txt", "LOC_val_solution.csv",
                                        "imagenet_2012_validation_synset_labels.txt"};
    *out = '\0';
    if (*s->labels_file) return abar__scan_join(s, "", s->labels_file, out);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const abar__entry *here = abar__listing_find(root, files[i]), *there = val ? abar__listing_find(val, files[i]) : NULL;
        if (here && !here->folder) return abar__scan_join(s, "", files[i], out);
        if (there && !there->folder) return abar__scan_join(s, "val", files[i], out);
    }
    return ABAR_OK;
}

/* The images that are to be labelled, by name. */
typedef struct labelled {
    abar__scan *s;
    const char *label;
    named *images; /* (count), sorted */
    int64_t count;
} labelled;

/* Whether an image has this name, with or without its extension. */
static bool is_called(const char *image, const char *name, size_t n)
{
    if (strncmp(image, name, n) != 0) return false;
    return image[n] == '\0' || (image[n] == '.' && !strchr(image + n + 1, '.'));
}

/* The first image whose name is not less than n bytes. */
static int64_t lower_bound(const labelled *t, const char *name, size_t n)
{
    int64_t low = 0, high = t->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (strncmp(t->images[middle].name, name, n) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static abar_status fail_line(const labelled *t, const lines *l, const char *subject, size_t n, const char *reason)
{
    char text[128];
    return abar__fail(t->s->ctx, ABAR_E_FORMAT, "%s: line %" PRId64 ": %s %s", t->label, l->number, shown(subject, n, text),
                      reason);
}

/* Labels the images of one name. */
static abar_status label_name(const labelled *t, const lines *l, const char *name, size_t n, int32_t label)
{
    const char *slash;
    while ((slash = memchr(name, '/', n))) { /* the folder of the image is not looked at */
        n -= (size_t)(slash + 1 - name);
        name = slash + 1;
    }
    bool any = false, exact = false;
    const char *first = NULL;
    const int64_t from = lower_bound(t, name, n);
    for (int64_t i = from; i < t->count && n > 0 && strncmp(t->images[i].name, name, n) == 0; i++) {
        if (!is_called(t->images[i].name, name, n) || (exact && t->images[i].name[n])) continue;
        if (any && strcmp(first, t->images[i].name) != 0)
            return fail_line(t, l, name, n, "is two images of different formats, write the extension too");
        abar__found *found = abar__scan_found_at(t->s, t->images[i].index);
        if (found->label >= 0) return fail_line(t, l, name, n, "is labelled twice, remove one line");
        found->label = label;
        any = true;
        exact = t->images[i].name[n] == '\0';
        first = t->images[i].name;
    }
    return any ? ABAR_OK : fail_line(t, l, name, n, "is no image of the test part, remove the line or restore the image");
}

/* The class in a line, after the separator at `at`: up to the next one of the same kind, else of any kind. */
static int32_t class_after(const abar__scan *s, const lines *l, size_t at)
{
    const char *class = l->line + at + 1, *same;
    size_t n = l->n - at - 1;
    if ((same = memchr(class, l->line[at], n))) n = (size_t)(same - class);
    const int32_t label = abar__scan_label(s, class, n);
    if (label >= 0) return label;
    size_t part = 0;
    while (part < n && !strchr("\t ,", class[part])) part++;
    return abar__scan_label(s, class, part);
}

/* NAME separator CLASS ...: a tab separates, else a comma, else a space. */
static abar_status label_line(const labelled *t, const lines *l)
{
    const char *stop = memchr(l->line, '\t', l->n);
    if (!stop) stop = memchr(l->line, ',', l->n);
    if (!stop) stop = memchr(l->line, ' ', l->n);
    if (!stop) return fail_line(t, l, l->line, l->n, "is neither NAME CLASS nor a class of train, correct it");
    const size_t at = (size_t)(stop - l->line);
    const int32_t label = class_after(t->s, l, at);
    if (label < 0) return fail_line(t, l, l->line, l->n, "has no class of train after the name, correct it");
    return label_name(t, l, l->line, at, label);
}

/* One class a line, in the order of the images' names. */
static abar_status label_in_order(const labelled *t, lines *l)
{
    int64_t i = 0;
    do {
        const int32_t label = abar__scan_label(t->s, l->line, l->n);
        if (label < 0) return fail_line(t, l, l->line, l->n, "is no class of train, correct it");
        if (i < t->count) abar__scan_found_at(t->s, t->images[i].index)->label = label;
        i++;
    } while (next_line(l));
    if (i == t->count) return ABAR_OK;
    return abar__fail(t->s->ctx, ABAR_E_FORMAT, "%s: has %" PRId64 " lines for %" PRId64 " images, complete both", t->label, i,
                      t->count);
}

static abar_status label_all(const labelled *t, const char *bytes, size_t n)
{
    char text[128];
    lines l = lines_of(bytes, n);
    bool more = next_line(&l);
    if (more && abar__scan_label(t->s, l.line, l.n) >= 0) return label_in_order(t, &l);
    if (more && l.n >= 7 && memcmp(l.line, "ImageId", 7) == 0) more = next_line(&l);
    for (; more; more = next_line(&l)) ABAR_TRY(label_line(t, &l));
    for (int64_t i = 0; i < t->count; i++)
        if (abar__scan_found_at(t->s, t->images[i].index)->label < 0)
            return abar__fail(t->s->ctx, ABAR_E_FORMAT, "%s: has no line for the image %s, add one or remove the image",
                              t->label, shown(t->images[i].name, strlen(t->images[i].name), text));
    return ABAR_OK;
}

abar_status abar__scan_parse_labels(abar__scan *s, const char *label, const char *bytes, size_t n)
{
    void *memory;
    labelled t = {.s = s, .label = label, .count = abar__scan_found_count(s)};
    ABAR_TRY(check_text(s, label, bytes, n));
    ABAR_TRY(abar__alloc(s->ctx, (size_t)t.count * sizeof(named), &memory));
    t.images = memory;
    for (int64_t i = 0; i < t.count; i++) {
        abar__found *found = abar__scan_found_at(s, i);
        found->label = -1;
        t.images[i] = (named){abar__last_component(s->names->data + found->name), i};
    }
    if (t.count > 1) qsort(t.images, (size_t)t.count, sizeof *t.images, compare_named);
    const abar_status status = label_all(&t, bytes, n);
    abar__free(s->ctx, memory, (size_t)t.count * sizeof(named));
    return status;
}

abar_status abar__scan_apply_labels(abar__scan *s, const char *path) { return with_file(s, path, abar__scan_parse_labels); }
