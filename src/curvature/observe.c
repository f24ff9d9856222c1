/* The accumulate stage (methods.md section 0): what a plan wants summed over the rows of a layer, in the backward pass; and
 * calibration, the same over the whole training set before step 0. */
#include "base/clock.h"
#include "curvature/curvature_impl.h"
#include "device/host/derive.h"
#include "device/step_rules.h"

#include <math.h>

/* ---- statistics --------------------------------------------------------------------------------------------------- */

static abar_status bad_shape(const abar__curvature *cv, const abar__map *map, const char *what)
{
    return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT, "observe %s: the %s does not fit the layer's weight and window", map->name,
                      what);
}

/* What the rows of this map are in these tensors. output_grad.ndim 0: not given. */
static abar_status make_rows(const abar__curvature *cv, const abar__map *map, const abar_tensor *input, const abar_tensor *grad,
                             double scale, abar__rows *out)
{
    const int64_t groups = map->window.groups;
    *out = (abar__rows){.input = *input,
                        .output_grad = *grad,
                        .grad_scale = scale,
                        .window = map->window,
                        .convolution = map->convolution,
                        .bias = map->bias,
                        .group = map->group,
                        .in = map->in,
                        .out = map->out,
                        .examples = input->dim[0]};
    if (map->convolution) {
        int64_t kernel = map->window.kernel[0] * map->window.kernel[1];
        if (input->ndim != 4 || input->dim[1] * kernel != groups * map->in) return bad_shape(cv, map, "input");
        int64_t h = abar_window_out(&map->window, 0, input->dim[2]), w = abar_window_out(&map->window, 1, input->dim[3]);
        if (h < 1 || w < 1) return bad_shape(cv, map, "input");
        out->per_example = h * w;
        if (grad->ndim && (grad->ndim != 4 || grad->dim[0] != input->dim[0] || grad->dim[1] != groups * map->out ||
                           grad->dim[2] != h || grad->dim[3] != w))
            return bad_shape(cv, map, "output gradient");
        return ABAR_OK;
    }
    if ((input->ndim != 2 && input->ndim != 3) || input->dim[input->ndim - 1] != map->in) return bad_shape(cv, map, "input");
    out->per_example = input->ndim == 3 ? input->dim[1] : 1;
    if (grad->ndim && (grad->ndim != input->ndim || grad->dim[0] != input->dim[0] ||
                       grad->dim[grad->ndim - 1] != map->weight_rows || (grad->ndim == 3 && grad->dim[1] != input->dim[1])))
        return bad_shape(cv, map, "output gradient");
    if (grad->ndim) { /* this map's columns of it */
        const int last = grad->ndim - 1;
        out->output_grad.data = (char *)grad->data + (size_t)(map->row * grad->stride[last]) * abar_dtype_size(grad->dtype);
        out->output_grad.dim[last] = map->out;
    }
    return ABAR_OK;
}

/* What attention made of these rows: (N, heads, T). Asked for by all linked maps, so that none is observed without the others.
 */
static abar_status add_columns(const abar__curvature *cv, const abar__map *map, const abar_tensor *columns, abar__rows *out)
{
    const abar_attention *a = &map->attention;
    const int64_t positions = cv->maps[map->link + map->links - 1].plan.positions;
    if (columns->ndim == 0)
        return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT, "observe %s: %s needs the column means of the attention too",
                          map->name, cv->ops->method.name);
    if (out->input.ndim != 3 || columns->ndim != 3 || columns->dim[0] != out->examples || columns->dim[1] != a->heads ||
        columns->dim[2] != out->per_example || (a->side && out->per_example != a->grid[0] * a->grid[1]) ||
        (positions && out->per_example != positions * map->windows))
        return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                          "observe %s: input (N, T, I), columns (N, heads, T) and the layer's attention do not fit", map->name);
    out->columns = *columns;
    return ABAR_OK;
}

bool abar__curvature_observes(const abar__curvature *cv)
{
    if (abar__curvature_passes(cv) > 0) return cv->pass >= 0;
    const int64_t since = cv->k - cv->config.toffset;
    return cv->observing && (cv->ops->second_pass || (since >= 0 && since % cv->config.tcov == 0));
}

