/* The step of ref and cpu: every stage runs when it is called, through the device's own tables (norm, update, statistics). Both
 * have the control block in host memory, and one step in flight. */
#include "base/clock.h"
#include "device/host/blocks.h"
#include "device/host/compiled_step.h"
#include "device/host/derive.h"
#include "device/host/extra.h"
#include "device/host/look.h"
#include "device/host/natural.h"
#include "device/host/ring.h"
#include "device/host/rows.h"
#include "device/host/secant.h"
#include "device/host/treat.h"

#include <string.h>

/* ---- compiling ---------------------------------------------------------------------------------------------------- */

static size_t blocks_scratch(abar_device *dev, const abar__step_desc *desc)
{
    if (desc->n_tensors > 0) return abar__blocks_scratch(dev, desc->block_plan, desc->tensors, desc->n_tensors);
    return desc->n_blocks > 0 ? dev->ops->stats->orthogonalise_scratch(dev, desc->blocks, desc->n_blocks) : 0;
}

static void plan_workspace(abar_device *dev, abar__compiled_step *s)
{
    const abar__step_desc *desc = &s->desc;
    size_t most = desc->workspace_bytes;
    for (int i = 0; i < desc->n_maps; i++) {
        const size_t derive = abar__derive_scratch(dev, &desc->plans[i], ABAR_DERIVE_RUNNING);
        const size_t treat = abar__treat_scratch(dev, &desc->plans[i]), join = abar__rows_nearest_scratch(dev, &desc->plans[i]);
        most = derive > most ? derive : most;
        most = treat > most ? treat : most;
        most = join > most ? join : most;
        const size_t ring = abar__ring_scratch(dev, &desc->plans[i]);
        most = ring > most ? ring : most;
    }
    const size_t blocks = blocks_scratch(dev, desc), natural = abar__natural_scratch(desc->plans, desc->n_maps);
    most = natural > most ? natural : most;
    s->workspace_bytes = blocks > most ? blocks : most;
}

/* All maps of a method are, or none. */
static bool is_natural(const abar__plan *plans, int n) { return n > 0 && abar__plan_is_natural(&plans[0]); }

/* Hands out host memory, or only counts it. */
static size_t place(const abar_device *dev, abar__compiled_step *s, char *base)
{
    const size_t maps = (size_t)s->desc.n_maps;
    const abar__piece pieces[] = {{&s->plans, maps * sizeof *s->plans},
                                  {&s->states, maps * sizeof *s->states},
                                  {&s->maps, maps * sizeof *s->maps},
                                  {&s->natural, (is_natural(s->desc.plans, s->desc.n_maps) ? maps : 0) * sizeof *s->natural},
                                  {&s->products, 3 * maps * sizeof *s->products},
                                  {&s->updates, (size_t)s->desc.n_updates * sizeof *s->updates},
                                  {&s->looks, maps * sizeof *s->looks},
                                  {&s->row_products, abar__look_bytes(dev, s->desc.plans, s->desc.n_maps)},
                                  {&s->verdicts, (size_t)s->desc.n_blocks * sizeof *s->verdicts},
                                  {&s->first_passes, (s->desc.second_pass ? maps : 0) * sizeof *s->first_passes}};
    return abar__hand_out(pieces, (int)(sizeof pieces / sizeof *pieces), base);
}

static void bind(const abar_device *dev, abar__compiled_step *s)
{
    for (int i = 0; i < s->desc.n_maps; i++) s->maps[i] = (abar__treated_map){.pre = {.scale = 1.0}};
    for (int i = 0; i < s->desc.n_updates; i++) {
        abar__update_item *item = &s->updates[i];
        *item = s->desc.updates[i];
        if (item->map < 0) continue;
        abar__treated_map *map = &s->maps[item->map];
        item->pre = &map->pre;
        map->grad = item->grad;
        map->bias_grad = item->bias ? item->bias->grad : NULL;
        map->weights = (abar__map_weights){item->weight, item->bias ? item->bias->weight : NULL};
    }
    abar__look_bind(dev, s);
}

