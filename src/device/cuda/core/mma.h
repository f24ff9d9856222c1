/* Instructions of kernels on tensor cores: copies into shared memory, matrix fragments, products. Layouts are
 * those of the PTX ISA, "Matrix multiply-accumulate": with group = lane / 4 and pair = lane % 4 of a warp,
 *
 *   a[0]: rows group,     columns 2 pair, 2 pair + 1        d = a b + d; a (16, 16), b (16, 8), d (16, 8)
 *   a[1]: rows group + 8, columns 2 pair, 2 pair + 1        b[0]: rows 2 pair, 2 pair + 1, column group
 *   a[2]: rows group,     columns 2 pair + 8, 2 pair + 9    b[1]: rows 2 pair + 8, 2 pair + 9, column group
 *   a[3]: rows group + 8, columns 2 pair + 8, 2 pair + 9    d[0], d[1]: row group, columns 2 pair, 2 pair + 1
 *                                                           d[2], d[3]: row group + 8, the same columns
 *
 * load_matrices reads four 8x8 matrices of bf16; lane 8 i + r holds the address of row r of matrix i (16 bytes), and register i
 * receives elements (group, 2 pair) and (group, 2 pair + 1) of matrix i; transposed: (2 pair, group) and (2 pair + 1, group).
 * Addresses are those of the shared window, 32 bits. */
#ifndef ABAR_CUDA_CORE_MMA_H
#define ABAR_CUDA_CORE_MMA_H

#include "device/cuda/core/cuda_impl.h"

__device__ static inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ static inline void load_matrices(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ static inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Two matrices, at the addresses of lanes 0 to 15. */
__device__ static inline void load_two_matrices_transposed(uint32_t (&r)[2], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(at)
                 : "memory");
}

__device__ static inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Copies 16 bytes from global memory asynchronously; zeros where not valid (from is not read then). Both sides 16-byte
 * aligned. */
__device__ static inline void copy16_async(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/* Closes the group of this thread's copies; waits until at most `open` groups are pending. */
__device__ static inline void copies_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int open> __device__ static inline void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(open) : "memory");
}

__device__ static inline void store16(uint32_t to, uint4 v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/* The bits of two bfloat16s, lo in the lower half. */
__device__ static inline uint32_t pair_bits(float lo, float hi)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

#endif
