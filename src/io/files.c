/* Files: replaced atomically (temporary file, fsync, rename, fsync of the folder), grown, read whole; folders made and
 * locked. */
#include "io/io.h"
#include "io/files_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- what the system said ---------------------------------------------------------------------------------------- */

static const struct {
    int error;
    abar_status status;
    const char *text;
} failures[] = {
    {ENOENT, ABAR_E_NOT_FOUND, "no such file or folder, check the path"},
    {ENOTDIR, ABAR_E_NOT_FOUND, "a part of the path is not a folder, check the path"},
    {EISDIR, ABAR_E_IO, "is a folder, give a file"},
    {EACCES, ABAR_E_IO, "permission denied, change the permissions or choose another path"},
    {EPERM, ABAR_E_IO, "operation not permitted, change the permissions or choose another path"},
    {EROFS, ABAR_E_IO, "read-only file system, choose another path"},
    {ENOSPC, ABAR_E_IO, "no space left on device, free some or use another disk"},
    {EDQUOT, ABAR_E_IO, "disk quota exceeded, free some space or use another disk"},
    {EFBIG, ABAR_E_IO, "file too large, raise the limit (ulimit -f) or use another disk"},
    {EIO, ABAR_E_IO, "input/output error, check the disk"},
    {EMFILE, ABAR_E_IO, "too many open files, raise the limit (ulimit -n)"},
    {ELOOP, ABAR_E_IO, "is a link that leads back to itself, remove it"},
    {ENAMETOOLONG, ABAR_E_ARGUMENT, "name too long, choose a shorter one"},
    {ENOMEM, ABAR_E_MEMORY, "the system is out of memory, free some"},
};

abar_status abar__fail_errno(abar_context *ctx, const char *path, int error)
{
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        if (failures[i].error == error) return abar__fail(ctx, failures[i].status, "%s: %s", path, failures[i].text);
    char text[128] = "";
    if (strerror_r(error, text, sizeof text) != 0) text[0] = '\0';
    return abar__fail(ctx, ABAR_E_IO, "%s: %s (error %d), check the path and its disk", path, *text ? text : "system error",
                      error);
}

bool abar__write_all(int fd, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t done = write(fd, p, n < SSIZE_MAX ? n : SSIZE_MAX);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        p += done;
        n -= (size_t)done;
    }
    return true;
}

/* ---- replacing --------------------------------------------------------------------------------------------------- */

void abar__replacement_abandon(abar__replacement *r)
{
    if (r->fd >= 0) close(r->fd);
    unlink(r->temporary.data);
    abar__text_free(r->ctx, &r->temporary);
}

/* Removes the temporary file and reports that the old file is unchanged. */
static abar_status replacement_fail(abar__replacement *r, int error)
{
    abar__replacement_abandon(r);
    abar_status status = abar__fail_errno(r->ctx, r->path, error);
    if (access(r->path, F_OK) != 0) return status;
    return abar__fail(r->ctx, status, "%s; the old file is unchanged", abar_context_error(r->ctx));
}

abar_status abar__replacement_begin(abar_context *ctx, const char *path, abar__replacement *out)
{
    *out = (abar__replacement){.ctx = ctx, .path = path, .fd = -1};
    ABAR_TRY(abar__text_printf(ctx, &out->temporary, "%s.tmp-%ld", path, (long)getpid()));
    unlink(out->temporary.data); /* a killed process with the same id may have left one */
    out->fd = open(out->temporary.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return out->fd < 0 ? replacement_fail(out, errno) : ABAR_OK;
}

abar_status abar__replacement_write(abar__replacement *r, const void *bytes, size_t n)
{
    return abar__write_all(r->fd, bytes, n) ? ABAR_OK : replacement_fail(r, errno);
}

abar_status abar__replacement_rewrite(abar__replacement *r, const void *bytes, size_t n)
{
    const char *p = bytes;
    for (size_t done = 0; done < n;) {
        ssize_t now = pwrite(r->fd, p + done, n - done < SSIZE_MAX ? n - done : SSIZE_MAX, (off_t)done);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0) return replacement_fail(r, errno);
        done += (size_t)now;
    }
    return ABAR_OK;
}

