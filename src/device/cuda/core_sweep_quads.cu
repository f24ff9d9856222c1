/* The tiles of large triangles in a sweep (core_inverse.h), A_ij -= Y_i Y_j^T, two by two, on tensor cores: to float32's own
 * accuracy by three products of two parts each (core_tf32.h). A warp has a tile. */
#include "device/cuda/core_inverse.h"
#include "device/cuda/core_tf32.h"

#define SIDE ABAR_PANEL
#define THREADS 128
#define RESIDENT 2        /* blocks that share a multiprocessor */
#define WIDTH (2 * SIDE)  /* of a quad */
#define PITCH (WIDTH + 8) /* from row to row in shared memory: lanes that read together meet different banks */
#define SHARED_BYTES (2 * SIDE * PITCH * sizeof(float)) /* Y_i and Y_j of a quad, transposed: (SIDE, WIDTH) each */

static_assert(THREADS == 128, "four warps");

/* Rows first to first + SIDE / 2 of the panel, for the quad's rows and for its columns, later. */
__device__ static inline void fetch_half(uint32_t to, const float *panel, int64_t pitch, int64_t rows, int64_t columns,
                                         int first)
{
    constexpr int packs = WIDTH / 4;
#pragma unroll 4
    for (int e = (int)threadIdx.x; e < SIDE / 2 * packs; e += THREADS) {
        const int k = first + e / packs, c = e % packs * 4;
        const uint32_t at = to + (uint32_t)(k * PITCH + c) * (uint32_t)sizeof(float);
        copy16_partly(at, panel + k * pitch + rows + c, 16);
        copy16_partly(at + (uint32_t)(SIDE * PITCH * sizeof(float)), panel + k * pitch + columns + c, 16);
    }
    copies_commit();
}

/* sum += left^T right for eight rows of both. left: row pair, columns 4 group of the warp's; right: row pair, column group.
 * Fragment i has rows 32 (i / 2) + 4 group + 2 (i % 2) for group and the next one for group + 8, so that a lane reads four at
 * once; fragment j has columns 8 j on. Tensor cores cut off what does not fit when they add; so every eight are added by
 * rounding. */
__device__ static inline void add_eight(float (&sum)[4][8][4], const float *left, const float *right)
{
    uint32_t big[4][4], small[4][4];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int below = 0; below < 2; below++) {
            const pack<float> four = load_pack(left + 4 * below * PITCH + 32 * half);
#pragma unroll
            for (int e = 0; e < 4; e++)
                tf32_split(four.v[e], &big[2 * half + e / 2][2 * below + e % 2], &small[2 * half + e / 2][2 * below + e % 2]);
        }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t right_big[2], right_small[2];
        float part[4][4] = {};
        tf32_split(right[8 * j], &right_big[0], &right_small[0]);
        tf32_split(right[4 * PITCH + 8 * j], &right_big[1], &right_small[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) tf32_multiply_add(part[i], small[i], right_big);
#pragma unroll
        for (int i = 0; i < 4; i++) tf32_multiply_add(part[i], big[i], right_small);
#pragma unroll
        for (int i = 0; i < 4; i++) tf32_multiply_add(part[i], big[i], right_big);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] += part[i][e];
    }
}

/* Row of the tile that elements 2 below and 2 below + 1 of fragment i are in; their columns: 8 j + 2 pair and the next. */
__device__ static inline int row_of(int i, int below, int group) { return 32 * (i / 2) + 4 * group + 2 * (i % 2) + below; }

/* Tile (i, j) below the diagonal -= sum. A row of fragments is read before the first of it is written. */
__device__ static inline void subtract_below(const float (&sum)[4][8][4], float *triangle, int64_t d, int64_t i, int64_t j)
{
    const int lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4;
#pragma unroll
    for (int f = 0; f < 4; f++)
#pragma unroll
        for (int below = 0; below < 2; below++) {
            const int64_t row = i * SIDE + row_of(f, below, group);
            float *to = triangle + row * d + j * SIDE + 2 * pair;
            float2 v[8];
            if (row >= d) continue;
#pragma unroll
            for (int c = 0; c < 8; c++) v[c] = *(const float2 *)(to + 8 * c);
#pragma unroll
            for (int c = 0; c < 8; c++)
                *(float2 *)(to + 8 * c) = make_float2(v[c].x - sum[f][c][2 * below], v[c].y - sum[f][c][2 * below + 1]);
        }
}

