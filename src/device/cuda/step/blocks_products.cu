/* Products of blocks with themselves, and with their roots, along a mode: tiles of 64 x 64 in float32, all blocks in one
 * launch. The unfolding of X along a mode has a row for each entry of the mode; column q of it is (q / behind, q % behind) of
 * the other indices. Sums have a fixed order. */
#include "device/cuda/step/blocks.h"

enum { TILE = ABAR_BLOCK_TILE, SLAB = 16, THREADS = 256, HELD = SLAB * TILE / THREADS };

/* X along a mode. */
typedef struct unfolding {
    const float *x;
    int64_t rows, columns, behind;
} unfolding;

/* The two factors of a part of a product. */
typedef float slab[SLAB][TILE + 4];
typedef slab slab_pair[2];

/* What a thread moves of a slab, on its way from global memory. along: neighbouring threads have neighbouring rows of the tile,
 * else neighbouring terms of its sums; whichever are neighbours in memory. */
typedef struct held {
    float v[HELD];
    bool along;
} held;

__device__ static unfolding unfold(const abar__block &b, const float *x, int mode)
{
    return {x, b.dim[mode], b.count / b.dim[mode], abar__block_behind(&b, mode)};
}

/* Of the last and the first mode without a division, which would take longer than the products. */
__device__ static int64_t place_of(const unfolding &u, int64_t row, int64_t column)
{
    if (u.behind == 1) return column * u.rows + row;
    if (u.behind == u.columns) return row * u.behind + column;
    return (column / u.behind * u.rows + row) * u.behind + column % u.behind;
}

__device__ static float element_of(const unfolding &u, int64_t row, int64_t column, int64_t end)
{
    return row < u.rows && column < end ? u.x[place_of(u, row, column)] : 0.0f;
}

/* Calls visit(h, k, i) for the elements [k][i] of a slab that this thread moves. */
template <typename Visit> __device__ static void for_held(bool along, Visit visit)
{
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        const int e = (int)threadIdx.x + h * THREADS;
        visit(h, along ? e / TILE : e % SLAB, along ? e % TILE : e / SLAB);
    }
}

/* [k][i] = (row + i, column + k): columns of the unfolding are summed over. */
__device__ static held fetch_rows(const unfolding &u, int64_t row, int64_t column, int64_t end)
{
    held to = {{}, u.behind == 1};
    for_held(to.along, [&](int h, int k, int i) { to.v[h] = element_of(u, row + i, column + k, end); });
    return to;
}

/* [k][i] = (row + k, column + i): rows of the unfolding are summed over. */
__device__ static held fetch_columns(const unfolding &u, int64_t row, int64_t column)
{
    held to = {{}, u.behind != 1};
    for_held(to.along, [&](int h, int k, int i) { to.v[h] = element_of(u, row + k, column + i, u.columns); });
    return to;
}

/* [k][i] = element (row + i, column + k) of a matrix (n, n), or of its transpose. */
__device__ static held fetch_matrix(const float *matrix, int64_t n, bool transposed, int64_t row, int64_t column)
{
    held to = {{}, transposed};
    for_held(to.along, [&](int h, int k, int i) {
        const int64_t at = transposed ? (column + k) * n + row + i : (row + i) * n + column + k;
        to.v[h] = row + i < n && column + k < n ? matrix[at] : 0.0f;
    });
    return to;
}

__device__ static void put(slab &to, const held &from)
{
    for_held(from.along, [&](int h, int k, int i) { to[k][i] = from.v[h]; });
}

/* Thread (x, y) of 16 x 16 owns rows 4 y on and columns 4 x on of the tile. */
__device__ static void add_slab(float (&sum)[4][4], const slab &left, const slab &right)
{
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
#pragma unroll
    for (int k = 0; k < SLAB; k++) {
        const float4 of_left = *(const float4 *)&left[k][4 * y], of_right = *(const float4 *)&right[k][4 * x];
        const float a[] = {of_left.x, of_left.y, of_left.z, of_left.w}, b[] = {of_right.x, of_right.y, of_right.z, of_right.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] += a[i] * b[j];
    }
}

/* sum += the product of what fetch(which, k), which 0 or 1, has for k from first to end: one part is multiplied while the next
 * one is on its way. */
