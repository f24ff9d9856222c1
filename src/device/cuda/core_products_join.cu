/* Partial sums of products (core_products.h) into the lower triangle of a square. */
#include "device/cuda/core_products.h"

#define THREADS 256
#define WIDE 256     /* channels from which a block of a join has 16 */
#define FEW_SPLITS 3 /* that a join adds up by the way */

/* Where the first split's sum of element (m, n) of a part's result is. */
template <int M, int N>
__device__ static inline const float *first_split(const abar__products &s, const abar__product_part &q, int m, int n)
{
    const int down = m / M, left = n / N, tile = q.across ? down * q.across + left : down * (down + 1) / 2 + left;
    return s.partial + q.at + ((int64_t)tile * M + m % M) * N + n % N;
}

/* Element (m, n) of the result of rows with themselves. */
template <int M, int N> __device__ static float joined(const abar__products &s, int m, int n)
{
    const abar__product_part &q = s.part[0];
    const float *from = first_split<M, N>(s, q, m, n);
    float sum = 0.0f;
    for (int k = 0; k < q.splits; k++) sum += __ldcg(from + (int64_t)k * q.tiles * M * N);
    return sum;
}

/* Sums over all splits, in the place of the first. Block: 128 elements, four of a thread, whose splits are shared by 8 threads.
 */
