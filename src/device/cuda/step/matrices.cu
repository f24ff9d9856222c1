/* Maps whose preconditioner is made of matrices (methods.md sections 0, 1, 4 to 7, 9): squares are judged and committed tile by
 * tile, a block for each map asks for the inverses that are due and derives what goes with them. The inverting is in
 * factors/inverse.cu, the multiplying in factors/apply.cu. */
#include "device/cuda/step/maps.h"

#define THREADS ABAR_MAP_THREADS
#define TILE ABAR_TILE
#define APART (THREADS / TILE) /* rows of a tile between those of a thread */
#define SHARE (TILE / APART)   /* elements of a tile that a thread owns */

/* ---- squares ------------------------------------------------------------------------------------------------------ */

/* A tile of the lower triangle of a pending sum: thread x owns column x % TILE of every (THREADS / TILE)-th row. */
struct tile {
    int at, which; /* map, average */
    int64_t n, down, left;
    float *average, *pending;
};

__device__ static tile tile_of(const abar__cuda_map *maps, const abar__cuda_unit &unit)
{
    const int at = unit.item / 2, which = unit.item % 2;
    const abar__running_average &a = maps[at].plan.average[which];
    return {at,
            which,
            a.n,
            TILE * (int64_t)(unit.first >> 16),
            TILE * (int64_t)(unit.first & 0xffff),
            (float *)a.average,
            (float *)a.pending};
}

/* Block b judges tile b; the first of a map judges its vectors and its number too. first: of the maps whose factors came. */
static __global__ void __launch_bounds__(THREADS)
    judge_tiles(const abar__cuda_map *maps, const abar__cuda_unit *units, int first, const abar__cuda_live *now,
                const __grid_constant__ abar__cuda_means means, int32_t *spoiled)
{
    if (now->numbers.skip) return;
    const tile t = tile_of(maps, units[blockIdx.x]);
    const double *factor = means.factor + 3 * (t.at - first), scale = factor[t.which];
    const int64_t column = t.left + threadIdx.x % TILE;
    bool fine = true;
    float x[SHARE];
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int64_t row = t.down + threadIdx.x / TILE + i * APART;
        x[i] = row < t.n && column <= row ? t.pending[row * t.n + column] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < SHARE; i++) fine = fine && isfinite(x[i]) && isfinite((float)(scale * (double)x[i]));
    if (t.which == 0 && t.down == 0) fine = vectors_are_finite(maps[t.at].plan, factor) && fine;
    if (!__syncthreads_and(fine) && threadIdx.x == 0) atomicOr(spoiled + t.at, 1);
}

/* Block b commits tile b, or forgets it: average = beta * average + (1 - beta) * factor * pending, transposed; pending = 0. */
static __global__ void __launch_bounds__(THREADS)
    commit_tiles(const abar__cuda_map *maps, const abar__cuda_unit *units, int first, const abar__cuda_live *now,
                 const __grid_constant__ abar__cuda_means means, const int32_t *spoiled, double beta)
{
    __shared__ float turned[TILE][TILE + 1];
    const tile t = tile_of(maps, units[blockIdx.x]);
    const double add = (1.0 - beta) * means.factor[3 * (t.at - first) + t.which];
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    float v[SHARE];
#pragma unroll
    for (int i = 0; i < SHARE; i++) { /* all of them before the first is waited for */
        const int64_t row = t.down + y + i * APART, column = t.left + x;
        v[i] = row < t.n && column <= row ? t.pending[row * t.n + column] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int64_t row = t.down + y + i * APART, column = t.left + x;
        turned[x][y + i * APART] = v[i];
        if (row < t.n && column <= row) t.pending[row * t.n + column] = 0.0f;
    }
    if (now->numbers.skip || spoiled[t.at] || !was_observed(means.factor + 3 * (t.at - first))) return; /* the whole block */
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int64_t row = t.left + y + i * APART, column = t.down + x; /* of the upper triangle */
        v[i] = column < t.n && row <= column ? t.average[row * t.n + column] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int64_t row = t.left + y + i * APART, column = t.down + x;
        if (column >= t.n || row > column) continue;
        t.average[row * t.n + column] = (float)(beta * (double)v[i] + add * (double)turned[y + i * APART][x]);
    }
}

/* ---- what is due -------------------------------------------------------------------------------------------------- */

/* All matrices of the plan that are renewed, by their dampings. */
__device__ static void ask(const abar__cuda_map &map, abar__cuda_inversion *asked, double unbias, const double *v)
{
    for (int i = 0; i < 2 && map.factor[i] >= 0; i++) {
        abar__cuda_inversion *a = asked + map.factor[i];
        a->scale = unbias;
        a->shift = abar__scalar_or(v, map.plan.derived[map.matrix[i]].shift, 0.0);
        a->wanted = 1;
    }
}

/* Block b: map first + b. Commits its vectors, counts what became of its sums, asks for the inverses that are due. divided:
 * those that another rank makes come later. */
