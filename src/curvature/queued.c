/* Curvature on a queued device. The device's program commits, refreshes and preconditions (program_impl.h); what stays here is
 * what the host knows better: which maps there are, how many rows were observed, and the names of their state. */
#include "curvature/curvature_impl.h"

#include <string.h>

void abar__keep_average(const abar__map *map, int i, abar__kept_map *out)
{
    const abar__average_desc *a = &map->shape.average[i];
    out->average[i] = (abar__kept_average){a->n, a->square, map->average[i], map->pending[i]};
}

void abar__curvature_keep(const abar__curvature *cv, abar__kept_map *out)
{
    for (int i = 0; i < cv->n_maps; i++) {
        const abar__map *map = &cv->maps[i];
        const int64_t kernel = map->channels_last ? map->window.kernel[0] * map->window.kernel[1] : 1;
        out[i] = (abar__kept_map){.d = map->d,
                                  .columns = map->in,
                                  .out = map->out,
                                  .link = map->link,
                                  .links = map->links,
                                  .number = map->number,
                                  .kernel = kernel,
                                  .scale = 1.0,
                                  .bound = 1.0};
        cv->ops->keep(cv, map, &out[i]);
    }
}

bool abar__curvature_to_mean(abar__curvature *cv, double observed_scale, double *out)
{
    bool observed = false;
    cv->observed_scale = observed_scale;
    for (int i = 0; i < cv->n_maps; i++, out += 3) {
        abar__map *map = &cv->maps[i];
        const abar__average_desc *const sums[3] = {&map->shape.average[0], &map->shape.average[1], &map->shape.number};
        const bool seen = map->examples > 0.0;
        for (int k = 0; k < 3; k++) out[k] = seen && sums[k]->name ? abar__to_mean(cv, map, sums[k]) : 0.0;
        if (seen) abar__curvature_join(cv, map); /* given before the step, and recorded with it */
        observed = observed || seen;
        map->rows = map->examples = 0.0;
    }
    return observed;
}

void abar__curvature_load(abar__curvature *cv, const abar__program_state *program, const abar__map_state *states)
{
    cv->k = program->k;
    cv->times.kl_scale = program->kl_scale;
    for (int i = 0; i < cv->n_maps; i++) {
        memcpy(cv->maps[i].count, states[i].count, sizeof states[i].count);
        memcpy(cv->maps[i].real, states[i].real, sizeof states[i].real);
    }
}

void abar__curvature_unload(const abar__curvature *cv, abar__program_state *program, abar__map_state *states)
{
    program->kl_scale = cv->times.kl_scale;
    for (int i = 0; i < cv->n_maps; i++) {
        memcpy(states[i].count, cv->maps[i].count, sizeof states[i].count);
        memcpy(states[i].real, cv->maps[i].real, sizeof states[i].real);
    }
}

void abar__curvature_set_products(abar__curvature *cv, const double *products)
{
    for (int i = 0; i < cv->n_maps; i++) abar__set_comparison(&cv->maps[i], products + 3 * i);
}
