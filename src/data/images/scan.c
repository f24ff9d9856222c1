/* The mechanics of a scan: directories, names, places, and the order of the images found. A file costs one system call, for its
 * size; a directory four. */
#include "data/images/scan.h"
#include "io/files_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define TRUSTED_AFTER ((int64_t)2000000000) /* ns without a change */

/* ---- names --------------------------------------------------------------------------------------------------- */

abar__name_kind abar__name_kind_of(const char *name)
{
    static const char *const images[] = {".jpg", ".jpeg", ".png", NULL};
    static const char *const refused[] = {".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp", NULL};
    const char *dot = strrchr(name, '.');
    if (!dot || *name == '.') return ABAR_NAME_OTHER;
    for (int i = 0; images[i]; i++)
        if (strcasecmp(dot, images[i]) == 0) return ABAR_NAME_IMAGE;
    for (int i = 0; refused[i]; i++)
        if (strcasecmp(dot, refused[i]) == 0) return ABAR_NAME_REFUSED;
    return ABAR_NAME_OTHER;
}

bool abar__name_is_tar(const char *name)
{
    const size_t n = strlen(name);
    return n > 4 && name[0] != '.' && strcasecmp(name + n - 4, ".tar") == 0;
}

/* ---- failures ------------------------------------------------------------------------------------------------ */

void abar__scan_path(const abar__scan *s, const char *path, const char *name, char *out, size_t n)
{
    char whole[3 * ABAR_IMAGES_PATH_MAX];
    snprintf(whole, sizeof whole, "%s%s%s%s%s", *path == '/' ? "" : s->folder, *path && *path != '/' ? "/" : "", path,
             *name ? "/" : "", name);
    abar__images_escape(whole, out, n);
}

abar_status abar__scan_fail(const abar__scan *s, abar_status status, const char *path, const char *name, const char *format,
                            ...)
{
    char subject[640], reason[360];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    abar__scan_path(s, path, name, subject, sizeof subject);
    return abar__fail(s->ctx, status, "%s: %s", subject, reason);
}

abar_status abar__scan_fail_errno(const abar__scan *s, const char *path, const char *name, int error)
{
    char subject[640];
    abar__scan_path(s, path, name, subject, sizeof subject);
    return abar__fail_errno(s->ctx, subject, error);
}

abar_status abar__scan_refuse(const abar__scan *s, const char *path, const char *name)
{
    return abar__scan_fail(s, ABAR_E_UNSUPPORTED, path, name,
                           "is of a format that abar does not read, convert it to JPEG or PNG or remove it");
}

/* ---- strings and places -------------------------------------------------------------------------------------- */

abar_status abar__scan_string(abar__scan *s, const char *bytes, size_t n, uint32_t *out)
{
    if (s->names->length + n + 1 >= UINT32_MAX)
        return abar__scan_fail(s, ABAR_E_UNSUPPORTED, "", "", "the names of its files take more than 4 GiB, split it");
    *out = (uint32_t)s->names->length;
    ABAR_TRY(abar__text_append(s->ctx, s->names, bytes, n));
    return abar__text_append(s->ctx, s->names, "", 1);
}

abar_status abar__scan_join(const abar__scan *s, const char *path, const char *name, char out[ABAR_IMAGES_PATH_MAX])
{
    const int n = snprintf(out, ABAR_IMAGES_PATH_MAX, "%s%s%s", path, *path && *name ? "/" : "", name);
    if (n >= 0 && n < ABAR_IMAGES_PATH_MAX) return ABAR_OK;
    return abar__scan_fail(s, ABAR_E_UNSUPPORTED, path, name, "the path has more than %d bytes, shorten it",
                           ABAR_IMAGES_PATH_MAX - 1);
}

