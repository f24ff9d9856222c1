/* Compiles a net: fuses nodes, decides layouts, plans and allocates memory, sets every pointer, initialises the weights. */
#include "net/net_impl.h"

#include <string.h>

/* A result without a reader has no gradient: there is no backward pass through it. */
static abar_status check_readers(const abar_net *net)
{
    for (int n = 0; n < net->n_nodes; n++) {
        const abar__node *node = &net->nodes[n];
        if (node->out < 0 || net->values[node->out].uses > 0) continue;
        return abar__fail(net->ctx, ABAR_E_ARGUMENT, "net: no operation reads the result of %s, use it or leave it out",
                          node->name);
    }
    return ABAR_OK;
}

static abar_status check(abar_net *net, const abar_compile_config *config)
{
    abar_context *ctx = net->ctx;
    if (net->dev) return abar__fail(ctx, ABAR_E_STATE, "net: is compiled already, build another one");
    if (net->status < 0) return abar__fail(ctx, net->status, "%s", net->error);
    if (net->input < 0) return abar__fail(ctx, ABAR_E_ARGUMENT, "net: has no input, call abar_input");
    if (net->loss < 0) return abar__fail(ctx, ABAR_E_ARGUMENT, "net: has no loss, end it with one");
    if (net->scopes) return abar__fail(ctx, ABAR_E_ARGUMENT, "net: scope %s was never popped, call abar_scope_pop", net->scope);
    ABAR_TRY(abar__struct_read(ctx, "abar_compile_config", config, &net->config, sizeof net->config));
    if (net->config.batch < 1)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "net: config.batch is %lld, set it to at least 1",
                          (long long)net->config.batch);
    return net->config.training ? check_readers(net) : ABAR_OK;
}

static void put_batch_in_front(abar_net *net)
{
    for (int i = 0; i < net->n_values; i++) {
        abar__shape *s = &net->values[i].shape;
        memmove(s->dim + 1, s->dim, (size_t)s->ndim * sizeof *s->dim);
        s->dim[0] = net->config.batch;
        s->ndim++;
    }
    abar__value *input = &net->values[net->input];
    if (net->dev->ops->channels_last && input->shape.ndim == 4) input->layout = ABAR_LAYOUT_NHWC;
}

/* The order of a parameter in memory: PyTorch's, or channels last where the device wants that for convolutions. */
static abar_tensor param_view(abar_device *dev, const abar__param_info *p, abar_dtype dtype)
{
    if (dev->ops->channels_last && p->ndim == 4) return abar_tensor_wrap_channels_last(dev, NULL, dtype, p->dim);
    return abar_tensor_wrap(dev, NULL, dtype, p->ndim, p->dim);
}

/* Offsets in the blocks of parameters and of running statistics. */
static void lay_out_parameters(abar_net *net)
{
    const size_t element = abar_dtype_size(net->dev->ops->dtype);
    const bool shadows = net->dev->activation == ABAR_BF16;
    for (int i = 0; i < net->n_params; i++) {
        abar__param_info *p = &net->params[i];
        p->public.name = p->name;
        p->public.value = param_view(net->dev, p, net->dev->ops->dtype);
        p->public.grad = p->public.value;
        p->offset = net->param_bytes;
        net->param_bytes += abar__round_up(abar_tensor_bytes(&p->public.value), ABAR_ALIGN);
        if (!shadows || (p->public.kind != ABAR_PARAM_WEIGHT && p->public.kind != ABAR_PARAM_BIAS)) continue;
        p->public.shadow = param_view(net->dev, p, ABAR_BF16);
        p->shadow_offset = net->shadow_bytes;
        net->shadow_bytes += abar__round_up(abar_tensor_bytes(&p->public.shadow), ABAR_ALIGN);
    }
    for (int i = 0; i < net->n_norms; i++)
        for (int k = 0; k < 2; k++) {
            net->norms[i].offset[k] = net->running_bytes;
            net->running_bytes += abar__round_up((size_t)net->norms[i].channels * element, ABAR_ALIGN);
        }
    abar_tensor target = abar_net_target(net);
    const abar_tensor share = abar_net_target_share(net);
    net->share_at = abar__round_up(abar_tensor_bytes(&target), ABAR_ALIGN);
    net->target_bytes = share.ndim ? net->share_at + abar_tensor_bytes(&share) : abar_tensor_bytes(&target);
}

static abar_status take_result(abar_net *net)
{
    void *memory;
    const abar__stream_ops *stream = net->dev->ops->stream;
    ABAR_TRY(stream ? stream->shared_alloc(net->dev, sizeof *net->result, &memory)
                    : abar__alloc(net->ctx, sizeof *net->result, &memory));
    net->result = memory;
    return ABAR_OK;
}

