/* Mean and second moment of rows, and what follows from them (docs/analysis.md). Rows are summed relative to a shift, the mean
 * of the first block, so that the covariance does not drown in the rounding of the mean's square. */
#include "abar/analysis.h"
#include "analysis/dense.h"
#include "device/cpu/stats_gram.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

enum { WIDTH = ABAR_GRAM_WIDTH, BLOCK_ROWS = 512, SERIAL_NUMBERS = 1 << 15 };

struct abar_moments {
    abar_context *ctx;
    int64_t d, side; /* side: d in whole panels of gram.h */
    double rows;
    double *shift, *sum; /* (side) each: subtracted from every row; sums of shifted rows */
    double *products;    /* (side, side) lower triangle: sums of products of shifted rows */
    double *block;       /* up to BLOCK_ROWS shifted rows in panels */
    size_t bytes;
};

size_t abar_moments_bytes(int64_t d)
{
    const int64_t side = abar__gram_side(d);
    return sizeof(abar_moments) + (size_t)(2 * side + side * side + BLOCK_ROWS * side) * sizeof(double);
}

abar_status abar_moments_create(abar_context *ctx, int64_t d, abar_moments **out)
{
    if (!ctx || !out) return ABAR_E_ARGUMENT;
    *out = NULL;
    if (d < 1 || d > 46340)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "moments: rows of %lld numbers, give 1 to 46340", (long long)d);
    abar_moments *m;
    const size_t numbers = abar_moments_bytes(d) - sizeof *m;
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof *m, (void **)&m));
    const abar_status status = abar__alloc(ctx, numbers, &memory);
    if (status < 0) {
        abar__free(ctx, m, sizeof *m);
        return status;
    }
    *m = (abar_moments){.ctx = ctx, .d = d, .side = abar__gram_side(d), .shift = memory, .bytes = numbers};
    m->sum = m->shift + m->side;
    m->products = m->sum + m->side;
    m->block = m->products + m->side * m->side;
    *out = m;
    return ABAR_OK;
}

void abar_moments_destroy(abar_moments *m)
{
    if (!m) return;
    abar_context *ctx = m->ctx;
    abar__free(ctx, m->shift, m->bytes);
    abar__free(ctx, m, sizeof *m);
}

int64_t abar_moments_side(const abar_moments *m) { return m->d; }
double abar_moments_rows(const abar_moments *m) { return m->rows; }

/* ---- adding --------------------------------------------------------------------------------------------------------- */

static double number_at(const abar_tensor *t, int64_t at)
{
    return t->dtype == ABAR_F64 ? ((const double *)t->data)[at] : (double)((const float *)t->data)[at];
}

/* Columns from `first` on of n rows, into a panel (n, WIDTH). */
static void fetch_panel(const abar_tensor *rows, int64_t from, int64_t n, int64_t first, double *out)
{
    const int64_t left = rows->dim[1] - first, columns = left < WIDTH ? left : WIDTH;
    const bool plain = rows->dtype == ABAR_F64 && rows->stride[1] == 1 && columns == WIDTH;
    for (int64_t i = 0; i < n; i++, out += WIDTH) {
        const int64_t at = (from + i) * rows->stride[0] + first * rows->stride[1];
        if (plain)
            for (int64_t j = 0; j < WIDTH; j++) out[j] = ((const double *)rows->data)[at + j];
        else
            for (int64_t j = 0; j < WIDTH; j++) out[j] = j < columns ? number_at(rows, at + j * rows->stride[1]) : 0.0;
    }
}

static void shift_panel(int64_t n, bool first, double *restrict panel, double *restrict shift, double *restrict sum)
{
    for (int64_t i = 0; first && i < n; i++)
        for (int64_t j = 0; j < WIDTH; j++) shift[j] += panel[i * WIDTH + j] / (double)n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < WIDTH; j++) sum[j] += panel[i * WIDTH + j] -= shift[j];
}

static void add_block(abar_moments *m, const abar_tensor *rows, int64_t from, int64_t n)
{
    const int64_t panels = m->side / WIDTH;
#pragma omp parallel for schedule(static) if (n * m->side > SERIAL_NUMBERS)
    for (int64_t p = 0; p < panels; p++) {
        double *panel = m->block + p * n * WIDTH;
        fetch_panel(rows, from, n, p * WIDTH, panel);
        shift_panel(n, m->rows == 0.0, panel, m->shift + p * WIDTH, m->sum + p * WIDTH);
    }
    abar__gram_add(m->ctx, n, m->side, m->block, m->products);
    m->rows += (double)n;
}

