/* The cache of an index: a head, the sections and a CRC-32 of them, in this machine's byte order. Whatever is wrong with it,
 * the folder is scanned again. */
#include "data/images/index_impl.h"
#include "base/cache_folder.h"
#include "base/hash.h"
#include "io/files_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#define MAGIC "abar-img"
#define VERSION 1
#define BYTE_ORDER_MARK 0x01020304u

static const size_t element_bytes[ABAR_SECTIONS] = {
    sizeof(abar__place),  sizeof(uint64_t),     sizeof(uint64_t),
    sizeof(abar__sample), sizeof(abar__sample), sizeof(abar__class_row),
    sizeof(abar__fact),   sizeof(abar__fact),   1,
};

static size_t elements(const abar__images_index *index, int section)
{
    return (size_t)(index->head.bytes[section] / element_bytes[section]);
}

/* ---- the bytes ----------------------------------------------------------------------------------------------- */

/* Whether the head is ours and the sections that it announces fill n bytes. */
static bool head_is_right(const abar__images_head *head, size_t n)
{
    const bool archives = head->layout == ABAR_LAYOUT_ARCHIVES || head->layout == ABAR_LAYOUT_SHARDS;
    size_t left = n - sizeof *head - sizeof(uint32_t);
    if (memcmp(head->magic, MAGIC, sizeof head->magic) != 0 || head->version != VERSION) return false;
    if (head->byte_order != BYTE_ORDER_MARK || head->layout > ABAR_LAYOUT_SHARDS) return false;
    for (int k = 0; k < ABAR_SECTIONS; k++) {
        if (head->bytes[k] > left || head->bytes[k] % element_bytes[k] != 0) return false;
        left -= (size_t)head->bytes[k];
    }
    for (int part = 0; part < 2; part++) {
        const uint64_t count = head->bytes[ABAR_SECTION_SAMPLES + part] / sizeof(abar__sample);
        if (count == 0 || count > INT32_MAX || head->bytes[ABAR_SECTION_FACTS + part] != count * sizeof(abar__fact))
            return false;
        if (head->bytes[ABAR_SECTION_OFFSETS + part] != (archives ? count * sizeof(uint64_t) : 0)) return false;
        if (head->file_bytes[part] < 0) return false;
    }
    const uint64_t names = head->bytes[ABAR_SECTION_NAMES], classes = head->bytes[ABAR_SECTION_CLASSES];
    if (left != 0 || names == 0 || names > UINT32_MAX || classes == 0 || classes / sizeof(abar__class_row) > INT32_MAX)
        return false;
    return head->folder < names && head->classes_file < names && head->labels_file < names && head->ignored >= 0 &&
           head->untested >= 0 && head->shrunk >= 0;
}

static bool places_are_right(const abar__images_index *index)
{
    for (uint32_t i = 0; i < elements(index, ABAR_SECTION_PLACES); i++) {
        const abar__place *place = abar__images_place(index, i);
        if (place->path >= index->head.bytes[ABAR_SECTION_NAMES] || place->kind > ABAR_PLACE_FILE || place->size < 0)
            return false;
        if (place->parent != ABAR_PLACE_NONE && place->parent >= i) return false;
        if (place->kind == ABAR_PLACE_INNER &&
            (place->parent == ABAR_PLACE_NONE || abar__images_place(index, place->parent)->kind != ABAR_PLACE_ARCHIVE))
            return false;
        if (strlen(abar__images_string(index, place->path)) >= ABAR_IMAGES_PATH_MAX) return false;
    }
    return true;
}

/* A sample of an archive must be inside it. */
static bool sample_is_right(const abar__images_index *index, int part, int64_t i)
{
    const abar__sample *sample = abar__images_sample(index, part, i);
    if (sample->place >= elements(index, ABAR_SECTION_PLACES) || sample->name >= index->head.bytes[ABAR_SECTION_NAMES])
        return false;
    if (sample->label < 0 || (size_t)sample->label >= elements(index, ABAR_SECTION_CLASSES)) return false;
    const abar__place *place = abar__images_place(index, sample->place);
    const char first = *abar__images_string(index, place->path); /* a path that is empty or absolute leads elsewhere */
    if (index->head.bytes[ABAR_SECTION_OFFSETS + part] == 0)
        return place->kind == ABAR_PLACE_FOLDER && first != '\0' && first != '/';
    if (place->kind == ABAR_PLACE_INNER) place = abar__images_place(index, place->parent);
    const uint64_t size = (uint64_t)place->size, offset = abar__images_offset(index, part, i);
    return place->kind == ABAR_PLACE_ARCHIVE && offset <= size && sample->size <= size - offset;
}

