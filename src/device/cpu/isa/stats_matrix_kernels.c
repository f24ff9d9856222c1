/* Products of matrices: a tile of results stays in registers over a whole sum. Columns of a tile come from vectors of b, its
 * rows from single numbers of x, so that neither has to be copied together first. Where the last columns are no whole
 * vector, one is read from further left and only they are kept of it. */
#include "device/cpu/isa/stats_matrix_kernels.h"

#include "device/cpu/isa/lanes.h"

#include <string.h>

#if defined(__AVX512F__)
enum { WIDTH = 16, HIGH = 12 };
#elif defined(__AVX2__)
enum { WIDTH = 8, HIGH = 6 };
#else
enum { WIDTH = 4, HIGH = 4 };
#endif
/* Tiles are HIGH, LOW or one row high and two vectors or one wide. PIECE: the longest sum that is made at once; so many lines
 * of b, at any pitch, stay in the cache. */
enum { LOW = HIGH / 3 > 2 ? HIGH / 3 : 2, VECTORS = 2, LINE = 16, PIECE = 640 };

typedef float vec __attribute__((vector_size(WIDTH * 4)));
typedef float loose __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias)); /* in memory, anywhere */

ABAR_SPECIALIZED void add_step(vec *acc, const float *x, int64_t x_row, const float *b, const int high, const int wide)
{
    vec v[VECTORS];
    ABAR_UNROLL for (int j = 0; j < wide; j++) v[j] = *(const loose *)(b + j * WIDTH);
    ABAR_UNROLL for (int i = 0; i < high; i++) ABAR_UNROLL for (int j = 0; j < wide; j++) acc[i * wide + j] +=
        v[j] * x[i * x_row];
}

/* Rows from .. from + high - 1 and columns at .. at + wide * WIDTH - 1. Meanwhile a line of every row of b is fetched for the
 * strip that comes next: b is too large to have stayed in the caches since the last step. */
ABAR_SPECIALIZED void tile(const abar__matrix_product *p, int64_t from, int64_t at, float *to, int64_t pitch, const int high,
                           const int wide)
{
    vec acc[HIGH * VECTORS];
    const float *x = p->x + from * p->x_row, *b = p->b + at;
    const int64_t ahead = wide * WIDTH + from / HIGH % 3 * LINE;
    ABAR_UNROLL for (int i = 0; i < high * wide; i++)
    {
        acc[i] = (vec){0};
        if (p->add) acc[i] = *(const loose *)(to + i / wide * pitch + i % wide * WIDTH);
    }
    for (int64_t l = 0; l < p->k; l++, x += p->x_step, b += p->b_pitch) {
        if (high == HIGH) __builtin_prefetch(b + ahead);
        add_step(acc, x, p->x_row, b, high, wide);
    }
    if (p->last) add_step(acc, p->last + from, 1, b, high, wide);
    ABAR_UNROLL for (int i = 0; i < high * wide; i++) * (loose *)(to + i / wide * pitch + i % wide * WIDTH) = acc[i];
}

static void any_tile(const abar__matrix_product *p, int64_t from, int64_t at, float *to, int64_t pitch, int high, int wide)
{
    if (wide == 2) {
        if (high == HIGH)
            tile(p, from, at, to, pitch, HIGH, 2);
        else if (high == LOW)
            tile(p, from, at, to, pitch, LOW, 2);
        else
            tile(p, from, at, to, pitch, 1, 2);
    } else {
        if (high == HIGH)
            tile(p, from, at, to, pitch, HIGH, 1);
        else if (high == LOW)
            tile(p, from, at, to, pitch, LOW, 1);
        else
            tile(p, from, at, to, pitch, 1, 1);
    }
}

