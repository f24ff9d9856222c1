/* The stages of blocks on the host: one block after the other, its gradient packed into X. */
#include "device/host/blocks_impl.h"

#include "device/step_rules.h"

#include <math.h>

static size_t packed_bytes(const abar_device *dev, int64_t n)
{
    return abar__round_up((size_t)n * abar__block_element(dev), ABAR_ALIGN);
}

/* ---- X and the gradient's memory ------------------------------------------------------------------------------------- */

/* coupled: with the weight decay that goes through the gradient. */
static void load(const work *w, bool coupled)
{
    const abar__block *b = w->block;
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) {
            const double decay = coupled && b->decay != 0.0 ? b->decay * get(w, b->weight, r.at + i) : 0.0;
            set(w, w->x, r.first + i, get(w, b->grad, r.at + i) + decay);
        }
}

static double squares(const work *w)
{
    double sum = 0.0;
    for (int64_t i = 0; i < w->block->count; i++) sum += get(w, w->x, i) * get(w, w->x, i);
    return sum;
}

static void store(const work *w, bool fine)
{
    const abar__block *b = w->block;
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) set(w, b->grad, r.at + i, fine ? get(w, w->x, r.first + i) : 0.0);
}

/* ---- stages -------------------------------------------------------------------------------------------------------------- */

static double rest(double beta) { return beta == 1.0 ? 1.0 : 1.0 - beta; }

/* What an average is multiplied by to be read at update t. */
static double unbias(double beta, int64_t t) { return beta == 1.0 ? 1.0 : abar__unbias(beta, t); }

static void average(work *w, const abar__block_stage *s, int mode)
{
    const abar__block *b = w->block;
    const int64_t n = b->dim[mode], behind = abar__block_behind(b, mode);
    w->kept += w->overflows;
    if (!w->overflows && abar__average_is_due(s->every, w->t))
        w->dev->ops->stats->average_mode(w->dev, b->count / n / behind, n, behind, w->x, s->beta, rest(s->beta),
                                         factor_of(w, s->state, mode));
}

/* methods.md section 9: eps is raised tenfold, at most five times. A factor that is zero stays without a root. */
static bool climb(work *w, const abar__block_stage *s, int mode, double *ridge)
{
    const abar__stats_ops *stats = w->dev->ops->stats;
    const int64_t n = w->block->dim[mode];
    const void *average = factor_of(w, s->from, mode);
    const double scale = unbias(s->beta, w->t), least = 1e-8 * scale * stats->trace(w->dev, n, average) / (double)n;
    double eps = s->eps;
    for (int raised = 0; raised <= 5; raised++, eps = fmax(10.0 * eps, least)) {
        *ridge = s->ridge;
        if (stats->inverse_root(w->dev, n, average, scale, eps, s->ridge > 0.0 ? ridge : NULL,
                                abar__block_exponent(w->block, s), factor_of(w, s->state, mode), w->scratch))
            return true;
        if (!(least > 0.0)) return false;
    }
    return false;
}

static void take_root(work *w, const abar__block_stage *s, int mode)
{
    const int64_t n = w->block->dim[mode];
    void *average = factor_of(w, s->from, mode);
    double ridge;
    const bool fine = climb(w, s, mode, &ridge);
    w->kept += !fine;
    for (int64_t i = 0; fine && s->ridge > 0.0 && i < n; i++) set(w, average, i * n + i, get(w, average, i * n + i) + ridge);
}

static void swap(work *w)
{
    char *x = w->x;
    w->x = w->y;
    w->y = x;
}

static void multiply(work *w, const abar__block_stage *s, int mode)
{
    if (abar__block_multiply(w, s->state, mode, s->transposed, w->x, w->y)) swap(w);
}

/* Those of a block's modes that the stage is about. */
static void each_mode(work *w, const abar__block_stage *s, void (*visit)(work *, const abar__block_stage *, int))
{
    for (int mode = 0; mode < w->block->order; mode++)
        if (abar__block_has(w->block, &w->plan->state[s->state], mode)) visit(w, s, mode);
}

