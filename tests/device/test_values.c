/* Sums over rows that attention weighs (stats_impl.h; methods.md section 2) on the cpu, and on cuda where there is one, against
 * ref: shapes of real layers and odd ones, every dtype of x, dense and with gaps, added to what is there already. On cuda they
 * are recorded and replayed. */
#include "cuda_testing.h"

#include <math.h>

#define TOLERANCE 1e-5 /* of the largest element: float32 sums of up to some thousand rows */
#define TIMES 2        /* every sum is made so often */

typedef struct shape {
    int64_t examples, tokens, in, heads;
    int64_t grid[2], side, shift;
    bool bias, gaps;
    abar_dtype dtype;
} shape;

static const shape shapes[] = {
    {3, 197, 192, 3, {0, 0}, 0, 0, true, false, ABAR_F32},    {2, 197, 192, 3, {0, 0}, 0, 0, true, false, ABAR_BF16},
    {2, 64, 384, 12, {0, 0}, 0, 0, true, false, ABAR_BF16},   {2, 784, 96, 3, {28, 28}, 7, 3, true, false, ABAR_BF16},
    {2, 196, 96, 24, {14, 14}, 7, 3, false, false, ABAR_F32}, {4, 9, 72, 40, {0, 0}, 0, 0, true, false, ABAR_F32},
    {5, 7, 13, 2, {0, 0}, 0, 0, true, false, ABAR_F32},       {5, 7, 13, 2, {0, 0}, 0, 0, false, false, ABAR_BF16},
    {3, 24, 8, 4, {4, 6}, 2, 1, true, true, ABAR_F32},        {3, 24, 16, 4, {4, 6}, 2, 1, true, true, ABAR_BF16},
    {2, 6, 20, 1, {0, 0}, 0, 0, true, false, ABAR_F16},       {1, 1, 1, 1, {0, 0}, 0, 0, true, false, ABAR_F32},
    {700, 3, 65, 9, {0, 0}, 0, 0, true, false, ABAR_F32},     {1, 1500, 64, 8, {0, 0}, 0, 0, false, false, ABAR_BF16},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static double uniform(uint64_t *noise) /* -1 .. 1 in eight bits, so that every dtype holds it */
{
    *noise = *noise * 6364136223846793005u + 1442695040888963407u;
    return (double)((int64_t)(*noise >> 33) % 127) / 64.0 - 1.0;
}

/* Memory of a device, filled from doubles (NULL: zeros), with every other element a gap where requested. */
static abar_tensor make(abar_device *dev, abar_dtype dtype, bool gaps, int ndim, const int64_t *dim, const double *from)
{
    abar_tensor t = abar_tensor_wrap(dev, NULL, dtype, ndim, dim);
    for (int i = 0; i < ndim && gaps; i++) t.stride[i] *= 2;
    t.data = cuda_alloc(dev, abar_tensor_bytes(&t));
    const abar_tensor host = abar_tensor_wrap(NULL, (void *)(uintptr_t)from, ABAR_F64, ndim, dim);
    if (from) assert_int_equal(abar_tensor_copy(dev->ctx, &t, &host), ABAR_OK);
    return t;
}

static void drop(abar_device *dev, abar_tensor *t) { abar_device_free(dev, t->data, abar_tensor_bytes(t)); }

static double *fetch(abar_device *dev, const abar_tensor *t)
{
    double *to = calloc((size_t)abar_tensor_count(t) + 1, sizeof *to);
    const abar_tensor host = abar_tensor_wrap(NULL, to, ABAR_F64, t->ndim, t->dim);
    assert_int_equal(abar_tensor_copy(dev->ctx, &host, t), ABAR_OK);
    return to;
}

/* ---- one device's side ---------------------------------------------------------------------------------------------- */

typedef struct side {
    abar_device *dev;
    abar_tensor x, columns;
    abar_tensor sum, square;                /* (parts, d + 3), (parts, 2): each part's lie some way apart */
    abar_tensor by_position, shares, norms; /* (positions, in), (positions), (positions) */
    abar__rows rows;
    abar__value_sums v;
    abar__position_sums p;
    double sequences;
} side;

static void open_side(side *s, abar_device *dev, const shape *h, int64_t parts, const double *x, const double *columns)
{
    const bool exact = dev->ops->dtype == ABAR_F64;
    const int64_t windows = h->side ? h->grid[0] / h->side * (h->grid[1] / h->side) : 1, d = h->in + (h->bias ? 1 : 0);
    const int64_t positions = h->tokens / windows, x_dim[] = {h->examples, h->tokens, h->in};
    const int64_t columns_dim[] = {h->examples, h->heads, h->tokens}, sum_dim[] = {parts, d + 3}, square_dim[] = {parts, 2};
    *s = (side){.dev = dev, .sequences = (double)(h->examples * windows)};
    double *ones = calloc((size_t)(parts * (d + 3)), sizeof *ones);
    for (int64_t i = 0; i < parts * (d + 3); i++) ones[i] = 1.0;
    s->x = make(dev, exact ? ABAR_F64 : h->dtype, h->gaps, 3, x_dim, x);
    s->columns = make(dev, dev->ops->dtype, h->gaps, 3, columns_dim, columns);
    s->sum = make(dev, dev->ops->dtype, false, 2, sum_dim, ones);
    s->square = make(dev, ABAR_F64, false, 2, square_dim, ones);
    s->by_position = make(dev, dev->ops->dtype, false, 2, (int64_t[]){positions, h->in}, NULL);
    s->shares = make(dev, dev->ops->dtype, false, 1, &positions, NULL);
    s->norms = make(dev, ABAR_F64, false, 1, &positions, NULL);
    free(ones);
    s->rows = (abar__rows){.input = s->x,
                           .columns = s->columns,
                           .bias = h->bias,
                           .window = abar_window_unit(),
                           .examples = h->examples,
                           .per_example = h->tokens,
                           .in = h->in};
    s->v = (abar__value_sums){.parts = parts,
                              .sequences = s->sequences,
                              .sum = s->sum.data,
                              .sum_stride = d + 3,
                              .square = s->square.data,
                              .square_stride = 2 * sizeof(double)};
    s->p = (abar__position_sums){.positions = positions,
                                 .grid = {h->grid[0], h->grid[1]},
                                 .side = h->side,
                                 .shift = h->shift,
                                 .sum = s->by_position.data,
                                 .columns = s->shares.data,
                                 .square = s->norms.data};
}

static void close_side(side *s)
{
    abar_tensor *all[] = {&s->x, &s->columns, &s->sum, &s->square, &s->by_position, &s->shares, &s->norms};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(s->dev, all[i]);
}

typedef void (*deed)(side *s);

static void add_values(side *s) { s->dev->ops->stats->value_sums(s->dev, &s->rows, &s->v); }

static void add_values_alone(side *s)
{
    s->v.square = NULL;
    add_values(s);
}

static void add_positions(side *s) { s->dev->ops->stats->position_sums(s->dev, &s->rows, &s->p); }

static void add_product(side *s)
{
    add_positions(s);
    s->dev->ops->stats->position_product(s->dev, &s->p, s->rows.in, s->rows.bias, s->sequences, s->sum.data, s->square.data);
}

static void add_product_alone(side *s)
{
    s->p.square = NULL;
    add_positions(s);
    s->dev->ops->stats->position_product(s->dev, &s->p, s->rows.in, s->rows.bias, s->sequences, s->sum.data, NULL);
}

/* Several times; a queued device records it once and replays. */
static void repeat(side *s, deed act)
{
    const abar__stream_ops *q = s->dev->ops->stream;
    if (!q) {
        for (int i = 0; i < TIMES; i++) act(s);
        return;
    }
    void *graph;
    assert_int_equal(q->capture_begin(s->dev), ABAR_OK);
    act(s);
    assert_int_equal(q->capture_end(s->dev, &graph), ABAR_OK);
    for (int i = 0; i < TIMES; i++) assert_int_equal(q->replay(s->dev, graph), ABAR_OK);
    cuda_wait(s->dev, "replay");
    q->forget(s->dev, graph);
}

/* ---- comparing ------------------------------------------------------------------------------------------------------- */

static void compare(side *a, const abar_tensor *found, side *b, const abar_tensor *expected, double tolerance, const char *what)
{
    double *x = fetch(a->dev, found), *y = fetch(b->dev, expected), largest = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(expected); i++) largest = fmax(largest, fabs(y[i]));
    for (int64_t i = 0; i < abar_tensor_count(expected); i++)
        if (!(fabs(x[i] - y[i]) <= tolerance * largest)) fail_msg("%s: element %d is %g, not %g", what, (int)i, x[i], y[i]);
    free(x);
    free(y);
}

