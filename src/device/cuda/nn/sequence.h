/* Shared by operations on sequences. */
#ifndef ABAR_CUDA_NN_SEQUENCE_H
#define ABAR_CUDA_NN_SEQUENCE_H

#include "device/cuda/nn/cuda_nn.h"

/* V neighbours of a parameter: 1, or as many as divide every row of it. */
template <int V> __device__ static inline lanes<V> load_floats(const float *p)
{
    static_assert(V == 1 || V % 4 == 0);
    lanes<V> a;
    if constexpr (V == 1) {
        a.v[0] = p[0];
    } else {
#pragma unroll
        for (int k = 0; k < V; k += 4) {
            const float4 w = *reinterpret_cast<const float4 *>(p + k);
            a.v[k] = w.x, a.v[k + 1] = w.y, a.v[k + 2] = w.z, a.v[k + 3] = w.w;
        }
    }
    return a;
}

/* Sets `to` (count), unless NULL, to the sums of from (samples, count), of the device's activation dtype, over samples, or
 * adds them. */
void abar__cuda_sum_samples(abar_device *dev, int64_t samples, int64_t count, const void *from, bool add, float *to);

#endif
