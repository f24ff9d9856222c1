/* An optimizer on a queued device: a program there carries out the steps (program_impl.h); this file makes it, feeds it, and
 * fetches its counters when somebody asks. */
#include "optim/optim_impl.h"

#include <math.h>

static const abar__program_ops *ops_of(const abar_optim *o) { return o->dev->ops->queue->program; }

static abar_status create(abar_optim *o)
{
    abar_context *ctx = o->dev->ctx;
    abar__kept_map *maps = NULL;
    const size_t bytes = (size_t)o->n_maps * sizeof *maps;
    abar__update_scalars scalars = {0};
    o->rule->scalars(o->config, &scalars);
    ABAR_TRY(abar__alloc(ctx, bytes, (void **)&maps));
    abar__curvature *cv = o->curvature;
    if (cv) abar__curvature_keep(cv, maps);
    const abar__program_desc desc = {.items = o->active,
                                     .n_items = o->n_active,
                                     .updates = o->updates,
                                     .n_updates = o->n_updates,
                                     .maps = maps,
                                     .n_maps = o->n_maps,
                                     .n_numbers = cv ? cv->n_numbers : 0,
                                     .rule = o->rule->program,
                                     .scalars = &scalars,
                                     .stat_decay = cv ? cv->config.stat_decay : 0.0,
                                     .tinv = cv ? cv->config.tinv : 0,
                                     .refresh = cv ? cv->config.refresh : 0,
                                     .every_commit = cv && cv->ops->every_commit,
                                     .kl_clip = cv && cv->ops->kl_clip ? cv->ops->kl_clip(cv) : 0.0,
                                     .base_lr = cv ? cv->base_lr : 0.0,
                                     .room_bytes = cv ? cv->scratch_bytes : 0};
    abar_status status = ops_of(o)->create(o->dev, &desc, &o->program);
    abar__free(ctx, maps, bytes);
    if (status == ABAR_OK && cv) cv->scratch = ops_of(o)->room(o->program);
    return status;
}

abar_status abar__optim_make_program(abar_optim *o)
{
    abar_context *ctx = o->dev->ctx;
    ABAR_TRY(abar__alloc(ctx, (size_t)o->n_maps * 3 * sizeof *o->to_mean, (void **)&o->to_mean));
    ABAR_TRY(abar__alloc(ctx, (size_t)o->n_maps * sizeof *o->map_states, (void **)&o->map_states));
    ABAR_TRY(create(o));
    return abar__optim_push(o);
}

void abar__optim_free_program(abar_optim *o)
{
    if (o->program) ops_of(o)->destroy(o->dev, o->program);
    abar__free(o->dev->ctx, o->to_mean, o->to_mean ? (size_t)o->n_maps * 3 * sizeof *o->to_mean : 0);
    abar__free(o->dev->ctx, o->map_states, o->map_states ? (size_t)o->n_maps * sizeof *o->map_states : 0);
}

size_t abar__optim_program_bytes(const abar_optim *o)
{
    if (!o->program) return 0;
    return ops_of(o)->bytes(o->program) + (size_t)o->n_maps * (3 * sizeof *o->to_mean + sizeof *o->map_states);
}

abar_status abar__optim_pull(abar_optim *o)
{
    if (!o->program || !o->stale) return ABAR_OK;
    abar__program_state state;
    ABAR_TRY(ops_of(o)->pull(o->dev, o->program, &state, o->map_states));
    o->k = state.k;
    o->performed = state.t;
    if (o->curvature) abar__curvature_load(o->curvature, &state, o->map_states);
    o->stale = false;
    return ABAR_OK;
}

abar_status abar__optim_push(abar_optim *o)
{
    if (!o->program) return ABAR_OK;
    abar__program_state state = {.t = o->performed, .kl_scale = 1.0};
    if (o->curvature) {
        o->k = o->curvature->k;
        abar__curvature_unload(o->curvature, &state, o->map_states);
    }
    state.k = o->k;
    return ops_of(o)->push(o->dev, o->program, &state, o->map_states);
}

