/* KPSVD (optimizers.md section 6): the Kronecker product nearest to a layer's block of the Fisher matrix.
 *
 *     R ⊗ S nearest to E_n[ā_n ā_nᵀ ⊗ q_n q_nᵀ],  q_n = B p̄_n,   by power iteration at each commit (device/host/rows.c)
 *     Ĝ = (Ŝ + (√ρ/π) I)⁻¹ G (R̂ + (π√ρ) I)⁻¹,   π = sqrt((tr R̂ / d) / (tr Ŝ / d_out)),   then the KL clip
 *
 * π stays within [1e-10, 1e10], and is 1 where a trace is 0. With two terms Ĝ is the X of S X R + Q X P = G, R and S damped as
 * above, P ⊗ Q nearest to what R ⊗ S leaves. */
#include "curvature/curvature_impl.h"

#include <math.h>

#define LEAST_DIVISOR 0.1 /* P and Q may be indefinite */

typedef struct kpsvd_config {
    double damping, kl_clip;
    int64_t rounds, terms;
} kpsvd_config;

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(kpsvd_config, damping),
     .fallback = "0.03",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho, split between the two factors"},
    ABAR_KL_CLIP_OPTION(kpsvd_config, "0.001"),
    {.name = "kpsvd-rounds",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(kpsvd_config, rounds),
     .fallback = "3",
     .min = 1,
     .max = 1000,
     .help = "rounds of the power iteration at each commit"},
    {.name = "kpsvd-terms",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(kpsvd_config, terms),
     .fallback = "1",
     .min = 1,
     .max = 2,
     .help = "Kronecker products, one or the sum of two"},
    {.name = NULL},
};

/* Both terms begin from E[qqᵀ]. After one round R is what that is mapped to, and nothing of it is left for the second. */
static abar_status check(abar_context *ctx, const char *method, const void *config)
{
    const kpsvd_config *c = config;
    if (c->terms == 1 || c->rounds > 1) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--kpsvd-rounds 1: %s --kpsvd-terms 2 needs two rounds or more", method);
}

static abar_status check_maps(const abar__curvature *cv)
{
    if (cv->examples > 0) return ABAR_OK;
    return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                      "kpsvd: it keeps the rows of a step, set examples in abar_optim_config to the most that a step has");
}

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    static const char *const first[3] = {"R", "S", "S_start"}, *const second[3] = {"P", "Q", "Q_start"};
    const kpsvd_config *c = map->config;
    abar__stat r, s;
    abar__plan_nearest(p, first, cv->examples, (int)c->rounds, &r, &s);
    const abar__scalar ratio = abar__plan_ratio(p, abar__plan_mean(p, r), abar__plan_mean(p, s));
    const abar__scalar pi = abar__plan_clamp(p, abar__plan_sqrt(p, ratio), 1e-10, 1e10);
    const abar__scalar root = abar__plan_value(p, sqrt(c->damping));
    const abar__scalar right = abar__plan_multiply(p, pi, root), left = abar__plan_divide(p, root, pi);
    if (c->terms == 1) {
        const abar__factor inverse = abar__plan_inverse(p, "R_inverse", r, right);
        abar__plan_sandwich(p, abar__plan_inverse(p, "S_inverse", s, left), inverse);
    } else {
        abar__plan_second_nearest(p, second);
        const abar__factor paired = abar__plan_paired(p, "RP", "RP_values", r, right);
        abar__plan_divide_paired(p, abar__plan_paired(p, "SQ", "SQ_values", s, left), paired, LEAST_DIVISOR);
    }
    abar__plan_report(p, ABAR_REAL_DAMPING, abar__plan_value(p, c->damping));
}

const abar__curvature_ops abar__method_kpsvd = {
    .method = {.name = "kpsvd",
               .summary = "the nearest Kronecker product to the Fisher matrix (Koroko et al. 2022)",
               .keeps = "R, S and their inverses: 2 d x d, 3 d_out x d_out; the batch's rows of a and p",
               .options = options,
               .config_size = sizeof(kpsvd_config)},
    .reads_output_grad = true,
    .check = check,
    .check_maps = check_maps,
    .plan = plan,
};
