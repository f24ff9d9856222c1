/* The mean-activation side: statistics, damping, calibration of the first layer. */
#include "curvature/mean_side.h"

#include "base/number.h"

#include <math.h>
#include <string.h>

double abar__mean_damping(const abar__mean_config *c, bool *adaptive)
{
    double rho = 0.0;
    *adaptive = !abar__real_parse(c->damping, &rho); /* abar__mean_check lets nothing else through */
    return rho;
}

abar_status abar__mean_check(abar_context *ctx, const char *method, const abar__mean_config *c)
{
    const bool adaptive = strcmp(c->damping, "adaptive") == 0;
    double rho;
    if (!adaptive && !(abar__real_parse(c->damping, &rho) && rho >= 1e-30 && rho <= 1e30))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "--damping %s: %s takes a number from 1e-30 to 1e30, or adaptive", c->damping,
                          method);
    if (adaptive && c->first_layer == ABAR_FIRST_DATASET_COV)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "--damping adaptive: --first-layer dataset-cov needs a number, give both or neither");
    return ABAR_OK;
}

static bool is_calibrated(const abar__mean_config *c, const abar__map *map)
{
    return map->first && c->first_layer != ABAR_FIRST_RUNNING;
}

abar_status abar__mean_check_maps(const abar__curvature *cv, const abar__mean_config *c)
{
    bool first = c->first_layer == ABAR_FIRST_RUNNING;
    for (int i = 0; i < cv->n_maps; i++) {
        const abar__map *map = &cv->maps[i];
        first = first || map->first;
        if (map->part >= 0 && c->value_stat == ABAR_VALUE_FACTORED && map->by_position.positions == 0)
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                              "--value-stat factored: how many tokens %s has is not known, give the layer's input its shape",
                              map->name);
        if (map->part >= 0 && is_calibrated(c, map)) /* what attention weighs is not known before step 0 */
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                              "--first-layer: %s reads the network's input and feeds attention, use running, or --value-stat "
                              "plain",
                              map->name);
    }
    if (first) return ABAR_OK;
    return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                      "--first-layer: no preconditioned layer reads the network's input, leave it out");
}

static bool is_covariance(const abar__mean_config *c, const abar__map *map)
{
    return map->first && c->first_layer == ABAR_FIRST_DATASET_COV;
}

int64_t abar__mean_value_parts(const abar__mean_config *c, const abar_layer *layer)
{
    if (layer->attention.heads == 0 || c->value_stat == ABAR_VALUE_PLAIN) return 0;
    return c->value_stat == ABAR_VALUE_PER_HEAD ? layer->attention.heads : 1;
}

void abar__mean_shape(const abar__curvature *cv, const abar__mean_config *c, const abar__map *map, abar__map_shape *out)
{
    if (is_covariance(c, map)) {
        out->average[ABAR_MEAN_AVERAGE] = (abar__average_desc){.name = "aa", .n = map->d, .square = true, .per = ABAR_PER_ROW};
        out->derived[ABAR_MEAN_U] = (abar__derived_desc){"inverse", map->d * map->d};
        out->dense = true;
        out->scratch = abar__scratch_bytes(cv, map, ABAR_SCRATCH_PRODUCT | ABAR_SCRATCH_INVERT_NOW);
        return;
    }
    bool adaptive;
    const abar__per per = map->part < 0 ? ABAR_PER_ROW : ABAR_PER_SEQUENCE;
    abar__mean_damping(c, &adaptive);
    out->average[ABAR_MEAN_AVERAGE] = (abar__average_desc){.name = "a", .n = map->d, .per = per};
    if (adaptive) out->number = (abar__average_desc){.name = "t", .per = per};
    if (map->part >= 0 && c->value_stat == ABAR_VALUE_FACTORED) out->positions = map->by_position.positions;
    out->derived[ABAR_MEAN_U] = (abar__derived_desc){"u", map->d};
}

static void add_rows(abar__curvature *cv, abar__map *map, const abar__rows *rows, void *squares)
{
    if (squares)
        abar__add_both(cv, rows, map->pending[ABAR_MEAN_AVERAGE], true, squares);
    else
        cv->stats->input_sum(cv->dev, rows, map->pending[ABAR_MEAN_AVERAGE]);
    if (!map->shape.number.name) return;
    if (map->queued_number)
        cv->stats->input_square_add(cv->dev, rows, map->queued_number);
    else
        map->pending_number += cv->stats->input_square(cv->dev, rows);
}

/* The parts of v, all at once: they lie one after the other, at equal distances. */
static void add_values(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    abar__map *next = map->parts > 1 ? map + 1 : map;
    const char *sum = map->pending[ABAR_MEAN_AVERAGE], *next_sum = next->pending[ABAR_MEAN_AVERAGE];
    abar__value_sums v = {.parts = map->parts,
                          .sequences = (double)(rows->examples * map->windows),
                          .sum = map->pending[ABAR_MEAN_AVERAGE],
                          .sum_stride = (next_sum - sum) / (ptrdiff_t)abar__element(cv)};
    if (map->shape.number.name) {
        v.square = abar__pending_number(map);
        v.square_stride = (size_t)((char *)abar__pending_number(next) - (char *)v.square);
    }
    cv->stats->value_sums(cv->dev, rows, &v);
}

