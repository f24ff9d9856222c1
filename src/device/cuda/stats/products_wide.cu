/* Wide products of rows of bf16 (products.h) on tensor cores that read both operands from shared memory (core/wgmma.h).
 *
 * A block sums a tile, 192 columns of b by N columns of a, over a split of the positions, 64 at a step: a warp has boxes of 64
 * positions by 64 channels brought (core/tma.h) into places in turns, and three groups of warps multiply 64 columns of b each.
 * A box has the layout of an image, so b is the image from a shifted corner on, and what is outside comes as zeros: a
 * border row or column is a box one high or one wide, and where an image is smaller than a box it takes several examples. All
 * parts go this way: of 8 x 8 pixels the borders are a tenth of the work. Channels that end within 64 of a tile come as two
 * boxes of 32, each of its own tap.
 *
 * Barriers: full, when a step has come; weighed, when its columns of a have been multiplied by the examples' weights, which
 * the three other warps of the fourth group do; empty, when all groups have done with it. */
#include "device/cuda/core/mma.h"
#include "device/cuda/stats/products_wide.h"
#include "device/cuda/core/tma.h"
#include "device/cuda/core/wgmma.h"

#define DEPTH ABAR_WIDE_DEPTH
#define BOX (DEPTH * 128)
#define GROUPS (ABAR_PANEL_TILE / 64)
#define MULTIPLIERS (GROUPS * 128) /* threads */
#define THREADS (MULTIPLIERS + 128)
#define WEIGHERS 96
#define WEIGHED_ROWS (WEIGHERS / 8)                                 /* at once */
#define ROWS_OF_WEIGHER ((DEPTH + WEIGHED_ROWS - 1) / WEIGHED_ROWS) /* even: two at once */

template <int N_> struct panel_shape {
    static const int N = N_, BOXES = (N + 63) / 64; /* of a; then those of b */
    static const int STEP = (BOXES + GROUPS) * BOX, STEPS = N == 128 ? 5 : 4;
    static const int BYTES = 1024 + STEPS * STEP; /* from a multiple of 1024 on */
};

/* ---- who does what ------------------------------------------------------------------------------------------------------ */

/* The tile and the steps of a block. */
typedef struct work {
    int part, tile, split, down, left;
    int from, steps;
} work;

template <class S> __device__ static inline work work_of(const abar__wide_products &p, unsigned block)
{
    work w = {};
    while (w.part + 1 < p.s.parts && block >= p.s.part[w.part + 1].block) w.part++;
    const abar__product_part &q = p.s.part[w.part];
    const int own = (int)(block - q.block), steps = p.cuts[w.part].steps;
    w.tile = own % q.tiles;
    w.split = own / q.tiles;
    w.left = w.tile;
    for (int n; w.left >= (n = tiles_across(q, S::N, w.down)); w.down++) w.left -= n;
    w.from = (int)((int64_t)steps * w.split / q.splits);
    w.steps = (int)((int64_t)steps * (w.split + 1) / q.splits) - w.from;
    return w;
}

/* Of 64 columns of b from this one on the last 32 are another tap's. */
__device__ static inline bool in_halves(const abar__products &s, const abar__product_part &q, int column)
{
    return q.columns > s.channels && column % s.channels + 64 > s.channels;
}

/* Addresses in shared memory: the places, a multiple of 1024, and the barriers, one for each. */
typedef struct ring {
    uint32_t at, full, weighed, empty;
} ring;

template <class S> __device__ static inline uint32_t place_in(const ring &r, int step)
{
    return r.at + (uint32_t)(step % S::STEPS * S::STEP);
}
template <class S> __device__ static inline uint32_t turn_of(uint32_t turns, int step)
{
    return turns + (uint32_t)(step % S::STEPS) * 8;
}
template <class S> __device__ static inline unsigned parity_of(int step) { return (unsigned)(step / S::STEPS) & 1u; }

/* ---- bringing --------------------------------------------------------------------------------------------------------- */

/* What a lane has brought in every step. */
typedef struct source {
    const CUtensorMap *map; /* NULL: nothing */
    uint32_t to;            /* from the place on */
    int channel, y, x;      /* from the position on */
} source;

