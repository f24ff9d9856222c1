/* Models: exact parameter counts and tensor names; gradients against central differences in ref; cpu against ref. */
#include "net_testing.h"

#include <stdio.h>

static void build_named(fixture *f, const char *name)
{
    const abar_model *model = abar_model_find(name);
    assert_non_null(model);
    void *config = calloc(1, model->config_size + 1);
    if (model->options) abar_options_default(model->options, config);
    abar_value x = abar_input(f->net, 3, model->input);
    abar_softmax_cross_entropy(f->net, model->build(model, f->net, x, model->classes, config), 0.0);
    free(config);
}

static void models_have_exact_parameter_counts(void **state)
{
    (void)state;
    const struct {
        const char *name;
        int64_t parameters;
    } table[] = {{"mlp", 669706},        {"lenet5", 61706},       {"resnet20", 269722},   {"resnet32", 464154},
                 {"resnet44", 658586},   {"resnet56", 853018},    {"resnet110", 1727962}, {"densenet121", 6956298},
                 {"resnet50", 25557032}, {"resnet101", 44549160}, {"wrn28-10", 36479194}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fixture f = fixture_open("ref", 1);
        build_named(&f, table[i].name);
        OK(f.ctx, abar_net_compile(f.net, f.dev,
                                   &(abar_compile_config){.size = sizeof(abar_compile_config), .batch = 1, .plan_only = true}));
        int64_t n = 0;
        for (int p = 0; p < abar_net_param_count(f.net); p++) n += abar_tensor_count(&abar_net_param(f.net, p)->value);
        assert_int_equal(n, table[i].parameters);
        fixture_close(&f);
    }
}

/* "name dtype [shape]" per line, as PyTorch's state_dict lists them. */
static void models_tensors_are_those_of_pytorch(void **state)
{
    (void)state;
    const char *const names[] = {"mlp", "lenet5", "resnet20", "resnet110", "densenet121", "resnet50", "resnet101", "wrn28-10"};
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        fixture f = fixture_open("cpu", 1);
        build_named(&f, names[m]);
        OK(f.ctx, abar_net_compile(f.net, f.dev,
                                   &(abar_compile_config){.size = sizeof(abar_compile_config), .batch = 1, .plan_only = true}));
        char path[512], line[512], ours[512];
        snprintf(path, sizeof path, "%s/golden/state_dict_%s.txt", ABAR_TEST_DATA, names[m]);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        for (int i = 0; i < abar_net_tensor_count(f.net); i++) {
            const char *name;
            abar_tensor t;
            abar_net_tensor(f.net, i, &name, &t);
            int length = snprintf(ours, sizeof ours, "%s %s [", name, abar_dtype_name(t.dtype));
            for (int k = 0; k < t.ndim; k++)
                length += snprintf(ours + length, sizeof ours - (size_t)length, k ? ",%lld" : "%lld", (long long)t.dim[k]);
            snprintf(ours + length, sizeof ours - (size_t)length, "]\n");
            assert_non_null(fgets(line, sizeof line, file));
            assert_string_equal(line, ours);
        }
        assert_null(fgets(line, sizeof line, file));
        fclose(file);
        fixture_close(&f);
    }
}

/* Every parameter tensor: some elements, loss(w+h) - loss(w-h) over 2h against backward. */
static void check_gradients(fixture *f, int64_t classes)
{
    const double h = 1e-6;
    fill_batch(f->net, 5, classes);
    forward(f, true);
    OK(f->ctx, abar_net_backward(f->net, false, NULL));
    for (int p = 0; p < abar_net_param_count(f->net); p++) {
        const abar_param *param = abar_net_param(f->net, p);
        int64_t count = abar_tensor_count(&param->value), stride = count > 12 ? count / 12 : 1;
        double worst = 0.0, size = 0.0;
        for (int64_t i = 0; i < count; i++) size = fmax(size, fabs(load(&param->grad, i)));
        for (int64_t i = p % stride; i < count; i += stride) {
            double w = load(&param->value, i);
            store(&param->value, i, w + h);
            double up = forward(f, true);
            store(&param->value, i, w - h);
            double down = forward(f, true);
            store(&param->value, i, w);
            worst = fmax(worst, fabs((up - down) / (2.0 * h) - load(&param->grad, i)));
        }
        /* a gradient that is zero but for rounding (a bias in front of batch norm) has no relative error */
        double error = worst / fmax(size, 1e-3);
        if (!(error <= 1e-6)) fail_msg("%s: gradient off by %.2e", param->name, error);
    }
}

static void models_gradients_match_differences_in_ref(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_value x = abar_input(f.net, 3, (int64_t[]){3, 8, 8});
    abar_softmax_cross_entropy(f.net, abar__resnet_cifar(f.net, x, 1, 4, 5), 0.1);
    OK(f.ctx, compile(&f, 3, true));
    check_gradients(&f, 5);
    fixture_close(&f);

    f = fixture_open("ref", 1);
    x = abar_input(f.net, 3, (int64_t[]){3, 8, 8});
    abar_softmax_cross_entropy(f.net, abar__wrn(f.net, x, 2, 3, 2, 5), 0.0);
    OK(f.ctx, compile(&f, 3, true));
    check_gradients(&f, 5);
    fixture_close(&f);

    f = fixture_open("ref", 1);
    build_named(&f, "lenet5");
    OK(f.ctx, compile(&f, 2, true));
    check_gradients(&f, 10);
    fixture_close(&f);

    f = fixture_open("ref", 1);
    const abar_model *mlp = abar_model_find("mlp");
    char config[ABAR_OPTION_TEXT_MAX] = "12-9-7-4";
    x = mlp->build(mlp, f.net, abar_input(f.net, 3, (int64_t[]){1, 3, 4}), 4, config);
    abar_softmax_cross_entropy(f.net, x, 0.0);
    OK(f.ctx, compile(&f, 5, true));
    check_gradients(&f, 4);
    fixture_close(&f);
}

