/* Weights of a resize (images.md section "Resize", after Pillow's Resample.c), and the passes in plain C.
 *
 * The weights are computed in double without contraction (-ffp-contract=off): one rounding more or less changes bytes. */
#include "image/resize.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define PRECISION 22

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

/* Where the inputs of an output begin and end, and what its weights are computed from. */
typedef struct spread {
    double scale, support, inverse;
    double (*filter)(double);
} spread;

static spread spread_of(int32_t in, int32_t out, abar__image_filter filter)
{
    assert(filter == ABAR_IMAGE_BILINEAR || filter == ABAR_IMAGE_BICUBIC);
    spread s = {.scale = (double)in / out, .filter = filter == ABAR_IMAGE_BICUBIC ? bicubic : bilinear};
    double stretch = s.scale < 1.0 ? 1.0 : s.scale;
    s.support = (filter == ABAR_IMAGE_BICUBIC ? 2.0 : 1.0) * stretch;
    s.inverse = 1.0 / stretch;
    return s;
}

static void reach(const spread *s, int32_t in, int32_t x, int32_t *first, int32_t *last)
{
    double center = (x + 0.5) * s->scale;
    int32_t from = (int32_t)(center - s->support + 0.5), to = (int32_t)(center + s->support + 0.5);
    *first = from < 0 ? 0 : from;
    *last = to > in ? in : to;
}

void abar__resize_range(int32_t in, int32_t out, abar__image_filter filter, int32_t from, int32_t n, int32_t *first,
                        int32_t *last)
{
    int32_t unused;
    spread s = spread_of(in, out, filter);
    reach(&s, in, from, first, &unused);
    reach(&s, in, from + n - 1, &unused, last);
}

/* An output reaches over at most 2 support + 1 inputs. */
static int32_t taps_of(const spread *s, int32_t in)
{
    int32_t most = (int32_t)(2 * s->support) + 2;
    return ((most < in ? most : in) + 3) / 4 * 4;
}

size_t abar__resize_axis_bytes(int32_t in, int32_t out, abar__image_filter filter, int32_t n)
{
    spread s = spread_of(in, out, filter);
    return (size_t)n * ((size_t)taps_of(&s, in) + 2) * sizeof(int32_t) + ABAR_RESIZE_PAD;
}

/* The weights of output x, count of them. */
static void weigh(const spread *s, int32_t x, int32_t first, int32_t count, int32_t *weights)
{
    double center = (x + 0.5) * s->scale, sum = 0;
    for (int32_t k = 0; k < count; k++) sum += s->filter((k + first - center + 0.5) * s->inverse);
    for (int32_t k = 0; k < count; k++) {
        double w = s->filter((k + first - center + 0.5) * s->inverse);
        if (sum != 0.0) w /= sum;
        weights[k] = (int32_t)(w * (1 << PRECISION) + (w < 0 ? -0.5 : 0.5));
    }
}

/* The most inputs of any of the outputs, rounded up. */
static int32_t taps_needed(const spread *s, int32_t in, int32_t from, int32_t n)
{
    int32_t most = 0;
    for (int32_t x = from; x < from + n; x++) {
        int32_t first, last;
        reach(s, in, x, &first, &last);
        most = last - first > most ? last - first : most;
    }
    assert(most <= taps_of(s, in));
    return (most + 3) / 4 * 4;
}

void abar__resize_axis_make(int32_t in, int32_t out, abar__image_filter filter, int32_t from, int32_t n, bool reversed,
                            void *memory, abar__resize_axis *axis)
{
    spread s = spread_of(in, out, filter);
    int32_t start, end;
    abar__resize_range(in, out, filter, from, n, &start, &end);
    *axis = (abar__resize_axis){.n = n, .taps = taps_needed(&s, in, from, n), .first = memory};
    axis->count = axis->first + n;
    axis->weights = axis->count + n;
    memset(axis->weights, 0, (size_t)n * (size_t)axis->taps * sizeof(int32_t));
    for (int32_t i = 0; i < n; i++) {
        int32_t at = reversed ? n - 1 - i : i, first, last;
        reach(&s, in, from + i, &first, &last);
        int32_t read = end - axis->taps < first ? end - axis->taps : first; /* from here */
        if (read < start) read = start;
        weigh(&s, from + i, first, last - first, axis->weights + (size_t)at * (size_t)axis->taps + (first - read));
        axis->first[at] = read - start;
        axis->count[at] = last - read;
    }
}

static uint8_t clip(int32_t sum)
{
    sum >>= PRECISION;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void across_plain(const abar__resize_axis *axis, const uint8_t *const *rows, int32_t n, uint8_t *out, size_t out_stride)
{
    for (int32_t row = 0; row < n; row++) {
        uint8_t *to = out + (size_t)row * out_stride;
        for (int32_t x = 0; x < axis->n; x++, to += 3) {
            const uint8_t *from = rows[row] + 3 * (size_t)axis->first[x];
            const int32_t *w = axis->weights + (size_t)x * (size_t)axis->taps;
            int32_t r = 1 << (PRECISION - 1), g = r, b = r;
            for (int32_t k = 0; k < axis->count[x]; k++, from += 3) {
                r += from[0] * w[k];
                g += from[1] * w[k];
                b += from[2] * w[k];
            }
            to[0] = clip(r);
            to[1] = clip(g);
            to[2] = clip(b);
        }
    }
}

enum { BLOCK = 64 }; /* sums that are kept in registers */

static void down_plain(const abar__resize_axis *axis, int32_t y, const uint8_t *rows, size_t stride, size_t bytes, uint8_t *out)
{
    const int32_t *w = axis->weights + (size_t)y * (size_t)axis->taps;
    rows += (size_t)axis->first[y] * stride;
    for (size_t at = 0; at < bytes; at += BLOCK) {
        size_t n = bytes - at < BLOCK ? bytes - at : BLOCK;
        int32_t sum[BLOCK];
        for (size_t i = 0; i < n; i++) sum[i] = 1 << (PRECISION - 1);
        for (int32_t k = 0; k < axis->count[y]; k++) {
            const uint8_t *row = rows + (size_t)k * stride + at;
            for (size_t i = 0; i < n; i++) sum[i] += row[i] * w[k];
        }
        for (size_t i = 0; i < n; i++) out[at + i] = clip(sum[i]);
    }
}

static void split_plain(const uint8_t *rgb, int32_t n, uint8_t *out, size_t plane)
{
    for (int32_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++) out[c * plane + (size_t)i] = rgb[3 * (size_t)i + c];
}

const abar__resize_kernels abar__resize_plain = {"plain", across_plain, down_plain, split_plain};

const abar__resize_kernels *abar__resize_best(void)
{
    const abar__resize_kernels *avx2 = abar__resize_avx2();
    return avx2 ? avx2 : &abar__resize_plain;
}
