/* Labels drawn from the softmax of logits, by a warp each: the sum of all exponentials, then the first class at which the sum
 * so far exceeds the drawn share of it. In double, so that the devices differ at the borders of rounding alone. */
#include "device/cuda/nn/labels.h"

#include "device/cuda/core/philox.h"

#include <math.h>

enum { THREADS = 128, WARPS = THREADS / 32 };

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    draw_kernel(const T *x, int64_t rows, int64_t pitch, int width, int64_t first, uint64_t seed, uint32_t step,
                const int64_t *step_now, int32_t *labels)
{
    const unsigned all_lanes = 0xffffffffu;
    const int lane = threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    x += row * pitch;
    float top = -INFINITY;
    for (int k = lane; k < width; k += 32) top = fmaxf(top, load(x, k));
    for (int other = 16; other; other /= 2) top = fmaxf(top, __shfl_xor_sync(all_lanes, top, other));
    double all = 0.0, before = 0.0;
    for (int k = lane; k < width; k += 32) all += exp((double)load(x, k) - (double)top);
    all = warp_sum(all);
    const uint32_t when = step_now ? (uint32_t)*step_now : step;
    const double share = all * ((double)abar__cuda_random(seed, ABAR_DRAW_LABELS, when, (uint64_t)(first + row)).x * 0x1p-32);
    int label = width - 1;
    for (int from = 0; from < width; from += 32) {
        const int k = from + lane;
        double sum = k < width ? exp((double)load(x, k) - (double)top) : 0.0;
        for (int other = 1; other < 32; other *= 2) {
            const double left = __shfl_up_sync(all_lanes, sum, (unsigned)other);
            if (lane >= other) sum += left;
        }
        const unsigned beyond = __ballot_sync(all_lanes, before + sum > share);
        if (beyond) {
            label = min(from + __ffs((int)beyond) - 1, width - 1);
            break;
        }
        before += __shfl_sync(all_lanes, sum, 31);
    }
    if (lane == 0) labels[row] = label;
}

static __global__ void __launch_bounds__(THREADS) set_kernel(int64_t rows, int32_t label, int32_t *labels)
{
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row < rows) labels[row] = label;
}

void abar__cuda_set_labels(abar_device *dev, const abar__run *run, int64_t rows, int32_t *labels)
{
    if (rows == 0) return;
    abar__cuda_launch(dev, set_kernel, dim3((unsigned)abar__cuda_blocks(rows, THREADS)), dim3(THREADS), 0, rows,
                      (int32_t)(run->one_class - 1), labels);
}

/* Block r: row r. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    weigh_kernel(const T *x, const float *saved, int64_t pitch, int width, int one, T *dx)
{
    const int64_t row = blockIdx.x;
    x += row * pitch;
    dx += row * pitch;
    const float root = sqrtf(expf(load(x, one) - saved[2 * row]) * saved[2 * row + 1]);
    for (int k = threadIdx.x; k < width; k += THREADS) store(dx, k, root * load(dx, k));
}

void abar__cuda_weigh_by_class(abar_device *dev, const abar__run *run, const void *x, const float *saved, int64_t rows,
                               int64_t pitch, int width, void *dx)
{
    const dim3 grid((unsigned)rows);
    const int one = (int)run->one_class - 1;
    if (rows == 0) return;
    if (abar__cuda_is_bf16(dev))
        abar__cuda_launch(dev, weigh_kernel<bf16>, grid, dim3(THREADS), 0, (const bf16 *)x, saved, pitch, width, one,
                          (bf16 *)dx);
    else
        abar__cuda_launch(dev, weigh_kernel<float>, grid, dim3(THREADS), 0, (const float *)x, saved, pitch, width, one,
                          (float *)dx);
}

void abar__cuda_draw_labels(abar_device *dev, const abar__run *run, const void *x, int64_t rows, int64_t pitch, int width,
                            int64_t first, int32_t *labels)
{
    const int64_t from = (int64_t)abar__run_label_index(run, first);
    const dim3 grid((unsigned)abar__cuda_blocks(rows, WARPS));
    if (rows == 0) return;
    if (abar__cuda_is_bf16(dev))
        abar__cuda_launch(dev, draw_kernel<bf16>, grid, dim3(THREADS), 0, (const bf16 *)x, rows, pitch, width, from, run->seed,
                          run->step, run->step_now, labels);
    else
        abar__cuda_launch(dev, draw_kernel<float>, grid, dim3(THREADS), 0, (const float *)x, rows, pitch, width, from,
                          run->seed, run->step, run->step_now, labels);
}
