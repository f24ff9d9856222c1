/* Running one operation from host arrays: allocation, poison, layouts, comparison. */
#include "op_instance.h"

#include "device/ref/ref_nn.h"

#include "base/rng.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- shapes ---------------------------------------------------------------------------------------------------- */

bool op_is_loss(const abar__op_desc *d) { return d->kind == ABAR_OP_SOFTMAX_CROSS_ENTROPY || d->kind == ABAR_OP_SQUARED_ERROR; }

bool op_has_stream(const abar__op_desc *d) { return d->kind == ABAR_OP_LAYER_NORM && d->residual; }

abar__shape op_param_shape(const abar__op_desc *d, int i)
{
    const abar__shape *x = &d->in[0];
    const abar_window *w = &d->window;
    switch (d->kind) {
    case ABAR_OP_LINEAR:
        if (i == 0) return (abar__shape){2, {d->out.dim[1], x->dim[1]}};
        return (abar__shape){1, {d->bias ? d->out.dim[1] : 0}};
    case ABAR_OP_CONV2D:
        if (i == 0) return (abar__shape){4, {d->out.dim[1], x->dim[1] / w->groups, w->kernel[0], w->kernel[1]}};
        return (abar__shape){1, {d->bias ? d->out.dim[1] : 0}};
    case ABAR_OP_BATCH_NORM: return (abar__shape){1, {x->dim[1]}};
    case ABAR_OP_LAYER_NORM: return (abar__shape){1, {i == 0 || d->bias ? x->dim[x->ndim - 1] : 0}};
    case ABAR_OP_EMBEDDING: return (abar__shape){2, {i == 0 ? d->vocabulary : d->positions, d->out.dim[2]}};
    case ABAR_OP_CLASS_TOKEN: return (abar__shape){3, {1, i == 0 ? 1 : d->out.dim[1], d->out.dim[2]}};
    case ABAR_OP_ATTENTION:
        if (i == 1 || d->side == 0) return (abar__shape){1, {0}};
        return (abar__shape){2, {(2 * d->side - 1) * (2 * d->side - 1), d->heads}};
    default: return (abar__shape){1, {0}};
    }
}

int64_t op_param_count(const abar__op_desc *d, int i)
{
    abar__shape shape = op_param_shape(d, i);
    return abar__shape_count(&shape);
}

/* Only weights have a bf16 copy: biases, tokens and the parameters of norms are read as they are. */
static bool has_shadow(const abar_device *dev, const abar__op_desc *d, int i)
{
    if (dev->activation != ABAR_BF16) return false;
    if (i == 1 && d->bias) return d->kind == ABAR_OP_LINEAR || d->kind == ABAR_OP_CONV2D;
    return i == 0 && (d->kind == ABAR_OP_LINEAR || d->kind == ABAR_OP_CONV2D || d->kind == ABAR_OP_EMBEDDING);
}

int64_t op_buffer_count(const abar__op_desc *d, int i)
{
    (void)i; /* mean and variance are equally long */
    return d->kind == ABAR_OP_BATCH_NORM ? d->in[0].dim[1] : 0;
}

int64_t op_column_count(const abar__op_desc *d)
{
    return d->kind == ABAR_OP_ATTENTION ? d->out.dim[0] * d->heads * d->out.dim[1] : 0; /* (N, heads, T) */
}

/* ---- random inputs --------------------------------------------------------------------------------------------- */

/* Each array of each case has its own random sequence, so that adding a case changes no other. */
static uint64_t stream(const op_case *c, int array)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *p = c->name; *p; p++) hash = (hash ^ (uint64_t)*p) * 0x100000001b3u;
    return hash + (uint64_t)array;
}

static double *normal_array(const op_case *c, int array, int64_t count, double scale, double offset)
{
    if (count == 0) return NULL;
    double *values = calloc((size_t)count, sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) {
        double pair[2];
        abar__normal(abar__random(stream(c, array), ABAR_DRAW_SYNTHETIC, 0, (uint64_t)i), pair);
        values[i] = (double)(float)(scale * pair[0] + offset);
    }
    return values;
}

