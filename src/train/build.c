/* From settings to things: the data set, the device, the net with its loss, the optimizer with its decays, the loaders. */
#include "data/data_impl.h"
#include "optim/optim_impl.h"
#include "train/train_impl.h"

#include <stdlib.h>
#include <string.h>

#define CROP_PAD 4

/* The data set's shape as far as a model decides it. */
static void take_model_shape(const abar_setup *setup, abar_dataset_info *out)
{
    int64_t input[3];
    abar_model_shape(setup->model, setup->model_config, input, &out->classes);
    out->text = setup->model->text;
    if (out->text) return;
    out->channels = input[0];
    out->height = input[1];
    out->width = input[2];
}

/* The one set that takes the model's shape. */
static bool is_synthetic(const abar_setup *setup) { return strcmp(setup->train.data, "synthetic") == 0; }

static abar_dataset_config config_of(const abar_train_config *train)
{
    return (abar_dataset_config){.size = sizeof(abar_dataset_config),
                                 .limit_train = train->limit_train,
                                 .limit_test = train->limit_test,
                                 .seed = (uint64_t)train->seed,
                                 .bytes = train->text == ABAR_TEXT_BYTES,
                                 .validation = train->validation,
                                 .validation_seed = (uint64_t)train->validation_seed,
                                 .classes_file = train->classes[0] ? train->classes : NULL,
                                 .labels_file = train->labels[0] ? train->labels : NULL,
                                 .view = train->size};
}

abar_status abar__data_probe(abar_context *ctx, const abar_setup *setup, abar_dataset_probe *out)
{
    const abar_dataset_config config = config_of(&setup->train);
    if (!abar__is_streamed(&setup->train)) return abar_dataset_probe_name(ctx, setup->train.data, out);
    ABAR_TRY(abar_dataset_probe_with(ctx, setup->train.data, &config, out));
    out->info.height = out->info.width = setup->train.size; /* of a folder that is not there, too */
    return ABAR_OK;
}

abar_status abar__data_look(abar_context *ctx, const abar_setup *setup, abar_dataset_info *out)
{
    abar_dataset_probe probe = {.size = sizeof probe};
    ABAR_TRY(abar__own_check(ctx, setup));
    if (abar__is_own_data(setup)) {
        *out = *abar_dataset_info_of(setup->dataset);
        return ABAR_OK;
    }
    ABAR_TRY(abar__data_probe(ctx, setup, &probe));
    *out = probe.info;
    if (out->text || is_synthetic(setup)) take_model_shape(setup, out);
    return ABAR_OK;
}

int64_t abar__context_of(const abar_setup *setup)
{
    int64_t input[3], classes;
    abar_model_shape(setup->model, setup->model_config, input, &classes);
    return setup->model->text ? input[0] : 1;
}

static abar_status view_own_data(abar_context *ctx, const abar_setup *setup, int64_t limit_train, double validation,
                                 abar_dataset **out)
{
    const abar_train_config *train = &setup->train;
    abar_dataset *data;
    *out = NULL;
    ABAR_TRY(abar__dataset_view(ctx, setup->dataset, limit_train, train->limit_test, &data));
    abar_status status =
        validation != 0.0 ? abar__dataset_hold_out(data, validation, (uint64_t)train->validation_seed) : ABAR_OK;
    if (status == ABAR_OK)
        *out = data;
    else
        abar_dataset_close(data);
    return status;
}

abar_status abar__data_open(abar_context *ctx, const abar_setup *setup, bool test_only, const char *vocabulary,
                            abar_dataset **out)
{
    const abar_train_config *train = &setup->train;
    const double validation = test_only ? 0.0 : train->validation;
    if (abar__is_own_data(setup)) return view_own_data(ctx, setup, test_only ? 1 : train->limit_train, validation, out);
    abar_dataset_config config = config_of(train);
    if (test_only) config.limit_train = 1;
    config.validation = validation;
    config.vocabulary = vocabulary;
    if (is_synthetic(setup)) {
        abar_dataset_info shape = {0};
        take_model_shape(setup, &shape);
        config.channels = shape.channels;
        config.height = shape.height;
        config.width = shape.width;
        config.classes = shape.classes;
    }
    return abar_dataset_open(ctx, train->data, &config, out);
}

