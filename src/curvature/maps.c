/* Which maps there are, what is kept for each and where, and how to look at it: everything about a curvature but its running.
 */
#include "curvature/curvature_impl.h"
#include "device/host/derive.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LABEL_EXTRA 64 /* what a state tensor's name has beside its layer's */
#define PART_NAME 16   /* what the name of a part of v has, at most */

/* ---- maps ------------------------------------------------------------------------------------------------------- */

/* Does the pattern (up to its end or a comma) fit the whole name? */
static bool fits(const char *pattern, const char *name)
{
    if (*pattern == '\0' || *pattern == ',') return *name == '\0';
    if (*pattern == '*') return fits(pattern + 1, name) || (*name && fits(pattern, name + 1));
    return *name && (*pattern == '?' || *pattern == *name) && fits(pattern + 1, name + 1);
}

bool abar__name_fits(const char *patterns, const char *name)
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

/* Rows of v that are maps of their own. */
static abar_status check_values(abar_context *ctx, const abar_layer *l)
{
    const abar_attention *a = &l->attention;
    if (l->weight.ndim != 2 || a->heads < 1 || a->value_row < 0 || a->value_rows < 1 || a->value_rows % a->heads ||
        a->value_row + a->value_rows != l->weight.dim[0])
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "curvature: %s feeds attention: the rows of v must be the last of its weight, the same number for "
                          "every head",
                          l->name);
    const bool windows = a->side > 0 && a->grid[0] > 0 && a->grid[1] > 0 && a->grid[0] % a->side == 0 &&
                         a->grid[1] % a->side == 0 && a->shift >= 0 && a->shift < a->side;
    if (a->side == 0 || windows) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT,
                      "curvature: %s feeds attention: its windows must be square and divide the grid of tokens", l->name);
}

static int64_t value_parts(const abar__curvature *cv, const abar_layer *l, int layer)
{
    return cv->ops->value_parts ? cv->ops->value_parts(abar__curvature_settings(cv, layer), l) : 0;
}

/* Parts of v are behind one map of the other rows, where there are any. */
static int64_t maps_of(const abar__curvature *cv, const abar_layer *l, int layer)
{
    const int64_t parts = value_parts(cv, l, layer);
    if (parts) return parts + (l->attention.value_row > 0);
    return l->weight.ndim == 4 ? l->window.groups : 1;
}

static void describe_part(abar__map *map, const abar_layer *l, int64_t part, int64_t parts)
{
    const abar_attention *a = &l->attention;
    map->attention = *a;
    map->part = (int)part;
    map->parts = (int)parts;
    map->out = part < 0 ? a->value_row : a->value_rows / parts;
    map->row = part < 0 ? 0 : a->value_row + part * map->out;
    map->windows = a->side ? a->grid[0] / a->side * (a->grid[1] / a->side) : 1;
    map->by_position = (abar__position_sums){.grid = {a->grid[0], a->grid[1]}, .side = a->side, .shift = a->shift};
    map->by_position.positions = a->side ? a->side * a->side : l->input.ndim == 3 ? l->input.dim[1] : 0;
}

