/* Eva (methods.md section 6): rank one on both sides, refreshed at every commit.
 *
 *     ā = E[a], p̄ = E[p], averages â, p̂;   Ĝ = (1/ρ) (G − (p̂ᵀ G â) p̂ âᵀ / (ρ + |â|²|p̂|²)),   then the KL clip. */
#include "curvature/curvature_impl.h"

typedef struct eva_config {
    double damping, kl_clip;
} eva_config;

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

/* With unit vectors â = |â| u, p̂ = |p̂| w the fraction is s (wᵀ G u) w uᵀ, s = q / (ρ + q), q = |â|²|p̂|²: no overflow. */
static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    (void)cv;
    const eva_config *c = map->config;
    const abar__stat a = abar__plan_average(p, ABAR_MEAN_ACTIVATION, ABAR_INPUT_MEAN, ABAR_PER_ROW);
    const abar__stat g = abar__plan_average(p, "p", ABAR_GRAD_MEAN, ABAR_PER_ROW);
    const abar__scalar aa = abar__plan_square(p, a), gg = abar__plan_square(p, g), rho = abar__plan_value(p, c->damping);
    const abar__scalar q = abar__plan_multiply(p, aa, gg);
    const abar__factor u = abar__plan_vector(p, "unit_a", a, abar__plan_reciprocal(p, abar__plan_sqrt(p, aa)));
    const abar__factor w = abar__plan_vector(p, "unit_p", g, abar__plan_reciprocal(p, abar__plan_sqrt(p, gg)));
    abar__plan_report(p, ABAR_REAL_DAMPING, rho);
    abar__plan_report(p, ABAR_REAL_MEAN_SQUARE, aa);
    abar__plan_report(p, ABAR_REAL_CONDITION, abar__plan_divide(p, abar__plan_add(p, rho, q), rho));
    abar__plan_report(p, ABAR_REAL_FACTOR, abar__plan_share(p, q, rho));
    abar__plan_subtract_outer(p, "coefficient", w, u);
    abar__plan_scale(p, 1.0 / c->damping);
}

const abar__curvature_ops abar__method_eva = {
    .method = {.name = "eva",
               .summary = "rank-1 factors on both sides",
               .keeps = "mean activation and mean output gradient: 3 vectors of d, 4 of d_out",
               .options = options,
               .config_size = sizeof(eva_config)},
    .reads_output_grad = true,
    .every_commit = true,
    .plan = plan,
};
