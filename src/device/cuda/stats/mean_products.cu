/* KFAC's statistics in two launches (methods.md section 5, reduce): the means of both sides of a map (means.cu), then the
 * sums of their outer products, added to both squares at once. Means are high + low, bf16 each: high highT + high lowT +
 * low highT on tensor cores, float32 sums. */
#include "device/cuda/core/mma.h"
#include "device/cuda/stats/stats.h"

#define THREADS 256
#define DEPTH 64 /* examples that are copied at once */
#define STAGES 3
#define MOST_EXAMPLES 1024 /* one block's loop over them stays short */

/* Means of a or p, and where their products go. */
typedef struct mean_square {
    const bf16 *pairs; /* (n, 4, pitch) */
    int64_t pitch;
    int64_t d;
    float *square; /* (d, d), its lower triangle */
    int tiles;     /* on and below the diagonal */
} mean_square;

typedef struct mean_squares {
    mean_square a, p;
    int n;
} mean_squares;

/* A block makes SIDE x SIDE sums: warps 2 x 2, and 2 that share the examples. A row of a tile in shared memory is an example:
 * high and low of the tile's rows, high and low of its columns. */
template <int SIDE_> struct tile_shape {
    static const int SIDE = SIDE_, HALF = SIDE / 2;
    static const int TM = HALF / 16, TN = HALF / 8; /* products m16n8 of a warp */
    static const int CHUNKS = 4 * SIDE / 8;         /* 16-byte pieces of a row */
    static const int ROWS = THREADS / CHUNKS;       /* that the threads copy at once */
    static const int PITCH = 16 * (CHUNKS + 1);     /* odd: eight rows are in different banks */
    static const int STAGE = DEPTH * PITCH, BYTES = STAGES * STAGE;
    static const int KEPT = TM * TN * 2; /* sums of a thread that are left when those who share have joined */
    static_assert(THREADS % CHUNKS == 0 && DEPTH % ROWS == 0 && DEPTH % 32 == 0, "threads copy and warps share evenly");
    static_assert(8 * KEPT * 32 * (int)sizeof(float) <= BYTES, "sums of warps fit in the tiles");
};

/* Row and column of a tile, counted row by row of a triangle. */
__device__ static inline void find_tile(int tile, int *down, int *left)
{
    int row = (int)((sqrtf(8.0f * (float)tile + 1.0f) - 1.0f) * 0.5f);
    while (row * (row + 1) / 2 > tile) row--;
    while ((row + 1) * (row + 2) / 2 <= tile) row++;
    *down = row;
    *left = tile - row * (row + 1) / 2;
}

/* Examples from `first` on: this thread's piece of every ROWS-th, zeros behind the last. from: its piece of example 0. */
template <class S>
__device__ static inline void load_stage(uint32_t stage, const bf16 *from, bool there, int64_t pitch, int first, int n)
{
    const int chunk = (int)threadIdx.x % S::CHUNKS, row = (int)threadIdx.x / S::CHUNKS;
#pragma unroll
    for (int i = 0; i < DEPTH; i += S::ROWS)
        copy16_async(stage + (uint32_t)((row + i) * S::PITCH + chunk * 16), from + (first + row + i) * 4 * pitch,
                     there && first + row + i < n);
}

