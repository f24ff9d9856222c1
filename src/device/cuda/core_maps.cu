/* The maps of an optimizer step on the device, one block each (methods.md sections 0, 1, 3, 9): what is pending is checked and
 * committed, what is due is refreshed, and the update is told how to treat the gradient. What curvature.c and mean_side.c do
 * for the other devices, in the same order and precision. */
#include "device/cuda/core_program.h"

#include <math.h>
#include <string.h>

#define THREADS 256
#define MEANS 128 /* maps of one launch: their factors travel as an argument */

typedef struct means {
    double factor[3 * MEANS];
} means;

/* ---- maps --------------------------------------------------------------------------------------------------------- */

__device__ static bool all_finite(const void *vector, int64_t n, double scale)
{
    const float *x = (const float *)vector;
    bool fine = true;
    for (int64_t i = threadIdx.x; x && i < n; i += THREADS)
        fine = fine && isfinite(x[i]) && isfinite((float)(scale * (double)x[i]));
    return fine;
}

__device__ static void clear(void *vector, int64_t n)
{
    float *x = (float *)vector;
    for (int64_t i = threadIdx.x; x && i < n; i += THREADS) x[i] = 0.0f;
}

/* average = beta * average + add * pending; pending = 0 */
__device__ static void commit(void *to, void *from, int64_t n, double beta, double add)
{
    float *average = (float *)to, *pending = (float *)from;
    for (int64_t i = threadIdx.x; pending && i < n; i += THREADS) {
        average[i] = (float)(beta * (double)average[i] + add * (double)pending[i]);
        pending[i] = 0.0f;
    }
}

/* What one thread sees of the map's pending sums; factors of a, p and t. */
__device__ static bool pending_is_finite(const abar__kept_map &m, const double factor[3])
{
    const double t = m.pending_t ? *m.pending_t * factor[2] : 0.0;
    return all_finite(m.pending_a, m.d, factor[0]) && all_finite(m.pending_p, m.out, factor[1]) && isfinite(t);
}

/* Linked maps are judged by a launch of their own, before any of them is touched. Block b: map first + b. */
static __global__ void __launch_bounds__(THREADS)
    judge_maps(const abar__cuda_map *maps, int first, const __grid_constant__ means factors, int32_t *spoiled)
{
    const int at = first + (int)blockIdx.x;
    const bool fine = __syncthreads_and(pending_is_finite(maps[at].map, factors.factor + 3 * blockIdx.x));
    if (threadIdx.x == 0) spoiled[at] = !fine;
}

__device__ static bool link_is_spoiled(const abar__kept_map &m, const int32_t *spoiled)
{
    bool bad = false;
    for (int i = 0; i < m.links; i++) bad = bad || spoiled[m.link + i];
    return bad;
}

__device__ static void forget_pending(const abar__kept_map &m)
{
    clear(m.pending_a, m.d);
    clear(m.pending_p, m.out);
    if (threadIdx.x == 0 && m.pending_t) *m.pending_t = 0.0;
}

/* The whole block works on one copy of the state; thread 0 writes it back. Factors of a, p and t. */
__device__ static void commit_all(const abar__kept_map &m, abar__map_state &s, const double factor[3], double beta,
                                  const int32_t *spoiled)
{
    const double t = m.pending_t ? *m.pending_t * factor[2] : 0.0;
    const bool fine = m.links > 1 ? !link_is_spoiled(m, spoiled) : pending_is_finite(m, factor);
    if (!__syncthreads_and(fine)) { /* all threads have read t */
        s.count[ABAR_COUNT_DROPPED]++;
        forget_pending(m);
        return;
    }
    commit(m.average_a, m.pending_a, m.d, beta, (1.0 - beta) * factor[0]);
    commit(m.average_p, m.pending_p, m.out, beta, (1.0 - beta) * factor[1]);
    if (m.pending_t) {
        s.real[ABAR_REAL_NUMBER] = beta * s.real[ABAR_REAL_NUMBER] + (1.0 - beta) * t;
        if (threadIdx.x == 0) *m.pending_t = 0.0;
    }
    s.count[ABAR_COUNT_COMMITS]++;
}

