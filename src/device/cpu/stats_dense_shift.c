/* A = sum of a aᵀ over the patches a of a convolution, from correlations of its input with its shifts (methods.md section 4).
 *
 * Every block of A that belongs to a pair of taps is a sum over a rectangle of one sequence of products; pairs of a class share
 * the sequence (stats_dense_axis.h). Cut by the segments of both axes it falls into *cells*, each a small matrix, channels
 * times channels. First every cell is summed over all images, each product of pixels made once: 13 instead of 45 for 3 x 3
 * taps and stride 1. Then the cells are added up to windows and put into their places in A.
 *
 * Channels are taken sixteen at a time, in the lanes; or, where a map has fewer, sixteen images are in the lanes. Activations
 * that lie in memory so are read where they are, others are copied together, some rows of some images at a time. Threads take
 * parts of the batch, and add up their cells in order. */
#include "device/cpu/stats_dense_axis.h"
#include "device/cpu/stats_dense_impl.h"

#include <omp.h>
#include <string.h>

#define LANES 16
#define CELL_MAX ((LANES + 1) * LANES)  /* floats of the largest cell */
#define CELL_FLOATS ((int64_t)1 << 15)  /* 128 KiB of cells per thread, or the cells of one class where they are more */
#define CHUNK_FLOATS ((int64_t)1 << 15) /* of one side, worked on at a time */
#define CHUNK_IMAGES 256                /* at most */
#define PACK_WIDTH 256                  /* images as wide as this can be copied together */

typedef struct shift {
    const abar__field *f;
    const abar__product_kernels *kernels;
    const double *weight;
    float *square;
    bool images_in_lanes, direct;  /* direct: read where it lies */
    int64_t blocks;                /* of channels */
    int64_t wide, cell;            /* rows and columns of a cell; its floats, with a further row of sums for the bias */
    int64_t capacity;              /* cells per thread */
    int64_t groups;                /* images, or sixteens of images */
    int64_t row;                   /* floats of one row of pixels of a group, all channels in it */
    int64_t chunk, band;           /* groups and rows worked on at a time */
    int64_t reach;                 /* rows that a lag spans at most */
    abar__shift_axis v, h;         /* vertical, horizontal */
    float *cells, *windows, *pack; /* each thread's follow those of the one before */
    int64_t cells_size, windows_size, pack_size;
} shift;

/* ---- planning ------------------------------------------------------------------------------------------------------- */

static int64_t reach(const abar__field *f) { return (f->window.kernel[0] - 1) * f->window.dilation[0]; }

static int64_t cells_floats(const abar__field *f)
{
    const int64_t one_class = (2 * f->window.kernel[0] - 1) * (2 * f->window.kernel[1] - 1);
    return abar__max(one_class * CELL_MAX, CELL_FLOATS);
}

static int64_t windows_floats(const abar__field *f) { return 2 * f->window.kernel[1] * CELL_MAX; }

/* One side's copy: enough for some rows of images PACK_WIDTH wide. */
static int64_t pack_floats(const abar__field *f)
{
    const int64_t pixel = f->channels < LANES ? f->channels * LANES : LANES;
    return abar__max(CHUNK_FLOATS, (2 * reach(f) + 4) * PACK_WIDTH * pixel);
}

size_t abar__shift_scratch(const abar_device *dev, const abar__field *f)
{
    const int64_t floats = cells_floats(f) + windows_floats(f) + 2 * pack_floats(f);
    return abar__shift_axis_bytes(f->window.kernel[0]) + abar__shift_axis_bytes(f->window.kernel[1]) +
           (size_t)dev->threads * (size_t)floats * sizeof(float);
}

