/* Loads nvJPEG by the name of the CUDA version that abar was compiled for. */
#include "device/cuda/feed/nvjpeg_library.h"

#include <stddef.h>

static const abar__library_symbol symbols[] = {
    {"nvjpegCreateEx", offsetof(abar__nvjpeg_api, nvjpegCreateEx)},
    {"nvjpegDestroy", offsetof(abar__nvjpeg_api, nvjpegDestroy)},
    {"nvjpegJpegStateCreate", offsetof(abar__nvjpeg_api, nvjpegJpegStateCreate)},
    {"nvjpegJpegStateDestroy", offsetof(abar__nvjpeg_api, nvjpegJpegStateDestroy)},
    {"nvjpegDecode", offsetof(abar__nvjpeg_api, nvjpegDecode)},
    {"nvjpegDecodeBatchedInitialize", offsetof(abar__nvjpeg_api, nvjpegDecodeBatchedInitialize)},
    {"nvjpegDecodeBatched", offsetof(abar__nvjpeg_api, nvjpegDecodeBatched)},
};

static_assert(sizeof(abar__nvjpeg_api) == sizeof symbols / sizeof *symbols * sizeof(void *), "one symbol per pointer");

static const char product[] = ABAR_NAME_WITH("nvJPEG ", __CUDACC_VER_MAJOR__);

abar_status abar__nvjpeg_load(abar_context *ctx, abar__nvjpeg_api *out)
{
    void *library;
    ABAR_TRY(abar__library_open(ctx, ABAR_NAME_WITH("libnvjpeg.so.", __CUDACC_VER_MAJOR__), product, &library));
    return abar__library_fill(ctx, library, product, symbols, sizeof symbols / sizeof *symbols, out);
}
