/* Attention of sequences in bf16 on the tensor cores, heads of 32 or 64 columns; equations in attention.h.
 *
 * A block of four warps owns 64 MT rows of one sample and head: queries (forward, dq) or keys (dk, dv), 16 MT a warp, whose
 * fragments stay in registers; it runs over the other side 64 rows at a time, copying the next while it works on the present.
 * Probabilities go from the accumulators of one product into the left factor of the next without leaving registers. */
#include "device/cuda/attention_tiles.h"

/* Which rows a block and this lane own, and where their strip lies. */
template <int D, int MT> struct owner {
    int64_t strip, sample;
    int head, first, row; /* the block's first row; this lane's first */
    __device__ owner(const attention &a, bool last_first)
    {
        const int tiles = (a.length + TILE_ROWS * MT - 1) / (TILE_ROWS * MT), tile = (int)(blockIdx.x % (unsigned)tiles);
        strip = blockIdx.x / (unsigned)tiles;
        sample = strip / a.heads;
        head = (int)(strip % a.heads);
        first = (last_first ? tiles - 1 - tile : tile) * TILE_ROWS * MT; /* causal: the longest first */
        row = first + (int)(threadIdx.x / 32) * 16 * MT + (int)(threadIdx.x % 32 / 4);
    }
    __device__ bool works(const attention &a) const { return warp_first() < a.length; } /* whether the warp has any rows */
    __device__ int warp_first(void) const { return first + (int)(threadIdx.x / 32) * 16 * MT; }
    __device__ int64_t qkv(const attention &a) const { return sample * a.tokens * token_step(a) + (int64_t)head * D; }
    __device__ int64_t y(const attention &a) const { return sample * a.tokens * part_step(a) + (int64_t)head * D; }
};

