/* The models of the library. One file per family; models.c lists them. */
#ifndef ABAR_MODELS_H
#define ABAR_MODELS_H

#include "abar/net.h"

extern const abar_model abar__model_mlp, abar__model_lenet5, abar__model_resnet20, abar__model_resnet32, abar__model_resnet44,
    abar__model_resnet56, abar__model_resnet110, abar__model_wrn28_10;

extern const abar_model abar__model_densenet121, abar__model_resnet50, abar__model_resnet101;

/* CIFAR ResNet with n basic blocks in each of its three stages of width, 2 width and 4 width channels: depth 6n+2. */
abar_value abar__resnet_cifar(abar_net *net, abar_value x, int n, int64_t width, int64_t classes);

/* Wide ResNet with n pre-activation blocks in each of its three stages of stem * widen, twice and four times as many channels:
 * depth 6n+4, stem 16. */
abar_value abar__wrn(abar_net *net, abar_value x, int n, int64_t stem, int64_t widen, int64_t classes);

/* DenseNet with four blocks of so many layers, each of which adds growth channels; 2 growth to start with, half of what a block
 * leaves go on to the next. */
abar_value abar__densenet(abar_net *net, abar_value x, const int layers[4], int64_t growth, int64_t classes);

/* ImageNet ResNet with so many bottleneck blocks in each of its four stages of width, 2, 4 and 8 width channels; what leaves
 * a block has four times as many. */
abar_value abar__resnet_imagenet(abar_net *net, abar_value x, const int blocks[4], int64_t width, int64_t classes);

#endif
