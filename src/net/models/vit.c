/* What DeiT and Swin share: patches as tokens, attention with its projections, the perceptron, and their names (timm's). */
#include "net/net_impl.h"
#include "net/models/models.h"

static abar_value linear(abar_net *net, abar_value x, const char *name, int64_t out)
{
    return abar_linear(net, x, name, &ABAR_CONFIG(abar_linear_config, .out = out, .bias = true, .init = ABAR_INIT_TRUNCATED));
}

static abar_value drop(abar_net *net, abar_value x, double probability)
{
    return probability > 0.0 ? abar_dropout(net, x, probability) : x;
}

static abar_value add(abar_net *net, abar_value x, abar_value y, double drop_path)
{
    return abar_add(net, x, drop_path > 0.0 ? abar_drop_path(net, y, drop_path) : y);
}

abar_value abar__vit_patches(abar_net *net, abar_value x, int64_t patch, int64_t width, int64_t grid[2])
{
    if (x.id < 0) return x;
    const abar__shape shape = *abar__net_shape(net, x.id); /* (C, H, W) */
    if (shape.ndim != 3 || shape.dim[1] % patch || shape.dim[2] % patch) {
        char text[64];
        return abar__net_mistake(net, "--patch %lld: does not divide %s images, choose another", (long long)patch,
                                 abar__shape_text(&shape, text));
    }
    grid[0] = shape.dim[1] / patch;
    grid[1] = shape.dim[2] / patch;
    x = abar_conv2d(net, x, "patch_embed.proj",
                    &ABAR_CONFIG(abar_conv2d_config, .out = width, .kernel = patch, .stride = patch, .bias = true));
    return abar_tokens(net, x); /* (grid[0] * grid[1], width) */
}

/* The width of tokens (T, D). */
static int64_t width_of(const abar_net *net, abar_value x) { return x.id < 0 ? 0 : abar__net_shape(net, x.id)->dim[1]; }

abar_value abar__vit_block(abar_net *net, abar_value x, const abar__vit_block_config *c)
{
    const int64_t width = width_of(net, x);
    abar_value y = abar_layer_norm(net, x, "norm1", c->eps);
    y = linear(net, y, "attn.qkv", 3 * width);
    y = abar_attention_heads(net, y, "attn", &c->attention);
    y = drop(net, linear(net, y, "attn.proj", width), c->drop);
    x = add(net, x, y, c->drop_path);
    y = abar_layer_norm(net, x, "norm2", c->eps);
    y = drop(net, abar_gelu(net, linear(net, y, "mlp.fc1", 4 * width)), c->drop);
    y = drop(net, linear(net, y, "mlp.fc2", width), c->drop);
    return add(net, x, y, c->drop_path);
}

abar_value abar__vit_head(abar_net *net, abar_value x, const char *name, int64_t classes)
{
    return linear(net, x, name, classes);
}