/* The folder of a path, open; -1 with errno set. buffer is scratch. */
static int open_folder_of(char *buffer)
{
    char *slash = strrchr(buffer, '/');
    if (!slash) return open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    slash[slash == buffer] = '\0'; /* "/name" is in "/" */
    return open(buffer, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

abar_status abar__replacement_commit(abar__replacement *r)
{
    if (fsync(r->fd) != 0) return replacement_fail(r, errno);
    int closed = close(r->fd);
    r->fd = -1;
    if (closed != 0 || rename(r->temporary.data, r->path) != 0) return replacement_fail(r, errno);
    int folder = open_folder_of(r->temporary.data);
    int error = folder < 0 || fsync(folder) != 0 ? errno : 0;
    if (folder >= 0) close(folder);
    abar__text_free(r->ctx, &r->temporary);
    if (error == 0 || error == EINVAL || error == EACCES)
        return ABAR_OK; /* folders that cannot be synced or opened are ignored */
    return abar__fail_errno(r->ctx, r->path, error);
}

abar_status abar__file_replace(abar_context *ctx, const char *path, const void *bytes, size_t n)
{
    abar__replacement r;
    ABAR_TRY(abar__replacement_begin(ctx, path, &r));
    ABAR_TRY(abar__replacement_write(&r, bytes, n));
    return abar__replacement_commit(&r);
}

/* ---- growing ----------------------------------------------------------------------------------------------------- */

/* Cuts an existing file to keep bytes and goes to its end. */
static abar_status growing_cut(abar__growing *file, uint64_t keep)
{
    struct stat info;
    if (fstat(file->fd, &info) != 0) return abar__fail_errno(file->ctx, file->path.data, errno);
    if ((uint64_t)info.st_size < keep)
        return abar__fail(file->ctx, ABAR_E_FORMAT,
                          "%s: has %jd of the %" PRIu64 " bytes that the checkpoint expects, restore it or start a new run",
                          file->path.data, (intmax_t)info.st_size, keep);
    if (ftruncate(file->fd, (off_t)keep) != 0 || lseek(file->fd, 0, SEEK_END) < 0)
        return abar__fail_errno(file->ctx, file->path.data, errno);
    file->bytes = keep;
    return ABAR_OK;
}

abar_status abar__growing_open(abar_context *ctx, const char *path, uint64_t keep, abar__growing *out)
{
    *out = (abar__growing){.ctx = ctx, .fd = -1};
    ABAR_TRY(abar__text_append(ctx, &out->path, path, strlen(path)));
    out->fd = open(path, O_WRONLY | O_CLOEXEC | (keep > 0 ? 0 : O_CREAT | O_TRUNC), 0666);
    abar_status status = out->fd < 0 ? abar__fail_errno(ctx, path, errno) : keep > 0 ? growing_cut(out, keep) : ABAR_OK;
    if (status < 0) abar__growing_close(out);
    return status;
}

abar_status abar__growing_write(abar__growing *file, const void *bytes, size_t n)
{
    if (!abar__write_all(file->fd, bytes, n)) {
        int error = errno;
        if (ftruncate(file->fd, (off_t)file->bytes) == 0) (void)lseek(file->fd, 0, SEEK_END);
        return abar__fail_errno(file->ctx, file->path.data, error);
    }
    file->bytes += n;
    return ABAR_OK;
}

abar_status abar__growing_sync(abar__growing *file)
{
    if (fsync(file->fd) == 0 || errno == EINVAL) return ABAR_OK; /* EINVAL: a device or pipe, nothing to sync */
    return abar__fail_errno(file->ctx, file->path.data, errno);
}

abar_status abar__growing_close(abar__growing *file)
{
    abar_status status = ABAR_OK;
    if (file->fd >= 0 && close(file->fd) != 0) status = abar__fail_errno(file->ctx, file->path.data, errno);
    abar__text_free(file->ctx, &file->path);
    file->fd = -1;
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

abar_status abar__read_all(abar_context *ctx, const char *path, int fd, size_t max, abar__text *out)
{
    char chunk[16384];
    ABAR_TRY(abar__text_append(ctx, out, "", 0)); /* an empty file is an empty string, not NULL */
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return abar__fail_errno(ctx, path, errno);
        if (n == 0) return ABAR_OK;
        if ((size_t)n > max - out->length)
            return abar__fail(ctx, ABAR_E_FORMAT, "%s: larger than the %zu bytes it may have, check that it is the right file",
                              path, max);
        ABAR_TRY(abar__text_append(ctx, out, chunk, (size_t)n));
    }
}

abar_status abar__file_read(abar_context *ctx, const char *path, size_t max, abar__text *out)
{
    *out = (abar__text){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe must not block */
    if (fd < 0) return abar__fail_errno(ctx, path, errno);
    abar_status status = abar__read_all(ctx, path, fd, max, out);
    close(fd);
    if (status < 0) abar__text_free(ctx, out);
    return status;
}

static bool holds(const char *bytes, size_t have, const char *text, size_t n)
{
    for (size_t i = 0; i + n <= have; i++)
        if (bytes[i] == text[0] && memcmp(bytes + i, text, n) == 0) return true;
    return false;
}

/* Consecutive chunks overlap by the text's length less one, so that the text is found across their border. */
static abar_status search(abar_context *ctx, const char *path, int fd, const char *text, bool *out)
{
    char chunk[16384];
    const size_t n = strlen(text);
    for (size_t have = 0; !*out;) {
        ssize_t more = read(fd, chunk + have, sizeof chunk - have);
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) return abar__fail_errno(ctx, path, errno);
        if (more == 0) return ABAR_OK;
        have += (size_t)more;
        *out = holds(chunk, have, text, n);
        const size_t kept = have < n ? have : n - 1;
        memmove(chunk, chunk + have - kept, kept);
        have = kept;
    }
    return ABAR_OK;
}

abar_status abar__file_contains(abar_context *ctx, const char *path, const char *text, bool *out)
{
    *out = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return ABAR_OK;
    if (fd < 0) return abar__fail_errno(ctx, path, errno);
    abar_status status = search(ctx, path, fd, text, out);
    close(fd);
    return status;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

bool abar__path_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Makes every folder of path, a scratch copy, from the top. False with errno set; path then ends at the folder that failed. */
static bool make_each(char *path)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != '\0') continue;
        char was = *p;
        *p = '\0';
        int error = mkdir(path, 0777) != 0 ? errno : 0;
        if (error && !is_folder(path)) {
            errno = error == EEXIST ? ENOTDIR : error;
            return false;
        }
        *p = was;
        if (!was) return true;
    }
}

