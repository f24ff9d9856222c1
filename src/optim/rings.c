/* Which gradients are in the rows of a method's rings (optimizers.md section 8): those of one map, its weight before its bias,
 * or all of them in the order of the parameters. */
#include "optim/optim_impl.h"

static bool is_joint(const abar__map *map) { return map->layer < 0; }

abar_status abar__optim_make_rings(abar_optim *o)
{
    abar_context *ctx = o->dev->ctx;
    for (int m = 0; m < o->n_maps; m++) {
        const abar__map *map = &o->curvature->maps[m];
        if (map->plan.slots == 0) continue;
        o->n_rings++;
        o->pieces_capacity += is_joint(map) ? o->n : 2;
    }
    ABAR_TRY(abar__alloc(ctx, (size_t)o->n_rings * sizeof *o->rings, (void **)&o->rings));
    ABAR_TRY(abar__alloc(ctx, (size_t)o->pieces_capacity * sizeof *o->pieces, (void **)&o->pieces));
    return ABAR_OK;
}

static int add_piece(abar__ring_piece *out, int n, void *grad, int64_t count, int64_t at)
{
    if (grad) out[n] = (abar__ring_piece){grad, count, at};
    return grad ? n + 1 : n;
}

static int map_pieces(const abar__map *map, abar__ring_piece *out)
{
    if (!map->weight_grad) return 0; /* the rule gets the bias's gradient as it is */
    const int n = add_piece(out, 0, map->weight_grad, map->out * map->in, 0);
    return add_piece(out, n, map->bias_grad, map->out, map->out * map->in);
}

static int all_pieces(const abar_optim *o, abar__ring_piece *out)
{
    int n = 0;
    int64_t at = 0;
    for (int i = 0; i < o->n; i++) {
        n = add_piece(out, n, o->items[i].grad, o->items[i].count, at);
        at += o->items[i].count;
    }
    return n;
}

void abar__optim_lay_out_rings(abar_optim *o)
{
    int rings = 0, first = 0;
    for (int m = 0; m < o->n_maps; m++) {
        const abar__map *map = &o->curvature->maps[m];
        if (map->plan.slots == 0) continue;
        const int n = is_joint(map) ? all_pieces(o, o->pieces + first) : map_pieces(map, o->pieces + first);
        o->rings[rings++] = (abar__ring){m, first, n};
        first += n;
    }
}