void abar__mean_observe(abar__curvature *cv, const abar__mean_config *c, abar__map *map, const abar__rows *rows, void *squares)
{
    if (!is_calibrated(c, map) && map->part < 0) {
        add_rows(cv, map, rows, squares);
        return;
    }
    if (squares) cv->stats->grad_squares(cv->dev, rows, NULL, squares);
    if (is_calibrated(c, map)) return;
    if (map->shape.positions)
        cv->stats->position_sums(cv->dev, rows, &map->by_position);
    else if (map->part == 0)
        add_values(cv, map, rows);
}

/* u from scale * source, whose mean square norm per row is t. */
static void derive(abar__curvature *cv, const abar__mean_config *c, abar__map *map, const void *source, double scale, double t)
{
    bool adaptive;
    double rho = abar__mean_damping(c, &adaptive);
    double square = scale * scale * cv->stats->dot(cv->dev, map->d, source, source);
    if (adaptive) rho = fmax((t - square) / (double)map->d, 1e-8 * t / (double)map->d);
    double length = rho + square;
    cv->stats->affine(cv->dev, map->d, source, length > 0.0 ? scale / sqrt(length) : 0.0, 0.0, map->derived[ABAR_MEAN_U]);
    map->real[ABAR_REAL_DAMPING] = rho;
    map->real[ABAR_REAL_MEAN_SQUARE] = square;
    map->real[ABAR_REAL_CONDITION] = length / rho;
}

void abar__mean_refresh(abar__curvature *cv, const abar__mean_config *c, abar__map *map, double unbias)
{
    if (!is_calibrated(c, map))
        derive(cv, c, map, map->average[ABAR_MEAN_AVERAGE], unbias, unbias * map->real[ABAR_REAL_NUMBER]);
}

void abar__mean_keep(const abar__mean_config *c, const abar__map *map, abar__kept_map *out)
{
    bool adaptive;
    out->rho = abar__mean_damping(c, &adaptive);
    out->damping = adaptive ? ABAR_DAMPING_ADAPTIVE : ABAR_DAMPING_FIXED;
    out->fixed = is_calibrated(c, map);
    if (is_covariance(c, map)) {
        out->kind = ABAR_KEPT_DENSE;
        out->inverse[0] = map->derived[ABAR_MEAN_U];
        out->scale = out->rho;
    } else {
        out->kind = ABAR_KEPT_MEAN;
        out->u = map->derived[ABAR_MEAN_U];
    }
    if (!out->fixed) abar__keep_average(map, ABAR_MEAN_AVERAGE, out);
    out->pending_number = out->fixed ? NULL : map->queued_number;
}

void abar__mean_apply(abar__curvature *cv, abar__map *map, const void *g, void *out)
{
    cv->stats->sandwich(cv->dev, map->out, map->d, NULL, false, g, map->derived[ABAR_MEAN_U], false, out, cv->spare);
    cv->stats->affine(cv->dev, map->out * map->d, out, map->real[ABAR_REAL_DAMPING], 0.0, out);
}

/* ---- one pass over the training set ------------------------------------------------------------------------------- */

bool abar__mean_wants_calibration(const abar__mean_config *c, const abar__map *map)
{
    return is_calibrated(c, map) && !map->count[ABAR_COUNT_CALIBRATED];
}

void abar__mean_calibrate(abar__curvature *cv, const abar__mean_config *c, abar__map *map, const abar__rows *rows)
{
    if (is_covariance(c, map))
        cv->stats->input_product(cv->dev, rows, NULL, map->pending[ABAR_MEAN_AVERAGE], cv->scratch);
    else
        add_rows(cv, map, rows, NULL);
}

bool abar__mean_end_calibration(abar__curvature *cv, const abar__mean_config *c, abar__map *map)
{
    bool adaptive;
    if (map->queued_number) cv->dev->ops->queue->copy_bytes(cv->dev, &map->pending_number, map->queued_number, sizeof(double));
    if (!is_covariance(c, map)) {
        derive(cv, c, map, map->pending[ABAR_MEAN_AVERAGE], 1.0 / map->rows, map->pending_number / map->rows);
        return true;
    }
    double rho = map->real[ABAR_REAL_DAMPING] = abar__mean_damping(c, &adaptive);
    cv->stats->commit(cv->dev, map->d, true, map->average[ABAR_MEAN_AVERAGE], map->pending[ABAR_MEAN_AVERAGE], 0.0,
                      1.0 / map->rows);
    return abar__curvature_invert(cv, map, map->d, map->average[ABAR_MEAN_AVERAGE], 1.0, rho, map->derived[ABAR_MEAN_U]);
}
