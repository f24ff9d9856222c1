/* Element-wise functions, and dropout. */
#include "net/net_impl.h"

static abar_value activation(abar_net *net, abar_value x, const char *name, abar__activation function)
{
    abar__node *node = abar__net_node(net, ABAR_OP_ACTIVATION, name, 1, &x);
    if (!node) return (abar_value){-1};
    node->desc.activation = function;
    const abar__shape shape = *abar__net_shape(net, x.id);
    return abar__net_finish(net, node, &shape);
}

abar_value abar_relu(abar_net *net, abar_value x) { return activation(net, x, "relu", ABAR_ACT_RELU); }
abar_value abar_tanh(abar_net *net, abar_value x) { return activation(net, x, "tanh", ABAR_ACT_TANH); }
abar_value abar_gelu(abar_net *net, abar_value x) { return activation(net, x, "gelu", ABAR_ACT_GELU_ERF); }
abar_value abar_gelu_tanh(abar_net *net, abar_value x) { return activation(net, x, "gelu_tanh", ABAR_ACT_GELU_TANH); }

abar_value abar_dropout(abar_net *net, abar_value x, double probability)
{
    if (probability == 0.0) return x;
    if (!(probability > 0.0 && probability < 1.0))
        return abar__net_mistake(net, "dropout: probability %g is not in [0, 1)", probability);
    if (net->dropouts == 256) return abar__net_mistake(net, "dropout: a net has at most 256 of them");
    abar__node *node = abar__net_node(net, ABAR_OP_DROPOUT, "dropout", 1, &x);
    if (!node) return (abar_value){-1};
    node->desc.drop = probability;
    node->desc.number = (uint32_t)net->dropouts++;
    const abar__shape shape = *abar__net_shape(net, x.id);
    return abar__net_finish(net, node, &shape);
}
