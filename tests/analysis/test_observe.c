/* The observation pass: observers see what the network computes, nothing is changed by it, and the sums are of the right rows.
 */
#include "analysis/collect.h"
#include "analysis/dense.h"
#include "analysis/factors.h"
#include "analysis/results.h"
#include "analysis_testing.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double draw(uint64_t seed, int64_t i)
{
    double pair[2];
    abar__normal(abar__random(seed, ABAR_DRAW_ANALYSIS, 7, (uint64_t)i), pair);
    return pair[0];
}

static void *take(int64_t n, size_t size)
{
    void *memory = calloc((size_t)n, size);
    assert_non_null(memory);
    return memory;
}

/* A host copy of a tensor, F32 (or I64 where that is what it holds). */
static float *fetch(abar_context *ctx, const abar_tensor *t)
{
    float *data = take(abar_tensor_count(t) * 2, sizeof *data);
    const abar_tensor host = abar_tensor_wrap(NULL, data, t->dtype == ABAR_I64 ? ABAR_I64 : ABAR_F32, t->ndim, t->dim);
    assert_fine(ctx, abar_tensor_copy(ctx, &host, t));
    return data;
}

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

/* ---- a pass over data -------------------------------------------------------------------------------------------------- */

static abar_setup *make_setup(abar_context *ctx, const char *model, const char *options)
{
    abar_setup *setup;
    char text[512], *rest = text;
    assert_fine(ctx, abar_setup_create(ctx, model, "synthetic", "sgd", &setup));
    snprintf(text, sizeof text, "%s", options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        assert_fine(ctx, abar_setup_set(ctx, setup, word, value + 1));
    }
    return setup;
}

/* All tensors of the net, one after the other, and how many bytes they are. */
static char *save_state(abar_context *ctx, const abar_net *net, size_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name;
        abar_tensor t;
        abar_net_tensor(net, i, &name, &t);
        *bytes += (size_t)abar_tensor_count(&t) * 8;
    }
    char *all = take((int64_t)*bytes, 1), *at = all;
    for (int i = 0; i < abar_net_tensor_count(net); i++) {
        const char *name;
        abar_tensor t;
        abar_net_tensor(net, i, &name, &t);
        float *copy = fetch(ctx, &t);
        memcpy(at, copy, (size_t)abar_tensor_count(&t) * 8);
        at += abar_tensor_count(&t) * 8;
        free(copy);
    }
    return all;
}

static void passes_in_training_mode_change_nothing(void **state)
{
    abar_context *ctx = *state;
    abar_setup *setup = make_setup(ctx, "resnet20", "threads=1");
    abar__pass pass;
    size_t bytes, after_bytes;
    abar_loss first, last;
    assert_fine(ctx, abar__pass_open(ctx, setup, "", &(abar__pass_config){.samples = 8, .batch = 4, .gradients = true}, &pass));
    assert_int_equal(pass.batches, 2);
    assert_fine(ctx, abar__pass_fill(&pass, 0));
    assert_fine(ctx, abar__pass_forward(&pass, 0, false, NULL, &first));
    char *before = save_state(ctx, pass.net, &bytes);
    for (int drawn = 0; drawn < 2; drawn++)
        for (int64_t b = 0; b < 2; b++) {
            assert_fine(ctx, abar__pass_fill(&pass, b));
            assert_fine(ctx, abar__pass_forward(&pass, b, true, NULL, &last));
            assert_fine(ctx, abar__pass_backward(&pass, b, drawn, NULL));
        }
    char *after = save_state(ctx, pass.net, &after_bytes);
    assert_int_equal(bytes, after_bytes);
    assert_memory_equal(before, after, bytes);
    assert_fine(ctx, abar__pass_fill(&pass, 0));
    assert_fine(ctx, abar__pass_forward(&pass, 0, false, NULL, &last));
    assert_near(last.loss, first.loss, 0.0);
    free(before);
    free(after);
    abar__pass_close(&pass);
    abar_setup_destroy(ctx, setup);
}

