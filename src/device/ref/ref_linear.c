/* Linear layer: y[r, o] = b[o] + sum_i x[r, i] w[o, i], with an optional ReLU. */
#include "device/ref/ref_nn.h"

#include <string.h>

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    int64_t d_in = op->desc.in[0].dim[op->desc.in[0].ndim - 1], d_out = op->desc.out.dim[op->desc.out.ndim - 1];
    int64_t rows = abar__shape_count(&op->desc.out) / d_out;
    const double *x = a->x[0], *w = a->param[0], *b = a->param[1]; /* (R, I), (O, I), (O) */
    double *y = a->y;                                              /* (R, O) */
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < d_out; o++) {
            double z = op->desc.bias ? b[o] : 0.0;
            for (int64_t i = 0; i < d_in; i++) z += x[r * d_in + i] * w[o * d_in + i];
            y[r * d_out + o] = abar__ref_fused(op, z);
        }
    return ABAR_OK;
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
            double dz = dy[at] = abar__ref_dz(op, a, at); /* kept there for curvature to observe */
            if (db) db[o] += dz;
            for (int64_t i = 0; i < d_in; i++) {
                dw[o * d_in + i] += dz * x[r * d_in + i];
                if (dx) dx[r * d_in + i] += dz * w[o * d_in + i];
            }
        }
    return ABAR_OK;
}

const abar__op_impl abar__ref_linear = {"ref-linear", ABAR_OP_LINEAR, abar__ref_create_fused, forward, backward, NULL};
