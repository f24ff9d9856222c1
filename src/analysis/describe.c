/* What the numbers mean, in sentences. */
#include "analysis/figures.h"

#include <math.h>
#include <string.h>

/* Median over the maps of a number, those that are not finite left out; n: how many there were. */
static double median(const abar__figures *f, const abar__snapshot *s, double (*pick)(const abar__map_result *r), int *n)
{
    enum { MOST = 1024 };
    double value[MOST];
    *n = 0;
    for (int m = 0; m < f->collection->n && *n < MOST; m++) {
        const double v = pick(&s->map[m]);
        if (!isfinite(v)) continue;
        int k = (*n)++;
        for (; k > 0 && value[k - 1] > v; k--) value[k] = value[k - 1];
        value[k] = v;
    }
    return *n > 0 ? 0.5 * (value[(*n - 1) / 2] + value[*n / 2]) : NAN;
}

static double share_of(const abar__map_result *r) { return r->inputs.rank1_share; }
static double cosine_of(const abar__map_result *r) { return r->inputs.cosine; }
static double error_of(const abar__map_result *r) { return r->inputs.rank1_error; }
static double damping_of(const abar__map_result *r) { return r->inputs.adaptive_damping; }
static double correlation_of(const abar__map_result *r) { return isnan(r->p_trace) ? NAN : r->diagonality.correlation_mean; }

/* Layers where the mean says little: the rank-1 form is wrong by more than the mean itself, or points elsewhere. */
static bool is_poor(const abar__map_result *r) { return r->inputs.rank1_error > 1.0 || r->inputs.cosine < 0.9; }

static abar_status list_poor(const abar__figures *f, const abar__snapshot *s, abar__text *out)
{
    int listed = 0, poor = 0;
    for (int m = 0; m < f->collection->n; m++) poor += is_poor(&s->map[m]);
    if (poor == 0)
        return abar__text_printf(f->ctx, out, "- No layer stands out: everywhere the mean points along the top eigenvector.\n");
    ABAR_TRY(abar__text_printf(f->ctx, out,
                               "- MAC's rank-1 form is poor (error above 1, or |cos| below 0.9) in %d of %d layers: ", poor,
                               f->collection->n));
    for (int m = 0; m < f->collection->n && listed < 8; m++)
        if (is_poor(&s->map[m]))
            ABAR_TRY(abar__text_printf(f->ctx, out, "%s%s (error %.2g, |cos| %.2f)", listed++ ? ", " : "",
                                       f->collection->maps[m].name, s->map[m].inputs.rank1_error, s->map[m].inputs.cosine));
    return abar__text_printf(f->ctx, out, "%s. Candidates for `--skip-layers`, or for FOOF.\n", poor > listed ? ", ..." : "");
}

static abar_status describe_inputs(const abar__figures *f, const abar__snapshot *s, abar__text *out)
{
    int n;
    const double share = median(f, s, share_of, &n), cosine = median(f, s, cosine_of, &n), error = median(f, s, error_of, &n);
    ABAR_TRY(abar__text_printf(f->ctx, out,
                               "- In the median layer %.0f %% of tr A is the square of the mean activation; the mean's "
                               "direction has |cos| %.3f with the "
                               "top eigenvector of A, and A ~ mean mean^T has a relative error of %.2g.\n",
                               100.0 * share, cosine, error));
    ABAR_TRY(list_poor(f, s, out));
    const double damping = median(f, s, damping_of, &n);
    return abar__text_printf(
        f->ctx, out,
        "- The trace suggests a damping of %.2g (median of tr S / d; `--damping adaptive` takes each layer's own); "
        "numbers here are for %.3g. "
        "With rho far above the mean's square MAC is SGD; far below it, the mean's direction is removed almost entirely.\n",
        damping, f->damping);
}

static abar_status describe_grads(const abar__figures *f, const abar__snapshot *s, abar__text *out)
{
    int n;
    const double correlation = median(f, s, correlation_of, &n);
    if (n == 0) return ABAR_OK;
    return abar__text_printf(
        f->ctx, out,
        "- The output gradients of the median layer have a mean |correlation| of %.2f: P is %s, judged free of scale.\n",
        correlation,
        correlation < 0.1   ? "nearly diagonal"
        : correlation < 0.3 ? "not diagonal, but not far from it"
                            : "far from diagonal");
}

static abar_status describe_attention(const abar__figures *f, const abar__snapshot *s, abar__text *out)
{
    double rank1 = 0.0, printed = 0.0;
    int n = 0;
    for (int m = 0; m < f->collection->n; m++) {
        if (s->map[m].attention.count == 0.0) continue;
        rank1 += s->map[m].attention.rank1;
        printed += s->map[m].attention.printed;
        n++;
    }
    if (n == 0) return ABAR_OK;
    return abar__text_printf(
        f->ctx, out,
        "- Attention: 1 t^T stands for T with a mean relative error of %.2f over %d blocks (the printed t t^T: %.2f).\n",
        rank1 / n, n, printed / n);
}

