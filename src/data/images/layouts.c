/* Which of the layouts of docs/images.md a folder has, and the scan of those that are plain files. */
#include "data/images/scan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY_LABELS "val/val_annotations.txt"

/* What was found in the folder, before any class is read. */
typedef struct layout {
    abar__listing root, train, val;
    const char *val_name; /* val, validation or test; NULL: none */
    abar__text shards[2]; /* their paths, zero-terminated */
} layout;

static bool has_folder(const abar__listing *list, const char *name)
{
    const abar__entry *entry = abar__listing_find(list, name);
    return entry && entry->folder;
}

static bool has_file(const abar__listing *list, const char *name)
{
    const abar__entry *entry = abar__listing_find(list, name);
    return entry && !entry->folder;
}

/* The listing of val/, and not of what stands in for it. */
static const abar__listing *val_folder(const layout *l)
{
    return l->val_name && strcmp(l->val_name, "val") == 0 ? &l->val : NULL;
}

static bool is_tiny(const layout *l)
{
    const abar__listing *val = val_folder(l);
    return val && has_file(val, abar__last_component(TINY_LABELS)) && has_folder(val, "images");
}

/* ---- shards -------------------------------------------------------------------------------------------------- */

typedef enum shard_part { SHARD_TRAIN, SHARD_VAL, SHARD_BOTH, SHARD_NEITHER } shard_part;

/* The part of a tar in the folder itself, by its name. */
static shard_part part_of(const char *name)
{
    const bool train = strstr(name, "train"), val = strstr(name, "val");
    return train && val ? SHARD_BOTH : train ? SHARD_TRAIN : val ? SHARD_VAL : SHARD_NEITHER;
}

static abar_status add_shard(abar__scan *s, const char *path, const char *name, abar__text *out)
{
    char whole[ABAR_IMAGES_PATH_MAX];
    ABAR_TRY(abar__scan_join(s, path, name, whole));
    return abar__text_append(s->ctx, out, whole, strlen(whole) + 1);
}

/* Tars in train/ and val/. */
static abar_status find_shards_in_parts(abar__scan *s, layout *l)
{
    const abar__listing *lists[] = {&l->train, &l->val};
    const char *paths[] = {"train", l->val_name ? l->val_name : ""};
    int64_t others = 0;
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < lists[part]->count; i++) {
            const abar__entry *entry = abar__listing_at(lists[part], i);
            if (!entry->folder && abar__name_is_tar(entry->name))
                ABAR_TRY(add_shard(s, paths[part], entry->name, &l->shards[part]));
            else
                others++;
        }
    if (l->shards[0].length > 0 && l->shards[1].length > 0)
        s->index->head.ignored += others;
    else
        l->shards[0].length = l->shards[1].length = 0;
    return ABAR_OK;
}

/* Tars in the folder itself. One that may belong to either part is an error, but only if the others are shards. */
static abar_status find_shards_in_root(abar__scan *s, layout *l)
{
    const char *both = NULL;
    int64_t others = 0;
    for (int64_t i = 0; i < l->root.count; i++) {
        const abar__entry *entry = abar__listing_at(&l->root, i);
        if (entry->folder || !abar__name_is_tar(entry->name)) continue;
        const shard_part part = part_of(entry->name);
        if (part == SHARD_BOTH) both = entry->name;
        if (part == SHARD_NEITHER) others++;
        if (part == SHARD_TRAIN || part == SHARD_VAL) ABAR_TRY(add_shard(s, "", entry->name, &l->shards[part]));
    }
    if (l->shards[0].length == 0 || l->shards[1].length == 0) {
        l->shards[0].length = l->shards[1].length = 0;
        return ABAR_OK;
    }
    s->index->head.ignored += others;
    if (!both) return ABAR_OK;
    return abar__scan_fail(s, ABAR_E_FORMAT, both, "", "is named both train and val, rename it");
}

static abar_status find_shards(abar__scan *s, layout *l, bool *out)
{
    ABAR_TRY(find_shards_in_parts(s, l));
    if (l->shards[0].length == 0) ABAR_TRY(find_shards_in_root(s, l));
    *out = l->shards[0].length > 0;
    return ABAR_OK;
}

