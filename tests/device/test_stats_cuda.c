/* The cuda back end's statistics against ref: sums over rows for every window, in every layout and dtype that activations come
 * in, added to what is there already; and the small vector operations around them. */
#include "rows_cuda.h"

#define TOLERANCE 1e-5 /* of the largest element: float32 sums of up to some thousand rows */

static int open_devices(void **unused)
{
    (void)unused;
    return open_with(ABAR_PRECISION_FP32);
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

/* Both ways to the sum of squares: told to the host, and added to a double on the device. */
static void check_square(const problem *x)
{
    const abar__stats_ops *s = cuda->ops->stats;
    const double expected = ref->ops->stats->input_square(ref, &x->host), start = 3.0;
    double got[2];
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
    double told = s->input_square ? s->input_square(cuda, &x->device) : expected;
    if (!(fabs(told - expected) <= TOLERANCE * expected)) fail_msg("%s: told a square of %g", x->label, told);
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
        cmocka_unit_test(vectors_commit_and_clear_equal_ref),
        cmocka_unit_test(vectors_products_and_reciprocals_equal_ref),
        cmocka_unit_test(vectors_with_one_bad_number_are_not_finite),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
