/* Attention of sequences in bf16 on tensor cores that read shared memory (core/wgmma.h), heads of 64 columns; equations in
 * attention.h.
 *
 * A group of four warps owns 64 rows of one sample and head: queries (forward, dq) or keys (dk, dv). The copy engine
 * (core/tma.h) brings tiles of 64 rows of the other side into places in turns; at the end of a sequence come zeros. Scores are
 * in registers: as bf16 they are the left factor of the next product. While one group computes exponentials, the tensor cores
 * multiply for the others.
 *
 * Blocks of the forward pass and of dq have two groups, which run independently of each other: a place is brought anew when
 * both have done with it. Those of dk and dv have one, and three of them share a multiprocessor. */
#include "device/cuda/nn/attention/wide.h"

#define LEAST_USE 0.75f /* of the rows of all groups */

/* ---- blocks of queries -------------------------------------------------------------------------------------------------- */

/* Tiles of keys that a block's queries see, and its groups that have queries. */
__device__ static inline int tiles_of_block(const attention &a, const owner &o)
{
    return ((a.causal ? min(a.length, o.first + ROWS * GROUPS) : a.length) + ROWS - 1) / ROWS;
}
__device__ static inline unsigned groups_of_block(const attention &a, const owner &o)
{
    return (unsigned)min(GROUPS, (a.length - o.first + ROWS - 1) / ROWS);
}

/* ---- forward ------------------------------------------------------------------------------------------------------------ */

/* 64 queries: sums as in steps.h. */
typedef struct query_sums {
    float sum[32], top[2], total[2];
} query_sums;

/* Raises top to the scores of one step where needed. Every query sees at least one key of the step. */
template <int C> __device__ static inline void raise_tops(query_sums &f, const float (&s)[C / 2], float scale)
{
    float high[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        high[h] = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
        for (int t = 1; t < C / 8; t++) high[h] = fmaxf(high[h], fmaxf(s[4 * t + 2 * h], s[4 * t + 2 * h + 1]));
        high[h] = lanes_max(high[h]);
    }
    const bool first = is_far_ahead(high[0], f.top[0], scale), second = is_far_ahead(high[1], f.top[1], scale);
    if (!__any_sync(0xffffffffu, first || second)) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float shrink = raise_top(f.top[h], f.total[h], high[h], h ? second : first, scale);
#pragma unroll
        for (int t = 0; t < WIDTH / 8; t++) f.sum[4 * t + 2 * h] *= shrink, f.sum[4 * t + 2 * h + 1] *= shrink;
    }
}

/* The first C keys of the tile at k, v behind it, which are keys `at` on; `first` is the group's first query. EDGE: some of the
 * keys are past the end, or after some of the queries. */
template <int C, bool DROPS, bool EDGE>
__device__ static inline void forward_step(const attention &a, int first, query_sums &f, uint32_t q, uint32_t k, int at,
                                           uint32_t when, uint64_t base)
{
    const float scale = a.scale * LOG2_E;
    const int row = first + lane_row(), column = at + lane_column();
    float s[C / 2];
    begin_scores<C>(s, q, k);
    group_wait<0>();
    group_settle(s);
    if (EDGE) { /* queries past the end see keys */
        const edge hidden = edge_of(a, row, column);
#pragma unroll
        for (int i = 0; i < C / 2; i++) {
            const int key = i / 4 * 8 + i % 2, query = i / 2 % 2 * 8;
            if (key >= hidden.keys || hidden.apart + key > query) s[i] = -INFINITY;
        }
    }
    raise_tops<C>(f, s, scale);
    const float zero[2] = {f.top[0] * scale, f.top[1] * scale};
#pragma unroll
    for (int t = 0; t < C / 8; t++) {
        float keep[4];
        if (DROPS) keep_of_queries(a, when, base + (uint64_t)row, column + t * 8, keep);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &p = s[4 * t + e];
            p = power_of_two(p * scale - zero[e / 2]);
            f.total[e / 2] += p;
            if (DROPS) p *= keep[e];
        }
    }
    uint32_t p[C / 16][4];
    round_scores<C>(p, s);
    begin_sums<C>(f.sum, p, k + TILE_SIZE);
    group_wait<0>();
    group_keep(p);
    group_settle(f.sum);
}

