/* Attention in plain float32 arithmetic, for every width of heads up to 256, length and window; equations in attention.h.
 *
 * A block of 16 x 16 threads works on tiles of B queries and B keys, stored as floats in shared memory, in rows of P (the
 * width rounded up, filled with zeros) + 4. Thread (y, x) owns the rows y + 16 r and the columns x + 16 c of a tile of
 * scores. */
#include "device/cuda/nn/attention/attention.h"

#define SIDE 16
#define THREADS (SIDE * SIDE)

/* One strip, and the numbers a block needs for addressing in it. */
typedef struct strip {
    int64_t sample;
    int head, window;
} strip;

__device__ static inline strip strip_of(const attention &a, int64_t number)
{
    return {number / a.heads / a.windows, (int)(number / a.windows % a.heads), (int)(number % a.windows)};
}

__device__ static inline int64_t per_token(const attention &a, const strip &s, int token)
{
    return (s.sample * a.heads + s.head) * a.tokens + token;
}

/* to (B, P + 4): rows first .. of one of the strip's matrices; from is its (token 0, column 0); `step` elements per token. */
template <typename T, int P, int B>
__device__ static void load_tile(const attention &a, const strip &s, const T *from, int64_t step, int first, float *to)
{
    for (int i = threadIdx.x; i < B * P; i += THREADS) {
        const int r = i / P, c = i % P;
        const bool valid = first + r < a.length && c < a.width;
        to[r * (P + 4) + c] = valid ? load(from, place_of(a, s.window, first + r).token * step + c) : 0.0f;
    }
}

/* product[r][c] = the dot product of row y + 16 r of left with row x + 16 c of right, both (B, P + 4). */
template <int P, int M> __device__ static void dot_tiles(const float *left, const float *right, float (&product)[M][M])
{
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
#pragma unroll
    for (int r = 0; r < M; r++)
#pragma unroll
        for (int c = 0; c < M; c++) product[r][c] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < P; k += 4) {
        float4 b[M];
#pragma unroll
        for (int c = 0; c < M; c++) b[c] = *reinterpret_cast<const float4 *>(right + (x + SIDE * c) * (P + 4) + k);
#pragma unroll
        for (int r = 0; r < M; r++) {
            const float4 v = *reinterpret_cast<const float4 *>(left + (y + SIDE * r) * (P + 4) + k);
#pragma unroll
            for (int c = 0; c < M; c++) product[r][c] += v.x * b[c].x + v.y * b[c].y + v.z * b[c].z + v.w * b[c].w;
        }
    }
}

/* sum[r][c] += sum over k of left[k][y + 16 r] right[k][x + 16 c]: left (B, B + 1), or its transpose, right (B, P + 4). */
template <int P, int B, bool TRANSPOSED>
__device__ static void add_products(const float *left, const float *right, float (&sum)[B / SIDE][P / SIDE])
{
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
#pragma unroll 2
    for (int k = 0; k < B; k++) {
        float l[B / SIDE];
#pragma unroll
        for (int r = 0; r < B / SIDE; r++)
            l[r] = TRANSPOSED ? left[(y + SIDE * r) * (B + 1) + k] : left[k * (B + 1) + y + SIDE * r];
#pragma unroll
        for (int c = 0; c < P / SIDE; c++) {
            const float v = right[k * (P + 4) + x + SIDE * c];
#pragma unroll
            for (int r = 0; r < B / SIDE; r++) sum[r][c] += l[r] * v;
        }
    }
}

/* Writes value[r][c] times factor to row first + y + 16 r, column x + 16 c of a matrix like load_tile's. */
template <typename T, int P, int B>
__device__ static void store_tile(const attention &a, const strip &s, T *to, int64_t step, int first, float factor,
                                  const float (&value)[B / SIDE][P / SIDE])
{
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
#pragma unroll
    for (int r = 0; r < B / SIDE; r++) {
        const int i = first + y + SIDE * r;
        if (i >= a.length) continue;
        const int64_t row = place_of(a, s.window, i).token * step;
#pragma unroll
        for (int c = 0; c < P / SIDE; c++)
            if (x + SIDE * c < a.width) store(to, row + x + SIDE * c, value[r][c] * factor);
    }
}

