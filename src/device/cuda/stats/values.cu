/* Sums over the rows that make v, weighted by attention's column means (methods.md section 2). Everything is launched into the
 * stream and nothing waits, so that a recording has it; partial sums are added up in a fixed order.
 *
 * The sums of all heads are one thin product, columns (heads, rows) times x (rows, I): a block takes WIDE columns of x and a
 * share of the rows, and reads them once for up to HEADS heads. With the heads' mean it is a sum over rows (rows.h), their
 * weights made beforehand. */
#include "device/cuda/stats/rows.h"

#define THREADS 256
#define WIDE 64                /* columns of x that a block takes */
#define TEAMS (THREADS / WIDE) /* rows that it works on at once */
#define ROWS 64                /* of a tile */
#define HEADS 32               /* of a launch, at most */
#define SPLITS 256             /* blocks that share the rows, at most */

/* How x (N, T, I) and the columns (N, heads, T): strides. */
typedef struct view {
    const void *data;
    abar_dtype dtype;
    int64_t step[3];
} view;

static view view_of(const abar_tensor *t) { return {t->data, t->dtype, {t->stride[0], t->stride[1], t->stride[2]}}; }

__device__ static inline double load_view(const view &v, int64_t i, int64_t j, int64_t k)
{
    return load_any(v.data, v.dtype, i * v.step[0] + j * v.step[1] + k * v.step[2]);
}

/* The mean over the heads of what token t of example n gets. The usual type by itself, so that loads overlap. */
__device__ static inline double column_mean(const view &columns, int64_t heads, int64_t n, int64_t t)
{
    double sum = 0.0;
    if (columns.dtype == ABAR_F32) {
        const float *first = (const float *)columns.data + n * columns.step[0] + t * columns.step[2];
#pragma unroll 4
        for (int64_t h = 0; h < heads; h++) sum += (double)first[h * columns.step[1]];
        return sum / (double)heads;
    }
    for (int64_t h = 0; h < heads; h++) sum += load_view(columns, n, h, t);
    return sum / (double)heads;
}

/* ---- one sum for each head, or with their mean -------------------------------------------------------------------- */

typedef struct values {
    view x, columns;
    int64_t rows, tokens, in, heads;
    int64_t each;     /* rows of a split, whole tiles */
    int first, parts; /* heads of this launch */
    bool mean;        /* of all heads; then parts is 1 */
    float *partial;   /* (splits, parts, blocks * WIDE) */
    double *squares;  /* (splits, blocks, parts) */
} values;

/* Example and token of a row; from those of another before it, without another long division. */
typedef struct place {
    int64_t n, t;
} place;

__device__ static inline place place_of(const values &s, int64_t row) { return {row / s.tokens, row % s.tokens}; }

__device__ static inline place place_after(const values &s, const place &p, int rows)
{
    const unsigned t = (unsigned)p.t + (unsigned)rows, tokens = (unsigned)s.tokens;
    return {p.n + t / tokens, t % tokens};
}

__device__ static inline float weight_of(const values &s, int part, const place &p)
{
    return (float)(s.mean ? column_mean(s.columns, s.heads, p.n, p.t) : load_view(s.columns, p.n, s.first + part, p.t));
}

/* One vector of a row: 4 floats or 8 bfloat16s at once, or one element of any type. */
template <typename T> struct vector_of {
    static const int n = pack<T>::n;
    __device__ static void read(const view &x, int64_t at, float *to)
    {
        const pack<T> a = load_pack((const T *)x.data + at);
#pragma unroll
        for (int i = 0; i < n; i++) to[i] = a.v[i];
    }
};
struct any_type {
};
template <> struct vector_of<any_type> {
    static const int n = 1;
    __device__ static void read(const view &x, int64_t at, float *to) { to[0] = (float)load_any(x.data, x.dtype, at); }
};

