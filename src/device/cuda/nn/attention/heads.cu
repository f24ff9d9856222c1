/* Attention of sequences of at most 208 tokens in bf16 on the tensor cores, heads of 32 or 64 columns; equations in
 * attention.h. All rows of one sample and head are in a block's shared memory, so that everything is read once and backward
 * computes nothing twice: five products instead of seven. */
#include "device/cuda/nn/attention/steps.h"

#include <limits.h>

#define MOST_TILES 13 /* of 16 rows: as many as fit beside ds */
#define FEW_TILES 5   /* up to here a multiprocessor runs several blocks at once */
#define MOST_ROWS (16 * MOST_TILES)

static int tiles_of(const attention *a) { return (int)abar__cuda_blocks(a->length, 16); }
static bool few(const attention *a) { return tiles_of(a) <= FEW_TILES; }

/* Blocks on a multiprocessor, such that a thread has 128 registers. */
__host__ __device__ static constexpr int blocks_wanted(int tiles) { return 16 / tiles; }

/* Bytes of one matrix of a head. */
template <int D> __host__ __device__ static constexpr int part_bytes(int tiles)
{
    return tiles * 16 * tile_step<D> * (int)sizeof(bf16);
}

/* Rows first .. first + count of part 0 (q), 1 (k) or 2 (v) of a head. */
template <int D>
__device__ static inline void fetch_part(const attention &a, const bf16 *qkv, uint32_t to, unsigned strip, int part, int first,
                                         int count)
{
    copy_tile<D>(to + rows_offset<D>(first), qkv + place_of_strip(a, strip).qkv + part * part_step(a), token_step(a), first,
                 count, a.length, (int)blockDim.x);
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

/* q, k and v of a head, all rows. */
template <int D, int TILES>
__device__ static inline void fetch_head(const attention &a, const bf16 *qkv, uint32_t to, unsigned strip)
{
    for (int part = 0; part < 3; part++)
        fetch_part<D>(a, qkv, to + (uint32_t)(part * part_bytes<D>(TILES)), strip, part, 0, (int)blockDim.x / 2);
    copies_commit();
}

/* A block owns every gridDim.x-th sample and head, one at a time, and copies the next one while it computes. A warp owns 16
 * queries, counted from the end in every second head: with a causal mask two heads together are equal work for all warps. */
template <int D, int TILES, bool DROPS>
static __global__ void __launch_bounds__(32 * TILES, blocks_wanted(TILES))
    forward_kernel(attention a, const bf16 *qkv, bf16 *y, float *log_sums)
{
    extern __shared__ uint4 tile_memory[];
    const int tiles = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
    const unsigned strips = (unsigned)a.samples * (unsigned)a.heads;
    const uint32_t shared = shared_address(tile_memory), part = (uint32_t)part_bytes<D>(TILES);
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    fetch_head<D, TILES>(a, qkv, shared, blockIdx.x);
    uint32_t stage = 0;
    for (unsigned strip = blockIdx.x; strip < strips; strip += gridDim.x, stage ^= 1) {
        const uint32_t q = shared + stage * 3 * part;
        const int first = 16 * (stage ? tiles - 1 - warp : warp);
        const strip_place here = place_of_strip(a, strip);
        copies_wait<0>();
        __syncthreads();
        if (strip + gridDim.x < strips) fetch_head<D, TILES>(a, qkv, shared + (stage ^ 1) * 3 * part, strip + gridDim.x);
        forward_state<D> f;
        begin_forward(f, q + rows_offset<D>(first));
        for (int at = 0; at < (a.causal ? first + 16 : a.length); at += TILE_ROWS) {
            const uint32_t k = q + part + rows_offset<D>(at);
            forward_tile<D, DROPS>(a, first, f, k, k + part, at, when, here.query);
        }
        store_queries(a, here, first, f, y, log_sums);
    }
}

/* ---- backward ------------------------------------------------------------------------------------------------------- */

/* Shared memory of a head of at most 16 TILES rows: q, dy, v, k, then ds (keys, queries), then two numbers per query. */
template <int D, int TILES> struct head_memory {
    static constexpr int rows = 16 * TILES, part = part_bytes<D>(TILES);
    static constexpr int q = 0, dy = part, v = 2 * part, k = 3 * part, ds = 4 * part;
    static constexpr int log_sum = ds + part_bytes<rows>(TILES), delta = log_sum + rows * (int)sizeof(float);
    static constexpr int bytes = delta + rows * (int)sizeof(float);
};

/* Rows first .. first + count of q and dy. */
template <int D, int TILES>
__device__ static inline void fetch_queries(const attention &a, const attention_memory &m, uint32_t memory, unsigned strip,
                                            int first, int count)
{
    typedef head_memory<D, TILES> h;
    fetch_part<D>(a, (const bf16 *)m.qkv, memory + h::q, strip, 0, first, count);
    copy_tile<D>(memory + h::dy + rows_offset<D>(first), (const bf16 *)m.dy + place_of_strip(a, strip).y, part_step(a), first,
                 count, a.length, (int)blockDim.x);
}

/* k of the warp's keys as the left factor, directly from global memory, because shared memory still holds the previous
 * head's k. Past the end it repeats the last row, whose results are masked. */
template <int D>
__device__ static inline void fetch_left(const attention &a, const attention_memory &m, unsigned strip, int first,
                                         uint32_t (&k)[D / 16][4])
{
    const bf16 *from = (const bf16 *)m.qkv + place_of_strip(a, strip).qkv + part_step(a) + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bf16 *row = from + min(first + (int)(threadIdx.x % 32 / 4) + 8 * h, a.length - 1) * token_step(a);
#pragma unroll
        for (int i = 0; i < D / 8; i++) k[i / 2][i % 2 * 2 + h] = *reinterpret_cast<const uint32_t *>(row + 8 * i);
    }
}

