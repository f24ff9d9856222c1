/* Rows of attention. Loops run over whole vectors: the remainder is filled up with -infinity, whose exponential is zero.
 * Causal rows have all lengths, and computing exponentials one at a time would cost more than the rest of the row. */
#include "device/cpu/isa/attention_kernels.h"
#include "device/cpu/isa/lane_math.h"
#include "device/cpu/isa/lanes.h"

#include <math.h>
#include <stddef.h>

static int64_t whole(int64_t n) { return (n + ABAR_LANES - 1) / ABAR_LANES * ABAR_LANES; }

static void fill(float *x, int64_t begin, int64_t end, float value)
{
    for (int64_t j = begin; j < end; j++) x[j] = value;
}

static void window(const abar__window_row *w, float *restrict s, int64_t n)
{
    const float *restrict table = w->table;
    const int32_t *restrict code = w->code, *restrict region = w->region;
    const int32_t here = w->here, mine = w->mine;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float with_bias = s[j] + table[here - code[j]];
        s[j] = region[j] == mine ? with_bias : -INFINITY;
    }
}

static float softmax(float *top, float *restrict s, int64_t n, int64_t width)
{
    float most[ABAR_LANES], sums[ABAR_LANES] = {0}, largest = *top, sum = 0;
    const int64_t end = whole(n);
    fill(s, n, end, -INFINITY);
    for (int l = 0; l < ABAR_LANES; l++) most[l] = -INFINITY;
    for (int64_t j = 0; j < end; j += ABAR_LANES)
#pragma omp simd
        for (int l = 0; l < ABAR_LANES; l++) most[l] = s[j + l] > most[l] ? s[j + l] : most[l];
    for (int l = 0; l < ABAR_LANES; l++) largest = most[l] > largest ? most[l] : largest;
    *top = largest;
    const float shift = largest > -INFINITY ? largest : 0.0f; /* all keys masked so far: gives zeros, not infinity - infinity */
    for (int64_t j = 0; j < end; j += ABAR_LANES)
#pragma omp simd
        for (int l = 0; l < ABAR_LANES; l++) {
            s[j + l] = abar__lane_exp(s[j + l] - shift);
            sums[l] += s[j + l];
        }
    for (int l = 0; l < ABAR_LANES; l++) sum += sums[l];
    fill(s, end, width, 0.0f);
    return sum;
}

ABAR_SPECIALIZED void slope_vectors(float log_sum, float delta, const float *restrict factor, float *restrict column,
                                    float *restrict s, float *restrict dp, int64_t end)
{
    for (int64_t j = 0; j < end; j += ABAR_LANES)
#pragma omp simd
        for (int l = 0; l < ABAR_LANES; l++) {
            float p = abar__lane_exp(s[j + l] - log_sum), f = factor ? factor[j + l] : 1.0f;
            if (column) column[j + l] += p;
            dp[j + l] = p * (f * dp[j + l] - delta);
            s[j + l] = f * p;
        }
}

static void slope(const abar__slope_row *row, float *s, float *dp, int64_t n, int64_t width)
{
    const int64_t end = whole(n);
    fill(s, n, end, -INFINITY);
    fill(dp, n, end, 0.0f);
    if (row->factor && row->column)
        slope_vectors(row->log_sum, row->delta, row->factor, row->column, s, dp, end);
    else if (row->factor)
        slope_vectors(row->log_sum, row->delta, row->factor, NULL, s, dp, end);
    else if (row->column)
        slope_vectors(row->log_sum, row->delta, NULL, row->column, s, dp, end);
    else
        slope_vectors(row->log_sum, row->delta, NULL, NULL, s, dp, end);
    fill(s, end, width, 0.0f);
    fill(dp, end, width, 0.0f);
}

static void window_slope(const abar__window_row *w, const float *restrict ds, float *restrict table, int64_t n)
{
    for (int64_t j = 0; j < n; j++) table[w->here - w->code[j]] += ds[j];
}

static void times(float factor, float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

static void times_each(const float *restrict factor, float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] *= factor[i];
}

static float dot(const float *restrict x, const float *restrict y, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

const abar__attention_kernels ABAR_ISA_NAME(abar__attention) = {window, softmax, slope, window_slope, times, times_each, dot};
