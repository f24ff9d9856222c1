/* Convolutions of stride 1 as matrix products over tiles of the output: the interface of the kernels.
 *
 *     U = weights transformed, V = source patches transformed, M = U V summed over input channels, for each place of a tile
 *     y = M transformed back. The gradient of the weights is that of U, Z V summed over tiles, with Z = dy transformed
 *
 * isa/winograd_kernels.c: 3x3 by Winograd's F(4x4, 3x3), 4x4 outputs from 36 products instead of 144 (Lavin and Gray, "Fast
 * algorithms for convolutional neural networks", 2016): d a source patch (6x6), g a kernel (3x3), y a tile (4x4);
 * U = G g Gᵀ, V = Bᵀ d B, y = Aᵀ M A, Z = A dy Aᵀ, dg = Gᵀ [sum of Z V] G.
 * isa/pointwise_kernels.c: 1x1. A tile is a pixel, there is one place, and all transforms are copies.
 *
 * Activations are (N, C/lanes, H, W, lanes). V, M and Z are (places, C/lanes, chunk, lanes); each place is followed by one
 * vector of padding, so that the places do not share one set of the cache. */
#ifndef ABAR_CONV_TILES_H
#define ABAR_CONV_TILES_H

#include "device/cpu/isa.h"

#include <stdbool.h>
#include <stdint.h>

/* One convolution from source to output; the gradient of the input is another, from dy to dx. */
typedef struct abar__tiles {
    int64_t inputs, outputs;       /* channels */
    int64_t in_blocks, out_blocks; /* the same in blocks of lanes */
    int64_t in_h, in_w, out_h, out_w, pad[2];
    int64_t tiles_h, tiles_w; /* of one image; tiles are numbered image by image, row by row */
    int64_t chunk;            /* tiles per chunk */
} abar__tiles;

/* The offset of a convolution's weights: g(o, c) begins at o * output + c * input; flipped: its taps are in reverse order. */
typedef struct abar__tiles_taps {
    int64_t output, input;
    bool flipped;
} abar__tiles_taps;

/* Memory that the next stages use: runs of so many floats, step apart. It is prefetched into the second-level cache during the
 * products, which leave the memory idle. */
typedef struct abar__tiles_runs {
    const float *memory;
    int64_t runs, floats, step;
} abar__tiles_runs;

/* All that is to be prefetched: of the source and of the destination the part of a first image, whole images, the part of a
 * last one. */
typedef struct abar__tiles_ahead {
    abar__tiles_runs part[6];
    int n;
} abar__tiles_ahead;

typedef struct abar__tiles_kernels {
    int lanes;        /* channels in a block; 0: this instruction set has no such kernels */
    int chunk_factor; /* chunks are multiples of this */
    int taps, tile;   /* sides of a kernel and of a tile of outputs */
    int places;
    /* U of input channel c, for all outputs: (places, groups of two blocks of outputs, in_blocks * lanes, outputs of the
     * group). */
    void (*kernels)(const abar__tiles *w, const abar__tiles_taps *taps, const float *g, int64_t c, float *u);
    /* V of tiles [first, first + count). */
    void (*source)(const abar__tiles *w, const float *src, int64_t first, int64_t count, float *v);
    void (*multiply)(const abar__tiles *w, const float *u, const float *v, int64_t count, float *m,
                     const abar__tiles_ahead *ahead);
    /* Tiles of dst from m; bias (outputs) or NULL. */
    void (*output)(const abar__tiles *w, const float *m, const float *bias, bool relu, int64_t first, int64_t count,
                   float *dst);
    /* Z of tiles of the gradient of dst. */
    void (*gradient)(const abar__tiles *w, const float *dy, int64_t first, int64_t count, float *z);
    /* Adds V Z, summed over count tiles, to s (places, in_blocks, out_blocks, lanes of c, lanes of o), and dy to bias. */
    void (*correlate)(const abar__tiles *w, const float *v, const float *z, int64_t count, float *s, float *bias,
                      const abar__tiles_ahead *ahead);
    /* The gradient of g (+)= s transformed back, for input channel c and all outputs, s being the sum of parts (stride floats
     * apart). */
    void (*collect)(const abar__tiles *w, const abar__tiles_taps *taps, const float *s, int64_t stride, int parts, int64_t c,
                    bool accumulate, float *dg);
} abar__tiles_kernels;

ABAR_ISA_EXTERN(abar__tiles_kernels, abar__winograd);
ABAR_ISA_EXTERN(abar__tiles_kernels, abar__pointwise);

/* Floats of V (or M, or Z) with this many channel blocks, from one place to the next. */
static inline int64_t abar__tiles_place(const abar__tiles *w, int64_t blocks, int lanes)
{
    return (blocks * w->chunk + 1) * lanes;
}

#endif
