/* Batches made on the device (feed_impl.h): order, crop, flip, normalisation and windows as augment.c and loader.c make
 * them, to the bit, from a set that is in device memory; or from batches that the host stages step by step.
 *
 * Which epoch and step is to be filled is in device memory too: a captured fill and advance go through an epoch.
 *
 * Staging: pinned slot -> copy stream -> one of two device buffers. Batch k + 1 is copied while step k computes:
 *
 *     main stream    flag: buffer 0 | step k    | wait sent 1, flag: buffer 1 | step k + 1 | ...
 *     copy stream    copy k + 1 into buffer 1   | wait used 0                              | copy k + 2 into buffer 0
 */
#include "device/cuda/core/philox.h"
#include "device/cuda/feed/decode.h"
#include "device/cuda/feed/feed.h"

#include <string.h>

#define SLOTS 3 /* pinned: one is being copied, one waits for a device buffer, one is written by the host */

typedef struct slot {
    char *memory; /* pinned */
    cudaEvent_t sent;
} slot;

struct abar__feed {
    source s;
    bool resident;           /* it has a set of its own */
    bool rows;               /* staged batches may have them */
    int64_t batch, capacity; /* capacity: samples that an order may have */
    char *memory;
    size_t memory_bytes, order_at, staged_bytes; /* staged_bytes: of one staged batch */
    cudaStream_t copies;
    slot slots[SLOTS];
    cudaEvent_t used[STAGED]; /* the fills of a buffer are done */
    int64_t sent;             /* batches so far */
    abar__decoder *decoder;   /* of files; NULL: batches have none */
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

/* Block i: sample first + i of the step; thread: every 256th pixel, all channels. */
static __global__ void fill_batch(const __grid_constant__ source s, int64_t first, const __grid_constant__ fill_output out)
{
    const epoch_position at = *s.at;
    const int64_t i = first + blockIdx.x, area = s.height * s.width;
    int64_t sample = i;
    crop c = {0, 0, false};
    if (!at.staged) {
        sample = s.order[(at.step * s.step_batch + i) % at.n];
        c = draw_crop(s, at.epoch, sample);
    }
    const char *staged = at.staged ? s.staged[at.staged - 1] : NULL;
    const uint8_t *images = staged ? (const uint8_t *)(staged + s.samples_at) : s.images;
    const int64_t start = sample * s.channels * area;
    if (threadIdx.x == 0) {
        const int32_t label = staged ? ((const int32_t *)(staged + s.labels_at))[sample] : s.labels[sample];
        write_target(out, blockIdx.x, label, label, 1.0f);
    }
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
        const char *staged = s.staged[at.staged - 1];
        for (int64_t t = threadIdx.x; t < s.context; t += blockDim.x) {
            input[to + t] = ((const int32_t *)(staged + s.samples_at))[i * s.context + t];
            target[to + t] = ((const int32_t *)(staged + s.labels_at))[i * s.context + t];
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
static __global__ void set_staged(epoch_position *at, int32_t staged) { at->staged = staged; }
static __global__ void next_step(epoch_position *at) { at->step++; }

static abar_status fill(abar_device *dev, abar__feed *f, int64_t first, const abar_tensor *input, const abar_tensor *target,
                        const abar_tensor *share)
{
    const source *s = &f->s;
    if (s->context > 0) {
        abar__cuda_launch(dev, fill_windows, dim3((unsigned)f->batch), dim3(256), 0, *s, first, (int32_t *)input->data,
                          (int32_t *)target->data);
        return abar__cuda_status(dev);
    }
    fill_output out = {};
    out.data = input->data;
    out.dtype = input->dtype;
    out.target = (int32_t *)target->data;
    out.share = share->ndim > 0 ? (float *)share->data : NULL;
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
    if (f->rows)
        abar__cuda_fill_rows(dev, s, first, f->batch, &out);
    else
        abar__cuda_launch(dev, fill_batch, dim3((unsigned)f->batch), dim3(256), 0, *s, first, out);
    return abar__cuda_status(dev);
}

static abar_status advance(abar_device *dev, abar__feed *f)
{
    abar__cuda_launch(dev, next_step, dim3(1), dim3(1), 0, f->s.at);
    return abar__cuda_status(dev);
}

/* ---- sending ------------------------------------------------------------------------------------------------------ */

/* The slot's memory is free once its last copy is done: as a rule it has been for long. */
static abar_status send(abar_device *dev, slot *from, void *to, size_t bytes, cudaStream_t stream)
{
    CUDA_TRY(dev, cudaMemcpyAsync(to, from->memory, bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(dev, cudaEventRecord(from->sent, stream));
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
    ABAR_TRY(send(dev, from, f->memory + f->order_at, (size_t)n * sizeof *order, abar__cuda_of(dev)->stream));
    const epoch_position at = {epoch, first, n, 0};
    abar__cuda_launch(dev, set_position, dim3(1), dim3(1), 0, f->s.at, at);
    return abar__cuda_status(dev);
}

static abar_status check_rows(abar_device *dev, const abar__feed *f, const abar__feed_batch *batch)
{
    if (batch->files && !f->decoder)
        return abar__fail(dev->ctx, ABAR_E_STATE, "device cuda: this feed was not made for batches of files");
    if (!batch->rows) return ABAR_OK;
    if (!f->rows || (batch->timm && !f->s.noise))
        return abar__fail(dev->ctx, ABAR_E_STATE, "device cuda: this feed was not made for batches with %s",
                          f->rows ? "noise" : "rows");
    for (int64_t i = 0; i < f->s.step_batch; i++) {
        const int64_t partner = batch->rows[i].partner - batch->first_row;
        if (partner < 0 || partner >= f->s.step_batch)
            return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "device cuda: row %lld is mixed with row %lld of a batch of %lld",
                              (long long)i, (long long)partner, (long long)f->s.step_batch);
    }
    return ABAR_OK;
}

static void pack_batch(const abar__feed *f, const abar__feed_batch *batch, char *to)
{
    const source *s = &f->s;
    const size_t labels = (size_t)(s->step_batch * (s->context > 0 ? s->context : 1)) * sizeof *batch->labels;
    const staged_head head = {batch->seed, batch->rows != NULL, batch->timm};
    memcpy(to, &head, sizeof head);
    memcpy(to + s->labels_at, batch->labels, labels);
    abar_row *rows = (abar_row *)(to + s->rows_at);
    if (batch->rows) memcpy(rows, batch->rows, (size_t)s->step_batch * sizeof *rows);
    for (int64_t i = 0; batch->rows && batch->first_row && i < s->step_batch; i++) rows[i].partner -= (int32_t)batch->first_row;
    if (!batch->files) memcpy(to + s->samples_at, batch->samples, f->staged_bytes - s->samples_at);
}

/* The rows of a batch of files: decoded on the device, or copied one by one where the host has decoded them. */
static abar_status send_files(abar_device *dev, abar__feed *f, const abar__feed_batch *batch, slot *from, char *to)
{
    const source *s = &f->s;
    const size_t image = (size_t)(s->channels * s->height * s->width);
    for (int64_t i = 0; i < s->step_batch; i++) {
        const size_t at = s->samples_at + (size_t)i * image;
        if (batch->files[i].file) continue;
        memcpy(from->memory + at, (const char *)batch->samples + (size_t)i * image, image);
        CUDA_TRY(dev, cudaMemcpyAsync(to + at, from->memory + at, image, cudaMemcpyHostToDevice, f->copies));
    }
    ABAR_TRY(abar__decoder_run(dev, f->decoder, batch->files, s->step_batch, (uint8_t *)to + s->samples_at, f->copies));
    CUDA_TRY(dev, cudaEventRecord(from->sent, f->copies));
    return ABAR_OK;
}

/* The main stream waits for the copy, and the copy for the fills that read its buffer before. All fills of the last batch have
 * been enqueued by now. */
static abar_status stage(abar_device *dev, abar__feed *f, const abar__feed_batch *batch)
{
    cudaStream_t main = abar__cuda_of(dev)->stream;
    const int buffer = (int)(f->sent % STAGED);
    slot *from = &f->slots[f->sent % SLOTS];
    ABAR_TRY(check_rows(dev, f, batch));
    CUDA_TRY(dev, cudaEventSynchronize(from->sent));
    pack_batch(f, batch, from->memory);
    if (f->sent > 0) CUDA_TRY(dev, cudaEventRecord(f->used[(f->sent - 1) % STAGED], main));
    CUDA_TRY(dev, cudaStreamWaitEvent(f->copies, f->used[buffer], 0));
    char *to = (char *)f->s.staged[buffer];
    ABAR_TRY(send(dev, from, to, batch->files ? f->s.samples_at : f->staged_bytes, f->copies));
    if (batch->files) ABAR_TRY(send_files(dev, f, batch, from, to));
    CUDA_TRY(dev, cudaStreamWaitEvent(main, from->sent, 0));
    f->sent++;
    abar__cuda_launch(dev, set_staged, dim3(1), dim3(1), 0, f->s.at, buffer + 1);
    return abar__cuda_status(dev);
}

/* ---- creating ----------------------------------------------------------------------------------------------------- */

#define NOISE_BYTES (ABAR_FEED_NOISE * sizeof(float))

/* Where things are in the feed's block of device memory. */
typedef struct layout {
    size_t at, table, noise, staged[STAGED], order, labels, images, total;
    size_t staged_labels, staged_rows, staged_samples, staged_bytes; /* within a staged batch */
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
    l.noise = place(&l.total, d->noise ? NOISE_BYTES : 0);
    place(&l.staged_bytes, sizeof(staged_head));
    l.staged_labels = place(&l.staged_bytes, batch * (text ? (size_t)d->context : 1) * sizeof(int32_t));
    l.staged_rows = place(&l.staged_bytes, d->rows ? batch * sizeof(abar_row) : 0);
    l.staged_samples = l.staged_bytes;
    l.staged_bytes += batch * sample;
    for (int i = 0; i < STAGED; i++) l.staged[i] = place(&l.total, l.staged_bytes);
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
    if (f->copies) cudaStreamSynchronize(f->copies);
    abar__decoder_destroy(dev, f->decoder);
    cudaStreamSynchronize(abar__cuda_of(dev)->stream);
    for (int i = 0; i < SLOTS; i++) free_slot(dev, &f->slots[i], f->staged_bytes);
    for (int i = 0; i < 2; i++) free_slot(dev, &f->orders[i], (size_t)f->capacity * sizeof(int32_t));
    for (int i = 0; i < STAGED; i++)
        if (f->used[i]) cudaEventDestroy(f->used[i]);
    if (f->copies) cudaStreamDestroy(f->copies);
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

/* Host memory, streams and events. */
static abar_status make_staging(abar_device *dev, abar__feed *f)
{
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&f->copies, cudaStreamNonBlocking));
    for (int i = 0; i < STAGED; i++) CUDA_TRY(dev, cudaEventCreateWithFlags(&f->used[i], cudaEventDisableTiming));
    for (int i = 0; i < SLOTS; i++) ABAR_TRY(make_slot(dev, &f->slots[i], f->staged_bytes));
    for (int i = 0; i < 2 && f->resident; i++) ABAR_TRY(make_slot(dev, &f->orders[i], (size_t)f->capacity * sizeof(int32_t)));
    return ABAR_OK;
}

static source source_of(const abar__feed_desc *d, const layout *l, char *memory)
{
    source s = {};
    s.at = (epoch_position *)(memory + l->at);
    s.table = (const float *)(memory + l->table);
    s.noise = d->noise ? (const float *)(memory + l->noise) : NULL;
    for (int i = 0; i < STAGED; i++) s.staged[i] = memory + l->staged[i];
    s.labels_at = l->staged_labels;
    s.rows_at = l->staged_rows;
    s.samples_at = l->staged_samples;
    s.channels = d->channels;
    s.height = d->height;
    s.width = d->width;
    s.context = d->context;
    s.step_batch = d->step_batch;
    s.seed = d->seed;
    s.pad = (int32_t)d->crop_pad;
    s.flip = d->flip;
    s.floats = d->floats;
    if (!is_resident(d)) return s;
    s.order = (const int32_t *)(memory + l->order);
    s.labels = (const int32_t *)(memory + l->labels);
    s.images = (const uint8_t *)(memory + l->images);
    s.text = (const uint16_t *)(memory + l->images);
    return s;
}

static abar_status make(abar_device *dev, abar__feed *f, const abar__feed_desc *d)
{
    const layout l = lay_out(d);
    f->resident = is_resident(d);
    f->rows = d->rows;
    f->batch = d->batch;
    f->capacity = l.capacity;
    f->memory_bytes = l.total;
    f->staged_bytes = l.staged_bytes;
    f->order_at = l.order;
    if (f->rows && (f->resident || d->floats || d->channels != 3))
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: rows are for streamed images of three channels in bytes");
    if (d->encoded && (!f->rows || d->height != d->width))
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: files are decoded to rows of square images");
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    ABAR_TRY(abar_device_alloc(dev, f->memory_bytes, (void **)&f->memory));
    ABAR_TRY(make_staging(dev, f));
    if (d->encoded) ABAR_TRY(abar__decoder_create(dev, d->step_batch, d->height, &f->decoder));
    f->s = source_of(d, &l, f->memory);
    if (d->table) ABAR_TRY(upload(dev, f->memory + l.table, d->table, table_bytes(d)));
    if (d->noise) ABAR_TRY(upload(dev, f->memory + l.noise, d->noise, NOISE_BYTES));
    const epoch_position start = {0, 0, 1, !f->resident};
    ABAR_TRY(upload(dev, f->s.at, &start, sizeof start));
    if (l.label_bytes) ABAR_TRY(upload(dev, f->memory + l.labels, d->labels, l.label_bytes));
    const void *set = d->context > 0 ? (const void *)d->tokens : (const void *)d->images;
    return f->resident ? upload(dev, f->memory + l.images, set, l.image_bytes) : ABAR_OK;
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