/* ---- rows of single examples ---------------------------------------------------------------------------------------- */

int64_t abar__curvature_passes(const abar__curvature *cv)
{
    if (!cv->ops->by_example || cv->n_maps == 0 || cv->maps[0].plan.rows.own) return 0;
    return cv->maps[0].plan.rows.passes;
}

abar_status abar__curvature_begin_pass(abar__curvature *cv, int64_t pass)
{
    const int64_t passes = abar__curvature_passes(cv);
    if (pass < 0 || pass >= passes)
        return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT, "rows: there is no pass %lld, %s needs %lld of them", (long long)pass,
                          cv->ops->method.name, (long long)passes);
    cv->pass = pass;
    return ABAR_OK;
}

abar_status abar__curvature_check_passes(const abar__curvature *cv)
{
    const int64_t passes = abar__curvature_passes(cv);
    for (int i = 0; i < cv->n_maps && passes > 0; i++)
        if (cv->maps[i].passes != passes)
            return abar__fail(cv->dev->ctx, ABAR_E_STATE,
                              "step: %s has seen %lld of %lld further passes of %s, make those that abar_optim_begin_rows "
                              "describes between backward and step",
                              cv->ops->method.name, (long long)cv->maps[i].passes, (long long)passes, cv->maps[i].name);
    return ABAR_OK;
}

/* The batch's rows of this map in pass cv->pass, or of its own gradient. */
static abar_status take_rows(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    const abar__example_rows *r = &map->plan.rows;
    const char *method = cv->ops->method.name;
    const int64_t pass = cv->pass < 0 ? 0 : cv->pass, n = rows->examples;
    if (map->passes != pass)
        return abar__fail(cv->dev->ctx, ABAR_E_STATE,
                          "observe %s: %s takes the whole batch of a step in one backward pass, without accumulation, and "
                          "further passes in their order",
                          map->name, method);
    if (n > r->examples)
        return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT, "observe %s: %lld examples, %s was created for at most %lld",
                          map->name, (long long)n, method, (long long)r->examples);
    for (int i = 0; i < cv->n_maps; i++)
        if (cv->maps[i].passes > 0 && cv->maps[i].examples != (double)n)
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT, "observe %s: %lld examples, but %.0f of %s", map->name,
                              (long long)n, cv->maps[i].examples, cv->maps[i].name);
    if (abar__natural_is_split(r) && rows->per_example != 1)
        return abar__fail(
            cv->dev->ctx, ABAR_E_ARGUMENT,
            "observe %s: it reads sequences, %s must know that when it is created: give layers their input's shape", map->name,
            method);
    const bool split = abar__natural_is_split(r);
    char *a = r->a, *p = r->p;
    if (!split) a += (size_t)(pass * n * r->inputs) * abar__row_element(cv);
    if (split) p += (size_t)(pass * n * r->outputs) * abar__row_element(cv);
    cv->stats->example_rows(cv->dev, rows, a, p, cv->scratch);
    map->examples = (double)n;
    map->passes++;
    return ABAR_OK;
}

/* ---- sums of rows --------------------------------------------------------------------------------------------------- */

/* The parts of v, all at once: their sums are one after the other in memory, at equal distances. */
static void add_values(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    const abar__plan *p = &map->plan, *next = map->parts > 1 ? &map[1].plan : p;
    char *sum = p->average[0].pending, *number = p->mean_number.pending;
    abar__value_sums v = {.parts = map->parts,
                          .sequences = (double)(rows->examples * map->windows),
                          .sum = sum,
                          .sum_stride = ((char *)next->average[0].pending - sum) / (ptrdiff_t)abar__element(cv)};
    if (number) {
        v.square = p->mean_number.pending;
        v.square_stride = (size_t)((char *)next->mean_number.pending - number);
    }
    cv->stats->value_sums(cv->dev, rows, &v);
}

/* Activations and output gradients, each weighted by the size of the other (methods.md section 6), so many examples at a time:
 * their weights are in the device's memory, behind the scratch of its products. */
