/* Building a net, and queries. */
#include "net/blocks.h"
#include "net/net_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

abar_status abar_net_create(abar_context *ctx, abar_net **out)
{
    *out = NULL;
    abar_net *net;
    ABAR_TRY(abar__alloc(ctx, sizeof *net, (void **)&net));
    net->ctx = ctx;
    net->input = net->output = net->loss = net->embedding = net->tied = -1;
    *out = net;
    return ABAR_OK;
}

static void free_result(abar_net *net)
{
    const abar__stream_ops *stream = net->dev->ops->stream;
    if (stream && net->result) stream->shared_free(net->dev, net->result, sizeof *net->result);
    if (!stream) abar__free(net->ctx, net->result, sizeof *net->result);
}

static void free_blocks(abar_net *net)
{
    if (!net->config.share) {
        abar_device_free(net->dev, net->param_block, net->param_bytes);
        abar_device_free(net->dev, net->shadow_block, net->shadow_bytes);
        abar_device_free(net->dev, net->running, net->running_bytes);
    }
    if (!net->config.share || net->config.training) {
        abar_device_free(net->dev, net->grad_block, net->param_bytes);
        abar_device_free(net->dev, net->pending, net->running_bytes);
    }
    abar_device_free(net->dev, net->patterns, net->pattern_bytes);
    if (!net->borrows_arena) abar_device_free(net->dev, net->arena, net->arena_bytes);
    abar_device_free(net->dev, net->target, net->target_bytes);
    free_result(net);
}

void abar_net_destroy(abar_net *net)
{
    if (!net) return;
    abar_context *ctx = net->ctx;
    abar__profile_release(net);
    for (int i = 0; i < net->n_steps; i++) abar__op_destroy(net->steps[i].op);
    for (int i = 0; i < net->n_values; i++) abar__op_destroy(net->values[i].join);
    if (net->dev) free_blocks(net);
    abar__free(ctx, net->values, (size_t)net->cap_values * sizeof *net->values);
    abar__free(ctx, net->nodes, (size_t)net->cap_nodes * sizeof *net->nodes);
    abar__free(ctx, net->params, (size_t)net->cap_params * sizeof *net->params);
    abar__free(ctx, net->norms, (size_t)net->cap_norms * sizeof *net->norms);
    abar__free(ctx, net->steps, (size_t)net->cap_steps * sizeof *net->steps);
    abar__free(ctx, net->layers, (size_t)net->cap_layers * sizeof *net->layers);
    abar__free(ctx, net->buffers, (size_t)net->cap_buffers * sizeof *net->buffers);
    abar__free(ctx, net->entries, (size_t)net->cap_entries * sizeof *net->entries);
    abar__free(ctx, net, sizeof *net);
}

int abar__net_grow(abar_net *net, void **array, int *count, int *capacity, size_t element)
{
    if (*count == *capacity) {
        int more = *capacity ? 2 * *capacity : 32;
        void *bigger;
        ABAR_TRY(abar__alloc(net->ctx, (size_t)more * element, &bigger));
        if (*count) memcpy(bigger, *array, (size_t)*count * element);
        abar__free(net->ctx, *array, (size_t)*capacity * element);
        *array = bigger;
        *capacity = more;
    }
    memset((char *)*array + (size_t)*count * element, 0, element);
    return (*count)++;
}

/* ---- building --------------------------------------------------------------------------------------------------- */

abar_value abar__net_mistake(abar_net *net, const char *format, ...)
{
    if (net->status == ABAR_OK) {
        va_list args;
        va_start(args, format);
        vsnprintf(net->error, sizeof net->error, format, args);
        va_end(args);
        net->status = ABAR_E_ARGUMENT;
    }
    return (abar_value){-1};
}

abar_value abar__net_out_of_memory(abar_net *net)
{
    abar__net_mistake(net, "%s", abar_context_error(net->ctx));
    net->status = ABAR_E_MEMORY;
    return (abar_value){-1};
}

bool abar__net_config(abar_net *net, const abar__node *node, const char *type, const void *from, void *out, size_t bytes)
{
    if (abar__struct_read(net->ctx, type, from, out, bytes) == ABAR_OK) return true;
    abar__net_mistake(net, "%s: %s", node->name, abar_context_error(net->ctx));
    return false;
}

void abar_scope_push(abar_net *net, const char *format, ...)
{
    char part[NAME_MAX_LENGTH];
    va_list args;
    va_start(args, format);
    vsnprintf(part, sizeof part, format, args);
    va_end(args);
    size_t length = strlen(net->scope);
    if (net->scopes == SCOPES_MAX || length + strlen(part) + 2 > sizeof net->scope) {
        abar__net_mistake(net, "net: scope %s%s: names nest too deep", net->scope, part);
        return;
    }
    net->scope_start[net->scopes++] = length;
    strcat(strcat(net->scope, part), ".");
}

