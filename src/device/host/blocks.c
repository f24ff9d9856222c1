/* The stages of blocks on the host: one block after the other, its gradient packed into X. */
#include "device/host/blocks.h"

#include "device/step_rules.h"

#include <math.h>

/* A block while its stages run. */
typedef struct work {
    abar_device *dev;
    const abar__block_plan *plan;
    const abar__block *block;
    bool wide;       /* double, else float */
    bool overflows;  /* squares of these gradients do not fit: what is averaged stays as it is */
    char *x, *y;     /* (count) */
    void *scratch;   /* of roots */
    double length;   /* that was measured */
    int64_t t, kept; /* this update; matrices that stayed as they were */
} work;

static double get(const work *w, const void *p, int64_t i)
{
    return w->wide ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static void set(const work *w, void *p, int64_t i, double v)
{
    if (w->wide)
        ((double *)p)[i] = v;
    else
        ((float *)p)[i] = (float)v;
}

static size_t element(const abar_device *dev) { return abar_dtype_size(dev->ops->dtype); }

static size_t packed_bytes(const abar_device *dev, int64_t n) { return abar__round_up((size_t)n * element(dev), ABAR_ALIGN); }

static void swap(work *w)
{
    char *x = w->x;
    w->x = w->y;
    w->y = x;
}

/* Elements of a block that follow each other in the parameter's memory: element first + i is at + i there. */
typedef struct run {
    int64_t first, at, n;
} run;

static run run_from(const abar__block *b, int64_t first)
{
    const int64_t n = b->kernel == 1 && b->stride[b->order - 1] == 1 ? b->dim[b->order - 1] : 1;
    return (run){first, first < b->count ? abar__block_at(b, first) : 0, n};
}

/* ---- X and the gradient's memory ------------------------------------------------------------------------------------- */

static void load(const work *w)
{
    const abar__block *b = w->block;
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) {
            const double decay = b->decay != 0.0 ? b->decay * get(w, b->weight, r.at + i) : 0.0;
            set(w, w->x, r.first + i, get(w, b->grad, r.at + i) + decay);
        }
}

static double squares(const work *w)
{
    double sum = 0.0;
    for (int64_t i = 0; i < w->block->count; i++) sum += get(w, w->x, i) * get(w, w->x, i);
    return sum;
}

/* Returns whether X is finite; where it is not there is no step. */
static bool store(const work *w)
{
    const abar__block *b = w->block;
    const bool fine = isfinite(squares(w));
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) set(w, b->grad, r.at + i, fine ? get(w, w->x, r.first + i) : 0.0);
    return fine;
}

/* ---- stages -------------------------------------------------------------------------------------------------------------- */

static double rest(double beta) { return beta == 1.0 ? 1.0 : 1.0 - beta; }

/* What an average is multiplied by to be read at update t. */
static double unbias(double beta, int64_t t) { return beta == 1.0 ? 1.0 : abar__unbias(beta, t); }

static void *factor_of(const work *w, int state, int mode)
{
    const int64_t at = abar__block_factor(w->block, &w->plan->state[state], mode);
    return (char *)w->block->state[state] + (size_t)at * element(w->dev);
}

static void average(work *w, const abar__block_stage *s, int mode)
{
    const abar__block *b = w->block;
    const int64_t n = b->dim[mode], behind = abar__block_behind(b, mode);
    w->kept += w->overflows;
    if (!w->overflows)
        w->dev->ops->stats->average_mode(w->dev, b->count / n / behind, n, behind, w->x, s->beta, rest(s->beta),
                                         factor_of(w, s->state, mode));
}

static void take_root(work *w, const abar__block_stage *s, int mode)
{
    const bool fine =
        w->dev->ops->stats->inverse_root(w->dev, w->block->dim[mode], factor_of(w, s->from, mode), unbias(s->beta, w->t),
                                         s->eps, abar__block_exponent(w->block, s), factor_of(w, s->state, mode), w->scratch);
    w->kept += !fine;
}

static void multiply(work *w, const abar__block_stage *s, int mode)
{
    const abar__block *b = w->block;
    const int64_t n = b->dim[mode], behind = abar__block_behind(b, mode);
    const void *root = factor_of(w, s->state, mode);
    if (get(w, root, 0) == 0.0) return; /* a root has a positive diagonal: there is none yet */
    w->dev->ops->stats->multiply_mode(w->dev, b->count / n / behind, n, behind, root, w->x, w->y);
    swap(w);
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
    const double factor = w->length / (sqrt(squares(w)) + ABAR_GRAFT_EPS);
    for (int64_t i = 0; i < w->block->count; i++) set(w, w->x, i, factor * get(w, w->x, i));
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

/* The largest mode of which the root is taken. */
static int64_t largest_root(const abar__block_plan *plan, const abar__block *blocks, int n)
{
    int64_t most = 0;
    for (int k = 0; k < plan->n_stages; k++) {
        if (plan->stage[k].kind != ABAR_BLOCK_ROOT) continue;
        for (int i = 0; i < n; i++)
            for (int mode = 0; mode < blocks[i].order; mode++)
                if (abar__block_has(&blocks[i], &plan->state[plan->stage[k].state], mode) && blocks[i].dim[mode] > most)
                    most = blocks[i].dim[mode];
    }
    return most;
}

size_t abar__blocks_scratch(abar_device *dev, const abar__block_plan *plan, const abar__block *blocks, int n)
{
    const int64_t root = largest_root(plan, blocks, n);
    return 2 * packed_bytes(dev, largest_count(blocks, n)) + (root > 0 ? dev->ops->stats->inverse_root_scratch(dev, root) : 0);
}

void abar__blocks_run(abar_device *dev, const abar__block_plan *plan, const abar__block *blocks, int n, abar__step_state *state,
                      void *scratch)
{
    const size_t bytes = packed_bytes(dev, largest_count(blocks, n));
    const bool wide = dev->ops->dtype == ABAR_F64;
    for (int i = 0; i < n; i++) {
        work w = {.dev = dev,
                  .plan = plan,
                  .block = &blocks[i],
                  .wide = wide,
                  .x = scratch,
                  .y = (char *)scratch + bytes,
                  .scratch = (char *)scratch + 2 * bytes,
                  .t = state->t};
        load(&w);
        w.overflows = abar__squares_overflow(squares(&w), wide);
        for (int k = 0; k < plan->n_stages; k++) run_stage(&w, &plan->stage[k]);
        state->dropped += !store(&w);
        state->kept += w.kept;
    }
}
