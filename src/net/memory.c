/* The lifetimes of buffers. Step s runs forward at time s and backward at time 2n-1-s. Every value, gradient, saved state
 * and scratch is a buffer with a first and a last time; plan.c packs them into one arena. */
#include "net/net_impl.h"

static int add_buffer(abar_net *net, size_t bytes, int first, int last)
{
    int id = abar__net_grow(net, (void **)&net->buffers, &net->n_buffers, &net->cap_buffers, sizeof *net->buffers);
    if (id >= 0) net->buffers[id] = (abar__buffer){.bytes = bytes, .first = first, .last = last};
    return id;
}

static void live_until(abar_net *net, int buffer, int time)
{
    if (net->buffers[buffer].last < time) net->buffers[buffer].last = time;
}

size_t abar__value_bytes(const abar_net *net, int value)
{
    const abar__value *v = &net->values[value];
    if (v->integer) return (size_t)abar__shape_count(&v->shape) * sizeof(int32_t);
    return abar__shape_bytes(net->dev, &v->shape, v->layout);
}

static int backward_time(const abar_net *net, int step) { return 2 * net->n_steps - 1 - step; }

/* When the backward pass of a step has done with its memory. */
static int backward_end(const abar_net *net, int step)
{
    const int time = backward_time(net, step), last = backward_time(net, 0);
    if (!net->steps[step].op->can_be_late) return time;
    return time + ABAR_NET_LATE < last ? time + ABAR_NET_LATE : last;
}

bool abar__goes_back(const abar_net *net, const abar__step *step)
{
    if (!net->config.training) return false;
    return step->out < 0 || net->values[step->out].wants_grad;
}

/* The buffer of step s's output: its own, its input's, or that of the value it is a part of, which is created for the first
 * part. */
static int output_buffer(abar_net *net, int s)
{
    const abar__step *step = &net->steps[s];
    const abar__value *y = &net->values[step->out];
    const int owner = y->within >= 0 ? y->within : step->out;
    if (step->op->y_is_x) return net->values[step->in[0]].buffer;
    if (net->values[owner].buffer < 0) net->values[owner].buffer = add_buffer(net, abar__value_bytes(net, owner), s, s);
    return net->values[owner].buffer;
}

/* The value that holds the moments which this step computes or uses: the largest of a chain of concatenations. These compute
 * the moments for the batch norms that read a value of the chain. -1: none. */
static int chain_of(const abar_net *net, const abar__step *step)
{
    const bool makes = step->op->desc.kind == ABAR_OP_CONCAT;
    const int v = makes ? step->out : step->in[0], host = v >= 0 && net->values[v].within >= 0 ? net->values[v].within : v;
    return step->op->moment_bytes > 0 && net->values[host].hosts && net->config.training ? host : -1;
}

/* Whether a batch norm reads v and can be given its moments. */
static bool wants_moments(const abar_net *net, int v)
{
    for (int s = net->values[v].producer + 1; s < net->n_steps; s++) {
        const abar__op *op = net->steps[s].op;
        if (op->desc.kind == ABAR_OP_BATCH_NORM && net->steps[s].in[0] == v && op->moment_bytes > 0) return true;
    }
    return false;
}

/* A convolution computes the moments of its output where that is a batch norm's input. */
static abar_status convolution_moments(abar_net *net, int s)
{
    const abar__step *step = &net->steps[s];
    const bool makes = step->op->desc.kind == ABAR_OP_CONV2D;
    abar__value *v = &net->values[makes ? step->out : step->in[0]];
    if (!net->config.training) return ABAR_OK;
    if (makes && step->op->moment_parts > 0 && wants_moments(net, step->out)) {
        v->moments = add_buffer(net, abar__moment_bytes(v->shape.dim[1], step->op->moment_parts), s, s);
        v->moment_parts = step->op->moment_parts;
        return v->moments < 0 ? (abar_status)v->moments : ABAR_OK;
    }
    if (step->op->desc.kind == ABAR_OP_BATCH_NORM && v->moment_parts > 0) live_until(net, v->moments, s);
    return ABAR_OK;
}

static abar_status moments_buffer(abar_net *net, int s)
{
    const abar__step *step = &net->steps[s];
    const int host = chain_of(net, step);
    ABAR_TRY(convolution_moments(net, s));
    if (host < 0) return ABAR_OK;
    abar__value *v = &net->values[host];
    const size_t bytes = (size_t)v->shape.dim[1] * step->op->moment_bytes;
    if (v->moments < 0 && step->op->desc.kind != ABAR_OP_CONCAT) return ABAR_OK;
    if (v->moments < 0) v->moments = add_buffer(net, bytes, s, s);
    if (v->moments < 0) return (abar_status)v->moments;
    live_until(net, v->moments, s);
    return ABAR_OK;
}

