/* y = act(x Wᵀ + b), act: ReLU or GELU if fused, and its gradients dW = dzᵀ x, db = sum of dz over rows, dx = dz W, where dz is
 * the gradient before the activation. A GELU's argument is saved.
 *
 * Each thread computes its own part of the result: no sum is split, so that the result depends on the thread count only through
 * the shapes of the parts. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/activation_kernels.h"
#include "device/cpu/product.h"

#include <omp.h>

/* NULL: the activation is none. */
typedef struct gelu {
    abar__act_forward *forward;
    abar__act_backward *backward;
} gelu;

typedef struct range {
    int64_t begin, end;
} range;

/* Part `me` of n, cut into parts of nearly equal size at multiples of a vector. */
static range share(int64_t n, int64_t parts, int64_t me)
{
    int64_t vectors = (n + 15) / 16, begin = vectors * me / parts * 16, end = vectors * (me + 1) / parts * 16;
    return (range){begin < n ? begin : n, end < n ? end : n};
}

/* The calling thread's part of the product, cut along the longer side of c. Returns its rows and columns. */
static abar_status multiply_part(const abar__product *whole, int64_t parts, int64_t me, range *rows, range *columns)
{
    abar__product p = *whole;
    *rows = p.m >= p.n ? share(p.m, parts, me) : (range){0, p.m};
    *columns = p.m >= p.n ? (range){0, p.n} : share(p.n, parts, me);
    p.m = rows->end - rows->begin;
    p.n = columns->end - columns->begin;
    if (p.m <= 0 || p.n <= 0) return ABAR_OK;
    p.a += rows->begin * (p.trans_a ? 1 : p.lda);
    p.b += columns->begin * (p.trans_b ? p.ldb : 1);
    p.c += rows->begin * p.ldc + columns->begin;
    return abar__multiply(&p);
}

/* What the threads' parts came to: the lowest of their statuses, which are not positive. */
static abar_status explain(const abar__op *op, int status)
{
    if (status == ABAR_OK) return ABAR_OK;
    if (status == ABAR_E_MEMORY)
        return abar__fail(op->dev->ctx, ABAR_E_MEMORY, "linear layer: out of memory, use a smaller batch or model");
    return abar__fail(op->dev->ctx, ABAR_E_BACKEND, "linear layer: %s failed", abar__multiply_name);
}

static int64_t inputs(const abar__op *op) { return op->desc.in[0].dim[op->desc.in[0].ndim - 1]; }
static int64_t outputs(const abar__op *op) { return op->desc.out.dim[op->desc.out.ndim - 1]; }
static int64_t row_count(const abar__op *op) { return abar__shape_count(&op->desc.out) / outputs(op); }

static abar_status make_ready(const abar__op *op)
{
    int status = ABAR_OK;
#pragma omp parallel num_threads(1) reduction(min : status)
    {
        abar__blas_single();
        status = abar__multiply_ready();
    }
    return explain(op, status);
}

static abar_status create(abar__op *op)
{
    static const abar__activation_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__activation);
    const abar__activation_kernels *k = by_isa[abar__isa_best(op->dev->ctx)];
    const abar__activation kind = op->desc.activation;
    gelu g = {0};
    if (kind == ABAR_ACT_TANH) return ABAR_E_UNSUPPORTED;
    if (kind == ABAR_ACT_GELU_ERF) g = (gelu){k->gelu_erf, k->gelu_erf_grad};
    if (kind == ABAR_ACT_GELU_TANH) g = (gelu){k->gelu_tanh, k->gelu_tanh_grad};
    ABAR_TRY(make_ready(op));
    ABAR_TRY(abar__op_priv(op, sizeof g));
    *(gelu *)op->priv = g;
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = ABAR_NEEDS_X | (kind == ABAR_ACT_RELU ? ABAR_NEEDS_Y : 0u);
    if (g.forward) op->saved_bytes = (size_t)abar__shape_count(&op->desc.out) * sizeof(float);
    return ABAR_OK;
}

