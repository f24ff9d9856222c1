/* Rows that a device decodes. Runs in the loader's threads: no text goes to the context. */
#include "data/images/encoded.h"

#include "image/resize.h"

#include <string.h>

#define PIXELS_MAX (1 << 24) /* of an image that a device decodes whole; the host decodes the crop of a larger one */
#define BLOCK_MIN ((size_t)1 << 17)

/* ---- which files ------------------------------------------------------------------------------------------------- */

enum { MARKER = 0xff, APP0 = 0xe0, APP14 = 0xee, BASELINE = 0xc0, SCAN = 0xda };

static bool begins_with(const uint8_t *segment, size_t n, const char *text, size_t length)
{
    return n >= length && memcmp(segment, text, length) == 0;
}

/* The frame header of a baseline JPEG: precision, height, width, then id, sampling and table of three components. jfif and
 * adobe (-1: none) say what the colours are, as libjpeg reads them. */
static bool frame_fits(const uint8_t *frame, size_t n, bool jfif, int adobe)
{
    if (n < 15 || frame[0] != 8 || frame[5] != 3) return false;
    const uint8_t *luma = frame + 6, *blue = luma + 3, *red = luma + 6;
    const bool named = luma[0] == 'R' && blue[0] == 'G' && red[0] == 'B';
    const int across = luma[1] >> 4, down = luma[1] & 15;
    const bool halves = across >= 1 && across <= 2 && down >= 1 && down <= 2;
    return halves && blue[1] == 0x11 && red[1] == 0x11 && (jfif || (adobe >= 0 ? adobe != 0 : !named));
}

/* SOF0 to SOF15; the other three codes are tables and an extension. */
static bool is_frame(uint8_t kind) { return kind >= 0xc0 && kind <= 0xcf && kind != 0xc4 && kind != 0xc8 && kind != 0xcc; }

/* TEM, RST0 to RST7, SOI and EOI. */
static bool stands_alone(uint8_t kind) { return kind <= 0x01 || (kind >= 0xd0 && kind <= 0xd9); }

static bool has_size(const uint8_t *frame, size_t n, const abar__image_header *header)
{
    return n >= 5 && (frame[1] << 8 | frame[2]) == header->height && (frame[3] << 8 | frame[4]) == header->width;
}

/* Walks the segments up to the first scan: what comes before it decides the colours. A second frame, or one of another size
 * than the header's, would be decoded to memory that is too small. */
static bool jpeg_fits(const abar__image_header *header, const uint8_t *file, size_t n)
{
    const uint8_t *frame = NULL;
    size_t frame_bytes = 0;
    bool jfif = false;
    int adobe = -1;
    for (size_t at = 2; at + 4 <= n;) {
        if (file[at] != MARKER) return false;
        if (file[at + 1] == MARKER) { /* a marker may be preceded by any number of these */
            at++;
            continue;
        }
        const size_t length = (size_t)file[at + 2] << 8 | file[at + 3]; /* counts itself */
        const uint8_t kind = file[at + 1], *segment = file + at + 4;
        if (kind == SCAN) return frame && frame_fits(frame, frame_bytes, jfif, adobe);
        if (stands_alone(kind) || length < 2 || length > n - at - 2) return false;
        if (is_frame(kind)) {
            if (frame || kind != BASELINE || !has_size(segment, length - 2, header)) return false;
            frame = segment;
            frame_bytes = length - 2;
        }
        if (kind == APP0 && begins_with(segment, length - 2, "JFIF", 5)) jfif = true;
        if (kind == APP14 && length - 2 >= 12 && begins_with(segment, length - 2, "Adobe", 5)) adobe = segment[11];
        at += 2 + length;
    }
    return false;
}

bool abar__encoded_fits(const abar__image_header *header, const uint8_t *file, size_t n)
{
    return header->format == ABAR_IMAGE_JPEG && header->components == 3 && !header->progressive &&
           (int64_t)header->width * header->height <= PIXELS_MAX && jpeg_fits(header, file, n);
}

/* ---- rows --------------------------------------------------------------------------------------------------------- */

static bool grow(abar_context *ctx, abar__encoded_block *block, size_t n)
{
    if (n <= block->bytes) return true;
    size_t wanted = block->bytes > BLOCK_MIN ? block->bytes : BLOCK_MIN;
    while (wanted < n) wanted *= 2;
    abar__encoded_release(ctx, block);
    block->memory = abar__alloc_in_thread(ctx, wanted);
    block->bytes = block->memory ? wanted : 0;
    return block->memory != NULL;
}

/* One axis: outputs [from, from + n) of a resize of the crop's `in` pixels, which begin at `start`, to `out`. */
typedef struct span {
    int32_t start, in, out, from, n;
    bool reversed;
} span;

static abar_resampling make_axis(const span *s, abar__image_filter filter, void *memory)
{
    abar__resize_axis axis;
    int32_t first, last;
    abar__resize_axis_make(s->in, s->out, filter, s->from, s->n, s->reversed, memory, &axis);
    abar__resize_range(s->in, s->out, filter, s->from, s->n, &first, &last);
    for (int32_t i = 0; i < axis.n; i++) axis.first[i] += s->start + first;
    return (abar_resampling){.begin = axis.first, .count = axis.count, .weights = axis.weights, .taps = axis.taps};
}

bool abar__encoded_make(abar_context *ctx, const uint8_t *file, size_t n, const abar__image_header *header,
                        const abar__image_view *view, abar__encoded_block *block, abar_encoded *out)
{
    const span x = {view->crop.left, view->crop.width, view->width, view->window.left, view->window.width, view->mirror};
    const span y = {view->crop.top, view->crop.height, view->height, view->window.top, view->window.height, false};
    const size_t across = abar__round_up(abar__resize_axis_bytes(x.in, x.out, view->filter, x.n), ABAR_ALIGN);
    const size_t down = abar__round_up(abar__resize_axis_bytes(y.in, y.out, view->filter, y.n), ABAR_ALIGN);
    if (!grow(ctx, block, across + down + n)) return false;
    char *memory = block->memory;
    *out = (abar_encoded){.file = (uint8_t *)memory + across + down,
                          .bytes = n,
                          .width = header->width,
                          .height = header->height,
                          .x = make_axis(&x, view->filter, memory),
                          .y = make_axis(&y, view->filter, memory + across)};
    memcpy(memory + across + down, file, n);
    return true;
}

void abar__encoded_release(abar_context *ctx, abar__encoded_block *block)
{
    abar__free(ctx, block->memory, block->bytes);
    *block = (abar__encoded_block){0};
}
