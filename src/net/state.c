/* The state dict: every tensor that the PyTorch module with the same names would list, in its order. A module lists its own
 * tensors before those of its submodules, and the submodules in the order of their creation. Ours are created in the order
 * of the forward pass, where "cls_token" comes after "patch_embed.proj.weight". */
#include "net/net_impl.h"

#include <string.h>

/* Whether name belongs to a submodule of the module that directly contains own: "a.b.weight" is below "a.token". */
static bool is_below(const char *name, const char *own)
{
    const char *dot = strrchr(own, '.');
    const size_t length = dot ? (size_t)(dot - own) + 1 : 0;
    return strncmp(name, own, length) == 0 && strchr(name + length, '.');
}

static abar_status add_entry(abar_net *net, abar__entry entry)
{
    int id = abar__net_grow(net, (void **)&net->entries, &net->n_entries, &net->cap_entries, sizeof *net->entries);
    if (id < 0) return (abar_status)id;
    int at = 0;
    while (at < id && !is_below(net->entries[at].name, entry.name)) at++;
    memmove(net->entries + at + 1, net->entries + at, (size_t)(id - at) * sizeof entry);
    net->entries[at] = entry;
    return ABAR_OK;
}

abar_status abar__net_list_state(abar_net *net)
{
    for (int n = 0; n < net->n_nodes; n++) {
        const abar__node *node = &net->nodes[n];
        for (int k = 0; k < ABAR_OP_MAX_PARAM; k++) {
            const int p = node->param[k];
            if (p < 0) continue;
            const char *name = node->tied[0] ? node->tied : net->params[p].name;
            ABAR_TRY(add_entry(net, (abar__entry){.name = name, .param = p, .norm = -1}));
        }
        for (int k = 0; node->norm >= 0 && k < 3; k++)
            ABAR_TRY(add_entry(net, (abar__entry){net->norms[node->norm].name[k], .param = -1, .norm = node->norm, .part = k}));
    }
    return ABAR_OK;
}

int abar_net_tensor_count(const abar_net *net) { return net->n_entries; }

void abar_net_tensor(const abar_net *net, int i, const char **name, abar_tensor *tensor)
{
    const abar__entry *entry = &net->entries[i];
    *name = entry->name;
    if (entry->param >= 0) {
        *tensor = net->params[entry->param].public.value;
        return;
    }
    const abar__norm_state *s = &(net->config.share ? net->config.share : net)->norms[entry->norm];
    *tensor = entry->part < 2 ? abar_tensor_wrap(net->dev, (char *)net->running + s->offset[entry->part], net->dev->ops->dtype,
                                                 1, &s->channels)
                              : abar_tensor_wrap(NULL, (void *)&s->batches, ABAR_I64, 0, NULL);
}