static void place(shift *s, const abar_device *dev, char *scratch)
{
    const abar__field *f = s->f;
    const abar_window *w = &f->window;
    abar__shift_axis_make(w, 0, f->height, f->out_height, scratch, &s->v);
    scratch += abar__shift_axis_bytes(w->kernel[0]);
    abar__shift_axis_make(w, 1, f->width, f->out_width, scratch, &s->h);
    scratch += abar__shift_axis_bytes(w->kernel[1]);
    s->cells = (float *)scratch;
    s->windows = s->cells + dev->threads * s->cells_size;
    s->pack = s->windows + dev->threads * s->windows_size;
}

/* Does it lie in memory as the kernels read it? */
static bool lies_right(const abar__field *f, bool images_in_lanes)
{
    if (f->t->dtype != ABAR_F32) return false;
    if (images_in_lanes) return f->t->layout == ABAR_LAYOUT_N16;
    return f->t->layout == ABAR_LAYOUT_C16 && f->channel % LANES == 0;
}

/* How much is worked on at a time; false where not even a row with its reach can be copied together. */
static bool plan_chunks(shift *s)
{
    const int64_t height = s->f->height, limit = s->direct ? CHUNK_FLOATS : s->pack_size;
    s->band = height;
    s->chunk = abar__min(limit / (height * s->row), s->images_in_lanes ? CHUNK_IMAGES / LANES : CHUNK_IMAGES);
    if (s->chunk >= 1) return true;
    s->chunk = 1;
    s->band = limit / s->row - (s->direct ? 0 : s->images_in_lanes ? s->reach : 2 * s->reach);
    if (s->direct) s->band = abar__max(s->band, 1);
    return s->band >= 1;
}

static bool plan(shift *s)
{
    const abar__field *f = s->f;
    const int64_t n = f->channels, sixteens = (f->examples + LANES - 1) / LANES;
    s->images_in_lanes = n < LANES && n * sixteens < f->examples;
    s->direct = lies_right(f, s->images_in_lanes);
    s->blocks = (n + LANES - 1) / LANES;
    s->wide = s->images_in_lanes ? n : LANES;
    s->cell = (s->wide + 1) * s->wide;
    s->groups = s->images_in_lanes ? sixteens : f->examples;
    s->row = f->width * LANES * (s->images_in_lanes ? n : 1);
    s->reach = reach(f);
    s->cells_size = cells_floats(f);
    s->capacity = s->cells_size / s->cell;
    s->windows_size = windows_floats(f);
    s->pack_size = pack_floats(f);
    return plan_chunks(s);
}

/* Cells have their price too: so windows that see few positions, or overlap little, are better multiplied as they are. */
static bool pays(const shift *s)
{
    const abar__field *f = s->f;
    const int64_t taps = abar__field_taps(f);
    const int64_t products = abar__shift_axis_length(&s->v) * abar__shift_axis_length(&s->h);
    const int64_t cells = abar__shift_axis_segments(&s->v) * abar__shift_axis_segments(&s->h);
    return products + 4 * cells <= f->out_height * f->out_width * taps * taps;
}

/* ---- classes of both axes ------------------------------------------------------------------------------------------- */

/* A pair of blocks of channels. Of two classes that mirror each other a block with itself needs one. */
typedef struct pair {
    int64_t a, b;
} pair;

static const abar__shift_class *vertical(const shift *s, int64_t k) { return &s->v.classes[k / s->h.n]; }
static const abar__shift_class *horizontal(const shift *s, int64_t k) { return &s->h.classes[k % s->h.n]; }

static bool is_wanted(const shift *s, const pair *p, int64_t k)
{
    const int64_t v = vertical(s, k)->lag, h = horizontal(s, k)->lag;
    return p->a != p->b || v > 0 || (v == 0 && h >= 0);
}

/* The same taps on both sides. */
static bool is_own_mirror(const shift *s, const pair *p, int64_t k)
{
    return p->a == p->b && vertical(s, k)->lag == 0 && horizontal(s, k)->lag == 0;
}

static int64_t cells_of(const shift *s, const pair *p, int64_t k)
{
    return is_wanted(s, p, k) ? vertical(s, k)->segments * horizontal(s, k)->segments : 0;
}

