/* The methods by their definitions: inverses of explicit matrices against a dense solver, dampings and scales against their
 * formulas (methods.md sections 1, 4 to 7), on random shapes. */
#include "curvature_lab.h"

#define EVERY_STEP "tcov=1 tinv=1 "

static int64_t size_of(const lab_layer *y) { return y->outputs * y->columns; }

/* ---- averages by hand ----------------------------------------------------------------------------------------------- */

enum { MEAN_A, MEAN_P, A, T, MOMENTS };

/* Averages of a map over the batches so far: E[a], E[p], E[a aT] and E|a|^2, biased towards their beginning from 0. */
typedef struct moments {
    double *m[MOMENTS];
    int64_t n[MOMENTS];
} moments;

static moments make_moments(const lab_layer *y)
{
    moments s = {.n = {y->columns, y->outputs, y->columns * y->columns, 1}};
    for (int i = 0; i < MOMENTS; i++) s.m[i] = calloc((size_t)s.n[i], sizeof(double));
    return s;
}

static void drop_moments(moments *s)
{
    for (int i = 0; i < MOMENTS; i++) free(s->m[i]);
}

static void add_row(moments *s, const double *a, const double *p, double weight)
{
    for (int64_t i = 0; i < s->n[MEAN_A]; i++) {
        s->m[MEAN_A][i] += weight * a[i];
        s->m[T][0] += weight * a[i] * a[i];
        for (int64_t j = 0; j < s->n[MEAN_A]; j++) s->m[A][i * s->n[MEAN_A] + j] += weight * a[i] * a[j];
    }
    for (int64_t o = 0; o < s->n[MEAN_P]; o++) s->m[MEAN_P][o] += weight * p[o];
}

static void add_batch(const lab *l, int64_t group, double beta, moments *s)
{
    const lab_layer *y = &l->layer[0];
    const int64_t rows = l->examples * y->rows;
    double *a = lab_rows(l, 0, group), *p = lab_row_grads(l, 0, group);
    for (int i = 0; i < MOMENTS; i++)
        for (int64_t k = 0; k < s->n[i]; k++) s->m[i][k] *= beta;
    for (int64_t r = 0; r < rows; r++) add_row(s, a + r * y->columns, p + r * y->outputs, (1.0 - beta) / (double)rows);
    free(a);
    free(p);
}

static double square_norm(const double *x, int64_t n, double scale)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += scale * scale * x[i] * x[i];
    return sum;
}

/* ---- inverses ------------------------------------------------------------------------------------------------------------ */

/* G M^-1 for M (d, d). Takes M. */
static double *divided(const lab *l, int64_t group, double *m)
{
    const lab_layer *y = &l->layer[0];
    const int64_t d = y->columns, out = y->outputs;
    double *b = calloc((size_t)(d * out), sizeof *b), *g = lab_gradient(l, 0, group);
    for (int64_t i = 0; i < d * out; i++) b[i % d * out + i / d] = g[i];
    lab_solve(d, m, out, b);
    for (int64_t i = 0; i < d * out; i++) g[i] = b[i % d * out + i / d];
    free(m);
    free(b);
    return g;
}

/* MAC, coupled: M = a aT + rho I. FOOF: M = A + rho I. */
static double *by_rows(const lab *l, int64_t group, const moments *s, double unbias, double rho, bool full)
{
    const int64_t d = s->n[MEAN_A];
    double *m = calloc((size_t)(d * d), sizeof *m);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < d; j++)
            m[i * d + j] = (full ? unbias * s->m[A][i * d + j] : unbias * unbias * s->m[MEAN_A][i] * s->m[MEAN_A][j]) +
                           (i == j ? rho : 0.0);
    return divided(l, group, m);
}

/* Eva: (v vT + rho I)^-1 vec(G), v = vec(p aT). */
static double *by_outer_product(const lab *l, int64_t group, const moments *s, double unbias, double rho)
{
    const int64_t d = s->n[MEAN_A], n = d * s->n[MEAN_P];
    double *m = calloc((size_t)(n * n), sizeof *m), *g = lab_gradient(l, 0, group);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            m[i * n + j] =
                pow(unbias, 4.0) * s->m[MEAN_P][i / d] * s->m[MEAN_A][i % d] * s->m[MEAN_P][j / d] * s->m[MEAN_A][j % d] +
                (i == j ? rho : 0.0);
    lab_solve(n, m, 1, g);
    free(m);
    return g;
}

