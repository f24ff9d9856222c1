/* Operations on one element at a time, in the layout of their input: activation, sum, dropout. */
#include "device/cuda/nn/activation.h"
#include "device/cuda/nn/dropout.h"

/* A pack from element i on; past the end of n elements it reads zeros and stores nothing. Values begin on a multiple of 16
 * bytes. */
template <typename T> __device__ static inline pack<T> load_upto(const T *p, int64_t i, int64_t n)
{
    if (i + pack<T>::n <= n) return load_pack(p + i);
    pack<T> a;
#pragma unroll
    for (int k = 0; k < pack<T>::n; k++) a.v[k] = i + k < n ? load(p, i + k) : 0.0f;
    return a;
}

template <typename T> __device__ static inline void store_upto(T *p, int64_t i, int64_t n, const pack<T> &a)
{
    if (i + pack<T>::n <= n) {
        store_pack(p + i, a);
        return;
    }
#pragma unroll
    for (int k = 0; k < pack<T>::n; k++)
        if (i + k < n) store(p, i + k, a.v[k]);
}

/* from, or from + from2 where from2 is not NULL. */
template <typename T> __device__ static inline pack<T> sum_upto(const T *from, const T *from2, int64_t i, int64_t n)
{
    pack<T> a = load_upto(from, i, n);
    if (!from2) return a;
    pack<T> b = load_upto(from2, i, n);
#pragma unroll
    for (int k = 0; k < pack<T>::n; k++) a.v[k] += b.v[k];
    return a;
}

/* First element of this thread's pack. */
template <typename T> __device__ static inline int64_t pack_begin(void)
{
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * pack<T>::n;
}

template <typename T> static dim3 pack_grid(int64_t n)
{
    return dim3((unsigned)abar__cuda_blocks(n, (int64_t)ABAR_CUDA_THREADS * pack<T>::n));
}

/* ---- activation ------------------------------------------------------------------------------------------------ */

static abar_status activation_create(abar__op *op)
{
    if (op->desc.activation == ABAR_ACT_NONE) return ABAR_E_UNSUPPORTED;
    op->in_layout[0] = op->out_layout = abar__cuda_layout(&op->desc.in[0]);
    op->takes_dy2 = true;
    bool from_y = op->desc.activation == ABAR_ACT_RELU || op->desc.activation == ABAR_ACT_TANH;
    op->backward_needs = op->desc.patterned ? 0 : from_y ? ABAR_NEEDS_Y : ABAR_NEEDS_X;
    if (op->desc.patterned) op->pattern_bytes = (size_t)abar__shape_count(&op->desc.out);
    return ABAR_OK;
}

/* A thread owns PACKS packs of the n elements, a block's apart. */
enum { PACKS = 2 };

template <typename T> __device__ static inline int64_t pack_of(int k)
{
    return (((int64_t)blockIdx.x * PACKS + k) * ABAR_CUDA_THREADS + threadIdx.x) * pack<T>::n;
}

template <typename T> static dim3 packs_grid(int64_t n)
{
    return dim3((unsigned)abar__cuda_blocks(n, (int64_t)PACKS * ABAR_CUDA_THREADS * pack<T>::n));
}

template <typename T, abar__activation KIND>
static __global__ void __launch_bounds__(ABAR_CUDA_THREADS) activation_kernel(int64_t n, const T *x, T *y)
{
    pack<T> a[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; k++) a[k] = load_upto(x, pack_of<T>(k), n);
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
#pragma unroll
        for (int e = 0; e < pack<T>::n; e++) a[k].v[e] = activate<T, KIND>(a[k].v[e]);
        store_upto(y, pack_of<T>(k), n, a[k]);
    }
}

/* dx = (dy + dy2) slope; value is the y or x that the slope is computed from. */
template <typename T, abar__activation KIND>
static __global__ void __launch_bounds__(ABAR_CUDA_THREADS)
    activation_grad_kernel(int64_t n, const T *dy, const T *dy2, const T *value, T *dx)
{
    pack<T> g[PACKS], v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        g[k] = sum_upto(dy, dy2, pack_of<T>(k), n);
        v[k] = load_upto(value, pack_of<T>(k), n);
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
#pragma unroll
        for (int e = 0; e < pack<T>::n; e++) g[k].v[e] = apply_slope<T, KIND>(g[k].v[e], v[k].v[e]);
        store_upto(dx, pack_of<T>(k), n, g[k]);
    }
}

