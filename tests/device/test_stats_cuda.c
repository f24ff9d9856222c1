/* The cuda back end's statistics against ref: sums over rows for every window, in every layout and dtype that activations come
 * in, added to what is there already; products of examples' means; and the small vector operations around them. */
#include "rows_cuda.h"

#define TOLERANCE 1e-5 /* of the largest element: float32 sums of up to some thousand rows */
#define PRODUCTS 2e-5  /* of means as high + low: 2^-16 of a term */

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

/* ---- sums ------------------------------------------------------------------------------------------------------------ */

typedef enum kind { INPUT, GRAD, GRAD_SQUARES, KINDS } kind;
static const char *const kind_names[] = {"input sum", "grad sum", "grad squares"};

static void add_sum(abar_device *dev, const abar__rows *r, kind k, void *sum)
{
    const abar__stats_ops *s = dev->ops->stats;
    switch (k) {
    case INPUT: s->input_sum(dev, r, sum); break;
    case GRAD: s->grad_sum(dev, r, sum); break;
    case GRAD_SQUARES: s->grad_squares(dev, r, NULL, sum); break;
    case KINDS: break;
    }
}

/* Twice, from the same beginning: near ref, and the same bits. */
static void check_sum(const problem *x, kind k)
{
    const int64_t n = k == INPUT ? abar__rows_d(&x->host) : x->host.out;
    const size_t bytes = (size_t)n * sizeof(float);
    float *start = malloc(bytes), *got = malloc(2 * bytes);
    double *expected = malloc((size_t)n * sizeof *expected);
    for (int64_t i = 0; i < n; i++) expected[i] = (double)(start[i] = (float)(i % 7) * 0.25f);
    add_sum(ref, &x->host, k, expected);
    for (int run = 0; run < 2; run++) {
        void *sum = upload(start, bytes);
        add_sum(cuda, &x->device, k, sum);
        wait(x->label);
        move(got + run * n, sum, bytes);
        abar_device_free(cuda, sum, bytes);
    }
    double worst = 0.0, largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double off = fabs((double)got[i] - expected[i]);
        if (!(off <= worst)) worst = off;
        largest = fmax(largest, fabs(expected[i]));
    }
    if (!(worst <= TOLERANCE * largest)) fail_msg("%s, %s: off by %g of %g", x->label, kind_names[k], worst, largest);
    if (memcmp(got, got + n, bytes) != 0) fail_msg("%s, %s: a second run differs", x->label, kind_names[k]);
    free(start);
    free(got);
    free(expected);
}

static double largest_of(const double *x, int64_t n)
{
    double largest = 0.0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i]));
    return largest;
}

/* a and p in one call, twice: near ref, and the same bits. */
static void check_both(const problem *x, bool squares)
{
    const int64_t d = abar__rows_d(&x->host), n = d + x->host.out;
    const size_t bytes = (size_t)n * sizeof(float);
    float *got = calloc(2, bytes);
    double *expected = calloc((size_t)n, sizeof *expected);
    add_sum(ref, &x->host, INPUT, expected);
    add_sum(ref, &x->host, squares ? GRAD_SQUARES : GRAD, expected + d);
    for (int run = 0; run < 2; run++) {
        float *sum = upload(got + run * n, bytes);
        cuda->ops->stats->both_sums(cuda, &x->device, sum, squares, sum + d);
        wait(x->label);
        move(got + run * n, sum, bytes);
        abar_device_free(cuda, sum, bytes);
    }
    const double largest[] = {largest_of(expected, d), largest_of(expected + d, n - d)};
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - expected[i]) <= TOLERANCE * largest[i >= d]))
            fail_msg("%s, both: element %d of %d is %g, not %g", x->label, (int)i, (int)n, (double)got[i], expected[i]);
    if (memcmp(got, got + n, bytes) != 0) fail_msg("%s, both: a second run differs", x->label);
    free(got);
    free(expected);
}

