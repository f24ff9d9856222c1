/* Shared by the kernels of wide.cu: tiles of 64 rows of a head in shared memory, 128 bytes each, in the pattern of
 * core/wgmma.h; bringing them, and products with them. A group (64, columns) of an accumulator has the layout of wgmma.h: two
 * neighbouring chunks of 8 columns are a chunk of 16 of a left factor. */
#ifndef ABAR_CUDA_ATTENTION_WIDE_H
#define ABAR_CUDA_ATTENTION_WIDE_H

#include "device/cuda/core/tma.h"
#include "device/cuda/core/wgmma.h"
#include "device/cuda/nn/attention/steps.h"

#include <limits.h>

#define WIDTH 64
#define ROWS 64 /* of a group and of a tile */
#define TILE_SIZE (ROWS * WIDTH * (uint32_t)sizeof(bf16))
#define PLACE (2 * TILE_SIZE) /* k and v, or q and dy */
#define GROUPS 2              /* forward, dq */
#define PLACES 4
#define KEY_PLACES 3
#define ALIGNED 1024

/* Tensor maps of the copy engine, of four dimensions: columns of a head, heads (of q, k and v one after another), tokens,
 * samples. */
typedef struct attention_maps {
    CUtensorMap qkv, dy;
} attention_maps;

/* ---- bringing --------------------------------------------------------------------------------------------------------- */

typedef struct owner {
    int64_t sample;
    unsigned strip;
    int head, first; /* row of the block */
} owner;

/* With a causal mask rows have unequal work: the blocks with the most work begin first. */
__device__ static inline owner owner_of(const attention &a, int rows, bool last_first)
{
    const unsigned tiles = (unsigned)((a.length + rows - 1) / rows), strips = gridDim.x / tiles;
    const unsigned tile = a.causal ? blockIdx.x / strips : blockIdx.x % tiles;
    const unsigned strip = a.causal ? blockIdx.x % strips : blockIdx.x / tiles;
    return {strip / (unsigned)a.heads, strip, (int)(strip % (unsigned)a.heads),
            (int)(last_first ? tiles - 1 - tile : tile) * rows};
}

/* Rows `at` on of part 0 (q), 1 (k) or 2 (v). */
__device__ static inline void bring_part(const attention &a, const attention_maps &maps, const owner &o, int part, int at,
                                         uint32_t to, uint32_t turn)
{
    box_bring(to, &maps.qkv, 0, part * a.heads + o.head, at, (int)o.sample, turn);
}

/* The tile of k and v, or of q and dy, into a place. */
__device__ static inline void bring_keys(const attention &a, const attention_maps &maps, const owner &o, int at, uint32_t to,
                                         uint32_t turn)
{
    turn_expect(turn, PLACE);
    bring_part(a, maps, o, 1, at, to, turn);
    bring_part(a, maps, o, 2, at, to + TILE_SIZE, turn);
}

__device__ static inline void bring_queries(const attention &a, const attention_maps &maps, const owner &o, int at, uint32_t to,
                                            uint32_t turn)
{
    turn_expect(turn, PLACE);
    bring_part(a, maps, o, 0, at, to, turn);
    box_bring(to + TILE_SIZE, &maps.dy, 0, o.head, at, (int)o.sample, turn);
}

/* Where the places of a block begin, and its barriers in shared memory: own, whose phase ends when the block's own rows have
 * come; full and empty, one of each per place. */
typedef struct ring {
    uint32_t at, own, full, empty;
} ring;

/* arrivals: warps that leave a place before it is brought anew. */
template <int places> __device__ static inline ring create_ring(uint32_t at, const uint64_t *turns, unsigned arrivals)
{
    const ring r = {at, shared_address(turns), shared_address(turns + 1), shared_address(turns + 1 + places)};
    if (threadIdx.x == 0) {
        turn_create(r.own, 1);
        for (int i = 0; i < places; i++) {
            turn_create(r.full + 8u * (uint32_t)i, 1);
            turn_create(r.empty + 8u * (uint32_t)i, arrivals);
        }
        turns_publish();
    }
    __syncthreads();
    return r;
}

/* Tile j's place, and its barrier among `turns`. */
__device__ static inline uint32_t place_of_tile(const ring &r, int j) { return r.at + (uint32_t)(j % PLACES) * PLACE; }
__device__ static inline uint32_t turn_of_tile(uint32_t turns, int j) { return turns + 8u * (uint32_t)(j % PLACES); }
__device__ static inline unsigned parity_of_tile(int j) { return (unsigned)(j / PLACES) & 1u; }

/* By one thread of the first group, before it takes tile j: has tile j + 2 brought to where tile j - 2 was, which the other
 * group may still be reading, though not for long. */
