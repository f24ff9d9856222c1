/* Exact natural gradient (optimizers.md section 9): the Gram form against a dense solve with F as a matrix, and the identities
 * that follow from the formula, on layers of every kind. */
#include "curvature_lab.h"

/* F by its rows, and the gradient: all maps one after the other, or one of them. */
typedef struct dense {
    int64_t size, m;
    double *rows; /* (m, size), each times the root of its weight */
    double *g;    /* (size) */
} dense;

enum { ROWS_MAX = 64, ALL = -1 };

static int64_t map_size(const lab_layer *y) { return y->outputs * y->columns; }

/* Where the maps of a layer begin; only: the layer that counts. */
static int64_t size_before(const lab *l, int layer, int only)
{
    int64_t size = 0;
    for (int i = 0; i < layer; i++)
        if (only == ALL || only == i) size += l->layer[i].groups * map_size(&l->layer[i]);
    return size;
}

static dense dense_make(const lab *l, int only)
{
    dense d = {.size = size_before(l, l->n, only)};
    d.rows = calloc((size_t)(ROWS_MAX * d.size), sizeof *d.rows);
    d.g = calloc((size_t)d.size, sizeof *d.g);
    for (int i = 0; i < l->n; i++)
        for (int64_t g = 0; g < l->layer[i].groups && (only == ALL || only == i); g++) {
            double *own = lab_gradient(l, i, g);
            memcpy(d.g + size_before(l, i, only) + g * map_size(&l->layer[i]), own,
                   (size_t)map_size(&l->layer[i]) * sizeof *own);
            free(own);
        }
    return d;
}

static void dense_drop(dense *d)
{
    free(d->rows);
    free(d->g);
}

/* Adds the rows of the batch as it is now: root of the weight, times B, times the sum over rows of p aT. */
static void dense_add(const lab *l, int only, double weight, dense *d)
{
    const double scale = sqrt(weight) * (double)l->examples;
    assert_true(d->m + l->examples <= ROWS_MAX);
    for (int i = 0; i < l->n; i++) {
        const lab_layer *y = &l->layer[i];
        for (int64_t group = 0; group < y->groups && (only == ALL || only == i); group++) {
            double *a = lab_rows(l, i, group), *p = lab_row_grads(l, i, group);
            const int64_t at = size_before(l, i, only) + group * map_size(y);
            for (int64_t r = 0; r < l->examples * y->rows; r++)
                for (int64_t e = 0; e < map_size(y); e++)
                    d->rows[(d->m + r / y->rows) * d->size + at + e] +=
                        scale * p[r * y->outputs + e / y->columns] * a[r * y->columns + e % y->columns];
            free(a);
            free(p);
        }
    }
    d->m += l->examples;
}

/* g becomes (F + rho I)^-1 g. */
static void dense_solve(dense *d, double rho)
{
    double *f = calloc((size_t)(d->size * d->size), sizeof *f);
    for (int64_t i = 0; i < d->size; i++)
        for (int64_t j = 0; j < d->size; j++) {
            for (int64_t m = 0; m < d->m; m++) f[i * d->size + j] += d->rows[m * d->size + i] * d->rows[m * d->size + j];
            if (i == j) f[i * d->size + j] += rho;
        }
    lab_solve(d->size, f, 1, d->g);
    free(f);
}

static void check_taken(const lab *l, int only, const dense *d, const char *what, double exact, double rounded)
{
    double *taken = calloc((size_t)d->size, sizeof *taken);
    for (int i = 0; i < l->n; i++)
        for (int64_t g = 0; g < l->layer[i].groups && (only == ALL || only == i); g++) {
            double *own = lab_taken(l, i, g);
            memcpy(taken + size_before(l, i, only) + g * map_size(&l->layer[i]), own,
                   (size_t)map_size(&l->layer[i]) * sizeof *own);
            free(own);
        }
    lab_check(l, what, taken, d->g, d->size, exact, rounded);
    free(taken);
}