/* The other factor of delta besides dy: two threads per row, half of its columns each. */
template <int D> struct row_half {
    uint4 y[D / 16];
    float log_sum;
};

template <int D>
__device__ static inline void fetch_row(const attention &a, const attention_memory &m, unsigned strip, row_half<D> &r)
{
    const int row = min((int)threadIdx.x / 2, a.length - 1);
    const strip_place at = place_of_strip(a, strip);
    const bf16 *y = (const bf16 *)m.y + at.y + row * part_step(a) + threadIdx.x % 2 * (D / 2);
#pragma unroll
    for (int i = 0; i < D / 16; i++) r.y[i] = *reinterpret_cast<const uint4 *>(y + 8 * i);
    r.log_sum = m.log_sums[at.numbers + row];
}

/* The numbers of all queries, once dy has arrived. */
template <int D, int TILES> __device__ static inline void share_numbers(char *memory, const row_half<D> &r)
{
    typedef head_memory<D, TILES> h;
    const int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2;
    const bf16 *dy = (const bf16 *)(memory + h::dy) + row * tile_step<D> + half * (D / 2);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const pack<bf16> left = unpack(r.y[i]), right = load_pack(dy + 8 * i);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += left.v[j] * right.v[j];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    ((float *)(memory + (half ? h::log_sum : h::delta)))[row] = half ? r.log_sum : sum;
}

/* The warp's 16 keys with tiles from .. to - 1 of queries; writes ds to shared memory. */
template <int D, int TILES, bool DROPS>
__device__ static inline void key_tiles(const attention &a, char *memory, key_state<D> &s, int from, int to, uint32_t when,
                                        unsigned strip)
{
    typedef head_memory<D, TILES> h;
    const int warp = (int)threadIdx.x / 32, first = 16 * warp;
    const uint64_t base = DROPS ? place_of_strip(a, strip).query : 0;
    bf16 *ds_rows = (bf16 *)(memory + h::ds) + first * tile_step<h::rows>;
#pragma unroll 1
    for (int t = a.causal ? max(from, warp) : from; t < to; t++) {
        const int at = 16 * t;
        const uint32_t rows = shared_address(memory) + rows_offset<D>(at);
        const float *log_sum = (const float *)(memory + h::log_sum) + at, *delta = (const float *)(memory + h::delta) + at;
        float ds[2][4];
        if (at + 16 > a.length || first + 16 > a.length || (a.causal && t == warp))
            key_step<D, 16, DROPS, true>(a, first, s, rows + h::q, rows + h::dy, log_sum, delta, at, when, base, ds);
        else
            key_step<D, 16, DROPS, false>(a, first, s, rows + h::q, rows + h::dy, log_sum, delta, at, when, base, ds);
        share_gradients<16, h::rows>(ds_rows + at, ds);
    }
}

