/* Blocks (device/blocks.h) in float32, products by BLAS. Blocks come one after the other: BLAS has all threads for a large one,
 * and for a small one the calling thread is faster. */
#include "device/cpu/stats.h"

#include "device/device_impl.h"

#include <cblas.h>
#include <omp.h>

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

void abar__cpu_multiply_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *factor, const void *x,
                             void *y)
{
    const blasint side = (blasint)n;
    const int threads = set_blas_threads(dev, before * n * behind * n);
    if (behind == 1) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)before, side, side, 1.0f, x, side, factor, side, 0.0f, y,
                    side);
    } else {
        for (int64_t a = 0; a < before; a++) {
            const int64_t at = a * n * behind;
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, side, (blasint)behind, side, 1.0f, factor, side,
                        (const float *)x + at, (blasint)behind, 0.0f, (float *)y + at, (blasint)behind);
        }
    }
    omp_set_num_threads(threads);
}