static void draw(const shape *h, double **x, double **columns)
{
    uint64_t noise = (uint64_t)(h->tokens * 1000 + h->in);
    const int64_t n = h->examples * h->tokens * h->in, m = h->examples * h->heads * h->tokens;
    *x = calloc((size_t)n, sizeof **x);
    *columns = calloc((size_t)m, sizeof **columns);
    for (int64_t i = 0; i < n; i++) (*x)[i] = uniform(&noise) + 0.25;
    for (int64_t i = 0; i < m; i++) (*columns)[i] = (float)(fabs(uniform(&noise)) / (double)h->tokens);
}

static void check(abar_device *dev, abar_device *ref, const shape *h, int64_t parts, deed act, const char *name)
{
    side found, expected;
    double *x, *columns;
    char what[160];
    snprintf(what, sizeof what, "%s, %d x %d x %d, %d parts, %s", name, (int)h->examples, (int)h->tokens, (int)h->in,
             (int)parts, abar_dtype_name(h->dtype));
    draw(h, &x, &columns);
    open_side(&found, dev, h, parts, x, columns);
    open_side(&expected, ref, h, parts, x, columns);
    repeat(&found, act);
    repeat(&expected, act);
    compare(&found, &found.sum, &expected, &expected.sum, TOLERANCE, what);
    compare(&found, &found.square, &expected, &expected.square, 1e-7, what); /* sums in double */
    compare(&found, &found.by_position, &expected, &expected.by_position, TOLERANCE, what);
    compare(&found, &found.shares, &expected, &expected.shares, TOLERANCE, what);
    compare(&found, &found.norms, &expected, &expected.norms, 1e-12, what);
    free(x);
    free(columns);
    close_side(&found);
    close_side(&expected);
}