static void square(work *w, const abar__block_stage *s)
{
    void *v = w->block->state[s->state];
    if (w->overflows) return;
    for (run r = run_from(w->block, 0); r.first < w->block->count; r = run_from(w->block, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) {
            const double x = get(w, w->x, r.first + i);
            set(w, v, r.at + i, s->beta * get(w, v, r.at + i) + rest(s->beta) * x * x);
        }
}

static void move(work *w, const abar__block_stage *s)
{
    void *m = w->block->state[s->state];
    const double divisor = 1.0 - s->ahead * pow(s->beta, (double)(w->t - 1));
    for (run r = run_from(w->block, 0); r.first < w->block->count; r = run_from(w->block, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) {
            const double x = get(w, w->x, r.first + i), old = get(w, m, r.at + i);
            set(w, w->x, r.first + i, (s->ahead * old + (1.0 - s->ahead) * x) / divisor);
            set(w, m, r.at + i, s->beta * old + (1.0 - s->beta) * x);
        }
}

static void measure(work *w, const abar__block_stage *s)
{
    const double scale = s->corrected ? unbias(s->beta, w->t) : 1.0;
    double sum = 0.0;
    for (run r = run_from(w->block, 0); r.first < w->block->count; r = run_from(w->block, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) {
            double d = get(w, w->x, r.first + i);
            if (s->state >= 0) d /= sqrt(scale * get(w, w->block->state[s->state], r.at + i)) + s->eps;
            if (w->t < s->start) set(w, w->x, r.first + i, d);
            sum += d * d;
        }
    w->length = sqrt(sum);
}

static void rescale(work *w, const abar__block_stage *s)
{
    if (w->t < s->start) return;
    const double factor = w->length / (sqrt(s->whole ? w->squares : squares(w)) + ABAR_GRAFT_EPS);
    for (int64_t i = 0; i < w->block->count; i++) set(w, w->x, i, factor * get(w, w->x, i));
}

/* A step that is not finite leaves the momentum as it is. */
static void push(work *w, const abar__block_stage *s)
{
    const abar__block *b = w->block;
    void *m = b->state[s->state];
    if (!isfinite(squares(w))) return;
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) {
            const double decay = b->late_decay != 0.0 ? b->late_decay * get(w, b->weight, r.at + i) : 0.0;
            const double x = get(w, w->x, r.first + i) + decay, moved = s->beta * get(w, m, r.at + i) + s->gain * x;
            set(w, m, r.at + i, moved);
            set(w, w->x, r.first + i, s->ahead * moved + s->rest * x);
        }
}

static void even(work *w)
{
    const double rms = sqrt(squares(w) / (double)w->block->count);
    for (int64_t i = 0; i < w->block->count; i++) set(w, w->x, i, get(w, w->x, i) / (ABAR_RMS_EPS + rms));
}

static abar__ball ball_of(const work *w, double c)
{
    const abar__block *b = w->block;
    double weight = 0.0, inner = 0.0;
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) {
            const double v = get(w, b->weight, r.at + i);
            weight += v * v;
            inner += v * get(w, w->x, r.first + i);
        }
    return abar__ball_of(weight, squares(w), inner, c, w->lr * b->lr_scale);
}

static void finish(work *w, const abar__block_stage *s)
{
    const abar__block *b = w->block;
    const double c = s->corrected && w->t > 1 ? abar__late_unbias(s->beta, s->beta2, w->t) : 1.0;
    abar__ball f = {c, b->late_decay};
    if (s->ball && b->order > 1)
        f = ball_of(w, c);
    else if (!s->cautious)
        f.step *= 1.0 - w->lr * b->lr_scale * b->late_decay;
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) {
            const double x = get(w, w->x, r.first + i), v = f.weight != 0.0 ? get(w, b->weight, r.at + i) : 0.0;
            const double decay = s->cautious && x * v < 0.0 ? 0.0 : f.weight * v;
            set(w, w->x, r.first + i, w->t == 1 ? 0.0 : f.step * x + decay);
        }
}

