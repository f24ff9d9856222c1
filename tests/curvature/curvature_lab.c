/* The laboratory: making layers and batches, offering them to an optimizer. What is looked at afterwards is in
 * curvature_lab_look.c. */
#include "curvature_lab.h"

#include "device/device_impl.h"
#include "tensor/tensor_impl.h"
#include "repeated.h"

/* Those that only ref and cpu have come last: lab_begin cuts them off for other devices. */
const char *lab_methods[] = {"mac", "smac", "foof", "kfac", "eva", "lngd", "skfac", "kpsvd", NULL};
const char *const lab_devices[] = {"ref", "cpu", NULL};

const char *lab_cases[][2] = {
    {"mac", "damping=0.3"},
    {"mac", "damping=0.2 damping-form=coupled"},
    {"mac", "damping=adaptive"},
    {"smac", "damping=0.1"},
    {"smac", "damping=0.3 pgrad=per-example"},
    {"smac", "damping=adaptive diagonal-damping=0.05"},
    {"smac", "damping=0.2 damping-form=coupled kl-clip=0.01"},
    {"foof", "damping=0.2"},
    {"foof", "damping=trace:0.3"},
    {"kfac", "damping=0.1"},
    {"kfac", "damping=0.2 kfac=expand pgrad=per-example kl-clip=0"},
    {"kfac", "damping=0.2 kfac-inverse=eigen pgrad=per-example"},
    {"eva", "damping=0.05"},
    {"eva", "damping=0.1 pgrad=per-example kl-clip=0"},
    {"lngd", "nu1=1e-3"},
    {"lngd", "nu1=1e-2 nu2=10 pgrad=per-example"},
    {"skfac", "damping=0.1"},
    {"skfac", "damping=0.3 kl-clip=0.01 examples=0"},
    {"kpsvd", "damping=0.1"},
    {"kpsvd", "damping=0.2 kl-clip=0 kpsvd-rounds=1"},
    {"kpsvd", "damping=0.2 kpsvd-terms=2"},
    {"foof", "damping=0.2 foof-width=3"},
    {"foof", "damping=0.2 kfac-rank=2"},
    {"kfac", "damping=0.2 kfac-rank=2"},
    {NULL, NULL},
};

/* ---- other devices ------------------------------------------------------------------------------------------------ */

/* NULL: the test's own. */
static const char *other_device(void) { return getenv("ABAR_TEST_DEVICE"); }

bool lab_has(const char *method) { return !other_device() || (strcmp(method, "skfac") != 0 && strcmp(method, "kpsvd") != 0); }

static void cut_lists(void)
{
    int methods = 0, cases = 0;
    while (lab_methods[methods] && lab_has(lab_methods[methods])) methods++;
    while (lab_cases[cases][0] && lab_has(lab_cases[cases][0])) cases++;
    lab_methods[methods] = lab_cases[cases][0] = NULL;
}

int lab_begin(void)
{
    abar_context *ctx;
    abar_device *dev = NULL;
    if (!other_device()) return 0;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 1;
    const abar_status status = abar_device_open(ctx, other_device(), NULL, &dev);
    if (status != ABAR_OK) printf("skipped: no %s device (%s)\n", other_device(), abar_context_error(ctx));
    abar_device_close(dev);
    abar_context_destroy(ctx);
    if (status != ABAR_OK) return getenv("ABAR_TEST_REQUIRE_CUDA") ? 1 : 77;
    cut_lists();
    return 0;
}

/* The cpu's tests are for every device of single precision. */
static const char *device_for(const char *device)
{
    if (is_repeated() && strcmp(device, "ref") == 0) skip();
    if (!other_device()) return device;
    if (strcmp(device, "cpu") != 0) skip();
    return other_device();
}

void lab_copy(const abar_tensor *dst, const abar_tensor *src)
{
    abar_device *dev = dst->dev ? dst->dev : src->dev;
    if (!dev || !dev->ops->stream)
        abar__tensor_copy_host(dst, src);
    else if (abar_tensor_copy(dev->ctx, dst, src) != ABAR_OK)
        fail_msg("copy: %s", abar_context_error(dev->ctx));
}

abar_tensor lab_host_copy(const abar_tensor *t)
{
    abar_tensor copy = abar_tensor_wrap(NULL, NULL, ABAR_F64, t->ndim, t->dim);
    copy.data = calloc((size_t)abar_tensor_count(t) + 1, sizeof(double));
    assert_non_null(copy.data);
    lab_copy(&copy, t);
    return copy;
}