/* Rows start .. start + ROWS - 1 of the block's columns, zeros behind the end. */
template <typename T>
__device__ static void load_tile(const values &s, int64_t start, int64_t to, float (*tile)[WIDE], float (*weight)[ROWS])
{
    const int vectors = WIDE / vector_of<T>::n;
    const place first = place_of(s, start);
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * vectors; i += THREADS) {
        const int r = i / vectors, c = i % vectors * vector_of<T>::n;
        const int64_t k = (int64_t)blockIdx.y * WIDE + c;
        const place p = place_after(s, first, r);
        float v[vector_of<T>::n] = {};
        if (start + r < to && k < s.in) vector_of<T>::read(s.x, p.n * s.x.step[0] + p.t * s.x.step[1] + k * s.x.step[2], v);
#pragma unroll
        for (int j = 0; j < vector_of<T>::n; j++) tile[r][c + j] = v[j];
    }
    for (int i = threadIdx.x; i < s.parts * ROWS; i += THREADS) {
        const int q = i / ROWS, r = i % ROWS;
        weight[q][r] = start + r < to ? weight_of(s, q, place_after(s, first, r)) : 0.0f;
    }
}

/* Block (split, y): columns from y * WIDE on, rows of the split. Thread: one column, every TEAMS-th row, all parts (at most
 * MOST). Leaves the block's sums in partial. */
template <typename T, int MOST, bool SQUARES>
static __global__ void __launch_bounds__(THREADS, MOST > 8 ? 1 : 4) sum_values(const __grid_constant__ values s)
{
    __shared__ float tile[ROWS][WIDE], weight[MOST][ROWS];
    __shared__ double shared[32];
    const int column = threadIdx.x % WIDE, team = threadIdx.x / WIDE;
    const int64_t from = (int64_t)blockIdx.x * s.each, to = from + s.each < s.rows ? from + s.each : s.rows;
    float sum[MOST] = {};
    double square[SQUARES ? MOST : 1] = {};
    for (int64_t start = from; start < to; start += ROWS) {
        __syncthreads(); /* the tile before has been used */
        load_tile<T>(s, start, to, tile, weight);
        __syncthreads();
        for (int r = team; r < ROWS; r += TEAMS) {
            const float x = tile[r][column];
            const double xx = SQUARES ? (double)x * (double)x : 0.0;
#pragma unroll
            for (int q = 0; q < MOST; q++) {
                if (q >= s.parts) continue;
                sum[q] += weight[q][r] * x;
                if constexpr (SQUARES) square[q] += (double)weight[q][r] * xx;
            }
        }
    }
    float *own = s.partial + (int64_t)blockIdx.x * s.parts * gridDim.y * WIDE + (int64_t)blockIdx.y * WIDE;
#pragma unroll
    for (int q = 0; q < MOST; q++) {
        if (q >= s.parts) continue;
        __syncthreads();
        tile[team][column] = sum[q];
        __syncthreads();
        float total = 0.0f;
        for (int i = 0; i < TEAMS; i++) total += tile[i][column];
        if (team == 0) own[(int64_t)q * gridDim.y * WIDE + column] = total;
        if constexpr (SQUARES) {
            const double all = block_sum(square[q], shared);
            if (threadIdx.x == 0) s.squares[((int64_t)blockIdx.x * gridDim.y + blockIdx.y) * s.parts + q] = all;
        }
    }
}

/* Thread: one element of one part. homogeneous: what is added behind them; 0: nothing. */
static __global__ void finish_sums(const float *partial, int splits, int parts, int64_t in, int64_t width, float *sum,
                                   int64_t stride, double homogeneous)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= parts * in) return;
    const int64_t q = i / in, k = i % in;
    double total = 0.0;
#pragma unroll 8
    for (int s = 0; s < splits; s++) total += (double)partial[((int64_t)s * parts + q) * width + k];
    sum[q * stride + k] += (float)total;
    if (k == 0 && homogeneous != 0.0) sum[q * stride + in] += (float)homogeneous;
}

/* Block q: the number of part q, its n partial sums `parts` apart. */
static __global__ void __launch_bounds__(THREADS)
    finish_squares(const double *partial, int64_t n, int parts, char *square, size_t stride, double homogeneous)
{
    __shared__ double shared[32];
    double total = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) total += partial[i * parts + blockIdx.x];
    total = block_sum(total, shared);
    if (threadIdx.x == 0) *(double *)(square + blockIdx.x * stride) += total + homogeneous;
}