static abar_status forward_buffers(abar_net *net, int s)
{
    abar__step *step = &net->steps[s];
    const abar__op *op = step->op;
    bool back = abar__goes_back(net, step);
    for (int i = 0; i < op->desc.n_in; i++) {
        int x = net->values[step->in[i]].buffer;
        live_until(net, x, back && op->backward_needs & ABAR_NEEDS_X ? backward_end(net, s) : s);
    }
    if (step->out >= 0) {
        abar__value *y = &net->values[step->out];
        y->buffer = output_buffer(net, s);
        if (y->buffer < 0) return (abar_status)y->buffer;
        live_until(net, y->buffer, back && op->backward_needs & ABAR_NEEDS_Y ? backward_time(net, s) : s);
    }
    if (step->stream >= 0) {
        abar__value *v = &net->values[step->stream];
        v->buffer = add_buffer(net, abar__value_bytes(net, step->stream), s, s);
        if (v->buffer < 0) return (abar_status)v->buffer;
        live_until(net, v->buffer, back && op->backward_needs & ABAR_NEEDS_STREAM ? backward_time(net, s) : s);
    }
    ABAR_TRY(moments_buffer(net, s));
    if (op->saved_bytes) {
        step->saved = add_buffer(net, op->saved_bytes, s, back ? backward_time(net, s) : s);
        if (step->saved < 0) return (abar_status)step->saved;
    }
    if (op->scratch_bytes) {
        step->forward_scratch = add_buffer(net, op->scratch_bytes, s, s);
        if (step->forward_scratch < 0) return (abar_status)step->forward_scratch;
    }
    return ABAR_OK;
}

static abar_status make_join(abar_net *net, abar__value *v)
{
    abar__op_desc d = {.kind = ABAR_OP_ADD, .n_in = 2, .in = {v->shape, v->shape}, .out = v->shape};
    d.in_layout[0] = d.in_layout[1] = d.out_layout = v->layout;
    return abar__op_create(net->dev, &d, &v->join);
}

/* A gradient for value v has been written into buffer at this time. The first two are kept as summands where the producer
 * can add them itself; otherwise the step that wrote the last one adds them at once. */
static abar_status add_gradient(abar_net *net, abar__step *step, int i, int buffer, int time)
{
    abar__value *v = &net->values[step->in[i]];
    if (v->grad[0] < 0) {
        v->grad[0] = buffer;
        return ABAR_OK;
    }
    bool producer_adds = v->producer >= 0 && net->steps[v->producer].op->takes_dy2 && !v->hosts;
    if (producer_adds && v->grad[1] < 0) {
        v->grad[1] = buffer;
        return ABAR_OK;
    }
    int summand = v->grad[1] >= 0 ? 1 : 0;
    if (!v->join) ABAR_TRY(make_join(net, v));
    int sum = add_buffer(net, net->buffers[buffer].bytes, time, time);
    if (sum < 0) return (abar_status)sum;
    live_until(net, v->grad[summand], time);
    step->sum[i][0] = v->grad[summand];
    step->sum[i][1] = buffer;
    step->sum[i][2] = sum;
    v->grad[summand] = sum;
    return ABAR_OK;
}

/* Whether all inputs of this step can share one gradient buffer: nobody may write to it afterwards. */
static bool may_share(const abar_net *net, const abar__step *step)
{
    for (int i = 0; i < step->op->desc.n_in; i++) {
        int producer = net->values[step->in[i]].producer;
        while (producer >= 0 && net->steps[producer].op->y_is_x) producer = net->values[net->steps[producer].in[0]].producer;
        if (producer < 0) continue;
        const abar__step *maker = &net->steps[producer];
        if (maker->op->desc.activation != ABAR_ACT_NONE && maker->op->desc.kind != ABAR_OP_BATCH_NORM)
            return false;                                /* a fused ReLU replaces dy by dL/dz in place */
        if (net->values[maker->out].hosts) return false; /* readers of its parts add to its dy */
    }
    return true;
}

/* Whether every dx of a step can be its dy itself. */
static bool passes_dy(const abar_net *net, const abar__step *step)
{
    return step->op->dx_is_dy && net->values[step->out].grad[1] < 0 && may_share(net, step);
}

/* The column means of an attention's probabilities are needed until the linear map that computed q, k and v has been
 * observed. */
static abar_status columns_buffer(abar_net *net, int s)
{
    abar__step *step = &net->steps[s];
    const abar__op_desc *d = &step->op->desc;
    const int maker = step->op->desc.kind == ABAR_OP_ATTENTION ? net->values[step->in[0]].producer : -1;
    if (maker < 0 || net->steps[maker].layer < 0) return ABAR_OK;
    const size_t count = (size_t)(d->in[0].dim[0] * d->heads * d->in[0].dim[1]); /* (N, heads, T) */
    step->columns =
        add_buffer(net, count * abar_dtype_size(net->dev->ops->dtype), backward_time(net, s), backward_time(net, maker));
    return step->columns < 0 ? (abar_status)step->columns : ABAR_OK;
}

