/* M-FAC (optimizers.md section 8) against dense solves of the damped mean of its gradients' outer products, its limits, and
 * what happens to its ring when gradients are missing, zero, too large or not finite. */
#include "curvature_lab.h"

#include "device/device_impl.h"

static const lab_shape shapes[] = {
    {.name = "fc", .in = 5, .out = 4, .bias = true, .first = true},
    {.name = "tokens", .in = 4, .out = 3, .tokens = 3},
    {.name = "grouped", .in = 4, .out = 4, .bias = true, .image = {4, 3}, .window = {{3, 2}, {1, 1}, {1, 0}, {1, 1}, 2}},
};
enum { LAYERS = sizeof shapes / sizeof *shapes, EXAMPLES = 4 };

static void start(lab *l, const char *device, const char *options, uint64_t seed)
{
    lab_open(l, device, NULL, shapes, LAYERS, EXAMPLES, seed);
    lab_optimizer(l, "mfac", options);
}

/* ---- all gradients, or all that was taken off zero weights, as one vector -------------------------------------------------
 */

static int64_t length_of(const lab *l)
{
    int64_t n = 0;
    for (int i = 0; i < l->n; i++) n += l->layer[i].groups * l->layer[i].outputs * l->layer[i].columns;
    return n;
}

/* Map after map; which: lab_gradient or lab_taken. */
static double *joined(const lab *l, double *(*which)(const lab *l, int layer, int64_t group))
{
    double *all = calloc((size_t)length_of(l), sizeof *all), *at = all;
    for (int i = 0; i < l->n; i++)
        for (int64_t g = 0; g < l->layer[i].groups; g++) {
            const int64_t n = l->layer[i].outputs * l->layer[i].columns;
            double *part = which(l, i, g);
            memcpy(at, part, (size_t)n * sizeof *at);
            free(part);
            at += n;
        }
    return all;
}

/* (damping I + sum of the rows' outer products / m)^-1 g, by elimination. The caller frees it. */
static double *solved(const double *rows, int64_t n_rows, int64_t m, int64_t n, double damping, const double *g)
{
    double *matrix = calloc((size_t)(n * n), sizeof *matrix), *x = calloc((size_t)n, sizeof *x);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) matrix[i * n + j] += rows[r * n + i] * rows[r * n + j] / (double)m;
    for (int64_t i = 0; i < n; i++) matrix[i * n + i] += damping;
    memcpy(x, g, (size_t)n * sizeof *x);
    lab_solve(n, matrix, 1, x);
    free(matrix);
    return x;
}

enum { SLOTS = 5 };

/* Once the ring is full it is the natural gradient of the gradients in it. */
static void mfac_is_the_dense_solve_of_its_ring(void **state)
{
    lab l;
    start(&l, *state, "damping=0.1 mfac-gradients=5", 3);
    const int64_t n = length_of(&l);
    double *rows = calloc((size_t)(SLOTS * n), sizeof *rows);
    for (int k = 0; k < 3 * SLOTS; k++) {
        lab_new_batch(&l);
        double *g = joined(&l, lab_gradient);
        memcpy(rows + k % SLOTS * n, g, (size_t)n * sizeof *g);
        lab_step(&l, 1.0);
        double *found = joined(&l, lab_taken), *right = solved(rows, k < SLOTS ? k + 1 : SLOTS, SLOTS, n, 0.1, g);
        lab_check(&l, "mfac", found, right, n, 1e-11, 1e-5);
        free(found);
        free(right);
        free(g);
    }
    free(rows);
    lab_close(&l);
}

