/* Exact natural gradient on a whole network: twenty steps against a dense solve in float64 (tests/oracle/ngd.py), with the
 * labels of the data, drawn ones, and all classes. On every device there is; cuda in fp32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "abar/net.h"
#include "abar/optim.h"
#include "io/io.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 6, CLASSES = 3, STEPS = 20, BATCHES = 4, PARAMS_MAX = 16, LAYERS = 5, SEED = 5 };

typedef struct golden_case {
    const char *name, *fisher, *blocks, *damping;
    bool norm;
} golden_case;

static const golden_case cases[] = {
    {"empirical", "empirical", "full", "0.1", false},
    {"empirical_layer", "empirical", "layer", "0.1", false},
    {"exact", "exact", "full", "0.1", false},
    {"exact_layer", "exact", "layer", "0.1", false},
    {"mc", "mc:3", "full", "0.1", false},
    {"norm", "empirical", "full", "0.1", true},
    {"norm_exact", "exact", "layer", "0.2", true},
    {"mc_layer", "mc:2", "layer", "0.1", false},
    {"mc_one", "mc:1", "full", "0.1", false},
    {"norm_mc", "mc:2", "full", "0.2", true},
    {"norm_exact_full", "exact", "full", "0.2", true},
};

typedef struct lab {
    abar_context *ctx;
    abar_device *dev;
    abar__safetensors *file;
    const golden_case *wanted;
    abar_net *net, *extra;
    abar_optim *optim;
    int params;
} lab;

static void need(const lab *l, abar_status status)
{
    if (status != ABAR_OK) fail_msg("%s: %s", l->wanted ? l->wanted->name : "", abar_context_error(l->ctx));
}

static abar_net *build(const lab *l, const abar_net *share)
{
    abar_net *net;
    need(l, abar_net_create(l->ctx, &net));
    abar_value x = abar_input(net, 3, (int64_t[]){2, 6, 6});
    x = abar_conv2d(net, x, "conv1", &ABAR_CONFIG(abar_conv2d_config, .out = 4, .kernel = 3, .pad = 1, .bias = true));
    if (l->wanted->norm) x = abar_batch_norm(net, x, "bn1");
    x = abar_conv2d(net, abar_tanh(net, x), "conv2",
                    &ABAR_CONFIG(abar_conv2d_config, .out = 4, .kernel = 3, .pad = 1, .stride = 2, .groups = 2));
    x = abar_tokens(net, abar_tanh(net, x));
    x = abar_tanh(net, abar_linear(net, x, "mix", &ABAR_CONFIG(abar_linear_config, .out = 5, .bias = true)));
    x = abar_linear(net, abar_token_mean(net, x), "fc1", &ABAR_CONFIG(abar_linear_config, .out = 6, .bias = true));
    x = abar_linear(net, abar_tanh(net, x), "fc2", &ABAR_CONFIG(abar_linear_config, .out = CLASSES, .bias = true));
    abar_softmax_cross_entropy(net, x, 0.0);
    need(l, abar_net_compile(net, l->dev,
                             &ABAR_CONFIG(abar_compile_config, .batch = BATCH, .training = true, .share = share,
                                          .patterns = share != NULL)));
    return net;
}

static abar_tensor golden(const lab *l, const char *prefix, const char *name)
{
    char full[96];
    abar_tensor t;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    assert_true(abar__safetensors_find(l->file, full, &t));
    return t;
}

static void set(const lab *l, const abar_option *options, void *config, const char *name, const char *value)
{
    need(l, abar_options_set(l->ctx, options, config, name, value));
}

static void make_optim(lab *l)
{
    abar_optim_param params[PARAMS_MAX];
    abar_layer layers[LAYERS];
    const abar_rule *rule = abar_rule_find("sgd");
    const abar_method *method = abar_method_find("ngd");
    void *rule_config = calloc(1, rule->config_size), *config = calloc(1, method->config_size);
    l->params = abar_net_param_count(l->net);
    assert_in_range(l->params, 1, PARAMS_MAX);
    assert_int_equal(abar_net_layer_count(l->net), LAYERS);
    for (int i = 0; i < l->params; i++) {
        const abar_param *p = abar_net_param(l->net, i);
        const abar_tensor value = golden(l, l->wanted->norm ? "start.1." : "start.0.", p->name);
        need(l, abar_tensor_copy(l->ctx, &p->value, &value));
        params[i] =
            (abar_optim_param){.name = p->name, .value = p->value, .grad = p->grad, .lr_scale = 1.0, .weight_decay = 1e-3};
    }
    for (int i = 0; i < LAYERS; i++) layers[i] = *abar_net_layer(l->net, i);
    abar_options_default(rule->options, rule_config);
    abar_options_default(method->options, config);
    set(l, rule->options, rule_config, "momentum", "0.9");
    set(l, method->options, config, "damping", l->wanted->damping);
    set(l, method->options, config, "fisher", l->wanted->fisher);
    set(l, method->options, config, "fisher-blocks", l->wanted->blocks);
    need(l, abar_optim_create(l->dev,
                              &ABAR_CONFIG(abar_optim_config, .rule = "sgd", .rule_config = rule_config, .method = "ngd",
                                           .method_config = config, .params = params, .n_params = l->params, .layers = layers,
                                           .n_layers = LAYERS, .base_lr = 0.05, .examples = BATCH, .classes = CLASSES),
                              &l->optim));
    free(rule_config);
    free(config);
}

static void fill(const lab *l, abar_net *net, int64_t batch)
{
    const abar_tensor input = abar_net_input(net), all = golden(l, "", "input"), y = golden(l, "", "labels");
    const abar_tensor x = abar_tensor_wrap(NULL, (float *)all.data + batch * all.stride[0], ABAR_F32, 4, all.dim + 1);
    int32_t labels[BATCH];
    memcpy(labels, (const int32_t *)y.data + batch * BATCH, sizeof labels);
    need(l, abar_tensor_copy(l->ctx, &input, &x));
    need(l, abar_net_set_labels(net, labels));
}

static abar_status observe(void *user, int index, const abar_layer *layer) { return abar_optim_observe(user, index, layer); }

static void step(lab *l, int64_t k)
{
    const abar_observer observer = {sizeof observer, observe, l->optim};
    const abar_run_config run = {.size = sizeof run, .training = true, .seed = SEED, .step = k};
    const abar_step_config config = {.size = sizeof config, .lr = 0.05};
    abar_step_report report = {.size = sizeof report};
    fill(l, l->net, k % BATCHES);
    need(l, abar_net_forward(l->net, &run, NULL));
    need(l, abar_net_backward(l->net, false, abar_optim_observes(l->optim) ? &observer : NULL));
    fill(l, l->extra, k % BATCHES);
    for (int64_t i = 0; i < abar_optim_row_passes(l->optim); i++) {
        abar_run_config pass = run;
        pass.draw_labels = abar_optim_draws_rows(l->optim);
        pass.draw = pass.draw_labels ? i : 0;
        pass.one_class = pass.draw_labels ? 0 : 1 + i;
        need(l, abar_optim_begin_rows(l->optim, i));
        need(l, abar_net_forward(l->extra, &pass, NULL));
        need(l, abar_net_backward(l->extra, false, &observer));
    }
    need(l, abar_optim_step(l->optim, &config, &report));
    assert_false(report.skipped);
    abar_net_commit(l->net);
}

static void compare(const lab *l, int64_t steps, double bound)
{
    for (int i = 0; i < l->params; i++) {
        const abar_param *p = abar_net_param(l->net, i);
        char prefix[48];
        snprintf(prefix, sizeof prefix, "%s.%lld.", l->wanted->name, (long long)steps);
        const abar_tensor wanted = golden(l, prefix, p->name);
        double have[256], away = 0.0, size = 0.0;
        assert_in_range(abar_tensor_count(&wanted), 1, 256);
        const abar_tensor host = abar_tensor_wrap(NULL, have, ABAR_F64, wanted.ndim, wanted.dim);
        need(l, abar_tensor_copy(l->ctx, &host, &p->value));
        for (int64_t k = 0; k < abar_tensor_count(&wanted); k++) {
            const double w = ((const double *)wanted.data)[k];
            away += (have[k] - w) * (have[k] - w);
            size += w * w;
        }
        if (!(sqrt(away) <= bound * sqrt(size)))
            fail_msg("%s, step %lld, %s: %.2e away", l->wanted->name, (long long)steps, p->name, sqrt(away / size));
    }
}

static void begin_case(lab *l)
{
    l->net = build(l, NULL);
    l->extra = build(l, l->net);
    make_optim(l);
}

static void end_case(lab *l)
{
    abar_optim_destroy(l->optim);
    abar_net_destroy(l->extra);
    abar_net_destroy(l->net);
}

static void run_case(lab *l, double bound)
{
    begin_case(l);
    for (int64_t k = 0; k < STEPS; k++) {
        step(l, k);
        if (k == 0) compare(l, 1, bound);
    }
    compare(l, STEPS, bound);
    for (int i = 0; i < abar_optim_map_count(l->optim); i++) {
        const abar_map_info *map = abar_optim_map(l->optim, i);
        assert_int_equal(map->commits, STEPS);
        assert_int_equal(map->kept + map->dropped + map->raised, 0);
    }
    end_case(l);
}

static lab open_lab(const char *device)
{
    lab l = {0};
    assert_int_equal(abar_context_create(NULL, &l.ctx), ABAR_OK);
    const abar_device_config config = {.size = sizeof config, .threads = 2, .precision = ABAR_PRECISION_FP32};
    if (abar_device_open(l.ctx, device, &config, &l.dev) != ABAR_OK) {
        assert_string_equal(device, "cuda");
        abar_context_destroy(l.ctx);
        skip();
    }
    need(&l, abar__safetensors_open(l.ctx, ABAR_TEST_DATA "/golden/ngd.safetensors", &l.file));
    return l;
}

static void close_lab(lab *l)
{
    abar__safetensors_close(l->file);
    abar_device_close(l->dev);
    assert_int_equal(abar_context_memory(l->ctx).now, 0);
    abar_context_destroy(l->ctx);
}

/* The weights after one step, one after the other. */
static int64_t weights_after_a_step(lab *l, const golden_case *wanted, double *out)
{
    int64_t count = 0;
    l->wanted = wanted;
    begin_case(l);
    step(l, 0);
    for (int i = 0; i < l->params; i++) {
        const abar_tensor *value = &abar_net_param(l->net, i)->value;
        const abar_tensor host = abar_tensor_wrap(NULL, out + count, ABAR_F64, value->ndim, value->dim);
        count += abar_tensor_count(value);
        assert_in_range(count, 1, 1024);
        need(l, abar_tensor_copy(l->ctx, &host, value));
    }
    end_case(l);
    return count;
}

