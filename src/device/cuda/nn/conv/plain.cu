/* Convolution for every window, stride, padding, dilation and number of groups, in float32 arithmetic: the last resort. A
 * linear layer is a convolution of images with a single pixel.
 *
 * Forward and both gradients are matrix products whose left or right factor is read through the window (no patches are built
 * in memory), for each group of cg input and og output channels, with K = (kh, kw, cg) the columns of the weight:
 *     y  (N P Q, og) = patches of x (N P Q, K) w^T
 *     dx (N H W, cg) = patches of dz (N H W, (kh, kw, og)) w
 *     dw (og, K)     = dz^T (og, N P Q) patches of x
 * A block computes a tile of 64 x 64 in steps of 16 in shared memory; a thread 4 x 4 of it. The gradient of the weight is
 * summed over slices of the pixels, which are added in order. */
#include "device/cuda/nn/activation.h"
#include "device/cuda/nn/bias_relu.h"

#include <limits.h>

enum { TILE = 64, STEP = 16, THREADS = 256, PART = 4, LOADS = TILE * STEP / THREADS };
enum { SLICE_PIXELS = 256, MAX_SLICE_BYTES = 64 << 20 };

typedef struct geometry {
    int images, h, w, c; /* x: (N, H, W, C) */
    int p, q, o;         /* y: (N, P, Q, O) */
    int kernel[2], stride[2], pad[2], dilation[2];
    int groups, cg, og; /* channels of a group */
    int taps;
} geometry;

typedef struct plain {
    geometry g;
    int64_t slices, slice_pixels; /* of the gradient of the weight */
    size_t partials;              /* bytes of scratch for them; those of the bias follow */
} plain;

/* ---- on the device ---------------------------------------------------------------------------------------------- */

typedef float side[TILE + 4]; /* a row of (STEP, TILE); 4 more avoid bank conflicts and keep rows 16-byte aligned */

/* The tile and group of this block; tiles of columns vary fastest, so that neighbours share their rows. */
typedef struct place {
    int group, row, column; /* of the tile's corner */
} place;

__device__ static inline place place_of(int rows, int columns)
{
    const int across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
    const int tile = (int)blockIdx.x / across;
    return {tile / down, tile % down * TILE, (int)blockIdx.x % across * TILE};
}

/* sum (4, 4) += the thread's rows of a times its columns of b, over one step. */
__device__ static inline void multiply(const side *a, const side *b, float sum[PART][PART])
{
    const int row = (int)threadIdx.x / (TILE / PART) * PART, column = (int)threadIdx.x % (TILE / PART) * PART;
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        const float4 u = *reinterpret_cast<const float4 *>(&a[k][row]), v = *reinterpret_cast<const float4 *>(&b[k][column]);
        const float left[PART] = {u.x, u.y, u.z, u.w}, right[PART] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < PART; i++)
#pragma unroll
            for (int j = 0; j < PART; j++) sum[i][j] += left[i] * right[j];
    }
}

/* A pixel where a window begins, and one column of the window. */
typedef struct corner {
    int64_t image; /* offset of the image's first pixel, first channel of the group; -1: no such pixel */
    int h, w;
} corner;

typedef struct tap {
    int h, w;    /* distance from the corner */
    int at;      /* kernel position */
    int channel; /* in the group; -1: no such column */
} tap;

__device__ static inline tap tap_of(const geometry &g, int k, int channels)
{
    if (k >= g.taps * channels) return {0, 0, 0, -1};
    const int at = k / channels;
    return {at / g.kernel[1] * g.dilation[0], at % g.kernel[1] * g.dilation[1], at, k % channels};
}

/* For output pixel (n, p, q): where its window begins in x. */
__device__ static inline corner corner_in_x(const geometry &g, int pixel, int group)
{
    if (pixel >= g.images * g.p * g.q) return {-1, 0, 0};
    const int row = pixel / g.q, n = row / g.p;
    return {(int64_t)n * g.h * g.w * g.c + group * g.cg, row % g.p * g.stride[0] - g.pad[0],
            pixel % g.q * g.stride[1] - g.pad[1]};
}

template <typename T> __device__ static inline float read_x(const geometry &g, const T *x, const corner &a, const tap &b)
{
    const int h = a.h + b.h, w = a.w + b.w;
    if (a.image < 0 || b.channel < 0 || h < 0 || h >= g.h || w < 0 || w >= g.w) return 0.0f;
    return load(x, a.image + ((int64_t)h * g.w + w) * g.c + b.channel);
}

