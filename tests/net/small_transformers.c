/* The transformers of the net tests: a GPT with a tied head, a DeiT, a Swin with shifted windows. */
#include "small_transformers.h"

static abar_value linear(abar_net *net, abar_value x, const char *name, int64_t out)
{
    return abar_linear(net, x, name, &ABAR_CONFIG(abar_linear_config, .out = out, .bias = true));
}

/* Pre-norm, as DeiT, Swin and GPT have it. */
abar_value small_block(abar_net *net, abar_value x, int64_t width, const abar_attention_config *attention, double drop)
{
    abar_value y = abar_layer_norm(net, x, "norm1", 1e-6);
    y = abar_attention_heads(net, linear(net, y, "attn.qkv", 3 * width), "attn", attention);
    y = abar_drop_path(net, linear(net, y, "attn.proj", width), drop);
    x = abar_add(net, x, y);
    y = linear(net, abar_layer_norm(net, x, "norm2", 1e-6), "mlp.fc1", 2 * width);
    y = abar_dropout(net, linear(net, abar_gelu(net, y), "mlp.fc2", width), drop);
    return abar_add(net, x, y);
}

void build_small_gpt(abar_net *net)
{
    const int64_t width = 8;
    const abar_attention_config attention = {.size = sizeof attention, .heads = 2, .causal = true, .drop = 0.2};
    abar_scope_push(net, "transformer");
    abar_value x = abar_embedding(net, abar_input_tokens(net, LENGTH), VOCABULARY, LENGTH + 2, width);
    for (int b = 0; b < 2; b++) {
        abar_scope_push(net, "h.%d", b);
        x = small_block(net, x, width, &attention, 0.1);
        abar_scope_pop(net);
    }
    x = abar_layer_norm(net, x, "ln_f", 1e-5);
    abar_scope_pop(net);
    abar_softmax_cross_entropy(net, abar_linear_tied(net, x, "lm_head"), 0.0);
}

static abar_value patches(abar_net *net, int64_t width)
{
    const abar_conv2d_config config = {.size = sizeof config, .out = width, .kernel = 2, .stride = 2, .bias = true};
    return abar_tokens(net, abar_conv2d(net, abar_input(net, 3, (int64_t[]){3, 8, 8}), "patch_embed.proj", &config));
}

void build_small_deit(abar_net *net)
{
    abar_value x = abar_class_token(net, patches(net, 8));
    for (int b = 0; b < 2; b++) {
        abar_scope_push(net, "blocks.%d", b);
        x = small_block(net, x, 8, &ABAR_CONFIG(abar_attention_config, .heads = 2), 0.2);
        abar_scope_pop(net);
    }
    x = abar_token_first(net, abar_layer_norm(net, x, "norm", 1e-6));
    abar_softmax_cross_entropy(net, linear(net, x, "head", VOCABULARY), 0.1);
}

void build_small_swin(abar_net *net)
{
    abar_value x = patches(net, 4);
    for (int b = 0; b < 2; b++) {
        abar_scope_push(net, "layers.0.blocks.%d", b);
        x = small_block(net, x, 4, &ABAR_CONFIG(abar_attention_config, .heads = 2, .grid = {4, 4}, .side = 2, .shift = b), 0.0);
        abar_scope_pop(net);
    }
    x = abar_layer_norm(net, abar_patch_merge(net, x, 4, 4), "layers.1.downsample.norm", 1e-5);
    x = abar_linear(net, x, "layers.1.downsample.reduction", &ABAR_CONFIG(abar_linear_config, .out = 8));
    abar_scope_push(net, "layers.1.blocks.0");
    x = small_block(net, x, 8, &ABAR_CONFIG(abar_attention_config, .heads = 4, .grid = {2, 2}, .side = 2), 0.0);
    abar_scope_pop(net);
    x = abar_token_mean(net, abar_layer_norm(net, x, "norm", 1e-5));
    abar_softmax_cross_entropy(net, linear(net, x, "head.fc", VOCABULARY), 0.0);
}

void (*const small_transformers[SMALL_TRANSFORMERS])(abar_net *net) = {build_small_gpt, build_small_deit, build_small_swin};
