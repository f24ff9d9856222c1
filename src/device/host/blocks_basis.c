/* The stages of blocks that are Adam in the eigenbasis of averages, on the host: SOAP (optimizers.md section 2). */
#include "device/host/blocks_impl.h"

#include "device/step_rules.h"

#include <math.h>

/* Its first row is zero: that of a root has a positive entry, that of a basis has length 1. */
static bool is_none(const work *w, const void *matrix, int64_t n)
{
    bool none = true;
    for (int64_t i = 0; none && i < n; i++) none = get(w, matrix, i) == 0.0;
    return none;
}

bool abar__block_multiply(const work *w, int state, int mode, bool transposed, const void *x, void *y)
{
    const abar__block *b = w->block;
    const int64_t n = b->dim[mode], behind = abar__block_behind(b, mode);
    const void *matrix = factor_of(w, state, mode);
    if (is_none(w, matrix, n)) return false;
    w->dev->ops->stats->multiply_mode(w->dev, b->count / n / behind, n, behind, matrix, transposed, x, y);
    return true;
}

static bool has(const work *w, int state, int mode) { return abar__block_has(w->block, &w->plan->state[state], mode); }

/* ---- KL-SOAP ----------------------------------------------------------------------------------------------------------- */

void abar__block_whitened(work *w, const abar__block_stage *s, int mode)
{
    const abar__block *b = w->block;
    const int other = 1 - mode;
    const int64_t n = b->dim[mode], behind = abar__block_behind(b, mode), m = b->dim[other];
    const double beta = w->t == 1 ? 0.0 : s->beta;
    const char *from = w->x;
    w->kept += w->overflows;
    if (w->overflows) return;
    if (w->t > 1 && has(w, s->basis, other) && abar__block_multiply(w, s->basis, other, false, w->x, w->y)) {
        const void *scales = factor_of(w, s->scales, other);
        for (int64_t i = 0; i < b->count; i++)
            set(w, w->y, i, get(w, w->y, i) * get(w, scales, other == 0 ? i / b->dim[1] : i % b->dim[1]));
        from = w->y;
    }
    w->dev->ops->stats->average_mode(w->dev, b->count / n / behind, n, behind, from, beta, (1.0 - beta) / (double)m,
                                     factor_of(w, s->state, mode));
}

/* The mean over the other mode of (X w_j)^2, for entry k of a matrix's mode. */
static double mean_square(const work *w, const abar__block_stage *s, int mode, int64_t k)
{
    const abar__block *b = w->block;
    const int other = 1 - mode;
    const void *scales = has(w, s->state, other) ? factor_of(w, s->state, other) : NULL;
    double sum = 0.0;
    for (int64_t j = 0; j < b->dim[other]; j++) {
        const double x = get(w, w->x, mode == 0 ? k * b->dim[1] + j : j * b->dim[1] + k) * (scales ? get(w, scales, j) : 1.0);
        sum += x * x;
    }
    return sum / (double)b->dim[other];
}

/* Both modes read the old scales: the new ones wait in y, which has dim_0 dim_1 >= dim_0 + dim_1 elements. */
void abar__block_scales(work *w, const abar__block_stage *s)
{
    const abar__block *b = w->block;
    int64_t at = 0;
    if (w->overflows && w->t > 1) return;
    for (int mode = 0; mode < b->order; mode++)
        for (int64_t k = 0; has(w, s->state, mode) && k < b->dim[mode]; k++, at++) {
            const double old = get(w, factor_of(w, s->state, mode), k);
            set(w, w->y, at,
                w->t == 1 || old == 0.0 ? ABAR_SCALE_FIRST : abar__scale_next(old, mean_square(w, s, mode, k), s->beta));
        }
    for (int64_t i = 0; i < at; i++) set(w, w->block->state[s->state], i, get(w, w->y, i));
}

/* ---- Adam -----------------------------------------------------------------------------------------------------------------
 */

