/* y = x Wᵀ + b, ReLU if fused, and its gradients dW = dzᵀ x, db = sum of dz over rows, dx = dz W, where dz is the gradient
 * before the ReLU.
 *
 * Each thread calls OpenBLAS on its own part of the result: OpenBLAS's own threads do not speed up small products, and no
 * sum is split, so that the result depends on the thread count only through the shapes of the parts. */
#include "device/cpu/cpu_nn.h"

#include <cblas.h>
#include <omp.h>

typedef struct product {
    CBLAS_TRANSPOSE trans_a, trans_b;
    int64_t m, n, k;
    const float *a, *b;
    int64_t lda, ldb;
    float *c; /* (m, n), dense */
    float beta;
} product;

typedef struct range {
    int64_t begin, end;
} range;

/* Part `me` of n, cut into parts of nearly equal size at multiples of a vector. */
static range share(int64_t n, int64_t parts, int64_t me)
{
    int64_t vectors = (n + 15) / 16, begin = vectors * me / parts * 16, end = vectors * (me + 1) / parts * 16;
    return (range){begin < n ? begin : n, end < n ? end : n};
}

/* The calling thread's part of c = op(a) op(b) + beta c, cut along the longer side. Returns its rows and columns. */
static void multiply_part(const product *p, int64_t parts, int64_t me, range *rows, range *columns)
{
    *rows = p->m >= p->n ? share(p->m, parts, me) : (range){0, p->m};
    *columns = p->m >= p->n ? (range){0, p->n} : share(p->n, parts, me);
    int64_t m = rows->end - rows->begin, n = columns->end - columns->begin;
    if (m <= 0 || n <= 0) return;
    const float *a = p->a + rows->begin * (p->trans_a == CblasTrans ? 1 : p->lda);
    const float *b = p->b + columns->begin * (p->trans_b == CblasTrans ? p->ldb : 1);
    cblas_sgemm(CblasRowMajor, p->trans_a, p->trans_b, (blasint)m, (blasint)n, (blasint)p->k, 1.0f, a, (blasint)p->lda, b,
                (blasint)p->ldb, p->beta, p->c + rows->begin * p->n + columns->begin, (blasint)p->n);
}

static int64_t inputs(const abar__op *op) { return op->desc.in[0].dim[op->desc.in[0].ndim - 1]; }
static int64_t outputs(const abar__op *op) { return op->desc.out.dim[op->desc.out.ndim - 1]; }
static int64_t row_count(const abar__op *op) { return abar__shape_count(&op->desc.out) / outputs(op); }

static abar_status create(abar__op *op)
{
    bool relu = op->desc.activation == ABAR_ACT_RELU;
    if (!relu && op->desc.activation != ABAR_ACT_NONE) return ABAR_E_UNSUPPORTED;
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = ABAR_NEEDS_X | (relu ? ABAR_NEEDS_Y : 0u);
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

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const int64_t in = inputs(op), out = outputs(op);
    const product p = {CblasNoTrans, CblasTrans, row_count(op), out, in, a->x[0], a->param[0], in, in, a->y, 0.0f};
    const float *bias = op->desc.bias ? a->param[1] : NULL;
#pragma omp parallel num_threads(op->dev->threads)
    {
        range rows, columns;
        abar__blas_single();
        multiply_part(&p, omp_get_num_threads(), omp_get_thread_num(), &rows, &columns);
        finish(p.c, out, rows, columns, bias, op->desc.activation == ABAR_ACT_RELU);
    }
    return ABAR_OK;
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
    const product weights = {CblasTrans, CblasNoTrans, out, in, rows, a->dy, a->x[0], out, in, a->dparam[0], add};
    const product input = {CblasNoTrans, CblasNoTrans, rows, in, out, a->dy, a->param[0], out, in, a->dx[0], 0.0f};
    abar__relu_gradient(op, a);
#pragma omp parallel num_threads(op->dev->threads)
    {
        int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        range part_rows, part_columns;
        abar__blas_single();
        multiply_part(&weights, threads, me, &part_rows, &part_columns);
        if (op->desc.bias) sum_rows(a->dy, rows, out, share(out, threads, me), a->accumulate, a->dparam[1]);
        if (op->desc.need_dx[0]) multiply_part(&input, threads, me, &part_rows, &part_columns);
    }
    return ABAR_OK;
}

const abar__op_impl abar__cpu_linear = {"openblas-linear", ABAR_OP_LINEAR, create, forward, backward, NULL};
