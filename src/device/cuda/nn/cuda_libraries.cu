/* Loads cuDNN by the name of the version that abar was compiled for. */
#include "device/cuda/nn/cuda_libraries.h"

#include <stddef.h>

static const abar__library_symbol symbols[] = {
    {"cudnnCreate", offsetof(abar__dnn_api, cudnnCreate)},
    {"cudnnDestroy", offsetof(abar__dnn_api, cudnnDestroy)},
    {"cudnnGetErrorString", offsetof(abar__dnn_api, cudnnGetErrorString)},
    {"cudnnGetVersion", offsetof(abar__dnn_api, cudnnGetVersion)},
    {"cudnnSetStream", offsetof(abar__dnn_api, cudnnSetStream)},
    {"cudnnBackendCreateDescriptor", offsetof(abar__dnn_api, cudnnBackendCreateDescriptor)},
    {"cudnnBackendDestroyDescriptor", offsetof(abar__dnn_api, cudnnBackendDestroyDescriptor)},
    {"cudnnBackendExecute", offsetof(abar__dnn_api, cudnnBackendExecute)},
    {"cudnnBackendFinalize", offsetof(abar__dnn_api, cudnnBackendFinalize)},
    {"cudnnBackendGetAttribute", offsetof(abar__dnn_api, cudnnBackendGetAttribute)},
    {"cudnnBackendSetAttribute", offsetof(abar__dnn_api, cudnnBackendSetAttribute)},
};

static_assert(sizeof(abar__dnn_api) == sizeof symbols / sizeof *symbols * sizeof(void *), "one symbol per pointer");

/* cuDNN loads cuBLASLt too, but may look for it in fewer folders than abar does: it takes the one that is loaded already. */
abar_status abar__dnn_load(abar_context *ctx, abar__dnn_api *out)
{
    static const char product[] = ABAR_NAME_WITH("cuDNN ", CUDNN_MAJOR);
    void *blas, *library;
    ABAR_TRY(abar__blas_open(ctx, &blas));
    ABAR_TRY(abar__library_open(ctx, ABAR_NAME_WITH("libcudnn.so.", CUDNN_MAJOR), product, &library));
    return abar__library_fill(ctx, library, product, symbols, sizeof symbols / sizeof *symbols, out);
}
