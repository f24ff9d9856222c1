/* The analyses against numpy's numbers for given layers: tests/golden/analysis.safetensors, made by
 * tests/oracle/golden_analysis.py. */
#include "abar/analysis.h"
#include "analysis/attention.h"
#include "analysis/dense.h"
#include "analysis/factors.h"
#include "analysis/observe.h"
#include "analysis_testing.h"
#include "io/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN ABAR_TEST_DATA "/golden/analysis.safetensors"
#define RHO 0.1

/* A dense copy of tensor NAME.WHAT; the file's own data may be unaligned. NULL: there is none. */
static void *load(const abar__safetensors *file, const char *name, const char *what, abar_tensor *shape)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, what);
    if (!abar__safetensors_find(file, full, shape)) return NULL;
    void *data = malloc(abar_tensor_bytes(shape));
    assert_non_null(data);
    memcpy(data, shape->data, abar_tensor_bytes(shape));
    return data;
}

static void *need(const abar__safetensors *file, const char *name, const char *what, abar_tensor *shape)
{
    void *data = load(file, name, what, shape);
    if (!data) fail_msg("%s.%s: not in the golden file", name, what);
    return data;
}

static void compare(const double *found, const double *expected, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        assert_near(found[i], expected[i], tolerance * fmax(fabs(expected[i]), 1e-6 * fabs(expected[0])));
}

/* ---- layers ------------------------------------------------------------------------------------------------------------ */

typedef struct rows {
    abar__row_shape shape;
    int64_t examples, side;
    double *a, *p; /* (examples, rows, side), (examples, rows, out) */
} rows;

/* What a layer of this weight reads from the golden tensors. */
static rows take_rows(const abar__safetensors *file, const char *name, const abar_layer *layer, int64_t group)
{
    abar_tensor x, grad;
    float *input = need(file, name, "input", &x), *output = need(file, name, "output_grad", &grad);
    rows r = {.shape = abar__row_shape_of(layer, &x, &grad, group), .examples = x.dim[0]};
    r.side = r.shape.d + 1;
    r.a = malloc(sizeof(double) * (size_t)(r.examples * r.shape.rows * r.side));
    r.p = malloc(sizeof(double) * (size_t)(r.examples * r.shape.rows * r.shape.out));
    assert_true(r.a && r.p);
    for (int64_t n = 0; n < r.examples; n++) {
        abar__input_rows(&r.shape, input + n * r.shape.in_size, true, r.a + n * r.shape.rows * r.side);
        abar__output_rows(&r.shape, output + n * r.shape.out_size, (double)r.examples, r.p + n * r.shape.rows * r.shape.out);
    }
    free(input);
    free(output);
    return r;
}

static abar_moments *sum_rows(abar_context *ctx, const double *data, int64_t n, int64_t side)
{
    abar_moments *m;
    const abar_tensor t = abar_tensor_wrap(NULL, (void *)(uintptr_t)data, ABAR_F64, 2, (int64_t[]){n, side});
    assert_fine(ctx, abar_moments_create(ctx, side, &m));
    assert_fine(ctx, abar_moments_add(m, &t));
    return m;
}

static void check_inputs(abar_context *ctx, const abar__safetensors *file, const char *name, const rows *r)
{
    abar_tensor shape;
    abar_moments_summary s = {.size = sizeof s};
    double *values = calloc((size_t)r->side, sizeof *values), *expected = need(file, name, "A", &shape),
           *summary = need(file, name, "summary", &shape);
    abar_moments *m = sum_rows(ctx, r->a, r->examples * r->shape.rows, r->side);
    assert_non_null(values);
    assert_fine(ctx, abar_moments_summarise(m, RHO, &s, values, r->side));
    compare(values, expected, r->side, 1e-9);
    const double numbers[] = {s.trace,
                              s.largest,
                              s.second,
                              s.mean_square,
                              s.cosine,
                              s.davis_kahan,
                              s.covariance_norm,
                              s.covariance_spectral,
                              s.covariance_trace,
                              s.rank1_error,
                              s.adaptive_damping,
                              s.kappa_kfac,
                              s.kappa_mac,
                              s.condition_sgd,
                              s.condition_mac};
    assert_int_equal(shape.dim[0], sizeof numbers / sizeof *numbers);
    compare(numbers, summary, shape.dim[0], 1e-9);
    abar_moments_destroy(m);
    free(values);
    free(expected);
    free(summary);
}

