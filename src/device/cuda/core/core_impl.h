/* What the core files of the CUDA back end share: the tables they make up the device from, pinned memory, elements of any
 * dtype, and how one parameter looks to the update kernel. */
#ifndef ABAR_CUDA_CORE_IMPL_H
#define ABAR_CUDA_CORE_IMPL_H

#include "device/cuda/core/cuda_impl.h"

#include <cuda_fp16.h>

extern "C" {
extern const abar__stats_ops abar__cuda_stats; /* stats/stats.cu */
extern const abar__step_ops abar__cuda_step;   /* step/step.cu */
extern const abar__join_ops abar__cuda_join;   /* step/join.cu */

/* Zeroed host memory that both sides address (device.cu). */
abar_status abar__cuda_pinned(abar_device *dev, size_t bytes, void **out);
void abar__cuda_pinned_free(abar_device *dev, void *memory, size_t bytes);
}

/* An element of a type that is known. */
template <typename T> __device__ static inline float element(const T *p) { return (float)*p; }
template <> __device__ inline float element<bf16>(const bf16 *p) { return __bfloat162float(*p); }
template <> __device__ inline float element<__half>(const __half *p) { return __half2float(*p); }

/* Element i of floating memory, whatever its type. */
__device__ static inline double load_any(const void *data, abar_dtype dtype, int64_t i)
{
    switch (dtype) {
    case ABAR_F64: return ((const double *)data)[i];
    case ABAR_F32: return (double)((const float *)data)[i];
    case ABAR_BF16: return (double)__bfloat162float(((const bf16 *)data)[i]);
    case ABAR_F16: return (double)__half2float(((const __half *)data)[i]);
    default: return 0.0; /* whole numbers are never converted */
    }
}

__device__ static inline void store_any(void *data, abar_dtype dtype, int64_t i, double v)
{
    switch (dtype) {
    case ABAR_F64: ((double *)data)[i] = v; break;
    case ABAR_F32: ((float *)data)[i] = (float)v; break;
    case ABAR_BF16: ((bf16 *)data)[i] = __float2bfloat16_rn((float)v); break;
    case ABAR_F16: ((__half *)data)[i] = __float2half_rn((float)v); break;
    default: break;
    }
}

#endif
