/* Sums of outer products of rows (methods.md sections 4 to 6) without a word to the host: which kernel takes them, and how
 * blocks share them.
 *
 * Inputs of 3 x 3 convolutions of stride 1 are not multiplied by taps. A pair of taps with lag l = tap' - tap sums x[u] x[u+l]T
 * over the pixels u that its first tap sees: all of them but for a row and a column at the border, which only matter where l
 * does not point across. So 13 products over all pixels, and 16 over border rows, columns and corners, make all 45 blocks. */
#include "device/cuda/stats/products.h"

#define THREADS 256
#define MEANS 256      /* examples whose mean rows are held at a time */
#define LEAST_ROWS 128 /* of a split */
#define MOST_SPLITS 512
#define MOST_PARTIAL ((size_t)40 << 20) /* bytes of partial sums, where one split does not take more */
#define NARROW 576                      /* rows that do with the workspace for them */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- plain products ------------------------------------------------------------------------------------------------- */

/* Adds DEPTH rows of both sides to a thread's sums: rows and columns ty, tx and 16, 32 .. further. */
template <int SIDE, int DEPTH>
__device__ static inline void multiply_rows(const float (*a)[SIDE], const float (*b)[SIDE], float (&sums)[SIDE / 16][SIDE / 16])
{
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        float left[SIDE / 16], right[SIDE / 16];
#pragma unroll
        for (int i = 0; i < SIDE / 16; i++) {
            left[i] = a[k][ty + 16 * i];
            right[i] = b[k][tx + 16 * i];
        }
#pragma unroll
        for (int i = 0; i < SIDE / 16; i++)
#pragma unroll
            for (int j = 0; j < SIDE / 16; j++) sums[i][j] += left[i] * right[j];
    }
}

/* Any type, any strides, in float32. A block makes a SIDE x SIDE tile; thread: the same column of some rows of every DEPTH. */
template <typename T, int SIDE, int DEPTH>
static __global__ void __launch_bounds__(THREADS) multiply_plain(const __grid_constant__ abar__products s)
{
    __shared__ float a[2][DEPTH][SIDE], b[2][DEPTH][SIDE];
    __shared__ place rows[2][DEPTH];
    __shared__ float weights[2][DEPTH];
    const share own = share_of(s);
    const int column = (int)threadIdx.x % SIDE, first = (int)threadIdx.x / SIDE;
    const place left = column_place(s, s.taps, s.columns, own.down * SIDE + column);
    const place right = column_place(s, own.part->taps, own.part->columns, own.left * SIDE + column);
    const int tiles = (own.to - own.from + DEPTH - 1) / DEPTH;
    float sums[SIDE / 16][SIDE / 16] = {};
    for (int t = 0; t <= tiles + 1; t++) { /* finds the rows of tile t, reads tile t - 1, multiplies tile t - 2 */
        const int now = t % 2, before = 1 - now;
        if (threadIdx.x < DEPTH) {
            const int row = own.from + t * DEPTH + (int)threadIdx.x;
            const bool there = row < own.to;
            rows[now][threadIdx.x] = there ? row_place(s, *own.part, row) : place{0, NOWHERE, NOWHERE};
            weights[now][threadIdx.x] = there && s.weight ? row_weight(s, *own.part, row) : 1.0f;
        }
        if (t > 0) {
#pragma unroll
            for (int k = first; k < DEPTH; k += THREADS / SIDE) {
                const place r = rows[before][k];
                const T *at = (const T *)s.data + r.offset;
                a[before][k][column] = inside(s, r, left) ? weights[before][k] * element(at + left.offset) : 0.0f;
                b[before][k][column] = inside(s, r, right) ? element(at + right.offset) : 0.0f;
            }
        }
        if (t > 1) multiply_rows<SIDE, DEPTH>(a[now], b[now], sums);
        __syncthreads();
    }
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    float *partial = s.partial + own.part->at + ((int64_t)own.split * own.part->tiles + own.tile) * SIDE * SIDE;
    for (int i = 0; i < SIDE / 16; i++)
        for (int j = 0; j < SIDE / 16; j++) {
            const int m = ty + 16 * i, n = tx + 16 * j;
            if (s.partial)
                partial[m * SIDE + n] = sums[i][j];
            else if (own.down * SIDE + m < s.columns && own.left * SIDE + n <= own.down * SIDE + m)
                add_to_square(s, own.down * SIDE + m, own.left * SIDE + n, sums[i][j]);
        }
}

