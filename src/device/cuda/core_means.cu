/* Every example's mean of a and of p (methods.md sections 5 and 6), of both in one launch, without ever building a row.
 *
 * Entry (c, k) of a mean is the sum of channel c over the pixels that tap k of the windows meets: a rectangle of them, some
 * pixels apart. A warp adds up one rectangle, or a share of it. The rectangles of a 3 x 3 window of stride 1 that leaves the
 * image's size are nearly the image: they are made of its sum, less a row, less a column, and the corner that was in both. */
#include "device/cuda/core_stacks.h"

#define WARPS 16
#define THREADS (32 * WARPS)
#define WIDTH 64  /* channels of a warp, at most */
#define AT_ONCE 8 /* loads of a thread on their way */

/* What the warps of a block add up of an image of 3 x 3 windows: all of it, together, and by one each rows, columns and
 * corners (+ 2 in the last row + 1 in the last column). */
enum { ALL, TOGETHER = 8, FIRST_ROW = TOGETHER, LAST_ROW, FIRST_COLUMN, LAST_COLUMN, CORNERS };

/* a or p, and how the warps of a block share them: groups of `slots`, each with other channels, in a group the taps of the
 * block, each with a slot for every share of its rectangle. */
typedef struct mean_side {
    stack s;
    float *rows;   /* (N, pitch) */
    bf16 *pairs;   /* where the means go instead, as abar__cuda_input_mean_pairs tells */
    int64_t pitch; /* of a vector */
    bool vectors;  /* a thread has as many channels as a load brings; else one */
    bool bordered; /* 3 x 3, as above */
    int lanes;     /* threads at a pixel: a power of two */
    int taps, shares, slots, groups;
    unsigned tap_blocks, blocks; /* of an image: (channels, taps) */
} mean_side;

typedef struct both_means {
    mean_side a, p;
} both_means;

/* ---- rectangles ------------------------------------------------------------------------------------------------------- */

/* Pixels high x wide, from an element of the image on, so far apart; 0 wide never. */
typedef struct rectangle {
    int64_t first, down, right;
    int high, wide;
} rectangle;

/* A line where they are one: nothing has to be divided then. */
__device__ static inline rectangle straight(rectangle r)
{
    if (r.wide == 1) {
        r.wide = r.high;
        r.right = r.down;
        r.high = 1;
    } else if (r.down == r.wide * r.right) {
        r.wide *= r.high;
        r.high = 1;
    }
    if (r.wide == 0) return {0, 0, 0, 0, 1};
    return r;
}

/* Which of an image's rows (axis 0) or columns (axis 1) tap k meets: count of them, the windows' step apart. */
__device__ static inline void meet(const stack &s, int axis, int k, int *first, int *count)
{
    const int size = (int)(axis ? s.width : s.height), extent = (int)s.extent[axis], step = s.step[axis];
    const int shift = k * s.dilation[axis] - s.pad[axis], left = size - 1 - shift; /* position o is at o * step + shift */
    const int low = shift >= 0 ? 0 : step == 1 ? -shift : (step - 1 - shift) / step;
    const int high = left < 0 ? 0 : step == 1 ? left + 1 : left / step + 1;
    *first = low * step + shift;
    *count = max(0, min(high, extent) - low);
}

__device__ static inline rectangle tap_pixels(const stack &s, int tap)
{
    int y, x, high, wide;
    const int i = tap ? tap / s.kernel[1] : 0;
    if (i >= s.kernel[0]) return {0, 0, 0, 0, 1};
    meet(s, 0, i, &y, &high);
    meet(s, 1, tap - i * s.kernel[1], &x, &wide);
    if (high == 0 || wide == 0) return {0, 0, 0, 0, 1};
    return straight({y * s.stride[2] + x * s.stride[3], s.step[0] * s.stride[2], s.step[1] * s.stride[3], high, wide});
}

__device__ static inline rectangle border_pixels(const stack &s, int warp)
{
    const int64_t bottom = (s.height - 1) * s.stride[2], edge = (s.width - 1) * s.stride[3];
    rectangle r = {0, s.stride[2], s.stride[3], (int)s.height, (int)s.width};
    if (warp < TOGETHER) return straight(r);
    const int corner = warp - CORNERS;
    if (warp == LAST_ROW || (corner >= 0 && corner / 2)) r.first += bottom;
    if (warp == LAST_COLUMN || (corner >= 0 && corner % 2)) r.first += edge;
    if (warp < FIRST_COLUMN || corner >= 0) r.high = 1;
    if (warp >= FIRST_COLUMN) r.wide = 1;
    return straight(r);
}

