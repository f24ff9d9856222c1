/* Gradients multiplied by dense inverses on the cuda device, many maps at once, against the same products in double: every
 * order of memory, with and without a bias, an inverse from the left, scales of rows and eigenvalues. */
#include "cuda_testing.h"
#include "device/cuda/factors/dense.h"

#include <math.h>

enum { GUARD = 8, MAX_MAPS = 64 };

static abar_context *ctx;
static abar_device *cuda;
static double tolerance; /* of the largest element */
static uint64_t noise = 1;

static double uniform(void) /* -1 .. 1 */
{
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)noise / 9223372036854775808.0;
}

static int64_t below(int64_t n) { return (int64_t)((uniform() + 1.0) / 2.0 * (double)n) % n; }

static void open_device(abar_precision precision)
{
    abar_device_config config = cuda_config(precision, true);
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    if (abar_device_open(ctx, "cuda", &config, &cuda) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    tolerance = precision == ABAR_PRECISION_FP32 ? 1e-5 : 2e-3;
    noise = 1;
}

static void close_device(void)
{
    abar_device_close(cuda);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
}

/* ---- maps -------------------------------------------------------------------------------------------------------------- */

typedef struct map {
    int64_t out, channels, kernel, columns, d;
    bool bias, bias_grad, left, row_scale, values, shifted; /* shifted: nothing is aligned */
    double shift;
    float *grad, *bias_gradient, *left_matrix, *right_matrix, *scale, *left_values, *right_values; /* on the host */
    float *device;                                                                                 /* all of it, result last */
    size_t floats;
    abar__cuda_product product;
} map;

/* Gradients of convolutions as they are in memory: row o, channel c, place k of the kernel. */
static double grad_at(const map *m, int64_t o, int64_t column)
{
    if (column == m->columns) return m->bias_grad ? (double)m->bias_gradient[o] : 0.0;
    const int64_t c = column / m->kernel, k = column % m->kernel;
    return (double)m->grad[(o * m->kernel + k) * m->channels + c];
}

static float *random_floats(int64_t n, double size)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(size * uniform());
    return x;
}

/* Symmetric, or any: eigenvectors enter as they are. */
static float *random_square(int64_t d, bool symmetric)
{
    float *x = random_floats(d * d, 1.0 / sqrt((double)d));
    for (int64_t i = 0; symmetric && i < d; i++)
        for (int64_t j = 0; j < i; j++) x[j * d + i] = x[i * d + j];
    return x;
}

static void fill_map(map *m)
{
    m->columns = m->channels * m->kernel;
    m->d = m->columns + m->bias;
    m->grad = random_floats(m->out * m->columns, 1.0);
    m->bias_gradient = random_floats(m->out, 1.0);
    m->left_matrix = random_square(m->out, !m->values);
    m->right_matrix = random_square(m->d, !m->values);
    m->scale = random_floats(m->out, 3.0);
    m->left_values = random_floats(m->out, 1.0);
    m->right_values = random_floats(m->d, 1.0);
    m->shift = 0.1;
}

/* What is on the device, one after the other. */
static float *put(map *m, size_t *at, const float *host, int64_t n)
{
    float *to = m->device ? m->device + *at : NULL;
    if (to && host) cuda_move(cuda, to, host, (size_t)n * sizeof *to);
    *at += m->shifted ? (size_t)n : (size_t)(n + 63) / 64 * 64;
    return to;
}

static void place_map(map *m)
{
    size_t at = m->shifted;
    abar__cuda_product p = {.out = m->out, .columns = m->columns, .kernel = m->kernel, .d = m->d, .shift = m->shift};
    p.grad = put(m, &at, m->grad, m->out * m->columns);
    if (m->bias_grad) p.bias_grad = put(m, &at, m->bias_gradient, m->out);
    if (m->left) p.left = put(m, &at, m->left_matrix, m->out * m->out);
    p.right = put(m, &at, m->right_matrix, m->d * m->d);
    if (m->row_scale) p.row_scale = put(m, &at, m->scale, m->out);
    if (m->values) p.left_values = put(m, &at, m->left_values, m->out);
    if (m->values) p.values = put(m, &at, m->right_values, m->d);
    p.result = put(m, &at, NULL, m->out * m->d + GUARD);
    m->floats = at;
    m->product = p;
}