static void mfac_by_layer_is_the_dense_solve_of_each_map(void **state)
{
    lab l;
    start(&l, *state, "damping=0.1 mfac-gradients=3 mfac-scope=layer", 4);
    double rows[3][64];
    for (int k = 0; k < 5; k++) {
        lab_new_batch(&l);
        lab_step(&l, 1.0);
        double *g = lab_gradient(&l, 2, 1), *found = lab_taken(&l, 2, 1);
        const int64_t n = l.layer[2].outputs * l.layer[2].columns;
        assert_true(n <= 64);
        memcpy(rows[k % 3], g, (size_t)n * sizeof *g);
        double flat[3 * 64];
        for (int r = 0; r < 3; r++) memcpy(flat + r * n, rows[r], (size_t)n * sizeof *g);
        double *right = solved(flat, k < 3 ? k + 1 : 3, 3, n, 0.1, g);
        lab_check(&l, "mfac by layer", found, right, n, 1e-11, 1e-5);
        free(right);
        free(found);
        free(g);
    }
    lab_close(&l);
}

/* ---- identities ---------------------------------------------------------------------------------------------------------- */

/* What a step takes is `factor(|g|^2)` times the gradient. */
static void check_multiple(const char *device, const char *options, double damping, double slots, int steps, double exact)
{
    lab l;
    start(&l, device, options, 5);
    const int64_t n = length_of(&l);
    for (int k = 0; k < steps; k++) {
        lab_new_batch(&l);
        lab_step(&l, 1.0);
        double *g = joined(&l, lab_gradient), *found = joined(&l, lab_taken), square = 0.0;
        for (int64_t i = 0; i < n; i++) square += g[i] * g[i];
        for (int64_t i = 0; i < n; i++) g[i] /= damping + square / slots;
        lab_check(&l, options, found, g, n, exact, fmax(exact, 1e-5));
        free(g);
        free(found);
    }
    lab_close(&l);
}

static void mfac_of_one_gradient_divides_by_its_square(void **state)
{
    check_multiple(*state, "damping=0.01 mfac-gradients=1", 0.01, 1.0, 4, 1e-12);
}

static void mfac_first_step_divides_by_the_share_of_one_slot(void **state)
{
    check_multiple(*state, "damping=1e-5 mfac-gradients=1024", 1e-5, 1024.0, 1, 1e-10);
}

static void mfac_of_a_large_damping_is_the_gradient_over_it(void **state)
{
    check_multiple(*state, "damping=1e12 mfac-gradients=4", 1e12, INFINITY, 6, 1e-9);
}

/* Without a method there is nothing between the two. */
static void decay_inside_without_a_method_is_coupled(void **state)
{
    static const char *const settings[] = {"momentum=0.9 weight-decay=0.1", "momentum=0.9 nesterov=true weight-decay=0.1"};
    for (int i = 0; i < 2; i++) {
        char inside[256];
        lab a, b;
        start(&a, *state, "mfac-gradients=1", 16);
        start(&b, *state, "mfac-gradients=1", 16);
        lab_optimizer(&a, NULL, settings[i]);
        lab_optimizer(&b, NULL, lab_with(inside, settings[i], "decay=inside"));
        lab_draw_batch(&a);
        for (int k = 0; k < LAYERS; k++) lab_fill(&a, &a.layer[k].weight, 1.0);
        lab_draw_batch(&b);
        for (int k = 0; k < LAYERS; k++) lab_fill(&b, &b.layer[k].weight, 1.0);
        for (int k = 0; k < 5; k++) {
            const abar_step_config step = {.size = sizeof step, .lr = 0.1, .clip = 0.5, .grad_scale = 0.25};
            lab_draw_batch(&a);
            lab_draw_batch(&b);
            lab_load_gradients(&a);
            lab_load_gradients(&b);
            NEED(&a, abar_optim_step(a.optim, &step, NULL));
            NEED(&b, abar_optim_step(b.optim, &step, NULL));
            lab_check_same(&a, &b, settings[i], 1e-12, 1e-6);
        }
        lab_close(&a);
        lab_close(&b);
    }
}

/* ---- faults -------------------------------------------------------------------------------------------------------------- */

static void assert_state(lab *l, const lab_state *before, const char *what)
{
    lab_state now;
    lab_state_take(l, &now);
    const char *changed = lab_state_changed(before, &now);
    if (changed && strcmp(changed, "curvature.steps") != 0) fail_msg("%s: %s changed", what, changed);
    lab_state_drop(&now);
}

