/* Runs the network of the theorem and records what its statements speak of (theory.h). */
#include "analysis/theory.h"

#include "analysis/dense.h"
#include "analysis/theory_impl.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

void dposv_(const char *uplo, const int *n, const int *nrhs, double *a, const int *lda, double *b, const int *ldb, int *info,
            size_t uplo_length);

static const double pi = 3.14159265358979323846;

/* ---- points --------------------------------------------------------------------------------------------------------- */

enum { DRAW_POINTS, DRAW_WEIGHTS, DRAW_SIGNS, DRAW_TARGETS };

static double draw_normal(uint64_t seed, uint32_t what, int64_t index)
{
    double pair[2];
    abar__normal(abar__random(seed, ABAR_DRAW_ANALYSIS, what, (uint64_t)index), pair);
    return pair[0];
}

static void fill_points(const abar__theory_config *c, double *x)
{
    for (int64_t i = 0; i < c->n; i++) {
        for (int64_t j = 0; j < c->d; j++) {
            double *at = &x[i * c->d + j];
            switch (c->points) {
            case ABAR_POINTS_ORTHONORMAL: *at = i == j ? 1.0 : 0.0; break;
            case ABAR_POINTS_CIRCLE:
                *at = j == 0 ? cos(2.0 * pi * (double)i / (double)c->n) : sin(2.0 * pi * (double)i / (double)c->n);
                break;
            case ABAR_POINTS_SPHERE: *at = draw_normal(c->seed, DRAW_POINTS, i * c->d + j); break;
            case ABAR_POINTS_POSITIVE: *at = fabs(draw_normal(c->seed, DRAW_POINTS, i * c->d + j)); break;
            case ABAR_POINTS_GIVEN: *at = c->given[i * c->d + j]; break;
            }
        }
        const double length = sqrt(abar__dot(c->d, x + i * c->d, x + i * c->d));
        for (int64_t j = 0; j < c->d && length > 0.0; j++) x[i * c->d + j] /= length;
    }
}

static abar_status check(abar_context *ctx, const abar__theory_config *c)
{
    if (c->n < 2 || c->n > 512 || c->d < 1 || c->d > 4096 || c->m < 0 || c->m > 1000000 || c->steps < 1 || c->steps > 1000000)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "theory: give 2 to 512 points, 1 to 4096 dimensions, a width up to 1000000 and 1 "
                          "to 1000000 steps");
    if (!(c->rho > 0.0) || !isfinite(c->rho) || !(c->rate >= 0.0) || !isfinite(c->rate) || !(c->delta > 0.0 && c->delta < 1.0))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "theory: damping and rate must be positive and finite, delta between 0 and 1");
    if (c->points == ABAR_POINTS_ORTHONORMAL && c->n != c->d)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "theory: orthonormal points need as many dimensions as points, give --dim %lld",
                          (long long)c->n);
    if (c->points == ABAR_POINTS_CIRCLE && (c->d != 2 || c->n % 2 == 0))
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "theory: points on the circle need --dim 2 and an odd number: of an even one some "
                          "are parallel");
    if (c->one_point && c->m > 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "theory: a residual on one point is of infinite width, give --width 0");
    return ABAR_OK;
}

static abar_status check_points(const abar__theory *t)
{
    const int64_t n = t->config.n, d = t->config.d;
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(abar__dot(d, t->x + i * d, t->x + i * d) - 1.0) < 1e-9))
            return abar__fail(t->ctx, ABAR_E_ARGUMENT, "theory: point %lld has no length", (long long)i);
        for (int64_t j = 0; j < i; j++)
            if (fabs(abar__dot(d, t->x + i * d, t->x + j * d)) > 1.0 - 1e-12)
                return abar__fail(t->ctx, ABAR_E_ARGUMENT,
                                  "theory: points %lld and %lld are parallel, which the theorem excludes", (long long)j,
                                  (long long)i);
    }
    return ABAR_OK;
}

/* ---- matrices of the points ----------------------------------------------------------------------------------------- */

