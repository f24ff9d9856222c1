/* Sums over the rows of a map without ever building a row (methods.md section 1), one launch and one read of the tensor each:
 * over windows (core_windows.h) or, where these do not overlap, over rows as they lie (core_rows.h). Sums of output gradients
 * have windows of one tap, and so have rows of vectors, which are one image of as many pixels. */
#include "device/cuda/core_rows.h"
#include "device/cuda/core_windows.h"

#define LANES 8     /* of mean_windows, at most */
#define EXTENT 1024 /* of its images, at most */

/* Grid: (splits, blocks of channels, images with sums of their own). */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    sum_stacks(const __grid_constant__ stack s, bool squares, float *partial, unsigned *tickets)
{
    extern __shared__ uint64_t shared[];
    sum_windows<T, N>(s, squares, blockIdx.x, blockIdx.y, shared, partial, tickets);
}

/* ---- every image by itself ------------------------------------------------------------------------------------------- */

/* The usual windows, K x K taps, of vectors of N channels: block (y, z) has width channels from y * width on of image z. A
 * thread sums its pixels by taps, then the block its threads; lanes is a power of two. */
template <typename T, int N, int K>
static __global__ void __launch_bounds__(THREADS) mean_windows(const __grid_constant__ stack s)
{
    __shared__ float sums[THREADS / 32][LANES * N * K * K];
    __shared__ unsigned char seen[2][EXTENT]; /* bit k: by tap k */
    const int lane = (int)threadIdx.x % s.lanes, place = (int)threadIdx.x / s.lanes, warp = (int)threadIdx.x / 32;
    const int wide = (int)s.width, area = (int)s.height * wide, width = s.lanes * N;
    const int64_t first = (int64_t)blockIdx.y * width;
    const T *data = (const T *)s.data + blockIdx.z * s.stride[0] + first + lane * N;
    for (int axis = 0; axis < 2; axis++)
        for (int i = (int)threadIdx.x; i < (axis ? wide : (int)s.height); i += THREADS) {
            unsigned bits = 0;
            for (int k = 0; k < K; k++) bits |= (unsigned)sees(s, axis, i, k) << k;
            seen[axis][i] = (unsigned char)bits;
        }
    __syncthreads();
    float sum[K * K][N] = {};
#pragma unroll 4
    for (int pixel = place; pixel < area; pixel += s.pixels) {
        const int y = pixel / wide, x = pixel - y * wide;
        const pack<T> a = load_pack(data + y * s.stride[2] + x * s.stride[3]);
#pragma unroll
        for (int k = 0; k < K * K; k++)
            if (seen[0][y] >> k / K & seen[1][x] >> k % K & 1)
#pragma unroll
                for (int i = 0; i < N; i++) sum[k][i] += a.v[i];
    }
#pragma unroll
    for (int i = 0; i < K * K * N; i++) {
        float &v = sum[i / N][i % N];
        for (int other = 16; other >= s.lanes; other /= 2) v += __shfl_xor_sync(0xffffffffu, v, other);
        if (threadIdx.x % 32 < s.lanes) sums[warp][(lane * N + i % N) * K * K + i / N] = v;
    }
    __syncthreads();
    for (int o = (int)threadIdx.x; o < width * K * K; o += THREADS)
        for (int w = 1; w < THREADS / 32; w++) sums[0][o] += sums[w][o];
    store_row(s, first, sums[0], width * K * K); /* each thread what it has summed */
}

template <typename T, int N, int K> static void launch_means(abar_device *dev, stack s)
{
    const int64_t vectors = s.channels / N;
    s.lanes = 1;
    while (s.lanes < LANES && vectors % (2 * s.lanes) == 0) s.lanes *= 2;
    s.pixels = THREADS / s.lanes;
    const dim3 grid(1, (unsigned)(vectors / s.lanes), (unsigned)s.images);
    abar__cuda_launch(dev, mean_windows<T, N, K>, grid, dim3(THREADS), 0, s);
}

