/* Rows, however they are given (methods.md section 10): a convolution is a linear layer on its patches, for every method and
 * window; and where the numbers of a batch lie, and in which type, changes nothing. */
#include "curvature_lab.h"

#define EVERY_STEP "tcov=1 tinv=1 "

/* ---- convolutions and their rows ----------------------------------------------------------------------------------------- */

/* A lab with one linear layer on sequences per group of the convolution. */
static void open_unfolded(lab *l, const char *device, const lab *conv)
{
    static const char *const names[] = {"g0", "g1", "g2", "g3"};
    const lab_layer *y = &conv->layer[0];
    lab_shape shapes[4] = {{0}};
    assert_in_range(y->groups, 1, 4);
    for (int64_t g = 0; g < y->groups; g++)
        shapes[g] = (lab_shape){.name = names[g],
                                .in = y->columns - (y->shape.bias ? 1 : 0),
                                .out = y->outputs,
                                .bias = y->shape.bias,
                                .tokens = y->rows};
    lab_open(l, device, NULL, shapes, (int)y->groups, conv->examples, 1);
}

/* The convolution's batch as explicit patches. */
static void unfold_batch(const lab *conv, lab *l)
{
    for (int g = 0; g < l->n; g++) {
        const lab_layer *to = &l->layer[g];
        const int64_t d = to->columns, in = to->shape.in, rows = conv->examples * to->rows;
        double *x = lab_rows(conv, 0, g), *p = lab_row_grads(conv, 0, g), *m = lab_gradient(conv, 0, g);
        for (int64_t i = 0; i < rows * in; i++) lab_set(&to->x, i, x[i / in * d + i % in]);
        for (int64_t i = 0; i < rows * to->outputs; i++) lab_set(&to->p, i, p[i]);
        for (int64_t i = 0; i < to->outputs * in; i++) lab_set(&to->gw, i, m[i / in * d + i % in]);
        for (int64_t o = 0; o < to->outputs && to->shape.bias; o++) lab_set(&to->gb, o, m[o * d + in]);
        free(x);
        free(p);
        free(m);
    }
    lab_clear_weights(l);
}

static void check_convolution(const char *device, const lab_shape *shape, const char *method, const char *options,
                              uint64_t seed)
{
    lab conv, rows;
    char all[256], what[200];
    lab_with(all, options, EVERY_STEP "stat-decay=0.5");
    lab_open(&conv, device, NULL, shape, 1, 3, seed);
    open_unfolded(&rows, device, &conv);
    lab_optimizer(&conv, method, all);
    lab_optimizer(&rows, method, all);
    for (int k = 0; k < 2; k++) {
        lab_new_batch(&conv);
        unfold_batch(&conv, &rows);
        lab_observed_step(&conv);
        lab_observed_step(&rows);
        for (int g = 0; g < rows.n; g++) {
            double *a = lab_taken(&conv, 0, g), *b = lab_taken(&rows, g, 0);
            const abar_window *w = &shape->window;
            snprintf(what, sizeof what, "%s %.60s, kernel %dx%d stride %d pad %d dilation %d groups %d", method, options,
                     (int)w->kernel[0], (int)w->kernel[1], (int)w->stride[0], (int)w->pad[0], (int)w->dilation[0],
                     (int)w->groups);
            lab_check(&conv, what, a, b, conv.layer[0].outputs * conv.layer[0].columns, 1e-9, 3e-4);
            free(a);
            free(b);
        }
    }
    lab_close(&conv);
    lab_close(&rows);
}

