/* Turns collected sums into the numbers of the analyses. */
#include "analysis/results.h"

#include "analysis/dense.h"
#include "device/cpu/stats_gram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static abar_status make_inputs(const abar__map_stats *m, const abar__results_config *config, abar__map_result *r)
{
    r->inputs.size = sizeof r->inputs;
    r->a.n = least(ABAR_TOP, abar_moments_side(m->inputs));
    ABAR_TRY(abar_moments_summarise(m->inputs, config->damping, &r->inputs, r->a.value, r->a.n));
    if (!(r->inputs.least > ABAR_NOISE * r->inputs.largest)) /* a condition number would be one of rounding */
        r->inputs.condition_sgd = r->inputs.condition_mac = r->inputs.condition_foof = NAN;
    return ABAR_OK;
}

/* ---- output gradients --------------------------------------------------------------------------------------------------- */

/* All eigenvalues of E[x x^T], descending, its first ones into out; square (side, side) and values (side) are workspace. */
static abar_status top_by_lapack(abar_context *ctx, const abar_moments *m, double *square, double *values, abar__top *out,
                                 double *trace)
{
    const int64_t side = abar_moments_side(m);
    ABAR_TRY(abar_moments_read(m, NULL, square));
    for (int64_t i = 0; i < side; i++) *trace += square[i * side + i];
    ABAR_TRY(abar__eigen_symmetric(ctx, side, square, false, values));
    memcpy(out->value, values, (size_t)out->n * sizeof *values);
    return ABAR_OK;
}

/* The first ones by Lanczos, which abar_moments_summarise knows. */
static abar_status top_by_lanczos(const abar_moments *m, abar__top *out, double *trace)
{
    abar_moments_summary s = {.size = sizeof s};
    ABAR_TRY(abar_moments_summarise(m, 0.0, &s, out->value, out->n));
    *trace = s.trace;
    return ABAR_OK;
}

