/* Which chain every parameter gets: the rule decides by what the parameter is (optim_impl.h). */
#include "optim/optim_impl.h"

#include <string.h>

/* ---- what a rule may know of a parameter --------------------------------------------------------------------------- */

/* How q, k and v share the rows of a layer that makes all three. */
static void view_attention(const abar_attention *a, abar__param_view *view)
{
    const bool fused = a->heads > 0 && a->value_rows > 0 && a->value_row == 2 * a->value_rows && a->value_rows % a->heads == 0;
    if (!fused || view->rows != 3 * a->value_rows) return;
    view->heads = a->heads;
    view->head_rows = a->value_rows / a->heads;
}

static void view_layer(const abar_layer *l, abar__param_view *view)
{
    view->reads_input = l->reads_network_input;
    view->groups = 1;
    if (l->weight.ndim == 4) {
        view->groups = l->window.groups > 0 && view->rows % l->window.groups == 0 ? l->window.groups : 1;
        view->group_inputs = l->weight.dim[1];
    } else {
        view_attention(&l->attention, view);
    }
}

static abar__param_view view_of(const abar_optim_config *c, int i)
{
    const abar_tensor *value = &c->params[i].value;
    const int64_t rows = value->ndim > 0 ? value->dim[0] : 1;
    abar__param_view view = {.rows = rows, .columns = rows > 0 ? abar_tensor_count(value) / rows : 0, .base_lr = c->base_lr};
    view.ndim = value->ndim;
    memcpy(view.dim, value->dim, (size_t)value->ndim * sizeof *view.dim);
    for (int l = 0; l < c->n_layers; l++) {
        if (c->layers[l].weight.data != value->data) continue;
        if (view.layers++ == 0) view_layer(&c->layers[l], &view);
        view.yields_output = view.yields_output || (c->yields_output && c->yields_output[l]);
    }
    return view;
}

/* ---- chains --------------------------------------------------------------------------------------------------------- */

static abar__chain chain_of(const abar_optim *o, const void *settings, int i)
{
    abar__chain chain = {.scale = 1.0, .lr_scale = 1.0, .decay = -1.0};
    abar__param_view view = o->views[i];
    view.name = o->params[i].name;
    o->rule->plan(settings, &view, &chain);
    if (o->two_passes) chain.first = ABAR_UPDATE_MOMENTUM;
    return chain;
}

abar_status abar__optim_make_chains(abar_optim *o, const abar_optim_config *c)
{
    abar_context *ctx = o->dev->ctx;
    bool any = false, splits = false;
    ABAR_TRY(abar__alloc(ctx, (size_t)o->n * sizeof *o->views, (void **)&o->views));
    ABAR_TRY(abar__alloc(ctx, (size_t)o->n * sizeof *o->chains, (void **)&o->chains));
    for (int i = 0; i < o->n; i++) {
        o->views[i] = view_of(c, i);
        o->chains[i] = chain_of(o, o->config, i);
        ABAR_TRY(abar__optim_check_decay(o, i, o->params[i].weight_decay));
        any = any || abar__chain_is_own(&o->chains[i]);
        splits = splits || o->chains[i].why;
    }
    const char *rule = o->rule->rule.name;
    if (splits && !any)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "optimizer %s: takes none of the parameters: its matrices are the weights of hidden layers; give it "
                          "layers, name some in --%s-take, or use another optimizer",
                          rule, rule);
    if (splits && !(c->base_lr > 0.0))
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "optimizer %s: the peak of the learning rate is %g, give one above 0: the rates of the parameters it "
                          "leaves to AdamW are relative to it",
                          rule, c->base_lr);
    return abar__blocks_check(o);
}

static bool same_cut(const abar__cut *a, const abar__cut *b)
{
    bool same = a->order == b->order && a->part_rows == b->part_rows && a->piece == b->piece;
    for (int m = 0; m < a->order; m++) same = same && a->dim[m] == b->dim[m];
    return same;
}

static bool same_blocks(const abar__chain *a, const abar__chain *b)
{
    return a->first == b->first && a->orthogonalise == b->orthogonalise && a->block_rows == b->block_rows &&
           a->row_moment == b->row_moment && same_cut(&a->cut, &b->cut);
}

bool abar__optim_keeps_state(const abar_optim *o, const void *settings, const abar__update_scalars *scalars)
{
    abar__block_plan stages = {0};
    if (o->rule->stages) o->rule->stages(settings, &stages);
    if (!abar__blocks_agree(&stages, &o->block_plan)) return false;
    for (int i = 0; i < o->n; i++) {
        const abar__chain now = chain_of(o, settings, i), *was = &o->chains[i];
        if (!same_blocks(&now, was)) return false;
        if (abar__chain_states(&now, scalars) != abar__chain_states(was, &o->scalars)) return false;
    }
    return true;
}

void abar__optim_renew_chains(abar_optim *o)
{
    for (int i = 0; i < o->n; i++) o->chains[i] = chain_of(o, o->config, i);
}

/* ---- hyperball ------------------------------------------------------------------------------------------------------- */

abar_status abar__optim_check_decay(const abar_optim *o, int i, double decay)
{
    if (!o->chains[i].hyperball || decay == 0.0) return ABAR_OK;
    return abar__fail(o->dev->ctx, ABAR_E_ARGUMENT,
                      "--hyperball: the weight decay of %s is %g, but its norm stays as it is; set --weight-decay 0",
                      o->params[i].name, decay);
}

