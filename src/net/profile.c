/* Profiling: the time of every operation, and the bytes and multiplications of each pass. Times are differences of ticks:
 * events in the stream of a queued device, or else the host's clock.
 *
 * Ticks of n steps: 0 before the forward pass and s + 1 after its step s; n + 1 before the backward pass, then two after
 * each step in the order of execution: one when its gradients are complete, one when it has been observed. */
#include "base/clock.h"
#include "net/net_impl.h"

static int ticks(const abar_net *net) { return 3 * net->n_steps + 2; }
static int forward_tick(int s) { return s + 1; }
static int backward_tick(const abar_net *net, int s) { return net->n_steps + 2 + 2 * (net->n_steps - 1 - s); }

/* ---- taking times ----------------------------------------------------------------------------------------------- */

static abar_status tick(abar_net *net, int at)
{
    if (!net->profile) return ABAR_OK;
    if (net->events) return net->dev->ops->stream->event_record(net->dev, net->events[at]);
    net->clock[at] = abar__seconds();
    return ABAR_OK;
}

abar_status abar__profile_forward(abar_net *net, int s) { return tick(net, s < 0 ? 0 : forward_tick(s)); }

abar_status abar__profile_backward(abar_net *net, int s, bool observed)
{
    return tick(net, s < 0 ? net->n_steps + 1 : backward_tick(net, s) + observed);
}

/* Seconds between the previous tick and this one. */
static double lap(const abar_net *net, int at)
{
    if (net->events) return 1e-3 * net->dev->ops->stream->event_elapsed(net->dev, net->events[at - 1], net->events[at]);
    return net->clock[at] - net->clock[at - 1];
}

abar_status abar_net_profile_take(abar_net *net)
{
    if (!net->profile) return abar__fail(net->ctx, ABAR_E_STATE, "net: nothing was profiled, call abar_net_profile first");
    ABAR_TRY(abar_device_wait(net->dev));
    for (int s = 0; s < net->n_steps; s++) {
        abar__step *step = &net->steps[s];
        if (step->layer >= 0 && net->run.observing) step->observe_seconds += lap(net, backward_tick(net, s) + 1);
        if (step->op->y_is_x) continue; /* the difference of two ticks with nothing between them is not quite 0 */
        step->forward_seconds += lap(net, forward_tick(s));
        step->backward_seconds += lap(net, backward_tick(net, s));
    }
    return ABAR_OK;
}

void abar__profile_release(abar_net *net)
{
    for (int i = 0; net->events && i < ticks(net); i++)
        if (net->events[i]) net->dev->ops->stream->event_destroy(net->dev, net->events[i]);
    abar__free(net->ctx, net->events, net->events ? (size_t)ticks(net) * sizeof *net->events : 0);
    abar__free(net->ctx, net->clock, net->clock ? (size_t)ticks(net) * sizeof *net->clock : 0);
    net->events = NULL;
    net->clock = NULL;
    net->profile = false;
}

static abar_status make_events(abar_net *net)
{
    ABAR_TRY(abar__alloc(net->ctx, (size_t)ticks(net) * sizeof *net->events, (void **)&net->events));
    for (int i = 0; i < ticks(net); i++) ABAR_TRY(net->dev->ops->stream->event_create(net->dev, &net->events[i]));
    return ABAR_OK;
}

abar_status abar_net_profile(abar_net *net, bool on)
{
    if (!net->dev)
        return abar__fail(net->ctx, ABAR_E_STATE, "net: a profile needs a compiled net, call abar_net_compile first");
    abar__profile_release(net);
    if (!on) return ABAR_OK;
    abar_status status = net->dev->ops->stream
                             ? make_events(net)
                             : abar__alloc(net->ctx, (size_t)ticks(net) * sizeof *net->clock, (void **)&net->clock);
    if (status < 0) {
        abar__profile_release(net);
        return status;
    }
    for (int s = 0; s < net->n_steps; s++)
        net->steps[s].forward_seconds = net->steps[s].backward_seconds = net->steps[s].observe_seconds = 0.0;
    net->profile = true;
    return ABAR_OK;
}

/* ---- what has to be done ------------------------------------------------------------------------------------------ */

static double bytes_of(const abar_net *net, int value) { return (double)abar__value_bytes(net, value); }

/* Bytes of the parameters as the operation reads them: of the bf16 copy where there is one; of a table, of the rows that are
 * looked up. */
static double param_bytes(const abar_net *net, const abar__step *step, bool gradient)
{
    if (step->op->desc.kind == ABAR_OP_EMBEDDING && !gradient) return 2.0 * bytes_of(net, step->out);
    double bytes = 0.0;
    for (int k = 0; step->node >= 0 && k < ABAR_OP_MAX_PARAM; k++) {
        const int p = net->nodes[step->node].param[k];
        if (p < 0) continue;
        const abar_param *param = &net->params[p].public;
        const bool shadow = param->shadow.ndim > 0 && !gradient;
        bytes += (double)abar_tensor_bytes(shadow ? &param->shadow : &param->value);
    }
    return bytes;
}

