/* Eigenvalues and singular values. LAPACK is column-major: the upper triangle it is asked for is our lower one, and its
 * columns are our rows. */
#include "analysis/dense.h"

#include "base/rng.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* OpenBLAS contains LAPACK. Its Fortran names exist everywhere, LAPACKE's do not. */
void dsyevd_(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w, double *work,
             const int *lwork, int *iwork, const int *liwork, int *info, size_t jobz_length, size_t uplo_length);
void dgeev_(const char *jobvl, const char *jobvr, const int *n, double *a, const int *lda, double *wr, double *wi, double *vl,
            const int *ldvl, double *vr, const int *ldvr, double *work, const int *lwork, int *info, size_t jobvl_length,
            size_t jobvr_length);
void dgesvd_(const char *jobu, const char *jobvt, const int *m, const int *n, double *a, const int *lda, double *s, double *u,
             const int *ldu, double *vt, const int *ldvt, double *work, const int *lwork, int *info, size_t jobu_length,
             size_t jobvt_length);

#define SERIAL_SIDE 512 /* LAPACK gains nothing from threads below this */

typedef struct thread_counts {
    int openmp, blas;
} thread_counts;

/* OpenBLAS's OpenMP build takes as many threads as OpenMP would give the caller. Its other build has threads of its own, which
 * would compete with OpenMP's for the cores: one is left there. Returns what to restore. */
static thread_counts limit_threads(int64_t side)
{
    const thread_counts before = {omp_get_max_threads(), openblas_get_num_threads()};
    if (openblas_get_parallel() == OPENBLAS_THREAD)
        openblas_set_num_threads(1);
    else if (side < SERIAL_SIDE)
        omp_set_num_threads(1);
    return before;
}

static void restore_threads(thread_counts before)
{
    if (openblas_get_parallel() == OPENBLAS_THREAD) openblas_set_num_threads(before.blas);
    omp_set_num_threads(before.openmp);
}

/* Four sums: one would wait for every addition. */
double abar__dot(int64_t n, const double *x, const double *y)
{
    double sum[4] = {0.0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) sum[k] += x[i + k] * y[i + k];
    for (; i < n; i++) sum[0] += x[i] * y[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static abar_status check_finite(abar_context *ctx, int64_t n, const double *a)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(a[i])) return abar__fail(ctx, ABAR_E_NUMERIC, "eigenvalues: the matrix has a number that is not finite");
    return ABAR_OK;
}

static abar_status check_info(abar_context *ctx, int info)
{
    if (info == 0) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_NUMERIC, "eigenvalues: LAPACK did not converge (%d)", info);
}

static void reverse(int64_t n, double *x)
{
    for (int64_t i = 0; i < n / 2; i++) {
        const double t = x[i];
        x[i] = x[n - 1 - i];
        x[n - 1 - i] = t;
    }
}

static void reverse_rows(int64_t n, double *a)
{
    for (int64_t i = 0; i < n / 2; i++)
        for (int64_t j = 0; j < n; j++) {
            double *x = &a[i * n + j], *y = &a[(n - 1 - i) * n + j], t = *x;
            *x = *y;
            *y = t;
        }
}

/* ---- symmetric ---------------------------------------------------------------------------------------------------- */

abar_status abar__eigen_symmetric(abar_context *ctx, int64_t d, double *a, bool vectors, double *values)
{
    if (d < 1) return ABAR_OK;
    ABAR_TRY(check_finite(ctx, d * d, a));
    const int n = (int)d, reals = (int)(vectors ? 1 + 6 * d + 2 * d * d : 2 * d + 1), integers = (int)(vectors ? 3 + 5 * d : 1);
    const size_t real_bytes = abar__round_up((size_t)reals * sizeof(double), ABAR_ALIGN);
    const size_t bytes = real_bytes + (size_t)integers * sizeof(int);
    void *memory;
    int info = 0;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    const thread_counts threads = limit_threads(d);
    dsyevd_(vectors ? "V" : "N", "U", &n, a, &n, values, memory, &reals, (int *)((char *)memory + real_bytes), &integers, &info,
            1, 1);
    restore_threads(threads);
    abar__free(ctx, memory, bytes);
    ABAR_TRY(check_info(ctx, info));
    reverse(d, values);
    if (vectors) reverse_rows(d, a);
    return ABAR_OK;
}

