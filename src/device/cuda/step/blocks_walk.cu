/* What stages of blocks (device/blocks.h) do element by element, and the sums over blocks that they need. */
#include "device/cuda/step/blocks_walk.h"

#include <math.h>

enum { THREADS = 256 };

__device__ static double unbias(double beta, int64_t t) { return beta == 1.0 ? 1.0 : abar__unbias(beta, t); }

__device__ static double load_one(const abar__block_item &item, int64_t i)
{
    const int64_t at = abar__block_at(&item.b, i);
    double x = ((const float *)item.b.grad)[at];
    if (item.b.decay != 0.0) x += item.b.decay * (double)((const float *)item.b.weight)[at];
    item.x[i] = (float)x;
    return (double)item.x[i] * (double)item.x[i];
}

__device__ static void square_one(const abar__block_walk &w, const abar__block_item &item, int64_t i)
{
    float *v = (float *)item.b.state[w.stage.state] + abar__block_at(&item.b, i);
    const double x = item.x[i], beta = w.stage.beta;
    *v = (float)(beta * (double)*v + (beta == 1.0 ? 1.0 : 1.0 - beta) * x * x);
}

__device__ static void move_one(const abar__block_walk &w, const abar__block_item &item, int64_t i, double divisor)
{
    float *m = (float *)item.b.state[w.stage.state] + abar__block_at(&item.b, i);
    const double x = item.x[i], old = *m;
    item.x[i] = (float)((w.stage.ahead * old + (1.0 - w.stage.ahead) * x) / divisor);
    *m = (float)(w.stage.beta * old + (1.0 - w.stage.beta) * x);
}

__device__ static double measure_one(const abar__block_walk &w, const abar__block_item &item, int64_t i, double scale,
                                     bool replace)
{
    double d = item.x[i];
    if (w.stage.state >= 0)
        d /= sqrt(scale * (double)((const float *)item.b.state[w.stage.state])[abar__block_at(&item.b, i)]) + w.stage.eps;
    if (replace) item.x[i] = (float)d;
    return d * d;
}

__device__ static void adam_one(const abar__block_walk &w, const abar__block_item &item, int64_t i, bool overflows)
{
    const int64_t at = abar__block_at(&item.b, i);
    float *m = (float *)item.b.state[w.stage.mean] + at, *v = (float *)item.b.state[w.stage.squares] + at;
    const double x = item.x[i];
    double mean = *m, square = *v;
    if (!overflows) {
        mean = w.stage.beta * mean + (1.0 - w.stage.beta) * x;
        square = w.stage.beta2 * square + (1.0 - w.stage.beta2) * x * x;
        *m = (float)mean;
        *v = (float)square;
    }
    item.x[i] = mean == 0.0 ? 0.0f : (float)(mean / (sqrt(square) + w.stage.eps));
}

__device__ static double weight_at(const abar__block_item &item, int64_t i)
{
    return (double)((const float *)item.b.weight)[abar__block_at(&item.b, i)];
}

__device__ static void finish_one(const abar__block_item &item, int64_t i, const abar__ball &f, bool cautious, bool first)
{
    const double x = item.x[i], v = f.weight != 0.0 ? weight_at(item, i) : 0.0;
    item.x[i] = first ? 0.0f : (float)(f.step * x + (cautious && x * v < 0.0 ? 0.0 : f.weight * v));
}

/* What a step multiplies X and the weight by. */
__device__ static abar__ball step_of(const abar__block_walk &w, const abar__block &b, const abar__block_result &result,
                                     double c)
{
    const double lr = w.now->numbers.lr * b.lr_scale;
    if (w.stage.ball && b.order > 1) return abar__ball_of(result.weight, result.squares, result.inner, c, lr);
    return {w.stage.cautious ? c : c * (1.0 - lr * b.late_decay), b.late_decay};
}

__device__ static void push_one(const abar__block_walk &w, const abar__block_item &item, int64_t i)
{
    const int64_t at = abar__block_at(&item.b, i);
    float *m = (float *)item.b.state[w.stage.state] + at;
    double x = item.x[i];
    if (item.b.late_decay != 0.0) x += item.b.late_decay * (double)((const float *)item.b.weight)[at];
    const double moved = w.stage.beta * (double)*m + w.stage.gain * x;
    *m = (float)moved;
    item.x[i] = (float)(w.stage.ahead * moved + w.stage.rest * x);
}

/* Which element of v becomes element i. */
__device__ static int64_t source_of(const abar__block_walk &w, const abar__block_item &item, int64_t i)
{
    const int32_t *order = item.order;
    int64_t from = i;
    for (int m = 0; m < item.b.order; m++) {
        if (!abar__block_has(&item.b, &w.state, m)) continue;
        const int64_t behind = abar__block_behind(&item.b, m), k = i / behind % item.b.dim[m];
        from += (order[k] - k) * behind;
        order += item.b.dim[m];
    }
    return from;
}

