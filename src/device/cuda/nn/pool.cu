/* Max and average pooling over windows of each channel, in NHWC. The average divides by the full kernel, padding included.
 * The maximum ignores the padding; of equal maxima the first in row-major order counts. Max pooling saves the tap of each
 * maximum, in a byte where the window has fewer than 255. Backward gathers: each element of dx goes through the windows that
 * read it, in a fixed order. */
#include "device/cuda/core/chain.h"
#include "device/cuda/nn/cuda_nn.h"

typedef struct pool {
    int channels, in_h, in_w, out_h, out_w;
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    float share; /* 1 / taps */
} pool;

static pool pool_of(const abar__op_desc *d)
{
    const abar_window *w = &d->window;
    pool p = {};
    p.channels = (int)d->in[0].dim[1];
    p.in_h = (int)d->in[0].dim[2], p.in_w = (int)d->in[0].dim[3];
    p.out_h = (int)d->out.dim[2], p.out_w = (int)d->out.dim[3];
    p.kernel_h = (int)w->kernel[0], p.kernel_w = (int)w->kernel[1];
    p.stride_h = (int)w->stride[0], p.stride_w = (int)w->stride[1];
    p.pad_h = (int)w->pad[0], p.pad_w = (int)w->pad[1];
    p.dilation_h = (int)w->dilation[0], p.dilation_w = (int)w->dilation[1];
    p.share = 1.0f / (float)(w->kernel[0] * w->kernel[1]);
    return p;
}

/* V neighbouring channels of one pixel of an image, owned by one thread. An image has `units` of them. */
typedef struct spot {
    int channel, h, w;
} spot;

template <int V> __device__ static inline spot spot_of(const pool &p, int unit, int width)
{
    const int groups = p.channels / V, pixel = unit / groups;
    return {unit % groups * V, pixel / width, pixel % width};
}

/* The first output whose window reaches input coordinate at (given with the padding added). */
__device__ static inline int first_window(int at, int kernel, int stride, int dilation)
{
    const int before = at - (kernel - 1) * dilation;
    return before <= 0 ? 0 : (before + stride - 1) / stride;
}

/* ---- maximum ----------------------------------------------------------------------------------------------------- */

/* The largest of a window, and its tap; a NaN is larger than any number. Index(-1): the window covers only padding. */
template <typename T, int V, typename Index> static __global__ void max_kernel(pool p, const T *x, T *y, Index *saved)
{
    const int units = p.out_h * p.out_w * (p.channels / V);
    const int64_t image = (int64_t)blockIdx.x * p.out_h * p.out_w * p.channels;
    x += (int64_t)blockIdx.x * p.in_h * p.in_w * p.channels;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const spot s = spot_of<V>(p, u, p.out_w);
        lanes<V> top;
        Index tap[V];
#pragma unroll
        for (int k = 0; k < V; k++) top.v[k] = -INFINITY, tap[k] = (Index)-1;
        for (int i = 0; i < p.kernel_h; i++)
            for (int j = 0; j < p.kernel_w; j++) {
                const int h = s.h * p.stride_h - p.pad_h + i * p.dilation_h, w = s.w * p.stride_w - p.pad_w + j * p.dilation_w;
                if (h < 0 || h >= p.in_h || w < 0 || w >= p.in_w) continue;
                const lanes<V> v = load_lanes<V>(x + (h * p.in_w + w) * p.channels + s.channel);
#pragma unroll
                for (int k = 0; k < V; k++)
                    if (tap[k] == (Index)-1 || v.v[k] > top.v[k] || v.v[k] != v.v[k]) {
                        top.v[k] = v.v[k];
                        tap[k] = (Index)(i * p.kernel_w + j);
                    }
            }
        const int64_t at = image + (int64_t)u * V;
        store_lanes<V>(y + at, top);
#pragma unroll
        for (int k = 0; saved && k < V; k++) saved[at + k] = tap[k];
    }
}

