/* The orthogonaliser: small blocks in one launch (orthogonalise_small.cu), large ones in groups of equal size. A group's X are
 * packed one behind the other, multiplied in batches (orthogonalise_products.cu), and written back:
 *
 *     norms   of u, as X rounds it; the last tile of a block decides its factor and its verdict
 *     pack    X = factor u, transposed where that has fewer rows
 *     products
 *     rows    NorMuon: sums of squares of O's rows; the last tile updates the moments
 *     unpack  out = scale O; the last tile clears a block whose O is not finite
 *
 * Sums are in double precision and in a fixed order: the squares of a float neither overflow nor vanish. */
#include "device/cuda/core/core_impl.h"
#include "device/cuda/step/orthogonalise_impl.h"

#include <stdlib.h>
#include <string.h>

enum { THREADS = 256, WARPS = THREADS / 32, TILE = ABAR_NS_TILE };

/* What kernels find out about a block. */
typedef struct block_state {
    double factor; /* of X; of O's rows beside their own divisor, with moments */
    int32_t bad;   /* u or O is not finite */
} block_state;

/* What every kernel of a group gets; device memory. */
typedef struct passes {
    abar__ns_polynomial polynomial;
    abar__ns_group group;
    const abar__ns_item *items; /* of the group */
    block_state *states;        /* (count) */
    unsigned *tickets;          /* (count), zero between kernels */
    double *sums;               /* (count, of_block): partial sums of a block's tiles, or of its rows */
    int64_t of_block;
    const int32_t *skip;
    int32_t *verdict;
} passes;

struct abar__cuda_orthogonaliser {
    int n, n_small, n_groups;
    bool exact, moments;
    size_t small_shared; /* bytes of shared memory of the largest small block */
    abar__ns_polynomial polynomial;
    abar__ns_blas blas;
    abar__ns_group *groups;      /* (n), n_groups of them used */
    abar__ns_products *products; /* (n), likewise */
    int64_t *of_block;           /* (n), likewise: sums of a block */
    abar__ns_item *host;         /* (n) pinned: small ones, the largest first, then by groups */
    int32_t *order;              /* (n): which block an item is */
    char *memory;                /* items, states, tickets, sums; then blas's */
    size_t memory_bytes;
    abar__ns_item *items;
    block_state *states;
    unsigned *tickets;
    double *sums;
    cudaEvent_t sent;
};

/* ---- tiles
 * -------------------------------------------------------------------------------------------------------------------- */

/* A tile of X: elements (i, j) .. (i + TILE - 1, j + TILE - 1) of a block. */
typedef struct tile {
    int block, i, j;
    int tiles; /* of the block */
} tile;

__device__ static inline tile my_tile(const abar__ns_group &g)
{
    const int tiles = g.tiles_r * g.tiles_c, t = (int)(blockIdx.x % (unsigned)tiles);
    return {(int)(blockIdx.x / (unsigned)tiles), t / g.tiles_c * TILE, t % g.tiles_c * TILE, tiles};
}

/* Calls visit(row, column, i, j) for all elements of the tile, those beyond the block included: row and column are the
 * block's, i and j the tile's. The threads of a warp have neighbouring columns. */
template <typename Visit> __device__ static inline void for_block(const abar__ns_item &item, const tile &t, Visit visit)
{
    const int row0 = item.transposed ? t.j : t.i, column0 = item.transposed ? t.i : t.j;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int k = 0; k < TILE / WARPS; k++) {
#pragma unroll
        for (int half = 0; half < TILE; half += 32) {
            const int y = warp + k * WARPS, x = lane + half;
            visit(row0 + y, column0 + x, item.transposed ? x : y, item.transposed ? y : x);
        }
    }
}

__device__ static inline bool is_inside(const abar__ns_item &item, int row, int column)
{
    return row < item.rows && column < item.columns;
}

/* Calls visit(i, j) for every other element of the tile of X, as far as X reaches with its padding. */
template <typename Visit> __device__ static inline void for_pairs(const abar__ns_group &g, const tile &t, Visit visit)
{
    const int j = threadIdx.x % 32 * 2;
#pragma unroll
    for (int k = 0; k < TILE / WARPS; k++) {
        const int i = threadIdx.x / 32 + k * WARPS;
        if (t.i + i < g.r && t.j + j < g.c) visit(i, j);
    }
}

