/* Shared by the tensor-core kernels of windows of at most 64 tokens: where their tokens are, copying their rows, their biases.
 */
#ifndef ABAR_CUDA_ATTENTION_WINDOWS_H
#define ABAR_CUDA_ATTENTION_WINDOWS_H

#include "device/cuda/nn/attention/tiles.h"

#include <limits.h>

/* The addresses of one window: tokens and regions of its rows; region -1: past the end. */
typedef struct rows_map {
    int token[TILE_ROWS], region[TILE_ROWS];
} rows_map;

/* Row and column of each token in its window, equal for all windows: computed once per block. Past the end: those of token
 * 0. */
typedef struct spots {
    int down[TILE_ROWS], right[TILE_ROWS];
} spots;

__device__ static inline void find_spots(const attention &a, spots *s)
{
    const int i = threadIdx.x, token = i < a.length ? i : 0;
    if (i < TILE_ROWS) s->down[i] = token / a.side, s->right[i] = token % a.side;
    __syncthreads();
}

/* bias (64 rows, COLUMNS columns), rows STEP apart, as exponents of two; rows are queries or, TURNED, keys. Past the end it is
 * minus infinity, for rows only where TURNED: a softmax needs a finite element in its row. */
template <bool TURNED, int COLUMNS, int STEP>
__device__ static void expand_bias(const attention &a, const spots *s, const float *table, int head, float *bias)
{
    for (int i = threadIdx.x; i < TILE_ROWS * COLUMNS; i += TILE_THREADS) {
        const int row = i / COLUMNS, column = i % COLUMNS, query = TURNED ? column : row, key = TURNED ? row : column;
        const bool outside = column >= a.length || (TURNED && row >= a.length);
        const int down = s->down[query] - s->down[key], right = s->right[query] - s->right[key];
        const int at = bias_row(a, down * (2 * a.side - 1) + right, 0);
        bias[row * STEP + column] = outside ? -INFINITY : table[(int64_t)at * a.heads + head] * LOG2_E;
    }
}

/* Copies the rows of a window: PARTS matrices one after another to tile, from the addresses of (token 0, column 0), and their
 * addresses to map. Tile says where elements are. */
template <class Tile, int PARTS>
__device__ static inline void copy_window(const attention &a, const spots *s, int window, const bf16 *const (&from)[PARTS],
                                          const int64_t (&step)[PARTS], uint32_t tile, rows_map *map)
{
    constexpr int packs = Tile::width / 8;
    for (int i = threadIdx.x; i < TILE_ROWS * packs; i += TILE_THREADS) {
        const int r = i / packs, c = i % packs * 8;
        const bool valid = r < a.length;
        const place p = place_at(a, window, s->down[r], s->right[r]);
        const uint32_t to = tile + Tile::at(r, c);
#pragma unroll
        for (int n = 0; n < PARTS; n++) copy16_async(to + (uint32_t)n * Tile::bytes, from[n] + p.token * step[n] + c, valid);
        if (c == 0) map->token[r] = p.token, map->region[r] = valid ? p.region : -1;
    }
}

/* Whether two tokens of a window may be in different regions: in windows at the lower and right borders of a rolled grid. */
__device__ static inline bool is_mixed(const attention &a, int window)
{
    return a.shift && (window % a.across == a.across - 1 || window >= a.windows - a.across);
}

/* A key's column, by the first of the four lanes that share its row, if valid; sum: of its probabilities. */
__device__ static inline void store_column(const attention &a, const attention_memory &m, int64_t sample, int64_t token,
                                           float sum, bool valid)
{
    if (m.columns && threadIdx.x % 4 == 0 && valid)
        m.columns[(sample * a.heads + blockIdx.y) * a.tokens + token] = sum * a.column_share;
}

#endif
