/* Sums of products of pixels with shifted pixels. A tile of results stays in registers over a whole lattice of pixels and is
 * added to memory once: so the loops run at the speed of multiplication, and long sums are made of short ones. */
#include "device/cpu/isa/stats_product_kernels.h"

#include "device/cpu/isa/lanes.h"

#include <stdbool.h>
#include <string.h>

/* Keeps a value that several products share in its register: gcc would rather load it again for each of them. */
#if defined(__AVX512F__)
#define HOLD(v) __asm__("" : "+v"(v))
#elif defined(__SSE2__)
#define HOLD(v) __asm__("" : "+x"(v))
#else
#define HOLD(v) (void)(v)
#endif

#if defined(__AVX512F__)
enum { WIDTH = 16, MAX_ROWS = 16, MAX_A = 6, MAX_B = 4 };
#elif defined(__AVX2__)
enum { WIDTH = 8, MAX_ROWS = 12, MAX_A = 4, MAX_B = 3 };
#else
enum { WIDTH = 4, MAX_ROWS = 12, MAX_A = 4, MAX_B = 3 };
#endif
enum { TILE_A = 6, TILE_B = 4, TILE = TILE_A * TILE_B }; /* the largest that is compiled; MAX_A and MAX_B fit the registers */

typedef float vec __attribute__((vector_size(WIDTH * 4)));
typedef int32_t ivec __attribute__((vector_size(WIDTH * 4)));
typedef float quad __attribute__((vector_size(16)));
typedef float octet __attribute__((vector_size(32)));
typedef float loose_octet __attribute__((vector_size(32), aligned(4), may_alias));
typedef float loose __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias)); /* in memory, anywhere */

ABAR_SPECIALIZED vec load(const float *p) { return *(const loose *)p; }
ABAR_SPECIALIZED void store(float *p, vec v) { *(loose *)p = v; }
ABAR_SPECIALIZED void add_to(float *p, vec v) { store(p, load(p) + v); }

/* ---- channels in the lanes ---------------------------------------------------------------------------------------- */

ABAR_SPECIALIZED void channel_tile(const abar__product_run *run, int64_t from, int lane, float *block, const int rows,
                                   const bool weighted)
{
    vec acc[MAX_ROWS];
    ABAR_UNROLL for (int c = 0; c < rows; c++) acc[c] = (vec){0};
    for (int64_t g = 0; g < run->groups; g++)
        for (int64_t y = 0; y < run->rows; y++) {
            const float *a = run->a + g * run->group + y * run->row + from;
            const float *b = run->b + g * run->group + y * run->row + lane;
            for (int64_t x = 0; x < run->columns; x++, a += run->column, b += run->column) {
                vec v = load(b);
                if (weighted) v *= run->weight[g];
                ABAR_UNROLL for (int c = 0; c < rows; c++) acc[c] += v * a[c];
            }
        }
    ABAR_UNROLL for (int c = 0; c < rows; c++) add_to(block + (from + c) * ABAR_LANES + lane, acc[c]);
}

ABAR_SPECIALIZED void channel_tiles(const abar__product_run *run, int64_t rows, float *block, const bool weighted)
{
    const int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS, fours = (rows + 3) / 4;
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t from = fours * t / tiles * 4, high = fours * (t + 1) / tiles * 4 - from;
        for (int lane = 0; lane < ABAR_LANES; lane += WIDTH) switch (high) {
            case 4: channel_tile(run, from, lane, block, 4, weighted); break;
            case 8: channel_tile(run, from, lane, block, 8, weighted); break;
            case 12: channel_tile(run, from, lane, block, 12, weighted); break;
            default: channel_tile(run, from, lane, block, MAX_ROWS, weighted); break;
            }
    }
}

static void channels(const abar__product_run *run, int64_t rows, float *block)
{
    if (run->weight)
        channel_tiles(run, rows, block, true);
    else
        channel_tiles(run, rows, block, false);
}

static void channel_sums(const abar__product_run *run, float *sums)
{
    for (int lane = 0; lane < ABAR_LANES; lane += WIDTH) {
        vec all = {0};
        for (int64_t g = 0; g < run->groups; g++) {
            vec acc = {0};
            for (int64_t y = 0; y < run->rows; y++) {
                const float *b = run->b + g * run->group + y * run->row + lane;
                for (int64_t x = 0; x < run->columns; x++) acc += load(b + x * run->column);
            }
            if (run->weight) acc *= run->weight[g];
            all += acc;
        }
        add_to(sums + lane, all);
    }
}

/* ---- images in the lanes ------------------------------------------------------------------------------------------ */

