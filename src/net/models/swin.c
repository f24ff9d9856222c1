/* Swin (Liu et al. 2021): attention within windows, every second block with the windows shifted by half of one, patches merged
 * two by two between stages, and the mean of the last tokens into the head. Names and shapes are timm's. */
#include "net/net_impl.h"
#include "net/models/models.h"

#define EPS 1e-5
#define STAGES_MAX 8
#define SMALL_IMAGE 64 /* up to so many pixels patches of 2 and windows of 4 are usual, beyond it 4 and 7 */

typedef struct swin_config {
    int64_t image_size, classes, patch, width, window;
    char depths[ABAR_OPTION_TEXT_MAX], heads[ABAR_OPTION_TEXT_MAX];
    double drop, attention_drop, drop_path;
} swin_config;

#define AT(field) offsetof(swin_config, field)

static const abar_option options[] = {
    {"image-size", ABAR_OPTION_INT, AT(image_size), "224", 1, 1 << 14, NULL, "pixels a side, where the data leave it open"},
    {"classes", ABAR_OPTION_INT, AT(classes), "1000", 1, 1 << 24, NULL, "class count, where the data leave it open"},
    {"patch", ABAR_OPTION_INT, AT(patch), "0", 0, 1 << 14, NULL,
     "pixels a side of a first token; 0: 2 up to 64 pixels, else 4"},
    {"width", ABAR_OPTION_INT, AT(width), "96", 1, 1 << 16, NULL,
     "numbers a token of the first stage; each next has twice as many"},
    {"depths", ABAR_OPTION_TEXT, AT(depths), "2-2-6-2", 0, 0, NULL, "blocks of each stage"},
    {"heads", ABAR_OPTION_TEXT, AT(heads), "3-6-12-24", 0, 0, NULL, "of attention, of each stage"},
    {"window", ABAR_OPTION_INT, AT(window), "0", 0, 1 << 14, NULL,
     "tokens a side of a window, at most the grid's; 0: 4 up to 64 pixels, else 7"},
    {"drop", ABAR_OPTION_REAL, AT(drop), "0", 0, 0.999, NULL, "dropout of tokens, projections and perceptrons"},
    {"attention-drop", ABAR_OPTION_REAL, AT(attention_drop), "0", 0, 0.999, NULL, "dropout of attention probabilities"},
    {"drop-path", ABAR_OPTION_REAL, AT(drop_path), "0", 0, 0.999, NULL,
     "stochastic depth of the last block, from 0 at the first"},
    {0},
};

static void shape(const abar_model *model, const void *config, int64_t input[3], int64_t *classes)
{
    (void)model;
    const swin_config *c = config;
    input[1] = input[2] = c->image_size;
    *classes = c->classes;
}

/* The stages, and how far the grid of tokens has shrunk. */
typedef struct plan {
    int stages;
    int64_t depth[STAGES_MAX], heads[STAGES_MAX];
    int64_t patch, window;
    int64_t grid[2], blocks; /* blocks: of all stages */
} plan;

static bool make_plan(abar_net *net, abar_value x, const swin_config *c, plan *p)
{
    if (x.id < 0) return false;
    const bool small = abar__net_shape(net, x.id)->dim[1] <= SMALL_IMAGE;
    p->patch = c->patch ? c->patch : small ? 2 : 4;
    p->window = c->window ? c->window : small ? 4 : 7;
    p->stages = abar__model_numbers(net, "depths", c->depths, p->depth, STAGES_MAX);
    int heads = abar__model_numbers(net, "heads", c->heads, p->heads, STAGES_MAX);
    if (p->stages == 0 || heads == 0) return false;
    if (heads != p->stages) {
        abar__net_mistake(net, "--heads %s: there are %d stages of --depths, give as many", c->heads, p->stages);
        return false;
    }
    p->blocks = 0;
    for (int s = 0; s < p->stages; s++) p->blocks += p->depth[s];
    return true;
}

/* (H*W, C) -> (H/2 * W/2, 2C) */
static abar_value merge(abar_net *net, abar_value x, plan *p, int64_t width)
{
    if (p->grid[0] % 2 || p->grid[1] % 2)
        return abar__net_mistake(net,
                                 "swin: %lldx%lld tokens cannot be merged two by two, choose another --patch or fewer --depths",
                                 (long long)p->grid[0], (long long)p->grid[1]);
    x = abar_patch_merge(net, x, p->grid[0], p->grid[1]);
    x = abar_layer_norm(net, x, "downsample.norm", EPS);
    p->grid[0] /= 2;
    p->grid[1] /= 2;
    return abar_linear(net, x, "downsample.reduction",
                       &ABAR_CONFIG(abar_linear_config, .out = width, .init = ABAR_INIT_TRUNCATED));
}

/* One stage of blocks, of which first stand before it. */
static abar_value stage(abar_net *net, abar_value x, const swin_config *c, const plan *p, int s, int64_t first)
{
    const int64_t smaller = p->grid[0] < p->grid[1] ? p->grid[0] : p->grid[1];
    const int64_t side = smaller <= p->window ? smaller : p->window;
    if (p->grid[0] % side || p->grid[1] % side)
        return abar__net_mistake(net, "--window %lld: does not divide the %lldx%lld tokens of stage %d, choose another",
                                 (long long)p->window, (long long)p->grid[0], (long long)p->grid[1], s + 1);
    for (int64_t b = 0; b < p->depth[s]; b++) {
        abar__vit_block_config block = {.eps = EPS, .drop = c->drop};
        block.drop_path = p->blocks > 1 ? c->drop_path * (double)(first + b) / (double)(p->blocks - 1) : 0.0;
        block.attention =
            ABAR_CONFIG(abar_attention_config, .heads = p->heads[s], .drop = c->attention_drop,
                        .grid = {p->grid[0], p->grid[1]}, .side = side, .shift = b % 2 && smaller > side ? side / 2 : 0);
        abar_scope_push(net, "blocks.%d", (int)b);
        x = abar__vit_block(net, x, &block);
        abar_scope_pop(net);
    }
    return x;
}

static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)model;
    const swin_config *c = config;
    plan p;
    if (!make_plan(net, x, c, &p)) return (abar_value){-1};
    x = abar__vit_patches(net, x, p.patch, c->width, p.grid);
    if (x.id < 0) return x;
    x = abar_layer_norm(net, x, "patch_embed.norm", EPS);
    if (c->drop > 0.0) x = abar_dropout(net, x, c->drop);
    for (int64_t s = 0, first = 0; s < p.stages; first += p.depth[s++]) {
        abar_scope_push(net, "layers.%d", (int)s);
        if (s > 0) x = merge(net, x, &p, c->width << s);
        x = stage(net, x, c, &p, (int)s, first);
        abar_scope_pop(net);
    }
    x = abar_token_mean(net, abar_layer_norm(net, x, "norm", EPS));
    return abar__vit_head(net, x, "head.fc", classes);
}

const abar_model abar__model_swin_tiny = {
    .name = "swin-tiny",
    .summary = "Swin-Tiny, stages of 2-2-6-2 blocks, width 96 and up, windows of 7 by 7 patches (4 by 4 on small images)",
    .options = options,
    .config_size = sizeof(swin_config),
    .input = {3, 224, 224},
    .classes = 1000,
    .shape = shape,
    .build = build,
};
