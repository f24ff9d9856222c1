/* One row of layer norm: y = (x - mean) rstd scale + shift with the row's own moments, and its gradient dx = rstd (g -
 * mean(g) - xhat mean(g xhat)) with g = dy scale. A row fits into the first-level cache, so it is simply read several times. */
#include "device/cpu/isa/layer_norm_kernels.h"

#include <math.h>

/* Sums of x - k and of its square for a k near the mean, where float is accurate enough. */
static void moments_around(const float *x, int64_t n, float k, float *sum, float *square)
{
    float s = 0, q = 0;
#pragma omp simd reduction(+ : s, q)
    for (int64_t i = 0; i < n; i++) {
        float d = x[i] - k;
        s += d;
        q += d * d;
    }
    *sum = s;
    *square = q;
}

static void forward(const float *restrict x, const float *restrict scale, const float *restrict shift, double eps, int64_t n,
                    float *restrict y, float stat[2])
{
    float sum, square;
    moments_around(x, n, x[0], &sum, &square);
    float near = (float)((double)x[0] + (double)sum / (double)n);
    moments_around(x, n, near, &sum, &square);
    double offset = (double)sum / (double)n, variance = (double)square / (double)n - offset * offset;
    float mean = (float)((double)near + offset), rstd = (float)(1 / sqrt((variance < 0 ? 0 : variance) + eps));
    if (shift) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * scale[i] + shift[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * scale[i];
    }
    stat[0] = mean;
    stat[1] = rstd;
}

static void backward(const float *restrict dy, const float *restrict x, const float *restrict scale, const float stat[2],
                     int64_t n, float *restrict dx, double *restrict dscale, double *restrict dshift)
{
    float mean = stat[0], rstd = stat[1], sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - mean) * rstd, g = dy[i] * scale[i];
        sum += g;
        dot += g * xhat;
        dscale[i] += (double)(dy[i] * xhat);
        dshift[i] += (double)dy[i];
    }
    if (!dx) return;
    float offset = sum / (float)n, along = dot / (float)n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = rstd * (dy[i] * scale[i] - offset - (x[i] - mean) * rstd * along);
}

const abar__layer_norm_kernels ABAR_ISA_NAME(abar__layer_norm) = {forward, backward};
