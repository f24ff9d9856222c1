/* Initial weights: drawn on the host from (seed, parameter number, element), the same on every device. */
#include "net/net_impl.h"
#include "base/rng.h"

#include <math.h>

bool abar__net_add_weights(abar_net *net, abar__node *node, int ndim, const int64_t *dim, bool bias, abar_init init)
{
    int64_t kernel = ndim == 4 ? dim[2] * dim[3] : 1;
    double fan_in = (double)(dim[1] * kernel), fan_out = (double)(dim[0] * kernel);
    abar__param_info *w = abar__net_add_param(net, node, 0, "weight", ABAR_PARAM_WEIGHT, ndim, dim);
    if (!w) return false;
    if (init == ABAR_INIT_TORCH)
        w->uniform = 1.0 / sqrt(fan_in);
    else
        w->normal = sqrt(2.0 / (init == ABAR_INIT_KAIMING_IN ? fan_in : fan_out));
    node->desc.bias = bias;
    if (!bias) return true;
    abar__param_info *b = abar__net_add_param(net, node, 1, "bias", ABAR_PARAM_BIAS, 1, dim);
    if (b) b->uniform = 1.0 / sqrt(fan_in);
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

#define CHUNK 1024 /* elements moved to the device at a time */

abar_status abar__net_init_params(abar_net *net)
{
    double chunk[CHUNK];
    for (int i = 0; i < net->n_params; i++) {
        const abar__param_info *p = &net->params[i];
        const abar_tensor *value = &p->public.value;
        int64_t count = abar_tensor_count(value);
        for (int64_t at = 0; at < count; at += CHUNK) {
            int64_t n = count - at < CHUNK ? count - at : CHUNK;
            for (int64_t k = 0; k < n; k++) chunk[k] = draw(p, net->config.seed, (uint32_t)i, at + k);
            abar_tensor from = abar_tensor_wrap(NULL, chunk, ABAR_F64, 1, &n);
            abar_tensor to = abar_tensor_wrap(net->dev, (char *)value->data + (size_t)at * abar_dtype_size(value->dtype),
                                              value->dtype, 1, &n);
            ABAR_TRY(abar_tensor_copy(net->ctx, &to, &from));
        }
    }
    double one = 1.0;
    for (int i = 0; i < net->n_norms; i++) { /* running variance starts at 1, the mean at 0 */
        const abar__norm_state *s = &net->norms[i];
        abar_tensor from = abar_tensor_wrap(NULL, &one, ABAR_F64, 1, &s->channels);
        from.stride[0] = 0;
        abar_tensor to = abar_tensor_wrap(net->dev, (char *)net->running + s->offset[1], net->dev->ops->dtype, 1, &s->channels);
        ABAR_TRY(abar_tensor_copy(net->ctx, &to, &from));
    }
    abar_net_rollback(net);
    return ABAR_OK;
}