/* The gradient becomes that of the batch: the sum over all rows of p aT. */
static void own_gradient(lab *l)
{
    for (int i = 0; i < l->n; i++) {
        lab_layer *y = &l->layer[i];
        const int64_t in = y->columns - (y->shape.bias ? 1 : 0);
        for (int64_t group = 0; group < y->groups; group++) {
            double *a = lab_rows(l, i, group), *p = lab_row_grads(l, i, group);
            for (int64_t e = 0; e < map_size(y); e++) {
                const int64_t o = e / y->columns, k = e % y->columns, row = group * y->outputs + o;
                double sum = 0.0;
                for (int64_t r = 0; r < l->examples * y->rows; r++) sum += p[r * y->outputs + o] * a[r * y->columns + k];
                lab_set(k < in ? &y->gw : &y->gb, k < in ? row * in + k : row, sum);
            }
            free(a);
            free(p);
        }
    }
}

static void draw_grads(lab *l, double scale)
{
    for (int i = 0; i < l->n; i++) lab_fill(l, &l->layer[i].p, scale);
}

/* Output gradients of a size that leaves K well conditioned. */
static void draw(lab *l)
{
    lab_new_batch(l);
    draw_grads(l, 0.25 / (double)l->examples);
    own_gradient(l);
}

static const lab_shape kinds[] = {
    {.name = "fc", .in = 4, .out = 3, .bias = true},
    {.name = "seq", .in = 3, .out = 2, .tokens = 4, .bias = true},
    {.name = "image",
     .in = 4,
     .out = 4,
     .image = {5, 4},
     .window = {.kernel = {3, 2}, .stride = {2, 1}, .pad = {1, 0}, .dilation = {1, 1}, .groups = 2}},
    {.name = "out", .in = 3, .out = 2},
};

static void with_labels_of_the_data_equals_the_dense_solve(void **state)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        uint64_t noise = seed;
        lab_shape shapes[3];
        static const char *const names[] = {"a", "b", "c"};
        for (int i = 0; i < 3; i++) shapes[i] = lab_random_shape(&noise, names[i], lab_pick(&noise, 0, 1) == 1);
        lab l;
        lab_open(&l, *state, NULL, shapes, 3, 5, seed);
        l.lie = (lab_layout)(seed % LAB_LAYOUTS);
        lab_optimizer(&l, "ngd", "damping=0.2");
        draw(&l);
        dense d = dense_make(&l, ALL);
        dense_add(&l, ALL, 1.0 / 5.0, &d);
        dense_solve(&d, 0.2);
        lab_observed_step(&l);
        check_taken(&l, ALL, &d, "all maps together", 1e-10, 1e-5);
        dense_drop(&d);
        lab_close(&l);
    }
}

static void by_layers_each_map_has_its_own_matrix(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, kinds, 4, 6, 3);
    lab_optimizer(&l, "ngd", "damping=0.2 fisher-blocks=layer");
    draw(&l);
    for (int only = 0; only < 4; only++) {
        if (l.layer[only].groups > 1) continue; /* a matrix for each group */
        dense d = dense_make(&l, only);
        dense_add(&l, only, 1.0 / 6.0, &d);
        dense_solve(&d, 0.2);
        lab_clear_weights(&l);
        lab_observed_step(&l);
        check_taken(&l, only, &d, kinds[only].name, 1e-10, 1e-5);
        dense_drop(&d);
    }
    lab_close(&l);
}

