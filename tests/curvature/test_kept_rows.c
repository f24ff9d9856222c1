/* Methods that keep the rows of a step (optimizers.md sections 5 and 6): SKFAC against dense inverses, KPSVD against the block
 * of the Fisher matrix that it approximates, and what is refused. */
#include "curvature_lab.h"

#include "device/device_impl.h"

#define EVERY_STEP "tcov=1 tinv=1 "

static int64_t size_of(const lab_layer *y) { return y->outputs * y->columns; }

/* ---- the batch's means --------------------------------------------------------------------------------------------------- */

/* Mean rows of the examples of a group: a (N, d), and q = N p (N, out). The caller frees both. */
typedef struct means {
    int64_t n, d, out;
    double *a, *q;
} means;

static double *mean_rows(double *rows, int64_t n, int64_t per, int64_t length, double scale)
{
    double *m = calloc((size_t)(n * length), sizeof *m);
    for (int64_t r = 0; r < n * per; r++)
        for (int64_t k = 0; k < length; k++) m[r / per * length + k] += scale * rows[r * length + k] / (double)per;
    free(rows);
    return m;
}

static means take_means(const lab *l, int64_t group)
{
    const lab_layer *y = &l->layer[0];
    means m = {.n = l->examples, .d = y->columns, .out = y->outputs};
    m.a = mean_rows(lab_rows(l, 0, group), m.n, y->rows, m.d, 1.0);
    m.q = mean_rows(lab_row_grads(l, 0, group), m.n, y->rows, m.out, (double)m.n);
    return m;
}

static void drop_means(means *m)
{
    free(m->a);
    free(m->q);
}

/* E_n[x xT] + shift I */
static double *second_moment(const double *x, int64_t n, int64_t d, double shift)
{
    double *m = calloc((size_t)(d * d), sizeof *m);
    for (int64_t i = 0; i < d; i++) {
        for (int64_t j = 0; j < d; j++)
            for (int64_t e = 0; e < n; e++) m[i * d + j] += x[e * d + i] * x[e * d + j] / (double)n;
        m[i * d + i] += shift;
    }
    return m;
}

/* Pᵀ⁻¹ G A⁻¹ of symmetric factors, which it takes. */
static double *between(const lab *l, int64_t group, double *p, double *a)
{
    const int64_t d = l->layer[0].columns, out = l->layer[0].outputs;
    double *g = lab_gradient(l, 0, group), *t = calloc((size_t)(d * out), sizeof *t);
    lab_solve(out, p, d, g);
    for (int64_t i = 0; i < d * out; i++) t[i % d * out + i / d] = g[i];
    lab_solve(d, a, out, t);
    for (int64_t i = 0; i < d * out; i++) g[i] = t[i % d * out + i / d];
    free(t);
    free(p);
    free(a);
    return g;
}

/* ---- SKFAC --------------------------------------------------------------------------------------------------------------- */

static void check_skfac(const char *device, uint64_t seed)
{
    lab l;
    char options[128];
    uint64_t noise = seed;
    lab_shape shape = lab_random_shape(&noise, "map", seed % 2);
    const int64_t examples = lab_pick(&noise, 1, 5), room[] = {examples, examples + 2, 0};
    lab_open(&l, device, NULL, &shape, 1, examples, seed);
    snprintf(options, sizeof options, EVERY_STEP "damping=0.25 stat-decay=0.9 examples=%d", (int)room[seed % 3]);
    lab_optimizer(&l, "skfac", options);
    for (int k = 0; k < 3; k++) {
        lab_new_batch(&l);
        lab_observed_step(&l);
        for (int64_t g = 0; g < l.layer[0].groups; g++) {
            means m = take_means(&l, g);
            double *p = second_moment(m.q, m.n, m.out, 0.5), *a = second_moment(m.a, m.n, m.d, 0.5); /* sqrt(0.25) */
            double *right = between(&l, g, p, a), *found = lab_taken(&l, 0, g);
            lab_check(&l, "skfac", found, right, size_of(&l.layer[0]), 1e-10, 1e-4);
            free(right);
            free(found);
            drop_means(&m);
        }
    }
    lab_close(&l);
}

static void skfac_is_between_the_dense_inverses_of_its_batch(void **state)
{
    for (uint64_t seed = 1; seed <= 36; seed++) check_skfac(*state, seed);
}

