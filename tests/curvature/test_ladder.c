/* Factors that cannot be factorised (methods.md section 9): the damping is raised, then double precision tried, then the
 * previous inverse kept; every rung is counted, and whatever comes out descends. Averages that no batch would give are written
 * into the optimizer's state. */
#include "curvature_lab.h"

static const lab_shape shapes[] = {
    {.name = "fc", .in = 6, .out = 4, .bias = true},
    {.name = "other", .in = 3, .out = 3},
};
enum { LAYERS = 2, EXAMPLES = 24, D = 7, OUT = 4 }; /* examples enough for regular factors */

#define RUN "tcov=1000 tinv=1"

/* method, options, the average that is spoilt, its side */
typedef struct factor {
    const char *method, *options, *name;
    int64_t side;
} factor;

static const factor factors[] = {
    {"foof", "damping=1e-12", "A", D},
    {"kfac", "damping=1e-28", "A", D},
    {"kfac", "damping=1e-28 kfac=expand", "P", OUT},
    {"lngd", "nu1=1e-12 nu2=1e-11", "Phi", D},
    {"kpsvd", "damping=1e-28", "R", D},
    {NULL, NULL, NULL, 0},
};

/* Inverses of the largest eigenvalues, and of diagonal blocks, whose first is spoilt like the others. */
static const factor parts[] = {{"foof", "damping=1e-12 foof-width=3", "A", D},
                               {"foof", "damping=1e-12 kfac-rank=3", "A", D},
                               {"kfac", "damping=1e-28 kfac-rank=3", "P", OUT},
                               {NULL, NULL, NULL, 0}};

static bool of_rank(const factor *f) { return strstr(f->options, "kfac-rank") != NULL; }
static bool has_part(const factor *f) { return !of_rank(f) || lab_has("skfac"); } /* ranks are on ref and cpu */

/* ---- spoiling ------------------------------------------------------------------------------------------------------- */

/* Writes average = diagonal on the whole diagonal, off elsewhere, to a square of the first layer. */
static void spoil(lab *l, const factor *f, double diagonal, double off)
{
    lab_state s;
    lab_state_take(l, &s);
    const abar_tensor *t = lab_state_find(&s, "curvature.fc.average.%s", f->name);
    assert_non_null(t);
    assert_int_equal(t->dim[1], f->side);
    for (int64_t i = 0; i < f->side; i++)
        for (int64_t j = i; j < f->side; j++) lab_set(t, i * f->side + j, i == j ? diagonal : off);
    lab_state_put(l, &s);
    lab_state_drop(&s);
}

/* Multiplies every other average of the first layer, so that a refresh by halves would show. */
static void stir(lab *l, const factor *f)
{
    lab_state s;
    char spared[64];
    lab_state_take(l, &s);
    snprintf(spared, sizeof spared, "curvature.fc.average.%s", f->name);
    for (int i = 0; i < s.n; i++)
        if (strncmp(s.name[i], "curvature.fc.average.", 21) == 0 && strcmp(s.name[i], spared) != 0)
            for (int64_t k = 0; k < abar_tensor_count(&s.tensor[i]); k++)
                lab_set(&s.tensor[i], k, 1.5 * lab_get(&s.tensor[i], k));
    lab_state_put(l, &s);
    lab_state_drop(&s);
}

static void open_lab(lab *l, const char *device, const factor *f, const char *more)
{
    char with[256], all[256];
    lab_open(l, device, NULL, shapes, LAYERS, EXAMPLES, 11);
    lab_optimizer(l, f->method, lab_with(all, lab_with(with, f->options, RUN), more));
}

static void clean_step(lab *l)
{
    lab_draw_batch(l);
    lab_clear_weights(l);
    lab_observe(l);
    assert_false(lab_step(l, 1.0).skipped);
}

