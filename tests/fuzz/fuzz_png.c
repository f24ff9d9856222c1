/* Any bytes into the PNG decoder: whole, a crop of it and a resized crop. A crop's pixels are those of the whole image. Chunks
 * that were changed get the right sum again: else nearly all changes would end there. */
#include "image_views.h"

#include <zlib.h>

enum { SIGNATURE = 8, AROUND = 12 }; /* length, type and sum of a chunk */

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t read_u32(const uint8_t *p) { return (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3]; }

static void repair_sums(uint8_t *data, size_t size)
{
    for (size_t at = SIGNATURE; at + AROUND <= size;) {
        const size_t n = read_u32(data + at);
        if (n > size - at - AROUND) return;
        const uLong sum = crc32_z(0, data + at + 4, n + 4);
        for (int i = 0; i < 4; i++) data[at + 8 + n + (size_t)i] = (uint8_t)(sum >> (24 - 8 * i));
        at += AROUND + n;
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    size = LLVMFuzzerMutate(data, size, max_size);
    if (seed % 8) repair_sums(data, size);
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar__image_header header;
    abar__image_fault fault;
    if (abar__image_look(data, size, &header, &fault) && header.format == ABAR_IMAGE_PNG) read_views(data, size, &header);
    return 0;
}
