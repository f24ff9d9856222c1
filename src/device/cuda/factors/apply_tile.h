/* One tile of a product of apply.cu: float32 matrices through shared memory onto tensor cores, three or four slabs deep,
 * and what becomes of the tile. A block does one tile; its four warps own a quarter each. */
#ifndef ABAR_CUDA_FACTORS_APPLY_TILE_H
#define ABAR_CUDA_FACTORS_APPLY_TILE_H

#include "device/cuda/factors/dense.h"
#include "device/cuda/core/tf32.h"

#define THREADS 128 /* four warps, two by two in a tile */
#define DEPTH 32    /* of the slabs of a and b that are in shared memory */

/* Of tiles: 32 x 64, 64 x 64, 128 x 128, 128 x 256, 160 x 256. */
enum { SHAPE_LOW, SHAPE_MIDDLE, SHAPE_LARGE, SHAPE_WIDE, SHAPE_WIDER, SHAPES };
enum { END_MIDDLE, END_DIVIDE, END_RESULT }; /* what becomes of a tile */

/* How columns in memory, (kernel, channels) and then the bias, are numbered in PyTorch's order. */
typedef struct ordering {
    int32_t columns; /* that are ordered; what is behind them stays in its place */
    int32_t kernel, channels;
    uint32_t part; /* 2^32 / channels, rounded up; 0: the orders are the same */
} ordering;

/* One side of a product: (rows, columns) with strides, and one more column where last is given. */
typedef struct operand {
    const float *data, *last;
    int32_t row, column, columns;
    int32_t vectors; /* 16 bytes at a time */
    ordering rows;   /* row i is that of this number */
} operand;

/* A matrix by rows that follow each other, aligned to 16 bytes. */
typedef struct wide_matrix {
    const float *data;
    int64_t rows, columns;
} wide_matrix;

/* A gradient (m, n) as it is in memory, and a rounded one in PyTorch's order: (m, n), or turned (n, m). */
typedef struct gradient_copy {
    const float *from;
    float *to;
    ordering order;
    int32_t turned;
} gradient_copy;

/* The tiles of one map in one stage. Wide ones have wide_a (m, k) and wide_b (n, k) for a and b, both rounded to TF32, and in
 * the first stage a gradient that is copied before. */
typedef struct step {
    operand a, b;
    wide_matrix wide_a, wide_b;
    gradient_copy copy;
    int32_t m, n, k, map, end;
    int32_t pitch;      /* END_MIDDLE, END_DIVIDE: from row to row of to */
    int32_t first, all; /* END_RESULT: sums of the map's tiles */
    int32_t rounded;    /* END_MIDDLE: to TF32 */
    ordering columns;   /* END_MIDDLE, END_DIVIDE: column j goes to the place of this number; END_RESULT: comes from there */
    float *to;
    const float *grad, *bias_grad, *row_scale; /* END_RESULT */
    const float *left_values, *values;         /* END_DIVIDE */
    double shift;
} step;

typedef struct tile {
    int32_t map, row, column, shape, slot; /* slot: where its sum goes */
} tile;

/* Of a wide matrix: what the driver makes of it for the copy engine. */
typedef struct tile_map {
    alignas(64) uint64_t opaque[16];
} tile_map;

typedef struct wide_maps {
    tile_map a, b;
} wide_maps;

/* Device memory: what tiles tell of G^. */
typedef struct account {
    double *partial;   /* (slots, 3): <G, G>, <G^, G>, <G^, G^> of a tile */
    int32_t *bad;      /* (slots) */
    unsigned *tickets; /* (n), zero between launches */
} account;

/* ---- a block's tile ----------------------------------------------------------------------------------------------- */

template <int M, int N, int SLABS> struct tile_shape {
    static constexpr int m = M, n = N, slabs = SLABS, threads = THREADS, warp_m = M / 2, warp_n = N / 2;
    static constexpr int down = warp_m / 16, across = warp_n / 8; /* fragments of a warp */
    /* floats from row to row; the lanes that read together meet different banks */
    static constexpr int a_pitch = DEPTH + 4, b_pitch = N + 8, pitch = N + 4;
    static constexpr int slab = M * a_pitch + DEPTH * b_pitch;
    static constexpr size_t bytes = (size_t)SLABS * slab * sizeof(float);
    static_assert(M * pitch <= SLABS * slab, "the finished tile takes the place of the slabs");
};

typedef tile_shape<32, 64, 4> low_shape; /* waits for memory: as many slabs as the middle one leaves space for */
typedef tile_shape<64, 64, 3> middle_shape;
typedef tile_shape<128, 128, 3> large_shape;