/* The first step gives every map a regular factor and its inverse. */
static void open_ready(lab *l, const char *device, const factor *f)
{
    open_lab(l, device, f, "");
    clean_step(l);
    abar_map_info info = lab_map(l, "fc", 0);
    assert_int_equal(info.raised + info.doubled + info.kept, 0);
}

static abar_map_info spoilt_map(const lab *l) { return lab_map(l, "fc", 0); }

/* <G^, G> of the first layer, and |G^| / |G|. */
static double inner(const lab *l, double *ratio)
{
    double *a = lab_taken(l, 0, 0), *g = lab_gradient(l, 0, 0), ag = 0.0, aa = 0.0, gg = 0.0;
    for (int i = 0; i < OUT * D; i++) {
        ag += a[i] * g[i];
        aa += a[i] * a[i];
        gg += g[i] * g[i];
    }
    free(a);
    free(g);
    *ratio = sqrt(aa / gg);
    return ag;
}

/* Whether the derived tensors of the first layer are the same bit for bit. */
static bool same_derived(const lab_state *a, const lab_state *b)
{
    for (int i = 0; i < a->n; i++) {
        const char *rest = a->name[i] + 13;
        if (strncmp(a->name[i], "curvature.fc.", 13) != 0 || strncmp(rest, "average.", 8) == 0) continue;
        if (strcmp(rest, "counts") == 0 || strcmp(rest, "numbers") == 0) continue;
        if (memcmp(a->tensor[i].data, b->tensor[i].data, abar_tensor_bytes(&a->tensor[i])) != 0) return false;
    }
    return true;
}

/* ---- the rungs -------------------------------------------------------------------------------------------------------- */

/* All ones: rank 1. Rounding decides whether it is positive definite; 1e-8 of its mean diagonal, or a little more, does help.
 */
static void singular_factor_is_damped_until_it_can_be_inverted(void **state)
{
    for (const factor *f = factors; f->method && lab_has(f->method); f++) {
        lab l;
        open_ready(&l, *state, f);
        spoil(&l, f, 1e6, 1e6);
        clean_step(&l);
        abar_map_info info = spoilt_map(&l);
        double ratio, product = inner(&l, &ratio);
        if (info.raised < 1 || info.raised > 5 || info.doubled != 0 || info.kept != 0)
            fail_msg("%s: %d raised, %d doubled, %d kept", f->method, (int)info.raised, (int)info.doubled, (int)info.kept);
        assert_true(isfinite(ratio) && product > 0.0);
        assert_int_equal(lab_map(&l, "other", 0).raised, 0);
        lab_close(&l);
    }
}

/* What rounding leaves of a zero eigenvalue. Its size decides how often the damping is raised: from 0 to 1e-8 of the mean
 * diagonal, then tenfold each time. */
static void check_negative(const char *device, const factor *f)
{
    static const struct {
        double below; /* -smallest eigenvalue / mean diagonal */
        int raised;
    } cases[] = {{3e-8, 2}, {3e-7, 3}, {3e-6, 4}, {3e-5, 5}};
    for (size_t i = strcmp(device, "cpu") == 0 ? 1 : 0; i < sizeof cases / sizeof *cases; i++) {
        lab l;
        open_ready(&l, device, f);
        const double off = 1e6 * (1.0 + cases[i].below); /* eigenvalues diagonal - off, and the large one */
        spoil(&l, f, 1e6, off);
        clean_step(&l);
        abar_map_info info = spoilt_map(&l);
        double ratio, product = inner(&l, &ratio);
        if (info.raised != cases[i].raised || info.kept != 0 || info.doubled != 0)
            fail_msg("%s %s, %g: %d raised, %d doubled, %d kept", f->method, f->options, cases[i].below, (int)info.raised,
                     (int)info.doubled, (int)info.kept);
        assert_true(isfinite(ratio) && product > 0.0);
        lab_close(&l);
    }
}

