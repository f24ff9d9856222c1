/* Shared by the files of the CUDA back end: the device's internals, errors, launches, and the two element types.
 *
 * Host code checks every call with CUDA_TRY. Kernels are launched with abar__cuda_launch, which keeps a failure until the
 * next wait or status. All work is enqueued on dev's stream, in order. Reductions have a fixed order: they are bitwise
 * reproducible. */
#ifndef ABAR_CUDA_IMPL_H
#define ABAR_CUDA_IMPL_H

extern "C" {
#include "device/device_impl.h"
}

#include <cuda_bf16.h>
#include <cuda_runtime.h>

typedef __nv_bfloat16 bf16;

/* The back end's part of an abar_device. */
typedef struct abar__cuda {
    cudaStream_t stream, own_stream; /* the one in use; the one created here, NULL where the caller passed its own */
    cudaStream_t side_stream;        /* for work that may run concurrently with the main stream within one operation */
    cudaEvent_t fork, join;
    cudaStream_t sides[ABAR_SIDES], main_stream; /* between side_begin and side_end stream is a side; else main is NULL */
    cudaEvent_t side_fork[ABAR_SIDES], side_join[ABAR_SIDES], late[ABAR_LATE_MARKS];
    int processors;       /* streaming multiprocessors */
    size_t shared_memory; /* bytes a block may use, opted in */
    bool capturing;
    bool chains;                        /* kernels can start before the one before has finished: chain.h */
    cudaError_t failure;                /* the first launch that failed since the last wait */
    void *nn;                           /* handles of cuDNN and cuBLASLt, opened by the first operation that needs them */
    void (*nn_close)(abar_device *dev); /* releases them; NULL: there are none */
    size_t held, peak;                  /* bytes of device memory allocated through alloc */
    void *workspace;   /* ABAR_CUDA_WORKSPACE bytes that a core operation may use while it runs: partial sums */
    unsigned *tickets; /* ABAR_CUDA_TICKETS counters of finished blocks, all zero between kernels */
    void *staging;     /* pinned, grows with the largest copy that needs rearranging */
    size_t staging_bytes;
} abar__cuda;

#define ABAR_CUDA_WORKSPACE ((size_t)8 << 20)
#define ABAR_CUDA_TICKETS 32768

static inline abar__cuda *abar__cuda_of(const abar_device *dev) { return (abar__cuda *)dev->impl; }

/* "device cuda: REASON (what)"; ABAR_E_MEMORY for an allocation that failed, else ABAR_E_BACKEND. */
extern "C" abar_status abar__cuda_fail(abar_device *dev, cudaError_t error, const char *what);

#define CUDA_TRY(dev, call)                                                              \
    do {                                                                                 \
        cudaError_t cuda_error = (call);                                                 \
        if (cuda_error != cudaSuccess) return abar__cuda_fail((dev), cuda_error, #call); \
    } while (0)

/* kernel<<<blocks, threads, shared, stream>>>(arguments...); the device keeps the first failure. */
template <typename... Parameters, typename... Arguments>
static inline void abar__cuda_launch(abar_device *dev, void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared,
                                     Arguments... arguments)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    kernel<<<blocks, threads, shared, cuda->stream>>>(static_cast<Parameters>(arguments)...);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess && cuda->failure == cudaSuccess) cuda->failure = error;
}

/* Allows a kernel all the dynamic shared memory that a block may have. The limit belongs to the process, not to the device
 * or thread: it is always set to the same number, so that no thread lowers it between another's setting and launch. */
static inline cudaError_t abar__cuda_allow_shared(const abar_device *dev, const void *kernel)
{
    cudaFuncAttributes of;
    cudaError_t error = cudaFuncGetAttributes(&of, kernel);
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)(abar__cuda_of(dev)->shared_memory - of.sharedSizeBytes));
}

/* Returned by an operation after its launches: ABAR_OK, or the failure that was kept. */
extern "C" abar_status abar__cuda_status(abar_device *dev);

static inline int64_t abar__cuda_blocks(int64_t n, int64_t per_block) { return (n + per_block - 1) / per_block; }

/* ---- elements ------------------------------------------------------------------------------------------------- */

__device__ static inline float load(const float *p, int64_t i) { return p[i]; }
__device__ static inline float load(const bf16 *p, int64_t i) { return __bfloat162float(p[i]); }
__device__ static inline void store(float *p, int64_t i, float v) { p[i] = v; }
__device__ static inline void store(bf16 *p, int64_t i, float v) { p[i] = __float2bfloat16_rn(v); }

/* 16 bytes at once: 4 floats or 8 bfloat16s, as floats. */
template <typename T> struct pack;
template <> struct pack<float> {
    static const int n = 4;
    float v[4];
};
template <> struct pack<bf16> {
    static const int n = 8;
    float v[8];
};

__device__ static inline pack<float> load_pack(const float *p)
{
    float4 w = *reinterpret_cast<const float4 *>(p);
    return {{w.x, w.y, w.z, w.w}};
}

__device__ static inline void store_pack(float *p, const pack<float> &a)
{
    *reinterpret_cast<float4 *>(p) = make_float4(a.v[0], a.v[1], a.v[2], a.v[3]);
}

__device__ static inline pack<bf16> unpack(uint4 w)
{
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    pack<bf16> a;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a.v[2 * i] = __uint_as_float(words[i] << 16);
        a.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
    return a;
}

__device__ static inline pack<bf16> load_pack(const bf16 *p) { return unpack(*reinterpret_cast<const uint4 *>(p)); }

__device__ static inline void store_pack(bf16 *p, const pack<bf16> &a)
{
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(a.v[2 * i], a.v[2 * i + 1]);
        words[i] = *reinterpret_cast<const uint32_t *>(&pair);
    }
    *reinterpret_cast<uint4 *>(p) = make_uint4(words[0], words[1], words[2], words[3]);
}

/* ---- sums in a fixed order ------------------------------------------------------------------------------------- */

template <typename T> __device__ static inline T warp_sum(T v)
{
#pragma unroll
    for (int lane = 16; lane; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

/* Over a block of at most 1024 threads, whole warps; every thread gets the sum. shared: 32 elements. */
template <typename T> __device__ static inline T block_sum(T v, T *shared)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    v = lane < warps ? shared[lane] : T(0);
    return warp_sum(v);
}

/* Whether this is the last of `blocks` blocks to get here: it sees what the others wrote before. Resets the ticket. */
__device__ static inline bool last_block(unsigned *ticket, unsigned blocks)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(ticket, blocks - 1) == blocks - 1;
    __syncthreads();
    __threadfence();
    return last;
}

#endif