/* Narrow tiles are deep: few barriers for many rows. */
template <typename T>
static void launch_plain_tile(abar_device *dev, const abar__products *s, abar__product_tile tile, unsigned blocks)
{
    if (tile == ABAR_TILE_32)
        abar__cuda_launch(dev, multiply_plain<T, 32, 64>, dim3(blocks), dim3(THREADS), 0, *s);
    else
        abar__cuda_launch(dev, multiply_plain<T, 64, 16>, dim3(blocks), dim3(THREADS), 0, *s);
}

static void launch_plain(abar_device *dev, const abar__products *s, abar__product_tile tile, abar_dtype dtype, unsigned blocks)
{
    switch (dtype) {
    case ABAR_F32: launch_plain_tile<float>(dev, s, tile, blocks); break;
    case ABAR_BF16: launch_plain_tile<bf16>(dev, s, tile, blocks); break;
    case ABAR_F16: launch_plain_tile<__half>(dev, s, tile, blocks); break;
    case ABAR_F64: launch_plain_tile<double>(dev, s, tile, blocks); break;
    default: break; /* observe takes no others */
    }
}

/* ---- how blocks share a product --------------------------------------------------------------------------------------- */

static int64_t part_rows(const abar__products *s, const abar__product_part *q) { return s->examples * q->high * q->wide; }

/* Splits of all parts, the first into this many and the others into parts of the same length. Returns the partial sums'
 * floats. */
static int64_t split(abar__products *s, abar__product_tile tile, int64_t splits)
{
    const int64_t size = (int64_t)abar__tile_rows[tile] * abar__tile_columns[tile], rows = part_rows(s, &s->part[0]);
    int64_t at = 0;
    for (int i = 0; i < s->parts; i++) {
        abar__product_part *q = &s->part[i];
        q->splits = (int)most(1, rows > 0 ? (part_rows(s, q) * splits + rows - 1) / rows : 1);
        q->lanes = q->splits;
        q->floats = q->tiles * size;
        q->at = at;
        at += q->lanes * q->floats;
    }
    return at;
}

static unsigned number_blocks(abar__products *s)
{
    unsigned blocks = 0;
    for (int i = 0; i < s->parts; i++) {
        abar__product_part *q = &s->part[i];
        const int area = q->high * q->wide;
        q->block = blocks;
        q->ahead[0] = ABAR_PRODUCT_STEP / area;
        q->ahead[1] = ABAR_PRODUCT_STEP % area / q->wide;
        q->ahead[2] = ABAR_PRODUCT_STEP % area % q->wide;
        blocks += (unsigned)(q->splits * q->tiles);
    }
    return blocks;
}

static void set_tiles(abar__products *s, abar__product_tile tile)
{
    const int down = (int)abar__cuda_blocks(s->columns, abar__tile_rows[tile]);
    for (int i = 0; i < s->parts; i++) {
        abar__product_part *q = &s->part[i];
        q->across = s->parts == 1 ? 0 : (int)abar__cuda_blocks(q->columns, abar__tile_columns[tile]);
        q->tiles = q->across ? down * q->across : down * (down + 1) / 2;
    }
}

/* About how many nanoseconds a product takes with these splits: its blocks in waves over the processors, the small ones of the
 * borders where the last wave leaves space; then its partial sums, written and read. */
