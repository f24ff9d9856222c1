/* The maps of an optimizer step on the device that rest on mean vectors, one block each (methods.md sections 0, 1, 3, 6, 7, 9):
 * what is pending is checked and committed, what is due is refreshed, and the update is told how to treat the gradient. What
 * curvature.c, mean_side.c and eva.c do for the other devices, in the same order and precision. */
#include "device/cuda/core_maps.h"

#define THREADS ABAR_MAP_THREADS

/* ---- maps --------------------------------------------------------------------------------------------------------- */

/* Linked maps are judged by a launch of their own, before any of them is touched. Block b: map first + b. */
static __global__ void __launch_bounds__(THREADS)
    judge_maps(const abar__cuda_map *maps, int first, const __grid_constant__ abar__cuda_means means, int32_t *spoiled)
{
    const int at = first + (int)blockIdx.x;
    const bool fine = __syncthreads_and(vectors_are_finite(maps[at].map, means.factor + 3 * blockIdx.x));
    if (threadIdx.x == 0) spoiled[at] = !fine;
}

__device__ static bool link_is_spoiled(const abar__kept_map &m, const int32_t *spoiled)
{
    bool bad = false;
    for (int i = 0; i < m.links; i++) bad = bad || spoiled[m.link + i];
    return bad;
}

__device__ static double square_of(const abar__kept_average &a, double *shared)
{
    const float *x = (const float *)a.average;
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS) sum += (double)x[i] * (double)x[i];
    return block_sum(sum, shared);
}

__device__ static void write_scaled(const abar__kept_average &a, double scale, void *to)
{
    for (int64_t i = threadIdx.x; i < a.n; i += THREADS)
        ((float *)to)[i] = (float)(scale * (double)((const float *)a.average)[i]);
}

/* u from the average (mean_side.c). */
__device__ static void derive_mean(const abar__kept_map &m, abar__map_state &s, double unbias, double *shared)
{
    const double square = unbias * unbias * square_of(m.average[0], shared);
    double rho = m.rho;
    if (m.damping == ABAR_DAMPING_ADAPTIVE) {
        const double t = unbias * s.real[ABAR_REAL_NUMBER];
        rho = fmax((t - square) / (double)m.d, 1e-8 * t / (double)m.d);
    }
    const double length = rho + square;
    write_scaled(m.average[0], length > 0.0 ? unbias / sqrt(length) : 0.0, m.u);
    s.real[ABAR_REAL_DAMPING] = rho;
    s.real[ABAR_REAL_MEAN_SQUARE] = square;
    s.real[ABAR_REAL_CONDITION] = length / rho;
}

/* u and w (eva.c). */
__device__ static void derive_eva(const abar__kept_map &m, abar__map_state &s, double unbias, double *shared)
{
    const double a = unbias * sqrt(square_of(m.average[0], shared)), p = unbias * sqrt(square_of(m.average[1], shared));
    const double q = a * a * p * p;
    write_scaled(m.average[0], a > 0.0 ? unbias / a : 0.0, m.u);
    write_scaled(m.average[1], p > 0.0 ? unbias / p : 0.0, m.w);
    s.real[ABAR_REAL_DAMPING] = m.rho;
    s.real[ABAR_REAL_MEAN_SQUARE] = a * a;
    s.real[ABAR_REAL_CONDITION] = (m.rho + q) / m.rho;
    s.real[ABAR_REAL_FACTOR] = isfinite(q) ? q / (m.rho + q) : 1.0;
}

/* Returns whether u is new. */
__device__ static bool refresh_all(const abar__kept_map &m, abar__map_state &s, double beta, double *shared)
{
    s.count[ABAR_COUNT_READY] = 1;
    const double unbias = unbias_of(s, beta);
    derive_rows(m, unbias, m.diagonal);
    if (m.fixed) return false;
    if (m.kind == ABAR_KEPT_EVA)
        derive_eva(m, s, unbias, shared);
    else
        derive_mean(m, s, unbias, shared);
    return true;
}

