/* Geometry with Pillow's bytes (docs/images.md): affine maps in three filters, and rotation.
 *
 * The position of an output pixel is computed in double precision by the same operations in the same order as Pillow's
 * (libImaging/Geometry.c), uncontracted. Positions grow or fall along a row, so what is inside the image is one run of pixels.
 * A run is done in blocks: first the positions of a block, which the compiler vectorises, then its pixels, channel by channel.
 * Pillow repeats the result of the last row or column that is inside; reading clamped indices gives the same. */
#include "image/operations_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 128 };

/* One coordinate of a block of positions: which pixels surround each (2 taps, bicubic 4), and how far it is past the second of
 * four or the first of two. */
typedef struct axis {
    double t[BLOCK];
    int32_t tap[4][BLOCK];
} axis;

/* The input's coordinate at column x of a row: (step*(x + 1/2) + across) + offset, rounded three times. */
typedef struct line {
    double step, across, offset;
    int32_t limit; /* inside: 0 <= coordinate < limit */
} line;

static double place(const line *l, int32_t x) { return (l->step * ((double)x + 0.5) + l->across) + l->offset; }

/* The first column in [from, to) whose coordinate is not below the bound (falling: is below it); to: none. */
static int32_t crossing(const line *l, double bound, int32_t from, int32_t to)
{
    const bool falling = l->step < 0;
    while (from < to) {
        const int32_t middle = from + (to - from) / 2;
        if ((place(l, middle) >= bound) != falling)
            to = middle;
        else
            from = middle + 1;
    }
    return from;
}

/* Narrows the run [*from, *to) to the columns whose coordinate is inside. */
static void narrow(const line *l, int32_t *from, int32_t *to)
{
    const int32_t zero = crossing(l, 0, *from, *to), limit = crossing(l, l->limit, *from, *to);
    *from = l->step < 0 ? limit : zero;
    *to = l->step < 0 ? zero : limit;
    if (*to < *from) *to = *from;
}

static int32_t clamp(int32_t i, int32_t limit) { return i < 0 ? 0 : i < limit ? i : limit - 1; }

/* Taps and fractions of n columns from x on. Tap k of column x + i is pixel*stride + base + i*shift. */
static void fill_axis(axis *out, const line *l, int32_t x, int32_t n, int taps, int32_t stride, int32_t base, int32_t shift)
{
    int32_t index[BLOCK];
    for (int32_t i = 0; i < n; i++) {
        const double at = place(l, x + i) - 0.5; /* at least -1/2: the floor is at least -1 */
        index[i] = (int32_t)at - (at < 0 ? 1 : 0);
        out->t[i] = at - index[i];
    }
    for (int k = 0; k < taps; k++) {
        int32_t *restrict tap = out->tap[k];
        const int32_t reach = taps == 4 ? k - 1 : k;
        for (int32_t i = 0; i < n; i++) tap[i] = clamp(index[i] + reach, l->limit) * stride + base + i * shift;
    }
}

static double mix2(double p, double q, double t) { return p + (q - p) * t; }

static double mix4(double v1, double v2, double v3, double v4, double t)
{
    const double p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4;
    return v2 + t * (p2 + t * (p3 + t * p4));
}

static uint8_t clip(double v) { return v <= 0 ? 0 : v >= 255 ? 255 : (uint8_t)v; }

static void linear_along(const uint8_t *restrict in, const axis *restrict a, int32_t n, uint8_t *restrict out)
{
    for (int32_t i = 0; i < n; i++) {
        const int p = in[a->tap[0][i]], q = in[a->tap[1][i]];
        out[i] = (uint8_t)(int)(p + (q - p) * a->t[i]);
    }
}

static double cubic_bytes(int v1, int v2, int v3, int v4, double t)
{
    const int p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4; /* exact, as in double */
    return v2 + t * (p2 + t * (p3 + t * p4));
}

static void cubic_along(const uint8_t *restrict in, const axis *restrict a, int32_t n, uint8_t *restrict out)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = clip(cubic_bytes(in[a->tap[0][i]], in[a->tap[1][i]], in[a->tap[2][i]], in[a->tap[3][i]], a->t[i]));
}

static void linear_both(const uint8_t *restrict in, const axis *restrict h, const axis *restrict v, int32_t n,
                        uint8_t *restrict out)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t left = h->tap[0][i], right = h->tap[1][i];
        const uint8_t *top = in + v->tap[0][i], *low = in + v->tap[1][i];
        const double t = h->t[i], v1 = top[left] + (top[right] - top[left]) * t, v2 = low[left] + (low[right] - low[left]) * t;
        out[i] = (uint8_t)(int)mix2(v1, v2, v->t[i]);
    }
}

