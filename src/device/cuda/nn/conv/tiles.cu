/* Convolutions of few channels with kernels of our own: bf16 on tensor cores, 16 to 64 channels, windows 3x3 and 1x1 of
 * stride 1 and 2, and a network's first layer. Tensors of such layers stay in the L2 cache and there is little arithmetic,
 * so the goals are to load every number about once and to fill the device with one wave of blocks. */
#include "device/cuda/nn/bias_relu.h"
#include "device/cuda/nn/conv/tiles.h"
#include "device/cuda/nn/cuda_nn.h"

enum {
    LONGEST = 1000,   /* largest side of an image: quotient() is exact for the positions of a tile, 512 or one row */
    PART_TILES = 512, /* at most, where a batch norm gets moments or sums from here: its blocks read those of all tiles */
};

typedef struct launch_shape {
    dim3 blocks;
    int threads, shared;
} launch_shape;

typedef struct conv_tiles {
    conv_product forward, dx; /* pointers are set for each run */
    conv_slope slope;
    conv_product_choice forward_choice, dx_choice; /* dx: kernel NULL where not wanted */
    conv_slope_kernel slope_kernel;
    launch_shape forward_shape, dx_shape, slope_shape;
    int taps;
} conv_tiles;

static int ceil_div(int a, int b) { return (a + b - 1) / b; }
static int max_of(int a, int b) { return a > b ? a : b; }
static int min_of(int a, int b) { return a < b ? a : b; }

/* ---- making ----------------------------------------------------------------------------------------------------- */

/* The sizes of a layer, in int: create refuses larger ones. few: up to 8 input channels, the first layer. */
typedef struct layer {
    int n, c, h, w, o, p, q, k, s, pad;
    bool few, need_dx;
} layer;

static bool describe(const abar__op *op, layer *l)
{
    const abar__op_desc *d = &op->desc;
    const abar_window *v = &d->window;
    if (!abar__cuda_is_bf16(op->dev) || d->in[0].ndim != 4 || v->groups != 1) return false;
    if (d->activation != ABAR_ACT_NONE && d->activation != ABAR_ACT_RELU) return false;
    for (int i = 0; i < 2; i++)
        if (v->kernel[i] != v->kernel[0] || v->stride[i] != v->stride[0] || v->pad[i] != v->kernel[0] / 2 ||
            v->dilation[i] != 1)
            return false;
    if (abar__shape_count(&d->in[0]) > INT32_MAX || abar__shape_count(&d->out) > INT32_MAX) return false;
    *l = {(int)d->in[0].dim[0], (int)d->in[0].dim[1], (int)d->in[0].dim[2], (int)d->in[0].dim[3],
          (int)d->out.dim[1],   (int)d->out.dim[2],   (int)d->out.dim[3],   (int)v->kernel[0],
          (int)v->stride[0],    (int)v->pad[0],       d->in[0].dim[1] <= 8, d->need_dx[0]};
    if (l->o % 16 || l->o > 64 || l->h > LONGEST || l->w > LONGEST) return false;
    if (l->few) return (l->k == 3 || l->k == 5) && l->s == 1 && !l->need_dx;
    return l->c % 16 == 0 && l->c <= 64 && (l->k == 1 || l->k == 3) && (l->s == 1 || l->s == 2);
}

static unsigned quotient_part(int d) { return (unsigned)ceil_div(1 << 20, d); }

static conv_band band_of(int images, int height, int width, int channels, int rows, int columns, int pad, int chunks, int pitch)
{
    conv_band b = {};
    b.images = images, b.height = height, b.width = width, b.channels = channels;
    b.rows = rows, b.columns = columns, b.pad = pad;
    b.chunks = chunks, b.pitch = pitch;
    b.chunks_part = quotient_part(chunks);
    b.columns_part = quotient_part(columns);
    return b;
}

/* Tiles of about so many positions: whole images, or equal bands of one. */
static void band_cut(conv_band *b, int window, int stride, int positions)
{
    const int image = b->rows * b->columns;
    b->group = image <= positions ? min_of(b->images, positions / image) : 1;
    b->take = image <= positions ? b->rows : max_of(1, positions / b->columns);
    b->bands = ceil_div(b->rows, b->take);
    b->take = ceil_div(b->rows, b->bands);
    b->tiles = ceil_div(b->images, b->group) * b->bands;
    b->high = (b->take - 1) * stride + window;
    b->wide = (b->columns - 1) * stride + window;
    b->take_part = quotient_part(b->take);
    b->high_part = quotient_part(b->high);
}