static void negative_eigenvalue_is_damped_away(void **state)
{
    for (const factor *f = factors; f->method && lab_has(f->method); f++) check_negative(*state, f);
    for (const factor *f = parts; f->method; f++) /* blocks are counted one by one */
        if (of_rank(f) && has_part(f)) check_negative(*state, f);
}

static void check_hopeless(const char *device, const factor *f)
{
    lab l;
    lab_state before, after;
    open_ready(&l, device, f);
    lab_state_take(&l, &before);
    spoil(&l, f, -1e6, 0.0);
    stir(&l, f);
    clean_step(&l);
    lab_state_take(&l, &after);
    abar_map_info info = spoilt_map(&l);
    if (info.raised != 5 || info.doubled != !of_rank(f) || info.kept != 1) /* eigenvalues are in double precision anyway */
        fail_msg("%s %s: %d raised, %d doubled, %d kept", f->method, f->options, (int)info.raised, (int)info.doubled,
                 (int)info.kept);
    if (!same_derived(&before, &after)) fail_msg("%s %s: the previous inverse was not kept whole", f->method, f->options);
    assert_null(lab_state_not_finite(&after));
    double ratio;
    assert_true(inner(&l, &ratio) > 0.0);
    assert_true(fabs(ratio - 1.0) > 1e-3); /* still preconditioned */
    lab_state_put(&l, &before);            /* and it can go on */
    clean_step(&l);
    assert_int_equal(spoilt_map(&l).kept, 0);
    lab_state_drop(&before);
    lab_state_drop(&after);
    lab_close(&l);
}

static void hopeless_factor_keeps_the_previous_inverse(void **state)
{
    for (const factor *f = factors; f->method && lab_has(f->method); f++) check_hopeless(*state, f);
    for (const factor *f = parts; f->method; f++)
        if (has_part(f)) check_hopeless(*state, f);
}

static void hopeless_factor_without_a_previous_inverse_leaves_the_gradient(void **state)
{
    for (const factor *f = factors; f->method && lab_has(f->method); f++) {
        lab l;
        open_lab(&l, *state, f, strcmp(f->method, "kfac") == 0 ? "kl-clip=0" : "");
        spoil(&l, f, -1e6, 0.0); /* the first commit adds a little to it */
        for (int k = 0; k < 2; k++) {
            clean_step(&l);
            assert_int_equal(spoilt_map(&l).kept, k + 1);
            assert_int_equal(spoilt_map(&l).doubled, k + 1);
            double *taken = lab_taken(&l, 0, 0), *g = lab_gradient(&l, 0, 0), ratio;
            assert_true(lab_difference(taken, g, OUT * D) < 1e-7);
            free(taken);
            free(g);
            double *other = lab_taken(&l, 1, 0), *og = lab_gradient(&l, 1, 0); /* others are not held up */
            assert_true(lab_difference(other, og, 9) > 1e-3);
            free(other);
            free(og);
            if (k == 0) continue;
            spoil(&l, f, 0.5, 0.01);
            clean_step(&l);
            assert_int_equal(spoilt_map(&l).kept, 2);
            assert_true(inner(&l, &ratio) > 0.0 && fabs(ratio - 1.0) > 1e-3);
        }
        lab_close(&l);
    }
}

/* ---- eigenvalues ------------------------------------------------------------------------------------------------------ */

static const factor eigen[] = {{"kfac", "kfac-inverse=eigen kl-clip=0 damping=0.01", "A", D},
                               {"kfac", "kfac-inverse=eigen kl-clip=0 damping=0.01", "P", OUT}};

/* Averages are finite; should one not be, both bases stay as they were. */
static void basis_that_cannot_be_found_keeps_both(void **state)
{
    for (int i = 0; i < 2; i++) {
        lab l;
        lab_state before, after;
        open_ready(&l, *state, &eigen[i]);
        lab_state_take(&l, &before);
        spoil(&l, &eigen[i], NAN, 0.0);
        stir(&l, &eigen[i]);
        clean_step(&l);
        lab_state_take(&l, &after);
        assert_int_equal(spoilt_map(&l).kept, 1);
        if (!same_derived(&before, &after)) fail_msg("%s failed, and the other basis was renewed", eigen[i].name);
        lab_state_drop(&before);
        lab_state_drop(&after);
        lab_close(&l);
    }
}