template <bool DROPS>
static __global__ void __launch_bounds__(128 * GROUPS, 2)
    forward_kernel(const __grid_constant__ attention_maps maps, attention a, bf16 *y, float *log_sums)
{
    extern __shared__ uint4 tile_memory[];
    __shared__ __align__(8) uint64_t turns[1 + 2 * PLACES];
    const owner o = owner_of(a, ROWS * GROUPS, a.causal);
    const int group = own_group(), first = o.first + group * ROWS, tiles = tiles_of_block(a, o);
    const int own = a.causal ? min(tiles, first / ROWS + 1) : tiles; /* tiles that this group sees */
    const uint32_t q = (shared_address(tile_memory) + ALIGNED - 1) / ALIGNED * ALIGNED;
    const ring r = create_ring<PLACES>(q + GROUPS * TILE_SIZE, turns, 4u * groups_of_block(a, o));
    if (threadIdx.x == 0) {
        turn_expect(r.own, GROUPS * TILE_SIZE);
        for (int g = 0; g < GROUPS; g++) bring_part(a, maps, o, 0, o.first + g * ROWS, q + (uint32_t)g * TILE_SIZE, r.own);
        bring_first(a, maps, o, r, tiles);
    }
    if (first >= a.length) return;
    const strip_place strip = place_of_strip(a, o.strip);
    const uint32_t when = DROPS ? dropout_when(a.key) : 0, mine = q + (uint32_t)group * TILE_SIZE;
    query_sums f = {};
    f.top[0] = f.top[1] = -INFINITY;
    turn_wait(r.own, 0);
    for (int j = 0; j < own; j++) {
        const int at = j * ROWS;
        const uint32_t k = await_tile(a, maps, o, r, j, tiles);
        if (a.length - at <= 16)
            forward_step<16, DROPS, true>(a, first, f, mine, k, at, when, strip.query);
        else if (at + ROWS > a.length || (a.causal && at == first))
            forward_step<ROWS, DROPS, true>(a, first, f, mine, k, at, when, strip.query);
        else
            forward_step<ROWS, DROPS, false>(a, first, f, mine, k, at, when, strip.query);
        leave_tile(r, j);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = first + lane_row() + 8 * h;
        const float total = lanes_sum(f.total[h]);
        const bool valid = query < a.length;
        store_sums(y + strip.y + query * part_step(a), f.sum, h, 1.0f / total, valid);
        if (log_sums && valid && threadIdx.x % 4 == 0)
            log_sums[strip.numbers + query] = f.top[h] * a.scale * LOG2_E + log2f(total);
    }
}

/* ---- backward: queries -------------------------------------------------------------------------------------------------- */

/* 64 queries. */
typedef struct query_gradients {
    float dq[32], log_sum[2], delta[2];
} query_gradients;

__device__ static inline float product_of_pairs(uint32_t left, uint32_t right)
{
    return __uint_as_float(left << 16) * __uint_as_float(right << 16) +
           __uint_as_float(left & 0xffff0000u) * __uint_as_float(right & 0xffff0000u);
}

