/* Perturbed weights, and diagonals from extra gradients (optimizers.md section 3). Sums have a fixed order: a block adds up its
 * units one after the other, the last block to finish adds up the blocks' sums. */
#include "device/cuda/step/extra.h"

#include "device/cuda/core/philox.h"

#include <math.h>
#include <string.h>

enum { THREADS = 256, SPAN = 4096 };

#define BLOCKS_MAX ((int64_t)512)

#define LARGEST 1e36         /* of what a diagonal is made of, */
#define LARGEST_SQUARED 1e18 /* or its squares are */

/* What kernels pass on to each other. */
typedef struct extra_numbers {
    double step;   /* h */
    double factor; /* of the extra gradient, or of its absolute value */
    int32_t fine;  /* it is finite */
    unsigned ticket;
} extra_numbers;

struct abar__cuda_extra {
    abar__extra_request request;
    uint64_t seed;
    int n;
    int64_t n_units;
    unsigned blocks;
    bool saved; /* host: the weights are perturbed, what they were is saved */
    /* device memory, one block */
    char *memory;
    size_t memory_bytes;
    abar__extra_item *items;
    abar__cuda_unit *units;
    double *partial; /* (blocks) */
    extra_numbers *numbers;
    /* host memory, one block: what is sent */
    char *host;
    size_t host_bytes;
};

/* ---- kernels ------------------------------------------------------------------------------------------------------------- */

__device__ static int64_t unit_end(const abar__extra_item &item, int64_t first)
{
    return first + SPAN < item.count ? first + SPAN : item.count;
}

/* The sum of every block's sums; only the last block to get here returns true. */
__device__ static bool sum_blocks(double *sum, double *partial, extra_numbers *numbers, double *shared)
{
    *sum = block_sum(*sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = *sum;
    if (!last_block(&numbers->ticket, gridDim.x)) return false;
    *sum = 0.0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) *sum += __ldcg(partial + i);
    *sum = block_sum(*sum, shared);
    return true;
}

static __global__ void __launch_bounds__(THREADS)
    save_weights(const abar__extra_item *items, const abar__cuda_unit *units, int64_t n, double *partial,
                 extra_numbers *numbers, double relative, double counted)
{
    __shared__ double shared[32];
    double sum = 0.0;
    for (int64_t u = blockIdx.x; u < n; u += gridDim.x) {
        const abar__extra_item item = items[units[u].item];
        const int64_t first = (int64_t)units[u].first * SPAN, end = unit_end(item, first);
        for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
            const float w = ((const float *)item.weight)[i];
            ((float *)item.saved)[i] = w;
            if (item.map) sum += (double)w * (double)w;
        }
    }
    if (!sum_blocks(&sum, partial, numbers, shared) || threadIdx.x != 0) return;
    numbers->step = fmax(counted > 0.0 ? relative * sqrt(sum / counted) : 0.0, ABAR_EXTRA_LEAST_STEP);
}

static __global__ void __launch_bounds__(THREADS)
    perturb_weights(const abar__extra_item *items, const abar__cuda_unit *units, int64_t n, const extra_numbers *numbers,
                    const abar__cuda_live *now, uint64_t seed, int sign)
{
    const double h = sign * numbers->step;
    const uint32_t k = (uint32_t)now->state.k;
    for (int64_t u = blockIdx.x; u < n; u += gridDim.x) {
        const abar__extra_item item = items[units[u].item];
        const int64_t first = (int64_t)units[u].first * SPAN, end = unit_end(item, first);
        for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
            float w = ((const float *)item.saved)[i];
            if (sign != 0) {
                const uint64_t number = (uint64_t)(item.first + abar__extra_number(&item, i));
                const uint4 draw = abar__cuda_random(seed, ABAR_DRAW_SIGNS, k, number / 128);
                const unsigned word = (unsigned)(number % 128 / 32);
                const uint32_t bits = word == 0 ? draw.x : word == 1 ? draw.y : word == 2 ? draw.z : draw.w;
                w = (float)((double)w + (bits >> (number % 32) & 1 ? h : -h));
            }
            ((float *)item.weight)[i] = w;
            if (item.shadow) ((bf16 *)item.shadow)[i] = __float2bfloat16_rn(w);
        }
    }
}

