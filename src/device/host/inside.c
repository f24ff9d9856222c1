/* G <- G + lambda W (methods.md section 8), on ref and cpu. */
#include "device/host/inside.h"

static void add_f64(const abar__update_item *item, double share)
{
    const double *weight = item->weight;
    double *grad = item->grad;
    for (int64_t i = 0; i < item->count; i++) grad[i] += share * weight[i];
}

static void add_f32(const abar__update_item *item, float share)
{
    const float *weight = item->weight;
    float *grad = item->grad;
    for (int64_t i = 0; i < item->count; i++) grad[i] += share * weight[i];
}

void abar__decay_inside(const abar_device *dev, const abar__update_item *items, int n, double scale)
{
    for (int i = 0; i < n; i++) {
        const double share = items[i].weight_decay / scale;
        if (share == 0.0) continue;
        if (dev->ops->dtype == ABAR_F64)
            add_f64(&items[i], share);
        else
            add_f32(&items[i], (float)share);
    }
}
