/* Sums over the rows of a map without ever building a row (methods.md section 1). Numbers are added in float32 for at most
 * RUN steps, then in double: adaptive damping takes a small difference of two such sums.
 *
 * The mean patch of a convolution comes from the batch-sum image S[c, h, w] = sum over n of x[n, c, h, w]: entry (c, i, j) is a
 * strided window sum of S. S itself is made a few image rows at a time, in a buffer that stays in the cache, so that x is
 * read once, in runs of kilobytes. */
#include "device/cpu/stats.h"

#include "device/cpu/isa/core_kernels.h"
#include "device/device_impl.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define TILE 8192 /* floats of S at a time: 32 KiB */
#define LANES 16  /* the widest block of a layout */
#define TAPS 64   /* of a window; larger ones are summed element by element */
#define SPAN 1024 /* columns of vectors at a time */
#define TEAM 16   /* threads that share one block of channels */
#define RUN 32    /* additions in float before the result goes into a larger sum */

static const abar__core_kernels *kernels_of(const abar_device *dev) { return dev->impl; }

/* ---- planes: the layout of one tensor's images ------------------------------------------------------------------- */

/* A stack of images in float32: lanes consecutive numbers belong to one pixel (channels for C8 and C16, images for N16). */
typedef struct planes {
    const float *data;
    int64_t images, channels, height, width; /* images: outer ones; channels: blocks of lanes, for C8 and C16 */
    int64_t image_stride, channel_stride;    /* floats; rows and pixels follow one another */
    int64_t lanes;
    bool lanes_are_images;
} planes;

/* False where the tensor is not float32 or its rows do not follow one another: then it is read element by element. */
static bool as_planes(const abar_tensor *t, planes *p)
{
    if (t->dtype != ABAR_F32 || t->ndim != 4) return false;
    const int64_t *d = t->dim, pixels = d[2] * d[3];
    *p = (planes){.data = t->data, .images = d[0], .channels = d[1], .height = d[2], .width = d[3], .lanes = 1};
    switch (t->layout) {
    case ABAR_LAYOUT_NHWC:
    case ABAR_LAYOUT_PADDED: return false;
    case ABAR_LAYOUT_STRIDED:
        p->image_stride = t->stride[0];
        p->channel_stride = t->stride[1];
        return (t->stride[3] == 1 || d[3] == 1) && (t->stride[2] == d[3] || d[2] == 1);
    case ABAR_LAYOUT_C8:
    case ABAR_LAYOUT_C16:
        p->lanes = t->layout == ABAR_LAYOUT_C8 ? 8 : 16;
        p->channels = (d[1] + p->lanes - 1) / p->lanes;
        p->channel_stride = pixels * p->lanes;
        p->image_stride = p->channels * p->channel_stride;
        return true;
    case ABAR_LAYOUT_N16:
        p->lanes = 16;
        p->lanes_are_images = true;
        p->images = (d[0] + 15) / 16;
        p->channel_stride = pixels * 16;
        p->image_stride = d[1] * p->channel_stride;
        return true;
    }
    return false;
}

/* ---- any tensor, element by element: other dtypes and odd strides ------------------------------------------------ */

static double at(const abar_tensor *t, const int64_t *index) { return abar__tensor_load(t, abar__tensor_offset(t, index)); }

/* How many window positions see this row (axis 0) or column (axis 1) through tap k: 0 or 1, as the stride allows. */
static bool seen(const abar_window *w, int axis, int64_t extent, int64_t place, int64_t k)
{
    int64_t from = place + w->pad[axis] - k * w->dilation[axis];
    return from >= 0 && from % w->stride[axis] == 0 && from / w->stride[axis] < abar_window_out(w, axis, extent);
}