/* ---- folders of classes -------------------------------------------------------------------------------------- */

static bool is_class(const abar__entry *entry) { return entry->folder && entry->name[0] != '.'; }

/* The classes are the directories of train. */
static abar_status find_classes(abar__scan *s, const layout *l)
{
    void *memory;
    int64_t count = 0;
    const size_t bytes = (size_t)l->train.count * sizeof(const char *);
    ABAR_TRY(abar__alloc(s->ctx, bytes, &memory));
    const char **names = memory;
    for (int64_t i = 0; i < l->train.count; i++)
        if (is_class(abar__listing_at(&l->train, i))) names[count++] = abar__listing_at(&l->train, i)->name;
    s->index->head.ignored += l->train.count - count;
    const abar_status status =
        count > 0 ? abar__scan_set_classes(s, names, count)
                  : abar__scan_fail(s, ABAR_E_NOT_FOUND, "train", "", "has no directories, put each class into one");
    abar__free(s->ctx, memory, bytes);
    return status;
}

/* Reads one class of a part. */
static abar_status read_class(abar__scan *s, int part, const char *folder, uint32_t parent, int32_t label)
{
    char path[ABAR_IMAGES_PATH_MAX];
    ABAR_TRY(abar__scan_join(s, folder, abar__scan_class(s, label), path));
    ABAR_TRY(abar__scan_walk(s, path, parent));
    const int64_t count = abar__scan_found_count(s);
    if (count == 0 && part == 0)
        return abar__scan_fail(s, ABAR_E_NOT_FOUND, path, "", "has no images, add some or remove this class");
    for (int64_t i = 0; i < count; i++) abar__scan_found_at(s, i)->label = label;
    return abar__scan_emit(s, part, false);
}

static abar_status read_train(abar__scan *s, const layout *l)
{
    ABAR_TRY(find_classes(s, l));
    for (int64_t c = 0; c < abar__scan_classes(s); c++) ABAR_TRY(read_class(s, 0, "train", l->train.place, (int32_t)c));
    return ABAR_OK;
}

static abar_status read_val_classes(abar__scan *s, const layout *l)
{
    for (int64_t i = 0; i < l->val.count; i++) {
        const abar__entry *entry = abar__listing_at(&l->val, i);
        if (!is_class(entry))
            s->index->head.ignored++;
        else if (abar__scan_label(s, entry->name, strlen(entry->name)) < 0)
            return abar__scan_fail(s, ABAR_E_FORMAT, l->val_name, entry->name,
                                   "is a class that train lacks, add it to train or remove it");
    }
    for (int64_t c = 0; c < abar__scan_classes(s); c++)
        if (has_folder(&l->val, abar__scan_class(s, c))) ABAR_TRY(read_class(s, 1, l->val_name, l->val.place, (int32_t)c));
    return ABAR_OK;
}

/* Images without directories of classes, and their label file. */
static abar_status read_val_labels(abar__scan *s, const char *folder, uint32_t parent, const char *labels)
{
    ABAR_TRY(abar__scan_walk(s, folder, parent));
    ABAR_TRY(abar__scan_apply_labels(s, labels));
    return abar__scan_emit(s, 1, false);
}

/* Images that are in no class, and no classes. */
static bool is_loose(const abar__scan *s, const abar__listing *list)
{
    bool images = false;
    for (int64_t i = 0; i < list->count; i++) {
        const abar__entry *entry = abar__listing_at(list, i);
        if (is_class(entry) && abar__scan_label(s, entry->name, strlen(entry->name)) >= 0) return false;
        if (!entry->folder && abar__name_kind_of(entry->name) == ABAR_NAME_IMAGE) images = true;
    }
    return images;
}