__device__ static inline source source_of(const abar__products &s, const abar__taps &taps, int columns, int column,
                                          const CUtensorMap *map, int to)
{
    if (column >= columns) return {map, (uint32_t)to, s.channels, 0, 0}; /* zeros: bytes are counted all the same */
    const place c = column_place(s, taps, columns, column);
    return {map, (uint32_t)to, column % s.channels, c.y, c.x};
}

/* Lanes 0 on: boxes of a; 8 on: both halves of the groups' boxes of b, the first being all of it where they are not apart. */
template <class S> __device__ static inline source lane_source(const abar__wide_products &p, const work &w, int lane)
{
    const abar__product_part &q = p.s.part[w.part];
    const CUtensorMap *maps = p.map[p.cuts[w.part].map];
    if (lane < S::BOXES) return source_of(p.s, p.s.taps, p.s.columns, w.left * S::N + lane * 64, &maps[0], lane * BOX);
    const int group = (lane - 8) / 2, half = lane % 2, column = w.down * ABAR_PANEL_TILE + group * 64;
    if (lane < 8 || group >= GROUPS) return {};
    const int to = (S::BOXES + group) * BOX;
    if (in_halves(p.s, q, column))
        return source_of(p.s, q.taps, q.columns, column + half * 32, &maps[1], to + half * (BOX / 2));
    return half ? source{} : source_of(p.s, q.taps, q.columns, column, &maps[0], to);
}

/* A warp. */
template <class S> __device__ static inline void bring_steps(const abar__wide_products &p, const work &w, const ring &r)
{
    const int lane = (int)threadIdx.x % 32;
    const abar__product_part &q = p.s.part[w.part];
    const abar__cut &c = p.cuts[w.part];
    const source from = lane_source<S>(p, w, lane);
    int right = w.from % c.right, down = w.from / c.right % c.down, n = w.from / c.right / c.down;
    for (int i = 0; i < w.steps; i++) {
        const uint32_t full = turn_of<S>(r.full, i);
        if (lane == 0) {
            if (i >= S::STEPS) turn_wait(turn_of<S>(r.empty, i), parity_of<S>(i - S::STEPS));
            turn_expect(full, S::STEP);
        }
        __syncwarp();
        if (from.map)
            box_bring(place_in<S>(r, i) + from.to, from.map, from.channel, (q.left + right * c.wide) * p.s.step[1] + from.x,
                      (q.top + down * c.high) * p.s.step[0] + from.y, n * c.examples, full);
        if (++right == c.right) {
            right = 0;
            if (++down == c.down) {
                down = 0;
                n++;
            }
        }
    }
}

/* ---- weighing ----------------------------------------------------------------------------------------------------------- */

__device__ static inline uint32_t weighed_pair(uint32_t pair, float w)
{
    return pair_bits(w * __uint_as_float(pair << 16), w * __uint_as_float(pair & 0xffff0000u));
}

__device__ static inline uint4 weighed(uint4 v, float w)
{
    return make_uint4(weighed_pair(v.x, w), weighed_pair(v.y, w), weighed_pair(v.z, w), weighed_pair(v.w, w));
}

/* Whose weights a thread needs: it has a row of a step's boxes and every WEIGHED_ROWS-th from there on. Divides, so that
 * nothing else has to. */
typedef struct weigher {
    int n, place;      /* example of the first row, and its position there, */
    int each;          /* of so many */
    int ahead, beside; /* examples and positions to the next row of the thread, */
    int rounds, turn;  /* steps of the same examples, and which of them this is; */
    int further[2];    /* examples and positions to the next step that has others */
} weigher;

__device__ static inline weigher first_weigher(const abar__wide_products &p, const abar__cut &c, int step, int row)
{
    const int rounds = p.line ? 1 : c.right * c.down, each = p.line ? p.line : c.wide * c.high;
    const int at = p.line ? step * DEPTH + row : row, past = at / each, next = p.line ? DEPTH : c.examples * each;
    const int ahead = WEIGHED_ROWS / each, whole = next / each;
    return {step / rounds * (p.line ? 0 : c.examples) + past,
            at - past * each,
            each,
            ahead,
            WEIGHED_ROWS - ahead * each,
            rounds,
            step % rounds,
            {whole, next - whole * each}};
}

