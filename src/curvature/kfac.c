/* KFAC (methods.md section 5): both Kronecker factors.
 *
 *     Ĝ = (P̂ + (√ρ/π) I)⁻¹ G (Â + (π√ρ) I)⁻¹,   π = sqrt((tr Â / d) / (tr P̂ / d_out)),   then the KL clip.
 *
 * π stays within [1e-10, 1e10], and is 1 where a trace is 0.
 *
 * reduce: A = E_n[ā_n ā_nᵀ], P = E_n[p̄_n p̄_nᵀ] from per-example means (under per-example gradients rows are summed: R² P);
 * expand: A = E[a aᵀ], P = R E[p pᵀ]. eigen divides by λ_P λ_Aᵀ + ρ in the factors' eigenbases instead. */
#include "curvature/curvature_impl.h"

#include <math.h>

typedef struct kfac_config {
    double damping, kl_clip, stat_init;
    int64_t approximation, inverse, rank;
} kfac_config;

enum { REDUCE, EXPAND };
enum { CHOLESKY, EIGEN };

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(kfac_config, damping),
     .fallback = "0.03",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho, split between the two factors"},
    ABAR_KL_CLIP_OPTION(kfac_config, "0.001"),
    ABAR_STAT_INIT_OPTION(kfac_config),
    ABAR_RANK_OPTION(kfac_config),
    {.name = "kfac",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(kfac_config, approximation),
     .fallback = "reduce",
     .choices = "reduce|expand",
     .help = "shared weights: average the rows before the product, or after"},
    {.name = "kfac-inverse",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(kfac_config, inverse),
     .fallback = "cholesky",
     .choices = "cholesky|eigen",
     .help = "damp each factor, or their product in the eigenbasis"},
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const char *method, const void *config)
{
    const kfac_config *c = config;
    if (c->rank == 0 || c->inverse == CHOLESKY) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--kfac-rank %lld: %s --kfac-inverse eigen has all eigenvectors, leave one out",
                      (long long)c->rank, method);
}

static abar__factor inverse(const kfac_config *c, const char *name, abar__stat of, int64_t n, abar__scalar shift, abar__plan *p)
{
    if (c->rank > 0 && c->rank < n) return abar__plan_inverse_of_rank(p, name, of, shift, c->rank);
    return abar__plan_inverse(p, name, of, shift);
}

static void plan_cholesky(const kfac_config *c, abar__stat a, abar__stat g, abar__plan *p)
{
    const abar__scalar ratio = abar__plan_ratio(p, abar__plan_mean(p, a), abar__plan_mean(p, g));
    const abar__scalar pi = abar__plan_clamp(p, abar__plan_sqrt(p, ratio), 1e-10, 1e10);
    const abar__scalar root = abar__plan_value(p, sqrt(c->damping));
    const abar__factor right = inverse(c, "A_inverse", a, p->d, abar__plan_multiply(p, pi, root), p);
    const abar__factor left = inverse(c, "P_inverse", g, p->out, abar__plan_divide(p, root, pi), p);
    abar__plan_sandwich(p, left, right);
}

static void plan_eigen(const kfac_config *c, abar__stat a, abar__stat g, abar__plan *p)
{
    const abar__factor right = abar__plan_eigenbasis(p, "A_vectors", "A_values", a);
    const abar__factor left = abar__plan_eigenbasis(p, "P_vectors", "P_values", g);
    abar__plan_divide_in_basis(p, left, right, c->damping);
}

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    (void)cv;
    const kfac_config *c = map->config;
    const bool expand = c->approximation == EXPAND;
    const abar__stat a = abar__plan_average(p, "A", expand ? ABAR_INPUT_PRODUCT : ABAR_INPUT_MEAN_PRODUCT,
                                            expand ? ABAR_PER_ROW : ABAR_PER_EXAMPLE);
    const abar__stat g = abar__plan_average(p, "P", expand ? ABAR_GRAD_PRODUCT : ABAR_GRAD_MEAN_PRODUCT, ABAR_PER_EXAMPLE);
    if (c->inverse == EIGEN)
        plan_eigen(c, a, g, p);
    else
        plan_cholesky(c, a, g, p);
    abar__plan_begin_at(p, c->stat_init);
    abar__plan_report(p, ABAR_REAL_DAMPING, abar__plan_value(p, c->damping));
}

const abar__curvature_ops abar__method_kfac = {
    .method = {.name = "kfac",
               .summary = "both Kronecker factors of the Fisher matrix",
               .keeps = "E[a aT], E[p pT] and their inverses: 2 d x d, 2 d_out x d_out",
               .options = options,
               .config_size = sizeof(kfac_config)},
    .reads_output_grad = true,
    .check = check,
    .plan = plan,
};
