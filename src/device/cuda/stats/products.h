/* Sums of outer products of rows (methods.md sections 4 to 6): what the host and the kernels of products*.cu agree on.
 *
 * A product sums a bT over window positions of all examples, a and b being pixels seen through taps: column k is channel
 * k % channels of tap k / channels. So channels are adjacent, as in memory; only who adds to a square knows PyTorch's
 * order (channel, tap). Blocks take a tile of the result and a split of the positions. */
#ifndef ABAR_CUDA_STATS_PRODUCTS_H
#define ABAR_CUDA_STATS_PRODUCTS_H

#include "device/cuda/stats/stats.h"

#define ABAR_PRODUCT_PARTS 9
#define ABAR_PRODUCT_ROWS ((int64_t)1 << 30)
#define ABAR_PRODUCT_SIDE 16384 /* of an image on tensor cores, less than that */

#define ABAR_PRODUCT_STEP 32 /* rows that a block copies at once */

/* Parts of a product by shifts; corners: + 2 in the last row + 1 in the last column. */
enum { ALL, FIRST_ROW, LAST_ROW, FIRST_COLUMN, LAST_COLUMN, CORNERS };

/* Tap t of a window looks (t + first) / width * dilation - pad pixels down, the remainder likewise to the right. */
typedef struct abar__taps {
    int width, first;
    int pad[2], dilation[2];
} abar__taps;

/* What is summed over one rectangle of positions. */
typedef struct abar__product_part {
    int top, left, high, wide; /* the positions, of every example */
    int columns;               /* of b */
    abar__taps taps;           /* of b */
    int across;                /* tiles side by side; 0: only those on and below the diagonal of a square */
    int tiles, splits;
    int ahead[3];   /* examples, rows and columns from a position to ABAR_PRODUCT_STEP further */
    unsigned block; /* the first of its blocks: (splits, tiles) */
    int lanes;      /* as many splits have partial sums of their own, the others are added to theirs */
    int64_t floats; /* of a lane: (tiles, rows and columns of a tile), or panels */
    int64_t at;     /* of its partial sums, in floats: (lanes, floats) */
} abar__product_part;

typedef struct abar__products {
    const void *data;
    int64_t stride[4]; /* of n, c, y, x in elements */
    int64_t examples;  /* of no more than ABAR_PRODUCT_ROWS positions */
    int channels, height, width;
    int step[2];          /* pixels from a position to the next */
    int columns;          /* of a */
    abar__taps taps;      /* of a */
    const double *weight; /* of every example, device memory; NULL: 1 */
    float *partial;       /* NULL: one part of one split, which is added to the square at once */
    float *square;        /* its lower triangle, d wide */
    int64_t d;
    int kernel;  /* taps of a row of the square */
    float scale; /* of the sums */
    int parts;
    abar__product_part part[ABAR_PRODUCT_PARTS];
} abar__products;

/* The tiles of the tensor cores' kernel (products_mma.cu); the plain one has ABAR_TILE_32, which is its alone, and _64. */
typedef enum abar__product_tile {
    ABAR_TILE_16_208,
    ABAR_TILE_32_208,
    ABAR_TILE_64_208,
    ABAR_TILE_32,
    ABAR_TILE_64,
    ABAR_TILE_128,
    ABAR_TILE_160,
    ABAR_TILES
} abar__product_tile;

static const int abar__tile_rows[ABAR_TILES] = {16, 32, 64, 32, 64, 128, 160};
static const int abar__tile_columns[ABAR_TILES] = {208, 208, 208, 32, 64, 128, 160};
static const int abar__tile_resident[ABAR_TILES] = {1, 1, 1, 2, 2, 2, 1}; /* blocks that a processor has workspace for */

/* bf16, channels side by side, whole 16-byte pieces of them; taps within 2^31 elements and ABAR_PRODUCT_SIDE pixels of theirs.
 * blocks: of all parts. */
extern "C" void abar__cuda_multiply_rows(abar_device *dev, const abar__products *s, abar__product_tile tile, unsigned blocks);

/* Adds what the blocks have left in partial; splits may be joined on the way. */
extern "C" void abar__cuda_join_products(abar_device *dev, abar__products *s, abar__product_tile tile);

