/* K-BFGS's inverses (optimizers.md section 7). Vectors are in double, whatever the device's numbers are.
 *
 *     s = E[z] − E[z⁺],  y = E[p] − E[p⁺],   averaged;   E[z] = W E[a]
 *     sᵀy ≤ 0.2 yᵀH_p y:  θ = 0.8 yᵀH_p y / (yᵀH_p y − sᵀy),   s ← θs + (1−θ) H_p y
 *     sᵀy ≤ √λ sᵀs:       θ = (1−√λ) sᵀs / (sᵀs − sᵀy),        y ← θy + (1−θ) s
 *     H ← H + (yᵀHy/(sᵀy)² + 1/sᵀy) ssᵀ − (s(Hy)ᵀ + (Hy)sᵀ)/sᵀy */
#include "device/host/secant.h"

#include "device/host/derive.h"
#include "device/step_rules.h"

#include <math.h>
#include <string.h>

#define COLUMNS 32 /* of a matrix that pairs multiply at a time */

/* ---- numbers of either precision ------------------------------------------------------------------------------------- */

static bool is_wide(const abar_device *dev) { return dev->ops->dtype == ABAR_F64; }

static double get(const void *x, int64_t i, bool wide) { return wide ? ((const double *)x)[i] : (double)((const float *)x)[i]; }

static void set(void *x, int64_t i, double value, bool wide)
{
    if (wide)
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

static bool fits(double value, bool wide) { return wide ? isfinite(value) : isfinite((float)value); }

static double dot(int64_t n, const double *x, const double *y)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* y = H x, H (n, n) */
static void multiply(int64_t n, const void *h, bool wide, const double *x, double *y)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = 0.0;
        if (wide)
            for (int64_t j = 0; j < n; j++) sum += ((const double *)h)[i * n + j] * x[j];
        else
            for (int64_t j = 0; j < n; j++) sum += (double)((const float *)h)[i * n + j] * x[j];
        y[i] = sum;
    }
}

/* y = (scale A + shift I) x, A kept by its upper triangle. */
static void multiply_average(int64_t n, const void *a, bool wide, double scale, double shift, const double *x, double *y)
{
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        double sum = get(a, i * n + i, wide) * x[i];
        for (int64_t j = i + 1; j < n; j++) {
            const double v = get(a, i * n + j, wide);
            sum += v * x[j];
            y[j] += v * x[i];
        }
        y[i] += sum;
    }
    for (int64_t i = 0; i < n; i++) y[i] = scale * y[i] + shift * x[i];
}

static void read_means(const abar_device *dev, int64_t n, const void *sum, double to_mean, double *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = to_mean * get(sum, i, is_wide(dev));
}

/* E[z] = W E[a]; a bias that is not trained is the same in both passes. */
static void mean_outputs(const abar_device *dev, const abar__plan *p, const abar__map_weights *w, const double *a, double *z)
{
    const bool wide = is_wide(dev);
    for (int64_t o = 0; o < p->out; o++) {
        double sum = w->bias ? get(w->bias, o, wide) : 0.0;
        for (int64_t i = 0; i < p->columns; i++) sum += get(w->weight, o * p->columns + i, wide) * a[i];
        z[o] = sum;
    }
}

/* ---- BFGS ---------------------------------------------------------------------------------------------------------------- */

static bool is_learnt(int64_t n, const double *s, const double *y, double guard)
{
    const double sy = dot(n, s, y);
    return sy > 0.0 && sy > 1e-4 * dot(n, s, s) * guard; /* false of NaN, too */
}

/* guard: the norm of what s is measured by. work: (n). */
static void update_inverse(int64_t n, void *h, bool wide, const double *s, const double *y, double guard, double *work)
{
    if (!is_learnt(n, s, y, guard)) return;
    const double over = 1.0 / dot(n, s, y);
    double *hy = work;
    multiply(n, h, wide, y, hy);
    const double outer = over * over * dot(n, y, hy) + over;
    bool fine = true;
    for (int pass = 0; pass < 2 && fine; pass++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                const double value = get(h, i * n + j, wide) + outer * (s[i] * s[j]) - over * (s[i] * hy[j] + hy[i] * s[j]);
                if (pass == 0)
                    fine = fine && fits(value, wide);
                else
                    set(h, i * n + j, value, wide);
            }
}

/* Pairs are in the order of time. Empty ones have no positive product. */
static double pair_product(const void *pairs, int64_t k, int64_t n, bool wide)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += get(pairs, 2 * k * n + i, wide) * get(pairs, (2 * k + 1) * n + i, wide);
    return sum;
}

static int64_t count_pairs(const abar__plan *p, bool wide)
{
    int64_t k = 0;
    while (k < p->secant.pairs && pair_product(p->derived[1].data, k, p->out, wide) > 0.0) k++;
    return k;
}

