/* One optimizer step, for every device: the stages in their order. A device carries each of them out (device/step_impl.h), at
 * once or later; what they pass on to each other never leaves it, so that a whole step can be captured and replayed. */
#include "device/step_rules.h"
#include "optim/optim_impl.h"

#include <math.h>

static const abar__step_ops *ops_of(const abar_optim *o) { return o->dev->ops->step; }

/* ---- compiling ---------------------------------------------------------------------------------------------------- */

static abar__step_desc describe(const abar_optim *o, const abar__plan *plans)
{
    const abar__curvature *cv = o->curvature;
    abar__step_desc desc = {.items = o->active,
                            .n_items = o->n_active,
                            .updates = o->updates,
                            .n_updates = o->n_updates,
                            .passes = o->passes,
                            .n_passes = o->n_passes,
                            .blocks = o->blocks,
                            .n_blocks = o->n_blocks,
                            .ns = &o->ns,
                            .row_decay = o->row_decay,
                            .ns_exact = o->ns_exact,
                            .tensors = o->tensors,
                            .n_tensors = o->n_tensors,
                            .block_plan = &o->block_plan,
                            .plans = plans,
                            .n_maps = o->n_maps,
                            .extra = &o->extra,
                            .rings = o->rings,
                            .n_rings = o->n_rings,
                            .pieces = o->pieces,
                            .scalars = &o->scalars,
                            .cadence = {.tinv = 1}};
    if (cv) {
        desc.cadence = abar__curvature_cadence(cv);
        desc.workspace_bytes = cv->scratch_bytes;
        desc.second_pass = o->two_passes;
    }
    return desc;
}

static abar_status compile(abar_optim *o)
{
    abar_context *ctx = o->dev->ctx;
    abar__plan *plans = NULL;
    const size_t bytes = (size_t)o->n_maps * sizeof *plans;
    ABAR_TRY(abar__alloc(ctx, bytes, (void **)&plans));
    for (int i = 0; i < o->n_maps; i++) plans[i] = o->curvature->maps[i].plan;
    const abar__step_desc desc = describe(o, plans);
    abar_status status = ops_of(o)->create(o->dev, &desc, &o->step);
    abar__free(ctx, plans, bytes);
    if (status == ABAR_OK && o->ranks.ranks > 0) {
        status = ops_of(o)->share(o->dev, o->step, &o->ranks);
        if (status < 0) ops_of(o)->destroy(o->dev, o->step);
    }
    if (status == ABAR_OK && o->curvature) o->curvature->scratch = ops_of(o)->workspace(o->step);
    if (status == ABAR_OK) o->rates_first = o->rates_end = o->k; /* a new step knows none */
    return status;
}

abar_status abar__optim_make_step(abar_optim *o)
{
    abar_context *ctx = o->dev->ctx;
    ABAR_TRY(abar__alloc(ctx, (size_t)o->n_maps * 3 * sizeof *o->to_mean, (void **)&o->to_mean));
    ABAR_TRY(abar__alloc(ctx, (size_t)o->n_maps * sizeof *o->map_states, (void **)&o->map_states));
    o->step_state.kl_scale = 1.0;
    ABAR_TRY(compile(o));
    return abar__optim_push(o);
}

/* ---- ranks ---------------------------------------------------------------------------------------------------------- */

typedef struct piece_count {
    int n;
    size_t bytes;
} piece_count;

static abar_status count_piece(void *user, int owner, void *memory, size_t bytes)
{
    piece_count *c = user;
    (void)owner, (void)memory;
    c->n++;
    c->bytes += bytes;
    return ABAR_OK;
}

static void free_derived(abar_optim *o)
{
    if (!o->derived) return;
    abar__pieces_release(o->derived);
    abar__free(o->dev->ctx, o->derived, sizeof *o->derived);
    o->derived = NULL;
}

