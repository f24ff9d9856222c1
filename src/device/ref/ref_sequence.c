/* Sequences (N, T, D): made from texts (embedding) and images (tokens), with a class token in front, merged by fours (Swin),
 * and reduced to their mean or first token. */
#include "device/ref/ref_nn.h"

#include <string.h>

static abar_status create_dense(abar__op *op)
{
    abar__ref_dense(op);
    return ABAR_OK;
}

static void add(double *to, const double *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

/* ---- embedding: table[token] + positions[t] ---------------------------------------------------------------------- */

static abar_status embedding_create(abar__op *op)
{
    abar__ref_dense(op);
    op->backward_needs = ABAR_NEEDS_X; /* the tokens */
    return ABAR_OK;
}

static abar_status check_tokens(abar__op *op, const int32_t *token)
{
    const abar__op_desc *d = &op->desc;
    for (int64_t i = 0; i < abar__shape_count(&d->in[0]); i++)
        if (token[i] < 0 || token[i] >= d->vocabulary)
            return abar__fail(
                op->dev->ctx, ABAR_E_ARGUMENT,
                "embedding: token %d at place %lld of sample %lld is not among the %lld of the table, give the net the "
                "vocabulary of the text",
                (int)token[i], (long long)(i % d->in[0].dim[1]), (long long)(i / d->in[0].dim[1]), (long long)d->vocabulary);
    return ABAR_OK;
}

static abar_status embedding_forward(abar__op *op, const abar__op_args *a)
{
    int64_t tokens = op->desc.out.dim[1], width = op->desc.out.dim[2];
    const double *table = a->param[0], *positions = a->param[1]; /* (V, D), (S, D) */
    const int32_t *token = a->x[0];                              /* (N, T) */
    double *y = a->y;
    ABAR_TRY(check_tokens(op, token));
    for (int64_t i = 0; i < abar__shape_count(&op->desc.in[0]); i++)
        for (int64_t c = 0; c < width; c++) y[i * width + c] = table[token[i] * width + c] + positions[i % tokens * width + c];
    return ABAR_OK;
}

static abar_status embedding_backward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    int64_t tokens = d->out.dim[1], width = d->out.dim[2];
    const int32_t *token = a->x[0];
    const double *dy = a->dy;
    double *dtable = a->table_written ? a->dparam[0] : abar__ref_dparam(a, 0, d->vocabulary * width);
    double *dpositions = abar__ref_dparam(a, 1, d->positions * width);
    for (int64_t i = 0; i < abar__shape_count(&d->in[0]); i++) {
        add(dtable + token[i] * width, dy + i * width, width);
        add(dpositions + i % tokens * width, dy + i * width, width);
    }
    return ABAR_OK;
}

const abar__op_impl abar__ref_embedding = {"ref-embedding",   ABAR_OP_EMBEDDING,  embedding_create,
                                           embedding_forward, embedding_backward, NULL};

/* ---- tokens: an image's pixels, channels last ---------------------------------------------------------------------- */

static void transpose(int64_t samples, int64_t rows, int64_t columns, double *to, const double *from)
{
    for (int64_t n = 0; n < samples; n++, to += rows * columns, from += rows * columns)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) to[c * rows + r] = from[r * columns + c];
}

static abar_status tokens_forward(abar__op *op, const abar__op_args *a)
{
    const abar__shape *y = &op->desc.out; /* (N, H*W, C) */
    transpose(y->dim[0], y->dim[2], y->dim[1], a->y, a->x[0]);
    return ABAR_OK;
}

static abar_status tokens_backward(abar__op *op, const abar__op_args *a)
{
    const abar__shape *y = &op->desc.out;
    if (a->dx[0]) transpose(y->dim[0], y->dim[1], y->dim[2], a->dx[0], a->dy);
    return ABAR_OK;
}

const abar__op_impl abar__ref_tokens = {"ref-tokens", ABAR_OP_TOKENS, create_dense, tokens_forward, tokens_backward, NULL};

/* ---- class token: [token; x] + positions ----------------------------------------------------------------------------- */

static abar_status class_forward(abar__op *op, const abar__op_args *a)
{
    int64_t width = op->desc.out.dim[2], rest = op->desc.in[0].dim[1] * width;
    const double *x = a->x[0];
    double *y = a->y;
    for (int64_t n = 0; n < op->desc.out.dim[0]; n++, x += rest, y += width + rest) {
        memcpy(y, a->param[0], (size_t)width * sizeof *y);
        memcpy(y + width, x, (size_t)rest * sizeof *y);
        add(y, a->param[1], width + rest);
    }
    return ABAR_OK;
}

