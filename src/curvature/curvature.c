/* The frame around a curvature method: which maps there are, their memory, statistics in and averages out, when to refresh, and
 * what becomes of the gradients (methods.md sections 0, 7, 9). */
#include "curvature/curvature_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const abar_option abar_curvature_options[] = {
    {.name = "stat-decay",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(abar_curvature_config, stat_decay),
     .fallback = "0.95",
     .min = 0.0,
     .max = 0.999999,
     .help = "weight of the old value in the averages of statistics"},
    {.name = "tcov",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(abar_curvature_config, tcov),
     .fallback = "5",
     .min = 1,
     .max = 1e9,
     .help = "steps from one taking of statistics to the next"},
    {.name = "tinv",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(abar_curvature_config, tinv),
     .fallback = "50",
     .min = 1,
     .max = 1e9,
     .help = "steps from one refresh of what is derived from them to the next"},
    {.name = "refresh",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(abar_curvature_config, refresh),
     .fallback = "together",
     .choices = "together|spread",
     .help = "refresh all layers in one step, or spread them over the steps"},
    {.name = "pgrad",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(abar_curvature_config, pgrad),
     .fallback = "batch-mean",
     .choices = "batch-mean|per-example",
     .help = "scale of the output gradients that statistics see"},
    {.name = "skip-layers",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(abar_curvature_config, skip_layers),
     .fallback = "",
     .help = "layers left alone: names with * and ?, joined by commas"},
    {.name = NULL},
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- maps ------------------------------------------------------------------------------------------------------- */

/* Does the pattern (up to its end or a comma) fit the whole name? */
static bool fits(const char *pattern, const char *name)
{
    if (*pattern == '\0' || *pattern == ',') return *name == '\0';
    if (*pattern == '*') return fits(pattern + 1, name) || (*name && fits(pattern, name + 1));
    return *name && (*pattern == '?' || *pattern == *name) && fits(pattern + 1, name + 1);
}

static bool is_skipped(const char *patterns, const char *name)
{
    for (const char *at = patterns; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (fits(at, name)) return true;
    return false;
}

static bool has_bias(const abar_layer *l) { return l->bias.ndim > 0; }

static abar_status check_layer(abar_context *ctx, const abar_layer *l)
{
    bool conv = l->weight.ndim == 4;
    if (!l->name || !*l->name) return abar__fail(ctx, ABAR_E_ARGUMENT, "curvature: a layer has no name");
    if (!conv && l->weight.ndim != 2)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "curvature: the weight of %s has %d dimensions, give 2 (linear) or 4 (convolution)", l->name,
                          l->weight.ndim);
    int64_t out = l->weight.dim[0], groups = conv ? l->window.groups : 1;
    if (groups < 1 || out % groups)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "curvature: %s: %lld groups do not divide %lld outputs", l->name,
                          (long long)groups, (long long)out);
    if (conv && (l->window.kernel[0] != l->weight.dim[2] || l->window.kernel[1] != l->weight.dim[3]))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "curvature: %s: the window's kernel is not the weight's", l->name);
    if (has_bias(l) && abar_tensor_count(&l->bias) != out)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "curvature: the bias of %s does not fit its weight", l->name);
    return ABAR_OK;
}

