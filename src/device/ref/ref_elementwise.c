/* Operations that copy or change one element at a time: reorder, activation, sum, concatenation, flatten, the option-A
 * shortcut and dropout. */
#include "device/ref/ref_nn.h"

#include "base/rng.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <string.h>

static abar_status create_dense(abar__op *op)
{
    abar__ref_dense(op);
    return ABAR_OK;
}

static void copy(double *to, const double *from, int64_t count)
{
    if (to != from) memcpy(to, from, (size_t)count * sizeof *to);
}

/* ---- reorder: the same numbers, lying differently -------------------------------------------------------------- */

static abar_status reorder_create(abar__op *op)
{
    (void)op; /* reads any layout and writes desc.out_layout: both are set already */
    return ABAR_OK;
}

static void reorder(const abar__shape *shape, void *to, abar_layout to_layout, const void *from, abar_layout from_layout)
{
    abar_tensor dst = abar_tensor_wrap(NULL, to, ABAR_F64, shape->ndim, shape->dim);
    abar_tensor src = abar_tensor_wrap(NULL, (void *)from, ABAR_F64, shape->ndim, shape->dim);
    dst.layout = to_layout;
    src.layout = from_layout;
    abar__tensor_copy_host(&dst, &src);
}

static abar_status reorder_forward(abar__op *op, const abar__op_args *a)
{
    reorder(&op->desc.out, a->y, op->out_layout, a->x[0], op->in_layout[0]);
    return ABAR_OK;
}

static abar_status reorder_backward(abar__op *op, const abar__op_args *a)
{
    if (a->dx[0]) reorder(&op->desc.out, a->dx[0], op->in_layout[0], a->dy, op->out_layout);
    return ABAR_OK;
}

const abar__op_impl abar__ref_reorder = {"ref-reorder",   ABAR_OP_REORDER,  reorder_create,
                                         reorder_forward, reorder_backward, NULL};

/* ---- activation ------------------------------------------------------------------------------------------------ */

#define SQRT_HALF 0.70710678118654752440
#define INV_SQRT_2PI 0.39894228040143267794
#define SQRT_2_OVER_PI 0.79788456080286535588
#define GELU_CUBIC 0.044715

static abar_status activation_create(abar__op *op)
{
    abar__ref_dense(op);
    switch (op->desc.activation) {
    case ABAR_ACT_NONE: break;
    case ABAR_ACT_RELU:
    case ABAR_ACT_TANH: op->backward_needs = ABAR_NEEDS_Y; break;
    case ABAR_ACT_GELU_ERF:
    case ABAR_ACT_GELU_TANH: op->backward_needs = ABAR_NEEDS_X; break;
    }
    if (op->desc.patterned) {
        op->backward_needs = 0;
        op->pattern_bytes = (size_t)abar__shape_count(&op->desc.out);
    }
    return ABAR_OK;
}

/* A ReLU that passes where the pattern says so; one that records lets a NaN through. */
static void pass_pattern(const abar__op *op, const abar__op_args *a)
{
    uint8_t *pattern = a->pattern;
    const double *x = a->x[0];
    double *y = a->y;
    for (int64_t i = 0; i < abar__shape_count(&op->desc.out); i++) {
        if (!a->run->repeat) pattern[i] = x[i] > 0.0 || isnan(x[i]);
        y[i] = pattern[i] ? x[i] : 0.0;
    }
}

double abar__ref_activate(abar__activation kind, double x)
{
    switch (kind) {
    case ABAR_ACT_NONE: break;
    case ABAR_ACT_RELU: return x < 0.0 ? 0.0 : x;
    case ABAR_ACT_TANH: return tanh(x);
    case ABAR_ACT_GELU_ERF: return 0.5 * x * (1.0 + erf(x * SQRT_HALF));
    case ABAR_ACT_GELU_TANH: return 0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)));
    }
    return x;
}

