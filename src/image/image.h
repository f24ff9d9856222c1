/* Images: JPEG and PNG files in memory to 8-bit RGB pixels, cropped and resized with Pillow's bytes (docs/images.md).
 *
 * All functions are safe to call from several threads, each with a reader of its own. A failure is a text, not a status: it
 * names no file, because the caller knows it. */
#ifndef ABAR_IMAGE_H
#define ABAR_IMAGE_H

#include "base/base_impl.h"

#define ABAR_IMAGE_PIXELS_MAX 178956970 /* Pillow's refusal */
#define ABAR_IMAGE_SIDE_MAX 65500
#define ABAR_IMAGE_BYTES_MAX ((size_t)512 << 20)

typedef enum abar__image_format { ABAR_IMAGE_JPEG, ABAR_IMAGE_PNG } abar__image_format;
typedef enum abar__image_filter {
    ABAR_IMAGE_NEAREST = 1,
    ABAR_IMAGE_BILINEAR,
    ABAR_IMAGE_BICUBIC
} abar__image_filter; /* as abar_filter */

/* What the header says. */
typedef struct abar__image_header {
    abar__image_format format;
    int32_t width, height;
    int32_t components; /* in the file: 1 gray, 3, 4 CMYK; PNG: 1 to 4, alpha counted, palettes 3 */
    bool progressive;   /* JPEG */
} abar__image_header;

typedef struct abar__image_box {
    int32_t top, left, height, width;
} abar__image_box;

/* Why an image could not be read. memory: not the image's fault. */
typedef struct abar__image_fault {
    char text[160]; /* "is empty", "ends after 4711 of its bytes" */
    bool memory;
} abar__image_fault;

/* The crop of an image, resized to width x height, and of that the window. The crop's edge is an edge for the filter. */
typedef struct abar__image_view {
    abar__image_box crop;
    int32_t height, width;     /* the crop is resized to */
    abar__image_box window;    /* of the resized crop */
    abar__image_filter filter; /* bilinear or bicubic */
    bool mirror;               /* the window, left to right */
} abar__image_view;

/* The buffers of one thread. They grow to the largest image seen. Beside them libjpeg and libpng allocate during a call: the
 * coefficients of a progressive JPEG, or less than a MiB. */
typedef struct abar__image_reader abar__image_reader;

abar_status abar__image_reader_create(abar_context *ctx, abar__image_reader **out);
void abar__image_reader_destroy(abar__image_reader *reader);
/* Of the buffers, and the most coefficients that there were. */
size_t abar__image_reader_bytes(const abar__image_reader *reader);

/* The header of n bytes of a file. False: fault says why. */
bool abar__image_look(const uint8_t *bytes, size_t n, abar__image_header *out, abar__image_fault *fault);
/* Decodes what the view needs and no more. out: (3, window.height, window.width). The view must be inside the image. */
bool abar__image_read(abar__image_reader *reader, const uint8_t *bytes, size_t n, const abar__image_view *view, uint8_t *out,
                      abar__image_fault *fault);
/* Decodes every pixel and keeps none: whether a file is damaged. warnings: of libjpeg, such as bad codes, which are accepted.
 */
bool abar__image_check(abar__image_reader *reader, const uint8_t *bytes, size_t n, abar__image_header *out, int64_t *warnings,
                       abar__image_fault *fault);
/* A JPEG of the image with its short side at most `side` (bicubic, never enlarged; q90, 4:2:0; gray stays gray). out is the
 * reader's, until its next call. */
bool abar__image_shrink(abar__image_reader *reader, const uint8_t *bytes, size_t n, int32_t side, const uint8_t **out,
                        size_t *out_bytes, abar__image_fault *fault);

/* The test view: the short side to `resize`, the centre `size` x `size` of it. */
abar__image_view abar__image_centre(int32_t width, int32_t height, int32_t resize, int32_t size, abar__image_filter filter);

#endif
