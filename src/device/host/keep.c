/* The stage of ref's and cpu's step that is about statistics: pending ones are committed to the averages, or dropped, and
 * refreshes that are due derive what gradients are treated with (methods.md section 0). */
#include "base/clock.h"
#include "device/host/compiled_step.h"
#include "device/host/derive.h"
#include "device/host/rows.h"

/* ---- commit ------------------------------------------------------------------------------------------------------- */

static void forget(abar_device *dev, const abar__plan *p)
{
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
        const abar__running_average *a = &p->average[i];
        if (a->name) dev->ops->stats->clear(dev, a->n, a->square, a->pending);
    }
    if (p->mean_number.name) *(double *)p->mean_number.pending = 0.0;
}

static double pending_number(const abar__plan *p)
{
    return p->mean_number.name ? *(const double *)p->mean_number.pending : 0.0;
}

static bool pending_is_finite(abar_device *dev, const abar__plan *p, const double to_mean[3])
{
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
        const abar__running_average *a = &p->average[i];
        if (a->name && !dev->ops->stats->all_finite(dev, a->n, a->square, a->pending, to_mean[i])) return false;
    }
    return isfinite(pending_number(p) * to_mean[ABAR_PLAN_AVERAGES]);
}

static void commit_map(abar_device *dev, const abar__plan *p, abar__map_state *state, double beta, const double to_mean[3])
{
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
        const abar__running_average *a = &p->average[i];
        if (a->name && !a->calibrated)
            dev->ops->stats->commit(dev, a->n, a->square, a->average, a->pending, beta, (1.0 - beta) * to_mean[i]);
    }
    if (p->mean_number.name && !p->mean_number.calibrated) {
        double *number = &state->real[ABAR_REAL_NUMBER];
        *number = beta * *number + (1.0 - beta) * to_mean[ABAR_PLAN_AVERAGES] * pending_number(p);
        *(double *)p->mean_number.pending = 0.0;
    }
    state->count[ABAR_COUNT_COMMITS]++;
}

/* A map whose factors are made from kept rows; it has no links. Returns whether they were committed. */
static bool commit_nearest(abar_device *dev, abar__compiled_step *s, int i, const double factor[3])
{
    static const double as_it_is[3] = {1.0, 1.0, 1.0};
    const abar__plan *p = &s->plans[i];
    abar__map_state *state = &s->states[i];
    if (abar__rows_nearest(dev, p, state, factor, s->workspace) == ABAR_ROWS_ZERO) return false;
    if (!pending_is_finite(dev, p, as_it_is) || !abar__rows_second_is_finite(dev, p, s->workspace)) {
        state->count[ABAR_COUNT_DROPPED]++;
        forget(dev, p);
        return false;
    }
    commit_map(dev, p, state, s->desc.cadence.stat_decay, as_it_is);
    abar__rows_keep(dev, p, s->desc.cadence.stat_decay, s->workspace);
    return true;
}

/* Linked maps, from the first on: all of them or none. Returns whether they were. */
static bool commit(abar_device *dev, abar__compiled_step *s, int first, const double *to_mean)
{
    const int links = s->plans[first].links;
    const double *factor = to_mean + 3 * first;
    bool fine = true;
    if (factor[0] == 0.0 && factor[1] == 0.0 && factor[2] == 0.0) return false;
    if (abar__plan_is_nearest(&s->plans[first])) return commit_nearest(dev, s, first, factor);
    for (int i = 0; i < links; i++) fine = pending_is_finite(dev, &s->plans[first + i], factor + 3 * i) && fine;
    for (int i = 0; i < links; i++) {
        if (fine) {
            commit_map(dev, &s->plans[first + i], &s->states[first + i], s->desc.cadence.stat_decay, factor + 3 * i);
        } else {
            s->states[first + i].count[ABAR_COUNT_DROPPED]++;
            forget(dev, &s->plans[first + i]);
        }
    }
    return fine;
}

/* ---- derive ------------------------------------------------------------------------------------------------------- */

abar_status abar__host_share(abar_device *dev, abar__compiled_step *s, const abar__owners *owners)
{
    abar__owned_release(dev, s->owned);
    return abar__owned_make(dev, owners, s->desc.n_maps, &s->owned);
}

static void renew(abar_device *dev, abar__compiled_step *s, int i)
{
    const abar__plan *p = &s->plans[i];
    abar__map_state *state = &s->states[i];
    const double unbias = abar__plan_unbias(p, s->desc.cadence.stat_decay, state->count[ABAR_COUNT_COMMITS]);
    if (abar__derive(dev, p, state, unbias, ABAR_DERIVE_RUNNING, s->workspace))
        state->count[ABAR_COUNT_READY] = 1;
    else
        state->count[ABAR_COUNT_KEPT]++;
}

