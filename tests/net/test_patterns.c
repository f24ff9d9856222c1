/* AdaHessian's diagonal of a network with batch norm, ReLU and maximum pooling: against Hz by double backward in float64
 * (tests/oracle/hessian_net.py). The passes at W +- hz repeat the choices of the pass at W; where they do not, the difference
 * is another statistic. Drawn labels: their frequencies. */
#include "abar/net.h"
#include "abar/optim.h"
#include "cuda_testing.h"
#include "io/io.h"

#include <math.h>

enum { BATCH = 6, PARAMS = 8, LARGEST = 1024 };

typedef struct lab {
    abar_context *ctx;
    abar_device *dev;
    abar__safetensors *file;
    abar_net *net, *frozen;
    abar_optim *optim;
    bool exact;
} lab;

static void need(const lab *l, abar_status status)
{
    if (status != ABAR_OK) fail_msg("%s", abar_context_error(l->ctx));
}

static abar_net *build(const lab *l, const abar_net *share, bool patterns)
{
    abar_net *net;
    need(l, abar_net_create(l->ctx, &net));
    abar_value x = abar_input(net, 3, (int64_t[]){2, 8, 8});
    x = abar_conv2d(net, x, "conv1", &ABAR_CONFIG(abar_conv2d_config, .out = 5, .kernel = 3, .pad = 1, .bias = true));
    x = abar_relu(net, abar_batch_norm(net, x, "bn1"));
    x = abar_max_pool(net, x, &ABAR_CONFIG(abar_pool_config, .kernel = 2));
    x = abar_relu(net, abar_linear(net, abar_flatten(net, x), "fc1", &ABAR_CONFIG(abar_linear_config, .out = 9, .bias = true)));
    x = abar_linear(net, x, "fc2", &ABAR_CONFIG(abar_linear_config, .out = 4, .bias = true));
    abar_softmax_cross_entropy(net, x, 0.0);
    need(l, abar_net_compile(
                net, l->dev,
                &ABAR_CONFIG(abar_compile_config, .batch = BATCH, .training = true, .share = share, .patterns = patterns)));
    return net;
}

static abar_tensor golden(const lab *l, const char *prefix, const char *name)
{
    char full[64];
    abar_tensor t;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    assert_true(abar__safetensors_find(l->file, full, &t));
    return t;
}

static void fill(const lab *l, abar_net *net)
{
    const abar_tensor input = abar_net_input(net), x = golden(l, "", "input"), y = golden(l, "", "labels");
    int32_t labels[BATCH];
    memcpy(labels, y.data, sizeof labels);
    need(l, abar_tensor_copy(l->ctx, &input, &x));
    need(l, abar_net_set_labels(net, labels));
}

static void make_optim(lab *l, const char *fd_step)
{
    abar_optim_param params[PARAMS];
    void *extra[PARAMS], *shadows[PARAMS];
    abar_layer layers[3];
    const abar_rule *rule = abar_rule_find("adahessian");
    void *config = calloc(1, rule->config_size);
    assert_int_equal(abar_net_param_count(l->net), PARAMS);
    assert_int_equal(abar_net_layer_count(l->net), 3);
    for (int i = 0; i < PARAMS; i++) {
        const abar_param *p = abar_net_param(l->net, i);
        const abar_tensor value = golden(l, "value.", p->name);
        need(l, abar_tensor_copy(l->ctx, &p->value, &value));
        params[i] = (abar_optim_param){.name = p->name, .value = p->value, .grad = p->grad, .lr_scale = 1.0};
        extra[i] = abar_net_param(l->frozen, i)->grad.data;
        shadows[i] = p->shadow.data;
    }
    for (int i = 0; i < 3; i++) layers[i] = *abar_net_layer(l->net, i);
    abar_options_default(rule->options, config);
    need(l, abar_options_set(l->ctx, rule->options, config, "fd-step", fd_step));
    need(l, abar_optim_create(l->dev,
                              &ABAR_CONFIG(abar_optim_config, .rule = "adahessian", .rule_config = config, .params = params,
                                           .n_params = PARAMS, .layers = layers, .n_layers = 3, .base_lr = 0.1,
                                           .shadows = shadows, .extra_grads = extra, .seed = 11),
                              &l->optim));
    free(config);
}