static void destroy(abar_device *dev, abar__compiled_step *s)
{
    if (!s) return;
    abar_device_free(dev, s->workspace, s->workspace_bytes);
    abar_device_free(dev, s->saved, s->saved_bytes);
    abar__owned_release(dev, s->owned);
    abar__free(dev->ctx, s->memory, s->memory_bytes);
    abar__free(dev->ctx, s->rates, (size_t)s->rates_capacity * sizeof *s->rates);
    abar__free(dev->ctx, s, sizeof *s);
}

static size_t saved_bytes(const abar_device *dev, const abar__step_desc *desc)
{
    return desc->second_pass ? abar__items_save(dev, desc->items, desc->n_items, NULL) : 0;
}

static abar_status make(abar_device *dev, abar__compiled_step *s)
{
    s->memory_bytes = place(dev, s, NULL);
    ABAR_TRY(abar__alloc(dev->ctx, s->memory_bytes, &s->memory));
    place(dev, s, s->memory);
    if (s->desc.n_maps) memcpy(s->plans, s->desc.plans, (size_t)s->desc.n_maps * sizeof *s->plans);
    s->desc.plans = s->plans;
    plan_workspace(dev, s);
    ABAR_TRY(abar_device_alloc(dev, s->workspace_bytes, &s->workspace));
    s->saved_bytes = saved_bytes(dev, &s->desc);
    ABAR_TRY(abar_device_alloc(dev, s->saved_bytes, &s->saved));
    s->scalars = *s->desc.scalars;
    s->scalars.verdicts = s->verdicts;
    s->control.state.kl_scale = 1.0;
    bind(dev, s);
    return ABAR_OK;
}

static abar_status create(abar_device *dev, const abar__step_desc *desc, abar__compiled_step **out)
{
    *out = NULL;
    abar__compiled_step *s;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *s, (void **)&s));
    s->desc = *desc;
    abar_status status = make(dev, s);
    if (status < 0) {
        destroy(dev, s);
        return status;
    }
    *out = s;
    return ABAR_OK;
}

static size_t bytes(const abar__compiled_step *s)
{
    return sizeof *s + s->memory_bytes + s->workspace_bytes + s->saved_bytes + (s->owned ? s->owned->bytes : 0);
}
static void *workspace(const abar__compiled_step *s) { return s->workspace; }

static abar_status rebind(abar_device *dev, abar__compiled_step *s, const abar__step_desc *desc)
{
    if (desc->n_updates != s->desc.n_updates || desc->n_blocks != s->desc.n_blocks || desc->n_tensors != s->desc.n_tensors ||
        blocks_scratch(dev, desc) > s->workspace_bytes || /* the blocks may be other ones */
        saved_bytes(dev, desc) > s->saved_bytes)
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "step: other parameters need another step");
    s->desc = *desc;
    s->desc.plans = s->plans;
    s->scalars = *desc->scalars;
    s->scalars.verdicts = s->verdicts;
    bind(dev, s);
    return ABAR_OK;
}

/* ---- the control block -------------------------------------------------------------------------------------------- */

/* Rates for steps that have some replace those; others replace all. */
static abar_status rates(abar_device *dev, abar__compiled_step *s, int64_t first, const double *lr, int64_t n)
{
    const int64_t at = first - s->first_rate;
    if (s->n_rates > 1 && at >= 0 && at + n <= s->n_rates) {
        memcpy(s->rates + at, lr, (size_t)n * sizeof *lr);
        return ABAR_OK;
    }
    if (n > 1 && n > s->rates_capacity) {
        double *more;
        ABAR_TRY(abar__alloc(dev->ctx, (size_t)n * sizeof *more, (void **)&more));
        abar__free(dev->ctx, s->rates, (size_t)s->rates_capacity * sizeof *s->rates);
        s->rates = more;
        s->rates_capacity = n;
    }
    if (n > 1) memcpy(s->rates, lr, (size_t)n * sizeof *lr);
    s->first_rate = first;
    s->n_rates = n;
    s->rate = lr[0];
    return ABAR_OK;
}

