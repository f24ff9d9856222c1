/* Factorisations and products of matrices, by the textbook and in double precision: one pass before training
 * (--first-layer dataset-cov) and the tests use them. */
#include "device/cuda/core_stats.h"

#include <math.h>

#define SIDE 16      /* of a tile of outputs: one thread each */
#define THREADS 1024 /* of the one block that factorises */

/* ---- products of matrices ----------------------------------------------------------------------------------------- */

/* y (m, n) = a (m, k) b (k, n), each given or transposed. Block: a SIDE x SIDE tile of y. */
static __global__ void __launch_bounds__(SIDE *SIDE)
    multiply(int64_t m, int64_t k, int64_t n, const float *a, bool at, const float *b, bool bt, float *y)
{
    __shared__ float left[SIDE][SIDE + 1], right[SIDE][SIDE + 1];
    const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    const int64_t i = (int64_t)blockIdx.y * SIDE + ty, j = (int64_t)blockIdx.x * SIDE + tx;
    double sum = 0.0;
    for (int64_t l = 0; l < k; l += SIDE) {
        const int64_t across = l + tx, down = l + ty;
        left[ty][tx] = i < m && across < k ? a[at ? across * m + i : i * k + across] : 0.0f;
        right[ty][tx] = down < k && j < n ? b[bt ? j * k + down : down * n + j] : 0.0f;
        __syncthreads();
        for (int r = 0; r < SIDE; r++) sum += (double)left[ty][r] * (double)right[r][tx];
        __syncthreads();
    }
    if (i < m && j < n) y[i * n + j] = (float)sum;
}

static void launch_multiply(abar_device *dev, int64_t m, int64_t k, int64_t n, const void *a, bool at, const void *b, bool bt,
                            void *y)
{
    const dim3 grid((unsigned)abar__cuda_blocks(n, SIDE), (unsigned)abar__cuda_blocks(m, SIDE));
    abar__cuda_launch(dev, multiply, grid, dim3(SIDE * SIDE), 0, m, k, n, (const float *)a, at, (const float *)b, bt,
                      (float *)y);
}

extern "C" void abar__cuda_sandwich(abar_device *dev, int64_t m, int64_t n, const void *left, bool left_t, const void *x,
                                    const void *right, bool right_t, void *y, void *scratch)
{
    const void *from = x;
    if (left) {
        launch_multiply(dev, m, m, n, left, left_t, from, false, scratch);
        from = scratch;
    }
    if (right) {
        void *to = from == y ? scratch : y; /* y may be x, the scratch is not in use then */
        launch_multiply(dev, m, n, n, from, false, right, right_t, to);
        from = to;
    }
    if (from != y)
        abar__cuda_remember(dev, cudaMemcpyAsync(y, from, (size_t)(m * n) * sizeof(float), cudaMemcpyDeviceToDevice,
                                                 abar__cuda_of(dev)->stream));
}

/* ---- inverting ---------------------------------------------------------------------------------------------------- */

/* One block: L of scale * average + shift * I = L L^T into the lower triangle of l (d, d); column: (d). bad: a pivot that is
 * not positive, or not finite. */
static __global__ void __launch_bounds__(THREADS)
    factorise(int64_t d, const float *average, double scale, double shift, double *l, double *column, int32_t *bad)
{
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int64_t i = y; i < d; i += 32)
        for (int64_t j = x; j <= i; j += 32) l[i * d + j] = scale * (double)average[j * d + i] + (i == j ? shift : 0.0);
    __syncthreads();
    for (int64_t k = 0; k < d; k++) {
        const double pivot = l[k * d + k];
        if (!(pivot > 0.0) || !isfinite(pivot)) { /* the same for all threads */
            if (threadIdx.x == 0) *bad = 1;
            return;
        }
        const double root = sqrt(pivot);
        __syncthreads(); /* all have read the pivot */
        for (int64_t i = k + threadIdx.x; i < d; i += THREADS) {
            const double v = i == k ? root : l[i * d + k] / root;
            l[i * d + k] = column[i] = v;
        }
        __syncthreads();
        for (int64_t i = k + 1 + y; i < d; i += 32)
            for (int64_t j = k + 1 + x; j <= i; j += 32) l[i * d + j] -= column[i] * column[j];
        __syncthreads();
    }
}

