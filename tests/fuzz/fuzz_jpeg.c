/* Any bytes into the JPEG decoder: whole, a crop of it and a resized crop. A crop's pixels are those of the whole image. */
#include "image_views.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar__image_header header;
    abar__image_fault fault;
    if (abar__image_look(data, size, &header, &fault) && header.format == ABAR_IMAGE_JPEG) read_views(data, size, &header);
    return 0;
}