template <typename T> static void launch_values(abar_device *dev, const values &s, dim3 grid, bool squares)
{
    if (s.parts == 1)
        abar__cuda_launch(dev, squares ? sum_values<T, 1, true> : sum_values<T, 1, false>, grid, dim3(THREADS), 0, s);
    else if (s.parts <= 8)
        abar__cuda_launch(dev, squares ? sum_values<T, 8, true> : sum_values<T, 8, false>, grid, dim3(THREADS), 0, s);
    else
        abar__cuda_launch(dev, squares ? sum_values<T, HEADS, true> : sum_values<T, HEADS, false>, grid, dim3(THREADS), 0, s);
}

/* Vectors of n elements of this size can be read at once. */
static bool fits_vectors(const view *x, int64_t in, int64_t n, int64_t size)
{
    return x->step[2] == 1 && x->step[0] % n == 0 && x->step[1] % n == 0 && in % n == 0 &&
           (uintptr_t)x->data % (uintptr_t)(n * size) == 0;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Parts s.first .. s.first + s.parts - 1. */
static void sum_parts(abar_device *dev, const abar__rows *r, const abar__value_sums *v, values s)
{
    const int64_t blocks = abar__cuda_blocks(s.in, WIDE), width = blocks * WIDE, tiles = abar__cuda_blocks(s.rows, ROWS);
    const int64_t workspace = (int64_t)(ABAR_STATS_HALF / sizeof(float)) / (s.parts * width);
    const int64_t wanted = 8 * (int64_t)abar__cuda_of(dev)->processors / blocks;
    int64_t splits = least(least(tiles, SPLITS), least(workspace, wanted));
    if (splits < 1) splits = 1;
    s.each = abar__cuda_blocks(tiles, splits) * ROWS;
    splits = abar__cuda_blocks(s.rows, s.each);
    s.partial = (float *)abar__cuda_of(dev)->workspace;
    s.squares = abar__cuda_upper(dev);
    const dim3 grid((unsigned)splits, (unsigned)blocks);
    if (s.x.dtype == ABAR_F32 && fits_vectors(&s.x, s.in, 4, 4))
        launch_values<float>(dev, s, grid, v->square != NULL);
    else if (s.x.dtype == ABAR_BF16 && fits_vectors(&s.x, s.in, 8, 2))
        launch_values<bf16>(dev, s, grid, v->square != NULL);
    else
        launch_values<any_type>(dev, s, grid, v->square != NULL);
    const double homogeneous = r->bias ? v->sequences : 0.0;
    float *sum = (float *)v->sum + s.first * v->sum_stride;
    abar__cuda_launch(dev, finish_sums, dim3((unsigned)abar__cuda_blocks(s.parts * s.in, THREADS)), dim3(THREADS), 0, s.partial,
                      (int)splits, s.parts, s.in, width, sum, v->sum_stride, homogeneous);
    if (v->square)
        abar__cuda_launch(dev, finish_squares, dim3((unsigned)s.parts), dim3(THREADS), 0, s.squares, splits * blocks, s.parts,
                          (char *)v->square + (size_t)s.first * v->square_stride, v->square_stride, homogeneous);
}

/* ---- with the heads' mean, the usual way ---------------------------------------------------------------------------- */

/* Thread: the weight of one row. */
static __global__ void __launch_bounds__(THREADS) mean_columns(const __grid_constant__ values s, float *weight)
{
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row < s.rows) weight[row] = weight_of(s, 0, place_of(s, row));
}

/* Grid: row_blocks. */
template <typename T>
static __global__ void __launch_bounds__(ABAR_ROW_THREADS, 2)
    sum_weighed_rows(const __grid_constant__ row_sums s, float *partial, unsigned *tickets)
{
    __shared__ __align__(16) float shared[ABAR_ROW_SHARED];
    sum_rows<T, ROWS_WEIGHED>(s, blockIdx.x, shared, partial, tickets);
}

