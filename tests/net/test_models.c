/* Models: exact parameter counts and tensor names; gradients against central differences in ref; cpu against ref. */
#include "decisions.h"

#include <stdio.h>

/* With options "name=value name=value ..."; returns the class count. */
static int64_t build_with(fixture *f, const char *name, const char *options)
{
    const abar_model *model = abar_model_find(name);
    assert_non_null(model);
    void *config = calloc(1, model->config_size + 1);
    char text[256], *rest = text;
    if (model->options) abar_options_default(model->options, config);
    snprintf(text, sizeof text, "%s", options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        OK(f->ctx, abar_options_set(f->ctx, model->options, config, word, value + 1));
    }
    int64_t input[3], classes;
    abar_model_shape(model, config, input, &classes);
    abar_value x = abar_model_input(model, f->net, input);
    abar_softmax_cross_entropy(f->net, model->build(model, f->net, x, classes, config), 0.0);
    free(config);
    return classes;
}

static int64_t build_named(fixture *f, const char *name) { return build_with(f, name, ""); }

static void assert_parameters(const char *name, const char *options, int64_t expected)
{
    fixture f = fixture_open("ref", 1);
    build_with(&f, name, options);
    OK(f.ctx, abar_net_compile(f.net, f.dev,
                               &(abar_compile_config){.size = sizeof(abar_compile_config), .batch = 1, .plan_only = true}));
    int64_t n = 0;
    for (int p = 0; p < abar_net_param_count(f.net); p++) n += abar_tensor_count(&abar_net_param(f.net, p)->value);
    if (n != expected) fail_msg("%s %s has %lld parameters", name, options, (long long)n);
    fixture_close(&f);
}

static void models_have_exact_parameter_counts(void **state)
{
    (void)state;
    const struct {
        const char *name;
        int64_t parameters;
    } table[] = {{"mlp", 669706},          {"lenet5", 61706},       {"resnet20", 269722},    {"resnet32", 464154},
                 {"resnet44", 658586},     {"resnet56", 853018},    {"resnet110", 1727962},  {"wrn28-10", 36479194},
                 {"densenet121", 6956298}, {"resnet50", 25557032},  {"resnet101", 44549160}, {"deit-tiny", 5717416},
                 {"deit-small", 22050664}, {"swin-tiny", 28288354}, {"gpt2", 124439808},     {"gpt-char", 10745088}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) assert_parameters(table[i].name, "", table[i].parameters);
}

/* A 3x3 convolution of 3 to 64 channels has 7,680 weights less than a 7x7 one; 64 pixels and 200 classes are Tiny ImageNet's.
 */
static void models_of_small_images_have_exact_parameter_counts(void **state)
{
    (void)state;
    assert_parameters("resnet50", "stem=large", 25557032);
    assert_parameters("resnet50", "stem=small", 25557032 - 7680);
    assert_parameters("resnet101", "stem=small", 44549160 - 7680);
    assert_parameters("resnet50", "stem=small classes=200 image-size=64", 23910152);
    assert_parameters("deit-tiny", "patch=4 classes=200 image-size=64", 5436296);
    assert_parameters("swin-tiny", "patch=2 window=4 classes=200 image-size=64", 27653138);
}

/* The small stem keeps the image's size: the first stage has it, the last an eighth. */
static void small_stem_keeps_the_size_of_the_image(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    build_with(&f, "resnet50", "stem=small blocks=1-1-1-1 width=2 image-size=16");
    OK(f.ctx, abar_net_compile(f.net, f.dev,
                               &(abar_compile_config){.size = sizeof(abar_compile_config), .batch = 1, .plan_only = true}));
    const abar_node_info *first = abar_net_node(f.net, 0);
    assert_string_equal(first->name, "conv1");
    assert_int_equal(first->dim[2], 16);
    int64_t last = 0;
    for (int i = 0; i < abar_net_node_count(f.net); i++) {
        const abar_node_info *node = abar_net_node(f.net, i);
        assert_string_not_equal(node->operation, "max_pool");
        if (strcmp(node->name, "layer4.0.conv3") == 0) last = node->dim[2];
    }
    assert_int_equal(last, 2);
    fixture_close(&f);
}

