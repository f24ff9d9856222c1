/* A net that uses the parameters and running statistics of another one: whether the two have the same. */
#include "net/net_impl.h"

#include <string.h>

static abar_status check_use(abar_net *net)
{
    const abar_net *with = net->config.share;
    abar_context *ctx = net->ctx;
    if (net->config.training && !net->config.patterns)
        return abar__fail(ctx, ABAR_E_ARGUMENT,
                          "net: config.share is for a net that is not trained, set training to false, or patterns to true");
    if (!with->dev || with->dev != net->dev)
        return abar__fail(ctx, ABAR_E_STATE, "net: config.share is not compiled on this device, compile it first");
    if (with->config.share)
        return abar__fail(ctx, ABAR_E_STATE, "net: config.share has no parameters of its own, share those of the first net");
    if (net->config.training && !with->config.training)
        return abar__fail(ctx, ABAR_E_STATE, "net: config.share is not compiled for training, as this net is");
    if (with->config.plan_only && !net->config.plan_only)
        return abar__fail(ctx, ABAR_E_STATE, "net: config.share has no memory, compile it without plan_only");
    return ABAR_OK;
}

static abar_status check_param(abar_net *net, int i)
{
    const abar__param_info *mine = &net->params[i], *theirs = &net->config.share->params[i];
    const size_t bytes = (size_t)mine->ndim * sizeof *mine->dim;
    if (strcmp(mine->name, theirs->name) != 0)
        return abar__fail(net->ctx, ABAR_E_ARGUMENT, "net: config.share has %s where this net has %s, build the same layers",
                          theirs->name, mine->name);
    if (mine->ndim == theirs->ndim && memcmp(mine->dim, theirs->dim, bytes) == 0) return ABAR_OK;
    abar__shape here = {.ndim = mine->ndim}, there = {.ndim = theirs->ndim};
    char texts[2][64];
    memcpy(here.dim, mine->dim, bytes);
    memcpy(there.dim, theirs->dim, (size_t)theirs->ndim * sizeof *theirs->dim);
    return abar__fail(
        net->ctx, ABAR_E_ARGUMENT,
        "%s depends on the size of the input: it is %s, in the net whose parameters are shared %s, use one size for both",
        mine->name, abar__shape_text(&here, texts[0]), abar__shape_text(&there, texts[1]));
}

abar_status abar__net_check_share(abar_net *net)
{
    const abar_net *with = net->config.share;
    ABAR_TRY(check_use(net));
    bool same = net->n_params == with->n_params && net->n_norms == with->n_norms;
    for (int i = 0; i < net->n_norms && same; i++)
        same = strcmp(net->norms[i].name[0], with->norms[i].name[0]) == 0 && net->norms[i].channels == with->norms[i].channels;
    if (!same) return abar__fail(net->ctx, ABAR_E_ARGUMENT, "net: config.share has other layers, build the same ones");
    for (int i = 0; i < net->n_params; i++) ABAR_TRY(check_param(net, i));
    return ABAR_OK;
}
