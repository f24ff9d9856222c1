/* The "cuda" device: one GPU, one stream that all work goes into in order. Opening, memory, copies between host and device,
 * captured steps, events. The optimizer step is in step/, statistics in stats/stats.cu.
 */
#include "device/cuda/core/cuda_impl.h"
#include "device/cuda/core/core_impl.h"

extern "C" {
#include "tensor/tensor_impl.h"
}

#include <stdio.h>
#include <string.h>

/* ---- failures ----------------------------------------------------------------------------------------------------- */

/* After these the GPU answers nothing more to this process. */
static bool is_lost(cudaError_t error)
{
    return error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure || error == cudaErrorHardwareStackError ||
           error == cudaErrorIllegalInstruction || error == cudaErrorMisalignedAddress || error == cudaErrorECCUncorrectable ||
           error == cudaErrorNvlinkUncorrectable || error == cudaErrorDevicesUnavailable || error == cudaErrorLaunchTimeout ||
           error == cudaErrorContained;
}

extern "C" abar_status abar__cuda_fail(abar_device *dev, cudaError_t error, const char *what)
{
    cudaGetLastError(); /* what is not sticky is told once */
    if (error == cudaErrorMemoryAllocation)
        return abar__fail(dev->ctx, ABAR_E_MEMORY, "device cuda: out of memory (%s), use a smaller batch or model", what);
    return abar__fail(dev->ctx, ABAR_E_BACKEND, "device cuda: %s (%s)%s", cudaGetErrorString(error), what,
                      is_lost(error) ? ", the device is lost: start again and resume from the last checkpoint" : "");
}

extern "C" abar_status abar__cuda_status(abar_device *dev)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    if (cuda->failure == cudaSuccess) return ABAR_OK;
    cudaError_t error = cuda->failure;
    cuda->failure = cudaSuccess;
    return abar__cuda_fail(dev, error, "a kernel could not be launched");
}

/* ---- opening ------------------------------------------------------------------------------------------------------ */

static __global__ void probe(int *out) { *out = 1; }

static abar_status find_gpu(abar_device *dev)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        cudaGetLastError();
        return abar__fail(dev->ctx, ABAR_E_NOT_FOUND, "device cuda: no CUDA device (%s), use --device cpu",
                          error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none");
    }
    if (dev->ordinal >= count)
        return abar__fail(dev->ctx, ABAR_E_NOT_FOUND, "device cuda:%d: no CUDA device of that number, there are %d from cuda:0",
                          dev->ordinal, count);
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    int major = 0, minor = 0;
    CUDA_TRY(dev, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev->ordinal));
    CUDA_TRY(dev, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, dev->ordinal));
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, probe) != cudaSuccess) {
        cudaGetLastError();
        return abar__fail(dev->ctx, ABAR_E_NOT_FOUND,
                          "device cuda: this build has no kernels for compute capability %d.%d, build with "
                          "-DCMAKE_CUDA_ARCHITECTURES=%d%d",
                          major, minor, major, minor);
    }
    return ABAR_OK;
}

static abar_status describe(abar_device *dev)
{
    static const char *const precisions[] = {"fp32", "tf32", "bf16"};
    abar__cuda *cuda = abar__cuda_of(dev);
    cudaDeviceProp about;
    CUDA_TRY(dev, cudaGetDeviceProperties(&about, dev->ordinal));
    cuda->processors = about.multiProcessorCount;
    cuda->shared_memory = about.sharedMemPerBlockOptin;
    cudaFuncAttributes compiled;
    CUDA_TRY(dev, cudaFuncGetAttributes(&compiled, probe));
    cuda->chains = compiled.ptxVersion >= 90; /* code for older devices does not wait */
    dev->activation = dev->config.precision == ABAR_PRECISION_BF16 ? ABAR_BF16 : ABAR_F32;
    snprintf(dev->description, sizeof dev->description, "cuda: %.60s, %.0f GiB, %s", about.name,
             (double)about.totalGlobalMem / (double)(1 << 30), precisions[dev->config.precision]);
    return ABAR_OK;
}

static abar_status cuda_alloc(abar_device *dev, size_t bytes, void **out);
static void cuda_release(abar_device *dev, void *memory, size_t bytes);