/* The gradient of a part is stored within that of the whole: the concatenation that contains the part finds it there, the
 * other readers add to it. */
static void part_gradient(abar_net *net, abar__step *step, int i, int time)
{
    abar__value *x = &net->values[step->in[i]];
    if (x->grad[0] < 0)
        x->grad[0] = net->values[step->out].grad[0];
    else
        step->args.add_dx = true;
    step->dx[i] = x->grad[0];
    live_until(net, step->dx[i], time);
}

/* Whether step s is the first to read v, and thus the last to add to its gradient, in memory of its own. */
static bool completes_gradient(const abar_net *net, int s, int v)
{
    const abar__value *x = &net->values[v];
    if (x->within >= 0 || x->hosts || net->steps[s].sum[0][2] >= 0) return false;
    for (int r = x->producer + 1; r < s; r++)
        for (int i = 0; i < net->steps[r].op->desc.n_in; i++)
            if (net->steps[r].in[i] == v) return false;
    return true;
}

/* A convolution whose dx completes the gradient of a batch norm's output also takes the sums that this one's backward begins
 * with. */
static abar_status norm_sums(abar_net *net, int s)
{
    abar__step *step = &net->steps[s];
    const int v = step->in[0], producer = net->values[v].producer;
    if (step->op->sum_parts == 0 || step->dx[0] < 0 || producer < 0 || !net->steps[producer].op->takes_sums) return ABAR_OK;
    abar__step *norm = &net->steps[producer];
    if (!abar__goes_back(net, norm) || net->values[norm->in[0]].within >= 0 || !completes_gradient(net, s, v)) return ABAR_OK;
    const size_t bytes = (size_t)net->values[v].shape.dim[1] * (size_t)step->op->sum_parts * 2 * sizeof(float);
    step->sums = norm->sums = add_buffer(net, bytes, backward_time(net, s), backward_time(net, producer));
    norm->args.sum_parts = step->op->sum_parts;
    return step->sums < 0 ? (abar_status)step->sums : ABAR_OK;
}

static abar_status backward_buffers(abar_net *net, int s)
{
    abar__step *step = &net->steps[s];
    const abar__op *op = step->op;
    if (!abar__goes_back(net, step)) return ABAR_OK;
    int time = backward_time(net, s);
    if (step->out >= 0)
        for (int k = 0; k < 2; k++)
            if (net->values[step->out].grad[k] >= 0) live_until(net, net->values[step->out].grad[k], backward_end(net, s));
    if (step->stream >= 0 && net->values[step->stream].grad[0] >= 0) live_until(net, net->values[step->stream].grad[0], time);
    if (op->scratch_bytes) {
        step->backward_scratch = add_buffer(net, op->scratch_bytes, time, backward_end(net, s));
        if (step->backward_scratch < 0) return (abar_status)step->backward_scratch;
    }
    ABAR_TRY(columns_buffer(net, s));
    step->passes_dy = passes_dy(net, step);
    const bool alike = op->dx_alike && may_share(net, step);
    for (int i = 0; i < op->desc.n_in; i++) {
        if (!op->desc.need_dx[i]) continue;
        const abar__value *x = &net->values[step->in[i]];
        if (x->within >= 0) {
            part_gradient(net, step, i, time);
            continue;
        }
        bool same = step->passes_dy || (op->y_is_x && i == 0);
        step->dx[i] = same                                 ? net->values[step->out].grad[0]
                      : alike && i > 0 && step->dx[0] >= 0 ? step->dx[0]
                                                           : add_buffer(net, abar__value_bytes(net, step->in[i]), time, time);
        if (step->dx[i] < 0) return (abar_status)step->dx[i];
        ABAR_TRY(add_gradient(net, step, i, step->dx[i], time));
    }
    return norm_sums(net, s);
}

abar_status abar__net_plan_memory(abar_net *net)
{
    int end = 2 * net->n_steps;
    abar__value *input = &net->values[net->input];
    input->buffer = add_buffer(net, abar__value_bytes(net, net->input), 0, end); /* written by the caller between runs */
    if (input->buffer < 0) return (abar_status)input->buffer;
    for (int s = 0; s < net->n_steps; s++) ABAR_TRY(forward_buffers(net, s));
    live_until(net, net->values[net->output].buffer, net->n_steps); /* read by the caller after forward */
    for (int s = net->n_steps - 1; s >= 0; s--) ABAR_TRY(backward_buffers(net, s));
    return abar__plan_arena(net->ctx, net->buffers, net->n_buffers, &net->arena_bytes);
}