bool lab_uses_output_grad(const char *method) { return strcmp(method, "mac") != 0 && strcmp(method, "foof") != 0; }

bool lab_is_dense(const char *method)
{
    static const char *const dense[] = {"foof", "kfac", "lngd", "skfac", "kpsvd"};
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
        if (strcmp(method, dense[i]) == 0) return true;
    return false;
}

const char *lab_with(char buffer[256], const char *options, const char *more)
{
    snprintf(buffer, 256, "%s %s", options, more);
    return buffer;
}

void lab_need(const lab *l, abar_status status, const char *what)
{
    if (status < 0) fail_msg("%s: %s", what, abar_context_error(l->ctx));
}

double lab_get(const abar_tensor *t, int64_t i) { return abar__tensor_load(t, i); }
void lab_set(const abar_tensor *t, int64_t i, double value) { abar__tensor_store(t, i, value); }

/* ---- layers ------------------------------------------------------------------------------------------------------- */

static bool is_conv(const lab_shape *s) { return s->image[0] > 0; }

static abar_tensor host_tensor(int ndim, const int64_t *dim)
{
    abar_tensor t = abar_tensor_wrap(NULL, NULL, ABAR_F64, ndim, dim);
    t.data = calloc((size_t)abar_tensor_count(&t) + 1, sizeof(double));
    assert_non_null(t.data);
    return t;
}

static abar_tensor device_tensor(lab *l, int ndim, const int64_t *dim)
{
    abar_tensor t = abar_tensor_wrap(l->dev, NULL, abar_device_dtype(l->dev), ndim, dim);
    if (ndim == 4 && l->dev->ops->channels_last)
        t = abar_tensor_wrap_channels_last(l->dev, NULL, abar_device_dtype(l->dev), dim);
    NEED(l, abar_device_alloc(l->dev, abar_tensor_bytes(&t), &t.data));
    return t;
}

/* Enough for doubles with gaps, and for the padding of every blocked layout. */
static abar_tensor stage_of(lab *l, const abar_tensor *t)
{
    int64_t count = 2 * (t->dim[0] + 15) * (t->ndim == 4 ? t->dim[1] + 15 : t->dim[1]);
    for (int i = 2; i < t->ndim; i++) count *= t->dim[i];
    abar_tensor stage = abar_tensor_wrap(l->dev, NULL, ABAR_F64, 1, &count);
    NEED(l, abar_device_alloc(l->dev, abar_tensor_bytes(&stage), &stage.data));
    return stage;
}

static void make_batch_tensors(lab *l, lab_layer *y)
{
    const lab_shape *s = &y->shape;
    const int64_t n = l->examples;
    if (is_conv(s)) {
        const int64_t h = abar_window_out(&s->window, 0, s->image[0]), w = abar_window_out(&s->window, 1, s->image[1]);
        assert_true(h > 0 && w > 0);
        y->x = host_tensor(4, (int64_t[]){n, s->in, s->image[0], s->image[1]});
        y->p = host_tensor(4, (int64_t[]){n, s->out, h, w});
        y->rows = h * w;
    } else if (s->tokens) {
        y->x = host_tensor(3, (int64_t[]){n, s->tokens, s->in});
        y->p = host_tensor(3, (int64_t[]){n, s->tokens, s->out});
        y->rows = s->tokens;
    } else {
        y->x = host_tensor(2, (int64_t[]){n, s->in});
        y->p = host_tensor(2, (int64_t[]){n, s->out});
        y->rows = 1;
    }
}

static void make_layer(lab *l, lab_layer *y, const lab_shape *s)
{
    *y = (lab_layer){.shape = *s, .groups = is_conv(s) ? s->window.groups : 1};
    make_batch_tensors(l, y);
    const int64_t in = s->in / y->groups * (is_conv(s) ? s->window.kernel[0] * s->window.kernel[1] : 1);
    const int64_t dim[4] = {s->out, s->in / y->groups, s->window.kernel[0], s->window.kernel[1]};
    const int ndim = is_conv(s) ? 4 : 2;
    y->outputs = s->out / y->groups;
    y->columns = in + (s->bias ? 1 : 0);
    y->gw = host_tensor(ndim, dim);
    y->weight = device_tensor(l, ndim, dim);
    y->weight_grad = device_tensor(l, ndim, dim);
    if (s->bias) {
        y->gb = host_tensor(1, dim);
        y->bias = device_tensor(l, 1, dim);
        y->bias_grad = device_tensor(l, 1, dim);
    }
    y->x_stage = stage_of(l, &y->x);
    y->p_stage = stage_of(l, &y->p);
    if (!s->attention.heads) return;
    y->attended = host_tensor(3, (int64_t[]){l->examples, s->attention.heads, s->tokens});
    y->attended_stage = stage_of(l, &y->attended);
}

