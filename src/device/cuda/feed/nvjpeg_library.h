/* nvJPEG, loaded when a feed first needs it. The few types and functions that are called are declared here, so that a build
 * needs no header of the library. Values are those of its binary interface, the same since CUDA 10. */
#ifndef ABAR_CUDA_NVJPEG_LIBRARY_H
#define ABAR_CUDA_NVJPEG_LIBRARY_H

#include "device/cuda/core/blas_library.h"
#include "device/cuda/core/cuda_impl.h"

typedef void *abar__nvjpeg, *abar__nvjpeg_state; /* of the library; of what is being decoded */

/* Where an image goes: interleaved formats use the first plane. */
typedef struct abar__nvjpeg_image {
    unsigned char *plane[4];
    size_t pitch[4]; /* bytes from row to row */
} abar__nvjpeg_image;

enum { ABAR_NVJPEG_OK = 0 };
enum { ABAR_NVJPEG_RGB_INTERLEAVED = 5 };
enum { ABAR_NVJPEG_DEFAULT = 0, ABAR_NVJPEG_GPU_HYBRID = 2, ABAR_NVJPEG_HARDWARE = 3 }; /* back ends of the library */

typedef struct abar__nvjpeg_api {
    int (*nvjpegCreateEx)(int backend, void *device_allocator, void *pinned_allocator, unsigned flags, abar__nvjpeg *out);
    int (*nvjpegDestroy)(abar__nvjpeg handle);
    int (*nvjpegJpegStateCreate)(abar__nvjpeg handle, abar__nvjpeg_state *out);
    int (*nvjpegJpegStateDestroy)(abar__nvjpeg_state state);
    int (*nvjpegDecode)(abar__nvjpeg handle, abar__nvjpeg_state state, const unsigned char *file, size_t bytes, int format,
                        abar__nvjpeg_image *to, cudaStream_t stream);
    int (*nvjpegDecodeBatchedInitialize)(abar__nvjpeg handle, abar__nvjpeg_state state, int batch, int threads, int format);
    int (*nvjpegDecodeBatched)(abar__nvjpeg handle, abar__nvjpeg_state state, const unsigned char *const *files,
                               const size_t *bytes, abar__nvjpeg_image *to, cudaStream_t stream);
} abar__nvjpeg_api;

/* ABAR_E_BACKEND names what is missing. */
abar_status abar__nvjpeg_load(abar_context *ctx, abar__nvjpeg_api *out);

#endif