/* A block owns every gridDim.x-th sample and head, one at a time; a warp owns 16 keys for dk and dv, then 16 queries for dq.
 * As soon as a part of shared memory is no longer needed, the next head's rows are copied into it. */
template <int D, int TILES, bool DROPS>
static __global__ void __launch_bounds__(32 * TILES, blocks_wanted(TILES)) backward_kernel(attention a, attention_memory m)
{
    extern __shared__ uint4 tile_memory[];
    typedef head_memory<D, TILES> h;
    char *memory = (char *)tile_memory;
    const uint32_t shared = shared_address(memory);
    const int tiles = (int)blockDim.x / 32, half = (tiles + 1) / 2, warp = (int)threadIdx.x / 32, first = 16 * warp;
    const unsigned strips = (unsigned)a.samples * (unsigned)a.heads;
    const uint32_t when = DROPS ? dropout_when(a.key) : 0;
    const bf16 *qkv = (const bf16 *)m.qkv;
    row_half<D> row;
    key_state<D> s;
    fetch_queries<D, TILES>(a, m, shared, blockIdx.x, 0, 16 * tiles);
    fetch_part<D>(a, qkv, shared + h::v, blockIdx.x, 2, 0, 16 * tiles);
    copies_commit();
    fetch_part<D>(a, qkv, shared + h::k, blockIdx.x, 1, 0, 16 * tiles);
    copies_commit();
    fetch_row(a, m, blockIdx.x, row);
    fetch_left<D>(a, m, blockIdx.x, first, s.k);
    for (unsigned strip = blockIdx.x; strip < strips; strip += gridDim.x) {
        const unsigned next = strip + gridDim.x;
        copies_wait<1>(); /* all but k */
        __syncthreads();
        share_numbers<D, TILES>(memory, row);
        load_left<D>(s.v, shared + h::v + rows_offset<D>(first));
        clear_keys(s);
        __syncthreads();
        if (next < strips) fetch_part<D>(a, qkv, shared + h::v, next, 2, 0, 16 * tiles);
        copies_commit();
        key_tiles<D, TILES, DROPS>(a, memory, s, 0, half, when, strip);
        __syncthreads();
        if (next < strips) fetch_queries<D, TILES>(a, m, shared, next, 0, 16 * half);
        copies_commit();
        key_tiles<D, TILES, DROPS>(a, memory, s, half, tiles, when, strip);
        store_keys(a, m, place_of_strip(a, strip), first, s);
        copies_wait<2>(); /* k as well */
        __syncthreads();
        if (next < strips) {
            fetch_queries<D, TILES>(a, m, shared, next, 16 * half, 16 * (tiles - half));
            fetch_row(a, m, next, row);
            fetch_left<D>(a, m, next, first, s.k);
        }
        copies_commit();
        float dq[D / 8][4] = {};
        for (int t = 0; t < (a.causal ? warp + 1 : tiles); t++)
            multiply_gradients<D, h::rows>(
                dq, shared + h::ds + rows_offset<h::rows>(16 * t) + (uint32_t)(first * (int)sizeof(bf16)),
                shared + h::k + rows_offset<D>(16 * t));
        if (m.dqkv) store_dq<D>(a, m, place_of_strip(a, strip), first, dq);
        __syncthreads();
        if (next < strips) fetch_part<D>(a, qkv, shared + h::k, next, 1, 0, 16 * tiles);
        copies_commit();
    }
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

template <int D, int TILES> static constexpr size_t forward_bytes = 6 * part_bytes<D>(TILES);
template <int D, int TILES> static constexpr size_t backward_bytes = head_memory<D, TILES>::bytes;

template <int D, int TILES, bool DROPS> static abar_status prepare_as(abar_device *dev)
{
    ABAR_TRY(abar__attention_allow(dev, (const void *)forward_kernel<D, TILES, DROPS>, forward_bytes<D, TILES>));
    return abar__attention_allow(dev, (const void *)backward_kernel<D, TILES, DROPS>, backward_bytes<D, TILES>);
}

template <int D, int TILES> static abar_status prepare_both(abar_device *dev)
{
    ABAR_TRY((prepare_as<D, TILES, false>(dev)));
    return prepare_as<D, TILES, true>(dev);
}

static abar_status prepare(abar_device *dev, const attention *a)
{
    if (a->side || a->length > MOST_ROWS || (a->width != 32 && a->width != 64)) return ABAR_E_UNSUPPORTED;
    if (a->samples * a->heads > INT_MAX) return ABAR_E_UNSUPPORTED;
    if (a->width == 32) return few(a) ? prepare_both<32, FEW_TILES>(dev) : prepare_both<32, MOST_TILES>(dev);
    return few(a) ? prepare_both<64, FEW_TILES>(dev) : prepare_both<64, MOST_TILES>(dev);
}

/* As many blocks as run at once, or as there are heads. Forward fits where backward does. */
template <int D, int TILES> static int blocks_as(abar_device *dev, const attention *a)
{
    int resident = 0;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &resident, (const void *)backward_kernel<D, TILES, false>, 32 * tiles_of(a), backward_bytes<D, TILES>);
    if (error != cudaSuccess || resident < 1) resident = 1;
    const int64_t wanted = (int64_t)resident * abar__cuda_of(dev)->processors, strips = a->samples * a->heads;
    return (int)(wanted < strips ? wanted : strips);
}

