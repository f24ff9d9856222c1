/* Attention of sequences of any length in bf16 on the tensor cores, heads of 32 or 64 columns; equations in attention.h.
 *
 * A block of eight warps owns 128 rows of one sample and head: queries (forward, dq) or keys (dk, dv), 16 per warp, whose
 * fragments stay in registers. It loops over the other side 64 rows at a time, copying the next ones while it computes.
 * Probabilities go from the accumulators of one product into the left factor of the next within registers. */
#include "device/cuda/nn/attention/steps.h"

#define WARPS 8
#define THREADS (32 * WARPS)
#define ROWS (16 * WARPS)
#define CHUNK 16 /* queries or keys whose scores backward holds at once: as many as fit into registers with 16 warps */

/* The rows that the block owns. With a causal mask rows have unequal work: the blocks with the most work begin first. */
typedef struct owner {
    unsigned strip;
    int first;
} owner;

__device__ static inline owner owner_of(const attention &a, bool last_first)
{
    const unsigned tiles = (unsigned)(a.length + ROWS - 1) / ROWS, strips = gridDim.x / tiles;
    const unsigned tile = a.causal ? blockIdx.x / strips : blockIdx.x % tiles;
    return {a.causal ? blockIdx.x % strips : blockIdx.x / tiles, (int)(last_first ? tiles - 1 - tile : tile) * ROWS};
}

/* Rows of k and v, one stage. */
template <int D> static constexpr int key_stage_bytes = 2 * tile_bytes<D>;

template <int D> __device__ static inline void copy_keys(const attention &a, uint32_t to, const bf16 *qkv, int at)
{
    copy_tile<D>(to, qkv + part_step(a), token_step(a), at, TILE_ROWS, a.length, THREADS);
    copy_tile<D>(to + tile_bytes<D>, qkv + 2 * part_step(a), token_step(a), at, TILE_ROWS, a.length, THREADS);
    copies_commit();
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

template <int D, bool DROPS>
static __global__ void __launch_bounds__(THREADS, 2) forward_kernel(attention a, const bf16 *qkv, bf16 *y, float *log_sums)
{
    extern __shared__ uint4 tile_memory[];
    const owner o = owner_of(a, a.causal);
    const int first = o.first + (int)threadIdx.x / 32 * 16, end = a.causal ? min(a.length, o.first + ROWS) : a.length;
    const uint32_t q = shared_address(tile_memory), stages = q + rows_offset<D>(ROWS);
    const strip_place strip = place_of_strip(a, o.strip);
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    copy_tile<D>(q, qkv + strip.qkv, token_step(a), o.first, ROWS, a.length, THREADS);
    copy_keys<D>(a, stages, qkv + strip.qkv, 0);
    forward_state<D> f;
    for (int at = 0, stage = 0; at < end; at += TILE_ROWS, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (at == 0) begin_forward(f, q + rows_offset<D>(first - o.first));
        if (at + TILE_ROWS < end)
            copy_keys<D>(a, stages + (uint32_t)(stage ^ 1) * key_stage_bytes<D>, qkv + strip.qkv, at + TILE_ROWS);
        const uint32_t k = stages + (uint32_t)stage * key_stage_bytes<D>;
        if (first < a.length) forward_tile<D, DROPS>(a, first, f, k, k + tile_bytes<D>, at, when, strip.query);
    }
    store_queries(a, strip, first, f, y, log_sums);
}

/* ---- backward: queries ---------------------------------------------------------------------------------------------- */

/* 16 queries. */
template <int D> struct query_state {
    uint32_t q[D / 16][4], dy[D / 16][4];
    float dq[D / 8][4], log_sum[2], delta[2];
};

/* log_sum and delta of this lane's queries; delta is also written to memory for the keys. */
template <int D>
__device__ static inline void find_numbers(const attention &a, const attention_memory &m, const strip_place &strip, int first,
                                           query_state<D> &s)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + (int)(threadIdx.x % 32 / 4) + h * 8, query = min(row, a.length - 1);
        const bf16 *y = (const bf16 *)m.y + strip.y + query * part_step(a) + 2 * (threadIdx.x % 4);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            const uint32_t left = *reinterpret_cast<const uint32_t *>(y + i * 8), right = s.dy[i / 2][i % 2 * 2 + h];
            sum += __uint_as_float(left << 16) * __uint_as_float(right << 16);
            sum += __uint_as_float(left & 0xffff0000u) * __uint_as_float(right & 0xffff0000u);
        }
        s.delta[h] = lanes_sum(sum);
        s.log_sum[h] = m.log_sums[strip.numbers + query];
        if (row < a.length && threadIdx.x % 4 == 0) m.delta[strip.numbers + row] = s.delta[h];
    }
}