static __global__ void __launch_bounds__(THREADS) add_splits(const __grid_constant__ abar__products s, int size)
{
    __shared__ float4 shared[8][32];
    int64_t at = (int64_t)blockIdx.x * 128;
    int i = 0;
    for (; at >= (int64_t)s.part[i].tiles * size; i++) at -= (int64_t)s.part[i].tiles * size;
    const abar__product_part &q = s.part[i];
    const int lane = (int)threadIdx.x % 32, turn = (int)threadIdx.x / 32;
    float4 *own = (float4 *)(s.partial + q.at + at) + lane, sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const int64_t step = (int64_t)q.tiles * size / 4;
#pragma unroll 8
    for (int k = turn; k < q.splits; k += 8) {
        const float4 v = __ldcg(own + k * step);
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    shared[turn][lane] = sum;
    __syncthreads();
    if (turn) return;
    for (int k = 1; k < 8; k++) {
        const float4 v = shared[k][lane];
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    *own = sum;
}

/* Block i: row i of the square from products of rows with themselves. */
template <int SIDE_> static __global__ void __launch_bounds__(128) join_square(const __grid_constant__ abar__products s)
{
    const int i = (int)blockIdx.x, a = i % s.kernel * s.channels + i / s.kernel;
    for (int j = (int)threadIdx.x; j <= i; j += 128) {
        const int b = j % s.kernel * s.channels + j / s.kernel;
        s.square[i * s.d + j] += s.scale * joined<SIDE_, SIDE_>(s, a > b ? a : b, a > b ? b : a);
    }
}

#define LAGS 13
#define SHIFTS (LAGS + 4 * 3 + 4) /* products: lags of all, three each of border rows and columns, corners */

/* What a block of join_shifts holds of every product: channels of tile X by those of Y, and Y by X. */
template <int T> struct shift_tiles {
    static const int PITCH = T + 1, STRIDE = T * PITCH + 1; /* uneven: other products and rows lie in other banks */
    static const int BYTES = 2 * SHIFTS * STRIDE * (int)sizeof(float);
};

__device__ static inline void part_of_shift(int product, int *part, int *lag)
{
    const int border = product - LAGS, corner = border - 12;
    *part = border < 0 ? ALL : corner < 0 ? FIRST_ROW + border / 3 : CORNERS + corner;
    *lag = border < 0 ? product : corner < 0 ? border % 3 : 0;
}

/* Of a channel through tap t and another through tap u >= t: tap 0 of an axis does not see its last pixel, tap 2 not its first.
 * held: the products of these channels, stride apart. */
__device__ static inline float through_taps(const float *held, int stride, int t, int u)
{
    const int ty = t / 3, tx = t % 3, down = u / 3 - ty, right = u % 3 - tx;
    float sum = held[(5 * down + right) * stride];
    if (down == 0 && ty != 1) sum -= held[(LAGS + (ty == 0 ? 3 : 0) + right) * stride];
    if (right == 0 && tx != 1) sum -= held[(LAGS + 6 + (tx == 0 ? 3 : 0) + down) * stride];
    if (t == u && ty != 1 && tx != 1) sum += held[(LAGS + 12 + (ty == 0 ? 2 : 0) + (tx == 0 ? 1 : 0)) * stride];
    return sum;
}

/* Block (x, y), x >= y: the square's rows of T channels of tile X and columns of tile Y, from products of pixels and shifted
 * ones, of one split. Of the two channels of an element the one with the earlier tap is the pixel, the other the shifted one.
 */
template <int M, int N, int T>
static __global__ void __launch_bounds__(THREADS) join_shifts(const __grid_constant__ abar__products s)
{
    extern __shared__ float held[]; /* (2, SHIFTS, T, PITCH) */
    typedef shift_tiles<T> H;
    if (blockIdx.y > blockIdx.x) return;
    const int first[2] = {(int)blockIdx.x * T, (int)blockIdx.y * T};
#pragma unroll 8 /* as many loads on their way */
    for (int e = (int)threadIdx.x; e < 2 * SHIFTS * T * T; e += THREADS) {
        const int side = e / (SHIFTS * T * T), product = e / (T * T) % SHIFTS, row = e / T % T, column = e % T;
        int part, lag;
        part_of_shift(product, &part, &lag);
        held[(side * SHIFTS + product) * H::STRIDE + row * H::PITCH + column] =
            __ldcg(first_split<M, N>(s, s.part[part], first[side] + row, lag * s.channels + first[1 - side] + column));
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < 81 * T * T; e += THREADS) {
        const int i = e / (9 * T), j = e % (9 * T), c = i / 9, d = j / 9, t = i % 9, u = j % 9;
        if (blockIdx.x == blockIdx.y && j > i) continue;
        const float sum = u >= t ? through_taps(held + c * H::PITCH + d, H::STRIDE, t, u)
                                 : through_taps(held + SHIFTS * H::STRIDE + d * H::PITCH + c, H::STRIDE, u, t);
        s.square[(first[0] * 9 + i) * s.d + first[1] * 9 + j] += s.scale * sum;
    }
}

template <int M, int N, int T> static void launch_join(abar_device *dev, const abar__products *s)
{
    const unsigned tiles = (unsigned)(s->channels / T);
    const int bytes = shift_tiles<T>::BYTES;
    abar__cuda_remember(dev, cudaFuncSetAttribute(join_shifts<M, N, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    abar__cuda_launch(dev, join_shifts<M, N, T>, dim3(tiles, tiles), dim3(THREADS), (size_t)bytes, *s);
}

/* Parts are as if they had one split from then on. */
static void join_splits(abar_device *dev, abar__products *s, abar__product_tile tile)
{
    const int size = abar__tile_rows[tile] * abar__tile_columns[tile]; /* a multiple of 128 */
    int64_t tiles = 0;
    for (int i = 0; i < s->parts; i++) tiles += s->part[i].tiles;
    abar__cuda_launch(dev, add_splits, dim3((unsigned)(tiles * size / 128)), dim3(THREADS), 0, *s, size);
    for (int i = 0; i < s->parts; i++) s->part[i].splits = 1;
}

extern "C" void abar__cuda_join_products(abar_device *dev, abar__products *s, abar__product_tile tile)
{
    if (s->part[0].splits > (s->parts == 1 ? FEW_SPLITS : 1)) join_splits(dev, s, tile);
    const dim3 blocks((unsigned)(s->channels * s->kernel)), threads(128);
    switch (tile) {
    case ABAR_TILE_16_208: launch_join<16, 208, 2>(dev, s); break;
    case ABAR_TILE_32_208: launch_join<32, 208, 4>(dev, s); break;
    case ABAR_TILE_64_208: launch_join<64, 208, 4>(dev, s); break;
    case ABAR_TILE_160: s->channels < WIDE ? launch_join<160, 160, 8>(dev, s) : launch_join<160, 160, 16>(dev, s); break;
    case ABAR_TILE_32: abar__cuda_launch(dev, join_square<32>, blocks, threads, 0, *s); break;
    case ABAR_TILE_64: abar__cuda_launch(dev, join_square<64>, blocks, threads, 0, *s); break;
    case ABAR_TILE_128:
        if (s->parts == 1)
            abar__cuda_launch(dev, join_square<128>, blocks, threads, 0, *s);
        else
            s->channels < WIDE ? launch_join<128, 128, 8>(dev, s) : launch_join<128, 128, 16>(dev, s);
        break;
    case ABAR_TILES: break;
    }
}
