/* Inverses, eigenvectors and inverse roots of dense factors (methods.md sections 4 to 6, 9) by LAPACK.
 *
 * The upper triangle of a row-major square is the lower triangle of LAPACK's column-major one. */
#include "device/cpu/stats_dense.h"

#include "device/cpu/stats_dense_impl.h"
#include "device/step_rules.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#define TILE 32
#define SERIAL_SIDE 256    /* smaller squares are not worth waking the other threads */
#define SERIAL_FACTOR 1024 /* LAPACK's Cholesky factor gains nothing from them below this */
#define SERIAL_EIGEN 1024  /* LAPACK's eigenvectors are thousands of small operations: even less so */
#define LARGE_SIDE 2048    /* from here on LAPACK's way from a factor to the inverse is faster than ours */

/* OpenBLAS holds LAPACK; its names, as Fortran has them, are the same everywhere, those of LAPACKE are not always there. */
void spotrf_(const char *uplo, const int *n, float *a, const int *lda, int *info, size_t uplo_length);
void spotri_(const char *uplo, const int *n, float *a, const int *lda, int *info, size_t uplo_length);
void dpptrf_(const char *uplo, const int *n, double *packed, int *info, size_t uplo_length);
void dpptri_(const char *uplo, const int *n, double *packed, int *info, size_t uplo_length);
void dsyevd_(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w, double *work,
             const int *lwork, int *iwork, const int *liwork, int *info, size_t jobz_length, size_t uplo_length);

/* OpenBLAS's own threads are as many as OpenMP would give the caller: returns what to set it back to. */
static int set_blas_threads(int threads)
{
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    return before;
}

/* ---- inverse ---------------------------------------------------------------------------------------------------------- */

size_t abar__cpu_invert_scratch(abar_device *dev, int64_t d)
{
    (void)dev;
    return abar__round_up((size_t)(d * (d + 1)) * sizeof(float), ABAR_ALIGN); /* a square of floats, a triangle of doubles */
}

/* W, the inverse of the lower triangular L, block row by block row, then W^T W: all in place. a holds L^T in its upper triangle
 * and gets W in its lower one. Diagonal blocks are whole, with zeros, and strips of columns as wide as they: so products may
 * read a block row of W from its first column to its last. */
enum { BLOCK = 32 };

typedef struct triangle {
    const abar__matrix_kernels *kernels;
    int64_t d;
    float *a;
} triangle;

static int64_t block_size(const triangle *t, int64_t from) { return abar__min(BLOCK, t->d - from); }

/* The diagonal block at from: L's by W's, which is its inverse, also to own, (BLOCK, BLOCK). */
static void invert_block(const triangle *t, int64_t from, float *own)
{
    const int64_t n = block_size(t, from), d = t->d;
    float *a = t->a + from * (d + 1);
    memset(own, 0, BLOCK * BLOCK * sizeof *own);
    for (int64_t i = 0; i < n; i++) {
        float *row = own + i * BLOCK;
        row[i] = 1.0f;
        for (int64_t k = 0; k < i; k++)
            for (int64_t j = 0; j <= k; j++) row[j] -= a[k * d + i] * own[k * BLOCK + j];
        for (int64_t j = 0; j <= i; j++) row[j] /= a[i * (d + 1)];
    }
}

/* Columns at, left of the block row that begins at from: W = -own (L W above it). */
static void extend_strip(const triangle *t, int64_t from, int64_t at, const float *own)
{
    const int64_t d = t->d, rows = block_size(t, from);
    float sum[BLOCK * BLOCK], minus[BLOCK * BLOCK];
    const abar__matrix_product above = {.rows = rows,
                                        .k = from - at,
                                        .n = BLOCK,
                                        .end = BLOCK,
                                        .x = t->a + at * d + from, /* L by columns */
                                        .x_row = 1,
                                        .x_step = d,
                                        .b = t->a + at * (d + 1),
                                        .b_pitch = d,
                                        .y = sum,
                                        .y_pitch = BLOCK};
    const abar__matrix_product whole = {.rows = rows,
                                        .k = rows,
                                        .n = BLOCK,
                                        .end = BLOCK,
                                        .x = minus,
                                        .x_row = BLOCK,
                                        .x_step = 1,
                                        .b = sum,
                                        .b_pitch = BLOCK,
                                        .y = t->a + from * d + at,
                                        .y_pitch = d};
    for (int i = 0; i < BLOCK * BLOCK; i++) minus[i] = -own[i];
    t->kernels->product(&above);
    t->kernels->product(&whole);
}

