/* Residual networks for 32x32 images (He et al. 2015, section 4.2): basic blocks, three stages, shortcuts without parameters.
 */
#include "net/models/models.h"

static abar_value conv3x3(abar_net *net, abar_value x, const char *name, int64_t out, int64_t stride)
{
    return abar_conv2d(
        net, x, name,
        &ABAR_CONFIG(abar_conv2d_config, .out = out, .kernel = 3, .stride = stride, .pad = 1, .init = ABAR_INIT_KAIMING_IN));
}

static abar_value basic_block(abar_net *net, abar_value x, int64_t out, int64_t stride)
{
    abar_value y = abar_relu(net, abar_batch_norm(net, conv3x3(net, x, "conv1", out, stride), "bn1"));
    y = abar_batch_norm(net, conv3x3(net, y, "conv2", out, 1), "bn2");
    if (stride != 1) x = abar_shortcut(net, x, out, stride);
    return abar_relu(net, abar_add(net, y, x));
}

abar_value abar__resnet_cifar(abar_net *net, abar_value x, int n, int64_t width, int64_t classes)
{
    x = abar_relu(net, abar_batch_norm(net, conv3x3(net, x, "conv1", width, 1), "bn1"));
    for (int stage = 0; stage < 3; stage++)
        for (int block = 0; block < n; block++) {
            abar_scope_push(net, "layer%d.%d", stage + 1, block);
            x = basic_block(net, x, width << stage, stage > 0 && block == 0 ? 2 : 1);
            abar_scope_pop(net);
        }
    x = abar_flatten(net, abar_global_average_pool(net, x));
    return abar_linear(net, x, "linear",
                       &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true, .init = ABAR_INIT_KAIMING_IN));
}

static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)config;
    return abar__resnet_cifar(net, x, (int)model->variant, 16, classes);
}

#define RESNET(depth, blocks)                                                                                               \
    {                                                                                                                       \
        .name = "resnet" #depth, .summary = "CIFAR ResNet-" #depth ", " #blocks " basic blocks a stage, 16-32-64 channels", \
        .variant = blocks, .input = {3, 32, 32}, .classes = 10, .build = build                                              \
    }

const abar_model abar__model_resnet20 = RESNET(20, 3);
const abar_model abar__model_resnet32 = RESNET(32, 5);
const abar_model abar__model_resnet44 = RESNET(44, 7);
const abar_model abar__model_resnet56 = RESNET(56, 9);
const abar_model abar__model_resnet110 = RESNET(110, 18);