static double distance(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sqrt(sum);
}

/* The exact Fisher matrix is the expectation over drawn labels: a hundred draws are ten times nearer to it than one, give or
 * take. */
static void draws_tend_to_all_classes(void **state)
{
    static const golden_case exact = {"all classes", "exact", "full", "0.1", false},
                             few = {"one draw", "mc:1", "full", "0.1", false},
                             many = {"many draws", "mc:100", "full", "0.1", false};
    double weights[3][1024];
    lab l = open_lab(*state);
    const int64_t n = weights_after_a_step(&l, &exact, weights[0]);
    weights_after_a_step(&l, &few, weights[1]);
    weights_after_a_step(&l, &many, weights[2]);
    const double one = distance(weights[1], weights[0], n), hundred = distance(weights[2], weights[0], n);
    if (!(hundred < 0.4 * one)) fail_msg("one draw is %g away, a hundred are %g", one, hundred);
    close_lab(&l);
}

static void steps_agree_with_the_dense_solve(void **state)
{
    const char *device = *state;
    lab l = open_lab(device);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        l.wanted = &cases[i];
        run_case(&l, strcmp(device, "ref") == 0 ? 1e-9 : 1e-4);
    }
    close_lab(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"steps_agree_with_the_dense_solve(ref)", steps_agree_with_the_dense_solve, NULL, NULL, (void *)(uintptr_t) "ref"},
        {"steps_agree_with_the_dense_solve(cpu)", steps_agree_with_the_dense_solve, NULL, NULL, (void *)(uintptr_t) "cpu"},
        {"steps_agree_with_the_dense_solve(cuda)", steps_agree_with_the_dense_solve, NULL, NULL, (void *)(uintptr_t) "cuda"},
        {"draws_tend_to_all_classes(ref)", draws_tend_to_all_classes, NULL, NULL, (void *)(uintptr_t) "ref"},
        {"draws_tend_to_all_classes(cpu)", draws_tend_to_all_classes, NULL, NULL, (void *)(uintptr_t) "cpu"},
        {"draws_tend_to_all_classes(cuda)", draws_tend_to_all_classes, NULL, NULL, (void *)(uintptr_t) "cuda"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