static double rate_of(const abar__compiled_step *s, int64_t k)
{
    if (s->n_rates <= 1) return s->rate;
    const int64_t at = k - s->first_rate;
    return s->rates[at < 0 ? 0 : at < s->n_rates ? at : s->n_rates - 1];
}

static abar_status begin(abar_device *dev, abar__compiled_step *s)
{
    (void)dev;
    s->control.seen = (abar__step_outcome){0};
    s->control.bad = false;
    return ABAR_OK;
}

static abar_status add_loss(abar_device *dev, abar__compiled_step *s, const void *result)
{
    (void)dev;
    const abar_loss *loss = result;
    s->control.seen.loss += loss->loss * (double)loss->count;
    s->control.seen.correct += loss->correct;
    s->control.seen.count += loss->count;
    if (!isfinite(loss->loss)) s->control.bad = true;
    return ABAR_OK;
}

/* ---- check -------------------------------------------------------------------------------------------------------- */

static abar_status check(abar_device *dev, abar__compiled_step *s, double grad_scale, double clip)
{
    abar__host_control *c = &s->control;
    const int64_t k = c->state.k;
    double own = NAN; /* the norm before grad_scale */
    const bool finite = abar__look(dev, s, &own);
    const double norm = grad_scale * own;
    const double clipping = clip > 0.0 ? fmin(1.0, clip / (norm + 1e-6)) : 1.0;
    c->skip = c->bad || !finite || !isfinite(norm);
    c->now = k;
    c->norm = own;
    c->scale = grad_scale * clipping;
    c->grad_scale = grad_scale;
    c->state.k = k + 1;
    if (!c->skip) {
        c->state.t++;
        c->lr = rate_of(s, k);
        if (s->scalars.schedule_free)
            s->scalars.share = abar__schedule_free_share(&c->state, c->lr, s->scalars.time_power, s->scalars.rate_power);
        if (s->scalars.inside) abar__decay_inside(dev, s->desc.items, s->desc.n_items, c->scale);
    }
    c->seen.grad_norm = norm;
    c->seen.k = k;
    c->seen.skipped = c->skip;
    s->outcomes[k % ABAR_STEP_RESULTS] = c->seen;
    return ABAR_OK;
}

/* ---- extra gradients ------------------------------------------------------------------------------------------------ */

static abar_status perturb(abar_device *dev, abar__compiled_step *s, int sign)
{
    abar__extra_perturb(dev, s->desc.extra, &s->control.extra, s->control.state.k, sign);
    return ABAR_OK;
}

static abar_status check_extra(abar_device *dev, abar__compiled_step *s)
{
    abar__host_control *c = &s->control;
    abar__extra_check(dev, s->desc.extra, &c->extra);
    if (!c->extra.fine && c->state.diagonals == 0) c->bad = true;
    return ABAR_OK;
}

static abar_status take_extra(abar_device *dev, abar__compiled_step *s, double grad_scale, double clip)
{
    abar__extra_take(dev, s->desc.extra, &s->control.extra, &s->control.state, grad_scale, clip, s->control.skip);
    return ABAR_OK;
}

/* ---- precondition ------------------------------------------------------------------------------------------------- */

static const abar__precondition identity = {.scale = 1.0};

/* Whether the step depends on <G^, G>, by the KL clip or by the map's own length. */
static bool product_counts(const abar__compiled_step *s, const abar__plan *p)
{
    return s->desc.cadence.kl_clip > 0.0 || p->apply.mu > 0.0;
}

