/* Runs a trained network over samples to look at its layers, and takes rows out of their tensors. */
#include "analysis/observe.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { USUAL_SAMPLES = 2048 };

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

static abar_status open_data(abar__pass *p, const char *weights)
{
    abar__safetensors *file;
    if (!p->setup->model->text || !weights[0]) return abar__data_open(p->ctx, p->setup, p->config.test, NULL, &p->data);
    ABAR_TRY(abar__safetensors_open(p->ctx, weights, &file));
    const char *vocabulary = abar__safetensors_metadata(file, ABAR_NOTE_VOCABULARY);
    const abar_status status = abar__data_open(p->ctx, p->setup, p->config.test, vocabulary, &p->data);
    abar__safetensors_close(file);
    return status;
}

/* Samples of the part: images, or windows of a text that follow one another. */
static int64_t sample_count(const abar__pass *p)
{
    const abar_dataset_info *info = abar_dataset_info_of(p->data);
    const int64_t all = p->config.test ? info->test : info->train;
    return info->text ? (all - 1) / abar__context_of(p->setup) : all;
}

static abar_status count_batches(abar__pass *p)
{
    const int64_t all = sample_count(p), usual = all < USUAL_SAMPLES ? all : USUAL_SAMPLES;
    const int64_t wanted = p->config.samples > 0 ? p->config.samples : usual;
    if (wanted > all)
        return abar__fail(p->ctx, ABAR_E_ARGUMENT, "--samples %lld: the %s part of %s has %lld, ask for at most so many",
                          (long long)wanted, p->config.test ? "test" : "training", p->setup->train.data, (long long)all);
    if (p->config.batch > wanted) p->config.batch = wanted;
    p->batches = wanted / p->config.batch;
    return ABAR_OK;
}

/* Files are read by a loader. */
static abar_status open_loader(abar__pass *p)
{
    abar_loader_config request = abar__loader_request(p->setup, p->config.test);
    p->info = *abar_dataset_info_of(p->data);
    if (!p->info.streamed) return ABAR_OK;
    if (p->config.test) p->info.height = p->info.width = p->setup->train.test_size;
    request.batch = p->config.batch;
    request.encoded = false; /* normalised on the host */
    request.augment = (abar_augment_config){.style = p->setup->train.style};
    return abar_loader_create(p->ctx, p->data, &request, &p->loader);
}

static abar_status make_buffers(abar__pass *p)
{
    const abar_dataset_info *info = &p->info;
    const int64_t context = abar__context_of(p->setup), batch = p->config.batch;
    const abar_tensor output = abar_net_output(p->net);
    void *memory;
    p->image_bytes = info->text ? 0 : (size_t)(batch * info->channels * info->height * info->width) * sizeof *p->images;
    ABAR_TRY(abar__alloc(p->ctx, p->image_bytes, &memory));
    p->images = memory;
    p->label_bytes = 2 * (size_t)(batch * context) * sizeof *p->labels;
    ABAR_TRY(abar__alloc(p->ctx, p->label_bytes, &memory));
    p->labels = memory;
    p->logit_bytes = p->config.gradients ? (size_t)abar_tensor_count(&output) * sizeof *p->logits : 0;
    ABAR_TRY(abar__alloc(p->ctx, p->logit_bytes, &memory));
    p->logits = memory;
    return ABAR_OK;
}

static abar_status open_pass(abar__pass *p, const char *weights)
{
    ABAR_TRY(open_data(p, weights));
    ABAR_TRY(count_batches(p));
    ABAR_TRY(open_loader(p));
    const abar__net_request shape = {.batch = p->config.batch, .training = p->config.gradients};
    ABAR_TRY(abar__device_open(p->ctx, p->setup, &p->dev));
    ABAR_TRY(abar__net_build(p->ctx, p->setup, &p->info, p->dev, &shape, &p->net));
    ABAR_TRY(make_buffers(p));
    return weights[0] ? abar__pass_load(p, weights) : ABAR_OK;
}

abar_status abar__pass_open(abar_context *ctx, const abar_setup *setup, const char *weights, const abar__pass_config *config,
                            abar__pass *out)
{
    *out = (abar__pass){.ctx = ctx, .setup = setup, .config = *config};
    const abar_status status = open_pass(out, weights);
    if (status < 0) abar__pass_close(out);
    return status;
}

void abar__pass_close(abar__pass *p)
{
    abar__free(p->ctx, p->images, p->images ? p->image_bytes : 0);
    abar__free(p->ctx, p->labels, p->labels ? p->label_bytes : 0);
    abar__free(p->ctx, p->logits, p->logits ? p->logit_bytes : 0);
    abar_net_destroy(p->net);
    abar_device_close(p->dev);
    abar_loader_destroy(p->loader);
    abar_dataset_close(p->data);
    *p = (abar__pass){0};
}

