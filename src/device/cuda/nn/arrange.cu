/* Operations that only copy elements: reorder, flatten, and the parameter-free shortcut of CIFAR ResNets. */
#include "device/cuda/nn/cuda_nn.h"

/* ---- transposition: the heart of reorder and flatten ------------------------------------------------------------- */

#define TILE 32
#define TILE_ROWS 8

/* (images, height, width) -> (images, width, height), image by image. A block owns a tile of TILE x TILE; blockIdx.x counts
 * the tiles of all images, along the rows first. */
template <typename T> static __global__ void transpose_kernel(int64_t height, int64_t width, const T *from, T *to)
{
    __shared__ T tile[TILE][TILE + 1];
    const int64_t across = (width + TILE - 1) / TILE, down = (height + TILE - 1) / TILE, image = blockIdx.x / (across * down);
    const int64_t column0 = blockIdx.x % across * TILE, row0 = blockIdx.x / across % down * TILE;
    from += image * height * width;
    to += image * height * width;
    for (int i = threadIdx.y; i < TILE; i += TILE_ROWS)
        if (row0 + i < height && column0 + threadIdx.x < width)
            tile[i][threadIdx.x] = from[(row0 + i) * width + column0 + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < TILE; i += TILE_ROWS)
        if (column0 + i < width && row0 + threadIdx.x < height)
            to[(column0 + i) * height + row0 + threadIdx.x] = tile[threadIdx.x][i];
}

static abar_status transpose(abar_device *dev, int64_t images, int64_t height, int64_t width, const void *from, void *to)
{
    const int64_t tiles = images * abar__cuda_blocks(height, TILE) * abar__cuda_blocks(width, TILE);
    const dim3 threads(TILE, TILE_ROWS);
    if (abar__cuda_is_bf16(dev))
        abar__cuda_launch(dev, transpose_kernel<bf16>, dim3((unsigned)tiles), threads, 0, height, width, (const bf16 *)from,
                          (bf16 *)to);
    else
        abar__cuda_launch(dev, transpose_kernel<float>, dim3((unsigned)tiles), threads, 0, height, width, (const float *)from,
                          (float *)to);
    return abar__cuda_status(dev);
}

static abar_status copy(const abar__op *op, const void *from, void *to)
{
    const size_t bytes = abar__shape_bytes(op->dev, &op->desc.in[0], ABAR_LAYOUT_STRIDED);
    if (from == to) return ABAR_OK;
    CUDA_TRY(op->dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, abar__cuda_of(op->dev)->stream));
    return ABAR_OK;
}

/* Converts between the layouts: (N, C, H W) is the transpose of (N, H W, C). */
static abar_status convert(const abar__op *op, abar_layout from_layout, const void *from, abar_layout to_layout, void *to)
{
    const abar__shape *s = &op->desc.in[0];
    if (from_layout == to_layout) return copy(op, from, to);
    const int64_t channels = s->dim[1], pixels = s->dim[2] * s->dim[3];
    if (from_layout == ABAR_LAYOUT_NHWC) return transpose(op->dev, s->dim[0], pixels, channels, from, to);
    return transpose(op->dev, s->dim[0], channels, pixels, from, to);
}

/* ---- reorder ----------------------------------------------------------------------------------------------------- */

static bool is_known(const abar__shape *s, abar_layout layout)
{
    return layout == ABAR_LAYOUT_STRIDED || (layout == ABAR_LAYOUT_NHWC && s->ndim == 4);
}

static abar_status reorder_create(abar__op *op)
{
    const abar__shape *s = &op->desc.in[0];
    return is_known(s, op->in_layout[0]) && is_known(s, op->out_layout) ? ABAR_OK : ABAR_E_UNSUPPORTED;
}

static abar_status reorder_forward(abar__op *op, const abar__op_args *a)
{
    return convert(op, op->in_layout[0], a->x[0], op->out_layout, a->y);
}

static abar_status reorder_backward(abar__op *op, const abar__op_args *a)
{
    return a->dx[0] ? convert(op, op->out_layout, a->dy, op->in_layout[0], a->dx[0]) : ABAR_OK;
}

const abar__op_impl abar__cuda_reorder = {"cuda-reorder",  ABAR_OP_REORDER,  reorder_create,
                                          reorder_forward, reorder_backward, NULL};

/* ---- flatten: (N, C, H, W) -> (N, C*H*W), the columns in (C, H, W) order as PyTorch has them ----------------------- */

/* A dense value is already flat, and so is one with a single channel or a single pixel in any layout. */
static abar_status flatten_create(abar__op *op)
{
    const abar__shape *s = &op->desc.in[0];
    if (!is_known(s, op->in_layout[0])) op->in_layout[0] = abar__cuda_layout(s);
    op->out_layout = ABAR_LAYOUT_STRIDED;
    op->y_is_x = op->in_layout[0] == ABAR_LAYOUT_STRIDED || s->dim[1] == 1 || s->dim[2] * s->dim[3] == 1;
    return ABAR_OK;
}

static abar_status flatten_forward(abar__op *op, const abar__op_args *a)
{
    return op->y_is_x ? copy(op, a->x[0], a->y) : convert(op, op->in_layout[0], a->x[0], ABAR_LAYOUT_STRIDED, a->y);
}