__device__ static inline void move_on(int *n, int *place, int each, int ahead, int beside)
{
    *n += ahead;
    *place += beside;
    if (*place >= each) {
        *place -= each;
        ++*n;
    }
}

/* Of a step; w goes on to the next. */
__device__ static inline void load_weights(const abar__wide_products &p, weigher &w, float (&weights)[ROWS_OF_WEIGHER])
{
    int n = w.n, place = w.place;
#pragma unroll
    for (int k = 0; k < ROWS_OF_WEIGHER; k++) {
        weights[k] = n < p.weights ? (float)__ldg(p.s.weight + n) : 0.0f;
        move_on(&n, &place, w.each, w.ahead, w.beside);
    }
    if (++w.turn < w.rounds) return;
    w.turn = 0;
    move_on(&w.n, &w.place, w.each, w.further[0], w.further[1]);
}

/* Three warps: a thread multiplies 16 bytes of every 12th row of the boxes of a, wherever the pattern has put them. */
template <class S>
__device__ static inline void weigh_steps(const abar__wide_products &p, const work &w, const ring &r, char *memory)
{
    const int t = (int)threadIdx.x - (THREADS - WEIGHERS), row = t / 8;
    weigher own = first_weigher(p, p.cuts[w.part], w.from, row);
    for (int i = 0; i < w.steps; i++) {
        uint4 *first = (uint4 *)(memory + (place_in<S>(r, i) - r.at)) + t;
        float weights[ROWS_OF_WEIGHER];
        load_weights(p, own, weights); /* while the step is on its way */
        turn_wait(turn_of<S>(r.full, i), parity_of<S>(i));
#pragma unroll
        for (int k = 0; k < ROWS_OF_WEIGHER; k += 2) { /* two rows are on their way at once */
            const bool second = k + 2 < ROWS_OF_WEIGHER || row + (k + 1) * WEIGHED_ROWS < DEPTH;
            uint4 v[2][S::BOXES];
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int b = 0; b < S::BOXES; b++)
                    if (j == 0 || second) v[j][b] = first[(k + j) * WEIGHED_ROWS * 8 + b * BOX / 16];
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int b = 0; b < S::BOXES; b++)
                    if (j == 0 || second) first[(k + j) * WEIGHED_ROWS * 8 + b * BOX / 16] = weighed(v[j][b], weights[k + j]);
        }
        turn_written();
        turn_arrive(turn_of<S>(r.weighed, i));
    }
}

/* ---- multiplying -------------------------------------------------------------------------------------------------------- */

/* A group of warps: its 64 columns of b. A place is given back when the products behind it have begun. */
template <class S>
__device__ static inline void multiply_steps(const abar__wide_products &p, const work &w, const ring &r, float (&sum)[S::N / 2])
{
    const int group = (int)threadIdx.x / 128, lane = (int)threadIdx.x % 32;
    const bool halves = in_halves(p.s, p.s.part[w.part], w.down * ABAR_PANEL_TILE + group * 64);
    const uint32_t ahead = (halves ? 16 * 64 : 16 * 128) >> 4; /* 16 rows, as a descriptor counts */
    for (int i = 0; i < w.steps; i++) {
        const uint32_t at = place_in<S>(r, i), own = at + (uint32_t)((S::BOXES + group) * BOX);
        const uint64_t b = halves ? half_rows_descriptor(own, BOX / 2) : rows_descriptor(own, BOX);
        const uint64_t a = rows_descriptor(at, BOX);
        turn_wait(turn_of<S>(r.full, i), parity_of<S>(i));
        if (p.s.weight) turn_wait(turn_of<S>(r.weighed, i), parity_of<S>(i));
        group_begin();
#pragma unroll
        for (uint32_t k = 0; k < DEPTH / 16; k++)
            group_multiply_rows(sum, b + k * ahead, a + k * (16 * 128 >> 4), i > 0 || k > 0);
        group_commit();
        group_wait<1>();
        if (i > 0 && lane == 0) turn_arrive(turn_of<S>(r.empty, i - 1));
    }
    group_wait<0>();
    group_settle(sum);
}

