/* The choice among operations, and those that are a table per channel (docs/images.md). */
#include "image/operations_impl.h"

#include <string.h>

void abar__image_look_up(const uint8_t table[256], int64_t n, const uint8_t *restrict in, uint8_t *restrict out)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) /* unrolled: gcc leaves it a loop otherwise, which takes twice as long */
        for (int k = 0; k < 8; k++) out[i + k] = table[(size_t)in[i + k]];
    for (; i < n; i++) out[i] = table[(size_t)in[i]];
}

/* Four counts at a time: equal neighbours do not wait for each other. */
static void count_values(int64_t n, const uint8_t *in, int64_t out[256])
{
    uint32_t counts[4][256] = {{0}};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) counts[k][in[i + k]]++;
    for (; i < n; i++) counts[0][in[i]]++;
    for (int v = 0; v < 256; v++) out[v] = (int64_t)counts[0][v] + counts[1][v] + counts[2][v] + counts[3][v];
}

static void same_table(uint8_t table[256])
{
    for (int v = 0; v < 256; v++) table[v] = (uint8_t)v;
}

static void autocontrast_table(const int64_t counts[256], uint8_t table[256])
{
    int low = 0, high = 255;
    while (low < 255 && !counts[low]) low++;
    while (high > 0 && !counts[high]) high--;
    same_table(table);
    if (high <= low) return;
    const double scale = 255.0 / (high - low), offset = -low * scale;
    for (int v = 0; v < 256; v++) {
        const int to = (int)(v * scale + offset);
        table[v] = (uint8_t)(to < 0 ? 0 : to > 255 ? 255 : to);
    }
}

static void equalize_table(const int64_t counts[256], uint8_t table[256])
{
    int64_t pixels = 0, last = 0;
    for (int v = 0; v < 256; v++) {
        pixels += counts[v];
        if (counts[v]) last = counts[v];
    }
    const int64_t step = (pixels - last) / 255; /* 0 if a single value is used */
    same_table(table);
    if (step == 0) return;
    int64_t sum = step / 2;
    for (int v = 0; v < 256; sum += counts[v++]) table[v] = (uint8_t)(sum / step > 255 ? 255 : sum / step);
}

/* Operations that depend on the value of a pixel alone. */
static void point_table(abar__operation operation, double value, uint8_t table[256])
{
    const int whole = (int)value;
    for (int v = 0; v < 256; v++) {
        int to = 255 - v; /* invert */
        if (operation == ABAR_OPERATION_POSTERIZE)
            to = v & ~((1 << (8 - whole)) - 1);
        else if (operation == ABAR_OPERATION_SOLARIZE)
            to = v < value ? v : 255 - v;
        else if (operation == ABAR_OPERATION_SOLARIZE_ADD)
            to = v >= 128 ? v : v + whole < 255 ? v + whole : 255;
        table[v] = (uint8_t)to;
    }
}

static void stretch(abar__operation operation, int64_t plane, const uint8_t *in, uint8_t *out)
{
    for (int c = 0; c < 3; c++, in += plane, out += plane) {
        int64_t counts[256];
        uint8_t table[256];
        count_values(plane, in, counts);
        if (operation == ABAR_OPERATION_EQUALIZE)
            equalize_table(counts, table);
        else
            autocontrast_table(counts, table);
        abar__image_look_up(table, plane, in, out);
    }
}

void abar__image_apply_by(const abar__operation_loops *loops, const abar__image_change *change, int32_t height, int32_t width,
                          const uint8_t *in, uint8_t *out)
{
    const int64_t plane = (int64_t)height * width;
    uint8_t table[256];
    switch (change->operation) {
    case ABAR_OPERATION_AFFINE: abar__image_affine(loops, change, height, width, in, out); return;
    case ABAR_OPERATION_ROTATE: abar__image_rotate(loops, change, height, width, in, out); return;
    case ABAR_OPERATION_BRIGHTNESS:
    case ABAR_OPERATION_COLOR:
    case ABAR_OPERATION_CONTRAST:
    case ABAR_OPERATION_SHARPNESS: abar__image_enhance(loops, change, height, width, in, out); return;
    case ABAR_OPERATION_AUTOCONTRAST:
    case ABAR_OPERATION_EQUALIZE: stretch(change->operation, plane, in, out); return;
    case ABAR_OPERATION_NONE: memcpy(out, in, (size_t)(3 * plane)); return;
    case ABAR_OPERATION_POSTERIZE:
    case ABAR_OPERATION_SOLARIZE:
    case ABAR_OPERATION_SOLARIZE_ADD:
    case ABAR_OPERATION_INVERT:
        point_table(change->operation, change->value, table);
        abar__image_look_up(table, 3 * plane, in, out);
        return;
    }
}

void abar__image_apply(const abar__image_change *change, int32_t height, int32_t width, const uint8_t *in, uint8_t *out)
{
    const abar__operation_loops *avx2 = abar__operations_avx2();
    abar__image_apply_by(avx2 ? avx2 : &abar__operations_plain, change, height, width, in, out);
}
