/* Copies activations from one layout to another, or to tokens, and their gradients back. Each layout has one contiguous
 * dimension: a block of channels, a block of images or the pixels. A change of layout transposes tiles of two dimensions for
 * every index of the third. */
#include "device/cpu/reorder.h"
#include "device/cpu/cpu_nn.h"

#include <string.h>

enum { IMAGE, CHANNEL, PIXEL, DIMS };

/* How (n, c, p) is laid out: extents, the contiguous dimension and how much of it forms a block. */
typedef struct form {
    int inner;
    int64_t block, extent[DIMS];
    abar_layout layout;
} form;

static form form_of(abar_layout layout, const abar__shape *s)
{
    form f = {.inner = PIXEL, .block = 64, .extent = {s->dim[0], s->dim[1], s->dim[2] * s->dim[3]}, .layout = layout};
    switch (layout) {
    case ABAR_LAYOUT_C8: f.inner = CHANNEL, f.block = 8; break;
    case ABAR_LAYOUT_C16: f.inner = CHANNEL, f.block = 16; break;
    case ABAR_LAYOUT_N16: f.inner = IMAGE, f.block = 16; break;
    case ABAR_LAYOUT_NHWC:
    case ABAR_LAYOUT_PADDED: /* does not occur on this device */
    case ABAR_LAYOUT_STRIDED: break;
    }
    return f;
}

static int64_t blocks(const form *f, int dim, int64_t block) { return (f->extent[dim] + block - 1) / block; }

/* The offset of an element. */
static int64_t offset(const form *f, const int64_t at[DIMS])
{
    int64_t n = at[IMAGE], c = at[CHANNEL], pixels = f->extent[PIXEL], channels = f->extent[CHANNEL], block = f->block;
    switch (f->inner) {
    case IMAGE: return ((n / block * channels + c) * pixels + at[PIXEL]) * block + n % block;
    case CHANNEL: return ((n * blocks(f, CHANNEL, block) + c / block) * pixels + at[PIXEL]) * block + c % block;
    default: return (n * channels + c) * pixels + at[PIXEL];
    }
}

/* Elements from one index of dim to the next, within a block. */
static int64_t step(const form *f, int dim)
{
    int64_t from[DIMS] = {0}, to[DIMS] = {0};
    to[dim] = 1;
    return offset(f, to) - offset(f, from);
}

/* Between C8 and C16: copies halves of blocks; the last one is filled up with zeros. */
static void regroup(const abar_device *dev, const form *to, float *dst, const form *from, const float *src)
{
    const int64_t n = to->extent[IMAGE] * blocks(to, CHANNEL, 8), per_image = blocks(to, CHANNEL, 8);
    const int64_t pixels = to->extent[PIXEL], eights = to->block / 8;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        int64_t at[DIMS] = {i / per_image, i % per_image * 8, 0};
        const float *s = src + offset(from, at);
        float *d = dst + offset(to, at);
        bool fill = eights == 2 && at[CHANNEL] % 16 == 0 && at[CHANNEL] + 8 >= to->extent[CHANNEL];
        for (int64_t p = 0; p < pixels; p++, s += from->block, d += to->block) {
            memcpy(d, s, 8 * sizeof *d);
            if (fill) memset(d + 8, 0, 8 * sizeof *d);
        }
    }
}

static void transpose_all(const abar_device *dev, const form *to, float *dst, const form *from, const float *src)
{
    static const abar__reorder_kernels *const kernels[] = ABAR_ISA_TABLE(abar__reorder);
    const abar__reorder_kernels *k = kernels[abar__isa_best(dev->ctx)];
    const int row = to->inner, column = from->inner, third = IMAGE + CHANNEL + PIXEL - row - column;
    const int64_t row_blocks = blocks(to, row, to->block), column_blocks = blocks(from, column, from->block);
    const int64_t tiles = to->extent[third] * row_blocks * column_blocks;
    const int64_t src_stride = step(from, row), dst_stride = step(to, column);
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < tiles; i++) {
        int64_t at[DIMS], rows, columns;
        at[column] = i % column_blocks * from->block;
        at[row] = i / column_blocks % row_blocks * to->block;
        at[third] = i / column_blocks / row_blocks;
        rows = to->extent[row] - at[row] < to->block ? to->extent[row] - at[row] : to->block;
        columns = from->extent[column] - at[column] < from->block ? from->extent[column] - at[column] : from->block;
        k->transpose(src + offset(from, at), src_stride, dst + offset(to, at), dst_stride, rows, columns,
                     row == PIXEL ? rows : to->block);
    }
}

