/* The two phases of batch norm in either direction, as functions of a block: sums over its slab of rows, then, from the sums
 * of all slabs, its part of the result. See batch_norm.cu.
 *
 * The value is (rows, channels) in memory, cut into tiles of channels and slabs of rows. x and dx may be part of a wider
 * value, the others are dense. */
#ifndef ABAR_CUDA_NORM_BATCH_NORM_PHASES_H
#define ABAR_CUDA_NORM_BATCH_NORM_PHASES_H

#include "device/cuda/core/chain.h"
#include "device/cuda/nn/affine.h"
#include "device/cuda/nn/cuda_nn.h"

#define LOG_THREADS 9
#define THREADS (1 << LOG_THREADS)
#define WARPS (THREADS / 32)
#define MAX_TILE 64   /* channels of a block, at most */
#define ROWS_AHEAD 4  /* rows of x (and the residual) that a thread loads ahead in forward, */
#define GRADS_AHEAD 2 /* of up to four values in backward, */
#define PARTS_AHEAD 8 /* parts of a channel's moments or sums that a lane loads ahead */
#define SUMS_AHEAD 4  /* and of dx alone, where the others were kept and dx is added to */

/* A slab has `share` rows, each of the first `rest` slabs one more. A thread owns V channels, of which 1 << across (at most
 * 32) such groups are a tile, and every (THREADS >> across)-th row of the slab. Grid: (tiles, slabs). */
typedef struct cut {
    int64_t share, rest;
    int channels, slabs, across;
    int pitch;     /* elements from one row of x or dx to the next */
    double per;    /* 1 / rows */
    double unbias; /* rows / (rows - 1); 0 for a single row */
} cut;

#define MOMENT_SLABS 64 /* at most, of moments that several operations use */

/* How moments of (rows, channels) that several operations use are cut: by rows alone, into slabs that depend only on the
 * shape. */
static inline cut moments_cut(int64_t rows, int channels, bool vectors)
{
    const int64_t most = abar__cuda_blocks(rows, THREADS / 2), slabs = most < MOMENT_SLABS ? most : MOMENT_SLABS;
    cut k = {};
    k.share = rows / slabs;
    k.rest = rows % slabs;
    k.channels = k.pitch = channels;
    k.slabs = (int)slabs;
    k.across = vectors ? 1 : 3;
    k.per = 1.0 / (double)rows;
    return k;
}

/* Bytes per channel of a value of this shape. */
static inline size_t moment_bytes(const abar__shape *s)
{
    return (size_t)moments_cut(abar__shape_count(s) / s->dim[1], (int)s->dim[1], false).slabs * sizeof(float2);
}

typedef struct own {
    int64_t first; /* row */
    int channel, count, step;
} own;

__device__ static inline int column_of(const cut &k) { return threadIdx.x & ((1 << k.across) - 1); }

template <int V> __device__ static inline own own_of(const cut &k)
{
    const int64_t slab = blockIdx.y, rows = k.share + (slab < k.rest);
    const int skip = threadIdx.x >> k.across, log_step = LOG_THREADS - k.across;
    own o;
    o.channel = ((int)(blockIdx.x << k.across) + column_of(k)) * V;
    o.step = 1 << log_step;
    o.first = slab * k.share + (slab < k.rest ? slab : k.rest) + skip;
    o.count = o.channel < k.channels && skip < rows ? (int)((rows - skip + o.step - 1) >> log_step) : 0;
    return o;
}

/* The offset of V channels of the thread's n-th row in a dense value, */
__device__ static inline int64_t place(const cut &k, const own &o, int n)
{
    return (o.first + (int64_t)n * o.step) * k.channels + o.channel;
}

/* and in x and dx. */
__device__ static inline int64_t place_x(const cut &k, const own &o, int n)
{
    return (o.first + (int64_t)n * o.step) * k.pitch + o.channel;
}

