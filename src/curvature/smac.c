/* SMAC (methods.md section 3): MAC's activation side, and the diagonal of the gradients' second moment on the other:
 *
 *     p̂ = average of E[p ⊙ p];   Ĝ = diag(p̂ + ρ)⁻¹ G (I − â âᵀ / (ρ + |â|²))
 *
 * The diagonal keeps the fixed ρ (1 by default) where the activation side is adaptive. */
#include "curvature/mean_side.h"

typedef struct smac_config {
    abar__mean_config mean;
    double diagonal;
} smac_config;

enum { SQUARES = 1, RECIPROCAL = 1 }; /* among the averages, among the derived */

static const abar_option options[] = {
    ABAR_MEAN_OPTIONS(offsetof(smac_config, mean)),
    {.name = "diagonal-damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(smac_config, diagonal),
     .fallback = "1",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho of the diagonal where --damping is adaptive"},
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const void *config)
{
    const smac_config *c = config;
    return abar__mean_check(ctx, "smac", &c->mean);
}

static abar_status check_maps(const abar__curvature *cv)
{
    const smac_config *c = cv->method_config;
    return abar__mean_check_maps(cv, &c->mean);
}

static int64_t value_parts(const abar__curvature *cv, const abar_layer *layer)
{
    const smac_config *c = cv->method_config;
    return abar__mean_value_parts(&c->mean, layer);
}

static void shape(const abar__curvature *cv, const abar__map *map, abar__map_shape *out)
{
    const smac_config *c = cv->method_config;
    abar__mean_shape(cv, &c->mean, map, out);
    out->average[SQUARES] = (abar__average_desc){.name = "pp", .n = map->out, .per = ABAR_PER_ROW, .grad_power = 2};
    out->derived[RECIPROCAL] = (abar__derived_desc){"r", map->out};
}

static void observe(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    const smac_config *c = cv->method_config;
    abar__mean_observe(cv, &c->mean, map, rows, map->pending[SQUARES]);
}

static double diagonal_damping(const smac_config *c)
{
    bool adaptive;
    double rho = abar__mean_damping(&c->mean, &adaptive);
    return adaptive ? c->diagonal : rho;
}

static bool refresh(abar__curvature *cv, abar__map *map, double unbias)
{
    const smac_config *c = cv->method_config;
    abar__mean_refresh(cv, &c->mean, map, unbias);
    cv->stats->reciprocal(cv->dev, map->out, map->average[SQUARES], unbias, diagonal_damping(c), map->derived[RECIPROCAL]);
    return true;
}

static void describe(abar__curvature *cv, abar__map *map)
{
    map->pre.right = map->derived[ABAR_MEAN_U];
    map->pre.row_scale = map->derived[RECIPROCAL];
    map->bound = 1.0 / diagonal_damping(cv->method_config);
}

static void apply(abar__curvature *cv, abar__map *map, const void *g, void *out)
{
    abar__mean_apply(cv, map, g, out);
    cv->stats->scale_rows(cv->dev, map->out, map->d, out, map->derived[RECIPROCAL], 1.0);
}

static void keep(const abar__curvature *cv, const abar__map *map, abar__kept_map *out)
{
    const smac_config *c = cv->method_config;
    abar__mean_keep(&c->mean, map, out);
    abar__keep_average(map, SQUARES, out);
    out->r = map->derived[RECIPROCAL];
    out->diagonal = diagonal_damping(c);
    out->bound = 1.0 / out->diagonal;
}

static bool wants_calibration(const abar__curvature *cv, const abar__map *map)
{
    const smac_config *c = cv->method_config;
    return abar__mean_wants_calibration(&c->mean, map);
}

static void calibrate(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    const smac_config *c = cv->method_config;
    abar__mean_calibrate(cv, &c->mean, map, rows);
}

static bool end_calibration(abar__curvature *cv, abar__map *map)
{
    const smac_config *c = cv->method_config;
    return abar__mean_end_calibration(cv, &c->mean, map);
}

const abar__curvature_ops abar__method_smac = {
    .method = {.name = "smac",
               .summary = "MAC with the diagonal second moment of the output gradients",
               .keeps = "mean activation and squared output gradients: 3 vectors of d, 3 of d_out",
               .options = options,
               .config_size = sizeof(smac_config)},
    .uses = ABAR_USES_INPUT | ABAR_USES_OUTPUT_GRAD,
    .check = check,
    .check_maps = check_maps,
    .value_parts = value_parts,
    .shape = shape,
    .observe = observe,
    .refresh = refresh,
    .describe = describe,
    .apply = apply,
    .wants_calibration = wants_calibration,
    .calibrate = calibrate,
    .end_calibration = end_calibration,
    .keep = keep,
};
