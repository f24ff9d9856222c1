/* One training step, top to bottom: normalise, forward, backward, update, and what happens when numbers go wrong
 * (methods.md section 9). Nothing here allocates. */
#include "train/train_impl.h"

#include <math.h>
#include <string.h>
#include <time.h>

double abar__seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Samples first .. first + micro of the batch into the net's input and target. */
static abar_status fill(const abar__stepper *s, const abar_batch *batch, int64_t first)
{
    int64_t image = s->info->channels * s->info->height * s->info->width;
    abar_batch part = *batch;
    part.images += first * image;
    part.labels += first;
    abar_tensor input = abar_net_input(s->net), target = abar_net_target(s->net);
    ABAR_TRY(abar_batch_normalise(s->ctx, s->info, &part, s->micro, &input));
    abar_tensor labels = abar_tensor_wrap(NULL, (void *)(uintptr_t)part.labels, ABAR_I32, 1, (int64_t[]){s->micro});
    return abar_tensor_copy(s->ctx, &target, &labels);
}

/* Gradients carry loss_scale: with it they are those of the global batch mean already. */
static abar_status observe(void *user, int index, const abar_layer *layer) { return abar_optim_observe(user, index, layer); }

/* Forward and backward over all micro-batches; the gradients then are those of the mean over the whole batch. */
static abar_status gradients(const abar__stepper *s, const abar_batch *batch, int64_t k, abar__step_result *out)
{
    double sum = 0.0;
    const bool observes = abar_optim_observes(s->optim);
    const abar_observer observer = {observe, s->optim};
    for (int64_t i = 0; i < s->accumulate; i++) {
        if (batch) ABAR_TRY(fill(s, batch, i * s->micro));
        abar_run_config run = {.size = sizeof run,
                               .training = true,
                               .seed = s->seed,
                               .step = k,
                               .sample0 = i * s->micro,
                               .loss_scale = 1.0 / (double)s->accumulate};
        abar_loss loss;
        double began = abar__seconds();
        ABAR_TRY(abar_net_forward(s->net, &run, &loss));
        double turned = abar__seconds();
        out->forward_seconds += turned - began;
        out->skipped = !isfinite(loss.loss);
        if (out->skipped) return ABAR_OK;
        ABAR_TRY(abar_net_backward(s->net, i > 0, observes ? &observer : NULL));
        out->backward_seconds += abar__seconds() - turned;
        sum += loss.loss * (double)loss.count;
        out->loss.correct += loss.correct;
        out->loss.count += loss.count;
    }
    out->loss.loss = sum / (double)out->loss.count;
    return ABAR_OK;
}

abar_status abar__stepper_run(const abar__stepper *s, const abar_batch *batch, int64_t k, double lr, abar__step_result *out)
{
    *out = (abar__step_result){0};
    ABAR_TRY(gradients(s, batch, k, out));
    if (out->skipped) {
        abar_optim_skip(s->optim);
    } else {
        abar_step_config step = {.size = sizeof step, .lr = lr, .clip = s->clip};
        abar_step_report report;
        double began = abar__seconds();
        ABAR_TRY(abar_optim_step(s->optim, &step, &report));
        out->update_seconds = abar__seconds() - began;
        out->skipped = report.skipped;
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

abar_status abar__stepper_calibrate(const abar__stepper *s, abar_loader *loader)
{
    bool wanted = false;
    for (int l = 0; l < abar_net_layer_count(s->net); l++) wanted = wanted || abar_optim_wants_calibration(s->optim, l);
    if (!wanted) return ABAR_OK;
    ABAR_TRY(abar_loader_seek(loader, 0, 0));
    for (int64_t b = 0; b < abar_loader_batches(loader); b++) {
        abar_batch batch;
        ABAR_TRY(abar_loader_next(loader, &batch));
        for (int64_t i = 0; i < s->accumulate; i++) {
            ABAR_TRY(fill(s, &batch, i * s->micro));
            for (int l = 0; l < abar_net_layer_count(s->net); l++) {
                if (!abar_optim_wants_calibration(s->optim, l)) continue;
                abar_tensor input = first_input(s->net, abar_net_layer(s->net, l));
                ABAR_TRY(abar_optim_calibrate(s->optim, l, &input));
            }
        }
    }
    return abar_optim_end_calibration(s->optim);
}

abar_status abar__stepper_infer(const abar__stepper *s, const abar_batch *batch, abar_loss *out)
{
    ABAR_TRY(fill(s, batch, 0));
    abar_run_config run = {.size = sizeof run, .valid = batch->count};
    return abar_net_forward(s->net, &run, out);
}

abar_status abar__stepper_test(const abar__stepper *s, abar_loader *loader, const atomic_bool *stop, abar_loss *out)
{
    *out = (abar_loss){0};
    double sum = 0.0;
    ABAR_TRY(abar_loader_seek(loader, 0, 0));
    for (int64_t i = 0; i < abar_loader_batches(loader); i++) {
        if (stop && atomic_load(stop)) return ABAR_STOPPED;
        abar_batch batch;
        abar_loss loss;
        ABAR_TRY(abar_loader_next(loader, &batch));
        ABAR_TRY(abar__stepper_infer(s, &batch, &loss));
        sum += loss.loss * (double)loss.count;
        out->correct += loss.correct;
        out->count += loss.count;
    }
    out->loss = sum / (double)out->count;
    return ABAR_OK;
}
