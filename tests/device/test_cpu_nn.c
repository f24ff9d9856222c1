/* Properties of the cpu's nn operations besides agreement with ref: accuracy where float is delicate, no hidden NaN, equal
 * results for any number of threads, and gradients that come in two parts. */
#include "op_instance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct devices {
    abar_context *ctx;
    abar_device *ref, *cpu;
} devices;

static int open_devices(void **state)
{
    static devices d;
    abar_device_config two = {.size = sizeof two, .threads = 2};
    assert_int_equal(abar_context_create(NULL, &d.ctx), ABAR_OK);
    assert_int_equal(abar_device_open(d.ctx, "ref", NULL, &d.ref), ABAR_OK);
    assert_int_equal(abar_device_open(d.ctx, "cpu", &two, &d.cpu), ABAR_OK);
    *state = &d;
    return 0;
}

static int close_devices(void **state)
{
    devices *d = *state;
    abar_device_close(d->cpu);
    abar_device_close(d->ref);
    assert_int_equal(abar_context_memory(d->ctx).now, 0);
    abar_context_destroy(d->ctx);
    return 0;
}

static abar_layout last_layout(const abar__op_desc *d) { return d->in[0].ndim == 4 ? ABAR_LAYOUT_N16 : ABAR_LAYOUT_STRIDED; }

static void offer_layout(abar__op_desc *d, abar_layout layout)
{
    for (int i = 0; i < d->n_in; i++) d->in_layout[i] = layout;
}

/* Runs a case on the cpu in every layout and compares with expected. */
static void assert_matches(const devices *dev, const op_case *c, const op_inputs *in, const op_outputs *expected,
                           double tolerance)
{
    abar__op_desc d = op_case_desc(c);
    abar__run run = op_case_run(c);
    for (abar_layout layout = ABAR_LAYOUT_STRIDED; layout <= last_layout(&d); layout++) {
        op_outputs out;
        offer_layout(&d, layout);
        op_run(dev->cpu, &d, &run, in, &out);
        assert_int_equal(op_compare(c->name, &d, &out, expected, tolerance), 0);
        op_outputs_free(&out);
    }
}

static void assert_matches_ref(const devices *dev, const op_case *c, const op_inputs *in, double tolerance)
{
    abar__op_desc d = op_case_desc(c);
    abar__run run = op_case_run(c);
    op_outputs expected;
    op_run(dev->ref, &d, &run, in, &expected);
    assert_matches(dev, c, in, &expected, tolerance);
    op_outputs_free(&expected);
}

/* ---- accuracy -------------------------------------------------------------------------------------------------- */

static double exact(abar__activation kind, double x, double *slope)
{
    if (kind == ABAR_ACT_TANH) {
        *slope = 1 - tanh(x) * tanh(x);
        return tanh(x);
    }
    if (kind == ABAR_ACT_GELU_ERF) {
        double below = 0.5 * erfc(-x * sqrt(0.5)), density = exp(-0.5 * x * x) / sqrt(2 * acos(-1));
        *slope = below + x * density;
        return x * below;
    }
    double u = 2 * sqrt(2 / acos(-1)) * x * (1 + 0.044715 * x * x), s = 1 / (1 + exp(-u));
    *slope = s + x * s * (1 - s) * 2 * sqrt(2 / acos(-1)) * (1 + 3 * 0.044715 * x * x);
    return x * s;
}

static void activation_over_wide_range_is_accurate(void **state)
{
    const devices *dev = *state;
    static const abar__activation kinds[] = {ABAR_ACT_TANH, ABAR_ACT_GELU_ERF, ABAR_ACT_GELU_TANH};
    for (int k = 0; k < 3; k++) {
        op_case c = {"wide_range", ABAR_OP_ACTIVATION, .x = {500, 401}, .activation = kinds[k]};
        abar__op_desc d = op_case_desc(&c);
        abar__run run = op_case_run(&c);
        int64_t n = abar__shape_count(&d.in[0]);
        op_inputs in;
        op_outputs out;
        op_inputs_create(&c, &in);
        for (int64_t i = 0; i < n; i++) {
            double t = 2.0 * (double)i / (double)(n - 1) - 1.0; /* dense around 0, and out to 20 */
            in.x[0][i] = (double)(float)(20 * t * t * t);
            in.dy[i] = 1.0;
        }
        op_run(dev->cpu, &d, &run, &in, &out);
        for (int64_t i = 0; i < n; i++) {
            double x = in.x[0][i], slope, y = exact(kinds[k], x, &slope);
            double relative = kinds[k] == ABAR_ACT_TANH || x > -1 ? fabs(y) : 0; /* gelu's left tail: absolute */
            assert_true(fabs(out.y[i] - y) <= 5e-7 * relative + (relative > 0 ? 1e-30 : 2e-7));
            assert_true(fabs(out.dx[0][i] - slope) <= 1e-6);
        }
        op_outputs_free(&out);
        op_inputs_free(&in);
    }
}

