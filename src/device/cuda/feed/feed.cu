/* Batches made on the device (feed_impl.h): order, crop, flip, normalisation and windows as augment.c and loader.c make
 * them, to the bit, from a set that is in device memory; or from batches that the host sends step by step through pinned
 * slots.
 *
 * Which epoch and step is to be filled is in device memory too: a recording of fill and advance goes through an epoch. */
#include "device/cuda/core/core_impl.h"
#include "device/cuda/core/philox.h"

extern "C" {
#include "device/feed_impl.h"
}

#include <string.h>

#define SLOTS 4 /* pinned: so many batches may be on their way */

typedef struct epoch_position {
    int64_t epoch, step, n; /* n: samples in the order */
    int32_t staged;         /* not 0: the batch that the host sent last, as it is */
} epoch_position;

typedef struct slot {
    char *memory; /* pinned */
    cudaEvent_t sent;
} slot;

/* What the kernel reads, in device memory. */
typedef struct source {
    const uint8_t *images; /* (count, C, H, W), float where floats */
    const int32_t *labels; /* (count) */
    const uint16_t *text;  /* (count), instead of both */
    const int32_t *order;  /* (n) */
    const uint8_t *staged_images;
    const int32_t *staged_tokens; /* (step_batch, context), in their place */
    const int32_t *staged_labels; /* (step_batch), or (step_batch, context) */
    const float *table;           /* (C, 256) */
    epoch_position *at;
    int64_t channels, height, width, context, step_batch;
    uint64_t seed;
    int32_t pad, flip, floats;
} source;

struct abar__feed {
    source s;
    bool resident;           /* it has a set of its own */
    int64_t batch, capacity; /* capacity: samples that an order may have */
    char *memory;
    size_t memory_bytes, order_at;
    size_t staged_at, staged_images, staged_bytes; /* labels, then images or tokens so many bytes behind them */
    slot slots[SLOTS];
    int64_t sent; /* batches so far */
    slot orders[2];
    int64_t epochs; /* orders sent so far */
};

/* ---- filling ------------------------------------------------------------------------------------------------------ */

/* Where output pixel (0, 0) is in the image, and whether columns run backwards (abar__augment_draw). */
typedef struct crop {
    int32_t dx, dy;
    bool flip;
} crop;

__device__ static crop draw_crop(const source &s, int64_t epoch, int64_t sample)
{
    if (s.pad == 0 && !s.flip) return {0, 0, false};
    const uint4 u = abar__cuda_random(s.seed, ABAR_DRAW_AUGMENT, (uint32_t)epoch, (uint64_t)sample);
    const uint32_t places = 2 * (uint32_t)s.pad + 1;
    return {(int32_t)__umulhi(u.x, places) - s.pad, (int32_t)__umulhi(u.y, places) - s.pad, s.flip && u.z >> 31};
}

typedef struct images_out {
    void *data;
    abar_dtype dtype;
    int64_t stride[4]; /* of n, c, y, x in elements */
} images_out;

/* Block i: sample first + i of the step; thread: every 256th pixel, all channels. */
static __global__ void fill_batch(const __grid_constant__ source s, int64_t first, images_out out, int32_t *target)
{
    const epoch_position at = *s.at;
    const int64_t i = first + blockIdx.x, area = s.height * s.width;
    int64_t sample = i;
    crop c = {0, 0, false};
    if (!at.staged) {
        sample = s.order[(at.step * s.step_batch + i) % at.n];
        c = draw_crop(s, at.epoch, sample);
    }
    const uint8_t *images = at.staged ? s.staged_images : s.images;
    const int64_t start = sample * s.channels * area;
    if (threadIdx.x == 0) target[blockIdx.x] = (at.staged ? s.staged_labels : s.labels)[sample];
    for (int64_t p = threadIdx.x; p < area; p += blockDim.x) {
        const int64_t y = p / s.width, x = p % s.width;
        const int64_t row = y + c.dy, column = (c.flip ? s.width - 1 - x : x) + c.dx;
        const bool inside = row >= 0 && row < s.height && column >= 0 && column < s.width;
        const int64_t to = blockIdx.x * out.stride[0] + y * out.stride[2] + x * out.stride[3];
        for (int64_t k = 0; k < s.channels; k++) {
            const int64_t from = start + k * area + row * s.width + column;
            const float value = s.floats ? (inside ? ((const float *)images)[from] : 0.0f)
                                         : __ldg(s.table + k * 256 + (inside ? images[from] : 0));
            store_any(out.data, out.dtype, to + k * out.stride[1], (double)value);
        }
    }
}