/* For input pixel (n, h, w): its padded position, and where image n begins in dz. */
__device__ static inline corner corner_in_dz(const geometry &g, int pixel, int group)
{
    if (pixel >= g.images * g.h * g.w) return {-1, 0, 0};
    const int row = pixel / g.w, n = row / g.h;
    return {(int64_t)n * g.p * g.q * g.o + group * g.og, row % g.h + g.pad[0], pixel % g.w + g.pad[1]};
}

/* dz of the output pixel that reads input pixel a through tap b, 0 where there is none. */
template <typename T> __device__ static inline float read_dz(const geometry &g, const T *dz, const corner &a, const tap &b)
{
    const int h = a.h - b.h, w = a.w - b.w;
    if (a.image < 0 || b.channel < 0 || h < 0 || w < 0 || h % g.stride[0] || w % g.stride[1]) return 0.0f;
    const int p = h / g.stride[0], q = w / g.stride[1];
    if (p >= g.p || q >= g.q) return 0.0f;
    return load(dz, a.image + ((int64_t)p * g.q + q) * g.o + b.channel);
}

/* Rows: output pixels; columns: output channels of the group. Neighbouring threads load neighbouring k. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, 2)
    make_y(geometry g, const T *x, const T *weight, const float *bias, bool relu, T *y)
{
    __shared__ __align__(16) side a[STEP], b[STEP];
    const int pixels = g.images * g.p * g.q, depth = g.taps * g.cg, t = (int)threadIdx.x, dk = t % STEP, dr = t / STEP;
    const place at = place_of(pixels, g.og);
    float sum[PART][PART] = {};
    corner row[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) row[i] = corner_in_x(g, at.row + dr + i * (TILE / LOADS), at.group);
    for (int k0 = 0; k0 < depth; k0 += STEP) {
        const tap column = tap_of(g, k0 + dk, g.cg);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int r = dr + i * (TILE / LOADS), o = at.column + r;
            a[dk][r] = read_x(g, x, row[i], column);
            b[dk][r] = o < g.og && k0 + dk < depth ? load(weight, ((int64_t)at.group * g.og + o) * depth + k0 + dk) : 0.0f;
        }
        __syncthreads();
        multiply(a, b, sum);
        __syncthreads();
    }
    const int64_t first = at.row + t / (TILE / PART) * PART;
    const int o0 = at.column + t % (TILE / PART) * PART;
    for (int i = 0; i < PART && first + i < pixels; i++)
        for (int j = 0; j < PART && o0 + j < g.og; j++) {
            const int o = at.group * g.og + o0 + j;
            const float z = sum[i][j] + (bias ? bias[o] : 0.0f);
            store(y, (first + i) * g.o + o, relu && z < 0.0f ? 0.0f : z);
        }
}

/* Rows: input pixels; columns: input channels of the group. dz is read along k, the weight along the columns. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, 2) make_dx(geometry g, const T *dz, const T *weight, T *dx)
{
    __shared__ __align__(16) side a[STEP], b[STEP];
    const int pixels = g.images * g.h * g.w, depth = g.taps * g.og, t = (int)threadIdx.x, dk = t % STEP, dr = t / STEP;
    const place at = place_of(pixels, g.cg);
    float sum[PART][PART] = {};
    corner row[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) row[i] = corner_in_dz(g, at.row + dr + i * (TILE / LOADS), at.group);
    for (int k0 = 0; k0 < depth; k0 += STEP) {
        const tap column = tap_of(g, k0 + dk, g.og);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            a[dk][dr + i * (TILE / LOADS)] = read_dz(g, dz, row[i], column);
            const int k = t / TILE + i * (STEP / LOADS), c = at.column + t % TILE;
            const tap from = tap_of(g, k0 + k, g.og);
            const int64_t o = (int64_t)at.group * g.og + from.channel;
            b[k][t % TILE] = from.channel >= 0 && c < g.cg ? load(weight, (o * g.taps + from.at) * g.cg + c) : 0.0f;
        }
        __syncthreads();
        multiply(a, b, sum);
        __syncthreads();
    }
    const int64_t first = at.row + t / (TILE / PART) * PART;
    const int c0 = at.column + t % (TILE / PART) * PART;
    for (int i = 0; i < PART && first + i < pixels; i++)
        for (int j = 0; j < PART && c0 + j < g.cg; j++) store(dx, (first + i) * g.c + at.group * g.cg + c0 + j, sum[i][j]);
}

/* Rows: output channels of the group; columns: those of the weight; k: the output pixels of slice blockIdx.y. Neighbouring
 * threads load neighbouring rows and columns. Writes (slices, O, K), or adds where add is set and there is one slice. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, 2)
    make_dw(geometry g, const T *x, const T *dz, float *dw, bool add, int64_t slice_pixels)
{
    __shared__ __align__(16) side a[STEP], b[STEP];
    const int64_t first = blockIdx.y * slice_pixels;
    const int pixels = g.images * g.p * g.q, width = g.taps * g.cg, t = (int)threadIdx.x, r = t % TILE;
    const int end = first + slice_pixels < pixels ? (int)(first + slice_pixels) : pixels;
    const place at = place_of(g.og, width);
    const tap column = tap_of(g, at.column + r, g.cg);
    const int o = at.row + r < g.og ? at.group * g.og + at.row + r : -1;
    float sum[PART][PART] = {};
    for (int k0 = (int)first; k0 < end; k0 += STEP) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int k = t / TILE + i * (STEP / LOADS), pixel = k0 + k;
            const bool inside = pixel < end;
            a[k][r] = inside && o >= 0 ? load(dz, (int64_t)pixel * g.o + o) : 0.0f;
            b[k][r] = inside ? read_x(g, x, corner_in_x(g, pixel, at.group), column) : 0.0f;
        }
        __syncthreads();
        multiply(a, b, sum);
        __syncthreads();
    }
    float *to = dw + (int64_t)blockIdx.y * g.o * width;
    const int o0 = at.row + t / (TILE / PART) * PART, c0 = at.column + t % (TILE / PART) * PART;
    for (int i = 0; i < PART && o0 + i < g.og; i++)
        for (int j = 0; j < PART && c0 + j < width; j++) {
            const int64_t e = (int64_t)(at.group * g.og + o0 + i) * width + c0 + j;
            to[e] = add ? to[e] + sum[i][j] : sum[i][j];
        }
}

/* ---- on the host ------------------------------------------------------------------------------------------------ */