/* Columns at of W^T W, down to the diagonal. */
static void square_strip(const triangle *t, int64_t at)
{
    const int64_t d = t->d, n = block_size(t, at);
    float corner[BLOCK * BLOCK];
    abar__matrix_product p = {.rows = at,
                              .k = d - at,
                              .n = n,
                              .end = n,
                              .x = t->a + at * d,
                              .x_row = 1,
                              .x_step = d,
                              .b = t->a + at * (d + 1),
                              .b_pitch = d,
                              .y = t->a + at,
                              .y_pitch = d};
    t->kernels->product(&p);
    p.rows = n;
    p.x += at;
    p.y = corner;
    p.y_pitch = BLOCK;
    t->kernels->product(&p);
    for (int64_t i = 0; i < n; i++) memcpy(t->a + (at + i) * d + at, corner + i * BLOCK, (size_t)n * sizeof *corner);
}

/* From the factor to the inverse, both in the upper triangle of a. */
static void invert_factor(const abar_device *dev, int64_t d, float *a)
{
    const triangle t = {abar__matrix_pick(dev), d, a};
    const int64_t blocks = (d + BLOCK - 1) / BLOCK;
#pragma omp parallel num_threads(d < SERIAL_SIDE ? 1 : dev->threads)
    {
        const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
        for (int64_t b = 0; b < blocks; b++) {
            const abar__range mine = abar__share(b, team, me);
            float own[BLOCK * BLOCK];
            invert_block(&t, b * BLOCK, own);
            for (int64_t s = mine.begin; s < mine.end; s++) extend_strip(&t, b * BLOCK, s * BLOCK, own);
#pragma omp barrier
            if (me == team - 1) /* who reads it first */
                for (int64_t i = 0, n = block_size(&t, b * BLOCK); i < n; i++)
                    memcpy(a + (b * BLOCK + i) * d + b * BLOCK, own + i * BLOCK, (size_t)n * sizeof *own);
        }
#pragma omp barrier
        const abar__range mine = abar__share(blocks, team, me);
        for (int64_t s = mine.begin; s < mine.end; s++) square_strip(&t, s * BLOCK);
    }
}

static bool invert_float(abar_device *dev, int64_t d, const float *average, double scale, double shift, float *a)
{
    for (int64_t i = 0; i < d; i++) {
        for (int64_t j = i; j < d; j++) a[i * d + j] = (float)(scale * (double)average[i * d + j]);
        a[i * d + i] = (float)(scale * (double)average[i * d + i] + shift);
    }
    const int n = (int)d, before = set_blas_threads(d < SERIAL_FACTOR ? 1 : dev->threads);
    int info = 0;
    spotrf_("L", &n, a, &n, &info, 1);
    if (info == 0 && d >= LARGE_SIDE) spotri_("L", &n, a, &n, &info, 1);
    omp_set_num_threads(before);
    if (info == 0 && d < LARGE_SIDE) invert_factor(dev, d, a);
    return info == 0;
}

static bool upper_is_finite(int64_t d, const float *a)
{
    float sum = 0.0f; /* of numbers minus themselves: 0, unless one is not finite */
    for (int64_t i = 0; i < d; i++) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = i; j < d; j++) sum += a[i * d + j] - a[i * d + j];
    }
    return sum == 0.0f;
}

/* Both triangles of out from the upper one of a. */
static void mirror(const abar_device *dev, int64_t d, const float *a, float *out)
{
    const int64_t tiles = (d + TILE - 1) / TILE;
#pragma omp parallel for num_threads(dev->threads) schedule(static) if (d >= SERIAL_SIDE)
    for (int64_t row = 0; row < tiles; row++)
        for (int64_t column = 0; column < tiles; column++)
            for (int64_t i = row * TILE; i < abar__min((row + 1) * TILE, d); i++)
                for (int64_t j = column * TILE; j < abar__min((column + 1) * TILE, d); j++)
                    out[i * d + j] = i <= j ? a[i * d + j] : a[j * d + i];
}

/* The last resort of the ladder: in double, packed, so that it needs no more memory than float did. */
static bool invert_double(int64_t d, const float *average, double scale, double shift, double *packed, float *inverse)
{
    const int n = (int)d;
    int info = 0;
    double *at = packed, sum = 0.0;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i; j < d; j++) *at++ = scale * (double)average[i * d + j] + (i == j ? shift : 0.0);
    dpptrf_("L", &n, packed, &info, 1);
    if (info == 0) dpptri_("L", &n, packed, &info, 1);
    for (const double *x = packed; x < at; x++) sum += (double)(float)*x - (double)(float)*x;
    if (info != 0 || sum != 0.0) return false;
    at = packed;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i; j < d; j++) inverse[i * d + j] = inverse[j * d + i] = (float)*at++;
    return true;
}