static void refresh(abar_device *dev, abar__compiled_step *s, int i, bool committed, bool divided)
{
    const abar__plan *p = &s->plans[i];
    if (!abar__refreshes(&s->desc.cadence, &s->states[i], p->number, abar__plan_is_calibrated(p), s->control.now, committed))
        return;
    s->looks[i].right = NULL; /* the products of rows are not with what is renewed */
    if (divided && abar__owned_divides(s->owned, p))
        s->owned->due[s->owned->n_due++] = i;
    else
        renew(dev, s, i);
}

/* What other ranks derive is the same on all, failures included: they come with the map's state. */
static void refresh_own(abar_device *dev, abar__compiled_step *s)
{
    abar__owned *o = s->owned;
    abar__owned_assign(o, s->plans);
    for (int i = 0; i < o->n_due; i++)
        if (o->owner[i] == o->rank) renew(dev, s, o->due[i]);
}

static abar_status visit_map(abar_device *dev, abar__compiled_step *s, int map, int owner, abar__piece_visitor visit,
                             void *user)
{
    const abar__plan *p = &s->plans[map];
    ABAR_TRY(visit(user, owner, &s->states[map], sizeof *s->states));
    for (int i = 0; i < p->n_derived; i++) {
        const abar__derived_tensor *d = &p->derived[i];
        if (abar__is_renewed(p, d))
            ABAR_TRY(visit(user, owner, d->data, (size_t)d->n * abar_dtype_size(abar__derived_dtype(p, d, dev->ops->dtype))));
    }
    return ABAR_OK;
}

abar_status abar__host_visit_derived(abar_device *dev, abar__compiled_step *s, bool all, abar__piece_visitor visit, void *user)
{
    abar__owned *o = s->owned;
    for (int i = 0; o && all && i < o->maps; i++)
        if (abar__owned_divides(o, &s->plans[i])) ABAR_TRY(visit_map(dev, s, i, 0, visit, user));
    for (int i = 0; o && !all && i < o->n_due; i++) ABAR_TRY(visit_map(dev, s, o->due[i], o->owner[i], visit, user));
    return ABAR_OK;
}

static void begin_secant(abar_device *dev, abar__compiled_step *s, int i, const double *to_mean)
{
    if (s->control.skip)
        abar__secant_forget(dev, &s->plans[i]);
    else
        abar__secant_begin(dev, &s->plans[i], &s->states[i], &s->maps[i].weights, to_mean, s->desc.cadence.stat_decay,
                           &s->first_passes[i], s->workspace);
}

/* Rows of single examples are used in this step, or never. */
static void offer_rows(abar__compiled_step *s, int i, const double *factor)
{
    s->natural[i] = (abar__natural_item){.plan = &s->plans[i],
                                         .state = &s->states[i],
                                         .grad = s->maps[i].grad,
                                         .bias_grad = s->maps[i].bias_grad,
                                         .scale = factor ? factor[0] : 0.0,
                                         .examples = factor ? (int64_t)factor[1] : 0,
                                         .products = &s->products[3 * i]};
}

abar_status abar__host_keep(abar_device *dev, abar__compiled_step *s, const double *to_mean, bool divided)
{
    const double began = abar__seconds();
    bool committed = false;
    if (s->owned) s->owned->n_due = 0;
    for (int i = 0; i < s->desc.n_maps; i++) {
        if (abar__plan_is_natural(&s->plans[i])) {
            offer_rows(s, i, to_mean ? to_mean + 3 * i : NULL);
            continue;
        }
        if (s->plans[i].slots > 0) continue; /* it has no statistics */
        if (s->plans[i].secant.used) {
            begin_secant(dev, s, i, to_mean ? to_mean + 3 * i : NULL);
            continue;
        }
        if (s->control.skip) {
            forget(dev, &s->plans[i]);
            if (abar__due_when_skipped(&s->desc.cadence, s->control.now, s->plans[i].number))
                s->states[i].count[ABAR_COUNT_DUE] = 1;
            continue;
        }
        if (s->plans[i].link == i) committed = to_mean && commit(dev, s, i, to_mean);
        refresh(dev, s, i, committed, divided);
    }
    if (s->owned) refresh_own(dev, s);
    s->refresh_seconds += abar__seconds() - began;
    return ABAR_OK;
}
