/* Maximum and average pooling. */
#include "net/net_impl.h"

static abar_value pool(abar_net *net, abar_value x, abar__node *node, const abar_window *window, bool average)
{
    const abar__shape *in = abar__net_shape(net, x.id);
    char text[64];
    if (in->ndim != 3)
        return abar__net_mistake(net, "%s: pooling reads channels x height x width, not %s", node->name,
                                 abar__shape_text(in, text));
    for (int axis = 0; axis < 2; axis++)
        if (window->kernel[axis] < 1 || window->stride[axis] < 1 || window->pad[axis] < 0 ||
            2 * window->pad[axis] > window->kernel[axis])
            return abar__net_mistake(net, "%s: kernel and stride are at least 1, padding at most half the kernel", node->name);
    abar__shape out = {3, {in->dim[0], abar_window_out(window, 0, in->dim[1]), abar_window_out(window, 1, in->dim[2])}};
    if (out.dim[1] < 1 || out.dim[2] < 1)
        return abar__net_mistake(net, "%s: the window does not fit into a %s input", node->name, abar__shape_text(in, text));
    node->desc.window = *window;
    node->desc.average = average;
    return abar__net_finish(net, node, &out);
}

static abar_value pool_square(abar_net *net, abar_value x, const char *name, const abar_pool_config *caller, bool average)
{
    abar__node *node = abar__net_node(net, ABAR_OP_POOL2D, name, 1, &x);
    abar_pool_config c;
    if (!node || !abar__net_config(net, node, "abar_pool_config", caller, &c, sizeof c)) return (abar_value){-1};
    const int64_t stride = c.stride ? c.stride : c.kernel;
    const abar_window window = {{c.kernel, c.kernel}, {stride, stride}, {c.pad, c.pad}, {1, 1}, 1};
    return pool(net, x, node, &window, average);
}

abar_value abar_max_pool(abar_net *net, abar_value x, const abar_pool_config *config)
{
    return pool_square(net, x, "max_pool", config, false);
}

abar_value abar_average_pool(abar_net *net, abar_value x, const abar_pool_config *config)
{
    return pool_square(net, x, "average_pool", config, true);
}

abar_value abar_global_average_pool(abar_net *net, abar_value x)
{
    if (net->status < 0 || x.id < 0 || x.id >= net->n_values)
        return abar__net_mistake(net, "global_average_pool: reads a value that does not exist");
    abar_window window = abar_window_unit();
    const abar__shape *in = abar__net_shape(net, x.id);
    for (int axis = 0; axis < 2 && in->ndim == 3; axis++) window.kernel[axis] = window.stride[axis] = in->dim[axis + 1];
    abar__node *node = abar__net_node(net, ABAR_OP_POOL2D, "global_average_pool", 1, &x);
    return node ? pool(net, x, node, &window, true) : (abar_value){-1};
}