/* The index-th map of a layer. */
static void describe_map(abar__curvature *cv, const abar_layer *l, int layer, int64_t index, abar__map *map)
{
    bool conv = l->weight.ndim == 4;
    int64_t groups = conv ? l->window.groups : 1, out = l->weight.dim[0] / groups, group = conv ? index : 0;
    int64_t in = abar_tensor_count(&l->weight) / l->weight.dim[0], parts = value_parts(cv, l, layer);
    const bool bias = has_bias(l) && cv->config.homogeneous;
    size_t element = abar__element(cv);
    *map = (abar__map){.layer = layer,
                       .config = abar__curvature_settings(cv, layer),
                       .group = group,
                       .in = in,
                       .d = in + (bias ? 1 : 0),
                       .out = out,
                       .row = group * out,
                       .weight_rows = l->weight.dim[0],
                       .part = -1,
                       .bias = bias,
                       .first = l->reads_network_input,
                       .window = conv ? l->window : abar_window_unit(),
                       .convolution = conv,
                       .one_row = !conv && l->input.ndim == 2,
                       .channels_last = abar_tensor_is_channels_last(&l->weight),
                       .cosine = NAN,
                       .ratio = NAN};
    map->state.real[ABAR_REAL_DAMPING] = map->state.real[ABAR_REAL_MEAN_SQUARE] = map->state.real[ABAR_REAL_CONDITION] = NAN;
    if (parts) describe_part(map, l, index - (l->attention.value_row > 0), parts);
    if (l->weight_grad.data) map->weight_grad = (char *)l->weight_grad.data + (size_t)(map->row * in) * element;
    if (bias && l->bias_grad.data) map->bias_grad = (char *)l->bias_grad.data + (size_t)map->row * element;
    map->plan = abar__plan_begin(map->out, map->in, map->d);
    cv->ops->plan(cv, map, &map->plan);
    if (map->channels_last) map->plan.kernel = map->window.kernel[0] * map->window.kernel[1];
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

static void *place_at(char *state, size_t at) { return state ? state + at : NULL; }

/* Hands out a map's tensors from state, or only counts where state is NULL. Returns the bytes used. */
static size_t place_state(const abar__curvature *cv, abar__map *map, char *state)
{
    size_t at = 0, element = abar__element(cv);
    abar__plan *p = &map->plan;
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
        abar__running_average *a = &p->average[i];
        if (!a->name) continue;
        a->average = place_at(state, at);
        if (a->square) { /* pending interleaves one row further */
            a->pending = place_at(state, at + (size_t)a->n * element);
            at += abar__vector_bytes(cv, (a->n + 1) * a->n);
        } else {
            at += abar__vector_bytes(cv, a->n);
            a->pending = place_at(state, at);
            at += abar__vector_bytes(cv, a->n);
        }
    }
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
        abar__running_average *a = &p->average[i];
        const bool pending = a->source == ABAR_INPUT_ROWS || a->source == ABAR_GRAD_ROWS;
        a->rows = pending ? a->pending : a->kept ? place_at(state, at) : NULL;
        at += pending ? 0 : abar__vector_bytes(cv, a->kept * a->row);
    }
    for (int i = 0; i < p->n_derived; i++) {
        const abar_dtype dtype = abar__derived_dtype(p, &p->derived[i], cv->dev->ops->dtype);
        p->derived[i].data = place_at(state, at);
        at += abar__round_up((size_t)p->derived[i].n * abar_dtype_size(dtype), ABAR_ALIGN);
    }
    for (int i = 0; i < 2 && p->secant.used; i++) {
        p->secant.inputs[i] = place_at(state, at);
        at += abar__vector_bytes(cv, map->d);
        p->secant.grads[i] = place_at(state, at);
        at += abar__vector_bytes(cv, map->out);
    }
    if (p->secant.used) {
        p->secant.outputs = place_at(state, at);
        at += abar__round_up((size_t)map->out * sizeof(double), ABAR_ALIGN);
    }
    if (p->positions) {
        map->by_position.sum = place_at(state, at);
        at += abar__vector_bytes(cv, p->positions * map->in);
        map->by_position.columns = place_at(state, at);
        at += abar__vector_bytes(cv, p->positions);
    }
    if (p->positions && p->mean_number.name) {
        map->by_position.square = place_at(state, at);
        at += abar__round_up((size_t)p->positions * sizeof(double), ABAR_ALIGN);
    }
    if (p->mean_number.name) {
        p->mean_number.pending = place_at(state, at);
        at += ABAR_ALIGN;
    }
    return at;
}

/* Likewise what a step works on and nobody keeps: rows of single examples. */
static size_t place_rows(const abar__curvature *cv, abar__map *map, char *memory)
{
    abar__example_rows *r = &map->plan.rows;
    if (!abar__plan_is_natural(&map->plan)) return 0;
    const size_t a = abar__round_up((size_t)abar__natural_a_count(r) * abar__row_element(cv), ABAR_ALIGN);
    r->a = place_at(memory, 0);
    if (abar__natural_is_split(r)) r->p = place_at(memory, a);
    return a + abar__round_up((size_t)abar__natural_p_count(r) * abar__row_element(cv), ABAR_ALIGN);
}

static bool sums_products(const abar__plan *p) { return p->average[0].square || p->average[1].square; }

size_t abar__accumulate_scratch(const abar__curvature *cv, const abar__map *map)
{
    const abar__rows rows = {
        .window = map->window, .convolution = map->convolution, .bias = map->bias, .in = map->in, .out = map->out};
    if (abar__plan_is_natural(&map->plan)) return abar__round_up(cv->stats->example_rows_scratch(cv->dev, &rows), ABAR_ALIGN);
    return sums_products(&map->plan) ? abar__round_up(cv->stats->product_scratch(cv->dev, &rows), ABAR_ALIGN) : 0;
}

