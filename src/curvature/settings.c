/* The settings of a curvature: what all methods share, and what the method itself has, for all layers or for each. */
#include "curvature/curvature_impl.h"

#include <string.h>

static const abar_option shared_options[] = {
    {.name = "stat-decay",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(abar__curvature_config, stat_decay),
     .fallback = "0.95",
     .min = 0.0,
     .max = 0.999999,
     .help = "weight of the old value in the moving averages of statistics"},
    {.name = "tcov",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(abar__curvature_config, tcov),
     .fallback = "5",
     .min = 1,
     .max = 1e9,
     .help = "statistics are taken every so many steps"},
    {.name = "tinv",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(abar__curvature_config, tinv),
     .fallback = "50",
     .min = 1,
     .max = 1e9,
     .help = "inverses and means are refreshed every so many steps"},
    {.name = "toffset",
     .type = ABAR_OPTION_INT,
     .offset = offsetof(abar__curvature_config, toffset),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "the first step with statistics and a refresh; before it the gradient is left as it is"},
    {.name = "homogeneous",
     .type = ABAR_OPTION_BOOL,
     .offset = offsetof(abar__curvature_config, homogeneous),
     .fallback = "true",
     .help = "a bias is preconditioned with its weight, as the column of an input that is 1"},
    {.name = "refresh",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(abar__curvature_config, refresh),
     .fallback = "together",
     .choices = "together|spread",
     .help = "refresh all layers in one step, or spread them over the steps"},
    {.name = "pgrad",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(abar__curvature_config, pgrad),
     .fallback = "batch-mean",
     .choices = "batch-mean|per-example",
     .help = "output gradients of the batch-mean loss, or of each example's"},
    {.name = "skip-layers",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(abar__curvature_config, skip_layers),
     .fallback = "",
     .help = "layers without preconditioning: names with * and ?, joined by commas"},
    {.name = NULL},
};

const abar_option *abar_curvature_options(void) { return shared_options; }
size_t abar_curvature_config_size(void) { return sizeof(abar__curvature_config); }

const void *abar__curvature_settings(const abar__curvature *cv, int layer)
{
    return (const char *)cv->method_config + (cv->by_layer ? 1 + (size_t)layer : 0) * cv->ops->method.config_size;
}

static double kl_clip_of(const abar_option *row, const void *config)
{
    return *(const double *)(const void *)((const char *)config + row->offset);
}

/* Layers with settings of their own. What treats all of them together has one. kl_clip: NULL: the method has none. */
static abar_status configure_layers(abar__curvature *cv, const abar__curvature_request *request, const abar_option *kl_clip)
{
    const abar__curvature_ops *ops = cv->ops;
    const size_t size = ops->method.config_size;
    abar_context *ctx = cv->dev->ctx;
    bool joint = ops->by_example;
    for (int i = 0; i < request->n_layers; i++) {
        const void *given = request->layer_configs[i];
        void *own = (char *)cv->method_config + (1 + (size_t)i) * size;
        memcpy(own, given ? given : cv->method_config, size);
        if (!given) continue;
        ABAR_TRY(abar_method_check(ctx, &ops->method, own));
        joint = joint || (ops->is_joint && (ops->is_joint(own) || ops->is_joint(cv->method_config)));
        if (joint)
            return abar__fail(ctx, ABAR_E_ARGUMENT, "optimizer %s: it treats all layers together, give them one setting",
                              ops->method.name);
        if (kl_clip && kl_clip_of(kl_clip, own) != kl_clip_of(kl_clip, cv->method_config))
            return abar__fail(ctx, ABAR_E_ARGUMENT,
                              "--kl-clip %g of layer %s: it bounds the step of all layers together, give them one, here %g",
                              kl_clip_of(kl_clip, own), request->layers[i].name, kl_clip_of(kl_clip, cv->method_config));
    }
    return ABAR_OK;
}

abar_status abar__curvature_configure(abar__curvature *cv, const abar__curvature_request *request)
{
    abar_context *ctx = cv->dev->ctx;
    const abar_method *method = &cv->ops->method;
    if (request->common)
        cv->config = *request->common;
    else
        abar_options_default(shared_options, &cv->config);
    ABAR_TRY(abar__options_check(ctx, method->name, shared_options, &cv->config));
    if (cv->ops->by_example) cv->config.tcov = cv->config.tinv = 1;
    if (cv->ops->by_example || cv->ops->second_pass) cv->config.toffset = 0;
    cv->by_layer = request->layer_configs != NULL;
    cv->config_bytes = (cv->by_layer ? 1 + (size_t)request->n_layers : 1) * method->config_size;
    ABAR_TRY(abar__alloc(ctx, cv->config_bytes, &cv->method_config));
    if (request->method_config)
        memcpy(cv->method_config, request->method_config, method->config_size);
    else
        abar_options_default(method->options, cv->method_config);
    const abar_option *kl_clip = abar_options_find(method->options, "kl-clip");
    const bool clips = kl_clip && !(request->unclipped && !request->method_config);
    if (clips) cv->kl_clip = kl_clip_of(kl_clip, cv->method_config);
    ABAR_TRY(abar_method_check(ctx, method, cv->method_config));
    return cv->by_layer ? configure_layers(cv, request, kl_clip) : ABAR_OK;
}
