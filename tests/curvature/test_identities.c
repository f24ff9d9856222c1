/* The identities of methods.md section 10, on random shapes: what must hold whatever the numbers are. Dense solvers:
 * test_definitions.c; convolutions: test_patches.c. */
#include "curvature_lab.h"

#define EVERY_STEP "tcov=1 tinv=1 "

/* ---- helpers -------------------------------------------------------------------------------------------------------- */

static void scale(double *m, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++) m[i] *= factor;
}

static int64_t size_of(const lab_layer *y) { return y->outputs * y->columns; }

/* ---- MAC and FOOF ------------------------------------------------------------------------------------------------------- */

/* Every row of every batch is the same: for an image that means without padding, one value per channel. */
static void equal_rows(lab *l, const double *value)
{
    lab_layer *y = &l->layer[0];
    const int64_t pixels = y->x.ndim == 4 ? y->x.dim[2] * y->x.dim[3] : 1;
    for (int64_t i = 0; i < abar_tensor_count(&y->x); i++) lab_set(&y->x, i, value[i / pixels % y->shape.in]);
}

static void check_equal_rows(const char *device, uint64_t seed)
{
    lab mac, foof;
    uint64_t noise = seed;
    double value[16];
    lab_shape shape = lab_random_shape(&noise, "map", seed % 2);
    shape.window.pad[0] = shape.window.pad[1] = 0;
    const int64_t examples = lab_pick(&noise, 1, 5);
    lab_open(&mac, device, NULL, &shape, 1, examples, seed);
    lab_open(&foof, device, NULL, &shape, 1, examples, seed);
    lab_optimizer(&mac, "mac", EVERY_STEP "damping=0.25 stat-decay=0.6");
    lab_optimizer(&foof, "foof", EVERY_STEP "damping=0.25 stat-decay=0.6");
    for (int64_t i = 0; i < 16; i++) value[i] = lab_draw(&mac);
    for (int k = 0; k < 3; k++) {
        lab_new_batch(&mac);
        equal_rows(&mac, value);
        lab_copy_batch(&mac, &foof);
        lab_observed_step(&mac);
        lab_observed_step(&foof);
        for (int64_t g = 0; g < mac.layer[0].groups; g++) {
            double *a = lab_taken(&mac, 0, g), *b = lab_taken(&foof, 0, g);
            scale(b, size_of(&mac.layer[0]), 0.25);
            lab_check(&mac, "mac against rho foof", a, b, size_of(&mac.layer[0]), 1e-11, 1e-4);
            free(a);
            free(b);
        }
    }
    lab_close(&mac);
    lab_close(&foof);
}

static void mac_with_equal_rows_is_rho_times_foof(void **state)
{
    for (uint64_t seed = 1; seed <= 16; seed++) check_equal_rows(*state, seed);
}

/* ---- where methods become gradient descent ------------------------------------------------------------------------------ */

/* How far what a method takes off, times factor, is from the gradient. */
static double off_gradient(const lab *l, double factor)
{
    double worst = 0.0;
    for (int64_t g = 0; g < l->layer[0].groups; g++) {
        double *a = lab_taken(l, 0, g), *b = lab_gradient(l, 0, g);
        scale(a, size_of(&l->layer[0]), factor);
        worst = fmax(worst, lab_difference(a, b, size_of(&l->layer[0])));
        free(a);
        free(b);
    }
    return worst;
}

static double damped(const char *device, uint64_t seed, const char *method, const char *more, double rho)
{
    lab l;
    char options[128];
    uint64_t noise = seed;
    lab_shape shape = lab_random_shape(&noise, "map", true);
    lab_open(&l, device, NULL, &shape, 1, 3, seed);
    snprintf(options, sizeof options, EVERY_STEP "damping=%.17g %s", rho, more);
    lab_optimizer(&l, method, options);
    lab_new_batch(&l);
    lab_observed_step(&l);
    double off = off_gradient(&l, strcmp(method, "mac") == 0 ? 1.0 : rho);
    lab_close(&l);
    return off;
}

