/* Ties an update rule, and a curvature method where one is wanted, to parameters: owns the rule's state, checks the gradients,
 * clips them by their global norm, has them preconditioned and runs one fused update per step (methods.md section 8). */
#include "optim/optim_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LONGEST_STATE 16 /* characters of the "momentum" of "momentum.conv1.weight" */

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
    const bool usable = abar_tensor_is_dense(t) || (dev->ops->channels_last && abar_tensor_is_channels_last(t));
    if (t->ndim < 0 || t->ndim > ABAR_MAX_DIM || !usable)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "optim: the %s of %s is not dense, make it row-major without gaps", what,
                          param);
    for (int i = 0; i < t->ndim; i++)
        if (t->dim[i] < 0) return abar__fail(ctx, ABAR_E_ARGUMENT, "optim: the %s of %s has a negative size", what, param);
    if (!t->data && abar_tensor_count(t) > 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "optim: the %s of %s has no memory", what, param);
    return ABAR_OK;
}

static bool is_factor(double x) { return isfinite(x) && x >= 0.0; }

static abar_status check_factors(abar_device *dev, const abar_optim_param *p)
{
    if (is_factor(p->lr_scale) && is_factor(p->weight_decay)) return ABAR_OK;
    return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optim: lr_scale %g and weight_decay %g of %s must be finite and not negative",
                      p->lr_scale, p->weight_decay, p->name);
}

static abar_status check_param(abar_device *dev, const abar_optim_param *p)
{
    ABAR_TRY(check_tensor(dev, p->name, "value", &p->value));
    if (p->grad.data) ABAR_TRY(check_tensor(dev, p->name, "gradient", &p->grad));
    int64_t count = abar_tensor_count(&p->value), grads = p->grad.data ? abar_tensor_count(&p->grad) : count;
    if (count != grads)
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optim: %s has %lld elements, but its gradient %lld", p->name,
                          (long long)count, (long long)grads);
    if (p->grad.data && abar_tensor_is_channels_last(&p->value) != abar_tensor_is_channels_last(&p->grad))
        return abar__fail(dev->ctx, ABAR_E_ARGUMENT, "optim: %s and its gradient are in different orders", p->name);
    return check_factors(dev, p);
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

abar__update_item abar__optim_factors(const abar_optim *o, int i)
{
    const abar__chain *chain = &o->chains[i];
    const double decay = o->params[i].weight_decay;
    return (abar__update_item){.lr_scale = o->params[i].lr_scale * chain->lr_scale,
                               .weight_decay = chain->decay < 0.0 || decay == 0.0 ? decay : chain->decay,
                               .cautious = chain->cautious};
}

static void set_factors(abar_optim *o, int i)
{
    const abar__update_item factors = abar__optim_factors(o, i);
    o->items[i].lr_scale = factors.lr_scale;
    o->items[i].weight_decay = factors.weight_decay;
    o->items[i].cautious = factors.cautious;
}

/* What one parameter takes in each block of state: whole cache lines, so that vectors never straddle two. */
static size_t slot_bytes(const abar_device *dev, int64_t count)
{
    return abar__round_up((size_t)count * abar_dtype_size(dev->ops->dtype), ABAR_ALIGN);
}