static void append_pair(const abar__plan *p, bool wide, const double *s, const double *y, double guard)
{
    const int64_t n = p->out;
    const size_t pair = 2 * (size_t)n * (wide ? sizeof(double) : sizeof(float));
    char *pairs = p->derived[1].data;
    int64_t k = count_pairs(p, wide);
    bool fine = is_learnt(n, s, y, guard);
    for (int64_t i = 0; i < n; i++) fine = fine && fits(s[i], wide) && fits(y[i], wide);
    if (!fine) return;
    if (k == p->secant.pairs) memmove(pairs, pairs + pair, (size_t)--k * pair);
    for (int64_t i = 0; i < n; i++) {
        set(pairs, 2 * k * n + i, s[i], wide);
        set(pairs, (2 * k + 1) * n + i, y[i], wide);
    }
}

/* q (out, c) <- H_p q: newest pair to oldest, and back. share: (pairs, c). */
static void multiply_pairs(const abar__plan *p, bool wide, double *q, int64_t c, double *share)
{
    const int64_t n = p->out, pairs = count_pairs(p, wide);
    const void *all = p->derived[1].data;
    for (int64_t turn = 0; turn < 2 * pairs; turn++) {
        const bool back = turn >= pairs;
        const int64_t k = back ? turn - pairs : pairs - 1 - turn;
        const int64_t s = 2 * k * n, y = s + n;
        const double over = 1.0 / pair_product(all, k, n, wide);
        double sum[COLUMNS] = {0.0}, *mine = share + k * c;
        for (int64_t o = 0; o < n; o++)
            for (int64_t i = 0; i < c; i++) sum[i] += over * get(all, (back ? y : s) + o, wide) * q[o * c + i];
        for (int64_t i = 0; i < c; i++) mine[i] = back ? mine[i] - sum[i] : sum[i];
        for (int64_t o = 0; o < n; o++)
            for (int64_t i = 0; i < c; i++) q[o * c + i] += get(all, (back ? s : y) + o, wide) * (back ? mine[i] : -mine[i]);
    }
}

void abar__secant_multiply(const abar_device *dev, const abar__plan *p, void *x, void *scratch)
{
    const bool wide = is_wide(dev);
    double *q = scratch, *share = q + p->out * COLUMNS;
    for (int64_t first = 0; first < p->d; first += COLUMNS) {
        const int64_t c = p->d - first < COLUMNS ? p->d - first : COLUMNS;
        for (int64_t o = 0; o < p->out; o++)
            for (int64_t i = 0; i < c; i++) q[o * c + i] = get(x, o * p->d + first + i, wide);
        multiply_pairs(p, wide, q, c, share);
        for (int64_t o = 0; o < p->out; o++)
            for (int64_t i = 0; i < c; i++) set(x, o * p->d + first + i, q[o * c + i], wide);
    }
}

static void multiply_left(const abar__plan *p, bool wide, const double *x, double *y, double *share)
{
    if (p->secant.pairs == 0) {
        multiply(p->out, p->derived[1].data, wide, x, y);
        return;
    }
    memcpy(y, x, (size_t)p->out * sizeof *y);
    multiply_pairs(p, wide, y, 1, share);
}

/* Where y or s is zero, theta is not a number, and nothing is learnt. */
static void damp(const abar__plan *p, bool wide, double *s, double *y, double *hy, double *share)
{
    const int64_t n = p->out;
    multiply_left(p, wide, y, hy, share);
    const double sy = dot(n, s, y), yhy = dot(n, y, hy), root = p->secant.shift;
    if (sy <= 0.2 * yhy) {
        const double theta = 0.8 * yhy / (yhy - sy);
        for (int64_t i = 0; i < n; i++) s[i] = theta * s[i] + (1.0 - theta) * hy[i];
    }
    const double now = dot(n, s, y), ss = dot(n, s, s);
    if (now <= root * ss) {
        const double theta = (1.0 - root) * ss / (ss - now);
        for (int64_t i = 0; i < n; i++) y[i] = theta * y[i] + (1.0 - theta) * s[i];
    }
}

/* ---- a map ----------------------------------------------------------------------------------------------------------- */

/* What learning works in. */
typedef struct work {
    double *a, *s_a, *y_a, *h_a;   /* (d) */
    double *p, *z, *s, *y, *h, *q; /* (out) */
    double *share;                 /* (pairs) */
} work;

static work work_in(const abar__plan *p, void *scratch)
{
    double *at = scratch;
    work w = {.a = at, .s_a = at + p->d, .y_a = at + 2 * p->d, .h_a = at + 3 * p->d};
    at += 4 * p->d;
    double **const own[] = {&w.p, &w.z, &w.s, &w.y, &w.h, &w.q};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++, at += p->out) *own[i] = at;
    w.share = at;
    return w;
}

