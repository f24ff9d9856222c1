/* ref and cpu against PyTorch: every case of tests/golden/ops.safetensors (tests/oracle/README.md says what is in it), to 1e-9
 * for ref and 1e-4 for the cpu's float32. */
#include "op_instance.h"

#include "io/io.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#define FEWEST_CASES 81 /* the file holds at least so many */

/* ---- from the file's words to ours ------------------------------------------------------------------------------ */

typedef struct golden_op {
    const char *name;
    abar__op_kind kind;
    abar__activation activation;
    bool residual, average;
} golden_op;

static const golden_op golden_ops[] = {
    {.name = "linear", ABAR_OP_LINEAR},
    {.name = "conv2d", ABAR_OP_CONV2D},
    {.name = "batch_norm", ABAR_OP_BATCH_NORM},
    {.name = "batch_norm_add_relu", ABAR_OP_BATCH_NORM, .activation = ABAR_ACT_RELU, .residual = true},
    {.name = "layer_norm", ABAR_OP_LAYER_NORM},
    {.name = "relu", ABAR_OP_ACTIVATION, .activation = ABAR_ACT_RELU},
    {.name = "tanh", ABAR_OP_ACTIVATION, .activation = ABAR_ACT_TANH},
    {.name = "gelu_erf", ABAR_OP_ACTIVATION, .activation = ABAR_ACT_GELU_ERF},
    {.name = "gelu_tanh", ABAR_OP_ACTIVATION, .activation = ABAR_ACT_GELU_TANH},
    {.name = "max_pool", ABAR_OP_POOL2D},
    {.name = "avg_pool", ABAR_OP_POOL2D, .average = true},
    {.name = "global_avg_pool", ABAR_OP_POOL2D, .average = true},
    {.name = "add", ABAR_OP_ADD},
    {.name = "concat", ABAR_OP_CONCAT},
    {.name = "shortcut_a", ABAR_OP_SHORTCUT},
    {.name = "softmax_cross_entropy", ABAR_OP_SOFTMAX_CROSS_ENTROPY},
    {.name = "mean_squared_error", ABAR_OP_SQUARED_ERROR},
    {.name = "dropout", ABAR_OP_DROPOUT},
    {.name = "attention", ABAR_OP_ATTENTION},
    {.name = "embedding", ABAR_OP_EMBEDDING},
    {.name = "tokens", ABAR_OP_TOKENS},
    {.name = "class_token", ABAR_OP_CLASS_TOKEN},
    {.name = "patch_merge", ABAR_OP_PATCH_MERGE},
    {.name = "token_mean", ABAR_OP_TOKEN_MEAN},
    {.name = "token_first", ABAR_OP_TOKEN_FIRST},
};

static double number(const cJSON *settings, const char *key, double fallback)
{
    const cJSON *item = cJSON_GetObjectItem(settings, key);
    return item ? item->valuedouble : fallback;
}

/* A list of two numbers, or one number for both; out stays as it is where the key is absent. */
static void pair(const cJSON *settings, const char *key, int64_t out[2])
{
    const cJSON *item = cJSON_GetObjectItem(settings, key);
    for (int i = 0; item && i < 2; i++)
        out[i] = (int64_t)(cJSON_IsArray(item) ? cJSON_GetArrayItem(item, i) : item)->valuedouble;
}

/* One case of the file: what to compute, from what, and PyTorch's answer. */
typedef struct golden_case {
    char name[64];
    abar__op_desc desc;
    abar__run run;
    op_inputs in;
    op_outputs expected;
} golden_case;

static bool find(const abar__safetensors *file, const golden_case *c, const char *key, abar_tensor *out)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", c->name, key);
    return abar__safetensors_find(file, full, out);
}

static double *load(const abar__safetensors *file, const golden_case *c, const char *key)
{
    abar_tensor from;
    if (!find(file, c, key, &from)) return NULL;
    double *values = calloc((size_t)abar_tensor_count(&from), sizeof *values);
    assert_non_null(values);
    abar_tensor to = abar_tensor_wrap(NULL, values, ABAR_F64, from.ndim, from.dim);
    abar__tensor_copy_host(&to, &from);
    return values;
}

static abar__shape shape_of(const abar__safetensors *file, const golden_case *c, const char *key)
{
    abar_tensor t;
    abar__shape shape = {0};
    if (!find(file, c, key, &t)) return shape;
    assert_in_range(t.ndim, 1, 4);
    shape.ndim = t.ndim;
    memcpy(shape.dim, t.dim, (size_t)t.ndim * sizeof *t.dim);
    return shape;
}