/* Wide products on the asynchronous tensor cores of compute capability 9.0 (products_wide.cu), what multiply_rows takes.
 * scratch: bytes of it, NULL where the workspace is to do. False: nothing was done, this is not for them. */
extern "C" bool abar__cuda_multiply_wide_rows(abar_device *dev, abar__products *s, void *scratch, size_t bytes);

/* Floats that a split of rows with themselves leaves there; 0: they are not for them. Columns, channels and parts are known. */
extern "C" int64_t abar__cuda_wide_floats(const abar__products *s);

/* Adds the panels that they leave, of so many columns of a. */
extern "C" void abar__cuda_join_panels(abar_device *dev, abar__products *s, int columns);

/* A lane's panels follow each other: N columns of a by a row for every column of b. A square has rows from the first tile on
 * that reaches the diagonal. */
#define ABAR_PANEL_TILE 192 /* columns of b in a tile */

template <int N> __host__ __device__ static inline int panel_first(const abar__product_part &q, int panel)
{
    return q.across ? 0 : N * panel / ABAR_PANEL_TILE * ABAR_PANEL_TILE;
}

/* Floats before a panel. */
template <int N> __host__ __device__ static inline int64_t panel_at(const abar__product_part &q, int panel)
{
    int64_t at = 0;
    for (int i = 0; i < panel; i++) at += (int64_t)(q.columns - panel_first<N>(q, i)) * N;
    return at;
}

/* ---- inside kernels ------------------------------------------------------------------------------------------------- */

#define NOWHERE (-(1 << 29)) /* a row or column outside of every image, with any tap */

/* A position, or what a tap and a channel add to it: where in memory, and at which pixel. */
typedef struct place {
    int64_t offset;
    int y, x;
} place;

__device__ static inline place row_place(const abar__products &s, const abar__product_part &q, int row)
{
    const int area = q.high * q.wide, n = row / area, rest = row - n * area, down = rest / q.wide;
    const int y = (q.top + down) * s.step[0], x = (q.left + rest - down * q.wide) * s.step[1];
    return {(int64_t)n * s.stride[0] + y * s.stride[2] + x * s.stride[3], y, x};
}

__device__ static inline float row_weight(const abar__products &s, const abar__product_part &q, int row)
{
    return (float)s.weight[row / (q.high * q.wide)];
}

__device__ static inline place column_place(const abar__products &s, const abar__taps &taps, int columns, int k)
{
    if (k >= columns) return {0, NOWHERE, NOWHERE};
    const int tap = k / s.channels + taps.first;
    const int y = tap / taps.width * taps.dilation[0] - taps.pad[0], x = tap % taps.width * taps.dilation[1] - taps.pad[1];
    return {k % s.channels * s.stride[1] + y * s.stride[2] + x * s.stride[3], y, x};
}

__device__ static inline bool inside(const abar__products &s, const place &row, const place &column)
{
    return (unsigned)(row.y + column.y) < (unsigned)s.height && (unsigned)(row.x + column.x) < (unsigned)s.width;
}

/* What a block does: the tile in row down and column left of its part's, and positions from .. to - 1. */
typedef struct share {
    const abar__product_part *part;
    int tile, split, down, left;
    int from, to;
} share;

__device__ static inline share share_of(const abar__products &s)
{
    int i = 0;
    while (i + 1 < s.parts && blockIdx.x >= s.part[i + 1].block) i++;
    const abar__product_part &q = s.part[i];
    const int own = (int)(blockIdx.x - q.block), tile = own % q.tiles, split = own / q.tiles;
    int down = 0, left = tile;
    if (q.across) {
        down = tile / q.across;
        left = tile % q.across;
    } else {
        while (left > down) left -= ++down;
    }
    const int64_t rows = s.examples * q.high * q.wide;
    return {&q, tile, split, down, left, (int)(rows * split / q.splits), (int)(rows * (split + 1) / q.splits)};
}

/* Element (a, b) of a product of rows with themselves, a >= b, to its place in the square. */
__device__ static inline void add_to_square(const abar__products &s, int a, int b, float sum)
{
    const int i = a % s.channels * s.kernel + a / s.channels, j = b % s.channels * s.kernel + b / s.channels;
    s.square[i > j ? i * s.d + j : j * s.d + i] += s.scale * sum;
}

#endif