__device__ static inline void bring_ahead(const attention &a, const attention_maps &maps, const owner &o, const ring &r, int j,
                                          int tiles)
{
    if (j < 2 || j + 2 >= tiles) return;
    turn_wait(turn_of_tile(r.empty, j - 2), parity_of_tile(j - 2));
    bring_keys(a, maps, o, (j + 2) * ROWS, place_of_tile(r, j + 2), turn_of_tile(r.full, j + 2));
}

__device__ static inline void bring_first(const attention &a, const attention_maps &maps, const owner &o, const ring &r,
                                          int tiles)
{
    for (int j = 0; j < min(tiles, PLACES); j++) bring_keys(a, maps, o, j * ROWS, place_of_tile(r, j), turn_of_tile(r.full, j));
}

/* Tile j's place, when it has come; has tiles after it brought. By all threads of a group, and then leave_tile. */
__device__ static inline uint32_t await_tile(const attention &a, const attention_maps &maps, const owner &o, const ring &r,
                                             int j, int tiles)
{
    const uint32_t place = place_of_tile(r, j);
    if (threadIdx.x == 0) bring_ahead(a, maps, o, r, j, tiles);
    __syncwarp();
    turn_wait(turn_of_tile(r.full, j), parity_of_tile(j));
    return place;
}

__device__ static inline void leave_tile(const ring &r, int j)
{
    if (threadIdx.x % 32 == 0) turn_arrive(turn_of_tile(r.empty, j));
}

/* ---- products --------------------------------------------------------------------------------------------------------- */

/* product (64, C) = the 64 rows at `left` times the transpose of the first C rows at `right`, later. */
template <int C> __device__ static inline void begin_scores(float (&product)[C / 2], uint32_t left, uint32_t right)
{
    const uint64_t a = tile_descriptor(left), b = tile_descriptor(right);
    group_begin();
#pragma unroll
    for (uint32_t k = 0; k < WIDTH / 16; k++) group_multiply_columns(product, a + 2 * k, b + 2 * k, k > 0); /* 32 bytes */
    group_commit();
}

/* sum (64, 64) += left (64, C) times the first C rows at `right`, later. */
template <int C> __device__ static inline void begin_sums(float (&sum)[32], const uint32_t (&left)[C / 16][4], uint32_t right)
{
    const uint64_t b = rows_descriptor(right, TILE_SIZE);
    group_begin();
#pragma unroll
    for (uint32_t k = 0; k < C / 16; k++) group_multiply_add_rows(sum, left[k], b + k * (16 * 128 >> 4));
    group_commit();
}

/* An accumulator as bf16 in the layout of a left factor. */
template <int C> __device__ static inline void round_scores(uint32_t (&to)[C / 16][4], const float (&s)[C / 2])
{
#pragma unroll
    for (int i = 0; i < C / 4; i++) to[i / 4][i % 4] = pair_bits(s[2 * i], s[2 * i + 1]);
}

/* Row group + 8 half of a sum times factor, written if valid. */
__device__ static inline void store_sums(bf16 *to, const float (&sum)[32], int half, float factor, bool valid)
{
    float chunks[WIDTH / 8][4];
#pragma unroll
    for (int i = 0; i < 32; i++) chunks[i / 4][i % 4] = sum[i];
    store_row<WIDTH>(to, chunks, half, factor, valid);
}

/* Which scores do not count: of queries and keys past the end, and with a causal mask of keys after the query. Counted from
 * this lane's first query and key. */
typedef struct edge {
    int queries, keys, apart;
} edge;

__device__ static inline edge edge_of(const attention &a, int query, int key)
{
    return {a.length - query, a.length - key, a.causal ? key - query : INT_MIN / 2};
}

__device__ static inline bool is_hidden(const edge &e, int query, int key)
{
    return query >= e.queries || key >= e.keys || e.apart + key > query;
}

/* This warp's group in its block, in a form of which the compiler knows that it is the same for all lanes. */
__device__ static inline int own_group(void) { return (int)__shfl_sync(0xffffffffu, threadIdx.x / 128, 0); }

/* This lane's first row in its group, and its first column in each chunk. */
__device__ static inline int lane_row(void) { return (int)(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4); }
__device__ static inline int lane_column(void) { return (int)(2 * (threadIdx.x % 4)); }

/* ---- the host's side ---------------------------------------------------------------------------------------------------- */

/* Whether the device has the instructions that this is compiled for. */
static inline abar_status has_wide_products(abar_device *dev, bool *has)
{
    int major = 0, minor = 0;
    CUDA_TRY(dev, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, dev->ordinal));
    CUDA_TRY(dev, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, dev->ordinal));
    *has = major == 9 && minor == 0;
    return ABAR_OK;
}

#endif