/* u from the average (mean_side.c). */
__device__ static void derive(const abar__kept_map &m, abar__map_state &s, double unbias, double *shared)
{
    const float *average = (const float *)m.average_a;
    double square = 0.0, rho = m.rho;
    for (int64_t i = threadIdx.x; i < m.d; i += THREADS) square += (double)average[i] * (double)average[i];
    square = unbias * unbias * block_sum(square, shared);
    if (m.pending_t) {
        const double t = unbias * s.real[ABAR_REAL_NUMBER];
        rho = fmax((t - square) / (double)m.d, 1e-8 * t / (double)m.d);
    }
    const double length = rho + square, factor = length > 0.0 ? unbias / sqrt(length) : 0.0;
    for (int64_t i = threadIdx.x; i < m.d; i += THREADS) ((float *)m.u)[i] = (float)(factor * (double)average[i]);
    s.real[ABAR_REAL_DAMPING] = rho;
    s.real[ABAR_REAL_MEAN_SQUARE] = square;
    s.real[ABAR_REAL_CONDITION] = length / rho;
}

/* Returns whether u is new. */
__device__ static bool refresh_all(const abar__kept_map &m, abar__map_state &s, bool scheduled, double beta, double *shared)
{
    if (!scheduled && !s.count[ABAR_COUNT_DUE]) return false;
    if (s.count[ABAR_COUNT_COMMITS] == 0 || (m.fixed && !s.count[ABAR_COUNT_CALIBRATED])) { /* nothing to derive from yet */
        s.count[ABAR_COUNT_DUE] = 1;
        return false;
    }
    s.count[ABAR_COUNT_DUE] = 0;
    s.count[ABAR_COUNT_READY] = 1;
    const double unbias = 1.0 / (1.0 - pow(beta, (double)s.count[ABAR_COUNT_COMMITS]));
    const float *p = (const float *)m.average_p;
    for (int64_t i = threadIdx.x; p && i < m.out; i += THREADS)
        ((float *)m.r)[i] = (float)(1.0 / (unbias * (double)p[i] + m.diagonal));
    if (m.fixed) return false;
    derive(m, s, unbias, shared);
    return true;
}

/* How the update shall treat this map. */
__device__ static abar__cuda_form form_of(const abar__cuda_map &map, abar__map_state &s, const abar__cuda_live &l)
{
    const abar__kept_map &m = map.map;
    abar__cuda_form form = {ABAR_FORM_PLAIN, 1.0f};
    if (!s.count[ABAR_COUNT_READY] || !map.grad) return form;
    const double rho = s.real[ABAR_REAL_DAMPING], outer = m.coupled && rho > 0.0 ? 1.0 / rho : 1.0;
    if (m.inverse) {
        form.kind = ABAR_FORM_DENSE;
        form.scale = (float)(rho * outer);
        return form;
    }
    const double bound = m.coupled ? outer : m.bound;               /* |G^| is at most this times |G| */
    if (!(fmax(bound, 1.0) * l.norm * fmax(l.scale, 1.0) < 1e36)) { /* float32 could not hold it */
        s.count[ABAR_COUNT_KEPT]++;
        return form;
    }
    form.kind = ABAR_FORM_RANK1;
    form.scale = (float)outer;
    return form;
}

__device__ static bool on_schedule(const abar__cuda_schedule &c, int64_t k, int64_t number)
{
    const int64_t shift = c.spread ? number * c.tinv / c.numbers : 0;
    return k == 0 || (k - shift) % c.tinv == 0;
}

