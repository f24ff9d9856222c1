/* Operations on sequences (T, D) except attention: embeddings, tokens of images, class tokens, merging and pooling. */
#include "net/net_impl.h"

#define SMALL 0.02 /* standard deviation of embeddings and positions */

static abar_value wrong_shape(abar_net *net, const abar__node *node, const char *wanted, int value)
{
    char text[64];
    return abar__net_mistake(net, "%s: reads %s, not %s", node->name, wanted,
                             abar__shape_text(abar__net_shape(net, value), text));
}

abar_value abar_embedding(abar_net *net, abar_value tokens, int64_t vocabulary, int64_t length, int64_t width)
{
    abar__node *node = abar__net_node(net, ABAR_OP_EMBEDDING, "embedding", 1, &tokens);
    if (!node) return (abar_value){-1};
    const int64_t count = abar__net_shape(net, tokens.id)->dim[0];
    if (vocabulary < 1 || vocabulary > INT32_MAX || width < 1)
        return abar__net_mistake(net, "%s: cannot make %lld tokens %lld wide", node->name, (long long)vocabulary,
                                 (long long)width);
    if (count > length)
        return abar__net_mistake(net, "%s: %lld tokens, but positions for %lld only", node->name, (long long)count,
                                 (long long)length);
    node->desc.vocabulary = vocabulary;
    node->desc.positions = length;
    net->embedding = (int)(node - net->nodes);
    const int64_t table[2] = {vocabulary, width}, positions[2] = {length, width};
    abar__param_info *wte = abar__net_add_named(net, node, 0, "wte.weight", ABAR_PARAM_WEIGHT, 2, table);
    if (!wte) return (abar_value){-1};
    wte->normal = SMALL;
    abar__param_info *wpe = abar__net_add_named(net, node, 1, "wpe.weight", ABAR_PARAM_TOKEN, 2, positions);
    if (!wpe) return (abar_value){-1};
    wpe->normal = SMALL;
    return abar__net_finish(net, node, &(abar__shape){2, {count, width}});
}

abar_value abar_tokens(abar_net *net, abar_value x)
{
    abar__node *node = abar__net_node(net, ABAR_OP_TOKENS, "tokens", 1, &x);
    if (!node) return (abar_value){-1};
    const abar__shape in = *abar__net_shape(net, x.id); /* (C, H, W) */
    if (in.ndim != 3) return wrong_shape(net, node, "channels x height x width", x.id);
    return abar__net_finish(net, node, &(abar__shape){2, {in.dim[1] * in.dim[2], in.dim[0]}});
}

abar_value abar_class_token(abar_net *net, abar_value x)
{
    abar__node *node = abar__net_node(net, ABAR_OP_CLASS_TOKEN, "class_token", 1, &x);
    if (!node) return (abar_value){-1};
    abar__shape shape = *abar__net_shape(net, x.id);
    if (shape.ndim != 2) return wrong_shape(net, node, "tokens x width", x.id);
    shape.dim[0]++;
    const int64_t token[3] = {1, 1, shape.dim[1]}, positions[3] = {1, shape.dim[0], shape.dim[1]};
    abar__param_info *cls = abar__net_add_named(net, node, 0, "cls_token", ABAR_PARAM_TOKEN, 3, token);
    if (!cls) return (abar_value){-1};
    cls->normal = 1e-6;
    abar__param_info *pos = abar__net_add_named(net, node, 1, "pos_embed", ABAR_PARAM_TOKEN, 3, positions);
    if (!pos) return (abar_value){-1};
    pos->normal = SMALL;
    return abar__net_finish(net, node, &shape);
}

abar_value abar_patch_merge(abar_net *net, abar_value x, int64_t height, int64_t width)
{
    abar__node *node = abar__net_node(net, ABAR_OP_PATCH_MERGE, "patch_merge", 1, &x);
    if (!node) return (abar_value){-1};
    abar__shape shape = *abar__net_shape(net, x.id);
    if (shape.ndim != 2) return wrong_shape(net, node, "tokens x width", x.id);
    if (height < 2 || width < 2 || height % 2 || width % 2 || height * width != shape.dim[0])
        return abar__net_mistake(net, "%s: %lld tokens are no image of %lld x %lld, both even", node->name,
                                 (long long)shape.dim[0], (long long)height, (long long)width);
    node->desc.grid[0] = height;
    node->desc.grid[1] = width;
    return abar__net_finish(net, node, &(abar__shape){2, {shape.dim[0] / 4, 4 * shape.dim[1]}});
}

static abar_value one_token(abar_net *net, abar_value x, abar__op_kind kind, const char *name)
{
    abar__node *node = abar__net_node(net, kind, name, 1, &x);
    if (!node) return (abar_value){-1};
    const abar__shape shape = *abar__net_shape(net, x.id);
    if (shape.ndim != 2) return wrong_shape(net, node, "tokens x width", x.id);
    return abar__net_finish(net, node, &(abar__shape){1, {shape.dim[1]}});
}

abar_value abar_token_mean(abar_net *net, abar_value x) { return one_token(net, x, ABAR_OP_TOKEN_MEAN, "token_mean"); }
abar_value abar_token_first(abar_net *net, abar_value x) { return one_token(net, x, ABAR_OP_TOKEN_FIRST, "token_first"); }
