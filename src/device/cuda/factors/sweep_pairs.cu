/* The tiles of large triangles in a sweep (inverse.h), A_ij -= Y_i Y_j^T, two below each other at a time, on tensor cores:
 * to float32's own accuracy by three products of two parts each (core/tf32.h). A warp has half a tile. Blocks are many and
 * small: while some wait for memory, others multiply. */
#include "device/cuda/factors/inverse.h"
#include "device/cuda/core/tf32.h"

#define SIDE ABAR_PANEL
#define THREADS 128
#define RESIDENT 4            /* blocks that share a multiprocessor */
#define ROWS (2 * SIDE)       /* of a pair */
#define LEFT_PITCH (ROWS + 8) /* from row to row in shared memory: lanes that read together meet different banks */
#define RIGHT_PITCH (SIDE + 8)
#define RIGHT (SIDE * LEFT_PITCH) /* where Y_j begins: (SIDE, SIDE), behind Y_i: (SIDE, ROWS), both transposed */
#define SHARED_BYTES ((RIGHT + SIDE * RIGHT_PITCH) * sizeof(float))

static_assert(THREADS == ROWS, "four warps, 32 rows each");

/* Rows first to first + SIDE / 2 of as many columns of the panel, later. */
template <int COLUMNS> __device__ static inline void fetch_rows(uint32_t to, const float *panel, int pitch, int first)
{
    constexpr int packs = COLUMNS / 4;
    const int k0 = first + (int)threadIdx.x / packs, c = (int)threadIdx.x % packs * 4;
#pragma unroll
    for (int k = k0; k < k0 + SIDE / 2; k += THREADS / packs)
        copy16_partly(to + (uint32_t)(k * (COLUMNS + 8) + c) * (uint32_t)sizeof(float), panel + k * pitch + c, 16);
}

/* sum += left^T right for eight rows of both. left: row pair, columns 4 group of the warp's; right: row pair, column group.
 * Fragment i has rows 4 group + 2 i for group and the next one for group + 8, so that a lane reads four at once; fragment j has
 * columns 8 j on. Tensor cores cut off what does not fit when they add; so every eight are added by rounding. */
__device__ static inline void add_eight(float (&sum)[2][8][4], const float *left, const float *right)
{
    uint32_t big[2][4], small[2][4];
#pragma unroll
    for (int below = 0; below < 2; below++) {
        const pack<float> four = load_pack(left + 4 * below * LEFT_PITCH);
#pragma unroll
        for (int e = 0; e < 4; e++) tf32_split(four.v[e], &big[e / 2][2 * below + e % 2], &small[e / 2][2 * below + e % 2]);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t right_big[2], right_small[2];
        float part[2][4];
        tf32_split(right[8 * j], &right_big[0], &right_small[0]);
        tf32_split(right[4 * RIGHT_PITCH + 8 * j], &right_big[1], &right_small[1]);
#pragma unroll
        for (int i = 0; i < 2; i++) tf32_multiply(part[i], small[i], right_big);
#pragma unroll
        for (int i = 0; i < 2; i++) tf32_multiply_add(part[i], big[i], right_small);
#pragma unroll
        for (int i = 0; i < 2; i++) tf32_multiply_add(part[i], big[i], right_big);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] += part[i][e];
    }
}

/* A_ij -= sum, below the diagonal: the warp's rows from `first` on, columns from `column` on. Element 2 below of fragment f is
 * in row 4 group + 2 f + below, column 8 c + 2 pair. Half of a row of fragments is read before the first of it is written. */
__device__ static inline void subtract_below(const float (&sum)[2][8][4], float *triangle, int d, int first, int column)
{
    const int lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4;
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
        for (int below = 0; below < 2; below++) {
            const int row = first + 4 * group + 2 * f + below;
            float *to = triangle + (int64_t)row * d + column + 2 * pair;
            float2 v[8];
            if (row >= d) continue;
#pragma unroll
            for (int c = 0; c < 8; c++) v[c] = *(const float2 *)(to + 8 * c);
#pragma unroll
            for (int c = 0; c < 8; c++)
                *(float2 *)(to + 8 * c) = make_float2(v[c].x - sum[f][c][2 * below], v[c].y - sum[f][c][2 * below + 1]);
        }
}

/* Likewise in a tile on the diagonal; nothing above it is touched. */
__device__ static inline void subtract_diagonal(const float (&sum)[2][8][4], float *triangle, int d, int first, int from)
{
    const int lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4;
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
        for (int c = 0; c < 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = first + 4 * group + 2 * f + e / 2, column = from + 8 * c + 2 * pair + e % 2;
                if (row < d && column <= row) triangle[(int64_t)row * d + column] -= sum[f][c][e];
            }
}