/* ---- general ------------------------------------------------------------------------------------------------------ */

typedef struct complex_value {
    double re, im;
    int64_t column;
} complex_value;

static int by_size(const void *x, const void *y)
{
    const complex_value *a = x, *b = y;
    const double size_a = hypot(a->re, a->im), size_b = hypot(b->re, b->im);
    if (size_a != size_b) return size_a < size_b ? 1 : -1;
    return a->column < b->column ? -1 : 1;
}

/* work: (n, n) eigenvectors, then 8 n numbers for LAPACK. */
static abar_status general(abar_context *ctx, int64_t n, double *a, double *re, double *im, double *left, double *work,
                           complex_value *order)
{
    /* LAPACK sees the transpose: its right eigenvectors are our left ones */
    const int size = (int)n, one = 1, numbers = (int)(8 * n);
    int info = 0;
    double *vectors = work, unused = 0.0;
    const thread_counts threads = limit_threads(n);
    dgeev_("N", left ? "V" : "N", &size, a, &size, re, im, &unused, &one, vectors, &size, work + n * n, &numbers, &info, 1, 1);
    restore_threads(threads);
    ABAR_TRY(check_info(ctx, info));
    for (int64_t i = 0; i < n; i++) order[i] = (complex_value){re[i], im[i], i};
    qsort(order, (size_t)n, sizeof *order, by_size);
    for (int64_t i = 0; i < n; i++) {
        re[i] = order[i].re;
        im[i] = order[i].im;
    }
    if (!left) return ABAR_OK;
    const double *first = vectors + order[0].column * n;
    const double length = sqrt(abar__dot(n, first, first));
    for (int64_t i = 0; i < n; i++) left[i] = first[i] / length;
    return ABAR_OK;
}

abar_status abar__eigen_general(abar_context *ctx, int64_t n, double *a, double *re, double *im, double *left)
{
    if (n < 1) return ABAR_OK;
    ABAR_TRY(check_finite(ctx, n * n, a));
    void *work = NULL, *order = NULL;
    const size_t work_bytes = (size_t)(n * n + 8 * n) * sizeof(double), order_bytes = (size_t)n * sizeof(complex_value);
    abar_status status = abar__alloc(ctx, work_bytes, &work);
    if (status >= 0) status = abar__alloc(ctx, order_bytes, &order);
    if (status >= 0) status = general(ctx, n, a, re, im, left, work, order);
    abar__free(ctx, order, order ? order_bytes : 0);
    abar__free(ctx, work, work ? work_bytes : 0);
    return status;
}

/* ---- singular values ---------------------------------------------------------------------------------------------- */

abar_status abar__singular_values(abar_context *ctx, int64_t m, int64_t n, double *a, double *values, double *right)
{
    if (m < 1 || n < 1) return ABAR_OK;
    ABAR_TRY(check_finite(ctx, m * n, a));
    /* LAPACK sees the transpose (n, m): its left singular vectors, overwriting a, are our right ones */
    const int rows = (int)n, columns = (int)m, one = 1;
    const int64_t least = m < n ? m : n, most = m < n ? n : m;
    const int numbers = (int)(5 * most + 3 * least);
    const size_t bytes = (size_t)numbers * sizeof(double);
    double unused = 0.0;
    void *work;
    int info = 0;
    ABAR_TRY(abar__alloc(ctx, bytes, &work));
    const thread_counts threads = limit_threads(most);
    dgesvd_("O", "N", &rows, &columns, a, &rows, values, &unused, &one, &unused, &one, work, &numbers, &info, 1, 1);
    restore_threads(threads);
    abar__free(ctx, work, bytes);
    ABAR_TRY(check_info(ctx, info));
    if (right) memcpy(right, a, (size_t)n * sizeof *right);
    return ABAR_OK;
}

