/* Running a compiled net: forward, backward, and committing or rolling back the running statistics of a step. */
#include "net/blocks.h"
#include "net/net_impl.h"

#include <string.h>

static abar_status check_run(abar_net *net, const abar_run_config *run, abar_run_config *r)
{
    abar_context *ctx = net->ctx;
    if (!net->arena) return abar__fail(ctx, ABAR_E_STATE, "net: forward needs a compiled net, call abar_net_compile first");
    ABAR_TRY(abar__struct_read(ctx, "abar_run_config", run, r, sizeof *r));
    if (r->valid < 0 || r->valid > net->config.batch)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "net: run.valid is %lld, give at most the batch of %lld, or 0 for all",
                          (long long)r->valid, (long long)net->config.batch);
    if (r->repeat && !net->config.patterns)
        return abar__fail(ctx, ABAR_E_STATE, "net: run.repeat needs a net compiled with patterns");
    const abar__op_desc *loss = &net->nodes[net->loss].desc;
    const bool labels = r->draw_labels || r->one_class != 0;
    if (labels && (loss->kind != ABAR_OP_SOFTMAX_CROSS_ENTROPY || loss->soft_targets || loss->label_pairs))
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "net: run.draw_labels and run.one_class need a cross entropy with one label a row");
    const abar_tensor logits = abar_net_output(net);
    if (r->one_class != 0 && (logits.ndim != 2 || r->draw_labels || r->one_class < 0 || r->one_class > logits.dim[1]))
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "net: run.one_class is %lld, give 1 to the number of classes, for one label a sample and without "
                          "draw_labels",
                          (long long)r->one_class);
    if (r->hold_statistics && net->dev->ops->stream)
        return abar__fail(ctx, ABAR_E_UNSUPPORTED, "net: run.hold_statistics is not for device %s, leave it out",
                          net->dev->ops->name);
    return ABAR_OK;
}

/* The attention that reads this step's output; NULL: none. */
static const abar__step *find_attention(const abar_net *net, const abar__step *linear)
{
    for (int s = 0; s < net->n_steps; s++)
        if (net->steps[s].op->desc.kind == ABAR_OP_ATTENTION && net->steps[s].in[0] == linear->out) return &net->steps[s];
    return NULL;
}

static abar_status observe_forward(abar_net *net, const abar__step *step, const abar_forward_observer *observer)
{
    const abar__step *attention = find_attention(net, step);
    abar_layer_forward view = {.input = abar__net_view(net, step->in[0], step->args.x[0]),
                               .output = abar__net_view(net, step->out, step->args.y)};
    if (attention) {
        const int bias = net->nodes[attention->node].param[0];
        view.causal = attention->op->desc.causal;
        if (bias >= 0) view.position_bias = net->params[bias].public.value;
    }
    ABAR_TRY(abar_device_wait(net->dev));
    return observer->observe(observer->user, step->layer, &net->layers[step->layer], &view);
}

abar_status abar_net_forward(abar_net *net, const abar_run_config *run, abar_loss *out)
{
    abar_run_config r = {0};
    abar_forward_observer observer = {0};
    ABAR_TRY(check_run(net, run, &r));
    if (r.observer) ABAR_TRY(abar__struct_read(net->ctx, "abar_forward_observer", r.observer, &observer, sizeof observer));
    net->run = (abar__run){.training = r.training,
                           .valid = r.valid ? r.valid : net->config.batch,
                           .seed = r.seed,
                           .step = (uint32_t)r.step,
                           .step_now = r.step_now,
                           .sample0 = r.sample0,
                           .repeat = r.repeat,
                           .draw_labels = r.draw_labels,
                           .hold = r.hold_statistics,
                           .own = r.own_statistics,
                           .draw = r.draw,
                           .one_class = r.one_class,
                           .loss_scale = r.loss_scale != 0.0 ? r.loss_scale : 1.0};
    net->ran_forward = false;
    ABAR_TRY(abar__profile_forward(net, -1));
    for (int s = 0; s < net->n_steps; s++) {
        abar__step *step = &net->steps[s];
        step->args.scratch = step->forward_scratch < 0 ? NULL : (char *)net->arena + net->buffers[step->forward_scratch].offset;
        if (!step->op->y_is_x) ABAR_TRY(abar__op_forward(step->op, &step->args));
        if (step->layer >= 0 && r.observer) ABAR_TRY(observe_forward(net, step, &observer));
        ABAR_TRY(abar__profile_forward(net, s));
    }
    if (r.training && !r.hold_statistics) net->pending_batches++;
    net->ran_forward = r.training && net->config.training;
    if (!out) return ABAR_OK;
    ABAR_TRY(abar_device_wait(net->dev));
    *out = *net->result;
    return ABAR_OK;
}