/* What accumulating and the end of a calibration need; what a step needs beside it, the device knows. */
static void count_memory(abar__curvature *cv)
{
    for (int i = 0; i < cv->n_maps; i++) {
        abar__map *map = &cv->maps[i];
        const abar__plan *p = &map->plan;
        cv->state_bytes += place_state(cv, map, NULL);
        cv->rows_bytes += place_rows(cv, map, NULL);
        size_t need = abar__accumulate_scratch(cv, map);
        if (p->average[0].source == ABAR_INPUT_WEIGHED_PRODUCT) need += 2 * (size_t)abar__weights_chunk(cv) * sizeof(double);
        const size_t derive = abar__plan_is_calibrated(p) ? abar__derive_scratch(cv->dev, p, ABAR_DERIVE_ALL) : 0;
        need = derive > need ? derive : need;
        if (need > cv->scratch_bytes) cv->scratch_bytes = need;
    }
}

/* The diagonal of averages that do not begin at zero. */
static void begin_averages(const abar__curvature *cv, const abar__plan *p)
{
    for (int i = 0; i < ABAR_PLAN_AVERAGES && p->identity > 0.0; i++) {
        const abar__running_average *a = &p->average[i];
        for (int64_t k = 0; a->square && k < a->n; k++) {
            void *at = (char *)a->average + (size_t)(k * (a->n + 1)) * abar__element(cv);
            cv->stats->affine(cv->dev, 1, at, 0.0, p->identity, at);
        }
    }
}

static abar_status take_memory(abar__curvature *cv)
{
    if (cv->plan_only) return ABAR_OK; /* rings may be larger than memory */
    ABAR_TRY(abar_device_alloc(cv->dev, cv->state_bytes, &cv->state));
    char *at = cv->state;
    for (int i = 0; i < cv->n_maps; i++) at += place_state(cv, &cv->maps[i], at);
    for (int i = 0; i < cv->n_maps; i++) begin_averages(cv, &cv->maps[i].plan);
    ABAR_TRY(abar_device_alloc(cv->dev, cv->rows_bytes, &cv->rows));
    at = cv->rows;
    for (int i = 0; i < cv->n_maps; i++) at += place_rows(cv, &cv->maps[i], at);
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

/* A part of v has a name of its own, and no layer may have it too. */
static abar_status name_part(const abar__curvature *cv, abar__map *map, const abar_layer *layers, int n, char **at)
{
    if (map->part < 0) return ABAR_OK;
    char *name = *at, number[24] = "";
    if (map->parts > 1) snprintf(number, sizeof number, "%d", map->part);
    *at += sprintf(name, "%s@v%s", layers[map->layer].name, number) + 1;
    map->name = name;
    for (int i = 0; i < n; i++)
        if (strcmp(layers[i].name, name) == 0)
            return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                              "curvature: layer %s is called like the rows of v of %s, rename one", name,
                              layers[map->layer].name);
    return ABAR_OK;
}

/* Checks the layers and counts what their maps and names need. */
static abar_status count_maps(abar__curvature *cv, const abar_layer *layers, int n, int *count)
{
    abar_context *ctx = cv->dev->ctx;
    size_t longest = 0;
    for (int i = 0; i < n; i++) {
        ABAR_TRY(check_layer(ctx, &layers[i]));
        if (value_parts(cv, &layers[i], i)) ABAR_TRY(check_values(ctx, &layers[i]));
        for (int j = 0; j < i; j++)
            if (strcmp(layers[i].name, layers[j].name) == 0)
                return abar__fail(ctx, ABAR_E_ARGUMENT, "curvature: two layers are called %s, rename one", layers[i].name);
        size_t length = strlen(layers[i].name) + 1;
        cv->names_bytes += length + (size_t)value_parts(cv, &layers[i], i) * (length + PART_NAME);
        longest = length > longest ? length : longest;
        *count += (int)maps_of(cv, &layers[i], i);
    }
    cv->label_bytes = longest + LABEL_EXTRA;
    cv->names_bytes += cv->label_bytes;
    return ABAR_OK;
}

/* The maps of one layer; those of v are linked with each other and with the one before them. */
static void add_maps(abar__curvature *cv, const abar_layer *l, int layer, const char *name)
{
    const int first = cv->n_maps, maps = (int)maps_of(cv, l, layer);
    const bool linked = value_parts(cv, l, layer) > 0;
    for (int m = 0; m < maps; m++) {
        abar__map *map = &cv->maps[cv->n_maps++];
        describe_map(cv, l, layer, m, map);
        map->name = name;
        map->link = linked ? first : first + m;
        map->links = linked ? maps : 1;
        map->number = cv->n_numbers + (linked ? 0 : m);
        map->plan.link = map->link;
        map->plan.links = map->links;
        map->plan.number = map->number;
    }
    cv->n_numbers += linked ? 1 : maps;
}