double abar__ref_slope(abar__activation kind, const double *x, const double *y, int64_t i)
{
    switch (kind) {
    case ABAR_ACT_NONE: break;
    case ABAR_ACT_RELU: return y[i] > 0.0 ? 1.0 : 0.0;
    case ABAR_ACT_TANH: return 1.0 - y[i] * y[i];
    case ABAR_ACT_GELU_ERF: /* the normal distribution function, plus x times its density */
        return 0.5 * (1.0 + erf(x[i] * SQRT_HALF)) + x[i] * INV_SQRT_2PI * exp(-0.5 * x[i] * x[i]);
    case ABAR_ACT_GELU_TANH: {
        double square = x[i] * x[i], t = tanh(SQRT_2_OVER_PI * x[i] * (1.0 + GELU_CUBIC * square));
        return 0.5 * (1.0 + t) + 0.5 * x[i] * (1.0 - t * t) * SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * square);
    }
    }
    return 1.0;
}

static abar_status activation_forward(abar__op *op, const abar__op_args *a)
{
    const double *x = a->x[0];
    double *y = a->y;
    if (op->desc.patterned) {
        pass_pattern(op, a);
        return ABAR_OK;
    }
    for (int64_t i = 0; i < abar__shape_count(&op->desc.out); i++) y[i] = abar__ref_activate(op->desc.activation, x[i]);
    return ABAR_OK;
}

static abar_status activation_backward(abar__op *op, const abar__op_args *a)
{
    const double *dy = a->dy;
    double *dx = a->dx[0];
    const uint8_t *pattern = a->pattern;
    if (!dx) return ABAR_OK;
    for (int64_t i = 0; i < abar__shape_count(&op->desc.out); i++)
        dx[i] =
            op->desc.patterned ? (pattern[i] ? dy[i] : 0.0) : dy[i] * abar__ref_slope(op->desc.activation, a->x[0], a->y, i);
    return ABAR_OK;
}

const abar__op_impl abar__ref_activation = {"ref-activation",   ABAR_OP_ACTIVATION,  activation_create,
                                            activation_forward, activation_backward, NULL};

/* ---- add: y = x0 + x1 ------------------------------------------------------------------------------------------ */

static abar_status add_create(abar__op *op)
{
    op->dx_is_dy = true;
    return create_dense(op);
}

static abar_status add_forward(abar__op *op, const abar__op_args *a)
{
    const double *x0 = a->x[0], *x1 = a->x[1];
    double *y = a->y;
    for (int64_t i = 0; i < abar__shape_count(&op->desc.out); i++) y[i] = x0[i] + x1[i];
    return ABAR_OK;
}

static abar_status add_backward(abar__op *op, const abar__op_args *a)
{
    for (int i = 0; i < 2; i++)
        if (a->dx[i]) copy(a->dx[i], a->dy, abar__shape_count(&op->desc.out));
    return ABAR_OK;
}

const abar__op_impl abar__ref_add = {"ref-add", ABAR_OP_ADD, add_create, add_forward, add_backward, NULL};

/* ---- concat: the channels of the inputs, one after the other --------------------------------------------------- */

static abar_status concat_forward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    double *y = a->y;
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int i = 0; i < d->n_in; i++) {
            int64_t sample = abar__shape_count(&d->in[i]) / d->in[i].dim[0];
            copy(y, (const double *)a->x[i] + n * sample, sample);
            y += sample;
        }
    return ABAR_OK;
}

static abar_status concat_backward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    const double *dy = a->dy;
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int i = 0; i < d->n_in; i++) {
            int64_t sample = abar__shape_count(&d->in[i]) / d->in[i].dim[0];
            if (a->dx[i]) copy((double *)a->dx[i] + n * sample, dy, sample);
            dy += sample;
        }
    return ABAR_OK;
}

const abar__op_impl abar__ref_concat = {"ref-concat", ABAR_OP_CONCAT, create_dense, concat_forward, concat_backward, NULL};

/* ---- flatten: a dense value under another shape ---------------------------------------------------------------- */

static abar_status flatten_create(abar__op *op)
{
    abar__ref_dense(op);
    op->y_is_x = true;
    return ABAR_OK;
}

static abar_status flatten_forward(abar__op *op, const abar__op_args *a)
{
    copy(a->y, a->x[0], abar__shape_count(&op->desc.out));
    return ABAR_OK;
}

