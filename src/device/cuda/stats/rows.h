/* Sums over rows that are read where they are, once, at the memory's speed: rows of linear layers, pixels, and windows that
 * neither overlap nor reach over the edge, whose taps are columns like any others. The blocks leave partial sums; the last of
 * those that share columns adds them up in order (sums.cu, values.cu). */
#ifndef ABAR_CUDA_STATS_ROWS_H
#define ABAR_CUDA_STATS_ROWS_H

#include "device/cuda/stats/stats.h"

#define ABAR_ROW_THREADS 256
#define ABAR_ROW_LANES 32                      /* vectors of a row that a block takes, at most */
#define ABAR_ROW_AHEAD 8                       /* rows that a thread has on their way */
#define ABAR_ROW_SHARED (ABAR_ROW_THREADS * 8) /* floats of shared memory */
#define ABAR_ROW_COLUMNS ((int64_t)1 << 18)    /* at most: their partial sums fit */

typedef enum row_mode { ROWS_PLAIN, ROWS_SQUARED, ROWS_WEIGHED } row_mode;

/* Column e is element e % across of band e / across. A band is a row of a window's taps, or as many windows' as fill whole
 * vectors; there is one where there is one tap. */
typedef struct row_sums {
    const void *data;
    unsigned rows, inner;    /* row r is at r / inner * far + r % inner * near */
    int64_t far, near, down; /* in elements; down: from a band to the next */
    int channels, kernel[2];
    int folds;                /* columns: (kernel[0], folds, kernel[1], channels), summed over folds; not 1: in one part */
    const float *weight;      /* (rows), where they are weighed */
    float *out;               /* (channels, kernel[0], kernel[1]), added to */
    double scale, last;       /* of the sums; where not 0: added behind them */
    int vectors;              /* of a row */
    int lanes, teams, splits; /* of a block: vectors, rows at once; blocks that share the rows */
} row_sums;

__host__ __device__ static inline int row_across(const row_sums *s) { return s->folds * s->kernel[1] * s->channels; }

static inline unsigned row_blocks(const row_sums *s) { return (unsigned)(s->splits * abar__cuda_blocks(s->vectors, s->lanes)); }

/* About so many blocks per processor. n: elements of a vector. */
static inline void share_rows(const abar_device *dev, row_sums *s, int n, int per_processor)
{
    s->vectors = s->kernel[0] * row_across(s) / n;
    const int64_t parts = abar__cuda_blocks(s->vectors, ABAR_ROW_LANES);
    s->lanes = (int)abar__cuda_blocks(s->vectors, parts);
    s->teams = ABAR_ROW_THREADS / s->lanes;
    const int64_t most = per_processor * (int64_t)abar__cuda_of(dev)->processors / parts,
                  request = abar__cuda_blocks(s->rows, s->teams);
    s->splits = (int)(most < 1 ? 1 : request < most ? request : most);
}

template <typename T> __device__ static inline pack<T> unpack_row(uint4 w)
{
    if constexpr (pack<T>::n == 8)
        return unpack(w);
    else
        return {{__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)}};
}

/* The sum over `count` lines of `width` elements, in order; for the threads below width, which is at most the threads. */
template <typename A> __device__ static inline A join_lines(A *lines, int count, int width)
{
    const int shares = ABAR_ROW_THREADS / width, share = (int)threadIdx.x / width, o = (int)threadIdx.x % width;
    A sum = 0;
    __syncthreads();
    if (share < shares)
        for (int i = share; i < count; i += shares) sum += lines[i * width + o];
    __syncthreads();
    if (share < shares) lines[share * width + o] = sum;
    __syncthreads();
    if (share != 0) return sum;
    for (int i = 1; i < shares && i < count; i++) sum += lines[i * width + o];
    return sum;
}

/* This thread's vector, at data in row 0, summed over rows first, first + step, ... The loads do not wait for one another:
 * behind the end they read the last row again. */