template <int D, int MT> __device__ static inline uint32_t warp_rows(uint32_t tile)
{
    return tile + threadIdx.x / 32 * (uint32_t)(16 * MT * tile_step<D>)*(uint32_t)sizeof(bf16);
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

template <int D, int MT> struct forward_state {
    uint32_t q[MT][D / 16][4];
    float sum[MT][D / 8][4], top[MT][2], total[MT][2];
};

/* The 64 keys from `at` on. EDGE: some of them are past the end, or after some of the block's queries. */
template <int D, int MT, bool DROPS, bool EDGE>
__device__ static inline void forward_step(const attention &a, const owner<D, MT> &o, forward_state<D, MT> &f, uint32_t k,
                                           uint32_t v, int at, uint32_t when, uint64_t base)
{
    const int pair = threadIdx.x % 4;
    int chunks = TILE_ROWS / 16;
    if (EDGE) {
        const int end = a.causal ? min(a.length, o.warp_first() + 16 * MT) : a.length;
        chunks = (end - at + 15) / 16;
        if (chunks <= 0) return;
    }
    const float scale = a.scale * LOG2_E;
    float p[MT][TILE_ROWS / 8][4];
    multiply_rows<D, MT, TILE_ROWS>(p, f.q, k, chunks);
#pragma unroll
    for (int m = 0; m < MT; m++) {
        if (EDGE) {
#pragma unroll
            for (int t = 0; t < TILE_ROWS / 8; t++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int key = at + t * 8 + 2 * pair + e % 2, query = o.row + m * 16 + e / 2 * 8;
                    if (key >= a.length || (a.causal && key > query)) p[m][t][e] = -INFINITY;
                }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = f.top[m][h];
#pragma unroll
            for (int t = 0; t < TILE_ROWS / 8; t++) top = fmaxf(top, fmaxf(p[m][t][2 * h], p[m][t][2 * h + 1]));
            top = lanes_max(top);
            const float shrink = power_of_two((f.top[m][h] - top) * scale), zero = top * scale;
            f.top[m][h] = top;
            f.total[m][h] *= shrink;
#pragma unroll
            for (int c = 0; c < D / 8; c++) f.sum[m][c][2 * h] *= shrink, f.sum[m][c][2 * h + 1] *= shrink;
#pragma unroll
            for (int t = 0; t < TILE_ROWS / 8; t++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    p[m][t][e] = power_of_two(p[m][t][e] * scale - zero);
                    f.total[m][h] += p[m][t][e];
                }
        }
        if (DROPS) {
#pragma unroll
            for (int t = 0; t < TILE_ROWS / 8; t++) {
                float keep[4];
                keep_of_queries(a, when, base + (uint64_t)(o.row + m * 16), at + t * 8 + 2 * pair, keep);
#pragma unroll
                for (int e = 0; e < 4; e++) p[m][t][e] *= keep[e];
            }
        }
    }
    add_rows<D, MT, TILE_ROWS>(f.sum, p, v, chunks);
}

template <int D, int MT, bool DROPS>
static __global__ void __launch_bounds__(TILE_THREADS) forward_kernel(attention a, const bf16 *qkv, bf16 *y, float *log_sums)
{
    extern __shared__ uint4 tile_memory[];
    const owner<D, MT> o(a, a.causal);
    const uint32_t q = shared_address(tile_memory), stages = q + MT * tile_bytes<D>;
    const bf16 *from = qkv + o.qkv(a);
    const int64_t step = token_step(a), part = part_step(a);
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    const uint64_t base = query_number(a, o.sample, o.head);
    const int end = a.causal ? min(a.length, o.first + TILE_ROWS * MT) : a.length;
    copy_tile<D>(q, from, step, o.first, TILE_ROWS * MT, a.length);
    copy_tile<D>(stages, from + part, step, 0, TILE_ROWS, a.length);
    copy_tile<D>(stages + tile_bytes<D>, from + 2 * part, step, 0, TILE_ROWS, a.length);
    copies_commit();
    forward_state<D, MT> f = {};
#pragma unroll
    for (int m = 0; m < MT; m++) f.top[m][0] = f.top[m][1] = -INFINITY;
    for (int at = 0, stage = 0; at < end; at += TILE_ROWS, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (at == 0) load_left<D, MT>(f.q, warp_rows<D, MT>(q));
        if (at + TILE_ROWS < end) {
            const uint32_t next = stages + (uint32_t)(stage ^ 1) * 2 * tile_bytes<D>;
            copy_tile<D>(next, from + part, step, at + TILE_ROWS, TILE_ROWS, a.length);
            copy_tile<D>(next + tile_bytes<D>, from + 2 * part, step, at + TILE_ROWS, TILE_ROWS, a.length);
            copies_commit();
        }
        const uint32_t k = stages + (uint32_t)stage * 2 * tile_bytes<D>, v = k + tile_bytes<D>;
        if (!o.works(a)) continue;
        if (at + TILE_ROWS > a.length || (a.causal && at + TILE_ROWS > o.first + 1))
            forward_step<D, MT, DROPS, true>(a, o, f, k, v, at, when, base);
        else
            forward_step<D, MT, DROPS, false>(a, o, f, k, v, at, when, base);
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int query = o.row + m * 16 + h * 8;
            const float total = lanes_sum(f.total[m][h]);
            if (query >= a.length) continue;
            store_row<D>(y + o.y(a) + query * part, f.sum[m], h, 1.0f / total);
            if (log_sums && threadIdx.x % 4 == 0)
                log_sums[o.strip * a.tokens + query] = f.top[m][h] * a.scale * LOG2_E + log2f(total);
        }
}

/* ---- backward: keys -------------------------------------------------------------------------------------------------- */

/* A stage: tiles of q and dy, then log_sums and delta of their rows. */
template <int D> static constexpr int key_stage_bytes = 2 * tile_bytes<D> + 2 * TILE_ROWS *(int)sizeof(float);

template <int D>
__device__ static inline void copy_queries(const attention &a, uint32_t to, const bf16 *q, const bf16 *dy,
                                           const float *log_sums, const float *delta, int at)
{
    const int i = threadIdx.x % TILE_ROWS;
    const bool valid = at + i < a.length;
    copy_tile<D>(to, q, token_step(a), at, TILE_ROWS, a.length);
    copy_tile<D>(to + tile_bytes<D>, dy, part_step(a), at, TILE_ROWS, a.length);
    copy4_async(to + 2 * tile_bytes<D> + threadIdx.x * (uint32_t)sizeof(float),
                ((int)threadIdx.x < TILE_ROWS ? log_sums : delta) + (valid ? at + i : 0), valid);
    copies_commit();
}

template <int D, int MT> struct key_state {
    uint32_t k[MT][D / 16][4], v[MT][D / 16][4];
    float dk[MT][D / 8][4], dv[MT][D / 8][4], seen[MT][2];
};

/* C queries from `at` on, whose q and dy are rows of tiles and whose numbers begin at floats. EDGE: some of them are past the
 * end, or before some of the block's keys. */
template <int D, int MT, int C, bool DROPS, bool EDGE>
__device__ static inline void key_step(const attention &a, const owner<D, MT> &o, key_state<D, MT> &s, uint32_t q, uint32_t dy,
                                       const float *log_sums, const float *delta, int at, uint32_t when, uint64_t base)
{
    const int pair = threadIdx.x % 4;
    if (EDGE && (at >= a.length || (a.causal && at + C <= o.warp_first()))) return;
    const float scale = a.scale * LOG2_E;
    float p[MT][C / 8][4], ds[MT][C / 8][4];
    multiply_rows<D, MT, C>(p, s.k, q);
    multiply_rows<D, MT, C>(ds, s.v, dy);
#pragma unroll
    for (int t = 0; t < C / 8; t++) {
        const float2 log_sum = *reinterpret_cast<const float2 *>(log_sums + t * 8 + 2 * pair);
        const float2 d = *reinterpret_cast<const float2 *>(delta + t * 8 + 2 * pair);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            float keep[4];
            if (DROPS) keep_of_keys(a, when, base + (uint64_t)(at + t * 8 + 2 * pair), o.row + m * 16, keep);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int query = at + t * 8 + 2 * pair + e % 2, key = o.row + m * 16 + e / 2 * 8;
                float v = power_of_two(p[m][t][e] * scale - (e % 2 ? log_sum.y : log_sum.x));
                if (EDGE && (query >= a.length || (a.causal && key > query))) v = 0.0f;
                s.seen[m][e / 2] += v;
                ds[m][t][e] = v * ((DROPS ? ds[m][t][e] * keep[e] : ds[m][t][e]) - (e % 2 ? d.y : d.x));
                p[m][t][e] = DROPS ? v * keep[e] : v;
            }
        }
    }
    add_rows<D, MT, C>(s.dv, p, dy);
    add_rows<D, MT, C>(s.dk, ds, q);
}

