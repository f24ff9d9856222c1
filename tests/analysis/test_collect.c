/* The observation pass over data: it changes nothing, its sums are of the right rows and scales. */
#include "analysis/collect.h"
#include "analysis/dense.h"
#include "analysis/factors.h"
#include "device/cpu/stats_gram.h"
#include "analysis/results.h"
#include "observe_testing.h"

#include <stdio.h>
#include <string.h>

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
            assert_fine(ctx, abar__pass_backward(&pass, b, drawn, NULL, NULL));
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

/* True for a drawn network with batch norm, false once a training step was committed, and without batch norm. */
static void statistics_are_at_their_start_until_a_step(void **state)
{
    static const char *const models[2] = {"resnet20", "lenet5"};
    abar_context *ctx = *state;
    for (int m = 0; m < 2; m++) {
        abar_setup *setup = make_setup(ctx, models[m], "threads=1");
        abar__pass pass;
        abar_loss loss;
        bool at_start;
        assert_fine(ctx, abar__pass_open(ctx, setup, "", &(abar__pass_config){.samples = 4, .batch = 4}, &pass));
        assert_fine(ctx, abar__pass_statistics_at_start(&pass, &at_start));
        assert_int_equal(at_start, m == 0);
        assert_fine(ctx, abar__pass_fill(&pass, 0));
        assert_fine(ctx, abar__pass_forward(&pass, 0, true, NULL, &loss)); /* forgets what it changed */
        assert_fine(ctx, abar__pass_statistics_at_start(&pass, &at_start));
        assert_int_equal(at_start, m == 0);
        assert_fine(ctx,
                    abar_net_forward(pass.net, &(abar_run_config){.size = sizeof(abar_run_config), .training = true}, &loss));
        abar_net_commit(pass.net);
        assert_fine(ctx, abar__pass_statistics_at_start(&pass, &at_start));
        assert_false(at_start);
        abar__pass_close(&pass);
        abar_setup_destroy(ctx, setup);
    }
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
        assert_fine(ctx, abar__pass_backward(&pass, b, true, NULL, NULL));
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
    assert_fine(ctx, abar__pass_backward(&pass, 0, true, NULL, NULL));
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
    const abar__collect_config config = {.wanted = EVERYTHING, .layers = "", .homogeneous = true, .fisher_samples = B};
    collect(*state, "lenet5", "threads=1", B, 2, &config, &w);
    for (int m = 0; m < w.collection.n; m++) {
        const abar__results_config per_example = {.damping = 1.0}, batch_mean = {.damping = 1.0, .batch_mean = true};
        assert_fine(*state, abar__result_make(&w.collection, m, &per_example, false, &example));
        assert_fine(*state, abar__result_make(&w.collection, m, &batch_mean, false, &mean));
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
        assert_int_equal(abar__map_side(&w.collection.maps[last]), 8 + homogeneous);
        trace[homogeneous] = 0.0;
        for (int64_t k = 0; k < r.fisher.n; k++) trace[homogeneous] += r.fisher.value[k];
        if (homogeneous) assert_near(trace[1] - trace[0], r.p_trace, 1e-6 * r.p_trace); /* |(a, 1)|^2 = |a|^2 + 1 */
        abar__result_free(*state, &r);
        release(*state, &w);
    }
}

/* The sum of a batch's per-example gradients is B times the gradient of the mean loss, bias included: so the sum of all entries
 * of the Gram matrix is its square. */
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
        const int64_t side = abar__gram_side(B);
        double square = 0.0, sum = 0.0;
        for (int64_t i = 0; i < map->shape.out * map->shape.d; i++) square += (double)weight[i] * (double)weight[i];
        for (int64_t i = 0; i < map->shape.out; i++) square += (double)bias[i] * (double)bias[i];
        for (int64_t i = 0; i < B; i++)
            for (int64_t j = 0; j <= i; j++) sum += (i == j ? 1.0 : 2.0) * map->gram[i * side + j];
        assert_near(sum / (B * B), square, 1e-5 * square);
        free(weight);
        free(bias);
    }
    release(*state, &w);
}

/* The rows of one batch, as the backward pass shows them. */
typedef struct seen_rows {
    abar__collection *collection;
    abar_context *ctx;
    int checked;
} seen_rows;

