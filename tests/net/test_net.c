/* Building and compiling: mistakes are reported, chains are fused, nothing allocates afterwards, steps can be rolled back. */
#include "net_testing.h"

#include <stdio.h>

static const abar_conv2d_config conv3 = {.size = sizeof conv3, .out = 4, .kernel = 3, .pad = 1};

static void expect_mistake(void (*build)(abar_net *net), const char *part)
{
    fixture f = fixture_open("ref", 1);
    build(f.net);
    assert_int_equal(compile(&f, 2, true), ABAR_E_ARGUMENT);
    if (!strstr(abar_context_error(f.ctx), part)) fail_msg("\"%s\" does not say \"%s\"", abar_context_error(f.ctx), part);
    fixture_close(&f);
}

static abar_value image(abar_net *net) { return abar_input(net, 3, (int64_t[]){3, 8, 8}); }

static void no_input(abar_net *net) { (void)net; }
static void no_loss(abar_net *net) { abar_flatten(net, image(net)); }
static void linear_on_image(abar_net *net)
{
    abar_softmax_cross_entropy(net, abar_linear(net, image(net), "fc", &ABAR_CONFIG(abar_linear_config, .out = 2)), 0.0);
}
static void kernel_too_large(abar_net *net)
{
    abar_value x = abar_conv2d(net, image(net), "big", &ABAR_CONFIG(abar_conv2d_config, .out = 4, .kernel = 11));
    abar_softmax_cross_entropy(net, abar_flatten(net, x), 0.0);
}
static void groups_do_not_divide(abar_net *net)
{
    abar_value x = abar_conv2d(net, image(net), "odd", &ABAR_CONFIG(abar_conv2d_config, .out = 4, .kernel = 1, .groups = 2));
    abar_softmax_cross_entropy(net, abar_flatten(net, x), 0.0);
}
static void same_name_twice(abar_net *net)
{
    abar_value x = abar_conv2d(net, abar_conv2d(net, image(net), "c", &conv3), "c", &conv3);
    abar_softmax_cross_entropy(net, abar_flatten(net, x), 0.0);
}
static void add_of_two_shapes(abar_net *net)
{
    abar_value x = image(net);
    abar_softmax_cross_entropy(net, abar_flatten(net, abar_add(net, x, abar_conv2d(net, x, "c", &conv3))), 0.0);
}
static void scope_left_open(abar_net *net)
{
    abar_scope_push(net, "block%d", 1);
    abar_softmax_cross_entropy(net, abar_flatten(net, image(net)), 0.0);
}
static void smoothing_of_one(abar_net *net) { abar_softmax_cross_entropy(net, abar_flatten(net, image(net)), 1.0); }

static void result_without_reader(abar_net *net)
{
    const abar_value x = abar_conv2d(net, image(net), "c", &conv3);
    abar_conv2d(net, x, "aside", &conv3);
    abar_softmax_cross_entropy(net, abar_flatten(net, x), 0.0);
}

static void net_mistakes_are_told_by_compile(void **state)
{
    (void)state;
    expect_mistake(no_input, "no input");
    expect_mistake(no_loss, "no loss");
    expect_mistake(linear_on_image, "flatten it first");
    expect_mistake(kernel_too_large, "big: the kernel does not fit");
    expect_mistake(groups_do_not_divide, "2 groups do not divide 3");
    expect_mistake(same_name_twice, "two layers are called c");
    expect_mistake(add_of_two_shapes, "cannot add 3x8x8 and 4x8x8");
    expect_mistake(scope_left_open, "never popped");
    expect_mistake(smoothing_of_one, "label smoothing");
    expect_mistake(result_without_reader, "reads the result of aside");
}

/* Without a backward pass it does no harm. */
static void result_without_reader_may_be_in_a_forward_pass(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    result_without_reader(f.net);
    OK(f.ctx, compile(&f, 2, false));
    fill_batch(f.net, 1, 10);
    assert_true(isfinite(forward(&f, false)));
    fixture_close(&f);
}

static int count_operation(const abar_net *net, const char *operation)
{
    int n = 0;
    for (int i = 0; i < abar_net_node_count(net); i++) n += strcmp(abar_net_node(net, i)->operation, operation) == 0;
    return n;
}

