/* Layer norm over the last dimension of a dense value, (rows, width): y = scale (x - mean) rstd + shift. With xh = (x -
 * mean) rstd and g = scale dy: dx = rstd (g - mean(g) - xh mean(g xh)), dscale = sum dy xh, dshift = sum dy over rows.
 * saved, (rows, 2): mean and rstd.
 *
 * With a residual x is the sum of two inputs, the stream, which forward writes in addition to y; backward adds the gradient
 * that other readers of the stream have, and the sum is the gradient of both inputs.
 *
 * Where a team of 4 to 32 lanes of a warp can hold a row in its registers it reads it once; backward keeps the column sums
 * there, too. Teams are as small as three packs a lane allow: of 96, 192, 384 and 768 numbers in bf16 every lane has three.
 * Other widths use kernels that read a row again for every pass over it. */
#include "device/cuda/nn/bias_relu.h"
#include "device/cuda/nn/sequence.h"

#define ROWS_PER_BLOCK 8 /* one warp each; warps of teams: rows of a team */
#define TEAM_PACKS 3     /* of a lane, where the team could be larger */
#define COLUMN_LANES 8   /* threads that share a column of a slab */
#define MAX_SLABS 1024   /* of rows, summed separately and then added in order */
#define MAX_HELD 48      /* elements of a row that a lane holds */

/* The arguments of the kernels. Without a residual x is the input of the norm; with one, forward writes stream = x +
 * residual, and backward reads it as x. shift, saved (forward), dx, dx_too (the second input's, where it has memory of its
 * own) and dstream may be NULL. */
template <typename T> struct norm_memory {
    int64_t rows;
    int width;
    float eps;
    const T *x, *residual, *dy, *dstream;
    const float *scale, *shift;
    T *y, *stream, *dx, *dx_too;
    float *saved, *partial; /* partial (slabs, 2, width): sums of dy xh and of dy over a slab of rows */
};

/* The value as it will be read again. */
__device__ static inline float rounded(const float *, float v) { return v; }
__device__ static inline float rounded(const bf16 *, float v) { return __bfloat162float(__float2bfloat16_rn(v)); }

/* The gradient of a row: written to both inputs. */
template <typename T, int V> __device__ static inline void store_both(const norm_memory<T> &m, int64_t at, const lanes<V> &g)
{
    if (m.dx) store_lanes<V>(m.dx + at, g);
    if (m.dx_too) store_lanes<V>(m.dx_too + at, g);
}

/* Blocks of backward that a multiprocessor can run at once where a lane holds K packs of V elements: of three rows in their
 * storage type, and of two sums. */
static constexpr int blocks_at_once(int K, int V)
{
    const int registers = 3 * 4 * K + 2 * K * V;
    return registers <= 40 ? 4 : registers <= 56 ? 3 : registers <= 84 ? 2 : 1;
}

/* ---- rows in registers: K packs a lane, L lanes a row ------------------------------------------------------------------ */

/* The lane's part of a row, in its storage type: packs lane, lane + L, ...; zeros past its end. */
template <typename T, int K, int L> struct raw_row {
    uint4 part[K];
    __device__ void read(const T *row, int width)
    {
#pragma unroll
        for (int j = 0; j < K; j++) {
            const int c = (threadIdx.x % L + L * j) * pack<T>::n;
            part[j] = make_uint4(0, 0, 0, 0);
            if (c < width) part[j] = *reinterpret_cast<const uint4 *>(row + c);
        }
    }
    __device__ lanes<pack<T>::n> numbers(int j) const { return load_lanes<pack<T>::n>(reinterpret_cast<const T *>(&part[j])); }
};

/* Calls work(j, column) for every pack that the lane holds. */
template <typename T, int K, int L, typename Work> __device__ static inline void for_held(int width, Work work)
{
#pragma unroll
    for (int j = 0; j < K; j++) {
        const int c = (threadIdx.x % L + L * j) * pack<T>::n;
        if (c < width) work(j, c);
    }
}

