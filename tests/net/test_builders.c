/* What only a program's own network uses of the builders: windows that are not square, and targets that are distributions. */
#include "net_testing.h"

static const char *const devices[] = {"ref", "cpu"};

/* ---- windows by axis --------------------------------------------------------------------------------------------- */

enum { BATCH = 2, IN = 2, HEIGHT = 9, WIDTH = 7, OUT = 3 };

/* Output (n, o, y, x) by the definition. */
static double convolve(const abar_net *net, const abar_window *w, const int64_t at[4])
{
    const abar_tensor input = abar_net_input(net), *weight = &abar_net_param(net, 0)->value;
    double sum = load(&abar_net_param(net, 1)->value, at[1]);
    for (int64_t c = 0; c < IN; c++)
        for (int64_t i = 0; i < w->kernel[0]; i++)
            for (int64_t j = 0; j < w->kernel[1]; j++) {
                const int64_t y = at[2] * w->stride[0] - w->pad[0] + i * w->dilation[0];
                const int64_t x = at[3] * w->stride[1] - w->pad[1] + j * w->dilation[1];
                if (y < 0 || y >= HEIGHT || x < 0 || x >= WIDTH) continue;
                sum += load(&input, ((at[0] * IN + c) * HEIGHT + y) * WIDTH + x) *
                       load(weight, ((at[1] * IN + c) * w->kernel[0] + i) * w->kernel[1] + j);
            }
    return sum;
}

static void check_window(const char *device, const abar_conv2d_config *config, const abar_window *w)
{
    fixture f = fixture_open(device, 1);
    const abar_value x = abar_input(f.net, 3, (int64_t[]){IN, HEIGHT, WIDTH});
    abar_softmax_cross_entropy(f.net, abar_flatten(f.net, abar_conv2d(f.net, x, "conv", config)), 0.0);
    OK(f.ctx, compile(&f, BATCH, false));
    fill_batch(f.net, 5, 4);
    forward(&f, false);
    const int64_t rows = abar_window_out(w, 0, HEIGHT), columns = abar_window_out(w, 1, WIDTH);
    const abar_tensor output = abar_net_output(f.net);
    assert_int_equal(output.dim[1], OUT * rows * columns);
    for (int64_t i = 0; i < abar_tensor_count(&output); i++) {
        const int64_t at[4] = {i / (OUT * rows * columns), i / (rows * columns) % OUT, i / columns % rows, i % columns};
        const double got = load(&output, i), want = convolve(f.net, w, at);
        if (!(fabs(got - want) <= 1e-5)) fail_msg("%s: element %d is %g, not %g", device, (int)i, got, want);
    }
    fixture_close(&f);
}

