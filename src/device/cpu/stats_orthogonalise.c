/* Newton-Schulz and NorMuon in float32 (device/orthogonalise.h), products by BLAS, norms in double.
 *
 * Small blocks are shared out whole, one thread each. A large block has all threads: of S and B each computes some rows of the
 * lower triangle, of the next X some columns. What a block becomes does not depend on the thread that takes it. */
#include "device/cpu/stats.h"

#include "device/cpu/stats_dense_impl.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#define SMALL_COUNT 65536 /* elements of a block for one thread */

enum { SUMS = 8, TILE = 32 }; /* doubles of a cache line; side of a tile to transpose */

/* A block, seen by one of the threads that work on it. */
typedef struct work {
    const abar__ns_block *block;
    int64_t r, c; /* of X, r <= c */
    float *x, *y; /* (r, c): X, and the next one */
    float *s, *b; /* (r, r): S = X X^T; the lower triangle of B = c3 S + c5 S S */
    double *sums; /* (team, SUMS) */
    int team, me;
    bool transposed; /* X = u^T */
} work;

static bool is_small(const abar__ns_block *b) { return b->rows * b->columns <= SMALL_COUNT; }

/* Floats in front of x, y, s, b and of the end; all aligned. */
static void place(const abar__ns_block *block, size_t offset[5])
{
    const size_t unit = ABAR_ALIGN / sizeof(float), count = (size_t)(block->rows * block->columns);
    const size_t r = (size_t)abar__min(block->rows, block->columns);
    offset[0] = 0;
    offset[1] = abar__round_up(count, unit);
    offset[2] = offset[1] + abar__round_up(count, unit);
    offset[3] = offset[2] + abar__round_up(r * r, unit);
    offset[4] = offset[3] + abar__round_up(r * r, unit);
}

/* Floats for the largest small or large block. */
static size_t largest(const abar__ns_block *blocks, int n, bool small)
{
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        size_t offset[5];
        place(&blocks[i], offset);
        if (is_small(&blocks[i]) == small && offset[4] > most) most = offset[4];
    }
    return most;
}

/* In this order: sums of all threads, a large block, a small block of each thread. */
size_t abar__cpu_orthogonalise_scratch(const abar_device *dev, const abar__ns_block *blocks, int n)
{
    const size_t threads = (size_t)dev->threads;
    return threads * SUMS * sizeof(double) + (largest(blocks, n, false) + threads * largest(blocks, n, true)) * sizeof(float);
}

static work make_work(const abar__ns_block *block, float *memory, double *sums, int team, int me)
{
    size_t offset[5];
    place(block, offset);
    const bool transposed = block->rows > block->columns;
    return (work){.block = block,
                  .r = transposed ? block->columns : block->rows,
                  .c = transposed ? block->rows : block->columns,
                  .x = memory + offset[0],
                  .y = memory + offset[1],
                  .s = memory + offset[2],
                  .b = memory + offset[3],
                  .sums = sums,
                  .team = team,
                  .me = me,
                  .transposed = transposed};
}

static void meet(const work *w)
{
    if (w->team == 1) return;
#pragma omp barrier
}

/* Part me of n rows or columns, cut at multiples of a vector. */
static abar__range share(const work *w, int64_t n)
{
    const abar__range units = abar__share((n + 15) / 16, w->team, w->me);
    return (abar__range){abar__min(16 * units.begin, n), abar__min(16 * units.end, n)};
}

/* The sum over the threads, in their order. */
static double total(const work *w, double mine)
{
    double sum = 0.0;
    w->sums[w->me * SUMS] = mine;
    meet(w);
    for (int i = 0; i < w->team; i++) sum += w->sums[i * SUMS];
    meet(w);
    return sum;
}

/* Of a float's square, no sum overflows. Not finite where x is not. */
static double squares(const work *w, const float *x)
{
    const abar__range mine = share(w, w->r * w->c);
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = mine.begin; i < mine.end; i++) sum += (double)x[i] * (double)x[i];
    return total(w, sum);
}

/* to (n, m) = factor * the transposed of from (m, n), columns of `from` in `part`. */
static void transpose(int64_t m, int64_t n, abar__range part, const float *from, double factor, float *to)
{
    for (int64_t jj = part.begin; jj < part.end; jj += TILE)
        for (int64_t ii = 0; ii < m; ii += TILE)
            for (int64_t j = jj; j < abar__min(jj + TILE, part.end); j++)
                for (int64_t i = ii; i < abar__min(ii + TILE, m); i++)
                    to[j * m + i] = (float)(factor * (double)from[i * n + j]);
}

static void load(const work *w, double factor)
{
    const float *u = w->block->in;
    const abar__range rows = share(w, w->r);
    if (w->transposed)
        transpose(w->c, w->r, rows, u, factor, w->x);
    else
        for (int64_t i = rows.begin * w->c; i < rows.end * w->c; i++) w->x[i] = (float)(factor * (double)u[i]);
    meet(w);
}

static void make_s(const work *w, abar__range rows)
{
    const blasint r = (blasint)w->r, c = (blasint)w->c, n = (blasint)(rows.end - rows.begin);
    const float *x = w->x + rows.begin * w->c;
    if (n > 0 && rows.begin > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, (blasint)rows.begin, c, 1.0f, x, c, w->x, c, 0.0f,
                    w->s + rows.begin * w->r, r);
    if (n > 0) cblas_ssyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, c, 1.0f, x, c, 0.0f, w->s + rows.begin * (w->r + 1), r);
    meet(w);
}

