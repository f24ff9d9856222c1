/* Decoding by nvJPEG (decode.h). Its pixels differ from libjpeg-turbo's by a few steps: another inverse transform, and chroma
 * is enlarged without interpolation. The resampling is Pillow's: 22-bit weights made on the host, first along rows, then along
 * columns, each result rounded to a byte. For the same pixels it gives Pillow's bytes.
 *
 *     decode stream    wait for the last resampling | tables to the device | nvJPEG
 *     caller's stream                                                      | across | down
 *
 * Device and pinned memory grow to the largest batch seen; so does the library's own. */
#include "device/cuda/feed/decode.h"
#include "device/cuda/feed/nvjpeg_library.h"

#include <string.h>

#define THREADS 256
#define PRECISION 22
#define ALIGNMENT 256
#define GRID_Y_MAX 65535 /* blocks: fewer than a tall image, or a view of 4096 x 4096, has work for */

/* One axis of one image, in device memory. */
typedef struct axis {
    const int32_t *begin, *count, *weights;
    int32_t taps;
} axis;

/* One image: what a resampling reads and writes. */
typedef struct job {
    const uint8_t *pixels; /* RGB, interleaved */
    uint8_t *rows;         /* (n_rows, side) RGB: image rows from first_row on, resampled along x */
    uint8_t *out;          /* (3, side, side) */
    int32_t width, first_row, n_rows;
    axis x, y;
} job;

struct abar__decoder {
    abar__nvjpeg_api api;
    abar__nvjpeg handle[2]; /* the fastest back end there is; the one that decodes most kinds of files, one by one */
    abar__nvjpeg_state state[2];
    int64_t batch, side;
    int ready; /* batch size that state[0] was initialised for */
    cudaStream_t stream;
    cudaEvent_t decoded, resampled;
    char *pinned, *memory; /* jobs, tables, then files; jobs, tables, then pixels */
    size_t pinned_bytes, memory_bytes;
    /* of the current batch, (batch) each */
    const unsigned char **files;
    size_t *lengths;
    abar__nvjpeg_image *images;
    int64_t *numbers; /* of its rows */
};

/* ---- resampling ---------------------------------------------------------------------------------------------------- */