static void mfac_skipped_step_writes_nothing(void **state)
{
    static const double bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        lab l, other;
        lab_state before;
        start(&l, *state, "damping=0.1 mfac-gradients=3", 6);
        start(&other, *state, "damping=0.1 mfac-gradients=3", 6);
        for (int k = 0; k < 6; k++) {
            lab_new_batch(&l);
            lab_copy_batch(&l, &other);
            if (k == 2 || k == 3) { /* which the other never sees */
                lab_state_take(&l, &before);
                if (k == 2) lab_set(&l.layer[1].gw, 1, bad[i]);
                if (k == 2) assert_true(lab_step(&l, 1.0).skipped);
                if (k == 3) abar_optim_skip(l.optim);
                assert_state(&l, &before, "skipped");
                lab_state_drop(&before);
                continue;
            }
            lab_step(&l, 1.0);
            lab_step(&other, 1.0);
            lab_check_same(&l, &other, "after a skipped step", 0.0, 0.0);
        }
        lab_close(&l);
        lab_close(&other);
    }
}

static void mfac_zero_gradient_stays_zero_and_fills_a_slot(void **state)
{
    lab l;
    start(&l, *state, "damping=0.1 mfac-gradients=2", 7);
    for (int k = 0; k < 5; k++) {
        lab_new_batch(&l);
        for (int i = 0; i < l.n && k < 3; i++) {
            memset(l.layer[i].gw.data, 0, abar_tensor_bytes(&l.layer[i].gw));
            if (l.layer[i].gb.data) memset(l.layer[i].gb.data, 0, abar_tensor_bytes(&l.layer[i].gb));
        }
        lab_step(&l, 1.0);
        double *found = joined(&l, lab_taken), sum = 0.0;
        for (int64_t i = 0; i < length_of(&l); i++) sum += fabs(found[i]);
        assert_true(k < 3 ? sum == 0.0 : isfinite(sum) && sum > 0.0);
        assert_int_equal(lab_map(&l, ABAR_ALL_PARAMETERS, 0).commits, k + 1);
        free(found);
    }
    lab_close(&l);
}

/* A parameter without a gradient does not move; to the others it is as if its gradient were zero. */
static void mfac_parameter_without_gradient_is_left_alone(void **state)
{
    lab without, zero;
    start(&without, *state, "damping=0.1 mfac-gradients=3 momentum=0.9 weight-decay=0.1 decay=inside", 8);
    start(&zero, *state, "damping=0.1 mfac-gradients=3 momentum=0.9 weight-decay=0.1 decay=inside", 8);
    lab_layer *y = &without.layer[1];
    NEED(&without, abar_optim_set_param(without.optim, 2, y->weight.data, NULL, 1.0, 0.1)); /* "tokens.weight" */
    NEED(&zero, abar_optim_set_param(zero.optim, 2, zero.layer[1].weight.data, zero.layer[1].weight_grad.data, 1.0, 0.0));
    for (int k = 0; k < 7; k++) {
        lab_draw_batch(&without);
        for (int i = 0; i < LAYERS; i++) {
            lab_copy(&zero.layer[i].gw, &without.layer[i].gw);
            if (zero.layer[i].gb.data) lab_copy(&zero.layer[i].gb, &without.layer[i].gb);
        }
        memset(zero.layer[1].gw.data, 0, abar_tensor_bytes(&zero.layer[1].gw));
        lab_step(&without, 0.1);
        lab_step(&zero, 0.1);
    }
    for (int64_t i = 0; i < abar_tensor_count(&y->weight); i++) {
        abar_tensor host = lab_host_copy(&y->weight);
        assert_true(lab_get(&host, i) == 0.0);
        free(host.data);
    }
    lab_check_same(&without, &zero, "without a gradient", 1e-12, 1e-5);
    lab_close(&without);
    lab_close(&zero);
}