static void cubic_both(const uint8_t *restrict in, const axis *restrict h, const axis *restrict v, int32_t n,
                       uint8_t *restrict out)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t c0 = h->tap[0][i], c1 = h->tap[1][i], c2 = h->tap[2][i], c3 = h->tap[3][i];
        double row[4];
        for (int k = 0; k < 4; k++) {
            const uint8_t *r = in + v->tap[k][i];
            row[k] = cubic_bytes(r[c0], r[c1], r[c2], r[c3], h->t[i]);
        }
        out[i] = clip(mix4(row[0], row[1], row[2], row[3], v->t[i]));
    }
}

/* What the kernels need of an image and the map. */
typedef struct job {
    const abar__image_change *change;
    int32_t height, width;
    int taps;
    bool rows_stay, columns_stay; /* the input's row is the output's, exactly; the same of columns */
} job;

/* The n pixels from x on in row y, all of them inside. Along an axis that stays, t is 0 and drops out. */
static void run_block(const job *j, const line *h, const line *v, int32_t y, int32_t x, int32_t n, const uint8_t *in,
                      uint8_t *out)
{
    axis ah, av;
    const int32_t plane = j->height * j->width;
    if (j->rows_stay)
        fill_axis(&ah, h, x, n, j->taps, 1, y * j->width, 0);
    else if (j->columns_stay)
        fill_axis(&ah, v, x, n, j->taps, j->width, x, 1);
    else {
        fill_axis(&ah, h, x, n, j->taps, 1, 0, 0);
        fill_axis(&av, v, x, n, j->taps, j->width, 0, 0);
    }
    const bool along = j->rows_stay || j->columns_stay;
    out += y * j->width + x;
    for (int c = 0; c < 3; c++, in += plane, out += plane) {
        if (along && j->taps == 2)
            linear_along(in, &ah, n, out);
        else if (along)
            cubic_along(in, &ah, n, out);
        else if (j->taps == 2)
            linear_both(in, &ah, &av, n, out);
        else
            cubic_both(in, &ah, &av, n, out);
    }
}

static void fill_row(const job *j, int32_t y, int32_t from, int32_t to, uint8_t *out)
{
    for (int c = 0; c < 3 && from < to; c++)
        memset(out + (c * j->height + y) * j->width + from, j->change->fill[c], (size_t)(to - from));
}

static void interpolate(const job *j, const double m[6], const uint8_t *in, uint8_t *out)
{
    for (int32_t y = 0; y < j->height; y++) {
        const double middle = (double)y + 0.5;
        const line h = {m[0], m[1] * middle, m[2], j->width}, v = {m[3], m[4] * middle, m[5], j->height};
        int32_t from = 0, to = j->width;
        narrow(&h, &from, &to);
        narrow(&v, &from, &to);
        fill_row(j, y, 0, from, out);
        fill_row(j, y, to, j->width, out);
        for (int32_t x = from; x < to; x += BLOCK) run_block(j, &h, &v, y, x, to - x < BLOCK ? to - x : BLOCK, in, out);
    }
}

/* ---- whole pixels ---- */

/* Content moves by (-dx, -dy). */
static void shift(const job *j, int32_t dx, int32_t dy, const uint8_t *in, uint8_t *out)
{
    int32_t from = dx < 0 ? -dx : 0, to = dx > 0 ? j->width - dx : j->width;
    if (to < from) to = from;
    for (int32_t y = 0; y < j->height; y++) {
        const bool inside = y + dy >= 0 && y + dy < j->height;
        fill_row(j, y, 0, inside ? from : j->width, out);
        if (!inside) continue;
        fill_row(j, y, to, j->width, out);
        for (int c = 0; c < 3 && from < to; c++)
            memcpy(out + (c * j->height + y) * j->width + from, in + (c * j->height + y + dy) * j->width + from + dx,
                   (size_t)(to - from));
    }
}

/* Copies the pixel of each place, or the fill colour where it is negative, to n columns of row y from x on. */
static void take(const job *j, const int32_t *places, int32_t y, int32_t x, int32_t n, const uint8_t *in, uint8_t *out)
{
    const int32_t plane = j->height * j->width;
    out += y * j->width + x;
    for (int c = 0; c < 3; c++, in += plane, out += plane)
        for (int32_t i = 0; i < n; i++) out[i] = places[i] < 0 ? j->change->fill[c] : in[places[i]];
}

/* Pillow's ImagingScaleAffine: positions grow by repeated addition. */
static void nearest_scaled(const job *j, const double m[6], const uint8_t *in, uint8_t *out)
{
    double yin = m[5] + m[4] * 0.5;
    for (int32_t y = 0; y < j->height; y++, yin += m[4]) {
        const int32_t row = yin < 0 || yin >= j->height ? -1 : (int32_t)yin;
        double xin = m[2] + m[0] * 0.5;
        for (int32_t x = 0; x < j->width; x += BLOCK) {
            int32_t places[BLOCK], n = j->width - x < BLOCK ? j->width - x : BLOCK;
            for (int32_t i = 0; i < n; i++, xin += m[0])
                places[i] = row < 0 || xin < 0 || xin >= j->width ? -1 : row * j->width + (int32_t)xin;
            take(j, places, y, x, n, in, out);
        }
    }
}