abar_status abar__optim_divide(abar_optim *o, const abar__owners *owners)
{
    piece_count most = {0};
    free_derived(o);
    o->ranks = *owners;
    ABAR_TRY(ops_of(o)->share(o->dev, o->step, owners));
    ABAR_TRY(ops_of(o)->visit_derived(o->dev, o->step, true, count_piece, &most));
    if (most.n > 0) {
        ABAR_TRY(abar__alloc(o->dev->ctx, sizeof *o->derived, (void **)&o->derived));
        ABAR_TRY(abar__pieces_make(o->dev, owners, most.n, most.bytes, o->derived));
    }
    return abar__zero_connect(o, owners);
}

/* The host must know on a queued device, whose steps are recorded: it divides those in which all refreshes are due. One that is
 * made later, because it could not be made then, and those that are spread over the steps, every rank makes. */
bool abar__optim_divides(const abar_optim *o)
{
    if (!o->derived) return false;
    if (!o->dev->ops->stream) return true;
    const abar__cadence c = abar__curvature_cadence(o->curvature);
    return !c.spread && (c.every_commit ? abar_optim_observes(o) : abar__on_schedule(&c, o->k, 0));
}

bool abar__optim_meets(const abar_optim *o) { return abar__optim_divides(o) && o->derived->staged; }
abar_status abar__optim_meet(abar_optim *o) { return abar__pieces_meet(o->derived); }

/* ---- the end ---------------------------------------------------------------------------------------------------------- */

void abar__optim_free_step(abar_optim *o)
{
    free_derived(o);
    if (o->step) ops_of(o)->destroy(o->dev, o->step);
    abar__free(o->dev->ctx, o->to_mean, o->to_mean ? (size_t)o->n_maps * 3 * sizeof *o->to_mean : 0);
    abar__free(o->dev->ctx, o->map_states, o->map_states ? (size_t)o->n_maps * sizeof *o->map_states : 0);
}

size_t abar__optim_step_bytes(const abar_optim *o)
{
    return ops_of(o)->bytes(o->step) + (size_t)o->n_maps * (3 * sizeof *o->to_mean + sizeof *o->map_states);
}

/* ---- state between host and device -------------------------------------------------------------------------------- */

abar_status abar__optim_pull(abar_optim *o)
{
    if (!o->stale) return ABAR_OK;
    ABAR_TRY(ops_of(o)->pull(o->dev, o->step, &o->step_state, o->map_states));
    o->k = o->step_state.k;
    if (o->curvature) {
        o->curvature->k = o->k;
        o->curvature->kl_scale = o->step_state.kl_scale;
        for (int i = 0; i < o->n_maps; i++) o->curvature->maps[i].state = o->map_states[i];
    }
    o->stale = false;
    return ABAR_OK;
}

abar_status abar__optim_push(abar_optim *o)
{
    if (o->curvature) {
        o->k = o->curvature->k;
        o->step_state.kl_scale = o->curvature->kl_scale;
        for (int i = 0; i < o->n_maps; i++) o->map_states[i] = o->curvature->maps[i].state;
    }
    o->step_state.k = o->k;
    return ops_of(o)->push(o->dev, o->step, &o->step_state, o->map_states);
}

/* The step is replaced once the new one is there: without memory for it the optimizer stays whole. */
static abar_status compile_again(abar_optim *o)
{
    o->stale = true;
    ABAR_TRY(abar__optim_pull(o));
    abar__compiled_step *const old = o->step;
    const abar_status status = compile(o);
    if (status < 0) {
        o->step = old;
        return status;
    }
    ops_of(o)->destroy(o->dev, old);
    return abar__optim_push(o);
}