static void input_sum_slowly(const abar__rows *r, float *sum)
{
    const abar_tensor *t = &r->input;
    const abar_window *w = &r->window;
    if (!r->convolution) {
        for (int64_t k = 0; k < r->in; k++) {
            double total = 0.0;
            for (int64_t n = 0; n < r->examples; n++)
                for (int64_t i = 0; i < r->per_example; i++) total += at(t, (int64_t[]){n, t->ndim == 2 ? k : i, k});
            sum[k] += (float)total;
        }
        return;
    }
    const int64_t channels = t->dim[1] / w->groups, taps = w->kernel[0] * w->kernel[1];
    for (int64_t k = 0; k < r->in; k++) {
        int64_t c = r->group * channels + k / taps, i = k % taps / w->kernel[1], j = k % w->kernel[1];
        double total = 0.0;
        for (int64_t y = 0; y < t->dim[2]; y++)
            for (int64_t x = 0; x < t->dim[3] && seen(w, 0, t->dim[2], y, i); x++)
                for (int64_t n = 0; n < r->examples && seen(w, 1, t->dim[3], x, j); n++)
                    total += at(t, (int64_t[]){n, c, y, x});
        sum[k] += (float)total;
    }
}

/* ---- sums of inputs ------------------------------------------------------------------------------------------------- */

/* tile[i] = the sum over all images of element i of image rows from .. of block. Runs of images are summed on their own. */
static void sum_images(const abar_device *dev, const planes *p, int64_t block, int64_t from, int64_t length, float tile[TILE])
{
    float run[TILE];
    memset(tile, 0, (size_t)length * sizeof *tile);
    for (int64_t first = 0; first < p->images; first += RUN) {
        const int64_t end = first + RUN < p->images ? first + RUN : p->images;
        float *to = p->images <= RUN ? tile : run;
        if (to == run) memset(run, 0, (size_t)length * sizeof *run);
        for (int64_t n = first; n < end; n++)
            kernels_of(dev)->add(to, p->data + n * p->image_stride + block * p->channel_stride + from * p->width * p->lanes,
                                 length);
        if (to == run) kernels_of(dev)->add(tile, run, length);
    }
}

/* Adds to taps[tap * lanes + lane] what image rows from .. to - 1 of block contribute, all images together. */
static void window_sums(const abar_device *dev, const planes *p, const abar_window *w, int64_t block, int64_t from, int64_t to,
                        double *taps)
{
    float tile[TILE];
    const int64_t row = p->width * p->lanes, lanes = p->lanes;
    sum_images(dev, p, block, from, (to - from) * row, tile);
    const int64_t rows = abar_window_out(w, 0, p->height), columns = abar_window_out(w, 1, p->width);
    for (int64_t i = 0; i < w->kernel[0]; i++)
        for (int64_t o = 0; o < rows; o++) {
            int64_t y = o * w->stride[0] - w->pad[0] + i * w->dilation[0];
            if (y < from || y >= to) continue;
            for (int64_t j = 0; j < w->kernel[1]; j++) {
                double *tap = taps + (i * w->kernel[1] + j) * lanes;
                for (int64_t q = 0; q < columns; q++) {
                    int64_t x = q * w->stride[1] - w->pad[1] + j * w->dilation[1];
                    if (x < 0 || x >= p->width) continue;
                    const float *pixel = tile + (y - from) * row + x * lanes;
                    for (int64_t l = 0; l < lanes; l++) tap[l] += (double)pixel[l];
                }
            }
        }
}

/* The channels of a block into their places of sum. */
static void store_taps(const abar__rows *r, const planes *p, int64_t block, const double *taps, float *sum)
{
    const int64_t channels = r->input.dim[1] / r->window.groups, first = r->group * channels;
    const int64_t n = r->window.kernel[0] * r->window.kernel[1], lanes = p->lanes;
    if (p->lanes_are_images || lanes == 1) {
        for (int64_t k = 0; k < n; k++) {
            double total = 0.0;
            for (int64_t l = 0; l < lanes; l++) total += taps[k * lanes + l];
            sum[(block - first) * n + k] += (float)total;
        }
        return;
    }
    for (int64_t l = 0; l < lanes; l++) {
        int64_t c = block * lanes + l - first;
        for (int64_t k = 0; k < n && c >= 0 && c < channels; k++) sum[c * n + k] += (float)taps[k * lanes + l];
    }
}

