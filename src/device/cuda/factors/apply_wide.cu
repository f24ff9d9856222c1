/* Tiles of 128 x 256 and 160 x 256 of the products of apply.cu, for large maps, on tensor cores that read their operands
 * from shared memory (core/wgmma.h). A block does one tile: a thread of its own has the slabs brought (core/tma.h) into four
 * places in turns, and two groups of warps multiply 128 columns each. Between them are barriers: full, when a slab has come;
 * empty, when all warps have done with it.
 *
 * Both operands must be in memory with the direction of the sum contiguous, and rounded, since what tensor cores read is cut
 * off. Inverses are symmetric, so their rows will do, and the inverter has rounded them; gradients are copied first, into
 * PyTorch's order. Then a (m, k) and b (n, k):
 *
 *   without left        G^ = a b^T, a = G, b = R
 *   with left           Y = a b^T, a = L, b = G^T        G^ = a b^T, a = Y, b = R
 *
 * A tensor core takes 64 rows of one side and any number of the other, the smaller the more often it reads: so what it
 * multiplies is b a^T, and tiles are turned when they are done. */
#include "device/cuda/factors/apply_tile.h"
#include "device/cuda/core/tma.h"
#include "device/cuda/core/wgmma.h"

#define SLABS wide_shape::slabs
#define GROUP_ROWS (wide_shape::n / 2) /* of b */
#define B_BYTES (wide_shape::n * DEPTH * (uint32_t)sizeof(float))
#define ALL_THREADS (wide_shape::threads + 128) /* registers are shared out by groups */
#define CONSUMERS (wide_shape::threads / 32)    /* warps */
#define TURN 32                                 /* rows and columns that are transposed at once */

static_assert(sizeof(tile_map) == sizeof(CUtensorMap), "a tile's map is what the driver makes");

/* ---- gradients ---------------------------------------------------------------------------------------------------------- */

/* Where PyTorch's column n is in memory. */
__device__ static inline int place_of(const ordering &o, int n)
{
    return n < o.columns ? n % o.kernel * o.channels + n / o.kernel : n;
}

/* Rows before `end`. to (m, n) in PyTorch's order; thread t: column t of the tile. Of a row, a tile's columns are few pieces of
 * memory. */
__device__ static inline void copy_rows(const gradient_copy &c, int row, int end, int column, int columns)
{
    const int n = column + (int)threadIdx.x;
    if (n >= columns) return;
    const float *from = c.from + (int64_t)row * columns + place_of(c.order, n);
    float *to = c.to + (int64_t)row * columns + n;
#pragma unroll 8
    for (int i = 0; i < end - row; i++) to[(int64_t)i * columns] = __uint_as_float(tf32_of(from[(int64_t)i * columns]));
}

/* to (n, m): rows in PyTorch's order. The tile's columns are those of memory. */
__device__ static inline void copy_turned(const gradient_copy &c, int row, int end, int column, int rows, int columns)
{
    __shared__ float part[TURN][TURN + 1];
    const int x = (int)threadIdx.x % TURN, first = (int)threadIdx.x / TURN;
    for (int i = row; i < end; i += TURN)
        for (int j = column; j < min(column + wide_shape::n, columns); j += TURN) {
            for (int y = first; y < TURN; y += wide_shape::threads / TURN)
                if (i + y < end && j + x < columns) part[y][x] = c.from[(int64_t)(i + y) * columns + j + x];
            __syncthreads();
            for (int y = first; y < TURN; y += wide_shape::threads / TURN)
                if (i + x < end && j + y < columns)
                    c.to[(int64_t)number_of(c.order, j + y) * rows + i + x] = __uint_as_float(tf32_of(part[x][y]));
            __syncthreads();
        }
}

/* Block b: what tile b covers of the gradient. steps: (n) of the first stage. */
static __global__ void __launch_bounds__(wide_shape::threads)
    copy_gradients(const step *steps, const tile *tiles, const int32_t *active)
{
    const tile t = tiles[blockIdx.x];
    if (!active[t.map]) return;
    const gradient_copy c = steps[t.map].copy;
    const int rows = steps[t.map].m, columns = steps[t.map].n;
    const int end = min(t.row + (t.shape == SHAPE_WIDER ? wider_shape::m : wide_shape::m), rows);
    if (c.turned)
        copy_turned(c, t.row, end, t.column, rows, columns);
    else
        copy_rows(c, t.row, end, t.column, columns);
}

