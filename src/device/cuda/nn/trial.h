/* Numbers to try kernels with: as a product of zeros or of equal numbers takes less power, it is faster than any other. */
#ifndef ABAR_CUDA_NN_TRIAL_H
#define ABAR_CUDA_NN_TRIAL_H

#include "device/cuda/nn/cuda_nn.h"

/* Threads stride over the elements: uniform in [-1, 1), with 24 bits so that float32 needs its whole mantissa, from a hash
 * of the element's index. */
template <typename T> static __global__ void abar__trial_numbers(T *to, int64_t count)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        uint64_t h = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
        h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
        store(to, i, (float)(h >> 40) * 0x1p-23f - 1.0f);
    }
}

/* Fills memory of the device's activation dtype. */
static inline void abar__trial_fill(abar_device *dev, void *to, int64_t count)
{
    const int64_t blocks = abar__cuda_blocks(count, ABAR_CUDA_THREADS), most = 1024;
    const dim3 grid((unsigned)(blocks < most ? blocks : most));
    if (abar__cuda_is_bf16(dev))
        abar__cuda_launch(dev, abar__trial_numbers<bf16>, grid, ABAR_CUDA_THREADS, 0, (bf16 *)to, count);
    else
        abar__cuda_launch(dev, abar__trial_numbers<float>, grid, ABAR_CUDA_THREADS, 0, (float *)to, count);
}

#endif