/* Replaces the gradient of a dense map, all but its scale; returns <G^, G>, 0 where it stays as it is. */
static double treat_dense(abar_device *dev, abar__compiled_step *s, int i, bool measure)
{
    const abar__plan *p = &s->plans[i];
    const abar__treatment *t = &p->apply;
    abar__treated_map *map = &s->maps[i];
    const double outer = abar__outer_scale(t, &s->states[i]);
    abar__dense_gradient g = {.out = p->out,
                              .in = p->columns,
                              .d = p->d,
                              .weight = map->grad,
                              .bias = map->bias_grad,
                              .left = abar__plan_data(p, t->left),
                              .right = abar__plan_data(p, t->right),
                              .row_scale = abar__plan_data(p, t->row_scale),
                              .largest = outer * (t->mu > 0.0 ? 0.5 / sqrt(t->mu) : 1.0)}; /* the largest length */
    const bool plain =
        p->derived[t->right].kind == ABAR_DERIVED_INVERSE && !abar__plan_treats_by_rows(p) && p->secant.pairs == 0;
    const bool counts = product_counts(s, p);
    double sums[3] = {0.0}, *products = measure || counts ? sums : NULL;
    const bool fine = plain && dev->ops->stats->precondition ? dev->ops->stats->precondition(dev, &g, s->workspace, products)
                                                             : abar__treat_joined(dev, p, &g, counts, s->workspace, products);
    if (!fine) {
        s->states[i].count[ABAR_COUNT_KEPT]++;
        return 0.0;
    }
    const double scale = outer * (t->mu > 0.0 ? abar__own_length(t->mu, sums[1], s->control.scale) : 1.0);
    map->pre.scale = scale;
    s->products[3 * i] = sums[0];
    s->products[3 * i + 1] = scale * sums[1];
    s->products[3 * i + 2] = scale * scale * sums[2];
    return scale * sums[1];
}

/* How the passes shall treat a map whose preconditioner is made of vectors; <G^, G>, or 0, likewise. */
static double treat_rows(abar_device *dev, abar__compiled_step *s, int i, bool measure)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const abar__plan *p = &s->plans[i];
    const abar__treatment *t = &p->apply;
    abar__treated_map *map = &s->maps[i];
    abar__map_state *state = &s->states[i];
    const double limit = dev->ops->dtype == ABAR_F64 ? 1e300 : 1e36, outer = abar__outer_scale(t, state);
    if (abar__would_overflow(outer * t->bound, s->control.norm, s->control.scale, limit)) {
        state->count[ABAR_COUNT_KEPT]++;
        return 0.0;
    }
    const void *u = abar__plan_data(p, t->u), *w = abar__plan_data(p, t->w);
    map->pre = (abar__precondition){.right = u, .row_scale = abar__plan_data(p, t->row_scale), .scale = outer};
    if (w) {
        double inner = stats->bilinear(dev, p->out, p->columns, w, map->grad, u);
        const char *last = (const char *)u + (size_t)p->columns * abar_dtype_size(dev->ops->dtype);
        if (map->bias_grad) inner += stats->bilinear(dev, p->out, 1, w, map->bias_grad, last);
        void *coefficient = abar__plan_data(p, t->coefficient);
        stats->affine(dev, p->out, w, state->real[ABAR_REAL_FACTOR] * inner, 0.0, coefficient);
        map->pre.coefficient = coefficient;
    } else if (s->looks[i].right) {
        map->pre.coefficient = s->looks[i].products;
    }
    if (!measure && !product_counts(s, p)) return 0.0;
    double *products = &s->products[3 * i];
    stats->compare(dev, p->out, p->columns, map->grad, map->bias_grad, &map->pre, products);
    if (product_counts(s, p) && !isfinite(products[1])) {
        state->count[ABAR_COUNT_KEPT]++;
        map->pre = identity;
        return 0.0;
    }
    return products[1];
}

static void run_rings(abar_device *dev, abar__compiled_step *s)
{
    for (int i = 0; i < s->desc.n_rings; i++) {
        const abar__ring *ring = &s->desc.rings[i];
        abar__ring_run(dev, &s->plans[ring->map], &s->states[ring->map], s->desc.pieces + ring->first, ring->n,
                       s->control.scale, &s->products[3 * ring->map], s->workspace);
    }
}