static void soften(double *target, int64_t rows, int64_t classes) /* each row positive, with sum 1 */
{
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int64_t k = 0; k < classes; k++) sum += target[r * classes + k] = exp(target[r * classes + k]);
        for (int64_t k = 0; k < classes; k++) target[r * classes + k] = (double)(float)(target[r * classes + k] / sum);
    }
}

/* The share of the first label of each pair; in the first five rows numbers that decide something. */
static void make_share(const op_case *c, int64_t rows, op_inputs *out)
{
    static const float particular[] = {0.5f, 1.0f, 0.0f, 0.25f, 0.75f};
    out->share = calloc((size_t)rows, sizeof *out->share);
    assert_non_null(out->share);
    for (int64_t r = 0; r < rows; r++) {
        abar__draw draw = abar__random(stream(c, 53), ABAR_DRAW_SYNTHETIC, 0, (uint64_t)r);
        out->share[r] = r < 5 ? particular[r] : (float)abar__uniform(draw.u[0]);
    }
    if (rows > 3) out->labels[7] = out->labels[6]; /* row 3 is mixed with one of its own class */
}

static void make_target(const op_case *c, const abar__op_desc *d, op_inputs *out)
{
    int64_t classes = d->in[0].dim[d->in[0].ndim - 1], rows = abar__shape_count(&d->in[0]) / classes;
    if (d->kind == ABAR_OP_SQUARED_ERROR || d->soft_targets) {
        out->target = normal_array(c, 50, abar__shape_count(&d->in[0]), 1.0, 0.0);
        if (d->soft_targets) soften(out->target, rows, classes);
        return;
    }
    const int64_t each = d->label_pairs ? 2 : 1;
    out->labels = calloc((size_t)(each * rows), sizeof *out->labels);
    assert_non_null(out->labels);
    for (int64_t i = 0; i < each * rows; i++) {
        abar__draw draw = abar__random(stream(c, 51), ABAR_DRAW_SYNTHETIC, 0, (uint64_t)i);
        out->labels[i] = (int32_t)abar__below(draw.u[0], (uint32_t)classes);
    }
    if (d->label_pairs) make_share(c, rows, out);
    /* samples that are not valid need no proper label */
    for (int64_t i = op_case_run(c).valid * each * rows / d->in[0].dim[0]; i < each * rows; i++) out->labels[i] = -1;
}

static void make_tokens(const op_case *c, double *token, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        token[i] = abar__below(abar__random(stream(c, 52), ABAR_DRAW_SYNTHETIC, 0, (uint64_t)i).u[0], (uint32_t)c->vocabulary);
}

/* The spread of parameter i. Before a GELU z is about one, as in a network: its derivative magnifies the rounding of large z.
 */
static double spread_of(const abar__op_desc *d, int i)
{
    const bool gelu = d->activation == ABAR_ACT_GELU_ERF || d->activation == ABAR_ACT_GELU_TANH;
    return d->kind == ABAR_OP_LINEAR && gelu && i == 0 ? 1.0 / sqrt((double)d->in[0].dim[d->in[0].ndim - 1]) : 0.5;
}

