/* Products of matrices in double precision on tensor cores, in tiles of 64 x 64: a thread block of four warps sums up a tile of
 * a b^T. Warp w has the quarter of rows 32 (w / 2) and columns 32 (w % 2) on, in 4 x 4 pieces of 8 x 8; with group = lane / 4
 * and pair = lane % 4, a thread has elements (group, 2 pair) and (group, 2 pair + 1) of each piece (PTX ISA, "mma.m8n8k4"). */
#ifndef ABAR_CUDA_FACTORS_DOUBLE_TILES_H
#define ABAR_CUDA_FACTORS_DOUBLE_TILES_H

#include "device/cuda/core/mma.h"

#define DOUBLE_TILE 64
#define DOUBLE_SLAB 16 /* columns of a and b that are in shared memory at a time */
#define DOUBLE_THREADS 128

/* A row is 20 doubles apart from the next: 8 rows of 4 are read without conflicts of banks. */
typedef double double_slab[DOUBLE_TILE][DOUBLE_SLAB + 4];

typedef double double_sums[4][4][2];

__device__ static inline void multiply_add(double (&d)[2], double a, double b)
{
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(d[0]), "+d"(d[1])
        : "d"(a), "d"(b));
}

__device__ static inline void add_slab(double_sums &sum, const double_slab &a, const double_slab &b)
{
    const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / 4, pair = (int)threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < DOUBLE_SLAB; k += 4) {
        double u[4], v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u[i] = a[32 * (warp / 2) + 8 * i + group][k + pair];
            v[i] = b[32 * (warp % 2) + 8 * i + group][k + pair];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) multiply_add(sum[i][j], u[i], v[j]);
    }
}

/* 64 rows of a slab, pitch doubles apart; from is 16-byte aligned. Closes no group of copies. */
__device__ static inline void copy_slab(double_slab &to, const double *from, int64_t pitch)
{
#pragma unroll
    for (int e = (int)threadIdx.x; e < DOUBLE_TILE * DOUBLE_SLAB / 2; e += DOUBLE_THREADS) {
        const int row = e / (DOUBLE_SLAB / 2), part = e % (DOUBLE_SLAB / 2);
        copy16_async(shared_address(&to[row][2 * part]), from + row * pitch + 2 * part, true);
    }
}

/* sum += a b^T: a and b (64, depth), rows pitch apart; depth and pitch are multiples of 16. */
__device__ static inline void add_product(double_sums &sum, const double *a, const double *b, int64_t pitch, int64_t depth)
{
    __shared__ double_slab left[2], right[2];
    copy_slab(left[0], a, pitch);
    copy_slab(right[0], b, pitch);
    copies_commit();
    int now = 0;
    for (int64_t k = DOUBLE_SLAB; k - DOUBLE_SLAB < depth; k += DOUBLE_SLAB, now ^= 1) {
        if (k < depth) {
            copy_slab(left[now ^ 1], a + k, pitch);
            copy_slab(right[now ^ 1], b + k, pitch);
        }
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        add_slab(sum, left[now], right[now]);
        __syncthreads();
    }
}

/* Calls visit(row, column, sum) for what this thread has of the tile; the next sum is that of column + 1. */
template <typename Visit> __device__ static inline void for_pairs(const double_sums &sum, Visit visit)
{
    const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / 4, pair = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) visit(32 * (warp / 2) + 8 * i + group, 32 * (warp % 2) + 8 * j + 2 * pair, sum[i][j]);
}

#endif
