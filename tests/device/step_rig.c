/* The rig: drawing, laying out, stepping, comparing. */
#include "step_rig.h"

#include <math.h>

void rig_need(const rig *r, abar_status status, const char *what)
{
    if (status < 0) fail_msg("%s: %s", what, abar_context_error(r->ctx));
}

/* Exact in float and bfloat16. */
static double draw(rig *r)
{
    r->noise = r->noise * 6364136223846793005u + 1442695040888963407u;
    return ((double)((r->noise >> 33) % 255) - 127.0) / 128.0;
}

static void fill(rig *r, double *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) values[i] = draw(r);
}

/* ---- between host and device -------------------------------------------------------------------------------------------- */

static void copy(const rig *r, const abar_tensor *to, const abar_tensor *from)
{
    NEED(r, abar_tensor_copy(r->ctx, to, from));
    NEED(r, abar_device_wait(to->dev ? to->dev : from->dev));
}

static void put(const rig *r, const abar_tensor *to, double *from)
{
    const abar_tensor host = abar_tensor_wrap(NULL, from, ABAR_F64, to->ndim, to->dim);
    copy(r, to, &host);
}

void rig_get(const rig *r, double *to, const abar_tensor *from)
{
    const abar_tensor host = abar_tensor_wrap(NULL, to, ABAR_F64, from->ndim, from->dim);
    copy(r, &host, from);
}

void rig_read(const rig *r, void *to, abar_device *dev, const void *from, size_t bytes)
{
    const int64_t n = (int64_t)bytes;
    const abar_tensor host = abar_tensor_wrap(NULL, to, ABAR_U8, 1, &n);
    const abar_tensor there = abar_tensor_wrap(dev, (void *)(uintptr_t)from, ABAR_U8, 1, &n);
    copy(r, &host, &there);
}

/* ---- the network --------------------------------------------------------------------------------------------------------- */

static double *host_numbers(int64_t n)
{
    double *numbers = calloc((size_t)n, sizeof *numbers);
    assert_non_null(numbers);
    return numbers;
}

static int add_param(rig *r, const char *layer, const char *kind, bool of_layer, int ndim, const int64_t *dim)
{
    rig_param *p = &r->param[r->n_params];
    *p = (rig_param){.ndim = ndim, .count = 1, .lr_scale = 1.0 + 0.1 * r->n_params};
    p->has_shadow = of_layer;
    snprintf(p->name, sizeof p->name, "%s.%s", layer, kind);
    memcpy(p->dim, dim, (size_t)ndim * sizeof *dim);
    for (int i = 0; i < ndim; i++) p->count *= dim[i];
    p->start = host_numbers(p->count);
    p->grad = host_numbers(p->count);
    fill(r, p->start, p->count);
    return r->n_params++;
}

static abar_tensor host_tensor(int ndim, const int64_t *dim)
{
    abar_tensor t = abar_tensor_wrap(NULL, NULL, ABAR_F64, ndim, dim);
    t.data = host_numbers(abar_tensor_count(&t));
    return t;
}

/* image 0: a linear layer. */
static void add_layer(rig *r, int index, const char *name, int64_t in, int64_t out, int64_t image, abar_window w, bool bias)
{
    rig_layer *l = &r->layer[index];
    *l = (rig_layer){.name = name, .window = w, .bias = -1};
    const int64_t dim[4] = {out, in / w.groups, w.kernel[0], w.kernel[1]};
    l->weight = add_param(r, name, "weight", true, image ? 4 : 2, dim);
    if (bias) l->bias = add_param(r, name, "bias", true, 1, dim);
    const int64_t side = image ? abar_window_out(&w, 0, image) : 0;
    l->x = host_tensor(image ? 4 : 2, (int64_t[]){RIG_EXAMPLES, in, image, image});
    l->p = host_tensor(image ? 4 : 2, (int64_t[]){RIG_EXAMPLES, out, side, side});
}