static void batch_norm_with_mean_far_from_zero_keeps_its_digits(void **state)
{
    static const double means[] = {100, -3000, 0};
    for (int m = 0; m < 3; m++) {
        op_case c = {"far_mean", ABAR_OP_BATCH_NORM, .x = {33, 19, 13, 11}};
        op_inputs in;
        op_inputs_create(&c, &in);
        abar__op_desc d = op_case_desc(&c);
        for (int64_t i = 0; i < abar__shape_count(&d.in[0]); i++) in.x[0][i] = (double)(float)(in.x[0][i] / 2 + means[m]);
        for (int64_t i = 0; i < 19; i++) in.buffer[0][i] = in.buffer[1][i] = 0; /* the new statistics alone, times 0.1 */
        abar__run run = op_case_run(&c);
        op_outputs expected, out;
        const devices *dev = *state;
        op_run(dev->ref, &d, &run, &in, &expected);
        for (abar_layout layout = ABAR_LAYOUT_STRIDED; layout <= ABAR_LAYOUT_N16; layout++) {
            offer_layout(&d, layout);
            op_run(dev->cpu, &d, &run, &in, &out);
            assert_true(op_difference(out.buffer[0], expected.buffer[0], 19) <= 1e-7);
            assert_true(op_difference(out.buffer[1], expected.buffer[1], 19) <= 2e-7);
            double rounding = 1e-6 + 1.2e-7 * fabs(means[m]); /* the mean as a float */
            assert_true(op_difference(out.y, expected.y, abar__shape_count(&d.out)) <= rounding);
            assert_true(op_difference(out.dx[0], expected.dx[0], abar__shape_count(&d.in[0])) <= rounding);
            op_outputs_free(&out);
        }
        op_outputs_free(&expected);
        op_inputs_free(&in);
    }
}

/* ---- cases that only the cpu treats specially ---------------------------------------------------------------------- */

static void pool_with_unusual_windows_matches_ref(void **state)
{
    static const op_case cases[] = {
        {"max_dilated", ABAR_OP_POOL2D, .x = {5, 17, 9, 8}, .kernel = {3, 2}, .stride = {2, 3}, .pad = {1, 0},
         .dilation = {2, 3}},
        {"max_gaps", ABAR_OP_POOL2D, .x = {3, 6, 9, 9}, .kernel = {2, 2}, .stride = {3, 4}},
        {"max_2x2_dense", ABAR_OP_POOL2D, .x = {3, 6, 5, 6}, .kernel = {2, 2}, .stride = {1, 1}},
        {"max_wide", ABAR_OP_POOL2D, .x = {2, 3, 20, 21}, .kernel = {17, 18}, .stride = {1, 3}},
        {"max_wide_global", ABAR_OP_POOL2D, .x = {17, 9, 16, 17}, .kernel = {16, 17}, .stride = {16, 17}},
        {"max_tiles_3x2", ABAR_OP_POOL2D, .x = {5, 8, 9, 6}, .kernel = {3, 2}, .stride = {3, 2}},
        {"avg_dilated", ABAR_OP_POOL2D, .x = {5, 17, 9, 8}, .kernel = {3, 2}, .pad = {2, 1}, .dilation = {2, 2},
         .average = true},
        {"avg_gaps", ABAR_OP_POOL2D, .x = {17, 6, 9, 9}, .kernel = {2, 2}, .stride = {3, 4}, .average = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_inputs in;
        op_inputs_create(&cases[i], &in);
        assert_matches_ref(*state, &cases[i], &in, 1e-6);
        op_inputs_free(&in);
    }
}

/* A gradient in two parts gives the same bits as their sum. */
static void operations_with_a_second_gradient_add_it(void **state)
{
    static const op_case cases[] = {
        {"add", ABAR_OP_ADD, .x = {5, 17, 3, 5}, .second_dy = true},
        {"concat", ABAR_OP_CONCAT, .x = {5, 16, 3, 3}, .more = {32, 3}, .second_dy = true},
        {"relu", ABAR_OP_ACTIVATION, .x = {5, 17, 3, 5}, .activation = ABAR_ACT_RELU, .second_dy = true},
        {"tanh", ABAR_OP_ACTIVATION, .x = {5, 17, 3, 5}, .activation = ABAR_ACT_TANH, .second_dy = true},
        {"gelu_erf", ABAR_OP_ACTIVATION, .x = {5, 17, 3, 5}, .activation = ABAR_ACT_GELU_ERF, .second_dy = true},
        {"gelu_tanh", ABAR_OP_ACTIVATION, .x = {5, 17, 3, 5}, .activation = ABAR_ACT_GELU_TANH, .second_dy = true},
    };
    const devices *dev = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar__op_desc d = op_case_desc(&cases[i]);
        abar__run run = op_case_run(&cases[i]);
        op_inputs in;
        op_inputs_create(&cases[i], &in);
        op_inputs joined = in;
        joined.dy2 = NULL;
        joined.dy = calloc((size_t)abar__shape_count(&d.out), sizeof *joined.dy);
        assert_non_null(joined.dy);
        for (int64_t e = 0; e < abar__shape_count(&d.out); e++) joined.dy[e] = (double)((float)in.dy[e] + (float)in.dy2[e]);
        op_outputs expected;
        op_run(dev->cpu, &d, &run, &joined, &expected);
        free(expected.dz); /* the two runs' own inputs */
        expected.dz = NULL;
        assert_matches(dev, &cases[i], &in, &expected, 0.0);
        op_outputs_free(&expected);
        free(joined.dy);
        op_inputs_free(&in);
    }
}

