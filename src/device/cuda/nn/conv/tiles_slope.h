/* dw of conv_tiles: output channels (rows of a, from dz) times input channels (columns of b, from the band of x), summed
 * over positions, 16 at a time: dw[o, i, j, c] = sum over positions of dz[p, q, o] x[p S - pad + i, q S - pad + j, c].
 *
 * A block sums over its tiles in registers and writes one partial dw; a second kernel adds the partials in order. */
#ifndef ABAR_CUDA_CONV_TILES_SLOPE_H
#define ABAR_CUDA_CONV_TILES_SLOPE_H

#include "device/cuda/nn/conv/tiles.h"

/* A warp's sums: one row i of the kernel with its K taps, 16 OT output by 8 CT input channels (OT, CT: 1 or 2). Slices of a
 * tile's positions go to different warps: warp i + K slice. */
template <int K, int OT, int CT> struct slope_sums {
    static const int slices = K == 1 ? 8 : K == 3 ? 4 : 2;
    static const int threads = 32 * K * slices;
    static const int count = K * OT * CT * 4;
    float v[K][OT][CT][4];
};

/* The sums of 16 positions. dz: the lane's address for matrices in the order (o 0-7, positions 0-7), (o 8-15, the same), (o
 * 0-7, positions 8-15), (o 8-15, the same); x: under tap (i, 0), for (positions 0-7, c 0-7), (positions 8-15, the same),
 * (positions 0-7, c 8-15), ... Rows in memory are positions, so that the loads transpose both. */
template <int K, int S, int OT, int CT>
__device__ static inline void slope_step(const conv_band &band, uint32_t dz, uint32_t x, slope_sums<K, OT, CT> &sums)
{
    uint32_t a[OT][4], b[K][CT][2];
#pragma unroll
    for (int o = 0; o < OT; o++) load_matrices_transposed(a[o], dz + (uint32_t)(o * 32));
#pragma unroll
    for (int j = 0; j < K; j++) {
        const uint32_t at = x + (uint32_t)band_tap<S>(band, 0, j);
        if constexpr (CT == 1) {
            load_two_matrices_transposed(b[j][0], at);
        } else {
            uint32_t r[4];
            load_matrices_transposed(r, at);
            b[j][0][0] = r[0], b[j][0][1] = r[1], b[j][1][0] = r[2], b[j][1][1] = r[3];
        }
    }
#pragma unroll
    for (int j = 0; j < K; j++)
#pragma unroll
        for (int o = 0; o < OT; o++)
#pragma unroll
            for (int c = 0; c < CT; c++) multiply_add(sums.v[j][o][c], a[o], b[j][c][0], b[j][c][1]);
}

/* The sums of a tile: this warp's part of the positions. Past the end dz is 0, and x repeats the last position. */
template <int K, int S, int OT, int CT>
__device__ static inline void slope_tile(const conv_slope &p, uint32_t stage, slope_sums<K, OT, CT> &sums)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, count = band_positions(p.x);
    const uint32_t dz = stage + (uint32_t)(p.dz_offset + (lane / 16 * 8 + lane % 8) * p.dz.pitch + lane / 8 % 2 * 16);
    const uint32_t x = stage + (uint32_t)(band_tap<S>(p.x, warp % K, 0) + (CT == 1 ? 0 : lane / 16 * 16));
    for (int k = warp / K * 16; k < count; k += slope_sums<K, OT, CT>::slices * 16) {
        const int position = min(k + lane % 16, count - 1);
        slope_step<K, S, OT, CT>(p.x, dz + (uint32_t)(k * p.dz.pitch), x + (uint32_t)band_window<S>(p.x, position), sums);
    }
}

/* Zeros for dz past the last position of a tile, up to 16 positions: loads never write there. */
template <int OT> __device__ static inline void slope_clear_tail(const conv_slope &p, uint32_t stage)
{
    const int count = band_positions(p.x), tail = (16 - count % 16) % 16;
    for (int k = (int)threadIdx.x; k < tail * 2 * OT; k += (int)blockDim.x)
        store16(stage + (uint32_t)(p.dz_offset + (count + k / (2 * OT)) * p.dz.pitch + k % (2 * OT) * 16),
                make_uint4(0, 0, 0, 0));
}