/* Adds two gradients of one value that came from two readers. */
static abar_status join(abar_net *net, const abar__step *step, int i)
{
    const int *sum = step->sum[i];
    const abar__value *v = &net->values[step->in[i]];
    abar__op_args a = {.run = &net->run};
    a.x[0] = (char *)net->arena + net->buffers[sum[0]].offset;
    a.x[1] = (char *)net->arena + net->buffers[sum[1]].offset;
    a.y = (char *)net->arena + net->buffers[sum[2]].offset;
    return abar__op_forward(v->join, &a);
}

/* A fused activation replaces dy by dL/dz in the backward pass, which is what an observer needs: it then has to run after
 * backward, unless that has been done before. */
static bool changes_dy(const abar__step *step) { return step->op->desc.activation != ABAR_ACT_NONE && !step->args.dz_given; }

/* Waits for what the steps first to last have left to run: what the first one has left, which ran after the others, ends
 * last. */
static abar_status join_late(abar_net *net, int first, int last)
{
    int latest = -1;
    for (int s = last < net->n_steps ? last : net->n_steps - 1; s >= first; s--) {
        if (net->steps[s].args.late) latest = s;
        net->steps[s].args.late = false;
    }
    return latest < 0 ? ABAR_OK : net->dev->ops->stream->late_join(net->dev, latest % ABAR_LATE_MARKS);
}

/* Before step s: where memory of a late step will be used again, waits for it, and for those that are half as old, too: every
 * wait costs the queue some time. */
static abar_status join_oldest(abar_net *net, int s)
{
    const int oldest = s + ABAR_NET_LATE + 1;
    if (oldest >= net->n_steps || !net->steps[oldest].args.late) return ABAR_OK;
    return join_late(net, s + ABAR_NET_LATE / 2 + 1, oldest);
}

/* An observer depends on nothing that backward writes, so it may run concurrently, unless each is to be timed alone.
 * Beside a late step it may be late, too; but two observers never run at the same time. */
static abar_status backward_step(abar_net *net, int s, bool accumulate, const abar_observer *observer)
{
    abar__step *step = &net->steps[s];
    const abar__stream_ops *stream = net->dev->ops->stream;
    const bool observes = step->layer >= 0 && observer;
    const bool beside = observes && stream && !changes_dy(step) && !net->profile;
    step->args.scratch = step->backward_scratch < 0 ? NULL : (char *)net->arena + net->buffers[step->backward_scratch].offset;
    step->args.accumulate = accumulate;
    step->args.late = step->op->can_be_late && (beside || !observes) && !net->profile;
    if (beside) {
        ABAR_TRY(stream->side_begin(net->dev, ABAR_SIDE_STATS));
        abar_status status = observer->observe(observer->user, step->layer, &net->layers[step->layer]);
        ABAR_TRY(stream->side_end(net->dev, ABAR_SIDE_STATS));
        ABAR_TRY(status);
    }
    if (!step->op->y_is_x && !step->passes_dy) ABAR_TRY(abar__op_backward(step->op, &step->args));
    if (step->args.late)
        ABAR_TRY(stream->late_mark(net->dev, s % ABAR_LATE_MARKS, beside));
    else if (beside)
        ABAR_TRY(stream->side_join(net->dev, ABAR_SIDE_STATS));
    for (int i = 0; i < step->op->desc.n_in; i++)
        if (step->sum[i][2] >= 0) ABAR_TRY(join(net, step, i));
    ABAR_TRY(abar__profile_backward(net, s, false));
    if (!observes || beside) return ABAR_OK;
    ABAR_TRY(join_late(net, s + 1, s + ABAR_NET_LATE));
    return observer->observe(observer->user, step->layer, &net->layers[step->layer]);
}

/* Whether backward passes before step s add to the gradient of this parameter. */
static bool is_complete(const abar_net *net, int param, int s)
{
    for (int i = 0; i < s; i++) {
        const abar__step *step = &net->steps[i];
        for (int k = 0; step->node >= 0 && abar__goes_back(net, step) && k < ABAR_OP_MAX_PARAM; k++)
            if (net->nodes[step->node].param[k] == param) return false;
    }
    return true;
}

/* Steps n_steps - 1 to s have been given; those of them that are late and were not waited for yet are not done. *params: those
 * from this one on are complete, and stay so; it falls. */
static abar_status tell_complete(const abar_net *net, int s, const abar__grad_watcher *watcher, int *params)
{
    const int before = *params;
    int done = s;
    for (int k = s; k < net->n_steps && k <= s + ABAR_NET_LATE; k++)
        if (net->steps[k].args.late) done = k + 1;
    while (*params > 0 && is_complete(net, *params - 1, done)) --*params;
    return *params < before ? watcher->complete(watcher->user, net->params[*params].offset) : ABAR_OK;
}

abar_status abar_net_backward(abar_net *net, bool accumulate, const abar_observer *caller)
{
    return abar__net_backward_watched(net, accumulate, caller, NULL);
}

