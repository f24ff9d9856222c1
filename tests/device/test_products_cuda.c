/* The cuda back end's sums of outer products (methods.md sections 4 to 6) against ref in double: every window in every form,
 * with weights and a bias; tensor cores and plain products; borders of shifted images; means of examples and their weights. */
#include "rows_cuda.h"

#define EXACT 2e-5   /* of the largest element: float32 sums of products that are exact */
#define ROUNDED 2e-3 /* one factor of every product is rounded to bf16 once more: 2^-9 of a term */

static int open_fp32(void **unused)
{
    (void)unused;
    return open_with(ABAR_PRECISION_FP32);
}

static int open_bf16(void **unused)
{
    (void)unused;
    return open_with(ABAR_PRECISION_BF16);
}

/* ---- squares --------------------------------------------------------------------------------------------------------- */

typedef enum kind { INPUT, GRAD, INPUT_MEAN, GRAD_MEAN, KINDS } kind;
static const char *const kind_names[] = {"input", "grad", "input mean", "grad mean"};

static void add_product(abar_device *dev, const abar__rows *r, kind k, const double *weight, void *square, void *scratch)
{
    const abar__stats_ops *s = dev->ops->stats;
    switch (k) {
    case INPUT: s->input_product(dev, r, weight, square, scratch); break;
    case GRAD: s->grad_product(dev, r, square, scratch); break;
    case INPUT_MEAN: s->input_mean_product(dev, r, square, scratch); break;
    case GRAD_MEAN: s->grad_mean_product(dev, r, square, scratch); break;
    case KINDS: break;
    }
}

/* What scratch may be known by: not the tensors, nor how many examples there are. */
static void *take_scratch(const abar__rows *r, size_t *bytes)
{
    abar__rows map = {.window = r->window, .convolution = r->convolution, .bias = r->bias, .in = r->in, .out = r->out};
    *bytes = cuda->ops->stats->product_scratch(cuda, &map);
    void *bad = malloc(*bytes + 1), *scratch;
    memset(bad, 0xff, *bytes);
    scratch = upload(bad, *bytes);
    free(bad);
    return scratch;
}

/* Sums go on top of what the lower triangle holds already; what is in the upper one stays, to the bit. */
static void fill_square(int64_t d, float *square)
{
    memset(square, 0xff, (size_t)(d * d) * sizeof *square);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++) square[i * d + j] = (float)(i % 7 + j % 5) * 0.25f;
}

static void compare_squares(const char *label, kind k, int64_t d, const float *start, const float *got, const double *expected,
                            double tolerance)
{
    double worst = 0.0, largest = 0.0;
    int64_t at = 0;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < d; j++) {
            if (j > i && memcmp(&got[i * d + j], &start[i * d + j], sizeof *got) != 0)
                fail_msg("%s, %s: wrote to the upper triangle", label, kind_names[k]);
            if (j > i) continue;
            const double off = fabs((double)got[i * d + j] - expected[i * d + j]);
            if (!(off <= worst)) {
                worst = off;
                at = i * d + j;
            }
            largest = fmax(largest, fabs(expected[i * d + j]));
        }
    if (!(worst <= tolerance * largest))
        fail_msg("%s, %s: element (%lld, %lld) of %lld is off by %g of %g", label, kind_names[k], (long long)(at / d),
                 (long long)(at % d), (long long)d, worst, largest);
}

/* Element k of row r of example n; the bias' is 1. (methods.md section 0) */
static double row_element(const abar__rows *r, int64_t n, int64_t row, int64_t k)
{
    const abar_tensor *t = &r->input;
    const abar_window *w = &r->window;
    if (k >= r->in) return 1.0;
    if (!r->convolution) {
        const int64_t index[3] = {n, t->ndim == 3 ? row : k, k};
        return abar__tensor_load(t, abar__tensor_offset(t, index));
    }
    const int64_t across = abar_window_out(w, 1, t->dim[3]), taps = w->kernel[0] * w->kernel[1], tap = k % taps;
    const int64_t y = row / across * w->stride[0] - w->pad[0] + tap / w->kernel[1] * w->dilation[0];
    const int64_t x = row % across * w->stride[1] - w->pad[1] + tap % w->kernel[1] * w->dilation[1];
    const int64_t index[4] = {n, k / taps, y, x};
    if (y < 0 || y >= t->dim[2] || x < 0 || x >= t->dim[3]) return 0.0;
    return abar__tensor_load(t, abar__tensor_offset(t, index));
}

