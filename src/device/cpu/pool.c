/* Max and average pooling, plane by plane in the layout of the input. An output of one pixel per channel is strided: a
 * linear layer or a flatten follows. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/pool_kernels.h"

#include <string.h>

typedef struct pool {
    const abar__pool_kernels *kernels;
    abar__planes x;
    abar__pool geometry;
    int64_t y_floats; /* per plane, of the output in the layout of the input */
    bool scattered;   /* the output is strided although the input is blocked */
    int parts;
} pool;

static bool windows_tile(const abar__pool *g)
{
    for (int axis = 0; axis < 2; axis++) {
        const abar_window *w = &g->window;
        bool dense = w->dilation[axis] == 1 || w->kernel[axis] == 1;
        if (!dense || w->pad[axis] != 0 || w->stride[axis] != w->kernel[axis] || g->out[axis] * w->kernel[axis] != g->in[axis])
            return false;
    }
    return true;
}

static abar_status create(abar__op *op)
{
    static const abar__pool_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__pool);
    const abar__op_desc *d = &op->desc;
    ABAR_TRY(abar__op_priv(op, sizeof(pool)));
    pool *p = op->priv;
    p->kernels = by_isa[abar__isa_best(op->dev->ctx)];
    p->x = abar__planes_of(&d->in[0], op->in_layout[0]);
    abar__pool *g = &p->geometry;
    g->window = d->window;
    for (int axis = 0; axis < 2; axis++) {
        g->in[axis] = d->in[0].dim[2 + axis];
        g->out[axis] = d->out.dim[2 + axis];
    }
    g->lanes = p->x.lanes;
    g->tiles = windows_tile(g);
    g->wide = d->window.kernel[0] * d->window.kernel[1] > 255;
    p->y_floats = g->out[0] * g->out[1] * g->lanes;
    p->parts = abar__parts(op->dev, abar__planes_floats(&p->x), p->x.outer * p->x.groups);
    p->scattered = p->x.lanes > 1 && p->y_floats == p->x.lanes;
    op->out_layout = p->scattered ? ABAR_LAYOUT_STRIDED : op->in_layout[0];
    const size_t cells = (size_t)(p->x.outer * p->x.groups * p->y_floats) * (g->wide ? sizeof(int32_t) : sizeof(uint8_t));
    if (d->patterned)
        op->pattern_bytes = cells;
    else if (!d->average && d->need_dx[0])
        op->saved_bytes = cells;
    return ABAR_OK;
}

/* The offset of lane 0 of a plane in a strided (N, C) output, the distance of its lanes, and how many of them exist. */
static int64_t scattered_at(const pool *p, int64_t plane, int64_t *stride, int64_t *lanes)
{
    int64_t o = plane / p->x.groups, g = plane % p->x.groups, left;
    if (p->x.layout == ABAR_LAYOUT_N16) {
        left = p->x.images - o * 16;
        *stride = p->x.channels;
        *lanes = left < 16 ? left : 16;
        return o * 16 * p->x.channels + g;
    }
    left = p->x.channels - g * p->x.lanes;
    *stride = 1;
    *lanes = left < p->x.lanes ? left : p->x.lanes;
    return o * p->x.channels + g * p->x.lanes;
}

static void *cells_of(const abar__op *op, const abar__op_args *a, int64_t plane)
{
    const pool *p = op->priv;
    void *saved = op->desc.patterned ? a->pattern : a->saved;
    size_t size = p->geometry.wide ? sizeof(int32_t) : sizeof(uint8_t);
    return saved ? (char *)saved + (size_t)(plane * p->y_floats) * size : NULL;
}

static void forward_plane(const abar__op *op, const abar__op_args *a, int64_t plane)
{
    const pool *p = op->priv;
    const float *x = (const float *)a->x[0] + plane * abar__plane_floats(&p->x);
    float lane[16], *y = p->scattered ? lane : (float *)a->y + plane * p->y_floats;
    if (op->desc.average)
        p->kernels->average(&p->geometry, x, y);
    else if (op->desc.patterned && a->run->repeat)
        p->kernels->chosen(&p->geometry, x, y, cells_of(op, a, plane));
    else
        p->kernels->max(&p->geometry, x, y, cells_of(op, a, plane));
    if (!p->scattered) return;
    int64_t stride, lanes, at = scattered_at(p, plane, &stride, &lanes);
    for (int64_t l = 0; l < lanes; l++) ((float *)a->y)[at + l * stride] = lane[l];
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const pool *p = op->priv;
#pragma omp parallel for num_threads(p->parts) schedule(static) if (p->parts > 1)
    for (int64_t plane = 0; plane < p->x.outer * p->x.groups; plane++) forward_plane(op, a, plane);
    return ABAR_OK;
}

static void backward_plane(const abar__op *op, const abar__op_args *a, int64_t plane)
{
    const pool *p = op->priv;
    const float *dy = a->dy;
    float lane[16] = {0}, *dx = (float *)a->dx[0] + plane * abar__plane_floats(&p->x);
    if (p->scattered) {
        int64_t stride, lanes, at = scattered_at(p, plane, &stride, &lanes);
        for (int64_t l = 0; l < lanes; l++) lane[l] = dy[at + l * stride];
    }
    const float *g = p->scattered ? lane : dy + plane * p->y_floats;
    if (op->desc.average)
        p->kernels->average_grad(&p->geometry, g, dx);
    else
        p->kernels->max_grad(&p->geometry, g, cells_of(op, a, plane), dx);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const pool *p = op->priv;
    if (!a->dx[0]) return ABAR_OK;
#pragma omp parallel for num_threads(p->parts) schedule(static) if (p->parts > 1)
    for (int64_t plane = 0; plane < p->x.outer * p->x.groups; plane++) backward_plane(op, a, plane);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_pool = {"cpu-pool", ABAR_OP_POOL2D, create, forward, backward, NULL};
