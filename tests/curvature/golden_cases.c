/* Reading the oracle's cases, and running them on a device. */
#include "golden_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cjson/cJSON.h>

#include "device/device_impl.h"
#include "io/io.h"
#include "tensor/tensor_impl.h"

#define LAYERS_MAX 32

typedef struct layer_data {
    const char *name;
    cJSON *info;
    bool bias, is_map;
    abar_tensor x, p, gw, gb, columns;                      /* over all steps, in the file */
    abar_tensor weight, bias_value, weight_grad, bias_grad; /* on the device */
} layer_data;

typedef struct bench {
    abar_context *ctx;
    abar_device *dev;
    abar__safetensors *shared, *file;
    cJSON *info; /* of the case */
    const char *name;
    layer_data layer[LAYERS_MAX];
    int n;
    abar_layout layout; /* that images are offered in */
    abar_dtype dtype;   /* that activations are offered in */
    bool rounded;       /* tensor cores round what they multiply */
} bench;

static void need(bench *b, abar_status status, const char *what)
{
    if (status < 0) fail_msg("%s: %s: %s", b->name ? b->name : "", what, abar_context_error(b->ctx));
}
#define NEED(b, expr) need(b, expr, #expr)

static cJSON *metadata(const abar__safetensors *file, const char *format, const char *name)
{
    char key[256];
    snprintf(key, sizeof key, format, name);
    const char *text = abar__safetensors_metadata(file, key);
    assert_non_null(text);
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    return json;
}

static bool find(const abar__safetensors *file, abar_tensor *out, const char *format, const char *a, const char *b)
{
    char key[256];
    snprintf(key, sizeof key, format, a, b);
    return abar__safetensors_find(file, key, out);
}

/* Step k of a tensor whose first dimension is the step; behind the last one they come round again. */
static abar_tensor step_of(const abar_tensor *t, int64_t k)
{
    abar_tensor s = *t;
    s.data = (char *)t->data + (size_t)(k % t->dim[0] * t->stride[0]) * abar_dtype_size(t->dtype);
    s.ndim = t->ndim - 1;
    memmove(s.dim, t->dim + 1, sizeof s.dim - sizeof *s.dim);
    memmove(s.stride, t->stride + 1, sizeof s.stride - sizeof *s.stride);
    return s;
}

/* A parameter or its gradient; convolution weights with channels last where the images are. */
static abar_tensor on_device(bench *b, const abar_tensor *shape)
{
    abar_tensor t = abar_tensor_wrap(b->dev, NULL, abar_device_dtype(b->dev), shape->ndim, shape->dim);
    if (shape->ndim == 4 && b->layout == ABAR_LAYOUT_NHWC)
        t = abar_tensor_wrap_channels_last(b->dev, NULL, abar_device_dtype(b->dev), shape->dim);
    NEED(b, abar_device_alloc(b->dev, abar_tensor_bytes(&t), &t.data));
    return t;
}

static void release(bench *b, abar_tensor *t)
{
    if (t->data) abar_device_free(b->dev, t->data, abar_tensor_bytes(t));
}

/* Row-major doubles in host memory that the caller frees: zeros, or what a tensor holds. */
static abar_tensor host_copy(bench *b, const abar_tensor *t, bool zero)
{
    abar_tensor copy = abar_tensor_wrap(NULL, NULL, ABAR_F64, t->ndim, t->dim);
    copy.data = calloc((size_t)abar_tensor_count(t) + 1, sizeof(double));
    assert_non_null(copy.data);
    if (!zero) NEED(b, abar_tensor_copy(b->ctx, &copy, t));
    return copy;
}

static void clear(bench *b, const abar_tensor *t)
{
    abar_tensor zeros = host_copy(b, t, true);
    NEED(b, abar_tensor_copy(b->ctx, t, &zeros));
    free(zeros.data);
}

/* ---- layers --------------------------------------------------------------------------------------------------------- */

