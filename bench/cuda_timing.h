/* Shared by the kernel benchmarks: a failure ends the program with one line, and work is timed as training runs it, by replays
 * of a captured graph. */
#ifndef ABAR_BENCH_CUDA_TIMING_H
#define ABAR_BENCH_CUDA_TIMING_H

#include "device/cuda/core/cuda_impl.h"

#include <stdio.h>
#include <stdlib.h>

#define REPLAYS_MAX 64

static void stop_unless(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static void check(cudaError_t error) { stop_unless(error == cudaSuccess, cudaGetErrorString(error)); }
static void check(abar_device *dev, abar_status status) { stop_unless(status >= 0, abar_context_error(dev->ctx)); }

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Microseconds of one call: the median over replays of a graph of `calls` calls, after three untimed replays. before() runs
 * ahead of every replay and is not timed. */
template <class Call, class Before>
static double time_recorded(abar_device *dev, int calls, int replays, Call call, Before before)
{
    const abar__stream_ops *stream = dev->ops->stream;
    const cudaStream_t queue = abar__cuda_of(dev)->stream;
    void *recording;
    cudaEvent_t from, to;
    float ms[REPLAYS_MAX];
    stop_unless(replays <= REPLAYS_MAX, "too many replays");
    check(cudaEventCreate(&from));
    check(cudaEventCreate(&to));
    check(dev, stream->capture_begin(dev));
    for (int i = 0; i < calls; i++) check(dev, call());
    check(dev, stream->capture_end(dev, &recording));
    for (int i = -3; i < replays; i++) {
        before();
        check(cudaEventRecord(from, queue));
        check(dev, stream->replay(dev, recording));
        check(cudaEventRecord(to, queue));
        check(dev, abar_device_wait(dev));
        if (i >= 0) check(cudaEventElapsedTime(&ms[i], from, to));
    }
    qsort(ms, (size_t)replays, sizeof ms[0], by_size);
    stream->forget(dev, recording);
    cudaEventDestroy(from), cudaEventDestroy(to);
    return ms[replays / 2] * 1000.0 / calls;
}

template <class Call> static double time_recorded(abar_device *dev, int calls, int replays, Call call)
{
    return time_recorded(dev, calls, replays, call, [] {});
}

#endif
