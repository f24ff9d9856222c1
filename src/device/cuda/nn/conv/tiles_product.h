/* y and dx of conv_tiles: positions of a tile (rows of a, from the band) times channels (columns of b, from the weights),
 * summed over taps and channels of the source, 16 at a time.
 *
 *   y[p, q, o] = sum over i, j, c of x[p S - pad + i, q S - pad + j, c] w[o, i, j, c]
 *   dx[h, w, c] = sum over i, j, o of dz[p, q, o] w[o, i, j, c] where h = p S - pad + i, w = q S - pad + j
 *
 * For stride 1 dx is a convolution of dz with the taps in reverse order. For stride 2 a tile's positions are pairs (r, q), each
 * with the four pixels (2 r + odd, 2 q + odd) of dx, one set of sums per parity. Along one axis, K = 3, pad = 1: the even pixel
 * 2 r gets tap 1 of dz[r]; the odd one gets tap 2 of dz[r] and tap 0 of dz[r + 1]. K = 1, pad = 0: the even one gets dz[r]. */
#ifndef ABAR_CUDA_CONV_TILES_PRODUCT_H
#define ABAR_CUDA_CONV_TILES_PRODUCT_H

#include "device/cuda/nn/affine.h"
#include "device/cuda/nn/conv/tiles.h"

/* The taps described above, for one axis. */
template <int WAY, int K, int S> struct conv_axis {
    static const bool split = WAY == CONV_DX && S == 2; /* by parity */
    static const int stride = WAY == CONV_DX ? 1 : S;   /* of the window over the band */
    static const int window = split ? (K + 1) / 2 : K;
    static const int parities = split ? 2 : 1;
    /* The place in the window that tap i reads, and the parity it belongs to. */
    __device__ static constexpr int reads(int i) { return split ? (K == 3 && i == 0 ? 1 : 0) : WAY == CONV_DX ? K - 1 - i : i; }
    __device__ static constexpr int parity(int i) { return split && K == 3 && i != 1 ? 1 : 0; }
};

/* The order of the taps: those that read the same place of the window are adjacent, and have the same lot. */
template <int WAY, int K, int S> struct conv_order {
    __device__ static constexpr int tap(int t)
    {
        constexpr int by_place[9] = {4, 5, 7, 8, 3, 6, 1, 2, 0};
        return conv_axis<WAY, K, S>::split && K == 3 ? by_place[t] : t;
    }
    __device__ static constexpr int lot(int t)
    {
        constexpr int lots[9] = {0, 0, 0, 0, 1, 1, 2, 2, 3};
        return conv_axis<WAY, K, S>::split && K == 3 ? lots[t] : t;
    }
};

/* A warp's sums: for each parity, MT fragments of 16 positions by NT fragments of 8 channels. */
template <int WAY, int K, int S, int NT> struct conv_sums {
    static const int sets = conv_axis<WAY, K, S>::parities * conv_axis<WAY, K, S>::parities;
    static const int MT = (sets == 4 ? 4 : 8) / NT;
    static const int positions = 16 * MT;
    float v[sets][MT][NT][4];
};

/* The weights of channels n0 .. n0 + 8 NT of the result: forward in rows (o) of K K C, dx in rows (o) of K K 8 NT (all o). */
template <int WAY, int K, int NT> __device__ static inline void weights_load(const conv_product &p, uint32_t to, int n0)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    const int rows = WAY == CONV_FORWARD ? 8 * NT : p.outputs, first = WAY == CONV_FORWARD ? n0 : 0;
    const int chunks = WAY == CONV_FORWARD ? K * K * p.inputs / 8 : K * K * NT;
    for (int row = warp; row < rows; row += warps) {
        const bf16 *from = p.weight + (first + row) * K * K * p.inputs;
        for (int k = lane; k < chunks; k += 32)
            copy16_async(to + (uint32_t)(row * p.weight_pitch + k * 16),
                         WAY == CONV_FORWARD ? from + k * 8 : from + k / NT * p.inputs + n0 + k % NT * 8, true);
    }
}

