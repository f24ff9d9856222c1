/* The engine's side of test_torch_engine.py: trains a CIFAR ResNet with one block a stage, or where WIDTH is 0 the vision
 * transformer that the settings describe, on weights and batches from a file.
 *
 *     engine_run IN OUT OPTIM WIDTH STEPS LR [NAME=VALUE...]
 *
 * IN holds "w.PARAMETER", "inputs" (K, N, 3, H, W) float32 and "labels" (K, N) int32; step k takes batch k mod K. OUT receives
 * "losses" (steps) and, from step 0, "momentum.PARAMETER": where nothing decays, the preconditioned gradient. */
#include "net/models/models.h"
#include "train/train_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 10, TENSORS_MAX = 128, NAME_MAX_BYTES = 128 };

typedef struct engine {
    abar_context *ctx;
    abar__safetensors *file;
    abar_model model;
    abar_setup *setup;
    abar_device *dev;
    abar_net *net;
    abar_optim *optim;
    abar_tensor inputs, labels; /* of all batches, in the file */
    int n_kept;
    abar_tensor kept[TENSORS_MAX]; /* copies of the momentum after step 0 */
    char names[TENSORS_MAX][NAME_MAX_BYTES];
} engine;

/* variant: the width of the first stage. */
static abar_value build(const abar_model *model, abar_net *net, abar_value x, int64_t classes, const void *config)
{
    (void)config;
    return abar__resnet_cifar(net, x, 1, model->variant, classes);
}

static abar_status find(const engine *e, const char *prefix, const char *name, abar_tensor *out)
{
    char full[NAME_MAX_BYTES];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (abar__safetensors_find(e->file, full, out)) return ABAR_OK;
    return abar__fail(e->ctx, ABAR_E_NOT_FOUND, "%s is not in the file", full);
}

static abar_status load_weights(const engine *e)
{
    for (int i = 0; i < abar_net_param_count(e->net); i++) {
        const abar_param *p = abar_net_param(e->net, i);
        abar_tensor w;
        ABAR_TRY(find(e, "w.", p->name, &w));
        ABAR_TRY(abar_tensor_copy(e->ctx, &p->value, &w));
    }
    return ABAR_OK;
}

/* The settings NAME=VALUE of the command line. */
static abar_status apply_settings(engine *e, char **settings)
{
    for (; *settings; settings++) {
        char *value = strchr(*settings, '=');
        if (!value) return abar__fail(e->ctx, ABAR_E_ARGUMENT, "%s is not NAME=VALUE", *settings);
        *value = '\0';
        ABAR_TRY(abar_setup_set(e->ctx, e->setup, *settings, value + 1));
    }
    return ABAR_OK;
}

static abar_status start(engine *e, const char *path, const char *optim, int64_t width, const char *lr, char **settings)
{
    ABAR_TRY(abar__safetensors_open(e->ctx, path, &e->file));
    ABAR_TRY(find(e, "inputs", "", &e->inputs));
    ABAR_TRY(find(e, "labels", "", &e->labels));
    const int64_t *dim = e->inputs.dim; /* (K, N, C, H, W) */
    ABAR_TRY(abar_setup_create(e->ctx, width ? "resnet20" : "deit-tiny", "synthetic", optim, &e->setup));
    e->model = *e->setup->model;
    if (width) {
        e->model.variant = width;
        e->model.build = build;
        e->setup->model = &e->model;
    }
    ABAR_TRY(abar_setup_set(e->ctx, e->setup, "lr", lr));
    ABAR_TRY(apply_settings(e, settings));
    ABAR_TRY(abar__device_open(e->ctx, e->setup, &e->dev));
    const abar_dataset_info info = {.channels = dim[2], .height = dim[3], .width = dim[4], .classes = CLASSES};
    const abar__net_request request = {.batch = dim[1], .training = true};
    ABAR_TRY(abar__net_build(e->ctx, e->setup, &info, e->dev, &request, &e->net));
    ABAR_TRY(load_weights(e));
    return abar__optim_build(e->ctx, e->setup, e->dev, e->net, NULL, &e->optim);
}

