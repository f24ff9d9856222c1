/* Normalisation: y = scale (x - mean) / sqrt(variance + eps) + shift. Batch norm takes the moments per channel over the batch,
 * layer norm per row over the last dimension, of one input or the sum of two. With xh = (x - mean) / std and g = scale dy the
 * gradient is dx = (g - mean(g) - xh mean(g xh)) / std. saved: the means, then the reciprocal standard deviations. */
#include "device/ref/ref_nn.h"

#include <math.h>

/* The values of one channel: blocks of `length` numbers, `stride` apart. A row of layer norm is a single block. */
typedef struct slice {
    int64_t first, blocks, stride, length;
} slice;

static slice channel(const abar__shape *s, int64_t c) /* (N, C) or (N, C, H, W) */
{
    int64_t plane = abar__shape_count(s) / (s->dim[0] * s->dim[1]);
    return (slice){.first = c * plane, .blocks = s->dim[0], .stride = s->dim[1] * plane, .length = plane};
}

static void moments(const double *x, slice s, double *mean, double *variance)
{
    double count = (double)(s.blocks * s.length), sum = 0.0, squares = 0.0;
    for (int64_t n = 0; n < s.blocks; n++)
        for (int64_t i = 0; i < s.length; i++) sum += x[s.first + n * s.stride + i];
    *mean = sum / count;
    for (int64_t n = 0; n < s.blocks; n++)
        for (int64_t i = 0; i < s.length; i++) {
            double d = x[s.first + n * s.stride + i] - *mean;
            squares += d * d;
        }
    *variance = squares / count;
}

/* ---- batch norm ------------------------------------------------------------------------------------------------ */

static abar_status batch_create(abar__op *op)
{
    ABAR_TRY(abar__ref_create_fused(op));
    op->saved_bytes = 2 * (size_t)op->desc.out.dim[1] * sizeof(double);
    op->takes_dy2 = true;
    return ABAR_OK;
}

/* The moments that normalise channel c. In training they are the batch's, which also update the running ones; the running
 * variance uses the unbiased estimate. */
static void batch_moments(const abar__op *op, const abar__op_args *a, int64_t c, double *mean, double *variance)
{
    double *running_mean = a->buffer[0], *running_variance = a->buffer[1];
    if (!a->run->training) {
        *mean = running_mean[c];
        *variance = running_variance[c];
        return;
    }
    slice s = channel(&op->desc.out, c);
    moments(a->x[0], s, mean, variance);
    double count = (double)(s.blocks * s.length), m = a->run->hold ? 0.0 : op->desc.momentum;
    double unbiased = count > 1.0 ? *variance * count / (count - 1.0) : 0.0;
    running_mean[c] = a->run->own ? *mean : (1.0 - m) * running_mean[c] + m * *mean;
    running_variance[c] = a->run->own ? unbiased : (1.0 - m) * running_variance[c] + m * unbiased;
}

static abar_status batch_forward(abar__op *op, const abar__op_args *a)
{
    int64_t channels = op->desc.out.dim[1];
    const double *x = a->x[0], *residual = a->x[1], *scale = a->param[0], *shift = a->param[1];
    double *y = a->y, *means = a->saved, *inverses = means + channels;
    for (int64_t c = 0; c < channels; c++) {
        double mean, variance;
        batch_moments(op, a, c, &mean, &variance);
        double inverse = 1.0 / sqrt(variance + op->desc.eps);
        means[c] = mean;
        inverses[c] = inverse;
        slice s = channel(&op->desc.out, c);
        for (int64_t n = 0; n < s.blocks; n++)
            for (int64_t i = s.first + n * s.stride; i < s.first + n * s.stride + s.length; i++) {
                double z = scale[c] * (x[i] - mean) * inverse + shift[c];
                y[i] = abar__ref_fused(op, op->desc.residual ? z + residual[i] : z);
            }
    }
    return ABAR_OK;
}