/* A ReLU whose choices are kept, a byte per element; one that records lets a NaN through. */
template <typename T> static __global__ void pattern_kernel(int64_t n, bool repeat, const T *x, uint8_t *pattern, T *y)
{
    const int64_t i = pack_begin<T>();
    if (i >= n) return;
    pack<T> a = load_upto(x, i, n);
#pragma unroll
    for (int k = 0; k < pack<T>::n; k++) {
        if (i + k >= n) break;
        if (!repeat) pattern[i + k] = a.v[k] > 0.0f || a.v[k] != a.v[k];
        if (!pattern[i + k]) a.v[k] = 0.0f;
    }
    store_upto(y, i, n, a);
}

template <typename T>
static __global__ void pattern_grad_kernel(int64_t n, const T *dy, const T *dy2, const uint8_t *pattern, T *dx)
{
    const int64_t i = pack_begin<T>();
    if (i >= n) return;
    pack<T> g = sum_upto(dy, dy2, i, n);
#pragma unroll
    for (int k = 0; k < pack<T>::n; k++)
        if (i + k < n && !pattern[i + k]) g.v[k] = 0.0f;
    store_upto(dx, i, n, g);
}

template <typename T> static void pattern_run(abar__op *op, const abar__op_args *a, bool back)
{
    const int64_t n = abar__shape_count(&op->desc.out);
    if (back)
        abar__cuda_launch(op->dev, pattern_grad_kernel<T>, pack_grid<T>(n), ABAR_CUDA_THREADS, 0, n, (const T *)a->dy,
                          (const T *)a->dy2, (const uint8_t *)a->pattern, (T *)a->dx[0]);
    else
        abar__cuda_launch(op->dev, pattern_kernel<T>, pack_grid<T>(n), ABAR_CUDA_THREADS, 0, n, a->run->repeat,
                          (const T *)a->x[0], (uint8_t *)a->pattern, (T *)a->y);
}

template <typename T> static void forward_run(abar_device *dev, abar__activation kind, const void *x, void *y, int64_t n)
{
    const auto kernel = kind == ABAR_ACT_RELU       ? activation_kernel<T, ABAR_ACT_RELU>
                        : kind == ABAR_ACT_TANH     ? activation_kernel<T, ABAR_ACT_TANH>
                        : kind == ABAR_ACT_GELU_ERF ? activation_kernel<T, ABAR_ACT_GELU_ERF>
                                                    : activation_kernel<T, ABAR_ACT_GELU_TANH>;
    abar__cuda_launch(dev, kernel, packs_grid<T>(n), ABAR_CUDA_THREADS, 0, n, (const T *)x, (T *)y);
}

template <typename T> static void backward_run(abar__op *op, const abar__op_args *a)
{
    const abar__activation kind = op->desc.activation;
    const int64_t n = abar__shape_count(&op->desc.out);
    const void *value = op->backward_needs == ABAR_NEEDS_Y ? a->y : a->x[0];
    const auto kernel = kind == ABAR_ACT_RELU       ? activation_grad_kernel<T, ABAR_ACT_RELU>
                        : kind == ABAR_ACT_TANH     ? activation_grad_kernel<T, ABAR_ACT_TANH>
                        : kind == ABAR_ACT_GELU_ERF ? activation_grad_kernel<T, ABAR_ACT_GELU_ERF>
                                                    : activation_grad_kernel<T, ABAR_ACT_GELU_TANH>;
    abar__cuda_launch(op->dev, kernel, packs_grid<T>(n), ABAR_CUDA_THREADS, 0, n, (const T *)a->dy, (const T *)a->dy2,
                      (const T *)value, (T *)a->dx[0]);
}

void abar__cuda_activate(abar_device *dev, abar__activation kind, const void *x, void *y, int64_t count)
{
    if (abar__cuda_is_bf16(dev))
        forward_run<bf16>(dev, kind, x, y, count);
    else
        forward_run<float>(dev, kind, x, y, count);
}

template <typename T> static void activation_run(abar__op *op, const abar__op_args *a, bool back)
{
    if (op->desc.patterned)
        pattern_run<T>(op, a, back);
    else if (back)
        backward_run<T>(op, a);
    else
        forward_run<T>(op->dev, op->desc.activation, a->x[0], a->y, abar__shape_count(&op->desc.out));
}

static abar_status activation_forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        activation_run<bf16>(op, a, false);
    else
        activation_run<float>(op, a, false);
    return abar__cuda_status(op->dev);
}

