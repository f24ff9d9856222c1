/* cuBLASLt and cuDNN: opened by the first operation that needs one of them, kept in the device, closed with it. */
#ifndef ABAR_CUDA_NN_HANDLES_H
#define ABAR_CUDA_NN_HANDLES_H

#include "device/cuda/nn/cuda_libraries.h"
#include "device/cuda/nn/cuda_nn.h"

extern "C" {
#include "device/autotune_cache.h"
}

/* The libraries' state for one device. */
typedef struct abar__cuda_nn_state {
    abar__blas_api blas_api; /* loaded where blas is open */
    cublasLtHandle_t blas;
    abar__dnn_api dnn_api;    /* loaded where main or side is open */
    cudnnHandle_t main, side; /* cuDNN, one for each of the device's streams */
    cudaStream_t main_stream; /* the stream that main was last set to */
    void *convolutions;       /* the plans that conv/dnn_choice.cu has chosen so far, and how to release them */
    void (*forget_convolutions)(abar_device *dev, void *convolutions);
    void *races; /* the same for conv/race.cu */
    void (*forget_races)(abar_device *dev, void *races);
    bool asked;                     /* autotune has been opened, or there is none */
    abar__autotune_cache *autotune; /* measured by earlier processes and this one; NULL: there is no cache */
    abar__autotune_cache *products; /* the same of linear layers, opened by the first one (linear_choice.cu) */
} abar__cuda_nn_state;

extern "C" {
/* The device's state, with blas open. */
abar_status abar__cuda_blas(abar_device *dev, abar__cuda_nn_state **out);

/* The device's state, with main and side open and set to the device's current streams. */
abar_status abar__cuda_dnn(abar_device *dev, abar__cuda_nn_state **out);

/* "device cuda: cuDNN: REASON (what)"; the device's cuDNN is loaded. */
abar_status abar__cuda_dnn_fail(abar_device *dev, cudnnStatus_t status, const char *what);
}

/* The functions of the libraries; they are loaded once abar__cuda_blas or abar__cuda_dnn has succeeded. */
static inline const abar__blas_api *abar__blas_api_of(const abar_device *dev)
{
    return &((const abar__cuda_nn_state *)abar__cuda_of(dev)->nn)->blas_api;
}

static inline const abar__dnn_api *abar__dnn_api_of(const abar_device *dev)
{
    return &((const abar__cuda_nn_state *)abar__cuda_of(dev)->nn)->dnn_api;
}

/* Both libraries need workspaces with a larger alignment than the arena's: request ABAR_CUDA_ALIGN bytes more, and begin
 * here. */
#define ABAR_CUDA_ALIGN ((size_t)256)

static inline char *abar__cuda_workspace(void *scratch)
{
    return (char *)(((uintptr_t)scratch + ABAR_CUDA_ALIGN - 1) / ABAR_CUDA_ALIGN * ABAR_CUDA_ALIGN);
}

#define DNN_TRY(dev, call)                                                                            \
    do {                                                                                              \
        cudnnStatus_t dnn_status = (call);                                                            \
        if (dnn_status != CUDNN_STATUS_SUCCESS) return abar__cuda_dnn_fail((dev), dnn_status, #call); \
    } while (0)

#endif