void abar_scope_pop(abar_net *net)
{
    if (net->scopes == 0) {
        abar__net_mistake(net, "net: a scope is popped that was never pushed");
        return;
    }
    net->scope[net->scope_start[--net->scopes]] = '\0';
}

static int add_value(abar_net *net, const abar__shape *shape, int producer)
{
    int id = abar__net_grow(net, (void **)&net->values, &net->n_values, &net->cap_values, sizeof *net->values);
    if (id >= 0)
        net->values[id] =
            (abar__value){.shape = *shape, .producer = producer, .buffer = -1, .grad = {-1, -1}, .within = -1, .moments = -1};
    return id;
}

abar_value abar_input(abar_net *net, int ndim, const int64_t *dim)
{
    if (net->status < 0) return (abar_value){-1};
    if (net->input >= 0) return abar__net_mistake(net, "net: it has an input already");
    if (ndim < 1 || ndim > 3) return abar__net_mistake(net, "net: an input has 1 to 3 dimensions, not %d", ndim);
    abar__shape shape = {.ndim = ndim};
    for (int i = 0; i < ndim; i++) {
        if (dim[i] < 1) return abar__net_mistake(net, "net: input dimension %d is %lld", i, (long long)dim[i]);
        shape.dim[i] = dim[i];
    }
    int id = add_value(net, &shape, -1);
    if (id < 0) return abar__net_out_of_memory(net);
    net->input = id;
    return (abar_value){id};
}

abar_value abar_input_tokens(abar_net *net, int64_t length)
{
    abar_value x = abar_input(net, 1, &length);
    if (x.id >= 0) net->values[x.id].integer = true;
    return x;
}

abar__node *abar__net_node(abar_net *net, abar__op_kind kind, const char *name, int n_in, const abar_value *in)
{
    if (net->status < 0) return NULL;
    for (int i = 0; i < n_in; i++) {
        const bool exists = in[i].id >= 0 && in[i].id < net->n_values;
        if (exists && net->values[in[i].id].integer == (kind == ABAR_OP_EMBEDDING)) continue;
        if (!exists)
            abar__net_mistake(net, "net: %s%s reads a value that does not exist", net->scope, name);
        else if (kind == ABAR_OP_EMBEDDING)
            abar__net_mistake(net, "net: %s%s reads tokens, give the net an input of them", net->scope, name);
        else
            abar__net_mistake(net, "net: %s%s cannot read tokens, put an embedding in between", net->scope, name);
        return NULL;
    }
    if (net->loss >= 0) {
        abar__net_mistake(net, "net: %s%s comes after the loss", net->scope, name);
        return NULL;
    }
    int id = abar__net_grow(net, (void **)&net->nodes, &net->n_nodes, &net->cap_nodes, sizeof *net->nodes);
    if (id < 0) {
        abar__net_out_of_memory(net);
        return NULL;
    }
    abar__node *node = &net->nodes[id];
    *node = (abar__node){.desc = {.kind = kind, .n_in = n_in},
                         .out = -1,
                         .stream = -1,
                         .param = {-1, -1},
                         .norm = -1,
                         .absorbed = -1,
                         .source = -1};
    int length = snprintf(node->name, sizeof node->name, "%s%s", net->scope, name);
    if (length >= (int)sizeof node->name) {
        abar__net_mistake(net, "net: the name %s is too long", node->name);
        return NULL;
    }
    for (int i = 0; i < n_in; i++) {
        node->in[i] = in[i].id;
        net->values[in[i].id].uses++;
    }
    return node;
}

abar_value abar__net_finish(abar_net *net, abar__node *node, const abar__shape *shape)
{
    if (net->status < 0) return (abar_value){-1};
    int id = add_value(net, shape, (int)(node - net->nodes));
    if (id < 0) return abar__net_out_of_memory(net);
    node->out = id;
    return (abar_value){id};
}

static abar__param_info *add_param(abar_net *net, abar__node *node, int slot, const char *front, const char *separator,
                                   const char *back, abar_param_kind kind, int ndim, const int64_t *dim)
{
    int id = abar__net_grow(net, (void **)&net->params, &net->n_params, &net->cap_params, sizeof *net->params);
    if (id < 0) {
        abar__net_out_of_memory(net);
        return NULL;
    }
    abar__param_info *p = &net->params[id];
    p->public.kind = kind;
    p->ndim = ndim;
    memcpy(p->dim, dim, (size_t)ndim * sizeof *dim);
    int length = snprintf(p->name, sizeof p->name, "%s%s%s", front, separator, back);
    if (length >= (int)sizeof p->name) {
        abar__net_mistake(net, "net: the name %s is too long", p->name);
        return NULL;
    }
    bool taken = net->tied >= 0 && strcmp(net->nodes[net->tied].tied, p->name) == 0;
    for (int i = 0; i < id; i++) taken = taken || strcmp(net->params[i].name, p->name) == 0;
    if (taken) {
        abar__net_mistake(net, "net: two layers are called %s", node->name);
        return NULL;
    }
    node->param[slot] = id;
    return p;
}