/* Counts and probabilities of drawn labels agree, per class and along the probabilities themselves. */
static void drawn_labels_follow_the_softmax(void **state)
{
    enum { CLASSES = 10, ROWS = 256, BATCHES = 8 };
    abar_context *ctx = *state;
    abar_setup *setup = make_setup(ctx, "mlp", "widths=784-16-10 threads=1 limit-train=2048");
    abar__pass pass;
    double count[CLASSES] = {0}, expected[CLASSES] = {0}, variance[CLASSES] = {0}, own = 0.0, own_variance = 0.0;
    int32_t first[ROWS];
    assert_fine(ctx, abar__pass_open(ctx, setup, "",
                                     &(abar__pass_config){.samples = ROWS * BATCHES, .batch = ROWS, .gradients = true}, &pass));
    for (int i = 0; i < abar_net_param_count(pass.net);
         i++) { /* probabilities that differ from class to class and row to row */
        abar_tensor value = abar_net_param(pass.net, i)->value;
        float *numbers = fetch(ctx, &value);
        for (int64_t k = 0; k < abar_tensor_count(&value); k++) numbers[k] *= 2.0f;
        const abar_tensor from = abar_tensor_wrap(NULL, numbers, ABAR_F32, value.ndim, value.dim);
        assert_fine(ctx, abar_tensor_copy(ctx, &value, &from));
        free(numbers);
    }
    assert_fine(ctx, abar_net_weights_changed(pass.net));
    for (int64_t b = 0; b < BATCHES; b++) {
        assert_fine(ctx, abar__pass_fill(&pass, b));
        assert_fine(ctx, abar__pass_backward(&pass, b, true, NULL));
        if (b == 0) memcpy(first, pass.labels, sizeof first);
        for (int64_t r = 0; r < ROWS; r++) {
            double p[CLASSES], sum = 0.0, square = 0.0, cube = 0.0;
            for (int c = 0; c < CLASSES; c++) sum += p[c] = exp((double)pass.logits[r * CLASSES + c]);
            for (int c = 0; c < CLASSES; c++) {
                p[c] /= sum;
                expected[c] += p[c];
                variance[c] += p[c] * (1.0 - p[c]);
                square += p[c] * p[c];
                cube += p[c] * p[c] * p[c];
            }
            assert_in_range(pass.labels[r], 0, CLASSES - 1);
            count[pass.labels[r]] += 1.0;
            own += p[pass.labels[r]] - square;
            own_variance += cube - square * square;
        }
    }
    for (int c = 0; c < CLASSES; c++) assert_near(count[c], expected[c], 5.0 * sqrt(variance[c]) + 1.0);
    assert_near(own, 0.0, 5.0 * sqrt(own_variance));
    assert_fine(ctx, abar__pass_fill(&pass, 0));
    assert_fine(ctx, abar__pass_backward(&pass, 0, true, NULL));
    assert_memory_equal(first, pass.labels, sizeof first); /* the same draw every time */
    abar__pass_close(&pass);
    abar_setup_destroy(ctx, setup);
}

/* ---- collections ------------------------------------------------------------------------------------------------------- */

typedef struct whole {
    abar_setup *setup;
    abar__pass pass;
    abar__collection collection;
} whole;

static void collect(abar_context *ctx, const char *model, const char *options, int64_t batch, int64_t batches,
                    const abar__collect_config *config, whole *w)
{
    w->setup = make_setup(ctx, model, options);
    const abar__pass_config pass = {.samples = batch * batches, .batch = batch, .gradients = true};
    assert_fine(ctx, abar__pass_open(ctx, w->setup, "", &pass, &w->pass));
    assert_fine(ctx, abar__collection_create(&w->pass, config, &w->collection));
    for (int64_t b = 0; b < batches; b++) assert_fine(ctx, abar__collection_add(&w->collection, b));
}