/* ---- how the blocks share a stack --------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static size_t shared_bytes(const stack *s, int n)
{
    const size_t width = (size_t)s->lanes * (size_t)n, kernel = (size_t)s->kernel[0] * (size_t)s->kernel[1];
    return (width * (size_t)s->pixels + width * kernel * (size_t)s->shares) * sizeof(float) +
           (size_t)s->pixels * sizeof(uint64_t);
}

/* Lanes and pixels: neighbours in memory to neighbouring threads. */
static void share_block(stack *s, int n)
{
    const int64_t vectors = s->channels / n, area = s->height * s->width;
    if (s->stride[1] == 1) {
        const int64_t most = CHANNELS / n, blocks = (vectors + most - 1) / most;
        s->lanes = (int)((vectors + blocks - 1) / blocks);
    } else {
        s->lanes = (int)(area >= THREADS ? 1 : least(least(s->channels, CHANNELS), THREADS / area));
    }
    s->pixels = THREADS / s->lanes;
    s->shares = 1;
    while (s->lanes > 1 && shared_bytes(s, n) > 48 * 1024) {
        s->lanes = (s->lanes + 1) / 2;
        s->pixels = THREADS / s->lanes;
    }
    s->tiles = (area + s->pixels - 1) / s->pixels;
    const int64_t outputs = (int64_t)s->lanes * n * s->kernel[0] * s->kernel[1];
    if (outputs < THREADS) s->shares = (int)(THREADS / outputs); /* taps stay within 1 KB */
}

/* Slices and groups: about two blocks per processor, eight images in flight per thread. */
static void share_grid(const abar_device *dev, stack *s, int64_t blocks, int64_t outputs)
{
    s->groups = s->slices = 1;
    if (s->row) return;
    const int64_t room = (int64_t)(ABAR_STATS_HALF / sizeof(float)) / outputs; /* partial sums of so many blocks */
    int64_t limit = 2 * (int64_t)abar__cuda_of(dev)->processors / blocks;
    limit = limit < 1 ? 1 : least(limit, SPLITS);
    limit = least(limit, room < 1 ? 1 : room);
    s->groups = (int)least(s->tiles, limit);
    const int64_t deep = s->images / 8 < 1 ? 1 : s->images / 8;
    s->slices = (int)least(deep, limit / s->groups);
}

/* Blocks of so many channels, so many of them with their splits in one launch. */
typedef struct window_grid {
    int64_t width, blocks, splits, at_once;
    size_t bytes; /* of shared memory */
} window_grid;

static window_grid share_windows(const abar_device *dev, stack *s, int n)
{
    share_block(s, n);
    const int64_t width = (int64_t)s->lanes * n, outputs = width * s->kernel[0] * s->kernel[1];
    const int64_t blocks = (s->channels + width - 1) / width;
    share_grid(dev, s, blocks, outputs);
    const int64_t splits = (int64_t)s->slices * s->groups,
                  room = (int64_t)(ABAR_STATS_HALF / sizeof(float)) / (outputs * splits);
    const int64_t at_once = s->row ? blocks : least(least(blocks, room < 1 ? 1 : room), ABAR_CUDA_TICKETS);
    return {width, blocks, splits, at_once, shared_bytes(s, n)};
}

template <typename T, int N> static void launch_sums(abar_device *dev, stack s, bool squares)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    const unsigned rows = s.row ? (unsigned)s.images : 1;
    if (s.row) s.images = 1;
    const window_grid g = share_windows(dev, &s, N);
    if (g.bytes > 48 * 1024) abar__cuda_remember(dev, abar__cuda_allow_shared(dev, (const void *)sum_stacks<T, N>));
    for (int64_t done = 0; done < g.blocks; done += g.at_once) {
        s.first = done * g.width;
        const dim3 grid((unsigned)g.splits, (unsigned)least(g.at_once, g.blocks - done), rows);
        abar__cuda_launch(dev, sum_stacks<T, N>, grid, dim3(THREADS), g.bytes, s, squares, (float *)cuda->workspace,
                          cuda->tickets);
    }
}

/* Vectors of n elements of this size can be read at once. */
static bool fits_vectors(const stack *s, int n, int64_t size)
{
    return s->stride[1] == 1 && s->channels % n == 0 && s->stride[0] % n == 0 && s->stride[2] % n == 0 &&
           s->stride[3] % n == 0 && (uintptr_t)s->data % (uintptr_t)(n * size) == 0;
}

/* ---- rows that are read where they lie ------------------------------------------------------------------------------ */

/* Grid: row_blocks. */
template <typename T, row_mode MODE>
static __global__ void __launch_bounds__(ABAR_ROW_THREADS, 2)
    sum_plain_rows(const __grid_constant__ row_sums s, float *partial, unsigned *tickets)
{
    __shared__ __align__(16) float shared[ABAR_ROW_SHARED];
    sum_rows<T, MODE>(s, blockIdx.x, shared, partial, tickets);
}

