/* Twenty steps from PyTorch's weights on PyTorch's batches: losses, first gradients, running statistics and logits must be
 * PyTorch's (tests/oracle/README.md). The reference needs up to a second for a step of the residual nets, so that only their
 * first steps are taken unless ABAR_TEST_FULL is set. */
#include "net/models/models.h"
#include "train_support.h"
#include "repeated.h"

#include <cjson/cJSON.h>
#include <math.h>

#define STEPS 20

typedef struct golden {
    fixture *f;
    abar__safetensors *file;
    abar_dataset_info info;
    int64_t batches, samples;
    const uint8_t *images; /* NULL: a text */
    int32_t *tokens, *labels;
    int64_t length; /* text: tokens a sample */
    abar_setup *setup;
    abar_device *dev;
    abar_net *net;
    abar_optim *optim;
    abar__stepper stepper;
} golden;

static abar_value build_resnet8(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)model;
    (void)config;
    return abar__resnet_cifar(net, x, 1, 16, classes);
}

static abar_value build_wrn16(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)model;
    (void)config;
    return abar__wrn(net, x, 2, 4, 2, classes);
}

/* Members of a family that are too small to be listed; they are set up as one that is. */
static const struct {
    abar_model model;
    const char *listed;
} small[] = {
    {{.name = "resnet8", .summary = "", .input = {3, 32, 32}, .classes = 10, .build = build_resnet8}, "resnet20"},
    {{.name = "wrn16", .summary = "", .input = {3, 16, 16}, .classes = 10, .build = build_wrn16}, "wrn28-10"},
};

/* Members that options make. */
static const struct {
    const char *name, *listed, *options;
} variants[] = {
    {"mlp", "mlp", "widths=20-16-10"},
    {"densenet", "densenet121", "layers=2-3-2-2 growth=3"},
    {"bottleneck", "resnet50", "blocks=1-2-1-1 width=4"},
    {"deit", "deit-tiny", "patch=4 width=24 depth=2 heads=3"},
    {"swin", "swin-tiny", "patch=2 width=8 depths=2-2 heads=2-4 window=3"},
    {"gpt_char", "gpt-char", "layers=2 heads=2 width=16 context=20 vocabulary=13 drop=0 attention-drop=0"},
    {"gpt2", "gpt2", "layers=1 heads=3 width=12 context=9 vocabulary=11"},
};

static int small_member(const char *name)
{
    for (int i = 0; i < (int)(sizeof small / sizeof *small); i++)
        if (strcmp(name, small[i].model.name) == 0) return i;
    return -1;
}

/* ---- reading the file ----------------------------------------------------------------------------------------- */

static abar_tensor tensor(const golden *g, const char *prefix, const char *name)
{
    char full[256];
    abar_tensor t;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (!abar__safetensors_find(g->file, full, &t)) fail_msg("%s is not in the golden file", full);
    return t;
}

/* The file gives no alignment. */
static double f64_at(const abar_tensor *t, int64_t i)
{
    double v;
    assert_int_equal(t->dtype, ABAR_F64);
    memcpy(&v, (const char *)t->data + i * 8, sizeof v);
    return v;
}

static double value_at(const abar_tensor *t, int64_t i)
{
    if (t->dtype == ABAR_F64) return ((const double *)t->data)[i];
    return (double)((const float *)t->data)[i];
}

static cJSON *metadata(const golden *g, const char *key)
{
    const char *text = abar__safetensors_metadata(g->file, key);
    cJSON *json = cJSON_Parse(text ? text : "");
    if (!json) fail_msg("no metadata %s", key);
    return json;
}

static double number(const cJSON *object, const char *name) { return cJSON_GetObjectItem(object, name)->valuedouble; }

/* Aligned. */
static int32_t *copy_integers(const golden *g, const char *name)
{
    abar_tensor t = tensor(g, name, "");
    assert_int_equal(t.dtype, ABAR_I32);
    int32_t *copy = malloc(abar_tensor_bytes(&t));
    memcpy(copy, t.data, abar_tensor_bytes(&t));
    return copy;
}

static void read_text(golden *g, const abar_tensor *tokens)
{
    cJSON *model = metadata(g, "model");
    g->batches = tokens->dim[0];
    g->samples = tokens->dim[1];
    g->length = tokens->dim[2];
    g->tokens = copy_integers(g, "tokens");
    g->info = (abar_dataset_info){.name = "golden", .text = true, .classes = (int64_t)number(model, "vocabulary")};
    cJSON_Delete(model);
}

