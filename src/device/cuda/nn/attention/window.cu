/* Attention in windows of at most 64 tokens in bf16 on the tensor cores, heads of 32 or 64 columns; equations in
 * attention.h.
 *
 * A block of four warps owns one head and every gridDim.x-th of its windows (of all samples), one at a time. The scores of a
 * window fit into registers, so that nothing is computed twice; the sums over windows for the gradient of the bias table
 * stay in registers, too. The bias is expanded to (64, 64) in shared memory, minus infinity past the window's end. */
#include "device/cuda/nn/attention/windows.h"

#define BIAS_STEP (TILE_ROWS + 8)
#define BIAS_BYTES (TILE_ROWS * BIAS_STEP * (int)sizeof(float))

/* Tiles whose rows are D + 8 elements apart. */
template <int D> struct padded_tile {
    static constexpr int width = D;
    static constexpr uint32_t bytes = tile_bytes<D>;
    __device__ static uint32_t at(int r, int c) { return (uint32_t)(r * tile_step<D> + c) * (uint32_t)sizeof(bf16); }
};

/* ---- forward ------------------------------------------------------------------------------------------------------- */

template <int D> static constexpr int forward_stage_bytes = 3 * tile_bytes<D> + (int)sizeof(rows_map);
template <int D> static constexpr int forward_bytes = BIAS_BYTES + 2 * forward_stage_bytes<D>;

template <int D>
__device__ static inline void fetch_forward(const attention &a, const spots *s, int strip, const bf16 *qkv, uint32_t tile,
                                            char *stage)
{
    const bf16 *q = qkv + (int64_t)(strip / a.windows) * a.tokens * token_step(a) + (int64_t)blockIdx.y * D;
    const bf16 *const from[3] = {q, q + part_step(a), q + 2 * part_step(a)};
    const int64_t step[3] = {token_step(a), token_step(a), token_step(a)};
    copy_window<padded_tile<D>, 3>(a, s, strip % a.windows, from, step, tile, (rows_map *)(stage + 3 * tile_bytes<D>));
    copies_commit();
}

/* One window: this warp's 16 queries, from row on. */
template <int D, bool DROPS>
__device__ static inline void forward_window(const attention &a, int strip, uint32_t tile, const rows_map *map,
                                             const float *bias, bf16 *y, float *log_sums)
{
    const int pair = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, head = blockIdx.y;
    const int64_t sample = strip / a.windows;
    const bool mixed = is_mixed(a, strip % a.windows);
    const uint32_t warp = threadIdx.x / 32 * (uint32_t)(16 * tile_step<D> * sizeof(bf16));
    uint32_t q[D / 16][4];
    float p[TILE_ROWS / 8][4], sum[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {};
    load_left<D>(q, tile + warp);
    multiply_rows<D, TILE_ROWS>(p, q, tile + tile_bytes<D>);
    const float scale = a.scale * LOG2_E;
#pragma unroll
    for (int t = 0; t < TILE_ROWS / 8; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 b = *reinterpret_cast<const float2 *>(bias + (row + 8 * h) * BIAS_STEP + t * 8 + 2 * pair);
            float &left = p[t][2 * h], &right = p[t][2 * h + 1];
            left = left * scale + b.x;
            right = right * scale + b.y;
            if (mixed) {
                const int region = map->region[min(row + 8 * h, a.length - 1)], key = t * 8 + 2 * pair;
                if (map->region[key] != region) left = -INFINITY;
                if (map->region[key + 1] != region) right = -INFINITY;
            }
            top[h] = fmaxf(top[h], fmaxf(left, right));
        }
    top[0] = lanes_max(top[0]);
    top[1] = lanes_max(top[1]);
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
#pragma unroll
    for (int t = 0; t < TILE_ROWS / 8; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &v = p[t][e];
            v = power_of_two(v - top[e / 2]);
            total[e / 2] += v;
            if (DROPS) {
                const int query = map->token[row + e / 2 * 8], key = map->token[t * 8 + 2 * pair + e % 2];
                const uint4 draw = draw_of(a, when, query_number(a, sample, head) + (uint64_t)query, key);
                v *= factor_of(a.key, word_of(draw, (uint32_t)key));
            }
        }
    add_rows<D, TILE_ROWS>(sum, p, tile + 2 * tile_bytes<D>);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float all = lanes_sum(total[h]);
        const bool valid = row + 8 * h < a.length;
        const int64_t token = map->token[row + 8 * h];
        store_row<D>(y + (sample * a.tokens + token) * part_step(a) + (int64_t)head * D, sum, h, 1.0f / all, valid);
        if (log_sums && pair == 0 && valid) log_sums[(sample * a.heads + head) * a.tokens + token] = top[h] + log2f(all);
    }
}

