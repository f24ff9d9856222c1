/* Direct convolution with sixteen images in the vector lanes: the interface of the kernels in isa/conv_lanes_kernels.c.
 * Tensors are (C, H, W, 16) here, one block of sixteen images; strides count floats. */
#ifndef ABAR_CONV_LANES_H
#define ABAR_CONV_LANES_H

#include "device/cpu/isa.h"
#include "device/cpu/isa/lanes.h"

#include <stdbool.h>
#include <stdint.h>

/* One axis of a window: output index i reads source index i * step + first + m * tap through tap m, if that is in [0, in).
 * Forward: step = stride, first = -pad, tap = dilation. Backward has negative taps and its own first. */
typedef struct abar__lanes_axis {
    int64_t out, in, taps, step, first, tap;
} abar__lanes_axis;

/* dst[o][i][j] = bias[o] + sum over c, m, n of weights[o][c][m][n] * src[c][i with m][j with n], for one group. */
typedef struct abar__lanes_map {
    abar__lanes_axis v, h; /* vertical, horizontal */
    int64_t inputs, outputs;
    int64_t src_channel, src_row;
    int64_t dst_channel, dst_row, dst_column;
    bool relu;
} abar__lanes_map;

/* The gradient of the weights of such a map: dy is dst's gradient, x the source. */
typedef struct abar__lanes_slope {
    abar__lanes_axis v, h;
    int64_t inputs, outputs;
    int64_t x_channel, x_row;
    int64_t dy_channel, dy_row;
} abar__lanes_slope;

/* The offset of the map's taps in plain weights: o * output + c * input + first + m * row + n * column. */
typedef struct abar__lanes_plain {
    int64_t output, input, first, row, column;
} abar__lanes_plain;

/* Taps [*begin, *end) that are inside the source for output index i. */
static inline void abar__lanes_clip(const abar__lanes_axis *a, int64_t i, int64_t *begin, int64_t *end)
{
    int64_t at = i * a->step + a->first, b = 0, e = a->taps;
    while (b < e && (at + b * a->tap < 0 || at + b * a->tap >= a->in)) b++;
    while (e > b && (at + (e - 1) * a->tap < 0 || at + (e - 1) * a->tap >= a->in)) e--;
    *begin = b;
    *end = e;
}

/* Part k of n items divided among parts: [begin, next begin). */
static inline int64_t abar__lanes_share(int64_t n, int64_t parts, int64_t k) { return n * k / parts; }

typedef struct abar__lanes_kernels {
    /* Packs the weights for row: blocks of output channels, each (inputs, taps, outputs of the block). */
    void (*pack)(const abar__lanes_map *map, const abar__lanes_plain *plain, const float *weights, float *packed);
    /* Computes output row i. bias (outputs) or NULL. */
    void (*row)(const abar__lanes_map *map, const float *packed, const float *bias, const float *src, float *dst, int64_t i);
    /* Adds the products of output rows [begin, end) to partial (outputs, inputs, taps, 16), one sum per lane. */
    void (*slope)(const abar__lanes_slope *map, const float *dy, const float *x, float *partial, int64_t begin, int64_t end);
    /* Adds n pixels of dy where y > 0 to sum (16), and sets the others to 0. y NULL: adds all. */
    void (*mask)(float *dy, const float *y, float *sum, int64_t n);
    /* dst[i] (+)= sum over lanes and over parts (stride floats apart) of partial[i]. */
    void (*reduce)(const float *partial, int64_t stride, int parts, int64_t begin, int64_t end, bool accumulate, float *dst);
} abar__lanes_kernels;

#endif
