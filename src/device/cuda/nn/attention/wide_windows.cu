/* Attention in windows of 7 x 7 tokens, heads of 32 columns, in bf16 on tensor cores that read shared memory (core/wgmma.h);
 * equations in attention.h.
 *
 * A block of four warps owns one head and every gridDim.x-th of its windows (of all samples), one at a time, and copies the
 * next one while it computes. A window is 64 rows of 64 bytes, those past its end zero, in the pattern of half_rows_descriptor;
 * scores have 56 columns. They fit into registers, as do the sums over windows for the gradient of the bias table, so that
 * nothing is computed twice. The bias is expanded to (64, 56) in shared memory, minus infinity past the window's end. */
#include "device/cuda/nn/attention/wide.h"
#include "device/cuda/nn/attention/windows.h"

#define HEAD 32 /* columns of a head */
#define COLUMNS 56
#define SCORES (COLUMNS / 2) /* of a thread */
#define SUMS (HEAD / 2)
#define PART ((uint32_t)(TILE_ROWS * HEAD * sizeof(bf16))) /* bytes of one matrix */
#define BIAS_BYTES ((uint32_t)(TILE_ROWS * COLUMNS * sizeof(float)))

struct pattern_tile {
    static constexpr int width = HEAD;
    static constexpr uint32_t bytes = PART;
    __device__ static uint32_t at(int r, int c) { return (uint32_t)(r * 64 + (c / 8 ^ r / 2 % 4) * 16); }
};

/* The first multiple of ALIGNED in the block's memory. */
__device__ static inline char *aligned_memory(void *memory)
{
    return (char *)memory + (ALIGNED - shared_address(memory) % ALIGNED) % ALIGNED;
}

/* This thread's copies have come: from here on, behind a barrier, they are seen by products. */
__device__ static inline void copies_arrive(void)
{
    copies_wait<0>();
    turn_written();
}

/* ---- products --------------------------------------------------------------------------------------------------------- */

/* product (64, 56) = the 64 rows at `left` times the transpose of the first 56 rows at `right`, later. */
__device__ static inline void begin_window(float (&product)[SCORES], uint32_t left, uint32_t right)
{
    const uint64_t a = half_tile_descriptor(left), b = half_tile_descriptor(right);
    group_begin();
#pragma unroll
    for (uint32_t k = 0; k < HEAD / 16; k++) group_multiply_columns(product, a + 2 * k, b + 2 * k, k > 0); /* 32 bytes */
    group_commit();
}

/* sum (64, 32) += left (64, 64) times the 64 rows at `right`, later. */
__device__ static inline void begin_rows(float (&sum)[SUMS], const uint32_t (&left)[4][4], uint32_t right)
{
    const uint64_t b = half_rows_descriptor(right, PART);
    group_begin();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) group_multiply_add_rows(sum, left[k], b + k * (16 * 64 >> 4));
    group_commit();
}

/* sum (64, 32) = the transpose of the 64 rows of 64 at `left` times the 64 rows at `right`, later. */
__device__ static inline void begin_turned(float (&sum)[SUMS], uint32_t left, uint32_t right)
{
    const uint64_t a = rows_descriptor(left, 2 * PART), b = half_rows_descriptor(right, PART);
    group_begin();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) group_multiply_rows(sum, a + k * (16 * 128 >> 4), b + k * (16 * 64 >> 4), k > 0);
    group_commit();
}

/* Scores as a left factor with 64 columns. */
__device__ static inline void round_window(uint32_t (&to)[4][4], const float (&s)[SCORES])
{
#pragma unroll
    for (int i = 0; i < 16; i++) to[i / 4][i % 4] = i < SCORES / 2 ? pair_bits(s[2 * i], s[2 * i + 1]) : 0;
}

