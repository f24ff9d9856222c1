/* Stages on kept rows, X (kept, d) and Y (kept, out), for ref and cpu. Rows behind those of the step are zero and add nothing.
 *
 * Nearest Kronecker factors (optimizers.md section 6), with rows x_n = ā_n/√B and y_n = q_n:
 *     S ← S/‖S‖,  R = Σ_n (y_nᵀ S y_n) x_n x_nᵀ,  R ← R/‖R‖,  S = Σ_n (x_nᵀ R x_n) y_n y_nᵀ,  rounds times;
 *     then σ = ‖S‖, R ← √σ R, S ← S/√σ.
 * A second term P ⊗ Q likewise, with R ⊗ S taken off: P = Σ_n (y_nᵀ Q y_n) x_n x_nᵀ − ⟨S, Q⟩ R, and Q likewise.
 * Products with inverses that rows stand for (section 5): G (XᵀX + αI)⁻¹ = (G − (G Zᵀ) Z)/α, Z = L⁻¹X, LLᵀ = XXᵀ + αI. */
#include "device/host/rows.h"

#include <math.h>

#define SECOND_LEAST 1e-6 /* singular value of a second term, relative to that of the first */

static size_t element(const abar_device *dev) { return abar_dtype_size(dev->ops->dtype); }
static size_t bytes_of(const abar_device *dev, int64_t n) { return abar__round_up((size_t)n * element(dev), ABAR_ALIGN); }
static int64_t longer(int64_t a, int64_t b) { return a > b ? a : b; }

/* The lower triangle of what is pending is that of full. */
static void set_pending(abar_device *dev, const abar__running_average *a, const void *full)
{
    const size_t row = (size_t)a->n * element(dev);
    for (int64_t i = 0; i < a->n; i++)
        dev->ops->stats->affine(dev, i + 1, (const char *)full + (size_t)i * row, 1.0, 0.0,
                                (char *)a->pending + (size_t)i * row);
}

/* ---- before the commit -------------------------------------------------------------------------------------------- */

/* What the power iteration works with. first: R and S, which are taken off; NULL: nothing is. work: two of (kept, the longer
 * row). */
typedef struct iteration {
    abar_device *dev;
    const abar__plan *p;
    const void *first[2];
    char *work;
} iteration;

/* ⟨F₀, F⟩, F₀ the first term's factor of this side. */
static double part_of(const iteration *it, int side, const void *factor)
{
    const int64_t n = it->p->average[side].n;
    return it->dev->ops->stats->dot(it->dev, n * n, it->first[side], factor);
}

/* The other side's factor from this one's F, divided by its norm: Σ_n (x_nᵀ F x_n / ‖F‖) y_n y_nᵀ. Returns ‖F‖. */
static double turn(const iteration *it, int from, const void *factor, void *other)
{
    abar_device *dev = it->dev;
    const abar__stats_ops *stats = dev->ops->stats;
    const abar__running_average *x = &it->p->average[from], *y = &it->p->average[1 - from];
    const double norm = sqrt(stats->dot(dev, x->n * x->n, factor, factor));
    char *product = it->work, *weighed = it->work + bytes_of(dev, x->kept * longer(x->row, y->row));
    stats->multiply(dev, x->kept, x->n, x->n, 1.0, x->rows, false, factor, false, 0.0, product);
    for (int64_t n = 0; n < x->kept; n++) {
        const size_t at_x = (size_t)(n * x->row) * element(dev), at_y = (size_t)(n * y->row) * element(dev);
        const double weight = stats->dot(dev, x->row, product + at_x, (const char *)x->rows + at_x) / norm;
        stats->affine(dev, y->row, (const char *)y->rows + at_y, weight, 0.0, weighed + at_y);
    }
    if (it->first[0]) stats->affine(dev, y->n * y->n, it->first[1 - from], -part_of(it, from, factor) / norm, 0.0, other);
    stats->multiply(dev, y->n, y->n, y->kept, 1.0, y->rows, true, weighed, false, it->first[0] ? 1.0 : 0.0, other);
    return norm;
}

