/* The operations of the reference back end, and their shared functions. */
#include "device/ref/ref_nn.h"

#include <string.h>

const abar__op_impl *const abar__ref_nn[] = {
    &abar__ref_reorder,       &abar__ref_linear,
    &abar__ref_conv2d,        &abar__ref_batch_norm,
    &abar__ref_layer_norm,    &abar__ref_activation,
    &abar__ref_pool2d,        &abar__ref_add,
    &abar__ref_concat,        &abar__ref_flatten,
    &abar__ref_shortcut,      &abar__ref_dropout,
    &abar__ref_embedding,     &abar__ref_tokens,
    &abar__ref_class_token,   &abar__ref_attention,
    &abar__ref_patch_merge,   &abar__ref_token_mean,
    &abar__ref_token_first,   &abar__ref_softmax_cross_entropy,
    &abar__ref_squared_error, NULL,
};

void abar__ref_dense(abar__op *op)
{
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) op->in_layout[i] = ABAR_LAYOUT_STRIDED;
    op->out_layout = ABAR_LAYOUT_STRIDED;
}

abar_status abar__ref_create_fused(abar__op *op)
{
    abar__activation activation = op->desc.activation;
    if (activation != ABAR_ACT_NONE && activation != ABAR_ACT_RELU) return ABAR_E_UNSUPPORTED;
    abar__ref_dense(op);
    op->backward_needs = activation == ABAR_ACT_RELU ? ABAR_NEEDS_X | ABAR_NEEDS_Y : ABAR_NEEDS_X;
    return ABAR_OK;
}

double *abar__ref_dparam(const abar__op_args *a, int i, int64_t count)
{
    if (!a->accumulate) memset(a->dparam[i], 0, (size_t)count * sizeof(double));
    return a->dparam[i];
}

double abar__ref_fused(const abar__op *op, double z) { return op->desc.activation == ABAR_ACT_RELU && z < 0.0 ? 0.0 : z; }

double abar__ref_dz(const abar__op *op, const abar__op_args *a, int64_t i)
{
    const double *y = a->y, *dy = a->dy, *dy2 = a->dy2;
    if (op->desc.activation == ABAR_ACT_RELU && !(y[i] > 0.0)) return 0.0;
    return dy2 ? dy[i] + dy2[i] : dy[i];
}