/* The element of each window that saved names. */
template <typename T, typename Index> static __global__ void chosen_kernel(pool p, const T *x, const Index *saved, T *y)
{
    const int units = p.out_h * p.out_w * p.channels;
    const int64_t image = (int64_t)blockIdx.x * units;
    x += (int64_t)blockIdx.x * p.in_h * p.in_w * p.channels;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const spot s = spot_of<1>(p, u, p.out_w);
        const Index tap = saved[image + u];
        float v = -INFINITY;
        if (tap != (Index)-1) {
            const int h = s.h * p.stride_h - p.pad_h + (int)tap / p.kernel_w * p.dilation_h;
            const int w = s.w * p.stride_w - p.pad_w + (int)tap % p.kernel_w * p.dilation_w;
            v = load(x, (int64_t)(h * p.in_w + w) * p.channels + s.channel);
        }
        store(y, image + u, v);
    }
}

/* dx = the sum of dy over the windows whose maximum is here. */
template <typename T, int V, typename Index>
static __global__ void max_grad_kernel(pool p, const T *dy, const Index *saved, T *dx)
{
    const int units = p.in_h * p.in_w * (p.channels / V);
    const int64_t image = (int64_t)blockIdx.x * p.out_h * p.out_w * p.channels;
    dx += (int64_t)blockIdx.x * p.in_h * p.in_w * p.channels;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const spot s = spot_of<V>(p, u, p.in_w);
        const int h = s.h + p.pad_h, w = s.w + p.pad_w;
        lanes<V> sum = {};
        for (int a = first_window(h, p.kernel_h, p.stride_h, p.dilation_h); a < p.out_h && a * p.stride_h <= h; a++) {
            const int i = (h - a * p.stride_h) / p.dilation_h;
            if (i * p.dilation_h != h - a * p.stride_h) continue;
            for (int b = first_window(w, p.kernel_w, p.stride_w, p.dilation_w); b < p.out_w && b * p.stride_w <= w; b++) {
                const int j = (w - b * p.stride_w) / p.dilation_w;
                if (j * p.dilation_w != w - b * p.stride_w) continue;
                const int64_t at = image + (a * p.out_w + b) * p.channels + s.channel;
                const lanes<V> g = load_lanes<V>(dy + at);
#pragma unroll
                for (int k = 0; k < V; k++)
                    if (saved[at + k] == (Index)(i * p.kernel_w + j)) sum.v[k] += g.v[k];
            }
        }
        store_lanes<V>(dx + (int64_t)u * V, sum);
    }
}

static bool is_wide(const abar__op_desc *d) { return d->window.kernel[0] * d->window.kernel[1] >= 255; }

static abar_status max_create(abar__op *op)
{
    const abar__op_desc *d = &op->desc;
    if (d->average) return ABAR_E_UNSUPPORTED;
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_NHWC;
    const size_t taps = (size_t)abar__shape_count(&d->out) * (is_wide(d) ? sizeof(uint32_t) : sizeof(uint8_t));
    if (d->patterned)
        op->pattern_bytes = taps;
    else if (d->need_dx[0])
        op->saved_bytes = taps;
    return ABAR_OK;
}

template <typename T, int V, typename Index> static void max_launch(abar__op *op, const abar__op_args *a, bool back)
{
    const pool p = pool_of(&op->desc);
    const int64_t images = op->desc.in[0].dim[0], groups = p.channels / V;
    Index *taps = (Index *)(op->desc.patterned ? a->pattern : a->saved);
    if (!back && op->desc.patterned && a->run->repeat)
        abar__cuda_launch(op->dev, chosen_kernel<T, Index>, abar__cuda_image_grid(images, p.out_h * p.out_w * p.channels),
                          ABAR_CUDA_THREADS, 0, p, (const T *)a->x[0], (const Index *)taps, (T *)a->y);
    else if (back)
        abar__cuda_launch(op->dev, max_grad_kernel<T, V, Index>, abar__cuda_image_grid(images, p.in_h * p.in_w * groups),
                          ABAR_CUDA_THREADS, 0, p, (const T *)a->dy, (const Index *)taps, (T *)a->dx[0]);
    else
        abar__cuda_launch(op->dev, max_kernel<T, V, Index>, abar__cuda_image_grid(images, p.out_h * p.out_w * groups),
                          ABAR_CUDA_THREADS, 0, p, (const T *)a->x[0], (T *)a->y, taps);
}

