/* Libraries that are loaded when an operation first needs them, not when the program starts: abar built with CUDA runs on
 * machines without them. This is cuBLASLt, and how such a library is loaded. The functions that abar calls are a table of
 * pointers with the library's own names. */
#ifndef ABAR_CUDA_BLAS_LIBRARY_H
#define ABAR_CUDA_BLAS_LIBRARY_H

extern "C" {
#include "base/base_impl.h"
}

#include <cublasLt.h>

typedef struct abar__blas_api {
    decltype(&::cublasLtCreate) cublasLtCreate;
    decltype(&::cublasLtDestroy) cublasLtDestroy;
    decltype(&::cublasLtGetStatusString) cublasLtGetStatusString;
    decltype(&::cublasLtGetVersion) cublasLtGetVersion;
    decltype(&::cublasLtMatmul) cublasLtMatmul;
    decltype(&::cublasLtMatmulAlgoCheck) cublasLtMatmulAlgoCheck;
    decltype(&::cublasLtMatmulAlgoConfigSetAttribute) cublasLtMatmulAlgoConfigSetAttribute;
    decltype(&::cublasLtMatmulAlgoGetHeuristic) cublasLtMatmulAlgoGetHeuristic;
    decltype(&::cublasLtMatmulDescCreate) cublasLtMatmulDescCreate;
    decltype(&::cublasLtMatmulDescDestroy) cublasLtMatmulDescDestroy;
    decltype(&::cublasLtMatmulDescSetAttribute) cublasLtMatmulDescSetAttribute;
    decltype(&::cublasLtMatmulPreferenceCreate) cublasLtMatmulPreferenceCreate;
    decltype(&::cublasLtMatmulPreferenceDestroy) cublasLtMatmulPreferenceDestroy;
    decltype(&::cublasLtMatmulPreferenceSetAttribute) cublasLtMatmulPreferenceSetAttribute;
    decltype(&::cublasLtMatrixLayoutCreate) cublasLtMatrixLayoutCreate;
    decltype(&::cublasLtMatrixLayoutDestroy) cublasLtMatrixLayoutDestroy;
    decltype(&::cublasLtMatrixLayoutSetAttribute) cublasLtMatrixLayoutSetAttribute;
} abar__blas_api;

/* A function of a library, and where in the table its pointer goes. */
typedef struct abar__library_symbol {
    const char *name;
    size_t offset;
} abar__library_symbol;

extern "C" {
/* ABAR_E_BACKEND names the library that is missing, too old, or broken. Loaded libraries stay until the process ends. */
abar_status abar__blas_load(abar_context *ctx, abar__blas_api *out);

/* The two halves of it, for other libraries: file is what the loader looks for, product what people call it. */
abar_status abar__library_open(abar_context *ctx, const char *file, const char *product, void **out);
abar_status abar__library_fill(abar_context *ctx, void *library, const char *product, const abar__library_symbol *symbols,
                               size_t n, void *table);
/* Opens cuBLASLt without its table, for libraries that need it and may look for it in fewer folders. */
abar_status abar__blas_open(abar_context *ctx, void **out);
}

#define ABAR_TEXT_OF(number) #number
#define ABAR_NAME_WITH(name, major) name ABAR_TEXT_OF(major)

#endif
