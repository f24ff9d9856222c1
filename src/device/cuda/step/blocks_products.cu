/* Products of blocks with themselves, and with their roots, along a mode: tiles of 64 x 64 in float32, all blocks in one
 * launch. The unfolding of X along a mode has a row for each entry of the mode; column q of it is (q / behind, q % behind) of
 * the other indices. Sums have a fixed order. */
#include "device/cuda/step/blocks.h"

enum { TILE = ABAR_BLOCK_TILE, SLAB = 16, THREADS = 256 };

/* X along a mode. */
typedef struct unfolding {
    const float *x;
    int64_t rows, columns, behind;
} unfolding;

typedef float slab[SLAB][TILE + 4];

__device__ static unfolding unfold(const abar__block &b, const float *x, int mode)
{
    return {x, b.dim[mode], b.count / b.dim[mode], abar__block_behind(&b, mode)};
}

__device__ static int64_t place_of(const unfolding &u, int64_t row, int64_t column)
{
    return (column / u.behind * u.rows + row) * u.behind + column % u.behind;
}

__device__ static float element_of(const unfolding &u, int64_t row, int64_t column, int64_t end)
{
    return row < u.rows && column < end ? u.x[place_of(u, row, column)] : 0.0f;
}

/* to[k][i] = (row + i, column + k): columns of the unfolding are summed over. Neighbouring threads read neighbours. */
__device__ static void load_rows(slab &to, const unfolding &u, int64_t row, int64_t column, int64_t end)
{
    for (int e = (int)threadIdx.x; e < SLAB * TILE; e += THREADS) {
        const int k = u.behind == 1 ? e / TILE : e % SLAB, i = u.behind == 1 ? e % TILE : e / SLAB;
        to[k][i] = element_of(u, row + i, column + k, end);
    }
}

/* to[k][i] = (row + k, column + i): rows of the unfolding are summed over. */
__device__ static void load_columns(slab &to, const unfolding &u, int64_t row, int64_t column)
{
    for (int e = (int)threadIdx.x; e < SLAB * TILE; e += THREADS) {
        const int k = u.behind == 1 ? e % SLAB : e / TILE, i = u.behind == 1 ? e / SLAB : e % TILE;
        to[k][i] = element_of(u, row + k, column + i, u.columns);
    }
}

/* to[k][i] = element (row + i, column + k) of a symmetric matrix (n, n). */
__device__ static void load_symmetric(slab &to, const float *matrix, int64_t n, int64_t row, int64_t column)
{
    for (int e = (int)threadIdx.x; e < SLAB * TILE; e += THREADS) {
        const int k = e / TILE, i = e % TILE;
        to[k][i] = row + i < n && column + k < n ? matrix[(column + k) * n + row + i] : 0.0f;
    }
}

/* Thread (x, y) of 16 x 16 owns rows y + 16 i and columns x + 16 j of the tile. */
__device__ static void add_slab(float (&sum)[4][4], const slab &left, const slab &right)
{
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
#pragma unroll
    for (int k = 0; k < SLAB; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] += left[k][y + 16 * i] * right[k][x + 16 * j];
}

/* Calls visit(row, column, i, j) for what this thread owns of the tile. */
template <typename Visit> __device__ static void for_own(int64_t down, int64_t left, Visit visit)
{
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) visit(down + y + 16 * i, left + x + 16 * j, i, j);
}

/* The sum of all chunks of a tile, by the block that is last with its own; false: another one will. */
__device__ static bool join_chunks(float (&sum)[4][4], const abar__block_tile &t, float *partial, unsigned *tickets)
{
    if (t.slot < 0) return true;
    float *own = partial + (int64_t)(t.slot + t.chunk) * TILE * TILE;
    for_own(0, 0, [&](int64_t row, int64_t column, int i, int j) { own[row * TILE + column] = sum[i][j]; });
    if (!last_block(&tickets[t.slot], (unsigned)t.chunks)) return false;
    for_own(0, 0, [&](int64_t row, int64_t column, int i, int j) {
        sum[i][j] = 0.0f;
        for (int c = 0; c < t.chunks; c++)
            sum[i][j] += __ldcg(partial + (int64_t)(t.slot + c) * TILE * TILE + row * TILE + column);
    });
    return true;
}

