/* Batch norm, optionally with an added residual and a ReLU: y = relu((x - mean) rstd scale + shift + residual).
 *
 * It is bound by memory bandwidth, so each direction is only two passes. Forward reads x for the statistics, then x (and the
 * residual) to write y. Backward reads what it needs for the two sums over g = (dy + dy2) masked by the ReLU, then again to
 * write dx = scale rstd (g - mean g - xhat mean(g xhat)). The second pass goes backwards through each thread's part, whose
 * end is still in cache. The residual's gradient is g itself: where it is wanted, the second pass reads g from there.
 * Without a residual the ReLU's mask is computed from x, and y is not read at all.
 *
 * In C8 and C16 x, with its gradient, may be some channels of a wider value: the gradient is then added to. The concatenation
 * that made that value, or the convolution that made x, gives the moments, so that the first pass falls away. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/isa/batch_norm_kernels.h"

#include <math.h>
#include <string.h>

/* The value is cut into pieces with one set of coefficients: a plane, or sixteen columns of a (N, C) value. The channel of
 * lane l in a piece of group g is g * period + l % period. */
typedef struct batch_norm {
    const abar__batch_norm_kernels *kernels;
    abar__planes planes;
    bool columns;
    int64_t pieces, period, padded; /* padded: the number of channels rounded up to whole pieces */
    int64_t count;                  /* elements per channel */
    int parts;
} batch_norm;

static abar_status create(abar__op *op)
{
    const abar__op_desc *d = &op->desc;
    static const abar__batch_norm_kernels *const by_isa[] = ABAR_ISA_TABLE(abar__batch_norm);
    if (d->activation != ABAR_ACT_NONE && d->activation != ABAR_ACT_RELU) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__op_priv(op, sizeof(batch_norm)));
    batch_norm *b = op->priv;
    abar__planes p = abar__planes_of(&d->in[0], op->in_layout[0]);
    bool columns = p.lanes == 1 && p.pixels == 1;
    *b = (batch_norm){
        .kernels = by_isa[abar__isa_best(op->dev->ctx)], .planes = p, .columns = columns, .count = p.images * p.pixels};
    b->period = columns ? 16 : p.layout == ABAR_LAYOUT_N16 ? 1 : p.lanes;
    b->pieces = columns ? (p.channels + 15) / 16 : p.outer * p.groups;
    b->padded = (p.channels + 15) / 16 * 16;
    b->parts = abar__parts(op->dev, abar__planes_floats(&p), b->pieces);
    op->out_layout = op->in_layout[0];
    if (d->residual) op->in_layout[1] = op->in_layout[0];
    op->takes_dy2 = true;
    if (p.layout == ABAR_LAYOUT_C8 || p.layout == ABAR_LAYOUT_C16) {
        op->view_align = p.lanes;
        op->moment_bytes = sizeof(abar__norm_moments);
    }
    op->backward_needs = ABAR_NEEDS_X | (d->residual && d->activation == ABAR_ACT_RELU ? ABAR_NEEDS_Y : 0);
    op->saved_bytes = 2 * (size_t)b->padded * sizeof(float); /* mean, rstd */
    op->scratch_bytes = (size_t)b->padded * (2 * (size_t)b->parts * sizeof(double) + ABAR_NORM_COEFS * sizeof(float));
    return ABAR_OK;
}

/* A piece as rows: sixteen lanes wide, then the rest of the plane. Returns how many of the two there are. */
static int piece_rows(const batch_norm *b, int64_t piece, abar__norm_rows out[2])
{
    if (b->columns) {
        int64_t left = b->planes.channels - piece * 16;
        out[0] = (abar__norm_rows){piece * 16, b->planes.images, b->planes.channels, left < 16 ? (int)left : 16};
        return 1;
    }
    int64_t n = abar__plane_floats(&b->planes), rows = n / 16;
    out[0] = (abar__norm_rows){piece * n, rows, 16, 16};
    out[1] = (abar__norm_rows){piece * n + rows * 16, 1, 16, (int)(n % 16)};
    return n % 16 ? 2 : 1;
}