void lab_open(lab *l, const char *device, const abar_allocator *allocator, const lab_shape *shapes, int n, int64_t examples,
              uint64_t seed)
{
    device = device_for(device);
    *l = (lab){.n = n, .examples = examples, .noise = seed * 0x9e3779b97f4a7c15u + 1};
    assert_in_range(n, 1, LAB_LAYERS_MAX);
    abar_context_config config = {.size = sizeof config};
    if (allocator) config.allocator = *allocator;
    assert_int_equal(abar_context_create(&config, &l->ctx), ABAR_OK);
    NEED(l, abar_device_open(l->ctx, device, &(abar_device_config){.size = sizeof(abar_device_config), .threads = 1}, &l->dev));
    l->dtype = abar_device_dtype(l->dev);
    for (int i = 0; i < n; i++) make_layer(l, &l->layer[i], &shapes[i]);
}

static void release(lab *l, abar_tensor *t)
{
    if (t->dev)
        abar_device_free(l->dev, t->data, abar_tensor_bytes(t));
    else
        free(t->data);
}

void lab_close(lab *l)
{
    abar_optim_destroy(l->optim);
    for (int i = 0; i < l->n; i++) {
        lab_layer *y = &l->layer[i];
        abar_tensor *all[] = {&y->x,    &y->p,           &y->gw,        &y->gb,      &y->attended, &y->weight,
                              &y->bias, &y->weight_grad, &y->bias_grad, &y->x_stage, &y->p_stage,  &y->attended_stage};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) release(l, all[k]);
    }
    abar_device_close(l->dev);
    assert_int_equal(abar_context_memory(l->ctx).now, 0);
    abar_context_destroy(l->ctx);
}

/* ---- the optimizer ------------------------------------------------------------------------------------------------ */

static abar_layer as_layer(const lab_layer *y)
{
    abar_tensor input = y->x; /* its shape: memory comes with observe */
    input.data = NULL;
    return (abar_layer){.name = y->shape.name,
                        .input = input,
                        .attention = y->shape.attention,
                        .weight = y->weight,
                        .bias = y->bias,
                        .weight_grad = y->weight_grad,
                        .bias_grad = y->bias_grad,
                        .output_grad_scale = 1.0,
                        .window = is_conv(&y->shape) ? y->shape.window : abar_window_unit(),
                        .reads_network_input = y->shape.first};
}

static void *defaults(const abar_option *table, size_t size)
{
    void *config = calloc(1, size);
    assert_non_null(config);
    abar_options_default(table, config);
    return config;
}

/* What decides which tables there are: "rule=adamw" must be known before "beta1=0.8". */
static double read_frame(const char *options, lab_request *w)
{
    char text[512], *rest;
    double decay = 0.0;
    snprintf(text, sizeof text, "%s", options);
    snprintf(w->rule_name, sizeof w->rule_name, "sgd");
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (strncmp(word, "rule=", 5) == 0) snprintf(w->rule_name, sizeof w->rule_name, "%s", word + 5);
        if (strncmp(word, "base-lr=", 8) == 0) w->config.base_lr = strtod(word + 8, NULL);
        if (strncmp(word, "examples=", 9) == 0) w->config.examples = strtoll(word + 9, NULL, 10);
        if (strncmp(word, "weight-decay=", 13) == 0) decay = strtod(word + 13, NULL);
        if (strncmp(word, "classes=", 8) == 0) w->config.classes = strtoll(word + 8, NULL, 10);
    }
    return decay;
}