/* What sequences and dropout need. */
static void describe_sequence(const abar__safetensors *file, const cJSON *settings, golden_case *c)
{
    abar__op_desc *d = &c->desc;
    d->heads = (int64_t)number(settings, "heads", 0.0);
    d->causal = cJSON_IsTrue(cJSON_GetObjectItem(settings, "causal"));
    d->side = (int64_t)number(settings, "side", 0.0);
    d->shift = (int64_t)number(settings, "shift", 0.0);
    pair(settings, "grid", d->grid);
    d->drop = number(settings, "drop", 0.0);
    d->number = (uint32_t)number(settings, "number", 0.0);
    d->per_sample = cJSON_IsTrue(cJSON_GetObjectItem(settings, "per_sample"));
    c->run.seed = (uint64_t)number(settings, "seed", 0.0);
    c->run.step = (uint32_t)number(settings, "step", 0.0);
    c->run.sample0 = (int64_t)number(settings, "sample0", 0.0);
    c->run.observing = true;
    if (d->kind != ABAR_OP_EMBEDDING) return;
    d->vocabulary = shape_of(file, c, "w").dim[0];
    d->positions = shape_of(file, c, "b").dim[0];
    d->need_dx[0] = false;
}

static void describe(const abar__safetensors *file, const cJSON *settings, golden_case *c)
{
    const char *op = cJSON_GetStringValue(cJSON_GetObjectItem(settings, "op"));
    const golden_op *known = NULL;
    for (size_t i = 0; op && i < sizeof golden_ops / sizeof *golden_ops; i++)
        if (strcmp(golden_ops[i].name, op) == 0) known = &golden_ops[i];
    if (!known) fail_msg("%s: unknown operation", c->name);
    abar__op_desc *d = &c->desc;
    *d = (abar__op_desc){.kind = known->kind,
                         .activation = known->activation,
                         .residual = known->residual,
                         .average = known->average,
                         .window = abar_window_unit(),
                         .need_dx = {true, true}};
    d->in[0] = shape_of(file, c, "x");
    d->in[1] = shape_of(file, c, "x2");
    d->n_in = d->in[1].ndim ? 2 : 1;
    d->out = shape_of(file, c, "y");
    d->bias = c->in.param[1] != NULL;
    d->eps = number(settings, "eps", 0.0);
    d->momentum = number(settings, "momentum", 0.0);
    d->smoothing = number(settings, "label_smoothing", 0.0);
    d->soft_targets = c->in.target && known->kind == ABAR_OP_SOFTMAX_CROSS_ENTROPY;
    d->label_pairs = c->in.share != NULL;
    d->window.groups = (int64_t)number(settings, "groups", 1.0);
    pair(settings, "kernel", d->window.kernel);
    pair(settings, "stride", d->window.stride);
    pair(settings, "pad", d->window.pad);
    pair(settings, "dilation", d->window.dilation);
    if (strcmp(op, "global_avg_pool") == 0) {
        d->out = (abar__shape){4, {d->out.dim[0], d->out.dim[1], 1, 1}}; /* the file leaves out the ones */
        memcpy(d->window.kernel, d->in[0].dim + 2, sizeof d->window.kernel);
    }
    bool training = !cJSON_IsFalse(cJSON_GetObjectItem(settings, "training"));
    c->run = (abar__run){.training = training, .valid = d->in[0].dim[0], .loss_scale = 1.0};
    describe_sequence(file, settings, c);
}

static void load_labels(const abar__safetensors *file, golden_case *c)
{
    abar_tensor from;
    if (!find(file, c, "target", &from)) return;
    if (from.dtype != ABAR_I32) {
        c->in.target = load(file, c, "target");
        return;
    }
    size_t count = (size_t)abar_tensor_count(&from);
    c->in.labels = calloc(count, sizeof *c->in.labels);
    assert_non_null(c->in.labels);
    memcpy(c->in.labels, from.data, count * sizeof *c->in.labels);
    if (!find(file, c, "share", &from)) return;
    count = (size_t)abar_tensor_count(&from);
    assert_int_equal(from.dtype, ABAR_F32);
    c->in.share = calloc(count, sizeof *c->in.share);
    assert_non_null(c->in.share);
    memcpy(c->in.share, from.data, count * sizeof *c->in.share);
}

