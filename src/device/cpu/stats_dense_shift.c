/* A = sum of a aᵀ over the patches a of a convolution, from correlations of its input with its shifts (methods.md section 4).
 *
 * Every block of A that belongs to a pair of taps is a sum over a rectangle of one sequence of products; pairs of a class share
 * the sequence (stats_dense_axis.h). Cut by the segments of both axes it falls into *cells*, each a small matrix, channels
 * times channels. First every cell is summed over all images, each product of pixels made once: 13 instead of 45 for 3 x 3
 * taps and stride 1. Then the cells are added up to windows and put into their places in A.
 *
 * Channels are taken sixteen at a time, in the lanes; or, where a map has fewer, sixteen images are in the lanes. Activations
 * that are in memory so are read where they are, others are copied together, a tile of some images at a time. Threads take
 * parts of the batch, and their cells are added up in order. */
#include "device/cpu/stats_dense_axis.h"
#include "device/cpu/stats_dense_impl.h"

#include <omp.h>
#include <string.h>

#define LANES 16
#define CELL_MAX ((LANES + 1) * LANES)  /* floats of the largest cell */
#define CELL_FLOATS ((int64_t)1 << 16)  /* of cells that a thread sums at a time; more where one class has more */
#define CHUNK_FLOATS ((int64_t)1 << 16) /* of activations that a thread works on at a time */
#define CHUNK_IMAGES 256                /* at most */
#define PLANES_AT_ONCE 8                /* about as many blocks of channels are in use at a time */

typedef struct shift {
    const abar__field *f;
    const abar__product_kernels *kernels;
    const double *weight;
    float *square;
    bool images_in_lanes, direct;      /* direct: read where it is */
    int64_t blocks;                    /* of channels */
    int64_t wide, cell;                /* rows and columns of a cell; its floats, with a further row of sums for the bias */
    int64_t capacity;                  /* cells per thread */
    int64_t groups, planes;            /* images or sixteens of images; blocks of channels or channels in each */
    int64_t chunk, high, across;       /* groups, rows and columns worked on at a time */
    int64_t above, below, left, right; /* how far lags reach beyond them */
    abar__shift_axis v, h;             /* vertical, horizontal */
    float *cells, *windows, *pack;     /* each thread's follow those of the one before */
    int64_t cells_size, windows_size;
} shift;

/* ---- planning ------------------------------------------------------------------------------------------------------- */

static int64_t cells_floats(const abar__field *f)
{
    const int64_t one_class = (2 * f->window.kernel[0] - 1) * (2 * f->window.kernel[1] - 1);
    return abar__max(one_class * CELL_MAX, CELL_FLOATS);
}

static int64_t windows_floats(const abar__field *f) { return 2 * f->window.kernel[1] * CELL_MAX; }