/* The positions of this thread's rows (first + y + 16 r) or columns (x instead of y); past the end, the last position. */
template <int M> __device__ static void find_places(const attention &a, const strip &s, int first, place (&places)[M])
{
#pragma unroll
    for (int r = 0; r < M; r++) places[r] = place_of(a, s.window, min(first + SIDE * r, a.length - 1));
}

/* The score of query i and key j as an exponent of two, from q k; minus infinity where the query does not see the key. */
__device__ static inline float score_of(const attention &a, const float *table, int head, int i, int j, const place &query,
                                        const place &key, float product)
{
    if (j >= a.length || (a.causal && j > i) || query.region != key.region) return -INFINITY;
    const float bias = table ? table[(int64_t)bias_row(a, query.code, key.code) * a.heads + head] : 0.0f;
    return (product * a.scale + bias) * LOG2_E;
}

__device__ static inline float keep_of(const attention &a, uint32_t when, uint64_t base, const place &query, const place &key)
{
    if (!a.drops) return 1.0f;
    return factor_of(a.key, word_of(draw_of(a, when, base + (uint64_t)query.token, key.token), (uint32_t)key.token));
}

/* Reductions over the 16 threads of a row. */
__device__ static inline float row_max(float v)
{
#pragma unroll
    for (int lane = SIDE / 2; lane; lane /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lane));
    return v;
}

