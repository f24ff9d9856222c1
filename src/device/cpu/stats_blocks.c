/* Blocks (device/blocks.h) in float32, products by BLAS. Blocks come one after the other: BLAS has
 * all threads for a large one, and for a small one the calling thread is faster. */
#include "device/cpu/stats.h"

#include "device/cpu/stats_dense.h"
#include "device/device_impl.h"
#include "device/step_rules.h"

#include <cblas.h>
#include <omp.h>
#include <string.h>

/* LAPACK's QR factorisation, and its Q. */
void dgeqrf_(const int *m, const int *n, double *a, const int *lda, double *tau, double *work, const int *lwork, int *info);
void dorgqr_(const int *m, const int *n, const int *k, double *a, const int *lda, const double *tau, double *work,
             const int *lwork, int *info);

#define SERIAL_WORK (1 << 22) /* multiplications that are not worth waking the other threads */

/* OpenBLAS's own threads are as many as OpenMP would give the caller: returns what to set it back to. */
static int set_blas_threads(const abar_device *dev, int64_t work)
{
    const int before = omp_get_max_threads();
    omp_set_num_threads(work < SERIAL_WORK ? 1 : dev->threads);
    return before;
}

void abar__cpu_average_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *x, double beta, double add,
                            void *average)
{
    const blasint side = (blasint)n;
    const int threads = set_blas_threads(dev, before * n * behind * n / 2);
    if (behind == 1) { /* rows of length n */
        cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, side, (blasint)before, (float)add, x, side, (float)beta, average,
                    side);
    } else {
        for (int64_t a = 0; a < before; a++)
            cblas_ssyrk(CblasRowMajor, CblasUpper, CblasNoTrans, side, (blasint)behind, (float)add,
                        (const float *)x + a * n * behind, (blasint)behind, a == 0 ? (float)beta : 1.0f, average, side);
    }
    omp_set_num_threads(threads);
}

void abar__cpu_multiply_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *factor, bool transposed,
                             const void *x, void *y)
{
    const blasint side = (blasint)n;
    const int threads = set_blas_threads(dev, before * n * behind * n);
    if (behind == 1) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasNoTrans : CblasTrans, (blasint)before, side, side, 1.0f, x,
                    side, factor, side, 0.0f, y, side);
    } else {
        for (int64_t a = 0; a < before; a++) {
            const int64_t at = a * n * behind;
            cblas_sgemm(CblasRowMajor, transposed ? CblasTrans : CblasNoTrans, CblasNoTrans, side, (blasint)behind, side, 1.0f,
                        factor, side, (const float *)x + at, (blasint)behind, 0.0f, (float *)y + at, (blasint)behind);
        }
    }
    omp_set_num_threads(threads);
}

/* ---- bases: in double, since rows of small eigenvalues are what is left of large ones ------------------------------------ */

#define QR_PANEL 32 /* columns that LAPACK treats together */

size_t abar__cpu_basis_scratch(abar_device *dev, int64_t n)
{
    const size_t turn = (size_t)(3 * n * n + (2 + QR_PANEL) * n) * sizeof(double), eigen = abar__cpu_eigen_scratch(dev, n);
    return turn > eigen ? turn : eigen;
}

bool abar__cpu_eigenbasis(abar_device *dev, int64_t n, const void *average, void *basis, void *scratch)
{
    const double *vectors = scratch;
    float *out = basis;
    if (!abar__cpu_diagonalise(dev, n, average, 1.0, scratch)) return false;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) out[i * n + j] = (float)vectors[(n - 1 - i) * n + j];
    return true;
}

/* products (n, n) = basis * average; quotients (n): the diagonal of that times basis^T. s, b: (n, n). */
static bool multiply_basis(int64_t n, const float *average, const float *basis, double *s, double *b, double *products,
                           double *quotients)
{
    const blasint side = (blasint)n;
    double sum = 0.0;
    for (int64_t i = 0; i < n * n; i++) {
        s[i] = (double)average[i];
        b[i] = (double)basis[i];
    }
    cblas_dsymm(CblasRowMajor, CblasRight, CblasUpper, side, side, 1.0, s, side, b, side, 0.0, products, side);
    for (int64_t k = 0; k < n; k++) {
        quotients[k] = cblas_ddot(side, products + k * n, 1, b + k * n, 1);
        sum += quotients[k];
    }
    return isfinite(sum);
}

bool abar__cpu_turn_basis(abar_device *dev, int64_t n, const void *average, void *basis, int64_t *order, void *scratch)
{
    double *s = scratch, *b = s + n * n, *products = b + n * n, *quotients = products + n * n, *tau = quotients + n;
    double *work = tau + n, sum = 0.0;
    const int side = (int)n, size = QR_PANEL * side;
    int info;
    float *out = basis;
    const int threads = set_blas_threads(dev, n * n * n);
    bool fine = multiply_basis(n, average, basis, s, b, products, quotients);
    for (int64_t k = 0; fine && k < n; k++)
        memcpy(s + (order ? abar__place_of(n, quotients, k) : k) * n, products + k * n, (size_t)n * sizeof *s);
    if (fine) dgeqrf_(&side, &side, s, &side, tau, work, &size, &info); /* its columns are our rows */
    if (fine) dorgqr_(&side, &side, &side, s, &side, tau, work, &size, &info);
    omp_set_num_threads(threads);
    for (int64_t i = 0; fine && i < n * n; i++) sum += s[i] - s[i];
    if (!fine || sum != 0.0) return false;
    for (int64_t k = 0; order && k < n; k++) order[abar__place_of(n, quotients, k)] = k;
    for (int64_t i = 0; i < n * n; i++) out[i] = (float)s[i];
    return true;
}