/* ---- products ------------------------------------------------------------------------------------------------------------ */

/* Addresses in shared memory: the slabs' places, a multiple of 1024, and the barriers' (slabs) each. */
typedef struct ring {
    uint32_t at, full, empty;
} ring;

template <class S> __device__ static inline uint32_t place_in(const ring &r, int slab)
{
    return r.at + (uint32_t)(slab % SLABS) * S::slab;
}

__device__ static inline uint32_t turn_of(uint32_t turns, int slab) { return turns + (uint32_t)(slab % SLABS) * 8; }

__device__ static inline unsigned parity_of(int slab) { return (unsigned)(slab / SLABS) & 1u; }

/* One thread: the slabs of b, and behind each that of a. */
template <class S>
__device__ static inline void bring_slabs(const wide_maps *maps, const ring &r, int row, int column, int slabs)
{
    tile_map_acquire(&maps->a);
    tile_map_acquire(&maps->b);
    for (int i = 0; i < slabs; i++) {
        const uint32_t to = place_in<S>(r, i), full = turn_of(r.full, i);
        if (i >= SLABS) turn_wait(turn_of(r.empty, i), parity_of(i - SLABS));
        turn_expect(full, S::slab);
        tile_bring(to, &maps->b, column, i * DEPTH, full);
        tile_bring(to + B_BYTES, &maps->a, row, i * DEPTH, full);
    }
}

/* A group of warps: its 128 rows of b, 64 at a time. A slab is given back when the products behind it have begun. */
template <class S> __device__ static inline void multiply_slabs(const ring &r, int slabs, float (&sum)[2][S::m / 2])
{
    const int group = (int)threadIdx.x / 128, lane = (int)threadIdx.x % 32;
    for (int i = 0; i < slabs; i++) {
        const uint32_t a = place_in<S>(r, i) + B_BYTES, b = place_in<S>(r, i) + (uint32_t)group * (B_BYTES / 2);
        turn_wait(turn_of(r.full, i), parity_of(i));
        group_begin();
#pragma unroll
        for (int k = 0; k < DEPTH / 8; k++) /* 8 floats further within the pattern are 32 bytes */
#pragma unroll
            for (int h = 0; h < 2; h++)
                group_multiply_add(sum[h], tile_descriptor(b + (uint32_t)h * (B_BYTES / 4) + 32 * k),
                                   tile_descriptor(a + 32 * k));
        group_commit();
        group_wait<1>();
        if (i > 0 && lane == 0) turn_arrive(turn_of(r.empty, i - 1));
    }
    group_wait<0>();
    group_settle(sum[0]);
    group_settle(sum[1]);
}

/* The group's sums into the finished tile, rows S::pitch apart: what is a row of b is a column there. */
template <class S> __device__ static inline void store_group(const float (&sum)[2][S::m / 2], float *pool)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *to = pool + lane % 4 * 2 * S::pitch + warp / 4 * GROUP_ROWS + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < S::m / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) to[(8 * j + e % 2) * S::pitch + 64 * h + e / 2 * 8] = sum[h][4 * j + e];
}

template <class S>
__device__ static inline void do_wide_tile(const step &s, const wide_maps *maps, const tile &t, const ring &r, float *pool,
                                           const account &all, double *sums, int32_t *broken)
{
    const int slabs = (s.k + DEPTH - 1) / DEPTH;
    if (threadIdx.x >= S::threads) {
        group_give_back<40>();
        if (threadIdx.x == S::threads) bring_slabs<S>(maps, r, t.row, t.column, slabs);
        __syncwarp();
        __syncthreads();
        group_take<168>();
    } else {
        group_take<232>();
        float sum[2][S::m / 2] = {};
        multiply_slabs<S>(r, slabs, sum);
        __syncthreads(); /* nobody reads slabs any more */
        store_group<S>(sum, pool);
        group_give_back<168>();
    }
    __syncthreads();
    finish_tile<S>(s, t, pool, all, sums, broken);
}

