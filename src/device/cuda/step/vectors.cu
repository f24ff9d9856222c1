/* Maps whose preconditioner is made of vectors, one block each (methods.md sections 0, 1, 3, 6, 7, 9): what is pending is
 * checked and committed, what is due is derived again, and the passes are told how to treat the gradient. */
#include "device/cuda/step/maps.h"

#define THREADS ABAR_MAP_THREADS

/* ---- maps --------------------------------------------------------------------------------------------------------- */

/* Linked maps are judged by a launch of their own, before any of them is touched. Block b: map first + b. */
static __global__ void __launch_bounds__(THREADS)
    judge_maps(const abar__cuda_map *maps, int first, const __grid_constant__ abar__cuda_means means, int32_t *spoiled)
{
    const int at = first + (int)blockIdx.x;
    const bool fine = __syncthreads_and(vectors_are_finite(maps[at].plan, means.factor + 3 * blockIdx.x));
    if (threadIdx.x == 0) spoiled[at] = !fine;
}

__device__ static bool link_is_spoiled(const abar__plan &m, const int32_t *spoiled)
{
    bool bad = false;
    for (int i = 0; i < m.links; i++) bad = bad || spoiled[m.link + i];
    return bad;
}

/* Returns whether u is new. */
__device__ static bool refresh_all(const abar__plan &m, abar__map_state &s, double beta, double *shared)
{
    double v[ABAR_PLAN_SCALARS];
    const double unbias = unbias_of(m, s, beta);
    s.count[ABAR_COUNT_READY] = 1;
    find_scalars(m, s, unbias, v, shared);
    derive_vectors(m, s, unbias, v);
    return m.apply.u >= 0 && !m.derived[m.apply.u].calibrated;
}

/* How the passes shall treat a map from which rank 1 is subtracted. */
__device__ static abar__cuda_form form_of(const abar__cuda_map &map, abar__map_state &s, const abar__cuda_live &l)
{
    const abar__treatment &t = map.plan.apply;
    abar__cuda_form form = {ABAR_FORM_PLAIN, 1.0f, 1.0f};
    if (!s.count[ABAR_COUNT_READY] || !map.grad) return form;
    const double outer = abar__outer_scale(&t, &s);
    if (would_overflow(l, outer * t.bound)) {
        s.count[ABAR_COUNT_KEPT]++;
        return form;
    }
    form.kind = ABAR_FORM_RANK1;
    form.scale = (float)outer;
    return form;
}

__device__ static void order_u(const abar__cuda_map &map)
{
    const abar__plan &m = map.plan;
    const float *u = (const float *)abar__plan_data(&m, m.apply.u);
    const int64_t channels = m.columns / m.kernel;
    for (int64_t i = threadIdx.x; u && map.ordered && i < m.d; i += THREADS)
        map.ordered[i] = i < m.columns ? u[i % channels * m.kernel + i / channels] : u[i];
}

/* Block b: map b. */
static __global__ void __launch_bounds__(THREADS) order_maps(const abar__cuda_map *maps) { order_u(maps[blockIdx.x]); }

/* Block b keeps map first + b: commits what is pending where the step observed, refreshes what is due. */
static __global__ void __launch_bounds__(THREADS)
    keep_maps(const abar__cuda_map *maps, int first, abar__map_state *states, abar__cuda_form *forms,
              const abar__cuda_live *now, const __grid_constant__ abar__cuda_means means, const int32_t *spoiled,
              abar__cadence c)
{
    __shared__ double shared[32];
    const int at = first + (int)blockIdx.x;
    const abar__cuda_map &map = maps[at];
    const abar__plan &m = map.plan;
    if (abar__plan_is_dense(&m)) return;
    const abar__cuda_live l = *now;
    abar__map_state s = states[at];

    __syncthreads(); /* all have read what thread 0 will write */
    if (l.numbers.skip) {
        skip_map(c, m, &states[at], l.now);
        return;
    }
    const double *factor = means.factor + 3 * blockIdx.x;
    bool committed = false;
    if (was_observed(factor)) {
        const bool fine = m.links > 1 ? !link_is_spoiled(m, spoiled) : vectors_are_finite(m, factor);
        committed = commit_vectors(m, s, factor, c.stat_decay, fine);
    }
    __syncthreads(); /* averages are complete */
    const bool fresh = refreshes(c, m, s, l.now, committed) && refresh_all(m, s, c.stat_decay, shared);
    __syncthreads(); /* and u */

    if (fresh) order_u(map);
    if (threadIdx.x != 0) return;
    if (m.apply.w < 0) forms[at] = form_of(map, s, l);

    states[at] = s;
}