int64_t abar__images_modified(const struct stat *info)
{
    return (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
}

static const abar__place *place_at(const abar__scan *s, uint32_t i)
{
    return (const abar__place *)s->index->text[ABAR_SECTION_PLACES].data + i;
}

/* A change within the clock's tick of the last one leaves no trace, so young places are read again next time. Those of the
 * future, after a clock was set back, are as young. */
static bool is_trusted(const struct stat *info)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return abar__images_modified(info) <= (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - TRUSTED_AFTER;
}

abar_status abar__scan_add_place(abar__scan *s, abar__place_kind kind, const char *path, uint32_t parent,
                                 const struct stat *info, uint32_t *out)
{
    abar__text *places = &s->index->text[ABAR_SECTION_PLACES];
    abar__place place = {.device = (uint64_t)info->st_dev,
                         .inode = (uint64_t)info->st_ino,
                         .modified = abar__images_modified(info),
                         .size = (int64_t)info->st_size,
                         .kind = kind,
                         .parent = parent,
                         .trusted = is_trusted(info)};
    *out = (uint32_t)(places->length / sizeof place);
    ABAR_TRY(abar__scan_string(s, path, strlen(path), &place.path));
    return abar__text_append(s->ctx, places, &place, sizeof place);
}

abar_status abar__scan_add_file(abar__scan *s, abar__place_kind kind, const char *path, uint32_t *out, struct stat *info)
{
    if (fstatat(s->index->folder, path, info, 0) != 0) return abar__scan_fail_errno(s, path, "", errno);
    if (!S_ISREG(info->st_mode)) return abar__scan_fail(s, ABAR_E_FORMAT, path, "", "is not a file, give a file");
    return abar__scan_add_place(s, kind, path, ABAR_PLACE_NONE, info, out);
}

/* ---- directories --------------------------------------------------------------------------------------------- */

/* An open directory and one of its names. */
typedef struct directory {
    const char *path;
    uint32_t place;
    int fd;
} directory;

typedef abar_status take_entry(abar__scan *s, const directory *d, const char *name, unsigned char type, void *user);

static abar_status check_cycle(const abar__scan *s, const char *path, uint32_t parent, const struct stat *info)
{
    for (uint32_t p = parent; p != ABAR_PLACE_NONE; p = place_at(s, p)->parent)
        if (place_at(s, p)->device == (uint64_t)info->st_dev && place_at(s, p)->inode == (uint64_t)info->st_ino)
            return abar__scan_fail(s, ABAR_E_FORMAT, path, "", "is a link to a directory that contains it, remove the link");
    return ABAR_OK;
}

static abar_status each_entry(abar__scan *s, DIR *stream, const directory *d, take_entry *take, void *user)
{
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (!entry && errno != 0) return abar__scan_fail_errno(s, d->path, "", errno);
        if (!entry) return ABAR_OK;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        ABAR_TRY(take(s, d, entry->d_name, entry->d_type, user));
    }
}

/* path must not be in the names, which move. */
static abar_status read_directory(abar__scan *s, const char *path, uint32_t parent, take_entry *take, void *user,
                                  uint32_t *place)
{
    struct stat info;
    directory d = {.path = path};
    d.fd = openat(s->index->folder, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d.fd < 0 || fstat(d.fd, &info) != 0) {
        const int error = errno;
        if (d.fd >= 0) close(d.fd);
        return abar__scan_fail_errno(s, path, "", error);
    }
    abar_status status = check_cycle(s, path, parent, &info);
    if (status >= 0) status = abar__scan_add_place(s, ABAR_PLACE_FOLDER, path, parent, &info, &d.place);
    DIR *stream = status >= 0 ? fdopendir(d.fd) : NULL;
    if (!stream) {
        const int error = errno;
        close(d.fd);
        return status < 0 ? status : abar__scan_fail_errno(s, path, "", error);
    }
    *place = d.place;
    status = each_entry(s, stream, &d, take, user);
    closedir(stream);
    return status;
}

/* Whether a name is a directory or a file: by a system call where the directory does not tell. info is set if it was called,
 * which *called says. False: errno says why. */
static bool resolve(const directory *d, const char *name, unsigned char *type, struct stat *info, bool *called)
{
    *called = false;
    if (*type != DT_LNK && *type != DT_UNKNOWN) return true;
    if (fstatat(d->fd, name, info, 0) != 0) return false;
    *called = true;
    *type = S_ISDIR(info->st_mode) ? DT_DIR : S_ISREG(info->st_mode) ? DT_REG : DT_FIFO;
    return true;
}

/* ---- one directory ------------------------------------------------------------------------------------------- */

static abar_status list_entry(abar__scan *s, const directory *d, const char *name, unsigned char type, void *user)
{
    abar__listing *list = user;
    struct stat info;
    bool called;
    if (!resolve(d, name, &type, &info, &called)) type = DT_FIFO; /* a broken link: neither file nor directory */
    const abar__entry entry = {.folder = type == DT_DIR};
    ABAR_TRY(abar__text_append(s->ctx, &list->names, name, strlen(name) + 1));
    ABAR_TRY(abar__text_append(s->ctx, &list->entries, &entry, sizeof entry));
    list->count++;
    return ABAR_OK;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const abar__entry *)a)->name, ((const abar__entry *)b)->name);
}

abar_status abar__scan_list(abar__scan *s, const char *path, uint32_t parent, abar__listing *out)
{
    *out = (abar__listing){0};
    const abar_status status = read_directory(s, path, parent, list_entry, out, &out->place);
    if (status < 0) {
        abar__listing_free(s->ctx, out);
        return status;
    }
    abar__entry *entries = (abar__entry *)out->entries.data;
    const char *name = out->names.data;
    for (int64_t i = 0; i < out->count; i++, name += strlen(name) + 1) entries[i].name = name;
    if (out->count > 1) qsort(entries, (size_t)out->count, sizeof *entries, compare_entries);
    return ABAR_OK;
}

const abar__entry *abar__listing_find(const abar__listing *list, const char *name)
{
    const abar__entry key = {.name = name};
    if (list->count == 0) return NULL;
    return bsearch(&key, list->entries.data, (size_t)list->count, sizeof key, compare_entries);
}

void abar__listing_free(abar_context *ctx, abar__listing *list)
{
    abar__text_free(ctx, &list->names);
    abar__text_free(ctx, &list->entries);
    list->count = 0;
}

/* ---- a directory and all below it ---------------------------------------------------------------------------- */

typedef struct pending {
    uint32_t path, parent;
} pending;