/* Block b keeps map first + b: commits what is pending where the step observed, refreshes what is due. */
static __global__ void __launch_bounds__(THREADS)
    keep_maps(const abar__cuda_map *maps, int first, abar__map_state *states, abar__cuda_form *forms, int32_t *stale,
              const abar__cuda_live *now, const __grid_constant__ means factors, bool observed, const int32_t *spoiled,
              abar__cuda_schedule c)
{
    __shared__ double shared[32];
    const int at = first + (int)blockIdx.x;
    const abar__cuda_map map = maps[at];
    const abar__kept_map &m = map.map;
    const abar__cuda_live l = *now;
    const bool scheduled = on_schedule(c, l.now, m.number);
    abar__map_state s = states[at];
    const bool outside = stale[at] != 0;
    __syncthreads(); /* all have read what thread 0 will write */
    if (l.numbers.skip) {
        forget_pending(m);
        if (scheduled && threadIdx.x == 0) states[at].count[ABAR_COUNT_DUE] = 1;
        return;
    }
    const double *factor = factors.factor + 3 * blockIdx.x;
    if (observed && (factor[0] != 0.0 || factor[1] != 0.0 || factor[2] != 0.0)) commit_all(m, s, factor, c.beta, spoiled);
    __syncthreads(); /* averages are complete */
    const bool fresh = refresh_all(m, s, scheduled, c.beta, shared);
    __syncthreads(); /* and u */
    if (m.u && map.ordered && (fresh || outside)) {
        const float *u = (const float *)m.u;
        const int64_t channels = map.columns / m.kernel;
        for (int64_t i = threadIdx.x; i < m.d; i += THREADS)
            map.ordered[i] = i < map.columns ? u[i % channels * m.kernel + i / channels] : u[i];
    }
    if (threadIdx.x != 0) return;
    forms[at] = form_of(map, s, l);
    states[at] = s;
    stale[at] = 0;
}

/* ---- maps with an inverse (first layer, dataset-cov) -------------------------------------------------------------- */

/* Thread (i, o): element i of row o of G times the inverse, in PyTorch's order of columns. */
static __global__ void multiply_inverse(const abar__cuda_map *maps, int at, const abar__cuda_form *forms, int32_t *broken)
{
    const abar__cuda_map map = maps[at];
    const abar__kept_map &m = map.map;
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, o = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    if (forms[at].kind != ABAR_FORM_DENSE || i >= m.d || o >= m.out) return;
    const int64_t channels = map.columns / m.kernel;
    const float *inverse = (const float *)m.inverse, *row = map.grad + o * map.columns;
    float sum = 0.0f;
    for (int64_t c = 0; c < channels; c++)
        for (int64_t k = 0; k < m.kernel; k++) sum += row[k * channels + c] * inverse[(c * m.kernel + k) * m.d + i];
    if (m.d > map.columns && map.bias_grad) sum += map.bias_grad[o] * inverse[map.columns * m.d + i];
    if (i < map.columns)
        map.product[o * map.columns + i % m.kernel * channels + i / m.kernel] = sum;
    else
        map.product[m.out * map.columns + o] = sum;
    const float applied = sum * forms[at].scale * (m.r ? ((const float *)m.r)[o] : 1.0f);
    if (!isfinite(applied)) atomicOr(broken + at, 1);
}

/* A product that is not finite: the gradient stays as it is. */
static __global__ void judge_inverse(int at, abar__map_state *states, abar__cuda_form *forms, int32_t *broken,
                                     const abar__cuda_live *now)
{
    if (broken[at] && !now->numbers.skip) {
        forms[at].kind = ABAR_FORM_PLAIN;
        forms[at].scale = 1.0f;
        states[at].count[ABAR_COUNT_KEPT]++;
    }
    broken[at] = 0;
}