/* ---- outer products: what the gradients have to do with u and w, and the KL clip
 * ---------------------------------------------- */

__device__ static const float *left_of(const abar__cuda_map &map)
{
    return (const float *)abar__plan_data(&map.plan, map.plan.apply.w);
}

__device__ static const float *row_scale_of(const abar__cuda_map &map)
{
    return (const float *)abar__plan_data(&map.plan, map.plan.apply.row_scale);
}

/* Elements first .. last of a map's gradient: what one thread adds to <G, G> and to wT G u. */
__device__ static void add_elements(const abar__cuda_map &map, int64_t first, int64_t last, double *gg, double *inner)
{
    const int64_t columns = map.plan.columns;
    const float *w = left_of(map);
    const bool vectors = columns % 4 == 0 && (uintptr_t)map.grad % 16 == 0 && last <= UINT32_MAX; /* first is a multiple of 4 */
#pragma unroll 4
    for (int64_t i = first + 4 * threadIdx.x; vectors && i < last; i += 4 * THREADS) {
        const pack<float> g = load_pack(map.grad + i);
        const int64_t o = (uint32_t)i / (uint32_t)columns;
        const pack<float> u = load_pack(map.ordered + (i - o * columns));
        double product = 0.0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            *gg += (double)g.v[e] * (double)g.v[e];
            product += (double)g.v[e] * (double)u.v[e];
        }
        *inner += (double)w[o] * product;
    }
    for (int64_t i = first + threadIdx.x; !vectors && i < last; i += THREADS) {
        const double g = map.grad[i];
        *gg += g * g;
        *inner += (double)w[i / columns] * (g * (double)map.ordered[i % columns]);
    }
}

__device__ static void add_bias(const abar__cuda_map &map, double *gg, double *inner)
{
    const double u = map.ordered[map.plan.columns];
    for (int64_t o = threadIdx.x; o < map.plan.out; o += THREADS) {
        const double g = map.bias_grad[o];
        *gg += g * g;
        *inner += (double)left_of(map)[o] * (g * u);
    }
}

/* The sums of a map's units, by one block and in their order. */
__device__ static void join_units(const abar__cuda_map &map, const double *unit_sums, double *out, double *shared)
{
    for (int k = 0; k < 2; k++) {
        double sum = 0.0;
        for (int i = (int)threadIdx.x; i < map.units; i += THREADS) sum += __ldcg(unit_sums + 2 * (map.unit + i) + k);
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) out[k] = sum;
    }
}

/* The form of one map, but for the KL clip; returns its <G^, G>, 0 where the gradient stays as it is. */
__device__ static double form_of_outer(const abar__cuda_map &map, abar__map_state *s, const abar__cuda_live &l,
                                       const double *map_sums, abar__cuda_form *form)
{
    const double sums[2] = {__ldcg(map_sums), __ldcg(map_sums + 1)};
    *form = {ABAR_FORM_PLAIN, 1.0f, 1.0f};
    if (!s->count[ABAR_COUNT_READY] || !map.grad) return 0.0;
    const abar__treatment &t = map.plan.apply;
    const double outer = abar__outer_scale(&t, s);
    if (would_overflow(l, outer * t.bound)) {
        s->count[ABAR_COUNT_KEPT]++;
        return 0.0;
    }
    const double factor = s->real[ABAR_REAL_FACTOR];
    *form = {ABAR_FORM_RANK1, (float)outer, (float)(factor * sums[1])};
    return outer * (sums[0] - factor * sums[1] * sums[1]);
}

/* One block, after all sums are there. */
__device__ static void conclude_outer(const abar__cuda_maps &m, double *shared)
{
    const abar__cuda_live l = *m.now;

    double sum = 0.0;
    for (int at = (int)threadIdx.x; at < m.n; at += THREADS)
        sum += form_of_outer(m.maps[at], &m.states[at], l, m.map_sums + 2 * at, &m.forms[at]);
    clip_forms(m, l, sum, shared);
}

