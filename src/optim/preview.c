/* What an optimizer would be, for parameters that have shapes but no memory: its bytes, its maps, the rule of every parameter.
 */
#include "optim/optim_impl.h"

#include <stdio.h>
#include <string.h>

/* Parameters and layers with addresses that nobody reads, in one piece of memory. */
typedef struct imagined {
    void *memory;
    size_t bytes;
    abar_optim_config config;
} imagined;

static bool same_shape(const abar_tensor *a, const abar_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim) == 0;
}

/* Whether a parameter is called LAYER.SUFFIX. */
static bool is_called(const char *param, const char *layer, const char *suffix)
{
    const size_t n = layer ? strlen(layer) : 0;
    return layer && strncmp(param, layer, n) == 0 && param[n] == '.' && strcmp(param + n + 1, suffix) == 0;
}

/* The parameter of this shape that has the layer's name, else the next of its shape; used: those that have been found. */
static void *find_memory(const abar_tensor *t, const char *layer, const char *suffix, const abar_optim_param *params,
                         bool *used, int n)
{
    int found = -1;
    for (int i = n - 1; i >= 0; i--)
        if (!used[i] && same_shape(&params[i].value, t)) found = i;
    for (int i = 0; i < n; i++)
        if (!used[i] && same_shape(&params[i].value, t) && is_called(params[i].name, layer, suffix)) found = i;
    if (found < 0) return NULL;
    used[found] = true;
    return params[found].value.data;
}

static void invent_memory(abar_optim_param *params, int n, abar_layer *layers, int n_layers, bool *used)
{
    for (int i = 0; i < n; i++) params[i].value.data = params[i].grad.data = (void *)((uintptr_t)(i + 1) * ABAR_ALIGN);
    for (int i = 0; i < n_layers; i++) {
        abar_layer *l = &layers[i];
        l->weight.data = l->weight_grad.data = find_memory(&l->weight, l->name, "weight", params, used, n);
        if (l->bias.ndim) l->bias.data = l->bias_grad.data = find_memory(&l->bias, l->name, "bias", params, used, n);
    }
}

static abar_status imagine(abar_device *dev, const abar_optim_config *config, imagined *out)
{
    abar_optim_config c;
    ABAR_TRY(abar__optim_read_config(dev, config, &c));
    const size_t params = (size_t)c.n_params * sizeof *c.params, layers = (size_t)c.n_layers * sizeof *c.layers;
    const size_t extra = (size_t)c.n_params * sizeof(void *);
    *out = (imagined){.bytes = params + layers + extra + (size_t)c.n_params * sizeof(bool), .config = c};
    ABAR_TRY(abar__alloc(dev->ctx, out->bytes, &out->memory));
    abar_optim_param *p = out->memory;
    abar_layer *l = (abar_layer *)(void *)((char *)out->memory + params);
    if (params) memcpy(p, c.params, params);
    if (layers) memcpy(l, c.layers, layers);
    void **grads = (void **)(void *)((char *)l + layers);
    invent_memory(p, c.n_params, l, c.n_layers, (bool *)grads + extra);
    for (int i = 0; i < c.n_params; i++) grads[i] = p[i].grad.data;
    out->config.params = p;
    out->config.layers = l;
    out->config.extra_grads = grads;
    if (out->config.loss_terms == 0) out->config.loss_terms = 1;
    return ABAR_OK;
}

static void forget(abar_device *dev, imagined *i) { abar__free(dev->ctx, i->memory, i->bytes); }

/* The optimizer itself, without its memory. */
static abar_status imagine_made(abar_device *dev, const abar_optim_config *config, imagined *i, abar_optim **made)
{
    ABAR_TRY(imagine(dev, config, i));
    const abar_status status = abar__optim_imagine(dev, &i->config, made);
    if (status < 0) forget(dev, i);
    return status;
}

/* Planned by making it: what a step needs depends on every size. */
abar_status abar_optim_plan_bytes(abar_device *dev, const abar_optim_config *config, size_t *out)
{
    imagined i;
    abar_optim *made;
    *out = 0;
    ABAR_TRY(imagine_made(dev, config, &i, &made));
    *out = abar_optim_bytes(made) - made->text_bytes;
    abar_optim_destroy(made);
    forget(dev, &i);
    return ABAR_OK;
}

abar_status abar_optim_plan_pending(abar_device *dev, const abar_optim_config *config, int64_t *out)
{
    imagined i;
    abar_optim *made;
    *out = 0;
    ABAR_TRY(imagine_made(dev, config, &i, &made));
    *out = abar_optim_pending_count(made);
    abar_optim_destroy(made);
    forget(dev, &i);
    return ABAR_OK;
}

abar_status abar_optim_plan_maps(abar_device *dev, const abar_optim_config *config, abar_map_visitor visit, void *user)
{
    imagined i;
    abar_optim *made;
    ABAR_TRY(imagine(dev, config, &i));
    abar_status status = i.config.method ? abar__optim_begin(dev, &i.config, &made) : ABAR_OK;
    if (status == ABAR_OK && i.config.method) {
        status = abar__optim_list_maps(made, &i.config, visit, user);
        abar_optim_destroy(made);
    }
    forget(dev, &i);
    return status;
}

abar_status abar_optim_plan_params(abar_device *dev, const abar_optim_config *config, abar_param_visitor visit, void *user)
{
    imagined i;
    abar_optim *made;
    ABAR_TRY(imagine(dev, config, &i));
    abar_status status = abar__optim_begin(dev, &i.config, &made);
    if (status == ABAR_OK) {
        for (int k = 0; k < made->n; k++) {
            abar_param_info info = abar__optim_param_info(made, k);
            info.value.data = NULL;
            visit(user, &info);
        }
        abar_optim_destroy(made);
    }
    forget(dev, &i);
    return status;
}
