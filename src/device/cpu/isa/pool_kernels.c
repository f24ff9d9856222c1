/* Maximum and average over the windows of one plane. The bodies take the number of lanes, and for the common 2x2 windows
 * also their size, as constants. */
#include "device/cpu/isa/pool_kernels.h"
#include "device/cpu/isa/lanes.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* The part of a window that is inside the input along one axis: its cells [begin, end), and the pixel of cell 0. */
typedef struct span {
    int64_t first, begin, end;
} span;

ABAR_SPECIALIZED span span_of(const abar__pool *p, int axis, int64_t at, int64_t kernel)
{
    const abar_window *w = &p->window;
    span s = {at * w->stride[axis] - w->pad[axis], 0, kernel};
    if (w->pad[axis] == 0) return s; /* always inside */
    while (s.begin < s.end && s.first + s.begin * w->dilation[axis] < 0) s.begin++;
    while (s.begin < s.end && s.first + (s.end - 1) * w->dilation[axis] >= p->in[axis]) s.end--;
    return s;
}

/* Offset of the pixel under cell (i, j). */
ABAR_SPECIALIZED int64_t pixel(const abar__pool *p, span h, span w, int64_t i, int64_t j, int lanes)
{
    return ((h.first + i * p->window.dilation[0]) * p->in[1] + w.first + j * p->window.dilation[1]) * lanes;
}

ABAR_SPECIALIZED void store_cells(void *cells, int64_t at, const int32_t *restrict cell, int lanes, bool wide)
{
    if (wide) {
        int32_t *restrict to = (int32_t *)cells + at;
#pragma omp simd
        for (int l = 0; l < lanes; l++) to[l] = cell[l];
    } else {
        uint8_t *restrict to = (uint8_t *)cells + at;
#pragma omp simd
        for (int l = 0; l < lanes; l++) to[l] = (uint8_t)cell[l];
    }
}

ABAR_SPECIALIZED void load_cells(const void *cells, int64_t at, int32_t *restrict cell, int lanes, bool wide)
{
    if (wide) {
        const int32_t *restrict from = (const int32_t *)cells + at;
#pragma omp simd
        for (int l = 0; l < lanes; l++) cell[l] = from[l];
    } else {
        const uint8_t *restrict from = (const uint8_t *)cells + at;
#pragma omp simd
        for (int l = 0; l < lanes; l++) cell[l] = from[l];
    }
}

/* The first maximum counts, and a NaN is larger than any number. */
ABAR_SPECIALIZED void max_window(const abar__pool *p, const float *restrict x, float *restrict y, int32_t *restrict cell,
                                 span h, span w, int64_t kernel_w, int lanes)
{
#pragma omp simd
    for (int l = 0; l < lanes; l++) {
        y[l] = -INFINITY;
        cell[l] = (int32_t)(h.begin * kernel_w + w.begin);
    }
    for (int64_t i = h.begin; i < h.end; i++)
        for (int64_t j = w.begin; j < w.end; j++) {
            const float *from = x + pixel(p, h, w, i, j, lanes);
            int32_t number = (int32_t)(i * kernel_w + j);
#pragma omp simd
            for (int l = 0; l < lanes; l++) {
                float v = from[l];
                int more = (v > y[l]) | (v != v);
                y[l] = more ? v : y[l];
                cell[l] = more ? number : cell[l];
            }
        }
}

ABAR_SPECIALIZED void max_plane(const abar__pool *p, const float *restrict x, float *restrict y, void *cells, int64_t kernel_h,
                                int64_t kernel_w, int lanes)
{
    for (int64_t oh = 0; oh < p->out[0]; oh++)
        for (int64_t ow = 0; ow < p->out[1]; ow++) {
            span h = span_of(p, 0, oh, kernel_h), w = span_of(p, 1, ow, kernel_w);
            int64_t at = (oh * p->out[1] + ow) * lanes;
            float best[ABAR_LANES];
            int32_t cell[ABAR_LANES];
            max_window(p, x, best, cell, h, w, kernel_w, lanes);
#pragma omp simd
            for (int l = 0; l < lanes; l++) y[at + l] = best[l];
            if (cells) store_cells(cells, at, cell, lanes, p->wide);
        }
}