/* Those of apply_wide.cu: two groups of four warps; what is said of threads is said of theirs. */
template <int M> struct wide_tile {
    static constexpr int m = M, n = 256, threads = 256, slabs = 4;
    static constexpr int pitch = n + 4; /* lanes that write together, to columns of the tile, meet different banks */
    static constexpr uint32_t slab = (m + n) * DEPTH * sizeof(float); /* bytes */
    static constexpr size_t bytes = (size_t)slabs * slab + 1024;      /* it begins at a multiple of 1024 */
    static_assert(m * pitch * sizeof(float) <= slabs * slab, "the finished tile takes the place of the slabs");
};

typedef wide_tile<128> wide_shape;
typedef wide_tile<160> wider_shape;

/* PyTorch's number of column i of memory. */
__device__ static inline int number_of(const ordering &o, int i)
{
    const int k = (int)__umulhi((uint32_t)i, o.part);
    return i < o.columns ? (i - k * o.channels) * o.kernel + k : i;
}

/* Four floats at a time; to: the tile's place in shared memory, rows PITCH apart. */
template <int ROWS, int COLUMNS, int PITCH>
__device__ static inline void copy_vectors(uint32_t to, const operand &o, int row, int column, int rows)
{
    constexpr int packs = COLUMNS / 4;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < ROWS * packs; i += THREADS) {
        const int r = row + i / packs, c = column + i % packs * 4;
        const uint32_t at = to + (uint32_t)(i / packs * PITCH + i % packs * 4) * (uint32_t)sizeof(float);
        if (o.last && c == o.columns) {
            copy_float_async(at, o.last + (r < rows ? r : 0), r < rows);
            for (uint32_t j = 1; j < 4; j++) copy_float_async(at + j * (uint32_t)sizeof(float), o.last, false);
            continue;
        }
        const int left = r < rows ? min(max(o.columns - c, 0), 4) : 0;
        copy16_partly(at, left > 0 ? o.data + (int64_t)number_of(o.rows, r) * o.row + c : o.data, left * (int)sizeof(float));
    }
}

/* One by one, along the side that is contiguous: memory that is not aligned, and transposed matrices. */
template <int ROWS, int COLUMNS, int PITCH>
__device__ static inline void copy_singly(uint32_t to, const operand &o, int row, int column, int rows)
{
    const bool down = o.column != 1;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
        const int y = down ? i % ROWS : i / COLUMNS, x = down ? i / ROWS : i % COLUMNS;
        const int r = row + y, c = column + x;
        const float *from = o.data;
        const bool inside = r < rows && c < o.columns, last = o.last && r < rows && c == o.columns;
        if (inside) from += (int64_t)number_of(o.rows, r) * o.row + (int64_t)c * o.column;
        if (last) from = o.last + r;
        copy_float_async(to + (uint32_t)(y * PITCH + x) * (uint32_t)sizeof(float), from, inside || last);
    }
}

template <int ROWS, int COLUMNS, int PITCH>
__device__ static inline void copy_operand(uint32_t to, const operand &o, int row, int column, int rows)
{
    if (o.vectors)
        copy_vectors<ROWS, COLUMNS, PITCH>(to, o, row, column, rows);
    else
        copy_singly<ROWS, COLUMNS, PITCH>(to, o, row, column, rows);
}