bool abar__cpu_invert(abar_device *dev, int64_t d, const void *average, double scale, double shift, bool in_double,
                      void *inverse, void *scratch)
{
    if (in_double) return invert_double(d, average, scale, shift, scratch, inverse);
    if (!invert_float(dev, d, average, scale, shift, scratch) || !upper_is_finite(d, scratch)) return false;
    mirror(dev, d, scratch, inverse);
    return true;
}

/* ---- eigenvectors ----------------------------------------------------------------------------------------------------- */

/* What LAPACK asks for, in numbers. */
static int eigen_work(int64_t d) { return (int)(1 + 6 * d + 2 * d * d); }
static int eigen_integers(int64_t d) { return (int)(3 + 5 * d); }

size_t abar__cpu_eigen_scratch(abar_device *dev, int64_t d)
{
    (void)dev;
    return abar__round_up((size_t)(d * d + d + eigen_work(d)) * sizeof(double), ABAR_ALIGN) +
           (size_t)eigen_integers(d) * sizeof(int);
}

/* In double: an eigenvalue is only good to the precision times the largest one, and KFAC divides by products of small ones. */
bool abar__cpu_diagonalise(abar_device *dev, int64_t d, const float *average, double scale, void *scratch)
{
    const int n = (int)d, size = eigen_work(d), integers = eigen_integers(d);
    double *a = scratch, *w = a + d * d, *work = w + d, sum = 0.0;
    int *whole = (int *)((char *)scratch + abar__round_up((size_t)(d * d + d + size) * sizeof(double), ABAR_ALIGN)), info = 0;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i; j < d; j++) sum += a[i * d + j] = scale * (double)average[i * d + j];
    if (!isfinite(sum)) return false;
    const int before = set_blas_threads(d < SERIAL_EIGEN ? 1 : dev->threads);
    dsyevd_("V", "L", &n, a, &n, w, work, &size, whole, &integers, &info, 1, 1); /* its columns are our rows */
    omp_set_num_threads(before);
    return info == 0;
}

bool abar__cpu_eigen(abar_device *dev, int64_t d, const void *average, double scale, void *values, void *vectors, void *scratch)
{
    if (!abar__cpu_diagonalise(dev, d, average, scale, scratch)) return false;
    const double *a = scratch, *w = a + d * d;
    float *to_values = values, *to_vectors = vectors;
    for (int64_t i = 0; i < d; i++) to_values[i] = (float)w[i];
    for (int64_t i = 0; i < d * d; i++) to_vectors[i] = (float)a[i];
    return true;
}

/* ---- inverse roots ---------------------------------------------------------------------------------------------------- */

size_t abar__cpu_inverse_root_scratch(abar_device *dev, int64_t n) { return abar__cpu_eigen_scratch(dev, n); }

/* With the eigenvectors times the roots of their new eigenvalues as rows of U the result is U^T U; it takes LAPACK's place. */
bool abar__cpu_inverse_root(abar_device *dev, int64_t n, const void *average, double scale, double eps, double *ridge,
                            double exponent, void *root, void *scratch)
{
    if (!abar__cpu_diagonalise(dev, n, average, scale, scratch)) return false;
    double *u = scratch, *w = u + n * n, *result = w + n, sum = 0.0;
    float *out = root;
    const double shift = abar__root_shift(w[0], eps) + abar__take_ridge(w[n - 1] + eps, ridge);
    for (int64_t i = 0; i < n; i++) {
        const double factor = pow(w[i] + shift, -0.5 * exponent);
        for (int64_t j = 0; j < n; j++) u[i * n + j] *= factor;
    }
    const int before = set_blas_threads(n < SERIAL_FACTOR ? 1 : dev->threads);
    cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, (blasint)n, (blasint)n, 1.0, u, (blasint)n, 0.0, result, (blasint)n);
    omp_set_num_threads(before);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i; j < n; j++) sum += (double)(float)result[i * n + j] - (double)(float)result[i * n + j];
    if (sum != 0.0) return false;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) out[i * n + j] = (float)(i <= j ? result[i * n + j] : result[j * n + i]);
    return true;
}
