/* Newton-Schulz of small blocks, each by one thread block that keeps X in shared memory through all steps: all of them,
 * whatever their sizes, in one launch.
 *
 * X has r <= SIDE rows; it is padded with zeros to multiples of 16. In bfloat16 the products are tensor cores'. S and B
 * are kept as sums of two bfloat16 numbers: rounded to one, B alone would cause most of the error of the result, and here the
 * further products cost little. */
#include "device/cuda/core/mma.h"
#include "device/cuda/step/orthogonalise_impl.h"

enum { THREADS = 512, WARPS = THREADS / 32, SIDE = 64, SLABS = SIDE / 16 };

/* Where a block's matrices are in shared memory, in elements; pitches keep rows in different banks. */
typedef struct placing {
    int r, c; /* padded */
    int x_pitch, s_pitch;
    int s, b, end; /* X is at 0; in bfloat16 S and B have their lower parts behind them */
} placing;

__host__ __device__ static placing place(int rows, int columns, bool exact)
{
    placing p;
    p.r = abar__up(rows < columns ? rows : columns, 16);
    p.c = abar__up(rows < columns ? columns : rows, 16);
    p.x_pitch = p.c + (exact ? 1 : 8);
    p.s_pitch = p.r + (exact ? 4 : 8);
    p.s = abar__up(p.r * p.x_pitch, 8);
    p.b = p.s + p.r * p.s_pitch * (exact ? 1 : 2);
    p.end = p.b + p.r * p.s_pitch * (exact ? 1 : 2);
    return p;
}

extern "C" size_t abar__ns_small_bytes(const abar_device *dev, int64_t rows, int64_t columns, bool exact)
{
    const size_t kept = 1024; /* for what kernels declare themselves, and the system's part */
    if ((rows < columns ? rows : columns) > SIDE || rows > 65536 || columns > 65536) return 0;
    const size_t bytes = (size_t)place((int)rows, (int)columns, exact).end * (exact ? sizeof(float) : sizeof(bf16));
    return bytes + kept <= abar__cuda_of(dev)->shared_memory ? bytes : 0;
}

/* ---- products in bfloat16 ---------------------------------------------------------------------------------------------------
 */

/* Addresses for load_matrices of 16 x 16 elements at p: as the left operand, and as the right one that is stored transposed. */
__device__ static inline uint32_t left_address(const bf16 *p, int pitch)
{
    const int lane = threadIdx.x % 32;
    return shared_address(p + (lane % 16) * pitch + lane / 16 * 8);
}

