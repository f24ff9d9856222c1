/* Wide residual networks for 32x32 images (Zagoruyko and Komodakis 2016): batch norm and ReLU stand before each convolution,
 * and where a block changes width or size, the 1x1 shortcut reads its pre-activated input. No dropout. */
#include "net/models/models.h"

static abar_value conv(abar_net *net, abar_value x, const char *name, int64_t out, int64_t kernel, int64_t stride)
{
    return abar_conv2d(net, x, name,
                       &ABAR_CONFIG(abar_conv2d_config, .out = out, .kernel = kernel, .stride = stride, .pad = kernel / 2,
                                    .init = ABAR_INIT_KAIMING_OUT));
}

static abar_value activate(abar_net *net, abar_value x, const char *name)
{
    return abar_relu(net, abar_batch_norm(net, x, name));
}

static abar_value block(abar_net *net, abar_value x, int64_t out, int64_t stride, bool changes)
{
    abar_value a = activate(net, x, "bn1");
    abar_value y = activate(net, conv(net, a, "conv1", out, 3, stride), "bn2");
    y = conv(net, y, "conv2", out, 3, 1);
    if (changes) x = conv(net, a, "convShortcut", out, 1, stride);
    return abar_add(net, y, x);
}

abar_value abar__wrn(abar_net *net, abar_value x, int n, int64_t stem, int64_t widen, int64_t classes)
{
    x = conv(net, x, "conv1", stem, 3, 1);
    for (int stage = 0; stage < 3; stage++)
        for (int b = 0; b < n; b++) {
            bool changes = b == 0 && (stage > 0 || widen != 1);
            abar_scope_push(net, "block%d.layer.%d", stage + 1, b);
            x = block(net, x, (stem * widen) << stage, stage > 0 && b == 0 ? 2 : 1, changes);
            abar_scope_pop(net);
        }
    x = abar_flatten(net, abar_global_average_pool(net, activate(net, x, "bn1")));
    return abar_linear(net, x, "fc", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)config;
    return abar__wrn(net, x, (int)model->variant, 16, 10, classes);
}

const abar_model abar__model_wrn28_10 = {
    .name = "wrn28-10",
    .summary = "Wide ResNet-28-10, 4 pre-activation blocks a stage, 160-320-640 channels",
    .variant = 4,
    .input = {3, 32, 32},
    .classes = 10,
    .build = build,
};