static void multiply_transposed(int64_t n, int64_t d, const double *a, const double *b, double *out)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) out[i * n + j] = abar__dot(d, a + i * d, b + j * d);
}

/* X^T X / n + rho I. */
static void second_moment(const abar__theory *t, double *out)
{
    const int64_t n = t->config.n, d = t->config.d;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < d; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < n; k++) sum += t->x[k * d + i] * t->x[k * d + j];
            out[i * d + j] = sum / (double)n + (i == j ? t->config.rho : 0.0);
        }
}

/* Rows M^-1 x_i of a method. */
static abar_status precondition_points(const abar__theory *t, abar__theory_method method, const double *mean, double *square,
                                       double *out)
{
    const int64_t n = t->config.n, d = t->config.d;
    memcpy(out, t->x, (size_t)(n * d) * sizeof *out);
    if (method == ABAR_THEORY_SGD) return ABAR_OK;
    if (method == ABAR_THEORY_MAC) {
        const double rho = t->config.rho;
        for (int64_t i = 0; i < n; i++) {
            const double along = abar__dot(d, t->x + i * d, mean) / (rho + t->mean_square);
            for (int64_t j = 0; j < d; j++) out[i * d + j] = (t->x[i * d + j] - along * mean[j]) / rho;
        }
        return ABAR_OK;
    }
    const int side = (int)d, rights = (int)n;
    int info = 0;
    second_moment(t, square);
    dposv_("U", &side, &rights, square, &side, out, &side, &info, 1);
    return info == 0 ? ABAR_OK
                     : abar__fail(t->ctx, ABAR_E_NUMERIC, "theory: X^T X / n + rho I does not factorise, raise --damping");
}

static void limit_pattern(const abar__theory *t, double *sigma)
{
    const int64_t n = t->config.n, d = t->config.d;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double cosine = i == j ? 1.0 : fmax(-1.0, fmin(1.0, abar__dot(d, t->x + i * d, t->x + j * d)));
            sigma[i * n + j] = (pi - acos(cosine)) / (2.0 * pi);
        }
}

/* Least and largest eigenvalue of a symmetric matrix, which is overwritten. */
static abar_status extremes(const abar__theory *t, int64_t side, double *a, double *values, double *least, double *most)
{
    ABAR_TRY(abar__eigen_symmetric(t->ctx, side, a, false, values));
    if (least) *least = values[side - 1];
    if (most) *most = values[0];
    return ABAR_OK;
}

/* n (n rho I + S)^-1, KFAC's left factor seen from the examples. sigma is kept; vectors and values are workspace. */
static abar_status kfac_left(const abar__theory *t, const double *sigma, double *vectors, double *values, double *out)
{
    const int64_t n = t->config.n;
    memcpy(vectors, sigma, (size_t)(n * n) * sizeof *vectors);
    ABAR_TRY(abar__eigen_symmetric(t->ctx, n, vectors, true, values));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < n; k++)
                sum += vectors[k * n + i] * vectors[k * n + j] * (double)n / ((double)n * t->config.rho + values[k]);
            out[i * n + j] = sum;
        }
    return ABAR_OK;
}

