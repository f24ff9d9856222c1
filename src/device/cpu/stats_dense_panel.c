/* Sums of outer products of rows by BLAS: square += xT x, x a panel of rows that stays in the cache.
 *
 * Rows that are in memory as BLAS wants them are used where they are; all others, and patches of any window, are copied
 * together, scaled by the root of their example's weight. No sum is split between threads: each has its own rows of the
 * triangle. */
#include "device/cpu/stats_dense_impl.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#define PANEL_FLOATS ((int64_t)1 << 18) /* 1 MiB: what the threads multiply while it is in their caches */
#define PANEL_ROWS_MIN 64
#define PANEL_ROWS_MAX 512

void abar__keep_blas_single(void)
{
    if (omp_get_num_threads() == 1) omp_set_num_threads(1); /* lasts until the end of the parallel region */
}

void abar__triangle_add(int64_t d, int64_t rows, const float *x, int64_t x_pitch, float scale, float *square, int64_t pitch)
{
    const abar__range mine = abar__triangle_share(d, 16, omp_get_num_threads(), omp_get_thread_num());
    const int64_t begin = mine.begin, n = mine.end - mine.begin;
    if (n <= 0 || rows <= 0) return;
    if (begin > 0)
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)n, (blasint)begin, (blasint)rows, scale, x + begin,
                    (blasint)x_pitch, x, (blasint)x_pitch, 1.0f, square + begin * pitch, (blasint)pitch);
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, (blasint)n, (blasint)rows, scale, x + begin, (blasint)x_pitch, 1.0f,
                square + begin * (pitch + 1), (blasint)pitch);
}

/* ---- rows where they are ---------------------------------------------------------------------------------------------- */

/* Are all rows in memory at one pitch, each without gaps? */
static bool is_matrix(const abar__field *f, int64_t *pitch)
{
    const abar_tensor *t = f->t;
    if (f->convolution || t->dtype != ABAR_F32 || t->layout != ABAR_LAYOUT_STRIDED) return false;
    if (t->stride[t->ndim - 1] != 1 && f->in > 1) return false;
    *pitch = t->ndim == 3 && t->dim[1] > 1 ? t->stride[1] : t->stride[0];
    if (t->ndim == 3 && t->dim[1] > 1 && t->dim[0] > 1 && t->stride[0] != t->dim[1] * t->stride[1]) return false;
    return *pitch >= f->in;
}

/* The bias's row of the square: sums of the columns, a run of rows at a time so that long sums are made of short ones. */
static void add_column_sums(const abar__field *f, const float *x, int64_t pitch, abar__range columns, float *row)
{
    enum { WIDE = 64, RUN = 256 };
    const int64_t rows = f->examples * f->per_example;
    for (int64_t from = columns.begin; from < columns.end; from += WIDE) {
        const int64_t n = abar__min(WIDE, columns.end - from);
        for (int64_t first = 0; first < rows; first += RUN) {
            float sum[WIDE] = {0};
            for (int64_t i = first; i < abar__min(first + RUN, rows); i++)
                for (int64_t j = 0; j < n; j++) sum[j] += x[i * pitch + from + j];
            for (int64_t j = 0; j < n; j++) row[from + j] += sum[j];
        }
    }
}

static void matrix_product(const abar_device *dev, const abar__field *f, int64_t pitch, float *square)
{
    const int64_t rows = f->examples * f->per_example, d = f->d;
    const float scale = (float)(f->scale * f->scale), *x = f->t->data;
#pragma omp parallel num_threads(dev->threads)
    {
        abar__keep_blas_single();
        if (f->bias)
            add_column_sums(f, x, pitch, abar__share(f->in, omp_get_num_threads(), omp_get_thread_num()), square + f->in * d);
        abar__triangle_add(f->in, rows, x, pitch, scale, square, d);
    }
    if (f->bias) square[d * d - 1] += (float)rows;
}

/* ---- rows copied together --------------------------------------------------------------------------------------------- */

static int64_t panel_rows(int64_t d) { return abar__max(PANEL_ROWS_MIN, abar__min(PANEL_ROWS_MAX, PANEL_FLOATS / d)); }