/* A tile of which only columns first .. end - 1 are wanted. */
static void partial_tile(const abar__matrix_product *p, int64_t from, int64_t first, int64_t end, int high, int wide)
{
    const int64_t width = wide * WIDTH, at = p->n - first < width ? p->n - width : first;
    const size_t bytes = (size_t)(end - first) * sizeof(float);
    float partial[HIGH * VECTORS * WIDTH] = {0}, *here = partial + first - at, *there = p->y + from * p->y_pitch + first;
    for (int i = 0; i < high && p->add; i++) memcpy(here + i * width, there + i * p->y_pitch, bytes);
    any_tile(p, from, at, partial, width, high, wide);
    for (int i = 0; i < high; i++) memcpy(there + i * p->y_pitch, here + i * width, bytes);
}

/* All rows of columns first .. end - 1: as many as wide vectors hold, or fewer. */
static void strip(const abar__matrix_product *p, int64_t first, int64_t end, int wide)
{
    for (int64_t from = 0, high; from < p->rows; from += high) {
        const int64_t rest = p->rows - from;
        high = rest >= HIGH ? HIGH : rest >= LOW ? LOW : 1;
        if (end - first == wide * WIDTH)
            any_tile(p, from, first, p->y + from * p->y_pitch + first, p->y_pitch, (int)high, wide);
        else
            partial_tile(p, from, first, end, (int)high, wide);
    }
}

/* Fewer columns than a vector has lanes. */
static void narrow(const abar__matrix_product *p)
{
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = p->begin; j < p->end; j++) {
            const float *x = p->x + i * p->x_row, *b = p->b + j;
            float sum = p->add ? p->y[i * p->y_pitch + j] : 0.0f;
            for (int64_t l = 0; l < p->k; l++) sum += b[l * p->b_pitch] * x[l * p->x_step];
            if (p->last) sum += b[p->k * p->b_pitch] * p->last[i];
            p->y[i * p->y_pitch + j] = sum;
        }
}

static void strips(const abar__matrix_product *p)
{
    for (int64_t first = p->begin, end; first < p->end; first = end) {
        const int wide = p->end - first > WIDTH && p->n >= 2 * WIDTH ? 2 : 1;
        end = first + wide * WIDTH < p->end ? first + wide * WIDTH : p->end;
        strip(p, first, end, wide);
    }
}

static void product(const abar__matrix_product *p)
{
    const int64_t pieces = p->k > PIECE ? (p->k + PIECE - 1) / PIECE : 1;
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t from = p->k * i / pieces, to = p->k * (i + 1) / pieces;
        abar__matrix_product piece = *p;
        piece.k = to - from;
        piece.x += from * p->x_step;
        piece.b += from * p->b_pitch;
        if (to < p->k) piece.last = NULL;
        if (i > 0) piece.add = true;
        (p->n < WIDTH ? narrow : strips)(&piece);
    }
}

static float finite_row(const float *x, int64_t n, float largest)
{
    float sum = 0.0f; /* of numbers minus themselves: 0, unless one is not finite */
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += largest * x[i] - largest * x[i];
    return sum;
}

static void scale(float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

static void blend(float *y, int64_t y_pitch, const float *x, int64_t x_pitch, int64_t rows, int64_t n, float beta, float add)
{
    for (int64_t r = 0; r < rows; r++) {
        float *restrict to = y + r * y_pitch;
        const float *restrict from = x + r * x_pitch;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = beta * to[i] + add * from[i];
    }
}

static float dot(const float *x, const float *y, int64_t n)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static void compare(const float *restrict x, const float *restrict y, int64_t n, double *restrict sums)
{
    double xx = 0.0, xy = 0.0, yy = 0.0;
#pragma omp simd reduction(+ : xx, xy, yy)
    for (int64_t i = 0; i < n; i++) {
        const double a = (double)x[i], b = (double)y[i];
        xx += a * a;
        xy += a * b;
        yy += b * b;
    }
    sums[0] += xx;
    sums[1] += xy;
    sums[2] += yy;
}

const abar__matrix_kernels ABAR_ISA_NAME(abar__matrix) = {
    .product = product,
    .dot = dot,
    .finite = finite_row,
    .scale = scale,
    .blend = blend,
    .compare = compare,
};