/* Block b: <G,G>, <G^,G>, <G^,G^> of map b. A warp owns every (blockDim / 32)-th row. */
static __global__ void compare_maps(const abar__cuda_map *maps, const abar__cuda_form *forms, double *out)
{
    __shared__ double shared[32];
    const abar__cuda_map map = maps[blockIdx.x];
    const abar__kept_map &m = map.map;
    const abar__cuda_form form = forms[blockIdx.x];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const bool rank1 = form.kind == ABAR_FORM_RANK1, dense = form.kind == ABAR_FORM_DENSE;
    double rr = 0.0, sums[3] = {0.0, 0.0, 0.0};
    for (int64_t i = threadIdx.x; rank1 && i < (map.bias_grad ? m.d : map.columns); i += blockDim.x)
        rr += (double)map.ordered[i] * (double)map.ordered[i];
    rr = block_sum(rr, shared);
    for (int64_t o = warp; map.grad && o < m.out; o += warps) {
        double gg = 0.0, gh = 0.0, hh = 0.0; /* h: u, or the row of the product */
        for (int64_t i = lane; i <= map.columns; i += 32) {
            const bool bias = i == map.columns;
            if (bias && !map.bias_grad) continue;
            const double g = bias ? map.bias_grad[o] : map.grad[o * map.columns + i];
            const double h = rank1   ? map.ordered[i]
                             : dense ? (bias ? map.product[m.out * map.columns + o] : map.product[o * map.columns + i])
                                     : 0.0;
            gg += g * g;
            gh += g * h;
            hh += h * h;
        }
        gg = warp_sum(gg);
        gh = warp_sum(gh);
        hh = warp_sum(hh);
        const double scale = (double)form.scale * (form.kind != ABAR_FORM_PLAIN && m.r ? (double)((const float *)m.r)[o] : 1.0);
        if (lane != 0) continue;
        sums[0] += gg;
        sums[1] += scale * (dense ? gh : gg - gh * gh);
        sums[2] += scale * scale * (dense ? hh : gg - 2.0 * gh * gh + gh * gh * rr);
    }
    for (int i = 0; i < 3; i++) {
        const double sum = block_sum(sums[i], shared);
        if (threadIdx.x == 0) out[3 * blockIdx.x + i] = sum;
    }
}

/* ---- the host's side ---------------------------------------------------------------------------------------------- */

static void multiply_inverses(abar_device *dev, const abar__cuda_maps *m)
{
    for (int i = 0; m->n_dense > 0 && i < m->n; i++) {
        const abar__kept_map *map = &m->host[i].map;
        if (!map->inverse) continue;
        const dim3 blocks((unsigned)abar__cuda_blocks(map->d, 32), (unsigned)abar__cuda_blocks(map->out, 8));
        abar__cuda_launch(dev, multiply_inverse, blocks, dim3(32, 8), 0, m->maps, i, m->forms, m->broken);
    }
}

/* Maps of the launch that begins with this one, and their factors; to_mean NULL: none. */
static int maps_from(const abar__cuda_maps *m, int first) { return m->n - first < MEANS ? m->n - first : MEANS; }

static means means_of(const double *to_mean, int first, int n)
{
    means factors = {};
    if (to_mean) memcpy(factors.factor, to_mean + 3 * first, 3 * (size_t)n * sizeof *to_mean);
    return factors;
}

extern "C" void abar__cuda_keep_maps(abar_device *dev, const abar__cuda_maps *m, const double *to_mean,
                                     abar__cuda_schedule schedule)
{
    for (int first = 0; first < m->n && to_mean && m->n_linked > 0; first += MEANS) {
        const int n = maps_from(m, first);
        abar__cuda_launch(dev, judge_maps, dim3((unsigned)n), dim3(THREADS), 0, m->maps, first, means_of(to_mean, first, n),
                          m->spoiled);
    }
    for (int first = 0; first < m->n; first += MEANS) {
        const int n = maps_from(m, first);
        abar__cuda_launch(dev, keep_maps, dim3((unsigned)n), dim3(THREADS), 0, m->maps, first, m->states, m->forms, m->stale,
                          m->now, means_of(to_mean, first, n), to_mean != NULL, m->spoiled, schedule);
    }
    multiply_inverses(dev, m);
    for (int i = 0; m->n_dense > 0 && i < m->n; i++)
        if (m->host[i].map.inverse)
            abar__cuda_launch(dev, judge_inverse, dim3(1), dim3(1), 0, i, m->states, m->forms, m->broken, m->now);
}

extern "C" abar_status abar__cuda_compare_maps(abar_device *dev, const abar__cuda_maps *m)
{
    multiply_inverses(dev, m);
    CUDA_TRY(dev, cudaMemsetAsync(m->broken, 0, (size_t)m->n * sizeof *m->broken, abar__cuda_of(dev)->stream));
    abar__cuda_launch(dev, compare_maps, dim3((unsigned)m->n), dim3(512), 0, m->maps, m->forms, m->products);
    return abar__cuda_status(dev);
}
