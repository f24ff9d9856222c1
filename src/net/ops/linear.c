/* Fully connected layer: y = x W^T + b on the last dimension. */
#include "net/net_impl.h"

abar_value abar_linear(abar_net *net, abar_value x, const char *name, const abar_linear_config *config)
{
    abar__node *node = abar__net_node(net, ABAR_OP_LINEAR, name, 1, &x);
    if (!node) return (abar_value){-1};
    abar__shape shape = *abar__net_shape(net, x.id);
    char text[64];
    if (shape.ndim == 3)
        return abar__net_mistake(net, "%s: a linear layer cannot read a %s image, flatten it first", node->name,
                                 abar__shape_text(&shape, text));
    if (config->out < 1) return abar__net_mistake(net, "%s: needs at least one output", node->name);
    int64_t *last = &shape.dim[shape.ndim - 1];
    if (!abar__net_add_weights(net, node, 2, (int64_t[]){config->out, *last}, config->bias, config->init))
        return (abar_value){-1};
    node->desc.window = abar_window_unit();
    *last = config->out;
    return abar__net_finish(net, node, &shape);
}