/* Added to a double on the device. */
static void check_square(const problem *x)
{
    const abar__stats_ops *s = cuda->ops->stats;
    const double start = 3.0;
    double expected = 0.0, got[2];
    ref->ops->stats->input_square_add(ref, &x->host, &expected);
    for (int run = 0; run < 2; run++) {
        double *sum = upload(&start, sizeof start);
        s->input_square_add(cuda, &x->device, sum);
        wait(x->label);
        move(&got[run], sum, sizeof *got);
        abar_device_free(cuda, sum, sizeof start);
    }
    if (!(fabs(got[0] - start - expected) <= TOLERANCE * expected))
        fail_msg("%s: the square is %g, not %g", x->label, got[0] - start, expected);
    if (memcmp(&got[0], &got[1], sizeof *got) != 0) fail_msg("%s: the square of a second run differs", x->label);
}

/* grad_sum is for methods that the device need not have. */
static void check_all(problem x)
{
    for (kind k = 0; k < KINDS; k++)
        if (k != GRAD || cuda->ops->stats->grad_sum) check_sum(&x, k);
    for (int squares = 0; squares < 2; squares++) check_both(&x, squares);
    check_square(&x);
    free_problem(&x);
}

static const abar_dtype dtypes[] = {ABAR_F32, ABAR_BF16, ABAR_F16, ABAR_F64};

static void sums_over_every_window_in_every_layout_equal_ref(void **unused)
{
    (void)unused;
    static const int64_t batches[] = {1, 5, 17};
    int64_t turn = 0;
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) {
        if (cuda_only("ABAR_TEST_SMALL") && geometries[i].height > 12) continue;
        for (form f = 0; f < FORMS; f++, turn++)
            check_all(make_convolution(&geometries[i], batches[turn % 3], f, ABAR_F32, turn & 1));
    }
}

static void sums_in_every_dtype_equal_ref(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < 6; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            check_all(make_convolution(&geometries[i], 6, NHWC, dtypes[d], i & 1));
            check_all(make_convolution(&geometries[i], 3, DENSE, dtypes[d], true));
        }
}

static void sums_of_linear_layers_equal_ref(void **unused)
{
    (void)unused;
    static const int64_t shapes[][4] = {/* examples, tokens, in, out */
                                        {1, 0, 1, 1},   {5, 0, 7, 3},   {128, 0, 64, 10}, {33, 0, 401, 120},
                                        {2, 3, 17, 33}, {9, 50, 24, 8}, {200, 0, 16, 16}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            const int64_t *s = shapes[i];
            check_all(make_linear(s[0], s[1], s[2], s[3], DENSE, dtypes[d], d & 1));
            check_all(make_linear(s[0], s[1], s[2], s[3], GAPS, dtypes[d], !(d & 1)));
        }
}

/* Rows that lie apart: the middle third of wider ones, as q, k and v are. */
static void sums_of_parts_of_wider_rows_equal_ref(void **unused)
{
    (void)unused;
    static const int64_t shapes[][3] = {{300, 0, 16}, {7, 50, 24}, {3, 9, 520}, {37, 3, 8}, {9, 4, 12}, {5, 6, 7}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            const int64_t *s = shapes[i];
            problem wide = make_linear(s[0], s[1], 3 * s[2], 3 * s[2], DENSE, dtypes[d], d & 1), x = wide;
            abar__rows *sides[] = {&x.host, &x.device};
            for (int k = 0; k < 2; k++) {
                abar_tensor *tensors[] = {&sides[k]->input, &sides[k]->output_grad};
                for (int j = 0; j < 2; j++) {
                    tensors[j]->dim[tensors[j]->ndim - 1] = s[2];
                    tensors[j]->data = (char *)tensors[j]->data + (size_t)s[2] * abar_dtype_size(dtypes[d]);
                }
                sides[k]->in = sides[k]->out = s[2];
            }
            for (kind k = 0; k < KINDS; k++) check_sum(&x, k);
            free_problem(&wide);
        }
}

/* Windows that do not overlap are rows too: of whole vectors, of vectors only where two are neighbours, with pixels between
 * and behind them. */
