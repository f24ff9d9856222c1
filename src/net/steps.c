/* From nodes to steps: decides layouts in the order of execution, inserts reorders, creates the device's operations. */
#include "net/net_impl.h"

#include <string.h>

static int add_step(abar_net *net)
{
    int id = abar__net_grow(net, (void **)&net->steps, &net->n_steps, &net->cap_steps, sizeof *net->steps);
    if (id < 0) return id;
    abar__step *s = &net->steps[id];
    s->node = s->out = s->stream = s->layer = s->saved = s->forward_scratch = s->backward_scratch = s->columns = s->sums = -1;
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) {
        s->in[i] = s->dx[i] = -1;
        for (int k = 0; k < 3; k++) s->sum[i][k] = -1;
    }
    return id;
}

/* The rows of a linear map: all dimensions but the last are merged into one. */
static abar__shape as_rows(const abar__shape *shape)
{
    int64_t width = shape->dim[shape->ndim - 1];
    return (abar__shape){2, {abar__shape_count(shape) / width, width}};
}

/* Losses accept padded rows: where a value has no other reader, a linear map may write such rows. */
static bool may_pad(const abar_net *net, int value)
{
    const abar__op_kind reader = net->nodes[net->loss].desc.kind;
    return value == net->output && net->values[value].uses == 1 && reader == ABAR_OP_SOFTMAX_CROSS_ENTROPY;
}

/* The GELU fused into the linear map that makes this value, where nobody else reads it; else none. */
static abar__activation activation_behind(const abar_net *net, int value)
{
    const abar__value *v = &net->values[value];
    if (v->uses != 1 || v->producer < 0) return ABAR_ACT_NONE;
    const abar__op_desc *d = &net->steps[v->producer].op->desc;
    const bool gelu = d->activation == ABAR_ACT_GELU_ERF || d->activation == ABAR_ACT_GELU_TANH;
    return d->kind == ABAR_OP_LINEAR && gelu ? d->activation : ABAR_ACT_NONE;
}

static abar__op_desc describe(const abar_net *net, const abar__node *node)
{
    abar__op_desc d = node->desc;
    bool rows = d.kind == ABAR_OP_LINEAR || d.kind == ABAR_OP_LAYER_NORM;
    for (int i = 0; i < d.n_in; i++) {
        const abar__value *v = &net->values[node->in[i]];
        d.in[i] = rows ? as_rows(&v->shape) : v->shape;
        d.in_layout[i] = v->layout;
        d.need_dx[i] = net->config.training && v->wants_grad;
    }
    const bool relu = d.kind == ABAR_OP_ACTIVATION && d.activation == ABAR_ACT_RELU;
    d.patterned = net->config.patterns && (relu || (d.kind == ABAR_OP_POOL2D && !d.average));
    d.pad = d.kind == ABAR_OP_LINEAR && may_pad(net, node->out);
    if (d.kind == ABAR_OP_LINEAR && d.need_dx[0]) d.input_activation = activation_behind(net, node->in[0]);
    if (node->out < 0)
        d.out = (abar__shape){1, {1}}; /* a loss */
    else
        d.out = rows ? as_rows(&net->values[node->out].shape) : net->values[node->out].shape;
    return d;
}

/* A value equal to v in another layout, produced by a reorder step; an existing one is used again. */
static int reordered(abar_net *net, int v, abar_layout layout)
{
    for (int s = 0; s < net->n_steps; s++) {
        const abar__step *step = &net->steps[s];
        if (step->op->desc.kind == ABAR_OP_REORDER && step->in[0] == v && net->values[step->out].layout == layout)
            return step->out;
    }
    int out = abar__net_grow(net, (void **)&net->values, &net->n_values, &net->cap_values, sizeof *net->values);
    if (out < 0) return out;
    net->values[out] = net->values[v];
    net->values[out].layout = layout;
    abar__op_desc d = {.kind = ABAR_OP_REORDER,
                       .n_in = 1,
                       .in = {net->values[v].shape},
                       .out = net->values[v].shape,
                       .in_layout = {net->values[v].layout},
                       .out_layout = layout,
                       .need_dx = {net->config.training && net->values[v].wants_grad},
                       .window = abar_window_unit()};
    abar__op *op;
    ABAR_TRY(abar__op_create(net->dev, &d, &op));
    int id = add_step(net);
    if (id < 0) {
        abar__op_destroy(op);
        return id;
    }
    net->steps[id].op = op;
    net->steps[id].in[0] = v;
    net->steps[id].out = out;
    net->values[out].producer = id;
    return out;
}

static abar_status add_layer(abar_net *net, int step)
{
    const abar__op_desc *d = &net->steps[step].op->desc;
    if (d->kind != ABAR_OP_LINEAR && d->kind != ABAR_OP_CONV2D) return ABAR_OK;
    if (net->steps[step].node == net->tied) return ABAR_OK; /* its weight is an embedding first of all: methods.md section 0 */
    int id = abar__net_grow(net, (void **)&net->layers, &net->n_layers, &net->cap_layers, sizeof *net->layers);
    if (id < 0) return (abar_status)id;
    net->steps[step].layer = id;
    return ABAR_OK;
}

static abar_status make_step(abar_net *net, int n)
{
    abar__node *node = &net->nodes[n];
    abar__op_desc d = describe(net, node);
    abar__op *op;
    ABAR_TRY(abar__op_create(net->dev, &d, &op));
    int in[ABAR_OP_MAX_IN];
    int status = ABAR_OK;
    for (int i = 0; i < d.n_in && status >= 0; i++) {
        in[i] = node->in[i];
        if (op->in_layout[i] != net->values[in[i]].layout) in[i] = status = reordered(net, in[i], op->in_layout[i]);
    }
    int id = status < 0 ? status : add_step(net);
    if (id < 0) {
        abar__op_destroy(op);
        return (abar_status)id;
    }
    abar__step *step = &net->steps[id];
    step->op = op;
    step->node = node->source >= 0 ? node->source : n;
    step->out = node->out;
    step->stream = node->stream;
    memcpy(step->in, in, (size_t)d.n_in * sizeof *in);
    if (node->out >= 0) {
        abar__value *out = &net->values[node->out];
        out->layout = op->out_layout;
        out->producer = id;
    }
    if (node->stream >= 0) {
        net->values[node->stream].layout = op->out_layout;
        net->values[node->stream].producer = id;
    }
    return add_layer(net, id);
}

abar_status abar__net_make_steps(abar_net *net)
{
    for (int n = 0; n < net->n_nodes; n++) {
        const abar__node *node = &net->nodes[n];
        if (node->absorbed >= 0) continue;
        bool wants = false;
        for (int i = 0; i < node->desc.n_in; i++) wants = wants || net->values[node->in[i]].wants_grad;
        if (node->stream >= 0) net->values[node->stream].wants_grad = wants;
        wants = wants || net->nodes[node->source >= 0 ? node->source : n].param[0] >= 0;
        if (node->out >= 0) net->values[node->out].wants_grad = wants;
        ABAR_TRY(make_step(net, n));
    }
    return ABAR_OK;
}
