/* The cases of orthogonalise_cases.h; golden numbers are those of tests/oracle/muon.py. */
#include "orthogonalise_cases.h"

#include "io/io.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LARGEST (96 * 96) /* elements of a golden block */

static const char *const sets[] = {"original", "quintic", "polar-express", "exact", "cubic"};
static const char *const blocks[] = {"wide", "tall", "square", "conv", "odd", "row", "large", "large_tall", "large_square"};
enum { SETS = sizeof sets / sizeof *sets, BLOCKS = sizeof blocks / sizeof *blocks, FORMS = 4, ROUNDS = 3 };

void ns_fill(double *x, int64_t n, uint64_t seed)
{
    uint64_t state = seed * 2 + 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (double)(float)((double)(int64_t)state / 9223372036854775808.0);
    }
}

double ns_deviation(int64_t n, const double *found, const double *expected)
{
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        difference += (found[i] - expected[i]) * (found[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    return sqrt(difference / size);
}

static abar__ns set_of(const char *name, int steps)
{
    abar__ns ns;
    assert_true(abar__ns_find(name, steps, &ns));
    return ns;
}

static void assert_close(int64_t n, const double *found, const double *expected, double tolerance, const char *what)
{
    const double deviation = ns_deviation(n, found, expected);
    if (!(deviation <= tolerance)) fail_msg("%s: off by %.3g, more than %.3g", what, deviation, tolerance);
}

/* ---- golden numbers ---------------------------------------------------------------------------------------------------- */

typedef struct golden {
    abar_context *ctx;
    abar__safetensors *file;
} golden;

static golden open_golden(void)
{
    golden g;
    assert_int_equal(abar_context_create(NULL, &g.ctx), ABAR_OK);
    assert_int_equal(abar__safetensors_open(g.ctx, ABAR_TEST_DATA "/golden/muon_orthogonalise.safetensors", &g.file), ABAR_OK);
    return g;
}

static void close_golden(golden *g)
{
    abar__safetensors_close(g->file);
    abar_context_destroy(g->ctx);
}

/* Elements of "block.name" as doubles, the i-th of its slices of count elements; the caller frees them. */
static double *read_slice(const golden *g, const char *block, const char *name, int64_t i, int64_t count)
{
    char full[64];
    abar_tensor t;
    snprintf(full, sizeof full, "%s.%s", block, name);
    if (!abar__safetensors_find(g->file, full, &t)) fail_msg("no %s in the golden file", full);
    assert_true((i + 1) * count <= abar_tensor_count(&t));
    double *x = malloc((size_t)count * sizeof *x);
    for (int64_t j = 0; j < count; j++) x[j] = abar__tensor_load(&t, i * count + j);
    return x;
}

static ns_case read_case(const golden *g, const char *block)
{
    char full[64];
    abar_tensor t;
    snprintf(full, sizeof full, "%s.in", block);
    assert_true(abar__safetensors_find(g->file, full, &t));
    assert_true(t.ndim == 2 && abar_tensor_count(&t) <= LARGEST);
    ns_case c = {.rows = t.dim[0], .columns = t.dim[1], .scale = 1.0, .verdict = -1};
    c.in = read_slice(g, block, "in", 0, c.rows * c.columns);
    c.out = malloc((size_t)(c.rows * c.columns) * sizeof *c.out);
    return c;
}

static void free_case(ns_case *c)
{
    free((void *)(uintptr_t)c->in);
    free(c->out);
    free(c->moment);
}

/* All blocks at once, as an optimizer does it. */
static void check_set(const ns_rig *rig, const golden *g, const char *set, int steps, const char *name, int n, int which)
{
    ns_case cases[BLOCKS];
    const abar__ns ns = set_of(set, steps);
    for (int i = 0; i < n; i++) cases[i] = read_case(g, blocks[i]);
    rig->run(rig, &ns, cases, n, 0.0);
    for (int i = 0; i < n; i++) {
        const int64_t count = cases[i].rows * cases[i].columns;
        double *expected = read_slice(g, blocks[i], name, 0, count),
               *condition = read_slice(g, blocks[i], "condition", 0, SETS);
        char what[96];
        snprintf(what, sizeof what, "%s of %s", name, blocks[i]);
        assert_int_equal(cases[i].verdict, ABAR_NS_FINE);
        assert_close(count, cases[i].out, expected, rig->tolerance * fmax(1.0, condition[which] / rig->condition), what);
        free(expected);
        free(condition);
        free_case(&cases[i]);
    }
}

void ns_check_golden(const ns_rig *rig)
{
    golden g = open_golden();
    for (int k = 0; k < SETS; k++) check_set(rig, &g, sets[k], 0, sets[k], BLOCKS, k);
    close_golden(&g);
}

void ns_check_steps(const ns_rig *rig)
{
    golden g = open_golden();
    check_set(rig, &g, "original", 3, "original.3", BLOCKS - 3, 0);
    check_set(rig, &g, "quintic", 7, "quintic.7", BLOCKS - 3, 1);
    close_golden(&g);
}

void ns_check_scales(const ns_rig *rig)
{
    golden g = open_golden();
    const abar__ns ns = set_of("original", 0);
    for (int i = 0; i < BLOCKS; i++) {
        double *adjust = read_slice(&g, blocks[i], "adjust", 0, FORMS), *expected = NULL;
        for (int form = 0; form < FORMS; form++) {
            ns_case c = read_case(&g, blocks[i]);
            const int64_t count = c.rows * c.columns;
            const double r = (double)c.rows, columns = (double)c.columns;
            const double known[FORMS] = {sqrt(fmax(1.0, r / columns)), 0.2 * sqrt(fmax(r, columns)), sqrt(r / columns), 1.0};
            assert_true(fabs(adjust[form] - known[form]) <= 1e-15 * known[form]);
            c.scale = adjust[form];
            rig->run(rig, &ns, &c, 1, 0.0);
            expected = read_slice(&g, blocks[i], "original", 0, count);
            for (int64_t j = 0; j < count; j++) expected[j] *= adjust[form];
            assert_close(count, c.out, expected, rig->tolerance, blocks[i]);
            free(expected);
            free_case(&c);
        }
        free(adjust);
    }
    close_golden(&g);
}

/* Several rounds with the moments of the one before; a block without moments among them. */
void ns_check_normuon(const ns_rig *rig)
{
    golden g = open_golden();
    const abar__ns ns = set_of("original", 0);
    ns_case cases[BLOCKS + 1];
    for (int i = 0; i < BLOCKS; i++) {
        cases[i] = read_case(&g, blocks[i]);
        cases[i].moment = calloc((size_t)cases[i].rows, sizeof(double));
    }
    cases[BLOCKS] = read_case(&g, "wide");
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < BLOCKS; i++) {
            free((void *)(uintptr_t)cases[i].in);
            cases[i].in = read_slice(&g, blocks[i], "normuon.in", k, cases[i].rows * cases[i].columns);
        }
        rig->run(rig, &ns, cases, BLOCKS + 1, 0.9);
        for (int i = 0; i < BLOCKS; i++) {
            const ns_case *c = &cases[i];
            const int64_t count = c->rows * c->columns;
            double *out = read_slice(&g, blocks[i], "normuon.out", k, count);
            double *moment = read_slice(&g, blocks[i], "normuon.v", k, c->rows);
            assert_int_equal(c->verdict, ABAR_NS_FINE);
            assert_close(count, c->out, out, rig->tolerance, blocks[i]);
            assert_close(c->rows, c->moment, moment, 2.0 * rig->tolerance, blocks[i]); /* of squares */
            free(out);
            free(moment);
        }
    }
    double *plain = read_slice(&g, "wide", "original", 0, cases[BLOCKS].rows * cases[BLOCKS].columns);
    assert_close(cases[BLOCKS].rows * cases[BLOCKS].columns, cases[BLOCKS].out, plain, rig->tolerance, "wide without moments");
    free(plain);
    for (int i = 0; i <= BLOCKS; i++) free_case(&cases[i]);
    close_golden(&g);
}

