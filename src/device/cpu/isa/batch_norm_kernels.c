/* The inner loops of batch norm. Sums are in float over short runs, which are added up in double; each kernel says why that
 * is enough. Each body is written once and specialised for full rows and the flags in use. */
#include "device/cpu/isa/batch_norm_kernels.h"
#include "device/cpu/isa/lanes.h"

#include <stddef.h>

#define ROWS_IN_FLOAT 64 /* before they are added in double: 32 terms per accumulator */

/* Sums of d = x - k and d*d, with k the run's own first row: d is small even where |mean| >> deviation, so that float is
 * accurate enough. The shift back to k = 0 is done in double. A lane of zeros (padding) adds exactly zero. */
ABAR_SPECIALIZED void moments_run(const float *restrict x, int64_t rows, int64_t stride, int lanes, double *restrict sum,
                                  double *restrict square)
{
    float k[ABAR_LANES], s0[ABAR_LANES] = {0}, s1[ABAR_LANES] = {0}, q0[ABAR_LANES] = {0}, q1[ABAR_LANES] = {0};
    for (int l = 0; l < lanes; l++) k[l] = x[l];
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2)
#pragma omp simd
        for (int l = 0; l < lanes; l++) {
            float d = x[r * stride + l] - k[l], e = x[(r + 1) * stride + l] - k[l];
            s0[l] += d;
            q0[l] += d * d;
            s1[l] += e;
            q1[l] += e * e;
        }
    if (r < rows)
        for (int l = 0; l < lanes; l++) {
            float d = x[r * stride + l] - k[l];
            s0[l] += d;
            q0[l] += d * d;
        }
    double n = (double)rows;
    for (int l = 0; l < lanes; l++) {
        double s = (double)s0[l] + (double)s1[l], q = (double)q0[l] + (double)q1[l], m = (double)k[l];
        sum[l] += s + n * m;
        square[l] += q + m * (2 * s + n * m);
    }
}

static void moments(const abar__norm_rows *at, const float *x, double *sum, double *square)
{
    for (int64_t r = 0; r < at->rows; r += ROWS_IN_FLOAT) {
        int64_t rows = at->rows - r < ROWS_IN_FLOAT ? at->rows - r : ROWS_IN_FLOAT;
        const float *from = x + at->begin + r * at->stride;
        if (at->lanes == ABAR_LANES)
            moments_run(from, rows, at->stride, ABAR_LANES, sum, square);
        else
            moments_run(from, rows, at->stride, at->lanes, sum, square);
    }
}

/* The pre-activation; forward and backward must agree on its sign, so both call this. */
ABAR_SPECIALIZED float affine(const abar__norm_coef *c, int l, float x)
{
    return (x - c->v[ABAR_NORM_MEAN][l]) * c->v[ABAR_NORM_SCALE][l] + c->v[ABAR_NORM_SHIFT][l];
}

ABAR_SPECIALIZED void normalize_lanes(const abar__norm_rows *at, int lanes, const abar__norm_coef *coef,
                                      const float *restrict x, const float *restrict residual, float *restrict y, bool add,
                                      bool relu)
{
    const abar__norm_coef c = *coef;
    int64_t begin = at->begin, rows = at->rows, stride = at->stride;
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int l = 0; l < lanes; l++) {
            int64_t i = begin + r * stride + l;
            float v = affine(&c, l, x[i]);
            if (add) v += residual[i];
            if (relu) v = v < 0 ? 0 : v; /* NaN stays NaN */
            y[i] = v;
        }
}

ABAR_SPECIALIZED void normalize_rows(const abar__norm_rows *at, const abar__norm_coef *coef, const float *x,
                                     const float *residual, float *y, bool add, bool relu)
{
    if (at->lanes == ABAR_LANES)
        normalize_lanes(at, ABAR_LANES, coef, x, residual, y, add, relu);
    else
        normalize_lanes(at, at->lanes, coef, x, residual, y, add, relu);
}

static void normalize(const abar__norm_rows *at, const abar__norm_coef *coef, const float *x, const float *residual, float *y,
                      bool relu)
{
    if (residual && relu)
        normalize_rows(at, coef, x, residual, y, true, true);
    else if (residual)
        normalize_rows(at, coef, x, residual, y, true, false);
    else if (relu)
        normalize_rows(at, coef, x, NULL, y, false, true);
    else
        normalize_rows(at, coef, x, NULL, y, false, false);
}

/* g = (dy + dy2) masked, at offset i. */
ABAR_SPECIALIZED float gradient(const abar__norm_grad *in, const abar__norm_coef *c, int64_t i, int l, abar__norm_mask mask,
                                bool two)
{
    float g = in->dy[i];
    if (two) g += in->dy2[i];
    if (mask == ABAR_NORM_BY_Y) g = in->y[i] > 0 ? g : 0;
    if (mask == ABAR_NORM_BY_X) g = affine(c, l, in->x[i]) > 0 ? g : 0;
    return g;
}