static int64_t fixed(double v) { return (int64_t)floor(v * 65536.0 + 0.5); }

/* Pillow's affine_fixed: 16.16 fixed point. */
static void nearest_fixed(const job *j, const double m[6], const uint8_t *in, uint8_t *out)
{
    const int64_t xx = fixed(m[0]), xy = fixed(m[1]), yx = fixed(m[3]), yy = fixed(m[4]);
    const int64_t x0 = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5), y0 = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
    for (int32_t y = 0; y < j->height; y++)
        for (int32_t x = 0; x < j->width; x += BLOCK) {
            int32_t places[BLOCK], n = j->width - x < BLOCK ? j->width - x : BLOCK;
            for (int32_t i = 0; i < n; i++) {
                const int64_t column = (x0 + y * xy + (x + i) * xx) >> 16, row = (y0 + y * yy + (x + i) * yx) >> 16;
                const bool inside = column >= 0 && column < j->width && row >= 0 && row < j->height;
                places[i] = inside ? (int32_t)(row * j->width + column) : -1;
            }
            take(j, places, y, x, n, in, out);
        }
}

static bool whole(double v) { return fabs(v) < 0x1p30 && v == floor(v); }

static void affine(const abar__image_change *change, const double m[6], int32_t height, int32_t width, const uint8_t *in,
                   uint8_t *out)
{
    const job j = {.change = change,
                   .height = height,
                   .width = width,
                   .taps = change->filter == ABAR_IMAGE_BICUBIC ? 4 : 2,
                   .rows_stay = m[3] == 0 && m[4] == 1 && m[5] == 0,
                   .columns_stay = m[0] == 1 && m[1] == 0 && m[2] == 0};
    if (m[0] == 1 && m[1] == 0 && m[3] == 0 && m[4] == 1 && whole(m[2]) && whole(m[5]))
        shift(&j, (int32_t)m[2], (int32_t)m[5], in, out); /* every filter gives the pixels themselves */
    else if (change->filter != ABAR_IMAGE_NEAREST)
        interpolate(&j, m, in, out);
    else if (m[1] == 0 && m[3] == 0)
        nearest_scaled(&j, m, in, out);
    else
        nearest_fixed(&j, m, in, out);
}

void abar__image_affine(const abar__image_change *change, int32_t height, int32_t width, const uint8_t *in, uint8_t *out)
{
    affine(change, change->matrix, height, width, in, out);
}

/* ---- rotation ---- */

/* 15 decimals, as Python's round: the decimal number is correctly rounded, then the double nearest to it is taken. */
static double round15(double v)
{
    char text[40];
    snprintf(text, sizeof text, "%.15f", v);
    return strtod(text, NULL);
}

/* By a quarter (of a square), a half or three quarters of a turn. */
static void turn(int quarters, int32_t height, int32_t width, const uint8_t *in, uint8_t *out)
{
    const int32_t plane = height * width;
    const int32_t first = quarters == 1 ? width - 1 : quarters == 2 ? plane - 1 : plane - width;
    const int32_t down = quarters == 1 ? -1 : quarters == 2 ? -width : 1;
    const int32_t right = quarters == 1 ? width : quarters == 2 ? -1 : -width;
    for (int c = 0; c < 3; c++, in += plane)
        for (int32_t y = 0; y < height; y++)
            for (int32_t x = 0; x < width; x++) *out++ = in[first + y * down + x * right];
}

void abar__image_rotate(const abar__image_change *change, int32_t height, int32_t width, const uint8_t *in, uint8_t *out)
{
    double degrees = fmod(change->value, 360.0);
    if (degrees < 0) degrees += 360.0;
    if (degrees == 0) {
        memcpy(out, in, (size_t)3 * (size_t)height * (size_t)width);
        return;
    }
    if (degrees == 180 || (height == width && (degrees == 90 || degrees == 270))) {
        turn((int)degrees / 90, height, width, in, out);
        return;
    }
    const double angle = -(degrees * (3.141592653589793 / 180.0)), x = width / 2.0, y = height / 2.0;
    const double cosine = round15(cos(angle)), sine = round15(sin(angle)), minus_sine = round15(-sin(angle));
    const double m[6] = {cosine,     sine,   (cosine * -x + sine * -y + 0.0) + x,
                         minus_sine, cosine, (minus_sine * -x + cosine * -y + 0.0) + y};
    affine(change, m, height, width, in, out);
}