/* ---- identities -------------------------------------------------------------------------------------------------------- */

/* O O^T = I where r <= c, and u^T O is symmetric: O = U V^T. */
void ns_check_exact_is_orthogonal(const ns_rig *rig)
{
    golden g = open_golden();
    const abar__ns ns = set_of("exact", 0);
    ns_case c = read_case(&g, "wide");
    rig->run(rig, &ns, &c, 1, 0.0);
    double off = 0.0, skew = 0.0, size = 0.0;
    for (int64_t i = 0; i < c.rows; i++)
        for (int64_t j = 0; j < c.rows; j++) {
            double oo = 0.0, ou = 0.0, uo = 0.0;
            for (int64_t k = 0; k < c.columns; k++) {
                oo += c.out[i * c.columns + k] * c.out[j * c.columns + k];
                ou += c.out[i * c.columns + k] * c.in[j * c.columns + k];
                uo += c.in[i * c.columns + k] * c.out[j * c.columns + k];
            }
            off += (oo - (i == j)) * (oo - (i == j));
            skew += (ou - uo) * (ou - uo);
            size += ou * ou;
        }
    assert_true(sqrt(off / (double)c.rows) <= fmax(2.0 * rig->tolerance, 2e-6)); /* 12 steps come within 1e-6 of 1 */
    assert_true(sqrt(skew / size) <= 2.0 * rig->tolerance);
    free_case(&c);
    close_golden(&g);
}

