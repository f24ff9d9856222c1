/* FOOF (methods.md section 4): the activation factor in full, A = E[a aᵀ];  Ĝ = G (Â + ρI)⁻¹. */
#include "curvature/curvature_impl.h"

typedef struct foof_config {
    double damping, kl_clip;
} foof_config;

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(foof_config, damping),
     .fallback = "1",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho, added to the diagonal of the factor"},
    ABAR_KL_CLIP_OPTION(foof_config, "0"),
    {.name = NULL},
};

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    (void)map;
    const foof_config *c = cv->method_config;
    const abar__scalar rho = abar__plan_value(p, c->damping);
    const abar__stat a = abar__plan_average(p, "A", ABAR_INPUT_PRODUCT, ABAR_PER_ROW);
    abar__plan_sandwich(p, ABAR_IDENTITY, abar__plan_inverse(p, "A_inverse", a, rho)); /* G (Â + ρI)⁻¹ */
    abar__plan_report(p, ABAR_REAL_DAMPING, rho);
}

const abar__curvature_ops abar__method_foof = {
    .method = {.name = "foof",
               .summary = "the full activation factor, the identity for the gradients",
               .keeps = "E[a aT] and its inverse: 2 d x d",
               .options = options,
               .config_size = sizeof(foof_config)},
    .kl_clip = offsetof(foof_config, kl_clip),
    .plan = plan,
};