/* How the update shall treat a map of kind mean. */
__device__ static abar__cuda_form form_of(const abar__cuda_map &map, abar__map_state &s, const abar__cuda_live &l)
{
    const abar__kept_map &m = map.map;
    abar__cuda_form form = {ABAR_FORM_PLAIN, 1.0f, 1.0f};
    if (!s.count[ABAR_COUNT_READY] || !map.grad) return form;
    const double rho = s.real[ABAR_REAL_DAMPING], outer = m.coupled && rho > 0.0 ? 1.0 / rho : 1.0;
    if (would_overflow(l, m.coupled ? outer : m.bound)) {
        s.count[ABAR_COUNT_KEPT]++;
        return form;
    }
    form.kind = ABAR_FORM_RANK1;
    form.scale = (float)outer;
    return form;
}

/* Block b keeps map first + b: commits what is pending where the step observed, refreshes what is due. */
static __global__ void __launch_bounds__(THREADS)
    keep_maps(const abar__cuda_map *maps, int first, abar__map_state *states, abar__cuda_form *forms, int32_t *stale,
              const abar__cuda_live *now, const __grid_constant__ abar__cuda_means means, const int32_t *spoiled,
              abar__cuda_schedule c)
{
    __shared__ double shared[32];
    const int at = first + (int)blockIdx.x;
    const abar__cuda_map map = maps[at];
    const abar__kept_map &m = map.map;
    if (m.kind == ABAR_KEPT_DENSE) return;
    const abar__cuda_live l = *now;
    abar__map_state s = states[at];
    const bool outside = stale[at] != 0;
    __syncthreads(); /* all have read what thread 0 will write */
    if (l.numbers.skip) {
        skip_map(c, m, &states[at], l.now);
        return;
    }
    const double *factor = means.factor + 3 * blockIdx.x;
    bool committed = false;
    if (was_observed(factor)) {
        const bool fine = m.links > 1 ? !link_is_spoiled(m, spoiled) : vectors_are_finite(m, factor);
        committed = commit_vectors(m, s, factor, c.beta, fine);
    }
    __syncthreads(); /* averages are complete */
    const bool fresh = refreshes(c, m, s, l.now, committed) && refresh_all(m, s, c.beta, shared);
    __syncthreads(); /* and u */
    if (m.u && map.ordered && (fresh || outside)) {
        const float *u = (const float *)m.u;
        const int64_t channels = m.columns / m.kernel;
        for (int64_t i = threadIdx.x; i < m.d; i += THREADS)
            map.ordered[i] = i < m.columns ? u[i % channels * m.kernel + i / channels] : u[i];
    }
    if (threadIdx.x != 0) return;
    if (m.kind == ABAR_KEPT_MEAN) forms[at] = form_of(map, s, l);
    states[at] = s;
    stale[at] = 0;
}

/* ---- Eva: what the gradients have to do with u and w, and the KL clip ---------------------------------------------- */

/* A unit of rows, a warp each: what one lane adds to <G, G> and to wT G u. */
__device__ static void add_rows(const abar__cuda_map &map, int64_t first, double *gg, double *inner)
{
    const int64_t last = first + abar__cuda_unit_rows(map.map.d), rows = last < map.map.out ? last : map.map.out;
    const float *w = (const float *)map.map.w;
    for (int64_t o = first + threadIdx.x / 32; o < rows; o += THREADS / 32) {
        const float *row = map.grad + o * map.map.columns;
        double squares = 0.0, product = 0.0;
        for (int64_t i = threadIdx.x % 32; i < map.map.columns; i += 32) {
            squares += (double)row[i] * (double)row[i];
            product += (double)row[i] * (double)map.ordered[i];
        }
        if (threadIdx.x % 32 == 0 && map.bias_grad) {
            const double g = map.bias_grad[o];
            squares += g * g;
            product += g * (double)map.ordered[map.map.columns];
        }
        *gg += squares;
        *inner += (double)w[o] * product;
    }
}

