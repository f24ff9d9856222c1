/* Direct convolution with sixteen images in the vector lanes (ABAR_LAYOUT_N16), for layers of few channels and for all cases
 * that no other implementation accepts: any kernel, stride, padding, dilation and number of groups.
 *
 * The work is cut into units, strips of rows of sixteen images, which are distributed over the threads in order. The
 * gradient of the input is a convolution of dy; with a stride s there is one for each of the s x s phases of its pixels. */
#include "device/cpu/conv_lanes.h"
#include "device/cpu/cpu_nn.h"

#include <omp.h>
#include <string.h>

ABAR_ISA_EXTERN(abar__lanes_kernels, abar__lanes);

typedef struct phase {
    int64_t row, column; /* input pixels (row + i * stride, column + j * stride) */
    abar__lanes_map map;
    abar__lanes_plain plain;
    int64_t packed; /* offset of its weights, in floats, for one group */
} phase;

typedef struct lanes {
    const abar__lanes_kernels *kernels;
    int64_t strips, units;
    int64_t in_channels, out_channels; /* of one group */
    int64_t in_plane, out_plane;       /* floats of one channel of sixteen images */
    int64_t weights;                   /* of one group */
    abar__lanes_map forward;
    abar__lanes_slope slope;
    int phases;
    phase phase[];
} lanes;

/* The sums of one thread during backward, in floats. */
typedef struct workspace {
    int64_t bias, stage, total; /* offsets; the weights come first */
} workspace;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

/* ---- making ----------------------------------------------------------------------------------------------------- */

/* One axis of one phase: the taps that reach input pixels phase + i * stride, and the first tap and the step in the kernel. */
static abar__lanes_axis phase_axis(const abar_window *w, int axis, int64_t in, int64_t out, int64_t at, int64_t *first,
                                   int64_t *step)
{
    int64_t stride = w->stride[axis], dilation = w->dilation[axis], common = gcd(stride, dilation), k = 0;
    while (k < w->kernel[axis] && (at + w->pad[axis] - k * dilation) % stride != 0) k++;
    *first = k;
    *step = stride / common;
    return (abar__lanes_axis){
        .out = at < in ? (in - at + stride - 1) / stride : 0,
        .in = out,
        .taps = (w->kernel[axis] - k + *step - 1) / *step,
        .step = 1,
        .first = k < w->kernel[axis] ? (at + w->pad[axis] - k * dilation) / stride : 0,
        .tap = -dilation / common,
    };
}

static void make_phases(lanes *l, const abar__op_desc *d)
{
    const abar_window *w = &d->window;
    int64_t width = d->in[0].dim[3], packed = 0;
    l->phases = (int)(w->stride[0] * w->stride[1]);
    for (int i = 0; i < l->phases; i++) {
        int64_t first[2], step[2], row = i / w->stride[1], column = i % w->stride[1];
        phase *p = &l->phase[i];
        *p = (phase){.row = row, .column = column, .packed = packed};
        p->map = (abar__lanes_map){
            .v = phase_axis(w, 0, d->in[0].dim[2], d->out.dim[2], row, &first[0], &step[0]),
            .h = phase_axis(w, 1, width, d->out.dim[3], column, &first[1], &step[1]),
            .inputs = l->out_channels,
            .outputs = l->in_channels,
            .src_channel = l->out_plane,
            .src_row = d->out.dim[3] * ABAR_LANES,
            .dst_channel = l->in_plane,
            .dst_row = w->stride[0] * width * ABAR_LANES,
            .dst_column = w->stride[1] * ABAR_LANES,
        };
        p->plain = (abar__lanes_plain){
            .output = w->kernel[0] * w->kernel[1],
            .input = l->in_channels * w->kernel[0] * w->kernel[1],
            .first = first[0] * w->kernel[1] + first[1],
            .row = step[0] * w->kernel[1],
            .column = step[1],
        };
        packed += l->in_channels * l->out_channels * p->map.v.taps * p->map.h.taps;
    }
}

