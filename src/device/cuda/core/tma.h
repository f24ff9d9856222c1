/* Tiles of matrices brought into shared memory by the copy engine of compute capability 9.0 (PTX ISA, "cp.async.bulk.tensor"
 * and "mbarrier"): one thread asks for a tile, and a barrier in shared memory counts the bytes that have come. A tile is rows
 * of 128 bytes from a multiple of 1024 bytes on, in the pattern of wgmma.h; beyond the ends of the matrix are zeros.
 *
 * The phases of a barrier end in turns with parity 0, 1, 0, ...: when all arrivals and all bytes it waits for have come. */
#ifndef ABAR_CUDA_CORE_TMA_H
#define ABAR_CUDA_CORE_TMA_H

#include "device/cuda/core/cuda_impl.h"

#include <cuda.h>

/* By one thread, before a barrier of the block. at: an address in shared memory, of 8 bytes. */
__device__ static inline void turn_create(uint32_t at, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

/* Behind the last of them: for the copy engine too. */
__device__ static inline void turns_publish(void)
{
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ static inline void turn_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* The same, and this phase waits for so many bytes more. */
__device__ static inline void turn_expect(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/* Until the phase of this parity has ended. */
__device__ static inline void turn_wait(uint32_t at, unsigned parity)
{
    uint32_t ended = 0;
    while (!ended)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(ended)
                     : "r"(at), "r"(parity)
                     : "memory");
}

/* What the host wrote into a map in device memory is seen by this thread's copies. */
__device__ static inline void tile_map_acquire(const void *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

/* The tile that begins at (row, column), later; its bytes count for the phase of the barrier. */
__device__ static inline void tile_bring(uint32_t to, const void *map, int row, int column, uint32_t turn)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(map), "r"(column), "r"(row), "r"(turn)
        : "memory");
}

/* The same of a box of an image: channels, columns, rows and examples that follow (c, x, y, n), which may be outside. */
__device__ static inline void box_bring(uint32_t to, const void *map, int c, int x, int y, int n, uint32_t turn)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(c), "r"(x), "r"(y), "r"(n), "r"(turn)
                 : "memory");
}

/* What this thread has written to shared memory is seen by products and by the copy engine, behind the next barrier. */
__device__ static inline void turn_written(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- the host's side --------------------------------------------------------------------------------------------------- */

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                    const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function that makes a map, without linking against the driver; NULL: it has none. */
static inline abar_status find_encode(abar_device *dev, encode_function *out)
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    CUDA_TRY(dev, cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    *out = found == cudaDriverEntryPointSuccess ? (encode_function)function : NULL;
    return ABAR_OK;
}

#endif