static void read_images(golden *g)
{
    cJSON *data = metadata(g, "data");
    abar_tensor images = tensor(g, "images", "");
    g->batches = images.dim[0];
    g->samples = images.dim[1];
    g->info = (abar_dataset_info){
        .name = "golden", .channels = images.dim[2], .height = images.dim[3], .width = images.dim[4], .classes = 10};
    for (int c = 0; c < images.dim[2]; c++) {
        g->info.mean[c] = cJSON_GetArrayItem(cJSON_GetObjectItem(data, "mean"), c)->valuedouble;
        g->info.std[c] = cJSON_GetArrayItem(cJSON_GetObjectItem(data, "std"), c)->valuedouble;
    }
    g->images = images.data;
    cJSON_Delete(data);
}

static void read_data(golden *g)
{
    abar_tensor tokens;
    if (abar__safetensors_find(g->file, "tokens", &tokens))
        read_text(g, &tokens);
    else
        read_images(g);
    g->labels = copy_integers(g, "labels");
}

/* ---- a run ---------------------------------------------------------------------------------------------------- */

static void open_golden(golden *g, fixture *f, const char *name)
{
    char path[PATH_MAX_TEST];
    *g = (golden){.f = f};
    snprintf(path, sizeof path, ABAR_TEST_DATA "/golden/train_%s.safetensors", name);
    need(f, abar__safetensors_open(f->ctx, path, &g->file));
    read_data(g);
}

static void close_golden(golden *g)
{
    abar__safetensors_close(g->file);
    free(g->tokens);
    free(g->labels);
}

static void apply_settings(golden *g, const char *run)
{
    cJSON *settings = metadata(g, run), *betas = cJSON_GetObjectItem(settings, "betas");
    abar_train_config *train = &g->setup->train;
    train->lr = number(settings, "lr");
    train->weight_decay = number(settings, "weight_decay");
    for (int i = 0; i < cJSON_GetArraySize(betas); i++) { /* recipes of texts have others */
        char text[32];
        snprintf(text, sizeof text, "%.17g", cJSON_GetArrayItem(betas, i)->valuedouble);
        set(g->f, g->setup, i == 0 ? "beta1" : "beta2", text);
    }
    if (!betas) set(g->f, g->setup, "decay", "coupled");
    if (cJSON_IsTrue(cJSON_GetObjectItem(settings, "nesterov"))) set(g->f, g->setup, "nesterov", "true");
    cJSON_Delete(settings);
}

static void make_member(golden *g, const char *name, const char *optim)
{
    fixture *f = g->f;
    const int member = small_member(name);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (strcmp(name, variants[i].name) == 0) {
            g->setup = make_setup(f, variants[i].listed, optim, variants[i].options);
            return;
        }
    need(f, abar_setup_create(f->ctx, member >= 0 ? small[member].listed : name, "synthetic", optim, &g->setup));
    assert_true(member < 0 || g->setup->model->config_size == 0);
    if (member >= 0) g->setup->model = &small[member].model;
}

/* As abar__net_build does it, but a text may be shorter than the context. */
static void build_text_net(golden *g)
{
    const abar_model *model = g->setup->model;
    abar_compile_config config = {.size = sizeof config, .batch = g->samples, .training = true};
    need(g->f, abar_net_create(g->f->ctx, &g->net));
    abar_value x = abar_input_tokens(g->net, g->length);
    abar_softmax_cross_entropy(g->net, model->build(model, g->net, x, g->info.classes, g->setup->model_config), 0.0);
    need(g->f, abar_net_compile(g->net, g->dev, &config));
}

static void start(golden *g, const char *name, const char *run, const char *device)
{
    fixture *f = g->f;
    make_member(g, name, strncmp(run, "sgd", 3) == 0 ? "sgd" : "adamw");
    set(f, g->setup, "device", device);
    set(f, g->setup, "threads", "1");
    set(f, g->setup, "decay-all", "true");
    set(f, g->setup, "label-smoothing", "0");
    apply_settings(g, run);
    abar__net_request request = {.batch = g->samples, .training = true};
    need(f, abar__device_open(f->ctx, g->setup, &g->dev));
    if (g->info.text)
        build_text_net(g);
    else
        need(f, abar__net_build(f->ctx, g->setup, &g->info, g->dev, &request, &g->net));
    for (int i = 0; i < abar_net_param_count(g->net); i++) {
        const abar_param *p = abar_net_param(g->net, i);
        abar_tensor w = tensor(g, "w.", p->name);
        need(f, abar_tensor_copy(f->ctx, &p->value, &w));
    }
    need(f, abar__optim_build(f->ctx, g->setup, g->dev, g->net, NULL, &g->optim));
    g->stepper = (abar__stepper){
        .ctx = f->ctx, .net = g->net, .optim = g->optim, .info = &g->info, .micro = g->samples, .accumulate = 1};
}

