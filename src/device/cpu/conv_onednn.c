/* Convolution by oneDNN's direct kernels. The only file, with onednn_calls.cpp, that knows oneDNN and its 2.x C interface.
 *
 * Activations keep one blocked layout through the net (C16, or C8 below AVX-512; plain where the input has few channels).
 * Weights are plain outside: they are small, and packed into the layout each kernel wants on every call. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/onednn_calls.h"

#include <omp.h>
#include <string.h>

enum { FORWARD, DATA, WEIGHTS, PACK_FORWARD, PACK_DATA, UNPACK, UNPACK_ADD, PASSES };
enum { MAX_ARG = 5 };

/* A primitive and its arguments. Data handles are set while running. */
typedef struct pass {
    dnnl_primitive_t primitive;
    int n;
    dnnl_exec_arg_t arg[MAX_ARG];
} pass;

typedef struct conv {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    pass pass[PASSES];
    /* where things are in scratch; weights first */
    size_t bias, pad_forward, pad_backward;
} conv;

/* What the convolution looks like to oneDNN. */
typedef struct shapes {
    dnnl_memory_desc_t x, y, any_weights, plain_weights, bias;
    dnnl_dims_t stride, dilation, pad_begin, pad_end;
} shapes;

static abar_status explain(const abar__op *op, dnnl_status_t status)
{
    switch (status) {
    case dnnl_success: return ABAR_OK;
    case dnnl_unimplemented: return ABAR_E_UNSUPPORTED;
    case dnnl_out_of_memory:
        return abar__fail(op->dev->ctx, ABAR_E_MEMORY, "oneDNN: out of memory, use a smaller batch or model");
    default: return abar__fail(op->dev->ctx, ABAR_E_BACKEND, "oneDNN: convolution failed with status %d", (int)status);
    }
}

/* oneDNN takes its thread count from OpenMP, when a primitive is made and again when it runs. */
static int borrow_threads(int threads)
{
    int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    return before;
}

/* ---- making ----------------------------------------------------------------------------------------------------- */

static dnnl_format_tag_t tag_of(abar_layout layout)
{
    return layout == ABAR_LAYOUT_C16 ? dnnl_nChw16c : layout == ABAR_LAYOUT_C8 ? dnnl_nChw8c : dnnl_nchw;
}

static dnnl_status_t describe(const abar__op *op, shapes *s)
{
    const abar__op_desc *d = &op->desc;
    const abar_window *w = &d->window;
    const int64_t groups = w->groups, in = d->in[0].dim[1], out = d->out.dim[1];
    const dnnl_dims_t grouped = {groups, out / groups, in / groups, w->kernel[0], w->kernel[1]};
    const dnnl_dims_t whole = {out, in, w->kernel[0], w->kernel[1]}, bias = {out};
    const dnnl_dim_t *weights = groups > 1 ? grouped : whole;
    const int n = groups > 1 ? 5 : 4;
    dnnl_dims_t x = {0}, y = {0};
    memcpy(x, d->in[0].dim, sizeof d->in[0].dim);
    memcpy(y, d->out.dim, sizeof d->out.dim);
    for (int i = 0; i < 2; i++) {
        s->stride[i] = w->stride[i];
        s->dilation[i] = w->dilation[i] - 1;
        s->pad_begin[i] = w->pad[i];
        int64_t reach = (d->out.dim[2 + i] - 1) * w->stride[i] + w->dilation[i] * (w->kernel[i] - 1) + 1;
        s->pad_end[i] = reach - d->in[0].dim[2 + i] - w->pad[i]; /* negative where the window leaves rows over */
    }
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&s->x, 4, x, dnnl_f32, tag_of(op->in_layout[0]));
    if (!status) status = dnnl_memory_desc_init_by_tag(&s->y, 4, y, dnnl_f32, tag_of(op->out_layout));
    if (!status) status = dnnl_memory_desc_init_by_tag(&s->any_weights, n, weights, dnnl_f32, dnnl_format_tag_any);
    if (!status)
        status = dnnl_memory_desc_init_by_tag(&s->plain_weights, n, weights, dnnl_f32, groups > 1 ? dnnl_goihw : dnnl_oihw);
    if (!status) status = dnnl_memory_desc_init_by_tag(&s->bias, 1, bias, dnnl_f32, dnnl_x);
    return status;
}

