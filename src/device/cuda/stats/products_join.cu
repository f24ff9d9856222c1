/* Partial sums of products (products.h) into the lower triangle of a square. */
#include "device/cuda/stats/products.h"

#define THREADS 256
#define WIDE 256     /* channels from which a block of a join has 16 */
#define FEW_SPLITS 3 /* that a join adds up by the way */

/* Where the first split's sum of column a of a part's rows and column b of its others is. */
template <int M, int N> struct tiles {
    static const bool a_follows = false; /* columns of a are next to each other */
    __device__ static const float *place(const abar__products &s, const abar__product_part &q, int a, int b)
    {
        const int down = a / M, left = b / N, tile = q.across ? down * q.across + left : down * (down + 1) / 2 + left;
        return s.partial + q.at + ((int64_t)tile * M + a % M) * N + b % N;
    }
};

template <int N> struct panels {
    static const bool a_follows = true;
    __device__ static const float *place(const abar__products &s, const abar__product_part &q, int a, int b)
    {
        const int panel = a / N;
        return s.partial + q.at + panel_at<N>(q, panel) + (int64_t)(b - panel_first<N>(q, panel)) * N + a % N;
    }
};

/* Sums over all lanes, in the place of the first. Block: 128 elements, four of a thread, whose lanes are shared by 8 threads.
 */
static __global__ void __launch_bounds__(THREADS) add_splits(const __grid_constant__ abar__products s)
{
    __shared__ float4 shared[8][32];
    int64_t at = (int64_t)blockIdx.x * 128;
    int i = 0;
    for (; at >= s.part[i].floats; i++) at -= s.part[i].floats;
    const abar__product_part &q = s.part[i];
    const int lane = (int)threadIdx.x % 32, turn = (int)threadIdx.x / 32;
    float4 *own = (float4 *)(s.partial + q.at + at) + lane, sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const int64_t step = q.floats / 4;
    if (q.lanes == 1) return;
#pragma unroll 8
    for (int k = turn; k < q.lanes; k += 8) {
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

/* Element (a, b), a >= b, of the result of rows with themselves; which side is which does not matter to it. */
template <class Layout> __device__ static float joined(const abar__products &s, int a, int b)
{
    const abar__product_part &q = s.part[0];
    const float *from = Layout::a_follows ? Layout::place(s, q, b, a) : Layout::place(s, q, a, b);
    float sum = 0.0f;
    for (int k = 0; k < q.lanes; k++) sum += __ldcg(from + k * q.floats);
    return sum;
}

/* Block i: row i of the square from products of rows with themselves. */
template <class Layout> static __global__ void __launch_bounds__(128) join_square(const __grid_constant__ abar__products s)
{
    const int i = (int)blockIdx.x, a = i % s.kernel * s.channels + i / s.kernel;
    for (int j = (int)threadIdx.x; j <= i; j += 128) {
        const int b = j % s.kernel * s.channels + j / s.kernel;
        s.square[i * s.d + j] += s.scale * joined<Layout>(s, a > b ? a : b, a > b ? b : a);
    }
}

#define LAGS 13
#define SHIFTS (LAGS + 4 * 3 + 4) /* products: lags of all, three each of border rows and columns, corners */

/* What a block of join_shifts holds of every product: channels of tile X by those of Y, and Y by X. */
template <int T> struct shift_tiles {
    static const int PITCH = T + 1, STRIDE = T * PITCH + 1; /* uneven: other products and rows are in other banks */
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
template <class Layout, int T>
static __global__ void __launch_bounds__(THREADS) join_shifts(const __grid_constant__ abar__products s)
{
    extern __shared__ float held[]; /* (2, SHIFTS, T, PITCH) */
    typedef shift_tiles<T> H;
    if (blockIdx.y > blockIdx.x) return;
    const int first[2] = {(int)blockIdx.x * T, (int)blockIdx.y * T};
#pragma unroll 8 /* as many loads on their way */
    for (int e = (int)threadIdx.x; e < 2 * SHIFTS * T * T; e += THREADS) {
        const int side = e / (SHIFTS * T * T), product = e / (T * T) % SHIFTS;
        const int row = Layout::a_follows ? e % T : e / T % T, column = Layout::a_follows ? e / T % T : e % T;
        int part, lag;
        part_of_shift(product, &part, &lag);
        held[(side * SHIFTS + product) * H::STRIDE + row * H::PITCH + column] =
            __ldcg(Layout::place(s, s.part[part], first[side] + row, lag * s.channels + first[1 - side] + column));
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

template <class Layout, int T> static void launch_join(abar_device *dev, const abar__products *s)
{
    const unsigned tiles = (unsigned)(s->channels / T);
    const int bytes = shift_tiles<T>::BYTES;
    abar__cuda_remember(dev, cudaFuncSetAttribute(join_shifts<Layout, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    abar__cuda_launch(dev, join_shifts<Layout, T>, dim3(tiles, tiles), dim3(THREADS), (size_t)bytes, *s);
}

/* Parts are as if they had one split from then on. */
static void join_splits(abar_device *dev, abar__products *s)
{
    int64_t floats = 0; /* of every part a multiple of 128 */
    for (int i = 0; i < s->parts; i++) floats += s->part[i].floats;
    abar__cuda_launch(dev, add_splits, dim3((unsigned)(floats / 128)), dim3(THREADS), 0, *s);
    for (int i = 0; i < s->parts; i++) s->part[i].lanes = 1;
}

template <class Layout> static void join_rows(abar_device *dev, const abar__products *s)
{
    abar__cuda_launch(dev, join_square<Layout>, dim3((unsigned)(s->channels * s->kernel)), dim3(128), 0, *s);
}

/* Of at least 65 channels. */
template <class Layout> static void join_any(abar_device *dev, abar__products *s)
{
    if (s->parts == 1)
        join_rows<Layout>(dev, s);
    else
        s->channels < WIDE ? launch_join<Layout, 8>(dev, s) : launch_join<Layout, 16>(dev, s);
}

extern "C" void abar__cuda_join_products(abar_device *dev, abar__products *s, abar__product_tile tile)
{
    if (s->part[0].lanes > (s->parts == 1 ? FEW_SPLITS : 1)) join_splits(dev, s);
    switch (tile) {
    case ABAR_TILE_16_208: launch_join<tiles<16, 208>, 2>(dev, s); break;
    case ABAR_TILE_32_208: launch_join<tiles<32, 208>, 4>(dev, s); break;
    case ABAR_TILE_64_208: launch_join<tiles<64, 208>, 4>(dev, s); break;
    case ABAR_TILE_32: join_rows<tiles<32, 32>>(dev, s); break;
    case ABAR_TILE_64: join_rows<tiles<64, 64>>(dev, s); break;
    case ABAR_TILE_128: join_any<tiles<128, 128>>(dev, s); break;
    case ABAR_TILE_160: join_any<tiles<160, 160>>(dev, s); break;
    case ABAR_TILES: break;
    }
}

extern "C" void abar__cuda_join_panels(abar_device *dev, abar__products *s, int columns)
{
    if (s->part[0].lanes > (s->parts == 1 ? FEW_SPLITS : 1)) join_splits(dev, s);
    switch (columns) {
    case 128: join_any<panels<128>>(dev, s); break;
    case 160: join_any<panels<160>>(dev, s); break;
    case 192: join_any<panels<192>>(dev, s); break;
    }
}