/* The same for at most 8 input channels: forward, rows (o) of taps by 8, an even number of taps. */
template <int K, int NT> __device__ static inline void weights_load_few(const conv_product &p, uint32_t to, int n0)
{
    const int taps = K * K, even = (taps + 1) / 2 * 2;
    for (int k = (int)threadIdx.x; k < 8 * NT * even; k += (int)blockDim.x) {
        const int row = k / even, tap = k % even;
        const bf16 *from = p.weight + ((n0 + row) * taps + (tap < taps ? tap : 0)) * p.inputs;
        store16(to + (uint32_t)(row * p.weight_pitch + tap * 16), gather8(from, tap < taps ? p.inputs : 0));
    }
}

/* Fragments of b, 16 source channels by 8 NT result channels: b[n][0], b[n][1]. weights: the lane's own address, see below. */
template <int WAY, int NT>
__device__ static inline void weights_fragments(uint32_t (&b)[NT][2], uint32_t weights, int weight_pitch)
{
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
        uint32_t r[4];
        if (WAY == CONV_FORWARD)
            load_matrices(r, weights + (uint32_t)(n * 8 * weight_pitch));
        else
            load_matrices_transposed(r, weights + (uint32_t)(n * 16));
        b[n][0] = r[0], b[n][1] = r[1], b[n + 1][0] = r[2], b[n + 1][1] = r[3];
    }
}

/* The lane's address for weights_fragments, at tap 0 and channel 0: four matrices in the order (channels of the result 0-7;
 * of the source 0-7, 8-15), (result 8-15; source likewise). In forward, a matrix's rows are result channels; for dx they are
 * source channels (o), and the load transposes it. */
template <int WAY> __device__ static inline uint32_t weights_lane(uint32_t weights, int weight_pitch)
{
    const int lane = (int)threadIdx.x % 32;
    if (WAY == CONV_FORWARD) return weights + (uint32_t)((lane / 16 * 8 + lane % 8) * weight_pitch + lane / 8 % 2 * 16);
    return weights + (uint32_t)(lane % 16 * weight_pitch + lane / 16 * 16);
}

/* Fragments of a: 16 MT positions under one place of the window, by 16 source channels. at: the lane's address of each
 * fragment: row lane % 16, source channels 0-7 for lanes 0 to 15, 8-15 for the others. */
template <int MT> __device__ static inline void band_fragments(uint32_t (&a)[MT][4], const uint32_t (&at)[MT], int offset)
{
#pragma unroll
    for (int m = 0; m < MT; m++) load_matrices(a[m], at[m] + (uint32_t)offset);
}

template <int MT, int NT>
__device__ static inline void multiply_all(float (&d)[MT][NT][4], const uint32_t (&a)[MT][4], const uint32_t (&b)[NT][2])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) multiply_add(d[m][n], a[m], b[n][0], b[n][1]);
}

/* All taps, all channels of the source. While one tap is multiplied, the fragments of the next are loaded. */
template <int WAY, int K, int S, int NT>
__device__ static inline void conv_accumulate(const conv_product &p, uint32_t weights,
                                              const uint32_t (&at)[conv_sums<WAY, K, S, NT>::MT],
                                              conv_sums<WAY, K, S, NT> &sums)
{
    typedef conv_axis<WAY, K, S> axis;
    typedef conv_order<WAY, K, S> order;
    const int per_tap = WAY == CONV_FORWARD ? p.inputs * 2 : NT * 16;    /* bytes from tap to tap, */
    const int per_step = WAY == CONV_FORWARD ? 32 : 16 * p.weight_pitch; /* and from 16 source channels to the next */
    const int steps = (WAY == CONV_FORWARD ? p.inputs : p.outputs) / 16;
#pragma unroll 1
    for (int step = 0; step < steps; step++, weights += (uint32_t)per_step) {
        uint32_t a[2][conv_sums<WAY, K, S, NT>::MT][4], b[2][NT][2];
#pragma unroll
        for (int t = -1; t < K * K; t++) {
            if (t + 1 < K * K) {
                const int next = order::tap(t + 1), i = axis::reads(next / K), j = axis::reads(next % K);
                if (t < 0 || order::lot(t + 1) != order::lot(t))
                    band_fragments(a[order::lot(t + 1) % 2], at, band_tap<axis::stride>(p.band, i, j) + step * 32);
                weights_fragments<WAY, NT>(b[(t + 1) % 2], weights + (uint32_t)(next * per_tap), p.weight_pitch);
            }
            if (t < 0) continue;
            const int set = axis::parity(order::tap(t) / K) * axis::parities + axis::parity(order::tap(t) % K);
            multiply_all(sums.v[set], a[order::lot(t) % 2], b[t % 2]);
        }
    }
}