static double cost_of(const abar_device *dev, abar__products *s, abar__product_tile tile, int64_t splits)
{
    const double m = abar__tile_rows[tile], n = abar__tile_columns[tile], floats = (double)split(s, tile, splits);
    const int64_t slots = (int64_t)abar__cuda_of(dev)->processors * abar__tile_resident[tile];
    const int64_t blocks = s->part[0].tiles * splits, waves = abar__cuda_blocks(blocks, slots);
    const double piece = (double)part_rows(s, &s->part[0]) / (double)splits;
    const double spare = (double)(waves * slots - blocks) * piece;
    double small = 0.0, longest = 0.0;
    int64_t all = blocks;
    for (int i = 1; i < s->parts; i++) {
        const double rows = (double)part_rows(s, &s->part[i]) / s->part[i].splits;
        small += rows * s->part[i].splits * s->part[i].tiles;
        all += (int64_t)s->part[i].splits * s->part[i].tiles;
        longest = rows > longest ? rows : longest;
    }
    const double rows = (double)waves * piece + (small > spare ? (small - spare) / (double)slots + longest : 0.0);
    const double busy = (double)least(most(blocks, abar__cuda_of(dev)->processors), slots);
    const double multiplied = 2.0 * m * n * busy / 3e5, loaded = 2.0 * (m + n) * busy / 4e3;
    const bool direct = s->parts == 1 && splits == 1;
    return rows * (multiplied > loaded ? multiplied : loaded) + 1500.0 * (double)waves + (all > waves * slots ? 2000.0 : 0.0) +
           (direct ? 0.0 : floats * 8.0 / 2500.0 + 3000.0);
}

/* Of the plain kernel: two blocks for every processor, which hide each other's loads. */
static int64_t plain_splits(const abar_device *dev, const abar__products *s)
{
    return least(abar__cuda_blocks(2 * abar__cuda_of(dev)->processors, s->part[0].tiles), MOST_SPLITS / 2);
}

/* The cheapest splits whose partial sums fit. */
static int64_t best_splits(const abar_device *dev, abar__products *s, abar__product_tile tile, int64_t most_splits,
                           int64_t workspace)
{
    int64_t best = 1;
    double least_cost = cost_of(dev, s, tile, 1);
    for (int64_t n = 2; n <= least(most_splits, MOST_SPLITS) && split(s, tile, n) <= workspace; n++) {
        const double cost = cost_of(dev, s, tile, n);
        if (cost < least_cost) {
            least_cost = cost;
            best = n;
        }
    }
    return best;
}

/* Runs a product of some examples; partial sums go where there is more workspace, the workspace or the scratch. */
static void run_some(abar_device *dev, abar__products *s, abar__product_tile tile, abar_dtype dtype, bool tensor_cores,
                     void *scratch, size_t scratch_bytes)
{
    const int64_t rows = part_rows(s, &s->part[0]);
    if (rows == 0 || s->columns == 0) return;
    set_tiles(s, tile);
    const bool apart = scratch_bytes > ABAR_CUDA_WORKSPACE;
    const int64_t workspace = (int64_t)((apart ? scratch_bytes : ABAR_CUDA_WORKSPACE) / sizeof(float));
    int64_t splits = most(1, rows / LEAST_ROWS);
    if (tensor_cores)
        splits = best_splits(dev, s, tile, splits, workspace);
    else
        splits = least(splits, plain_splits(dev, s));
    while (splits > 1 && split(s, tile, splits) > workspace) splits--;
    split(s, tile, splits);
    const bool direct = s->parts == 1 && splits == 1;
    s->partial = direct ? NULL : apart ? (float *)scratch : (float *)abar__cuda_of(dev)->workspace;
    const unsigned blocks = number_blocks(s);
    if (tensor_cores)
        abar__cuda_multiply_rows(dev, s, tile, blocks);
    else
        launch_plain(dev, s, tile, dtype, blocks);
    if (!direct) abar__cuda_join_products(dev, s, tile);
}

/* All of them. */
static void run(abar_device *dev, const abar__products *s, abar__product_tile tile, abar_dtype dtype, bool tensor_cores,
                void *scratch, size_t scratch_bytes)
{
    const int64_t positions = (int64_t)s->part[0].high * s->part[0].wide;
    const int64_t chunk = most(1, ABAR_PRODUCT_ROWS / most(1, positions));
    for (int64_t first = 0; first < s->examples; first += chunk) {
        abar__products some = *s;
        some.examples = least(chunk, s->examples - first);
        some.data = (const char *)s->data + (size_t)(first * s->stride[0]) * abar_dtype_size(dtype);
        if (s->weight) some.weight = s->weight + first;
        run_some(dev, &some, tile, dtype, tensor_cores, scratch, scratch_bytes);
    }
}