/* Which rows these are, for vectors of n elements; false: none, or too many. */
static bool find_rows(const stack *s, int n, row_sums *out)
{
    struct {
        int64_t count, stride;
    } level[3] = {
        {s->extent[1], s->step[1] * s->stride[3]}, {s->extent[0], s->step[0] * s->stride[2]}, {s->images, s->stride[0]}};
    row_sums r = {};
    for (int i = 0; i < 2; i++) {
        if (s->pad[i] || s->kernel[i] > s->step[i] || (s->kernel[i] > 1 && s->dilation[i] > 1)) return false;
        r.kernel[i] = s->kernel[i];
    }
    const int64_t window = s->channels * s->kernel[1], columns = window * s->kernel[0];
    if (s->weight || s->row || columns > ABAR_ROW_COLUMNS || (s->kernel[1] > 1 && s->stride[3] != s->channels)) return false;
    r.folds = 1;
    if (window % n && level[0].stride == window) { /* neighbours that touch */
        while (r.folds < n && r.folds * window % n) r.folds++;
        if (level[0].count % r.folds || columns * r.folds > (int64_t)ABAR_ROW_LANES * n) return false;
        level[0].count /= r.folds;
        level[0].stride *= r.folds;
    }
    int levels = 0; /* the levels that are left, from the innermost */
    for (int i = 0; i < 3; i++) {
        if (level[i].count == 1) continue;
        if (levels && level[i].stride == level[levels - 1].count * level[levels - 1].stride)
            level[levels - 1].count *= level[i].count;
        else
            level[levels++] = level[i];
    }
    const int64_t inner = levels ? level[0].count : 1, outer = levels > 1 ? level[1].count : 1;
    if (levels > 2 || inner > INT32_MAX / outer) return false;
    r.data = s->data;
    r.rows = (unsigned)(inner * outer);
    r.inner = (unsigned)inner;
    r.near = levels ? level[0].stride : 0;
    r.far = levels > 1 ? level[1].stride : 0;
    r.down = s->kernel[0] > 1 ? s->dilation[0] * s->stride[2] : 0;
    r.channels = (int)s->channels;
    r.out = s->out;
    r.scale = s->scale;
    r.last = s->last;
    *out = r;
    return s->stride[1] == 1 && row_across(&r) % n == 0 && r.near % n == 0 && r.far % n == 0 && r.down % n == 0 &&
           (uintptr_t)s->data % 16 == 0;
}

template <typename T> static bool launch_rows(abar_device *dev, const stack *s, bool squares)
{
    const abar__cuda *cuda = abar__cuda_of(dev);
    row_sums r;
    if (!find_rows(s, pack<T>::n, &r)) return false;
    share_rows(dev, &r, pack<T>::n, 2);
    abar__cuda_launch(dev, squares ? sum_plain_rows<T, ROWS_SQUARED> : sum_plain_rows<T, ROWS_PLAIN>, dim3(row_blocks(&r)),
                      dim3(ABAR_ROW_THREADS), 0, r, (float *)cuda->workspace, cuda->tickets);
    return true;
}

/* ---- inputs and gradients in one launch ------------------------------------------------------------------------------- */

/* a and p of a layer: the first blocks have a, as windows or as rows, the others p, as rows; two
 * and one per processor, so that all of them run at once. */
typedef struct both_sums {
    stack windows;
    row_sums a, p;
    bool windowed;
    unsigned blocks, splits; /* of a; of its windows */
    float *partial;          /* of p: the upper half of the workspace */
    unsigned *tickets;
} both_sums;

template <typename T, row_mode MODE>
static __global__ void __launch_bounds__(THREADS, 3)
    sum_both(const __grid_constant__ both_sums s, float *partial, unsigned *tickets)
{
    extern __shared__ uint64_t shared[];
    const unsigned block = blockIdx.x;
    if (block >= s.blocks)
        sum_rows<T, MODE>(s.p, block - s.blocks, (float *)shared, s.partial, s.tickets);
    else if (s.windowed)
        sum_windows<T, pack<T>::n>(s.windows, false, block % s.splits, block / s.splits, shared, partial, tickets);
    else
        sum_rows<T, ROWS_PLAIN>(s.a, block, (float *)shared, partial, tickets);
}

