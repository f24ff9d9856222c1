/* The rig: drawing, laying out, stepping, comparing. */
#include "program_rig.h"

#include <math.h>

const abar__program_ops *rig_ops(const rig *r) { return r->dev->ops->queue->program; }

static void need(const rig *r, abar_status status, const char *what)
{
    if (status < 0) fail_msg("%s: %s", what, abar_context_error(r->ctx));
}
#define NEED(r, call) need(r, call, #call)

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

static void *take(rig *r, size_t bytes, bool state)
{
    assert_in_range(r->n_blocks, 0, 127);
    void *memory = cuda_alloc(r->dev, bytes);
    r->blocks[r->n_blocks].memory = memory;
    r->blocks[r->n_blocks].state = state;
    r->blocks[r->n_blocks++].bytes = bytes;
    return memory;
}

/* ---- parameters -------------------------------------------------------------------------------------------------------- */

static int add_param(rig *r, const char *layer, const char *kind, int index, int ndim, const int64_t *dim)
{
    rig_param *p = &r->param[r->n_params];
    *p = (rig_param){.ndim = ndim, .layer = index, .is_weight = strcmp(kind, "weight") == 0 && index >= 0};
    snprintf(p->name, sizeof p->name, "%s.%s", layer, kind);
    p->view = abar_tensor_wrap(NULL, NULL, ABAR_F32, ndim, dim);
    if (ndim == 4) p->view = abar_tensor_wrap_channels_last(NULL, NULL, ABAR_F32, dim);
    memcpy(p->dim, dim, (size_t)ndim * sizeof *dim);
    p->count = abar_tensor_count(&p->view);
    void *value, *grad;
    NEED(r, abar_device_alloc(r->ref, (size_t)p->count * sizeof(double), &value));
    NEED(r, abar_device_alloc(r->ref, (size_t)p->count * sizeof(double), &grad));
    p->value = value;
    p->grad = grad;
    fill(r, p->value, p->count);
    const size_t bytes = (size_t)p->count * sizeof(float);
    p->weight_d = take(r, bytes, true);
    p->grad_d = take(r, bytes, false);
    for (int i = 0; i < 2; i++) p->state_d[i] = take(r, bytes, true);
    cuda_put(r->dev, p->weight_d, p->value, p->view);
    if (p->is_weight) p->shadow_d = take(r, bytes / 2, true);
    return r->n_params++;
}

static abar_tensor host_tensor(int ndim, const int64_t *dim)
{
    abar_tensor t = abar_tensor_wrap(NULL, NULL, ABAR_F64, ndim, dim);
    t.data = calloc((size_t)abar_tensor_count(&t), sizeof(double));
    assert_non_null(t.data);
    return t;
}

/* The same on the device, as a net would have it there. */
static abar_tensor device_tensor(rig *r, const abar_tensor *host)
{
    abar_tensor t = abar_tensor_wrap(r->dev, NULL, ABAR_F32, host->ndim, host->dim);
    if (t.ndim == 4) t.layout = ABAR_LAYOUT_NHWC;
    t.data = take(r, abar_tensor_bytes(&t), false);
    return t;
}

static abar_tensor ref_tensor(const rig *r, const rig_param *p, double *data)
{
    return abar_tensor_wrap(r->ref, data, ABAR_F64, p->ndim, p->dim);
}

