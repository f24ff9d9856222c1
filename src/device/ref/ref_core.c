/* The "ref" device: plain C in double precision, one readable loop per operation. The oracle for the other back ends.
 * Update rules: methods.md section 8. */
#include "device/device_impl.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <stdio.h>

static abar_status ref_open(abar_device *dev)
{
    dev->threads = 1;
    snprintf(dev->description, sizeof dev->description, "ref: plain C, double precision");
    return ABAR_OK;
}

static void ref_close(abar_device *dev) { (void)dev; }

static abar_status ref_alloc(abar_device *dev, size_t bytes, void **out) { return abar__alloc(dev->ctx, bytes, out); }

static void ref_release(abar_device *dev, void *memory, size_t bytes) { abar__free(dev->ctx, memory, bytes); }

static abar_status ref_copy(abar_device *dev, const abar_tensor *dst, const abar_tensor *src)
{
    (void)dev;
    abar__tensor_copy_host(dst, src);
    return ABAR_OK;
}

static double ref_sum_squares(abar_device *dev, const abar__update_item *items, int n)
{
    (void)dev;
    double sum = 0.0;
    for (int k = 0; k < n; k++) {
        const double *grad = items[k].grad;
        for (int64_t i = 0; i < items[k].count; i++) sum += grad[i] * grad[i];
    }
    return sum;
}

static void sgd_item(const abar__update_item *item, const abar__update_scalars *s)
{
    double *weight = item->weight, *velocity = item->state[0];
    const double *grad = item->grad;
    double lr = s->lr * item->lr_scale;
    for (int64_t i = 0; i < item->count; i++) {
        double g = s->grad_scale * grad[i], w = weight[i];
        if (s->decoupled)
            w *= 1.0 - lr * item->weight_decay;
        else
            g += item->weight_decay * w;
        double step = g;
        if (velocity) {
            velocity[i] = s->momentum * velocity[i] + g;
            step = s->nesterov ? g + s->momentum * velocity[i] : velocity[i];
        }
        weight[i] = w - lr * step;
    }
}

static void ref_sgd(abar_device *dev, const abar__update_item *items, int n, const abar__update_scalars *s)
{
    (void)dev;
    for (int k = 0; k < n; k++) sgd_item(&items[k], s);
}

static void adamw_item(const abar__update_item *item, const abar__update_scalars *s)
{
    double *weight = item->weight, *first = item->state[0], *second = item->state[1];
    const double *grad = item->grad;
    double lr = s->lr * item->lr_scale;
    double correction1 = 1.0 - pow(s->beta1, (double)s->t), correction2 = 1.0 - pow(s->beta2, (double)s->t);
    for (int64_t i = 0; i < item->count; i++) {
        double g = s->grad_scale * grad[i];
        first[i] = s->beta1 * first[i] + (1.0 - s->beta1) * g;
        second[i] = s->beta2 * second[i] + (1.0 - s->beta2) * g * g;
        double step = first[i] / correction1 / (sqrt(second[i] / correction2) + s->eps);
        weight[i] = (1.0 - lr * item->weight_decay) * weight[i] - lr * step;
    }
}

static void ref_adamw(abar_device *dev, const abar__update_item *items, int n, const abar__update_scalars *s)
{
    (void)dev;
    for (int k = 0; k < n; k++) adamw_item(&items[k], s);
}

const abar_device_ops abar__ref_device = {
    .name = "ref",
    .dtype = ABAR_F64,
    .open = ref_open,
    .close = ref_close,
    .alloc = ref_alloc,
    .release = ref_release,
    .copy = ref_copy,
    .sum_squares = ref_sum_squares,
    .sgd = ref_sgd,
    .adamw = ref_adamw,
};
