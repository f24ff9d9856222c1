/* Tiles of 128 x 256 of the products of core_apply.cu, for large maps, on tensor cores that read their operands from shared
 * memory (core_wgmma.h). A block does one tile; its two groups of warps own 64 rows each, and all its threads bring the slabs:
 * through registers, where values are rounded, into three places in turns, each while the slab before is multiplied.
 *
 * Both operands must lie there with the direction of the sum contiguous. Rows of a do so in memory. Of b, a thread takes four
 * rows of four columns and turns them. */
#include "device/cuda/core_apply_tile.h"
#include "device/cuda/core_wgmma.h"

#define A_PACKS 4 /* of 16 bytes, that a thread brings of a slab of a; b: blocks of four by four */
#define B_BLOCKS 2
#define A_BYTES (wide_shape::m * DEPTH * (uint32_t)sizeof(float))

static_assert(wide_shape::m * DEPTH / 4 == A_PACKS * wide_shape::threads, "a slab of a is brought at once");
static_assert(wide_shape::n * DEPTH / 16 == B_BLOCKS * wide_shape::threads, "a slab of b is brought at once");

/* What a thread has of the slab that comes next. */
typedef struct held {
    pack<float> a[A_PACKS], b[B_BLOCKS][4];
} held;

/* Its parts of all slabs. Of a: the pack t % 8 of rows t / 8 + 32 i; of b: rows 4 chunk to 4 chunk + 3 and columns `first` +
 * 128 i to + 3, so that eight neighbouring lanes write to different banks, and a warp reads whole lines. */
typedef struct bringer {
    const float *a, *b;
    int64_t a_row, b_row;
    ordering b_rows;
    int a_rows, b_columns; /* that there are from this thread's first on */
    int k, chunk, first;
    bool singly; /* a is not aligned */
} bringer;

__device__ static inline bringer bringer_of(const step &s, int row, int column)
{
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
    bringer own;
    own.chunk = lane % 4 + warp % 2 * 4;
    own.first = (lane / 4 + warp / 2 * 8) * 4;
    own.a = s.a.data + (int64_t)(row + t / 8) * s.a.row + t % 8 * 4;
    own.a_row = s.a.row;
    own.a_rows = s.m - row - t / 8;
    own.b = s.b.data + column + own.first;
    own.b_row = s.b.row;
    own.b_rows = s.b.rows;
    own.b_columns = s.n - column - own.first;
    own.k = s.k;
    own.singly = !s.a.vectors;
    return own;
}

/* Zeros beyond the ends; k, and columns of b, are multiples of 4. */
__device__ static inline void bring(const bringer &own, int slab, held &h)
{
    const int a_k = slab * DEPTH + (int)threadIdx.x % 8 * 4, b_k = slab * DEPTH + own.chunk * 4;
#pragma unroll
    for (int i = 0; i < A_PACKS; i++) {
        const float *from = own.a + 32 * i * own.a_row + slab * DEPTH;
        h.a[i] = pack<float>{};
        if (a_k >= own.k || 32 * i >= own.a_rows) continue;
        h.a[i] = own.singly ? pack<float>{{from[0], from[1], from[2], from[3]}} : load_pack(from);
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float *from = own.b + number_of(own.b_rows, b_k + r) * own.b_row;
#pragma unroll
        for (int i = 0; i < B_BLOCKS; i++)
            h.b[i][r] = b_k < own.k && 128 * i < own.b_columns ? load_pack(from + 128 * i) : pack<float>{};
    }
}