static int blocks(abar_device *dev, const attention *a)
{
    if (a->width == 32) return few(a) ? blocks_as<32, FEW_TILES>(dev, a) : blocks_as<32, MOST_TILES>(dev, a);
    return few(a) ? blocks_as<64, FEW_TILES>(dev, a) : blocks_as<64, MOST_TILES>(dev, a);
}

template <int D, int TILES, bool DROPS>
static void launch_forward(abar_device *dev, const attention *a, const attention_memory *m)
{
    abar__cuda_launch(dev, forward_kernel<D, TILES, DROPS>, dim3((unsigned)m->blocks), dim3((unsigned)(32 * tiles_of(a))),
                      forward_bytes<D, TILES>, *a, (const bf16 *)m->qkv, (bf16 *)m->y, m->log_sums);
}

template <int D, int TILES, bool DROPS>
static void launch_backward(abar_device *dev, const attention *a, const attention_memory *m)
{
    abar__cuda_launch(dev, backward_kernel<D, TILES, DROPS>, dim3((unsigned)m->blocks), dim3((unsigned)(32 * tiles_of(a))),
                      backward_bytes<D, TILES>, *a, *m);
}

template <int D, bool DROPS> static void forward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    few(a) ? launch_forward<D, FEW_TILES, DROPS>(dev, a, m) : launch_forward<D, MOST_TILES, DROPS>(dev, a, m);
}

template <int D, bool DROPS> static void backward_as(abar_device *dev, const attention *a, const attention_memory *m)
{
    few(a) ? launch_backward<D, FEW_TILES, DROPS>(dev, a, m) : launch_backward<D, MOST_TILES, DROPS>(dev, a, m);
}

static void forward(abar_device *dev, const attention *a, const attention_memory *m)
{
    by_width_and_dropout(a, [&]<int D, bool DROPS>() { forward_as<D, DROPS>(dev, a, m); });
}

static void backward(abar_device *dev, const attention *a, const attention_memory *m)
{
    by_width_and_dropout(a, [&]<int D, bool DROPS>() { backward_as<D, DROPS>(dev, a, m); });
}

const attention_kernels abar__attention_heads = {prepare, forward, backward, blocks};
