/* The frame around a curvature method: statistics in and averages out, when to refresh, and what becomes of the gradients
 * (methods.md sections 0, 7, 9). */
#include "curvature/curvature_impl.h"

#include <math.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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
    const int64_t positions = cv->maps[map->link + map->links - 1].shape.positions;
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

bool abar__curvature_observes(const abar__curvature *cv) { return cv->k % cv->config.tcov == 0; }

abar_status abar__curvature_observe(abar__curvature *cv, int layer, const abar_layer *tensors)
{
    if (layer < 0 || layer >= cv->n_layers)
        return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT, "observe: there is no layer %d, they are numbered 0 to %d", layer,
                          cv->n_layers - 1);
    if (!abar__curvature_observes(cv)) return ABAR_OK;
    static const abar_tensor none = {0};
    const bool needs_grad = cv->ops->uses & ABAR_USES_OUTPUT_GRAD;
    double start = now();
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
        cv->ops->observe(cv, map, &rows);
        map->examples += (double)rows.examples;
        map->rows += (double)(rows.examples * rows.per_example);
    }
    cv->times.observe += now() - start;
    return ABAR_OK;
}

static void forget_pending(abar__curvature *cv, abar__map *map)
{
    for (int i = 0; i < ABAR_AVERAGES_MAX; i++) {
        const abar__average_desc *a = &map->shape.average[i];
        if (a->name) cv->stats->clear(cv->dev, a->n, a->square, map->pending[i]);
    }
    const int64_t per_double = (int64_t)(sizeof(double) / abar__element(cv));
    const abar__position_sums *p = &map->by_position;
    if (map->queued_number) cv->stats->clear(cv->dev, per_double, false, map->queued_number);
    if (p->sum) cv->stats->clear(cv->dev, p->positions * map->in, false, p->sum);
    if (p->columns) cv->stats->clear(cv->dev, p->positions, false, p->columns);
    if (p->square) cv->stats->clear(cv->dev, p->positions * per_double, false, p->square);
    map->pending_number = map->rows = map->examples = 0.0;
}

void abar__curvature_forget(abar__curvature *cv)
{
    for (int i = 0; i < cv->n_maps; i++) forget_pending(cv, &cv->maps[i]);
}

double abar__pending_count(const abar__map *map, abar__per per)
{
    switch (per) {
    case ABAR_PER_ROW: return map->rows;
    case ABAR_PER_EXAMPLE: return map->examples;
    case ABAR_PER_SEQUENCE: return map->examples * (double)map->windows;
    }
    return 0.0;
}

void abar__curvature_join(abar__curvature *cv, abar__map *map)
{
    if (!map->shape.positions) return;
    cv->stats->position_product(cv->dev, &map->by_position, map->in, map->bias, abar__pending_count(map, ABAR_PER_SEQUENCE),
                                map->pending[0], map->shape.number.name ? abar__pending_number(map) : NULL);
}

double abar__to_mean(const abar__curvature *cv, const abar__map *map, const abar__average_desc *a)
{
    double p = cv->observed_scale * (cv->config.pgrad ? map->examples : 1.0);
    double scale = a->grad_power ? pow(p, a->grad_power) : 1.0;
    return scale / abar__pending_count(map, a->per);
}

static bool pending_is_finite(abar__curvature *cv, const abar__map *map)
{
    for (int i = 0; i < ABAR_AVERAGES_MAX; i++) {
        const abar__average_desc *a = &map->shape.average[i];
        if (a->name && !cv->stats->all_finite(cv->dev, a->n, a->square, map->pending[i], abar__to_mean(cv, map, a)))
            return false;
    }
    return isfinite(map->pending_number * abar__to_mean(cv, map, &map->shape.number));
}

static void drop(abar__curvature *cv, abar__map *map)
{
    map->count[ABAR_COUNT_DROPPED]++;
    forget_pending(cv, map);
}