template <typename T> __device__ static inline T *pair_at(T *x, const abar__ns_group &g, const tile &t, int i, int j)
{
    return x + ((int64_t)t.block * g.r + t.i + i) * g.c + t.j + j;
}

__device__ static inline void store_pair(float *to, float v, float w) { *reinterpret_cast<float2 *>(to) = make_float2(v, w); }
__device__ static inline void store_pair(bf16 *to, float v, float w)
{
    *reinterpret_cast<__nv_bfloat162 *>(to) = __floats2bfloat162_rn(v, w);
}

__device__ static inline float2 load_pair(const float *from) { return *reinterpret_cast<const float2 *>(from); }
__device__ static inline float2 load_pair(const bf16 *from)
{
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(from));
}

template <typename T> __device__ static inline float rounded(float v);
template <> __device__ inline float rounded<float>(float v) { return v; }
template <> __device__ inline float rounded<bf16>(float v) { return __bfloat162float(__float2bfloat16_rn(v)); }

typedef float tile_memory[TILE][TILE + 1];

template <typename T>
__device__ static inline void read_tile(const T *x, const abar__ns_group &g, const tile &t, tile_memory &to)
{
    for_pairs(g, t, [&](int i, int j) {
        const float2 v = load_pair(pair_at(x, g, t, i, j));
        to[i][j] = v.x;
        to[i][j + 1] = v.y;
    });
    __syncthreads();
}

/* ---- passes
 * ------------------------------------------------------------------------------------------------------------------- */

template <typename T> __global__ __launch_bounds__(THREADS) static void find_norms(const passes s)
{
    __shared__ double shared[32];
    if (s.skip && *s.skip) return;
    const tile t = my_tile(s.group);
    const abar__ns_item item = s.items[t.block];
    double *sums = s.sums + t.block * s.of_block, sum = 0.0;
    for_block(item, t, [&](int row, int column, int, int) {
        if (!is_inside(item, row, column)) return;
        const double v = (double)rounded<T>(item.in[(int64_t)row * item.columns + column]);
        sum += v * v;
    });
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) sums[blockIdx.x % (unsigned)t.tiles] = sum;
    if (!last_block(&s.tickets[t.block], (unsigned)t.tiles)) return;
    sum = 0.0;
    for (int i = threadIdx.x; i < t.tiles; i += THREADS) sum += __ldcg(&sums[i]);
    const double norm = sqrt(block_sum(sum, shared));
    if (threadIdx.x) return;
    const int32_t verdict = abar__ns_verdict(s.polynomial, norm);
    s.states[t.block] = {abar__ns_factor(s.polynomial, norm), verdict == ABAR_NS_NOT_FINITE};
    s.verdict[item.index] = verdict;
}

template <typename T> __global__ __launch_bounds__(THREADS) static void pack_blocks(const passes s, T *x)
{
    __shared__ tile_memory memory;
    if (s.skip && *s.skip) return;
    const tile t = my_tile(s.group);
    const abar__ns_item item = s.items[t.block];
    const block_state state = s.states[t.block];
    for_block(item, t, [&](int row, int column, int i, int j) {
        float v = 0.0f;
        if (is_inside(item, row, column) && !state.bad)
            v = (float)(state.factor * (double)rounded<T>(item.in[(int64_t)row * item.columns + column]));
        memory[i][j] = v;
    });
    __syncthreads();
    for_pairs(s.group, t, [&](int i, int j) { store_pair(pair_at(x, s.group, t, i, j), memory[i][j], memory[i][j + 1]); });
}

