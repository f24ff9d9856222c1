/* Twenty steps of K-BFGS on a network, its second passes included, from the weights and batches of train_mlp.safetensors: the
 * weights must be those of its authors' code, and with abar's corrected average those of the oracle (tests/oracle/README.md).
 */
#include "train_support.h"

#include <cjson/cJSON.h>
#include <math.h>

enum { STEPS = 20 };

typedef struct problem {
    fixture *f;
    abar__safetensors *train, *golden;
    abar_dataset_info info;
    int64_t batches, samples;
    const uint8_t *images;
    int32_t *labels;
    abar_setup *setup;
    abar_device *dev;
    abar_net *net;
    abar_optim *optim;
    abar__stepper stepper;
} problem;

static abar_tensor tensor(const abar__safetensors *file, const char *prefix, const char *name)
{
    char full[256];
    abar_tensor t;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (!abar__safetensors_find(file, full, &t)) fail_msg("%s is not in the golden file", full);
    return t;
}

static cJSON *metadata(const abar__safetensors *file, const char *key)
{
    const char *text = abar__safetensors_metadata(file, key);
    cJSON *json = cJSON_Parse(text ? text : "");
    if (!json) fail_msg("no metadata %s", key);
    return json;
}

static void open_files(problem *p, fixture *f)
{
    *p = (problem){.f = f};
    need(f, abar__safetensors_open(f->ctx, ABAR_TEST_DATA "/golden/train_mlp.safetensors", &p->train));
    need(f, abar__safetensors_open(f->ctx, ABAR_TEST_DATA "/golden/kbfgs_authors.safetensors", &p->golden));
    const abar_tensor images = tensor(p->train, "images", ""), labels = tensor(p->train, "labels", "");
    cJSON *data = metadata(p->train, "data");
    p->batches = images.dim[0];
    p->samples = images.dim[1];
    p->images = images.data;
    p->info = (abar_dataset_info){
        .name = "golden", .channels = images.dim[2], .height = images.dim[3], .width = images.dim[4], .classes = 10};
    p->info.mean[0] = cJSON_GetArrayItem(cJSON_GetObjectItem(data, "mean"), 0)->valuedouble;
    p->info.std[0] = cJSON_GetArrayItem(cJSON_GetObjectItem(data, "std"), 0)->valuedouble;
    p->labels = malloc(abar_tensor_bytes(&labels)); /* the file gives no alignment */
    memcpy(p->labels, labels.data, abar_tensor_bytes(&labels));
    cJSON_Delete(data);
}

static void close_files(problem *p)
{
    abar__safetensors_close(p->train);
    abar__safetensors_close(p->golden);
    free(p->labels);
}

static abar_batch batch_of(const problem *p, int64_t k)
{
    const int64_t b = k % p->batches, image = p->info.channels * p->info.height * p->info.width;
    return (abar_batch){.size = sizeof(abar_batch),
                        .images = p->images + b * p->samples * image,
                        .labels = p->labels + b * p->samples,
                        .count = p->samples};
}

static void start(problem *p, const char *device, const char *name, int64_t accumulate)
{
    static const char *const options[] = {"lr", "momentum", "weight-decay", "damping", "stat-decay", "kbfgs-pairs"};
    fixture *f = p->f;
    cJSON *c = metadata(p->golden, name);
    p->setup = make_setup(f, "mlp", "kbfgs", "widths=20-16-10 threads=1 decay-all=true");
    set(f, p->setup, "device", device);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const bool decay = strcmp(options[i], "weight-decay") == 0;
        char text[64];
        snprintf(text, sizeof text, "%.17g", cJSON_GetObjectItem(c, decay ? "weight_decay" : options[i])->valuedouble);
        set(f, p->setup, options[i], text);
    }
    if (cJSON_IsTrue(cJSON_GetObjectItem(c, "first-pass"))) set(f, p->setup, "first-pass", "true");
    cJSON_Delete(c);
    const abar__net_request request = {.batch = p->samples / accumulate, .training = true};
    need(f, abar__device_open(f->ctx, p->setup, &p->dev));
    need(f, abar__net_build(f->ctx, p->setup, &p->info, p->dev, &request, &p->net));
    for (int i = 0; i < abar_net_param_count(p->net); i++) {
        const abar_param *param = abar_net_param(p->net, i);
        const abar_tensor w = tensor(p->train, "w.", param->name);
        need(f, abar_tensor_copy(f->ctx, &param->value, &w));
    }
    need(f, abar__optim_build(f->ctx, p->setup, p->dev, p->net, NULL, &p->optim));
    p->stepper = (abar__stepper){.ctx = f->ctx,
                                 .net = p->net,
                                 .optim = p->optim,
                                 .info = &p->info,
                                 .micro = p->samples / accumulate,
                                 .accumulate = accumulate};
}