/* ---- rows as products ------------------------------------------------------------------------------------------------- */

/* One side of a map: its tensor, and the window it is seen through. */
typedef struct view {
    const abar_tensor *t;
    abar_window window;
    bool convolution;
    int64_t in, group;
} view;

static view input_view(const abar__rows *r) { return {&r->input, r->window, r->convolution, r->in, r->group}; }
static view grad_view(const abar__rows *r) { return {&r->output_grad, abar_window_unit(), r->convolution, r->out, r->group}; }

/* Every row with itself: pixels under a window, or vectors, which are pixels of an image one wide. */
static abar__products products_of(const view *v, int64_t examples)
{
    abar__products s = {};
    const abar_tensor t = abar__cuda_strided(v->t);
    const abar_window *w = &v->window;
    s.kernel = (int)(w->kernel[0] * w->kernel[1]);
    s.channels = (int)(v->in / s.kernel);
    s.columns = (int)v->in;
    s.examples = examples;
    s.parts = 1;
    s.taps = {(int)w->kernel[1], 0, {(int)w->pad[0], (int)w->pad[1]}, {(int)w->dilation[0], (int)w->dilation[1]}};
    for (int i = 0; i < 2; i++) s.step[i] = (int)w->stride[i];
    s.part[0].taps = s.taps;
    s.part[0].columns = s.columns;
    s.part[0].high = s.part[0].wide = 1;
    s.stride[0] = t.stride[0];
    if (v->convolution) {
        for (int i = 0; i < 4; i++) s.stride[i] = t.stride[i];
        s.height = (int)t.dim[2];
        s.width = (int)t.dim[3];
        s.part[0].high = (int)abar_window_out(w, 0, t.dim[2]);
        s.part[0].wide = (int)abar_window_out(w, 1, t.dim[3]);
    } else {
        s.height = s.part[0].high = t.ndim == 3 ? (int)t.dim[1] : 1;
        s.width = 1;
        s.stride[1] = t.stride[t.ndim - 1];
        s.stride[2] = t.ndim == 3 ? t.stride[1] : 0;
    }
    s.data = (const char *)t.data + (size_t)(v->group * s.channels * s.stride[1]) * abar_dtype_size(t.dtype);
    return s;
}

/* Can pieces of eight channels be copied? */
static bool fits_pieces(const abar__products *s, abar_dtype dtype)
{
    bool fits = dtype == ABAR_BF16 && s->stride[1] == 1 && s->channels % 8 == 0 && (uintptr_t)s->data % 16 == 0;
    for (int i = 0; i < 4; i++) fits = fits && (i == 1 || s->stride[i] % 8 == 0);
    int64_t reach = s->channels; /* of a tap, in elements */
    for (int i = 0; i < 2; i++) {
        const int64_t taps = i ? s->taps.width : s->kernel / s->taps.width;
        const int64_t pixels = most(s->taps.pad[i], (taps - 1) * s->taps.dilation[i]) + 2; /* at least those of shifts */
        fits = fits && pixels < ABAR_PRODUCT_SIDE && (i ? s->width : s->height) < ABAR_PRODUCT_SIDE;
        reach += pixels * s->stride[2 + i];
    }
    return fits && reach < INT32_MAX;
}

static abar__product_tile plain_tile(int64_t columns) { return columns <= 32 ? ABAR_TILE_32 : ABAR_TILE_64; }
static abar__product_tile square_tile(int64_t columns) { return columns <= 256 ? ABAR_TILE_64 : ABAR_TILE_128; }

/* ---- shifts ----------------------------------------------------------------------------------------------------------- */

static bool may_shift(const abar_window *w, bool convolution, int64_t in)
{
    bool may = convolution && w->groups == 1 && in / 9 % 16 == 0;
    for (int i = 0; i < 2; i++) may = may && w->kernel[i] == 3 && w->stride[i] == 1 && w->pad[i] == 1 && w->dilation[i] == 1;
    return may;
}