/* ---- Lanczos ------------------------------------------------------------------------------------------------------ */

/* Subtracts from x its components along the first k rows of the basis, twice: once leaves rounding behind. */
static void orthogonalise(int64_t d, const double *basis, int64_t k, double *x)
{
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < k; i++) {
            const double *q = basis + i * d, along = abar__dot(d, q, x);
            for (int64_t j = 0; j < d; j++) x[j] -= along * q[j];
        }
}

/* A unit vector orthogonal to the first k rows, drawn by counter: the start, and after an invariant subspace a new one. */
static void draw_direction(int64_t d, const double *basis, int64_t k, double *x)
{
    double length = 0.0;
    for (uint32_t attempt = 0; length < 1e-8; attempt++) {
        for (int64_t j = 0; j < d; j += 2) {
            double pair[2];
            abar__normal(abar__random((uint64_t)k, ABAR_DRAW_ANALYSIS, attempt, (uint64_t)j), pair);
            x[j] = pair[0];
            if (j + 1 < d) x[j + 1] = pair[1];
        }
        orthogonalise(d, basis, k, x);
        length = sqrt(abar__dot(d, x, x));
    }
    for (int64_t j = 0; j < d; j++) x[j] /= length;
}

/* Fills basis (steps, d) and the tridiagonal matrix (steps, steps) of the operator in it. */
static void tridiagonalise(int64_t d, abar__operator multiply, const void *user, int64_t steps, double *basis, double *matrix,
                           double *next)
{
    double scale = 0.0;
    draw_direction(d, basis, 0, basis);
    for (int64_t k = 0; k < steps; k++) {
        const double *q = basis + k * d;
        multiply(user, q, next);
        const double diagonal = matrix[k * steps + k] = abar__dot(d, q, next);
        scale = fmax(scale, fabs(diagonal));
        if (k + 1 == steps) return;
        orthogonalise(d, basis, k + 1, next);
        double *following = basis + (k + 1) * d;
        const double length = sqrt(abar__dot(d, next, next));
        if (length > 1e-13 * scale) {
            for (int64_t j = 0; j < d; j++) following[j] = next[j] / length;
            matrix[(k + 1) * steps + k] = length;
        } else {
            draw_direction(d, basis, k + 1, following);
        }
        scale = fmax(scale, length);
    }
}

static void combine(int64_t d, const double *basis, int64_t steps, const double *weights, double *out)
{
    memset(out, 0, (size_t)d * sizeof *out);
    for (int64_t k = 0; k < steps; k++)
        for (int64_t j = 0; j < d; j++) out[j] += weights[k] * basis[k * d + j];
}

abar_status abar__eigen_lanczos(abar_context *ctx, int64_t d, abar__operator multiply, const void *user, int64_t k,
                                double *values, double *top)
{
    if (d < 1 || k < 1) return ABAR_OK;
    const int64_t wanted = k < d ? k : d, steps = 2 * wanted + 20 < d ? 2 * wanted + 20 : d;
    const size_t bytes = (size_t)(steps * d + steps * steps + steps + d) * sizeof(double);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    double *basis = memory, *matrix = basis + steps * d, *found = matrix + steps * steps, *next = found + steps;
    tridiagonalise(d, multiply, user, steps, basis, matrix, next);
    abar_status status = abar__eigen_symmetric(ctx, steps, matrix, true, found);
    if (status >= 0) {
        memcpy(values, found, (size_t)wanted * sizeof *values);
        if (top) combine(d, basis, steps, matrix, top);
    }
    abar__free(ctx, memory, bytes);
    return status;
}