__device__ static inline uint32_t right_address(const bf16 *p, int pitch)
{
    const int lane = threadIdx.x % 32;
    return shared_address(p + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
}

/* d (16, 16) += a (16, k) b^T, b (16, k). */
__device__ static inline void multiply_rows(float (&d)[2][4], const bf16 *a, const bf16 *b, int pitch, int k)
{
    const uint32_t from_a = left_address(a, pitch), from_b = right_address(b, pitch);
#pragma unroll 4
    for (int i = 0; i < k; i += 16) {
        uint32_t left[4], right[4];
        load_matrices(left, from_a + i * (uint32_t)sizeof(bf16));
        load_matrices(right, from_b + i * (uint32_t)sizeof(bf16));
        multiply_add(d[0], left, right[0], right[1]);
        multiply_add(d[1], left, right[2], right[3]);
    }
}

/* Stores v and w, neighbours, each as the sum of two numbers, the second `low` elements further. */
__device__ static inline void store_split(bf16 *to, int low, float v, float w)
{
    const float big_v = __bfloat162float(__float2bfloat16_rn(v)), big_w = __bfloat162float(__float2bfloat16_rn(w));
    *reinterpret_cast<uint32_t *>(to) = pair_bits(big_v, big_w);
    *reinterpret_cast<uint32_t *>(to + low) = pair_bits(v - big_v, w - big_w);
}

__device__ static inline float load_split(const bf16 *from, int low)
{
    return __bfloat162float(from[0]) + __bfloat162float(from[low]);
}

/* Rows and columns of element e of d[half] within 16 x 16. */
__device__ static inline int row_in_tile(int e) { return threadIdx.x % 32 / 4 + e / 2 * 8; }
__device__ static inline int column_in_tile(int half, int e) { return half * 8 + threadIdx.x % 4 * 2 + e % 2; }

/* S = X X^T, a tile for each warp. */
__device__ static void make_s(const placing &p, bf16 *memory)
{
    const int tiles = p.r / 16, low = p.r * p.s_pitch;
    for (int t = threadIdx.x / 32; t < tiles * tiles; t += WARPS) {
        const int i = t / tiles * 16, j = t % tiles * 16;
        float d[2][4] = {};
        multiply_rows(d, memory + i * p.x_pitch, memory + j * p.x_pitch, p.x_pitch, p.c);
        for (int half = 0; half < 2; half++)
            for (int e = 0; e < 4; e += 2)
                store_split(memory + p.s + (i + row_in_tile(e)) * p.s_pitch + j + column_in_tile(half, e), low, d[half][e],
                            d[half][e + 1]);
    }
}

/* B = c3 S + c5 S S; the product of the lower parts is below the last bit. */
__device__ static void make_b(const placing &p, bf16 *memory, float c3, float c5)
{
    const int tiles = p.r / 16, low = p.r * p.s_pitch;
    for (int t = threadIdx.x / 32; t < tiles * tiles; t += WARPS) {
        const int i = t / tiles * 16, j = t % tiles * 16;
        const bf16 *left = memory + p.s + i * p.s_pitch, *right = memory + p.s + j * p.s_pitch;
        float d[2][4] = {};
        multiply_rows(d, left, right + low, p.s_pitch, p.r);
        multiply_rows(d, left + low, right, p.s_pitch, p.r);
        multiply_rows(d, left, right, p.s_pitch, p.r);
        for (int half = 0; half < 2; half++)
            for (int e = 0; e < 4; e += 2) {
                const int at = (i + row_in_tile(e)) * p.s_pitch + j + column_in_tile(half, e);
                store_split(memory + p.b + at, low, c5 * d[half][e] + c3 * load_split(memory + p.s + at, low),
                            c5 * d[half][e + 1] + c3 * load_split(memory + p.s + at + 1, low));
            }
    }
}

/* X = c1 X + B X in place: a warp has all rows of its columns, and reads them before it writes. */
__device__ static void make_x(const placing &p, bf16 *memory, float c1)
{
    const int slabs = p.r / 16, low = p.r * p.s_pitch, lane = threadIdx.x % 32;
    for (int j = threadIdx.x / 32 * 16; j < p.c; j += WARPS * 16) {
        uint32_t x[SLABS][4];
#pragma unroll
        for (int k = 0; k < SLABS; k++)
            if (k < slabs)
                load_matrices_transposed(x[k], shared_address(memory + (k * 16 + lane % 16) * p.x_pitch + j + lane / 16 * 8));
        __syncwarp();
        for (int i = 0; i < p.r; i += 16) {
            const bf16 *b = memory + p.b + i * p.s_pitch;
            float d[2][4];
            for (int half = 0; half < 2; half++)
                for (int e = 0; e < 4; e++)
                    d[half][e] = c1 * __bfloat162float(memory[(i + row_in_tile(e)) * p.x_pitch + j + column_in_tile(half, e)]);
#pragma unroll
            for (int k = 0; k < SLABS; k++) {
                if (k >= slabs) break;
                uint32_t big[4], small[4];
                load_matrices(small, left_address(b + low + k * 16, p.s_pitch));
                load_matrices(big, left_address(b + k * 16, p.s_pitch));
                multiply_add(d[0], small, x[k][0], x[k][1]);
                multiply_add(d[1], small, x[k][2], x[k][3]);
                multiply_add(d[0], big, x[k][0], x[k][1]);
                multiply_add(d[1], big, x[k][2], x[k][3]);
            }
            for (int half = 0; half < 2; half++)
                for (int e = 0; e < 4; e += 2)
                    *reinterpret_cast<uint32_t *>(memory + (i + row_in_tile(e)) * p.x_pitch + j + column_in_tile(half, e)) =
                        pair_bits(d[half][e], d[half][e + 1]);
        }
    }
}

__device__ static inline void step(const placing &p, bf16 *memory, const float *c)
{
    make_s(p, memory);
    __syncthreads();
    make_b(p, memory, c[1], c[2]);
    __syncthreads();
    make_x(p, memory, c[0]);
    __syncthreads();
}

/* ---- products in float32
 * ----------------------------------------------------------------------------------------------------- */

/* y (r, r) = alpha a a'^T + beta z, a = a' (r, k) by rows: a thread has 4 x 4 elements, r / 4 apart, so that the threads of a
 * warp read neighbouring rows. */
__device__ static void multiply_rows(float *y, int r, int y_pitch, const float *a, int pitch, int k, float alpha, float beta,
                                     const float *z)
{
    const int part = r / 4;
    for (int t = threadIdx.x; t < part * part; t += THREADS) {
        const int i = t / part, j = t % part;
        float d[4][4] = {};
        for (int l = 0; l < k; l++) {
            float left[4], right[4];
#pragma unroll
            for (int m = 0; m < 4; m++) left[m] = a[(i + m * part) * pitch + l], right[m] = a[(j + m * part) * pitch + l];
#pragma unroll
            for (int m = 0; m < 16; m++) d[m / 4][m % 4] += left[m / 4] * right[m % 4];
        }
#pragma unroll
        for (int m = 0; m < 16; m++) {
            const int at = (i + m / 4 * part) * y_pitch + j + m % 4 * part;
            y[at] = alpha * d[m / 4][m % 4] + (z ? beta * z[at] : 0.0f);
        }
    }
}

/* X = c1 X + B X in place: a thread has all rows of its columns. */
template <int R> __device__ static void multiply_columns(const placing &p, float *memory, float c1)
{
    for (int j = threadIdx.x; j < p.c; j += THREADS) {
        float x[R];
#pragma unroll
        for (int k = 0; k < R; k++) x[k] = memory[k * p.x_pitch + j];
#pragma unroll 1
        for (int i = 0; i < R; i++) {
            const float4 *b = reinterpret_cast<const float4 *>(memory + p.b + i * p.s_pitch);
            float sum = 0.0f;
#pragma unroll
            for (int k = 0; k < R / 4; k++) {
                const float4 four = b[k];
                sum += four.x * x[4 * k] + four.y * x[4 * k + 1] + four.z * x[4 * k + 2] + four.w * x[4 * k + 3];
            }
            memory[i * p.x_pitch + j] = c1 * memory[i * p.x_pitch + j] + sum;
        }
    }
}

__device__ static inline void step(const placing &p, float *memory, const float *c)
{
    multiply_rows(memory + p.s, p.r, p.s_pitch, memory, p.x_pitch, p.c, 1.0f, 0.0f, (const float *)NULL);
    __syncthreads();
    multiply_rows(memory + p.b, p.r, p.s_pitch, memory + p.s, p.s_pitch, p.r, c[2], c[1], memory + p.s);
    __syncthreads();
    switch (p.r) {
    case 16: multiply_columns<16>(p, memory, c[0]); break;
    case 32: multiply_columns<32>(p, memory, c[0]); break;
    case 48: multiply_columns<48>(p, memory, c[0]); break;
    default: multiply_columns<64>(p, memory, c[0]); break;
    }
    __syncthreads();
}

/* ---- a block
 * ------------------------------------------------------------------------------------------------------------------ */

/* Where element (row, column) of the block is in X. */
__device__ static inline int place_of(const abar__ns_item &item, const placing &p, int row, int column)
{
    return item.transposed ? column * p.x_pitch + row : row * p.x_pitch + column;
}

/* The block into X, rounded as X is, with zeros around it; its norm. */
template <typename T> __device__ static double load_block(const abar__ns_item &item, const placing &p, T *x, double *shared)
{
    double sum = 0.0;
    for (int i = threadIdx.x; i < p.r * p.x_pitch; i += THREADS) store(x, i, 0.0f);
    __syncthreads();
    for (int i = threadIdx.x; i < item.rows * item.columns; i += THREADS) {
        const int at = place_of(item, p, i / item.columns, i % item.columns);
        store(x, at, item.in[i]);
        const double v = (double)load(x, at);
        sum += v * v;
    }
    return sqrt(block_sum(sum, shared));
}

/* NorMuon: new moments, and what all rows are multiplied by beside their own divisor. */
template <typename T>
__device__ static double update_moments(const abar__ns_item &item, const placing &p, const T *x, double norm, double beta,
                                        double *shared)
{
    double after = 0.0;
    for (int row = threadIdx.x / 32; row < item.rows; row += WARPS) {
        double sum = 0.0;
        for (int column = threadIdx.x % 32; column < item.columns; column += 32) {
            const double v = (double)load(x, place_of(item, p, row, column));
            sum += v * v;
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32) continue;
        const float v = abar__next_moment(item.moment[row], beta, sum, item.columns);
        const double divisor = (double)abar__row_divisor(v);
        item.moment[row] = v;
        after += sum / (divisor * divisor);
    }
    return norm / (sqrt(block_sum(after, shared)) + ABAR_NORMUON_EPS); /* its barrier makes the moments visible, too */
}

template <typename T>
__global__ __launch_bounds__(THREADS) static void orthogonalise_small(const abar__ns_polynomial polynomial,
                                                                      const abar__ns_item *items, double beta,
                                                                      const int32_t *skip, int32_t *verdict)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ double shared[32];
    if (skip && *skip) return;
    const abar__ns_item item = items[blockIdx.x];
    const placing p = place(item.rows, item.columns, sizeof(T) == sizeof(float));
    T *x = reinterpret_cast<T *>(memory);
    const int count = item.rows * item.columns;
    const double size = load_block(item, p, x, shared), factor = abar__ns_factor(polynomial, size);
    for (int i = threadIdx.x; i < p.r * p.x_pitch; i += THREADS) store(x, i, (float)(factor * (double)load(x, i)));
    __syncthreads();
    for (int k = 0; k < polynomial.steps; k++) step(p, x, polynomial.c[k]);
    double sum = 0.0;
    for (int i = threadIdx.x; i < p.r * p.x_pitch; i += THREADS) sum += (double)load(x, i) * (double)load(x, i);
    const double norm = sqrt(block_sum(sum, shared));
    const bool good = isfinite(size) && isfinite(norm);
    if (threadIdx.x == 0) verdict[item.index] = good ? abar__ns_verdict(polynomial, size) : ABAR_NS_NOT_FINITE;
    float scale = item.scale;
    if (good && item.moment) scale = (float)(scale * update_moments(item, p, x, norm, beta, shared));
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int row = i / item.columns;
        const float f = item.moment ? scale / abar__row_divisor(item.moment[row]) : scale;
        item.out[i] = good ? f * load(x, place_of(item, p, row, i % item.columns)) : 0.0f;
    }
}

extern "C" abar_status abar__ns_small_prepare(abar_device *dev)
{
    CUDA_TRY(dev, abar__cuda_allow_shared(dev, (const void *)orthogonalise_small<bf16>));
    CUDA_TRY(dev, abar__cuda_allow_shared(dev, (const void *)orthogonalise_small<float>));
    return ABAR_OK;
}

extern "C" void abar__ns_small_run(abar_device *dev, const abar__ns_polynomial *polynomial, const abar__ns_item *items, int n,
                                   size_t shared, bool exact, double beta, const int32_t *skip, int32_t *verdict)
{
    abar__cuda_launch(dev, exact ? orthogonalise_small<float> : orthogonalise_small<bf16>, dim3((unsigned)n), dim3(THREADS),
                      shared, *polynomial, items, beta, skip, verdict);
}