static void upload_map(map *m)
{
    place_map(m);
    m->device = cuda_alloc(cuda, m->floats * sizeof *m->device);
    place_map(m);
}

static void free_map(map *m)
{
    abar_device_free(cuda, m->device, m->floats * sizeof *m->device);
    float *all[] = {m->grad, m->bias_gradient, m->left_matrix, m->right_matrix, m->scale, m->left_values, m->right_values};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- the truth --------------------------------------------------------------------------------------------------------- */

/* y (m, n) = a (m, k) b (k, n), each as it is or transposed */
static double *product_of(int64_t m, int64_t k, int64_t n, const double *a, bool at, const double *b, bool bt)
{
    double *y = calloc((size_t)(m * n), sizeof *y);
    assert_non_null(y);
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++) {
            const double v = at ? a[l * m + i] : a[i * k + l];
            for (int64_t j = 0; j < n; j++) y[i * n + j] += v * (bt ? b[j * k + l] : b[l * n + j]);
        }
    return y;
}

static double *doubles(const float *x, int64_t n)
{
    double *y = malloc((size_t)n * sizeof *y);
    assert_non_null(y);
    for (int64_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}

/* x = f(x, ...), and x is freed */
static void step_by(double **x, double *y)
{
    free(*x);
    *x = y;
}

/* (out, d) in PyTorch's order */
static double *truth_of(const map *m)
{
    const int64_t out = m->out, d = m->d;
    double *x = malloc((size_t)(out * d) * sizeof *x);
    double *left = doubles(m->left_matrix, out * out), *right = doubles(m->right_matrix, d * d);
    for (int64_t i = 0; i < out * d; i++) x[i] = grad_at(m, i / d, i % d);
    step_by(&x, product_of(out, d, d, x, false, right, m->values));
    if (m->left) step_by(&x, product_of(out, out, d, left, false, x, false));
    if (m->values) {
        for (int64_t i = 0; i < out * d; i++)
            x[i] /= fmax((double)m->left_values[i / d], 0.0) * fmax((double)m->right_values[i % d], 0.0) + m->shift;
        step_by(&x, product_of(out, d, d, x, false, right, false));
        step_by(&x, product_of(out, out, d, left, true, x, false));
    }
    for (int64_t i = 0; m->row_scale && i < out * d; i++) x[i] *= (double)m->scale[i / d];
    free(left);
    free(right);
    return x;
}

/* Element (o, column), PyTorch's order, of what the device wrote. */
static double result_at(const map *m, const float *result, int64_t o, int64_t column)
{
    if (column == m->columns) return (double)result[m->out * m->columns + o];
    return (double)result[(o * m->kernel + column % m->kernel) * m->channels + column / m->kernel];
}

static float *fetch_result(const map *m)
{
    const size_t bytes = (size_t)(m->out * m->d + GUARD) * sizeof(float);
    float *result = malloc(bytes);
    assert_non_null(result);
    cuda_move(cuda, result, m->product.result, bytes);
    return result;
}

static void name_map(const map *m, char *text, size_t room)
{
    snprintf(text, room, "%lld x (%lld * %lld%s)%s%s%s%s%s", (long long)m->out, (long long)m->channels, (long long)m->kernel,
             m->bias ? " + 1" : "", m->bias && !m->bias_grad ? ", no gradient of the bias" : "", m->left ? ", left" : "",
             m->row_scale ? ", scale" : "", m->values ? ", eigenvalues" : "", m->shifted ? ", not aligned" : "");
}

/* sums: <G, G>, <G^, G>, <G^, G^>. */
static void check_map(const map *m, const double sums[3], int32_t broken)
{
    char text[160];
    double *expected = truth_of(m), worst = 0.0, largest = 0.0, sum = 0.0, exact = 0.0, size = 0.0, gg = 0.0, hh = 0.0,
           own = 0.0;
    const double inner = sums[1];
    float *result = fetch_result(m);
    name_map(m, text, sizeof text);
    for (int64_t i = 0; i < m->out * m->d; i++) {
        const double got = result_at(m, result, i / m->d, i % m->d), g = grad_at(m, i / m->d, i % m->d);
        const double off = fabs(got - expected[i]);
        if (!(off <= worst)) worst = off;
        largest = fmax(largest, fabs(expected[i]));
        sum += got * g;
        exact += expected[i] * g;
        size += fabs(got * g);
        gg += g * g;
        hh += expected[i] * expected[i];
        own += got * got;
    }
    if (!(worst <= tolerance * largest)) fail_msg("%s: off by %g of %g", text, worst, largest);
    if (!(fabs(inner - sum) <= 1e-12 * size)) fail_msg("%s: <G^, G> is %.17g, not %.17g", text, inner, sum);
    if (!(fabs(inner - exact) <= tolerance * sqrt(gg * hh))) fail_msg("%s: <G^, G> is %g, not %g", text, inner, exact);
    if (!(fabs(sums[0] - gg) <= 1e-12 * gg)) fail_msg("%s: <G, G> is %.17g, not %.17g", text, sums[0], gg);
    if (!(fabs(sums[2] - own) <= 1e-12 * own)) fail_msg("%s: <G^, G^> is %.17g, not %.17g", text, sums[2], own);
    if (broken != 0) fail_msg("%s: called broken", text);
    for (int64_t i = m->out * m->d; i < m->out * m->d + GUARD; i++)
        if (result[i] != 7.0f) fail_msg("%s: wrote behind the end", text);
    free(expected);
    free(result);
}

/* ---- all at once ------------------------------------------------------------------------------------------------------- */

typedef struct bench {
    map maps[MAX_MAPS];
    int n;
    abar__cuda_multiplier *multiplier;
    int32_t *active, *broken; /* on the device */
    double *sums;             /* (MAX_MAPS, 3) */
    int32_t host_active[MAX_MAPS], host_broken[MAX_MAPS];
    double host_sums[MAX_MAPS][3];
} bench;

static int waves_of(const bench *b) { return b->n < 3 ? b->n : 3; }

static int wave_of(const bench *b, int i) { return i * waves_of(b) / b->n; }

static void gather(const bench *b, abar__cuda_product *products)
{
    for (int i = 0; i < b->n; i++) {
        products[i] = b->maps[i].product;
        products[i].wave = wave_of(b, i);
    }
}

static bench *make_bench(const map *maps, int n)
{
    bench *b = calloc(1, sizeof *b);
    abar__cuda_product products[MAX_MAPS];
    assert_non_null(b);
    assert_true(n <= MAX_MAPS);
    b->n = n;
    for (int i = 0; i < n; i++) {
        b->maps[i] = maps[i];
        fill_map(&b->maps[i]);
        upload_map(&b->maps[i]);
        b->host_active[i] = 1;
    }
    gather(b, products);
    if (abar__cuda_multiplier_create(cuda, products, n, NULL, &b->multiplier) != ABAR_OK)
        fail_msg("%s", abar_context_error(ctx));
    assert_true(abar__cuda_multiplier_bytes(b->multiplier) > 0);
    b->active = cuda_alloc(cuda, MAX_MAPS * sizeof *b->active);
    b->broken = cuda_alloc(cuda, MAX_MAPS * sizeof *b->broken);
    b->sums = cuda_alloc(cuda, sizeof b->host_sums);
    return b;
}

static void free_bench(bench *b)
{
    abar__cuda_multiplier_destroy(cuda, b->multiplier);
    for (int i = 0; i < b->n; i++) free_map(&b->maps[i]);
    abar_device_free(cuda, b->active, MAX_MAPS * sizeof *b->active);
    abar_device_free(cuda, b->broken, MAX_MAPS * sizeof *b->broken);
    abar_device_free(cuda, b->sums, sizeof b->host_sums);
    free(b);
}

/* From results full of sevens. */
static void prepare(bench *b)
{
    for (int i = 0; i < b->n; i++) {
        const int64_t n = b->maps[i].out * b->maps[i].d + GUARD;
        float *sevens = malloc((size_t)n * sizeof *sevens);
        for (int64_t j = 0; j < n; j++) sevens[j] = 7.0f;
        cuda_move(cuda, b->maps[i].product.result, sevens, (size_t)n * sizeof *sevens);
        free(sevens);
        for (int k = 0; k < 3; k++) b->host_sums[i][k] = 7.0;
        b->host_broken[i] = 7;
    }
    cuda_move(cuda, b->active, b->host_active, sizeof b->host_active);
    cuda_move(cuda, b->sums, b->host_sums, sizeof b->host_sums);
    cuda_move(cuda, b->broken, b->host_broken, sizeof b->host_broken);
}

static void fetch(bench *b)
{
    cuda_wait(cuda, "multiply");
    cuda_move(cuda, b->host_sums, b->sums, sizeof b->host_sums);
    cuda_move(cuda, b->host_broken, b->broken, sizeof b->host_broken);
}

static void multiply(bench *b)
{
    prepare(b);
    for (int wave = 0; wave < waves_of(b); wave++)
        if (abar__cuda_multiply(cuda, b->multiplier, wave, b->active, b->sums, b->broken) != ABAR_OK)
            fail_msg("%s", abar_context_error(ctx));
    fetch(b);
}

static void check_untouched(const bench *b, int i)
{
    float *result = fetch_result(&b->maps[i]);
    for (int64_t j = 0; j < b->maps[i].out * b->maps[i].d; j++) assert_true(result[j] == 7.0f);
    for (int k = 0; k < 3; k++) assert_true(b->host_sums[i][k] == 7.0);
    assert_int_equal(b->host_broken[i], 7);
    free(result);
}

static void check_all(const bench *b)
{
    for (int i = 0; i < b->n; i++)
        if (b->host_active[i])
            check_map(&b->maps[i], b->host_sums[i], b->host_broken[i]);
        else
            check_untouched(b, i);
}

/* ---- tests ------------------------------------------------------------------------------------------------------------- */

static const map chosen[] = {
    {.out = 1, .channels = 1, .kernel = 1},
    {.out = 1, .channels = 1, .kernel = 1, .bias = true, .bias_grad = true, .left = true},
    {.out = 64, .channels = 32, .kernel = 9},
    {.out = 64, .channels = 32, .kernel = 9, .left = true, .row_scale = true},
    {.out = 32, .channels = 16, .kernel = 9, .row_scale = true},
    {.out = 16, .channels = 3, .kernel = 9, .left = true},
    {.out = 17, .channels = 7, .kernel = 25, .bias = true, .bias_grad = true},
    {.out = 6, .channels = 1, .kernel = 25, .bias = true, .bias_grad = true, .left = true},
    {.out = 33, .channels = 64, .kernel = 1, .bias = true},
    {.out = 10, .channels = 84, .kernel = 1, .bias = true, .bias_grad = true, .row_scale = true},
    {.out = 70, .channels = 12, .kernel = 9, .bias = true, .bias_grad = true, .left = true},
    {.out = 65, .channels = 300, .kernel = 1, .left = true},
    {.out = 20, .channels = 4, .kernel = 9, .left = true, .values = true},
    {.out = 67, .channels = 5, .kernel = 25, .bias = true, .bias_grad = true, .left = true, .values = true, .row_scale = true},
    {.out = 31, .channels = 40, .kernel = 1, .bias = true, .left = true, .values = true},
    {.out = 8, .channels = 8, .kernel = 9, .shifted = true, .left = true},
    {.out = 12, .channels = 16, .kernel = 9, .bias = true, .bias_grad = true, .shifted = true, .left = true, .values = true},
    {.out = 5, .channels = 2, .kernel = 64, .bias = true},
};

enum { CHOSEN = sizeof chosen / sizeof *chosen };

static map random_map(void)
{
    static const int64_t kernels[] = {1, 9, 25};
    map m = {.out = 1 + below(70), .kernel = kernels[below(3)]};
    m.channels = 1 + below(1 + (m.kernel == 1 ? 300 : 150 / m.kernel));
    m.bias = below(2);
    m.bias_grad = m.bias && below(3);
    m.left = below(2);
    m.values = m.left && below(3) == 0;
    m.row_scale = below(2);
    m.shifted = below(4) == 0;
    return m;
}

static void products_match(abar_precision precision)
{
    map maps[MAX_MAPS];
    const int random = cuda_only("ABAR_TEST_SMALL") ? 2 : 22;
    open_device(precision);
    memcpy(maps, chosen, sizeof chosen);
    for (int i = 0; i < random; i++) maps[CHOSEN + i] = random_map();
    bench *b = make_bench(maps, CHOSEN + random);
    multiply(b);
    check_all(b);
    free_bench(b);
    close_device();
}

static void products_in_fp32_match(void **unused)
{
    (void)unused;
    products_match(ABAR_PRECISION_FP32);
}

static void products_in_tf32_match(void **unused)
{
    (void)unused;
    products_match(ABAR_PRECISION_TF32);
}

static void products_in_bf16_match(void **unused)
{
    (void)unused;
    products_match(ABAR_PRECISION_BF16);
}

/* Large maps have larger tiles, in float32's own accuracy they have not. */
static void large_products_match(void **unused)
{
    (void)unused;
    const map maps[] = {
        {.out = 256, .channels = 30, .kernel = 9, .left = true},
        {.out = 300, .channels = 256, .kernel = 1, .bias = true, .bias_grad = true, .row_scale = true},
        {.out = 20, .channels = 3, .kernel = 9},
        {.out = 320, .channels = 26, .kernel = 9, .left = true, .values = true},
        {.out = 65, .channels = 16, .kernel = 9, .bias = true},
    };
    for (int precision = ABAR_PRECISION_FP32; precision <= ABAR_PRECISION_TF32; precision++) {
        open_device((abar_precision)precision);
        bench *b = make_bench(maps, sizeof maps / sizeof *maps);
        multiply(b);
        check_all(b);
        free_bench(b);
        close_device();
    }
}

/* The largest have tiles of their own, with ends in all directions here; then gradients that are not aligned, and one element
 * that is not a number. */
static void wide_products_match(void **unused)
{
    (void)unused;
    const map maps[] = {
        {.out = 130, .channels = 60, .kernel = 9, .row_scale = true},
        {.out = 256, .channels = 520, .kernel = 1, .left = true},
        {.out = 20, .channels = 3, .kernel = 9},
        {.out = 140, .channels = 64, .kernel = 9, .left = true, .row_scale = true},
        {.out = 128, .channels = 512, .kernel = 1, .bias = true, .bias_grad = true},
        {.out = 300, .channels = 512, .kernel = 1},
        {.out = 8480, .channels = 512, .kernel = 1}, /* fills a large device by wider tiles, and not by others */
    };
    const int n = (int)(sizeof maps / sizeof *maps) - (cuda_only("ABAR_TEST_SMALL") ? 1 : 0);
    const float bad = NAN;
    abar__cuda_product products[MAX_MAPS];
    open_device(ABAR_PRECISION_TF32);
    bench *b = make_bench(maps, n);
    multiply(b);
    check_all(b);
    map *m = &b->maps[0];
    const size_t bytes = (size_t)(m->out * m->columns) * sizeof *m->grad;
    float *elsewhere = cuda_alloc(cuda, bytes + sizeof *elsewhere);
    cuda_move(cuda, elsewhere + 1, m->grad, bytes);
    m->product.grad = elsewhere + 1;
    gather(b, products);
    assert_int_equal(abar__cuda_multiplier_rebind(cuda, b->multiplier, products), ABAR_OK);
    cuda_move(cuda, (void *)(uintptr_t)(b->maps[5].product.grad + 200 * 512 + 3), &bad, sizeof bad);
    multiply(b);
    assert_int_equal(b->host_broken[5], 1);
    for (int i = 0; i < 5; i++) check_map(&b->maps[i], b->host_sums[i], b->host_broken[i]);
    abar_device_free(cuda, elsewhere, bytes + sizeof *elsewhere);
    free_bench(b);
    close_device();
}

static void inactive_maps_are_left_alone(void **unused)
{
    (void)unused;
    open_device(ABAR_PRECISION_FP32);
    bench *b = make_bench(chosen, CHOSEN);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < b->n; i++) b->host_active[i] = round == 2 ? 0 : (i + round) % 2;
        multiply(b);
        check_all(b);
    }
    free_bench(b);
    close_device();
}

