/* Rows of single examples for the natural gradient (device/natural.h), in double: sums over the rows of an example by the
 * kernels that the analyses use, shared by threads example by example; and the solution of the damped system by LAPACK. */
#include "device/cpu/stats.h"
#include "device/cpu/stats_dense_impl.h"
#include "device/cpu/stats_gram.h"

#include <cblas.h>
#include <omp.h>
#include <string.h>

enum { CHUNK = 64 };       /* rows of an example that are multiplied at a time */
#define SERIAL_FACTOR 1024 /* LAPACK's Cholesky factor gains nothing from threads below this */

void dpotrf_(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t uplo_length);
void dpotrs_(const char *uplo, const int *n, const int *nrhs, const double *a, const int *lda, double *b, const int *ldb,
             int *info, size_t uplo_length);

/* ---- rows ------------------------------------------------------------------------------------------------------------- */

/* One thread's numbers: rows as floats, as doubles, in panels, and the product of the panels. */
typedef struct work {
    float *floats;
    double *rows, *a, *p, *product;
} work;

static int64_t widest(const abar__rows *r) { return abar__max(abar__rows_d(r), r->out); }

static size_t work_bytes(const abar__rows *r)
{
    const int64_t d = abar__gram_side(abar__rows_d(r)), out = abar__gram_side(r->out);
    const size_t doubles = (size_t)(CHUNK * (widest(r) + d + out) + d * out) * sizeof(double);
    return abar__round_up(doubles + (size_t)(CHUNK * widest(r)) * sizeof(float), ABAR_ALIGN);
}

size_t abar__cpu_example_rows_scratch(abar_device *dev, const abar__rows *r) { return (size_t)dev->threads * work_bytes(r); }

static work work_of(const abar__rows *r, void *scratch)
{
    const int64_t d = abar__gram_side(abar__rows_d(r)), out = abar__gram_side(r->out);
    work w = {.rows = (double *)(void *)((char *)scratch + (size_t)omp_get_thread_num() * work_bytes(r))};
    w.a = w.rows + CHUNK * widest(r);
    w.p = w.a + CHUNK * d;
    w.product = w.p + CHUNK * out;
    w.floats = (float *)(w.product + d * out);
    return w;
}

/* count rows of a field from the given one on, as doubles. */
static void read_rows(const abar__field *f, int64_t first, int64_t count, float *floats, double *to)
{
    abar__field_rows(f, NULL, (abar__range){first, first + count}, floats);
    for (int64_t i = 0; i < count * f->d; i++) to[i] = f->scale * (double)floats[i];
}

/* to (out, d) = sum over the rows of example n of p aT. */
static void sum_example(const abar_context *ctx, const abar__field *inputs, const abar__field *grads, int64_t n, const work *w,
                        double *to)
{
    const int64_t d = inputs->d, out = grads->d, d_side = abar__gram_side(d), out_side = abar__gram_side(out);
    memset(w->product, 0, (size_t)(d_side * out_side) * sizeof *w->product);
    for (int64_t first = 0; first < inputs->per_example; first += CHUNK) {
        const int64_t count = abar__min(CHUNK, inputs->per_example - first), at = n * inputs->per_example + first;
        read_rows(inputs, at, count, w->floats, w->rows);
        abar__gram_pack(w->rows, count, d, d, 1, w->a);
        read_rows(grads, at, count, w->floats, w->rows);
        abar__gram_pack(w->rows, count, out, out, 1, w->p);
        abar__gram_multiply(ctx, count, out_side, w->p, d_side, w->a, w->product);
    }
    for (int64_t o = 0; o < out; o++) memcpy(to + o * d, w->product + o * d_side, (size_t)d * sizeof *to);
}

void abar__cpu_example_rows(abar_device *dev, const abar__rows *r, void *a, void *p, void *scratch)
{
    const abar__field inputs = abar__input_field(r), grads = abar__grad_field(r);
#pragma omp parallel for schedule(static) num_threads(dev->threads)
    for (int64_t n = 0; n < r->examples; n++) {
        const work w = work_of(r, scratch);
        if (p) {
            read_rows(&inputs, n, 1, w.floats, (double *)a + n * inputs.d);
            read_rows(&grads, n, 1, w.floats, (double *)p + n * grads.d);
        } else {
            sum_example(dev->ctx, &inputs, &grads, n, &w, (double *)a + n * inputs.d * grads.d);
        }
    }
}

/* ---- K ---------------------------------------------------------------------------------------------------------------- */

void abar__cpu_rows_gram(abar_device *dev, int64_t rows, int64_t numbers, const double *x, double *panels, double *sums)
{
    const int before = omp_get_max_threads();
    omp_set_num_threads(dev->threads);
    abar__gram_add_rows(dev->ctx, rows, numbers, x, panels, sums);
    omp_set_num_threads(before);
}

/* The lower triangle of a row-major square is the upper one of LAPACK's. */
bool abar__cpu_solve_shifted(abar_device *dev, int64_t n, const double *k, int64_t pitch, double shift, double *factor,
                             double *x)
{
    const int side = (int)n, one = 1, before = omp_get_max_threads();
    int info = 0;
    for (int64_t i = 0; i < n; i++) {
        memcpy(factor + i * n, k + i * pitch, (size_t)(i + 1) * sizeof *k);
        factor[i * (n + 1)] += shift;
    }
    omp_set_num_threads(n < SERIAL_FACTOR ? 1 : dev->threads); /* OpenBLAS's own are as many */
    dpotrf_("U", &side, factor, &side, &info, 1);
    if (info == 0) dpotrs_("U", &side, &one, factor, &side, x, &side, &info, 1);
    omp_set_num_threads(before);
    return info == 0;
}