/* A net with everything else: values read three times, concat, dropout, layer norm, tanh, gelu, groups, average pool. */
static void models_gradients_of_a_tangled_net_match_differences(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_net *net = f.net;
    abar_value x = abar_input(net, 3, (int64_t[]){2, 6, 6});
    abar_value a = abar_conv2d(net, x, "a", &(abar_conv2d_config){.out = 4, .kernel = 3, .pad = 1, .groups = 2, .bias = true});
    abar_value b = abar_gelu(net, a);
    abar_value c = abar_batch_norm(net, abar_conv2d(net, a, "c", &(abar_conv2d_config){.out = 4, .kernel = 1}), "cn");
    abar_value d = abar_concat(net, 3, (abar_value[]){a, b, abar_tanh(net, c)});
    d = abar_average_pool(net, abar_add(net, d, d), &(abar_pool_config){.kernel = 3, .stride = 2, .pad = 1});
    d = abar_flatten(net, abar_dropout(net, d, 0.3));
    d = abar_gelu_tanh(net, abar_layer_norm(net, abar_linear(net, d, "fc", &(abar_linear_config){.out = 7}), "ln", 1e-5));
    abar_squared_error(net, d);
    OK(f.ctx, compile(&f, 3, true));
    check_gradients(&f, 0);
    fixture_close(&f);
}

static void compare_step0(const char *model, int64_t batch, int threads)
{
    fixture ref = fixture_open("ref", 1), cpu = fixture_open("cpu", threads);
    build_named(&ref, model);
    build_named(&cpu, model);
    OK(ref.ctx, compile(&ref, batch, true));
    OK(cpu.ctx, compile(&cpu, batch, true));
    /* one starting point, exactly representable in both */
    for (int p = 0; p < abar_net_param_count(ref.net); p++) {
        const abar_tensor *from = &abar_net_param(cpu.net, p)->value, *to = &abar_net_param(ref.net, p)->value;
        for (int64_t i = 0; i < abar_tensor_count(from); i++) store(to, i, load(from, i));
    }
    fill_batch(cpu.net, 9, 10);
    fill_batch(ref.net, 9, 10);
    double loss_ref = forward(&ref, true), loss_cpu = forward(&cpu, true);
    assert_true(fabs(loss_cpu - loss_ref) <= 1e-4 * loss_ref);
    OK(ref.ctx, abar_net_backward(ref.net, false, NULL));
    OK(cpu.ctx, abar_net_backward(cpu.net, false, NULL));
    abar_net_commit(ref.net);
    abar_net_commit(cpu.net);
    for (int p = 0; p < abar_net_param_count(ref.net); p++) {
        double d = distance(&abar_net_param(cpu.net, p)->grad, &abar_net_param(ref.net, p)->grad);
        if (!(d <= 1e-4)) fail_msg("%s %s: gradients differ by %.2e", model, abar_net_param(ref.net, p)->name, d);
    }
    for (int i = 0; i < abar_net_tensor_count(ref.net); i++) {
        const char *name;
        abar_tensor a, b;
        abar_net_tensor(cpu.net, i, &name, &a);
        abar_net_tensor(ref.net, i, &name, &b);
        if (!(distance(&a, &b) <= 1e-4)) fail_msg("%s %s: differs by %.2e", model, name, distance(&a, &b));
    }
    fixture_close(&ref);
    fixture_close(&cpu);
}

static void models_cpu_matches_ref_in_loss_and_every_gradient(void **state)
{
    (void)state;
    compare_step0("lenet5", 16, 2);
    compare_step0("lenet5", 5, 1);
    compare_step0("resnet20", 4, 2);
    compare_step0("mlp", 9, 2);
}

static void models_gradients_accumulate_over_calls(void **state)
{
    (void)state;
    fixture f = fixture_open("cpu", 2);
    build_named(&f, "lenet5");
    OK(f.ctx, compile(&f, 8, true));
    fill_batch(f.net, 5, 10);
    const abar_param *w = abar_net_param(f.net, 0);
    forward(&f, true);
    OK(f.ctx, abar_net_backward(f.net, false, NULL));
    double once = load(&w->grad, 3);
    forward(&f, true);
    OK(f.ctx, abar_net_backward(f.net, true, NULL));
    assert_true(fabs(load(&w->grad, 3) - 2.0 * once) <= 1e-6 * fabs(once));
    forward(&f, true);
    OK(f.ctx, abar_net_backward(f.net, false, NULL));
    assert_true(load(&w->grad, 3) == once);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_have_exact_parameter_counts),
        cmocka_unit_test(models_tensors_are_those_of_pytorch),
        cmocka_unit_test(models_gradients_match_differences_in_ref),
        cmocka_unit_test(models_gradients_of_a_tangled_net_match_differences),
        cmocka_unit_test(models_cpu_matches_ref_in_loss_and_every_gradient),
        cmocka_unit_test(models_gradients_accumulate_over_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