/* Block b: tile b. steps, maps: (n) of this stage. */
static __global__ void __launch_bounds__(ALL_THREADS, 1)
    multiply_wide(const step *steps, const wide_maps *maps, const tile *tiles, const int32_t *active, account all, double *sums,
                  int32_t *broken)
{
    extern __shared__ __align__(16) float pool[];
    __shared__ step s;
    __shared__ __align__(8) uint64_t turns[2][SLABS]; /* full, empty */
    const tile t = tiles[blockIdx.x];
    if (!active[t.map]) return;
    for (unsigned i = threadIdx.x; i < sizeof s / 4; i += ALL_THREADS)
        ((uint32_t *)&s)[i] = ((const uint32_t *)&steps[t.map])[i];
    const uint32_t from = shared_address(pool), at = (from + 1023) / 1024 * 1024;
    const ring r = {at, shared_address(turns[0]), shared_address(turns[1])};
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLABS; i++) {
            turn_create(turn_of(r.full, i), 1);
            turn_create(turn_of(r.empty, i), CONSUMERS);
        }
        turns_publish();
    }
    __syncthreads();
    float *aligned = pool + (at - from) / sizeof(float);
    if (t.shape == SHAPE_WIDER)
        do_wide_tile<wider_shape>(s, &maps[t.map], t, r, aligned, all, sums, broken);
    else
        do_wide_tile<wide_shape>(s, &maps[t.map], t, r, aligned, all, sums, broken);
}

/* ---- the host's side ----------------------------------------------------------------------------------------------- */

extern "C" abar_status abar__cuda_prepare_wide(abar_device *dev, bool *there)
{
    int major = 0, minor = 0;
    encode_function encode = NULL;
    CUDA_TRY(dev, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev->ordinal));
    CUDA_TRY(dev, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, dev->ordinal));
    if (major == 9 && minor == 0) ABAR_TRY(find_encode(dev, &encode));
    *there = encode != NULL;
    if (*there)
        CUDA_TRY(dev,
                 cudaFuncSetAttribute(multiply_wide, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)wider_shape::bytes));
    return ABAR_OK;
}

/* Of data (rows, columns), in tiles of DEPTH columns. */
static abar_status encode_one(abar_device *dev, encode_function encode, const wide_matrix &of, int tile_rows, tile_map *out)
{
    const cuuint64_t sizes[2] = {(cuuint64_t)of.columns, (cuuint64_t)of.rows}, apart[1] = {sizes[0] * sizeof(float)};
    const cuuint32_t box[2] = {DEPTH, (cuuint32_t)tile_rows}, steps[2] = {1, 1};
    if (encode((CUtensorMap *)out, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)of.data, sizes, apart, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS)
        return ABAR_OK;
    return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: no tiles of a matrix of %lld x %lld", (long long)of.rows,
                      (long long)of.columns);
}

extern "C" abar_status abar__cuda_map_wide(abar_device *dev, const step *s, int tile_rows, wide_maps *out)
{
    encode_function encode = NULL;
    ABAR_TRY(find_encode(dev, &encode));
    ABAR_TRY(encode_one(dev, encode, s->wide_a, tile_rows, &out->a));
    return encode_one(dev, encode, s->wide_b, wide_shape::n, &out->b);
}

extern "C" void abar__cuda_copy_gradients(abar_device *dev, const step *steps, const tile *tiles, int64_t n,
                                          const int32_t *active)
{
    abar__cuda_launch(dev, copy_gradients, dim3((unsigned)n), dim3(wide_shape::threads), 0, steps, tiles, active);
}

extern "C" void abar__cuda_multiply_wide(abar_device *dev, const step *steps, const wide_maps *maps, const tile *tiles,
                                         int64_t n, const int32_t *active, const account *all, double *sums, int32_t *broken)
{
    abar__cuda_launch(dev, multiply_wide, dim3((unsigned)n), dim3(ALL_THREADS), wider_shape::bytes, steps, maps, tiles, active,
                      *all, sums, broken);
}