/* The blocks of parameters and running statistics: own ones, or those of the net that is shared. */
static abar_status take_blocks(abar_net *net)
{
    const abar_net *share = net->config.share;
    if (share) {
        net->param_block = share->param_block;
        net->shadow_block = share->shadow_block;
        net->running = share->running;
        net->pending = share->pending;
        if (!net->config.training) return ABAR_OK;
        net->pending = NULL;
        ABAR_TRY(abar_device_alloc(net->dev, net->running_bytes, &net->pending));
        return abar_device_alloc(net->dev, net->param_bytes, &net->grad_block);
    }
    ABAR_TRY(abar_device_alloc(net->dev, net->param_bytes, &net->param_block));
    if (net->config.training) ABAR_TRY(abar_device_alloc(net->dev, net->param_bytes, &net->grad_block));
    ABAR_TRY(abar_device_alloc(net->dev, net->shadow_bytes, &net->shadow_block));
    ABAR_TRY(abar_device_alloc(net->dev, net->running_bytes, &net->running));
    return abar_device_alloc(net->dev, net->running_bytes, &net->pending);
}

static abar_status take_memory(abar_net *net)
{
    ABAR_TRY(take_blocks(net));
    if (net->borrows_arena)
        net->arena = net->config.share->arena;
    else
        ABAR_TRY(abar_device_alloc(net->dev, net->arena_bytes, &net->arena));
    ABAR_TRY(abar_device_alloc(net->dev, net->pattern_bytes, &net->patterns));
    ABAR_TRY(abar_device_alloc(net->dev, net->target_bytes, &net->target));
    net->share = (float *)((char *)net->target + net->share_at);
    ABAR_TRY(abar__net_reset_share(net));
    ABAR_TRY(take_result(net));
    for (int i = 0; i < net->n_params; i++) {
        abar__param_info *p = &net->params[i];
        p->public.value.data = (char *)net->param_block + p->offset;
        p->public.grad.data = net->grad_block ? (char *)net->grad_block + p->offset : NULL;
        if (p->public.shadow.ndim) p->public.shadow.data = (char *)net->shadow_block + p->shadow_offset;
    }
    return ABAR_OK;
}

static void *address(const abar_net *net, int buffer)
{
    return buffer < 0 ? NULL : (char *)net->arena + net->buffers[buffer].offset;
}

/* The address of the value, or of its gradient, in this buffer. In blocks of channels all pixels of the earlier ones come
 * first. */
static void *part_address(const abar_net *net, int buffer, int value)
{
    const abar__value *v = &net->values[value];
    const int64_t elements = v->layout == ABAR_LAYOUT_NHWC ? v->channel : v->channel * v->shape.dim[2] * v->shape.dim[3];
    const size_t skip = v->within >= 0 ? (size_t)elements * abar_dtype_size(net->dev->activation) : 0;
    return buffer < 0 ? NULL : (char *)address(net, buffer) + skip;
}

/* The channels of the value that contains this one; 0: it is dense. */
static int64_t pitch_of(const abar_net *net, int value)
{
    const int within = net->values[value].within;
    return within >= 0 ? net->values[within].shape.dim[1] : 0;
}

/* The moments of the channels of a batch norm's input, or of what another operation writes, in the buffer of their chain. */
static void *moments_address(const abar_net *net, const abar__step *step)
{
    if (step->op->moment_bytes == 0) return NULL;
    const abar__value *v = &net->values[step->op->desc.kind == ABAR_OP_BATCH_NORM ? step->in[0] : step->out];
    char *moments = address(net, v->within >= 0 ? net->values[v->within].moments : v->moments);
    return moments ? moments + (size_t)v->channel * step->op->moment_bytes : NULL;
}

static void settle_pointers(abar_net *net, abar__step *step)
{
    abar__op_args *a = &step->args;
    a->run = &net->run;
    a->target = net->target;
    a->share = net->share;
    a->result = net->result;
    a->saved = address(net, step->saved);
    a->pattern = step->op->pattern_bytes ? (char *)net->patterns + step->pattern : NULL;
    a->columns = address(net, step->columns);
    a->moments = moments_address(net, step);
    a->table_written = net->tied >= 0;
    for (int i = 0; i < step->op->desc.n_in; i++) {
        a->x[i] = part_address(net, net->values[step->in[i]].buffer, step->in[i]);
        a->dx[i] = part_address(net, step->dx[i], step->in[i]);
        a->x_pitch[i] = pitch_of(net, step->in[i]);
    }
    if (step->op->slopes_dx) {
        abar__step *maker = &net->steps[net->values[step->in[0]].producer];
        a->input_z = address(net, maker->saved);
        maker->args.dz_given = true;
    }
    if (step->out >= 0) {
        const abar__value *y = &net->values[step->out];
        a->y = part_address(net, y->buffer, step->out);
        a->dy = part_address(net, y->grad[0], step->out);
        a->dy2 = address(net, y->grad[1]);
        a->y_pitch = pitch_of(net, step->out);
    }
    if (step->stream >= 0) {
        a->stream = address(net, net->values[step->stream].buffer);
        a->dstream = address(net, net->values[step->stream].grad[0]);
    }
    if (step->node < 0) return;
    const abar__node *node = &net->nodes[step->node];
    for (int k = 0; k < ABAR_OP_MAX_PARAM; k++) {
        if (node->param[k] < 0) continue;
        a->param[k] = net->params[node->param[k]].public.value.data;
        a->shadow[k] = net->params[node->param[k]].public.shadow.data;
        a->dparam[k] = net->params[node->param[k]].public.grad.data;
    }
    for (int k = 0; node->norm >= 0 && k < 2; k++) a->buffer[k] = (char *)net->pending + net->norms[node->norm].offset[k];
}