/* G of a method, (n, n): B * S, for KFAC B * (S left). */
static void kernel_of(const abar__theory *t, const abar__theory_frame *f, abar__theory_method method, const double *sigma,
                      double *out)
{
    const int64_t n = t->config.n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double pattern = sigma[i * n + j];
            if (method == ABAR_THEORY_KFAC) {
                pattern = 0.0;
                for (int64_t k = 0; k < n; k++) pattern += sigma[i * n + k] * f->left[k * n + j];
            }
            out[i * n + j] = f->b[i * n + j] * pattern;
        }
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static abar_status make_frame(abar__theory *t, abar__theory_frame *f)
{
    const int64_t n = t->config.n, d = t->config.d, m = t->config.m, side = n > d ? n : d;
    const int64_t squares = 8 * side * side, rows = 2 * n * d + 2 * m * d + d, vectors = 7 * side + m;
    void *memory;
    f->bytes = (size_t)(squares + rows + vectors) * sizeof(double) + 3 * (size_t)(m * n);
    ABAR_TRY(abar__alloc(t->ctx, f->bytes, &memory));
    double *at = f->memory = memory;
    double **const square[] = {&f->b, &f->sigma, &f->kernel, &f->left, &f->square, &f->scratch, &f->gram, &f->b2};
    for (size_t i = 0; i < sizeof square / sizeof *square; i++, at += side * side) *square[i] = at;
    double **const matrix[] = {&f->nx, &f->change};
    for (size_t i = 0; i < sizeof matrix / sizeof *matrix; i++, at += n * d) *matrix[i] = at;
    f->w = at;
    f->w0 = f->w + m * d;
    f->mean = f->w0 + m * d;
    at = f->mean + d;
    double **const vector[] = {&f->values, &f->r, &f->r_next, &f->u, &f->y, &f->predicted, &f->r0};
    for (size_t i = 0; i < sizeof vector / sizeof *vector; i++, at += side) *vector[i] = at;
    f->q = at;
    f->pattern = (uint8_t *)(f->q + m);
    f->pattern0 = f->pattern + m * n;
    f->before = f->pattern0 + m * n;
    return ABAR_OK;
}

/* ---- the network ---------------------------------------------------------------------------------------------------- */

void abar__theory_network(const abar__theory_config *c, double *w, double *q)
{
    for (int64_t i = 0; i < c->m * c->d; i++) w[i] = draw_normal(c->seed, DRAW_WEIGHTS, i);
    for (int64_t r = 0; r < c->m; r++) {
        const double u = abar__uniform(abar__random(c->seed, ABAR_DRAW_ANALYSIS, DRAW_SIGNS, (uint64_t)r).u[0]);
        q[r] = c->uniform_q ? 2.0 * u - 1.0 : u < 0.5 ? -1.0 : 1.0;
    }
}

/* The outputs u, and which hidden units are active, (m, n). */
static void forward(const abar__theory *t, abar__theory_frame *f)
{
    const int64_t n = t->config.n, d = t->config.d, m = t->config.m;
    memset(f->u, 0, (size_t)n * sizeof *f->u);
    for (int64_t r = 0; r < m; r++)
        for (int64_t i = 0; i < n; i++) {
            const double z = abar__dot(d, f->w + r * d, t->x + i * d);
            f->pattern[r * n + i] = z >= 0.0;
            if (z > 0.0) f->u[i] += f->q[r] * z;
        }
    for (int64_t i = 0; i < n; i++) f->u[i] /= sqrt((double)m);
}

/* S of the weights as they are now, with q_r^2, which is 1 but for uniform_q. */
static void measure_pattern(const abar__theory *t, const abar__theory_frame *f, bool with_q, double *sigma)
{
    const int64_t n = t->config.n, m = t->config.m;
    memset(sigma, 0, (size_t)(n * n) * sizeof *sigma);
    for (int64_t r = 0; r < m; r++) {
        const uint8_t *on = f->pattern + r * n;
        const double weight = (with_q ? f->q[r] * f->q[r] : 1.0) / (double)m;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; on[i] && j <= i; j++)
                if (on[j]) sigma[i * n + j] += weight;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) sigma[j * n + i] = sigma[i * n + j];
}

/* change (n, d): diag(r) N, for KFAC left diag(r) N. */
static void direction(const abar__theory *t, const abar__theory_frame *f, abar__theory_method method)
{
    const int64_t n = t->config.n, d = t->config.d;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d; j++) {
            double sum = f->r[i] * f->nx[i * d + j];
            if (method == ABAR_THEORY_KFAC) {
                sum = 0.0;
                for (int64_t k = 0; k < n; k++) sum += f->left[i * n + k] * f->r[k] * f->nx[k * d + j];
            }
            f->change[i * d + j] = sum;
        }
}