static void commit_map(abar__curvature *cv, abar__map *map)
{
    const double beta = cv->config.stat_decay;
    const bool calibrated = map->shape.calibrated;
    for (int i = calibrated ? 1 : 0; i < ABAR_AVERAGES_MAX; i++) {
        const abar__average_desc *a = &map->shape.average[i];
        if (!a->name) continue;
        double add = (1.0 - beta) * abar__to_mean(cv, map, a);
        cv->stats->commit(cv->dev, a->n, a->square, map->average[i], map->pending[i], beta, add);
    }
    if (map->shape.number.name && !calibrated) {
        double fresh = abar__to_mean(cv, map, &map->shape.number) * map->pending_number;
        map->real[ABAR_REAL_NUMBER] = beta * map->real[ABAR_REAL_NUMBER] + (1.0 - beta) * fresh;
    }
    map->count[ABAR_COUNT_COMMITS]++;
    map->pending_number = map->rows = map->examples = 0.0;
}

/* Linked maps, from the first on: all of them or none. Returns whether they were. */
static bool commit(abar__curvature *cv, abar__map *first)
{
    bool fine = true;
    if (first->examples == 0.0) return false;
    for (int i = 0; i < first->links; i++) {
        abar__curvature_join(cv, &first[i]);
        fine = pending_is_finite(cv, &first[i]) && fine;
    }
    for (int i = 0; i < first->links; i++) {
        if (fine)
            commit_map(cv, &first[i]);
        else
            drop(cv, &first[i]);
    }
    return fine;
}

/* ---- refreshing --------------------------------------------------------------------------------------------------- */

static bool on_schedule(const abar__curvature *cv, int map)
{
    const int64_t tinv = cv->config.tinv;
    if (cv->k == 0) return true;
    int64_t shift = cv->config.refresh ? (int64_t)cv->maps[map].number * tinv / cv->n_numbers : 0;
    return (cv->k - shift) % tinv == 0;
}

static bool wants_calibration(const abar__map *map) { return map->shape.calibrated && !map->count[ABAR_COUNT_CALIBRATED]; }

static void refresh(abar__curvature *cv, int index, bool committed)
{
    abar__map *map = &cv->maps[index];
    bool wanted = cv->ops->every_commit ? committed : on_schedule(cv, index) || map->count[ABAR_COUNT_DUE];
    if (!wanted) return;
    if (map->count[ABAR_COUNT_COMMITS] == 0 || wants_calibration(map)) { /* nothing to derive from yet */
        map->count[ABAR_COUNT_DUE] = 1;
        return;
    }
    map->count[ABAR_COUNT_DUE] = 0;
    double unbias = 1.0 / (1.0 - pow(cv->config.stat_decay, (double)map->count[ABAR_COUNT_COMMITS]));
    if (cv->ops->refresh(cv, map, unbias))
        map->count[ABAR_COUNT_READY] = 1;
    else
        map->count[ABAR_COUNT_KEPT]++;
}

void abar__curvature_skip(abar__curvature *cv)
{
    for (int i = 0; i < cv->n_maps; i++) {
        forget_pending(cv, &cv->maps[i]);
        if (!cv->ops->every_commit && on_schedule(cv, i)) cv->maps[i].count[ABAR_COUNT_DUE] = 1;
    }
    cv->k++;
}

/* methods.md section 9: raise the damping tenfold, at most five times, then factorise in double. */
static bool climb(abar__curvature *cv, abar__map *map, int64_t d, const void *average, double scale, double *shift,
                  void *inverse)
{
    const double least = 1e-8 * scale * cv->stats->trace(cv->dev, d, average) / (double)d;
    for (int raised = 0; raised < 5; raised++) {
        if (cv->stats->invert(cv->dev, d, average, scale, *shift, false, inverse, cv->scratch)) return true;
        map->count[ABAR_COUNT_RAISED]++;
        *shift = fmax(10.0 * *shift, least);
    }
    if (cv->stats->invert(cv->dev, d, average, scale, *shift, false, inverse, cv->scratch)) return true;
    map->count[ABAR_COUNT_DOUBLED]++;
    return cv->stats->invert(cv->dev, d, average, scale, *shift, true, inverse, cv->scratch);
}