abar_status abar__folder_make(abar_context *ctx, const char *path)
{
    if (!*path) return abar__fail(ctx, ABAR_E_ARGUMENT, "folder: its name is empty, give one");
    abar__text copy = {0};
    ABAR_TRY(abar__text_append(ctx, &copy, path, strlen(path)));
    abar_status status = make_each(copy.data) ? ABAR_OK : abar__fail_errno(ctx, copy.data, errno);
    abar__text_free(ctx, &copy);
    return status;
}

/* "state.safetensors.tmp-4711" */
static bool is_temporary(const char *name)
{
    const char *mark = strstr(name, ".tmp-");
    return mark && mark[5] && strspn(mark + 5, "0123456789") == strlen(mark + 5);
}

/* Removes the temporary files of killed processes; the lock is held, so nobody is writing. */
static void sweep(const char *dir)
{
    DIR *folder = opendir(dir);
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (is_temporary(entry->d_name)) unlinkat(dirfd(folder), entry->d_name, 0);
    closedir(folder);
}

/* Tries for a tenth of a second: abar__folder_locked holds locks for a moment. */
static int lock(int fd)
{
    const struct timespec moment = {.tv_nsec = 5000000};
    for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK || tries == 20) return errno;
        nanosleep(&moment, NULL);
    }
    return 0;
}

bool abar__folder_locked(int folder)
{
    const int fd = openat(folder, ".lock", O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return false;
    const bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return locked;
}

abar_status abar__folder_lock(abar_context *ctx, const char *dir, int *out_fd)
{
    *out_fd = -1;
    abar__text path = {0};
    ABAR_TRY(abar__text_printf(ctx, &path, "%s/.lock", dir));
    int fd = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int error = fd < 0 ? errno : lock(fd);
    abar_status status = ABAR_OK;
    if (error == EWOULDBLOCK)
        status = abar__fail(ctx, ABAR_E_BUSY, "%s: another run is using this folder, choose another --out or wait", dir);
    else if (error)
        status = abar__fail_errno(ctx, path.data, error);
    abar__text_free(ctx, &path);
    if (status < 0 && fd >= 0) close(fd);
    if (status < 0) return status;
    sweep(dir);
    *out_fd = fd;
    return ABAR_OK;
}

void abar__folder_unlock(int fd)
{
    if (fd >= 0) close(fd); /* .lock stays: removing it would race with whoever opens it next */
}
