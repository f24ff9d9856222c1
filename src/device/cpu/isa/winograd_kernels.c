/* The transforms and products of Winograd's F(4x4, 3x3). Channels are the lanes, so that a transform is plain vector
 * arithmetic, and a product a broadcast times a vector of output channels. */
#include "device/cpu/winograd.h"

ABAR_ISA_EXTERN(abar__winograd_kernels, abar__winograd_table);

#if !defined(__AVX2__) /* too few registers for a gain */

const abar__winograd_kernels ABAR_ISA_NAME(abar__winograd_table) = {0};

#else

#include <math.h>

#if defined(__AVX512F__)
enum { LANES = 16, ACCUMULATORS = 24 };
#else
enum { LANES = 8, ACCUMULATORS = 12 };
#endif
enum { PLACES = ABAR_WINOGRAD_PLACES, TILE = ABAR_WINOGRAD_TILE, PATCH = TILE + 2, TAPS = 9 };

typedef float vec __attribute__((vector_size(LANES * 4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), may_alias));

#define INLINE static inline __attribute__((always_inline))
/* Flat loops with constant bounds, so that the compiler keeps arrays in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 36")
#endif

static const float zeros[PATCH * LANES] __attribute__((aligned(64))) = {0};

/* ---- the six one-dimensional transforms, in place over vectors step apart ----------------------------------------- */

INLINE void times_bt(vec *d, const int step)
{
    vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
    vec even = d4 - 4.0f * d2, odd = d3 - 4.0f * d1, even2 = d4 - d2, odd2 = d3 - d1;
    d[0] = 4.0f * d0 - 5.0f * d2 + d4;
    d[step] = even + odd;
    d[2 * step] = even - odd;
    d[3 * step] = even2 + 2.0f * odd2;
    d[4 * step] = even2 - 2.0f * odd2;
    d[5 * step] = 4.0f * d1 - 5.0f * d3 + d5;
}

/* 6 -> 4 */
INLINE void times_at(vec *m, const int step)
{
    vec sum = m[step] + m[2 * step], sum2 = m[3 * step] + m[4 * step];
    vec difference = m[step] - m[2 * step], difference2 = m[3 * step] - m[4 * step];
    m[0] = m[0] + sum + sum2;
    m[step] = difference + 2.0f * difference2;
    m[2 * step] = sum + 4.0f * sum2;
    m[3 * step] = difference + 8.0f * difference2 + m[5 * step];
}

/* 4 -> 6 */
INLINE void times_a(vec *y, const int step)
{
    vec y0 = y[0], y1 = y[step], y2 = y[2 * step], y3 = y[3 * step];
    vec even = y0 + y2, odd = y1 + y3, even2 = y0 + 4.0f * y2, odd2 = 2.0f * y1 + 8.0f * y3;
    y[step] = even + odd;
    y[2 * step] = even - odd;
    y[3 * step] = even2 + odd2;
    y[4 * step] = even2 - odd2;
    y[5 * step] = y3;
}

/* 3 -> 6 */
INLINE void times_g(vec *g, const int step)
{
    vec g0 = g[0], g1 = g[step], g2 = g[2 * step];
    vec even = (g0 + g2) * (-1.0f / 6.0f), odd = g1 * (-1.0f / 6.0f);
    vec even2 = g0 * (1.0f / 24.0f) + g2 * (1.0f / 6.0f), odd2 = g1 * (1.0f / 12.0f);
    g[0] = g0 * 0.25f;
    g[step] = even + odd;
    g[2 * step] = even - odd;
    g[3 * step] = even2 + odd2;
    g[4 * step] = even2 - odd2;
    g[5 * step] = g2;
}

/* 6 -> 3 */
INLINE void times_gt(vec *s, const int step)
{
    vec sum = s[step] + s[2 * step], sum2 = s[3 * step] + s[4 * step];
    vec difference = s[2 * step] - s[step], difference2 = s[3 * step] - s[4 * step];
    s[0] = s[0] * 0.25f - sum * (1.0f / 6.0f) + sum2 * (1.0f / 24.0f);
    s[step] = difference * (1.0f / 6.0f) + difference2 * (1.0f / 12.0f);
    s[2 * step] = s[5 * step] + (sum2 - sum) * (1.0f / 6.0f);
}

