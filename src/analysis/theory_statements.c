/* The inequalities behind the theorem, checked at every step of a run: I0 to I8 hold, I9 is the paper's bound as printed. */
#include "analysis/theory_impl.h"

#include <math.h>

enum { I0, I1, I2, I3, I3B, I4, I5, I6, I6B, I7_CONDITIONS, I7, I8, I8_TOTAL, I9, STATEMENTS };

static const abar__theory_statement statements[STATEMENTS] = {
    [I0] = {.name = "I0", .text = "J F^-1 J^T = B * S (needs q = +-1)"},
    [I1] = {.name = "I1", .text = "lambda_min(G) >= min b_ii lambda_min(S) >= lambda_min(S) / (|x|^2 + rho)"},
    [I2] = {.name = "I2", .text = "lambda_max(G) <= max S_ii lambda_max(B) <= lambda_max(X^T X) / rho"},
    [I3] = {.name = "I3", .text = "|S_0 - S| <= lambda/4, for widths from 8 n^2 ln(2 n^2 / delta) / lambda^2 on"},
    [I3B] = {.name = "I3b",
             .text = "lambda_min(S_k) >= lambda/2, while no unit moved by more than sqrt(2 pi) delta lambda / 16 n^2"},
    [I4] = {.name = "I4", .text = "|F^-1 J^T| <= sigma_max(X) / rho"},
    [I5] = {.name = "I5", .text = "|J - J_0|^2 <= 2 n R^(2/3) / (delta^(2/3) m^(1/3)), R = |W_k - W_0|"},
    [I6] = {.name = "I6", .text = "|r_k+1| <= (1 - eta lambda_min(G)) |r_k| + |e_k|, for eta <= 1 / lambda_max(G)"},
    [I6B] = {.name = "I6b", .text = "|e_k| <= eta |J_k+1 - J_k|_F sigma_max(X) / rho |r_k|"},
    [I7_CONDITIONS] = {.name = "I7c",
                       .text = "lambda_min(S) >= lambda/2, eta <= 1 / lambda_max(G), |e_k| <= eta lambda_min(G) |r_k| / 4"},
    [I7] = {.name = "I7",
            .text = "corrected: |r_k|^2 <= (1 - eta lambda / (c (|x|^2 + rho)))^k |r_0|^2, c = 4 (2 of infinite width)"},
    [I8] = {.name = "I8", .text = "|W_k - W_0| <= eta sigma_max(X) / rho sum |r_t|"},
    [I8_TOTAL] = {.name = "I8b",
                  .text = "|W_k - W_0| <= 8 sigma_max(X) (|x|^2 + rho) |r_0| / (rho lambda), under the conditions of I7"},
    [I9] = {.name = "I9", .text = "printed: |r_k|^2 <= (1 - eta lambda lambda_min(X^T X) / (2 (|x|^2 + rho)))^k |r_0|^2"},
};

abar__statements abar__statements_begin(abar__theory *t, double identity_gap)
{
    const double c = t->config.m > 0 ? 4.0 : 2.0, scale = t->mean_square + t->config.rho;
    for (int i = 0; i < STATEMENTS; i++) {
        t->statement[i] = statements[i];
        t->statement[i].at = -1;
        t->statement[i].margin = NAN;
    }
    t->statements = STATEMENTS;
    if (identity_gap > 1e-12) {
        t->statement[I0].verdict = ABAR_VERDICT_VIOLATED;
        t->statement[I0].at = 0;
    }
    return (abar__statements){.unmet = -1,
                              .rate_corrected = 1.0 - t->eta * t->sigma_limit / (c * scale),
                              .rate_paper = 1.0 - t->eta * t->sigma_limit * t->gram_min / (2.0 * scale)};
}

/* left <= right, but for rounding: relative to right, and to the size of what both are differences of. */
static void require(abar__theory *t, int i, int64_t k, double left, double right, double size)
{
    abar__theory_statement *s = &t->statement[i];
    const double margin = (right - left) / fabs(right);
    if (!(s->margin <= margin)) s->margin = margin;
    if (left <= right + 1e-9 * fabs(right) + 1e-12 * size || s->verdict != ABAR_VERDICT_HOLDS) return;
    s->verdict = ABAR_VERDICT_VIOLATED;
    s->at = k;
}

/* The statement says nothing from step k on. */
static void leave_open(abar__theory *t, int i, int64_t k)
{
    abar__theory_statement *s = &t->statement[i];
    if (s->verdict != ABAR_VERDICT_HOLDS) return;
    s->verdict = ABAR_VERDICT_UNMET;
    s->at = k;
}