abar_status abar_moments_add(abar_moments *m, const abar_tensor *rows)
{
    if (rows->dev || rows->ndim != 2 || rows->dim[1] != m->d || rows->dim[0] < 0 || rows->layout != ABAR_LAYOUT_STRIDED ||
        (rows->dtype != ABAR_F64 && rows->dtype != ABAR_F32))
        return abar__fail(m->ctx, ABAR_E_ARGUMENT, "moments: rows must be a matrix (n, %lld) of F64 or F32 in host memory",
                          (long long)m->d);
    for (int64_t first = 0; first < rows->dim[0]; first += BLOCK_ROWS) {
        const int64_t left = rows->dim[0] - first, n = left < BLOCK_ROWS ? left : BLOCK_ROWS;
        add_block(m, rows, first, n);
    }
    return ABAR_OK;
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static abar_status check_rows(const abar_moments *m)
{
    return m->rows > 0.0 ? ABAR_OK : abar__fail(m->ctx, ABAR_E_STATE, "moments: there are no rows yet, add some");
}

static double mean_at(const abar_moments *m, int64_t j) { return m->shift[j] + m->sum[j] / m->rows; }

/* Covariance, the whole square. */
static void fill_covariance(const abar_moments *m, double *out)
{
    const int64_t d = m->d;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++)
            out[i * d + j] = out[j * d + i] =
                m->products[i * m->side + j] / m->rows - m->sum[i] / m->rows * (m->sum[j] / m->rows);
}

abar_status abar_moments_read(const abar_moments *m, double *mean, double *second)
{
    const int64_t d = m->d;
    ABAR_TRY(check_rows(m));
    if (second) fill_covariance(m, second);
    for (int64_t i = 0; i < d; i++) {
        if (mean) mean[i] = mean_at(m, i);
        for (int64_t j = 0; second && j < d; j++) second[i * d + j] += mean_at(m, i) * mean_at(m, j);
    }
    return ABAR_OK;
}

/* ---- the summary ---------------------------------------------------------------------------------------------------- */

typedef struct workspace {
    double *mean, *top, *values, *square, *covariance; /* (d), (d), (d), (d, d), (d, d) */
    void *memory;
    size_t bytes;
} workspace;

static abar_status make_workspace(const abar_moments *m, workspace *w)
{
    const int64_t d = m->d;
    w->bytes = (size_t)(3 * d + 2 * d * d) * sizeof(double);
    ABAR_TRY(abar__alloc(m->ctx, w->bytes, &w->memory));
    w->mean = w->memory;
    w->top = w->mean + d;
    w->values = w->top + d;
    w->square = w->values + d;
    w->covariance = w->square + d * d;
    return ABAR_OK;
}

typedef struct operand {
    int64_t d;
    const double *a;
} operand;

static void multiply(const void *user, const double *x, double *y)
{
    const operand *o = user;
    cblas_dsymv(CblasRowMajor, CblasLower, (int)o->d, 1.0, o->a, (int)o->d, x, 1, 0.0, y, 1);
}

/* Eigenvalues of a symmetric matrix, descending, and the top eigenvector where wanted: all of them by LAPACK, or the first
 * wanted ones by Lanczos where the side is large; returns how many. a is overwritten or not. */
static abar_status spectrum(abar_context *ctx, int64_t d, double *a, int64_t wanted, double *values, double *top,
                            int64_t *found)
{
    if (d > ABAR_EIGEN_DENSE_MAX) {
        const operand o = {d, a};
        *found = wanted < d ? wanted : d;
        return abar__eigen_lanczos(ctx, d, multiply, &o, wanted, values, top);
    }
    *found = d;
    ABAR_TRY(abar__eigen_symmetric(ctx, d, a, top != NULL, values));
    if (top) memcpy(top, a, (size_t)d * sizeof *top);
    return ABAR_OK;
}

static double entropy_rank(int64_t n, const double *values, double trace)
{
    double entropy = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double share = values[i] / trace;
        if (share > 0.0) entropy -= share * log(share);
    }
    return exp(entropy);
}

static void summarise_spectrum(const abar_moments *m, const workspace *w, int64_t found, abar_moments_summary *s)
{
    const int64_t d = m->d;
    s->largest = w->values[0];
    s->second = d > 1 ? w->values[1] : 0.0;
    s->least = found == d ? w->values[d - 1] : NAN;
    s->gap = s->largest > 0.0 ? (s->largest - s->second) / s->largest : NAN;
    s->effective_rank = s->largest > 0.0 ? s->trace / s->largest : NAN;
    s->entropy_rank = found == d && s->trace > 0.0 ? entropy_rank(d, w->values, s->trace) : NAN;
    const double length = sqrt(s->mean_square);
    s->cosine = length > 0.0 ? fmin(1.0, fabs(abar__dot(d, w->top, w->mean)) / length) : NAN;
    s->distance = length > 0.0 ? sqrt(2.0 - 2.0 * s->cosine) : NAN;
}

static void summarise_covariance(const abar_moments *m, const workspace *w, abar_moments_summary *s)
{
    const int64_t d = m->d;
    s->covariance_norm = sqrt(abar__dot(d * d, w->covariance, w->covariance));
    for (int64_t i = 0; i < d; i++) s->covariance_trace += w->covariance[i * d + i];
    s->trace = s->covariance_trace + s->mean_square;
    s->adaptive_damping = s->covariance_trace / (double)d;
    s->rank1_error = s->mean_square > 0.0 ? s->covariance_norm / s->mean_square : NAN;
    s->rank1_share = s->trace > 0.0 ? s->mean_square / s->trace : NAN;
    s->davis_kahan = 2.0 * sqrt(2.0) * s->rank1_error;
}

