/* The folder of cache files, from the environment, and how its files are replaced. */
#include "base/cache_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the folder ------------------------------------------------------------------------------------------------- */

bool abar__cache_folder(char *out, size_t size)
{
    const char *own = getenv("ABAR_CACHE"), *all = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (own && *own)
        length = strcmp(own, "off") == 0 ? -1 : snprintf(out, size, "%s", own);
    else if (all && *all == '/') /* the XDG standard says that relative paths are to be ignored */
        length = snprintf(out, size, "%s/abar", all);
    else
        length = home && *home == '/' ? snprintf(out, size, "%s/.cache/abar", home) : -1;
    return length > 0 && (size_t)length < size;
}

void abar__cache_make_folder(const char *path)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(part, 0777); /* it exists already, or writing the file fails */
        *slash = '/';
    }
}

/* ---- its files -------------------------------------------------------------------------------------------------- */

/* Whether fd is the file that has this name now. */
static bool is_named(int fd, int folder, const char *name)
{
    struct stat own, named;
    return fstat(fd, &own) == 0 && fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && own.st_ino == named.st_ino &&
           own.st_dev == named.st_dev;
}

int abar__cache_begin(const char *path, const void *owner, char *temporary, size_t size)
{
    const int n = snprintf(temporary, size, "%s.%ld-%" PRIxPTR, path, (long)getpid(), (uintptr_t)owner);
    if (n < 0 || (size_t)n >= size) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (;;) { /* again where a sweep came between opening and locking */
        const int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || is_named(fd, AT_FDCWD, temporary)) return fd; /* or there are no locks here */
        close(fd);
    }
}

bool abar__cache_end(int fd, bool good, const char *temporary, const char *path)
{
    good = good && rename(temporary, path) == 0; /* before the lock goes with fd */
    const int error = errno;
    if (!good) unlink(temporary);
    if (close(fd) != 0 && good) return false;
    errno = error;
    return good;
}

/* "NAME.4711-55d0c0ffee": of these names, all that follows NAME. */
static bool is_temporary(const char *suffix)
{
    const size_t process = *suffix == '.' ? strspn(suffix + 1, "0123456789") : 0;
    const char *owner = suffix + 1 + process;
    return process > 0 && *owner == '-' && owner[1] && owner[1 + strspn(owner + 1, "0123456789abcdef")] == '\0';
}

static void remove_stale(int folder, const char *name)
{
    const int fd = openat(folder, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_named(fd, folder, name)) unlinkat(folder, name, 0);
    close(fd);
}

void abar__cache_sweep(const char *path)
{
    char where[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) >= sizeof where) return;
    snprintf(where, sizeof where, "%.*s", (int)(slash - path) + (slash == path), path);
    DIR *folder = opendir(where);
    if (!folder) return;
    const size_t n = strlen(slash + 1);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (strncmp(entry->d_name, slash + 1, n) == 0 && is_temporary(entry->d_name + n))
            remove_stale(dirfd(folder), entry->d_name);
    closedir(folder);
}