/* Where a row of the panel begins for this thread: pairs of columns, eight apart. */
template <class S> __device__ static inline float *sums_place(const abar__wide_products &p, const work &w, int row)
{
    const abar__product_part &q = p.s.part[w.part];
    const int lane = (int)threadIdx.x % 4;
    return p.s.partial + q.at + w.split % q.lanes * q.floats + panel_at<S::N>(q, w.left) +
           (int64_t)(row - panel_first<S::N>(q, w.left)) * S::N + 2 * lane;
}

/* Of a lane with several splits each adds to the last one's sums, in this order; blocks of earlier splits have begun earlier,
 * so nobody waits for one that waits for workspace. The last leaves the turn as it was. */
template <class S> __device__ static inline void store_sums(const abar__wide_products &p, const work &w, float (&sum)[S::N / 2])
{
    const abar__product_part &q = p.s.part[w.part];
    const int before = w.split / q.lanes;
    const bool last = w.split + q.lanes >= q.splits;
    volatile unsigned *turn = p.turns + p.turn[w.part] + w.tile * q.lanes + w.split % q.lanes;
    const int row = w.down * ABAR_PANEL_TILE + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    if (before) {
        if (threadIdx.x == 0)
            while (*turn != (unsigned)before) continue;
        groups_meet<MULTIPLIERS>();
        __threadfence();
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float2 *to = (float2 *)sums_place<S>(p, w, row + 8 * h);
        if (row + 8 * h >= q.columns) continue;
        if (before)
#pragma unroll
            for (int j = 0; j < S::N / 8; j++) {
                const float2 v = __ldcg(to + 4 * j);
                sum[4 * j + 2 * h] += v.x;
                sum[4 * j + 2 * h + 1] += v.y;
            }
#pragma unroll
        for (int j = 0; j < S::N / 8; j++) to[4 * j] = make_float2(sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
    }
    if (last && !before) return;
    __threadfence();
    groups_meet<MULTIPLIERS>();
    if (threadIdx.x == 0) *turn = last ? 0 : (unsigned)before + 1;
}

#define AT_ONCE 4 /* loads on their way */

/* Of rows with themselves, where there is no workspace for sums: straight to the square. */
template <class S> __device__ static inline void add_sums(const abar__products &s, const work &w, const float (&sum)[S::N / 2])
{
    const int first = w.left * S::N + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int a = w.down * ABAR_PANEL_TILE + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * h;
        const int64_t i = (int64_t)(a % s.channels) * s.kernel + a / s.channels;
        int channel = first % s.channels, tap = first / s.channels;
#pragma unroll
        for (int k = 0; k < S::N / 4; k += AT_ONCE) { /* columns first, first + 1, first + 8, first + 9 ... */
            float *to[AT_ONCE], sums[AT_ONCE];
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
                const int b = first + (k + e) / 2 * 8 + e % 2;
                const int64_t j = (int64_t)channel * s.kernel + tap;
                to[e] = a < s.columns && b <= a ? s.square + (i > j ? i * s.d + j : j * s.d + i) : NULL;
                sums[e] = to[e] ? *to[e] : 0.0f;
                channel += e % 2 ? 7 : 1;
                if (channel >= s.channels) {
                    channel -= s.channels;
                    tap++;
                }
            }
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++)
                if (to[e]) *to[e] = sums[e] + s.scale * sum[(k + e) / 2 * 4 + 2 * h + e % 2];
        }
    }
}

template <class S>
static __global__ void __launch_bounds__(THREADS, 1) multiply_wide_rows(const __grid_constant__ abar__wide_products p)
{
    extern __shared__ uint4 shared[];
    __shared__ __align__(8) uint64_t turns[3][S::STEPS]; /* full, weighed, empty */
    __shared__ unsigned block;
    const uint32_t from = shared_address(shared), at = (from + 1023) / 1024 * 1024;
    const ring r = {at, shared_address(turns[0]), shared_address(turns[1]), shared_address(turns[2])};
    if (threadIdx.x == 0) {
        block = atomicInc(p.turns, gridDim.x - 1); /* in the order in which they begin; the last leaves 0 */
        for (int i = 0; i < S::STEPS; i++) {
            turn_create(turn_of<S>(r.full, i), 1);
            turn_create(turn_of<S>(r.weighed, i), WEIGHERS);
            turn_create(turn_of<S>(r.empty, i), MULTIPLIERS / 32);
        }
        turns_publish();
    }
    __syncthreads();
    const work w = work_of<S>(p, block);
    if (threadIdx.x >= MULTIPLIERS) {
        group_give_back<80>();
        if (threadIdx.x < MULTIPLIERS + 32)
            bring_steps<S>(p, w, r);
        else if (p.s.weight)
            weigh_steps<S>(p, w, r, (char *)shared + (at - from));
    } else {
        group_take<144>();
        float sum[S::N / 2] = {};
        multiply_steps<S>(p, w, r, sum);
        if (p.s.partial)
            store_sums<S>(p, w, sum);
        else
            add_sums<S>(p.s, w, sum);
    }
}

