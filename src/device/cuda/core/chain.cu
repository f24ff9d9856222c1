/* Where kernels may be chained (chain.h). */
#include "device/cuda/core/chain.h"

static bool may_precede(cudaGraphNode_t node)
{
    cudaGraphNodeType type;
    cudaLaunchAttributeValue together = {};
    return cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeKernel &&
           cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeCooperative, &together) == cudaSuccess &&
           !together.cooperative;
}

/* Work that joins several streams, copies and memory sets are waited for as a whole. */
extern "C" bool abar__cuda_can_chain(const abar_device *dev)
{
    const abar__cuda *cuda = abar__cuda_of(dev);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t *before = NULL;
    const cudaGraphEdgeData *edges = NULL;
    size_t count = 0;
    bool can = cuda->chains;
    if (can) can = cudaStreamGetCaptureInfo(cuda->stream, &status, NULL, NULL, &before, &edges, &count) == cudaSuccess;
    if (can && status != cudaStreamCaptureStatusNone) can = count == 1 && may_precede(before[0]);
    cudaGetLastError(); /* of a question that could not be answered */
    return can;
}
