/* Data sets of image files: the index of the files is the data set, and a part of it may be a list of files. */
#include "data/data_impl.h"

#include "base/rng.h"
#include "data/images/draws.h"
#include "data/images/index.h"

#include <string.h>
#include <zlib.h>

static void take_summary(abar_dataset *data)
{
    const abar__images_summary *found = abar__images_summary_of(data->images);
    data->info.classes = found->classes;
    data->info.shrunk = found->shrunk;
    data->info.train = data->part[0].count = found->count[0];
    data->info.test = data->part[1].count = found->count[1];
    data->part[1].side = 1;
}

abar_status abar__streamed_read(abar_dataset *data, const abar_dataset_config *config)
{
    const abar__images_request request = {.folder = data->info.where,
                                          .classes = config->classes_file,
                                          .val_labels = config->labels_file,
                                          .limit = {config->limit_train, config->limit_test}};
    if (config->view < 0 || config->view > ABAR_VIEW_MAX)
        return abar__fail(data->ctx, ABAR_E_ARGUMENT, "%s: a view of %lld pixels, choose 1 to %d", data->info.name,
                          (long long)config->view, ABAR_VIEW_MAX);
    if (config->view > 0) data->info.height = data->info.width = config->view;
    ABAR_TRY(abar__images_open(data->ctx, &request, &data->images));
    take_summary(data);
    return ABAR_OK;
}

abar_status abar__streamed_look(abar_dataset *data, const abar_dataset_config *config)
{
    abar_dataset_config whole = *config;
    whole.limit_train = whole.limit_test = 0;
    ABAR_TRY(abar__streamed_read(data, &whole));
    abar__images_close(data->images);
    data->images = NULL;
    return ABAR_OK;
}

int64_t abar__streamed_file(const abar__part *part, int64_t i) { return part->files ? part->files[i] : i; }

int32_t abar__streamed_label(const abar_dataset *data, const abar__part *part, int64_t i)
{
    return abar__images_label(data->images, part->side, abar__streamed_file(part, i));
}

size_t abar__streamed_bytes(const abar_dataset *data)
{
    size_t bytes = data->borrowed ? 0 : abar__images_index_bytes(data->images);
    for (int i = 0; i < 2; i++) bytes += (size_t)data->part[i].files_owned * sizeof(int32_t);
    return bytes;
}

void abar__streamed_free(abar_dataset *data)
{
    for (int i = 0; i < 2; i++)
        if (data->part[i].files_owned > 0)
            abar__free(data->ctx, data->part[i].files, (size_t)data->part[i].files_owned * sizeof(int32_t));
    if (!data->borrowed) abar__images_close(data->images);
}

uint32_t abar__streamed_crc(const abar_dataset *data, const abar__part *part)
{
    uLong crc = crc32_z(0, NULL, 0);
    for (int64_t c = 0; c < data->info.classes; c++) {
        const char *name = abar__images_class(data->images, c);
        crc = crc32_z(crc, (const Bytef *)name, strlen(name) + 1);
    }
    for (int64_t i = 0; i < part->count; i++) {
        const int64_t file = abar__streamed_file(part, i);
        const int64_t sample[2] = {abar__images_size(data->images, part->side, file),
                                   abar__images_label(data->images, part->side, file)};
        crc = crc32_z(crc, (const Bytef *)sample, sizeof sample);
    }
    return (uint32_t)crc;
}

/* ---- lists of files ------------------------------------------------------------------------------------------- */

/* A list of the part's files that may be changed. */
static abar_status own_list(abar_dataset *data, abar__part *part)
{
    void *memory;
    if (part->files_owned > 0) return ABAR_OK;
    ABAR_TRY(abar__alloc(data->ctx, (size_t)part->count * sizeof(int32_t), &memory));
    int32_t *list = memory;
    for (int64_t i = 0; i < part->count; i++) list[i] = (int32_t)abar__streamed_file(part, i);
    part->files = list;
    part->files_owned = part->count;
    return ABAR_OK;
}

abar_status abar__streamed_hold_out(abar_dataset *data, int64_t kept, uint64_t seed)
{
    abar__part *train = &data->part[0], *test = &data->part[1];
    if (test->files_owned > 0) abar__free(data->ctx, test->files, (size_t)test->files_owned * sizeof(int32_t));
    *test = (abar__part){0};
    ABAR_TRY(own_list(data, train));
    for (int64_t p = train->count - 1; p >= kept; p--) {
        const int64_t q = abar__hold_out_place(seed, p);
        const int32_t moved = train->files[p];
        train->files[p] = train->files[q];
        train->files[q] = moved;
    }
    test->files = train->files + kept;
    test->side = train->side;
    return ABAR_OK;
}

abar_status abar__streamed_limit(abar_dataset *data, int which, int64_t limit)
{
    abar__part *part = &data->part[which];
    const int64_t classes = data->info.classes;
    void *memory;
    if (limit <= 0 || limit >= part->count) return ABAR_OK;
    ABAR_TRY(own_list(data, part));
    ABAR_TRY(abar__alloc(data->ctx, (size_t)classes * sizeof(int64_t), &memory));
    int64_t *left = memory;
    for (int64_t i = 0; i < part->count; i++) left[abar__streamed_label(data, part, i)]++;
    abar__images_share_limit(left, classes, limit);
    int64_t kept = 0;
    for (int64_t i = 0; i < part->count; i++) {
        int64_t *mine = &left[abar__streamed_label(data, part, i)];
        if (*mine == 0) continue;
        --*mine;
        part->files[kept++] = part->files[i];
    }
    part->count = kept;
    abar__free(data->ctx, memory, (size_t)classes * sizeof(int64_t));
    return ABAR_OK;
}
