/* Runs a fuzz target over every file of a corpus folder: the ordinary suite's stand-in for libFuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* Of libFuzzer, for targets that change inputs themselves; nothing is changed here. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size)
{
    (void)data;
    (void)max_size;
    return size;
}

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) return 1;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    int failed = !data || size < 0 || fread(data, 1, (size_t)size, file) != (size_t)size;
    if (!failed) LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    fclose(file);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    DIR *folder = opendir(argv[1]);
    if (!folder) {
        fprintf(stderr, "%s: no such corpus\n", argv[1]);
        return 1;
    }
    int files = 0, failed = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        failed += replay(path);
        files++;
    }
    closedir(folder);
    printf("%d inputs replayed, %d unreadable\n", files, failed);
    return files == 0 || failed != 0;
}
