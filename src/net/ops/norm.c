/* Batch norm and layer norm: scale starts at 1, shift at 0. */
#include "net/net_impl.h"

#include <stdio.h>

static bool add_scale(abar_net *net, abar__node *node, int64_t n)
{
    abar__param_info *scale = abar__net_add_param(net, node, 0, "weight", ABAR_PARAM_NORM, 1, &n);
    if (scale) scale->constant = 1.0;
    return scale != NULL;
}

static bool add_shift(abar_net *net, abar__node *node, int64_t n)
{
    return abar__net_add_param(net, node, 1, "bias", ABAR_PARAM_NORM, 1, &n) != NULL;
}

abar_value abar_batch_norm(abar_net *net, abar_value x, const char *name)
{
    abar__node *node = abar__net_node(net, ABAR_OP_BATCH_NORM, name, 1, &x);
    if (!node) return (abar_value){-1};
    const abar__shape shape = *abar__net_shape(net, x.id);
    if (shape.ndim == 2) return abar__net_mistake(net, "%s: batch norm reads vectors or channels x height x width", node->name);
    if (!add_scale(net, node, shape.dim[0]) || !add_shift(net, node, shape.dim[0])) return (abar_value){-1};
    int id = abar__net_grow(net, (void **)&net->norms, &net->n_norms, &net->cap_norms, sizeof *net->norms);
    if (id < 0) return abar__net_out_of_memory(net);
    static const char *const suffix[3] = {"running_mean", "running_var", "num_batches_tracked"};
    for (int k = 0; k < 3; k++) snprintf(net->norms[id].name[k], sizeof net->norms[id].name[k], "%s.%s", node->name, suffix[k]);
    net->norms[id].channels = shape.dim[0];
    node->norm = id;
    node->desc.momentum = 0.1;
    node->desc.eps = 1e-5;
    return abar__net_finish(net, node, &shape);
}

static abar_value layer_norm(abar_net *net, abar_value x, const char *name, double eps, bool shift)
{
    abar__node *node = abar__net_node(net, ABAR_OP_LAYER_NORM, name, 1, &x);
    if (!node) return (abar_value){-1};
    const abar__shape shape = *abar__net_shape(net, x.id);
    if (!(eps > 0.0)) return abar__net_mistake(net, "%s: eps must be positive", node->name);
    const int64_t width = shape.dim[shape.ndim - 1];
    if (!add_scale(net, node, width) || (shift && !add_shift(net, node, width))) return (abar_value){-1};
    node->desc.eps = eps;
    node->desc.bias = shift;
    return abar__net_finish(net, node, &shape);
}

abar_value abar_layer_norm(abar_net *net, abar_value x, const char *name, double eps)
{
    return layer_norm(net, x, name, eps, true);
}

abar_value abar_layer_norm_scale(abar_net *net, abar_value x, const char *name, double eps)
{
    return layer_norm(net, x, name, eps, false);
}
