/* FOOF (methods.md section 4): the activation factor in full, A = E[a aᵀ];  Ĝ = G (Â + ρI)⁻¹. */
#include "curvature/damping.h"

typedef struct foof_config {
    char damping[ABAR_OPTION_TEXT_MAX];
    double kl_clip;
} foof_config;

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(foof_config, damping),
     .fallback = "1",
     .help = "rho, added to the diagonal of the factor: a number, or trace:G (G times the mean of the diagonal)"},
    ABAR_KL_CLIP_OPTION(foof_config, "0"),
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const char *method, const void *config)
{
    const foof_config *c = config;
    abar__damping damping;
    if (abar__damping_read(c->damping, &damping) && damping.kind != ABAR_DAMPING_ADAPTIVE) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--damping %s: %s takes a number from 1e-30 to 1e30, or trace:G with such a G",
                      c->damping, method);
}

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    (void)cv;
    const foof_config *c = map->config;
    abar__damping damping;
    (void)abar__damping_read(c->damping, &damping);
    const abar__stat a = abar__plan_average(p, "A", ABAR_INPUT_PRODUCT, ABAR_PER_ROW);
    const abar__scalar rho = damping.kind == ABAR_DAMPING_TRACE
                                 ? abar__damping_by_trace(p, damping.value, abar__plan_mean(p, a))
                                 : abar__plan_value(p, damping.value);
    abar__plan_sandwich(p, ABAR_IDENTITY, abar__plan_inverse(p, "A_inverse", a, rho)); /* G (Â + ρI)⁻¹ */
    abar__plan_report(p, ABAR_REAL_DAMPING, rho);
}

const abar__curvature_ops abar__method_foof = {
    .method = {.name = "foof",
               .summary = "the full activation factor, the identity for the gradients",
               .keeps = "E[a aT] and its inverse: 2 d x d",
               .options = options,
               .config_size = sizeof(foof_config)},
    .check = check,
    .plan = plan,
};