static dnnl_status_t make_conv(const abar__op *op, const shapes *s, int which, dnnl_primitive_desc_t hint,
                               dnnl_primitive_desc_t *out)
{
    const conv *c = op->priv;
    const dnnl_memory_desc_t *bias = op->desc.bias ? &s->bias : NULL;
    dnnl_convolution_desc_t desc;
    dnnl_status_t status;
    if (which == FORWARD)
        status = dnnl_dilated_convolution_forward_desc_init(&desc, dnnl_forward_training, dnnl_convolution_direct, &s->x,
                                                            &s->any_weights, bias, &s->y, s->stride, s->dilation, s->pad_begin,
                                                            s->pad_end);
    else if (which == DATA)
        status = dnnl_dilated_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, &s->x, &s->any_weights, &s->y,
                                                                  s->stride, s->dilation, s->pad_begin, s->pad_end);
    else
        status =
            dnnl_dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, &s->x, &s->any_weights, bias,
                                                                &s->y, s->stride, s->dilation, s->pad_begin, s->pad_end);
    dnnl_primitive_attr_t attributes = NULL;
    if (!status) status = abar__dnnl_attributes(&attributes, which == FORWARD && op->desc.activation == ABAR_ACT_RELU, false);
    if (!status) status = abar__dnnl_desc(out, &desc, attributes, c->engine, hint);
    if (attributes) dnnl_primitive_attr_destroy(attributes);
    if (status) return status;
    const char *name = "";
    status = dnnl_primitive_desc_query(*out, dnnl_query_impl_info_str, 0, (void *)&name);
    return !status && strncmp(name, "ref", 3) == 0 ? dnnl_unimplemented : status; /* thousands of times slower */
}

/* The primitive of desc, with a memory object for each of the named arguments. */
static dnnl_status_t make_pass(const conv *c, const_dnnl_primitive_desc_t desc, int n, const int *args, pass *out)
{
    dnnl_status_t status = abar__dnnl_primitive(&out->primitive, desc);
    for (int i = 0; i < n && !status; i++) {
        const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, args[i]);
        out->arg[i].arg = args[i];
        status = md ? abar__dnnl_memory(&out->arg[i].memory, md, c->engine) : dnnl_runtime_error;
        out->n = i + 1;
    }
    return status;
}

static dnnl_status_t make_reorder(const conv *c, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to, bool add,
                                  pass *out)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = from && to ? abar__dnnl_attributes(&attributes, false, add) : dnnl_runtime_error;
    if (!status) status = abar__dnnl_reorder_desc(&desc, from, to, c->engine, attributes);
    if (!status) status = make_pass(c, desc, 2, (int[]){DNNL_ARG_FROM, DNNL_ARG_TO}, out);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attributes) dnnl_primitive_attr_destroy(attributes);
    return status;
}

/* 0 for a pass that is not there; *status is set where oneDNN does not say. */
static size_t query_bytes(const_dnnl_primitive_desc_t desc, dnnl_query_t what, dnnl_status_t *status)
{
    const dnnl_memory_desc_t *md = desc ? dnnl_primitive_desc_query_md(desc, what, 0) : NULL;
    if (desc && !md) *status = dnnl_runtime_error;
    return md ? abar__round_up(dnnl_memory_desc_get_size(md), ABAR_ALIGN) : 0;
}

/* Scratch: packed weights (or their gradient), the bias's gradient, oneDNN's own scratchpad. */
static dnnl_status_t plan_scratch(abar__op *op, dnnl_primitive_desc_t desc[3])
{
    conv *c = op->priv;
    dnnl_status_t status = dnnl_success;
    size_t forward = query_bytes(desc[FORWARD], dnnl_query_weights_md, &status),
           data = query_bytes(desc[DATA], dnnl_query_weights_md, &status);
    size_t weights = query_bytes(desc[WEIGHTS], dnnl_query_diff_weights_md, &status);
    size_t pad_data = query_bytes(desc[DATA], dnnl_query_scratchpad_md, &status);
    size_t pad_weights = query_bytes(desc[WEIGHTS], dnnl_query_scratchpad_md, &status);
    c->pad_forward = forward;
    c->bias = data > weights ? data : weights;
    c->pad_backward = c->bias + abar__round_up((size_t)op->desc.out.dim[1] * sizeof(float), ABAR_ALIGN);
    size_t backward = c->pad_backward + (pad_data > pad_weights ? pad_data : pad_weights);
    forward += query_bytes(desc[FORWARD], dnnl_query_scratchpad_md, &status);
    op->scratch_bytes = forward > backward ? forward : backward;
    return status;
}

static dnnl_status_t make_passes(abar__op *op, const shapes *s, dnnl_primitive_desc_t desc[3])
{
    conv *c = op->priv;
    const int without_bias[][4] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD},
                                   {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD},
                                   {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD}};
    const int bias[] = {DNNL_ARG_BIAS, 0, DNNL_ARG_DIFF_BIAS};
    dnnl_status_t status = dnnl_success;
    for (int i = FORWARD; i <= WEIGHTS && !status; i++) {
        int args[MAX_ARG], n = 4;
        memcpy(args, without_bias[i], sizeof without_bias[i]);
        if (op->desc.bias && bias[i]) args[n++] = bias[i];
        if (desc[i]) status = make_pass(c, desc[i], n, args, &c->pass[i]);
    }
    const dnnl_memory_desc_t *plain = &s->plain_weights;
    if (!status)
        status = make_reorder(c, plain, dnnl_primitive_desc_query_md(desc[FORWARD], dnnl_query_weights_md, 0), false,
                              &c->pass[PACK_FORWARD]);
    if (!status && desc[DATA])
        status = make_reorder(c, plain, dnnl_primitive_desc_query_md(desc[DATA], dnnl_query_weights_md, 0), false,
                              &c->pass[PACK_DATA]);
    const dnnl_memory_desc_t *gradient = dnnl_primitive_desc_query_md(desc[WEIGHTS], dnnl_query_diff_weights_md, 0);
    for (int add = 0; add < 2 && !status; add++) status = make_reorder(c, gradient, plain, add, &c->pass[UNPACK + add]);
    return status;
}