static void describe_map(abar__curvature *cv, const abar_layer *l, int layer, int64_t group, abar__map *map)
{
    bool conv = l->weight.ndim == 4;
    int64_t groups = conv ? l->window.groups : 1, out = l->weight.dim[0] / groups;
    int64_t in = abar_tensor_count(&l->weight) / l->weight.dim[0];
    size_t element = abar__element(cv);
    *map = (abar__map){.layer = layer,
                       .group = group,
                       .in = in,
                       .d = in + (has_bias(l) ? 1 : 0),
                       .out = out,
                       .bias = has_bias(l),
                       .first = l->reads_network_input,
                       .window = conv ? l->window : abar_window_unit(),
                       .convolution = conv,
                       .cosine = NAN,
                       .ratio = NAN};
    map->real[ABAR_REAL_DAMPING] = map->real[ABAR_REAL_MEAN_SQUARE] = map->real[ABAR_REAL_CONDITION] = NAN;
    if (l->weight_grad.data) map->weight_grad = (char *)l->weight_grad.data + (size_t)(group * out * in) * element;
    if (l->bias_grad.data) map->bias_grad = (char *)l->bias_grad.data + (size_t)(group * out) * element;
    cv->ops->shape(cv, map, &map->shape);
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

static size_t vector_bytes(const abar__curvature *cv, int64_t n)
{
    return abar__round_up((size_t)n * abar__element(cv), ABAR_ALIGN);
}

/* Hands out a map's tensors from state, or only counts where state is NULL. Returns the bytes used. */
static size_t place_state(const abar__curvature *cv, abar__map *map, char *state)
{
    size_t at = 0, element = abar__element(cv);
    for (int i = 0; i < ABAR_AVERAGES_MAX; i++) {
        const abar__average_desc *a = &map->shape.average[i];
        if (!a->name) continue;
        map->average[i] = state + at;
        if (a->square) { /* pending interleaves one row further */
            map->pending[i] = state + at + (size_t)a->n * element;
            at += vector_bytes(cv, (a->n + 1) * a->n);
        } else {
            at += vector_bytes(cv, a->n);
            map->pending[i] = state + at;
            at += vector_bytes(cv, a->n);
        }
    }
    for (int i = 0; i < ABAR_DERIVED_MAX; i++) {
        if (!map->shape.derived[i].name) continue;
        map->derived[i] = state + at;
        at += vector_bytes(cv, map->shape.derived[i].n);
    }
    return at;
}

size_t abar__scratch_bytes(const abar__curvature *cv, const abar__map *map, unsigned calls)
{
    const abar__stats_ops *stats = cv->stats;
    const int64_t side = map->d > map->out ? map->d : map->out;
    const abar__rows rows = {
        .window = map->window, .convolution = map->convolution, .bias = map->bias, .in = map->in, .out = map->out};
    size_t need[] = {calls & ABAR_SCRATCH_PRODUCT ? stats->product_scratch(cv->dev, &rows) : 0,
                     calls & ABAR_SCRATCH_INVERT ? stats->invert_scratch(cv->dev, side) : 0,
                     calls & ABAR_SCRATCH_EIGEN ? stats->eigen_scratch(cv->dev, side) : 0,
                     calls & ABAR_SCRATCH_SANDWICH ? vector_bytes(cv, map->out * map->d) : 0};
    size_t most = 0;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++) most = need[i] > most ? need[i] : most;
    return most;
}

static void count_memory(abar__curvature *cv)
{
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        cv->state_bytes += place_state(cv, map, NULL);
        size_t joined = map->shape.dense ? 2 * vector_bytes(cv, map->out * map->d) : 0;
        if (joined > cv->joined_bytes) cv->joined_bytes = joined;
        if (map->shape.scratch > cv->scratch_bytes) cv->scratch_bytes = map->shape.scratch;
    }
}

static abar_status take_memory(abar__curvature *cv)
{
    ABAR_TRY(abar_device_alloc(cv->dev, cv->state_bytes, &cv->state));
    ABAR_TRY(abar_device_alloc(cv->dev, cv->scratch_bytes, &cv->scratch));
    ABAR_TRY(abar_device_alloc(cv->dev, cv->joined_bytes, &cv->joined));
    char *at = cv->state;
    for (int i = 0; i < cv->n_maps; i++) at += place_state(cv, &cv->maps[i], at);
    return ABAR_OK;
}

/* ---- creating ----------------------------------------------------------------------------------------------------- */

static abar_status find_method(abar_context *ctx, const char *name, const abar__curvature_ops **out)
{
    *out = abar__method_find(name);
    if (*out) return ABAR_OK;
    const char *near = abar_nearest_name(name, abar_method_names());
    return abar__fail(ctx, ABAR_E_NOT_FOUND, "optimizer %s: no such curvature method%s%s", name, near ? ", did you mean " : "",
                      near ? near : "");
}