static void release(abar_context *ctx, whole *w)
{
    abar__collection_free(&w->collection);
    abar__pass_close(&w->pass);
    abar_setup_destroy(ctx, w->setup);
}

#define EVERYTHING (ABAR_COLLECT_INPUTS | ABAR_COLLECT_GRADS | ABAR_COLLECT_FISHER | ABAR_COLLECT_ATTENTION)

static void output_layer_gradients_sum_to_zero(void **state)
{
    whole w;
    abar__map_result r;
    const abar__collect_config config = {.wanted = EVERYTHING, .layers = "", .homogeneous = true, .fisher_samples = 8};
    collect(*state, "mlp", "widths=784-16-10 threads=1", 16, 4, &config, &w);
    const int last = w.collection.n - 1;
    assert_fine(*state, abar__result_make(&w.collection, last, &(abar__results_config){.damping = 1.0}, true, &r));
    assert_int_equal(r.p.n, 10);
    assert_true(fabs(r.p.value[9]) < 1e-10 * r.p.value[0]);
    assert_true(r.p.value[8] > 1e-6 * r.p.value[0]); /* and no other eigenvalue is */
    assert_true(r.diagonality.row_sum < 1e-5);
    abar__result_free(*state, &r);
    release(*state, &w);
}

static void scales_differ_by_the_square_of_the_batch(void **state)
{
    enum { B = 12 };
    whole w;
    abar__map_result example, mean;
    const abar__collect_config config = {.wanted = EVERYTHING, .layers = "", .homogeneous = true, .fisher_samples = 16};
    collect(*state, "lenet5", "threads=1", B, 2, &config, &w);
    for (int m = 0; m < w.collection.n; m++) {
        const abar__results_config per_example = {.damping = 1.0}, batch_mean = {.damping = 1.0, .batch_mean = true};
        assert_fine(*state, abar__result_make(&w.collection, m, &per_example, false, &example));
        assert_fine(*state, abar__result_make(&w.collection, m, &batch_mean, false, &mean));
        assert_fine(*state, abar__result_add_fisher(&w.collection, m, &per_example, &example));
        assert_fine(*state, abar__result_add_fisher(&w.collection, m, &batch_mean, &mean));
        const abar__top *pairs[][2] = {{&example.p, &mean.p},
                                       {&example.p_reduce, &mean.p_reduce},
                                       {&example.kfac, &mean.kfac},
                                       {&example.fisher, &mean.fisher}};
        for (int i = 0; i < 4; i++) {
            assert_true(pairs[i][0]->n > 0 && pairs[i][0]->n == pairs[i][1]->n);
            for (int64_t k = 0; k < pairs[i][0]->n; k++)
                assert_near(pairs[i][1]->value[k] * B * B, pairs[i][0]->value[k], 1e-14 * fabs(pairs[i][0]->value[k]));
        }
        abar__result_free(*state, &example);
        abar__result_free(*state, &mean);
    }
    release(*state, &w);
}

/* With one row per example F = E[(a a^T) x (p p^T)], so its trace is E[|a|^2 |p|^2], the homogeneous 1 included. */
static void fisher_has_the_homogeneous_one_that_inputs_have(void **state)
{
    enum { B = 16 };
    double trace[2];
    for (int homogeneous = 0; homogeneous < 2; homogeneous++) {
        whole w;
        const abar__collect_config config = {.wanted = ABAR_COLLECT_INPUTS | ABAR_COLLECT_GRADS | ABAR_COLLECT_FISHER,
                                             .layers = "*",
                                             .homogeneous = homogeneous,
                                             .fisher_samples = B};
        collect(*state, "mlp", "widths=784-8-10 threads=1", B, 1, &config, &w);
        const int last = w.collection.n - 1;
        abar__map_result r;
        assert_fine(*state, abar__result_make(&w.collection, last, &(abar__results_config){.damping = 1.0}, false, &r));
        assert_fine(*state, abar__result_add_fisher(&w.collection, last, &(abar__results_config){.damping = 1.0}, &r));
        assert_int_equal(abar__map_side(&w.collection.maps[last]), 8 + homogeneous);
        trace[homogeneous] = 0.0;
        for (int64_t k = 0; k < r.fisher.n; k++) trace[homogeneous] += r.fisher.value[k];
        if (homogeneous) assert_near(trace[1] - trace[0], r.p_trace, 1e-6 * r.p_trace); /* |(a, 1)|^2 = |a|^2 + 1 */
        abar__result_free(*state, &r);
        release(*state, &w);
    }
}

