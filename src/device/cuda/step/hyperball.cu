/* Blocks of weights that keep their norm (methods.md section 11): each moves along its step at a rate relative to its norm, and
 * is then scaled to the norm it had. ABAR_BALL_SHARES thread blocks share one; their sums are added up in a fixed order. */
#include "device/cuda/step/step.h"

#define THREADS ABAR_UPDATE_THREADS

/* What the three kernels add up: squares of the weight, of the step, of the weight that has moved. */
enum { OF_WEIGHT, OF_STEP, OF_MOVED };

/* The elements of its item that a thread block has. */
struct range {
    int64_t first, end;
    __device__ explicit range(int64_t count)
    {
        const int64_t each = (count + ABAR_BALL_SHARES - 1) / ABAR_BALL_SHARES;
        first = each * blockIdx.y < count ? each * blockIdx.y : count;
        end = first + each < count ? first + each : count;
    }
};

__device__ static inline double *sums_of(double *sums, int which)
{
    return sums + (int64_t)blockIdx.x * ABAR_BALL_SUMS + which * ABAR_BALL_SHARES;
}

__device__ static double norm_of(double *sums, int which)
{
    const double *part = sums_of(sums, which);
    double sum = 0.0;
    for (int i = 0; i < ABAR_BALL_SHARES; i++) sum += __ldcg(part + i);
    return sqrt(sum);
}

__device__ static inline bool is_left_alone(const abar__cuda_item &item, const abar__cuda_numbers *numbers)
{
    return numbers->skip || (item.verdict && *item.verdict == ABAR_NS_NOT_FINITE);
}

static __global__ void __launch_bounds__(THREADS)
    measure(const abar__cuda_item *items, const abar__cuda_numbers *numbers, double *sums)
{
    __shared__ double shared[32];
    const abar__cuda_item item = items[blockIdx.x];
    if (is_left_alone(item, numbers)) return;
    const range r(item.count);
    double weight = 0.0, step = 0.0;
    for (int64_t i = r.first + threadIdx.x; i < r.end; i += THREADS) {
        const double w = (double)item.body.weight[i], o = (double)item.body.grad[i];
        weight += w * w;
        step += o * o;
    }
    weight = block_sum(weight, shared);
    step = block_sum(step, shared);
    if (threadIdx.x != 0) return;
    sums_of(sums, OF_WEIGHT)[blockIdx.y] = weight;
    sums_of(sums, OF_STEP)[blockIdx.y] = step;
}

static __global__ void __launch_bounds__(THREADS)
    advance(const abar__cuda_item *items, const abar__cuda_numbers *numbers, double *sums)
{
    __shared__ double shared[32];
    const abar__cuda_item item = items[blockIdx.x];
    if (is_left_alone(item, numbers)) return;
    const range r(item.count);
    const double rate = abar__hyperball_rate(norm_of(sums, OF_WEIGHT), norm_of(sums, OF_STEP));
    const float lr = (float)(numbers->lr * item.body.lr_scale * rate);
    double moved = 0.0;
    for (int64_t i = r.first + threadIdx.x; i < r.end; i += THREADS) {
        const float w = item.body.weight[i] - lr * item.body.grad[i];
        item.body.weight[i] = w;
        moved += (double)w * (double)w;
    }
    moved = block_sum(moved, shared);
    if (threadIdx.x == 0) sums_of(sums, OF_MOVED)[blockIdx.y] = moved;
}

static __global__ void __launch_bounds__(THREADS)
    rescale(const abar__cuda_item *items, const abar__cuda_numbers *numbers, double *sums)
{
    const abar__cuda_item item = items[blockIdx.x];
    if (is_left_alone(item, numbers)) return;
    const range r(item.count);
    const float factor = (float)abar__hyperball_rate(norm_of(sums, OF_WEIGHT), norm_of(sums, OF_MOVED));
    for (int64_t i = r.first + threadIdx.x; i < r.end; i += THREADS) {
        const float w = factor * item.body.weight[i];
        item.body.weight[i] = w;
        if (item.body.shadow) item.body.shadow[i] = __float2bfloat16_rn(w);
    }
}

extern "C" void abar__cuda_hyperball(abar_device *dev, const abar__cuda_item *items, int n, const abar__cuda_numbers *numbers,
                                     double *sums)
{
    if (n == 0) return;
    const dim3 grid((unsigned)n, ABAR_BALL_SHARES), block(THREADS);
    abar__cuda_launch(dev, measure, grid, block, 0, items, numbers, sums);
    abar__cuda_launch(dev, advance, grid, block, 0, items, numbers, sums);
    abar__cuda_launch(dev, rescale, grid, block, 0, items, numbers, sums);
}
