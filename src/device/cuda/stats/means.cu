/* Every example's mean of a and of p (methods.md sections 5 and 6), of both in one launch, without ever building a row.
 *
 * Entry (c, k) of a mean is the sum of channel c over the pixels that tap k of the windows meets: a rectangle of them, some
 * pixels apart. A warp adds up one rectangle, or a share of it. The rectangles of a 3 x 3 window of stride 1 that leaves the
 * image's size are nearly the image: they are made of its sum, less a row, less a column, and the corner that was in both.
 * Images are small and launches short, so that the host tells every warp what it has to do: nothing is divided first. */
#include "device/cuda/stats/stacks.h"

#define WARPS 16
#define THREADS (32 * WARPS)
#define WIDTH 64  /* channels of a warp, at most */
#define AT_ONCE 8 /* loads of a thread on their way; half as many where the next one is in another row */

/* What the warps of a block add up of an image of 3 x 3 windows: all of it, together, and by one each rows, columns and
 * corners (+ 2 in the last row + 1 in the last column). */
enum { TOGETHER = 8, FIRST_ROW = TOGETHER, LAST_ROW, FIRST_COLUMN, LAST_COLUMN, CORNERS };

/* A rectangle of an image: count pixels in rows of `wide`, so many elements apart, from `first` on; and a warp's share of it:
 * those step apart from `start` on, and as many behind each as it has threads at other pixels. */
typedef struct rectangle {
    int64_t first, down, right;
    int count, wide;
    int start, step;
} rectangle;

/* a or p. A block's warps are `groups` of `slots`, each group with channels of its own; in a group the taps of the launch, each
 * with a slot for every share of its rectangle. */
typedef struct mean_side {
    const void *data;
    int64_t image, apart; /* elements from an image and from a channel to the next */
    int64_t channels;
    rectangle work[WARPS];
    float *rows;   /* (N, pitch) */
    bf16 *pairs;   /* where the means go instead, as abar__cuda_mean_pairs tells */
    int64_t pitch; /* of a vector */
    float scale;
    float last;            /* where not 0: behind the channels */
    bool vectors;          /* a thread has as many channels as a load brings; else one */
    bool bordered;         /* 3 x 3, as above */
    int shift;             /* threads at a pixel: 1 << shift */
    int kernel, tap, taps; /* in all; the launch's first, and how many */
    int shares, slots, groups;
    unsigned blocks; /* of an image */
} mean_side;

typedef struct both_means {
    mean_side a, p;
} both_means;

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

/* This thread's pixels, `place` behind its warp's. data: its channels. LINE: all of the rectangle is one row. */
template <typename T, int N, bool LINE>
__device__ static inline void sum_pixels(const T *data, const rectangle &r, int place, float (&sum)[N])
{
    const int y = LINE ? 0 : (r.start + place) / r.wide, ahead = LINE ? 0 : r.step / r.wide, beside = r.step - ahead * r.wide;
    const int64_t jump = ahead * r.down + beside * r.right, wrap = r.down - r.wide * r.right;
    int x = r.start + place - y * r.wide;
    const int loads = LINE ? AT_ONCE : AT_ONCE / 2;
    const T *at = data + r.first + y * r.down + x * r.right;
    for (int from = r.start; from < r.count; from += loads * r.step) {
        piece<T, N> pieces[loads];
#pragma unroll
        for (int k = 0; k < loads; k++) {
            if (from + place + k * r.step < r.count) pieces[k].load(at);
            at += jump;
            x += beside;
            if (!LINE && x >= r.wide) {
                x -= r.wide;
                at += wrap;
            }
        }
#pragma unroll
        for (int k = 0; k < loads; k++) {
            if (k == loads / 2 && from + k * r.step >= r.count) break; /* no thread of the warp has another */
            pieces[k].add_to(sum);
        }
    }
}