/* log_sum and delta of this lane's queries; delta is also written to memory for the keys. */
__device__ static inline void find_numbers(const attention &a, const attention_memory &m, const strip_place &strip, int first,
                                           query_gradients &s)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + lane_row() + 8 * h, query = min(row, a.length - 1);
        const int64_t at = strip.y + query * part_step(a) + (int64_t)(threadIdx.x % 4 * (WIDTH / 4));
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 y = *reinterpret_cast<const uint4 *>((const bf16 *)m.y + at + 8 * i);
            const uint4 dy = *reinterpret_cast<const uint4 *>((const bf16 *)m.dy + at + 8 * i);
            sum += product_of_pairs(y.x, dy.x) + product_of_pairs(y.y, dy.y);
            sum += product_of_pairs(y.z, dy.z) + product_of_pairs(y.w, dy.w);
        }
        s.delta[h] = lanes_sum(sum);
        s.log_sum[h] = m.log_sums[strip.numbers + query];
        if (row < a.length && threadIdx.x % 4 == 0) m.delta[strip.numbers + row] = s.delta[h];
    }
}

/* As forward_step. q and dy are the group's, k and v the tile's. */
template <int C, bool DROPS, bool EDGE>
__device__ static inline void query_step(const attention &a, int first, query_gradients &s, uint32_t q, uint32_t k, int at,
                                         uint32_t when, uint64_t base)
{
    const float scale = a.scale * LOG2_E;
    const int row = first + lane_row(), column = at + lane_column();
    const edge hidden = edge_of(a, row, column);
    float p[C / 2], ds[C / 2];
    begin_scores<C>(p, q, k);
    begin_scores<C>(ds, q + GROUPS * TILE_SIZE, k + TILE_SIZE);
    group_wait<1>();
    group_settle(p);
#pragma unroll
    for (int i = 0; i < C / 2; i++) {
        p[i] = power_of_two(p[i] * scale - s.log_sum[i / 2 % 2]);
        if (EDGE && is_hidden(hidden, i / 2 % 2 * 8, i / 4 * 8 + i % 2)) p[i] = 0.0f;
    }
    group_wait<0>();
    group_settle(ds);
#pragma unroll
    for (int t = 0; t < C / 8; t++) {
        float keep[4];
        if (DROPS) keep_of_queries(a, when, base + (uint64_t)row, column + t * 8, keep);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &d = ds[4 * t + e];
            d = p[4 * t + e] * ((DROPS ? d * keep[e] : d) - s.delta[e / 2]);
        }
    }
    uint32_t rounded[C / 16][4];
    round_scores<C>(rounded, ds);
    begin_sums<C>(s.dq, rounded, k);
    group_wait<0>();
    group_keep(rounded);
    group_settle(s.dq);
}

template <bool DROPS>
static __global__ void __launch_bounds__(128 * GROUPS, 2)
    query_kernel(const __grid_constant__ attention_maps maps, attention a, attention_memory m)
{
    extern __shared__ uint4 tile_memory[];
    __shared__ __align__(8) uint64_t turns[1 + 2 * PLACES];
    const owner o = owner_of(a, ROWS * GROUPS, a.causal);
    const int group = own_group(), first = o.first + group * ROWS, tiles = tiles_of_block(a, o);
    const int own = a.causal ? min(tiles, first / ROWS + 1) : tiles; /* tiles that this group sees */
    const uint32_t q = (shared_address(tile_memory) + ALIGNED - 1) / ALIGNED * ALIGNED, dy = q + GROUPS * TILE_SIZE;
    const ring r = create_ring<PLACES>(dy + GROUPS * TILE_SIZE, turns, 4u * groups_of_block(a, o));
    if (threadIdx.x == 0) {
        turn_expect(r.own, 2 * GROUPS * TILE_SIZE);
        for (int g = 0; g < GROUPS; g++) {
            const uint32_t to = (uint32_t)g * TILE_SIZE;
            bring_part(a, maps, o, 0, o.first + g * ROWS, q + to, r.own);
            box_bring(dy + to, &maps.dy, 0, o.head, o.first + g * ROWS, (int)o.sample, r.own);
        }
        bring_first(a, maps, o, r, tiles);
    }
    if (first >= a.length) return;
    const strip_place strip = place_of_strip(a, o.strip);
    const uint32_t when = DROPS ? dropout_when(a.key) : 0, mine = q + (uint32_t)group * TILE_SIZE;
    query_gradients s = {};
    find_numbers(a, m, strip, first, s);
    turn_wait(r.own, 0);
    for (int j = 0; j < own; j++) {
        const int at = j * ROWS;
        const uint32_t k = await_tile(a, maps, o, r, j, tiles);
        if (a.length - at <= 16)
            query_step<16, DROPS, true>(a, first, s, mine, k, at, when, strip.query);
        else if (at + ROWS > a.length || (a.causal && at == first))
            query_step<ROWS, DROPS, true>(a, first, s, mine, k, at, when, strip.query);
        else
            query_step<ROWS, DROPS, false>(a, first, s, mine, k, at, when, strip.query);
        leave_tile(r, j);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = first + lane_row() + 8 * h;
        store_sums((bf16 *)m.dqkv + strip.qkv + query * token_step(a), s.dq, h, a.scale, query < a.length);
    }
}