/* The upper triangle of S, then rows of B up to the diagonal and a little beyond. */
static void make_b(const work *w, abar__range rows, const double c[3])
{
    const blasint r = (blasint)w->r, n = (blasint)(rows.end - rows.begin);
    for (int64_t i = rows.begin; i < rows.end; i++)
        for (int64_t j = 0; j < i; j++) w->s[j * w->r + i] = w->s[i * w->r + j];
    meet(w);
    for (int64_t i = rows.begin; i < rows.end; i++) memcpy(w->b + i * w->r, w->s + i * w->r, (size_t)rows.end * sizeof(float));
    if (n > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, (blasint)rows.end, r, (float)c[2], w->s + rows.begin * w->r,
                    r, w->s, r, (float)c[1], w->b + rows.begin * w->r, r);
    meet(w);
}

static void iterate(work *w, const double c[3])
{
    const blasint r = (blasint)w->r, pitch = (blasint)w->c;
    const abar__range rows = abar__triangle_share(w->r, 16, w->team, w->me), columns = share(w, w->c);
    const int64_t n = columns.end - columns.begin;
    make_s(w, rows);
    make_b(w, rows, c);
    for (int64_t i = 0; i < w->r; i++)
        memcpy(w->y + i * w->c + columns.begin, w->x + i * w->c + columns.begin, (size_t)n * sizeof(float));
    if (n > 0)
        cblas_ssymm(CblasRowMajor, CblasLeft, CblasLower, r, (blasint)n, 1.0f, w->b, r, w->x + columns.begin, pitch,
                    (float)c[0], w->y + columns.begin, pitch);
    meet(w);
    float *next = w->y;
    w->y = w->x;
    w->x = next;
}

/* O into the block's own order, in y. */
static void undo_transposition(work *w)
{
    if (!w->transposed) return;
    transpose(w->r, w->c, share(w, w->c), w->x, 1.0, w->y);
    meet(w);
    float *next = w->y;
    w->y = w->x;
    w->x = next;
}

/* NorMuon of O, in x: v, then what all rows are multiplied by beside their own 1 / (sqrt(v) + eps). */
static double update_moments(const work *w, double norm, double beta)
{
    const int64_t columns = w->block->columns;
    const abar__range rows = share(w, w->block->rows);
    float *v = w->block->row_moment;
    double after = 0.0;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        const float *o = w->x + i * columns;
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < columns; j++) sum += (double)o[j] * (double)o[j];
        v[i] = (float)(beta * (double)v[i] + (1.0 - beta) * (sum / (double)columns));
        const double divisor = sqrt((double)v[i]) + ABAR_NORMUON_EPS;
        after += sum / (divisor * divisor);
    }
    return norm / (sqrt(total(w, after)) + ABAR_NORMUON_EPS);
}

static void store(const work *w, double factor)
{
    const int64_t columns = w->block->columns;
    const abar__range rows = share(w, w->block->rows);
    const float *v = w->block->row_moment;
    for (int64_t i = rows.begin; i < rows.end; i++) {
        const double f = v ? factor / (sqrt((double)v[i]) + ABAR_NORMUON_EPS) : factor;
        float *out = (float *)w->block->out + i * columns;
        for (int64_t j = 0; j < columns; j++) out[j] = (float)(f * (double)w->x[i * columns + j]);
    }
    meet(w);
}

static int32_t orthogonalise_block(work *w, const abar__ns *ns, double beta)
{
    const double size = sqrt(squares(w, w->block->in)), divisor = fmax(ns->safety * size, ns->eps);
    load(w, divisor > 0.0 ? 1.0 / divisor : 0.0);
    for (int k = 0; k < ns->steps; k++) iterate(w, ns->c[k]);
    const double norm = sqrt(squares(w, w->x));
    if (!isfinite(size) || !isfinite(norm)) {
        const abar__range rows = share(w, w->block->rows);
        memset((float *)w->block->out + rows.begin * w->block->columns, 0,
               (size_t)((rows.end - rows.begin) * w->block->columns) * sizeof(float));
        meet(w);
        return ABAR_NS_NOT_FINITE;
    }
    undo_transposition(w);
    double factor = w->block->scale;
    if (w->block->row_moment) factor *= update_moments(w, norm, beta);
    store(w, factor);
    return size > 0.0 && size < ns->eps ? ABAR_NS_BELOW_EPS : ABAR_NS_FINE;
}

void abar__cpu_orthogonalise(abar_device *dev, const abar__ns *ns, const abar__ns_block *blocks, int n, double normuon_beta,
                             int32_t *verdict, void *scratch)
{
    const size_t small = largest(blocks, n, true);
    double *sums = scratch;
    float *shared = (float *)(sums + dev->threads * SUMS), *own = shared + largest(blocks, n, false);
#pragma omp parallel num_threads(dev->threads)
    {
        const int team = omp_get_num_threads(), me = omp_get_thread_num();
        abar__keep_blas_single();
        for (int i = 0; i < n; i++) {
            if (is_small(&blocks[i])) continue;
            work w = make_work(&blocks[i], shared, sums, team, me);
            const int32_t found = orthogonalise_block(&w, ns, normuon_beta);
            if (me == 0) verdict[i] = found;
        }
#pragma omp for schedule(dynamic)
        for (int i = 0; i < n; i++) {
            if (!is_small(&blocks[i])) continue;
            work w = make_work(&blocks[i], own + (size_t)me * small, sums + me * SUMS, 1, 0);
            verdict[i] = orthogonalise_block(&w, ns, normuon_beta);
        }
    }
}
