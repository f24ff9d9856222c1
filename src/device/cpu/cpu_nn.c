/* The nn operations of the cpu, in the order in which they are tried, and their shared functions. */
#include "device/cpu/cpu_nn.h"

#include <omp.h>

const abar__op_impl *const abar__cpu_nn[] = {
    &abar__cpu_reorder,       &abar__cpu_linear,
    &abar__cpu_conv_winograd, &abar__cpu_conv_lanes,
    &abar__cpu_conv_onednn,   &abar__cpu_conv_lanes_any,
    &abar__cpu_batch_norm,    &abar__cpu_layer_norm,
    &abar__cpu_pattern,       &abar__cpu_activation,
    &abar__cpu_pool,          &abar__cpu_add,
    &abar__cpu_concat,        &abar__cpu_flatten,
    &abar__cpu_shortcut,      &abar__cpu_dropout,
    &abar__cpu_cross_entropy, &abar__cpu_squared_error,
    &abar__cpu_attention,     &abar__cpu_embedding,
    &abar__cpu_tokens,        &abar__cpu_class_token,
    &abar__cpu_patch_merge,   &abar__cpu_token_mean,
    &abar__cpu_token_first,   NULL,
};

/* A part with fewer floats, a few microseconds of work, is not worth waking a thread for. */
#define FLOATS_PER_PART 16384

abar__planes abar__planes_of(const abar__shape *shape, abar_layout layout)
{
    abar__planes p = {.layout = layout, .images = shape->dim[0], .channels = 1, .pixels = 1, .lanes = 1};
    if (shape->ndim > 1) p.channels = shape->dim[1];
    for (int i = 2; i < shape->ndim; i++) p.pixels *= shape->dim[i];
    p.outer = p.images;
    p.groups = p.channels;
    switch (layout) {
    case ABAR_LAYOUT_NHWC:
    case ABAR_LAYOUT_PADDED: /* does not occur on this device */
    case ABAR_LAYOUT_STRIDED: break;
    case ABAR_LAYOUT_C8:
        p.lanes = 8;
        p.groups = (p.channels + 7) / 8;
        break;
    case ABAR_LAYOUT_C16:
        p.lanes = 16;
        p.groups = (p.channels + 15) / 16;
        break;
    case ABAR_LAYOUT_N16:
        p.lanes = 16;
        p.outer = (p.images + 15) / 16;
        break;
    }
    return p;
}

bool abar__planes_padded(const abar__planes *p)
{
    return p->lanes > 1 && (p->layout == ABAR_LAYOUT_N16 ? p->images : p->channels) % p->lanes != 0;
}

int abar__parts(const abar_device *dev, int64_t floats, int64_t units)
{
    int64_t parts = floats / FLOATS_PER_PART;
    if (parts > units) parts = units;
    if (parts > dev->threads) parts = dev->threads;
    return parts < 1 ? 1 : (int)parts;
}

abar_status abar__op_priv(abar__op *op, size_t bytes)
{
    ABAR_TRY(abar__alloc(op->dev->ctx, bytes, &op->priv));
    op->priv_bytes = bytes;
    return ABAR_OK;
}

void abar__blas_single(void)
{
    if (omp_get_num_threads() == 1) omp_set_num_threads(1); /* lasts until the end of the parallel region */
}

void abar__relu_gradient(const abar__op *op, const abar__op_args *a)
{
    if (op->desc.activation != ABAR_ACT_RELU) return;
    const float *y = a->y;
    float *dy = a->dy;
    int64_t n = (int64_t)(abar__shape_bytes(op->dev, &op->desc.out, op->out_layout) / sizeof(float));
    int parts = abar__parts(op->dev, n, n);
#pragma omp parallel for simd num_threads(parts) schedule(static)
    for (int64_t i = 0; i < n; i++) dy[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}