/* False: one of them needs its own launches. */
template <typename T> static bool launch_both(abar_device *dev, const stack *a, const stack *p, bool squares)
{
    const abar__cuda *cuda = abar__cuda_of(dev);
    const int n = pack<T>::n;
    both_sums s = {};
    size_t bytes = ABAR_ROW_SHARED * sizeof(float);
    if (!find_rows(p, n, &s.p)) return false;
    share_rows(dev, &s.p, n, 1);
    s.windowed = !find_rows(a, n, &s.a);
    if (s.windowed) {
        if (!fits_vectors(a, n, sizeof(T))) return false;
        s.windows = *a;
        const window_grid g = share_windows(dev, &s.windows, n);
        if (g.at_once < g.blocks || g.bytes > 48 * 1024) return false;
        if (bytes < g.bytes) bytes = g.bytes;
        s.splits = (unsigned)g.splits;
        s.blocks = (unsigned)(g.splits * g.blocks);
    } else {
        share_rows(dev, &s.a, n, 2);
        s.blocks = row_blocks(&s.a);
    }
    if (s.blocks + row_blocks(&s.p) > ABAR_CUDA_TICKETS) return false; /* not more tickets than blocks */
    s.partial = (float *)abar__cuda_upper(dev);
    s.tickets = cuda->tickets + s.blocks;
    abar__cuda_launch(dev, squares ? sum_both<T, ROWS_SQUARED> : sum_both<T, ROWS_PLAIN>, dim3(s.blocks + row_blocks(&s.p)),
                      dim3(THREADS), bytes, s, (float *)cuda->workspace, cuda->tickets);
    return true;
}

static bool is_empty(const stack *s) { return s->images == 0 || s->channels == 0 || s->height == 0 || s->width == 0; }

static void sum_stack(abar_device *dev, const stack *s, abar_dtype dtype, bool squares)
{
    if (is_empty(s)) return;
    if (dtype == ABAR_F32 && launch_rows<float>(dev, s, squares)) return;
    if (dtype == ABAR_BF16 && launch_rows<bf16>(dev, s, squares)) return;
    const bool usual = s->row && s->kernel[0] == s->kernel[1] && s->height <= EXTENT && s->width <= EXTENT;
    const int taps = usual && (s->kernel[0] == 1 || s->kernel[0] == 3) ? s->kernel[0] : 0;
    switch (dtype) {
    case ABAR_F32:
        if (taps && fits_vectors(s, 4, 4))
            taps == 1 ? launch_means<float, 4, 1>(dev, *s) : launch_means<float, 4, 3>(dev, *s);
        else if (fits_vectors(s, 4, 4))
            launch_sums<float, 4>(dev, *s, squares);
        else
            launch_sums<float, 1>(dev, *s, squares);
        break;
    case ABAR_BF16:
        if (taps && fits_vectors(s, 8, 2))
            taps == 1 ? launch_means<bf16, 8, 1>(dev, *s) : launch_means<bf16, 8, 3>(dev, *s);
        else if (fits_vectors(s, 8, 2))
            launch_sums<bf16, 8>(dev, *s, squares);
        else
            launch_sums<bf16, 1>(dev, *s, squares);
        break;
    case ABAR_F16: launch_sums<__half, 1>(dev, *s, squares); break;
    case ABAR_F64: launch_sums<double, 1>(dev, *s, squares); break;
    default: break; /* observe takes no others */
    }
}

/* ---- rows as stacks ----------------------------------------------------------------------------------------------- */

static const char *channel_at(const abar_tensor *t, int64_t channel)
{
    return (const char *)t->data + (size_t)(channel * t->stride[1]) * abar_dtype_size(t->dtype);
}

/* Rows that follow one another may be any number of images: as many as leave some tiles of pixels in each, so that a thread
 * adds up a long column before its block meets. */
static void fold_rows(stack *s)
{
    int64_t width = THREADS;
    while (width >= 32 && s->width % width != 0) width /= 2;
    if (width < 32) return;
    s->images = s->width / width;
    s->stride[0] = width * s->stride[3];
    s->width = width;
}

/* Images of the group's channels, or rows of vectors as pixels of one image (of N where their examples have weights or do not
 * follow one another). Taps: one. */
