/* Sums over the rows that make v, weighted by attention's column means (methods.md section 2), in float32. A thread owns a
 * span of columns and reads its part of every row once, for all heads: the same numbers come out of any number of threads. */
#include "device/cpu/stats.h"

#include "device/device_impl.h"
#include "tensor/tensor_impl.h"

#include <string.h>

#define SPAN 64 /* columns of x at a time */
#define PARTS 8 /* heads at a time */
#define RUN 32  /* rows added in float before they go into a sum in double */

/* Columns from .. from + n - 1 of a row: where they are, or a copy. */
static const float *row_of(const abar_tensor *x, int64_t example, int64_t token, int64_t from, int64_t n, float copy[SPAN])
{
    const int64_t at = example * x->stride[0] + token * x->stride[1] + from * x->stride[2];
    if (x->dtype == ABAR_F32 && x->stride[2] == 1) return (const float *)x->data + at;
    for (int64_t k = 0; k < n; k++) copy[k] = (float)abar__tensor_load(x, at + k * x->stride[2]);
    return copy;
}

static double column_at(const abar_tensor *c, int64_t example, int64_t head, int64_t token)
{
    return abar__tensor_load(c, example * c->stride[0] + head * c->stride[1] + token * c->stride[2]);
}

static double column_mean(const abar_tensor *c, int64_t example, int64_t token)
{
    double sum = 0.0;
    for (int64_t h = 0; h < c->dim[1]; h++) sum += column_at(c, example, h, token);
    return sum / (double)c->dim[1];
}

static double weight_of(const abar__rows *r, const abar__value_sums *v, int64_t part, int64_t example, int64_t token)
{
    return v->parts > 1 ? column_at(&r->columns, example, part, token) : column_mean(&r->columns, example, token);
}

/* Parts first .. first + parts - 1 of columns from .. from + n - 1. */
static void sum_span(const abar__rows *r, const abar__value_sums *v, int64_t first, int64_t parts, int64_t from, int64_t n)
{
    double total[PARTS][SPAN] = {{0.0}};
    float run[PARTS][SPAN], copy[SPAN];
    const int64_t rows = r->examples * r->per_example;
    for (int64_t start = 0; start < rows; start += RUN) {
        memset(run, 0, sizeof run);
        for (int64_t i = start; i < rows && i < start + RUN; i++) {
            const int64_t example = i / r->per_example, token = i % r->per_example;
            const float *x = row_of(&r->input, example, token, from, n, copy);
            for (int64_t h = 0; h < parts; h++) {
                const float w = (float)weight_of(r, v, first + h, example, token);
                for (int64_t k = 0; k < n; k++) run[h][k] += w * x[k];
            }
        }
        for (int64_t h = 0; h < parts; h++)
            for (int64_t k = 0; k < n; k++) total[h][k] += (double)run[h][k];
    }
    for (int64_t h = 0; h < parts; h++) {
        float *sum = (float *)v->sum + (first + h) * v->sum_stride + from;
        for (int64_t k = 0; k < n; k++) sum[k] += (float)total[h][k];
    }
}

static double square_of(const abar__rows *r, int64_t example, int64_t token)
{
    float copy[SPAN];
    double square = 0.0;
    for (int64_t from = 0; from < r->in; from += SPAN) {
        const int64_t n = r->in - from < SPAN ? r->in - from : SPAN;
        const float *x = row_of(&r->input, example, token, from, n, copy);
#pragma omp simd reduction(+ : square)
        for (int64_t k = 0; k < n; k++) square += (double)x[k] * (double)x[k];
    }
    return square;
}

static void sum_squares(const abar__rows *r, const abar__value_sums *v)
{
    for (int64_t n = 0; n < r->examples; n++)
        for (int64_t t = 0; t < r->per_example; t++) {
            const double square = square_of(r, n, t);
            for (int64_t h = 0; h < v->parts; h++)
                *(double *)(void *)((char *)v->square + (size_t)h * v->square_stride) += weight_of(r, v, h, n, t) * square;
        }
    for (int64_t h = 0; h < v->parts && r->bias; h++)
        *(double *)(void *)((char *)v->square + (size_t)h * v->square_stride) += v->sequences;
}

void abar__cpu_value_sums(abar_device *dev, const abar__rows *r, const abar__value_sums *v)
{
    const int64_t spans = (r->in + SPAN - 1) / SPAN;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t s = 0; s < spans; s++) {
        const int64_t from = s * SPAN, n = r->in - from < SPAN ? r->in - from : SPAN;
        for (int64_t h = 0; h < v->parts; h += PARTS) sum_span(r, v, h, v->parts - h < PARTS ? v->parts - h : PARTS, from, n);
    }
    for (int64_t h = 0; h < v->parts && r->bias; h++) ((float *)v->sum)[h * v->sum_stride + r->in] += (float)v->sequences;
    if (v->square) sum_squares(r, v);
}

/* ---- in two factors ------------------------------------------------------------------------------------------------- */

void abar__cpu_position_sums(abar_device *dev, const abar__rows *r, const abar__position_sums *v)
{
    const int64_t spans = (r->in + SPAN - 1) / SPAN, rows = r->examples * r->per_example;
    float *columns = v->columns;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t s = 0; s < spans; s++) {
        const int64_t from = s * SPAN, n = r->in - from < SPAN ? r->in - from : SPAN;
        float copy[SPAN];
        for (int64_t token = 0; token < r->per_example; token++) { /* over all examples in double */
            const int64_t p = abar__position(v->grid, v->side, v->shift, token);
            double total[SPAN] = {0.0};
            for (int64_t example = 0; example < r->examples; example++) {
                const float *x = row_of(&r->input, example, token, from, n, copy);
                for (int64_t k = 0; k < n; k++) total[k] += (double)x[k];
            }
            float *sum = (float *)v->sum + p * r->in + from;
            for (int64_t k = 0; k < n; k++) sum[k] += (float)total[k];
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        const int64_t example = i / r->per_example, token = i % r->per_example;
        const int64_t p = abar__position(v->grid, v->side, v->shift, token);
        columns[p] += (float)column_mean(&r->columns, example, token);
        if (v->square) v->square[p] += square_of(r, example, token);
    }
}

void abar__cpu_position_product(abar_device *dev, const abar__position_sums *p, int64_t in, bool bias, double sequences,
                                void *out, double *square)
{
    (void)dev;
    float *sum = out, *x = p->sum, *columns = p->columns;
    for (int64_t from = 0; from < in; from += SPAN) {
        const int64_t n = in - from < SPAN ? in - from : SPAN;
        double total[SPAN] = {0.0};
        for (int64_t j = 0; j < p->positions; j++)
            for (int64_t k = 0; k < n; k++) total[k] += (double)columns[j] * (double)x[j * in + from + k];
        for (int64_t k = 0; k < n; k++) sum[from + k] += (float)(total[k] / sequences);
    }
    for (int64_t j = 0; j < p->positions && p->square; j++) *square += (double)columns[j] * p->square[j] / sequences;
    if (bias) sum[in] += (float)sequences;
    if (bias && p->square) *square += sequences;
    memset(x, 0, (size_t)(p->positions * in) * sizeof *x);
    memset(columns, 0, (size_t)p->positions * sizeof *columns);
    if (p->square) memset(p->square, 0, (size_t)p->positions * sizeof *p->square);
}
