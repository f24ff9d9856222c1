/* Cross entropy with pairs of labels: pairs of one label with share 1 are the labels, to the bit;
 * other pairs are the distributions that they stand for; the label with the larger share counts. test_ops_golden and
 * test_ops_gradient check ref itself. */
#include "loss_pairs_cases.h"
#include "op_instance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Rows of logits with fewer classes than a warp, with some warps' worth, and with a block each. */
static const op_case shapes[] = {
    {"pairs_few", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {9, 7}, .label_pairs = true},
    {"pairs_smooth", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {40, 100}, .label_pairs = true, .smoothing = 0.1, .valid = 33},
    {"pairs_1000", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {70, 1000}, .label_pairs = true, .smoothing = 0.1, .loss_scale = 0.5},
    {"pairs_wide", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {13, 1031}, .label_pairs = true, .smoothing = 0.1, .valid = 11},
    {"pairs_wide_plain", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {7, 2048}, .label_pairs = true},
    {"pairs_tokens", ABAR_OP_SOFTMAX_CROSS_ENTROPY, .x = {3, 5, 6}, .label_pairs = true, .smoothing = 0.2, .valid = 2},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef void check(abar_device *dev, const loss_pairs_place *at, const op_case *c);

static const loss_pairs_place *places;
static int n_places;

static void on_every_device(check *one)
{
    for (int i = 0; i < n_places; i++) {
        abar_context *ctx;
        abar_device *dev;
        const abar_device_config config = {.size = sizeof config, .precision = places[i].precision, .threads = 2};
        assert_int_equal(abar_context_create(NULL, &ctx), ABAR_OK);
        if (abar_device_open(ctx, places[i].device, &config, &dev) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
        for (int k = 0; k < SHAPES; k++) one(dev, &places[i], &shapes[k]);
        abar_device_close(dev);
        abar_context_destroy(ctx);
    }
}

static int64_t rows_of(const abar__op_desc *d) { return abar__shape_count(&d->in[0]) / d->in[0].dim[d->in[0].ndim - 1]; }

/* Runs c with pairs of labels, and with other's distributions or labels; fails where results differ by more than tolerance. */
static void compare(abar_device *dev, const loss_pairs_place *at, const op_case *c, const op_inputs *pairs,
                    const op_inputs *other, double tolerance)
{
    abar__op_desc d = op_case_desc(c), plain = d;
    const abar__run run = op_case_run(c);
    op_outputs a, b;
    char label[96];
    plain.label_pairs = false;
    plain.soft_targets = other->target != NULL;
    op_run(dev, &d, &run, pairs, &a);
    op_run(dev, &plain, &run, other, &b);
    snprintf(label, sizeof label, "%s, %s %d", c->name, at->device, (int)at->precision);
    const int bad = op_compare(label, &d, &a, &b, tolerance);
    op_outputs_free(&a);
    op_outputs_free(&b);
    if (bad) fail_msg("%s: %d differences", label, bad);
}

static void check_one_label(abar_device *dev, const loss_pairs_place *at, const op_case *c)
{
    const abar__op_desc d = op_case_desc(c);
    const int64_t rows = rows_of(&d);
    op_inputs pairs;
    op_inputs_create(c, &pairs);
    op_inputs_round(dev, &d, &pairs);
    op_inputs hard = pairs;
    hard.share = NULL;
    hard.labels = calloc((size_t)rows, sizeof *hard.labels);
    assert_non_null(hard.labels);
    for (int64_t r = 0; r < rows; r++) {
        hard.labels[r] = pairs.labels[2 * r + 1] = pairs.labels[2 * r];
        pairs.share[r] = 1.0f;
    }
    compare(dev, at, c, &pairs, &hard, 0.0);
    free(hard.labels);
    op_inputs_free(&pairs);
}

static void pairs_of_one_label_are_the_label_to_the_bit(void **state)
{
    (void)state;
    on_every_device(check_one_label);
}

static void check_distributions(abar_device *dev, const loss_pairs_place *at, const op_case *c)
{
    const abar__op_desc d = op_case_desc(c);
    const int64_t classes = d.in[0].dim[d.in[0].ndim - 1], rows = rows_of(&d), each = rows / d.in[0].dim[0];
    op_inputs pairs;
    op_inputs_create(c, &pairs);
    op_inputs_round(dev, &d, &pairs);
    op_inputs soft = pairs;
    soft.labels = NULL;
    soft.share = NULL;
    soft.target = calloc((size_t)(rows * classes), sizeof *soft.target);
    assert_non_null(soft.target);
    for (int64_t r = 0; r < op_case_run(c).valid * each; r++) {
        double *row = soft.target + r * classes;
        if (dev->activation == ABAR_BF16) pairs.share[r] = rintf(pairs.share[r] * 64.0f) / 64.0f; /* as exact as the other */
        if (pairs.share[r] == 0.5f) pairs.share[r] = 0.625f; /* of equal shares a distribution takes the first class */
        row[pairs.labels[2 * r]] += (double)pairs.share[r];
        row[pairs.labels[2 * r + 1]] += 1.0 - (double)pairs.share[r];
    }
    compare(dev, at, c, &pairs, &soft, at->tolerance);
    free(soft.target);
    op_inputs_free(&pairs);
}

static void pairs_are_the_distributions_they_stand_for(void **state)
{
    (void)state;
    on_every_device(check_distributions);
}

/* Logits whose largest is the first label, then the second: whether that is correct is a matter of the share. */
static void check_correct(abar_device *dev, const loss_pairs_place *at, const op_case *c)
{
    static const float shares[] = {1.0f, 0.75f, 0.5f, 0.25f, 0.0f};
    const abar__op_desc d = op_case_desc(c);
    const abar__run run = op_case_run(c);
    const int64_t classes = d.in[0].dim[d.in[0].ndim - 1], rows = rows_of(&d), counted = run.valid * rows / d.in[0].dim[0];
    for (int second = 0; second < 2; second++) {
        op_inputs in;
        op_outputs out;
        int64_t correct = 0;
        op_inputs_create(c, &in);
        for (int64_t r = 0; r < counted; r++) {
            in.labels[2 * r + 1] = (int32_t)((in.labels[2 * r] + 1) % classes);
            in.share[r] = shares[r % 5];
            in.x[0][r * classes + in.labels[2 * r + second]] = 10.0;
            correct += second ? r % 5 > 2 : r % 5 <= 2;
        }
        op_inputs_round(dev, &d, &in);
        op_run(dev, &d, &run, &in, &out);
        if (out.result.correct != correct)
            fail_msg("%s, %s: %lld correct, not %lld", c->name, at->device, (long long)out.result.correct, (long long)correct);
        op_outputs_free(&out);
        op_inputs_free(&in);
    }
}

static void label_with_the_larger_share_counts(void **state)
{
    (void)state;
    on_every_device(check_correct);
}

/* A second label outside the classes is an error on the host and a loss that is no number on a GPU. */
static void check_outside(abar_device *dev, const loss_pairs_place *at, const op_case *c)
{
    const abar__op_desc d = op_case_desc(c);
    const abar__run run = op_case_run(c);
    op_inputs in;
    op_instance t;
    op_inputs_create(c, &in);
    in.labels[3] = (int32_t)d.in[0].dim[d.in[0].ndim - 1];
    in.share[1] = 0.5f;
    op_instance_create(dev, &d, &run, &t);
    op_instance_load(&t, &in);
    abar_loss result, *loss = t.shared ? t.shared : &result;
    const abar__op_args a = {.run = &run,
                             .x = {t.x[0]},
                             .target = t.target,
                             .share = t.share,
                             .saved = t.saved,
                             .scratch = t.scratch,
                             .result = loss};
    const abar_status status = abar__op_forward(t.op, &a);
    if (t.shared) {
        assert_int_equal(status, ABAR_OK);
        assert_int_equal(abar_device_wait(dev), ABAR_OK);
        assert_true(isnan(loss->loss));
    } else {
        char want[64];
        snprintf(want, sizeof want, "label %d of sample %d ", (int)in.labels[3], d.in[0].ndim == 3 ? 0 : 1);
        assert_int_equal(status, ABAR_E_ARGUMENT);
        if (!strstr(abar_context_error(dev->ctx), want)) fail_msg("%s: %s", at->device, abar_context_error(dev->ctx));
    }
    op_instance_destroy(&t);
    op_inputs_free(&in);
}

static void second_label_outside_the_classes_is_found(void **state)
{
    (void)state;
    on_every_device(check_outside);
}

int loss_pairs_run(const loss_pairs_place *on, int n)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_of_one_label_are_the_label_to_the_bit),
        cmocka_unit_test(pairs_are_the_distributions_they_stand_for),
        cmocka_unit_test(label_with_the_larger_share_counts),
        cmocka_unit_test(second_label_outside_the_classes_is_found),
    };
    places = on;
    n_places = n;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