static abar_status activation_backward(abar__op *op, const abar__op_args *a)
{
    if (!a->dx[0]) return ABAR_OK;
    if (abar__cuda_is_bf16(op->dev))
        activation_run<bf16>(op, a, true);
    else
        activation_run<float>(op, a, true);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_activation = {"cuda-activation",  ABAR_OP_ACTIVATION,  activation_create,
                                             activation_forward, activation_backward, NULL};

/* ---- add: y = x0 + x1 ------------------------------------------------------------------------------------------ */

static abar_status add_create(abar__op *op)
{
    op->in_layout[0] = op->in_layout[1] = op->out_layout = abar__cuda_layout(&op->desc.in[0]);
    op->takes_dy2 = true;
    op->dx_is_dy = true;
    return ABAR_OK;
}

/* to0 = to1 = from + from2; either target and from2 may be NULL. A thread owns a pack of the n elements. */
template <typename T> static __global__ void add_kernel(int64_t n, const T *from, const T *from2, T *to0, T *to1)
{
    const int64_t i = pack_begin<T>();
    if (i >= n) return;
    pack<T> a = sum_upto(from, from2, i, n);
    if (to0) store_upto(to0, i, n, a);
    if (to1) store_upto(to1, i, n, a);
}

template <typename T> static void add_run(abar__op *op, const void *from, const void *from2, void *to0, void *to1)
{
    const int64_t n = abar__shape_count(&op->desc.out);
    abar__cuda_launch(op->dev, add_kernel<T>, pack_grid<T>(n), ABAR_CUDA_THREADS, 0, n, (const T *)from, (const T *)from2,
                      (T *)to0, (T *)to1);
}

static abar_status add_forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        add_run<bf16>(op, a->x[0], a->x[1], a->y, NULL);
    else
        add_run<float>(op, a->x[0], a->x[1], a->y, NULL);
    return abar__cuda_status(op->dev);
}

static abar_status add_backward(abar__op *op, const abar__op_args *a)
{
    if (!a->dx[0] && !a->dx[1]) return ABAR_OK;
    if (abar__cuda_is_bf16(op->dev))
        add_run<bf16>(op, a->dy, a->dy2, a->dx[0], a->dx[1]);
    else
        add_run<float>(op, a->dy, a->dy2, a->dx[0], a->dx[1]);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_add = {"cuda-add", ABAR_OP_ADD, add_create, add_forward, add_backward, NULL};

/* ---- dropout: zero with probability drop, else scaled by 1 / (1 - drop) ------------------------------------------ */

/* The mask depends only on the global sample and the element's index in it, in (C, H, W) order. */

/* x and y are (images, pixels, channels). blockIdx.x is the image; a thread owns up to four neighbouring pixels of one
 * channel, which use one draw, or two where they cross a boundary. */
template <typename T>
static __global__ void dropout_kernel(dropout_key key, uint64_t first, int channels, int pixels, const T *x, T *y)
{
    const int64_t image = (int64_t)blockIdx.x * channels * pixels;
    const int units = (pixels + 3) / 4 * channels;
    const uint32_t when = dropout_when(key);
    for (int i = abar__unit_first(); i < units; i += abar__unit_step()) {
        const int c = i % channels, p0 = i / channels * 4;
        const uint64_t g0 = first + (uint64_t)(image + (int64_t)c * pixels + p0);
        uint4 draw = dropout_draw(key, when, g0 / 4);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint64_t g = g0 + k;
            if (k > 0 && g % 4 == 0 && p0 + k < pixels) draw = dropout_draw(key, when, g / 4);
            const int64_t at = image + (int64_t)(p0 + k) * channels + c;
            if (p0 + k < pixels) store(y, at, load(x, at) * (word_of(draw, (uint32_t)g) >= key.least ? key.scale : 0.0f));
        }
    }
}

/* Dense samples: a thread owns a pack of elements, which uses whole draws. */
template <typename T> static __global__ void dropout_packs_kernel(dropout_key key, uint64_t first, int64_t n, const T *x, T *y)
{
    const int64_t i = pack_begin<T>();
    if (i >= n) return;
    const uint32_t when = dropout_when(key);
    pack<T> v = load_pack(x + i);
#pragma unroll
    for (int k = 0; k < pack<T>::n; k += 4) {
        const uint4 draw = dropout_draw(key, when, (first + (uint64_t)(i + k)) / 4);
#pragma unroll
        for (int w = 0; w < 4; w++) v.v[k + w] *= word_of(draw, (uint32_t)w) >= key.least ? key.scale : 0.0f;
    }
    store_pack(y + i, v);
}