/* Block b: unit b of the gradients. The last of a map adds up its sums, the last of all turns them into forms. */
static __global__ void __launch_bounds__(THREADS) treat_outer(const __grid_constant__ abar__cuda_maps m)
{
    __shared__ double shared[32];
    if (m.now->numbers.skip) return;
    const abar__cuda_unit unit = m.units[blockIdx.x];
    const abar__cuda_map &map = m.maps[unit.item];
    double gg = 0.0, inner = 0.0;
    if (map.grad && m.states[unit.item].count[ABAR_COUNT_READY]) {
        const int64_t first = unit.first * m.span, n = map.plan.out * map.plan.columns;
        add_elements(map, first, first + m.span < n ? first + m.span : n, &gg, &inner);
        if (first == 0 && map.bias_grad) add_bias(map, &gg, &inner);
    }
    gg = block_sum(gg, shared);
    inner = block_sum(inner, shared);
    if (threadIdx.x == 0) m.unit_sums[2 * blockIdx.x] = gg;
    if (threadIdx.x == 0) m.unit_sums[2 * blockIdx.x + 1] = inner;
    if (!last_block(&m.tickets[unit.item], (unsigned)map.units)) return;
    join_units(map, m.unit_sums, m.map_sums + 2 * unit.item, shared);
    if (last_block(&m.now->ticket, (unsigned)m.n_outer)) conclude_outer(m, shared);
}

/* ---- the KL clip of maps with means ---------------------------------------------------------------------------------- */

/* Element i of row o of the gradient; the bias is behind the columns. */
__device__ static double grad_at(const abar__cuda_map &map, int64_t o, int64_t i)
{
    if (i < map.plan.columns) return map.grad[o * map.plan.columns + i];
    return map.bias_grad ? map.bias_grad[o] : 0.0;
}

/* What it is compared with: u. A bias without gradient has none. */
__device__ static double other_at(const abar__cuda_map &map, int kind, int64_t o, int64_t i)
{
    return kind == ABAR_FORM_RANK1 && map.ordered && (i < map.plan.columns || map.bias_grad) ? map.ordered[i] : 0.0;
}

/* Block (b, y): the sum of r_o (|G_o|^2 - <G_o, u>^2), times the map's scale, over every gridDim.x-th bundle of rows of map y.
 * A warp owns a row at a time. */
static __global__ void __launch_bounds__(THREADS) sum_means(const __grid_constant__ abar__cuda_maps m)
{
    __shared__ double shared[32];
    const int at = (int)blockIdx.y;
    const abar__cuda_map &map = m.maps[at];
    if (m.now->numbers.skip || abar__plan_is_dense(&map.plan) || map.plan.apply.w >= 0) return;
    const abar__cuda_form form = m.forms[at];
    const float *r = row_scale_of(map);
    const int lane = threadIdx.x % 32, warps = THREADS / 32;
    const int64_t rows = form.kind == ABAR_FORM_RANK1 ? map.plan.out : 0; /* others stay as they are, and do not count */
    double sum = 0.0;
    for (int64_t o = (int64_t)blockIdx.x * warps + threadIdx.x / 32; o < rows; o += (int64_t)gridDim.x * warps) {
        double gg = 0.0, gu = 0.0;
        for (int64_t i = lane; i < map.plan.d; i += 32) {
            const double g = grad_at(map, o, i);
            gg += g * g;
            gu += g * other_at(map, form.kind, o, i);
        }
        gg = warp_sum(gg);
        gu = warp_sum(gu);
        if (lane == 0) sum += (r ? (double)r[o] : 1.0) * (gg - gu * gu);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) m.clip_sums[at * ABAR_CLIP_BLOCKS + (int)blockIdx.x] = (double)form.scale * sum;
}

/* One block, where there are no dense maps. */
static __global__ void __launch_bounds__(THREADS) conclude_means(const __grid_constant__ abar__cuda_maps m)
{
    __shared__ double shared[32];
    const abar__cuda_live l = *m.now;
    if (l.numbers.skip) return;
    double sum = 0.0;
    for (int i = (int)threadIdx.x; i < m.n * ABAR_CLIP_BLOCKS; i += THREADS) sum += m.clip_sums[i];
    clip_forms(m, l, sum, shared);
}

