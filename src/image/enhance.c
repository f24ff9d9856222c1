/* Brightness, colour, contrast and sharpness with Pillow's bytes (docs/images.md): the image blended with a degenerate one
 * (black, gray, its mean, smoothed), in float32 with two roundings. */
#include "image/operations_impl.h"

#include <string.h>

static void blend_with_constant(int p, float factor, int64_t n, const uint8_t *in, uint8_t *out)
{
    uint8_t table[256];
    for (int v = 0; v < 256; v++) table[v] = abar__image_blend(p, v, factor);
    abar__image_look_up(table, n, in, out);
}

/* One run from the second pixel of the second row on, which is faster than a run per row; what it makes of the first and last
 * columns is then replaced. An image with no inner pixel is copied. */
static void sharpen(const abar__operation_loops *loops, float factor, int32_t height, int32_t width, const uint8_t *in,
                    uint8_t *out)
{
    loops->sharpen(factor, width, (height - 2) * width - 2, in, out + width + 1);
    memcpy(out, in, (size_t)width);
    for (int32_t y = 1; y < height - 1; y++) {
        out[y * width] = in[y * width];
        out[y * width + width - 1] = in[y * width + width - 1];
    }
    memcpy(out + (height - 1) * width, in + (height - 1) * width, (size_t)width);
}

void abar__image_enhance(const abar__operation_loops *loops, const abar__image_change *change, int32_t height, int32_t width,
                         const uint8_t *in, uint8_t *out)
{
    const float factor = (float)change->value;
    const int64_t plane = (int64_t)height * width;
    if (change->operation == ABAR_OPERATION_BRIGHTNESS)
        blend_with_constant(0, factor, 3 * plane, in, out);
    else if (change->operation == ABAR_OPERATION_CONTRAST)
        blend_with_constant((int)((double)loops->sum_gray(plane, in) / (double)plane + 0.5), factor, 3 * plane, in, out);
    else if (change->operation == ABAR_OPERATION_COLOR)
        loops->blend_with_gray(factor, plane, in, out);
    else
        for (int c = 0; c < 3; c++) sharpen(loops, factor, height, width, in + c * plane, out + c * plane);
}