template <int D, int MT, int C, bool DROPS>
static __global__ void __launch_bounds__(TILE_THREADS) key_kernel(attention a, attention_memory m)
{
    extern __shared__ uint4 tile_memory[];
    const owner<D, MT> o(a, false);
    const uint32_t k = shared_address(tile_memory), v = k + MT * tile_bytes<D>, stages = v + MT * tile_bytes<D>;
    const char *floats = (const char *)tile_memory + 2 * MT * tile_bytes<D> + 2 * tile_bytes<D>;
    const bf16 *from = (const bf16 *)m.qkv + o.qkv(a), *dy = (const bf16 *)m.dy + o.y(a);
    const int64_t step = token_step(a), part = part_step(a);
    const float *log_sums = m.log_sums + o.strip * a.tokens, *delta = m.delta + o.strip * a.tokens;
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    const uint64_t base = query_number(a, o.sample, o.head);
    copy_tile<D>(k, from + part, step, o.first, TILE_ROWS * MT, a.length);
    copy_tile<D>(v, from + 2 * part, step, o.first, TILE_ROWS * MT, a.length);
    const int begin = a.causal ? o.first / TILE_ROWS * TILE_ROWS : 0;
    copy_queries<D>(a, stages, from, dy, log_sums, delta, begin);
    key_state<D, MT> s = {};
    for (int at = begin, stage = 0; at < a.length; at += TILE_ROWS, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (at == begin) {
            load_left<D, MT>(s.k, warp_rows<D, MT>(k));
            load_left<D, MT>(s.v, warp_rows<D, MT>(v));
        }
        if (at + TILE_ROWS < a.length)
            copy_queries<D>(a, stages + (uint32_t)(stage ^ 1) * key_stage_bytes<D>, from, dy, log_sums, delta, at + TILE_ROWS);
        const bool edge = at + TILE_ROWS > a.length || (a.causal && at < o.first + TILE_ROWS * MT);
        const uint32_t q = stages + (uint32_t)stage * key_stage_bytes<D>;
        const float *numbers = (const float *)(floats + stage * key_stage_bytes<D>);
#pragma unroll 1
        for (int c = 0; c < TILE_ROWS && o.works(a); c += C) {
            const uint32_t rows = (uint32_t)(c * tile_step<D>)*(uint32_t)sizeof(bf16);
            if (edge)
                key_step<D, MT, C, DROPS, true>(a, o, s, q + rows, q + tile_bytes<D> + rows, numbers + c,
                                                numbers + TILE_ROWS + c, at + c, when, base);
            else
                key_step<D, MT, C, DROPS, false>(a, o, s, q + rows, q + tile_bytes<D> + rows, numbers + c,
                                                 numbers + TILE_ROWS + c, at + c, when, base);
        }
    }
    bf16 *to = (bf16 *)m.dqkv + o.qkv(a);
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int key = o.row + i * 16 + h * 8;
            const float seen = lanes_sum(s.seen[i][h]);
            if (key >= a.length) continue;
            if (m.columns && threadIdx.x % 4 == 0) m.columns[o.strip * a.tokens + key] = seen * a.column_share;
            if (!m.dqkv) continue;
            store_row<D>(to + key * step + part, s.dk[i], h, a.scale);
            store_row<D>(to + key * step + 2 * part, s.dv[i], h, 1.0f);
        }
}

