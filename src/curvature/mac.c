/* MAC (methods.md section 1): K-FAC's activation factor replaced by the outer product of the mean activation, its gradient
 * factor by the identity.
 *
 *     ā = E[a], â its average;   Ĝ = G (I − â âᵀ / (ρ + |â|²)),   coupled damping: Ĝ / ρ
 *
 * One vector is kept for that, u = â / sqrt(ρ + |â|²): Ĝ = G − (G u) uᵀ. |u| < 1, so nothing overflows whatever the
 * activations are. State O(d), no d×d matrix, no patches.
 *
 * READ THIS FILE FIRST to write another method, and copy foof.c or eva.c, which have no special cases. A method is a config
 * struct with its option table, and a plan: which statistics of a map are averaged, what is derived from them at a refresh, and
 * how the gradient is treated. plan/plan.h has the words for it. Every device runs plans, so that is all. Then a line in
 * registry.c. */
#include "curvature/mac.h"

enum { FIRST_RUNNING, FIRST_DATASET_MEAN, FIRST_DATASET_COV };
enum { VALUE_EXPECTATION, VALUE_FACTORED, VALUE_PER_HEAD, VALUE_PLAIN };
enum { FORM_DECOUPLED, FORM_COUPLED };

static const abar_option options[] = {ABAR_MAC_OPTIONS, {.name = NULL}};

/* ---- settings ----------------------------------------------------------------------------------------------------- */

static abar__damping damping_of(const abar__mac_config *c)
{
    abar__damping damping;
    (void)abar__damping_read(c->damping, &damping); /* abar__mac_check refuses what it cannot read */
    return damping;
}

abar_status abar__mac_check(abar_context *ctx, const char *method, const void *config)
{
    const abar__mac_config *c = config;
    abar__damping damping;
    if (!abar__damping_read(c->damping, &damping))
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--damping %s: %s takes a number from 1e-30 to 1e30, trace:G with such a G, or adaptive", c->damping,
                          method);
    if (damping.kind != ABAR_DAMPING_NUMBER && c->first_layer == FIRST_DATASET_COV)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--damping %s: --first-layer dataset-cov needs a number, give both or neither",
                          c->damping);
    return ABAR_OK;
}

static bool is_calibrated(const abar__map *map)
{
    const abar__mac_config *c = map->config;
    return map->first && c->first_layer != FIRST_RUNNING;
}

static bool is_covariance(const abar__map *map)
{
    const abar__mac_config *c = map->config;
    return map->first && c->first_layer == FIRST_DATASET_COV;
}

static bool is_factored(const abar__map *map)
{
    const abar__mac_config *c = map->config;
    return map->part >= 0 && c->value_stat == VALUE_FACTORED;
}

/* The least adaptive ρ is this times t̂ / d (methods.md section 1). */
static double least_share(const abar__curvature *cv) { return cv->dev->ops->dtype == ABAR_F64 ? 1e-8 : 1e-5; }

/* A first layer that is to be calibrated must be there. */
abar_status abar__mac_check_maps(const abar__curvature *cv)
{
    const abar__mac_config *c = cv->method_config;
    bool first = c->first_layer == FIRST_RUNNING; /* of layers with settings of their own, those say it */
    for (int i = 0; i < cv->n_maps; i++) {
        const abar__map *map = &cv->maps[i];
        const abar__mac_config *own = map->config;
        first = first || map->first;
        if (own->first_layer != FIRST_RUNNING && c->first_layer == FIRST_RUNNING && !map->first)
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                              "--first-layer of %s: it does not read the network's input, leave it out", map->name);
        if (is_factored(map) && map->by_position.positions == 0)
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                              "--value-stat factored: how many tokens %s has is not known, give the layer's input its shape",
                              map->name);
        if (map->part >= 0 && is_calibrated(map)) /* what attention weighs is not known before step 0 */
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                              "--first-layer: %s reads the network's input and feeds attention, use running, or --value-stat "
                              "plain",
                              map->name);
    }
    if (first) return ABAR_OK;
    return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                      "--first-layer: no preconditioned layer reads the network's input, leave it out");
}

/* ---- the plan ------------------------------------------------------------------------------------------------------ */

