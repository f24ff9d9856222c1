/* Fusion: chains that a back end can run as one operation become one.
 *
 *     conv2d or linear -> relu
 *     batch norm [-> add] [-> relu]
 *     add -> layer norm
 *
 * Each member but the last is read by the next one only, and the chain runs where its last member stood, so that a residual
 * made after the batch norm is there in time. The sum in front of a layer norm is read by others, too: it becomes a second
 * output, and the pair runs where the add stood. */
#include "net/net_impl.h"

/* The node that makes this value, if nobody else reads the value; else -1. */
static int sole_producer(const abar_net *net, int value)
{
    const abar__value *v = &net->values[value];
    return v->uses == 1 ? v->producer : -1;
}

static bool is_kind(const abar_net *net, int node, abar__op_kind kind)
{
    return node >= 0 && net->nodes[node].desc.kind == kind;
}

/* The batch norm that an add can be folded into, and which operand it is. */
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

/* Lets node `last` do the work of `first`: what it reads, its parameters and attributes. */
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

/* Lets the add do the norm's work as well. */
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
        } else if (d->kind == ABAR_OP_ACTIVATION && d->activation == ABAR_ACT_RELU) {
            int below = sole_producer(net, net->nodes[n].in[0]);
            bool fusable = is_kind(net, below, ABAR_OP_BATCH_NORM) || is_kind(net, below, ABAR_OP_CONV2D) ||
                           is_kind(net, below, ABAR_OP_LINEAR);
            if (fusable && net->nodes[below].desc.activation == ABAR_ACT_NONE) absorb(net, below, n);
        }
    }
}