/* Whether the extra gradients are finite, and what they are multiplied by. A difference has h; else it is clipped. */
static __global__ void __launch_bounds__(THREADS)
    judge(const abar__extra_item *items, const abar__cuda_unit *units, int64_t n, double *partial, extra_numbers *numbers,
          abar__cuda_live *now, bool difference, double grad_scale, double clip)
{
    __shared__ double shared[32];
    double sum = 0.0;
    for (int64_t u = blockIdx.x; u < n; u += gridDim.x) {
        const abar__extra_item item = items[units[u].item];
        const int64_t first = (int64_t)units[u].first * SPAN, end = unit_end(item, first);
        for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
            const double g = (double)((const float *)item.grad)[i];
            sum += g * g;
        }
    }
    if (!sum_blocks(&sum, partial, numbers, shared) || threadIdx.x != 0) return;
    const double norm = sqrt(sum), scale = difference ? 0.5 / numbers->step : grad_scale;
    numbers->factor = scale * (clip > 0.0 ? fmin(1.0, clip / (scale * norm + 1e-6)) : 1.0);
    numbers->fine = numbers->factor * norm < (difference ? LARGEST : LARGEST_SQUARED);
    if (difference && !numbers->fine && now->state.diagonals == 0) now->seen.bad = 1;
}

static __global__ void __launch_bounds__(THREADS)
    take_difference(const abar__extra_item *items, const abar__cuda_unit *units, int64_t n, const extra_numbers *numbers,
                    const abar__cuda_live *now, double grad_scale)
{
    if (now->numbers.skip || !numbers->fine) return;
    const double scale = grad_scale * numbers->factor;
    for (int64_t u = blockIdx.x; u < n; u += gridDim.x) {
        const abar__extra_item item = items[units[u].item];
        if (!item.diagonal) continue; /* another rank keeps it */
        const int64_t first = (int64_t)units[u].first * SPAN, end = unit_end(item, first);
        const int64_t stride = item.inputs ? item.inputs : 1, kernel = item.taps * stride;
        /* the thread that meets the first tap of a kernel does all of them */
        for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
            if (i % kernel >= stride) continue;
            double sum = 0.0;
            for (int64_t j = 0; j < item.taps; j++) sum += fabs((double)((const float *)item.grad)[i + j * stride]);
            const float d = (float)(scale * sum / (double)item.taps);
            for (int64_t j = 0; j < item.taps; j++) ((float *)item.diagonal)[i + j * stride] = d;
        }
    }
}

static __global__ void __launch_bounds__(THREADS)
    take_squares(const abar__extra_item *items, const abar__cuda_unit *units, int64_t n, const extra_numbers *numbers,
                 const abar__cuda_live *now, float decay)
{
    if (now->numbers.skip || !numbers->fine) return;
    const float scale = (float)numbers->factor, rest = (float)(1.0 - (double)decay);
    for (int64_t u = blockIdx.x; u < n; u += gridDim.x) {
        const abar__extra_item item = items[units[u].item];
        if (!item.diagonal) continue;
        const int64_t first = (int64_t)units[u].first * SPAN, end = unit_end(item, first);
        for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
            const float g = scale * ((const float *)item.grad)[i];
            float *h = (float *)item.diagonal + i;
            *h = decay * *h + rest * g * g;
        }
    }
}

static __global__ void count_diagonals(const extra_numbers *numbers, abar__cuda_live *now)
{
    if (!numbers->fine)
        now->state.extra_dropped++;
    else if (!now->numbers.skip)
        now->state.diagonals++;
}

/* ---- the host's side ------------------------------------------------------------------------------------------------------
 */

static int64_t units_of(const abar__extra_item *item) { return (item->count + SPAN - 1) / SPAN; }