/* What a thread fetches of all slabs, its own parts of a and b at hand: for slabs that are inside of them and aligned. */
template <class S> struct fetcher {
    static constexpr int a_packs = DEPTH / 4, a_apart = THREADS / a_packs; /* a thread's packs are rows apart */
    static constexpr int b_packs = S::n / 4, b_apart = THREADS / b_packs;
    const float *a, *b;
    int a_row, a_rows, a_inside; /* a_rows: how many there are from this thread's first on; a_inside: slabs */
    int b_row, b_bytes, b_inside;
    ordering b_rows;
    __device__ fetcher(const step &s, int row, int column)
    {
        const int t = (int)threadIdx.x, c = column + t % b_packs * 4;
        a = s.a.data + (int64_t)(row + t / a_packs) * s.a.row + t % a_packs * 4;
        a_row = s.a.row;
        a_rows = s.m - row - t / a_packs;
        a_inside = s.a.vectors ? s.a.columns / DEPTH : 0;
        b = s.b.data + c;
        b_row = s.b.row;
        b_rows = s.b.rows;
        b_bytes = min(max(s.b.columns - c, 0), 4) * (int)sizeof(float);
        b_inside = s.b.vectors && !s.b.last ? (b_rows.columns > 0 ? b_rows.columns : s.k) / DEPTH : 0;
    }
    __device__ void fetch_a(uint32_t to, int slab) const
    {
        to += (uint32_t)(threadIdx.x / a_packs * S::a_pitch + threadIdx.x % a_packs * 4) * (uint32_t)sizeof(float);
#pragma unroll
        for (int i = 0; i < S::m / a_apart; i++)
            copy16_partly(to + (uint32_t)(i * a_apart * S::a_pitch) * (uint32_t)sizeof(float),
                          a + ((int64_t)(i * a_apart) * a_row + slab * DEPTH), i * a_apart < a_rows ? 16 : 0);
    }
    __device__ void fetch_b(uint32_t to, int slab) const
    {
        to += (uint32_t)(threadIdx.x / b_packs * S::b_pitch + threadIdx.x % b_packs * 4) * (uint32_t)sizeof(float);
#pragma unroll
        for (int i = 0; i < DEPTH / b_apart; i++) {
            const int r = slab * DEPTH + (int)threadIdx.x / b_packs + i * b_apart, k = (int)__umulhi((uint32_t)r, b_rows.part);
            copy16_partly(to + (uint32_t)(i * b_apart * S::b_pitch) * (uint32_t)sizeof(float),
                          b + (int64_t)((r - k * b_rows.channels) * b_rows.kernel + k) * b_row, b_bytes);
        }
    }
};

/* sum += a b for eight of DEPTH. b[i]: four columns each, rows pair + 4 i; fragment j of four neighbouring ones has columns
 * 4 group + j of their 32, so that a lane reads them at once. */
template <class S>
__device__ static inline void multiply_rounded(float (&sum)[S::down][S::across][4], const uint32_t (&a)[S::down][4],
                                               const float (&b)[2][S::across])
{
    uint32_t left[S::down][4];
#pragma unroll
    for (int i = 0; i < S::down; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) left[i][e] = tf32_nearly(__uint_as_float(a[i][e]));
#pragma unroll
    for (int j = 0; j < S::across; j++) {
        const uint32_t right[2] = {tf32_nearly(b[0][j]), tf32_nearly(b[1][j])};
#pragma unroll
        for (int i = 0; i < S::down; i++) tf32_multiply_add(sum[i][j], left[i], right);
    }
}

/* The same to float32's accuracy. Tensor cores cut off what does not fit when they add; so every eight are added by rounding.
 */
template <class S>
__device__ static inline void multiply_exactly(float (&sum)[S::down][S::across][4], const uint32_t (&a)[S::down][4],
                                               const float (&b)[2][S::across])
{
    uint32_t big[S::down][4], small[S::down][4];
#pragma unroll
    for (int i = 0; i < S::down; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) tf32_split(__uint_as_float(a[i][e]), &big[i][e], &small[i][e]);
#pragma unroll
    for (int j = 0; j < S::across; j++) {
        uint32_t right_big[2], right_small[2];
        tf32_split(b[0][j], &right_big[0], &right_small[0]);
        tf32_split(b[1][j], &right_big[1], &right_small[1]);
#pragma unroll
        for (int i = 0; i < S::down; i++) {
            float part[4] = {};
            tf32_multiply_add(part, small[i], right_big);
            tf32_multiply_add(part, big[i], right_small);
            tf32_multiply_add(part, big[i], right_big);
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] += part[e];
        }
    }
}

/* sum += a slab of a times one of b. a: where this lane points for matrices of its warp's rows; b: row pair, columns 4 group of
 * its warp's. */
template <class S, bool EXACT>
__device__ static inline void multiply_slab(float (&sum)[S::down][S::across][4], uint32_t a, const float *b)
{
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
        uint32_t left[S::down][4];
        float right[2][S::across];
#pragma unroll
        for (int i = 0; i < S::down; i++) load_matrices(left[i], a + (uint32_t)(16 * i * S::a_pitch + k) * sizeof(float));
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < S::across; j += 4) {
                const pack<float> four = load_pack(b + (k + 4 * h) * S::b_pitch + 8 * j);
#pragma unroll
                for (int e = 0; e < 4; e++) right[h][j + e] = four.v[e];
            }
        if (EXACT)
            multiply_exactly<S>(sum, left, right);
        else
            multiply_rounded<S>(sum, left, right);
    }
}

/* A warp's sums into the finished tile; to: row group, column 8 pair of its own. Element e of a fragment is in row group or
 * group + 8 (e / 2), column 2 pair or 2 pair + 1 (e % 2); four neighbouring fragments make four neighbouring columns of it. */