/* ---- comparing G with its preconditioned form --------------------------------------------------------------------- */

/* Block b: <G,G>, <G^,G>, <G^,G^> of map b, without the KL clip; NaN where its gradient is left as it is. A warp owns every
 * (blockDim / 32)-th row. The sums of dense maps are there already: G may be no more. */
static __global__ void compare_maps(const abar__cuda_map *maps, const abar__map_state *states, const abar__cuda_form *forms,
                                    const abar__cuda_live *now, const double *dense, double *out)
{
    __shared__ double shared[32];
    const abar__cuda_map &map = maps[blockIdx.x];
    const abar__plan &m = map.plan;
    const abar__cuda_form form = forms[blockIdx.x];
    const float *r = row_scale_of(map), *w = left_of(map);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const double clip = states[blockIdx.x].count[ABAR_COUNT_READY] ? now->state.kl_scale : 1.0;
    if (now->numbers.skip || form.kind == ABAR_FORM_PLAIN) {
        if (threadIdx.x < 3) out[3 * blockIdx.x + threadIdx.x] = NAN;
        return;
    }
    if (form.kind == ABAR_FORM_DENSE) {
        const double scale = (double)form.scale / clip, power[3] = {1.0, scale, scale * scale};
        if (threadIdx.x < 3) out[3 * blockIdx.x + threadIdx.x] = power[threadIdx.x] * dense[3 * map.dense + threadIdx.x];
        return;
    }
    double sums[3] = {0.0, 0.0, 0.0};
    for (int64_t o = warp; o < m.out; o += warps) {
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
        const bool rows = form.kind == ABAR_FORM_RANK1 && r;
        const double scale = (double)form.scale / clip * (rows ? (double)r[o] : 1.0);
        const double c = w ? (double)form.factor * (double)w[o] : gh;
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

extern "C" void abar__cuda_order_maps(abar_device *dev, const abar__cuda_maps *m)
{
    if (m->n > 0) abar__cuda_launch(dev, order_maps, dim3((unsigned)m->n), dim3(THREADS), 0, m->maps);
}

extern "C" abar_status abar__cuda_keep_vectors(abar_device *dev, const abar__cuda_maps *m, const double *to_mean)
{
    for (int first = 0; first < m->n && to_mean && m->n_linked > 0; first += ABAR_MEANS) {
        const int n = abar__cuda_maps_from(m, first);
        abar__cuda_launch(dev, judge_maps, dim3((unsigned)n), dim3(THREADS), 0, m->maps, first,
                          abar__cuda_means_of(to_mean, first, n), m->spoiled);
    }
    /* maps that commits alone refresh, and whose forms come later */
    const bool idle = !to_mean && m->n_outer == m->n && m->cadence.every_commit;
    for (int first = 0; first < m->n && m->n_dense < m->n && !idle; first += ABAR_MEANS) {
        const int n = abar__cuda_maps_from(m, first);
        abar__cuda_launch(dev, keep_maps, dim3((unsigned)n), dim3(THREADS), 0, m->maps, first, m->states, m->forms, m->now,
                          abar__cuda_means_of(to_mean, first, n), m->spoiled, m->cadence);
    }
    return abar__cuda_status(dev);
}

extern "C" void abar__cuda_treat_vectors(abar_device *dev, const abar__cuda_maps *m)
{
    if (m->n_outer > 0) abar__cuda_launch(dev, treat_outer, dim3((unsigned)m->n_units), dim3(THREADS), 0, *m);
    if (clips_means(m)) abar__cuda_launch(dev, sum_means, dim3(ABAR_CLIP_BLOCKS, (unsigned)m->n), dim3(THREADS), 0, *m);
    if (clips_means(m) && m->n_dense == 0) abar__cuda_launch(dev, conclude_means, dim3(1), dim3(THREADS), 0, *m);
}

extern "C" abar_status abar__cuda_compare_maps(abar_device *dev, const abar__cuda_maps *m)
{
    abar__cuda_launch(dev, compare_maps, dim3((unsigned)m->n), dim3(512), 0, m->maps, m->states, m->forms, m->now, m->sums,
                      m->products);
    return abar__cuda_status(dev);
}