static abar_status precondition(abar_device *dev, abar__compiled_step *s, bool measure)
{
    for (int i = 0; i < 3 * s->desc.n_maps; i++) s->products[i] = NAN;
    if (s->control.skip) return ABAR_OK;
    const double began = abar__seconds();
    double sum = 0.0;
    if (is_natural(s->plans, s->desc.n_maps))
        abar__natural_run(dev, s->natural, s->desc.n_maps, s->control.grad_scale, s->control.scale, s->workspace);
    for (int i = 0; i < s->desc.n_maps; i++) {
        s->maps[i].pre = identity;
        if (!s->states[i].count[ABAR_COUNT_READY] || !s->maps[i].grad) continue;
        if (abar__plan_is_natural(&s->plans[i]))
            sum += s->products[3 * i + 1];
        else
            sum += abar__plan_is_dense(&s->plans[i]) ? treat_dense(dev, s, i, measure) : treat_rows(dev, s, i, measure);
    }
    const double clip = s->control.state.kl_scale = abar__kl_scale(&s->desc.cadence, sum, s->control.scale);
    for (int i = 0; clip != 1.0 && i < s->desc.n_maps; i++)
        if (s->states[i].count[ABAR_COUNT_READY]) s->maps[i].pre.scale *= clip;
    run_rings(dev, s);
    s->apply_seconds += abar__seconds() - began;
    return ABAR_OK;
}

/* ---- passes ------------------------------------------------------------------------------------------------------- */

static void orthogonalise(abar_device *dev, abar__compiled_step *s, const abar__update_pass *pass)
{
    dev->ops->stats->orthogonalise(dev, s->desc.ns, s->desc.blocks + pass->first, pass->n, s->desc.row_decay,
                                   s->verdicts + pass->first, s->workspace);
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        s->control.state.dropped += s->verdicts[i] == ABAR_NS_NOT_FINITE;
        s->control.state.small += s->verdicts[i] == ABAR_NS_BELOW_EPS;
    }
}

/* Plain updates of blocks that keep their norm. */
static void hyperball(abar_device *dev, abar__compiled_step *s, const abar__update_pass *pass)
{
    for (int i = pass->first; i < pass->first + pass->n; i++) {
        abar__update_item item = s->updates[i], weight = item;
        double radius, length, moved;
        weight.grad = item.weight; /* whose norm is taken */
        if (s->verdicts[item.block] == ABAR_NS_NOT_FINITE) continue;
        if (!dev->ops->norm(dev, &weight, 1, NULL, &radius) || !dev->ops->norm(dev, &item, 1, NULL, &length)) continue;
        item.lr_scale *= abar__hyperball_rate(radius, length);
        dev->ops->update(dev, &item, 1, &s->scalars);
        if (!dev->ops->norm(dev, &weight, 1, NULL, &moved)) continue;
        dev->ops->stats->affine(dev, item.count, item.weight, abar__hyperball_rate(radius, moved), 0.0, item.weight);
    }
}

static abar_status pass(abar_device *dev, abar__compiled_step *s, int index)
{
    const abar__update_pass *p = &s->desc.passes[index];
    if (s->control.skip || p->n == 0) return ABAR_OK;
    if (p->kind == ABAR_PASS_ORTHOGONALISE) {
        orthogonalise(dev, s, p);
        return ABAR_OK;
    }
    if (p->kind == ABAR_PASS_BLOCKS) {
        abar__blocks_run(dev, s->desc.block_plan, s->desc.tensors + p->first, p->n, s->control.lr, &s->control.state,
                         s->workspace);
        return ABAR_OK;
    }
    if (s->desc.second_pass && index == 0) abar__items_save(dev, s->desc.items, s->desc.n_items, s->saved);
    s->scalars.lr = s->control.lr;
    s->scalars.grad_scale = s->control.scale;
    s->scalars.t = s->control.state.t;
    if (p->kind == ABAR_PASS_HYPERBALL) {
        hyperball(dev, s, p);
        return ABAR_OK;
    }
    dev->ops->update(dev, s->updates + p->first, p->n, &s->scalars);
    return ABAR_OK;
}