/* Parameters or gradients have new places, or the rule new settings: the same step where it can be kept, else a new one. */
static abar_status move(abar_optim *o)
{
    const int active = o->n_active, updates = o->n_updates, blocks = o->n_blocks, tensors = o->n_tensors;
    abar_status status = ABAR_E_UNSUPPORTED;
    abar__optim_lay_out(o);
    if (!o->reruled && o->n_active == active && o->n_updates == updates && o->n_blocks == blocks && o->n_tensors == tensors) {
        const abar__step_desc desc = describe(o, NULL);
        status = ops_of(o)->rebind(o->dev, o->step, &desc);
    }
    if (status == ABAR_E_UNSUPPORTED) status = compile_again(o);
    o->moved = o->reruled = status < 0; /* then the next step tries again */
    return status;
}

abar_status abar__optim_ready(abar_optim *o) { return o->moved ? move(o) : ABAR_OK; }

/* ---- the stages --------------------------------------------------------------------------------------------------- */

static void advance(abar_optim *o)
{
    o->k++;
    o->stale = true;
    o->perturbed = 0;
    if (o->curvature) o->curvature->k = o->k;
}

/* Up to what ranks need of each other. */
static abar_status run_first(abar_optim *o, const abar_step_config *c)
{
    const abar__step_ops *ops = ops_of(o);
    abar__curvature *cv = o->curvature;
    const bool differs = abar_optim_extra(o) == ABAR_EXTRA_DIFFERENCE;
    const bool observed = cv && abar__curvature_to_mean(cv, c->observed_scale, o->to_mean);
    if (differs) ABAR_TRY(ops->check_extra(o->dev, o->step));
    ABAR_TRY(ops->check(o->dev, o->step, c->grad_scale, c->clip));
    if (differs) ABAR_TRY(ops->take_extra(o->dev, o->step, c->grad_scale, 0.0));
    if (!cv) return ABAR_OK;
    const bool divided = abar__optim_divides(o);
    ABAR_TRY(ops->commit(o->dev, o->step, observed ? o->to_mean : NULL, divided));
    if (!divided) return ABAR_OK;
    abar__pieces_begin(o->derived);
    ABAR_TRY(ops->visit_derived(o->dev, o->step, false, abar__pieces_add, o->derived));
    return abar__pieces_send(o->derived);
}

static abar_status run_rest(abar_optim *o)
{
    const abar__step_ops *ops = ops_of(o);
    abar__curvature *cv = o->curvature;
    const bool divided = abar__optim_divides(o);
    if (divided) ABAR_TRY(abar__pieces_take(o->derived));
    if (divided && ops->settle) ABAR_TRY(ops->settle(o->dev, o->step));
    const int before = o->two_passes && o->n_passes > 0 ? 1 : 0; /* momentum, which is then preconditioned */
    for (int i = 0; i < before; i++) ABAR_TRY(ops->pass(o->dev, o->step, i));
    if (cv) ABAR_TRY(ops->precondition(o->dev, o->step, cv->measure));
    for (int i = before; i < o->n_passes; i++) ABAR_TRY(ops->pass(o->dev, o->step, i));
    return ABAR_OK;
}

/* Cosine and ratio of G and G^ from the products that a step measured; maps that it left alone keep theirs. */
static abar_status read_measures(abar_optim *o)
{
    o->curvature->measure = false;
    ABAR_TRY(ops_of(o)->measured(o->dev, o->step, o->to_mean));
    for (int i = 0; i < o->n_maps; i++) {
        const double gg = o->to_mean[3 * i], hg = o->to_mean[3 * i + 1], hh = o->to_mean[3 * i + 2];
        if (isnan(gg)) continue;
        o->curvature->maps[i].cosine = hg / sqrt(gg * hh);
        o->curvature->maps[i].ratio = sqrt(hh / gg);
    }
    return ABAR_OK;
}

abar_status abar__optim_check_pass(const abar_optim *o, const char *what)
{
    if (!o->awaits) return ABAR_OK;
    return abar__fail(o->dev->ctx, ABAR_E_STATE,
                      "%s: the last step waits for the second pass over its batch, make it and call abar_optim_end_pass", what);
}