/* All rounds, from s on. Returns ‖R‖, R being r; 0: a factor is zero. */
static double iterate(const iteration *it, void *s, void *r)
{
    double norm_r = 0.0;
    for (int i = 0; i < it->p->rounds; i++) {
        if (turn(it, 1, s, r) == 0.0) return 0.0;
        norm_r = turn(it, 0, r, s);
        if (norm_r == 0.0) return 0.0;
    }
    return norm_r;
}

/* From the last start on, or where that knows nothing of this batch's gradients from Σ y yᵀ. Leaves √σ R/‖R‖ and S/√σ in r and
 * s; returns σ; 0: a factor is zero. */
static double find_nearest(const iteration *it, bool begun, int32_t start, void *s, void *r)
{
    abar_device *dev = it->dev;
    const abar__stats_ops *stats = dev->ops->stats;
    const abar__running_average *x = &it->p->average[0], *y = &it->p->average[1];
    double norm_r = 0.0;
    if (begun) {
        stats->affine(dev, y->n * y->n, abar__plan_data(it->p, start), 1.0, 0.0, s);
        norm_r = iterate(it, s, r);
    }
    if (norm_r == 0.0) {
        stats->multiply(dev, y->n, y->n, y->kept, 1.0, y->rows, true, y->rows, false, 0.0, s);
        norm_r = iterate(it, s, r);
    }
    const double sigma = norm_r == 0.0 ? 0.0 : sqrt(stats->dot(dev, y->n * y->n, s, s));
    if (sigma == 0.0) return 0.0;
    stats->affine(dev, x->n * x->n, r, sqrt(sigma) / norm_r, 0.0, r);
    stats->affine(dev, y->n * y->n, s, 1.0 / sqrt(sigma), 0.0, s);
    return sigma;
}

/* Where the factors are in the scratch: S, R, then those of the second term, then what turns work in. */
typedef struct places {
    char *s, *r, *q, *p, *work;
} places;

static places places_of(const abar_device *dev, const abar__plan *p, void *scratch)
{
    const size_t left = bytes_of(dev, p->out * p->out), right = bytes_of(dev, p->d * p->d);
    char *s = scratch, *behind = s + left + right;
    const bool two = p->second_start >= 0;
    return (places){.s = s, .r = s + left, .q = behind, .p = behind + left, .work = two ? behind + left + right : behind};
}

/* A second term that is rounding of the first is none. */
static void find_second(abar_device *dev, const abar__plan *p, bool begun, double sigma, const places *at)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const iteration it = {dev, p, {at->r, at->s}, at->work};
    if (find_nearest(&it, begun, p->second_start, at->q, at->p) > SECOND_LEAST * sigma) return;
    stats->clear(dev, p->out * p->out, false, at->q);
    stats->clear(dev, p->d * p->d, false, at->p);
}

abar__rows_result abar__rows_nearest(abar_device *dev, const abar__plan *p, const abar__map_state *state,
                                     const double to_mean[2], void *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const abar__running_average *x = &p->average[0], *y = &p->average[1];
    const places at = places_of(dev, p, scratch);
    const iteration it = {dev, p, {NULL, NULL}, at.work};
    const bool begun = state->count[ABAR_COUNT_COMMITS] > 0;
    stats->affine(dev, x->kept * x->row, x->rows, to_mean[0], 0.0, x->rows);
    stats->affine(dev, y->kept * y->row, y->rows, to_mean[1], 0.0, y->rows);
    const double sigma = find_nearest(&it, begun, p->start, at.s, at.r);
    if (sigma == 0.0) return ABAR_ROWS_ZERO;
    set_pending(dev, x, at.r);
    set_pending(dev, y, at.s);
    if (p->second_start >= 0) find_second(dev, p, begun, sigma, &at);
    return ABAR_ROWS_JOINED;
}

bool abar__rows_second_is_finite(abar_device *dev, const abar__plan *p, void *scratch)
{
    const places at = places_of(dev, p, scratch);
    return p->second_start < 0 || (dev->ops->stats->all_finite(dev, p->d * p->d, false, at.p, 1.0) &&
                                   dev->ops->stats->all_finite(dev, p->out * p->out, false, at.q, 1.0));
}

