/* Test loss, accuracy and logits of weights from a file, without an optimizer or gradients. */
#include "train/train_impl.h"

#include <string.h>

/* What an evaluation is made of. */
typedef struct evaluator {
    abar_dataset *data;
    abar_device *dev;
    abar_net *net;
    abar_loader *loader;
    abar__feeder feeder;
    abar__stepper stepper;
} evaluator;

static void release(abar_context *ctx, evaluator *e)
{
    abar__feeder_release(ctx, &e->feeder);
    abar_loader_destroy(e->loader);
    abar_net_destroy(e->net);
    abar_device_close(e->dev);
    abar_dataset_close(e->data);
}

static abar_status prepare(abar_context *ctx, const abar_setup *setup, const char *weights, evaluator *e)
{
    ABAR_TRY(abar_setup_check(ctx, setup));
    ABAR_TRY(abar__data_open(ctx, setup, true, &e->data));
    const abar_dataset_info *info = abar_dataset_info_of(e->data);
    abar_loader_config wish = abar__loader_wish(setup, true);
    abar__net_wish shape = {.batch = wish.batch};
    ABAR_TRY(abar__device_open(ctx, setup, &e->dev));
    ABAR_TRY(abar__net_build(ctx, setup, info, e->dev, &shape, &e->net));
    ABAR_TRY(abar__weights_read(ctx, weights, e->net));
    ABAR_TRY(abar_loader_create(ctx, e->data, &wish, &e->loader));
    ABAR_TRY(abar__feeder_create(ctx, e->dev, e->data, e->loader, &wish, wish.batch, true, &e->feeder));
    e->stepper =
        (abar__stepper){.ctx = ctx, .net = e->net, .info = info, .micro = wish.batch, .accumulate = 1, .feeder = &e->feeder};
    return ABAR_OK;
}

abar_status abar_evaluate(abar_context *ctx, const abar_setup *setup, const char *weights, abar_evaluation *out)
{
    evaluator e = {0};
    abar_loss loss = {0};
    abar_status status = prepare(ctx, setup, weights, &e);
    double began = abar__seconds();
    if (status == ABAR_OK) status = abar__stepper_test(&e.stepper, e.loader, &e.feeder, NULL, &loss);
    if (status == ABAR_OK)
        *out = (abar_evaluation){.loss = loss.loss,
                                 .accuracy = 100.0 * (double)loss.correct / (double)loss.count,
                                 .samples = loss.count,
                                 .seconds = abar__seconds() - began};
    release(ctx, &e);
    return status;
}

/* ---- logits --------------------------------------------------------------------------------------------------- */

/* The first n test samples: bytes (n, C, H, W), labels (n), logits (n, K). */
typedef struct sheet {
    int64_t n, image, classes;
    uint8_t *images;
    int32_t *labels;
    float *logits;
} sheet;

static abar_status alloc_sheet(abar_context *ctx, sheet *s)
{
    void *memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)(s->n * s->image), &memory));
    s->images = memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)s->n * sizeof *s->labels, &memory));
    s->labels = memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)(s->n * s->classes) * sizeof *s->logits, &memory));
    s->logits = memory;
    return ABAR_OK;
}

static void free_sheet(abar_context *ctx, sheet *s)
{
    abar__free(ctx, s->images, (size_t)(s->n * s->image));
    abar__free(ctx, s->labels, (size_t)s->n * sizeof *s->labels);
    abar__free(ctx, s->logits, (size_t)(s->n * s->classes) * sizeof *s->logits);
}

/* Copies the output of the last forward pass, count rows of it, to row first of the sheet. */
static abar_status take_logits(evaluator *e, sheet *s, int64_t first, int64_t count)
{
    abar_tensor all = abar_net_output(e->net), rows = all;
    rows.dim[0] = count;
    int64_t dim[2] = {count, s->classes};
    abar_tensor to = abar_tensor_wrap(NULL, s->logits + first * s->classes, ABAR_F32, 2, dim);
    return abar_tensor_copy(e->stepper.ctx, &to, &rows);
}

static abar_status fill_sheet(evaluator *e, sheet *s)
{
    ABAR_TRY(abar_loader_seek(e->loader, 0, 0));
    for (int64_t first = 0; first < s->n;) {
        abar_batch batch;
        abar_loss loss;
        ABAR_TRY(abar_loader_next(e->loader, &batch));
        ABAR_TRY(abar__stepper_infer(&e->stepper, &batch, &loss));
        int64_t count = batch.count < s->n - first ? batch.count : s->n - first;
        memcpy(s->images + first * s->image, batch.images, (size_t)(count * s->image));
        memcpy(s->labels + first, batch.labels, (size_t)count * sizeof *s->labels);
        ABAR_TRY(take_logits(e, s, first, count));
        first += count;
    }
    return ABAR_OK;
}

static abar_status add_sheet(abar__safetensors_writer *writer, const sheet *s, const abar_dataset_info *info)
{
    int64_t image_dim[4] = {s->n, info->channels, info->height, info->width}, logit_dim[2] = {s->n, s->classes};
    abar_tensor images = abar_tensor_wrap(NULL, s->images, ABAR_U8, 4, image_dim);
    abar_tensor labels = abar_tensor_wrap(NULL, s->labels, ABAR_I32, 1, &s->n);
    abar_tensor logits = abar_tensor_wrap(NULL, s->logits, ABAR_F32, 2, logit_dim);
    ABAR_TRY(abar__safetensors_writer_add(writer, "images", &images));
    ABAR_TRY(abar__safetensors_writer_add(writer, "labels", &labels));
    return abar__safetensors_writer_add(writer, "logits", &logits);
}

static abar_status write_sheet(abar_context *ctx, const sheet *s, const abar_dataset_info *info, const char *path)
{
    abar__safetensors_writer *writer;
    ABAR_TRY(abar__safetensors_writer_create(ctx, &writer));
    abar_status status = add_sheet(writer, s, info);
    if (status == ABAR_OK) status = abar__safetensors_writer_metadata(writer, "data", info->name);
    if (status == ABAR_OK) status = abar__safetensors_writer_write(writer, path);
    abar__safetensors_writer_destroy(writer);
    return status;
}

abar_status abar_evaluate_logits(abar_context *ctx, const abar_setup *setup, const char *weights, int64_t n, const char *path)
{
    evaluator e = {0};
    if (n < 1) return abar__fail(ctx, ABAR_E_ARGUMENT, "logits: %lld samples are too few, ask for at least 1", (long long)n);
    abar_status status = prepare(ctx, setup, weights, &e);
    if (status == ABAR_OK) {
        const abar_dataset_info *info = abar_dataset_info_of(e.data);
        sheet s = {.n = n < info->test ? n : info->test,
                   .image = info->channels * info->height * info->width,
                   .classes = info->classes};
        status = alloc_sheet(ctx, &s);
        if (status == ABAR_OK) status = fill_sheet(&e, &s);
        if (status == ABAR_OK) status = write_sheet(ctx, &s, info, path);
        free_sheet(ctx, &s);
    }
    release(ctx, &e);
    return status;
}