/* The same for 8 input channels, two taps at a time: lanes 0 to 15 point under the even one, the others under the odd one.
 * The last odd tap has zero weights, so any finite numbers of the band will do. */
template <int K, int NT>
__device__ static inline void conv_accumulate_few(const conv_product &p, uint32_t weights,
                                                  const uint32_t (&at)[conv_sums<CONV_FORWARD, K, 1, NT>::MT],
                                                  conv_sums<CONV_FORWARD, K, 1, NT> &sums)
{
    const bool odd = threadIdx.x % 32 >= 16;
    const int pairs = (K * K + 1) / 2;
    uint32_t a[2][conv_sums<CONV_FORWARD, K, 1, NT>::MT][4], b[2][NT][2];
#pragma unroll
    for (int t = -1; t < pairs; t++) {
        if (t + 1 < pairs) {
            const int even_tap = 2 * (t + 1), odd_tap = even_tap + 1 < K * K ? even_tap + 1 : even_tap;
            const int even_place = band_tap<1>(p.band, even_tap / K, even_tap % K);
            const int odd_place = band_tap<1>(p.band, odd_tap / K, odd_tap % K);
            band_fragments(a[(t + 1) % 2], at, odd ? odd_place : even_place);
            weights_fragments<CONV_FORWARD, NT>(b[(t + 1) % 2], weights + (uint32_t)(even_tap * 16), p.weight_pitch);
        }
        if (t >= 0) multiply_all(sums.v[0], a[t % 2], b[t % 2]);
    }
}

/* Transposes among four neighbouring lanes: lane t gives word c of its v to lane c, and receives lane k's word t as v[k]. */
__device__ static inline void transpose_quad(uint32_t (&v)[4])
{
#pragma unroll
    for (int bit = 2; bit; bit /= 2) {
        const bool high = threadIdx.x & (unsigned)bit;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (c & bit) continue;
            const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? v[c] : v[c + bit], bit);
            if (high)
                v[c] = got;
            else
                v[c + bit] = got;
        }
    }
}

/* Of fragments (16 positions, 16 channels: two of 8) of the result the lane's 16 bytes: lane t of a quad has position group +
 * 8 (t / 2), channels 8 (t % 2) + 0..7. */
__device__ static inline uint4 conv_word(const float (&lo)[4], const float (&hi)[4])
{
    uint32_t v[4] = {pair_bits(lo[0], lo[1]), pair_bits(hi[0], hi[1]), pair_bits(lo[2], lo[3]), pair_bits(hi[2], hi[3])};
    transpose_quad(v);
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* Where a position of the tile is in the result's images, and whether it exists. */
typedef struct conv_spot {
    int image, row, column;
    bool inside;
} conv_spot;

__device__ static inline conv_spot conv_spot_of(const conv_band &b, int position)
{
    const conv_place at = band_place(b, position);
    const int tile = (int)blockIdx.x, image = tile / b.bands * b.group + at.image, row = tile % b.bands * b.take + at.row;
    return {image, row, at.column, position < band_positions(b) && image < b.images && row < b.rows};
}

/* y as it is stored: with bias (of the block's first channel, NULL: none) and ReLU, rounded. */
template <int MT, int NT> __device__ static inline void conv_settle(float (&v)[MT][NT][4], const float *bias, bool relu)
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float *b = bias ? bias + n * 8 + threadIdx.x % 4 * 2 : NULL;
        const float add[2] = {b ? b[0] : 0.0f, b ? b[1] : 0.0f};
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float z = v[m][n][e] + add[e % 2];
                v[m][n][e] = __bfloat162float(__float2bfloat16_rn(relu && z < 0.0f ? 0.0f : z));
            }
    }
}