static void finish(problem *p)
{
    abar_optim_destroy(p->optim);
    abar_net_destroy(p->net);
    abar_device_close(p->dev);
    abar_setup_destroy(p->f->ctx, p->setup);
}

static abar_status calibrate(void *user, int index, const abar_layer *layer, const abar_layer_forward *forward)
{
    (void)layer;
    return abar_optim_calibrate(user, index, &forward->input);
}

/* What abar__stepper_calibrate does with a loader. */
static void first_pass(problem *p)
{
    const abar_forward_observer observer = {sizeof observer, calibrate, p->optim};
    if (!abar_optim_wants_calibration(p->optim, 0)) return;
    for (int64_t b = 0; b < p->batches; b++) {
        abar_batch batch = batch_of(p, b);
        const abar_tensor input = abar_net_input(p->net);
        const abar_run_config run = {.size = sizeof run, .training = true, .observer = &observer, .hold_statistics = true};
        need(p->f, abar_batch_normalise(p->f->ctx, &p->info, &batch, p->samples, &input));
        need(p->f, abar_net_forward(p->net, &run, NULL));
    }
    need(p->f, abar_optim_end_calibration(p->optim));
}

static void check_weights(const problem *p, const char *name, double tolerance)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.", name);
    for (int i = 0; i < abar_net_param_count(p->net); i++) {
        const abar_param *param = abar_net_param(p->net, i);
        const abar_tensor want = tensor(p->golden, prefix, param->name);
        double off = 0.0, size = 0.0;
        for (int64_t k = 0; k < abar_tensor_count(&want); k++) {
            double w;
            memcpy(&w, (const char *)want.data + k * 8, sizeof w);
            const bool wide = param->value.dtype == ABAR_F64;
            const double found = wide ? ((double *)param->value.data)[k] : (double)((float *)param->value.data)[k];
            off += (found - w) * (found - w);
            size += w * w;
        }
        if (!(sqrt(off) <= tolerance * sqrt(size))) fail_msg("%s: %s is off by %.2e", name, param->name, sqrt(off / size));
    }
}

static void check_case(problem *p, const char *device, const char *name, int64_t accumulate)
{
    start(p, device, name, accumulate);
    first_pass(p);
    for (int64_t k = 0; k < STEPS; k++) {
        const abar_batch batch = batch_of(p, k);
        abar__step_result r;
        need(p->f, abar__stepper_run(&p->stepper, &batch, k, p->setup->train.lr, &r));
        assert_false(r.skipped);
    }
    check_weights(p, name, strcmp(device, "ref") == 0 ? 1e-9 : 1e-4);
    finish(p);
}

static void check_cases(void **state, const char *device)
{
    problem p;
    open_files(&p, *state);
    cJSON *cases = metadata(p.golden, "cases");
    assert_int_equal(cJSON_GetArraySize(cases), 8);
    for (const cJSON *c = cases->child; c; c = c->next) check_case(&p, device, c->valuestring, 1);
    check_case(&p, device, "own", 4);
    cJSON_Delete(cases);
    close_files(&p);
}

static void kbfgs_on_ref_is_its_authors(void **state) { check_cases(state, "ref"); }
static void kbfgs_on_cpu_is_close_to_its_authors(void **state) { check_cases(state, "cpu"); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(kbfgs_on_ref_is_its_authors, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(kbfgs_on_cpu_is_close_to_its_authors, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
