/* Kept rows (device/host/rows.h): products in float32 by BLAS. What rows stand for is solved in double: rows with a large mean
 * differ from each other by less than float32's rounding of their products. */
#include "device/cpu/stats.h"

#include "device/device_impl.h"
#include "tensor/tensor_impl.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>

#define SERIAL_WORK (1 << 22) /* multiplications that are not worth waking the other threads */

void dpotrf_(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t uplo_length); /* OpenBLAS's LAPACK */

/* OpenBLAS's own threads are as many as OpenMP would give the caller: returns what to set it back to. */
static int set_blas_threads(const abar_device *dev, int64_t work)
{
    const int before = omp_get_max_threads();
    omp_set_num_threads(work < SERIAL_WORK ? 1 : dev->threads);
    return before;
}

void abar__cpu_multiply(abar_device *dev, int64_t m, int64_t n, int64_t k, double scale, const void *a, bool a_t, const void *b,
                        bool b_t, double keep, void *y)
{
    const int threads = set_blas_threads(dev, m * n * k);
    cblas_sgemm(CblasRowMajor, a_t ? CblasTrans : CblasNoTrans, b_t ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n,
                (blasint)k, (float)scale, a, (blasint)(a_t ? m : k), b, (blasint)(b_t ? k : n), (float)keep, y, (blasint)n);
    omp_set_num_threads(threads);
}

size_t abar__cpu_solve_rows_scratch(abar_device *dev, int64_t n, int64_t d)
{
    (void)dev;
    return (size_t)(n * n + n * d) * sizeof(double);
}

/* The lower triangle of the row-major l is the upper one of LAPACK's column-major matrix. */
static bool factorise(int64_t n, double *l)
{
    const int side = (int)n;
    int info = 0;
    for (int64_t i = 0; i < n; i++) /* LAPACK's answer to NaN is not defined */
        for (int64_t j = 0; j <= i; j++)
            if (!isfinite(l[i * n + j])) return false;
    dpotrf_("U", &side, l, &side, &info, 1);
    return info == 0;
}

bool abar__cpu_solve_rows(abar_device *dev, int64_t n, int64_t d, const void *rows, double scale, double shift, void *solved,
                          void *scratch)
{
    double *l = scratch, *z = l + n * n;
    bool fine = true;
    for (int64_t i = 0; i < n * d; i++) z[i] = scale * (double)((const float *)rows)[i];
    const int threads = set_blas_threads(dev, n * n * d);
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, (blasint)n, (blasint)d, 1.0, z, (blasint)d, 0.0, l, (blasint)n);
    for (int64_t i = 0; i < n; i++) l[i * n + i] += shift;
    const bool positive = factorise(n, l);
    if (positive)
        cblas_dtrsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, (blasint)n, (blasint)d, 1.0, l,
                    (blasint)n, z, (blasint)d);
    omp_set_num_threads(threads);
    for (int64_t i = 0; positive && i < n * d; i++) fine = fine && isfinite(z[i]); /* columns are at most 1 long */
    for (int64_t i = 0; positive && fine && i < n * d; i++) ((float *)solved)[i] = (float)z[i];
    return positive && fine;
}

/* ---- rings (host/ring.c) -------------------------------------------------------------------------------------------- */

#define CHUNK 256 /* elements whose sums stay in cache */

static double product_of(const void *rows, bool narrow, int64_t d, int64_t i, int64_t j)
{
    double sum = 0.0;
    if (narrow) {
        const uint16_t *x = (const uint16_t *)rows + i * d, *y = (const uint16_t *)rows + j * d;
        for (int64_t k = 0; k < d; k++) sum += (double)abar__bf16_load(x[k]) * (double)abar__bf16_load(y[k]);
        return sum;
    }
    const float *x = (const float *)rows + i * d, *y = (const float *)rows + j * d;
    double part[8] = {0.0}; /* of eight interleaved sums, which a vector holds */
    for (int64_t k = 0; k + 8 <= d; k += 8)
        for (int l = 0; l < 8; l++) part[l] += (double)x[k + l] * (double)y[k + l];
    for (int64_t k = d / 8 * 8; k < d; k++) sum += (double)x[k] * (double)y[k];
    for (int l = 0; l < 8; l++) sum += part[l];
    return sum;
}

void abar__cpu_row_products(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, int64_t j, double *products)
{
    const int threads = n * d < SERIAL_WORK ? 1 : dev->threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < n; i++) products[i] = product_of(rows, narrow, d, i, j);
}

static void combine_chunk(int64_t n, int64_t d, const void *rows, bool narrow, const double *c, int64_t first, float *y)
{
    const int64_t count = d - first < CHUNK ? d - first : CHUNK;
    double sum[CHUNK] = {0.0};
    for (int64_t i = 0; i < n; i++) {
        const float *x = (const float *)rows + i * d + first;
        const uint16_t *x16 = (const uint16_t *)rows + i * d + first;
        if (narrow)
            for (int64_t k = 0; k < count; k++) sum[k] += c[i] * (double)abar__bf16_load(x16[k]);
        else
            for (int64_t k = 0; k < count; k++) sum[k] += c[i] * (double)x[k];
    }
    for (int64_t k = 0; k < count; k++) y[first + k] = (float)sum[k];
}

void abar__cpu_combine_rows(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, const double *c, void *y)
{
    const int threads = n * d < SERIAL_WORK ? 1 : dev->threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t first = 0; first < d; first += CHUNK) combine_chunk(n, d, rows, narrow, c, first, y);
}

bool abar__cpu_solve_gram(abar_device *dev, int64_t n, const double *gram, int64_t stride, double scale, double shift,
                          int64_t j, double *c, double *l)
{
    bool fine = true;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k <= i; k++) l[i * n + k] = scale * gram[i * stride + k];
        l[i * n + i] += shift;
        c[i] = i == j ? 1.0 : 0.0;
    }
    const int threads = set_blas_threads(dev, n * n * n);
    const bool positive = factorise(n, l);
    if (positive) {
        cblas_dtrsv(CblasRowMajor, CblasLower, CblasNoTrans, CblasNonUnit, (blasint)n, l, (blasint)n, c, 1);
        cblas_dtrsv(CblasRowMajor, CblasLower, CblasTrans, CblasNonUnit, (blasint)n, l, (blasint)n, c, 1);
    }
    omp_set_num_threads(threads);
    for (int64_t i = 0; positive && i < n; i++) fine = fine && isfinite(c[i]);
    return positive && fine;
}