static void open_layer(bench *b, layer_data *l, const char *name)
{
    l->name = name;
    l->info = metadata(b->shared, "layers.%s", name);
    l->is_map = strcmp(cJSON_GetObjectItem(l->info, "kind")->valuestring, "parameter") != 0;
    find(b->shared, &l->x, "layers.%s.%s", name, "x");
    find(b->shared, &l->p, "layers.%s.%s", name, "p");
    find(b->shared, &l->columns, "layers.%s.%s", name, "columns");
    assert_true(find(b->shared, &l->gw, "layers.%s.%s", name, "gw"));
    l->bias = find(b->shared, &l->gb, "layers.%s.%s", name, "gb");
    abar_tensor shape = step_of(&l->gw, 0);
    l->weight = on_device(b, &shape);
    l->weight_grad = on_device(b, &shape);
    abar_tensor start;
    if (cJSON_GetObjectItem(b->info, "update") && find(b->shared, &start, "layers.%s.%s", name, "w"))
        NEED(b, abar_tensor_copy(b->ctx, &l->weight, &start));
    if (!l->bias) return;
    shape = step_of(&l->gb, 0);
    l->bias_value = on_device(b, &shape);
    l->bias_grad = on_device(b, &shape);
    if (cJSON_GetObjectItem(b->info, "update") && find(b->shared, &start, "layers.%s.%s", name, "b"))
        NEED(b, abar_tensor_copy(b->ctx, &l->bias_value, &start));
}

static void close_layer(bench *b, layer_data *l)
{
    release(b, &l->weight);
    release(b, &l->weight_grad);
    release(b, &l->bias_value);
    release(b, &l->bias_grad);
    cJSON_Delete(l->info);
}

static void pair(const cJSON *info, const char *key, int64_t out[2])
{
    const cJSON *item = cJSON_GetObjectItem(info, key);
    for (int i = 0; i < 2; i++) out[i] = (int64_t)cJSON_GetArrayItem(item, i)->valuedouble;
}

static int64_t whole(const cJSON *info, const char *key) { return (int64_t)cJSON_GetObjectItem(info, key)->valuedouble; }

/* The shape of what comes is known before it does. */
static void set_attention(const layer_data *l, abar_layer *out)
{
    out->attention = (abar_attention){.heads = whole(l->info, "heads"),
                                      .value_row = whole(l->info, "value_row"),
                                      .value_rows = whole(l->info, "value_rows"),
                                      .side = whole(l->info, "side"),
                                      .shift = whole(l->info, "shift")};
    pair(l->info, "grid", out->attention.grid);
    out->input = step_of(&l->x, 0);
    out->input.data = NULL;
}

static abar_layer as_layer(const layer_data *l)
{
    abar_layer out = {.name = l->name,
                      .weight = l->weight,
                      .weight_grad = l->weight_grad,
                      .output_grad_scale = 1.0,
                      .window = abar_window_unit(),
                      .reads_network_input = cJSON_IsTrue(cJSON_GetObjectItem(l->info, "first"))};
    if (l->bias) {
        out.bias = l->bias_value;
        out.bias_grad = l->bias_grad;
    }
    if (strcmp(cJSON_GetObjectItem(l->info, "kind")->valuestring, "conv") == 0) {
        pair(l->info, "kernel", out.window.kernel);
        pair(l->info, "stride", out.window.stride);
        pair(l->info, "pad", out.window.pad);
        pair(l->info, "dilation", out.window.dilation);
        out.window.groups = whole(l->info, "groups");
    }
    if (l->columns.ndim) set_attention(l, &out);
    return out;
}

/* A copy of the tensor as the bench offers it: dtype and, for images, layout. */
static abar_tensor offered(bench *b, const abar_tensor *t, abar_dtype dtype)
{
    abar_tensor copy = abar_tensor_wrap(b->dev, NULL, dtype, t->ndim, t->dim);
    if (t->ndim == 4) copy.layout = b->layout;
    NEED(b, abar_device_alloc(b->dev, abar_tensor_bytes(&copy), &copy.data));
    NEED(b, abar_tensor_copy(b->ctx, &copy, t));
    return copy;
}

/* ---- a case ----------------------------------------------------------------------------------------------------------- */

static void *configured(bench *b, const abar_option *table, size_t size, const cJSON *options, int *used)
{
    void *config = calloc(1, size);
    abar_options_default(table, config);
    for (const cJSON *o = options ? options->child : NULL; o; o = o->next) {
        if (!abar_options_find(table, o->string)) continue;
        NEED(b, abar_options_set(b->ctx, table, config, o->string, o->valuestring));
        ++*used;
    }
    return config;
}

static double number(const cJSON *json, const char *key, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItem(json, key);
    return item ? item->valuedouble : otherwise;
}

static void set_real(bench *b, const abar_option *table, void *config, const char *name, double value)
{
    char text[64];
    snprintf(text, sizeof text, "%.17g", value);
    NEED(b, abar_options_set(b->ctx, table, config, name, text));
}