/* Stores all sums of a warp whose first position in the tile is first; n0: the block's first channel. */
template <int WAY, int K, int S, int NT>
__device__ static inline void conv_finish(const conv_product &p, int first, int n0, const conv_sums<WAY, K, S, NT> &sums)
{
    typedef conv_axis<WAY, K, S> axis;
    const int lane = (int)threadIdx.x % 32, pair = lane % 4;
#pragma unroll
    for (int m = 0; m < conv_sums<WAY, K, S, NT>::MT; m++) {
        const conv_spot at = conv_spot_of(p.band, first + 16 * m + lane / 4 + pair / 2 * 8);
#pragma unroll
        for (int set = 0; set < conv_sums<WAY, K, S, NT>::sets; set++) {
            const int h = at.row * axis::parities + set / axis::parities, w = at.column * axis::parities + set % axis::parities;
            const bool valid = at.inside && h < p.result_height && w < p.result_width;
            bf16 *to = p.result + (int64_t)((at.image * p.result_height + h) * p.result_width + w) * p.result_channels + n0;
#pragma unroll
            for (int n = 0; n < NT; n += 2) {
                const uint4 word = conv_word(sums.v[set][m][n], sums.v[set][m][n + 1]);
                if (valid) *reinterpret_cast<uint4 *>(to + (n + pair % 2) * 8) = word;
            }
        }
    }
}

/* ---- moments of y ------------------------------------------------------------------------------------------------- */

/* Over the lanes that have the same channels. */
__device__ static inline float conv_rows_sum(float v)
{
#pragma unroll
    for (int lane = 4; lane < 32; lane *= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

/* In shared memory: mean and sum of squared distances of each channel of a block in the positions of one lot, and how many
 * there are. */
template <int NT> struct conv_lot {
    float2 channel[8 * NT];
    float count;
};

/* Those of a warp, whose first position in the tile is first. */
template <int MT, int NT>
__device__ static inline void conv_lot_moments(const conv_band &band, int first, const float (&v)[MT][NT][4], conv_lot<NT> &lot)
{
    const int lane = (int)threadIdx.x % 32;
    bool inside[MT][2];
    float count = 0.0f;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            inside[m][half] = conv_spot_of(band, first + 16 * m + lane / 4 + 8 * half).inside;
            count += inside[m][half] ? 1.0f : 0.0f;
        }
    count = conv_rows_sum(count);
    const float by_count = count > 0.0f ? 1.0f / count : 0.0f;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) sum += inside[m][half] ? v[m][n][2 * half + c] : 0.0f;
            const float mean = conv_rows_sum(sum) * by_count;
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float d = inside[m][half] ? v[m][n][2 * half + c] - mean : 0.0f;
                    square += d * d;
                }
            square = conv_rows_sum(square);
            if (lane < 4) lot.channel[n * 8 + lane * 2 + c] = make_float2(mean, square);
        }
    if (lane == 0) lot.count = count;
}

/* The tile's moments from those of its lots, in order: moments (channels, tiles), then the tiles' counts. */
template <int NT>
__device__ static inline void conv_tile_moments(const conv_product &p, int n0, const conv_lot<NT> *lot, int lots)
{
    const int tile = (int)blockIdx.x, c = (int)threadIdx.x;
    float count = 0.0f, mean = 0.0f, square = 0.0f;
    __syncthreads();
    if (c >= 8 * NT) return;
    for (int k = 0; k < lots; k++) count += lot[k].count, mean += lot[k].count * lot[k].channel[c].x;
    mean /= count; /* every tile has positions */
    for (int k = 0; k < lots; k++) {
        const float d = lot[k].channel[c].x - mean;
        square += lot[k].channel[c].y + lot[k].count * d * d;
    }
    p.moments[(int64_t)(n0 + c) * p.band.tiles + tile] = make_float2(mean, square);
    if (n0 + c == 0) reinterpret_cast<float *>(p.moments + (int64_t)p.result_channels * p.band.tiles)[tile] = count;
}