static stack stack_of(const abar__rows *r, const abar_tensor *tensor, int64_t channels, bool by_example)
{
    const abar_tensor t = abar__cuda_strided(tensor);
    stack s = {};
    s.channels = channels;
    s.scale = 1.0;
    for (int i = 0; i < 2; i++) s.kernel[i] = s.step[i] = s.dilation[i] = 1;
    if (t.ndim == 4) {
        s.data = channel_at(&t, r->group * channels);
        s.images = t.dim[0];
        s.height = t.dim[2];
        s.width = t.dim[3];
        for (int i = 0; i < 4; i++) s.stride[i] = t.stride[i];
    } else {
        const int64_t rows = t.ndim == 3 ? t.dim[1] : 1, step = t.ndim == 3 ? t.stride[1] : 0;
        const bool joined = !by_example && (rows == 1 || t.stride[0] == rows * step);
        s.data = t.data;
        s.images = joined ? 1 : t.dim[0];
        s.height = 1;
        s.width = joined ? t.dim[0] * rows : rows;
        s.stride[0] = joined ? 0 : t.stride[0];
        s.stride[1] = t.stride[t.ndim - 1];
        s.stride[3] = rows == 1 ? (joined ? t.stride[0] : 0) : step;
        if (joined) fold_rows(&s);
    }
    if (channels == 1) s.stride[1] = 1;
    s.extent[0] = s.height;
    s.extent[1] = s.width;
    return s;
}

/* The inputs under their windows, and the homogeneous ones behind them, one per row. */
static stack input_stack(const abar__rows *r, bool by_example)
{
    const abar_window *w = &r->window;
    stack s = stack_of(r, &r->input, r->convolution ? r->input.dim[1] / w->groups : r->in, by_example);
    for (int i = 0; i < 2 && r->convolution; i++) {
        s.kernel[i] = (int)w->kernel[i];
        s.step[i] = (int)w->stride[i];
        s.pad[i] = (int)w->pad[i];
        s.dilation[i] = (int)w->dilation[i];
        s.extent[i] = abar_window_out(w, i, r->input.dim[2 + i]);
    }
    s.last = r->bias ? (double)(r->examples * r->per_example) : 0.0;
    return s;
}

extern "C" void abar__cuda_input_sum(abar_device *dev, const abar__rows *r, void *sum)
{
    abar__cuda_weighted_sum(dev, r, NULL, sum);
}

extern "C" void abar__cuda_weighted_sum(abar_device *dev, const abar__rows *r, const double *weight, void *sum)
{
    stack s = input_stack(r, weight != NULL);
    s.out = (float *)sum;
    s.weight = weight;
    if (weight) s.last /= (double)r->examples;
    sum_stack(dev, &s, r->input.dtype, false);
}

/* Of inputs: rows of d; pairs: abar__cuda_pairs_pitch(d) apart. */
static void input_means(abar_device *dev, const abar__rows *r, float *rows, bf16 *pairs)
{
    stack s = input_stack(r, true);
    s.out = rows;
    s.pairs = pairs;
    s.row = pairs ? abar__cuda_pairs_pitch(abar__rows_d(r)) : abar__rows_d(r);
    s.scale = 1.0 / (double)r->per_example;
    s.last = r->bias ? 1.0 : 0.0;
    sum_stack(dev, &s, r->input.dtype, false);
}

static void grad_means(abar_device *dev, const abar__rows *r, float *rows, bf16 *pairs)
{
    stack s = stack_of(r, &r->output_grad, r->out, true);
    s.out = rows;
    s.pairs = pairs;
    s.row = pairs ? abar__cuda_pairs_pitch(r->out) : r->out;
    s.scale = r->grad_scale / (double)r->per_example;
    sum_stack(dev, &s, r->output_grad.dtype, false);
}

extern "C" void abar__cuda_input_means(abar_device *dev, const abar__rows *r, float *rows) { input_means(dev, r, rows, NULL); }
extern "C" void abar__cuda_grad_means(abar_device *dev, const abar__rows *r, float *rows) { grad_means(dev, r, rows, NULL); }

extern "C" void abar__cuda_input_mean_pairs(abar_device *dev, const abar__rows *r, void *pairs)
{
    input_means(dev, r, NULL, (bf16 *)pairs);
}

extern "C" void abar__cuda_grad_mean_pairs(abar_device *dev, const abar__rows *r, void *pairs)
{
    grad_means(dev, r, NULL, (bf16 *)pairs);
}

