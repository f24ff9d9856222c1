/* Products of matrices in double precision on tensor cores, in tiles of 64 x 64: a thread block of four warps sums up a tile of
 * a b^T. Warp w has the quarter of rows 32 (w / 2) and columns 32 (w % 2) on, in 2 x 4 pieces of 16 x 8, each 16 columns of a
 * and b at a time. Layouts are those of the PTX ISA, "mma.m16n8k16": with group = lane / 4 and pair = lane % 4 a thread has
 *
 *   a[j][half]: row group + 8 half, column pair + 4 j        b[j]: row group, column pair + 4 j
 *   d[half][e]: row group + 8 half, column 2 pair + e */
#ifndef ABAR_CUDA_FACTORS_DOUBLE_TILES_H
#define ABAR_CUDA_FACTORS_DOUBLE_TILES_H

#include "device/cuda/core/mma.h"

#define DOUBLE_TILE 64
#define DOUBLE_SLAB 16 /* columns of a and b that are in shared memory at a time */
#define DOUBLE_THREADS 128

/* A row is 20 doubles apart from the next: 8 rows of 4 are read without conflicts of banks. */
typedef double double_slab[DOUBLE_TILE][DOUBLE_SLAB + 4];

typedef double double_piece[2][2];
typedef double_piece double_sums[2][4];

/* d += a b^T. The wide instruction has twice the rate of the narrow one, which older devices have, too. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ static inline void multiply_add(double_piece &d, const double (&a)[4][2], const double (&b)[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(d[0][0]), "+d"(d[0][1]), "+d"(d[1][0]), "+d"(d[1][1])
        : "d"(a[0][0]), "d"(a[0][1]), "d"(a[1][0]), "d"(a[1][1]), "d"(a[2][0]), "d"(a[2][1]), "d"(a[3][0]), "d"(a[3][1]),
          "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
}
#else
__device__ static inline void multiply_add(double_piece &d, const double (&a)[4][2], const double (&b)[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+d"(d[half][0]), "+d"(d[half][1])
                : "d"(a[j][half]), "d"(b[j]));
}
#endif

/* 16 rows of a slab from `row` on as the left factor, 8 as the right one. */
__device__ static inline void load_left(double (&a)[4][2], const double_slab &from, int row)
{
    const int group = (int)threadIdx.x % 32 / 4, pair = (int)threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) a[j][half] = from[row + group + 8 * half][pair + 4 * j];
}

__device__ static inline void load_right(double (&b)[4], const double_slab &from, int row)
{
    const int group = (int)threadIdx.x % 32 / 4, pair = (int)threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) b[j] = from[row + group][pair + 4 * j];
}

__device__ static inline void add_slab(double_sums &sum, const double_slab &a, const double_slab &b)
{
    const int warp = (int)threadIdx.x / 32;
    double u[2][4][2];
#pragma unroll
    for (int i = 0; i < 2; i++) load_left(u[i], a, 32 * (warp / 2) + 16 * i);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        double v[4];
        load_right(v, b, 32 * (warp % 2) + 8 * j);
#pragma unroll
        for (int i = 0; i < 2; i++) multiply_add(sum[i][j], u[i], v);
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
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                visit(32 * (warp / 2) + 16 * i + 8 * half + group, 32 * (warp % 2) + 8 * j + 2 * pair, sum[i][j][half]);
}

#endif
