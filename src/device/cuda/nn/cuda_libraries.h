/* cuBLASLt and cuDNN are loaded when an operation first needs them, not when the program starts: abar built with CUDA runs on
 * machines that have neither. The functions it calls are tables of pointers with the libraries' own names. */
#ifndef ABAR_CUDA_LIBRARIES_H
#define ABAR_CUDA_LIBRARIES_H

extern "C" {
#include "base/base_impl.h"
}

#include <cublasLt.h>
#include <cudnn.h>

typedef struct abar__blas_api {
    decltype(&::cublasLtCreate) cublasLtCreate;
    decltype(&::cublasLtDestroy) cublasLtDestroy;
    decltype(&::cublasLtGetStatusString) cublasLtGetStatusString;
    decltype(&::cublasLtMatmul) cublasLtMatmul;
    decltype(&::cublasLtMatmulAlgoGetHeuristic) cublasLtMatmulAlgoGetHeuristic;
    decltype(&::cublasLtMatmulDescCreate) cublasLtMatmulDescCreate;
    decltype(&::cublasLtMatmulDescDestroy) cublasLtMatmulDescDestroy;
    decltype(&::cublasLtMatmulDescSetAttribute) cublasLtMatmulDescSetAttribute;
    decltype(&::cublasLtMatmulPreferenceCreate) cublasLtMatmulPreferenceCreate;
    decltype(&::cublasLtMatmulPreferenceDestroy) cublasLtMatmulPreferenceDestroy;
    decltype(&::cublasLtMatmulPreferenceSetAttribute) cublasLtMatmulPreferenceSetAttribute;
    decltype(&::cublasLtMatrixLayoutCreate) cublasLtMatrixLayoutCreate;
    decltype(&::cublasLtMatrixLayoutDestroy) cublasLtMatrixLayoutDestroy;
} abar__blas_api;

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
/* ABAR_E_BACKEND names the library that is missing, too old, or broken. Loaded libraries stay until the process ends. */
abar_status abar__blas_load(abar_context *ctx, abar__blas_api *out);
abar_status abar__dnn_load(abar_context *ctx, abar__dnn_api *out);
}

#endif