ABAR_SPECIALIZED float total(vec v)
{
    quad q[WIDTH / 4], sum;
    memcpy(q, &v, sizeof v);
    sum = q[0];
    ABAR_UNROLL for (int i = 1; i < WIDTH / 4; i++) sum += q[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* What the images of one group count for. */
typedef struct lanes_of {
    ivec present; /* all ones for the lanes that hold images */
    vec weight;
} lanes_of;

ABAR_SPECIALIZED lanes_of group_lanes(const abar__product_run *run, int64_t g, int lane)
{
    int32_t present[WIDTH];
    for (int i = 0; i < WIDTH; i++) present[i] = -(g * ABAR_LANES + lane + i < run->images);
    lanes_of l;
    memcpy(&l.present, present, sizeof present);
    l.weight = (vec){0} + 1.0f;
    if (run->weight) l.weight = load(run->weight + g * ABAR_LANES + lane);
    return l;
}

ABAR_SPECIALIZED vec masked(vec v, ivec present) { return (vec)((ivec)v & present); }

ABAR_SPECIALIZED void image_pixel(const abar__product_run *run, const float *a, const float *b, const lanes_of *lanes, vec *acc,
                                  const int as, const int bs, const bool special)
{
    vec u[TILE_A], v[TILE_B];
    ABAR_UNROLL for (int i = 0; i < as; i++)
    {
        u[i] = load(a + i * run->channel);
        if (special) u[i] = masked(u[i], lanes->present) * lanes->weight;
        HOLD(u[i]);
    }
    ABAR_UNROLL for (int i = 0; i < bs; i++)
    {
        v[i] = load(b + i * run->channel);
        if (special) v[i] = masked(v[i], lanes->present);
    }
    ABAR_UNROLL for (int n = 0; n < as * bs; n++) acc[n] += u[n / bs] * v[n % bs];
}

/* block[i * width + j], i < as, j < bs. special: some lanes are empty, or images have weights. */
ABAR_SPECIALIZED void image_tile(const abar__product_run *run, float *block, int64_t width, const int as, const int bs,
                                 const bool special)
{
    /* where there are few products, several pixels at a time keep the multipliers busy */
    const int size = as * bs, pixels = size == 1 ? 8 : size <= 4 ? 2 : 1;
    vec acc[TILE];
    ABAR_UNROLL for (int n = 0; n < size * pixels; n++) acc[n] = (vec){0};
    for (int lane = 0; lane < ABAR_LANES; lane += WIDTH)
        for (int64_t g = 0; g < run->groups; g++) {
            lanes_of lanes = {0};
            if (special) lanes = group_lanes(run, g, lane);
            for (int64_t y = 0; y < run->rows; y++) {
                const float *a = run->a + g * run->group + y * run->row + lane;
                const float *b = run->b + g * run->group + y * run->row + lane;
                int64_t x = 0;
                for (; x + pixels <= run->columns; x += pixels)
                    ABAR_UNROLL for (int p = 0; p < pixels; p++, a += run->column, b += run->column)
                        image_pixel(run, a, b, &lanes, acc + p * size, as, bs, special);
                for (; x < run->columns; x++, a += run->column, b += run->column)
                    image_pixel(run, a, b, &lanes, acc, as, bs, special);
            }
        }
    ABAR_UNROLL for (int n = size; n < size * pixels; n++) acc[n % size] += acc[n];
    ABAR_UNROLL for (int n = 0; n < size; n++) block[n / bs * width + n % bs] += total(acc[n]);
}

ABAR_SPECIALIZED void any_image_tile(const abar__product_run *run, float *block, int64_t width, int64_t as, int64_t bs,
                                     const bool special)
{
    switch (as * 16 + bs) {
    case 0x11: image_tile(run, block, width, 1, 1, special); break;
    case 0x12: image_tile(run, block, width, 1, 2, special); break;
    case 0x13: image_tile(run, block, width, 1, 3, special); break;
    case 0x14: image_tile(run, block, width, 1, 4, special); break;
    case 0x21: image_tile(run, block, width, 2, 1, special); break;
    case 0x22: image_tile(run, block, width, 2, 2, special); break;
    case 0x23: image_tile(run, block, width, 2, 3, special); break;
    case 0x24: image_tile(run, block, width, 2, 4, special); break;
    case 0x31: image_tile(run, block, width, 3, 1, special); break;
    case 0x32: image_tile(run, block, width, 3, 2, special); break;
    case 0x33: image_tile(run, block, width, 3, 3, special); break;
    case 0x34: image_tile(run, block, width, 3, 4, special); break;
    case 0x41: image_tile(run, block, width, 4, 1, special); break;
    case 0x42: image_tile(run, block, width, 4, 2, special); break;
    case 0x43: image_tile(run, block, width, 4, 3, special); break;
    case 0x44: image_tile(run, block, width, 4, 4, special); break;
    case 0x51: image_tile(run, block, width, 5, 1, special); break;
    case 0x52: image_tile(run, block, width, 5, 2, special); break;
    case 0x53: image_tile(run, block, width, 5, 3, special); break;
    case 0x54: image_tile(run, block, width, 5, 4, special); break;
    case 0x61: image_tile(run, block, width, 6, 1, special); break;
    case 0x62: image_tile(run, block, width, 6, 2, special); break;
    case 0x63: image_tile(run, block, width, 6, 3, special); break;
    case 0x64: image_tile(run, block, width, 6, 4, special); break;
    default: break;
    }
}

static void images_plain(const abar__product_run *run, float *block, int64_t width, int64_t as, int64_t bs)
{
    any_image_tile(run, block, width, as, bs, false);
}

static void images_special(const abar__product_run *run, float *block, int64_t width, int64_t as, int64_t bs)
{
    any_image_tile(run, block, width, as, bs, true);
}

/* Tiles of nearly equal size. */
static void images(const abar__product_run *run, int64_t n_channels, float *block)
{
    const bool special = run->weight || run->images < run->groups * ABAR_LANES;
    const int64_t high = (n_channels + MAX_A - 1) / MAX_A, wide = (n_channels + MAX_B - 1) / MAX_B;
    for (int64_t i = 0; i < high; i++)
        for (int64_t j = 0; j < wide; j++) {
            const int64_t a = n_channels * i / high, as = n_channels * (i + 1) / high - a;
            const int64_t b = n_channels * j / wide, bs = n_channels * (j + 1) / wide - b;
            abar__product_run tile = *run;
            tile.a += a * run->channel;
            tile.b += b * run->channel;
            (special ? images_special : images_plain)(&tile, block + a * n_channels + b, n_channels, as, bs);
        }
}

static void image_sums(const abar__product_run *run, int64_t n, float *sums)
{
    for (int64_t c = 0; c < n; c++)
        for (int lane = 0; lane < ABAR_LANES; lane += WIDTH) {
            vec all = {0};
            for (int64_t g = 0; g < run->groups; g++) {
                const lanes_of lanes = group_lanes(run, g, lane);
                vec acc = {0};
                for (int64_t y = 0; y < run->rows; y++) {
                    const float *b = run->b + g * run->group + c * run->channel + y * run->row + lane;
                    for (int64_t x = 0; x < run->columns; x++) acc += load(b + x * run->column);
                }
                all += masked(acc, lanes.present) * lanes.weight;
            }
            sums[c] += total(all);
        }
}

/* ---- sums alone ----------------------------------------------------------------------------------------------------- */

static void sixteen_sums(const abar__product_run *run, float *sums)
{
    for (int lane = 0; lane < ABAR_LANES; lane += WIDTH) {
        vec acc[2] = {{0}, {0}};
        for (int64_t y = 0; y < run->rows; y++) {
            const float *a = run->a + y * run->row + lane;
            int64_t x = 0;
            for (; x + 2 <= run->columns; x += 2, a += 2 * run->column) {
                acc[0] += load(a);
                acc[1] += load(a + run->column);
            }
            if (x < run->columns) acc[0] += load(a);
        }
        store(sums + lane, acc[0] + acc[1]);
    }
}

static void eight_sums(const abar__product_run *run, float *sums)
{
    octet acc = {0};
    for (int64_t y = 0; y < run->rows; y++)
        for (int64_t x = 0; x < run->columns; x++) acc += *(const loose_octet *)(run->a + y * run->row + x * run->column);
    *(loose_octet *)sums = acc;
}

static float one_sum(const abar__product_run *run)
{
    const int64_t step = run->column;
    float sum = 0.0f;
    for (int64_t y = 0; y < run->rows; y++) {
        const float *a = run->a + y * run->row;
        float part = 0.0f;
        if (step == 1) {
#pragma omp simd reduction(+ : part)
            for (int64_t x = 0; x < run->columns; x++) part += a[x];
        } else {
#pragma omp simd reduction(+ : part)
            for (int64_t x = 0; x < run->columns; x++) part += a[x * step];
        }
        sum += part;
    }
    return sum;
}

static void lane_sums(const abar__product_run *run, int64_t lanes, float *sums)
{
    switch (lanes) {
    case 16: sixteen_sums(run, sums); return;
    case 8: eight_sums(run, sums); return;
    case 1: sums[0] = one_sum(run); return;
    default: break;
    }
    float acc[ABAR_LANES] = {0};
    for (int64_t y = 0; y < run->rows; y++)
        for (int64_t x = 0; x < run->columns; x++)
            for (int64_t l = 0; l < lanes; l++) acc[l] += run->a[y * run->row + x * run->column + l];
    memcpy(sums, acc, (size_t)lanes * sizeof *sums);
}

const abar__product_kernels ABAR_ISA_NAME(abar__product) = {
    .channels = channels,
    .images = images,
    .channel_sums = channel_sums,
    .image_sums = image_sums,
    .lane_sums = lane_sums,
};