/* Adds what 16 examples from k on make to a warp's sums, of rows m on and columns n on. */
template <class S>
__device__ static inline void multiply_step(float (&sums)[S::TM][S::TN][4], uint32_t stage, int k, int m, int n)
{
    const int lane = (int)threadIdx.x % 32, r = lane % 8, which = lane / 8;
    const uint32_t a_at = stage + (uint32_t)((k + r + which / 2 * 8) * S::PITCH + (m + which % 2 * 8) * 2);
    const uint32_t b_at = stage + (uint32_t)((k + r + which % 2 * 8) * S::PITCH + (2 * S::SIDE + n + which / 2 * 8) * 2);
    uint32_t high[S::TM][4], low[S::TM][4];
#pragma unroll
    for (int i = 0; i < S::TM; i++) {
        load_matrices_transposed(high[i], a_at + (uint32_t)(i * 32));
        load_matrices_transposed(low[i], a_at + (uint32_t)(S::SIDE * 2 + i * 32));
    }
#pragma unroll
    for (int j = 0; j < S::TN; j += 2) {
        uint32_t b_high[4], b_low[4];
        load_matrices_transposed(b_high, b_at + (uint32_t)(j * 16));
        load_matrices_transposed(b_low, b_at + (uint32_t)(S::SIDE * 2 + j * 16));
#pragma unroll
        for (int i = 0; i < S::TM; i++)
#pragma unroll
            for (int o = 0; o < 2; o++) {
                multiply_add(sums[i][j + o], low[i], b_high[2 * o], b_high[2 * o + 1]);
                multiply_add(sums[i][j + o], high[i], b_low[2 * o], b_low[2 * o + 1]);
                multiply_add(sums[i][j + o], high[i], b_high[2 * o], b_high[2 * o + 1]);
            }
    }
}

/* Where kept sum i of this thread goes; NULL: above the diagonal, or beyond the square. */
template <class S>
__device__ static inline float *place_of(const mean_square &q, int down, int left, int m, int n, int turn, int i)
{
    const int lane = (int)threadIdx.x % 32, e = i % 4, column = i / 4 % (S::TN / 2) + turn * (S::TN / 2);
    const int64_t a = down * S::SIDE + m + i / (2 * S::TN) * 16 + lane / 4 + e / 2 * 8;
    const int64_t b = left * S::SIDE + n + column * 8 + lane % 4 * 2 + e % 2;
    return a < q.d && b <= a ? q.square + a * q.d + b : NULL;
}

/* Each of two warps that shared the examples keeps one half of the columns and gives the other. memory: the tiles', (2, 4,
 * KEPT, lanes). */
template <class S>
__device__ static inline void join_halves(const float (&sums)[S::TM][S::TN][4], float *memory, int turn, float (&kept)[S::KEPT])
{
    const int quarter = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;
    float *given = memory + (turn * 4 + quarter) * S::KEPT * 32 + lane;
    const float *taken = memory + ((1 - turn) * 4 + quarter) * S::KEPT * 32 + lane;
#pragma unroll
    for (int i = 0; i < S::KEPT; i++) {
        const float first = sums[i / (2 * S::TN)][i / 4 % (S::TN / 2)][i % 4];
        const float second = sums[i / (2 * S::TN)][i / 4 % (S::TN / 2) + S::TN / 2][i % 4];
        kept[i] = turn ? second : first;
        given[i * 32] = turn ? first : second;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < S::KEPT; i++) kept[i] += taken[i * 32];
}

/* Block: a tile of a's square, or of p's behind them. What the square holds is on its way while the means are multiplied. */
template <class S> static __global__ void __launch_bounds__(THREADS) multiply_means(const __grid_constant__ mean_squares s)
{
    extern __shared__ uint4 shared[];
    const bool grad = (int)blockIdx.x >= s.a.tiles;
    const mean_square q = grad ? s.p : s.a;
    int down, left;
    find_tile((int)blockIdx.x - (grad ? s.a.tiles : 0), &down, &left);
    const int chunk = (int)threadIdx.x % S::CHUNKS, part = chunk / (S::SIDE / 8); /* high, low, high, low */
    const int64_t column = (part < 2 ? down : left) * S::SIDE + chunk % (S::SIDE / 8) * 8;
    const bool there = column < q.d;
    const bf16 *from = q.pairs + part % 2 * 2 * q.pitch + column;
    const uint32_t memory = shared_address(shared);
    const int stages = (s.n + DEPTH - 1) / DEPTH;
    for (int t = 0; t < STAGES - 1; t++) {
        if (t < stages) load_stage<S>(memory + (uint32_t)(t * S::STAGE), from, there, q.pitch, t * DEPTH, s.n);
        copies_commit();
    }
    const int warp = (int)threadIdx.x / 32, turn = warp / 4, m = warp % 2 * S::HALF, n = warp / 2 % 2 * S::HALF;
    float old[S::KEPT], kept[S::KEPT];
#pragma unroll
    for (int i = 0; i < S::KEPT; i++) {
        const float *at = place_of<S>(q, down, left, m, n, turn, i);
        old[i] = at ? *at : 0.0f;
    }
    float sums[S::TM][S::TN][4] = {};
    int stage = 0;
    for (int t = 0; t < stages; t++) {
        copies_wait<STAGES - 2>();
        __syncthreads(); /* stage t is here, and all are done with t - 1 */
        const int next = t + STAGES - 1;
        if (next < stages)
            load_stage<S>(memory + (uint32_t)((stage ? stage - 1 : STAGES - 1) * S::STAGE), from, there, q.pitch, next * DEPTH,
                          s.n);
        copies_commit();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 32) multiply_step<S>(sums, memory + (uint32_t)(stage * S::STAGE), k + 16 * turn, m, n);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    __syncthreads(); /* the tiles' memory is free */
    join_halves<S>(sums, (float *)shared, turn, kept);
#pragma unroll
    for (int i = 0; i < S::KEPT; i++) {
        float *to = place_of<S>(q, down, left, m, n, turn, i);
        if (to) *to = old[i] + kept[i];
    }
}