static void finish(golden *g)
{
    abar_optim_destroy(g->optim);
    abar_net_destroy(g->net);
    abar_device_close(g->dev);
    abar_setup_destroy(g->f->ctx, g->setup);
}

static abar_batch batch_of(const golden *g, int64_t k)
{
    const int64_t b = k % g->batches, image = g->info.channels * g->info.height * g->info.width;
    if (g->info.text)
        return (abar_batch){.size = sizeof(abar_batch),
                            .tokens = g->tokens + b * g->samples * g->length,
                            .labels = g->labels + b * g->samples * g->length,
                            .count = g->samples};
    return (abar_batch){.size = sizeof(abar_batch),
                        .images = g->images + b * g->samples * image,
                        .labels = g->labels + b * g->samples,
                        .count = g->samples};
}

static void check_gradients(const golden *g, double tolerance)
{
    for (int i = 0; i < abar_net_param_count(g->net); i++) {
        const abar_param *p = abar_net_param(g->net, i);
        int64_t n = abar_tensor_count(&p->grad);
        abar_tensor full, want_sum = tensor(g, "grad_sum.", p->name), want_squares = tensor(g, "grad_sumsq.", p->name);
        double sum = 0.0, squares = 0.0, difference = 0.0, size = f64_at(&want_squares, 0);
        char name[256];
        snprintf(name, sizeof name, "grad.%s", p->name);
        bool have = abar__safetensors_find(g->file, name, &full);
        for (int64_t j = 0; j < n; j++) {
            double v = value_at(&p->grad, j), d = have ? v - f64_at(&full, j) : 0.0;
            sum += v;
            squares += v * v;
            difference += d * d;
        }
        if (!(fabs(squares - size) <= 2.0 * tolerance * size) || !(sqrt(difference) <= tolerance * sqrt(size)) ||
            !(fabs(sum - f64_at(&want_sum, 0)) <= tolerance * sqrt((double)n * size)))
            fail_msg("%s: the gradient is off by %.2e of its norm", p->name, sqrt(difference / size));
    }
}

/* Takes the steps; every loss within tolerance, relative. */
static void check_losses(golden *g, const char *run, int64_t steps, double tolerance, double gradient_tolerance)
{
    abar_tensor want = tensor(g, "loss.", run);
    for (int64_t k = 0; k < steps; k++) {
        abar_batch batch = batch_of(g, k);
        abar__step_result r;
        need(g->f, abar__stepper_run(&g->stepper, &batch, k, g->setup->train.lr, &r));
        assert_false(r.skipped);
        double expected = f64_at(&want, k);
        if (!(fabs(r.loss.loss - expected) <= tolerance * fabs(expected)))
            fail_msg("%s: loss of step %d is %.12g, expected %.12g", run, (int)k, r.loss.loss, expected);
        if (k == 0) check_gradients(g, gradient_tolerance);
    }
}

/* Running statistics and evaluation logits after a run. */
static void check_final(golden *g, const char *suffix, double running_tolerance, double logit_tolerance)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "running%s.", suffix);
    for (int i = 0; i < abar_net_tensor_count(g->net); i++) {
        const char *name;
        abar_tensor got;
        abar_net_tensor(g->net, i, &name, &got);
        if (strstr(name, "num_batches_tracked")) assert_int_equal(*(int64_t *)got.data, STEPS);
        if (!strstr(name, "running_")) continue;
        abar_tensor want = tensor(g, prefix, name);
        for (int64_t j = 0; j < abar_tensor_count(&got); j++) {
            double w = f64_at(&want, j);
            assert_true(fabs(value_at(&got, j) - w) <= running_tolerance * (fabs(w) + 0.1));
        }
    }
    abar_batch batch = batch_of(g, 0);
    abar_loss loss;
    need(g->f, abar__stepper_infer(&g->stepper, &batch, &loss));
    abar_tensor logits = abar_net_output(g->net), want = tensor(g, "logits0", suffix);
    assert_int_equal(logits.layout, ABAR_LAYOUT_STRIDED);
    for (int64_t j = 0; j < abar_tensor_count(&logits); j++)
        assert_true(fabs(value_at(&logits, j) - f64_at(&want, j)) <= logit_tolerance);
}

