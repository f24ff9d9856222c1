/* The step of cuda (step_impl.h; methods.md sections 0, 8, 9), without host synchronisation: the norm of all gradients, whose
 * last block decides whether to skip, how much to clip and at which rate; the maps (vectors.cu, matrices.cu); and the passes
 * over the parameters. Everything they pass on is in device memory, so that a captured step can be replayed. */
#include "device/cuda/step/tables.h"

#include <math.h>
#include <string.h>

#define THREADS 256

/* ---- losses and the norm ------------------------------------------------------------------------------------------ */

static __global__ void add_one_loss(abar__cuda_losses *seen, const abar_loss *result)
{
    const abar_loss r = *result;
    seen->loss += r.loss * (double)r.count;
    seen->correct += r.correct;
    seen->count += r.count;
    if (!isfinite(r.loss)) seen->bad = 1;
}

/* What one thread adds up of a unit. */
__device__ static double unit_squares(const abar__norm_item &item, int64_t first)
{
    const float *x = item.grad + first;
    const int n = (int)(item.count - first < ABAR_NORM_SPAN ? item.count - first : ABAR_NORM_SPAN),
              quads = item.vectors ? n / 4 : 0;
    double sum = 0.0;
#pragma unroll
    for (int j = 0; j < ABAR_NORM_SPAN / 4 / THREADS; j++) {
        const int q = (int)threadIdx.x + j * THREADS;
        if (q >= quads) continue;
        const pack<float> v = load_pack(x + 4 * q);
#pragma unroll
        for (int i = 0; i < 4; i++) sum += (double)v.v[i] * (double)v.v[i];
    }
    for (int i = 4 * quads + (int)threadIdx.x; i < n; i += THREADS) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* The step's decisions, by one thread. total: sum of squares of all gradients. */
__device__ static void decide(abar__cuda_live *l, double total, double grad_scale, double clip, const double *rates,
                              abar__step_outcome *outcomes, const abar__cuda_rule &rule)
{
    const int64_t k = l->state.k;
    const double norm = grad_scale * sqrt(total);
    const bool skip = l->seen.bad || !isfinite(norm);
    const double clipping = clip > 0.0 ? fmin(1.0, clip / (norm + 1e-6)) : 1.0;
    l->now = k;
    l->state.k = k + 1;
    l->norm = sqrt(total);
    l->scale = grad_scale * clipping;
    l->grad_scale = grad_scale;
    l->numbers.skip = skip;
    if (!skip) {
        l->state.t++;
        l->numbers.lr = rates[k % ABAR_STEP_RATES];
        if (rule.schedule_free)
            l->numbers.share = abar__schedule_free_share(&l->state, l->numbers.lr, rule.time_power, rule.rate_power);
        l->numbers.grad_scale = (float)l->scale;
        l->numbers.first = (float)(1.0 / abar__cuda_correction(rule.beta1, l->state.t));
        l->numbers.second = (float)(1.0 / sqrt(abar__cuda_correction(rule.beta2, l->state.t)));
    }
    abar__step_outcome outcome = {l->seen.loss, l->seen.correct, l->seen.count, norm, k, skip, l->seen.stops};
    outcomes[k % ABAR_STEP_RESULTS] = outcome;
}

/* Block b adds up units b, b + gridDim, ... into partial[b]; the last to finish adds those up, in their order, and decides. */
static __global__ void __launch_bounds__(THREADS)
    take_norm(const abar__norm_item *items, const abar__cuda_unit *units, int64_t n, double *partial, abar__cuda_live *l,
              double grad_scale, double clip, const double *rates, abar__step_outcome *outcomes, abar__cuda_rule rule)
{
    __shared__ double shared[32];
    double sum = 0.0;
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x)
        sum += unit_squares(items[units[i].item], (int64_t)units[i].first * ABAR_NORM_SPAN);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
    if (!last_block(&l->ticket, gridDim.x)) return;
    sum = 0.0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) sum += __ldcg(partial + i);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) decide(l, sum, grad_scale, clip, rates, outcomes, rule);
}

/* ---- binding ------------------------------------------------------------------------------------------------------ */

