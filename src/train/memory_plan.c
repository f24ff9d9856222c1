/* The memory of a run before anything is allocated: the sum of what every part would hold. */
#include "data/data_impl.h"
#include "train/train_impl.h"

#include <string.h>

/* While a checkpoint is written: buffers for logs and texts, and the header's entry of each tensor. */
#define WRITING_BYTES (16u << 10)
#define WRITING_BYTES_PER_TENSOR 400u

static int64_t limited(int64_t count, int64_t limit) { return limit > 0 && limit < count ? limit : count; }

/* An image folder: its index is in memory. One that is not there has the published numbers of samples. */
static abar_status plan_folder(abar_context *ctx, const abar_setup *setup, abar_dataset_info *info, abar_memory_plan *plan)
{
    abar_dataset_probe probe = {.size = sizeof probe};
    abar_dataset *data;
    ABAR_TRY(abar__data_probe(ctx, setup, &probe));
    if (!probe.found) return ABAR_OK;
    ABAR_TRY(abar__data_open(ctx, setup, false, NULL, &data));
    plan->data = abar_dataset_bytes(data);
    info->train = abar_dataset_info_of(data)->train;
    info->test = abar_dataset_info_of(data)->test;
    abar_dataset_close(data);
    return ABAR_OK;
}

/* Samples in memory. */
static void plan_samples(const abar_setup *setup, abar_dataset_info *info, abar_memory_plan *plan)
{
    const abar_train_config *train = &setup->train;
    const bool own = abar__is_own_data(setup), validation = train->validation > 0.0;
    info->train = limited(info->train, train->limit_train);
    info->test = limited(info->test, train->limit_test);
    size_t sample = info->text ? sizeof(uint16_t) : (size_t)abar__image_bytes(info) + sizeof(int32_t);
    plan->data = own ? 0 : (size_t)(info->train + info->test) * sample;       /* else the program's */
    if (validation && !info->text) plan->data = (size_t)info->train * sample; /* a copy of the program's images, too */
    if (!validation) return;
    info->test = abar__validation_count(info->train, train->validation);
    info->train -= info->test;
}

static abar_status plan_data(abar_context *ctx, const abar_setup *setup, abar_dataset_info *info, abar_memory_plan *plan)
{
    size_t test;
    ABAR_TRY(abar__data_look(ctx, setup, info));
    if (info->streamed)
        ABAR_TRY(plan_folder(ctx, setup, info, plan));
    else
        plan_samples(setup, info, plan);
    abar_loader_config request = abar__loader_request(setup, false);
    ABAR_TRY(abar_loader_plan_bytes(ctx, info, &request, &plan->loader));
    request = abar__loader_request(setup, true);
    ABAR_TRY(abar_loader_plan_bytes(ctx, info, &request, &test));
    plan->loader += test;
    return ABAR_OK;
}

static size_t plan_books(const abar_setup *setup, const abar_net *net)
{
    size_t books = sizeof(abar_trainer) + sizeof(abar_setup) + setup->model->config_size + setup->rule->config_size +
                   (setup->method ? setup->method->config_size : 0) + abar_curvature_config_size();
    books += (size_t)setup->train.epochs * sizeof(abar__epoch);
    if (!setup->train.out[0]) return books;
    size_t tensors = (size_t)abar_net_tensor_count(net) + (size_t)(setup->rule->states * abar_net_param_count(net));
    if (setup->train.ema > 0.0) tensors += (size_t)abar_net_tensor_count(net);
    return books + abar__weights_stage_bytes(net) + WRITING_BYTES + tensors * WRITING_BYTES_PER_TENSOR;
}

/* The graph of the net that tests, and what of its memory is not the trained one's. */
static abar_status plan_test_net(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *info, abar_device *dev,
                                 const abar_net *trained, abar_memory_plan *plan)
{
    const abar__net_request request = {.batch = abar__micro_of(&setup->train), .plan_only = true, .share = trained};
    abar_dataset_info test_info;
    abar_net *net;
    if (!abar__tests_apart(setup, info, &test_info)) return ABAR_OK;
    size_t before = abar_context_memory(ctx).now;
    ABAR_TRY(abar__test_net_build(ctx, setup, &test_info, dev, &request, &net));
    plan->other += abar_context_memory(ctx).now - before;
    const abar_net_memory m = *abar_net_memory_plan(net);
    plan->activations += m.arena;
    plan->other += m.other;
    abar_net_destroy(net);
    return ABAR_OK;
}

