/* cuBLASLt and cuDNN, one handle per device and stream. Each is loaded and opened on first use: a net without convolutions
 * never loads cuDNN. */
#include "device/cuda/nn/cuda_nn_handles.h"

abar_status abar__cuda_dnn_fail(abar_device *dev, cudnnStatus_t status, const char *what)
{
    return abar__fail(dev->ctx, ABAR_E_BACKEND, "device cuda: cuDNN: %s (%s)",
                      abar__dnn_api_of(dev)->cudnnGetErrorString(status), what);
}

static void close_libraries(abar_device *dev)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    abar__cuda_nn_state *s = (abar__cuda_nn_state *)cuda->nn;
    if (!s) return;
    if (s->convolutions) s->forget_convolutions(dev, s->convolutions);
    if (s->races) s->forget_races(dev, s->races);
    abar__autotune_cache_close(s->products);
    abar__autotune_cache_close(s->autotune);
    if (s->side) s->dnn_api.cudnnDestroy(s->side);
    if (s->main) s->dnn_api.cudnnDestroy(s->main);
    if (s->blas) s->blas_api.cublasLtDestroy(s->blas);
    abar__free(dev->ctx, s, sizeof *s);
    cuda->nn = NULL;
    cuda->nn_close = NULL;
}

static abar_status state_of(abar_device *dev, abar__cuda_nn_state **out)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    if (!cuda->nn) {
        ABAR_TRY(abar__alloc(dev->ctx, sizeof(abar__cuda_nn_state), &cuda->nn));
        cuda->nn_close = close_libraries;
    }
    *out = (abar__cuda_nn_state *)cuda->nn;
    return ABAR_OK;
}

abar_status abar__cuda_blas(abar_device *dev, abar__cuda_nn_state **out)
{
    ABAR_TRY(state_of(dev, out));
    abar__cuda_nn_state *s = *out;
    if (s->blas) return ABAR_OK;
    ABAR_TRY(abar__blas_load(dev->ctx, &s->blas_api));
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    cublasStatus_t status = s->blas_api.cublasLtCreate(&s->blas);
    if (status == CUBLAS_STATUS_SUCCESS) return ABAR_OK;
    s->blas = NULL;
    return abar__fail(dev->ctx, ABAR_E_BACKEND, "device cuda: cuBLASLt does not start: %s",
                      s->blas_api.cublasLtGetStatusString(status));
}

static abar_status open_dnn(abar_device *dev, const abar__dnn_api *api, cudaStream_t stream, cudnnHandle_t *out)
{
    cudnnHandle_t handle = NULL;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    DNN_TRY(dev, api->cudnnCreate(&handle));
    cudnnStatus_t status = api->cudnnSetStream(handle, stream);
    if (status != CUDNN_STATUS_SUCCESS) {
        api->cudnnDestroy(handle);
        return abar__cuda_dnn_fail(dev, status, "cudnnSetStream");
    }
    *out = handle;
    return ABAR_OK;
}

abar_status abar__cuda_dnn(abar_device *dev, abar__cuda_nn_state **out)
{
    const abar__cuda *cuda = abar__cuda_of(dev);
    ABAR_TRY(state_of(dev, out));
    abar__cuda_nn_state *s = *out;
    if (!s->main) {
        ABAR_TRY(abar__dnn_load(dev->ctx, &s->dnn_api));
        ABAR_TRY(open_dnn(dev, &s->dnn_api, cuda->stream, &s->main));
        s->main_stream = cuda->stream;
    }
    if (!s->side) ABAR_TRY(open_dnn(dev, &s->dnn_api, cuda->side_stream, &s->side));
    if (s->main_stream != cuda->stream) {
        DNN_TRY(dev, s->dnn_api.cudnnSetStream(s->main, cuda->stream));
        s->main_stream = cuda->stream;
    }
    return ABAR_OK;
}
