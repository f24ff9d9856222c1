/* Products and squares of per-example mean rows (methods.md sections 5 and 6): x̄_n = E_r of example n's rows.
 *
 * The mean patch of a convolution is a window sum of the example's own planes, one for each tap; no patch is built. Sums are
 * taken for sixteen neighbours in memory at a time: channels, images or features, as the layout has them. */
#include "device/cpu/stats_dense_impl.h"
#include "tensor/tensor_impl.h"

#include <omp.h>
#include <string.h>

#define LANES 16
#define PANEL_ROWS 64 /* examples whose means are multiplied at a time */

/* How the means of a field are taken: units x blocks x taps, each yielding up to LANES numbers. */
typedef struct lattice {
    const abar__field *f;
    const abar__product_kernels *kernels;
    bool fast;               /* float32, lanes side by side */
    bool lanes_are_examples; /* else they are elements of a row */
    int64_t lanes;           /* in a whole block */
    int64_t units, blocks, taps;
    int64_t offset; /* lanes that come before this map's first in its first block */
} lattice;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t layout_lanes(const abar__field *f)
{
    const abar_tensor *t = f->t;
    if (t->dtype != ABAR_F32) return 1;
    if (!f->convolution) return t->stride[t->ndim - 1] == 1 ? LANES : 1;
    return t->layout == ABAR_LAYOUT_STRIDED ? 1 : t->layout == ABAR_LAYOUT_C8 ? 8 : 16;
}

static lattice make_lattice(const abar_device *dev, const abar__field *f)
{
    lattice l = {.f = f,
                 .kernels = abar__product_pick(dev),
                 .fast = f->t->dtype == ABAR_F32,
                 .lanes_are_examples = f->convolution && f->t->layout == ABAR_LAYOUT_N16 && f->t->dtype == ABAR_F32,
                 .lanes = layout_lanes(f),
                 .taps = f->convolution ? abar__field_taps(f) : 1};
    const int64_t wide = l.lanes_are_examples ? 1 : l.lanes, across = f->convolution ? f->channels : f->in;
    l.units = l.lanes_are_examples ? ceil_div(f->examples, LANES) : f->examples;
    l.offset = l.lanes_are_examples || !f->convolution ? 0 : f->channel % wide;
    l.blocks = ceil_div(l.offset + across, wide);
    return l;
}

/* Positions along one axis whose tap k meets the image, and the first place it meets. */
static abar__range meets(const abar_window *w, int axis, int64_t extent, int64_t out, int64_t k, int64_t *place)
{
    const int64_t first = k * w->dilation[axis] - w->pad[axis], stride = w->stride[axis];
    abar__range r = {first >= 0 ? 0 : ceil_div(-first, stride), 0};
    r.end = extent - 1 - first < 0 ? 0 : abar__min((extent - 1 - first) / stride + 1, out);
    if (r.begin >= r.end) r = (abar__range){0, 0};
    *place = r.begin < r.end ? first + r.begin * stride : 0;
    return r;
}

/* The pixels whose sum is wanted, and the offset in elements of the first. */
static int64_t find_run(const lattice *l, int64_t unit, int64_t block, int64_t tap, abar__product_run *run)
{
    const abar__field *f = l->f;
    const abar_tensor *t = f->t;
    const abar_window *w = &f->window;
    if (!f->convolution) {
        *run = (abar__product_run){.rows = 1, .columns = f->per_example, .column = t->ndim == 3 ? t->stride[1] : 0};
        return unit * t->stride[0] + block * l->lanes * t->stride[t->ndim - 1];
    }
    int64_t y, x;
    const abar__range p = meets(w, 0, f->height, f->out_height, tap / w->kernel[1], &y);
    const abar__range q = meets(w, 1, f->width, f->out_width, tap % w->kernel[1], &x);
    const int64_t channel = l->lanes_are_examples ? block : block * l->lanes - l->offset;
    const abar__plane plane = abar__field_plane(f, l->lanes_are_examples ? unit * LANES : unit, channel);
    *run = (abar__product_run){.rows = p.end - p.begin,
                               .columns = q.end - q.begin,
                               .row = w->stride[0] * plane.row,
                               .column = w->stride[1] * plane.column};
    return plane.offset + y * plane.row + x * plane.column;
}

