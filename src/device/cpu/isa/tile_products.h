/* For the kernels of convolutions by tiles (conv_tiles.h): the products, with channels in the lanes of a vector, so that a
 * product is a broadcast times a vector of output channels. Where ABAR_TILES is undefined there are too few registers for a
 * gain. */
#ifndef ABAR_TILE_PRODUCTS_H
#define ABAR_TILE_PRODUCTS_H

#include "device/cpu/conv_tiles.h"

#if defined(__AVX2__)
#define ABAR_TILES

#include <math.h>

#if defined(__AVX512F__)
enum { LANES = 16, ACCUMULATORS = 24 };
#else
enum { LANES = 8, ACCUMULATORS = 12 };
#endif

typedef float vec __attribute__((vector_size(LANES * 4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), may_alias));

#define INLINE static inline __attribute__((always_inline))
/* Flat loops with constant bounds, so that the compiler keeps arrays in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 36")
#endif

/* The offset in U (or in an output channel's column of it) of channel c of block b of outputs, at place 0. */
INLINE int64_t u_at(const abar__tiles *w, int64_t c, int64_t b)
{
    int64_t width = (b | 1) < w->out_blocks ? 2 : 1;
    return ((b & ~(int64_t)1) * w->in_blocks * LANES + c * width + (b & 1)) * LANES;
}

/* The larger of the two; a NaN in v stays. */
INLINE void raise_to(const vec *floor, vec *v)
{
    ivec below = *v < *floor;
    *v = (vec)(((ivec)*v & ~below) | ((ivec)*floor & below));
}

/* The bias of block b of outputs; zeros where bias is NULL. */
INLINE vec bias_of(const abar__tiles *w, const float *bias, int64_t b)
{
    float add[LANES] __attribute__((aligned(64))) = {0};
    for (int64_t o = 0; bias && o < LANES && b * LANES + o < w->outputs; o++) add[o] = bias[b * LANES + o];
    return *(const vec *)add;
}

/* tiles x width blocks of outputs, over all input channels. */
INLINE void product(const abar__tiles *w, const float *u, const float *v, float *m, const int tiles, const int width)
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
    const abar__tiles_runs *part, *end;
    int64_t run, at, lines;
} cursor;

enum { LINE = 16 };

/* All of the memory is fetched in so many times. */
static inline cursor begin_fetching(const abar__tiles_ahead *ahead, int64_t times)
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
static inline void multiply_places(const abar__tiles *w, int places, const float *u, const float *v, int64_t count, float *m,
                                   const abar__tiles_ahead *ahead)
{
    cursor c = begin_fetching(ahead, places * ((count - 1) / ACCUMULATORS + 1) * w->out_blocks);
    for (int i = 0; i < places; i++) {
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
        v += abar__tiles_place(w, w->in_blocks, LANES);
        m += abar__tiles_place(w, w->out_blocks, LANES);
    }
}

/* Adds the sums over count tiles of each channel to sums. */
static inline void add_tiles(const abar__tiles *w, const float *tiles, int64_t count, float *sums)
{
    for (int64_t b = 0; b < w->out_blocks; b++, tiles += w->chunk * LANES) {
        vec sum = *(const vec *)(sums + b * LANES);
        for (int64_t t = 0; t < count; t++) sum += *(const vec *)(tiles + t * LANES);
        *(vec *)(sums + b * LANES) = sum;
    }
}

static inline void correlate_places(const abar__tiles *w, int places, const float *v, const float *z, int64_t count, float *s,
                                    const abar__tiles_ahead *ahead)
{
    const int64_t place = abar__tiles_place(w, w->out_blocks, LANES);
    cursor next = begin_fetching(ahead, places * w->in_blocks * w->out_blocks);
    for (int i = 0; i < places; i++, v += abar__tiles_place(w, w->in_blocks, LANES), z += place)
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

#endif
#endif