static abar_status batch_backward(abar__op *op, const abar__op_args *a)
{
    int64_t channels = op->desc.out.dim[1];
    const double *x = a->x[0], *scale = a->param[0], *means = a->saved, *inverses = means + channels;
    double *dx = a->dx[0], *dresidual = a->dx[1];
    double *dscale = abar__ref_dparam(a, 0, channels), *dshift = abar__ref_dparam(a, 1, channels);
    for (int64_t c = 0; c < channels; c++) {
        slice s = channel(&op->desc.out, c);
        double count = (double)(s.blocks * s.length), sum = 0.0, dot = 0.0; /* of dz, and of dz times xh */
        for (int64_t n = 0; n < s.blocks; n++)
            for (int64_t i = s.first + n * s.stride; i < s.first + n * s.stride + s.length; i++) {
                double dz = abar__ref_dz(op, a, i);
                sum += dz;
                dot += dz * (x[i] - means[c]) * inverses[c];
            }
        dscale[c] += dot;
        dshift[c] += sum;
        for (int64_t n = 0; n < s.blocks; n++)
            for (int64_t i = s.first + n * s.stride; i < s.first + n * s.stride + s.length; i++) {
                double dz = abar__ref_dz(op, a, i), xh = (x[i] - means[c]) * inverses[c];
                if (dx) dx[i] = scale[c] * inverses[c] * (dz - sum / count - xh * dot / count);
                if (dresidual) dresidual[i] = dz;
            }
    }
    return ABAR_OK;
}

const abar__op_impl abar__ref_batch_norm = {"ref-batch-norm", ABAR_OP_BATCH_NORM, batch_create,
                                            batch_forward,    batch_backward,     NULL};

/* ---- layer norm ------------------------------------------------------------------------------------------------ */

static int64_t row_length(const abar__shape *s) { return s->dim[s->ndim - 1]; }
static int64_t row_count(const abar__shape *s) { return abar__shape_count(s) / row_length(s); }

static abar_status layer_create(abar__op *op)
{
    abar__ref_dense(op);
    op->backward_needs = op->desc.residual ? ABAR_NEEDS_STREAM : ABAR_NEEDS_X;
    op->dx_alike = op->desc.residual;
    op->saved_bytes = 2 * (size_t)row_count(&op->desc.out) * sizeof(double);
    return ABAR_OK;
}

/* The input of the norm. */
static const double *layer_input(const abar__op *op, const abar__op_args *a) { return op->desc.residual ? a->stream : a->x[0]; }

static void add_residual(const abar__op *op, const abar__op_args *a)
{
    const double *x = a->x[0], *residual = a->x[1];
    double *stream = a->stream;
    for (int64_t i = 0; i < abar__shape_count(&op->desc.out); i++) stream[i] = x[i] + residual[i];
}

static abar_status layer_forward(abar__op *op, const abar__op_args *a)
{
    int64_t rows = row_count(&op->desc.out), width = row_length(&op->desc.out);
    if (op->desc.residual) add_residual(op, a);
    const double *x = layer_input(op, a), *scale = a->param[0], *shift = a->param[1];
    double *y = a->y, *means = a->saved, *inverses = means + rows;
    for (int64_t r = 0; r < rows; r++) {
        double mean, variance;
        moments(x, (slice){.first = r * width, .blocks = 1, .length = width}, &mean, &variance);
        means[r] = mean;
        inverses[r] = 1.0 / sqrt(variance + op->desc.eps);
        for (int64_t i = 0; i < width; i++) {
            double z = scale[i] * (x[r * width + i] - mean) * inverses[r];
            y[r * width + i] = shift ? z + shift[i] : z;
        }
    }
    return ABAR_OK;
}

static abar_status layer_backward(abar__op *op, const abar__op_args *a)
{
    int64_t rows = row_count(&op->desc.out), width = row_length(&op->desc.out);
    const double *scale = a->param[0], *means = a->saved, *inverses = means + rows;
    double *dscale = abar__ref_dparam(a, 0, width), *dshift = a->dparam[1] ? abar__ref_dparam(a, 1, width) : NULL;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = layer_input(op, a) + r * width, *dy = (const double *)a->dy + r * width;
        const double *beside = a->dstream ? (const double *)a->dstream + r * width : NULL;
        double sum = 0.0, dot = 0.0; /* of g = scale dy, and of g times xh */
        for (int64_t i = 0; i < width; i++) {
            double xh = (x[i] - means[r]) * inverses[r];
            dscale[i] += dy[i] * xh;
            if (dshift) dshift[i] += dy[i];
            sum += scale[i] * dy[i];
            dot += scale[i] * dy[i] * xh;
        }
        for (int64_t i = 0; i < width; i++) {
            double xh = (x[i] - means[r]) * inverses[r];
            double dx = inverses[r] * (scale[i] * dy[i] - sum / (double)width - xh * dot / (double)width);
            for (int k = 0; k < op->desc.n_in; k++)
                if (a->dx[k]) ((double *)a->dx[k])[r * width + i] = beside ? dx + beside[i] : dx;
        }
    }
    return ABAR_OK;
}

const abar__op_impl abar__ref_layer_norm = {"ref-layer-norm", ABAR_OP_LAYER_NORM, layer_create,
                                            layer_forward,    layer_backward,     NULL};