static void convolution_sum(const abar_device *dev, const abar__rows *r, const planes *p, float *sum)
{
    const int64_t channels = r->input.dim[1] / r->window.groups, per_block = p->lanes_are_images ? 1 : p->lanes;
    const int64_t first = r->group * channels / per_block, last = ((r->group + 1) * channels - 1) / per_block;
    const int64_t high = TILE / (p->width * p->lanes), chunks = (p->height + high - 1) / high;
    const int64_t count = r->window.kernel[0] * r->window.kernel[1] * p->lanes;
    if (last - first + 1 >= dev->threads) { /* blocks to every thread */
#pragma omp parallel for num_threads(dev->threads) schedule(static)
        for (int64_t block = first; block <= last; block++) {
            double taps[TAPS * LANES];
            memset(taps, 0, (size_t)count * sizeof *taps);
            for (int64_t y = 0; y < p->height; y += high)
                window_sums(dev, p, &r->window, block, y, y + high < p->height ? y + high : p->height, taps);
            store_taps(r, p, block, taps, sum);
        }
        return;
    }
    const int team = (int)(chunks < TEAM ? chunks : TEAM) < dev->threads ? (int)(chunks < TEAM ? chunks : TEAM) : dev->threads;
    for (int64_t block = first; block <= last; block++) { /* rows of each block to the threads */
        double taps[TEAM][TAPS * LANES];
#pragma omp parallel for num_threads(team) schedule(static)
        for (int t = 0; t < team; t++) {
            memset(taps[t], 0, (size_t)count * sizeof **taps);
            for (int64_t k = chunks * t / team; k < chunks * (t + 1) / team; k++)
                window_sums(dev, p, &r->window, block, k * high, (k + 1) * high < p->height ? (k + 1) * high : p->height,
                            taps[t]);
        }
        for (int t = 1; t < team; t++)
            for (int64_t k = 0; k < count; k++) taps[0][k] += taps[t][k];
        store_taps(r, p, block, taps[0], sum);
    }
}

/* Vectors that follow one another in memory. */
static bool as_vectors(const abar_tensor *t, int64_t *outer_stride, int64_t *row_stride)
{
    if (t->dtype != ABAR_F32 || t->layout != ABAR_LAYOUT_STRIDED || t->ndim == 4) return false;
    *outer_stride = t->stride[0];
    *row_stride = t->ndim == 3 ? t->stride[1] : 0;
    return t->stride[t->ndim - 1] == 1 || t->dim[t->ndim - 1] == 1;
}

/* sum[k] += the sum over all rows of x[k]. */
static void vector_sum(const abar_device *dev, const abar__rows *r, int64_t outer, int64_t inner, float *sum)
{
    const int64_t rows = r->examples * r->per_example;
    for (int64_t from = 0; from < r->in; from += SPAN) {
        double total[SPAN] = {0.0};
        float run[SPAN];
        const int64_t n = r->in - from < SPAN ? r->in - from : SPAN;
        for (int64_t first = 0; first < rows; first += RUN) {
            memset(run, 0, (size_t)n * sizeof *run);
            for (int64_t i = first; i < rows && i < first + RUN; i++)
                kernels_of(dev)->add(
                    run, (const float *)r->input.data + i / r->per_example * outer + i % r->per_example * inner + from, n);
            for (int64_t k = 0; k < n; k++) total[k] += (double)run[k];
        }
        for (int64_t k = 0; k < n; k++) sum[from + k] += (float)total[k];
    }
}

void abar__cpu_input_sum(abar_device *dev, const abar__rows *r, void *out)
{
    float *sum = out;
    planes p;
    int64_t outer, inner;
    const int64_t taps = r->window.kernel[0] * r->window.kernel[1];
    if (r->convolution && as_planes(&r->input, &p) && taps <= TAPS && p.width * p.lanes <= TILE)
        convolution_sum(dev, r, &p, sum);
    else if (!r->convolution && as_vectors(&r->input, &outer, &inner))
        vector_sum(dev, r, outer, inner, sum);
    else
        input_sum_slowly(r, sum);
    if (r->bias) sum[r->in] += (float)(r->examples * r->per_example);
}