/* The means of a block's lanes through one tap. */
static void take_means(const lattice *l, int64_t unit, int64_t block, int64_t tap, float lane[LANES])
{
    const abar__field *f = l->f;
    abar__product_run run;
    const int64_t offset = find_run(l, unit, block, tap, &run);
    if (l->fast) {
        run.a = (const float *)f->t->data + offset;
        const int64_t lanes = f->convolution ? l->lanes : abar__min(l->lanes, f->in - block * l->lanes);
        l->kernels->lane_sums(&run, lanes, lane);
    } else {
        double sum = 0.0;
        for (int64_t y = 0; y < run.rows; y++)
            for (int64_t x = 0; x < run.columns; x++) sum += abar__tensor_load(f->t, offset + y * run.row + x * run.column);
        lane[0] = (float)sum;
    }
    const float scale = (float)(f->scale / (double)f->per_example);
    for (int64_t i = 0; i < l->lanes; i++) lane[i] *= scale;
}

/* The lanes of a block that are this map's. */
static abar__range own_lanes(const lattice *l, int64_t unit, int64_t block)
{
    if (l->lanes_are_examples) return (abar__range){0, abar__min(LANES, l->f->examples - unit * LANES)};
    const int64_t across = l->f->convolution ? l->f->channels : l->f->in, first = l->offset - block * l->lanes;
    return (abar__range){abar__max(0, first), abar__min(l->lanes, first + across)};
}

void abar__mean_squares(const abar_device *dev, const abar__field *f, double *out)
{
    const lattice l = make_lattice(dev, f);
    const int64_t per_unit = l.lanes_are_examples ? LANES : 1;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t unit = 0; unit < l.units; unit++) {
        double sum[LANES] = {0.0};
        for (int64_t block = 0; block < l.blocks; block++) {
            const abar__range own = own_lanes(&l, unit, block);
            for (int64_t tap = 0; tap < l.taps; tap++) {
                float lane[LANES] = {0};
                take_means(&l, unit, block, tap, lane);
                for (int64_t i = own.begin; i < own.end; i++)
                    sum[l.lanes_are_examples ? i : 0] += (double)lane[i] * (double)lane[i];
            }
        }
        for (int64_t i = 0; i < abar__min(per_unit, f->examples - unit * per_unit); i++)
            out[unit * per_unit + i] = sum[i] + (f->bias ? 1.0 : 0.0);
    }
}

size_t abar__mean_scratch(const abar__field *f)
{
    return abar__round_up((size_t)(PANEL_ROWS * f->d) * sizeof(float), ABAR_ALIGN);
}

/* The mean rows of a unit's examples. */
static void fill_unit(const lattice *l, int64_t unit, float *rows)
{
    const int64_t d = l->f->d, down = l->lanes_are_examples ? d : l->taps; /* from lane to lane */
    for (int64_t block = 0; block < l->blocks; block++) {
        const abar__range own = own_lanes(l, unit, block);
        const int64_t first = l->lanes_are_examples ? block : block * l->lanes - l->offset;
        for (int64_t tap = 0; tap < l->taps; tap++) {
            float lane[LANES] = {0};
            take_means(l, unit, block, tap, lane);
            for (int64_t i = own.begin; i < own.end; i++) rows[first * l->taps + tap + i * down] = lane[i];
        }
    }
    for (int64_t i = 0; l->f->bias && i < (l->lanes_are_examples ? own_lanes(l, unit, 0).end : 1); i++)
        rows[i * d + d - 1] = 1.0f;
}

void abar__mean_rows(const abar_device *dev, const abar__field *f, float *rows)
{
    const lattice l = make_lattice(dev, f);
    const int64_t per_unit = l.lanes_are_examples ? LANES : 1;
#pragma omp parallel for num_threads(dev->threads) schedule(static)
    for (int64_t unit = 0; unit < l.units; unit++) fill_unit(&l, unit, rows + unit * per_unit * f->d);
}

void abar__mean_product(const abar_device *dev, const abar__field *f, float *square, void *scratch)
{
    const lattice l = make_lattice(dev, f);
    const int64_t per_unit = l.lanes_are_examples ? LANES : 1, d = f->d;
    float *panel = scratch;
#pragma omp parallel num_threads(dev->threads)
    {
        abar__keep_blas_single();
        for (int64_t first = 0; first < f->examples; first += PANEL_ROWS) {
            const int64_t count = abar__min(PANEL_ROWS, f->examples - first);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < ceil_div(count, per_unit); i++)
                fill_unit(&l, first / per_unit + i, panel + i * per_unit * d);
            abar__triangle_add(d, count, panel, d, 1.0f, square, d);
#pragma omp barrier
        }
    }
}