abar_status abar__pass_load(abar__pass *p, const char *weights) { return abar__weights_read(p->ctx, weights, p->net); }

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Whether all numbers of a vector are this one. */
static abar_status is_all(abar_context *ctx, const abar_tensor *t, float value, bool *all)
{
    const size_t bytes = (size_t)abar_tensor_count(t) * sizeof(float);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    const abar_tensor host = abar_tensor_wrap(NULL, memory, ABAR_F32, t->ndim, t->dim);
    const abar_status status = abar_tensor_copy(ctx, &host, t);
    *all = true;
    for (int64_t i = 0; status >= 0 && i < abar_tensor_count(t); i++)
        if (((const float *)memory)[i] != value) *all = false;
    abar__free(ctx, memory, bytes);
    return status;
}

abar_status abar__pass_statistics_at_start(const abar__pass *p, bool *at_start)
{
    *at_start = false;
    for (int i = 0; i < abar_net_tensor_count(p->net); i++) {
        const char *name;
        abar_tensor t;
        abar_net_tensor(p->net, i, &name, &t);
        const bool mean = ends_in(name, ".running_mean");
        if (!mean && !ends_in(name, ".running_var")) continue;
        ABAR_TRY(is_all(p->ctx, &t, mean ? 0.0f : 1.0f, at_start));
        if (!*at_start) return ABAR_OK;
    }
    return ABAR_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------------- */

/* Batch b of the part, by the loader or from memory. */
static abar_status take_batch(abar__pass *p, int64_t b, abar_batch *out)
{
    const int64_t first = b * p->config.batch;
    *out = (abar_batch){.size = sizeof *out};
    if (p->loader) {
        if (b != p->next) ABAR_TRY(abar_loader_seek(p->loader, 0, b));
        p->next = b + 1;
        ABAR_TRY(abar_loader_next(p->loader, out));
        memcpy(p->labels, out->labels, (size_t)p->config.batch * sizeof *p->labels);
        return ABAR_OK;
    }
    for (int64_t i = 0; i < p->config.batch; i++) p->labels[i] = abar_dataset_label(p->data, p->config.test, first + i);
    out->images = abar_dataset_image(p->data, p->config.test, first);
    out->floats = abar_dataset_image_floats(p->data, p->config.test, first);
    out->labels = p->labels;
    out->count = p->config.batch;
    return ABAR_OK;
}

static abar_status fill_images(abar__pass *p, int64_t b)
{
    const abar_dataset_info *info = &p->info;
    const int64_t batch = p->config.batch;
    abar_tensor input = abar_net_input(p->net);
    const int64_t dim[4] = {batch, info->channels, info->height, info->width};
    abar_batch bytes;
    ABAR_TRY(take_batch(p, b, &bytes));
    const abar_tensor values = abar_tensor_wrap(NULL, p->images, ABAR_F32, 4, dim);
    ABAR_TRY(abar_batch_normalise(p->ctx, info, &bytes, batch, &values));
    ABAR_TRY(abar_tensor_copy(p->ctx, &input, &values));
    return abar_net_set_labels(p->net, p->labels);
}

static abar_status fill_tokens(abar__pass *p, int64_t b)
{
    const int64_t batch = p->config.batch, context = abar__context_of(p->setup), dim[2] = {batch, context};
    const uint16_t *tokens = abar_dataset_tokens(p->data, p->config.test) + b * batch * context;
    int32_t *inputs = p->labels, *labels = p->labels + batch * context;
    abar_tensor input = abar_net_input(p->net);
    for (int64_t i = 0; i < batch * context; i++) {
        inputs[i] = tokens[i];
        labels[i] = tokens[i + 1];
    }
    const abar_tensor from = abar_tensor_wrap(NULL, inputs, ABAR_I32, 2, dim);
    ABAR_TRY(abar_tensor_copy(p->ctx, &input, &from));
    return abar_net_set_labels(p->net, labels);
}

abar_status abar__pass_fill(abar__pass *p, int64_t b) { return p->setup->model->text ? fill_tokens(p, b) : fill_images(p, b); }

abar_status abar__pass_forward(abar__pass *p, int64_t b, bool training, const abar_forward_observer *observer, abar_loss *loss)
{
    const abar_run_config run = {
        .size = sizeof run, .training = training, .seed = (uint64_t)p->setup->train.seed, .step = b, .observer = observer};
    const abar_status status = abar_net_forward(p->net, &run, loss);
    if (training) abar_net_rollback(p->net);
    return status;
}

/* One label per row of the logits, drawn from their softmax by counter. */
static abar_status draw_labels(abar__pass *p, int64_t b)
{
    const abar_tensor output = abar_net_output(p->net);
    const int64_t classes = output.dim[output.ndim - 1], rows = abar_tensor_count(&output) / classes;
    const abar_tensor host = abar_tensor_wrap(NULL, p->logits, ABAR_F32, output.ndim, output.dim);
    ABAR_TRY(abar_tensor_copy(p->ctx, &host, &output));
    for (int64_t r = 0; r < rows; r++) {
        const float *logit = p->logits + r * classes;
        double largest = -INFINITY, sum = 0.0, at = 0.0;
        for (int64_t c = 0; c < classes; c++) largest = fmax(largest, (double)logit[c]);
        for (int64_t c = 0; c < classes; c++) sum += exp((double)logit[c] - largest);
        const abar__draw draw = abar__random((uint64_t)p->setup->train.seed, ABAR_DRAW_ANALYSIS, 1, (uint64_t)(b * rows + r));
        const double u = abar__uniform(draw.u[0]) * sum;
        int64_t chosen = 0;
        for (; chosen + 1 < classes; chosen++) {
            at += exp((double)logit[chosen] - largest);
            if (u < at) break;
        }
        p->labels[r] = (int32_t)chosen;
    }
    return abar_net_set_labels(p->net, p->labels);
}

abar_status abar__pass_backward(abar__pass *p, int64_t b, bool drawn, const abar_forward_observer *forward,
                                const abar_observer *observer)
{
    abar_run_config run = {
        .size = sizeof run, .training = true, .seed = (uint64_t)p->setup->train.seed, .step = b, .observer = forward};
    abar_loss loss;
    ABAR_TRY(abar_net_forward(p->net, &run, &loss));
    run.observer = NULL;
    if (drawn) {
        ABAR_TRY(draw_labels(p, b));
        abar_net_rollback(p->net);
        ABAR_TRY(abar_net_forward(p->net, &run, &loss));
    }
    const abar_status status = abar_net_backward(p->net, false, observer);
    abar_net_rollback(p->net);
    return status;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------- */

static int64_t example_size(const abar_tensor *t) { return abar_tensor_count(t) / t->dim[0]; }

abar__row_shape abar__row_shape_of(const abar_layer *layer, const abar_tensor *input, const abar_tensor *output, int64_t group)
{
    const abar_tensor *w = &layer->weight;
    const int64_t groups = layer->window.groups > 0 ? layer->window.groups : 1, d = abar_tensor_count(w) / w->dim[0];
    abar__row_shape s = {.group = group,
                         .d = d,
                         .out = w->dim[0] / groups,
                         .in_size = example_size(input),
                         .out_size = example_size(output),
                         .convolution = w->ndim == 4 && input->ndim == 4,
                         .window = layer->window};
    if (s.convolution) {
        s.channels = input->dim[1];
        s.height = input->dim[2];
        s.width = input->dim[3];
        s.out_height = abar_window_out(&layer->window, 0, s.height);
        s.out_width = abar_window_out(&layer->window, 1, s.width);
        s.rows = s.out_height * s.out_width;
    } else {
        s.rows = s.in_size / d;
    }
    return s;
}

/* The part of a patch in one row of a plane (NULL: in the padding) from a column on; zeros in the padding. */
static double *put_patch_row(const abar__row_shape *s, const float *row, int64_t first, double *out)
{
    const int64_t n = s->window.kernel[1], step = s->window.dilation[1];
    const bool inside = row && first >= 0 && first + (n - 1) * step < s->width;
    for (int64_t j = 0; inside && j < n; j++) out[j] = (double)row[first + j * step];
    for (int64_t j = 0; !inside && j < n; j++) {
        const int64_t column = first + j * step;
        out[j] = row && column >= 0 && column < s->width ? (double)row[column] : 0.0;
    }
    return out + n;
}

/* The patch of output position (y, x): channels of the group, then kernel positions. */
static double *put_patch(const abar__row_shape *s, const float *input, int64_t y, int64_t x, double *out)
{
    const abar_window *w = &s->window;
    const int64_t channels = s->channels / (w->groups > 0 ? w->groups : 1);
    for (int64_t c = 0; c < channels; c++) {
        const float *plane = input + (s->group * channels + c) * s->height * s->width;
        for (int64_t i = 0; i < w->kernel[0]; i++) {
            const int64_t row = y * w->stride[0] - w->pad[0] + i * w->dilation[0];
            out = put_patch_row(s, row >= 0 && row < s->height ? plane + row * s->width : NULL, x * w->stride[1] - w->pad[1],
                                out);
        }
    }
    return out;
}

void abar__input_rows(const abar__row_shape *s, const float *input, bool homogeneous, double *out)
{
    for (int64_t r = 0; r < s->rows; r++) {
        if (s->convolution)
            out = put_patch(s, input, r / s->out_width, r % s->out_width, out);
        else
            for (int64_t j = 0; j < s->d; j++) *out++ = (double)input[r * s->d + j];
        if (homogeneous) *out++ = 1.0;
    }
}

void abar__output_rows(const abar__row_shape *s, const float *grad, double scale, double *out)
{
    const int64_t all = s->out_size / s->rows; /* outputs of all groups */
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t k = 0; k < s->out; k++) {
            const int64_t channel = s->group * s->out + k;
            *out++ = scale * (double)(s->convolution ? grad[channel * s->rows + r] : grad[r * all + channel]);
        }
}
