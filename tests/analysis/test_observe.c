/* Observers see what the network computes: rows, output gradients, attention. */
#include "analysis/attention.h"
#include "analysis/observe.h"
#include "observe_testing.h"

/* ---- nets ------------------------------------------------------------------------------------------------------------- */

static void build_convolutions(abar_net *net)
{
    const abar_value x = abar_input(net, 3, (int64_t[]){4, 11, 9});
    const abar_value a =
        abar_conv2d(net, x, "plain", &ABAR_CONFIG(abar_conv2d_config, .out = 6, .kernel = 3, .pad = 1, .bias = true));
    const abar_value b = abar_conv2d(
        net, a, "uneven",
        &ABAR_CONFIG(abar_conv2d_config, .out = 8, .kernel2 = {3, 2}, .stride2 = {2, 1}, .pad2 = {2, 0}, .dilation2 = {2, 3}));
    const abar_value c =
        abar_conv2d(net, b, "grouped",
                    &ABAR_CONFIG(abar_conv2d_config, .out = 4, .kernel = 3, .stride = 2, .pad = 1, .groups = 2, .bias = true));
    abar_softmax_cross_entropy(
        net, abar_linear(net, abar_flatten(net, c), "head", &ABAR_CONFIG(abar_linear_config, .out = 3, .bias = true)), 0.0);
}

static void build_sequence(abar_net *net)
{
    const abar_value x = abar_input(net, 2, (int64_t[]){5, 6});
    const abar_value a = abar_linear(net, x, "sequence", &ABAR_CONFIG(abar_linear_config, .out = 4, .bias = true));
    abar_softmax_cross_entropy(
        net, abar_linear(net, abar_token_mean(net, a), "head", &ABAR_CONFIG(abar_linear_config, .out = 3)), 0.0);
}

enum { BATCH = 3 };

static void open_net(abar_context *ctx, const char *device, void (*build)(abar_net *net), bool training, abar_device **dev,
                     abar_net **net)
{
    assert_fine(ctx, abar_device_open(ctx, device, NULL, dev));
    assert_fine(ctx, abar_net_create(ctx, net));
    build(*net);
    assert_fine(
        ctx, abar_net_compile(*net, *dev, &ABAR_CONFIG(abar_compile_config, .batch = BATCH, .training = training, .seed = 3)));
    abar_tensor input = abar_net_input(*net), target = abar_net_target(*net);
    float *values = take(abar_tensor_count(&input), sizeof *values);
    int32_t *labels = take(abar_tensor_count(&target), sizeof *labels);
    for (int64_t i = 0; i < abar_tensor_count(&input); i++) values[i] = (float)draw(1, i);
    for (int64_t i = 0; i < abar_tensor_count(&target); i++) labels[i] = (int32_t)(i % 3);
    const abar_tensor from = abar_tensor_wrap(NULL, values, ABAR_F32, input.ndim, input.dim);
    const abar_tensor wanted = abar_tensor_wrap(NULL, labels, ABAR_I32, target.ndim, target.dim);
    assert_fine(ctx, abar_tensor_copy(ctx, &input, &from));
    assert_fine(ctx, abar_tensor_copy(ctx, &target, &wanted));
    free(values);
    free(labels);
}

static void close_net(abar_device *dev, abar_net *net)
{
    abar_net_destroy(net);
    abar_device_close(dev);
}

/* ---- forward ---------------------------------------------------------------------------------------------------------- */

typedef struct watcher {
    abar_context *ctx;
    int seen;
} watcher;

/* The rows times the weights, and the bias, are the layer's output. */
static abar_status check_output(void *user, int layer_index, const abar_layer *layer, const abar_layer_forward *forward)
{
    watcher *w = user;
    float *input = fetch(w->ctx, &forward->input), *output = fetch(w->ctx, &forward->output),
          *weight = fetch(w->ctx, &layer->weight), *bias = layer->bias.ndim ? fetch(w->ctx, &layer->bias) : NULL;
    const int64_t groups = layer->window.groups > 0 ? layer->window.groups : 1;
    assert_int_equal(layer_index, w->seen++);
    for (int64_t g = 0; g < groups; g++) {
        const abar__row_shape s = abar__row_shape_of(layer, &forward->input, &forward->output, g);
        double *a = take(s.rows * (s.d + 1), sizeof *a), *z = take(s.rows * s.out, sizeof *z);
        for (int64_t n = 0; n < BATCH; n++) {
            abar__input_rows(&s, input + n * s.in_size, true, a);
            abar__output_rows(&s, output + n * s.out_size, 1.0, z);
            for (int64_t r = 0; r < s.rows; r++) {
                assert_near(a[r * (s.d + 1) + s.d], 1.0, 0.0);
                for (int64_t k = 0; k < s.out; k++) {
                    const int64_t row = g * s.out + k;
                    double sum = bias ? (double)bias[row] : 0.0;
                    for (int64_t j = 0; j < s.d; j++) sum += (double)weight[row * s.d + j] * a[r * (s.d + 1) + j];
                    assert_near(z[r * s.out + k], sum, 1e-5);
                }
            }
        }
        free(a);
        free(z);
    }
    free(input);
    free(output);
    free(weight);
    free(bias);
    return ABAR_OK;
}

