/* Two-dimensional convolution (cross-correlation, as PyTorch's). */
#include "net/net_impl.h"

static int64_t pick(int64_t per_axis, int64_t square, int64_t usual) { return per_axis ? per_axis : square ? square : usual; }

static abar_window window_of(const abar_conv2d_config *c)
{
    abar_window w = abar_window_unit();
    for (int axis = 0; axis < 2; axis++) {
        w.kernel[axis] = pick(c->kernel2[axis], c->kernel, 1);
        w.stride[axis] = pick(c->stride2[axis], c->stride, 1);
        w.pad[axis] = pick(c->pad2[axis], c->pad, 0);
        w.dilation[axis] = pick(c->dilation2[axis], c->dilation, 1);
    }
    w.groups = c->groups ? c->groups : 1;
    return w;
}

abar_value abar_conv2d(abar_net *net, abar_value x, const char *name, const abar_conv2d_config *caller)
{
    abar__node *node = abar__net_node(net, ABAR_OP_CONV2D, name, 1, &x);
    abar_conv2d_config config;
    if (!node || !abar__net_config(net, node, "abar_conv2d_config", caller, &config, sizeof config)) return (abar_value){-1};
    const abar__shape *in = abar__net_shape(net, x.id);
    char text[64];
    if (in->ndim != 3)
        return abar__net_mistake(net, "%s: a convolution reads channels x height x width, not %s", node->name,
                                 abar__shape_text(in, text));
    abar_window w = window_of(&config);
    if (w.kernel[0] < 1 || w.kernel[1] < 1 || w.stride[0] < 1 || w.stride[1] < 1 || w.pad[0] < 0 || w.pad[1] < 0 ||
        w.dilation[0] < 1 || w.dilation[1] < 1)
        return abar__net_mistake(net, "%s: kernel, stride and dilation are at least 1, padding at least 0", node->name);
    if (config.out < 1 || w.groups < 1 || in->dim[0] % w.groups || config.out % w.groups)
        return abar__net_mistake(net, "%s: %lld groups do not divide %lld -> %lld channels", node->name, (long long)w.groups,
                                 (long long)in->dim[0], (long long)config.out);
    abar__shape out = {3, {config.out, abar_window_out(&w, 0, in->dim[1]), abar_window_out(&w, 1, in->dim[2])}};
    if (out.dim[1] < 1 || out.dim[2] < 1)
        return abar__net_mistake(net, "%s: the kernel does not fit into a %s input", node->name, abar__shape_text(in, text));
    int64_t dim[4] = {config.out, in->dim[0] / w.groups, w.kernel[0], w.kernel[1]};
    if (!abar__net_add_weights(net, node, 4, dim, config.bias, config.init, 0)) return (abar_value){-1};
    node->desc.window = w;
    return abar__net_finish(net, node, &out);
}