bool abar__curvature_invert(abar__curvature *cv, abar__map *map, int64_t d, const void *average, double scale, double shift,
                            void *inverse)
{
    if (!climb(cv, map, d, average, scale, &shift, inverse)) return false;
    /* the largest eigenvalue is at most the trace, that of the inverse at most its Frobenius norm */
    double largest = scale * cv->stats->trace(cv->dev, d, average) + shift * (double)d;
    map->real[ABAR_REAL_CONDITION] = largest * sqrt(cv->stats->dot(cv->dev, d * d, inverse, inverse));
    return true;
}

/* ---- preconditioning ---------------------------------------------------------------------------------------------- */

static const abar__precondition identity = {.scale = 1.0};

void abar__set_comparison(abar__map *map, const double products[3])
{
    map->cosine = products[1] / sqrt(products[0] * products[2]);
    map->ratio = sqrt(products[2] / products[0]);
}

/* Whether the step depends on <G^, G>, by the KL clip or by the method's own length. */
static bool product_counts(const abar__curvature *cv) { return cv->kl_clip > 0.0 || cv->ops->length; }

/* The same with the gradient joined to one matrix: what devices do without a call for all of it, and methods with their own
 * way. factors NULL: apply. */
static bool apply_joined(abar__curvature *cv, abar__map *map, const abar__dense_gradient *factors, double products[3])
{
    const abar__stats_ops *stats = cv->stats;
    const int64_t m = map->out, d = map->d, count = m * d;
    void *g = cv->scratch, *result = (char *)g + abar__vector_bytes(cv, count);
    cv->spare = (char *)result + abar__vector_bytes(cv, count);
    void *bias_grad = map->bias && !map->bias_grad ? cv->spare : map->bias_grad;
    if (bias_grad == cv->spare) stats->clear(cv->dev, m, false, cv->spare);
    stats->gather(cv->dev, m, map->in, map->weight_grad, bias_grad, g);
    if (factors)
        stats->sandwich(cv->dev, m, d, factors->left, false, g, factors->right, false, result, cv->spare);
    else
        cv->ops->apply(cv, map, g, result);
    if (factors && factors->row_scale) stats->scale_rows(cv->dev, m, d, result, factors->row_scale, 1.0);
    if (!stats->all_finite(cv->dev, count, false, result, factors ? factors->largest : 1.0)) return false;
    if (products) {
        products[0] = stats->dot(cv->dev, count, g, g);
        products[1] = stats->dot(cv->dev, count, g, result);
        products[2] = stats->dot(cv->dev, count, result, result);
        if (product_counts(cv) && !isfinite(products[1])) return false;
    }
    stats->scatter(cv->dev, m, map->in, result, map->weight_grad, bias_grad);
    return true;
}

/* Replaces a dense map's gradient, all but its length; returns <G^, G>, 0 where it stays as it is. A bias without a gradient
 * counts as zeros. */
static double apply_dense(abar__curvature *cv, abar__map *map)
{
    const abar__curvature_ops *ops = cv->ops;
    abar__dense_gradient g = {
        .out = map->out, .in = map->in, .d = map->d, .weight = map->weight_grad, .bias = map->bias_grad, .largest = 1.0};
    const bool between = ops->factors && ops->factors(cv, map, &g);
    const bool wanted = cv->measure || product_counts(cv);
    double sums[3] = {0.0}, *products = wanted ? sums : NULL;
    const bool fine = between && cv->stats->precondition ? cv->stats->precondition(cv->dev, &g, cv->scratch, products)
                                                         : apply_joined(cv, map, between ? &g : NULL, products);
    if (!fine) {
        map->count[ABAR_COUNT_KEPT]++;
        return 0.0;
    }
    const double length = map->pre.scale = ops->length ? ops->length(cv, sums[1]) : 1.0;
    sums[1] *= length;
    sums[2] *= length * length;
    if (cv->measure) abar__set_comparison(map, sums);
    return sums[1];
}

