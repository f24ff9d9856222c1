/* Residual networks for large images (He et al. 2015, table 1): bottleneck blocks, four stages, 1x1 shortcuts where the shape
 * changes. The stride is in the 3x3 convolution, names are torchvision's. */
#include "net/models/models.h"

#include <string.h>

#define EXPANSION 4 /* channels of a block's output per channel of its 3x3 convolution */
#define STAGES_MAX 8

enum { STEM_LARGE, STEM_SMALL };

typedef struct resnet_config {
    int64_t image_size, classes, width, stem;
    char blocks[ABAR_OPTION_TEXT_MAX];
} resnet_config;

#define AT(field) offsetof(resnet_config, field)

static const abar_option options[] = {
    {"image-size", ABAR_OPTION_INT, AT(image_size), "176", 1, 1 << 14, NULL, "pixels a side, where the data leave it open"},
    {"classes", ABAR_OPTION_INT, AT(classes), "1000", 1, 1 << 24, NULL, "class count, where the data leave it open"},
    {"blocks", ABAR_OPTION_TEXT, AT(blocks), "", 0, 0, NULL, "of each stage, as 3-4-6-3; empty: the member's own"},
    {"width", ABAR_OPTION_INT, AT(width), "64", 1, 1 << 16, NULL, "channels of the first stage's 3x3 convolutions"},
    {"stem", ABAR_OPTION_CHOICE, AT(stem), "large", 0, 0, "large|small",
     "first convolution: 7x7 with stride 2 and max pooling, or, for small images, 3x3 with stride 1 alone"},
    {0},
};

static void shape(const abar_model *model, const void *config, int64_t input[3], int64_t *classes)
{
    (void)model;
    const resnet_config *c = config;
    input[1] = input[2] = c->image_size;
    *classes = c->classes;
}

static abar_value conv_norm(abar_net *net, abar_value x, const char *conv, const char *norm, const abar_conv2d_config *config)
{
    return abar_batch_norm(net, abar_conv2d(net, x, conv, config), norm);
}

static abar_conv2d_config square(int64_t out, int64_t kernel, int64_t stride)
{
    return ABAR_CONFIG(abar_conv2d_config, .out = out, .kernel = kernel, .stride = stride, .pad = kernel / 2,
                       .init = ABAR_INIT_KAIMING_OUT);
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

/* variant: the number of blocks in the third stage. */
static int blocks_of(const abar_model *model, abar_net *net, const char *text, int64_t blocks[STAGES_MAX])
{
    if (*text) return abar__model_numbers(net, "blocks", text, blocks, STAGES_MAX);
    memcpy(blocks, (int64_t[]){3, 4, model->variant, 3}, 4 * sizeof *blocks);
    return 4;
}

static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    const resnet_config *c = config;
    const bool small = c->stem == STEM_SMALL;
    const abar_conv2d_config stem = square(c->width, small ? 3 : 7, small ? 1 : 2);
    int64_t blocks[STAGES_MAX];
    const int stages = blocks_of(model, net, c->blocks, blocks);
    x = abar_relu(net, conv_norm(net, x, "conv1", "bn1", &stem));
    if (!small) x = abar_max_pool(net, x, &ABAR_CONFIG(abar_pool_config, .kernel = 3, .stride = 2, .pad = 1));
    for (int stage = 0; stage < stages; stage++)
        for (int64_t block = 0; block < blocks[stage]; block++) {
            abar_scope_push(net, "layer%d.%d", stage + 1, (int)block);
            x = bottleneck(net, x, c->width << stage, stage > 0 && block == 0 ? 2 : 1, block == 0);
            abar_scope_pop(net);
        }
    x = abar_flatten(net, abar_global_average_pool(net, x));
    return abar_linear(net, x, "fc", &ABAR_CONFIG(abar_linear_config, .out = classes, .bias = true));
}

/* The default image size is the one that the recipe trains with. */
const abar_model abar__model_resnet50 = {
    .name = "resnet50",
    .summary = "ImageNet ResNet-50, stages of 3-4-6-3 bottlenecks, 64-128-256-512 channels",
    .options = options,
    .config_size = sizeof(resnet_config),
    .variant = 6,
    .input = {3, 176, 176},
    .classes = 1000,
    .shape = shape,
    .build = build,
};

const abar_model abar__model_resnet101 = {
    .name = "resnet101",
    .summary = "ImageNet ResNet-101, stages of 3-4-23-3 bottlenecks, 64-128-256-512 channels",
    .options = options,
    .config_size = sizeof(resnet_config),
    .variant = 23,
    .input = {3, 176, 176},
    .classes = 1000,
    .shape = shape,
    .build = build,
};