static void set_option(lab *l, lab_request *w, const abar_method *method, const abar_rule *rule, const char *name,
                       const char *value)
{
    static const char *const frame[] = {"rule", "base-lr", "weight-decay", "examples", "classes"};
    for (size_t i = 0; i < sizeof frame / sizeof *frame; i++)
        if (strcmp(name, frame[i]) == 0) return;
    abar_status status;
    if (method && abar_options_find(method->options, name))
        status = abar_options_set(l->ctx, method->options, w->own, name, value);
    else if (abar_options_find(abar_curvature_options(), name))
        status = abar_options_set(l->ctx, abar_curvature_options(), &w->common, name, value);
    else
        status = abar_options_set(l->ctx, rule->options, w->rule, name, value);
    if (status != ABAR_OK) w->refused = true;
}

static void set_options(lab *l, lab_request *w, const char *options)
{
    const abar_method *method = w->config.method ? abar_method_find(w->config.method) : NULL;
    const abar_rule *rule = abar_rule_find(w->rule_name);
    assert_non_null(rule);
    abar_options_default(abar_curvature_options(), &w->common);
    w->rule = defaults(rule->options, rule->config_size);
    if (method) w->own = defaults(method->options, method->config_size);
    if (strcmp(w->rule_name, "sgd") == 0) NEED(l, abar_options_set(l->ctx, rule->options, w->rule, "momentum", "0"));
    char text[512], *rest;
    snprintf(text, sizeof text, "%s", options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        assert_non_null(value);
        *value = '\0';
        set_option(l, w, method, rule, word, value + 1);
    }
}

void lab_request_try(lab *l, const char *method, const char *options, lab_request *w)
{
    memset(w, 0, sizeof *w);
    w->config = (abar_optim_config){.size = sizeof w->config, .method = method, .base_lr = 0.1, .examples = l->examples};
    const double decay = read_frame(options, w);
    set_options(l, w, options);
    int n = 0;
    for (int i = 0; i < l->n; i++) {
        const lab_layer *y = &l->layer[i];
        w->layers[i] = as_layer(y);
        snprintf(w->names[n], sizeof *w->names, "%.400s.weight", y->shape.name);
        w->params[n] = (abar_optim_param){w->names[n], y->weight, y->weight_grad, 1.0, decay};
        n++;
        if (!y->shape.bias) continue;
        snprintf(w->names[n], sizeof *w->names, "%.400s.bias", y->shape.name);
        w->params[n] = (abar_optim_param){w->names[n], y->bias, y->bias_grad, 1.0, decay};
        n++;
    }
    w->config.rule = w->rule_name;
    w->config.rule_config = w->rule;
    w->config.method_config = w->own;
    w->config.curvature = &w->common;
    w->config.params = w->params;
    w->config.n_params = n;
    w->config.layers = w->layers;
    w->config.n_layers = l->n;
}

void lab_request_make(lab *l, const char *method, const char *options, lab_request *w)
{
    lab_request_try(l, method, options, w);
    if (w->refused) fail_msg("%s", abar_context_error(l->ctx));
}

void lab_request_drop(lab_request *w)
{
    free(w->own);
    free(w->rule);
}

void lab_optimizer(lab *l, const char *method, const char *options)
{
    lab_request request;
    abar_optim_destroy(l->optim);
    lab_request_make(l, method, options, &request);
    NEED(l, abar_optim_create(l->dev, &request.config, &l->optim));
    lab_request_drop(&request);
}

/* ---- batches ------------------------------------------------------------------------------------------------------ */