static __global__ void __launch_bounds__(THREADS) plan_maps(const __grid_constant__ abar__cuda_maps k, int first,
                                                            const __grid_constant__ abar__cuda_means means, bool divided)
{
    __shared__ double shared[32];
    const int at = first + (int)blockIdx.x;
    const abar__cuda_map &map = k.maps[at];
    const abar__plan &m = map.plan;
    if (!abar__plan_is_dense(&m)) return;
    const bool skip = k.now->numbers.skip, squares = map.factor[0] >= 0, spoiled = k.spoiled[at];
    const int64_t now = k.now->now;
    abar__map_state s = k.states[at];
    __syncthreads(); /* all have read what thread 0 will write */
    if (threadIdx.x == 0) k.spoiled[at] = k.tried[map.dense] = 0;
    if (skip) {
        skip_map(k.cadence, m, &k.states[at], now);
        return;
    }
    const double *factor = means.factor + 3 * blockIdx.x;
    bool committed = false;
    if (was_observed(factor))
        committed = commit_vectors(m, s, factor, k.cadence.stat_decay, squares ? !spoiled : vectors_are_finite(m, factor));
    __syncthreads(); /* averages are complete */
    if (refreshes(k.cadence, m, s, now, committed)) {
        double v[ABAR_PLAN_SCALARS];
        const double unbias = unbias_of(m, s, k.cadence.stat_decay);
        find_scalars(m, s, unbias, v, shared);
        if (map.factor[0] < 0) { /* matrices that stay as they were calibrated */
            derive_vectors(m, s, unbias, v);
            s.count[ABAR_COUNT_READY] = 1;
        } else if (threadIdx.x == 0) {
            if (!divided || !map.elsewhere) ask(map, k.asked, unbias, v);
            k.tried[map.dense] = 1;
        }
    }
    if (threadIdx.x == 0) k.states[at] = s;
}

/* ---- what came of it ---------------------------------------------------------------------------------------------- */

/* Counts the rungs of the map's factors; returns whether they have new inverses. The first one's condition is told. */
__device__ static bool count_rungs(const abar__cuda_map &map, const abar__cuda_inversion *asked, abar__map_state &s)
{
    for (int i = 0; i < 2 && map.factor[i] >= 0; i++) {
        s.count[ABAR_COUNT_RAISED] += asked[map.factor[i]].raised;
        s.count[ABAR_COUNT_DOUBLED] += asked[map.factor[i]].doubled;
    }
    const abar__cuda_inversion &a = asked[map.factor[0]];
    if (a.valid && map.plan.derived[map.matrix[0]].values < 0) s.real[ABAR_REAL_CONDITION] = a.condition;
    return a.valid != 0;
}

/* Block j: dense map j. Afterwards it is known which gradients are to be multiplied. */
static __global__ void __launch_bounds__(THREADS) settle_maps(const __grid_constant__ abar__cuda_maps k)
{
    __shared__ double shared[32];
    const int j = (int)blockIdx.x, at = k.dense[j];
    const abar__cuda_map &map = k.maps[at];
    const bool tried = k.tried[j] != 0, skip = k.now->numbers.skip != 0;
    abar__map_state s = k.states[at];
    __syncthreads();                             /* all have read what thread 0 will write */
    if (tried && count_rungs(map, k.asked, s)) { /* the same for all threads */
        double v[ABAR_PLAN_SCALARS];
        const double unbias = unbias_of(map.plan, s, k.cadence.stat_decay);
        find_scalars(map.plan, s, unbias, v, shared);
        derive_vectors(map.plan, s, unbias, v);
        s.count[ABAR_COUNT_READY] = 1;
    } else if (tried) {
        s.count[ABAR_COUNT_KEPT]++;
    }
    if (threadIdx.x != 0) return;
    k.active[j] = s.count[ABAR_COUNT_READY] && map.grad && !skip;
    if (tried) k.states[at] = s;
}

/* ---- forms -------------------------------------------------------------------------------------------------------- */

/* Whether the product of dense map j, with *scale, is to be taken for its gradient. */
__device__ static bool takes_product(const abar__cuda_maps &k, int j, const abar__cuda_live &l, double *scale)
{
    const abar__treatment &t = k.maps[k.dense[j]].plan.apply;
    const abar__map_state &s = k.states[k.dense[j]];
    *scale = abar__outer_scale(&t, &s);
    if (!k.active[j] || k.broken[j]) return false;
    if (!(t.mu > 0.0)) return true;
    *scale *= abar__own_length(t.mu, k.sums[3 * j + 1], l.scale);
    /* the factor divides by its damping at least, the rows by theirs */
    const double bound = t.bound / s.real[ABAR_REAL_DAMPING];
    return isfinite(*scale) && (fabs(*scale) <= 1.0 || !would_overflow(l, fabs(*scale) * bound));
}

