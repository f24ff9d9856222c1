/* Rules that need further gradients (device/extra.h): what the caller is asked for, and whether it was given. */
#include "optim/optim_impl.h"

#include <string.h>

abar_extra abar_rule_extra(const abar_rule *rule)
{
    const abar__rule_ops *ops = abar__rule_find(rule->name);
    alignas(max_align_t) unsigned char config[ABAR_RULE_CONFIG_MAX];
    abar__extra_request request = {.kind = ABAR_EXTRA_NONE};
    if (!ops || !ops->extra) return ABAR_EXTRA_NONE;
    abar_options_default(rule->options, config);
    ops->extra(config, &request);
    return request.kind;
}

/* c where the caller leaves it to us (optimizers.md section 3): the smallest whose difference stands out of the rounding. */
static double relative_step(const abar_device *dev)
{
    if (dev->ops->dtype == ABAR_F64) return 1e-5;
    if (!dev->ops->stream || dev->config.precision == ABAR_PRECISION_FP32) return 0.01;
    return dev->activation == ABAR_BF16 ? 0.3 : 0.1;
}

void abar__optim_read_extra(abar_optim *o)
{
    o->extra.request = (abar__extra_request){.kind = ABAR_EXTRA_NONE};
    if (!o->rule->extra) return;
    o->rule->extra(o->config, &o->extra.request);
    if (o->extra.request.relative == 0.0) o->extra.request.relative = relative_step(o->dev);
}

static abar_status check(const abar_optim *o, const abar_optim_config *c)
{
    const char *rule = o->rule->rule.name;
    if (c->method)
        return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT,
                          "optimizer %s+%s: %s takes gradients as they are, use it without a method", c->method, rule, rule);
    if (!c->extra_grads)
        return abar__fail(o->dev->ctx, ABAR_E_UNSUPPORTED,
                          "optimizer %s: needs the gradients of further passes, give config.extra_grads and follow "
                          "abar_optim_extra; where gradients come from another program, use another optimizer",
                          rule);
    if (o->extra.request.kind == ABAR_EXTRA_SAMPLED && c->loss_terms < 1)
        return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT,
                          "optimizer %s: config.loss_terms is %lld, set it to the examples or tokens of a batch", rule,
                          (long long)c->loss_terms);
    for (int i = 0; i < o->n; i++)
        if (!c->extra_grads[i] && abar_tensor_count(&o->params[i].value) > 0)
            return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT, "optimizer %s: extra_grads has no memory for %s", rule,
                              o->params[i].name);
    return ABAR_OK;
}

static size_t element_bytes(const abar_optim *o) { return abar_dtype_size(o->dev->ops->dtype); }

abar_status abar__optim_make_extra(abar_optim *o, const abar_optim_config *c)
{
    abar_context *ctx = o->dev->ctx;
    const size_t n = (size_t)o->n;
    if (o->extra.request.kind == ABAR_EXTRA_NONE) return ABAR_OK;
    ABAR_TRY(check(o, c));
    o->extra.seed = c->seed;
    ABAR_TRY(abar__alloc(ctx, n * sizeof *o->extra_items, (void **)&o->extra_items));
    ABAR_TRY(abar__alloc(ctx, n * sizeof *o->extra_norms, (void **)&o->extra_norms));
    ABAR_TRY(abar__alloc(ctx, n * sizeof *o->extra_grads, (void **)&o->extra_grads));
    memcpy(o->extra_grads, c->extra_grads, n * sizeof *o->extra_grads);
    if (o->extra.request.kind != ABAR_EXTRA_DIFFERENCE) return ABAR_OK;
    size_t bytes = 0;
    for (int i = 0; i < o->n; i++) bytes += abar__round_up((size_t)o->items[i].count * element_bytes(o), ABAR_ALIGN);
    ABAR_TRY(abar_device_alloc(o->dev, bytes, &o->saved));
    o->saved_bytes = bytes;
    return ABAR_OK;
}

void abar__optim_free_extra(abar_optim *o)
{
    abar_context *ctx = o->dev->ctx;
    const size_t n = (size_t)o->n;
    abar_device_free(o->dev, o->saved, o->saved_bytes);
    abar__free(ctx, o->extra_items, o->extra_items ? n * sizeof *o->extra_items : 0);
    abar__free(ctx, o->extra_norms, o->extra_norms ? n * sizeof *o->extra_norms : 0);
    abar__free(ctx, o->extra_grads, o->extra_grads ? n * sizeof *o->extra_grads : 0);
}

size_t abar__optim_extra_bytes(const abar_optim *o)
{
    const size_t each = sizeof *o->extra_items + sizeof *o->extra_norms + sizeof *o->extra_grads;
    return o->extra_items ? (size_t)o->n * each + o->saved_bytes : 0;
}

/* Whether h is relative to this parameter: the weights of maps count; where no layers are known, matrices. */
static bool is_map(const abar_optim *o, int i)
{
    bool layers = false;
    for (int k = 0; k < o->n; k++) layers = layers || o->views[k].layers > 0;
    return layers ? o->views[i].layers > 0 : o->views[i].columns > 1;
}