static abar_status reserve_staging(abar_device *dev, size_t bytes);

#define STAGING ((size_t)1 << 20) /* bytes for copies that change order or type; more only for larger tensors */

static abar_status make_queue(abar_device *dev)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    cuda->stream = (cudaStream_t)dev->config.stream;
    if (!cuda->stream) {
        CUDA_TRY(dev, cudaStreamCreateWithFlags(&cuda->own_stream, cudaStreamNonBlocking));
        cuda->stream = cuda->own_stream;
    }
    CUDA_TRY(dev, cudaStreamCreateWithFlags(&cuda->side_stream, cudaStreamNonBlocking));
    CUDA_TRY(dev, cudaEventCreateWithFlags(&cuda->fork, cudaEventDisableTiming));
    CUDA_TRY(dev, cudaEventCreateWithFlags(&cuda->join, cudaEventDisableTiming));
    for (int i = 0; i < ABAR_SIDES; i++) {
        CUDA_TRY(dev, cudaStreamCreateWithFlags(&cuda->sides[i], cudaStreamNonBlocking));
        CUDA_TRY(dev, cudaEventCreateWithFlags(&cuda->side_fork[i], cudaEventDisableTiming));
        CUDA_TRY(dev, cudaEventCreateWithFlags(&cuda->side_join[i], cudaEventDisableTiming));
    }
    for (int i = 0; i < ABAR_LATE_MARKS; i++) CUDA_TRY(dev, cudaEventCreateWithFlags(&cuda->late[i], cudaEventDisableTiming));
    ABAR_TRY(cuda_alloc(dev, ABAR_CUDA_WORKSPACE, &cuda->workspace));
    ABAR_TRY(reserve_staging(dev, STAGING));
    return cuda_alloc(dev, ABAR_CUDA_TICKETS * sizeof(unsigned), (void **)&cuda->tickets);
}

static void cuda_close(abar_device *dev)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    cudaSetDevice(dev->ordinal);
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
    if (cuda->nn_close) cuda->nn_close(dev);
    cuda_release(dev, cuda->workspace, ABAR_CUDA_WORKSPACE);
    cuda_release(dev, cuda->tickets, ABAR_CUDA_TICKETS * sizeof(unsigned));
    abar__cuda_pinned_free(dev, cuda->staging, cuda->staging_bytes);
    if (cuda->fork) cudaEventDestroy(cuda->fork);
    if (cuda->join) cudaEventDestroy(cuda->join);
    for (int i = 0; i < ABAR_LATE_MARKS; i++)
        if (cuda->late[i]) cudaEventDestroy(cuda->late[i]);
    for (int i = 0; i < ABAR_SIDES; i++) {
        if (cuda->side_fork[i]) cudaEventDestroy(cuda->side_fork[i]);
        if (cuda->side_join[i]) cudaEventDestroy(cuda->side_join[i]);
        if (cuda->sides[i]) cudaStreamDestroy(cuda->sides[i]);
    }
    if (cuda->side_stream) cudaStreamDestroy(cuda->side_stream);
    if (cuda->own_stream) cudaStreamDestroy(cuda->own_stream);
    cudaGetLastError(); /* a caller may have taken its stream away before */
    abar__free(dev->ctx, cuda, sizeof *cuda);
    dev->impl = NULL;
}

static abar_status cuda_open(abar_device *dev)
{
    if (dev->config.precision < ABAR_PRECISION_FP32 || dev->config.precision > ABAR_PRECISION_BF16)
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "device cuda: there is no precision %d", (int)dev->config.precision);
    ABAR_TRY(find_gpu(dev));
    ABAR_TRY(abar__alloc(dev->ctx, sizeof(abar__cuda), &dev->impl));
    abar_status status = describe(dev);
    if (status == ABAR_OK) status = make_queue(dev);
    if (status < 0) cuda_close(dev);
    return status;
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

static size_t cuda_memory_free(abar_device *dev)
{
    size_t left = 0, all = 0;
    cudaSetDevice(dev->ordinal);
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) cudaGetLastError();
    return left;
}