#define AT_ONCE 8

/* The sum of w a aT from its definition, some rows at a time: ref takes minutes for as many as these. */
static void add_many_rows(const abar__rows *r, const double *weight, double *square)
{
    const int64_t d = abar__rows_d(r), all = r->examples * r->per_example;
    double *a = malloc((size_t)(2 * AT_ONCE * d) * sizeof *a), *wa = a + AT_ONCE * d; /* (rows, d) each */
    for (int64_t first = 0; first < all; first += AT_ONCE) {
        for (int64_t i = 0; i < AT_ONCE * d; i++) {
            const int64_t row = first + i / d, n = row / r->per_example;
            a[i] = row < all ? row_element(r, n, row % r->per_example, i % d) : 0.0;
            wa[i] = weight && row < all ? weight[n] * a[i] : a[i];
        }
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j <= i; j++) {
                double sum = 0.0;
                for (int64_t k = 0; k < AT_ONCE; k++) sum += wa[k * d + i] * a[k * d + j];
                square[i * d + j] += sum;
            }
    }
    free(a);
}

/* Twice, from the same beginning: near ref, or the definition for many rows, and the same bits. weight: host memory. */
static void check_sum(const problem *x, kind k, const double *weight, bool many, double tolerance)
{
    const int64_t d = k == INPUT || k == INPUT_MEAN ? abar__rows_d(&x->host) : x->host.out;
    const size_t bytes = (size_t)(d * d) * sizeof(float), weights = (size_t)x->host.examples * sizeof *weight;
    float *start = malloc(3 * bytes), *got = start + d * d;
    double *expected = malloc((size_t)(d * d) * sizeof *expected), *there = weight ? upload(weight, weights) : NULL;
    size_t scratch_bytes;
    void *scratch = take_scratch(&x->host, &scratch_bytes);
    fill_square(d, start);
    for (int64_t i = 0; i < d * d; i++) expected[i] = (double)start[i];
    if (many)
        add_many_rows(&x->host, weight, expected);
    else
        add_product(ref, &x->host, k, weight, expected, NULL);
    for (int run = 0; run < 2; run++) {
        void *square = upload(start, bytes);
        add_product(cuda, &x->device, k, there, square, scratch);
        wait(x->label);
        move(got + run * d * d, square, bytes);
        abar_device_free(cuda, square, bytes);
    }
    compare_squares(x->label, k, d, start, got, expected, tolerance);
    if (memcmp(got, got + d * d, bytes) != 0) fail_msg("%s, %s: a second run differs", x->label, kind_names[k]);
    abar_device_free(cuda, scratch, scratch_bytes);
    if (there) abar_device_free(cuda, there, weights);
    free(expected);
    free(start);
}

static void check_product(const problem *x, kind k, const double *weight, double tolerance)
{
    check_sum(x, k, weight, false, tolerance);
}

/* ---- weights --------------------------------------------------------------------------------------------------------- */

static void check_weights(const problem *x)
{
    const int64_t n = x->host.examples;
    const size_t bytes = (size_t)(2 * n + 1) * sizeof(double);
    double *expected = malloc(3 * bytes), *got = expected + 2 * n + 1;
    for (int64_t i = 0; i < 2 * n + 1; i++) expected[i] = got[i] = 3.0; /* the number is added to */
    ref->ops->stats->example_weights(ref, &x->host, expected, expected + n, expected + 2 * n);
    for (int run = 0; run < 2; run++) {
        double *there = upload((double[]){3.0}, sizeof(double)), *weights = cuda_alloc(cuda, bytes);
        cuda->ops->stats->example_weights(cuda, &x->device, weights, weights + n, there);
        wait(x->label);
        double *to = got + run * (2 * n + 1);
        move(to, weights, (size_t)(2 * n) * sizeof *to);
        move(to + 2 * n, there, sizeof *to);
        abar_device_free(cuda, weights, bytes);
        abar_device_free(cuda, there, sizeof(double));
    }
    double largest[3] = {0.0, 0.0, 0.0}; /* means that cancel have no digits of their own */
    for (int64_t i = 0; i < 2 * n + 1; i++) largest[i / n] = fmax(largest[i / n], expected[i]);
    for (int64_t i = 0; i < 2 * n + 1; i++)
        if (!(fabs(got[i] - expected[i]) <= 4.0 * EXACT * (expected[i] + 0.01 * largest[i / n])))
            fail_msg("%s: weight %lld is %g, not %g", x->label, (long long)i, got[i], expected[i]);
    if (memcmp(got, got + 2 * n + 1, bytes) != 0) fail_msg("%s: weights of a second run differ", x->label);
    free(expected);
}