void abar__optim_lay_out_extra(abar_optim *o)
{
    if (!o->extra_items) return;
    int64_t first = 0;
    size_t place = 0;
    o->extra.items = o->extra_items;
    o->extra.grads = o->extra_norms;
    o->extra.n = 0;
    for (int i = 0; i < o->n; i++) {
        const abar__update_item *item = &o->items[i];
        const abar_tensor *value = &o->params[i].value;
        const bool window = value->ndim == 4, dense = abar_tensor_is_dense(value);
        if (item->grad) {
            o->extra_norms[o->extra.n] = *item;
            o->extra_norms[o->extra.n].grad = o->extra_grads[i];
            o->extra_items[o->extra.n++] = (abar__extra_item){
                .weight = item->weight,
                .shadow = item->shadow,
                .saved = o->saved ? (char *)o->saved + place : NULL,
                .grad = o->extra_grads[i],
                .diagonal = item->state[o->extra.request.kind == ABAR_EXTRA_DIFFERENCE ? 2 : 1],
                .count = item->count,
                .first = first,
                .taps = window ? value->dim[2] * value->dim[3] : 1,
                .inputs = window && !dense ? value->dim[1] : 0,
                .map = is_map(o, i),
            };
        }
        first += item->count;
        place += abar__round_up((size_t)item->count * element_bytes(o), ABAR_ALIGN);
    }
}

/* ---- what the caller does --------------------------------------------------------------------------------------------- */

abar_extra abar_optim_extra(const abar_optim *o)
{
    const abar__extra_request *r = &o->extra.request;
    if (abar_optim_row_passes(o) > 0) return ABAR_EXTRA_ROWS;
    switch (r->kind) {
    case ABAR_EXTRA_DIFFERENCE: return o->k % r->every == 0 ? r->kind : ABAR_EXTRA_NONE;
    case ABAR_EXTRA_SAMPLED: return o->k % r->every == r->every - 1 ? r->kind : ABAR_EXTRA_NONE;
    case ABAR_EXTRA_ROWS: /* a method's */
    case ABAR_EXTRA_NONE: break;
    }
    return ABAR_EXTRA_NONE;
}

int64_t abar_optim_row_passes(const abar_optim *o) { return o->curvature ? abar__curvature_passes(o->curvature) : 0; }

bool abar_optim_draws_rows(const abar_optim *o)
{
    return abar_optim_row_passes(o) > 0 && o->curvature->maps[0].plan.rows.drawn;
}

abar_status abar_optim_begin_rows(abar_optim *o, int64_t pass)
{
    if (o->curvature) return abar__curvature_begin_pass(o->curvature, pass);
    return abar__fail(o->dev->ctx, ABAR_E_STATE, "rows: %s needs none", o->rule->rule.name);
}

abar_status abar_optim_perturb(abar_optim *o, int sign)
{
    if (abar_optim_extra(o) != ABAR_EXTRA_DIFFERENCE)
        return abar__fail(o->dev->ctx, ABAR_E_STATE, "perturb: step %lld of %s needs no difference of gradients",
                          (long long)o->k, o->rule->rule.name);
    if (sign < -1 || sign > 1) return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT, "perturb: sign is %d, give -1, 0 or 1", sign);
    ABAR_TRY(abar__optim_ready(o));
    ABAR_TRY(o->dev->ops->step->perturb(o->dev, o->step, sign));
    o->sign = sign;
    o->perturbed |= sign > 0 ? 1u : sign < 0 ? 2u : 0u;
    return ABAR_OK;
}

abar_status abar__optim_check_extra(abar_optim *o)
{
    if (o->sign != 0)
        return abar__fail(o->dev->ctx, ABAR_E_STATE,
                          "step: the weights are perturbed, call abar_optim_perturb(optim, 0) first");
    if (o->curvature) ABAR_TRY(abar__curvature_check_passes(o->curvature));
    if (abar_optim_extra(o) != ABAR_EXTRA_DIFFERENCE || o->perturbed == 3u) return ABAR_OK;
    return abar__fail(o->dev->ctx, ABAR_E_STATE,
                      "step: step %lld of %s needs the difference of two gradients, make the passes that abar_optim_perturb "
                      "describes between backward and step",
                      (long long)o->k, o->rule->rule.name);
}

abar_status abar_optim_take_sampled(abar_optim *o, const abar_step_config *step)
{
    abar_step_config c;
    ABAR_TRY(abar__optim_read_step(o->dev->ctx, step, &c));
    if (o->extra.request.kind != ABAR_EXTRA_SAMPLED || o->k == 0 || o->k % o->extra.request.every != 0)
        return abar__fail(o->dev->ctx, ABAR_E_STATE, "take_sampled: the last step of %s needs no gradient of drawn labels",
                          o->rule->rule.name);
    o->stale = true;
    return o->dev->ops->step->take_extra(o->dev, o->step, c.grad_scale, c.clip);
}
