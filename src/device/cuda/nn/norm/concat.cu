/* Concatenation along channels: rows of the inputs, one after another. Where it is part of a chain (net/views.c) only the
 * new channels are copied, and their moments are computed once for all batch norms that read the chain. */
#include "device/cuda/nn/norm/batch_norm_phases.h"

/* A sample is `rows` rows: pixels in NHWC; a dense sample is a single row. A row of part i has length[i] elements; its rows
 * are pitch[i] apart and begin at[i] elements into the rows of the whole, which are `whole_pitch` apart. Parts that are
 * stored there already are left out. */
typedef struct joint {
    void *part[ABAR_OP_MAX_IN];
    int length[ABAR_OP_MAX_IN], at[ABAR_OP_MAX_IN], pitch[ABAR_OP_MAX_IN];
    int n, rows, whole_pitch;
    int total; /* length of all */
} joint;

/* Parts to whole, or whole (+ whole2) back to the parts. blockIdx.x is the sample; a thread owns V neighbours of a part. */
template <typename T, int V> static __global__ void concat_kernel(joint j, T *whole, const T *whole2, bool back)
{
    const int units = j.rows * (j.total / V);
    for (int u = abar__unit_first(); u < units; u += abar__unit_step()) {
        const int64_t row = (int64_t)blockIdx.x * j.rows + u / (j.total / V);
        int column = u % (j.total / V) * V, i = 0;
        while (column >= j.length[i]) column -= j.length[i++];
        T *part = (T *)j.part[i] + row * j.pitch[i] + column;
        const int64_t at = row * j.whole_pitch + j.at[i] + column;
        if (back)
            store_lanes<V>(part, load_sum<V>((const T *)whole, whole2, at));
        else
            store_lanes<V>(whole + at, load_lanes<V>((const T *)part));
    }
}

template <typename T> static bool all_vectors(const joint &j, const void *whole)
{
    const int n = pack<T>::n;
    bool vectors = j.whole_pitch % n == 0 && (uintptr_t)whole % 16 == 0;
    for (int i = 0; i < j.n; i++)
        vectors = vectors && j.length[i] % n == 0 && j.at[i] % n == 0 && j.pitch[i] % n == 0 && (uintptr_t)j.part[i] % 16 == 0;
    return vectors;
}

template <typename T> static void concat_run(abar__op *op, const joint &j, void *whole, const void *whole2, bool back)
{
    const bool vectors = all_vectors<T>(j, whole);
    const int n = vectors ? pack<T>::n : 1;
    const dim3 grid = abar__cuda_image_grid(op->desc.out.dim[0], (int64_t)j.rows * (j.total / n));
    if (vectors)
        abar__cuda_launch(op->dev, concat_kernel<T, pack<T>::n>, grid, ABAR_CUDA_THREADS, 0, j, (T *)whole, (const T *)whole2,
                          back);
    else
        abar__cuda_launch(op->dev, concat_kernel<T, 1>, grid, ABAR_CUDA_THREADS, 0, j, (T *)whole, (const T *)whole2, back);
}

/* ---- with moments ------------------------------------------------------------------------------------------------- */

/* Copies one part and computes its moments. Grid: (tiles, slabs) of k, which cuts the part. */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    place_kernel(cut k, const T *part, T *whole, int64_t whole_pitch, float2 *moments)
{
    take_moments<T, V, false>(k, part, NULL, whole, whole_pitch, moments);
}

template <typename T> static void place_parts(abar__op *op, const joint &j, T *whole, float2 *moments)
{
    const int64_t rows = op->desc.out.dim[0] * j.rows;
    const bool vectors = all_vectors<T>(j, whole);
    for (int i = 0; i < j.n; i++) {
        cut k = moments_cut(rows, j.length[i], vectors);
        k.pitch = j.pitch[i];
        const int width = (vectors ? pack<T>::n : 1) << k.across;
        const dim3 grid((unsigned)abar__cuda_blocks(k.channels, width), (unsigned)k.slabs);
        abar__cuda_launch(op->dev, vectors ? place_kernel<T, pack<T>::n> : place_kernel<T, 1>, grid, dim3(THREADS), 0, k,
                          (const T *)j.part[i], whole + j.at[i], (int64_t)j.whole_pitch, moments + (int64_t)j.at[i] * k.slabs);
    }
}

/* ---- the operation ------------------------------------------------------------------------------------------------- */

static abar_status concat_create(abar__op *op)
{
    for (int i = 0; i < op->desc.n_in; i++) op->in_layout[i] = abar__cuda_layout(&op->desc.in[i]);
    op->out_layout = abar__cuda_layout(&op->desc.out);
    op->takes_dy2 = true;
    if (op->desc.out.ndim != 4) return ABAR_OK;
    op->view_align = 1;
    op->moment_bytes = moment_bytes(&op->desc.out);
    return ABAR_OK;
}

/* parts: of x, or of dx, where NULL means not wanted. */
static abar_status concat(abar__op *op, const abar__op_args *a, const void *const parts[], void *whole, const void *whole2,
                          bool back)
{
    const abar__op_desc *d = &op->desc;
    const int64_t samples = d->out.dim[0];
    const size_t element = abar_dtype_size(op->dev->activation);
    joint j = {};
    j.rows = d->out.ndim == 4 ? (int)(d->out.dim[2] * d->out.dim[3]) : 1;
    const int width = (int)(abar__shape_count(&d->out) / samples / j.rows);
    j.whole_pitch = a->y_pitch ? (int)a->y_pitch : width;
    for (int i = 0, at = 0, length; i < d->n_in; i++, at += length) {
        length = (int)(abar__shape_count(&d->in[i]) / samples / j.rows);
        if (!parts[i] || parts[i] == (const char *)whole + (size_t)at * element) continue;
        j.part[j.n] = (void *)parts[i];
        j.length[j.n] = length;
        j.at[j.n] = at;
        j.pitch[j.n++] = a->x_pitch[i] ? (int)a->x_pitch[i] : length;
        j.total += length;
    }
    if (j.n == 0) return ABAR_OK;
    if (a->moments && a->run->training && !back && abar__cuda_is_bf16(op->dev))
        place_parts<bf16>(op, j, (bf16 *)whole, (float2 *)a->moments);
    else if (a->moments && a->run->training && !back)
        place_parts<float>(op, j, (float *)whole, (float2 *)a->moments);
    else if (abar__cuda_is_bf16(op->dev))
        concat_run<bf16>(op, j, whole, whole2, back);
    else
        concat_run<float>(op, j, whole, whole2, back);
    return abar__cuda_status(op->dev);
}

static abar_status concat_forward(abar__op *op, const abar__op_args *a) { return concat(op, a, a->x, a->y, NULL, false); }

static abar_status concat_backward(abar__op *op, const abar__op_args *a) { return concat(op, a, a->dx, a->dy, a->dy2, true); }

const abar__op_impl abar__cuda_concat = {"cuda-concat", ABAR_OP_CONCAT, concat_create, concat_forward, concat_backward, NULL};