static abar_status enqueue_first(abar_optim *o, const abar_step_config *c)
{
    ABAR_TRY(abar__optim_check_extra(o));
    ABAR_TRY(abar__zero_begin_step(o));
    return run_first(o, c);
}

abar_status abar__optim_queue_rest(abar_optim *o)
{
    ABAR_TRY(run_rest(o));
    if (o->two_passes) o->awaits = o->curvature->second = *ops_of(o)->skipped(o->step) == 0;
    advance(o);
    ABAR_TRY(abar__zero_send(o));
    return o->curvature && o->curvature->measure ? read_measures(o) : ABAR_OK;
}

/* Where ranks exchange at once, or in the queue. */
static abar_status enqueue(abar_optim *o, const abar_step_config *c)
{
    ABAR_TRY(enqueue_first(o, c));
    ABAR_TRY(abar__optim_queue_rest(o));
    return abar__zero_take(o);
}

static abar_status take_step(abar_optim *o, const abar_step_config *step, abar_step_report *report)
{
    abar_step_config c;
    ABAR_TRY(abar__optim_check_pass(o, "step"));
    ABAR_TRY(abar__optim_read_step(o->dev->ctx, step, &c));
    if (o->moved) ABAR_TRY(move(o));
    ABAR_TRY(abar__optim_check_blocks(o));
    ABAR_TRY(ops_of(o)->rates(o->dev, o->step, o->k, &c.lr, 1));
    ABAR_TRY(ops_of(o)->begin(o->dev, o->step));
    ABAR_TRY(enqueue(o, &c));
    if (!report) return ABAR_OK;
    ABAR_TRY(abar_device_wait(o->dev));
    const abar__step_outcome *outcome = ops_of(o)->outcome(o->step, o->k - 1);
    *report = (abar_step_report){.skipped = outcome->skipped, .grad_norm = outcome->grad_norm};
    return ABAR_OK;
}

abar_status abar_optim_step(abar_optim *o, const abar_step_config *step, abar_step_report *report)
{
    abar_step_report told;
    if (!report) return take_step(o, step, NULL);
    ABAR_TRY(abar__struct_check(o->dev->ctx, "abar_step_report", report, sizeof told));
    ABAR_TRY(take_step(o, step, &told));
    abar__struct_write(&told, sizeof told, report);
    return ABAR_OK;
}

bool abar_optim_wants_pass(const abar_optim *o) { return o->awaits; }

abar_status abar_optim_end_pass(abar_optim *o, bool finite, double observed_scale, bool *undone)
{
    bool ignored;
    if (!o->awaits) return abar__fail(o->dev->ctx, ABAR_E_STATE, "second pass: no step waits for one");
    (void)abar__curvature_to_mean(o->curvature, observed_scale == 0.0 ? 1.0 : observed_scale, o->to_mean);
    o->awaits = o->curvature->second = false;
    o->stale = true;
    return ops_of(o)->second(o->dev, o->step, o->to_mean, finite, undone ? undone : &ignored);
}

void abar_optim_skip(abar_optim *o)
{
    if (o->awaits) { /* its second pass came to nothing; the step is counted */
        (void)abar_optim_end_pass(o, false, 1.0, NULL);
        return;
    }
    if (abar__optim_pull(o) < 0) return; /* the next wait tells */
    abar__curvature *cv = o->curvature;
    if (cv) {
        abar__curvature_skip(cv);
    } else {
        o->k++;
    }
    o->perturbed = 0;
    (void)abar__optim_push(o);
}

/* ---- steps that are enqueued, or captured --------------------------------------------------------------------------- */

bool abar_optim_is_queued(const abar_optim *o) { return o->dev->ops->stream != NULL; }
int64_t abar_optim_steps(const abar_optim *o) { return o->k; }
const int32_t *abar_optim_skip_flag(const abar_optim *o) { return ops_of(o)->skipped(o->step); }
const int64_t *abar_optim_step_now(const abar_optim *o) { return ops_of(o)->step_now(o->step); }