static abar_status out_of_memory(abar_device *dev, size_t bytes)
{
    const double mib = 1024.0 * 1024.0;
    cudaGetLastError();
    return abar__fail(dev->ctx, ABAR_E_MEMORY,
                      "device cuda: out of memory, asked for %.1f MiB with %.1f MiB free and %.1f MiB already in use here, "
                      "lower --batch or take a smaller model or --precision bf16",
                      (double)bytes / mib, (double)cuda_memory_free(dev) / mib, (double)abar__cuda_of(dev)->held / mib);
}

static abar_status cuda_alloc(abar_device *dev, size_t bytes, void **out)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    *out = NULL;
    if (bytes == 0) return ABAR_OK;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) return out_of_memory(dev, bytes);
    if (error != cudaSuccess) return abar__cuda_fail(dev, error, "cudaMalloc");
    error = cudaMemsetAsync(memory, 0, bytes, cuda->stream);
    if (error != cudaSuccess) {
        cudaFree(memory);
        return abar__cuda_fail(dev, error, "cudaMemsetAsync");
    }
    cuda->held += bytes;
    if (cuda->held > cuda->peak) cuda->peak = cuda->held;
    abar__count_memory(dev->ctx, bytes);
    *out = memory;
    return ABAR_OK;
}

static void cuda_release(abar_device *dev, void *memory, size_t bytes)
{
    if (!memory) return;
    cudaSetDevice(dev->ordinal);
    if (cudaFree(memory) != cudaSuccess) cudaGetLastError(); /* a lost device: told by the next wait */
    abar__cuda_of(dev)->held -= bytes;
    abar__uncount_memory(dev->ctx, bytes);
}

extern "C" abar_status abar__cuda_pinned(abar_device *dev, size_t bytes, void **out)
{
    *out = NULL;
    if (bytes == 0) return ABAR_OK;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    cudaError_t error = cudaHostAlloc(out, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (error != cudaSuccess) {
        cudaGetLastError();
        *out = NULL;
        return abar__fail(dev->ctx, ABAR_E_MEMORY, "device cuda: could not get %zu bytes of pinned host memory (%s)", bytes,
                          cudaGetErrorString(error));
    }
    memset(*out, 0, bytes);
    abar__count_memory(dev->ctx, bytes);
    return ABAR_OK;
}

extern "C" void abar__cuda_pinned_free(abar_device *dev, void *memory, size_t bytes)
{
    if (!memory) return;
    if (cudaFreeHost(memory) != cudaSuccess) cudaGetLastError();
    abar__uncount_memory(dev->ctx, bytes);
}

/* ---- copies ------------------------------------------------------------------------------------------------------- */

/* The strides of a tensor, for the kernel: NHWC is a matter of strides. */
typedef struct view {
    char *data;
    abar_dtype dtype;
    int ndim;
    int64_t dim[ABAR_MAX_DIM], stride[ABAR_MAX_DIM];
} view;

static view view_of(const abar_tensor *t)
{
    view v = {};
    v.data = (char *)t->data;
    v.dtype = t->dtype;
    v.ndim = t->ndim;
    for (int i = 0; i < t->ndim; i++) {
        v.dim[i] = t->dim[i];
        v.stride[i] = t->stride[i];
    }
    if (t->layout == ABAR_LAYOUT_NHWC) {
        v.stride[1] = 1;
        v.stride[3] = t->dim[1];
        v.stride[2] = t->dim[1] * t->dim[3];
        v.stride[0] = t->dim[1] * t->dim[3] * t->dim[2];
    }
    return v;
}

static bool is_blocked(const abar_tensor *t) { return t->layout != ABAR_LAYOUT_STRIDED && t->layout != ABAR_LAYOUT_NHWC; }

/* Equal strides wherever there is more than one element: the same bytes in the same order. */
static bool same_order(const abar_tensor *a, const abar_tensor *b)
{
    if (a->dtype != b->dtype || is_blocked(a) || is_blocked(b)) return false;
    const view x = view_of(a), y = view_of(b);
    for (int i = 0; i < x.ndim; i++)
        if (x.dim[i] != 1 && x.stride[i] != y.stride[i]) return false;
    return true;
}

static bool has_gaps(const abar_tensor *t)
{
    return !is_blocked(t) && abar_tensor_bytes(t) != (size_t)abar_tensor_count(t) * abar_dtype_size(t->dtype);
}

/* One thread per element, in the order of dst's dimensions. */
static __global__ void copy_elements(view dst, view src, int64_t count)
{
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < count; n += (int64_t)gridDim.x * blockDim.x) {
        int64_t rest = n, to = 0, from = 0;
        for (int i = dst.ndim - 1; i >= 0; i--) {
            const int64_t at = rest % dst.dim[i];
            rest /= dst.dim[i];
            to += at * dst.stride[i];
            from += at * src.stride[i];
        }
        if (dst.dtype != src.dtype) {
            store_any(dst.data, dst.dtype, to, load_any(src.data, src.dtype, from));
            continue;
        }
        switch (dst.dtype) {
        case ABAR_F64:
        case ABAR_I64: ((int64_t *)dst.data)[to] = ((const int64_t *)src.data)[from]; break;
        case ABAR_F32:
        case ABAR_I32: ((int32_t *)dst.data)[to] = ((const int32_t *)src.data)[from]; break;
        case ABAR_BF16:
        case ABAR_F16: ((int16_t *)dst.data)[to] = ((const int16_t *)src.data)[from]; break;
        case ABAR_U8: dst.data[to] = src.data[from]; break;
        }
    }
}