/* Thread c: column c of L^-1 by forward substitution, into (d, d) z. */
static __global__ void invert_lower(int64_t d, const double *l, double *z)
{
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= d) return;
    for (int64_t i = 0; i < c; i++) z[i * d + c] = 0.0;
    for (int64_t i = c; i < d; i++) {
        double sum = i == c ? 1.0 : 0.0;
        for (int64_t k = c; k < i; k++) sum -= l[i * d + k] * z[k * d + c];
        z[i * d + c] = sum / l[i * d + i];
    }
}

/* Thread (i, j): element of L^-T L^-1. */
static __global__ void square_lower(int64_t d, const double *z, double *out, int32_t *bad)
{
    const int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= d || j >= d) return;
    double sum = 0.0;
    for (int64_t k = i > j ? i : j; k < d; k++) sum += z[k * d + i] * z[k * d + j];
    out[i * d + j] = sum;
    if (!isfinite((float)sum)) atomicOr(bad, 1);
}

static __global__ void narrow(int64_t n, const double *from, float *to)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = (float)from[i];
}

/* What a kernel left in a flag, which is cleared before it. */
static int32_t *clear_flag(abar_device *dev)
{
    int32_t *flag = (int32_t *)abar__cuda_upper(dev);
    abar__cuda_remember(dev, cudaMemsetAsync(flag, 0, sizeof *flag, abar__cuda_of(dev)->stream));
    return flag;
}

static bool is_set(abar_device *dev, const int32_t *flag)
{
    int32_t value = 1;
    return !abar__cuda_carry(dev, &value, flag, sizeof value) || value != 0;
}

extern "C" size_t abar__cuda_invert_scratch(abar_device *dev, int64_t d)
{
    (void)dev;
    return (size_t)(2 * d * d + d) * sizeof(double);
}

/* Always in double: L, then L^-1, then their product in place of L. */
extern "C" bool abar__cuda_invert(abar_device *dev, int64_t d, const void *average, double scale, double shift, bool in_double,
                                  void *inverse, void *scratch)
{
    (void)in_double;
    double *l = (double *)scratch, *z = l + d * d, *column = z + d * d;
    int32_t *bad = clear_flag(dev);
    abar__cuda_launch(dev, factorise, dim3(1), dim3(THREADS), 0, d, (const float *)average, scale, shift, l, column, bad);
    if (is_set(dev, bad)) return false;
    abar__cuda_launch(dev, invert_lower, dim3((unsigned)abar__cuda_blocks(d, 32)), dim3(32), 0, d, l, z);
    const dim3 grid((unsigned)abar__cuda_blocks(d, 32), (unsigned)abar__cuda_blocks(d, 8));
    abar__cuda_launch(dev, square_lower, grid, dim3(32, 8), 0, d, z, l, bad);
    if (is_set(dev, bad)) return false;
    abar__cuda_launch(dev, narrow, dim3(abar__cuda_grid(dev, d * d, 256)), dim3(256), 0, d * d, l, (float *)inverse);
    return true;
}

/* ---- eigenvalues -------------------------------------------------------------------------------------------------- */

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

/* One block: cyclic Jacobi on scale * average. a, v: (d, d); turns: (d + 2). Writes only when it has converged; else bad. */
static __global__ void __launch_bounds__(THREADS)
    diagonalise(int64_t d, const float *average, double scale, double *a, double *v, double *turns, float *values,
                float *vectors, int32_t *bad)
{
    __shared__ double shared[32];
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
    if (!fine) {
        if (threadIdx.x == 0) *bad = 1;
        return;
    }
    for (int64_t i = threadIdx.x; i < d; i += THREADS) { /* its place among the ascending */
        const double own = a[i * d + i];
        int64_t place = 0;
        for (int64_t j = 0; j < d; j++) place += a[j * d + j] < own || (a[j * d + j] == own && j < i);
        values[place] = (float)own;
        for (int64_t k = 0; k < d; k++) vectors[place * d + k] = (float)v[i * d + k];
    }
}

extern "C" size_t abar__cuda_eigen_scratch(abar_device *dev, int64_t d)
{
    (void)dev;
    return (size_t)(2 * d * d + d + 2) * sizeof(double);
}

extern "C" bool abar__cuda_eigen(abar_device *dev, int64_t d, const void *average, double scale, void *values, void *vectors,
                                 void *scratch)
{
    double *a = (double *)scratch, *v = a + d * d, *turns = v + d * d;
    int32_t *bad = clear_flag(dev);
    abar__cuda_launch(dev, diagonalise, dim3(1), dim3(THREADS), 0, d, (const float *)average, scale, a, v, turns,
                      (float *)values, (float *)vectors, bad);
    return !is_set(dev, bad);
}