/* The map that all parameters together are. */
static abar_status make_joint_map(abar__curvature *cv, int64_t parameters)
{
    static const char name[] = ABAR_ALL_PARAMETERS;
    cv->label_bytes = sizeof name + LABEL_EXTRA;
    cv->names_bytes = sizeof name + cv->label_bytes;
    ABAR_TRY(abar__alloc(cv->dev->ctx, cv->names_bytes, (void **)&cv->names));
    ABAR_TRY(abar__alloc(cv->dev->ctx, sizeof *cv->maps, (void **)&cv->maps));
    cv->maps_capacity = cv->n_maps = cv->n_numbers = 1;
    memcpy(cv->names, name, sizeof name);
    abar__map *map = cv->maps;
    *map = (abar__map){.name = cv->names,
                       .layer = -1,
                       .config = cv->method_config,
                       .in = parameters,
                       .d = parameters,
                       .out = 1,
                       .links = 1,
                       .part = -1,
                       .window = abar_window_unit(),
                       .cosine = NAN,
                       .ratio = NAN};
    map->state.real[ABAR_REAL_DAMPING] = map->state.real[ABAR_REAL_MEAN_SQUARE] = map->state.real[ABAR_REAL_CONDITION] = NAN;
    map->plan = abar__plan_begin(1, parameters, parameters);
    cv->ops->plan(cv, map, &map->plan);
    return ABAR_OK;
}

/* Those of the layers. */
static abar_status make_layer_maps(abar__curvature *cv, const abar__curvature_request *request)
{
    const abar_layer *layers = request->layers;
    const int n = request->n_layers;
    abar_context *ctx = cv->dev->ctx;
    int count = 0;
    ABAR_TRY(count_maps(cv, layers, n, &count));
    ABAR_TRY(abar__alloc(ctx, cv->names_bytes, (void **)&cv->names));
    ABAR_TRY(abar__alloc(ctx, (size_t)count * sizeof *cv->maps, (void **)&cv->maps));
    cv->maps_capacity = count;
    char *name = cv->names;
    for (int i = 0; i < n; i++) {
        if (abar__name_fits(cv->config.skip_layers, layers[i].name) || (request->skip && request->skip[i])) continue;
        const int first = cv->n_maps;
        strcpy(name, layers[i].name);
        add_maps(cv, &layers[i], i, name);
        name += strlen(name) + 1;
        for (int m = first; m < cv->n_maps; m++) ABAR_TRY(name_part(cv, &cv->maps[m], layers, n, &name));
    }
    return ABAR_OK;
}

/* Inverses by some eigenvectors are made on the host. */
static abar_status check_ranks(const abar__curvature *cv, const abar__plan *p)
{
    for (int i = 0; i < p->n_derived && cv->dev->ops->stream; i++)
        if (p->derived[i].rank > 0)
            return abar__fail(cv->dev->ctx, ABAR_E_UNSUPPORTED,
                              "--kfac-rank: not on %s yet, use --device cpu or a value of %lld or more", cv->dev->ops->name,
                              (long long)p->average[p->derived[i].average].n);
    return ABAR_OK;
}

static abar_status make_maps(abar__curvature *cv, const abar__curvature_request *request)
{
    abar_context *ctx = cv->dev->ctx;
    const bool joint = cv->ops->is_joint && cv->ops->is_joint(cv->method_config);
    ABAR_TRY(joint ? make_joint_map(cv, request->parameters) : make_layer_maps(cv, request));
    for (int i = 0; i < cv->n_maps; i++) {
        const abar__plan *p = &cv->maps[i].plan;
        cv->observing = cv->observing || p->average[0].name || p->average[1].name || abar__plan_is_natural(p);
        cv->plan_only = cv->plan_only || (request->plan_only && p->slots > 0);
        ABAR_TRY(abar__plan_check(ctx, p, cv->ops->method.name));
        if ((abar__plan_keeps_rows(p) && !cv->stats->example_means) || (p->slots > 0 && !cv->stats->row_products))
            return abar__fail(ctx, ABAR_E_UNSUPPORTED, "%s: not on %s yet, use --device cpu", cv->ops->method.name,
                              cv->dev->ops->name);
        ABAR_TRY(check_ranks(cv, p));
        if (abar__plan_reads_grad(p) && !cv->ops->reads_output_grad)
            return abar__fail(ctx, ABAR_E_STATE, "plan of %s: it has statistics of output gradients, set reads_output_grad",
                              cv->ops->method.name);
    }
    return ABAR_OK;
}

