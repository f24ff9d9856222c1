/* Running one operation from host arrays: allocation, poison, layouts, comparison. */
#include "op_instance.h"

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
    case ABAR_OP_LAYER_NORM: return (abar__shape){1, {x->dim[x->ndim - 1]}};
    default: return (abar__shape){1, {0}};
    }
}

int64_t op_param_count(const abar__op_desc *d, int i)
{
    abar__shape shape = op_param_shape(d, i);
    return abar__shape_count(&shape);
}

int64_t op_buffer_count(const abar__op_desc *d, int i)
{
    (void)i; /* mean and variance are equally long */
    return d->kind == ABAR_OP_BATCH_NORM ? d->in[0].dim[1] : 0;
}

/* ---- random inputs --------------------------------------------------------------------------------------------- */

/* Each array of each case has its own stream, so that adding a case changes no other. */
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

static void make_target(const op_case *c, const abar__op_desc *d, op_inputs *out)
{
    int64_t rows = d->in[0].dim[0], classes = d->in[0].dim[1];
    if (d->kind == ABAR_OP_SQUARED_ERROR || d->soft_targets) {
        out->target = normal_array(c, 50, abar__shape_count(&d->in[0]), 1.0, 0.0);
        if (d->soft_targets) soften(out->target, rows, classes);
        return;
    }
    out->labels = calloc((size_t)rows, sizeof *out->labels);
    assert_non_null(out->labels);
    for (int64_t r = 0; r < rows; r++) {
        abar__draw draw = abar__random(stream(c, 51), ABAR_DRAW_SYNTHETIC, 0, (uint64_t)r);
        out->labels[r] = (int32_t)abar__below(draw.u[0], (uint32_t)classes);
    }
    /* samples that do not count need no proper label */
    for (int64_t r = op_case_run(c).valid; r < rows; r++) out->labels[r] = -1;
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
    }
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        int64_t count = op_param_count(&d, i);
        out->param[i] = normal_array(c, 10 + i, count, 0.5, norm && i == 0 ? 1.0 : 0.0);
        if (c->accumulate) out->dparam[i] = normal_array(c, 20 + i, count, 1.0, 0.0);
    }
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) {
        out->buffer[i] = normal_array(c, 30 + i, op_buffer_count(&d, i), 1.0, 0.0);
        for (int64_t e = 0; i == 1 && e < op_buffer_count(&d, i); e++)
            out->buffer[i][e] = (double)(float)(0.5 + out->buffer[i][e] * out->buffer[i][e]);
    }
    if (!c->evaluate) out->dy = normal_array(c, 40, abar__shape_count(&d.out), 1.0, 0.0);
    if (c->second_dy) out->dy2 = normal_array(c, 41, abar__shape_count(&d.out), 1.0, 0.0);
    if (op_is_loss(&d)) make_target(c, &d, out);
}

void op_inputs_free(op_inputs *in)
{
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) free(in->x[i]);
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        free(in->param[i]);
        free(in->dparam[i]);
    }
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) free(in->buffer[i]);
    free(in->dy);
    free(in->dy2);
    free(in->target);
    free(in->labels);
    *in = (op_inputs){0};
}

void op_outputs_free(op_outputs *out)
{
    free(out->y);
    free(out->dz);
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) free(out->dx[i]);
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) free(out->dparam[i]);
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) free(out->buffer[i]);
    *out = (op_outputs){0};
}

/* ---- one operation on a device --------------------------------------------------------------------------------- */

static void *take(op_instance *t, size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(abar_device_alloc(t->dev, bytes, &memory), ABAR_OK);
    assert_in_range(t->n_blocks, 0, OP_MAX_BLOCK - 1);
    t->blocks[t->n_blocks].memory = memory;
    t->blocks[t->n_blocks++].bytes = bytes;
    return memory;
}

void op_instance_create(abar_device *dev, const abar__op_desc *d, const abar__run *run, op_instance *out)
{
    *out = (op_instance){.dev = dev, .run = *run};
    if (abar__op_create(dev, d, &out->op) != ABAR_OK) fail_msg("%s", abar_context_error(dev->ctx));
    const abar__op *op = out->op;
    size_t element = abar_dtype_size(abar_device_dtype(dev)), y_bytes = abar__shape_bytes(dev, &d->out, op->out_layout);
    for (int i = 0; i < d->n_in; i++) out->x[i] = take(out, abar__shape_bytes(dev, &d->in[i], op->in_layout[i]));
    if (!op_is_loss(d)) {
        out->y = op->y_is_x ? out->x[0] : take(out, y_bytes);
        out->dy = take(out, y_bytes);
        out->dy2 = take(out, y_bytes);
    }
    for (int i = 0; i < d->n_in; i++)
        if (d->need_dx[i])
            out->dx[i] = op->y_is_x && i == 0 ? out->dy : take(out, abar__shape_bytes(dev, &d->in[i], op->in_layout[i]));
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        out->param[i] = take(out, element * (size_t)op_param_count(d, i));
        out->dparam[i] = take(out, element * (size_t)op_param_count(d, i));
    }
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) out->buffer[i] = take(out, element * (size_t)op_buffer_count(d, i));
    if (op_is_loss(d)) out->target = take(out, element * (size_t)abar__shape_count(&d->in[0]));
    out->saved = take(out, op->saved_bytes);
    out->scratch = take(out, op->scratch_bytes);
}

