/* What a step decides by arithmetic alone, written once for host and GPU: scalars of a plan, when to refresh, the KL clip. */
#ifndef ABAR_STEP_RULES_H
#define ABAR_STEP_RULES_H

#include "device/step_impl.h"

#include <math.h>

/* A scalar that rests on scalars before it, whose values are v. */
ABAR_BOTH double abar__scalar_combine(const abar__scalar_op *s, const double *v)
{
    const double a = v[s->a], b = v[s->b];
    switch (s->kind) {
    case ABAR_SCALAR_ADD: return a + b;
    case ABAR_SCALAR_SUBTRACT: return a - b;
    case ABAR_SCALAR_MULTIPLY: return a * b;
    case ABAR_SCALAR_DIVIDE: return a / b;
    case ABAR_SCALAR_SQRT: return sqrt(a);
    case ABAR_SCALAR_MAX: return fmax(a, b);
    case ABAR_SCALAR_MIN: return fmin(a, b);
    case ABAR_SCALAR_RATIO: return a > 0.0 && b > 0.0 ? a / b : 1.0;
    case ABAR_SCALAR_RECIPROCAL: return a > 0.0 ? 1.0 / a : 0.0;
    case ABAR_SCALAR_SHARE: return isfinite(a) ? a / (a + b) : 1.0;
    default: return s->value;
    }
}

ABAR_BOTH double abar__scalar_or(const double *v, int32_t index, double otherwise) { return index < 0 ? otherwise : v[index]; }

/* Whether a refresh renews it, as a matrix. */
ABAR_BOTH bool abar__derived_is_matrix(const abar__derived_tensor *d)
{
    return d->kind == ABAR_DERIVED_INVERSE || d->kind == ABAR_DERIVED_EIGENVECTORS || d->kind == ABAR_DERIVED_SOLVED ||
           d->kind == ABAR_DERIVED_PAIRED;
}
ABAR_BOTH bool abar__derived_is_renewed(const abar__derived_tensor *d)
{
    return d->name && abar__derived_is_matrix(d) && !d->calibrated;
}

/* What an average is multiplied by to be read (methods.md section 0). */
ABAR_BOTH double abar__unbias(double decay, int64_t commits) { return 1.0 / (1.0 - pow(decay, (double)commits)); }

/* The same of a plan's averages: those that begin at a multiple of the identity are read as they are. */
ABAR_BOTH double abar__plan_unbias(const abar__plan *p, double decay, int64_t commits)
{
    return p->identity > 0.0 ? 1.0 : abar__unbias(decay, commits);
}

ABAR_BOTH bool abar__on_schedule(const abar__cadence *c, int64_t k, int64_t number)
{
    const int64_t shift = c->spread ? number * c->tinv / c->numbers : 0, since = k - c->offset;
    return since == 0 || (since > 0 && (since - shift) % c->tinv == 0);
}

/* Whether to refresh in step k; what cannot be derived yet stays due. calibrated: the plan wants to be. */
ABAR_BOTH bool abar__refreshes(const abar__cadence *c, abar__map_state *s, int64_t number, bool calibrated, int64_t k,
                               bool committed)
{
    const bool wanted = c->every_commit ? committed : abar__on_schedule(c, k, number) || s->count[ABAR_COUNT_DUE];
    if (!wanted) return false;
    const bool possible =
        s->count[ABAR_COUNT_COMMITS] > 0 && (!calibrated || s->count[ABAR_COUNT_CALIBRATED]) && (!c->one_batch || committed);
    s->count[ABAR_COUNT_DUE] = !possible;
    return possible;
}

/* A step that is skipped: a refresh it would have made stays due. */
ABAR_BOTH bool abar__due_when_skipped(const abar__cadence *c, int64_t k, int64_t number)
{
    return !c->every_commit && abar__on_schedule(c, k, number);
}

/* What a map's G^ is multiplied by, but for its own length and the KL clip. */
ABAR_BOTH double abar__outer_scale(const abar__treatment *t, const abar__map_state *s)
{
    const double rho = s->real[ABAR_REAL_DAMPING];
    return t->over_damping && rho > 0.0 ? t->scale / rho : t->scale;
}

/* Whether a number type with this limit could not hold what is at most bound times a gradient of this norm (methods.md
 * section 9). */
