/* Spectra and rank-1 forms of attention's probabilities. */
#include "analysis/attention.h"

#include "analysis/dense.h"

#include <math.h>
#include <string.h>

abar_status abar__attention_create(abar_context *ctx, int64_t n, abar__attention_sums *out)
{
    void *memory;
    *out = (abar__attention_sums){.ctx = ctx, .n = n, .bytes = (size_t)(2 * n * n + 3 * n) * sizeof(double)};
    ABAR_TRY(abar__alloc(ctx, out->bytes, &memory));
    out->sum = memory;
    out->work = out->sum + n * n;
    return ABAR_OK;
}

void abar__attention_free(abar__attention_sums *s)
{
    abar__free(s->ctx, s->sum, s->sum ? s->bytes : 0);
    *s = (abar__attention_sums){0};
}

/* t_j = (1/n) sum_i T_ij. */
static void column_means(int64_t n, const double *t, double *out)
{
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) out[j] += t[i * n + j] / (double)n;
}

/* The largest singular value of T by power iteration on T^T T, from the column means: for row-stochastic matrices a good
 * start. x and y are workspace (n). */
static double largest_singular(int64_t n, const double *t, const double *start, double *x, double *y)
{
    double value = 0.0;
    memcpy(x, start, (size_t)n * sizeof *x);
    for (int i = 0; i < 500; i++) {
        const double length = sqrt(abar__dot(n, x, x)), before = value;
        for (int64_t j = 0; j < n; j++) x[j] /= length;
        for (int64_t k = 0; k < n; k++) y[k] = abar__dot(n, t + k * n, x);
        value = sqrt(abar__dot(n, y, y));
        if (fabs(value - before) <= 1e-12 * value) break;
        memset(x, 0, (size_t)n * sizeof *x);
        for (int64_t k = 0; k < n; k++)
            for (int64_t j = 0; j < n; j++) x[j] += t[k * n + j] * y[k];
    }
    return value;
}

abar_status abar__attention_add(abar__attention_sums *s, const double *t)
{
    const int64_t n = s->n;
    double *columns = s->work + n * n, rank1 = 0.0, printed = 0.0, all = 0.0;
    column_means(n, t, columns);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double v = t[i * n + j];
            s->sum[i * n + j] += v;
            all += v * v;
            rank1 += (v - columns[j]) * (v - columns[j]);
            printed += (v - columns[i] * columns[j]) * (v - columns[i] * columns[j]);
        }
    if (!isfinite(all))
        return abar__fail(s->ctx, ABAR_E_NUMERIC, "attention: a probability is not finite, take an earlier checkpoint");
    const double top = largest_singular(n, t, columns, columns + n, columns + 2 * n);
    s->share += top * top / all;
    s->rank1 += sqrt(rank1 / all);
    s->printed += sqrt(printed / all);
    s->count += 1.0;
    return ABAR_OK;
}

/* ---- probabilities from queries and keys ------------------------------------------------------------------------------ */

/* Token k of window w, and which of the parts that a roll brings side by side it belongs to. */
static int64_t window_token(const abar__attention_view *v, int64_t w, int64_t k, int64_t *part)
{
    *part = 0;
    if (v->side == 0) return k;
    const int64_t across = v->grid[1] / v->side;
    const int64_t place[2] = {w / across * v->side + k / v->side, w % across * v->side + k % v->side};
    int64_t token = 0;
    for (int axis = 0; axis < 2; axis++) {
        const int64_t extent = v->grid[axis], at = place[axis];
        const int64_t part_here = v->shift == 0 || at < extent - v->side ? 0 : at < extent - v->shift ? 1 : 2;
        *part = 3 * *part + part_here;
        token = token * extent + (at + v->shift) % extent;
    }
    return token;
}

static int64_t bias_row(const abar__attention_view *v, int64_t i, int64_t j)
{
    const int64_t reach = 2 * v->side - 1;
    return (i / v->side - j / v->side + v->side - 1) * reach + i % v->side - j % v->side + v->side - 1;
}

static void softmax(int64_t n, double *row)
{
    double largest = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < n; j++) largest = fmax(largest, row[j]);
    for (int64_t j = 0; j < n; j++) sum += row[j] = exp(row[j] - largest);
    for (int64_t j = 0; j < n; j++) row[j] /= sum;
}