/* ---- backward: queries ---------------------------------------------------------------------------------------------- */

template <int D, int MT> struct query_state {
    uint32_t q[MT][D / 16][4], dy[MT][D / 16][4];
    float dq[MT][D / 8][4], log_sum[MT][2], delta[MT][2];
};

/* C keys from `at` on, whose k and v are rows of tiles. EDGE as in forward. */
template <int D, int MT, int C, bool DROPS, bool EDGE>
__device__ static inline void query_step(const attention &a, const owner<D, MT> &o, query_state<D, MT> &s, uint32_t k,
                                         uint32_t v, int at, uint32_t when, uint64_t base)
{
    const int pair = threadIdx.x % 4;
    if (EDGE && (at >= a.length || (a.causal && at >= o.warp_first() + 16 * MT))) return;
    const float scale = a.scale * LOG2_E;
    float p[MT][C / 8][4], ds[MT][C / 8][4];
    multiply_rows<D, MT, C>(p, s.q, k);
    multiply_rows<D, MT, C>(ds, s.dy, v);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int t = 0; t < C / 8; t++) {
            float keep[4];
            if (DROPS) keep_of_queries(a, when, base + (uint64_t)(o.row + m * 16), at + t * 8 + 2 * pair, keep);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = at + t * 8 + 2 * pair + e % 2, query = o.row + m * 16 + e / 2 * 8;
                float w = power_of_two(p[m][t][e] * scale - s.log_sum[m][e / 2]);
                if (EDGE && (key >= a.length || (a.causal && key > query))) w = 0.0f;
                ds[m][t][e] = w * ((DROPS ? ds[m][t][e] * keep[e] : ds[m][t][e]) - s.delta[m][e / 2]);
            }
        }
    add_rows<D, MT, C>(s.dq, ds, k);
}