/* ---- backward: keys ------------------------------------------------------------------------------------------------------ */

/* 64 keys; seen: sums of probabilities. */
typedef struct key_gradients {
    float dk[32], dv[32], seen[2];
} key_gradients;

/* Of the queries of a tile, in shared memory. */
typedef struct tile_numbers {
    float log_sum[ROWS], delta[ROWS];
} tile_numbers;

/* A thread's number of the tile's queries from `at` on: log_sum of the first 64 threads, delta of the others. */
__device__ static inline float load_number(const attention &a, const attention_memory &m, const strip_place &strip, int at)
{
    const int query = at + (int)threadIdx.x % ROWS;
    return query < a.length ? (threadIdx.x < ROWS ? m.log_sums : m.delta)[strip.numbers + query] : 0.0f;
}

/* Of the first C queries of a tile: probabilities with dropout from scores p, and ds from the products of v and dy. EDGE as in
 * forward_step, or keys are past the end. */
template <int C, bool DROPS, bool EDGE>
__device__ static inline void key_gradients_of(const attention &a, int first, key_gradients &s, int at,
                                               const tile_numbers *numbers, uint32_t when, uint64_t base, float (&p)[C / 2],
                                               float (&ds)[C / 2])
{
    const float scale = a.scale * LOG2_E;
    const int key = first + lane_row(), column = lane_column();
    const edge hidden = edge_of(a, at + column, key);
#pragma unroll
    for (int t = 0; t < C / 8; t++) {
        const float2 log_sum = *reinterpret_cast<const float2 *>(numbers->log_sum + t * 8 + column);
        const float2 delta = *reinterpret_cast<const float2 *>(numbers->delta + t * 8 + column);
        float keep[4];
        if (DROPS) keep_of_keys(a, when, base + (uint64_t)(at + t * 8 + column), key, keep);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v = power_of_two(p[4 * t + e] * scale - (e % 2 ? log_sum.y : log_sum.x));
            if (EDGE && is_hidden(hidden, t * 8 + e % 2, e / 2 * 8)) v = 0.0f;
            s.seen[e / 2] += v;
            float &d = ds[4 * t + e];
            d = v * ((DROPS ? d * keep[e] : d) - (e % 2 ? delta.y : delta.x));
            p[4 * t + e] = DROPS ? v * keep[e] : v;
        }
    }
}

/* The first C queries of the tile at q, dy behind it. The group's k is at k, v behind it. */
template <int C, bool DROPS, bool EDGE>
__device__ static inline void key_step(const attention &a, int first, key_gradients &s, uint32_t k, uint32_t q, int at,
                                       const tile_numbers *numbers, uint32_t when, uint64_t base)
{
    float p[C / 2], ds[C / 2];
    begin_scores<C>(p, k, q);
    begin_scores<C>(ds, k + TILE_SIZE, q + TILE_SIZE);
    group_wait<0>();
    group_settle(p);
    group_settle(ds);
    key_gradients_of<C, DROPS, EDGE>(a, first, s, at, numbers, when, base, p, ds);
    uint32_t left[C / 16][4], right[C / 16][4];
    round_scores<C>(left, p);
    round_scores<C>(right, ds);
    begin_sums<C>(s.dv, left, q + TILE_SIZE);
    begin_sums<C>(s.dk, right, q);
    group_wait<0>();
    group_keep(left);
    group_keep(right);
    group_settle(s.dv);
    group_settle(s.dk);
}