static void convolution_of_single_pixels_is_a_linear_layer_on_rows(void **state)
{
    const lab_shape shapes[] = {
        {.name = "conv", .in = 5, .out = 4, .bias = true, .image = {3, 4}, .window = {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
        {.name = "conv", .in = 9, .out = 3, .image = {5, 3}, .window = {{1, 1}, {2, 2}, {0, 0}, {1, 1}, 1}},
    };
    for (int i = 0; lab_cases[i][0]; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            check_convolution(*state, &shapes[s], lab_cases[i][0], lab_cases[i][1], (uint64_t)i + 7 * s);
}

static void convolution_statistics_are_those_of_explicit_patches(void **state)
{
    static const abar_window grid[] = {
        {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, 1}, {{3, 3}, {1, 1}, {0, 0}, {2, 2}, 1},
        {{3, 2}, {2, 1}, {2, 0}, {1, 3}, 1}, {{2, 2}, {2, 2}, {0, 0}, {1, 1}, 2}, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 2},
        {{1, 3}, {1, 2}, {0, 2}, {1, 2}, 1}, {{5, 5}, {1, 1}, {2, 2}, {1, 1}, 1}, {{2, 1}, {3, 3}, {1, 2}, {2, 1}, 4},
        {{3, 3}, {3, 1}, {2, 2}, {2, 1}, 4}, {{1, 1}, {3, 2}, {1, 1}, {1, 1}, 2}, {{4, 4}, {4, 4}, {0, 0}, {1, 1}, 1},
    };
    for (size_t w = 0; w < sizeof grid / sizeof *grid; w++)
        for (int i = 0; lab_cases[i][0]; i++) {
            const int64_t groups = grid[w].groups, channels = groups * (groups == 1 ? 2 : 1);
            lab_shape shape = {.name = "conv",
                               .in = channels,
                               .out = 2 * groups,
                               .bias = (w + (size_t)i) % 2,
                               .image = {7, 6},
                               .window = grid[w]};
            check_convolution(*state, &shape, lab_cases[i][0], lab_cases[i][1], 100 * w + (uint64_t)i);
        }
}

/* ---- pixels that no patch covers ---------------------------------------------------------------------------------------- */

static bool is_covered(const abar_window *w, int axis, int64_t extent, int64_t place)
{
    for (int64_t k = 0; k < w->kernel[axis]; k++) {
        const int64_t from = place + w->pad[axis] - k * w->dilation[axis];
        if (from >= 0 && from % w->stride[axis] == 0 && from / w->stride[axis] < abar_window_out(w, axis, extent)) return true;
    }
    return false;
}

/* Returns how many pixels got the value. */
static int64_t set_uncovered(const lab *l, double value)
{
    const lab_layer *y = &l->layer[0];
    int64_t count = 0;
    for (int64_t i = 0; i < abar_tensor_count(&y->x); i++) {
        const int64_t row = i / y->x.dim[3] % y->x.dim[2], column = i % y->x.dim[3];
        if (is_covered(&y->shape.window, 0, y->x.dim[2], row) && is_covered(&y->shape.window, 1, y->x.dim[3], column)) continue;
        lab_set(&y->x, i, value);
        count++;
    }
    return count;
}

static void check_uncovered(const char *device, const lab_shape *shape, const char *const method[2], lab_layout lie,
                            abar_dtype dtype)
{
    lab clean, spoiled;
    char all[256], what[200];
    lab_with(all, method[1], EVERY_STEP);
    lab_open(&clean, device, NULL, shape, 1, 3, 5);
    lab_open(&spoiled, device, NULL, shape, 1, 3, 5);
    clean.lie = spoiled.lie = lie;
    clean.dtype = spoiled.dtype = dtype;
    lab_optimizer(&clean, method[0], all);
    lab_optimizer(&spoiled, method[0], all);
    lab_new_batch(&clean);
    lab_copy_batch(&clean, &spoiled);
    assert_true(set_uncovered(&spoiled, (double)NAN) > 0);
    lab_observed_step(&clean);
    lab_observed_step(&spoiled);
    snprintf(what, sizeof what, "%s %.60s, uncovered pixels in layout %d as %s", method[0], method[1], (int)lie,
             abar_dtype_name(dtype));
    for (int64_t g = 0; g < spoiled.layer[0].groups; g++) {
        if (lab_map(&spoiled, "conv", g).dropped) fail_msg("%s: dropped", what);
    }
    lab_check_same(&spoiled, &clean, what, 0.0, 0.0);
    lab_close(&clean);
    lab_close(&spoiled);
}

static void pixels_that_no_patch_covers_may_be_anything(void **state)
{
    const lab_shape shapes[] = {
        {.name = "conv", .in = 1, .out = 1, .image = {1, 2}, .window = {{1, 1}, {1, 2}, {0, 0}, {1, 1}, 1}},
        {.name = "conv", .in = 17, .out = 4, .bias = true, .image = {7, 6}, .window = {{1, 1}, {3, 2}, {0, 0}, {1, 1}, 1}},
        {.name = "conv", .in = 4, .out = 4, .image = {8, 8}, .window = {{2, 2}, {3, 3}, {0, 0}, {1, 1}, 2}},
        {.name = "conv", .in = 3, .out = 2, .image = {9, 8}, .window = {{3, 3}, {4, 4}, {1, 0}, {1, 1}, 1}},
        {.name = "conv", .in = 2, .out = 2, .image = {9, 9}, .window = {{3, 2}, {6, 5}, {0, 0}, {2, 2}, 1}},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = 0; lab_cases[i][0]; i++)
            for (lab_layout lie = LAB_DENSE; lie < LAB_LAYOUTS; lie++) {
                check_uncovered(*state, &shapes[s], lab_cases[i], lie, strcmp(*state, "ref") == 0 ? ABAR_F64 : ABAR_F32);
                if (lie == LAB_DENSE) check_uncovered(*state, &shapes[s], lab_cases[i], lie, ABAR_BF16);
            }
}

/* ---- layouts ------------------------------------------------------------------------------------------------------------- */

static const lab_shape mixed[] = {
    {.name = "vectors", .in = 6, .out = 4, .bias = true},
    {.name = "tokens", .in = 5, .out = 3, .tokens = 4},
    {.name = "wide", .in = 17, .out = 18, .bias = true, .image = {2, 3}, .window = {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {.name = "grouped", .in = 6, .out = 4, .image = {4, 4}, .window = {{3, 2}, {1, 2}, {1, 1}, {1, 1}, 2}},
};
enum { MIXED = sizeof mixed / sizeof *mixed };

static void check_lie(const char *device, const char *method, const char *options, lab_layout lie, abar_dtype dtype)
{
    lab dense, other;
    char all[256], what[200];
    lab_with(all, options, EVERY_STEP);
    lab_open(&dense, device, NULL, mixed, MIXED, 3, 5);
    lab_open(&other, device, NULL, mixed, MIXED, 3, 5);
    other.lie = lie;
    other.dtype = dtype;
    lab_optimizer(&dense, method, all);
    lab_optimizer(&other, method, all);
    for (int k = 0; k < 2; k++) {
        lab_new_batch(&dense);
        lab_copy_batch(&dense, &other);
        lab_observed_step(&dense);
        lab_observed_step(&other);
        snprintf(what, sizeof what, "%s %s in layout %d as %s", method, options, (int)lie, abar_dtype_name(dtype));
        lab_check_same(&other, &dense, what, 0.0, 3e-4);
    }
    lab_close(&dense);
    lab_close(&other);
}

static void layouts_and_types_of_the_batch_do_not_matter(void **state)
{
    for (int i = 0; lab_cases[i][0]; i++) {
        for (lab_layout lie = LAB_CHANNELS_LAST; lie < LAB_LAYOUTS; lie++)
            check_lie(*state, lab_cases[i][0], lab_cases[i][1], lie, strcmp(*state, "ref") == 0 ? ABAR_F64 : ABAR_F32);
        check_lie(*state, lab_cases[i][0], lab_cases[i][1], LAB_DENSE, ABAR_BF16);
        check_lie(*state, lab_cases[i][0], lab_cases[i][1], LAB_C16, strcmp(*state, "ref") == 0 ? ABAR_F32 : ABAR_F64);
    }
}

int main(void)
{
    const int missing = lab_begin();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        ON_BOTH(convolution_of_single_pixels_is_a_linear_layer_on_rows),
        ON_BOTH(convolution_statistics_are_those_of_explicit_patches),
        ON_BOTH(pixels_that_no_patch_covers_may_be_anything),
        ON_BOTH(layouts_and_types_of_the_batch_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
