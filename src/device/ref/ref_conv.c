/* Two-dimensional convolution (cross-correlation, as in PyTorch) with stride, padding, dilation and groups:
 *     y[n, o, p, q] = b[o] + sum_{c, i, j} x[n, c, p s - pad + i d, q s - pad + j d] w[o, c, i, j]
 * c runs over the channels of o's group; x is zero in the padding. An optional ReLU follows. */
#include "device/ref/ref_nn.h"

#include <string.h>

/* The extents that both directions need. */
typedef struct geometry {
    abar__shape in, out; /* (N, C, H, W), (N, O, P, Q) */
    abar_window window;  /* kernel kh, kw */
    int64_t cg, og;      /* channels per group: in, out */
    abar__shape weight;  /* (O, C / groups, kh, kw) */
} geometry;

static geometry describe(const abar__op_desc *desc)
{
    geometry g = {.in = desc->in[0], .out = desc->out, .window = desc->window};
    g.cg = g.in.dim[1] / g.window.groups;
    g.og = g.out.dim[1] / g.window.groups;
    g.weight = (abar__shape){4, {g.out.dim[1], g.cg, g.window.kernel[0], g.window.kernel[1]}};
    return g;
}

/* One output: the window of output channel o on image n at position (p, q). */
static double product(const geometry *g, const double *x, const double *w, int64_t n, int64_t o, int64_t p, int64_t q)
{
    double z = 0.0;
    for (int64_t c = 0; c < g->cg; c++)
        for (int64_t i = 0; i < g->window.kernel[0]; i++)
            for (int64_t j = 0; j < g->window.kernel[1]; j++) {
                int64_t h = abar__ref_tap(&g->window, 0, p, i), v = abar__ref_tap(&g->window, 1, q, j);
                if (abar__ref_inside(&g->in, h, v))
                    z += x[abar__ref_at(&g->in, n, o / g->og * g->cg + c, h, v)] * w[abar__ref_at(&g->weight, o, c, i, j)];
            }
    return z;
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    geometry g = describe(&op->desc);
    const double *b = a->param[1];
    double *y = a->y;
    for (int64_t n = 0; n < g.out.dim[0]; n++)
        for (int64_t o = 0; o < g.out.dim[1]; o++)
            for (int64_t p = 0; p < g.out.dim[2]; p++)
                for (int64_t q = 0; q < g.out.dim[3]; q++) {
                    double z = product(&g, a->x[0], a->param[0], n, o, p, q) + (op->desc.bias ? b[o] : 0.0);
                    y[abar__ref_at(&g.out, n, o, p, q)] = abar__ref_fused(op, z);
                }
    return ABAR_OK;
}

/* The transpose of product: adds the gradient dz of one output to the gradients of the weights and inputs it depends on. */
static void spread(const geometry *g, const abar__op_args *a, double dz, int64_t n, int64_t o, int64_t p, int64_t q)
{
    const double *x = a->x[0], *w = a->param[0];
    double *dx = a->dx[0], *dw = a->dparam[0];
    for (int64_t c = 0; c < g->cg; c++)
        for (int64_t i = 0; i < g->window.kernel[0]; i++)
            for (int64_t j = 0; j < g->window.kernel[1]; j++) {
                int64_t h = abar__ref_tap(&g->window, 0, p, i), v = abar__ref_tap(&g->window, 1, q, j);
                if (!abar__ref_inside(&g->in, h, v)) continue;
                int64_t at_x = abar__ref_at(&g->in, n, o / g->og * g->cg + c, h, v);
                int64_t at_w = abar__ref_at(&g->weight, o, c, i, j);
                dw[at_w] += dz * x[at_x];
                if (dx) dx[at_x] += dz * w[at_w];
            }
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    geometry g = describe(&op->desc);
    abar__ref_dparam(a, 0, abar__shape_count(&g.weight));
    double *dy = a->dy, *db = op->desc.bias ? abar__ref_dparam(a, 1, g.out.dim[1]) : NULL;
    if (a->dx[0]) memset(a->dx[0], 0, (size_t)abar__shape_count(&g.in) * sizeof(double));
    for (int64_t n = 0; n < g.out.dim[0]; n++)
        for (int64_t o = 0; o < g.out.dim[1]; o++)
            for (int64_t p = 0; p < g.out.dim[2]; p++)
                for (int64_t q = 0; q < g.out.dim[3]; q++) {
                    int64_t at = abar__ref_at(&g.out, n, o, p, q);
                    double dz = dy[at] = abar__ref_dz(op, a, at); /* kept there for curvature to observe */
                    if (db) db[o] += dz;
                    spread(&g, a, dz, n, o, p, q);
                }
    return ABAR_OK;
}

const abar__op_impl abar__ref_conv2d = {"ref-conv2d", ABAR_OP_CONV2D, abar__ref_create_fused, forward, backward, NULL};
