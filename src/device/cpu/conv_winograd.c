/* 3x3 convolution of stride 1 by Winograd's F(4x4, 3x3), with a quarter of the multiplications. Each thread runs its tiles
 * through all stages chunk by chunk, so that the data between the stages stay in its second-level cache. */
#include "device/cpu/cpu_nn.h"
#include "device/cpu/winograd.h"

#include <omp.h>
#include <string.h>

ABAR_ISA_EXTERN(abar__winograd_kernels, abar__winograd_table);

typedef struct conv {
    const abar__winograd_kernels *kernels;
    abar__winograd forward, back; /* x -> y, dy -> dx */
    abar__winograd_taps taps, back_taps;
    /* scratch, in floats: U, then for each thread V, M (or Z), and the sums of the weights' and the bias's gradients; in their
     * place the moments of the output */
    int64_t u, m, sums, bias, own;
} conv;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- making ----------------------------------------------------------------------------------------------------- */

static abar__winograd geometry(const abar__shape *in, const abar__shape *out, int64_t pad_h, int64_t pad_w, int lanes)
{
    return (abar__winograd){
        .inputs = in->dim[1],
        .outputs = out->dim[1],
        .in_blocks = ceil_div(in->dim[1], lanes),
        .out_blocks = ceil_div(out->dim[1], lanes),
        .in_h = in->dim[2],
        .in_w = in->dim[3],
        .out_h = out->dim[2],
        .out_w = out->dim[3],
        .pad = {pad_h, pad_w},
        .tiles_h = ceil_div(out->dim[2], ABAR_WINOGRAD_TILE),
        .tiles_w = ceil_div(out->dim[3], ABAR_WINOGRAD_TILE),
    };
}

/* Whether a 3x3 convolution is faster this way: padding of channels and tiles must not cost what is saved, there must be
 * enough tiles to pay for transforming the weights, and neither the weights may outgrow the cache nor each thread's sums the
 * memory. */
static bool worthwhile(const abar__op_desc *d, const abar__winograd *w, int lanes, int threads)
{
    const int64_t most_bytes = 16 << 20, most_bytes_of_all = 64 << 20;
    const abar_window *k = &d->window;
    for (int i = 0; i < 2; i++)
        if (k->kernel[i] != 3 || k->stride[i] != 1 || k->dilation[i] != 1 || k->pad[i] > 2) return false;
    if (k->groups != 1 || (d->activation != ABAR_ACT_NONE && d->activation != ABAR_ACT_RELU)) return false;
    int64_t weights = w->in_blocks * w->out_blocks * lanes * lanes, tiles = w->tiles_h * w->tiles_w;
    int64_t pixels = tiles * ABAR_WINOGRAD_TILE * ABAR_WINOGRAD_TILE;
    double used = (double)(w->inputs * w->outputs) / (double)weights * (double)(w->out_h * w->out_w) / (double)pixels;
    int64_t bytes = weights * ABAR_WINOGRAD_PLACES * (int64_t)sizeof(float);
    return used > 0.6 && tiles * d->in[0].dim[0] >= 32 && bytes <= most_bytes && bytes * threads <= most_bytes_of_all;
}

/* The number of tiles for which V and M fill about half of the second-level cache. */
static int64_t choose_chunk(const conv *c, int64_t tiles, int threads)
{
    const abar__winograd *w = &c->forward;
    int64_t per_tile = ABAR_WINOGRAD_PLACES * (w->in_blocks + w->out_blocks) * c->kernels->lanes * (int64_t)sizeof(float);
    int64_t chunk = 448 * 1024 / per_tile, share = ceil_div(tiles, threads), factor = c->kernels->chunk_factor;
    if (chunk > share) chunk = share;
    return max64(1, chunk / factor) * factor;
}

