/* Perturbed weights, and diagonals from extra gradients (optimizers.md section 3), in double for ref and in float for cpu. */
#include "device/host/extra.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

static bool is_wide(const abar_device *dev) { return dev->ops->dtype == ABAR_F64; }

static double get(const void *x, int64_t i, bool wide) { return wide ? ((const double *)x)[i] : (double)((const float *)x)[i]; }

static void set(void *x, int64_t i, double value, bool wide)
{
    if (wide)
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

/* h: relative to the root mean square of the map weights as they are now. */
static double step_of(abar_device *dev, const abar__extra_plan *p)
{
    const bool wide = is_wide(dev);
    double sum = 0.0, count = 0.0;
    for (int k = 0; k < p->n; k++) {
        const abar__extra_item *item = &p->items[k];
        if (!item->map) continue;
        for (int64_t i = 0; i < item->count; i++) sum += get(item->weight, i, wide) * get(item->weight, i, wide);
        count += (double)item->count;
    }
    return fmax(count > 0.0 ? p->request.relative * sqrt(sum / count) : 0.0, ABAR_EXTRA_LEAST_STEP);
}

static void save(abar_device *dev, const abar__extra_plan *p)
{
    const size_t element = abar_dtype_size(dev->ops->dtype);
    for (int k = 0; k < p->n; k++)
        if (p->items[k].count > 0) memcpy(p->items[k].saved, p->items[k].weight, (size_t)p->items[k].count * element);
}

static void perturb_item(const abar__extra_item *item, uint64_t seed, int64_t step, double h, bool wide)
{
    abar__draw draw = {{0}};
    for (int64_t i = 0; i < item->count; i++) {
        const uint64_t number = (uint64_t)(item->first + i);
        if (i == 0 || number % 128 == 0) draw = abar__random(seed, ABAR_DRAW_SIGNS, (uint32_t)step, number / 128);
        const bool up = draw.u[number % 128 / 32] >> (number % 32) & 1;
        set(item->weight, i, get(item->saved, i, wide) + (up ? h : -h), wide);
    }
}

void abar__extra_perturb(abar_device *dev, const abar__extra_plan *p, abar__extra_state *x, int64_t k, int sign)
{
    const size_t element = abar_dtype_size(dev->ops->dtype);
    if (sign == 0 && !x->saved) return;
    if (!x->saved) {
        save(dev, p);
        x->step = step_of(dev, p);
    }
    for (int i = 0; i < p->n; i++) {
        const abar__extra_item *item = &p->items[i];
        if (item->count == 0) continue;
        if (sign == 0)
            memcpy(item->weight, item->saved, (size_t)item->count * element);
        else
            perturb_item(item, p->seed, k, sign * x->step, is_wide(dev));
    }
    x->saved = sign != 0;
}

/* D = scale |grad|, the mean over the taps of each kernel. */
static void take_difference(abar_device *dev, const abar__extra_plan *p, double scale)
{
    const bool wide = is_wide(dev);
    for (int k = 0; k < p->n; k++) {
        const abar__extra_item *item = &p->items[k];
        if (!item->diagonal) continue; /* another rank keeps it */
        for (int64_t i = 0; i < item->count; i += item->taps) {
            double sum = 0.0;
            for (int64_t j = i; j < i + item->taps; j++) sum += fabs(get(item->grad, j, wide));
            for (int64_t j = i; j < i + item->taps; j++) set(item->diagonal, j, scale * sum / (double)item->taps, wide);
        }
    }
}

/* h <- decay h + (1 - decay) (scale grad)^2 */
static void take_squares(abar_device *dev, const abar__extra_plan *p, double scale)
{
    const bool wide = is_wide(dev);
    const double decay = wide ? p->request.decay : (double)(float)p->request.decay;
    for (int k = 0; k < p->n; k++) {
        const abar__extra_item *item = &p->items[k];
        if (!item->diagonal) continue;
        for (int64_t i = 0; i < item->count; i++) {
            const double g = scale * get(item->grad, i, wide);
            set(item->diagonal, i, decay * get(item->diagonal, i, wide) + (1.0 - decay) * g * g, wide);
        }
    }
}

/* Whether numbers of this norm fit the device; squares: theirs, too. */
static bool fits(const abar_device *dev, double norm, bool squares)
{
    if (is_wide(dev)) return norm < (squares ? 1e150 : 1e300);
    return norm < (squares ? 1e18 : 1e36);
}

void abar__extra_check(abar_device *dev, const abar__extra_plan *p, abar__extra_state *x)
{
    double norm;
    x->fine = dev->ops->norm(dev, p->grads, p->n, NULL, &norm) && fits(dev, 0.5 / x->step * norm, false);
}

void abar__extra_take(abar_device *dev, const abar__extra_plan *p, abar__extra_state *x, abar__step_state *state,
                      double grad_scale, double clip, bool skip)
{
    const bool sampled = p->request.kind == ABAR_EXTRA_SAMPLED;
    double scale = grad_scale;
    if (sampled) {
        double norm = 0.0;
        x->fine = dev->ops->norm(dev, p->grads, p->n, NULL, &norm);
        if (clip > 0.0) scale *= fmin(1.0, clip / (grad_scale * norm + 1e-6));
        x->fine = x->fine && fits(dev, scale * norm, true);
    }
    if (!x->fine) state->extra_dropped++;
    if (skip || !x->fine) return;
    state->diagonals++;
    if (sampled)
        take_squares(dev, p, scale);
    else
        take_difference(dev, p, 0.5 * scale / x->step);
}
