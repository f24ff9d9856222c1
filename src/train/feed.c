/* Batches for a queued device: a set that fits is copied to the device once and cut into batches there, a larger one is sent
 * batch by batch. */
#include "data/data_impl.h"
#include "data/images/draws.h"
#include "train/train_impl.h"

/* Bytes to normalised values, per channel. */
static void fill_table(const abar_dataset_info *info, float *table)
{
    for (int64_t c = 0; c < info->channels; c++) {
        double wide[256];
        abar__normalise_table(info, (int)c, wide);
        for (int v = 0; v < 256; v++) table[c * 256 + v] = (float)wide[v];
    }
}

static abar_status make_feed(abar_context *ctx, const abar_dataset_info *info, abar__feed_desc *desc, abar__data_feed *f)
{
    if (info->text || info->floats) return f->ops->create(f->dev, desc, &f->batches);
    const size_t normalised = (size_t)info->channels * 256, noise = desc->rows ? ABAR_NOISE_COUNT : 0;
    const size_t bytes = (normalised + noise) * sizeof(float);
    float *table;
    ABAR_TRY(abar__alloc(ctx, bytes, (void **)&table));
    fill_table(info, table);
    desc->table = table;
    if (desc->rows) {
        abar__noise_table(table + normalised);
        desc->noise = table + normalised;
    }
    abar_status status = f->ops->create(f->dev, desc, &f->batches);
    abar__free(ctx, table, bytes);
    return status;
}

/* The side of the images that the loader yields: of a streamed set, that of the part's view. */
static int64_t side_of(int64_t side, const abar_dataset_info *info, const abar_loader_config *request)
{
    return info->streamed && request->test && request->test_size > 0 ? request->test_size : side;
}

abar_status abar__data_feed_create(abar_context *ctx, abar_device *dev, const abar_dataset *data, const abar_loader *loader,
                                   const abar_loader_config *request, int64_t micro, bool stream, abar__data_feed *out)
{
    *out = (abar__data_feed){.dev = dev, .ops = abar__feed_of(dev)};
    if (!out->ops) return ABAR_OK;
    const abar_dataset_info *info = abar_dataset_info_of(data);
    abar__feed_desc desc = {.images = data->part[request->test].images,
                            .floats = info->floats,
                            .labels = data->part[request->test].labels,
                            .tokens = abar_dataset_tokens(data, request->test),
                            .context = info->text ? request->context : 0,
                            .windows = abar_loader_order_count(loader),
                            .count = request->test ? info->test : info->train,
                            .channels = info->channels,
                            .height = side_of(info->height, info, request),
                            .width = side_of(info->width, info, request),
                            .batch = micro,
                            .step_batch = request->batch,
                            .rows = info->streamed,
                            .encoded = info->streamed && request->encoded && !request->test,
                            .seed = request->seed,
                            .crop_pad = request->crop_pad,
                            .flip = request->flip};
    out->resident = !stream && !info->streamed && out->ops->bytes(&desc) <= dev->ops->stream->memory_free(dev) / 4;
    if (!out->resident) { /* the loader has cropped and mirrored already */
        desc.images = NULL;
        desc.tokens = NULL;
        desc.crop_pad = 0;
        desc.flip = false;
        if (request->rows > 0) desc.step_batch = request->rows; /* a rank's share */
    } else {
        out->order_bytes = (size_t)abar_loader_order_count(loader) * sizeof *out->order;
        ABAR_TRY(abar__alloc(ctx, out->order_bytes, (void **)&out->order));
    }
    return make_feed(ctx, info, &desc, out);
}

void abar__data_feed_release(abar_context *ctx, abar__data_feed *f)
{
    if (f->batches) f->ops->destroy(f->dev, f->batches);
    abar__free(ctx, f->order, f->order_bytes);
    *f = (abar__data_feed){0};
}

abar_status abar__data_feed_stage(const abar__data_feed *f, const abar_batch *batch)
{
    const abar__feed_batch staged = {.samples = abar__batch_samples(batch),
                                     .labels = batch->labels,
                                     .rows = batch->rows,
                                     .first_row = batch->first,
                                     .timm = batch->timm,
                                     .seed = batch->seed,
                                     .files = batch->files};
    return f->ops->stage(f->dev, f->batches, &staged);
}

abar_status abar__data_feed_seek(abar__data_feed *f, const abar_loader *loader, int64_t epoch, int64_t step)
{
    if (!f->resident) return ABAR_OK;
    abar_loader_order(loader, epoch, f->order);
    const int64_t n = (int64_t)(f->order_bytes / sizeof *f->order);
    return f->ops->epoch(f->dev, f->batches, epoch, step, f->order, n);
}