abar_status abar__batch_check(abar_context *ctx, const abar_train_config *train, const abar_dataset_info *info)
{
    if (info->train >= train->batch) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--batch %lld: more than the %lld training samples%s, choose less",
                      (long long)train->batch, (long long)info->train,
                      train->validation > 0.0 ? " that --validation leaves" : "");
}

abar_status abar__device_open(abar_context *ctx, const abar_setup *setup, abar_device **out)
{
    static const abar_precision precisions[] = {[ABAR_CHOICE_FP32] = ABAR_PRECISION_FP32,
                                                [ABAR_CHOICE_TF32] = ABAR_PRECISION_TF32,
                                                [ABAR_CHOICE_BF16] = ABAR_PRECISION_BF16};
    const abar_train_config *train = &setup->train;
    int64_t choice = train->precision;
    if (choice == ABAR_CHOICE_AUTO) choice = abar__is_cuda(train) ? ABAR_CHOICE_BF16 : ABAR_CHOICE_FP32;
    abar_device_config config = {.size = sizeof config,
                                 .threads = (int)train->threads,
                                 .deterministic = train->deterministic,
                                 .precision = precisions[choice]};
    return abar_device_open(ctx, train->device, &config, out);
}

/* A program's own network may end in anything; labels index its logits. */
static abar_status check_output(abar_context *ctx, const abar_net *net, const abar_dataset_info *info)
{
    const abar_tensor output = abar_net_output(net);
    if (output.ndim == 2 && output.dim[1] == info->classes) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT,
                      "model " ABAR_OWN_MODEL ": its network must end in one vector of %lld logits, one per class",
                      (long long)info->classes);
}

static void add_loss(const abar_setup *setup, const abar__net_request *request, abar_net *net, abar_value x)
{
    if (!request->training || request->hard_labels)
        abar_softmax_cross_entropy(net, x, 0.0);
    else if (abar__mixes(&setup->train))
        abar_softmax_cross_entropy_pairs(net, x, setup->train.label_smoothing);
    else
        abar_softmax_cross_entropy(net, x, setup->train.label_smoothing);
}

bool abar__tests_apart(const abar_setup *setup, const abar_dataset_info *info, abar_dataset_info *out)
{
    const abar_train_config *train = &setup->train;
    *out = *info;
    if (info->streamed) out->height = out->width = train->test_size;
    return train->label_smoothing > 0.0 || abar__mixes(train) || out->height != info->height || out->width != info->width;
}

abar_status abar__test_net_build(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *test_info,
                                 abar_device *dev, const abar__net_request *request, abar_net **out)
{
    const abar_status status = abar__net_build(ctx, setup, test_info, dev, request, out);
    if (status != ABAR_E_ARGUMENT || !test_info->streamed || setup->train.test_size == setup->train.size) return status;
    return abar__fail(
        ctx, status,
        "--test-size %lld: %s is trained with --size %lld and cannot be tested at another size (%s), give --test-size %lld",
        (long long)setup->train.test_size, setup->train.model, (long long)setup->train.size, abar_context_error(ctx),
        (long long)setup->train.size);
}

abar_status abar__net_build(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *info, abar_device *dev,
                            const abar__net_request *request, abar_net **out)
{
    abar_net *net;
    ABAR_TRY(abar_net_create(ctx, &net));
    abar_value x = setup->model->text ? abar_input_tokens(net, abar__context_of(setup))
                                      : abar_input(net, 3, (int64_t[]){info->channels, info->height, info->width});
    x = setup->model->build(setup->model, net, x, info->classes, setup->model_config);
    add_loss(setup, request, net, x);
    abar_compile_config config = {.size = sizeof config,
                                  .batch = request->batch,
                                  .training = request->training,
                                  .plan_only = request->plan_only,
                                  .seed = (uint64_t)setup->train.seed,
                                  .share = request->share,
                                  .patterns = request->patterns};
    abar_status status = abar_net_compile(net, dev, &config);
    if (status == ABAR_OK && setup->model == &abar__own_model) status = check_output(ctx, net, info);
    if (status < 0) {
        abar_net_destroy(net);
        return status;
    }
    *out = net;
    return ABAR_OK;
}

