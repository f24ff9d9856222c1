/* DeiT (Touvron et al. 2021), the vision transformer: patches, a class token, learned positions, pre-norm blocks, and the class
 * token's norm into the head. Names and shapes are timm's. Any image that the patch divides. */
#include "net/net_impl.h"
#include "net/models/models.h"

#define EPS 1e-6
#define HEAD_WIDTH 64  /* of the published members: variant heads of it each */
#define SMALL_IMAGE 64 /* up to so many pixels a patch of 4 is usual, beyond it 16 */

typedef struct deit_config {
    int64_t image_size, classes, patch, width, depth, heads;
    double drop, attention_drop, drop_path;
} deit_config;

#define AT(field) offsetof(deit_config, field)

/* 0 is the member's own, or what suits the image: one table serves them all. */
static const abar_option options[] = {
    {"image-size", ABAR_OPTION_INT, AT(image_size), "224", 1, 1 << 14, NULL, "pixels a side, where the data leave it open"},
    {"classes", ABAR_OPTION_INT, AT(classes), "1000", 1, 1 << 24, NULL, "class count, where the data leave it open"},
    {"patch", ABAR_OPTION_INT, AT(patch), "0", 0, 1 << 14, NULL, "pixels a side of a token; 0: 4 up to 64 pixels, else 16"},
    {"width", ABAR_OPTION_INT, AT(width), "0", 0, 1 << 16, NULL, "numbers a token; 0: 192 of tiny, 384 of small"},
    {"depth", ABAR_OPTION_INT, AT(depth), "12", 1, 1000, NULL, "blocks"},
    {"heads", ABAR_OPTION_INT, AT(heads), "0", 0, 1 << 16, NULL, "of attention; 0: 3 of tiny, 6 of small"},
    {"drop", ABAR_OPTION_REAL, AT(drop), "0", 0, 0.999, NULL, "dropout of tokens, projections and perceptrons"},
    {"attention-drop", ABAR_OPTION_REAL, AT(attention_drop), "0", 0, 0.999, NULL, "dropout of attention probabilities"},
    {"drop-path", ABAR_OPTION_REAL, AT(drop_path), "0", 0, 0.999, NULL,
     "stochastic depth of the last block, from 0 at the first"},
    {0},
};

static void shape(const abar_model *model, const void *config, int64_t input[3], int64_t *classes)
{
    (void)model;
    const deit_config *c = config;
    input[1] = input[2] = c->image_size;
    *classes = c->classes;
}

static int64_t patch_of(const abar_net *net, abar_value x, const deit_config *c)
{
    if (c->patch || x.id < 0) return c->patch;
    return abar__net_shape(net, x.id)->dim[1] <= SMALL_IMAGE ? 4 : 16;
}

static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    const deit_config *c = config;
    const int64_t width = c->width ? c->width : model->variant * HEAD_WIDTH;
    abar__vit_block_config block = {.eps = EPS, .drop = c->drop};
    block.attention =
        ABAR_CONFIG(abar_attention_config, .heads = c->heads ? c->heads : model->variant, .drop = c->attention_drop);
    int64_t grid[2];
    x = abar__vit_patches(net, x, patch_of(net, x, c), width, grid);
    x = abar_class_token(net, x); /* (1 + patches, width) */
    if (c->drop > 0.0) x = abar_dropout(net, x, c->drop);
    for (int64_t b = 0; b < c->depth; b++) {
        block.drop_path = c->depth > 1 ? c->drop_path * (double)b / (double)(c->depth - 1) : 0.0;
        abar_scope_push(net, "blocks.%d", (int)b);
        x = abar__vit_block(net, x, &block);
        abar_scope_pop(net);
    }
    x = abar_layer_norm(net, abar_token_first(net, x), "norm", EPS); /* the others' norms would go nowhere */
    return abar__vit_head(net, x, "head", classes);
}

const abar_model abar__model_deit_tiny = {
    .name = "deit-tiny",
    .summary = "DeiT-Tiny, 12 blocks of width 192, 3 heads, patch 16 (4 on small images)",
    .options = options,
    .config_size = sizeof(deit_config),
    .variant = 3,
    .input = {3, 224, 224},
    .classes = 1000,
    .shape = shape,
    .build = build,
};

const abar_model abar__model_deit_small = {
    .name = "deit-small",
    .summary = "DeiT-Small, 12 blocks of width 384, 6 heads, patch 16 (4 on small images)",
    .options = options,
    .config_size = sizeof(deit_config),
    .variant = 6,
    .input = {3, 224, 224},
    .classes = 1000,
    .shape = shape,
    .build = build,
};
