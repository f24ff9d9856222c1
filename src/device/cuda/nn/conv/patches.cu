/* Convolution whose kernel equals its stride, without padding (the patch embeddings of ViT and Swin): no pixel is read
 * twice, so an image is cut into rows, one per patch, and the rest is a linear layer.
 *     y (N P Q, O) = act(rows (N P Q, K) w^T + b)    w: (O, kh, kw, C) = (O, K) in memory
 * With channels last a patch is kh runs of kw C neighbours. The gradient of the input is copied back; pixels beyond the last
 * whole patch have none. The rows are kept for the gradient of the weight: they are no larger than x, and small compared to
 * what the following layers keep. */
#include "device/cuda/nn/cuda_nn_handles.h"

#include <limits.h>

/* Lengths are counted in units: the largest number of bytes, 2 to 16, that divides a run and a line, so that all of them are
 * aligned. */
typedef struct geometry {
    int p, q;  /* patches of an image: rows, columns */
    int h, kh; /* lines of an image, of a patch */
    int line;  /* W C */
    int run;   /* kw C */
    int patch; /* kh kw C */
} geometry;

typedef struct patches {
    abar__op product; /* LINEAR: (N P Q, K) -> (N P Q, O) */
    geometry g;
    size_t unit;     /* bytes */
    size_t row_grad; /* bytes of the rows' gradient, before the product's scratch; 0: not wanted */
} patches;

/* ---- on the device ---------------------------------------------------------------------------------------------- */

/* x (N, h, line) -> rows (N, p, q, kh, run). blockIdx.x is a row of patches of an image; a thread owns every gridDim.y-th unit
 * of it, in the order of rows. */
template <typename U> static __global__ void gather(geometry g, const U *__restrict__ x, U *__restrict__ rows)
{
    const int n = (int)blockIdx.x / g.p, p = (int)blockIdx.x % g.p, units = g.q * g.patch;
    x += ((int64_t)n * g.h + p * g.kh) * g.line;
    rows += (int64_t)blockIdx.x * units;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const int q = u / g.patch, k = u % g.patch;
        rows[u] = x[k / g.run * g.line + q * g.run + k % g.run];
    }
}

/* The inverse: rows -> x, 0 outside of the patches. blockIdx.x is the image; a thread owns every gridDim.y-th unit of it. */
template <typename U> static __global__ void scatter(geometry g, const U *__restrict__ rows, U *__restrict__ x)
{
    const int units = g.h * g.line;
    x += (int64_t)blockIdx.x * units;
    rows += (int64_t)blockIdx.x * g.p * g.q * g.patch;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const int h = u / g.line, at = u % g.line, p = h / g.kh, q = at / g.run;
        const bool inside = p < g.p && q < g.q;
        x[u] = inside ? rows[(p * g.q + q) * g.patch + h % g.kh * g.run + at % g.run] : U{};
    }
}

/* ---- making ----------------------------------------------------------------------------------------------------- */

static bool is_cut(const abar_window *w)
{
    for (int i = 0; i < 2; i++)
        if (w->kernel[i] != w->stride[i] || w->pad[i] != 0 || w->dilation[i] != 1) return false;
    return w->groups == 1 && w->kernel[0] * w->kernel[1] > 1;
}

/* Positions in an image must fit into int, including one step of the grid beyond the last. */
static bool fits(const abar__op_desc *d)
{
    const int64_t *in = d->in[0].dim;
    return in[1] * in[2] * in[3] <= INT_MAX / 2 && in[0] * in[2] <= INT_MAX;
}

static void describe(const abar__op *op, patches *c)
{
    const abar__op_desc *d = &op->desc;
    const int64_t *in = d->in[0].dim, *out = d->out.dim, *kernel = d->window.kernel;
    const size_t pixel = (size_t)in[1] * abar_dtype_size(op->dev->activation);
    const size_t line = (size_t)in[3] * pixel, run = (size_t)kernel[1] * pixel;
    for (c->unit = 16; line % c->unit || run % c->unit;) c->unit /= 2;
    geometry *g = &c->g;
    g->p = (int)out[2], g->q = (int)out[3];
    g->h = (int)in[2], g->kh = (int)kernel[0];
    g->line = (int)(line / c->unit), g->run = (int)(run / c->unit);
    g->patch = g->kh * g->run;
}