template <int D, int MT, int C, bool DROPS>
static __global__ void __launch_bounds__(TILE_THREADS) query_kernel(attention a, attention_memory m)
{
    extern __shared__ uint4 tile_memory[];
    const owner<D, MT> o(a, a.causal);
    const uint32_t q = shared_address(tile_memory), dy = q + MT * tile_bytes<D>, stages = dy + MT * tile_bytes<D>;
    const bf16 *from = (const bf16 *)m.qkv + o.qkv(a);
    const int64_t step = token_step(a), part = part_step(a);
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    const uint64_t base = query_number(a, o.sample, o.head);
    const int end = a.causal ? min(a.length, o.first + TILE_ROWS * MT) : a.length;
    copy_tile<D>(q, from, step, o.first, TILE_ROWS * MT, a.length);
    copy_tile<D>(dy, (const bf16 *)m.dy + o.y(a), part, o.first, TILE_ROWS * MT, a.length);
    copy_tile<D>(stages, from + part, step, 0, TILE_ROWS, a.length);
    copy_tile<D>(stages + tile_bytes<D>, from + 2 * part, step, 0, TILE_ROWS, a.length);
    copies_commit();
    query_state<D, MT> s = {};
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int query = min(o.row + i * 16 + h * 8, a.length - 1);
            s.log_sum[i][h] = m.log_sums[o.strip * a.tokens + query];
            s.delta[i][h] = m.delta[o.strip * a.tokens + query];
        }
    for (int at = 0, stage = 0; at < end; at += TILE_ROWS, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (at == 0) {
            load_left<D, MT>(s.q, warp_rows<D, MT>(q));
            load_left<D, MT>(s.dy, warp_rows<D, MT>(dy));
        }
        if (at + TILE_ROWS < end) {
            const uint32_t next = stages + (uint32_t)(stage ^ 1) * 2 * tile_bytes<D>;
            copy_tile<D>(next, from + part, step, at + TILE_ROWS, TILE_ROWS, a.length);
            copy_tile<D>(next + tile_bytes<D>, from + 2 * part, step, at + TILE_ROWS, TILE_ROWS, a.length);
            copies_commit();
        }
        const bool edge = at + TILE_ROWS > a.length || (a.causal && at + TILE_ROWS > o.first + 1);
        const uint32_t k = stages + (uint32_t)stage * 2 * tile_bytes<D>;
#pragma unroll 1
        for (int c = 0; c < TILE_ROWS && o.works(a); c += C) {
            const uint32_t rows = (uint32_t)(c * tile_step<D>)*(uint32_t)sizeof(bf16);
            if (edge)
                query_step<D, MT, C, DROPS, true>(a, o, s, k + rows, k + tile_bytes<D> + rows, at + c, when, base);
            else
                query_step<D, MT, C, DROPS, false>(a, o, s, k + rows, k + tile_bytes<D> + rows, at + c, when, base);
        }
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int query = o.row + i * 16 + h * 8;
            if (query < a.length) store_row<D>((bf16 *)m.dqkv + o.qkv(a) + query * step, s.dq[i], h, a.scale);
        }
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

/* Queries or keys of a warp: twice 16 halve the traffic from shared memory; 16 where that leaves fewer rows empty. */
static bool twice(const attention *a) { return a->length >= 512 || abar__cuda_blocks(a->length, TILE_ROWS) % 2 == 0; }

static dim3 grid_of(const attention *a, int rows)
{
    return dim3((unsigned)(abar__cuda_blocks(a->length, rows) * a->samples * a->heads));
}

