/* Eva (methods.md section 6): rank one on both sides, refreshed at every commit.
 *
 *     ā = E[a], p̄ = E[p], averages â, p̂;   Ĝ = (1/ρ) (G − (p̂ᵀ G â) p̂ âᵀ / (ρ + |â|²|p̂|²)),   then the KL clip. */
#include "curvature/curvature_impl.h"

#include <math.h>

typedef struct eva_config {
    double damping, kl_clip;
} eva_config;

enum { MEAN_A, MEAN_P };              /* averages */
enum { UNIT_A, UNIT_P, COEFFICIENT }; /* derived */

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(eva_config, damping),
     .fallback = "0.03",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho"},
    ABAR_KL_CLIP_OPTION(eva_config, "0.001"),
    {.name = NULL},
};

static void shape(const abar__curvature *cv, const abar__map *map, abar__map_shape *out)
{
    (void)cv;
    out->average[MEAN_A] = (abar__average_desc){.name = ABAR_MEAN_ACTIVATION, .n = map->d, .per = ABAR_PER_ROW};
    out->average[MEAN_P] = (abar__average_desc){.name = "p", .n = map->out, .per = ABAR_PER_ROW, .grad_power = 1};
    out->derived[UNIT_A] = (abar__derived_desc){"unit_a", map->d};
    out->derived[UNIT_P] = (abar__derived_desc){"unit_p", map->out};
    out->derived[COEFFICIENT] = (abar__derived_desc){"coefficient", map->out};
}

static void observe(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    abar__add_both(cv, rows, map->pending[MEAN_A], false, map->pending[MEAN_P]);
}

/* With unit vectors â = |â| u, p̂ = |p̂| w the fraction is (wᵀ G u) w uᵀ s, s = q / (ρ + q), q = |â|²|p̂|²: no overflow. */
static bool refresh(abar__curvature *cv, abar__map *map, double unbias)
{
    const eva_config *c = cv->method_config;
    const abar__stats_ops *stats = cv->stats;
    double a = unbias * sqrt(stats->dot(cv->dev, map->d, map->average[MEAN_A], map->average[MEAN_A]));
    double p = unbias * sqrt(stats->dot(cv->dev, map->out, map->average[MEAN_P], map->average[MEAN_P]));
    double q = a * a * p * p;
    stats->affine(cv->dev, map->d, map->average[MEAN_A], a > 0.0 ? unbias / a : 0.0, 0.0, map->derived[UNIT_A]);
    stats->affine(cv->dev, map->out, map->average[MEAN_P], p > 0.0 ? unbias / p : 0.0, 0.0, map->derived[UNIT_P]);
    map->real[ABAR_REAL_DAMPING] = c->damping;
    map->real[ABAR_REAL_MEAN_SQUARE] = a * a;
    map->real[ABAR_REAL_CONDITION] = (c->damping + q) / c->damping;
    map->real[ABAR_REAL_FACTOR] = isfinite(q) ? q / (c->damping + q) : 1.0;
    return true;
}

static void describe(abar__curvature *cv, abar__map *map)
{
    const eva_config *c = cv->method_config;
    const abar__stats_ops *stats = cv->stats;
    double inner = stats->bilinear(cv->dev, map->out, map->in, map->derived[UNIT_P], map->weight_grad, map->derived[UNIT_A]);
    if (map->bias_grad) {
        const char *last = (const char *)map->derived[UNIT_A] + (size_t)map->in * abar__element(cv);
        inner += stats->bilinear(cv->dev, map->out, 1, map->derived[UNIT_P], map->bias_grad, last);
    }
    stats->affine(cv->dev, map->out, map->derived[UNIT_P], map->real[ABAR_REAL_FACTOR] * inner, 0.0, map->derived[COEFFICIENT]);
    map->pre.right = map->derived[UNIT_A];
    map->pre.coefficient = map->derived[COEFFICIENT];
    map->pre.scale = map->bound = 1.0 / c->damping;
}

static void keep(const abar__curvature *cv, const abar__map *map, abar__kept_map *out)
{
    const eva_config *c = cv->method_config;
    out->kind = ABAR_KEPT_EVA;
    abar__keep_average(map, MEAN_A, out);
    abar__keep_average(map, MEAN_P, out);
    out->u = map->derived[UNIT_A];
    out->w = map->derived[UNIT_P];
    out->rho = c->damping;
    out->scale = out->bound = 1.0 / c->damping;
}

const abar__curvature_ops abar__method_eva = {
    .method = {.name = "eva",
               .summary = "rank-1 factors on both sides",
               .keeps = "mean activation and mean output gradient: 3 vectors of d, 4 of d_out",
               .options = options,
               .config_size = sizeof(eva_config)},
    .uses = ABAR_USES_INPUT | ABAR_USES_OUTPUT_GRAD,
    .kl_clip = offsetof(eva_config, kl_clip),
    .every_commit = true,
    .shape = shape,
    .observe = observe,
    .refresh = refresh,
    .describe = describe,
    .keep = keep,
};