static bool sections_are_right(const abar__images_index *index)
{
    const uint64_t names = index->head.bytes[ABAR_SECTION_NAMES];
    if (*abar__images_string(index, 0) || *abar__images_string(index, (uint32_t)names - 1)) return false;
    if (!places_are_right(index)) return false;
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < abar__images_all(index, part); i++)
            if (!sample_is_right(index, part, i)) return false;
    const abar__class_row *classes = index->section[ABAR_SECTION_CLASSES];
    for (size_t c = 0; c < elements(index, ABAR_SECTION_CLASSES); c++)
        if (classes[c].name >= names || classes[c].readable >= names) return false;
    for (int part = 0; part < 2; part++) {
        const abar__fact *facts = index->section[ABAR_SECTION_FACTS + part];
        for (int64_t i = 0; i < abar__images_all(index, part); i++)
            if (facts[i].format > ABAR_IMAGE_PNG) return false;
    }
    return true;
}

abar_status abar__images_cache_parse(abar__images_index *index, void *bytes, size_t n)
{
    uint32_t crc;
    if (n < sizeof index->head + sizeof crc) return ABAR_E_FORMAT;
    memcpy(&index->head, bytes, sizeof index->head);
    memcpy(&crc, (char *)bytes + n - sizeof crc, sizeof crc);
    bool right = head_is_right(&index->head, n) && crc == (uint32_t)crc32_z(0, bytes, n - sizeof crc);
    char *at = (char *)bytes + sizeof index->head;
    for (int k = 0; right && k < ABAR_SECTIONS; k++) {
        index->section[k] = at;
        at += index->head.bytes[k];
    }
    right = right && sections_are_right(index);
    if (right) {
        index->block = bytes;
        index->block_bytes = n;
        return ABAR_OK;
    }
    memset(&index->head, 0, sizeof index->head);
    memset(index->section, 0, sizeof index->section);
    return ABAR_E_FORMAT;
}

/* ---- whether it is still true -------------------------------------------------------------------------------- */

static bool place_is_unchanged(const abar__images_index *index, const abar__place *place)
{
    struct stat info;
    const char *path = abar__images_string(index, place->path);
    if (place->kind == ABAR_PLACE_INNER) return true;
    if (fstatat(index->folder, *path ? path : ".", &info, 0) != 0) return false;
    const bool size = place->kind == ABAR_PLACE_FOLDER || (int64_t)info.st_size == place->size;
    return size && (uint64_t)info.st_dev == place->device && (uint64_t)info.st_ino == place->inode &&
           abar__images_modified(&info) == place->modified;
}

bool abar__images_trusted(const abar__images_index *index)
{
    for (uint32_t i = 0; i < elements(index, ABAR_SECTION_PLACES); i++)
        if (!abar__images_place(index, i)->trusted && abar__images_place(index, i)->kind != ABAR_PLACE_INNER) return false;
    return true;
}

/* Only an index that is trusted is ever written. Whether it was made of this folder, with these files, and nothing has changed
 * since. */
static bool is_current(const abar__images_index *index, const char *folder, const char *classes_file, const char *labels_file)
{
    if (strcmp(abar__images_string(index, index->head.folder), folder) != 0 ||
        strcmp(abar__images_string(index, index->head.classes_file), classes_file) != 0 ||
        strcmp(abar__images_string(index, index->head.labels_file), labels_file) != 0)
        return false;
    for (uint32_t i = 0; i < elements(index, ABAR_SECTION_PLACES); i++)
        if (!place_is_unchanged(index, abar__images_place(index, i))) return false;
    return true;
}

/* ---- the file ------------------------------------------------------------------------------------------------ */

/* False: there is no cache folder. The name has FNV-1a of the folder's path in it. */
static bool file_of(const char *folder, char *out, size_t size)
{
    char where[ABAR_IMAGES_PATH_MAX];
    if (!abar__cache_folder(where, sizeof where)) return false;
    const uint64_t hash = abar__hash(ABAR_HASH_START, folder, strlen(folder));
    const int n = snprintf(out, size, "%s/images-%016" PRIx64 ".index", where, hash);
    return n > 0 && (size_t)n < size;
}