void op_instance_destroy(op_instance *t)
{
    abar__op_destroy(t->op);
    for (int i = 0; i < t->n_blocks; i++) abar_device_free(t->dev, t->blocks[i].memory, t->blocks[i].bytes);
    *t = (op_instance){0};
}

/* Both back ends keep their memory on the host, so a device's values can be described as host tensors. */
static abar_tensor view(const op_instance *t, void *data, const abar__shape *shape, abar_layout layout)
{
    abar_tensor v = abar_tensor_wrap(NULL, data, abar_device_dtype(t->dev), shape->ndim, shape->dim);
    v.layout = layout;
    return v;
}

static void put(const op_instance *t, void *to, const double *from, const abar__shape *shape, abar_layout layout)
{
    if (!to || !from) return;
    abar_tensor dst = view(t, to, shape, layout);
    abar_tensor src = abar_tensor_wrap(NULL, (void *)from, ABAR_F64, shape->ndim, shape->dim);
    abar__tensor_copy_host(&dst, &src);
}

static double *get(const op_instance *t, void *from, const abar__shape *shape, abar_layout layout)
{
    if (!from || abar__shape_count(shape) == 0) return NULL;
    double *to = calloc((size_t)abar__shape_count(shape), sizeof *to);
    assert_non_null(to);
    abar_tensor src = view(t, from, shape, layout);
    abar_tensor dst = abar_tensor_wrap(NULL, to, ABAR_F64, shape->ndim, shape->dim);
    abar__tensor_copy_host(&dst, &src);
    return to;
}

static abar__shape row(int64_t count) { return (abar__shape){1, {count}}; }

void op_instance_load(op_instance *t, const op_inputs *in)
{
    const abar__op *op = t->op;
    const abar__op_desc *d = &op->desc;
    for (int i = 0; i < t->n_blocks; i++)
        if (t->blocks[i].memory) memset(t->blocks[i].memory, 0xff, t->blocks[i].bytes); /* NaN in every float, -1 as a number */
    memset(&t->result, 0xff, sizeof t->result);
    for (int i = 0; i < d->n_in; i++) put(t, t->x[i], in->x[i], &d->in[i], op->in_layout[i]);
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        abar__shape shape = row(op_param_count(d, i));
        put(t, t->param[i], in->param[i], &shape, ABAR_LAYOUT_STRIDED);
        put(t, t->dparam[i], in->dparam[i], &shape, ABAR_LAYOUT_STRIDED);
    }
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) {
        abar__shape shape = row(op_buffer_count(d, i));
        put(t, t->buffer[i], in->buffer[i], &shape, ABAR_LAYOUT_STRIDED);
    }
    put(t, t->dy, in->dy, &d->out, op->out_layout);
    put(t, t->dy2, in->dy2, &d->out, op->out_layout);
    put(t, t->target, in->target, &d->in[0], ABAR_LAYOUT_STRIDED);
    if (in->labels) memcpy(t->target, in->labels, (size_t)d->in[0].dim[0] * sizeof *in->labels);
}

static abar__op_args arguments(op_instance *t)
{
    abar__op_args a = {.run = &t->run, .y = t->y, .target = t->target, .saved = t->saved, .scratch = t->scratch};
    if (op_is_loss(&t->op->desc)) a.result = &t->result;
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) a.x[i] = t->x[i];
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) a.param[i] = t->param[i];
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) a.buffer[i] = t->buffer[i];
    return a;
}

void op_instance_forward(op_instance *t)
{
    abar__op_args a = arguments(t);
    if (abar__op_forward(t->op, &a) != ABAR_OK) fail_msg("forward: %s", abar_context_error(t->dev->ctx));
}

