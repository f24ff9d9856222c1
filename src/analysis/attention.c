/* Spectra and rank-1 forms of attention's probabilities. */
#include "analysis/attention.h"

#include "analysis/dense.h"

#include <math.h>
#include <string.h>

abar_status abar__attention_create(abar_context *ctx, int64_t n, abar__attention_sums *out)
{
    void *memory;
    *out = (abar__attention_sums){.ctx = ctx, .n = n, .bytes = (size_t)(2 * n * n + 2 * n) * sizeof(double)};
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

abar_status abar__attention_add(abar__attention_sums *s, const double *t)
{
    const int64_t n = s->n;
    double *copy = s->work, *columns = copy + n * n, *values = columns + n, rank1 = 0.0, printed = 0.0, all = 0.0;
    column_means(n, t, columns);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double v = copy[i * n + j] = t[i * n + j];
            s->sum[i * n + j] += v;
            all += v * v;
            rank1 += (v - columns[j]) * (v - columns[j]);
            printed += (v - columns[i] * columns[j]) * (v - columns[i] * columns[j]);
        }
    ABAR_TRY(abar__singular_values(s->ctx, n, n, copy, values, NULL));
    s->share += values[0] * values[0] / all;
    s->rank1 += sqrt(rank1 / all);
    s->printed += sqrt(printed / all);
    s->count += 1.0;
    return ABAR_OK;
}

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
