/* The loops of operations that take the most time, in plain C. Each is inlined into functions for one instruction set after the
 * other (operations_plain.c, operations_avx2.c), where the compiler vectorises it. All give the same bytes: floating-point
 * operations are neither contracted nor reordered. */
#ifndef ABAR_OPERATIONS_LOOPS_H
#define ABAR_OPERATIONS_LOOPS_H

#include "image/operations_impl.h"

#define LOOP static inline __attribute__((always_inline))

/* ---- affine: positions ---- */

enum { BLOCK = 128 };

/* The first neighbours of n positions from column x on, and how far each position is past the one before its middle. */
LOOP void locate(const abar__affine_line *l, int32_t x, int32_t n, int taps, int32_t *restrict index, double *restrict t)
{
    const int32_t back = taps / 2 - 1;
    for (int32_t i = 0; i < n; i++) {
        const double at = abar__affine_place(l, x + i) - 0.5; /* at least -1/2: its floor is at least -1 */
        const int32_t whole = (int32_t)at - (at < 0);
        t[i] = at - whole;
        index[i] = whole - back;
    }
}

/* A block of positions. Along an axis that stays there is one neighbour, and no fraction. */
typedef struct block {
    int32_t n;
    int32_t row[BLOCK], column[BLOCK];
    double down[BLOCK], right[BLOCK]; /* fractions */
} block;

LOOP void locate_block(const abar__affine_job *j, const abar__affine_line *h, const abar__affine_line *v, int32_t y, int32_t x,
                       int32_t n, block *out)
{
    out->n = n;
    if (j->columns_stay)
        for (int32_t i = 0; i < n; i++) out->column[i] = x + i;
    else
        locate(h, x, n, j->taps, out->column, out->right);
    if (j->rows_stay)
        for (int32_t i = 0; i < n; i++) out->row[i] = y;
    else
        locate(v, x, n, j->taps, out->row, out->down);
}

/* ---- neighbours ---- */

/* Up to four rows of neighbours per position, each packed into a word, the first lowest. Columns that stay: one column. */
typedef struct neighbours {
    uint32_t row[4][BLOCK];
} neighbours;

LOOP uint32_t pack2(const uint8_t *p, int32_t stride) { return (uint32_t)p[0] | (uint32_t)p[stride] << 8; }

LOOP uint32_t pack4(const uint8_t *p, int32_t stride)
{
    return pack2(p, stride) | (uint32_t)p[2 * stride] << 16 | (uint32_t)p[3 * stride] << 24;
}

/* All neighbours are inside. */
LOOP void gather(const abar__affine_job *j, const block *b, const uint8_t *restrict in, neighbours *restrict out)
{
    const bool along = j->rows_stay || j->columns_stay;
    const int32_t n = b->n, width = j->width;
    int32_t place_of[BLOCK];
    for (int32_t i = 0; i < n; i++) place_of[i] = b->row[i] * width + b->column[i];
    for (int k = 0; k < (along ? 1 : j->taps); k++, in += width) {
        uint32_t *restrict words = out->row[k];
        if (j->columns_stay && j->taps == 2)
            for (int32_t i = 0; i < n; i++) words[i] = pack2(in + place_of[i], width);
        else if (j->columns_stay)
            for (int32_t i = 0; i < n; i++) words[i] = pack4(in + place_of[i], width);
        else if (j->taps == 2)
            for (int32_t i = 0; i < n; i++) words[i] = pack2(in + place_of[i], 1);
        else
            for (int32_t i = 0; i < n; i++) words[i] = pack4(in + place_of[i], 1);
    }
}

LOOP int32_t clamp(int32_t i, int32_t limit) { return i < 0 ? 0 : i < limit ? i : limit - 1; }

/* Some are not: the nearest one that is takes their place. */
LOOP void gather_clamped(const abar__affine_job *j, const block *b, const uint8_t *in, neighbours *out)
{
    const bool along = j->rows_stay || j->columns_stay;
    for (int k = 0; k < (along ? 1 : j->taps); k++)
        for (int32_t i = 0; i < b->n; i++) {
            uint32_t word = 0;
            for (int tap = 0; tap < j->taps; tap++) {
                const int32_t row = clamp(b->row[i] + (j->columns_stay ? tap : k), j->height);
                const int32_t column = clamp(b->column[i] + (j->columns_stay ? 0 : tap), j->width);
                word |= (uint32_t)in[row * j->width + column] << (8 * tap);
            }
            out->row[k][i] = word;
        }
}

/* ---- arithmetic ---- */

LOOP int byte(uint32_t word, int k) { return (int)(word >> (8 * k) & 255); }

LOOP double linear(uint32_t word, double t) { return byte(word, 0) + (byte(word, 1) - byte(word, 0)) * t; }

LOOP double cubic(uint32_t word, double t)
{
    const int v1 = byte(word, 0), v2 = byte(word, 1), v3 = byte(word, 2), v4 = byte(word, 3);
    const int p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4; /* exact, as they are in double */
    return v2 + t * (p2 + t * (p3 + t * p4));
}