static abar_status check_image(const abar__scan *s, const directory *d, const char *name, const struct stat *info)
{
    if (!S_ISREG(info->st_mode))
        return abar__scan_fail(s, ABAR_E_FORMAT, d->path, name, "is named like an image but is no file, remove or rename it");
    if (info->st_size > UINT32_MAX)
        return abar__scan_fail(s, ABAR_E_UNSUPPORTED, d->path, name, "has more than 4 GiB, which no image has, remove it");
    if ((info->st_mode & 0444) != 0444 && faccessat(d->fd, name, R_OK, AT_EACCESS) != 0)
        return abar__scan_fail_errno(s, d->path, name, errno);
    return ABAR_OK;
}

static abar_status walk_entry(abar__scan *s, const directory *d, const char *name, unsigned char type, void *user)
{
    (void)user;
    struct stat info;
    bool called;
    char path[ABAR_IMAGES_PATH_MAX];
    const abar__name_kind kind = abar__name_kind_of(name);
    const bool hidden = *name == '.', known = resolve(d, name, &type, &info, &called);
    if (!known && kind != ABAR_NAME_OTHER) return abar__scan_fail_errno(s, d->path, name, errno);
    if (hidden || !known || (type != DT_DIR && kind == ABAR_NAME_OTHER)) {
        s->index->head.ignored++;
        return ABAR_OK;
    }
    ABAR_TRY(abar__scan_join(s, d->path, name, path));
    if (type == DT_DIR) {
        pending next = {.parent = d->place};
        ABAR_TRY(abar__scan_string(s, path, strlen(path), &next.path));
        return abar__text_append(s->ctx, &s->pending, &next, sizeof next);
    }
    if (kind == ABAR_NAME_REFUSED) return abar__scan_refuse(s, d->path, name);
    if (!called && fstatat(d->fd, name, &info, 0) != 0) return abar__scan_fail_errno(s, d->path, name, errno);
    ABAR_TRY(check_image(s, d, name, &info));
    abar__found found = {.place = d->place, .size = (uint32_t)info.st_size};
    ABAR_TRY(abar__scan_string(s, name, strlen(name), &found.name));
    return abar__scan_add_found(s, &found);
}

abar_status abar__scan_walk(abar__scan *s, const char *path, uint32_t parent)
{
    char copy[ABAR_IMAGES_PATH_MAX];
    uint32_t place;
    s->pending.length = 0;
    ABAR_TRY(read_directory(s, path, parent, walk_entry, NULL, &place));
    for (size_t i = 0; i < s->pending.length / sizeof(pending); i++) {
        const pending next = ((const pending *)s->pending.data)[i];
        snprintf(copy, sizeof copy, "%s", s->names->data + next.path);
        ABAR_TRY(read_directory(s, copy, next.parent, walk_entry, NULL, &place));
    }
    return ABAR_OK;
}

/* ---- the order ----------------------------------------------------------------------------------------------- */

abar_status abar__scan_add_found(abar__scan *s, const abar__found *found)
{
    return abar__text_append(s->ctx, &s->found, found, sizeof *found);
}

static int compare_found(const void *a, const void *b)
{
    const abar__found *x = a, *y = b;
    if (x->label != y->label) return x->label < y->label ? -1 : 1;
    const int folders = x->place == y->place ? 0 : strcmp(x->folder, y->folder);
    if (folders != 0) return folders;
    const int names = strcmp(x->text, y->text);
    return names != 0 ? names : (x->offset > y->offset) - (x->offset < y->offset); /* twice in an archive */
}

abar_status abar__scan_emit(abar__scan *s, int part, bool keep_order)
{
    const int64_t count = abar__scan_found_count(s);
    const bool archives = s->index->head.layout == ABAR_LAYOUT_ARCHIVES || s->index->head.layout == ABAR_LAYOUT_SHARDS;
    abar__text *samples = &s->index->text[ABAR_SECTION_SAMPLES + part];
    if ((int64_t)(samples->length / sizeof(abar__sample)) + count > INT32_MAX)
        return abar__scan_fail(s, ABAR_E_UNSUPPORTED, "", "", "has more than 2147483647 images in a part, split it");
    for (int64_t i = 0; i < count; i++) {
        abar__found *f = abar__scan_found_at(s, i);
        f->folder = s->names->data + place_at(s, f->place)->path;
        f->text = s->names->data + f->name;
    }
    if (!keep_order && count > 1) qsort(s->found.data, (size_t)count, sizeof(abar__found), compare_found);
    for (int64_t i = 0; i < count; i++) {
        const abar__found *f = abar__scan_found_at(s, i);
        const abar__sample sample = {.place = f->place, .name = f->name, .size = f->size, .label = f->label};
        ABAR_TRY(abar__text_append(s->ctx, samples, &sample, sizeof sample));
        if (archives)
            ABAR_TRY(abar__text_append(s->ctx, &s->index->text[ABAR_SECTION_OFFSETS + part], &f->offset, sizeof f->offset));
        s->index->head.file_bytes[part] += f->size;
    }
    s->found.length = 0;
    return ABAR_OK;
}
