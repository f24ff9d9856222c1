/* Refreshes by owners: owners.h says how they are divided. States of maps travel first, together; then the tensors where they
 * are in memory, in each round one of every rank. */
#include "device/host/owners.h"

#include "device/host/derive.h"

#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

/* Hands out the memory, or only counts it. */
static size_t place(abar__owned *o, char *base)
{
    const size_t maps = (size_t)o->maps, ranks = (size_t)o->ranks.ranks;
    const abar__piece pieces[] = {{&o->due, maps * sizeof *o->due},       {&o->owner, maps * sizeof *o->owner},
                                  {&o->load, ranks * sizeof *o->load},    {&o->at, ranks * sizeof *o->at},
                                  {&o->part, ranks * sizeof *o->part},    {&o->recv, ranks * sizeof *o->recv},
                                  {&o->states, maps * sizeof *o->states}, {&o->recv_bytes, ranks * sizeof *o->recv_bytes}};
    return abar__hand_out(pieces, (int)(sizeof pieces / sizeof *pieces), base);
}

abar_status abar__owned_make(abar_device *dev, const abar__owners *ranks, int maps, abar__owned **out)
{
    const size_t own = abar__round_up(sizeof **out, ABAR_ALIGN);
    abar__owned o = {.ranks = *ranks, .maps = maps};
    void *memory;
    *out = NULL;
    if (ranks->ranks <= 1) return ABAR_OK;
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
        const double n = abar__is_renewed_matrix(d) ? (double)p->average[d->average].n : 0.0;
        sum += n * n * n;
    }
    return sum;
}

bool abar__owned_divides(const abar__owned *o, const abar__plan *plan) { return o && cost(plan) > 0.0; }

void abar__owned_assign(abar__owned *o, const abar__plan *plans)
{
    for (int r = 0; r < o->ranks.ranks; r++) o->load[r] = 0.0;
    for (int i = 0; i < o->n_due; i++) o->owner[i] = -1;
    for (int taken = 0; taken < o->n_due; taken++) {
        int next = -1, least = 0;
        for (int i = 0; i < o->n_due; i++)
            if (o->owner[i] < 0 && (next < 0 || cost(&plans[o->due[i]]) > cost(&plans[o->due[next]]))) next = i;
        for (int r = 1; r < o->ranks.ranks; r++)
            if (o->load[r] < o->load[least]) least = r;
        o->owner[next] = least;
        o->load[least] += cost(&plans[o->due[next]]);
    }
}

/* ---- exchanging --------------------------------------------------------------------------------------------------------- */

static abar_status exchange(abar__owned *o, const void *own, size_t bytes)
{
    return o->ranks.gather(o->ranks.comm, own, bytes, o->recv, o->recv_bytes);
}

static abar_status gather_states(abar__owned *o, abar__map_state *states)
{
    int n = 0;
    for (int r = 0; r < o->ranks.ranks; r++) {
        const int first = n;
        o->recv[r] = &o->states[n];
        for (int i = 0; i < o->n_due; i++)
            if (o->owner[i] == r) o->states[n++] = states[o->due[i]];
        o->recv_bytes[r] = (size_t)(n - first) * sizeof *states;
    }
    ABAR_TRY(exchange(o, o->recv[o->ranks.rank], o->recv_bytes[o->ranks.rank]));
    n = 0;
    for (int r = 0; r < o->ranks.ranks; r++)
        for (int i = 0; i < o->n_due; i++)
            if (o->owner[i] == r) states[o->due[i]] = o->states[n++];
    return ABAR_OK;
}

/* The next tensor of rank r's maps, and its bytes; 0: there is none. */
static void next_tensor(abar_device *dev, abar__owned *o, const abar__plan *plans, int r)
{
    o->recv[r] = NULL;
    o->recv_bytes[r] = 0;
    for (; o->at[r] < o->n_due; o->at[r]++, o->part[r] = 0) {
        const abar__plan *p = &plans[o->due[o->at[r]]];
        if (o->owner[o->at[r]] != r) continue;
        while (o->part[r] < p->n_derived) {
            const abar__derived_tensor *d = &p->derived[o->part[r]++];
            if (!abar__is_renewed(p, d)) continue;
            o->recv[r] = d->data;
            o->recv_bytes[r] = (size_t)d->n * abar_dtype_size(abar__derived_dtype(p, d, dev->ops->dtype));
            return;
        }
    }
}

abar_status abar__owned_gather(abar_device *dev, abar__owned *o, const abar__plan *plans, abar__map_state *states)
{
    ABAR_TRY(gather_states(o, states));
    for (int r = 0; r < o->ranks.ranks; r++) o->at[r] = o->part[r] = 0;
    for (;;) {
        bool any = false;
        for (int r = 0; r < o->ranks.ranks; r++) {
            next_tensor(dev, o, plans, r);
            any = any || o->recv_bytes[r] > 0;
        }
        if (!any) return ABAR_OK;
        ABAR_TRY(exchange(o, o->recv[o->ranks.rank], o->recv_bytes[o->ranks.rank]));
    }
}