/* False: there is no such device here. */
static bool open_lab(lab *l, const char *device, const char *fd_step)
{
    *l = (lab){.exact = strcmp(device, "ref") == 0};
    assert_int_equal(abar_context_create(NULL, &l->ctx), ABAR_OK);
    const abar_device_config config = {.size = sizeof config,
                                       .threads = 2,
                                       .precision = ABAR_PRECISION_FP32,
                                       .deterministic = cuda_only("ABAR_TEST_SMALL")}; /* then nothing is measured */
    if (abar_device_open(l->ctx, device, &config, &l->dev) != ABAR_OK) {
        assert_string_equal(device, "cuda");
        assert_false(cuda_only("ABAR_TEST_REQUIRE_CUDA"));
        abar_context_destroy(l->ctx);
        return false;
    }
    need(l, abar__safetensors_open(l->ctx, ABAR_TEST_DATA "/golden/hessian_net.safetensors", &l->file));
    l->net = build(l, NULL, false);
    l->frozen = build(l, l->net, true);
    make_optim(l, fd_step);
    return true;
}

static void close_lab(lab *l)
{
    abar_optim_destroy(l->optim);
    abar_net_destroy(l->frozen);
    abar_net_destroy(l->net);
    abar__safetensors_close(l->file);
    abar_device_close(l->dev);
    assert_int_equal(abar_context_memory(l->ctx).now, 0);
    abar_context_destroy(l->ctx);
}

static void pass(const lab *l, abar_net *net, bool repeat, double scale, bool add)
{
    const abar_run_config run = {.size = sizeof run, .training = true, .repeat = repeat, .loss_scale = scale};
    need(l, abar_net_forward(net, &run, NULL));
    need(l, abar_net_backward(net, add, NULL));
}

/* One step at rate 0, with its three passes. */
static void estimate(const lab *l, bool repeat)
{
    const abar_run_config record = {.size = sizeof record, .training = true};
    const abar_step_config step = {.size = sizeof step};
    fill(l, l->net);
    pass(l, l->net, false, 1.0, false);
    fill(l, l->frozen);
    need(l, abar_net_forward(l->frozen, &record, NULL));
    need(l, abar_optim_perturb(l->optim, 1));
    pass(l, l->frozen, repeat, 1.0, false);
    need(l, abar_optim_perturb(l->optim, -1));
    pass(l, l->frozen, repeat, -1.0, true);
    need(l, abar_optim_perturb(l->optim, 0));
    abar_step_report report = {.size = sizeof report};
    need(l, abar_optim_step(l->optim, &step, &report));
    assert_false(report.skipped);
}

typedef struct search {
    const lab *l;
    double error, largest;
    int found;
} search;

static void to_host(const lab *l, const abar_tensor *from, double *out)
{
    const abar_tensor to = abar_tensor_wrap(NULL, out, ABAR_F64, from->ndim, from->dim);
    assert_in_range(abar_tensor_count(from), 1, LARGEST);
    need(l, abar_tensor_copy(l->ctx, &to, from));
}

static abar_status compare(void *user, const char *name, const abar_tensor *tensor)
{
    search *s = user;
    double is[LARGEST], should[LARGEST];
    if (strncmp(name, "hessian.", 8) != 0) return ABAR_OK;
    const abar_tensor expected = golden(s->l, "", name);
    assert_int_equal(abar_tensor_count(tensor), abar_tensor_count(&expected));
    to_host(s->l, tensor, is);
    to_host(s->l, &expected, should);
    for (int64_t i = 0; i < abar_tensor_count(&expected); i++) {
        s->error = fmax(s->error, fabs(is[i] - should[i]));
        s->largest = fmax(s->largest, fabs(should[i]));
    }
    s->found++;
    return ABAR_OK;
}