/* Sum over n of weight[n] * (sum over r of p * p). */
static void check_weighted_squares(const problem *x, const double *weight)
{
    const int64_t out = x->host.out;
    const size_t bytes = (size_t)out * sizeof(float), weights = (size_t)x->host.examples * sizeof *weight;
    float *got = calloc((size_t)out, sizeof *got);
    double *expected = calloc((size_t)out, sizeof *expected), largest = 0.0;
    void *sum = upload(got, bytes), *there = upload(weight, weights);
    ref->ops->stats->grad_squares(ref, &x->host, weight, expected);
    cuda->ops->stats->grad_squares(cuda, &x->device, there, sum);
    wait(x->label);
    move(got, sum, bytes);
    for (int64_t i = 0; i < out; i++) largest = fmax(largest, expected[i]);
    for (int64_t i = 0; i < out; i++)
        if (!(fabs((double)got[i] - expected[i]) <= EXACT * largest))
            fail_msg("%s: weighted square %lld is %g, not %g", x->label, (long long)i, (double)got[i], expected[i]);
    abar_device_free(cuda, sum, bytes);
    abar_device_free(cuda, there, weights);
    free(got);
    free(expected);
}

/* ---- all of it --------------------------------------------------------------------------------------------------------- */

/* Weights whose products with a bf16 are exact, 0 among them; any others: rounded. */
static double *make_weights(int64_t n, bool exact)
{
    static const double powers[] = {0.5, 0.0, 2.0, 1.0, 0.125};
    double *weight = malloc((size_t)n * sizeof *weight);
    for (int64_t i = 0; i < n; i++) weight[i] = exact ? powers[i % 5] : fabs(uniform());
    if (n == 1 && exact) weight[0] = 2.0;
    return weight;
}

static void check_all(problem x)
{
    double *exact = make_weights(x.host.examples, true), *any = make_weights(x.host.examples, false);
    for (kind k = 0; k < KINDS; k++) check_product(&x, k, NULL, EXACT);
    check_product(&x, INPUT, exact, EXACT);
    check_product(&x, INPUT, any, x.host.input.dtype == ABAR_BF16 ? ROUNDED : EXACT);
    check_weights(&x);
    check_weighted_squares(&x, any);
    free(exact);
    free(any);
    free_problem(&x);
}

static void convolutions_of_every_window_and_form_equal_ref(void **unused)
{
    (void)unused;
    static const int64_t batches[] = {5, 2, 17, 1};
    const abar_dtype dtypes[] = {ABAR_F32, ABAR_BF16, ABAR_BF16};
    int turn = 0;
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) {
        if (geometries[i].height > 12) continue; /* ref takes long */
        const int64_t most = geometries[i].channels * geometries[i].height > 130 ? 2 : 17;
        for (form f = 0; f < FORMS; f++, turn++) {
            if ((turn + (int)i) % 3 && cuda_only("ABAR_TEST_SMALL")) continue; /* every form, every third window of it */
            const int64_t n = batches[turn % 4] < most ? batches[turn % 4] : most;
            check_all(make_convolution(&geometries[i], n, f, f == NHWC ? ABAR_BF16 : dtypes[turn % 3], turn & 1));
        }
    }
}