static double *expected(const char *method, const lab *l, int64_t group, const moments *s, double unbias, double rho)
{
    if (strcmp(method, "eva") == 0) return by_outer_product(l, group, s, unbias, rho);
    return by_rows(l, group, s, unbias, rho, strcmp(method, "foof") == 0);
}

static void check_inverse(const char *device, const char *method, const char *options, uint64_t seed)
{
    lab l;
    const double beta = 0.7, rho = 0.05;
    char all[256];
    uint64_t noise = seed;
    lab_shape shape = lab_random_shape(&noise, "map", seed % 2);
    lab_open(&l, device, NULL, &shape, 1, lab_pick(&noise, 1, 5), seed);
    lab_optimizer(&l, method, lab_with(all, options, EVERY_STEP "damping=0.05 stat-decay=0.7"));
    const lab_layer *y = &l.layer[0];
    moments s[2];
    for (int64_t g = 0; g < y->groups; g++) s[g] = make_moments(y);
    for (int k = 0; k < 3; k++) {
        lab_new_batch(&l);
        lab_observed_step(&l);
        for (int64_t g = 0; g < y->groups; g++) {
            add_batch(&l, g, beta, &s[g]);
            double *right = expected(method, &l, g, &s[g], 1.0 / (1.0 - pow(beta, k + 1)), rho), *found = lab_taken(&l, 0, g);
            lab_check(&l, method, found, right, size_of(y), 1e-11, 1e-4);
            free(right);
            free(found);
        }
    }
    for (int64_t g = 0; g < y->groups; g++) drop_moments(&s[g]);
    lab_close(&l);
}

static void mac_coupled_is_a_dense_solve(void **state)
{
    for (uint64_t seed = 1; seed <= 24; seed++) check_inverse(*state, "mac", "damping-form=coupled", seed);
}

static void foof_is_a_dense_solve(void **state)
{
    for (uint64_t seed = 1; seed <= 24; seed++) check_inverse(*state, "foof", "", seed);
}

static void eva_is_a_dense_solve(void **state)
{
    for (uint64_t seed = 1; seed <= 24; seed++) check_inverse(*state, "eva", "kl-clip=0", seed);
}

/* ---- adaptive damping -------------------------------------------------------------------------------------------------------
 */

static bool is_near(const lab *l, double a, double b)
{
    return fabs(a - b) <= (abar_device_dtype(l->dev) == ABAR_F64 ? 1e-12 : 1e-5) * fabs(b);
}

static double least_share(const lab *l) { return abar_device_dtype(l->dev) == ABAR_F64 ? 1e-8 : 1e-5; }

/* rho d + |a|^2 = E|a|^2; where all rows are equal, the least share of it that the precision allows. */
static void mac_adaptive_damping_matches_the_trace(void **state)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        lab l;
        uint64_t noise = seed;
        lab_shape shape = lab_random_shape(&noise, "map", seed % 2);
        const bool equal = seed % 4 == 0;
        if (equal) shape.image[0] = shape.image[1] = 0;
        lab_open(&l, *state, NULL, &shape, 1, equal ? 1 : 4, seed);
        lab_optimizer(&l, seed % 3 ? "mac" : "smac", EVERY_STEP "damping=adaptive stat-decay=0.7");
        const lab_layer *y = &l.layer[0];
        moments s[2];
        for (int64_t g = 0; g < y->groups; g++) s[g] = make_moments(y);
        for (int k = 0; k < 3; k++) {
            lab_new_batch(&l);
            if (equal) lab_fill(&l, &y->x, 0.0);
            for (int64_t i = 0; equal && i < abar_tensor_count(&y->x); i++)
                lab_set(&y->x, i, 0.5 + 0.25 * (double)(i % shape.in % 3));
            lab_observed_step(&l);
            for (int64_t g = 0; g < y->groups; g++) {
                add_batch(&l, g, 0.7, &s[g]);
                const double unbias = 1.0 / (1.0 - pow(0.7, k + 1)), t = unbias * s[g].m[T][0];
                const double square = square_norm(s[g].m[MEAN_A], y->columns, unbias), d = (double)y->columns;
                const abar_map_info info = lab_map(&l, "map", g);
                assert_true(is_near(&l, info.mean_square, square));
                if (equal) /* rounding alone is left of the difference */
                    assert_true(is_near(&l, info.damping, least_share(&l) * t / d));
                else
                    assert_true(is_near(&l, d * info.damping + square, t) && info.damping > 0.0);
            }
        }
        for (int64_t g = 0; g < y->groups; g++) drop_moments(&s[g]);
        lab_close(&l);
    }
}