/* How much later than the other values x has a piece: it lies between channels that are not its own. */
static int64_t piece_skip(const batch_norm *b, const abar__op_args *a, int64_t piece)
{
    if (a->x_pitch[0] == 0) return 0;
    return piece / b->planes.groups * (a->x_pitch[0] / b->planes.lanes - b->planes.groups) * abar__plane_floats(&b->planes);
}

static int64_t piece_group(const batch_norm *b, int64_t piece) { return b->columns ? piece : piece % b->planes.groups; }

/* Adds a piece's sums per lane to the sums per channel. */
static void fold(const batch_norm *b, int64_t piece, const double lane[16], double *channel)
{
    double *to = channel + piece_group(b, piece) * b->period;
    for (int64_t l = 0; l < 16; l++) to[l & (b->period - 1)] += lane[l];
}

/* Copies the coefficients per channel, (used, padded), to a piece's lanes. Padding lanes get zero, so that they stay zero:
 * lanes of missing images here, those of missing channels in the table. */
static void expand(const batch_norm *b, int64_t piece, const float *channel, int used, abar__norm_coef *coef)
{
    const float *from = channel + piece_group(b, piece) * b->period;
    for (int k = 0; k < used; k++)
        for (int64_t l = 0; l < 16; l++) coef->v[k][l] = from[k * b->padded + (l & (b->period - 1))];
    if (b->planes.layout != ABAR_LAYOUT_N16) return;
    int64_t images = b->planes.images - piece / b->planes.groups * 16;
    for (int k = 0; k < used && images < 16; k++)
        for (int64_t l = images; l < 16; l++) coef->v[k][l] = 0;
}

/* Scratch: two sums per part and channel, (parts, 2, padded), then coefficients, (ABAR_NORM_COEFS, padded). */
static double *part_sums(const batch_norm *b, const abar__op_args *a, int part)
{
    return (double *)a->scratch + part * 2 * b->padded;
}

static float *coefficients(const batch_norm *b, const abar__op_args *a) { return (float *)part_sums(b, a, b->parts); }

/* Adds all parts to the first one, always in the same order. */
static const double *join_parts(const batch_norm *b, const abar__op_args *a)
{
    double *total = part_sums(b, a, 0);
    for (int part = 1; part < b->parts; part++) {
        const double *from = part_sums(b, a, part);
        for (int64_t c = 0; c < 2 * b->padded; c++) total[c] += from[c];
    }
    return total;
}

static void moments_part(const batch_norm *b, const abar__op_args *a, int part)
{
    double *sum = part_sums(b, a, part), *square = sum + b->padded;
    memset(sum, 0, 2 * (size_t)b->padded * sizeof *sum);
    int64_t end = abar__part_begin(b->pieces, b->parts, part + 1);
    for (int64_t piece = abar__part_begin(b->pieces, b->parts, part); piece < end; piece++) {
        abar__norm_rows rows[2];
        double s[16] = {0}, q[16] = {0};
        int n = piece_rows(b, piece, rows);
        const float *x = (const float *)a->x[0] + piece_skip(b, a, piece);
        for (int i = 0; i < n; i++) b->kernels->moments(&rows[i], x, s, q);
        fold(b, piece, s, sum);
        fold(b, piece, q, square);
    }
}

static void normalize_part(const abar__op *op, const abar__op_args *a, int part)
{
    const batch_norm *b = op->priv;
    bool relu = op->desc.activation == ABAR_ACT_RELU;
    const float *residual = op->desc.residual ? a->x[1] : NULL;
    int64_t begin = abar__part_begin(b->pieces, b->parts, part);
    for (int64_t piece = abar__part_begin(b->pieces, b->parts, part + 1) - 1; piece >= begin; piece--) {
        abar__norm_rows rows[2];
        abar__norm_coef coef;
        expand(b, piece, coefficients(b, a), ABAR_NORM_SHIFT + 1, &coef);
        int n = piece_rows(b, piece, rows);
        const float *x = (const float *)a->x[0] + piece_skip(b, a, piece);
        for (int i = 0; i < n; i++) b->kernels->normalize(&rows[i], &coef, x, residual, a->y, relu);
    }
}

