/* Spectra and rank-1 forms of attention's probabilities. */
#include "analysis/attention.h"

#include "analysis/dense.h"
#include "device/cpu/stats_gram.h"

#include <math.h>
#include <omp.h>
#include <string.h>

abar_status abar__attention_create(abar_context *ctx, int64_t n, abar__attention_sums *out)
{
    void *memory;
    *out = (abar__attention_sums){.ctx = ctx, .n = n, .bytes = (size_t)(n * n + 3 * n) * sizeof(double)};
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

/* Of one matrix: share of the top singular value, errors of the rank-1 forms. NaN: a number is not finite. */
typedef struct measures {
    double share, rank1, printed;
} measures;

/* work: (3, n). */
static measures measure(int64_t n, const double *t, double *work)
{
    double *columns = work, rank1 = 0.0, printed = 0.0, all = 0.0;
    column_means(n, t, columns);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double v = t[i * n + j];
            all += v * v;
            rank1 += (v - columns[j]) * (v - columns[j]);
            printed += (v - columns[i] * columns[j]) * (v - columns[i] * columns[j]);
        }
    if (!isfinite(all)) return (measures){NAN, NAN, NAN};
    const double top = largest_singular(n, t, columns, columns + n, columns + 2 * n);
    return (measures){top * top / all, sqrt(rank1 / all), sqrt(printed / all)};
}

static abar_status add_measures(abar__attention_sums *s, const measures *m)
{
    if (isnan(m->share))
        return abar__fail(s->ctx, ABAR_E_NUMERIC, "attention: a probability is not finite, take an earlier checkpoint");
    s->share += m->share;
    s->rank1 += m->rank1;
    s->printed += m->printed;
    s->count += 1.0;
    return ABAR_OK;
}

abar_status abar__attention_add(abar__attention_sums *s, const double *t)
{
    const measures m = measure(s->n, t, s->work);
    for (int64_t i = 0; i < s->n * s->n; i++) s->sum[i] += t[i];
    return add_measures(s, &m);
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

/* What one thread works with: n tokens, side of them in whole panels of gram.h. */
typedef struct place {
    double *t, *scores, *q, *k, *vectors; /* (n, n), (side, side), (side / 8, width, 8) twice, (3, n) */
    measures found;
} place;

static int64_t place_numbers(int64_t n, int64_t width)
{
    const int64_t side = abar__gram_side(n);
    return n * n + side * side + 2 * side * width + 3 * n;
}

static place place_at(double *memory, int64_t n, int64_t width)
{
    const int64_t side = abar__gram_side(n);
    place p = {.t = memory, .scores = memory + n * n};
    p.q = p.scores + side * side;
    p.k = p.q + side * width;
    p.vectors = p.k + side * width;
    return p;
}

/* Column i of a matrix in panels (side / 8, width, 8). */
static void put_column(int64_t width, const float *x, int64_t i, double *panels)
{
    double *at = panels + i / ABAR_GRAM_WIDTH * width * ABAR_GRAM_WIDTH + i % ABAR_GRAM_WIDTH;
    for (int64_t c = 0; c < width; c++) at[c * ABAR_GRAM_WIDTH] = (double)x[c];
}

/* T (n, n) of one sample, window and head. */
static void fill_probabilities(const abar__attention_sums *s, const abar__attention_view *v, int64_t sample, int64_t window,
                               int64_t head, const place *p)
{
    const int64_t n = s->n, width = v->width / v->heads, stride = 3 * v->width, side = abar__gram_side(n);
    const float *first = v->qkv + sample * v->tokens * stride + head * width;
    int64_t part_i, part_j;
    for (int64_t i = 0; i < n; i++) {
        const float *q = first + window_token(v, window, i, &part_i) * stride;
        put_column(width, q, i, p->q);
        put_column(width, q + v->width, i, p->k);
    }
    memset(p->scores, 0, (size_t)(side * side) * sizeof *p->scores);
    abar__gram_multiply(s->ctx, width, side, p->q, side, p->k, p->scores);
    for (int64_t i = 0; i < n; i++) {
        double *row = p->t + i * n;
        window_token(v, window, i, &part_i);
        for (int64_t j = 0; j < n; j++) {
            if (v->side > 0) window_token(v, window, j, &part_j);
            const bool hidden = (v->side > 0 && part_i != part_j) || (v->causal && j > i);
            const double bias = v->bias ? (double)v->bias[bias_row(v, i, j) * v->heads + head] : 0.0;
            row[j] = hidden ? -INFINITY : p->scores[i * side + j] / sqrt((double)width) + bias;
        }
        softmax(n, row);
    }
}

/* Matrices first ... first + n - 1 of the view, one per thread; sums are made in their order, whatever the threads. */
static abar_status add_some(abar__attention_sums *s, const abar__attention_view *v, int64_t windows, int64_t first, int n,
                            place *places)
{
#pragma omp parallel for schedule(static) num_threads(n)
    for (int m = 0; m < n; m++) {
        const int64_t index = first + m, head = index % v->heads, window = index / v->heads % windows;
        fill_probabilities(s, v, index / v->heads / windows, window, head, &places[m]);
        places[m].found = measure(s->n, places[m].t, places[m].vectors);
    }
    for (int m = 0; m < n; m++) {
        ABAR_TRY(add_measures(s, &places[m].found));
        for (int64_t i = 0; i < s->n * s->n; i++) s->sum[i] += places[m].t[i];
    }
    return ABAR_OK;
}

abar_status abar__attention_add_view(abar__attention_sums *s, const abar__attention_view *v)
{
    enum { PLACES = 64 };
    const int64_t windows = v->side ? v->grid[0] / v->side * (v->grid[1] / v->side) : 1, all = v->samples * windows * v->heads;
    const int threads = omp_get_max_threads() < PLACES ? omp_get_max_threads() : PLACES;
    const int64_t width = v->width / v->heads, numbers = place_numbers(s->n, width);
    const size_t bytes = (size_t)(threads * numbers) * sizeof(double);
    place places[PLACES];
    void *memory;
    ABAR_TRY(abar__alloc(s->ctx, bytes, &memory));
    for (int i = 0; i < threads; i++) places[i] = place_at((double *)memory + i * numbers, s->n, width);
    abar_status status = ABAR_OK;
    for (int64_t first = 0; first < all && status >= 0; first += threads)
        status = add_some(s, v, windows, first, all - first < threads ? (int)(all - first) : threads, places);
    abar__free(s->ctx, memory, bytes);
    return status;
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
