/* Convolutions of few channels on tensor cores, bf16: shared by the host code and the kernels of conv_tiles.
 *
 * A block owns a tile of window positions: `take` rows of positions in each of `group` images. It loads the band of source
 * pixels under them once into shared memory, including zeros for the padding, and slides the window by changing addresses:
 * the lanes of an ldmatrix point to 16 pixels anywhere, and from tap to tap of the kernel all of them move by the same
 * offset. The distance of neighbouring pixels, pitch, is an odd number of 16-byte units, so that eight of them are in
 * different banks; for stride 2 the even columns of a line come before the odd ones, for the same reason. */
#ifndef ABAR_CUDA_CONV_TILES_H
#define ABAR_CUDA_CONV_TILES_H

#include "device/cuda/core/chain.h"
#include "device/cuda/core/mma.h"

/* The tiles of a window sliding over the images (N, H, W, C) of a source. */
typedef struct conv_band {
    int images, height, width, channels;
    int rows, columns; /* window positions in an image */
    int pad;           /* position (r, q) begins at pixel (r stride - pad, q stride - pad) */
    int group, take;   /* a tile: images, rows of positions in each */
    int bands;         /* tiles that one group of images has: ceil(rows / take) */
    int tiles;
    int high, wide;    /* pixels of a band, in each image of the group: under take rows and all columns */
    int chunks, pitch; /* per pixel in shared memory: 16-byte pieces that are loaded, and bytes from one pixel to the next */
    unsigned columns_part, take_part, high_part, chunks_part; /* for quotient() */
} conv_band;

/* The batch norm whose output is the convolution's input, while dx is computed: its input x, of dx's shape, its output y where
 * the ReLU's mask is taken from there, else NULL, and the other summand of its output's gradient or NULL. */
typedef struct conv_norm {
    const bf16 *x, *y, *other;
    const float *scale, *shift, *saved; /* saved: (2, channels), means and reciprocal deviations */
    float2 *sums;                       /* (channels, tiles) of g and g (x - mean) */
    bool relu;
    bool rounded; /* batch norm passes g on to its residual, rounded */
} conv_norm;

/* y = act(x * w + bias), or dx = dz * w transposed: a product of a band with all taps of a kernel. */
typedef struct conv_product {
    conv_band band;     /* of x, or of dz */
    const bf16 *source; /* x (N, H, W, C), or dz (N, P, Q, O) */
    const bf16 *weight; /* (O, K, K, C) */
    const float *bias;  /* (O) or NULL */
    bf16 *result;       /* y (N, P, Q, O), or dx (N, H, W, C) */
    int result_height, result_width, result_channels;
    int inputs, outputs; /* C, O */
    int weight_pitch;    /* bytes of a row of the weights in shared memory */
    int weight_bytes;    /* of all its rows; the band follows */
    bool relu;
    float2 *moments; /* of y, a part for each tile (conv_tile_moments); NULL: not wanted */
    int moments_at;  /* in shared memory, of those of a tile's lots; for dx, of the batch norm's coefficients and lots */
    conv_norm norm;  /* dx */
} conv_product;

/* dw (O, K, K, C) = sum over positions of dz (O) and x under the window (K, K, C), in partial sums, one for each block. */
typedef struct conv_slope {
    conv_band x, dz; /* the same tiles; dz's window is one pixel */
    const bf16 *x_data, *dz_data;
    float *partials;            /* (blocks, O, K, K, C) */
    int inputs, outputs;        /* C, O */
    int dz_offset, stage_bytes; /* in shared memory: of dz after x; of both, held twice where a block has several tiles */
} conv_slope;

enum conv_way { CONV_FORWARD, CONV_DX };

typedef void (*conv_product_kernel)(conv_product);
typedef void (*conv_slope_kernel)(conv_slope);
typedef void (*conv_join_kernel)(const float *partials, float *dw, int count, int parts, bool add);

/* The kernel for square windows k = 1, 3, 5 of stride s, whose blocks compute channel_tiles (2 or 4) times 8 channels of the
 * result, and how many positions a warp handles at a time. few: at most 8 input channels, stored as 8. NULL: there is none. */
typedef struct conv_product_choice {
    conv_product_kernel kernel, norm_kernel; /* norm_kernel: dx with sums for the batch norm before it */
    int positions, lot_bytes, channel_bytes; /* of shared memory, for moments or sums of so many positions, and for channels */
} conv_product_choice;
conv_product_choice abar__conv_product_pick(enum conv_way way, int k, int s, int channel_tiles, bool few);

/* Likewise for dw: a block computes 16 output_tiles (1 or 2) x 16 channels, few: x 8, with `threads` threads, and adds the
 * sums of its warps in reduce_bytes of shared memory. */