/* Why a snapshot was looked at in training mode. */
static abar_status describe_mode(const abar__figures *f, abar__text *out)
{
    for (int i = 0; i < f->n_snapshots; i++)
        if (f->snapshots[i].at_start)
            ABAR_TRY(abar__text_printf(f->ctx, out,
                                       "- %s: inputs are those of training mode. Batch norm's running statistics are at their "
                                       "start, so evaluation mode would not normalise (`--mode eval` for it nevertheless).\n",
                                       f->snapshots[i].name));
    return ABAR_OK;
}

abar_status abar__describe_network(const abar__figures *f, abar__text *out)
{
    const abar__snapshot *last = &f->snapshots[f->n_snapshots - 1];
    const abar__pass *p = f->collection->pass;
    ABAR_TRY(abar__text_printf(f->ctx, out, "%s on %s, %s: %d layers, %lld %s samples.\n\n", f->setup->train.model,
                               f->setup->train.data, last->name, f->collection->n, (long long)(p->batches * p->config.batch),
                               p->config.test ? "test" : "training"));
    ABAR_TRY(describe_mode(f, out));
    if (last->map[0].inputs.rows > 0.0) ABAR_TRY(describe_inputs(f, last, out));
    ABAR_TRY(describe_grads(f, last, out));
    return describe_attention(f, last, out);
}

/* ---- the theorem --------------------------------------------------------------------------------------------------- */

static const char *verdict_text(const abar__theory_statement *s)
{
    static const char *const text[] = {[ABAR_VERDICT_HOLDS] = "holds",
                                       [ABAR_VERDICT_VIOLATED] = "VIOLATED",
                                       [ABAR_VERDICT_UNMET] = "condition not met",
                                       [ABAR_VERDICT_VACUOUS] = "says nothing"};
    return text[s->verdict];
}

abar_status abar__describe_theory(const abar__theory *t, abar__text *out)
{
    const abar__theory_config *c = &t->config;
    ABAR_TRY(abar__text_printf(t->ctx, out, "%lld points in %lld dimensions, ", (long long)c->n, (long long)c->d));
    if (c->m > 0)
        ABAR_TRY(abar__text_printf(t->ctx, out, "width %lld, ", (long long)c->m));
    else
        ABAR_TRY(abar__text_printf(t->ctx, out, "infinite width, "));
    ABAR_TRY(abar__text_printf(t->ctx, out, "rho %g, eta %.6g, %lld steps, seed %llu\n\n", c->rho, t->eta, (long long)c->steps,
                               (unsigned long long)c->seed));
    ABAR_TRY(abar__text_printf(t->ctx, out, "lambda (least eigenvalue of S, infinite width)  %.8g\n", t->sigma_limit));
    ABAR_TRY(abar__text_printf(t->ctx, out, "lambda_min, lambda_max of X^T X                 %.6g, %.6g\n", t->gram_min,
                               t->gram_max));
    ABAR_TRY(abar__text_printf(t->ctx, out, "lambda_min, lambda_max of G, infinite width     %.7g, %.7g\n", t->g_limit_min,
                               t->g_limit_max));
    ABAR_TRY(abar__text_printf(t->ctx, out, "|mean point|^2                                  %.6g\n", t->mean_square));
    if (c->m > 0)
        ABAR_TRY(abar__text_printf(t->ctx, out, "largest |J - J_0|, C of the paper's Condition 5.4 %.4g, %.4g\n",
                                   t->condition2 * c->rho / (2.0 * sqrt(t->gram_max)), t->condition2));
    ABAR_TRY(abar__text_printf(t->ctx, out, "|r_0|, |r_%lld|%*s%.4g, %.4g\n\n", (long long)c->steps,
                               c->steps < 100    ? 36
                               : c->steps < 1000 ? 35
                                                 : 33,
                               "", sqrt(t->step[0].residual), sqrt(t->step[c->steps].residual)));
    for (int i = 0; i < t->statements; i++) {
        const abar__theory_statement *s = &t->statement[i];
        ABAR_TRY(abar__text_printf(t->ctx, out, "- %s %s", s->name, verdict_text(s)));
        if (s->at >= 0) ABAR_TRY(abar__text_printf(t->ctx, out, " at k = %lld", (long long)s->at));
        ABAR_TRY(abar__text_printf(t->ctx, out, ": %s\n", s->text));
    }
    return ABAR_OK;
}