void ns_check_transposed(const ns_rig *rig)
{
    golden g = open_golden();
    const abar__ns ns = set_of("original", 0);
    ns_case pair[2] = {read_case(&g, "wide"), read_case(&g, "wide")};
    const int64_t rows = pair[0].rows, columns = pair[0].columns, n = rows * columns;
    double *turned = malloc((size_t)n * sizeof *turned), *back = malloc((size_t)n * sizeof *back);
    for (int64_t i = 0; i < n; i++) turned[i % columns * rows + i / columns] = pair[0].in[i];
    free((void *)(uintptr_t)pair[1].in);
    pair[1].in = turned;
    pair[1].rows = columns;
    pair[1].columns = rows;
    rig->run(rig, &ns, pair, 2, 0.0);
    for (int64_t i = 0; i < n; i++) back[i] = pair[1].out[i % columns * rows + i / columns];
    assert_close(n, back, pair[0].out, fmin(rig->tolerance, 1e-3), "the transposed of the transposed");
    free(back);
    for (int i = 0; i < 2; i++) free_case(&pair[i]);
    close_golden(&g);
}

/* c Q with Q = I - 2 h h^T / |h|^2 becomes Q, or p(1 / sqrt(n)) Q where the polynomial p does not go to 1. */
void ns_check_orthogonal_inputs(const ns_rig *rig)
{
    enum { N = 12 };
    double h[N], q[N * N], in[N * N], out[N * N], size = 0.0;
    ns_fill(h, N, 3);
    for (int i = 0; i < N; i++) size += h[i] * h[i];
    for (int i = 0; i < N * N; i++) {
        q[i] = (i / N == i % N) - 2.0 * h[i / N] * h[i % N] / size;
        in[i] = 0.3 * q[i];
    }
    abar__ns ns = set_of("exact", 0);
    ns_case c = {.rows = N, .columns = N, .in = in, .out = out, .scale = 1.0};
    rig->run(rig, &ns, &c, 1, 0.0);
    assert_close(N * N, out, q, fmax(rig->tolerance, 1e-6), "Q of 0.3 Q");

    ns = set_of("original", 0);
    rig->run(rig, &ns, &c, 1, 0.0);
    double x = 1.0 / sqrt((double)N);
    for (int k = 0; k < ns.steps; k++) x = ns.c[k][0] * x + ns.c[k][1] * pow(x, 3.0) + ns.c[k][2] * pow(x, 5.0);
    for (int i = 0; i < N * N; i++) q[i] *= x;
    assert_close(N * N, out, q, rig->tolerance, "p Q of 0.3 Q");
}

