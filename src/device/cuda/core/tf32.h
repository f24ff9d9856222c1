/* Products of float32 matrices on tensor cores, 16 x 8 x 8 at a time. Layouts are those of the PTX ISA: with group = lane / 4
 * and pair = lane % 4 of a warp,
 *
 *   a[0], a[1]: rows group and group + 8, column pair        d = a b + d; a (16, 8), b (8, 8), d (16, 8)
 *   a[2], a[3]: the same rows, column pair + 4               b[0], b[1]: rows pair and pair + 4, column group
 *                                                            d[0], d[1]: row group, columns 2 pair, 2 pair + 1
 *                                                            d[2], d[3]: row group + 8, the same columns
 *
 * A tensor core reads the upper 19 bits of a float32: values are rounded to those first. To float32's own accuracy a value is
 * split into two such parts, and three of the four products of parts are taken (the fourth is below the last bit). */
#ifndef ABAR_CUDA_CORE_TF32_H
#define ABAR_CUDA_CORE_TF32_H

#include "device/cuda/core/mma.h"

/* Rounded to the nearest; what is not finite stays so. */
__device__ static inline uint32_t tf32_of(float v)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return bits;
}

/* The same in one instruction for who lets a tensor core cut off the rest, which it does; infinities stay, but of what is not a
 * number only such as have an upper bit of the mantissa at zero. */
__device__ static inline uint32_t tf32_nearly(float v) { return __float_as_uint(v) + 0x1000u; }

/* v = big + small, but for what is below small's last bit. Where v is not a number big may be one, but small is not. */
__device__ static inline void tf32_split(float v, uint32_t *big, uint32_t *small)
{
    *big = tf32_nearly(v) & 0xffffe000u;
    *small = tf32_of(v - __uint_as_float(*big));
}

__device__ static inline void tf32_multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* d = a b. */
__device__ static inline void tf32_multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

/* 16 bytes from global memory, later; the last 16 - bytes of them zeros that are not read. Both sides 16-byte aligned. */
__device__ static inline void copy16_partly(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}

/* The same for one float; zero where not valid. */
__device__ static inline void copy_float_async(uint32_t to, const float *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

#endif