/* A plain update. */
static abar_status shift(abar_device *dev, int64_t n, void *weight, const void *by, double factor, void *shadow)
{
    (void)shadow; /* ref and cpu have none */
    const abar__update_scalars scalars = {.lr = -factor};
    const abar__update_item item = {
        .kind = ABAR_UPDATE_PLAIN, .weight = weight, .grad = (void *)by, .count = n, .lr_scale = 1.0, .block = -1};
    dev->ops->update(dev, &item, 1, &scalars);
    return ABAR_OK;
}

/* ---- the second pass ------------------------------------------------------------------------------------------------ */

static abar_status second(abar_device *dev, abar__compiled_step *s, const double *to_mean, bool fine, bool *undone)
{
    for (int i = 0; i < s->desc.n_maps; i++) fine = fine && abar__secant_is_finite(dev, &s->plans[i], to_mean + 3 * i);
    *undone = !fine;
    if (!fine) {
        abar__items_restore(dev, s->desc.items, s->desc.n_items, s->saved);
        s->control.state.t--;
        s->outcomes[s->control.now % ABAR_STEP_RESULTS].skipped = 1;
        s->control.skip = 1;
    }
    for (int i = 0; i < s->desc.n_maps; i++) {
        const abar__first_pass *first = &s->first_passes[i];
        if (fine)
            abar__secant_learn(dev, &s->plans[i], &s->states[i], &s->maps[i].weights, to_mean + 3 * i,
                               s->desc.cadence.stat_decay, first, s->workspace);
        else
            abar__secant_undo(dev, &s->plans[i], &s->states[i], first);
    }
    return ABAR_OK;
}

/* ---- looking inside ----------------------------------------------------------------------------------------------- */

static abar_status measured(abar_device *dev, abar__compiled_step *s, double *products)
{
    (void)dev;
    memcpy(products, s->products, 3 * (size_t)s->desc.n_maps * sizeof *products);
    return ABAR_OK;
}

static const int32_t *skipped(const abar__compiled_step *s) { return &s->control.skip; }
static const int64_t *step_now(const abar__compiled_step *s) { return &s->control.state.k; }
static const abar__step_outcome *outcome(const abar__compiled_step *s, int64_t k)
{
    return &s->outcomes[k % ABAR_STEP_RESULTS];
}

static int64_t *block_events(const abar__compiled_step *s) { return (int64_t *)(uintptr_t)&s->control.state.dropped; }

static abar_status pull(abar_device *dev, abar__compiled_step *s, abar__step_state *state, abar__map_state *maps)
{
    (void)dev;
    *state = s->control.state;
    if (s->desc.n_maps) memcpy(maps, s->states, (size_t)s->desc.n_maps * sizeof *maps);
    return ABAR_OK;
}

static abar_status push(abar_device *dev, abar__compiled_step *s, const abar__step_state *state, const abar__map_state *maps)
{
    (void)dev;
    s->control.state = *state;
    if (s->desc.n_maps) memcpy(s->states, maps, (size_t)s->desc.n_maps * sizeof *maps);
    return ABAR_OK;
}

static void times(const abar__compiled_step *s, double *refreshing, double *applying)
{
    *refreshing = s->refresh_seconds;
    *applying = s->apply_seconds;
}

const abar__step_ops abar__host_step = {
    .create = create,
    .destroy = destroy,
    .bytes = bytes,
    .workspace = workspace,
    .rebind = rebind,
    .rates = rates,
    .begin = begin,
    .add_loss = add_loss,
    .perturb = perturb,
    .check_extra = check_extra,
    .take_extra = take_extra,
    .check = check,
    .commit = abar__host_keep,
    .precondition = precondition,
    .pass = pass,
    .second = second,
    .measured = measured,
    .shift = shift,
    .skipped = skipped,
    .step_now = step_now,
    .outcome = outcome,
    .pull = pull,
    .push = push,
    .times = times,
    .share = abar__host_share,
    .visit_derived = abar__host_visit_derived,
    .settle = NULL, /* states of maps are among what is derived */
    .block_events = block_events,
};