/* A smaller batch than the last leaves nothing of that one's rows. */
static void skfac_batch_that_shrinks_is_alone(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 9, .out = 7, .bias = true};
    lab many, few;
    lab_open(&many, *state, NULL, &shape, 1, 5, 3);
    lab_open(&few, *state, NULL, &shape, 1, 5, 3);
    lab_optimizer(&many, "skfac", EVERY_STEP "damping=0.1");
    lab_optimizer(&few, "skfac", EVERY_STEP "damping=0.1");
    lab_new_batch(&many);
    lab_observed_step(&many); /* five examples, which few never sees */
    lab_new_batch(&many);
    lab_copy_batch(&many, &few);
    lab_observe_layer(&many, 0, 0, 2, 1.0, 1.0);
    lab_observe_layer(&few, 0, 0, 2, 1.0, 1.0);
    lab_step(&many, 1.0);
    lab_step(&few, 1.0);
    lab_check_same(&many, &few, "two of five examples", 0.0, 0.0);
    lab_close(&many);
    lab_close(&few);
}

/* The refresh waits for a step that has statistics of its own. */
static void skfac_refresh_uses_its_own_batch(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 8, .out = 3, .bias = true};
    lab l, fresh;
    lab_open(&l, *state, NULL, &shape, 1, 4, 5);
    lab_open(&fresh, *state, NULL, &shape, 1, 4, 5);
    lab_optimizer(&l, "skfac", "tcov=4 tinv=3 damping=0.1");
    for (int k = 0; k < 5; k++) { /* due at 3, made at 4 */
        lab_new_batch(&l);
        lab_optimizer(&fresh, "skfac", EVERY_STEP "damping=0.1");
        lab_copy_batch(&l, &fresh);
        lab_observed_step(&l);
        lab_observed_step(&fresh);
        double *found = lab_taken(&l, 0, 0), *own = lab_taken(&fresh, 0, 0);
        const double off = lab_difference(found, own, size_of(&l.layer[0]));
        assert_true(k % 4 == 0 ? off == 0.0 : off > 1e-3);
        free(found);
        free(own);
    }
    lab_close(&l);
    lab_close(&fresh);
}

static void skfac_singular_gram_matrix_is_damped(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 16, .out = 3};
    lab l;
    lab_open(&l, *state, NULL, &shape, 1, 4, 5);
    lab_optimizer(&l, "skfac", EVERY_STEP "damping=1e-28"); /* products of equal rows are 2^22: exact roots */
    lab_new_batch(&l);
    for (int64_t i = 0; i < abar_tensor_count(&l.layer[0].x); i++) lab_set(&l.layer[0].x, i, 1024.0);
    lab_observed_step(&l);
    const abar_map_info info = lab_map(&l, "map", 0);
    double *taken = lab_taken(&l, 0, 0), *g = lab_gradient(&l, 0, 0), product = 0.0;
    for (int64_t i = 0; i < size_of(&l.layer[0]); i++) product += taken[i] * g[i];
    assert_true(info.raised > 0 && isfinite(product) && product > 0.0);
    free(taken);
    free(g);
    lab_close(&l);
}

/* ---- KPSVD --------------------------------------------------------------------------------------------------------------- */

/* A symmetric average of the map, in full. */
static double *factor_of(lab *l, int64_t group, const char *name)
{
    lab_state s;
    lab_state_take(l, &s);
    const abar_tensor *t = l->layer[0].groups > 1 ? lab_state_find(&s, "curvature.map#%d.average.%s", (int)group, name)
                                                  : lab_state_find(&s, "curvature.map.average.%s", name);
    assert_non_null(t);
    const int64_t d = t->dim[1];
    double *m = calloc((size_t)(d * d), sizeof *m);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i; j < d; j++) m[i * d + j] = m[j * d + i] = lab_get(t, i * d + j);
    lab_state_drop(&s);
    return m;
}

/* |E[aaT (x) qqT] - R (x) S|^2, less the part that is the same for all: |R|^2 |S|^2 - 2 E[(aT R a)(qT S q)]. */
static double farness(const means *m, const double *r, const double *s)
{
    double rr = 0.0, ss = 0.0, cross = 0.0;
    for (int64_t i = 0; i < m->d * m->d; i++) rr += r[i] * r[i];
    for (int64_t i = 0; i < m->out * m->out; i++) ss += s[i] * s[i];
    for (int64_t n = 0; n < m->n; n++) {
        double a = 0.0, q = 0.0;
        for (int64_t i = 0; i < m->d * m->d; i++) a += r[i] * m->a[n * m->d + i / m->d] * m->a[n * m->d + i % m->d];
        for (int64_t i = 0; i < m->out * m->out; i++) q += s[i] * m->q[n * m->out + i / m->out] * m->q[n * m->out + i % m->out];
        cross += a * q / (double)m->n;
    }
    return rr * ss - 2.0 * cross;
}