/* K_nm from all rows, by the other way of making it. */
static abar_status check_gram(void *user, int layer_index, const abar_layer *layer)
{
    seen_rows *seen = user;
    const abar__collection *c = seen->collection;
    float *input = fetch(seen->ctx, &layer->input), *grad = fetch(seen->ctx, &layer->output_grad);
    for (int i = 0; i < c->n; i++) {
        const abar__map_stats *m = &c->maps[i];
        if (m->layer != layer_index) continue;
        const int64_t n = c->config.fisher_samples, d = abar__map_side(m), pitch = abar__gram_side(n);
        const double scale = layer->output_grad_scale * (double)c->pass->config.batch;
        double *a = take(n * m->shape.rows * d, sizeof *a), *p = take(n * m->shape.rows * m->shape.out, sizeof *p),
               *gram = take(n * n, sizeof *gram);
        for (int64_t k = 0; k < n; k++) {
            abar__input_rows(&m->shape, input + k * m->shape.in_size, m->homogeneous, a + k * m->shape.rows * d);
            abar__output_rows(&m->shape, grad + k * m->shape.out_size, scale, p + k * m->shape.rows * m->shape.out);
        }
        assert_fine(seen->ctx, abar__fisher_gram(seen->ctx, n, m->shape.rows, d, m->shape.out, a, p, gram));
        for (int64_t k = 0; k < n; k++)
            for (int64_t l = 0; l <= k; l++)
                assert_near(m->gram[k * pitch + l], gram[k * n + l], 1e-11 * sqrt(gram[k * n + k] * gram[l * n + l]));
        free(a);
        free(p);
        free(gram);
        seen->checked++;
    }
    free(input);
    free(grad);
    return ABAR_OK;
}

/* The last has more gradients than are made at a time. */
static void gram_matrices_are_those_of_the_rows(void **state)
{
    static const struct {
        const char *model, *options;
        int64_t batch, examples;
    } nets[] = {{"lenet5", "threads=1", 4, 3}, {"resnet20", "threads=2", 4, 3}, {"mlp", "widths=784-400-10 threads=2", 64, 63}};
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        whole w;
        const abar__collect_config config = {
            .wanted = ABAR_COLLECT_FISHER, .layers = "", .homogeneous = true, .fisher_samples = nets[i].examples};
        collect(*state, nets[i].model, nets[i].options, nets[i].batch, 2, &config, &w);
        seen_rows seen = {.collection = &w.collection, .ctx = *state};
        const abar_observer observer = {.size = sizeof observer, .observe = check_gram, .user = &seen};
        assert_fine(*state, abar__pass_fill(&w.pass, 0));
        assert_fine(*state, abar__pass_backward(&w.pass, 0, false, NULL, &observer));
        assert_int_equal(seen.checked, w.collection.n);
        release(*state, &w);
    }
}

static void fisher_of_more_than_a_batch_is_refused(void **state)
{
    abar_context *ctx = *state;
    abar_setup *setup = make_setup(ctx, "lenet5", "threads=1");
    abar__pass pass;
    abar__collection c;
    abar__collect_config config = {.wanted = ABAR_COLLECT_FISHER, .layers = "", .fisher_samples = 5};
    assert_fine(ctx, abar__pass_open(ctx, setup, "", &(abar__pass_config){.samples = 8, .batch = 4, .gradients = true}, &pass));
    assert_int_equal(abar__collection_create(&pass, &config, &c), ABAR_E_ARGUMENT);
    assert_non_null(strstr(abar_context_error(ctx), "raise --batch"));
    config.fisher_samples = 0;
    assert_fine(ctx, abar__collection_create(&pass, &config, &c));
    assert_int_equal(c.config.fisher_samples, 4);
    abar__collection_free(&c);
    abar__pass_close(&pass);
    abar_setup_destroy(ctx, setup);
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
        TEST(passes_in_training_mode_change_nothing),
        TEST(statistics_are_at_their_start_until_a_step),
        TEST(drawn_labels_follow_the_softmax),
        TEST(output_layer_gradients_sum_to_zero),
        TEST(scales_differ_by_the_square_of_the_batch),
        TEST(fisher_has_the_homogeneous_one_that_inputs_have),
        TEST(gradients_of_examples_average_to_the_gradient),
        TEST(gram_matrices_are_those_of_the_rows),
        TEST(fisher_of_more_than_a_batch_is_refused),
        TEST(layers_that_fit_nothing_are_told_with_the_nearest),
        TEST(fisher_of_a_linear_net_is_the_kronecker_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