/* Row group + 8 half of a sum times factor, written if valid. */
__device__ static inline void store_window(bf16 *to, const float (&sum)[SUMS], int half, float factor, bool valid)
{
    float chunks[HEAD / 8][4];
#pragma unroll
    for (int i = 0; i < SUMS; i++) chunks[i / 4][i % 4] = sum[i];
    store_row<HEAD>(to, chunks, half, factor, valid);
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

/* A stage: q, k, v and the map. */
static constexpr uint32_t forward_stage = 3 * PART + 1024;
static constexpr size_t forward_bytes = ALIGNED + 2 * forward_stage + BIAS_BYTES;

__device__ static inline void fetch_forward(const attention &a, const spots *s, int strip, const bf16 *qkv, char *stage)
{
    const bf16 *q = qkv + (int64_t)(strip / a.windows) * a.tokens * token_step(a) + (int64_t)blockIdx.y * HEAD;
    const bf16 *const from[3] = {q, q + part_step(a), q + 2 * part_step(a)};
    const int64_t step[3] = {token_step(a), token_step(a), token_step(a)};
    copy_window<pattern_tile, 3>(a, s, strip % a.windows, from, step, shared_address(stage), (rows_map *)(stage + 3 * PART));
    copies_commit();
}

/* Scores with bias, minus infinity where they do not count; top: the largest of each row. */
__device__ static inline void add_bias(const attention &a, int window, const rows_map *map, const float *bias,
                                       float (&s)[SCORES], float (&top)[2])
{
    const int row = lane_row(), column = lane_column();
    const float scale = a.scale * LOG2_E;
    const bool mixed = is_mixed(a, window);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int region = map->region[min(row + 8 * h, a.length - 1)];
        top[h] = -INFINITY;
#pragma unroll
        for (int t = 0; t < COLUMNS / 8; t++) {
            const float2 b = *reinterpret_cast<const float2 *>(bias + (row + 8 * h) * COLUMNS + t * 8 + column);
            float &left = s[4 * t + 2 * h], &right = s[4 * t + 2 * h + 1];
            left = left * scale + b.x;
            right = right * scale + b.y;
            if (mixed) {
                if (map->region[t * 8 + column] != region) left = -INFINITY;
                if (map->region[t * 8 + column + 1] != region) right = -INFINITY;
            }
            top[h] = fmaxf(top[h], fmaxf(left, right));
        }
        top[h] = lanes_max(top[h]);
    }
}

/* Dropout's factor of a pair of rows of the map. */
__device__ static inline float keep_of_pair(const attention &a, const rows_map *map, uint32_t when, uint64_t base, int query,
                                            int key)
{
    const int token = map->token[key];
    return factor_of(a.key, word_of(draw_of(a, when, base + (uint64_t)map->token[query], token), (uint32_t)token));
}

template <bool DROPS>
__device__ static inline void forward_window(const attention &a, int strip, const char *stage, const float *bias, bf16 *y,
                                             float *log_sums, uint32_t when)
{
    const int row = lane_row(), column = lane_column(), head = (int)blockIdx.y;
    const int64_t sample = strip / a.windows;
    const uint32_t q = shared_address(stage);
    const rows_map *map = (const rows_map *)(stage + 3 * PART);
    float s[SCORES], sum[SUMS] = {}, top[2], total[2] = {};
    begin_window(s, q, q + PART);
    group_wait<0>();
    group_settle(s);
    add_bias(a, strip % a.windows, map, bias, s, top);
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        const int h = i / 2 % 2;
        s[i] = power_of_two(s[i] - top[h]);
        total[h] += s[i];
        if (DROPS) s[i] *= keep_of_pair(a, map, when, query_number(a, sample, head), row + 8 * h, i / 4 * 8 + column + i % 2);
    }
    uint32_t p[4][4];
    round_window(p, s);
    begin_rows(sum, p, q + 2 * PART);
    group_wait<0>();
    group_keep(p);
    group_settle(sum);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float all = lanes_sum(total[h]);
        const bool valid = row + 8 * h < a.length;
        const int64_t token = map->token[row + 8 * h];
        store_window(y + (sample * a.tokens + token) * part_step(a) + (int64_t)head * HEAD, sum, h, 1.0f / all, valid);
        if (log_sums && threadIdx.x % 4 == 0 && valid)
            log_sums[(sample * a.heads + head) * a.tokens + token] = top[h] + log2f(all);
    }
}