void op_inputs_create(const op_case *c, op_inputs *out)
{
    *out = (op_inputs){0};
    abar__op_desc d = op_case_desc(c);
    bool norm = d.kind == ABAR_OP_BATCH_NORM || d.kind == ABAR_OP_LAYER_NORM;
    for (int i = 0; i < d.n_in; i++) {
        int64_t count = abar__shape_count(&d.in[i]);
        out->x[i] = normal_array(c, i, count, norm && i == 0 ? 2.0 : 1.0, norm ? 0.5 : 0.0);
        for (int64_t e = 0; c->ties && e < count; e++) out->x[i][e] = round(out->x[i][e]);
        if (d.kind == ABAR_OP_EMBEDDING) make_tokens(c, out->x[i], count);
    }
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        int64_t count = op_param_count(&d, i);
        out->param[i] = normal_array(c, 10 + i, count, spread_of(&d, i), norm && i == 0 ? 1.0 : 0.0);
        if (c->accumulate || (c->table_written && i == 0)) out->dparam[i] = normal_array(c, 20 + i, count, 1.0, 0.0);
    }
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) {
        out->buffer[i] = normal_array(c, 30 + i, op_buffer_count(&d, i), 1.0, 0.0);
        for (int64_t e = 0; i == 1 && e < op_buffer_count(&d, i); e++)
            out->buffer[i][e] = (double)(float)(0.5 + out->buffer[i][e] * out->buffer[i][e]);
    }
    out->table_written = c->table_written;
    if (!c->evaluate) out->dy = normal_array(c, 40, abar__shape_count(&d.out), 1.0, 0.0);
    if (d.input_activation != ABAR_ACT_NONE) out->z = normal_array(c, 43, abar__shape_count(&d.in[0]), 1.0, 0.0);
    out->dz_given = c->dz_given;
    if (c->second_dy) out->dy2 = normal_array(c, 41, abar__shape_count(&d.out), 1.0, 0.0);
    if (c->stream_dy) out->dstream = normal_array(c, 42, abar__shape_count(&d.out), 1.0, 0.0);
    if (op_is_loss(&d)) make_target(c, &d, out);
}

static void round_to_bf16(double *values, int64_t count)
{
    for (int64_t i = 0; values && i < count; i++) values[i] = (double)abar__bf16_load(abar__bf16_round((float)values[i]));
}

void op_inputs_round(const abar_device *dev, const abar__op_desc *d, op_inputs *in)
{
    if (dev->activation != ABAR_BF16) return;
    for (int i = 0; i < d->n_in && d->kind != ABAR_OP_EMBEDDING; i++) round_to_bf16(in->x[i], abar__shape_count(&d->in[i]));
    round_to_bf16(in->z, abar__shape_count(&d->in[0]));
    round_to_bf16(in->dy, abar__shape_count(&d->out));
    round_to_bf16(in->dy2, abar__shape_count(&d->out));
    round_to_bf16(in->dstream, abar__shape_count(&d->out));
    round_to_bf16(in->target, abar__shape_count(&d->in[0]));
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++)
        if (has_shadow(dev, d, i)) round_to_bf16(in->param[i], op_param_count(d, i));
}

void op_inputs_free(op_inputs *in)
{
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) free(in->x[i]);
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        free(in->param[i]);
        free(in->dparam[i]);
    }
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) free(in->buffer[i]);
    free(in->z);
    free(in->dy);
    free(in->dy2);
    free(in->dstream);
    free(in->target);
    free(in->labels);
    free(in->share);
    *in = (op_inputs){0};
}

void op_outputs_free(op_outputs *out)
{
    free(out->y);
    free(out->dz);
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) free(out->dx[i]);
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) free(out->dparam[i]);
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) free(out->buffer[i]);
    free(out->columns);
    free(out->stream);
    *out = (op_outputs){0};
}

/* ---- one operation on a device --------------------------------------------------------------------------------- */

/* NULL for nothing, as a net passes it. */
static void *take(op_instance *t, size_t bytes)
{
    void *memory = NULL;
    if (bytes == 0) return NULL;
    if (abar_device_alloc(t->dev, bytes, &memory) != ABAR_OK) fail_msg("%s", abar_context_error(t->dev->ctx));
    assert_in_range(t->n_blocks, 0, OP_MAX_BLOCK - 1);
    t->blocks[t->n_blocks].memory = memory;
    t->blocks[t->n_blocks++].bytes = bytes;
    return memory;
}

