/* Shared by the tensor-core kernels of sequences: 16 queries of a warp over 64 keys (forward), 16 keys of a warp over some
 * queries (dk, dv), and storing their results. Equations in attention.h, tiles in tiles.h. */
#ifndef ABAR_CUDA_ATTENTION_STEPS_H
#define ABAR_CUDA_ATTENTION_STEPS_H

#include "device/cuda/nn/attention/tiles.h"

/* The offsets of the rows of one sample and head: in qkv and dqkv, in y and dy, and among the numbers per query. */
typedef struct strip_place {
    int64_t qkv, y, numbers;
    uint64_t query; /* random index of query 0 */
} strip_place;

__device__ static inline strip_place place_of_strip(const attention &a, unsigned strip)
{
    const unsigned head = strip % (unsigned)a.heads;
    const int64_t sample = strip / (unsigned)a.heads;
    return {sample * a.tokens * token_step(a) + (int64_t)head * a.width,
            sample * a.tokens * part_step(a) + (int64_t)head * a.width, strip * a.tokens, query_number(a, sample, (int)head)};
}

template <int D> __device__ static inline uint32_t rows_offset(int rows)
{
    return (uint32_t)(rows * tile_step<D>)*(uint32_t)sizeof(bf16);
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

/* 16 queries. Sums are of 2^(scale (s - top)). top follows the largest score only when that is GROWTH powers of two ahead,
 * so that sums seldom need to be rescaled. */
#define GROWTH 8.0f

/* Whether the top of a query follows `high`, the largest of its scores in one step. */
__device__ static inline bool is_far_ahead(float high, float top, float scale) { return high * scale > top * scale + GROWTH; }

/* Raises the top of a query, where it does; the sum of before is to be multiplied by the result, as total is. */
__device__ static inline float raise_top(float &top, float &total, float high, bool follows, float scale)
{
    const float now = follows ? high : top, shrink = power_of_two((top - now) * scale);
    top = now;
    total *= shrink;
    return shrink;
}

template <int D> struct forward_state {
    uint32_t q[D / 16][4];
    float sum[D / 8][4], top[2], total[2];
};

template <int D> __device__ static inline void begin_forward(forward_state<D> &f, uint32_t q)
{
    load_left<D>(f.q, q);
#pragma unroll
    for (int c = 0; c < D / 8; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) f.sum[c][e] = 0.0f;
    f.top[0] = f.top[1] = -INFINITY;
    f.total[0] = f.total[1] = 0.0f;
}

/* Raises top to the scores p of one step where needed. Every query sees at least one key of the step. */
template <int D>
__device__ static inline void raise_tops(forward_state<D> &f, const float (&p)[TILE_ROWS / 8][4], int chunks, float scale)
{
    float high[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        high[h] = fmaxf(p[0][2 * h], p[0][2 * h + 1]);
#pragma unroll
        for (int t = 1; t < TILE_ROWS / 8 && t < 2 * chunks; t++) high[h] = fmaxf(high[h], fmaxf(p[t][2 * h], p[t][2 * h + 1]));
        high[h] = lanes_max(high[h]);
    }
    const bool first = is_far_ahead(high[0], f.top[0], scale), second = is_far_ahead(high[1], f.top[1], scale);
    if (!__any_sync(0xffffffffu, first || second)) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float shrink = raise_top(f.top[h], f.total[h], high[h], h ? second : first, scale);
#pragma unroll
        for (int c = 0; c < D / 8; c++) f.sum[c][2 * h] *= shrink, f.sum[c][2 * h + 1] *= shrink;
    }
}

/* The 64 keys from `at` on, whose k and v are rows of tiles; the warp's queries begin at `first`. EDGE: some of the keys are
 * past the end, or after some of the queries; only the first 16 chunks are seen by any query. */
template <int D, bool DROPS, bool EDGE>
__device__ static inline void forward_step(const attention &a, int first, forward_state<D> &f, uint32_t k, uint32_t v, int at,
                                           uint32_t when, uint64_t base)
{
    const int pair = threadIdx.x % 4, row = first + (int)(threadIdx.x % 32 / 4);
    int chunks = TILE_ROWS / 16;
    if (EDGE) {
        const int end = a.causal ? min(a.length, first + 16) : a.length;
        chunks = min(chunks, (end - at + 15) / 16);
        if (chunks <= 0) return;
    }
    const float scale = a.scale * LOG2_E;
    float p[TILE_ROWS / 8][4];
    multiply_rows<D, TILE_ROWS>(p, f.q, k, chunks);
    if (EDGE) {
#pragma unroll
        for (int t = 0; t < TILE_ROWS / 8 && t < 2 * chunks; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = at + t * 8 + 2 * pair + e % 2, query = row + e / 2 * 8;
                if (key >= a.length || (a.causal && key > query)) p[t][e] = -INFINITY;
            }
    }
    raise_tops(f, p, chunks, scale);
    const float zero[2] = {f.top[0] * scale, f.top[1] * scale};
#pragma unroll
    for (int t = 0; t < TILE_ROWS / 8 && t < 2 * chunks; t++) {
        float keep[4];
        if (DROPS) keep_of_queries(a, when, base + (uint64_t)row, at + t * 8 + 2 * pair, keep);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            p[t][e] = power_of_two(p[t][e] * scale - zero[e / 2]);
            f.total[e / 2] += p[t][e];
            if (DROPS) p[t][e] *= keep[e];
        }
    }
    add_rows<D, TILE_ROWS>(f.sum, p, v, chunks);
}