/* Block i: window first + i of the step; input and target: (batch, context). */
static __global__ void fill_windows(const __grid_constant__ source s, int64_t first, int32_t *input, int32_t *target)
{
    const epoch_position at = *s.at;
    const int64_t i = first + blockIdx.x, to = (int64_t)blockIdx.x * s.context;
    if (at.staged) {
        for (int64_t t = threadIdx.x; t < s.context; t += blockDim.x) {
            input[to + t] = s.staged_tokens[i * s.context + t];
            target[to + t] = s.staged_labels[i * s.context + t];
        }
        return;
    }
    const uint16_t *window = s.text + s.order[(at.step * s.step_batch + i) % at.n];
    for (int64_t t = threadIdx.x; t < s.context; t += blockDim.x) {
        input[to + t] = window[t];
        target[to + t] = window[t + 1];
    }
}

static __global__ void set_position(epoch_position *at, epoch_position to) { *at = to; }
static __global__ void next_step(epoch_position *at) { at->step++; }

static abar_status fill(abar_device *dev, abar__feed *f, int64_t first, const abar_tensor *input, const abar_tensor *target)
{
    const source *s = &f->s;
    if (s->context > 0) {
        abar__cuda_launch(dev, fill_windows, dim3((unsigned)f->batch), dim3(256), 0, *s, first, (int32_t *)input->data,
                          (int32_t *)target->data);
        return abar__cuda_status(dev);
    }
    images_out out = {};
    out.data = input->data;
    out.dtype = input->dtype;
    if (input->layout == ABAR_LAYOUT_NHWC) {
        out.stride[3] = s->channels;
        out.stride[2] = s->channels * s->width;
        out.stride[1] = 1;
        out.stride[0] = s->channels * s->width * s->height;
    } else if (input->ndim == 4) {
        for (int i = 0; i < 4; i++) out.stride[i] = input->stride[i];
    } else { /* (N, C * H * W) */
        out.stride[3] = 1;
        out.stride[2] = s->width;
        out.stride[1] = s->width * s->height;
        out.stride[0] = input->stride[0];
    }
    abar__cuda_launch(dev, fill_batch, dim3((unsigned)f->batch), dim3(256), 0, *s, first, out, (int32_t *)target->data);
    return abar__cuda_status(dev);
}

static abar_status advance(abar_device *dev, abar__feed *f)
{
    abar__cuda_launch(dev, next_step, dim3(1), dim3(1), 0, f->s.at);
    return abar__cuda_status(dev);
}

/* ---- sending ------------------------------------------------------------------------------------------------------ */

/* The slot's memory is free once its last copy is done: as a rule it has been for long. */
static abar_status send(abar_device *dev, slot *from, void *to, size_t bytes)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaMemcpyAsync(to, from->memory, bytes, cudaMemcpyHostToDevice, cuda->stream));
    CUDA_TRY(dev, cudaEventRecord(from->sent, cuda->stream));
    return ABAR_OK;
}