/* T (n, n) of one sample, window and head. */
static void fill_probabilities(const abar__attention_view *v, int64_t n, int64_t sample, int64_t window, int64_t head,
                               double *t)
{
    const int64_t width = v->width / v->heads, stride = 3 * v->width;
    const float *first = v->qkv + sample * v->tokens * stride + head * width;
    for (int64_t i = 0; i < n; i++) {
        int64_t part_i, part_j;
        const float *q = first + window_token(v, window, i, &part_i) * stride;
        for (int64_t j = 0; j < n; j++) {
            const float *k = first + window_token(v, window, j, &part_j) * stride + v->width;
            double sum = 0.0;
            t[i * n + j] = -INFINITY;
            if (part_i != part_j || (v->causal && j > i)) continue;
            for (int64_t c = 0; c < width; c++) sum += (double)q[c] * (double)k[c];
            t[i * n + j] = sum / sqrt((double)width) + (v->bias ? (double)v->bias[bias_row(v, i, j) * v->heads + head] : 0.0);
        }
        softmax(n, t + i * n);
    }
}

abar_status abar__attention_add_view(abar__attention_sums *s, const abar__attention_view *v)
{
    const int64_t windows = v->side ? v->grid[0] / v->side * (v->grid[1] / v->side) : 1;
    for (int64_t sample = 0; sample < v->samples; sample++)
        for (int64_t w = 0; w < windows; w++)
            for (int64_t h = 0; h < v->heads; h++) {
                fill_probabilities(v, s->n, sample, w, h, s->work);
                ABAR_TRY(abar__attention_add(s, s->work));
            }
    return ABAR_OK;
}

/* ---- the summary ------------------------------------------------------------------------------------------------------ */

static double cosine(int64_t n, const double *x, const double *y)
{
    return fmin(1.0, fabs(abar__dot(n, x, y)) / sqrt(abar__dot(n, x, x) * abar__dot(n, y, y)));
}

typedef struct frame {
    double *mean, *square, *columns, *values, *imaginary, *vector; /* (n, n), (n, n), then (n) each */
} frame;

static void load(const frame *f, int64_t n) { memcpy(f->square, f->mean, (size_t)(n * n) * sizeof *f->square); }

static abar_status summarise(const abar__attention_sums *s, const frame *f, abar__attention_summary *out, double *eigenvalues,
                             double *singular)
{
    const int64_t n = s->n;
    load(f, n);
    ABAR_TRY(abar__eigen_general(s->ctx, n, f->square, f->values, f->imaginary, f->vector));
    out->cosine_stationary = cosine(n, f->vector, f->columns);
    for (int64_t i = 0; eigenvalues && i < n; i++) eigenvalues[i] = hypot(f->values[i], f->imaginary[i]);
    load(f, n);
    ABAR_TRY(abar__singular_values(s->ctx, n, n, f->square, f->values, f->vector));
    out->cosine_singular = cosine(n, f->vector, f->columns);
    if (singular) memcpy(singular, f->values, (size_t)n * sizeof *singular);
    load(f, n);
    ABAR_TRY(abar__eigen_symmetric(s->ctx, n, f->square, true, f->values)); /* reads the lower triangle alone */
    /* the published code takes the eigenvalue that is largest, and its vector */
    out->lower_largest = f->values[0];
    out->cosine_lower = cosine(n, f->square, f->columns);
    return ABAR_OK;
}

abar_status abar__attention_summarise(const abar__attention_sums *s, abar__attention_summary *out, double *eigenvalues,
                                      double *singular, double *columns)
{
    const int64_t n = s->n;
    const size_t bytes = (size_t)(2 * n * n + 4 * n) * sizeof(double);
    void *memory;
    if (s->count == 0.0) return abar__fail(s->ctx, ABAR_E_STATE, "attention: there are no probabilities yet");
    ABAR_TRY(abar__alloc(s->ctx, bytes, &memory));
    frame f = {.mean = memory};
    f.square = f.mean + n * n;
    f.columns = f.square + n * n;
    f.values = f.columns + n;
    f.imaginary = f.values + n;
    f.vector = f.imaginary + n;
    for (int64_t i = 0; i < n * n; i++) f.mean[i] = s->sum[i] / s->count;
    column_means(n, f.mean, f.columns);
    *out = (abar__attention_summary){.n = n,
                                     .count = s->count,
                                     .share = s->share / s->count,
                                     .rank1 = s->rank1 / s->count,
                                     .printed = s->printed / s->count};
    const abar_status status = summarise(s, &f, out, eigenvalues, singular);
    if (status >= 0 && columns) memcpy(columns, f.columns, (size_t)n * sizeof *columns);
    abar__free(s->ctx, memory, bytes);
    return status;
}