/* A linear layer as a convolution of images with one pixel. */
static abar__op_desc as_convolution(const abar__op_desc *desc)
{
    abar__op_desc d = *desc;
    if (d.kind == ABAR_OP_CONV2D) return d;
    abar__shape *shapes[2] = {&d.in[0], &d.out};
    for (int i = 0; i < 2; i++) {
        const int64_t width = shapes[i]->dim[shapes[i]->ndim - 1];
        *shapes[i] = {4, {abar__shape_count(shapes[i]) / width, width, 1, 1}};
    }
    d.window = abar_window_unit();
    return d;
}

static geometry describe(const abar__op_desc *d)
{
    const int64_t *in = d->in[0].dim, *out = d->out.dim;
    const abar_window *w = &d->window;
    geometry g;
    g.images = (int)in[0], g.c = (int)in[1], g.h = (int)in[2], g.w = (int)in[3];
    g.o = (int)out[1], g.p = (int)out[2], g.q = (int)out[3];
    for (int i = 0; i < 2; i++) {
        g.kernel[i] = (int)w->kernel[i], g.stride[i] = (int)w->stride[i];
        g.pad[i] = (int)w->pad[i], g.dilation[i] = (int)w->dilation[i];
    }
    g.groups = (int)w->groups, g.cg = g.c / g.groups, g.og = g.o / g.groups;
    g.taps = g.kernel[0] * g.kernel[1];
    return g;
}

/* Pixels and columns must fit into int, including a tile and the padding beyond the last. */
static bool fits(const abar__op_desc *d)
{
    const int64_t *in = d->in[0].dim, *out = d->out.dim, most = INT_MAX / 2;
    const abar_window *w = &d->window;
    for (int i = 0; i < 2; i++)
        if (in[2 + i] + 2 * w->pad[i] + w->kernel[i] * w->dilation[i] + w->stride[i] > most) return false;
    const int64_t taps = w->kernel[0] * w->kernel[1];
    return in[0] * in[2] * in[3] <= most && out[0] * out[2] * out[3] <= most && taps * in[1] <= most && taps * out[1] <= most;
}

static int64_t tiles(const geometry *g, int64_t rows, int64_t columns)
{
    return g->groups * abar__cuda_blocks(rows, TILE) * abar__cuda_blocks(columns, TILE);
}

/* Enough slices to fill the device, each with enough pixels for a block. */
static void cut_pixels(const abar_device *dev, plain *c)
{
    const geometry *g = &c->g;
    const int64_t pixels = (int64_t)g->images * g->p * g->q, weights = (int64_t)g->o * g->taps * g->cg;
    int64_t wanted = abar__cuda_blocks(4 * abar__cuda_of(dev)->processors, tiles(g, g->og, (int64_t)g->taps * g->cg));
    const int64_t worth = abar__cuda_blocks(pixels, SLICE_PIXELS), limit = MAX_SLICE_BYTES / (weights * (int64_t)sizeof(float));
    if (wanted > worth) wanted = worth;
    if (wanted > limit) wanted = limit;
    if (wanted < 1) wanted = 1;
    c->slice_pixels = abar__cuda_blocks(pixels, wanted);
    c->slices = abar__cuda_blocks(pixels, c->slice_pixels);
    c->partials = c->slices > 1 ? abar__round_up((size_t)(c->slices * weights) * sizeof(float), ABAR_ALIGN) : 0;
}