template <typename T, row_mode MODE>
__device__ static inline void add_rows(const row_sums &s, const T *data, unsigned first, unsigned step, float *sum)
{
    for (unsigned row = first; row < s.rows; row += ABAR_ROW_AHEAD * step) {
        uint4 raw[ABAR_ROW_AHEAD];
        float weight[ABAR_ROW_AHEAD];
#pragma unroll
        for (int k = 0; k < ABAR_ROW_AHEAD; k++) {
            const unsigned r = min(row + (unsigned)k * step, s.rows - 1);
            const int64_t at = s.inner == s.rows ? r * s.near : r / s.inner * s.far + r % s.inner * s.near;
            raw[k] = *reinterpret_cast<const uint4 *>(data + at);
            if constexpr (MODE == ROWS_WEIGHED) weight[k] = s.weight[r];
        }
#pragma unroll
        for (int k = 0; k < ABAR_ROW_AHEAD; k++) {
            const pack<T> a = unpack_row<T>(raw[k]);
            if (row + (unsigned)k * step >= s.rows) continue;
#pragma unroll
            for (int i = 0; i < pack<T>::n; i++) {
                if constexpr (MODE == ROWS_WEIGHED)
                    sum[i] += weight[k] * a.v[i];
                else
                    sum[i] += MODE == ROWS_SQUARED ? a.v[i] * a.v[i] : a.v[i];
            }
        }
    }
}

/* What the splits of these columns have left, (splits, width), for the threads below width. */
__device__ static inline double join_splits(const row_sums &s, const float *own, int width, double *shared)
{
    const int quads = width / 4, quad = (int)threadIdx.x % quads, crew = (int)threadIdx.x / quads;
    const int crews = ABAR_ROW_THREADS / quads;
    double sum[4] = {};
    if (crew < crews) {
#pragma unroll 8
        for (int i = crew; i < s.splits; i += crews) {
            const float4 p = __ldcg(reinterpret_cast<const float4 *>(own + (int64_t)i * width) + quad);
            sum[0] += (double)p.x;
            sum[1] += (double)p.y;
            sum[2] += (double)p.z;
            sum[3] += (double)p.w;
        }
        for (int i = 0; i < 4; i++) shared[crew * width + quad * 4 + i] = sum[i];
    }
    return join_lines(shared, crews, width);
}

/* Block `block` of row_blocks: the split-th share of the rows, the part-th `lanes` vectors. Thread: one vector in every
 * (splits * teams)-th row. partial: (parts, splits, width); shared: ABAR_ROW_SHARED floats. */
template <typename T, row_mode MODE>
__device__ static void sum_rows(const row_sums &s, unsigned block, float *shared, float *partial, unsigned *tickets)
{
    const int n = pack<T>::n, width = s.lanes * n, across = row_across(&s);
    const int lane = (int)threadIdx.x % s.lanes, team = (int)threadIdx.x / s.lanes;
    const unsigned split = block % (unsigned)s.splits, part = block / (unsigned)s.splits;
    const int vector = (int)part * s.lanes + lane, e = vector * n;
    float sum[n] = {};
    if (team < s.teams && vector < s.vectors)
        add_rows<T, MODE>(s, (const T *)s.data + e / across * s.down + e % across, split * (unsigned)s.teams + (unsigned)team,
                          (unsigned)(s.splits * s.teams), sum);
    if (team < s.teams)
        for (int i = 0; i < n; i++) shared[team * width + lane * n + i] = sum[i];
    const float joined = join_lines(shared, s.teams, width);
    float *own = partial + (int64_t)part * s.splits * width;
    const int o = (int)threadIdx.x, column = (int)part * width + o;
    if (o < width) own[(int64_t)split * width + o] = joined;
    if (!last_block(tickets + part, (unsigned)s.splits)) return;
    double *totals = (double *)shared;
    const double split_sum = join_splits(s, own, width, totals);
    if (o < width) totals[o] = split_sum;
    __syncthreads();
    const int window = s.kernel[1] * s.channels, i = column / across, j = column % across / s.channels;
    if (o < width && column < s.vectors * n && j < s.kernel[1]) {
        double total = 0.0;
        for (int f = 0; f < s.folds; f++) total += totals[o + f * window];
        s.out[((int64_t)(column % s.channels) * s.kernel[0] + i) * s.kernel[1] + j] += (float)(s.scale * total);
    }
    if (part == 0 && o == 0 && s.last != 0.0) s.out[s.vectors * n / s.folds] += (float)s.last;
}

#endif