/* Into the slab at this address of shared memory: a, and behind it b. */
__device__ static inline void lay_down(const bringer &own, const held &h, uint32_t slab)
{
    const int t = (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < A_PACKS; i++) {
        const float *v = h.a[i].v;
        store16(slab + swizzled(t / 8 + 32 * i, t % 8),
                make_uint4(tf32_nearly(v[0]), tf32_nearly(v[1]), tf32_nearly(v[2]), tf32_nearly(v[3])));
    }
#pragma unroll
    for (int i = 0; i < B_BLOCKS; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            store16(slab + A_BYTES + swizzled(own.first + 128 * i + c, own.chunk),
                    make_uint4(tf32_nearly(h.b[i][0].v[c]), tf32_nearly(h.b[i][1].v[c]), tf32_nearly(h.b[i][2].v[c]),
                               tf32_nearly(h.b[i][3].v[c])));
}

/* The tile that begins at (row, column), into shared memory: rows wide_shape::pitch apart. at: pool's address, a multiple of
 * 1024. */
__device__ static inline void multiply_wide_tile(const step &s, int row, int column, float *pool, uint32_t at)
{
    const int slabs = (s.k + DEPTH - 1) / DEPTH, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const bringer own = bringer_of(s, row, column);
    float sum[128] = {};
    held h;
    bring(own, 0, h);
    lay_down(own, h, at);
    bring(own, 1, h);
    for (int i = 0; i < slabs; i++) {
        const uint32_t slab = at + (uint32_t)(i % wide_shape::slabs) * wide_shape::slab;
        group_publish();
        __syncthreads(); /* slab i is there, and everyone's products of slab i - 2 are done, where slab i + 1 will lie */
        group_begin();
#pragma unroll
        for (int k = 0; k < DEPTH / 8; k++) /* 8 floats further within the pattern are 32 bytes */
            group_multiply_add(sum, tile_descriptor(slab + (uint32_t)(warp / 4) * (A_BYTES / 2) + 32 * k),
                               tile_descriptor(slab + A_BYTES + 32 * k));
        group_commit();
        lay_down(own, h, at + (uint32_t)((i + 1) % wide_shape::slabs) * wide_shape::slab); /* after the last: zeros */
        bring(own, i + 2, h);
        group_wait<1>();
    }
    group_wait<0>();
    group_settle(sum);
    __syncthreads();
    float *to = pool + (warp * 16 + lane / 4) * wide_shape::pitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 32; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            to[half * 8 * wide_shape::pitch + 8 * j] = sum[4 * j + 2 * half];
            to[half * 8 * wide_shape::pitch + 8 * j + 1] = sum[4 * j + 2 * half + 1];
        }
    __syncthreads();
}

/* Block b: tile b. steps: (n) of this stage. */
static __global__ void __launch_bounds__(wide_shape::threads, 1)
    multiply_wide(const step *steps, const tile *tiles, const int32_t *active, account all, double *sums, int32_t *broken)
{
    extern __shared__ __align__(16) float pool[];
    __shared__ step s;
    const tile t = tiles[blockIdx.x];
    if (!active[t.map]) return;
    for (unsigned i = threadIdx.x; i < sizeof s / 4; i += wide_shape::threads)
        ((uint32_t *)&s)[i] = ((const uint32_t *)&steps[t.map])[i];
    __syncthreads();
    const uint32_t from = shared_address(pool), at = (from + 1023) / 1024 * 1024;
    float *aligned = pool + (at - from) / sizeof(float);
    multiply_wide_tile(s, t.row, t.column, aligned, at);
    finish_tile<wide_shape>(s, t, aligned, all, sums, broken);
}

extern "C" abar_status abar__cuda_prepare_wide(abar_device *dev, bool *there)
{
    int major = 0, minor = 0;
    CUDA_TRY(dev, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev->ordinal));
    CUDA_TRY(dev, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, dev->ordinal));
    *there = major == 9 && minor == 0;
    if (*there)
        CUDA_TRY(dev, cudaFuncSetAttribute(multiply_wide, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)wide_shape::bytes));
    return ABAR_OK;
}

extern "C" void abar__cuda_multiply_wide(abar_device *dev, const step *steps, const tile *tiles, int64_t n,
                                         const int32_t *active, const account *all, double *sums, int32_t *broken)
{
    abar__cuda_launch(dev, multiply_wide, dim3((unsigned)n), dim3(wide_shape::threads), wide_shape::bytes, steps, tiles, active,
                      *all, sums, broken);
}
