/* Curvature on a queued device. The device's program commits, refreshes and preconditions (program_impl.h); what stays here is
 * what the host knows better: which maps there are, how many rows were observed, and the names of their state. */
#include "curvature/curvature_impl.h"

#include <math.h>
#include <string.h>

abar_status abar__curvature_keep(const abar__curvature *cv, abar__kept_map *out)
{
    if (!cv->ops->method.queued)
        return abar__fail(cv->dev->ctx, ABAR_E_UNSUPPORTED,
                          "optimizer %s: does not run on device %s, use mac, smac, sgd or adamw there, or device cpu",
                          cv->ops->method.name, cv->dev->ops->name);
    for (int i = 0; i < cv->n_maps; i++) {
        const abar__map *map = &cv->maps[i];
        const int64_t kernel = map->channels_last ? map->window.kernel[0] * map->window.kernel[1] : 1;
        out[i] = (abar__kept_map){
            .d = map->d, .out = map->out, .link = map->link, .links = map->links, .number = map->number, .kernel = kernel};
        cv->ops->keep(cv, map, &out[i]);
    }
    return ABAR_OK;
}

/* What turns the sum of an average into the new value. */
static double factor(const abar__curvature *cv, const abar__map *map, const abar__average_desc *a, double observed_scale)
{
    if (!a->name || map->examples == 0.0) return 0.0;
    double scale = a->grad_power ? pow(observed_scale * (cv->config.pgrad ? map->examples : 1.0), a->grad_power) : 1.0;
    return scale / abar__pending_count(map, a->per);
}

bool abar__curvature_to_mean(abar__curvature *cv, double observed_scale, double *out)
{
    bool observed = false;
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        out[3 * i] = factor(cv, map, &map->shape.average[0], observed_scale);
        out[3 * i + 1] = factor(cv, map, &map->shape.average[1], observed_scale);
        out[3 * i + 2] = factor(cv, map, &map->shape.number, observed_scale);
        observed = observed || map->examples > 0.0;
        if (map->examples > 0.0) abar__curvature_join(cv, map); /* given before the step, and recorded with it */
        map->rows = map->examples = 0.0;
    }
    return observed;
}

void abar__curvature_load(abar__curvature *cv, int64_t k, const abar__map_state *states)
{
    cv->k = k;
    for (int i = 0; i < cv->n_maps; i++) {
        memcpy(cv->maps[i].count, states[i].count, sizeof states[i].count);
        memcpy(cv->maps[i].real, states[i].real, sizeof states[i].real);
    }
}

void abar__curvature_unload(const abar__curvature *cv, abar__map_state *states)
{
    for (int i = 0; i < cv->n_maps; i++) {
        memcpy(states[i].count, cv->maps[i].count, sizeof states[i].count);
        memcpy(states[i].real, cv->maps[i].real, sizeof states[i].real);
    }
}

void abar__curvature_set_products(abar__curvature *cv, const double *products)
{
    for (int i = 0; i < cv->n_maps; i++, products += 3) {
        cv->maps[i].cosine = products[1] / sqrt(products[0] * products[2]);
        cv->maps[i].ratio = sqrt(products[2] / products[0]);
    }
}