static abar_status begin_epoch(abar_device *dev, abar__feed *f, int64_t epoch, int64_t first, const int32_t *order, int64_t n)
{
    if (!f->resident)
        return abar__fail(dev->ctx, ABAR_E_STATE, "device cuda: this feed has no samples of its own, stage the batches");
    if (n < 1 || n > f->capacity)
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT,
                          "device cuda: an order of %lld samples, the feed has workspace for 1 to %lld", (long long)n,
                          (long long)f->capacity);
    slot *from = &f->orders[f->epochs++ % 2];
    CUDA_TRY(dev, cudaEventSynchronize(from->sent));
    memcpy(from->memory, order, (size_t)n * sizeof *order);
    ABAR_TRY(send(dev, from, f->memory + f->order_at, (size_t)n * sizeof *order));
    const epoch_position at = {epoch, first, n, 0};
    abar__cuda_launch(dev, set_position, dim3(1), dim3(1), 0, f->s.at, at);
    return abar__cuda_status(dev);
}

static abar_status stage(abar_device *dev, abar__feed *f, const void *samples, const int32_t *labels)
{
    const int64_t labels_each = f->s.context > 0 ? f->s.context : 1;
    slot *from = &f->slots[f->sent++ % SLOTS];
    CUDA_TRY(dev, cudaEventSynchronize(from->sent));
    memcpy(from->memory, labels, (size_t)(f->s.step_batch * labels_each) * sizeof *labels);
    memcpy(from->memory + f->staged_images, samples, f->staged_bytes - f->staged_images);
    ABAR_TRY(send(dev, from, f->memory + f->staged_at, f->staged_bytes));
    CUDA_TRY(dev, cudaMemsetAsync(&f->s.at->staged, 1, sizeof f->s.at->staged, abar__cuda_of(dev)->stream));
    return ABAR_OK;
}

/* ---- creating ----------------------------------------------------------------------------------------------------- */

/* Where things are in the feed's block of device memory. */
typedef struct layout {
    size_t at, table, staged_labels, staged_images, staged_end, order, labels, images, total;
    size_t label_bytes, image_bytes; /* of the resident set; a text is its images, and has no labels */
    int64_t capacity;
} layout;

static size_t place(size_t *at, size_t bytes)
{
    const size_t start = *at;
    *at = abar__round_up(start + bytes, 256);
    return start;
}

static bool is_resident(const abar__feed_desc *d) { return d->context > 0 ? d->tokens != NULL : d->images != NULL; }

static size_t table_bytes(const abar__feed_desc *d)
{
    return d->context > 0 || d->floats ? 0 : (size_t)d->channels * 256 * sizeof(float);
}

static layout lay_out(const abar__feed_desc *d)
{
    layout l = {};
    const bool text = d->context > 0;
    const size_t element = d->floats ? sizeof(float) : 1;
    const size_t image = (size_t)(d->channels * d->height * d->width) * element, batch = (size_t)d->step_batch;
    const size_t sample = text ? (size_t)d->context * sizeof(int32_t) : image;
    l.at = place(&l.total, sizeof(epoch_position));
    l.table = place(&l.total, table_bytes(d));
    l.staged_labels = place(&l.total, batch * (text ? (size_t)d->context : 1) * sizeof(int32_t));
    l.staged_images = place(&l.total, batch * sample);
    l.staged_end = l.staged_images + batch * sample;
    if (!is_resident(d)) return l;
    l.capacity = text ? d->windows : (d->count + d->step_batch - 1) / d->step_batch * d->step_batch; /* the last one full */
    l.label_bytes = text ? 0 : (size_t)d->count * sizeof(int32_t);
    l.image_bytes = (size_t)d->count * (text ? sizeof(uint16_t) : image);
    l.order = place(&l.total, (size_t)l.capacity * sizeof(int32_t));
    l.labels = place(&l.total, l.label_bytes);
    l.images = place(&l.total, l.image_bytes);
    return l;
}

static size_t bytes(const abar__feed_desc *desc) { return lay_out(desc).total; }

static abar_status make_slot(abar_device *dev, slot *s, size_t n)
{
    CUDA_TRY(dev, cudaEventCreateWithFlags(&s->sent, cudaEventDisableTiming));
    return abar__cuda_pinned(dev, n, (void **)&s->memory);
}

static void free_slot(abar_device *dev, slot *s, size_t n)
{
    if (s->sent) cudaEventDestroy(s->sent);
    abar__cuda_pinned_free(dev, s->memory, n);
}

