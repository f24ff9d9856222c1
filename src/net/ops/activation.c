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

static abar_value drop(abar_net *net, abar_value x, const char *name, double probability, bool per_sample)
{
    if (probability == 0.0) return x;
    if (!(probability > 0.0 && probability < 1.0))
        return abar__net_mistake(net, "%s: probability %g is not in [0, 1)", name, probability);
    if (net->dropouts == ABAR_NET_DROPOUTS)
        return abar__net_mistake(net, "%s: a net has at most %d of them", name, ABAR_NET_DROPOUTS);
    abar__node *node = abar__net_node(net, ABAR_OP_DROPOUT, name, 1, &x);
    if (!node) return (abar_value){-1};
    node->desc.drop = probability;
    node->desc.per_sample = per_sample;
    node->desc.number = (uint32_t)net->dropouts++;
    const abar__shape shape = *abar__net_shape(net, x.id);
    return abar__net_finish(net, node, &shape);
}

abar_value abar_dropout(abar_net *net, abar_value x, double probability) { return drop(net, x, "dropout", probability, false); }

abar_value abar_drop_path(abar_net *net, abar_value x, double probability)
{
    return drop(net, x, "drop_path", probability, true);
}