static void update(const abar__theory *t, abar__theory_frame *f, double eta)
{
    const int64_t n = t->config.n, d = t->config.d, m = t->config.m;
    for (int64_t r = 0; r < m; r++)
        for (int64_t i = 0; i < n; i++) {
            if (!f->pattern[r * n + i]) continue;
            const double scale = eta * f->q[r] / sqrt((double)m);
            for (int64_t j = 0; j < d; j++) f->w[r * d + j] -= scale * f->change[i * d + j];
        }
}

/* |J - J'|, spectral: J J^T of the difference is X X^T * (D D^T / m), D the change of the pattern times q. */
static abar_status jacobian_change(const abar__theory *t, abar__theory_frame *f, double *out)
{
    const int64_t n = t->config.n, m = t->config.m;
    double *a = f->scratch, most;
    memset(a, 0, (size_t)(n * n) * sizeof *a);
    for (int64_t r = 0; r < m; r++) {
        const uint8_t *now = f->pattern + r * n, *then = f->pattern0 + r * n;
        const double weight = f->q[r] * f->q[r] / (double)m;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; now[i] != then[i] && j <= i; j++)
                if (now[j] != then[j]) a[i * n + j] += now[i] == now[j] ? weight : -weight;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) a[i * n + j] *= f->gram[i * n + j];
    ABAR_TRY(extremes(t, n, a, f->values, NULL, &most));
    *out = sqrt(fmax(most, 0.0));
    return ABAR_OK;
}

/* |J_{k+1} - J_k| in the Frobenius norm: along the segment between them a unit switches at most once for a point, so this
 * bounds |J(s) - J_k| for every s of it. */
static double pattern_change(const abar__theory *t, const abar__theory_frame *f)
{
    const int64_t n = t->config.n, m = t->config.m;
    double sum = 0.0;
    for (int64_t r = 0; r < m; r++)
        for (int64_t i = 0; i < n; i++)
            if (f->pattern[r * n + i] != f->before[r * n + i]) sum += f->q[r] * f->q[r];
    return sqrt(sum / (double)m);
}

static void distance(const abar__theory *t, const abar__theory_frame *f, abar__theory_step *s)
{
    const int64_t d = t->config.d, m = t->config.m;
    double all = 0.0;
    for (int64_t r = 0; r < m; r++) {
        double sum = 0.0;
        for (int64_t j = 0; j < d; j++) sum += (f->w[r * d + j] - f->w0[r * d + j]) * (f->w[r * d + j] - f->w0[r * d + j]);
        s->farthest = fmax(s->farthest, sqrt(sum));
        all += sum;
    }
    s->moved = sqrt(all);
}

/* ---- the run -------------------------------------------------------------------------------------------------------- */

/* r - eta G r, what the step would give if the patterns stayed as they are. */
static void predict(int64_t n, double eta, const double *kernel, const double *r, double *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = r[i] - eta * abar__dot(n, kernel + i * n, r);
}

static abar_status measure_step(abar__theory *t, abar__theory_frame *f, int64_t k)
{
    const int64_t n = t->config.n;
    abar__theory_step *s = &t->step[k];
    if (t->config.m > 0) {
        distance(t, f, s);
        ABAR_TRY(jacobian_change(t, f, &s->jacobian));
    }
    memcpy(f->scratch, f->sigma, (size_t)(n * n) * sizeof *f->scratch);
    ABAR_TRY(extremes(t, n, f->scratch, f->values, &s->sigma_min, NULL));
    memcpy(f->scratch, f->kernel, (size_t)(n * n) * sizeof *f->scratch);
    return extremes(t, n, f->scratch, f->values, &s->g_min, &s->g_max);
}

/* sqrt(lambda_max(X M^-2 X^T * S)) = |F^-1 J^T|. */
static abar_status inverse_jacobian(const abar__theory *t, abar__theory_frame *f, double *out)
{
    const int64_t n = t->config.n;
    double most;
    for (int64_t i = 0; i < n * n; i++) f->scratch[i] = f->b2[i] * f->sigma[i];
    ABAR_TRY(extremes(t, n, f->scratch, f->values, NULL, &most));
    *out = sqrt(fmax(most, 0.0));
    return ABAR_OK;
}