template <typename Fetch>
__device__ static void add_product(float (&sum)[4][4], int64_t first, int64_t end, slab_pair (&buffers)[2], Fetch fetch)
{
    held next[2];
#pragma unroll
    for (int which = 0; which < 2; which++)
        if (first < end) next[which] = fetch(which, first);
    int now = 0;
    for (int64_t k = first; k < end; k += SLAB, now ^= 1) {
#pragma unroll
        for (int which = 0; which < 2; which++) put(buffers[now][which], next[which]);
        __syncthreads();
#pragma unroll
        for (int which = 0; which < 2; which++)
            if (k + SLAB < end) next[which] = fetch(which, k + SLAB);
        add_slab(sum, buffers[now][0], buffers[now][1]);
    }
}

/* Calls visit(row, column, i, j) for what this thread owns of the tile: neighbouring threads have neighbouring columns. */
template <typename Visit> __device__ static void for_own(int64_t down, int64_t left, Visit visit)
{
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) visit(down + 4 * y + i, left + 4 * x + j, i, j);
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
                  const __grid_constant__ abar__block_average a, float *partial, unsigned *tickets, const abar__cuda_live *now)
{
    __shared__ __align__(16) slab_pair buffers[2];
    const abar__block_tile t = tiles[blockIdx.x];
    const abar__block_item &item = items[t.item];
    const abar__block &b = item.b;
    if (now->numbers.skip || results[t.item].overflows || !abar__block_has(&b, &a.state, t.mode)) return;
    if (!abar__average_is_due(a.every, now->state.t)) return;
    if (a.mode >= 0 && a.mode != t.mode) return;
    const bool in_y = a.whitened && abar__block_has(&b, &a.basis, 1 - t.mode);
    const unfolding u = unfold(b, in_y ? item.y : item.x, t.mode);
    const int64_t down = (int64_t)t.down * TILE, across = (int64_t)t.left * TILE;
    const int64_t first = (int64_t)t.chunk * ABAR_BLOCK_CHUNK;
    const int64_t end = u.columns - first < ABAR_BLOCK_CHUNK ? u.columns : first + ABAR_BLOCK_CHUNK;
    float sum[4][4] = {};
    add_product(sum, first, end, buffers,
                [&](int which, int64_t column) { return fetch_rows(u, which ? down : across, column, end); });
    if (!join_chunks(sum, t, partial, tickets)) return;
    float *s = (float *)b.state[a.which] + abar__block_factor(&b, &a.state, t.mode);
    const double beta = a.whitened && now->state.t == 1 ? 0.0 : a.beta;
    const double add = (beta == 1.0 ? 1.0 : 1.0 - beta) / (a.whitened ? (double)u.columns : 1.0);
    for_own(across, down, [&](int64_t column, int64_t row, int i, int j) {
        if (row >= u.rows || column > row) return;
        float *to = s + column * u.rows + row;
        *to = (float)(beta * (double)*to + add * (double)sum[i][j]);
    });
}

/* The first row of a root has a positive entry, that of a basis has length 1. */
__device__ static bool is_none(const float *matrix, int64_t n)
{
    bool some = false;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) some = some || matrix[i] != 0.0f;
    return !__syncthreads_or(some);
}

/* Whether X is in y when it is this mode's turn. */
__device__ static bool is_turned(const abar__block &b, const abar__block_product &p, int mode)
{
    bool turned = false;
    for (int m = 0; m < mode; m++) turned = turned != abar__block_has(&b, &p.state, m);
    for (int m = 0; p.again && m < b.order; m++) turned = turned != abar__block_has(&b, &p.state, m);
    return turned && !p.alone;
}

/* Block b: tile b. The other one of x and y = R X; without a root it is X. */
static __global__ void __launch_bounds__(THREADS)
    multiply_tiles(const abar__block_item *items, const abar__block_tile *tiles, const __grid_constant__ abar__block_product p,
                   const abar__cuda_live *now)
{
    __shared__ __align__(16) slab_pair buffers[2];
    const abar__block_tile t = tiles[blockIdx.x];
    const abar__block_item &item = items[t.item];
    const abar__block &b = item.b;
    if (now->numbers.skip || !abar__block_has(&b, &p.state, t.mode)) return;
    if (p.of_mean && (now->state.t - 1) % p.every != 0) return;
    float *const x = p.of_mean ? item.z : item.x;
    const bool turned = is_turned(b, p, t.mode);
    const unfolding u = unfold(b, turned ? item.y : x, t.mode);
    float *to = turned ? x : item.y;
    const float *matrix = (const float *)b.state[p.which] + abar__block_factor(&b, &p.state, t.mode);
    const float *scales = p.alone ? (const float *)b.state[p.which_scales] + abar__block_factor(&b, &p.scales, t.mode) : NULL;
    const int64_t down = (int64_t)t.down * TILE, across = (int64_t)t.left * TILE;
    const bool none = is_none(matrix, u.rows);
    float sum[4][4] = {};
    const int of_matrix = u.behind == 1; /* which factor: the other one's rows are neighbours in memory */
    add_product(sum, 0, none ? 0 : u.rows, buffers, [&](int which, int64_t k) {
        return which == of_matrix ? fetch_matrix(matrix, u.rows, p.transposed, down, k) : fetch_columns(u, k, across);
    });
    for_own(of_matrix ? across : down, of_matrix ? down : across, [&](int64_t y, int64_t x, int i, int j) {
        const int64_t row = of_matrix ? x : y, column = of_matrix ? y : x;
        if (row >= u.rows || column >= u.columns) return;
        const int64_t at = place_of(u, row, column);
        to[at] = none ? u.x[at] : scales ? scales[row] * sum[i][j] : sum[i][j];
    });
}