/* ---- a warp's sums ---------------------------------------------------------------------------------------------------- */

/* What a thread loads, and how it adds it. */
template <typename T, int N> struct piece {
    uint4 bits;
    __device__ piece() { bits = make_uint4(0, 0, 0, 0); }
    __device__ void load(const T *p) { bits = *(const uint4 *)p; }
    __device__ void add_to(float (&sum)[N]) const
    {
        const pack<T> a = spread(bits, (const T *)NULL);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += a.v[i];
    }
    __device__ static pack<bf16> spread(uint4 w, const bf16 *) { return unpack(w); }
    __device__ static pack<float> spread(uint4 w, const float *)
    {
        return {{__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)}};
    }
};
template <typename T> struct piece<T, 1> {
    float value;
    __device__ piece() { value = 0.0f; }
    __device__ void load(const T *p) { value = element(p); }
    __device__ void add_to(float (&sum)[1]) const { sum[0] += value; }
};

/* Every step-th pixel of a rectangle, from `place` on, in the rectangle's order. data: this thread's channels. */
template <typename T, int N>
__device__ static inline void sum_pixels(const T *data, const rectangle &r, int place, int step, float (&sum)[N])
{
    const int count = r.high * r.wide, y = r.high == 1 ? 0 : place / r.wide, ahead = r.high == 1 ? 0 : step / r.wide;
    const int beside = step - ahead * r.wide;
    const int64_t jump = ahead * r.down + beside * r.right, wrap = r.down - r.wide * r.right;
    int x = place - y * r.wide;
    const T *at = data + r.first + y * r.down + x * r.right;
    for (int i = place; i < count; i += AT_ONCE * step) {
        piece<T, N> pieces[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (i + k * step < count) pieces[k].load(at);
            at += jump;
            x += beside;
            if (x >= r.wide) {
                x -= r.wide;
                at += wrap;
            }
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) pieces[k].add_to(sum);
    }
}

/* The sums of lanes that are a multiple of `lanes` apart, to (lanes, N) floats. A step adds what two lanes have, each of them
 * for one half of the values, as long as there are two. */
template <int N> __device__ static inline void store_sums(float (&v)[N], int lanes, float *to)
{
    const int lane = (int)threadIdx.x % 32;
    int first = 0, held = N;
    bool mine = true;
#pragma unroll
    for (int i = 0; i < 5; i++) {
        const int other = 16 >> i, half = N >> (i + 1);
        const bool upper = lane & other;
        if (other < lanes) continue;
        if (half) {
#pragma unroll
            for (int k = 0; k < half; k++) {
                const float kept = upper ? v[k + half] : v[k], given = upper ? v[k] : v[k + half];
                v[k] = kept + __shfl_xor_sync(0xffffffffu, given, other);
            }
            first += upper ? half : 0;
            held = half;
        } else {
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], other);
            mine = mine && !upper;
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (mine && k < held) to[lane % lanes * N + first + k] = v[k];
}

/* This warp's rectangle of an image, to (lanes, N) floats of its own. */
template <typename T, int N> __device__ static inline void sum_rectangle(const mean_side &m, unsigned block, float *to)
{
    const stack &s = m.s;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, places = 32 / m.lanes;
    const int group = warp / m.slots, slot = warp - group * m.slots, share = m.bordered ? slot : slot % m.shares;
    const unsigned across = block / m.tap_blocks, tap_block = block - across * m.tap_blocks;
    const int64_t channel = (((int64_t)across * m.groups + group) * m.lanes + lane % m.lanes) * N;
    float sum[N] = {};
    if (group < m.groups && channel < s.channels) {
        const rectangle r = m.bordered ? border_pixels(s, warp) : tap_pixels(s, (int)tap_block * m.taps + slot / m.shares);
        const bool shared = !m.bordered || warp < TOGETHER;
        const T *data = (const T *)s.data + blockIdx.x * s.stride[0] + channel * s.stride[1];
        sum_pixels<T, N>(data, r, lane / m.lanes + (shared ? share * places : 0), shared ? m.shares * places : places, sum);
    }
    store_sums<N>(sum, m.lanes, to);
}

/* ---- means ------------------------------------------------------------------------------------------------------------ */

/* Element k of this block's image. */
__device__ static inline void store_mean(const mean_side &m, int64_t k, float v)
{
    if (!m.pairs) {
        m.rows[blockIdx.x * m.pitch + k] = v;
        return;
    }
    bf16 *to = m.pairs + blockIdx.x * 4 * m.pitch + k;
    const bf16 high = __float2bfloat16_rn(v), low = __float2bfloat16_rn(v - __bfloat162float(high));
    to[0] = to[m.pitch] = to[3 * m.pitch] = high;
    to[2 * m.pitch] = low;
}

