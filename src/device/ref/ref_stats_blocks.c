/* Blocks (device/blocks.h) in double precision, by the definitions. */
#include "device/ref/ref_stats.h"

#include "device/step_rules.h"

#include <string.h>

void abar__ref_average_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *x, double beta, double add,
                            void *average)
{
    (void)dev;
    const double *at = x;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i; j < n; j++) {
            double sum = 0.0;
            for (int64_t a = 0; a < before; a++)
                for (int64_t b = 0; b < behind; b++) sum += at[(a * n + i) * behind + b] * at[(a * n + j) * behind + b];
            double *s = (double *)average + i * n + j;
            *s = beta * *s + add * sum;
        }
}

size_t abar__ref_inverse_root_scratch(abar_device *dev, int64_t n)
{
    (void)dev;
    return (size_t)(3 * n * n + n) * sizeof(double);
}

bool abar__ref_inverse_root(abar_device *dev, int64_t n, const void *average, double scale, double eps, double exponent,
                            void *root, void *scratch)
{
    double *vectors = scratch, *values = vectors + n * n, *work = values + n;
    if (!abar__ref_eigen(dev, n, average, scale, values, vectors, work)) return false;
    const double shift = abar__root_shift(values[0], eps);
    bool fine = true;
    memset(work, 0, (size_t)(n * n) * sizeof *work);
    for (int64_t k = 0; k < n; k++) {
        const double value = pow(values[k] + shift, -exponent), *v = vectors + k * n;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) work[i * n + j] += value * v[i] * v[j];
    }
    for (int64_t i = 0; i < n * n; i++) fine = fine && isfinite(work[i]);
    if (fine) memcpy(root, work, (size_t)(n * n) * sizeof *work);
    return fine;
}

void abar__ref_multiply_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *factor, const void *x,
                             void *y)
{
    (void)dev;
    const double *f = factor, *from = x;
    double *to = y;
    for (int64_t a = 0; a < before; a++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t b = 0; b < behind; b++) {
                double sum = 0.0;
                for (int64_t j = 0; j < n; j++) sum += f[i * n + j] * from[(a * n + j) * behind + b];
                to[(a * n + i) * behind + b] = sum;
            }
}
