/* Times the index of an image set with ImageNet's numbers: the first open, which scans, and the second, which reads the cache.
 *
 *     bench_images_index make DIR [PER_CLASS]    1,000 classes: PER_CLASS (1281) training files of a few bytes, 50 test files
 * each bench_images_index open DIR                opens DIR once; with ABAR_CACHE set it is scanned or read from the cache
 *
 * Delete DIR afterwards. `open` prints seconds, the index's bytes, the context's peak, and the largest resident set. */
#include "data/images/index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CLASSES = 1000, TEST = 50 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool make_class(const char *folder, const char *part, int class, int count)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/n%08d", folder, part, 1440764 + class);
    if (mkdir(path, 0777) != 0 && errno != EEXIST) return false;
    const int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = directory >= 0;
    for (int i = 0; i < count && good; i++) {
        char name[64];
        snprintf(name, sizeof name, "n%08d_%d.JPEG", 1440764 + class, i);
        const int fd = openat(directory, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        good = fd >= 0 && write(fd, name, 3 + (size_t)i % 5) > 0;
        if (fd >= 0) close(fd);
    }
    if (directory >= 0) close(directory);
    return good;
}

static int make(const char *folder, int per_class)
{
    char path[4096];
    static const char *const parts[] = {"", "/train", "/val"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", folder, parts[i]);
        if (mkdir(path, 0777) != 0 && errno != EEXIST) return perror(path), 1;
    }
    for (int class = 0; class < CLASSES; class ++) {
        const int count = per_class + (per_class == 1281 && class < 167); /* 1,281,167 in all */
        if (!make_class(folder, "train", class, count) || !make_class(folder, "val", class, TEST)) return perror(folder), 1;
    }
    return 0;
}

static int open_once(const char *folder)
{
    abar_context *ctx;
    abar__images_index *index;
    struct rusage usage;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 1;
    const double start = now();
    if (abar__images_open(ctx, &(abar__images_request){.folder = folder}, &index) != ABAR_OK) {
        fprintf(stderr, "%s\n", abar_context_error(ctx));
        return 1;
    }
    const double seconds = now() - start;
    const abar__images_summary *sum = abar__images_summary_of(index);
    getrusage(RUSAGE_SELF, &usage);
    printf("%s: %" PRId64 " + %" PRId64 " images, %" PRId64 " classes, %.2f s, index %.1f MB, peak %.1f MB, resident %.1f MB\n",
           sum->from_cache ? "cache" : "scan", sum->count[0], sum->count[1], sum->classes, seconds,
           1e-6 * (double)abar__images_index_bytes(index), 1e-6 * (double)abar_context_memory(ctx).peak,
           1e-3 * (double)usage.ru_maxrss);
    abar__images_close(index);
    abar_context_destroy(ctx);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "make") == 0) return make(argv[2], argc > 3 ? atoi(argv[3]) : 1281);
    if (argc == 3 && strcmp(argv[1], "open") == 0) return open_once(argv[2]);
    fprintf(stderr, "usage: bench_images_index make DIR [PER_CLASS] | open DIR\n");
    return 2;
}