static void add_weighed(abar__curvature *cv, abar__map *map, const abar__rows *rows)
{
    const abar__stats_ops *stats = cv->stats;
    const abar__plan *p = &map->plan;
    const int64_t chunk = abar__weights_chunk(cv);
    double *a = (double *)(void *)((char *)cv->scratch + abar__accumulate_scratch(cv, map)); /* |ā_n|² / R */
    double *g = a + chunk;                                                                   /* |p̄_n|² / R */
    for (int64_t first = 0; first < rows->examples; first += chunk) {
        const int64_t left = rows->examples - first, n = left < chunk ? left : chunk;
        const abar__rows part = abar__rows_slice(rows, first, n);
        stats->example_weights(cv->dev, &part, a, g, p->mean_number.pending);
        stats->input_product(cv->dev, &part, g, p->average[0].pending, cv->scratch);
        stats->grad_squares(cv->dev, &part, a, p->average[1].pending);
    }
}

/* Both sides in one call where the device has one. False: it has not. */
static bool add_both(abar__curvature *cv, const abar__plan *p, const abar__rows *rows)
{
    const abar__stats_ops *stats = cv->stats;
    const abar__statistic a = p->average[0].calibrated ? ABAR_STATISTIC_NONE : p->average[0].source, g = p->average[1].source;
    void *sum_a = p->average[0].pending, *sum_g = p->average[1].pending;
    if (a == ABAR_INPUT_MEAN && (g == ABAR_GRAD_MEAN || g == ABAR_GRAD_SQUARES) && stats->both_sums) {
        stats->both_sums(cv->dev, rows, sum_a, g == ABAR_GRAD_SQUARES, sum_g);
        return true;
    }
    if (a == ABAR_INPUT_MEAN_PRODUCT && g == ABAR_GRAD_MEAN_PRODUCT && stats->both_mean_products) {
        stats->both_mean_products(cv->dev, rows, sum_a, sum_g, cv->scratch);
        return true;
    }
    return false;
}

static char *row_at(const abar__curvature *cv, const abar__running_average *a, int64_t n)
{
    return (char *)a->rows + (size_t)(n * a->row) * abar__element(cv);
}

/* Behind those of the micro-batches before; of a part of a batch from its first example on. */
static void keep_rows(abar__curvature *cv, const abar__map *map, const abar__running_average *a, const abar__rows *rows)
{
    const bool of_grads = a == &map->plan.average[1];
    cv->stats->example_means(cv->dev, rows, of_grads, row_at(cv, a, cv->first + (int64_t)map->examples));
}

static abar_status check_kept(const abar__curvature *cv, const abar__map *map, const abar__rows *rows)
{
    const int64_t examples = cv->first + (int64_t)map->examples + rows->examples;
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++)
        if (map->plan.average[i].kept && examples > map->plan.average[i].kept)
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                              "observe %s: %lld examples in a step, %s was made for %lld, raise examples in abar_optim_config",
                              map->name, (long long)examples, cv->ops->method.name, (long long)map->plan.average[i].kept);
    return ABAR_OK;
}

static void add_average(abar__curvature *cv, abar__map *map, const abar__running_average *a, const abar__rows *rows)
{
    const abar__stats_ops *stats = cv->stats;
    switch (a->source) {
    case ABAR_INPUT_MEAN: stats->input_sum(cv->dev, rows, a->pending); break;
    case ABAR_ATTENTION_MEAN:
        if (map->plan.positions)
            stats->position_sums(cv->dev, rows, &map->by_position);
        else if (map->part == 0) /* the first adds for all */
            add_values(cv, map, rows);
        break;
    case ABAR_INPUT_PRODUCT: stats->input_product(cv->dev, rows, NULL, a->pending, cv->scratch); break;
    case ABAR_INPUT_MEAN_PRODUCT: stats->input_mean_product(cv->dev, rows, a->pending, cv->scratch); break;
    case ABAR_GRAD_MEAN: stats->grad_sum(cv->dev, rows, a->pending); break;
    case ABAR_GRAD_SQUARES: stats->grad_squares(cv->dev, rows, NULL, a->pending); break;
    case ABAR_GRAD_PRODUCT: stats->grad_product(cv->dev, rows, a->pending, cv->scratch); break;
    case ABAR_GRAD_MEAN_PRODUCT: stats->grad_mean_product(cv->dev, rows, a->pending, cv->scratch); break;
    case ABAR_INPUT_ROWS:
    case ABAR_GRAD_ROWS:
    case ABAR_INPUT_NEAREST:
    case ABAR_GRAD_NEAREST: keep_rows(cv, map, a, rows); break;
    default: break; /* weighed ones come together */
    }
}