abar__param_info *abar__net_add_named(abar_net *net, abar__node *node, int slot, const char *name, abar_param_kind kind,
                                      int ndim, const int64_t *dim)
{
    return add_param(net, node, slot, net->scope, "", name, kind, ndim, dim);
}

abar__param_info *abar__net_add_param(abar_net *net, abar__node *node, int slot, const char *suffix, abar_param_kind kind,
                                      int ndim, const int64_t *dim)
{
    return add_param(net, node, slot, node->name, ".", suffix, kind, ndim, dim);
}

const abar__shape *abar__net_shape(const abar_net *net, int value) { return &net->values[value].shape; }

const char *abar__shape_text(const abar__shape *shape, char text[64])
{
    size_t length = 0;
    text[0] = '\0';
    for (int i = 0; i < shape->ndim; i++)
        length += (size_t)snprintf(text + length, 64 - length, i ? "x%lld" : "%lld", (long long)shape->dim[i]);
    return text;
}

/* ---- asking ----------------------------------------------------------------------------------------------------- */

int abar_net_param_count(const abar_net *net) { return net->n_params; }
const abar_param *abar_net_param(const abar_net *net, int i) { return &net->params[i].public; }
const abar_loss *abar_net_loss(const abar_net *net) { return net->result; }

abar_status abar_net_weights_changed(abar_net *net)
{
    for (int i = 0; i < net->n_params; i++) {
        const abar_param *p = &net->params[i].public;
        if (p->shadow.ndim) ABAR_TRY(abar_tensor_copy(net->ctx, &p->shadow, &p->value));
    }
    return ABAR_OK;
}

int abar_net_layer_count(const abar_net *net) { return net->n_layers; }
const abar_layer *abar_net_layer(const abar_net *net, int i) { return &net->layers[i]; }

int abar_net_output_layer(const abar_net *net)
{
    for (int producer = net->values[net->output].producer; producer >= 0;) {
        const abar__step *step = &net->steps[producer];
        const abar__op_kind kind = step->op->desc.kind;
        if (step->layer >= 0) return step->op->desc.activation == ABAR_ACT_NONE ? step->layer : -1;
        if (kind != ABAR_OP_REORDER && kind != ABAR_OP_FLATTEN) return -1;
        producer = net->values[step->in[0]].producer;
    }
    return -1;
}

static const char *operation_name(const abar__op_desc *d)
{
    bool relu = d->activation == ABAR_ACT_RELU;
    switch (d->kind) {
    case ABAR_OP_CONV2D: return relu ? "conv2d+relu" : "conv2d";
    case ABAR_OP_LINEAR: {
        static const char *const names[] = {"linear", "linear+relu", "linear+tanh", "linear+gelu", "linear+gelu_tanh"};
        return names[d->activation];
    }
    case ABAR_OP_BATCH_NORM:
        if (d->residual) return relu ? "batch_norm+add+relu" : "batch_norm+add";
        return relu ? "batch_norm+relu" : "batch_norm";
    case ABAR_OP_ACTIVATION: {
        static const char *const names[] = {"none", "relu", "tanh", "gelu", "gelu_tanh"};
        return names[d->activation];
    }
    case ABAR_OP_LAYER_NORM: return d->residual ? "add+layer_norm" : "layer_norm";
    case ABAR_OP_POOL2D: return d->average ? "average_pool" : "max_pool";
    case ABAR_OP_DROPOUT: return d->per_sample ? "drop_path" : "dropout";
    case ABAR_OP_ATTENTION: return d->side ? "window_attention" : d->causal ? "causal_attention" : "attention";
    default: return abar__op_kind_name(d->kind);
    }
}

int abar_net_node_count(const abar_net *net) { return net->n_steps; }

const abar_node_info *abar_net_node(const abar_net *net, int i)
{
    abar__step *step = &net->steps[i];
    const abar__op_desc *d = &step->op->desc;
    abar_node_info info = {.name = step->node >= 0 ? net->nodes[step->node].name : "",
                           .operation = operation_name(d),
                           .implementation = step->op->impl->name,
                           .multiply_adds = abar__multiply_adds(net, d)};
    abar__net_work(net, i, &info);
    const abar__shape *shape = step->out >= 0 ? &net->values[step->out].shape : &d->out;
    info.ndim = shape->ndim;
    memcpy(info.dim, shape->dim, sizeof info.dim);
    for (int k = 0; step->node >= 0 && k < ABAR_OP_MAX_PARAM; k++) {
        int p = net->nodes[step->node].param[k];
        if (p >= 0 && step->node != net->tied) info.parameters += abar_tensor_count(&net->params[p].public.value);
    }
    step->info = info;
    return &step->info;
}

