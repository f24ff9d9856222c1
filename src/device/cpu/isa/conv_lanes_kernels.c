/* Direct convolution with images in the lanes: every pixel is a vector and every weight a broadcast, so that any number of
 * channels can fill the registers. A tile of output channels x output columns stays in registers over all taps. */
#include "device/cpu/conv_lanes.h"

#include <math.h>

#if defined(__AVX512F__)
enum { WIDTH = 16, REGISTERS = 32 };
#elif defined(__AVX2__)
enum { WIDTH = 8, REGISTERS = 16 };
#else
enum { WIDTH = 4, REGISTERS = 16 };
#endif
enum { MAX_OUTPUTS = 6, MAX_COLUMNS = 8, MAX_TAPS = 5, MAX_TILE = 24 };

typedef float vec __attribute__((vector_size(WIDTH * 4), may_alias));
typedef int32_t ivec __attribute__((vector_size(WIDTH * 4), may_alias));

/* Loops over a tile are flat, with constant bounds, so that the compiler keeps the tile in registers. */

ABAR_SPECIALIZED vec load(const float *p) { return *(const vec *)p; }
ABAR_SPECIALIZED void store(float *p, vec v) { *(vec *)p = v; }
/* The larger of the two; a NaN in v stays. */
ABAR_SPECIALIZED vec at_least(vec v, vec floor)
{
    ivec below = v < floor;
    return (vec)(((ivec)v & ~below) | ((ivec)floor & below));
}

ABAR_SPECIALIZED int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
ABAR_SPECIALIZED int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
ABAR_SPECIALIZED int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Output indices [*begin, *end) for which all taps [from, to) are inside the source; empty: [0, 0). */
static void interior(const abar__lanes_axis *a, int64_t from, int64_t to, int64_t *begin, int64_t *end)
{
    int64_t low = a->first + min64(from * a->tap, (to - 1) * a->tap);
    int64_t high = a->first + max64(from * a->tap, (to - 1) * a->tap);
    int64_t b = low >= 0 ? 0 : ceil_div(-low, a->step);
    int64_t e = a->in - 1 - high < 0 ? 0 : (a->in - 1 - high) / a->step + 1;
    e = min64(e, a->out);
    *begin = b < e ? b : 0;
    *end = b < e ? e : 0;
}

/* ---- forward, and backward to the input ------------------------------------------------------------------------- */

static int64_t output_blocks(int64_t outputs) { return ceil_div(outputs, MAX_OUTPUTS); }

static void pack(const abar__lanes_map *map, const abar__lanes_plain *plain, const float *weights, float *packed)
{
    int64_t blocks = output_blocks(map->outputs);
    for (int64_t b = 0; b < blocks; b++) {
        int64_t begin = abar__lanes_share(map->outputs, blocks, b), end = abar__lanes_share(map->outputs, blocks, b + 1);
        for (int64_t c = 0; c < map->inputs; c++)
            for (int64_t m = 0; m < map->v.taps; m++)
                for (int64_t n = 0; n < map->h.taps; n++) {
                    const float *w = weights + c * plain->input + plain->first + m * plain->row + n * plain->column;
                    for (int64_t o = begin; o < end; o++) *packed++ = w[o * plain->output];
                }
    }
}

typedef struct tile_args {
    const abar__lanes_map *map;
    const float *src;            /* under tap (v0, h0) of channel 0, for the first column */
    const float *weights, *bias; /* of this block of outputs */
    float *dst;                  /* first output, first column */
    int64_t v0, v1, h0, h1;      /* taps inside the source */
} tile_args;

ABAR_SPECIALIZED void tile(const tile_args *a, const int outputs, const int columns)
{
    const abar__lanes_map *map = a->map;
    const int64_t column = map->h.step * ABAR_LANES, tap = map->h.tap * ABAR_LANES;
    const vec floor = (vec){0} - (map->relu ? 0.0f : INFINITY);
    for (int lane = 0; lane < ABAR_LANES; lane += WIDTH) {
        vec acc[MAX_TILE];
        ABAR_UNROLL for (int n = 0; n < outputs * columns; n++) acc[n] = (vec){0} + a->bias[n / columns];
        for (int64_t c = 0; c < map->inputs; c++)
            for (int64_t v = a->v0; v < a->v1; v++) {
                const float *s = a->src + c * map->src_channel + (v - a->v0) * map->v.tap * map->src_row + lane;
                const float *w = a->weights + ((c * map->v.taps + v) * map->h.taps + a->h0) * outputs;
                for (int64_t h = a->h0; h < a->h1; h++, s += tap, w += outputs) {
                    vec x[MAX_COLUMNS];
                    ABAR_UNROLL for (int j = 0; j < columns; j++) x[j] = load(s + j * column);
                    ABAR_UNROLL for (int n = 0; n < outputs * columns; n++) acc[n] += x[n % columns] * w[n / columns];
                }
            }
        ABAR_UNROLL for (int n = 0; n < outputs * columns; n++)
            store(a->dst + n / columns * map->dst_channel + n % columns * map->dst_column + lane, at_least(acc[n], floor));
    }
}