/* ---- sums for the batch norm before dx ------------------------------------------------------------------------------ */

/* In shared memory: the coefficients of a block's channels, and a lot's sums of g and g (x - mean). */
template <int NT> struct conv_norm_channels {
    affine map[8 * NT];
    float mean[8 * NT];
};
template <int NT> struct conv_norm_lot {
    float2 channel[8 * NT];
};

template <int NT> __device__ static inline void conv_norm_load(const conv_product &p, int n0, conv_norm_channels<NT> &channels)
{
    const int i = (int)threadIdx.x, c = n0 + i;
    if (i >= 8 * NT) return;
    channels.mean[i] = p.norm.saved[c];
    channels.map[i] = affine_of(p.norm.saved[c], p.norm.saved[p.result_channels + c], p.norm.scale[c], p.norm.shift[c]);
}

/* The gradient g of the batch norm's output, masked, of one element; dx, x, y and other as they are stored. */
__device__ static inline float conv_norm_gradient(const conv_norm &norm, const affine &map, float dx, float x, float y,
                                                  float other)
{
    const float g = dx + other;
    return norm.relu && !((norm.y ? y : normal(map, x)) > 0.0f) ? 0.0f : g;
}

/* Adds 8 channels of a pixel, at an offset into dx, to a lane's sums. */
__device__ static inline void conv_norm_add(const conv_norm &norm, const affine *map, const float *mean, const uint4 &dx,
                                            int64_t at, float (&sum)[8], float (&dot)[8])
{
    const uint4 nothing = make_uint4(0, 0, 0, 0);
    const uint4 other_word = norm.other ? *reinterpret_cast<const uint4 *>(norm.other + at) : nothing;
    const uint4 y_word = norm.y ? *reinterpret_cast<const uint4 *>(norm.y + at) : nothing;
    const pack<bf16> d = unpack(dx), x = load_pack(norm.x + at), y = unpack(y_word), other = unpack(other_word);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float g = conv_norm_gradient(norm, map[i], d.v[i], x.v[i], y.v[i], other.v[i]);
        if (norm.rounded) g = __bfloat162float(__float2bfloat16_rn(g));
        sum[i] += g;
        dot[i] += g * (x.v[i] - mean[i]);
    }
}

/* Over the lanes of a warp that have the same channels: lanes 0 and 1 write those of 16 channels. */
__device__ static inline void conv_norm_write(float (&sum)[8], float (&dot)[8], float2 *to)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int other = 2; other < 32; other *= 2) {
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], other);
            dot[i] += __shfl_xor_sync(0xffffffffu, dot[i], other);
        }
        if (lane < 2) to[lane * 8 + i] = make_float2(sum[i], dot[i]);
    }
}

/* conv_finish for dx, with the sums. */
template <int K, int S, int NT>
__device__ static inline void conv_finish_norm(const conv_product &p, int first, int n0,
                                               const conv_sums<CONV_DX, K, S, NT> &sums, const conv_norm_channels<NT> &channels,
                                               conv_norm_lot<NT> &lot)
{
    typedef conv_axis<CONV_DX, K, S> axis;
    const int lane = (int)threadIdx.x % 32, pair = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
        const int channel = (n + pair % 2) * 8;
        float sum[8] = {}, dot[8] = {};
#pragma unroll
        for (int m = 0; m < conv_sums<CONV_DX, K, S, NT>::MT; m++) {
            const conv_spot at = conv_spot_of(p.band, first + 16 * m + lane / 4 + pair / 2 * 8);
#pragma unroll
            for (int set = 0; set < conv_sums<CONV_DX, K, S, NT>::sets; set++) {
                const int h = at.row * axis::parities + set / axis::parities,
                          w = at.column * axis::parities + set % axis::parities;
                const uint4 word = conv_word(sums.v[set][m][n], sums.v[set][m][n + 1]);
                if (!at.inside || h >= p.result_height || w >= p.result_width) continue;
                const int64_t to =
                    (int64_t)((at.image * p.result_height + h) * p.result_width + w) * p.result_channels + n0 + channel;
                *reinterpret_cast<uint4 *>(p.result + to) = word;
                conv_norm_add(p.norm, channels.map + channel, channels.mean + channel, word, to, sum, dot);
            }
        }
        conv_norm_write(sum, dot, lot.channel + n * 8);
    }
}