template <int D, bool DROPS>
static __global__ void __launch_bounds__(TILE_THREADS)
    forward_kernel(attention a, const bf16 *qkv, const float *table, bf16 *y, float *log_sums)
{
    extern __shared__ uint4 tile_memory[];
    __shared__ spots where;
    float *bias = (float *)tile_memory;
    char *stages = (char *)tile_memory + BIAS_BYTES;
    const uint32_t tiles = shared_address(stages);
    const int strips = (int)a.samples * a.windows, step = (int)gridDim.x;
    find_spots(a, &where);
    expand_bias<false, TILE_ROWS, BIAS_STEP>(a, &where, table, blockIdx.y, bias);
    fetch_forward<D>(a, &where, (int)blockIdx.x, qkv, tiles, stages);
    int stage = 0;
    for (int strip = (int)blockIdx.x; strip < strips; strip += step, stage ^= 1) {
        copies_wait<0>();
        __syncthreads();
        const int next = (stage ^ 1) * forward_stage_bytes<D>, at = stage * forward_stage_bytes<D>;
        if (strip + step < strips) fetch_forward<D>(a, &where, strip + step, qkv, tiles + next, stages + next);
        forward_window<D, DROPS>(a, strip, tiles + at, (const rows_map *)(stages + at + 3 * tile_bytes<D>), bias, y, log_sums);
    }
}

/* ---- backward ------------------------------------------------------------------------------------------------------ */

/* A stage: q, k, v, dy, y, the map, and numbers of the queries. ds (keys, queries) replaces q and what follows it once these
 * are no longer needed; k is still needed, so q comes after it. */
enum { K, Q, DY, V, Y, PARTS };

typedef struct query_numbers {
    float log_sum[TILE_ROWS], delta[TILE_ROWS];
} query_numbers;

template <int D> static constexpr int stages_of = D == 32 ? 2 : 1; /* as many as fit */
template <int D>
static constexpr int backward_stage_bytes = PARTS *tile_bytes<D> + (int)sizeof(rows_map) + (int)sizeof(query_numbers);
template <int D> static constexpr int backward_bytes = BIAS_BYTES + stages_of<D> *backward_stage_bytes<D>;

template <int D>
__device__ static inline void fetch_backward(const attention &a, const attention_memory &m, const spots *s, int strip,
                                             uint32_t tile, char *stage)
{
    const int64_t sample = strip / a.windows, step = token_step(a), part = part_step(a);
    const int window = strip % a.windows, r = threadIdx.x % TILE_ROWS;
    const bf16 *q = (const bf16 *)m.qkv + sample * a.tokens * step + (int64_t)blockIdx.y * D;
    const int64_t y = sample * a.tokens * part + (int64_t)blockIdx.y * D;
    const bf16 *const from[PARTS] = {q + part, q, (const bf16 *)m.dy + y, q + 2 * part, (const bf16 *)m.y + y};
    const int64_t steps[PARTS] = {step, step, part, step, part};
    copy_window<padded_tile<D>, PARTS>(a, s, window, from, steps, tile, (rows_map *)(stage + PARTS * tile_bytes<D>));
    if (threadIdx.x < TILE_ROWS) {
        const bool valid = r < a.length;
        const int64_t at = (sample * a.heads + blockIdx.y) * a.tokens + place_at(a, window, s->down[r], s->right[r]).token;
        copy4_async(tile + PARTS * tile_bytes<D> + (uint32_t)(sizeof(rows_map) + r * sizeof(float)), m.log_sums + at, valid);
    }
    copies_commit();
}

/* delta of all rows: two threads per row, half its columns each. */
template <int D> __device__ static inline void make_delta(const char *stage, query_numbers *numbers)
{
    const int r = threadIdx.x / 2, half = threadIdx.x % 2;
    const bf16 *dy = (const bf16 *)(stage + DY * tile_bytes<D>)+r * tile_step<D> + half * (D / 2);
    const bf16 *y = (const bf16 *)(stage + Y * tile_bytes<D>)+r * tile_step<D> + half * (D / 2);
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < D / 2; c += 8) {
        const pack<bf16> left = load_pack(dy + c), right = load_pack(y + c);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += left.v[i] * right.v[i];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (half == 0) numbers->delta[r] = sum;
}

