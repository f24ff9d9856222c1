/* Micro-batches joined in device memory (device/join_impl.h): sums of gradients and statistics, results, running statistics.
 * Every element is computed by one thread in one order, so that the bits do not depend on the launch. */
#include "device/cuda/step/step.h"

#define THREADS 256
#define BLOCKS_MOST 8 /* per multiprocessor */
#define LEVELS 64     /* of a tree, at most */

static dim3 blocks_for(const abar_device *dev, int64_t n)
{
    const int64_t blocks = abar__cuda_blocks(n, THREADS), most = (int64_t)abar__cuda_of(dev)->processors * BLOCKS_MOST;
    return dim3((unsigned)(blocks < most ? blocks : most));
}

/* ---- sums --------------------------------------------------------------------------------------------------------- */

/* quads: of four floats, where both are aligned; the rest one by one. */
static __global__ void __launch_bounds__(THREADS) add_floats(float *to, const float *from, int64_t n, int64_t quads)
{
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, threads = (int64_t)gridDim.x * THREADS;
    for (int64_t q = thread; q < quads; q += threads) {
        pack<float> a = load_pack(to + 4 * q);
        const pack<float> b = load_pack(from + 4 * q);
#pragma unroll
        for (int i = 0; i < 4; i++) a.v[i] += b.v[i];
        store_pack(to + 4 * q, a);
    }
    for (int64_t i = 4 * quads + thread; i < n; i += threads) to[i] += from[i];
}

static __global__ void __launch_bounds__(THREADS) add_doubles(double *to, const double *from, int64_t n)
{
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, threads = (int64_t)gridDim.x * THREADS;
    for (int64_t i = thread; i < n; i += threads) to[i] += from[i];
}

static abar_status add(abar_device *dev, void *to, const void *from, int64_t n, bool wide)
{
    if (n == 0) return ABAR_OK;
    const bool aligned = ((uintptr_t)to | (uintptr_t)from) % 16 == 0;
    if (wide)
        abar__cuda_launch(dev, add_doubles, blocks_for(dev, n), dim3(THREADS), 0, (double *)to, (const double *)from, n);
    else
        abar__cuda_launch(dev, add_floats, blocks_for(dev, aligned ? (n + 3) / 4 : n), dim3(THREADS), 0, (float *)to,
                          (const float *)from, n, aligned ? n / 4 : 0);
    return abar__cuda_status(dev);
}

/* ---- results ------------------------------------------------------------------------------------------------------ */

static __global__ void note_result(double *to, const abar_loss *result)
{
    const abar_loss r = *result;
    to[0] = r.loss * (double)r.count;
    to[1] = (double)r.correct;
    to[2] = (double)r.count;
    to[3] = isfinite(r.loss) ? 1.0 : 0.0;
}

static abar_status note(abar_device *dev, double *to, const void *result)
{
    abar__cuda_launch(dev, note_result, dim3(1), dim3(1), 0, to, (const abar_loss *)result);
    return abar__cuda_status(dev);
}

/* Micro-batch i; each rank has one record more than `each`. */
__device__ static const double *result_at(const double *results, int64_t i, int64_t each)
{
    return results + (i / each * (each + 1) + i % each) * ABAR_RESULT_NUMBERS;
}

/* The sum of number k of all micro-batches, as join.c's total adds. */
__device__ static double tree_sum(const double *results, int64_t n, int64_t each, int k)
{
    double stack[LEVELS];
    int filled = 0;
    for (int64_t i = 0; i < n; i++) {
        stack[filled++] = result_at(results, i, each)[k];
        for (int m = abar__join_merges(n, i); m > 0; m--, filled--) stack[filled - 2] += stack[filled - 1];
    }
    return stack[0];
}

/* Four threads: three sums, and what only has to be found. */
static __global__ void total_results(abar__cuda_losses *seen, const double *results, int64_t n, int64_t each)
{
    const int k = (int)threadIdx.x;
    if (k < 3) {
        const double sum = tree_sum(results, n, each, k);
        if (k == 0) seen->loss = sum;
        if (k == 1) seen->correct = (int64_t)sum;
        if (k == 2) seen->count = (int64_t)sum;
        return;
    }
    bool bad = false, stops = false;
    for (int64_t i = 0; i < n; i++) bad = bad || result_at(results, i, each)[3] == 0.0;
    for (int64_t r = 0; r < n / each; r++) stops = stops || results[(r * (each + 1) + each) * ABAR_RESULT_NUMBERS] != 0.0;
    seen->bad = bad;
    seen->stops = stops;
}

static abar_status total(abar_device *dev, void *losses, const double *results, int64_t n, int64_t each)
{
    abar__cuda_launch(dev, total_results, dim3(1), dim3(4), 0, (abar__cuda_losses *)losses, results, n, each);
    return abar__cuda_status(dev);
}