static void sums_over_windows_apart_equal_ref(void **unused)
{
    (void)unused;
    static const geometry apart[] = {
        {"patches 16x16", 3, 24, 48, 32, {{16, 16}, {16, 16}, {0, 0}, {1, 1}, 1}},
        {"patches 4x4", 3, 16, 12, 24, {{4, 4}, {4, 4}, {0, 0}, {1, 1}, 1}},
        {"patches 4x4, one left over", 3, 16, 13, 20, {{4, 4}, {4, 4}, {0, 0}, {1, 1}, 1}},
        {"patches 2x2, 16 channels, a margin", 16, 8, 9, 7, {{2, 2}, {2, 2}, {0, 0}, {1, 1}, 1}},
        {"2x1 stride 3x2, 8 channels", 8, 10, 9, 7, {{2, 1}, {3, 2}, {0, 0}, {1, 1}, 1}},
        {"1x1 stride 2, 16 channels", 16, 40, 8, 6, {{1, 1}, {2, 2}, {0, 0}, {1, 1}, 1}},
        {"1x1, 2 groups of 8", 16, 16, 5, 8, {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 2}},
        {"1x1, 5 channels", 5, 3, 4, 16, {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
        {"1x1, 520 channels", 520, 264, 3, 3, {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
    };
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        for (size_t d = 0; d < 2; d++)
            for (form f = NHWC; f < FORMS; f++) check_all(make_convolution(&apart[i], 5, f, dtypes[d], d & 1));
}

/* As many rows as ResNet-20 has at batch 128: what single precision loses must stay small. */
static void sums_of_many_rows_stay_accurate(void **unused)
{
    (void)unused;
    if (cuda_only("ABAR_TEST_SMALL")) skip();
    const geometry g = {"many rows", 16, 16, 32, 32, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}};
    check_all(make_convolution(&g, 128, NHWC, ABAR_BF16, false));
    check_all(make_linear(4096, 0, 64, 10, DENSE, ABAR_F32, true));
}

/* A number that is not finite must be seen in the sum, where it will be looked for. */
static void sums_of_bad_numbers_are_not_finite(void **unused)
{
    (void)unused;
    for (int i = 0; i < 8; i++) {
        problem x = make_convolution(&geometries[i % 4], 5, i & 1 ? NHWC : DENSE, i & 2 ? ABAR_BF16 : ABAR_F32, false);
        abar_tensor *t = &x.host.input;
        const int64_t d = abar__rows_d(&x.host), index[4] = {4, t->dim[1] - 1, t->dim[2] / 2, t->dim[3] / 2};
        abar__tensor_store(t, abar__tensor_offset(t, index), i & 4 ? INFINITY : NAN);
        move(x.device.input.data, t->data, abar_tensor_bytes(t));
        float *sum = cuda_alloc(cuda, (size_t)d * sizeof *sum), *host = malloc((size_t)d * sizeof *host);
        cuda->ops->stats->input_sum(cuda, &x.device, sum);
        wait(x.label);
        move(host, sum, (size_t)d * sizeof *sum);
        bool finite = true;
        for (int64_t k = 0; k < d; k++) finite = finite && isfinite(host[k]);
        if (finite) fail_msg("%s: lost a bad number", x.label);
        free(host);
        abar_device_free(cuda, sum, (size_t)d * sizeof *sum);
        free_problem(&x);
    }
}

/* ---- products of means ------------------------------------------------------------------------------------------------ */

/* A square to begin with: what the lower triangle holds is added to, what is in the upper one stays, to the bit. */
static void fill_square(int64_t d, float *square)
{
    memset(square, 0xff, (size_t)(d * d) * sizeof *square);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++) square[i * d + j] = (float)(i % 7 + j % 5) * 0.25f;
}

static void compare_square(const char *label, const char *which, int64_t d, const float *start, const float *got,
                           const double *expected)
{
    double worst = 0.0, largest = 0.0;
    int64_t at = 0;
    for (int64_t i = 0; i < d * d; i++) {
        if (i % d > i / d) {
            if (memcmp(&got[i], &start[i], sizeof *got) != 0) fail_msg("%s, %s: wrote to the upper triangle", label, which);
            continue;
        }
        const double off = fabs((double)got[i] - expected[i]);
        if (!(off <= worst)) {
            worst = off;
            at = i;
        }
        largest = fmax(largest, fabs(expected[i]));
    }
    if (!(worst <= PRODUCTS * largest))
        fail_msg("%s, %s: element (%lld, %lld) of %lld is off by %g of %g", label, which, (long long)(at / d),
                 (long long)(at % d), (long long)d, worst, largest);
}

/* Of every example's mean, which is ref's sum over its rows: ref's own products make a mean anew for every element. */
static void add_mean_products(const abar__rows *rows, int64_t d, void (*sum)(abar_device *, const abar__rows *, void *),
                              double *square)
{
    double *mean = malloc((size_t)d * sizeof *mean);
    for (int64_t n = 0; n < rows->examples; n++) {
        const abar__rows example = abar__rows_slice(rows, n, 1);
        memset(mean, 0, (size_t)d * sizeof *mean);
        sum(ref, &example, mean);
        for (int64_t i = 0; i < d; i++) mean[i] /= (double)rows->per_example;
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j <= i; j++) square[i * d + j] += mean[i] * mean[j];
    }
    free(mean);
}

/* Both sides in one call, twice from the same beginning: near their definition, and the same bits. */
static void check_means(const problem *x)
{
    const abar__rows map = {.window = x->host.window,
                            .convolution = x->host.convolution,
                            .bias = x->host.bias,
                            .in = x->host.in,
                            .out = x->host.out};
    const int64_t d = abar__rows_d(&x->host), out = x->host.out, n = d * d + out * out;
    const size_t bytes = (size_t)n * sizeof(float), scratch_bytes = cuda->ops->stats->product_scratch(cuda, &map);
    float *start = malloc(3 * bytes), *got = start + n, *bad = malloc(scratch_bytes + 1);
    double *expected = malloc((size_t)n * sizeof *expected);
    memset(bad, 0xff, scratch_bytes);
    void *scratch = upload(bad, scratch_bytes);
    fill_square(d, start);
    fill_square(out, start + d * d);
    for (int64_t i = 0; i < n; i++) expected[i] = (double)start[i];
    add_mean_products(&x->host, d, ref->ops->stats->input_sum, expected);
    add_mean_products(&x->host, out, ref->ops->stats->grad_sum, expected + d * d);
    for (int run = 0; run < 2; run++) {
        float *squares = upload(start, bytes);
        cuda->ops->stats->both_mean_products(cuda, &x->device, squares, squares + d * d, scratch);
        wait(x->label);
        move(got + run * n, squares, bytes);
        abar_device_free(cuda, squares, bytes);
    }
    compare_square(x->label, "means of a", d, start, got, expected);
    compare_square(x->label, "means of p", out, start + d * d, got + d * d, expected + d * d);
    if (memcmp(got, got + n, bytes) != 0) fail_msg("%s, means: a second run differs", x->label);
    abar_device_free(cuda, scratch, scratch_bytes);
    free(expected);
    free(bad);
    free(start);
}

static void check_convolution(const geometry *g, int64_t n, form f, abar_dtype dtype, bool bias)
{
    problem x = make_convolution(g, n, f, dtype, bias);
    check_means(&x);
    free_problem(&x);
}

static void check_linear(int64_t n, int64_t tokens, int64_t in, int64_t out, form f, abar_dtype dtype, bool bias)
{
    problem x = make_linear(n, tokens, in, out, f, dtype, bias);
    check_means(&x);
    free_problem(&x);
}

static void means_under_every_window_equal_ref(void **unused)
{
    (void)unused;
    static const int64_t batches[] = {5, 1, 17, 2};
    int64_t turn = 0;
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++) {
        if (cuda_only("ABAR_TEST_SMALL") && geometries[i].height > 12) continue;
        for (form f = 0; f < FORMS; f++, turn++)
            check_convolution(&geometries[i], batches[turn % 4], f, f == NHWC ? ABAR_BF16 : dtypes[turn % 4], turn & 1);
    }
}