/* Pinned memory of at least so many bytes, good until the next copy. */
static abar_status reserve_staging(abar_device *dev, size_t bytes)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    if (bytes <= cuda->staging_bytes) return ABAR_OK;
    abar__cuda_pinned_free(dev, cuda->staging, cuda->staging_bytes);
    cuda->staging_bytes = 0;
    ABAR_TRY(abar__cuda_pinned(dev, bytes, &cuda->staging));
    cuda->staging_bytes = bytes;
    return ABAR_OK;
}

static abar_status move(abar_device *dev, void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaMemcpyAsync(dst, src, bytes, kind, cuda->stream));
    CUDA_TRY(dev, cudaStreamSynchronize(cuda->stream));
    return ABAR_OK;
}

static abar_status copy_to_device(abar_device *dev, const abar_tensor *dst, const abar_tensor *src)
{
    const size_t bytes = abar_tensor_bytes(dst);
    if (same_order(dst, src) && !has_gaps(dst)) return move(dev, dst->data, src->data, bytes, cudaMemcpyHostToDevice);
    ABAR_TRY(reserve_staging(dev, bytes));
    abar_tensor copy = *dst;
    copy.dev = NULL;
    copy.data = abar__cuda_of(dev)->staging;
    if (has_gaps(dst)) ABAR_TRY(move(dev, copy.data, dst->data, bytes, cudaMemcpyDeviceToHost)); /* not ours: keep it */
    abar__tensor_copy_host(&copy, src);
    return move(dev, dst->data, copy.data, bytes, cudaMemcpyHostToDevice);
}

static abar_status copy_to_host(abar_device *dev, const abar_tensor *dst, const abar_tensor *src)
{
    const size_t bytes = abar_tensor_bytes(src);
    if (same_order(dst, src) && !has_gaps(dst)) return move(dev, dst->data, src->data, bytes, cudaMemcpyDeviceToHost);
    ABAR_TRY(reserve_staging(dev, bytes));
    abar_tensor copy = *src;
    copy.dev = NULL;
    copy.data = abar__cuda_of(dev)->staging;
    ABAR_TRY(move(dev, copy.data, src->data, bytes, cudaMemcpyDeviceToHost));
    abar__tensor_copy_host(dst, &copy);
    return ABAR_OK;
}

static abar_status cuda_copy(abar_device *dev, const abar_tensor *dst, const abar_tensor *src)
{
    const int64_t count = abar_tensor_count(src);
    if (count == 0) return ABAR_OK;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    if (!src->dev) return copy_to_device(dev, dst, src);
    if (!dst->dev) return copy_to_host(dev, dst, src);
    abar__cuda *cuda = abar__cuda_of(dev);
    if (same_order(dst, src) && !has_gaps(dst)) {
        CUDA_TRY(dev, cudaMemcpyAsync(dst->data, src->data, abar_tensor_bytes(dst), cudaMemcpyDeviceToDevice, cuda->stream));
        return ABAR_OK;
    }
    if (is_blocked(dst) || is_blocked(src))
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "tensor copy: blocked layouts are the cpu's, device cuda has none");
    const int64_t blocks = abar__cuda_blocks(count, 256), most = (int64_t)cuda->processors * 16;
    abar__cuda_launch(dev, copy_elements, dim3((unsigned)(blocks < most ? blocks : most)), dim3(256), 0, view_of(dst),
                      view_of(src), count);
    return abar__cuda_status(dev);
}