static double error_of(const lab *l)
{
    search s = {.l = l};
    need(l, abar_optim_visit(l->optim, compare, &s));
    assert_int_equal(s.found, PARAMS);
    return s.error / s.largest;
}

/* ---- the diagonal ------------------------------------------------------------------------------------------------------- */

static const char *const devices[] = {"ref", "cpu", "cuda"};

static void difference_with_frozen_kinks_is_the_hessian(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        lab l;
        if (!open_lab(&l, devices[d], "0")) continue;
        estimate(&l, true);
        const double error = error_of(&l);
        if (!(error <= (l.exact ? 1e-8 : 2e-3))) fail_msg("%s: error %g", devices[d], error);
        close_lab(&l);
    }
}

static void difference_over_kinks_is_not_the_hessian(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        lab l;
        if (!open_lab(&l, devices[d], "0.03")) continue;
        estimate(&l, false);
        assert_true(error_of(&l) > 0.02);
        close_lab(&l);
    }
}

/* The gradient of the ordinary pass is untouched, and so are the weights and the running statistics. */
static void extra_passes_leave_no_trace(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        lab l;
        if (!open_lab(&l, devices[d], "0")) continue;
        double running[2][PARAMS][LARGEST], weights[LARGEST], should[LARGEST];
        const int n = abar_net_tensor_count(l.net);
        for (int round = 0; round < 2; round++) {
            if (round == 1) {
                estimate(&l, true);
                abar_net_rollback(l.net);
                abar_net_commit(l.frozen);
            }
            for (int i = 0, r = 0; i < n; i++) {
                const char *name;
                abar_tensor t;
                abar_net_tensor(l.net, i, &name, &t);
                if (strstr(name, "running")) to_host(&l, &t, running[round][r++]);
            }
        }
        for (int i = 0; i < 2; i++) assert_memory_equal(running[0][i], running[1][i], 5 * sizeof(double));
        for (int i = 0; i < PARAMS; i++) {
            const abar_param *p = abar_net_param(l.net, i);
            const abar_tensor value = golden(&l, "value.", p->name), grad = golden(&l, "grad.", p->name);
            to_host(&l, &p->value, weights);
            to_host(&l, &value, should);
            for (int64_t j = 0; j < abar_tensor_count(&value); j++) assert_true(weights[j] == should[j]);
            to_host(&l, &p->grad, weights);
            to_host(&l, &grad, should);
            for (int64_t j = 0; j < abar_tensor_count(&value); j++) assert_true(fabs(weights[j] - should[j]) <= 1e-5);
        }
        close_lab(&l);
    }
}

static void repeat_without_patterns_is_refused(void **state)
{
    (void)state;
    lab l;
    assert_true(open_lab(&l, "ref", "0"));
    const abar_run_config run = {.size = sizeof run, .training = true, .repeat = true};
    assert_int_equal(abar_net_forward(l.net, &run, NULL), ABAR_E_STATE);
    assert_non_null(strstr(abar_context_error(l.ctx), "patterns"));
    close_lab(&l);
}

/* ---- drawn labels ---------------------------------------------------------------------------------------------------------
 */

