/* The binary version of CIFAR-10 and CIFAR-100: records of one or two label bytes and 3 x 32 x 32 image bytes, nothing
 * else. The last label byte is the class. */
#include "data/data_impl.h"
#include "data/source.h"

#include <string.h>

static int64_t label_bytes(const abar__data_kind *kind) { return kind->label_range[1] > 0 ? 2 : 1; }
static int64_t image_bytes(const abar__data_kind *kind) { return kind->shape[0] * kind->shape[1] * kind->shape[2]; }

abar_status abar__cifar_count(abar_context *ctx, const char *label, size_t n, const abar__data_kind *kind, int64_t *out)
{
    size_t record = (size_t)(label_bytes(kind) + image_bytes(kind));
    *out = 0;
    if (n == 0 || n % record != 0)
        return abar__fail(ctx, ABAR_E_FORMAT,
                          "%s: %zu bytes are not a whole number of %zu-byte records, replace it with a fresh copy", label, n,
                          record);
    *out = (int64_t)(n / record);
    return ABAR_OK;
}

abar_status abar__cifar_parse(abar_context *ctx, const char *label, const uint8_t *bytes, int64_t count,
                              const abar__data_kind *kind, int64_t keep, uint8_t *images, int32_t *labels)
{
    int64_t head = label_bytes(kind), image = image_bytes(kind);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *record = bytes + i * (head + image);
        for (int64_t j = 0; j < head; j++)
            if (record[j] >= kind->label_range[j])
                return abar__fail(ctx, ABAR_E_FORMAT,
                                  "%s: label %d of record %lld is not in 0..%lld, replace it with a fresh copy", label,
                                  record[j], (long long)i, (long long)kind->label_range[j] - 1);
        if (i >= keep) continue;
        labels[i] = record[head - 1];
        memcpy(images + i * image, record + head, (size_t)image);
    }
    return ABAR_OK;
}

/* Appends up to part->count - *filled samples of one file. */
static abar_status read_file(abar_dataset *data, const char *file, abar__part *part, int64_t *filled)
{
    char path[ABAR_PATH_MAX];
    uint8_t *bytes;
    size_t n;
    int64_t count, room = part->count - *filled;
    abar__data_path(data, file, path);
    ABAR_TRY(abar__source_load(data->ctx, path, ABAR_SOURCE_MAX, &bytes, &n));
    abar_status status = abar__cifar_count(data->ctx, path, n, data->kind, &count);
    if (status == ABAR_OK) {
        int64_t keep = count < room ? count : room;
        status = abar__cifar_parse(data->ctx, path, bytes, count, data->kind, keep,
                                   part->images + *filled * image_bytes(data->kind), part->labels + *filled);
        *filled += keep;
    }
    abar__free(data->ctx, bytes, n);
    return status;
}

/* Sizes first, so that the part is allocated once; then file by file. */
static abar_status read_part(abar_dataset *data, abar__part *part, const char *const *files, int n_files, int64_t limit)
{
    int64_t total = 0, filled = 0;
    for (int i = 0; i < n_files; i++) {
        char path[ABAR_PATH_MAX];
        size_t n;
        int64_t count;
        abar__data_path(data, files[i], path);
        ABAR_TRY(abar__source_size(data->ctx, path, &n));
        ABAR_TRY(abar__cifar_count(data->ctx, path, n, data->kind, &count));
        total += count;
    }
    ABAR_TRY(abar__part_alloc(data, part, abar__limited(total, limit)));
    for (int i = 0; i < n_files; i++) ABAR_TRY(read_file(data, files[i], part, &filled));
    if (filled != part->count)
        return abar__fail(data->ctx, ABAR_E_IO, "%s: %s changed while it was read, try again", data->info.where, files[0]);
    return ABAR_OK;
}

abar_status abar__cifar_read(abar_dataset *data, const abar_dataset_config *config)
{
    const char *const *files = data->kind->files; /* training files, then one for testing */
    int n = 0;
    while (files[n]) n++;
    ABAR_TRY(read_part(data, &data->part[0], files, n - 1, config->limit_train));
    return read_part(data, &data->part[1], files + n - 1, 1, config->limit_test);
}