/* Products that overflow leave the gradient as it is and the slot empty; later steps do not know of it. */
static void mfac_gradient_too_large_to_multiply_is_left_as_it_is(void **state)
{
    lab l, other;
    start(&l, "ref", "damping=0.1 mfac-gradients=3", 9);
    start(&other, "ref", "damping=0.1 mfac-gradients=3", 9);
    (void)state;
    for (int k = 0; k < 5; k++) {
        lab_new_batch(&l);
        lab_copy_batch(&l, &other);
        if (k == 1) lab_set(&l.layer[0].gw, 0, 1e200);
        assert_false(lab_step(&l, 1.0).skipped);
        if (k == 1) {
            double *found = joined(&l, lab_taken), *g = joined(&l, lab_gradient);
            assert_true(lab_difference(found, g, length_of(&l)) == 0.0);
            free(found);
            free(g);
            continue;
        }
        lab_step(&other, 1.0);
        lab_check_same(&l, &other, "after a large gradient", 0.0, 0.0);
    }
    assert_int_equal(lab_map(&l, ABAR_ALL_PARAMETERS, 0).kept, 1);
    lab_close(&l);
    lab_close(&other);
}

/* Equal gradients and hardly any damping. */
static void mfac_singular_ring_stays_finite(void **state)
{
    lab l;
    start(&l, *state, "damping=1e-30 mfac-gradients=4", 10);
    lab_new_batch(&l);
    for (int k = 0; k < 9; k++) {
        lab_clear_weights(&l);
        lab_step(&l, 1.0);
        double *found = joined(&l, lab_taken);
        for (int64_t i = 0; i < length_of(&l); i++) assert_true(isfinite(found[i]));
        free(found);
    }
    assert_int_equal(lab_map(&l, ABAR_ALL_PARAMETERS, 0).kept, 0);
    lab_close(&l);
}

/* A step with a Gram matrix that is not one: times so much of the geometric mean of two diagonals beside them. */
static abar_map_info step_with_bad_products(lab *l, double times)
{
    lab_state s;
    lab_new_batch(l);
    lab_step(l, 1.0);
    lab_new_batch(l);
    lab_step(l, 1.0);
    lab_state_take(l, &s);
    const abar_tensor *gram = lab_state_find(&s, "curvature." ABAR_ALL_PARAMETERS ".gram");
    const double off = times * sqrt(lab_get(gram, 0) * lab_get(gram, 5)); /* (4, 4) */
    lab_set(gram, 1, off);
    lab_set(gram, 4, off);
    lab_state_put(l, &s);
    lab_state_drop(&s);
    lab_new_batch(l);
    assert_false(lab_step(l, 1.0).skipped);
    return lab_map(l, ABAR_ALL_PARAMETERS, 0);
}

/* The ladder of section 9. */
static void mfac_indefinite_ring_raises_the_damping(void **state)
{
    lab l;
    start(&l, *state, "damping=1e-3 mfac-gradients=4", 14);
    const abar_map_info map = step_with_bad_products(&l, 2.0);
    assert_in_range(map.raised, 1, 5);
    assert_int_equal(map.kept, 0);
    assert_true(fabs(map.damping / (1e-3 * pow(10.0, (double)map.raised)) - 1.0) < 1e-9);
    lab_close(&l);
}

static void mfac_hopeless_ring_leaves_the_gradient(void **state)
{
    lab l;
    start(&l, *state, "damping=1e-3 mfac-gradients=4", 15);
    const abar_map_info map = step_with_bad_products(&l, 1e9);
    double *found = joined(&l, lab_taken), *g = joined(&l, lab_gradient);
    assert_int_equal(map.raised, 5);
    assert_int_equal(map.kept, 1);
    lab_check(&l, "gradient", found, g, length_of(&l), 0.0, 1e-7);
    free(found);
    free(g);
    lab_close(&l);
}

/* ---- state --------------------------------------------------------------------------------------------------------------- */