/* What is the same for all elements of a launch. */
__device__ static double constant_of(const abar__block_walk &w, int kind, int64_t t)
{
    if (kind == ABAR_WALK_STEP) return w.stage.corrected && t > 1 ? abar__late_unbias(w.stage.beta, w.stage.beta2, t) : 1.0;
    if (kind == ABAR_WALK_MOMENTUM) return 1.0 - w.stage.ahead * pow(w.stage.beta, (double)(t - 1));
    return kind == ABAR_WALK_MEASURE && w.stage.corrected ? unbias(w.stage.beta, t) : 1.0;
}

/* X is in y after an odd number of products. */
__device__ static bool is_turned(const abar__block_walk &w, const abar__block &b)
{
    bool turned = false;
    for (int m = 0; m < b.order; m++) turned = turned != abar__block_has(&b, &w.state, m);
    return turned;
}

/* One element; returns its share of the pass's sum. */
template <int KIND>
__device__ static double do_one(const abar__block_walk &w, const abar__block_item &item, const abar__block_result &result,
                                int64_t i, double constant, const abar__ball &step, bool early)
{
    switch (KIND) {
    case ABAR_WALK_LOAD: return load_one(item, i);
    case ABAR_WALK_SQUARES: square_one(w, item, i); return 0.0;
    case ABAR_WALK_MOMENTUM: move_one(w, item, i, constant); return 0.0;
    case ABAR_WALK_MEASURE: return measure_one(w, item, i, constant, early);
    case ABAR_WALK_COPY_BACK: item.x[i] = item.y[i]; return 0.0;
    case ABAR_WALK_NORM: return (double)item.x[i] * (double)item.x[i];
    case ABAR_WALK_WEIGHT: return weight_at(item, i) * weight_at(item, i);
    case ABAR_WALK_INNER: return weight_at(item, i) * (double)item.x[i];
    case ABAR_WALK_RESCALE:
    case ABAR_WALK_EVEN: item.x[i] = (float)(constant * (double)item.x[i]); return 0.0;
    case ABAR_WALK_HEAVY: push_one(w, item, i); return 0.0;
    case ABAR_WALK_ADAM: adam_one(w, item, i, result.overflows); return 0.0;
    case ABAR_WALK_STEP: finish_one(item, i, step, w.stage.cautious, w.now->state.t == 1); return 0.0;
    case ABAR_WALK_PACK_MEAN: item.z[i] = ((const float *)item.b.state[w.stage.mean])[abar__block_at(&item.b, i)]; return 0.0;
    case ABAR_WALK_UNPACK_MEAN: ((float *)item.b.state[w.stage.mean])[abar__block_at(&item.b, i)] = item.z[i]; return 0.0;
    case ABAR_WALK_PACK_SQUARES: /* where m is not */
        (is_turned(w, item.b) ? item.z : item.y)[i] =
            ((const float *)item.b.state[w.stage.squares])[abar__block_at(&item.b, i)];
        return 0.0;
    case ABAR_WALK_PERMUTE:
        ((float *)item.b.state[w.stage.squares])[abar__block_at(&item.b, i)] =
            (is_turned(w, item.b) ? item.z : item.y)[source_of(w, item, i)];
        return 0.0;
    default: /* ABAR_WALK_STORE */
        ((float *)item.b.grad)[abar__block_at(&item.b, i)] = isfinite(result.squares) ? item.x[i] : 0.0f;
        return 0.0;
    }
}

/* What becomes of the sum over a block, by one thread. */
template <int KIND> __device__ static void settle(abar__block_result *result, double sum)
{
    if (KIND == ABAR_WALK_LOAD) result->overflows = abar__squares_overflow(sum, false);
    if (KIND == ABAR_WALK_MEASURE) result->length = sqrt(sum);
    if (KIND == ABAR_WALK_NORM) result->squares = sum;
    if (KIND == ABAR_WALK_WEIGHT) result->weight = sum;
    if (KIND == ABAR_WALK_INNER) result->inner = sum;
}

__device__ static constexpr bool sums_up(int kind)
{
    return kind == ABAR_WALK_LOAD || kind == ABAR_WALK_MEASURE || kind == ABAR_WALK_NORM || kind == ABAR_WALK_WEIGHT ||
           kind == ABAR_WALK_INNER;
}

