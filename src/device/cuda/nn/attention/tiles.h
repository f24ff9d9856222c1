/* Building blocks of attention's tensor-core kernels: tiles of rows of D bf16 in shared memory, D + 8 apart so that the
 * eight rows of a matrix are in different banks, and products of fragments with them. Layouts of fragments:
 * core/mma.h; of a product (16, columns) a lane owns rows group and group + 8, columns 2 pair and 2 pair + 1 of each
 * 8. */
#ifndef ABAR_CUDA_ATTENTION_TILES_H
#define ABAR_CUDA_ATTENTION_TILES_H

#include "device/cuda/nn/attention/attention.h"
#include "device/cuda/core/mma.h"

#define TILE_THREADS 128
#define TILE_ROWS 64

template <int D> static constexpr int tile_step = D + 8; /* elements from row to row */
template <int D> static constexpr int tile_bytes = TILE_ROWS *tile_step<D> *(int)sizeof(bf16);

/* 2^x; results below the normal range are 0. */
__device__ static inline float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Copies 4 bytes from global memory asynchronously; zero where not valid. */
__device__ static inline void copy4_async(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

/* Rows first .. first + count of a matrix whose rows are step elements apart, zeros from row `end` on, by all threads of the
 * block. */
template <int D>
__device__ static inline void copy_tile(uint32_t to, const bf16 *from, int64_t step, int first, int count, int end, int threads)
{
    constexpr int packs = D / 8;
    for (int i = threadIdx.x; i < count * packs; i += threads) {
        const int r = i / packs, c = i % packs * 8;
        const bool valid = first + r < end;
        copy16_async(to + (uint32_t)(r * tile_step<D> + c) * sizeof(bf16), from + (valid ? first + r : 0) * step + c, valid);
    }
}

/* This lane's offset for matrices of 16 rows and 16 columns: as the left factor or, transposed, as a right factor (rows,
 * columns); as a right factor whose rows are the product's columns. */
template <int D> __device__ static inline uint32_t lane_rows(void)
{
    const int lane = threadIdx.x % 32;
    return (uint32_t)(lane % 16 * tile_step<D> + lane / 16 * 8) * sizeof(bf16);
}

template <int D> __device__ static inline uint32_t lane_columns(void)
{
    const int lane = threadIdx.x % 32;
    return (uint32_t)((lane % 8 + lane / 16 * 8) * tile_step<D> + lane / 8 % 2 * 8) * sizeof(bf16);
}

/* The left factor from 16 rows of a tile. */
template <int D> __device__ static inline void load_left(uint32_t (&left)[D / 16][4], uint32_t tile)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) load_matrices(left[k], tile + lane_rows<D>() + (uint32_t)(k * 16) * sizeof(bf16));
}

/* product (16, C) = left (16, D) times the transpose of the C rows at tile. Only the first 16 chunks of these are used. */
template <int D, int C>
__device__ static inline void multiply_rows(float (&product)[C / 8][4], const uint32_t (&left)[D / 16][4], uint32_t tile,
                                            int chunks = C / 16)
{
#pragma unroll
    for (int t = 0; t < C / 8; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) product[t][e] = 0.0f;
#pragma unroll
    for (int t = 0; t < C / 16; t++) {
        if (t >= chunks) break;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t right[4];
            load_matrices(right, tile + lane_columns<D>() + (uint32_t)(t * 16 * tile_step<D> + k * 16) * sizeof(bf16));
            multiply_add(product[2 * t], left[k], right[0], right[1]);
            multiply_add(product[2 * t + 1], left[k], right[2], right[3]);
        }
    }
}

/* sum (16, D) += left (16, C), rounded to bf16, times the C rows at tile; only the first 16 chunks are used. */
template <int D, int C>
__device__ static inline void add_rows(float (&sum)[D / 8][4], const float (&left)[C / 8][4], uint32_t tile,
                                       int chunks = C / 16)
{
#pragma unroll
    for (int t = 0; t < C / 16; t++) {
        if (t >= chunks) break;
        uint32_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; i++) bits[i] = pair_bits(left[2 * t + i / 2][i % 2 * 2], left[2 * t + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            uint32_t right[4];
            load_matrices_transposed(right, tile + lane_rows<D>() + (uint32_t)(t * 16 * tile_step<D> + c * 16) * sizeof(bf16));
            multiply_add(sum[2 * c], bits, right[0], right[1]);
            multiply_add(sum[2 * c + 1], bits, right[2], right[3]);
        }
    }
}