template <bool DROPS>
static __global__ void __launch_bounds__(128, 3)
    key_kernel(const __grid_constant__ attention_maps maps, attention a, attention_memory m)
{
    extern __shared__ uint4 tile_memory[];
    __shared__ __align__(8) uint64_t turns[1 + KEY_PLACES];
    __shared__ __align__(16) tile_numbers numbers[2]; /* read in pairs */
    const owner o = owner_of(a, ROWS, false);
    const int first = o.first, begin = a.causal ? first : 0, tiles = (a.length - begin + ROWS - 1) / ROWS;
    const uint32_t k = (shared_address(tile_memory) + ALIGNED - 1) / ALIGNED * ALIGNED, places = k + PLACE;
    const uint32_t own = shared_address(turns), full = own + 8;
    const strip_place strip = place_of_strip(a, o.strip);
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i <= KEY_PLACES; i++) turn_create(own + 8 * i, 1);
        turns_publish();
        bring_keys(a, maps, o, first, k, own);
        for (int j = 0; j < min(tiles, KEY_PLACES); j++)
            bring_queries(a, maps, o, begin + j * ROWS, places + (uint32_t)j * PLACE, full + 8u * (uint32_t)j);
    }
    ((float *)&numbers[0])[threadIdx.x] = load_number(a, m, strip, begin);
    __syncthreads();
    key_gradients s = {};
    turn_wait(own, 0);
    for (int j = 0; j < tiles; j++) {
        const int at = begin + j * ROWS, place = j % KEY_PLACES;
        const uint32_t q = places + (uint32_t)place * PLACE, turn = full + 8u * (uint32_t)place;
        const tile_numbers *n = &numbers[j % 2];
        const float number = load_number(a, m, strip, at + ROWS);
        turn_wait(turn, (unsigned)(j / KEY_PLACES) & 1u);
        if (a.length - at <= 16)
            key_step<16, DROPS, true>(a, first, s, k, q, at, n, when, strip.query);
        else if (at + ROWS > a.length || first + ROWS > a.length || (a.causal && at == first))
            key_step<ROWS, DROPS, true>(a, first, s, k, q, at, n, when, strip.query);
        else
            key_step<ROWS, DROPS, false>(a, first, s, k, q, at, n, when, strip.query);
        ((float *)&numbers[(j + 1) % 2])[threadIdx.x] = number;
        __syncthreads();
        if (threadIdx.x == 0 && j + KEY_PLACES < tiles) bring_queries(a, maps, o, at + KEY_PLACES * ROWS, q, turn);
        __syncwarp();
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = first + lane_row() + 8 * h;
        const float seen = lanes_sum(s.seen[h]);
        const bool valid = key < a.length;
        if (m.columns && valid && threadIdx.x % 4 == 0) m.columns[strip.numbers + key] = seen * a.column_share;
        if (!m.dqkv) continue;
        bf16 *to = (bf16 *)m.dqkv + strip.qkv + key * token_step(a);
        store_sums(to + part_step(a), s.dk, h, a.scale, valid);
        store_sums(to + 2 * part_step(a), s.dv, h, 1.0f, valid);
    }
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

static const size_t forward_bytes = ALIGNED + GROUPS * TILE_SIZE + PLACES * PLACE;
static const size_t query_bytes = ALIGNED + 2 * GROUPS * TILE_SIZE + PLACES * PLACE;
static const size_t key_bytes = ALIGNED + 2 * TILE_SIZE + KEY_PLACES * PLACE;