static void net_resnet_is_fused_to_conv_and_norm(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_softmax_cross_entropy(f.net, abar__resnet_cifar(f.net, image(f.net), 1, 4, 10), 0.0);
    OK(f.ctx, compile(&f, 2, true));
    assert_int_equal(count_operation(f.net, "conv2d"), 7);
    assert_int_equal(count_operation(f.net, "batch_norm+relu"), 4);
    assert_int_equal(count_operation(f.net, "batch_norm+add+relu"), 3);
    assert_int_equal(count_operation(f.net, "relu") + count_operation(f.net, "add") + count_operation(f.net, "batch_norm"), 0);
    assert_int_equal(abar_net_layer_count(f.net), 8);
    assert_true(abar_net_layer(f.net, 0)->reads_network_input);
    assert_false(abar_net_layer(f.net, 1)->reads_network_input);
    fixture_close(&f);
}

static const char *output_layer(void (*build)(abar_net *net, abar_value x))
{
    static char name[32];
    fixture f = fixture_open("cpu", 1); /* reorders */
    build(f.net, image(f.net));
    OK(f.ctx, compile(&f, 2, true));
    const int layer = abar_net_output_layer(f.net);
    snprintf(name, sizeof name, "%s", layer < 0 ? "none" : abar_net_layer(f.net, layer)->name);
    fixture_close(&f);
    return name;
}

static void ends_in_linear(abar_net *net, abar_value x)
{
    x = abar_relu(net, abar_conv2d(net, x, "c", &conv3));
    x = abar_linear(net, abar_flatten(net, x), "head", &ABAR_CONFIG(abar_linear_config, .out = 5));
    abar_softmax_cross_entropy(net, x, 0.0);
}

static void ends_in_convolution(abar_net *net, abar_value x)
{
    x = abar_conv2d(net, abar_conv2d(net, x, "c", &conv3), "d", &conv3);
    abar_softmax_cross_entropy(net, abar_flatten(net, x), 0.0);
}

static void ends_in_relu(abar_net *net, abar_value x)
{
    abar_softmax_cross_entropy(net, abar_flatten(net, abar_relu(net, abar_conv2d(net, x, "c", &conv3))), 0.0);
}

static void ends_in_sum(abar_net *net, abar_value x)
{
    x = abar_conv2d(net, x, "c", &conv3);
    abar_softmax_cross_entropy(net, abar_flatten(net, abar_add(net, x, abar_conv2d(net, x, "d", &conv3))), 0.0);
}

static void net_knows_the_layer_that_makes_its_output(void **state)
{
    (void)state;
    assert_string_equal(output_layer(ends_in_linear), "head");
    assert_string_equal(output_layer(ends_in_convolution), "d");
    assert_string_equal(output_layer(ends_in_relu), "none");
    assert_string_equal(output_layer(ends_in_sum), "none");
}

/* relu(bn(x)) + x must keep its relu, and a norm with two readers must not be fused. */
static void net_fusion_stops_where_a_value_is_read_twice(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_value x = abar_conv2d(f.net, image(f.net), "c", &conv3);
    abar_value n = abar_batch_norm(f.net, x, "n");
    abar_value y = abar_add(f.net, abar_relu(f.net, n), n);                              /* n is read twice */
    abar_value z = abar_add(f.net, abar_relu(f.net, abar_batch_norm(f.net, y, "m")), y); /* relu comes before the add */
    abar_softmax_cross_entropy(f.net, abar_flatten(f.net, z), 0.0);
    OK(f.ctx, compile(&f, 2, true));
    assert_int_equal(count_operation(f.net, "batch_norm"), 1);
    assert_int_equal(count_operation(f.net, "batch_norm+relu"), 1);
    assert_int_equal(count_operation(f.net, "relu"), 1);
    assert_int_equal(count_operation(f.net, "add"), 2);
    fixture_close(&f);
}