/* V elements in their storage type, as kept in registers and shared memory. */
template <typename T, int V> struct raw_of {
    typedef uint4 type;
};
template <typename T> struct raw_of<T, 1> {
    typedef T type;
};
template <typename T, int V> using raw = typename raw_of<T, V>::type;

template <typename T, int V> __device__ static inline raw<T, V> fetch(const T *p)
{
    return *reinterpret_cast<const raw<T, V> *>(p);
}

template <typename T, int V> __device__ static inline lanes<V> expand(raw<T, V> a)
{
    return load_lanes<V>(reinterpret_cast<const T *>(&a));
}

template <typename T, int V> __device__ static inline raw<T, V> compress(const lanes<V> &a)
{
    raw<T, V> word;
    store_lanes<V>(reinterpret_cast<T *>(&word), a);
    return word;
}

/* ---- forward: the moments of a slab ---------------------------------------------------------------------------------- */

/* Merges count, mean and sum of squared distances of the lanes that own the same channels (Chan, Golub, LeVeque). */
template <int V> __device__ static inline void merge_lanes(int across, float &count, lanes<V> &mean, lanes<V> &square)
{
    for (int lane = 1 << across; lane < 32; lane *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, count, lane), both = count + other;
        const float share = both > 0.0f ? other / both : 0.0f;
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float d = __shfl_xor_sync(0xffffffffu, mean.v[i], lane) - mean.v[i];
            square.v[i] += __shfl_xor_sync(0xffffffffu, square.v[i], lane) + d * d * count * share;
            mean.v[i] += d * share;
        }
        count = both;
    }
}

/* partial[channel * slabs + slab] = mean and sum of squared distances from it. Each thread measures from its own first row,
 * which is near the mean of its rows, so that nothing cancels. KEEP: x stays in kept. copy: x is also copied there, rows
 * copy_pitch apart; NULL: it is not. */
template <typename T, int V, bool KEEP>
__device__ static void take_moments(const cut &k, const T *x, raw<T, V> *kept, T *copy, int64_t copy_pitch, float2 *partial)
{
    __shared__ float2 part[WARPS][MAX_TILE];
    __shared__ float counts[WARPS];
    const own o = own_of<V>(k);
    lanes<V> zero = {}, sum = {}, square = {};
    for (int n = 0; n < o.count; n += ROWS_AHEAD) {
        raw<T, V> word[ROWS_AHEAD];
#pragma unroll
        for (int b = 0; b < ROWS_AHEAD; b++)
            if (n + b < o.count) word[b] = fetch<T, V>(x + place_x(k, o, n + b));
        if (n == 0) zero = expand<T, V>(word[0]);
#pragma unroll
        for (int b = 0; b < ROWS_AHEAD; b++) {
            if (n + b >= o.count) break;
            if (KEEP) kept[(n + b) * THREADS + threadIdx.x] = word[b];
            if (copy) {
                T *to = copy + (o.first + (int64_t)(n + b) * o.step) * copy_pitch + o.channel;
                *reinterpret_cast<raw<T, V> *>(to) = word[b];
            }
            const lanes<V> v = expand<T, V>(word[b]);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const float d = v.v[i] - zero.v[i];
                sum.v[i] += d;
                square.v[i] += d * d;
            }
        }
    }
    float count = (float)o.count;
    const float by_count = o.count > 0 ? 1.0f / count : 0.0f;
#pragma unroll
    for (int i = 0; i < V; i++) {
        square.v[i] -= sum.v[i] * sum.v[i] * by_count;
        sum.v[i] = zero.v[i] + sum.v[i] * by_count; /* from here on the mean */
    }
    merge_lanes(k.across, count, sum, square);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = V << k.across;
    if (lane == 0) counts[warp] = count;