static void plan_scratch(abar__op *op)
{
    conv *c = op->priv;
    const abar__winograd *w = &c->forward;
    int lanes = c->kernels->lanes;
    int64_t v = abar__winograd_place(w, max64(w->in_blocks, w->out_blocks), lanes) * ABAR_WINOGRAD_PLACES;
    c->u = ABAR_WINOGRAD_PLACES * w->in_blocks * w->out_blocks * lanes * lanes;
    c->m = v;
    c->sums = c->m + v;
    c->bias = c->sums + c->u;
    c->own = c->bias + w->out_blocks * lanes;
    op->scratch_bytes = sizeof(float) * (size_t)(c->u + op->dev->threads * c->own);
}

static abar_status create(abar__op *op)
{
    static const abar__winograd_kernels *const tables[] = ABAR_ISA_TABLE(abar__winograd_table);
    const abar__winograd_kernels *kernels = tables[abar__isa_best(op->dev->ctx)];
    const abar__op_desc *d = &op->desc;
    const int64_t *pad = d->window.pad, images = d->in[0].dim[0];
    if (kernels->lanes == 0) return ABAR_E_UNSUPPORTED;
    abar__winograd w = geometry(&d->in[0], &d->out, pad[0], pad[1], kernels->lanes);
    if (!worthwhile(d, &w, kernels->lanes, op->dev->threads)) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__op_priv(op, sizeof(conv)));
    conv *c = op->priv;
    c->kernels = kernels;
    c->forward = w;
    c->back = geometry(&d->out, &d->in[0], 2 - pad[0], 2 - pad[1], kernels->lanes);
    c->forward.chunk = c->back.chunk = choose_chunk(c, images * w.tiles_h * w.tiles_w, op->dev->threads);
    c->taps = (abar__winograd_taps){.output = w.inputs * 9, .input = 9};
    c->back_taps = (abar__winograd_taps){.output = 9, .input = w.inputs * 9, .flipped = true};
    plan_scratch(op);
    op->in_layout[0] = op->out_layout = kernels->lanes == 16 ? ABAR_LAYOUT_C16 : ABAR_LAYOUT_C8;
    op->moment_bytes = sizeof(abar__norm_moments);
    op->backward_needs = ABAR_NEEDS_X | (d->activation == ABAR_ACT_RELU ? ABAR_NEEDS_Y : 0u);
    return ABAR_OK;
}

/* ---- running; these are called by all threads of a team ---------------------------------------------------------- */

typedef struct range {
    int64_t begin, end;
} range;

static range share(int64_t n)
{
    int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    return (range){n * me / threads, n * (me + 1) / threads};
}

static range tiles_of(const abar__op *op, const abar__winograd *w)
{
    return share(op->desc.in[0].dim[0] * w->tiles_h * w->tiles_w);
}

/* A chunk: the tiles from `first` on, at most as many as fit. */
static range chunk_at(const abar__winograd *w, range tiles, int64_t first)
{
    int64_t end = first + w->chunk;
    return (range){first, end < tiles.end ? end : tiles.end};
}

/* One side of a convolution: an activation of so many blocks of height x width pixels. The tiles of row r of an image cover so
 * many rows of pixels from r * tile - before on. */
typedef struct side {
    const float *memory;
    int64_t blocks, height, width, before, rows;
} side;

static side source_side(const abar__winograd *w, const float *memory)
{
    return (side){memory, w->in_blocks, w->in_h, w->in_w, w->pad[0], ABAR_WINOGRAD_TILE + 2};
}

static side output_side(const abar__winograd *w, const float *memory)
{
    return (side){memory, w->out_blocks, w->out_h, w->out_w, 0, ABAR_WINOGRAD_TILE};
}

/* What tiles [begin, end) of one image cover: some rows of every block. */
static abar__winograd_runs rows_of(const abar__winograd *w, const side *s, int lanes, int64_t image, range tiles)
{
    int64_t first = tiles.begin / w->tiles_w * ABAR_WINOGRAD_TILE - s->before, line = s->width * lanes;
    int64_t end = (tiles.end - 1) / w->tiles_w * ABAR_WINOGRAD_TILE - s->before + s->rows;
    if (first < 0) first = 0;
    if (end > s->height) end = s->height;
    return (abar__winograd_runs){s->memory + (image * s->blocks * s->height + first) * line, s->blocks,
                                 end > first ? (end - first) * line : 0, s->height * line};
}

