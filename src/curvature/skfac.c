/* SKFAC (optimizers.md section 5): both Kronecker factors of one batch, inverted through matrices as large as the batch.
 *
 *     A = E_n[ā_n ā_nᵀ],  P = E_n[q_n q_nᵀ],  q_n = B p̄_n        of the refresh's own batch
 *     Ĝ = (P + αI)⁻¹ G (A + αI)⁻¹,  α = √ρ
 *     (XᵀX + αI)⁻¹ = (I − Xᵀ(XXᵀ + αI)⁻¹X)/α,  X the B rows ā_n/√B; likewise P with the rows q_n/√B
 *
 * A side that is not longer than the batch is inverted as it is: the same numbers from a smaller matrix. */
#include "curvature/curvature_impl.h"

#include <math.h>

typedef struct skfac_config {
    double damping, kl_clip;
} skfac_config;

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(skfac_config, damping),
     .fallback = "0.03",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho: its root is added to both factors"},
    ABAR_KL_CLIP_OPTION(skfac_config, "0"),
    {.name = NULL},
};

/* names: of the statistic, its inverse or the rows that stand for it, and their damping. */
static abar__factor side(abar__plan *p, int64_t examples, bool of_grads, const char *const names[3], abar__scalar alpha)
{
    if (examples > 0 && examples < (of_grads ? p->out : p->d)) {
        const abar__stat rows = abar__plan_rows(p, names[0], of_grads ? ABAR_GRAD_ROWS : ABAR_INPUT_ROWS, examples);
        return abar__plan_inverse_by_rows(p, names[1], names[2], rows, alpha);
    }
    const abar__statistic product = of_grads ? ABAR_GRAD_MEAN_PRODUCT : ABAR_INPUT_MEAN_PRODUCT;
    const abar__stat square = abar__plan_average(p, names[0], product, ABAR_PER_EXAMPLE);
    abar__plan_own_loss(p, square);
    return abar__plan_inverse(p, names[1], square, alpha);
}

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    static const char *const of_a[3] = {"A", "A_inverse", "A_damping"}, *const of_p[3] = {"P", "P_inverse", "P_damping"};
    const skfac_config *c = map->config;
    const abar__scalar alpha = abar__plan_value(p, sqrt(c->damping));
    const abar__factor right = side(p, cv->examples, false, of_a, alpha);
    const abar__factor left = side(p, cv->examples, true, of_p, alpha);
    abar__plan_sandwich(p, left, right);
    abar__plan_report(p, ABAR_REAL_DAMPING, abar__plan_value(p, c->damping));
}

const abar__curvature_ops abar__method_skfac = {
    .method = {.name = "skfac",
               .summary = "both Kronecker factors of one batch, inverted through its examples (Tang et al. 2021)",
               .keeps = "three times B x (d + d_out) for a batch of B; 2 d x d, 2 d_out x d_out for sides not longer than B",
               .options = options,
               .config_size = sizeof(skfac_config)},
    .reads_output_grad = true,
    .one_batch = true,
    .plan = plan,
};
