/* cuDNN, loaded when an operation first needs it, as cuBLASLt is (blas_library.h). */
#ifndef ABAR_CUDA_LIBRARIES_H
#define ABAR_CUDA_LIBRARIES_H

#include "device/cuda/core/blas_library.h"

#include <cudnn.h>

typedef struct abar__dnn_api {
    decltype(&::cudnnCreate) cudnnCreate;
    decltype(&::cudnnDestroy) cudnnDestroy;
    decltype(&::cudnnGetErrorString) cudnnGetErrorString;
    decltype(&::cudnnGetVersion) cudnnGetVersion;
    decltype(&::cudnnSetStream) cudnnSetStream;
    decltype(&::cudnnBackendCreateDescriptor) cudnnBackendCreateDescriptor;
    decltype(&::cudnnBackendDestroyDescriptor) cudnnBackendDestroyDescriptor;
    decltype(&::cudnnBackendExecute) cudnnBackendExecute;
    decltype(&::cudnnBackendFinalize) cudnnBackendFinalize;
    decltype(&::cudnnBackendGetAttribute) cudnnBackendGetAttribute;
    decltype(&::cudnnBackendSetAttribute) cudnnBackendSetAttribute;
} abar__dnn_api;

extern "C" {
abar_status abar__dnn_load(abar_context *ctx, abar__dnn_api *out); /* fails as abar__blas_load does */
}

#endif