/* What an update says in keys of its own, beside rate and decay. */
static void set_own_keys(bench *b, const abar_option *table, void *config, const cJSON *update)
{
    static const char *const flags[][3] = {
        {"nesterov", "nesterov", "true"}, {"decoupled", "decay", "decoupled"}, {"inside", "decay", "inside"}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (cJSON_IsTrue(cJSON_GetObjectItem(update, flags[i][0])))
            NEED(b, abar_options_set(b->ctx, table, config, flags[i][1], flags[i][2]));
    const cJSON *betas = cJSON_GetObjectItem(update, "betas");
    if (!betas) return;
    set_real(b, table, config, "beta1", cJSON_GetArrayItem(betas, 0)->valuedouble);
    set_real(b, table, config, "beta2", cJSON_GetArrayItem(betas, 1)->valuedouble);
}

/* Without "update": plain gradient descent at rate 1. */
static void *rule_config(bench *b, const cJSON *update, const char **name, double *lr, double *decay)
{
    const cJSON *rule = cJSON_GetObjectItem(update, "rule"), *options = cJSON_GetObjectItem(update, "options");
    *name = rule ? rule->valuestring : "sgd";
    const abar_rule *r = abar_rule_find(*name);
    assert_non_null(r);
    int used = 0;
    void *config = configured(b, r->options, r->config_size, options, &used);
    assert_int_equal(used, options ? cJSON_GetArraySize(options) : 0); /* no flag is unknown */
    *lr = number(update, "lr", 1.0);
    *decay = number(update, "weight_decay", 0.0);
    if (strcmp(*name, "sgd") == 0) set_real(b, r->options, config, "momentum", number(update, "momentum", 0.0));
    set_own_keys(b, r->options, config, update);
    return config;
}

static abar_optim *make_optimizer(bench *b, double *lr)
{
    const abar_method *method = abar_method_find(cJSON_GetObjectItem(b->info, "method")->valuestring);
    assert_non_null(method);
    const cJSON *options = cJSON_GetObjectItem(b->info, "options"), *update = cJSON_GetObjectItem(b->info, "update");
    int used = 0;
    void *common = configured(b, abar_curvature_options(), abar_curvature_config_size(), options, &used);
    void *own = configured(b, method->options, method->config_size, options, &used);
    assert_int_equal(used, options ? cJSON_GetArraySize(options) : 0); /* no flag is unknown */
    if (cJSON_GetObjectItem(b->info, "diagonal_damping")) {
        char text[32];
        snprintf(text, sizeof text, "%.17g", number(b->info, "diagonal_damping", 1.0));
        NEED(b, abar_options_set(b->ctx, method->options, own, "diagonal-damping", text));
    }
    const char *rule;
    double decay;
    void *rule_settings = rule_config(b, update, &rule, lr, &decay);
    abar_optim_param params[2 * LAYERS_MAX];
    abar_layer layers[LAYERS_MAX];
    char names[2 * LAYERS_MAX][64];
    int n = 0, maps = 0;
    double examples = 0.0;
    for (int i = 0; i < b->n; i++) {
        const layer_data *l = &b->layer[i];
        if (l->is_map) examples = fmax(examples, (double)l->x.dim[1]);
        snprintf(names[n], sizeof *names, "%s.weight", l->name);
        params[n] = (abar_optim_param){names[n], l->weight, l->weight_grad, 1.0, decay};
        n++;
        if (l->bias) {
            snprintf(names[n], sizeof *names, "%s.bias", l->name);
            params[n] = (abar_optim_param){names[n], l->bias_value, l->bias_grad, 1.0, decay};
            n++;
        }
        if (l->is_map) layers[maps++] = as_layer(l);
    }
    abar_optim *optim;
    NEED(b, abar_optim_create(b->dev,
                              &(abar_optim_config){.size = sizeof(abar_optim_config),
                                                   .rule = rule,
                                                   .rule_config = rule_settings,
                                                   .method = method->name,
                                                   .method_config = own,
                                                   .curvature = common,
                                                   .params = params,
                                                   .n_params = n,
                                                   .layers = layers,
                                                   .n_layers = maps,
                                                   .base_lr = number(b->info, "lr", 0.1),
                                                   .examples = (int64_t)number(b->info, "examples", examples)},
                              &optim));
    free(common);
    free(own);
    free(rule_settings);
    return optim;
}

/* poison: {"layer", "tensor", "step", "index", "value"}, or a list of them. */
static void poison_one(const cJSON *p, const layer_data *l, const char *tensor, int64_t k, const abar_tensor *dense)
{
    if (strcmp(cJSON_GetObjectItem(p, "layer")->valuestring, l->name) != 0) return;
    if (strcmp(cJSON_GetObjectItem(p, "tensor")->valuestring, tensor) != 0 || (int64_t)number(p, "step", -1) != k) return;
    double value = strcmp(cJSON_GetObjectItem(p, "value")->valuestring, "nan") == 0 ? NAN : INFINITY;
    abar__tensor_store(dense, (int64_t)number(p, "index", 0), value);
}

static void poison(const bench *b, const layer_data *l, const char *tensor, int64_t k, const abar_tensor *dense)
{
    const cJSON *p = cJSON_GetObjectItem(b->info, "poison");
    if (!p) return;
    if (!cJSON_IsArray(p)) {
        poison_one(p, l, tensor, k, dense);
        return;
    }
    for (const cJSON *one = p->child; one; one = one->next) poison_one(one, l, tensor, k, dense);
}

/* Step k of x or p as doubles the test owns, poisoned where the case says so. */
static abar_tensor own_step(const bench *b, const layer_data *l, const char *tensor, const abar_tensor *all, int64_t k)
{
    abar_tensor s = step_of(all, k);
    abar_tensor copy = abar_tensor_wrap(NULL, calloc((size_t)abar_tensor_count(&s), 8), ABAR_F64, s.ndim, s.dim);
    abar__tensor_copy_host(&copy, &s);
    poison(b, l, tensor, k, &copy);
    return copy;
}

static abar_tensor examples(const abar_tensor *t, int64_t first, int64_t count)
{
    abar_tensor part = *t;
    part.data = (double *)t->data + first * t->stride[0];
    part.dim[0] = count;
    return part;
}

static void observe(bench *b, abar_optim *optim, int index, const layer_data *l, int64_t k)
{
    abar_tensor x = own_step(b, l, "x", &l->x, k), p = own_step(b, l, "p", &l->p, k), columns = {0};
    if (l->columns.ndim) columns = own_step(b, l, "columns", &l->columns, k);
    const cJSON *parts = cJSON_GetObjectItem(b->info, "parts"), *scales = cJSON_GetObjectItem(b->info, "scales");
    int n = parts ? cJSON_GetArraySize(parts) : 1;
    int64_t first = 0;
    for (int i = 0; i < n; i++) {
        int64_t count = parts ? (int64_t)cJSON_GetArrayItem(parts, i)->valuedouble : x.dim[0];
        abar_tensor px = examples(&x, first, count), pp = examples(&p, first, count);
        abar_layer layer = as_layer(l);
        layer.input = offered(b, &px, b->dtype);
        layer.output_grad = offered(b, &pp, b->dtype);
        if (columns.ndim) {
            abar_tensor pc = examples(&columns, first, count);
            layer.attention.columns = offered(b, &pc, abar_device_dtype(b->dev));
        }
        layer.output_grad_scale = scales ? cJSON_GetArrayItem(scales, i)->valuedouble : 1.0;
        NEED(b, abar_optim_observe(optim, index, &layer));
        release(b, &layer.input);
        release(b, &layer.output_grad);
        release(b, &layer.attention.columns);
        first += count;
    }
    free(columns.data);
    free(x.data);
    free(p.data);
}

static void show_input(bench *b, abar_optim *optim, int map, const abar_tensor *t)
{
    abar_tensor input = offered(b, t, b->dtype);
    NEED(b, abar_optim_calibrate(optim, map, &input));
    release(b, &input);
}

/* The training set of a map is inputs of its own, or those of the steps that the case lists. */
static void calibrate(bench *b, abar_optim *optim)
{
    const cJSON *steps = cJSON_GetObjectItem(b->info, "calibrate");
    int map = 0;
    for (int i = 0; i < b->n; i++) {
        const layer_data *l = &b->layer[i];
        if (!l->is_map) continue;
        for (int part = 0; !steps && part < 2 && abar_optim_wants_calibration(optim, map); part++) {
            abar_tensor t;
            assert_true(find(b->shared, &t, "layers.%s.%s", l->name, part ? "calib1" : "calib0"));
            show_input(b, optim, map, &t);
        }
        for (const cJSON *k = steps ? steps->child : NULL; k; k = k->next) {
            const abar_tensor t = step_of(&l->x, (int64_t)k->valuedouble);
            assert_true(abar_optim_wants_calibration(optim, map));
            show_input(b, optim, map, &t);
        }
        map++;
    }
    NEED(b, abar_optim_end_calibration(optim));
}

static bool listed(const cJSON *list, int64_t k)
{
    for (const cJSON *i = list ? list->child : NULL; i; i = i->next)
        if ((int64_t)i->valuedouble == k) return true;
    return false;
}

static void load_gradient(bench *b, const layer_data *l, const char *tensor, const abar_tensor *all, int64_t k,
                          const abar_tensor *to)
{
    abar_tensor g = own_step(b, l, tensor, all, k);
    if (listed(cJSON_GetObjectItem(b->info, "zero_grad"), k)) memset(g.data, 0, (size_t)abar_tensor_count(&g) * 8);
    NEED(b, abar_tensor_copy(b->ctx, to, &g));
    free(g.data);
}

/* |found - expected| / |expected|, found being sign times the tensor. */
static double error_of(const abar_tensor *expected, double sign, const abar_tensor *now)
{
    double off = 0.0, size = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(expected); i++) {
        double e = abar__tensor_load(expected, i);
        double found = sign * abar__tensor_load(now, i);
        if (!isfinite(found)) return INFINITY;
        off += (found - e) * (found - e);
        size += e * e;
    }
    return size > 0.0 ? sqrt(off / size) : sqrt(off);
}