static const char *const variants[] = {
    "damping=0.1 mfac-gradients=4 momentum=0.9 weight-decay=0.01",
    "damping=0.1 mfac-gradients=4 mfac-scope=layer weight-decay=0.01 decay=inside",
    "damping=0.1 mfac-gradients=6 mfac-precision=bf16 rule=adamw",
    "damping=0.1 mfac-gradients=6 mfac-precision=bf16 mfac-scope=layer momentum=0.9",
};

static void train(lab *l, int from, int to)
{
    for (int k = from; k < to; k++) {
        lab_draw_batch(l);
        if (k == 5) lab_set(&l->layer[0].gw, 0, NAN);
        lab_observe(l);
        lab_step(l, 0.05);
    }
}

static void mfac_state_put_back_goes_on_bit_for_bit(void **state)
{
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        lab whole, fresh;
        lab_state taken, a, b;
        start(&whole, *state, variants[v], 11);
        start(&fresh, *state, variants[v], 12);
        train(&whole, 0, 9);
        train(&fresh, 0, 3);
        lab_state_take(&whole, &taken);
        lab_state_put(&fresh, &taken);
        fresh.noise = whole.noise;
        train(&whole, 9, 16);
        train(&fresh, 9, 16);
        lab_state_take(&whole, &a);
        lab_state_take(&fresh, &b);
        const char *changed = lab_state_changed(&a, &b);
        if (changed) fail_msg("%s: %s differs", variants[v], changed);
        assert_null(lab_state_not_finite(&a));
        lab_state_drop(&taken);
        lab_state_drop(&a);
        lab_state_drop(&b);
        lab_close(&whole);
        lab_close(&fresh);
    }
}

/* It takes no statistics: what is observed, in however many parts, changes nothing. */
static void mfac_observes_nothing_and_allocates_nothing(void **state)
{
    lab seen, blind;
    start(&seen, *state, variants[0], 13);
    start(&blind, *state, variants[0], 13);
    const uint64_t before = abar_context_memory(seen.ctx).allocations;
    for (int k = 0; k < 6; k++) {
        lab_new_batch(&seen);
        lab_copy_batch(&seen, &blind);
        assert_false(abar_optim_observes(seen.optim));
        lab_observe_layer(&seen, 0, 0, 2, 1.0, 1.0);
        lab_observe_layer(&seen, 0, 2, 2, 1.0, 1.0);
        lab_step(&seen, 1.0);
        lab_step(&blind, 1.0);
        lab_check_same(&seen, &blind, "observed", 0.0, 0.0);
    }
    assert_int_equal(abar_context_memory(seen.ctx).allocations, before);
    lab_close(&seen);
    lab_close(&blind);
}

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

static void mfac_memory_is_as_planned(void **state)
{
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        lab l;
        lab_request request;
        size_t plan, names = 0;
        lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 1);
        lab_request_make(&l, "mfac", variants[v], &request);
        for (int i = 0; i < request.config.n_params; i++) names += strlen(request.params[i].name) + 1;
        NEED(&l, abar_optim_plan_bytes(l.dev, &request.config, &plan));
        const size_t before = abar_context_memory(l.ctx).now;
        NEED(&l, abar_optim_create(l.dev, &request.config, &l.optim));
        assert_int_equal(abar_context_memory(l.ctx).now - before, abar_optim_bytes(l.optim));
        assert_in_range(abar_optim_bytes(l.optim) - plan, names, names + 64);
        if (v == 0) { /* m P of the device's numbers, m m doubles */
            const size_t ring = 4 * (size_t)length_of(&l) * abar_dtype_size(abar_device_dtype(l.dev));
            assert_int_equal(lab_map(&l, ABAR_ALL_PARAMETERS, 0).state_bytes, whole_lines(ring) + whole_lines(16 * 8));
        }
        lab_request_drop(&request);
        lab_close(&l);
    }
}

