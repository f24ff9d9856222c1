/* Newton-Schulz and NorMuon in double precision (device/orthogonalise.h), one block after the other. */
#include "device/ref/ref_stats.h"

#include <math.h>
#include <string.h>

typedef struct work {
    int64_t r, c;    /* of X, r <= c */
    double *x, *y;   /* (r, c): X, and the next one */
    double *s, *b;   /* (r, r): S = X X^T, B = c3 S + c5 S S */
    bool transposed; /* X = u^T */
} work;

static work make_work(const abar__ns_block *block, double *scratch)
{
    work w = {.r = block->rows, .c = block->columns, .transposed = block->rows > block->columns};
    if (w.transposed) w.r = block->columns, w.c = block->rows;
    w.x = scratch;
    w.y = w.x + w.r * w.c;
    w.s = w.y + w.r * w.c;
    w.b = w.s + w.r * w.r;
    return w;
}

size_t abar__ref_orthogonalise_scratch(const abar_device *dev, const abar__ns_block *blocks, int n)
{
    (void)dev;
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        const work w = make_work(&blocks[i], NULL);
        const size_t bytes = (size_t)(2 * w.r * (w.c + w.r)) * sizeof(double);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Squares of large numbers do not overflow, nor do those of small ones vanish. NaN where an element is not finite. */
static double norm(int64_t n, const double *x)
{
    double largest = 0.0, sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return NAN;
        largest = fmax(largest, fabs(x[i]));
    }
    if (largest == 0.0) return 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i] / largest * (x[i] / largest);
    return largest * sqrt(sum);
}

/* Element (i, j) of X is element index(w, i, j) of the block. */
static int64_t index_of(const work *w, int64_t i, int64_t j) { return w->transposed ? j * w->r + i : i * w->c + j; }

static void load(const work *w, const double *u, double divisor)
{
    for (int64_t i = 0; i < w->r; i++)
        for (int64_t j = 0; j < w->c; j++) w->x[i * w->c + j] = divisor > 0.0 ? u[index_of(w, i, j)] / divisor : 0.0;
}

/* y (m, n) = beta y + alpha a (m, k) b (k, n); rows of b are read in order, as caches like it. */
static void multiply_add(int64_t m, int64_t n, int64_t k, double alpha, const double *a, const double *b, double beta,
                         double *y)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) y[i * n + j] *= beta;
        for (int64_t l = 0; l < k; l++) {
            const double factor = alpha * a[i * k + l];
            for (int64_t j = 0; j < n; j++) y[i * n + j] += factor * b[l * n + j];
        }
    }
}

static void iterate(work *w, const double c[3])
{
    const int64_t r = w->r, n = w->c;
    for (int64_t i = 0; i < r; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < n; k++) sum += w->x[i * n + k] * w->x[j * n + k];
            w->s[i * r + j] = w->s[j * r + i] = sum;
        }
    memcpy(w->b, w->s, (size_t)(r * r) * sizeof(double));
    multiply_add(r, r, r, c[2], w->s, w->s, c[1], w->b);
    memcpy(w->y, w->x, (size_t)(r * n) * sizeof(double));
    multiply_add(r, n, r, 1.0, w->b, w->x, c[0], w->y);
    double *next = w->y;
    w->y = w->x;
    w->x = next;
}

/* O (rows, columns) by rows, with v. */
static void normalise_rows(int64_t rows, int64_t columns, double *o, double *v, double beta)
{
    const double before = norm(rows * columns, o);
    for (int64_t i = 0; i < rows; i++) {
        double *row = o + i * columns, sum = 0.0;
        for (int64_t j = 0; j < columns; j++) sum += row[j] * row[j];
        v[i] = beta * v[i] + (1.0 - beta) * (sum / (double)columns);
        for (int64_t j = 0; j < columns; j++) row[j] /= sqrt(v[i]) + ABAR_NORMUON_EPS;
    }
    const double factor = before / (norm(rows * columns, o) + ABAR_NORMUON_EPS);
    for (int64_t i = 0; i < rows * columns; i++) o[i] *= factor;
}

static int32_t orthogonalise_block(const abar__ns *ns, const abar__ns_block *block, double beta, double *scratch)
{
    work w = make_work(block, scratch);
    const int64_t count = w.r * w.c;
    double *out = block->out;
    const double size = norm(count, block->in);
    load(&w, block->in, fmax(ns->safety * size, ns->eps));
    for (int k = 0; k < ns->steps; k++) iterate(&w, ns->c[k]);
    if (!isfinite(size) || !isfinite(norm(count, w.x))) {
        memset(out, 0, (size_t)count * sizeof *out);
        return ABAR_NS_NOT_FINITE;
    }
    for (int64_t i = 0; i < w.r; i++)
        for (int64_t j = 0; j < w.c; j++) out[index_of(&w, i, j)] = w.x[i * w.c + j];
    if (block->row_moment) normalise_rows(block->rows, block->columns, out, block->row_moment, beta);
    for (int64_t i = 0; i < count; i++) out[i] *= block->scale;
    return size > 0.0 && size < ns->eps ? ABAR_NS_BELOW_EPS : ABAR_NS_FINE;
}

void abar__ref_orthogonalise(abar_device *dev, const abar__ns *ns, const abar__ns_block *blocks, int n, double normuon_beta,
                             int32_t *verdict, void *scratch)
{
    (void)dev;
    for (int i = 0; i < n; i++) verdict[i] = orthogonalise_block(ns, &blocks[i], normuon_beta, scratch);
}