/* Rows of further passes, and a gradient that is not made of them. */
static void with_other_labels_equals_the_dense_solve(void **state)
{
    static const struct {
        const char *options;
        int64_t passes;
        double weight; /* times B */
    } cases[] = {{"damping=0.3 fisher=mc:1", 1, 1.0},
                 {"damping=0.3 fisher=mc:4", 4, 0.25},
                 {"damping=0.3 fisher=exact classes=3", 3, 1.0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        lab l;
        lab_open(&l, *state, NULL, kinds, 4, 6, 10 + c);
        lab_optimizer(&l, "ngd", cases[c].options);
        assert_int_equal(abar_optim_row_passes(l.optim), cases[c].passes);
        assert_int_equal(abar_optim_draws_rows(l.optim), c < 2);
        assert_int_equal(abar_optim_extra(l.optim), ABAR_EXTRA_ROWS);
        draw(&l);
        assert_false(abar_optim_observes(l.optim));
        lab_observe(&l); /* the batch's own are not asked for */
        dense d = dense_make(&l, ALL);
        for (int64_t i = 0; i < cases[c].passes; i++) {
            draw_grads(&l, 0.25 / 6.0);
            NEED(&l, abar_optim_begin_rows(l.optim, i));
            assert_true(abar_optim_observes(l.optim));
            lab_observe(&l);
            dense_add(&l, ALL, cases[c].weight / 6.0, &d);
        }
        dense_solve(&d, 0.3);
        lab_step(&l, 1.0);
        check_taken(&l, ALL, &d, cases[c].options, 1e-10, 2e-5);
        dense_drop(&d);
        lab_close(&l);
    }
}

/* The form without a division by rho is the general one, where the gradient is the mean of the rows. */
static void both_forms_agree(void **state)
{
    lab a, b;
    lab_open(&a, *state, NULL, kinds, 4, 6, 5);
    lab_open(&b, *state, NULL, kinds, 4, 6, 6);
    lab_optimizer(&a, "ngd", "damping=0.2");
    lab_optimizer(&b, "ngd", "damping=0.2 fisher=mc:1");
    draw(&a);
    lab_copy_batch(&a, &b);
    lab_observed_step(&a);
    NEED(&b, abar_optim_begin_rows(b.optim, 0));
    lab_observe(&b);
    lab_step(&b, 1.0);
    lab_check_same(&a, &b, "both forms", 1e-11, 2e-5);
    lab_close(&a);
    lab_close(&b);
}

static void large_damping_leaves_the_gradient(void **state)
{
    static const char *const options[] = {"damping=1e9", "damping=1e9 fisher=mc:1"};
    for (int i = 0; i < 2; i++) {
        lab l;
        lab_open(&l, *state, NULL, kinds, 4, 6, 8);
        lab_optimizer(&l, "ngd", options[i]);
        draw(&l);
        if (i == 1) NEED(&l, abar_optim_begin_rows(l.optim, 0));
        lab_observe(&l);
        lab_step(&l, 1e9);
        dense d = dense_make(&l, ALL);
        check_taken(&l, ALL, &d, options[i], 1e-7, 1e-5);
        dense_drop(&d);
        lab_close(&l);
    }
}

/* g / (rho + |g|^2) */
static void one_example_divides_by_the_square(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, kinds, 4, 1, 9);
    lab_optimizer(&l, "ngd", "damping=0.1");
    draw(&l);
    dense d = dense_make(&l, ALL);
    double square = 0.0;
    for (int64_t i = 0; i < d.size; i++) square += d.g[i] * d.g[i];
    for (int64_t i = 0; i < d.size; i++) d.g[i] /= 0.1 + square;
    lab_observed_step(&l);
    check_taken(&l, ALL, &d, "one example", 1e-12, 1e-5);
    dense_drop(&d);
    lab_close(&l);
}

static void one_map_is_the_same_by_layers(void **state)
{
    lab a, b;
    lab_open(&a, *state, NULL, kinds, 1, 6, 5);
    lab_open(&b, *state, NULL, kinds, 1, 6, 6);
    lab_optimizer(&a, "ngd", "");
    lab_optimizer(&b, "ngd", "fisher-blocks=layer");
    draw(&a);
    lab_copy_batch(&a, &b);
    lab_observed_step(&a);
    lab_observed_step(&b);
    lab_check_same(&a, &b, "one map", 0.0, 0.0);
    lab_close(&a);
    lab_close(&b);
}