/* The sums of x and of x*x of a channel: given, or summed here. */
static abar__norm_moments channel_moments(const batch_norm *b, const abar__op_args *a, int64_t c)
{
    if (a->moments) return ((const abar__norm_moments *)a->moments)[c];
    const double *sum = part_sums(b, a, 0);
    return (abar__norm_moments){sum[c], sum[b->padded + c]};
}

/* Mean and 1/deviation of the batch from the sums; updates the running statistics. */
static void batch_statistics(const abar__op *op, const abar__op_args *a, float *mean, float *rstd)
{
    const batch_norm *b = op->priv;
    if (!a->moments) join_parts(b, a);
    float *running_mean = a->buffer[0], *running_variance = a->buffer[1];
    double n = (double)b->count, momentum = a->run->hold ? 0.0 : op->desc.momentum;
    for (int64_t c = 0; c < b->planes.channels; c++) {
        const abar__norm_moments total = channel_moments(b, a, c);
        double m = total.sum / n, variance = total.square / n - m * m;
        if (variance < 0) variance = 0;
        mean[c] = (float)m;
        rstd[c] = (float)(1 / sqrt(variance + op->desc.eps));
        double unbiased = n > 1 ? variance * n / (n - 1) : 0;
        if (a->run->own) {
            running_mean[c] = (float)m;
            running_variance[c] = (float)unbiased;
            continue;
        }
        running_mean[c] = (float)((1 - momentum) * (double)running_mean[c] + momentum * m);
        running_variance[c] = (float)((1 - momentum) * (double)running_variance[c] + momentum * unbiased);
    }
}

static void running_statistics(const abar__op *op, const abar__op_args *a, float *mean, float *rstd)
{
    const batch_norm *b = op->priv;
    const float *running_mean = a->buffer[0], *running_variance = a->buffer[1];
    for (int64_t c = 0; c < b->planes.channels; c++) {
        mean[c] = running_mean[c];
        rstd[c] = (float)(1 / sqrt((double)running_variance[c] + op->desc.eps));
    }
}

/* The coefficients of both directions: mean, scale rstd, shift. Padding channels stay zero. mean and rstd may be stored
 * where their products go. */
static void affine_coefficients(const batch_norm *b, const abar__op_args *a, const float *mean, const float *rstd)
{
    float *coef = coefficients(b, a);
    const float *scale = a->param[0], *shift = a->param[1];
    for (int64_t c = 0; c < b->planes.channels; c++) {
        coef[ABAR_NORM_MEAN * b->padded + c] = mean[c];
        coef[ABAR_NORM_SCALE * b->padded + c] = scale[c] * rstd[c];
        coef[ABAR_NORM_SHIFT * b->padded + c] = shift[c];
    }
}

static void clear_coefficients(const batch_norm *b, const abar__op_args *a)
{
    memset(coefficients(b, a), 0, (size_t)(ABAR_NORM_COEFS * b->padded) * sizeof(float));
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const batch_norm *b = op->priv;
    clear_coefficients(b, a);
    float *mean = coefficients(b, a) + ABAR_NORM_MEAN * b->padded, *rstd = coefficients(b, a) + ABAR_NORM_SCALE * b->padded;
    if (a->run->training) {
        const int parts = a->moments ? 0 : b->parts;
#pragma omp parallel for num_threads(b->parts) schedule(static) if (parts > 1)
        for (int part = 0; part < parts; part++) moments_part(b, a, part);
        batch_statistics(op, a, mean, rstd);
    } else {
        running_statistics(op, a, mean, rstd);
    }
    if (a->saved) {
        memcpy(a->saved, mean, (size_t)b->padded * sizeof *mean);
        memcpy((float *)a->saved + b->padded, rstd, (size_t)b->padded * sizeof *rstd);
    }
    affine_coefficients(b, a, mean, rstd);
#pragma omp parallel for num_threads(b->parts) schedule(static) if (b->parts > 1)
    for (int part = 0; part < b->parts; part++) normalize_part(op, a, part);
    return ABAR_OK;
}