/* The other factor of the nearest product, times |this|^2: E[(xT F x) y yT]. */
static double *partner(int64_t n, const double *x, int64_t d, const double *f, const double *y, int64_t out)
{
    double *m = calloc((size_t)(out * out), sizeof *m);
    for (int64_t e = 0; e < n; e++) {
        double weight = 0.0;
        for (int64_t i = 0; i < d * d; i++) weight += f[i] * x[e * d + i / d] * x[e * d + i % d];
        for (int64_t i = 0; i < out * out; i++) m[i] += weight * y[e * out + i / out] * y[e * out + i % out] / (double)n;
    }
    return m;
}

static double square(const double *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sum;
}

static void check_nearest(const char *device, uint64_t seed, int rounds)
{
    lab l;
    char options[128];
    uint64_t noise = seed;
    lab_shape shape = lab_random_shape(&noise, "map", seed % 2);
    lab_open(&l, device, NULL, &shape, 1, lab_pick(&noise, 1, 5), seed);
    snprintf(options, sizeof options, EVERY_STEP "stat-decay=0 kpsvd-rounds=%d", rounds);
    lab_optimizer(&l, "kpsvd", options);
    lab_new_batch(&l);
    lab_observed_step(&l);
    for (int64_t g = 0; g < l.layer[0].groups; g++) {
        means m = take_means(&l, g);
        double *r = factor_of(&l, g, "R"), *s = factor_of(&l, g, "S");
        double *a = second_moment(m.a, m.n, m.d, 0.0), *p = second_moment(m.q, m.n, m.out, 0.0);
        const double ours = farness(&m, r, s), kfac = farness(&m, a, p);
        const double rounding = abar_device_dtype(l.dev) == ABAR_F64 ? 1e-12 : 1e-5;
        if (!(ours <= kfac + rounding * fabs(kfac))) fail_msg("draw %d, %d rounds: %g, KFAC %g", (int)seed, rounds, ours, kfac);
        /* equal norms, and S is the best partner of R: both hold after any number of rounds */
        double *best = partner(m.n, m.a, m.d, r, m.q, m.out);
        const double rr = square(r, m.d * m.d);
        for (int64_t i = 0; i < m.out * m.out; i++) best[i] /= rr;
        lab_check(&l, "S, the partner of R", s, best, m.out * m.out, 1e-10, 1e-4);
        assert_true(fabs(rr - square(s, m.out * m.out)) <= 10.0 * rounding * rr);
        free(best);
        free(r);
        free(s);
        free(a);
        free(p);
        drop_means(&m);
    }
    lab_close(&l);
}

static void kpsvd_is_never_farther_than_kfac(void **state)
{
    for (uint64_t seed = 1; seed <= 24; seed++)
        for (int rounds = 1; rounds <= 3; rounds++) check_nearest(*state, seed, rounds);
}

/* A fixed point of the iteration is a singular triple; that it has the largest value, that it is not farther than any of a
 * number of other products says. */
static void kpsvd_converges_to_the_leading_triple(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 3, .out = 2, .bias = true};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        lab l;
        lab_open(&l, *state, NULL, &shape, 1, 6, seed);
        lab_optimizer(&l, "kpsvd", EVERY_STEP "stat-decay=0 kpsvd-rounds=1000");
        lab_new_batch(&l);
        lab_observed_step(&l);
        means m = take_means(&l, 0);
        double *r = factor_of(&l, 0, "R"), *s = factor_of(&l, 0, "S"), *best = partner(m.n, m.q, m.out, s, m.a, m.d);
        const double ss = square(s, m.out * m.out), ours = farness(&m, r, s);
        for (int64_t i = 0; i < m.d * m.d; i++) best[i] /= ss;
        lab_check(&l, "R, the partner of S", r, best, m.d * m.d, 1e-9, 1e-4);
        for (int64_t n = 0; n < m.n; n++) { /* begun from each example instead */
            double *x = second_moment(m.q + n * m.out, 1, m.out, 0.0), *y = partner(m.n, m.q, m.out, x, m.a, m.d);
            const double xx = square(x, m.out * m.out);
            for (int64_t i = 0; i < m.d * m.d; i++) y[i] /= xx;
            assert_true(ours <= farness(&m, y, x) + 1e-4 * fabs(ours));
            free(x);
            free(y);
        }
        free(r);
        free(s);
        free(best);
        drop_means(&m);
        lab_close(&l);
    }
}

