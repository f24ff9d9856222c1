/* Loads cuBLASLt by the name of the version that abar was compiled for. */
#include "device/cuda/core/blas_library.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static const abar__library_symbol symbols[] = {
    {"cublasLtCreate", offsetof(abar__blas_api, cublasLtCreate)},
    {"cublasLtDestroy", offsetof(abar__blas_api, cublasLtDestroy)},
    {"cublasLtGetStatusString", offsetof(abar__blas_api, cublasLtGetStatusString)},
    {"cublasLtGetVersion", offsetof(abar__blas_api, cublasLtGetVersion)},
    {"cublasLtMatmul", offsetof(abar__blas_api, cublasLtMatmul)},
    {"cublasLtMatmulAlgoCheck", offsetof(abar__blas_api, cublasLtMatmulAlgoCheck)},
    {"cublasLtMatmulAlgoConfigSetAttribute", offsetof(abar__blas_api, cublasLtMatmulAlgoConfigSetAttribute)},
    {"cublasLtMatmulAlgoGetHeuristic", offsetof(abar__blas_api, cublasLtMatmulAlgoGetHeuristic)},
    {"cublasLtMatmulDescCreate", offsetof(abar__blas_api, cublasLtMatmulDescCreate)},
    {"cublasLtMatmulDescDestroy", offsetof(abar__blas_api, cublasLtMatmulDescDestroy)},
    {"cublasLtMatmulDescSetAttribute", offsetof(abar__blas_api, cublasLtMatmulDescSetAttribute)},
    {"cublasLtMatmulPreferenceCreate", offsetof(abar__blas_api, cublasLtMatmulPreferenceCreate)},
    {"cublasLtMatmulPreferenceDestroy", offsetof(abar__blas_api, cublasLtMatmulPreferenceDestroy)},
    {"cublasLtMatmulPreferenceSetAttribute", offsetof(abar__blas_api, cublasLtMatmulPreferenceSetAttribute)},
    {"cublasLtMatrixLayoutCreate", offsetof(abar__blas_api, cublasLtMatrixLayoutCreate)},
    {"cublasLtMatrixLayoutDestroy", offsetof(abar__blas_api, cublasLtMatrixLayoutDestroy)},
    {"cublasLtMatrixLayoutSetAttribute", offsetof(abar__blas_api, cublasLtMatrixLayoutSetAttribute)},
};

static_assert(sizeof(abar__blas_api) == sizeof symbols / sizeof *symbols * sizeof(void *), "one symbol per pointer");

static const char product[] = ABAR_NAME_WITH("cuBLASLt ", CUBLAS_VER_MAJOR);

/* Never closed: the libraries register kernels with the CUDA runtime, which must not lose them. */
abar_status abar__library_open(abar_context *ctx, const char *file, const char *name, void **out)
{
    *out = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (*out) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_BACKEND, "device cuda: cannot load %s (%s), install it or add its folder to LD_LIBRARY_PATH",
                      name, dlerror());
}

abar_status abar__library_fill(abar_context *ctx, void *library, const char *name, const abar__library_symbol *list, size_t n,
                               void *table)
{
    for (size_t i = 0; i < n; i++) {
        void *function = dlsym(library, list[i].name);
        if (!function)
            return abar__fail(ctx, ABAR_E_BACKEND, "device cuda: this %s has no %s, install a newer one", name, list[i].name);
        memcpy((char *)table + list[i].offset, &function, sizeof function);
    }
    return ABAR_OK;
}

abar_status abar__blas_open(abar_context *ctx, void **out)
{
    return abar__library_open(ctx, ABAR_NAME_WITH("libcublasLt.so.", CUBLAS_VER_MAJOR), product, out);
}

abar_status abar__blas_load(abar_context *ctx, abar__blas_api *out)
{
    void *library;
    ABAR_TRY(abar__blas_open(ctx, &library));
    return abar__library_fill(ctx, library, product, symbols, sizeof symbols / sizeof *symbols, out);
}
