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
    return abar__round_up((size_t)p->out * abar_dtype_size(dev->ops->dtype), ABAR_ALIGN);
}

size_t abar__look_bytes(const abar_device *dev, const abar__plan *plans, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += product_bytes(dev, &plans[i]);
    return bytes;
}

/* The maps of an item from its first on, at out; their number, 0 where the item is not wholly made of such. */
static int cut(abar__compiled_step *s, const abar__update_item *item, abar__update_item *out)
{
    int n = 0;
    int64_t left = item->count;
    for (int m = item->map; m >= 0 && m < s->desc.n_maps && left > 0; m++) {
        const abar__plan *p = &s->plans[m];
        abar__treated_map *map = &s->maps[m];
        if (!takes_products(p) || !map->grad) return 0;
        out[n++] = (abar__update_item){.grad = map->grad,
                                       .count = p->out * p->columns,
                                       .rows = p->out,
                                       .pre = &map->look,
                                       .products = map->row_products,
                                       .bias = map->bias};
        left -= p->out * p->columns;
    }
    return left == 0 ? n : 0;
}

void abar__look_bind(const abar_device *dev, abar__compiled_step *s)
{
    char *at = s->row_products;
    for (int i = 0; i < s->desc.n_maps; i++) {
        s->maps[i].row_products = at;
        at += product_bytes(dev, &s->plans[i]);
    }
    s->n_looks = 0;
    for (int i = 0; i < s->desc.n_items; i++) {
        const int n = cut(s, &s->desc.items[i], s->looks + s->n_looks);
        if (n == 0) s->looks[s->n_looks] = s->desc.items[i];
        s->n_looks += n > 0 ? n : 1;
    }
}

bool abar__look(abar_device *dev, abar__compiled_step *s, double *norm)
{
    const bool stays = !s->scalars.inside; /* the gradient that is preconditioned is the one that is read here */
    for (int i = 0; i < s->desc.n_maps; i++) {
        abar__treated_map *map = &s->maps[i];
        map->known = stays && takes_products(&s->plans[i]) && map->grad && s->states[i].count[ABAR_COUNT_READY];
        map->look.right = map->known ? abar__plan_data(&s->plans[i], s->plans[i].apply.u) : NULL;
    }
    return dev->ops->norm(dev, s->looks, s->n_looks, norm);
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