static void make_maps(lanes *l, const abar__op_desc *d)
{
    const abar_window *w = &d->window;
    abar__lanes_axis axis[2];
    for (int i = 0; i < 2; i++)
        axis[i] =
            (abar__lanes_axis){d->out.dim[2 + i], d->in[0].dim[2 + i], w->kernel[i], w->stride[i], -w->pad[i], w->dilation[i]};
    l->forward = (abar__lanes_map){
        .v = axis[0],
        .h = axis[1],
        .inputs = l->in_channels,
        .outputs = l->out_channels,
        .src_channel = l->in_plane,
        .src_row = d->in[0].dim[3] * ABAR_LANES,
        .dst_channel = l->out_plane,
        .dst_row = d->out.dim[3] * ABAR_LANES,
        .dst_column = ABAR_LANES,
        .relu = d->activation == ABAR_ACT_RELU,
    };
    l->slope = (abar__lanes_slope){axis[0],
                                   axis[1],
                                   l->in_channels,
                                   l->out_channels,
                                   l->forward.src_channel,
                                   l->forward.src_row,
                                   l->forward.dst_channel,
                                   l->forward.dst_row};
}

/* Cuts images into strips until the threads have nearly equal parts. */
static int64_t choose_strips(int64_t blocks, int64_t rows, int64_t threads)
{
    for (int64_t strips = 1; strips < rows; strips++) {
        int64_t units = blocks * strips, longest = (units + threads - 1) / threads;
        if (units * 10 >= longest * threads * 9) return strips;
    }
    return rows;
}

/* Floats of all source rows that one output row needs. */
static int64_t stage_floats(const abar__lanes_map *map) { return map->inputs * map->v.taps * (map->src_row + ABAR_LANES); }

static workspace workspace_of(const lanes *l, const abar__op_desc *d)
{
    workspace s = {.bias = d->window.groups * l->weights * ABAR_LANES};
    s.stage = s.bias + d->out.dim[1] * ABAR_LANES;
    int64_t stage = stage_floats(&l->forward);
    for (int i = 0; i < l->phases; i++) stage = max64(stage, stage_floats(&l->phase[i].map));
    s.total = s.stage + stage;
    return s;
}

/* Scratch: packed weights, then the threads' workspaces. */
static int64_t packed_floats(const lanes *l, const abar__op_desc *d)
{
    return (int64_t)abar__round_up((size_t)(d->window.groups * l->weights), ABAR_LANES);
}

static abar_status create_any(abar__op *op)
{
    static const abar__lanes_kernels *const kernels[] = ABAR_ISA_TABLE(abar__lanes);
    const abar__op_desc *d = &op->desc;
    const abar_window *w = &d->window;
    if (d->activation != ABAR_ACT_NONE && d->activation != ABAR_ACT_RELU) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__op_priv(op, sizeof(lanes) + (size_t)(w->stride[0] * w->stride[1]) * sizeof(phase)));
    lanes *l = op->priv;
    int64_t blocks = (d->in[0].dim[0] + ABAR_LANES - 1) / ABAR_LANES;
    l->kernels = kernels[abar__isa_best(op->dev->ctx)];
    l->in_channels = d->in[0].dim[1] / w->groups;
    l->out_channels = d->out.dim[1] / w->groups;
    l->in_plane = d->in[0].dim[2] * d->in[0].dim[3] * ABAR_LANES;
    l->out_plane = d->out.dim[2] * d->out.dim[3] * ABAR_LANES;
    l->weights = l->in_channels * l->out_channels * w->kernel[0] * w->kernel[1];
    l->strips = choose_strips(blocks, d->out.dim[2], op->dev->threads);
    l->units = blocks * l->strips;
    make_maps(l, d);
    make_phases(l, d);
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_N16;
    op->backward_needs = ABAR_NEEDS_X | (d->activation == ABAR_ACT_RELU ? ABAR_NEEDS_Y : 0u);
    op->scratch_bytes = sizeof(float) * (size_t)(packed_floats(l, d) + op->dev->threads * workspace_of(l, d).total);
    return ABAR_OK;
}

/* oneDNN pads channels to its block; N16 does not. With few images, lanes are wasted; with very many weights the threads'
 * sums, sixteen floats per weight, would take too much memory. */
