/* MAC (methods.md section 1): K-FAC's activation factor replaced by the outer product of the mean activation, its gradient
 * factor by the identity.
 *
 *     ā = E[a], â its average;   Ĝ = G (I − â âᵀ / (ρ + |â|²)),   coupled damping: Ĝ / ρ
 *
 * One vector is kept for that, u = â / sqrt(ρ + |â|²): Ĝ = G − (G u) uᵀ. |u| < 1, so nothing overflows whatever the
 * activations are. State O(d), no d×d matrix, no patches.
 *
 * READ THIS FILE FIRST to write another method, and copy it. A method is a config struct with its option table, a shape that
 * says what the frame shall keep per map, and a few functions: observe adds to the pending sums; the frame joins, checks and
 * commits them; refresh derives from the averages; describe says how the update pass turns a gradient row into its
 * preconditioned form (or apply computes it, for methods with dense factors). Then a line in registry.c. */
#include "curvature/mac.h"

#include "base/number.h"

#include <math.h>
#include <string.h>

enum { FIRST_RUNNING, FIRST_DATASET_MEAN, FIRST_DATASET_COV };
enum { VALUE_EXPECTATION, VALUE_FACTORED, VALUE_PER_HEAD, VALUE_PLAIN };
enum { FORM_DECOUPLED, FORM_COUPLED };

static const abar_option options[] = {ABAR_MAC_OPTIONS, {.name = NULL}};

/* ---- settings ----------------------------------------------------------------------------------------------------- */

double abar__mac_damping(const abar__mac_config *c, bool *adaptive)
{
    double rho = 0.0;
    *adaptive = !abar__real_parse(c->damping, &rho); /* abar__mac_check refuses everything else */
    return rho;
}

abar_status abar__mac_check(abar_context *ctx, const char *method, const void *config)
{
    const abar__mac_config *c = config;
    const bool adaptive = strcmp(c->damping, "adaptive") == 0;
    double rho;
    if (!adaptive && !(abar__real_parse(c->damping, &rho) && rho >= 1e-30 && rho <= 1e30))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--damping %s: %s takes a number from 1e-30 to 1e30, or adaptive", c->damping,
                          method);
    if (adaptive && c->first_layer == FIRST_DATASET_COV)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--damping adaptive: --first-layer dataset-cov needs a number, give both or neither");
    return ABAR_OK;
}

static bool is_calibrated(const abar__curvature *cv, const abar__map *map)
{
    const abar__mac_config *c = cv->method_config;
    return map->first && c->first_layer != FIRST_RUNNING;
}

static bool is_covariance(const abar__curvature *cv, const abar__map *map)
{
    const abar__mac_config *c = cv->method_config;
    return map->first && c->first_layer == FIRST_DATASET_COV;
}

static bool is_factored(const abar__curvature *cv, const abar__map *map)
{
    const abar__mac_config *c = cv->method_config;
    return map->part >= 0 && c->value_stat == VALUE_FACTORED;
}

/* A first layer that is to be calibrated must be there. */
abar_status abar__mac_check_maps(const abar__curvature *cv)
{
    const abar__mac_config *c = cv->method_config;
    bool first = c->first_layer == FIRST_RUNNING;
    for (int i = 0; i < cv->n_maps; i++) {
        const abar__map *map = &cv->maps[i];
        first = first || map->first;
        if (is_factored(cv, map) && map->by_position.positions == 0)
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                              "--value-stat factored: how many tokens %s has is not known, give the layer's input its shape",
                              map->name);
        if (map->part >= 0 && is_calibrated(cv, map)) /* what attention weighs is not known before step 0 */
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                              "--first-layer: %s reads the network's input and feeds attention, use running, or --value-stat "
                              "plain",
                              map->name);
    }
    if (first) return ABAR_OK;
    return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                      "--first-layer: no preconditioned layer reads the network's input, leave it out");
}

/* ---- what is kept ------------------------------------------------------------------------------------------------- */

/* Rows of v have m = E_b[X_bᵀ t̄_b] in place of ā, one for all of them or one for each head (methods.md section 2). */
int64_t abar__mac_value_parts(const abar__curvature *cv, const abar_layer *layer)
{
    const abar__mac_config *c = cv->method_config;
    if (layer->attention.heads == 0 || c->value_stat == VALUE_PLAIN) return 0;
    return c->value_stat == VALUE_PER_HEAD ? layer->attention.heads : 1;
}

