/* One training step, top to bottom: normalise, forward, backward, update, and what happens when numbers go wrong
 * (methods.md section 9). Nothing here allocates. */
#include "data/data_impl.h"
#include "optim/optim_impl.h"
#include "train/train_impl.h"

#include <math.h>
#include <string.h>

static bool is_queued(const abar__data_feed *f) { return f && f->batches; }

/* A queued device reads the samples from its feed: the batch that was staged, or the resident data set. */
static abar_status fill_queued(const abar__stepper *s, const abar__data_feed *f, int64_t first)
{
    const abar_tensor input = abar_net_input(s->net), target = abar_net_target(s->net), share = abar_net_target_share(s->net);
    return f->ops->fill(f->dev, f->batches, first, &input, &target, &share);
}

/* The same for a text: input and target (micro, context) in I32. */
static abar_status fill_tokens(const abar__stepper *s, const abar_batch *batch, int64_t first)
{
    const abar_tensor input = abar_net_input(s->net);
    const int64_t context = abar_tensor_count(&input) / s->micro;
    void *tokens = (void *)(uintptr_t)(batch->tokens + first * context);
    const abar_tensor from = abar_tensor_wrap(NULL, tokens, ABAR_I32, input.ndim, input.dim);
    ABAR_TRY(abar_tensor_copy(s->ctx, &input, &from));
    return abar_net_set_labels(s->net, batch->labels + first * context);
}

/* The labels of mixed rows. The devices that get here compute in host memory. */
static void fill_pairs(const abar__stepper *s, const abar_batch *part)
{
    int32_t *label = abar_net_target(s->net).data;
    float *share = abar_net_target_share(s->net).data;
    for (int64_t i = 0; i < s->micro; i++) {
        label[2 * i] = part->labels[i];
        label[2 * i + 1] = part->rows[i].partner_label;
        share[i] = part->rows[i].share;
    }
}

/* Samples first .. first + micro of the batch into the net's input and target. */
static abar_status fill(const abar__stepper *s, const abar__data_feed *f, const abar_batch *batch, int64_t first)
{
    if (is_queued(f)) {
        if (first == 0) ABAR_TRY(abar__data_feed_stage(f, batch));
        return fill_queued(s, f, first);
    }
    if (s->info->text) return fill_tokens(s, batch, first);
    const abar_batch part = abar__batch_part(s->info, batch, first);
    const abar_tensor input = abar_net_input(s->net);
    ABAR_TRY(abar_batch_normalise(s->ctx, s->info, &part, s->micro, &input));
    if (!part.rows || abar_net_target_share(s->net).ndim == 0) return abar_net_set_labels(s->net, part.labels);
    fill_pairs(s, &part);
    return ABAR_OK;
}

/* Where the samples of forward pass i are in the whole batch, of which this rank has a share, and in how many it is cut. */
static int64_t sample_of(const abar__stepper *s, int64_t i) { return ((s->join ? s->join->first : 0) + i) * s->micro; }
int64_t abar__stepper_passes(const abar__stepper *s) { return s->join ? s->join->config.n : s->accumulate; }
static double passes(const abar__stepper *s) { return (double)abar__stepper_passes(s); }

/* Where they are on a queued device: a resident set has the whole batch, a staged one this rank's share. */
static int64_t row_of(const abar__stepper *s, int64_t i) { return s->feed->resident ? sample_of(s, i) : i * s->micro; }

/* Whether pass i adds to the gradients of those before. Those of micro-batches that are joined stay apart. */
static bool adds(const abar__stepper *s, int64_t i) { return i > 0 && !s->join; }

/* Gradients include loss_scale, so they are those of the whole batch's mean already. */
static abar_status observe(void *user, int index, const abar_layer *layer) { return abar_optim_observe(user, index, layer); }

/* ---- further passes of rules that need them (device/extra.h) -------------------------------------------------------- */

/* Samples of micro-batch i into the net that makes them; batch NULL: those that are there. */
static abar_status fill_extra(const abar__stepper *s, const abar_batch *batch, int64_t i)
{
    abar__stepper e = *s;
    e.net = s->extra;
    if (is_queued(s->feed)) return fill_queued(&e, s->feed, row_of(s, i));
    return batch ? fill(&e, s->feed, batch, i * s->micro) : ABAR_OK;
}