static void dropout_of_everything_leaves_zeros(void **state)
{
    const devices *dev = *state;
    op_case c = {"dropout_all", ABAR_OP_DROPOUT, .x = {5, 17, 3, 3}, .drop = 1.0};
    op_inputs in;
    op_inputs_create(&c, &in);
    assert_matches_ref(dev, &c, &in, 0.0);
    op_inputs_free(&in);
}

static void batch_norm_on_any_number_of_threads_is_the_same(void **state)
{
    const devices *dev = *state;
    op_case c = {"threads", ABAR_OP_BATCH_NORM, .x = {19, 17, 16, 16}, .residual = true, .activation = ABAR_ACT_RELU};
    abar__op_desc d = op_case_desc(&c);
    abar__run run = op_case_run(&c);
    op_inputs in;
    op_outputs expected;
    op_inputs_create(&c, &in);
    offer_layout(&d, ABAR_LAYOUT_C16);
    op_run(dev->cpu, &d, &run, &in, &expected);
    for (int threads = 1; threads <= 5; threads += 2) {
        abar_device_config config = {.size = sizeof config, .threads = threads};
        abar_device *cpu;
        op_outputs out;
        assert_int_equal(abar_device_open(dev->ctx, "cpu", &config, &cpu), ABAR_OK);
        op_run(cpu, &d, &run, &in, &out);
        assert_int_equal(op_compare("threads", &d, &out, &expected, 1e-6), 0);
        op_outputs_free(&out);
        abar_device_close(cpu);
    }
    op_outputs_free(&expected);
    op_inputs_free(&in);
}

/* Sums over samples have one order: equal bits. */
static void sequences_on_any_number_of_threads_are_the_same(void **state)
{
    static const op_case cases[] = {
        {"embedding", ABAR_OP_EMBEDDING, .x = {37, 50}, .width = 72, .vocabulary = 11, .positions = 60, .accumulate = true},
        {"class_token", ABAR_OP_CLASS_TOKEN, .x = {37, 50, 72}},
        {"causal", ABAR_OP_ATTENTION, .x = {7, 150, 96}, .heads = 2, .causal = true, .drop = 0.2},
    };
    const devices *dev = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        abar__op_desc d = op_case_desc(&cases[i]);
        abar__run run = op_case_run(&cases[i]);
        op_inputs in;
        op_outputs expected;
        op_inputs_create(&cases[i], &in);
        op_run(dev->cpu, &d, &run, &in, &expected);
        for (int threads = 1; threads <= 5; threads += 2) {
            abar_device_config config = {.size = sizeof config, .threads = threads};
            abar_device *cpu;
            op_outputs out;
            assert_int_equal(abar_device_open(dev->ctx, "cpu", &config, &cpu), ABAR_OK);
            op_run(cpu, &d, &run, &in, &out);
            assert_int_equal(op_compare(cases[i].name, &d, &out, &expected, 0.0), 0);
            op_outputs_free(&out);
            abar_device_close(cpu);
        }
        op_outputs_free(&expected);
        op_inputs_free(&in);
    }
}

/* A long sequence needs memory in proportion to its length: no matrix of all its pairs. */
static void attention_over_many_tokens_keeps_no_square(void **state)
{
    const devices *dev = *state;
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        op_case c = {"long", ABAR_OP_ATTENTION, .x = {1, i ? 4096 : 1024, 384}, .heads = 2, .causal = true, .drop = 0.1};
        abar__op_desc d = op_case_desc(&c);
        abar__op *op;
        assert_int_equal(abar__op_create(dev->cpu, &d, &op), ABAR_OK);
        bytes[i] = op->scratch_bytes + op->saved_bytes;
        abar__op_destroy(op);
    }
    assert_true(bytes[0] < 1024 * 1024 * sizeof(float)); /* not even one head's */
    assert_true(bytes[1] <= 4 * bytes[0]);
}

/* ---- what must not pass unnoticed ----------------------------------------------------------------------------------- */