/* The products of two vectors are those of their outer product: a layer on vectors is one on sequences of one token. */
static void products_of_vectors_are_those_of_gradients(void **state)
{
    const lab_shape vector = {.name = "x", .in = 5, .out = 4, .bias = true},
                    token = {.name = "x", .in = 5, .out = 4, .tokens = 1, .bias = true};
    lab a, b;
    lab_open(&a, *state, NULL, &vector, 1, 7, 5);
    lab_open(&b, *state, NULL, &token, 1, 7, 6);
    lab_optimizer(&a, "ngd", "damping=0.05");
    lab_optimizer(&b, "ngd", "damping=0.05");
    draw(&a);
    memcpy(b.layer[0].x.data, a.layer[0].x.data, abar_tensor_bytes(&a.layer[0].x));
    memcpy(b.layer[0].p.data, a.layer[0].p.data, abar_tensor_bytes(&a.layer[0].p));
    own_gradient(&b);
    lab_clear_weights(&b);
    lab_observed_step(&a);
    lab_observed_step(&b);
    assert_true(lab_map(&a, "x", 0).state_bytes < lab_map(&b, "x", 0).state_bytes);
    lab_check_same(&a, &b, "vectors and tokens", 1e-12, 1e-5);
    lab_close(&a);
    lab_close(&b);
}

/* Linear least squares |W a - t|^2 / 2: with a pass for each output, no damping and rate 1, a step from 0 is the solution. */
static void least_squares_are_solved_in_one_step(void **state)
{
    const lab_shape shape = {.name = "x", .in = 3, .out = 2, .bias = true};
    enum { N = 12, D = 4, OUT = 2 };
    double t[N][OUT], normal[D * D] = {0}, right[D * OUT] = {0};
    lab l;
    lab_open(&l, *state, NULL, &shape, 1, N, 3);
    lab_optimizer(&l, "ngd", "damping=1e-12 fisher=exact classes=2");
    lab_new_batch(&l);
    double *a = lab_rows(&l, 0, 0);
    for (int64_t n = 0; n < N; n++)
        for (int o = 0; o < OUT; o++) {
            t[n][o] = lab_draw(&l);
            lab_set(&l.layer[0].p, n * OUT + o, -t[n][o] / N); /* outputs are 0 */
            for (int i = 0; i < D; i++) right[i * OUT + o] += a[n * D + i] * t[n][o];
        }
    for (int64_t n = 0; n < N; n++)
        for (int i = 0; i < D; i++)
            for (int j = 0; j < D; j++) normal[i * D + j] += a[n * D + i] * a[n * D + j];
    lab_solve(D, normal, OUT, right);
    own_gradient(&l);
    for (int o = 0; o < OUT; o++) {
        for (int64_t i = 0; i < N * OUT; i++) lab_set(&l.layer[0].p, i, i % OUT == o ? 1.0 / N : 0.0);
        NEED(&l, abar_optim_begin_rows(l.optim, o));
        lab_observe(&l);
    }
    lab_step(&l, 1.0);
    double *taken = lab_taken(&l, 0, 0), wanted[OUT * D];
    for (int i = 0; i < OUT * D; i++) wanted[i] = -right[i % D * OUT + i / D];
    lab_check(&l, "least squares", taken, wanted, OUT * D, 1e-4, 1e9); /* g is known to 1e-16 / rho */
    free(taken);
    free(a);
    lab_close(&l);
}

/* Of a linear network F is the product of A and P, which KFAC divides by in their eigenbases. One output: p is the same for all
 * examples. */
static void of_a_linear_network_it_is_kfac(void **state)
{
    const lab_shape shape = {.name = "x", .in = 4, .out = 3, .bias = true};
    lab a, b;
    lab_open(&a, *state, NULL, &shape, 1, 6, 3);
    lab_open(&b, *state, NULL, &shape, 1, 6, 4);
    lab_optimizer(&a, "ngd", "damping=0.1 fisher=exact classes=1");
    lab_optimizer(&b, "kfac",
                  "damping=0.1 kfac=expand kfac-inverse=eigen pgrad=per-example kl-clip=0 tcov=1 tinv=1 stat-decay=0");
    lab_new_batch(&a);
    for (int64_t i = 3; i < 6 * 3; i++) lab_set(&a.layer[0].p, i, lab_get(&a.layer[0].p, i % 3));
    lab_copy_batch(&a, &b);
    NEED(&a, abar_optim_begin_rows(a.optim, 0));
    lab_observe(&a);
    lab_step(&a, 1.0);
    lab_observed_step(&b);
    lab_check_same(&a, &b, "A x P", 1e-9, 1e-4);
    lab_close(&a);
    lab_close(&b);
}