/* The sum over the lanes of a team, in each of them; every lane of the warp must come. */
template <int L> __device__ static inline float team_sum(float v)
{
#pragma unroll
    for (int apart = L / 2; apart; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
    return v;
}

/* A team owns a row. Past the last row a team has a width of 0, and takes part in the warp's sums. */
template <typename T, int K, int L, bool RESIDUAL>
static __global__ void __launch_bounds__(32 * ROWS_PER_BLOCK) forward_held_kernel(norm_memory<T> m)
{
    constexpr int V = pack<T>::n;
    const int64_t row = (int64_t)blockIdx.x * (32 / L * ROWS_PER_BLOCK) + threadIdx.x / L, at = row * m.width;
    const int width = row < m.rows ? m.width : 0;
    raw_row<T, K, L> x, residual;
    lanes<V> v[K];
    x.read(m.x + at, width);
    if (RESIDUAL) residual.read(m.residual + at, width);
    for_held<T, K, L>(width, [&](int j, int c) {
        v[j] = x.numbers(j);
        if (!RESIDUAL) return;
        const lanes<V> other = residual.numbers(j);
#pragma unroll
        for (int k = 0; k < V; k++) v[j].v[k] = rounded(m.x, v[j].v[k] + other.v[k]);
        store_lanes<V>(m.stream + at + c, v[j]);
    });
    float sum = 0.0f, square = 0.0f;
    for_held<T, K, L>(width, [&](int j, int) {
#pragma unroll
        for (int k = 0; k < V; k++) sum += v[j].v[k];
    });
    const float mean = team_sum<L>(sum) / (float)m.width;
    for_held<T, K, L>(width, [&](int j, int) {
#pragma unroll
        for (int k = 0; k < V; k++) square += (v[j].v[k] - mean) * (v[j].v[k] - mean);
    });
    const float rstd = 1.0f / sqrtf(team_sum<L>(square) / (float)m.width + m.eps);
    for_held<T, K, L>(width, [&](int j, int c) {
        const lanes<V> scale = load_floats<V>(m.scale + c);
        lanes<V> shift = {};
        if (m.shift) shift = load_floats<V>(m.shift + c);
#pragma unroll
        for (int k = 0; k < V; k++) v[j].v[k] = (v[j].v[k] - mean) * rstd * scale.v[k] + shift.v[k];
        store_lanes<V>(m.y + at + c, v[j]);
    });
    if (m.saved && width && threadIdx.x % L == 0) m.saved[2 * row] = mean, m.saved[2 * row + 1] = rstd;
}

/* The sums of a block's teams over their rows: added in order in shared memory, sums (teams, width). */
template <typename T, int K, int L>
__device__ static inline void add_teams(const norm_memory<T> &m, const lanes<pack<T>::n> (&held)[K], int which, float *sums)
{
    const int teams = 32 / L * ROWS_PER_BLOCK, team = threadIdx.x / L;
    __syncthreads();
    for_held<T, K, L>(m.width, [&](int j, int c) {
#pragma unroll
        for (int k = 0; k < pack<T>::n; k++) sums[team * m.width + c + k] = held[j].v[k];
    });
    __syncthreads();
    for (int c = threadIdx.x; c < m.width; c += 32 * ROWS_PER_BLOCK) {
        float sum = 0.0f;
        for (int t = 0; t < teams; t++) sum += sums[t * m.width + c];
        m.partial[((int64_t)blockIdx.x * 2 + which) * m.width + c] = sum;
    }
}

/* dx and partial. A team owns rows at equal distances; RESIDUAL: there is a dstream. Rows are held in their storage type,
 * which takes half the registers, and are converted to float twice. */
template <typename T, int K, int L, bool RESIDUAL>
static __global__ void __launch_bounds__(32 * ROWS_PER_BLOCK, blocks_at_once(K, pack<T>::n))
    backward_held_kernel(norm_memory<T> m)
{
    extern __shared__ float sums[];
    constexpr int V = pack<T>::n, teams = 32 / L * ROWS_PER_BLOCK;
    lanes<V> dscale[K] = {}, dshift[K] = {};
    const int64_t begin = (int64_t)blockIdx.x * teams + threadIdx.x / 32 * (32 / L), step = (int64_t)gridDim.x * teams;
    for (int64_t of_warp = begin; of_warp < m.rows; of_warp += step) { /* the first of the warp's rows */
        const int64_t mine = of_warp + threadIdx.x % 32 / L, row = mine < m.rows ? mine : of_warp, at = row * m.width;
        const int width = mine < m.rows ? m.width : 0;
        raw_row<T, K, L> x, dy, dstream;
        x.read(m.x + at, width);
        dy.read(m.dy + at, width);
        if (RESIDUAL) dstream.read(m.dstream + at, width);
        const float mean = m.saved[2 * row], rstd = m.saved[2 * row + 1];
        float sum = 0.0f, dot = 0.0f; /* of g = scale dy, and of g times xh */
        for_held<T, K, L>(width, [&](int j, int c) {
            const lanes<V> v = x.numbers(j), d = dy.numbers(j), scale = load_floats<V>(m.scale + c);
#pragma unroll
            for (int k = 0; k < V; k++) {
                const float xh = (v.v[k] - mean) * rstd, g = d.v[k] * scale.v[k];
                dscale[j].v[k] += d.v[k] * xh;
                dshift[j].v[k] += d.v[k];
                sum += g;
                dot += g * xh;
            }
        });
        if (!m.dx) continue;
        sum = team_sum<L>(sum) / (float)m.width;
        dot = team_sum<L>(dot) / (float)m.width;
        for_held<T, K, L>(width, [&](int j, int c) {
            const lanes<V> v = x.numbers(j), scale = load_floats<V>(m.scale + c);
            lanes<V> g = dy.numbers(j), beside = {};
            if (RESIDUAL) beside = dstream.numbers(j);
#pragma unroll
            for (int k = 0; k < V; k++)
                g.v[k] = rstd * (g.v[k] * scale.v[k] - sum - (v.v[k] - mean) * rstd * dot) + beside.v[k];
            store_both(m, at + c, g);
        });
    }
    add_teams<T, K, L>(m, dscale, 0, sums);
    add_teams<T, K, L>(m, dshift, 1, sums);
}

/* ---- rows of any width ------------------------------------------------------------------------------------------------ */

/* A warp owns a row, a lane every 32nd V-vector of it. */
template <typename T, int V> static __global__ void forward_kernel(norm_memory<T> m)
{
    const int64_t row = (int64_t)blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / 32, at = row * m.width;
    const int first = threadIdx.x % 32 * V;
    if (row >= m.rows) return;
    const T *x = m.residual ? m.stream : m.x; /* a lane reads only what it wrote itself */
    float sum = 0.0f, square = 0.0f;
    for (int c = first; c < m.width; c += 32 * V) {
        lanes<V> v = load_sum<V>(m.x, m.residual, at + c);
#pragma unroll
        for (int k = 0; k < V; k++) sum += v.v[k] = rounded(m.x, v.v[k]);
        if (m.residual) store_lanes<V>(m.stream + at + c, v);
    }
    const float mean = warp_sum(sum) / (float)m.width;
    for (int c = first; c < m.width; c += 32 * V) {
        const lanes<V> v = load_lanes<V>(x + at + c);
#pragma unroll
        for (int k = 0; k < V; k++) square += (v.v[k] - mean) * (v.v[k] - mean);
    }
    const float rstd = 1.0f / sqrtf(warp_sum(square) / (float)m.width + m.eps);
    for (int c = first; c < m.width; c += 32 * V) {
        lanes<V> v = load_lanes<V>(x + at + c);
#pragma unroll
        for (int k = 0; k < V; k++) v.v[k] = (v.v[k] - mean) * rstd * m.scale[c + k] + (m.shift ? m.shift[c + k] : 0.0f);
        store_lanes<V>(m.y + at + c, v);
    }
    if (m.saved && first == 0) m.saved[2 * row] = mean, m.saved[2 * row + 1] = rstd;
}

/* dx. A warp owns a row, a lane every 32nd V-vector of it. */
template <typename T, int V> static __global__ void input_grad_kernel(norm_memory<T> m)
{
    const int64_t row = (int64_t)blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / 32, at = row * m.width;
    const int first = threadIdx.x % 32 * V;
    if (row >= m.rows) return;
    const float mean = m.saved[2 * row], rstd = m.saved[2 * row + 1];
    float sum = 0.0f, dot = 0.0f; /* of g, and of g times xh */
    for (int c = first; c < m.width; c += 32 * V) {
        const lanes<V> v = load_lanes<V>(m.x + at + c), d = load_lanes<V>(m.dy + at + c);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const float g = d.v[k] * m.scale[c + k];
            sum += g;
            dot += g * (v.v[k] - mean) * rstd;
        }
    }
    sum = warp_sum(sum) / (float)m.width;
    dot = warp_sum(dot) / (float)m.width;
    for (int c = first; c < m.width; c += 32 * V) {
        lanes<V> v = load_lanes<V>(m.x + at + c), d = load_lanes<V>(m.dy + at + c), beside = {};
        if (m.dstream) beside = load_lanes<V>(m.dstream + at + c);
#pragma unroll
        for (int k = 0; k < V; k++)
            v.v[k] = rstd * (d.v[k] * m.scale[c + k] - sum - (v.v[k] - mean) * rstd * dot) + beside.v[k];
        store_both(m, at + c, v);
    }
}

