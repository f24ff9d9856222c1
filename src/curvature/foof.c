/* FOOF (methods.md section 4): the activation factor in full, A = E[a aᵀ];  Ĝ = G (Â + ρI)⁻¹. By width of Â only the diagonal
 * blocks of so many columns count, each with its own trace; by rank only the largest eigenvalues. */
#include "curvature/damping.h"

typedef struct foof_config {
    char damping[ABAR_OPTION_TEXT_MAX];
    double kl_clip, stat_init;
    int64_t width, rank;
} foof_config;

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(foof_config, damping),
     .fallback = "1",
     .help = "rho, added to the diagonal of the factor: a number, or trace:G (G times the mean of the diagonal)"},
    ABAR_KL_CLIP_OPTION(foof_config, "0"),
    ABAR_STAT_INIT_OPTION(foof_config),
    ABAR_RANK_OPTION(foof_config),
    {.name = "foof-width",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(foof_config, width),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "only diagonal blocks of so many columns of the factor count, each with its own trace; 0: the whole"},
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const char *method, const void *config)
{
    const foof_config *c = config;
    abar__damping damping;
    if (c->width > 0 && c->rank > 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--kfac-rank %lld: is of the whole factor, leave it or --foof-width out",
                          (long long)c->rank);
    if (abar__damping_read(c->damping, &damping) && damping.kind != ABAR_DAMPING_ADAPTIVE) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--damping %s: %s takes a number from 1e-30 to 1e30, or trace:G with such a G",
                      c->damping, method);
}

static abar__factor inverse(const foof_config *c, const abar__map *map, const abar__damping *damping, abar__stat a,
                            abar__scalar rho, abar__plan *p)
{
    const bool by_trace = damping->kind == ABAR_DAMPING_TRACE;
    if (c->width > 0 && c->width < map->d)
        return abar__plan_inverse_by_blocks(p, "A_inverse", a,
                                            abar__plan_value(p, by_trace ? ABAR_LEAST_DAMPING : damping->value),
                                            abar__plan_value(p, by_trace ? damping->value : 0.0), c->width);
    if (c->rank > 0 && c->rank < map->d) return abar__plan_inverse_of_rank(p, "A_inverse", a, rho, c->rank);
    return abar__plan_inverse(p, "A_inverse", a, rho);
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
    abar__plan_sandwich(p, ABAR_IDENTITY, inverse(c, map, &damping, a, rho, p)); /* G (Â + ρI)⁻¹ */
    abar__plan_begin_at(p, c->stat_init);
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