static abar_status copy_params(abar_optim *o, const abar_optim_param *params)
{
    size_t longest = 0, all = 0;
    for (int i = 0; i < o->n; i++) {
        size_t length = strlen(params[i].name);
        longest = length > longest ? length : longest;
        all += length + 1;
    }
    o->label_bytes = LONGEST_STATE + 1 + longest + 1;
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

size_t abar__optim_slot_bytes(const abar_optim *o, int i, int k)
{
    return slot_bytes(o->dev, abar__optim_state_count(o, i, k));
}

/* Elements of state k of parameter i that this rank keeps. */
static int64_t own_count(const abar_optim *o, int i, int k)
{
    return abar__zero_owns(o, i) ? abar__optim_state_count(o, i, k) : 0;
}

static abar_status make_state(abar_optim *o, void *const *shadows)
{
    abar_device *dev = o->dev;
    ABAR_TRY(abar__alloc(dev->ctx, (size_t)o->n * sizeof *o->items, (void **)&o->items));
    ABAR_TRY(abar__alloc(dev->ctx, (size_t)o->n * sizeof *o->states, (void **)&o->states));
    for (int i = 0; i < o->n; i++) {
        const abar_optim_param *p = &o->params[i];
        o->items[i] = (abar__update_item){.kind = o->chains[i].first,
                                          .weight = p->value.data,
                                          .grad = p->grad.data,
                                          .count = abar_tensor_count(&p->value),
                                          .shadow = shadows ? shadows[i] : NULL,
                                          .map = -1,
                                          .block = -1};
        set_factors(o, i);
    }
    for (int k = 0; k < ABAR_PARAM_STATES; k++) {
        size_t offset = 0;
        for (int i = 0; i < o->n; i++) o->state_bytes[k] += slot_bytes(dev, own_count(o, i, k));
        ABAR_TRY(abar_device_alloc(dev, o->state_bytes[k], &o->state[k]));
        for (int i = 0; i < o->n; i++) {
            const int64_t count = own_count(o, i, k);
            if (count > 0) o->states[i][k] = (char *)o->state[k] + offset;
            if (k < ABAR_ITEM_STATES && o->chains[i].cut.order == 0) o->items[i].state[k] = o->states[i][k];
            offset += slot_bytes(dev, count);
        }
    }
    return ABAR_OK;
}

/* The parameter whose values are at this address. */
static int find_param(const abar_optim *o, const void *data)
{
    for (int i = 0; i < o->n; i++)
        if (o->params[i].value.data == data) return i;
    return -1;
}

static abar_status find_owner(const abar_optim *o, const abar_layer *l, abar__owner *out)
{
    const int weight = find_param(o, l->weight.data), bias = l->bias.ndim ? find_param(o, l->bias.data) : -1;
    if (weight < 0 || (l->bias.ndim && bias < 0))
        return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT, "optim: the weight or bias of layer %s is not among the parameters",
                          l->name);
    if (o->params[weight].grad.data != l->weight_grad.data || (bias >= 0 && o->params[bias].grad.data != l->bias_grad.data))
        return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT, "optim: layer %s has other gradients than its parameters", l->name);
    *out = (abar__owner){weight, bias};
    return ABAR_OK;
}