/* partial. Threads (32, COLUMN_LANES): blockIdx.x and threadIdx.x choose a column, blockIdx.y the slab, threadIdx.y every
 * COLUMN_LANES-th row of it. */
template <typename T> static __global__ void column_sums_kernel(norm_memory<T> m)
{
    __shared__ float2 part[COLUMN_LANES][32];
    const int c = blockIdx.x * 32 + threadIdx.x, width = m.width;
    const int64_t begin = m.rows * blockIdx.y / gridDim.y, end = m.rows * (blockIdx.y + 1) / gridDim.y;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int64_t row = begin + threadIdx.y; row < end && c < width; row += COLUMN_LANES) {
        const float g = load(m.dy, row * width + c);
        sum.x += g * (load(m.x, row * width + c) - m.saved[2 * row]) * m.saved[2 * row + 1];
        sum.y += g;
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c >= width) return;
    for (int l = 1; l < COLUMN_LANES; l++) {
        sum.x += part[l][threadIdx.x].x;
        sum.y += part[l][threadIdx.x].y;
    }
    m.partial[(int64_t)blockIdx.y * 2 * width + c] = sum.x;
    m.partial[((int64_t)blockIdx.y * 2 + 1) * width + c] = sum.y;
}

/* ---- the operation -------------------------------------------------------------------------------------------------- */