static void check_forward(abar_context *ctx, const char *device, void (*build)(abar_net *net), bool plan, bool training)
{
    abar_device *dev;
    abar_net *net;
    watcher w = {.ctx = ctx};
    const abar_forward_observer observer = {.size = sizeof observer, .observe = check_output, .user = &w};
    abar_loss loss;
    open_net(ctx, device, build, plan, &dev, &net);
    assert_fine(ctx, abar_net_forward(net, &ABAR_CONFIG(abar_run_config, .training = training, .observer = &observer), &loss));
    assert_int_equal(w.seen, abar_net_layer_count(net));
    close_net(dev, net);
}

static void forward_observer_sees_what_a_forward_computes(void **state)
{
    static const char *const devices[] = {"ref", "cpu"};
    for (int i = 0; i < 2; i++) {
        check_forward(*state, devices[i], build_convolutions, false, false);
        check_forward(*state, devices[i], build_convolutions, true, false);
        check_forward(*state, devices[i], build_convolutions, true, true);
        check_forward(*state, devices[i], build_sequence, false, false);
        check_forward(*state, devices[i], build_sequence, true, true);
    }
}

/* ---- backward --------------------------------------------------------------------------------------------------------- */

typedef struct gradients {
    abar_context *ctx;
    double *sum[8]; /* of every layer: (outputs of all groups, d) */
} gradients;

static abar_status add_gradient(void *user, int layer_index, const abar_layer *layer)
{
    gradients *g = user;
    float *input = fetch(g->ctx, &layer->input), *grad = fetch(g->ctx, &layer->output_grad);
    g->sum[layer_index] = take(abar_tensor_count(&layer->weight), sizeof(double));
    for (int64_t k = 0; k < (layer->window.groups > 0 ? layer->window.groups : 1); k++) {
        const abar__row_shape s = abar__row_shape_of(layer, &layer->input, &layer->output_grad, k);
        double *a = take(s.rows * s.d, sizeof *a), *p = take(s.rows * s.out, sizeof *p),
               *out = g->sum[layer_index] + k * s.out * s.d;
        for (int64_t n = 0; n < BATCH; n++) {
            abar__input_rows(&s, input + n * s.in_size, false, a);
            abar__output_rows(&s, grad + n * s.out_size, layer->output_grad_scale, p);
            for (int64_t r = 0; r < s.rows; r++)
                for (int64_t i = 0; i < s.out * s.d; i++) out[i] += p[r * s.out + i / s.d] * a[r * s.d + i % s.d];
        }
        free(a);
        free(p);
    }
    free(input);
    free(grad);
    return ABAR_OK;
}

/* The sum over rows of p a^T is the gradient of the weight. */
static void rows_make_the_weight_gradient(void **state)
{
    void (*const build[])(abar_net *) = {build_convolutions, build_sequence};
    for (int i = 0; i < 2; i++) {
        abar_device *dev;
        abar_net *net;
        gradients g = {.ctx = *state};
        const abar_observer observer = {.size = sizeof observer, .observe = add_gradient, .user = &g};
        abar_loss loss;
        open_net(*state, "cpu", build[i], true, &dev, &net);
        assert_fine(*state, abar_net_forward(net, &ABAR_CONFIG(abar_run_config, .training = true), &loss));
        assert_fine(*state, abar_net_backward(net, false, &observer));
        for (int l = 0; l < abar_net_layer_count(net); l++) {
            const abar_tensor *grad = &abar_net_layer(net, l)->weight_grad;
            float *expected = fetch(*state, grad);
            for (int64_t k = 0; k < abar_tensor_count(grad); k++) assert_near(g.sum[l][k], (double)expected[k], 1e-5);
            free(expected);
            free(g.sum[l]);
        }
        close_net(dev, net);
    }
}

/* ---- attention -------------------------------------------------------------------------------------------------------- */

enum { TOKENS = 16, WIDTH = 8, HEADS = 2 };

static void build_attention(abar_net *net, bool causal, int64_t side, int64_t shift)
{
    const abar_value x = abar_input(net, 2, (int64_t[]){TOKENS, WIDTH});
    const abar_value qkv = abar_linear(net, x, "qkv", &ABAR_CONFIG(abar_linear_config, .out = 3 * WIDTH, .bias = true));
    const abar_value y = abar_attention_heads(net, qkv, "attn",
                                              &ABAR_CONFIG(abar_attention_config, .heads = HEADS, .causal = causal,
                                                           .grid = {side ? 4 : 0, side ? 4 : 0}, .side = side, .shift = shift));
    abar_softmax_cross_entropy(
        net, abar_linear(net, abar_token_mean(net, y), "head", &ABAR_CONFIG(abar_linear_config, .out = 3)), 0.0);
}

static void build_plain(abar_net *net) { build_attention(net, false, 0, 0); }
static void build_causal(abar_net *net) { build_attention(net, true, 0, 0); }
static void build_shifted(abar_net *net) { build_attention(net, false, 2, 1); }