/* Adds the slices pairwise, in shared memory: the sums end up in the warps of slice 0. */
template <int K, int OT, int CT> __device__ static inline void slope_join_slices(float *memory, slope_sums<K, OT, CT> &sums)
{
    typedef slope_sums<K, OT, CT> warp_sums;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, slice = warp / K;
    float *own = &sums.v[0][0][0][0];
#pragma unroll 1
    for (int half = warp_sums::slices / 2; half; half /= 2) {
        float *place = memory + (slice % half * K + warp % K) * warp_sums::count * 32 + lane;
        __syncthreads();
        if (slice >= half && slice < 2 * half)
#pragma unroll
            for (int r = 0; r < warp_sums::count; r++) place[r * 32] = own[r];
        __syncthreads();
        if (slice < half)
#pragma unroll
            for (int r = 0; r < warp_sums::count; r++) own[r] += place[r * 32];
    }
}

/* Slice 0's warps write the block's partial dw. */
template <int K, int OT, int CT>
__device__ static inline void slope_store(const conv_slope &p, float *partial, const slope_sums<K, OT, CT> &sums)
{
    const int i = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int o0 = (int)blockIdx.z * 16 * OT + lane / 4, c0 = (int)blockIdx.y * 8 * CT + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < K; j++)
#pragma unroll
        for (int o = 0; o < OT; o++)
#pragma unroll
            for (int c = 0; c < CT; c++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = o0 + o * 16 + half * 8, column = c0 + c * 8;
                    const float *v = &sums.v[j][o][c][2 * half];
                    float *to = partial + ((row * K + i) * K + j) * p.inputs + column;
                    if constexpr (CT > 1) {
                        *reinterpret_cast<float2 *>(to) = make_float2(v[0], v[1]);
                    } else {
                        if (column < p.inputs) to[0] = v[0];
                        if (column + 1 < p.inputs) to[1] = v[1];
                    }
                }
}

template <int S, int CT> __device__ static inline void slope_load(const conv_slope &p, uint32_t stage, int tile)
{
    if constexpr (CT == 1)
        band_load_few(p.x, stage, p.x_data, tile);
    else
        band_load<S>(p.x, stage, p.x_data, tile, (int)blockIdx.y * p.x.chunks * 8);
    band_load<1>(p.dz, stage + (uint32_t)p.dz_offset, p.dz_data, tile, (int)blockIdx.z * p.dz.chunks * 8);
    copies_commit();
}

/* A block: tiles blockIdx.x, blockIdx.x + gridDim.x, ..., input channels 8 CT blockIdx.y ..., output channels 16 OT
 * blockIdx.z ...; while it sums one tile the next is being loaded. */
template <int K, int S, int OT, int CT>
static __global__ void __launch_bounds__(slope_sums<K, OT, CT>::threads) conv_slope_tiles(const __grid_constant__ conv_slope p)
{
    extern __shared__ __align__(16) unsigned char conv_memory[];
    const uint32_t memory = shared_address(conv_memory), blocks = gridDim.x;
    slope_sums<K, OT, CT> sums = {};
    slope_clear_tail<OT>(p, memory);
    if ((int)(blockIdx.x + blocks) < p.x.tiles) slope_clear_tail<OT>(p, memory + (uint32_t)p.stage_bytes);
    slope_load<S, CT>(p, memory, (int)blockIdx.x);
    uint32_t stage = 0;
    for (int tile = (int)blockIdx.x; tile < p.x.tiles; tile += (int)blocks) {
        const bool more = tile + (int)blocks < p.x.tiles;
        if (more) {
            slope_load<S, CT>(p, memory + (stage ? 0u : (uint32_t)p.stage_bytes), tile + (int)blocks);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        slope_tile<K, S, OT, CT>(p, memory + stage, sums);
        __syncthreads(); /* the next load overwrites this stage */
        stage = stage ? 0u : (uint32_t)p.stage_bytes;
    }
    slope_join_slices<K, OT, CT>(reinterpret_cast<float *>(conv_memory), sums);
    if (threadIdx.x < 32 * K) slope_store<K, OT, CT>(p, p.partials + (int64_t)blockIdx.x * p.outputs * K * K * p.inputs, sums);
}

/* Element x of a block's 32 is summed by 8 threads, every eighth partial each; these sums are added in order. */
static __global__ void __launch_bounds__(256) conv_slope_join(const float *partials, float *dw, int count, int parts, bool add)
{
    __shared__ float sums[8][32];
    const int element = (int)(blockIdx.x * 32 + threadIdx.x);
    float sum = 0.0f;
    chain_wait();
    if (element < count) {
#pragma unroll 16 /* number of loads in flight */
        for (int k = (int)threadIdx.y; k < parts; k += 8) sum += partials[(int64_t)k * count + element];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || element >= count) return;
    for (int y = 1; y < 8; y++) sum += sums[y][threadIdx.x];
    dw[element] = add ? dw[element] + sum : sum;
}

#endif