static abar_status cuda_copy_bytes(abar_device *dev, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0) return ABAR_OK;
    CUDA_TRY(dev, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, abar__cuda_of(dev)->stream));
    return ABAR_OK;
}

/* ---- the queue ---------------------------------------------------------------------------------------------------- */

static abar_status cuda_wait(abar_device *dev)
{
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    CUDA_TRY(dev, cudaStreamSynchronize(abar__cuda_of(dev)->stream));
    return abar__cuda_status(dev);
}

/* What was given to the old stream comes before what the new one will be given. */
static abar_status cuda_set_stream(abar_device *dev, void *stream)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    if (cuda->stream == (cudaStream_t)stream) return ABAR_OK;
    if (cuda->capturing) return abar__fail(dev->ctx, ABAR_E_STATE, "device cuda: no other stream while a step is recorded");
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    CUDA_TRY(dev, cudaEventRecord(cuda->fork, cuda->stream));
    CUDA_TRY(dev, cudaStreamWaitEvent((cudaStream_t)stream, cuda->fork, 0));
    cuda->stream = (cudaStream_t)stream;
    return ABAR_OK;
}

static abar_status capture_begin(abar_device *dev)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    ABAR_TRY(abar__cuda_status(dev));
    CUDA_TRY(dev, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    cuda->capturing = true;
    return ABAR_OK;
}

static abar_status capture_end(abar_device *dev, void **out)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    cudaGraph_t graph = NULL;
    *out = NULL;
    cuda->capturing = false;
    CUDA_TRY(dev, cudaStreamEndCapture(cuda->stream, &graph));
    abar_status status = abar__cuda_status(dev);
    if (status == ABAR_OK) {
        cudaGraphExec_t ready = NULL;
        cudaError_t error = cudaGraphInstantiate(&ready, graph, 0);
        if (error == cudaSuccess)
            *out = ready;
        else
            status = abar__cuda_fail(dev, error, "cudaGraphInstantiate");
    }
    cudaGraphDestroy(graph);
    return status;
}

static abar_status replay(abar_device *dev, void *graph)
{
    CUDA_TRY(dev, cudaGraphLaunch((cudaGraphExec_t)graph, abar__cuda_of(dev)->stream));
    return ABAR_OK;
}

static void forget(abar_device *dev, void *graph)
{
    (void)dev;
    if (graph) cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

static abar_status event_create(abar_device *dev, void **mark)
{
    *mark = NULL;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    CUDA_TRY(dev, cudaEventCreate((cudaEvent_t *)mark));
    return ABAR_OK;
}

static void event_destroy(abar_device *dev, void *mark)
{
    (void)dev;
    if (mark) cudaEventDestroy((cudaEvent_t)mark);
}

/* Within a recording it becomes a part of it, set anew by every replay. */
static abar_status event_record(abar_device *dev, void *mark)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    const unsigned flags = cuda->capturing ? cudaEventRecordExternal : cudaEventRecordDefault;
    CUDA_TRY(dev, cudaEventRecordWithFlags((cudaEvent_t)mark, cuda->stream, flags));
    return ABAR_OK;
}

static abar_status event_wait(abar_device *dev, void *mark)
{
    CUDA_TRY(dev, cudaEventSynchronize((cudaEvent_t)mark));
    return ABAR_OK;
}

/* A failure has passed too: the next wait tells of it. */
static bool event_done(abar_device *dev, void *mark)
{
    (void)dev;
    return cudaEventQuery((cudaEvent_t)mark) != cudaErrorNotReady;
}

static double event_elapsed(abar_device *dev, void *from, void *to)
{
    (void)dev;
    float milliseconds = 0.0f;
    if (cudaEventElapsedTime(&milliseconds, (cudaEvent_t)from, (cudaEvent_t)to) == cudaSuccess) return (double)milliseconds;
    cudaGetLastError();
    return 0.0;
}