/* A value between operations: of the activations' dtype. No memory yet. */
static abar_tensor value_of(const op_instance *t, const abar__shape *shape, abar_layout layout)
{
    return abar__shape_view(t->dev, shape, layout);
}

/* Input i; tokens are integers on every device. */
static abar_tensor input_of(const op_instance *t, int i)
{
    abar_tensor x = value_of(t, &t->op->desc.in[i], t->op->in_layout[i]);
    if (t->op->desc.kind == ABAR_OP_EMBEDDING) x.dtype = ABAR_I32;
    return x;
}

/* Memory for everything the operation reads and writes. */
static void take_memory(op_instance *out)
{
    abar_device *dev = out->dev;
    const abar__op_desc *d = &out->op->desc;
    const abar__op *op = out->op;
    size_t element = abar_dtype_size(abar_device_dtype(dev)), y_bytes = abar__shape_bytes(dev, &d->out, op->out_layout);
    if (dev->ops->stream) { /* a queued device writes its loss into memory that host and device share */
        void *shared;
        assert_int_equal(dev->ops->stream->shared_alloc(dev, sizeof *out->shared, &shared), ABAR_OK);
        out->shared = shared;
    }
    for (int i = 0; i < d->n_in; i++) {
        abar_tensor x = input_of(out, i);
        out->x[i] = take(out, abar_tensor_bytes(&x));
    }
    if (!op_is_loss(d)) {
        out->y = op->y_is_x ? out->x[0] : take(out, y_bytes);
        out->dy = take(out, y_bytes);
        out->dy2 = take(out, y_bytes);
    }
    if (op_has_stream(d)) {
        out->stream = take(out, y_bytes);
        out->dstream = take(out, y_bytes);
    }
    if (op->slopes_dx) out->z = take(out, abar__shape_bytes(dev, &d->in[0], op->in_layout[0]));
    for (int i = 0; i < d->n_in; i++)
        if (d->need_dx[i])
            out->dx[i] = op->y_is_x && i == 0 ? out->dy : take(out, abar__shape_bytes(dev, &d->in[i], op->in_layout[i]));
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        out->param[i] = take(out, element * (size_t)op_param_count(d, i));
        out->dparam[i] = take(out, element * (size_t)op_param_count(d, i));
        if (has_shadow(dev, d, i)) out->shadow[i] = take(out, abar_dtype_size(ABAR_BF16) * (size_t)op_param_count(d, i));
    }
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) out->buffer[i] = take(out, element * (size_t)op_buffer_count(d, i));
    if (op_is_loss(d)) {
        const int64_t count = abar__shape_count(&d->in[0]), rows = count / d->in[0].dim[d->in[0].ndim - 1];
        const size_t values = element * (size_t)count, labels = 2 * sizeof(int32_t) * (size_t)rows;
        out->target = take(out, d->label_pairs ? labels : values);
        if (d->label_pairs) out->share = take(out, sizeof(float) * (size_t)rows);
    }
    out->columns = take(out, element * (size_t)op_column_count(d));
    out->saved = take(out, op->saved_bytes);
    out->scratch = take(out, op->scratch_bytes);
}

void op_instance_create(abar_device *dev, const abar__op_desc *d, const abar__run *run, op_instance *out)
{
    *out = (op_instance){.dev = dev, .run = *run};
    if (abar__op_create(dev, d, &out->op) != ABAR_OK) fail_msg("%s", abar_context_error(dev->ctx));
    take_memory(out);
}

bool op_instance_create_with(abar_device *dev, const abar__op_impl *impl, const abar__op_desc *d, const abar__run *run,
                             op_instance *out)
{
    void *memory;
    *out = (op_instance){.dev = dev, .run = *run};
    if (impl->kind != d->kind) return false;
    assert_int_equal(abar__alloc(dev->ctx, sizeof *out->op, &memory), ABAR_OK);
    out->op = memory;
    *out->op = (abar__op){.dev = dev, .impl = impl, .desc = *d, .out_layout = d->out_layout};
    memcpy(out->op->in_layout, d->in_layout, sizeof d->in_layout);
    abar_status status = impl->create(out->op);
    if (status == ABAR_OK) {
        take_memory(out);
        return true;
    }
    abar__free(dev->ctx, memory, sizeof *out->op);
    if (status != ABAR_E_UNSUPPORTED) fail_msg("%s: %s", impl->name, abar_context_error(dev->ctx));
    return false;
}