/* Everything but the device's memory. */
static abar_status prepare(abar_device *dev, const abar__curvature_request *request, abar__curvature **out)
{
    const abar__curvature_ops *ops;
    ABAR_TRY(find_method(dev->ctx, request->method, &ops));
    if (request->n_layers < 0 || (request->n_layers > 0 && !request->layers))
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optimizer %s: give it the layers it is to precondition", request->method);
    if (request->examples < 0)
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optimizer %s: %lld examples in a step, give 1 or more, or 0: not known",
                          request->method, (long long)request->examples);
    abar__curvature *cv;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *cv, (void **)&cv));
    *cv = (abar__curvature){.dev = dev,
                            .stats = dev->ops->stats,
                            .ops = ops,
                            .n_layers = request->n_layers,
                            .base_lr = request->base_lr,
                            .examples = request->examples,
                            .classes = request->classes,
                            .pass = -1,
                            .kl_scale = 1.0};
    abar_status status = abar__curvature_configure(cv, request);
    if (status == ABAR_OK && ops->check_batch) status = ops->check_batch(cv);
    if (status == ABAR_OK) status = make_maps(cv, request);
    if (status == ABAR_OK && ops->check_maps) status = ops->check_maps(cv);
    if (status < 0) {
        abar__curvature_destroy(cv);
        return status;
    }
    count_memory(cv);
    *out = cv;
    return ABAR_OK;
}

abar_status abar__curvature_create(abar_device *dev, const abar__curvature_request *request, abar__curvature **out)
{
    *out = NULL;
    abar__curvature *cv;
    ABAR_TRY(prepare(dev, request, &cv));
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
    if (cv->state) abar_device_free(cv->dev, cv->state, cv->state_bytes);
    abar_device_free(cv->dev, cv->rows, cv->rows_bytes);
    abar__free(ctx, cv->maps, (size_t)cv->maps_capacity * sizeof *cv->maps);
    abar__free(ctx, cv->names, cv->names_bytes);
    abar__free(ctx, cv->method_config, cv->config_bytes);
    abar__free(ctx, cv, sizeof *cv);
}

abar__cadence abar__curvature_cadence(const abar__curvature *cv)
{
    return (abar__cadence){.stat_decay = cv->ops->one_batch ? 0.0 : cv->config.stat_decay,
                           .offset = cv->config.toffset,
                           .tinv = cv->config.tinv,
                           .spread = cv->config.refresh,
                           .numbers = cv->n_numbers,
                           .every_commit = cv->ops->every_commit,
                           .one_batch = cv->ops->one_batch,
                           .kl_clip = cv->kl_clip,
                           .base_lr = cv->base_lr};
}

size_t abar__curvature_state_bytes(const abar__curvature *cv) { return cv->state_bytes; }

size_t abar__curvature_bytes(const abar__curvature *cv)
{
    return sizeof *cv + abar__curvature_state_bytes(cv) + (size_t)cv->maps_capacity * sizeof *cv->maps + cv->names_bytes +
           cv->config_bytes + cv->rows_bytes;
}

abar_status abar__curvature_plan_bytes(abar_device *dev, const abar__curvature_request *request, int *maps, size_t *bytes)
{
    abar__curvature *cv;
    ABAR_TRY(prepare(dev, request, &cv));
    *bytes = abar__curvature_bytes(cv);
    *maps = cv->n_maps;
    abar__curvature_destroy(cv);
    return ABAR_OK;
}

/* ---- looking inside ----------------------------------------------------------------------------------------------- */

/* "curvature.LAYER.PART", with groups "curvature.LAYER#GROUP.PART", rows of v "curvature.LAYER@v.PART" or by head
 * "curvature.LAYER@v0.PART". Good until the next call. */
static const char *label(const abar__curvature *cv, const abar__map *map, const char *kind, const char *part)
{
    char group[24] = "", *text = cv->names + cv->names_bytes - cv->label_bytes;
    if (map->window.groups > 1) snprintf(group, sizeof group, "#%lld", (long long)map->group);
    snprintf(text, cv->label_bytes, "curvature.%s%s.%s%s", map->name, group, kind, part);
    return text;
}