/* Frequencies over many steps are the softmax, within five deviations; the devices draw alike; a draw depends on its step. */
static void drawn_labels_follow_the_softmax(void **state)
{
    (void)state;
    enum { DRAWS = 2000 };
    const int draws = cuda_only("ABAR_TEST_SMALL") ? 50 : DRAWS;
    static int32_t drawn[3][DRAWS][BATCH];
    bool there[3];
    for (int d = 0; d < 3; d++) {
        lab l;
        there[d] = open_lab(&l, devices[d], "0");
        if (!there[d]) continue;
        double logits[BATCH * 4], counts[BATCH][4] = {{0}};
        fill(&l, l.net);
        for (int k = 0; k < draws; k++) {
            const abar_run_config run = {
                .size = sizeof run, .training = true, .seed = 5, .step = k, .draw_labels = true, .sample0 = 2};
            abar_loss loss;
            need(&l, abar_net_forward(l.net, &run, &loss));
            const abar_tensor target = abar_net_target(l.net),
                              host = abar_tensor_wrap(NULL, drawn[d][k], ABAR_I32, 1, (const int64_t[]){BATCH});
            need(&l, abar_tensor_copy(l.ctx, &host, &target));
            for (int i = 0; i < BATCH; i++) counts[i][drawn[d][k][i]]++;
        }
        const abar_tensor output = abar_net_output(l.net);
        to_host(&l, &output, logits);
        for (int i = 0; i < BATCH; i++) {
            double sum = 0.0;
            for (int c = 0; c < 4; c++) sum += exp(logits[4 * i + c]);
            for (int c = 0; c < 4; c++) {
                const double p = exp(logits[4 * i + c]) / sum;
                assert_true(fabs(counts[i][c] - draws * p) <= 5.0 * sqrt(draws * p * (1.0 - p)) + 1.0);
            }
        }
        close_lab(&l);
    }
    for (int d = 1; d < 3; d++) { /* but for draws within rounding of a border */
        int other = 0;
        for (int k = 0; there[d] && k < draws; k++)
            for (int i = 0; i < BATCH; i++) other += drawn[0][k][i] != drawn[d][k][i];
        assert_in_range(other, 0, 5);
    }
}

/* Sophia's diagonal: T E[g*g] over drawn labels is the diagonal of the Fisher matrix, the mean over examples of E_y[g_n*g_n].
 * Of the last bias that is p (1 - p). */
static void drawn_gradients_estimate_the_fisher_diagonal(void **state)
{
    (void)state;
    enum { DRAWS = 4000, CLASSES = 4 };
    lab l;
    double logits[BATCH * CLASSES], grad[CLASSES], sum[CLASSES] = {0.0}, fourth[CLASSES] = {0.0}, fisher[CLASSES] = {0.0};
    assert_true(open_lab(&l, "ref", "0"));
    fill(&l, l.net);
    for (int k = 0; k < DRAWS; k++) {
        const abar_run_config run = {
            .size = sizeof run, .training = true, .seed = 8, .step = k, .draw_labels = true, .loss_scale = 1.0};
        need(&l, abar_net_forward(l.net, &run, NULL));
        const abar_tensor output = abar_net_output(l.net); /* whose memory the backward pass uses again */
        to_host(&l, &output, logits);
        need(&l, abar_net_backward(l.net, false, NULL));
        const abar_param *bias = abar_net_param(l.net, PARAMS - 1);
        assert_string_equal(bias->name, "fc2.bias");
        to_host(&l, &bias->grad, grad);
        for (int c = 0; c < CLASSES; c++) {
            const double square = BATCH * grad[c] * grad[c];
            sum[c] += square;
            fourth[c] += square * square;
        }
    }
    for (int i = 0; i < BATCH; i++) {
        double all = 0.0;
        for (int c = 0; c < CLASSES; c++) all += exp(logits[CLASSES * i + c]);
        for (int c = 0; c < CLASSES; c++) {
            const double p = exp(logits[CLASSES * i + c]) / all;
            fisher[c] += p * (1.0 - p) / BATCH;
        }
    }
    for (int c = 0; c < CLASSES; c++) { /* within five deviations of the mean */
        const double mean = sum[c] / DRAWS, deviation = sqrt(fmax(fourth[c] / DRAWS - mean * mean, 0.0) / DRAWS);
        if (!(fabs(mean - fisher[c]) <= 5.0 * deviation)) fail_msg("class %d: %g, not %g", c, mean, fisher[c]);
        assert_true(5.0 * deviation < 0.2 * fisher[c]); /* or the test would tell nothing */
    }
    close_lab(&l);
}

int main(int argc, char **argv)
{
    cuda_choose_tests(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(difference_with_frozen_kinks_is_the_hessian),
        cmocka_unit_test(difference_over_kinks_is_not_the_hessian),
        cmocka_unit_test(extra_passes_leave_no_trace),
        cmocka_unit_test(repeat_without_patterns_is_refused),
        cmocka_unit_test(drawn_labels_follow_the_softmax),
        cmocka_unit_test(drawn_gradients_estimate_the_fisher_diagonal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