static abar_status make_updates(abar_optim *o, const abar_layer *layers)
{
    abar_context *ctx = o->dev->ctx;
    const size_t n = (size_t)o->n, maps = o->curvature ? (size_t)o->curvature->n_maps : 0;
    o->n_maps = (int)maps;
    ABAR_TRY(abar__alloc(ctx, n * sizeof *o->active, (void **)&o->active));
    for (int i = 0; i < o->n; i++)
        if (o->chains[i].orthogonalise) o->blocks_capacity += (int)(o->params[i].value.dim[0] / o->chains[i].block_rows);
    for (int i = 0; i < o->n; i++) {
        if (o->chains[i].cut.order == 0) continue;
        o->n_cut++;
        o->tensors_capacity += abar__param_blocks(o, i, NULL);
    }
    if (o->two_passes) o->n_cut = o->n;
    const size_t blocks = (size_t)o->blocks_capacity, tensors = (size_t)o->tensors_capacity, cut = (size_t)o->n_cut;
    ABAR_TRY(abar__alloc(ctx, blocks * sizeof *o->blocks, (void **)&o->blocks));
    ABAR_TRY(abar__alloc(ctx, tensors * sizeof *o->tensors, (void **)&o->tensors));
    ABAR_TRY(abar__alloc(ctx, (n + maps + blocks + cut) * sizeof *o->updates, (void **)&o->updates));
    ABAR_TRY(abar__alloc(ctx, maps * sizeof *o->biases, (void **)&o->biases));
    ABAR_TRY(abar__alloc(ctx, maps * sizeof *o->owners, (void **)&o->owners));
    ABAR_TRY(abar__alloc(ctx, n * sizeof *o->mapped, (void **)&o->mapped));
    ABAR_TRY(abar__alloc(ctx, n * sizeof *o->first_map, (void **)&o->first_map));
    for (int i = 0; i < o->n; i++) o->first_map[i] = -1;
    for (int m = 0; m < o->n_maps; m++) {
        o->owners[m] = (abar__owner){-1, -1};
        if (o->curvature->maps[m].layer < 0) continue; /* all parameters */
        ABAR_TRY(find_owner(o, &layers[o->curvature->maps[m].layer], &o->owners[m]));
        if (!o->curvature->maps[m].bias) o->owners[m].bias = -1; /* there is none, or the rule has it */
        o->mapped[o->owners[m].weight] = true;
        if (o->first_map[o->owners[m].weight] < 0) o->first_map[o->owners[m].weight] = m;
        if (o->owners[m].bias >= 0) o->mapped[o->owners[m].bias] = true;
        if (o->owners[m].bias >= 0 && abar__zero_owns(o, o->owners[m].bias) != abar__zero_owns(o, o->owners[m].weight))
            return abar__fail(ctx, ABAR_E_UNSUPPORTED, "--zero 1: %s and %s are one map of two modules, use --zero 0",
                              o->params[o->owners[m].weight].name, o->params[o->owners[m].bias].name);
    }
    ABAR_TRY(abar__optim_make_rings(o));
    abar__optim_lay_out(o);
    return ABAR_OK;
}

abar_status abar__optim_read_config(abar_device *dev, const abar_optim_config *config, abar_optim_config *out)
{
    return abar__struct_read(dev->ctx, "abar_optim_config", config, out, sizeof *out);
}

static int64_t count_elements(const abar_optim *o)
{
    int64_t count = 0;
    for (int i = 0; i < o->n; i++) count += abar_tensor_count(&o->params[i].value);
    return count;
}

static abar__curvature_request curvature_request(const abar_optim *o, const abar_optim_config *c, const bool *skip)
{
    return (abar__curvature_request){.method = c->method,
                                     .skip = skip,
                                     .unclipped = o->rule->orthogonalise != NULL,
                                     .method_config = c->method_config,
                                     .layer_configs = c->method_configs,
                                     .common = c->curvature,
                                     .layers = c->layers,
                                     .n_layers = c->n_layers,
                                     .parameters = count_elements(o),
                                     .plan_only = o->plan_only,
                                     .base_lr = c->base_lr,
                                     .examples = c->examples,
                                     .classes = c->classes};
}

/* ---- the method in front ------------------------------------------------------------------------------------------- */

/* A method acts on the maps whose weight the rule's own chain takes. */
static void skip_layers(const abar_optim *o, const abar_optim_config *c, bool *skip)
{
    for (int l = 0; l < c->n_layers; l++) {
        const int weight = find_param(o, c->layers[l].weight.data);
        skip[l] = weight >= 0 && !abar__chain_is_own(&o->chains[weight]);
    }
}

abar_status abar__optim_list_maps(const abar_optim *o, const abar_optim_config *c, abar_map_visitor visit, void *user)
{
    bool *skip;
    const size_t bytes = (size_t)c->n_layers * sizeof *skip;
    ABAR_TRY(abar__alloc(o->dev->ctx, bytes, (void **)&skip));
    skip_layers(o, c, skip);
    const abar__curvature_request request = curvature_request(o, c, skip);
    const abar_status status = abar__curvature_plan_maps(o->dev, &request, visit, user);
    abar__free(o->dev->ctx, skip, bytes);
    return status;
}