/* The last tile of a block with moments: their update, and the factor of all rows. sums: (column tiles, rows). */
__device__ static void update_moments(const passes &s, const tile &t, const abar__ns_item &item, const double *sums,
                                      double beta, double *shared)
{
    const int across = (item.columns + TILE - 1) / TILE;
    double before = 0.0, after = 0.0;
    for (int row = threadIdx.x; row < item.rows; row += THREADS)
        for (int k = 0; k < across; k++) before += __ldcg(&sums[(int64_t)k * item.rows + row]);
    before = block_sum(before, shared);
    if (!isfinite(before)) {
        if (threadIdx.x == 0) s.states[t.block].bad = 1;
        return;
    }
    for (int row = threadIdx.x; row < item.rows; row += THREADS) {
        double sum = 0.0;
        for (int k = 0; k < across; k++) sum += __ldcg(&sums[(int64_t)k * item.rows + row]);
        const float v = abar__next_moment(item.moment[row], beta, sum, item.columns);
        item.moment[row] = v;
        const double divisor = (double)abar__row_divisor(v);
        after += sum / (divisor * divisor);
    }
    after = block_sum(after, shared);
    if (threadIdx.x == 0) s.states[t.block].factor = sqrt(before) / (sqrt(after) + ABAR_NORMUON_EPS);
}

/* Of blocks with moments. */
template <typename T> __global__ __launch_bounds__(THREADS) static void sum_rows(const passes s, const T *x, double beta)
{
    __shared__ tile_memory memory;
    __shared__ double shared[32];
    if (s.skip && *s.skip) return;
    const tile t = my_tile(s.group);
    const abar__ns_item item = s.items[t.block];
    if (!item.moment || s.states[t.block].bad) return;
    const int row0 = item.transposed ? t.j : t.i, column0 = item.transposed ? t.i : t.j, lane = threadIdx.x % 32;
    double *sums = s.sums + t.block * s.of_block;
    read_tile(x, s.group, t, memory);
    for (int y = threadIdx.x / 32; y < TILE; y += WARPS) {
        double sum = 0.0;
        for (int column = lane; column < TILE; column += 32) {
            if (!is_inside(item, row0 + y, column0 + column)) continue;
            const double v = (double)(item.transposed ? memory[column][y] : memory[y][column]);
            sum += v * v;
        }
        sum = warp_sum(sum);
        if (lane == 0 && row0 + y < item.rows && column0 < item.columns)
            sums[(int64_t)(column0 / TILE) * item.rows + row0 + y] = sum;
    }
    if (!last_block(&s.tickets[t.block], (unsigned)t.tiles)) return;
    update_moments(s, t, item, sums, beta, shared);
}

template <typename T> __global__ __launch_bounds__(THREADS) static void unpack_blocks(const passes s, const T *x)
{
    __shared__ tile_memory memory;
    if (s.skip && *s.skip) return;
    const tile t = my_tile(s.group);
    const abar__ns_item item = s.items[t.block];
    const block_state state = s.states[t.block];
    const float scale = item.moment ? (float)(item.scale * state.factor) : item.scale;
    bool good = true;
    read_tile(x, s.group, t, memory);
    for_block(item, t, [&](int row, int column, int i, int j) {
        if (!is_inside(item, row, column)) return;
        const float v = memory[i][j], f = item.moment ? scale / abar__row_divisor(item.moment[row]) : scale;
        good = good && isfinite(v);
        item.out[(int64_t)row * item.columns + column] = state.bad ? 0.0f : f * v;
    });
    if (!good) s.states[t.block].bad = 1; /* several threads may write the same value */
    if (!last_block(&s.tickets[t.block], (unsigned)t.tiles) || !__ldcg(&s.states[t.block].bad)) return;
    for (int64_t i = threadIdx.x; i < (int64_t)item.rows * item.columns; i += THREADS) item.out[i] = 0.0f;
    if (threadIdx.x == 0) s.verdict[item.index] = ABAR_NS_NOT_FINITE;
}

/* ---- making
 * -------------------------------------------------------------------------------------------------------------------- */

/* A block's place in the list of items. */
typedef struct place {
    int32_t block, r, c; /* r, c: padded, 0 for a small one */
    int64_t count;
} place;

/* Small blocks first, the largest of them in front: they take longest. Then by shapes, which keep the caller's order. */
static int by_group(const void *pa, const void *pb)
{
    const place *a = (const place *)pa, *b = (const place *)pb;
    if (a->r != b->r) return a->r < b->r ? -1 : 1;
    if (a->c != b->c) return a->c < b->c ? -1 : 1;
    if (a->r == 0 && a->count != b->count) return a->count > b->count ? -1 : 1;
    return a->block < b->block ? -1 : a->block > b->block;
}