template <class S> __device__ static inline void store_sums(const float (&sum)[S::down][S::across][4], float *to)
{
#pragma unroll
    for (int i = 0; i < S::down; i++)
#pragma unroll
        for (int j = 0; j < S::across; j += 4)
#pragma unroll
            for (int e = 0; e < 4; e++)
                store_pack(to + (16 * i + e / 2 * 8) * S::pitch + 8 * j + e % 2 * 4,
                           pack<float>{{sum[i][j][e], sum[i][j + 1][e], sum[i][j + 2][e], sum[i][j + 3][e]}});
}

/* The tile that begins at (row, column) of a step, into shared memory: (S::m, S::n), rows S::pitch apart. */
template <class S, bool EXACT> __device__ static inline void multiply_tile(const step &s, int row, int column, float *pool)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4;
    const int warp_row = warp / 2 * S::warp_m, warp_column = warp % 2 * S::warp_n;
    const int slabs = (s.k + DEPTH - 1) / DEPTH;
    const uint32_t base = shared_address(pool);
    constexpr uint32_t b_at = S::m * S::a_pitch;
    float sum[S::down][S::across][4] = {};
    const fetcher<S> quick(s, row, column);
    auto fetch = [&](int i) {
        if (i < slabs) {
            const uint32_t a_to = base + (uint32_t)(i % S::slabs * S::slab) * (uint32_t)sizeof(float);
            const uint32_t b_to = a_to + b_at * (uint32_t)sizeof(float);
            if (i < quick.a_inside)
                quick.fetch_a(a_to, i);
            else
                copy_operand<S::m, DEPTH, S::a_pitch>(a_to, s.a, row, i * DEPTH, s.m);
            if (i < quick.b_inside)
                quick.fetch_b(b_to, i);
            else
                copy_operand<DEPTH, S::n, S::b_pitch>(b_to, s.b, i * DEPTH, column, s.k);
        }
        copies_commit();
    };
    for (int i = 0; i < S::slabs - 1; i++) fetch(i);
    const int a_lane = (warp_row + lane % 16) * S::a_pitch + lane / 16 * 4;
    const int b_lane = (int)b_at + pair * S::b_pitch + warp_column + 4 * group;
    for (int i = 0; i < slabs; i++) {
        copies_wait<S::slabs - 2>();
        __syncthreads(); /* slab i is there, and everyone has done with slab i - 1 */
        fetch(i + S::slabs - 1);
        const int at = i % S::slabs * S::slab;
        multiply_slab<S, EXACT>(sum, base + (uint32_t)(at + a_lane) * (uint32_t)sizeof(float), pool + at + b_lane);
    }
    copies_wait<0>();
    __syncthreads();
    store_sums<S>(sum, pool + (warp_row + group) * S::pitch + warp_column + 8 * pair);
    __syncthreads();
}

/* ---- what becomes of it ------------------------------------------------------------------------------------------- */

template <class S> __device__ static inline void store_middle(const step &s, int row, int column, const float *pool)
{
    const int j = (int)threadIdx.x % S::n, from = column + j;
    if (from >= s.n || threadIdx.x >= S::threads) return;
    const int to = number_of(s.columns, from);
    const double right = s.end == END_DIVIDE ? fmax((double)s.values[from], 0.0) : 0.0;
    for (int i = (int)threadIdx.x / S::n; i < S::m && row + i < s.m; i += S::threads / S::n) {
        float v = pool[i * S::pitch + j];
        if (s.end == END_DIVIDE) v = (float)((double)v / (fmax((double)s.left_values[row + i], 0.0) * right + s.shift));
        if (s.rounded) v = __uint_as_float(tf32_of(v));
        s.to[(int64_t)(row + i) * s.pitch + to] = v == v ? v : __uint_as_float(0x7fc00000u); /* as tf32_nearly wants it */
    }
}

/* How many of the first `end` numbers leave less than k when divided by kernel. */
__device__ static inline int count_below(int end, int kernel, int k) { return end / kernel * k + min(end % kernel, k); }

/* Of the tile's columns, in PyTorch's order, the one that comes `rank`-th in memory: sorted[rank] = column within the tile, its
 * place in memory beside it. Thread t: column t. */
__device__ static inline void sort_columns(const ordering &o, int column, int width, int2 *sorted)
{
    const int t = (int)threadIdx.x, n = column + t, end = min(column + width, o.columns);
    if (t >= width) return;
    int rank = t, place = n;
    if (n < o.columns) {
        const int c = n / o.kernel, k = n % o.kernel, first = (column + o.kernel - 1 - k) / o.kernel;
        rank = count_below(end, o.kernel, k) - count_below(column, o.kernel, k) + c - first;
        place = k * o.channels + c;
    }
    sorted[rank] = make_int2(t, place);
}