static int band_count(const conv_band *b) { return b->group * b->take * b->columns; }
static int64_t band_bytes(const conv_band *b) { return (int64_t)b->group * b->high * b->wide * b->pitch; }
static int64_t slope_bytes(const conv_band *b, int dz_pitch) { return (int64_t)ceil_div(band_count(b), 16) * 16 * dz_pitch; }

/* The largest tiles, between most and least positions, that give every processor a block, with `across` blocks per tile.
 * They must fit into `limit` bytes of shared memory, together with dz_pitch bytes for every position. */
static bool band_plan(const abar__cuda *cuda, conv_band *b, int window, int stride, int most, int least, int across,
                      int64_t limit, int dz_pitch)
{
    for (int positions = most; positions >= 16; positions /= 2) {
        band_cut(b, window, stride, positions);
        if (band_bytes(b) + slope_bytes(b, dz_pitch) > limit) continue;
        if (positions <= least || (int64_t)b->tiles * across * 4 >= cuda->processors * 3) return true;
    }
    return false;
}

/* For y or dx: the band is described already, its tiles are not. */
static bool product_plan(const abar__cuda *cuda, const layer *l, enum conv_way way, conv_product *p,
                         conv_product_choice *chosen, launch_shape *shape)
{
    const bool forward = way == CONV_FORWARD, halves = !forward && l->s == 2;
    p->inputs = l->c, p->outputs = l->o;
    p->result_height = forward ? l->p : l->h;
    p->result_width = forward ? l->q : l->w;
    p->result_channels = forward ? l->o : l->c;
    const int tiles = p->result_channels % 32 ? 2 : 4, across = p->result_channels / (8 * tiles), taps = l->k * l->k;
    const conv_product_choice choice = abar__conv_product_pick(way, l->k, l->s, tiles, l->few);
    if (!choice.kernel) return false;
    p->weight_pitch = 16 + 16 * (l->few ? (taps + 1) / 2 * 2 : forward ? taps * l->c / 8 : taps * tiles);
    p->weight_bytes = p->weight_pitch * (forward ? 8 * tiles : l->o);
    const int window = halves ? (l->k + 1) / 2 : l->k, stride = forward ? l->s : 1;
    const int lots = ceil_div(LONGEST, choice.positions); /* of a tile, at most */
    if (!band_plan(cuda, &p->band, window, stride, 8 * choice.positions, 2 * choice.positions, across,
                   (int64_t)cuda->shared_memory - p->weight_bytes - lots * choice.lot_bytes - choice.channel_bytes, 0))
        return false;
    *chosen = choice;
    shape->blocks = dim3((unsigned)p->band.tiles, (unsigned)across);
    shape->threads = 32 * max_of(4, min_of(8, ceil_div(band_count(&p->band), choice.positions)));
    p->moments_at = p->weight_bytes + (int)band_bytes(&p->band);
    shape->shared = p->moments_at + choice.channel_bytes + ceil_div(band_count(&p->band), choice.positions) * choice.lot_bytes;
    return true;
}