/* Forward on the cpu; returns the status and leaves the loss. */
static abar_status run_loss(const devices *dev, const op_case *c, const op_inputs *in, double *loss)
{
    abar__op_desc d = op_case_desc(c);
    abar__run run = op_case_run(c);
    op_instance t;
    op_instance_create(dev->cpu, &d, &run, &t);
    op_instance_load(&t, in);
    abar__op_args a = {
        .run = &run, .x = {t.x[0]}, .target = t.target, .saved = t.saved, .scratch = t.scratch, .result = &t.result};
    abar_status status = abar__op_forward(t.op, &a);
    *loss = t.result.loss;
    op_instance_destroy(&t);
    return status;
}

static void cross_entropy_of_nan_logits_is_nan(void **state)
{
    static const int64_t widths[] = {1, 10, 1003};
    for (int w = 0; w < 3; w++)
        for (int64_t at = 0; at<widths[w]; at += widths[w]> 20 ? 167 : 1) {
            op_case c = {"nan", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {3, widths[w]}};
            op_inputs in;
            double loss;
            op_inputs_create(&c, &in);
            in.x[0][widths[w] + at] = NAN;
            assert_int_equal(run_loss(*state, &c, &in, &loss), ABAR_OK);
            assert_true(isnan(loss));
            in.x[0][widths[w] + at] = INFINITY;
            assert_int_equal(run_loss(*state, &c, &in, &loss), ABAR_OK);
            assert_true(!(fabs(loss) < INFINITY));
            op_inputs_free(&in);
        }
}

static void cross_entropy_with_impossible_label_fails(void **state)
{
    const devices *dev = *state;
    static const int32_t wrong[] = {-1, 7, INT32_MAX};
    op_case c = {"label", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {5, 7}};
    for (int i = 0; i < 3; i++) {
        op_inputs in;
        double loss;
        op_inputs_create(&c, &in);
        in.labels[4] = wrong[i];
        assert_int_equal(run_loss(dev, &c, &in, &loss), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(dev->ctx), "label"));
        op_inputs_free(&in);
    }
}

static void operations_on_nan_show_it(void **state)
{
    static const op_case cases[] = {
        {"relu", ABAR_OP_ACTIVATION, .x = {1, 33}, .activation = ABAR_ACT_RELU},
        {"tanh", ABAR_OP_ACTIVATION, .x = {1, 33}, .activation = ABAR_ACT_TANH},
        {"gelu_erf", ABAR_OP_ACTIVATION, .x = {1, 33}, .activation = ABAR_ACT_GELU_ERF},
        {"gelu_tanh", ABAR_OP_ACTIVATION, .x = {1, 33}, .activation = ABAR_ACT_GELU_TANH},
        {"max_pool", ABAR_OP_POOL2D, .x = {1, 1, 6, 6}, .kernel = {3, 3}, .stride = {3, 3}},
        {"batch_norm_relu", ABAR_OP_BATCH_NORM, .x = {4, 17}, .activation = ABAR_ACT_RELU},
        {"attention", ABAR_OP_ATTENTION, .x = {1, 7, 12}, .heads = 2},
        {"window", ABAR_OP_ATTENTION, .x = {1, 16, 12}, .heads = 2, .grid = {4, 4}, .side = 2, .shift = 1},
    };
    const devices *dev = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int64_t at = 0; at < 33; at += 5) {
            abar__op_desc d = op_case_desc(&cases[i]);
            abar__run run = op_case_run(&cases[i]);
            op_inputs in;
            op_outputs out;
            int nans = 0;
            op_inputs_create(&cases[i], &in);
            free(in.dy);
            in.dy = NULL;
            in.x[0][at] = NAN;
            op_run(dev->cpu, &d, &run, &in, &out);
            for (int64_t e = 0; e < abar__shape_count(&d.out); e++)
                if (out.y[e] != out.y[e]) nans++;
            assert_true(nans > 0);
            op_outputs_free(&out);
            op_inputs_free(&in);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activation_over_wide_range_is_accurate),
        cmocka_unit_test(batch_norm_with_mean_far_from_zero_keeps_its_digits),
        cmocka_unit_test(pool_with_unusual_windows_matches_ref),
        cmocka_unit_test(operations_with_a_second_gradient_add_it),
        cmocka_unit_test(dropout_of_everything_leaves_zeros),
        cmocka_unit_test(batch_norm_on_any_number_of_threads_is_the_same),
        cmocka_unit_test(sequences_on_any_number_of_threads_are_the_same),
        cmocka_unit_test(attention_over_many_tokens_keeps_no_square),
        cmocka_unit_test(cross_entropy_of_nan_logits_is_nan),
        cmocka_unit_test(cross_entropy_with_impossible_label_fails),
        cmocka_unit_test(operations_on_nan_show_it),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