/* Over `count` of the warps' sums of a channel, in order. */
__device__ static inline float add_slots(const float (*sums)[WIDTH], int count, int column)
{
    float sum = 0.0f;
    for (int i = 0; i < count; i++) sum += sums[i][column];
    return sum;
}

/* Tap 0 of an axis does not meet its last pixel, tap 2 not its first. */
__device__ static inline float through_tap(const float (*sums)[WIDTH], int tap, int column)
{
    const int y = tap / 3, x = tap % 3;
    float sum = add_slots(sums, TOGETHER, column);
    if (y != 1) sum -= sums[y == 0 ? LAST_ROW : FIRST_ROW][column];
    if (x != 1) sum -= sums[x == 0 ? LAST_COLUMN : FIRST_COLUMN][column];
    if (y != 1 && x != 1) sum += sums[CORNERS + (y == 0 ? 2 : 0) + (x == 0 ? 1 : 0)][column];
    return sum;
}

/* What the block's warps have summed; n: channels of a thread. */
__device__ static inline void store_means(const mean_side &m, unsigned block, int n, const float (*sums)[WIDTH])
{
    const stack &s = m.s;
    const int kernel = s.kernel[0] * s.kernel[1], width = m.lanes * n;
    const unsigned across = block / m.tap_blocks, tap_block = block - across * m.tap_blocks;
    const int64_t first = (int64_t)across * m.groups * width;
    for (int o = (int)threadIdx.x; o < m.groups * width * m.taps; o += THREADS) {
        const int c = o / m.taps, k = o - c * m.taps, tap = (int)tap_block * m.taps + k, group = c / width;
        if (first + c >= s.channels || tap >= kernel) continue;
        const float sum = m.bordered ? through_tap(sums, k, c)
                                     : add_slots(sums + group * m.slots + k * m.shares, m.shares, c - group * width);
        store_mean(m, (first + c) * kernel + tap, (float)(s.scale * (double)sum));
    }
    if (block == 0 && threadIdx.x == 0 && s.last != 0.0) store_mean(m, s.channels * kernel, (float)s.last);
}

template <typename T, int N> __device__ static inline void mean_block(const mean_side &m, unsigned block, float (*sums)[WIDTH])
{
    float *own = sums[threadIdx.x / 32];
    if (m.vectors)
        sum_rectangle<T, N>(m, block, own);
    else
        sum_rectangle<T, 1>(m, block, own);
    __syncthreads();
    store_means(m, block, m.vectors ? N : 1, sums);
}

/* Grid: (images, blocks of a and then of p). */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 2) mean_images(const __grid_constant__ both_means both)
{
    __shared__ float sums[WARPS][WIDTH];
    if (blockIdx.y < both.a.blocks)
        mean_block<T, N>(both.a, blockIdx.y, sums);
    else
        mean_block<T, N>(both.p, blockIdx.y - both.a.blocks, sums);
}

/* ---- how the warps share a side ---------------------------------------------------------------------------------------- */

static bool has_borders(const stack *s)
{
    bool has = s->height >= 3 && s->width >= 3;
    for (int i = 0; i < 2; i++) has = has && s->kernel[i] == 3 && s->step[i] == 1 && s->pad[i] == 1 && s->dilation[i] == 1;
    return has;
}

/* Threads that are neighbours in memory: at a pixel, or where its channels lie apart at others. */
static int lanes_of(const stack *s, int n)
{
    int lanes = 1;
    if (n > 1)
        while (2 * lanes * n <= WIDTH && s->channels % (2 * lanes * n) == 0) lanes *= 2;
    else if (s->stride[1] == 1)
        while (lanes < 32 && lanes < s->channels) lanes *= 2;
    return lanes;
}

/* Warps have whole rectangles of more channels before they share one of few pixels. */
static void share_side(mean_side *m, abar_dtype dtype)
{
    const stack *s = &m->s;
    const int kernel = s->kernel[0] * s->kernel[1], wide = dtype == ABAR_BF16 ? 8 : dtype == ABAR_F32 ? 4 : 1;
    m->vectors = wide > 1 && fits_vectors(s, wide, 16 / wide);
    m->bordered = has_borders(s);
    m->lanes = lanes_of(s, m->vectors ? wide : 1);
    m->tap_blocks = m->bordered ? 1 : (unsigned)abar__cuda_blocks(kernel, WARPS);
    m->taps = (int)abar__cuda_blocks(kernel, m->tap_blocks);
    const int64_t across = abar__cuda_blocks(s->channels, m->lanes * (m->vectors ? wide : 1));
    const int64_t loads = abar__cuda_blocks(s->extent[0] * s->extent[1] * m->lanes, 32); /* of a thread, for a rectangle */
    m->shares = m->bordered ? TOGETHER : 1;
    while (!m->bordered && 2 * m->shares * m->taps <= WARPS &&
           (loads > AT_ONCE * m->shares || across < WARPS / (m->taps * m->shares)))
        m->shares *= 2;
    m->slots = m->bordered ? WARPS : m->taps * m->shares;
    m->groups = WARPS / m->slots;
    m->blocks = (unsigned)abar__cuda_blocks(across, m->groups) * m->tap_blocks;
}