/* heads: in a row of data. */
static bool encode_rows(encode_function encode, const attention *a, int heads, const void *data, CUtensorMap *out)
{
    const cuuint64_t head = WIDTH * sizeof(bf16), row = head * (cuuint64_t)heads;
    const cuuint64_t sizes[4] = {WIDTH, (cuuint64_t)heads, (cuuint64_t)a->tokens, (cuuint64_t)a->samples};
    const cuuint64_t apart[3] = {head, row, row * sizes[2]};
    const cuuint32_t box[4] = {WIDTH, 1, ROWS, 1}, steps[4] = {1, 1, 1, 1};
    return encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)data, sizes, apart, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* False: the failure is kept as a launch's. dy may be NULL. */
static bool make_maps(abar_device *dev, const attention *a, const attention_memory *m, attention_maps *maps)
{
    encode_function encode = NULL;
    const bool made = find_encode(dev, &encode) >= 0 && encode && encode_rows(encode, a, 3 * a->heads, m->qkv, &maps->qkv) &&
                      (!m->dy || encode_rows(encode, a, a->heads, m->dy, &maps->dy));
    if (!made && abar__cuda_of(dev)->failure == cudaSuccess) abar__cuda_of(dev)->failure = cudaErrorInvalidValue;
    return made;
}

template <bool DROPS> static abar_status prepare_as(abar_device *dev)
{
    ABAR_TRY(abar__attention_allow(dev, (const void *)forward_kernel<DROPS>, forward_bytes));
    ABAR_TRY(abar__attention_allow(dev, (const void *)query_kernel<DROPS>, query_bytes));
    return abar__attention_allow(dev, (const void *)key_kernel<DROPS>, key_bytes);
}

/* Not for sequences that leave many rows of the groups without work. */
static abar_status prepare(abar_device *dev, const attention *a)
{
    bool wide = false;
    encode_function encode = NULL;
    const int64_t rows = abar__cuda_blocks(a->length, ROWS) * ROWS;
    if (a->side || a->width != WIDTH || (float)a->length < LEAST_USE * (float)rows) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(has_wide_products(dev, &wide));
    if (!wide) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(find_encode(dev, &encode));
    if (!encode) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(prepare_as<false>(dev));
    return prepare_as<true>(dev);
}

static dim3 grid_of(const attention *a, int rows)
{
    return dim3((unsigned)(abar__cuda_blocks(a->length, rows) * a->samples * a->heads));
}

template <bool DROPS> static void forward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    attention_maps maps = {};
    if (make_maps(dev, a, m, &maps))
        abar__cuda_launch(dev, forward_kernel<DROPS>, grid_of(a, ROWS * GROUPS), dim3(128 * GROUPS), forward_bytes, maps, *a,
                          (bf16 *)m->y, m->log_sums);
}

/* Queries first: the keys need their delta, unless dqkv is not wanted. */
template <bool DROPS> static void backward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    attention_maps maps = {};
    if (!make_maps(dev, a, m, &maps)) return;
    if (m->dqkv)
        abar__cuda_launch(dev, query_kernel<DROPS>, grid_of(a, ROWS * GROUPS), dim3(128 * GROUPS), query_bytes, maps, *a, *m);
    abar__cuda_launch(dev, key_kernel<DROPS>, grid_of(a, ROWS), dim3(128), key_bytes, maps, *a, *m);
}

static void forward(abar_device *dev, const attention *a, const attention_memory *m)
{
    a->drops ? forward_as<true>(dev, a, m) : forward_as<false>(dev, a, m);
}

static void backward(abar_device *dev, const attention *a, const attention_memory *m)
{
    a->drops ? backward_as<true>(dev, a, m) : backward_as<false>(dev, a, m);
}

const attention_kernels abar__attention_wide = {prepare, forward, backward, NULL};