static abar_status finite_step(abar__theory *t, abar__theory_frame *f, abar__theory_method method, double eta)
{
    const int64_t n = t->config.n;
    if (method == ABAR_THEORY_KFAC) {
        measure_pattern(t, f, false, f->sigma);
        ABAR_TRY(kfac_left(t, f->sigma, f->square, f->values, f->left));
    }
    direction(t, f, method);
    update(t, f, eta);
    memcpy(f->before, f->pattern, (size_t)(t->config.m * n));
    forward(t, f);
    for (int64_t i = 0; i < n; i++) f->r_next[i] = f->u[i] - f->y[i];
    return ABAR_OK;
}

static void start(const abar__theory *t, abar__theory_frame *f)
{
    const int64_t n = t->config.n, m = t->config.m;
    memcpy(f->w, f->w0, (size_t)(m * t->config.d) * sizeof *f->w);
    if (m > 0) {
        forward(t, f);
        memcpy(f->pattern0, f->pattern, (size_t)(m * n));
        for (int64_t i = 0; i < n; i++) f->r0[i] = f->u[i] - f->y[i];
    } else {
        for (int64_t i = 0; i < n; i++) f->r0[i] = t->config.one_point ? (i == 0 ? 1.0 : 0.0) : -f->y[i];
        limit_pattern(t, f->sigma);
    }
    memcpy(f->r, f->r0, (size_t)n * sizeof *f->r);
}

/* Matrices of step k: of infinite width they are those of step 0. */
static abar_status measure_mac(abar__theory *t, abar__theory_frame *f, abar__statements *s, int64_t k)
{
    const int64_t n = t->config.n;
    abar__theory_step *step = &t->step[k];
    if (t->config.m == 0 && k > 0) {
        const abar__theory_step *first = &t->step[0];
        step->sigma_min = first->sigma_min;
        step->g_min = first->g_min;
        step->g_max = first->g_max;
        return ABAR_OK;
    }
    if (t->config.m > 0) measure_pattern(t, f, false, f->sigma);
    kernel_of(t, f, ABAR_THEORY_MAC, f->sigma, f->kernel);
    if (k == 0) memcpy(t->start_kernel, f->kernel, (size_t)(n * n) * sizeof *f->kernel);
    ABAR_TRY(measure_step(t, f, k));
    ABAR_TRY(inverse_jacobian(t, f, &s->inverse_jacobian));
    s->diagonal = 0.0;
    for (int64_t i = 0; i < n; i++) s->diagonal = fmax(s->diagonal, f->sigma[i * n + i]);
    return ABAR_OK;
}

/* How far J F^-1 J^T is from G = B * S, relative: S with the weights q_r^2 against S without. */
static double identity_gap(const abar__theory *t, abar__theory_frame *f)
{
    const int64_t n = t->config.n;
    double gap = 0.0;
    if (t->config.m == 0) return 0.0;
    measure_pattern(t, f, false, f->sigma);
    measure_pattern(t, f, true, f->scratch);
    for (int64_t i = 0; i < n; i++) gap = fmax(gap, fabs(f->scratch[i * n + i] / f->sigma[i * n + i] - 1.0));
    return gap;
}

static abar_status take_mac_step(abar__theory *t, abar__theory_frame *f, int64_t k, double *switched)
{
    const int64_t n = t->config.n;
    double error = 0.0;
    predict(n, t->eta, f->kernel, f->r, f->predicted);
    if (t->config.m > 0) {
        ABAR_TRY(finite_step(t, f, ABAR_THEORY_MAC, t->eta));
        *switched = pattern_change(t, f);
    } else {
        memcpy(f->r_next, f->predicted, (size_t)n * sizeof *f->r_next);
    }
    for (int64_t i = 0; i < n; i++) error += (f->r_next[i] - f->predicted[i]) * (f->r_next[i] - f->predicted[i]);
    t->step[k].error = sqrt(error);
    return ABAR_OK;
}

