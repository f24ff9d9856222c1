/* Reading the files of an index. An I/O error of a disk or a network is tried again: it is no damaged image. */
#include "data/images/index_impl.h"
#include "io/files_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define ARCHIVES_OPEN 512 /* archives that are kept open: processes may have 1024 descriptors */

/* Sleeps before the next try; false: error is not one that goes away, or there were enough tries. */
static bool try_again(int error, int tries)
{
    static const struct timespec waits[] = {{0, 100000000}, {1, 0}, {5, 0}};
    if ((error != EIO && error != ESTALE && error != ETIMEDOUT) || tries >= (int)(sizeof waits / sizeof *waits)) return false;
    struct timespec left = waits[tries];
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
    return true;
}

static ssize_t pread_once(int fd, void *out, size_t n, uint64_t at)
{
    size_t have = 0;
    while (have < n) {
        const ssize_t got = pread(fd, (char *)out + have, n - have, (off_t)(at + have));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

ssize_t abar__images_pread(int fd, void *out, size_t n, uint64_t at)
{
    for (int tries = 0;; tries++) {
        const ssize_t got = pread_once(fd, out, n, at);
        if (got >= 0) return got;
        const int error = errno;
        if (!try_again(error, tries)) {
            errno = error;
            return -1;
        }
    }
}

static int open_once(const abar__images_index *index, const char *path)
{
    int fd;
    do fd = openat(index->folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe must not block */
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* n bytes at an offset of the open file, whose size must be `size`. */
static abar__images_found read_open(int fd, uint64_t size, uint8_t *buffer, size_t n, uint64_t at)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return ABAR_IMAGES_FAILED;
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != size) return ABAR_IMAGES_CHANGED;
    const ssize_t got = pread_once(fd, buffer, n, at);
    if (got < 0) return ABAR_IMAGES_FAILED;
    return (size_t)got == n ? ABAR_IMAGES_READ : ABAR_IMAGES_CHANGED;
}

/* A stale descriptor of a network file system is renewed by opening the file again, so each try opens it. */
static abar__images_found read_path(const abar__images_index *index, const char *path, uint64_t size, uint8_t *buffer, size_t n,
                                    uint64_t at)
{
    const int fd = open_once(index, path);
    if (fd < 0) return ABAR_IMAGES_FAILED;
    const abar__images_found found = read_open(fd, size, buffer, n, at);
    const int error = errno;
    close(fd);
    errno = error;
    return found;
}

/* The first n bytes of a sample. */
static abar__images_found read_sample(const abar__images_index *index, int part, int64_t i, uint8_t *buffer, size_t n,
                                      bool again)
{
    char path[2 * ABAR_IMAGES_PATH_MAX];
    const abar__sample *sample = abar__images_sample(index, part, i);
    const abar__place *place = abar__images_place(index, sample->place);
    if (place->kind == ABAR_PLACE_FOLDER) {
        snprintf(path, sizeof path, "%s/%s", abar__images_string(index, place->path), abar__images_string(index, sample->name));
        return read_path(index, path, sample->size, buffer, n, 0);
    }
    const uint32_t number = place->kind == ABAR_PLACE_INNER ? place->parent : sample->place;
    const abar__place *archive = abar__images_place(index, number);
    const uint64_t at = abar__images_offset(index, part, i), size = (uint64_t)archive->size;
    if (index->archives[number] >= 0 && !again) return read_open(index->archives[number], size, buffer, n, at);
    return read_path(index, abar__images_string(index, archive->path), size, buffer, n, at);
}

abar__images_found abar__images_read_start(const abar__images_index *index, int part, int64_t i, uint8_t *buffer, size_t n)
{
    const int64_t place = index->chosen[part] ? index->chosen[part][i] : i;
    for (int tries = 0;; tries++) {
        const abar__images_found found = read_sample(index, part, place, buffer, n, tries > 0);
        const int error = errno;
        if (found != ABAR_IMAGES_FAILED || !try_again(error, tries)) {
            errno = error;
            return found;
        }
    }
}

abar__images_found abar__images_read(const abar__images_index *index, int part, int64_t i, uint8_t *buffer)
{
    return abar__images_read_start(index, part, i, buffer, (size_t)abar__images_size(index, part, i));
}

abar_status abar__images_open_archives(abar__images_index *index)
{
    const uint32_t places = (uint32_t)(index->head.bytes[ABAR_SECTION_PLACES] / sizeof(abar__place));
    int open = 0;
    void *memory;
    if (index->head.layout != ABAR_LAYOUT_ARCHIVES && index->head.layout != ABAR_LAYOUT_SHARDS) return ABAR_OK;
    ABAR_TRY(abar__alloc(index->ctx, places * sizeof(int), &memory));
    index->archives = memory;
    for (uint32_t i = 0; i < places; i++) index->archives[i] = -1;
    for (uint32_t i = 0; i < places && open < ARCHIVES_OPEN; i++) {
        const abar__place *place = abar__images_place(index, i);
        if (place->kind != ABAR_PLACE_ARCHIVE) continue;
        index->archives[i] = open_once(index, abar__images_string(index, place->path));
        if (index->archives[i] >= 0) open++; /* else reading it says why */
    }
    return ABAR_OK;
}
