/* Products of rows of bf16 on tensor cores, float32 sums (core_products.h). Positions are the inner dimension: a block loads
 * pixels, channels side by side, as they lie in memory, asynchronously some tiles of positions ahead, and both operands are
 * transposed on their way to the registers. */
#include "device/cuda/conv_tiles_mma.h"
#include "device/cuda/core_products.h"

#define STAGES 3 /* tiles of positions in shared memory */
#define BATCH 4  /* tiles of positions that are found at a time: the next while this one is loaded and multiplied */

/* A block makes M x N sums, with warps MW x NW x KW; those along the last share the positions, DEPTH at a time. */
template <int M_, int N_, int MW_, int NW_, int KW_, int DEPTH_> struct tile_shape {
    static const int M = M_, N = N_, MW = MW_, NW = NW_, KW = KW_, DEPTH = DEPTH_;
    static const int TM = M / MW / 16, TN = N / NW / 8; /* products m16n8 of a warp */
    static const int THREADS = 32 * MW * NW * KW;
    static const int CHUNKS = (M + N) / 8;                   /* 16-byte pieces of a row: a's, then b's */
    static const int PITCH = 16 * (CHUNKS + 1 - CHUNKS % 2); /* odd: eight rows lie in different banks */
    static const int STAGE = DEPTH * PITCH;
    static const int TABLES = 16 * CHUNKS + 2 * BATCH * DEPTH * (16 + 4); /* columns, rows, weights */
    static const int BYTES = TABLES + STAGES * STAGE;
};

/* The tables of a block in shared memory, and the tiles behind them. */
template <class S> struct block_memory {
    place *columns, *rows; /* (CHUNKS), (2, BATCH, DEPTH) */
    float *weights;        /* (2, BATCH, DEPTH) */
    uint32_t tiles;        /* (STAGES, STAGE bytes) */
    __device__ explicit block_memory(void *memory)
        : columns((place *)memory), rows(columns + S::CHUNKS), weights((float *)(rows + 2 * BATCH * S::DEPTH)),
          tiles(shared_address(memory) + (uint32_t)S::TABLES)
    {
    }
};

/* Where the rows of a batch of tiles are, and what they weigh: to be seen by all after a barrier. */
template <class S>
__device__ static void find_rows(const abar__products &s, const share &own, const block_memory<S> &m, int batch)
{
    for (int i = (int)threadIdx.x; i < BATCH * S::DEPTH; i += S::THREADS) {
        const int row = own.from + batch * BATCH * S::DEPTH + i, at = batch % 2 * BATCH * S::DEPTH + i;
        const bool there = row < own.to;
        m.rows[at] = there ? row_place(s, *own.part, row) : place{0, NOWHERE, NOWHERE};
        if (s.weight) m.weights[at] = there ? row_weight(s, *own.part, row) : 0.0f;
    }
}

template <class S> __device__ static void load_tile(const abar__products &s, const block_memory<S> &m, int t)
{
    const uint32_t to = m.tiles + (uint32_t)(t % STAGES * S::STAGE);
    const place *rows = m.rows + t % (2 * BATCH) * S::DEPTH;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < S::DEPTH * S::CHUNKS; i += S::THREADS) {
        const int row = i / S::CHUNKS, chunk = i % S::CHUNKS;
        const place r = rows[row], c = m.columns[chunk];
        const bool valid = inside(s, r, c);
        copy16_async(to + (uint32_t)(row * S::PITCH + chunk * 16), (const bf16 *)s.data + (valid ? r.offset + c.offset : 0),
                     valid);
    }
}

/* Rows of a times their weights: register i holds those 2 pair and 2 pair + 1 of the first or the last eight. */
__device__ static inline void weigh(uint32_t (&a)[4], const float *weights)
{
    const int pair = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 w = *(const float2 *)(weights + i / 2 * 8 + 2 * pair);
        a[i] = pair_bits(w.x * __uint_as_float(a[i] << 16), w.y * __uint_as_float(a[i] & 0xffff0000u));
    }
}

/* Adds what 16 rows from k on make to a warp's sums, of columns m on and n on. */
template <class S>
__device__ static void multiply_step(float (&sums)[S::TM][S::TN][4], uint32_t tile, int k, int m, int n, const float *weights)
{
    const int lane = (int)threadIdx.x % 32, r = lane % 8, which = lane / 8;
    const uint32_t a_at = tile + (uint32_t)((k + r + which / 2 * 8) * S::PITCH + (m + which % 2 * 8) * 2);
    const uint32_t b_at = tile + (uint32_t)((k + r + which % 2 * 8) * S::PITCH + (S::M + n + which / 2 * 8) * 2);
    uint32_t a[S::TM][4];
#pragma unroll
    for (int i = 0; i < S::TM; i++) {
        load_matrices_transposed(a[i], a_at + (uint32_t)(i * 32));
        if (weights) weigh(a[i], weights + k);
    }
#pragma unroll
    for (int j = 0; j + 1 < S::TN; j += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, b_at + (uint32_t)(j * 16));
#pragma unroll
        for (int i = 0; i < S::TM; i++) {
            multiply_add(sums[i][j], a[i], b[0], b[1]);
            multiply_add(sums[i][j + 1], a[i], b[2], b[3]);
        }
    }
    if (S::TN % 2) {
        uint32_t b[2];
        load_two_matrices_transposed(b, b_at + (uint32_t)((S::TN - 1) * 16));
#pragma unroll
        for (int i = 0; i < S::TM; i++) multiply_add(sums[i][S::TN - 1], a[i], b[0], b[1]);
    }
}