/* ---- weights ------------------------------------------------------------------------------------------------------ */

/* The offset in U (or in an output channel's column of it) of channel c of block b of outputs, at place 0. */
INLINE int64_t u_at(const abar__winograd *w, int64_t c, int64_t b)
{
    int64_t width = (b | 1) < w->out_blocks ? 2 : 1;
    return ((b & ~(int64_t)1) * w->in_blocks * LANES + c * width + (b & 1)) * LANES;
}

static void kernels(const abar__winograd *w, const abar__winograd_taps *taps, const float *g, int64_t c, float *u)
{
    const int64_t place = w->in_blocks * w->out_blocks * LANES * LANES;
    for (int64_t b = 0; b < w->out_blocks; b++) {
        float plain[TAPS][LANES] __attribute__((aligned(64))) = {{0}};
        int64_t n = w->outputs - b * LANES < LANES ? w->outputs - b * LANES : LANES;
        const float *from = g + b * LANES * taps->output + c * taps->input;
        for (int64_t o = 0; o < n && c < w->inputs; o++)
            for (int t = 0; t < TAPS; t++) plain[t][o] = from[o * taps->output + (taps->flipped ? TAPS - 1 - t : t)];
        vec v[PLACES];
        UNROLL for (int t = 0; t < TAPS; t++) v[t / 3 * PATCH + t % 3] = *(const vec *)plain[t];
        UNROLL for (int i = 0; i < 3; i++) times_g(v + i, PATCH);
        UNROLL for (int i = 0; i < PATCH; i++) times_g(v + i * PATCH, 1);
        float *to = u + u_at(w, c, b);
        UNROLL for (int i = 0; i < PLACES; i++) * (vec *)(to + i * place) = v[i];
    }
}

static void collect(const abar__winograd *w, const abar__winograd_taps *taps, const float *s, int64_t stride, int parts,
                    int64_t c, bool accumulate, float *dg)
{
    const int64_t place = w->in_blocks * w->out_blocks * LANES * LANES;
    for (int64_t b = 0; b < w->out_blocks; b++) {
        const float *from = s + ((c / LANES * w->out_blocks + b) * LANES + c % LANES) * LANES;
        vec v[PLACES];
        UNROLL for (int i = 0; i < PLACES; i++) v[i] = *(const vec *)(from + i * place);
        for (int p = 1; p < parts; p++)
            UNROLL for (int i = 0; i < PLACES; i++) v[i] += *(const vec *)(from + p * stride + i * place);
        UNROLL for (int i = 0; i < PATCH; i++) times_gt(v + i, PATCH);
        UNROLL for (int i = 0; i < 3; i++) times_gt(v + i * PATCH, 1);
        float plain[TAPS][LANES] __attribute__((aligned(64)));
        UNROLL for (int t = 0; t < TAPS; t++) * (vec *)plain[t] = v[t / 3 * PATCH + t % 3];
        int64_t n = w->outputs - b * LANES < LANES ? w->outputs - b * LANES : LANES;
        float *to = dg + b * LANES * taps->output + c * taps->input;
        for (int64_t o = 0; o < n; o++)
            for (int t = 0; t < TAPS; t++)
                to[o * taps->output + t] = accumulate ? to[o * taps->output + t] + plain[t][o] : plain[t][o];
    }
}

/* ---- activations -------------------------------------------------------------------------------------------------- */

/* The top left pixel of a tile's output. */
typedef struct corner {
    int64_t image, row, column;
} corner;

INLINE corner corner_of(const abar__winograd *w, int64_t tile)
{
    int64_t per_image = w->tiles_h * w->tiles_w, rest = tile % per_image;
    return (corner){tile / per_image, rest / w->tiles_w * TILE, rest % w->tiles_w * TILE};
}