/* Likewise of the net that makes further passes. */
static abar_status plan_extra_net(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *info, abar_device *dev,
                                  const abar_net *trained, abar_memory_plan *plan)
{
    abar_net *net;
    size_t before = abar_context_memory(ctx).now;
    ABAR_TRY(abar__extra_net_build(ctx, setup, info, dev, trained, true, &net));
    if (!net) return ABAR_OK;
    plan->other += abar_context_memory(ctx).now - before;
    const abar_net_memory m = *abar_net_memory_plan(net);
    plan->gradients += m.gradients;
    plan->buffers += m.buffers;
    plan->activations += m.arena;
    plan->other += m.other;
    abar_net_destroy(net);
    return ABAR_OK;
}

/* What joins the micro-batches, on one rank. */
static abar_status plan_join(abar_context *ctx, const abar_setup *setup, abar_device *dev, const abar_net *net,
                             abar_memory_plan *plan)
{
    int64_t pending;
    size_t bytes;
    if (setup->train.micro == 0) return ABAR_OK;
    ABAR_TRY(abar__optim_plan_pending(ctx, setup, dev, net, &pending));
    const bool extra = abar__setup_extra(setup) != ABAR_EXTRA_NONE;
    const abar__join_config config = abar__join_request(setup, dev, net, extra ? net : NULL, pending);
    ABAR_TRY(abar__join_bytes(ctx, &config, &bytes));
    plan->join = bytes;
    return ABAR_OK;
}

static abar_status plan_net(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *info, abar_device *dev,
                            abar_memory_plan *plan)
{
    const abar_train_config *train = &setup->train;
    abar__net_request request = {.batch = abar__micro_of(train), .training = true, .plan_only = true};
    abar_net *net;
    size_t before = abar_context_memory(ctx).now;
    ABAR_TRY(abar__net_build(ctx, setup, info, dev, &request, &net));
    plan->other += abar_context_memory(ctx).now - before; /* the graph itself, which a plan holds too */
    abar_net_memory m = *abar_net_memory_plan(net);
    plan->parameters = m.parameters;
    plan->gradients = m.gradients;
    plan->buffers = m.buffers;
    plan->activations = m.arena;
    plan->other += m.other + plan_books(setup, net);
    if (train->ema > 0.0) plan->average = abar__ema_bytes(net);
    abar_status status = plan_test_net(ctx, setup, info, dev, net, plan);
    if (status == ABAR_OK) status = plan_extra_net(ctx, setup, info, dev, net, plan);
    if (status == ABAR_OK) status = abar__optim_plan(ctx, setup, dev, net, &plan->optimizer);
    if (status == ABAR_OK) status = plan_join(ctx, setup, dev, net, plan);
    abar_net_destroy(net);
    return status;
}

abar_status abar_setup_memory_plan(abar_context *ctx, const abar_setup *setup, abar_memory_plan *out)
{
    abar_memory_plan plan = {0};
    abar_dataset_info info;
    abar_device *dev;
    ABAR_TRY(abar__struct_check(ctx, "abar_memory_plan", out, sizeof plan));
    ABAR_TRY(abar_setup_check(ctx, setup));
    ABAR_TRY(plan_data(ctx, setup, &info, &plan));
    size_t before = abar_context_memory(ctx).now;
    ABAR_TRY(abar__device_open(ctx, setup, &dev));
    plan.other += abar_context_memory(ctx).now - before;
    abar_status status = plan_net(ctx, setup, &info, dev, &plan);
    abar_device_close(dev);
    if (status < 0) return status;
    plan.total = plan.parameters + plan.gradients + plan.buffers + plan.optimizer + plan.activations + plan.data + plan.loader +
                 plan.other + plan.average + plan.join;
    abar__struct_write(&plan, sizeof plan, out);
    return ABAR_OK;
}

/* ---- what a run would refuse ------------------------------------------------------------------------------------------ */