size_t abar__panel_scratch(const abar__field *f)
{
    return abar__round_up((size_t)(panel_rows(f->d) * f->d) * sizeof(float), ABAR_ALIGN);
}

/* Tap (i, j) of one channel for output positions (p, from) .. (p, to - 1): zero where it hangs over the padding. */
static void read_tap(const abar__field *f, const abar__plane *plane, int64_t i, int64_t j, int64_t p, abar__range q, float *to)
{
    const abar_window *w = &f->window;
    const int64_t stride = w->stride[1], y = p * w->stride[0] - w->pad[0] + i * w->dilation[0];
    const int64_t first = j * w->dilation[1] - w->pad[1]; /* column that tap j of position 0 meets */
    int64_t begin = first >= 0 ? 0 : (-first + stride - 1) / stride;
    int64_t end = f->width - 1 - first < 0 ? 0 : (f->width - 1 - first) / stride + 1;
    begin = abar__max(begin, q.begin);
    end = abar__min(end, q.end);
    if (y < 0 || y >= f->height || begin >= end) begin = end = q.begin;
    for (int64_t k = q.begin; k < begin; k++) to[(k - q.begin) * f->d] = 0.0f;
    abar__field_read(f, plane->offset + y * plane->row + (first + begin * stride) * plane->column, stride * plane->column,
                     end - begin, to + (begin - q.begin) * f->d, f->d);
    for (int64_t k = end; k < q.end; k++) to[(k - q.begin) * f->d] = 0.0f;
}

/* The rows of example n from position first on, count of them, all in one line of output positions. */
static void read_patches(const abar__field *f, int64_t n, int64_t first, int64_t count, float *to)
{
    const int64_t p = first / f->out_width, kernel_width = f->window.kernel[1];
    const abar__range q = {first % f->out_width, first % f->out_width + count};
    for (int64_t c = 0; c < f->channels; c++) {
        const abar__plane plane = abar__field_plane(f, n, c);
        for (int64_t k = 0; k < abar__field_taps(f); k++)
            read_tap(f, &plane, k / kernel_width, k % kernel_width, p, q, to + c * abar__field_taps(f) + k);
    }
}

void abar__field_rows(const abar__field *f, const double *weight, abar__range rows, float *to)
{
    const abar_tensor *t = f->t;
    for (int64_t r = rows.begin, count; r < rows.end; r += count, to += count * f->d) {
        const int64_t n = r / f->per_example, at = r % f->per_example;
        count = f->convolution ? abar__min(rows.end - r, f->out_width - at % f->out_width) : 1;
        if (f->convolution)
            read_patches(f, n, at, count, to);
        else
            abar__field_read(f, n * t->stride[0] + (t->ndim == 3 ? at * t->stride[1] : 0), t->stride[t->ndim - 1], f->in, to,
                             1);
        if (f->bias)
            for (int64_t i = 0; i < count; i++) to[i * f->d + f->in] = 1.0f;
        const float root = weight ? (float)sqrt(weight[n]) : 1.0f;
        for (int64_t i = 0; weight && i < count * f->d; i++) to[i] *= root;
    }
}

static void panels_product(const abar_device *dev, const abar__field *f, const double *weight, float *square, float *panel)
{
    const int64_t rows = f->examples * f->per_example, high = panel_rows(f->d);
#pragma omp parallel num_threads(dev->threads)
    {
        abar__keep_blas_single();
        for (int64_t first = 0; first < rows; first += high) {
            const int64_t count = abar__min(high, rows - first);
            const abar__range mine = abar__share(count, omp_get_num_threads(), omp_get_thread_num());
            abar__field_rows(f, weight, (abar__range){first + mine.begin, first + mine.end}, panel + mine.begin * f->d);
#pragma omp barrier
            abar__triangle_add(f->d, count, panel, f->d, (float)(f->scale * f->scale), square, f->d);
#pragma omp barrier
        }
    }
}

void abar__panel_product(const abar_device *dev, const abar__field *f, const double *weight, float *square, void *scratch)
{
    int64_t pitch;
    if (!weight && is_matrix(f, &pitch))
        matrix_product(dev, f, pitch, square);
    else
        panels_product(dev, f, weight, square, scratch);
}