static void fill_item(abar__compiled_step *p, int i, const abar__update_item *update)
{
    abar__cuda_item item = abar__cuda_item_of(update, is_map(update));
    item.verdict = update->block >= 0 ? p->verdicts + update->block : NULL;
    if (is_map(update)) {
        abar__cuda_map *map = host_side(p, p->m.maps) + update->map;
        const abar__plan *plan = &map->plan;
        map->grad = (float *)update->grad;
        map->bias_grad = update->bias ? (float *)update->bias->grad : NULL;
        item.u = map->ordered;
        item.coefficient = (const float *)abar__plan_data(plan, plan->apply.w);
        item.row_scale =
            map->product ? NULL : (const float *)abar__plan_data(plan, plan->apply.row_scale); /* the product has it */
        item.form = p->m.forms + update->map;
        const bool last = map->wave == p->m.n_waves - 1;
        item.dense = last ? map->product : map->grad;
        item.dense_bias = last && map->product ? map->product + plan->out * plan->columns : map->bias_grad;
    }
    host_side(p, p->items)[i] = item;
}

static abar_status send_tables(abar_device *dev, abar__compiled_step *p)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaMemcpyAsync(p->memory, p->host, p->tables_bytes, cudaMemcpyHostToDevice, cuda->stream));

    abar__cuda_order_maps(dev, &p->m);
    CUDA_TRY(dev, cudaEventRecord(p->sent, cuda->stream));
    return ABAR_OK;
}

/* The tables of units fit these alone. */
static bool same_sizes(const abar__compiled_step *p, const abar__update_item *items, const abar__update_item *updates)
{
    bool same = true;
    for (int i = 0; i < p->n_items; i++) same = same && host_side(p, p->norm_items)[i].count == items[i].count;
    for (int i = 0; i < p->n_updates; i++) {
        const abar__cuda_item *item = host_side(p, p->items) + i;
        same = same && item->count == updates[i].count && item->rows == (is_map(&updates[i]) ? updates[i].rows : 0);
    }
    return same;
}

static abar_status bind(abar_device *dev, abar__compiled_step *p, const abar__update_item *items,
                        const abar__update_item *updates)
{
    for (int i = 0; i < p->n_items; i++) {
        abar__norm_item *to = host_side(p, p->norm_items) + i;
        to->grad = (const float *)items[i].grad;
        to->count = items[i].count;
        to->vectors = (uintptr_t)items[i].grad % 16 == 0;
    }
    for (int i = 0; i < p->m.n; i++) {
        abar__cuda_map *map = host_side(p, p->m.maps) + i;
        map->grad = map->bias_grad = NULL;
    }
    for (int i = 0; i < p->n_updates; i++) fill_item(p, i, &updates[i]);
    return send_tables(dev, p);
}

static abar_status rebind(abar_device *dev, abar__compiled_step *p, const abar__step_desc *desc)
{
    if (desc->n_items != p->n_items || desc->n_updates != p->n_updates || desc->n_blocks != p->n_blocks ||
        desc->n_tensors != p->n_tensors || !same_sizes(p, desc->items, desc->updates))
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: parameters of other sizes need another step");
    if (p->extra) ABAR_TRY(abar__cuda_extra_rebind(dev, p->extra, desc->extra));
    if (p->blocks) ABAR_TRY(abar__cuda_block_stages_rebind(dev, p->blocks, desc->tensors));
    CUDA_TRY(dev, cudaEventSynchronize(p->sent)); /* the tables sent before have left this memory */
    ABAR_TRY(bind(dev, p, desc->items, desc->updates));
    if (p->orthogonaliser) ABAR_TRY(abar__cuda_orthogonaliser_rebind(dev, p->orthogonaliser, desc->blocks));
    if (p->m.n_dense == 0) return ABAR_OK;
    abar__cuda_fill_products(p);
    return abar__cuda_multiplier_rebind(dev, p->m.multiplier, p->to_multiply);
}

static abar_status share(abar_device *dev, abar__compiled_step *p, const abar__owners *owners)
{
    if (p->m.n_factors == 0) return ABAR_OK;
    CUDA_TRY(dev, cudaEventSynchronize(p->sent));
    ABAR_TRY(abar__cuda_give_owners(dev, p, owners));
    return send_tables(dev, p);
}

static abar_status fetch(abar_device *dev, void *to, const void *from, size_t n)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    CUDA_TRY(dev, cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, cuda->stream));
    CUDA_TRY(dev, cudaStreamSynchronize(cuda->stream));
    return ABAR_OK;
}