/* The mean over the batch of per-example gradients is the gradient of the mean loss, bias included. */
static void gradients_of_examples_average_to_the_gradient(void **state)
{
    enum { B = 6 };
    whole w;
    const abar__collect_config config = {.wanted = EVERYTHING, .layers = "", .homogeneous = true, .fisher_samples = B};
    collect(*state, "lenet5", "threads=1", B, 1, &config, &w);
    for (int m = 0; m < w.collection.n; m++) {
        const abar__map_stats *map = &w.collection.maps[m];
        const abar_layer *layer = abar_net_layer(w.pass.net, map->layer);
        float *weight = fetch(*state, &layer->weight_grad), *bias = fetch(*state, &layer->bias_grad);
        const int64_t side = abar__map_side(map), size = map->shape.out * side;
        assert_int_equal(map->fisher_done, B);
        for (int64_t i = 0; i < size; i++) {
            const int64_t k = i / side, j = i % side;
            double mean = 0.0;
            for (int64_t n = 0; n < B; n++) mean += map->gradients[n * size + i] / B;
            assert_near(mean, (double)(j < map->shape.d ? weight[k * map->shape.d + j] : bias[k]), 1e-6);
        }
        free(weight);
        free(bias);
    }
    release(*state, &w);
}

/* The largest eigenvalue of every map's Fisher matrix; returns in how many turns they were made. */
static int largest_of_all(abar_context *ctx, abar__collection *c, double *largest)
{
    const abar__results_config results = {.damping = 1.0};
    int turns = 0;
    for (bool any = true; any; turns++) {
        for (int m = c->fisher_first; m < c->fisher_end; m++) {
            abar__map_result r = {0};
            assert_fine(ctx, abar__result_add_fisher(c, m, &results, &r));
            assert_int_equal(r.fisher.n, 6);
            largest[m] = r.fisher.value[0];
        }
        assert_fine(ctx, abar__collection_next_fisher(c, &any));
        for (int64_t b = 0; any && b < 2; b++) assert_fine(ctx, abar__collection_add_fisher(c, b));
    }
    return turns;
}

/* Gradients that do not fit at once are collected in turns, with the same Fisher matrices. */
static void fisher_in_turns_equals_all_at_once(void **state)
{
    whole w;
    double whole_largest[5], largest[5];
    const abar__collect_config config = {.wanted = EVERYTHING, .layers = "", .homogeneous = true, .fisher_samples = 6};
    collect(*state, "lenet5", "threads=1", 4, 2, &config, &w);
    abar__collection *c = &w.collection;
    assert_int_equal(c->n, 5);
    assert_int_equal(abar__fisher_batches(c), 2);
    assert_int_equal(largest_of_all(*state, c, whole_largest), 1);
    c->fisher_budget = (size_t)(6 * 120 * 401 * 8); /* fc1 alone; the convolutions before it and the others after it fit, too */
    assert_fine(*state, abar__collection_reset(c));
    for (int64_t b = 0; b < 2; b++) assert_fine(*state, abar__collection_add(c, b));
    assert_int_equal(largest_of_all(*state, c, largest), 3);
    for (int m = 0; m < 5; m++) assert_near(largest[m], whole_largest[m], 1e-12 * whole_largest[m]);
    release(*state, &w);
}