static abar_status configure(abar__curvature *cv, const abar__curvature_wish *wish)
{
    abar_context *ctx = cv->dev->ctx;
    const abar_method *method = &cv->ops->method;
    if (wish->common)
        cv->config = *wish->common;
    else
        abar_options_default(abar_curvature_options, &cv->config);
    ABAR_TRY(abar__options_check(ctx, method->name, abar_curvature_options, &cv->config));
    cv->config_bytes = method->config_size;
    ABAR_TRY(abar__alloc(ctx, cv->config_bytes, &cv->method_config));
    if (wish->method_config)
        memcpy(cv->method_config, wish->method_config, cv->config_bytes);
    else
        abar_options_default(method->options, cv->method_config);
    ABAR_TRY(abar__options_check(ctx, method->name, method->options, cv->method_config));
    return cv->ops->check ? cv->ops->check(ctx, cv->method_config) : ABAR_OK;
}

static abar_status make_maps(abar__curvature *cv, const abar_layer *layers, int n)
{
    abar_context *ctx = cv->dev->ctx;
    int count = 0;
    for (int i = 0; i < n; i++) {
        ABAR_TRY(check_layer(ctx, &layers[i]));
        cv->names_bytes += strlen(layers[i].name) + 1;
        count += layers[i].weight.ndim == 4 ? (int)layers[i].window.groups : 1;
    }
    ABAR_TRY(abar__alloc(ctx, cv->names_bytes, (void **)&cv->names));
    ABAR_TRY(abar__alloc(ctx, (size_t)count * sizeof *cv->maps, (void **)&cv->maps));
    cv->maps_capacity = count;
    char *name = cv->names;
    for (int i = 0; i < n; i++) {
        if (is_skipped(cv->config.skip_layers, layers[i].name)) continue;
        int64_t groups = layers[i].weight.ndim == 4 ? layers[i].window.groups : 1;
        strcpy(name, layers[i].name);
        for (int64_t g = 0; g < groups; g++) {
            abar__map *map = &cv->maps[cv->n_maps++];
            describe_map(cv, &layers[i], i, g, map);
            map->name = name;
        }
        name += strlen(name) + 1;
    }
    return ABAR_OK;
}

/* Everything but the device's memory. */
static abar_status prepare(abar_device *dev, const abar__curvature_wish *wish, abar__curvature **out)
{
    const abar__curvature_ops *ops;
    ABAR_TRY(find_method(dev->ctx, wish->method, &ops));
    if (wish->n_layers < 0 || (wish->n_layers > 0 && !wish->layers))
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optimizer %s: give it the layers it is to precondition", wish->method);
    abar__curvature *cv;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *cv, (void **)&cv));
    *cv = (abar__curvature){.dev = dev, .stats = dev->ops->stats, .ops = ops, .base_lr = wish->base_lr, .grad_scale = 1.0};
    cv->times.kl_scale = 1.0;
    abar_status status = configure(cv, wish);
    if (status == ABAR_OK) status = make_maps(cv, wish->layers, wish->n_layers);
    if (status == ABAR_OK && ops->check_maps) status = ops->check_maps(cv);
    if (status < 0) {
        abar__curvature_destroy(cv);
        return status;
    }
    count_memory(cv);
    *out = cv;
    return ABAR_OK;
}

abar_status abar__curvature_create(abar_device *dev, const abar__curvature_wish *wish, abar__curvature **out)
{
    *out = NULL;
    abar__curvature *cv;
    ABAR_TRY(prepare(dev, wish, &cv));
    abar_status status = take_memory(cv);
    if (status < 0) {
        abar__curvature_destroy(cv);
        return status;
    }
    *out = cv;
    return ABAR_OK;
}

void abar__curvature_destroy(abar__curvature *cv)
{
    if (!cv) return;
    abar_context *ctx = cv->dev->ctx;
    abar_device_free(cv->dev, cv->state, cv->state_bytes);
    abar_device_free(cv->dev, cv->scratch, cv->scratch_bytes);
    abar_device_free(cv->dev, cv->joined, cv->joined_bytes);
    abar__free(ctx, cv->maps, (size_t)cv->maps_capacity * sizeof *cv->maps);
    abar__free(ctx, cv->names, cv->names_bytes);
    abar__free(ctx, cv->method_config, cv->config_bytes);
    abar__free(ctx, cv, sizeof *cv);
}

size_t abar__curvature_state_bytes(const abar__curvature *cv) { return cv->state_bytes + cv->scratch_bytes + cv->joined_bytes; }