/* One thread per 16 bytes; the last few bytes one by one. */
static __global__ void settle_bytes(char *dst, char *src, size_t bytes, const int32_t *skipped)
{
    const bool back = *skipped != 0;
    char *to = back ? src : dst;
    const char *from = back ? dst : src;
    const size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (size_t)gridDim.x * blockDim.x;
    const bool aligned = ((uintptr_t)dst | (uintptr_t)src) % 16 == 0;
    const size_t whole = aligned ? bytes / 16 : 0;
    for (size_t i = thread; i < whole; i += threads) ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    for (size_t i = 16 * whole + thread; i < bytes; i += threads) to[i] = from[i];
}

static void settle(abar_device *dev, void *dst, void *src, size_t bytes, const int32_t *skipped)
{
    if (bytes == 0) return;
    const int64_t blocks = abar__cuda_blocks((int64_t)bytes, 16 * 256), most = (int64_t)abar__cuda_of(dev)->processors * 8;
    abar__cuda_launch(dev, settle_bytes, dim3((unsigned)(blocks < most ? blocks : most)), dim3(256), 0, (char *)dst,
                      (char *)src, bytes, skipped);
}

/* ---- beside the main stream ---------------------------------------------------------------------------------------- */

static abar_status side_begin(abar_device *dev, abar__side side)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaEventRecord(cuda->side_fork[side], cuda->stream));
    CUDA_TRY(dev, cudaStreamWaitEvent(cuda->sides[side], cuda->side_fork[side], 0));
    cuda->main_stream = cuda->stream;
    cuda->stream = cuda->sides[side];
    return ABAR_OK;
}

static abar_status side_end(abar_device *dev, abar__side side)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    cuda->stream = cuda->main_stream;
    cuda->main_stream = NULL;
    CUDA_TRY(dev, cudaEventRecord(cuda->side_join[side], cuda->sides[side]));
    return ABAR_OK;
}

static abar_status side_join(abar_device *dev, abar__side side)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaStreamWaitEvent(cuda->stream, cuda->side_join[side], 0));
    return ABAR_OK;
}

static abar_status late_mark(abar_device *dev, int number, bool side)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    if (side) CUDA_TRY(dev, cudaStreamWaitEvent(cuda->side_stream, cuda->side_join[ABAR_SIDE_STATS], 0));
    CUDA_TRY(dev, cudaEventRecord(cuda->late[number], cuda->side_stream));
    return ABAR_OK;
}

static abar_status late_join(abar_device *dev, int number)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaStreamWaitEvent(cuda->stream, cuda->late[number], 0));
    return ABAR_OK;
}

static void *current(abar_device *dev) { return abar__cuda_of(dev)->stream; }

static abar_status identify(abar_device *dev, char text[ABAR_DEVICE_IDENTITY])
{
    CUDA_TRY(dev, cudaDeviceGetPCIBusId(text, ABAR_DEVICE_IDENTITY, dev->ordinal));
    return ABAR_OK;
}

static const abar__stream_ops stream = {
    .wait = cuda_wait,
    .set_stream = cuda_set_stream,
    .shared_alloc = abar__cuda_pinned,
    .shared_free = abar__cuda_pinned_free,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .replay = replay,
    .forget = forget,
    .side_begin = side_begin,
    .side_end = side_end,
    .side_join = side_join,
    .late_mark = late_mark,
    .late_join = late_join,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .event_elapsed = event_elapsed,
    .settle = settle,
    .copy_bytes = cuda_copy_bytes,
    .memory_free = cuda_memory_free,
    .current = current,
    .identify = identify,
};

static int cuda_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

static const abar_device_ops device = {
    .name = "cuda",
    .dtype = ABAR_F32,
    .channels_last = true,
    .count = cuda_count,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .copy = cuda_copy,
    .norm = NULL,
    .update = NULL,
    .stats = &abar__cuda_stats,
    .step = &abar__cuda_step,
    .stream = &stream,
    .join = &abar__cuda_join,
};

extern "C" const abar_device_ops *const abar__cuda_device = &device;
