/* DenseNet and bottleneck ResNets beyond their golden files: layouts that the cpu joins in blocks, and the memory that the
 * long life of dense features takes. */
#include "net_testing.h"

static const int dense_layers[4] = {2, 3, 2, 2}, bottlenecks[4] = {1, 2, 1, 1};

static abar_value small_densenet(abar_net *net, abar_value x) { return abar__densenet(net, x, dense_layers, 16, 10); }
static abar_value small_resnet(abar_net *net, abar_value x) { return abar__resnet_imagenet(net, x, bottlenecks, 8, 10); }

static fixture open_net(const char *device, int64_t side, int64_t batch, abar_value (*build)(abar_net *net, abar_value x))
{
    fixture f = fixture_open(device, 2);
    abar_value x = abar_input(f.net, 3, (int64_t[]){3, side, side});
    abar_softmax_cross_entropy(f.net, build(f.net, x), 0.0);
    OK(f.ctx, compile(&f, batch, true));
    return f;
}

/* One training step's loss and every gradient, from the same weights on the same batch. */
static void check_cpu(int64_t side, int64_t batch, abar_value (*build)(abar_net *net, abar_value x))
{
    fixture ref = open_net("ref", side, batch, build), cpu = open_net("cpu", side, batch, build);
    for (int p = 0; p < abar_net_param_count(ref.net); p++) {
        const abar_tensor *from = &abar_net_param(cpu.net, p)->value;
        for (int64_t i = 0; i < abar_tensor_count(from); i++) store(&abar_net_param(ref.net, p)->value, i, load(from, i));
    }
    fill_batch(ref.net, 9, 10);
    fill_batch(cpu.net, 9, 10);
    double expected = forward(&ref, true), loss = forward(&cpu, true);
    assert_true(fabs(loss - expected) <= 1e-5 * expected);
    OK(ref.ctx, abar_net_backward(ref.net, false, NULL));
    OK(cpu.ctx, abar_net_backward(cpu.net, false, NULL));
    for (int p = 0; p < abar_net_param_count(ref.net); p++) {
        double d = distance(&abar_net_param(cpu.net, p)->grad, &abar_net_param(ref.net, p)->grad);
        if (!(d <= 1e-4)) fail_msg("%s: gradients differ by %.2e", abar_net_param(ref.net, p)->name, d);
    }
    fixture_close(&ref);
    fixture_close(&cpu);
}

static void densenet_on_cpu_matches_ref(void **state)
{
    (void)state;
    check_cpu(16, 16, small_densenet);
    check_cpu(16, 5, small_densenet);
}

static void bottleneck_resnet_on_cpu_matches_ref(void **state)
{
    (void)state;
    check_cpu(64, 8, small_resnet);
    check_cpu(49, 5, small_resnet);
}

/* What a backward pass reads again, floats a sample: of each layer its input, that normalised, and its bottleneck twice; of
 * each transition its input twice and what it halves. */
static int64_t densenet121_keeps(void)
{
    const int64_t layers[4] = {6, 12, 24, 16}, growth = 32;
    int64_t channels = 64, pixels = 32 * 32, floats = 3 * pixels;
    for (int block = 0; block < 4; block++) {
        for (int64_t i = 0; i < layers[block]; i++, channels += growth) floats += 2 * (channels + 4 * growth) * pixels;
        floats += 2 * channels * pixels;
        channels /= 2;
        pixels /= 4;
    }
    return floats;
}

/* Gradients and joins come and go: the arena holds little more than what is kept. */
static void densenet_of_many_readers_keeps_its_memory_in_bounds(void **state)
{
    (void)state;
    const int64_t batch = 16;
    fixture f = fixture_open("cpu", 1);
    const abar_model *model = abar_model_find("densenet121");
    abar_value x = abar_input(f.net, 3, model->input);
    abar_softmax_cross_entropy(f.net, model->build(model, f.net, x, 10, NULL), 0.0);
    abar_compile_config config = {.size = sizeof config, .batch = batch, .training = true, .plan_only = true};
    OK(f.ctx, abar_net_compile(f.net, f.dev, &config));
    const double kept = (double)(densenet121_keeps() * batch) * sizeof(float),
                 arena = (double)abar_net_memory_plan(f.net).arena;
    if (!(arena <= 1.1 * kept)) fail_msg("an arena of %.0f MB, though %.0f MB are kept", 1e-6 * arena, 1e-6 * kept);
    fixture_close(&f);
}

static void densenet_of_too_small_an_image_is_refused(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_value x = abar_input(f.net, 3, (int64_t[]){3, 4, 4});
    abar_softmax_cross_entropy(f.net, small_densenet(f.net, x), 0.0);
    assert_true(compile(&f, 2, true) < 0);
    assert_non_null(strstr(abar_context_error(f.ctx), "does not fit"));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(densenet_on_cpu_matches_ref),
        cmocka_unit_test(bottleneck_resnet_on_cpu_matches_ref),
        cmocka_unit_test(densenet_of_many_readers_keeps_its_memory_in_bounds),
        cmocka_unit_test(densenet_of_too_small_an_image_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
