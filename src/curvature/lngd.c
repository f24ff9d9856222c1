/* LNGD (methods.md section 6): activations weighted by the size of their gradients, and a diagonal for the gradients.
 *
 *     Φ = E_n[|p̄_n|² E_r(a aᵀ)],   Ψ = E_n[|ā_n|² E_r(p ⊙ p)] / E_n[|ā_n|² |p̄_n|²]  (0 if the denominator is 0)
 *     V = diag(Ψ + δ_Ψ)⁻¹ G (Φ + δ_Φ I)⁻¹,  dampings clip(tr Φ / d, ν1, ν2) and clip(ΣΨ / d_out, ν1, ν2)
 *     Ĝ = c V,  c = ⟨V, G⟩ / (⟨V, G⟩² + μ), per map
 *
 * Averages are of Φ and of Ψ's numerator and denominator: no per-example activations are ever stored. */
#include "curvature/curvature_impl.h"

typedef struct lngd_config {
    double nu1, nu2, mu, kl_clip;
} lngd_config;

static const abar_option options[] = {
    {.name = "nu1",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(lngd_config, nu1),
     .fallback = "1e-5",
     .min = 1e-30,
     .max = 1e30,
     .help = "lower bound of both dampings"},
    {.name = "nu2",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(lngd_config, nu2),
     .fallback = "1e-2",
     .min = 1e-30,
     .max = 1e30,
     .help = "upper bound of both dampings"},
    {.name = "mu",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(lngd_config, mu),
     .fallback = "0.03",
     .min = 1e-30,
     .max = 1e30,
     .help = "damping of each layer's step length"},
    ABAR_KL_CLIP_OPTION(lngd_config, "0"),
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const char *method, const void *config)
{
    (void)method;
    const lngd_config *c = config;
    if (c->nu1 <= c->nu2) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--nu1 %g: above --nu2 %g, exchange them", c->nu1, c->nu2);
}

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    (void)cv;
    const lngd_config *c = map->config;
    const abar__stat phi = abar__plan_average(p, "Phi", ABAR_INPUT_WEIGHED_PRODUCT, ABAR_PER_EXAMPLE);
    const abar__stat psi = abar__plan_average(p, "Psi", ABAR_GRAD_WEIGHED_SQUARES, ABAR_PER_EXAMPLE);
    const abar__scalar denominator = abar__plan_mean_number(p, "Psi_denominator", ABAR_NUMBER_WEIGHTS, ABAR_PER_EXAMPLE);
    const abar__scalar over = abar__plan_reciprocal(p, denominator);
    const abar__scalar damping_phi = abar__plan_clamp(p, abar__plan_mean(p, phi), c->nu1, c->nu2);
    const abar__scalar damping_psi = abar__plan_clamp(p, abar__plan_multiply(p, over, abar__plan_mean(p, psi)), c->nu1, c->nu2);
    abar__plan_sandwich(p, ABAR_IDENTITY, abar__plan_inverse(p, "Phi_inverse", phi, damping_phi));
    abar__plan_scale_rows(p, abar__plan_reciprocals(p, "Psi_reciprocal", psi, &over, damping_psi), c->nu1);
    abar__plan_own_length(p, c->mu);
    abar__plan_report(p, ABAR_REAL_DAMPING, damping_phi);
}

const abar__curvature_ops abar__method_lngd = {
    .method = {.name = "lngd",
               .summary = "layer-wise natural gradient: weighted activations, diagonal gradients",
               .keeps = "Phi and its inverse, Psi: 2 d x d, 3 vectors of d_out",
               .options = options,
               .config_size = sizeof(lngd_config)},
    .reads_output_grad = true,
    .check = check,
    .plan = plan,
};