static void check_ref(void **state, const char *name)
{
    static const char *const runs[] = {"sgd", "sgd_nesterov", "sgd_small", "adamw", "adamw_small"};
    static const int64_t first_steps[] = {4, 2, 0, 2, 0};
    bool full = small_member(name) < 0 || getenv("ABAR_TEST_FULL");
    golden g;
    if (is_repeated()) skip();
    open_golden(&g, *state, name);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        start(&g, name, runs[i], "ref");
        check_losses(&g, runs[i], full ? STEPS : first_steps[i], 1e-7, 1e-9);
        if (full && strcmp(runs[i], "sgd") == 0) check_final(&g, "", 1e-7, 1e-6);
        if (full && strcmp(runs[i], "sgd_small") == 0) check_final(&g, "_small", 1e-9, 1e-8);
        finish(&g);
    }
    close_golden(&g);
}

static void check_cpu(void **state, const char *name)
{
    static const char *const runs[] = {"sgd_small", "adamw_small"};
    golden g;
    open_golden(&g, *state, name);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        start(&g, name, runs[i], "cpu");
        check_losses(&g, runs[i], STEPS, 1e-4, 1e-4);
        if (i == 0) check_final(&g, "_small", 1e-4, 1e-3);
        finish(&g);
    }
    close_golden(&g);
}

static void training_of_mlp_on_ref_is_pytorchs(void **state) { check_ref(state, "mlp"); }
static void training_of_lenet5_on_ref_is_pytorchs(void **state) { check_ref(state, "lenet5"); }
static void training_of_densenet_on_ref_is_pytorchs(void **state) { check_ref(state, "densenet"); }
static void training_of_bottleneck_on_ref_is_pytorchs(void **state) { check_ref(state, "bottleneck"); }
static void training_of_resnet8_on_ref_is_pytorchs(void **state) { check_ref(state, "resnet8"); }
static void training_of_wrn16_on_ref_is_pytorchs(void **state) { check_ref(state, "wrn16"); }
static void training_of_deit_on_ref_is_pytorchs(void **state) { check_ref(state, "deit"); }
static void training_of_swin_on_ref_is_pytorchs(void **state) { check_ref(state, "swin"); }
static void training_of_gpt_char_on_ref_is_pytorchs(void **state) { check_ref(state, "gpt_char"); }
static void training_of_gpt2_on_ref_is_pytorchs(void **state) { check_ref(state, "gpt2"); }
static void training_of_mlp_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "mlp"); }
static void training_of_lenet5_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "lenet5"); }
static void training_of_densenet_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "densenet"); }
static void training_of_bottleneck_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "bottleneck"); }
static void training_of_resnet8_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "resnet8"); }
static void training_of_wrn16_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "wrn16"); }

static void training_of_deit_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "deit"); }
static void training_of_swin_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "swin"); }
static void training_of_gpt_char_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "gpt_char"); }
static void training_of_gpt2_on_cpu_is_close_to_pytorchs(void **state) { check_cpu(state, "gpt2"); }

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(training_of_mlp_on_ref_is_pytorchs),
        with_fixture(training_of_lenet5_on_ref_is_pytorchs),
        with_fixture(training_of_densenet_on_ref_is_pytorchs),
        with_fixture(training_of_bottleneck_on_ref_is_pytorchs),
        with_fixture(training_of_resnet8_on_ref_is_pytorchs),
        with_fixture(training_of_wrn16_on_ref_is_pytorchs),
        with_fixture(training_of_deit_on_ref_is_pytorchs),
        with_fixture(training_of_swin_on_ref_is_pytorchs),
        with_fixture(training_of_gpt_char_on_ref_is_pytorchs),
        with_fixture(training_of_gpt2_on_ref_is_pytorchs),
        with_fixture(training_of_mlp_on_cpu_is_close_to_pytorchs),
        with_fixture(training_of_lenet5_on_cpu_is_close_to_pytorchs),
        with_fixture(training_of_densenet_on_cpu_is_close_to_pytorchs),
        with_fixture(training_of_bottleneck_on_cpu_is_close_to_pytorchs),
        with_fixture(training_of_resnet8_on_cpu_is_close_to_pytorchs),
        with_fixture(training_of_wrn16_on_cpu_is_close_to_pytorchs),
        with_fixture(training_of_deit_on_cpu_is_close_to_pytorchs),
        with_fixture(training_of_swin_on_cpu_is_close_to_pytorchs),
        with_fixture(training_of_gpt_char_on_cpu_is_close_to_pytorchs),
        with_fixture(training_of_gpt2_on_cpu_is_close_to_pytorchs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
