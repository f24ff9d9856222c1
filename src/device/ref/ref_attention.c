/* Attention: per sample and head, y_i = sum_j f_ij P_ij v_j with P_i = softmax_j(q_i . k_j / sqrt(d) + bias), where f is the
 * factor of dropout. Forward keeps only the log-sum-exp of each row of scores, (N, heads, T); backward computes the row
 * again:
 *
 *     dP_ij = f_ij dy_i . v_j        dS_ij = P_ij (dP_ij - sum_j P_ij dP_ij)
 *     dq_i = sum_j dS_ij k_j / sqrt(d)    dk_j = sum_i dS_ij q_i / sqrt(d)    dv_j = sum_i f_ij P_ij dy_i    dbias = sum dS
 *
 * With windows a token sees the tokens of its own window after the roll by -shift, if they belong to the same part of the
 * image. The column means are defined in methods.md section 2. */
#include "device/ref/ref_nn.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

static abar_status create(abar__op *op)
{
    const abar__shape *y = &op->desc.out; /* (N, T, D) */
    abar__ref_dense(op);
    op->backward_needs = ABAR_NEEDS_X;
    op->saved_bytes = (size_t)(y->dim[0] * op->desc.heads * y->dim[1]) * sizeof(double);
    op->scratch_bytes = 2 * (size_t)y->dim[1] * sizeof(double);
    return ABAR_OK;
}

/* ---- who sees whom ----------------------------------------------------------------------------------------------- */

/* The position along one axis of the rolled grid: its window, its place in the window, and which of the parts that the roll
 * brought side by side it belongs to. */
typedef struct place {
    int64_t window, within, part;
} place;

static place place_of(const abar__op_desc *d, int axis, int64_t token)
{
    int64_t extent = d->grid[axis], at = axis == 0 ? token / d->grid[1] : token % d->grid[1];
    int64_t rolled = (at - d->shift + extent) % extent;
    int64_t part = d->shift == 0 || rolled < extent - d->side ? 0 : rolled < extent - d->shift ? 1 : 2;
    return (place){rolled / d->side, rolled % d->side, part};
}

/* Whether query i sees key j, and which row of the relative position bias is added to their score (-1: none). */
static bool sees(const abar__op_desc *d, int64_t i, int64_t j, int64_t *bias)
{
    *bias = -1;
    if (d->side == 0) return !d->causal || j <= i;
    *bias = 0;
    for (int axis = 0; axis < 2; axis++) {
        place query = place_of(d, axis, i), key = place_of(d, axis, j);
        if (query.window != key.window || query.part != key.part) return false;
        *bias = *bias * (2 * d->side - 1) + query.within - key.within + d->side - 1;
    }
    return true;
}

/* The factor of the probability that query i gives to key j; nn_impl.h defines the random numbers. */
static double factor(const abar__op_desc *d, const abar__run *run, int64_t n, int64_t h, int64_t i, int64_t j)
{
    if (!run->training || d->drop == 0.0) return 1.0;
    int64_t tokens = d->out.dim[1], row = ((run->sample0 + n) * d->heads + h) * tokens + i;
    uint64_t index = (uint64_t)(row * ((tokens + 3) / 4) + j / 4);
    abar__draw draw = abar__random(run->seed, ABAR_DRAW_DROPOUT, run->step * 256u + d->number, index);
    return abar__uniform(draw.u[j % 4]) >= d->drop ? 1.0 / (1.0 - d->drop) : 0.0;
}

/* ---- one head of one sample ---------------------------------------------------------------------------------------- */

/* Token t of q is at q + t * stride; likewise k and v. */
typedef struct head {
    int64_t n, h, tokens, width, stride; /* width: of the head */
    double scale;
    const double *q, *k, *v;
} head;

static head head_of(const abar__op_desc *d, const void *qkv, int64_t n, int64_t h)
{
    int64_t tokens = d->out.dim[1], all = d->out.dim[2], width = all / d->heads;
    const double *first = (const double *)qkv + n * tokens * 3 * all + h * width;
    return (head){n, h, tokens, width, 3 * all, 1.0 / sqrt((double)width), first, first + all, first + 2 * all};
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0.0;
    for (int64_t c = 0; c < count; c++) sum += a[c] * b[c];
    return sum;
}

static void add_scaled(double *to, double scale, const double *from, int64_t count)
{
    for (int64_t c = 0; c < count; c++) to[c] += scale * from[c];
}

/* The scores of query i: row (T), minus infinity for keys that it does not see. */
static void scores(const abar__op_desc *d, const head *x, const double *bias, int64_t i, double *row)
{
    for (int64_t j = 0; j < x->tokens; j++) {
        int64_t entry;
        row[j] = -INFINITY;
        if (!sees(d, i, j, &entry)) continue;
        row[j] = x->scale * dot(x->q + i * x->stride, x->k + j * x->stride, x->width);
        if (entry >= 0) row[j] += bias[entry * d->heads + x->h]; /* ((2w-1)^2, heads) */
    }
}