abar_status abar__net_backward_watched(abar_net *net, bool accumulate, const abar_observer *caller,
                                       const abar__grad_watcher *watcher)
{
    int params = net->n_params;
    abar_observer known;
    const abar_observer *observer = caller ? &known : NULL;
    if (caller) ABAR_TRY(abar__struct_read(net->ctx, "abar_observer", caller, &known, sizeof known));
    if (!net->ran_forward)
        return abar__fail(net->ctx, ABAR_E_STATE,
                          "net: backward needs a training forward before it, on a net compiled for training");
    net->ran_forward = false;
    net->run.observing = observer != NULL;
    ABAR_TRY(abar__profile_backward(net, -1, false));
    for (int s = net->n_steps - 1; s >= 0; s--) {
        ABAR_TRY(join_oldest(net, s));
        ABAR_TRY(abar__goes_back(net, &net->steps[s]) ? backward_step(net, s, accumulate, observer)
                                                      : abar__profile_backward(net, s, false));
        ABAR_TRY(abar__profile_backward(net, s, true));
        if (watcher) ABAR_TRY(tell_complete(net, s, watcher, &params));
    }
    ABAR_TRY(join_late(net, 0, ABAR_NET_LATE));
    return watcher ? tell_complete(net, 0, watcher, &params) : ABAR_OK;
}

/* running = (1 - momentum) running + momentum batch, for ref and cpu. */
static void average(abar_dtype dtype, int64_t n, double momentum, const void *batch, void *running)
{
    for (int64_t i = 0; i < n; i++)
        if (dtype == ABAR_F64)
            ((double *)running)[i] = (1.0 - momentum) * ((double *)running)[i] + momentum * ((const double *)batch)[i];
        else
            ((float *)running)[i] =
                (float)((1.0 - momentum) * (double)((float *)running)[i] + momentum * (double)((const float *)batch)[i]);
}

/* All batch norms in one go where their momentum is the same: gaps between tensors are zero, and stay so. */
abar_status abar__net_enqueue_statistics(abar_net *net, const void *batches, int64_t n)
{
    const abar__join_ops *ops = net->dev->ops->join;
    const int64_t all = (int64_t)(net->running_bytes / sizeof(float));
    double momentum = -1.0;
    bool same = true;
    for (int i = 0; i < net->n_nodes; i++) {
        if (net->nodes[i].norm < 0) continue;
        same = same && (momentum < 0.0 || net->nodes[i].desc.momentum == momentum);
        momentum = net->nodes[i].desc.momentum;
    }
    if (same) return ops->average(net->dev, all, momentum, net->pending, batches, n, net->running_bytes);
    for (int i = 0; i < net->n_nodes; i++) {
        const abar__node *node = &net->nodes[i];
        for (int k = 0; node->norm >= 0 && k < 2; k++) {
            const abar__norm_state *s = &net->norms[node->norm];
            ABAR_TRY(ops->average(net->dev, s->channels, node->desc.momentum, (char *)net->pending + s->offset[k],
                                  (const char *)batches + s->offset[k], n, net->running_bytes));
        }
    }
    return ABAR_OK;
}

void abar__net_add_statistics(abar_net *net, const void *batches, int64_t n)
{
    for (int64_t b = 0; b < n; b++)
        for (int i = 0; i < net->n_nodes; i++) {
            const abar__node *node = &net->nodes[i];
            if (node->norm < 0) continue;
            const abar__norm_state *s = &net->norms[node->norm];
            const char *batch = (const char *)batches + (size_t)b * net->running_bytes;
            for (int k = 0; k < 2; k++)
                average(net->dev->ops->dtype, s->channels, node->desc.momentum, batch + s->offset[k],
                        (char *)net->pending + s->offset[k]);
        }
    net->pending_batches = n;
}

static void copy_statistics(abar_net *net, void *to, void *from)
{
    abar__device_copy(net->dev, to, from, net->running_bytes); /* one device, one shape: cannot fail */
}

void abar_net_commit(abar_net *net)
{
    if (net->config.share) return; /* what it shares is the other net's to commit */
    copy_statistics(net, net->running, net->pending);
    abar_net_count_batches(net, net->pending_batches);
}

void abar_net_count_batches(abar_net *net, int64_t batches)
{
    for (int i = 0; i < net->n_norms; i++) net->norms[i].batches += batches;
    net->pending_batches = 0;
}

abar_status abar_net_settle(abar_net *net, const int32_t *skipped)
{
    const abar__stream_ops *stream = net->dev->ops->stream;
    if (!stream)
        return abar__fail(net->ctx, ABAR_E_STATE, "net: device %s is not queued, commit or roll back", net->dev->ops->name);
    if (net->running_bytes) stream->settle(net->dev, net->running, net->pending, net->running_bytes, skipped);
    net->pending_batches = 0;
    return ABAR_OK;
}

void abar_net_rollback(abar_net *net)
{
    copy_statistics(net, net->pending, net->running);
    net->pending_batches = 0;
}
