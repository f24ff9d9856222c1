/* What each pass of a step is given: the parameters cut into maps, blocks and the rest, in the order of the passes. */
#include "optim/optim_impl.h"

/* count elements of an item from the given one on. */
static abar__update_item part(const abar_optim *o, const abar__update_item *item, int64_t first, int64_t count)
{
    size_t skip = (size_t)first * abar_dtype_size(o->dev->ops->dtype);
    abar__update_item p = *item;
    p.weight = (char *)p.weight + skip;
    p.grad = (char *)p.grad + skip;
    for (int k = 0; k < ABAR_ITEM_STATES; k++)
        if (p.state[k]) p.state[k] = (char *)p.state[k] + skip;
    if (p.shadow) p.shadow = (char *)p.shadow + (size_t)first * abar_dtype_size(ABAR_BF16);
    p.count = count;
    return p;
}

_Static_assert(ABAR_UPDATE_KINDS + 3 <= ABAR_PASSES_MAX, "raise ABAR_PASSES_MAX");

/* Where this map's rows of a gradient are; NULL: it has none. */
static void *rows_of(const abar_optim *o, int param, int64_t first)
{
    if (param < 0 || !o->params[param].grad.data) return NULL;
    return (char *)o->params[param].grad.data + (size_t)first * abar_dtype_size(o->dev->ops->dtype);
}

/* A map's rows of its weight, with its bias; or its bias alone, where the weight has no gradient. Of this kind. */
static void lay_out_map(abar_optim *o, int m, abar__update_kind kind)
{
    const abar__map *map = &o->curvature->maps[m];
    const abar__owner own = o->owners[m];
    const int64_t row = map->row;
    if (map->weight_grad && o->items[own.weight].kind == kind) {
        abar__update_item *item = &o->updates[o->n_updates++];
        *item = part(o, &o->items[own.weight], row * map->in, map->out * map->in);
        item->map = m;
        item->rows = map->out;
        item->bias = map->bias_grad ? &o->biases[m] : NULL;
    } else if (!map->weight_grad && map->bias_grad && o->items[own.bias].kind == kind) {
        o->updates[o->n_updates++] = o->biases[m];
    }
}

static void bind_map(abar_optim *o, int m)
{
    abar__map *map = &o->curvature->maps[m];
    const abar__owner own = o->owners[m];
    map->weight_grad = rows_of(o, own.weight, map->row * map->in);
    map->bias_grad = rows_of(o, own.bias, map->row);
    if (map->bias_grad) o->biases[m] = part(o, &o->items[own.bias], map->row, map->out);
}

static void add_pass(abar_optim *o, abar__pass_kind kind, abar__update_kind update, int first, int end)
{
    if (end > first) o->passes[o->n_passes++] = (abar__update_pass){kind, update, first, end - first};
}

/* The blocks of a parameter, and the pass that takes them off the weight. */
static void lay_out_blocks(abar_optim *o, int i)
{
    const abar__chain *chain = &o->chains[i];
    const abar__update_item *item = &o->items[i];
    if (!chain->orthogonalise || !item->grad || !abar__zero_owns(o, i)) return;
    const int64_t rows = o->params[i].value.dim[0], columns = item->count / rows, each = chain->block_rows;
    for (int64_t row = 0; row < rows; row += each) {
        abar__update_item *plain = &o->updates[o->n_updates++];
        *plain = part(o, item, row * columns, each * columns);
        plain->kind = ABAR_UPDATE_PLAIN;
        plain->state[0] = plain->state[1] = NULL;
        plain->block = o->n_blocks;
        void *moment = chain->row_moment ? (char *)item->state[1] + (size_t)row * abar_dtype_size(o->dev->ops->dtype) : NULL;
        o->blocks[o->n_blocks++] = (abar__ns_block){.rows = each,
                                                    .columns = columns,
                                                    .in = plain->grad,
                                                    .out = plain->grad,
                                                    .scale = chain->scale,
                                                    .row_moment = moment};
    }
}