/* Borders of 3 x 3 windows; channels in one load, in several blocks, and left over; strides, groups, few pixels and many. */
static void means_of_convolutions_equal_ref(void **unused)
{
    (void)unused;
    static const abar_window same = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}, two = {{3, 3}, {2, 2}, {1, 1}, {1, 1}, 1},
                             one = {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}, apart = {{1, 1}, {2, 2}, {0, 0}, {1, 1}, 1},
                             halves = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 2}, padded = {{1, 1}, {1, 1}, {2, 1}, {1, 1}, 1},
                             wide = {{5, 5}, {1, 1}, {2, 2}, {1, 1}, 1}, seven = {{7, 7}, {2, 2}, {3, 3}, {1, 1}, 1};
    const geometry cases[] = {
        {"same 3x3", 16, 16, 32, 32, same},
        {"same 3x3", 24, 40, 3, 3, same},
        {"same 3x3", 8, 8, 2, 9, same},
        {"same 3x3", 8, 8, 9, 1, same},
        {"same 3x3", 64, 64, 8, 8, same},
        {"same 3x3", 72, 70, 4, 5, same},
        {"same 3x3", 7, 16, 13, 40, same},
        {"same 3x3, stride 2", 16, 32, 16, 16, two},
        {"same 3x3, stride 2", 40, 24, 7, 9, two},
        {"1x1", 264, 24, 3, 3, one},
        {"1x1", 48, 640, 5, 2, one},
        {"1x1, stride 2", 32, 64, 9, 8, apart},
        {"1x1, padded", 16, 8, 3, 4, padded},
        {"two groups", 32, 16, 6, 6, halves},
        {"two groups", 6, 10, 6, 6, halves},
        {"5x5", 8, 16, 6, 7, wide},
        {"7x7, stride 2", 3, 16, 13, 12, seven},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cuda_only("ABAR_TEST_SMALL") && cases[i].out > 200) continue;
        check_convolution(&cases[i], i % 3 ? 3 : 20, i % 4 == 3 ? LAST : NHWC, ABAR_BF16, i & 1);
        check_convolution(&cases[i], 2, NHWC, ABAR_F32, !(i & 1));
    }
}

