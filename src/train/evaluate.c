/* Test (or validation) loss, accuracy and logits of weights from a file, without an optimizer or gradients. */
#include "data/data_impl.h"
#include "train/train_impl.h"

#include <math.h>
#include <string.h>

/* All that an evaluation owns. */
typedef struct evaluator {
    abar_setup *setup; /* of several ranks */
    abar_dataset *data;
    abar_device *dev;
    abar_net *net;
    abar_loader *loader;
    abar_dataset_info info; /* with the size of test images */
    abar__data_feed feed;
    abar__join join; /* of several ranks, which divide the batches; without ctx: there is none */
    abar__stepper stepper;
} evaluator;

static void release(abar_context *ctx, evaluator *e)
{
    abar__data_feed_release(ctx, &e->feed);
    abar__join_release(&e->join);
    abar_loader_destroy(e->loader);
    abar_net_destroy(e->net);
    abar_device_close(e->dev);
    abar_dataset_close(e->data);
    abar_setup_destroy(ctx, e->setup);
}

/* A text is encoded with the vocabulary of the weights, where the file has one. */
static abar_status open_test_data(abar_context *ctx, const abar_setup *setup, const char *weights, evaluator *e)
{
    abar__safetensors *file;
    const bool test_only = setup->train.validation == 0.0;
    if (!setup->model->text) return abar__data_open(ctx, setup, test_only, NULL, &e->data);
    ABAR_TRY(abar__safetensors_open(ctx, weights, &file));
    const char *vocabulary = abar__safetensors_metadata(file, ABAR_NOTE_VOCABULARY);
    abar_status status = abar__data_open(ctx, setup, test_only, vocabulary, &e->data);
    abar__safetensors_close(file);
    return status;
}

static abar_status prepare(abar_context *ctx, const abar_setup *setup, const char *weights, evaluator *e)
{
    ABAR_TRY(abar_setup_check(ctx, setup));
    ABAR_TRY(open_test_data(ctx, setup, weights, e));
    abar_loader_config request = abar__loader_request(setup, true);
    abar__net_request shape = {.batch = request.batch};
    abar__tests_apart(setup, abar_dataset_info_of(e->data), &e->info);
    ABAR_TRY(abar__device_open(ctx, setup, &e->dev));
    ABAR_TRY(abar__net_build(ctx, setup, &e->info, e->dev, &shape, &e->net));
    ABAR_TRY(abar__weights_read(ctx, weights, e->net));
    ABAR_TRY(abar_loader_create(ctx, e->data, &request, &e->loader));
    ABAR_TRY(abar__data_feed_create(ctx, e->dev, e->data, e->loader, &request, request.batch, true, &e->feed));
    e->stepper =
        (abar__stepper){.ctx = ctx, .net = e->net, .info = &e->info, .micro = request.batch, .accumulate = 1, .feed = &e->feed};
    return ABAR_OK;
}

/* The batches of an evaluation, divided over ranks that have the same settings, data and weights. */
static abar_status divide(abar_context *ctx, abar_comm *comm, evaluator *e)
{
    const abar__join_config config = {.comm = comm, .n = abar_comm_size(comm), .test_batches = abar_loader_batches(e->loader)};
    if (abar_comm_size(comm) == 1) return ABAR_OK;
    ABAR_TRY(abar__join_create(ctx, &config, &e->join));
    e->stepper.join = &e->join;
    return ABAR_OK;
}

static abar_status prepare_share(abar_context *ctx, abar_comm *comm, const abar_setup *setup, const char *weights, evaluator *e)
{
    if (abar_comm_size(comm) > 1 && abar__is_cuda(&setup->train))
        return abar__fail(ctx, ABAR_E_UNSUPPORTED, "--device %s: several ranks evaluate on the CPU alone, use --device cpu",
                          setup->train.device);
    ABAR_TRY(prepare(ctx, setup, weights, e));
    return divide(ctx, comm, e);
}

static abar_status prepare_on(abar_context *ctx, abar_comm *comm, const abar_setup *given, const char *weights, evaluator *e)
{
    if (abar_comm_size(comm) == 1) return prepare(ctx, given, weights, e);
    ABAR_TRY(abar__setup_copy(ctx, given, &e->setup));
    ABAR_TRY(abar__ranks_compare_settings(ctx, comm, given, false));
    abar__ranks_settle_threads(comm, &e->setup->train);
    const abar_status status = prepare_share(ctx, comm, e->setup, weights, e);
    return abar__ranks_compare_tested(ctx, comm, e->data, e->dev, e->net, status);
}

abar_status abar_evaluate(abar_context *ctx, const abar_setup *setup, const char *weights, abar_evaluation *out)
{
    return abar_evaluate_on(ctx, NULL, setup, weights, out);
}