static abar_status make_curvature(abar_optim *o, const abar_optim_config *c)
{
    bool *skip;
    if (!c->method) return ABAR_OK;
    const size_t bytes = (size_t)c->n_layers * sizeof *skip;
    ABAR_TRY(abar__alloc(o->dev->ctx, bytes, (void **)&skip));
    skip_layers(o, c, skip);
    const abar__curvature_request request = curvature_request(o, c, skip);
    const abar_status status = abar__curvature_create(o->dev, &request, &o->curvature);
    abar__free(o->dev->ctx, skip, bytes);
    return status;
}

/* The rule's settings, as the passes want them. */
static void read_rule(abar_optim *o)
{
    o->scalars = (abar__update_scalars){0};
    o->rule->scalars(o->config, &o->scalars);
    if (o->two_passes) o->scalars.inside = true;
    o->block_plan = (abar__block_plan){0};
    if (o->rule->stages) o->rule->stages(o->config, &o->block_plan);
    if (o->rule->orthogonalise) o->rule->orthogonalise(o->config, &o->ns, &o->row_decay, &o->ns_exact);
    o->scalars.clip_scale *= (double)o->loss_terms;
    abar__optim_read_extra(o);
}

abar_status abar__optim_begin(abar_device *dev, const abar_optim_config *c, abar_optim **out)
{
    abar_optim o = {.dev = dev, .n = c->n_params, .loss_terms = c->loss_terms}, *made;
    *out = NULL;
    ABAR_TRY(find_rule(dev->ctx, c->rule, &o.rule));
    ABAR_TRY(abar__rule_configure(dev->ctx, o.rule, c->rule_config, o.config));
    const abar__curvature_ops *method = c->method ? abar__method_find(c->method) : NULL;
    o.two_passes = method && method->second_pass;
    read_rule(&o);
    ABAR_TRY(abar__optim_check_rule(&o, c->method, &o.scalars));
    if (o.block_plan.wrong)
        return abar__fail(dev->ctx, ABAR_E_STATE, "stages of %s: %s", o.rule->rule.name, o.block_plan.wrong);
    ABAR_TRY(check_params(dev, c->params, c->n_params));
    ABAR_TRY(abar__alloc(dev->ctx, sizeof *made, (void **)&made));
    *made = o;
    abar_status status = copy_params(made, c->params);
    if (status == ABAR_OK) status = abar__optim_make_chains(made, c);
    if (status < 0) {
        abar_optim_destroy(made);
        return status;
    }
    *out = made;
    return ABAR_OK;
}

static abar_status make(abar_optim *o, const abar_optim_config *config, const abar__owners *ranks)
{
    if (ranks && abar__owners_divide(ranks)) ABAR_TRY(abar__zero_make(o, ranks));
    ABAR_TRY(make_state(o, config->shadows));
    ABAR_TRY(abar__optim_make_extra(o, config));
    ABAR_TRY(make_curvature(o, config));
    ABAR_TRY(make_updates(o, config->layers));
    return abar__optim_make_step(o);
}

static abar_status create(abar_device *dev, const abar_optim_config *config, const abar__owners *ranks, bool plan_only,
                          abar_optim **out)
{
    *out = NULL;
    abar_optim_config c;
    abar_optim *made;
    ABAR_TRY(abar__optim_read_config(dev, config, &c));
    ABAR_TRY(abar__optim_begin(dev, &c, &made));
    made->plan_only = plan_only;
    abar_status status = make(made, &c, ranks);
    if (status < 0) {
        abar_optim_destroy(made);
        return status;
    }
    *out = made;
    return ABAR_OK;
}

abar_status abar_optim_create(abar_device *dev, const abar_optim_config *config, abar_optim **out)
{
    return dev && out ? create(dev, config, NULL, false, out) : ABAR_E_ARGUMENT;
}

abar_status abar__optim_create_on(abar_device *dev, const abar_optim_config *config, const abar__owners *ranks,
                                  abar_optim **out)
{
    return create(dev, config, ranks, false, out);
}

