/* Operations that only add and copy: add, concat, flatten, and the parameter-free shortcut of CIFAR ResNets. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/batch_norm_kernels.h"
#include "device/cpu/isa/combine_kernels.h"

#include <string.h>

static const abar__combine_kernels *kernels(const abar__op *op)
{
    static const abar__combine_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__combine);
    return by_isa[abar__isa_best(op->dev->ctx)];
}

/* to = from, or from + from2 where from2 is not NULL. */
static void move(const abar__combine_kernels *k, const float *from, const float *from2, float *to, int64_t n)
{
    if (from2)
        k->add(from, from2, to, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

/* --- add -------------------------------------------------------------------------------------------------------- */

typedef struct adder {
    const abar__combine_kernels *kernels;
    int64_t floats;
    int parts;
} adder;

static abar_status add_create(abar__op *op)
{
    ABAR_TRY(abar__op_priv(op, sizeof(adder)));
    adder *s = op->priv;
    abar__planes p = abar__planes_of(&op->desc.in[0], op->in_layout[0]);
    s->kernels = kernels(op);
    s->floats = abar__planes_floats(&p);
    s->parts = abar__parts(op->dev, s->floats, s->floats);
    op->in_layout[1] = op->out_layout = op->in_layout[0];
    op->takes_dy2 = true;
    op->dx_is_dy = true;
    return ABAR_OK;
}

static void move_all(const adder *s, const float *from, const float *from2, float *to)
{
#pragma omp parallel for num_threads(s->parts) schedule(static) if (s->parts > 1)
    for (int part = 0; part < s->parts; part++) {
        int64_t at = abar__part_begin(s->floats, s->parts, part), end = abar__part_begin(s->floats, s->parts, part + 1);
        move(s->kernels, from + at, from2 ? from2 + at : NULL, to + at, end - at);
    }
}

static abar_status add_forward(abar__op *op, const abar__op_args *a)
{
    move_all(op->priv, a->x[0], a->x[1], a->y);
    return ABAR_OK;
}

static abar_status add_backward(abar__op *op, const abar__op_args *a)
{
    for (int i = 0; i < 2; i++)
        if (a->dx[i]) move_all(op->priv, a->dy, a->dy2, a->dx[i]);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_add = {"cpu-add", ABAR_OP_ADD, add_create, add_forward, add_backward, NULL};

/* --- concat along channels: for each outer index, the inputs' blocks one after another ----------------------------
 *
 * In C8 and C16 the result may be some channels of a wider value, and an input may be stored within the result already, as in a
 * chain of concatenations (net/views.c). Then only new channels are copied. Their moments are computed meanwhile, once for all
 * batch norms that read the chain. */

typedef struct concat {
    const abar__combine_kernels *kernels;
    const abar__batch_norm_kernels *norm;
    abar__planes y;
    int64_t length[ABAR_OP_MAX_IN], total; /* floats per outer index, of each input and of the output */
    int parts;
} concat;

/* Whole blocks of channels can be concatenated by copying, and so can values in N16; only the last input may end in padding. */
static abar_layout concat_layout(const abar__op *op)
{
    abar_layout layout = op->in_layout[0];
    int64_t block = layout == ABAR_LAYOUT_C8 ? 8 : layout == ABAR_LAYOUT_C16 ? 16 : 1;
    for (int i = 0; i + 1 < op->desc.n_in; i++)
        if (op->desc.in[i].dim[1] % block != 0) return ABAR_LAYOUT_STRIDED;
    return layout;
}

static abar_status concat_create(abar__op *op)
{
    static const abar__batch_norm_kernels *const norm[] = ABAR_ISA_TABLE(abar__batch_norm);
    abar_layout layout = concat_layout(op);
    ABAR_TRY(abar__op_priv(op, sizeof(concat)));
    concat *c = op->priv;
    c->kernels = kernels(op);
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

static void concat_part(const abar__op *op, const abar__op_args *a, int part, bool moments)
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

static abar_status concat_forward(abar__op *op, const abar__op_args *a)
{
    const concat *c = op->priv;
    const bool moments = a->moments && a->run->training;
#pragma omp parallel for num_threads(c->parts) schedule(static) if (c->parts > 1)
    for (int part = 0; part < c->parts; part++) concat_part(op, a, part, moments);
    if (moments) join_moments(op, a);
    return ABAR_OK;
}

static abar_status concat_backward(abar__op *op, const abar__op_args *a)
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
            move(c->kernels, dy + from, dy2 ? dy2 + from : NULL, dx + o * stride(c, a->x_pitch[i], c->length[i]), c->length[i]);
        }
    return ABAR_OK;
}

const abar__op_impl abar__cpu_concat = {"cpu-concat", ABAR_OP_CONCAT, concat_create, concat_forward, concat_backward, NULL};

/* --- flatten: a dense value under another shape ------------------------------------------------------------------- */

static abar_status flatten_create(abar__op *op)
{
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->y_is_x = true;
    return ABAR_OK;
}

static void copy_unless_same(const abar__op *op, void *to, const void *from)
{
    if (to && to != from) memcpy(to, from, (size_t)abar__shape_count(&op->desc.out) * sizeof(float));
}

static abar_status flatten_forward(abar__op *op, const abar__op_args *a)
{
    copy_unless_same(op, a->y, a->x[0]);
    return ABAR_OK;
}

static abar_status flatten_backward(abar__op *op, const abar__op_args *a)
{
    copy_unless_same(op, a->dx[0], a->dy);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_flatten = {"cpu-flatten",   ABAR_OP_FLATTEN,  flatten_create,
                                         flatten_forward, flatten_backward, NULL};

/* --- shortcut, option A: y[c + before, i, j] = x[c, s i, s j], the other channels zero ------------------------------ */

typedef struct shortcut {
    const abar__combine_kernels *kernels;
    abar__planes x, y;
    int64_t x_width, y_height, y_width; /* in pixels */
    int64_t stride[2], before;          /* before: zero channels in front */
    int parts;
} shortcut;

static abar_status shortcut_create(abar__op *op)
{
    const abar__op_desc *d = &op->desc;
    ABAR_TRY(abar__op_priv(op, sizeof(shortcut)));
    shortcut *s = op->priv;
    s->kernels = kernels(op);
    s->x = abar__planes_of(&d->in[0], op->in_layout[0]);
    s->y = abar__planes_of(&d->out, op->in_layout[0]);
    s->x_width = d->in[0].dim[3];
    s->y_height = d->out.dim[2];
    s->y_width = d->out.dim[3];
    s->before = (d->out.dim[1] - d->in[0].dim[1]) / 2;
    memcpy(s->stride, d->window.stride, sizeof s->stride);
    s->parts = abar__parts(op->dev, abar__planes_floats(&s->x), s->x.outer);
    op->out_layout = op->in_layout[0];
    return ABAR_OK;
}

/* Consecutive channels within one group of x and one group of y. Lanes are channels in C8 and C16; otherwise a group is one
 * channel and all its lanes are copied together. */
typedef struct lane_run {
    int64_t x_group, y_group;
    int x_lane, y_lane, lanes;
} lane_run;

/* The run that begins at channel c of x; returns the channel after it. */
static int64_t next_run(const shortcut *s, int64_t c, lane_run *run)
{
    if (s->x.layout == ABAR_LAYOUT_STRIDED || s->x.layout == ABAR_LAYOUT_N16) {
        *run = (lane_run){.x_group = c, .y_group = c + s->before, .lanes = s->x.lanes};
        return c + 1;
    }
    int64_t block = s->x.lanes, to = c + s->before, n = s->x.channels - c;
    if (n > block - c % block) n = block - c % block;
    if (n > block - to % block) n = block - to % block;
    *run = (lane_run){c / block, to / block, (int)(c % block), (int)(to % block), (int)n};
    return c + n;
}

/* Copies the pixels that both sides share, for all channels of one outer index: from x to y, or back. */
static void move_pixels(const shortcut *s, float *x, float *y, bool back)
{
    int64_t lanes = s->x.lanes, step = s->stride[1] * lanes;
    lane_run run;
    for (int64_t c = 0; c < s->x.channels;) {
        c = next_run(s, c, &run);
        for (int64_t i = 0; i < s->y_height; i++) {
            float *in = x + (run.x_group * s->x.pixels + i * s->stride[0] * s->x_width) * lanes + run.x_lane;
            float *out = y + (run.y_group * s->y.pixels + i * s->y_width) * lanes + run.y_lane;
            if (back)
                s->kernels->copy_groups(out, lanes, in, step, s->y_width, run.lanes);
            else
                s->kernels->copy_groups(in, step, out, lanes, s->y_width, run.lanes);
        }
    }
}

/* Sets one side to zero, then copies the shared pixels. One outer index at a time, so that it stays in cache. */
static void shortcut_move(const shortcut *s, float *x, float *y, bool back)
{
    int64_t x_floats = s->x.groups * abar__plane_floats(&s->x), y_floats = s->y.groups * abar__plane_floats(&s->y);
#pragma omp parallel for num_threads(s->parts) schedule(static) if (s->parts > 1)
    for (int64_t o = 0; o < s->x.outer; o++) {
        if (back)
            memset(x + o * x_floats, 0, (size_t)x_floats * sizeof *x);
        else
            memset(y + o * y_floats, 0, (size_t)y_floats * sizeof *y);
        move_pixels(s, x + o * x_floats, y + o * y_floats, back);
    }
}

static abar_status shortcut_forward(abar__op *op, const abar__op_args *a)
{
    shortcut_move(op->priv, (float *)a->x[0], a->y, false);
    return ABAR_OK;
}

static abar_status shortcut_backward(abar__op *op, const abar__op_args *a)
{
    if (a->dx[0]) shortcut_move(op->priv, a->dx[0], a->dy, true);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_shortcut = {"cpu-shortcut",   ABAR_OP_SHORTCUT,  shortcut_create,
                                          shortcut_forward, shortcut_backward, NULL};