static void any_tile(const tile_args *a, int64_t outputs, int64_t columns)
{
    switch (outputs * 16 + columns) {
    case 0x11: tile(a, 1, 1); break;
    case 0x12: tile(a, 1, 2); break;
    case 0x13: tile(a, 1, 3); break;
    case 0x14: tile(a, 1, 4); break;
    case 0x15: tile(a, 1, 5); break;
    case 0x16: tile(a, 1, 6); break;
    case 0x17: tile(a, 1, 7); break;
    case 0x18: tile(a, 1, 8); break;
    case 0x21: tile(a, 2, 1); break;
    case 0x22: tile(a, 2, 2); break;
    case 0x23: tile(a, 2, 3); break;
    case 0x24: tile(a, 2, 4); break;
    case 0x25: tile(a, 2, 5); break;
    case 0x26: tile(a, 2, 6); break;
    case 0x27: tile(a, 2, 7); break;
    case 0x28: tile(a, 2, 8); break;
    case 0x31: tile(a, 3, 1); break;
    case 0x32: tile(a, 3, 2); break;
    case 0x33: tile(a, 3, 3); break;
    case 0x34: tile(a, 3, 4); break;
    case 0x35: tile(a, 3, 5); break;
    case 0x36: tile(a, 3, 6); break;
    case 0x37: tile(a, 3, 7); break;
    case 0x38: tile(a, 3, 8); break;
    case 0x41: tile(a, 4, 1); break;
    case 0x42: tile(a, 4, 2); break;
    case 0x43: tile(a, 4, 3); break;
    case 0x44: tile(a, 4, 4); break;
    case 0x45: tile(a, 4, 5); break;
    case 0x46: tile(a, 4, 6); break;
    case 0x51: tile(a, 5, 1); break;
    case 0x52: tile(a, 5, 2); break;
    case 0x53: tile(a, 5, 3); break;
    case 0x54: tile(a, 5, 4); break;
    case 0x61: tile(a, 6, 1); break;
    case 0x62: tile(a, 6, 2); break;
    case 0x63: tile(a, 6, 3); break;
    case 0x64: tile(a, 6, 4); break;
    default: break;
    }
}

/* Columns [begin, end) of one row, which all use the taps in a, in tiles of nearly equal size. */
static void tiles(tile_args *a, const float *src, float *dst, int64_t outputs, int64_t begin, int64_t end)
{
    const abar__lanes_map *map = a->map;
    int64_t at = map->h.first + a->h0 * map->h.tap, most = min64(REGISTERS * 3 / 4 / outputs, MAX_COLUMNS);
    int64_t n = ceil_div(end - begin, most);
    for (int64_t k = 0; k < n; k++) {
        int64_t j = begin + abar__lanes_share(end - begin, n, k), next = begin + abar__lanes_share(end - begin, n, k + 1);
        a->src = src + (j * map->h.step + at) * ABAR_LANES;
        a->dst = dst + j * map->dst_column;
        any_tile(a, outputs, next - j);
    }
}

static void row(const abar__lanes_map *map, const float *packed, const float *bias, const float *src, float *dst, int64_t i)
{
    static const float zeros[MAX_OUTPUTS] = {0};
    int64_t inner, outer, blocks = output_blocks(map->outputs), per_output = map->inputs * map->v.taps * map->h.taps;
    tile_args a = {.map = map};
    abar__lanes_clip(&map->v, i, &a.v0, &a.v1);
    interior(&map->h, 0, map->h.taps, &inner, &outer);
    src += (i * map->v.step + map->v.first + a.v0 * map->v.tap) * map->src_row;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = abar__lanes_share(map->outputs, blocks, b);
        int64_t outputs = abar__lanes_share(map->outputs, blocks, b + 1) - first;
        float *to = dst + first * map->dst_channel + i * map->dst_row;
        a.weights = packed + first * per_output;
        a.bias = bias ? bias + first : zeros;
        for (int64_t j = 0; j < map->h.out; j++) {
            if (j == inner) j = outer;
            if (j == map->h.out) break;
            abar__lanes_clip(&map->h, j, &a.h0, &a.h1);
            tiles(&a, src, to, outputs, j, j + 1);
        }
        a.h0 = 0;
        a.h1 = map->h.taps;
        tiles(&a, src, to, outputs, inner, outer);
    }
}