static abar_status class_backward(abar__op *op, const abar__op_args *a)
{
    int64_t width = op->desc.out.dim[2], rest = op->desc.in[0].dim[1] * width;
    const double *dy = a->dy;
    double *dx = a->dx[0], *dtoken = abar__ref_dparam(a, 0, width), *dpositions = abar__ref_dparam(a, 1, width + rest);
    for (int64_t n = 0; n < op->desc.out.dim[0]; n++, dy += width + rest) {
        add(dtoken, dy, width);
        add(dpositions, dy, width + rest);
        if (dx) memcpy(dx + n * rest, dy + width, (size_t)rest * sizeof *dx);
    }
    return ABAR_OK;
}

const abar__op_impl abar__ref_class_token = {"ref-class-token", ABAR_OP_CLASS_TOKEN, create_dense,
                                             class_forward,     class_backward,      NULL};

/* ---- patch merge: four neighbours become one token ----------------------------------------------------------------- */

/* The offset in the input of part 2x + y of output token t of sample n: the neighbour at row y, column x. */
static int64_t merged_from(const abar__op_desc *d, int64_t n, int64_t t, int part)
{
    int64_t columns = d->grid[1] / 2, row = t / columns * 2 + part % 2, column = t % columns * 2 + part / 2;
    return ((n * d->grid[0] + row) * d->grid[1] + column) * d->in[0].dim[2];
}

/* merge: copies parts into merged tokens, otherwise back. */
static void move_parts(const abar__op_desc *d, bool merge, double *apart, double *together)
{
    int64_t width = d->in[0].dim[2];
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int64_t t = 0; t < d->out.dim[1]; t++)
            for (int part = 0; part < 4; part++, together += width) {
                double *one = apart + merged_from(d, n, t, part);
                memcpy(merge ? together : one, merge ? one : together, (size_t)width * sizeof *one);
            }
}

static abar_status merge_forward(abar__op *op, const abar__op_args *a)
{
    move_parts(&op->desc, true, (double *)a->x[0], a->y);
    return ABAR_OK;
}

static abar_status merge_backward(abar__op *op, const abar__op_args *a)
{
    if (a->dx[0]) move_parts(&op->desc, false, a->dx[0], a->dy);
    return ABAR_OK;
}

const abar__op_impl abar__ref_patch_merge = {"ref-patch-merge", ABAR_OP_PATCH_MERGE, create_dense,
                                             merge_forward,     merge_backward,      NULL};

/* ---- reading out: the mean of the tokens, or the first -------------------------------------------------------------- */

static abar_status mean_forward(abar__op *op, const abar__op_args *a)
{
    const abar__shape *x = &op->desc.in[0]; /* (N, T, D) */
    const double *from = a->x[0];
    double *y = a->y;
    memset(y, 0, (size_t)abar__shape_count(&op->desc.out) * sizeof *y);
    for (int64_t i = 0; i < x->dim[0] * x->dim[1]; i++) add(y + i / x->dim[1] * x->dim[2], from + i * x->dim[2], x->dim[2]);
    for (int64_t i = 0; i < abar__shape_count(&op->desc.out); i++) y[i] /= (double)x->dim[1];
    return ABAR_OK;
}

static abar_status mean_backward(abar__op *op, const abar__op_args *a)
{
    const abar__shape *x = &op->desc.in[0];
    int64_t sample = x->dim[1] * x->dim[2];
    const double *dy = a->dy;
    double *dx = a->dx[0];
    for (int64_t i = 0; dx && i < abar__shape_count(x); i++)
        dx[i] = dy[i / sample * x->dim[2] + i % x->dim[2]] / (double)x->dim[1];
    return ABAR_OK;
}

const abar__op_impl abar__ref_token_mean = {"ref-token-mean", ABAR_OP_TOKEN_MEAN, create_dense,
                                            mean_forward,     mean_backward,      NULL};

static abar_status first_forward(abar__op *op, const abar__op_args *a)
{
    const abar__shape *x = &op->desc.in[0];
    const double *from = a->x[0];
    double *y = a->y;
    for (int64_t n = 0; n < x->dim[0]; n++)
        memcpy(y + n * x->dim[2], from + n * x->dim[1] * x->dim[2], (size_t)x->dim[2] * sizeof *y);
    return ABAR_OK;
}

static abar_status first_backward(abar__op *op, const abar__op_args *a)
{
    const abar__shape *x = &op->desc.in[0];
    const double *dy = a->dy;
    double *dx = a->dx[0];
    if (!dx) return ABAR_OK;
    memset(dx, 0, (size_t)abar__shape_count(x) * sizeof *dx);
    for (int64_t n = 0; n < x->dim[0]; n++)
        memcpy(dx + n * x->dim[1] * x->dim[2], dy + n * x->dim[2], (size_t)x->dim[2] * sizeof *dx);
    return ABAR_OK;
}

const abar__op_impl abar__ref_token_first = {"ref-token-first", ABAR_OP_TOKEN_FIRST, create_dense,
                                             first_forward,     first_backward,      NULL};