static abar__product_tile shift_tile(int64_t channels)
{
    if (channels == 16) return ABAR_TILE_16_208;
    if (channels == 32) return ABAR_TILE_32_208;
    if (channels <= 64) return ABAR_TILE_64_208;
    return channels % 160 == 0 ? ABAR_TILE_160 : ABAR_TILE_128;
}

static abar__product_part rectangle(int top, int left, int high, int wide, abar__taps taps, int columns)
{
    abar__product_part q = {};
    q.top = top;
    q.left = left;
    q.high = high;
    q.wide = wide;
    q.taps = taps;
    q.columns = columns;
    return q;
}

/* Pixels with shifted pixels, in the parts that join_shifts puts together. */
static void shift_parts(abar__products *s)
{
    const int bottom = s->height - 1, edge = s->width - 1, channels = s->channels;
    const abar__taps one = {1, 0, {0, 0}, {1, 1}},
                     lags = {5, 2, {0, 2}, {1, 1}}; /* lags: (0, 0), (0, 1), (0, 2), (1, -2) ... */
    s->taps = one;
    s->columns = channels;
    s->parts = CORNERS + 4;
    s->part[ALL] = rectangle(0, 0, s->height, s->width, lags, 13 * channels);
    for (int last = 0; last < 2; last++) {
        s->part[FIRST_ROW + last] = rectangle(last * bottom, 0, 1, s->width, lags, 3 * channels);
        s->part[FIRST_COLUMN + last] = rectangle(0, last * edge, s->height, 1, one, 3 * channels);
    }
    for (int i = 0; i < 4; i++) s->part[CORNERS + i] = rectangle(i / 2 * bottom, i % 2 * edge, 1, 1, one, channels);
}

/* ---- entries ---------------------------------------------------------------------------------------------------------- */

/* Bytes of partial sums that give every processor two blocks, where the workspace is too small for them. */
static size_t partial_bytes(const abar_device *dev, abar__products *s, abar__product_tile tile)
{
    set_tiles(s, tile);
    const bool narrow = s->parts == 1 ? s->columns <= NARROW : abar__tile_rows[tile] < abar__tile_columns[tile];
    int64_t splits = narrow ? 1 : most(1, 2 * (int64_t)abar__cuda_of(dev)->processors / s->part[0].tiles);
    if (s->parts == 1 && splits == 1) return 0;
    while (splits > 1 && (size_t)split(s, tile, splits) * sizeof(float) > MOST_PARTIAL) splits--;
    const size_t bytes = (size_t)split(s, tile, splits) * sizeof(float);
    return bytes > ABAR_CUDA_WORKSPACE ? bytes : 0;
}

/* Of two lanes of wide products, so that even one split of few tiles is not all there is. */
static size_t wide_bytes(const abar__products *s)
{
    const size_t lane = (size_t)abar__cuda_wide_floats(s) * sizeof(float);
    const size_t bytes = 2 * lane <= MOST_PARTIAL ? 2 * lane : lane <= MOST_PARTIAL ? lane : 0;
    return bytes > ABAR_CUDA_WORKSPACE ? bytes : 0;
}

/* Of one side of a map, whatever its tensor; for the shifts of an image that is all border. */
static size_t view_scratch(const abar_device *dev, const abar_window *w, bool convolution, int64_t in)
{
    abar__products s = {};
    s.examples = 1;
    s.channels = (int)(in / (w->kernel[0] * w->kernel[1]));
    s.columns = s.part[0].columns = (int)in;
    s.parts = 1;
    s.part[0].high = s.part[0].wide = 1;
    if (dev->activation != ABAR_BF16) return 0;
    size_t bytes = partial_bytes(dev, &s, square_tile(in));
    const size_t wide = wide_bytes(&s);
    if (wide > bytes) bytes = wide;
    if (may_shift(w, convolution, in)) {
        s.height = s.width = 3;
        shift_parts(&s);
        const size_t shifts = partial_bytes(dev, &s, shift_tile(s.channels));
        if (shifts > bytes) bytes = shifts;
    }
    return bytes;
}

