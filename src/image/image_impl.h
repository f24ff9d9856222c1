/* Inside src/image: how decoders hand rows to the resampling, and the buffers of a reader. */
#ifndef ABAR_IMAGE_IMPL_H
#define ABAR_IMAGE_IMPL_H

#include "image/image.h"
#include "image/resize.h"

/* A buffer of the context's that grows and is kept. */
typedef struct abar__image_buffer {
    uint8_t *data;
    size_t bytes;
} abar__image_buffer;

struct abar__image_reader {
    abar_context *ctx;
    const abar__resize_kernels *kernels;
    abar__image_buffer rows;    /* decoded rows: ABAR_RESIZE_ROWS, or all of an interlaced PNG's box */
    abar__image_buffer between; /* the rows of the box, resampled horizontally */
    abar__image_buffer weights; /* of both axes */
    abar__image_buffer line;    /* one row of the result, RGB */
    abar__image_buffer planes;  /* shrink: the resized image */
    abar__image_buffer encoded; /* shrink: the file */
    size_t decoder_bytes;       /* the most coefficients that libjpeg held during a call */
};

/* What a decoder is asked for. It writes up to ABAR_RESIZE_ROWS rows into memory of its own choice and passes them on. */
typedef struct abar__image_sink {
    void *user;
    /* n RGB rows of the box, the next ones from the top; ABAR_RESIZE_PAD bytes after each may be read. NULL: rows are dropped.
     */
    void (*take)(void *user, const uint8_t *const *rows, int32_t n);
} abar__image_sink;

/* One file and what of it is wanted. */
typedef struct abar__image_source {
    const uint8_t *bytes;
    size_t n;
    abar__image_header header;
    abar__image_box box; /* of pixels to decode; inside the image */
    bool end;            /* the file is read to its end, to see that it has one */
} abar__image_source;

/* False, with the text in fault. */
bool abar__image_fail(abar__image_fault *fault, const char *format, ...) ABAR_PRINTF(2, 3);
/* At least bytes bytes; the previous contents are lost. */
bool abar__image_grow(abar__image_reader *reader, abar__image_buffer *buffer, size_t bytes, abar__image_fault *fault);
/* Whether an image of this size is accepted. */
bool abar__image_size_check(uint32_t width, uint32_t height, abar__image_fault *fault);

/* As abar__image_read. end: the view has the last row, and the file is read to its end. */
bool abar__image_read_to(abar__image_reader *reader, const uint8_t *bytes, size_t n, const abar__image_view *view, bool end,
                         uint8_t *out, abar__image_fault *fault);

/* The bytes begin as a JPEG or PNG does. */
bool abar__jpeg_look(const uint8_t *bytes, size_t n, abar__image_header *out, abar__image_fault *fault);
bool abar__png_look(const uint8_t *bytes, size_t n, abar__image_header *out, abar__image_fault *fault);
bool abar__jpeg_decode(abar__image_reader *reader, const abar__image_source *source, const abar__image_sink *sink,
                       int64_t *warnings, abar__image_fault *fault);
bool abar__png_decode(abar__image_reader *reader, const abar__image_source *source, const abar__image_sink *sink,
                      abar__image_fault *fault);

#endif
