/* The cpu's products of rows against ref: every window, layout, dtype and batch, odd ones included. What the sums are added to
 * and what lies beside them is checked as well: memory of the other triangle must stay as it is. */
#include "geometries.h"
#include "isa_testing.h"
#include "stats_testing.h"
#include "tensor/tensor_impl.h"

#define TOLERANCE 2e-6 /* of the largest element */

/* ---- tensors ------------------------------------------------------------------------------------------------------ */

/* How a tensor lies: blocked, dense, channels last, or with gaps. */
typedef enum form { DENSE, LAST, GAPS, C8, C16, N16, FORMS } form;
static const char *const form_names[] = {"dense", "channels-last", "gaps", "c8", "c16", "n16"};

static void set_strides(abar_tensor *t, form f)
{
    int64_t gap = f == GAPS ? 3 : 0, stride = f == GAPS ? 2 : 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        t->stride[i] = stride;
        stride = stride * t->dim[i] + gap;
    }
    if (f != LAST || t->ndim != 4) return;
    t->stride[1] = 1;
    t->stride[3] = t->dim[1];
    t->stride[2] = t->dim[1] * t->dim[3];
}

/* Padding of blocked layouts and gaps hold numbers that nobody may look at. */
static abar_tensor make_tensor(form f, abar_dtype dtype, int ndim, const int64_t *dim)
{
    abar_tensor t = abar_tensor_wrap(NULL, NULL, dtype, ndim, dim);
    const abar_layout layouts[] = {[C8] = ABAR_LAYOUT_C8, [C16] = ABAR_LAYOUT_C16, [N16] = ABAR_LAYOUT_N16};
    if (f >= C8 && ndim == 4)
        t.layout = layouts[f];
    else
        set_strides(&t, f);
    t.data = malloc(abar_tensor_bytes(&t));
    assert_non_null(t.data);
    memset(t.data, 0xff, abar_tensor_bytes(&t));
    int64_t index[4] = {0};
    for (int64_t k = 0; k < abar_tensor_count(&t); k++) {
        for (int64_t i = ndim - 1, rest = k; i >= 0; rest /= dim[i--]) index[i] = rest % dim[i];
        abar__tensor_store(&t, abar__tensor_offset(&t, index), uniform() + 0.3);
    }
    return t;
}

/* ---- cases -------------------------------------------------------------------------------------------------------- */