template <bool DROPS>
static __global__ void __launch_bounds__(TILE_THREADS, 5)
    forward_kernel(attention a, const bf16 *qkv, const float *table, bf16 *y, float *log_sums)
{
    extern __shared__ uint4 tile_memory[];
    __shared__ spots where;
    char *stages = aligned_memory(tile_memory);
    float *bias = (float *)(stages + 2 * forward_stage);
    const int strips = (int)a.samples * a.windows, step = (int)gridDim.x;
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    find_spots(a, &where);
    expand_bias<false, COLUMNS, COLUMNS>(a, &where, table, (int)blockIdx.y, bias);
    fetch_forward(a, &where, (int)blockIdx.x, qkv, stages);
    int stage = 0;
    for (int strip = (int)blockIdx.x; strip < strips; strip += step, stage ^= 1) {
        copies_arrive();
        __syncthreads();
        if (strip + step < strips) fetch_forward(a, &where, strip + step, qkv, stages + (stage ^ 1) * forward_stage);
        forward_window<DROPS>(a, strip, stages + stage * forward_stage, bias, y, log_sums, when);
    }
}

/* ---- backward ------------------------------------------------------------------------------------------------------ */

/* A stage: k, q, dy, v, y, the map, and numbers of the queries. */
enum { K, Q, DY, V, Y, PARTS };

typedef struct query_numbers {
    float log_sum[TILE_ROWS], delta[TILE_ROWS];
} query_numbers;

#define MAP_AT (PARTS * PART)
#define NUMBERS_AT (MAP_AT + (uint32_t)sizeof(rows_map))
#define DS_BYTES (2 * PART) /* ds (64 keys, 64 queries), the last 8 queries never written */

static constexpr uint32_t backward_stage = NUMBERS_AT + (uint32_t)sizeof(query_numbers);
static constexpr size_t backward_bytes = ALIGNED + 2 * backward_stage + DS_BYTES + BIAS_BYTES;
static_assert(forward_stage % ALIGNED == 0 && backward_stage % ALIGNED == 0, "every matrix begins where its pattern does");

__device__ static inline void fetch_backward(const attention &a, const attention_memory &m, const spots *s, int strip,
                                             char *stage)
{
    const int64_t sample = strip / a.windows, step = token_step(a), part = part_step(a);
    const int window = strip % a.windows, r = (int)threadIdx.x;
    const bf16 *q = (const bf16 *)m.qkv + sample * a.tokens * step + (int64_t)blockIdx.y * HEAD;
    const int64_t y = sample * a.tokens * part + (int64_t)blockIdx.y * HEAD;
    const bf16 *const from[PARTS] = {q + part, q, (const bf16 *)m.dy + y, q + 2 * part, (const bf16 *)m.y + y};
    const int64_t steps[PARTS] = {step, step, part, step, part};
    copy_window<pattern_tile, PARTS>(a, s, window, from, steps, shared_address(stage), (rows_map *)(stage + MAP_AT));
    if (r < TILE_ROWS) {
        const int64_t at = (sample * a.heads + blockIdx.y) * a.tokens + place_at(a, window, s->down[r], s->right[r]).token;
        copy4_async(shared_address(stage) + NUMBERS_AT + (uint32_t)(r * (int)sizeof(float)), m.log_sums + at, r < a.length);
    }
    copies_commit();
}

/* delta of all rows: two threads per row, half its columns each. */
__device__ static inline void make_delta(char *stage)
{
    const int r = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2;
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < HEAD / 2; c += 8) {
        const uint32_t at = pattern_tile::at(r, half * (HEAD / 2) + c);
        const pack<bf16> left = load_pack((const bf16 *)(stage + DY * PART + at));
        const pack<bf16> right = load_pack((const bf16 *)(stage + Y * PART + at));
#pragma unroll
        for (int i = 0; i < 8; i++) sum += left.v[i] * right.v[i];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (half == 0) ((query_numbers *)(stage + NUMBERS_AT))->delta[r] = sum;
}

