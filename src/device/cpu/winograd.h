/* Winograd's F(4x4, 3x3): 4x4 outputs of a 3x3 convolution from 36 products instead of 144 (Lavin and Gray, "Fast algorithms
 * for convolutional neural networks", 2016). The interface of the kernels in isa/winograd_kernels.c.
 *
 * d: source patch (6x6), g: kernel (3x3), y: output tile (4x4). U = G g Gᵀ, V = Bᵀ d B, M = U V summed over input channels
 * for each of the 36 places, y = Aᵀ M A. The gradient of g is Gᵀ [sum over tiles of (A dy Aᵀ) V] G: the same V, and Z = A dy
 * Aᵀ.
 *
 * Activations are (N, C/lanes, H, W, lanes). V, M and Z are (36, C/lanes, chunk, lanes); each place is followed by one
 * vector of padding, so that the 36 places do not share one set of the cache. */
#ifndef ABAR_WINOGRAD_H
#define ABAR_WINOGRAD_H

#include "device/cpu/isa/batch_norm_kernels.h"

#include <stdbool.h>
#include <stdint.h>

enum { ABAR_WINOGRAD_PLACES = 36, ABAR_WINOGRAD_TILE = 4 };

/* One convolution from source to output; the gradient of the input is another, from dy to dx. */
typedef struct abar__winograd {
    int64_t inputs, outputs;       /* channels */
    int64_t in_blocks, out_blocks; /* the same in blocks of lanes */
    int64_t in_h, in_w, out_h, out_w, pad[2];
    int64_t tiles_h, tiles_w; /* of one image; tiles are numbered image by image, row by row */
    int64_t chunk;            /* tiles per chunk */
} abar__winograd;

/* The offset of a convolution's weights: g(o, c) begins at o * output + c * input; flipped: the 9 taps are in reverse order. */
typedef struct abar__winograd_taps {
    int64_t output, input;
    bool flipped;
} abar__winograd_taps;

/* Memory that the next stages use: runs of so many floats, step apart. It is prefetched into the second-level cache during the
 * products, which leave the memory idle. */
typedef struct abar__winograd_runs {
    const float *memory;
    int64_t runs, floats, step;
} abar__winograd_runs;

/* All that is to be prefetched: of the source and of the destination the part of a first image, whole images, the part of a
 * last one. */
typedef struct abar__winograd_ahead {
    abar__winograd_runs part[6];
    int n;
} abar__winograd_ahead;

typedef struct abar__winograd_kernels {
    int lanes;        /* channels in a block; 0: this instruction set has no such kernels */
    int chunk_factor; /* chunks are multiples of this */
    /* U of input channel c, for all outputs: (36, groups of two blocks of outputs, in_blocks * lanes, outputs of the group). */
    void (*kernels)(const abar__winograd *w, const abar__winograd_taps *taps, const float *g, int64_t c, float *u);
    /* V of tiles [first, first + count). */
    void (*source)(const abar__winograd *w, const float *src, int64_t first, int64_t count, float *v);
    void (*multiply)(const abar__winograd *w, const float *u, const float *v, int64_t count, float *m,
                     const abar__winograd_ahead *ahead);
    /* Tiles of dst from m; bias (outputs) or NULL. Adds the moments of what it writes to those of the channels (out_blocks *
     * lanes), unless that is NULL. */
    void (*output)(const abar__winograd *w, const float *m, const float *bias, bool relu, int64_t first, int64_t count,
                   float *dst, abar__norm_moments *moments);
    /* Z of tiles of the gradient of dst. */
    void (*gradient)(const abar__winograd *w, const float *dy, int64_t first, int64_t count, float *z);
    /* Adds V Z, summed over count tiles, to s (36, in_blocks, out_blocks, lanes of c, lanes of o), and dy to bias. */
    void (*correlate)(const abar__winograd *w, const float *v, const float *z, int64_t count, float *s, float *bias,
                      const abar__winograd_ahead *ahead);
    /* dg (+)= Gᵀ s G for input channel c and all outputs, s being the sum of parts (stride floats apart). */
    void (*collect)(const abar__winograd *w, const abar__winograd_taps *taps, const float *s, int64_t stride, int parts,
                    int64_t c, bool accumulate, float *dg);
} abar__winograd_kernels;

/* Floats of V (or M, or Z) with this many channel blocks, and from one place to the next. */
static inline int64_t abar__winograd_place(const abar__winograd *w, int64_t blocks, int lanes)
{
    return (blocks * w->chunk + 1) * lanes;
}

#endif