template <typename T> static void max_run(abar__op *op, const abar__op_args *a, bool back)
{
    if (is_wide(&op->desc))
        max_launch<T, 1, uint32_t>(op, a, back);
    else if (op->desc.in[0].dim[1] % pack<T>::n == 0)
        max_launch<T, pack<T>::n, uint8_t>(op, a, back);
    else
        max_launch<T, 1, uint8_t>(op, a, back);
}

static abar_status max_forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        max_run<bf16>(op, a, false);
    else
        max_run<float>(op, a, false);
    return abar__cuda_status(op->dev);
}

static abar_status max_backward(abar__op *op, const abar__op_args *a)
{
    if (!a->dx[0]) return ABAR_OK;
    if (abar__cuda_is_bf16(op->dev))
        max_run<bf16>(op, a, true);
    else
        max_run<float>(op, a, true);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_max_pool = {"cuda-max-pool", ABAR_OP_POOL2D, max_create, max_forward, max_backward, NULL};

/* ---- average ----------------------------------------------------------------------------------------------------- */

template <typename T, int V> static __global__ void average_kernel(pool p, const T *x, T *y)
{
    const int units = p.out_h * p.out_w * (p.channels / V);
    x += (int64_t)blockIdx.x * p.in_h * p.in_w * p.channels;
    y += (int64_t)blockIdx.x * p.out_h * p.out_w * p.channels;
    chain_wait();
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const spot s = spot_of<V>(p, u, p.out_w);
        lanes<V> sum = {};
        for (int i = 0; i < p.kernel_h; i++)
            for (int j = 0; j < p.kernel_w; j++) {
                const int h = s.h * p.stride_h - p.pad_h + i * p.dilation_h, w = s.w * p.stride_w - p.pad_w + j * p.dilation_w;
                if (h < 0 || h >= p.in_h || w < 0 || w >= p.in_w) continue;
                const lanes<V> v = load_lanes<V>(x + (h * p.in_w + w) * p.channels + s.channel);
#pragma unroll
                for (int k = 0; k < V; k++) sum.v[k] += v.v[k];
            }
#pragma unroll
        for (int k = 0; k < V; k++) sum.v[k] *= p.share;
        store_lanes<V>(y + (int64_t)u * V, sum);
    }
}

#define PLANE_LANES 8 /* threads that share a sum over a plane */

/* One window over the whole plane. blockIdx.x is the image; threads (32, PLANE_LANES): threadIdx.x owns V channels, threadIdx.y
 * every PLANE_LANES-th pixel. The lanes are added in order. */
template <typename T, int V> static __global__ void plane_average_kernel(pool p, const T *x, T *y)
{
    __shared__ lanes<V> part[PLANE_LANES][32];
    const int pixels = p.in_h * p.in_w, groups = p.channels / V;
    x += (int64_t)blockIdx.x * pixels * p.channels;
    y += (int64_t)blockIdx.x * p.channels;
    chain_wait();
    for (int first = blockIdx.y * 32; first < groups; first += gridDim.y * 32) {
        const int group = first + threadIdx.x;
        lanes<V> sum = {};
        if (group < groups)
#pragma unroll 4
            for (int i = threadIdx.y; i < pixels; i += PLANE_LANES) {
                const lanes<V> v = load_lanes<V>(x + i * p.channels + group * V);
#pragma unroll
                for (int k = 0; k < V; k++) sum.v[k] += v.v[k];
            }
        part[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && group < groups) {
            for (int l = 1; l < PLANE_LANES; l++)
#pragma unroll
                for (int k = 0; k < V; k++) sum.v[k] += part[l][threadIdx.x].v[k];
#pragma unroll
            for (int k = 0; k < V; k++) sum.v[k] *= p.share;
            store_lanes<V>(y + group * V, sum);
        }
        __syncthreads();
    }
}