/* Four lanes with one word each of four chunks: lane i receives chunk i, its words in the order of the lanes. */
__device__ static inline uint4 gather_chunk(uint32_t (&word)[4])
{
    const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? word[i] : word[i + 1], 1);
        word[i] = odd ? got : word[i];
        word[i + 1] = odd ? word[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? word[i] : word[i + 2], 2);
        word[i] = high ? got : word[i];
        word[i + 2] = high ? word[i + 2] : got;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* A lane's part of row group + 8 half of sum (16, D) times factor, as bf16; to: the row's column 0, written if valid. The
 * four lanes of a row exchange words so that each writes 16 bytes at once; all lanes of a warp must call this together. */
template <int D>
__device__ static inline void store_row(bf16 *to, const float (&sum)[D / 8][4], int half, float factor, bool valid)
{
#pragma unroll
    for (int c = 0; c < D / 8; c += 4) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) word[i] = pair_bits(sum[c + i][2 * half] * factor, sum[c + i][2 * half + 1] * factor);
        const uint4 chunk = gather_chunk(word);
        if (valid) *reinterpret_cast<uint4 *>(to + (c + (int)(threadIdx.x % 4)) * 8) = chunk;
    }
}

/* ds (16 keys, C queries) as bf16 into rows of WIDE + 8 elements from `to` on. */
template <int C, int WIDE> __device__ static inline void share_gradients(bf16 *to, const float (&ds)[C / 8][4])
{
    const int pair = threadIdx.x % 4, group = threadIdx.x % 32 / 4;
#pragma unroll
    for (int t = 0; t < C / 8; t++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *reinterpret_cast<uint32_t *>(to + (group + 8 * h) * tile_step<WIDE> + t * 8 + 2 * pair) =
                pair_bits(ds[t][2 * h], ds[t][2 * h + 1]);
}

/* dq (16, D) += the transpose of ds (16 keys, 16 queries; rows of WIDE + 8 elements) times the 16 rows at k. */
template <int D, int WIDE> __device__ static inline void multiply_gradients(float (&dq)[D / 8][4], uint32_t ds, uint32_t k)
{
    uint32_t left[4];
    load_matrices_transposed(left, ds + lane_columns<WIDE>());
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t right[4];
        load_matrices_transposed(right, k + lane_rows<D>() + (uint32_t)(c * 16) * (uint32_t)sizeof(bf16));
        multiply_add(dq[2 * c], left, right[0], right[1]);
        multiply_add(dq[2 * c + 1], left, right[2], right[3]);
    }
}

/* Reductions over the four lanes that share a row. */
__device__ static inline float lanes_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

__device__ static inline float lanes_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* ---- dropout ------------------------------------------------------------------------------------------------------- */

/* Dropout's factors of a lane's four elements of a tile whose rows are queries: query and query + 8, keys key and key + 1.
 * Two neighbouring lanes compute one draw each and share both. */
__device__ static inline void keep_of_queries(const attention &a, uint32_t when, uint64_t query, int key, float (&keep)[4])
{
    const bool odd = threadIdx.x % 2;
    const uint4 mine = draw_of(a, when, odd ? query + 8 : query, key);
    const uint32_t first = __shfl_xor_sync(0xffffffffu, odd ? mine.x : mine.z, 1);
    const uint32_t second = __shfl_xor_sync(0xffffffffu, odd ? mine.y : mine.w, 1);
    keep[0] = factor_of(a.key, odd ? first : mine.x);
    keep[1] = factor_of(a.key, odd ? second : mine.y);
    keep[2] = factor_of(a.key, odd ? mine.z : first);
    keep[3] = factor_of(a.key, odd ? mine.w : second);
}

/* The same where rows are keys: keys key and key + 8, queries query and query + 1. Four lanes, of neighbouring keys, share
 * their draws: lane r computes that of element r, and needs word r of all four. */
__device__ static inline void keep_of_keys(const attention &a, uint32_t when, uint64_t query, int key, float (&keep)[4])
{
    const uint32_t r = threadIdx.x / 4 % 4;
    const uint4 mine = draw_of(a, when, query + r % 2, key + (int)(r / 2 * 8));
    uint4 words; /* word r of the draws of lanes r, r ^ 1, r ^ 2, r ^ 3 */
    words.x = word_of(mine, r);
    words.y = __shfl_xor_sync(0xffffffffu, word_of(mine, r ^ 1), 4);
    words.z = __shfl_xor_sync(0xffffffffu, word_of(mine, r ^ 2), 8);
    words.w = __shfl_xor_sync(0xffffffffu, word_of(mine, r ^ 3), 12);
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) keep[e] = factor_of(a.key, word_of(words, r ^ e));
}

#endif