abar_status abar__optim_imagine(abar_device *dev, const abar_optim_config *config, abar_optim **out)
{
    return create(dev, config, NULL, true, out);
}

void abar_optim_destroy(abar_optim *o)
{
    if (!o) return;
    abar_context *ctx = o->dev->ctx;
    abar__optim_free_step(o);
    abar__optim_free_extra(o);
    abar__zero_free(o);
    for (int k = 0; k < ABAR_PARAM_STATES; k++) abar_device_free(o->dev, o->state[k], o->state_bytes[k]);
    abar__free(ctx, o->views, (size_t)o->n * sizeof *o->views);
    abar__free(ctx, o->chains, (size_t)o->n * sizeof *o->chains);
    abar__free(ctx, o->blocks, (size_t)o->blocks_capacity * sizeof *o->blocks);
    abar__free(ctx, o->active, (size_t)o->n * sizeof *o->active);
    abar__free(ctx, o->tensors, (size_t)o->tensors_capacity * sizeof *o->tensors);
    abar__free(ctx, o->updates, (size_t)(o->n + o->n_maps + o->blocks_capacity + o->n_cut) * sizeof *o->updates);
    abar__free(ctx, o->biases, (size_t)o->n_maps * sizeof *o->biases);
    abar__free(ctx, o->owners, (size_t)o->n_maps * sizeof *o->owners);
    abar__free(ctx, o->mapped, (size_t)o->n * sizeof *o->mapped);
    abar__free(ctx, o->first_map, (size_t)o->n * sizeof *o->first_map);
    abar__free(ctx, o->rings, (size_t)o->n_rings * sizeof *o->rings);
    abar__free(ctx, o->pieces, (size_t)o->pieces_capacity * sizeof *o->pieces);
    abar__curvature_destroy(o->curvature);
    abar__free(ctx, o->items, (size_t)o->n * sizeof *o->items);
    abar__free(ctx, o->states, (size_t)o->n * sizeof *o->states);
    abar__free(ctx, o->params, (size_t)o->n * sizeof *o->params);
    abar__free(ctx, o->text, o->text_bytes);
    abar__free(ctx, o, sizeof *o);
}

/* ---- stepping ----------------------------------------------------------------------------------------------------- */

abar_status abar__optim_read_step(abar_context *ctx, const abar_step_config *step, abar_step_config *out)
{
    ABAR_TRY(abar__struct_read(ctx, "abar_step_config", step, out, sizeof *out));
    if (out->grad_scale == 0.0) out->grad_scale = 1.0;
    if (out->observed_scale == 0.0) out->observed_scale = 1.0;
    if (is_factor(out->lr) && is_factor(out->clip) && is_factor(out->grad_scale) && is_factor(out->observed_scale))
        return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT,
                      "step: lr %g, clip %g, grad_scale %g and observed_scale %g must be finite and not negative", out->lr,
                      out->clip, out->grad_scale, out->observed_scale);
}

abar_status abar_optim_set_param(abar_optim *o, int index, void *value, void *grad, double lr_scale, double weight_decay)
{
    abar_context *ctx = o->dev->ctx;
    if (index < 0 || index >= o->n)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "set_param: there is no parameter %d, they are numbered 0 to %d", index,
                          o->n - 1);
    abar__update_item *item = &o->items[index];
    abar_optim_param p = o->params[index];
    if (!value && item->count > 0) return abar__fail(ctx, ABAR_E_ARGUMENT, "set_param: %s has no memory", p.name);
    p.lr_scale = lr_scale;
    p.weight_decay = weight_decay;
    p.value.data = value;
    p.grad.data = grad;
    ABAR_TRY(check_factors(o->dev, &p));
    ABAR_TRY(abar__optim_check_decay(o, index, weight_decay));
    o->params[index] = p;
    item->weight = value;
    item->grad = grad;
    set_factors(o, index);
    o->moved = true;
    return ABAR_OK;
}