static abar_status create_preferred(abar__op *op)
{
    const abar__op_desc *d = &op->desc;
    const abar_window *w = &d->window;
    int64_t block = abar__isa_best(op->dev->ctx) == ABAR_ISA_AVX512 ? 16 : 8, images = d->in[0].dim[0];
    int64_t weights = d->in[0].dim[1] / w->groups * d->out.dim[1] * w->kernel[0] * w->kernel[1];
    bool small = weights * op->dev->threads <= 1 << 20;
    bool narrow = d->out.dim[1] / w->groups % block != 0 && images >= ABAR_LANES / 2;
    return small && (narrow || d->in_layout[0] == ABAR_LAYOUT_N16) ? create_any(op) : ABAR_E_UNSUPPORTED;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Lanes without an image must stay zero, with and without bias. */
static void clear_lanes(const abar__op *op, float *y, int64_t row0, int64_t row1)
{
    const abar__shape *s = &op->desc.out;
    int64_t used = s->dim[0] % ABAR_LANES, width = s->dim[3];
    for (int64_t c = 0; c < s->dim[1]; c++)
        for (int64_t p = (c * s->dim[2] + row0) * width; p < (c * s->dim[2] + row1) * width; p++)
            memset(y + p * ABAR_LANES + used, 0, (size_t)(ABAR_LANES - used) * sizeof(float));
}

/* The output rows of a unit. */
static void rows_of(const abar__op *op, int64_t unit, int64_t *begin, int64_t *end)
{
    const lanes *l = op->priv;
    *begin = abar__lanes_share(op->desc.out.dim[2], l->strips, unit % l->strips);
    *end = abar__lanes_share(op->desc.out.dim[2], l->strips, unit % l->strips + 1);
}

/* Output row i. */
static void run_row(const lanes *l, const abar__lanes_map *map, const float *packed, const float *bias, const float *src,
                    float *dst, int64_t i, float *stage)
{
    if (stage_floats(map) == 0) {
        l->kernels->row(map, packed, bias, src, dst, i);
        return;
    }
    int64_t v0, v1;
    abar__lanes_clip(&map->v, i, &v0, &v1);
    abar__lanes_map near = *map;
    near.src_row = map->src_row + ABAR_LANES;
    near.src_channel = map->v.taps * near.src_row;
    near.v = (abar__lanes_axis){.out = 1, .in = v1 - v0, .taps = map->v.taps, .first = -v0, .tap = 1};
    for (int64_t c = 0; c < map->inputs; c++)
        for (int64_t v = v0; v < v1; v++)
            memcpy(stage + c * near.src_channel + (v - v0) * near.src_row,
                   src + c * map->src_channel + (i * map->v.step + map->v.first + v * map->v.tap) * map->src_row,
                   (size_t)map->src_row * sizeof(float));
    l->kernels->row(&near, packed, bias, stage, dst + i * map->dst_row, 0);
}

static void forward_unit(const abar__op *op, const abar__op_args *a, const float *packed, float *stage, int64_t unit)
{
    const lanes *l = op->priv;
    const abar__op_desc *d = &op->desc;
    int64_t block = unit / l->strips, begin, end;
    const float *x = (const float *)a->x[0] + block * d->in[0].dim[1] * l->in_plane;
    const float *bias = d->bias ? a->param[1] : NULL;
    float *y = (float *)a->y + block * d->out.dim[1] * l->out_plane;
    rows_of(op, unit, &begin, &end);
    for (int64_t g = 0; g < d->window.groups; g++)
        for (int64_t i = begin; i < end; i++)
            run_row(l, &l->forward, packed + g * l->weights, bias ? bias + g * l->out_channels : NULL,
                    x + g * l->in_channels * l->in_plane, y + g * l->out_channels * l->out_plane, i, stage);
    if ((block + 1) * ABAR_LANES > d->out.dim[0]) clear_lanes(op, y, begin, end);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const lanes *l = op->priv;
    const abar_window *w = &op->desc.window;
    const abar__lanes_plain plain = {l->in_channels * w->kernel[0] * w->kernel[1], w->kernel[0] * w->kernel[1], 0, w->kernel[1],
                                     1};
    float *packed = a->scratch;
    for (int64_t g = 0; g < w->groups; g++)
        l->kernels->pack(&l->forward, &plain, (const float *)a->param[0] + g * l->weights, packed + g * l->weights);
#pragma omp parallel num_threads(op->dev->threads)
    {
        int64_t threads = omp_get_num_threads(), me = omp_get_thread_num(), end = abar__lanes_share(l->units, threads, me + 1);
        float *stage = packed + packed_floats(l, &op->desc) + me * workspace_of(l, &op->desc).total;
        for (int64_t u = abar__lanes_share(l->units, threads, me); u < end; u++) forward_unit(op, a, packed, stage, u);
    }
    return ABAR_OK;
}

/* Replaces the unit's rows of dy by the gradient before the ReLU, and adds them to the bias's gradient. */
static void mask_unit(const abar__op *op, const abar__op_args *a, float *bias, int64_t unit)
{
    const lanes *l = op->priv;
    const abar__op_desc *d = &op->desc;
    bool relu = d->activation == ABAR_ACT_RELU;
    if (!relu && !d->bias) return;
    int64_t image = unit / l->strips * d->out.dim[1], begin, end;
    rows_of(op, unit, &begin, &end);
    for (int64_t c = 0; c < d->out.dim[1]; c++) {
        int64_t at = (image + c) * l->out_plane + begin * l->slope.dy_row;
        l->kernels->mask((float *)a->dy + at, relu ? (const float *)a->y + at : NULL, bias + c * ABAR_LANES,
                         (end - begin) * d->out.dim[3]);
    }
}

static void input_gradient(const abar__op *op, const float *packed, const float *dy, float *dx, int64_t strip, float *stage)
{
    const lanes *l = op->priv;
    const abar__op_desc *d = &op->desc;
    int64_t stride = d->window.stride[0], height = d->in[0].dim[2];
    int64_t first = abar__lanes_share(height, l->strips, strip), end = abar__lanes_share(height, l->strips, strip + 1);
    for (int n = 0; n < l->phases; n++) {
        const phase *p = &l->phase[n];
        float *to = dx + (p->row * d->in[0].dim[3] + p->column) * ABAR_LANES;
        int64_t last = min64(p->map.v.out, ceil_div(end - p->row, stride));
        for (int64_t g = 0; g < d->window.groups; g++)
            for (int64_t i = max64(0, ceil_div(first - p->row, stride)); i < last; i++)
                run_row(l, &p->map, packed + g * l->weights + p->packed, NULL, dy + g * l->out_channels * l->out_plane,
                        to + g * l->in_channels * l->in_plane, i, stage);
    }
}

static void backward_unit(const abar__op *op, const abar__op_args *a, float *weights, int64_t unit)
{
    const lanes *l = op->priv;
    const abar__op_desc *d = &op->desc;
    int64_t block = unit / l->strips, begin, end;
    const float *dy = (const float *)a->dy + block * d->out.dim[1] * l->out_plane;
    const float *x = (const float *)a->x[0] + block * d->in[0].dim[1] * l->in_plane;
    rows_of(op, unit, &begin, &end);
    for (int64_t g = 0; g < d->window.groups; g++)
        l->kernels->slope(&l->slope, dy + g * l->out_channels * l->out_plane, x + g * l->in_channels * l->in_plane,
                          weights + g * l->weights * ABAR_LANES, begin, end);
    if (d->need_dx[0])
        input_gradient(op, a->scratch, dy, (float *)a->dx[0] + block * d->in[0].dim[1] * l->in_plane, unit % l->strips,
                       weights + workspace_of(l, d).stage);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const lanes *l = op->priv;
    const abar__op_desc *d = &op->desc;
    const workspace s = workspace_of(l, d);
    float *packed = a->scratch, *sums = packed + packed_floats(l, d);
    const int64_t weights = d->window.groups * l->weights, outputs = d->out.dim[1];
    for (int64_t g = 0; g < d->window.groups && d->need_dx[0]; g++)
        for (int n = 0; n < l->phases; n++)
            l->kernels->pack(&l->phase[n].map, &l->phase[n].plain, (const float *)a->param[0] + g * l->weights,
                             packed + g * l->weights + l->phase[n].packed);
#pragma omp parallel num_threads(op->dev->threads)
    {
        int threads = omp_get_num_threads(), me = omp_get_thread_num();
        float *own = sums + me * s.total;
        int64_t begin = abar__lanes_share(l->units, threads, me), end = abar__lanes_share(l->units, threads, me + 1);
        memset(own, 0, (size_t)s.stage * sizeof(float));
        if (l->strips > 1) { /* a strip of dx reads rows of neighbouring strips */
            for (int64_t u = begin; u < end; u++) mask_unit(op, a, own + s.bias, u);
#pragma omp barrier
        }
        for (int64_t u = begin; u < end; u++) {
            if (l->strips == 1) mask_unit(op, a, own + s.bias, u);
            backward_unit(op, a, own, u);
        }
#pragma omp barrier
        l->kernels->reduce(sums, s.total, threads, abar__lanes_share(weights, threads, me),
                           abar__lanes_share(weights, threads, me + 1), a->accumulate, a->dparam[0]);
        if (d->bias)
            l->kernels->reduce(sums + s.bias, s.total, threads, abar__lanes_share(outputs, threads, me),
                               abar__lanes_share(outputs, threads, me + 1), a->accumulate, a->dparam[1]);
    }
    return ABAR_OK;
}

const abar__op_impl abar__cpu_conv_lanes = {"lanes-conv", ABAR_OP_CONV2D, create_preferred, forward, backward, NULL};
const abar__op_impl abar__cpu_conv_lanes_any = {"lanes-conv", ABAR_OP_CONV2D, create_any, forward, backward, NULL};