/* dx = the sum of dy over the windows that cover this element, divided by the number of taps. */
template <typename T, int V> static __global__ void average_grad_kernel(pool p, const T *dy, T *dx)
{
    const int units = p.in_h * p.in_w * (p.channels / V);
    dy += (int64_t)blockIdx.x * p.out_h * p.out_w * p.channels;
    dx += (int64_t)blockIdx.x * p.in_h * p.in_w * p.channels;
    chain_wait();
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const spot s = spot_of<V>(p, u, p.in_w);
        const int h = s.h + p.pad_h, w = s.w + p.pad_w;
        lanes<V> sum = {};
        for (int a = first_window(h, p.kernel_h, p.stride_h, p.dilation_h); a < p.out_h && a * p.stride_h <= h; a++) {
            if ((h - a * p.stride_h) % p.dilation_h != 0) continue;
            for (int b = first_window(w, p.kernel_w, p.stride_w, p.dilation_w); b < p.out_w && b * p.stride_w <= w; b++) {
                if ((w - b * p.stride_w) % p.dilation_w != 0) continue;
                const lanes<V> g = load_lanes<V>(dy + (a * p.out_w + b) * p.channels + s.channel);
#pragma unroll
                for (int k = 0; k < V; k++) sum.v[k] += g.v[k];
            }
        }
#pragma unroll
        for (int k = 0; k < V; k++) sum.v[k] *= p.share;
        store_lanes<V>(dx + (int64_t)u * V, sum);
    }
}

static abar_status average_create(abar__op *op)
{
    if (!op->desc.average) return ABAR_E_UNSUPPORTED;
    op->in_layout[0] = op->out_layout = ABAR_LAYOUT_NHWC;
    return ABAR_OK;
}

static bool covers_plane(const pool &p)
{
    return p.out_h == 1 && p.out_w == 1 && p.pad_h == 0 && p.pad_w == 0 && p.kernel_h == p.in_h && p.kernel_w == p.in_w;
}

template <typename T, int V> static void average_launch(abar__op *op, const abar__op_args *a, bool back)
{
    const pool p = pool_of(&op->desc);
    const int64_t images = op->desc.in[0].dim[0], groups = p.channels / V;
    if (back) {
        abar__cuda_launch_chained(op->dev, average_grad_kernel<T, V>, abar__cuda_image_grid(images, p.in_h * p.in_w * groups),
                                  ABAR_CUDA_THREADS, 0, p, (const T *)a->dy, (T *)a->dx[0]);
    } else if (covers_plane(p)) {
        const int64_t chunks = abar__cuda_blocks(groups, 32);
        abar__cuda_launch_chained(op->dev, plane_average_kernel<T, V>,
                                  dim3((unsigned)images, (unsigned)(chunks < 65535 ? chunks : 65535)), dim3(32, PLANE_LANES), 0,
                                  p, (const T *)a->x[0], (T *)a->y);
    } else {
        abar__cuda_launch_chained(op->dev, average_kernel<T, V>, abar__cuda_image_grid(images, p.out_h * p.out_w * groups),
                                  ABAR_CUDA_THREADS, 0, p, (const T *)a->x[0], (T *)a->y);
    }
}

template <typename T> static void average_run(abar__op *op, const abar__op_args *a, bool back)
{
    if (op->desc.in[0].dim[1] % pack<T>::n == 0)
        average_launch<T, pack<T>::n>(op, a, back);
    else
        average_launch<T, 1>(op, a, back);
}

static abar_status average_forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        average_run<bf16>(op, a, false);
    else
        average_run<float>(op, a, false);
    return abar__cuda_status(op->dev);
}

static abar_status average_backward(abar__op *op, const abar__op_args *a)
{
    if (!a->dx[0]) return ABAR_OK;
    if (abar__cuda_is_bf16(op->dev))
        average_run<bf16>(op, a, true);
    else
        average_run<float>(op, a, true);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_average_pool = {"cuda-average-pool", ABAR_OP_POOL2D,   average_create,
                                               average_forward,     average_backward, NULL};