/* M^-1/2 A M^-1/2 for M = x x^T + rho I: M^-1/2 = (I - f e e^T) / sqrt(rho), e = x/|x|, f = 1 - sqrt(rho / (rho + |x|^2)). */
static abar_status condition_of_mac(const abar_moments *m, workspace *w, double rho, double mean_square, double *out)
{
    const int64_t d = m->d;
    double *a = w->square, *ae = w->top, f = 1.0 - sqrt(rho / (rho + mean_square));
    ABAR_TRY(abar_moments_read(m, NULL, a));
    const double length = sqrt(mean_square);
    for (int64_t i = 0; i < d && length > 0.0; i++) ae[i] = abar__dot(d, a + i * d, w->mean) / length;
    const double eae = length > 0.0 ? abar__dot(d, ae, w->mean) / length : 0.0;
    for (int64_t i = 0; i < d && length > 0.0; i++)
        for (int64_t j = 0; j <= i; j++) {
            const double ei = w->mean[i] / length, ej = w->mean[j] / length;
            a[i * d + j] += -f * (ei * ae[j] + ae[i] * ej) + f * f * eae * ei * ej;
        }
    ABAR_TRY(abar__eigen_symmetric(m->ctx, d, a, false, w->values));
    const double least = w->values[d - 1], most = w->values[0];
    *out = least > 1e-14 * most ? most / least : INFINITY;
    return ABAR_OK;
}

static abar_status summarise_conditions(const abar_moments *m, workspace *w, double rho, abar_moments_summary *s)
{
    s->kappa_kfac = s->kappa_mac = s->condition_sgd = s->condition_mac = s->condition_foof = NAN;
    if (isnan(s->least)) return ABAR_OK;
    const double least = fmax(s->least, 0.0);
    s->kappa_kfac = (s->largest + rho) / (least + rho);
    s->kappa_mac = (s->mean_square + rho) / (least + rho);
    const bool regular = least > 1e-14 * s->largest;
    s->condition_sgd = regular ? s->largest / least : INFINITY;
    s->condition_foof = regular ? s->largest / (s->largest + rho) * ((least + rho) / least) : INFINITY;
    return rho > 0.0 ? condition_of_mac(m, w, rho, s->mean_square, &s->condition_mac) : ABAR_OK;
}

static abar_status summarise(const abar_moments *m, double damping, workspace *w, abar_moments_summary *s, double *values,
                             int64_t n)
{
    const int64_t d = m->d, wanted = n > 2 ? n : 2;
    int64_t found;
    double largest[2];
    s->rows = m->rows;
    ABAR_TRY(abar_moments_read(m, w->mean, w->square));
    s->mean_square = abar__dot(d, w->mean, w->mean);
    fill_covariance(m, w->covariance);
    summarise_covariance(m, w, s);
    ABAR_TRY(spectrum(m->ctx, d, w->square, wanted, w->values, w->top, &found));
    summarise_spectrum(m, w, found, s);
    if (values) memcpy(values, w->values, (size_t)n * sizeof *values);
    if (d > ABAR_EIGEN_DENSE_MAX) {
        ABAR_TRY(spectrum(m->ctx, d, w->covariance, 2, largest, NULL, &found));
        s->covariance_spectral = largest[0];
    } else {
        ABAR_TRY(abar__eigen_symmetric(m->ctx, d, w->covariance, false, w->values));
        s->covariance_spectral = w->values[0];
    }
    s->davis_kahan_sharp = s->mean_square > 0.0 ? 2.0 * sqrt(2.0) * s->covariance_spectral / s->mean_square : NAN;
    return summarise_conditions(m, w, damping, s);
}

abar_status abar_moments_summarise(const abar_moments *m, double damping, abar_moments_summary *out, double *values, int64_t n)
{
    workspace w = {0};
    ABAR_TRY(check_rows(m));
    abar_moments_summary s;
    ABAR_TRY(abar__struct_read(m->ctx, "abar_moments_summary", out, &s, sizeof s));
    if (!(damping >= 0.0) || !isfinite(damping) || n < 0 || n > m->d || (n > 0 && !values))
        return abar__fail(m->ctx, ABAR_E_ARGUMENT,
                          "moments: damping must be finite and not negative, and %lld eigenvalues do not "
                          "exist of side %lld",
                          (long long)n, (long long)m->d);
    s = (abar_moments_summary){.size = sizeof s};
    ABAR_TRY(make_workspace(m, &w));
    const abar_status status = summarise(m, damping, &w, &s, values, n);
    abar__free(m->ctx, w.memory, w.bytes);
    if (status >= 0) abar__struct_write(&s, sizeof s, out);
    return status;
}
