/* Rows of a map as a stack of images under windows (methods.md section 0): how sums.cu and means.cu see them. Output
 * gradients have windows of one tap, and so have rows of vectors, which are pixels of an image one high. */
#ifndef ABAR_CUDA_STATS_STACKS_H
#define ABAR_CUDA_STATS_STACKS_H

#include "device/cuda/stats/stats.h"

/* The channels to be summed, their strides, and how the blocks share them. */
typedef struct stack {
    const void *data;
    int64_t images, channels, height, width;
    int64_t stride[4]; /* of n, c, y, x in elements */
    int kernel[2], step[2], pad[2], dilation[2];
    int64_t extent[2];    /* window positions along each axis */
    const double *weight; /* of every image, device memory; NULL: 1 */
    float *out;           /* (channels, kernel[0], kernel[1]), added to */
    double scale;         /* of the sums */
    double last;          /* where not 0: added behind the channels, times the sum of the weights */
    int lanes, pixels;    /* a block's threads: so many at a pixel (of vectors), so many pixels */
    int64_t tiles;        /* of pixels */
    int slices, groups;   /* blocks that share the images, the tiles */
    int shares;           /* threads that share a tile's pixels for an output */
    int64_t first;        /* channel of the launch */
} stack;

static inline const char *channel_at(const abar_tensor *t, int64_t channel)
{
    return (const char *)t->data + (size_t)(channel * t->stride[1]) * abar_dtype_size(t->dtype);
}

/* Rows that follow one another may be any number of images: as many as leave some tiles of pixels in each, so that a thread
 * adds up a long column before its block meets. */
static inline void fold_rows(stack *s)
{
    int64_t width = 256; /* a block's threads */
    while (width >= 32 && s->width % width != 0) width /= 2;
    if (width < 32) return;
    s->images = s->width / width;
    s->stride[0] = width * s->stride[3];
    s->width = width;
}

/* Images of the group's channels, or rows of vectors as pixels of one image (of N where their examples have weights or do not
 * follow one another). Taps: one. */
static inline stack stack_of(const abar__rows *r, const abar_tensor *tensor, int64_t channels, bool by_example)
{
    const abar_tensor t = abar__cuda_strided(tensor);
    stack s = {};
    s.channels = channels;
    s.scale = 1.0;
    for (int i = 0; i < 2; i++) s.kernel[i] = s.step[i] = s.dilation[i] = 1;
    if (t.ndim == 4) {
        s.data = channel_at(&t, r->group * channels);
        s.images = t.dim[0];
        s.height = t.dim[2];
        s.width = t.dim[3];
        for (int i = 0; i < 4; i++) s.stride[i] = t.stride[i];
    } else {
        const int64_t rows = t.ndim == 3 ? t.dim[1] : 1, step = t.ndim == 3 ? t.stride[1] : 0;
        const bool joined = !by_example && (rows == 1 || t.stride[0] == rows * step);
        s.data = t.data;
        s.images = joined ? 1 : t.dim[0];
        s.height = 1;
        s.width = joined ? t.dim[0] * rows : rows;
        s.stride[0] = joined ? 0 : t.stride[0];
        s.stride[1] = t.stride[t.ndim - 1];
        s.stride[3] = rows == 1 ? (joined ? t.stride[0] : 0) : step;
        if (joined) fold_rows(&s);
    }
    if (channels == 1) s.stride[1] = 1;
    s.extent[0] = s.height;
    s.extent[1] = s.width;
    return s;
}

/* The inputs under their windows, and the homogeneous ones behind them, one per row. */
static inline stack input_stack(const abar__rows *r, bool by_example)
{
    const abar_window *w = &r->window;
    stack s = stack_of(r, &r->input, r->convolution ? r->input.dim[1] / w->groups : r->in, by_example);
    for (int i = 0; i < 2 && r->convolution; i++) {
        s.kernel[i] = (int)w->kernel[i];
        s.step[i] = (int)w->stride[i];
        s.pad[i] = (int)w->pad[i];
        s.dilation[i] = (int)w->dilation[i];
        s.extent[i] = abar_window_out(w, i, r->input.dim[2 + i]);
    }
    s.last = r->bias ? (double)(r->examples * r->per_example) : 0.0;
    return s;
}

static inline bool is_empty(const stack *s) { return s->images == 0 || s->channels == 0 || s->height == 0 || s->width == 0; }

/* Vectors of n elements of this size can be read at once. */
static inline bool fits_vectors(const stack *s, int n, int64_t size)
{
    return s->stride[1] == 1 && s->channels % n == 0 && s->stride[0] % n == 0 && s->stride[2] % n == 0 &&
           s->stride[3] % n == 0 && (uintptr_t)s->data % (uintptr_t)(n * size) == 0;
}

#endif
