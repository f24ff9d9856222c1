/* LeNet-5 (LeCun et al. 1998) as it is trained today: 6c5p2-mp2-16c5-mp2-120-84-10 on 28x28, ReLU or tanh. */
#include "net/models/models.h"

typedef struct lenet5_config {
    int64_t activation;
} lenet5_config;

static const abar_option options[] = {
    {.name = "activation",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(lenet5_config, activation),
     .fallback = "relu",
     .choices = "relu|tanh",
     .help = "between the layers"},
    {0},
};

static abar_value activate(abar_net *net, abar_value x, const lenet5_config *c)
{
    return c->activation == 0 ? abar_relu(net, x) : abar_tanh(net, x);
}

static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)model;
    const lenet5_config *c = config;
    const abar_pool_config half = {.size = sizeof half, .kernel = 2};
    x = activate(
        net, abar_conv2d(net, x, "conv1", &ABAR_CONFIG(abar_conv2d_config, .out = 6, .kernel = 5, .pad = 2, .bias = true)), c);
    x = abar_max_pool(net, x, &half); /* (6, 14, 14) */
    x = activate(net, abar_conv2d(net, x, "conv2", &ABAR_CONFIG(abar_conv2d_config, .out = 16, .kernel = 5, .bias = true)), c);
    x = abar_flatten(net, abar_max_pool(net, x, &half)); /* (16 * 5 * 5) */
    x = activate(net, abar_linear(net, x, "fc1", &ABAR_CONFIG(abar_linear_config, .out = 120, .bias = true)), c);
    x = activate(net, abar_linear(net, x, "fc2", &ABAR_CONFIG(abar_linear_config, .out = 84, .bias = true)), c);
    return abar_linear(net, x, "fc3", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

const abar_model abar__model_lenet5 = {
    .name = "lenet5",
    .summary = "LeNet-5, two convolutions and three linear layers",
    .options = options,
    .config_size = sizeof(lenet5_config),
    .input = {1, 28, 28},
    .classes = 10,
    .build = build,
};
