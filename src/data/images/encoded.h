/* Rows of a batch that a device decodes: the file as it is, and how its pixels are resampled. */
#ifndef ABAR_IMAGES_ENCODED_H
#define ABAR_IMAGES_ENCODED_H

#include "image/image.h"

#include "abar/device.h"

/* Memory of one row, which grows to the largest file seen. */
typedef struct abar__encoded_block {
    void *memory;
    size_t bytes;
} abar__encoded_block;

/* Whether a device can decode n bytes of a file with this header: baseline JPEG, YCbCr, chroma at full or half resolution. What
 * it cannot is decoded on the host. */
bool abar__encoded_fits(const abar__image_header *header, const uint8_t *file, size_t n);
/* Fills out from n bytes of a file and the view of it that the row has. False: there is no memory. */
bool abar__encoded_make(abar_context *ctx, const uint8_t *file, size_t n, const abar__image_header *header,
                        const abar__image_view *view, abar__encoded_block *block, abar_encoded *out);
void abar__encoded_release(abar_context *ctx, abar__encoded_block *block);

#endif