/* The sum in front of a layer norm becomes its second output; a second norm of the same sum reads that. */
static void net_transformer_is_fused_to_sums_and_norms(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_value x = abar_tokens(f.net, abar_conv2d(f.net, image(f.net), "c", &conv3));
    abar_value y = abar_layer_norm(f.net, x, "first", 1e-5); /* not of a sum */
    x = abar_add(f.net, x, y);
    y = abar_add(f.net, abar_layer_norm(f.net, x, "a", 1e-5), abar_layer_norm(f.net, x, "b", 1e-5)); /* two norms of one sum */
    x = abar_add(f.net, x, y);
    abar_value last = abar_layer_norm(f.net, abar_add(f.net, x, y), "last", 1e-5);
    abar_softmax_cross_entropy(f.net, abar_token_mean(f.net, last), 0.0);
    OK(f.ctx, compile(&f, 2, true));
    assert_int_equal(count_operation(f.net, "add+layer_norm"), 2);
    assert_int_equal(count_operation(f.net, "layer_norm"), 2);
    assert_int_equal(count_operation(f.net, "add"), 2);
    fixture_close(&f);
}

static void net_step_after_compile_allocates_nothing(void **state)
{
    (void)state;
    const char *const devices[] = {"ref", "cpu"};
    for (int d = 0; d < 2; d++) {
        fixture f = fixture_open(devices[d], 2);
        abar_softmax_cross_entropy(f.net, abar__resnet_cifar(f.net, image(f.net), 1, 16, 10), 0.1);
        OK(f.ctx, compile(&f, 4, true));
        fill_batch(f.net, 1, 10);
        uint64_t before = abar_context_memory(f.ctx).allocations;
        for (int step = 0; step < 3; step++) {
            forward(&f, true);
            OK(f.ctx, abar_net_backward(f.net, false, NULL));
            abar_net_commit(f.net);
            forward(&f, false);
        }
        assert_int_equal(abar_context_memory(f.ctx).allocations, before);
        fixture_close(&f);
    }
}

static void net_rollback_forgets_running_statistics(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_softmax_cross_entropy(f.net, abar__resnet_cifar(f.net, image(f.net), 1, 4, 10), 0.0);
    OK(f.ctx, compile(&f, 4, true));
    fill_batch(f.net, 1, 10);
    const char *name;
    abar_tensor mean = {0}, batches = {0}, t;
    for (int i = 0; i < abar_net_tensor_count(f.net); i++) {
        abar_net_tensor(f.net, i, &name, &t);
        if (strcmp(name, "bn1.running_mean") == 0) mean = t;
        if (strcmp(name, "bn1.num_batches_tracked") == 0) batches = t;
    }
    double fresh = forward(&f, false);
    forward(&f, true);
    assert_true(load(&mean, 0) == 0.0); /* provisional */
    abar_net_rollback(f.net);
    assert_true(forward(&f, false) == fresh);
    forward(&f, true);
    abar_net_commit(f.net);
    assert_true(load(&mean, 0) != 0.0);
    assert_true(load(&batches, 0) == 1.0);
    assert_true(forward(&f, false) != fresh);
    fixture_close(&f);
}

/* As a second pass over a batch does. */
static void net_pass_may_hold_running_statistics(void **state)
{
    (void)state;
    const char *const devices[] = {"ref", "cpu"};
    for (int d = 0; d < 2; d++) {
        fixture f = fixture_open(devices[d], 1);
        const abar_run_config again = {.size = sizeof again, .training = true, .hold_statistics = true};
        abar_softmax_cross_entropy(f.net, abar__resnet_cifar(f.net, image(f.net), 1, 16, 10), 0.0);
        OK(f.ctx, compile(&f, 4, true));
        fill_batch(f.net, 1, 10);
        forward(&f, true);
        abar_net_commit(f.net);
        const double once = forward(&f, false);
        fill_batch(f.net, 2, 10);
        for (int i = 0; i < 3; i++) {
            OK(f.ctx, abar_net_forward(f.net, &again, NULL));
            OK(f.ctx, abar_net_backward(f.net, false, NULL));
        }
        abar_net_commit(f.net); /* of nothing */
        fill_batch(f.net, 1, 10);
        assert_true(forward(&f, false) == once);
        const char *name;
        abar_tensor t;
        for (int i = 0; i < abar_net_tensor_count(f.net); i++) {
            abar_net_tensor(f.net, i, &name, &t);
            if (strcmp(name, "bn1.num_batches_tracked") == 0) assert_true(load(&t, 0) == 1.0);
        }
        fixture_close(&f);
    }
}

