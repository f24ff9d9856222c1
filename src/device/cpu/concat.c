/* Concatenation along channels: for each outer index, the inputs' blocks one after another.
 *
 * In C8 and C16 the result may be some channels of a wider value, and an input may be stored within the result already, as in a
 * chain of concatenations (net/views.c). Then only new channels are copied. Their moments are computed meanwhile, once for all
 * batch norms that read the chain. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/batch_norm_kernels.h"
#include "device/cpu/isa/combine_kernels.h"

#include <string.h>

typedef struct concat {
    const abar__combine_kernels *kernels;
    const abar__batch_norm_kernels *norm;
    abar__planes y;
    int64_t length[ABAR_OP_MAX_IN], total; /* floats per outer index, of each input and of the output */
    int parts;
} concat;

/* Whole blocks of channels can be concatenated by copying, and so can values in N16; only the last input may end in padding. */
static abar_layout choose_layout(const abar__op *op)
{
    abar_layout layout = op->in_layout[0];
    int64_t block = layout == ABAR_LAYOUT_C8 ? 8 : layout == ABAR_LAYOUT_C16 ? 16 : 1;
    for (int i = 0; i + 1 < op->desc.n_in; i++)
        if (op->desc.in[i].dim[1] % block != 0) return ABAR_LAYOUT_STRIDED;
    return layout;
}

static abar_status create(abar__op *op)
{
    static const abar__combine_kernels *const combine[] = ABAR_ISA_TABLE(abar__combine);
    static const abar__batch_norm_kernels *const norm[] = ABAR_ISA_TABLE(abar__batch_norm);
    abar_layout layout = choose_layout(op);
    ABAR_TRY(abar__op_priv(op, sizeof(concat)));
    concat *c = op->priv;
    c->kernels = combine[abar__isa_best(op->dev->ctx)];
    c->norm = norm[abar__isa_best(op->dev->ctx)];
    c->y = abar__planes_of(&op->desc.out, layout);
    for (int i = 0; i < op->desc.n_in; i++) {
        abar__planes p = abar__planes_of(&op->desc.in[i], layout);
        op->in_layout[i] = layout;
        c->length[i] = p.groups * abar__plane_floats(&p);
        c->total += c->length[i];
    }
    c->parts = abar__parts(op->dev, c->y.outer * c->total, c->y.outer);
    op->out_layout = layout;
    op->takes_dy2 = true;
    if (layout != ABAR_LAYOUT_C8 && layout != ABAR_LAYOUT_C16) return ABAR_OK;
    op->view_align = c->y.lanes;
    op->moment_bytes = sizeof(abar__norm_moments);
    op->scratch_bytes = (size_t)(c->parts * c->y.groups * c->y.lanes) * sizeof(abar__norm_moments);
    return ABAR_OK;
}

/* Floats from one outer index to the next: of a dense value, or of the one with so many channels that contains it. */
static int64_t stride(const concat *c, int64_t pitch, int64_t dense) { return pitch ? pitch * c->y.pixels : dense; }

/* Whether input i is stored within the whole; at: where it begins there. */
static bool in_place(const void *part, const void *whole, int64_t at)
{
    return part == (const void *)((const float *)whole + at);
}

/* Adds the moments of so many floats of planes to those of their channels. */
static void add_moments(const concat *c, const float *x, int64_t floats, abar__norm_moments *channel)
{
    const int64_t plane = abar__plane_floats(&c->y), rows = plane / 16;
    for (const float *end = x + floats; x < end; x += plane, channel += c->y.lanes) {
        const abar__norm_rows most = {0, rows, 16, 16}, rest = {rows * 16, 1, 16, (int)(plane % 16)};
        double sum[16] = {0}, square[16] = {0};
        c->norm->moments(&most, x, sum, square);
        if (rest.lanes) c->norm->moments(&rest, x, sum, square);
        for (int l = 0; l < 16; l++) {
            channel[l % c->y.lanes].sum += sum[l];
            channel[l % c->y.lanes].square += square[l];
        }
    }
}

static abar__norm_moments *part_moments(const concat *c, const abar__op_args *a, int part)
{
    return (abar__norm_moments *)a->scratch + part * c->y.groups * c->y.lanes;
}

static void forward_part(const abar__op *op, const abar__op_args *a, int part, bool moments)
{
    const concat *c = op->priv;
    const int64_t end = abar__part_begin(c->y.outer, c->parts, part + 1), y_stride = stride(c, a->y_pitch, c->total);
    abar__norm_moments *own = moments ? part_moments(c, a, part) : NULL;
    if (moments) memset(own, 0, (size_t)(c->y.groups * c->y.lanes) * sizeof *own);
    for (int64_t o = abar__part_begin(c->y.outer, c->parts, part); o < end; o++)
        for (int64_t i = 0, at = 0; i < op->desc.n_in; at += c->length[i++]) {
            if (in_place(a->x[i], a->y, at)) continue;
            const float *x = (const float *)a->x[i] + o * stride(c, a->x_pitch[i], c->length[i]);
            memcpy((float *)a->y + o * y_stride + at, x, (size_t)c->length[i] * sizeof *x);
            if (moments) add_moments(c, x, c->length[i], own + at / c->y.pixels);
        }
}

/* Adds up the parts, always in the same order, for those inputs that were copied. */
static void join_moments(const abar__op *op, const abar__op_args *a)
{
    const concat *c = op->priv;
    abar__norm_moments *to = a->moments;
    for (int64_t i = 0, at = 0; i < op->desc.n_in; at += c->length[i++])
        for (int64_t k = at / c->y.pixels; !in_place(a->x[i], a->y, at) && k < (at + c->length[i]) / c->y.pixels; k++) {
            to[k] = part_moments(c, a, 0)[k];
            for (int part = 1; part < c->parts; part++) {
                to[k].sum += part_moments(c, a, part)[k].sum;
                to[k].square += part_moments(c, a, part)[k].square;
            }
        }
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const concat *c = op->priv;
    const bool moments = a->moments && a->run->training;
#pragma omp parallel for num_threads(c->parts) schedule(static) if (c->parts > 1)
    for (int part = 0; part < c->parts; part++) forward_part(op, a, part, moments);
    if (moments) join_moments(op, a);
    return ABAR_OK;
}

/* to = from, or from + from2 where from2 is not NULL. */
static void move(const concat *c, const float *from, const float *from2, float *to, int64_t n)
{
    if (from2)
        c->kernels->add(from, from2, to, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const concat *c = op->priv;
    const float *dy = a->dy, *dy2 = a->dy2;
    const int64_t y_stride = stride(c, a->y_pitch, c->total);
#pragma omp parallel for num_threads(c->parts) schedule(static) if (c->parts > 1)
    for (int64_t o = 0; o < c->y.outer; o++)
        for (int64_t i = 0, at = 0; i < op->desc.n_in; at += c->length[i++]) {
            float *dx = a->dx[i];
            if (!dx || in_place(dx, dy, at)) continue;
            const int64_t from = o * y_stride + at;
            move(c, dy + from, dy2 ? dy2 + from : NULL, dx + o * stride(c, a->x_pitch[i], c->length[i]), c->length[i]);
        }
    return ABAR_OK;
}

const abar__op_impl abar__cpu_concat = {"cpu-concat", ABAR_OP_CONCAT, create, forward, backward, NULL};