/* The pair's rows of the triangle, 128 bytes at a time, on their way while the products are taken. */
__device__ static inline void expect_pair(const float *triangle, int d, int row, int column)
{
    constexpr int lines = SIDE / 32;
#pragma unroll
    for (int n = 0; n < lines; n++) {
        const int e = n * THREADS + (int)threadIdx.x, r = row + e / lines, c = column + e % lines * 32;
        if (r < d && c <= r) asm volatile("prefetch.global.L2 [%0];" ::"l"(triangle + (int64_t)r * d + c));
    }
}

/* A triangle, and the panel that it is swept by. */
typedef struct swept {
    float *triangle;
    const float *rows; /* Y, transposed: (SIDE, pitch) */
    int d, pitch, panel;
    bool failed;
} swept;

__device__ static inline swept swept_of(const abar__inversions &s, int f)
{
    const abar__cuda_factor &own = s.items[f].f;
    return {own.pending,       s.items[f].panel,       (int)own.d, (int)abar__panel_pitch(own.d),
            s.states[f].panel, s.states[f].failed != 0};
}

/* Tiles (2 i, j) and (2 i + 1, j), but in the panel itself, which is done, and above the diagonal. fresh: Y_i is not there yet.
 */
__device__ static inline void sweep_pair(const swept &a, int i, int j, bool fresh, const float *pool)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4;
    const int own = 2 * i + warp / 2;
    const bool mine = own * SIDE < a.d && j <= own && own != a.panel;
    const float *left = pool + pair * LEFT_PITCH + warp * 32 + 4 * group;
    const float *right = pool + RIGHT + pair * RIGHT_PITCH + group;
    const uint32_t at = shared_address(pool);
    float sum[2][8][4] = {};
#pragma unroll
    for (int first = 0; first < SIDE; first += SIDE / 2) {
        if (fresh) fetch_rows<ROWS>(at, a.rows + i * ROWS, a.pitch, first);
        fetch_rows<SIDE>(at + (uint32_t)(RIGHT * sizeof(float)), a.rows + j * SIDE, a.pitch, first);
        copies_commit();
    }
    expect_pair(a.triangle, a.d, i * ROWS, j * SIDE);
    copies_wait<1>();
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < SIDE; k += 8) {
        if (k == SIDE / 2) {
            copies_wait<0>();
            __syncthreads();
        }
        if (mine) add_eight(sum, left + k * LEFT_PITCH, right + k * RIGHT_PITCH);
    }
    if (mine && own != j) subtract_below(sum, a.triangle, a.d, i * ROWS + warp * 32, j * SIDE);
    if (mine && own == j) subtract_diagonal(sum, a.triangle, a.d, i * ROWS + warp * 32, j * SIDE);
}

/* Pair t of a triangle, by rows: those of tile columns 0 to 2 i + 1 are in row i. */
__device__ static inline void find_pair(int t, int *i, int *j)
{
    int row = (int)((sqrtf(4.0f * (float)t + 1.0f) - 1.0f) * 0.5f);
    while (row * (row + 1) > t) row--;
    while ((row + 1) * (row + 2) <= t) row++;
    *i = row;
    *j = t - row * (row + 1);
}

/* Blocks share the pairs of all triangles that are swept so; each has some that follow one another, and Y_i stays with it. */
static __global__ void __launch_bounds__(THREADS, RESIDENT) run_pairs(const __grid_constant__ abar__inversions s)
{
    extern __shared__ __align__(16) float pool[];
    const int64_t count = abar__units_before(s, s.n, ABAR_UNITS_PAIR);
    const int from = (int)(count * blockIdx.x / gridDim.x), to = (int)(count * (blockIdx.x + 1) / gridDim.x);
    int i = 0, j = 0, end = from, held = -1;
    swept a = {};
    for (int unit = from; unit < to; unit++, j++) {
        if (unit == end) { /* the first of another triangle */
            int64_t t = unit;
            const int f = abar__find_factor(s, ABAR_UNITS_PAIR, &t);
            find_pair((int)t, &i, &j);
            end = (int)abar__units_before(s, f + 1, ABAR_UNITS_PAIR);
            a = swept_of(s, f);
            held = -1;
        }
        if (j > 2 * i + 1) {
            i++;
            j = 0;
        }
        if (a.failed || j == a.panel) continue;
        sweep_pair(a, i, j, held != i, pool);
        held = i;
        __syncthreads(); /* before the next Y_j comes to where this one lay */
    }
}

extern "C" abar_status abar__cuda_prepare_pairs(abar_device *dev)
{
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    CUDA_TRY(dev, cudaFuncSetAttribute(run_pairs, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED_BYTES));
    return ABAR_OK;
}

extern "C" void abar__cuda_sweep_pairs(abar_device *dev, const abar__inversions *s)
{
    const dim3 all((unsigned)(abar__cuda_of(dev)->processors * RESIDENT));
    abar__cuda_launch(dev, run_pairs, all, dim3(THREADS), SHARED_BYTES, *s);
}
