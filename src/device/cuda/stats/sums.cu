/* Sums over the rows of a map without ever building a row (methods.md section 1), one launch and one read of the tensor each:
 * over windows (windows.h) or, where these do not overlap, over rows as they lie (rows.h). Sums of output gradients
 * have windows of one tap, and so have rows of vectors, which are one image of as many pixels. */
#include "device/cuda/stats/rows.h"
#include "device/cuda/stats/windows.h"

/* Grid: (splits, blocks of channels). */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    sum_stacks(const __grid_constant__ stack s, bool squares, float *partial, unsigned *tickets)
{
    extern __shared__ uint64_t shared[];
    sum_windows<T, N>(s, squares, blockIdx.x, blockIdx.y, shared, partial, tickets);
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
    const int64_t workspace = (int64_t)(ABAR_STATS_HALF / sizeof(float)) / outputs; /* partial sums of so many blocks */
    int64_t limit = 2 * (int64_t)abar__cuda_of(dev)->processors / blocks;
    limit = limit < 1 ? 1 : least(limit, SPLITS);
    limit = least(limit, workspace < 1 ? 1 : workspace);
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
                  workspace = (int64_t)(ABAR_STATS_HALF / sizeof(float)) / (outputs * splits);
    const int64_t at_once = least(least(blocks, workspace < 1 ? 1 : workspace), ABAR_CUDA_TICKETS);
    return {width, blocks, splits, at_once, shared_bytes(s, n)};
}

template <typename T, int N> static void launch_sums(abar_device *dev, stack s, bool squares)
{
    abar__cuda *cuda = abar__cuda_of(dev);
    const window_grid g = share_windows(dev, &s, N);
    if (g.bytes > 48 * 1024) abar__cuda_remember(dev, abar__cuda_allow_shared(dev, (const void *)sum_stacks<T, N>));
    for (int64_t done = 0; done < g.blocks; done += g.at_once) {
        s.first = done * g.width;
        const dim3 grid((unsigned)g.splits, (unsigned)least(g.at_once, g.blocks - done));
        abar__cuda_launch(dev, sum_stacks<T, N>, grid, dim3(THREADS), g.bytes, s, squares, (float *)cuda->workspace,
                          cuda->tickets);
    }
}

/* ---- rows that are read where they are ------------------------------------------------------------------------------ */

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
    if (s->weight || columns > ABAR_ROW_COLUMNS || (s->kernel[1] > 1 && s->stride[3] != s->channels)) return false;
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

static void sum_stack(abar_device *dev, const stack *s, abar_dtype dtype, bool squares)
{
    if (is_empty(s)) return;
    if (dtype == ABAR_F32 && launch_rows<float>(dev, s, squares)) return;
    if (dtype == ABAR_BF16 && launch_rows<bf16>(dev, s, squares)) return;
    switch (dtype) {
    case ABAR_F32:
        fits_vectors(s, 4, 4) ? launch_sums<float, 4>(dev, *s, squares) : launch_sums<float, 1>(dev, *s, squares);
        break;
    case ABAR_BF16:
        fits_vectors(s, 8, 2) ? launch_sums<bf16, 8>(dev, *s, squares) : launch_sums<bf16, 1>(dev, *s, squares);
        break;
    case ABAR_F16: launch_sums<__half, 1>(dev, *s, squares); break;
    case ABAR_F64: launch_sums<double, 1>(dev, *s, squares); break;
    default: break; /* observe takes no others */
    }
}

/* ---- sums of rows ------------------------------------------------------------------------------------------------- */

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

/* How many taps of all window positions are on this row or column. */
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
    const int64_t wanted = (count + THREADS * 8 - 1) / (THREADS * 8), most = 4 * (int64_t)cuda->processors;
    abar__cuda_launch(dev, sum_squares, dim3((unsigned)least(wanted, most)), dim3(THREADS), 0, s, r->input.dtype, count,
                      (double *)cuda->workspace, cuda->tickets, sum);
}