abar_status abar_optim_set_rule(abar_optim *o, const void *rule_config)
{
    alignas(max_align_t) unsigned char config[ABAR_RULE_CONFIG_MAX];
    abar__update_scalars scalars = {0};
    ABAR_TRY(abar__rule_configure(o->dev->ctx, o->rule, rule_config, config));
    o->rule->scalars(config, &scalars);
    ABAR_TRY(abar__optim_check_rule(o, o->curvature ? o->curvature->ops->method.name : NULL, &scalars));
    if (!abar__optim_keeps_state(o, config, &scalars))
        return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT,
                          "set_rule: %s with these settings keeps other state, create a new optimizer", o->rule->rule.name);
    memcpy(o->config, config, sizeof config);
    read_rule(o);
    abar__optim_renew_chains(o);
    for (int i = 0; i < o->n; i++) set_factors(o, i);
    o->moved = o->reruled = true;
    return ABAR_OK;
}

/* ---- the point that is tested --------------------------------------------------------------------------------------- */

abar_status abar_optim_average(abar_optim *o)
{
    if (!o->scalars.schedule_free) return ABAR_OK;
    for (int i = 0; i < o->n; i++) { /* those without a gradient, too */
        if (!abar__zero_owns(o, i)) continue;
        const abar__update_item *item = &o->items[i];
        ABAR_TRY(o->dev->ops->step->shift(o->dev, item->count, item->weight, item->state[0], 1.0 - 1.0 / o->scalars.beta1,
                                          item->shadow));
    }
    return abar__zero_gather_weights(o);
}

/* ---- curvature ------------------------------------------------------------------------------------------------------ */

bool abar_optim_observes(const abar_optim *o) { return o->curvature && abar__curvature_observes(o->curvature); }

abar_status abar_optim_observe(abar_optim *o, int index, const abar_layer *layer)
{
    return o->curvature ? abar__curvature_observe(o->curvature, index, layer) : ABAR_OK;
}

void abar_optim_forget(abar_optim *o)
{
    if (o->curvature) abar__curvature_forget(o->curvature);
}

void abar_optim_forget_layer(abar_optim *o, int index)
{
    if (o->curvature) abar__curvature_forget_layer(o->curvature, index);
}

int64_t abar_optim_pending_count(const abar_optim *o)
{
    return o->curvature && abar__curvature_observes(o->curvature) ? abar__curvature_pending_count(o->curvature) : 0;
}

abar_status abar_optim_pending_read(abar_optim *o, double *out)
{
    return abar_optim_pending_count(o) ? abar__curvature_pending_read(o->curvature, out) : ABAR_OK;
}

abar_status abar_optim_pending_write(abar_optim *o, const double *in)
{
    return abar_optim_pending_count(o) ? abar__curvature_pending_write(o->curvature, in) : ABAR_OK;
}

void abar_optim_begin_part(abar_optim *o, int64_t first)
{
    if (o->curvature) abar__curvature_begin_part(o->curvature, first);
}

abar_status abar_optim_visit_rows(abar_optim *o, abar_rows_visitor visit, void *user)
{
    return abar_optim_pending_count(o) ? abar__curvature_visit_rows(o->curvature, visit, user) : ABAR_OK;
}

bool abar_optim_wants_calibration(const abar_optim *o, int index)
{
    return o->curvature && abar__curvature_wants_calibration(o->curvature, index);
}

abar_status abar_optim_calibrate(abar_optim *o, int index, const abar_tensor *input)
{
    return o->curvature ? abar__curvature_calibrate(o->curvature, index, input) : ABAR_OK;
}

abar_status abar_optim_end_calibration(abar_optim *o)
{
    if (!o->curvature) return ABAR_OK;
    ABAR_TRY(abar__optim_pull(o));
    ABAR_TRY(abar__curvature_end_calibration(o->curvature));
    return abar__optim_push(o);
}