/* ---- creating ----------------------------------------------------------------------------------------------------- */

static void destroy(abar_device *dev, abar__compiled_step *p)
{
    if (!p) return;
    cudaSetDevice(dev->ordinal);
    cudaStreamSynchronize(abar__cuda_of(dev)->stream);
    abar__cuda_multiplier_destroy(dev, p->m.multiplier);
    abar__cuda_inverter_destroy(dev, p->m.inverter);
    abar__cuda_orthogonaliser_destroy(dev, p->orthogonaliser);
    abar__cuda_block_stages_destroy(dev, p->blocks);
    abar__cuda_extra_destroy(dev, p->extra);
    abar__cuda_natural_destroy(dev, p->natural);
    if (p->sent) cudaEventDestroy(p->sent);
    abar__owned_release(dev, p->owned);
    abar__cuda_pinned_free(dev, p->host, p->host_bytes);
    abar_device_free(dev, p->memory, p->memory_bytes);
    abar__free(dev->ctx, p, sizeof *p);
}

static abar_status make(abar_device *dev, abar__compiled_step *p, const abar__step_desc *desc)
{
    p->rule = abar__cuda_rule_of(desc->scalars);
    p->row_decay = desc->row_decay;
    p->m.cadence = desc->cadence;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    CUDA_TRY(dev, cudaEventCreateWithFlags(&p->sent, cudaEventDisableTiming));
    ABAR_TRY(abar__cuda_make_tables(dev, p, desc));
    if (p->m.n_outer > 0 && p->m.n_outer < p->m.n)
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: outer products are subtracted of all maps, or of none");
    const bool exact = desc->ns_exact || dev->config.precision == ABAR_PRECISION_FP32;
    if (p->n_blocks > 0)
        ABAR_TRY(abar__cuda_orthogonaliser_create(dev, desc->ns, desc->blocks, p->n_blocks, exact, &p->orthogonaliser));
    if (p->n_tensors > 0)
        ABAR_TRY(abar__cuda_block_stages_create(dev, desc->block_plan, desc->tensors, p->n_tensors, &p->blocks));
    if (desc->extra && desc->extra->request.kind != ABAR_EXTRA_NONE)
        ABAR_TRY(abar__cuda_extra_create(dev, desc->extra, &p->extra));
    if (p->m.n > 0 && abar__plan_is_natural(&desc->plans[0]))
        ABAR_TRY(abar__cuda_natural_create(dev, desc->plans, &p->m, &p->natural));
    ABAR_TRY(bind(dev, p, desc->items, desc->updates));
    ABAR_TRY(abar__cuda_make_dense(dev, p));
    abar__step_state state = {};
    state.kl_scale = 1.0;
    return fetch(dev, &p->m.now->state, &state, sizeof state);
}

static abar_status create(abar_device *dev, const abar__step_desc *desc, abar__compiled_step **out)
{
    *out = NULL;
    abar__compiled_step *p;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *p, (void **)&p));
    abar_status status = make(dev, p, desc);
    if (status < 0) {
        destroy(dev, p);
        return status;
    }
    *out = p;
    return ABAR_OK;
}

static size_t bytes(const abar__compiled_step *p)
{
    return sizeof *p + p->memory_bytes + p->host_bytes + (p->m.inverter ? abar__cuda_inverter_bytes(p->m.inverter) : 0) +
           (p->m.multiplier ? abar__cuda_multiplier_bytes(p->m.multiplier) : 0) +
           (p->orthogonaliser ? abar__cuda_orthogonaliser_bytes(p->orthogonaliser) : 0) +
           (p->blocks ? abar__cuda_block_stages_bytes(p->blocks) : 0) + (p->extra ? abar__cuda_extra_bytes(p->extra) : 0) +
           (p->natural ? abar__cuda_natural_bytes(p->natural) : 0) + (p->owned ? p->owned->bytes : 0);
}

/* ---- stepping ----------------------------------------------------------------------------------------------------- */

