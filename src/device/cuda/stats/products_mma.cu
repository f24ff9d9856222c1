/* Products of rows of bf16 on tensor cores, float32 sums (products.h). Positions are the inner dimension: a block loads
 * pixels, channels side by side, as they are in memory, asynchronously some tiles of positions ahead, and both operands are
 * transposed on their way to the registers. */
#include "device/cuda/core/mma.h"
#include "device/cuda/stats/products.h"

#define THREADS 256
#define ACROSS 8 /* threads that copy a row: 128 bytes at a time */
#define ROWS ABAR_PRODUCT_STEP

/* A block makes M x N sums, with warps MW x NW x KW; those along the last share the positions, DEPTH at a time, of which STAGES
 * tiles are in shared memory. So many blocks are to fit on a processor. */
template <int M_, int N_, int MW_, int NW_, int KW_, int DEPTH_, int STAGES_, int RESIDENT_> struct tile_shape {
    static const int M = M_, N = N_, MW = MW_, NW = NW_, KW = KW_, DEPTH = DEPTH_, STAGES = STAGES_, RESIDENT = RESIDENT_;
    static const int TM = M / MW / 16, TN = N / NW / 8;       /* products m16n8 of a warp */
    static const int CHUNKS = (M + N) / 8;                    /* 16-byte pieces of a row: a's, then b's */
    static const int PIECES = (CHUNKS + ACROSS - 1) / ACROSS; /* of a thread */
    static const int PITCH = 16 * (CHUNKS + 1 - CHUNKS % 2);  /* odd: eight rows are in different banks */
    static const int STAGE = DEPTH * PITCH;
    static const int BYTES = STAGES * (STAGE + DEPTH * (int)sizeof(int)); /* behind the tiles: the rows' examples */
    static_assert(ROWS * ACROSS == THREADS, "every thread copies");
    static_assert(32 * MW * NW * KW == THREADS && DEPTH % ROWS == 0 && DEPTH % (16 * KW) == 0, "warps share tiles evenly");
    static_assert(KW / 2 * M * N * (int)sizeof(float) <= STAGES * STAGE, "sums of warps fit in the tiles");
};

/* What a thread copies: of every ROWS-th row the pieces ACROSS apart. Positions are counted up, never divided. */
template <class S> struct loader {
    int row, down, right, n; /* the next one, and where in its rectangle and of which example it is */
    int offset[S::PIECES];   /* from a position's pixel to the piece, in elements */
    int tap[S::PIECES];      /* pixels down << 16 | to the right */
};

template <class S> __device__ static inline loader<S> make_loader(const abar__products &s, const share &own)
{
    const abar__product_part &q = *own.part;
    const int area = q.high * q.wide, lane = (int)threadIdx.x % ACROSS;
    loader<S> l;
    l.row = own.from + (int)threadIdx.x / ACROSS;
    l.n = l.row / area;
    l.down = l.row % area / q.wide;
    l.right = l.row % area % q.wide;
#pragma unroll
    for (int i = 0; i < S::PIECES; i++) {
        const int k = (lane + i * ACROSS) * 8;
        const place c = k < S::M ? column_place(s, s.taps, s.columns, own.down * S::M + k)
                                 : column_place(s, q.taps, q.columns, own.left * S::N + k - S::M);
        l.offset[i] = (int)c.offset;
        l.tap[i] = c.y == NOWHERE ? -ABAR_PRODUCT_SIDE * 65536 : c.y * 65536 + (c.x & 0xffff);
    }
    return l;
}

template <class S> __device__ static inline void advance(const abar__product_part &q, loader<S> &l)
{
    l.row += ROWS;
    l.n += q.ahead[0];
    l.down += q.ahead[1];
    l.right += q.ahead[2];
    if (l.right >= q.wide) {
        l.right -= q.wide;
        l.down++;
    }
    if (l.down >= q.high) {
        l.down -= q.high;
        l.n++;
    }
}

/* The next tile to stage `stage`. */
template <class S>
__device__ static inline void load_tile(const abar__products &s, const share &own, loader<S> &l, uint32_t tiles, int *examples,
                                        int stage)
{
    const abar__product_part &q = *own.part;
    const int lane = (int)threadIdx.x % ACROSS, first = (int)threadIdx.x / ACROSS;
    const uint32_t to = tiles + (uint32_t)(stage * S::STAGE + first * S::PITCH + lane * 16);
#pragma unroll
    for (int r = 0; r < S::DEPTH / ROWS; r++) {
        const bool there = l.row < own.to;
        const int y = (q.top + l.down) * s.step[0], x = (q.left + l.right) * s.step[1];
        const bf16 *at = (const bf16 *)s.data + (int64_t)l.n * s.stride[0] + y * s.stride[2] + x * s.stride[3];
#pragma unroll
        for (int i = 0; i < S::PIECES; i++) {
            const bool valid = there && (unsigned)(y + (l.tap[i] >> 16)) < (unsigned)s.height &&
                               (unsigned)(x + (int16_t)l.tap[i]) < (unsigned)s.width;
            if (S::CHUNKS % ACROSS == 0 || lane + i * ACROSS < S::CHUNKS)
                copy16_async(to + (uint32_t)(r * ROWS * S::PITCH + i * ACROSS * 16), at + l.offset[i], valid);
        }
        if (s.weight && lane == 0) examples[stage * S::DEPTH + r * ROWS + first] = there ? l.n : -1;
        advance(q, l);
    }
}

__device__ static inline uint32_t weighed(uint32_t pair, float w)
{
    return pair_bits(w * __uint_as_float(pair << 16), w * __uint_as_float(pair & 0xffff0000u));
}

