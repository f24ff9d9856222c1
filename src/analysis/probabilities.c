/* abar_probabilities: the public face of the sums in attention.c. */
#include "abar/analysis.h"
#include "analysis/attention.h"

#include <math.h>

enum { SIDE_MAX = 4096 }; /* the eigenproblem of a matrix that is not symmetric takes minutes beyond */

struct abar_probabilities {
    abar_context *ctx;
    abar__attention_sums sums;
    double *one; /* (n, n) */
    size_t bytes;
};

abar_status abar_probabilities_create(abar_context *ctx, int64_t n, abar_probabilities **out)
{
    void *memory;
    if (!ctx || !out) return ABAR_E_ARGUMENT;
    *out = NULL;
    if (n < 1 || n > SIDE_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "probabilities: %lld tokens, give 1 to %d", (long long)n, SIDE_MAX);
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_probabilities), &memory));
    abar_probabilities *p = memory;
    *p = (abar_probabilities){.ctx = ctx, .bytes = (size_t)(n * n) * sizeof(double)};
    abar_status status = abar__alloc(ctx, p->bytes, &memory);
    if (status >= 0) p->one = memory;
    if (status >= 0) status = abar__attention_create(ctx, n, &p->sums);
    if (status < 0)
        abar_probabilities_destroy(p);
    else
        *out = p;
    return status;
}

void abar_probabilities_destroy(abar_probabilities *p)
{
    if (!p) return;
    abar_context *ctx = p->ctx;
    if (p->sums.sum) abar__attention_free(&p->sums);
    abar__free(ctx, p->one, p->one ? p->bytes : 0);
    abar__free(ctx, p, sizeof *p);
}

/* Matrix number m, and whether its rows are distributions. */
static abar_status fetch(const abar_probabilities *p, const abar_tensor *t, int64_t m)
{
    const int64_t n = p->sums.n;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = m * t->stride[0] + i * t->stride[1] + j * t->stride[2];
            sum += p->one[i * n + j] =
                t->dtype == ABAR_F64 ? ((const double *)t->data)[at] : (double)((const float *)t->data)[at];
        }
        if (!(fabs(sum - 1.0) < 1e-3))
            return abar__fail(p->ctx, ABAR_E_ARGUMENT, "probabilities: row %lld sums to %g, give rows that sum to 1",
                              (long long)i, sum);
    }
    return ABAR_OK;
}

abar_status abar_probabilities_add(abar_probabilities *p, const abar_tensor *t)
{
    const int64_t n = p->sums.n;
    if (t->dev || t->ndim != 3 || t->dim[1] != n || t->dim[2] != n || t->dim[0] < 0 || t->layout != ABAR_LAYOUT_STRIDED ||
        (t->dtype != ABAR_F64 && t->dtype != ABAR_F32))
        return abar__fail(p->ctx, ABAR_E_ARGUMENT, "probabilities: give matrices (m, %lld, %lld) of F64 or F32 in host memory",
                          (long long)n, (long long)n);
    for (int64_t m = 0; m < t->dim[0]; m++) {
        ABAR_TRY(fetch(p, t, m));
        ABAR_TRY(abar__attention_add(&p->sums, p->one));
    }
    return ABAR_OK;
}

abar_status abar_probabilities_summarise(const abar_probabilities *p, abar_probabilities_summary *out, double *eigenvalues,
                                         double *singular, double *columns)
{
    abar_probabilities_summary s;
    abar__attention_summary found;
    ABAR_TRY(abar__struct_read(p->ctx, "abar_probabilities_summary", out, &s, sizeof s));
    ABAR_TRY(abar__attention_summarise(&p->sums, &found, eigenvalues, singular, columns));
    s = (abar_probabilities_summary){.size = sizeof s,
                                     .matrices = found.count,
                                     .cosine_stationary = found.cosine_stationary,
                                     .cosine_singular = found.cosine_singular,
                                     .top_share = found.share,
                                     .rank1_error = found.rank1,
                                     .printed_error = found.printed};
    abar__struct_write(&s, sizeof s, out);
    return ABAR_OK;
}
