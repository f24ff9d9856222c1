/* Sums over the windows of a stack of images: what the kernels of sums.cu are made of. The mean patch of a convolution
 * comes from the batch-sum image S[c, y, x] = sum over n of x[n, c, y, x]: entry (c, i, j) is a strided window sum of S. */
#ifndef ABAR_CUDA_STATS_WINDOWS_H
#define ABAR_CUDA_STATS_WINDOWS_H

#include "device/cuda/stats/stacks.h"

#define THREADS 256
#define CHANNELS 64 /* of a block, at most: whole cache lines of a pixel */
#define SPLITS 64   /* blocks that share channels, at most: the last of them adds up what they leave */
#define MASK 64     /* taps of a window that fit a mask */

/* Does tap k of some window position fall on this row (axis 0) or column (axis 1)? */
__device__ static inline bool sees(const stack &s, int axis, int64_t place, int k)
{
    const int64_t from = place + s.pad[axis] - (int64_t)k * s.dilation[axis];
    return from >= 0 && from % s.step[axis] == 0 && from / s.step[axis] < s.extent[axis];
}

/* Bit k: tap k of some window position is on this pixel. */
__device__ static uint64_t mask_of(const stack &s, int64_t y, int64_t x)
{
    uint64_t row = 0, mask = 0;
    for (int j = 0; j < s.kernel[1]; j++) row |= (uint64_t)sees(s, 1, x, j) << j;
    for (int i = 0; i < s.kernel[0]; i++)
        if (sees(s, 0, y, i)) mask |= row << (i * s.kernel[1]);
    return mask;
}

/* sum += the vector at p, or its squares, times w */
template <typename T, int N> __device__ static inline void add_vector(const T *p, bool squares, float w, float sum[N])
{
    if constexpr (N == 1) {
        const float v = element(p);
        sum[0] += w * (squares ? v * v : v);
    } else {
        const pack<T> a = load_pack(p);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += w * (squares ? a.v[i] * a.v[i] : a.v[i]);
    }
}

/* S of this thread's vector at one pixel, over the block's images. */
template <typename T, int N>
__device__ static void sum_images(const stack &s, const T *p, int64_t from, int64_t to, bool squares, float sum[N])
{
    if (s.weight) {
        for (int64_t n = from; n < to; n++) add_vector<T, N>(p + n * s.stride[0], squares, (float)s.weight[n], sum);
        return;
    }
#pragma unroll 8
    for (int64_t n = from; n < to; n++) add_vector<T, N>(p + n * s.stride[0], squares, 1.0f, sum);
}

/* The window sums of one tile of S, added to taps, (shares, outputs): element i by thread i modulo the threads. */
__device__ static void add_taps(const stack &s, int64_t tile, int width, const float *image, const uint64_t *masks, float *taps)
{
    const int kernel = s.kernel[0] * s.kernel[1];
    const int64_t first = tile * s.pixels, left = s.height * s.width - first;
    const int n = left < s.pixels ? (int)left : s.pixels;
    const int outputs = width * kernel, step = s.shares;
    for (int i = threadIdx.x; i < outputs * step; i += THREADS) {
        const int o = i % outputs, c = o / kernel, k = o % kernel;
        float sum = 0.0f;
        if (kernel <= MASK) {
#pragma unroll 4
            for (int q = i / outputs; q < n; q += step) sum += masks[q] >> k & 1 ? image[q * width + c] : 0.0f;
        } else {
            for (int q = i / outputs; q < n; q += step)
                if (sees(s, 0, (first + q) / s.width, k / s.kernel[1]) && sees(s, 1, (first + q) % s.width, k % s.kernel[1]))
                    sum += image[q * width + c];
        }
        taps[i] += sum;
    }
}

/* The shares of every output, joined in order where thread o expects them. */
__device__ static void join_taps(const stack &s, float *taps, int outputs)
{
    if (s.shares == 1) return;
    __syncthreads();
    for (int o = threadIdx.x; o < outputs; o += THREADS)
        for (int i = 1; i < s.shares; i++) taps[o] += taps[i * outputs + o];
}

__device__ static double weights_sum(const stack &s)
{
    if (!s.weight) return 1.0;
    double sum = 0.0;
#pragma unroll 8
    for (int64_t n = 0; n < s.images; n++) sum += s.weight[n];
    return sum;
}

/* Block (split, y) of a grid: channels from first + y * width on, every groups-th tile of pixels, one slice of the images.
 * Thread: `lane`-th vector of N channels at the `place`-th pixel of the tile. The last split to finish adds up all of them, in
 * order. Shared: masks (pixels), the tile's S (pixels, width), taps (shares, width, kernel). */
template <typename T, int N>
__device__ static void sum_windows(const stack &s, bool squares, unsigned split, unsigned y, uint64_t *shared, float *partial,
                                   unsigned *tickets)
{
    const int width = s.lanes * N, outputs = width * s.kernel[0] * s.kernel[1];
    uint64_t *masks = shared;
    float *image = (float *)(masks + s.pixels), *taps = image + s.pixels * width;
    const int lane = threadIdx.x % s.lanes, place = threadIdx.x / s.lanes, splits = s.slices * s.groups;
    const int slice = (int)split % s.slices, group = (int)split / s.slices;
    const int64_t first = s.first + (int64_t)y * width, channel = first + lane * N;
    const int64_t from = s.images * slice / s.slices, to = s.images * (slice + 1) / s.slices;
    const T *data = (const T *)s.data;
    for (int i = threadIdx.x; i < outputs * s.shares; i += THREADS) taps[i] = 0.0f;
    for (int64_t tile = group; tile < s.tiles; tile += s.groups) {
        const int64_t pixel = tile * s.pixels + place, py = pixel / s.width, px = pixel % s.width;
        const bool inside = place < s.pixels && pixel < s.height * s.width;
        float sum[N] = {};
        if (inside && channel < s.channels)
            sum_images<T, N>(s, data + channel * s.stride[1] + py * s.stride[2] + px * s.stride[3], from, to, squares, sum);
        __syncthreads(); /* the tile before has been used */
        if (place < s.pixels)
            for (int i = 0; i < N; i++) image[place * width + lane * N + i] = sum[i];
        if (inside && lane == 0 && s.kernel[0] * s.kernel[1] <= MASK) masks[place] = mask_of(s, py, px);
        __syncthreads();
        add_taps(s, tile, width, image, masks, taps);
    }
    join_taps(s, taps, outputs);
    float *own = partial + (int64_t)y * splits * outputs;
    for (int o = threadIdx.x; o < outputs; o += THREADS) own[(int64_t)split * outputs + o] = taps[o];
    if (!last_block(tickets + y, (unsigned)splits)) return;
    const int kernel = s.kernel[0] * s.kernel[1];
    for (int o = threadIdx.x; o < outputs; o += THREADS) {
        double total = 0.0;
#pragma unroll 8
        for (int i = 0; i < splits; i++) total += (double)__ldcg(own + (int64_t)i * outputs + o);
        if (first + o / kernel < s.channels) s.out[first * kernel + o] += (float)(s.scale * total);
    }
    if (first == 0 && threadIdx.x == 0 && s.last != 0.0) s.out[s.channels * kernel] += (float)(s.last * weights_sum(s));
}

#endif