static void conv2d_takes_its_window_by_axis(void **state)
{
    (void)state;
    const struct {
        abar_conv2d_config config;
        abar_window window;
    } cases[] = {
        {ABAR_CONFIG(abar_conv2d_config, .out = OUT, .kernel2 = {3, 1}, .bias = true), {{3, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
        {ABAR_CONFIG(abar_conv2d_config, .out = OUT, .kernel = 3, .stride2 = {1, 2}, .pad2 = {2, 1}, .bias = true),
         {{3, 3}, {1, 2}, {2, 1}, {1, 1}, 1}},
        {ABAR_CONFIG(abar_conv2d_config, .out = OUT, .kernel2 = {2, 3}, .dilation2 = {3, 2}, .stride = 2, .bias = true),
         {{2, 3}, {2, 2}, {0, 0}, {3, 2}, 1}},
    };
    for (int d = 0; d < 2; d++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_window(devices[d], &cases[i].config, &cases[i].window);
}

/* ---- distributions ----------------------------------------------------------------------------------------------- */

enum { CLASSES = 5, FEATURES = 6 };

typedef enum target_kind { LABELS, PAIRS, SOFT } target_kind;

static void build(fixture *f, target_kind kind, double smoothing)
{
    const abar_value x = abar_input(f->net, 1, (int64_t[]){FEATURES});
    const abar_value y = abar_linear(f->net, x, "fc", &ABAR_CONFIG(abar_linear_config, .out = CLASSES, .bias = true));
    if (kind == SOFT) abar_softmax_cross_entropy_soft(f->net, y);
    if (kind == PAIRS) abar_softmax_cross_entropy_pairs(f->net, y, smoothing);
    if (kind == LABELS) abar_softmax_cross_entropy(f->net, y, smoothing);
    OK(f->ctx, compile(f, BATCH, true));
    fill_batch(f->net, 9, kind == SOFT ? 0 : CLASSES);
}

/* Loss and gradient of soft targets are the mean of those of the labels that the targets mix. */
static void soft_targets_are_weighted_labels(void **state)
{
    (void)state;
    static const double share[2] = {0.3, 0.7};
    static const int label[2][BATCH] = {{1, 4}, {2, 0}};
    for (int d = 0; d < 2; d++) {
        fixture hard = fixture_open(devices[d], 1), soft = fixture_open(devices[d], 1);
        build(&hard, LABELS, 0.0);
        build(&soft, SOFT, 0.0);
        abar_tensor labels = abar_net_target(hard.net), targets = abar_net_target(soft.net);
        const abar_tensor *a = &abar_net_param(hard.net, 0)->grad, *b = &abar_net_param(soft.net, 0)->grad;
        assert_int_equal(abar_tensor_count(&targets), BATCH * CLASSES);
        for (int i = 0; i < BATCH * CLASSES; i++) store(&targets, i, 0.0);
        double loss = 0.0, grad[CLASSES * FEATURES] = {0};
        for (int k = 0; k < 2; k++) {
            for (int n = 0; n < BATCH; n++) {
                store(&labels, n, label[k][n]);
                store(&targets, n * CLASSES + label[k][n], share[k]);
            }
            loss += share[k] * forward(&hard, true);
            OK(hard.ctx, abar_net_backward(hard.net, false, NULL));
            for (int i = 0; i < CLASSES * FEATURES; i++) grad[i] += share[k] * load(a, i);
        }
        assert_true(fabs(forward(&soft, true) - loss) <= 1e-5);
        OK(soft.ctx, abar_net_backward(soft.net, false, NULL));
        for (int i = 0; i < CLASSES * FEATURES; i++) assert_true(fabs(load(b, i) - grad[i]) <= 1e-6);
        fixture_close(&hard);
        fixture_close(&soft);
    }
}

/* ---- pairs of labels ---------------------------------------------------------------------------------------------- */

static void expect_bits(fixture *a, fixture *b)
{
    const abar_tensor *ga = &abar_net_param(a->net, 0)->grad, *gb = &abar_net_param(b->net, 0)->grad;
    assert_true(forward(a, true) == forward(b, true));
    OK(a->ctx, abar_net_backward(a->net, false, NULL));
    OK(b->ctx, abar_net_backward(b->net, false, NULL));
    for (int i = 0; i < CLASSES * FEATURES; i++) assert_true(load(ga, i) == load(gb, i));
}

/* Pairs that were never written, but for their labels, have share 1; set_labels puts it back. */
static void labels_of_a_net_with_pairs_are_labels(void **state)
{
    (void)state;
    static const int32_t labels[BATCH] = {3, 1};
    for (int d = 0; d < 2; d++) {
        fixture hard = fixture_open(devices[d], 1), pairs = fixture_open(devices[d], 1);
        build(&hard, LABELS, 0.1);
        build(&pairs, PAIRS, 0.1);
        const abar_tensor target = abar_net_target(pairs.net), share = abar_net_target_share(pairs.net);
        assert_int_equal(target.ndim, 2);
        assert_int_equal(target.dim[0], BATCH);
        assert_int_equal(target.dim[1], 2);
        assert_int_equal(share.ndim, 1);
        assert_int_equal(share.dtype, ABAR_F32);
        assert_int_equal(abar_net_target_share(hard.net).ndim, 0);
        assert_null(abar_net_target_share(hard.net).data);
        for (int n = 0; n < BATCH; n++) assert_true(load(&share, n) == 1.0);
        OK(hard.ctx, abar_net_set_labels(hard.net, labels));
        OK(pairs.ctx, abar_net_set_labels(pairs.net, labels));
        for (int n = 0; n < BATCH; n++)
            for (int k = 0; k < 2; k++) assert_int_equal(((const int32_t *)target.data)[2 * n + k], labels[n]);
        expect_bits(&hard, &pairs);
        for (int n = 0; n < BATCH; n++) store(&share, n, 0.25);
        OK(pairs.ctx, abar_net_set_labels(pairs.net, labels));
        expect_bits(&hard, &pairs);
        fixture_close(&hard);
        fixture_close(&pairs);
    }
}

static void labels_of_a_net_without_labels_are_refused(void **state)
{
    (void)state;
    static const int32_t labels[BATCH] = {0};
    fixture f = fixture_open(devices[0], 1);
    build(&f, SOFT, 0.0);
    assert_int_equal(abar_net_set_labels(f.net, labels), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(f.ctx), "abar_net_set_labels"));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv2d_takes_its_window_by_axis),
        cmocka_unit_test(soft_targets_are_weighted_labels),
        cmocka_unit_test(labels_of_a_net_with_pairs_are_labels),
        cmocka_unit_test(labels_of_a_net_without_labels_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
