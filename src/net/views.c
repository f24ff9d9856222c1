/* Concatenations without copies: where the output of a concatenation is an input of another one, it is planned as a part of
 * that one's output: some channels of every pixel (NHWC), or some blocks of channels (C8, C16). A chain of them, as in a dense
 * block, is then one value that grows in place. So is its gradient, to which readers add.
 *
 *     x1 = concat(y1, x0)   x2 = concat(y2, x1)   x3 = concat(y3, x2)      x1 and x2 are at the end of x3's pixels
 *
 * All readers of such a value must be able to skip the other channels and to add to a gradient. The concatenation that
 * contains it must be its last reader, so that its gradient is complete before all others. */
#include "net/net_impl.h"

static bool holds_parts(const abar__value *v)
{
    return v->layout == ABAR_LAYOUT_NHWC || v->layout == ABAR_LAYOUT_C8 || v->layout == ABAR_LAYOUT_C16;
}

static bool is_concat(const abar_net *net, int step)
{
    return step >= 0 && net->steps[step].op->desc.kind == ABAR_OP_CONCAT && net->steps[step].op->view_align > 0;
}

/* Whether step s reads v once, as an input that may be a view. align: the maximum over all readers so far. */
static bool may_read(const abar_net *net, int s, int v, int64_t *align)
{
    const abar__step *step = &net->steps[s];
    int times = 0;
    for (int i = 0; i < step->op->desc.n_in; i++) times += step->in[i] == v;
    if (times != 1 || step->op->view_align == 0) return false;
    if (step->op->view_align > *align) *align = step->op->view_align; /* powers of two */
    return step->in[0] == v || step->op->desc.kind == ABAR_OP_CONCAT;
}

static bool reads(const abar_net *net, int s, int v)
{
    for (int i = 0; i < net->steps[s].op->desc.n_in; i++)
        if (net->steps[s].in[i] == v) return true;
    return false;
}

/* Whether v, an input of the concatenation at step s, may begin at this channel of a value with so many channels. */
static bool fits(const abar_net *net, int s, int v, int64_t channel, int64_t channels)
{
    const abar__value *value = &net->values[v];
    int64_t align = 1;
    if (!is_concat(net, value->producer) || v == net->output) return false;
    if (!holds_parts(value) || value->wants_grad != net->values[net->steps[s].out].wants_grad) return false;
    for (int r = value->producer + 1; r < net->n_steps; r++) {
        if (!reads(net, r, v)) continue;
        const bool takes_it_in = r == s, concat = net->steps[r].op->desc.kind == ABAR_OP_CONCAT;
        if (r > s || takes_it_in != concat || !may_read(net, r, v, &align)) return false;
    }
    return channel % align == 0 && channels % align == 0;
}

void abar__net_place_views(abar_net *net)
{
    for (int s = net->n_steps - 1; s >= 0; s--) { /* the last of a chain first: it contains the others */
        if (!is_concat(net, s)) continue;
        const abar__step *step = &net->steps[s];
        abar__value *out = &net->values[step->out];
        const int host = out->within >= 0 ? out->within : step->out;
        int64_t channel = out->channel;
        if (step->out == net->output || !holds_parts(out)) continue;
        for (int i = 0; i < step->op->desc.n_in; i++) {
            abar__value *v = &net->values[step->in[i]];
            if (fits(net, s, step->in[i], channel, net->values[host].shape.dim[1])) {
                v->within = host;
                v->channel = channel;
                net->values[host].hosts = true;
            }
            channel += v->shape.dim[1];
        }
    }
}
