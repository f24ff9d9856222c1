/* The nn operations of the CUDA back end, in the order in which they are tried. */
#include "device/cuda/nn/cuda_nn.h"

const abar__op_impl *const abar__cuda_nn[] = {
    &abar__cuda_reorder,
    &abar__cuda_linear,
    &abar__cuda_linear_plain,
    &abar__cuda_conv_patches,
    &abar__cuda_conv_race, /* measured: before those it chooses from */
    &abar__cuda_conv_tiles,
    &abar__cuda_conv_either, /* likewise */
    &abar__cuda_conv_cudnn,
    &abar__cuda_conv_product,
    &abar__cuda_conv_plain,
    &abar__cuda_batch_norm,
    &abar__cuda_layer_norm,
    &abar__cuda_activation,
    &abar__cuda_max_pool,
    &abar__cuda_average_pool,
    &abar__cuda_add,
    &abar__cuda_concat,
    &abar__cuda_flatten,
    &abar__cuda_shortcut,
    &abar__cuda_dropout,
    &abar__cuda_embedding,
    &abar__cuda_tokens,
    &abar__cuda_class_token,
    &abar__cuda_attention_wide,
    &abar__cuda_attention,
    &abar__cuda_patch_merge,
    &abar__cuda_token_mean,
    &abar__cuda_token_first,
    &abar__cuda_softmax_cross_entropy,
    &abar__cuda_squared_error,
    NULL,
};