/* The linear layer on the rows. */
static abar_status make_product(const abar__op *op, abar__op *product)
{
    const abar__op_desc *d = &op->desc;
    const int64_t rows = d->out.dim[0] * d->out.dim[2] * d->out.dim[3], outputs = d->out.dim[1];
    product->dev = op->dev;
    product->impl = &abar__cuda_linear;
    product->desc.kind = ABAR_OP_LINEAR;
    product->desc.n_in = 1;
    product->desc.in[0] = {2, {rows, d->in[0].dim[1] * d->window.kernel[0] * d->window.kernel[1]}};
    product->desc.out = {2, {rows, outputs}};
    product->desc.need_dx[0] = d->need_dx[0];
    product->desc.bias = d->bias;
    product->desc.activation = d->activation;
    return abar__cuda_linear.create(product);
}

static abar_status create(abar__op *op)
{
    if (!is_cut(&op->desc.window) || !fits(&op->desc)) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof(patches), &op->priv));
    op->priv_bytes = sizeof(patches);
    patches *c = (patches *)op->priv;
    const abar_status status = make_product(op, &c->product);
    if (status < 0) {
        abar__free(op->dev->ctx, op->priv, op->priv_bytes);
        op->priv = NULL;
        return status;
    }
    describe(op, c);
    const size_t rows = abar__shape_bytes(op->dev, &c->product.desc.in[0], ABAR_LAYOUT_STRIDED);
    c->row_grad = op->desc.need_dx[0] ? abar__round_up(rows, ABAR_ALIGN) : 0;
    op->saved_bytes = rows;
    op->scratch_bytes = c->row_grad + c->product.scratch_bytes;
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_NHWC;
    op->backward_needs = c->product.backward_needs; /* x too: curvature observes it */
    return ABAR_OK;
}

static void destroy(abar__op *op)
{
    patches *c = (patches *)op->priv;
    abar__cuda_linear.destroy(&c->product);
    abar__free(op->dev->ctx, c->product.priv, c->product.priv_bytes);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

template <typename U> static void gather_as(const abar__op *op, const void *x, void *rows)
{
    const geometry *g = &((const patches *)op->priv)->g;
    const dim3 grid = abar__cuda_image_grid(op->desc.out.dim[0] * g->p, (int64_t)g->q * g->patch);
    abar__cuda_launch(op->dev, gather<U>, grid, dim3(ABAR_CUDA_THREADS), 0, *g, (const U *)x, (U *)rows);
}

static void gather_rows(const abar__op *op, const void *x, void *rows)
{
    switch (((const patches *)op->priv)->unit) {
    case 16: gather_as<uint4>(op, x, rows); break;
    case 8: gather_as<uint2>(op, x, rows); break;
    case 4: gather_as<uint32_t>(op, x, rows); break;
    default: gather_as<uint16_t>(op, x, rows); break;
    }
}

template <typename U> static void scatter_as(const abar__op *op, const void *rows, void *x)
{
    const geometry *g = &((const patches *)op->priv)->g;
    const dim3 grid = abar__cuda_image_grid(op->desc.in[0].dim[0], (int64_t)g->h * g->line);
    abar__cuda_launch(op->dev, scatter<U>, grid, dim3(ABAR_CUDA_THREADS), 0, *g, (const U *)rows, (U *)x);
}

static void scatter_rows(const abar__op *op, const void *rows, void *x)
{
    switch (((const patches *)op->priv)->unit) {
    case 16: scatter_as<uint4>(op, rows, x); break;
    case 8: scatter_as<uint2>(op, rows, x); break;
    case 4: scatter_as<uint32_t>(op, rows, x); break;
    default: scatter_as<uint16_t>(op, rows, x); break;
    }
}

/* The arguments of the product: rows instead of the image. */
static abar__op_args product_args(const patches *c, const abar__op_args *a)
{
    abar__op_args args = *a;
    args.x[0] = a->saved;
    args.dx[0] = c->row_grad ? a->scratch : NULL;
    args.saved = NULL;
    args.scratch = (char *)a->scratch + c->row_grad;
    return args;
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    patches *c = (patches *)op->priv;
    const abar__op_args args = product_args(c, a);
    gather_rows(op, a->x[0], a->saved);
    return abar__cuda_linear.forward(&c->product, &args);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    patches *c = (patches *)op->priv;
    const abar__op_args args = product_args(c, a);
    ABAR_TRY(abar__cuda_linear.backward(&c->product, &args));
    if (c->row_grad) scatter_rows(op, args.dx[0], a->dx[0]);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_conv_patches = {"cublaslt-patches", ABAR_OP_CONV2D, create, forward, backward, destroy};