/* One element that is not finite, anywhere, breaks its map and no other. */
static void infinite_elements_break_their_map(void **unused)
{
    (void)unused;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int precision = ABAR_PRECISION_FP32; precision <= ABAR_PRECISION_TF32; precision++) {
        open_device((abar_precision)precision);
        bench *b = make_bench(chosen, CHOSEN);
        for (int i = 0; i < b->n; i++) {
            const map *m = &b->maps[i];
            const float *to = i % 3 == 2 ? m->product.right + below(m->d * m->d) : m->product.grad + below(m->out * m->columns);
            if (i % 2) cuda_move(cuda, (void *)(uintptr_t)to, &bad[i / 2 % 3], sizeof *bad);
        }
        multiply(b);
        for (int i = 0; i < b->n; i++)
            if (i % 2)
                assert_int_equal(b->host_broken[i], 1);
            else
                check_map(&b->maps[i], b->host_sums[i], b->host_broken[i]);
        free_bench(b);
        close_device();
    }
}

/* Overflow of the result alone, too. */
static void overflow_breaks_its_map(void **unused)
{
    (void)unused;
    const map maps[] = {{.out = 3, .channels = 4, .kernel = 9, .row_scale = true}, {.out = 3, .channels = 4, .kernel = 9}};
    const float huge = 3e38f;
    open_device(ABAR_PRECISION_FP32);
    bench *b = make_bench(maps, 2);
    for (int64_t o = 0; o < 3; o++) cuda_move(cuda, (void *)(uintptr_t)(b->maps[0].product.row_scale + o), &huge, sizeof huge);
    float grad[36];
    for (int i = 0; i < 36; i++) grad[i] = 1e30f;
    cuda_move(cuda, (void *)(uintptr_t)b->maps[0].product.grad, grad, sizeof grad);
    multiply(b);
    assert_int_equal(b->host_broken[0], 1);
    check_map(&b->maps[1], b->host_sums[1], b->host_broken[1]);
    free_bench(b);
    close_device();
}