size_t abar__secant_scratch(const abar_device *dev, const abar__plan *p)
{
    (void)dev;
    if (!p->secant.used) return 0;
    const int64_t learn = 4 * p->d + 6 * p->out + p->secant.pairs;
    const int64_t apply = p->secant.pairs > 0 ? (p->out + p->secant.pairs) * COLUMNS : 0;
    return (size_t)(learn > apply ? learn : apply) * sizeof(double);
}

static bool sums_are_finite(abar_device *dev, const abar__plan *p, int pass, const double *to_mean)
{
    const abar__stats_ops *stats = dev->ops->stats;
    return stats->all_finite(dev, p->d, false, p->secant.inputs[pass], to_mean[0]) &&
           stats->all_finite(dev, p->out, false, p->secant.grads[pass], to_mean[1]);
}

bool abar__secant_is_finite(abar_device *dev, const abar__plan *p, const double *to_mean)
{
    return to_mean[0] == 0.0 || sums_are_finite(dev, p, 1, to_mean);
}

static void commit(abar_device *dev, const abar__plan *p, abar__map_state *state, double decay, double to_mean)
{
    const abar__running_average *a = &p->average[0];
    dev->ops->stats->commit(dev, a->n, true, a->average, a->pending, decay, (1.0 - decay) * to_mean);
    state->count[ABAR_COUNT_COMMITS]++;
}

/* Whether the average began with a pass over the training set: then it is read as it is, and step 0 leaves it. */
static bool has_start(const abar__plan *p, const abar__map_state *state)
{
    return p->secant.first_pass && state->count[ABAR_COUNT_CALIBRATED];
}

static double correction(const abar__plan *p, const abar__map_state *state, double decay)
{
    return has_start(p, state) ? 1.0 : abar__unbias(decay, state->count[ABAR_COUNT_COMMITS]);
}

/* H_a = (Â + √λ I)⁻¹, H_p = I. */
static bool begin_inverses(abar_device *dev, const abar__plan *p, abar__map_state *state, double decay, void *scratch)
{
    if (!abar__derive(dev, p, state, correction(p, state, decay), ABAR_DERIVE_RUNNING, scratch)) {
        state->count[ABAR_COUNT_KEPT]++;
        return false;
    }
    for (int64_t i = 0; i < p->out && p->secant.pairs == 0; i++)
        for (int64_t j = 0; j < p->out; j++) set(p->derived[1].data, i * p->out + j, i == j ? 1.0 : 0.0, is_wide(dev));
    state->count[ABAR_COUNT_READY] = 1;
    return true;
}

void abar__secant_begin(abar_device *dev, const abar__plan *p, abar__map_state *state, const abar__map_weights *w,
                        const double *to_mean, double stat_decay, abar__first_pass *first, void *scratch)
{
    const abar__running_average *a = &p->average[0];
    *first = (abar__first_pass){.before = *state};
    if (!to_mean || to_mean[0] == 0.0 || !w->weight) return;
    if (!dev->ops->stats->all_finite(dev, a->n, true, a->pending, to_mean[0]) || !sums_are_finite(dev, p, 0, to_mean)) {
        state->count[ABAR_COUNT_DROPPED]++;
        abar__secant_forget(dev, p);
        return;
    }
    first->to_mean[0] = to_mean[0];
    first->to_mean[1] = to_mean[1];
    double *means = scratch;
    read_means(dev, p->d, p->secant.inputs[0], to_mean[0], means);
    mean_outputs(dev, p, w, means, p->secant.outputs);
    if (state->count[ABAR_COUNT_COMMITS] == 0) {
        const bool leaves = has_start(p, state);
        commit(dev, p, state, leaves ? 1.0 : stat_decay, to_mean[0]);
        first->committed = true;
    }
    if (!state->count[ABAR_COUNT_READY]) first->ready = begin_inverses(dev, p, state, stat_decay, scratch);
}

/* s and y: averages of the differences. False: they do not fit the device's numbers, and stay as they were. */
static bool average_differences(const abar_device *dev, const abar__plan *p, const work *w)
{
    const bool wide = is_wide(dev);
    const double decay = p->secant.decay;
    void *const average[2] = {p->derived[2].data, p->derived[3].data};
    double *const now[2] = {w->s, w->y};
    bool fine = true;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < p->out; i++) {
            now[k][i] = decay * get(average[k], i, wide) + (1.0 - decay) * now[k][i];
            fine = fine && fits(now[k][i], wide);
        }
    for (int k = 0; k < 2 && fine; k++)
        for (int64_t i = 0; i < p->out; i++) set(average[k], i, now[k][i], wide);
    return fine;
}