static int up(int64_t n) { return (int)((n + ABAR_NS_PAD - 1) / ABAR_NS_PAD * ABAR_NS_PAD); }

static void sort_blocks(abar_device *dev, abar__cuda_orthogonaliser *o, const abar__ns_block *blocks, place *places)
{
    for (int i = 0; i < o->n; i++) {
        const int64_t rows = blocks[i].rows, columns = blocks[i].columns;
        const size_t shared = abar__ns_small_bytes(dev, rows, columns, o->exact);
        places[i] = {i, up(rows < columns ? rows : columns), up(rows < columns ? columns : rows), rows * columns};
        if (shared) places[i].r = places[i].c = 0;
        if (shared > o->small_shared) o->small_shared = shared;
        o->moments = o->moments || blocks[i].row_moment;
    }
    qsort(places, (size_t)o->n, sizeof *places, by_group);
    for (int i = 0; i < o->n; i++) {
        o->order[i] = places[i].block;
        if (places[i].r == 0) {
            o->n_small++;
            continue;
        }
        if (i == o->n_small || places[i].r != places[i - 1].r || places[i].c != places[i - 1].c)
            o->groups[o->n_groups++] = {i,
                                        0,
                                        places[i].r,
                                        places[i].c,
                                        (int32_t)abar__cuda_blocks(places[i].r, TILE),
                                        (int32_t)abar__cuda_blocks(places[i].c, TILE)};
        o->groups[o->n_groups - 1].count++;
    }
}

static void fill_items(abar__cuda_orthogonaliser *o, const abar__ns_block *blocks)
{
    for (int i = 0; i < o->n; i++) {
        const abar__ns_block *b = &blocks[o->order[i]];
        o->host[i] = {(const float *)b->in, (float *)b->out, (float *)b->row_moment, (float)b->scale, (int32_t)b->rows,
                      (int32_t)b->columns,  o->order[i],     b->rows > b->columns};
    }
}