template <int D, bool DROPS>
__device__ static inline void forward_tile(const attention &a, int first, forward_state<D> &f, uint32_t k, uint32_t v, int at,
                                           uint32_t when, uint64_t base)
{
    if (at + TILE_ROWS > a.length || (a.causal && at + TILE_ROWS > first + 1))
        forward_step<D, DROPS, true>(a, first, f, k, v, at, when, base);
    else
        forward_step<D, DROPS, false>(a, first, f, k, v, at, when, base);
}

/* The warp's 16 rows of y; log_sums may be NULL. */
template <int D>
__device__ static inline void store_queries(const attention &a, const strip_place &strip, int first, const forward_state<D> &f,
                                            bf16 *y, float *log_sums)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = first + (int)(threadIdx.x % 32 / 4) + h * 8;
        const float total = lanes_sum(f.total[h]);
        const bool valid = query < a.length;
        store_row<D>(y + strip.y + query * part_step(a), f.sum, h, 1.0f / total, valid);
        if (log_sums && valid && threadIdx.x % 4 == 0)
            log_sums[strip.numbers + query] = f.top[h] * a.scale * LOG2_E + log2f(total);
    }
}

/* ---- backward: keys -------------------------------------------------------------------------------------------------- */

/* 16 keys; seen: sums of their probabilities. */
template <int D> struct key_state {
    uint32_t k[D / 16][4], v[D / 16][4];
    float dk[D / 8][4], dv[D / 8][4], seen[2];
};

template <int D> __device__ static inline void clear_keys(key_state<D> &s)
{
#pragma unroll
    for (int c = 0; c < D / 8; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) s.dk[c][e] = s.dv[c][e] = 0.0f;
    s.seen[0] = s.seen[1] = 0.0f;
}

/* C queries from `at` on, whose q and dy are rows of tiles and whose numbers begin at log_sums and delta; the warp's keys
 * begin at `first`. The result is ds (keys, queries). EDGE: some queries or keys are past the end, or queries before keys. */
template <int D, int C, bool DROPS, bool EDGE>
__device__ static inline void key_step(const attention &a, int first, key_state<D> &s, uint32_t q, uint32_t dy,
                                       const float *log_sums, const float *delta, int at, uint32_t when, uint64_t base,
                                       float (&ds)[C / 8][4])
{
    const int pair = threadIdx.x % 4, row = first + (int)(threadIdx.x % 32 / 4);
    const float scale = a.scale * LOG2_E;
    float p[C / 8][4], keep[C / 8][4];
    multiply_rows<D, C>(p, s.k, q);
#pragma unroll
    for (int t = 0; t < C / 8; t++) {
        const float2 log_sum = *reinterpret_cast<const float2 *>(log_sums + t * 8 + 2 * pair);
        if (DROPS) keep_of_keys(a, when, base + (uint64_t)(at + t * 8 + 2 * pair), row, keep[t]);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int query = at + t * 8 + 2 * pair + e % 2, key = row + e / 2 * 8;
            float v = power_of_two(p[t][e] * scale - (e % 2 ? log_sum.y : log_sum.x));
            if (EDGE && (query >= a.length || key >= a.length || (a.causal && key > query))) v = 0.0f;
            s.seen[e / 2] += v;
            p[t][e] = v;
            ds[t][e] = DROPS ? v * keep[t][e] : v;
        }
    }
    add_rows<D, C>(s.dv, ds, dy);
    multiply_rows<D, C>(ds, s.v, dy);
#pragma unroll
    for (int t = 0; t < C / 8; t++) {
        const float2 d = *reinterpret_cast<const float2 *>(delta + t * 8 + 2 * pair);
#pragma unroll
        for (int e = 0; e < 4; e++) ds[t][e] = p[t][e] * ((DROPS ? ds[t][e] * keep[t][e] : ds[t][e]) - (e % 2 ? d.y : d.x));
    }
    add_rows<D, C>(s.dk, ds, q);
}

/* The warp's 16 rows of dk and dv, and its columns. */
template <int D>
__device__ static inline void store_keys(const attention &a, const attention_memory &m, const strip_place &strip, int first,
                                         const key_state<D> &s)
{
    const int64_t step = token_step(a), part = part_step(a);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = first + (int)(threadIdx.x % 32 / 4) + h * 8;
        const float seen = lanes_sum(s.seen[h]);
        const bool valid = key < a.length;
        if (m.columns && valid && threadIdx.x % 4 == 0) m.columns[strip.numbers + key] = seen * a.column_share;
        if (!m.dqkv) continue;
        bf16 *to = (bf16 *)m.dqkv + strip.qkv + key * step;
        store_row<D>(to + part, s.dk, h, a.scale, valid);
        store_row<D>(to + 2 * part, s.dv, h, 1.0f, valid);
    }
}

/* The warp's 16 rows of dq. */
template <int D>
__device__ static inline void store_dq(const attention &a, const attention_memory &m, const strip_place &strip, int first,
                                       const float (&dq)[D / 8][4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = first + (int)(threadIdx.x % 32 / 4) + h * 8;
        store_row<D>((bf16 *)m.dqkv + strip.qkv + query * token_step(a), dq, h, a.scale, query < a.length);
    }
}

#endif