/* What this thread has copied of a, times the weights of its rows' examples. */
template <class S> __device__ static inline void weigh(const abar__products &s, char *tile, const int *examples)
{
    const int lane = (int)threadIdx.x % ACROSS, first = (int)threadIdx.x / ACROSS;
#pragma unroll
    for (int r = 0; r < S::DEPTH / ROWS; r++) {
        const int row = r * ROWS + first, n = examples[row];
        const float w = n < 0 ? 0.0f : (float)__ldg(s.weight + n);
#pragma unroll
        for (int k = 0; k < S::M / 8; k += ACROSS) {
            uint4 *v = (uint4 *)(tile + row * S::PITCH + (k + lane) * 16);
            if (k + lane >= S::M / 8) break;
            *v = make_uint4(weighed(v->x, w), weighed(v->y, w), weighed(v->z, w), weighed(v->w, w));
        }
    }
}

/* Adds what 16 rows from k on make to a warp's sums, of columns m on and n on. */
template <class S>
__device__ static inline void multiply_step(float (&sums)[S::TM][S::TN][4], uint32_t tile, int k, int m, int n)
{
    const int lane = (int)threadIdx.x % 32, r = lane % 8, which = lane / 8;
    const uint32_t a_at = tile + (uint32_t)((k + r + which / 2 * 8) * S::PITCH + (m + which % 2 * 8) * 2);
    const uint32_t b_at = tile + (uint32_t)((k + r + which % 2 * 8) * S::PITCH + (S::M + n + which / 2 * 8) * 2);
    uint32_t a[S::TM][4];
#pragma unroll
    for (int i = 0; i < S::TM; i++) load_matrices_transposed(a[i], a_at + (uint32_t)(i * 32));
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

/* The sums of warps that shared the positions, joined two by two; the first of them has all. memory: the tiles', (warps, sums,
 * lanes). */
template <class S> __device__ static inline void join_warps(float (&sums)[S::TM][S::TN][4], float *memory, int turn)
{
    const int warp = (int)threadIdx.x / 32 % (S::MW * S::NW), lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int half = S::KW / 2; half; half /= 2) {
        float *own = memory + (turn % half * S::MW * S::NW + warp) * S::TM * S::TN * 128 + lane;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::TM * S::TN * 4; i++)
            if (turn >= half && turn < 2 * half) own[i * 32] = sums[i / (S::TN * 4)][i / 4 % S::TN][i % 4];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::TM * S::TN * 4; i++)
            if (turn < half) sums[i / (S::TN * 4)][i / 4 % S::TN][i % 4] += own[i * 32];
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

template <class S>
static __global__ void __launch_bounds__(THREADS, S::RESIDENT) multiply_rows(const __grid_constant__ abar__products s)
{
    extern __shared__ uint4 shared[];
    const share own = share_of(s);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, turn = warp / (S::MW * S::NW);
    const int m = warp % S::MW * (S::M / S::MW), n = warp / S::MW % S::NW * (S::N / S::NW);
    const int tiles = (own.to - own.from + S::DEPTH - 1) / S::DEPTH;
    const uint32_t memory = shared_address(shared);
    int *examples = (int *)((char *)shared + S::STAGES * S::STAGE);
    loader<S> l = make_loader<S>(s, own);
    for (int t = 0; t < S::STAGES - 1; t++) {
        load_tile(s, own, l, memory, examples, t);
        copies_commit();
    }
    if (s.weight) __syncthreads(); /* examples of the first tiles */
    float sums[S::TM][S::TN][4] = {};
    int stage = 0;
    for (int t = 0; t < tiles; t++) {
        copies_wait<S::STAGES - 2>();
        if (s.weight) weigh<S>(s, (char *)shared + stage * S::STAGE, examples + stage * S::DEPTH);
        __syncthreads(); /* tile t is here, and all are done with t - 1 */
        load_tile(s, own, l, memory, examples, stage ? stage - 1 : S::STAGES - 1); /* t - 1's */
        copies_commit();
#pragma unroll
        for (int k = 0; k < S::DEPTH; k += 16 * S::KW)
            multiply_step<S>(sums, memory + (uint32_t)(stage * S::STAGE), k + 16 * turn, m, n);
        stage = stage + 1 < S::STAGES ? stage + 1 : 0;
    }
    copies_wait<0>();
    if (S::KW > 1) join_warps<S>(sums, (float *)shared, turn);
    if (turn) return;
    const int row = m + lane / 4, column = n + lane % 4 * 2;
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
    abar__cuda_remember(dev, cudaFuncSetAttribute(multiply_rows<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    abar__cuda_launch(dev, multiply_rows<S>, dim3(blocks), dim3(THREADS), S::BYTES, *s);
}

extern "C" void abar__cuda_multiply_rows(abar_device *dev, const abar__products *s, abar__product_tile tile, unsigned blocks)
{
    switch (tile) {
    case ABAR_TILE_16_208: launch<tile_shape<16, 208, 1, 1, 8, 128, 3, 1>>(dev, s, blocks); break;
    case ABAR_TILE_32_208: launch<tile_shape<32, 208, 1, 2, 4, 64, 4, 1>>(dev, s, blocks); break;
    case ABAR_TILE_64_208: launch<tile_shape<64, 208, 2, 2, 2, 64, 4, 1>>(dev, s, blocks); break;
    case ABAR_TILE_64: launch<tile_shape<64, 64, 2, 2, 2, 64, 4, 2>>(dev, s, blocks); break;
    case ABAR_TILE_128: launch<tile_shape<128, 128, 2, 4, 1, 32, 4, 2>>(dev, s, blocks); break;
    case ABAR_TILE_160: launch<tile_shape<160, 160, 2, 4, 1, 32, 4, 1>>(dev, s, blocks); break;
    case ABAR_TILE_32: /* the plain kernel's */
    case ABAR_TILES: break;
    }
}