/* Tile (i, i) likewise; nothing above the diagonal is touched. */
__device__ static inline void subtract_diagonal(const float (&sum)[4][8][4], float *triangle, int64_t d, int64_t i)
{
    const int lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4;
#pragma unroll
    for (int f = 0; f < 4; f++)
#pragma unroll
        for (int c = 0; c < 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t row = i * SIDE + row_of(f, e / 2, group), column = i * SIDE + 8 * c + 2 * pair + e % 2;
                if (row < d && column <= row) triangle[row * d + column] -= sum[f][c][e];
            }
}

/* The quad's rows of the triangle, 128 bytes at a time, on their way while the products are taken. */
__device__ static inline void expect_quad(const float *triangle, int64_t d, int64_t row, int64_t column)
{
    constexpr int lines = WIDTH / 32;
#pragma unroll
    for (int e = (int)threadIdx.x; e < WIDTH * lines; e += THREADS) {
        const int64_t r = row + e / lines, c = column + e % lines * 32;
        if (r < d && c <= r) asm volatile("prefetch.global.L2 [%0];" ::"l"(triangle + r * d + c));
    }
}

/* Quad (i, j): tiles (2 i, 2 j) to (2 i + 1, 2 j + 1), but in the panel itself, which is done, and above the diagonal. */
__device__ static inline void sweep_quad(const abar__inverted &item, int64_t i, int64_t j, int64_t panel, const float *pool)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4;
    const int64_t d = item.f.d, own_i = 2 * i + warp / 2, own_j = 2 * j + warp % 2, pitch = abar__panel_pitch(d);
    const bool mine = own_i < abar__panels(d) && own_j <= own_i && own_i != panel && own_j != panel;
    const float *left = pool + pair * PITCH + warp / 2 * SIDE + 4 * group;
    const float *right = pool + (SIDE + pair) * PITCH + warp % 2 * SIDE + group;
    float sum[4][8][4] = {};
    fetch_half(shared_address(pool), item.panel, pitch, i * WIDTH, j * WIDTH, 0);
    fetch_half(shared_address(pool), item.panel, pitch, i * WIDTH, j * WIDTH, SIDE / 2);
    expect_quad(item.f.pending, d, i * WIDTH, j * WIDTH);
    copies_wait<1>();
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < SIDE; k += 8) {
        if (k == SIDE / 2) {
            copies_wait<0>();
            __syncthreads();
        }
        if (mine) add_eight(sum, left + k * PITCH, right + k * PITCH);
    }
    if (mine && own_i != own_j) subtract_below(sum, item.f.pending, d, own_i, own_j);
    if (mine && own_i == own_j) subtract_diagonal(sum, item.f.pending, d, own_i);
}

/* Blocks share the quads of all triangles that are swept so, one at a time. */
static __global__ void __launch_bounds__(THREADS, RESIDENT) run_quads(const __grid_constant__ abar__inversions s)
{
    extern __shared__ __align__(16) float pool[];
    const int64_t count = abar__units_before(s, s.n, ABAR_UNITS_QUAD);
    for (int64_t unit = blockIdx.x; unit < count; unit += gridDim.x) {
        int64_t t = unit, i, j;
        const int f = abar__find_factor(s, ABAR_UNITS_QUAD, &t);
        const abar__inverted item = s.items[f];
        if (s.states[f].failed) continue;
        abar__find_tile(t, &i, &j);
        sweep_quad(item, i, j, s.states[f].panel, pool);
        __syncthreads(); /* before the next quad comes to where this one lay */
    }
}

extern "C" abar_status abar__cuda_prepare_quads(abar_device *dev)
{
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    CUDA_TRY(dev, cudaFuncSetAttribute(run_quads, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED_BYTES));
    return ABAR_OK;
}

extern "C" void abar__cuda_sweep_quads(abar_device *dev, const abar__inversions *s)
{
    const dim3 all((unsigned)(abar__cuda_of(dev)->processors * RESIDENT));
    abar__cuda_launch(dev, run_quads, all, dim3(THREADS), SHARED_BYTES, *s);
}