#pragma unroll
    for (int i = 0; i < V; i++)
        if (lane < 1 << k.across) part[warp][lane * V + i] = make_float2(sum.v[i], square.v[i]);
    __syncthreads();
    const int c = blockIdx.x * tile + threadIdx.x;
    if (threadIdx.x >= tile || c >= k.channels) return;
    float rows = 0.0f, mean = 0.0f, total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) rows += counts[w], mean += counts[w] * part[w][threadIdx.x].x;
    mean /= rows;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float2 p = part[w][threadIdx.x];
        total += p.y + counts[w] * (p.x - mean) * (p.x - mean);
    }
    partial[(int64_t)c * k.slabs + blockIdx.y] = make_float2(mean, fmaxf(total, 0.0f));
}

/* ---- forward: the statistics of the batch, and the output -------------------------------------------------------------- */

typedef struct statistics {
    const float2 *partial;
    const float *counts; /* of a convolution's parts: their rows; NULL: the slabs' */
    float *running_mean, *running_variance;
    const float *scale, *shift;
    float *saved; /* (2, channels) or NULL */
    double eps, momentum;
    bool training;
} statistics;

/* Mean and variance of channel c over all slabs. Called by a whole warp; in double the difference of squares is accurate. */
__device__ static inline void join_moments(const cut &k, const statistics &s, int c, double &mean, double &variance)
{
    double sum = 0.0, square = 0.0;
    for (int first = threadIdx.x % 32; first < k.slabs; first += 32 * PARTS_AHEAD) {
        float2 part[PARTS_AHEAD];
        float count[PARTS_AHEAD];
#pragma unroll
        for (int b = 0; b < PARTS_AHEAD; b++) {
            const int slab = first + 32 * b;
            if (slab >= k.slabs) continue;
            part[b] = __ldcg(s.partial + (int64_t)c * k.slabs + slab);
            if (s.counts) count[b] = __ldcg(s.counts + slab);
        }
#pragma unroll
        for (int b = 0; b < PARTS_AHEAD; b++) {
            const int slab = first + 32 * b;
            if (slab >= k.slabs) break;
            const double rows = s.counts ? (double)count[b] : (double)(k.share + (slab < k.rest)), m = (double)part[b].x;
            sum += rows * m;
            square += (double)part[b].y + rows * m * m;
        }
    }
    mean = warp_sum(sum) * k.per;
    variance = warp_sum(square) * k.per - mean * mean;
    if (variance < 0.0) variance = 0.0;
}

/* The coefficients of the block's channels, one warp per channel; the blocks of the first slab also update the running
 * statistics. taken: how the moments were cut. */
template <int V> __device__ static void settle_statistics(const cut &k, const cut &taken, const statistics &s, affine *tile)
{
    const int width = V << k.across;
    for (int i = threadIdx.x / 32; i < width; i += WARPS) {
        const int c = blockIdx.x * width + i;
        if (c >= k.channels) break;
        const float scale = s.scale[c], shift = s.shift[c];
        double mean, variance;
        if (s.training)
            join_moments(taken, s, c, mean, variance);
        else
            mean = (double)s.running_mean[c], variance = (double)s.running_variance[c];
        if (threadIdx.x % 32 != 0) continue;
        const float rstd = 1.0f / sqrtf((float)(variance + s.eps));
        tile[i] = affine_of((float)mean, rstd, scale, shift);
        if (blockIdx.y != 0) continue;
        if (s.saved) s.saved[c] = (float)mean, s.saved[k.channels + c] = rstd;
        if (!s.training) continue;
        const double m = s.momentum, variance_of_all = variance * k.unbias;
        s.running_mean[c] = (float)((1.0 - m) * (double)s.running_mean[c] + m * mean);
        s.running_variance[c] = (float)((1.0 - m) * (double)s.running_variance[c] + m * variance_of_all);
    }
    __syncthreads();
}

template <int V> __device__ static inline void own_coefficients(const cut &k, const affine *tile, affine *mine)
{
#pragma unroll
    for (int i = 0; i < V; i++) mine[i] = tile[column_of(k) * V + i];
}

/* ROWS_AHEAD rows of the thread, from the n-th downwards: x, from memory or kept, and the residual. */
template <typename T, int V> struct inputs {
    raw<T, V> x[ROWS_AHEAD], added[ROWS_AHEAD];
};

