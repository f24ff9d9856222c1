/* Attention without the matrix of probabilities; shared by its kernels: softmax(q k^T / sqrt(d) + bias) v for every strip,
 * that is for every sample, head and window (without windows: all tokens of a sample). methods.md section 2.
 *
 * Scores are exponents of two: s = log2(e) (q k / sqrt(d) + bias). Forward saves log2 of the sum of 2^s, (N, heads, T)
 * float32 in the original order of tokens, like everything per token here. Backward computes p = 2^(s - saved) again, tile
 * by tile:
 *     delta_i = sum_j p_ij dp_ij = dy_i y_i,   dp_ij = keep_ij (dy_i v_j),   ds_ij = p_ij (dp_ij - delta_i),
 *     dv_j = sum_i keep_ij p_ij dy_i,   dk_j = sum_i ds_ij q_i / sqrt(d),   dq_i = sum_j ds_ij k_j / sqrt(d),
 * in one block for a whole head or window where that fits, else once for blocks of queries and once for blocks of keys, so
 * that no sum depends on the order in which blocks run. keep is dropout's factor, drawn again. */
#ifndef ABAR_CUDA_ATTENTION_H
#define ABAR_CUDA_ATTENTION_H

#include "device/cuda/nn/dropout.h"

#define LOG2_E 1.44269504f

/* The parameters of the kernels. */
typedef struct attention {
    int64_t samples, tokens; /* N, T */
    int heads, width;        /* of one head: d; D = heads d */
    int length;              /* tokens of a strip */
    int windows, across;     /* windows of a sample, and in a row of windows; 1 without windows */
    int rows, columns;       /* windowed: the grid of tokens */
    int side, shift;         /* 0: no windows */
    bool causal, drops;
    float scale;        /* 1 / sqrt(d) */
    float column_share; /* 1 / length */
    dropout_key key;
    uint64_t first; /* the number, in the global batch, of the batch's first (sample, head) */
} attention;

/* The buffers of the kernels. */
typedef struct attention_memory {
    const void *qkv, *dy; /* (N, T, 3D), (N, T, D) */
    void *y, *dqkv;
    const float *table;      /* ((2 side - 1)^2, heads): bias by relative position; NULL without windows */
    float *log_sums, *delta; /* (N, heads, T) */
    float *columns;          /* (N, heads, T), or NULL */
    float *partial;          /* windowed: (blocks, heads, length, length), sums of ds over strips */
    int blocks;
} attention_memory;

/* A family of kernels, chosen when the operation is created. */
typedef struct attention_kernels {
    abar_status (*prepare)(abar_device *dev,
                           const attention *a); /* sets kernel limits; ABAR_E_UNSUPPORTED: not for these sizes */
    void (*forward)(abar_device *dev, const attention *a, const attention_memory *m);
    void (*backward)(abar_device *dev, const attention *a, const attention_memory *m);
    int (*blocks)(abar_device *dev,
                  const attention *a); /* number of blocks that share the strips, for kernels that loop over them; or NULL */
} attention_kernels;

extern const attention_kernels abar__attention_heads;      /* bf16 sequences of at most 208 tokens, heads of 32 or 64 columns */
extern const attention_kernels abar__attention_any_length; /* bf16 sequences, heads of 32 or 64 columns */
extern const attention_kernels abar__attention_wide;       /* bf16 sequences, heads of 64 columns, compute capability 9.0 */
extern const attention_kernels abar__attention_wide_windows; /* bf16 windows of 7 x 7 tokens, heads of 32 columns, likewise */
extern const attention_kernels abar__attention_windows;      /* bf16 windows of at most 64 tokens, heads of 32 or 64 columns */
extern const attention_kernels abar__attention_bf16, abar__attention_float; /* all cases, without tensor cores */

/* f<D, DROPS>() for the width of the heads: tensor cores handle 32 or 64 columns. */
template <class F> static inline void by_width_and_dropout(const attention *a, F f)
{
    if (a->width == 32)
        a->drops ? f.template operator()<32, true>() : f.template operator()<32, false>();
    else
        a->drops ? f.template operator()<64, true>() : f.template operator()<64, false>();
}

/* Allows the kernel `bytes` of shared memory. */
abar_status abar__attention_allow(abar_device *dev, const void *kernel, size_t bytes);

/* delta from y and dy. */
void abar__attention_delta(abar_device *dev, const attention *a, const attention_memory *m);

/* ---- where things are ------------------------------------------------------------------------------------------- */

/* Token i of a strip. Tokens of one window see each other if their regions agree: parts that are adjacent only because the
 * grid was rolled have different regions. The difference of two codes is the position of their bias in the table, counted
 * from its middle. */
typedef struct place {
    int token, code, region;
} place;

/* The token at (down, right) in a window. */
__device__ static inline place place_at(const attention &a, int window, int down, int right)
{
    int y = window / a.across * a.side + down, x = window % a.across * a.side + right;
    int region = 0;
    if (a.shift) {
        region =
            3 * ((y >= a.rows - a.side) + (y >= a.rows - a.shift)) + (x >= a.columns - a.side) + (x >= a.columns - a.shift);
        y += a.shift;
        x += a.shift;
        if (y >= a.rows) y -= a.rows;
        if (x >= a.columns) x -= a.columns;
    }
    return {y * a.columns + x, down * (2 * a.side - 1) + right, region};
}

__device__ static inline place place_of(const attention &a, int window, int i)
{
    if (!a.side) return {i, 0, 0};
    return place_at(a, window, i / a.side, i % a.side);
}

__device__ static inline int bias_row(const attention &a, int query_code, int key_code)
{
    return query_code - key_code + 2 * a.side * (a.side - 1);
}

/* Elements from one token to the next of qkv and dqkv, and from q to k to v. */
__device__ static inline int64_t token_step(const attention &a) { return (int64_t)3 * a.heads * a.width; }
__device__ static inline int64_t part_step(const attention &a) { return (int64_t)a.heads * a.width; }

/* The random index of query 0 of one sample and head; a query has one draw for every four keys (nn_impl.h). */
__device__ static inline uint64_t query_number(const attention &a, int64_t sample, int head)
{
    return (a.first + (uint64_t)(sample * a.heads + head)) * (uint64_t)a.tokens;
}

__device__ static inline uint4 draw_of(const attention &a, uint32_t when, uint64_t query, int key)
{
    return dropout_draw(a.key, when, query * (uint64_t)((a.tokens + 3) / 4) + (uint64_t)(key / 4));
}

/* The factor of the probability, from the key's word of the draw. */
__device__ static inline float factor_of(const dropout_key &key, uint32_t word) { return word >= key.least ? key.scale : 0.0f; }

#endif