static const lab_shape equal_shapes[] = {
    {.name = "vectors", .in = 37, .out = 3, .bias = true},
    {.name = "tokens", .in = 5, .out = 2, .tokens = 23},
    {.name = "pixels", .in = 17, .out = 2, .image = {9, 11}, .window = {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {.name = "many", .in = 3, .out = 2, .image = {64, 61}, .window = {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {.name = "patches", .in = 3, .out = 2, .bias = true, .image = {16, 12}, .window = {{2, 3}, {2, 3}, {0, 0}, {1, 1}, 1}},
};
enum { EQUAL_SHAPES = sizeof equal_shapes / sizeof *equal_shapes };

/* Every row of the batch the same, made of numbers whose sums round. */
static void make_rows_equal(lab *l)
{
    for (int i = 0; i < l->n; i++) {
        const lab_layer *y = &l->layer[i];
        const int64_t *dim = y->x.dim, *kernel = y->shape.window.kernel;
        for (int64_t k = 0; k < abar_tensor_count(&y->x); k++) {
            int64_t place = k % y->shape.in;
            if (y->x.ndim == 4) {
                const int64_t column = k % dim[3], row = k / dim[3] % dim[2], channel = k / (dim[2] * dim[3]) % dim[1];
                place = (channel * kernel[0] + row % kernel[0]) * kernel[1] + column % kernel[1];
            }
            lab_set(&y->x, k, (double)(float)(1.0 / (3.0 + (double)place)));
        }
    }
}

/* G (a aT + rho I)^-1, a row of the batch and rho the least. The part of G along a counts fully, but the inverse damps it by
 * |a|^2 / rho: what is left is across a, and large. */
static void check_least_damping(const lab *l, int layer)
{
    const lab_layer *y = &l->layer[layer];
    const int64_t d = y->columns;
    double *a = lab_rows(l, layer, 0), *expected = lab_gradient(l, layer, 0), *taken = lab_taken(l, layer, 0), square = 0.0;
    for (int64_t k = 0; k < d; k++) square += a[k] * a[k];
    const double rho = least_share(l) * square / (double)d;
    for (int64_t o = 0; o < y->outputs; o++) {
        double inner = 0.0;
        for (int64_t k = 0; k < d; k++) inner += expected[o * d + k] * a[k];
        for (int64_t k = 0; k < d; k++) expected[o * d + k] = (expected[o * d + k] - inner * a[k] / (rho + square)) / rho;
    }
    lab_check(l, y->shape.name, taken, expected, y->outputs * d, 1e-6, 1e-4);
    free(a);
    free(expected);
    free(taken);
}

static void mac_coupled_adaptive_on_equal_rows_divides_by_the_least_damping(void **state)
{
    for (int64_t examples = 1; examples <= 50; examples = 6 * examples + 1) {
        for (lab_layout lie = LAB_DENSE; lie < LAB_LAYOUTS; lie++) {
            lab l;
            lab_open(&l, *state, NULL, equal_shapes, EQUAL_SHAPES, examples, 3);
            l.lie = lie;
            lab_optimizer(&l, "mac", EVERY_STEP "damping=adaptive damping-form=coupled stat-decay=0.7");
            for (int k = 0; k < 2; k++) {
                lab_new_batch(&l);
                make_rows_equal(&l);
                lab_observed_step(&l);
                for (int i = 0; i < EQUAL_SHAPES; i++) check_least_damping(&l, i);
            }
            lab_close(&l);
        }
    }
}

/* ---- KFAC's rows
 * -------------------------------------------------------------------------------------------------------------- */

/* reduce: every example's mean row, and its mean p (under per-example scale their sum), of a layer on vectors. */
static void to_means(const lab *rows, lab *vectors, bool per_example)
{
    const lab_layer *y = &rows->layer[0], *v = &vectors->layer[0];
    const int64_t r = y->rows, in = y->shape.in, out = y->shape.out;
    for (int64_t i = 0; i < vectors->examples * in; i++) {
        double sum = 0.0;
        for (int64_t t = 0; t < r; t++) sum += lab_get(&y->x, (i / in * r + t) * in + i % in);
        lab_set(&v->x, i, sum / (double)r);
    }
    for (int64_t i = 0; i < vectors->examples * out; i++) {
        double sum = 0.0;
        for (int64_t t = 0; t < r; t++) sum += lab_get(&y->p, (i / out * r + t) * out + i % out);
        lab_set(&v->p, i, per_example ? sum : sum / (double)r);
    }
}

/* expand: every row an example, P = R E[p pT]; there are R times as many examples then for per-example scale to multiply by. */
static void to_examples(const lab *rows, lab *vectors, bool per_example)
{
    const lab_layer *y = &rows->layer[0], *v = &vectors->layer[0];
    const double r = (double)y->rows;
    memcpy(v->x.data, y->x.data, abar_tensor_bytes(&y->x));
    for (int64_t i = 0; i < abar_tensor_count(&y->p); i++)
        lab_set(&v->p, i, lab_get(&y->p, i) * (per_example ? 1.0 / sqrt(r) : sqrt(r)));
}

static void check_rows(const char *device, bool expand, bool per_example, const char *inverse)
{
    lab rows, vectors;
    char options[128];
    lab_shape shape = {.name = "map", .in = 5, .out = 4, .bias = true, .tokens = 3};
    lab_open(&rows, device, NULL, &shape, 1, 6, 8);
    shape.tokens = 0;
    lab_open(&vectors, device, NULL, &shape, 1, expand ? 18 : 6, 8);
    snprintf(options, sizeof options, EVERY_STEP "damping=0.05 kl-clip=0 kfac=%s pgrad=%s kfac-inverse=%s",
             expand ? "expand" : "reduce", per_example ? "per-example" : "batch-mean", inverse);
    lab_optimizer(&rows, "kfac", options);
    lab_optimizer(&vectors, "kfac", options);
    for (int k = 0; k < 2; k++) {
        lab_new_batch(&rows);
        lab_new_batch(&vectors);
        (expand ? to_examples : to_means)(&rows, &vectors, per_example);
        memcpy(vectors.layer[0].gw.data, rows.layer[0].gw.data, abar_tensor_bytes(&rows.layer[0].gw));
        memcpy(vectors.layer[0].gb.data, rows.layer[0].gb.data, abar_tensor_bytes(&rows.layer[0].gb));
        lab_observed_step(&rows);
        lab_observed_step(&vectors);
        lab_check_same(&rows, &vectors, options, 1e-11, 1e-4);
    }
    lab_close(&rows);
    lab_close(&vectors);
}

static void kfac_reduce_sees_the_means_of_examples(void **state)
{
    for (int i = 0; i < 4; i++) check_rows(*state, false, i % 2, i / 2 ? "eigen" : "cholesky");
}

static void kfac_expand_sees_every_row(void **state)
{
    for (int i = 0; i < 4; i++) check_rows(*state, true, i % 2, i / 2 ? "eigen" : "cholesky");
}

/* pi shares the damping out: activations s times as large with gradients s times as small are the same step. */
static void kfac_does_not_depend_on_which_factor_is_large(void **state)
{
    const lab_shape shape = {.name = "map", .in = 5, .out = 4, .tokens = 2};
    for (int i = 0; i < 4; i++) {
        lab even, odd;
        char options[128];
        snprintf(options, sizeof options, EVERY_STEP "damping=0.05 kl-clip=0 kfac=%s kfac-inverse=%s",
                 i % 2 ? "expand" : "reduce", i / 2 ? "eigen" : "cholesky");
        lab_open(&even, *state, NULL, &shape, 1, 6, 8);
        lab_open(&odd, *state, NULL, &shape, 1, 6, 8);
        lab_optimizer(&even, "kfac", options);
        lab_optimizer(&odd, "kfac", options);
        lab_new_batch(&even);
        lab_copy_batch(&even, &odd);
        const lab_layer *y = &odd.layer[0];
        for (int64_t k = 0; k < abar_tensor_count(&y->x); k++) lab_set(&y->x, k, 16.0 * lab_get(&y->x, k));
        for (int64_t k = 0; k < abar_tensor_count(&y->p); k++) lab_set(&y->p, k, lab_get(&y->p, k) / 16.0);
        lab_observed_step(&even);
        lab_observed_step(&odd);
        lab_check_same(&odd, &even, options, 1e-11, 1e-4);
        lab_close(&even);
        lab_close(&odd);
    }
}

/* ---- LNGD ------------------------------------------------------------------------------------------------------------------
 */

/* With one row per example the elements of Psi add up to 1: its numerator's do to its denominator. */
static void lngd_diagonal_adds_up_to_one(void **state)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        lab l;
        lab_state s;
        const lab_shape shape = {.name = "map", .in = 3 + (int64_t)seed, .out = 4, .bias = seed % 2};
        lab_open(&l, *state, NULL, &shape, 1, 5, seed);
        lab_optimizer(&l, "lngd", seed % 3 ? EVERY_STEP : EVERY_STEP "pgrad=per-example");
        for (int k = 0; k < 3; k++) {
            lab_new_batch(&l);
            lab_observed_step(&l);
        }
        lab_state_take(&l, &s);
        const abar_tensor *psi = lab_state_find(&s, "curvature.map.average.Psi");
        double sum = 0.0, denominator = lab_get(lab_state_find(&s, "curvature.map.numbers"), 0);
        for (int64_t o = 0; o < 4; o++) sum += lab_get(psi, o);
        assert_true(sum > 0.0 && is_near(&l, sum, denominator));
        lab_state_drop(&s);
        lab_close(&l);
    }
}

/* Ĝ = c V with c = <V, G> / (<V, G>^2 + mu): so <Ĝ, G> = q / (q + mu), q = <V, G>^2. With mu from tiny to great it goes from 1
 * to 0. */
static void lngd_step_has_unit_length_in_its_metric(void **state)
{
    static const char *const mus[] = {"1e-20", "1e20"};
    for (int i = 0; i < 2; i++) {
        lab l;
        const lab_shape shape = {.name = "map", .in = 4, .out = 3, .bias = true, .tokens = 2};
        char options[64];
        lab_open(&l, *state, NULL, &shape, 1, 5, 3);
        snprintf(options, sizeof options, EVERY_STEP "mu=%s", mus[i]);
        lab_optimizer(&l, "lngd", options);
        lab_new_batch(&l);
        lab_observed_step(&l);
        double *a = lab_taken(&l, 0, 0), *g = lab_gradient(&l, 0, 0), inner = 0.0;
        for (int64_t k = 0; k < size_of(&l.layer[0]); k++) inner += a[k] * g[k];
        assert_true(i == 0 ? fabs(inner - 1.0) <= 1e-5 : fabs(inner) <= 1e-5);
        free(a);
        free(g);
        lab_close(&l);
    }
}

/* ---- the KL clip
 * ------------------------------------------------------------------------------------------------------------- */

static const lab_shape several[] = {{.name = "a", .in = 4, .out = 3, .bias = true},
                                    {.name = "b", .in = 3, .out = 2, .tokens = 2}};

/* <Ĝ, G> over all maps, as they were taken off. */
static double total_inner(const lab *l)
{
    double sum = 0.0;
    for (int i = 0; i < l->n; i++) {
        double *a = lab_taken(l, i, 0), *g = lab_gradient(l, i, 0);
        for (int64_t k = 0; k < size_of(&l->layer[i]); k++) sum += a[k] * g[k];
        free(a);
        free(g);
    }
    return sum;
}

static void check_clip(const char *device, const char *method, const char *options, double size)
{
    char all[256];
    lab free_lab, clipped;
    const double kappa = 0.01, lr = 0.5;
    lab_open(&free_lab, device, NULL, several, 2, 6, 4);
    lab_open(&clipped, device, NULL, several, 2, 6, 4);
    lab_optimizer(&free_lab, method, lab_with(all, options, EVERY_STEP "kl-clip=0 base-lr=0.5"));
    lab_optimizer(&clipped, method, lab_with(all, options, EVERY_STEP "kl-clip=0.01 base-lr=0.5"));
    lab_new_batch(&free_lab);
    for (int i = 0; i < 2; i++) {
        lab_fill(&free_lab, &free_lab.layer[i].gw, size);
        if (several[i].bias) lab_fill(&free_lab, &free_lab.layer[i].gb, size);
    }
    lab_copy_batch(&free_lab, &clipped);
    lab_observed_step(&free_lab);
    lab_observed_step(&clipped);
    const double sum = lr * lr * total_inner(&free_lab), scale = sum > 0.0 ? fmin(1.0, sqrt(kappa / sum)) : 1.0;
    assert_true(fabs(abar_optim_times(clipped.optim)->kl_scale - scale) <= 1e-4 * scale);
    assert_true(abar_optim_times(free_lab.optim)->kl_scale == 1.0);
    for (int i = 0; i < 2; i++) {
        double *a = lab_taken(&clipped, i, 0), *b = lab_taken(&free_lab, i, 0);
        for (int64_t k = 0; k < size_of(&clipped.layer[i]); k++) b[k] *= scale;
        lab_check(&clipped, method, a, b, size_of(&clipped.layer[i]), 1e-11, 1e-4);
        free(a);
        free(b);
    }
    lab_close(&free_lab);
    lab_close(&clipped);
}

static void kl_clip_bounds_long_steps_and_leaves_short_ones(void **state)
{
    static const double sizes[] = {100.0, 1.0, 1e-3, 0.0};
    static const char *const cases[][2] = {{"mac", "damping=0.1"},
                                           {"mac", "damping=0.1 damping-form=coupled"},
                                           {"smac", "damping=0.1 pgrad=per-example"},
                                           {"foof", "damping=0.1"},
                                           {"kfac", "damping=0.1"},
                                           {"kfac", "damping=0.1 kfac-inverse=eigen"},
                                           {"eva", "damping=0.1"},
                                           {"lngd", ""}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int i = 0; i < 4; i++) check_clip(*state, cases[c][0], cases[c][1], sizes[i]);
}

/* A map whose first statistics were dropped is neither in the sum nor scaled. */
static void kl_clip_leaves_maps_without_a_refresh_alone(void **state)
{
    for (int i = 0; lab_methods[i]; i++) {
        lab both, one;
        const char *method = lab_methods[i], *options = EVERY_STEP "kl-clip=1e-6 base-lr=0.5";
        lab_open(&both, *state, NULL, several, 2, 6, 4);
        lab_open(&one, *state, NULL, several, 1, 6, 4);
        lab_optimizer(&both, method, options);
        lab_optimizer(&one, method, options);
        lab_new_batch(&one);
        lab_new_batch(&both);
        lab_copy(&one.layer[0].x, &both.layer[0].x);
        lab_copy(&one.layer[0].p, &both.layer[0].p);
        lab_copy(&one.layer[0].gw, &both.layer[0].gw);
        if (several[0].bias) lab_copy(&one.layer[0].gb, &both.layer[0].gb);
        lab_set(&both.layer[1].x, 0, (double)NAN);
        lab_observed_step(&both);
        lab_observed_step(&one);
        const double scale = abar_optim_times(both.optim)->kl_scale;
        assert_true(scale < 1.0 && scale == abar_optim_times(one.optim)->kl_scale);
        double *taken = lab_taken(&both, 1, 0), *gradient = lab_gradient(&both, 1, 0);
        lab_check(&both, method, taken, gradient, size_of(&both.layer[1]), 0.0, 1e-7);
        free(taken);
        free(gradient);
        lab_close(&both);
        lab_close(&one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(mac_coupled_is_a_dense_solve),
        ON_BOTH(foof_is_a_dense_solve),
        ON_BOTH(eva_is_a_dense_solve),
        ON_BOTH(mac_adaptive_damping_matches_the_trace),
        ON_BOTH(mac_coupled_adaptive_on_equal_rows_divides_by_the_least_damping),
        ON_BOTH(kfac_reduce_sees_the_means_of_examples),
        ON_BOTH(kfac_expand_sees_every_row),
        ON_BOTH(kfac_does_not_depend_on_which_factor_is_large),
        ON_BOTH(lngd_diagonal_adds_up_to_one),
        ON_BOTH(lngd_step_has_unit_length_in_its_metric),
        ON_BOTH(kl_clip_bounds_long_steps_and_leaves_short_ones),
        ON_BOTH(kl_clip_leaves_maps_without_a_refresh_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