/* A ring on both sides: a place is used again only after as many steps as it has. */
static abar_status set_rates(abar_device *dev, abar__compiled_step *p, int64_t first, const double *lr, int64_t n)
{
    if (n > ABAR_STEP_RATES)
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "device cuda: %lld learning rates at once, give at most %d", (long long)n,
                          ABAR_STEP_RATES);
    for (int64_t done = 0; done < n;) {
        const int64_t at = (first + done) % ABAR_STEP_RATES, workspace = ABAR_STEP_RATES - at, left = n - done;
        const int64_t count = left < workspace ? left : workspace;
        memcpy(p->host_rates + at, lr + done, (size_t)count * sizeof *lr);
        CUDA_TRY(dev, cudaMemcpyAsync(p->rates + at, p->host_rates + at, (size_t)count * sizeof *lr, cudaMemcpyHostToDevice,
                                      abar__cuda_of(dev)->stream));
        done += count;
    }
    return ABAR_OK;
}

static abar_status begin(abar_device *dev, abar__compiled_step *p)
{
    CUDA_TRY(dev, cudaMemsetAsync(&p->m.now->seen, 0, sizeof p->m.now->seen, abar__cuda_of(dev)->stream));
    return ABAR_OK;
}

static abar_status add_loss(abar_device *dev, abar__compiled_step *p, const void *result)
{
    abar__cuda_launch(dev, add_one_loss, dim3(1), dim3(1), 0, &p->m.now->seen, (const abar_loss *)result);
    return abar__cuda_status(dev);
}

static abar_status perturb(abar_device *dev, abar__compiled_step *p, int sign)
{
    return abar__cuda_extra_perturb(dev, p->extra, p->m.now, sign);
}

static abar_status check_extra(abar_device *dev, abar__compiled_step *p)
{
    return abar__cuda_extra_check(dev, p->extra, p->m.now);
}

static abar_status take_extra(abar_device *dev, abar__compiled_step *p, double grad_scale, double clip)
{
    return abar__cuda_extra_take(dev, p->extra, p->m.now, grad_scale, clip);
}

static abar_status check(abar_device *dev, abar__compiled_step *p, double grad_scale, double clip)
{
    abar__cuda_launch(dev, take_norm, dim3((unsigned)p->norm_blocks), dim3(THREADS), 0, p->norm_items, p->norm_table,
                      p->norm_units, p->partial, p->m.now, grad_scale, clip, p->rates, p->outcomes, p->rule);
    return abar__cuda_status(dev);
}

static abar_status settle(abar_device *dev, abar__compiled_step *p)
{
    return p->m.n_dense > 0 ? abar__cuda_settle_matrices(dev, &p->m) : ABAR_OK;
}

static abar_status keep(abar_device *dev, abar__compiled_step *p, const double *to_mean, bool divided)
{
    if (p->m.n == 0) return ABAR_OK;
    if (p->natural) {
        abar__cuda_natural_offer(p->natural, to_mean);
        return ABAR_OK;
    }
    ABAR_TRY(abar__cuda_keep_vectors(dev, &p->m, to_mean));
    if (p->m.n_dense > 0) ABAR_TRY(abar__cuda_keep_matrices(dev, &p->m, to_mean, divided));
    return divided ? ABAR_OK : settle(dev, p);
}

static abar_status precondition(abar_device *dev, abar__compiled_step *p, bool measure)
{
    if (p->m.n == 0) return ABAR_OK;
    if (p->natural) return abar__cuda_natural_run(dev, p->natural);
    abar__cuda_treat_vectors(dev, &p->m);
    if (p->m.n_dense > 0) ABAR_TRY(abar__cuda_treat_matrices(dev, &p->m));
    return measure ? abar__cuda_compare_maps(dev, &p->m) : abar__cuda_status(dev);
}

/* One block adds up what became of the blocks that were orthogonalised. */
static __global__ void __launch_bounds__(THREADS) count_verdicts(abar__cuda_live *l, const int32_t *verdicts, int n)
{
    __shared__ double shared[32];
    if (l->numbers.skip) return;
    double dropped = 0.0, small = 0.0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        dropped += verdicts[i] == ABAR_NS_NOT_FINITE;
        small += verdicts[i] == ABAR_NS_BELOW_EPS;
    }
    dropped = block_sum(dropped, shared);
    small = block_sum(small, shared);
    if (threadIdx.x != 0) return;
    l->state.dropped += (int64_t)dropped;
    l->state.small += (int64_t)small;
}