/* Eigenvalues of a factor are not negative; what rounding makes of zeros must neither turn the gradient around nor blow it up:
 * <G^, G> > 0 and |G^| <= |G| / rho whatever the factors. */
static void negative_eigenvalues_neither_turn_nor_enlarge_the_gradient(void **state)
{
    static const double values[] = {-1e-12, -1e-7, -1e-4, -9.99e-5};
    for (int i = 0; i < 2; i++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            lab l;
            open_ready(&l, *state, &eigen[i]);
            spoil(&l, &eigen[i], 100.0, 100.0 - 100.0 * values[v]); /* smallest: 100 times the value */
            spoil(&l, &eigen[1 - i], 100.0, 0.0);
            clean_step(&l);
            double ratio, product = inner(&l, &ratio);
            if (!(product > 0.0 && ratio <= 1.001 / 0.01))
                fail_msg("eigenvalue %g of %s: <G^, G> = %g, |G^| / |G| = %g", 100.0 * values[v], eigen[i].name, product,
                         ratio);
            lab_close(&l);
        }
}

/* The same from data: activations of a large mean, fewer than there are columns. */
static void large_rank_deficient_inputs_descend(void **state)
{
    static const char *const cases[][2] = {{"foof", "damping=1e-3"},
                                           {"kfac", "damping=1e-3 kl-clip=0"},
                                           {"kfac", "damping=1e-3 kl-clip=0 kfac-inverse=eigen"},
                                           {"lngd", ""},
                                           {"skfac", "damping=1e-3"},
                                           {"skfac", "damping=1e-3 examples=0"},
                                           {"kpsvd", "damping=1e-3 kl-clip=0"},
                                           {"mac", "damping=1e-3"},
                                           {"mac", "damping=adaptive"},
                                           {"smac", "damping=1e-3"},
                                           {"eva", "damping=1e-3 kl-clip=0"}};
    const double mean = strcmp(*state, "cpu") == 0 ? 3e4 : 1e9;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t seed = 1; seed <= 6 && lab_has(cases[i][0]); seed++) {
            lab l;
            lab_open(&l, *state, NULL, shapes, LAYERS, 4, seed);
            lab_optimizer(&l, cases[i][0], cases[i][1]);
            lab_draw_batch(&l);
            for (int64_t k = 0; k < abar_tensor_count(&l.layer[0].x); k++)
                lab_set(&l.layer[0].x, k, mean * (1.0 + 0.25 * (double)(k % 6)) + lab_get(&l.layer[0].x, k));
            lab_observe(&l);
            lab_step(&l, 1.0);
            double ratio, product = inner(&l, &ratio);
            if (!(isfinite(ratio) && product > 0.0))
                fail_msg("%s %s, draw %d: <G^, G> = %g, |G^| / |G| = %g", cases[i][0], cases[i][1], (int)seed, product, ratio);
            lab_close(&l);
        }
}

int main(void)
{
    const int missing = lab_begin();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        ON_BOTH(singular_factor_is_damped_until_it_can_be_inverted),
        ON_BOTH(negative_eigenvalue_is_damped_away),
        ON_BOTH(hopeless_factor_keeps_the_previous_inverse),
        ON_BOTH(hopeless_factor_without_a_previous_inverse_leaves_the_gradient),
        ON_BOTH(basis_that_cannot_be_found_keeps_both),
        ON_BOTH(negative_eigenvalues_neither_turn_nor_enlarge_the_gradient),
        ON_BOTH(large_rank_deficient_inputs_descend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