/* The sums of lanes that are a multiple of 1 << shift apart, to (1 << shift, N) floats. A step adds what two lanes have, each
 * of them for one half of the values, as long as there are two. */
template <int N> __device__ static inline void store_sums(float (&v)[N], int shift, float *to)
{
    const int lane = (int)threadIdx.x % 32, lanes = 1 << shift;
    int first = (lane & (lanes - 1)) * N, held = N;
    bool mine = true;
#pragma unroll
    for (int i = 0; i < 5; i++) {
        const int other = 16 >> i, half = N >> (i + 1);
        const bool upper = lane & other;
        if (other < lanes) break;
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
        if (mine && k < held) to[first + k] = v[k];
}

/* This warp's share, to (1 << shift, N) floats of its own. */
template <typename T, int N> __device__ static inline void sum_rectangle(const mean_side &m, unsigned block, float *to)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = m.groups == 1 ? 0 : warp / m.slots;
    const rectangle &r = m.work[warp];
    const int64_t channel = ((((int64_t)block * m.groups + group) << m.shift) + (lane & ((1 << m.shift) - 1))) * N;
    float sum[N] = {};
    if (channel < m.channels && r.count > 0) {
        const T *data = (const T *)m.data + blockIdx.x * m.image + channel * m.apart;
        if (r.wide == r.count)
            sum_pixels<T, N, true>(data, r, lane >> m.shift, sum);
        else
            sum_pixels<T, N, false>(data, r, lane >> m.shift, sum);
    }
    store_sums<N>(sum, m.shift, to);
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

/* Tap 0 of an axis does not meet its last pixel, tap 2 not its first. */
__device__ static inline float through_tap(const float (*sums)[WIDTH], int tap, int column)
{
    const int y = tap / 3, x = tap % 3;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) sum += sums[i][column];
    if (y != 1) sum -= sums[y == 0 ? LAST_ROW : FIRST_ROW][column];
    if (x != 1) sum -= sums[x == 0 ? LAST_COLUMN : FIRST_COLUMN][column];
    if (y != 1 && x != 1) sum += sums[CORNERS + (y == 0 ? 2 : 0) + (x == 0 ? 1 : 0)][column];
    return sum;
}