static void launch_means(abar_device *dev, abar_dtype dtype, const both_means *both)
{
    const dim3 grid((unsigned)(both->a.blocks ? both->a.s.images : both->p.s.images), both->a.blocks + both->p.blocks);
    if (grid.x == 0 || grid.y == 0) return;
    switch (dtype) {
    case ABAR_F32: abar__cuda_launch(dev, mean_images<float, 4>, grid, dim3(THREADS), 0, *both); break;
    case ABAR_BF16: abar__cuda_launch(dev, mean_images<bf16, 8>, grid, dim3(THREADS), 0, *both); break;
    case ABAR_F16: abar__cuda_launch(dev, mean_images<__half, 1>, grid, dim3(THREADS), 0, *both); break;
    case ABAR_F64: abar__cuda_launch(dev, mean_images<double, 1>, grid, dim3(THREADS), 0, *both); break;
    default: break; /* observe takes no others */
    }
}

static mean_side input_side(const abar__rows *r, float *rows, void *pairs)
{
    mean_side m = {};
    m.s = input_stack(r, true);
    m.s.scale = 1.0 / (double)r->per_example;
    m.s.last = r->bias ? 1.0 : 0.0;
    m.rows = rows;
    m.pairs = (bf16 *)pairs;
    m.pitch = pairs ? abar__cuda_pairs_pitch(abar__rows_d(r)) : abar__rows_d(r);
    share_side(&m, r->input.dtype);
    return m;
}

static mean_side grad_side(const abar__rows *r, float *rows, void *pairs)
{
    mean_side m = {};
    m.s = stack_of(r, &r->output_grad, r->out, true);
    m.s.scale = r->grad_scale / (double)r->per_example;
    m.rows = rows;
    m.pairs = (bf16 *)pairs;
    m.pitch = pairs ? abar__cuda_pairs_pitch(r->out) : r->out;
    share_side(&m, r->output_grad.dtype);
    return m;
}

/* One launch, where both are of one type. */
static void launch_sides(abar_device *dev, const abar__rows *r, const mean_side *a, const mean_side *p)
{
    both_means first = {}, second = {};
    first.a = *a;
    if (r->input.dtype == r->output_grad.dtype)
        first.p = *p;
    else
        second.p = *p;
    launch_means(dev, r->input.dtype, &first);
    launch_means(dev, r->output_grad.dtype, &second);
}

extern "C" void abar__cuda_input_means(abar_device *dev, const abar__rows *r, float *rows)
{
    both_means both = {};
    both.a = input_side(r, rows, NULL);
    launch_means(dev, r->input.dtype, &both);
}

extern "C" void abar__cuda_grad_means(abar_device *dev, const abar__rows *r, float *rows)
{
    both_means both = {};
    both.p = grad_side(r, rows, NULL);
    launch_means(dev, r->output_grad.dtype, &both);
}

extern "C" void abar__cuda_both_means(abar_device *dev, const abar__rows *r, float *inputs, float *grads)
{
    const mean_side a = input_side(r, inputs, NULL), p = grad_side(r, grads, NULL);
    launch_sides(dev, r, &a, &p);
}

extern "C" void abar__cuda_input_mean_pairs(abar_device *dev, const abar__rows *r, void *pairs)
{
    both_means both = {};
    both.a = input_side(r, NULL, pairs);
    launch_means(dev, r->input.dtype, &both);
}

extern "C" void abar__cuda_grad_mean_pairs(abar_device *dev, const abar__rows *r, void *pairs)
{
    both_means both = {};
    both.p = grad_side(r, NULL, pairs);
    launch_means(dev, r->output_grad.dtype, &both);
}

extern "C" void abar__cuda_both_mean_pairs(abar_device *dev, const abar__rows *r, void *inputs, void *grads)
{
    const mean_side a = input_side(r, NULL, inputs), p = grad_side(r, NULL, grads);
    launch_sides(dev, r, &a, &p);
}