/* ---- gradient of the weights ------------------------------------------------------------------------------------ */

typedef struct slope_args {
    const abar__lanes_slope *map;
    const float *dy, *x; /* first output, first row; the channel, tap (v, h0), also of the first row and column 0 */
    float *partial;      /* of (first output, channel, v, h0) */
    int64_t at;          /* source column under tap h0 for column 0 */
    int64_t inner, outer, rows;
} slope_args;

/* Columns [begin, end) of one row. Taps outside the source read zeros instead. */
ABAR_SPECIALIZED void slope_columns(const slope_args *a, vec acc[MAX_TILE], const float *dy, const float *x, int64_t begin,
                                    int64_t end, const int outputs, const int taps, const bool edge)
{
    static const float zeros[ABAR_LANES] __attribute__((aligned(64))) = {0};
    const abar__lanes_slope *map = a->map;
    for (int64_t j = begin; j < end; j++) {
        int64_t first = a->at + j * map->h.step;
        vec g[MAX_OUTPUTS], s[MAX_TAPS];
        ABAR_UNROLL for (int o = 0; o < outputs; o++) g[o] = load(dy + o * map->dy_channel + j * ABAR_LANES);
        ABAR_UNROLL for (int t = 0; t < taps; t++)
        {
            int64_t column = first + t * map->h.tap;
            s[t] = load(!edge || (column >= 0 && column < map->h.in) ? x + column * ABAR_LANES : zeros);
        }
        ABAR_UNROLL for (int n = 0; n < outputs * taps; n++) acc[n] += g[n % outputs] * s[n / outputs];
    }
}

ABAR_SPECIALIZED void slope_tile(const slope_args *a, const int outputs, const int taps)
{
    const abar__lanes_slope *map = a->map;
    const int64_t per_output = map->inputs * map->v.taps * map->h.taps * ABAR_LANES;
    vec acc[MAX_TILE];
    ABAR_UNROLL for (int n = 0; n < outputs * taps; n++) acc[n] =
        load(a->partial + n % outputs * per_output + n / outputs * ABAR_LANES);
    for (int lane = 0; lane < ABAR_LANES; lane += WIDTH) {
        const float *dy = a->dy + lane, *x = a->x + lane;
        for (int64_t i = 0; i < a->rows; i++, dy += map->dy_row, x += map->v.step * map->x_row) {
            slope_columns(a, acc, dy, x, 0, a->inner, outputs, taps, true);
            slope_columns(a, acc, dy, x, a->inner, a->outer, outputs, taps, false);
            slope_columns(a, acc, dy, x, a->outer, map->h.out, outputs, taps, true);
        }
    }
    ABAR_UNROLL for (int n = 0; n < outputs * taps; n++)
        store(a->partial + n % outputs * per_output + n / outputs * ABAR_LANES, acc[n]);
}

static void any_slope_tile(const slope_args *a, int64_t outputs, int64_t taps)
{
    switch (outputs * 16 + taps) {
    case 0x11: slope_tile(a, 1, 1); break;
    case 0x12: slope_tile(a, 1, 2); break;
    case 0x13: slope_tile(a, 1, 3); break;
    case 0x14: slope_tile(a, 1, 4); break;
    case 0x15: slope_tile(a, 1, 5); break;
    case 0x21: slope_tile(a, 2, 1); break;
    case 0x22: slope_tile(a, 2, 2); break;
    case 0x23: slope_tile(a, 2, 3); break;
    case 0x24: slope_tile(a, 2, 4); break;
    case 0x25: slope_tile(a, 2, 5); break;
    case 0x31: slope_tile(a, 3, 1); break;
    case 0x32: slope_tile(a, 3, 2); break;
    case 0x33: slope_tile(a, 3, 3); break;
    case 0x34: slope_tile(a, 3, 4); break;
    case 0x35: slope_tile(a, 3, 5); break;
    case 0x41: slope_tile(a, 4, 1); break;
    case 0x42: slope_tile(a, 4, 2); break;
    case 0x43: slope_tile(a, 4, 3); break;
    case 0x44: slope_tile(a, 4, 4); break;
    case 0x45: slope_tile(a, 4, 5); break;
    case 0x51: slope_tile(a, 5, 1); break;
    case 0x52: slope_tile(a, 5, 2); break;
    case 0x53: slope_tile(a, 5, 3); break;
    case 0x54: slope_tile(a, 5, 4); break;
    case 0x61: slope_tile(a, 6, 1); break;
    case 0x62: slope_tile(a, 6, 2); break;
    case 0x63: slope_tile(a, 6, 3); break;
    case 0x64: slope_tile(a, 6, 4); break;
    default: break;
    }
}

