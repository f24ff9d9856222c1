/* Products of rows (methods.md sections 4 to 6), and the squares they are summed in: which way each goes, and what becomes of
 * the triangles. */
#include "device/cpu/stats_dense.h"

#include "device/cpu/reorder.h"
#include "device/cpu/stats_dense_impl.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define TILE 32         /* side of the tiles in which triangles are transposed */
#define SERIAL_SIDE 256 /* squares of smaller side are not worth waking the other threads */

/* ---- fields ------------------------------------------------------------------------------------------------------- */

static void set_image(abar__field *f, const abar_tensor *t)
{
    f->t = t;
    f->height = t->dim[2];
    f->width = t->dim[3];
    f->out_height = abar_window_out(&f->window, 0, f->height);
    f->out_width = abar_window_out(&f->window, 1, f->width);
}

abar__field abar__input_field(const abar__rows *r)
{
    abar__field f = {.t = &r->input,
                     .window = r->window,
                     .convolution = r->convolution,
                     .bias = r->bias,
                     .scale = 1.0,
                     .examples = r->examples,
                     .per_example = r->per_example,
                     .channels = r->in / (r->window.kernel[0] * r->window.kernel[1]),
                     .in = r->in,
                     .d = abar__rows_d(r)};
    f.channel = r->group * f.channels;
    if (r->convolution) set_image(&f, &r->input);
    return f;
}

abar__field abar__grad_field(const abar__rows *r)
{
    abar__field f = {.t = &r->output_grad,
                     .window = abar_window_unit(),
                     .convolution = r->convolution,
                     .scale = r->grad_scale,
                     .examples = r->examples,
                     .per_example = r->per_example,
                     .channel = r->group * r->out,
                     .channels = r->out,
                     .in = r->out,
                     .d = r->out};
    if (r->convolution) set_image(&f, &r->output_grad);
    return f;
}

abar__plane abar__field_plane(const abar__field *f, int64_t image, int64_t channel)
{
    const abar_tensor *t = f->t;
    const int64_t c = f->channel + channel;
    abar__plane p = {.offset = abar__tensor_offset(t, (int64_t[]){image, c, 0, 0})};
    p.row = t->dim[2] > 1 ? abar__tensor_offset(t, (int64_t[]){image, c, 1, 0}) - p.offset : 0;
    p.column = t->dim[3] > 1 ? abar__tensor_offset(t, (int64_t[]){image, c, 0, 1}) - p.offset : 0;
    return p;
}

void abar__field_read(const abar__field *f, int64_t offset, int64_t step, int64_t n, float *to, int64_t to_step)
{
    if (f->t->dtype == ABAR_F32) {
        const float *from = (const float *)f->t->data + offset;
        for (int64_t i = 0; i < n; i++) to[i * to_step] = from[i * step];
        return;
    }
    for (int64_t i = 0; i < n; i++) to[i * to_step] = (float)abar__tensor_load(f->t, offset + i * step);
}

const abar__product_kernels *abar__product_pick(const abar_device *dev)
{
    static const abar__product_kernels *const tables[] = ABAR_ISA_TABLE(abar__product);
    return tables[abar__isa_best(dev->ctx)];
}

const abar__matrix_kernels *abar__matrix_pick(const abar_device *dev)
{
    static const abar__matrix_kernels *const tables[] = ABAR_ISA_TABLE(abar__matrix);
    return tables[abar__isa_best(dev->ctx)];
}

static const abar__reorder_kernels *reorder_pick(const abar_device *dev)
{
    static const abar__reorder_kernels *const tables[] = ABAR_ISA_TABLE(abar__reorder);
    return tables[abar__isa_best(dev->ctx)];
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

static void product(const abar_device *dev, const abar__field *f, const double *weight, float *square, void *scratch)
{
    if (!f->convolution || !abar__shift_product(dev, f, weight, square, scratch))
        abar__panel_product(dev, f, weight, square, scratch);
}

void abar__cpu_input_product(abar_device *dev, const abar__rows *r, const double *weight, void *square, void *scratch)
{
    const abar__field f = abar__input_field(r);
    product(dev, &f, weight, square, scratch);
}

void abar__cpu_grad_product(abar_device *dev, const abar__rows *r, void *square, void *scratch)
{
    const abar__field f = abar__grad_field(r);
    product(dev, &f, NULL, square, scratch);
}

/* Where there is one row per example it is its own mean. */
static void mean_product(const abar_device *dev, const abar__field *f, float *square, void *scratch)
{
    if (f->per_example == 1)
        product(dev, f, NULL, square, scratch);
    else
        abar__mean_product(dev, f, square, scratch);
}

void abar__cpu_input_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch)
{
    const abar__field f = abar__input_field(r);
    mean_product(dev, &f, square, scratch);
}

void abar__cpu_grad_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch)
{
    const abar__field f = abar__grad_field(r);
    mean_product(dev, &f, square, scratch);
}

void abar__cpu_example_means(abar_device *dev, const abar__rows *r, bool of_grads, void *means)
{
    const abar__field f = of_grads ? abar__grad_field(r) : abar__input_field(r);
    abar__mean_rows(dev, &f, means);
}