/* The sums of a map's units, by one warp and in their order. */
__device__ static void join_rows(const abar__cuda_map &map, const double *row_sums, double *out)
{
    double gg = 0.0, inner = 0.0;
    for (int i = threadIdx.x % 32; i < map.n_rows; i += 32) {
        gg += __ldcg(row_sums + 2 * (map.rows + i));
        inner += __ldcg(row_sums + 2 * (map.rows + i) + 1);
    }
    gg = warp_sum(gg);
    inner = warp_sum(inner);
    if (threadIdx.x % 32 != 0) return;
    out[0] = gg;
    out[1] = inner;
}

/* The form of one map, but for the KL clip; returns its <G^, G>, 0 where the gradient stays as it is. */
__device__ static double form_of_eva(const abar__cuda_map &map, abar__map_state *s, const abar__cuda_live &l,
                                     const double sums[2], abar__cuda_form *form)
{
    *form = {ABAR_FORM_PLAIN, 1.0f, 1.0f};
    if (!s->count[ABAR_COUNT_READY] || !map.grad) return 0.0;
    if (would_overflow(l, map.map.bound)) {
        s->count[ABAR_COUNT_KEPT]++;
        return 0.0;
    }
    const double factor = s->real[ABAR_REAL_FACTOR];
    *form = {ABAR_FORM_RANK1, (float)map.map.scale, (float)(factor * sums[1])};
    return map.map.scale * (sums[0] - factor * sums[1] * sums[1]);
}

/* One block, after all sums are there. */
__device__ static void conclude_eva(const abar__cuda_maps &m, double *shared)
{
    const abar__cuda_live l = *m.now;
    for (int at = (int)threadIdx.x / 32; at < m.n; at += THREADS / 32) join_rows(m.maps[at], m.row_sums, m.map_sums + 2 * at);
    __syncthreads();
    double sum = 0.0;
    for (int at = (int)threadIdx.x; at < m.n; at += THREADS)
        sum += form_of_eva(m.maps[at], &m.states[at], l, m.map_sums + 2 * at, &m.forms[at]);
    const double kl_scale = kl_scale_of(m.schedule, l, block_sum(sum, shared));
    for (int at = (int)threadIdx.x; at < m.n; at += THREADS)
        if (m.states[at].count[ABAR_COUNT_READY]) m.forms[at].scale = (float)(kl_scale * (double)m.forms[at].scale);
    if (threadIdx.x == 0) m.now->state.kl_scale = kl_scale;
}

/* Block b: unit b of the rows; the last to finish turns the sums into forms. */
static __global__ void __launch_bounds__(THREADS) treat_eva(const __grid_constant__ abar__cuda_maps m)
{
    __shared__ double shared[32];
    if (m.now->numbers.skip) return;
    if ((int64_t)blockIdx.x < m.n_rows) {
        const abar__cuda_unit unit = m.rows[blockIdx.x];
        const abar__cuda_map &map = m.maps[unit.item];
        double gg = 0.0, inner = 0.0;
        if (map.grad && m.states[unit.item].count[ABAR_COUNT_READY]) add_rows(map, unit.first, &gg, &inner);
        gg = block_sum(gg, shared);
        inner = block_sum(inner, shared);
        if (threadIdx.x == 0) m.row_sums[2 * blockIdx.x] = gg;
        if (threadIdx.x == 0) m.row_sums[2 * blockIdx.x + 1] = inner;
    }
    if (last_block(&m.now->ticket, gridDim.x)) conclude_eva(m, shared);
}

/* ---- comparing G with its preconditioned form --------------------------------------------------------------------- */

/* Element i of row o of the gradient; the bias lies behind the columns. */
__device__ static double grad_at(const abar__cuda_map &map, int64_t o, int64_t i)
{
    if (i < map.map.columns) return map.grad[o * map.map.columns + i];
    return map.bias_grad ? map.bias_grad[o] : 0.0;
}

/* What it is compared with: u. A bias without gradient has none. */
__device__ static double other_at(const abar__cuda_map &map, int kind, int64_t o, int64_t i)
{
    return kind == ABAR_FORM_RANK1 && (i < map.map.columns || map.bias_grad) ? map.ordered[i] : 0.0;
}

