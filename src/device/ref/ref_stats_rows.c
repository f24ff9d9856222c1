/* Kept rows (device/host/rows.h) in double precision, by the definitions. */
#include "device/ref/ref_stats.h"

#include "tensor/tensor_impl.h"

#include <math.h>
#include <string.h>

void abar__ref_multiply(abar_device *dev, int64_t m, int64_t n, int64_t k, double scale, const void *a, bool a_t, const void *b,
                        bool b_t, double keep, void *out)
{
    (void)dev;
    const double *x = a, *y = b;
    double *to = out;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t l = 0; l < k; l++) sum += (a_t ? x[l * m + i] : x[i * k + l]) * (b_t ? y[j * k + l] : y[l * n + j]);
            to[i * n + j] = scale * sum + (keep == 0.0 ? 0.0 : keep * to[i * n + j]);
        }
}

size_t abar__ref_solve_rows_scratch(abar_device *dev, int64_t n, int64_t d)
{
    (void)dev;
    return (size_t)(n * n + n * d) * sizeof(double);
}

bool abar__ref_solve_rows(abar_device *dev, int64_t n, int64_t d, const void *rows, double scale, double shift, void *solved,
                          void *scratch)
{
    double *l = scratch, *z = l + n * n;
    bool fine = true;
    abar__ref_multiply(dev, n, n, d, scale * scale, rows, false, rows, true, 0.0, l);
    for (int64_t i = 0; i < n; i++) l[i * n + i] += shift;
    if (!abar__ref_cholesky(n, l)) return false;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < d; k++) {
            double sum = scale * ((const double *)rows)[i * d + k];
            for (int64_t j = 0; j < i; j++) sum -= l[i * n + j] * z[j * d + k];
            z[i * d + k] = sum / l[i * n + i];
            fine = fine && isfinite(z[i * d + k]);
        }
    if (fine) memcpy(solved, z, (size_t)(n * d) * sizeof *z);
    return fine;
}

/* ---- rings (host/ring.c) -------------------------------------------------------------------------------------------- */

static double element_of(const void *rows, int64_t i, bool narrow)
{
    return narrow ? (double)abar__bf16_load(((const uint16_t *)rows)[i]) : ((const double *)rows)[i];
}

void abar__ref_row_products(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, int64_t j, double *products)
{
    (void)dev;
    for (int64_t i = 0; i < n; i++) {
        products[i] = 0.0;
        for (int64_t k = 0; k < d; k++)
            products[i] += element_of(rows, i * d + k, narrow) * element_of(rows, j * d + k, narrow);
    }
}

void abar__ref_combine_rows(abar_device *dev, int64_t n, int64_t d, const void *rows, bool narrow, const double *c, void *y)
{
    (void)dev;
    for (int64_t k = 0; k < d; k++) {
        double sum = 0.0;
        for (int64_t i = 0; i < n; i++) sum += c[i] * element_of(rows, i * d + k, narrow);
        ((double *)y)[k] = sum;
    }
}

bool abar__ref_solve_gram(abar_device *dev, int64_t n, const double *gram, int64_t stride, double scale, double shift,
                          int64_t j, double *c, double *l)
{
    (void)dev;
    bool fine = true;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++) l[i * n + k] = scale * gram[i * stride + k] + (i == k ? shift : 0.0);
    if (!abar__ref_cholesky(n, l)) return false;
    for (int64_t i = 0; i < n; i++) {
        double sum = i == j ? 1.0 : 0.0;
        for (int64_t k = 0; k < i; k++) sum -= l[i * n + k] * c[k];
        c[i] = sum / l[i * n + i];
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        for (int64_t k = i + 1; k < n; k++) c[i] -= l[k * n + i] * c[k];
        c[i] /= l[i * n + i];
        fine = fine && isfinite(c[i]);
    }
    return fine;
}