/* Factor (n, n) of a second term. */
static double *second_of(lab *l, const char *name, int64_t n)
{
    lab_state s;
    lab_state_take(l, &s);
    const abar_tensor *t = lab_state_find(&s, "curvature.map.%s", name);
    assert_non_null(t);
    double *m = calloc((size_t)(n * n), sizeof *m);
    for (int64_t i = 0; i < n * n; i++) m[i] = lab_get(t, i);
    lab_state_drop(&s);
    return m;
}

/* Iterated to the end both terms are singular triples of one matrix: P is orthogonal to R and Q to S, each is the other's best
 * partner, and the sum is nearer than the first alone by the square of the second value. */
static void kpsvd_second_term_is_the_next_triple(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 3, .out = 2, .bias = true};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        lab l;
        lab_open(&l, *state, NULL, &shape, 1, 6, seed);
        lab_optimizer(&l, "kpsvd", EVERY_STEP "stat-decay=0 kpsvd-rounds=1000 kpsvd-terms=2");
        lab_new_batch(&l);
        lab_observed_step(&l);
        means m = take_means(&l, 0);
        const int64_t dd = m.d * m.d, oo = m.out * m.out;
        double *r = factor_of(&l, 0, "R"), *s = factor_of(&l, 0, "S"), *p = second_of(&l, "P", m.d),
               *q = second_of(&l, "Q", m.out);
        double *best = partner(m.n, m.a, m.d, p, m.q, m.out), inner_p = 0.0, inner_q = 0.0;
        const double pp = square(p, dd), rounding = abar_device_dtype(l.dev) == ABAR_F64 ? 1e-9 : 1e-4;
        for (int64_t i = 0; i < dd; i++) inner_p += r[i] * p[i];
        for (int64_t i = 0; i < oo; i++) inner_q += s[i] * q[i];
        for (int64_t i = 0; i < oo; i++) best[i] /= pp;
        assert_true(fabs(inner_p) <= rounding * square(r, dd) && fabs(inner_q) <= rounding * square(s, oo));
        lab_check(&l, "Q, the partner of P", q, best, oo, 1e-8, 1e-3);
        assert_true(pp > 0.0 && pp < square(r, dd));
        assert_true(fabs(farness(&m, p, q) + pp * pp) <= 10.0 * rounding * pp * pp);
        free(r);
        free(s);
        free(p);
        free(q);
        free(best);
        drop_means(&m);
        lab_close(&l);
    }
}

static void kpsvd_factors_are_positive_semidefinite(void **state)
{
    static const char *const names[] = {"R", "S"};
    for (uint64_t seed = 1; seed <= 12; seed++) {
        lab l;
        uint64_t noise = seed;
        lab_shape shape = lab_random_shape(&noise, "map", seed % 2);
        lab_open(&l, *state, NULL, &shape, 1, lab_pick(&noise, 1, 5), seed);
        lab_optimizer(&l, "kpsvd", EVERY_STEP);
        for (int k = 0; k < 2; k++) {
            lab_new_batch(&l);
            lab_observed_step(&l);
        }
        for (int i = 0; i < 2; i++) {
            const int64_t n = i ? l.layer[0].outputs : l.layer[0].columns;
            double *f = factor_of(&l, 0, names[i]), size = sqrt(square(f, n * n));
            for (int v = 0; v < 20; v++) { /* vT F v of random v */
                double *x = calloc((size_t)n, sizeof *x), sum = 0.0;
                for (int64_t j = 0; j < n; j++) x[j] = lab_draw(&l);
                for (int64_t j = 0; j < n * n; j++) sum += f[j] * x[j / n] * x[j % n];
                assert_true(sum >= -1e-5 * size * square(x, n));
                free(x);
            }
            free(f);
        }
        lab_close(&l);
    }
}

