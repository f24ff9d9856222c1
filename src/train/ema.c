/* The running average of a net's weights: e = d e + (1 - d) w over parameters and running statistics, counters copied, as
 * torchvision's --model-ema computes it. Updates are enqueued behind the step and allocate nothing. The gradients' memory is
 * their scratch: a step has used its gradients, and the next one overwrites them. */
#include "device/device_impl.h"
#include "train/train_impl.h"

double abar__ema_decay(const abar_train_config *train)
{
    const double alpha =
        (1.0 - train->ema) * (double)train->batch * (double)train->ema_steps / (double)train->epochs; /* of the new value */
    return alpha < 1.0 ? 1.0 - alpha : 0.0;
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

size_t abar__ema_bytes(const abar_net *net)
{
    const abar__net_blocks b = abar__net_blocks_of(net);
    return b.value_bytes + b.running_bytes;
}

abar_status abar__ema_create(abar_context *ctx, abar_device *dev, abar_net *net, abar__ema *out)
{
    *out = (abar__ema){.ctx = ctx, .dev = dev, .net = net, .blocks = abar__net_blocks_of(net)};
    if (!out->blocks.grads || out->blocks.value_bytes == 0)
        return abar__fail(ctx, ABAR_E_STATE, "--ema: the network has no gradients, average one that is trained");
    out->count_bytes = (size_t)abar_net_tensor_count(net) * sizeof *out->counts;
    ABAR_TRY(abar_device_alloc(dev, out->blocks.value_bytes, &out->values));
    ABAR_TRY(abar_device_alloc(dev, out->blocks.running_bytes, &out->running));
    ABAR_TRY(abar__alloc(ctx, out->count_bytes, (void **)&out->counts));
    return ABAR_OK;
}

void abar__ema_release(abar__ema *e)
{
    if (!e->net) return;
    abar_device_free(e->dev, e->values, e->blocks.value_bytes);
    abar_device_free(e->dev, e->running, e->blocks.running_bytes);
    abar__free(e->ctx, e->counts, e->count_bytes);
    *e = (abar__ema){0};
}

void abar__ema_tensor(const abar__ema *e, int i, const char **name, abar_tensor *out)
{
    const abar__net_blocks *b = &e->blocks;
    abar_net_tensor(e->net, i, name, out);
    const char *data = out->data;
    if (out->dtype == ABAR_I64 && !e->counts) return;
    if (out->dtype == ABAR_I64)
        out->data = &e->counts[i];
    else if (data >= (char *)b->values && data < (char *)b->values + b->value_bytes)
        out->data = (char *)e->values + (data - (char *)b->values);
    else
        out->data = (char *)e->running + (data - (char *)b->running);
}

/* ---- updating ------------------------------------------------------------------------------------------------- */

/* torchvision copies the weights in warm-up epochs, and at the first update after them. */
bool abar__ema_copies(const abar_train_config *train, int64_t epoch, int64_t step)
{
    const bool first = epoch == 0 || (double)(epoch - 1) < train->warmup;
    return (double)epoch < train->warmup || (first && step == 0);
}

/* In pieces that fit the gradients. */
static abar_status average(abar__ema *e, void *to, void *from, size_t bytes, double decay)
{
    const size_t element = abar_dtype_size(e->dev->ops->dtype);
    for (size_t at = 0; at < bytes;) {
        const size_t piece = bytes - at < e->blocks.value_bytes ? bytes - at : e->blocks.value_bytes;
        ABAR_TRY(abar__device_copy(e->dev, e->blocks.grads, (char *)from + at, piece)); /* commit clears what it adds */
        e->dev->ops->stats->commit(e->dev, (int64_t)(piece / element), false, (char *)to + at, e->blocks.grads, decay,
                                   1.0 - decay);
        at += piece;
    }
    return ABAR_OK;
}

abar_status abar__ema_update(abar__ema *e, double decay)
{
    ABAR_TRY(average(e, e->values, e->blocks.values, e->blocks.value_bytes, decay));
    return average(e, e->running, e->blocks.running, e->blocks.running_bytes, decay);
}

abar_status abar__ema_copy(abar__ema *e)
{
    ABAR_TRY(abar__device_copy(e->dev, e->values, e->blocks.values, e->blocks.value_bytes));
    return abar__device_copy(e->dev, e->running, e->blocks.running, e->blocks.running_bytes);
}

void abar__ema_count(abar__ema *e)
{
    for (int i = 0; i < abar_net_tensor_count(e->net); i++) {
        const char *name;
        abar_tensor t;
        abar_net_tensor(e->net, i, &name, &t);
        if (t.dtype == ABAR_I64) e->counts[i] = *(const int64_t *)t.data;
    }
}

/* ---- testing -------------------------------------------------------------------------------------------------- */

abar_status abar__ema_swap_in(abar__ema *e)
{
    const abar__net_blocks *b = &e->blocks;
    ABAR_TRY(abar__device_copy(e->dev, b->grads, b->values, b->value_bytes));
    e->swapped = true;
    ABAR_TRY(abar__device_copy(e->dev, b->values, e->values, b->value_bytes));
    ABAR_TRY(abar__device_copy(e->dev, b->pending, e->running, b->running_bytes));
    return abar_net_weights_changed(e->net);
}

abar_status abar__ema_swap_out(abar__ema *e)
{
    if (!e->swapped) return ABAR_OK;
    e->swapped = false;
    ABAR_TRY(abar__device_copy(e->dev, e->blocks.values, e->blocks.grads, e->blocks.value_bytes));
    abar_net_rollback(e->net); /* pending becomes running again */
    return abar_net_weights_changed(e->net);
}