static abar_status try_optim(abar_context *ctx, const abar_setup *setup, const abar_dataset_info *info, abar_device *dev)
{
    const abar_train_config *train = &setup->train;
    const abar__net_request request = {.batch = abar__micro_of(train), .training = true, .plan_only = true};
    abar_net *net;
    ABAR_TRY(abar__net_build(ctx, setup, info, dev, &request, &net));
    abar_status status = abar__optim_check(ctx, setup, dev, net);
    const abar_net *known = info->text ? NULL : net; /* a text's vocabulary is not */
    if (status == ABAR_OK && train->init[0]) status = abar__weights_check(ctx, train->init, known);
    abar_net_destroy(net);
    return status;
}

/* Data that are not there, or cannot be read, are left to whoever reads them. */
static abar_status look_for_data(abar_context *ctx, const abar_setup *setup, bool *found)
{
    abar_dataset_probe probe = {.size = sizeof probe};
    *found = true;
    if (abar__is_own_data(setup)) return ABAR_OK;
    ABAR_TRY(abar__data_probe(ctx, setup, &probe));
    *found = probe.found;
    return ABAR_OK;
}

/* What is known of data that were not read: an index of images takes too long, files may have more samples than published. */
static abar_status try_data(abar_context *ctx, const abar_setup *setup, abar_dataset_info *info, abar_memory_plan *plan)
{
    const abar_train_config *train = &setup->train;
    if (abar__is_streamed(train)) return abar__data_look(ctx, setup, info);
    ABAR_TRY(plan_data(ctx, setup, info, plan));
    const bool counted = train->limit_train > 0 || abar__is_own_data(setup) || strcmp(train->data, "synthetic") == 0;
    return counted && !info->text ? abar__batch_check(ctx, train, info) : ABAR_OK;
}

static abar_status open_device(abar_context *ctx, const abar_setup *setup, bool on_host, abar_device **out)
{
    const abar_device_config config = {.size = sizeof config, .threads = 1, .precision = ABAR_PRECISION_FP32};
    return on_host ? abar_device_open(ctx, "cpu", &config, out) : abar__device_open(ctx, setup, out);
}

abar_status abar__setup_try(abar_context *ctx, const abar_setup *setup, bool on_host)
{
    abar_memory_plan plan = {0};
    abar_dataset_info info;
    abar_device *dev;
    bool found;
    ABAR_TRY(abar_setup_check(ctx, setup));
    ABAR_TRY(look_for_data(ctx, setup, &found));
    if (!found) return ABAR_OK;
    ABAR_TRY(try_data(ctx, setup, &info, &plan));
    if (!info.text && info.classes < 1) return ABAR_OK; /* a folder that cannot be read */
    ABAR_TRY(open_device(ctx, setup, on_host, &dev));
    abar_status status = try_optim(ctx, setup, &info, dev);
    if (status == ABAR_OK) status = plan_net(ctx, setup, &info, dev, &plan);
    abar_device_close(dev);
    return status;
}

/* ---- tables ------------------------------------------------------------------------------------------------------------ */

/* A net without memory, of batch 1. */
static abar_status open_net(abar_context *ctx, const abar_setup *setup, abar_device **dev, abar_net **net)
{
    abar_memory_plan ignored = {0};
    abar_dataset_info info;
    *net = NULL;
    *dev = NULL;
    ABAR_TRY(plan_data(ctx, setup, &info, &ignored));
    ABAR_TRY(abar__device_open(ctx, setup, dev));
    const abar__net_request request = {.batch = 1, .training = true, .plan_only = true};
    ABAR_TRY(abar__net_build(ctx, setup, &info, *dev, &request, net));
    return abar__optim_check(ctx, setup, *dev, *net);
}

abar_status abar_setup_maps(abar_context *ctx, const abar_setup *setup, abar_map_visitor visit, void *user)
{
    abar_device *dev;
    abar_net *net;
    abar_status status = open_net(ctx, setup, &dev, &net);
    if (status == ABAR_OK) status = abar__optim_plan_maps(ctx, setup, dev, net, visit, user);
    abar_net_destroy(net);
    abar_device_close(dev);
    return status;
}

abar_status abar_setup_params(abar_context *ctx, const abar_setup *setup, abar_param_visitor visit, void *user)
{
    abar_device *dev;
    abar_net *net;
    abar_status status = open_net(ctx, setup, &dev, &net);
    if (status == ABAR_OK) status = abar__optim_plan_params(ctx, setup, dev, net, visit, user);
    abar_net_destroy(net);
    abar_device_close(dev);
    return status;
}