static abar_status tell(const abar__theory *t, const char *method, int64_t k)
{
    return t->config.tell ? t->config.tell(t->config.user, method, k) : ABAR_OK;
}

/* MAC, with everything the statements need. */
static abar_status run_mac(abar__theory *t, abar__theory_frame *f)
{
    const int64_t n = t->config.n;
    abar__statements s = abar__statements_begin(t, identity_gap(t, f));
    for (int64_t k = 0; k <= t->config.steps; k++) {
        const bool last = k == t->config.steps;
        double switched = 0.0;
        const abar_status status = tell(t, "MAC", k);
        if (status != ABAR_OK) return status;
        t->residual[ABAR_THEORY_MAC][k] = t->step[k].residual = abar__dot(n, f->r, f->r);
        t->step[k].error = NAN;
        ABAR_TRY(measure_mac(t, f, &s, k));
        if (!last) ABAR_TRY(take_mac_step(t, f, k, &switched));
        abar__statements_check(t, &s, k, switched, last ? NAN : sqrt(abar__dot(n, f->r_next, f->r_next)));
        memcpy(f->r, f->r_next, (size_t)n * sizeof *f->r);
    }
    abar__statements_end(t, &s);
    return ABAR_OK;
}

static abar_status run_other(abar__theory *t, abar__theory_frame *f, abar__theory_method method)
{
    const int64_t n = t->config.n;
    const double eta = t->method_rate[method];
    if (t->config.m == 0) kernel_of(t, f, method, f->sigma, f->kernel);
    for (int64_t k = 0; k <= t->config.steps; k++) {
        const abar_status status = tell(t, method == ABAR_THEORY_SGD ? "SGD" : method == ABAR_THEORY_FOOF ? "FOOF" : "KFAC", k);
        if (status != ABAR_OK) return status;
        t->residual[method][k] = abar__dot(n, f->r, f->r);
        if (t->config.m > 0) {
            ABAR_TRY(finite_step(t, f, method, eta));
        } else {
            predict(n, eta, f->kernel, f->r, f->r_next);
        }
        memcpy(f->r, f->r_next, (size_t)n * sizeof *f->r);
    }
    return ABAR_OK;
}

/* Puts a method's M into the frame, and its G of infinite width into kernel. */
static abar_status prepare_method(const abar__theory *t, abar__theory_frame *f, abar__theory_method method)
{
    const int64_t n = t->config.n, d = t->config.d;
    ABAR_TRY(precondition_points(t, method, f->mean, f->square, f->nx));
    multiply_transposed(n, d, t->x, f->nx, f->b);
    multiply_transposed(n, d, f->nx, f->nx, f->b2);
    limit_pattern(t, f->sigma);
    if (method == ABAR_THEORY_KFAC) ABAR_TRY(kfac_left(t, f->sigma, f->square, f->values, f->left));
    kernel_of(t, f, method, f->sigma, f->kernel);
    return ABAR_OK;
}

static abar_status measure_points(abar__theory *t, abar__theory_frame *f)
{
    const int64_t n = t->config.n, d = t->config.d;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d; j++) f->mean[j] += t->x[i * d + j] / (double)n;
    t->mean_square = abar__dot(d, f->mean, f->mean);
    multiply_transposed(n, d, t->x, t->x, f->gram);
    second_moment(t, f->square);
    ABAR_TRY(extremes(t, d, f->square, f->values, &t->gram_min, &t->gram_max));
    t->gram_min = n < d ? 0.0 : fmax(0.0, (double)n * (t->gram_min - t->config.rho));
    t->gram_max = (double)n * (t->gram_max - t->config.rho);
    return ABAR_OK;
}

