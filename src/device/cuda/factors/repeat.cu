/* Repeating rounds of launches (repeat.h). */
#include "device/cuda/factors/repeat.h"
#include "device/cuda/stats/stats.h"

/* The host looks after every round. */
extern "C" bool abar__cuda_repeat_here(abar_device *dev, const abar__cuda_rounds *r)
{
    const abar__cuda_again again = {};
    int32_t more = 0;
    r->begin(dev, r->user, again);
    while (abar__cuda_carry(dev, &more, r->more, sizeof more) && more) r->round(dev, r->user, again);
    return more == 0;
}

/* The launches of a round into a graph of their own, by way of a stream that is in no other capture: one that has forked from
 * the recorded stream stays in its capture even when joined again. */
static abar_status record_round(abar_device *dev, const abar__cuda_rounds *r, abar__cuda_again again, cudaGraph_t body)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    const cudaStream_t stream = cuda->stream;
    CUDA_TRY(dev, cudaStreamBeginCaptureToGraph(r->body, body, NULL, NULL, 0, cudaStreamCaptureModeThreadLocal));
    cuda->stream = r->body;
    r->round(dev, r->user, again);
    cuda->stream = stream;
    CUDA_TRY(dev, cudaStreamEndCapture(r->body, &body));
    return abar__cuda_status(dev);
}

/* Into the recording under way: what begins, and behind it a node that repeats the round while a kernel says so. */
static abar_status repeat_recorded(abar_device *dev, const abar__cuda_rounds *r)
{
    const cudaStream_t stream = abar__cuda_of(dev)->stream;
    cudaStreamCaptureStatus status;
    cudaGraph_t graph = NULL;
    CUDA_TRY(dev, cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL));
    abar__cuda_again again = {true, {}};
    CUDA_TRY(dev, cudaGraphConditionalHandleCreate(&again.handle, graph, 0, cudaGraphCondAssignDefault));
    r->begin(dev, r->user, again);

    const cudaGraphNode_t *last = NULL; /* what the stream would make its next node depend on */
    const cudaGraphEdgeData *edges = NULL;
    size_t n = 0;
    CUDA_TRY(dev, cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, &last, &edges, &n));
    cudaGraphNodeParams repeat = {};
    repeat.type = cudaGraphNodeTypeConditional;
    repeat.conditional.handle = again.handle;
    repeat.conditional.type = cudaGraphCondTypeWhile;
    repeat.conditional.size = 1;
    cudaGraphNode_t node = NULL;
    CUDA_TRY(dev, cudaGraphAddNode(&node, graph, last, edges, n, &repeat));
    CUDA_TRY(dev, cudaStreamUpdateCaptureDependencies(stream, &node, NULL, 1, cudaStreamSetCaptureDependencies));
    return record_round(dev, r, again, repeat.conditional.phGraph_out[0]);
}

extern "C" abar_status abar__cuda_repeat(abar_device *dev, const abar__cuda_rounds *r)
{
    if (abar__cuda_of(dev)->capturing) return repeat_recorded(dev, r);
    abar__cuda_repeat_here(dev, r);
    return abar__cuda_status(dev);
}