/* p (keys, queries) with dropout, ds likewise, from the products q k and dy v; seen: sums of p over queries. */
template <int D, bool DROPS>
__device__ static inline void window_gradients(const attention &a, int strip, const rows_map *map, const query_numbers *numbers,
                                               const float *bias, float (&p)[TILE_ROWS / 8][4], float (&ds)[TILE_ROWS / 8][4],
                                               float (&ds_sum)[TILE_ROWS / 8][4], float (&seen)[2])
{
    const int pair = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const bool mixed = is_mixed(a, strip % a.windows);
    const float scale = a.scale * LOG2_E;
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
#pragma unroll
    for (int t = 0; t < TILE_ROWS / 8; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int query = t * 8 + 2 * pair + e % 2, key = row + e / 2 * 8;
            float v = power_of_two(p[t][e] * scale + bias[key * BIAS_STEP + query] - numbers->log_sum[query]);
            if (mixed && map->region[query] != map->region[key]) v = 0.0f;
            float keep = 1.0f;
            if (DROPS) {
                const uint64_t first = query_number(a, strip / a.windows, blockIdx.y) + (uint64_t)map->token[query];
                keep = factor_of(a.key, word_of(draw_of(a, when, first, map->token[key]), (uint32_t)map->token[key]));
            }
            seen[e / 2] += v;
            ds[t][e] = v * (ds[t][e] * keep - numbers->delta[query]);
            ds_sum[t][e] += ds[t][e];
            p[t][e] = v * keep;
        }
}

/* One window whose rows have arrived. The warp owns 16 keys, and for dq 16 queries. */
template <int D, bool DROPS>
__device__ static inline void backward_window(const attention &a, const attention_memory &m, int strip, uint32_t tile,
                                              char *stage, const float *bias, float (&ds_sum)[TILE_ROWS / 8][4])
{
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const int64_t sample = strip / a.windows, step = token_step(a), part = part_step(a);
    const rows_map *map = (const rows_map *)(stage + PARTS * tile_bytes<D>);
    query_numbers *numbers = (query_numbers *)(stage + PARTS * tile_bytes<D> + sizeof(rows_map));
    const uint32_t warp = threadIdx.x / 32 * (uint32_t)(16 * tile_step<D> * sizeof(bf16));
    make_delta<D>(stage, numbers);
    __syncthreads();
    float p[TILE_ROWS / 8][4], ds[TILE_ROWS / 8][4], dk[D / 8][4] = {}, dv[D / 8][4] = {}, seen[2] = {};
    uint32_t left[D / 16][4];
    load_left<D>(left, tile + K * tile_bytes<D> + warp);
    multiply_rows<D, TILE_ROWS>(p, left, tile + Q * tile_bytes<D>);
    load_left<D>(left, tile + V * tile_bytes<D> + warp);
    multiply_rows<D, TILE_ROWS>(ds, left, tile + DY * tile_bytes<D>);
    window_gradients<D, DROPS>(a, strip, map, numbers, bias, p, ds, ds_sum, seen);
    add_rows<D, TILE_ROWS>(dv, p, tile + DY * tile_bytes<D>);
    add_rows<D, TILE_ROWS>(dk, ds, tile + Q * tile_bytes<D>);
    __syncthreads();
    share_gradients<TILE_ROWS, TILE_ROWS>((bf16 *)(stage + Q * tile_bytes<D>)+threadIdx.x / 32 * 16 * tile_step<TILE_ROWS>, ds);
    __syncthreads();
    float dq[D / 8][4] = {};
    const uint32_t columns = tile + Q * tile_bytes<D> + threadIdx.x / 32 * 16 * (uint32_t)sizeof(bf16);
#pragma unroll
    for (int t = 0; t < TILE_ROWS; t += 16)
        multiply_gradients<D, TILE_ROWS>(dq, columns + (uint32_t)(t * tile_step<TILE_ROWS> * (int)sizeof(bf16)),
                                         tile + K * tile_bytes<D> + (uint32_t)(t * tile_step<D> * (int)sizeof(bf16)));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float all = lanes_sum(seen[h]);
        const bool valid = row + 8 * h < a.length;
        const int64_t token = map->token[row + 8 * h];
        store_column(a, m, sample, token, all, valid);
        if (!m.dqkv) continue;
        bf16 *to = (bf16 *)m.dqkv + (sample * a.tokens + token) * step + (int64_t)blockIdx.y * D;
        store_row<D>(to, dq, h, a.scale, valid);
        store_row<D>(to + part, dk, h, a.scale, valid);
        store_row<D>(to + 2 * part, dv, h, 1.0f, valid);
    }
}