static void check_spectra(abar__theory *t, const abar__statements *s, int64_t k)
{
    const abar__theory_step *step = &t->step[k];
    const double rho = t->config.rho;
    require(t, I1, k, t->b_min * step->sigma_min, step->g_min, step->g_max);
    require(t, I1, k, step->sigma_min / (t->mean_square + rho), t->b_min * step->sigma_min, step->g_max);
    require(t, I2, k, step->g_max, s->diagonal * t->b_max, 0.0);
    require(t, I2, k, s->diagonal * t->b_max, t->gram_max / rho, 0.0);
    require(t, I4, k, s->inverse_jacobian, sqrt(t->gram_max) / rho, 0.0);
}

/* Statements about random weights, which may fail with probability delta. */
static void check_width(abar__theory *t, int64_t k)
{
    const abar__theory_step *step = &t->step[k];
    const double n = (double)t->config.n, m = (double)t->config.m, delta = t->config.delta, lambda = t->sigma_limit;
    const double radius = sqrt(2.0 * 3.14159265358979323846) * delta * lambda / (16.0 * n * n);
    if (t->config.m == 0) return;
    if (k == 0 && m < t->width_needed) leave_open(t, I3, 0);
    if (k == 0 && m >= t->width_needed) require(t, I3, 0, 0.75 * lambda, step->sigma_min, lambda);
    if (m < t->width_needed || step->farthest > radius)
        leave_open(t, I3B, k);
    else
        require(t, I3B, k, 0.5 * lambda, step->sigma_min, lambda);
    const double bound = 2.0 * n * pow(step->moved, 2.0 / 3.0) / (pow(delta, 2.0 / 3.0) * cbrt(m));
    require(t, I5, k, step->jacobian * step->jacobian, bound, 1.0);
}

static void check_step(abar__theory *t, abar__statements *s, int64_t k, double switched, double next)
{
    const abar__theory_step *step = &t->step[k];
    const double start = sqrt(t->step[0].residual), now = sqrt(step->residual), eta = t->eta;
    const double slope = sqrt(t->gram_max) / t->config.rho;
    const bool stable = eta * step->g_max <= 1.0 + 1e-12;
    if (isnan(next)) return;
    if (stable)
        require(t, I6, k, next, (1.0 - eta * step->g_min) * now + step->error, start);
    else
        leave_open(t, I6, k);
    require(t, I6B, k, step->error, eta * switched * slope * now, start);
    const bool met =
        stable && step->sigma_min >= 0.5 * t->sigma_limit && step->error <= 0.25 * eta * step->g_min * now + 1e-13 * start;
    if (!met && s->unmet < 0) s->unmet = k;
    s->path += now;
}

static void check_bounds(abar__theory *t, const abar__statements *s, int64_t k)
{
    abar__theory_step *step = &t->step[k];
    const double start = t->step[0].residual, slope = sqrt(t->gram_max) / t->config.rho;
    step->corrected = pow(s->rate_corrected, (double)k) * start;
    step->paper = pow(s->rate_paper, (double)k) * start;
    require(t, I8, k, step->moved, t->eta * slope * s->path, 1e-3);
    if (s->unmet >= 0 && s->unmet < k) {
        if (step->residual > step->corrected) leave_open(t, I7, k);
        leave_open(t, I8_TOTAL, k);
    } else {
        require(t, I7, k, step->residual, step->corrected, 0.0);
        const double total = 8.0 * slope * (t->mean_square + t->config.rho) * sqrt(start) / t->sigma_limit;
        require(t, I8_TOTAL, k, step->moved, total, 0.0);
    }
    require(t, I9, k, step->residual, step->paper, 0.0);
}

void abar__statements_check(abar__theory *t, abar__statements *s, int64_t k, double switched, double next)
{
    check_spectra(t, s, k);
    check_width(t, k);
    check_bounds(t, s, k);
    check_step(t, s, k, switched, next);
    t->condition2 = fmax(t->condition2, 2.0 * sqrt(t->gram_max) * t->step[k].jacobian / t->config.rho);
}

void abar__statements_end(abar__theory *t, abar__statements *s)
{
    abar__theory_statement *conditions = &t->statement[I7_CONDITIONS], *paper = &t->statement[I9];
    if (s->unmet >= 0) {
        conditions->verdict = ABAR_VERDICT_UNMET;
        conditions->at = s->unmet;
    }
    static const int of_finite_width[] = {I0, I3, I3B, I5, I6B, I8, I8_TOTAL};
    for (size_t i = 0; t->config.m == 0 && i < sizeof of_finite_width / sizeof *of_finite_width; i++)
        t->statement[of_finite_width[i]].verdict = ABAR_VERDICT_VACUOUS;
    if (t->gram_min <= 1e-12 * t->gram_max && paper->verdict == ABAR_VERDICT_HOLDS) paper->verdict = ABAR_VERDICT_VACUOUS;
}