/* Examples in one tile of them and in several; squares of less than a tile, of small tiles and of large ones; too large. */
static void means_of_rows_equal_ref(void **unused)
{
    (void)unused;
    static const int64_t shapes[][4] = {/* examples, tokens, in, out */
                                        {1, 0, 1, 1},    {128, 0, 64, 10},  {300, 0, 16, 24}, {300, 2, 40, 8}, {64, 5, 17, 33},
                                        {65, 3, 32, 64}, {200, 9, 95, 129}, {3, 50, 24, 8},   {9, 7, 385, 40}, {5, 3, 700, 72},
                                        {70, 2, 8, 648}, {2, 2, 2049, 8},   {1030, 2, 8, 16}, {1, 11, 65, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t *s = shapes[i];
        check_linear(s[0], s[1], s[2], s[3], DENSE, ABAR_BF16, i & 1);
        check_linear(s[0] < 70 ? s[0] : 70, s[1], s[2], s[3], GAPS, dtypes[i % 4], !(i & 1));
    }
    if (cuda_only("ABAR_TEST_SMALL")) return;
    check_linear(1000, 2, 1041, 16, DENSE, ABAR_BF16, true); /* does not find room at once */
}

/* The data may come in another type than gradients have. */
static void means_of_two_types_equal_ref(void **unused)
{
    (void)unused;
    problem x = make_linear(20, 3, 24, 16, DENSE, ABAR_F32, true), y = make_linear(20, 3, 24, 16, DENSE, ABAR_BF16, true);
    problem mixed = x;
    mixed.host.output_grad = y.host.output_grad;
    mixed.device.output_grad = y.device.output_grad;
    check_means(&mixed);
    free_problem(&x);
    free_problem(&y);
}

/* A number that is not finite must be seen in the square. */
static void means_of_bad_numbers_are_not_finite(void **unused)
{
    (void)unused;
    for (int i = 0; i < 8; i++) {
        problem x = make_convolution(geometry_named(i & 1 ? "same 3x3, 16 channels" : "3x3 stride 2, 32 channels"), 5, NHWC,
                                     ABAR_BF16, false);
        const int64_t d = abar__rows_d(&x.host), out = x.host.out;
        abar_tensor *t = i & 4 ? &x.host.input : &x.host.output_grad;
        const int64_t index[4] = {3, t->dim[1] - 1, i & 2 ? 0 : t->dim[2] / 2, t->dim[3] - 1};
        abar__tensor_store(t, abar__tensor_offset(t, index), i & 2 ? INFINITY : NAN);
        move(i & 4 ? x.device.input.data : x.device.output_grad.data, t->data, abar_tensor_bytes(t));
        const size_t bytes = (size_t)(d * d + out * out) * sizeof(float);
        const size_t scratch_bytes = cuda->ops->stats->product_scratch(cuda, &x.device);
        float *zero = calloc(1, bytes), *squares = upload(zero, bytes);
        void *scratch = cuda_alloc(cuda, scratch_bytes);
        cuda->ops->stats->both_mean_products(cuda, &x.device, squares, squares + d * d, scratch);
        const bool a = cuda->ops->stats->all_finite(cuda, d, true, squares, 1.0),
                   p = cuda->ops->stats->all_finite(cuda, out, true, squares + d * d, 1.0);
        if ((i & 4 ? a : p) || !(i & 4 ? p : a)) fail_msg("%s: lost a bad number, or found one too many", x.label);
        free(zero);
        abar_device_free(cuda, squares, bytes);
        abar_device_free(cuda, scratch, scratch_bytes);
        free_problem(&x);
    }
}

/* ---- vectors --------------------------------------------------------------------------------------------------------- */

static const int64_t lengths[] = {1, 31, 33, 1000, 5761};

/* Two vectors on the device and the same in double for ref. */
typedef struct vectors {
    int64_t n;
    float *x, *y; /* device */
    double *rx, *ry;
} vectors;

static vectors make_vectors(int64_t n)
{
    vectors v = {.n = n, .rx = malloc((size_t)n * sizeof(double)), .ry = malloc((size_t)n * sizeof(double))};
    float *host = malloc((size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++) v.rx[i] = (double)(host[i] = (float)uniform());
    v.x = upload(host, (size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++) v.ry[i] = (double)(host[i] = (float)(uniform() + 1.5));
    v.y = upload(host, (size_t)n * sizeof *host);
    free(host);
    return v;
}

static void free_vectors(vectors *v)
{
    abar_device_free(cuda, v->x, (size_t)v->n * sizeof *v->x);
    abar_device_free(cuda, v->y, (size_t)v->n * sizeof *v->y);
    free(v->rx);
    free(v->ry);
}

static void assert_near(const float *device, const double *expected, int64_t n, const char *what)
{
    float *host = malloc((size_t)n * sizeof *host);
    wait(what);
    move(host, device, (size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)host[i] - expected[i]) <= 1e-6 * (1.0 + fabs(expected[i]))))
            fail_msg("%s: element %lld of %lld is %g, not %g", what, (long long)i, (long long)n, (double)host[i], expected[i]);
    free(host);
}

static void vectors_commit_and_clear_equal_ref(void **unused)
{
    (void)unused;
    if (!cuda->ops->stats->commit || !cuda->ops->stats->clear) skip();
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        vectors v = make_vectors(lengths[i]);
        cuda->ops->stats->commit(cuda, v.n, false, v.x, v.y, 0.75, 0.5);
        ref->ops->stats->commit(ref, v.n, false, v.rx, v.ry, 0.75, 0.5);
        assert_near(v.x, v.rx, v.n, "average");
        assert_near(v.y, v.ry, v.n, "pending"); /* zero */
        cuda->ops->stats->clear(cuda, v.n, false, v.x);
        ref->ops->stats->clear(ref, v.n, false, v.rx);
        assert_near(v.x, v.rx, v.n, "cleared");
        free_vectors(&v);
    }
}

