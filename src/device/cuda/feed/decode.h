/* JPEG files to rows of a batch: nvJPEG decodes them on its own stream, then the part that a row needs is resampled. */
#ifndef ABAR_CUDA_DECODE_H
#define ABAR_CUDA_DECODE_H

#include "device/cuda/core/core_impl.h"

typedef struct abar__decoder abar__decoder;

/* For batches of at most `batch` rows of side x side pixels. Fails where nvJPEG is missing. */
abar_status abar__decoder_create(abar_device *dev, int64_t batch, int64_t side, abar__decoder **out);
void abar__decoder_destroy(abar_device *dev, abar__decoder *d);
/* Row i of the n files into out + i * 3 * side * side, (3, side, side) bytes in device memory, in the order of `stream`. Rows
 * without a file are left alone. The files' memory is free when it returns. Waits for the decoding of the batch before. */
abar_status abar__decoder_run(abar_device *dev, abar__decoder *d, const abar_encoded *files, int64_t n, uint8_t *out,
                              cudaStream_t stream);

#endif