size_t abar__curvature_bytes(const abar__curvature *cv)
{
    return sizeof *cv + abar__curvature_state_bytes(cv) + (size_t)cv->maps_capacity * sizeof *cv->maps + cv->names_bytes +
           cv->config_bytes;
}

size_t abar__curvature_plan_bytes(abar_device *dev, const abar__curvature_wish *wish, int *maps)
{
    abar__curvature *cv;
    if (prepare(dev, wish, &cv) < 0) return 0;
    size_t bytes = abar__curvature_bytes(cv);
    *maps = cv->n_maps;
    abar__curvature_destroy(cv);
    return bytes;
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
        if (input->ndim != 4 || input->dim[1] / groups * kernel != map->in) return bad_shape(cv, map, "input");
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
    if (grad->ndim && (grad->ndim != input->ndim || grad->dim[0] != input->dim[0] || grad->dim[grad->ndim - 1] != map->out ||
                       (grad->ndim == 3 && grad->dim[1] != input->dim[1])))
        return bad_shape(cv, map, "output gradient");
    return ABAR_OK;
}

bool abar__curvature_observes(const abar__curvature *cv) { return cv->k % cv->config.tcov == 0; }

abar_status abar__curvature_observe(abar__curvature *cv, int layer, const abar_layer *tensors)
{
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
    map->pending_number = map->rows = map->examples = 0.0;
}

static bool pending_is_finite(abar__curvature *cv, const abar__map *map)
{
    for (int i = 0; i < ABAR_AVERAGES_MAX; i++) {
        const abar__average_desc *a = &map->shape.average[i];
        if (a->name && !cv->stats->all_finite(cv->dev, a->n, a->square, map->pending[i])) return false;
    }
    return isfinite(map->pending_number);
}

/* What a pending sum is multiplied by to become the new value. */
static double to_mean(const abar__curvature *cv, const abar__map *map, const abar__average_desc *a)
{
    double scale = cv->config.pgrad ? pow(map->examples, a->grad_power) : 1.0;
    return scale / (a->per == ABAR_PER_ROW ? map->rows : map->examples);
}

static void commit(abar__curvature *cv, abar__map *map)
{
    if (map->examples == 0.0) return;
    if (!pending_is_finite(cv, map)) {
        map->count[ABAR_COUNT_DROPPED]++;
        forget_pending(cv, map);
        return;
    }
    const double beta = cv->config.stat_decay;
    for (int i = 0; i < ABAR_AVERAGES_MAX; i++) {
        const abar__average_desc *a = &map->shape.average[i];
        if (!a->name) continue;
        double add = (1.0 - beta) * to_mean(cv, map, a);
        cv->stats->commit(cv->dev, a->n, a->square, map->average[i], map->pending[i], beta, add);
    }
    if (map->shape.number.name) {
        double fresh = to_mean(cv, map, &map->shape.number) * map->pending_number;
        map->real[ABAR_REAL_NUMBER] = beta * map->real[ABAR_REAL_NUMBER] + (1.0 - beta) * fresh;
    }
    map->count[ABAR_COUNT_COMMITS]++;
    map->pending_number = map->rows = map->examples = 0.0;
}

/* ---- refreshing --------------------------------------------------------------------------------------------------- */

static bool on_schedule(const abar__curvature *cv, int map)
{
    const int64_t tinv = cv->config.tinv;
    if (cv->k == 0) return true;
    int64_t shift = cv->config.refresh ? (int64_t)map * tinv / cv->n_maps : 0;
    return (cv->k - shift) % tinv == 0;
}

static bool wants_calibration(const abar__curvature *cv, const abar__map *map)
{
    return cv->ops->wants_calibration && cv->ops->wants_calibration(cv, map);
}