static void finish(float *y, int64_t stride, range rows, range columns, const float *bias, bool relu)
{
    for (int64_t r = rows.begin; r < rows.end; r++) {
        float *row = y + r * stride;
        if (bias)
            for (int64_t o = columns.begin; o < columns.end; o++) row[o] += bias[o];
        if (relu)
            for (int64_t o = columns.begin; o < columns.end; o++) row[o] = row[o] < 0.0f ? 0.0f : row[o];
    }
}

static void activate(const gelu *g, const float *z, float *y, int64_t stride, range rows, range columns)
{
    const int64_t width = columns.end - columns.begin;
    for (int64_t r = rows.begin; r < rows.end && width > 0; r++)
        g->forward(z + r * stride + columns.begin, y + r * stride + columns.begin, width);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const gelu *g = op->priv;
    const int64_t in = inputs(op), out = outputs(op);
    const abar__product p = {.trans_b = true,
                             .m = row_count(op),
                             .n = out,
                             .k = in,
                             .a = a->x[0],
                             .lda = in,
                             .b = a->param[0],
                             .ldb = in,
                             .c = g->forward ? a->saved : a->y,
                             .ldc = out};
    const float *bias = op->desc.bias ? a->param[1] : NULL;
    int status = ABAR_OK;
#pragma omp parallel num_threads(op->dev->threads) reduction(min : status)
    {
        range rows, columns;
        abar__blas_single();
        status = multiply_part(&p, omp_get_num_threads(), omp_get_thread_num(), &rows, &columns);
        finish(p.c, out, rows, columns, bias, op->desc.activation == ABAR_ACT_RELU);
        if (g->forward) activate(g, p.c, a->y, out, rows, columns);
    }
    return explain(op, status);
}

/* Replaces dy by dz, in place. */
static void gelu_gradient(const abar__op *op, const abar__op_args *a)
{
    const gelu *g = op->priv;
    const int64_t n = abar__shape_count(&op->desc.out);
    const int parts = abar__parts(op->dev, n, n);
    float *dy = a->dy;
    const float *z = a->saved;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int part = 0; part < parts; part++) {
        const int64_t begin = abar__part_begin(n, parts, part), end = abar__part_begin(n, parts, part + 1);
        g->backward(dy + begin, NULL, z + begin, dy + begin, end - begin);
    }
}

/* The gradient of the bias for a range of columns. */
static void sum_rows(const float *dy, int64_t rows, int64_t stride, range columns, bool accumulate, float *to)
{
    for (int64_t o = columns.begin; o < columns.end && !accumulate; o++) to[o] = 0.0f;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = columns.begin; o < columns.end; o++) to[o] += dy[r * stride + o];
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const int64_t in = inputs(op), out = outputs(op), rows = row_count(op);
    const float add = a->accumulate ? 1.0f : 0.0f;
    const abar__product weights = {.trans_a = true,
                                   .m = out,
                                   .n = in,
                                   .k = rows,
                                   .a = a->dy,
                                   .lda = out,
                                   .b = a->x[0],
                                   .ldb = in,
                                   .c = a->dparam[0],
                                   .ldc = in,
                                   .beta = add};
    const abar__product input = {
        .m = rows, .n = in, .k = out, .a = a->dy, .lda = out, .b = a->param[0], .ldb = in, .c = a->dx[0], .ldc = in};
    int status = ABAR_OK;
    abar__relu_gradient(op, a);
    if (op->saved_bytes && !a->dz_given) gelu_gradient(op, a);
#pragma omp parallel num_threads(op->dev->threads) reduction(min : status)
    {
        int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        range part_rows, part_columns;
        abar__blas_single();
        status = multiply_part(&weights, threads, me, &part_rows, &part_columns);
        if (op->desc.bias) sum_rows(a->dy, rows, out, share(out, threads, me), a->accumulate, a->dparam[1]);
        if (op->desc.need_dx[0] && status == ABAR_OK) status = multiply_part(&input, threads, me, &part_rows, &part_columns);
    }
    return explain(op, status);
}

const abar__op_impl abar__cpu_linear = {abar__multiply_name, ABAR_OP_LINEAR, create, forward, backward, NULL};