void abar__mac_shape(const abar__curvature *cv, const abar__map *map, abar__map_shape *out)
{
    out->calibrated = is_calibrated(cv, map);
    if (is_covariance(cv, map)) {
        out->average[ABAR_MAC_MEAN] = (abar__average_desc){.name = "aa", .n = map->d, .square = true, .per = ABAR_PER_ROW};
        out->derived[ABAR_MAC_U] = (abar__derived_desc){"inverse", map->d * map->d};
        out->dense = true;
        out->scratch = abar__scratch_bytes(cv, map, ABAR_SCRATCH_PRODUCT | ABAR_SCRATCH_INVERT_NOW);
        return;
    }
    bool adaptive;
    const abar__per per = map->part < 0 ? ABAR_PER_ROW : ABAR_PER_SEQUENCE;
    abar__mac_damping(cv->method_config, &adaptive);
    out->average[ABAR_MAC_MEAN] = (abar__average_desc){.name = ABAR_MEAN_ACTIVATION, .n = map->d, .per = per};
    if (adaptive) out->number = (abar__average_desc){.name = "t", .per = per};
    if (is_factored(cv, map)) out->positions = map->by_position.positions;
    out->derived[ABAR_MAC_U] = (abar__derived_desc){"u", map->d};
}

/* ---- statistics --------------------------------------------------------------------------------------------------- */

bool abar__mac_sums_rows(const abar__curvature *cv, const abar__map *map) { return !is_calibrated(cv, map) && map->part < 0; }

void abar__mac_add_square(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    if (!map->shape.number.name) return;
    if (map->queued_number)
        cv->stats->input_square_add(cv->dev, rows, map->queued_number);
    else
        map->pending_number += cv->stats->input_square(cv->dev, rows);
}

/* The parts of v, all at once: their sums are one after the other in memory, at equal distances. */
static void add_values(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    abar__map *next = map->parts > 1 ? map + 1 : map;
    const char *sum = map->pending[ABAR_MAC_MEAN], *next_sum = next->pending[ABAR_MAC_MEAN];
    abar__value_sums v = {.parts = map->parts,
                          .sequences = (double)(rows->examples * map->windows),
                          .sum = map->pending[ABAR_MAC_MEAN],
                          .sum_stride = (next_sum - sum) / (ptrdiff_t)abar__element(cv)};
    if (map->shape.number.name) {
        v.square = abar__pending_number(map);
        v.square_stride = (size_t)((char *)abar__pending_number(next) - (char *)v.square);
    }
    cv->stats->value_sums(cv->dev, rows, &v);
}

void abar__mac_observe(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    if (abar__mac_sums_rows(cv, map)) {
        cv->stats->input_sum(cv->dev, rows, map->pending[ABAR_MAC_MEAN]);
        abar__mac_add_square(cv, map, rows);
    } else if (map->shape.positions) {
        cv->stats->position_sums(cv->dev, rows, &map->by_position);
    } else if (map->part == 0) {
        add_values(cv, map, rows);
    }
}

/* ---- the preconditioner ------------------------------------------------------------------------------------------- */

/* The least adaptive ρ is this times t̂ / d: below it t̂ − |â|² is rounding (methods.md section 1). */
static double least_share(const abar__curvature *cv) { return cv->dev->ops->dtype == ABAR_F64 ? 1e-8 : 1e-5; }

/* u from â = scale * average, t the mean of |a|². Adaptive ρ matches the trace: d ρ = t − |â|². t = 0: u = 0, Ĝ = G. */
static void derive(abar__curvature *cv, abar__map *map, double scale, double t)
{
    bool adaptive;
    const void *average = map->average[ABAR_MAC_MEAN];
    const double d = (double)map->d, square = scale * scale * cv->stats->dot(cv->dev, map->d, average, average);
    double rho = abar__mac_damping(cv->method_config, &adaptive);
    if (adaptive) rho = fmax((t - square) / d, least_share(cv) * t / d);
    const double length = rho + square;
    cv->stats->affine(cv->dev, map->d, average, length > 0.0 ? scale / sqrt(length) : 0.0, 0.0, map->derived[ABAR_MAC_U]);
    map->real[ABAR_REAL_DAMPING] = rho;
    map->real[ABAR_REAL_MEAN_SQUARE] = square;
    map->real[ABAR_REAL_CONDITION] = length / rho;
}

bool abar__mac_refresh(abar__curvature *cv, abar__map *map, double unbias)
{
    if (!is_calibrated(cv, map)) derive(cv, map, unbias, unbias * map->real[ABAR_REAL_NUMBER]);
    return true;
}

