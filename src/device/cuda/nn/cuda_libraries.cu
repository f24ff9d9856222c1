/* Loads cuBLASLt and cuDNN by the names of the versions that abar was compiled for. */
#include "device/cuda/nn/cuda_libraries.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define TEXT_OF(number) #number
#define NAME_WITH(name, major) name TEXT_OF(major)

typedef struct symbol {
    const char *name;
    size_t offset; /* of its pointer in the table */
} symbol;

static const symbol blas_symbols[] = {
    {"cublasLtCreate", offsetof(abar__blas_api, cublasLtCreate)},
    {"cublasLtDestroy", offsetof(abar__blas_api, cublasLtDestroy)},
    {"cublasLtGetStatusString", offsetof(abar__blas_api, cublasLtGetStatusString)},
    {"cublasLtMatmul", offsetof(abar__blas_api, cublasLtMatmul)},
    {"cublasLtMatmulAlgoGetHeuristic", offsetof(abar__blas_api, cublasLtMatmulAlgoGetHeuristic)},
    {"cublasLtMatmulDescCreate", offsetof(abar__blas_api, cublasLtMatmulDescCreate)},
    {"cublasLtMatmulDescDestroy", offsetof(abar__blas_api, cublasLtMatmulDescDestroy)},
    {"cublasLtMatmulDescSetAttribute", offsetof(abar__blas_api, cublasLtMatmulDescSetAttribute)},
    {"cublasLtMatmulPreferenceCreate", offsetof(abar__blas_api, cublasLtMatmulPreferenceCreate)},
    {"cublasLtMatmulPreferenceDestroy", offsetof(abar__blas_api, cublasLtMatmulPreferenceDestroy)},
    {"cublasLtMatmulPreferenceSetAttribute", offsetof(abar__blas_api, cublasLtMatmulPreferenceSetAttribute)},
    {"cublasLtMatrixLayoutCreate", offsetof(abar__blas_api, cublasLtMatrixLayoutCreate)},
    {"cublasLtMatrixLayoutDestroy", offsetof(abar__blas_api, cublasLtMatrixLayoutDestroy)},
};

static const symbol dnn_symbols[] = {
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

static_assert(sizeof(abar__blas_api) == sizeof blas_symbols / sizeof *blas_symbols * sizeof(void *), "one symbol per pointer");
static_assert(sizeof(abar__dnn_api) == sizeof dnn_symbols / sizeof *dnn_symbols * sizeof(void *), "one symbol per pointer");

/* Never closed: the libraries register kernels with the CUDA runtime, which must not lose them. */
static abar_status load(abar_context *ctx, const char *file, const char *product, void **out)
{
    *out = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (*out) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_BACKEND, "device cuda: cannot load %s (%s), install it or add its folder to LD_LIBRARY_PATH",
                      product, dlerror());
}

static abar_status fill(abar_context *ctx, void *library, const char *product, const symbol *symbols, size_t n, void *table)
{
    for (size_t i = 0; i < n; i++) {
        void *function = dlsym(library, symbols[i].name);
        if (!function)
            return abar__fail(ctx, ABAR_E_BACKEND, "device cuda: this %s has no %s, install a newer one", product,
                              symbols[i].name);
        memcpy((char *)table + symbols[i].offset, &function, sizeof function);
    }
    return ABAR_OK;
}

static const char blas_file[] = NAME_WITH("libcublasLt.so.", CUBLAS_VER_MAJOR);
static const char blas_product[] = NAME_WITH("cuBLASLt ", CUBLAS_VER_MAJOR);
static const char dnn_file[] = NAME_WITH("libcudnn.so.", CUDNN_MAJOR), dnn_product[] = NAME_WITH("cuDNN ", CUDNN_MAJOR);

abar_status abar__blas_load(abar_context *ctx, abar__blas_api *out)
{
    void *library;
    ABAR_TRY(load(ctx, blas_file, blas_product, &library));
    return fill(ctx, library, blas_product, blas_symbols, sizeof blas_symbols / sizeof *blas_symbols, out);
}

/* cuDNN loads cuBLASLt too, but may look for it in fewer folders than abar does: it takes the one that is loaded already. */
abar_status abar__dnn_load(abar_context *ctx, abar__dnn_api *out)
{
    void *blas, *library;
    ABAR_TRY(load(ctx, blas_file, blas_product, &blas));
    ABAR_TRY(load(ctx, dnn_file, dnn_product, &library));
    return fill(ctx, library, dnn_product, dnn_symbols, sizeof dnn_symbols / sizeof *dnn_symbols, out);
}