int abar_optim_map_count(const abar_optim *o) { return o->n_maps; }

const abar_map_info *abar_optim_map(abar_optim *o, int i)
{
    (void)abar__optim_pull(o); /* a failure of the device is told by the next wait */
    o->map_info = abar__curvature_map(o->curvature, i);
    return &o->map_info;
}

abar_status abar_optim_mean_activation(abar_optim *o, int i, double *out)
{
    if (!o->curvature)
        return abar__fail(o->dev->ctx, ABAR_E_UNSUPPORTED, "mean activation: %s alone keeps none", o->rule->rule.name);
    ABAR_TRY(abar__optim_pull(o));
    return abar__curvature_mean_activation(o->curvature, i, out);
}

void abar_optim_measure(abar_optim *o)
{
    if (o->curvature) o->curvature->measure = true;
}

const abar_phase_times *abar_optim_times(abar_optim *o)
{
    (void)abar__optim_pull(o); /* a failure of the device is told by the next wait */
    o->times = (abar_phase_times){.kl_scale = 1.0};
    if (!o->curvature) return &o->times;
    o->times.observe = o->curvature->observe_seconds;
    o->times.kl_scale = o->curvature->kl_scale;
    o->dev->ops->step->times(o->step, &o->times.refresh, &o->times.apply);
    return &o->times;
}

/* ---- looking inside ----------------------------------------------------------------------------------------------- */

abar_status abar_optim_visit(abar_optim *o, abar_state_visitor visit, void *user)
{
    char *label = o->text + o->text_bytes - o->label_bytes;
    ABAR_TRY(abar__optim_check_pass(o, "state"));
    ABAR_TRY(abar__optim_pull(o));
    for (int k = 0; k < ABAR_PARAM_STATES; k++) {
        for (int i = 0; i < o->n; i++) {
            const int64_t count = abar__optim_state_count(o, i, k);
            if (k >= abar__optim_states(o, i)) continue;
            const bool like_param = abar__optim_is_like_param(o, i, k);
            if (count == 0 && !like_param) continue; /* its blocks have no such matrices */
            abar_tensor t = o->params[i].value;      /* in its order */
            if (!like_param) t = abar_tensor_wrap(o->dev, NULL, t.dtype, 1, &count);
            t.data = o->zero ? abar__zero_whole(o, i, k) : o->states[i][k];
            if (o->zero && t.data) t.dev = NULL; /* in host memory */
            snprintf(label, o->label_bytes, "%s.%s", abar__optim_state_name(o, i, k), o->params[i].name);
            abar_status status = visit(user, label, &t);
            if (status != ABAR_OK) return status;
        }
    }
    const abar_tensor updates = abar_tensor_wrap(NULL, &o->step_state.t, ABAR_I64, 0, NULL);
    ABAR_TRY(visit(user, "updates", &updates));
    if (o->scalars.schedule_free) {
        const abar_tensor rate = abar_tensor_wrap(NULL, &o->step_state.rate_max, ABAR_F64, 0, NULL);
        const abar_tensor sum = abar_tensor_wrap(NULL, &o->step_state.weight_sum, ABAR_F64, 0, NULL);
        ABAR_TRY(visit(user, "rate_max", &rate));
        ABAR_TRY(visit(user, "weight_sum", &sum));
    }
    if (o->blocks_capacity > 0) { /* of chains that orthogonalise only */
        const abar_tensor dropped = abar_tensor_wrap(NULL, &o->step_state.dropped, ABAR_I64, 0, NULL);
        const abar_tensor small = abar_tensor_wrap(NULL, &o->step_state.small, ABAR_I64, 0, NULL);
        ABAR_TRY(visit(user, "blocks_dropped", &dropped));
        ABAR_TRY(visit(user, "blocks_small", &small));
    }
    if (o->tensors_capacity > 0) {
        const abar_tensor dropped = abar_tensor_wrap(NULL, &o->step_state.dropped, ABAR_I64, 0, NULL);
        const abar_tensor kept = abar_tensor_wrap(NULL, &o->step_state.kept, ABAR_I64, 0, NULL);
        ABAR_TRY(visit(user, "blocks_dropped", &dropped));
        ABAR_TRY(visit(user, "blocks_kept", &kept));
    }
    if (o->extra_items) { /* which step needs extra gradients, and whether there has been one */
        const abar_tensor steps = abar_tensor_wrap(NULL, &o->k, ABAR_I64, 0, NULL);
        const abar_tensor taken = abar_tensor_wrap(NULL, &o->step_state.diagonals, ABAR_I64, 0, NULL);
        const abar_tensor dropped = abar_tensor_wrap(NULL, &o->step_state.extra_dropped, ABAR_I64, 0, NULL);
        ABAR_TRY(visit(user, "steps", &steps));
        ABAR_TRY(visit(user, "diagonals", &taken));
        ABAR_TRY(visit(user, "diagonals_dropped", &dropped));
    }
    if (o->curvature) ABAR_TRY(abar__curvature_visit(o->curvature, visit, user));
    return abar__optim_push(o); /* the visitor may have come to write */
}