/* A wave writes its own maps, the room for what is between is lent and may hold anything. */
static void waves_leave_others_alone(void **unused)
{
    (void)unused;
    abar__cuda_product products[MAX_MAPS];
    abar__cuda_multiplier *lent;
    open_device(ABAR_PRECISION_FP32);
    bench *b = make_bench(chosen, CHOSEN);
    gather(b, products);
    const size_t bytes = abar__cuda_multiplier_workspace(products, b->n), own = abar__cuda_multiplier_bytes(b->multiplier);
    assert_true(bytes > 0);
    void *room = cuda_alloc(cuda, bytes), *nans = malloc(bytes);
    assert_non_null(nans);
    memset(nans, 0xff, bytes);
    cuda_move(cuda, room, nans, bytes);
    assert_int_equal(abar__cuda_multiplier_create(cuda, products, b->n, room, &lent), ABAR_OK);
    assert_true(abar__cuda_multiplier_bytes(lent) + bytes <= own);
    prepare(b);
    assert_int_equal(abar__cuda_multiply(cuda, lent, 1, b->active, b->sums, b->broken), ABAR_OK);
    fetch(b);
    for (int i = 0; i < b->n; i++)
        if (wave_of(b, i) == 1)
            check_map(&b->maps[i], b->host_sums[i], b->host_broken[i]);
        else
            check_untouched(b, i);
    abar__cuda_multiplier_destroy(cuda, lent);
    abar_device_free(cuda, room, bytes);
    free(nans);
    free_bench(b);
    close_device();
}

