/* Ties an update rule to parameters: owns the rule's state, checks the gradients, clips them by their global norm and runs
 * one fused update per step (methods.md section 8). */
#include "optim/optim_impl.h"

#include <math.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>

struct abar_optim {
    abar_device *dev;
    const abar__rule_ops *rule;
    alignas(max_align_t) unsigned char config[ABAR_RULE_CONFIG_MAX];
    int n, states;
    abar_optim_param *params; /* their names point into text */
    abar__update_item *items;
    char *text; /* the names one after the other, then room for the longest name of a state tensor */
    size_t text_bytes, label_bytes;
    void *state[ABAR_RULE_STATES_MAX]; /* one block per family */
    size_t state_bytes;                /* of each */
    int64_t updates;                   /* performed, without the skipped steps */
};

/* ---- checking ----------------------------------------------------------------------------------------------------- */

static abar_status check_tensor(abar_device *dev, const char *param, const char *what, const abar_tensor *t)
{
    abar_context *ctx = dev->ctx;
    if (t->dev != dev)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "optim: the %s of %s is not on device %s, copy it there", what, param,
                          dev->ops->name);
    if (t->dtype != dev->ops->dtype)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "optim: the %s of %s is %s, device %s computes in %s", what, param,
                          abar_dtype_name(t->dtype), dev->ops->name, abar_dtype_name(dev->ops->dtype));
    if (t->ndim < 0 || t->ndim > ABAR_MAX_DIM || !abar_tensor_is_dense(t))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "optim: the %s of %s is not dense, make it row-major without gaps", what,
                          param);
    for (int i = 0; i < t->ndim; i++)
        if (t->dim[i] < 0) return abar__fail(ctx, ABAR_E_ARGUMENT, "optim: the %s of %s has a negative size", what, param);
    if (!t->data && abar_tensor_count(t) > 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "optim: the %s of %s has no memory", what, param);
    return ABAR_OK;
}

static bool is_factor(double x) { return isfinite(x) && x >= 0.0; }

static abar_status check_param(abar_device *dev, const abar_optim_param *p)
{
    ABAR_TRY(check_tensor(dev, p->name, "value", &p->value));
    ABAR_TRY(check_tensor(dev, p->name, "gradient", &p->grad));
    int64_t count = abar_tensor_count(&p->value), grads = abar_tensor_count(&p->grad);
    if (count != grads)
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optim: %s has %lld elements, but its gradient %lld", p->name,
                          (long long)count, (long long)grads);
    if (!is_factor(p->lr_scale) || !is_factor(p->weight_decay))
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT,
                          "optim: lr_scale %g and weight_decay %g of %s must be finite and not negative", p->lr_scale,
                          p->weight_decay, p->name);
    return ABAR_OK;
}

static abar_status check_params(abar_device *dev, const abar_optim_param *params, int n)
{
    if (n < 1 || !params) return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optim: no parameters, give at least one");
    for (int i = 0; i < n; i++) {
        if (!params[i].name || !*params[i].name)
            return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optim: parameter %d has no name", i);
        for (int j = 0; j < i; j++)
            if (strcmp(params[i].name, params[j].name) == 0)
                return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optim: two parameters are named %s", params[i].name);
        ABAR_TRY(check_param(dev, &params[i]));
    }
    return ABAR_OK;
}

static abar_status find_rule(abar_context *ctx, const char *name, const abar__rule_ops **out)
{
    *out = name ? abar__rule_find(name) : NULL;
    if (*out) return ABAR_OK;
    const char *near = name ? abar_nearest_name(name, abar_rule_names()) : NULL;
    return abar__fail(ctx, ABAR_E_NOT_FOUND, "optimizer %s: no such update rule%s%s", name ? name : "(none)",
                      near ? ", did you mean " : "", near ? near : "");
}

/* ---- creating ----------------------------------------------------------------------------------------------------- */

/* What one parameter takes in each block of state: whole cache lines, so that vectors never straddle two. */
static size_t slot_bytes(const abar_device *dev, int64_t count)
{
    return abar__round_up((size_t)count * abar_dtype_size(dev->ops->dtype), ABAR_ALIGN);
}

static size_t longest_state_name(const abar__rule_ops *rule)
{
    size_t longest = 0;
    for (int k = 0; k < rule->rule.states; k++)
        if (strlen(rule->state_names[k]) > longest) longest = strlen(rule->state_names[k]);
    return longest;
}

static abar_status copy_params(abar_optim *o, const abar_optim_param *params)
{
    size_t longest = 0, all = 0;
    for (int i = 0; i < o->n; i++) {
        size_t length = strlen(params[i].name);
        longest = length > longest ? length : longest;
        all += length + 1;
    }
    o->label_bytes = longest_state_name(o->rule) + 1 + longest + 1;
    o->text_bytes = all + o->label_bytes;
    ABAR_TRY(abar__alloc(o->dev->ctx, o->text_bytes, (void **)&o->text));
    ABAR_TRY(abar__alloc(o->dev->ctx, (size_t)o->n * sizeof *o->params, (void **)&o->params));
    char *name = o->text;
    for (int i = 0; i < o->n; i++) {
        size_t bytes = strlen(params[i].name) + 1;
        o->params[i] = params[i];
        o->params[i].name = memcpy(name, params[i].name, bytes);
        name += bytes;
    }
    return ABAR_OK;
}