/* The top of the spectrum of scale * E[x x^T]. */
static abar_status top_of(abar_context *ctx, const abar_moments *m, double scale, abar__top *out, double *trace)
{
    const int64_t side = abar_moments_side(m);
    const size_t bytes = (size_t)(side * side + side) * sizeof(double);
    double sum = 0.0;
    out->n = least(ABAR_TOP, side);
    if (side > ABAR_EIGEN_DENSE_MAX) {
        ABAR_TRY(top_by_lanczos(m, out, &sum));
    } else {
        void *memory;
        ABAR_TRY(abar__alloc(ctx, bytes, &memory));
        const abar_status status = top_by_lapack(ctx, m, memory, (double *)memory + side * side, out, &sum);
        abar__free(ctx, memory, bytes);
        ABAR_TRY(status);
    }
    for (int64_t i = 0; i < out->n; i++) out->value[i] *= scale;
    if (trace) *trace = scale * sum;
    return ABAR_OK;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_ratio(const abar__top *a, const abar__top *b)
{
    double ratio[ABAR_TOP];
    int64_t n = 0;
    for (int64_t i = 0; i < least(a->n, b->n); i++)
        if (a->value[i] > 0.0 && b->value[i] > 0.0) ratio[n++] = a->value[i] / b->value[i];
    if (n == 0) return NAN;
    qsort(ratio, (size_t)n, sizeof *ratio, ascending);
    return n % 2 ? ratio[n / 2] : 0.5 * (ratio[n / 2 - 1] + ratio[n / 2]);
}

/* P, and how diagonal it is. */
static abar_status make_p(abar_context *ctx, const abar__map_stats *m, double scale, bool keep, abar__map_result *r)
{
    const int64_t out = m->shape.out;
    const size_t bytes = (size_t)(out * out) * sizeof(double);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    double *p = memory;
    const abar_status status = abar_moments_read(m->grads, NULL, p);
    if (status >= 0) {
        for (int64_t i = 0; i < out * out; i++) p[i] *= scale;
        r->diagonality = abar__diagonality_of(out, p);
    }
    if (status >= 0 && keep) {
        r->p_matrix = p;
        r->p_bytes = bytes;
    } else {
        abar__free(ctx, memory, bytes);
    }
    return status;
}

static abar_status make_grads(const abar__collection *c, const abar__map_stats *m, const abar__results_config *config,
                              bool keep_p, abar__map_result *r)
{
    abar_context *ctx = c->pass->ctx;
    const double batch = (double)c->pass->config.batch, power = config->batch_mean ? 1.0 / (batch * batch) : 1.0;
    const double expand = power * (double)m->shape.rows;
    ABAR_TRY(top_of(ctx, m->grads, expand, &r->p, &r->p_trace));
    ABAR_TRY(top_of(ctx, m->grad_means, power, &r->p_reduce, NULL));
    r->p_effective_rank = r->p.value[0] > 0.0 ? r->p_trace / r->p.value[0] : NAN;
    if (r->inputs.rows > 0.0) {
        r->a_over_p = median_ratio(&r->a, &r->p);
        ABAR_TRY(abar__top_products(ctx, r->a.value, r->a.n, r->p.value, r->p.n, ABAR_TOP, r->kfac.value, &r->kfac.n));
        r->rescaled = abar__compare_spectra(r->kfac.value, r->p.value, least(r->kfac.n, r->p.n));
    }
    return make_p(ctx, m, expand, keep_p, r);
}

/* Eigenvalues of K / N, K the Gram matrix of per-example gradients: those of the Fisher matrix. */
static abar_status make_fisher(const abar__collection *c, const abar__map_stats *m, const abar__results_config *config,
                               abar__map_result *r)
{
    abar_context *ctx = c->pass->ctx;
    const int64_t n = c->config.fisher_samples, side = abar__gram_side(n), numbers = m->shape.out * abar__map_side(m);
    const double batch = (double)c->pass->config.batch, scale = (config->batch_mean ? 1.0 / (batch * batch) : 1.0) / (double)n;
    const size_t bytes = (size_t)(n * n + n) * sizeof(double);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    double *gram = memory, *values = gram + n * n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) gram[i * n + j] = m->gram[i * side + j];
    const abar_status status = abar__eigen_symmetric(ctx, n, gram, false, values);
    if (status >= 0) {
        r->fisher.n = least(ABAR_TOP, least(n, numbers));
        for (int64_t i = 0; i < r->fisher.n; i++) r->fisher.value[i] = scale * values[i];
        r->exact = abar__compare_spectra(r->kfac.value, r->fisher.value, least(r->kfac.n, r->fisher.n));
    }
    abar__free(ctx, memory, bytes);
    return status;
}

/* ---- attention ------------------------------------------------------------------------------------------------------- */

static abar_status make_attention(abar_context *ctx, const abar__map_stats *m, abar__map_result *r)
{
    const int64_t n = m->attention.n;
    void *memory;
    r->attention_bytes = (size_t)(3 * n) * sizeof(double);
    ABAR_TRY(abar__alloc(ctx, r->attention_bytes, &memory));
    r->attention_values = memory;
    return abar__attention_summarise(&m->attention, &r->attention, r->attention_values, r->attention_values + n,
                                     r->attention_values + 2 * n);
}

abar_status abar__result_make(const abar__collection *c, int map, const abar__results_config *config, bool keep_p,
                              abar__map_result *out)
{
    const abar__map_stats *m = &c->maps[map];
    *out = (abar__map_result){.p_trace = NAN, .p_effective_rank = NAN, .a_over_p = NAN};
    if (m->inputs) ABAR_TRY(make_inputs(m, config, out));
    if (m->grads) ABAR_TRY(make_grads(c, m, config, keep_p, out));
    if (m->gram) ABAR_TRY(make_fisher(c, m, config, out));
    return m->attention.sum ? make_attention(c->pass->ctx, m, out) : ABAR_OK;
}

void abar__result_free(abar_context *ctx, abar__map_result *r)
{
    abar__free(ctx, r->p_matrix, r->p_matrix ? r->p_bytes : 0);
    abar__free(ctx, r->attention_values, r->attention_values ? r->attention_bytes : 0);
    *r = (abar__map_result){0};
}