/* Whole samples are dropped: all elements of sample g use word g % 4 of draw g / 4. blockIdx.x is the sample; a thread owns
 * every gridDim.y-th V-vector of it. */
template <typename T, int V>
static __global__ void drop_samples_kernel(dropout_key key, uint64_t first, int units, const T *x, T *y)
{
    const uint64_t g = first + blockIdx.x;
    const uint4 draw = dropout_draw(key, dropout_when(key), g / 4);
    const float factor = word_of(draw, (uint32_t)g) >= key.least ? key.scale : 0.0f;
    const int64_t sample = (int64_t)blockIdx.x * units;
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        lanes<V> v = load_lanes<V>(x + (sample + u) * V);
#pragma unroll
        for (int k = 0; k < V; k++) v.v[k] *= factor;
        store_lanes<V>(y + (sample + u) * V, v);
    }
}

static abar_status dropout_create(abar__op *op)
{
    op->in_layout[0] = op->out_layout = abar__cuda_layout(&op->desc.in[0]);
    return ABAR_OK;
}

template <typename T> static void drop_samples(abar__op *op, const abar__run *run, const T *x, T *y)
{
    const int64_t samples = op->desc.in[0].dim[0], elements = abar__shape_count(&op->desc.in[0]) / samples;
    const dropout_key key = dropout_key_of(&op->desc, run);
    const uint64_t first = (uint64_t)run->sample0;
    const bool packs = elements % pack<T>::n == 0;
    const int units = (int)(packs ? elements / pack<T>::n : elements);
    const dim3 grid = abar__cuda_image_grid(samples, units);
    if (packs)
        abar__cuda_launch(op->dev, drop_samples_kernel<T, pack<T>::n>, grid, ABAR_CUDA_THREADS, 0, key, first, units, x, y);
    else
        abar__cuda_launch(op->dev, drop_samples_kernel<T, 1>, grid, ABAR_CUDA_THREADS, 0, key, first, units, x, y);
}

template <typename T> static void drop_elements(abar__op *op, const abar__run *run, const T *x, T *y)
{
    const abar__shape *s = &op->desc.in[0];
    const int64_t all = abar__shape_count(s), elements = all / s->dim[0];
    const int channels = s->ndim == 4 ? (int)s->dim[1] : 1; /* a dense sample is one channel of many pixels */
    const int pixels = (int)(elements / channels);
    const dropout_key key = dropout_key_of(&op->desc, run);
    const uint64_t first = (uint64_t)(run->sample0 * elements); /* the index of the batch's first element in the global batch */
    if (channels == 1 && elements % pack<T>::n == 0)
        abar__cuda_launch(op->dev, dropout_packs_kernel<T>, pack_grid<T>(all), ABAR_CUDA_THREADS, 0, key, first, all, x, y);
    else
        abar__cuda_launch(op->dev, dropout_kernel<T>, abar__cuda_image_grid(s->dim[0], (int64_t)(pixels + 3) / 4 * channels),
                          ABAR_CUDA_THREADS, 0, key, first, channels, pixels, x, y);
}

template <typename T> static void drop(abar__op *op, const abar__run *run, const void *x, void *y)
{
    if (op->desc.per_sample)
        drop_samples(op, run, (const T *)x, (T *)y);
    else
        drop_elements(op, run, (const T *)x, (T *)y);
}

static abar_status mask(abar__op *op, const abar__run *run, const void *x, void *y)
{
    if (!run->training) {
        size_t bytes = abar__shape_bytes(op->dev, &op->desc.in[0], op->in_layout[0]);
        CUDA_TRY(op->dev, cudaMemcpyAsync(y, x, bytes, cudaMemcpyDeviceToDevice, abar__cuda_of(op->dev)->stream));
        return ABAR_OK;
    }
    if (abar__cuda_is_bf16(op->dev))
        drop<bf16>(op, run, x, y);
    else
        drop<float>(op, run, x, y);
    return abar__cuda_status(op->dev);
}

static abar_status dropout_forward(abar__op *op, const abar__op_args *a) { return mask(op, a->run, a->x[0], a->y); }

static abar_status dropout_backward(abar__op *op, const abar__op_args *a)
{
    return a->dx[0] ? mask(op, a->run, a->dy, a->dx[0]) : ABAR_OK;
}

const abar__op_impl abar__cuda_dropout = {"cuda-dropout",  ABAR_OP_DROPOUT,  dropout_create,
                                          dropout_forward, dropout_backward, NULL};
