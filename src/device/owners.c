/* Refreshes by owners: owners.h says how they are divided. */
#include "device/owners.h"

#include "device/step_rules.h"

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

/* Hands out the memory, or only counts it. */
static size_t place(abar__owned *o, char *base)
{
    const size_t maps = (size_t)o->maps;
    const abar__piece pieces[] = {
        {&o->due, maps * sizeof *o->due}, {&o->owner, maps * sizeof *o->owner}, {&o->load, (size_t)o->ranks * sizeof *o->load}};
    return abar__hand_out(pieces, (int)(sizeof pieces / sizeof *pieces), base);
}

abar_status abar__owned_make(abar_device *dev, const abar__owners *ranks, int maps, abar__owned **out)
{
    const size_t own = abar__round_up(sizeof **out, ABAR_ALIGN);
    abar__owned o = {.rank = ranks->rank, .ranks = ranks->ranks, .maps = maps};
    void *memory;
    *out = NULL;
    if (!abar__owners_divide(ranks)) return ABAR_OK;
    o.bytes = own + place(&o, NULL);
    ABAR_TRY(abar__alloc(dev->ctx, o.bytes, &memory));
    place(&o, (char *)memory + own);
    *out = memory;
    **out = o;
    return ABAR_OK;
}

void abar__owned_release(abar_device *dev, abar__owned *o)
{
    if (o) abar__free(dev->ctx, o, o->bytes);
}

/* ---- owners ------------------------------------------------------------------------------------------------------------- */

static double cost(const abar__plan *p)
{
    double sum = 0.0;
    for (int i = 0; i < p->n_derived; i++) {
        const abar__derived_tensor *d = &p->derived[i];
        const double n = abar__derived_is_renewed(d) ? (double)p->average[d->average].n : 0.0;
        sum += n * n * n;
    }
    return sum;
}

bool abar__owned_divides(const abar__owned *o, const abar__plan *plan) { return o && cost(plan) > 0.0; }

void abar__owned_assign(abar__owned *o, const abar__plan *plans)
{
    for (int r = 0; r < o->ranks; r++) o->load[r] = 0.0;
    for (int i = 0; i < o->n_due; i++) o->owner[i] = -1;
    for (int taken = 0; taken < o->n_due; taken++) {
        int next = -1, least = 0;
        for (int i = 0; i < o->n_due; i++)
            if (o->owner[i] < 0 && (next < 0 || cost(&plans[o->due[i]]) > cost(&plans[o->due[next]]))) next = i;
        for (int r = 1; r < o->ranks; r++)
            if (o->load[r] < o->load[least]) least = r;
        o->owner[next] = least;
        o->load[least] += cost(&plans[o->due[next]]);
    }
}