/* "name dtype [shape]" per line, as PyTorch's state_dict lists them. */
static void models_tensors_are_those_of_pytorch(void **state)
{
    (void)state;
    const char *const names[] = {"mlp",       "lenet5",    "resnet20",   "resnet110", "wrn28-10", "densenet121", "resnet50",
                                 "resnet101", "deit-tiny", "deit-small", "swin-tiny", "gpt2",     "gpt-char"};
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

/* Every parameter tensor: some elements, (loss(w+h) - loss(w-h)) / 2h against backward. */
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
        /* a gradient that is zero up to rounding (of a bias in front of batch norm) has no relative error */
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

/* Moves every parameter away from its initial value, so that attention is not uniform and norms and biases matter. */
static void enliven(const fixture *f)
{
    for (int p = 0; p < abar_net_param_count(f->net); p++) {
        const abar_param *param = abar_net_param(f->net, p);
        const int64_t count = abar_tensor_count(&param->value), row = count / param->value.dim[0];
        const double spread = param->kind == ABAR_PARAM_WEIGHT ? 2.0 / sqrt((double)row) : 0.5;
        for (int64_t i = 0; i < count; i++) {
            double u = 2.0 * abar__uniform(abar__random(11, ABAR_DRAW_SYNTHETIC, (uint32_t)p, (uint64_t)i).u[0]) - 1.0;
            store(&param->value, i, spread * u + (param->kind == ABAR_PARAM_NORM ? load(&param->value, i) : 0.0));
        }
    }
}

/* Windows that cover the whole grid, that are shifted, and stages that merge; dropout of every kind. */
static void models_gradients_of_transformers_match_differences_in_ref(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"deit-tiny", "image-size=12 classes=5 width=12 heads=3 depth=1"},
        {"deit-tiny", "image-size=8 classes=5 width=6 heads=1 depth=2 drop=0.2 attention-drop=0.3 drop-path=0.4"},
        {"swin-tiny", "image-size=16 classes=5 patch=2 width=4 depths=2-2-1 heads=1-2-2 window=4"},
        {"swin-tiny", "image-size=8 classes=5 patch=2 width=4 depths=2 heads=2 window=2 attention-drop=0.3 drop-path=0.5"},
        {"gpt-char", "layers=1 heads=2 width=8 context=7 vocabulary=6"},
        {"gpt2", "layers=2 heads=3 width=6 context=5 vocabulary=9 drop=0.2 attention-drop=0.2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f = fixture_open("ref", 1);
        const int64_t classes = build_with(&f, cases[i][0], cases[i][1]);
        OK(f.ctx, compile(&f, 3, true));
        enliven(&f);
        check_gradients(&f, classes);
        fixture_close(&f);
    }
}

