/* Densely connected networks for 32x32 images (Huang et al. 2017), with bottlenecks and compression: every layer reads all
 * features made before it in its block and puts its own in front of them. */
#include "net/models/models.h"

#define BOTTLENECK 4
#define BLOCKS_MAX 8

typedef struct densenet_config {
    int64_t image_size;
    char layers[ABAR_OPTION_TEXT_MAX];
    int64_t growth;
} densenet_config;

#define AT(field) offsetof(densenet_config, field)

static const abar_option options[] = {
    {"image-size", ABAR_OPTION_INT, AT(image_size), "32", 1, 1 << 14, NULL, "pixels a side, where the data leave it open"},
    {"layers", ABAR_OPTION_TEXT, AT(layers), "6-12-24-16", 0, 0, NULL,
     "of each block; between blocks channels and sides halve"},
    {"growth", ABAR_OPTION_INT, AT(growth), "32", 1, 1 << 16, NULL, "channels that a layer adds"},
    {0},
};

static void shape(const abar_model *model, const void *config, int64_t input[3], int64_t *classes)
{
    (void)model, (void)classes;
    input[1] = input[2] = ((const densenet_config *)config)->image_size;
}

static abar_value conv(abar_net *net, abar_value x, const char *name, int64_t out, int64_t kernel)
{
    return abar_conv2d(net, x, name, &ABAR_CONFIG(abar_conv2d_config, .out = out, .kernel = kernel, .pad = kernel / 2));
}

static abar_value activate(abar_net *net, abar_value x, const char *name)
{
    return abar_relu(net, abar_batch_norm(net, x, name));
}

/* (C, H, W) -> (growth + C, H, W) */
static abar_value dense_layer(abar_net *net, abar_value x, int64_t growth)
{
    abar_value y = conv(net, activate(net, x, "bn1"), "conv1", BOTTLENECK * growth, 1);
    y = conv(net, activate(net, y, "bn2"), "conv2", growth, 3);
    return abar_concat(net, 2, (abar_value[]){y, x});
}

static abar_value dense_block(abar_net *net, abar_value x, int block, int64_t layers, int64_t growth)
{
    for (int64_t i = 0; i < layers; i++) {
        abar_scope_push(net, "dense%d.%d", block, (int)i);
        x = dense_layer(net, x, growth);
        abar_scope_pop(net);
    }
    return x;
}

static abar_value transition(abar_net *net, abar_value x, int block, int64_t out)
{
    abar_scope_push(net, "trans%d", block);
    x = conv(net, activate(net, x, "bn"), "conv", out, 1);
    abar_scope_pop(net);
    return abar_average_pool(net, x, &ABAR_CONFIG(abar_pool_config, .kernel = 2));
}

static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)model;
    const densenet_config *c = config;
    int64_t layers[BLOCKS_MAX], channels = 2 * c->growth;
    const int blocks = abar__model_numbers(net, "layers", c->layers, layers, BLOCKS_MAX);
    x = conv(net, x, "conv1", channels, 3);
    for (int block = 0; block < blocks; block++) {
        x = dense_block(net, x, block + 1, layers[block], c->growth);
        channels += layers[block] * c->growth;
        if (block + 1 < blocks) x = transition(net, x, block + 1, channels /= 2);
    }
    x = abar_global_average_pool(net, activate(net, x, "bn")); /* over the 4x4 pixels that are left of 32x32 */
    return abar_linear(net, abar_flatten(net, x), "linear", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

const abar_model abar__model_densenet121 = {
    .name = "densenet121",
    .summary = "CIFAR DenseNet-121, blocks of 6-12-24-16 layers that add 32 channels each",
    .options = options,
    .config_size = sizeof(densenet_config),
    .input = {3, 32, 32},
    .classes = 10,
    .shape = shape,
    .build = build,
};