static void release(conv *c)
{
    for (int i = 0; i < PASSES; i++) {
        for (int k = 0; k < c->pass[i].n; k++)
            if (c->pass[i].arg[k].memory) dnnl_memory_destroy(c->pass[i].arg[k].memory);
        if (c->pass[i].primitive) dnnl_primitive_destroy(c->pass[i].primitive);
    }
    if (c->stream) dnnl_stream_destroy(c->stream);
    if (c->engine) dnnl_engine_destroy(c->engine);
    *c = (conv){0};
}

/* Everything for the layouts now in op. */
static dnnl_status_t make_all(abar__op *op)
{
    conv *c = op->priv;
    shapes s;
    dnnl_primitive_desc_t desc[3] = {NULL};
    dnnl_status_t status = abar__dnnl_engine(&c->engine);
    if (!status) status = abar__dnnl_stream(&c->stream, c->engine);
    if (!status) status = describe(op, &s);
    for (int i = FORWARD; i <= WEIGHTS && !status; i++)
        if (i != DATA || op->desc.need_dx[0]) status = make_conv(op, &s, i, i == FORWARD ? NULL : desc[FORWARD], &desc[i]);
    if (!status) status = make_passes(op, &s, desc);
    if (!status) status = plan_scratch(op, desc);
    for (int i = FORWARD; i <= WEIGHTS; i++)
        if (desc[i]) dnnl_primitive_desc_destroy(desc[i]);
    if (status) release(c);
    return status;
}

static abar_status create(abar__op *op)
{
    const abar__op_desc *d = &op->desc;
    if (d->activation != ABAR_ACT_NONE && d->activation != ABAR_ACT_RELU) return ABAR_E_UNSUPPORTED;
    bool wide = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
    ABAR_TRY(abar__op_priv(op, sizeof(conv)));
    op->out_layout = wide ? ABAR_LAYOUT_C16 : ABAR_LAYOUT_C8;
    int before = borrow_threads(op->dev->threads);
    dnnl_status_t status = dnnl_unimplemented;
    if (d->in[0].dim[1] < (wide ? 16 : 8)) { /* a network's input */
        op->in_layout[0] = ABAR_LAYOUT_STRIDED;
        status = make_all(op);
    }
    if (status == dnnl_unimplemented) {
        op->in_layout[0] = op->out_layout;
        status = make_all(op);
    }
    borrow_threads(before);
    op->backward_needs = ABAR_NEEDS_X | (d->activation == ABAR_ACT_RELU ? ABAR_NEEDS_Y : 0u);
    if (status) {
        abar__free(op->dev->ctx, op->priv, op->priv_bytes);
        op->priv = NULL;
    }
    return explain(op, status);
}

static void destroy(abar__op *op) { release(op->priv); }

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Runs a pass on the given memory, in the order of its arguments. */
static dnnl_status_t execute(conv *c, int which, const void *const *data)
{
    pass *p = &c->pass[which];
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < p->n && !status; i++) status = dnnl_memory_set_data_handle(p->arg[i].memory, (void *)data[i]);
    return status ? status : abar__dnnl_execute(p->primitive, c->stream, p->n, p->arg);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    conv *c = op->priv;
    char *scratch = a->scratch;
    int before = borrow_threads(op->dev->threads);
    dnnl_status_t status = execute(c, PACK_FORWARD, (const void *[]){a->param[0], scratch});
    if (!status) status = execute(c, FORWARD, (const void *[]){a->x[0], scratch, a->y, scratch + c->pad_forward, a->param[1]});
    if (!status) status = abar__dnnl_wait(c->stream);
    borrow_threads(before);
    return explain(op, status);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    conv *c = op->priv;
    char *scratch = a->scratch;
    float *bias = (float *)(scratch + c->bias);
    const void *dy = a->dy, *pad = scratch + c->pad_backward;
    abar__relu_gradient(op, a);
    int before = borrow_threads(op->dev->threads);
    dnnl_status_t status = execute(c, WEIGHTS, (const void *[]){a->x[0], scratch, dy, pad, bias});
    if (!status) status = execute(c, a->accumulate ? UNPACK_ADD : UNPACK, (const void *[]){scratch, a->dparam[0]});
    if (!status && op->desc.need_dx[0]) status = execute(c, PACK_DATA, (const void *[]){a->param[0], scratch});
    if (!status && op->desc.need_dx[0]) status = execute(c, DATA, (const void *[]){a->dx[0], scratch, dy, pad});
    if (!status) status = abar__dnnl_wait(c->stream);
    borrow_threads(before);
    float *to = a->dparam[1];
    for (int64_t o = 0; o < op->desc.out.dim[1] && op->desc.bias; o++) to[o] = a->accumulate ? to[o] + bias[o] : bias[o];
    return explain(op, status);
}

const abar__op_impl abar__cpu_conv_onednn = {"onednn-conv", ABAR_OP_CONV2D, create, forward, backward, destroy};
