/* Rows that a device decodes. Runs in the loader's threads: no text goes to the context. */
#include "data/images/encoded.h"

#include "image/resize.h"

#include <string.h>

#define PIXELS_MAX (1 << 24) /* of an image that a device decodes whole; the host decodes the crop of a larger one */
#define BLOCK_MIN ((size_t)1 << 17)

bool abar__encoded_fits(const abar__image_header *header)
{
    return header->format == ABAR_IMAGE_JPEG && header->components == 3 && !header->progressive &&
           (int64_t)header->width * header->height <= PIXELS_MAX;
}

static bool grow(abar_context *ctx, abar__encoded_block *block, size_t n)
{
    if (n <= block->bytes) return true;
    size_t wanted = block->bytes > BLOCK_MIN ? block->bytes : BLOCK_MIN;
    while (wanted < n) wanted *= 2;
    abar__encoded_release(ctx, block);
    if (abar__alloc(ctx, wanted, &block->memory) != ABAR_OK) return false;
    block->bytes = wanted;
    return true;
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
