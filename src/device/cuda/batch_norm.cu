/* Batch norm, optionally with an added residual and a ReLU: y = relu((x - mean) rstd scale + shift + residual). With
 * g = (dy + dy2) masked by the ReLU: dresidual = g, dx = scale rstd (g - mean(g) - xh mean(g xh)), xh = (x - mean) rstd.
 *
 * The value is (rows, channels) in memory. It is cut into tiles of channels and slabs of rows, a block each. Forward and
 * backward have two phases: sums over every slab, left in scratch, then the elementwise part, before which each block joins the
 * sums of its channels over all slabs in order. Where a slab fits into shared memory both phases are one kernel with a barrier
 * over the grid between them, and memory is read once; else they are two kernels. Without a residual the ReLU's mask comes from
 * x again, and y is not read at all. saved: the means, then the reciprocal deviations. */
#include "device/cuda/cuda_nn.h"

#include <cooperative_groups.h>

#define THREADS 512
#define WARPS (THREADS / 32)
#define MAX_TILE 64              /* channels of a block, at most */
#define ROWS_AHEAD 4             /* of x (and the residual) a thread has on their way from memory in forward, */
#define GRADS_AHEAD 2            /* and of up to four values in backward */
#define SMALL ((size_t)16 << 20) /* bytes: what is left of it in the L2 cache need not be read in long lines */

/* A slab has `share` rows, each of the first `rest` slabs one more. A thread owns V channels, of which `across` (a power of
 * two, at most 32) such groups make a tile, and every (THREADS / across)-th row of the slab. Grid: (tiles, slabs). */
typedef struct cut {
    int64_t share, rest;
    int channels, slabs, across;
    double per;    /* 1 / rows */
    double unbias; /* rows / (rows - 1); 0 for a single row */
} cut;

typedef struct own {
    int64_t first; /* row */
    int channel, count, step;
} own;

template <int V> __device__ static inline own own_of(const cut &k)
{
    const int64_t slab = blockIdx.y, rows = k.share + (slab < k.rest);
    own o;
    o.channel = (int)(blockIdx.x * k.across + threadIdx.x % k.across) * V;
    o.step = THREADS / k.across;
    const int skip = threadIdx.x / k.across;
    o.first = slab * k.share + (slab < k.rest ? slab : k.rest) + skip;
    o.count = o.channel < k.channels && skip < rows ? (int)((rows - skip + o.step - 1) / o.step) : 0;
    return o;
}

/* Where V channels of the thread's n-th row lie. */
__device__ static inline int64_t place(const cut &k, const own &o, int n)
{
    return (o.first + (int64_t)n * o.step) * k.channels + o.channel;
}

/* V elements as they lie in memory: what waits in registers and shared memory. */
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

/* What turns x into the output before its residual: scale x + shift, mean and deviation folded in. Both are made and used in
 * one way only, for forward's value and backward's mask must not differ in a bit. */
typedef struct affine {
    float scale, shift;
} affine;

__device__ static inline affine affine_of(float mean, float rstd, float scale, float shift)
{
    const float folded = __fmul_rn(scale, rstd);
    return {folded, fmaf(-mean, folded, shift)};
}

__device__ static inline float normal(const affine &c, float x) { return fmaf(x, c.scale, c.shift); }

/* ---- forward: the moments of a slab ---------------------------------------------------------------------------------- */