/* Adds what a chunk covers. */
static void look_ahead(const abar__winograd *w, const side *s, int lanes, range chunk, abar__winograd_ahead *out)
{
    const int64_t per_image = w->tiles_h * w->tiles_w, plane = s->blocks * s->height * s->width * lanes;
    while (chunk.begin < chunk.end) {
        const int64_t image = chunk.begin / per_image, begin = image * per_image, images = (chunk.end - begin) / per_image;
        const bool whole = chunk.begin == begin && images > 0;
        const int64_t end = begin + (whole ? images : 1) * per_image, until = end < chunk.end ? end : chunk.end;
        out->part[out->n++] = whole ? (abar__winograd_runs){s->memory + image * plane, 1, images * plane, 0}
                                    : rows_of(w, s, lanes, image, (range){chunk.begin - begin, until - begin});
        chunk.begin = until;
    }
}

/* The memory of this thread: V, M (or Z), sums. */
static float *own_scratch(const abar__op *op, float *scratch)
{
    const conv *c = op->priv;
    return scratch + c->u + omp_get_thread_num() * c->own;
}

static void transform_weights(const abar__op *op, const abar__winograd *w, const abar__winograd_taps *taps, const float *g,
                              float *u)
{
    const abar__winograd_kernels *k = ((const conv *)op->priv)->kernels;
    const range channels = share(w->in_blocks * k->lanes);
    for (int64_t i = channels.begin; i < channels.end; i++) k->kernels(w, taps, g, i, u);
}

/* The moments of the output that this thread's tiles have. */
static abar__norm_moments *own_moments(const conv *c, float *scratch, int thread)
{
    return (abar__norm_moments *)(scratch + c->u + thread * c->own + c->sums);
}

/* The tiles of this thread from `first` on, as many as a chunk has. The next chunk of the source is prefetched. */
static void convolve_chunk(const abar__op *op, const abar__winograd *w, const float *bias, const float *src, float *dst,
                           float *scratch, int64_t first, abar__norm_moments *moments)
{
    const conv *c = op->priv;
    const abar__winograd_kernels *k = c->kernels;
    const range tiles = tiles_of(op, w), chunk = chunk_at(w, tiles, first);
    const side from = source_side(w, src), to = output_side(w, dst);
    const bool relu = w == &c->forward && op->desc.activation == ABAR_ACT_RELU;
    float *v = own_scratch(op, scratch), *m = v + c->m;
    abar__winograd_ahead ahead = {.n = 0};
    look_ahead(w, &from, k->lanes, chunk_at(w, tiles, chunk.end), &ahead);
    look_ahead(w, &to, k->lanes, chunk, &ahead);
    k->source(w, src, first, chunk.end - first, v);
    k->multiply(w, scratch, v, chunk.end - first, m, &ahead);
    k->output(w, m, bias, relu, first, chunk.end - first, dst, moments);
}

/* Adds up the moments of all threads, always in the same order. */
static void join_moments(const abar__op *op, const abar__op_args *a)
{
    const conv *c = op->priv;
    const int threads = omp_get_num_threads();
    const range channels = share(c->forward.outputs);
    abar__norm_moments *to = a->moments;
    for (int64_t i = channels.begin; i < channels.end; i++) {
        to[i] = own_moments(c, a->scratch, 0)[i];
        for (int t = 1; t < threads; t++) {
            to[i].sum += own_moments(c, a->scratch, t)[i].sum;
            to[i].square += own_moments(c, a->scratch, t)[i].square;
        }
    }
}

