/* The models of the library. One file per family; models.c lists them. */
#ifndef ABAR_MODELS_H
#define ABAR_MODELS_H

#include "abar/net.h"

extern const abar_model abar__model_mlp, abar__model_lenet5, abar__model_resnet20, abar__model_resnet32, abar__model_resnet44,
    abar__model_resnet56, abar__model_resnet110, abar__model_wrn28_10, abar__model_densenet121, abar__model_resnet50,
    abar__model_resnet101, abar__model_deit_tiny, abar__model_deit_small, abar__model_swin_tiny, abar__model_gpt2,
    abar__model_gpt_char;

/* CIFAR ResNet with n basic blocks in each of its three stages of width, 2 width and 4 width channels: depth 6n+2. */
abar_value abar__resnet_cifar(abar_net *net, abar_value x, int n, int64_t width, int64_t classes);

/* Wide ResNet with n pre-activation blocks in each of its three stages of stem * widen, twice and four times as many channels:
 * depth 6n+4, stem 16. */
abar_value abar__wrn(abar_net *net, abar_value x, int n, int64_t stem, int64_t widen, int64_t classes);

/* Parses an option's text of numbers >= 1 joined by '-', such as 2-2-6-2; returns how many there are, at most max. 0 after a
 * mistake, which the net keeps. */
int abar__model_numbers(abar_net *net, const char *option, const char *text, int64_t *out, int max);

/* The building blocks of the vision transformers. Patches of an image (C, H, W) as tokens (grid[0] * grid[1], width). */
abar_value abar__vit_patches(abar_net *net, abar_value x, int64_t patch, int64_t width, int64_t grid[2]);

typedef struct abar__vit_block_config {
    double eps; /* of its norms */
    abar_attention_config attention;
    double drop, drop_path;
} abar__vit_block_config;

/* x + proj(attention(qkv(norm1 x))), then x + fc2(gelu(fc1(norm2 x))). */
abar_value abar__vit_block(abar_net *net, abar_value x, const abar__vit_block_config *config);
abar_value abar__vit_head(abar_net *net, abar_value x, const char *name, int64_t classes);

#endif
