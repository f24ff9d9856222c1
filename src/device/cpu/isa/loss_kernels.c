/* The sums of a loss over one row: in float over short runs, which are added up in double. */
#include "device/cpu/isa/loss_kernels.h"
#include "device/cpu/isa/lane_math.h"
#include "device/cpu/isa/lanes.h"

#include <math.h>

#define RUN 1024

static int64_t run_end(int64_t begin, int64_t n) { return begin + RUN < n ? begin + RUN : n; }

static float largest(const float *x, int64_t n)
{
    float lane[ABAR_LANES], top = -INFINITY;
    int64_t i = 0;
    for (int l = 0; l < ABAR_LANES; l++) lane[l] = -INFINITY;
    for (; i + ABAR_LANES <= n; i += ABAR_LANES)
#pragma omp simd
        for (int l = 0; l < ABAR_LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int l = 0; l < ABAR_LANES; l++) top = lane[l] > top ? lane[l] : top;
    return top;
}

static double sum_exp(const float *x, float top, int64_t n)
{
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += RUN) {
        int64_t end = run_end(begin, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = begin; i < end; i++) sum += abar__lane_exp(x[i] - top);
        total += (double)sum;
    }
    return total;
}

static double surprise(const float *x, const float *weight, float top, float log_sum, int64_t n)
{
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += RUN) {
        int64_t end = run_end(begin, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = begin; i < end; i++) sum += (weight ? weight[i] : 1.0f) * (log_sum - (x[i] - top));
        total += (double)sum;
    }
    return total;
}

static void scaled_exp(const float *restrict x, float top, float factor, float offset, float *restrict y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = abar__lane_exp(x[i] - top) * factor + offset;
}

static void add_scaled(const float *restrict weight, float factor, float *restrict y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] += weight[i] * factor;
}

static double distance(const float *x, const float *t, int64_t n)
{
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += RUN) {
        int64_t end = run_end(begin, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = begin; i < end; i++) {
            float d = x[i] - t[i];
            sum += d * d;
        }
        total += (double)sum;
    }
    return total;
}

static void difference(const float *restrict x, const float *restrict t, float factor, float *restrict y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - t[i]) * factor;
}

const abar__loss_kernels ABAR_ISA_NAME(abar__loss) = {largest, sum_exp, surprise, scaled_exp, add_scaled, distance, difference};