static void methods_with_great_damping_are_gradient_descent(void **state)
{
    static const char *const cases[][2] = {
        {"mac", ""}, {"smac", "pgrad=per-example"}, {"foof", ""}, {"eva", "kl-clip=0 pgrad=per-example"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t seed = 1; seed <= 8; seed++) {
            double far = damped(*state, seed, cases[i][0], cases[i][1], 0.05);
            double near = damped(*state, seed, cases[i][0], cases[i][1], 1e9);
            if (!(far > 1e-3 && near < 1e-6))
                fail_msg("%s, draw %d: off by %.2e, then by %.2e", cases[i][0], (int)seed, far, near);
        }
}

/* Every second example is the one before it, negated. */
static void balance(lab *l)
{
    const lab_layer *y = &l->layer[0];
    const int64_t size = abar_tensor_count(&y->x) / l->examples;
    for (int64_t i = size; i < abar_tensor_count(&y->x); i++)
        if (i / size % 2) lab_set(&y->x, i, -lab_get(&y->x, i - size));
}

static void check_no_mean(const char *device, uint64_t seed, const char *method, const char *options, double factor)
{
    lab l;
    uint64_t noise = seed;
    lab_shape shape = lab_random_shape(&noise, "map", false);
    lab_open(&l, device, NULL, &shape, 1, 2 * lab_pick(&noise, 1, 3), seed);
    lab_optimizer(&l, method, options);
    for (int k = 0; k < 2; k++) {
        lab_new_batch(&l);
        balance(&l);
        lab_observed_step(&l);
        double off = off_gradient(&l, factor);
        if (!(off < (abar_device_dtype(l.dev) == ABAR_F64 ? 1e-14 : 1e-6))) fail_msg("%s: off by %.2e", method, off);
    }
    lab_close(&l);
}

static void methods_without_mean_activation_are_gradient_descent(void **state)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        check_no_mean(*state, seed, "mac", EVERY_STEP "damping=0.01", 1.0);
        check_no_mean(*state, seed, "mac", EVERY_STEP "damping=adaptive", 1.0);
        check_no_mean(*state, seed, "eva", EVERY_STEP "damping=0.01 kl-clip=0", 0.01);
    }
}

/* ---- SMAC and MAC ------------------------------------------------------------------------------------------------------- */

static void check_equal_squares(const char *device, uint64_t seed, bool per_example)
{
    lab mac, smac;
    char options[128];
    uint64_t noise = seed;
    const double p = 0.375, rho = 0.125;
    lab_shape shape = lab_random_shape(&noise, "map", seed % 2);
    const int64_t examples = lab_pick(&noise, 1, 5);
    lab_open(&mac, device, NULL, &shape, 1, examples, seed);
    lab_open(&smac, device, NULL, &shape, 1, examples, seed);
    lab_optimizer(&mac, "mac", EVERY_STEP "damping=0.125");
    snprintf(options, sizeof options, EVERY_STEP "damping=0.125 pgrad=%s", per_example ? "per-example" : "batch-mean");
    lab_optimizer(&smac, "smac", options);
    for (int k = 0; k < 3; k++) {
        lab_new_batch(&mac);
        for (int64_t i = 0; i < abar_tensor_count(&mac.layer[0].p); i++)
            lab_set(&mac.layer[0].p, i, lab_draw(&mac) < 0.0 ? -p : p);
        lab_copy_batch(&mac, &smac);
        lab_observed_step(&mac);
        lab_observed_step(&smac);
        const double square = p * p * (per_example ? (double)(examples * examples) : 1.0);
        for (int64_t g = 0; g < mac.layer[0].groups; g++) {
            double *a = lab_taken(&smac, 0, g), *b = lab_taken(&mac, 0, g);
            scale(b, size_of(&mac.layer[0]), 1.0 / (square + rho));
            lab_check(&mac, "smac against mac scaled", a, b, size_of(&mac.layer[0]), 1e-12, 1e-5);
            free(a);
            free(b);
        }
    }
    lab_close(&mac);
    lab_close(&smac);
}

static void smac_with_equal_squares_is_mac_scaled(void **state)
{
    for (uint64_t seed = 1; seed <= 12; seed++) check_equal_squares(*state, seed, seed % 3 == 0);
}

/* ---- LNGD and FOOF ------------------------------------------------------------------------------------------------------ */

/* Scales the output gradients of every example and group so that their mean over rows has norm c. All above zero: so are their
 * means. */
static void equal_norms(lab *l, double c)
{
    const lab_layer *y = &l->layer[0];
    for (int64_t i = 0; i < abar_tensor_count(&y->p); i++) lab_set(&y->p, i, 1.125 + lab_get(&y->p, i));
    for (int64_t g = 0; g < y->groups; g++) {
        double *p = lab_row_grads(l, 0, g);
        for (int64_t n = 0; n < l->examples; n++) {
            double norm = 0.0;
            for (int64_t o = 0; o < y->outputs; o++) {
                double mean = 0.0;
                for (int64_t r = 0; r < y->rows; r++) mean += p[(n * y->rows + r) * y->outputs + o] / (double)y->rows;
                norm += mean * mean;
            }
            for (int64_t i = 0; i < y->outputs * y->rows; i++) {
                const int64_t o = y->p.ndim == 4 ? i / y->rows : i % y->outputs,
                              r = y->p.ndim == 4 ? i % y->rows : i / y->outputs;
                const int64_t place = y->p.ndim == 4 ? (n * y->shape.out + g * y->outputs + o) * y->rows + r
                                                     : (n * y->rows + r) * y->shape.out + o;
                lab_set(&y->p, place, lab_get(&y->p, place) * c / sqrt(norm));
            }
        }
        free(p);
    }
}