/* Too large to be worked on in one piece, or to be copied together at all. */
static const geometry large[] = {
    {"bands", 16, 1, 40, 60, {{2, 2}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {"bands, 3 channels", 3, 1, 40, 60, {{2, 2}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {"bands, lags both ways", 20, 1, 30, 150, {{2, 1}, {1, 1}, {1, 0}, {1, 1}, 1}},
    {"very wide", 16, 1, 1, 3000, {{1, 2}, {1, 1}, {0, 0}, {1, 1}, 1}},
};

/* One map with its tensors. */
typedef struct problem {
    char label[200];
    abar__rows rows;
    double *weight;
    abar_device *dev;
} problem;

static problem make_convolution(const geometry *g, int64_t n, form f, abar_dtype dtype, bool bias, bool weighted, int threads)
{
    const abar_window *w = &g->window;
    const int64_t p = abar_window_out(w, 0, g->height), q = abar_window_out(w, 1, g->width);
    problem x = {.dev = cpu[threads]};
    snprintf(x.label, sizeof x.label, "%s: %lld images, %s, %s%s%s, %d threads", g->name, (long long)n, form_names[f],
             abar_dtype_name(dtype), bias ? ", bias" : "", weighted ? ", weights" : "", threads);
    x.rows = (abar__rows){
        .input = make_tensor(f, dtype, 4, (int64_t[]){n, g->channels, g->height, g->width}),
        .output_grad = make_tensor(f, dtype, 4, (int64_t[]){n, g->out, p, q}),
        .grad_scale = 0.7,
        .window = *w,
        .convolution = true,
        .bias = bias,
        .group = below(w->groups),
        .examples = n,
        .per_example = p * q,
        .in = g->channels / w->groups * w->kernel[0] * w->kernel[1],
        .out = g->out / w->groups,
    };
    x.weight = malloc((size_t)n * sizeof *x.weight);
    for (int64_t i = 0; i < n; i++) x.weight[i] = weighted ? fabs(uniform()) : 1.0;
    return x;
}

/* tokens 0: (N, I) */
static problem make_linear(int64_t n, int64_t tokens, int64_t in, int64_t out, form f, abar_dtype dtype, bool bias,
                           bool weighted, int threads)
{
    const int ndim = tokens ? 3 : 2;
    problem x = {.dev = cpu[threads]};
    snprintf(x.label, sizeof x.label, "linear %lld x %lld x %lld -> %lld, %s, %s%s%s, %d threads", (long long)n,
             (long long)tokens, (long long)in, (long long)out, form_names[f], abar_dtype_name(dtype), bias ? ", bias" : "",
             weighted ? ", weights" : "", threads);
    x.rows = (abar__rows){
        .input = make_tensor(f, dtype, ndim, tokens ? (int64_t[]){n, tokens, in} : (int64_t[]){n, in}),
        .output_grad = make_tensor(f, dtype, ndim, tokens ? (int64_t[]){n, tokens, out} : (int64_t[]){n, out}),
        .grad_scale = -1.5,
        .window = abar_window_unit(),
        .bias = bias,
        .examples = n,
        .per_example = tokens ? tokens : 1,
        .in = in,
        .out = out,
    };
    x.weight = malloc((size_t)n * sizeof *x.weight);
    for (int64_t i = 0; i < n; i++) x.weight[i] = weighted ? fabs(uniform()) : 1.0;
    return x;
}

static void free_problem(problem *x)
{
    free(x->rows.input.data);
    free(x->rows.output_grad.data);
    free(x->weight);
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

typedef enum kind { INPUT, GRAD, INPUT_MEAN, GRAD_MEAN, KINDS } kind;
static const char *const kind_names[] = {"input", "grad", "input mean", "grad mean"};

static void run_product(abar_device *dev, const problem *x, kind k, bool weighted, void *square, void *scratch)
{
    const abar__stats_ops *s = dev->ops->stats;
    switch (k) {
    case INPUT: s->input_product(dev, &x->rows, weighted ? x->weight : NULL, square, scratch); break;
    case GRAD: s->grad_product(dev, &x->rows, square, scratch); break;
    case INPUT_MEAN: s->input_mean_product(dev, &x->rows, square, scratch); break;
    case GRAD_MEAN: s->grad_mean_product(dev, &x->rows, square, scratch); break;
    case KINDS: break;
    }
}

/* What scratch may be known by: not the tensors, nor how many examples there are. */
static void *product_scratch(const problem *x, size_t *bytes)
{
    const abar__rows *r = &x->rows;
    abar__rows map = {.window = r->window, .convolution = r->convolution, .bias = r->bias, .in = r->in, .out = r->out};
    *bytes = x->dev->ops->stats->product_scratch(x->dev, &map);
    void *scratch = take(x->dev, *bytes);
    memset(scratch, 0xff, *bytes);
    return scratch;
}

static bool upper_is_untouched(int64_t d, const float *square)
{
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i + 1; j < d; j++) {
            uint32_t bits;
            memcpy(&bits, &square[i * d + j], sizeof bits);
            if (bits != 0xffffffffu) return false;
        }
    return true;
}

static double lower_difference(int64_t d, const float *square, const double *expected)
{
    double worst = 0.0, largest = 0.0;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++) {
            double difference = fabs((double)square[i * d + j] - expected[i * d + j]);
            if (!(difference <= worst)) worst = difference;
            largest = fmax(largest, fabs(expected[i * d + j]));
        }
    return worst / largest;
}

static void check_product(const problem *x, kind k, bool weighted)
{
    const int64_t d = k == INPUT || k == INPUT_MEAN ? abar__rows_d(&x->rows) : x->rows.out;
    const size_t bytes = (size_t)(d * d) * sizeof(float);
    size_t scratch_bytes;
    void *scratch = product_scratch(x, &scratch_bytes);
    float *first = malloc(bytes), *second = malloc(bytes);
    double *expected = malloc((size_t)(d * d) * sizeof *expected);
    fill_square(d, first);
    fill_square(d, second);
    for (int64_t i = 0; i < d * d; i++) expected[i] = (double)first[i];
    run_product(ref, x, k, weighted, expected, NULL);
    run_product(x->dev, x, k, weighted, first, scratch);
    run_product(x->dev, x, k, weighted, second, scratch);
    const double error = lower_difference(d, first, expected);
    if (!(error < TOLERANCE)) fail_msg("%s, %s: error %g", x->label, kind_names[k], error);
    if (!upper_is_untouched(d, first)) fail_msg("%s, %s: wrote to the upper triangle", x->label, kind_names[k]);
    if (memcmp(first, second, bytes) != 0) fail_msg("%s, %s: a second run differs", x->label, kind_names[k]);
    free(first);
    free(second);
    free(expected);
    abar_device_free(x->dev, scratch, scratch_bytes);
}

static void check_weights(const problem *x)
{
    const int64_t n = x->rows.examples;
    double *got = calloc((size_t)(4 * n), sizeof *got), *expected = got + 2 * n, number[2] = {3.0, 3.0};
    ref->ops->stats->example_weights(ref, &x->rows, expected, expected + n, &number[0]);
    x->dev->ops->stats->example_weights(x->dev, &x->rows, got, got + n, &number[1]);
    double largest[2] = {0.0, 0.0}; /* means that cancel have no digits of their own */
    for (int64_t i = 0; i < 2 * n; i++) largest[i / n] = fmax(largest[i / n], expected[i]);
    for (int64_t i = 0; i < 2 * n; i++)
        if (!(fabs(got[i] - expected[i]) <= 4.0 * TOLERANCE * (expected[i] + 0.01 * largest[i / n])))
            fail_msg("%s: weight %lld is %g, not %g", x->label, (long long)i, got[i], expected[i]);
    double sum = 3.0; /* by the definition, from ref's */
    for (int64_t i = 0; i < n; i++)
        sum += expected[i] * expected[n + i] * (double)x->rows.per_example * (double)x->rows.per_example;
    if (!(fabs(number[0] - sum) <= 1e-12 * sum)) fail_msg("%s: ref's number is %g, not %g", x->label, number[0], sum);
    if (!(fabs(number[1] - sum) <= 4.0 * TOLERANCE * sum)) fail_msg("%s: number is %g, not %g", x->label, number[1], sum);
    free(got);
}

static void check_all(problem *x, bool weighted)
{
    for (kind k = 0; k < KINDS; k++) check_product(x, k, weighted);
    check_weights(x);
    free_problem(x);
}

/* ---- tests of products ------------------------------------------------------------------------------------------------ */

static const int64_t batches[] = {1, 5, 17, 33};

/* The largest batch up to batches[most] that ref can do in little time. */
static int64_t affordable(const geometry *g, int64_t most)
{
    const abar_window *w = &g->window;
    const int64_t d = g->channels / w->groups * w->kernel[0] * w->kernel[1];
    const int64_t rows = abar_window_out(w, 0, g->height) * abar_window_out(w, 1, g->width);
    while (most > 0 && batches[most] * rows * d * d > 3000000) most--;
    return batches[most];
}

/* Every geometry in every form; what else there is to vary takes turns. */
static void product_every_window_in_every_layout_equals_ref(void **unused)
{
    (void)unused;
    int64_t turn = 0;
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++)
        for (form f = 0; f < FORMS; f++, turn++) {
            const bool bias = turn & 1, weighted = turn / 2 & 1;
            problem x = make_convolution(&geometries[i], affordable(&geometries[i], turn / 3 % 3), f, ABAR_F32, bias, weighted,
                                         1 + (int)(turn % MAX_THREADS));
            check_all(&x, weighted);
        }
}

static void product_every_batch_weight_bias_and_thread_count_equals_ref(void **unused)
{
    (void)unused;
    static const char *const chosen[] = {"same 3x3, 3 channels", "same 5x5, 1 channel", "3x3 dilation 2, 4 channels",
                                         "4 groups of 2"};
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        for (int variant = 0; variant < 48; variant++) {
            const form forms[] = {DENSE, C16, N16};
            const bool bias = variant & 1, weighted = variant & 2;
            problem x = make_convolution(geometry_named(chosen[i]), batches[variant / 4 % 4], forms[variant % 3], ABAR_F32,
                                         bias, weighted, 1 + variant / 16);
            check_product(&x, INPUT, weighted);
            free_problem(&x);
        }
}

static void product_other_dtypes_equal_ref(void **unused)
{
    (void)unused;
    static const char *const chosen[] = {"same 3x3, 16 channels, 4 out", "same 5x5, 1 channel", "3x3 stride 2, 20 channels",
                                         "1x1, 24 channels", "4 groups of 2"};
    const abar_dtype dtypes[] = {ABAR_F64, ABAR_BF16};
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        for (form f = 0; f < FORMS; f++) {
            const geometry *g = geometry_named(chosen[i]);
            problem x = make_convolution(g, affordable(g, 1), f, dtypes[(i + f) % 2], true, true, 2);
            check_all(&x, true);
        }
    for (int i = 0; i < 2; i++) {
        problem x = make_linear(5, 3 * i, 9, 4, GAPS, dtypes[i], true, true, 2);
        check_all(&x, true);
    }
}

static void product_images_larger_than_the_cache_equal_ref(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        for (int threads = 1; threads <= MAX_THREADS; threads += 2) {
            const form forms[] = {DENSE, C16, N16};
            problem x = make_convolution(&large[i], i == 1 ? 17 : 1, forms[(int)i % 3], ABAR_F32, true, false, threads);
            check_product(&x, INPUT, false);
            free_problem(&x);
        }
}

static void product_kernels_of_every_instruction_set_equal_ref(void **unused)
{
    (void)unused;
    char *outer = isa_save();
    for (int k = 0; k <= (int)abar__isa_supported(); k++) {
        close_devices(NULL);
        isa_force(abar__isa_name((abar__isa)k));
        open_devices(NULL);
        for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) {
            const bool weighted = i % 3 == 0;
            problem x =
                make_convolution(&geometries[i], affordable(&geometries[i], 2), i % 2 ? C16 : N16, ABAR_F32, true, weighted, 2);
            check_all(&x, weighted);
        }
    }
    close_devices(NULL);
    isa_restore(outer);
    open_devices(NULL);
}

static void product_rows_of_linear_layers_equal_ref(void **unused)
{
    (void)unused;
    int turn = 0;
    for (int64_t tokens = 0; tokens <= 3; tokens += 3)
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++)
            for (form f = DENSE; f <= GAPS; f++)
                for (int64_t in = 1; in <= 53; in = in * 3 + 2, turn++) {
                    const bool bias = turn & 1, weighted = turn % 3 == 0;
                    problem x =
                        make_linear(batches[b], tokens, in, 1 + in / 3, f, ABAR_F32, bias, weighted, 1 + turn % MAX_THREADS);
                    check_all(&x, weighted);
                }
}

