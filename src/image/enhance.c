/* Brightness, colour, contrast and sharpness with Pillow's bytes (docs/images.md): the image blended with a degenerate one
 * (black, gray, its mean, smoothed), in float32 with two roundings. */
#include "image/operations_impl.h"

#include <string.h>

static int luma(int r, int g, int b) { return (19595 * r + 38470 * g + 7471 * b + 32768) >> 16; }

/* Between p (factor 0) and q (factor 1), and beyond. */
static uint8_t blend(int p, int q, float factor)
{
    float v = (float)p + factor * (float)(q - p);
    v = v > 0 ? v : 0;
    v = v < 255 ? v : 255;
    return (uint8_t)(int)v;
}

static void blend_with_constant(int p, float factor, int64_t n, const uint8_t *in, uint8_t *out)
{
    uint8_t table[256];
    for (int v = 0; v < 256; v++) table[v] = blend(p, v, factor);
    abar__image_look_up(table, n, in, out);
}

static void blend_with_gray(float factor, int64_t n, const uint8_t *restrict in, uint8_t *restrict out)
{
    const uint8_t *restrict r = in, *restrict g = in + n, *restrict b = in + 2 * n;
    for (int64_t i = 0; i < n; i++) {
        const int gray = luma(r[i], g[i], b[i]);
        out[i] = blend(gray, r[i], factor);
        out[i + n] = blend(gray, g[i], factor);
        out[i + 2 * n] = blend(gray, b[i], factor);
    }
}

static int mean_luma(int64_t n, const uint8_t *in)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += luma(in[i], in[i + n], in[i + 2 * n]);
    return (int)((double)sum / (double)n + 0.5);
}

/* The n pixels of a row that have neighbours on all sides; in: the pixel above and to the left of the first. */
static void sharpen_run(float factor, int32_t width, int32_t n, const uint8_t *restrict in, uint8_t *restrict out)
{
    const uint8_t *restrict a = in, *restrict b = in + width, *restrict c = in + 2 * width;
    enum { BLOCK = 256 };
    for (int32_t from = 0; from < n; from += BLOCK) {
        const int32_t count = n - from < BLOCK ? n - from : BLOCK;
        uint16_t smooth[BLOCK]; /* (2*sum + 13) / 26 is (sum + 6) / 13 for whole sums */
        for (int32_t i = 0; i < count; i++, a++, b++, c++)
            smooth[i] = (uint16_t)((a[0] + a[1] + a[2] + b[0] + 5 * b[1] + b[2] + c[0] + c[1] + c[2] + 6)) / 13;
        for (int32_t i = 0; i < count; i++) out[from + i] = blend(smooth[i], in[width + 1 + from + i], factor);
    }
}

static void sharpen(float factor, int32_t height, int32_t width, const uint8_t *in, uint8_t *out)
{
    const int64_t plane = (int64_t)height * width;
    memcpy(out, in, (size_t)(3 * plane)); /* the border */
    if (height < 3 || width < 3) return;
    for (int c = 0; c < 3; c++, in += plane, out += plane)
        for (int32_t y = 1; y < height - 1; y++)
            sharpen_run(factor, width, width - 2, in + (int64_t)(y - 1) * width, out + (int64_t)y * width + 1);
}

void abar__image_enhance(abar__operation operation, double factor, int32_t height, int32_t width, const uint8_t *in,
                         uint8_t *out)
{
    const float narrow = (float)factor;
    const int64_t plane = (int64_t)height * width;
    if (operation == ABAR_OPERATION_BRIGHTNESS)
        blend_with_constant(0, narrow, 3 * plane, in, out);
    else if (operation == ABAR_OPERATION_CONTRAST)
        blend_with_constant(mean_luma(plane, in), narrow, 3 * plane, in, out);
    else if (operation == ABAR_OPERATION_COLOR)
        blend_with_gray(narrow, plane, in, out);
    else
        sharpen(narrow, height, width, in, out);
}