/* p (keys, queries) with dropout, and ds, from the products q k and dy v; seen: sums of p over queries. */
template <bool DROPS>
__device__ static inline void window_gradients(const attention &a, int strip, const char *stage, const float *bias,
                                               float (&p)[SCORES], float (&ds)[SCORES], float (&ds_sum)[SCORES],
                                               float (&seen)[2], uint32_t when)
{
    const int row = lane_row(), column = lane_column();
    const rows_map *map = (const rows_map *)(stage + MAP_AT);
    const query_numbers *numbers = (const query_numbers *)(stage + NUMBERS_AT);
    const bool mixed = is_mixed(a, strip % a.windows);
    const float scale = a.scale * LOG2_E;
#pragma unroll
    for (int t = 0; t < COLUMNS / 8; t++) {
        const int query = t * 8 + column;
        const float2 log_sum = *reinterpret_cast<const float2 *>(numbers->log_sum + query);
        const float2 delta = *reinterpret_cast<const float2 *>(numbers->delta + query);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 b = *reinterpret_cast<const float2 *>(bias + (row + 8 * h) * COLUMNS + query);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int i = 4 * t + 2 * h + e;
                float v = power_of_two(p[i] * scale + ((e ? b.y : b.x) - (e ? log_sum.y : log_sum.x))), keep = 1.0f;
                if (mixed && map->region[query + e] != map->region[row + 8 * h]) v = 0.0f;
                if (DROPS)
                    keep =
                        keep_of_pair(a, map, when, query_number(a, strip / a.windows, (int)blockIdx.y), query + e, row + 8 * h);
                seen[h] += v;
                ds[i] = v * (ds[i] * keep - (e ? delta.y : delta.x));
                ds_sum[i] += ds[i];
                p[i] = v * keep;
            }
        }
    }
}

/* ds (keys, queries) as the left factor of begin_turned: rows of 128 bytes. */
__device__ static inline void share_window(char *to, const uint32_t (&ds)[4][4])
{
    const int row = lane_row();
#pragma unroll
    for (int t = 0; t < COLUMNS / 8; t++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(uint32_t *)(to + (row + 8 * h) * 128 + (t ^ row % 8) * 16 + (int)threadIdx.x % 4 * 4) = ds[t / 2][t % 2 * 2 + h];
}

/* One window whose rows have arrived. */
template <bool DROPS>
__device__ static inline void backward_window(const attention &a, const attention_memory &m, int strip, char *stage,
                                              char *shared, const float *bias, float (&ds_sum)[SCORES], uint32_t when)
{
    const int row = lane_row();
    const int64_t sample = strip / a.windows, step = token_step(a), part = part_step(a);
    const uint32_t tile = shared_address(stage);
    const rows_map *map = (const rows_map *)(stage + MAP_AT);
    float p[SCORES], ds[SCORES], dk[SUMS] = {}, dv[SUMS] = {}, dq[SUMS], seen[2] = {};
    begin_window(p, tile + K * PART, tile + Q * PART);
    begin_window(ds, tile + V * PART, tile + DY * PART);
    make_delta(stage);
    group_wait<0>();
    group_settle(p);
    group_settle(ds);
    __syncthreads();
    window_gradients<DROPS>(a, strip, stage, bias, p, ds, ds_sum, seen, when);
    uint32_t left[4][4], right[4][4];
    round_window(left, p);
    round_window(right, ds);
    share_window(shared, right);
    turn_written();
    begin_rows(dv, left, tile + DY * PART);
    begin_rows(dk, right, tile + Q * PART);
    __syncthreads();
    begin_turned(dq, shared_address(shared), tile + K * PART);
    group_wait<0>();
    group_keep(left);
    group_keep(right);
    group_settle(dk);
    group_settle(dv);
    group_settle(dq);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float all = lanes_sum(seen[h]);
        const bool valid = row + 8 * h < a.length;
        const int64_t token = map->token[row + 8 * h];
        store_column(a, m, sample, token, all, valid);
        if (!m.dqkv) continue;
        bf16 *to = (bf16 *)m.dqkv + (sample * a.tokens + token) * step + (int64_t)blockIdx.y * HEAD;
        store_window(to, dq, h, a.scale, valid);
        store_window(to + part, dk, h, a.scale, valid);
        store_window(to + 2 * part, dv, h, 1.0f, valid);
    }
}