void op_instance_backward(op_instance *t, const op_inputs *in)
{
    abar__op_args a = arguments(t);
    if (!(t->op->backward_needs & ABAR_NEEDS_Y)) a.y = NULL;
    for (int i = 0; i < ABAR_OP_MAX_IN; i++) {
        if (!(t->op->backward_needs & ABAR_NEEDS_X)) a.x[i] = NULL;
        a.dx[i] = t->dx[i];
    }
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) a.dparam[i] = t->dparam[i];
    a.dy = t->dy;
    if (in->dy2) {
        assert_true(t->op->takes_dy2);
        a.dy2 = t->dy2;
    }
    a.accumulate = in->dparam[0] != NULL;
    if (t->op->scratch_bytes) memset(t->scratch, 0xff, t->op->scratch_bytes);
    if (abar__op_backward(t->op, &a) != ABAR_OK) fail_msg("backward: %s", abar_context_error(t->dev->ctx));
}

/* ---- reading back ---------------------------------------------------------------------------------------------- */

/* The padding of a blocked value holds zeros (abar/tensor.h): what a value with the same elements and clean padding has. */
static void assert_padding_zero(const op_instance *t, const char *what, void *data, const abar__shape *shape,
                                abar_layout layout)
{
    if (!data || layout == ABAR_LAYOUT_STRIDED) return;
    double *values = get(t, data, shape, layout);
    abar_tensor v = view(t, data, shape, layout), clean = v;
    int64_t count = (int64_t)(abar_tensor_bytes(&v) / abar_dtype_size(v.dtype));
    clean.data = calloc(1, abar_tensor_bytes(&v));
    assert_non_null(clean.data);
    put(t, clean.data, values, shape, layout);
    for (int64_t i = 0; i < count; i++)
        if (abar__tensor_load(&v, i) != abar__tensor_load(&clean, i))
            fail_msg("%s: element %lld of memory is %g: padding, or never written", what, (long long)i,
                     abar__tensor_load(&v, i));
    free(clean.data);
    free(values);
}

static void assert_unchanged(const op_instance *t, const char *what, void *data, const double *was, const abar__shape *shape,
                             abar_layout layout)
{
    if (!was) return;
    double *now = get(t, data, shape, layout);
    if (memcmp(now, was, (size_t)abar__shape_count(shape) * sizeof *now) != 0) fail_msg("the operation changed its %s", what);
    free(now);
}

static void assert_inputs_unchanged(const op_instance *t, const op_inputs *in)
{
    const abar__op *op = t->op;
    const abar__op_desc *d = &op->desc;
    for (int i = 0; i < d->n_in; i++) assert_unchanged(t, "input", t->x[i], in->x[i], &d->in[i], op->in_layout[i]);
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        abar__shape shape = row(op_param_count(d, i));
        assert_unchanged(t, "parameter", t->param[i], in->param[i], &shape, ABAR_LAYOUT_STRIDED);
    }
    if (!t->dy) return;
    bool masks_dy = d->activation == ABAR_ACT_RELU && (d->kind == ABAR_OP_LINEAR || d->kind == ABAR_OP_CONV2D);
    if (!masks_dy) assert_unchanged(t, "output gradient", t->dy, in->dy, &d->out, op->out_layout);
    assert_unchanged(t, "output gradient", t->dy2, in->dy2, &d->out, op->out_layout);
}

void op_instance_read(op_instance *t, const op_inputs *in, op_outputs *out)
{
    const abar__op *op = t->op;
    const abar__op_desc *d = &op->desc;
    *out = (op_outputs){.result = t->result};
    assert_padding_zero(t, "y", t->y, &d->out, op->out_layout);
    out->y = get(t, t->y, &d->out, op->out_layout);
    for (int i = 0; i < ABAR_OP_MAX_BUFFER; i++) {
        abar__shape shape = row(op_buffer_count(d, i));
        out->buffer[i] = get(t, t->buffer[i], &shape, ABAR_LAYOUT_STRIDED);
    }
    assert_inputs_unchanged(t, in);
    if (!in->dy) return;
    assert_padding_zero(t, "dz", t->dy, &d->out, op->out_layout);
    out->dz = get(t, t->dy, &d->out, op->out_layout);
    for (int i = 0; i < d->n_in; i++) {
        assert_padding_zero(t, "dx", t->dx[i], &d->in[i], op->in_layout[i]);
        out->dx[i] = get(t, t->dx[i], &d->in[i], op->in_layout[i]);
    }
    for (int i = 0; i < ABAR_OP_MAX_PARAM; i++) {
        abar__shape shape = row(op_param_count(d, i));
        out->dparam[i] = get(t, t->dparam[i], &shape, ABAR_LAYOUT_STRIDED);
    }
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
    if (!op_is_loss(d)) return bad;
    bad += compare(label, "loss", 0, &a->result.loss, &b->result.loss, 1, tolerance);
    if (a->result.correct == b->result.correct && a->result.count == b->result.count) return bad;
    print_error("%s: %lld of %lld correct, not %lld of %lld\n", label, (long long)a->result.correct, (long long)a->result.count,
                (long long)b->result.correct, (long long)b->result.count);
    return bad + 1;
}