/* Of MEANS examples, in float32 or in pairs. */
static size_t mean_bytes(const abar_device *dev, int64_t d)
{
    if (dev->activation == ABAR_BF16) return (size_t)(MEANS * 4 * abar__cuda_pairs_pitch(d)) * sizeof(bf16);
    return (size_t)(MEANS * d) * sizeof(float);
}

extern "C" size_t abar__cuda_product_scratch(abar_device *dev, const abar__rows *r)
{
    const abar_window unit = abar_window_unit();
    const size_t need[] = {view_scratch(dev, &r->window, r->convolution, r->in),
                           view_scratch(dev, &unit, r->convolution, r->out), mean_bytes(dev, abar__rows_d(r)),
                           mean_bytes(dev, r->out)};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof need / sizeof *need; i++) bytes = need[i] > bytes ? need[i] : bytes;
    return bytes;
}

static void multiply_view(abar_device *dev, const view *v, abar__products *s, void *scratch)
{
    const bool pieces = fits_pieces(s, v->t->dtype);
    const bool shifts = pieces && dev->activation == ABAR_BF16 && /* else there is no scratch for them */
                        s->height >= 3 && s->width >= 3 && may_shift(&v->window, v->convolution, v->in);
    const size_t bytes = view_scratch(dev, &v->window, v->convolution, v->in);
    if (shifts) shift_parts(s);
    if (pieces && abar__cuda_multiply_wide_rows(dev, s, scratch, bytes)) return;
    const abar__product_tile tile = shifts ? shift_tile(s->channels) : pieces ? square_tile(v->in) : plain_tile(v->in);
    run(dev, s, tile, v->t->dtype, pieces, scratch, bytes);
}

/* The last row of the square is the sum of the rows. */
extern "C" void abar__cuda_input_product(abar_device *dev, const abar__rows *r, const double *weight, void *square,
                                         void *scratch)
{
    const view v = input_view(r);
    abar__products s = products_of(&v, r->examples);
    s.weight = weight;
    s.square = (float *)square;
    s.d = abar__rows_d(r);
    s.scale = 1.0f;
    multiply_view(dev, &v, &s, scratch);
    if (r->bias) abar__cuda_weighted_sum(dev, r, weight, s.square + r->in * s.d);
}

extern "C" void abar__cuda_grad_product(abar_device *dev, const abar__rows *r, void *square, void *scratch)
{
    const view v = grad_view(r);
    abar__products s = products_of(&v, r->examples);
    s.square = (float *)square;
    s.d = r->out;
    s.scale = (float)(r->grad_scale * r->grad_scale);
    multiply_view(dev, &v, &s, scratch);
}

/* Of rows (n, d) that are one after the other. */
static void multiply_means(abar_device *dev, const float *rows, int64_t n, int64_t d, float *square)
{
    const int64_t dim[2] = {n, d};
    const abar_tensor t = abar_tensor_wrap(dev, (void *)rows, ABAR_F32, 2, dim);
    const view v = {&t, abar_window_unit(), false, d, 0};
    abar__products s = products_of(&v, n);
    s.square = square;
    s.d = d;
    s.scale = 1.0f;
    run(dev, &s, plain_tile(d), ABAR_F32, false, NULL, 0);
}

/* Of n means of d in pairs: images one high and four wide, three pixels of which meet their right neighbours. */
static void multiply_pairs(abar_device *dev, const void *pairs, int64_t n, int64_t d, float *square)
{
    const int64_t pitch = abar__cuda_pairs_pitch(d);
    abar__products s = {};
    s.data = pairs;
    s.stride[0] = 4 * pitch;
    s.stride[1] = 1;
    s.stride[3] = pitch;
    s.examples = n;
    s.channels = s.columns = (int)d;
    s.height = s.step[0] = s.step[1] = s.kernel = s.parts = 1;
    s.width = 4;
    s.taps = {1, 0, {0, 0}, {1, 1}};
    s.part[0] = rectangle(0, 0, 1, 3, {1, 0, {0, -1}, {1, 1}}, s.columns);
    s.square = square;
    s.d = d;
    s.scale = 1.0f;
    run(dev, &s, square_tile(d), ABAR_BF16, true, NULL, 0);
}