static void models_refuse_shapes_that_do_not_fit(void **state)
{
    (void)state;
    const char *const cases[][3] = {
        {"densenet121", "layers=6-12-x", "--layers 6-12-x"},
        {"densenet121", "image-size=4", "does not fit"},
        {"resnet101", "blocks=3-0", "--blocks 3-0"},
        {"deit-tiny", "image-size=30 patch=4", "--patch 4"},
        {"deit-tiny", "width=10 heads=3", "heads"},
        {"swin-tiny", "image-size=32 window=7", "--window 7"},
        {"swin-tiny", "image-size=20 patch=4 window=5 depths=2-2 heads=3-3", "merged"},
        {"swin-tiny", "depths=2-2", "--heads 3-6-12-24"},
        {"swin-tiny", "depths=2-x", "--depths 2-x"},
        {"gpt2", "width=10", "heads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f = fixture_open("ref", 1);
        build_with(&f, cases[i][0], cases[i][1]);
        assert_true(compile(&f, 1, false) < 0);
        if (!strstr(abar_context_error(f.ctx), cases[i][2])) fail_msg("%s: %s", cases[i][1], abar_context_error(f.ctx));
        fixture_close(&f);
    }
}

/* Small images have small patches by default; the vocabulary and the classes are the data's. */
static void models_take_the_shape_of_their_data(void **state)
{
    (void)state;
    const struct {
        const char *model, *options, *parameter;
        int64_t dim[4];
    } cases[] = {
        {"resnet50", "classes=7", "fc.weight", {7, 2048}},
        {"resnet50", "blocks=1-1 width=8", "fc.weight", {1000, 64}},
        {"deit-tiny", "image-size=32 classes=7", "pos_embed", {1, 65, 192}},
        {"deit-tiny", "image-size=64", "patch_embed.proj.weight", {192, 3, 4, 4}},
        {"deit-small", "image-size=96 classes=7", "pos_embed", {1, 37, 384}},
        {"deit-small", "image-size=32 patch=8 classes=7", "head.weight", {7, 384}},
        {"swin-tiny", "image-size=32 patch=4 window=4", "layers.1.blocks.1.attn.relative_position_bias_table", {49, 6}},
        {"swin-tiny", "image-size=64", "layers.0.blocks.0.attn.relative_position_bias_table", {49, 3}},
        {"swin-tiny", "image-size=64", "patch_embed.proj.weight", {96, 3, 2, 2}},
        {"swin-tiny", "image-size=32 patch=4 window=4", "layers.2.blocks.1.attn.relative_position_bias_table", {9, 12}},
        {"gpt2", "context=20 vocabulary=30", "transformer.wpe.weight", {20, 768}},
        {"gpt2", "context=20 vocabulary=30", "lm_head.weight", {30, 768}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f = fixture_open("ref", 1);
        build_with(&f, cases[i].model, cases[i].options);
        OK(f.ctx, abar_net_compile(f.net, f.dev,
                                   &(abar_compile_config){.size = sizeof(abar_compile_config), .batch = 1, .plan_only = true}));
        int found = 0;
        for (int t = 0; t < abar_net_tensor_count(f.net); t++) {
            const char *name;
            abar_tensor tensor;
            abar_net_tensor(f.net, t, &name, &tensor);
            if (strcmp(name, cases[i].parameter) != 0) continue;
            found++;
            for (int k = 0; k < tensor.ndim; k++) assert_int_equal(tensor.dim[k], cases[i].dim[k]);
        }
        assert_int_equal(found, 1);
        fixture_close(&f);
    }
}

/* Sums in front of layer norms, with all kinds of readers: two norms and another sum, none besides the norm, the same value
 * twice, and a summand whose layer changes its gradient in place. */
static void build_sums(abar_net *net)
{
    const abar_linear_config wide = {.size = sizeof wide, .out = 6, .bias = true};
    abar_value x = abar_linear(net, abar_input(net, 1, (int64_t[]){5}), "in", &wide);
    abar_value a = abar_add(net, x, abar_relu(net, abar_linear(net, x, "relu", &wide)));
    abar_value b = abar_add(net, abar_layer_norm(net, a, "n1", 1e-5), abar_tanh(net, abar_layer_norm(net, a, "n2", 1e-5)));
    b = abar_linear(net, abar_layer_norm(net, b, "n3", 1e-5), "mid", &wide);
    abar_value c = abar_add(net, a, b);
    abar_value d = abar_add(net, abar_layer_norm(net, c, "n4", 1e-5), c);
    abar_value e = abar_layer_norm(net, abar_add(net, d, d), "n5", 1e-5);
    abar_squared_error(net, abar_linear(net, abar_add(net, e, d), "out", &wide));
}

static void models_gradients_of_sums_and_norms_match_differences(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    build_sums(f.net);
    OK(f.ctx, compile(&f, 3, true));
    check_gradients(&f, 0);
    fixture_close(&f);
}

/* A net with everything else: values read three times, concat, dropout, layer norm, tanh, gelu, groups, average pool. */
static void models_gradients_of_a_tangled_net_match_differences(void **state)
{
    (void)state;
    fixture f = fixture_open("ref", 1);
    abar_net *net = f.net;
    abar_value x = abar_input(net, 3, (int64_t[]){2, 6, 6});
    abar_value a =
        abar_conv2d(net, x, "a", &ABAR_CONFIG(abar_conv2d_config, .out = 4, .kernel = 3, .pad = 1, .groups = 2, .bias = true));
    abar_value b = abar_gelu(net, a);
    abar_value c =
        abar_batch_norm(net, abar_conv2d(net, a, "c", &ABAR_CONFIG(abar_conv2d_config, .out = 4, .kernel = 1)), "cn");
    abar_value d = abar_concat(net, 3, (abar_value[]){a, b, abar_tanh(net, c)});
    d = abar_average_pool(net, abar_add(net, d, d), &ABAR_CONFIG(abar_pool_config, .kernel = 3, .stride = 2, .pad = 1));
    d = abar_flatten(net, abar_dropout(net, d, 0.3));
    d = abar_gelu_tanh(net,
                       abar_layer_norm(net, abar_linear(net, d, "fc", &ABAR_CONFIG(abar_linear_config, .out = 7)), "ln", 1e-5));
    abar_squared_error(net, d);
    OK(f.ctx, compile(&f, 3, true));
    check_gradients(&f, 0);
    fixture_close(&f);
}

/* The largest difference of a gradient after one step on both, relative to its largest element; name: of its parameter. */
static double compare_step(fixture *cpu, fixture *ref, uint64_t seed, int64_t classes, const char **name)
{
    double worst = 0.0;
    fill_batch(cpu->net, seed, classes);
    fill_batch(ref->net, seed, classes);
    const double loss_ref = forward(ref, true), loss_cpu = forward(cpu, true);
    assert_true(fabs(loss_cpu - loss_ref) <= 1e-4 * loss_ref);
    decide_alike(cpu, ref->net, 1e-4);
    OK(ref->ctx, abar_net_backward(ref->net, false, NULL));
    OK(cpu->ctx, abar_net_backward(cpu->net, false, NULL));
    abar_net_commit(ref->net);
    abar_net_commit(cpu->net);
    for (int p = 0; p < abar_net_param_count(ref->net); p++) {
        const double d = distance(&abar_net_param(cpu->net, p)->grad, &abar_net_param(ref->net, p)->grad);
        if (d <= worst) continue;
        worst = d;
        *name = abar_net_param(ref->net, p)->name;
    }
    return worst;
}

static void compare_with_ref(const char *model, const char *options, int64_t batch, int threads)
{
    fixture ref = fixture_open("ref", 1), cpu = fixture_open("cpu", threads);
    const int64_t classes = build_with(&ref, model, options);
    build_with(&cpu, model, options);
    OK(ref.ctx, compile(&ref, batch, true));
    OK(cpu.ctx, compile(&cpu, batch, true));
    /* one starting point, exactly representable in both */
    for (int p = 0; p < abar_net_param_count(ref.net); p++) {
        const abar_tensor *from = &abar_net_param(cpu.net, p)->value, *to = &abar_net_param(ref.net, p)->value;
        for (int64_t i = 0; i < abar_tensor_count(from); i++) store(to, i, load(from, i));
    }
    const char *name = "";
    const double d = compare_step(&cpu, &ref, 9, classes, &name);
    if (!(d <= 1e-4)) fail_msg("%s %s: gradients differ by %.2e", model, name, d);
    for (int i = 0; i < abar_net_tensor_count(ref.net); i++) {
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
    compare_with_ref("lenet5", "", 16, 2);
    compare_with_ref("lenet5", "", 5, 1);
    compare_with_ref("resnet20", "", 4, 2);
    compare_with_ref("mlp", "", 9, 2);
    /* blocks of channels */
    compare_with_ref("densenet121", "image-size=8 layers=2-2 growth=16", 2, 2);
    compare_with_ref("densenet121", "image-size=7 layers=4-3 growth=16", 9, 3); /* with AVX2 planes of uneven size */
    compare_with_ref("densenet121", "image-size=9 layers=3-4 growth=32", 7, 3);
    compare_with_ref("resnet50", "image-size=33 classes=10 blocks=1-2-1 width=16", 2, 2);
    compare_with_ref("resnet50", "image-size=28 classes=10 blocks=1-1 width=32", 9, 3); /* moments from uneven tiles */
    compare_with_ref("deit-tiny", "image-size=32 classes=10 depth=2 drop=0.1 attention-drop=0.1 drop-path=0.5", 3, 2);
    compare_with_ref("swin-tiny", "image-size=56 classes=10 patch=4 window=7 depths=2-2 heads=3-6 width=48 attention-drop=0.1",
                     2, 2);
    compare_with_ref("gpt-char", "layers=2 context=100 drop=0.2 attention-drop=0.2", 2, 2);
    compare_with_ref("gpt2", "layers=1 width=128 heads=4 context=33 vocabulary=100", 3, 1);
}

/* One pass, whose gradients are added to those before where accumulate is set. Returns the gradients of all parameters, one
 * after the other, in memory that the caller frees; count: how many elements. */
static double *gradients_of_a_pass(fixture *f, bool accumulate, int64_t *count)
{
    forward(f, true);
    OK(f->ctx, abar_net_backward(f->net, accumulate, NULL));
    const int params = abar_net_param_count(f->net);
    *count = 0;
    for (int p = 0; p < params; p++) *count += abar_tensor_count(&abar_net_param(f->net, p)->grad);
    double *out = malloc((size_t)*count * sizeof *out), *to = out;
    assert_non_null(out);
    for (int p = 0; p < params; p++) {
        const abar_tensor *grad = &abar_net_param(f->net, p)->grad;
        for (int64_t i = 0; i < abar_tensor_count(grad); i++) *to++ = load(grad, i);
    }
    return out;
}

static void models_gradients_accumulate_over_calls(void **state)
{
    (void)state;
    fixture f = fixture_open("cpu", 2);
    build_named(&f, "lenet5");
    OK(f.ctx, compile(&f, 8, true));
    fill_batch(f.net, 5, 10);
    int64_t n;
    double *once = gradients_of_a_pass(&f, false, &n), *twice = gradients_of_a_pass(&f, true, &n),
           *again = gradients_of_a_pass(&f, false, &n), largest = 0.0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(once[i]));
    for (int64_t i = 0; i < n; i++) /* sums that cancel have fewer digits: the error is relative to the largest */
        if (!(fabs(twice[i] - 2.0 * once[i]) <= 1e-6 * largest)) fail_msg("element %lld differs", (long long)i);
    assert_memory_equal(again, once, (size_t)n * sizeof *once);
    free(once);
    free(twice);
    free(again);
    fixture_close(&f);
}

/* Floats per sample that a backward pass of densenet121 reads again: a layer's input and that normalised, and the same of
 * its bottleneck; after the last layer of a block all features, and those normalised. */
static int64_t densenet_keeps(void)
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

/* Every value of a dense block has two readers: their gradients are short-lived, and the arena is little larger than what
 * must be kept. */
static void models_of_many_readers_keep_their_memory_in_bounds(void **state)
{
    (void)state;
    const int64_t batch = 16;
    fixture f = fixture_open("cpu", 1);
    build_named(&f, "densenet121");
    abar_compile_config config = {.size = sizeof config, .batch = batch, .training = true, .plan_only = true};
    OK(f.ctx, abar_net_compile(f.net, f.dev, &config));
    const double kept = (double)(densenet_keeps() * batch) * sizeof(float), arena = (double)abar_net_memory_plan(f.net)->arena;
    if (!(arena <= 1.1 * kept)) fail_msg("an arena of %.0f MB, though %.0f MB are kept", 1e-6 * arena, 1e-6 * kept);
    fixture_close(&f);
}

/* 2 T T width for scores and sums, for any batch; INT64_MAX where 64 bits are too few. */
static void models_count_the_work_of_absurd_sizes(void **state)
{
    (void)state;
    const int64_t million = 1000000;
    const struct {
        const char *name, *options, *node;
        int64_t batch, multiply_adds;
    } table[] = {{"gpt-char", "layers=1 context=256", "transformer.h.0.attn", 3, 2 * 256 * 256 * 384},
                 {"gpt-char", "layers=1 context=1000000", "transformer.h.0.attn", million, 2 * million * million * 384},
                 {"deit-tiny", "depth=1 image-size=16384 patch=1", "blocks.0.attn", 1, INT64_MAX}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const double batch = (double)table[i].batch, flops = 2.0 * batch * (double)table[i].multiply_adds;
        fixture f = fixture_open("ref", 1);
        build_with(&f, table[i].name, table[i].options);
        OK(f.ctx, abar_net_compile(
                      f.net, f.dev,
                      &(abar_compile_config){
                          .size = sizeof(abar_compile_config), .batch = table[i].batch, .training = true, .plan_only = true}));
        int found = 0;
        for (int k = 0; k < abar_net_node_count(f.net); k++) {
            const abar_node_info node = *abar_net_node(f.net, k);
            if (strcmp(node.name, table[i].node) != 0) continue;
            assert_true(node.multiply_adds == table[i].multiply_adds);
            assert_true(node.forward.flops == flops);
            assert_true(node.backward.flops == 2.0 * flops);
            found++;
        }
        assert_int_equal(found, 1);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_have_exact_parameter_counts),
        cmocka_unit_test(models_of_small_images_have_exact_parameter_counts),
        cmocka_unit_test(small_stem_keeps_the_size_of_the_image),
        cmocka_unit_test(models_tensors_are_those_of_pytorch),
        cmocka_unit_test(models_gradients_match_differences_in_ref),
        cmocka_unit_test(models_gradients_of_transformers_match_differences_in_ref),
        cmocka_unit_test(models_refuse_shapes_that_do_not_fit),
        cmocka_unit_test(models_take_the_shape_of_their_data),
        cmocka_unit_test(models_gradients_of_a_tangled_net_match_differences),
        cmocka_unit_test(models_gradients_of_sums_and_norms_match_differences),
        cmocka_unit_test(models_cpu_matches_ref_in_loss_and_every_gradient),
        cmocka_unit_test(models_gradients_accumulate_over_calls),
        cmocka_unit_test(models_of_many_readers_keep_their_memory_in_bounds),
        cmocka_unit_test(models_count_the_work_of_absurd_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