static abar_status read_val(abar__scan *s, const layout *l)
{
    char labels[ABAR_IMAGES_PATH_MAX];
    const bool requested = *s->labels_file;
    ABAR_TRY(abar__scan_find_labels(s, &l->root, val_folder(l), labels));
    if (s->index->head.layout == ABAR_LAYOUT_TINY)
        return read_val_labels(s, "val/images", l->val.place, requested ? labels : TINY_LABELS);
    if (!requested && !is_loose(s, &l->val)) return read_val_classes(s, l);
    if (*labels) return read_val_labels(s, l->val_name, l->root.place, labels);
    return abar__scan_fail(s, ABAR_E_NOT_FOUND, l->val_name, "",
                           "its images are in no directories of classes and there is no label file, see --val-labels");
}

/* ---- recognition --------------------------------------------------------------------------------------------- */

static bool is_folder_at(const abar__scan *s, const char *path)
{
    struct stat info;
    return fstatat(s->index->folder, path, &info, 0) == 0 && S_ISDIR(info.st_mode);
}

/* People give the folder above the set, or one of its parts. */
static void suggest_folder(const abar__scan *s, const layout *l, char *out, size_t n)
{
    const char *last = abar__last_component(s->folder);
    if ((strcmp(last, "train") == 0 || strcmp(last, "val") == 0) && is_folder_at(s, "../train")) {
        snprintf(out, n, "; give the folder above it");
        return;
    }
    for (int64_t i = 0; i < l->root.count; i++) {
        char path[ABAR_IMAGES_PATH_MAX], name[60];
        const abar__entry *entry = abar__listing_at(&l->root, i);
        snprintf(path, sizeof path, "%.255s/train", entry->name);
        if (!entry->folder || !is_folder_at(s, path)) continue;
        abar__images_escape(entry->name, name, sizeof name);
        snprintf(out, n, "; did you mean %s in it", name);
        return;
    }
}

static abar_status refuse_folder(const abar__scan *s, const layout *l)
{
    char found[120] = "", suggestion[96] = "";
    const bool train = has_folder(&l->root, "train");
    for (int64_t i = 0, n = 0; i < l->root.count && n < 5 && strlen(found) < 70; i++) {
        char name[40];
        const abar__entry *entry = abar__listing_at(&l->root, i);
        if (*entry->name == '.') continue;
        abar__images_escape(entry->name, name, sizeof name);
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s%s%s", n++ ? ", " : "", name,
                 entry->folder ? "/" : "");
    }
    suggest_folder(s, l, suggestion, sizeof suggestion);
    return abar__scan_fail(s, ABAR_E_NOT_FOUND, "", "",
                           "%s: expected train/CLASS/ and val/CLASS/ with images, tar shards, or " ABAR_IMAGENET_TRAIN
                           " and " ABAR_IMAGENET_VAL "; found %s%s",
                           train && !l->val_name ? "has train/ but no val/" : "has no layout that abar knows",
                           *found ? found : "nothing", suggestion);
}

static abar_status read_layout(abar__scan *s, layout *l)
{
    static const char *const val_names[] = {"val", "validation", "test"};
    abar__images_head *head = &s->index->head;
    bool shards;
    ABAR_TRY(abar__scan_list(s, "", ABAR_PLACE_NONE, &l->root));
    const bool train = has_folder(&l->root, "train");
    for (int i = 2; i >= 0; i--)
        if (has_folder(&l->root, val_names[i])) l->val_name = val_names[i];
    if (train) ABAR_TRY(abar__scan_list(s, "train", l->root.place, &l->train));
    if (l->val_name) ABAR_TRY(abar__scan_list(s, l->val_name, l->root.place, &l->val));
    if (has_file(&l->root, ABAR_IMAGENET_TRAIN) && has_file(&l->root, ABAR_IMAGENET_VAL)) {
        head->layout = ABAR_LAYOUT_ARCHIVES;
        return abar__scan_official(s, &l->root, val_folder(l));
    }
    ABAR_TRY(find_shards(s, l, &shards));
    if (shards) {
        head->layout = ABAR_LAYOUT_SHARDS;
        return abar__scan_shards(s, &l->root, l->shards);
    }
    if (!train || !l->val_name) return refuse_folder(s, l);
    head->layout = is_tiny(l) ? ABAR_LAYOUT_TINY : ABAR_LAYOUT_FOLDERS;
    ABAR_TRY(read_train(s, l));
    return read_val(s, l);
}

