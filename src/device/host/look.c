/* What check reads: all gradients, for their norm, before anything is written. Of maps that a vector u treats, G - (G u) uT, G
 * u is taken in the same reading, so that the passes need not read a row before they update it. And decay inside of gradients
 * (methods.md section 8), on ref and cpu. */
#include "device/host/look.h"

static bool takes_products(const abar__plan *p)
{
    return !abar__plan_is_dense(p) && !abar__plan_is_natural(p) && p->apply.u >= 0 && p->apply.w < 0;
}

static size_t product_bytes(const abar_device *dev, const abar__plan *p)
{
    if (!takes_products(p)) return 0;
    return abar__round_up((size_t)p->out * abar_dtype_size(dev->ops->dtype), sizeof(double));
}

size_t abar__look_bytes(const abar_device *dev, const abar__plan *plans, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += product_bytes(dev, &plans[i]);
    return bytes;
}

/* The maps that an item is made of, from its first on; false where it is not wholly made of such whose products are taken. */
static bool is_made_of_maps(const abar_device *dev, const abar__compiled_step *s, const abar__update_item *item, int *end)
{
    const char *at = item->grad;
    int64_t left = item->count;
    int m = item->map;
    for (; m < s->desc.n_maps && left > 0; m++) {
        const int64_t count = s->plans[m].out * s->plans[m].columns;
        if (!takes_products(&s->plans[m]) || s->maps[m].grad != at) return false;
        at += (size_t)count * abar_dtype_size(dev->ops->dtype);
        left -= count;
    }
    *end = m;
    return left == 0;
}

void abar__look_bind(const abar_device *dev, abar__compiled_step *s)
{
    char *at = s->row_products;
    for (int i = 0; i < s->desc.n_maps; i++) {
        s->looks[i] = (abar__row_look){.bias = s->maps[i].bias_grad, .products = at};
        at += product_bytes(dev, &s->plans[i]);
    }
    for (int i = 0, end; i < s->desc.n_items; i++) {
        const int first = s->desc.items[i].map;
        if (first < 0 || !is_made_of_maps(dev, s, &s->desc.items[i], &end)) continue;
        for (int m = first; m < end; m++) {
            s->looks[m].rows = s->plans[m].out;
            s->looks[m].columns = s->plans[m].columns;
        }
    }
}

bool abar__look(abar_device *dev, abar__compiled_step *s, double *norm)
{
    const bool stays = !s->scalars.inside; /* the gradient that is preconditioned is the one that is read here */
    for (int i = 0; i < s->desc.n_maps; i++) {
        const abar__plan *p = &s->plans[i];
        const bool treated = stays && s->looks[i].rows > 0 && s->states[i].count[ABAR_COUNT_READY];
        s->looks[i].right = treated ? abar__plan_data(p, p->apply.u) : NULL;
    }
    return dev->ops->norm(dev, s->desc.items, s->desc.n_items, s->looks, norm);
}

/* ---- G <- G + lambda W ------------------------------------------------------------------------------------------ */

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
