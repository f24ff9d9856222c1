/* Fully connected layer: y = x W^T + b on the last dimension. Tied, it has no weight of its own. */
#include "net/net_impl.h"

#include <stdio.h>
#include <string.h>

abar_value abar_linear(abar_net *net, abar_value x, const char *name, const abar_linear_config *caller)
{
    abar__node *node = abar__net_node(net, ABAR_OP_LINEAR, name, 1, &x);
    abar_linear_config config;
    if (!node || !abar__net_config(net, node, "abar_linear_config", caller, &config, sizeof config)) return (abar_value){-1};
    abar__shape shape = *abar__net_shape(net, x.id);
    char text[64];
    if (shape.ndim == 3)
        return abar__net_mistake(net, "%s: a linear layer cannot read a %s image, flatten it first", node->name,
                                 abar__shape_text(&shape, text));
    if (config.out < 1) return abar__net_mistake(net, "%s: needs at least one output", node->name);
    int64_t *last = &shape.dim[shape.ndim - 1];
    int64_t dim[2] = {config.out, *last};
    if (!abar__net_add_weights(net, node, 2, dim, config.bias, config.init, config.layers)) return (abar_value){-1};
    node->desc.window = abar_window_unit();
    *last = config.out;
    return abar__net_finish(net, node, &shape);
}

abar_value abar_linear_tied(abar_net *net, abar_value x, const char *name)
{
    abar__node *node = abar__net_node(net, ABAR_OP_LINEAR, name, 1, &x);
    if (!node) return (abar_value){-1};
    if (net->embedding < 0) return abar__net_mistake(net, "%s: there is no embedding to share a weight with", node->name);
    if (net->tied >= 0)
        return abar__net_mistake(net, "%s: the embedding's table is shared already, by %s", node->name,
                                 net->nodes[net->tied].name);
    const int table = net->nodes[net->embedding].param[0];
    const int64_t *dim = net->params[table].dim; /* (V, D) */
    abar__shape shape = *abar__net_shape(net, x.id);
    char text[64];
    int64_t *last = &shape.dim[shape.ndim - 1];
    if (shape.ndim == 3 || *last != dim[1])
        return abar__net_mistake(net, "%s: the embedding is %lld wide, the value %s", node->name, (long long)dim[1],
                                 abar__shape_text(&shape, text));
    snprintf(node->tied, sizeof node->tied, "%s.weight", node->name);
    for (int i = 0; i < net->n_params; i++)
        if (strcmp(net->params[i].name, node->tied) == 0)
            return abar__net_mistake(net, "net: two layers are called %s", node->name);
    node->param[0] = table;
    node->desc.window = abar_window_unit();
    net->tied = (int)(node - net->nodes);
    *last = dim[0];
    return abar__net_finish(net, node, &shape);
}
