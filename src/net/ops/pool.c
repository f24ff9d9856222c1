/* Maximum and average pooling. */
#include "net/net_impl.h"

static abar_value pool(abar_net *net, abar_value x, const char *name, const abar_window *window, bool average)
{
    abar__node *node = abar__net_node(net, ABAR_OP_POOL2D, name, 1, &x);
    if (!node) return (abar_value){-1};
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

static abar_window square(const abar_pool_config *c)
{
    int64_t stride = c->stride ? c->stride : c->kernel;
    return (abar_window){{c->kernel, c->kernel}, {stride, stride}, {c->pad, c->pad}, {1, 1}, 1};
}

abar_value abar_max_pool(abar_net *net, abar_value x, const abar_pool_config *config)
{
    abar_window window = square(config);
    return pool(net, x, "max_pool", &window, false);
}

abar_value abar_average_pool(abar_net *net, abar_value x, const abar_pool_config *config)
{
    abar_window window = square(config);
    return pool(net, x, "average_pool", &window, true);
}

abar_value abar_global_average_pool(abar_net *net, abar_value x)
{
    if (net->status < 0 || x.id < 0 || x.id >= net->n_values)
        return abar__net_mistake(net, "global_average_pool: reads a value that does not exist");
    abar_window window = abar_window_unit();
    const abar__shape *in = abar__net_shape(net, x.id);
    for (int axis = 0; axis < 2 && in->ndim == 3; axis++) window.kernel[axis] = window.stride[axis] = in->dim[axis + 1];
    return pool(net, x, "global_average_pool", &window, true);
}
