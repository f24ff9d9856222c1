/* A run that resumes meets any log.jsonl: whether it tells of a second epoch, and a log that is cut to what the checkpoint
 * counts on and grows from there. The first two bytes are that count. */
#define _GNU_SOURCE /* memfd_create */
#include "io/io.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE "{\"epoch\": 2, \"train_loss\": 1}"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

/* As a resumed run looks for it. A zero byte, as a machine that crashed may leave it, ends nothing. */
static void check_search(abar_context *ctx, const char *path, const char *log, size_t n)
{
    static const char line[] = "{\"epoch\": 2,";
    bool there = false, found;
    for (size_t i = 0; i + strlen(line) <= n && !there; i++) there = memcmp(log + i, line, strlen(line)) == 0;
    require(abar__file_contains(ctx, path, line, &found) == ABAR_OK && found == there);
}

static void check_growth(abar_context *ctx, const char *path, int fd, size_t n, uint64_t keep)
{
    abar__jsonl *open;
    struct stat info;
    char back[sizeof LINE];
    const abar_status status = abar__jsonl_open(ctx, path, keep, &open);
    require(keep > n ? status == ABAR_E_FORMAT && !open : status == ABAR_OK);
    if (open) {
        require(abar__jsonl_write(open, LINE) == ABAR_OK && abar__jsonl_bytes(open) == keep + strlen(LINE) + 1);
        require(abar__jsonl_close(open) == ABAR_OK);
        require(pread(fd, back, sizeof back, (off_t)keep) == (ssize_t)sizeof back && memcmp(back, LINE "\n", sizeof back) == 0);
    }
    require(fstat(fd, &info) == 0 && (uint64_t)info.st_size == (open ? keep + sizeof back : n));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    abar_context *ctx;
    if (size < 2) return 0;
    const uint64_t keep = data[0] + 256u * data[1];
    const int fd = memfd_create("log", MFD_CLOEXEC);
    if (fd < 0 || abar_context_create(NULL, &ctx) != ABAR_OK) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    require(pwrite(fd, data + 2, size - 2, 0) == (ssize_t)size - 2);
    check_search(ctx, path, (const char *)data + 2, size - 2);
    check_growth(ctx, path, fd, size - 2, keep);
    close(fd);
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
