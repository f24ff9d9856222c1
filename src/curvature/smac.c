/* SMAC (methods.md section 3): MAC's activation side (mac.c), and the diagonal of the gradients' second moment on the other:
 *
 *     p̂ = average of E[p ⊙ p];   Ĝ = diag(p̂ + ρ)⁻¹ G (I − â âᵀ / (ρ + |â|²)),   coupled damping: Ĝ / ρ as in MAC
 *
 * The diagonal keeps the fixed ρ (1 by default) where the activation side is adaptive. Of a map that was calibrated on the data
 * set, p̂ is 0 until the first commit. */
#include "curvature/mac.h"

typedef struct smac_config {
    abar__mac_config mac; /* first: MAC's functions read it */
    double diagonal;
} smac_config;

enum { SQUARES = 1, RECIPROCAL = 1 }; /* among the averages, among the derived */

static const abar_option options[] = {
    ABAR_MAC_OPTIONS,
    {.name = "diagonal-damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(smac_config, diagonal),
     .fallback = "1",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho of the diagonal where --damping is adaptive"},
    {.name = NULL},
};

static void shape(const abar__curvature *cv, const abar__map *map, abar__map_shape *out)
{
    abar__mac_shape(cv, map, out);
    out->average[SQUARES] = (abar__average_desc){.name = "pp", .n = map->out, .per = ABAR_PER_ROW, .grad_power = 2};
    out->derived[RECIPROCAL] = (abar__derived_desc){"r", map->out};
}

static void observe(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    if (abar__mac_sums_rows(cv, map)) { /* a and p may take one call */
        abar__add_both(cv, rows, map->pending[ABAR_MAC_MEAN], true, map->pending[SQUARES]);
        abar__mac_add_square(cv, map, rows);
        return;
    }
    cv->stats->grad_squares(cv->dev, rows, NULL, map->pending[SQUARES]);
    abar__mac_observe(cv, map, rows);
}

static double diagonal_damping(const abar__curvature *cv)
{
    const smac_config *c = cv->method_config;
    bool adaptive;
    const double rho = abar__mac_damping(&c->mac, &adaptive);
    return adaptive ? c->diagonal : rho;
}

static void derive_rows(abar__curvature *cv, abar__map *map, double unbias)
{
    cv->stats->reciprocal(cv->dev, map->out, map->average[SQUARES], unbias, diagonal_damping(cv), map->derived[RECIPROCAL]);
}

static bool refresh(abar__curvature *cv, abar__map *map, double unbias)
{
    derive_rows(cv, map, unbias);
    return abar__mac_refresh(cv, map, unbias);
}

static void describe(abar__curvature *cv, abar__map *map)
{
    abar__mac_describe(cv, map);
    map->pre.row_scale = map->derived[RECIPROCAL];
    map->bound /= diagonal_damping(cv);
}

static void apply(abar__curvature *cv, abar__map *map, const void *g, void *out)
{
    abar__mac_apply(cv, map, g, out);
    cv->stats->scale_rows(cv->dev, map->out, map->d, out, map->derived[RECIPROCAL], 1.0);
}

static bool end_calibration(abar__curvature *cv, abar__map *map)
{
    derive_rows(cv, map, 1.0); /* p̂ is 0 before step 0 */
    return abar__mac_end_calibration(cv, map);
}

static void keep(const abar__curvature *cv, const abar__map *map, abar__kept_map *out)
{
    abar__mac_keep(cv, map, out);
    abar__keep_average(map, SQUARES, out);
    out->r = map->derived[RECIPROCAL];
    out->diagonal = diagonal_damping(cv);
    out->bound = 1.0 / out->diagonal;
}

const abar__curvature_ops abar__method_smac = {
    .method = {.name = "smac",
               .summary = "MAC with the diagonal second moment of the output gradients",
               .keeps = "mean activation and squared output gradients: 3 vectors of d, 3 of d_out",
               .options = options,
               .config_size = sizeof(smac_config)},
    .uses = ABAR_USES_INPUT | ABAR_USES_OUTPUT_GRAD,
    .kl_clip = offsetof(smac_config, mac.kl_clip),
    .check = abar__mac_check,
    .check_maps = abar__mac_check_maps,
    .value_parts = abar__mac_value_parts,
    .shape = shape,
    .observe = observe,
    .refresh = refresh,
    .describe = describe,
    .apply = apply,
    .calibrate = abar__mac_calibrate,
    .end_calibration = end_calibration,
    .keep = keep,
};