abar_extra abar__setup_extra(const abar_setup *setup)
{
    const abar_extra extra = setup->method ? abar_method_extra(setup->method, setup->method_config) : ABAR_EXTRA_NONE;
    return extra != ABAR_EXTRA_NONE ? extra : abar_rule_extra(setup->rule);
}

abar_status abar__extra_net_build(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *info, abar_device *dev,
                                  const abar_net *net, bool plan_only, abar_net **out)
{
    const abar_extra extra = abar__setup_extra(setup);
    const abar__net_request request = {.batch = abar__micro_of(&setup->train),
                                       .training = true,
                                       .hard_labels = extra != ABAR_EXTRA_DIFFERENCE,
                                       .plan_only = plan_only,
                                       .share = net,
                                       .patterns = true};
    *out = NULL;
    return extra == ABAR_EXTRA_NONE ? ABAR_OK : abar__net_build(ctx, setup, info, dev, &request, out);
}

/* Of labels, one a sample; 0: a sample has several. */
static int64_t class_count(const abar_net *net)
{
    const abar_tensor output = abar_net_output(net);
    return output.ndim == 2 ? output.dim[1] : 0;
}

/* Parameters and layers as the optimizer wants them, in one piece of memory that the caller frees. */
static abar_status describe_optimizer(abar_context *ctx, const abar_setup *setup, const abar_net *net, const abar_net *extra,
                                      abar_optim_config *out, void **memory, size_t *bytes)
{
    const int n = abar_net_param_count(net), layers = abar_net_layer_count(net), output = abar_net_output_layer(net);
    const size_t params_bytes = abar__round_up((size_t)n * sizeof(abar_optim_param), ABAR_ALIGN);
    const size_t shadows_bytes = abar__round_up(2 * (size_t)n * sizeof(void *), ABAR_ALIGN);
    const size_t layers_bytes = (size_t)layers * sizeof(abar_layer);
    *bytes = params_bytes + shadows_bytes + layers_bytes + (size_t)layers * sizeof(bool);
    ABAR_TRY(abar__alloc(ctx, *bytes, memory));
    abar_optim_param *params = *memory;
    void **shadows = (void **)((char *)*memory + params_bytes), **extra_grads = shadows + n;
    abar_layer *layer = (abar_layer *)((char *)*memory + params_bytes + shadows_bytes);
    bool *yields_output = (bool *)layer + layers_bytes;
    for (int i = 0; i < n; i++) {
        const abar_param *p = abar_net_param(net, i);
        bool decays = setup->train.decay_all || p->kind == ABAR_PARAM_WEIGHT;
        params[i] = (abar_optim_param){.name = p->name,
                                       .value = p->value,
                                       .grad = p->grad,
                                       .lr_scale = 1.0,
                                       .weight_decay = decays ? setup->train.weight_decay : 0.0};
        shadows[i] = p->shadow.ndim ? p->shadow.data : NULL;
        extra_grads[i] = extra ? abar_net_param(extra, i)->grad.data : NULL;
    }
    for (int i = 0; i < layers; i++) {
        layer[i] = *abar_net_layer(net, i);
        yields_output[i] = i == output;
    }
    *out = (abar_optim_config){.size = sizeof *out,
                               .rule = setup->rule->name,
                               .rule_config = setup->rule_config,
                               .method = setup->method ? setup->method->name : NULL,
                               .method_config = setup->method_config,
                               .curvature = setup->curvature_config,
                               .params = params,
                               .n_params = n,
                               .layers = layer,
                               .n_layers = layers,
                               .base_lr = setup->train.lr,
                               .shadows = shadows,
                               .yields_output = yields_output,
                               .extra_grads = extra ? extra_grads : NULL,
                               .loss_terms = setup->train.batch * abar__context_of(setup),
                               .seed = (uint64_t)setup->train.seed,
                               .examples = setup->train.batch,
                               .classes = class_count(net)};
    return ABAR_OK;
}