typedef struct tolerance {
    double fixed; /* double precision */
    double times; /* of the case's own float32 figure, for float32 */
    double at_least;
    double rounded; /* where gradients and inverses are rounded to 11 bits before they are multiplied, 5e-4 each, and partly
                       cancel */
} tolerance;

static void check_tensor(bench *b, const char *layer, const char *part, int64_t k, double sign, const abar_tensor *now,
                         double allowed)
{
    char key[256];
    abar_tensor expected;
    snprintf(key, sizeof key, "%s.%s.%s", b->name, layer, part);
    if (!abar__safetensors_find(b->file, key, &expected)) fail_msg("%s is not in the golden file", key);
    if (k >= 0) expected = step_of(&expected, k);
    abar_tensor host = host_copy(b, now, false);
    double error = error_of(&expected, sign, &host);
    free(host.data);
    if (!(error <= allowed)) fail_msg("%s step %d: off by %.2e, allowed %.2e", key, (int)k, error, allowed);
}

static void run_steps(bench *b, abar_optim *optim, double lr, double allowed)
{
    const bool updates = cJSON_GetObjectItem(b->info, "update") != NULL;
    const int64_t steps = (int64_t)number(b->info, "steps", 0);
    for (int64_t k = 0; k < steps; k++) {
        int map = 0;
        for (int i = 0; i < b->n; i++) {
            layer_data *l = &b->layer[i];
            load_gradient(b, l, "gw", &l->gw, k, &l->weight_grad);
            if (l->bias) load_gradient(b, l, "gb", &l->gb, k, &l->bias_grad);
            if (!updates) { /* what is taken off a zero is exact */
                clear(b, &l->weight);
                if (l->bias) clear(b, &l->bias_value);
            }
            if (l->is_map) observe(b, optim, map++, l, k);
        }
        abar_step_config step = {.size = sizeof step, .lr = lr, .clip = number(b->info, "clip", 0.0)};
        abar_step_report report = {.size = sizeof report};
        NEED(b, abar_optim_step(optim, &step, &report));
        if (abar_optim_wants_pass(optim)) { /* it sees the next batch */
            for (int i = 0, at = 0; i < b->n; i++)
                if (b->layer[i].is_map) observe(b, optim, at++, &b->layer[i], k + 1);
            NEED(b, abar_optim_end_pass(optim, true, 1.0, NULL));
        }
        if (report.skipped != listed(cJSON_GetObjectItem(b->info, "skipped"), k))
            fail_msg("%s: step %d skipped?", b->name, (int)k);
        for (int i = 0; i < b->n && !updates; i++) {
            layer_data *l = &b->layer[i];
            check_tensor(b, l->name, "w", k, -1.0, &l->weight, allowed); /* the weight is 0 - G^ */
            if (l->bias) check_tensor(b, l->name, "b", k, -1.0, &l->bias_value, allowed);
        }
    }
    for (int i = 0; i < b->n && updates; i++) {
        check_tensor(b, b->layer[i].name, "w_end", -1, 1.0, &b->layer[i].weight, allowed);
        if (b->layer[i].bias) check_tensor(b, b->layer[i].name, "b_end", -1, 1.0, &b->layer[i].bias_value, allowed);
    }
}