__device__ static inline float row_sum(float v)
{
#pragma unroll
    for (int lane = SIDE / 2; lane; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

/* Block (tile of queries, strip): loops over the keys with the largest score so far and the sum of 2^(score - largest). */
template <typename T, int P, int B>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(attention a, const T *qkv, const float *table, T *output, float *log_sums)
{
    constexpr int M = B / SIDE;
    extern __shared__ float tiles[];
    float *q = tiles, *k = q + B * (P + 4), *v = k + B * (P + 4), *p = v + B * (P + 4);
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    const strip s = strip_of(a, blockIdx.y + (int64_t)gridDim.y * blockIdx.z);
    const int first = blockIdx.x * B;
    if (s.sample >= a.samples) return;
    const uint32_t when = a.drops ? dropout_when(a.key) : 0;
    const uint64_t base = query_number(a, s.sample, s.head);
    const T *from = qkv + s.sample * a.tokens * token_step(a) + (int64_t)s.head * a.width;
    load_tile<T, P, B>(a, s, from, token_step(a), first, q);
    place queries[M], keys[M];
    find_places(a, s, first + y, queries);
    float sum[M][P / SIDE] = {}, top[M], total[M] = {};
    for (int r = 0; r < M; r++) top[r] = -INFINITY;
    const int end = a.causal ? min(a.length, first + B) : a.length;
    for (int at = 0; at < end; at += B) {
        __syncthreads();
        load_tile<T, P, B>(a, s, from + part_step(a), token_step(a), at, k);
        load_tile<T, P, B>(a, s, from + 2 * part_step(a), token_step(a), at, v);
        find_places(a, s, at + x, keys);
        __syncthreads();
        float score[M][M];
        dot_tiles<P>(q, k, score);
#pragma unroll
        for (int r = 0; r < M; r++) {
            float largest = top[r];
#pragma unroll
            for (int c = 0; c < M; c++) {
                score[r][c] =
                    score_of(a, table, s.head, first + y + SIDE * r, at + x + SIDE * c, queries[r], keys[c], score[r][c]);
                largest = fmaxf(largest, score[r][c]);
            }
            largest = row_max(largest);
            const float from_zero = largest == -INFINITY ? 0.0f : largest; /* no key seen yet: all powers are 0 */
            const float shrink = exp2f(top[r] - from_zero);
            top[r] = largest;
            total[r] *= shrink;
#pragma unroll
            for (int c = 0; c < P / SIDE; c++) sum[r][c] *= shrink;
#pragma unroll
            for (int c = 0; c < M; c++) {
                const float power = exp2f(score[r][c] - from_zero);
                total[r] += power;
                p[(y + SIDE * r) * (B + 1) + x + SIDE * c] = power * keep_of(a, when, base, queries[r], keys[c]);
            }
        }
        __syncthreads();
        add_products<P, B, true>(p, v, sum);
    }
#pragma unroll
    for (int r = 0; r < M; r++) {
        total[r] = row_sum(total[r]);
#pragma unroll
        for (int c = 0; c < P / SIDE; c++) sum[r][c] /= total[r];
        if (log_sums && x == 0 && first + y + SIDE * r < a.length)
            log_sums[per_token(a, s, queries[r].token)] = top[r] + log2f(total[r]);
    }
    T *to = output + s.sample * a.tokens * part_step(a) + (int64_t)s.head * a.width;
    store_tile<T, P, B>(a, s, to, part_step(a), first, 1.0f, sum);
}

/* ---- backward ------------------------------------------------------------------------------------------------------ */

/* Shared memory of a backward kernel: tiles of q, dy, k, v, and two of probabilities. */
template <int P, int B> struct tiles_of {
    float *q, *dy, *k, *v, *p, *ds;
    __device__ tiles_of(float *memory)
    {
        q = memory;
        dy = q + B * (P + 4);
        k = dy + B * (P + 4);
        v = k + B * (P + 4);
        p = v + B * (P + 4);
        ds = p + B * (B + 1);
    }
};

template <int P, int B> static constexpr size_t backward_bytes(void)
{
    return (size_t)(4 * B * (P + 4) + 2 * B * (B + 1)) * sizeof(float);
}

/* The matrices of one strip in global memory. */
template <typename T> struct sources {
    const T *q, *dy;
    int64_t step, dy_step, part;
    __device__ sources(const attention &a, const strip &s, const T *qkv, const T *output_grad)
    {
        step = token_step(a);
        part = dy_step = part_step(a);
        q = qkv + s.sample * a.tokens * step + (int64_t)s.head * a.width;
        dy = output_grad + s.sample * a.tokens * dy_step + (int64_t)s.head * a.width;
    }
};

/* Probabilities p (before dropout), p with dropout, and ds of the tiles in shared memory: queries first_query .., keys
 * first_key .. */
template <int P, int B>
__device__ static void tile_gradients(const attention &a, const strip &s, const attention_memory &m, const tiles_of<P, B> &t,
                                      int first_query, int first_key, float (&p)[B / SIDE][B / SIDE],
                                      float (&kept)[B / SIDE][B / SIDE], float (&ds)[B / SIDE][B / SIDE])
{
    constexpr int M = B / SIDE;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    const uint32_t when = a.drops ? dropout_when(a.key) : 0;
    const uint64_t base = query_number(a, s.sample, s.head);
    place queries[M], keys[M];
    find_places(a, s, first_query + y, queries);
    find_places(a, s, first_key + x, keys);
    dot_tiles<P>(t.q, t.k, p);
    dot_tiles<P>(t.dy, t.v, ds);
#pragma unroll
    for (int r = 0; r < M; r++) {
        const int i = first_query + y + SIDE * r;
        const float log_sum = m.log_sums[per_token(a, s, queries[r].token)];
        const float delta = m.delta[per_token(a, s, queries[r].token)];
#pragma unroll
        for (int c = 0; c < M; c++) {
            const float score = score_of(a, m.table, s.head, i, first_key + x + SIDE * c, queries[r], keys[c], p[r][c]);
            const float keep = keep_of(a, when, base, queries[r], keys[c]);
            p[r][c] = i < a.length ? exp2f(score - log_sum) : 0.0f;
            ds[r][c] = p[r][c] * (ds[r][c] * keep - delta);
            kept[r][c] = p[r][c] * keep;
        }
    }
}

template <int B> __device__ static void share_tile(float *to, const float (&value)[B / SIDE][B / SIDE])
{
#pragma unroll
    for (int r = 0; r < B / SIDE; r++)
#pragma unroll
        for (int c = 0; c < B / SIDE; c++)
            to[(threadIdx.x / SIDE + SIDE * r) * (B + 1) + threadIdx.x % SIDE + SIDE * c] = value[r][c];
}

/* Column sums of all probabilities that a thread saw, added over y in order. sums: each thread's sums of its columns. */
template <int B>
__device__ static void store_columns(const attention &a, const strip &s, int first, const float (&sums)[B / SIDE],
                                     float *shared, float *columns)
{
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    __syncthreads();
#pragma unroll
    for (int c = 0; c < B / SIDE; c++) shared[y * B + x + SIDE * c] = sums[c];
    __syncthreads();
    const int j = threadIdx.x;
    if (j >= B || first + j >= a.length) return;
    float sum = 0.0f;
    for (int r = 0; r < SIDE; r++) sum += shared[r * B + j];
    columns[per_token(a, s, place_of(a, s.window, first + j).token)] = sum * a.column_share;
}

/* Block (tile of keys, strip): dk, dv and the column means. */
template <typename T, int P, int B>
static __global__ void __launch_bounds__(THREADS) key_kernel(attention a, attention_memory m)
{
    constexpr int M = B / SIDE;
    extern __shared__ float tiles[];
    const tiles_of<P, B> t(tiles);
    const strip s = strip_of(a, blockIdx.y + (int64_t)gridDim.y * blockIdx.z);
    const int first = blockIdx.x * B;
    if (s.sample >= a.samples) return;
    const sources<T> from(a, s, (const T *)m.qkv, (const T *)m.dy);
    load_tile<T, P, B>(a, s, from.q + from.part, from.step, first, t.k);
    load_tile<T, P, B>(a, s, from.q + 2 * from.part, from.step, first, t.v);
    float dk[M][P / SIDE] = {}, dv[M][P / SIDE] = {}, seen[M] = {};
    for (int at = a.causal ? first : 0; at < a.length; at += B) {
        load_tile<T, P, B>(a, s, from.q, from.step, at, t.q);
        load_tile<T, P, B>(a, s, from.dy, from.dy_step, at, t.dy);
        __syncthreads();
        float p[M][M], kept[M][M], ds[M][M];
        tile_gradients<P, B>(a, s, m, t, at, first, p, kept, ds);
#pragma unroll
        for (int c = 0; c < M; c++)
#pragma unroll
            for (int r = 0; r < M; r++) seen[c] += p[r][c];
        share_tile<B>(t.p, kept);
        share_tile<B>(t.ds, ds);
        __syncthreads();
        add_products<P, B, false>(t.p, t.dy, dv);
        add_products<P, B, false>(t.ds, t.q, dk);
        __syncthreads();
    }
    if (m.columns) store_columns<B>(a, s, first, seen, t.p, m.columns);
    if (!m.dqkv) return;
    T *to = (T *)m.dqkv + s.sample * a.tokens * from.step + (int64_t)s.head * a.width;
    store_tile<T, P, B>(a, s, to + from.part, from.step, first, a.scale, dk);
    store_tile<T, P, B>(a, s, to + 2 * from.part, from.step, first, 1.0f, dv);
}

/* Block (tile of queries, strip): dq. */
template <typename T, int P, int B>
static __global__ void __launch_bounds__(THREADS) query_kernel(attention a, attention_memory m)
{
    constexpr int M = B / SIDE;
    extern __shared__ float tiles[];
    const tiles_of<P, B> t(tiles);
    const strip s = strip_of(a, blockIdx.y + (int64_t)gridDim.y * blockIdx.z);
    const int first = blockIdx.x * B;
    if (s.sample >= a.samples) return;
    const sources<T> from(a, s, (const T *)m.qkv, (const T *)m.dy);
    load_tile<T, P, B>(a, s, from.q, from.step, first, t.q);
    load_tile<T, P, B>(a, s, from.dy, from.dy_step, first, t.dy);
    float dq[M][P / SIDE] = {};
    const int end = a.causal ? min(a.length, first + B) : a.length;
    for (int at = 0; at < end; at += B) {
        load_tile<T, P, B>(a, s, from.q + from.part, from.step, at, t.k);
        load_tile<T, P, B>(a, s, from.q + 2 * from.part, from.step, at, t.v);
        __syncthreads();
        float p[M][M], kept[M][M], ds[M][M];
        tile_gradients<P, B>(a, s, m, t, first, at, p, kept, ds);
        share_tile<B>(t.ds, ds);
        __syncthreads();
        add_products<P, B, true>(t.ds, t.k, dq);
        __syncthreads();
    }
    T *to = (T *)m.dqkv + s.sample * a.tokens * from.step + (int64_t)s.head * a.width;
    store_tile<T, P, B>(a, s, to, from.step, first, a.scale, dq);
}

/* Block (pair of tiles, head, slab): ds summed over every slabs-th strip of the head, into partial. */
template <typename T, int P, int B>
static __global__ void __launch_bounds__(THREADS) table_kernel(attention a, attention_memory m)
{
    constexpr int M = B / SIDE;
    extern __shared__ float tiles[];
    const tiles_of<P, B> t(tiles);
    const int across = (a.length + B - 1) / B, head = blockIdx.y, slab = blockIdx.z;
    const int first_query = blockIdx.x / across * B, first_key = blockIdx.x % across * B;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    float sum[M][M] = {};
    for (int64_t i = slab; i < a.samples * a.windows; i += m.blocks) {
        const strip s = {i / a.windows, head, (int)(i % a.windows)};
        const sources<T> from(a, s, (const T *)m.qkv, (const T *)m.dy);
        load_tile<T, P, B>(a, s, from.q, from.step, first_query, t.q);
        load_tile<T, P, B>(a, s, from.dy, from.dy_step, first_query, t.dy);
        load_tile<T, P, B>(a, s, from.q + from.part, from.step, first_key, t.k);
        load_tile<T, P, B>(a, s, from.q + 2 * from.part, from.step, first_key, t.v);
        __syncthreads();
        float p[M][M], kept[M][M], ds[M][M];
        tile_gradients<P, B>(a, s, m, t, first_query, first_key, p, kept, ds);
#pragma unroll
        for (int r = 0; r < M; r++)
#pragma unroll
            for (int c = 0; c < M; c++) sum[r][c] += ds[r][c];
        __syncthreads();
    }
    float *to = m.partial + ((int64_t)slab * a.heads + head) * a.length * a.length;
#pragma unroll
    for (int r = 0; r < M; r++)
#pragma unroll
        for (int c = 0; c < M; c++) {
            const int query = first_query + y + SIDE * r, key = first_key + x + SIDE * c;
            if (query < a.length && key < a.length) to[(int64_t)query * a.length + key] = sum[r][c];
        }
}

/* ---- launches ------------------------------------------------------------------------------------------------------ */

static int tile_of(const attention *a) { return a->width <= 64 ? 64 : 32; }

/* (tiles, strips), the strips split into two dimensions. */
static dim3 strips_grid(const attention *a)
{
    const int64_t strips = a->samples * a->heads * a->windows, fold = abar__cuda_blocks(strips, 32768);
    return dim3((unsigned)abar__cuda_blocks(a->length, tile_of(a)), (unsigned)abar__cuda_blocks(strips, fold), (unsigned)fold);
}

static int blocks(abar_device *dev, const attention *a)
{
    const int64_t tiles = abar__cuda_blocks(a->length, tile_of(a)), strips = a->samples * a->windows;
    const int64_t wanted = abar__cuda_blocks(2 * abar__cuda_of(dev)->processors, tiles * tiles * a->heads);
    return (int)(wanted < strips ? wanted : strips);
}

template <typename T, int P, int B> static constexpr size_t forward_bytes(void)
{
    return (size_t)(3 * B * (P + 4) + B * (B + 1)) * sizeof(float);
}

template <typename T, int P, int B> static abar_status prepare_as(abar_device *dev)
{
    ABAR_TRY(abar__attention_allow(dev, (const void *)forward_kernel<T, P, B>, forward_bytes<T, P, B>()));
    ABAR_TRY(abar__attention_allow(dev, (const void *)key_kernel<T, P, B>, backward_bytes<P, B>()));
    ABAR_TRY(abar__attention_allow(dev, (const void *)query_kernel<T, P, B>, backward_bytes<P, B>()));
    return abar__attention_allow(dev, (const void *)table_kernel<T, P, B>, backward_bytes<P, B>());
}

template <typename T, int P, int B> static void forward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    abar__cuda_launch(dev, forward_kernel<T, P, B>, strips_grid(a), dim3(THREADS), forward_bytes<T, P, B>(), *a,
                      (const T *)m->qkv, m->table, (T *)m->y, m->log_sums);
}

template <typename T, int P, int B> static void backward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    const unsigned tiles = (unsigned)abar__cuda_blocks(a->length, B);
    abar__attention_delta(dev, a, m);
    abar__cuda_launch(dev, key_kernel<T, P, B>, strips_grid(a), dim3(THREADS), backward_bytes<P, B>(), *a, *m);
    if (m->dqkv) abar__cuda_launch(dev, query_kernel<T, P, B>, strips_grid(a), dim3(THREADS), backward_bytes<P, B>(), *a, *m);
    if (m->partial)
        abar__cuda_launch(dev, table_kernel<T, P, B>, dim3(tiles * tiles, (unsigned)a->heads, (unsigned)m->blocks),
                          dim3(THREADS), backward_bytes<P, B>(), *a, *m);
}

