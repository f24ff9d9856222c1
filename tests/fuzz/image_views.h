/* What the targets of the image decoders share: views of one file, which must agree. */
#ifndef FUZZ_IMAGE_VIEWS_H
#define FUZZ_IMAGE_VIEWS_H

#include "image/image.h"

#include <stdlib.h>
#include <string.h>

#define FUZZ_PIXELS_MAX (1 << 14) /* a side of 128: larger images take long and show no more */

/* A box inside the image that depends on the bytes. */
static inline abar__image_box fuzz_box(const uint8_t *data, size_t size, const abar__image_header *header)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ data[i]) * 16777619u;
    abar__image_box box = {.height = 1 + (int32_t)(hash % (uint32_t)header->height)};
    box.width = 1 + (int32_t)(hash / 7 % (uint32_t)header->width);
    box.top = (int32_t)(hash / 31 % (uint32_t)(header->height - box.height + 1));
    box.left = (int32_t)(hash / 131 % (uint32_t)(header->width - box.width + 1));
    return box;
}

/* (3, height, width) planes of a box, resized to height x width; NULL: refused. */
static inline uint8_t *fuzz_read(abar__image_reader *reader, const uint8_t *data, size_t size, abar__image_box box,
                                 int32_t height, int32_t width)
{
    abar__image_fault fault = {.text = ""};
    abar__image_view view = {
        .crop = box, .height = height, .width = width, .window = {0, 0, height, width}, .filter = ABAR_IMAGE_BICUBIC};
    uint8_t *out = malloc(3 * (size_t)height * (size_t)width);
    if (!out) abort();
    if (abar__image_read(reader, data, size, &view, out, &fault)) return out;
    if (!fault.text[0]) abort();
    free(out);
    return NULL;
}

static inline void compare(const uint8_t *whole, const abar__image_header *header, const uint8_t *crop, abar__image_box box)
{
    size_t width = (size_t)header->width, plane = width * (size_t)header->height;
    for (size_t c = 0; c < 3; c++)
        for (int32_t y = 0; y < box.height; y++, crop += box.width)
            if (memcmp(crop, whole + c * plane + (size_t)(box.top + y) * width + (size_t)box.left, (size_t)box.width) != 0)
                abort();
}

static inline void read_views(const uint8_t *data, size_t size, const abar__image_header *header)
{
    abar_context *ctx;
    abar__image_reader *reader;
    if ((int64_t)header->width * header->height > FUZZ_PIXELS_MAX) return;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return;
    if (abar__image_reader_create(ctx, &reader) == ABAR_OK) {
        abar__image_box box = fuzz_box(data, size, header), all = {0, 0, header->height, header->width};
        uint8_t *whole = fuzz_read(reader, data, size, all, header->height, header->width);
        uint8_t *crop = fuzz_read(reader, data, size, box, box.height, box.width);
        if (whole && !crop) abort(); /* a crop needs no more than the whole */
        if (whole) compare(whole, header, crop, box);
        free(whole);
        free(crop);
        free(fuzz_read(reader, data, size, box, 9, 14));
    }
    abar__image_reader_destroy(reader);
    if (abar_context_memory(ctx).now != 0) abort();
    abar_context_destroy(ctx);
}

#endif