/* Block b: tile b. S (n, n), its upper triangle, = beta S + add X X^T. */
static __global__ void __launch_bounds__(THREADS)
    average_tiles(const abar__block_item *items, const abar__block_result *results, const abar__block_tile *tiles,
                  abar__block_state state, int which, double beta, float *partial, unsigned *tickets,
                  const abar__cuda_live *now)
{
    __shared__ slab left, right;
    const abar__block_tile t = tiles[blockIdx.x];
    const abar__block &b = items[t.item].b;
    if (now->numbers.skip || results[t.item].overflows || !abar__block_has(&b, &state, t.mode)) return;
    const unfolding u = unfold(b, items[t.item].x, t.mode);
    const int64_t down = (int64_t)t.down * TILE, across = (int64_t)t.left * TILE;
    const int64_t first = (int64_t)t.chunk * ABAR_BLOCK_CHUNK;
    const int64_t end = u.columns - first < ABAR_BLOCK_CHUNK ? u.columns : first + ABAR_BLOCK_CHUNK;
    float sum[4][4] = {};
    for (int64_t column = first; column < end; column += SLAB) {
        load_rows(left, u, down, column, end);
        load_rows(right, u, across, column, end);
        __syncthreads();
        add_slab(sum, left, right);
        __syncthreads();
    }
    if (!join_chunks(sum, t, partial, tickets)) return;
    float *s = (float *)b.state[which] + abar__block_factor(&b, &state, t.mode);
    const double add = beta == 1.0 ? 1.0 : 1.0 - beta;
    for_own(down, across, [&](int64_t row, int64_t column, int i, int j) {
        if (row >= u.rows || column > row) return;
        float *to = s + column * u.rows + row;
        *to = (float)(beta * (double)*to + add * (double)sum[i][j]);
    });
}

/* Block b: tile b. The other one of x and y = R X; without a root it is X. */
static __global__ void __launch_bounds__(THREADS) multiply_tiles(const abar__block_item *items, const abar__block_tile *tiles,
                                                                 abar__block_state state, int which, const abar__cuda_live *now)
{
    __shared__ slab left, right;
    const abar__block_tile t = tiles[blockIdx.x];
    const abar__block_item &item = items[t.item];
    const abar__block &b = item.b;
    if (now->numbers.skip || !abar__block_has(&b, &state, t.mode)) return;
    bool turned = false;
    for (int m = 0; m < t.mode; m++) turned = turned != abar__block_has(&b, &state, m);
    const unfolding u = unfold(b, turned ? item.y : item.x, t.mode);
    float *to = turned ? item.x : item.y;
    const float *root = (const float *)b.state[which] + abar__block_factor(&b, &state, t.mode);
    const int64_t down = (int64_t)t.down * TILE, across = (int64_t)t.left * TILE;
    const bool none = root[0] == 0.0f; /* a root has a positive diagonal */
    float sum[4][4] = {};
    for (int64_t k = 0; k < u.rows && !none; k += SLAB) {
        load_symmetric(left, root, u.rows, down, k);
        load_columns(right, u, k, across);
        __syncthreads();
        add_slab(sum, left, right);
        __syncthreads();
    }
    for_own(down, across, [&](int64_t row, int64_t column, int i, int j) {
        if (row >= u.rows || column >= u.columns) return;
        const int64_t at = place_of(u, row, column);
        to[at] = none ? u.x[at] : sum[i][j];
    });
}

extern "C" void abar__cuda_average_blocks(abar_device *dev, const abar__block_item *items, const abar__block_result *results,
                                          const abar__block_tile *tiles, int64_t n, const abar__block_state *state, int which,
                                          double beta, float *partial, unsigned *tickets, const abar__cuda_live *now)
{
    abar__cuda_launch(dev, average_tiles, dim3((unsigned)n), dim3(THREADS), 0, items, results, tiles, *state, which, beta,
                      partial, tickets, now);
}

extern "C" void abar__cuda_multiply_blocks(abar_device *dev, const abar__block_item *items, const abar__block_tile *tiles,
                                           int64_t n, const abar__block_state *state, int which, const abar__cuda_live *now)
{
    if (n > 0) abar__cuda_launch(dev, multiply_tiles, dim3((unsigned)n), dim3(THREADS), 0, items, tiles, *state, which, now);
}