static void output_tiles(const abar__op *op, const abar__op_args *a)
{
    const conv *c = op->priv;
    const abar__winograd *w = &c->forward;
    const range tiles = tiles_of(op, w);
    const bool wanted = a->moments && a->run->training;
    abar__norm_moments *moments = wanted ? own_moments(c, a->scratch, omp_get_thread_num()) : NULL;
    if (wanted) memset(moments, 0, (size_t)(w->out_blocks * c->kernels->lanes) * sizeof *moments);
    transform_weights(op, w, &c->taps, a->param[0], a->scratch);
#pragma omp barrier
    for (int64_t first = tiles.begin; first < tiles.end; first += w->chunk)
        convolve_chunk(op, w, op->desc.bias ? a->param[1] : NULL, a->x[0], a->y, a->scratch, first, moments);
    if (!wanted) return;
#pragma omp barrier
    join_moments(op, a);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
#pragma omp parallel num_threads(op->dev->threads)
    output_tiles(op, a);
    return ABAR_OK;
}

/* Adds a chunk to this thread's sums. The next chunk of x is prefetched, and that of dy where nobody else does. */
static void correlate_chunk(const abar__op *op, const abar__op_args *a, int64_t first)
{
    const conv *c = op->priv;
    const abar__winograd *w = &c->forward;
    const abar__winograd_kernels *k = c->kernels;
    const range tiles = tiles_of(op, w), chunk = chunk_at(w, tiles, first), next = chunk_at(w, tiles, chunk.end);
    const side from = source_side(w, a->x[0]), with = output_side(w, a->dy);
    float *v = own_scratch(op, a->scratch), *z = v + c->m;
    abar__winograd_ahead ahead = {.n = 0};
    look_ahead(w, &from, k->lanes, next, &ahead);
    if (!op->desc.need_dx[0]) look_ahead(w, &with, k->lanes, next, &ahead);
    k->source(w, a->x[0], first, chunk.end - first, v);
    k->gradient(w, a->dy, first, chunk.end - first, z);
    k->correlate(w, v, z, chunk.end - first, v + c->sums, v + c->bias, &ahead);
}

/* The gradients of the weights and the bias from the sums of all threads. */
static void collect(const abar__op *op, const abar__op_args *a)
{
    const conv *c = op->priv;
    const abar__winograd *w = &c->forward;
    const int threads = omp_get_num_threads();
    const range channels = share(w->inputs), outputs = share(op->desc.bias ? w->outputs : 0);
    const float *all = (float *)a->scratch + c->u;
    for (int64_t i = channels.begin; i < channels.end; i++)
        c->kernels->collect(w, &c->taps, all + c->sums, c->own, threads, i, a->accumulate, a->dparam[0]);
    float *db = a->dparam[1];
    for (int64_t o = outputs.begin; o < outputs.end; o++) {
        float sum = a->accumulate ? db[o] : 0.0f;
        for (int t = 0; t < threads; t++) sum += all[t * c->own + c->bias + o];
        db[o] = sum;
    }
}

/* Both gradients of a chunk, one after the other: dy is then read from memory once. With other padding than 1 their tiles do
 * not have the same pixels, and one has more of them. */
static void gradients(const abar__op *op, const abar__op_args *a)
{
    const conv *c = op->priv;
    const bool dx = op->desc.need_dx[0];
    const range there = tiles_of(op, &c->forward), back = tiles_of(op, &c->back);
    float *sums = own_scratch(op, a->scratch) + c->sums;
    memset(sums, 0, (size_t)(c->own - c->sums) * sizeof *sums);
    if (dx) transform_weights(op, &c->back, &c->back_taps, a->param[0], a->scratch);
#pragma omp barrier
    for (int64_t done = 0; there.begin + done < there.end || (dx && back.begin + done < back.end); done += c->forward.chunk) {
        if (there.begin + done < there.end) correlate_chunk(op, a, there.begin + done);
        if (dx && back.begin + done < back.end)
            convolve_chunk(op, &c->back, NULL, a->dy, a->dx[0], a->scratch, back.begin + done, NULL);
    }
#pragma omp barrier
    collect(op, a);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    abar__relu_gradient(op, a);
#pragma omp parallel num_threads(op->dev->threads)
    gradients(op, a);
    return ABAR_OK;
}

const abar__op_impl abar__cpu_conv_winograd = {"winograd-conv", ABAR_OP_CONV2D, create, forward, backward, NULL};