static uint64_t next(uint64_t *noise)
{
    uint64_t z = *noise += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t lab_pick(uint64_t *noise, int64_t from, int64_t to)
{
    return from + (int64_t)(next(noise) % (uint64_t)(to - from + 1));
}

static abar_window random_window(uint64_t *noise)
{
    abar_window w = {.groups = lab_pick(noise, 1, 2)};
    for (int axis = 0; axis < 2; axis++) {
        w.kernel[axis] = lab_pick(noise, 1, 3);
        w.stride[axis] = lab_pick(noise, 1, 2);
        w.pad[axis] = lab_pick(noise, 0, 2);
        w.dilation[axis] = lab_pick(noise, 1, 2);
    }
    return w;
}

lab_shape lab_random_shape(uint64_t *noise, const char *name, bool bias)
{
    lab_shape s = {.name = name, .bias = bias, .in = lab_pick(noise, 1, 9), .out = lab_pick(noise, 1, 6)};
    const int64_t kind = lab_pick(noise, 0, 2);
    if (kind == 1) s.tokens = lab_pick(noise, 1, 5);
    if (kind < 2) return s;
    s.window = random_window(noise);
    s.in = s.window.groups * lab_pick(noise, 1, 3);
    s.out = s.window.groups * lab_pick(noise, 1, 3);
    for (int axis = 0; axis < 2; axis++) s.image[axis] = lab_pick(noise, 5, 8);
    return s;
}

double lab_draw(lab *l) { return ((double)(next(&l->noise) % 255) - 127.0) / 128.0; }

void lab_fill(lab *l, const abar_tensor *t, double scale)
{
    abar_tensor values = lab_host_copy(t);
    for (int64_t i = 0; i < abar_tensor_count(t); i++) lab_set(&values, i, scale * lab_draw(l));
    lab_copy(t, &values);
    free(values.data);
}

/* Which sequence of its example a token belongs to. */
static int64_t sequence_of(const abar_attention *a, int64_t token)
{
    if (!a->side) return 0;
    const int64_t y = (token / a->grid[1] + a->grid[0] - a->shift) % a->grid[0];
    const int64_t x = (token % a->grid[1] + a->grid[1] - a->shift) % a->grid[1];
    return y / a->side * (a->grid[1] / a->side) + x / a->side;
}

/* Positive, and 1 in sum over every sequence. */
static void draw_columns(lab *l, const lab_layer *y)
{
    const int64_t tokens = y->shape.tokens;
    double *sum = malloc((size_t)tokens * sizeof *sum);
    assert_non_null(sum);
    for (int64_t i = 0; i < l->examples * y->shape.attention.heads; i++) {
        double *t = (double *)y->attended.data + i * tokens;
        for (int64_t j = 0; j < tokens; j++) sum[j] = 0.0;
        for (int64_t j = 0; j < tokens; j++) {
            t[j] = pow(lab_draw(l), 4.0) + 0.01;
            sum[sequence_of(&y->shape.attention, j)] += t[j];
        }
        for (int64_t j = 0; j < tokens; j++) t[j] /= sum[sequence_of(&y->shape.attention, j)];
    }
    free(sum);
}

void lab_draw_batch(lab *l)
{
    for (int i = 0; i < l->n; i++) {
        lab_layer *y = &l->layer[i];
        lab_fill(l, &y->x, 1.0);
        lab_fill(l, &y->p, 1.0);
        lab_fill(l, &y->gw, 1.0);
        if (y->shape.bias) lab_fill(l, &y->gb, 1.0);
        if (y->shape.attention.heads) draw_columns(l, y);
    }
}

/* A view of the stage with the requested layout, for a tensor of these dimensions. */
static abar_tensor lying(const lab *l, const abar_tensor *t, abar_dtype dtype, const abar_tensor *stage)
{
    static const abar_layout blocked[LAB_LAYOUTS] = {
        [LAB_C8] = ABAR_LAYOUT_C8, [LAB_C16] = ABAR_LAYOUT_C16, [LAB_N16] = ABAR_LAYOUT_N16};
    abar_tensor v = abar_tensor_wrap(l->dev, stage->data, dtype, t->ndim, t->dim);
    if (t->ndim == 4) v.layout = blocked[l->lie];
    if (v.layout != ABAR_LAYOUT_STRIDED && l->dev->ops->channels_last) v.layout = ABAR_LAYOUT_NHWC; /* its only one */
    if (l->lie == LAB_GAPS)
        for (int i = 0; i < t->ndim; i++) v.stride[i] *= 2;
    if (l->lie == LAB_CHANNELS_LAST && t->ndim == 4) {
        v.stride[1] = 1;
        v.stride[3] = t->dim[1];
        v.stride[2] = t->dim[3] * v.stride[3];
    } else if (l->lie == LAB_CHANNELS_LAST) { /* the examples vary faster than what follows them */
        v.stride[t->ndim - 1] = t->ndim == 2 ? t->dim[0] : 1;
        v.stride[0] = t->ndim == 2 ? 1 : t->dim[2];
        if (t->ndim == 3) v.stride[1] = t->dim[0] * t->dim[2];
    }
    return v;
}

/* Examples first .. first + count of t, times a factor. */
static abar_tensor offer(lab *l, const abar_tensor *t, int64_t first, int64_t count, double factor, abar_dtype dtype,
                         const abar_tensor *stage)
{
    abar_tensor part = *t;
    part.data = (double *)t->data + first * t->stride[0];
    part.dim[0] = count;
    abar_tensor scaled = part;
    if (factor != 1.0) {
        scaled.data = calloc((size_t)abar_tensor_count(&part) + 1, sizeof(double));
        for (int64_t i = 0; i < abar_tensor_count(&part); i++) lab_set(&scaled, i, factor * lab_get(&part, i));
    }
    abar_tensor v = lying(l, &part, dtype, stage);
    NEED(l, abar_tensor_copy(l->ctx, &v, &scaled));
    if (factor != 1.0) free(scaled.data);
    return v;
}

void lab_observe_layer(lab *l, int index, int64_t first, int64_t count, double offered, double scale)
{
    const lab_layer *y = &l->layer[index];
    abar_layer layer = as_layer(y);
    layer.input = offer(l, &y->x, first, count, 1.0, l->dtype, &y->x_stage);
    layer.output_grad = offer(l, &y->p, first, count, offered, l->dtype, &y->p_stage);
    if (y->attended.ndim)
        layer.attention.columns = offer(l, &y->attended, first, count, 1.0, abar_device_dtype(l->dev), &y->attended_stage);
    layer.output_grad_scale = scale;
    NEED(l, abar_optim_observe(l->optim, index, &layer));
}

void lab_observe(lab *l)
{
    for (int i = 0; i < l->n; i++) lab_observe_layer(l, i, 0, l->examples, 1.0, 1.0);
}

void lab_calibrate_part(lab *l, int64_t first, int64_t count)
{
    for (int i = 0; i < l->n; i++) {
        if (!abar_optim_wants_calibration(l->optim, i)) continue;
        abar_tensor input = offer(l, &l->layer[i].x, first, count, 1.0, l->dtype, &l->layer[i].x_stage);
        NEED(l, abar_optim_calibrate(l->optim, i, &input));
    }
}

void lab_calibrate(lab *l)
{
    lab_calibrate_part(l, 0, l->examples);
    NEED(l, abar_optim_end_calibration(l->optim));
}

void lab_load_gradients(lab *l)
{
    for (int i = 0; i < l->n; i++) {
        const lab_layer *y = &l->layer[i];
        NEED(l, abar_tensor_copy(l->ctx, &y->weight_grad, &y->gw));
        if (y->shape.bias) NEED(l, abar_tensor_copy(l->ctx, &y->bias_grad, &y->gb));
    }
}

abar_step_report lab_step(lab *l, double lr)
{
    abar_step_report report = {.size = sizeof report};
    lab_load_gradients(l);
    NEED(l, abar_optim_step(l->optim, &(abar_step_config){.size = sizeof(abar_step_config), .lr = lr}, &report));
    return report;
}

static void clear(const abar_tensor *t)
{
    abar_tensor zeros = lab_host_copy(t);
    memset(zeros.data, 0, abar_tensor_bytes(&zeros));
    lab_copy(t, &zeros);
    free(zeros.data);
}

void lab_clear_weights(lab *l)
{
    for (int i = 0; i < l->n; i++) {
        const lab_layer *y = &l->layer[i];
        clear(&y->weight);
        if (y->shape.bias) clear(&y->bias);
    }
}

void lab_new_batch(lab *l)
{
    lab_draw_batch(l);
    lab_clear_weights(l);
}

void lab_observed_step(lab *l)
{
    lab_observe(l);
    assert_false(lab_step(l, 1.0).skipped);
}

/* The same numbers for a lab of the same shapes. */
void lab_copy_batch(const lab *from, lab *to)
{
    assert_int_equal(from->n, to->n);
    for (int i = 0; i < from->n; i++) {
        const lab_layer *a = &from->layer[i], *b = &to->layer[i];
        memcpy(b->x.data, a->x.data, abar_tensor_bytes(&a->x));
        memcpy(b->p.data, a->p.data, abar_tensor_bytes(&a->p));
        memcpy(b->gw.data, a->gw.data, abar_tensor_bytes(&a->gw));
        if (a->shape.bias) memcpy(b->gb.data, a->gb.data, abar_tensor_bytes(&a->gb));
        if (b->attended.ndim) memcpy(b->attended.data, a->attended.data, abar_tensor_bytes(&a->attended));
    }
    lab_clear_weights(to);
}