ABAR_SPECIALIZED bool two_by_two(const abar__pool *p)
{
    const abar_window *w = &p->window;
    return w->kernel[0] == 2 && w->kernel[1] == 2 && w->dilation[0] == 1 && w->dilation[1] == 1 && w->pad[0] == 0 &&
           w->pad[1] == 0;
}

/* Passes the constants of a 2x2 window to the compiler; its stride stays variable. */
ABAR_SPECIALIZED abar__pool with_unit_cells(const abar__pool *p)
{
    abar__pool q = *p;
    q.window.pad[0] = q.window.pad[1] = 0;
    q.window.dilation[0] = q.window.dilation[1] = 1;
    q.wide = false;
    return q;
}

ABAR_SPECIALIZED void max_lanes(const abar__pool *p, const float *x, float *y, void *cell, int lanes)
{
    if (two_by_two(p)) {
        abar__pool q = with_unit_cells(p);
        max_plane(&q, x, y, cell, 2, 2, lanes);
    } else {
        max_plane(p, x, y, cell, p->window.kernel[0], p->window.kernel[1], lanes);
    }
}

static void max(const abar__pool *p, const float *x, float *y, void *cell)
{
    switch (p->lanes) {
    case 16: max_lanes(p, x, y, cell, 16); break;
    case 8: max_lanes(p, x, y, cell, 8); break;
    default: max_lanes(p, x, y, cell, 1);
    }
}

/* A window that covers only padding has no cells. */
ABAR_SPECIALIZED void chosen_lanes(const abar__pool *p, const float *restrict x, float *restrict y, const void *cells,
                                   int lanes)
{
    const int64_t *kernel = p->window.kernel;
    for (int64_t oh = 0; oh < p->out[0]; oh++)
        for (int64_t ow = 0; ow < p->out[1]; ow++) {
            const span h = span_of(p, 0, oh, kernel[0]), w = span_of(p, 1, ow, kernel[1]);
            const int64_t at = (oh * p->out[1] + ow) * lanes;
            int32_t cell[ABAR_LANES];
            load_cells(cells, at, cell, lanes, p->wide);
            for (int l = 0; l < lanes; l++) {
                const bool some = h.begin < h.end && w.begin < w.end;
                y[at + l] = some ? x[pixel(p, h, w, cell[l] / kernel[1], cell[l] % kernel[1], lanes) + l] : -INFINITY;
            }
        }
}

static void chosen(const abar__pool *p, const float *x, float *y, const void *cell)
{
    switch (p->lanes) {
    case 16: chosen_lanes(p, x, y, cell, 16); break;
    case 8: chosen_lanes(p, x, y, cell, 8); break;
    default: chosen_lanes(p, x, y, cell, 1);
    }
}

/* Every cell of a window gets its part of dy[l]: written where windows tile the input, added where they overlap. */
ABAR_SPECIALIZED void spread(const abar__pool *p, const float *restrict g, const int32_t *restrict cell, float *restrict dx,
                             span h, span w, int64_t kernel_w, int lanes, bool by_cell, bool tiles)
{
    for (int64_t i = h.begin; i < h.end; i++)
        for (int64_t j = w.begin; j < w.end; j++) {
            float *to = dx + pixel(p, h, w, i, j, lanes);
            int32_t number = (int32_t)(i * kernel_w + j);
#pragma omp simd
            for (int l = 0; l < lanes; l++) {
                float v = by_cell && cell[l] != number ? 0 : g[l];
                to[l] = tiles ? v : to[l] + v;
            }
        }
}