/* The classes from here on whose cells fit together. */
static abar__range next_pass(const shift *s, const pair *p, int64_t from)
{
    abar__range r = {from, from};
    for (int64_t cells = 0; r.end < s->v.n * s->h.n; r.end++) {
        cells += cells_of(s, p, r.end);
        if (cells > s->capacity) break;
    }
    return r;
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

/* Groups and rows under work, and where both sides of them are. */
typedef struct view {
    abar__range groups, rows;
    const float *a, *b;          /* first group, row top */
    int64_t top, group, channel; /* pitches in floats; a row's is its width */
    float weight[CHUNK_IMAGES];
} view;

/* Rows of one channel of one image into lanes of a copy. */
static void pack_plane(const shift *s, int64_t image, int64_t channel, abar__range rows, float *to)
{
    const abar__field *f = s->f;
    const bool present = image < f->examples && channel < f->channels;
    const abar__plane p = present ? abar__field_plane(f, image, channel) : (abar__plane){0};
    for (int64_t y = rows.begin; y < rows.end; y++, to += f->width * LANES) {
        if (present)
            abar__field_read(f, p.offset + y * p.row, p.column, f->width, to, LANES);
        else
            for (int64_t x = 0; x < f->width; x++) to[x * LANES] = 0.0f;
    }
}

static void pack_side(const shift *s, const view *v, int64_t block, abar__range rows, float *to)
{
    const int64_t n = s->f->channels;
    for (int64_t g = v->groups.begin; g < v->groups.end; g++, to += v->group)
        for (int64_t lane = 0; lane < LANES; lane++) {
            if (!s->images_in_lanes) pack_plane(s, g, block * LANES + lane, rows, to + lane);
            for (int64_t c = 0; c < n && s->images_in_lanes; c++)
                pack_plane(s, g * LANES + lane, c, rows, to + c * v->channel + lane);
        }
}

static void copy_together(const shift *s, const pair *p, float *pack, view *v)
{
    const abar__range rows = {abar__max(0, v->rows.begin - s->reach), abar__min(s->f->height, v->rows.end + s->reach)};
    const abar__range down = {v->rows.begin, rows.end}, held = s->images_in_lanes ? down : rows;
    v->top = held.begin;
    v->channel = (held.end - held.begin) * s->f->width * LANES;
    v->group = v->channel * (s->images_in_lanes ? s->f->channels : 1);
    v->a = v->b = pack;
    pack_side(s, v, p->a, held, pack);
    if (p->a == p->b) return;
    v->b = pack + s->pack_size;
    pack_side(s, v, p->b, held, pack + s->pack_size);
}

static void find_direct(const shift *s, const pair *p, view *v)
{
    const abar__field *f = s->f;
    const int64_t plane = f->height * f->width * LANES, channels = f->t->dim[1];
    const int64_t planes = s->images_in_lanes ? channels : (channels + LANES - 1) / LANES;
    const int64_t first = s->images_in_lanes ? f->channel : f->channel / LANES;
    const float *data = (const float *)f->t->data + v->groups.begin * planes * plane;
    v->top = 0;
    v->channel = plane;
    v->group = planes * plane;
    v->a = data + (first + p->a) * plane;
    v->b = data + (first + p->b) * plane;
}

static void load_weights(const shift *s, view *v)
{
    const int64_t per_group = s->images_in_lanes ? LANES : 1, first = v->groups.begin * per_group;
    const int64_t n = (v->groups.end - v->groups.begin) * per_group;
    for (int64_t i = 0; s->weight && i < n; i++) v->weight[i] = first + i < s->f->examples ? (float)s->weight[first + i] : 0.0f;
}

/* ---- cells ---------------------------------------------------------------------------------------------------------- */

/* The part of a segment whose pixels are in rows. */
static abar__range within(const abar__range *segment, int64_t origin, int64_t step, const abar__range *rows)
{
    const int64_t begin = abar__max(0, rows->begin - origin + step - 1) / step;
    const int64_t end = abar__max(0, rows->end - origin + step - 1) / step;
    return (abar__range){abar__max(segment->begin, begin), abar__min(segment->end, end)};
}

static void add_cell(const shift *s, const pair *p, const abar__product_run *run, bool with_sums, float *cell)
{
    if (s->images_in_lanes) {
        s->kernels->images(run, s->wide, cell);
        if (with_sums) s->kernels->image_sums(run, s->wide, cell + s->wide * s->wide);
        return;
    }
    s->kernels->channels(run, abar__min(LANES, s->f->channels - p->a * LANES), cell);
    if (with_sums) s->kernels->channel_sums(run, cell + LANES * LANES);
}

/* Adds what a view holds to the cells of class k. */
static void add_class(const shift *s, const pair *p, int64_t k, const view *v, float *cell)
{
    const abar__shift_class *cv = vertical(s, k), *ch = horizontal(s, k);
    const int64_t pitch = s->f->width * LANES, first_image = v->groups.begin * LANES;
    const bool with_sums = s->f->bias && is_own_mirror(s, p, k);
    abar__product_run run = {.groups = v->groups.end - v->groups.begin,
                             .group = v->group,
                             .row = s->v.step * pitch,
                             .column = s->h.step * LANES,
                             .channel = v->channel,
                             .weight = s->weight ? v->weight : NULL,
                             .images = s->f->examples - first_image};
    for (int64_t i = 0; i < cv->segments; i++) {
        const abar__range t = within(&cv->segment[i], cv->origin, s->v.step, &v->rows);
        const int64_t y = cv->origin + t.begin * s->v.step - v->top;
        run.rows = t.end - t.begin;
        for (int64_t j = 0; j < ch->segments; j++, cell += s->cell) {
            const int64_t x = ch->origin + ch->segment[j].begin * s->h.step;
            run.columns = ch->segment[j].end - ch->segment[j].begin;
            run.a = v->a + y * pitch + x * LANES;
            run.b = v->b + (y + cv->lag) * pitch + (x + ch->lag) * LANES;
            if (run.rows > 0) add_cell(s, p, &run, with_sums, cell);
        }
    }
}

/* The calling thread's part of the batch to its cells. */
static void add_part(const shift *s, const pair *p, const abar__range *pass, float *cells, float *pack)
{
    const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t parts = abar__min(team, s->groups), strips = team / parts;
    if (me >= parts * strips) return;
    const abar__range groups = abar__share(s->groups, parts, me / strips),
                      rows = abar__share(s->f->height, strips, me % strips);
    view v;
    for (int64_t g = groups.begin; g < groups.end; g += s->chunk)
        for (int64_t y = rows.begin; y < rows.end; y += s->band) {
            v.groups = (abar__range){g, abar__min(g + s->chunk, groups.end)};
            v.rows = (abar__range){y, abar__min(y + s->band, rows.end)};
            load_weights(s, &v);
            if (s->direct)
                find_direct(s, p, &v);
            else
                copy_together(s, p, pack, &v);
            float *cell = cells;
            for (int64_t k = pass->begin; k < pass->end; k++) {
                if (is_wanted(s, p, k)) add_class(s, p, k, &v, cell);
                cell += cells_of(s, p, k) * s->cell;
            }
        }
}

/* ---- windows -------------------------------------------------------------------------------------------------------- */

static void add(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

/* A window's matrix to its places in the lower triangle: rows c of block a seen through tap_a, columns of block b through
 * tap_b. */
static void put(const shift *s, const pair *p, bool own_mirror, int64_t tap_a, int64_t tap_b, const float *window)
{
    const abar__field *f = s->f;
    const int64_t taps = abar__field_taps(f), d = f->d, first_a = p->a * LANES, first_b = p->b * LANES;
    const int64_t rows = abar__min(s->wide, f->channels - first_a), columns = abar__min(s->wide, f->channels - first_b);
    const float scale = (float)(f->scale * f->scale);
    for (int64_t c = 0; c < rows; c++) {
        const int64_t row = (first_a + c) * taps + tap_a, end = own_mirror ? c + 1 : columns;
        for (int64_t l = 0; l < end; l++) {
            const int64_t column = (first_b + l) * taps + tap_b;
            s->square[row > column ? row * d + column : column * d + row] += scale * window[c * s->wide + l];
        }
    }
    for (int64_t l = 0; l < columns && f->bias && own_mirror; l++)
        s->square[f->in * d + (first_b + l) * taps + tap_b] += window[s->wide * s->wide + l];
}

/* The cells of class k, all threads' together, to windows and into the square. */
static void put_class(const shift *s, const pair *p, int64_t k, float *cells, float *windows)
{
    const abar__shift_class *cv = vertical(s, k), *ch = horizontal(s, k);
    const int64_t kernel_width = s->f->window.kernel[1], line = ch->segments * s->cell;
    float *window = windows + line;
    for (int t = 1; t < omp_get_num_threads(); t++) add(cells, cells + t * s->cells_size, cv->segments * line);
    for (int64_t i = 0; i < cv->members; i++) {
        memset(windows, 0, (size_t)line * sizeof *windows);
        for (int64_t n = cv->seen[i].begin; n < cv->seen[i].end; n++) add(windows, cells + n * line, line);
        for (int64_t j = 0; j < ch->members; j++) {
            const int64_t down = i * s->v.tap_step, right = j * s->h.tap_step;
            memset(window, 0, (size_t)s->cell * sizeof *window);
            for (int64_t n = ch->seen[j].begin; n < ch->seen[j].end; n++) add(window, windows + n * s->cell, s->cell);
            put(s, p, is_own_mirror(s, p, k), (cv->tap_a + down) * kernel_width + ch->tap_a + right,
                (cv->tap_b + down) * kernel_width + ch->tap_b + right, window);
        }
    }
}

static void put_part(const shift *s, const pair *p, const abar__range *pass)
{
    const int team = omp_get_num_threads(), me = omp_get_thread_num();
    float *cells = s->cells;
    for (int64_t k = pass->begin, n = 0; k < pass->end; k++) {
        if (!is_wanted(s, p, k)) continue;
        if (n++ % team == me) put_class(s, p, k, cells, s->windows + me * s->windows_size);
        cells += cells_of(s, p, k) * s->cell;
    }
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

static void add_pair(const shift *s, const pair *p)
{
    const int64_t me = omp_get_thread_num(), classes = s->v.n * s->h.n;
    float *cells = s->cells + me * s->cells_size;
    abar__range pass;
    for (int64_t from = 0; from < classes; from = pass.end) {
        pass = next_pass(s, p, from);
        memset(cells, 0, (size_t)s->cells_size * sizeof *cells);
        add_part(s, p, &pass, cells, s->pack + me * 2 * s->pack_size);
#pragma omp barrier
        put_part(s, p, &pass);
#pragma omp barrier
    }
}

static double count(const abar__field *f, const double *weight)
{
    double sum = 0.0;
    for (int64_t n = 0; n < f->examples; n++) sum += weight ? weight[n] : 1.0;
    return sum * (double)f->per_example;
}

bool abar__shift_product(const abar_device *dev, const abar__field *f, const double *weight, float *square, void *scratch)
{
    shift s = {.f = f, .kernels = abar__product_pick(), .weight = weight, .square = square};
    if (!plan(&s)) return false;
    place(&s, dev, scratch);
    if (!pays(&s)) return false;
#pragma omp parallel num_threads(dev->threads)
    for (int64_t a = 0; a < s.blocks; a++)
        for (int64_t b = 0; b <= a; b++) add_pair(&s, &(pair){a, b});
    if (f->bias) square[f->d * f->d - 1] += (float)count(f, weight);
    return true;
}