static void refresh(abar__curvature *cv, int index, bool committed)
{
    abar__map *map = &cv->maps[index];
    bool wanted = cv->ops->every_commit ? committed : on_schedule(cv, index) || map->count[ABAR_COUNT_DUE];
    if (!wanted) return;
    if (map->count[ABAR_COUNT_COMMITS] == 0 || wants_calibration(cv, map)) { /* nothing to derive from yet */
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

static void set_comparison(abar__map *map, const double products[3])
{
    map->cosine = products[1] / sqrt(products[0] * products[2]);
    map->ratio = sqrt(products[2] / products[0]);
}

/* Replaces a dense map's gradient; returns <G^, G>, 0 where it stays as it is. */
static double apply_dense(abar__curvature *cv, abar__map *map)
{
    const abar__stats_ops *stats = cv->stats;
    const int64_t count = map->out * map->d;
    void *g = cv->joined, *result = (char *)cv->joined + vector_bytes(cv, count);
    stats->gather(cv->dev, map->out, map->in, map->weight_grad, map->bias_grad, g);
    cv->ops->apply(cv, map, g, result);
    if (!stats->all_finite(cv->dev, count, false, result)) {
        map->count[ABAR_COUNT_KEPT]++;
        return 0.0;
    }
    if (cv->measure)
        set_comparison(map, (double[]){stats->dot(cv->dev, count, g, g), stats->dot(cv->dev, count, g, result),
                                       stats->dot(cv->dev, count, result, result)});
    double inner = cv->ops->kl_clip ? stats->dot(cv->dev, count, g, result) : 0.0;
    stats->scatter(cv->dev, map->out, map->in, result, map->weight_grad, map->bias_grad);
    return inner;
}

static double apply_described(abar__curvature *cv, abar__map *map)
{
    cv->ops->describe(cv, map);
    if (!cv->measure && !cv->ops->kl_clip) return 0.0;
    double products[3];
    cv->stats->compare(cv->dev, map->out, map->in, map->weight_grad, map->bias_grad, &map->pre, products);
    if (cv->measure) set_comparison(map, products);
    return products[1];
}

/* methods.md section 7: nu = min(1, sqrt(kappa / (eta_0^2 sum <G^, G>))). */
static void clip(abar__curvature *cv, double kappa, double sum)
{
    sum *= cv->grad_scale * cv->grad_scale * cv->base_lr * cv->base_lr;
    cv->times.kl_scale = sum > 0.0 ? fmin(1.0, sqrt(kappa / sum)) : 1.0;
    for (int i = 0; i < cv->n_maps; i++)
        if (cv->maps[i].count[ABAR_COUNT_READY]) cv->maps[i].pre.scale *= cv->times.kl_scale;
}

void abar__curvature_step(abar__curvature *cv, double grad_scale)
{
    double start = now();
    for (int i = 0; i < cv->n_maps; i++) {
        int64_t before = cv->maps[i].count[ABAR_COUNT_COMMITS];
        commit(cv, &cv->maps[i]);
        refresh(cv, i, cv->maps[i].count[ABAR_COUNT_COMMITS] != before);
    }
    double middle = now(), sum = 0.0;
    cv->grad_scale = grad_scale;
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        map->pre = identity;
        if (!map->count[ABAR_COUNT_READY]) continue;
        sum += map->shape.dense ? apply_dense(cv, map) : apply_described(cv, map);
    }
    double kappa = cv->ops->kl_clip ? cv->ops->kl_clip(cv) : 0.0;
    if (kappa > 0.0) clip(cv, kappa, sum);
    cv->measure = false;
    cv->k++;
    cv->times.refresh += middle - start;
    cv->times.apply += now() - middle;
}

/* ---- calibration -------------------------------------------------------------------------------------------------- */

bool abar__curvature_wants_calibration(const abar__curvature *cv, int layer)
{
    for (int i = 0; i < cv->n_maps; i++)
        if (cv->maps[i].layer == layer && wants_calibration(cv, &cv->maps[i])) return true;
    return false;
}

abar_status abar__curvature_calibrate(abar__curvature *cv, int layer, const abar_tensor *input)
{
    static const abar_tensor none = {0};
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        if (map->layer != layer || !wants_calibration(cv, map)) continue;
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
        if (!wants_calibration(cv, map)) continue;
        if (map->rows == 0.0)
            return abar__fail(cv->dev->ctx, ABAR_E_STATE, "%s: calibration of %s saw no data", cv->ops->method.name, map->name);
        if (!pending_is_finite(cv, map) || !cv->ops->end_calibration(cv, map))
            return abar__fail(cv->dev->ctx, ABAR_E_NUMERIC,
                              "%s: the calibration of %s gave no usable statistics, raise --damping", cv->ops->method.name,
                              map->name);
        map->count[ABAR_COUNT_CALIBRATED] = 1;
        forget_pending(cv, map);
    }
    return ABAR_OK;
}