/* Batch k mod K into the net. */
static abar_status fill(const engine *e, int64_t k)
{
    const int64_t b = k % e->inputs.dim[0];
    abar_tensor input = abar_net_input(e->net), target = abar_net_target(e->net);
    abar_tensor x = abar_tensor_wrap(NULL, NULL, ABAR_F32, 4, e->inputs.dim + 1);
    abar_tensor y = abar_tensor_wrap(NULL, NULL, ABAR_I32, 1, e->labels.dim + 1);
    x.data = (char *)e->inputs.data + (size_t)b * abar_tensor_bytes(&x);
    y.data = (char *)e->labels.data + (size_t)b * abar_tensor_bytes(&y);
    ABAR_TRY(abar_tensor_copy(e->ctx, &input, &x));
    return abar_tensor_copy(e->ctx, &target, &y);
}

/* Copies the momentum of every parameter. */
static abar_status keep(void *user, const char *name, const abar_tensor *tensor)
{
    engine *e = user;
    if (strncmp(name, "momentum.", 9) != 0) return ABAR_OK;
    if (e->n_kept == TENSORS_MAX) return abar__fail(e->ctx, ABAR_E_ARGUMENT, "more than %d parameters", TENSORS_MAX);
    abar_tensor *copy = &e->kept[e->n_kept];
    *copy = abar_tensor_wrap(NULL, NULL, ABAR_F32, tensor->ndim, tensor->dim);
    ABAR_TRY(abar__alloc(e->ctx, abar_tensor_bytes(copy), &copy->data));
    snprintf(e->names[e->n_kept++], NAME_MAX_BYTES, "%s", name);
    return abar_tensor_copy(e->ctx, copy, tensor);
}

static abar_status train(engine *e, int64_t steps, double *losses)
{
    const abar__stepper stepper = {.ctx = e->ctx, .net = e->net, .optim = e->optim, .micro = e->inputs.dim[1], .accumulate = 1};
    for (int64_t k = 0; k < steps; k++) {
        abar__step_result r;
        ABAR_TRY(fill(e, k));
        ABAR_TRY(abar__stepper_run(&stepper, NULL, k, e->setup->train.lr, &r));
        losses[k] = r.loss.loss;
        if (k == 0) ABAR_TRY(abar_optim_visit(e->optim, keep, e));
    }
    return ABAR_OK;
}

static abar_status write_results(engine *e, const char *path, int64_t steps, double *losses)
{
    abar__safetensors_writer *w;
    ABAR_TRY(abar__safetensors_writer_create(e->ctx, &w));
    const abar_tensor all = abar_tensor_wrap(NULL, losses, ABAR_F64, 1, &steps);
    abar_status status = abar__safetensors_writer_add(w, "losses", &all);
    for (int i = 0; i < e->n_kept && status >= 0; i++) status = abar__safetensors_writer_add(w, e->names[i], &e->kept[i]);
    if (status >= 0) status = abar__safetensors_writer_write(w, path);
    abar__safetensors_writer_destroy(w);
    return status;
}

static void finish(engine *e)
{
    for (int i = 0; i < e->n_kept; i++) abar__free(e->ctx, e->kept[i].data, abar_tensor_bytes(&e->kept[i]));
    abar_optim_destroy(e->optim);
    abar_net_destroy(e->net);
    abar_device_close(e->dev);
    abar_setup_destroy(e->ctx, e->setup);
    abar__safetensors_close(e->file);
}

int main(int argc, char **argv)
{
    engine e = {0};
    double losses[1000];
    if (argc < 7 || atoi(argv[5]) < 1 || atoi(argv[5]) > 1000) {
        fprintf(stderr, "usage: engine_run IN OUT OPTIM WIDTH STEPS LR [NAME=VALUE...], at most 1000 steps\n");
        return 2;
    }
    if (abar_context_create(NULL, &e.ctx) < 0) return 1;
    const int64_t steps = atoi(argv[5]);
    abar_status status = start(&e, argv[1], argv[3], atoi(argv[4]), argv[6], argv + 7);
    if (status >= 0) status = train(&e, steps, losses);
    if (status >= 0) status = write_results(&e, argv[2], steps, losses);
    if (status < 0) fprintf(stderr, "engine_run: %s\n", abar_context_error(e.ctx));
    finish(&e);
    abar_context_destroy(e.ctx);
    return status < 0;
}