static bool slope_plan(const abar__cuda *cuda, const layer *l, conv_slope *p, conv_slope_kernel *kernel, launch_shape *shape)
{
    const int outputs = l->o % 32 ? 1 : 2, inputs = l->few ? 1 : 2;
    const int output_blocks = l->o / (16 * outputs), input_blocks = l->few ? 1 : l->c / 16,
              across = output_blocks * input_blocks;
    const conv_slope_choice choice = abar__conv_slope_pick(l->k, l->s, outputs, l->few);
    p->inputs = l->c, p->outputs = l->o;
    p->x = band_of(l->n, l->h, l->w, l->c, l->p, l->q, l->pad, inputs, l->few ? 16 : 16 * inputs + 16);
    p->dz = band_of(l->n, l->p, l->q, l->o, l->p, l->q, 0, 2 * outputs, 32 * outputs + 16);
    if (!band_plan(cuda, &p->x, l->k, l->s, 256, 64, across, (int64_t)cuda->shared_memory / 2 - 16, p->dz.pitch)) return false;
    p->dz.group = p->x.group, p->dz.take = p->x.take, p->dz.bands = p->x.bands, p->dz.tiles = p->x.tiles;
    p->dz.high = p->x.take, p->dz.wide = l->q;
    p->dz.high_part = p->dz.take_part = p->x.take_part;
    p->dz_offset = (int)band_bytes(&p->x);
    p->stage_bytes = p->dz_offset + (int)slope_bytes(&p->x, p->dz.pitch);
    const int most = max_of(1, cuda->processors / across), rounds = ceil_div(p->x.tiles, most);
    *kernel = choice.kernel;
    shape->blocks = dim3((unsigned)ceil_div(p->x.tiles, rounds), (unsigned)input_blocks, (unsigned)output_blocks);
    shape->threads = choice.threads;
    shape->shared = max_of(choice.reduce_bytes, p->stage_bytes * (rounds > 1 ? 2 : 1));
    return true;
}

static bool plan(const abar__cuda *cuda, const layer *l, conv_tiles *t)
{
    t->taps = l->k * l->k;
    const int pitch = l->few ? 16 : 2 * l->c + 16;
    t->forward.band = band_of(l->n, l->h, l->w, l->c, l->p, l->q, l->pad, l->few ? 1 : l->c / 8, pitch);
    if (!product_plan(cuda, l, CONV_FORWARD, &t->forward, &t->forward_choice, &t->forward_shape)) return false;
    if (l->need_dx) { /* dz under the pixels of dx, or under every second one: the window then begins at that pixel */
        const int rows = l->s == 2 ? ceil_div(l->h, 2) : l->h, columns = l->s == 2 ? ceil_div(l->w, 2) : l->w;
        t->dx.band = band_of(l->n, l->p, l->q, l->o, rows, columns, l->s == 2 ? 0 : l->pad, l->o / 8, 2 * l->o + 16);
        if (!product_plan(cuda, l, CONV_DX, &t->dx, &t->dx_choice, &t->dx_shape)) return false;
    }
    return slope_plan(cuda, l, &t->slope, &t->slope_kernel, &t->slope_shape);
}

static cudaError_t allow_shared(const void *kernel, const abar__cuda *cuda)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)cuda->shared_memory);
}

static size_t partials_bytes(const conv_tiles *t)
{
    const int64_t weights = (int64_t)t->slope.outputs * t->taps * t->slope.inputs;
    return abar__round_up((size_t)(t->slope_shape.blocks.x * weights) * sizeof(float), 256);
}

static abar_status create(abar__op *op)
{
    const abar__cuda *cuda = abar__cuda_of(op->dev);
    layer l;
    conv_tiles t = {};
    if (!describe(op, &l) || !plan(cuda, &l, &t)) return ABAR_E_UNSUPPORTED;
    CUDA_TRY(op->dev, allow_shared((const void *)t.forward_choice.kernel, cuda));
    if (l.need_dx) {
        CUDA_TRY(op->dev, allow_shared((const void *)t.dx_choice.kernel, cuda));
        CUDA_TRY(op->dev, allow_shared((const void *)t.dx_choice.norm_kernel, cuda));
    }
    CUDA_TRY(op->dev, allow_shared((const void *)t.slope_kernel, cuda));
    t.forward.relu = op->desc.activation == ABAR_ACT_RELU;
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof t, &op->priv));
    op->priv_bytes = sizeof t;
    *(conv_tiles *)op->priv = t;
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_NHWC;
    op->backward_needs = ABAR_NEEDS_X | (t.forward.relu ? (unsigned)ABAR_NEEDS_Y : 0u);
    op->can_be_late = l.need_dx;
    if (t.forward.band.tiles <= PART_TILES) op->moment_parts = t.forward.band.tiles;
    if (l.need_dx && t.dx.band.tiles <= PART_TILES) op->sum_parts = t.dx.band.tiles;
    op->scratch_bytes = partials_bytes(&t);
    if (op->desc.bias) op->scratch_bytes += abar__cuda_bias_partials(op->dev, (int64_t)l.n * l.p * l.q, l.o);
    return ABAR_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    const conv_tiles *t = (const conv_tiles *)op->priv;
    conv_product p = t->forward;
    p.source = (const bf16 *)a->x[0];
    p.weight = (const bf16 *)a->shadow[0];
    p.bias = op->desc.bias ? (const float *)a->param[1] : NULL;
    p.result = (bf16 *)a->y;
    p.moments = a->run->training ? (float2 *)a->moments : NULL;
    abar__cuda_launch_chained(op->dev, t->forward_choice.kernel, t->forward_shape.blocks,
                              dim3((unsigned)t->forward_shape.threads), (size_t)t->forward_shape.shared, p);
    return abar__cuda_status(op->dev);
}