/* Rows of v have m = E_b[X_bᵀ t̄_b] in place of ā, one for all of them or one for each head (methods.md section 2). */
int64_t abar__mac_value_parts(const void *config, const abar_layer *layer)
{
    const abar__mac_config *c = config;
    if (layer->attention.heads == 0 || c->value_stat == VALUE_PLAIN) return 0;
    return c->value_stat == VALUE_PER_HEAD ? layer->attention.heads : 1;
}

/* The first layer with dataset-cov: Ĝ = ρ G (E[aaᵀ] + ρI)⁻¹, coupled without the factor ρ. */
static void plan_covariance(const abar__mac_config *c, abar__plan *p)
{
    const double damping = damping_of(c).value;
    const abar__stat aa = abar__plan_average(p, "aa", ABAR_INPUT_PRODUCT, ABAR_PER_ROW);
    abar__plan_calibrate(p);
    const abar__scalar rho = abar__plan_value(p, damping);
    abar__plan_sandwich(p, ABAR_IDENTITY, abar__plan_inverse(p, "inverse", aa, rho));
    abar__plan_report(p, ABAR_REAL_DAMPING, rho);
    if (c->form == FORM_DECOUPLED) abar__plan_scale(p, damping);
}

/* adaptive: ρ matches the trace, d ρ = t − |â|²; below the least share that is rounding. */
static abar__scalar plan_damping(const abar__curvature *cv, const abar__map *map, abar__plan *p, abar__damping damping,
                                 abar__scalar t, abar__scalar square)
{
    if (damping.kind == ABAR_DAMPING_NUMBER) return abar__plan_value(p, damping.value);
    const abar__scalar d = abar__plan_value(p, (double)map->d);
    if (damping.kind == ABAR_DAMPING_TRACE) return abar__damping_by_trace(p, damping.value, abar__plan_divide(p, t, d));
    const abar__scalar least = abar__plan_value(p, least_share(cv));
    return abar__plan_max(p, abar__plan_divide(p, abar__plan_subtract(p, t, square), d),
                          abar__plan_divide(p, abar__plan_multiply(p, least, t), d));
}

void abar__mac_plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    const abar__mac_config *c = map->config;
    if (is_covariance(map)) {
        plan_covariance(c, p);
        return;
    }
    const bool values = map->part >= 0; /* rows of v */
    const abar__per per = values ? ABAR_PER_SEQUENCE : ABAR_PER_ROW;
    const abar__stat a = abar__plan_average(p, ABAR_MEAN_ACTIVATION, values ? ABAR_ATTENTION_MEAN : ABAR_INPUT_MEAN, per);
    if (is_factored(map)) abar__plan_by_position(p, map->by_position.positions);
    const abar__damping damping = damping_of(c);
    abar__scalar t = {0}; /* the mean of |a|² */
    if (damping.kind != ABAR_DAMPING_NUMBER) t = abar__plan_mean_number(p, "t", ABAR_NUMBER_SQUARE, per);
    if (is_calibrated(map)) abar__plan_calibrate(p);

    const abar__scalar square = abar__plan_square(p, a); /* |â|² */
    const abar__scalar rho = plan_damping(cv, map, p, damping, t, square);
    const abar__scalar length = abar__plan_add(p, rho, square);
    const abar__factor u = abar__plan_vector(p, "u", a, abar__plan_reciprocal(p, abar__plan_sqrt(p, length)));
    abar__plan_subtract_rank1(p, u); /* G (I − u uᵀ) */
    if (c->form == FORM_COUPLED) abar__plan_over_damping(p);
    abar__plan_report(p, ABAR_REAL_DAMPING, rho);
    abar__plan_report(p, ABAR_REAL_MEAN_SQUARE, square);
    abar__plan_report(p, ABAR_REAL_CONDITION, abar__plan_divide(p, length, rho));
}

const abar__curvature_ops abar__method_mac = {
    .method = {.name = "mac",
               .summary = "mean-activation approximated curvature",
               .keeps = "the mean activation: 3 vectors of d",
               .options = options,
               .config_size = sizeof(abar__mac_config)},
    .check = abar__mac_check,
    .check_maps = abar__mac_check_maps,
    .value_parts = abar__mac_value_parts,
    .plan = abar__mac_plan,
};