/* Long sums in float: as many terms as a layer of ResNet-20 has. */
static void product_of_many_rows_stays_accurate(void **unused)
{
    (void)unused;
    const geometry g = {"many rows", 1, 1, 64, 64, {{1, 2}, {1, 1}, {0, 0}, {1, 1}, 1}};
    problem x = make_convolution(&g, 33, DENSE, ABAR_F32, true, false, 1);
    check_product(&x, INPUT, false);
    free_problem(&x);
    x = make_linear(1, 50000, 3, 1, DENSE, ABAR_F32, true, false, 1);
    check_product(&x, INPUT, false);
    free_problem(&x);
}

/* A NaN or an infinity anywhere must be seen in the sum, where it will be looked for. */
static void product_of_bad_numbers_is_not_finite(void **unused)
{
    (void)unused;
    static const char *const chosen[] = {"same 3x3, 16 channels, 4 out",
                                         "same 3x3, 3 channels",
                                         "3x3 stride 2, 20 channels",
                                         "1x1, 24 channels",
                                         "1x1, 130 channels",
                                         "one position 5x5"};
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        for (form f = 0; f < FORMS; f++) {
            problem x = make_convolution(geometry_named(chosen[i]), 17, f, ABAR_F32, false, false, 2);
            const abar_tensor *t = &x.rows.input;
            const int64_t d = x.rows.in;
            size_t bytes;
            void *scratch = product_scratch(&x, &bytes);
            float *square = calloc((size_t)(d * d), sizeof *square);
            const int64_t index[4] = {below(17), below(t->dim[1]), t->dim[2] / 2, t->dim[3] / 2};
            abar__tensor_store(t, abar__tensor_offset(t, index), i % 2 ? INFINITY : NAN);
            assert_true(x.dev->ops->stats->all_finite(x.dev, d, true, square, 1.0));
            run_product(x.dev, &x, INPUT, false, square, scratch);
            if (x.dev->ops->stats->all_finite(x.dev, d, true, square, 1.0)) fail_msg("%s: lost a bad number", x.label);
            free(square);
            abar_device_free(x.dev, scratch, bytes);
            free_problem(&x);
        }
}