/* The first block of a parameter that is all 0, in row-major order on the host; -1: none is. */
static int64_t zero_block(const double *w, int64_t blocks, int64_t count)
{
    for (int64_t b = 0; b < blocks; b++) {
        int64_t i = 0;
        while (i < count && w[b * count + i] == 0.0) i++;
        if (i == count) return b;
    }
    return -1;
}

static abar_status check_weight(const abar_optim *o, int i)
{
    abar_context *ctx = o->dev->ctx;
    const abar_tensor *value = &o->params[i].value;
    const abar__chain *chain = &o->chains[i];
    const int64_t count = abar_tensor_count(value);
    const int64_t blocks = chain->orthogonalise ? o->views[i].rows / chain->block_rows : abar__param_blocks(o, i, NULL);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, (size_t)count * sizeof(double), &memory));
    const abar_tensor host = abar_tensor_wrap(NULL, memory, ABAR_F64, value->ndim, value->dim);
    const abar_status status = abar_tensor_copy(ctx, &host, value);
    const int64_t zero = status == ABAR_OK ? zero_block(memory, blocks, count / blocks) : -1;
    abar__free(ctx, memory, (size_t)count * sizeof(double));
    if (zero < 0) return status;
    return abar__fail(ctx, ABAR_E_ARGUMENT,
                      "--hyperball: block %lld of %s is zero and would stay so; initialise it, or leave %s", (long long)zero,
                      o->params[i].name, chain->orthogonalise ? "it out by --muon-skip" : "out --hyperball");
}

abar_status abar__optim_check_blocks(abar_optim *o)
{
    for (int i = 0; i < o->n && !o->blocks_checked; i++)
        if (o->chains[i].hyperball && o->items[i].grad) ABAR_TRY(check_weight(o, i));
    o->blocks_checked = true;
    return ABAR_OK;
}

/* ---- what a device or a method has no place for ----------------------------------------------------------------------- */

static abar_status check_inside(abar_device *dev, const char *method, const abar__update_scalars *s)
{
    const abar__curvature_ops *ops = method ? abar__method_find(method) : NULL;
    if (!s->inside || !dev->ops->stream) return ABAR_OK;
    if (ops && ops->is_joint) /* whose recipe it is, but which the device has not either */
        return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "%s: not on %s yet, use --device cpu", method, dev->ops->name);
    return abar__fail(dev->ctx, ABAR_E_UNSUPPORTED, "--decay inside: not on %s yet, use --device cpu or another --decay",
                      dev->ops->name);
}

/* Such a method has its own place for momentum and decay: it takes sgd's settings. */
static abar_status check_two_passes(const abar_optim *o, const char *method, const abar__update_scalars *s)
{
    abar_context *ctx = o->dev->ctx;
    if (!o->dev->ops->step->second)
        return abar__fail(ctx, ABAR_E_UNSUPPORTED, "%s: not on %s yet, use --device cpu", method, o->dev->ops->name);
    if (o->rule != &abar__rule_sgd)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "%s+%s: %s has an update of its own, use --optim %s", method,
                          o->rule->rule.name, method, method);
    if (s->nesterov || s->decoupled)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: its momentum is an average that has the decay in it, leave out --%s",
                          method, s->nesterov ? "nesterov" : "decay decoupled");
    return ABAR_OK;
}

abar_status abar__optim_check_rule(const abar_optim *o, const char *method, const abar__update_scalars *s)
{
    return o->two_passes ? check_two_passes(o, method, s) : check_inside(o->dev, method, s);
}

/* ---- looking at them -------------------------------------------------------------------------------------------------- */

static const char *rule_of(const abar_optim *o, const abar__chain *chain)
{
    if (abar__chain_is_own(chain)) return o->rule->rule.name;
    return chain->first == ABAR_UPDATE_SGD ? abar__rule_sgd.rule.name : abar__rule_adamw.rule.name;
}

abar_param_info abar__optim_param_info(const abar_optim *o, int i)
{
    const abar__chain *chain = &o->chains[i];
    const abar__update_item factors = abar__optim_factors(o, i);
    const abar__cut *cut = &chain->cut;
    int64_t rows = chain->orthogonalise ? chain->block_rows : 0, columns = rows > 0 ? o->views[i].columns : 0;
    int64_t blocks = rows > 0 ? o->views[i].rows / rows : 0;
    if (cut->order > 0) { /* the first, which is the largest */
        blocks = abar__param_blocks(o, i, NULL);
        rows = cut->dim[0] < cut->piece ? cut->dim[0] : cut->piece;
        columns = 1;
        for (int m = 1; m < cut->order; m++) columns *= cut->dim[m] < cut->piece ? cut->dim[m] : cut->piece;
    }
    return (abar_param_info){.name = o->params[i].name,
                             .value = o->params[i].value,
                             .rule = rule_of(o, chain),
                             .why = chain->why ? chain->why : "",
                             .lr_scale = factors.lr_scale,
                             .weight_decay = factors.weight_decay,
                             .blocks = blocks,
                             .block_rows = rows,
                             .block_columns = columns};
}
