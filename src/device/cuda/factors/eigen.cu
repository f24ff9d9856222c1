/* Eigenvalues and eigenvectors of symmetric matrices by cyclic Jacobi rotations in double precision, one block each: for the
 * statistics table, and for all factors of a step that want them (inverse.h). spectra.cu has those of large ones. */
#include "device/cuda/factors/inverse.h"
#include "device/cuda/stats/stats.h"

#include <math.h>

#define THREADS 1024

/* Pair t of round r when m players (m even) meet everyone once in m - 1 rounds; smaller first. */
__device__ static void meet(int64_t m, int64_t r, int64_t t, int64_t *p, int64_t *q)
{
    const int64_t a = t == 0 ? m - 1 : (r + t) % (m - 1), b = t == 0 ? r : (r - t + m - 1) % (m - 1);
    *p = a < b ? a : b;
    *q = a < b ? b : a;
}

/* The rotation that clears element (p, q): cosine and sine; 1 and 0 where there is nothing to do. */
__device__ static void rotation(const double *a, int64_t d, int64_t p, int64_t q, double *c, double *s)
{
    *c = 1.0;
    *s = 0.0;
    if (q >= d || a[p * d + q] == 0.0) return;
    const double theta = (a[q * d + q] - a[p * d + p]) / (2.0 * a[p * d + q]);
    const double t = (theta >= 0.0 ? 1.0 : -1.0) / (fabs(theta) + sqrt(theta * theta + 1.0));
    *c = 1.0 / sqrt(t * t + 1.0);
    *s = t * *c;
}

__device__ static void turn(double *x, double *y, double c, double s)
{
    const double u = *x, v = *y;
    *x = c * u - s * v;
    *y = s * u + c * v;
}

/* All pairs of one round: they touch different rows and columns. turns: (m), cosine and sine of each pair. */
__device__ static void turn_round(int64_t d, int64_t m, int64_t r, double *a, double *v, double *turns)
{
    for (int64_t t = threadIdx.x; t < m / 2; t += THREADS) {
        int64_t p, q;
        meet(m, r, t, &p, &q);
        rotation(a, d, p, q, &turns[2 * t], &turns[2 * t + 1]);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < m / 2 * d; i += THREADS) { /* rows */
        int64_t p, q;
        meet(m, r, i / d, &p, &q);
        const double c = turns[2 * (i / d)], s = turns[2 * (i / d) + 1];
        if (q >= d || s == 0.0) continue;
        turn(&a[p * d + i % d], &a[q * d + i % d], c, s);
        turn(&v[p * d + i % d], &v[q * d + i % d], c, s);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < m / 2 * d; i += THREADS) { /* columns */
        const int64_t t = i % (m / 2), row = i / (m / 2);
        int64_t p, q;
        meet(m, r, t, &p, &q);
        if (q >= d || turns[2 * t + 1] == 0.0) continue;
        turn(&a[row * d + p], &a[row * d + q], turns[2 * t], turns[2 * t + 1]);
        if (row == p) a[row * d + q] = 0.0;
        if (row == q) a[row * d + p] = 0.0;
    }
    __syncthreads();
}

/* Sum of squares of the lower triangle, without or with the diagonal. */
__device__ static double lower_squares(int64_t d, const double *a, bool diagonal, double *shared)
{
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < d * d; i += THREADS)
        if (i % d < i / d || (diagonal && i % d == i / d)) sum += a[i] * a[i];
    return block_sum(sum, shared);
}

/* The whole block, on scale * average. scratch: (2 d d + d + 2), where the result stays. Returns whether it has converged. */
__device__ static bool diagonalise(int64_t d, const float *average, double scale, double *scratch)
{
    __shared__ double shared[32];
    double *a = scratch, *v = a + d * d, *turns = v + d * d;
    const int64_t m = d + d % 2;
    for (int64_t i = threadIdx.x; i < d * d; i += THREADS) {
        const int64_t row = i / d, column = i % d;
        a[i] = scale * (double)average[row < column ? i : column * d + row];
        v[i] = row == column ? 1.0 : 0.0;
    }
    __syncthreads();
    const double size = lower_squares(d, a, true, shared);
    bool fine = isfinite(size);
    for (int sweep = 0; fine && lower_squares(d, a, false, shared) > 1e-28 * size; sweep++) {
        fine = sweep < 60;
        for (int64_t r = 0; fine && r < m - 1; r++) turn_round(d, m, r, a, v, turns);
    }
    return fine;
}

/* What diagonalise left: values ascending, vectors by rows. */
__device__ static void store_ordered(int64_t d, const double *scratch, float *values, float *vectors)
{
    const double *a = scratch, *v = a + d * d;
    for (int64_t i = threadIdx.x; i < d; i += THREADS) { /* its place among the ascending */
        const double own = a[i * d + i];
        int64_t place = 0;
        for (int64_t j = 0; j < d; j++) place += a[j * d + j] < own || (a[j * d + j] == own && j < i);
        values[place] = (float)own;
        for (int64_t k = 0; k < d; k++) vectors[place * d + k] = (float)v[i * d + k];
    }
}

/* ---- one ---------------------------------------------------------------------------------------------------------- */

extern "C" size_t abar__cuda_eigen_scratch(abar_device *dev, int64_t d)
{
    (void)dev;
    return (size_t)(2 * d * d + d + 2) * sizeof(double);
}

static __global__ void __launch_bounds__(THREADS) diagonalise_one(int64_t d, const float *average, double scale,
                                                                  double *scratch, float *values, float *vectors, int32_t *fine)
{
    const bool converged = diagonalise(d, average, scale, scratch);
    if (converged) store_ordered(d, scratch, values, vectors);
    if (threadIdx.x == 0) *fine = converged;
}

extern "C" bool abar__cuda_eigen(abar_device *dev, int64_t d, const void *average, double scale, void *values, void *vectors,
                                 void *scratch)
{
    int32_t *fine = (int32_t *)abar__cuda_upper(dev), result = 0;
    abar__cuda_launch(dev, diagonalise_one, dim3(1), dim3(THREADS), 0, d, (const float *)average, scale, (double *)scratch,
                      (float *)values, (float *)vectors, fine);
    return abar__cuda_carry(dev, &result, fine, sizeof result) && result;
}

/* ---- all that are wanted ------------------------------------------------------------------------------------------ */

/* Block f: factor f, where it is to be diagonalised or what came of that is to be stored. */
static __global__ void __launch_bounds__(THREADS) diagonalise_wanted(const __grid_constant__ abar__inversions s)
{
    abar__inversion_state *state = &s.states[blockIdx.x];
    const abar__inverted &item = s.items[blockIdx.x];
    if (state->phase == ABAR_INVERSION_EIGEN) {
        const bool converged = diagonalise(item.f.d, item.f.average, s.asked[blockIdx.x].scale, item.eigen);
        if (!converged && threadIdx.x == 0) state->failed = 1;
    } else if (state->phase == ABAR_INVERSION_STORE && item.f.values) {
        store_ordered(item.f.d, item.eigen, item.f.values, item.f.inverse);
    }
}

extern "C" void abar__cuda_eigen_round(abar_device *dev, const abar__inversions *s)
{
    abar__cuda_launch(dev, diagonalise_wanted, dim3((unsigned)s->n), dim3(THREADS), 0, *s);
}