static void vectors_products_and_reciprocals_equal_ref(void **unused)
{
    (void)unused;
    const abar__stats_ops *s = cuda->ops->stats, *r = ref->ops->stats;
    if (!s->dot || !s->affine || !s->reciprocal) skip(); /* the program has its own */
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        vectors v = make_vectors(lengths[i]);
        assert_true(fabs(s->dot(cuda, v.n, v.x, v.y) - r->dot(ref, v.n, v.rx, v.ry)) <= 1e-5 * (double)v.n);
        s->affine(cuda, v.n, v.y, 2.0, -0.5, v.x);
        r->affine(ref, v.n, v.ry, 2.0, -0.5, v.rx);
        assert_near(v.x, v.rx, v.n, "affine");
        s->reciprocal(cuda, v.n, v.y, 3.0, 0.25, v.x);
        r->reciprocal(ref, v.n, v.ry, 3.0, 0.25, v.rx);
        assert_near(v.x, v.rx, v.n, "reciprocal");
        free_vectors(&v);
    }
}

static void vectors_with_one_bad_number_are_not_finite(void **unused)
{
    (void)unused;
    if (!cuda->ops->stats->all_finite) skip();
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        vectors v = make_vectors(lengths[i]);
        const float bad[] = {NAN, INFINITY, -INFINITY}, large = 3e38f, one = 1.0f;
        assert_true(cuda->ops->stats->all_finite(cuda, v.n, false, v.x, 1.0));
        for (int k = 0; k < 6; k++) {
            float *at = v.x + (k & 1 ? v.n - 1 : 0); /* both ends */
            move(at, &bad[k / 2], sizeof *bad);
            assert_false(cuda->ops->stats->all_finite(cuda, v.n, false, v.x, 1.0));
            move(at, &one, sizeof one);
        }
        move(v.x, &large, sizeof large);
        assert_true(cuda->ops->stats->all_finite(cuda, v.n, false, v.x, 1.0));
        assert_false(cuda->ops->stats->all_finite(cuda, v.n, false, v.x, 10.0)); /* no float any more */
        free_vectors(&v);
    }
}

