/* MAC (methods.md section 1): K-FAC's activation factor replaced by the outer product of the mean activation, its gradient
 * factor by the identity.
 *
 *     ā = E[a], â its average;   Ĝ = G (I − â âᵀ / (ρ + |â|²)),   coupled damping: Ĝ / ρ
 *
 * READ THIS FILE FIRST to write another method, and copy it. A method is a config struct with its option table, a shape that
 * says what the frame shall keep per map, and a few functions: observe adds to the pending sums; the frame joins, checks and
 * commits them; refresh derives from the averages; describe says how the update pass turns a gradient row into its
 * preconditioned form (or apply computes it, for methods with dense factors). Then a line in registry.c. State O(d), no d×d
 * matrix, no patches. */
#include "curvature/mean_side.h"

typedef struct mac_config {
    abar__mean_config mean; /* damping, first layer, rows of v: shared with SMAC */
    int64_t form;
} mac_config;

enum { FORM_DECOUPLED, FORM_COUPLED };

static const abar_option options[] = {
    ABAR_MEAN_OPTIONS(offsetof(mac_config, mean)),
    {.name = "damping-form",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(mac_config, form),
     .fallback = "decoupled",
     .choices = "decoupled|coupled",
     .help = "coupled divides the whole by rho: the exact inverse of the damped rank-1 matrix"},
    {.name = NULL},
};

static abar_status check(abar_context *ctx, const void *config)
{
    const mac_config *c = config;
    return abar__mean_check(ctx, "mac", &c->mean);
}

static abar_status check_maps(const abar__curvature *cv)
{
    const mac_config *c = cv->method_config;
    return abar__mean_check_maps(cv, &c->mean);
}

static int64_t value_parts(const abar__curvature *cv, const abar_layer *layer)
{
    const mac_config *c = cv->method_config;
    return abar__mean_value_parts(&c->mean, layer);
}

static void shape(const abar__curvature *cv, const abar__map *map, abar__map_shape *out)
{
    const mac_config *c = cv->method_config;
    abar__mean_shape(cv, &c->mean, map, out);
}

static void observe(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    const mac_config *c = cv->method_config;
    abar__mean_observe(cv, &c->mean, map, rows, NULL);
}

static bool refresh(abar__curvature *cv, abar__map *map, double unbias)
{
    const mac_config *c = cv->method_config;
    abar__mean_refresh(cv, &c->mean, map, unbias);
    return true;
}

static double outer_scale(const mac_config *c, const abar__map *map)
{
    double rho = map->real[ABAR_REAL_DAMPING];
    return c->form == FORM_COUPLED && rho > 0.0 ? 1.0 / rho : 1.0;
}

static void describe(abar__curvature *cv, abar__map *map)
{
    map->pre.right = map->derived[ABAR_MEAN_U];
    map->pre.scale = map->bound = outer_scale(cv->method_config, map);
}

static void apply(abar__curvature *cv, abar__map *map, const void *g, void *out)
{
    abar__mean_apply(cv, map, g, out);
    cv->stats->affine(cv->dev, map->out * map->d, out, outer_scale(cv->method_config, map), 0.0, out);
}

static void keep(const abar__curvature *cv, const abar__map *map, abar__kept_map *out)
{
    const mac_config *c = cv->method_config;
    abar__mean_keep(&c->mean, map, out);
    out->coupled = c->form == FORM_COUPLED;
    if (out->coupled && out->rho > 0.0) out->bound = 1.0 / out->rho;
    if (out->coupled && out->kind == ABAR_KEPT_DENSE) out->scale = 1.0; /* rho / rho */
}

static bool wants_calibration(const abar__curvature *cv, const abar__map *map)
{
    const mac_config *c = cv->method_config;
    return abar__mean_wants_calibration(&c->mean, map);
}

static void calibrate(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    const mac_config *c = cv->method_config;
    abar__mean_calibrate(cv, &c->mean, map, rows);
}

static bool end_calibration(abar__curvature *cv, abar__map *map)
{
    const mac_config *c = cv->method_config;
    return abar__mean_end_calibration(cv, &c->mean, map);
}

const abar__curvature_ops abar__method_mac = {
    .method = {.name = "mac",
               .summary = "mean-activation approximated curvature",
               .keeps = "the mean activation: 3 vectors of d",
               .options = options,
               .config_size = sizeof(mac_config)},
    .uses = ABAR_USES_INPUT,
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
