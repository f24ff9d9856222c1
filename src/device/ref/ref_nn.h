/* Shared by the reference operations. They compute in double on dense row-major values, one loop nest per operation, and are
 * the oracle for the other back ends: they define what an operation means. */
#ifndef ABAR_REF_NN_H
#define ABAR_REF_NN_H

#include "device/nn_impl.h"

extern const abar__op_impl abar__ref_reorder, abar__ref_linear, abar__ref_conv2d, abar__ref_batch_norm, abar__ref_layer_norm,
    abar__ref_activation, abar__ref_pool2d, abar__ref_add, abar__ref_concat, abar__ref_flatten, abar__ref_shortcut,
    abar__ref_dropout, abar__ref_embedding, abar__ref_tokens, abar__ref_class_token, abar__ref_attention, abar__ref_patch_merge,
    abar__ref_token_mean, abar__ref_token_first, abar__ref_softmax_cross_entropy, abar__ref_squared_error;

/* Asks for dense inputs and a dense output. */
void abar__ref_dense(abar__op *op);

/* Asks for dense values, and states what the backward pass of a linear map or norm reads: its input and, where a ReLU is
 * fused, its output. Refuses to fuse anything else. */
abar_status abar__ref_create_fused(abar__op *op);

/* The gradient of parameter i, to be added to: set to zero first unless gradients accumulate. */
double *abar__ref_dparam(const abar__op_args *a, int i, int64_t count);

double abar__ref_activate(abar__activation kind, double x);
/* The derivative at element i: of x for GELU, of y for ReLU and tanh; the other may be NULL. */
double abar__ref_slope(abar__activation kind, const double *x, const double *y, int64_t i);

/* The fused activation of one number, and the gradient before it at element i of the output. */
double abar__ref_fused(const abar__op *op, double z);
double abar__ref_dz(const abar__op *op, const abar__op_args *a, int64_t i);

/* The offset of element (n, c, h, w) in a dense (N, C, H, W) value. */
static inline int64_t abar__ref_at(const abar__shape *s, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return ((n * s->dim[1] + c) * s->dim[2] + h) * s->dim[3] + w;
}

/* The input coordinate under tap k of the window at output position p; outside [0, extent) it is in the padding. */
static inline int64_t abar__ref_tap(const abar_window *w, int axis, int64_t p, int64_t k)
{
    return p * w->stride[axis] - w->pad[axis] + k * w->dilation[axis];
}

static inline bool abar__ref_inside(const abar__shape *s, int64_t h, int64_t w)
{
    return h >= 0 && h < s->dim[2] && w >= 0 && w < s->dim[3];
}

#endif