static abar_status flatten_backward(abar__op *op, const abar__op_args *a)
{
    if (!a->dx[0]) return ABAR_OK;
    return op->y_is_x ? copy(op, a->dy, a->dx[0]) : convert(op, ABAR_LAYOUT_STRIDED, a->dy, op->in_layout[0], a->dx[0]);
}

const abar__op_impl abar__cuda_flatten = {"cuda-flatten",  ABAR_OP_FLATTEN,  flatten_create,
                                          flatten_forward, flatten_backward, NULL};

/* ---- shortcut, option A: y[i, j, c + before] = x[s i, s j, c], the other channels zero ------------------------------- */

typedef struct shortcut {
    int x_height, x_width, x_channels, y_height, y_width, y_channels;
    int stride_h, stride_w, before;
} shortcut;

/* blockIdx.x is the image; a thread owns V neighbouring channels of one pixel of y. */
template <typename T, int V> static __global__ void shortcut_kernel(shortcut s, const T *x, T *y)
{
    const int groups = s.y_channels / V, units = s.y_height * s.y_width * groups;
    x += (int64_t)blockIdx.x * s.x_height * s.x_width * s.x_channels;
    y += (int64_t)blockIdx.x * s.y_height * s.y_width * s.y_channels;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const int c = u % groups * V - s.before, pixel = u / groups;
        const int h = pixel / s.y_width * s.stride_h, w = pixel % s.y_width * s.stride_w;
        lanes<V> a = {};
        if (c >= 0 && c < s.x_channels) a = load_lanes<V>(x + (h * s.x_width + w) * s.x_channels + c);
        store_lanes<V>(y + (int64_t)u * V, a);
    }
}

/* The same with a thread for V neighbouring channels of one pixel of dx. */
template <typename T, int V> static __global__ void shortcut_grad_kernel(shortcut s, const T *dy, T *dx)
{
    const int groups = s.x_channels / V, units = s.x_height * s.x_width * groups;
    dx += (int64_t)blockIdx.x * s.x_height * s.x_width * s.x_channels;
    dy += (int64_t)blockIdx.x * s.y_height * s.y_width * s.y_channels;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const int c = u % groups * V + s.before, pixel = u / groups, h = pixel / s.x_width, w = pixel % s.x_width;
        const int i = h / s.stride_h, j = w / s.stride_w;
        const bool read = h == i * s.stride_h && w == j * s.stride_w && i < s.y_height && j < s.y_width;
        lanes<V> a = {};
        if (read) a = load_lanes<V>(dy + (i * s.y_width + j) * s.y_channels + c);
        store_lanes<V>(dx + (int64_t)u * V, a);
    }
}

template <typename T, int V> static void shortcut_launch(abar__op *op, const shortcut &s, const abar__op_args *a, bool back)
{
    const int64_t images = op->desc.out.dim[0], y_units = (int64_t)s.y_height * s.y_width * s.y_channels / V,
                  x_units = (int64_t)s.x_height * s.x_width * s.x_channels / V;
    if (back)
        abar__cuda_launch(op->dev, shortcut_grad_kernel<T, V>, abar__cuda_image_grid(images, x_units), ABAR_CUDA_THREADS, 0, s,
                          (const T *)a->dy, (T *)a->dx[0]);
    else
        abar__cuda_launch(op->dev, shortcut_kernel<T, V>, abar__cuda_image_grid(images, y_units), ABAR_CUDA_THREADS, 0, s,
                          (const T *)a->x[0], (T *)a->y);
}

template <typename T> static void shortcut_run(abar__op *op, const abar__op_args *a, bool back)
{
    const abar__shape *x = &op->desc.in[0], *y = &op->desc.out;
    const int64_t *stride = op->desc.window.stride;
    const int before = (int)((y->dim[1] - x->dim[1]) / 2), n = pack<T>::n;
    const shortcut s = {(int)x->dim[2], (int)x->dim[3], (int)x->dim[1], (int)y->dim[2], (int)y->dim[3],
                        (int)y->dim[1], (int)stride[0], (int)stride[1], before};
    if (s.x_channels % n == 0 && s.y_channels % n == 0 && before % n == 0)
        shortcut_launch<T, pack<T>::n>(op, s, a, back);
    else
        shortcut_launch<T, 1>(op, s, a, back);
}

static abar_status shortcut_create(abar__op *op)
{
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_NHWC;
    return ABAR_OK;
}

static abar_status shortcut_forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        shortcut_run<bf16>(op, a, false);
    else
        shortcut_run<float>(op, a, false);
    return abar__cuda_status(op->dev);
}

static abar_status shortcut_backward(abar__op *op, const abar__op_args *a)
{
    if (!a->dx[0]) return ABAR_OK;
    if (abar__cuda_is_bf16(op->dev))
        shortcut_run<bf16>(op, a, true);
    else
        shortcut_run<float>(op, a, true);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_shortcut = {"cuda-shortcut",  ABAR_OP_SHORTCUT,  shortcut_create,
                                           shortcut_forward, shortcut_backward, NULL};