/* A tile of G^, and what it adds to the map's sums. */
template <class S>
__device__ static inline void store_result(const step &s, int row, int column, const float *pool, double (&sum)[3], bool *fine)
{
    __shared__ int2 sorted[S::n];
    const int width = min(S::n, s.n - column), j = (int)threadIdx.x % S::n;
    sort_columns(s.columns, column, width, sorted);
    __syncthreads();
    if (j >= width || threadIdx.x >= S::threads) return;
    const int from = sorted[j].x, place = sorted[j].y;
    const bool bias = place == s.columns.columns;
    const int64_t apart = bias ? 1 : s.columns.columns; /* from row to row */
    const float *grad = bias ? s.bias_grad : s.grad + place;
    float *to = s.to + (bias ? (int64_t)s.m * s.columns.columns : place);
    const int rows = min(S::m, s.m - row);
#pragma unroll 8
    for (int i = (int)threadIdx.x / S::n; i < rows; i += S::threads / S::n) {
        const int64_t at = (row + i) * apart;
        float v = pool[i * S::pitch + from];
        if (s.row_scale) v *= s.row_scale[row + i];
        const float g = grad ? __ldg(grad + at) : 0.0f; /* that of later rows need not wait for results of earlier ones */
        sum[0] += (double)g * (double)g;
        sum[1] += (double)v * (double)g;
        sum[2] += (double)v * (double)v;
        *fine = *fine && isfinite(v) && isfinite(g);
        to[at] = v;
    }
}

/* The sums of a map's tiles, added up in their order by the last of its blocks. */
__device__ static inline void settle(const step &s, int slot, const double (&own)[3], bool fine, const account &all,
                                     double *sums, int32_t *broken)
{
    __shared__ double shared[32];
    for (int k = 0; k < 3; k++) {
        const double sum = block_sum(own[k], shared);
        if (threadIdx.x == 0) all.partial[3 * slot + k] = sum;
    }
    fine = __syncthreads_and(fine);
    if (threadIdx.x == 0) all.bad[slot] = !fine;
    if (!last_block(&all.tickets[s.map], (unsigned)s.all)) return;
    double total[3] = {};
    fine = true;
    for (int i = (int)threadIdx.x; i < s.all; i += (int)blockDim.x) {
        for (int k = 0; k < 3; k++) total[k] += __ldcg(&all.partial[3 * (s.first + i) + k]);
        fine = fine && !__ldcg(&all.bad[s.first + i]);
    }
    for (int k = 0; k < 3; k++) {
        const double sum = block_sum(total[k], shared);
        if (threadIdx.x == 0) sums[3 * s.map + k] = sum;
    }
    fine = __syncthreads_and(fine);
    if (threadIdx.x == 0) broken[s.map] = !fine;
}

template <class S>
__device__ static inline void finish_tile(const step &s, const tile &t, const float *pool, const account &all, double *sums,
                                          int32_t *broken)
{
    if (s.end != END_RESULT) {
        store_middle<S>(s, t.row, t.column, pool);
        return;
    }
    bool fine = true;
    double sum[3] = {};
    store_result<S>(s, t.row, t.column, pool, sum, &fine);
    settle(s, t.slot, sum, fine, all, sums, broken);
}

template <class S, bool EXACT>
__device__ static inline void do_tile(const step &s, const tile &t, float *pool, const account &all, double *sums,
                                      int32_t *broken)
{
    multiply_tile<S, EXACT>(s, t.row, t.column, pool);
    finish_tile<S>(s, t, pool, all, sums, broken);
}

/* ---- wide tiles, apply_wide.cu ---------------------------------------------------------------------------------- */

extern "C" {
/* Whether the device has them. Before the first launch. */
abar_status abar__cuda_prepare_wide(abar_device *dev, bool *there);
/* What one step's tiles of so many rows are read by, while its matrices stay where they are. */
abar_status abar__cuda_map_wide(abar_device *dev, const step *s, int tile_rows, wide_maps *out);
/* The gradients of these tiles; once before the first stage. */
void abar__cuda_copy_gradients(abar_device *dev, const step *steps, const tile *tiles, int64_t n, const int32_t *active);
/* n tiles of SHAPE_WIDE or SHAPE_WIDER: of products without eigenvalues and bias, with k a multiple of 4. */
void abar__cuda_multiply_wide(abar_device *dev, const step *steps, const wide_maps *maps, const tile *tiles, int64_t n,
                              const int32_t *active, const account *all, double *sums, int32_t *broken);
}

#endif