/* With one row for each example, and the same input in all of them, the product of the means is the nearest. */
static void check_equal_inputs(const char *device, const char *options)
{
    static const lab_shape shape = {.name = "map", .in = 5, .out = 4, .bias = true};
    lab ours, kfac;
    lab_open(&ours, device, NULL, &shape, 1, 6, 9);
    lab_open(&kfac, device, NULL, &shape, 1, 6, 9);
    lab_optimizer(&ours, "kpsvd", options);
    lab_optimizer(&kfac, "kfac", EVERY_STEP "stat-decay=0 damping=0.1 pgrad=per-example");
    for (int k = 0; k < 3; k++) {
        lab_new_batch(&ours);
        for (int64_t i = shape.in; i < abar_tensor_count(&ours.layer[0].x); i++)
            lab_set(&ours.layer[0].x, i, lab_get(&ours.layer[0].x, i - shape.in));
        lab_copy_batch(&ours, &kfac);
        lab_observed_step(&ours);
        lab_observed_step(&kfac);
        lab_check_same(&ours, &kfac, "equal inputs", 1e-10, 1e-4);
    }
    lab_close(&ours);
    lab_close(&kfac);
}

static void kpsvd_of_equal_inputs_is_kfac(void **state)
{
    check_equal_inputs(*state, EVERY_STEP "stat-decay=0 damping=0.1");
    check_equal_inputs(*state, EVERY_STEP "stat-decay=0 damping=0.1 kpsvd-terms=2"); /* the second is none */
}

/* p = 0, or a = 0 without a bias: there is no direction to be nearest to. Nothing is committed, and nothing is wrong. */
static void kpsvd_zero_factor_is_not_committed(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 5, .out = 4};
    for (int of_p = 0; of_p < 2; of_p++) {
        lab l;
        lab_open(&l, *state, NULL, &shape, 1, 6, 9);
        lab_optimizer(&l, "kpsvd", EVERY_STEP);
        for (int k = 0; k < 4; k++) {
            lab_new_batch(&l);
            if (k % 2 == 0) lab_fill(&l, of_p ? &l.layer[0].p : &l.layer[0].x, 0.0);
            lab_observed_step(&l);
            const abar_map_info info = lab_map(&l, "map", 0);
            assert_int_equal(info.commits, (k + 1) / 2);
            assert_int_equal(info.dropped, 0);
        }
        lab_close(&l);
    }
}

/* Batches whose gradients have no output in common: the last S makes R zero, and the iteration begins anew. */
static void kpsvd_start_that_knows_nothing_of_the_batch_is_replaced(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 5, .out = 2};
    lab l;
    lab_open(&l, *state, NULL, &shape, 1, 6, 9);
    lab_optimizer(&l, "kpsvd", EVERY_STEP "stat-decay=0");
    for (int k = 0; k < 4; k++) {
        lab_new_batch(&l);
        for (int64_t i = 0; i < abar_tensor_count(&l.layer[0].p); i++)
            if (i % 2 != k % 2) lab_set(&l.layer[0].p, i, 0.0);
        lab_observed_step(&l);
        assert_int_equal(lab_map(&l, "map", 0).commits, k + 1);
        double *s = factor_of(&l, 0, "S");
        assert_true(s[3 * (k % 2)] > 0.0 && s[3 * ((k + 1) % 2)] == 0.0);
        free(s);
    }
    lab_close(&l);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------------ */

static void more_examples_than_announced_are_refused(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 9, .out = 7};
    static const char *const methods[] = {"skfac", "kpsvd"};
    for (int i = 0; i < 2; i++) {
        lab l;
        lab_open(&l, *state, NULL, &shape, 1, 4, 9);
        lab_optimizer(&l, methods[i], EVERY_STEP);
        lab_new_batch(&l);
        lab_observe(&l);
        abar_layer more = {.input = l.layer[0].x, .output_grad = l.layer[0].p, .output_grad_scale = 1.0};
        assert_int_equal(abar_optim_observe(l.optim, 0, &more), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(l.ctx), "8 examples in a step"));
        lab_step(&l, 1.0); /* the first four are a batch */
        assert_int_equal(lab_map(&l, "map", 0).commits, 1);
        lab_close(&l);
    }
}

static void kpsvd_without_the_number_of_examples_is_refused(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 9, .out = 7};
    lab l;
    lab_request request;
    lab_open(&l, *state, NULL, &shape, 1, 4, 9);
    lab_request_make(&l, "kpsvd", "examples=0", &request);
    assert_int_equal(abar_optim_create(l.dev, &request.config, &l.optim), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(l.ctx), "set examples in abar_optim_config"));
    request.config.examples = -1;
    assert_int_equal(abar_optim_create(l.dev, &request.config, &l.optim), ABAR_E_ARGUMENT);
    lab_request_drop(&request);
    lab_close(&l);
}

