/* Attention of several heads over the tokens of a sequence, or over those of a window of an image (Swin). */
#include "net/net_impl.h"

/* Windows must tile the grid, the grid must be the tokens. False after a mistake. */
static bool check_windows(abar_net *net, const abar__node *node, const abar_attention_config *c, int64_t tokens)
{
    const int64_t *grid = c->grid;
    if (c->side < 0 || grid[0] < 1 || grid[1] < 1 || grid[0] * grid[1] != tokens)
        abar__net_mistake(net, "%s: %lld tokens are no grid of %lld x %lld", node->name, (long long)tokens, (long long)grid[0],
                          (long long)grid[1]);
    else if (grid[0] % c->side || grid[1] % c->side)
        abar__net_mistake(net, "%s: windows of side %lld do not tile a grid of %lld x %lld, choose another image size",
                          node->name, (long long)c->side, (long long)grid[0], (long long)grid[1]);
    else if (c->shift < 0 || c->shift >= c->side)
        abar__net_mistake(net, "%s: windows of side %lld cannot shift by %lld", node->name, (long long)c->side,
                          (long long)c->shift);
    else if (c->causal)
        abar__net_mistake(net, "%s: attention in windows has no order in time, it cannot be causal", node->name);
    else
        return true;
    return false;
}

static bool check(abar_net *net, const abar__node *node, const abar_attention_config *c, const abar__shape *qkv)
{
    char text[64];
    if (qkv->ndim != 2 || qkv->dim[1] % 3)
        abar__net_mistake(net, "%s: attention reads queries, keys and values, tokens x 3 widths, not %s", node->name,
                          abar__shape_text(qkv, text));
    else if (c->heads < 1 || qkv->dim[1] / 3 % c->heads)
        abar__net_mistake(net, "%s: %lld heads do not divide a width of %lld, choose a number that does", node->name,
                          (long long)c->heads, (long long)(qkv->dim[1] / 3));
    else if (!(c->drop >= 0.0 && c->drop < 1.0))
        abar__net_mistake(net, "%s: dropout probability %g is not in [0, 1)", node->name, c->drop);
    else if (c->drop > 0.0 && net->dropouts == ABAR_NET_DROPOUTS)
        abar__net_mistake(net, "%s: a net has at most %d dropouts", node->name, ABAR_NET_DROPOUTS);
    else
        return c->side == 0 || check_windows(net, node, c, qkv->dim[0]);
    return false;
}

abar_value abar_attention_heads(abar_net *net, abar_value qkv, const char *name, const abar_attention_config *caller)
{
    abar__node *node = abar__net_node(net, ABAR_OP_ATTENTION, name, 1, &qkv);
    abar_attention_config config;
    if (!node || !abar__net_config(net, node, "abar_attention_config", caller, &config, sizeof config)) return (abar_value){-1};
    const abar__shape in = *abar__net_shape(net, qkv.id); /* (T, 3D) */
    if (!check(net, node, &config, &in)) return (abar_value){-1};
    abar__op_desc *d = &node->desc;
    d->heads = config.heads;
    d->causal = config.causal;
    d->drop = config.drop;
    if (config.drop > 0.0) d->number = (uint32_t)net->dropouts++;
    if (config.side) {
        const int64_t reach = 2 * config.side - 1, dim[2] = {reach * reach, config.heads};
        d->grid[0] = config.grid[0];
        d->grid[1] = config.grid[1];
        d->side = config.side;
        d->shift = config.shift;
        abar__param_info *bias = abar__net_add_param(net, node, 0, "relative_position_bias_table", ABAR_PARAM_TOKEN, 2, dim);
        if (!bias) return (abar_value){-1};
        bias->normal = 0.02;
    }
    return abar__net_finish(net, node, &(abar__shape){2, {in.dim[0], in.dim[1] / 3}});
}