/* Of the means of a, or of p where grads is set; they are in scratch, of so many examples at a time. */
static void mean_product(abar_device *dev, const abar__rows *r, bool grads, void *square, void *scratch)
{
    const int64_t d = grads ? r->out : abar__rows_d(r);
    void *of_a = grads ? NULL : scratch, *of_p = grads ? scratch : NULL;
    for (int64_t first = 0; first < r->examples; first += MEANS) {
        const abar__rows part = abar__rows_slice(r, first, least(MEANS, r->examples - first));
        if (dev->activation == ABAR_BF16) {
            abar__cuda_mean_pairs(dev, &part, of_a, of_p);
            multiply_pairs(dev, scratch, part.examples, d, (float *)square);
        } else {
            abar__cuda_means(dev, &part, (float *)of_a, (float *)of_p);
            multiply_means(dev, (const float *)scratch, part.examples, d, (float *)square);
        }
    }
}

/* Where there is one row per example it is its own mean. */
extern "C" void abar__cuda_input_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch)
{
    if (r->per_example == 1)
        abar__cuda_input_product(dev, r, NULL, square, scratch);
    else
        mean_product(dev, r, false, square, scratch);
}

extern "C" void abar__cuda_grad_mean_product(abar_device *dev, const abar__rows *r, void *square, void *scratch)
{
    if (r->per_example == 1)
        abar__cuda_grad_product(dev, r, square, scratch);
    else
        mean_product(dev, r, true, square, scratch);
}

/* ---- weights of examples ------------------------------------------------------------------------------------------------ */

/* Block n: |.|^2 / rows of both means of example n. The last one adds up the products, in order. */
static __global__ void __launch_bounds__(128)
    weigh_examples(int64_t d, int64_t out, const float *inputs, const float *grads, double rows, double *a, double *p,
                   double *products, unsigned *ticket, double *number)
{
    __shared__ double shared[32];
    double input = 0.0, grad = 0.0;
    for (int64_t k = threadIdx.x; k < d; k += 128)
        input += (double)inputs[blockIdx.x * d + k] * (double)inputs[blockIdx.x * d + k];
    for (int64_t k = threadIdx.x; k < out; k += 128)
        grad += (double)grads[blockIdx.x * out + k] * (double)grads[blockIdx.x * out + k];
    input = block_sum(input, shared);
    grad = block_sum(grad, shared);
    if (threadIdx.x == 0) {
        a[blockIdx.x] = input / rows;
        p[blockIdx.x] = grad / rows;
        products[blockIdx.x] = input * grad;
    }
    if (!last_block(ticket, gridDim.x)) return;
    double sum = 0.0;
    for (unsigned n = threadIdx.x; n < gridDim.x; n += 128) sum += __ldcg(products + n);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *number += sum;
}

/* Means and products are in the workspace, of as many examples as fit. */
extern "C" void abar__cuda_example_weights(abar_device *dev, const abar__rows *r, double *a, double *p, double *number)
{
    const abar__cuda *cuda = abar__cuda_of(dev);
    const int64_t d = abar__rows_d(r), bytes = (d + r->out) * (int64_t)sizeof(float) + (int64_t)sizeof(double);
    const int64_t chunk = most(16, (int64_t)ABAR_CUDA_WORKSPACE / bytes / 16 * 16);
    for (int64_t first = 0; first < r->examples; first += chunk) {
        const abar__rows part = abar__rows_slice(r, first, least(chunk, r->examples - first));
        double *products = (double *)cuda->workspace;
        float *inputs = (float *)(products + part.examples), *grads = inputs + part.examples * d;
        abar__cuda_means(dev, &part, inputs, grads);
        abar__cuda_launch(dev, weigh_examples, dim3((unsigned)part.examples), dim3(128), 0, d, r->out, inputs, grads,
                          (double)r->per_example, a + first, p + first, products, cuda->tickets, number);
    }
}