abar__net_blocks abar__net_blocks_of(const abar_net *net)
{
    return (abar__net_blocks){.values = net->param_block,
                              .grads = net->grad_block,
                              .value_bytes = net->param_bytes,
                              .running = net->running,
                              .pending = net->pending,
                              .running_bytes = net->running_bytes};
}

const abar_net_memory *abar_net_memory_plan(const abar_net *net) { return &net->memory_plan; }

void abar__net_sum_memory(abar_net *net)
{
    const bool own = !net->config.share;
    abar_net_memory m = {.parameters = own ? net->param_bytes : 0,
                         .gradients = net->config.training ? net->param_bytes : 0,
                         .buffers = own                    ? 2 * net->running_bytes
                                    : net->config.training ? net->running_bytes
                                                           : 0,
                         .arena = net->borrows_arena ? 0 : net->arena_bytes,
                         .other = net->target_bytes + net->pattern_bytes + (own ? net->shadow_bytes : 0)};
    for (int i = 0; i < net->n_buffers; i++) m.arena_without_reuse += abar__round_up(net->buffers[i].bytes, ABAR_ALIGN);
    net->memory_plan = m;
}

abar_tensor abar__net_view(const abar_net *net, int value, const void *data)
{
    const abar__value *v = &net->values[value];
    if (v->integer) return abar_tensor_wrap(net->dev, (void *)data, ABAR_I32, v->shape.ndim, v->shape.dim);
    abar_tensor t = abar__shape_view(net->dev, &v->shape, v->layout);
    t.dev = net->dev;
    t.data = (void *)data;
    return t;
}

static abar_tensor view_of_buffer(const abar_net *net, int value)
{
    return abar__net_view(net, value, (char *)net->arena + net->buffers[net->values[value].buffer].offset);
}

abar_tensor abar_net_input(const abar_net *net) { return view_of_buffer(net, net->input); }
abar_tensor abar_net_output(const abar_net *net) { return view_of_buffer(net, net->output); }

abar_tensor abar_net_target(const abar_net *net)
{
    const abar__op_desc *loss = &net->nodes[net->loss].desc;
    const abar__shape *shape = &net->values[net->output].shape;
    if (loss->kind != ABAR_OP_SOFTMAX_CROSS_ENTROPY || loss->soft_targets)
        return abar_tensor_wrap(net->dev, net->target, net->dev->activation, shape->ndim, shape->dim);
    abar__shape labels = *shape; /* (N) or (N, T), of pairs with 2 behind */
    labels.dim[labels.ndim - 1] = 2;
    return abar_tensor_wrap(net->dev, net->target, ABAR_I32, loss->label_pairs ? labels.ndim : labels.ndim - 1, labels.dim);
}

abar_tensor abar_net_target_share(const abar_net *net)
{
    const abar__shape *shape = &net->values[net->output].shape;
    if (!net->nodes[net->loss].desc.label_pairs) return (abar_tensor){0};
    return abar_tensor_wrap(net->dev, net->share, ABAR_F32, shape->ndim - 1, shape->dim);
}

abar_status abar__net_reset_share(abar_net *net)
{
    float one = 1.0f;
    abar_tensor share = abar_net_target_share(net), ones = share;
    if (share.ndim == 0) return ABAR_OK;
    ones.dev = NULL;
    ones.data = &one;
    for (int i = 0; i < ones.ndim; i++) ones.stride[i] = 0;
    return abar_tensor_copy(net->ctx, &share, &ones);
}

abar_status abar_net_set_labels(abar_net *net, const int32_t *labels)
{
    const abar__op_desc *loss = &net->nodes[net->loss].desc;
    const abar_tensor target = abar_net_target(net);
    if (target.dtype != ABAR_I32)
        return abar__fail(net->ctx, ABAR_E_ARGUMENT, "abar_net_set_labels: the loss reads no labels, write abar_net_target");
    abar_tensor from = abar_tensor_wrap(NULL, (void *)(uintptr_t)labels, ABAR_I32, target.ndim, target.dim);
    if (loss->label_pairs) {
        from = abar_tensor_wrap(NULL, from.data, ABAR_I32, target.ndim - 1, target.dim);
        from.dim[from.ndim++] = 2; /* each label twice */
    }
    ABAR_TRY(abar_tensor_copy(net->ctx, &target, &from));
    return abar__net_reset_share(net);
}