/* Loads size x size pixels from (row, column) of a plane into v, rows PATCH apart; zeros outside the plane. */
INLINE void load_patch(const float *plane, int64_t height, int64_t width, int64_t row, int64_t column, const int size, vec *v)
{
    bool inside = row >= 0 && column >= 0 && row + size <= height && column + size <= width;
    const float *at = plane + (row * width + column) * LANES;
    if (inside) {
        UNROLL for (int i = 0; i < size * size; i++) v[i / size * PATCH + i % size] =
            *(const vec *)(at + (i / size * width + i % size) * LANES);
        return;
    }
    UNROLL for (int i = 0; i < size * size; i++)
    {
        int64_t y = row + i / size, x = column + i % size;
        bool on = y >= 0 && y < height && x >= 0 && x < width;
        v[i / size * PATCH + i % size] = *(const vec *)(on ? plane + (y * width + x) * LANES : zeros);
    }
}

static void source(const abar__winograd *w, const float *src, int64_t first, int64_t count, float *v)
{
    const int64_t place = abar__winograd_place(w, w->in_blocks, LANES);
    for (int64_t t = 0; t < count; t++) {
        corner at = corner_of(w, first + t);
        for (int64_t b = 0; b < w->in_blocks; b++) {
            const float *plane = src + (at.image * w->in_blocks + b) * w->in_h * w->in_w * LANES;
            float *to = v + (b * w->chunk + t) * LANES;
            vec d[PLACES];
            load_patch(plane, w->in_h, w->in_w, at.row - w->pad[0], at.column - w->pad[1], PATCH, d);
            UNROLL for (int i = 0; i < PATCH; i++) times_bt(d + i, PATCH);
            UNROLL for (int i = 0; i < PATCH; i++) times_bt(d + i * PATCH, 1);
            UNROLL for (int i = 0; i < PLACES; i++) * (vec *)(to + i * place) = d[i];
        }
    }
}

static void gradient(const abar__winograd *w, const float *dy, int64_t first, int64_t count, float *z)
{
    const int64_t place = abar__winograd_place(w, w->out_blocks, LANES);
    for (int64_t t = 0; t < count; t++) {
        corner at = corner_of(w, first + t);
        for (int64_t b = 0; b < w->out_blocks; b++) {
            const float *plane = dy + (at.image * w->out_blocks + b) * w->out_h * w->out_w * LANES;
            float *to = z + (b * w->chunk + t) * LANES;
            vec y[PLACES];
            load_patch(plane, w->out_h, w->out_w, at.row, at.column, TILE, y);
            UNROLL for (int i = 0; i < TILE; i++) times_a(y + i, PATCH);
            UNROLL for (int i = 0; i < PATCH; i++) times_a(y + i * PATCH, 1);
            UNROLL for (int i = 0; i < PLACES; i++) * (vec *)(to + i * place) = y[i];
        }
    }
}

/* The larger of the two; a NaN in v stays. */
INLINE void raise_to(const vec *floor, vec *v)
{
    ivec below = *v < *floor;
    *v = (vec)(((ivec)*v & ~below) | ((ivec)*floor & below));
}

/* Sums over the pixels of one tile: of d = y - k and of d * d, with k the first of them, so that float is accurate enough. */
typedef struct tile_sums {
    vec k, sum, square;
    float count;
} tile_sums;

INLINE void add_pixel(tile_sums *s, const vec *y, const bool first)
{
    if (first) s->k = *y;
    const vec d = *y - s->k;
    s->sum += d;
    s->square += d * d;
    s->count += 1.0f;
}

typedef double dvec __attribute__((vector_size(LANES * 8), may_alias));

/* The sums of y and of y * y, in double. */
INLINE void add_tile(const tile_sums *s, dvec *sum, dvec *square)
{
    const dvec k = __builtin_convertvector(s->k, dvec), d = __builtin_convertvector(s->sum, dvec);
    const dvec all = k * (double)s->count;
    *sum += d + all;
    *square += __builtin_convertvector(s->square, dvec) + k * (2.0 * d + all);
}