template <typename T, int V>
__device__ static inline void fetch_inputs(const cut &k, const own &o, const T *x, const raw<T, V> *kept, const T *residual,
                                           int n, inputs<T, V> &w)
{
#pragma unroll
    for (int b = 0; b < ROWS_AHEAD; b++)
        if (n >= b) w.x[b] = kept ? kept[(n - b) * THREADS + threadIdx.x] : fetch<T, V>(x + place_x(k, o, n - b));
    if (residual)
#pragma unroll
        for (int b = 0; b < ROWS_AHEAD; b++)
            if (n >= b) w.added[b] = fetch<T, V>(residual + place(k, o, n - b));
}

/* y of the thread's rows, last row first: it was read last. w: the first of them, fetched before. */
template <typename T, int V>
__device__ static void normalise(const cut &k, const own &o, const affine *tile, bool relu, const T *x, const raw<T, V> *kept,
                                 const T *residual, inputs<T, V> &w, T *y)
{
    affine c[V];
    own_coefficients<V>(k, tile, c);
    for (int last = o.count - 1; last >= 0; last -= ROWS_AHEAD) {
        if (last != o.count - 1) fetch_inputs<T, V>(k, o, x, kept, residual, last, w);
#pragma unroll
        for (int b = 0; b < ROWS_AHEAD; b++) {
            if (last < b) break;
            lanes<V> v = expand<T, V>(w.x[b]), r = {};
            if (residual) r = expand<T, V>(w.added[b]);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const float z = normal(c[i], v.v[i]) + r.v[i];
                v.v[i] = relu && z < 0.0f ? 0.0f : z;
            }
            store_lanes<V>(y + place(k, o, last - b), v);
        }
    }
}

/* ---- backward: the sums of a slab -------------------------------------------------------------------------------------- */

typedef enum mask { MASK_NONE, MASK_BY_X, MASK_BY_Y } mask;

/* The inputs of g; dy2 and y are NULL where not needed. */
template <typename T> struct streams {
    const T *x, *dy, *dy2, *y;
    mask by;
};

template <typename T, int V> struct words {
    raw<T, V> x, dy, dy2, y;
};

/* GRADS_AHEAD rows of the thread, from the n-th downwards. */
template <typename T, int V>
__device__ static inline void fetch_rows(const cut &k, const own &o, const streams<T> &s, int n, words<T, V> *w)
{
#pragma unroll
    for (int b = 0; b < GRADS_AHEAD; b++)
        if (n >= b) {
            w[b].x = fetch<T, V>(s.x + place_x(k, o, n - b));
            w[b].dy = fetch<T, V>(s.dy + place(k, o, n - b));
        }
    if (s.dy2)
#pragma unroll
        for (int b = 0; b < GRADS_AHEAD; b++)
            if (n >= b) w[b].dy2 = fetch<T, V>(s.dy2 + place(k, o, n - b));
    if (s.by == MASK_BY_Y)
#pragma unroll
        for (int b = 0; b < GRADS_AHEAD; b++)
            if (n >= b) w[b].y = fetch<T, V>(s.y + place(k, o, n - b));
}

/* g of one row, whose x is already converted to float. */
template <typename T, int V>
__device__ static inline lanes<V> gradient(const streams<T> &s, const words<T, V> &w, const lanes<V> &x, const affine *c)
{
    lanes<V> g = expand<T, V>(w.dy), other;
    if (s.dy2) {
        other = expand<T, V>(w.dy2);
#pragma unroll
        for (int i = 0; i < V; i++) g.v[i] += other.v[i];
    }
    if (s.by == MASK_NONE) return g;
    if (s.by == MASK_BY_Y) other = expand<T, V>(w.y);
#pragma unroll
    for (int i = 0; i < V; i++)
        if (!((s.by == MASK_BY_Y ? other.v[i] : normal(c[i], x.v[i])) > 0.0f)) g.v[i] = 0.0f;
    return g;
}