/* The settings of the pass over micro-batch i, with sign times its share of the gradient. */
static abar_run_config extra_run(const abar__stepper *s, int64_t k, int64_t i, double sign)
{
    return (abar_run_config){.size = sizeof(abar_run_config),
                             .training = true,
                             .seed = s->seed,
                             .step = k,
                             .step_now = abar_optim_is_queued(s->optim) ? abar_optim_step_now(s->optim) : NULL,
                             .sample0 = sample_of(s, i),
                             .loss_scale = sign / passes(s)};
}

/* Adds the difference of the gradients of micro-batch i at W + hz and W - hz, with the choices that ReLUs and pools make at W.
 */
static abar_status add_difference(const abar__stepper *s, const abar_batch *batch, int64_t k, int64_t i)
{
    const abar_run_config record = extra_run(s, k, i, 1.0);
    ABAR_TRY(fill_extra(s, batch, i));
    ABAR_TRY(abar_net_forward(s->extra, &record, NULL));
    for (int sign = 1; sign >= -1; sign -= 2) {
        abar_run_config run = extra_run(s, k, i, sign);
        run.repeat = true;
        ABAR_TRY(abar_optim_perturb(s->optim, sign));
        ABAR_TRY(abar_net_forward(s->extra, &run, NULL));
        ABAR_TRY(abar_net_backward(s->extra, adds(s, i) || sign < 0, NULL));
    }
    return abar_optim_perturb(s->optim, 0);
}

/* After step k, which has been counted: the gradients of its micro-batches on labels that the model draws. */
static abar_status sampled_passes(const abar__stepper *s, const abar_batch *batch, int64_t k)
{
    const bool queued = abar_optim_is_queued(s->optim);
    if (s->join && !queued) abar__join_extra_begin(s->join);
    if (s->join && queued) abar__join_extra_enqueue_begin(s->join);
    for (int64_t i = 0; i < s->accumulate; i++) {
        abar_run_config run = extra_run(s, k + 1, i, 1.0); /* as a queued device counts, whose steps read their number */
        run.draw_labels = true;
        ABAR_TRY(fill_extra(s, batch, i));
        ABAR_TRY(abar_net_forward(s->extra, &run, NULL));
        ABAR_TRY(abar_net_backward(s->extra, adds(s, i), NULL));
        if (s->join && !queued) abar__join_extra_add(s->join, s);
        if (s->join && queued) ABAR_TRY(abar__join_extra_push(s->join, s));
    }
    return ABAR_OK;
}

/* The gradient of the whole batch. */
static abar_status take_sampled(const abar__stepper *s)
{
    const abar_step_config step = {.size = sizeof step, .clip = s->clip};
    const bool queued = abar_optim_is_queued(s->optim);
    if (s->join) ABAR_TRY(queued ? abar__join_extra_take(s->join, s) : abar__join_extra_end(s->join, s));
    return abar_optim_take_sampled(s->optim, &step);
}