/* The net's input, or a reordered copy of it. */
static bool is_network_input(const abar_net *net, int value)
{
    int producer = net->values[value].producer;
    if (producer < 0) return true;
    const abar__step *step = &net->steps[producer];
    abar__op_kind kind = step->op->desc.kind;
    bool moves = kind == ABAR_OP_REORDER || kind == ABAR_OP_FLATTEN || kind == ABAR_OP_TOKENS || kind == ABAR_OP_PATCH_MERGE;
    return moves && is_network_input(net, step->in[0]);
}

/* How the linear map of this step is related to attention: it computes q, k and v, one after the other. */
static abar_attention describe_attention(const abar_net *net, const abar__step *linear)
{
    for (int s = 0; s < net->n_steps; s++) {
        const abar__step *step = &net->steps[s];
        const abar__op_desc *d = &step->op->desc;
        if (d->kind != ABAR_OP_ATTENTION || step->in[0] != linear->out) continue;
        const int64_t width = d->out.dim[2], columns[3] = {d->in[0].dim[0], d->heads, d->in[0].dim[1]};
        return (abar_attention){.heads = d->heads,
                                .value_row = 2 * width,
                                .value_rows = width,
                                .grid = {d->grid[0], d->grid[1]},
                                .side = d->side,
                                .shift = d->shift,
                                .columns = abar_tensor_wrap(net->dev, step->args.columns, net->dev->ops->dtype, 3, columns)};
    }
    return (abar_attention){0};
}

static void describe_layer(abar_net *net, const abar__step *step)
{
    const abar__node *node = &net->nodes[step->node];
    const abar__param_info *w = &net->params[node->param[0]];
    abar_layer *layer = &net->layers[step->layer];
    *layer = (abar_layer){.name = node->name,
                          .weight = w->public.value,
                          .weight_grad = w->public.grad,
                          .input = abar__net_view(net, step->in[0], step->args.x[0]),
                          .output_grad = abar__net_view(net, step->out, step->args.dy),
                          .output_grad_scale = 1.0,
                          .window = step->op->desc.window,
                          .reads_network_input = is_network_input(net, step->in[0]),
                          .attention = describe_attention(net, step)};
    if (node->param[1] >= 0) {
        layer->bias = net->params[node->param[1]].public.value;
        layer->bias_grad = net->params[node->param[1]].public.grad;
    }
}

static void place_patterns(abar_net *net)
{
    for (int s = 0; s < net->n_steps; s++) {
        net->steps[s].pattern = net->pattern_bytes;
        net->pattern_bytes += abar__round_up(net->steps[s].op->pattern_bytes, ABAR_ALIGN);
    }
}

abar_status abar_net_compile(abar_net *net, abar_device *dev, const abar_compile_config *config)
{
    ABAR_TRY(check(net, config));
    net->dev = dev;
    put_batch_in_front(net);
    lay_out_parameters(net);
    if (net->config.share) ABAR_TRY(abar__net_check_share(net));
    ABAR_TRY(abar__net_list_state(net));
    abar__net_fuse(net);
    ABAR_TRY(abar__net_make_steps(net));
    abar__net_place_views(net);
    place_patterns(net);
    ABAR_TRY(abar__net_plan_memory(net));
    net->borrows_arena = net->config.share && net->arena_bytes <= net->config.share->arena_bytes;
    if (!net->config.plan_only) {
        ABAR_TRY(take_memory(net));
        for (int s = 0; s < net->n_steps; s++) settle_pointers(net, &net->steps[s]);
    }
    for (int s = 0; s < net->n_steps; s++)
        if (net->steps[s].layer >= 0) describe_layer(net, &net->steps[s]);
    abar__net_sum_memory(net);
    return net->config.plan_only || net->config.share ? ABAR_OK : abar__net_init_params(net);
}