typedef struct coefficients {
    const float *scale, *shift, *saved; /* of forward: (2, channels) */
} coefficients;

template <int V>
__device__ static inline void saved_coefficients(const cut &k, const own &o, const coefficients &f, affine *c, lanes<V> &mean)
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (o.count == 0) continue;
        mean.v[i] = f.saved[o.channel + i];
        c[i] = affine_of(mean.v[i], f.saved[k.channels + o.channel + i], f.scale[o.channel + i], f.shift[o.channel + i]);
    }
}

/* partial[channel * slabs + slab] = sums of g and of g (x - mean). Where the residual needs g it is written here, and the
 * sums are of the written values. KEEP: x and g stay in kept. */
template <typename T, int V, bool KEEP>
__device__ static void sum_gradients(const cut &k, const streams<T> &s, const coefficients &f, T *dresidual, raw<T, V> *kept_x,
                                     raw<T, V> *kept_g, float2 *partial)
{
    __shared__ float2 part[WARPS][MAX_TILE];
    const own o = own_of<V>(k);
    affine c[V];
    lanes<V> sum = {}, dot = {}, mean = {};
    saved_coefficients<V>(k, o, f, c, mean);
    for (int n = o.count - 1; n >= 0; n -= GRADS_AHEAD) {
        words<T, V> w[GRADS_AHEAD];
        fetch_rows(k, o, s, n, w);
#pragma unroll
        for (int b = 0; b < GRADS_AHEAD; b++) {
            if (n < b) break;
            const lanes<V> x = expand<T, V>(w[b].x);
            lanes<V> g = gradient(s, w[b], x, c);
            if (KEEP || dresidual) {
                const raw<T, V> word = compress<T, V>(g);
                g = expand<T, V>(word);
                if (KEEP) kept_x[(n - b) * THREADS + threadIdx.x] = w[b].x, kept_g[(n - b) * THREADS + threadIdx.x] = word;
                if (dresidual) *reinterpret_cast<raw<T, V> *>(dresidual + place(k, o, n - b)) = word;
            }
#pragma unroll
            for (int i = 0; i < V; i++) {
                sum.v[i] += g.v[i];
                dot.v[i] += g.v[i] * (x.v[i] - mean.v[i]);
            }
        }
    }
    for (int lane = 1 << k.across; lane < 32; lane *= 2)
#pragma unroll
        for (int i = 0; i < V; i++) {
            sum.v[i] += __shfl_xor_sync(0xffffffffu, sum.v[i], lane);
            dot.v[i] += __shfl_xor_sync(0xffffffffu, dot.v[i], lane);
        }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = V << k.across;
#pragma unroll
    for (int i = 0; i < V; i++)
        if (lane < 1 << k.across) part[warp][lane * V + i] = make_float2(sum.v[i], dot.v[i]);
    __syncthreads();
    const int channel = blockIdx.x * tile + threadIdx.x;
    if (threadIdx.x >= tile || channel >= k.channels) return;
    float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < WARPS; w++) total.x += part[w][threadIdx.x].x, total.y += part[w][threadIdx.x].y;
    partial[(int64_t)channel * k.slabs + blockIdx.y] = total;
}

/* ---- backward: the parameters' gradients, and dx ------------------------------------------------------------------------ */

typedef struct gradients {
    const float2 *partial; /* (channels, parts): the slabs, or what a convolution has summed */
    int parts;
    float *dscale, *dshift; /* NULL: not wanted */
    bool accumulate;
    bool training; /* else mean and variance are constants */
} gradients;

/* dx = scale g + from_x x + offset. */
typedef struct slopes {
    float from_x, offset;
} slopes;

/* The coefficients of the block's channels, one warp per channel; the blocks of the first slab also write the gradients of
 * the parameters. */