template <bool DROPS> static __global__ void __launch_bounds__(TILE_THREADS, 3) backward_kernel(attention a, attention_memory m)
{
    extern __shared__ uint4 tile_memory[];
    __shared__ spots where;
    char *stages = aligned_memory(tile_memory), *shared = stages + 2 * backward_stage;
    float *bias = (float *)(shared + DS_BYTES);
    const int strips = (int)a.samples * a.windows, step = (int)gridDim.x;
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    float ds_sum[SCORES] = {};
    find_spots(a, &where);
    expand_bias<true, COLUMNS, COLUMNS>(a, &where, m.table, (int)blockIdx.y, bias);
    fetch_backward(a, m, &where, (int)blockIdx.x, stages);
    int stage = 0;
    for (int strip = (int)blockIdx.x; strip < strips; strip += step, stage ^= 1) {
        copies_arrive();
        __syncthreads();
        if (strip + step < strips) fetch_backward(a, m, &where, strip + step, stages + (stage ^ 1) * backward_stage);
        backward_window<DROPS>(a, m, strip, stages + stage * backward_stage, shared, bias, ds_sum, when);
    }
    if (!m.partial) return;
    float *to = m.partial + ((int64_t)blockIdx.x * a.heads + blockIdx.y) * a.length * a.length;
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        const int query = i / 4 * 8 + lane_column() + i % 2, key = lane_row() + i / 2 % 2 * 8;
        if (query < a.length && key < a.length) to[query * a.length + key] = ds_sum[i];
    }
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

/* Blocks that share the windows of a head: as many as run at once. */
static int blocks_of(abar_device *dev, const attention *a, const void *kernel, size_t bytes)
{
    int resident = 0;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, TILE_THREADS, bytes);
    if (error != cudaSuccess || resident < 1) resident = 1;
    const int64_t wanted = (int64_t)resident * abar__cuda_of(dev)->processors / a->heads, strips = a->samples * a->windows;
    return (int)(wanted < 1 ? 1 : wanted < strips ? wanted : strips);
}

/* Of backward: each has its own part of partial. */
static int blocks(abar_device *dev, const attention *a)
{
    return blocks_of(dev, a, (const void *)backward_kernel<false>, backward_bytes);
}

template <bool DROPS> static abar_status prepare_as(abar_device *dev)
{
    ABAR_TRY(abar__attention_allow(dev, (const void *)forward_kernel<DROPS>, forward_bytes));
    return abar__attention_allow(dev, (const void *)backward_kernel<DROPS>, backward_bytes);
}

static abar_status prepare(abar_device *dev, const attention *a)
{
    bool wide = false;
    if (a->side != 7 || a->width != HEAD || a->samples * a->windows > INT_MAX / 2) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(has_wide_products(dev, &wide));
    if (!wide) return ABAR_E_UNSUPPORTED;
    ABAR_TRY(prepare_as<false>(dev));
    return prepare_as<true>(dev);
}

template <bool DROPS> static void forward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    const int count = blocks_of(dev, a, (const void *)forward_kernel<DROPS>, forward_bytes);
    abar__cuda_launch(dev, forward_kernel<DROPS>, dim3((unsigned)count, (unsigned)a->heads), dim3(TILE_THREADS), forward_bytes,
                      *a, (const bf16 *)m->qkv, m->table, (bf16 *)m->y, m->log_sums);
}

template <bool DROPS> static void backward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    abar__cuda_launch(dev, backward_kernel<DROPS>, dim3((unsigned)m->blocks, (unsigned)a->heads), dim3(TILE_THREADS),
                      backward_bytes, *a, *m);
}

static void forward(abar_device *dev, const attention *a, const attention_memory *m)
{
    a->drops ? forward_as<true>(dev, a, m) : forward_as<false>(dev, a, m);
}

static void backward(abar_device *dev, const attention *a, const attention_memory *m)
{
    a->drops ? backward_as<true>(dev, a, m) : backward_as<false>(dev, a, m);
}

const attention_kernels abar__attention_wide_windows = {prepare, forward, backward, blocks};
