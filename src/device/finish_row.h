/* How a row of a batch of images becomes a net's input (docs/images.md): erase a box, mix with a partner. Written once for host
 * and GPU, which must give the same float32 bits: every product and every sum is rounded on its own.
 *
 *     torchvision    normalise, erase with 0, mix          abar__finish_torchvision
 *     timm           mix bytes, normalise, erase with noise    abar__mix_bytes, then the table, then abar__noise_*
 *
 * mixed: the row's partner is not the row itself. */
#ifndef ABAR_FINISH_ROW_H
#define ABAR_FINISH_ROW_H

#include "abar/device.h"
#include "base/both.h"

#ifdef __CUDA_ARCH__ /* nvcc contracts products and sums by default */
#define ABAR_ROUNDED_PRODUCT(a, b) __fmul_rn(a, b)
#define ABAR_ROUNDED_SUM(a, b) __fadd_rn(a, b)
#else
#define ABAR_ROUNDED_PRODUCT(a, b) ((a) * (b)) /* compiled with -ffp-contract=off */
#define ABAR_ROUNDED_SUM(a, b) ((a) + (b))
#endif

/* Whether a pixel is in a box: top, left, height, width. */
ABAR_BOTH bool abar__box_holds(const int16_t *box, int32_t y, int32_t x)
{
    return y >= box[0] && y < box[0] + box[2] && x >= box[1] && x < box[1] + box[3];
}

ABAR_BOTH float abar__mixup(const abar_row *row, float own, float partner)
{
    return ABAR_ROUNDED_SUM(ABAR_ROUNDED_PRODUCT(own, row->share), ABAR_ROUNDED_PRODUCT(partner, row->rest));
}

/* One value of the input: own and partner are the normalised values of the two rows, other is the partner's row. */
ABAR_BOTH float abar__finish_torchvision(const abar_row *row, const abar_row *other, bool mixed, int32_t y, int32_t x,
                                         float own, float partner)
{
    if (abar__box_holds(row->erase, y, x)) own = 0.0f;
    if (!mixed) return own;
    if (abar__box_holds(other->erase, y, x)) partner = 0.0f;
    if (row->box[2] > 0) return abar__box_holds(row->box, y, x) ? partner : own;
    return abar__mixup(row, own, partner);
}

/* The byte of a mixed row, rounded half to even. */
ABAR_BOTH uint8_t abar__mix_bytes(const abar_row *row, int32_t y, int32_t x, uint8_t own, uint8_t partner)
{
    if (row->box[2] > 0) return abar__box_holds(row->box, y, x) ? partner : own;
    const float mixed = abar__mixup(row, (float)own, (float)partner);
    return (uint8_t)(int32_t)ABAR_ROUNDED_SUM(ABAR_ROUNDED_SUM(mixed, 0x1p23f), -0x1p23f); /* float32 has no fractions there */
}

/* ---- noise: the table of 4096 quantiles at entry(word of the draw, e), where e is the element of the erased box ------- */

ABAR_BOTH uint32_t abar__noise_element(const abar_row *row, int32_t channel, int32_t y, int32_t x)
{
    return (uint32_t)((channel * row->erase[2] + y - row->erase[0]) * row->erase[3] + x - row->erase[1]);
}

/* The index of the draw (ABAR_DRAW_NOISE, row->epoch) that has element e, and which of its words. */
ABAR_BOTH uint64_t abar__noise_index(const abar_row *row, uint32_t e)
{
    return row->sample | (uint64_t)row->repetition << 32 | (uint64_t)(e / 8) << 40;
}
ABAR_BOTH uint32_t abar__noise_word(uint32_t e) { return e % 8 / 2; }
ABAR_BOTH uint32_t abar__noise_entry(uint32_t word, uint32_t e) { return (e % 2 ? word >> 16 : word & 0xffffu) >> 4; }

#endif