/* Every element counts as often as windows see it. What none sees is no part of any row, and may be anything. */
static int64_t times_seen(const abar_window *w, int axis, int64_t extent, int64_t place)
{
    int64_t times = 0;
    for (int64_t k = 0; k < w->kernel[axis]; k++) times += seen(w, axis, extent, place, k);
    return times;
}

static double squares_of_row(const float *row, int64_t lanes, int64_t width, const double *wide)
{
    double sum = 0.0;
    for (int64_t x = 0; x < width; x++) {
        double pixel = 0.0;
        if (wide[x] == 0.0) continue;
        for (int64_t l = 0; l < lanes; l++) pixel += (double)row[x * lanes + l] * (double)row[x * lanes + l];
        sum += wide[x] * pixel;
    }
    return sum;
}

static double convolution_square(const abar__rows *r, const planes *p, int64_t first, int64_t last)
{
    double wide[TILE], total = 0.0;
    for (int64_t x = 0; x < p->width; x++) wide[x] = (double)times_seen(&r->window, 1, p->width, x);
    for (int64_t n = 0; n < p->images; n++)
        for (int64_t block = first; block <= last; block++)
            for (int64_t y = 0; y < p->height; y++) {
                const int64_t high = times_seen(&r->window, 0, p->height, y);
                const float *row = p->data + n * p->image_stride + block * p->channel_stride + y * p->width * p->lanes;
                if (high > 0) total += (double)high * squares_of_row(row, p->lanes, p->width, wide);
            }
    return total;
}

static double input_square_slowly(const abar__rows *r)
{
    const abar_tensor *t = &r->input;
    double total = 0.0;
    if (!r->convolution) {
        for (int64_t n = 0; n < r->examples; n++)
            for (int64_t i = 0; i < r->per_example; i++)
                for (int64_t k = 0; k < r->in; k++) total += pow(at(t, (int64_t[]){n, t->ndim == 2 ? k : i, k}), 2.0);
        return total;
    }
    const int64_t channels = t->dim[1] / r->window.groups;
    for (int64_t n = 0; n < r->examples; n++)
        for (int64_t c = r->group * channels; c < (r->group + 1) * channels; c++)
            for (int64_t y = 0; y < t->dim[2]; y++)
                for (int64_t x = 0; x < t->dim[3]; x++) {
                    int64_t times = times_seen(&r->window, 0, t->dim[2], y) * times_seen(&r->window, 1, t->dim[3], x);
                    if (times > 0) total += (double)times * pow(at(t, (int64_t[]){n, c, y, x}), 2.0);
                }
    return total;
}

void abar__cpu_input_square_add(abar_device *dev, const abar__rows *r, double *sum)
{
    (void)dev;
    planes p;
    double total = r->bias ? (double)(r->examples * r->per_example) : 0.0;
    bool whole_blocks = r->convolution && as_planes(&r->input, &p) && p.width <= TILE;
    if (whole_blocks) { /* blocked padding is zero, but other groups' channels are not */
        const int64_t channels = r->input.dim[1] / r->window.groups, width = p.lanes_are_images ? 1 : p.lanes;
        whole_blocks = r->window.groups == 1 || channels % width == 0;
        int64_t first = r->group * channels / width, last = ((r->group + 1) * channels - 1) / width;
        if (whole_blocks) total += convolution_square(r, &p, first, last);
    }
    *sum += whole_blocks ? total : total + input_square_slowly(r);
}

/* ---- sums of output gradients --------------------------------------------------------------------------------------- */

typedef struct grad_sums {
    bool squares;
    const double *weight; /* per example; NULL: 1 */
    double scale;         /* of the sum */
} grad_sums;

static double weight_of(const grad_sums *g, int64_t n) { return g->weight ? g->weight[n] : 1.0; }