static void run_dx(abar__op *op, const abar__op_args *a)
{
    const conv_tiles *t = (const conv_tiles *)op->priv;
    conv_product p = t->dx;
    p.source = (const bf16 *)a->dy;
    p.weight = (const bf16 *)a->shadow[0];
    p.result = (bf16 *)a->dx[0];
    if (const abar__norm_before *n = a->norm)
        p.norm = {(const bf16 *)n->x,
                  (const bf16 *)n->y,
                  (const bf16 *)n->other,
                  (const float *)n->scale,
                  (const float *)n->shift,
                  (const float *)n->saved,
                  (float2 *)n->sums,
                  n->relu,
                  n->residual};
    abar__cuda_launch_chained(op->dev, a->norm ? t->dx_choice.norm_kernel : t->dx_choice.kernel, t->dx_shape.blocks,
                              dim3((unsigned)t->dx_shape.threads), (size_t)t->dx_shape.shared, p);
}

static void run_slope(abar__op *op, const abar__op_args *a)
{
    const conv_tiles *t = (const conv_tiles *)op->priv;
    conv_slope p = t->slope;
    p.x_data = (const bf16 *)a->x[0];
    p.dz_data = (const bf16 *)a->dy;
    p.partials = (float *)a->scratch;
    const int count = p.outputs * t->taps * p.inputs;
    abar__cuda_launch(op->dev, t->slope_kernel, t->slope_shape.blocks, dim3((unsigned)t->slope_shape.threads),
                      (size_t)t->slope_shape.shared, p);
    abar__cuda_launch_chained(op->dev, abar__conv_join, dim3((unsigned)ceil_div(count, 32)), dim3(32, 8), 0, p.partials,
                              (float *)a->dparam[0], count, (int)t->slope_shape.blocks.x, a->accumulate);
}

/* dw runs in the side stream while dx runs in the main one, and later operations where the caller waits for it. */
static abar_status run_both(abar__op *op, const abar__op_args *a)
{
    abar__cuda *cuda = abar__cuda_of(op->dev);
    const cudaStream_t main_stream = cuda->stream;
    CUDA_TRY(op->dev, cudaEventRecord(cuda->fork, main_stream));
    CUDA_TRY(op->dev, cudaStreamWaitEvent(cuda->side_stream, cuda->fork, 0));
    cuda->stream = cuda->side_stream;
    run_slope(op, a);
    cuda->stream = main_stream;
    run_dx(op, a);
    if (a->late) return ABAR_OK;
    CUDA_TRY(op->dev, cudaEventRecord(cuda->join, cuda->side_stream));
    CUDA_TRY(op->dev, cudaStreamWaitEvent(main_stream, cuda->join, 0));
    return ABAR_OK;
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    const conv_tiles *t = (const conv_tiles *)op->priv;
    const int64_t rows = abar__shape_count(&op->desc.out) / t->slope.outputs;
    abar__cuda_bias_relu_gradient(op->dev, a->dy, t->forward.relu ? a->y : NULL, op->desc.bias ? (float *)a->dparam[1] : NULL,
                                  a->accumulate, rows, t->slope.outputs, (float *)((char *)a->scratch + partials_bytes(t)));
    if (a->dx[0])
        ABAR_TRY(run_both(op, a));
    else
        run_slope(op, a);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_conv_tiles = {"cuda-conv-tiles", ABAR_OP_CONV2D, create, forward, backward, NULL};