/* The same bits again, given anew or replayed from a recording. */
static void replays_repeat_the_bits(void **unused)
{
    (void)unused;
    void *graph;
    float *first[CHOSEN];
    double sums[CHOSEN][3];
    open_device(ABAR_PRECISION_TF32);
    const abar__stream_ops *stream = cuda->ops->stream;
    bench *b = make_bench(chosen, CHOSEN);
    multiply(b);
    for (int i = 0; i < CHOSEN; i++) first[i] = fetch_result(&b->maps[i]);
    memcpy(sums, b->host_sums, sizeof sums);
    assert_int_equal(stream->capture_begin(cuda), ABAR_OK);
    for (int wave = 0; wave < waves_of(b); wave++)
        assert_int_equal(abar__cuda_multiply(cuda, b->multiplier, wave, b->active, b->sums, b->broken), ABAR_OK);
    assert_int_equal(stream->capture_end(cuda, &graph), ABAR_OK);
    for (int run = 0; run < 2; run++) {
        prepare(b);
        assert_int_equal(stream->replay(cuda, graph), ABAR_OK);
        fetch(b);
        for (int i = 0; i < CHOSEN; i++) {
            float *again = fetch_result(&b->maps[i]);
            assert_memory_equal(again, first[i], (size_t)(b->maps[i].out * b->maps[i].d) * sizeof *again);
            assert_memory_equal(b->host_sums[i], sums[i], sizeof sums[i]);
            free(again);
        }
    }
    stream->forget(cuda, graph);
    for (int i = 0; i < CHOSEN; i++) free(first[i]);
    free_bench(b);
    close_device();
}