/* Takes the file's bytes into index. ABAR_E_FORMAT: it cannot be read. */
static abar_status load(abar__images_index *index, int fd)
{
    struct stat info;
    void *bytes;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= (off_t)sizeof index->head) return ABAR_E_FORMAT;
    const size_t n = (size_t)info.st_size;
    if (pread(fd, &index->head, sizeof index->head, 0) != (ssize_t)sizeof index->head || !head_is_right(&index->head, n))
        return ABAR_E_FORMAT; /* before memory is taken for a foreign file */
    ABAR_TRY(abar__alloc(index->ctx, n, &bytes));
    abar_status status = abar__images_pread(fd, bytes, n, 0) == (ssize_t)n ? ABAR_OK : ABAR_E_FORMAT;
    if (status >= 0) status = abar__images_cache_parse(index, bytes, n);
    if (status < 0) abar__free(index->ctx, bytes, n);
    return status;
}

static void forget(abar__images_index *index)
{
    abar__free(index->ctx, index->block, index->block_bytes);
    index->block = NULL;
    index->block_bytes = 0;
    memset(index->section, 0, sizeof index->section);
    memset(&index->head, 0, sizeof index->head);
}

abar_status abar__images_cache_read(abar__images_index *index, const char *folder, const char *classes_file,
                                    const char *labels_file)
{
    char path[2 * ABAR_IMAGES_PATH_MAX];
    if (!file_of(folder, path, sizeof path)) return ABAR_E_FORMAT;
    abar__cache_sweep(path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ABAR_E_FORMAT;
    abar_status status = load(index, fd);
    close(fd);
    if (status >= 0 && !is_current(index, folder, classes_file, labels_file)) status = ABAR_E_FORMAT;
    if (status < 0) forget(index);
    return status;
}

void abar__images_stamp(abar__images_head *head)
{
    memcpy(head->magic, MAGIC, sizeof head->magic);
    head->version = VERSION;
    head->byte_order = BYTE_ORDER_MARK;
}

static bool write_sections(const abar__images_index *index, int fd)
{
    uLong crc = crc32_z(0, (const Bytef *)&index->head, sizeof index->head);
    if (!abar__write_all(fd, &index->head, sizeof index->head)) return false;
    for (int k = 0; k < ABAR_SECTIONS; k++) {
        const size_t n = (size_t)index->head.bytes[k];
        if (n == 0) continue;
        crc = crc32_z(crc, index->section[k], n);
        if (!abar__write_all(fd, index->section[k], n)) return false;
    }
    const uint32_t sum = (uint32_t)crc;
    return abar__write_all(fd, &sum, sizeof sum);
}

static bool replace_file(abar__images_index *index, const char *path)
{
    char temporary[2 * ABAR_IMAGES_PATH_MAX + 64];
    const int fd = abar__cache_begin(path, index, temporary, sizeof temporary);
    if (fd < 0) return false;
    pthread_mutex_lock(&index->lock); /* else the sum may be of other facts than the file's */
    const bool written = write_sections(index, fd);
    const int error = errno;
    pthread_mutex_unlock(&index->lock);
    errno = error;
    return abar__cache_end(fd, written && fsync(fd) == 0, temporary, path);
}

bool abar__images_cache_write(abar__images_index *index)
{
    char path[2 * ABAR_IMAGES_PATH_MAX], shown[640];
    if (!file_of(abar__images_string(index, index->head.folder), path, sizeof path)) return false;
    abar__cache_make_folder(path);
    if (replace_file(index, path)) return true;
    const int error = errno;
    char reason[128] = "";
    if (index->told) return false;
    index->told = true;
    if (strerror_r(error, reason, sizeof reason) != 0) reason[0] = '\0';
    abar__images_escape(path, shown, sizeof shown);
    abar__log(index->ctx, ABAR_LOG_WARNING,
              "%s: cannot be written (%s): the images are looked for again next time, see ABAR_CACHE", shown, reason);
    return false;
}

void abar__images_drop_cache(const abar__images_index *index)
{
    char path[2 * ABAR_IMAGES_PATH_MAX];
    if (file_of(abar__images_string(index, index->head.folder), path, sizeof path)) unlink(path);
}