/* 3 x 3, stride 1, padding 1: pixels times shifted pixels, less what is at the borders. */
static void convolutions_by_shifts_equal_ref(void **unused)
{
    (void)unused;
    static const int64_t cases[][4] = {
        /* channels, height, width, examples */
        {16, 1, 1, 3},  {16, 1, 5, 2},  {16, 2, 2, 3},  {16, 2, 7, 1}, {16, 3, 3, 2}, {16, 3, 8, 1}, {16, 8, 8, 17},
        {16, 5, 3, 2},  {32, 4, 7, 5},  {32, 3, 3, 1},  {48, 4, 4, 2}, {64, 8, 8, 2}, {64, 3, 5, 1}, {80, 3, 3, 1},
        {128, 3, 4, 1}, {160, 3, 3, 1}, {144, 3, 3, 1}, {24, 5, 6, 3}, {8, 9, 3, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t *c = cases[i];
        const geometry g = {"shifts", c[0], 8, c[1], c[2], {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}};
        problem x = make_convolution(&g, c[3], i % 3 == 2 ? LAST : NHWC, ABAR_BF16, i & 1);
        double *exact = make_weights(c[3], true), *any = make_weights(c[3], false);
        check_product(&x, INPUT, NULL, EXACT);
        check_product(&x, INPUT, exact, EXACT);
        if (c[0] <= 64) check_product(&x, INPUT, any, ROUNDED);
        free(exact);
        free(any);
        free_problem(&x);
    }
}

/* Layers wide enough for the tensor cores that read shared memory: shifts of few and of many channels, also where a tile ends
 * within a tap's; images smaller than a box, and more examples than one has. */
static void wide_convolutions_by_shifts_equal_their_definition(void **unused)
{
    (void)unused;
    static const int64_t cases[][4] = {/* channels, height, width, examples */
                                       {128, 5, 3, 3}, {160, 3, 3, 2},  {160, 9, 8, 3}, {192, 4, 4, 2},
                                       {320, 3, 5, 1}, {128, 4, 3, 66}, {224, 3, 4, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t *c = cases[i];
        const geometry g = {"wide shifts", c[0], 8, c[1], c[2], {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}};
        problem x = make_convolution(&g, c[3], i % 3 == 1 ? LAST : NHWC, ABAR_BF16, i & 1);
        double *exact = make_weights(c[3], true), *any = make_weights(c[3], false);
        check_sum(&x, INPUT, NULL, true, EXACT);
        check_sum(&x, INPUT, exact, true, EXACT);
        if (i < 2) check_sum(&x, INPUT, any, true, ROUNDED);
        free(exact);
        free(any);
        free_problem(&x);
    }
}

/* Rows with themselves: windows with strides, pixels in a line and not, tokens of examples that share a box; as many as give
 * every processor some. The last has no room for partial sums. */
static void wide_rows_equal_their_definition(void **unused)
{
    (void)unused;
    if (cuda_only("ABAR_TEST_SMALL")) skip();
    static const geometry layers[] = {
        {"wide 3x3 stride 2", 128, 8, 7, 7, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, 1}},
        {"wide 1x1", 136, 8, 32, 33, {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
        {"wide 1x1 stride 2", 200, 8, 23, 25, {{1, 1}, {2, 2}, {0, 0}, {1, 1}, 1}},
        {"wider 3x3 stride 2", 256, 8, 8, 8, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, 1}},
    };
    static const int64_t examples[] = {120, 32, 55, 28};
    for (size_t i = 0; i < sizeof layers / sizeof *layers + 1; i++) {
        const bool tokens = i == sizeof layers / sizeof *layers;
        problem x = tokens ? make_linear(57, 198, 384, 8, DENSE, ABAR_BF16, true)
                           : make_convolution(&layers[i], examples[i], NHWC, ABAR_BF16, i & 1);
        double *exact = make_weights(x.host.examples, true);
        check_sum(&x, INPUT, NULL, true, EXACT);
        check_sum(&x, INPUT, exact, true, EXACT);
        free(exact);
        free_problem(&x);
    }
}

static void linear_layers_equal_ref(void **unused)
{
    (void)unused;
    static const int64_t shapes[][4] = {/* examples, tokens, in, out */
                                        {1, 0, 1, 1},    {5, 0, 7, 3},    {40, 0, 64, 10}, {33, 0, 201, 120},
                                        {2, 3, 17, 33},  {9, 50, 24, 8},  {70, 9, 16, 16}, {20, 0, 16, 8},
                                        {3, 40, 264, 8}, {2, 11, 385, 2}, {300, 2, 8, 24}, {17, 37, 32, 40}};
    const abar_dtype dtypes[] = {ABAR_BF16, ABAR_F32, ABAR_F16, ABAR_F64};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            if ((i + d) % 2 && cuda_only("ABAR_TEST_SMALL")) continue;
            const int64_t *s = shapes[i];
            check_all(make_linear(s[0], s[1], s[2], s[3], d == i % 4 ? GAPS : DENSE, dtypes[d], (d + i) & 1));
        }
}

/* Only what a kernel reads may decide: a number that is not finite is seen in the square, and nothing outside of the tensor is
 * (gaps are not numbers). */
static void products_of_bad_numbers_are_not_finite(void **unused)
{
    (void)unused;
    for (int i = 0; i < 8; i++) {
        problem x = make_convolution(&geometries[i % 4], 5, i & 1 ? NHWC : DENSE, i & 2 ? ABAR_BF16 : ABAR_F32, false);
        abar_tensor *t = &x.host.input;
        const int64_t d = x.host.in, index[4] = {4, t->dim[1] - 1, t->dim[2] / 2, t->dim[3] / 2};
        abar__tensor_store(t, abar__tensor_offset(t, index), i & 4 ? INFINITY : NAN);
        move(x.device.input.data, t->data, abar_tensor_bytes(t));
        size_t scratch_bytes, bytes = (size_t)(d * d) * sizeof(float);
        float *zero = calloc((size_t)(d * d), sizeof *zero);
        void *scratch = take_scratch(&x.host, &scratch_bytes), *square = upload(zero, bytes);
        assert_true(cuda->ops->stats->all_finite(cuda, d, true, square, 1.0));
        cuda->ops->stats->input_product(cuda, &x.device, NULL, square, scratch);
        if (cuda->ops->stats->all_finite(cuda, d, true, square, 1.0)) fail_msg("%s: lost a bad number", x.label);
        free(zero);
        abar_device_free(cuda, square, bytes);
        abar_device_free(cuda, scratch, scratch_bytes);
        free_problem(&x);
    }
}

/* As many rows as ResNet-20 has at batch 128, and as few channels as ref can do: what single precision loses must stay small.
 */
static void products_of_many_rows_stay_accurate(void **unused)
{
    (void)unused;
    if (cuda_only("ABAR_TEST_SMALL")) skip();
    const geometry plain = {"many rows", 8, 8, 32, 32, {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}};
    const geometry shifts = {"many rows", 16, 8, 32, 32, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}};
    problem x = make_convolution(&plain, 128, NHWC, ABAR_BF16, true);
    for (kind k = 0; k < KINDS; k++) check_product(&x, k, NULL, 1e-4);
    free_problem(&x);
    x = make_convolution(&shifts, 16, NHWC, ABAR_BF16, false);
    check_product(&x, INPUT, NULL, 1e-4);
    free_problem(&x);
}

int main(int argc, char **argv)
{
    cuda_choose_tests(argc, argv);
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_of_every_window_and_form_equal_ref),
        cmocka_unit_test(convolutions_by_shifts_equal_ref),
        cmocka_unit_test(linear_layers_equal_ref),
        cmocka_unit_test(products_of_bad_numbers_are_not_finite),
        cmocka_unit_test(products_of_many_rows_stay_accurate),
    };
    const struct CMUnitTest wide[] = {
        cmocka_unit_test(wide_convolutions_by_shifts_equal_their_definition),
        cmocka_unit_test(wide_rows_equal_their_definition),
    };
    int failed = cmocka_run_group_tests_name("bf16", tests, open_bf16, close_devices);
    failed += cmocka_run_group_tests_name("bf16, wide", wide, open_bf16, close_devices);
    return failed + cmocka_run_group_tests_name("fp32", tests, open_fp32, close_devices);
}