static void sums_part(const batch_norm *b, const abar__op_args *a, const abar__norm_grad *streams, int part)
{
    double *sum = part_sums(b, a, part), *with_x = sum + b->padded;
    memset(sum, 0, 2 * (size_t)b->padded * sizeof *sum);
    int64_t end = abar__part_begin(b->pieces, b->parts, part + 1);
    for (int64_t piece = abar__part_begin(b->pieces, b->parts, part); piece < end; piece++) {
        abar__norm_rows rows[2];
        abar__norm_coef coef;
        expand(b, piece, coefficients(b, a), ABAR_NORM_SHIFT + 1, &coef);
        double s[16] = {0}, q[16] = {0};
        int n = piece_rows(b, piece, rows);
        abar__norm_grad from = *streams;
        from.x += piece_skip(b, a, piece);
        for (int i = 0; i < n; i++) b->kernels->gradient_sums(&rows[i], &coef, &from, a->dx[1], s, q);
        fold(b, piece, s, sum);
        fold(b, piece, q, with_x);
    }
}

static void input_part(const batch_norm *b, const abar__op_args *a, const abar__norm_grad *streams, int part)
{
    int64_t begin = abar__part_begin(b->pieces, b->parts, part);
    for (int64_t piece = abar__part_begin(b->pieces, b->parts, part + 1) - 1; piece >= begin; piece--) {
        abar__norm_rows rows[2];
        abar__norm_coef coef;
        expand(b, piece, coefficients(b, a), ABAR_NORM_COEFS, &coef);
        int n = piece_rows(b, piece, rows);
        const int64_t skip = piece_skip(b, a, piece);
        abar__norm_grad from = *streams;
        from.x += skip;
        for (int i = 0; i < n; i++) b->kernels->gradient_input(&rows[i], &coef, &from, (float *)a->dx[0] + skip, a->add_dx);
    }
}

/* The gradients of the parameters, and the coefficients of the second pass. With running statistics, which do not depend on
 * x, the terms of mean and variance vanish. */
static void finish_sums(const batch_norm *b, const abar__op_args *a, const float *rstd)
{
    float *coef = coefficients(b, a);
    const double *sum = join_parts(b, a), *with_x = sum + b->padded;
    float *dscale = a->dparam[0], *dshift = a->dparam[1];
    double n = (double)b->count;
    for (int64_t c = 0; c < b->planes.channels; c++) {
        double r = (double)rstd[c], by_scale = with_x[c] * r;
        if (dscale) dscale[c] = (float)(by_scale + (a->accumulate ? (double)dscale[c] : 0));
        if (dshift) dshift[c] = (float)(sum[c] + (a->accumulate ? (double)dshift[c] : 0));
        if (!a->run->training) continue;
        double scale = (double)coef[ABAR_NORM_SCALE * b->padded + c];
        coef[ABAR_NORM_FROM_X * b->padded + c] = (float)(-scale * r * by_scale / n);
        coef[ABAR_NORM_OFFSET * b->padded + c] = (float)(-scale * sum[c] / n);
    }
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const batch_norm *b = op->priv;
    const float *mean = a->saved, *rstd = mean + b->padded;
    bool relu = op->desc.activation == ABAR_ACT_RELU;
    abar__norm_grad streams = {.dy = a->dy, .dy2 = a->dy2, .x = a->x[0]};
    if (relu) streams.mask = op->desc.residual ? ABAR_NORM_BY_Y : ABAR_NORM_BY_X;
    if (streams.mask == ABAR_NORM_BY_Y) streams.y = a->y;
    clear_coefficients(b, a);
    affine_coefficients(b, a, mean, rstd);
#pragma omp parallel for num_threads(b->parts) schedule(static) if (b->parts > 1)
    for (int part = 0; part < b->parts; part++) sums_part(b, a, &streams, part);
    finish_sums(b, a, rstd);
    if (!a->dx[0]) return ABAR_OK;
    if (a->dx[1]) streams = (abar__norm_grad){.dy = a->dx[1], .x = a->x[0]}; /* g, written by the first pass */
#pragma omp parallel for num_threads(b->parts) schedule(static) if (b->parts > 1)
    for (int part = 0; part < b->parts; part++) input_part(b, a, &streams, part);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_batch_norm = {"cpu-batch-norm", ABAR_OP_BATCH_NORM, create, forward, backward, NULL};