/* Joins count, mean and sum of squared distances of the lanes that own the same channels (Chan, Golub, LeVeque). */
template <int V> __device__ static inline void merge_lanes(int across, float &count, lanes<V> &mean, lanes<V> &square)
{
    for (int lane = across; lane < 32; lane *= 2) {
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

/* partial[channel * slabs + slab] = mean and sum of squared distances from it. Each thread measures from its own first row: the
 * distance to the mean of what it sees is then part of what it sees, and nothing cancels. KEEP: x stays in kept. */
template <typename T, int V, bool KEEP>
__device__ static void take_moments(const cut &k, const T *x, raw<T, V> *kept, float2 *partial)
{
    __shared__ float2 part[WARPS][MAX_TILE];
    __shared__ float counts[WARPS];
    const own o = own_of<V>(k);
    lanes<V> zero = {}, sum = {}, square = {};
    if (o.count > 0) zero = load_lanes<V>(x + place(k, o, 0));
#pragma unroll 4
    for (int n = 0; n < o.count; n++) {
        const raw<T, V> word = fetch<T, V>(x + place(k, o, n));
        if (KEEP) kept[n * THREADS + threadIdx.x] = word;
        const lanes<V> v = expand<T, V>(word);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float d = v.v[i] - zero.v[i];
            sum.v[i] += d;
            square.v[i] += d * d;
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

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = k.across * V;
    if (lane == 0) counts[warp] = count;
#pragma unroll
    for (int i = 0; i < V; i++)
        if (lane < k.across) part[warp][lane * V + i] = make_float2(sum.v[i], square.v[i]);
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
    float *running_mean, *running_variance;
    const float *scale, *shift;
    float *saved; /* (2, channels) or NULL */
    double eps, momentum;
    bool training;
} statistics;

/* Mean and variance of channel c over all slabs. A warp calls; double makes the difference of squares harmless. */
__device__ static inline void join_moments(const cut &k, const float2 *partial, int c, double &mean, double &variance)
{
    double sum = 0.0, square = 0.0;
    for (int slab = threadIdx.x % 32; slab < k.slabs; slab += 32) {
        const float2 p = __ldcg(partial + (int64_t)c * k.slabs + slab);
        const double rows = (double)(k.share + (slab < k.rest)), m = (double)p.x;
        sum += rows * m;
        square += (double)p.y + rows * m * m;
    }
    mean = warp_sum(sum) * k.per;
    variance = warp_sum(square) * k.per - mean * mean;
    if (variance < 0.0) variance = 0.0;
}

/* The coefficients of the block's channels, a warp for each; the first slab's blocks also move the running statistics. */
template <int V> __device__ static void settle_statistics(const cut &k, const statistics &s, affine *tile)
{
    const int width = k.across * V;
    for (int i = threadIdx.x / 32; i < width; i += WARPS) {
        const int c = blockIdx.x * width + i;
        if (c >= k.channels) break;
        const float scale = s.scale[c], shift = s.shift[c];
        double mean, variance;
        if (s.training)
            join_moments(k, s.partial, c, mean, variance);
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
    for (int i = 0; i < V; i++) mine[i] = tile[threadIdx.x % k.across * V + i];
}

/* y of the thread's rows, last row first: it was read last. */
template <typename T, int V, bool KEPT>
__device__ static void normalise(const cut &k, const affine *tile, bool relu, const T *x, const raw<T, V> *kept,
                                 const T *residual, T *y)
{
    const own o = own_of<V>(k);
    affine c[V];
    own_coefficients<V>(k, tile, c);
    for (int last = o.count - 1; last >= 0; last -= ROWS_AHEAD) {
        raw<T, V> value[ROWS_AHEAD], added[ROWS_AHEAD];
#pragma unroll
        for (int b = 0; b < ROWS_AHEAD; b++)
            if (last >= b) value[b] = KEPT ? kept[(last - b) * THREADS + threadIdx.x] : fetch<T, V>(x + place(k, o, last - b));
        if (residual)
#pragma unroll
            for (int b = 0; b < ROWS_AHEAD; b++)
                if (last >= b) added[b] = fetch<T, V>(residual + place(k, o, last - b));
#pragma unroll
        for (int b = 0; b < ROWS_AHEAD; b++) {
            if (last < b) break;
            lanes<V> v = expand<T, V>(value[b]), r = {};
            if (residual) r = expand<T, V>(added[b]);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const float z = normal(c[i], v.v[i]) + r.v[i];
                v.v[i] = relu && z < 0.0f ? 0.0f : z;
            }
            store_lanes<V>(y + place(k, o, last - b), v);
        }
    }
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1) moments_kernel(cut k, const T *x, float2 *partial)
{
    take_moments<T, V, false>(k, x, NULL, partial);
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    normalise_kernel(cut k, statistics s, bool relu, const T *x, const T *residual, T *y)
{
    __shared__ affine tile[MAX_TILE];
    settle_statistics<V>(k, s, tile);
    normalise<T, V, false>(k, tile, relu, x, NULL, residual, y);
}

extern __shared__ uint4 kept_words[];

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    whole_forward_kernel(cut k, statistics s, bool relu, const T *x, const T *residual, float2 *partial, T *y)
{
    __shared__ affine tile[MAX_TILE];
    take_moments<T, V, true>(k, x, kept_words, partial);
    cooperative_groups::this_grid().sync();
    settle_statistics<V>(k, s, tile);
    normalise<T, V, true>(k, tile, relu, x, kept_words, residual, y);
}

/* ---- backward: the sums of a slab -------------------------------------------------------------------------------------- */

typedef enum mask { MASK_NONE, MASK_BY_X, MASK_BY_Y } mask;

/* What g is made of; dy2 and y are NULL where not needed. */
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
            w[b].x = fetch<T, V>(s.x + place(k, o, n - b));
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

/* g of one row, whose x has been expanded. */
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

/* partial[channel * slabs + slab] = sums of g and of g (x - mean). Where the residual wants g it is written here, and the sums
 * are of what was written. KEEP: x and g stay in kept. */
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
    for (int lane = k.across; lane < 32; lane *= 2)
#pragma unroll
        for (int i = 0; i < V; i++) {
            sum.v[i] += __shfl_xor_sync(0xffffffffu, sum.v[i], lane);
            dot.v[i] += __shfl_xor_sync(0xffffffffu, dot.v[i], lane);
        }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = k.across * V;
#pragma unroll
    for (int i = 0; i < V; i++)
        if (lane < k.across) part[warp][lane * V + i] = make_float2(sum.v[i], dot.v[i]);
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
    const float2 *partial;
    float *dscale, *dshift; /* NULL: not wanted */
    bool accumulate;
    bool training; /* else mean and variance were constants */
} gradients;

/* dx = scale g + from_x x + offset. */
typedef struct slopes {
    float from_x, offset;
} slopes;

/* The coefficients of the block's channels, a warp for each; the first slab's blocks also write the parameters' gradients. */
template <int V>
__device__ static void settle_gradients(const cut &k, const coefficients &f, const gradients &p, affine *tile, slopes *slope)
{
    const int width = k.across * V;
    for (int i = threadIdx.x / 32; i < width; i += WARPS) {
        const int c = blockIdx.x * width + i;
        if (c >= k.channels) break;
        const float mean = f.saved[c], rstd = f.saved[k.channels + c], scale = f.scale[c], shift = f.shift[c];
        double sum = 0.0, dot = 0.0;
        for (int slab = threadIdx.x % 32; slab < k.slabs; slab += 32) {
            const float2 part = __ldcg(p.partial + (int64_t)c * k.slabs + slab);
            sum += (double)part.x;
            dot += (double)part.y;
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

template <typename T, int V, bool KEPT>
__device__ static void input_gradient(const cut &k, const affine *tile, const slopes *slope, const streams<T> &s,
                                      const raw<T, V> *kept_x, const raw<T, V> *kept_g, T *dx)
{
    const own o = own_of<V>(k);
    affine c[V];
    slopes d[V];
    own_coefficients<V>(k, tile, c);
#pragma unroll
    for (int i = 0; i < V; i++) d[i] = slope[threadIdx.x % k.across * V + i];
    for (int n = o.count - 1; n >= 0; n -= GRADS_AHEAD) {
        words<T, V> w[GRADS_AHEAD];
        if (!KEPT) fetch_rows(k, o, s, n, w);
#pragma unroll
        for (int b = 0; b < GRADS_AHEAD; b++) {
            if (n < b) break;
            if (KEPT) w[b].x = kept_x[(n - b) * THREADS + threadIdx.x];
            const lanes<V> x = expand<T, V>(w[b].x);
            lanes<V> g = KEPT ? expand<T, V>(kept_g[(n - b) * THREADS + threadIdx.x]) : gradient(s, w[b], x, c);
#pragma unroll
            for (int i = 0; i < V; i++) g.v[i] = fmaf(c[i].scale, g.v[i], fmaf(d[i].from_x, x.v[i], d[i].offset));
            store_lanes<V>(dx + place(k, o, n - b), g);
        }
    }
}

template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    sums_kernel(cut k, streams<T> s, coefficients f, T *dresidual, float2 *partial)
{
    sum_gradients<T, V, false>(k, s, f, dresidual, NULL, NULL, partial);
}

/* dx NULL: only the parameters' gradients. */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1) input_kernel(cut k, streams<T> s, coefficients f, gradients p, T *dx)
{
    __shared__ affine tile[MAX_TILE];
    __shared__ slopes slope[MAX_TILE];
    settle_gradients<V>(k, f, p, tile, slope);
    if (dx) input_gradient<T, V, false>(k, tile, slope, s, NULL, NULL, dx);
}

/* slots: rows that a thread keeps, at most. */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS, 1)
    whole_backward_kernel(cut k, int slots, streams<T> s, coefficients f, gradients p, float2 *partial, T *dresidual, T *dx)
{
    __shared__ affine tile[MAX_TILE];
    __shared__ slopes slope[MAX_TILE];
    uint4 *kept_g = kept_words + slots * THREADS;
    sum_gradients<T, V, true>(k, s, f, dresidual, kept_words, kept_g, partial);
    cooperative_groups::this_grid().sync();
    settle_gradients<V>(k, f, p, tile, slope);
    if (dx) input_gradient<T, V, true>(k, tile, slope, s, kept_words, kept_g, dx);
}

/* ---- the operation ------------------------------------------------------------------------------------------------------ */

typedef struct batch_norm {
    cut k;
    int tiles, slots;
    bool vectors;
    size_t forward_shared, backward_shared; /* bytes of the single kernel; 0: two kernels */
} batch_norm;

/* One block for each multiprocessor, as far as tiles and slabs allow: the tile that keeps most of them busy. Among equals a
 * value that is small gets narrow tiles, whose few sums are joined quickly, and a large one wide ones, read in long lines. */
static void choose_tiles(int64_t groups, bool small, int processors, batch_norm *b)
{
    int64_t most = 0;
    for (int i = 1; i <= 3; i++) {
        const int across = small ? 1 << i : 16 >> i;
        if (across > 2 && groups % across != 0) continue;
        const int64_t tiles = abar__cuda_blocks(groups, across), slabs = tiles < processors ? processors / tiles : 1;
        if (tiles * slabs <= most) continue;
        most = tiles * slabs;
        b->k.across = across;
    }
    if (groups == 1) b->k.across = 1;
}

static batch_norm plan(const abar__op *op)
{
    const abar__shape *s = &op->desc.in[0];
    const int64_t channels = s->dim[1], rows = abar__shape_count(s) / channels;
    const int processors = abar__cuda_of(op->dev)->processors, pack_size = (int)(16 / abar_dtype_size(op->dev->activation));
    batch_norm b = {};
    b.vectors = channels % pack_size == 0;
    const int64_t groups = b.vectors ? channels / pack_size : channels;
    if (b.vectors)
        choose_tiles(groups, abar__shape_bytes(op->dev, s, op->in_layout[0]) <= SMALL, processors, &b);
    else
        b.k.across = 8; /* single elements: some of the last tile's columns lie idle */
    b.tiles = (int)abar__cuda_blocks(groups, b.k.across);
    const int64_t most = abar__cuda_blocks(rows, THREADS / b.k.across);
    int64_t slabs = b.tiles < processors ? processors / b.tiles : 1;
    if (slabs > most) slabs = most;
    b.k.share = rows / slabs;
    b.k.rest = rows % slabs;
    b.k.channels = (int)channels;
    b.k.slabs = (int)slabs;
    b.k.per = 1.0 / (double)rows;
    b.k.unbias = rows > 1 ? (double)rows / (double)(rows - 1) : 0.0;
    b.slots = (int)abar__cuda_blocks(abar__cuda_blocks(rows, slabs), THREADS / b.k.across);
    return b;
}

/* Whether all blocks of the single kernel can be on the device at once with so many bytes of shared memory each. */
static abar_status fits(const abar__op *op, const batch_norm *b, const void *kernel, size_t bytes, bool *out)
{
    const abar__cuda *cuda = abar__cuda_of(op->dev);
    cudaFuncAttributes of;
    int blocks;
    *out = false;
    CUDA_TRY(op->dev, cudaFuncGetAttributes(&of, kernel));
    if (of.sharedSizeBytes + bytes > cuda->shared_memory) return ABAR_OK;
    CUDA_TRY(op->dev, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)(cuda->shared_memory - of.sharedSizeBytes)));
    CUDA_TRY(op->dev, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, THREADS, bytes));
    *out = (int64_t)b->tiles * b->k.slabs <= (int64_t)blocks * cuda->processors;
    return ABAR_OK;
}

template <typename T> static abar_status plan_whole(const abar__op *op, batch_norm *b)
{
    const size_t bytes = (size_t)b->slots * THREADS * sizeof(uint4);
    bool forward, backward;
    ABAR_TRY(fits(op, b, (const void *)whole_forward_kernel<T, pack<T>::n>, bytes, &forward));
    ABAR_TRY(fits(op, b, (const void *)whole_backward_kernel<T, pack<T>::n>, 2 * bytes, &backward));
    if (forward) b->forward_shared = bytes;
    if (backward) b->backward_shared = 2 * bytes;
    return ABAR_OK;
}

static abar_status create(abar__op *op)
{
    const abar__op_desc *d = &op->desc;
    if (d->activation != ABAR_ACT_NONE && d->activation != ABAR_ACT_RELU) return ABAR_E_UNSUPPORTED;
    op->in_layout[0] = op->out_layout = abar__cuda_layout(&d->in[0]);
    if (d->residual) op->in_layout[1] = op->in_layout[0];
    batch_norm b = plan(op);
    if (b.vectors) ABAR_TRY(abar__cuda_is_bf16(op->dev) ? plan_whole<bf16>(op, &b) : plan_whole<float>(op, &b));
    op->takes_dy2 = true;
    op->backward_needs = ABAR_NEEDS_X | (d->residual && d->activation == ABAR_ACT_RELU ? ABAR_NEEDS_Y : 0);
    op->saved_bytes = 2 * (size_t)b.k.channels * sizeof(float);
    op->scratch_bytes = (size_t)b.k.channels * (size_t)b.k.slabs * sizeof(float2);
    ABAR_TRY(abar__alloc(op->dev->ctx, sizeof b, &op->priv));
    op->priv_bytes = sizeof b;
    *(batch_norm *)op->priv = b;
    return ABAR_OK;
}

/* A kernel whose blocks are all on the device at once and may wait for each other. */
template <typename... Parameters, typename... Arguments>
static void launch_whole(abar_device *dev, void (*kernel)(Parameters...), dim3 grid, size_t shared, Arguments... arguments)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared;
    config.stream = cuda->stream;
    config.attrs = &together;
    config.numAttrs = 1;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
    if (error != cudaSuccess && cuda->failure == cudaSuccess) cuda->failure = error;
}