/* Sums of P are divided by N at the commit. Products of all rows then are R E[p pᵀ], as they should be; of examples' means
 * under per-example gradients R² times E_n[p̄_n p̄_nᵀ] is wanted: p is scaled by R beforehand. */
static void accumulate(abar__curvature *cv, abar__map *map, const abar__rows *given)
{
    const abar__plan *p = &map->plan;
    abar__rows rows = *given;
    if (p->secant.used) {
        cv->stats->input_sum(cv->dev, &rows, p->secant.inputs[cv->second]);
        cv->stats->grad_sum(cv->dev, &rows, p->secant.grads[cv->second]);
        if (cv->second) return;
    }
    if (p->average[1].source == ABAR_GRAD_MEAN_PRODUCT && cv->config.pgrad && !p->average[1].own_loss)
        rows.grad_scale *= (double)rows.per_example;
    if (p->average[0].source == ABAR_INPUT_WEIGHED_PRODUCT) {
        add_weighed(cv, map, &rows);
        return;
    }
    if (!add_both(cv, p, &rows))
        for (int i = 0; i < ABAR_PLAN_AVERAGES; i++)
            if (p->average[i].name && !p->average[i].calibrated) add_average(cv, map, &p->average[i], &rows);
    if (p->mean_number.source == ABAR_NUMBER_SQUARE && p->average[0].source == ABAR_INPUT_MEAN && !p->mean_number.calibrated)
        cv->stats->input_square_add(cv->dev, &rows, p->mean_number.pending);
}

abar_status abar__curvature_observe(abar__curvature *cv, int layer, const abar_layer *tensors)
{
    if (layer < 0 || layer >= cv->n_layers)
        return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT, "observe: there is no layer %d, they are numbered 0 to %d", layer,
                          cv->n_layers - 1);
    if (!abar__curvature_observes(cv)) return ABAR_OK;
    static const abar_tensor none = {0};
    const bool needs_grad = cv->ops->reads_output_grad;
    double start = abar__seconds();
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        if (map->layer != layer) continue;
        if (needs_grad && !tensors->output_grad.ndim)
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT, "observe %s: %s needs the gradient of the output too", map->name,
                              cv->ops->method.name);
        abar__rows rows;
        ABAR_TRY(
            make_rows(cv, map, &tensors->input, needs_grad ? &tensors->output_grad : &none, tensors->output_grad_scale, &rows));
        if (map->parts > 0) ABAR_TRY(add_columns(cv, map, &tensors->attention.columns, &rows));
        if (rows.examples < 1) continue;
        if (abar__plan_is_natural(&map->plan)) {
            ABAR_TRY(take_rows(cv, map, &rows));
            continue;
        }
        ABAR_TRY(check_kept(cv, map, &rows));
        accumulate(cv, map, &rows);
        map->examples += (double)rows.examples;
        map->rows += (double)(rows.examples * rows.per_example);
    }
    cv->observe_seconds += abar__seconds() - start;
    return ABAR_OK;
}

static void forget_differences(abar__curvature *cv, abar__map *map)
{
    const abar__secant *s = &map->plan.secant;
    for (int i = cv->second; i < 2; i++) { /* the first pass is the step's until the second ends */
        cv->stats->clear(cv->dev, map->d, false, s->inputs[i]);
        cv->stats->clear(cv->dev, map->out, false, s->grads[i]);
    }
}