/* ---- scales of matrices ------------------------------------------------------------------------------------------------- */

/* One warp: the mean over the other mode of (X w_j)^2, for entry k of the mode. */
__device__ static double mean_square(const abar__block_item &item, const float *other_scales, int mode, int64_t k)
{
    const int64_t columns = item.b.dim[1], n = item.b.dim[1 - mode];
    double sum = 0.0;
    for (int64_t j = threadIdx.x % 32; j < n; j += 32) {
        const double x = item.x[mode == 0 ? k * columns + j : j * columns + k] * (other_scales ? (double)other_scales[j] : 1.0);
        sum += x * x;
    }
    return warp_sum(sum) / (double)n;
}

/* Block b: block b. Both modes read the old scales: the new ones wait in y. */
static __global__ void __launch_bounds__(THREADS)
    renew_scales(const abar__block_item *items, const abar__block_result *results, abar__block_state state,
                 abar__block_stage stage, const abar__cuda_live *now)
{
    const abar__block_item &item = items[blockIdx.x];
    const abar__block &b = item.b;
    const bool first = now->state.t == 1;
    if (now->numbers.skip || (results[blockIdx.x].overflows && !first)) return;
    float *scales = (float *)b.state[stage.state];
    int64_t at = 0;
    for (int mode = 0; mode < b.order; mode++) {
        if (!abar__block_has(&b, &state, mode)) continue;
        const bool both = abar__block_has(&b, &state, 1 - mode);
        const float *others = both ? scales + abar__block_factor(&b, &state, 1 - mode) : NULL;
        for (int64_t k = threadIdx.x / 32; k < b.dim[mode]; k += THREADS / 32) {
            const double old = scales[at + k], square = first ? 0.0 : mean_square(item, others, mode, k);
            const double renewed = first || old == 0.0 ? ABAR_SCALE_FIRST : abar__scale_next(old, square, stage.beta);
            if (threadIdx.x % 32 == 0) item.y[at + k] = (float)renewed;
        }
        at += b.dim[mode];
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < at; i += THREADS) scales[i] = item.y[i];
}

/* ---- launches ----------------------------------------------------------------------------------------------------------- */

extern "C" void abar__cuda_average_blocks(abar_device *dev, const abar__block_item *items, const abar__block_result *results,
                                          const abar__block_tile *tiles, int64_t n, const abar__block_average *a,
                                          float *partial, unsigned *tickets, const abar__cuda_live *now)
{
    if (n < 1) return;
    abar__cuda_launch(dev, average_tiles, dim3((unsigned)n), dim3(THREADS), 0, items, results, tiles, *a, partial, tickets,
                      now);
}

extern "C" void abar__cuda_multiply_blocks(abar_device *dev, const abar__block_item *items, const abar__block_tile *tiles,
                                           int64_t n, const abar__block_product *p, const abar__cuda_live *now)
{
    if (n > 0) abar__cuda_launch(dev, multiply_tiles, dim3((unsigned)n), dim3(THREADS), 0, items, tiles, *p, now);
}

extern "C" void abar__cuda_scale_blocks(abar_device *dev, const abar__block_item *items, const abar__block_result *results,
                                        int n, const abar__block_state *state, const abar__block_stage *stage,
                                        const abar__cuda_live *now)
{
    abar__cuda_launch(dev, renew_scales, dim3((unsigned)n), dim3(THREADS), 0, items, results, *state, *stage, now);
}