static void convert(const abar__op *op, abar_layout to, void *dst, abar_layout from, const void *src)
{
    const abar__shape *shape = &op->desc.out;
    if (to == from) {
        memcpy(dst, src, abar__shape_bytes(op->dev, shape, to));
        return;
    }
    form d = form_of(to, shape), s = form_of(from, shape);
    if (d.inner == s.inner)
        regroup(op->dev, &d, dst, &s, src);
    else
        transpose_all(op->dev, &d, dst, &s, src);
}

static abar_status create(abar__op *op)
{
    bool blocked = op->in_layout[0] != ABAR_LAYOUT_STRIDED || op->out_layout != ABAR_LAYOUT_STRIDED;
    return blocked && op->desc.in[0].ndim != 4 ? ABAR_E_UNSUPPORTED : ABAR_OK;
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    convert(op, op->out_layout, a->y, op->in_layout[0], a->x[0]);
    return ABAR_OK;
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    if (a->dx[0]) convert(op, op->in_layout[0], a->dx[0], op->out_layout, a->dy);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_reorder = {"transpose", ABAR_OP_REORDER, create, forward, backward, NULL};

/* ---- tokens: an image's pixels, all channels in one block ------------------------------------------------------------ */

static form token_form(const abar__shape *s)
{
    form f = form_of(ABAR_LAYOUT_STRIDED, s);
    f.inner = CHANNEL;
    f.block = f.extent[CHANNEL];
    return f;
}

/* Between blocks of channels and tokens: to tokens, or back with zeros in the padding lanes. */
static void regroup_tokens(const abar_device *dev, const form *f, float *blocked, float *tokens, bool back)
{
    const int64_t per_image = blocks(f, CHANNEL, f->block), n = f->extent[IMAGE] * per_image;
    const int64_t pixels = f->extent[PIXEL], channels = f->extent[CHANNEL], lanes = f->block;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const int64_t c = i % per_image * lanes, count = channels - c < lanes ? channels - c : lanes;
        const size_t bytes = (size_t)count * sizeof(float);
        float *b = blocked + i * pixels * lanes, *t = tokens + i / per_image * pixels * channels + c;
        for (int64_t p = 0; p < pixels; p++, b += lanes, t += channels) {
            memcpy(back ? b : t, back ? t : b, bytes);
            if (back && count < lanes) memset(b + count, 0, (size_t)(lanes - count) * sizeof *b);
        }
    }
}

static abar_status tokens_create(abar__op *op)
{
    op->out_layout = ABAR_LAYOUT_STRIDED; /* the input is read in its layout */
    return ABAR_OK;
}

static abar_status tokens_forward(abar__op *op, const abar__op_args *a)
{
    const form from = form_of(op->in_layout[0], &op->desc.in[0]), to = token_form(&op->desc.in[0]);
    if (from.inner == CHANNEL)
        regroup_tokens(op->dev, &from, (float *)a->x[0], a->y, false);
    else
        transpose_all(op->dev, &to, a->y, &from, a->x[0]);
    return ABAR_OK;
}

static abar_status tokens_backward(abar__op *op, const abar__op_args *a)
{
    const form to = form_of(op->in_layout[0], &op->desc.in[0]), from = token_form(&op->desc.in[0]);
    if (!a->dx[0]) return ABAR_OK;
    if (to.inner == CHANNEL)
        regroup_tokens(op->dev, &to, a->dx[0], a->dy, true);
    else
        transpose_all(op->dev, &to, a->dx[0], &from, a->dy);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_tokens = {"cpu-tokens", ABAR_OP_TOKENS, tokens_create, tokens_forward, tokens_backward, NULL};