static abar_status send(abar_device *dev, abar__cuda_orthogonaliser *o)
{
    const cudaStream_t stream = abar__cuda_of(dev)->stream;
    CUDA_TRY(dev, cudaMemcpyAsync(o->items, o->host, (size_t)o->n * sizeof *o->items, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(dev, cudaEventRecord(o->sent, stream));
    return ABAR_OK;
}

/* Sums of one block of a group: of its tiles, or of its rows by column tiles, transposed or not. */
static int64_t sums_of_block(const abar__cuda_orthogonaliser *o, const abar__ns_group *g)
{
    const int64_t tiles = (int64_t)g->tiles_r * g->tiles_c, upright = (int64_t)g->r * g->tiles_c,
                  turned = (int64_t)g->c * g->tiles_r;
    if (!o->moments) return tiles;
    return upright > turned ? upright : turned;
}

static void *carve(char *memory, size_t *at, size_t bytes)
{
    void *here = memory ? memory + *at : NULL;
    *at += abar__round_up(bytes, 256); /* as cuBLASLt wants its matrices */
    return here;
}

/* Sets all pointers into memory and returns how many bytes are needed; memory NULL: bytes only. */
static size_t set_layout(abar__cuda_orthogonaliser *o, char *memory)
{
    const size_t n = (size_t)o->n, element = o->exact ? sizeof(float) : sizeof(bf16);
    size_t at = 0, sums = 0, x = 0, s = 0;
    for (int i = 0; i < o->n_groups; i++) {
        const abar__ns_group *g = &o->groups[i];
        const size_t count = (size_t)g->count, of_x = count * (size_t)g->r * (size_t)g->c, of_s = count * (size_t)g->r * g->r;
        o->of_block[i] = sums_of_block(o, g);
        sums = count * (size_t)o->of_block[i] > sums ? count * (size_t)o->of_block[i] : sums;
        x = of_x > x ? of_x : x;
        s = of_s > s ? of_s : s;
    }
    o->items = (abar__ns_item *)carve(memory, &at, n * sizeof *o->items);
    o->states = (block_state *)carve(memory, &at, n * sizeof *o->states);
    o->tickets = (unsigned *)carve(memory, &at, n * sizeof *o->tickets);
    o->sums = (double *)carve(memory, &at, sums * sizeof *o->sums);
    for (int i = 0; i < 2; i++) o->blas.x[i] = carve(memory, &at, x * element);
    o->blas.s = carve(memory, &at, s * element);
    o->blas.b = carve(memory, &at, s * element);
    o->blas.workspace = carve(memory, &at, o->n_groups > 0 ? ABAR_NS_WORKSPACE : 0);
    return at;
}

static void fill_polynomial(const abar__ns *ns, abar__ns_polynomial *p)
{
    p->steps = ns->steps;
    p->safety = ns->safety;
    p->eps = ns->eps;
    for (int k = 0; k < ns->steps; k++)
        for (int i = 0; i < 3; i++) p->c[k][i] = (float)ns->c[k][i];
}

static abar_status make_groups(abar_device *dev, abar__cuda_orthogonaliser *o, const abar__ns_block *blocks)
{
    place *places;
    ABAR_TRY(abar__alloc(dev->ctx, (size_t)o->n * sizeof *places, (void **)&places));
    sort_blocks(dev, o, blocks, places);
    abar__free(dev->ctx, places, (size_t)o->n * sizeof *places);
    for (int i = 0; i < o->n_groups; i++) {
        const abar__ns_group *g = &o->groups[i];
        if ((int64_t)g->count * g->tiles_r * g->tiles_c > INT32_MAX)
            return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED,
                              "muon: %d matrices of %d x %d are too many for one launch, split them", g->count, g->r, g->c);
    }
    return ABAR_OK;
}

static abar_status make(abar_device *dev, abar__cuda_orthogonaliser *o, const abar__ns_block *blocks)
{
    const size_t n = (size_t)o->n;
    CUDA_TRY(dev, cudaSetDevice(dev->ordinal));
    ABAR_TRY(abar__alloc(dev->ctx, n * sizeof *o->groups, (void **)&o->groups));
    ABAR_TRY(abar__alloc(dev->ctx, n * sizeof *o->products, (void **)&o->products));
    ABAR_TRY(abar__alloc(dev->ctx, n * sizeof *o->of_block, (void **)&o->of_block));
    ABAR_TRY(abar__alloc(dev->ctx, n * sizeof *o->order, (void **)&o->order));
    ABAR_TRY(abar__cuda_pinned(dev, n * sizeof *o->host, (void **)&o->host));
    ABAR_TRY(make_groups(dev, o, blocks));
    if (o->n_groups > 0) ABAR_TRY(abar__ns_blas_open(dev, &o->blas));
    if (o->n_small > 0) ABAR_TRY(abar__ns_small_prepare(dev));
    CUDA_TRY(dev, cudaEventCreateWithFlags(&o->sent, cudaEventDisableTiming));
    o->memory_bytes = set_layout(o, NULL);
    ABAR_TRY(abar_device_alloc(dev, o->memory_bytes, (void **)&o->memory)); /* zeroed: tickets start at 0 */
    set_layout(o, o->memory);
    for (int i = 0; i < o->n_groups; i++)
        ABAR_TRY(abar__ns_products_create(dev, &o->blas, &o->groups[i], !dev->config.deterministic, &o->products[i]));
    fill_items(o, blocks);
    return send(dev, o);
}

extern "C" void abar__cuda_orthogonaliser_destroy(abar_device *dev, abar__cuda_orthogonaliser *o)
{
    if (!o) return;
    const size_t n = (size_t)o->n;
    cudaSetDevice(dev->ordinal);
    cudaStreamSynchronize(abar__cuda_of(dev)->stream);
    for (int i = 0; i < o->n_groups; i++) abar__ns_products_destroy(&o->blas, &o->products[i]);
    abar__ns_blas_close(&o->blas);
    if (o->sent) cudaEventDestroy(o->sent);
    abar_device_free(dev, o->memory, o->memory_bytes);
    abar__cuda_pinned_free(dev, o->host, n * sizeof *o->host);
    abar__free(dev->ctx, o->order, n * sizeof *o->order);
    abar__free(dev->ctx, o->of_block, n * sizeof *o->of_block);
    abar__free(dev->ctx, o->products, n * sizeof *o->products);
    abar__free(dev->ctx, o->groups, n * sizeof *o->groups);
    abar__free(dev->ctx, o, sizeof *o);
}

extern "C" abar_status abar__cuda_orthogonaliser_create(abar_device *dev, const abar__ns *ns, const abar__ns_block *blocks,
                                                        int n, bool exact, abar__cuda_orthogonaliser **out)
{
    *out = NULL;
    abar__cuda_orthogonaliser *o;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *o, (void **)&o));
    o->n = n;
    o->exact = o->blas.exact = exact;
    fill_polynomial(ns, &o->polynomial);
    const abar_status status = n > 0 ? make(dev, o, blocks) : ABAR_OK;
    if (status < 0) {
        abar__cuda_orthogonaliser_destroy(dev, o);
        return status;
    }
    *out = o;
    return ABAR_OK;
}