void op_instance_destroy(op_instance *t)
{
    abar__op_destroy(t->op);
    if (t->shared) t->dev->ops->stream->shared_free(t->dev, t->shared, sizeof *t->shared);
    for (int i = 0; i < t->n_blocks; i++) abar_device_free(t->dev, t->blocks[i].memory, t->blocks[i].bytes);
    *t = (op_instance){0};
}

/* ---- to the device and back ------------------------------------------------------------------------------------ */

/* A parameter or its gradient: of the device's dtype, convolution weights in the device's order. */
static abar_tensor param_of(const op_instance *t, int i)
{
    abar__shape shape = op_param_shape(&t->op->desc, i);
    if (shape.ndim == 4 && t->dev->ops->channels_last)
        return abar_tensor_wrap_channels_last(NULL, NULL, abar_device_dtype(t->dev), shape.dim);
    return abar_tensor_wrap(NULL, NULL, abar_device_dtype(t->dev), shape.ndim, shape.dim);
}

static abar_tensor buffer_of(const op_instance *t, int i)
{
    return abar_tensor_wrap(NULL, NULL, abar_device_dtype(t->dev), 1, (int64_t[]){op_buffer_count(&t->op->desc, i)});
}

/* Bytes between host and device, done when it returns. */
static void move(const op_instance *t, void *to, const void *from, size_t bytes)
{
    const abar__stream_ops *stream = t->dev->ops->stream;
    if (!stream) {
        memcpy(to, from, bytes);
        return;
    }
    if (stream->copy_bytes(t->dev, to, from, bytes) != ABAR_OK || abar_device_wait(t->dev) != ABAR_OK)
        fail_msg("copy: %s", abar_context_error(t->dev->ctx));
}

/* NaN in every float, -1 as a number. */
static void spoil(const op_instance *t, void *memory, size_t bytes)
{
    enum { PIECE = 1 << 16 };
    static unsigned char ones[PIECE];
    memset(ones, 0xff, sizeof ones);
    size_t done = bytes < PIECE ? bytes : PIECE;
    if (done) move(t, memory, ones, done);
    for (; done < bytes; done *= 2) /* copies what is poisoned already: large workspaces never cross the bus */
        move(t, (char *)memory + done, memory, bytes - done < done ? bytes - done : done);
}

/* view: what the device holds, with data unset. */
static void put(const op_instance *t, void *to, const double *from, abar_tensor view)
{
    if (!to || !from || abar_tensor_count(&view) == 0) return;
    abar_tensor src = abar_tensor_wrap(NULL, (void *)(uintptr_t)from, ABAR_F64, view.ndim, view.dim);
    view.data = malloc(abar_tensor_bytes(&view));
    assert_non_null(view.data);
    memset(view.data, 0xff, abar_tensor_bytes(&view)); /* gaps between rows stay poisoned */
    abar__tensor_copy_host(&view, &src);
    move(t, to, view.data, abar_tensor_bytes(&view));
    free(view.data);
}

/* A copy of the device's bytes in host memory, which the caller frees. */
static abar_tensor fetch(const op_instance *t, const void *from, abar_tensor view)
{
    view.data = malloc(abar_tensor_bytes(&view));
    assert_non_null(view.data);
    move(t, view.data, from, abar_tensor_bytes(&view));
    return view;
}

