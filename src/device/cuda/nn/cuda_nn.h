/* The CUDA back end's nn operations, in the order in which they are tried (list in cuda_nn.cu), and their shared functions.
 *
 * 4-dimensional values are NHWC, 2-dimensional ones (rows, width) dense; elements are dev->activation (float or bf16).
 * Parameters and their gradients are float32, convolution weights (O, kh, kw, I/groups) in memory; in bf16 an operation
 * reads the bf16 copy of its weight, args->shadow. dy has the layout of y, dx that of x. Sums over a batch are in float32. */
#ifndef ABAR_CUDA_NN_H
#define ABAR_CUDA_NN_H

#include "device/cuda/core/cuda_impl.h"

extern "C" {
#include "device/nn_impl.h"

extern const abar__op_impl abar__cuda_reorder, abar__cuda_flatten, abar__cuda_activation, abar__cuda_add, abar__cuda_concat,
    abar__cuda_shortcut, abar__cuda_dropout, abar__cuda_max_pool, abar__cuda_average_pool, abar__cuda_batch_norm,
    abar__cuda_layer_norm, abar__cuda_softmax_cross_entropy, abar__cuda_squared_error, abar__cuda_attention,
    abar__cuda_embedding, abar__cuda_tokens, abar__cuda_class_token, abar__cuda_patch_merge, abar__cuda_token_mean,
    abar__cuda_token_first;                           /* own kernels */
extern const abar__op_impl abar__cuda_attention_wide; /* of compute capability 9.0 */
extern const abar__op_impl abar__cuda_conv_patches;   /* cuBLASLt, for windows that do not overlap */
extern const abar__op_impl abar__cuda_linear;         /* cuBLASLt */
extern const abar__op_impl abar__cuda_conv_tiles;     /* own tensor-core kernels for few channels */
extern const abar__op_impl abar__cuda_conv_race;      /* the same on large images, or cuDNN, whichever is faster */
extern const abar__op_impl abar__cuda_conv_cudnn;     /* cuDNN's engines */
extern const abar__op_impl abar__cuda_conv_product;   /* cuBLASLt, for 1x1 windows of stride 1 */
extern const abar__op_impl abar__cuda_conv_either;    /* the same windows, pass by pass by the faster one of those two */
extern const abar__op_impl abar__cuda_conv_plain, abar__cuda_linear_plain; /* own loops for all cases, last in the list */
}

static inline bool abar__cuda_is_bf16(const abar_device *dev) { return dev->activation == ABAR_BF16; }

/* The layout that every operation here uses: NHWC for values of four dimensions, dense for the others. */
static inline abar_layout abar__cuda_layout(const abar__shape *shape)
{
    return shape->ndim == 4 ? ABAR_LAYOUT_NHWC : ABAR_LAYOUT_STRIDED;
}

/* ---- vectors of channels ---------------------------------------------------------------------------------------- */

/* V neighbouring elements as floats: a whole pack where all extents allow it (V = pack<T>::n), else a single one (V = 1). */
template <int V> struct lanes {
    float v[V];
};

template <int V, typename T> __device__ static inline lanes<V> load_lanes(const T *p)
{
    lanes<V> a;
    if constexpr (V == 1) {
        a.v[0] = load(p, 0);
    } else {
        pack<T> whole = load_pack(p);
#pragma unroll
        for (int i = 0; i < V; i++) a.v[i] = whole.v[i];
    }
    return a;
}

template <int V, typename T> __device__ static inline void store_lanes(T *p, const lanes<V> &a)
{
    if constexpr (V == 1) {
        store(p, 0, a.v[0]);
    } else {
        pack<T> whole;
#pragma unroll
        for (int i = 0; i < V; i++) whole.v[i] = a.v[i];
        store_pack(p, whole);
    }
}

/* from, or from + from2 where from2 is not NULL. */
template <int V, typename T> __device__ static inline lanes<V> load_sum(const T *from, const T *from2, int64_t at)
{
    lanes<V> a = load_lanes<V>(from + at);
    if (from2) {
        lanes<V> b = load_lanes<V>(from2 + at);
#pragma unroll
        for (int i = 0; i < V; i++) a.v[i] += b.v[i];
    }
    return a;
}

/* ---- image by image --------------------------------------------------------------------------------------------- */

/* Kernels that need an element's coordinates run on a grid (images, chunks of an image), so that indices within an image fit
 * into an int: `for (int i = abar__unit_first(); i < units; i += abar__unit_step())`. */
#define ABAR_CUDA_THREADS 256

static inline dim3 abar__cuda_image_grid(int64_t images, int64_t units)
{
    int64_t chunks = abar__cuda_blocks(units, ABAR_CUDA_THREADS);
    return dim3((unsigned)images, (unsigned)(chunks < 65535 ? chunks : 65535));
}

__device__ static inline int abar__unit_first(void) { return (int)(blockIdx.y * blockDim.x + threadIdx.x); }
__device__ static inline int abar__unit_step(void) { return (int)(gridDim.y * blockDim.x); }

#endif
