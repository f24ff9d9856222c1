/* Creates and runs nn operations: picks an implementation and checks its arguments. */
#include "device/nn_impl.h"

#include <assert.h>
#include <string.h>

int64_t abar__shape_count(const abar__shape *shape)
{
    int64_t n = 1;
    for (int i = 0; i < shape->ndim; i++) n *= shape->dim[i];
    return n;
}

int64_t abar__row_pitch(const abar_device *dev, int64_t width, abar_layout layout)
{
    const size_t element = abar_dtype_size(dev->activation);
    if (layout != ABAR_LAYOUT_PADDED) return width;
    return (int64_t)(abar__round_up((size_t)width * element, ABAR_ALIGN) / element);
}

abar_tensor abar__shape_view(const abar_device *dev, const abar__shape *shape, abar_layout layout)
{
    abar_tensor t = abar_tensor_wrap(NULL, NULL, dev->activation, shape->ndim, shape->dim);
    t.layout = layout;
    if (layout != ABAR_LAYOUT_PADDED) return t;
    t.layout = ABAR_LAYOUT_STRIDED;
    int64_t stride = abar__row_pitch(dev, shape->dim[shape->ndim - 1], layout);
    for (int i = shape->ndim - 2; i >= 0; i--) {
        t.stride[i] = stride;
        stride *= shape->dim[i];
    }
    return t;
}

size_t abar__shape_bytes(const abar_device *dev, const abar__shape *shape, abar_layout layout)
{
    const abar_tensor t = abar__shape_view(dev, shape, layout);
    const int64_t gap = layout == ABAR_LAYOUT_PADDED ? t.stride[t.ndim - 2] - t.dim[t.ndim - 1] : 0; /* after the last row */
    return abar_tensor_bytes(&t) + (size_t)gap * abar_dtype_size(t.dtype);
}

const char *abar__op_kind_name(abar__op_kind kind)
{
    static const char *const names[ABAR_OP_KINDS] = {[ABAR_OP_REORDER] = "reorder",
                                                     [ABAR_OP_LINEAR] = "linear",
                                                     [ABAR_OP_CONV2D] = "conv2d",
                                                     [ABAR_OP_BATCH_NORM] = "batch_norm",
                                                     [ABAR_OP_LAYER_NORM] = "layer_norm",
                                                     [ABAR_OP_ACTIVATION] = "activation",
                                                     [ABAR_OP_POOL2D] = "pool",
                                                     [ABAR_OP_ADD] = "add",
                                                     [ABAR_OP_CONCAT] = "concat",
                                                     [ABAR_OP_FLATTEN] = "flatten",
                                                     [ABAR_OP_SHORTCUT] = "shortcut",
                                                     [ABAR_OP_DROPOUT] = "dropout",
                                                     [ABAR_OP_EMBEDDING] = "embedding",
                                                     [ABAR_OP_TOKENS] = "tokens",
                                                     [ABAR_OP_CLASS_TOKEN] = "class_token",
                                                     [ABAR_OP_ATTENTION] = "attention",
                                                     [ABAR_OP_PATCH_MERGE] = "patch_merge",
                                                     [ABAR_OP_TOKEN_MEAN] = "token_mean",
                                                     [ABAR_OP_TOKEN_FIRST] = "token_first",
                                                     [ABAR_OP_SOFTMAX_CROSS_ENTROPY] = "softmax_cross_entropy",
                                                     [ABAR_OP_SQUARED_ERROR] = "squared_error"};
    return names[kind];
}

static const abar__op_impl *const *implementations(const abar_device *dev)
{
    if (strcmp(dev->ops->name, "ref") == 0) return abar__ref_nn;
    return strcmp(dev->ops->name, "cuda") == 0 ? abar__cuda_nn : abar__cpu_nn;
}

abar_status abar__op_create(abar_device *dev, const abar__op_desc *desc, abar__op **out)
{
    *out = NULL;
    abar__op *op;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *op, (void **)&op));
    abar_status status = ABAR_E_UNSUPPORTED;
    for (const abar__op_impl *const *impl = implementations(dev); *impl && status == ABAR_E_UNSUPPORTED; impl++) {
        if ((*impl)->kind != desc->kind) continue;
        *op = (abar__op){.dev = dev, .impl = *impl, .desc = *desc, .out_layout = desc->out_layout};
        memcpy(op->in_layout, desc->in_layout, sizeof op->in_layout);
        status = (*impl)->create(op);
    }
    if (status < 0) {
        abar__free(dev->ctx, op, sizeof *op);
        if (status == ABAR_E_UNSUPPORTED)
            return abar__fail(dev->ctx, status,
                              "device %s: cannot run %s with these settings, use another device or change them", dev->ops->name,
                              abar__op_kind_name(desc->kind));
        return status;
    }
    *out = op;
    return ABAR_OK;
}

void abar__op_destroy(abar__op *op)
{
    if (!op) return;
    if (op->impl->destroy) op->impl->destroy(op);
    abar__free(op->dev->ctx, op->priv, op->priv_bytes);
    abar__free(op->dev->ctx, op, sizeof *op);
}

abar_status abar__op_forward(abar__op *op, const abar__op_args *args)
{
    assert(args->run && args->x[0]);
    return op->impl->forward(op, args);
}

abar_status abar__op_backward(abar__op *op, const abar__op_args *args)
{
    assert(args->run && op->impl->backward);
    return op->impl->backward(op, args);
}