__device__ static inline uint8_t clip(int32_t sum)
{
    sum >>= PRECISION;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* blockIdx.x: the image; a thread: outputs of image rows. */
static __global__ void across(const job *jobs, int side)
{
    const job j = jobs[blockIdx.x];
    const int64_t n = (int64_t)j.n_rows * side, stride = (int64_t)gridDim.y * THREADS;
    for (int64_t t = (int64_t)blockIdx.y * THREADS + threadIdx.x; t < n; t += stride) {
        const int row = (int)(t / side), x = (int)(t % side);
        const int32_t *w = j.x.weights + (int64_t)x * j.x.taps;
        const uint8_t *from = j.pixels + ((int64_t)(j.first_row + row) * j.width + j.x.begin[x]) * 3;
        int32_t r = 1 << (PRECISION - 1), g = r, b = r;
        for (int k = 0; k < j.x.count[x]; k++, from += 3) {
            r += from[0] * w[k];
            g += from[1] * w[k];
            b += from[2] * w[k];
        }
        uint8_t *to = j.rows + t * 3;
        to[0] = clip(r);
        to[1] = clip(g);
        to[2] = clip(b);
    }
}

/* blockIdx.x: the image; a thread: pixels. */
static __global__ void down(const job *jobs, int side)
{
    const job j = jobs[blockIdx.x];
    const int64_t plane = (int64_t)side * side, stride = (int64_t)gridDim.y * THREADS;
    for (int64_t t = (int64_t)blockIdx.y * THREADS + threadIdx.x; t < plane; t += stride) {
        const int y = (int)(t / side), x = (int)(t % side);
        const int32_t *w = j.y.weights + (int64_t)y * j.y.taps;
        const uint8_t *from = j.rows + ((int64_t)(j.y.begin[y] - j.first_row) * side + x) * 3;
        int32_t r = 1 << (PRECISION - 1), g = r, b = r;
        for (int k = 0; k < j.y.count[y]; k++, from += 3 * side) {
            r += from[0] * w[k];
            g += from[1] * w[k];
            b += from[2] * w[k];
        }
        j.out[t] = clip(r);
        j.out[plane + t] = clip(g);
        j.out[2 * plane + t] = clip(b);
    }
}

/* A grid of n images, each of so many elements; a thread takes more than one where the grid would be too large. */
static dim3 grid_of(int64_t n, int64_t elements)
{
    const int64_t blocks = abar__cuda_blocks(elements, THREADS);
    return dim3((unsigned)n, (unsigned)(blocks < GRID_Y_MAX ? blocks : GRID_Y_MAX));
}

static abar_status resample(abar_device *dev, abar__decoder *d, int64_t n, int32_t most_rows, cudaStream_t stream)
{
    const job *jobs = (const job *)d->memory;
    const int64_t side = d->side;
    CUDA_TRY(dev, cudaStreamWaitEvent(stream, d->decoded, 0));
    across<<<grid_of(n, most_rows * side), THREADS, 0, stream>>>(jobs, (int)side);
    CUDA_TRY(dev, cudaGetLastError());
    down<<<grid_of(n, side * side), THREADS, 0, stream>>>(jobs, (int)side);
    CUDA_TRY(dev, cudaGetLastError());
    CUDA_TRY(dev, cudaEventRecord(d->resampled, stream));
    return ABAR_OK;
}

/* ---- a batch in memory ----------------------------------------------------------------------------------------------- */

/* Where the parts of a batch are: jobs and tables alike in pinned and device memory, then files here, pixels there. */
typedef struct plan {
    int64_t n;         /* images that are decoded here */
    int32_t most_rows; /* of an image that are resampled along x */
    size_t shared;     /* bytes of jobs and tables */
    size_t pinned, memory;
} plan;

static size_t place(size_t *at, size_t bytes)
{
    const size_t start = *at;
    *at = abar__round_up(start + bytes, ALIGNMENT);
    return start;
}

static size_t axis_bytes(const abar_resampling *a, int64_t side)
{
    return (size_t)side * (size_t)(a->taps + 2) * sizeof(int32_t);
}

/* The image rows that the outputs need: [*first, *first + the result). */
static int32_t rows_of(const abar_resampling *y, int64_t side, int32_t *first)
{
    int32_t low = y->begin[0], high = 0;
    for (int64_t i = 0; i < side; i++) {
        if (y->begin[i] < low) low = y->begin[i];
        if (y->begin[i] + y->count[i] > high) high = y->begin[i] + y->count[i];
    }
    *first = low;
    return high - low;
}

static plan measure(abar__decoder *d, const abar_encoded *files, int64_t n)
{
    plan p = {};
    size_t bytes = 0, pixels = 0;
    for (int64_t i = 0; i < n; i++) {
        const abar_encoded *f = &files[i];
        int32_t first;
        if (!f->file) continue;
        d->numbers[p.n++] = i;
        const int32_t rows = rows_of(&f->y, d->side, &first);
        if (rows > p.most_rows) p.most_rows = rows;
        place(&p.shared, axis_bytes(&f->x, d->side));
        place(&p.shared, axis_bytes(&f->y, d->side));
        place(&bytes, f->bytes);
        place(&pixels, (size_t)f->width * (size_t)f->height * 3);
        place(&pixels, (size_t)rows * (size_t)d->side * 3);
    }
    place(&p.shared, (size_t)p.n * sizeof(job));
    p.pinned = p.shared + bytes;
    p.memory = p.shared + pixels;
    return p;
}

/* Rare: most batches need less than one before. */
static abar_status reserve(abar_device *dev, abar__decoder *d, const plan *p)
{
    if (p->pinned <= d->pinned_bytes && p->memory <= d->memory_bytes) return ABAR_OK;
    const size_t pinned = p->pinned + p->pinned / 4, memory = p->memory + p->memory / 4;
    CUDA_TRY(dev, cudaEventSynchronize(d->resampled));
    if (p->pinned > d->pinned_bytes) {
        abar__cuda_pinned_free(dev, d->pinned, d->pinned_bytes);
        d->pinned = NULL;
        d->pinned_bytes = 0;
        ABAR_TRY(abar__cuda_pinned(dev, pinned, (void **)&d->pinned));
        d->pinned_bytes = pinned;
    }
    if (p->memory <= d->memory_bytes) return ABAR_OK;
    abar_device_free(dev, d->memory, d->memory_bytes);
    d->memory = NULL;
    d->memory_bytes = 0;
    ABAR_TRY(abar_device_alloc(dev, memory, (void **)&d->memory));
    d->memory_bytes = memory;
    CUDA_TRY(dev, cudaStreamSynchronize(abar__cuda_of(dev)->stream)); /* which sets it to zero */
    return ABAR_OK;
}

/* Copies an axis to its place in the tables; the pointers are those of the copy on the device. */
static axis put_axis(abar__decoder *d, const abar_resampling *from, size_t at)
{
    const size_t n = (size_t)d->side;
    int32_t *here = (int32_t *)(d->pinned + at);
    const int32_t *there = (const int32_t *)(d->memory + at);
    memcpy(here, from->begin, n * sizeof *here);
    memcpy(here + n, from->count, n * sizeof *here);
    memcpy(here + 2 * n, from->weights, n * (size_t)from->taps * sizeof *here);
    return {there, there + n, there + 2 * n, from->taps};
}

static void put_batch(abar__decoder *d, const plan *p, const abar_encoded *files, uint8_t *out)
{
    size_t shared = 0, bytes = p->shared, pixels = p->shared;
    job *jobs = (job *)d->pinned;
    place(&shared, (size_t)p->n * sizeof(job));
    for (int64_t k = 0; k < p->n; k++) {
        const abar_encoded *f = &files[d->numbers[k]];
        job *j = &jobs[k];
        *j = {};
        j->width = f->width;
        j->n_rows = rows_of(&f->y, d->side, &j->first_row);
        j->x = put_axis(d, &f->x, place(&shared, axis_bytes(&f->x, d->side)));
        j->y = put_axis(d, &f->y, place(&shared, axis_bytes(&f->y, d->side)));
        uint8_t *image = (uint8_t *)d->memory + place(&pixels, (size_t)f->width * (size_t)f->height * 3);
        j->pixels = image;
        j->rows = (uint8_t *)d->memory + place(&pixels, (size_t)j->n_rows * (size_t)d->side * 3);
        j->out = out + d->numbers[k] * 3 * d->side * d->side;
        char *file = d->pinned + place(&bytes, f->bytes);
        memcpy(file, f->file, f->bytes);
        d->files[k] = (const unsigned char *)file;
        d->lengths[k] = f->bytes;
        d->images[k] = {};
        d->images[k].plane[0] = image;
        d->images[k].pitch[0] = (size_t)f->width * 3;
    }
}

/* ---- decoding ---------------------------------------------------------------------------------------------------------- */

/* All at once. False: the library cannot, or does not want to. */
static bool decode_batch(abar__decoder *d, int64_t n)
{
    const abar__nvjpeg_api *a = &d->api;
    if (d->ready != n &&
        a->nvjpegDecodeBatchedInitialize(d->handle[0], d->state[0], (int)n, 1, ABAR_NVJPEG_RGB_INTERLEAVED) != ABAR_NVJPEG_OK)
        return false;
    d->ready = (int)n;
    const int status = a->nvjpegDecodeBatched(d->handle[0], d->state[0], d->files, d->lengths, d->images, d->stream);
    if (status != ABAR_NVJPEG_OK) d->ready = 0; /* a batch that failed needs another start */
    return status == ABAR_NVJPEG_OK;
}

/* One by one, by the back end that decodes most kinds of files. */
static abar_status decode_each(abar_device *dev, abar__decoder *d, int64_t n)
{
    cudaGetLastError();
    CUDA_TRY(dev, cudaStreamSynchronize(d->stream));
    for (int64_t k = 0; k < n; k++) {
        const int status = d->api.nvjpegDecode(d->handle[1], d->state[1], d->files[k], d->lengths[k],
                                               ABAR_NVJPEG_RGB_INTERLEAVED, &d->images[k], d->stream);
        if (status != ABAR_NVJPEG_OK)
            return abar__fail(dev->ctx, ABAR_E_FORMAT,
                              "nvJPEG: cannot decode image %lld of a batch (its status %d), `abar data` names damaged files; "
                              "or use --decode cpu",
                              (long long)d->numbers[k], status);
    }
    return ABAR_OK;
}

abar_status abar__decoder_run(abar_device *dev, abar__decoder *d, const abar_encoded *files, int64_t n, uint8_t *out,
                              cudaStream_t stream)
{
    CUDA_TRY(dev, cudaEventSynchronize(d->decoded)); /* pinned memory and the library's state are free */
    const plan p = measure(d, files, n);
    if (p.n == 0) return ABAR_OK;
    ABAR_TRY(reserve(dev, d, &p));
    put_batch(d, &p, files, out);
    CUDA_TRY(dev, cudaStreamWaitEvent(d->stream, d->resampled, 0));
    CUDA_TRY(dev, cudaMemcpyAsync(d->memory, d->pinned, p.shared, cudaMemcpyHostToDevice, d->stream));
    if (!decode_batch(d, p.n)) ABAR_TRY(decode_each(dev, d, p.n));
    CUDA_TRY(dev, cudaEventRecord(d->decoded, d->stream));
    return resample(dev, d, p.n, p.most_rows, stream);
}

/* ---- creating ------------------------------------------------------------------------------------------------------------ */

static abar_status open_library(abar_device *dev, abar__decoder *d)
{
    static const int fastest[] = {ABAR_NVJPEG_HARDWARE, ABAR_NVJPEG_GPU_HYBRID, ABAR_NVJPEG_DEFAULT};
    const abar__nvjpeg_api *a = &d->api;
    ABAR_TRY(abar__nvjpeg_load(dev->ctx, &d->api));
    int status = a->nvjpegCreateEx(ABAR_NVJPEG_DEFAULT, NULL, NULL, 0, &d->handle[1]);
    for (int i = 0; i < 3 && status == ABAR_NVJPEG_OK && !d->handle[0]; i++)
        if (a->nvjpegCreateEx(fastest[i], NULL, NULL, 0, &d->handle[0]) != ABAR_NVJPEG_OK) d->handle[0] = NULL;
    for (int i = 0; i < 2 && status == ABAR_NVJPEG_OK; i++) status = a->nvjpegJpegStateCreate(d->handle[i], &d->state[i]);
    cudaGetLastError();
    if (status == ABAR_NVJPEG_OK) return ABAR_OK;
    return abar__fail(dev->ctx, ABAR_E_BACKEND, "nvJPEG: does not start on this GPU (its status %d), use --decode cpu", status);
}

static abar_status make(abar_device *dev, abar__decoder *d)
{
    const size_t n = (size_t)d->batch;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    ABAR_TRY(open_library(dev, d));
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    CUDA_TRY(dev, cudaEventCreateWithFlags(&d->decoded, cudaEventDisableTiming));
    CUDA_TRY(dev, cudaEventCreateWithFlags(&d->resampled, cudaEventDisableTiming));
    ABAR_TRY(abar__alloc(dev->ctx, n * sizeof *d->files, (void **)&d->files));
    ABAR_TRY(abar__alloc(dev->ctx, n * sizeof *d->lengths, (void **)&d->lengths));
    ABAR_TRY(abar__alloc(dev->ctx, n * sizeof *d->images, (void **)&d->images));
    return abar__alloc(dev->ctx, n * sizeof *d->numbers, (void **)&d->numbers);
}

abar_status abar__decoder_create(abar_device *dev, int64_t batch, int64_t side, abar__decoder **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof(abar__decoder), &memory));
    abar__decoder *d = (abar__decoder *)memory;
    d->batch = batch;
    d->side = side;
    abar_status status = make(dev, d);
    if (status < 0) {
        abar__decoder_destroy(dev, d);
        return status;
    }
    *out = d;
    return ABAR_OK;
}

void abar__decoder_destroy(abar_device *dev, abar__decoder *d)
{
    if (!d) return;
    const size_t n = (size_t)d->batch;
    if (d->resampled) cudaEventSynchronize(d->resampled);
    if (d->stream) cudaStreamSynchronize(d->stream);
    for (int i = 0; i < 2; i++) {
        if (d->state[i]) d->api.nvjpegJpegStateDestroy(d->state[i]);
        if (d->handle[i]) d->api.nvjpegDestroy(d->handle[i]);
    }
    if (d->decoded) cudaEventDestroy(d->decoded);
    if (d->resampled) cudaEventDestroy(d->resampled);
    if (d->stream) cudaStreamDestroy(d->stream);
    abar__cuda_pinned_free(dev, d->pinned, d->pinned_bytes);
    abar_device_free(dev, d->memory, d->memory_bytes);
    abar__free(dev->ctx, d->files, n * sizeof *d->files);
    abar__free(dev->ctx, d->lengths, n * sizeof *d->lengths);
    abar__free(dev->ctx, d->images, n * sizeof *d->images);
    abar__free(dev->ctx, d->numbers, n * sizeof *d->numbers);
    abar__free(dev->ctx, d, sizeof *d);
}
