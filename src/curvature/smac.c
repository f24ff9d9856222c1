/* SMAC (methods.md section 3): MAC's activation side (mac.c), and the diagonal of the gradients' second moment on the other:
 *
 *     p̂ = average of E[p ⊙ p];   Ĝ = diag(p̂ + ρ)⁻¹ G (I − â âᵀ / (ρ + |â|²)),   coupled damping: Ĝ / ρ as in MAC
 *
 * The diagonal keeps the fixed ρ (1 by default) where the activation side is adaptive or follows the trace. Of a map that was
 * calibrated on the data set, p̂ is 0 until the first commit. */
#include "curvature/mac.h"

typedef struct smac_config {
    abar__mac_config mac; /* first: MAC's functions read it */
    double diagonal;
} smac_config;

static const abar_option options[] = {
    ABAR_MAC_OPTIONS,
    {.name = "diagonal-damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(smac_config, diagonal),
     .fallback = "1",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho of the diagonal where --damping is not a number"},
    {.name = NULL},
};

static double diagonal_damping(const smac_config *c)
{
    abar__damping damping;
    return abar__damping_read(c->mac.damping, &damping) && damping.kind == ABAR_DAMPING_NUMBER ? damping.value : c->diagonal;
}

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    const double rho = diagonal_damping(map->config);
    abar__mac_plan(cv, map, p);
    const abar__stat pp = abar__plan_average(p, "pp", ABAR_GRAD_SQUARES, ABAR_PER_ROW);
    const abar__factor r = abar__plan_reciprocals(p, "r", pp, NULL, abar__plan_value(p, rho));
    abar__plan_scale_rows(p, r, rho); /* diag(p̂ + ρ)⁻¹ Ĝ */
}

const abar__curvature_ops abar__method_smac = {
    .method = {.name = "smac",
               .summary = "MAC with the diagonal second moment of the output gradients",
               .keeps = "mean activation and squared output gradients: 3 vectors of d, 3 of d_out",
               .options = options,
               .config_size = sizeof(smac_config)},
    .reads_output_grad = true,
    .check = abar__mac_check,
    .check_maps = abar__mac_check_maps,
    .value_parts = abar__mac_value_parts,
    .plan = plan,
};