/* image 0: a linear layer. */
static void add_layer(rig *r, int index, const char *name, int64_t in, int64_t out, int64_t image, abar_window w, bool bias)
{
    rig_layer *l = &r->layer[index];
    *l = (rig_layer){.name = name, .bias = -1, .rows = 1, .out = out / w.groups};
    const int64_t dim[4] = {out, in / w.groups, w.kernel[0], w.kernel[1]};
    l->weight = add_param(r, name, "weight", index, image ? 4 : 2, dim);
    if (bias) l->bias = add_param(r, name, "bias", index, 1, dim);
    l->in = in / w.groups * w.kernel[0] * w.kernel[1];
    l->d = l->in + (bias ? 1 : 0);
    const int64_t side = image ? abar_window_out(&w, 0, image) : 0;
    if (image) l->rows = side * side;
    l->x = host_tensor(image ? 4 : 2, (int64_t[]){RIG_EXAMPLES, in, image, image});
    l->p = host_tensor(image ? 4 : 2, (int64_t[]){RIG_EXAMPLES, out, side, side});
    l->x_d = device_tensor(r, &l->x);
    l->p_d = device_tensor(r, &l->p);
    const rig_param *weight = &r->param[l->weight];
    l->map = (abar_layer){.name = name,
                          .weight = ref_tensor(r, weight, weight->value),
                          .weight_grad = ref_tensor(r, weight, weight->grad),
                          .output_grad_scale = 1.0,
                          .window = w};
    if (!bias) return;
    l->map.bias = ref_tensor(r, &r->param[l->bias], r->param[l->bias].value);
    l->map.bias_grad = ref_tensor(r, &r->param[l->bias], r->param[l->bias].grad);
}