abar_status abar__optim_plan_maps(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                                  abar_map_visitor visit, void *user)
{
    abar_optim_config config;
    void *memory;
    size_t bytes;
    ABAR_TRY(describe_optimizer(ctx, setup, net, NULL, &config, &memory, &bytes));
    abar_status status = abar_optim_plan_maps(dev, &config, visit, user);
    abar__free(ctx, memory, bytes);
    return status;
}

abar_status abar__optim_plan_params(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                                    abar_param_visitor visit, void *user)
{
    abar_optim_config config;
    void *memory;
    size_t bytes;
    ABAR_TRY(describe_optimizer(ctx, setup, net, NULL, &config, &memory, &bytes));
    abar_status status = abar_optim_plan_params(dev, &config, visit, user);
    abar__free(ctx, memory, bytes);
    return status;
}

static void count_map(void *user, const abar_map_info *map)
{
    (void)map;
    ++*(int64_t *)user;
}

/* Every pattern of --skip-layers alone must leave something out: one that fits nothing is a misspelt name. */
static abar_status check_skips(abar_context *ctx, abar_setup *setup, abar_device *dev, const abar_net *net,
                               const char *patterns)
{
    char *one = abar__curvature_config_of(setup)->skip_layers;
    int64_t all = 0;
    one[0] = '\0';
    ABAR_TRY(abar__optim_plan_maps(ctx, setup, dev, net, count_map, &all));
    for (const char *at = patterns; at;) {
        int64_t left = 0;
        const size_t n = strcspn(at, ",");
        memcpy(one, at, n);
        one[n] = '\0';
        ABAR_TRY(abar__optim_plan_maps(ctx, setup, dev, net, count_map, &left));
        if (left == all)
            return abar__fail(
                ctx, ABAR_E_ARGUMENT,
                "--skip-layers %.80s: fits no layer that %s preconditions, abar models --model %s --optim %s lists "
                "them",
                one, setup->method->name, setup->train.model, setup->train.optim);
        at = at[n] ? at + n + 1 : NULL;
    }
    return ABAR_OK;
}

static bool any_param_fits(const abar_net *net, const char *pattern)
{
    for (int i = 0; i < abar_net_param_count(net); i++)
        if (abar__name_fits(pattern, abar_net_param(net, i)->name)) return true;
    return false;
}

