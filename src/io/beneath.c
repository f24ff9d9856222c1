/* Files below a folder, opened name by name from the folder's handle: no link leads out of it, not even one that is made while
 * the tree is read. */
#include "io/beneath.h"
#include "io/files_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_one_name(const char *name)
{
    return name[0] && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !strchr(name, '/');
}

int abar__beneath_folder(int folder, const char *name)
{
    if (!is_one_name(name)) {
        errno = ENOENT;
        return -1;
    }
    return openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int abar__beneath_file(int folder, const char *name, struct stat *info)
{
    errno = ENOENT;
    if (!is_one_name(name)) return -1;
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); /* opening a pipe must not block */
    if (fd < 0) return -1;
    if (fstat(fd, info) == 0 && S_ISREG(info->st_mode)) return fd;
    close(fd);
    errno = ENOENT;
    return -1;
}

abar_status abar__beneath_read(abar_context *ctx, int folder, const char *name, const char *label, size_t max, abar__text *out)
{
    struct stat info;
    *out = (abar__text){0};
    const int fd = abar__beneath_file(folder, name, &info);
    if (fd < 0) return abar__fail_errno(ctx, label, errno);
    const abar_status status = abar__read_all(ctx, label, fd, max, out);
    close(fd);
    if (status < 0) abar__text_free(ctx, out);
    return status;
}

static int in_order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Names that begin with a point are left out. */
static abar_status collect(abar_context *ctx, DIR *open, abar__text *text, size_t *n)
{
    for (struct dirent *entry; (entry = readdir(open));) {
        if (entry->d_name[0] == '.') continue;
        ABAR_TRY(abar__text_append(ctx, text, entry->d_name, strlen(entry->d_name) + 1));
        ++*n;
    }
    return ABAR_OK;
}

abar_status abar__beneath_list(abar_context *ctx, int folder, abar__names *out)
{
    void *memory = NULL;
    *out = (abar__names){0};
    const int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    errno = 0;
    DIR *open = copy >= 0 ? fdopendir(copy) : NULL;
    if (!open) {
        const bool memory_was_short = errno == ENOMEM;
        if (copy >= 0) close(copy);
        return memory_was_short ? abar__fail(ctx, ABAR_E_MEMORY, "a folder: not enough memory to list it, free some") : ABAR_OK;
    }
    abar_status status = collect(ctx, open, &out->text, &out->n);
    closedir(open);
    if (status >= 0) status = abar__alloc(ctx, out->n * sizeof *out->name, &memory);
    if (status < 0) {
        abar__text_free(ctx, &out->text);
        *out = (abar__names){0};
        return status;
    }
    out->name = memory;
    char *at = out->text.data;
    for (size_t i = 0; i < out->n; i++, at += strlen(at) + 1) out->name[i] = at;
    if (out->n > 0) qsort(out->name, out->n, sizeof *out->name, in_order);
    return ABAR_OK;
}

void abar__names_free(abar_context *ctx, abar__names *names)
{
    abar__free(ctx, names->name, names->n * sizeof *names->name);
    abar__text_free(ctx, &names->text);
    *names = (abar__names){0};
}
