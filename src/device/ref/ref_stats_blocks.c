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

bool abar__ref_inverse_root(abar_device *dev, int64_t n, const void *average, double scale, double eps, double *ridge,
                            double exponent, void *root, void *scratch)
{
    double *vectors = scratch, *values = vectors + n * n, *work = values + n;
    if (!abar__ref_eigen(dev, n, average, scale, values, vectors, work)) return false;
    const double shift = abar__root_shift(values[0], eps) + abar__take_ridge(values[n - 1] + eps, ridge);
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

void abar__ref_multiply_mode(abar_device *dev, int64_t before, int64_t n, int64_t behind, const void *factor, bool transposed,
                             const void *x, void *y)
{
    (void)dev;
    const double *f = factor, *from = x;
    double *to = y;
    for (int64_t a = 0; a < before; a++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t b = 0; b < behind; b++) {
                double sum = 0.0;
                for (int64_t j = 0; j < n; j++)
                    sum += (transposed ? f[j * n + i] : f[i * n + j]) * from[(a * n + j) * behind + b];
                to[(a * n + i) * behind + b] = sum;
            }
}

/* ---- bases ------------------------------------------------------------------------------------------------------------- */

size_t abar__ref_basis_scratch(abar_device *dev, int64_t n)
{
    (void)dev;
    return (size_t)(3 * n * n + n) * sizeof(double);
}

bool abar__ref_eigenbasis(abar_device *dev, int64_t n, const void *average, void *basis, void *scratch)
{
    double *vectors = scratch, *values = vectors + n * n, *work = values + n, *out = basis;
    if (!abar__ref_eigen(dev, n, average, 1.0, values, vectors, work)) return false;
    for (int64_t i = 0; i < n; i++) memcpy(out + i * n, vectors + (n - 1 - i) * n, (size_t)n * sizeof *out);
    return true;
}

/* x <- x - tau v (v . x) for the entries from k on; v[k] counts as 1. */
static void reflect(int64_t n, int64_t k, double tau, const double *v, double *x)
{
    double sum = x[k];
    for (int64_t i = k + 1; i < n; i++) sum += v[i] * x[i];
    x[k] -= tau * sum;
    for (int64_t i = k + 1; i < n; i++) x[i] -= tau * sum * v[i];
}

/* Householder's Q of the matrix whose columns are the rows of a; q gets its columns as rows. tau: (n). */
static void orthonormalise(int64_t n, double *a, double *tau, double *q)
{
    for (int64_t k = 0; k < n; k++) {
        double *v = a + k * n, rest = 0.0;
        for (int64_t i = k + 1; i < n; i++) rest += v[i] * v[i];
        tau[k] = 0.0;
        if (rest > 0.0) {
            const double length = v[k] > 0.0 ? -sqrt(v[k] * v[k] + rest) : sqrt(v[k] * v[k] + rest);
            tau[k] = (length - v[k]) / length;
            for (int64_t i = k + 1; i < n; i++) v[i] /= v[k] - length;
        }
        for (int64_t j = k + 1; j < n; j++) reflect(n, k, tau[k], v, a + j * n);
    }
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < n; i++) q[j * n + i] = i == j ? 1.0 : 0.0;
        for (int64_t k = j; k >= 0; k--) reflect(n, k, tau[k], a + k * n, q + j * n);
    }
}

bool abar__ref_turn_basis(abar_device *dev, int64_t n, const void *average, void *basis, int64_t *order, void *scratch)
{
    (void)dev;
    const double *s = average, *b = basis;
    double *products = scratch, *ordered = products + n * n, *q = ordered + n * n, *quotients = q + n * n;
    bool fine = true;
    for (int64_t k = 0; k < n; k++) {
        quotients[k] = 0.0;
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t i = 0; i < n; i++) sum += b[k * n + i] * s[i < j ? i * n + j : j * n + i];
            products[k * n + j] = sum;
            quotients[k] += sum * b[k * n + j];
        }
        fine = fine && isfinite(quotients[k]);
    }
    if (!fine) return false;
    for (int64_t k = 0; k < n; k++) {
        int64_t place = k;
        if (order) place = abar__place_of(n, quotients, k);
        if (order) order[place] = k;
        memcpy(ordered + place * n, products + k * n, (size_t)n * sizeof *ordered);
    }
    orthonormalise(n, ordered, quotients, q);
    memcpy(basis, q, (size_t)(n * n) * sizeof *q);
    return true;
}
