/* Geometry with Pillow's bytes (docs/images.md): affine maps in three filters, and rotation.
 *
 * The position of an output pixel is computed in double precision by the same operations in the same order as Pillow's
 * (libImaging/Geometry.c), uncontracted. Positions grow or fall along a row, so the pixels whose position is inside the image
 * are one run, and those whose neighbours are all inside are a run within it. */
#include "image/operations_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef abar__affine_job job;
typedef abar__affine_line line;
typedef abar__affine_run run;

static bool past(const line *l, double bound, int32_t x) { return (abar__affine_place(l, x) >= bound) != (l->step < 0); }

/* The first column of the run whose coordinate is not below the bound (falling: is below it); its end: none. */
static int32_t crossing(const line *l, double bound, run r)
{
    if (r.from == r.to || l->step == 0) return r.from == r.to || past(l, bound, r.from) ? r.from : r.to;
    const double guess = (bound - l->offset - l->across) / l->step; /* within a pixel, but for rounding */
    int32_t x = guess > r.from ? guess < r.to ? (int32_t)guess : r.to : r.from;
    while (x > r.from && past(l, bound, x - 1)) x--;
    while (x < r.to && !past(l, bound, x)) x++;
    return x;
}

/* The part of the run whose coordinate is at least low and below high. */
static run narrow(const line *l, double low, double high, run r)
{
    const int32_t first = crossing(l, low, r), last = crossing(l, high, r);
    run inside = l->step < 0 ? (run){last, first} : (run){first, last};
    if (inside.to < inside.from) inside.to = inside.from;
    return inside;
}

static void fill_row(const job *j, int32_t y, int32_t from, int32_t to, uint8_t *out)
{
    for (int c = 0; c < 3 && from < to; c++)
        memset(out + (c * j->height + y) * j->width + from, j->change->fill[c], (size_t)(to - from));
}

static void interpolate(const abar__operation_loops *loops, const job *j, const double m[6], const uint8_t *in, uint8_t *out)
{
    const double reach = (j->taps - 1) / 2.0; /* pixels that are needed on either side of a position */
    for (int32_t y = 0; y < j->height; y++) {
        const double middle = (double)y + 0.5;
        const line h = {m[0], m[1] * middle, m[2]}, v = {m[3], m[4] * middle, m[5]};
        run inside = {0, j->width};
        if (!j->columns_stay) inside = narrow(&h, 0, j->width, inside);
        if (!j->rows_stay) inside = narrow(&v, 0, j->height, inside);
        run whole = inside;
        if (!j->columns_stay) whole = narrow(&h, reach, j->width - reach, whole);
        if (!j->rows_stay) whole = narrow(&v, reach, j->height - reach, whole);
        fill_row(j, y, 0, inside.from, out);
        loops->interpolate(j, &h, &v, y, (run){inside.from, whole.from}, true, in, out);
        loops->interpolate(j, &h, &v, y, whole, false, in, out);
        loops->interpolate(j, &h, &v, y, (run){whole.to, inside.to}, true, in, out);
        fill_row(j, y, inside.to, j->width, out);
    }
}

/* ---- whole pixels ---- */

enum { BLOCK = 128 };

/* Content moves by (-dx, -dy). */
static void shift(const job *j, int32_t dx, int32_t dy, const uint8_t *in, uint8_t *out)
{
    int32_t from = dx < 0 ? -dx : 0, to = dx > 0 ? j->width - dx : j->width;
    if (from > j->width) from = j->width;
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

static void affine(const abar__operation_loops *loops, const abar__image_change *change, const double m[6], int32_t height,
                   int32_t width, const uint8_t *in, uint8_t *out)
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
        interpolate(loops, &j, m, in, out);
    else if (m[1] == 0 && m[3] == 0)
        nearest_scaled(&j, m, in, out);
    else
        nearest_fixed(&j, m, in, out);
}

void abar__image_affine(const abar__operation_loops *loops, const abar__image_change *change, int32_t height, int32_t width,
                        const uint8_t *in, uint8_t *out)
{
    affine(loops, change, change->matrix, height, width, in, out);
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

void abar__image_rotate(const abar__operation_loops *loops, const abar__image_change *change, int32_t height, int32_t width,
                        const uint8_t *in, uint8_t *out)
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
    affine(loops, change, m, height, width, in, out);
}