const abar_param_info *abar_optim_param_info(abar_optim *o, int i)
{
    o->param_info = abar__optim_param_info(o, i);
    return &o->param_info;
}

const abar_block_counts *abar_optim_blocks(abar_optim *o)
{
    (void)abar__optim_pull(o); /* a failure of the device is told by the next wait */
    o->block_counts = (abar_block_counts){.blocks = o->n_blocks + o->n_tensors,
                                          .dropped = o->step_state.dropped,
                                          .small = o->step_state.small,
                                          .kept = o->step_state.kept};
    return &o->block_counts;
}

static size_t book_bytes(const abar_optim *o)
{
    const size_t n = (size_t)o->n, maps = (size_t)o->n_maps, blocks = (size_t)o->blocks_capacity, cut = (size_t)o->n_cut;
    return sizeof *o +
           n * (sizeof *o->params + sizeof *o->views + sizeof *o->chains + sizeof *o->states + 2 * sizeof(abar__update_item) +
                sizeof(bool) + sizeof(int)) +
           (n + maps + blocks + cut) * sizeof(abar__update_item) + maps * (sizeof(abar__update_item) + sizeof(abar__owner)) +
           blocks * sizeof(abar__ns_block) + (size_t)o->tensors_capacity * sizeof(abar__block) +
           (size_t)o->n_rings * sizeof *o->rings + (size_t)o->pieces_capacity * sizeof *o->pieces;
}

static size_t allocated_bytes(const abar_optim *o)
{
    size_t bytes = 0;
    for (int k = 0; k < ABAR_PARAM_STATES; k++) bytes += o->state_bytes[k];
    return bytes;
}

size_t abar__optim_rule_bytes(const abar_optim *o)
{
    int64_t count = 0;
    for (int i = 0; i < o->n; i++)
        for (int k = 0; k < ABAR_PARAM_STATES; k++) count += abar__optim_state_count(o, i, k);
    return (size_t)count * abar_dtype_size(o->dev->ops->dtype);
}

size_t abar_optim_bytes(const abar_optim *o)
{
    return book_bytes(o) + o->text_bytes + allocated_bytes(o) + (o->curvature ? abar__curvature_bytes(o->curvature) : 0) +
           abar__optim_step_bytes(o) + abar__optim_extra_bytes(o) + abar__zero_bytes(o) +
           (o->derived ? sizeof *o->derived + abar__pieces_bytes(o->derived) : 0);
}

size_t abar_optim_state_bytes(const abar_optim *o)
{
    return allocated_bytes(o) + (o->curvature ? abar__curvature_state_bytes(o->curvature) : 0);
}