void abar__block_adam(work *w, const abar__block_stage *s)
{
    const abar__block *b = w->block;
    void *m = b->state[s->mean], *v = b->state[s->squares];
    if (w->t == 1) return;
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) {
            const double x = get(w, w->x, r.first + i);
            double mean = get(w, m, r.at + i), square = get(w, v, r.at + i);
            if (!w->overflows) {
                mean = s->beta * mean + (1.0 - s->beta) * x;
                square = s->beta2 * square + (1.0 - s->beta2) * x * x;
                set(w, m, r.at + i, mean);
                set(w, v, r.at + i, square);
            }
            set(w, w->x, r.first + i, mean == 0.0 ? 0.0 : mean / (sqrt(square) + s->eps));
        }
}

/* ---- bases --------------------------------------------------------------------------------------------------------------- */

size_t abar__block_order_bytes(int64_t n) { return abar__round_up((size_t)n * sizeof(int64_t), ABAR_ALIGN); }

static void pack(const work *w, const void *state, void *packed)
{
    const abar__block *b = w->block;
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) set(w, packed, r.first + i, get(w, state, r.at + i));
}

static void unpack(const work *w, const void *packed, void *state)
{
    const abar__block *b = w->block;
    for (run r = run_from(b, 0); r.first < b->count; r = run_from(b, r.first + r.n))
        for (int64_t i = 0; i < r.n; i++) set(w, state, r.at + i, get(w, packed, r.first + i));
}

/* m, packed in z, into the bases or out of them. */
static void rotate(work *w, int basis, bool back)
{
    for (int mode = 0; mode < w->block->order; mode++)
        if (has(w, basis, mode) && abar__block_multiply(w, basis, mode, back, w->z, w->y)) {
            char *z = w->z;
            w->z = w->y;
            w->y = z;
        }
}

/* v along a mode: entry i is what entry order[i] was. */
static void permute(work *w, void *v, int mode, const int64_t *order)
{
    const abar__block *b = w->block;
    const int64_t n = b->dim[mode], behind = abar__block_behind(b, mode);
    pack(w, v, w->y);
    for (int64_t i = 0; i < b->count; i++) {
        const int64_t k = i / behind % n;
        set(w, v, abar__block_at(b, i), get(w, w->y, i + (order[k] - k) * behind));
    }
}

static bool is_zero(const work *w, const void *average, int64_t n)
{
    bool zero = true;
    for (int64_t i = 0; zero && i < n; i++) zero = get(w, average, i * n + i) == 0.0;
    return zero;
}

/* The first basis: the identity where the average has no eigenvectors, or none in particular. */
static void begin_basis(work *w, int64_t n, const void *average, void *basis, void *scratch)
{
    const bool zero = is_zero(w, average, n),
               fine = !zero && w->dev->ops->stats->eigenbasis(w->dev, n, average, basis, scratch);
    w->kept += !zero && !fine;
    for (int64_t i = 0; !fine && i < n * n; i++) set(w, basis, i, i % (n + 1) == 0 ? 1.0 : 0.0);
}

static void turn_mode(work *w, const abar__block_stage *s, int mode)
{
    const int64_t n = w->block->dim[mode];
    const void *average = factor_of(w, s->from, mode);
    void *basis = factor_of(w, s->state, mode), *scratch = (char *)w->scratch + abar__block_order_bytes(n);
    int64_t *order = s->squares >= 0 ? w->scratch : NULL;
    if (is_none(w, basis, n)) {
        begin_basis(w, n, average, basis, scratch);
    } else if (!w->dev->ops->stats->turn_basis(w->dev, n, average, basis, order, scratch)) {
        w->kept++;
    } else if (order) {
        permute(w, w->block->state[s->squares], mode, order);
    }
}

void abar__block_turn(work *w, const abar__block_stage *s)
{
    void *m = w->block->state[s->mean];
    bool any = false;
    for (int mode = 0; mode < w->block->order; mode++) any = any || has(w, s->state, mode);
    if (!any) return;
    pack(w, m, w->z);
    rotate(w, s->state, true);
    for (int mode = 0; mode < w->block->order; mode++)
        if (has(w, s->state, mode)) turn_mode(w, s, mode);
    rotate(w, s->state, false);
    unpack(w, w->z, m);
}
