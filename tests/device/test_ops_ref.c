/* What the table of cases cannot say about an operation: exact values worked out by hand, the random key of dropout, samples
 * that do not count, labels that do not exist. */
#include "op_instance.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct bench {
    abar_context *ctx;
    abar_device *dev;
} bench;

static bench open_ref(void)
{
    bench b;
    assert_int_equal(abar_context_create(NULL, &b.ctx), ABAR_OK);
    assert_int_equal(abar_device_open(b.ctx, "ref", NULL, &b.dev), ABAR_OK);
    return b;
}

static void close_ref(bench b)
{
    abar_device_close(b.dev);
    assert_int_equal(abar_context_memory(b.ctx).now, 0);
    abar_context_destroy(b.ctx);
}

static void assert_close(double a, double b)
{
    if (!(fabs(a - b) <= 1e-14 * fmax(1.0, fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

static void batch_norm_training_moves_running_statistics(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case c = {"batch_norm", ABAR_OP_BATCH_NORM, .x = {4, 1}};
    abar__op_desc d = op_case_desc(&c);
    abar__run run = op_case_run(&c);
    double x[] = {1, 2, 3, 6}, one[] = {1}, zero[] = {0}, mean[] = {10}, variance[] = {5}; /* mean 3, squares sum to 14 */
    op_inputs in = {.x = {x}, .param = {one, zero}, .buffer = {mean, variance}};
    op_outputs out;
    op_run(b.dev, &d, &run, &in, &out);
    assert_close(out.buffer[0][0], 0.9 * 10 + 0.1 * 3);
    assert_close(out.buffer[1][0], 0.9 * 5 + 0.1 * 14.0 / 3.0); /* unbiased */
    assert_close(out.y[3], 3.0 / sqrt(14.0 / 4.0 + 1e-5));      /* biased */
    op_outputs_free(&out);
    run.training = false;
    op_run(b.dev, &d, &run, &in, &out);
    assert_close(out.buffer[0][0], 10);
    assert_close(out.buffer[1][0], 5);
    assert_close(out.y[3], -4.0 / sqrt(5 + 1e-5));
    op_outputs_free(&out);
    close_ref(b);
}

/* The factor of element e of a global sample, straight from the key's definition. */
static double expected_factor(const abar__run *run, uint32_t number, double drop, uint64_t g)
{
    abar__draw draw = abar__random(run->seed, ABAR_DRAW_DROPOUT, run->step * 256u + number, g / 4);
    return abar__uniform(draw.u[g % 4]) >= drop ? 1.0 / (1.0 - drop) : 0.0;
}

static void dropout_training_follows_its_key(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case c = {"dropout", ABAR_OP_DROPOUT, .x = {6, 5, 3, 3}, .drop = 0.25, .number = 9};
    abar__op_desc d = op_case_desc(&c);
    abar__run run = op_case_run(&c);
    op_inputs in;
    op_outputs out;
    op_inputs_create(&c, &in);
    op_run(b.dev, &d, &run, &in, &out);
    int kept = 0;
    for (int64_t i = 0; i < 6 * 45; i++) {
        double factor = expected_factor(&run, 9, 0.25, (uint64_t)(run.sample0 * 45 + i));
        assert_close(out.y[i], in.x[0][i] * factor);
        assert_close(out.dx[0][i], in.dy[i] * factor);
        kept += factor > 0.0;
    }
    assert_in_range(kept, 270 * 65 / 100, 270 * 85 / 100);
    op_outputs_free(&out);
    op_inputs_free(&in);
    close_ref(b);
}

/* A sample is treated alike wherever a batch begins. */
static void dropout_split_batch_equals_whole(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case whole = {"dropout", ABAR_OP_DROPOUT, .x = {5, 7}, .drop = 0.5}, tail = whole;
    tail.x[0] = 2;
    abar__op_desc d5 = op_case_desc(&whole), d2 = op_case_desc(&tail);
    abar__run run = op_case_run(&whole);
    op_inputs in;
    op_outputs all, last;
    op_inputs_create(&whole, &in);
    op_run(b.dev, &d5, &run, &in, &all);
    run.sample0 += 3;
    op_inputs rest = {.x = {in.x[0] + 3 * 7}, .dy = in.dy + 3 * 7};
    op_run(b.dev, &d2, &run, &rest, &last);
    assert_memory_equal(last.y, all.y + 3 * 7, 2 * 7 * sizeof(double));
    assert_memory_equal(last.dx[0], all.dx[0] + 3 * 7, 2 * 7 * sizeof(double));
    op_outputs_free(&all);
    op_outputs_free(&last);
    op_inputs_free(&in);
    close_ref(b);
}

static void cross_entropy_partial_batch_ignores_the_rest(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case whole = {"entropy", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {8, 4}, .valid = 3}, part = whole;
    part.x[0] = 3;
    abar__op_desc d8 = op_case_desc(&whole), d3 = op_case_desc(&part);
    abar__run run = op_case_run(&whole);
    op_inputs in;
    op_outputs padded, alone;
    op_inputs_create(&whole, &in);
    op_run(b.dev, &d8, &run, &in, &padded);
    op_run(b.dev, &d3, &run, &in, &alone);
    assert_close(padded.result.loss, alone.result.loss);
    assert_int_equal(padded.result.correct, alone.result.correct);
    assert_int_equal(padded.result.count, 3);
    assert_memory_equal(padded.dx[0], alone.dx[0], 3 * 4 * sizeof(double));
    for (int i = 3 * 4; i < 8 * 4; i++) assert_true(padded.dx[0][i] == 0.0);
    op_outputs_free(&padded);
    op_outputs_free(&alone);
    op_inputs_free(&in);
    close_ref(b);
}

static void cross_entropy_counts_first_maximum(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case c = {"entropy", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {3, 3}};
    abar__op_desc d = op_case_desc(&c);
    abar__run run = op_case_run(&c);
    double x[] = {1, 1, 0, 1, 1, 0, 0, 2, 2};
    int32_t labels[] = {0, 1, 1}; /* a hit, a tie that goes to the first, a hit */
    op_inputs in = {.x = {x}, .labels = labels};
    op_outputs out;
    op_run(b.dev, &d, &run, &in, &out);
    assert_int_equal(out.result.correct, 2);
    assert_int_equal(out.result.count, 3);
    op_outputs_free(&out);
    close_ref(b);
}

static void cross_entropy_foreign_label_is_an_argument_error(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case c = {"entropy", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {3, 4}};
    abar__op_desc d = op_case_desc(&c);
    abar__run run = op_case_run(&c);
    double x[12] = {0};
    abar_loss result;
    abar__op *op;
    assert_int_equal(abar__op_create(b.dev, &d, &op), ABAR_OK);
    for (int32_t wrong = -1; wrong <= 4; wrong += 5) {
        int32_t labels[] = {0, 3, wrong};
        abar__op_args a = {.run = &run, .x = {x}, .target = labels, .result = &result};
        assert_int_equal(abar__op_forward(op, &a), ABAR_E_ARGUMENT);
        assert_non_null(strstr(abar_context_error(b.ctx), "label"));
    }
    abar__op_destroy(op);
    close_ref(b);
}

static void unsupported_operation_is_named(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case c = {"linear", ABAR_OP_LINEAR, .x = {3, 4}, .width = 2};
    abar__op_desc d = op_case_desc(&c);
    d.activation = ABAR_ACT_TANH; /* only a ReLU can be fused */
    abar__op *op = (abar__op *)state;
    assert_int_equal(abar__op_create(b.dev, &d, &op), ABAR_E_UNSUPPORTED);
    assert_null(op);
    assert_non_null(strstr(abar_context_error(b.ctx), "device ref: cannot run linear"));
    close_ref(b);
}

static void reorder_through_every_layout_keeps_values(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case c = {"reorder", ABAR_OP_REORDER, .x = {5, 17, 2, 3}};
    abar__run run = op_case_run(&c);
    op_inputs in;
    op_inputs_create(&c, &in);
    for (abar_layout from = ABAR_LAYOUT_STRIDED; from <= ABAR_LAYOUT_N16; from++)
        for (abar_layout to = ABAR_LAYOUT_STRIDED; to <= ABAR_LAYOUT_N16; to++) {
            abar__op_desc d = op_case_desc(&c);
            d.in_layout[0] = from;
            d.out_layout = to;
            op_outputs out;
            op_run(b.dev, &d, &run, &in, &out);
            assert_memory_equal(out.y, in.x[0], 5 * 17 * 6 * sizeof(double));
            assert_memory_equal(out.dx[0], in.dy, 5 * 17 * 6 * sizeof(double));
            op_outputs_free(&out);
        }
    op_inputs_free(&in);
    close_ref(b);
}

static void max_pool_padding_never_wins(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case c = {"pool", ABAR_OP_POOL2D, .x = {1, 1, 2, 2}, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}};
    abar__op_desc d = op_case_desc(&c);
    abar__run run = op_case_run(&c);
    double x[] = {-3, -1, -1, -2}, dy[] = {5};
    op_inputs in = {.x = {x}, .dy = dy};
    op_outputs out;
    op_run(b.dev, &d, &run, &in, &out);
    assert_close(out.y[0], -1);
    const double expected[] = {0, 5, 0, 0}; /* the first of the two maxima */
    assert_memory_equal(out.dx[0], expected, sizeof expected);
    op_outputs_free(&out);
    close_ref(b);
}

/* Fused with the add in front of it, a layer norm is that add and the norm: the sum's gradient is what the norm and others give
 * it, and goes to both summands. */
static void layer_norm_of_a_sum_is_add_and_norm(void **state)
{
    (void)state;
    bench b = open_ref();
    op_case together = {"sum", ABAR_OP_LAYER_NORM, .x = {3, 5}, .residual = true, .stream_dy = true, .accumulate = true};
    op_case sum = {"sum", ABAR_OP_ADD, .x = {3, 5}}, norm = {"sum", ABAR_OP_LAYER_NORM, .x = {3, 5}, .accumulate = true};
    abar__op_desc d = op_case_desc(&together), add = op_case_desc(&sum), alone = op_case_desc(&norm);
    abar__run run = op_case_run(&together);
    op_inputs in;
    op_outputs fused, first, second;
    op_inputs_create(&together, &in);
    op_run(b.dev, &d, &run, &in, &fused);
    op_run(b.dev, &add, &run, &(op_inputs){.x = {in.x[0], in.x[1]}}, &first);
    op_inputs behind = in;
    behind.x[0] = first.y;
    behind.x[1] = behind.dstream = NULL;
    op_run(b.dev, &alone, &run, &behind, &second);
    for (int64_t i = 0; i < 15; i++) {
        assert_close(fused.stream[i], first.y[i]);
        assert_close(fused.y[i], second.y[i]);
        for (int k = 0; k < 2; k++) assert_close(fused.dx[k][i], second.dx[0][i] + in.dstream[i]);
    }
    for (int64_t i = 0; i < 5; i++)
        for (int k = 0; k < 2; k++) assert_close(fused.dparam[k][i], second.dparam[k][i]);
    op_outputs_free(&fused);
    op_outputs_free(&first);
    op_outputs_free(&second);
    op_inputs_free(&in);
    close_ref(b);
}

static const abar__activation gelus[] = {ABAR_ACT_GELU_ERF, ABAR_ACT_GELU_TANH};

/* Fused, they are the map and the GELU one after the other; a reader that has made dz of dy saves the map its part. */
static void linear_with_a_gelu_is_linear_and_gelu(void **state)
{
    (void)state;
    bench b = open_ref();
    for (int k = 0; k < 2; k++) {
        op_case together = {"gelu", ABAR_OP_LINEAR, .x = {4, 6}, .width = 5, .bias = true, .accumulate = true};
        op_case act = {"gelu", ABAR_OP_ACTIVATION, .x = {4, 5}, .activation = gelus[k]};
        together.activation = gelus[k];
        abar__op_desc d = op_case_desc(&together), linear = d, gelu = op_case_desc(&act);
        linear.activation = ABAR_ACT_NONE;
        abar__run run = op_case_run(&together);
        op_inputs in, forward_only;
        op_outputs fused, given, map, y, apart;
        op_inputs_create(&together, &in);
        op_run(b.dev, &d, &run, &in, &fused);
        forward_only = in;
        forward_only.dy = NULL;
        op_run(b.dev, &linear, &run, &forward_only, &map);
        op_run(b.dev, &gelu, &run, &(op_inputs){.x = {map.y}, .dy = in.dy}, &y);
        op_inputs behind = in;
        behind.dy = y.dx[0];
        op_run(b.dev, &linear, &run, &behind, &apart);
        behind.dz_given = true;
        op_run(b.dev, &d, &run, &behind, &given);
        for (int i = 0; i < 20; i++) {
            assert_close(fused.y[i], y.y[i]);
            assert_close(fused.dz[i], y.dx[0][i]);
            assert_close(given.dz[i], y.dx[0][i]);
        }
        for (int i = 0; i < 24; i++) {
            assert_close(fused.dx[0][i], apart.dx[0][i]);
            assert_close(given.dx[0][i], apart.dx[0][i]);
        }
        for (int i = 0; i < 30; i++) assert_close(fused.dparam[0][i], apart.dparam[0][i]);
        for (int i = 0; i < 5; i++) assert_close(given.dparam[1][i], apart.dparam[1][i]);
        op_outputs *all[] = {&fused, &given, &map, &y, &apart};
        for (int i = 0; i < 5; i++) op_outputs_free(all[i]);
        op_inputs_free(&in);
    }
    close_ref(b);
}

/* Its gradient is that of what the GELU reads. */
static void linear_behind_a_gelu_applies_the_derivative(void **state)
{
    (void)state;
    bench b = open_ref();
    for (int k = 0; k < 2; k++) {
        op_case behind = {"behind", ABAR_OP_LINEAR, .x = {4, 6}, .width = 5, .bias = true, .input_activation = gelus[k]};
        op_case act = {"behind", ABAR_OP_ACTIVATION, .x = {4, 6}, .activation = gelus[k]};
        abar__op_desc d = op_case_desc(&behind), linear = d, gelu = op_case_desc(&act);
        linear.input_activation = ABAR_ACT_NONE;
        abar__run run = op_case_run(&behind);
        op_inputs in;
        op_outputs sloped, plain, y;
        op_inputs_create(&behind, &in);
        op_run(b.dev, &d, &run, &in, &sloped);
        op_inputs without = in;
        without.z = NULL;
        op_run(b.dev, &linear, &run, &without, &plain);
        op_run(b.dev, &gelu, &run, &(op_inputs){.x = {in.z}, .dy = plain.dx[0]}, &y);
        for (int i = 0; i < 24; i++) assert_close(sloped.dx[0][i], y.dx[0][i]);
        for (int i = 0; i < 30; i++) assert_close(sloped.dparam[0][i], plain.dparam[0][i]);
        op_outputs_free(&sloped);
        op_outputs_free(&plain);
        op_outputs_free(&y);
        op_inputs_free(&in);
    }
    close_ref(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_norm_training_moves_running_statistics),
        cmocka_unit_test(dropout_training_follows_its_key),
        cmocka_unit_test(dropout_split_batch_equals_whole),
        cmocka_unit_test(cross_entropy_partial_batch_ignores_the_rest),
        cmocka_unit_test(cross_entropy_counts_first_maximum),
        cmocka_unit_test(cross_entropy_foreign_label_is_an_argument_error),
        cmocka_unit_test(unsupported_operation_is_named),
        cmocka_unit_test(reorder_through_every_layout_keeps_values),
        cmocka_unit_test(max_pool_padding_never_wins),
        cmocka_unit_test(layer_norm_of_a_sum_is_add_and_norm),
        cmocka_unit_test(linear_with_a_gelu_is_linear_and_gelu),
        cmocka_unit_test(linear_behind_a_gelu_applies_the_derivative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