size_t abar__shift_scratch(const abar_device *dev, const abar__field *f)
{
    const int64_t floats = cells_floats(f) + windows_floats(f) + CHUNK_FLOATS;
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

/* Is it in memory as the kernels read it? */
static bool lies_right(const abar__field *f, bool images_in_lanes)
{
    if (f->t->dtype != ABAR_F32) return false;
    if (images_in_lanes) return f->t->layout == ABAR_LAYOUT_N16;
    return f->t->layout == ABAR_LAYOUT_C16 && f->channel % LANES == 0;
}

/* Chunks of images, or tiles of one: of what is read where it is all, of what is copied no more than there is room for. */
static bool plan_chunks(shift *s)
{
    const int64_t height = s->f->height, width = s->f->width;
    const int64_t pixel = LANES * (s->direct ? abar__min(s->planes, PLANES_AT_ONCE) : s->planes);
    const int64_t pixels = CHUNK_FLOATS * (s->direct && s->images_in_lanes ? 4 : 1) / pixel;
    s->high = height;
    s->across = width;
    s->chunk = abar__min(pixels / (height * width), CHUNK_IMAGES / (s->images_in_lanes ? LANES : 1));
    if (s->chunk >= 1) return true;
    s->chunk = 1;
    if (s->direct) {
        s->high = abar__max(1, pixels / width);
        return true;
    }
    const int64_t rows = s->above + s->below, columns = s->left + s->right;
    if (pixels / width < 2 * rows + 1) s->across = pixels / (2 * rows + 1) - columns;
    if (s->across < 1) return false;
    s->high = pixels / abar__min(width, s->across + columns) - rows;
    return true;
}

static bool plan(shift *s)
{
    const abar__field *f = s->f;
    const abar_window *w = &f->window;
    const int64_t n = f->channels, sixteens = (f->examples + LANES - 1) / LANES;
    s->images_in_lanes = n < LANES && n * sixteens < f->examples;
    s->direct = lies_right(f, s->images_in_lanes);
    s->blocks = (n + LANES - 1) / LANES;
    s->wide = s->images_in_lanes ? n : LANES;
    s->cell = (s->wide + 1) * s->wide;
    s->groups = s->images_in_lanes ? sixteens : f->examples;
    s->planes = s->images_in_lanes ? n : s->blocks;
    s->below = (w->kernel[0] - 1) * w->dilation[0];
    s->above = s->blocks > 1 ? s->below : 0;
    s->left = s->right = (w->kernel[1] - 1) * w->dilation[1];
    s->cells_size = cells_floats(f);
    s->capacity = s->cells_size / s->cell;
    s->windows_size = windows_floats(f);
    return plan_chunks(s);
}

/* Cells have their price too: windows that see few positions, or overlap little, are better multiplied as they are. */
static bool pays(const shift *s)
{
    const abar__field *f = s->f;
    const int64_t taps = abar__field_taps(f);
    const int64_t products = abar__shift_axis_length(&s->v) * abar__shift_axis_length(&s->h);
    const int64_t cells = abar__shift_axis_segments(&s->v) * abar__shift_axis_segments(&s->h);
    return taps == 1 || products + 4 * cells <= f->out_height * f->out_width * taps * taps;
}

/* ---- items ---------------------------------------------------------------------------------------------------------- */

/* What is summed by itself: blocks a >= b of channels, through taps of a vertical and a horizontal class. */
typedef struct item {
    int64_t a, b, v, h;
} item;

/* Some items whose cells fit together. */
typedef struct pass {
    item first;
    int64_t items, cells;
} pass;

static const abar__shift_class *vertical(const shift *s, const item *i) { return &s->v.classes[i->v]; }
static const abar__shift_class *horizontal(const shift *s, const item *i) { return &s->h.classes[i->h]; }
static int64_t cells_of(const shift *s, const item *i) { return vertical(s, i)->segments * horizontal(s, i)->segments; }

/* Of two classes that mirror each other, a block with itself needs one. */
static bool is_wanted(const shift *s, const item *i)
{
    const int64_t down = vertical(s, i)->lag, across = horizontal(s, i)->lag;
    return i->a != i->b || down > 0 || (down == 0 && across >= 0);
}

static bool is_own_mirror(const shift *s, const item *i)
{
    return i->a == i->b && vertical(s, i)->lag == 0 && horizontal(s, i)->lag == 0;
}

/* To the next item that is wanted; a == blocks after the last. */
static void advance(const shift *s, item *i)
{
    do {
        if (++i->h < s->h.n) continue;
        i->h = 0;
        if (++i->v < s->v.n) continue;
        i->v = 0;
        if (++i->b <= i->a) continue;
        i->b = 0;
        i->a++;
    } while (i->a < s->blocks && !is_wanted(s, i));
}

static pass first_pass(const shift *s)
{
    pass p = {.first = {0, 0, 0, 0}};
    if (!is_wanted(s, &p.first)) advance(s, &p.first);
    return p;
}

/* Fills p with as many items as fit, from its first on; returns the one after. */
static item fill_pass(const shift *s, pass *p)
{
    item i = p->first;
    p->items = p->cells = 0;
    while (i.a < s->blocks && p->cells + cells_of(s, &i) <= s->capacity) {
        p->cells += cells_of(s, &i);
        p->items++;
        advance(s, &i);
    }
    return i;
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

/* A tile of some groups, and where its pixels are: planes of rows of pixels, of LANES floats each. */
typedef struct view {
    abar__range groups, rows, columns;
    const float *data;         /* first group and plane, pixel (top, left) */
    int64_t top, left;         /* of what is held: the tile and what lags reach */
    int64_t row, plane, group; /* pitches in floats */
    float weight[CHUNK_IMAGES];
} view;

/* One channel of one image into a lane of a copy. */
static void pack_lane(const shift *s, int64_t image, int64_t channel, abar__range rows, abar__range columns, float *to)
{
    const abar__field *f = s->f;
    const int64_t n = columns.end - columns.begin;
    const bool present = image < f->examples && channel < f->channels;
    const abar__plane p = present ? abar__field_plane(f, image, channel) : (abar__plane){0};
    for (int64_t y = rows.begin; y < rows.end; y++, to += n * LANES) {
        if (present)
            abar__field_read(f, p.offset + y * p.row + columns.begin * p.column, p.column, n, to, LANES);
        else
            for (int64_t x = 0; x < n; x++) to[x * LANES] = 0.0f;
    }
}

static void copy_together(const shift *s, float *to, view *v)
{
    const abar__range rows = {abar__max(0, v->rows.begin - s->above), abar__min(s->f->height, v->rows.end + s->below)};
    const abar__range columns = {abar__max(0, v->columns.begin - s->left), abar__min(s->f->width, v->columns.end + s->right)};
    v->data = to;
    v->top = rows.begin;
    v->left = columns.begin;
    v->row = (columns.end - columns.begin) * LANES;
    v->plane = (rows.end - rows.begin) * v->row;
    v->group = s->planes * v->plane;
    for (int64_t g = v->groups.begin; g < v->groups.end; g++)
        for (int64_t p = 0; p < s->planes; p++, to += v->plane)
            for (int64_t lane = 0; lane < LANES; lane++) {
                const int64_t image = s->images_in_lanes ? g * LANES + lane : g;
                pack_lane(s, image, s->images_in_lanes ? p : p * LANES + lane, rows, columns, to + lane);
            }
}

static void find_direct(const shift *s, view *v)
{
    const abar__field *f = s->f;
    const int64_t channels = f->t->dim[1], planes = s->images_in_lanes ? channels : (channels + LANES - 1) / LANES;
    const int64_t first = s->images_in_lanes ? f->channel : f->channel / LANES;
    v->top = v->left = 0;
    v->row = f->width * LANES;
    v->plane = f->height * v->row;
    v->group = planes * v->plane;
    v->data = (const float *)f->t->data + v->groups.begin * v->group + first * v->plane;
}

static void read_view(const shift *s, float *pack, view *v)
{
    const int64_t per_group = s->images_in_lanes ? LANES : 1, first = v->groups.begin * per_group;
    const int64_t n = (v->groups.end - v->groups.begin) * per_group;
    for (int64_t i = 0; s->weight && i < n; i++) v->weight[i] = first + i < s->f->examples ? (float)s->weight[first + i] : 0.0f;
    if (s->direct)
        find_direct(s, v);
    else
        copy_together(s, pack, v);
}

/* ---- cells ---------------------------------------------------------------------------------------------------------- */

/* The part of a segment whose pixels are inside the tile. */
static abar__range within(const abar__range *segment, int64_t origin, int64_t step, const abar__range *tile)
{
    const int64_t begin = abar__max(0, tile->begin - origin + step - 1) / step;
    const int64_t end = abar__max(0, tile->end - origin + step - 1) / step;
    return (abar__range){abar__max(segment->begin, begin), abar__min(segment->end, end)};
}

static void add_cell(const shift *s, const item *i, const abar__product_run *run, float *cell)
{
    const bool with_sums = s->f->bias && is_own_mirror(s, i);
    if (s->images_in_lanes) {
        s->kernels->images(run, s->wide, cell);
        if (with_sums) s->kernels->image_sums(run, s->wide, cell + s->wide * s->wide);
    } else {
        s->kernels->channels(run, abar__min(LANES, s->f->channels - i->a * LANES), cell);
        if (with_sums) s->kernels->channel_sums(run, cell + LANES * LANES);
    }
}

/* Adds what a view holds to the cells of an item. */
static void add_item(const shift *s, const item *i, const view *v, float *cell)
{
    const abar__shift_class *cv = vertical(s, i), *ch = horizontal(s, i);
    abar__product_run run = {.groups = v->groups.end - v->groups.begin,
                             .group = v->group,
                             .row = s->v.step * v->row,
                             .column = s->h.step * LANES,
                             .channel = v->plane,
                             .weight = s->weight ? v->weight : NULL,
                             .images = s->f->examples - v->groups.begin * LANES};
    for (int64_t j = 0; j < cv->segments; j++) {
        const abar__range down = within(&cv->segment[j], cv->origin, s->v.step, &v->rows);
        const int64_t y = cv->origin + down.begin * s->v.step - v->top;
        run.rows = down.end - down.begin;
        for (int64_t k = 0; k < ch->segments; k++, cell += s->cell) {
            const abar__range across = within(&ch->segment[k], ch->origin, s->h.step, &v->columns);
            const int64_t x = ch->origin + across.begin * s->h.step - v->left;
            run.columns = across.end - across.begin;
            if (run.rows <= 0 || run.columns <= 0) continue;
            run.a = v->data + i->a * v->plane + y * v->row + x * LANES;
            run.b = v->data + i->b * v->plane + (y + cv->lag) * v->row + (x + ch->lag) * LANES;
            add_cell(s, i, &run, cell);
        }
    }
}

static void add_view(const shift *s, const pass *p, const view *v, float *cells)
{
    item i = p->first;
    for (int64_t n = 0; n < p->items; n++, advance(s, &i)) {
        add_item(s, &i, v, cells);
        cells += cells_of(s, &i) * s->cell;
    }
}

/* The calling thread's part of the batch to its cells. */
static void add_part(const shift *s, const pass *p, float *cells, float *pack)
{
    const int64_t team = omp_get_num_threads(), me = omp_get_thread_num(), parts = abar__min(team, s->groups);
    const int64_t strips = team / parts; /* where there are more threads than groups they share an image's rows */
    if (me >= parts * strips) return;
    const abar__range groups = abar__share(s->groups, parts, me / strips);
    const abar__range rows = abar__share(s->f->height, strips, me % strips);
    view v;
    for (int64_t g = groups.begin; g < groups.end; g += s->chunk)
        for (int64_t y = rows.begin; y < rows.end; y += s->high)
            for (int64_t x = 0; x < s->f->width; x += s->across) {
                v.groups = (abar__range){g, abar__min(g + s->chunk, groups.end)};
                v.rows = (abar__range){y, abar__min(y + s->high, rows.end)};
                v.columns = (abar__range){x, abar__min(x + s->across, s->f->width)};
                read_view(s, pack, &v);
                add_view(s, p, &v, cells);
            }
}

/* ---- windows -------------------------------------------------------------------------------------------------------- */

static void add(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

/* A window's matrix to its places in the lower triangle: rows are a's channels seen through tap_a, columns b's through tap_b.
 */
static void put(const shift *s, const item *i, int64_t tap_a, int64_t tap_b, const float *window)
{
    const abar__field *f = s->f;
    const bool own_mirror = is_own_mirror(s, i);
    const int64_t taps = abar__field_taps(f), d = f->d, first_a = i->a * LANES, first_b = i->b * LANES;
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

/* The cells of an item, all threads' together, to windows and into the square. */
static void put_item(const shift *s, const item *i, float *cells, float *windows)
{
    const abar__shift_class *cv = vertical(s, i), *ch = horizontal(s, i);
    const int64_t kernel_width = s->f->window.kernel[1], line = ch->segments * s->cell;
    float *window = windows + line;
    for (int t = 1; t < omp_get_num_threads(); t++) add(cells, cells + t * s->cells_size, cv->segments * line);
    for (int64_t j = 0; j < cv->members; j++) {
        const int64_t down = j * s->v.tap_step;
        memset(windows, 0, (size_t)line * sizeof *windows);
        for (int64_t n = cv->seen[j].begin; n < cv->seen[j].end; n++) add(windows, cells + n * line, line);
        for (int64_t k = 0; k < ch->members; k++) {
            const int64_t right = k * s->h.tap_step;
            memset(window, 0, (size_t)s->cell * sizeof *window);
            for (int64_t n = ch->seen[k].begin; n < ch->seen[k].end; n++) add(window, windows + n * s->cell, s->cell);
            put(s, i, (cv->tap_a + down) * kernel_width + ch->tap_a + right,
                (cv->tap_b + down) * kernel_width + ch->tap_b + right, window);
        }
    }
}

/* The calling thread's items: consecutive ones, for they have the same blocks of channels, and those the same cache lines. */
static void put_part(const shift *s, const pass *p)
{
    const int64_t me = omp_get_thread_num();
    const abar__range mine = abar__share(p->items, omp_get_num_threads(), me);
    float *cells = s->cells;
    item i = p->first;
    for (int64_t n = 0; n < p->items; n++, advance(s, &i)) {
        if (n >= mine.begin && n < mine.end) put_item(s, &i, cells, s->windows + me * s->windows_size);
        cells += cells_of(s, &i) * s->cell;
    }
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

static void add_all(const shift *s)
{
    const int64_t me = omp_get_thread_num();
    float *cells = s->cells + me * s->cells_size;
    pass p = first_pass(s);
    while (p.first.a < s->blocks) {
        const item next = fill_pass(s, &p);
        memset(cells, 0, (size_t)(p.cells * s->cell) * sizeof *cells);
        add_part(s, &p, cells, s->pack + me * CHUNK_FLOATS);
#pragma omp barrier
        put_part(s, &p);
#pragma omp barrier
        p.first = next;
    }
}

static double total_weight(const abar__field *f, const double *weight)
{
    double sum = 0.0;
    for (int64_t n = 0; n < f->examples; n++) sum += weight ? weight[n] : 1.0;
    return sum;
}

bool abar__shift_product(const abar_device *dev, const abar__field *f, const double *weight, float *square, void *scratch)
{
    shift s = {.f = f, .kernels = abar__product_pick(dev), .weight = weight, .square = square};
    if (!plan(&s)) return false;
    place(&s, dev, scratch);
    if (!pays(&s)) return false;
#pragma omp parallel num_threads(dev->threads)
    add_all(&s);
    if (f->bias) square[f->d * f->d - 1] += (float)(total_weight(f, weight) * (double)f->per_example);
    return true;
}