/* ---- looking inside ----------------------------------------------------------------------------------------------- */

static abar_status visit_map(abar__curvature *cv, abar__map *map, abar_state_visitor visit, void *user)
{
    char prefix[200], name[256];
    if (map->window.groups > 1)
        snprintf(prefix, sizeof prefix, "curvature.%s.%lld", map->name, (long long)map->group);
    else
        snprintf(prefix, sizeof prefix, "curvature.%s", map->name);
    const abar_dtype dtype = cv->dev->ops->dtype;
    for (int i = 0; i < ABAR_AVERAGES_MAX; i++) {
        const abar__average_desc *a = &map->shape.average[i];
        if (!a->name) continue;
        int64_t dim[2] = {a->square ? a->n + 1 : a->n, a->n}; /* a square with the triangle of its pending sum */
        abar_tensor t = abar_tensor_wrap(cv->dev, map->average[i], dtype, a->square ? 2 : 1, dim);
        snprintf(name, sizeof name, "%s.average.%s", prefix, a->name);
        ABAR_TRY(visit(user, name, &t));
    }
    for (int i = 0; i < ABAR_DERIVED_MAX; i++) {
        const abar__derived_desc *d = &map->shape.derived[i];
        if (!d->name) continue;
        abar_tensor t = abar_tensor_wrap(cv->dev, map->derived[i], dtype, 1, &d->n);
        snprintf(name, sizeof name, "%s.%s", prefix, d->name);
        ABAR_TRY(visit(user, name, &t));
    }
    abar_tensor counts = abar_tensor_wrap(NULL, map->count, ABAR_I64, 1, (int64_t[]){ABAR_COUNTS});
    abar_tensor reals = abar_tensor_wrap(NULL, map->real, ABAR_F64, 1, (int64_t[]){ABAR_REALS});
    snprintf(name, sizeof name, "%s.counts", prefix);
    ABAR_TRY(visit(user, name, &counts));
    snprintf(name, sizeof name, "%s.numbers", prefix);
    return visit(user, name, &reals);
}

abar_status abar__curvature_visit(abar__curvature *cv, abar_state_visitor visit, void *user)
{
    for (int i = 0; i < cv->n_maps; i++) ABAR_TRY(visit_map(cv, &cv->maps[i], visit, user));
    abar_tensor k = abar_tensor_wrap(NULL, &cv->k, ABAR_I64, 0, NULL);
    return visit(user, "curvature.steps", &k);
}

abar_map_info abar__curvature_map(const abar__curvature *cv, int i)
{
    abar__map copy = cv->maps[i];
    return (abar_map_info){.layer = copy.name,
                           .group = copy.group,
                           .rows = copy.out,
                           .columns = copy.d,
                           .state_bytes = place_state(cv, &copy, NULL),
                           .commits = copy.count[ABAR_COUNT_COMMITS],
                           .dropped = copy.count[ABAR_COUNT_DROPPED],
                           .raised = copy.count[ABAR_COUNT_RAISED],
                           .doubled = copy.count[ABAR_COUNT_DOUBLED],
                           .kept = copy.count[ABAR_COUNT_KEPT],
                           .damping = copy.real[ABAR_REAL_DAMPING],
                           .mean_square = copy.real[ABAR_REAL_MEAN_SQUARE],
                           .condition = copy.real[ABAR_REAL_CONDITION],
                           .cosine = copy.cosine,
                           .ratio = copy.ratio};
}

abar_status abar__curvature_plan_maps(abar_device *dev, const abar__curvature_wish *wish, abar_map_visitor visit, void *user)
{
    abar__curvature *cv;
    ABAR_TRY(prepare(dev, wish, &cv));
    for (int i = 0; i < cv->n_maps; i++) {
        const abar_map_info info = abar__curvature_map(cv, i);
        visit(user, &info);
    }
    abar__curvature_destroy(cv);
    return ABAR_OK;
}