static void forget_pending(abar__curvature *cv, abar__map *map)
{
    const abar__plan *p = &map->plan;
    if (p->secant.used) forget_differences(cv, map);
    if (cv->second) {
        map->rows = map->examples = 0.0;
        return;
    }
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
        const abar__running_average *a = &p->average[i];
        const bool gathered = cv->in_parts && a->rows == a->pending; /* rows of other parts are among them */
        if (a->name && !gathered) cv->stats->clear(cv->dev, a->n, a->square, a->pending);
    }
    const int64_t per_double = (int64_t)(sizeof(double) / abar__element(cv));
    const abar__position_sums *sums = &map->by_position;
    if (p->mean_number.pending) cv->stats->clear(cv->dev, per_double, false, p->mean_number.pending);
    if (sums->sum) cv->stats->clear(cv->dev, sums->positions * map->in, false, sums->sum);
    if (sums->columns) cv->stats->clear(cv->dev, sums->positions, false, sums->columns);
    if (sums->square) cv->stats->clear(cv->dev, sums->positions * per_double, false, sums->square);
    map->rows = map->examples = 0.0;
    map->passes = 0;
}

void abar__curvature_forget(abar__curvature *cv)
{
    cv->pass = -1;
    for (int i = 0; i < cv->n_maps; i++) forget_pending(cv, &cv->maps[i]);
}

void abar__curvature_forget_layer(abar__curvature *cv, int layer)
{
    for (int i = 0; i < cv->n_maps; i++)
        if (cv->maps[i].layer == layer) forget_pending(cv, &cv->maps[i]);
}

void abar__curvature_skip(abar__curvature *cv)
{
    const abar__cadence cadence = abar__curvature_cadence(cv);
    abar__curvature_forget(cv);
    for (int i = 0; i < cv->n_maps; i++)
        if (cv->maps[i].plan.slots == 0 && abar__due_when_skipped(&cadence, cv->k, cv->maps[i].number))
            cv->maps[i].state.count[ABAR_COUNT_DUE] = 1;
    cv->k++;
}

/* What sums of this kind are divided by. */
static double pending_count(const abar__map *map, abar__per per)
{
    switch (per) {
    case ABAR_PER_ROW: return map->rows;
    case ABAR_PER_EXAMPLE: return map->examples;
    case ABAR_PER_SEQUENCE: return map->examples * (double)map->windows;
    }
    return 0.0;
}

/* Where the map has sums by position: multiplies them into what is pending. */
static void join(abar__curvature *cv, abar__map *map)
{
    const abar__plan *p = &map->plan;
    if (!p->positions) return;
    cv->stats->position_product(cv->dev, &map->by_position, map->in, map->bias, pending_count(map, ABAR_PER_SEQUENCE),
                                p->average[0].pending, p->mean_number.pending);
}

static double to_mean(const abar__curvature *cv, const abar__map *map, const abar__running_average *a, double observed_scale)
{
    const double p = observed_scale * (cv->config.pgrad || a->own_loss ? map->examples : 1.0);
    const double scale = a->grad_power ? pow(p, a->grad_power) : 1.0;
    if (a->source == ABAR_GRAD_NEAREST) return scale; /* its partner's rows have 1 / sqrt(B) twice in every product */
    return scale / (a->kept ? sqrt(pending_count(map, a->per)) : pending_count(map, a->per));
}

/* There are none behind those of this step. */
static void clear_other_rows(abar__curvature *cv, const abar__map *map)
{
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
        const abar__running_average *a = &map->plan.average[i];
        const int64_t examples = (int64_t)map->examples;
        if (a->kept > examples) cv->stats->clear(cv->dev, (a->kept - examples) * a->row, false, row_at(cv, a, examples));
    }
}

/* What makes R of the rows in memory: j = B times them, each by the root of its weight; and the examples. */
static bool rows_to_use(abar__curvature *cv, double observed_scale, double *out)
{
    bool observed = false;
    for (int i = 0; i < cv->n_maps; i++, out += 3) {
        abar__map *map = &cv->maps[i];
        const bool seen = map->passes == map->plan.rows.passes;
        out[0] = seen ? observed_scale * sqrt(map->examples * map->plan.rows.weight) : 0.0;
        out[1] = seen ? map->examples : 0.0;
        out[2] = 0.0;
        observed = observed || seen;
        map->examples = 0.0;
        map->passes = 0;
    }
    cv->pass = -1;
    return observed;
}