LOOP double cubic_of(double v1, double v2, double v3, double v4, double t)
{
    const double p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4;
    return v2 + t * (p2 + t * (p3 + t * p4));
}

LOOP void linear_along(const neighbours *restrict p, const double *restrict t, int32_t n, uint8_t *restrict out)
{
    for (int32_t i = 0; i < n; i++) out[i] = (uint8_t)(int)linear(p->row[0][i], t[i]);
}

LOOP void linear_both(const neighbours *restrict p, const block *restrict b, uint8_t *restrict out)
{
    for (int32_t i = 0; i < b->n; i++) {
        const double v1 = linear(p->row[0][i], b->right[i]), v2 = linear(p->row[1][i], b->right[i]);
        out[i] = (uint8_t)(int)(v1 + (v2 - v1) * b->down[i]);
    }
}

LOOP void cubic_along(const neighbours *restrict p, const double *restrict t, int32_t n, uint8_t *restrict out)
{
    for (int32_t i = 0; i < n; i++) out[i] = abar__image_clip((int)cubic(p->row[0][i], t[i]));
}

LOOP void cubic_both(const neighbours *restrict p, const block *restrict b, uint8_t *restrict out)
{
    for (int32_t i = 0; i < b->n; i++) {
        const double t = b->right[i];
        out[i] = abar__image_clip((int)cubic_of(cubic(p->row[0][i], t), cubic(p->row[1][i], t), cubic(p->row[2][i], t),
                                                cubic(p->row[3][i], t), b->down[i]));
    }
}

/* Along an axis that stays the fraction is 0, and its interpolation gives the pixel itself. */
LOOP void compute(const abar__affine_job *j, const block *b, const neighbours *p, uint8_t *out)
{
    const bool along = j->rows_stay || j->columns_stay;
    const double *t = j->rows_stay ? b->right : b->down;
    if (along && j->taps == 2)
        linear_along(p, t, b->n, out);
    else if (along)
        cubic_along(p, t, b->n, out);
    else if (j->taps == 2)
        linear_both(p, b, out);
    else
        cubic_both(p, b, out);
}

LOOP void interpolate_loop(const abar__affine_job *j, const abar__affine_line *h, const abar__affine_line *v, int32_t y,
                           abar__affine_run r, bool clamped, const uint8_t *in, uint8_t *out)
{
    const int32_t plane = j->height * j->width;
    for (int32_t x = r.from; x < r.to; x += BLOCK) {
        block b;
        neighbours p;
        locate_block(j, h, v, y, x, r.to - x < BLOCK ? r.to - x : BLOCK, &b);
        for (int c = 0; c < 3; c++) {
            if (clamped)
                gather_clamped(j, &b, in + c * plane, &p);
            else
                gather(j, &b, in + c * plane, &p);
            compute(j, &b, &p, out + c * plane + y * j->width + x);
        }
    }
}

/* ---- colour ---- */

LOOP int luma(int r, int g, int b) { return (19595 * r + 38470 * g + 7471 * b + 32768) >> 16; }

LOOP void gray_loop(float factor, int64_t n, const uint8_t *restrict in, uint8_t *restrict out)
{
    const uint8_t *restrict r = in, *restrict g = in + n, *restrict b = in + 2 * n;
    for (int64_t i = 0; i < n; i++) {
        const int gray = luma(r[i], g[i], b[i]);
        out[i] = abar__image_blend(gray, r[i], factor);
        out[i + n] = abar__image_blend(gray, g[i], factor);
        out[i + 2 * n] = abar__image_blend(gray, b[i], factor);
    }
}

LOOP int64_t sum_loop(int64_t n, const uint8_t *in)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += luma(in[i], in[i + n], in[i + 2 * n]);
    return sum;
}

LOOP void sharpen_loop(float factor, int32_t width, int32_t n, const uint8_t *restrict in, uint8_t *restrict out)
{
    const uint8_t *restrict a = in, *restrict b = in + width, *restrict c = in + 2 * width;
    for (int32_t from = 0; from < n; from += BLOCK, a += BLOCK, b += BLOCK, c += BLOCK) {
        const int32_t count = n - from < BLOCK ? n - from : BLOCK;
        uint16_t column[BLOCK + 2];
        uint8_t smooth[BLOCK];
        for (int32_t i = 0; i < count + 2; i++) column[i] = (uint16_t)(a[i] + b[i] + c[i]);
        for (int32_t i = 0; i < count; i++) { /* (2*sum + 13) / 26 is (sum + 6) / 13 for whole sums */
            const uint16_t sum = (uint16_t)(column[i] + column[i + 1] + column[i + 2] + 4 * b[i + 1] + 6);
            smooth[i] = (uint8_t)(sum / 13);
        }
        for (int32_t i = 0; i < count; i++) out[from + i] = abar__image_blend(smooth[i], b[i + 1], factor);
    }
}

#endif
