/* Refreshes that ranks divide on the device (device/owners.h): which inverses another rank makes, and what it sends of them.
 * Owners are given once, as if all maps were due: they are, in the steps that are divided. */
#include "device/cuda/step/tables.h"

static abar__cuda_map *map_of(const abar__compiled_step *p, int i) { return host_side(p, p->m.maps) + i; }

extern "C" abar_status abar__cuda_give_owners(abar_device *dev, abar__compiled_step *p, const abar__owners *owners)
{
    abar__plan *plans;
    const size_t bytes = (size_t)p->m.n * sizeof *plans;
    abar__owned_release(dev, p->owned);
    for (int i = 0; i < p->m.n; i++) map_of(p, i)->elsewhere = 0;
    ABAR_TRY(abar__owned_make(dev, owners, p->m.n, &p->owned));
    if (!p->owned) return ABAR_OK;
    ABAR_TRY(abar__alloc(dev->ctx, bytes, (void **)&plans));
    for (int i = 0; i < p->m.n; i++) {
        plans[i] = map_of(p, i)->plan;
        if (map_of(p, i)->factor[0] >= 0) p->owned->due[p->owned->n_due++] = i;
    }
    abar__owned_assign(p->owned, plans);
    abar__free(dev->ctx, plans, bytes);
    for (int k = 0; k < p->owned->n_due; k++) map_of(p, p->owned->due[k])->elsewhere = p->owned->owner[k] != p->owned->rank;
    return ABAR_OK;
}

/* Of a map: what became of its inversions, which lie one behind the other, and the matrices with their eigenvalues. The rest
 * every rank derives from its own averages. */
static abar_status visit_map(const abar__compiled_step *p, const abar__cuda_map *map, int owner, abar__piece_visitor visit,
                             void *user)
{
    const int n = map->factor[1] >= 0 ? 2 : 1;
    ABAR_TRY(visit(user, owner, p->m.asked + map->factor[0], (size_t)n * sizeof *p->m.asked));
    for (int i = 0; i < n; i++) {
        const abar__cuda_factor *f = &p->factors[map->factor[i]];
        ABAR_TRY(visit(user, owner, f->inverse, (size_t)(f->d * f->d) * sizeof(float)));
        if (f->values) ABAR_TRY(visit(user, owner, f->values, (size_t)f->d * sizeof(float)));
    }
    return ABAR_OK;
}

/* The same in every step that is divided, whether or not a map was due. */
extern "C" abar_status abar__cuda_visit_derived(abar_device *dev, abar__compiled_step *p, bool all, abar__piece_visitor visit,
                                                void *user)
{
    (void)dev, (void)all;
    for (int k = 0; p->owned && k < p->owned->n_due; k++)
        ABAR_TRY(visit_map(p, map_of(p, p->owned->due[k]), p->owned->owner[k], visit, user));
    return ABAR_OK;
}