void abar__cpu_example_weights(abar_device *dev, const abar__rows *r, double *a, double *p, double *number)
{
    const abar__field input = abar__input_field(r), grad = abar__grad_field(r);
    abar__mean_squares(dev, &input, a);
    abar__mean_squares(dev, &grad, p);
    for (int64_t n = 0; n < r->examples; n++) {
        *number += a[n] * p[n];
        a[n] /= (double)r->per_example;
        p[n] /= (double)r->per_example;
    }
}

static size_t field_scratch(const abar_device *dev, const abar__field *f)
{
    size_t need[] = {abar__panel_scratch(f), abar__mean_scratch(f), f->convolution ? abar__shift_scratch(dev, f) : 0};
    size_t most = 0;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++) most = need[i] > most ? need[i] : most;
    return most;
}

size_t abar__cpu_product_scratch(abar_device *dev, const abar__rows *r)
{
    abar__rows shape = *r;
    shape.input = shape.output_grad = (abar_tensor){0};
    const abar__field input = abar__input_field(&shape), grad = abar__grad_field(&shape);
    const size_t a = field_scratch(dev, &input), p = field_scratch(dev, &grad);
    return a > p ? a : p;
}

/* ---- squares -------------------------------------------------------------------------------------------------------- */

static int64_t triangle_cut(int64_t n, int64_t unit, int64_t parts, int64_t me)
{
    return me == parts ? n : (int64_t)((double)n * sqrt((double)me / (double)parts)) / unit * unit;
}

abar__range abar__triangle_share(int64_t n, int64_t unit, int64_t parts, int64_t me)
{
    return (abar__range){triangle_cut(n, unit, parts, me), triangle_cut(n, unit, parts, me + 1)};
}

static int square_threads(const abar_device *dev, int64_t n) { return n < SERIAL_SIDE ? 1 : dev->threads; }

bool abar__cpu_all_finite(abar_device *dev, int64_t n, bool square, const void *pending, double scale)
{
    (void)square;
    const abar__matrix_kernels *kernels = abar__matrix_pick(dev);
    const float *x = pending, s = (float)fmax(scale, 1.0);
    float sum = 0.0f;
#pragma omp parallel num_threads(square_threads(dev, n)) reduction(+ : sum)
    {
        const abar__range rows = abar__triangle_share(n, 1, omp_get_num_threads(), omp_get_thread_num());
        for (int64_t i = rows.begin; i < rows.end; i++) sum += kernels->finite(x + i * n, i + 1, s);
    }
    return sum == 0.0f && isfinite(s);
}

/* Of a square: average (upper triangle), pending (lower triangle), and what to make of them. */
typedef struct commit {
    int64_t n;
    float *average, *pending, beta, add;
    const abar__matrix_kernels *kernels;
    const abar__reorder_kernels *reorder;
} commit;

/* Rows of average from the columns of pending, for a tile of them that the diagonal cuts. */
static void commit_corner(const commit *c, int64_t first)
{
    const int64_t n = c->n, end = abar__min(first + TILE, n);
    for (int64_t j = first; j < end; j++)
        for (int64_t i = j; i < end; i++) {
            c->average[j * n + i] = c->beta * c->average[j * n + i] + c->add * c->pending[i * n + j];
            c->pending[i * n + j] = 0.0f;
        }
}

/* The same for one below it. */
static void commit_tile(const commit *c, int64_t row, int64_t column)
{
    const int64_t n = c->n, high = abar__min(TILE, n - row);
    float turned[TILE * TILE], *pending = c->pending + row * n + column;
    c->reorder->transpose(pending, n, turned, TILE, high, TILE, high);
    c->kernels->blend(c->average + column * n + row, n, turned, TILE, TILE, high, c->beta, c->add);
    for (int64_t i = 0; i < high; i++) memset(pending + i * n, 0, TILE * sizeof *pending);
}

void abar__cpu_commit(abar_device *dev, int64_t n, bool square, void *average, void *pending, double beta, double add)
{
    (void)square;
    const commit c = {n, average, pending, (float)beta, (float)add, abar__matrix_pick(dev), reorder_pick(dev)};
    const int64_t tiles = (n + TILE - 1) / TILE;
#pragma omp parallel num_threads(square_threads(dev, n))
    {
        const abar__range rows = abar__triangle_share(tiles, 1, omp_get_num_threads(), omp_get_thread_num());
        for (int64_t i = rows.begin; i < rows.end; i++) {
            for (int64_t j = 0; j < i; j++) commit_tile(&c, i * TILE, j * TILE);
            commit_corner(&c, i * TILE);
        }
    }
}

void abar__cpu_clear(abar_device *dev, int64_t n, bool square, void *pending)
{
    (void)dev;
    (void)square;
    for (int64_t i = 0; i < n; i++) memset((float *)pending + i * n, 0, (size_t)(i + 1) * sizeof(float));
}

double abar__cpu_trace(abar_device *dev, int64_t d, const void *average)
{
    (void)dev;
    double sum = 0.0;
    for (int64_t i = 0; i < d; i++) sum += (double)((const float *)average)[i * d + i];
    return sum;
}
