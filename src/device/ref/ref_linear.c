/* Linear layer: y[r, o] = act(z), z = b[o] + sum_i x[r, i] w[o, i], with an optional ReLU or GELU. A GELU's z is saved. The map
 * behind a GELU multiplies its dx by the GELU's derivative. */
#include "device/ref/ref_nn.h"

#include <string.h>

static bool is_gelu(abar__activation kind) { return kind == ABAR_ACT_GELU_ERF || kind == ABAR_ACT_GELU_TANH; }

static abar_status create(abar__op *op)
{
    op->slopes_dx = op->desc.input_activation != ABAR_ACT_NONE;
    if (!is_gelu(op->desc.activation)) return abar__ref_create_fused(op);
    abar__ref_dense(op);
    op->backward_needs = ABAR_NEEDS_X;
    op->saved_bytes = (size_t)abar__shape_count(&op->desc.out) * sizeof(double);
    return ABAR_OK;
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    int64_t d_in = op->desc.in[0].dim[op->desc.in[0].ndim - 1], d_out = op->desc.out.dim[op->desc.out.ndim - 1];
    int64_t rows = abar__shape_count(&op->desc.out) / d_out;
    const double *x = a->x[0], *w = a->param[0], *b = a->param[1];             /* (R, I), (O, I), (O) */
    double *y = a->y, *saved = is_gelu(op->desc.activation) ? a->saved : NULL; /* (R, O) */
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < d_out; o++) {
            double z = op->desc.bias ? b[o] : 0.0;
            for (int64_t i = 0; i < d_in; i++) z += x[r * d_in + i] * w[o * d_in + i];
            if (saved) saved[r * d_out + o] = z;
            y[r * d_out + o] = abar__ref_activate(op->desc.activation, z);
        }
    return ABAR_OK;
}

/* dL/dz at an element of the output. */
static double dz_of(const abar__op *op, const abar__op_args *a, int64_t at)
{
    const double *dy = a->dy;
    if (!is_gelu(op->desc.activation)) return abar__ref_dz(op, a, at);
    return a->dz_given ? dy[at] : dy[at] * abar__ref_slope(op->desc.activation, a->saved, NULL, at);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    int64_t d_in = op->desc.in[0].dim[op->desc.in[0].ndim - 1], d_out = op->desc.out.dim[op->desc.out.ndim - 1];
    int64_t rows = abar__shape_count(&op->desc.out) / d_out;
    const double *x = a->x[0], *w = a->param[0];
    double *dx = a->dx[0], *dy = a->dy, *dw = abar__ref_dparam(a, 0, d_out * d_in);
    double *db = op->desc.bias ? abar__ref_dparam(a, 1, d_out) : NULL;
    if (dx) memset(dx, 0, (size_t)(rows * d_in) * sizeof *dx);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < d_out; o++) {
            int64_t at = r * d_out + o;
            double dz = dy[at] = dz_of(op, a, at); /* kept there for curvature to observe */
            if (db) db[o] += dz;
            for (int64_t i = 0; i < d_in; i++) {
                dw[o * d_in + i] += dz * x[r * d_in + i];
                if (dx) dx[r * d_in + i] += dz * w[o * d_in + i];
            }
        }
    for (int64_t i = 0; dx && op->slopes_dx && i < rows * d_in; i++)
        dx[i] *= abar__ref_slope(op->desc.input_activation, a->input_z, NULL, i);
    return ABAR_OK;
}

const abar__op_impl abar__ref_linear = {"ref-linear", ABAR_OP_LINEAR, create, forward, backward, NULL};
