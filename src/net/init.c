/* Initial weights: drawn on the host from (seed, parameter number, element), equal on every device. */
#include "net/net_impl.h"
#include "base/rng.h"

#include <math.h>
#include <omp.h>

#define SMALL 0.02 /* standard deviation of the weights of transformers */

bool abar__net_add_weights(abar_net *net, abar__node *node, int ndim, const int64_t *dim, bool bias, abar_init init,
                           int64_t layers)
{
    if (init == ABAR_INIT_GPT_RESIDUAL && layers < 1) {
        abar__net_mistake(net, "%s: this initialisation depends on the number of layers, set layers", node->name);
        return false;
    }
    int64_t kernel = ndim == 4 ? dim[2] * dim[3] : 1;
    double fan_in = (double)(dim[1] * kernel), fan_out = (double)(dim[0] * kernel);
    abar__param_info *w = abar__net_add_param(net, node, 0, "weight", ABAR_PARAM_WEIGHT, ndim, dim);
    if (!w) return false;
    bool bias_too = true; /* the bias is drawn, too */
    switch (init) {
    case ABAR_INIT_TORCH: w->uniform = 1.0 / sqrt(fan_in); break;
    case ABAR_INIT_KAIMING_IN: w->normal = sqrt(2.0 / fan_in); break;
    case ABAR_INIT_KAIMING_OUT: w->normal = sqrt(2.0 / fan_out); break;
    case ABAR_INIT_TRUNCATED: /* cut at a hundred standard deviations, which no draw reaches */
    case ABAR_INIT_GPT:
    case ABAR_INIT_GPT_RESIDUAL:
        w->normal = init == ABAR_INIT_GPT_RESIDUAL ? SMALL / sqrt(2.0 * (double)layers) : SMALL;
        bias_too = false;
        break;
    }
    node->desc.bias = bias;
    if (!bias) return true;
    abar__param_info *b = abar__net_add_param(net, node, 1, "bias", ABAR_PARAM_BIAS, 1, dim);
    if (b && bias_too) b->uniform = 1.0 / sqrt(fan_in);
    return b != NULL;
}

static double draw(const abar__param_info *p, uint64_t seed, uint32_t number, int64_t element)
{
    if (p->uniform != 0.0) {
        abar__draw d = abar__random(seed, ABAR_DRAW_INIT, number, (uint64_t)element / 4);
        return p->uniform * (2.0 * abar__uniform(d.u[element % 4]) - 1.0);
    }
    if (p->normal != 0.0) {
        double pair[2];
        abar__normal(abar__random(seed, ABAR_DRAW_INIT, number, (uint64_t)element / 2), pair);
        return p->normal * pair[element % 2];
    }
    return p->constant;
}

/* Draws and copies as many rows at a time as fit into chunk, at least one. */
static abar_status draw_rows(abar_net *net, int i, double *chunk, int64_t room)
{
    const abar__param_info *p = &net->params[i];
    const int64_t all = abar_tensor_count(&p->public.value);
    const bool dense = abar_tensor_is_dense(&p->public.value);
    const abar_tensor flat = abar_tensor_wrap(net->dev, p->public.value.data, p->public.value.dtype, 1, &all);
    const abar_tensor *value = dense ? &flat : &p->public.value;
    const int64_t rows = value->dim[0], row = abar_tensor_count(value) / rows, step = room / row > 0 ? room / row : 1;
    const int given = net->dev->config.threads, threads = given > 0 ? given : omp_get_max_threads();
    for (int64_t at = 0; at < rows; at += step) {
        abar_tensor to = *value;
        to.dim[0] = rows - at < step ? rows - at : step;
        to.data = (char *)value->data + (size_t)(at * value->stride[0]) * abar_dtype_size(value->dtype);
        const int64_t count = to.dim[0] * row;
#pragma omp parallel for num_threads(threads) if (count > 4096)
        for (int64_t k = 0; k < count; k++) chunk[k] = draw(p, net->config.seed, (uint32_t)i, at * row + k);
        abar_tensor from = abar_tensor_wrap(NULL, chunk, ABAR_F64, to.ndim, to.dim);
        ABAR_TRY(abar_tensor_copy(net->ctx, &to, &from));
    }
    return ABAR_OK;
}

#define CHUNK 8192 /* elements copied to the device at a time */

static abar_status draw_param(abar_net *net, int i)
{
    const abar_tensor *value = &net->params[i].public.value;
    const int64_t row = abar_tensor_count(value) / value->dim[0];
    double chunk[CHUNK];
    if (row <= CHUNK || abar_tensor_is_dense(value)) return draw_rows(net, i, chunk, CHUNK);
    void *longer; /* for rows with channels last, which are copied as a whole */
    ABAR_TRY(abar__alloc(net->ctx, (size_t)row * sizeof(double), &longer));
    abar_status status = draw_rows(net, i, longer, row);
    abar__free(net->ctx, longer, (size_t)row * sizeof(double));
    return status;
}

abar_status abar__net_init_params(abar_net *net)
{
    for (int i = 0; i < net->n_params; i++) ABAR_TRY(draw_param(net, i));
    double one = 1.0;
    for (int i = 0; i < net->n_norms; i++) { /* the running variance starts at 1, the running mean at 0 */
        const abar__norm_state *s = &net->norms[i];
        abar_tensor from = abar_tensor_wrap(NULL, &one, ABAR_F64, 1, &s->channels);
        from.stride[0] = 0;
        abar_tensor to = abar_tensor_wrap(net->dev, (char *)net->running + s->offset[1], net->dev->ops->dtype, 1, &s->channels);
        ABAR_TRY(abar_tensor_copy(net->ctx, &to, &from));
    }
    abar_net_rollback(net);
    return abar_net_weights_changed(net);
}