/* Output rows [begin, end) of a block of outputs whose dy fits into the first-level cache: all channels and taps reuse it. */
static void slope_block(const abar__lanes_slope *map, const float *dy, const float *x, float *partial, int64_t outputs,
                        int64_t begin, int64_t end)
{
    int64_t chunks = ceil_div(map->h.taps, MAX_TAPS);
    slope_args a = {.map = map};
    for (int64_t c = 0; c < map->inputs; c++)
        for (int64_t v = 0; v < map->v.taps; v++)
            for (int64_t k = 0; k < chunks; k++) {
                int64_t low, high, h0 = abar__lanes_share(map->h.taps, chunks, k);
                int64_t h1 = abar__lanes_share(map->h.taps, chunks, k + 1);
                interior(&map->v, v, v + 1, &low, &high);
                low = max64(low, begin);
                high = min64(high, end);
                if (low >= high) continue;
                interior(&map->h, h0, h1, &a.inner, &a.outer);
                a.rows = high - low;
                a.at = map->h.first + h0 * map->h.tap;
                a.dy = dy + low * map->dy_row;
                a.x = x + c * map->x_channel + (low * map->v.step + map->v.first + v * map->v.tap) * map->x_row;
                a.partial = partial + ((c * map->v.taps + v) * map->h.taps + h0) * ABAR_LANES;
                any_slope_tile(&a, outputs, h1 - h0);
            }
}

static void slope(const abar__lanes_slope *map, const float *dy, const float *x, float *partial, int64_t begin, int64_t end)
{
    const int64_t cache = 16 * 1024, pixel = ABAR_LANES * (int64_t)sizeof(float);
    int64_t widest = ceil_div(map->h.taps, ceil_div(map->h.taps, MAX_TAPS));
    int64_t most = min64(MAX_OUTPUTS, (REGISTERS - 3) / (widest + 1)), blocks = ceil_div(map->outputs, most);
    int64_t rows = max64(1, cache / (most * map->h.out * pixel));
    for (int64_t i = begin; i < end; i += rows)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t first = abar__lanes_share(map->outputs, blocks, b);
            slope_block(map, dy + first * map->dy_channel, x,
                        partial + first * map->inputs * map->v.taps * map->h.taps * ABAR_LANES,
                        abar__lanes_share(map->outputs, blocks, b + 1) - first, i, min64(i + rows, end));
        }
}

/* ---- around them ------------------------------------------------------------------------------------------------ */

static void mask(float *dy, const float *y, float *sum, int64_t n)
{
    for (int lane = 0; lane < ABAR_LANES; lane += WIDTH) {
        vec total = load(sum + lane);
        for (int64_t i = lane; i < n * ABAR_LANES; i += ABAR_LANES) {
            vec g = load(dy + i);
            if (y) {
                g = (vec)((ivec)g & (load(y + i) > 0.0f));
                store(dy + i, g);
            }
            total += g;
        }
        store(sum + lane, total);
    }
}

static void reduce(const float *partial, int64_t stride, int parts, int64_t begin, int64_t end, bool accumulate, float *dst)
{
    for (int64_t i = begin; i < end; i++) {
        float lane[ABAR_LANES] = {0};
        for (int p = 0; p < parts; p++)
            for (int n = 0; n < ABAR_LANES; n++) lane[n] += partial[p * stride + i * ABAR_LANES + n];
        for (int half = ABAR_LANES / 2; half > 0; half /= 2)
            for (int n = 0; n < half; n++) lane[n] += lane[n + half];
        dst[i] = accumulate ? dst[i] + lane[0] : lane[0];
    }
}

ABAR_ISA_EXTERN(abar__lanes_kernels, abar__lanes);
const abar__lanes_kernels ABAR_ISA_NAME(abar__lanes) = {pack, row, slope, mask, reduce};