/* Where x can be read in vectors and the weights fit in the upper half of the workspace. */
static bool sum_mean(abar_device *dev, const abar__rows *r, const abar__value_sums *v, const values &s)
{
    const abar__cuda *cuda = abar__cuda_of(dev);
    const bool pairs = s.x.dtype == ABAR_BF16, joined = s.x.step[0] == s.tokens * s.x.step[1];
    if (!s.mean || v->square || s.rows > (int64_t)(ABAR_STATS_HALF / sizeof(float)) || s.in > ABAR_ROW_COLUMNS) return false;
    if (!(pairs && fits_vectors(&s.x, s.in, 8, 2)) && !(s.x.dtype == ABAR_F32 && fits_vectors(&s.x, s.in, 4, 4))) return false;
    float *weight = (float *)abar__cuda_upper(dev);
    row_sums sums = {};
    sums.data = s.x.data;
    sums.rows = (unsigned)s.rows;
    sums.inner = (unsigned)(joined ? s.rows : s.tokens);
    sums.near = s.x.step[1];
    sums.far = s.x.step[0];
    sums.channels = (int)s.in;
    sums.kernel[0] = sums.kernel[1] = sums.folds = 1;
    sums.weight = weight;
    sums.out = (float *)v->sum;
    sums.scale = 1.0;
    sums.last = r->bias ? v->sequences : 0.0;
    share_rows(dev, &sums, pairs ? 8 : 4, 2);
    abar__cuda_launch(dev, mean_columns, dim3((unsigned)abar__cuda_blocks(s.rows, THREADS)), dim3(THREADS), 0, s, weight);
    abar__cuda_launch(dev, pairs ? sum_weighed_rows<bf16> : sum_weighed_rows<float>, dim3(row_blocks(&sums)),
                      dim3(ABAR_ROW_THREADS), 0, sums, (float *)cuda->workspace, cuda->tickets);
    return true;
}

extern "C" void abar__cuda_value_sums(abar_device *dev, const abar__rows *r, const abar__value_sums *v)
{
    values s = {};
    s.x = view_of(&r->input);
    s.columns = view_of(&r->columns);
    s.rows = r->examples * r->per_example;
    s.tokens = r->per_example;
    s.in = r->in;
    s.heads = r->columns.dim[1];
    s.mean = v->parts == 1;
    if (s.rows == 0 || s.in == 0 || sum_mean(dev, r, v, s)) return;
    for (int64_t first = 0; first < v->parts; first += HEADS) {
        s.first = (int)first;
        s.parts = (int)least(v->parts - first, HEADS);
        sum_parts(dev, r, v, s);
    }
}

/* ---- in two factors: sums by position ------------------------------------------------------------------------------- */

#define LANES 32 /* columns of x that a block takes */
#define SLOTS (THREADS / LANES)

typedef struct positions {
    view x, columns;
    int64_t heads, in, sequences, windows;
    int64_t grid[2], side, shift;
    int64_t first;   /* position of the launch */
    double *squares; /* (positions of the launch, blocks) */
} positions;

/* The token that is at this position of this window: the inverse of abar__position. */
__device__ static inline int64_t token_of(const positions &s, int64_t window, int64_t position)
{
    if (s.side == 0) return position;
    const int64_t across = s.grid[1] / s.side;
    const int64_t y = window / across * s.side + position / s.side, x = window % across * s.side + position % s.side;
    return (y + s.shift) % s.grid[0] * s.grid[1] + (x + s.shift) % s.grid[1];
}

/* The sum over slots of what the block's threads have for their column; shared: one double per thread. */
__device__ static inline double slot_sum(double v, double *shared)
{
    __syncthreads();
    shared[threadIdx.x] = v;
    __syncthreads();
    double total = 0.0;
    for (int i = 0; i < SLOTS; i++) total += shared[i * LANES + threadIdx.x % LANES];
    return total;
}

/* Block (p, y): position first + p, columns from y * LANES on. Thread: one column, every SLOTS-th sequence. */
static __global__ void __launch_bounds__(THREADS) sum_positions(const __grid_constant__ positions s, float *sum, bool squares)
{
    __shared__ double shared[THREADS], warps[32];
    const int64_t p = s.first + blockIdx.x, column = (int64_t)blockIdx.y * LANES + threadIdx.x % LANES;
    double total = 0.0, square = 0.0;
#pragma unroll 4
    for (int64_t b = threadIdx.x / LANES; b < s.sequences && column < s.in; b += SLOTS) {
        const double v = load_view(s.x, b / s.windows, token_of(s, b % s.windows, p), column);
        total += v;
        square += v * v;
    }
    total = slot_sum(total, shared);
    if (threadIdx.x < LANES && column < s.in) sum[p * s.in + column] += (float)total;
    if (!squares) return;
    square = block_sum(square, warps);
    if (threadIdx.x == 0) s.squares[(int64_t)blockIdx.x * gridDim.y + blockIdx.y] = square;
}