/* The product of positive numbers; INT64_MAX where it overflows. */
static int64_t product(int64_t a, int64_t b) { return a > INT64_MAX / b ? INT64_MAX : a * b; }

int64_t abar__multiply_adds(const abar_net *net, const abar__op_desc *d)
{
    const abar_window *w = &d->window;
    int64_t outputs = d->out.dim[0] / net->config.batch; /* rows of a sample, at first */
    for (int i = 1; i < d->out.ndim; i++) outputs = product(outputs, d->out.dim[i]);
    if (d->kind == ABAR_OP_LINEAR) return product(outputs, d->in[0].dim[1]);
    if (d->kind == ABAR_OP_ATTENTION) /* scores and weighted sums */
        return product(product(2, outputs), d->side ? d->side * d->side : d->in[0].dim[1]);
    if (d->kind == ABAR_OP_CONV2D) return product(outputs, d->in[0].dim[1] / w->groups * w->kernel[0] * w->kernel[1]);
    return 0;
}

/* Multiply-adds of the whole batch. */
static double forward_flops(const abar_net *net, const abar__op_desc *d)
{
    return 2.0 * (double)net->config.batch * (double)abar__multiply_adds(net, d);
}

/* Bytes of those inputs of a concatenation that are stored within its output and need no copy. */
static double bytes_in_place(const abar_net *net, const abar__step *step)
{
    double bytes = 0.0;
    if (step->op->desc.kind != ABAR_OP_CONCAT) return bytes;
    for (int i = 0; i < step->op->desc.n_in; i++)
        if (net->values[step->in[i]].within >= 0) bytes += bytes_of(net, step->in[i]);
    return bytes;
}

static abar_work forward_work(const abar_net *net, const abar__step *step)
{
    const abar__op_desc *d = &step->op->desc;
    abar_work w = {0};
    if (step->op->y_is_x) return w;
    for (int i = 0; i < d->n_in; i++) w.bytes += bytes_of(net, step->in[i]);
    if (step->out >= 0) w.bytes += bytes_of(net, step->out);
    if (step->saved >= 0 && d->kind == ABAR_OP_LINEAR) w.bytes += (double)step->op->saved_bytes; /* z of a GELU */
    w.bytes += param_bytes(net, step, false) - 2.0 * bytes_in_place(net, step);
    w.flops = forward_flops(net, d);
    return w;
}

/* Bytes of the output's gradient, of everything else that backward reads, and of the gradients it writes. */
static abar_work backward_work(const abar_net *net, const abar__step *step)
{
    const abar__op *op = step->op;
    abar_work w = {0};
    if (!abar__goes_back(net, step) || op->y_is_x || step->passes_dy) return w;
    for (int i = 0; i < op->desc.n_in; i++) {
        const double x = bytes_of(net, step->in[i]);
        const bool added = i > 0 && op->desc.residual; /* its gradient does not depend on its value */
        if (op->backward_needs & ABAR_NEEDS_X && !added) w.bytes += x;
        if (op->desc.need_dx[i]) w.bytes += step->args.add_dx ? 2.0 * x : x;
    }
    if (step->out >= 0) {
        const abar__value *y = &net->values[step->out];
        w.bytes += bytes_of(net, step->out) * (1 + (y->grad[1] >= 0) + ((op->backward_needs & ABAR_NEEDS_Y) != 0));
    }
    if (op->slopes_dx) w.bytes += bytes_of(net, step->in[0]); /* z of the GELU before it */
    if (op->desc.kind == ABAR_OP_LINEAR && !step->args.dz_given) w.bytes += (double)op->saved_bytes;
    w.bytes -= 2.0 * bytes_in_place(net, step);
    w.bytes += param_bytes(net, step, true) + (op->desc.need_dx[0] ? param_bytes(net, step, false) : 0.0);
    const bool both = op->desc.kind == ABAR_OP_ATTENTION || op->desc.need_dx[0]; /* gradients of two factors, or of one */
    w.flops = (both ? 2.0 : 1.0) * forward_flops(net, &op->desc);
    return w;
}

/* Every statistic of a linear map reads its input. */
static abar_work observe_work(const abar_net *net, const abar__step *step)
{
    return (abar_work){.bytes = step->layer >= 0 ? bytes_of(net, step->in[0]) : 0.0};
}

void abar__net_work(const abar_net *net, int s, abar_node_info *out)
{
    const abar__step *step = &net->steps[s];
    out->forward = forward_work(net, step);
    out->backward = backward_work(net, step);
    out->observe = observe_work(net, step);
    out->forward.seconds = step->forward_seconds;
    out->backward.seconds = step->backward_seconds;
    out->observe.seconds = step->observe_seconds;
}