static abar_status visit_map(abar__curvature *cv, abar__map *map, abar_state_visitor visit, void *user)
{
    const abar_dtype dtype = cv->dev->ops->dtype;
    const abar__plan *p = &map->plan;
    for (int i = 0; i < ABAR_PLAN_AVERAGES; i++) {
        const abar__running_average *a = &p->average[i];
        if (!a->name) continue;
        int64_t dim[2] = {a->square ? a->n + 1 : a->n, a->n}; /* a square with the triangle of its pending sum */
        abar_tensor t = abar_tensor_wrap(cv->dev, a->average, dtype, a->square ? 2 : 1, dim);
        ABAR_TRY(visit(user, label(cv, map, "average.", a->name), &t));
    }
    for (int i = 0; i < p->n_derived; i++) {
        const abar__derived_tensor *d = &p->derived[i];
        const abar_tensor t = abar_tensor_wrap(cv->dev, d->data, abar__derived_dtype(p, d, dtype), 1, &d->n);
        ABAR_TRY(visit(user, label(cv, map, "", d->name), &t));
    }
    abar_tensor counts = abar_tensor_wrap(NULL, map->state.count, ABAR_I64, 1, (int64_t[]){ABAR_COUNTS});
    abar_tensor reals = abar_tensor_wrap(NULL, map->state.real, ABAR_F64, 1, (int64_t[]){ABAR_REALS});
    ABAR_TRY(visit(user, label(cv, map, "", "counts"), &counts));
    return visit(user, label(cv, map, "", "numbers"), &reals);
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
                           .state_bytes = place_state(cv, &copy, NULL) + place_rows(cv, &copy, NULL),
                           .commits = copy.state.count[ABAR_COUNT_COMMITS],
                           .dropped = copy.state.count[ABAR_COUNT_DROPPED],
                           .raised = copy.state.count[ABAR_COUNT_RAISED],
                           .doubled = copy.state.count[ABAR_COUNT_DOUBLED],
                           .kept = copy.state.count[ABAR_COUNT_KEPT],
                           .damping = copy.state.real[ABAR_REAL_DAMPING],
                           .mean_square = copy.state.real[ABAR_REAL_MEAN_SQUARE],
                           .condition = copy.state.real[ABAR_REAL_CONDITION],
                           .cosine = copy.cosine,
                           .ratio = copy.ratio};
}

abar_status abar__curvature_mean_activation(const abar__curvature *cv, int i, double *out)
{
    if (i < 0 || i >= cv->n_maps)
        return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT, "mean activation: there is no map %d, they are numbered 0 to %d", i,
                          cv->n_maps - 1);
    const abar__map *map = &cv->maps[i];
    const char *name = map->plan.average[0].name;
    const int64_t commits = map->state.count[ABAR_COUNT_COMMITS];
    if (!name || strcmp(name, ABAR_MEAN_ACTIVATION) != 0)
        return abar__fail(cv->dev->ctx, ABAR_E_UNSUPPORTED, "mean activation of %s: %s keeps none for this layer", map->name,
                          cv->ops->method.name);
    if (abar__plan_is_calibrated(&map->plan) ? !map->state.count[ABAR_COUNT_CALIBRATED] : commits == 0)
        return abar__fail(cv->dev->ctx, ABAR_E_STATE, "mean activation of %s: no statistics yet, observe a step first",
                          map->name);
    const abar_tensor average = abar_tensor_wrap(cv->dev, map->plan.average[0].average, cv->dev->ops->dtype, 1, &map->d);
    const abar_tensor host = abar_tensor_wrap(NULL, out, ABAR_F64, 1, &map->d);
    ABAR_TRY(abar_tensor_copy(cv->dev->ctx, &host, &average));
    const double unbias =
        abar__plan_is_calibrated(&map->plan) ? 1.0 : 1.0 / (1.0 - pow(cv->config.stat_decay, (double)commits));
    for (int64_t k = 0; k < map->d; k++) out[k] *= unbias;
    return ABAR_OK;
}

abar_status abar__curvature_plan_maps(abar_device *dev, const abar__curvature_request *request, abar_map_visitor visit,
                                      void *user)
{
    abar__curvature *cv;
    ABAR_TRY(prepare(dev, request, &cv));
    for (int i = 0; i < cv->n_maps; i++) {
        const abar_map_info info = abar__curvature_map(cv, i);
        visit(user, &info);
    }
    abar__curvature_destroy(cv);
    return ABAR_OK;
}