/* ---- the entry ---------------------------------------------------------------------------------------------------------- */

/* Of boxes of so many channels, in their pattern. */
static bool encode_boxes(encode_function encode, const abar__products *s, const abar__cut *c, int channels, CUtensorMap *out)
{
    const cuuint64_t sizes[4] = {(cuuint64_t)s->channels, (cuuint64_t)s->width, (cuuint64_t)s->height, (cuuint64_t)s->examples};
    const cuuint32_t steps[4] = {1, (cuuint32_t)s->step[1], (cuuint32_t)s->step[0], 1};
    const cuuint32_t box[4] = {(cuuint32_t)channels, (cuuint32_t)c->wide * steps[1], (cuuint32_t)c->high * steps[2],
                               (cuuint32_t)c->examples};
    cuuint64_t apart[3] = {(cuuint64_t)s->stride[3], (cuuint64_t)s->stride[2], (cuuint64_t)s->stride[0]}, inner = sizes[0];
    for (int i = 0; i < 3; i++) { /* of a direction with one element it may be anything but nothing */
        if (sizes[i + 1] == 1) apart[i] = inner;
        inner = apart[i] * sizes[i + 1];
        apart[i] *= sizeof(bf16);
    }
    return encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)s->data, sizes, apart, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, channels == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* False: this device has no copy engine, or it cannot bring these. */
static bool make_maps(abar_device *dev, abar__wide_products *p)
{
    int major = 0, minor = 0;
    encode_function encode = NULL;
    if (!abar__cuda_remember(dev, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev->ordinal)) ||
        !abar__cuda_remember(dev, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, dev->ordinal)))
        return false;
    if (major != 9 || minor != 0 || find_encode(dev, &encode) < 0 || !encode) return false;
    bool made = true;
    for (int i = 0; i < p->s.parts; i++)
        for (int h = 0; h < 2; h++)
            made = made && encode_boxes(encode, &p->s, &p->cuts[i], h ? 32 : 64, &p->map[p->cuts[i].map][h]);
    return made;
}

template <class S> static void launch(abar_device *dev, const abar__wide_products *p, unsigned blocks)
{
    abar__cuda_remember(dev,
                        cudaFuncSetAttribute(multiply_wide_rows<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
    abar__cuda_launch(dev, multiply_wide_rows<S>, dim3(blocks), dim3(THREADS), S::BYTES, *p);
}

extern "C" bool abar__cuda_multiply_wide_rows(abar_device *dev, abar__products *s, void *scratch, size_t bytes)
{
    const bool apart = bytes > ABAR_CUDA_WORKSPACE;
    abar__wide_products p = {};
    p.s = *s;
    p.weights = (int)s->examples;
    unsigned blocks;
    const int columns =
        abar__cuda_plan_wide(dev, &p, (int64_t)((apart ? bytes : ABAR_CUDA_WORKSPACE) / sizeof(float)), &blocks);
    if (columns == 0 || !make_maps(dev, &p)) return false;
    if (p.s.part[0].lanes) p.s.partial = apart ? (float *)scratch : (float *)abar__cuda_of(dev)->workspace;
    p.turns = abar__cuda_of(dev)->tickets;
    switch (columns) {
    case 128: launch<panel_shape<128>>(dev, &p, blocks); break;
    case 160: launch<panel_shape<160>>(dev, &p, blocks); break;
    default: launch<panel_shape<192>>(dev, &p, blocks); break;
    }
    if (p.s.partial) abar__cuda_join_panels(dev, &p.s, columns);
    return true;
}