/* The gradients of single examples with labels that the model draws, or of each class in turn, before step k. */
static abar_status add_rows(const abar__stepper *s, const abar_batch *batch, int64_t k)
{
    const abar_observer observer = {sizeof observer, observe, s->optim};
    const bool drawn = abar_optim_draws_rows(s->optim);
    ABAR_TRY(fill_extra(s, batch, 0));
    for (int64_t i = 0; i < abar_optim_row_passes(s->optim); i++) {
        abar_run_config run = extra_run(s, k, 0, 1.0);
        run.draw_labels = drawn;
        run.draw = drawn ? i : 0;
        run.one_class = drawn ? 0 : 1 + i;
        ABAR_TRY(abar_optim_begin_rows(s->optim, i));
        ABAR_TRY(abar_net_forward(s->extra, &run, NULL));
        ABAR_TRY(abar_net_backward(s->extra, false, &observer));
    }
    return ABAR_OK;
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* Forward and backward over the micro-batches of this rank. */
static abar_status run_passes(const abar__stepper *s, const abar_batch *batch, int64_t k, abar__step_result *out)
{
    double sum = 0.0;
    const bool observes = abar_optim_observes(s->optim);
    const abar_extra extra = abar_optim_extra(s->optim);
    const abar_observer observer = {sizeof observer, observe, s->optim};
    for (int64_t i = 0; i < s->accumulate; i++) {
        if (batch) ABAR_TRY(fill(s, s->feed, batch, i * s->micro));
        abar_run_config run = {.size = sizeof run,
                               .training = true,
                               .seed = s->seed,
                               .step = k,
                               .sample0 = sample_of(s, i),
                               .loss_scale = 1.0 / passes(s),
                               .own_statistics = s->join != NULL};
        if (s->join) abar_optim_begin_part(s->optim, sample_of(s, i));
        abar_loss loss;
        double began = abar__seconds();
        ABAR_TRY(abar_net_forward(s->net, &run, &loss));
        double turned = abar__seconds();
        out->forward_seconds += turned - began;
        out->skipped = !isfinite(loss.loss);
        if (out->skipped && s->join) abar__join_spoil(s->join, i);
        if (out->skipped) return ABAR_OK;
        ABAR_TRY(abar_net_backward(s->net, adds(s, i), observes ? &observer : NULL));
        if (extra == ABAR_EXTRA_DIFFERENCE) ABAR_TRY(add_difference(s, batch, k, i));
        if (extra == ABAR_EXTRA_ROWS) ABAR_TRY(add_rows(s, batch, k));
        if (s->join) ABAR_TRY(abar__join_add(s->join, s, i, &loss));
        out->backward_seconds += abar__seconds() - turned;
        sum += loss.loss * (double)loss.count;
        out->loss.correct += loss.correct;
        out->loss.count += loss.count;
    }
    out->loss.loss = sum / (double)out->loss.count;
    return ABAR_OK;
}

/* The gradients are then those of the mean over the whole batch, and so are the loss and the statistics. */
static abar_status gradients(const abar__stepper *s, const abar_batch *batch, int64_t k, abar__step_result *out)
{
    if (!s->join) return run_passes(s, batch, k, out);
    abar__join_begin(s->join, s);
    const abar_status status = run_passes(s, batch, k, out);
    return abar__join_end(s->join, s, status, out);
}

/* The batch again at the weights of the step that was made, for a method that learns from it. *undone: the step was given up.
 */
static abar_status second_passes(const abar__stepper *s, const abar_batch *batch, int64_t k, bool *finite)
{
    const abar_observer observer = {sizeof observer, observe, s->optim};
    for (int64_t i = 0; i < s->accumulate && *finite; i++) {
        if (batch) ABAR_TRY(fill(s, s->feed, batch, i * s->micro));
        const abar_run_config run = {.size = sizeof run,
                                     .training = true,
                                     .seed = s->seed,
                                     .step = k,
                                     .sample0 = sample_of(s, i),
                                     .loss_scale = 1.0 / passes(s),
                                     .hold_statistics = true};
        abar_loss loss;
        ABAR_TRY(abar_net_forward(s->net, &run, &loss));
        *finite = isfinite(loss.loss);
        if (*finite) ABAR_TRY(abar_net_backward(s->net, adds(s, i), &observer));
        if (s->join && *finite) ABAR_TRY(abar__join_second_add(s->join, s));
        if (s->join && !*finite) abar__join_spoil(s->join, i);
    }
    return ABAR_OK;
}

static abar_status run_second(const abar__stepper *s, const abar_batch *batch, int64_t k, bool *undone)
{
    bool finite = true;
    if (s->join) abar__join_second_begin(s->join, s);
    abar_status status = second_passes(s, batch, k, &finite);
    if (s->join) status = abar__join_second_end(s->join, s, status, &finite);
    ABAR_TRY(status);
    return abar_optim_end_pass(s->optim, finite, 1.0, undone);
}

/* ---- on a queued device ------------------------------------------------------------------------------------------ */

static abar_status enqueue_forward(const abar__stepper *s, int64_t micro)
{
    const abar_run_config run = {.size = sizeof run,
                                 .training = true,
                                 .seed = s->seed,
                                 .sample0 = sample_of(s, micro),
                                 .loss_scale = 1.0 / passes(s),
                                 .step_now = abar_optim_step_now(s->optim),
                                 .own_statistics = s->join && s->join->config.n > 1};
    ABAR_TRY(abar_net_forward(s->net, &run, NULL));
    return s->join ? ABAR_OK : abar_optim_add_loss(s->optim, abar_net_loss(s->net));
}

/* watches: gradients are joined on the way, where they can be. */
static abar_status enqueue_backward(const abar__stepper *s, int64_t micro, bool observes, bool watches)
{
    const abar_observer observer = {sizeof observer, observe, s->optim};
    const abar__grad_watcher watcher = {abar__join_watch, s->join};
    watches = watches && s->join && abar__join_watches(s->join, micro);
    if (watches) abar__join_begin_watching(s->join, s);
    return abar__net_backward_watched(s->net, adds(s, micro), observes ? &observer : NULL, watches ? &watcher : NULL);
}

abar_status abar__stepper_enqueue_forward(const abar__stepper *s)
{
    ABAR_TRY(abar_optim_begin(s->optim));
    return enqueue_forward(s, 0);
}

abar_status abar__stepper_enqueue_backward(const abar__stepper *s, bool observes)
{
    return enqueue_backward(s, 0, observes, false);
}

abar_status abar__stepper_enqueue_update(const abar__stepper *s)
{
    const abar_step_config step = {.size = sizeof step, .clip = s->clip};
    ABAR_TRY(abar_optim_queue(s->optim, &step));
    return abar_net_settle(s->net, abar_optim_skip_flag(s->optim));
}

/* Up to where micro-batches are joined. */
static abar_status enqueue_passes(const abar__stepper *s)
{
    const bool observes = abar_optim_observes(s->optim);
    const abar_extra extra = abar_optim_extra(s->optim);
    ABAR_TRY(abar_optim_begin(s->optim));
    if (s->join) ABAR_TRY(abar__join_enqueue_begin(s->join, s));
    for (int64_t i = 0; i < s->accumulate; i++) {
        if (s->feed) ABAR_TRY(fill_queued(s, s->feed, row_of(s, i)));
        ABAR_TRY(enqueue_forward(s, i));
        ABAR_TRY(enqueue_backward(s, i, observes, true));
        if (extra == ABAR_EXTRA_DIFFERENCE) ABAR_TRY(add_difference(s, NULL, 0, i));
        if (extra == ABAR_EXTRA_ROWS) ABAR_TRY(add_rows(s, NULL, 0));
        if (s->join) ABAR_TRY(abar__join_enqueue_add(s->join, s, i));
    }
    return ABAR_OK;
}

abar_status abar__stepper_begin(const abar__stepper *s, abar__step_parts *parts)
{
    const abar_extra extra = abar_optim_extra(s->optim);
    const bool staged = s->join && s->join->staged, takes = abar_optim_observes(s->optim) || extra != ABAR_EXTRA_NONE;
    *parts = (abar__step_parts){.sampled = extra == ABAR_EXTRA_SAMPLED, .kind = takes + 2 * abar__optim_divides(s->optim)};
    if (staged) parts->cuts |= 1u << ABAR_STAGE_PASSES;
    if (abar__optim_meets(s->optim)) parts->cuts |= 1u << ABAR_STAGE_COMMIT;
    if (abar__zero_meets(s->optim)) parts->cuts |= 1u << ABAR_STAGE_UPDATE;
    if (staged && parts->sampled) parts->cuts |= 1u << ABAR_STAGE_SAMPLED;
    return s->join ? abar__join_plan(s->join, s) : ABAR_OK;
}

int abar__parts_last(const abar__step_parts *parts, int first)
{
    while (first < ABAR_STAGES - 1 && !abar__parts_meet(parts, first)) first++;
    return first;
}

static abar_status enqueue_stage(const abar__stepper *s, const abar__step_parts *parts, int stage)
{
    const abar_step_config step = {.size = sizeof step, .clip = s->clip};
    const abar__data_feed *f = s->feed;
    switch ((abar__step_stage)stage) {
    case ABAR_STAGE_PASSES:
        ABAR_TRY(enqueue_passes(s));
        return s->join && s->join->staged ? abar__join_send(s->join, s) : ABAR_OK;
    case ABAR_STAGE_COMMIT:
        if (s->join) ABAR_TRY(abar__join_take(s->join, s));
        return abar__optim_queue_first(s->optim, &step);
    case ABAR_STAGE_UPDATE: return abar__optim_queue_rest(s->optim);
    case ABAR_STAGE_SAMPLED:
        ABAR_TRY(abar__zero_take(s->optim));
        ABAR_TRY(abar_net_settle(s->net, abar_optim_skip_flag(s->optim)));
        if (!parts->sampled) return ABAR_OK;
        ABAR_TRY(sampled_passes(s, NULL, 0));
        return s->join && s->join->staged ? abar__join_extra_send(s->join, s) : ABAR_OK;
    case ABAR_STAGE_END:
    case ABAR_STAGES: break;
    }
    if (parts->sampled) ABAR_TRY(take_sampled(s));
    return f && f->resident ? f->ops->advance(f->dev, f->batches) : ABAR_OK;
}

abar_status abar__stepper_enqueue_part(const abar__stepper *s, const abar__step_parts *parts, int first, int last)
{
    for (int stage = first; stage <= last; stage++) ABAR_TRY(enqueue_stage(s, parts, stage));
    return ABAR_OK;
}

abar_status abar__stepper_meet(const abar__stepper *s, int last, abar_status status)
{
    if (last == ABAR_STAGE_PASSES) return abar__join_meet(s->join, status); /* all say there how they are */
    if (status == ABAR_OK)
        status = last == ABAR_STAGE_SAMPLED  ? abar__join_extra_meet(s->join)
                 : last == ABAR_STAGE_COMMIT ? abar__optim_meet(s->optim)
                                             : abar__zero_meet(s->optim);
    return abar__join_tell(s->join, status);
}

abar_status abar__stepper_enqueue(const abar__stepper *s)
{
    abar__step_parts parts;
    ABAR_TRY(abar__stepper_begin(s, &parts));
    for (int first = 0, last; first < ABAR_STAGES; first = last + 1) {
        last = abar__parts_last(&parts, first);
        abar_status status = abar__stepper_enqueue_part(s, &parts, first, last);
        if (abar__parts_meet(&parts, last)) status = abar__stepper_meet(s, last, status);
        ABAR_TRY(status);
    }
    return ABAR_OK;
}

static abar_status run_queued(const abar__stepper *s, const abar_batch *batch, int64_t k, double lr, abar__step_result *out)
{
    ABAR_TRY(abar_optim_rates(s->optim, k, &lr, 1));
    if (batch) ABAR_TRY(fill(s, s->feed, batch, 0));
    abar__stepper filled = *s;
    if (!batch) filled.feed = NULL;
    ABAR_TRY(abar__stepper_enqueue(&filled));
    ABAR_TRY(abar_device_wait(abar_net_input(s->net).dev));
    const abar_step_note note = *abar_optim_note(s->optim, k);
    out->skipped = note.skipped;
    out->loss = note.loss;
    abar_net_count_batches(s->net, note.skipped ? 0 : abar__stepper_passes(s));
    return ABAR_OK;
}

abar_status abar__stepper_run(const abar__stepper *s, const abar_batch *batch, int64_t k, double lr, abar__step_result *out)
{
    *out = (abar__step_result){0};
    if (abar_optim_is_queued(s->optim)) return run_queued(s, batch, k, lr, out);
    const abar_extra extra = abar_optim_extra(s->optim);
    ABAR_TRY(gradients(s, batch, k, out));
    if (out->skipped) {
        abar_optim_skip(s->optim);
    } else {
        abar_step_config step = {.size = sizeof step, .lr = lr, .clip = s->clip};
        abar_step_report report = {.size = sizeof report};
        double began = abar__seconds();
        ABAR_TRY(abar_optim_step(s->optim, &step, &report));
        out->skipped = report.skipped;
        if (extra == ABAR_EXTRA_SAMPLED && !out->skipped) {
            ABAR_TRY(sampled_passes(s, batch, k));
            ABAR_TRY(take_sampled(s));
        }
        if (abar_optim_wants_pass(s->optim)) ABAR_TRY(run_second(s, batch, k, &out->skipped));
        out->update_seconds = abar__seconds() - began;
    }
    if (out->skipped)
        abar_net_rollback(s->net);
    else
        abar_net_commit(s->net);
    return ABAR_OK;
}

/* The net's input as its first layer reads it: an image, or a vector. */
static abar_tensor first_input(const abar_net *net, const abar_layer *layer)
{
    abar_tensor input = abar_net_input(net);
    if (layer->weight.ndim == 4) return input;
    int64_t dim[2] = {input.dim[0], abar_tensor_count(&input) / input.dim[0]};
    return abar_tensor_wrap(input.dev, input.data, input.dtype, 2, dim);
}

static abar_status calibrate_layer(void *user, int index, const abar_layer *layer, const abar_layer_forward *forward)
{
    (void)layer;
    return abar_optim_wants_calibration(user, index) ? abar_optim_calibrate(user, index, &forward->input) : ABAR_OK;
}

/* Layers behind others see their inputs in a forward pass. */
static abar_status calibrate_all(const abar__stepper *s, int64_t micro)
{
    const abar_forward_observer observer = {sizeof observer, calibrate_layer, s->optim};
    const abar_run_config run = {.size = sizeof run,
                                 .training = true,
                                 .seed = s->seed,
                                 .sample0 = micro * s->micro,
                                 .observer = &observer,
                                 .hold_statistics = true};
    return abar_net_forward(s->net, &run, NULL);
}

bool abar__stepper_calibrates(const abar__stepper *s)
{
    for (int l = 0; l < abar_net_layer_count(s->net); l++)
        if (abar_optim_wants_calibration(s->optim, l)) return true;
    return false;
}

abar_status abar__stepper_calibrate(const abar__stepper *s, abar_loader *loader)
{
    bool wanted = false, deep = false;
    for (int l = 0; l < abar_net_layer_count(s->net); l++) {
        const bool wants = abar_optim_wants_calibration(s->optim, l);
        wanted = wanted || wants;
        deep = deep || (wants && !abar_net_layer(s->net, l)->reads_network_input);
    }
    if (!wanted) return ABAR_OK;
    const bool resident = is_queued(s->feed) && s->feed->resident;
    ABAR_TRY(abar_loader_seek(loader, 0, 0));
    if (resident) ABAR_TRY(abar__data_feed_seek(s->feed, loader, 0, 0));
    for (int64_t b = 0; b < abar_loader_batches(loader); b++) {
        abar_batch batch = {.size = sizeof batch};
        if (!resident) ABAR_TRY(abar_loader_next(loader, &batch));
        for (int64_t i = 0; i < s->accumulate; i++) {
            ABAR_TRY(resident ? fill_queued(s, s->feed, i * s->micro) : fill(s, s->feed, &batch, i * s->micro));
            if (deep) ABAR_TRY(calibrate_all(s, i));
            for (int l = 0; !deep && l < abar_net_layer_count(s->net); l++) {
                if (!abar_optim_wants_calibration(s->optim, l)) continue;
                abar_tensor input = first_input(s->net, abar_net_layer(s->net, l));
                ABAR_TRY(abar_optim_calibrate(s->optim, l, &input));
            }
        }
        if (resident) ABAR_TRY(s->feed->ops->advance(s->feed->dev, s->feed->batches));
    }
    return abar_optim_end_calibration(s->optim);
}

/* Statistics of batch b of an epoch, with the weights that the net has. */
static abar_status estimate_batch(const abar__stepper *s, abar_loader *loader, int64_t epoch, int64_t b)
{
    const bool resident = is_queued(s->feed) && s->feed->resident;
    abar_batch batch = {.size = sizeof batch};
    if (!resident) ABAR_TRY(abar_loader_next(loader, &batch));
    if (s->join) ABAR_TRY(abar__join_statistics_begin(s->join, s));
    for (int64_t i = 0; i < s->accumulate; i++) {
        const abar_run_config run = {.size = sizeof run,
                                     .training = true,
                                     .seed = s->seed,
                                     .step = epoch * abar_loader_batches(loader) + b,
                                     .sample0 = sample_of(s, i),
                                     .own_statistics = s->join != NULL};
        ABAR_TRY(resident ? fill_queued(s, s->feed, row_of(s, i)) : fill(s, s->feed, &batch, i * s->micro));
        ABAR_TRY(abar_net_forward(s->net, &run, NULL));
        if (s->join) ABAR_TRY(abar__join_statistics_add(s->join, s, i));
    }
    return ABAR_OK;
}

abar_status abar__stepper_estimate(const abar__stepper *s, abar_loader *loader, int64_t epoch, int64_t n)
{
    const bool resident = is_queued(s->feed) && s->feed->resident;
    abar_comm *comm = s->join ? s->join->config.comm : NULL;
    abar_status status = abar_loader_seek(loader, epoch, 0);
    if (status == ABAR_OK && resident) status = abar__data_feed_seek(s->feed, loader, epoch, 0);
    for (int64_t b = 0; b < n; b++) {
        if (status == ABAR_OK) status = estimate_batch(s, loader, epoch, b);
        ABAR_TRY(abar_ranks_agree(s->ctx, comm, status, NULL)); /* a rank that cannot read its data tells the others */
        if (s->join) ABAR_TRY(abar__join_statistics_end(s->join, s, ABAR_OK));
        if (resident) status = s->feed->ops->advance(s->feed->dev, s->feed->batches);
    }
    return status;
}

static abar_status infer(const abar__stepper *s, const abar__data_feed *f, const abar_batch *batch, abar_loss *out)
{
    *out = (abar_loss){0};
    if (batch->count == 0) return ABAR_OK; /* of images that could not be read */
    ABAR_TRY(fill(s, f, batch, 0));
    abar_run_config run = {.size = sizeof run, .valid = batch->count};
    return abar_net_forward(s->net, &run, out);
}

abar_status abar__stepper_infer(const abar__stepper *s, const abar_batch *batch, abar_loss *out)
{
    return infer(s, s->feed, batch, out);
}

/* Batch i of the test part, from its feed or its loader. Batches of the two parts may differ in size. */
static abar_status test_batch(const abar__stepper *s, abar_loader *loader, abar__data_feed *feed, int64_t i, abar_loss *out)
{
    abar_batch batch = {.size = sizeof batch};
    if (!feed || !feed->resident) {
        ABAR_TRY(abar_loader_next(loader, &batch));
        return infer(s, feed ? feed : s->feed, &batch, out);
    }
    const int64_t left = abar_loader_samples(loader) - i * s->micro;
    abar_run_config run = {.size = sizeof run, .valid = left < s->micro ? left : s->micro};
    ABAR_TRY(fill_queued(s, feed, 0));
    ABAR_TRY(feed->ops->advance(feed->dev, feed->batches));
    return abar_net_forward(s->net, &run, out);
}

/* The batches of this rank. It looks at stop when all ranks do: in the end. */
static abar_status test_own(const abar__stepper *s, abar_loader *loader, abar__data_feed *feed)
{
    int64_t first;
    const int64_t n = abar__join_tests(s->join, &first);
    ABAR_TRY(abar_loader_seek(loader, 0, first));
    if (feed) ABAR_TRY(abar__data_feed_seek(feed, loader, 0, first));
    for (int64_t i = 0; i < n; i++) {
        abar_loss loss;
        ABAR_TRY(test_batch(s, loader, feed, first + i, &loss));
        abar__join_test_add(s->join, i, &loss);
    }
    return ABAR_OK;
}

abar_status abar__stepper_test(const abar__stepper *s, abar_loader *loader, abar__data_feed *feed, const atomic_bool *stop,
                               abar_loss *out)
{
    *out = (abar_loss){0};
    double sum = 0.0;
    if (s->join && s->join->ranks > 1) return abar__join_tests_end(s->join, test_own(s, loader, feed), out);
    ABAR_TRY(abar_loader_seek(loader, 0, 0));
    if (feed) ABAR_TRY(abar__data_feed_seek(feed, loader, 0, 0));
    for (int64_t i = 0; i < abar_loader_batches(loader); i++) {
        if (stop && atomic_load(stop)) return ABAR_STOPPED;
        abar_loss loss;
        ABAR_TRY(test_batch(s, loader, feed, i, &loss));
        sum += loss.loss * (double)loss.count;
        out->correct += loss.correct;
        out->count += loss.count;
    }
    out->loss = sum / (double)out->count;
    return ABAR_OK;
}
