/* Gradients between dense factors (methods.md sections 4 to 6): L G R, at every step.
 *
 * Factors are multiplied where they are, by our own kernels; transposed right ones, which are rare, by BLAS. Of a map's
 * gradient threads take rows, and keep them until they are back in their places: columns would share a cache line with the
 * neighbour's in every row, which costs more than half the product where cores are far apart. */
#include "device/cpu/stats_dense.h"

#include "device/cpu/stats_dense_impl.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#define SERIAL_FLOPS 1000000.0 /* smaller products are not worth waking the other threads */

/* Part me of n columns, cut at multiples of a vector. */
static abar__range columns_of(int64_t n, int64_t parts, int64_t me)
{
    const abar__range r = abar__share((n + 15) / 16, parts, me);
    return (abar__range){abar__min(16 * r.begin, n), abar__min(16 * r.end, n)};
}

/* b_t: b is the transposed of what p says, (n, k), and there is no last. */
static void multiply(const abar__matrix_kernels *kernels, const abar__matrix_product *p, bool b_t)
{
    if (p->begin >= p->end) return;
    if (!b_t) {
        kernels->product(p);
        return;
    }
    const bool x_t = p->x_step != 1;
    cblas_sgemm(CblasRowMajor, x_t ? CblasTrans : CblasNoTrans, CblasTrans, (blasint)p->rows, (blasint)(p->end - p->begin),
                (blasint)p->k, 1.0f, p->x, (blasint)(x_t ? p->x_step : p->x_row), p->b + p->begin * p->b_pitch,
                (blasint)p->b_pitch, 0.0f, p->y + p->begin, (blasint)p->y_pitch);
}

/* ---- two-sided products ------------------------------------------------------------------------------------------------- */

static void copy_columns(int64_t m, int64_t n, const float *x, float *y, abar__range columns)
{
    for (int64_t i = 0; i < m; i++)
        memcpy(y + i * n + columns.begin, x + i * n + columns.begin, (size_t)(columns.end - columns.begin) * sizeof *y);
}

void abar__cpu_sandwich(abar_device *dev, int64_t m, int64_t n, const void *left, bool left_t, const void *x, const void *right,
                        bool right_t, void *y, void *scratch)
{
    const double work = 2.0 * (double)m * (double)n * (double)((left ? m : 0) + (right ? n : 0));
    const bool through_scratch = x == y || (left && right); /* where no product can read and write in place */
    float *half = through_scratch ? scratch : y;
    const abar__matrix_kernels *kernels = abar__matrix_pick(dev);
#pragma omp parallel num_threads(dev->threads) if (work > SERIAL_FLOPS)
    {
        const abar__range columns = columns_of(n, omp_get_num_threads(), omp_get_thread_num());
        const float *first = left || x == y ? half : x;
        abar__matrix_product p = {.rows = m, .n = n, .begin = columns.begin, .end = columns.end, .b_pitch = n, .y_pitch = n};
        abar__keep_blas_single();
        if (left) {
            p.k = m;
            p.x = left, p.x_row = left_t ? 1 : m, p.x_step = left_t ? m : 1;
            p.b = x, p.y = half;
            multiply(kernels, &p, false);
        } else if (x == y) {
            copy_columns(m, n, x, half, columns);
        }
#pragma omp barrier
        if (right) {
            p.k = n;
            p.x = first, p.x_row = n, p.x_step = 1;
            p.b = right, p.y = y;
            multiply(kernels, &p, right_t);
        } else if (first != y) {
            copy_columns(m, n, first, y, columns);
        }
    }
}

/* ---- a map's gradient --------------------------------------------------------------------------------------------------- */

/* What a thread knows of its rows of the result: <G, G>, <G^, G>, <G^, G^>, and 0 if they are finite. A cache line each. */
enum { FINITE = 3, SUMS = 8 };

enum { ROWS = 4 }; /* rows are shared out by so many */

typedef struct dense {
    const abar__dense_gradient *g;
    const abar__matrix_kernels *kernels;
    float *half, *y; /* (out, d): L G; G^ */
    double *sums;    /* (team, SUMS) */
    int team;
    bool compared;
} dense;