static double *get(const op_instance *t, const void *from, abar_tensor view)
{
    if (!from || abar_tensor_count(&view) == 0) return NULL;
    double *to = calloc((size_t)abar_tensor_count(&view), sizeof *to);
    assert_non_null(to);
    abar_tensor src = fetch(t, from, view), dst = abar_tensor_wrap(NULL, to, ABAR_F64, view.ndim, view.dim);
    abar__tensor_copy_host(&dst, &src);
    free(src.data);
    return to;
}

static void load_param(op_instance *t, const op_inputs *in, int i)
{
    abar_tensor view = param_of(t, i);
    put(t, t->param[i], in->param[i], view);
    put(t, t->dparam[i], in->dparam[i], view);
    view.dtype = ABAR_BF16;
    put(t, t->shadow[i], in->param[i], view);
}

void op_instance_load(op_instance *t, const op_inputs *in)
{
    const abar__op *op = t->op;
    const abar__op_desc *d = &op->desc;
    for (int i = 0; i < t->n_blocks; i++) spoil(t, t->blocks[i].memory, t->blocks[i].bytes);
    memset(&t->result, 0xff, sizeof t->result);
    if (t->shared) *t->shared = t->result;
    for (int i = 0; i < d->n_in; i++) put(t, t->x[i], in->x[i], input_of(t, i));
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) load_param(t, in, i);
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) put(t, t->buffer[i], in->buffer[i], buffer_of(t, i));
    put(t, t->z, in->z, value_of(t, &d->in[0], op->in_layout[0]));
    put(t, t->dy, in->dy, value_of(t, &d->out, op->out_layout));
    put(t, t->dy2, in->dy2, value_of(t, &d->out, op->out_layout));
    put(t, t->dstream, in->dstream, value_of(t, &d->out, op->out_layout));
    put(t, t->target, in->target, value_of(t, &d->in[0], ABAR_LAYOUT_STRIDED));
    int64_t rows = abar__shape_count(&d->in[0]) / d->in[0].dim[d->in[0].ndim - 1];
    if (in->labels) move(t, t->target, in->labels, (size_t)(in->share ? 2 * rows : rows) * sizeof *in->labels);
    if (in->share) move(t, t->share, in->share, (size_t)rows * sizeof *in->share);
}

static abar__op_args arguments(op_instance *t)
{
    abar__op_args a = {.run = &t->run,
                       .y = t->y,
                       .stream = t->stream,
                       .target = t->target,
                       .share = t->share,
                       .saved = t->saved,
                       .scratch = t->scratch};
    if (op_is_loss(&t->op->desc)) a.result = t->shared ? t->shared : &t->result;
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) a.x[i] = t->x[i];
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        a.param[i] = t->param[i];
        a.shadow[i] = t->shadow[i];
    }
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) a.buffer[i] = t->buffer[i];
    return a;
}

/* Waits for a queued device, whose work may still fail. */
static void finish(op_instance *t, abar_status status, const char *what)
{
    if (status == ABAR_OK) status = abar_device_wait(t->dev);
    if (status != ABAR_OK) fail_msg("%s of %s: %s", what, t->op->impl->name, abar_context_error(t->dev->ctx));
    if (t->shared) t->result = *t->shared;
}

void op_instance_forward(op_instance *t)
{
    abar__op_args a = arguments(t);
    finish(t, abar__op_forward(t->op, &a), "forward");
}

void op_instance_backward(op_instance *t, const op_inputs *in)
{
    abar__op_args a = arguments(t);
    if (!(t->op->backward_needs & ABAR_NEEDS_Y)) a.y = NULL;
    if (!(t->op->backward_needs & ABAR_NEEDS_STREAM)) a.stream = NULL;
    if (in->dstream) a.dstream = t->dstream;
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) {
        if (!(t->op->backward_needs & ABAR_NEEDS_X)) a.x[i] = NULL;
        a.dx[i] = t->dx[i];
    }
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) a.dparam[i] = t->dparam[i];
    a.dy = t->dy;
    a.input_z = t->z;
    a.dz_given = in->dz_given;
    if (in->dy2) {
        assert_true(t->op->takes_dy2);
        a.dy2 = t->dy2;
    }
    a.table_written = in->table_written;
    a.accumulate = in->dparam[in->table_written ? 1 : 0] != NULL;
    if (t->run.observing) a.columns = t->columns;
    spoil(t, t->scratch, t->op->scratch_bytes);
    finish(t, abar__op_backward(t->op, &a), "backward");
}