static void grad_sums_slowly(const abar__rows *r, const grad_sums *g, float *sum)
{
    const abar_tensor *t = &r->output_grad;
    for (int64_t o = 0; o < r->out; o++) {
        double total = 0.0;
        for (int64_t n = 0; n < r->examples; n++) {
            double part = 0.0;
            for (int64_t i = 0; i < r->per_example; i++) {
                int64_t image[4] = {n, r->group * r->out + o, 0, 0}, rows[3] = {n, t->ndim == 2 ? o : i, o};
                if (r->convolution) {
                    image[2] = i / t->dim[3];
                    image[3] = i % t->dim[3];
                }
                double p = at(t, r->convolution ? image : rows);
                part += g->squares ? p * p : p;
            }
            total += weight_of(g, n) * part;
        }
        sum[o] += (float)(g->scale * total);
    }
}

/* One block of channels, images from .. to - 1: total[lane]. */
static void plane_sums(const abar_device *dev, const abar__rows *r, const planes *p, const grad_sums *g, int64_t block,
                       int64_t from, int64_t to, double total[LANES])
{
    memset(total, 0, LANES * sizeof *total);
    for (int64_t n = from; n < to; n++) {
        float lane[LANES];
        kernels_of(dev)->lane_sums(p->data + n * p->image_stride + block * p->channel_stride, p->height * p->width, p->lanes,
                                   g->squares, lane);
        for (int64_t l = 0; l < p->lanes; l++) {
            int64_t example = p->lanes_are_images ? n * 16 + l : n;
            if (example < r->examples) total[p->lanes_are_images ? 0 : l] += weight_of(g, example) * (double)lane[l];
        }
    }
}

static void convolution_grads(const abar_device *dev, const abar__rows *r, const planes *p, const grad_sums *g, float *sum)
{
    const int64_t width = p->lanes_are_images ? 1 : p->lanes, first = r->group * r->out;
    const int team = dev->threads < TEAM ? dev->threads : TEAM;
    for (int64_t block = first / width; block <= (first + r->out - 1) / width; block++) {
        double total[TEAM][LANES];
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
        for (int t = 0; t < team; t++)
            plane_sums(dev, r, p, g, block, p->images * t / team, p->images * (t + 1) / team, total[t]);
        for (int64_t l = 0; l < width; l++) {
            int64_t o = block * width + l - first;
            for (int t = 0; t < team && o >= 0 && o < r->out; t++) sum[o] += (float)(g->scale * total[t][l]);
        }
    }
}

static void vector_grads(const abar__rows *r, const grad_sums *g, int64_t outer, int64_t inner, float *sum)
{
    for (int64_t from = 0; from < r->out; from += SPAN) {
        double total[SPAN] = {0.0};
        const int64_t width = r->out - from < SPAN ? r->out - from : SPAN;
        for (int64_t n = 0; n < r->examples; n++)
            for (int64_t i = 0; i < r->per_example; i++) {
                const float *p = (const float *)r->output_grad.data + n * outer + i * inner + from;
                const double w = weight_of(g, n);
                for (int64_t o = 0; o < width; o++) total[o] += w * (g->squares ? (double)p[o] * (double)p[o] : (double)p[o]);
            }
        for (int64_t o = 0; o < width; o++) sum[from + o] += (float)(g->scale * total[o]);
    }
}

static void sum_grads(const abar_device *dev, const abar__rows *r, const grad_sums *g, float *sum)
{
    planes p;
    int64_t outer, inner;
    if (r->convolution && as_planes(&r->output_grad, &p))
        convolution_grads(dev, r, &p, g, sum);
    else if (!r->convolution && as_vectors(&r->output_grad, &outer, &inner))
        vector_grads(r, g, outer, inner, sum);
    else
        grad_sums_slowly(r, g, sum);
}

void abar__cpu_grad_sum(abar_device *dev, const abar__rows *r, void *sum)
{
    sum_grads(dev, r, &(grad_sums){.scale = r->grad_scale}, sum);
}

void abar__cpu_grad_squares(abar_device *dev, const abar__rows *r, const double *weight, void *sum)
{
    sum_grads(dev, r, &(grad_sums){.squares = true, .weight = weight, .scale = r->grad_scale * r->grad_scale}, sum);
}
