/* Data sets whose samples are somewhere else already: in the caller's memory, or in another data set. */
#include "data/data_impl.h"

#include <math.h>
#include <string.h>

static const abar__data_kind in_memory = {.name = "memory", .summary = "images in a program's memory"};

static const char *const part_names[2] = {"train", "test"};

static abar_status check_shape(abar_context *ctx, const abar_dataset_images *m)
{
    const int64_t side[] = {m->channels, m->height, m->width};
    const int64_t element = m->floats ? (int64_t)sizeof(float) : 1, most = m->train > m->test ? m->train : m->test;
    int64_t left = INT64_MAX / element; /* bytes of a part must be countable */
    if (m->classes < 1 || m->classes > INT32_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "data in memory: %lld classes, give 1 to %d", (long long)m->classes, INT32_MAX);
    if (m->train < 1 || m->test < 1 || most > INT32_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "data in memory: %lld training and %lld test samples, give 1 to %d of each",
                          (long long)m->train, (long long)m->test, INT32_MAX);
    left /= most;
    for (int i = 0; i < 3; i++) {
        if (side[i] < 1 || side[i] > left)
            return abar__fail(ctx, ABAR_E_ARGUMENT, "data in memory: images of %lld x %lld x %lld, check the shape",
                              (long long)m->channels, (long long)m->height, (long long)m->width);
        left /= side[i];
    }
    return ABAR_OK;
}

static abar_status check_normalisation(abar_context *ctx, const abar_dataset_images *m)
{
    for (int i = 0; i < 3; i++)
        if (!isfinite(m->mean[i]) || !isfinite(m->std[i]) || m->std[i] <= 0.0)
            return abar__fail(ctx, ABAR_E_ARGUMENT,
                              "data in memory: mean %g and std %g of a channel, give finite ones, all three std above 0",
                              m->mean[i], m->std[i]);
    return ABAR_OK;
}

static abar_status check_part(abar_context *ctx, const abar_dataset *data, int which)
{
    const abar__part *part = &data->part[which];
    const int64_t values = part->count * abar__image_bytes(&data->info) / (int64_t)sizeof(float);
    if (!part->images || !part->labels)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "data in memory: %s_images or %s_labels is NULL", part_names[which],
                          part_names[which]);
    for (int64_t i = 0; i < part->count; i++)
        if (part->labels[i] < 0 || part->labels[i] >= data->info.classes)
            return abar__fail(ctx, ABAR_E_ARGUMENT, "data in memory: %s label %lld is %d, labels go from 0 to %lld",
                              part_names[which], (long long)i, part->labels[i], (long long)data->info.classes - 1);
    for (int64_t i = 0; data->info.floats && i < values; i++)
        if (!isfinite(((const float *)(const void *)part->images)[i]))
            return abar__fail(ctx, ABAR_E_ARGUMENT, "data in memory: value %lld of the %s images is not finite", (long long)i,
                              part_names[which]);
    return ABAR_OK;
}

static void borrow(abar__part *part, const void *images, const int32_t *labels, int64_t count)
{
    *part = (abar__part){
        .images = (uint8_t *)(uintptr_t)images, .labels = (int32_t *)(uintptr_t)labels, .count = count}; /* never written */
}

abar_status abar_dataset_wrap(abar_context *ctx, const abar_dataset_images *caller, abar_dataset **out)
{
    abar_dataset_images m;
    *out = NULL;
    ABAR_TRY(abar__struct_read(ctx, "abar_dataset_images", caller, &m, sizeof m));
    if (m.floats || (m.std[0] == 0.0 && m.std[1] == 0.0 && m.std[2] == 0.0))
        for (int i = 0; i < 3; i++) m.std[i] = 1.0;
    ABAR_TRY(check_shape(ctx, &m));
    ABAR_TRY(check_normalisation(ctx, &m));
    abar_dataset data = {.ctx = ctx,
                         .kind = &in_memory,
                         .info = {.name = in_memory.name,
                                  .channels = m.channels,
                                  .height = m.height,
                                  .width = m.width,
                                  .classes = m.classes,
                                  .train = m.train,
                                  .test = m.test,
                                  .floats = m.floats},
                         .borrowed = true};
    memcpy(data.info.mean, m.mean, sizeof m.mean);
    memcpy(data.info.std, m.std, sizeof m.std);
    borrow(&data.part[0], m.train_images, m.train_labels, m.train);
    borrow(&data.part[1], m.test_images, m.test_labels, m.test);
    for (int i = 0; i < 2; i++) ABAR_TRY(check_part(ctx, &data, i));
    return abar__dataset_view(ctx, &data, 0, 0, out);
}

abar_status abar__dataset_view(abar_context *ctx, const abar_dataset *from, int64_t limit_train, int64_t limit_test,
                               abar_dataset **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_dataset), &memory));
    abar_dataset *data = memory;
    *data = *from;
    data->ctx = ctx;
    data->borrowed = true;
    abar_status status = ABAR_OK;
    for (int i = 0; i < 2 && status == ABAR_OK; i++) {
        const int64_t limit = i == 0 ? limit_train : limit_test;
        data->part[i].files_owned = 0;
        if (data->info.streamed)
            status = abar__streamed_limit(data, i, limit);
        else
            data->part[i].count = abar__limited(from->part[i].count, limit);
    }
    data->info.train = data->part[0].count;
    data->info.test = data->part[1].count;
    if (status == ABAR_OK)
        *out = data;
    else
        abar_dataset_close(data);
    return status;
}