/* ---- host --------------------------------------------------------------------------------------------------------------- */

/* Tiles of this side; 0: the squares are so large, or the examples so many, that products of one side at a time, whose blocks
 * have larger tiles or share the examples, take less. Small tiles keep more processors busy, large ones read the means less
 * often. */
static int side_of(const abar_device *dev, int64_t larger, int64_t examples)
{
    if (dev->activation != ABAR_BF16 || larger > 2048 || examples > MOST_EXAMPLES) return 0;
    return larger <= 640 ? 32 : 64;
}

static mean_square square_of(bf16 *pairs, int64_t d, int side, void *square)
{
    const int64_t down = abar__cuda_blocks(d, side);
    return {pairs, abar__cuda_pairs_pitch(d), d, (float *)square, (int)(down * (down + 1) / 2)};
}

template <class S> static void launch(abar_device *dev, const mean_squares *s)
{
    const unsigned blocks = (unsigned)(s->a.tiles + s->p.tiles);
    if (blocks == 0 || s->n == 0) return;
    abar__cuda_remember(dev, abar__cuda_allow_shared(dev, (const void *)multiply_means<S>));
    abar__cuda_launch(dev, multiply_means<S>, dim3(blocks), dim3(THREADS), S::BYTES, *s);
}

/* Means are in the workspace, of as many examples as fit: at least MOST_EXAMPLES / 4. */
extern "C" void abar__cuda_both_mean_products(abar_device *dev, const abar__rows *r, void *square_a, void *square_p,
                                              void *scratch)
{
    const int64_t d = abar__rows_d(r), a = 4 * abar__cuda_pairs_pitch(d), p = 4 * abar__cuda_pairs_pitch(r->out);
    const int side = side_of(dev, d > r->out ? d : r->out, r->examples);
    if (side == 0) {
        abar__cuda_input_mean_product(dev, r, square_a, scratch);
        abar__cuda_grad_mean_product(dev, r, square_p, scratch);
        return;
    }
    const int64_t workspace = (int64_t)(ABAR_CUDA_WORKSPACE / sizeof(bf16)) / (a + p) / 16 * 16;
    for (int64_t first = 0; first < r->examples; first += workspace) {
        const abar__rows some = abar__rows_slice(r, first, r->examples - first < workspace ? r->examples - first : workspace);
        bf16 *inputs = (bf16 *)abar__cuda_of(dev)->workspace, *grads = inputs + some.examples * a;
        abar__cuda_mean_pairs(dev, &some, inputs, grads);
        const mean_squares s = {square_of(inputs, d, side, square_a), square_of(grads, r->out, side, square_p),
                                (int)some.examples};
        side == 32 ? launch<tile_shape<32>>(dev, &s) : launch<tile_shape<64>>(dev, &s);
    }
}