static void add_network(rig *r)
{
    add_layer(r, 0, "fc", 5, 4, 0, abar_window_unit(), true);
    add_layer(r, 1, "conv", 3, 6, 4, (abar_window){{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}, true);
    add_layer(r, 2, "grouped", 4, 4, 3, (abar_window){{2, 2}, {1, 1}, {0, 0}, {1, 1}, 2}, false);
    add_layer(r, 3, "wide", 16, 16, 5, (abar_window){{3, 3}, {2, 2}, {1, 1}, {1, 1}, 1}, false);
    add_param(r, "norm", "weight", false, 1, (int64_t[]){37});
    add_param(r, "norm", "bias", false, 1, (int64_t[]){1});
}

/* ---- a device's copy of it ------------------------------------------------------------------------------------------------
 */

static void *alloc(const rig *r, abar_device *dev, size_t bytes)
{
    void *memory;
    NEED(r, abar_device_alloc(dev, bytes, &memory));
    return memory;
}

/* As the device's networks have their weights, */
static abar_tensor param_tensor(const rig *r, abar_device *dev, const rig_param *p)
{
    const abar_dtype dtype = dev->ops->dtype;
    abar_tensor t = abar_tensor_wrap(dev, NULL, dtype, p->ndim, p->dim);
    if (p->ndim == 4 && dev->ops->channels_last) t = abar_tensor_wrap_channels_last(dev, NULL, dtype, p->dim);
    t.data = alloc(r, dev, abar_tensor_bytes(&t));
    return t;
}

/* and their activations. */
static abar_tensor batch_tensor(const rig *r, abar_device *dev, const abar_tensor *host)
{
    abar_tensor t = abar_tensor_wrap(dev, NULL, dev->ops->dtype, host->ndim, host->dim);
    if (t.ndim == 4 && dev->ops->channels_last) t.layout = ABAR_LAYOUT_NHWC;
    t.data = alloc(r, dev, abar_tensor_bytes(&t));
    return t;
}

static size_t shadow_bytes(const rig_param *p) { return (size_t)p->count * abar_dtype_size(ABAR_BF16); }

static bool needs_more(const rig *r) { return abar_rule_extra(abar_rule_find(r->config.rule)) != ABAR_EXTRA_NONE; }

static void open_side(rig *r, rig_side *s, const char *device)
{
    const abar_device_config config = cuda_config(ABAR_PRECISION_FP32, true);
    NEED(r, abar_device_open(r->ctx, device, &config, &s->dev));
    for (int i = 0; i < r->n_params; i++) {
        const rig_param *p = &r->param[i];
        s->value[i] = param_tensor(r, s->dev, p);
        s->grad[i] = param_tensor(r, s->dev, p);
        if (needs_more(r)) s->extra[i] = param_tensor(r, s->dev, p);
        put(r, &s->value[i], p->start);
        if (s->dev->ops->stream && p->has_shadow) s->shadow[i] = alloc(r, s->dev, shadow_bytes(p));
    }
    for (int i = 0; i < RIG_LAYERS; i++) {
        s->x[i] = batch_tensor(r, s->dev, &r->layer[i].x);
        s->p[i] = batch_tensor(r, s->dev, &r->layer[i].p);
    }
    rig_make_optim(r, s);
}

static void release(abar_tensor *t) { abar_device_free(t->dev, t->data, abar_tensor_bytes(t)); }

static void close_side(const rig *r, rig_side *s)
{
    abar_optim_destroy(s->optim);
    for (int i = 0; i < r->n_params; i++) {
        release(&s->value[i]);
        release(&s->grad[i]);
        if (needs_more(r)) release(&s->extra[i]);
        abar_device_free(s->dev, s->shadow[i], shadow_bytes(&r->param[i]));
    }
    for (int i = 0; i < RIG_LAYERS; i++) {
        release(&s->x[i]);
        release(&s->p[i]);
    }
    abar_device_close(s->dev);
}

/* ---- the optimizer --------------------------------------------------------------------------------------------------------
 */

typedef struct settings {
    void *rule, *common, *method; /* configs */
} settings;

/* word: "name=value"; tables that have no such name are left alone. */
static void set_option(const rig *r, const abar_option *table, void *config, const char *word)
{
    char name[32];
    const char *value = strchr(word, '=') + 1;
    snprintf(name, sizeof name, "%.*s", (int)(value - 1 - word), word);
    if (abar_options_find(table, name)) NEED(r, abar_options_set(r->ctx, table, config, name, value));
}

static void *configured(const rig *r, const abar_option *table, size_t size, const char *const (*words)[2], int n)
{
    void *config = calloc(1, size);
    assert_non_null(config);
    abar_options_default(table, config);
    for (int i = 0; i < n; i++)
        if (words[i][1] && abar_options_find(table, words[i][0]))
            NEED(r, abar_options_set(r->ctx, table, config, words[i][0], words[i][1]));
    for (int i = 0; i < 8 && r->config.options[i]; i++) set_option(r, table, config, r->config.options[i]);
    return config;
}

static settings configure(const rig *r)
{
    const rig_config *c = &r->config;
    char momentum[32], damping[32], diagonal[32], tcov[32], tinv[32], kl_clip[32];
    snprintf(momentum, sizeof momentum, "%.17g", c->momentum);
    snprintf(damping, sizeof damping, "%.17g", c->rho);
    snprintf(diagonal, sizeof diagonal, "%.17g", c->diagonal);
    snprintf(kl_clip, sizeof kl_clip, "%.17g", c->kl_clip);
    snprintf(tcov, sizeof tcov, "%d", c->method ? (int)c->tcov : 1);
    snprintf(tinv, sizeof tinv, "%d", c->method ? (int)c->tinv : 1);
    const char *const words[][2] = {{"momentum", momentum},
                                    {"nesterov", c->nesterov ? "true" : "false"},
                                    {"decay", c->decoupled ? "decoupled" : "coupled"},
                                    {"ns-precision", "fp32"},
                                    {"normuon", c->normuon ? "true" : "false"},
                                    {"muon-take", c->take},
                                    {"aux-lr", "0.1"}, /* base_lr: AdamW's rate is that of the others */
                                    {"damping", c->rho > 0.0 ? damping : "adaptive"},
                                    {"damping-form", c->coupled ? "coupled" : "decoupled"},
                                    {"tcov", tcov},
                                    {"tinv", tinv},
                                    {"refresh", c->spread ? "spread" : "together"},
                                    {"kl-clip", kl_clip},
                                    {"kfac", c->expand ? "expand" : "reduce"},
                                    {"kfac-inverse", c->eigen ? "eigen" : "cholesky"},
                                    {"nu1", "0.001"},
                                    {"nu2", "10"},
                                    {"diagonal-damping", c->diagonal > 0.0 ? diagonal : NULL}};
    const int n = (int)(sizeof words / sizeof *words);
    const abar_rule *rule = abar_rule_find(c->rule);
    const abar_method *method = c->method ? abar_method_find(c->method) : NULL;
    return (settings){configured(r, rule->options, rule->config_size, words, n),
                      configured(r, abar_curvature_options(), abar_curvature_config_size(), words, n),
                      method ? configured(r, method->options, method->config_size, words, n) : NULL};
}

/* The method's settings of every second layer; NULL: there are none. */
static void *configure_apart(const rig *r, const void *config)
{
    if (!r->config.apart[0]) return NULL;
    const abar_method *method = abar_method_find(r->config.method);
    void *own = malloc(method->config_size);
    assert_non_null(own);
    memcpy(own, config, method->config_size);
    for (int i = 0; i < 4 && r->config.apart[i]; i++) set_option(r, method->options, own, r->config.apart[i]);
    return own;
}

static abar_layer layer_of(const rig *r, const rig_side *s, int index)
{
    const rig_layer *l = &r->layer[index];
    abar_layer layer = {.name = l->name,
                        .weight = s->value[l->weight],
                        .weight_grad = s->grad[l->weight],
                        .output_grad_scale = 1.0,
                        .window = l->window};
    if (l->bias >= 0) {
        layer.bias = s->value[l->bias];
        layer.bias_grad = s->grad[l->bias];
    }
    return layer;
}

void rig_make_optim(rig *r, rig_side *s)
{
    const settings set = configure(r);
    void *own = configure_apart(r, set.method);
    const void *method_configs[RIG_LAYERS] = {NULL};
    for (int i = 1; i < RIG_LAYERS; i += 2) method_configs[i] = own;
    abar_optim_param params[RIG_PARAMS];
    abar_layer layers[RIG_LAYERS];
    void *extra[RIG_PARAMS];
    for (int i = 0; i < r->n_params; i++) extra[i] = s->extra[i].data;
    for (int i = 0; i < r->n_params; i++)
        params[i] = (abar_optim_param){r->param[i].name, s->value[i], s->grad[i], r->param[i].lr_scale, r->config.weight_decay};
    for (int i = 0; i < RIG_LAYERS; i++) layers[i] = layer_of(r, s, i);
    NEED(r, abar_optim_create(s->dev,
                              &(abar_optim_config){.size = sizeof(abar_optim_config),
                                                   .rule = r->config.rule,
                                                   .rule_config = set.rule,
                                                   .method = r->config.method,
                                                   .method_config = set.method,
                                                   .curvature = set.common,
                                                   .params = params,
                                                   .n_params = r->n_params,
                                                   .layers = layers,
                                                   .n_layers = RIG_LAYERS,
                                                   .base_lr = 0.1,
                                                   .shadows = s->dev->ops->stream ? s->shadow : NULL,
                                                   .extra_grads = needs_more(r) ? extra : NULL,
                                                   .loss_terms = 3,
                                                   .examples = RIG_EXAMPLES + 2, /* at most: batches may be smaller */
                                                   .classes = 3,
                                                   .seed = 7,
                                                   .method_configs = own ? method_configs : NULL},
                              &s->optim));
    assert_true(s->dev->ops->step->bytes(s->optim->step) > 0);
    free(set.rule);
    free(set.common);
    free(set.method);
    free(own);
}

void rig_set_param(const rig *r, rig_side *s, int i, bool with_grad)
{
    NEED(r, abar_optim_set_param(s->optim, i, s->value[i].data, with_grad ? s->grad[i].data : NULL, r->param[i].lr_scale,
                                 r->config.weight_decay));
}

/* ---- opening, drawing, closing ---------------------------------------------------------------------------------------- */

void rig_open(rig *r, const char *device, const rig_config *config)
{
    *r = (rig){.config = *config, .noise = 12345};
    assert_int_equal(abar_context_create(NULL, &r->ctx), ABAR_OK);
    add_network(r);
    open_side(r, &r->ref, "ref");
    open_side(r, &r->side, device);
    rig_give_rates(r, 0, RIG_STEPS);
}

static void load(const rig *r, const rig_side *s)
{
    for (int i = 0; i < RIG_LAYERS; i++) {
        put(r, &s->x[i], r->layer[i].x.data);
        put(r, &s->p[i], r->layer[i].p.data);
    }
    for (int i = 0; i < r->n_params; i++) put(r, &s->grad[i], r->param[i].grad);
    for (int i = 0; needs_more(r) && i < r->n_params; i++) {
        const rig_param *p = &r->param[i];
        double *finite = host_numbers(p->count);
        for (int64_t e = 0; e < p->count; e++) finite[e] = isfinite(p->grad[e]) ? p->grad[e] : 0.0;
        if (r->config.far_step && r->k == r->config.far_step && i == 0) /* ref has larger numbers */
            finite[0] = s == &r->ref ? NAN : 1e25;
        put(r, &s->extra[i], finite);
        free(finite);
    }
}

void rig_draw(rig *r)
{
    for (int i = 0; i < RIG_LAYERS; i++) {
        rig_layer *l = &r->layer[i];
        fill(r, l->x.data, abar_tensor_count(&l->x));
        fill(r, l->p.data, abar_tensor_count(&l->p));
        if (r->config.bad_input_step && r->k == r->config.bad_input_step && i == r->config.bad_layer)
            ((double *)l->x.data)[abar_tensor_count(&l->x) / 2] = NAN;
    }
    for (int i = 0; i < r->n_params; i++) {
        rig_param *p = &r->param[i];
        fill(r, p->grad, p->count);
        if (r->config.bad_step && r->k == r->config.bad_step && i == 2) p->grad[7] = NAN;
    }
    load(r, &r->ref);
    load(r, &r->side);
}

void rig_close(rig *r)
{
    close_side(r, &r->ref);
    close_side(r, &r->side);
    for (int i = 0; i < r->n_params; i++) {
        free(r->param[i].start);
        free(r->param[i].grad);
    }
    for (int i = 0; i < RIG_LAYERS; i++) {
        free(r->layer[i].x.data);
        free(r->layer[i].p.data);
    }
    assert_int_equal(abar_context_memory(r->ctx).now, 0);
    abar_context_destroy(r->ctx);
}

/* ---- stepping -------------------------------------------------------------------------------------------------------------
 */

double rig_rate(const rig *r, int64_t k) { return r->config.lr * (1.0 - (double)k / (2.0 * RIG_STEPS)); }

void rig_give_rates(rig *r, int64_t first, int64_t end)
{
    double lr[RIG_STEPS];
    for (int64_t k = first; k < end; k++) lr[k - first] = rig_rate(r, k);
    NEED(r, abar_optim_rates(r->side.optim, first, lr, end - first));
}

static abar_tensor examples(const abar_tensor *t, int64_t first, int64_t count)
{
    const int64_t each = abar_tensor_count(t) / t->dim[0];
    abar_tensor part = *t;
    part.data = (char *)t->data + (size_t)(first * each) * abar_dtype_size(t->dtype);
    part.dim[0] = count;
    return part;
}

static void observe(const rig *r, rig_side *s)
{
    const int64_t parts = r->config.parts ? r->config.parts : 1;
    for (int i = 0; abar_optim_observes(s->optim) && i < RIG_LAYERS; i++)
        for (int64_t part = 0; part < parts; part++) {
            const int64_t first = RIG_EXAMPLES * part / parts, count = RIG_EXAMPLES * (part + 1) / parts - first;
            abar_layer layer = layer_of(r, s, i);
            layer.input = examples(&s->x[i], first, count);
            layer.output_grad = examples(&s->p[i], first, count);
            NEED(r, abar_optim_observe(s->optim, i, &layer));
        }
}

static abar_step_config step_config(const rig *r)
{
    return (abar_step_config){
        .size = sizeof(abar_step_config), .lr = rig_rate(r, r->k), .clip = r->config.clip, .grad_scale = r->config.grad_scale};
}

/* The further passes of the step that comes next, whose gradients are there already; rows of single examples are those of the
 * batch. Returns which. */
static abar_extra pass_further(const rig *r, rig_side *s)
{
    for (int64_t i = 0; i < abar_optim_row_passes(s->optim); i++) {
        NEED(r, abar_optim_begin_rows(s->optim, i));
        observe(r, s);
    }
    const abar_extra extra = abar_optim_extra(s->optim);
    for (int i = 0; extra == ABAR_EXTRA_DIFFERENCE && i < 3; i++) NEED(r, abar_optim_perturb(s->optim, i == 2 ? 0 : 1 - 2 * i));
    return extra;
}

abar_step_report rig_step(rig *r, rig_side *s)
{
    abar_step_report report = {.size = sizeof report};
    const abar_step_config step = step_config(r);
    observe(r, s);
    const abar_extra extra = pass_further(r, s);
    NEED(r, abar_optim_step(s->optim, &step, &report));
    if (extra == ABAR_EXTRA_SAMPLED) NEED(r, abar_optim_take_sampled(s->optim, &step));
    return report;
}

void rig_enqueue(rig *r)
{
    abar_step_config step = step_config(r);
    step.lr = 0.0; /* the rate comes from rig_give_rates */
    NEED(r, abar_optim_begin(r->side.optim));
    observe(r, &r->side);
    const abar_extra extra = pass_further(r, &r->side);
    NEED(r, abar_optim_queue(r->side.optim, &step));
    if (extra == ABAR_EXTRA_SAMPLED) NEED(r, abar_optim_take_sampled(r->side.optim, &step));
}

void rig_one_step(rig *r)
{
    rig_draw(r);
    rig_enqueue(r);
    NEED(r, abar_device_wait(r->side.dev));
    r->k++;
}

const abar__step_outcome *rig_outcome(const rig *r, int64_t k)
{
    return r->side.dev->ops->step->outcome(r->side.optim->step, k);
}

/* ---- comparing ------------------------------------------------------------------------------------------------------------
 */

void rig_check_weights(rig *r, double tolerance, bool of_change)
{
    for (int i = 0; i < r->n_params; i++) {
        rig_param *p = &r->param[i];
        double *got = host_numbers(2 * p->count), *expected = got + p->count, off = 0.0, size = 0.0;
        rig_get(r, got, &r->side.value[i]);
        rig_get(r, expected, &r->ref.value[i]);
        for (int64_t e = 0; e < p->count; e++) {
            if (!isfinite(got[e])) fail_msg("step %d: %s is not finite", (int)r->k, p->name);
            off = fmax(off, fabs(got[e] - expected[e]));
            size = fmax(size, fabs(expected[e]));
            p->change = fmax(p->change, fabs(expected[e] - p->start[e]));
        }
        if (of_change) size = p->change;
        if (!(off <= tolerance * size)) fail_msg("step %d: %s is off by %.2e of %.2e", (int)r->k, p->name, off, size);
        free(got);
    }
}

static void check_count(const rig *r, const abar_map_info *info, const char *what, int64_t found, int64_t expected)
{
    if (found != expected) fail_msg("step %d, %s: %s is %d, not %d", (int)r->k, info->layer, what, (int)found, (int)expected);
}

/* Not a number: the method has none, or has had no refresh. */
static void check_real(const rig *r, const abar_map_info *info, const char *what, double found, double expected,
                       double tolerance)
{
    if (isnan(expected) ? !isnan(found) : !(fabs(found - expected) <= tolerance * fabs(expected)))
        fail_msg("step %d, %s: %s is %g, not %g", (int)r->k, info->layer, what, found, expected);
}

static abar__step_state pull(const rig *r, const rig_side *s)
{
    abar__step_state state;
    abar__map_state maps[RIG_MAPS];
    assert_in_range(abar_optim_map_count(s->optim), 0, RIG_MAPS);
    NEED(r, s->dev->ops->step->pull(s->dev, s->optim->step, &state, maps));
    return state;
}

void rig_check_maps(rig *r, int64_t updates)
{
    const abar__step_state found = pull(r, &r->side), expected = pull(r, &r->ref);
    assert_int_equal(found.k, r->k);
    assert_int_equal(found.t, updates);
    assert_int_equal(found.dropped, expected.dropped);
    assert_int_equal(found.small, expected.small);
    if (!(fabs(found.kl_scale - expected.kl_scale) <= 1e-4 * expected.kl_scale))
        fail_msg("step %d: scaled by %g, not %g", (int)r->k, found.kl_scale, expected.kl_scale);
    const int maps = abar_optim_map_count(r->ref.optim);
    assert_int_equal(abar_optim_map_count(r->side.optim), maps);
    for (int m = 0; m < maps; m++) {
        const abar_map_info e = *abar_optim_map(r->ref.optim, m), f = *abar_optim_map(r->side.optim, m);
        check_count(r, &e, "commits", f.commits, e.commits);
        check_count(r, &e, "dropped", f.dropped, e.dropped);
        check_count(r, &e, "raised", f.raised, e.raised);
        check_count(r, &e, "doubled", f.doubled, e.doubled);
        check_count(r, &e, "kept", f.kept, e.kept);
        check_real(r, &e, "damping", f.damping, e.damping, 1e-4);
        check_real(r, &e, "|a|^2", f.mean_square, e.mean_square, 1e-4);
        check_real(r, &e, "condition", f.condition, e.condition, 1e-2);
    }
}

/* ---- snapshots ------------------------------------------------------------------------------------------------------------
 */

typedef struct block {
    const void *memory;
    size_t bytes;
} block;

static int blocks_of(const rig *r, block out[2 * RIG_PARAMS + ABAR_PARAM_STATES + 1])
{
    const abar_optim *o = r->side.optim;
    int n = 0;
    for (int i = 0; i < r->n_params; i++) {
        out[n++] = (block){r->side.value[i].data, abar_tensor_bytes(&r->side.value[i])};
        if (r->side.shadow[i]) out[n++] = (block){r->side.shadow[i], shadow_bytes(&r->param[i])};
    }
    for (int i = 0; i < ABAR_PARAM_STATES; i++)
        if (o->state_bytes[i]) out[n++] = (block){o->state[i], o->state_bytes[i]};
    if (o->curvature) out[n++] = (block){o->curvature->state, o->curvature->state_bytes};
    return n;
}

unsigned char *rig_snapshot(const rig *r, size_t *bytes)
{
    block blocks[2 * RIG_PARAMS + ABAR_PARAM_STATES + 1];
    const int n = blocks_of(r, blocks);
    *bytes = 0;
    for (int i = 0; i < n; i++) *bytes += blocks[i].bytes;
    unsigned char *all = malloc(*bytes), *at = all;
    assert_non_null(all);
    for (int i = 0; i < n; i++) {
        rig_read(r, at, r->side.dev, blocks[i].memory, blocks[i].bytes);
        at += blocks[i].bytes;
    }
    return all;
}