/* The upper triangle of a square average of a map. */
static double *average_of(lab *l, int64_t group, const char *name)
{
    lab_state s;
    lab_state_take(l, &s);
    const lab_layer *y = &l->layer[0];
    const abar_tensor *t = y->groups > 1 ? lab_state_find(&s, "curvature.map#%d.average.%s", (int)group, name)
                                         : lab_state_find(&s, "curvature.map.average.%s", name);
    assert_non_null(t);
    const int64_t d = t->dim[1];
    double *m = calloc((size_t)(d * d), sizeof *m);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i; j < d; j++) m[i * d + j] = lab_get(t, i * d + j);
    lab_state_drop(&s);
    return m;
}

static void check_equal_norms(const char *device, uint64_t seed)
{
    lab lngd, foof;
    uint64_t noise = seed;
    const double c = 0.6;
    lab_shape shape = lab_random_shape(&noise, "map", seed % 2);
    const int64_t examples = lab_pick(&noise, 1, 5);
    lab_open(&lngd, device, NULL, &shape, 1, examples, seed);
    lab_open(&foof, device, NULL, &shape, 1, examples, seed);
    lab_optimizer(&lngd, "lngd", EVERY_STEP);
    lab_optimizer(&foof, "foof", EVERY_STEP);
    for (int k = 0; k < 2; k++) {
        lab_new_batch(&lngd);
        equal_norms(&lngd, c);
        lab_copy_batch(&lngd, &foof);
        lab_observed_step(&lngd);
        lab_observed_step(&foof);
    }
    for (int64_t g = 0; g < foof.layer[0].groups; g++) {
        const int64_t d = foof.layer[0].columns;
        double *phi = average_of(&lngd, g, "Phi"), *a = average_of(&foof, g, "A");
        scale(a, d * d, c * c);
        lab_check(&foof, "Phi against A scaled", phi, a, d * d, 1e-12, 1e-5);
        free(phi);
        free(a);
    }
    lab_close(&lngd);
    lab_close(&foof);
}

static void lngd_with_equal_norms_keeps_foofs_factor_scaled(void **state)
{
    for (uint64_t seed = 1; seed <= 16; seed++) check_equal_norms(*state, seed);
}

/* ---- KFAC and the Fisher matrix ------------------------------------------------------------------------------------------ */

enum { WIDTHS = 4, NET_EXAMPLES = 7 };
static const int64_t width[WIDTHS] = {4, 3, 3, 5}; /* inputs, two hidden layers, outputs: no block is singular */

/* A deep linear net. Its outputs are linear in each layer's weights, so that differences are derivatives. */
typedef struct linear_net {
    double w[WIDTHS - 1][5][5]; /* rows end in the bias */
} linear_net;

/* The input of layer `at`, or the output for at = WIDTHS - 1. */
static void forward(const linear_net *net, const double *x, int at, double *out)
{
    memcpy(out, x, (size_t)width[0] * sizeof *x);
    for (int l = 0; l < at; l++) {
        double next[8];
        for (int64_t o = 0; o < width[l + 1]; o++) {
            next[o] = net->w[l][o][width[l]];
            for (int64_t k = 0; k < width[l]; k++) next[o] += net->w[l][o][k] * out[k];
        }
        memcpy(out, next, (size_t)width[l + 1] * sizeof *next);
    }
}

static linear_net random_net(lab *l)
{
    linear_net net = {0};
    for (int i = 0; i < WIDTHS - 1; i++)
        for (int64_t o = 0; o < width[i + 1]; o++)
            for (int64_t k = 0; k <= width[i]; k++) net.w[i][o][k] = lab_draw(l);
    return net;
}

/* d out_k / d weight e of one layer, with the net's other weights as they are. */
static double derivative(const linear_net *net, const double *x, int layer, int64_t e, int64_t k)
{
    const int64_t d = width[layer] + 1;
    double with[8], without[8];
    linear_net moved = *net;
    moved.w[layer][e / d][e % d] += 1.0;
    forward(&moved, x, WIDTHS - 1, with);
    forward(net, x, WIDTHS - 1, without);
    return with[k] - without[k];
}