/* Linked maps tell the same events: they count once. */
static void check_events(bench *b, abar_optim *optim, bool exact_raises)
{
    int64_t dropped = 0, raised = 0;
    char last[64] = "";
    for (int i = 0; i < abar_optim_map_count(optim); i++) {
        abar_map_info m = *abar_optim_map(optim, i);
        char layer[64];
        snprintf(layer, sizeof layer, "%.*s", (int)strcspn(m.layer, "@"), m.layer);
        if (strcmp(layer, last) == 0 && strchr(m.layer, '@')) continue;
        strcpy(last, layer);
        dropped += m.dropped;
        raised += m.raised;
    }
    assert_int_equal(dropped, (int64_t)number(b->info, "dropped", 0));
    if (exact_raises) assert_int_equal(raised, (int64_t)number(b->info, "raised", 0));
}

/* Gradients times dense inverses; on a device that rounds for its tensor cores that is what is left of them. */
static bool has_inverse(const bench *b)
{
    static const char *const dense[] = {"foof", "kfac", "lngd"};
    for (int i = 0; i < 3; i++)
        if (strcmp(cJSON_GetObjectItem(b->info, "method")->valuestring, dense[i]) == 0) return true;
    return false;
}

static void run_case(bench *b, const char *name, const tolerance *t)
{
    b->name = name;
    b->info = metadata(b->file, "cases.%s", name);
    bool is_double = abar_device_dtype(b->dev) == ABAR_F64;
    bool ladder = strcmp(name, "ladder") == 0; /* inputs of 2^30: double precision only */
    const cJSON *precision = cJSON_GetObjectItem(b->info, "precision");
    const bool fits = !precision || strcmp(precision->valuestring, is_double ? "double" : "single") == 0;
    if (fits && (is_double || !ladder)) {
        double allowed =
            is_double ? (ladder ? 1e-6 : t->fixed) : fmax(t->times * number(b->info, "float32", 1e-6), t->at_least);
        if (b->rounded && has_inverse(b)) allowed = fmax(allowed, t->rounded);
        const cJSON *layers = cJSON_GetObjectItem(b->info, "layers");
        b->n = cJSON_GetArraySize(layers);
        assert_true(b->n <= LAYERS_MAX);
        memset(b->layer, 0, sizeof b->layer);
        for (int i = 0; i < b->n; i++) open_layer(b, &b->layer[i], cJSON_GetArrayItem(layers, i)->valuestring);
        double lr;
        abar_optim *optim = make_optimizer(b, &lr);
        calibrate(b, optim);
        run_steps(b, optim, lr, allowed);
        check_events(b, optim, is_double);
        abar_optim_destroy(optim);
        for (int i = 0; i < b->n; i++) close_layer(b, &b->layer[i]);
    }
    cJSON_Delete(b->info);
}