void abar__rows_keep(abar_device *dev, const abar__plan *p, double beta, void *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const places at = places_of(dev, p, scratch);
    stats->affine(dev, p->out * p->out, at.s, 1.0, 0.0, abar__plan_data(p, p->start));
    if (p->second_start < 0) return;
    if (stats->dot(dev, p->out * p->out, at.q, at.q) > 0.0)
        stats->affine(dev, p->out * p->out, at.q, 1.0, 0.0, abar__plan_data(p, p->second_start));
    stats->commit(dev, p->d * p->d, false, abar__plan_data(p, p->second[0]), at.p, beta, 1.0 - beta);
    stats->commit(dev, p->out * p->out, false, abar__plan_data(p, p->second[1]), at.q, beta, 1.0 - beta);
}

size_t abar__rows_nearest_scratch(const abar_device *dev, const abar__plan *p)
{
    const abar__running_average *x = &p->average[0], *y = &p->average[1];
    if (!abar__plan_is_nearest(p)) return 0;
    const size_t term = bytes_of(dev, y->n * y->n) + bytes_of(dev, x->n * x->n);
    return (p->second_start < 0 ? 1 : 2) * term + 2 * bytes_of(dev, x->kept * longer(x->row, y->row));
}

/* ---- products with gradients ---------------------------------------------------------------------------------------- */

static const abar__derived_tensor *solved(const abar__plan *p, int32_t factor)
{
    return factor >= 0 && p->derived[factor].kind == ABAR_DERIVED_SOLVED ? &p->derived[factor] : NULL;
}

bool abar__plan_treats_by_rows(const abar__plan *p)
{
    return solved(p, p->apply.left) != NULL || solved(p, p->apply.right) != NULL;
}

size_t abar__rows_treat_scratch(const abar_device *dev, const abar__plan *p)
{
    const int64_t kept = longer(p->average[0].kept, p->average[1].kept);
    return abar__plan_treats_by_rows(p) ? bytes_of(dev, kept * longer(p->out, p->d)) : 0;
}

/* y (out, d) = x (XᵀX + αI)⁻¹, or with left (XᵀX + αI)⁻¹ x. y may be x. inner: (kept, the longer side). */
static void multiply_by_rows(abar_device *dev, const abar__plan *p, const abar__derived_tensor *z, bool left, const void *x,
                             void *y, void *inner)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const int64_t m = p->out, n = p->d, kept = p->average[z->average].kept;
    const double over = 1.0 / stats->sum(dev, 1, abar__plan_data(p, z->values));
    if (left)
        stats->multiply(dev, kept, n, m, 1.0, z->data, false, x, false, 0.0, inner);
    else
        stats->multiply(dev, m, kept, n, 1.0, x, false, z->data, true, 0.0, inner);
    stats->affine(dev, m * n, x, over, 0.0, y);
    if (left)
        stats->multiply(dev, m, n, kept, -over, z->data, true, inner, false, 1.0, y);
    else
        stats->multiply(dev, m, n, kept, -over, inner, false, z->data, false, 1.0, y);
}

void abar__rows_treat(abar_device *dev, const abar__plan *p, const void *x, void *y, void *spare, void *scratch)
{
    const abar__stats_ops *stats = dev->ops->stats;
    const abar__treatment *t = &p->apply;
    const abar__derived_tensor *left = solved(p, t->left), *right = solved(p, t->right);
    if (right)
        multiply_by_rows(dev, p, right, false, x, y, scratch);
    else
        stats->sandwich(dev, p->out, p->d, NULL, false, x, abar__plan_data(p, t->right), false, y, spare);
    if (left)
        multiply_by_rows(dev, p, left, true, y, y, scratch);
    else if (t->left >= 0)
        stats->sandwich(dev, p->out, p->d, abar__plan_data(p, t->left), false, y, NULL, false, y, spare);
}
