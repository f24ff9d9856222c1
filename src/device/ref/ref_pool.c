/* Pooling over windows of each channel. The average divides by the full kernel, padding included. The maximum ignores the
 * padding; of equal maxima the first in row-major order counts. saved: the position of each maximum. */
#include "device/ref/ref_nn.h"

#include <math.h>
#include <string.h>

static abar_status create(abar__op *op)
{
    abar__ref_dense(op);
    const size_t places = (size_t)abar__shape_count(&op->desc.out) * sizeof(int64_t);
    if (!op->desc.average && !op->desc.patterned) op->saved_bytes = places;
    if (op->desc.patterned) op->pattern_bytes = places;
    return ABAR_OK;
}

static double window_average(const abar__op_desc *d, const double *x, int64_t n, int64_t c, int64_t p, int64_t q)
{
    const int64_t *kernel = d->window.kernel;
    double sum = 0.0;
    for (int64_t i = 0; i < kernel[0]; i++)
        for (int64_t j = 0; j < kernel[1]; j++) {
            int64_t h = abar__ref_tap(&d->window, 0, p, i), w = abar__ref_tap(&d->window, 1, q, j);
            if (abar__ref_inside(&d->in[0], h, w)) sum += x[abar__ref_at(&d->in[0], n, c, h, w)];
        }
    return sum / (double)(kernel[0] * kernel[1]);
}

/* The position of the first maximum of a window; a NaN is larger than any number. -1: the window covers only padding. */
static int64_t window_maximum(const abar__op_desc *d, const double *x, int64_t n, int64_t c, int64_t p, int64_t q)
{
    int64_t best = -1;
    for (int64_t i = 0; i < d->window.kernel[0]; i++)
        for (int64_t j = 0; j < d->window.kernel[1]; j++) {
            int64_t h = abar__ref_tap(&d->window, 0, p, i), w = abar__ref_tap(&d->window, 1, q, j);
            if (!abar__ref_inside(&d->in[0], h, w)) continue;
            int64_t at = abar__ref_at(&d->in[0], n, c, h, w);
            if (best < 0 || x[at] > x[best] || isnan(x[at])) best = at;
        }
    return best;
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    const double *x = a->x[0];
    double *y = a->y;
    int64_t *argmax = d->patterned ? a->pattern : a->saved;
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int64_t c = 0; c < d->out.dim[1]; c++)
            for (int64_t p = 0; p < d->out.dim[2]; p++)
                for (int64_t q = 0; q < d->out.dim[3]; q++) {
                    int64_t at = abar__ref_at(&d->out, n, c, p, q);
                    if (d->average) {
                        y[at] = window_average(d, x, n, c, p, q);
                    } else {
                        if (!a->run->repeat || !d->patterned) argmax[at] = window_maximum(d, x, n, c, p, q);
                        y[at] = argmax[at] < 0 ? -INFINITY : x[argmax[at]];
                    }
                }
    return ABAR_OK;
}

static void maximum_backward(const abar__op_desc *d, const abar__op_args *a)
{
    const double *dy = a->dy;
    const int64_t *argmax = d->patterned ? a->pattern : a->saved;
    double *dx = a->dx[0];
    for (int64_t i = 0; i < abar__shape_count(&d->out); i++)
        if (argmax[i] >= 0) dx[argmax[i]] += dy[i];
}

static void average_backward(const abar__op_desc *d, const double *dy, double *dx, int64_t n, int64_t c)
{
    const int64_t *kernel = d->window.kernel;
    for (int64_t p = 0; p < d->out.dim[2]; p++)
        for (int64_t q = 0; q < d->out.dim[3]; q++)
            for (int64_t i = 0; i < kernel[0]; i++)
                for (int64_t j = 0; j < kernel[1]; j++) {
                    int64_t h = abar__ref_tap(&d->window, 0, p, i), w = abar__ref_tap(&d->window, 1, q, j);
                    if (!abar__ref_inside(&d->in[0], h, w)) continue;
                    double share = dy[abar__ref_at(&d->out, n, c, p, q)] / (double)(kernel[0] * kernel[1]);
                    dx[abar__ref_at(&d->in[0], n, c, h, w)] += share;
                }
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    if (!a->dx[0]) return ABAR_OK;
    memset(a->dx[0], 0, (size_t)abar__shape_count(&d->in[0]) * sizeof(double));
    if (!d->average) {
        maximum_backward(d, a);
        return ABAR_OK;
    }
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int64_t c = 0; c < d->out.dim[1]; c++) average_backward(d, a->dy, a->dx[0], n, c);
    return ABAR_OK;
}

const abar__op_impl abar__ref_pool2d = {"ref-pool2d", ABAR_OP_POOL2D, create, forward, backward, NULL};