static abar_status flatten_backward(abar__op *op, const abar__op_args *a)
{
    if (a->dx[0]) copy(a->dx[0], a->dy, abar__shape_count(&op->desc.out));
    return ABAR_OK;
}

const abar__op_impl abar__ref_flatten = {"ref-flatten",   ABAR_OP_FLATTEN,  flatten_create,
                                         flatten_forward, flatten_backward, NULL};

/* ---- shortcut: every stride-th pixel, zero channels on both sides ---------------------------------------------- */

/* The input element that element (n, c, h, w) of the output is copied from; -1: it is one of the zeros. */
static int64_t shortcut_source(const abar__op_desc *d, int64_t n, int64_t c, int64_t h, int64_t w)
{
    int64_t channel = c - (d->out.dim[1] - d->in[0].dim[1]) / 2;
    if (channel < 0 || channel >= d->in[0].dim[1]) return -1;
    return abar__ref_at(&d->in[0], n, channel, h * d->window.stride[0], w * d->window.stride[1]);
}

static abar_status shortcut_forward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    const double *x = a->x[0];
    double *y = a->y;
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int64_t c = 0; c < d->out.dim[1]; c++)
            for (int64_t h = 0; h < d->out.dim[2]; h++)
                for (int64_t w = 0; w < d->out.dim[3]; w++) {
                    int64_t from = shortcut_source(d, n, c, h, w);
                    y[abar__ref_at(&d->out, n, c, h, w)] = from < 0 ? 0.0 : x[from];
                }
    return ABAR_OK;
}

static abar_status shortcut_backward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    const double *dy = a->dy;
    double *dx = a->dx[0];
    if (!dx) return ABAR_OK;
    memset(dx, 0, (size_t)abar__shape_count(&d->in[0]) * sizeof *dx);
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int64_t c = 0; c < d->out.dim[1]; c++)
            for (int64_t h = 0; h < d->out.dim[2]; h++)
                for (int64_t w = 0; w < d->out.dim[3]; w++) {
                    int64_t from = shortcut_source(d, n, c, h, w);
                    if (from >= 0) dx[from] = dy[abar__ref_at(&d->out, n, c, h, w)];
                }
    return ABAR_OK;
}

const abar__op_impl abar__ref_shortcut = {"ref-shortcut",   ABAR_OP_SHORTCUT,  create_dense,
                                          shortcut_forward, shortcut_backward, NULL};

/* ---- dropout: zero with probability drop, else scaled to keep the mean ----------------------------------------- */

/* The factor of element i: a pure function of the key, so that backward draws the same numbers again and the mask depends on
 * the sample, not on the batch it is in. Four elements share a draw; with per_sample, four samples do. */
static double dropout_factor(const abar__op_desc *d, const abar__run *run, int64_t i)
{
    if (!run->training) return 1.0;
    int64_t sample = abar__shape_count(&d->out) / d->out.dim[0];
    uint64_t global = (uint64_t)(d->per_sample ? run->sample0 + i / sample : run->sample0 * sample + i);
    abar__draw draw = abar__random(run->seed, ABAR_DRAW_DROPOUT, run->step * 256u + d->number, global / 4);
    return abar__uniform(draw.u[global % 4]) >= d->drop ? 1.0 / (1.0 - d->drop) : 0.0;
}

static abar_status dropout_forward(abar__op *op, const abar__op_args *a)
{
    const double *x = a->x[0];
    double *y = a->y;
    for (int64_t i = 0; i < abar__shape_count(&op->desc.out); i++) y[i] = x[i] * dropout_factor(&op->desc, a->run, i);
    return ABAR_OK;
}

static abar_status dropout_backward(abar__op *op, const abar__op_args *a)
{
    const double *dy = a->dy;
    double *dx = a->dx[0];
    if (!dx) return ABAR_OK;
    for (int64_t i = 0; i < abar__shape_count(&op->desc.out); i++) dx[i] = dy[i] * dropout_factor(&op->desc, a->run, i);
    return ABAR_OK;
}

const abar__op_impl abar__ref_dropout = {"ref-dropout", ABAR_OP_DROPOUT, create_dense, dropout_forward, dropout_backward, NULL};