/* What the block's warps have summed; n: channels of a thread. */
__device__ static inline void store_means(const mean_side &m, unsigned block, int n, const float (*sums)[WIDTH])
{
    const int width = n << m.shift, columns = m.groups * width;
    const int64_t first = (int64_t)block * columns;
    for (int o = (int)threadIdx.x; o < columns * m.taps; o += THREADS) {
        const int c = m.taps == 1 ? o : o / m.taps, k = o - c * m.taps, group = m.groups == 1 ? 0 : c / width;
        if (first + c >= m.channels) break;
        float sum = 0.0f;
        if (m.bordered)
            sum = through_tap(sums, k, c);
        else
            for (int i = 0; i < m.shares; i++) sum += sums[group * m.slots + k * m.shares + i][c - group * width];
        store_mean(m, (first + c) * m.kernel + m.tap + k, m.scale * sum);
    }
    if (block == 0 && threadIdx.x == 0 && m.last != 0.0f) store_mean(m, m.channels * m.kernel, m.last);
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

/* ---- rectangles ------------------------------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Of high x wide pixels, which are a line where they can be. */
static rectangle make_rectangle(int64_t first, int64_t down, int64_t right, int64_t high, int64_t wide)
{
    if (high <= 0 || wide <= 0) return {};
    if (wide == 1) return {first, 0, down, (int)high, (int)high, 0, 0};
    if (high == 1 || down == wide * right) return {first, 0, right, (int)(high * wide), (int)(high * wide), 0, 0};
    return {first, down, right, (int)(high * wide), (int)wide, 0, 0};
}

/* Which of an image's rows (axis 0) or columns (axis 1) tap k meets: count of them, the windows' step apart. */
static void meet(const stack *s, int axis, int k, int64_t *first, int64_t *count)
{
    const int64_t size = axis ? s->width : s->height, step = s->step[axis];
    const int64_t shift = (int64_t)k * s->dilation[axis] - s->pad[axis]; /* position o looks at o * step + shift */
    const int64_t low = shift < 0 ? abar__cuda_blocks(-shift, step) : 0;
    const int64_t high = shift < size ? least((size - 1 - shift) / step + 1, s->extent[axis]) : 0;
    *first = low * step + shift;
    *count = high - low;
}

static rectangle tap_pixels(const stack *s, int tap)
{
    int64_t y, x, high, wide;
    meet(s, 0, tap / s->kernel[1], &y, &high);
    meet(s, 1, tap % s->kernel[1], &x, &wide);
    return make_rectangle(y * s->stride[2] + x * s->stride[3], s->step[0] * s->stride[2], s->step[1] * s->stride[3], high,
                          wide);
}

static rectangle border_pixels(const stack *s, int warp)
{
    const int64_t down = s->stride[2], right = s->stride[3], bottom = (s->height - 1) * down, edge = (s->width - 1) * right;
    const int corner = warp - CORNERS;
    switch (warp) {
    case FIRST_ROW: return make_rectangle(0, down, right, 1, s->width);
    case LAST_ROW: return make_rectangle(bottom, down, right, 1, s->width);
    case FIRST_COLUMN: return make_rectangle(0, down, right, s->height, 1);
    case LAST_COLUMN: return make_rectangle(edge, down, right, s->height, 1);
    default: break;
    }
    if (warp < TOGETHER) return make_rectangle(0, down, right, s->height, s->width);
    return make_rectangle(corner / 2 * bottom + corner % 2 * edge, down, right, 1, 1);
}

/* ---- how the warps share a side ---------------------------------------------------------------------------------------- */

static bool has_borders(const stack *s)
{
    bool has = s->height >= 3 && s->width >= 3;
    for (int i = 0; i < 2; i++) has = has && s->kernel[i] == 3 && s->step[i] == 1 && s->pad[i] == 1 && s->dilation[i] == 1;
    return has;
}

/* Threads that are neighbours in memory: at a pixel, or where its channels lie apart at others. n: channels of a thread. */
static int lane_shift(const stack *s, int n)
{
    int shift = 0;
    if (n > 1)
        while (2 * n << shift <= WIDTH && s->channels % (2 * n << shift) == 0) shift++;
    else if (s->stride[1] == 1)
        while (shift < 5 && 1 << shift < s->channels) shift++;
    return shift;
}

/* Shares of a tap's rectangle: warps have whole ones of other channels before they share one of few pixels. across: warps that
 * all channels need. */
static int shares_of(const stack *s, const mean_side *m, int64_t across)
{
    int shares = 1;
    const int64_t loads = abar__cuda_blocks((s->extent[0] * s->extent[1]) << m->shift, 32); /* of a thread, if alone */
    while (2 * shares * m->taps <= WARPS && (loads > AT_ONCE * shares || across < WARPS / (m->taps * shares))) shares *= 2;
    return shares;
}

/* Taps from `tap` on, as many as there are warps. */
static void share_side(mean_side *m, const stack *s, abar_dtype dtype, int tap)
{
    const int wide = dtype == ABAR_BF16 ? 8 : dtype == ABAR_F32 ? 4 : 1;
    m->data = s->data;
    m->image = s->stride[0];
    m->apart = s->stride[1];
    m->channels = s->channels;
    m->vectors = wide > 1 && fits_vectors(s, wide, 16 / wide);
    m->bordered = has_borders(s);
    m->shift = lane_shift(s, m->vectors ? wide : 1);
    m->kernel = s->kernel[0] * s->kernel[1];
    m->tap = tap;
    m->taps = (int)least(m->kernel - tap, WARPS);
    const int64_t across = abar__cuda_blocks(s->channels, (m->vectors ? wide : 1) << m->shift);
    m->shares = m->bordered ? TOGETHER : shares_of(s, m, across);
    m->slots = m->bordered ? WARPS : m->taps * m->shares;
    m->groups = WARPS / m->slots;
    m->blocks = (unsigned)abar__cuda_blocks(across, m->groups);
    for (int warp = 0; warp < m->groups * m->slots; warp++) {
        const int slot = warp % m->slots, places = 32 >> m->shift;
        const bool shared = !m->bordered || slot < TOGETHER;
        m->work[warp] = m->bordered ? border_pixels(s, slot) : tap_pixels(s, tap + slot / m->shares);
        m->work[warp].start = shared ? slot % m->shares * places : 0;
        m->work[warp].step = shared ? m->shares * places : places;
    }
}

static void launch_means(abar_device *dev, abar_dtype dtype, int64_t images, const both_means *both)
{
    const dim3 grid((unsigned)images, both->a.blocks + both->p.blocks);
    if (grid.x == 0 || grid.y == 0) return;
    switch (dtype) {
    case ABAR_F32: abar__cuda_launch(dev, mean_images<float, 4>, grid, dim3(THREADS), 0, *both); break;
    case ABAR_BF16: abar__cuda_launch(dev, mean_images<bf16, 8>, grid, dim3(THREADS), 0, *both); break;
    case ABAR_F16: abar__cuda_launch(dev, mean_images<__half, 1>, grid, dim3(THREADS), 0, *both); break;
    case ABAR_F64: abar__cuda_launch(dev, mean_images<double, 1>, grid, dim3(THREADS), 0, *both); break;
    default: break; /* observe takes no others */
    }
}

/* ---- entries ------------------------------------------------------------------------------------------------------------ */

/* Where means go: rows or pairs; neither: not wanted. */
typedef struct target {
    float *rows;
    void *pairs;
} target;

static bool is_wanted(target t) { return t.rows || t.pairs; }

static mean_side side_of(const stack *s, abar_dtype dtype, int64_t d, target to, int tap)
{
    mean_side m = {};
    m.rows = to.rows;
    m.pairs = (bf16 *)to.pairs;
    m.pitch = to.pairs ? abar__cuda_pairs_pitch(d) : d;
    m.scale = (float)s->scale;
    m.last = (float)s->last;
    share_side(&m, s, dtype, tap);
    return m;
}

/* One launch where both are of one type and windows have no more taps than a block has warps. */
static void find_means(abar_device *dev, const abar__rows *r, target inputs, target grads)
{
    stack a = input_stack(r, true), p = stack_of(r, &r->output_grad, r->out, true);
    both_means both = {};
    a.scale = 1.0 / (double)r->per_example;
    a.last = r->bias ? 1.0 : 0.0;
    p.scale = r->grad_scale / (double)r->per_example;
    if (is_wanted(grads)) both.p = side_of(&p, r->output_grad.dtype, r->out, grads, 0);
    if (is_wanted(grads) && (!is_wanted(inputs) || r->input.dtype != r->output_grad.dtype)) {
        launch_means(dev, r->output_grad.dtype, r->examples, &both);
        both.p = {};
    }
    for (int tap = 0; is_wanted(inputs) && tap < a.kernel[0] * a.kernel[1]; tap += WARPS) {
        both.a = side_of(&a, r->input.dtype, abar__rows_d(r), inputs, tap);
        launch_means(dev, r->input.dtype, r->examples, &both);
        both.p = {};
    }
}

extern "C" void abar__cuda_means(abar_device *dev, const abar__rows *r, float *inputs, float *grads)
{
    find_means(dev, r, {inputs, NULL}, {grads, NULL});
}

extern "C" void abar__cuda_mean_pairs(abar_device *dev, const abar__rows *r, void *inputs, void *grads)
{
    find_means(dev, r, {NULL, inputs}, {NULL, grads});
}
