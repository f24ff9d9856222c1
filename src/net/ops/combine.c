/* Operations that combine or rearrange values: add, concat, flatten, and the parameter-free shortcut of CIFAR ResNets. */
#include "net/net_impl.h"

#include <string.h>

abar_value abar_add(abar_net *net, abar_value a, abar_value b)
{
    abar__node *node = abar__net_node(net, ABAR_OP_ADD, "add", 2, (abar_value[]){a, b});
    if (!node) return (abar_value){-1};
    const abar__shape sa = *abar__net_shape(net, a.id), sb = *abar__net_shape(net, b.id);
    char ta[64], tb[64];
    if (sa.ndim != sb.ndim || memcmp(sa.dim, sb.dim, sizeof sa.dim) != 0)
        return abar__net_mistake(net, "%s: cannot add %s and %s", node->name, abar__shape_text(&sa, ta),
                                 abar__shape_text(&sb, tb));
    return abar__net_finish(net, node, &sa);
}

abar_value abar_concat(abar_net *net, int n, const abar_value *x)
{
    if (n < 1 || n > ABAR_OP_MAX_IN) return abar__net_mistake(net, "concat: joins 1 to %d values, not %d", ABAR_OP_MAX_IN, n);
    abar__node *node = abar__net_node(net, ABAR_OP_CONCAT, "concat", n, x);
    if (!node) return (abar_value){-1};
    abar__shape shape = *abar__net_shape(net, x[0].id);
    for (int i = 1; i < n; i++) {
        const abar__shape *next = abar__net_shape(net, x[i].id);
        if (next->ndim != shape.ndim || memcmp(next->dim + 1, shape.dim + 1, 3 * sizeof *shape.dim) != 0)
            return abar__net_mistake(net, "%s: the values differ in more than their channels", node->name);
        shape.dim[0] += next->dim[0];
    }
    return abar__net_finish(net, node, &shape);
}

abar_value abar_flatten(abar_net *net, abar_value x)
{
    abar__node *node = abar__net_node(net, ABAR_OP_FLATTEN, "flatten", 1, &x);
    if (!node) return (abar_value){-1};
    abar__shape shape = {1, {abar__shape_count(abar__net_shape(net, x.id))}};
    return abar__net_finish(net, node, &shape);
}

abar_value abar_shortcut(abar_net *net, abar_value x, int64_t channels, int64_t stride)
{
    abar__node *node = abar__net_node(net, ABAR_OP_SHORTCUT, "shortcut", 1, &x);
    if (!node) return (abar_value){-1};
    const abar__shape *in = abar__net_shape(net, x.id);
    if (in->ndim != 3 || stride < 1 || channels < in->dim[0] || (channels - in->dim[0]) % 2)
        return abar__net_mistake(net, "%s: pads an image's channels by an even number", node->name);
    node->desc.window = abar_window_unit();
    node->desc.window.stride[0] = node->desc.window.stride[1] = stride;
    abar__shape shape = {3, {channels, (in->dim[1] - 1) / stride + 1, (in->dim[2] - 1) / stride + 1}};
    return abar__net_finish(net, node, &shape);
}