/* The tile's sums from those of its lots, in order. */
template <int NT>
__device__ static inline void conv_tile_sums(const conv_product &p, int n0, const conv_norm_lot<NT> *lot, int lots)
{
    const int c = (int)threadIdx.x;
    float2 total = make_float2(0.0f, 0.0f);
    __syncthreads();
    if (c >= 8 * NT) return;
    for (int k = 0; k < lots; k++) total.x += lot[k].channel[c].x, total.y += lot[k].channel[c].y;
    p.norm.sums[(int64_t)(n0 + c) * p.band.tiles + (int)blockIdx.x] = total;
}

/* A block: tile blockIdx.x, channels 8 NT blockIdx.y ... of the result. A warp: every warps-th lot of positions of the tile.
 * NORM: dx with the sums for the batch norm before it. */
template <int WAY, int K, int S, int NT, bool FEW, bool NORM>
static __global__ void __launch_bounds__(256) conv_product_tiles(const __grid_constant__ conv_product p)
{
    extern __shared__ __align__(16) unsigned char conv_memory[];
    typedef conv_sums<WAY, K, S, NT> warp_sums;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    const int n0 = (int)blockIdx.y * 8 * NT, count = band_positions(p.band),
              lots = (count + warp_sums::positions - 1) / warp_sums::positions;
    const uint32_t weights = shared_address(conv_memory), band = weights + (uint32_t)p.weight_bytes;
    conv_lot<NT> *moments = reinterpret_cast<conv_lot<NT> *>(conv_memory + p.moments_at);
    conv_norm_channels<NT> *channels = reinterpret_cast<conv_norm_channels<NT> *>(conv_memory + p.moments_at);
    conv_norm_lot<NT> *norm_sums = reinterpret_cast<conv_norm_lot<NT> *>(channels + 1);
    chain_wait();
    if constexpr (FEW) {
        weights_load_few<K, NT>(p, weights, n0);
        band_load_few(p.band, band, p.source, (int)blockIdx.x);
    } else {
        weights_load<WAY, K, NT>(p, weights, n0);
        band_load<conv_axis<WAY, K, S>::stride>(p.band, band, p.source, (int)blockIdx.x, 0);
        copies_commit();
        if (NORM) conv_norm_load(p, n0, *channels);
        copies_wait<0>();
    }
    __syncthreads();
    for (int first = warp * warp_sums::positions; first < count; first += warps * warp_sums::positions) {
        warp_sums sums = {};
        uint32_t at[warp_sums::MT];
#pragma unroll
        for (int m = 0; m < warp_sums::MT; m++) { /* positions past the end repeat the last one and are not stored */
            const int position = min(first + 16 * m + lane % 16, count - 1);
            at[m] = band + (uint32_t)(band_window<conv_axis<WAY, K, S>::stride>(p.band, position) + (FEW ? 0 : lane / 16 * 16));
        }
        const uint32_t lane_weights = weights_lane<WAY>(weights, p.weight_pitch);
        if constexpr (FEW)
            conv_accumulate_few<K, NT>(p, lane_weights, at, sums);
        else
            conv_accumulate<WAY, K, S, NT>(p, lane_weights, at, sums);
        if constexpr (WAY == CONV_FORWARD) {
            conv_settle(sums.v[0], p.bias ? p.bias + n0 : NULL, p.relu);
            if (p.moments) conv_lot_moments(p.band, first, sums.v[0], moments[first / warp_sums::positions]);
        }
        if constexpr (NORM)
            conv_finish_norm(p, first, n0, sums, *channels, norm_sums[first / warp_sums::positions]);
        else
            conv_finish<WAY, K, S, NT>(p, first, n0, sums);
    }
    if (WAY == CONV_FORWARD && p.moments) conv_tile_moments(p, n0, moments, lots);
    if (NORM) conv_tile_sums(p, n0, norm_sums, lots);
}

#endif
