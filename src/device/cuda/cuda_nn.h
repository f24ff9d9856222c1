/* The CUDA back end's nn operations, in the order in which they are tried (list in cuda_nn.cu), and what they share.
 *
 * 4-dimensional values are NHWC, 2-dimensional ones (rows, width) dense; elements are dev->activation (float or bf16).
 * Parameters and their gradients are float32, convolution weights (O, kh, kw, I/groups) in memory; in bf16 an operation reads
 * its weight's bf16 copy, args->shadow. dy comes in the layout of y, dx in that of x. Sums over a batch accumulate in float32.
 */
#ifndef ABAR_CUDA_NN_H
#define ABAR_CUDA_NN_H

#include "device/cuda/cuda_impl.h"

extern "C" {
#include "device/nn_impl.h"

extern const abar__op_impl abar__cuda_reorder, abar__cuda_flatten, abar__cuda_activation, abar__cuda_add, abar__cuda_concat,
    abar__cuda_shortcut, abar__cuda_dropout, abar__cuda_max_pool, abar__cuda_average_pool, abar__cuda_batch_norm,
    abar__cuda_layer_norm, abar__cuda_softmax_cross_entropy, abar__cuda_squared_error; /* own kernels */
extern const abar__op_impl abar__cuda_linear;                                          /* cuBLASLt */
extern const abar__op_impl abar__cuda_conv_tiles; /* own tensor-core kernels for the windows of residual nets */
extern const abar__op_impl abar__cuda_conv_cudnn; /* cuDNN's engines */
extern const abar__op_impl abar__cuda_conv_plain; /* own loops for every window, last in the list */
}

static inline bool abar__cuda_is_bf16(const abar_device *dev) { return dev->activation == ABAR_BF16; }

/* NHWC for images and activations of four dimensions, dense for the others: what every operation here wants. */
static inline abar_layout abar__cuda_layout(const abar__shape *shape)
{
    return shape->ndim == 4 ? ABAR_LAYOUT_NHWC : ABAR_LAYOUT_STRIDED;
}

#endif