/* ---- reading back ---------------------------------------------------------------------------------------------- */

/* The padding of a blocked value holds zeros (abar/tensor.h): what a value with the same elements and clean padding has. */
static void assert_padding_zero(const op_instance *t, const char *what, const void *data, abar_tensor view)
{
    if (!data || view.layout == ABAR_LAYOUT_STRIDED) return;
    abar_tensor v = fetch(t, data, view), clean = v;
    int64_t count = (int64_t)(abar_tensor_bytes(&v) / abar_dtype_size(v.dtype));
    clean.data = calloc(1, abar_tensor_bytes(&v));
    assert_non_null(clean.data);
    abar__tensor_copy_host(&clean, &v);
    for (int64_t i = 0; i < count; i++)
        if (abar__tensor_load(&v, i) != abar__tensor_load(&clean, i))
            fail_msg("%s: element %lld of memory is %g: padding, or never written", what, (long long)i,
                     abar__tensor_load(&v, i));
    free(clean.data);
    free(v.data);
}

static void assert_unchanged(const op_instance *t, const char *what, const void *data, const double *was, abar_tensor view)
{
    if (!was) return;
    double *now = get(t, data, view);
    if (memcmp(now, was, (size_t)abar_tensor_count(&view) * sizeof *now) != 0) fail_msg("the operation changed its %s", what);
    free(now);
}

static void assert_inputs_unchanged(const op_instance *t, const op_inputs *in)
{
    const abar__op *op = t->op;
    const abar__op_desc *d = &op->desc;
    for (int i = 0; i < d->n_in; i++) assert_unchanged(t, "input", t->x[i], in->x[i], input_of(t, i));
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        abar_tensor view = param_of(t, i);
        assert_unchanged(t, "parameter", t->param[i], in->param[i], view);
        view.dtype = ABAR_BF16;
        if (t->shadow[i]) assert_unchanged(t, "parameter's copy", t->shadow[i], in->param[i], view);
    }
    if (!t->dy) return;
    bool masks_dy = d->activation != ABAR_ACT_NONE && (d->kind == ABAR_OP_LINEAR || d->kind == ABAR_OP_CONV2D);
    abar_tensor view = value_of(t, &d->out, op->out_layout);
    if (!masks_dy) assert_unchanged(t, "output gradient", t->dy, in->dy, view);
    assert_unchanged(t, "output gradient", t->dy2, in->dy2, view);
    assert_unchanged(t, "stream's gradient", t->dstream, in->dstream, view);
}

void op_instance_read(op_instance *t, const op_inputs *in, op_outputs *out)
{
    const abar__op *op = t->op;
    const abar__op_desc *d = &op->desc;
    abar_tensor y = value_of(t, &d->out, op->out_layout);
    *out = (op_outputs){.result = t->result};
    assert_padding_zero(t, "y", t->y, y);
    out->y = get(t, t->y, y);
    out->stream = get(t, t->stream, y);
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) out->buffer[i] = get(t, t->buffer[i], buffer_of(t, i));
    assert_inputs_unchanged(t, in);
    if (!in->dy) return;
    assert_padding_zero(t, "dz", t->dy, y);
    out->dz = get(t, t->dy, y);
    for (int i = 0; i < d->n_in; i++) {
        abar_tensor x = value_of(t, &d->in[i], op->in_layout[i]);
        assert_padding_zero(t, "dx", t->dx[i], x);
        out->dx[i] = get(t, t->dx[i], x);
    }
    if (in->z && !op->slopes_dx)
        for (int64_t i = 0; out->dx[0] && i < abar__shape_count(&d->in[0]); i++)
            out->dx[0][i] *= abar__ref_slope(d->input_activation, in->z, NULL, i);
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) out->dparam[i] = get(t, t->dparam[i], param_of(t, i));
    const int64_t columns = t->run.observing ? op_column_count(d) : 0;
    out->columns = get(t, t->columns, abar_tensor_wrap(NULL, NULL, abar_device_dtype(t->dev), 1, &columns));
}