static void run_stage(work *w, const abar__block_stage *s)
{
    switch (s->kind) {
    case ABAR_BLOCK_AVERAGE: each_mode(w, s, average); break;
    case ABAR_BLOCK_SQUARES: square(w, s); break;
    case ABAR_BLOCK_ROOT:
        if (abar__root_is_due(s, w->t)) each_mode(w, s, take_root);
        break;
    case ABAR_BLOCK_MOMENTUM: move(w, s); break;
    case ABAR_BLOCK_MULTIPLY: each_mode(w, s, multiply); break;
    case ABAR_BLOCK_MEASURE: measure(w, s); break;
    case ABAR_BLOCK_RESCALE: rescale(w, s); break;
    case ABAR_BLOCK_HEAVY: push(w, s); break;
    case ABAR_BLOCK_WHITENED: each_mode(w, s, abar__block_whitened); break;
    case ABAR_BLOCK_SCALES: abar__block_scales(w, s); break;
    case ABAR_BLOCK_ADAM: abar__block_adam(w, s); break;
    case ABAR_BLOCK_EVEN: even(w); break;
    case ABAR_BLOCK_STEP: finish(w, s); break;
    case ABAR_BLOCK_BASIS:
        if (abar__basis_is_due(s, w->t)) abar__block_turn(w, s);
        break;
    }
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------
 */

static int64_t largest_count(const abar__block *blocks, int n)
{
    int64_t most = 0;
    for (int i = 0; i < n; i++) most = blocks[i].count > most ? blocks[i].count : most;
    return most;
}

/* The largest mode that a stage of this kind renews a matrix of. */
static int64_t largest_mode(const abar__block_plan *plan, abar__block_stage_kind kind, const abar__block *blocks, int n)
{
    int64_t most = 0;
    for (int k = 0; k < plan->n_stages; k++) {
        if (plan->stage[k].kind != kind) continue;
        for (int i = 0; i < n; i++)
            for (int mode = 0; mode < blocks[i].order; mode++)
                if (abar__block_has(&blocks[i], &plan->state[plan->stage[k].state], mode) && blocks[i].dim[mode] > most)
                    most = blocks[i].dim[mode];
    }
    return most;
}

/* X, what it is multiplied into, and a third one for m where there are bases; then what roots and bases need. */
size_t abar__blocks_scratch(abar_device *dev, const abar__block_plan *plan, const abar__block *blocks, int n)
{
    const int64_t root = largest_mode(plan, ABAR_BLOCK_ROOT, blocks, n),
                  basis = largest_mode(plan, ABAR_BLOCK_BASIS, blocks, n);
    const size_t packed = packed_bytes(dev, largest_count(blocks, n));
    size_t bytes = root > 0 ? dev->ops->stats->inverse_root_scratch(dev, root) : 0;
    if (basis > 0) {
        const size_t turn = abar__block_order_bytes(basis) + dev->ops->stats->basis_scratch(dev, basis);
        bytes = packed + (turn > bytes ? turn : bytes);
    }
    return 2 * packed + bytes;
}

/* The stage before which the blocks of a parameter wait for each other; n_stages: none. */
static int meeting_of(const abar__block_plan *plan)
{
    int k = 0;
    while (k < plan->n_stages && !plan->stage[k].whole) k++;
    return k;
}

static int blocks_together(const abar__block_plan *plan, const abar__block *blocks, int n)
{
    int together = 1;
    while (meeting_of(plan) < plan->n_stages && together < n && blocks[together].grad == blocks[0].grad) together++;
    return together;
}

static void run_first(work *w, int stages)
{
    load(w, true);
    w->overflows = abar__squares_overflow(squares(w), w->wide);
    for (int k = 0; k < stages; k++) run_stage(w, &w->plan->stage[k]);
}

static void finish_block(work *w, abar__step_state *state)
{
    const bool fine = isfinite(squares(w));
    store(w, fine);
    state->dropped += !fine;
    state->kept += w->kept;
}

static work work_on(abar_device *dev, const abar__block_plan *plan, const abar__block *block, size_t bytes, bool has_bases,
                    double lr, int64_t t, void *scratch)
{
    return (work){.dev = dev,
                  .plan = plan,
                  .block = block,
                  .wide = dev->ops->dtype == ABAR_F64,
                  .x = scratch,
                  .y = (char *)scratch + bytes,
                  .z = has_bases ? (char *)scratch + 2 * bytes : NULL,
                  .scratch = (char *)scratch + (has_bases ? 3 : 2) * bytes,
                  .lr = lr,
                  .t = t};
}

void abar__blocks_run(abar_device *dev, const abar__block_plan *plan, const abar__block *blocks, int n, double lr,
                      abar__step_state *state, void *scratch)
{
    const size_t bytes = packed_bytes(dev, largest_count(blocks, n));
    const bool has_bases = largest_mode(plan, ABAR_BLOCK_BASIS, blocks, n) > 0;
    const int meeting = meeting_of(plan);
    for (int i = 0, together; i < n; i += together) {
        double length = 0.0, measured = 0.0;
        together = blocks_together(plan, blocks + i, n - i);
        for (int k = 0; k < together; k++) {
            work w = work_on(dev, plan, &blocks[i + k], bytes, has_bases, lr, state->t, scratch);
            run_first(&w, meeting);
            if (meeting == plan->n_stages) {
                finish_block(&w, state);
                continue;
            }
            length += w.length * w.length;
            measured += squares(&w);
            store(&w, true);
            state->kept += w.kept;
        }
        for (int k = 0; meeting < plan->n_stages && k < together; k++) {
            work w = work_on(dev, plan, &blocks[i + k], bytes, has_bases, lr, state->t, scratch);
            w.length = sqrt(length);
            w.squares = measured;
            load(&w, false);
            for (int s = meeting; s < plan->n_stages; s++) run_stage(&w, &plan->stage[s]);
            finish_block(&w, state);
        }
    }
}