static abar_status measure_limit(abar__theory *t, abar__theory_frame *f)
{
    const int64_t n = t->config.n;
    double most[ABAR_THEORY_METHODS];
    for (int method = ABAR_THEORY_METHODS - 1; method >= 0; method--) { /* MAC last: its matrices stay */
        ABAR_TRY(prepare_method(t, f, (abar__theory_method)method));
        ABAR_TRY(extremes(t, n, f->kernel, f->values, method == ABAR_THEORY_MAC ? &t->g_limit_min : NULL, &most[method]));
    }
    t->g_limit_max = most[ABAR_THEORY_MAC];
    t->b_min = INFINITY;
    for (int64_t i = 0; i < n; i++) t->b_min = fmin(t->b_min, f->b[i * n + i]);
    memcpy(f->scratch, f->b, (size_t)(n * n) * sizeof *f->scratch);
    ABAR_TRY(extremes(t, n, f->scratch, f->values, NULL, &t->b_max));
    limit_pattern(t, f->scratch);
    ABAR_TRY(extremes(t, n, f->scratch, f->values, &t->sigma_limit, NULL));
    const double part = t->config.rate > 0.0 ? t->config.rate * t->g_limit_max : t->config.m > 0 ? 0.9 : 1.0;
    for (int method = 0; method < ABAR_THEORY_METHODS; method++) t->method_rate[method] = part / most[method];
    t->eta = t->method_rate[ABAR_THEORY_MAC];
    t->width_needed = 8.0 * (double)(n * n) * log(2.0 * (double)(n * n) / t->config.delta) / (t->sigma_limit * t->sigma_limit);
    return ABAR_OK;
}

static abar_status run(abar__theory *t, abar__theory_frame *f)
{
    fill_points(&t->config, t->x);
    ABAR_TRY(check_points(t));
    ABAR_TRY(measure_points(t, f));
    ABAR_TRY(measure_limit(t, f));
    abar__theory_network(&t->config, f->w0, f->q);
    for (int64_t i = 0; i < t->config.n; i++) f->y[i] = draw_normal(t->config.seed, DRAW_TARGETS, i);
    start(t, f);
    abar_status status = run_mac(t, f);
    for (int method = ABAR_THEORY_MAC + 1; status == ABAR_OK && method < ABAR_THEORY_METHODS; method++) {
        ABAR_TRY(prepare_method(t, f, (abar__theory_method)method));
        start(t, f);
        status = run_other(t, f, (abar__theory_method)method);
    }
    return status;
}

static abar_status make_results(abar__theory *t)
{
    const size_t rows = (size_t)t->config.steps + 1;
    void *memory;
    t->step_bytes = rows * sizeof *t->step;
    ABAR_TRY(abar__alloc(t->ctx, t->step_bytes, &memory));
    t->step = memory;
    t->residual_bytes = ABAR_THEORY_METHODS * rows * sizeof(double);
    ABAR_TRY(abar__alloc(t->ctx, t->residual_bytes, &memory));
    for (int method = 0; method < ABAR_THEORY_METHODS; method++) t->residual[method] = (double *)memory + (size_t)method * rows;
    t->x_bytes = (size_t)(t->config.n * (t->config.d + t->config.n)) * sizeof *t->x;
    ABAR_TRY(abar__alloc(t->ctx, t->x_bytes, &memory));
    t->x = memory;
    t->start_kernel = t->x + t->config.n * t->config.d;
    return ABAR_OK;
}

void abar__theory_free(abar__theory *t)
{
    abar__free(t->ctx, t->step, t->step ? t->step_bytes : 0);
    abar__free(t->ctx, t->residual[0], t->residual[0] ? t->residual_bytes : 0);
    abar__free(t->ctx, t->x, t->x ? t->x_bytes : 0);
    *t = (abar__theory){0};
}

abar_status abar__theory_run(abar_context *ctx, const abar__theory_config *config, abar__theory *out)
{
    abar__theory_frame frame = {0};
    *out = (abar__theory){.ctx = ctx, .config = *config};
    ABAR_TRY(check(ctx, config));
    abar_status status = make_results(out);
    if (status >= 0) status = make_frame(out, &frame);
    if (status >= 0) status = run(out, &frame);
    abar__free(ctx, frame.memory, frame.memory ? frame.bytes : 0);
    if (status != ABAR_OK) abar__theory_free(out);
    return status;
}