static void add_network(rig *r)
{
    add_layer(r, 0, "fc", 5, 4, 0, abar_window_unit(), true);
    add_layer(r, 1, "conv", 3, 6, 4, (abar_window){{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}, true);
    add_layer(r, 2, "grouped", 4, 4, 3, (abar_window){{2, 2}, {1, 1}, {0, 0}, {1, 1}, 2}, false);
    add_layer(r, 3, "wide", 16, 16, 5, (abar_window){{3, 3}, {2, 2}, {1, 1}, {1, 1}, 1}, false);
    add_param(r, "norm", "weight", -1, 1, (int64_t[]){37});
    add_param(r, "norm", "bias", -1, 1, (int64_t[]){1});
}

/* ---- on ref -------------------------------------------------------------------------------------------------------------- */

static void *configured(rig *r, const abar_option *table, size_t size, const char *const (*words)[2], int n)
{
    void *config = calloc(1, size);
    assert_non_null(config);
    abar_options_default(table, config);
    for (int i = 0; i < n; i++)
        if (abar_options_find(table, words[i][0])) NEED(r, abar_options_set(r->ctx, table, config, words[i][0], words[i][1]));
    return config;
}

static void make_ref(rig *r)
{
    const rig_wish *w = &r->wish;
    char momentum[32], damping[32], diagonal[32], tcov[32], tinv[32], kl_clip[32];
    snprintf(momentum, sizeof momentum, "%.17g", w->momentum);
    snprintf(damping, sizeof damping, "%.17g", w->rho);
    snprintf(diagonal, sizeof diagonal, "%.17g", w->diagonal);
    snprintf(kl_clip, sizeof kl_clip, "%.17g", w->kl_clip);
    snprintf(tcov, sizeof tcov, "%d", w->method ? (int)w->tcov : 1);
    snprintf(tinv, sizeof tinv, "%d", w->method ? (int)w->tinv : 1);
    const char *const words[][2] = {{"momentum", momentum},
                                    {"nesterov", w->nesterov ? "true" : "false"},
                                    {"decay", w->decoupled ? "decoupled" : "coupled"},
                                    {"damping", w->rho > 0.0 ? damping : "adaptive"},
                                    {"damping-form", w->coupled ? "coupled" : "decoupled"},
                                    {"tcov", tcov},
                                    {"tinv", tinv},
                                    {"refresh", w->spread ? "spread" : "together"},
                                    {"kl-clip", kl_clip},
                                    {"kfac", w->expand ? "expand" : "reduce"},
                                    {"kfac-inverse", w->eigen ? "eigen" : "cholesky"},
                                    {"nu1", "0.001"},
                                    {"nu2", "10"},
                                    {"diagonal-damping", diagonal}};
    const abar_rule *rule = abar_rule_find(w->rule);
    const abar_method *method = w->method ? abar_method_find(w->method) : NULL;
    const int n = (int)(sizeof words / sizeof *words) - (w->diagonal > 0.0 ? 0 : 1);
    void *rule_config = configured(r, rule->options, rule->config_size, words, n);
    void *common = configured(r, abar_curvature_options(), abar_curvature_config_size(), words, n);
    void *own = method ? configured(r, method->options, method->config_size, words, n) : NULL;
    abar_optim_param params[RIG_PARAMS];
    abar_layer layers[RIG_LAYERS];
    for (int i = 0; i < r->n_params; i++) {
        const rig_param *p = &r->param[i];
        params[i] =
            (abar_optim_param){p->name, ref_tensor(r, p, p->value), ref_tensor(r, p, p->grad), 1.0 + 0.1 * i, w->weight_decay};
    }
    for (int i = 0; i < RIG_LAYERS; i++) layers[i] = r->layer[i].map;
    NEED(r, abar_optim_create(r->ref,
                              &(abar_optim_config){.size = sizeof(abar_optim_config),
                                                   .rule = w->rule,
                                                   .rule_config = rule_config,
                                                   .method = w->method,
                                                   .method_config = own,
                                                   .curvature = common,
                                                   .params = params,
                                                   .n_params = r->n_params,
                                                   .layers = layers,
                                                   .n_layers = RIG_LAYERS,
                                                   .base_lr = 0.1},
                              &r->optim));
    free(rule_config);
    free(common);
    free(own);
}

bool rig_observes(const rig *r) { return r->wish.method && r->k % r->wish.tcov == 0; }

/* Examples of the i-th micro-batch. */
static int64_t part_of(const rig *r, int i, int64_t *count)
{
    const int64_t parts = r->wish.parts ? r->wish.parts : 1, first = RIG_EXAMPLES * i / parts;
    *count = RIG_EXAMPLES * (i + 1) / parts - first;
    return first;
}

static abar_tensor ref_examples(const rig *r, const abar_tensor *t, int64_t first, int64_t count)
{
    abar_tensor part = *t;
    part.dev = r->ref;
    part.data = (double *)t->data + first * t->stride[0];
    part.dim[0] = count;
    return part;
}

static double rate(const rig *r, int64_t k) { return r->wish.lr * (1.0 - (double)k / (2.0 * RIG_STEPS)); }

abar_step_report rig_ref_step(rig *r)
{
    abar_step_report report = {.size = sizeof report};
    for (int i = 0; rig_observes(r) && i < RIG_LAYERS; i++)
        for (int part = 0; part < (r->wish.parts ? r->wish.parts : 1); part++) {
            int64_t count, first = part_of(r, part, &count);
            abar_layer layer = r->layer[i].map;
            layer.input = ref_examples(r, &r->layer[i].x, first, count);
            layer.output_grad = ref_examples(r, &r->layer[i].p, first, count);
            NEED(r, abar_optim_observe(r->optim, i, &layer));
        }
    const abar_step_config step = {
        .size = sizeof step, .lr = rate(r, r->k), .clip = r->wish.clip, .grad_scale = r->wish.grad_scale};
    NEED(r, abar_optim_step(r->optim, &step, &report));
    return report;
}

/* ---- on the device ---------------------------------------------------------------------------------------------------------
 */

static abar__update_item whole_item(const rig *r, int index)
{
    const rig_param *p = &r->param[index];
    const bool keeps = strcmp(r->wish.rule, "adamw") == 0;
    return (abar__update_item){.weight = p->weight_d,
                               .grad = p->grad_d,
                               .state = {keeps || r->wish.momentum > 0.0 ? p->state_d[0] : NULL, keeps ? p->state_d[1] : NULL},
                               .count = p->count,
                               .lr_scale = 1.0 + 0.1 * index,
                               .weight_decay = r->wish.weight_decay,
                               .shadow = p->shadow_d,
                               .map = -1};
}

/* count elements from the given one on. */
static abar__update_item part_item(abar__update_item item, int64_t first, int64_t count)
{
    item.weight = (float *)item.weight + first;
    item.grad = (const float *)item.grad + first;
    for (int i = 0; i < 2; i++)
        if (item.state[i]) item.state[i] = (float *)item.state[i] + first;
    if (item.shadow) item.shadow = (uint16_t *)item.shadow + first;
    item.count = count;
    return item;
}

static bool is(const rig *r, const char *method) { return r->wish.method && strcmp(r->wish.method, method) == 0; }

static float *vector(rig *r, int64_t n) { return take(r, (size_t)n * sizeof(float), true); }

static abar__kept_average average(rig *r, int64_t n, bool square)
{
    if (!square) return (abar__kept_average){n, false, vector(r, n), vector(r, n)};
    float *memory = vector(r, (n + 1) * n);
    return (abar__kept_average){n, true, memory, memory + n};
}

/* MAC and SMAC. */
static void describe_mean(rig *r, abar__kept_map *kept)
{
    const rig_wish *w = &r->wish;
    kept->coupled = w->coupled;
    kept->average[0] = average(r, kept->d, false);
    kept->u = vector(r, kept->d);
    if (w->rho == 0.0) {
        kept->damping = ABAR_DAMPING_ADAPTIVE;
        kept->pending_number = take(r, sizeof(double), true);
    }
    if (w->coupled && w->rho > 0.0) kept->bound = 1.0 / w->rho;
    if (!is(r, "smac")) return;
    kept->average[1] = average(r, kept->out, false);
    kept->r = vector(r, kept->out);
    kept->diagonal = w->diagonal > 0.0 ? w->diagonal : w->rho;
    kept->bound = 1.0 / kept->diagonal;
}

static void describe_eva(rig *r, abar__kept_map *kept)
{
    kept->kind = ABAR_KEPT_EVA;
    kept->average[0] = average(r, kept->d, false);
    kept->average[1] = average(r, kept->out, false);
    kept->u = vector(r, kept->d);
    kept->w = vector(r, kept->out);
    kept->scale = kept->bound = 1.0 / kept->rho;
}

/* FOOF, KFAC and LNGD. */
static void describe_dense(rig *r, abar__kept_map *kept)
{
    const int64_t side[2] = {kept->d, kept->out};
    kept->kind = ABAR_KEPT_DENSE;
    for (int i = 0; i < (is(r, "kfac") ? 2 : 1); i++) {
        kept->average[i] = average(r, side[i], true);
        kept->inverse[i] = vector(r, side[i] * side[i]);
        if (r->wish.eigen) kept->values[i] = vector(r, side[i]);
    }
    if (is(r, "kfac")) kept->damping = ABAR_DAMPING_SHARED;
    if (!is(r, "lngd")) return;
    kept->damping = ABAR_DAMPING_CLIPPED;
    kept->least = 1e-3;
    kept->most = 10.0;
    kept->mu = 0.03;
    kept->average[1] = average(r, kept->out, false);
    kept->pending_number = take(r, sizeof(double), true);
    kept->r = vector(r, kept->out);
}

static void describe_map(rig *r, int m, const rig_layer *l)
{
    abar__kept_map *kept = &r->kept[m];
    *kept = (abar__kept_map){.d = l->d, .columns = l->in, .out = l->out, .rho = r->wish.rho, .scale = 1.0, .bound = 1.0};
    kept->link = kept->number = m;
    kept->links = 1;
    kept->kernel = l->x.ndim == 4 ? l->map.window.kernel[0] * l->map.window.kernel[1] : 1;
    if (is(r, "mac") || is(r, "smac"))
        describe_mean(r, kept);
    else if (is(r, "eva"))
        describe_eva(r, kept);
    else
        describe_dense(r, kept);
}

static void add_maps(rig *r, int index)
{
    const rig_layer *l = &r->layer[index];
    for (int64_t g = 0; g < l->map.window.groups; g++) {
        const int m = r->n_maps++;
        abar__update_item *item = &r->updates[r->n_updates++];
        r->map_layer[m] = index;
        *item = part_item(r->items[l->weight], g * l->out * l->in, l->out * l->in);
        item->rows = l->out;
        item->map = m;
        if (l->bias >= 0) {
            r->biases[m] = part_item(r->items[l->bias], g * l->out, l->out);
            item->bias = &r->biases[m];
        }
        if (!r->kept[m].links) describe_map(r, m, l);
    }
}

static void lay_out(rig *r)
{
    r->n_updates = r->n_maps = 0;
    for (int i = 0; i < r->n_params; i++) r->items[i] = whole_item(r, i);
    for (int i = 0; r->wish.method && i < RIG_LAYERS; i++) add_maps(r, i);
    for (int i = 0; i < r->n_params; i++)
        if (!r->wish.method || r->param[i].layer < 0) r->updates[r->n_updates++] = r->items[i];
}

void rig_make_program(rig *r)
{
    const rig_wish *w = &r->wish;
    lay_out(r);
    const abar__update_scalars scalars = {
        .momentum = w->momentum, .nesterov = w->nesterov, .decoupled = w->decoupled, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    const abar__program_desc desc = {.items = r->items,
                                     .n_items = r->n_params,
                                     .updates = r->updates,
                                     .n_updates = r->n_updates,
                                     .maps = r->kept,
                                     .n_maps = r->n_maps,
                                     .n_numbers = r->n_maps,
                                     .rule = strcmp(w->rule, "adamw") == 0 ? ABAR_PROGRAM_ADAMW : ABAR_PROGRAM_SGD,
                                     .scalars = &scalars,
                                     .stat_decay = 0.95,
                                     .tinv = w->method ? w->tinv : 0,
                                     .refresh = w->spread,
                                     .every_commit = is(r, "eva"),
                                     .kl_clip = w->kl_clip,
                                     .base_lr = 0.1};
    double lr[RIG_STEPS];
    for (int k = 0; k < RIG_STEPS; k++) lr[k] = rate(r, k);
    NEED(r, rig_ops(r)->create(r->dev, &desc, &r->program));
    assert_true(rig_ops(r)->bytes(r->program) > 0);
    NEED(r, rig_ops(r)->rates(r->dev, r->program, 0, lr, RIG_STEPS));
}

void rig_rebind(rig *r)
{
    lay_out(r);
    NEED(r, rig_ops(r)->rebind(r->dev, r->program, r->items, r->updates));
}

/* As the methods' observe. */
static void observe_rows(rig *r, const abar__rows *rows, const abar__kept_map *kept)
{
    const abar__stats_ops *stats = r->dev->ops->stats;
    abar_device *dev = r->dev;
    void *const a = kept->average[0].pending, *const p = kept->average[1].pending;
    if (is(r, "foof") || (is(r, "kfac") && r->wish.expand)) stats->input_product(dev, rows, NULL, a, r->scratch);
    if (is(r, "kfac") && r->wish.expand) stats->grad_product(dev, rows, p, r->scratch);
    if (is(r, "kfac") && !r->wish.expand) stats->both_mean_products(dev, rows, a, p, r->scratch);
    if (is(r, "mac")) stats->input_sum(dev, rows, a);
    if (is(r, "eva") || is(r, "smac")) stats->both_sums(dev, rows, a, is(r, "smac"), p);
    if (is(r, "lngd")) {
        stats->example_weights(dev, rows, r->weights, r->weights + RIG_EXAMPLES, kept->pending_number);
        stats->input_product(dev, rows, r->weights + RIG_EXAMPLES, a, r->scratch);
        stats->grad_squares(dev, rows, r->weights, p);
    }
    if (kept->damping == ABAR_DAMPING_ADAPTIVE) stats->input_square_add(dev, rows, kept->pending_number);
}

static abar__rows rows_of(const rig_layer *l, int64_t group)
{
    return (abar__rows){.input = l->x_d,
                        .output_grad = l->p_d,
                        .grad_scale = 1.0,
                        .window = l->map.window,
                        .convolution = l->x.ndim == 4,
                        .bias = l->bias >= 0,
                        .group = group,
                        .examples = RIG_EXAMPLES,
                        .per_example = l->rows,
                        .in = l->in,
                        .out = l->out};
}

/* Of the statistics: the most that any layer needs. */
static size_t scratch_bytes(rig *r)
{
    size_t most = 1;
    for (int i = 0; i < RIG_LAYERS; i++) {
        const abar__rows rows = rows_of(&r->layer[i], 0);
        const size_t bytes = r->dev->ops->stats->product_scratch(r->dev, &rows);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void observe_map(rig *r, int m, int64_t group)
{
    const abar__rows rows = rows_of(&r->layer[r->map_layer[m]], group);
    for (int part = 0; part < (r->wish.parts ? r->wish.parts : 1); part++) {
        int64_t count, first = part_of(r, part, &count);
        const abar__rows slice = abar__rows_slice(&rows, first, count);
        observe_rows(r, &slice, &r->kept[m]);
    }
}

/* What the sums of average[0], average[1] and the number are divided by: rows or examples. */
static void means_of(const rig *r, const rig_layer *l, double out[3])
{
    const bool per_example = is(r, "lngd") || is(r, "kfac");
    for (int i = 0; i < 3; i++) out[i] = 1.0 / (double)(RIG_EXAMPLES * (per_example ? 1 : l->rows));
    if (is(r, "kfac") && r->wish.expand) out[0] /= (double)l->rows;
}

void rig_device_step(rig *r)
{
    double to_mean[RIG_MAPS][3];
    const bool observes = rig_observes(r);
    NEED(r, rig_ops(r)->begin(r->dev, r->program));
    for (int m = 0; observes && m < r->n_maps; m++) {
        const rig_layer *l = &r->layer[r->map_layer[m]];
        observe_map(r, m, m > 0 && r->map_layer[m - 1] == r->map_layer[m]); /* at most two groups */
        means_of(r, l, to_mean[m]);
    }
    const double scale = r->wish.grad_scale > 0.0 ? r->wish.grad_scale : 1.0;
    NEED(r, rig_ops(r)->step(r->dev, r->program, scale, r->wish.clip, observes ? &to_mean[0][0] : NULL));
}

/* ---- opening, drawing, closing ---------------------------------------------------------------------------------------- */

void rig_open(rig *r, const rig_wish *wish)
{
    *r = (rig){.wish = *wish, .noise = 12345};
    const abar_device_config config = cuda_config(ABAR_PRECISION_FP32, true);
    assert_int_equal(abar_context_create(NULL, &r->ctx), ABAR_OK);
    NEED(r, abar_device_open(r->ctx, "ref", NULL, &r->ref));
    NEED(r, abar_device_open(r->ctx, "cuda", &config, &r->dev));
    add_network(r);
    r->scratch = take(r, scratch_bytes(r), false);
    r->weights = take(r, 2 * RIG_EXAMPLES * sizeof *r->weights, false);
    make_ref(r);
    rig_make_program(r);
}

void rig_draw(rig *r)
{
    for (int i = 0; i < RIG_LAYERS; i++) {
        rig_layer *l = &r->layer[i];
        fill(r, l->x.data, abar_tensor_count(&l->x));
        fill(r, l->p.data, abar_tensor_count(&l->p));
        if (r->wish.bad_input_step && r->k == r->wish.bad_input_step && i == r->wish.bad_layer)
            ((double *)l->x.data)[abar_tensor_count(&l->x) / 2] = NAN;
        cuda_put(r->dev, l->x_d.data, l->x.data, l->x_d);
        cuda_put(r->dev, l->p_d.data, l->p.data, l->p_d);
    }
    for (int i = 0; i < r->n_params; i++) {
        rig_param *p = &r->param[i];
        fill(r, p->grad, p->count);
        if (r->wish.bad_step && r->k == r->wish.bad_step && i == 2) p->grad[7] = NAN;
        cuda_put(r->dev, p->grad_d, p->grad, p->view);
    }
}

void rig_close(rig *r)
{
    rig_ops(r)->destroy(r->dev, r->program);
    abar_optim_destroy(r->optim);
    for (int i = 0; i < r->n_params; i++) {
        abar_device_free(r->ref, r->param[i].value, (size_t)r->param[i].count * sizeof(double));
        abar_device_free(r->ref, r->param[i].grad, (size_t)r->param[i].count * sizeof(double));
    }
    for (int i = 0; i < RIG_LAYERS; i++) {
        free(r->layer[i].x.data);
        free(r->layer[i].p.data);
    }
    for (int i = 0; i < r->n_blocks; i++) abar_device_free(r->dev, r->blocks[i].memory, r->blocks[i].bytes);
    abar_device_close(r->dev);
    abar_device_close(r->ref);
    assert_int_equal(abar_context_memory(r->ctx).now, 0);
    abar_context_destroy(r->ctx);
}

/* ---- comparing
 * --------------------------------------------------------------------------------------------------------------- */

void rig_check_weights(rig *r, double tolerance)
{
    for (int i = 0; i < r->n_params; i++) {
        const rig_param *p = &r->param[i];
        double *got = malloc((size_t)p->count * sizeof *got), off = 0.0, size = 0.0;
        assert_non_null(got);
        cuda_get(r->dev, got, p->weight_d, p->view);
        for (int64_t e = 0; e < p->count; e++) {
            if (!isfinite(got[e])) fail_msg("step %d: %s is not finite", (int)r->k, p->name);
            off = fmax(off, fabs(got[e] - p->value[e]));
            size = fmax(size, fabs(p->value[e]));
        }
        if (!(off <= tolerance * size)) fail_msg("step %d: %s is off by %.2e of %.2e", (int)r->k, p->name, off, size);
        free(got);
    }
}

static void check_counts(const rig *r, const abar_map_info *info, const abar__map_state *s)
{
    const int64_t expected[][2] = {{ABAR_COUNT_COMMITS, info->commits},
                                   {ABAR_COUNT_DROPPED, info->dropped},
                                   {ABAR_COUNT_RAISED, info->raised},
                                   {ABAR_COUNT_DOUBLED, info->doubled},
                                   {ABAR_COUNT_KEPT, info->kept}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (s->count[expected[i][0]] != expected[i][1])
            fail_msg("step %d, %s: count %d is %d, not %d", (int)r->k, info->layer, (int)expected[i][0],
                     (int)s->count[expected[i][0]], (int)expected[i][1]);
}

/* Not a number: the method has none, or has had no refresh. The device's numbers begin with 0. */
static void check_real(const rig *r, const abar_map_info *info, const char *what, double found, double expected,
                       double tolerance)
{
    if (!isnan(expected) && !(fabs(found - expected) <= tolerance * fabs(expected)))
        fail_msg("step %d, %s: %s is %g, not %g", (int)r->k, info->layer, what, found, expected);
}

void rig_check_maps(rig *r, int64_t updates)
{
    abar__map_state states[RIG_MAPS];
    abar__program_state program;
    NEED(r, rig_ops(r)->pull(r->dev, r->program, &program, states));
    assert_int_equal(program.k, r->k);
    assert_int_equal(program.t, updates);
    const double kl_scale = abar_optim_times(r->optim)->kl_scale;
    if (!(fabs(program.kl_scale - kl_scale) <= 1e-4 * kl_scale))
        fail_msg("step %d: scaled by %g, not %g", (int)r->k, program.kl_scale, kl_scale);
    for (int m = 0; m < r->n_maps; m++) {
        const abar_map_info info = *abar_optim_map(r->optim, m);
        const abar__map_state *s = &states[m];
        check_counts(r, &info, s);
        check_real(r, &info, "damping", s->real[ABAR_REAL_DAMPING], info.damping, 1e-4);
        check_real(r, &info, "|a|^2", s->real[ABAR_REAL_MEAN_SQUARE], info.mean_square, 1e-4);
        check_real(r, &info, "condition", s->real[ABAR_REAL_CONDITION], info.condition, 1e-2);
    }
}

unsigned char *rig_snapshot(rig *r, size_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < r->n_blocks; i++)
        if (r->blocks[i].state) *bytes += r->blocks[i].bytes;
    unsigned char *all = malloc(*bytes), *at = all;
    assert_non_null(all);
    cuda_wait(r->dev, "before a snapshot");
    for (int i = 0; i < r->n_blocks; i++) {
        if (!r->blocks[i].state) continue;
        cuda_move(r->dev, at, r->blocks[i].memory, r->blocks[i].bytes);
        at += r->blocks[i].bytes;
    }
    return all;
}
