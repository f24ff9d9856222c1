/* Losses: the last node of a net. */
#include "net/net_impl.h"

static abar__node *loss(abar_net *net, abar__op_kind kind, const char *name, abar_value x)
{
    abar__node *node = abar__net_node(net, kind, name, 1, &x);
    if (!node) return NULL;
    net->output = x.id;
    net->loss = (int)(node - net->nodes);
    return node;
}

static abar__node *cross_entropy(abar_net *net, abar_value x)
{
    abar__node *node = loss(net, ABAR_OP_SOFTMAX_CROSS_ENTROPY, "softmax_cross_entropy", x);
    char text[64];
    if (!node) return NULL;
    if (abar__net_shape(net, x.id)->ndim <= 2) return node;
    abar__net_mistake(net, "softmax_cross_entropy: reads a vector per sample or token, not %s",
                      abar__shape_text(abar__net_shape(net, x.id), text));
    return NULL;
}

static abar__node *smoothed(abar_net *net, abar_value x, double label_smoothing)
{
    abar__node *node = cross_entropy(net, x);
    if (!node) return NULL;
    if (!(label_smoothing >= 0.0 && label_smoothing < 1.0))
        abar__net_mistake(net, "softmax_cross_entropy: label smoothing %g is not in [0, 1)", label_smoothing);
    node->desc.smoothing = label_smoothing;
    return node;
}

void abar_softmax_cross_entropy(abar_net *net, abar_value x, double label_smoothing) { smoothed(net, x, label_smoothing); }

void abar_softmax_cross_entropy_pairs(abar_net *net, abar_value x, double label_smoothing)
{
    abar__node *node = smoothed(net, x, label_smoothing);
    if (node) node->desc.label_pairs = true;
}

void abar_softmax_cross_entropy_soft(abar_net *net, abar_value x)
{
    abar__node *node = cross_entropy(net, x);
    if (node) node->desc.soft_targets = true;
}

void abar_squared_error(abar_net *net, abar_value x) { loss(net, ABAR_OP_SQUARED_ERROR, "squared_error", x); }
