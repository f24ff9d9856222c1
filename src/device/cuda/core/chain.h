/* Chained kernels: a kernel starts while the one before it in the stream still runs (programmatic dependent launch, compute
 * capability 9.0 and later), which hides most of the time between two kernels.
 *
 * A kernel that is launched with abar__cuda_launch_chained calls chain_wait in every thread before it reads or writes any
 * global memory. It returns when all kernels before have finished and what they wrote is visible. There, too, the next kernel
 * may start, once all blocks have come so far: they all have their place, so that it takes none from them. Since every kernel
 * waits first, the one that starts knows that those before its predecessor have finished, not only that it will.
 *
 * Kernels whose blocks wait for each other are not chained to others, nor others to them. In a kernel launched in any other
 * way, and on older devices, chain_wait does nothing. */
#ifndef ABAR_CUDA_CORE_CHAIN_H
#define ABAR_CUDA_CORE_CHAIN_H

#include "device/cuda/core/cuda_impl.h"

/* Whether the next kernel in the current stream can be chained. Where a graph is being captured its only predecessor must be
 * a kernel whose blocks do not wait for each other. */
extern "C" bool abar__cuda_can_chain(const abar_device *dev);

/* abar__cuda_launch for kernels that call chain_wait. */
template <typename... Parameters, typename... Arguments>
static inline void abar__cuda_launch_chained(abar_device *dev, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                                             size_t shared, Arguments... arguments)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    cudaLaunchAttribute chained = {};
    chained.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    chained.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = cuda->stream;
    config.attrs = &chained;
    config.numAttrs = abar__cuda_can_chain(dev) ? 1 : 0;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
    if (error != cudaSuccess && cuda->failure == cudaSuccess) cuda->failure = error;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ static inline void chain_wait(void)
{
    asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");
}
#else
__device__ static inline void chain_wait(void) {}
#endif

#endif