extern "C" size_t abar__cuda_orthogonaliser_bytes(const abar__cuda_orthogonaliser *o)
{
    if (!o) return 0;
    const size_t each = sizeof *o->groups + sizeof *o->products + sizeof *o->of_block + sizeof *o->host + sizeof *o->order;
    return sizeof *o + (size_t)o->n * each + o->memory_bytes;
}

extern "C" abar_status abar__cuda_orthogonaliser_rebind(abar_device *dev, abar__cuda_orthogonaliser *o,
                                                        const abar__ns_block *blocks)
{
    if (o->n == 0) return ABAR_OK;
    for (int i = 0; i < o->n; i++) {
        const abar__ns_block *b = &blocks[o->order[i]];
        if (o->host[i].rows != b->rows || o->host[i].columns != b->columns || !o->host[i].moment != !b->row_moment)
            return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "muon: blocks of other sizes need another orthogonaliser");
    }
    CUDA_TRY(dev, cudaEventSynchronize(o->sent)); /* what was sent before has left this memory */
    fill_items(o, blocks);
    return send(dev, o);
}

/* ---- running
 * ------------------------------------------------------------------------------------------------------------------- */

template <typename T>
static abar_status run_group(abar_device *dev, const abar__cuda_orthogonaliser *o, int i, passes s, double beta)
{
    const abar__ns_group *g = &o->groups[i];
    const dim3 blocks((unsigned)(g->count * g->tiles_r * g->tiles_c)), threads(THREADS);
    bool moments = false;
    int result;
    s.group = *g;
    s.items += g->first;
    s.states += g->first;
    s.tickets += g->first;
    s.of_block = o->of_block[i];
    abar__cuda_launch(dev, find_norms<T>, blocks, threads, 0, s);
    abar__cuda_launch(dev, pack_blocks<T>, blocks, threads, 0, s, (T *)o->blas.x[0]);
    ABAR_TRY(abar__ns_products_run(dev, &o->blas, &o->products[i], &o->polynomial, &result));
    const T *x = (const T *)o->blas.x[result];
    for (int k = 0; k < g->count; k++) moments = moments || o->host[g->first + k].moment;
    if (moments) abar__cuda_launch(dev, sum_rows<T>, blocks, threads, 0, s, x, beta);
    abar__cuda_launch(dev, unpack_blocks<T>, blocks, threads, 0, s, x);
    return ABAR_OK;
}

extern "C" abar_status abar__cuda_orthogonaliser_run(abar_device *dev, abar__cuda_orthogonaliser *o, double normuon_beta,
                                                     const int32_t *skip, int32_t *verdict)
{
    const passes s = {.polynomial = o->polynomial,
                      .group = {},
                      .items = o->items,
                      .states = o->states,
                      .tickets = o->tickets,
                      .sums = o->sums,
                      .of_block = 0,
                      .skip = skip,
                      .verdict = verdict};
    if (o->n_small > 0)
        abar__ns_small_run(dev, &o->polynomial, o->items, o->n_small, o->small_shared, o->exact, normuon_beta, skip, verdict);
    for (int i = 0; i < o->n_groups; i++)
        ABAR_TRY(o->exact ? run_group<float>(dev, o, i, s, normuon_beta) : run_group<bf16>(dev, o, i, s, normuon_beta));
    return abar__cuda_status(dev);
}