/* A batch of fewer examples than the optimizer has place for. */
static void smaller_batches_are_as_good(void **state)
{
    static const char *const options[] = {"damping=0.1", "damping=0.1 fisher=mc:2"};
    for (int i = 0; i < 2; i++) {
        lab a, b;
        lab_open(&a, *state, NULL, kinds, 4, 4, 3);
        lab_open(&b, *state, NULL, kinds, 4, 7, 4);
        lab_optimizer(&a, "ngd", options[i]);
        lab_optimizer(&b, "ngd", options[i]);
        draw(&a);
        for (int j = 0; j < a.n; j++) {
            memcpy(b.layer[j].x.data, a.layer[j].x.data, abar_tensor_bytes(&a.layer[j].x));
            memcpy(b.layer[j].gw.data, a.layer[j].gw.data, abar_tensor_bytes(&a.layer[j].gw));
            if (a.layer[j].gb.ndim) memcpy(b.layer[j].gb.data, a.layer[j].gb.data, abar_tensor_bytes(&a.layer[j].gb));
        }
        lab_clear_weights(&b);
        for (int64_t pass = 0; pass < 1 + i; pass++) {
            if (i == 1) NEED(&a, abar_optim_begin_rows(a.optim, pass));
            if (i == 1) NEED(&b, abar_optim_begin_rows(b.optim, pass));
            if (i == 1) draw_grads(&a, 0.1);
            for (int j = 0; j < a.n; j++) {
                memcpy(b.layer[j].p.data, a.layer[j].p.data, abar_tensor_bytes(&a.layer[j].p));
                lab_observe_layer(&b, j, 0, 4, 1.0, 1.0);
            }
            lab_observe(&a);
        }
        lab_step(&a, 1.0);
        lab_step(&b, 1.0);
        lab_check_same(&a, &b, options[i], 1e-13, 1e-6);
        lab_close(&a);
        lab_close(&b);
    }
}

static void step_with(lab *l, const abar_step_config *config)
{
    lab_load_gradients(l);
    NEED(l, abar_optim_step(l->optim, config, NULL));
}

static void scale_gradients(lab *l, double factor)
{
    for (int i = 0; i < l->n; i++) {
        const abar_tensor *const both[] = {&l->layer[i].gw, &l->layer[i].gb};
        for (int t = 0; t < 2; t++)
            for (int64_t k = 0; both[t]->ndim && k < abar_tensor_count(both[t]); k++)
                lab_set(both[t], k, factor * lab_get(both[t], k));
    }
}

/* Gradients of a scaled loss, and the scale undone at the step. */
static void loss_scales_cancel(void **state)
{
    static const char *const options[] = {"damping=0.1", "damping=0.1 fisher=mc:1"};
    for (int i = 0; i < 2; i++) {
        lab a, b;
        lab_open(&a, *state, NULL, kinds, 4, 5, 3);
        lab_open(&b, *state, NULL, kinds, 4, 5, 4);
        lab_optimizer(&a, "ngd", options[i]);
        lab_optimizer(&b, "ngd", options[i]);
        draw(&a);
        lab_copy_batch(&a, &b);
        scale_gradients(&b, 256.0);
        if (i == 1) NEED(&a, abar_optim_begin_rows(a.optim, 0));
        if (i == 1) NEED(&b, abar_optim_begin_rows(b.optim, 0));
        lab_observe(&a);
        for (int j = 0; j < b.n; j++) lab_observe_layer(&b, j, 0, 5, 256.0, 1.0);
        lab_step(&a, 1.0);
        step_with(&b, &(abar_step_config){
                          .size = sizeof(abar_step_config), .lr = 1.0, .grad_scale = 1.0 / 256, .observed_scale = 1.0 / 256});
        lab_check_same(&a, &b, options[i], 1e-13, 1e-6);
        lab_close(&a);
        lab_close(&b);
    }
}