/* ---- the scan ------------------------------------------------------------------------------------------------ */

/* The first line of a shrunk copy's README. */
static abar_status read_shrunk(abar__scan *s, const abar__listing *root)
{
    char text[128] = "";
    uint32_t place;
    struct stat info;
    const size_t n = strlen(ABAR_IMAGES_SHRUNK);
    if (!has_file(root, ABAR_IMAGES_README)) return ABAR_OK;
    ABAR_TRY(abar__scan_add_file(s, ABAR_PLACE_FILE, ABAR_IMAGES_README, &place, &info));
    const int fd = openat(s->index->folder, ABAR_IMAGES_README, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return abar__scan_fail_errno(s, ABAR_IMAGES_README, "", errno);
    const ssize_t got = abar__images_pread(fd, text, sizeof text - 1, 0);
    const int error = errno;
    close(fd);
    if (got < 0) return abar__scan_fail_errno(s, ABAR_IMAGES_README, "", error);
    if (strncmp(text, ABAR_IMAGES_SHRUNK, n) != 0) return ABAR_OK;
    const long side = strtol(text + n, NULL, 10);
    if (side < 1 || side > ABAR_IMAGE_SIDE_MAX)
        return abar__scan_fail(s, ABAR_E_FORMAT, ABAR_IMAGES_README, "", "its first line has no short side, restore it");
    s->index->head.shrunk = side;
    return ABAR_OK;
}

static abar_status check_parts(abar__scan *s)
{
    void *seen;
    const int64_t classes = abar__scan_classes(s);
    const abar__text *test = &s->index->text[ABAR_SECTION_SAMPLES + 1];
    if (test->length == 0) return abar__scan_fail(s, ABAR_E_NOT_FOUND, "", "", "its test part has no images, add some");
    ABAR_TRY(abar__alloc(s->ctx, (size_t)classes, &seen));
    for (size_t i = 0; i < test->length / sizeof(abar__sample); i++)
        ((uint8_t *)seen)[((const abar__sample *)test->data)[i].label] = 1;
    for (int64_t c = 0; c < classes; c++) s->index->head.untested += !((const uint8_t *)seen)[c];
    abar__free(s->ctx, seen, (size_t)classes);
    return ABAR_OK;
}

static abar_status scan_all(abar__scan *s, layout *l)
{
    abar__images_head *head = &s->index->head;
    ABAR_TRY(abar__text_append(s->ctx, s->names, "", 1)); /* offset 0 is the empty string */
    ABAR_TRY(abar__scan_string(s, s->folder, strlen(s->folder), &head->folder));
    if (*s->classes_file) ABAR_TRY(abar__scan_string(s, s->classes_file, strlen(s->classes_file), &head->classes_file));
    if (*s->labels_file) ABAR_TRY(abar__scan_string(s, s->labels_file, strlen(s->labels_file), &head->labels_file));
    ABAR_TRY(read_layout(s, l));
    ABAR_TRY(abar__scan_read_words(s, &l->root));
    ABAR_TRY(read_shrunk(s, &l->root));
    return check_parts(s);
}

abar_status abar__images_scan(abar__images_index *index, const char *folder, const char *classes_file, const char *labels_file)
{
    abar_context *ctx = index->ctx;
    layout l = {0};
    abar__scan s = {.ctx = ctx,
                    .index = index,
                    .folder = folder,
                    .classes_file = classes_file,
                    .labels_file = labels_file,
                    .names = &index->text[ABAR_SECTION_NAMES]};
    const abar_status status = scan_all(&s, &l);
    abar__listing_free(ctx, &l.root);
    abar__listing_free(ctx, &l.train);
    abar__listing_free(ctx, &l.val);
    for (int part = 0; part < 2; part++) abar__text_free(ctx, &l.shards[part]);
    abar__text_free(ctx, &s.found);
    abar__text_free(ctx, &s.order);
    abar__text_free(ctx, &s.pending);
    return status;
}
