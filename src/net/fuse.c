/* Fusion: a chain that a back end can run as one operation becomes one.
 *
 *     conv2d or linear -> relu
 *     linear -> gelu
 *     batch norm [-> add] [-> relu]
 *     add -> layer norm
 *
 * Each member except the last is read by the next one only. The chain runs at the place of its last member, so that a
 * residual that is computed after the batch norm is ready in time. The sum in front of a layer norm has other readers as
 * well: it becomes a second output, and the pair runs at the place of the add. */
#include "net/net_impl.h"

/* The node that produces this value, if the value has no other reader; else -1. */
static int sole_producer(const abar_net *net, int value)
{
    const abar__value *v = &net->values[value];
    return v->uses == 1 ? v->producer : -1;
}

static bool is_kind(const abar_net *net, int node, abar__op_kind kind)
{
    return node >= 0 && net->nodes[node].desc.kind == kind;
}

/* The batch norm that an add can be fused into, and which operand of the add it is. */
static int norm_below_add(const abar_net *net, int add, int *operand)
{
    for (*operand = 0; *operand < 2; (*operand)++) {
        int below = sole_producer(net, net->nodes[add].in[*operand]);
        if (!is_kind(net, below, ABAR_OP_BATCH_NORM)) continue;
        const abar__op_desc *d = &net->nodes[below].desc;
        if (!d->residual && d->activation == ABAR_ACT_NONE) return below;
    }
    return -1;
}

/* Node `last` takes over the work of `first`: its inputs, parameters and attributes. */
static void absorb(abar_net *net, int first, int last)
{
    abar__node *from = &net->nodes[first], *to = &net->nodes[last];
    abar__activation activation = to->desc.kind == ABAR_OP_ACTIVATION ? to->desc.activation : ABAR_ACT_NONE;
    to->desc = from->desc;
    to->desc.activation = activation;
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) to->in[i] = from->in[i];
    from->absorbed = last;
    to->source = from->source >= 0 ? from->source : first;
}

static void fold_add(abar_net *net, int norm, int add, int operand)
{
    int residual = net->nodes[add].in[1 - operand];
    absorb(net, norm, add);
    abar__node *node = &net->nodes[add];
    node->in[1] = residual;
    node->desc.n_in = 2;
    node->desc.residual = true;
}

/* The add takes over the work of the norm. */
static void fold_norm(abar_net *net, int add, int norm)
{
    abar__node *from = &net->nodes[norm], *to = &net->nodes[add];
    to->desc = from->desc;
    to->desc.n_in = 2;
    to->desc.residual = true;
    to->stream = to->out;
    to->out = from->out;
    to->source = norm;
    from->absorbed = add;
    net->values[to->out].producer = add;
    net->values[to->stream].uses--;
}

/* Whether an operation of this kind can end in the activation. A net whose ReLUs repeat patterns keeps them apart. */
static bool can_end_in(const abar_net *net, abar__activation activation, abar__op_kind below)
{
    switch (activation) {
    case ABAR_ACT_RELU:
        return !net->config.patterns && (below == ABAR_OP_BATCH_NORM || below == ABAR_OP_CONV2D || below == ABAR_OP_LINEAR);
    case ABAR_ACT_GELU_ERF:
    case ABAR_ACT_GELU_TANH: return below == ABAR_OP_LINEAR;
    default: return false;
    }
}

void abar__net_fuse(abar_net *net)
{
    for (int n = 0; n < net->n_nodes; n++) {
        const abar__op_desc *d = &net->nodes[n].desc;
        int operand;
        if (d->kind == ABAR_OP_ADD) {
            int norm = norm_below_add(net, n, &operand);
            if (norm >= 0) fold_add(net, norm, n, operand);
        } else if (d->kind == ABAR_OP_LAYER_NORM) {
            const int below = net->values[net->nodes[n].in[0]].producer;
            if (is_kind(net, below, ABAR_OP_ADD)) fold_norm(net, below, n);
        } else if (d->kind == ABAR_OP_ACTIVATION) {
            const int below = sole_producer(net, net->nodes[n].in[0]);
            const abar__op_desc *first = below >= 0 ? &net->nodes[below].desc : NULL;
            if (first && can_end_in(net, d->activation, first->kind) && first->activation == ABAR_ACT_NONE)
                absorb(net, below, n);
        }
    }
}