static double norm_of(const double *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* Clipping acts on G, F stays; the KL clip bounds rate^2 <G^, G>. */
static void clips_scale_what_is_taken(void **state)
{
    lab l;
    lab_open(&l, *state, NULL, kinds, 4, 6, 3);
    draw(&l);
    dense g = dense_make(&l, ALL), d = dense_make(&l, ALL);
    dense_add(&l, ALL, 1.0 / 6.0, &d);
    dense_solve(&d, 0.1);
    const double norm = norm_of(g.g, g.size);
    double inner = 0.0;
    for (int64_t i = 0; i < d.size; i++) inner += d.g[i] * g.g[i];
    lab_optimizer(&l, "ngd", "damping=0.1");
    lab_observe(&l);
    step_with(&l, &(abar_step_config){.size = sizeof(abar_step_config), .lr = 1.0, .clip = 0.25 * norm});
    const double clipped = 0.25 * norm / (norm + 1e-6);
    for (int64_t i = 0; i < d.size; i++) d.g[i] *= clipped;
    check_taken(&l, ALL, &d, "clip", 1e-9, 1e-5);
    lab_clear_weights(&l);
    lab_optimizer(&l, "ngd", "damping=0.1 kl-clip=1e-6 base-lr=0.5");
    lab_observe(&l);
    lab_step(&l, 1.0);
    const double nu = sqrt(1e-6 / (0.25 * inner));
    assert_true(nu < 1.0);
    for (int64_t i = 0; i < d.size; i++) d.g[i] *= nu / clipped;
    check_taken(&l, ALL, &d, "KL clip", 1e-9, 1e-5);
    dense_drop(&g);
    dense_drop(&d);
    lab_close(&l);
}

/* Other batches, and the weights they leave: with momentum, and in front of other rules. */
static void rules_behind_it_run(void **state)
{
    static const char *const rules[] = {"rule=sgd momentum=0.9", "rule=adamw", "rule=muon", "rule=shampoo"};
    for (int i = 0; i < 4; i++) {
        lab l;
        lab_state kept;
        lab_open(&l, *state, NULL, kinds, 4, 6, 3);
        char options[256];
        lab_optimizer(&l, "ngd", lab_with(options, rules[i], i == 2 ? "muon-take=* fisher-blocks=layer" : "damping=0.1"));
        draw(&l);
        for (int k = 0; k < 3; k++) {
            lab_observe(&l);
            assert_false(lab_step(&l, 0.01).skipped);
        }
        lab_state_take(&l, &kept);
        assert_null(lab_state_not_finite(&kept));
        lab_state_drop(&kept);
        lab_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(with_labels_of_the_data_equals_the_dense_solve),
        ON_BOTH(by_layers_each_map_has_its_own_matrix),
        ON_BOTH(with_other_labels_equals_the_dense_solve),
        ON_BOTH(both_forms_agree),
        ON_BOTH(large_damping_leaves_the_gradient),
        ON_BOTH(one_example_divides_by_the_square),
        ON_BOTH(one_map_is_the_same_by_layers),
        ON_BOTH(products_of_vectors_are_those_of_gradients),
        ON(least_squares_are_solved_in_one_step, "ref"),
        ON_BOTH(of_a_linear_network_it_is_kfac),
        ON_BOTH(smaller_batches_are_as_good),
        ON_BOTH(loss_scales_cancel),
        ON_BOTH(clips_scale_what_is_taken),
        ON_BOTH(rules_behind_it_run),
    };
    const int skipped = lab_begin();
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