static void learn_outputs(abar_device *dev, const abar__plan *p, const abar__map_weights *weights, const double *to_mean,
                          const abar__first_pass *first, const work *w)
{
    const bool wide = is_wide(dev);
    read_means(dev, p->out, p->secant.grads[0], first->to_mean[1], w->p);
    read_means(dev, p->out, p->secant.grads[1], to_mean[1], w->y);
    read_means(dev, p->d, p->secant.inputs[1], to_mean[0], w->a);
    mean_outputs(dev, p, weights, w->a, w->z);
    for (int64_t o = 0; o < p->out; o++) {
        w->s[o] = p->secant.outputs[o] - w->z[o];
        w->y[o] = w->p[o] - w->y[o];
    }
    if (!average_differences(dev, p, w)) return;
    damp(p, wide, w->s, w->y, w->h, w->share);
    const double guard = sqrt(dot(p->out, w->p, w->p));
    if (p->secant.pairs > 0)
        append_pair(p, wide, w->s, w->y, guard);
    else
        update_inverse(p->out, p->derived[1].data, wide, w->s, w->y, guard, w->h);
}

static void learn_inputs(abar_device *dev, const abar__plan *p, double unbias, const abar__first_pass *first, const work *w)
{
    const bool wide = is_wide(dev);
    void *h = p->derived[0].data;
    read_means(dev, p->d, p->secant.inputs[0], first->to_mean[0], w->a);
    multiply(p->d, h, wide, w->a, w->s_a);
    multiply_average(p->d, p->average[0].average, wide, unbias, p->secant.shift, w->s_a, w->y_a);
    update_inverse(p->d, h, wide, w->s_a, w->y_a, sqrt(dot(p->d, w->a, w->a)), w->h_a);
}

void abar__secant_learn(abar_device *dev, const abar__plan *p, abar__map_state *state, const abar__map_weights *w,
                        const double *to_mean, double stat_decay, const abar__first_pass *first, void *scratch)
{
    const work in = work_in(p, scratch);
    if (first->to_mean[0] != 0.0) {
        if (!first->committed) commit(dev, p, state, stat_decay, first->to_mean[0]);
        const double unbias = correction(p, state, stat_decay);
        const bool ready = state->count[ABAR_COUNT_READY];
        if (ready && to_mean[0] != 0.0 && w->weight) learn_outputs(dev, p, w, to_mean, first, &in);
        if (ready) learn_inputs(dev, p, unbias, first, &in);
    }
    abar__secant_forget(dev, p);
}

void abar__secant_undo(abar_device *dev, const abar__plan *p, abar__map_state *state, const abar__first_pass *first)
{
    const abar__running_average *a = &p->average[0];
    abar__secant_forget(dev, p);
    if (first->committed && !has_start(p, &first->before))
        dev->ops->stats->commit(dev, a->n, true, a->average, a->pending, 0.0, 0.0); /* zero, as it was */
    for (int i = 0; i < 2 && first->ready; i++) dev->ops->stats->clear(dev, p->derived[i].n, false, p->derived[i].data);
    *state = first->before;
}

void abar__secant_forget(abar_device *dev, const abar__plan *p)
{
    const abar__stats_ops *stats = dev->ops->stats;
    stats->clear(dev, p->average[0].n, true, p->average[0].pending);
    for (int i = 0; i < 2; i++) {
        stats->clear(dev, p->d, false, p->secant.inputs[i]);
        stats->clear(dev, p->out, false, p->secant.grads[i]);
    }
}

/* ---- weights and momenta ------------------------------------------------------------------------------------------------- */

static size_t item_bytes(const abar_device *dev, const abar__update_item *item)
{
    return (size_t)item->count * abar_dtype_size(dev->ops->dtype);
}

size_t abar__items_save(const abar_device *dev, const abar__update_item *items, int n, char *saved)
{
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const size_t bytes = item_bytes(dev, &items[i]);
        void *const parts[2] = {items[i].weight, items[i].state[0]};
        for (int k = 0; k < 2; k++) {
            if (!parts[k] || bytes == 0) continue;
            if (saved) memcpy(saved + at, parts[k], bytes);
            at += bytes;
        }
    }
    return at;
}

void abar__items_restore(const abar_device *dev, const abar__update_item *items, int n, const char *saved)
{
    for (int i = 0; i < n; i++) {
        const size_t bytes = item_bytes(dev, &items[i]);
        void *const parts[2] = {items[i].weight, items[i].state[0]};
        for (int k = 0; k < 2; k++) {
            if (!parts[k] || bytes == 0) continue;
            memcpy(parts[k], saved, bytes);
            saved += bytes;
        }
    }
}