/* The sums of warps that shared the positions, joined in order by the first of them. memory: (M, N) floats. */
template <class S> __device__ static void join_warps(float (&sums)[S::TM][S::TN][4], float *memory, int turn, int at)
{
    for (int k = 1; k < S::KW; k++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::TM * S::TN * 4; i++) {
            float *v = memory + at + (i / (S::TN * 4) * 16 + i / 2 % 2 * 8) * S::N + i / 4 % S::TN * 8 + i % 2;
            if (turn == k) *v = sums[i / (S::TN * 4)][i / 4 % S::TN][i % 4];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::TM * S::TN * 4; i++) {
            const float *v = memory + at + (i / (S::TN * 4) * 16 + i / 2 % 2 * 8) * S::N + i / 4 % S::TN * 8 + i % 2;
            if (turn == 0) sums[i / (S::TN * 4)][i / 4 % S::TN][i % 4] += *v;
        }
    }
}

/* Sums of element (m, n) of the tile and its neighbour to the right. */
template <class S>
__device__ static inline void store_pair(const abar__products &s, const share &own, int m, int n, float first, float second)
{
    if (s.partial) {
        const int64_t tile = (int64_t)own.split * own.part->tiles + own.tile;
        *(float2 *)(s.partial + own.part->at + (tile * S::M + m) * S::N + n) = make_float2(first, second);
        return;
    }
    const int a = own.down * S::M + m, b = own.left * S::N + n;
    if (a >= s.columns) return;
    if (b <= a) add_to_square(s, a, b, first);
    if (b + 1 <= a) add_to_square(s, a, b + 1, second);
}

template <class S> static __global__ void __launch_bounds__(S::THREADS) multiply_rows(const __grid_constant__ abar__products s)
{
    extern __shared__ uint4 shared[];
    const block_memory<S> memory(shared);
    const share own = share_of(s);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, turn = warp / (S::MW * S::NW);
    const int m = warp % S::MW * (S::M / S::MW), n = warp / S::MW % S::NW * (S::N / S::NW);
    const int tiles = (own.to - own.from + S::DEPTH - 1) / S::DEPTH;
    for (int i = (int)threadIdx.x; i < S::CHUNKS; i += S::THREADS)
        memory.columns[i] = i < S::M / 8 ? column_place(s, s.taps, s.columns, own.down * S::M + i * 8)
                                         : column_place(s, own.part->taps, own.part->columns, own.left * S::N + i * 8 - S::M);
    find_rows(s, own, memory, 0);
    __syncthreads();
    for (int t = 0; t < STAGES - 1; t++) {
        load_tile(s, memory, t);
        copies_commit();
    }
    float sums[S::TM][S::TN][4] = {};
    for (int t = 0; t < tiles; t++) {
        copies_wait<STAGES - 2>();
        __syncthreads(); /* tile t is here, and all are done with t - 1 */
        load_tile(s, memory, t + STAGES - 1);
        copies_commit();
        if (t % BATCH == 0) find_rows(s, own, memory, t / BATCH + 1); /* for loads from t + 2 on */
        const uint32_t tile = memory.tiles + (uint32_t)(t % STAGES * S::STAGE);
        const float *weights = s.weight ? memory.weights + t % (2 * BATCH) * S::DEPTH : NULL;
#pragma unroll
        for (int k = 16 * turn; k < S::DEPTH; k += 16 * S::KW) multiply_step<S>(sums, tile, k, m, n, weights);
    }
    copies_wait<0>();
    const int row = m + lane / 4, column = n + lane % 4 * 2;
    if (S::KW > 1) join_warps<S>(sums, (float *)((char *)shared + S::TABLES), turn, row * S::N + column);
    if (turn) return;
#pragma unroll
    for (int i = 0; i < S::TM; i++)
#pragma unroll
        for (int j = 0; j < S::TN; j++) {
            store_pair<S>(s, own, row + i * 16, column + j * 8, sums[i][j][0], sums[i][j][1]);
            store_pair<S>(s, own, row + i * 16 + 8, column + j * 8, sums[i][j][2], sums[i][j][3]);
        }
}

template <class S> static void launch(abar_device *dev, const abar__products *s, unsigned blocks)
{
    if (S::BYTES > 48 * 1024)
        abar__cuda_remember(dev, cudaFuncSetAttribute(multiply_rows<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    abar__cuda_launch(dev, multiply_rows<S>, dim3(blocks), dim3(S::THREADS), S::BYTES, *s);
}

extern "C" void abar__cuda_multiply_rows(abar_device *dev, const abar__products *s, abar__product_tile tile, unsigned blocks)
{
    switch (tile) {
    case ABAR_TILE_16_104: launch<tile_shape<16, 104, 1, 1, 4, 64>>(dev, s, blocks); break;
    case ABAR_TILE_32_104: launch<tile_shape<32, 104, 1, 1, 4, 64>>(dev, s, blocks); break;
    case ABAR_TILE_64_128: launch<tile_shape<64, 128, 2, 2, 1, 32>>(dev, s, blocks); break;
    case ABAR_TILE_64: launch<tile_shape<64, 64, 2, 2, 1, 64>>(dev, s, blocks); break;
    case ABAR_TILE_128: launch<tile_shape<128, 128, 2, 4, 1, 32>>(dev, s, blocks); break;
    case ABAR_TILE_160: launch<tile_shape<160, 160, 2, 4, 1, 32>>(dev, s, blocks); break;
    case ABAR_TILES: break;
    }
}