int main(void)
{
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_every_window_in_every_layout_equal_ref),
        cmocka_unit_test(sums_in_every_dtype_equal_ref),
        cmocka_unit_test(sums_of_linear_layers_equal_ref),
        cmocka_unit_test(sums_of_parts_of_wider_rows_equal_ref),
        cmocka_unit_test(sums_over_windows_apart_equal_ref),
        cmocka_unit_test(sums_of_many_rows_stay_accurate),
        cmocka_unit_test(sums_of_bad_numbers_are_not_finite),
        cmocka_unit_test(means_under_every_window_equal_ref),
        cmocka_unit_test(means_of_rows_equal_ref),
        cmocka_unit_test(vectors_commit_and_clear_equal_ref),
        cmocka_unit_test(vectors_products_and_reciprocals_equal_ref),
        cmocka_unit_test(vectors_with_one_bad_number_are_not_finite),
    };
    const struct CMUnitTest pairs[] = {
        cmocka_unit_test(means_under_every_window_equal_ref),
        cmocka_unit_test(means_of_convolutions_equal_ref),
        cmocka_unit_test(means_of_rows_equal_ref),
        cmocka_unit_test(means_of_two_types_equal_ref),
        cmocka_unit_test(means_of_bad_numbers_are_not_finite),
    };
    const int failed = cmocka_run_group_tests_name("fp32", tests, open_fp32, close_devices);
    return failed + cmocka_run_group_tests_name("bf16", pairs, open_bf16, close_devices);
}
