/* The idx format of MNIST and Fashion-MNIST: a magic number 0 0 TYPE NDIM, NDIM big-endian 32-bit extents, then the
 * elements; plain or gzipped. */
#include "data/data_impl.h"
#include "data/source.h"

#define SIDE_MAX 4096 /* pixels: an image larger than this is a damaged header */

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static abar_status parse_header(abar__source *source, int ndim, abar__idx *out)
{
    uint8_t head[4 + 4 * 3];
    ABAR_TRY(abar__source_read(source, head, 4));
    uint32_t magic = big_endian(head), wanted = 0x800u + (uint32_t)ndim; /* 08: unsigned bytes */
    if (magic != wanted)
        return abar__fail(source->ctx, ABAR_E_FORMAT,
                          "%s: begins with %08x, not with %08x as an idx file of %s does, replace it with the right one",
                          source->label, magic, wanted, ndim == 1 ? "labels" : "images");
    ABAR_TRY(abar__source_read(source, head + 4, 4 * (size_t)ndim));
    for (int i = 0; i < 3; i++) out->dim[i] = i < ndim ? (int64_t)big_endian(head + 4 + 4 * i) : 1;
    bool sane = out->dim[0] >= 1 && out->dim[0] <= INT32_MAX;
    for (int i = 1; i < 3; i++) sane = sane && out->dim[i] >= 1 && out->dim[i] <= SIDE_MAX;
    if (!sane)
        return abar__fail(source->ctx, ABAR_E_FORMAT,
                          "%s: declares %lld items of %lld x %lld, which is impossible, replace it with a fresh copy",
                          source->label, (long long)out->dim[0], (long long)out->dim[1], (long long)out->dim[2]);
    return ABAR_OK;
}

static abar_status parse(abar__source *source, int ndim, int64_t limit, abar__idx *out)
{
    ABAR_TRY(parse_header(source, ndim, out));
    uint64_t item = (uint64_t)(out->dim[1] * out->dim[2]), all = (uint64_t)out->dim[0] * item; /* < 2^31 * 2^24 */
    if (!abar__source_could_hold(source, all))
        return abar__fail(source->ctx, ABAR_E_FORMAT,
                          "%s: declares %lld items of %lld x %lld but is too short for them, replace it with a fresh copy",
                          source->label, (long long)out->dim[0], (long long)out->dim[1], (long long)out->dim[2]);
    int64_t keep = abar__limited(out->dim[0], limit);
    size_t kept = (size_t)((uint64_t)keep * item);
    void *data;
    ABAR_TRY(abar__alloc(source->ctx, kept, &data));
    out->data = data;
    out->kept = keep;
    ABAR_TRY(abar__source_read(source, out->data, kept));
    ABAR_TRY(abar__source_read(source, NULL, (size_t)(all - kept)));
    return abar__source_end(source);
}

/* opened: the status of opening the source, which is closed in any case. */
static abar_status parse_and_close(abar__source *source, abar_status opened, int ndim, int64_t limit, abar__idx *out)
{
    *out = (abar__idx){0};
    abar_status status = opened == ABAR_OK ? parse(source, ndim, limit, out) : opened;
    abar__source_close(source);
    if (status != ABAR_OK) abar__idx_free(source->ctx, out);
    return status;
}

abar_status abar__idx_parse(abar_context *ctx, const char *label, const uint8_t *bytes, size_t n, int ndim, int64_t limit,
                            abar__idx *out)
{
    abar__source source;
    abar_status opened = abar__source_open(&source, ctx, label, bytes, n);
    return parse_and_close(&source, opened, ndim, limit, out);
}

void abar__idx_free(abar_context *ctx, abar__idx *idx)
{
    abar__free(ctx, idx->data, (size_t)(idx->kept * idx->dim[1] * idx->dim[2]));
    *idx = (abar__idx){0};
}

static abar_status load(abar_dataset *data, const char *file, int ndim, int64_t limit, abar__idx *out)
{
    char path[ABAR_PATH_MAX];
    abar__data_path(data, file, path);
    abar__source source;
    abar_status opened = abar__source_open_file(&source, data->ctx, path);
    return parse_and_close(&source, opened, ndim, limit, out);
}

/* Moves the images to the part, which has the same layout. */
static abar_status take_images(abar_dataset *data, abar__part *part, const char *file, abar__idx *images)
{
    abar_dataset_info *info = &data->info;
    char path[ABAR_PATH_MAX];
    abar__data_path(data, file, path);
    if (part != &data->part[0] && (images->dim[1] != info->height || images->dim[2] != info->width))
        return abar__fail(data->ctx, ABAR_E_FORMAT,
                          "%s: its images are %lld x %lld, those for training %lld x %lld, take all files from one data set",
                          path, (long long)images->dim[1], (long long)images->dim[2], (long long)info->height,
                          (long long)info->width);
    info->height = images->dim[1];
    info->width = images->dim[2];
    part->images = images->data;
    part->count = images->kept;
    images->data = NULL;
    return ABAR_OK;
}

static abar_status take_labels(abar_dataset *data, abar__part *part, const char *file, int64_t images, const abar__idx *labels)
{
    char path[ABAR_PATH_MAX];
    abar__data_path(data, file, path);
    if (labels->dim[0] != images)
        return abar__fail(data->ctx, ABAR_E_FORMAT,
                          "%s: %lld labels for %lld images, take both files from one data set and replace damaged ones", path,
                          (long long)labels->dim[0], (long long)images);
    for (int64_t i = 0; i < labels->dim[0]; i++)
        if (labels->data[i] >= data->info.classes)
            return abar__fail(data->ctx, ABAR_E_FORMAT,
                              "%s: label %d of sample %lld is not in 0..%lld, replace it with a fresh copy", path,
                              labels->data[i], (long long)i, (long long)data->info.classes - 1);
    void *memory;
    ABAR_TRY(abar__alloc(data->ctx, (size_t)part->count * sizeof *part->labels, &memory));
    part->labels = memory;
    for (int64_t i = 0; i < part->count; i++) part->labels[i] = labels->data[i];
    return ABAR_OK;
}

static abar_status read_pair(abar_dataset *data, abar__part *part, const char *image_file, const char *label_file,
                             int64_t limit)
{
    abar__idx idx;
    ABAR_TRY(load(data, image_file, 3, limit, &idx));
    int64_t images = idx.dim[0];
    abar_status status = take_images(data, part, image_file, &idx);
    abar__idx_free(data->ctx, &idx);
    if (status == ABAR_OK) status = load(data, label_file, 1, 0, &idx);
    if (status == ABAR_OK) status = take_labels(data, part, label_file, images, &idx);
    abar__idx_free(data->ctx, &idx);
    return status;
}

abar_status abar__idx_look(abar_dataset *data, const abar_dataset_config *config)
{
    (void)config;
    char path[ABAR_PATH_MAX];
    abar__idx images = {0};
    abar__source source;
    abar__data_path(data, data->kind->files[0], path);
    abar_status status = abar__source_open_file(&source, data->ctx, path);
    if (status == ABAR_OK) status = parse_header(&source, 3, &images);
    abar__source_close(&source);
    if (status != ABAR_OK) return status;
    data->info.height = images.dim[1];
    data->info.width = images.dim[2];
    return ABAR_OK;
}

abar_status abar__idx_read(abar_dataset *data, const abar_dataset_config *config)
{
    const char *const *file = data->kind->files; /* training images, labels, test images, labels */
    ABAR_TRY(read_pair(data, &data->part[0], file[0], file[1], config->limit_train));
    return read_pair(data, &data->part[1], file[2], file[3], config->limit_test);
}