/* Block b: <G,G>, <G^,G>, <G^,G^> of map b, without the KL clip. A warp owns every (blockDim / 32)-th row. The sums of dense
 * maps are there already: G may be no more. */
static __global__ void compare_maps(const abar__cuda_map *maps, const abar__cuda_form *forms, const abar__cuda_live *now,
                                    const double *dense, double *out)
{
    __shared__ double shared[32];
    const abar__cuda_map map = maps[blockIdx.x];
    const abar__kept_map &m = map.map;
    const abar__cuda_form form = forms[blockIdx.x];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (form.kind == ABAR_FORM_DENSE) {
        const double scale = (double)form.scale / now->state.kl_scale, power[3] = {1.0, scale, scale * scale};
        if (threadIdx.x < 3) out[3 * blockIdx.x + threadIdx.x] = power[threadIdx.x] * dense[3 * map.dense + threadIdx.x];
        return;
    }
    double sums[3] = {0.0, 0.0, 0.0};
    for (int64_t o = warp; map.grad && o < m.out; o += warps) {
        double gg = 0.0, gh = 0.0, hh = 0.0; /* h: u */
        for (int64_t i = lane; i < m.d; i += 32) {
            const double g = grad_at(map, o, i), h = other_at(map, form.kind, o, i);
            gg += g * g;
            gh += g * h;
            hh += h * h;
        }
        gg = warp_sum(gg);
        gh = warp_sum(gh);
        hh = warp_sum(hh);
        const bool rows = form.kind == ABAR_FORM_RANK1 && m.r;
        const double scale = (double)form.scale / now->state.kl_scale * (rows ? (double)((const float *)m.r)[o] : 1.0);
        const double c = m.w ? (double)form.factor * (double)((const float *)m.w)[o] : gh;
        if (lane != 0) continue;
        sums[0] += gg;
        sums[1] += scale * (gg - c * gh);
        sums[2] += scale * scale * (gg - 2.0 * c * gh + c * c * hh);
    }
    for (int i = 0; i < 3; i++) {
        const double sum = block_sum(sums[i], shared);
        if (threadIdx.x == 0) out[3 * blockIdx.x + i] = sum;
    }
}

/* ---- the host's side ---------------------------------------------------------------------------------------------- */

extern "C" abar_status abar__cuda_keep_maps(abar_device *dev, const abar__cuda_maps *m, const double *to_mean)
{
    for (int first = 0; first < m->n && to_mean && m->n_linked > 0; first += ABAR_MEANS) {
        const int n = abar__cuda_maps_from(m, first);
        abar__cuda_launch(dev, judge_maps, dim3((unsigned)n), dim3(THREADS), 0, m->maps, first,
                          abar__cuda_means_of(to_mean, first, n), m->spoiled);
    }
    for (int first = 0; first < m->n && m->n_dense < m->n; first += ABAR_MEANS) {
        const int n = abar__cuda_maps_from(m, first);
        abar__cuda_launch(dev, keep_maps, dim3((unsigned)n), dim3(THREADS), 0, m->maps, first, m->states, m->forms, m->stale,
                          m->now, abar__cuda_means_of(to_mean, first, n), m->spoiled, m->schedule);
    }
    if (m->n_eva > 0) {
        const int64_t blocks = m->n_rows > 0 ? m->n_rows : 1;
        abar__cuda_launch(dev, treat_eva, dim3((unsigned)blocks), dim3(THREADS), 0, *m);
    }
    return m->n_dense > 0 ? abar__cuda_keep_dense(dev, m, to_mean) : ABAR_OK;
}

extern "C" abar_status abar__cuda_compare_maps(abar_device *dev, const abar__cuda_maps *m)
{
    abar__cuda_launch(dev, compare_maps, dim3((unsigned)m->n), dim3(512), 0, m->maps, m->forms, m->now, m->sums, m->products);
    return abar__cuda_status(dev);
}