typedef struct conv_slope_choice {
    conv_slope_kernel kernel;
    int threads, reduce_bytes;
} conv_slope_choice;
conv_slope_choice abar__conv_slope_pick(int k, int s, int output_tiles, bool few);

/* dw = (or +=) the sum of parts partials (count), in order; blocks of (32, 8) threads, 32 elements each. */
extern const conv_join_kernel abar__conv_join;

/* ---- inside kernels --------------------------------------------------------------------------------------------- */

/* The position of column x of a band in its line of shared memory. */
template <int S> __device__ static inline int band_column(const conv_band &b, int x)
{
    return S == 2 ? (x & 1) * ((b.wide + 1) / 2) + x / 2 : x;
}

/* Bytes from a window's first pixel to the pixel under its tap (i, j). */
template <int S> __device__ static inline int band_tap(const conv_band &b, int i, int j)
{
    return (i * b.wide + band_column<S>(b, j)) * b.pitch;
}

/* n / d without a division: part is ceil(2^20 / d). Exact for n d < 2^20, n < 4096 d, which create ensures. */
__device__ static inline int quotient(int n, unsigned part) { return (int)((unsigned)n * part >> 20); }

/* A position of a tile, counted image by image, row by row. */
typedef struct conv_place {
    int image, row, column; /* image and row within the tile */
} conv_place;

__device__ static inline conv_place band_place(const conv_band &b, int position)
{
    const int line = quotient(position, b.columns_part), image = quotient(line, b.take_part);
    return {image, line - image * b.take, position - line * b.columns};
}

/* Bytes from the band's beginning to the first pixel under the window at a position. (Column S q of the band is stored at
 * q.) */
template <int S> __device__ static inline int band_window(const conv_band &b, int position)
{
    const conv_place at = band_place(b, position);
    return ((at.image * b.high + at.row * S) * b.wide + at.column) * b.pitch;
}

__device__ static inline int band_positions(const conv_band &b) { return b.group * b.take * b.columns; }

/* Line of a tile's band -> its first pixel in the source, or -1 outside of the images. */
__device__ static inline int band_line(const conv_band &b, int image0, int y0, int line)
{
    const int i = quotient(line, b.high_part), image = image0 + i, y = y0 + line - i * b.high;
    return image < b.images && y >= 0 && y < b.height ? (image * b.height + y) * b.width : -1;
}

/* Starts the asynchronous copies of a tile's band: `chunks` 16-byte pieces of every pixel, from channel first on. A lane
 * copies the same pieces of every line, a warp every warps-th line. */
template <int S>
__device__ static inline void band_load(const conv_band &b, uint32_t to, const bf16 *source, int tile, int first)
{
    const int image0 = tile / b.bands * b.group, y0 = tile % b.bands * b.take * S - b.pad;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    for (int k = lane; k < b.wide * b.chunks; k += 32) {
        const int x = quotient(k, b.chunks_part), chunk = k - x * b.chunks;
        const bool across = x >= b.pad && x < b.pad + b.width;
        const bf16 *from = source + (across ? (x - b.pad) * b.channels + chunk * 8 + first : 0);
        const uint32_t place = to + (uint32_t)(band_column<S>(b, x) * b.pitch + chunk * 16);
#pragma unroll 4
        for (int line = warp; line < b.group * b.high; line += warps) {
            const int pixel = band_line(b, image0, y0, line);
            const bool valid = across && pixel >= 0;
            copy16_async(place + (uint32_t)(line * b.wide * b.pitch), valid ? from + (int64_t)pixel * b.channels : source,
                         valid);
        }
    }
}

/* Up to 8 numbers, filled up with zeros, as bf16 in one 16-byte piece. */
__device__ static inline uint4 gather8(const bf16 *from, int n)
{
    const uint16_t *bits = reinterpret_cast<const uint16_t *>(from);
    uint32_t v[8];
#pragma unroll
    for (int c = 0; c < 8; c++) v[c] = c < n ? bits[c] : 0u;
    return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
}

/* band_load for at most 8 channels, stride 1: they are stored as 8 in shared memory, synchronously. */
__device__ static inline void band_load_few(const conv_band &b, uint32_t to, const bf16 *source, int tile)
{
    const int image0 = tile / b.bands * b.group, y0 = tile % b.bands * b.take - b.pad;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    for (int x = lane; x < b.wide; x += 32) {
        const bool across = x >= b.pad && x < b.pad + b.width;
        const bf16 *from = source + (across ? (x - b.pad) * b.channels : 0);
#pragma unroll 4
        for (int line = warp; line < b.group * b.high; line += warps) {
            const int pixel = band_line(b, image0, y0, line);
            const bool valid = across && pixel >= 0;
            store16(to + (uint32_t)((line * b.wide + x) * b.pitch),
                    gather8(valid ? from + (int64_t)pixel * b.channels : source, valid ? b.channels : 0));
        }
    }
}

#endif