/* x y^T becomes x y^T / (|x| |y|). Signs, and norms that are powers of two: nothing is rounded, so that the zero singular
 * values stay zeros. */
void ns_check_rank_one(const ns_rig *rig)
{
    enum { R = 4, C = 16 };
    double in[R * C], out[R * C], expected[R * C];
    for (int i = 0; i < R * C; i++) {
        in[i] = (i / C % 3 == 1 ? -1.0 : 1.0) * (i % C % 5 == 2 ? -1.0 : 1.0);
        expected[i] = in[i] / 8.0;
    }
    const abar__ns ns = set_of("exact", 0);
    ns_case c = {.rows = R, .columns = C, .in = in, .out = out, .scale = 1.0};
    rig->run(rig, &ns, &c, 1, 0.0);
    assert_close(R * C, out, expected, fmax(1e-9, fmin(rig->tolerance, 1e-5)), "x y^T");
}

/* The size of u does not matter, though its squares would not fit into a float. */
void ns_check_magnitudes(const ns_rig *rig)
{
    enum { R = 9, C = 14, MAGNITUDES = 4 };
    static const double magnitude[MAGNITUDES] = {1.0, 0x1p100, 0x1p-20, 0x1p64};
    double in[MAGNITUDES][R * C], out[MAGNITUDES][R * C];
    ns_case cases[MAGNITUDES];
    for (int k = 0; k < MAGNITUDES; k++) {
        ns_fill(in[k], (int64_t)R * C, 5);
        for (int i = 0; i < R * C; i++) in[k][i] *= magnitude[k];
        cases[k] = (ns_case){.rows = R, .columns = C, .in = in[k], .out = out[k], .scale = 1.0};
    }
    const abar__ns ns = set_of("original", 0);
    rig->run(rig, &ns, cases, MAGNITUDES, 0.0);
    for (int k = 1; k < MAGNITUDES; k++) {
        assert_int_equal(cases[k].verdict, ABAR_NS_FINE);
        assert_close((int64_t)R * C, out[k], out[0], fmin(rig->tolerance, 1e-5), "u times a power of two");
    }
}

/* ---- when numbers go wrong ---------------------------------------------------------------------------------------------- */

/* u = 0: O = 0, the moments decay, and nothing is counted. */
void ns_check_zeros(const ns_rig *rig)
{
    enum { R = 6, C = 4, LARGE_R = 70, LARGE_C = 80 };
    static double in[LARGE_R * LARGE_C], out[2][LARGE_R * LARGE_C];
    double moment[R] = {1.0, 2.0, 0.5, 4.0, 0.25, 8.0};
    const abar__ns ns = set_of("original", 0);
    ns_case cases[2] = {{.rows = R, .columns = C, .in = in, .out = out[0], .moment = moment, .scale = 1.0},
                        {.rows = LARGE_R, .columns = LARGE_C, .in = in, .out = out[1], .scale = 1.0}};
    for (int i = 0; i < LARGE_R * LARGE_C; i++) out[0][i] = out[1][i] = 7.0;
    rig->run(rig, &ns, cases, 2, 0.5);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(cases[k].verdict, ABAR_NS_FINE);
        for (int64_t i = 0; i < cases[k].rows * cases[k].columns; i++) assert_true(out[k][i] == 0.0);
    }
    assert_true(moment[0] == 0.5 && moment[1] == 1.0 && moment[5] == 4.0);
}