/* CHUNK keys from `at` on, whose k and v are rows of tiles; the warp's queries begin at `first`. EDGE as in forward. */
template <int D, bool DROPS, bool EDGE>
__device__ static inline void query_step(const attention &a, int first, query_state<D> &s, uint32_t k, uint32_t v, int at,
                                         uint32_t when, uint64_t base)
{
    const int pair = threadIdx.x % 4, row = first + (int)(threadIdx.x % 32 / 4);
    const float scale = a.scale * LOG2_E;
    float p[CHUNK / 8][4], ds[CHUNK / 8][4];
    multiply_rows<D, CHUNK>(p, s.q, k);
    multiply_rows<D, CHUNK>(ds, s.dy, v);
#pragma unroll
    for (int t = 0; t < CHUNK / 8; t++) {
        float keep[4];
        if (DROPS) keep_of_queries(a, when, base + (uint64_t)row, at + t * 8 + 2 * pair, keep);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int key = at + t * 8 + 2 * pair + e % 2, query = row + e / 2 * 8;
            float w = power_of_two(p[t][e] * scale - s.log_sum[e / 2]);
            if (EDGE && (key >= a.length || (a.causal && key > query))) w = 0.0f;
            ds[t][e] = w * ((DROPS ? ds[t][e] * keep[e] : ds[t][e]) - s.delta[e / 2]);
        }
    }
    add_rows<D, CHUNK>(s.dq, ds, k);
}

/* The 64 keys from `at` on. */
template <int D, bool DROPS>
__device__ static inline void query_tile(const attention &a, int first, query_state<D> &s, uint32_t k, int at, uint32_t when,
                                         uint64_t base)
{
    const int end = min(at + TILE_ROWS, a.causal ? min(a.length, first + 16) : a.length);
#pragma unroll 1
    for (; at < end; at += CHUNK, k += rows_offset<D>(CHUNK))
        if (at + CHUNK > a.length || (a.causal && at + CHUNK > first + 1))
            query_step<D, DROPS, true>(a, first, s, k, k + tile_bytes<D>, at, when, base);
        else
            query_step<D, DROPS, false>(a, first, s, k, k + tile_bytes<D>, at, when, base);
}

template <int D, bool DROPS> static __global__ void __launch_bounds__(THREADS, 2) query_kernel(attention a, attention_memory m)
{
    extern __shared__ uint4 tile_memory[];
    const owner o = owner_of(a, a.causal);
    const int first = o.first + (int)threadIdx.x / 32 * 16, end = a.causal ? min(a.length, o.first + ROWS) : a.length;
    const uint32_t q = shared_address(tile_memory), dy = q + rows_offset<D>(ROWS), stages = dy + rows_offset<D>(ROWS);
    const strip_place strip = place_of_strip(a, o.strip);
    const bf16 *qkv = (const bf16 *)m.qkv + strip.qkv;
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    copy_tile<D>(q, qkv, token_step(a), o.first, ROWS, a.length, THREADS);
    copy_tile<D>(dy, (const bf16 *)m.dy + strip.y, part_step(a), o.first, ROWS, a.length, THREADS);
    copy_keys<D>(a, stages, qkv, 0);
    query_state<D> s = {};
    for (int at = 0, stage = 0; at < end; at += TILE_ROWS, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (at == 0) {
            load_left<D>(s.q, q + rows_offset<D>(first - o.first));
            load_left<D>(s.dy, dy + rows_offset<D>(first - o.first));
            find_numbers(a, m, strip, first, s);
        }
        if (at + TILE_ROWS < end) copy_keys<D>(a, stages + (uint32_t)(stage ^ 1) * key_stage_bytes<D>, qkv, at + TILE_ROWS);
        const uint32_t k = stages + (uint32_t)stage * key_stage_bytes<D>;
        if (first < a.length) query_tile<D, DROPS>(a, first, s, k, at, when, strip.query);
    }
    store_dq<D>(a, m, strip, first, s.dq);
}

/* ---- backward: keys -------------------------------------------------------------------------------------------------- */

/* A stage: tiles of q and dy, then log_sums and delta of their rows. */
template <int D> static constexpr int query_stage_bytes = 2 * tile_bytes<D> + 2 * TILE_ROWS *(int)sizeof(float);

template <int D>
__device__ static inline void copy_queries(const attention &a, const attention_memory &m, const strip_place &strip, uint32_t to,
                                           int at)
{
    const int i = (int)threadIdx.x % TILE_ROWS;
    const bool valid = at + i < a.length;
    copy_tile<D>(to, (const bf16 *)m.qkv + strip.qkv, token_step(a), at, TILE_ROWS, a.length, THREADS);
    copy_tile<D>(to + tile_bytes<D>, (const bf16 *)m.dy + strip.y, part_step(a), at, TILE_ROWS, a.length, THREADS);
    if (threadIdx.x < 2 * TILE_ROWS)
        copy4_async(to + 2 * tile_bytes<D> + threadIdx.x * (uint32_t)sizeof(float),
                    (threadIdx.x < TILE_ROWS ? m.log_sums : m.delta) + strip.numbers + (valid ? at + i : 0), valid);
    copies_commit();
}

