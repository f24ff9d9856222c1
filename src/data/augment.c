/* Augmentation of CIFAR's recipe, as torchvision's RandomCrop(padding) and RandomHorizontalFlip do it, drawn as integers
 * and done on bytes. */
#include "data/data_impl.h"

#include "base/rng.h"

#include <string.h>

abar__augmentation abar__augment_draw(uint64_t seed, int64_t epoch, int64_t sample, int64_t pad, bool flip)
{
    abar__draw d = abar__random(seed, ABAR_DRAW_AUGMENT, (uint32_t)epoch, (uint64_t)sample);
    uint32_t places = 2 * (uint32_t)pad + 1;
    return (abar__augmentation){.dx = (int32_t)(abar__below(d.u[0], places) - (uint32_t)pad),
                                .dy = (int32_t)(abar__below(d.u[1], places) - (uint32_t)pad),
                                .flip = flip && d.u[2] >> 31};
}

static void copy_mirrored(uint8_t *restrict out, const uint8_t *restrict in, int64_t n, size_t element)
{
    if (element == 1)
        for (int64_t i = 0; i < n; i++) out[i] = in[n - 1 - i];
    else
        for (int64_t i = 0; i < n; i++) memcpy(out + (size_t)i * element, in + (size_t)(n - 1 - i) * element, element);
}

void abar__augment_apply(abar__augmentation a, int64_t channels, int64_t height, int64_t width, size_t element,
                         const uint8_t *in, uint8_t *out)
{
    /* out[y][x] = in[y + dy][x + dx], then mirrored; columns from..to of out are inside the image */
    int64_t from = a.dx < 0 ? -a.dx : 0, to = a.dx > 0 ? width - a.dx : width;
    const size_t row_bytes = (size_t)width * element;
    if (from >= to || a.dy <= -height || a.dy >= height) {
        memset(out, 0, (size_t)(channels * height) * row_bytes);
        return;
    }
    const int64_t n = to - from;
    const size_t left = (size_t)(a.flip ? width - to : from) * element, inside = (size_t)n * element;
    for (int64_t c = 0; c < channels; c++, in += (size_t)height * row_bytes)
        for (int64_t y = 0; y < height; y++, out += row_bytes) {
            int64_t row = y + a.dy;
            if (row < 0 || row >= height) {
                memset(out, 0, row_bytes);
                continue;
            }
            const uint8_t *from_row = in + (size_t)row * row_bytes + (size_t)(from + a.dx) * element;
            memset(out, 0, left);
            if (a.flip)
                copy_mirrored(out + left, from_row, n, element);
            else
                memcpy(out + left, from_row, inside);
            memset(out + left + inside, 0, row_bytes - left - inside);
        }
}