/* Likewise of a parameter that is cut. */
static void lay_out_tensors(abar_optim *o, int i)
{
    const abar__chain *chain = &o->chains[i];
    if (chain->cut.order == 0 || !o->items[i].grad || !abar__zero_owns(o, i)) return;
    abar__update_item *plain = &o->updates[o->n_updates++];
    *plain = o->items[i];
    plain->kind = ABAR_UPDATE_PLAIN;
    if (chain->coupled || chain->late_decay) plain->weight_decay = 0.0;
    o->n_tensors += abar__param_blocks(o, i, o->tensors + o->n_tensors);
}

/* What a method that has preconditioned the momentum takes off a weight. */
static void lay_out_whole(abar_optim *o, int i)
{
    if (!o->two_passes || !o->items[i].grad) return;
    o->updates[o->n_updates] = o->items[i];
    o->updates[o->n_updates++].kind = ABAR_UPDATE_PLAIN;
}

static bool owns_map(const abar_optim *o, int m) { return o->owners[m].weight < 0 || abar__zero_owns(o, o->owners[m].weight); }

/* Maps that another rank updates are preconditioned here, too: no pass has them. */
static void lay_out_others(abar_optim *o)
{
    for (int m = 0; m < o->n_maps; m++)
        for (int kind = 0; kind < ABAR_UPDATE_KINDS && !owns_map(o, m); kind++) lay_out_map(o, m, (abar__update_kind)kind);
}

/* Weight decay is in the gradients that the passes get. */
static void decay_no_more(abar_optim *o)
{
    for (int i = 0; i < o->n_updates; i++) o->updates[i].weight_decay = 0.0;
    for (int m = 0; m < o->n_maps; m++) o->biases[m].weight_decay = 0.0;
}

/* An elementwise pass for each kind of update, maps first, each with its bias, then whatever belongs to no map; then what
 * orthogonalises, or runs stages on blocks. What has no gradient is left out. */
void abar__optim_lay_out(abar_optim *o)
{
    o->n_active = o->n_updates = o->n_blocks = o->n_tensors = o->n_passes = 0;
    for (int m = 0; m < o->n_maps; m++) bind_map(o, m);
    for (int i = 0; i < o->n; i++)
        if (o->items[i].grad) {
            o->active[o->n_active] = o->items[i];
            o->active[o->n_active++].map = o->first_map[i];
        }
    for (int kind = 0; kind < ABAR_UPDATE_KINDS; kind++) {
        const int first = o->n_updates;
        for (int m = 0; m < o->n_maps; m++)
            if (owns_map(o, m)) lay_out_map(o, m, (abar__update_kind)kind);
        for (int i = 0; i < o->n; i++)
            if (o->items[i].grad && !o->mapped[i] && o->items[i].kind == (abar__update_kind)kind && abar__zero_owns(o, i))
                o->updates[o->n_updates++] = o->items[i];
        add_pass(o, ABAR_PASS_UPDATE, (abar__update_kind)kind, first, o->n_updates);
    }
    const int first = o->n_updates;
    for (int i = 0; i < o->n; i++) lay_out_blocks(o, i);
    for (int i = 0; i < o->n; i++) lay_out_tensors(o, i);
    for (int i = 0; i < o->n; i++) lay_out_whole(o, i);
    add_pass(o, ABAR_PASS_ORTHOGONALISE, ABAR_UPDATE_PLAIN, 0, o->n_blocks);
    add_pass(o, ABAR_PASS_BLOCKS, ABAR_UPDATE_PLAIN, 0, o->n_tensors);
    const int end = o->n_updates;
    lay_out_others(o);
    bool hyperball = false; /* then it is that of all blocks */
    for (int i = 0; i < o->n; i++) hyperball = hyperball || (o->chains[i].hyperball && o->chains[i].orthogonalise);
    add_pass(o, hyperball ? ABAR_PASS_HYPERBALL : ABAR_PASS_UPDATE, ABAR_UPDATE_PLAIN, first, end);
    abar__optim_lay_out_extra(o);
    if (o->scalars.inside) decay_no_more(o);
    abar__optim_lay_out_rings(o);
    o->moved = false;
}