static void destroy(abar_device *dev, abar__feed *f)
{
    if (!f) return;
    cudaSetDevice(dev->ordinal);
    cudaStreamSynchronize(abar__cuda_of(dev)->stream);
    for (int i = 0; i < SLOTS; i++) free_slot(dev, &f->slots[i], f->staged_bytes);
    for (int i = 0; i < 2; i++) free_slot(dev, &f->orders[i], (size_t)f->capacity * sizeof(int32_t));
    abar_device_free(dev, f->memory, f->memory_bytes);
    abar__free(dev->ctx, f, sizeof *f);
}

static abar_status upload(abar_device *dev, void *to, const void *from, size_t n)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, cuda->stream));
    CUDA_TRY(dev, cudaStreamSynchronize(cuda->stream));
    return ABAR_OK;
}

static abar_status make(abar_device *dev, abar__feed *f, const abar__feed_desc *d)
{
    const layout l = lay_out(d);
    f->resident = is_resident(d);
    f->batch = d->batch;
    f->capacity = l.capacity;
    f->memory_bytes = l.total;
    f->staged_at = l.staged_labels;
    f->staged_images = l.staged_images - l.staged_labels;
    f->staged_bytes = l.staged_end - l.staged_labels;
    f->order_at = l.order;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    ABAR_TRY(abar_device_alloc(dev, f->memory_bytes, (void **)&f->memory));
    for (int i = 0; i < SLOTS; i++) ABAR_TRY(make_slot(dev, &f->slots[i], f->staged_bytes));
    for (int i = 0; i < 2 && f->resident; i++) ABAR_TRY(make_slot(dev, &f->orders[i], (size_t)f->capacity * sizeof(int32_t)));
    f->s.at = (epoch_position *)(f->memory + l.at);
    f->s.table = (const float *)(f->memory + l.table);
    f->s.staged_labels = (const int32_t *)(f->memory + l.staged_labels);
    f->s.staged_images = (const uint8_t *)(f->memory + l.staged_images);
    f->s.staged_tokens = (const int32_t *)(f->memory + l.staged_images);
    f->s.channels = d->channels;
    f->s.height = d->height;
    f->s.width = d->width;
    f->s.context = d->context;
    f->s.step_batch = d->step_batch;
    f->s.seed = d->seed;
    f->s.pad = (int32_t)d->crop_pad;
    f->s.flip = d->flip;
    f->s.floats = d->floats;
    if (d->table) ABAR_TRY(upload(dev, f->memory + l.table, d->table, table_bytes(d)));
    const epoch_position start = {0, 0, 1, !f->resident};
    ABAR_TRY(upload(dev, f->s.at, &start, sizeof start));
    if (!f->resident) return ABAR_OK;
    f->s.order = (const int32_t *)(f->memory + l.order);
    f->s.labels = (const int32_t *)(f->memory + l.labels);
    f->s.images = (const uint8_t *)(f->memory + l.images);
    f->s.text = (const uint16_t *)(f->memory + l.images);
    if (l.label_bytes) ABAR_TRY(upload(dev, f->memory + l.labels, d->labels, l.label_bytes));
    const void *set = d->context > 0 ? (const void *)d->tokens : (const void *)d->images;
    return upload(dev, f->memory + l.images, set, l.image_bytes);
}

static abar_status create(abar_device *dev, const abar__feed_desc *desc, abar__feed **out)
{
    *out = NULL;
    abar__feed *f;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *f, (void **)&f));
    abar_status status = make(dev, f, desc);
    if (status < 0) {
        destroy(dev, f);
        return status;
    }
    *out = f;
    return ABAR_OK;
}

static const abar__feed_ops feed_ops = {
    .create = create,
    .destroy = destroy,
    .bytes = bytes,
    .epoch = begin_epoch,
    .fill = fill,
    .advance = advance,
    .stage = stage,
};

extern "C" const abar__feed_ops *const abar__cuda_feed = &feed_ops;