template <typename T, int V> static void forward_as(abar__op *op, const abar__op_args *a)
{
    const batch_norm *b = (const batch_norm *)op->priv;
    const bool relu = op->desc.activation == ABAR_ACT_RELU;
    const dim3 grid((unsigned)b->tiles, (unsigned)b->k.slabs);
    const T *x = (const T *)a->x[0], *residual = op->desc.residual ? (const T *)a->x[1] : NULL;
    float2 *partial = (float2 *)a->scratch;
    const statistics s = {partial,
                          (float *)a->buffer[0],
                          (float *)a->buffer[1],
                          (const float *)a->param[0],
                          (const float *)a->param[1],
                          (float *)a->saved,
                          op->desc.eps,
                          op->desc.momentum,
                          a->run->training};
    if constexpr (V > 1)
        if (s.training && b->forward_shared) {
            launch_whole(op->dev, whole_forward_kernel<T, V>, grid, b->forward_shared, b->k, s, relu, x, residual, partial,
                         (T *)a->y);
            return;
        }
    if (s.training) abar__cuda_launch(op->dev, moments_kernel<T, V>, grid, dim3(THREADS), 0, b->k, x, partial);
    abar__cuda_launch(op->dev, normalise_kernel<T, V>, grid, dim3(THREADS), 0, b->k, s, relu, x, residual, (T *)a->y);
}