static void product_of_a_split_batch_adds_up(void **unused)
{
    (void)unused;
    problem x = make_convolution(geometry_named("valid 5x5, 6 channels"), 33, N16, ABAR_F32, true, false, 2);
    const int64_t d = abar__rows_d(&x.rows);
    size_t bytes;
    void *scratch = product_scratch(&x, &bytes);
    float *whole = calloc((size_t)(2 * d * d), sizeof *whole), *parts = whole + d * d;
    run_product(x.dev, &x, INPUT, false, whole, scratch);
    for (int64_t first = 0; first < 33; first += 16) {
        problem part = x;
        part.rows = abar__rows_slice(&x.rows, first, first + 16 < 33 ? 16 : 33 - first);
        run_product(x.dev, &part, INPUT, false, parts, scratch);
    }
    double *expected = calloc((size_t)(d * d), sizeof *expected);
    for (int64_t i = 0; i < d * d; i++) expected[i] = (double)whole[i];
    assert_true(lower_difference(d, parts, expected) < TOLERANCE);
    free(expected);
    free(whole);
    abar_device_free(x.dev, scratch, bytes);
    free_problem(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_every_window_in_every_layout_equals_ref),
        cmocka_unit_test(product_every_batch_weight_bias_and_thread_count_equals_ref),
        cmocka_unit_test(product_other_dtypes_equal_ref),
        cmocka_unit_test(product_images_larger_than_the_cache_equal_ref),
        cmocka_unit_test(product_kernels_of_every_instruction_set_equal_ref),
        cmocka_unit_test(product_rows_of_linear_layers_equal_ref),
        cmocka_unit_test(product_of_many_rows_stays_accurate),
        cmocka_unit_test(product_of_bad_numbers_is_not_finite),
        cmocka_unit_test(product_of_a_split_batch_adds_up),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