static double log_sum_exp(const double *row, int64_t count)
{
    double largest = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < count; j++) largest = fmax(largest, row[j]);
    for (int64_t j = 0; j < count; j++) sum += exp(row[j] - largest);
    return largest + log(sum);
}

static void head_forward(const abar__op_desc *d, const abar__op_args *a, const head *x)
{
    int64_t all = d->out.dim[2];
    double *y = (double *)a->y + x->n * x->tokens * all + x->h * x->width, *row = a->scratch;
    double *kept = (double *)a->saved + (x->n * d->heads + x->h) * x->tokens;
    for (int64_t i = 0; i < x->tokens; i++) {
        scores(d, x, a->param[0], i, row);
        kept[i] = log_sum_exp(row, x->tokens);
        memset(y + i * all, 0, (size_t)x->width * sizeof *y);
        for (int64_t j = 0; j < x->tokens; j++) {
            double p = exp(row[j] - kept[i]);
            if (p > 0.0) add_scaled(y + i * all, p * factor(d, a->run, x->n, x->h, i, j), x->v + j * x->stride, x->width);
        }
    }
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int64_t h = 0; h < d->heads; h++) {
            head x = head_of(d, a->x[0], n, h);
            head_forward(d, a, &x);
        }
    return ABAR_OK;
}

/* The gradients of query i of one head, given dS_i = dscore. dq, dk and dv have the layout of q, k and v; dq may be NULL. */
static void spread(const abar__op_desc *d, const head *x, int64_t i, const double *dscore, double *dq, double *dbias)
{
    double *dk = dq ? dq + d->out.dim[2] : NULL;
    for (int64_t j = 0; j < x->tokens; j++) {
        int64_t entry;
        if (!sees(d, i, j, &entry)) continue;
        if (dbias) dbias[entry * d->heads + x->h] += dscore[j];
        if (!dq) continue;
        add_scaled(dq + i * x->stride, x->scale * dscore[j], x->k + j * x->stride, x->width);
        add_scaled(dk + j * x->stride, x->scale * dscore[j], x->q + i * x->stride, x->width);
    }
}

static void head_backward(const abar__op_desc *d, const abar__op_args *a, const head *x, double *dbias, double *columns)
{
    int64_t all = d->out.dim[2], sequence = d->side ? d->side * d->side : x->tokens;
    double *p = a->scratch, *dscore = p + x->tokens; /* rows: probabilities, then dP and dS */
    double *dq = a->dx[0] ? (double *)a->dx[0] + (x->q - (const double *)a->x[0]) : NULL, *dv = dq ? dq + 2 * all : NULL;
    const double *kept = (const double *)a->saved + (x->n * d->heads + x->h) * x->tokens;
    for (int64_t i = 0; i < x->tokens; i++) {
        const double *dy = (const double *)a->dy + (x->n * x->tokens + i) * all + x->h * x->width;
        double mean = 0.0; /* of dP under p */
        scores(d, x, a->param[0], i, p);
        for (int64_t j = 0; j < x->tokens; j++) {
            double f = factor(d, a->run, x->n, x->h, i, j);
            p[j] = exp(p[j] - kept[i]);
            dscore[j] = f * dot(dy, x->v + j * x->stride, x->width);
            mean += p[j] * dscore[j];
            if (dv) add_scaled(dv + j * x->stride, f * p[j], dy, x->width);
            if (columns) columns[x->h * x->tokens + j] += p[j] / (double)sequence;
        }
        for (int64_t j = 0; j < x->tokens; j++) dscore[j] = p[j] * (dscore[j] - mean);
        spread(d, x, i, dscore, dq, dbias);
    }
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const abar__op_desc *d = &op->desc;
    int64_t heads = d->heads, tokens = d->out.dim[1], reach = 2 * d->side - 1;
    double *dbias = d->side ? abar__ref_dparam(a, 0, reach * reach * heads) : NULL;
    if (a->dx[0]) memset(a->dx[0], 0, (size_t)abar__shape_count(&d->in[0]) * sizeof(double));
    for (int64_t n = 0; n < d->out.dim[0]; n++) {
        double *columns = a->run->observing && a->columns ? (double *)a->columns + n * heads * tokens : NULL; /* (heads, T) */
        if (columns) memset(columns, 0, (size_t)(heads * tokens) * sizeof *columns);
        for (int64_t h = 0; h < heads; h++) {
            head x = head_of(d, a->x[0], n, h);
            head_backward(d, a, &x, dbias, columns);
        }
    }
    return ABAR_OK;
}

const abar__op_impl abar__ref_attention = {"ref-attention", ABAR_OP_ATTENTION, create, forward, backward, NULL};