bool abar__curvature_to_mean(abar__curvature *cv, double observed_scale, double *out)
{
    if (cv->ops->by_example) return rows_to_use(cv, observed_scale, out);
    bool observed = false;
    for (int i = 0; i < cv->n_maps; i++, out += 3) {
        abar__map *map = &cv->maps[i];
        const abar__running_average *const sums[3] = {&map->plan.average[0], &map->plan.average[1], &map->plan.mean_number};
        const bool seen = map->examples > 0.0;
        for (int k = 0; k < 3; k++) out[k] = seen && sums[k]->name ? to_mean(cv, map, sums[k], observed_scale) : 0.0;
        if (seen && map->plan.secant.used) out[1] = observed_scale * map->examples / map->rows; /* p of each example's loss */
        if (seen) join(cv, map);
        if (seen) clear_other_rows(cv, map);
        observed = observed || seen;
        map->rows = map->examples = 0.0;
    }
    return observed;
}

/* ---- calibration -------------------------------------------------------------------------------------------------- */

static bool wants_calibration(const abar__map *map)
{
    const bool wants = abar__plan_is_calibrated(&map->plan) || map->plan.secant.first_pass;
    return wants && !map->state.count[ABAR_COUNT_CALIBRATED];
}

bool abar__curvature_wants_calibration(const abar__curvature *cv, int layer)
{
    for (int i = 0; i < cv->n_maps; i++)
        if (cv->maps[i].layer == layer && wants_calibration(&cv->maps[i])) return true;
    return false;
}

abar_status abar__curvature_calibrate(abar__curvature *cv, int layer, const abar_tensor *input)
{
    static const abar_tensor none = {0};
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        if (map->layer != layer || !wants_calibration(map)) continue;
        abar__rows rows;
        ABAR_TRY(make_rows(cv, map, input, &none, 1.0, &rows));
        add_average(cv, map, &map->plan.average[0], &rows);
        if (map->plan.mean_number.calibrated) cv->stats->input_square_add(cv->dev, &rows, map->plan.mean_number.pending);
        map->rows += (double)(rows.examples * rows.per_example);
    }
    return ABAR_OK;
}

/* Averages are the means over all rows, and all that rests on them is derived, now and once. */
static bool end_calibration(abar__curvature *cv, abar__map *map)
{
    const abar__plan *p = &map->plan;
    const abar__running_average *a = &p->average[0];
    const double over = 1.0 / map->rows;
    if (!cv->stats->all_finite(cv->dev, a->n, a->square, a->pending, over)) return false;
    cv->stats->commit(cv->dev, a->n, a->square, a->average, a->pending, 0.0, over);
    if (p->secant.first_pass) return true; /* the first step derives the rest */
    if (p->mean_number.calibrated) {
        double number = 0.0;
        if (cv->dev->ops->stream)
            (void)cv->dev->ops->stream->copy_bytes(cv->dev, &number, p->mean_number.pending, sizeof number);
        else
            number = *(const double *)p->mean_number.pending;
        if (!isfinite(number * over)) return false;
        map->state.real[ABAR_REAL_NUMBER] = number * over;
    }
    const bool derived = abar__derive(cv->dev, p, &map->state, 1.0, ABAR_DERIVE_ALL, cv->scratch);
    map->state.real[ABAR_REAL_NUMBER] = 0.0; /* of running averages only */
    return derived;
}

abar_status abar__curvature_end_calibration(abar__curvature *cv)
{
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        if (!wants_calibration(map)) continue;
        if (map->rows == 0.0)
            return abar__fail(cv->dev->ctx, ABAR_E_STATE, "%s: calibration of %s saw no data", cv->ops->method.name, map->name);
        const bool usable = end_calibration(cv, map);
        forget_pending(cv, map);
        if (!usable)
            return abar__fail(cv->dev->ctx, ABAR_E_NUMERIC,
                              "%s: the calibration of %s gave no usable statistics, raise --damping", cv->ops->method.name,
                              map->name);
        map->state.count[ABAR_COUNT_CALIBRATED] = 1;
        map->state.count[ABAR_COUNT_READY] = !map->plan.secant.first_pass;
    }
    return ABAR_OK;
}