/* |u| below eps is divided by eps: all singular values are so small that p(x) = c1^5 x. */
void ns_check_below_eps(const ns_rig *rig)
{
    enum { R = 5, C = 8, LARGE = 66 };
    static double in[2][LARGE * LARGE], out[2][LARGE * LARGE], expected[LARGE * LARGE];
    const abar__ns ns = set_of("original", 0);
    ns_case cases[2] = {{.rows = R, .columns = C, .in = in[0], .out = out[0], .scale = 1.0},
                        {.rows = LARGE, .columns = LARGE, .in = in[1], .out = out[1], .scale = 1.0}};
    for (int k = 0; k < 2; k++) {
        ns_fill(in[k], cases[k].rows * cases[k].columns, 11);
        for (int64_t i = 0; i < cases[k].rows * cases[k].columns; i++) in[k][i] *= 1e-16;
    }
    rig->run(rig, &ns, cases, 2, 0.0);
    for (int k = 0; k < 2; k++) {
        const int64_t count = cases[k].rows * cases[k].columns;
        for (int64_t i = 0; i < count; i++) expected[i] = pow(ns.c[0][0], 5.0) * in[k][i] / ns.eps;
        assert_int_equal(cases[k].verdict, ABAR_NS_BELOW_EPS);
        assert_close(count, out[k], expected, fmax(rig->tolerance, 1e-6), "below eps");
    }
}

/* A NaN or an infinity drops its block alone, large or small, and keeps its moments. */
void ns_check_not_finite(const ns_rig *rig)
{
    enum { N = 6, LARGE = 70 };
    static const int64_t side[N] = {5, 5, LARGE, 5, LARGE, LARGE};
    static double in[N][LARGE * LARGE], out[N][LARGE * LARGE], again[2][LARGE * LARGE];
    double moment[N][LARGE];
    ns_case cases[N];
    const abar__ns ns = set_of("original", 0);
    for (int k = 0; k < N; k++) {
        ns_fill(in[k], side[k] * side[k], (uint64_t)k);
        for (int i = 0; i < LARGE; i++) moment[k][i] = 2.0;
        cases[k] = (ns_case){
            .rows = side[k], .columns = side[k], .in = in[k], .out = out[k], .scale = 1.0, .moment = k % 2 ? moment[k] : NULL};
    }
    ns_case good[2] = {cases[0], cases[5]};
    good[0].out = again[0], good[1].out = again[1];
    rig->run(rig, &ns, good, 2, 0.5);
    for (int i = 0; i < LARGE; i++) moment[5][i] = 2.0;
    in[1][7] = NAN;
    in[2][LARGE * LARGE - 1] = INFINITY;
    in[3][0] = -INFINITY;
    in[4][77] = NAN;
    rig->run(rig, &ns, cases, N, 0.5);
    for (int k = 1; k < 5; k++) {
        assert_int_equal(cases[k].verdict, ABAR_NS_NOT_FINITE);
        for (int64_t i = 0; i < side[k] * side[k]; i++) assert_true(out[k][i] == 0.0);
        for (int i = 0; i < side[k]; i++) assert_true(moment[k][i] == 2.0);
    }
    assert_int_equal(cases[0].verdict, ABAR_NS_FINE);
    assert_int_equal(cases[5].verdict, ABAR_NS_FINE);
    assert_close(25, out[0], again[0], fmin(rig->tolerance, 1e-6), "the good small block beside bad ones");
    /* a library may choose other products for a larger batch, which round differently */
    assert_close((int64_t)LARGE * LARGE, out[5], again[1], rig->tolerance, "the good large block beside bad ones");
}

/* Coefficients under which a finite u has no finite O. */
void ns_check_divergence(const ns_rig *rig)
{
    enum { LARGE = 70 };
    static double in[LARGE * LARGE], out[2][LARGE * LARGE];
    double moment[5] = {3.0, 3.0, 3.0, 3.0, 3.0};
    abar__ns ns = set_of("original", 8);
    for (int k = 0; k < ns.steps; k++) ns.c[k][2] = 1e30;
    ns_fill(in, (int64_t)LARGE * LARGE, 1);
    ns_case cases[2] = {{.rows = 5, .columns = 9, .in = in, .out = out[0], .moment = moment, .scale = 1.0},
                        {.rows = LARGE, .columns = LARGE, .in = in, .out = out[1], .scale = 1.0}};
    rig->run(rig, &ns, cases, 2, 0.5);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(cases[k].verdict, ABAR_NS_NOT_FINITE);
        for (int64_t i = 0; i < cases[k].rows * cases[k].columns; i++) assert_true(out[k][i] == 0.0);
    }
    for (int i = 0; i < 5; i++) assert_true(moment[i] == 3.0);
}