static abar_status make_state(abar_optim *o)
{
    abar_device *dev = o->dev;
    ABAR_TRY(abar__alloc(dev->ctx, (size_t)o->n * sizeof *o->items, (void **)&o->items));
    for (int i = 0; i < o->n; i++) o->state_bytes += slot_bytes(dev, abar_tensor_count(&o->params[i].value));
    for (int k = 0; k < o->states; k++) ABAR_TRY(abar_device_alloc(dev, o->state_bytes, &o->state[k]));
    size_t offset = 0;
    for (int i = 0; i < o->n; i++) {
        const abar_optim_param *p = &o->params[i];
        abar__update_item *item = &o->items[i];
        *item = (abar__update_item){.weight = p->value.data,
                                    .grad = p->grad.data,
                                    .count = abar_tensor_count(&p->value),
                                    .lr_scale = p->lr_scale,
                                    .weight_decay = p->weight_decay};
        for (int k = 0; k < o->states; k++) item->state[k] = (char *)o->state[k] + offset;
        offset += slot_bytes(dev, item->count);
    }
    return ABAR_OK;
}

abar_status abar_optim_create(abar_device *dev, const char *rule, const void *rule_config, const abar_optim_param *params,
                              int n, abar_optim **out)
{
    if (!dev || !out) return ABAR_E_ARGUMENT;
    *out = NULL;
    abar_optim o = {.dev = dev, .n = n};
    ABAR_TRY(find_rule(dev->ctx, rule, &o.rule));
    ABAR_TRY(abar__rule_configure(dev->ctx, o.rule, rule_config, o.config));
    o.states = o.rule->states(o.config);
    ABAR_TRY(check_params(dev, params, n));
    abar_optim *made;
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *made, (void **)&made));
    *made = o;
    abar_status status = copy_params(made, params);
    if (status == ABAR_OK) status = make_state(made);
    if (status < 0) {
        abar_optim_destroy(made);
        return status;
    }
    *out = made;
    return ABAR_OK;
}

void abar_optim_destroy(abar_optim *o)
{
    if (!o) return;
    abar_context *ctx = o->dev->ctx;
    for (int k = 0; k < o->states; k++) abar_device_free(o->dev, o->state[k], o->state_bytes);
    abar__free(ctx, o->items, (size_t)o->n * sizeof *o->items);
    abar__free(ctx, o->params, (size_t)o->n * sizeof *o->params);
    abar__free(ctx, o->text, o->text_bytes);
    abar__free(ctx, o, sizeof *o);
}

/* ---- stepping ----------------------------------------------------------------------------------------------------- */

static abar_status read_step(abar_context *ctx, const abar_step_config *step, abar_step_config *out)
{
    *out = (abar_step_config){.size = sizeof *out};
    if (!step || step->size < sizeof(size_t) || step->size > sizeof *out)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "step: config.size is wrong, set it to sizeof(abar_step_config)");
    memcpy(out, step, step->size);
    if (out->grad_scale == 0.0) out->grad_scale = 1.0;
    if (is_factor(out->lr) && is_factor(out->clip) && is_factor(out->grad_scale)) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "step: lr %g, clip %g and grad_scale %g must be finite and not negative", out->lr,
                      out->clip, out->grad_scale);
}

abar_status abar_optim_step(abar_optim *o, const abar_step_config *step, abar_step_report *report)
{
    abar_step_config c;
    ABAR_TRY(read_step(o->dev->ctx, step, &c));
    const double norm = c.grad_scale * sqrt(o->dev->ops->sum_squares(o->dev, o->items, o->n));
    const bool skip = !isfinite(norm);
    if (report) *report = (abar_step_report){.skipped = skip, .grad_norm = norm};
    if (skip) return ABAR_OK;
    const double clipping = c.clip > 0.0 ? fmin(1.0, c.clip / (norm + 1e-6)) : 1.0;
    o->updates++;
    const abar__update_scalars scalars = {.lr = c.lr, .grad_scale = c.grad_scale * clipping, .t = o->updates};
    o->rule->update(o->dev, o->config, o->items, o->n, scalars);
    return ABAR_OK;
}

/* ---- looking inside ----------------------------------------------------------------------------------------------- */

abar_status abar_optim_visit(abar_optim *o, abar_state_visitor visit, void *user)
{
    char *label = o->text + o->text_bytes - o->label_bytes;
    for (int k = 0; k < o->states; k++) {
        for (int i = 0; i < o->n; i++) {
            const abar_tensor *value = &o->params[i].value;
            const abar_tensor t = abar_tensor_wrap(o->dev, o->items[i].state[k], value->dtype, value->ndim, value->dim);
            snprintf(label, o->label_bytes, "%s.%s", o->rule->state_names[k], o->params[i].name);
            abar_status status = visit(user, label, &t);
            if (status != ABAR_OK) return status;
        }
    }
    const abar_tensor updates = abar_tensor_wrap(NULL, &o->updates, ABAR_I64, 0, NULL);
    return visit(user, "updates", &updates);
}

static size_t book_bytes(int n)
{
    return sizeof(abar_optim) + (size_t)n * (sizeof(abar_optim_param) + sizeof(abar__update_item));
}

size_t abar_optim_bytes(const abar_optim *o) { return book_bytes(o->n) + o->text_bytes + (size_t)o->states * o->state_bytes; }

size_t abar_optim_plan_bytes(const abar_device *dev, const char *rule, const void *rule_config, const int64_t *counts, int n)
{
    alignas(max_align_t) unsigned char config[ABAR_RULE_CONFIG_MAX];
    const abar__rule_ops *ops;
    if (find_rule(dev->ctx, rule, &ops) < 0 || abar__rule_configure(dev->ctx, ops, rule_config, config) < 0) return 0;
    size_t state = 0;
    for (int i = 0; i < n; i++) state += slot_bytes(dev, counts[i]);
    return book_bytes(n) + (size_t)ops->states(config) * state;
}