/* Fails the test where more than a few megabytes are asked for at once. */
static void *modest_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    assert_true(bytes < (size_t)32 << 20);
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void modest_release(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

/* A ring that would not fit is counted without being allocated. */
static void mfac_plan_of_a_huge_ring_takes_no_memory(void **state)
{
    const abar_allocator modest = {.alloc = modest_alloc, .release = modest_release};
    const int64_t dim[2] = {1024, 1024};
    lab l;
    lab_request request;
    size_t plan;
    lab_open(&l, *state, &modest, shapes, LAYERS, EXAMPLES, 1);
    lab_request_make(&l, "mfac", "mfac-gradients=1024", &request);
    request.params[0].value = abar_tensor_wrap(l.dev, NULL, abar_device_dtype(l.dev), 2, dim);
    request.params[0].grad = request.params[0].value;
    request.config.n_params = 1;
    request.config.n_layers = 0;
    NEED(&l, abar_optim_plan_bytes(l.dev, &request.config, &plan));
    assert_true(plan > ((size_t)1 << 30) * abar_dtype_size(abar_device_dtype(l.dev)));
    lab_request_drop(&request);
    lab_close(&l);
}

/* The ring is of gradients as they are scaled and clipped, whatever they are in memory. */
static void mfac_is_of_the_scaled_and_clipped_gradients(void **state)
{
    static const char *const options[] = {"mfac-gradients=3 damping=0.1", "mfac-gradients=3 damping=0.1 mfac-scope=layer"};
    for (int i = 0; i < 2; i++) {
        lab l[2];
        for (int k = 0; k < 2; k++) {
            start(&l[k], *state, options[i], 6);
            const abar_step_config step = {.size = sizeof step, .lr = 0.1, .clip = 0.5, .grad_scale = k == 0 ? 1.0 : 0.125};
            for (int j = 0; j < 5; j++) {
                lab_draw_batch(&l[k]);
                for (int layer = 0; layer < LAYERS && k == 1; layer++) {
                    const abar_tensor *both[] = {&l[k].layer[layer].gw, &l[k].layer[layer].gb};
                    for (int t = 0; t < 2; t++)
                        for (int64_t e = 0; both[t]->data && e < abar_tensor_count(both[t]); e++)
                            lab_set(both[t], e, 8.0 * lab_get(both[t], e));
                }
                lab_load_gradients(&l[k]);
                NEED(&l[k], abar_optim_step(l[k].optim, &step, NULL));
            }
        }
        lab_check_same(&l[0], &l[1], options[i], 1e-12, 1e-5);
        for (int k = 0; k < 2; k++) lab_close(&l[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(mfac_is_the_dense_solve_of_its_ring),
        ON_BOTH(mfac_by_layer_is_the_dense_solve_of_each_map),
        ON_BOTH(mfac_of_one_gradient_divides_by_its_square),
        ON_BOTH(mfac_first_step_divides_by_the_share_of_one_slot),
        ON_BOTH(mfac_of_a_large_damping_is_the_gradient_over_it),
        ON_BOTH(decay_inside_without_a_method_is_coupled),
        ON_BOTH(mfac_skipped_step_writes_nothing),
        ON_BOTH(mfac_zero_gradient_stays_zero_and_fills_a_slot),
        ON_BOTH(mfac_parameter_without_gradient_is_left_alone),
        ON(mfac_gradient_too_large_to_multiply_is_left_as_it_is, "ref"),
        ON_BOTH(mfac_singular_ring_stays_finite),
        ON_BOTH(mfac_indefinite_ring_raises_the_damping),
        ON_BOTH(mfac_hopeless_ring_leaves_the_gradient),
        ON_BOTH(mfac_state_put_back_goes_on_bit_for_bit),
        ON_BOTH(mfac_observes_nothing_and_allocates_nothing),
        ON_BOTH(mfac_memory_is_as_planned),
        ON_BOTH(mfac_plan_of_a_huge_ring_takes_no_memory),
        ON_BOTH(mfac_is_of_the_scaled_and_clipped_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