/* Gradients elsewhere, aligned otherwise, and one bias that has none now. */
static void rebinding_reads_the_new_gradients(void **unused)
{
    (void)unused;
    const size_t room = 1 << 18;
    abar__cuda_product products[MAX_MAPS];
    open_device(ABAR_PRECISION_FP32);
    bench *b = make_bench(chosen, CHOSEN);
    float *memory = cuda_alloc(cuda, room * sizeof *memory);
    multiply(b);
    size_t at = 1;
    for (int i = 0; i < b->n; i++) {
        map *m = &b->maps[i];
        const int64_t n = m->out * m->columns;
        free(m->grad);
        m->grad = random_floats(n, 2.0);
        assert_true(at + (size_t)n <= room);
        cuda_move(cuda, memory + at, m->grad, (size_t)n * sizeof *memory);
        m->product.grad = memory + at;
        if (i == 9) m->bias_grad = false, m->product.bias_grad = NULL;
        at += (size_t)n;
    }
    gather(b, products);
    if (abar__cuda_multiplier_rebind(cuda, b->multiplier, products) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    multiply(b);
    check_all(b);
    products[3].out++;
    assert_int_equal(abar__cuda_multiplier_rebind(cuda, b->multiplier, products), ABAR_E_UNSUPPORTED);
    abar_device_free(cuda, memory, room * sizeof *memory);
    free_bench(b);
    close_device();
}

static void wrong_products_are_refused(void **unused)
{
    (void)unused;
    open_device(ABAR_PRECISION_FP32);
    abar__cuda_multiplier *m;
    float *memory = cuda_alloc(cuda, 1024);
    const abar__cuda_product good = {
        .out = 2, .columns = 9, .kernel = 9, .d = 9, .grad = memory, .right = memory, .result = memory};
    for (int i = 0; i < 5; i++) {
        abar__cuda_product p = good;
        if (i == 0) p.kernel = 2;
        if (i == 1) p.d = 11;
        if (i == 2) p.result = NULL;
        if (i == 3) p.values = memory;
        if (i == 4) p.wave = 2;
        assert_int_equal(abar__cuda_multiplier_create(cuda, &p, 1, NULL, &m), ABAR_E_ARGUMENT);
        assert_null(m);
    }
    assert_int_equal(abar__cuda_multiplier_create(cuda, NULL, 0, NULL, &m), ABAR_OK);
    assert_int_equal(abar__cuda_multiply(cuda, m, 0, NULL, NULL, NULL), ABAR_OK);
    abar__cuda_multiplier_destroy(cuda, m);
    abar__cuda_multiplier_destroy(cuda, NULL);
    abar_device_free(cuda, memory, 1024);
    close_device();
}

int main(void)
{
    const int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_in_fp32_match),
        cmocka_unit_test(products_in_tf32_match),
        cmocka_unit_test(products_in_bf16_match),
        cmocka_unit_test(large_products_match),
        cmocka_unit_test(wide_products_match),
        cmocka_unit_test(inactive_maps_are_left_alone),
        cmocka_unit_test(infinite_elements_break_their_map),
        cmocka_unit_test(overflow_breaks_its_map),
        cmocka_unit_test(waves_leave_others_alone),
        cmocka_unit_test(replays_repeat_the_bits),
        cmocka_unit_test(rebinding_reads_the_new_gradients),
        cmocka_unit_test(wrong_products_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