static int width_of(const abar__op *op) { return (int)op->desc.in[0].dim[op->desc.in[0].ndim - 1]; }
static int64_t rows_of(const abar__op *op) { return abar__shape_count(&op->desc.in[0]) / width_of(op); }

/* Lanes that hold a row together. */
static int team_of(const abar__op *op)
{
    const int elements = abar__cuda_is_bf16(op->dev) ? pack<bf16>::n : pack<float>::n;
    int team = 4;
    while (team < 32 && width_of(op) > team * elements * TEAM_PACKS) team *= 2;
    return team;
}

/* Packs of a row that a lane holds; 0: it does not fit. */
static int held_of(const abar__op *op)
{
    const int elements = abar__cuda_is_bf16(op->dev) ? pack<bf16>::n : pack<float>::n, width = width_of(op);
    const int held = (int)abar__cuda_blocks(width, team_of(op) * elements);
    return width % elements == 0 && held * elements <= MAX_HELD ? held : 0;
}

/* Rows that a block holds at a time. */
static int rows_at_once(const abar__op *op) { return 32 / team_of(op) * ROWS_PER_BLOCK; }

/* Blocks that share the rows in backward. */
static int slabs_of(const abar__op *op)
{
    const int64_t wanted = abar__cuda_blocks(rows_of(op), held_of(op) ? rows_at_once(op) : 8 * COLUMN_LANES);
    const int V = abar__cuda_is_bf16(op->dev) ? pack<bf16>::n : pack<float>::n;
    const int64_t most = held_of(op) ? blocks_at_once(held_of(op), V) * abar__cuda_of(op->dev)->processors : 64;
    const int64_t slabs = wanted < most ? wanted : most;
    return slabs < MAX_SLABS ? (int)slabs : MAX_SLABS;
}

static abar_status create(abar__op *op)
{
    op->in_layout[0] = op->in_layout[1] = op->out_layout = ABAR_LAYOUT_STRIDED;
    op->backward_needs = op->desc.residual ? ABAR_NEEDS_STREAM : ABAR_NEEDS_X;
    op->dx_alike = op->desc.residual;
    op->saved_bytes = (size_t)rows_of(op) * 2 * sizeof(float);
    op->scratch_bytes = (size_t)slabs_of(op) * 2 * (size_t)width_of(op) * sizeof(float);
    return ABAR_OK;
}

template <typename T> static norm_memory<T> memory_of(const abar__op *op, const abar__op_args *a, bool back)
{
    const bool residual = op->desc.residual;
    norm_memory<T> m = {};
    m.rows = rows_of(op);
    m.width = width_of(op);
    m.eps = (float)op->desc.eps;
    m.x = (const T *)(residual && back ? a->stream : a->x[0]);
    m.residual = residual ? (const T *)a->x[1] : NULL;
    m.stream = (T *)a->stream;
    m.y = (T *)a->y;
    m.dy = (const T *)a->dy;
    m.dstream = (const T *)a->dstream;
    m.dx = (T *)(a->dx[0] ? a->dx[0] : a->dx[1]);
    m.dx_too = a->dx[0] && a->dx[1] != a->dx[0] ? (T *)a->dx[1] : NULL;
    m.scale = (const float *)a->param[0];
    m.shift = (const float *)a->param[1];
    m.saved = (float *)a->saved;
    m.partial = (float *)a->scratch;
    return m;
}