/* ---- pending statistics ------------------------------------------------------------------------------------------- */

/* Where element i of a packed lower triangle is in the square of n rows. */
__device__ static int64_t triangle_place(int64_t i, int64_t n)
{
    int64_t row = (int64_t)((sqrt(8.0 * (double)i + 1.0) - 1.0) / 2.0); /* but for rounding */
    while (row * (row + 1) / 2 > i) row--;
    while ((row + 1) * (row + 2) / 2 <= i) row++;
    return row * n + i - row * (row + 1) / 2;
}

static int64_t span_count(const abar__pending_span *s)
{
    return s->kind == ABAR_PENDING_TRIANGLE ? s->n * (s->n + 1) / 2 : s->n;
}

static __global__ void __launch_bounds__(THREADS) pack_floats(float *from, double *packed, int64_t count, int64_t n)
{
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, threads = (int64_t)gridDim.x * THREADS;
    for (int64_t i = thread; i < count; i += threads) {
        const int64_t at = n ? triangle_place(i, n) : i;
        packed[i] = (double)from[at];
        from[at] = 0.0f;
    }
}

static __global__ void __launch_bounds__(THREADS) unpack_floats(float *to, const double *packed, int64_t count, int64_t n)
{
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, threads = (int64_t)gridDim.x * THREADS;
    for (int64_t i = thread; i < count; i += threads) to[n ? triangle_place(i, n) : i] = (float)packed[i];
}

static __global__ void __launch_bounds__(THREADS) pack_doubles(double *from, double *packed, int64_t count)
{
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, threads = (int64_t)gridDim.x * THREADS;
    for (int64_t i = thread; i < count; i += threads) {
        packed[i] = from[i];
        from[i] = 0.0;
    }
}

static abar_status pack_span(abar_device *dev, const abar__pending_span *s, double *packed)
{
    const int64_t count = span_count(s), square = s->kind == ABAR_PENDING_TRIANGLE ? s->n : 0;
    if (count == 0) return ABAR_OK;
    if (s->kind == ABAR_PENDING_DOUBLES)
        abar__cuda_launch(dev, pack_doubles, blocks_for(dev, count), dim3(THREADS), 0, (double *)s->memory, packed + s->at,
                          count);
    else
        abar__cuda_launch(dev, pack_floats, blocks_for(dev, count), dim3(THREADS), 0, (float *)s->memory, packed + s->at, count,
                          square);
    return abar__cuda_status(dev);
}

static abar_status unpack_span(abar_device *dev, const abar__pending_span *s, const double *packed)
{
    const int64_t count = span_count(s), square = s->kind == ABAR_PENDING_TRIANGLE ? s->n : 0;
    if (count == 0) return ABAR_OK;
    if (s->kind == ABAR_PENDING_DOUBLES)
        return dev->ops->stream->copy_bytes(dev, s->memory, packed + s->at, (size_t)count * sizeof(double));
    abar__cuda_launch(dev, unpack_floats, blocks_for(dev, count), dim3(THREADS), 0, (float *)s->memory, packed + s->at, count,
                      square);
    return abar__cuda_status(dev);
}

/* ---- running statistics ------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
    average_batches(int64_t length, double momentum, float *running, const char *batches, int64_t n, size_t stride)
{
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, threads = (int64_t)gridDim.x * THREADS;
    for (int64_t i = thread; i < length; i += threads) {
        float value = running[i];
        for (int64_t b = 0; b < n; b++) {
            const float batch = ((const float *)(batches + (size_t)b * stride))[i];
            value = (float)((1.0 - momentum) * (double)value + momentum * (double)batch);
        }
        running[i] = value;
    }
}

static abar_status average(abar_device *dev, int64_t length, double momentum, void *running, const void *batches, int64_t n,
                           size_t stride)
{
    if (length == 0) return ABAR_OK;
    abar__cuda_launch(dev, average_batches, blocks_for(dev, length), dim3(THREADS), 0, length, momentum, (float *)running,
                      (const char *)batches, n, stride);
    return abar__cuda_status(dev);
}

/* ---- counters ----------------------------------------------------------------------------------------------------- */

/* Thread i: counter i. */
static __global__ void count_all(int64_t *counters, const int64_t *before, const int64_t *all, int n, int ranks)
{
    const int i = (int)threadIdx.x;
    if (i < n) counters[i] = abar__join_counted(before[i], all, i, n, ranks);
}

static abar_status count(abar_device *dev, int64_t *counters, const int64_t *before, const int64_t *all, int n, int ranks)
{
    abar__cuda_launch(dev, count_all, dim3(1), dim3(32), 0, counters, before, all, n, ranks);
    return abar__cuda_status(dev);
}

extern "C" const abar__join_ops abar__cuda_join = {
    .add = add,
    .note = note,
    .total = total,
    .pack = pack_span,
    .unpack = unpack_span,
    .average = average,
    .count = count,
};