double abar__mac_outer_scale(const abar__curvature *cv, const abar__map *map)
{
    const abar__mac_config *c = cv->method_config;
    const double rho = map->real[ABAR_REAL_DAMPING];
    return c->form == FORM_COUPLED && rho > 0.0 ? 1.0 / rho : 1.0;
}

void abar__mac_describe(abar__curvature *cv, abar__map *map)
{
    map->pre.right = map->derived[ABAR_MAC_U];
    map->pre.scale = map->bound = abar__mac_outer_scale(cv, map);
}

/* Dense only for the first layer with dataset-cov: out = ρ G (E[aaᵀ] + ρI)⁻¹, coupled without the factor ρ. */
void abar__mac_apply(abar__curvature *cv, abar__map *map, const void *g, void *out)
{
    const double scale = map->real[ABAR_REAL_DAMPING] * abar__mac_outer_scale(cv, map);
    cv->stats->sandwich(cv->dev, map->out, map->d, NULL, false, g, map->derived[ABAR_MAC_U], false, out, cv->spare);
    cv->stats->affine(cv->dev, map->out * map->d, out, scale, 0.0, out);
}

/* ---- one pass over the training set ------------------------------------------------------------------------------- */

void abar__mac_calibrate(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    if (is_covariance(cv, map)) {
        cv->stats->input_product(cv->dev, rows, NULL, map->pending[ABAR_MAC_MEAN], cv->scratch);
        return;
    }
    cv->stats->input_sum(cv->dev, rows, map->pending[ABAR_MAC_MEAN]);
    abar__mac_add_square(cv, map, rows);
}

bool abar__mac_end_calibration(abar__curvature *cv, abar__map *map)
{
    bool adaptive;
    const double rho = abar__mac_damping(cv->method_config, &adaptive);
    const abar__average_desc *a = &map->shape.average[ABAR_MAC_MEAN];
    if (map->queued_number) cv->dev->ops->queue->copy_bytes(cv->dev, &map->pending_number, map->queued_number, sizeof(double));
    cv->stats->commit(cv->dev, a->n, a->square, map->average[ABAR_MAC_MEAN], map->pending[ABAR_MAC_MEAN], 0.0, 1.0 / map->rows);
    if (!is_covariance(cv, map)) {
        derive(cv, map, 1.0, map->pending_number / map->rows);
        return true;
    }
    map->real[ABAR_REAL_DAMPING] = rho;
    return abar__curvature_invert(cv, map, map->d, map->average[ABAR_MAC_MEAN], 1.0, rho, map->derived[ABAR_MAC_U]);
}

/* ---- queued devices ----------------------------------------------------------------------------------------------- */

void abar__mac_keep(const abar__curvature *cv, const abar__map *map, abar__kept_map *out)
{
    const abar__mac_config *c = cv->method_config;
    bool adaptive;
    out->rho = abar__mac_damping(c, &adaptive);
    out->damping = adaptive ? ABAR_DAMPING_ADAPTIVE : ABAR_DAMPING_FIXED;
    out->least = least_share(cv);
    out->fixed = is_calibrated(cv, map);
    out->coupled = c->form == FORM_COUPLED;
    if (is_covariance(cv, map)) {
        out->kind = ABAR_KEPT_DENSE;
        out->inverse[0] = map->derived[ABAR_MAC_U];
        out->scale = out->coupled ? 1.0 : out->rho;
    } else {
        out->kind = ABAR_KEPT_MEAN;
        out->u = map->derived[ABAR_MAC_U];
    }
    if (!out->fixed) abar__keep_average(map, ABAR_MAC_MEAN, out);
    out->pending_number = out->fixed ? NULL : map->queued_number;
}

const abar__curvature_ops abar__method_mac = {
    .method = {.name = "mac",
               .summary = "mean-activation approximated curvature",
               .keeps = "the mean activation: 3 vectors of d",
               .options = options,
               .config_size = sizeof(abar__mac_config)},
    .uses = ABAR_USES_INPUT,
    .kl_clip = offsetof(abar__mac_config, kl_clip),
    .check = abar__mac_check,
    .check_maps = abar__mac_check_maps,
    .value_parts = abar__mac_value_parts,
    .shape = abar__mac_shape,
    .observe = abar__mac_observe,
    .refresh = abar__mac_refresh,
    .describe = abar__mac_describe,
    .apply = abar__mac_apply,
    .calibrate = abar__mac_calibrate,
    .end_calibration = abar__mac_end_calibration,
    .keep = abar__mac_keep,
};