/* One block of outputs. */
INLINE void output_block(const abar__winograd *w, const float *m, const float *add, bool relu, int64_t first, int64_t count,
                         int64_t b, float *dst, abar__norm_moments *moments, const bool wanted)
{
    const int64_t place = abar__winograd_place(w, w->out_blocks, LANES);
    const vec floor = (vec){0} - (relu ? 0.0f : INFINITY);
    dvec sum = {0}, square = {0};
    for (int64_t t = 0; t < count; t++) {
        corner at = corner_of(w, first + t);
        const float *from = m + (b * w->chunk + t) * LANES;
        float *to = dst + (((at.image * w->out_blocks + b) * w->out_h + at.row) * w->out_w + at.column) * LANES;
        tile_sums s = {.count = 0.0f};
        vec y[PLACES];
        UNROLL for (int i = 0; i < PLACES; i++) y[i] = *(const vec *)(from + i * place);
        UNROLL for (int i = 0; i < PATCH; i++) times_at(y + i, PATCH);
        UNROLL for (int i = 0; i < TILE; i++) times_at(y + i * PATCH, 1);
        bool whole = at.row + TILE <= w->out_h && at.column + TILE <= w->out_w;
        UNROLL for (int i = 0; i < TILE * TILE;
                    i++) if (whole || (at.row + i / TILE < w->out_h && at.column + i % TILE < w->out_w))
        {
            vec value = y[i / TILE * PATCH + i % TILE] + *(const vec *)add;
            raise_to(&floor, &value);
            if (wanted) add_pixel(&s, &value, i == 0);
            *(vec *)(to + (i / TILE * w->out_w + i % TILE) * LANES) = value;
        }
        if (wanted) add_tile(&s, &sum, &square);
    }
    for (int l = 0; wanted && l < LANES; l++) {
        moments[b * LANES + l].sum += sum[l];
        moments[b * LANES + l].square += square[l];
    }
}

static void output(const abar__winograd *w, const float *m, const float *bias, bool relu, int64_t first, int64_t count,
                   float *dst, abar__norm_moments *moments)
{
    for (int64_t b = 0; b < w->out_blocks; b++) {
        float add[LANES] __attribute__((aligned(64))) = {0};
        for (int64_t o = 0; bias && o < LANES && b * LANES + o < w->outputs; o++) add[o] = bias[b * LANES + o];
        if (moments)
            output_block(w, m, add, relu, first, count, b, dst, moments, true);
        else
            output_block(w, m, add, relu, first, count, b, dst, NULL, false);
    }
}

/* ---- products ----------------------------------------------------------------------------------------------------- */

/* tiles x width blocks of outputs, over all input channels. */
INLINE void product(const abar__winograd *w, const float *u, const float *v, float *m, const int tiles, const int width)
{
    vec acc[ACCUMULATORS];
    UNROLL for (int n = 0; n < tiles * width; n++) acc[n] = (vec){0};
    for (int64_t b = 0; b < w->in_blocks; b++, v += w->chunk * LANES)
        for (int c = 0; c < LANES; c++, u += width * LANES) {
            vec row[2];
            UNROLL for (int k = 0; k < width; k++) row[k] = *(const vec *)(u + k * LANES);
            UNROLL for (int n = 0; n < tiles * width; n++) acc[n] += row[n % width] * v[n / width * LANES + c];
        }
    UNROLL for (int n = 0; n < tiles * width; n++) * (vec *)(m + (n % width * w->chunk + n / width) * LANES) = acc[n];
}

/* A position in the memory to prefetch, and how many lines are fetched at a time. */
typedef struct cursor {
    const abar__winograd_runs *part, *end;
    int64_t run, at, lines;
} cursor;

enum { LINE = 16 };

/* All of the memory is fetched in so many times. */
static inline cursor begin_fetching(const abar__winograd_ahead *ahead, int64_t times)
{
    int64_t lines = 0;
    for (int i = 0; i < ahead->n; i++) lines += ahead->part[i].runs * ((ahead->part[i].floats + LINE - 1) / LINE);
    return (cursor){.part = ahead->part, .end = ahead->part + ahead->n, .lines = (lines + times - 1) / times};
}