/* Parameters or gradients lie elsewhere, or the rule changed: the same program where it can be kept, else a new one. */
static abar_status move(abar_optim *o)
{
    const int active = o->n_active, updates = o->n_updates;
    abar__optim_lay_out(o);
    if (!o->reruled && o->n_active == active && o->n_updates == updates) {
        abar_status status = ops_of(o)->rebind(o->dev, o->program, o->active, o->updates);
        if (status != ABAR_E_UNSUPPORTED) return status;
    }
    ABAR_TRY(abar__optim_pull(o));
    o->reruled = false;
    ops_of(o)->destroy(o->dev, o->program);
    o->program = NULL;
    ABAR_TRY(create(o));
    return abar__optim_push(o);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void advance(abar_optim *o)
{
    o->k++;
    o->stale = true;
    if (o->curvature) o->curvature->k = o->k;
}

static abar_status measure(abar_optim *o)
{
    ABAR_TRY(ops_of(o)->measure(o->dev, o->program, o->to_mean));
    abar__curvature_set_products(o->curvature, o->to_mean);
    o->curvature->measure = false;
    return ABAR_OK;
}

static abar_status queue(abar_optim *o, const abar_step_config *c)
{
    const bool observed = o->curvature && abar__curvature_to_mean(o->curvature, c->observed_scale, o->to_mean);
    ABAR_TRY(ops_of(o)->step(o->dev, o->program, c->grad_scale, c->clip, observed ? o->to_mean : NULL));
    advance(o);
    return o->curvature && o->curvature->measure ? measure(o) : ABAR_OK; /* of what the step has just applied */
}

abar_status abar__optim_queued_step(abar_optim *o, const abar_step_config *c, abar_step_report *report)
{
    if (o->moved) ABAR_TRY(move(o));
    ABAR_TRY(abar_optim_rates(o, o->k, &c->lr, 1));
    ABAR_TRY(abar_optim_begin(o));
    ABAR_TRY(queue(o, c));
    if (!report) return ABAR_OK;
    ABAR_TRY(abar_device_wait(o->dev));
    const abar_step_note *note = abar_optim_note(o, o->k - 1);
    *report = (abar_step_report){.skipped = note->skipped, .grad_norm = note->grad_norm};
    return ABAR_OK;
}

void abar__optim_queued_skip(abar_optim *o)
{
    if (abar__optim_pull(o) < 0) return; /* the next wait tells */
    if (o->curvature)
        abar__curvature_skip(o->curvature);
    else
        o->k++;
    (void)abar__optim_push(o);
}

/* ---- recordings --------------------------------------------------------------------------------------------------- */

bool abar_optim_is_queued(const abar_optim *o) { return o->program != NULL; }
int64_t abar_optim_steps(const abar_optim *o) { return o->k; }
const int32_t *abar_optim_skip_flag(const abar_optim *o) { return ops_of(o)->skipped(o->program); }
const int64_t *abar_optim_step_now(const abar_optim *o) { return ops_of(o)->step_now(o->program); }

static abar_status check_queued(const abar_optim *o, const char *call)
{
    if (o->program) return ABAR_OK;
    return abar__fail(o->dev->ctx, ABAR_E_STATE, "%s: device %s is not queued, use abar_optim_step", call, o->dev->ops->name);
}

abar_status abar_optim_rates(abar_optim *o, int64_t first, const double *lr, int64_t n)
{
    ABAR_TRY(check_queued(o, "rates"));
    if (n < 1 || n > ABAR_PROGRAM_RATES)
        return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT, "rates: %lld of them, give 1 to %d", (long long)n, ABAR_PROGRAM_RATES);
    if (first != o->k) { /* a run that goes on: its rule alone remembers no k */
        if (o->curvature)
            return abar__fail(o->dev->ctx, ABAR_E_STATE, "rates: step %lld comes next, not %lld", (long long)o->k,
                              (long long)first);
        ABAR_TRY(abar__optim_pull(o));
        o->k = first;
        ABAR_TRY(abar__optim_push(o));
    }
    return ops_of(o)->rates(o->dev, o->program, first, lr, n);
}

abar_status abar_optim_begin(abar_optim *o)
{
    ABAR_TRY(check_queued(o, "begin"));
    return ops_of(o)->begin(o->dev, o->program);
}

abar_status abar_optim_add_loss(abar_optim *o, const abar_loss *loss)
{
    ABAR_TRY(check_queued(o, "add_loss"));
    return ops_of(o)->add_loss(o->dev, o->program, loss);
}

abar_status abar_optim_queue(abar_optim *o, const abar_step_config *step)
{
    abar_step_config c;
    ABAR_TRY(check_queued(o, "queue"));
    ABAR_TRY(abar__optim_read_step(o->dev->ctx, step, &c));
    if (o->moved) ABAR_TRY(move(o));
    return queue(o, &c);
}

void abar_optim_replayed(abar_optim *o) { advance(o); }

const abar_step_note *abar_optim_note(abar_optim *o, int64_t k)
{
    const abar__step_note *n = ops_of(o)->note(o->program, k);
    o->note = (abar_step_note){
        .skipped = n->skipped != 0,
        .grad_norm = n->grad_norm,
        .loss = {.loss = n->count > 0 ? n->loss / (double)n->count : NAN, .correct = n->correct, .count = n->count}};
    return &o->note;
}