extern "C" void abar__cuda_grad_sum(abar_device *dev, const abar__rows *r, void *sum)
{
    stack s = stack_of(r, &r->output_grad, r->out, false);
    s.out = (float *)sum;
    s.scale = r->grad_scale;
    sum_stack(dev, &s, r->output_grad.dtype, false);
}

extern "C" void abar__cuda_grad_squares(abar_device *dev, const abar__rows *r, const double *weight, void *sum)
{
    stack s = stack_of(r, &r->output_grad, r->out, weight != NULL);
    s.out = (float *)sum;
    s.scale = r->grad_scale * r->grad_scale;
    s.weight = weight;
    sum_stack(dev, &s, r->output_grad.dtype, true);
}

extern "C" void abar__cuda_both_sums(abar_device *dev, const abar__rows *r, void *sum_a, bool squares, void *sum_p)
{
    const abar_dtype dtype = r->input.dtype;
    stack a = input_stack(r, false), p = stack_of(r, &r->output_grad, r->out, false);
    a.out = (float *)sum_a;
    p.out = (float *)sum_p;
    p.scale = squares ? r->grad_scale * r->grad_scale : r->grad_scale;
    if (dtype == r->output_grad.dtype && !is_empty(&a) && !is_empty(&p)) {
        if (dtype == ABAR_F32 && launch_both<float>(dev, &a, &p, squares)) return;
        if (dtype == ABAR_BF16 && launch_both<bf16>(dev, &a, &p, squares)) return;
    }
    sum_stack(dev, &a, dtype, false);
    sum_stack(dev, &p, r->output_grad.dtype, squares);
}

/* ---- sum of squares ----------------------------------------------------------------------------------------------- */

/* How many taps of all window positions lie on this row or column. */
__device__ static inline int64_t times_seen(const stack &s, int axis, int64_t place)
{
    int64_t times = 0;
    for (int k = 0; k < s.kernel[axis]; k++) times += sees(s, axis, place, k);
    return times;
}

/* Every element's square as often as windows see it. Thread: elements gridDim * THREADS apart, channels or pixels next to each
 * other, whichever are so in memory. */
static __global__ void __launch_bounds__(THREADS) sum_squares(const __grid_constant__ stack s, abar_dtype dtype, int64_t count,
                                                              double *partial, unsigned *ticket, double *out)
{
    __shared__ double shared[32];
    const int64_t area = s.height * s.width;
    double sum = 0.0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        const bool channels_first = s.stride[1] != 1;
        const int64_t c = channels_first ? i / area % s.channels : i % s.channels;
        const int64_t pixel = channels_first ? i % area : i / s.channels % area, n = i / (area * s.channels);
        const int64_t y = pixel / s.width, x = pixel % s.width;
        const int64_t times = times_seen(s, 0, y) * times_seen(s, 1, x);
        if (times == 0) continue; /* whatever is there, no row has it */
        const double v = load_any(s.data, dtype, n * s.stride[0] + c * s.stride[1] + y * s.stride[2] + x * s.stride[3]);
        sum += (double)times * v * v;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
    if (!last_block(ticket, gridDim.x)) return;
    sum = 0.0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) sum += __ldcg(partial + i);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *out += sum + s.last;
}

extern "C" void abar__cuda_input_square_add(abar_device *dev, const abar__rows *r, double *sum)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    stack s = input_stack(r, false);
    const int64_t count = s.images * s.channels * s.height * s.width;
    if (count == 0) return;
    const int64_t wish = (count + THREADS * 8 - 1) / (THREADS * 8), most = 4 * (int64_t)cuda->processors;
    abar__cuda_launch(dev, sum_squares, dim3((unsigned)least(wish, most)), dim3(THREADS), 0, s, r->input.dtype, count,
                      (double *)cuda->workspace, cuda->tickets, sum);
}

extern "C" double abar__cuda_input_square(abar_device *dev, const abar__rows *r)
{
    double *sum = abar__cuda_upper(dev), result = 0.0;
    abar__cuda_remember(dev, cudaMemsetAsync(sum, 0, sizeof *sum, abar__cuda_of(dev)->stream));
    abar__cuda_input_square_add(dev, r, sum);
    return abar__cuda_carry(dev, &result, sum, sizeof result) ? result : 0.0;
}