ABAR_SPECIALIZED void grad_plane(const abar__pool *p, const float *restrict dy, const void *cells, float *restrict dx,
                                 int64_t kernel_h, int64_t kernel_w, int lanes, bool by_cell, bool tiles)
{
    float share = by_cell ? 1.0f : 1.0f / (float)(kernel_h * kernel_w);
    if (!tiles) memset(dx, 0, (size_t)(p->in[0] * p->in[1] * lanes) * sizeof *dx);
    for (int64_t oh = 0; oh < p->out[0]; oh++)
        for (int64_t ow = 0; ow < p->out[1]; ow++) {
            span h = span_of(p, 0, oh, kernel_h), w = span_of(p, 1, ow, kernel_w);
            int64_t at = (oh * p->out[1] + ow) * lanes;
            float g[ABAR_LANES];
            int32_t cell[ABAR_LANES];
#pragma omp simd
            for (int l = 0; l < lanes; l++) g[l] = dy[at + l] * share;
            if (by_cell) load_cells(cells, at, cell, lanes, p->wide);
            spread(p, g, cell, dx, h, w, kernel_w, lanes, by_cell, tiles);
        }
}

ABAR_SPECIALIZED void grad_lanes(const abar__pool *p, const float *dy, const void *cells, float *dx, int lanes, bool by_cell)
{
    int64_t kernel_h = p->window.kernel[0], kernel_w = p->window.kernel[1];
    if (p->tiles && two_by_two(p)) {
        abar__pool q = with_unit_cells(p);
        grad_plane(&q, dy, cells, dx, 2, 2, lanes, by_cell, true);
    } else if (p->tiles) {
        grad_plane(p, dy, cells, dx, kernel_h, kernel_w, lanes, by_cell, true);
    } else {
        grad_plane(p, dy, cells, dx, kernel_h, kernel_w, lanes, by_cell, false);
    }
}

static void max_grad(const abar__pool *p, const float *dy, const void *cell, float *dx)
{
    switch (p->lanes) {
    case 16: grad_lanes(p, dy, cell, dx, 16, true); break;
    case 8: grad_lanes(p, dy, cell, dx, 8, true); break;
    default: grad_lanes(p, dy, cell, dx, 1, true);
    }
}

static void average_grad(const abar__pool *p, const float *dy, float *dx)
{
    switch (p->lanes) {
    case 16: grad_lanes(p, dy, NULL, dx, 16, false); break;
    case 8: grad_lanes(p, dy, NULL, dx, 8, false); break;
    default: grad_lanes(p, dy, NULL, dx, 1, false);
    }
}

/* Rows of the window are summed separately first: short sums have small errors, also for windows as large as the image. */
ABAR_SPECIALIZED void average_plane(const abar__pool *p, const float *restrict x, float *restrict y, int lanes)
{
    const int64_t *kernel = p->window.kernel;
    float share = 1.0f / (float)(kernel[0] * kernel[1]);
    for (int64_t oh = 0; oh < p->out[0]; oh++)
        for (int64_t ow = 0; ow < p->out[1]; ow++) {
            span h = span_of(p, 0, oh, kernel[0]), w = span_of(p, 1, ow, kernel[1]);
            float sum[ABAR_LANES] = {0};
            for (int64_t i = h.begin; i < h.end; i++) {
                float row[ABAR_LANES] = {0};
                for (int64_t j = w.begin; j < w.end; j++) {
                    const float *from = x + pixel(p, h, w, i, j, lanes);
#pragma omp simd
                    for (int l = 0; l < lanes; l++) row[l] += from[l];
                }
                for (int l = 0; l < lanes; l++) sum[l] += row[l];
            }
            for (int l = 0; l < lanes; l++) y[(oh * p->out[1] + ow) * lanes + l] = sum[l] * share;
        }
}

static void average(const abar__pool *p, const float *x, float *y)
{
    switch (p->lanes) {
    case 16: average_plane(p, x, y, 16); break;
    case 8: average_plane(p, x, y, 8); break;
    default: average_plane(p, x, y, 1);
    }
}

const abar__pool_kernels ABAR_ISA_NAME(abar__pool) = {max, chosen, max_grad, average, average_grad};