/* Numbers that float32 (or double) could not hold on the way: then the gradient stays as it is. */
static bool would_overflow(const abar__curvature *cv, const abar__map *map, double grad_norm)
{
    const double limit = cv->dev->ops->dtype == ABAR_F64 ? 1e300 : 1e36;
    return !(fmax(map->bound, 1.0) * grad_norm * fmax(cv->grad_scale, 1.0) < limit);
}

static double keep_gradient(abar__map *map)
{
    map->count[ABAR_COUNT_KEPT]++;
    map->pre = identity;
    return 0.0;
}

static double apply_described(abar__curvature *cv, abar__map *map, double grad_norm)
{
    map->bound = 1.0;
    cv->ops->describe(cv, map);
    if (would_overflow(cv, map, grad_norm)) return keep_gradient(map);
    if (!cv->measure && !product_counts(cv)) return 0.0;
    double products[3];
    cv->stats->compare(cv->dev, map->out, map->in, map->weight_grad, map->bias_grad, &map->pre, products);
    if (product_counts(cv) && !isfinite(products[1])) return keep_gradient(map);
    if (cv->measure) abar__set_comparison(map, products);
    return products[1];
}

/* methods.md section 7: nu = min(1, sqrt(kappa / (eta_0^2 sum <G^, G>))) over the maps that have had a valid refresh. */
static void clip(abar__curvature *cv, double sum)
{
    sum *= cv->grad_scale * cv->grad_scale * cv->base_lr * cv->base_lr;
    cv->times.kl_scale = sum > 0.0 ? fmin(1.0, sqrt(cv->kl_clip / sum)) : 1.0;
    for (int i = 0; i < cv->n_maps; i++)
        if (cv->maps[i].count[ABAR_COUNT_READY]) cv->maps[i].pre.scale *= cv->times.kl_scale;
}

void abar__curvature_step(abar__curvature *cv, double grad_scale, double grad_norm)
{
    double start = now();
    bool committed = false;
    for (int i = 0; i < cv->n_maps; i++) {
        if (cv->maps[i].link == i) committed = commit(cv, &cv->maps[i]);
        refresh(cv, i, committed);
    }
    double middle = now(), sum = 0.0;
    cv->grad_scale = grad_scale;
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        map->pre = identity;
        if (!map->count[ABAR_COUNT_READY] || !map->weight_grad) continue;
        sum += map->shape.dense ? apply_dense(cv, map) : apply_described(cv, map, grad_norm);
    }
    if (cv->kl_clip > 0.0) clip(cv, sum);
    cv->measure = false;
    cv->k++;
    cv->times.refresh += middle - start;
    cv->times.apply += now() - middle;
}

/* ---- calibration -------------------------------------------------------------------------------------------------- */

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
        cv->ops->calibrate(cv, map, &rows);
        map->rows += (double)(rows.examples * rows.per_example);
    }
    return ABAR_OK;
}

abar_status abar__curvature_end_calibration(abar__curvature *cv)
{
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        if (!wants_calibration(map)) continue;
        if (map->rows == 0.0)
            return abar__fail(cv->dev->ctx, ABAR_E_STATE, "%s: calibration of %s saw no data", cv->ops->method.name, map->name);
        const bool usable = pending_is_finite(cv, map) && cv->ops->end_calibration(cv, map);
        forget_pending(cv, map);
        if (!usable)
            return abar__fail(cv->dev->ctx, ABAR_E_NUMERIC,
                              "%s: the calibration of %s gave no usable statistics, raise --damping", cv->ops->method.name,
                              map->name);
        map->count[ABAR_COUNT_CALIBRATED] = map->count[ABAR_COUNT_READY] = 1;
    }
    return ABAR_OK;
}