static abar_status pass(abar_device *dev, abar__compiled_step *p, int index)
{
    const abar__update_pass *pass = &p->passes[index];
    if (pass->kind == ABAR_PASS_ORTHOGONALISE) {
        ABAR_TRY(abar__cuda_orthogonaliser_run(dev, p->orthogonaliser, p->row_decay, &p->m.now->numbers.skip, p->verdicts));
        abar__cuda_launch(dev, count_verdicts, dim3(1), dim3(THREADS), 0, p->m.now, p->verdicts, p->n_blocks);
        return abar__cuda_status(dev);
    }
    if (pass->kind == ABAR_PASS_BLOCKS) return abar__cuda_block_stages_run(dev, p->blocks, p->m.now);
    if (pass->kind == ABAR_PASS_HYPERBALL) {
        abar__cuda_hyperball(dev, p->items + pass->first, pass->n, &p->m.now->numbers, p->ball_sums);
        return abar__cuda_status(dev);
    }
    const int64_t first = p->first_unit[index];
    abar__cuda_update(dev, pass->update, p->items, p->table + first, p->first_unit[index + 1] - first, &p->m.now->numbers,
                      p->rule);
    return abar__cuda_status(dev);
}

static abar_status shift(abar_device *dev, int64_t n, void *weight, const void *by, double factor, void *shadow)
{
    abar__cuda_shift(dev, n, (float *)weight, (const float *)by, factor, (bf16 *)shadow);
    return abar__cuda_status(dev);
}

/* ---- looking inside ----------------------------------------------------------------------------------------------- */

static abar_status measured(abar_device *dev, abar__compiled_step *p, double *products)
{
    return p->m.n > 0 ? fetch(dev, products, p->m.products, 3 * (size_t)p->m.n * sizeof *products) : ABAR_OK;
}

static void *workspace(const abar__compiled_step *p) { return p->workspace; }

/* A step in a graph has no clock of its own. */
static void times(const abar__compiled_step *p, double *refresh, double *apply)
{
    (void)p;
    *refresh = *apply = NAN;
}

static const int32_t *skipped(const abar__compiled_step *p) { return &p->m.now->numbers.skip; }

static const int64_t *step_now(const abar__compiled_step *p) { return &p->m.now->state.k; }

static void *losses(const abar__compiled_step *p) { return &p->m.now->seen; }

static int64_t *block_events(const abar__compiled_step *p) { return &p->m.now->state.dropped; }

static const abar__step_outcome *outcome(const abar__compiled_step *p, int64_t k)
{
    return &p->outcomes[k % ABAR_STEP_RESULTS];
}

static abar_status pull(abar_device *dev, abar__compiled_step *p, abar__step_state *state, abar__map_state *maps)
{
    ABAR_TRY(abar__cuda_status(dev));
    ABAR_TRY(fetch(dev, state, &p->m.now->state, sizeof *state));
    return p->m.n > 0 ? fetch(dev, maps, p->m.states, (size_t)p->m.n * sizeof *maps) : ABAR_OK;
}

static abar_status push(abar_device *dev, abar__compiled_step *p, const abar__step_state *state, const abar__map_state *maps)
{
    ABAR_TRY(fetch(dev, &p->m.now->state, state, sizeof *state));

    if (p->m.n == 0) return ABAR_OK;
    abar__cuda_order_maps(dev, &p->m);
    return fetch(dev, p->m.states, maps, (size_t)p->m.n * sizeof *maps);
}

extern "C" const abar__step_ops abar__cuda_step = {
    .create = create,
    .destroy = destroy,
    .bytes = bytes,
    .workspace = workspace,
    .rebind = rebind,
    .rates = set_rates,
    .begin = begin,
    .add_loss = add_loss,
    .perturb = perturb,
    .check_extra = check_extra,
    .take_extra = take_extra,
    .check = check,
    .commit = keep,
    .precondition = precondition,
    .pass = pass,
    .second = NULL, /* methods that learn from a second pass are refused */
    .measured = measured,
    .shift = shift,
    .skipped = skipped,
    .step_now = step_now,
    .losses = losses,
    .outcome = outcome,
    .pull = pull,
    .push = push,
    .times = times,
    .share = share,
    .visit_derived = abar__cuda_visit_derived,
    .settle = settle,
    .block_events = block_events,
};