/* The 64 queries from `at` on; log_sums points to their numbers. */
template <int D, bool DROPS>
__device__ static inline void key_tile(const attention &a, int first, key_state<D> &s, uint32_t q, const float *log_sums,
                                       int at, uint32_t when, uint64_t base)
{
#pragma unroll 1
    for (int c = 0; c < TILE_ROWS && at + c < a.length; c += CHUNK) {
        const uint32_t rows = q + rows_offset<D>(c), dy = rows + tile_bytes<D>;
        const float *delta = log_sums + TILE_ROWS;
        float ds[CHUNK / 8][4];
        if (a.causal && at + c + CHUNK <= first) continue;
        if (at + c + CHUNK > a.length || (a.causal && at + c < first + 16))
            key_step<D, CHUNK, DROPS, true>(a, first, s, rows, dy, log_sums + c, delta + c, at + c, when, base, ds);
        else
            key_step<D, CHUNK, DROPS, false>(a, first, s, rows, dy, log_sums + c, delta + c, at + c, when, base, ds);
    }
}

template <int D, bool DROPS> static __global__ void __launch_bounds__(THREADS, 2) key_kernel(attention a, attention_memory m)
{
    extern __shared__ uint4 tile_memory[];
    const owner o = owner_of(a, false);
    const int first = o.first + (int)threadIdx.x / 32 * 16, begin = a.causal ? o.first : 0;
    const uint32_t k = shared_address(tile_memory), v = k + rows_offset<D>(ROWS), stages = v + rows_offset<D>(ROWS);
    const char *numbers = (const char *)tile_memory + 2 * rows_offset<D>(ROWS) + 2 * tile_bytes<D>;
    const strip_place strip = place_of_strip(a, o.strip);
    const bf16 *qkv = (const bf16 *)m.qkv + strip.qkv;
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    copy_tile<D>(k, qkv + part_step(a), token_step(a), o.first, ROWS, a.length, THREADS);
    copy_tile<D>(v, qkv + 2 * part_step(a), token_step(a), o.first, ROWS, a.length, THREADS);
    copy_queries<D>(a, m, strip, stages, begin);
    key_state<D> s;
    for (int at = begin, stage = 0; at < a.length; at += TILE_ROWS, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (at == begin) {
            load_left<D>(s.k, k + rows_offset<D>(first - o.first));
            load_left<D>(s.v, v + rows_offset<D>(first - o.first));
            clear_keys(s);
        }
        if (at + TILE_ROWS < a.length)
            copy_queries<D>(a, m, strip, stages + (uint32_t)(stage ^ 1) * query_stage_bytes<D>, at + TILE_ROWS);
        if (first < a.length)
            key_tile<D, DROPS>(a, first, s, stages + (uint32_t)stage * query_stage_bytes<D>,
                               (const float *)(numbers + stage * query_stage_bytes<D>), at, when, strip.query);
    }
    store_keys(a, m, strip, first, s);
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

/* The block's own rows and two stages. */
template <int D> static constexpr size_t own_bytes = (size_t)(ROWS *tile_step<D> *(int)sizeof(bf16));
template <int D> static constexpr size_t forward_bytes = own_bytes<D> + 2 * key_stage_bytes<D>;
template <int D> static constexpr size_t query_bytes = 2 * own_bytes<D> + 2 * key_stage_bytes<D>;
template <int D> static constexpr size_t key_bytes = 2 * own_bytes<D> + 2 * query_stage_bytes<D>;

template <int D, bool DROPS> static abar_status prepare_as(abar_device *dev)
{
    ABAR_TRY(abar__attention_allow(dev, (const void *)forward_kernel<D, DROPS>, forward_bytes<D>));
    ABAR_TRY(abar__attention_allow(dev, (const void *)query_kernel<D, DROPS>, query_bytes<D>));
    return abar__attention_allow(dev, (const void *)key_kernel<D, DROPS>, key_bytes<D>);
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

static dim3 grid_of(const attention *a) { return dim3((unsigned)(abar__cuda_blocks(a->length, ROWS) * a->samples * a->heads)); }

template <int D, bool DROPS> static void forward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    abar__cuda_launch(dev, forward_kernel<D, DROPS>, grid_of(a), dim3(THREADS), forward_bytes<D>, *a, (const bf16 *)m->qkv,
                      (bf16 *)m->y, m->log_sums);
}

/* Queries first: the keys need their delta, unless dqkv is not wanted. */
template <int D, bool DROPS> static void backward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    if (m->dqkv) abar__cuda_launch(dev, query_kernel<D, DROPS>, grid_of(a), dim3(THREADS), query_bytes<D>, *a, *m);
    abar__cuda_launch(dev, key_kernel<D, DROPS>, grid_of(a), dim3(THREADS), key_bytes<D>, *a, *m);
}

static void forward(abar_device *dev, const attention *a, const attention_memory *m)
{
    by_width_and_dropout(a, [&]<int D, bool DROPS>() { forward_as<D, DROPS>(dev, a, m); });
}

static void backward(abar_device *dev, const attention *a, const attention_memory *m)
{
    by_width_and_dropout(a, [&]<int D, bool DROPS>() { backward_as<D, DROPS>(dev, a, m); });
}

const attention_kernels abar__attention_any_length = {prepare, forward, backward, NULL};
