/* Layer norm over the last dimension of a dense value, or of the sum of two. Rows are independent except for the gradients
 * of scale and shift, which each part sums separately. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/layer_norm_kernels.h"

#include <string.h>

typedef struct layer_norm {
    const abar__layer_norm_kernels *kernels;
    int64_t rows, width;
    int parts;
} layer_norm;

static abar_status create(abar__op *op)
{
    static const abar__layer_norm_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__layer_norm);
    const abar__shape *shape = &op->desc.in[0];
    ABAR_TRY(abar__op_priv(op, sizeof(layer_norm)));
    layer_norm *n = op->priv;
    n->kernels = by_isa[abar__isa_best(op->dev->ctx)];
    n->width = shape->dim[shape->ndim - 1];
    n->rows = abar__shape_count(shape) / n->width;
    n->parts = abar__parts(op->dev, n->rows * n->width, n->rows);
    op->in_layout[0] = op->in_layout[1] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = op->desc.residual ? ABAR_NEEDS_STREAM : ABAR_NEEDS_X;
    op->dx_alike = op->desc.residual;
    op->saved_bytes = (size_t)n->rows * 2 * sizeof(float); /* (rows, 2): mean, rstd */
    op->scratch_bytes =
        (size_t)n->parts * 2 * (size_t)(n->width + 8) * sizeof(double); /* with a cache line between the parts */
    return ABAR_OK;
}

/* to = x + y, n elements from first on. The rows stay in cache for the norm, which reads them next. */
static void add_row(const float *x, const float *y, int64_t first, int64_t n, float *to)
{
#pragma omp simd
    for (int64_t i = first; i < first + n; i++) to[i] = x[i] + y[i];
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const layer_norm *n = op->priv;
    const float *x = op->desc.residual ? a->stream : a->x[0], *scale = a->param[0], *shift = a->param[1];
    float *y = a->y, *stat = a->saved;
#pragma omp parallel for num_threads(n->parts) schedule(static) if (n->parts > 1)
    for (int64_t r = 0; r < n->rows; r++) {
        float ignored[2];
        if (op->desc.residual) add_row(a->x[0], a->x[1], r * n->width, n->width, a->stream);
        n->kernels->forward(x + r * n->width, scale, shift, op->desc.eps, n->width, y + r * n->width,
                            stat ? stat + 2 * r : ignored);
    }
    return ABAR_OK;
}

static double *part_sums(const layer_norm *n, const abar__op_args *a, int part)
{
    return (double *)a->scratch + part * 2 * (n->width + 8);
}

static void backward_part(const layer_norm *n, const abar__op_args *a, int part)
{
    const float *dy = a->dy, *x = a->stream ? a->stream : a->x[0], *scale = a->param[0], *stat = a->saved;
    float *dx = a->dx[0] ? a->dx[0] : a->dx[1], *other = a->dx[0] && a->dx[1] != dx ? a->dx[1] : NULL;
    double *dscale = part_sums(n, a, part), *dshift = dscale + n->width;
    memset(dscale, 0, 2 * (size_t)n->width * sizeof *dscale);
    int64_t end = abar__part_begin(n->rows, n->parts, part + 1);
    for (int64_t r = abar__part_begin(n->rows, n->parts, part); r < end; r++) {
        const int64_t at = r * n->width;
        n->kernels->backward(dy + at, x + at, scale, stat + 2 * r, n->width, dx ? dx + at : NULL, dscale, dshift);
        if (dx && a->dstream) add_row(dx, a->dstream, at, n->width, dx);
        if (other) memcpy(other + at, dx + at, (size_t)n->width * sizeof *dx);
    }
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const layer_norm *n = op->priv;
#pragma omp parallel for num_threads(n->parts) schedule(static) if (n->parts > 1)
    for (int part = 0; part < n->parts; part++) backward_part(n, a, part);
    for (int k = 0; k < 2; k++) {
        float *d = a->dparam[k];
        for (int64_t i = 0; d && i < n->width; i++) {
            double sum = a->accumulate ? (double)d[i] : 0;
            for (int part = 0; part < n->parts; part++) sum += part_sums(n, a, part)[k * n->width + i];
            d[i] = (float)sum;
        }
    }
    return ABAR_OK;
}

const abar__op_impl abar__cpu_layer_norm = {"cpu-layer-norm", ABAR_OP_LAYER_NORM, create, forward, backward, NULL};