static void load_case(const abar__safetensors *file, golden_case *c)
{
    const char *text = abar__safetensors_metadata(file, c->name);
    if (!text) fail_msg("%s: no settings", c->name);
    c->in = (op_inputs){.x = {load(file, c, "x"), load(file, c, "x2")},
                        .param = {load(file, c, "w"), load(file, c, "b")},
                        .buffer = {load(file, c, "running_mean"), load(file, c, "running_var")},
                        .dy = load(file, c, "dy")};
    load_labels(file, c);
    c->expected = (op_outputs){.y = load(file, c, "y"),
                               .dx = {load(file, c, "dx"), load(file, c, "dx2")},
                               .dparam = {load(file, c, "dw"), load(file, c, "db")},
                               .buffer = {load(file, c, "running_mean_after"), load(file, c, "running_var_after")},
                               .columns = load(file, c, "columns")};
    cJSON *settings = cJSON_Parse(text);
    assert_non_null(settings);
    describe(file, settings, c);
    cJSON_Delete(settings);
}

/* ---- the comparison --------------------------------------------------------------------------------------------- */

/* Operations are differentiated in training alone: of the others only the forward values are compared. */
static void forward_only(golden_case *c)
{
    double **gone[] = {&c->in.dy, &c->expected.dx[0], &c->expected.dx[1], &c->expected.dparam[0], &c->expected.dparam[1]};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        free(*gone[i]);
        *gone[i] = NULL;
    }
}

static void round_array(double *values, int64_t count)
{
    for (int64_t i = 0; values && i < count; i++) values[i] = (double)(float)values[i];
}

/* What the cpu will see, so that the check that it leaves its inputs alone can be exact. */
static void round_inputs(golden_case *c)
{
    const abar__op_desc *d = &c->desc;
    for (int i = 0; i < d->n_in; i++) round_array(c->in.x[i], abar__shape_count(&d->in[i]));
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) round_array(c->in.param[i], op_param_count(d, i));
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) round_array(c->in.buffer[i], op_buffer_count(d, i));
    round_array(c->in.dy, abar__shape_count(&d->out));
}

static int compare_case(abar_device *dev, golden_case *c, double tolerance)
{
    op_outputs out;
    if (!c->run.training) forward_only(c);
    if (abar_device_dtype(dev) == ABAR_F32) round_inputs(c);
    op_run(dev, &c->desc, &c->run, &c->in, &out);
    if (op_is_loss(&c->desc)) {
        c->expected.result = out.result; /* the file has no counts ... */
        c->expected.result.loss = c->expected.y[0];
        free(c->expected.y); /* ... and our losses no y */
        c->expected.y = NULL;
    }
    int bad = op_compare(c->name, &c->desc, &out, &c->expected, tolerance);
    op_outputs_free(&out);
    return bad;
}

static void compare_all(const char *device, double tolerance)
{
    abar_context *ctx;
    abar_device *dev;
    abar__safetensors *file;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    assert_int_equal(abar_device_open(ctx, device, NULL, &dev), ABAR_OK);
    if (abar__safetensors_open(ctx, ABAR_TEST_DATA "/golden/ops.safetensors", &file) != ABAR_OK)
        fail_msg("%s", abar_context_error(ctx));
    int cases = 0, bad = 0;
    for (int i = 0; i < abar__safetensors_count(file); i++) {
        abar_tensor tensor;
        const char *name = abar__safetensors_get(file, i, &tensor), *end = strrchr(name, '.');
        if (!end || strcmp(end, ".y") != 0) continue;
        golden_case c = {0};
        snprintf(c.name, sizeof c.name, "%.*s", (int)(end - name), name);
        load_case(file, &c);
        bad += compare_case(dev, &c, tolerance);
        cases++;
        op_inputs_free(&c.in);
        op_outputs_free(&c.expected);
    }
    assert_int_equal(bad, 0);
    assert_in_range(cases, FEWEST_CASES, 100000);
    abar__safetensors_close(file);
    abar_device_close(dev);
    abar_context_destroy(ctx);
}

static void ref_on_golden_cases_equals_pytorch(void **state)
{
    (void)state;
    compare_all("ref", 1e-9);
}

static void cpu_on_golden_cases_is_near_pytorch(void **state)
{
    (void)state;
    compare_all("cpu", 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ref_on_golden_cases_equals_pytorch),
        cmocka_unit_test(cpu_on_golden_cases_is_near_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