void op_run(abar_device *dev, const abar__op_desc *d, const abar__run *run, const op_inputs *in, op_outputs *out)
{
    op_instance t;
    op_instance_create(dev, d, run, &t);
    op_instance_load(&t, in);
    op_instance_forward(&t);
    if (in->dy) op_instance_backward(&t, in);
    op_instance_read(&t, in, out);
    op_instance_destroy(&t);
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

void op_quiet_kinks(abar_device *ref, const abar__op_desc *d, const abar__run *run, double share, op_inputs *in)
{
    if (d->activation != ABAR_ACT_RELU || d->kind == ABAR_OP_ACTIVATION || !in->dy) return;
    abar__op_desc linear = *d;
    linear.activation = ABAR_ACT_NONE;
    op_inputs forward_only = *in;
    forward_only.dy = forward_only.dy2 = NULL;
    op_outputs z;
    op_run(ref, &linear, run, &forward_only, &z);
    double largest = 0.0;
    for (int64_t i = 0; i < abar__shape_count(&d->out); i++) largest = fmax(largest, fabs(z.y[i]));
    for (int64_t i = 0; i < abar__shape_count(&d->out); i++) {
        if (fabs(z.y[i]) > share * largest) continue;
        in->dy[i] = 0.0;
        if (in->dy2) in->dy2[i] = 0.0;
    }
    op_outputs_free(&z);
}

double op_difference(const double *a, const double *b, int64_t count)
{
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(a[i])) return INFINITY;
        difference = fmax(difference, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    return size > 0.0 ? difference / size : difference;
}

static int compare(const char *label, const char *what, int i, const double *a, const double *b, int64_t count,
                   double tolerance)
{
    if (!b) return 0;
    double difference = a ? op_difference(a, b, count) : INFINITY;
    if (difference <= tolerance) return 0;
    print_error("%s: %s[%d] differs by %.3g\n", label, what, i, difference);
    return 1;
}

int op_compare(const char *label, const abar__op_desc *d, const op_outputs *a, const op_outputs *b, double tolerance)
{
    int bad = compare(label, "y", 0, a->y, b->y, abar__shape_count(&d->out), tolerance);
    bad += compare(label, "dz", 0, a->dz, b->dz, abar__shape_count(&d->out), tolerance);
    for (int i = 0; i < d->n_in; i++)
        bad += compare(label, "dx", i, a->dx[i], b->dx[i], abar__shape_count(&d->in[i]), tolerance);
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++)
        bad += compare(label, "dparam", i, a->dparam[i], b->dparam[i], op_param_count(d, i), tolerance);
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++)
        bad += compare(label, "buffer", i, a->buffer[i], b->buffer[i], op_buffer_count(d, i), tolerance);
    bad += compare(label, "stream", 0, a->stream, b->stream, abar__shape_count(&d->out), tolerance);
    bad += compare(label, "columns", 0, a->columns, b->columns, op_column_count(d), tolerance);
    if (!op_is_loss(d)) return bad;
    bad += compare(label, "loss", 0, &a->result.loss, &b->result.loss, 1, tolerance);
    if (a->result.correct == b->result.correct && a->result.count == b->result.count) return bad;
    print_error("%s: %lld of %lld correct, not %lld of %lld\n", label, (long long)a->result.correct, (long long)a->result.count,
                (long long)b->result.correct, (long long)b->result.count);
    return bad + 1;
}