template <typename T, int K, int L> static void held_launch(abar__op *op, const norm_memory<T> &m, bool back)
{
    const dim3 threads(32 * ROWS_PER_BLOCK);
    if (back)
        abar__cuda_launch(op->dev, m.dstream ? backward_held_kernel<T, K, L, true> : backward_held_kernel<T, K, L, false>,
                          dim3((unsigned)slabs_of(op)), threads, (size_t)rows_at_once(op) * (size_t)m.width * sizeof(float), m);
    else
        abar__cuda_launch(op->dev, m.residual ? forward_held_kernel<T, K, L, true> : forward_held_kernel<T, K, L, false>,
                          dim3((unsigned)abar__cuda_blocks(m.rows, rows_at_once(op))), threads, 0, m);
}

/* K: 2, 3, and in the smallest teams 1. */
template <typename T, int L> static void team_run(abar__op *op, const norm_memory<T> &m, bool back)
{
    const int held = held_of(op);
    if (held == 3)
        held_launch<T, 3, L>(op, m, back);
    else if (held == 2)
        held_launch<T, 2, L>(op, m, back);
    else if constexpr (L == 4)
        held_launch<T, 1, L>(op, m, back);
}

/* K: 2, 3, 4, 6, and for floats 8 and 12. */
template <typename T> static void warp_run(abar__op *op, const norm_memory<T> &m, bool back)
{
    const int held = held_of(op);
    if (held == 2)
        held_launch<T, 2, 32>(op, m, back);
    else if (held == 3)
        held_launch<T, 3, 32>(op, m, back);
    else if (held == 4)
        held_launch<T, 4, 32>(op, m, back);
    else if (held <= 6)
        held_launch<T, 6, 32>(op, m, back);
    else if constexpr (sizeof(T) == sizeof(float)) { /* only floats need so many */
        if (held <= 8)
            held_launch<T, 8, 32>(op, m, back);
        else
            held_launch<T, 12, 32>(op, m, back);
    }
}

template <typename T> static void held_run(abar__op *op, const norm_memory<T> &m, bool back)
{
    switch (team_of(op)) {
    case 4: team_run<T, 4>(op, m, back); break;
    case 8: team_run<T, 8>(op, m, back); break;
    case 16: team_run<T, 16>(op, m, back); break;
    default: warp_run<T>(op, m, back); break;
    }
}

template <typename T> static void forward_as(abar__op *op, const abar__op_args *a)
{
    const norm_memory<T> m = memory_of<T>(op, a, false);
    if (held_of(op)) {
        held_run<T>(op, m, false);
        return;
    }
    abar__cuda_launch(op->dev, m.width % pack<T>::n == 0 ? forward_kernel<T, pack<T>::n> : forward_kernel<T, 1>,
                      dim3((unsigned)abar__cuda_blocks(m.rows, ROWS_PER_BLOCK)), dim3(32 * ROWS_PER_BLOCK), 0, m);
}

/* partial, and dx where it is wanted, by kernels that read rows again. */
template <typename T> static void backward_streamed(abar__op *op, const norm_memory<T> &m)
{
    if (m.dx)
        abar__cuda_launch(op->dev, m.width % pack<T>::n == 0 ? input_grad_kernel<T, pack<T>::n> : input_grad_kernel<T, 1>,
                          dim3((unsigned)abar__cuda_blocks(m.rows, ROWS_PER_BLOCK)), dim3(32 * ROWS_PER_BLOCK), 0, m);
    abar__cuda_launch(op->dev, column_sums_kernel<T>, dim3((unsigned)abar__cuda_blocks(m.width, 32), (unsigned)slabs_of(op)),
                      dim3(32, COLUMN_LANES), 0, m);
}

template <typename T> static void backward_as(abar__op *op, const abar__op_args *a)
{
    const norm_memory<T> m = memory_of<T>(op, a, true);
    if (held_of(op))
        held_run<T>(op, m, true);
    else
        backward_streamed<T>(op, m);
    abar__cuda_join_pairs(op->dev, m.partial, slabs_of(op), m.width, (float *)a->dparam[0], (float *)a->dparam[1],
                          a->accumulate);
}

static abar_status forward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        forward_as<bf16>(op, a);
    else
        forward_as<float>(op, a);
    return abar__cuda_status(op->dev);
}

static abar_status backward(abar__op *op, const abar__op_args *a)
{
    if (abar__cuda_is_bf16(op->dev))
        backward_as<bf16>(op, a);
    else
        backward_as<float>(op, a);
    return abar__cuda_status(op->dev);
}

const abar__op_impl abar__cuda_layer_norm = {"cuda-layer-norm", ABAR_OP_LAYER_NORM, create, forward, backward, NULL};