template <typename T> static abar_status prepare(abar_device *dev, const attention *a)
{
    return a->width <= 32    ? prepare_as<T, 32, 64>(dev)
           : a->width <= 64  ? prepare_as<T, 64, 64>(dev)
           : a->width <= 128 ? prepare_as<T, 128, 32>(dev)
           : a->width <= 256 ? prepare_as<T, 256, 32>(dev)
                             : ABAR_E_UNSUPPORTED;
}

template <typename T> static void forward(abar_device *dev, const attention *a, const attention_memory *m)
{
    if (a->width <= 32)
        forward_as<T, 32, 64>(dev, a, m);
    else if (a->width <= 64)
        forward_as<T, 64, 64>(dev, a, m);
    else if (a->width <= 128)
        forward_as<T, 128, 32>(dev, a, m);
    else
        forward_as<T, 256, 32>(dev, a, m);
}

template <typename T> static void backward(abar_device *dev, const attention *a, const attention_memory *m)
{
    if (a->width <= 32)
        backward_as<T, 32, 64>(dev, a, m);
    else if (a->width <= 64)
        backward_as<T, 64, 64>(dev, a, m);
    else if (a->width <= 128)
        backward_as<T, 128, 32>(dev, a, m);
    else
        backward_as<T, 256, 32>(dev, a, m);
}

const attention_kernels abar__attention_float = {prepare<float>, forward<float>, backward<float>, blocks};
const attention_kernels abar__attention_bf16 = {prepare<bf16>, forward<bf16>, backward<bf16>, blocks};