static void layers_that_fit_nothing_are_told_with_the_nearest(void **state)
{
    abar_context *ctx = *state;
    abar_setup *setup = make_setup(ctx, "lenet5", "threads=1");
    abar__pass pass;
    abar__collection c;
    assert_fine(ctx, abar__pass_open(ctx, setup, "", &(abar__pass_config){.samples = 4, .batch = 4}, &pass));
    const abar__collect_config config = {.wanted = ABAR_COLLECT_INPUTS, .layers = "fc4"};
    assert_int_equal(abar__collection_create(&pass, &config, &c), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(ctx), "did you mean fc"));
    abar__pass_close(&pass);
    assert_int_equal(abar__pass_open(ctx, setup, "", &(abar__pass_config){.samples = 1000000000, .batch = 4}, &pass),
                     ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(ctx), "--samples"));
    abar_setup_destroy(ctx, setup);
}

/* ---- a deep linear net -------------------------------------------------------------------------------------------------- */

/* Squared loss, f = W2 W1 x: the Fisher block of W1 is E_n sum_k J_nk^T J_nk with J_nk = p_k x_n^T, p_k = W2^T e_k whatever x
 * is. Every (n, k) is an example of its own here, so K / N has the eigenvalues of F = A x P, P = sum_k p_k p_k^T. */
static void fisher_of_a_linear_net_is_the_kronecker_product(void **state)
{
    enum { N = 7, D = 5, H = 4, O = 3 };
    double w2[O * H], x[N * D], a[N * O * D], p[N * O * H], gram[N * O * N * O], second[D * D] = {0}, outer[H * H] = {0};
    double f[N * O], lambda[D], nu[H], products[D * H];
    int64_t found;
    for (int i = 0; i < O * H; i++) w2[i] = draw(5, i);
    for (int i = 0; i < N * D; i++) x[i] = draw(6, i);
    for (int n = 0; n < N; n++)
        for (int k = 0; k < O; k++) {
            memcpy(a + (n * O + k) * D, x + n * D, D * sizeof *a);
            memcpy(p + (n * O + k) * H, w2 + k * H, H * sizeof *p);
        }
    for (int n = 0; n < N; n++)
        for (int i = 0; i < D * D; i++) second[i] += x[n * D + i / D] * x[n * D + i % D] / N;
    for (int k = 0; k < O; k++)
        for (int i = 0; i < H * H; i++) outer[i] += w2[k * H + i / H] * w2[k * H + i % H];
    assert_fine(*state, abar__fisher_gram(*state, N * O, 1, D, H, a, p, gram));
    assert_fine(*state, abar__eigen_symmetric(*state, N * O, gram, false, f));
    assert_fine(*state, abar__eigen_symmetric(*state, D, second, false, lambda));
    assert_fine(*state, abar__eigen_symmetric(*state, H, outer, false, nu));
    assert_fine(*state, abar__top_products(*state, lambda, D, nu, O, D * O, products, &found)); /* P has rank O */
    assert_int_equal(found, D * O);
    for (int i = 0; i < D * O; i++) assert_near(f[i] / N, products[i], 1e-12 * products[0]);
    for (int i = D * O; i < N * O; i++) assert_near(f[i], 0.0, 1e-11 * f[0]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_context, close_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(forward_observer_sees_what_a_forward_computes),
        TEST(rows_make_the_weight_gradient),
        TEST(column_means_are_those_that_backward_leaves),
        TEST(passes_in_training_mode_change_nothing),
        TEST(drawn_labels_follow_the_softmax),
        TEST(output_layer_gradients_sum_to_zero),
        TEST(scales_differ_by_the_square_of_the_batch),
        TEST(fisher_has_the_homogeneous_one_that_inputs_have),
        TEST(gradients_of_examples_average_to_the_gradient),
        TEST(fisher_in_turns_equals_all_at_once),
        TEST(layers_that_fit_nothing_are_told_with_the_nearest),
        TEST(fisher_of_a_linear_net_is_the_kronecker_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