/* The layer's block of the Fisher matrix of the squared loss: E_n sum over outputs of J_kT J_k. */
static double *exact_fisher(const linear_net *net, const double *x, int layer)
{
    const int64_t size = (width[layer] + 1) * width[layer + 1], outputs = width[WIDTHS - 1];
    double *f = calloc((size_t)(size * size), sizeof *f), *row = calloc((size_t)size, sizeof *row);
    for (int64_t n = 0; n < NET_EXAMPLES; n++)
        for (int64_t k = 0; k < outputs; k++) {
            for (int64_t e = 0; e < size; e++) row[e] = derivative(net, x + n * width[0], layer, e, k);
            for (int64_t i = 0; i < size; i++)
                for (int64_t j = 0; j < size; j++) f[i * size + j] += row[i] * row[j] / NET_EXAMPLES;
        }
    free(row);
    return f;
}

/* Feeds every output's Jacobian row. Statistics are means over all examples offered, NET_EXAMPLES times the outputs, and
 * per-example scale multiplies p by as many: the factor leaves the sum over outputs and the mean over examples. */
static void observe_jacobian(lab *l, const linear_net *net, const double *x, int layer)
{
    const lab_layer *y = &l->layer[0];
    const int64_t outputs = width[WIDTHS - 1], d = width[layer] + 1;
    for (int64_t k = 0; k < outputs; k++) {
        for (int64_t n = 0; n < NET_EXAMPLES; n++) {
            double input[8];
            forward(net, x + n * width[0], layer, input);
            for (int64_t i = 0; i < width[layer]; i++) lab_set(&y->x, n * width[layer] + i, input[i]);
            for (int64_t o = 0; o < width[layer + 1]; o++) /* d out_k / d z_o: that of the bias */
                lab_set(&y->p, n * width[layer + 1] + o, derivative(net, x + n * width[0], layer, o * d + d - 1, k));
        }
        lab_observe_layer(l, 0, 0, NET_EXAMPLES, 1.0, sqrt((double)outputs) / (double)(NET_EXAMPLES * outputs));
    }
}

static void check_fisher(const char *device, uint64_t seed, int layer)
{
    lab l;
    lab_shape shape = {.name = "map", .in = width[layer], .out = width[layer + 1], .bias = true};
    lab_open(&l, device, NULL, &shape, 1, NET_EXAMPLES, seed);
    lab_optimizer(&l, "kfac", EVERY_STEP "kfac=expand pgrad=per-example kl-clip=0 damping=1e-22 stat-decay=0");
    const linear_net net = random_net(&l);
    double x[NET_EXAMPLES * 4];
    for (int i = 0; i < NET_EXAMPLES * 4; i++) x[i] = lab_draw(&l);
    lab_new_batch(&l);
    observe_jacobian(&l, &net, x, layer);
    assert_false(lab_step(&l, 1.0).skipped);
    double *f = exact_fisher(&net, x, layer), *a = average_of(&l, 0, "A"), *p = average_of(&l, 0, "P");
    const int64_t d = l.layer[0].columns, out = l.layer[0].outputs, size = d * out;
    double *kronecker = calloc((size_t)(size * size), sizeof *kronecker);
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j < size; j++) {
            const int64_t o = i / d, q = j / d, r = i % d, s = j % d;
            kronecker[i * size + j] = p[o < q ? o * out + q : q * out + o] * a[r < s ? r * d + s : s * d + r];
        }
    lab_check(&l, "P times A against the Fisher matrix", kronecker, f, size * size, 1e-12, 1e-5);
    if (abar_device_dtype(l.dev) == ABAR_F64) { /* next to no damping: the natural gradient itself */
        double *g = lab_gradient(&l, 0, 0), *found = lab_taken(&l, 0, 0);
        lab_solve(size, f, 1, g);
        lab_check(&l, "kfac against the Fisher matrix", found, g, size, 1e-6, 0.0);
        free(g);
        free(found);
    }
    free(f);
    free(a);
    free(p);
    free(kronecker);
    lab_close(&l);
}

static void kfac_expand_is_the_exact_fisher_block_of_a_linear_net(void **state)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (int layer = 0; layer < WIDTHS - 1; layer++) check_fisher(*state, seed, layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(mac_with_equal_rows_is_rho_times_foof),
        ON_BOTH(methods_with_great_damping_are_gradient_descent),
        ON_BOTH(methods_without_mean_activation_are_gradient_descent),
        ON_BOTH(smac_with_equal_squares_is_mac_scaled),
        ON_BOTH(lngd_with_equal_norms_keeps_foofs_factor_scaled),
        ON_BOTH(kfac_expand_is_the_exact_fisher_block_of_a_linear_net),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