void golden_run_method(const char *device, const abar_device_config *config, const char *method, abar_layout layout,
                       abar_dtype dtype)
{
    const bool attention = strcmp(method, "attention") == 0;
    const char *layers = attention ? "attention_layers" : "layers";
    const tolerance t = {.fixed = 1e-9, .times = 5.0, .at_least = 1e-4, .rounded = 1e-2};
    bench b = {.layout = layout, .dtype = dtype, .rounded = config && config->precision > ABAR_PRECISION_FP32};
    assert_int_equal(abar_context_create(NULL, &b.ctx), ABAR_OK);
    NEED(&b, abar_device_open(b.ctx, device, config, &b.dev));
    char path[512];
    snprintf(path, sizeof path, "%s/golden/curvature_%s.safetensors", ABAR_TEST_DATA, layers);
    NEED(&b, abar__safetensors_open(b.ctx, path, &b.shared));
    snprintf(path, sizeof path, "%s/golden/curvature_%s.safetensors", ABAR_TEST_DATA, method);
    NEED(&b, abar__safetensors_open(b.ctx, path, &b.file));
    cJSON *cases = metadata(b.file, "%s", "cases");
    assert_true(cJSON_GetArraySize(cases) > 10);
    for (const cJSON *c = cases->child; c; c = c->next) run_case(&b, c->valuestring, &t);
    cJSON_Delete(cases);
    abar__safetensors_close(b.file);
    abar__safetensors_close(b.shared);
    abar_device_close(b.dev);
    assert_int_equal(abar_context_memory(b.ctx).now, 0);
    abar_context_destroy(b.ctx);
}