template <int V>
__device__ static void settle_gradients(const cut &k, const coefficients &f, const gradients &p, affine *tile, slopes *slope)
{
    const int width = V << k.across;
    for (int i = threadIdx.x / 32; i < width; i += WARPS) {
        const int c = blockIdx.x * width + i;
        if (c >= k.channels) break;
        const float mean = f.saved[c], rstd = f.saved[k.channels + c], scale = f.scale[c], shift = f.shift[c];
        double sum = 0.0, dot = 0.0;
        for (int first = threadIdx.x % 32; first < p.parts; first += 32 * PARTS_AHEAD) {
            float2 part[PARTS_AHEAD] = {};
#pragma unroll
            for (int b = 0; b < PARTS_AHEAD; b++)
                if (first + 32 * b < p.parts) part[b] = __ldcg(p.partial + (int64_t)c * p.parts + first + 32 * b);
#pragma unroll
            for (int b = 0; b < PARTS_AHEAD; b++) sum += (double)part[b].x, dot += (double)part[b].y;
        }
        sum = warp_sum(sum);
        dot = warp_sum(dot) * (double)rstd;
        if (threadIdx.x % 32 != 0) continue;
        tile[i] = affine_of(mean, rstd, scale, shift);
        slope[i] = {0.0f, 0.0f};
        if (p.training) {
            const double folded = (double)tile[i].scale * k.per, from_x = -folded * (double)rstd * dot;
            slope[i] = {(float)from_x, (float)(-folded * sum - from_x * (double)mean)};
        }
        if (blockIdx.y != 0) continue;
        if (p.dscale) p.dscale[c] = (float)(dot + (p.accumulate ? (double)p.dscale[c] : 0.0));
        if (p.dshift) p.dshift[c] = (float)(sum + (p.accumulate ? (double)p.dshift[c] : 0.0));
    }
    __syncthreads();
}

/* dx of the thread's rows, last row first; added to the existing gradient where add is set. dresidual: g is written there
 * first; NULL: it is not. w: where nothing is kept, the first rows, fetched before. */
template <typename T, int V, bool KEPT>
__device__ static void input_gradient(const cut &k, const affine *tile, const slopes *slope, const streams<T> &s,
                                      const raw<T, V> *kept_x, const raw<T, V> *kept_g, words<T, V> *first, T *dresidual,
                                      bool add, T *dx)
{
    const int ahead = KEPT ? SUMS_AHEAD : GRADS_AHEAD;
    const own o = own_of<V>(k);
    affine c[V];
    slopes d[V];
    own_coefficients<V>(k, tile, c);
#pragma unroll
    for (int i = 0; i < V; i++) d[i] = slope[column_of(k) * V + i];
    for (int n = o.count - 1; n >= 0; n -= ahead) {
        words<T, V> kept[ahead], *w = KEPT ? kept : first;
        raw<T, V> before[ahead];
        if (!KEPT && n != o.count - 1) fetch_rows(k, o, s, n, w);
        if (add)
#pragma unroll
            for (int b = 0; b < ahead; b++)
                if (n >= b) before[b] = fetch<T, V>(dx + place_x(k, o, n - b));
#pragma unroll
        for (int b = 0; b < ahead; b++) {
            if (n < b) break;
            if (KEPT) w[b].x = kept_x[(n - b) * THREADS + threadIdx.x];
            const lanes<V> x = expand<T, V>(w[b].x);
            lanes<V> g = KEPT ? expand<T, V>(kept_g[(n - b) * THREADS + threadIdx.x]) : gradient(s, w[b], x, c), sum = {};
            if (!KEPT && dresidual) {
                const raw<T, V> word = compress<T, V>(g);
                *reinterpret_cast<raw<T, V> *>(dresidual + place(k, o, n - b)) = word;
                g = expand<T, V>(word);
            }
            if (add) sum = expand<T, V>(before[b]);
#pragma unroll
            for (int i = 0; i < V; i++) g.v[i] = fmaf(c[i].scale, g.v[i], fmaf(d[i].from_x, x.v[i], d[i].offset)) + sum.v[i];
            store_lanes<V>(dx + place_x(k, o, n - b), g);
        }
    }
}

#endif