/* Rows of half = L G. */
static void multiply_left(const dense *s, abar__range rows)
{
    const abar__dense_gradient *g = s->g;
    abar__matrix_product p = {.rows = rows.end - rows.begin,
                              .k = g->out,
                              .n = g->in,
                              .end = g->in,
                              .x = (const float *)g->left + rows.begin * g->out,
                              .x_row = g->out,
                              .x_step = 1,
                              .b = g->weight,
                              .b_pitch = g->in,
                              .y = s->half + rows.begin * g->d,
                              .y_pitch = g->d};
    multiply(s->kernels, &p, false);
    if (!g->bias) return;
    for (int64_t i = rows.begin; i < rows.end; i++)
        s->half[i * g->d + g->in] = s->kernels->dot((const float *)g->left + i * g->out, g->bias, g->out);
}

/* Rows of y = half R, or G R. A bias without a gradient counts as zeros: the last row of R is left out. */
static void multiply_right(const dense *s, abar__range rows)
{
    const abar__dense_gradient *g = s->g;
    const int64_t pitch = g->left ? g->d : g->in;
    const float *x = g->left ? s->half : g->weight, *bias = g->left ? NULL : g->bias;
    abar__matrix_product p = {.rows = rows.end - rows.begin,
                              .k = g->left && g->bias ? g->d : g->in,
                              .n = g->d,
                              .end = g->d,
                              .x = x + rows.begin * pitch,
                              .x_row = pitch,
                              .x_step = 1,
                              .last = bias ? bias + rows.begin : NULL,
                              .b = g->right,
                              .b_pitch = g->d,
                              .y = s->y + rows.begin * g->d,
                              .y_pitch = g->d};
    multiply(s->kernels, &p, false);
}

static void look_at(const dense *s, abar__range rows, double *sums)
{
    const abar__dense_gradient *g = s->g;
    const float *scale = g->row_scale, *bias = g->bias, largest = (float)fmax(g->largest, 1.0), zero = 0.0f;
    memset(sums, 0, SUMS * sizeof *sums);
    for (int64_t i = rows.begin; i < rows.end; i++) {
        float *y = s->y + i * g->d;
        if (scale) s->kernels->scale(y, g->d, scale[i]);
        sums[FINITE] += (double)s->kernels->finite(y, g->d, largest);
        if (!s->compared) continue;
        s->kernels->compare((const float *)g->weight + i * g->in, y, g->in, sums);
        s->kernels->compare(bias ? bias + i : &zero, y + g->in, g->d - g->in, sums);
    }
}

static double total(const dense *s, int k)
{
    double sum = 0.0;
    for (int i = 0; i < s->team; i++) sum += s->sums[i * SUMS + k];
    return sum;
}

static void put(const dense *s, abar__range rows)
{
    const abar__dense_gradient *g = s->g;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        memcpy((float *)g->weight + i * g->in, s->y + i * g->d, (size_t)g->in * sizeof(float));
        if (g->bias) ((float *)g->bias)[i] = s->y[i * g->d + g->in];
    }
}

static dense make_dense(const abar_device *dev, const abar__dense_gradient *g, void *scratch, bool compared)
{
    const int64_t count = g->out * g->d;
    const double work = 2.0 * (double)count * (double)((g->left ? g->out : 0) + g->d);
    dense s = {.g = g, .kernels = abar__matrix_pick(dev), .half = scratch, .y = (float *)scratch + count, .compared = compared};
    s.sums = (double *)(void *)((char *)scratch + abar__round_up((size_t)(2 * count) * sizeof(float), ABAR_ALIGN));
    s.team = work > SERIAL_FLOPS ? (int)abar__min(dev->threads, (g->out + ROWS - 1) / ROWS) : 1;
    return s;
}

bool abar__cpu_precondition(abar_device *dev, const abar__dense_gradient *g, void *scratch, double *products)
{
    dense s = make_dense(dev, g, scratch, products != NULL);
#pragma omp parallel num_threads(s.team)
    {
        const int team = omp_get_num_threads(), me = omp_get_thread_num();
        const abar__range fours = abar__share((g->out + ROWS - 1) / ROWS, team, me);
        const abar__range rows = {ROWS * fours.begin, abar__min(ROWS * fours.end, g->out)};
        abar__keep_blas_single();
        if (me == 0) s.team = team;
        if (g->left) multiply_left(&s, rows);
        multiply_right(&s, rows);
        look_at(&s, rows, s.sums + me * SUMS);
#pragma omp barrier
        if (total(&s, FINITE) == 0.0) put(&s, rows);
    }
    for (int k = 0; k < 3 && products; k++) products[k] = total(&s, k);
    return total(&s, FINITE) == 0.0;
}