/* NULL: this machine has none, and need not. */
static abar_device *open_or_skip(abar_context *ctx, const char *name, int threads)
{
    abar_device *dev = NULL;
    const abar_device_config config = {.size = sizeof config, .threads = threads};
    if (abar_device_open(ctx, name, &config, &dev) == ABAR_OK) return dev;
    if (strcmp(name, "cuda") != 0 || getenv("ABAR_TEST_REQUIRE_CUDA")) fail_msg("%s", abar_context_error(ctx));
    return NULL;
}

static void sums_equal_ref(void **state)
{
    const char *name = *state;
    for (int threads = 1; threads < 4; threads += 2) {
        abar_context *ctx;
        abar_device *ref;
        assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
        abar_device *dev = open_or_skip(ctx, name, threads);
        if (!dev) {
            abar_context_destroy(ctx);
            skip();
        }
        assert_int_equal(abar_device_open(ctx, "ref", NULL, &ref), ABAR_OK);
        for (int i = 0; i < SHAPES; i++) {
            check(dev, ref, &shapes[i], 1, add_values, "mean of the heads");
            check(dev, ref, &shapes[i], 1, add_values_alone, "mean of the heads, no squares");
            check(dev, ref, &shapes[i], shapes[i].heads, add_values, "each head");
            check(dev, ref, &shapes[i], shapes[i].heads, add_values_alone, "each head, no squares");
            check(dev, ref, &shapes[i], 1, add_positions, "by position");
            check(dev, ref, &shapes[i], 1, add_product, "product");
            check(dev, ref, &shapes[i], 1, add_product_alone, "product, no squares");
        }
        abar_device_close(ref);
        abar_device_close(dev);
        assert_int_equal(abar_context_memory(ctx).now, 0);
        abar_context_destroy(ctx);
    }
}

/* Whatever the weight, a number that is not finite stays one. */
static void bad_numbers_are_not_lost(void **state)
{
    const shape h = {2, 9, 16, 3, {0, 0}, 0, 0, true, false, ABAR_F32};
    abar_context *ctx;
    assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
    abar_device *dev = open_or_skip(ctx, *state, 2);
    if (!dev) {
        abar_context_destroy(ctx);
        skip();
    }
    for (int bad = 0; bad < 2; bad++) {
        double *x, *columns;
        side s;
        draw(&h, &x, &columns);
        x[9 * 16 + 5 * 16 + 7] = bad ? INFINITY : 0.5;
        columns[3 * 9 + 2 * 9 + 5] = bad ? 0.0 : NAN; /* the second example's last head, the same token */
        open_side(&s, dev, &h, 3, x, columns);
        add_values(&s);
        double *sum = fetch(dev, &s.sum), *square = fetch(dev, &s.square);
        for (int64_t q = 0; q < 3; q++) {
            assert_int_equal(isfinite(sum[q * 20 + 7]), bad ? 0 : q != 2);
            assert_int_equal(isfinite(sum[q * 20 + 6]), bad ? 1 : q != 2);
            assert_int_equal(isfinite(square[q * 2]), bad ? 0 : q != 2);
            assert_true(sum[q * 20 + 16] == 3.0); /* the homogeneous entry: 1 from before, 2 sequences */
        }
        free(sum);
        free(square);
        free(x);
        free(columns);
        close_side(&s);
    }
    abar_device_close(dev);
    abar_context_destroy(ctx);
}

#define ON(test, device)                                                     \
    {                                                                        \
        "" #test "(" device ")", test, NULL, NULL, (void *)(uintptr_t)device \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(sums_equal_ref, "cpu"),           ON(sums_equal_ref, "cuda"),           ON(bad_numbers_are_not_lost, "ref"),
        ON(bad_numbers_are_not_lost, "cpu"), ON(bad_numbers_are_not_lost, "cuda"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