static void net_backward_without_forward_is_refused(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    assert_int_equal(abar_net_forward(f.net, &(abar_run_config){.size = sizeof(abar_run_config)}, NULL), ABAR_E_STATE);
    abar_softmax_cross_entropy(f.net, abar__resnet_cifar(f.net, image(f.net), 1, 4, 10), 0.0);
    OK(f.ctx, compile(&f, 2, true));
    fill_batch(f.net, 1, 10);
    assert_int_equal(abar_net_backward(f.net, false, NULL), ABAR_E_STATE);
    forward(&f, false); /* an evaluation is not enough */
    assert_int_equal(abar_net_backward(f.net, false, NULL), ABAR_E_STATE);
    fixture_close(&f);
}

/* Samples past `valid` change neither loss nor count in evaluation. */
static void net_partial_batch_counts_only_valid_samples(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_softmax_cross_entropy(f.net, abar__resnet_cifar(f.net, image(f.net), 1, 4, 10), 0.0);
    OK(f.ctx, compile(&f, 4, true));
    abar_run_config run = {.size = sizeof run, .valid = 3};
    abar_loss a, b;
    fill_batch(f.net, 1, 10);
    OK(f.ctx, abar_net_forward(f.net, &run, &a));
    abar_tensor x = abar_net_input(f.net);
    for (int64_t i = 3 * 192; i < 4 * 192; i++) store(&x, i, 100.0);
    OK(f.ctx, abar_net_forward(f.net, &run, &b));
    assert_int_equal(b.count, 3);
    assert_true(a.loss == b.loss && a.correct == b.correct);
    fixture_close(&f);
}

static abar_status observe(void *user, int index, const abar_layer *layer)
{
    double *seen = user;
    seen[index] += 1.0;
    /* dL/dW of the last layer is output_grad^T input: curvature observes what the gradient is made of */
    if (strcmp(layer->name, "fc2") != 0 && strcmp(layer->name, "fc1") != 0) return ABAR_E_STATE;
    int64_t n = layer->input.dim[0], in = layer->input.dim[1], out = layer->output_grad.dim[1];
    double worst = 0.0;
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0.0;
            for (int64_t r = 0; r < n; r++) sum += load(&layer->output_grad, r * out + o) * load(&layer->input, r * in + i);
            worst = fmax(worst, fabs(sum - load(&layer->weight_grad, o * in + i)));
        }
    return worst < 1e-12 ? ABAR_OK : ABAR_E_NUMERIC;
}

static void net_observer_sees_input_and_gradient_of_every_map(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_value x = abar_input(f.net, 1, (int64_t[]){6});
    x = abar_relu(f.net, abar_linear(f.net, x, "fc1", &ABAR_CONFIG(abar_linear_config, .out = 5, .bias = true)));
    abar_softmax_cross_entropy(f.net, abar_linear(f.net, x, "fc2", &ABAR_CONFIG(abar_linear_config, .out = 3)), 0.0);
    OK(f.ctx, compile(&f, 7, true));
    fill_batch(f.net, 1, 3);
    forward(&f, true);
    double seen[2] = {0};
    OK(f.ctx, abar_net_backward(f.net, false, &(abar_observer){sizeof(abar_observer), observe, seen}));
    assert_true(seen[0] == 1.0 && seen[1] == 1.0);
    fixture_close(&f);
}

static void build_resnet(abar_net *net) { abar_softmax_cross_entropy(net, abar__resnet_cifar(net, image(net), 1, 4, 10), 0.0); }

static void net_every_failing_allocation_is_survived(void **state)
{
    (void)state;
    check_failing_allocations(build_resnet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(net_mistakes_are_told_by_compile),
        cmocka_unit_test(result_without_reader_may_be_in_a_forward_pass),
        cmocka_unit_test(net_resnet_is_fused_to_conv_and_norm),
        cmocka_unit_test(net_knows_the_layer_that_makes_its_output),
        cmocka_unit_test(net_fusion_stops_where_a_value_is_read_twice),
        cmocka_unit_test(net_transformer_is_fused_to_sums_and_norms),
        cmocka_unit_test(net_step_after_compile_allocates_nothing),
        cmocka_unit_test(net_rollback_forgets_running_statistics),
        cmocka_unit_test(net_pass_may_hold_running_statistics),
        cmocka_unit_test(net_backward_without_forward_is_refused),
        cmocka_unit_test(net_partial_batch_counts_only_valid_samples),
        cmocka_unit_test(net_observer_sees_input_and_gradient_of_every_map),
        cmocka_unit_test(net_every_failing_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