static abar_status send(abar_device *dev, abar__cuda_extra *e, const abar__extra_plan *plan)
{
    abar__extra_item *items = (abar__extra_item *)e->host;
    abar__cuda_unit *units = (abar__cuda_unit *)(e->host + ((char *)e->units - e->memory));
    int64_t u = 0;
    for (int k = 0; k < e->n; k++) {
        items[k] = plan->items[k];
        for (int64_t i = 0; i < units_of(&plan->items[k]); i++, u++) units[u] = {k, (int32_t)i};
    }
    cudaStream_t stream = abar__cuda_of(dev)->stream;
    CUDA_TRY(dev, cudaMemcpyAsync(e->memory, e->host, e->host_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(dev, cudaStreamSynchronize(stream));
    e->request = plan->request;
    e->seed = plan->seed;
    return ABAR_OK;
}

static abar_status make(abar_device *dev, abar__cuda_extra *e, const abar__extra_plan *plan)
{
    e->n = plan->n;
    for (int k = 0; k < plan->n; k++) e->n_units += units_of(&plan->items[k]);
    e->blocks = (unsigned)(e->n_units < 1 ? 1 : e->n_units < BLOCKS_MAX ? e->n_units : BLOCKS_MAX);
    const size_t units = abar__round_up((size_t)e->n * sizeof *e->items, ABAR_ALIGN);
    const size_t partial = abar__round_up(units + (size_t)e->n_units * sizeof *e->units, ABAR_ALIGN);
    const size_t numbers = abar__round_up(partial + e->blocks * sizeof *e->partial, ABAR_ALIGN);
    void *memory;
    e->memory_bytes = numbers + sizeof *e->numbers;
    ABAR_TRY(abar_device_alloc(dev, e->memory_bytes, &memory)); /* zeroed */
    e->memory = (char *)memory;
    e->items = (abar__extra_item *)e->memory;
    e->units = (abar__cuda_unit *)(e->memory + units);
    e->partial = (double *)(e->memory + partial);
    e->numbers = (extra_numbers *)(e->memory + numbers);
    ABAR_TRY(abar__alloc(dev->ctx, partial, &memory));
    e->host = (char *)memory;
    e->host_bytes = partial;
    return send(dev, e, plan);
}

extern "C" abar_status abar__cuda_extra_create(abar_device *dev, const abar__extra_plan *plan, abar__cuda_extra **out)
{
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof **out, &memory));
    abar__cuda_extra *e = (abar__cuda_extra *)memory;
    const abar_status status = make(dev, e, plan);
    if (status < 0) {
        abar__cuda_extra_destroy(dev, e);
        return status;
    }
    *out = e;
    return ABAR_OK;
}

extern "C" void abar__cuda_extra_destroy(abar_device *dev, abar__cuda_extra *e)
{
    if (!e) return;
    abar_device_free(dev, e->memory, e->memory ? e->memory_bytes : 0);
    abar__free(dev->ctx, e->host, e->host_bytes);
    abar__free(dev->ctx, e, sizeof *e);
}

extern "C" size_t abar__cuda_extra_bytes(const abar__cuda_extra *e) { return sizeof *e + e->memory_bytes + e->host_bytes; }

extern "C" abar_status abar__cuda_extra_rebind(abar_device *dev, abar__cuda_extra *e, const abar__extra_plan *plan)
{
    bool same = plan->n == e->n;
    for (int k = 0; same && k < e->n; k++) same = plan->items[k].count == ((const abar__extra_item *)e->host)[k].count;
    if (!same) return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "device cuda: parameters of other sizes need another step");
    return send(dev, e, plan);
}

extern "C" abar_status abar__cuda_extra_perturb(abar_device *dev, abar__cuda_extra *e, const abar__cuda_live *now, int sign)
{
    if (sign == 0 && !e->saved) return ABAR_OK;
    if (!e->saved) {
        double counted = 0.0;
        for (int k = 0; k < e->n; k++) {
            const abar__extra_item *item = (const abar__extra_item *)e->host + k;
            counted += item->map ? (double)item->count : 0.0;
        }
        abar__cuda_launch(dev, save_weights, dim3(e->blocks), dim3(THREADS), 0, e->items, e->units, e->n_units, e->partial,
                          e->numbers, e->request.relative, counted);
    }
    e->saved = sign != 0;
    abar__cuda_launch(dev, perturb_weights, dim3(e->blocks), dim3(THREADS), 0, e->items, e->units, e->n_units, e->numbers, now,
                      e->seed, sign);
    return abar__cuda_status(dev);
}

extern "C" abar_status abar__cuda_extra_check(abar_device *dev, abar__cuda_extra *e, abar__cuda_live *now)
{
    abar__cuda_launch(dev, judge, dim3(e->blocks), dim3(THREADS), 0, e->items, e->units, e->n_units, e->partial, e->numbers,
                      now, true, 1.0, 0.0);
    return abar__cuda_status(dev);
}

extern "C" abar_status abar__cuda_extra_take(abar_device *dev, abar__cuda_extra *e, abar__cuda_live *now, double grad_scale,
                                             double clip)
{
    if (e->request.kind == ABAR_EXTRA_SAMPLED) {
        abar__cuda_launch(dev, judge, dim3(e->blocks), dim3(THREADS), 0, e->items, e->units, e->n_units, e->partial, e->numbers,
                          now, false, grad_scale, clip);
        abar__cuda_launch(dev, take_squares, dim3(e->blocks), dim3(THREADS), 0, e->items, e->units, e->n_units, e->numbers, now,
                          (float)e->request.decay);
    } else {
        abar__cuda_launch(dev, take_difference, dim3(e->blocks), dim3(THREADS), 0, e->items, e->units, e->n_units, e->numbers,
                          now, grad_scale);
    }
    abar__cuda_launch(dev, count_diagonals, dim3(1), dim3(1), 0, e->numbers, now);
    return abar__cuda_status(dev);
}