abar_status abar_evaluate_on(abar_context *ctx, abar_comm *comm, const abar_setup *setup, const char *weights,
                             abar_evaluation *out)
{
    evaluator e = {0};
    abar_evaluation found = {0};
    ABAR_TRY(abar__struct_check(ctx, "abar_evaluation", out, sizeof found));
    abar_loss loss = {0};
    abar_status status = prepare_on(ctx, comm, setup, weights, &e);
    double began = abar__seconds();
    if (status == ABAR_OK) status = abar__stepper_test(&e.stepper, e.loader, &e.feed, NULL, &loss);
    if (status == ABAR_OK) status = abar__damage_tell(ctx, e.loader, true, &(abar_damage){0});
    if (status == ABAR_OK)
        found = (abar_evaluation){.loss = loss.loss,
                                  .accuracy = 100.0 * (double)loss.correct / (double)loss.count,
                                  .samples = loss.count,
                                  .seconds = abar__seconds() - began,
                                  .perplexity = setup->model->text ? abar__perplexity(loss.loss) : 0.0,
                                  .bits = setup->model->text ? abar__bits(loss.loss) : 0.0};
    release(ctx, &e);
    if (status == ABAR_OK && !isfinite(found.loss))
        abar__log(ctx, ABAR_LOG_WARNING, "%s: the weights give no finite loss, take an earlier checkpoint", weights);
    if (isnan(found.loss)) found.loss = NAN; /* the same NaN everywhere: printed without a sign */
    if (status == ABAR_OK) abar__struct_write(&found, sizeof found, out);
    return status;
}

/* ---- logits --------------------------------------------------------------------------------------------------- */

/* The first n test samples: bytes (n, C, H, W), labels (n), logits (n, K); or tokens (n, T), labels (n, T), logits (n, T, K).
 */
typedef struct sheet {
    int64_t n, sample, rows, classes; /* sample: its bytes; rows: of logits per sample */
    bool text;
    uint8_t *samples;
    int32_t *labels;
    float *logits;
} sheet;

static abar_status alloc_sheet(abar_context *ctx, sheet *s)
{
    void *memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)(s->n * s->sample), &memory));
    s->samples = memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)(s->n * s->rows) * sizeof *s->labels, &memory));
    s->labels = memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)(s->n * s->rows * s->classes) * sizeof *s->logits, &memory));
    s->logits = memory;
    return ABAR_OK;
}

static void free_sheet(abar_context *ctx, sheet *s)
{
    abar__free(ctx, s->samples, (size_t)(s->n * s->sample));
    abar__free(ctx, s->labels, (size_t)(s->n * s->rows) * sizeof *s->labels);
    abar__free(ctx, s->logits, (size_t)(s->n * s->rows * s->classes) * sizeof *s->logits);
}

/* Copies count samples of the last forward pass's output to the sheet, from sample first on. */
static abar_status take_logits(evaluator *e, sheet *s, int64_t first, int64_t count)
{
    abar_tensor from = abar_net_output(e->net);
    from.dim[0] = count;
    abar_tensor to = abar_tensor_wrap(NULL, s->logits + first * s->rows * s->classes, ABAR_F32, from.ndim, from.dim);
    return abar_tensor_copy(e->stepper.ctx, &to, &from);
}

static abar_status fill_sheet(evaluator *e, sheet *s)
{
    ABAR_TRY(abar_loader_seek(e->loader, 0, 0));
    for (int64_t first = 0; first < s->n;) {
        abar_batch batch = {.size = sizeof batch};
        abar_loss loss;
        ABAR_TRY(abar_loader_next(e->loader, &batch));
        ABAR_TRY(abar__stepper_infer(&e->stepper, &batch, &loss));
        int64_t count = batch.count < s->n - first ? batch.count : s->n - first;
        memcpy(s->samples + first * s->sample, abar__batch_samples(&batch), (size_t)(count * s->sample));
        memcpy(s->labels + first * s->rows, batch.labels, (size_t)(count * s->rows) * sizeof *s->labels);
        ABAR_TRY(take_logits(e, s, first, count));
        first += count;
    }
    return ABAR_OK;
}

static abar_status add_sheet(abar__safetensors_writer *writer, const sheet *s, const abar_dataset_info *info)
{
    const int64_t image_dim[4] = {s->n, info->channels, info->height, info->width}, logit_dim[2] = {s->n, s->classes};
    const int64_t token_dim[3] = {s->n, s->rows, s->classes};
    abar_tensor samples = s->text ? abar_tensor_wrap(NULL, s->samples, ABAR_I32, 2, token_dim)
                                  : abar_tensor_wrap(NULL, s->samples, info->floats ? ABAR_F32 : ABAR_U8, 4, image_dim);
    abar_tensor labels = abar_tensor_wrap(NULL, s->labels, ABAR_I32, s->text ? 2 : 1, token_dim);
    abar_tensor logits = abar_tensor_wrap(NULL, s->logits, ABAR_F32, s->text ? 3 : 2, s->text ? token_dim : logit_dim);
    ABAR_TRY(abar__safetensors_writer_add(writer, s->text ? "tokens" : "images", &samples));
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
        const abar_dataset_info *info = &e.info;
        const int64_t rows = abar__context_of(setup), all = abar_loader_samples(e.loader);
        const int64_t image = abar__image_bytes(info);
        sheet s = {.n = n < all ? n : all,
                   .sample = info->text ? rows * (int64_t)sizeof(int32_t) : image,
                   .rows = rows,
                   .classes = info->classes,
                   .text = info->text};
        status = alloc_sheet(ctx, &s);
        if (status == ABAR_OK) status = fill_sheet(&e, &s);
        if (status == ABAR_OK) status = write_sheet(ctx, &s, info, path);
        free_sheet(ctx, &s);
    }
    release(ctx, &e);
    return status;
}
