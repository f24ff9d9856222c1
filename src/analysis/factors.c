/* Kronecker products, Fisher matrices by the Gram trick, and diagonality (docs/analysis.md). */
#include "analysis/factors.h"

#include "analysis/dense.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

/* ---- products of two spectra ---------------------------------------------------------------------------------------- */

/* For every i at most one pair is waiting: (i, next[i]). A pair enters when its neighbour (i - 1, j) or (i, j - 1) left. */
typedef struct pair {
    double product;
    int64_t i, j;
} pair;

static void sift_up(pair *heap, int64_t at)
{
    while (at > 0 && heap[(at - 1) / 2].product < heap[at].product) {
        const pair t = heap[at];
        heap[at] = heap[(at - 1) / 2];
        heap[(at - 1) / 2] = t;
        at = (at - 1) / 2;
    }
}

static void sift_down(pair *heap, int64_t n)
{
    for (int64_t at = 0;;) {
        int64_t most = at;
        for (int64_t child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++)
            if (heap[child].product > heap[most].product) most = child;
        if (most == at) return;
        const pair t = heap[at];
        heap[at] = heap[most];
        heap[most] = t;
        at = most;
    }
}

abar_status abar__top_products(abar_context *ctx, const double *a, int64_t n, const double *b, int64_t m, int64_t k,
                               double *out, int64_t *found)
{
    const int64_t rows = n < k ? n : k; /* row i starts at (i, 0), so the first k rows hold the k largest */
    const size_t bytes = (size_t)rows * sizeof(pair);
    void *memory;
    *found = 0;
    if (rows < 1 || m < 1) return ABAR_OK;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    pair *heap = memory;
    int64_t waiting = 1;
    heap[0] = (pair){a[0] * b[0], 0, 0};
    while (waiting > 0 && *found < k) {
        const pair top = heap[0];
        out[(*found)++] = top.product;
        if (top.j + 1 < m)
            heap[0] = (pair){a[top.i] * b[top.j + 1], top.i, top.j + 1};
        else
            heap[0] = heap[--waiting];
        sift_down(heap, waiting);
        if (top.j == 0 && top.i + 1 < rows) {
            heap[waiting] = (pair){a[top.i + 1] * b[0], top.i + 1, 0};
            sift_up(heap, waiting++);
        }
    }
    abar__free(ctx, memory, bytes);
    return ABAR_OK;
}

/* ---- Fisher --------------------------------------------------------------------------------------------------------- */

/* One example's rows against another's: both products (R, R), multiplied elementwise and summed. */
static double gram_entry(int64_t rows, int64_t d, int64_t out, const double *a1, const double *a2, const double *p1,
                         const double *p2, double *work)
{
    double *inputs = work, *grads = work + rows * rows;
    if (rows == 1) return abar__dot(d, a1, a2) * abar__dot(out, p1, p2);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)rows, (int)d, 1.0, a1, (int)d, a2, (int)d, 0.0, inputs,
                (int)rows);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)rows, (int)out, 1.0, p1, (int)out, p2, (int)out, 0.0,
                grads, (int)rows);
    return abar__dot(rows * rows, inputs, grads);
}

static void mirror(int64_t n, double *a)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) a[j * n + i] = a[i * n + j];
}

/* Gradients g_n = sum_r p a^T (out, d), one after the other. */
static void fill_gradients(int64_t examples, int64_t rows, int64_t d, int64_t out, const double *a, const double *p, double *g)
{
    for (int64_t n = 0; n < examples; n++)
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)out, (int)d, (int)rows, 1.0, p + n * rows * out, (int)out,
                    a + n * rows * d, (int)d, 0.0, g + n * out * d, (int)d);
}

abar_status abar__fisher_gram(abar_context *ctx, int64_t examples, int64_t rows, int64_t d, int64_t out, const double *a,
                              const double *p, double *gram)
{
    /* whichever needs less memory: products of rows, or whole gradients */
    const bool by_gradients = rows > 1 && out * d <= 4 * rows * (out + d);
    const size_t bytes = (size_t)(by_gradients ? examples * out * d : 2 * rows * rows) * sizeof(double);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    double *work = memory;
    if (by_gradients) {
        fill_gradients(examples, rows, d, out, a, p, work);
        cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, (int)examples, (int)(out * d), 1.0, work, (int)(out * d), 0.0,
                    gram, (int)examples);
    }
    for (int64_t i = 0; i < examples && !by_gradients; i++)
        for (int64_t j = 0; j <= i; j++)
            gram[i * examples + j] =
                gram_entry(rows, d, out, a + i * rows * d, a + j * rows * d, p + i * rows * out, p + j * rows * out, work);
    mirror(examples, gram);
    abar__free(ctx, memory, bytes);
    return ABAR_OK;
}

abar__rescaling abar__compare_spectra(const double *f, const double *p, int64_t n)
{
    abar__rescaling r = {0};
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < n && f[i] > 0.0 && p[i] > 0.0; i++, r.pairs++) {
        const double decades = log10(f[i]) - log10(p[i]);
        sum += decades;
        squares += decades * decades;
    }
    if (r.pairs == 0) return (abar__rescaling){.factor = NAN, .rms = NAN};
    const double mean = sum / (double)r.pairs;
    r.factor = pow(10.0, mean);
    r.rms = sqrt(fmax(0.0, squares / (double)r.pairs - mean * mean));
    return r;
}

/* ---- diagonality ---------------------------------------------------------------------------------------------------- */

abar__diagonality abar__diagonality_of(int64_t n, const double *a)
{
    abar__diagonality r = {0};
    double diagonal = 0.0, off = 0.0, diagonal2 = 0.0, all2 = 0.0, correlation = 0.0, correlation2 = 0.0, most = 0.0,
           sum_most = 0.0;
    int64_t scaled = 0, pairs = 0;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < n; j++) {
            const double v = a[i * n + j], norm = sqrt(a[i * n + i] * a[j * n + j]);
            sum += v;
            most = fmax(most, fabs(v));
            all2 += v * v;
            if (i == j) {
                diagonal += fabs(v);
                diagonal2 += v * v;
                scaled += norm > 0.0;
                continue;
            }
            off += fabs(v);
            if (!(norm > 0.0)) continue;
            correlation += fabs(v) / norm;
            correlation2 += v * v / (norm * norm);
            pairs++;
        }
        sum_most = fmax(sum_most, fabs(sum));
    }
    r.ratio = n > 1 ? diagonal / (double)n / (off / (double)(n * (n - 1))) : NAN;
    r.share = all2 > 0.0 ? diagonal2 / all2 : NAN;
    r.correlation_mean = pairs > 0 ? correlation / (double)pairs : NAN;
    r.correlation_share = scaled > 0 ? (double)scaled / ((double)scaled + correlation2) : NAN;
    r.row_sum = most > 0.0 ? sum_most / most : NAN;
    return r;
}