ABAR_BOTH bool abar__would_overflow(double bound, double norm, double grad_scale, double limit)
{
    return !(fmax(bound, 1.0) * norm * fmax(grad_scale, 1.0) < limit);
}

/* Whether products of gradients with this sum of squares are too large to be averaged, in double or in float: sums of very
 * many still fit. */
ABAR_BOTH bool abar__squares_overflow(double squares, bool wide) { return !(squares < (wide ? 1e280 : 1e30)); }

/* c of methods.md section 6, inner: <V, G> as gradients are in memory. */
ABAR_BOTH double abar__own_length(double mu, double inner, double grad_scale)
{
    inner *= grad_scale * grad_scale;
    return inner / (inner * inner + mu);
}

/* What is added to all eigenvalues before the root is taken: eps, or so much that the least becomes eps. */
ABAR_BOTH double abar__root_shift(double least, double eps) { return least < 0.0 ? eps - least : eps; }

/* What divide_outer of stats_impl.h divides by. */
ABAR_BOTH double abar__outer_divisor(double a, double b, double shift, double least)
{
    return least > 0.0 ? fmax(a * b + shift, least) : fmax(a, 0.0) * fmax(b, 0.0) + shift;
}

/* And what a ridge adds: this part of the largest eigenvalue. */
ABAR_BOTH double abar__take_ridge(double largest, double *ridge)
{
    if (!ridge) return 0.0;
    *ridge *= largest;
    return *ridge;
}

/* Schedule-Free AdamW (optimizers.md section 4): counts update t at this rate in, and returns c, the share of the new z in x.
 */
ABAR_BOTH double abar__schedule_free_share(abar__step_state *s, double lr, double time_power, double rate_power)
{
    s->rate_max = fmax(s->rate_max, lr);
    const double weight = pow((double)s->t, time_power) * pow(s->rate_max, rate_power);
    s->weight_sum += weight;
    return s->weight_sum > 0.0 ? weight / s->weight_sum : 0.0;
}

/* What brings a block from one norm to another (methods.md section 11, hyperball). */
ABAR_BOTH double abar__hyperball_rate(double radius, double length) { return radius / fmax(length, 1e-10); }

/* A step W <- W - lr X that keeps the norm of W: X <- step X + weight W. */
typedef struct abar__ball {
    double step, weight;
} abar__ball;

/* weight, step, inner: |W|^2, |X|^2, <W, X>; the direction is c X. */
ABAR_BOTH abar__ball abar__ball_of(double weight, double step, double inner, double c, double lr)
{
    const double radius = sqrt(weight), rate = c * abar__hyperball_rate(radius, c * sqrt(step));
    const double moved = weight - 2.0 * lr * rate * inner + lr * rate * lr * rate * step;
    const double back = abar__hyperball_rate(radius, sqrt(fmax(moved, 0.0)));
    const abar__ball ball = {back * rate, lr > 0.0 ? (1.0 - back) / lr : 0.0};
    return ball;
}

/* The place of value k among n in descending order, equals in theirs. */
ABAR_BOTH int64_t abar__place_of(int64_t n, const double *values, int64_t k)
{
    int64_t place = 0;
    for (int64_t j = 0; j < n; j++) place += values[j] > values[k] || (values[j] == values[k] && j < k);
    return place;
}

/* What SOAP multiplies m / sqrt(v) by at update t, whose first is without a step. */
ABAR_BOTH double abar__late_unbias(double beta1, double beta2, int64_t t)
{
    return sqrt(1.0 - pow(beta2, (double)(t - 1))) / (1.0 - pow(beta1, (double)(t - 1)));
}

/* KL-SOAP's next scale, from the mean square of what it scales. */
ABAR_BOTH double abar__scale_next(double scale, double square, double beta)
{
    return fmin(1.0 / sqrt(fmax(beta / (scale * scale) + (1.0 - beta) * square, 1e-30)), ABAR_SCALE_MOST);
}

/* methods.md section 7, sum: of <G^, G> over all maps, as gradients are in memory. */
ABAR_BOTH double abar__kl_scale(const abar__cadence *c, double sum, double grad_scale)
{
    sum *= grad_scale * grad_scale * c->base_lr * c->base_lr;
    return c->kl_clip > 0.0 && sum > 0.0 ? fmin(1.0, sqrt(c->kl_clip / sum)) : 1.0;
}

#endif