/* The device knows the rates of these steps, too. */
static void know_rates(abar_optim *o, int64_t first, int64_t n)
{
    const bool joins = first >= o->rates_first && first <= o->rates_end;
    if (!joins) o->rates_first = o->rates_end = first;
    if (first + n > o->rates_end) o->rates_end = first + n;
    if (o->rates_end - o->rates_first > ABAR_STEP_RATES) o->rates_first = o->rates_end - ABAR_STEP_RATES;
}

abar_status abar_optim_rates(abar_optim *o, int64_t first, const double *lr, int64_t n)
{
    if (n < 1 || n > ABAR_STEP_RATES)
        return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT, "rates: %lld of them, give 1 to %d", (long long)n, ABAR_STEP_RATES);
    if (o->moved) ABAR_TRY(move(o));
    ABAR_TRY(abar__optim_check_blocks(o));
    if (first != o->k) { /* a run that goes on: its rule alone remembers no k */
        if (o->curvature)
            return abar__fail(o->dev->ctx, ABAR_E_STATE, "rates: step %lld comes next, not %lld", (long long)o->k,
                              (long long)first);
        ABAR_TRY(abar__optim_pull(o));
        o->k = first;
        ABAR_TRY(abar__optim_push(o));
    }
    ABAR_TRY(ops_of(o)->rates(o->dev, o->step, first, lr, n));
    know_rates(o, first, n);
    return ABAR_OK;
}

abar_status abar_optim_begin(abar_optim *o) { return ops_of(o)->begin(o->dev, o->step); }

abar_status abar_optim_add_loss(abar_optim *o, const abar_loss *loss) { return ops_of(o)->add_loss(o->dev, o->step, loss); }

static abar_status prepare(abar_optim *o, const abar_step_config *step, abar_step_config *c)
{
    ABAR_TRY(abar__optim_check_pass(o, "enqueue"));
    ABAR_TRY(abar__optim_read_step(o->dev->ctx, step, c));
    if (o->moved) ABAR_TRY(move(o));
    if (o->k < o->rates_first || o->k >= o->rates_end)
        return abar__fail(o->dev->ctx, ABAR_E_STATE,
                          "enqueue: step %lld has no learning rate, give it one with abar_optim_rates", (long long)o->k);
    return ABAR_OK;
}

abar_status abar_optim_queue(abar_optim *o, const abar_step_config *step)
{
    abar_step_config c;
    ABAR_TRY(prepare(o, step, &c));
    return enqueue(o, &c);
}

abar_status abar__optim_queue_first(abar_optim *o, const abar_step_config *step)
{
    abar_step_config c;
    ABAR_TRY(prepare(o, step, &c));
    return enqueue_first(o, &c);
}

void abar_optim_replayed(abar_optim *o) { advance(o); }

const abar_step_note *abar_optim_note(abar_optim *o, int64_t k)
{
    const abar__step_outcome *n = ops_of(o)->outcome(o->step, k);
    o->note = (abar_step_note){
        .skipped = n->skipped != 0,
        .grad_norm = n->grad_norm,
        .loss = {.loss = n->count > 0 ? n->loss / (double)n->count : NAN, .correct = n->correct, .count = n->count}};
    return &o->note;
}

/* ---- micro-batches that are joined on the device -------------------------------------------------------------------- */

abar_status abar__optim_visit_pending(abar_optim *o, abar__pending_visitor visit, void *user)
{
    return abar_optim_pending_count(o) ? abar__curvature_visit_pending(o->curvature, visit, user) : ABAR_OK;
}

void abar__optim_scale_counts(abar_optim *o, int64_t ranks)
{
    if (abar_optim_pending_count(o)) abar__curvature_scale_counts(o->curvature, ranks);
}

void *abar__optim_losses(const abar_optim *o) { return ops_of(o)->losses(o->step); }
bool abar__optim_stops(const abar_optim *o, int64_t k) { return ops_of(o)->outcome(o->step, k)->stops != 0; }