typedef struct attention_watch {
    abar_context *ctx;
    abar__attention_sums sums;
    double columns[TOKENS]; /* of backward, mean over samples, windows and heads */
    int64_t side, shift;
} attention_watch;

static abar_status watch_probabilities(void *user, int layer_index, const abar_layer *layer, const abar_layer_forward *forward)
{
    attention_watch *w = user;
    (void)layer_index;
    if (layer->attention.heads == 0) return ABAR_OK;
    float *qkv = fetch(w->ctx, &forward->output),
          *bias = forward->position_bias.ndim ? fetch(w->ctx, &forward->position_bias) : NULL;
    assert_int_equal(bias != NULL, w->side > 0);
    const abar__attention_view view = {.qkv = qkv,
                                       .samples = BATCH,
                                       .tokens = TOKENS,
                                       .width = WIDTH,
                                       .heads = layer->attention.heads,
                                       .grid = {layer->attention.grid[0], layer->attention.grid[1]},
                                       .side = layer->attention.side,
                                       .shift = layer->attention.shift,
                                       .causal = forward->causal,
                                       .bias = bias};
    assert_fine(w->ctx, abar__attention_add_view(&w->sums, &view));
    free(qkv);
    free(bias);
    return ABAR_OK;
}

/* Token k of window number w on a 4 x 4 grid rolled by shift. */
static int64_t token_of(const attention_watch *w, int64_t window, int64_t k)
{
    if (!w->side) return k;
    const int64_t across = 4 / w->side, y = window / across * w->side + k / w->side,
                  x = window % across * w->side + k % w->side;
    return (y + w->shift) % 4 * 4 + (x + w->shift) % 4;
}

static abar_status watch_columns(void *user, int layer_index, const abar_layer *layer)
{
    attention_watch *w = user;
    (void)layer_index;
    if (layer->attention.heads == 0) return ABAR_OK;
    float *columns = fetch(w->ctx, &layer->attention.columns); /* (N, heads, T) */
    const int64_t n = w->sums.n, windows = TOKENS / n;
    for (int64_t i = 0; i < BATCH * HEADS; i++)
        for (int64_t v = 0; v < windows; v++)
            for (int64_t k = 0; k < n; k++)
                w->columns[k] += (double)columns[i * TOKENS + token_of(w, v, k)] / (double)(BATCH * HEADS * windows);
    free(columns);
    return ABAR_OK;
}

static void check_columns(abar_context *ctx, void (*build)(abar_net *net), int64_t side, int64_t shift)
{
    abar_device *dev;
    abar_net *net;
    attention_watch w = {.ctx = ctx, .side = side, .shift = shift};
    const abar_forward_observer forward = {.size = sizeof forward, .observe = watch_probabilities, .user = &w};
    const abar_observer backward = {.size = sizeof backward, .observe = watch_columns, .user = &w};
    abar__attention_summary summary;
    double columns[TOKENS];
    abar_loss loss;
    open_net(ctx, "cpu", build, true, &dev, &net);
    for (int i = 0; i < abar_net_param_count(net); i++) { /* far from uniform probabilities, and biases that are not 0 */
        abar_tensor value = abar_net_param(net, i)->value;
        float *numbers = take(abar_tensor_count(&value), sizeof *numbers);
        for (int64_t k = 0; k < abar_tensor_count(&value); k++) numbers[k] = (float)draw(20 + (uint64_t)i, k);
        const abar_tensor from = abar_tensor_wrap(NULL, numbers, ABAR_F32, value.ndim, value.dim);
        assert_fine(ctx, abar_tensor_copy(ctx, &value, &from));
        free(numbers);
    }
    assert_fine(ctx, abar_net_weights_changed(net));
    assert_fine(ctx, abar__attention_create(ctx, side ? side * side : TOKENS, &w.sums));
    assert_fine(ctx, abar_net_forward(net, &ABAR_CONFIG(abar_run_config, .training = true, .observer = &forward), &loss));
    assert_fine(ctx, abar_net_backward(net, false, &backward));
    assert_near(w.sums.count, (double)(BATCH * HEADS * TOKENS / w.sums.n), 0.0);
    assert_fine(ctx, abar__attention_summarise(&w.sums, &summary, NULL, NULL, columns));
    double spread = 0.0;
    for (int64_t k = 0; k < w.sums.n; k++) {
        assert_near(columns[k], w.columns[k], 1e-6);
        spread = fmax(spread, fabs(columns[k] - 1.0 / (double)w.sums.n));
    }
    assert_true(spread > 0.01); /* the case is one where columns differ */
    abar__attention_free(&w.sums);
    close_net(dev, net);
}

static void column_means_are_those_that_backward_leaves(void **state)
{
    check_columns(*state, build_plain, 0, 0);
    check_columns(*state, build_causal, 0, 0);
    check_columns(*state, build_shifted, 2, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_context, close_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(forward_observer_sees_what_a_forward_computes),
        TEST(rows_make_the_weight_gradient),
        TEST(column_means_are_those_that_backward_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