/* Own rows (MT tiles each) and two stages of two tiles. */
template <int D> static constexpr size_t forward_bytes(int mt) { return (size_t)((mt + 4) * tile_bytes<D>); }
template <int D> static constexpr size_t query_bytes(int mt) { return (size_t)((2 * mt + 4) * tile_bytes<D>); }
template <int D> static constexpr size_t key_bytes(int mt) { return (size_t)(2 * mt * tile_bytes<D> + 2 * key_stage_bytes<D>); }

template <int D, bool DROPS> static abar_status prepare_as(abar_device *dev)
{
    ABAR_TRY(abar__attention_allow(dev, (const void *)forward_kernel<D, 1, DROPS>, forward_bytes<D>(1)));
    ABAR_TRY(abar__attention_allow(dev, (const void *)forward_kernel<D, 2, DROPS>, forward_bytes<D>(2)));
    ABAR_TRY(abar__attention_allow(dev, (const void *)key_kernel<D, 1, 32, DROPS>, key_bytes<D>(1)));
    ABAR_TRY(abar__attention_allow(dev, (const void *)query_kernel<D, 1, 32, DROPS>, query_bytes<D>(1)));
    return abar__attention_allow(dev, (const void *)query_kernel<D, 2, 32, DROPS>, query_bytes<D>(2));
}

static abar_status prepare(abar_device *dev, const attention *a)
{
    if (a->side || (a->width != 32 && a->width != 64)) return ABAR_E_UNSUPPORTED;
    if (a->width == 32) {
        ABAR_TRY((prepare_as<32, false>(dev)));
        return prepare_as<32, true>(dev);
    }
    ABAR_TRY((prepare_as<64, false>(dev)));
    return prepare_as<64, true>(dev);
}

template <int D, bool DROPS> static void forward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    const bf16 *qkv = (const bf16 *)m->qkv;
    if (twice(a))
        abar__cuda_launch(dev, forward_kernel<D, 2, DROPS>, grid_of(a, 2 * TILE_ROWS), dim3(TILE_THREADS), forward_bytes<D>(2),
                          *a, qkv, (bf16 *)m->y, m->log_sums);
    else
        abar__cuda_launch(dev, forward_kernel<D, 1, DROPS>, grid_of(a, TILE_ROWS), dim3(TILE_THREADS), forward_bytes<D>(1), *a,
                          qkv, (bf16 *)m->y, m->log_sums);
}

template <int D, bool DROPS> static void backward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    abar__attention_delta(dev, a, m);
    abar__cuda_launch(dev, key_kernel<D, 1, 32, DROPS>, grid_of(a, TILE_ROWS), dim3(TILE_THREADS), key_bytes<D>(1), *a, *m);
    if (!m->dqkv) return;
    if (twice(a))
        abar__cuda_launch(dev, query_kernel<D, 2, 32, DROPS>, grid_of(a, 2 * TILE_ROWS), dim3(TILE_THREADS), query_bytes<D>(2),
                          *a, *m);
    else
        abar__cuda_launch(dev, query_kernel<D, 1, 32, DROPS>, grid_of(a, TILE_ROWS), dim3(TILE_THREADS), query_bytes<D>(1), *a,
                          *m);
}

static void forward(abar_device *dev, const attention *a, const attention_memory *m)
{
    if (a->width == 32)
        a->drops ? forward_as<32, true>(dev, a, m) : forward_as<32, false>(dev, a, m);
    else
        a->drops ? forward_as<64, true>(dev, a, m) : forward_as<64, false>(dev, a, m);
}

static void backward(abar_device *dev, const attention *a, const attention_memory *m)
{
    if (a->width == 32)
        a->drops ? backward_as<32, true>(dev, a, m) : backward_as<32, false>(dev, a, m);
    else
        a->drops ? backward_as<64, true>(dev, a, m) : backward_as<64, false>(dev, a, m);
}

const attention_kernels abar__attention_mma = {prepare, forward, backward, NULL};
