/* Rules that average (Schedule-Free AdamW, optimizers.md section 4) take gradients at other weights (y) than are tested and
 * exported (x). Between steps the net is given x: y waits in the memory of the gradients, which the next step overwrites. The
 * running statistics of batch norms belong to y; those of x are estimated from training batches, are provisional, and are not
 * kept. */
#include "train/train_impl.h"

#define BATCHES 50 /* that estimate running statistics */

/* Whether x and y differ: after the first step. */
static bool is_apart(const abar_trainer *t) { return t->setup->rule->averages && t->at.epoch * t->steps + t->at.step > 0; }

/* From the first batches of the current epoch. The loader then goes on where the run does. */
static abar_status estimate(abar_trainer *t)
{
    const int64_t n = t->steps < BATCHES ? t->steps : BATCHES, next = t->at.epoch * t->steps + t->at.step;
    const abar_status status = abar__stepper_estimate(&t->stepper, t->train, t->at.epoch, n);
    ABAR_TRY(abar_loader_seek(t->train, next / t->steps, next % t->steps));
    return status;
}

abar_status abar__tested_enter(abar_trainer *t)
{
    const abar__net_blocks b = abar__net_blocks_of(t->net);
    if (!is_apart(t)) return ABAR_OK;
    ABAR_TRY(abar__device_copy(t->dev, b.grads, b.values, b.value_bytes));
    /* the state dict with provisional statistics */
    t->tested = (abar__ema){
        .ctx = t->ctx, .dev = t->dev, .net = t->net, .blocks = b, .values = b.values, .running = b.pending, .swapped = true};
    ABAR_TRY(abar_optim_average(t->optim));
    ABAR_TRY(abar_net_weights_changed(t->net));
    return b.running_bytes > 0 ? estimate(t) : ABAR_OK;
}

abar_status abar__tested_leave(abar_trainer *t)
{
    const abar__net_blocks b = t->tested.blocks;
    if (!t->tested.swapped) return ABAR_OK;
    t->tested = (abar__ema){0};
    ABAR_TRY(abar__device_copy(t->dev, b.values, b.grads, b.value_bytes));
    abar_net_rollback(t->net);
    return abar_net_weights_changed(t->net);
}