ABAR_SPECIALIZED void sums_lanes(const abar__norm_rows *at, int lanes, const abar__norm_coef *coef, const abar__norm_grad *grad,
                                 float *restrict keep, double *restrict sum, double *restrict with_x, abar__norm_mask mask,
                                 bool two, bool kept)
{
    const abar__norm_coef c = *coef;
    const abar__norm_grad in = *grad;
    int64_t begin = at->begin, stride = at->stride;
    for (int64_t run = 0; run < at->rows; run += ROWS_IN_FLOAT) {
        int64_t end = run + ROWS_IN_FLOAT < at->rows ? run + ROWS_IN_FLOAT : at->rows;
        float s[ABAR_LANES] = {0}, q[ABAR_LANES] = {0};
        for (int64_t r = run; r < end; r++)
#pragma omp simd
            for (int l = 0; l < lanes; l++) {
                int64_t i = begin + r * stride + l;
                float g = gradient(&in, &c, i, l, mask, two);
                if (kept) keep[i] = g;
                s[l] += g;
                q[l] += g * (in.x[i] - c.v[ABAR_NORM_MEAN][l]);
            }
        for (int l = 0; l < lanes; l++) {
            sum[l] += (double)s[l];
            with_x[l] += (double)q[l];
        }
    }
}

ABAR_SPECIALIZED void sums_rows(const abar__norm_rows *at, const abar__norm_coef *coef, const abar__norm_grad *grad,
                                float *keep, double *sum, double *with_x, abar__norm_mask mask, bool two, bool kept)
{
    if (at->lanes == ABAR_LANES)
        sums_lanes(at, ABAR_LANES, coef, grad, keep, sum, with_x, mask, two, kept);
    else
        sums_lanes(at, at->lanes, coef, grad, keep, sum, with_x, mask, two, kept);
}

ABAR_SPECIALIZED void sums_masked(const abar__norm_rows *at, const abar__norm_coef *coef, const abar__norm_grad *grad,
                                  float *keep, double *sum, double *with_x, abar__norm_mask mask)
{
    if (grad->dy2 && keep)
        sums_rows(at, coef, grad, keep, sum, with_x, mask, true, true);
    else if (grad->dy2)
        sums_rows(at, coef, grad, NULL, sum, with_x, mask, true, false);
    else if (keep)
        sums_rows(at, coef, grad, keep, sum, with_x, mask, false, true);
    else
        sums_rows(at, coef, grad, NULL, sum, with_x, mask, false, false);
}

static void gradient_sums(const abar__norm_rows *at, const abar__norm_coef *coef, const abar__norm_grad *grad, float *keep,
                          double *sum, double *with_x)
{
    if (grad->mask == ABAR_NORM_BY_Y)
        sums_masked(at, coef, grad, keep, sum, with_x, ABAR_NORM_BY_Y);
    else if (grad->mask == ABAR_NORM_BY_X)
        sums_masked(at, coef, grad, keep, sum, with_x, ABAR_NORM_BY_X);
    else
        sums_masked(at, coef, grad, keep, sum, with_x, ABAR_NORM_ALL);
}

ABAR_SPECIALIZED void input_lanes(const abar__norm_rows *at, int lanes, const abar__norm_coef *coef,
                                  const abar__norm_grad *grad, float *restrict dx, abar__norm_mask mask, bool two, bool add)
{
    const abar__norm_coef c = *coef;
    const abar__norm_grad in = *grad;
    int64_t begin = at->begin, rows = at->rows, stride = at->stride;
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int l = 0; l < lanes; l++) {
            int64_t i = begin + r * stride + l;
            float g = gradient(&in, &c, i, l, mask, two);
            float d = g * c.v[ABAR_NORM_SCALE][l] + (in.x[i] - c.v[ABAR_NORM_MEAN][l]) * c.v[ABAR_NORM_FROM_X][l] +
                      c.v[ABAR_NORM_OFFSET][l];
            dx[i] = add ? dx[i] + d : d;
        }
}

ABAR_SPECIALIZED void input_rows(const abar__norm_rows *at, const abar__norm_coef *coef, const abar__norm_grad *grad, float *dx,
                                 abar__norm_mask mask, bool two, bool add)
{
    if (at->lanes == ABAR_LANES)
        input_lanes(at, ABAR_LANES, coef, grad, dx, mask, two, add);
    else
        input_lanes(at, at->lanes, coef, grad, dx, mask, two, add);
}

ABAR_SPECIALIZED void input_masked(const abar__norm_rows *at, const abar__norm_coef *coef, const abar__norm_grad *grad,
                                   float *dx, abar__norm_mask mask, bool add)
{
    if (grad->dy2 && add)
        input_rows(at, coef, grad, dx, mask, true, true);
    else if (grad->dy2)
        input_rows(at, coef, grad, dx, mask, true, false);
    else if (add)
        input_rows(at, coef, grad, dx, mask, false, true);
    else
        input_rows(at, coef, grad, dx, mask, false, false);
}

static void gradient_input(const abar__norm_rows *at, const abar__norm_coef *coef, const abar__norm_grad *grad, float *dx,
                           bool add)
{
    if (grad->mask == ABAR_NORM_BY_Y)
        input_masked(at, coef, grad, dx, ABAR_NORM_BY_Y, add);
    else if (grad->mask == ABAR_NORM_BY_X)
        input_masked(at, coef, grad, dx, ABAR_NORM_BY_X, add);
    else
        input_masked(at, coef, grad, dx, ABAR_NORM_ALL, add);
}

const abar__batch_norm_kernels ABAR_ISA_NAME(abar__batch_norm) = {moments, normalize, gradient_sums, gradient_input};