INLINE void fetch(cursor *c)
{
    for (int64_t left = c->lines; left > 0 && c->part < c->end;) {
        const int64_t rest = c->part->floats - c->at, n = rest < left * LINE ? rest : left * LINE;
        const float *from = c->part->memory + c->run * c->part->step + c->at;
        for (int64_t i = 0; i < n; i += LINE) __builtin_prefetch(from + i, 0, 2);
        left -= (n + LINE - 1) / LINE;
        c->at += n;
        if (c->at < c->part->floats) continue;
        c->at = 0;
        if (++c->run < c->part->runs) continue;
        c->run = 0;
        c->part++;
    }
}

/* Works on whole blocks of tiles: those past count are computed in the buffers and never read. */
static void multiply(const abar__winograd *w, const float *u, const float *v, int64_t count, float *m,
                     const abar__winograd_ahead *ahead)
{
    cursor c = begin_fetching(ahead, PLACES * ((count - 1) / ACCUMULATORS + 1) * w->out_blocks);
    for (int i = 0; i < PLACES; i++) {
        for (int64_t b = 0; b < w->out_blocks; b += 2) {
            const float *group = u + b * w->in_blocks * LANES * LANES;
            float *to = m + b * w->chunk * LANES;
            const bool pair = b + 1 < w->out_blocks;
            for (int64_t t = 0; t < count; t += pair ? ACCUMULATORS / 2 : ACCUMULATORS) {
                fetch(&c);
                if (pair)
                    product(w, group, v + t * LANES, to + t * LANES, ACCUMULATORS / 2, 2);
                else
                    product(w, group, v + t * LANES, to + t * LANES, ACCUMULATORS, 1);
            }
        }
        u += w->in_blocks * w->out_blocks * LANES * LANES;
        v += abar__winograd_place(w, w->in_blocks, LANES);
        m += abar__winograd_place(w, w->out_blocks, LANES);
    }
}

static void correlate(const abar__winograd *w, const float *v, const float *z, int64_t count, float *s, float *bias,
                      const abar__winograd_ahead *ahead)
{
    const int64_t place = abar__winograd_place(w, w->out_blocks, LANES);
    for (int64_t b = 0; b < w->out_blocks; b++) { /* place (1, 1) of A dy Aᵀ is the sum of a tile */
        const float *tiles = z + (PATCH + 1) * place + b * w->chunk * LANES;
        vec sum = *(const vec *)(bias + b * LANES);
        for (int64_t t = 0; t < count; t++) sum += *(const vec *)(tiles + t * LANES);
        *(vec *)(bias + b * LANES) = sum;
    }
    cursor next = begin_fetching(ahead, PLACES * w->in_blocks * w->out_blocks);
    for (int i = 0; i < PLACES; i++, v += abar__winograd_place(w, w->in_blocks, LANES), z += place)
        for (int64_t c = 0; c < w->in_blocks; c++)
            for (int64_t o = 0; o < w->out_blocks; o++, s += LANES * LANES) {
                const float *from = v + c * w->chunk * LANES, *with = z + o * w->chunk * LANES;
                vec acc[LANES];
                fetch(&next);
                UNROLL for (int n = 0; n < LANES; n++) acc[n] = *(const vec *)(s + n * LANES);
                for (int64_t t = 0; t < count; t++) {
                    vec g = *(const vec *)(with + t * LANES);
                    UNROLL for (int n = 0; n < LANES; n++) acc[n] += g * from[t * LANES + n];
                }
                UNROLL for (int n = 0; n < LANES; n++) * (vec *)(s + n * LANES) = acc[n];
            }
}

const abar__winograd_kernels ABAR_ISA_NAME(abar__winograd_table) = {LANES,  ACCUMULATORS, kernels,   source, multiply,
                                                                    output, gradient,     correlate, collect};

#endif