template <int D, bool DROPS>
static __global__ void __launch_bounds__(TILE_THREADS) backward_kernel(attention a, attention_memory m)
{
    extern __shared__ uint4 tile_memory[];
    __shared__ spots where;
    float *bias = (float *)tile_memory;
    char *stages = (char *)tile_memory + BIAS_BYTES;
    const uint32_t tiles = shared_address(stages);
    const int strips = (int)a.samples * a.windows, step = (int)gridDim.x;
    constexpr bool two = stages_of<D> == 2;
    float ds_sum[TILE_ROWS / 8][4] = {};
    find_spots(a, &where);
    expand_bias<true, TILE_ROWS, BIAS_STEP>(a, &where, m.table, blockIdx.y, bias);
    fetch_backward<D>(a, m, &where, (int)blockIdx.x, tiles, stages);
    int stage = 0;
    for (int strip = (int)blockIdx.x; strip < strips; strip += step, stage = (stage + 1) % stages_of<D>) {
        copies_wait<0>();
        __syncthreads();
        const int next = (stage + 1) % stages_of<D> * backward_stage_bytes<D>, at = stage * backward_stage_bytes<D>;
        const bool more = strip + step < strips;
        if (more && two) fetch_backward<D>(a, m, &where, strip + step, tiles + next, stages + next);
        backward_window<D, DROPS>(a, m, strip, tiles + at, stages + at, bias, ds_sum);
        if (two) continue;
        __syncthreads();
        if (more) fetch_backward<D>(a, m, &where, strip + step, tiles, stages);
    }
    if (!m.partial) return;
    const int pair = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    float *to = m.partial + ((int64_t)blockIdx.x * a.heads + blockIdx.y) * a.length * a.length;
#pragma unroll
    for (int t = 0; t < TILE_ROWS / 8; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int query = t * 8 + 2 * pair + e % 2, key = row + e / 2 * 8;
            if (query < a.length && key < a.length) to[query * a.length + key] = ds_sum[t][e];
        }
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

/* Blocks that share the windows of a head: as many as run at once. Each has its own part of partial. */
static int blocks(abar_device *dev, const attention *a)
{
    const bool narrow = a->width == 32;
    const void *kernel = narrow ? (const void *)backward_kernel<32, false> : (const void *)backward_kernel<64, false>;
    int resident = 0;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &resident, kernel, TILE_THREADS, (size_t)(narrow ? backward_bytes<32> : backward_bytes<64>));
    if (error != cudaSuccess || resident < 1) resident = 1;
    const int64_t wanted = (int64_t)resident * abar__cuda_of(dev)->processors / a->heads, strips = a->samples * a->windows;
    return (int)(wanted < 1 ? 1 : wanted < strips ? wanted : strips);
}

template <int D, bool DROPS> static abar_status prepare_as(abar_device *dev)
{
    ABAR_TRY(abar__attention_allow(dev, (const void *)forward_kernel<D, DROPS>, forward_bytes<D>));
    return abar__attention_allow(dev, (const void *)backward_kernel<D, DROPS>, backward_bytes<D>);
}

static abar_status prepare(abar_device *dev, const attention *a)
{
    if (!a->side || a->length > TILE_ROWS || (a->width != 32 && a->width != 64)) return ABAR_E_UNSUPPORTED;
    if (a->samples * a->windows > INT_MAX / 2) return ABAR_E_UNSUPPORTED;
    ABAR_TRY((prepare_as<32, false>(dev)));
    ABAR_TRY((prepare_as<32, true>(dev)));
    ABAR_TRY((prepare_as<64, false>(dev)));
    return prepare_as<64, true>(dev);
}

template <int D, bool DROPS> static void forward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    abar__cuda_launch(dev, forward_kernel<D, DROPS>, dim3((unsigned)m->blocks, (unsigned)a->heads), dim3(TILE_THREADS),
                      (size_t)forward_bytes<D>, *a, (const bf16 *)m->qkv, m->table, (bf16 *)m->y, m->log_sums);
}

template <int D, bool DROPS> static void backward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    abar__cuda_launch(dev, backward_kernel<D, DROPS>, dim3((unsigned)m->blocks, (unsigned)a->heads), dim3(TILE_THREADS),
                      (size_t)backward_bytes<D>, *a, *m);
}

static void forward(abar_device *dev, const attention *a, const attention_memory *m)
{
    by_width_and_dropout(a, [&]<int D, bool DROPS>() { forward_as<D, DROPS>(dev, a, m); });
}

static void backward(abar_device *dev, const attention *a, const attention_memory *m)
{
    by_width_and_dropout(a, [&]<int D, bool DROPS>() { backward_as<D, DROPS>(dev, a, m); });
}

const attention_kernels abar__attention_windows = {prepare, forward, backward, blocks};