/* After one round R is what the start is mapped to: the start has no part left for a second term, which would be rounding. */
static void kpsvd_two_terms_of_one_round_are_refused(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 9, .out = 7};
    lab l;
    lab_request request;
    lab_open(&l, *state, NULL, &shape, 1, 4, 9);
    lab_request_make(&l, "kpsvd", "kpsvd-rounds=1 kpsvd-terms=2", &request);
    assert_int_equal(abar_optim_create(l.dev, &request.config, &l.optim), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(l.ctx), "--kpsvd-rounds 1"));
    lab_request_drop(&request);
    lab_close(&l);
}

static void rows_are_not_exchanged_between_ranks(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 9, .out = 7};
    static const char *const cases[][2] = {{"skfac", ""}, {"kpsvd", ""}, {"skfac", "examples=0"}};
    for (int i = 0; i < 3; i++) {
        lab l;
        lab_open(&l, *state, NULL, &shape, 1, 4, 9);
        lab_optimizer(&l, cases[i][0], cases[i][1]);
        lab_new_batch(&l);
        lab_observe(&l);
        double *pending = calloc((size_t)abar_optim_pending_count(l.optim) + 1, sizeof *pending);
        const abar_status expected = i < 2 ? ABAR_E_UNSUPPORTED : ABAR_OK; /* dense sums add up */
        assert_int_equal(abar_optim_pending_read(l.optim, pending), expected);
        if (i < 2) assert_non_null(strstr(abar_context_error(l.ctx), "train in one process"));
        free(pending);
        lab_close(&l);
    }
}

/* As cuda: it has all but the stages of kept rows. */
static void device_without_the_stage_refuses_with_one_line(void **state)
{
    static const lab_shape shape = {.name = "map", .in = 9, .out = 7};
    static const char *const methods[] = {"skfac", "kpsvd"};
    for (int i = 0; i < 2; i++) {
        lab l;
        lab_request request;
        lab_open(&l, *state, NULL, &shape, 1, 4, 9);
        const abar_device_ops *const own = l.dev->ops;
        abar__stats_ops stats = *own->stats;
        abar_device_ops ops = *own;
        stats.example_means = NULL;
        ops.stats = &stats;
        ops.name = "other";
        l.dev->ops = &ops;
        lab_request_make(&l, methods[i], "", &request);
        char text[128];
        snprintf(text, sizeof text, "%s: not on other yet, use --device cpu", methods[i]);
        assert_int_equal(abar_optim_create(l.dev, &request.config, &l.optim), ABAR_E_UNSUPPORTED);
        assert_string_equal(abar_context_error(l.ctx), text);
        l.dev->ops = own;
        lab_request_drop(&request);
        lab_close(&l);
    }
}

int main(void)
{
    if (getenv("ABAR_TEST_DEVICE")) return 77; /* no other device has the stages */
    const struct CMUnitTest tests[] = {
        ON_BOTH(skfac_is_between_the_dense_inverses_of_its_batch),
        ON_BOTH(skfac_batch_that_shrinks_is_alone),
        ON_BOTH(skfac_refresh_uses_its_own_batch),
        ON_BOTH(skfac_singular_gram_matrix_is_damped),
        ON_BOTH(kpsvd_is_never_farther_than_kfac),
        ON_BOTH(kpsvd_converges_to_the_leading_triple),
        ON_BOTH(kpsvd_second_term_is_the_next_triple),
        ON_BOTH(kpsvd_factors_are_positive_semidefinite),
        ON_BOTH(kpsvd_of_equal_inputs_is_kfac),
        ON_BOTH(kpsvd_zero_factor_is_not_committed),
        ON_BOTH(kpsvd_start_that_knows_nothing_of_the_batch_is_replaced),
        ON_BOTH(more_examples_than_announced_are_refused),
        ON_BOTH(kpsvd_without_the_number_of_examples_is_refused),
        ON_BOTH(kpsvd_two_terms_of_one_round_are_refused),
        ON_BOTH(rows_are_not_exchanged_between_ranks),
        ON_BOTH(device_without_the_stage_refuses_with_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
