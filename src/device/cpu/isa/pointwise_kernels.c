/* The kernels of 1x1 convolutions: the products are all there is to do; the transforms are copies, which keep what the products
 * read together in the cache. */
#include "device/cpu/isa/tile_products.h"

#if !defined(ABAR_TILES)

const abar__tiles_kernels ABAR_ISA_NAME(abar__pointwise) = {0};

#else

#include <string.h>

static void kernels(const abar__tiles *w, const abar__tiles_taps *taps, const float *g, int64_t c, float *u)
{
    for (int64_t b = 0; b < w->out_blocks; b++) {
        float *to = u + u_at(w, c, b);
        for (int64_t l = 0; l < LANES; l++) {
            const int64_t o = b * LANES + l;
            to[l] = o < w->outputs && c < w->inputs ? g[o * taps->output + c * taps->input] : 0.0f;
        }
    }
}

static void collect(const abar__tiles *w, const abar__tiles_taps *taps, const float *s, int64_t stride, int parts, int64_t c,
                    bool accumulate, float *dg)
{
    for (int64_t o = 0; o < w->outputs; o++) {
        const float *from = s + ((c / LANES * w->out_blocks + o / LANES) * LANES + c % LANES) * LANES + o % LANES;
        float *to = dg + o * taps->output + c * taps->input, sum = accumulate ? *to : 0.0f;
        for (int p = 0; p < parts; p++) sum += from[p * stride];
        *to = sum;
    }
}

/* Pixels of one image: [at, at + count) of a plane, `tile` tiles after the chunk's first. */
typedef struct run {
    int64_t image, at, count, tile;
} run;

/* The next run of a chunk of count tiles from `first` on, `done` of which have been seen. */
INLINE run next_run(int64_t pixels, int64_t first, int64_t count, int64_t done)
{
    const int64_t at = (first + done) % pixels, left = pixels - at, rest = count - done;
    return (run){(first + done) / pixels, at, left < rest ? left : rest, done};
}

/* Copies the chunk's pixels of every block to tiles. */
INLINE void gather(const abar__tiles *w, const float *from, int64_t pixels, int64_t blocks, int64_t first, int64_t count,
                   float *tiles)
{
    run r;
    for (int64_t done = 0; done < count; done += r.count) {
        r = next_run(pixels, first, count, done);
        for (int64_t b = 0; b < blocks; b++)
            memcpy(tiles + (b * w->chunk + r.tile) * LANES, from + ((r.image * blocks + b) * pixels + r.at) * LANES,
                   (size_t)(r.count * LANES) * sizeof *tiles);
    }
}

static void source(const abar__tiles *w, const float *src, int64_t first, int64_t count, float *v)
{
    gather(w, src, w->in_h * w->in_w, w->in_blocks, first, count, v);
}

static void gradient(const abar__tiles *w, const float *dy, int64_t first, int64_t count, float *z)
{
    gather(w, dy, w->out_h * w->out_w, w->out_blocks, first, count, z);
}

static void output(const abar__tiles *w, const float *m, const float *bias, bool relu, int64_t first, int64_t count, float *dst)
{
    const int64_t pixels = w->out_h * w->out_w;
    const vec floor = (vec){0} - (relu ? 0.0f : INFINITY);
    for (int64_t b = 0; b < w->out_blocks; b++) {
        const vec add = bias_of(w, bias, b);
        run r;
        for (int64_t done = 0; done < count; done += r.count) {
            r = next_run(pixels, first, count, done);
            const float *from = m + (b * w->chunk + r.tile) * LANES;
            float *to = dst + ((r.image * w->out_blocks + b) * pixels + r.at) * LANES;
            for (int64_t t = 0; t < r.count; t++) {
                vec value = *(const vec *)(from + t * LANES) + add;
                raise_to(&floor, &value);
                *(vec *)(to + t * LANES) = value;
            }
        }
    }
}

static void multiply(const abar__tiles *w, const float *u, const float *v, int64_t count, float *m,
                     const abar__tiles_ahead *ahead)
{
    multiply_places(w, 1, u, v, count, m, ahead);
}

static void correlate(const abar__tiles *w, const float *v, const float *z, int64_t count, float *s, float *bias,
                      const abar__tiles_ahead *ahead)
{
    add_tiles(w, z, count, bias);
    correlate_places(w, 1, v, z, count, s, ahead);
}

const abar__tiles_kernels ABAR_ISA_NAME(abar__pointwise) = {LANES,  ACCUMULATORS, 1,      1,        1,         kernels,
                                                            source, multiply,     output, gradient, correlate, collect};

#endif