static void check_outputs(abar_context *ctx, const abar__safetensors *file, const char *name, const rows *r)
{
    const int64_t out = r->shape.out, n = r->examples;
    abar_tensor shape;
    abar_moments_summary s = {.size = sizeof s};
    double *values = calloc((size_t)(out + n), sizeof *values), *gram = calloc((size_t)(n * n), sizeof *gram),
           *expected = need(file, name, "P", &shape), *fisher = need(file, name, "Fisher", &shape);
    abar_moments *m = sum_rows(ctx, r->p, n * r->shape.rows, out);
    assert_true(values && gram);
    assert_fine(ctx, abar_moments_summarise(m, 0.0, &s, values, out));
    for (int64_t i = 0; i < out; i++) values[i] *= (double)r->shape.rows;
    compare(values, expected, out, 1e-9);
    assert_fine(ctx, abar__fisher_gram(ctx, n, r->shape.rows, r->side, out, r->a, r->p, gram));
    assert_fine(ctx, abar__eigen_symmetric(ctx, n, gram, false, values));
    for (int64_t i = 0; i < n; i++) values[i] /= (double)n;
    compare(values, fisher, n, 1e-9);
    abar_moments_destroy(m);
    free(values);
    free(gram);
    free(expected);
    free(fisher);
}

static void check_layer(abar_context *ctx, const char *name, const abar_layer *layer, int64_t group)
{
    abar__safetensors *file;
    assert_fine(ctx, abar__safetensors_open(ctx, GOLDEN, &file));
    rows r = take_rows(file, name, layer, group);
    check_inputs(ctx, file, name, &r);
    check_outputs(ctx, file, name, &r);
    free(r.a);
    free(r.p);
    abar__safetensors_close(file);
}

static void golden_convolution_with_stride_padding_dilation_groups(void **state)
{
    const abar_layer layer = {.weight = {.ndim = 4, .dim = {6, 2, 3, 2}},
                              .window = {.kernel = {3, 2}, .stride = {2, 1}, .pad = {1, 0}, .dilation = {1, 2}, .groups = 2}};
    check_layer(*state, "convolution", &layer, 1);
}

static void golden_linear_on_a_sequence(void **state)
{
    const abar_layer layer = {.weight = {.ndim = 2, .dim = {4, 6}}};
    check_layer(*state, "sequence", &layer, 0);
}

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

static void check_attention(abar_context *ctx, const char *name, int64_t side, int64_t shift, bool causal)
{
    abar__safetensors *file;
    abar_tensor qkv, shape;
    abar__attention_sums sums;
    abar__attention_summary s;
    double values[36], singular[36], columns[36];
    assert_fine(ctx, abar__safetensors_open(ctx, GOLDEN, &file));
    float *data = need(file, name, "qkv", &qkv), *bias = load(file, name, "bias", &shape);
    const int64_t tokens = qkv.dim[1], n = side ? side * side : tokens;
    const abar__attention_view view = {.qkv = data,
                                       .samples = qkv.dim[0],
                                       .tokens = tokens,
                                       .width = qkv.dim[2] / 3,
                                       .heads = 2,
                                       .grid = {side ? 6 : 0, side ? 6 : 0},
                                       .side = side,
                                       .shift = shift,
                                       .causal = causal,
                                       .bias = bias};
    assert_int_equal(bias != NULL, side > 0);
    assert_fine(ctx, abar__attention_create(ctx, n, &sums));
    assert_fine(ctx, abar__attention_add_view(&sums, &view));
    assert_fine(ctx, abar__attention_summarise(&sums, &s, values, singular, columns));
    const double numbers[] = {
        s.cosine_stationary, s.cosine_singular, s.cosine_lower, s.lower_largest, s.share, s.rank1, s.printed};
    const struct {
        const char *what;
        const double *found;
        int64_t n;
    } lists[] = {{"numbers", numbers, 7}, {"eigenvalues", values, n}, {"singular", singular, n}, {"columns", columns, n}};
    for (int i = 0; i < 4; i++) {
        double *expected = need(file, name, lists[i].what, &shape);
        assert_int_equal(shape.dim[0], lists[i].n);
        compare(lists[i].found, expected, lists[i].n, 1e-8);
        free(expected);
    }
    abar__attention_free(&sums);
    free(data);
    free(bias);
    abar__safetensors_close(file);
}

static void golden_attention_plain_causal_and_shifted(void **state)
{
    check_attention(*state, "plain", 0, 0, false);
    check_attention(*state, "causal", 0, 0, true);
    check_attention(*state, "shifted", 3, 1, false);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_context, close_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(golden_convolution_with_stride_padding_dilation_groups),
        TEST(golden_linear_on_a_sequence),
        TEST(golden_attention_plain_causal_and_shifted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
