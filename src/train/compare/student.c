/* Student's t distribution by the incomplete beta function: P(|T| > t) = I_x(df/2, 1/2) with x = df / (df + t^2). */
#include "train/compare/student.h"

#include <math.h>
#include <stdbool.h>

#define PI 3.14159265358979323846
#define TERMS_MAX 100000
#define POWER 0.8 /* with which abar__seeds_needed finds the difference */

/* ---- the distribution ------------------------------------------------------------------------------------------- */

/* The continued fraction of the incomplete beta function, by Lentz's method; converges fast for x < (a + 1) / (a + b + 2). */
static double beta_fraction(double a, double b, double x)
{
    const double tiny = 1e-300;
    double c = 1.0, d = 1.0 - (a + b) * x / (a + 1.0);
    d = 1.0 / (fabs(d) < tiny ? tiny : d);
    double fraction = d;
    for (int m = 1; m < TERMS_MAX; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1.0 + even * d;
        c = 1.0 + even / c;
        d = 1.0 / (fabs(d) < tiny ? tiny : d);
        c = fabs(c) < tiny ? tiny : c;
        fraction *= c * d;
        d = 1.0 + odd * d;
        c = 1.0 + odd / c;
        d = 1.0 / (fabs(d) < tiny ? tiny : d);
        c = fabs(c) < tiny ? tiny : c;
        fraction *= c * d;
        if (fabs(c * d - 1.0) < 1e-16) break;
    }
    return fraction;
}

/* ln(Gamma(a + 1/2) / Gamma(a)); by its series where Gamma itself is too large. */
static double log_gamma_ratio(double a)
{
    if (a < 30.0) return log(tgamma(a + 0.5) / tgamma(a));
    const double r = 1.0 / a, r2 = r * r;
    return 0.5 * log(a) - r / 8.0 + r * r2 / 192.0 - r * r2 * r2 / 640.0 + 17.0 * r * r2 * r2 * r2 / 14336.0;
}

double abar__student_above(double t, double df)
{
    if (isnan(t) || !(df > 0.0)) return NAN;
    if (t < 0.0) return 1.0 - abar__student_above(-t, df);
    if (t == 0.0) return 0.5;
    const double a = 0.5 * df, x = df / (df + t * t), rest = t * t / (df + t * t);
    const double front = exp(log_gamma_ratio(a) - a * log1p(t * t / df) + 0.5 * log(rest) - 0.5 * log(PI));
    const double both =
        x < (a + 1.0) / (a + 2.5) ? front * beta_fraction(a, 0.5, x) / a : 1.0 - 2.0 * front * beta_fraction(0.5, a, rest);
    return 0.5 * both;
}

double abar__student_quantile(double above, double df)
{
    if (!(above > 0.0 && above < 1.0) || !(df > 0.0)) return NAN;
    if (above > 0.5) return -abar__student_quantile(1.0 - above, df);
    double low = 0.0, high = 1.0;
    while (abar__student_above(high, df) > above && isfinite(high)) low = high, high *= 2.0;
    for (int i = 0; i < 100; i++) {
        const double middle = 0.5 * (low + high);
        if (middle <= low || middle >= high) break;
        if (abar__student_above(middle, df) > above)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}

/* ---- two means -------------------------------------------------------------------------------------------------- */

abar__welch abar__welch_test(abar__sample a, abar__sample b)
{
    abar__welch w = {a.mean - b.mean, NAN, NAN, NAN};
    if (a.n < 2 || b.n < 2) return w;
    const double va = a.std * a.std / (double)a.n, vb = b.std * b.std / (double)b.n;
    if (!(va + vb > 0.0)) return w;
    w.error = sqrt(va + vb);
    w.df = (va + vb) * (va + vb) / (va * va / (double)(a.n - 1) + vb * vb / (double)(b.n - 1));
    w.p = fmin(1.0, 2.0 * abar__student_above(fabs(w.difference) / w.error, w.df));
    return w;
}

double abar__welch_margin(const abar__welch *w, double alpha) { return w->error * abar__student_quantile(alpha / 2.0, w->df); }

/* ---- many pairs ------------------------------------------------------------------------------------------------- */

static void sort_by_p(const double *p, int n, int *order)
{
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0 && p[order[k - 1]] > p[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
}

void abar__holm(const double *p, int n, double alpha, double *adjusted, double *level, int *order)
{
    double most = 0.0;
    int weighed = n; /* tests not yet told apart; stays as it is from the first that cannot be */
    sort_by_p(p, n, order);
    for (int k = 0; k < n; k++) {
        const int i = order[k];
        most = fmax(most, fmin(1.0, p[i] * (double)(n - k)));
        adjusted[i] = most;
        level[i] = alpha / (double)weighed;
        if (most <= alpha) weighed--;
    }
}

/* Whether n values per sample are enough. */
static bool is_enough(double difference, double std_a, double std_b, double alpha, int64_t n)
{
    const double va = std_a * std_a / (double)n, vb = std_b * std_b / (double)n;
    const double df = (va + vb) * (va + vb) / ((va * va + vb * vb) / (double)(n - 1));
    const double wanted = abar__student_quantile(alpha / 2.0, df) + abar__student_quantile(1.0 - POWER, df);
    return fabs(difference) >= wanted * sqrt(va + vb);
}

int64_t abar__seeds_needed(double difference, double std_a, double std_b, double alpha)
{
    int64_t few = 1, many = ABAR_SEEDS_NEEDED_MAX;
    if (!(fabs(difference) > 0.0) || !(std_a * std_a + std_b * std_b > 0.0)) return 0;
    if (!is_enough(difference, std_a, std_b, alpha, many)) return 0;
    while (many - few > 1) {
        const int64_t middle = (few + many) / 2;
        if (is_enough(difference, std_a, std_b, alpha, middle))
            many = middle;
        else
            few = middle;
    }
    return many;
}