/* Every pattern of an option of the rule that names parameters must fit one: another is a misspelt name. */
static abar_status check_param_names(abar_context *ctx, const abar_setup *setup, const abar_net *net, const char *option)
{
    char patterns[ABAR_OPTION_TEXT_MAX], *rest = patterns;
    if (!abar_options_find(setup->rule->options, option)) return ABAR_OK;
    ABAR_TRY(abar_options_get(ctx, setup->rule->options, setup->rule_config, option, patterns, sizeof patterns));
    for (char *one = strtok_r(patterns, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
        if (!any_param_fits(net, one))
            return abar__fail(ctx, ABAR_E_ARGUMENT,
                              "--%s %.80s: fits no parameter, abar models --model %s --optim %s lists them", option, one,
                              setup->train.model, setup->train.optim);
    return ABAR_OK;
}

abar_status abar__optim_check(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net)
{
    const char *patterns = abar__curvature_config_of(setup)->skip_layers;
    ABAR_TRY(check_param_names(ctx, setup, net, "muon-take"));
    ABAR_TRY(check_param_names(ctx, setup, net, "muon-skip"));
    if (!setup->method || !patterns[0]) return ABAR_OK;
    abar_setup *scratch;
    ABAR_TRY(abar__setup_copy(ctx, setup, &scratch));
    abar_status status = check_skips(ctx, scratch, dev, net, patterns);
    abar_setup_destroy(ctx, scratch);
    return status;
}

/* A number of heads that does not divide a layer's means --split qkv there. */
static abar_status tell_split(abar_context *ctx, const abar_setup *setup, const abar_net *net)
{
    char split[ABAR_OPTION_TEXT_MAX];
    if (!abar_options_find(setup->rule->options, "split")) return ABAR_OK;
    ABAR_TRY(abar_options_get(ctx, setup->rule->options, setup->rule_config, "split", split, sizeof split));
    const int64_t wanted = strncmp(split, "heads:", 6) == 0 ? strtoll(split + 6, NULL, 10) : 0;
    for (int i = 0; wanted > 0 && i < abar_net_layer_count(net); i++) {
        const abar_layer *layer = abar_net_layer(net, i);
        const int64_t heads = layer->attention.heads;
        if (heads == 0 || heads % wanted == 0) continue;
        abar__log(ctx, ABAR_LOG_WARNING,
                  "--split %s: does not divide the %lld heads of %s, q, k and v are one block each there, as with --split qkv",
                  split, (long long)heads, layer->name);
        break;
    }
    return ABAR_OK;
}

abar_status abar__optim_build(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                              const abar_net *extra, abar_optim **out)
{
    return abar__optim_build_on(ctx, setup, dev, net, extra, NULL, out);
}

abar_status abar__optim_build_on(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                                 const abar_net *extra, const abar__owners *ranks, abar_optim **out)
{
    abar_optim_config config;
    void *memory;
    size_t bytes;
    ABAR_TRY(abar__optim_check(ctx, setup, dev, net));
    ABAR_TRY(tell_split(ctx, setup, net));
    ABAR_TRY(describe_optimizer(ctx, setup, net, extra, &config, &memory, &bytes));
    abar_status status = abar__optim_create_on(dev, &config, ranks, out);
    abar__free(ctx, memory, bytes);
    return status;
}

abar_status abar__optim_plan(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net, size_t *out)
{
    abar_optim_config config;
    void *memory;
    size_t bytes;
    ABAR_TRY(describe_optimizer(ctx, setup, net, NULL, &config, &memory, &bytes));
    abar_status status = abar_optim_plan_bytes(dev, &config, out);
    abar__free(ctx, memory, bytes);
    return status;
}

abar_status abar__optim_plan_pending(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                                     int64_t *out)
{
    abar_optim_config config;
    void *memory;
    size_t bytes;
    ABAR_TRY(describe_optimizer(ctx, setup, net, NULL, &config, &memory, &bytes));
    abar_status status = abar_optim_plan_pending(dev, &config, out);
    abar__free(ctx, memory, bytes);
    return status;
}

abar__join_config abar__join_request(const abar_setup *setup, const abar_device *dev, const abar_net *net,
                                     const abar_net *extra, int64_t pending)
{
    const abar__net_blocks blocks = abar__net_blocks_of(net);
    return (abar__join_config){.n = abar__passes_of(&setup->train),
                               .wide = dev->ops->dtype == ABAR_F64,
                               .dev = dev->ops->stream ? (abar_device *)(uintptr_t)dev : NULL,
                               .grad_bytes = blocks.value_bytes,
                               .extra_bytes = extra ? blocks.value_bytes : 0,
                               .pending = pending,
                               .statistics_bytes = blocks.running_bytes,
                               .fast = setup->train.reduce == ABAR_REDUCE_FAST};
}

abar_loader_config abar__loader_request(const abar_setup *setup, bool test)
{
    const abar_train_config *train = &setup->train;
    abar_loader_config request = {.size = sizeof request,
                                  .test = test,
                                  .batch = test ? abar__micro_of(train) : train->batch,
                                  .seed = (uint64_t)train->seed,
                                  .threads = (int)train->workers,
                                  .crop_pad = train->augment && !test ? CROP_PAD : 0,
                                  .flip = train->augment && !test,
                                  .context = abar__context_of(setup),
                                  .steps = train->epoch_steps};
    if (abar__is_streamed(train)) abar__request_images(train, &request);
    return request;
}