/* A linear layer's GELU is a pass over its z, which is saved. */
static bool ends_in_gelu(const abar__op_desc *d)
{
    return d->kind == ABAR_OP_LINEAR && (d->activation == ABAR_ACT_GELU_ERF || d->activation == ABAR_ACT_GELU_TANH);
}

static abar_status create(abar__op *op)
{
    const abar__op_desc d = as_convolution(&op->desc);
    const bool relu = d.activation == ABAR_ACT_RELU, gelu = ends_in_gelu(&op->desc);
    if ((!relu && !gelu && d.activation != ABAR_ACT_NONE) || !fits(&d)) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof(plain), &op->priv));
    op->priv_bytes = sizeof(plain);
    plain *c = (plain *)op->priv;
    c->g = describe(&d);
    cut_pixels(op->dev, c);
    op->in_layout[0] = op->out_layout = abar__cuda_layout(&op->desc.out);
    op->backward_needs = ABAR_NEEDS_X | (relu ? (unsigned)ABAR_NEEDS_Y : 0u);
    op->saved_bytes = gelu ? abar__shape_bytes(op->dev, &op->desc.out, op->out_layout) : 0;
    const int64_t pixels = d.out.dim[0] * d.out.dim[2] * d.out.dim[3];
    op->scratch_bytes = c->partials + (d.bias ? abar__cuda_bias_partials(op->dev, pixels, d.out.dim[1]) : 0);
    return ABAR_OK;
}

template <typename T> static void run_forward(abar__op *op, const abar__op_args *a, const T *weight)
{
    const geometry *g = &((plain *)op->priv)->g;
    const float *bias = op->desc.bias ? (const float *)a->param[1] : NULL;
    const dim3 blocks((unsigned)tiles(g, (int64_t)g->images * g->p * g->q, g->og));
    abar__cuda_launch(op->dev, make_y<T>, blocks, THREADS, 0, *g, (const T *)a->x[0], weight, bias,
                      op->desc.activation == ABAR_ACT_RELU, (T *)(ends_in_gelu(&op->desc) ? a->saved : a->y));
    if (ends_in_gelu(&op->desc))
        abar__cuda_activate(op->dev, op->desc.activation, a->saved, a->y, abar__shape_count(&op->desc.out));
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        run_forward(op, a, (const bf16 *)a->shadow[0]);
    else
        run_forward(op, a, (const float *)a->param[0]);
    return abar__cuda_status(op->dev);
}

template <typename T> static void run_backward(abar__op *op, const abar__op_args *a, const T *weight)
{
    const plain *c = (plain *)op->priv;
    const geometry *g = &c->g;
    const int64_t pixels = (int64_t)g->images * g->p * g->q, width = (int64_t)g->taps * g->cg;
    float *dw = (float *)a->dparam[0], *partials = c->slices > 1 ? (float *)a->scratch : dw;
    const abar__activation kind = a->dz_given ? ABAR_ACT_NONE : op->desc.activation;
    abar__cuda_activation_gradient(op->dev, kind, a->dy, ends_in_gelu(&op->desc) ? a->saved : a->y,
                                   op->desc.bias ? (float *)a->dparam[1] : NULL, a->accumulate, pixels, g->o,
                                   (float *)((char *)a->scratch + c->partials));
    const dim3 blocks((unsigned)tiles(g, g->og, width), (unsigned)c->slices);
    abar__cuda_launch(op->dev, make_dw<T>, blocks, THREADS, 0, *g, (const T *)a->x[0], (const T *)a->dy, partials,
                      a->accumulate && c->slices == 1, c->slice_pixels);
    if (c->slices > 1) abar__cuda_join_slices(op->dev, partials, c->slices, g->o * width, dw, a->accumulate);
    if (!op->desc.need_dx[0]) return;
    const dim3 input((unsigned)tiles(g, (int64_t)g->images * g->h * g->w, g->cg));
    abar__cuda_launch(op->dev, make_dx<T>, input, THREADS, 0, *g, (const T *)a->dy, weight, (T *)a->dx[0]);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        run_backward(op, a, (const bf16 *)a->shadow[0]);
    else
        run_backward(op, a, (const float *)a->param[0]);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_conv_plain = {"cuda-conv-plain", ABAR_OP_CONV2D, create, forward, backward, NULL};
const abar__op_impl abar__cuda_linear_plain = {"cuda-linear-plain", ABAR_OP_LINEAR, create, forward, backward, NULL};