/* Block p: the columns of position first + p, and its square from so many blocks. */
static __global__ void __launch_bounds__(THREADS)
    finish_positions(const __grid_constant__ positions s, float *columns, double *square, int64_t blocks)
{
    __shared__ double shared[32];
    const int64_t p = s.first + blockIdx.x;
    double total = 0.0, all = 0.0;
    for (int64_t b = threadIdx.x; b < s.sequences; b += THREADS)
        total += column_mean(s.columns, s.heads, b / s.windows, token_of(s, b % s.windows, p));
    total = block_sum(total, shared);
    for (int64_t i = threadIdx.x; square && i < blocks; i += THREADS) all += s.squares[(int64_t)blockIdx.x * blocks + i];
    all = block_sum(all, shared);
    if (threadIdx.x != 0) return;
    columns[p] += (float)total;
    if (square) square[p] += all;
}

extern "C" void abar__cuda_position_sums(abar_device *dev, const abar__rows *r, const abar__position_sums *v)
{
    positions s = {};
    s.x = view_of(&r->input);
    s.columns = view_of(&r->columns);
    s.heads = r->columns.dim[1];
    s.in = r->in;
    s.windows = r->per_example / v->positions;
    s.sequences = r->examples * s.windows;
    s.side = v->side;
    s.shift = v->shift;
    s.squares = abar__cuda_upper(dev);
    for (int i = 0; i < 2; i++) s.grid[i] = v->grid[i];
    if (s.sequences == 0 || s.in == 0) return;
    const int64_t blocks = abar__cuda_blocks(s.in, LANES), workspace = ABAR_STATS_EXAMPLES / blocks;
    const int64_t at_once = least(v->positions, workspace < 1 ? 1 : workspace);
    for (s.first = 0; s.first < v->positions; s.first += at_once) {
        const unsigned n = (unsigned)least(at_once, v->positions - s.first);
        abar__cuda_launch(dev, sum_positions, dim3(n, (unsigned)blocks), dim3(THREADS), 0, s, (float *)v->sum,
                          v->square != NULL);
        abar__cuda_launch(dev, finish_positions, dim3(n), dim3(THREADS), 0, s, (float *)v->columns, v->square, blocks);
    }
}

/* Block b: columns from b * LANES on of columnsT X, and the first one also what there is only one of. */
static __global__ void __launch_bounds__(THREADS)
    multiply_positions(int64_t n, int64_t in, const float *x, const float *columns, const double *squares, double sequences,
                       bool bias, float *sum, double *square)
{
    __shared__ double shared[THREADS], warps[32];
    const int64_t column = (int64_t)blockIdx.x * LANES + threadIdx.x % LANES;
    double total = 0.0, all = 0.0;
    for (int64_t j = threadIdx.x / LANES; j < n && column < in; j += SLOTS)
        total += (double)columns[j] * (double)x[j * in + column];
    total = slot_sum(total, shared);
    if (threadIdx.x < LANES && column < in) sum[column] += (float)(total / sequences);
    if (blockIdx.x != 0) return;
    for (int64_t j = threadIdx.x; squares && j < n; j += THREADS) all += (double)columns[j] * squares[j];
    all = block_sum(all, warps);
    if (threadIdx.x != 0) return;
    if (bias) sum[in] += (float)sequences;
    if (squares) *square += all / sequences + (bias ? sequences : 0.0);
}

extern "C" void abar__cuda_position_product(abar_device *dev, const abar__position_sums *p, int64_t in, bool bias,
                                            double sequences, void *sum, double *square)
{
    const cudaStream_t stream = abar__cuda_of(dev)->stream;
    const size_t n = (size_t)p->positions;
    if (in == 0) return;
    abar__cuda_launch(dev, multiply_positions, dim3((unsigned)abar__cuda_blocks(in, LANES)), dim3(THREADS), 0, p->positions, in,
                      (const float *)p->sum, (const float *)p->columns, p->square, sequences, bias, (float *)sum, square);
    abar__cuda_remember(dev, cudaMemsetAsync(p->sum, 0, n * (size_t)in * sizeof(float), stream));
    abar__cuda_remember(dev, cudaMemsetAsync(p->columns, 0, n * sizeof(float), stream));
    if (p->square) abar__cuda_remember(dev, cudaMemsetAsync(p->square, 0, n * sizeof(double), stream));
}