/* Block (b, y): its share of dense map first + y, whose product makes workspace for the next wave: into the gradient's place.
 */
static __global__ void __launch_bounds__(THREADS) take_back(const __grid_constant__ abar__cuda_maps k, int first)
{
    const int j = first + (int)blockIdx.y;
    const abar__cuda_map &map = k.maps[k.dense[j]];
    double scale;
    if (!takes_product(k, j, *k.now, &scale)) return;
    const int64_t n = map.plan.out * map.plan.columns, quads = (uintptr_t)map.grad % 16 == 0 ? n / 4 : 0;
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, apart = (int64_t)gridDim.x * THREADS;
    for (int64_t i = at; i < quads; i += apart) store_pack(map.grad + 4 * i, load_pack(map.product + 4 * i));
    for (int64_t i = 4 * quads + at; i < n; i += apart) map.grad[i] = map.product[i];
    for (int64_t i = at; map.bias_grad && i < map.plan.out; i += apart) map.bias_grad[i] = map.product[n + i];
}

/* One block: the KL clip joins all maps, those with means too. clips: whether they have sums for it. */
static __global__ void __launch_bounds__(THREADS) conclude_dense(const __grid_constant__ abar__cuda_maps k, bool clips)
{
    __shared__ double shared[32];
    const abar__cuda_live l = *k.now;
    if (l.numbers.skip) return;
    double sum = 0.0;
    for (int j = (int)threadIdx.x; j < k.n_dense; j += THREADS) {
        const int at = k.dense[j];
        double scale;
        const bool takes = takes_product(k, j, l, &scale);
        k.forms[at] = {takes ? ABAR_FORM_DENSE : ABAR_FORM_PLAIN, takes ? (float)scale : 1.0f, 1.0f};
        if (takes) sum += scale * k.sums[3 * j + 1];
        if (k.active[j] && !takes) k.states[at].count[ABAR_COUNT_KEPT]++;
    }
    for (int i = (int)threadIdx.x; clips && i < k.n * ABAR_CLIP_BLOCKS; i += THREADS) sum += k.clip_sums[i];
    clip_forms(k, l, sum, shared);
}

/* ---- the host's side ---------------------------------------------------------------------------------------------- */

static void commit_squares(abar_device *dev, const abar__cuda_maps *m, const double *to_mean)
{
    for (int first = 0; first < m->n; first += ABAR_MEANS) {
        const int n = abar__cuda_maps_from(m, first);
        const int64_t from = m->first_tile[first], tiles = m->first_tile[first + n] - from;
        if (tiles == 0) continue;
        const abar__cuda_means means = abar__cuda_means_of(to_mean, first, n);
        abar__cuda_launch(dev, judge_tiles, dim3((unsigned)tiles), dim3(THREADS), 0, m->maps, m->tiles + from, first, m->now,
                          means, m->spoiled);
        abar__cuda_launch(dev, commit_tiles, dim3((unsigned)tiles), dim3(THREADS), 0, m->maps, m->tiles + from, first, m->now,
                          means, m->spoiled, m->cadence.stat_decay);
    }
}

static abar_status multiply(abar_device *dev, const abar__cuda_maps *m)
{
    for (int wave = 0; wave < m->n_waves; wave++) {
        const int first = m->first_dense[wave], n = m->first_dense[wave + 1] - first;
        ABAR_TRY(abar__cuda_multiply(dev, m->multiplier, wave, m->active, m->sums, m->broken));
        if (wave < m->n_waves - 1) abar__cuda_launch(dev, take_back, dim3(128, (unsigned)n), dim3(THREADS), 0, *m, first);
    }
    return ABAR_OK;
}

extern "C" abar_status abar__cuda_keep_matrices(abar_device *dev, const abar__cuda_maps *m, const double *to_mean, bool divided)
{
    if (to_mean) commit_squares(dev, m, to_mean);
    for (int first = 0; first < m->n; first += ABAR_MEANS) {
        const int n = abar__cuda_maps_from(m, first);
        abar__cuda_launch(dev, plan_maps, dim3((unsigned)n), dim3(THREADS), 0, *m, first,
                          abar__cuda_means_of(to_mean, first, n), divided);
    }
    return m->inverter ? abar__cuda_invert_wanted(dev, m->inverter) : abar__cuda_status(dev);
}

extern "C" abar_status abar__cuda_settle_matrices(abar_device *dev, const abar__cuda_maps *m)
{
    abar__cuda_launch(dev, settle_maps, dim3((unsigned)m->n_dense), dim3(THREADS), 0, *m);
    return abar__cuda_status(dev);
}

extern "C" abar_status abar__cuda_treat_matrices(abar_device *dev, const abar__cuda_maps *m)
{
    ABAR_TRY(multiply(dev, m));
    abar__cuda_launch(dev, conclude_dense, dim3(1), dim3(THREADS), 0, *m, clips_means(m));
    return abar__cuda_status(dev);
}
