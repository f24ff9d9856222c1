/* Residual networks for large images (He et al. 2015, table 1): bottleneck blocks, four stages, 1x1 shortcuts where the shape
 * changes. The stride is in the 3x3 convolution, names are torchvision's. */
#include "net/models/models.h"

#define EXPANSION 4 /* a block's output has so many times the channels of its 3x3 convolution */

static abar_value conv_norm(abar_net *net, abar_value x, const char *conv, const char *norm, const abar_conv2d_config *config)
{
    return abar_batch_norm(net, abar_conv2d(net, x, conv, config), norm);
}

static abar_conv2d_config square(int64_t out, int64_t kernel, int64_t stride)
{
    return (abar_conv2d_config){
        .out = out, .kernel = kernel, .stride = stride, .pad = kernel / 2, .init = ABAR_INIT_KAIMING_OUT};
}

static abar_value bottleneck(abar_net *net, abar_value x, int64_t width, int64_t stride, bool changes)
{
    const abar_conv2d_config reduce = square(width, 1, 1), middle = square(width, 3, stride),
                             expand = square(EXPANSION * width, 1, 1), shortcut = square(EXPANSION * width, 1, stride);
    abar_value y = abar_relu(net, conv_norm(net, x, "conv1", "bn1", &reduce));
    y = abar_relu(net, conv_norm(net, y, "conv2", "bn2", &middle));
    y = conv_norm(net, y, "conv3", "bn3", &expand);
    if (changes) x = conv_norm(net, x, "downsample.0", "downsample.1", &shortcut);
    return abar_relu(net, abar_add(net, y, x));
}

abar_value abar__resnet_imagenet(abar_net *net, abar_value x, const int blocks[4], int64_t width, int64_t classes)
{
    const abar_conv2d_config stem = square(width, 7, 2);
    x = abar_relu(net, conv_norm(net, x, "conv1", "bn1", &stem));
    x = abar_max_pool(net, x, &(abar_pool_config){.kernel = 3, .stride = 2, .pad = 1});
    for (int stage = 0; stage < 4; stage++)
        for (int block = 0; block < blocks[stage]; block++) {
            abar_scope_push(net, "layer%d.%d", stage + 1, block);
            x = bottleneck(net, x, width << stage, stage > 0 && block == 0 ? 2 : 1, block == 0);
            abar_scope_pop(net);
        }
    x = abar_flatten(net, abar_global_average_pool(net, x));
    return abar_linear(net, x, "fc", &(abar_linear_config){.out = classes, .bias = true});
}

static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)config;
    const int blocks[4] = {3, 4, (int)model->variant, 3};
    return abar__resnet_imagenet(net, x, blocks, 64, classes);
}

/* variant: the blocks of the third stage. Images are of the size that the recipe trains with; tests take larger ones. */
const abar_model abar__model_resnet50 = {
    .name = "resnet50",
    .summary = "ImageNet ResNet-50, stages of 3-4-6-3 bottlenecks, 64-128-256-512 channels",
    .variant = 6,
    .input = {3, 176, 176},
    .classes = 1000,
    .build = build,
};

const abar_model abar__model_resnet101 = {
    .name = "resnet101",
    .summary = "ImageNet ResNet-101, stages of 3-4-23-3 bottlenecks, 64-128-256-512 channels",
    .variant = 23,
    .input = {3, 176, 176},
    .classes = 1000,
    .build = build,
};
