/* From settings to things: the data set, the device, the net with its loss, the optimizer with its decays, the loaders. */
#include "train/train_impl.h"

#include <string.h>

#define CROP_PAD 4

void abar__model_shape(const abar_model *model, abar_dataset_info *out)
{
    out->channels = model->input[0];
    out->height = model->input[1];
    out->width = model->input[2];
    out->classes = model->classes;
}

abar_status abar__data_open(abar_context *ctx, const abar_setup *setup, bool test_only, abar_dataset **out)
{
    const abar_train_config *train = &setup->train;
    abar_dataset_config config = {.size = sizeof config,
                                  .limit_train = test_only ? 1 : train->limit_train,
                                  .limit_test = train->limit_test,
                                  .seed = (uint64_t)train->seed};
    if (strcmp(train->data, "synthetic") == 0) { /* the one set that takes the model's shape */
        abar_dataset_info shape = {0};
        abar__model_shape(setup->model, &shape);
        config.channels = shape.channels;
        config.height = shape.height;
        config.width = shape.width;
        config.classes = shape.classes;
    }
    return abar_dataset_open(ctx, train->data, &config, out);
}

abar_status abar__device_open(abar_context *ctx, const abar_setup *setup, abar_device **out)
{
    abar_device_config config = {
        .size = sizeof config, .threads = (int)setup->train.threads, .deterministic = setup->train.deterministic};
    return abar_device_open(ctx, setup->train.device, &config, out);
}

abar_status abar__net_build(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *info, abar_device *dev,
                            const abar__net_wish *wish, abar_net **out)
{
    abar_net *net;
    ABAR_TRY(abar_net_create(ctx, &net));
    abar_value x = abar_input(net, 3, (int64_t[]){info->channels, info->height, info->width});
    x = setup->model->build(setup->model, net, x, info->classes, setup->model_config);
    abar_softmax_cross_entropy(net, x, setup->train.label_smoothing);
    abar_compile_config config = {.size = sizeof config,
                                  .batch = wish->batch,
                                  .training = wish->training,
                                  .plan_only = wish->plan_only,
                                  .seed = (uint64_t)setup->train.seed};
    abar_status status = abar_net_compile(net, dev, &config);
    if (status < 0) {
        abar_net_destroy(net);
        return status;
    }
    *out = net;
    return ABAR_OK;
}

abar_status abar__optim_build(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                              abar_optim **out)
{
    int n = abar_net_param_count(net);
    size_t bytes = (size_t)n * sizeof(abar_optim_param);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    abar_optim_param *params = memory;
    for (int i = 0; i < n; i++) {
        const abar_param *p = abar_net_param(net, i);
        bool decays = setup->train.decay_all || p->kind == ABAR_PARAM_WEIGHT;
        params[i] = (abar_optim_param){.name = p->name,
                                       .value = p->value,
                                       .grad = p->grad,
                                       .lr_scale = 1.0,
                                       .weight_decay = decays ? setup->train.weight_decay : 0.0};
    }
    abar_status status = abar_optim_create(dev, setup->rule->name, setup->rule_config, params, n, out);
    abar__free(ctx, memory, bytes);
    return status;
}

abar_loader_config abar__loader_wish(const abar_setup *setup, bool test)
{
    const abar_train_config *train = &setup->train;
    return (abar_loader_config){.size = sizeof(abar_loader_config),
                                .test = test,
                                .batch = test ? train->batch / train->accumulate : train->batch,
                                .seed = (uint64_t)train->seed,
                                .threads = (int)train->workers,
                                .crop_pad = train->augment && !test ? CROP_PAD : 0,
                                .flip = train->augment && !test};
}