template <typename T, int V> static void backward_as(abar__op *op, const abar__op_args *a)
{
    const batch_norm *b = (const batch_norm *)op->priv;
    const bool relu = op->desc.activation == ABAR_ACT_RELU;
    const dim3 grid((unsigned)b->tiles, (unsigned)b->k.slabs);
    float2 *partial = (float2 *)a->scratch;
    T *dx = (T *)a->dx[0], *dresidual = op->desc.residual ? (T *)a->dx[1] : NULL;
    const coefficients f = {(const float *)a->param[0], (const float *)a->param[1], (const float *)a->saved};
    const gradients p = {partial, (float *)a->dparam[0], (float *)a->dparam[1], a->accumulate, a->run->training};
    streams<T> s = {(const T *)a->x[0], (const T *)a->dy, (const T *)a->dy2, NULL, MASK_NONE};
    if (relu) s.by = op->desc.residual ? MASK_BY_Y : MASK_BY_X;
    if (s.by == MASK_BY_Y) s.y = (const T *)a->y;
    if constexpr (V > 1)
        if (b->backward_shared) {
            launch_whole(op->dev, whole_backward_kernel<T, V>, grid, b->backward_shared, b->k, b->slots, s, f, p, partial,
                         dresidual, dx);
            return;
        }
    abar__cuda_launch(op->dev, sums_kernel<T, V>, grid, dim3(THREADS), 0, b->k, s, f, dresidual, partial);
    if (dresidual) s = {s.x, dresidual, NULL, NULL, MASK_NONE}; /* g, as it was written */
    abar__cuda_launch(op->dev, input_kernel<T, V>, dx ? grid : dim3(grid.x), dim3(THREADS), 0, b->k, s, f, p, dx);
}

template <typename T> static void run_as(abar__op *op, const abar__op_args *a, bool back)
{
    const bool vectors = ((const batch_norm *)op->priv)->vectors;
    if (back && vectors)
        backward_as<T, pack<T>::n>(op, a);
    else if (back)
        backward_as<T, 1>(op, a);
    else if (vectors)
        forward_as<T, pack<T>::n>(op, a);
    else
        forward_as<T, 1>(op, a);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        run_as<bf16>(op, a, false);
    else
        run_as<float>(op, a, false);
    return abar__cuda_status(op->dev);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        run_as<bf16>(op, a, true);
    else
        run_as<float>(op, a, true);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_batch_norm = {"cuda-batch-norm", ABAR_OP_BATCH_NORM, create, forward, backward, NULL};
