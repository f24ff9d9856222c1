/* Products of matrices, by the textbook and in double precision: for tests, and for what is done once. */
#include "device/cuda/stats/stats.h"

#include <math.h>

#define SIDE 16 /* of a tile of outputs: one thread each */

/* ---- products of matrices ----------------------------------------------------------------------------------------- */

/* y (m, n) = a (m, k) b (k, n), each given or transposed. Block: a SIDE x SIDE tile of y. */
static __global__ void __launch_bounds__(SIDE *SIDE)
    multiply(int64_t m, int64_t k, int64_t n, const float *a, bool at, const float *b, bool bt, float *y)
{
    __shared__ float left[SIDE][SIDE + 1], right[SIDE][SIDE + 1];
    const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    const int64_t i = (int64_t)blockIdx.y * SIDE + ty, j = (int64_t)blockIdx.x * SIDE + tx;
    double sum = 0.0;
    for (int64_t l = 0; l < k; l += SIDE) {
        const int64_t across = l + tx, down = l + ty;
        left[ty][tx] = i < m && across < k ? a[at ? across * m + i : i * k + across] : 0.0f;
        right[ty][tx] = down < k && j < n ? b[bt ? j * k + down : down * n + j] : 0.0f;
        __syncthreads();
        for (int r = 0; r < SIDE; r++) sum += (double)left[ty][r] * (double)right[r][tx];
        __syncthreads();
    }
    if (i < m && j < n) y[i * n + j] = (float)sum;
}

static void launch_multiply(abar_device *dev, int64_t m, int64_t k, int64_t n, const void *a, bool at, const void *b, bool bt,
                            void *y)
{
    const dim3 grid((unsigned)abar__cuda_blocks(n, SIDE), (unsigned)abar__cuda_blocks(m, SIDE));
    abar__cuda_launch(dev, multiply, grid, dim3(SIDE * SIDE), 0, m, k, n, (const float *)a, at, (const float *)b, bt,
                      (float *)y);
}

extern "C" void abar__cuda_sandwich(abar_device *dev, int64_t m, int64_t n, const void *left, bool left_t, const void *x,
                                    const void *right, bool right_t, void *y, void *scratch)
{
    const void *from = x;
    if (left) {
        launch_multiply(dev, m, m, n, left, left_t, from, false, scratch);
        from = scratch;
    }
    if (right) {
        void *to = from == y ? scratch : y; /* y may be x, the scratch is not in use then */
        launch_multiply(dev, m, n, n, from, false, right, right_t, to);
        from = to;
    }
    if (from != y)
        abar__cuda_remember(dev, cudaMemcpyAsync(y, from, (size_t)(m * n) * sizeof(float), cudaMemcpyDeviceToDevice,
                                                 abar__cuda_of(dev)->stream));
}