/* Block b: unit b. */
template <int KIND> static __global__ void __launch_bounds__(THREADS) walk_blocks(const __grid_constant__ abar__block_walk w)
{
    __shared__ double shared[32];
    if (w.now->numbers.skip) return;
    const abar__cuda_unit unit = w.units[blockIdx.x];
    const abar__block_item &item = w.items[unit.item];
    const abar__block_result result = w.results[unit.item];
    const int64_t t = w.now->state.t, first = (int64_t)unit.first * ABAR_WALK_SPAN;
    const int64_t end = item.b.count - first < ABAR_WALK_SPAN ? item.b.count : first + ABAR_WALK_SPAN;
    const bool early = t < w.stage.start;
    if ((KIND == ABAR_WALK_SQUARES && result.overflows) || (KIND == ABAR_WALK_COPY_BACK && !is_turned(w, item.b)) ||
        (KIND == ABAR_WALK_RESCALE && early))
        return;
    if (KIND == ABAR_WALK_HEAVY && !isfinite(result.squares)) return; /* the momentum stays as it is */
    if ((KIND == ABAR_WALK_ADAM && t == 1) || (KIND >= ABAR_WALK_PACK_MEAN && !abar__basis_is_due(&w.stage, t))) return;
    double constant = constant_of(w, KIND, t), sum = 0.0;
    if (KIND == ABAR_WALK_RESCALE) constant = result.length / (sqrt(result.squares) + ABAR_GRAFT_EPS);
    if (KIND == ABAR_WALK_EVEN) constant = 1.0 / (ABAR_RMS_EPS + sqrt(result.squares / (double)item.b.count));
    const abar__ball step = KIND == ABAR_WALK_STEP ? step_of(w, item.b, result, constant) : abar__ball{};
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) sum += do_one<KIND>(w, item, result, i, constant, step, early);
    if (!sums_up(KIND)) return;
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) w.partial[blockIdx.x] = sum;
    if (!last_block(&w.tickets[unit.item], (unsigned)item.units)) return;
    sum = 0.0;
    const double *of_item = w.partial + blockIdx.x - unit.first;
    for (int i = (int)threadIdx.x; i < item.units; i += THREADS) sum += __ldcg(of_item + i);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) settle<KIND>(&w.results[unit.item], sum);
}

template <int KIND> static void launch(abar_device *dev, int64_t n, const abar__block_walk *w)
{
    abar__cuda_launch(dev, walk_blocks<KIND>, dim3((unsigned)n), dim3(THREADS), 0, *w);
}

extern "C" void abar__cuda_walk_blocks(abar_device *dev, abar__walk_kind kind, int64_t n, const abar__block_walk *w)
{
    switch (kind) {
    case ABAR_WALK_LOAD: launch<ABAR_WALK_LOAD>(dev, n, w); break;
    case ABAR_WALK_SQUARES: launch<ABAR_WALK_SQUARES>(dev, n, w); break;
    case ABAR_WALK_MOMENTUM: launch<ABAR_WALK_MOMENTUM>(dev, n, w); break;
    case ABAR_WALK_MEASURE: launch<ABAR_WALK_MEASURE>(dev, n, w); break;
    case ABAR_WALK_COPY_BACK: launch<ABAR_WALK_COPY_BACK>(dev, n, w); break;
    case ABAR_WALK_NORM: launch<ABAR_WALK_NORM>(dev, n, w); break;
    case ABAR_WALK_WEIGHT: launch<ABAR_WALK_WEIGHT>(dev, n, w); break;
    case ABAR_WALK_INNER: launch<ABAR_WALK_INNER>(dev, n, w); break;
    case ABAR_WALK_RESCALE: launch<ABAR_WALK_RESCALE>(dev, n, w); break;
    case ABAR_WALK_HEAVY: launch<ABAR_WALK_HEAVY>(dev, n, w); break;
    case ABAR_WALK_ADAM: launch<ABAR_WALK_ADAM>(dev, n, w); break;
    case ABAR_WALK_EVEN: launch<ABAR_WALK_EVEN>(dev, n, w); break;
    case ABAR_WALK_STEP: launch<ABAR_WALK_STEP>(dev, n, w); break;
    case ABAR_WALK_STORE: launch<ABAR_WALK_STORE>(dev, n, w); break;
    case ABAR_WALK_PACK_MEAN: launch<ABAR_WALK_PACK_MEAN>(dev, n, w); break;
    case ABAR_WALK_PACK_SQUARES: launch<ABAR_WALK_PACK_SQUARES>(dev, n, w); break;
    case ABAR_WALK_PERMUTE: launch<ABAR_WALK_PERMUTE>(dev, n, w); break;
    case ABAR_WALK_UNPACK_MEAN: launch<ABAR_WALK_UNPACK_MEAN>(dev, n, w); break;
    }
}
