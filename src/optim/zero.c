/* --zero 1: each of several ranks keeps the state of the parameters that it owns, and updates those alone. After a step all
 * ranks have all weights: each sends what it owns. Gradients, and what a method keeps, are on every rank.
 *
 * Owners follow from the parameters alone: a rank owns consecutive ones, so that its weights, and its part of each block of
 * state, are one piece of memory. The parameters of one module stay together, because a map is updated with its bias. */
#include "optim/optim_impl.h"

#include <string.h>

struct abar__zero {
    abar__owners ranks;
    int n;             /* parameters */
    int *first;        /* (ranks + 1): the first parameter of each rank */
    void **weights;    /* (ranks): where those of each rank begin, */
    size_t *bytes;     /* and end */
    const void **send; /* arguments of exchanges, (ranks) each */
    size_t *send_bytes;
    void **recv;
    size_t *recv_bytes;
    int64_t *events; /* (ranks, 3): in blocks, of a step */
    void *memory;
    size_t memory_bytes;
    int64_t before[3];              /* all events in blocks, before the step */
    char *whole[ABAR_PARAM_STATES]; /* of rank 0 while a checkpoint is written or read: the state of all parameters */
    size_t whole_bytes[ABAR_PARAM_STATES];
    bool open;
};

/* ---- owners ------------------------------------------------------------------------------------------------------------- */

static size_t module_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

static bool same_module(const char *a, const char *b)
{
    return module_length(a) == module_length(b) && strncmp(a, b, module_length(a)) == 0;
}

/* Elements that a parameter makes its owner keep or update. */
static int64_t load_of(const abar_optim *o, int i)
{
    int64_t sum = abar_tensor_count(&o->params[i].value);
    for (int k = 0; k < ABAR_PARAM_STATES; k++) sum += abar__optim_state_count(o, i, k);
    return sum;
}

/* A rank ends with the module in which the sum of all loads passes its share; the last ranks may own nothing. */
static void cut_shares(const abar_optim *o, abar__zero *z)
{
    const int ranks = z->ranks.ranks;
    int64_t total = 0, sum = 0;
    int r = 0;
    for (int i = 0; i < o->n; i++) total += load_of(o, i);
    for (int i = 0; i < o->n; i++) {
        sum += load_of(o, i);
        const bool ends = i + 1 == o->n || !same_module(o->params[i].name, o->params[i + 1].name);
        while (ends && r + 1 < ranks && sum * ranks >= total * (r + 1)) z->first[++r] = i + 1;
    }
    while (r < ranks) z->first[++r] = o->n;
}

static char *end_of(const abar_tensor *t) { return (char *)t->data + abar_tensor_bytes(t); }

static abar_status find_weights(const abar_optim *o, abar__zero *z)
{
    for (int i = 1; i < o->n; i++)
        if ((char *)o->params[i].value.data < end_of(&o->params[i - 1].value))
            return abar__fail(o->dev->ctx, ABAR_E_STATE, "optim: %s is not behind %s in memory, ranks cannot share its state",
                              o->params[i].name, o->params[i - 1].name);
    for (int r = 0; r < z->ranks.ranks; r++) {
        const int first = z->first[r], end = z->first[r + 1];
        z->weights[r] = first < end ? o->params[first].value.data : NULL;
        z->bytes[r] = first < end ? (size_t)(end_of(&o->params[end - 1].value) - (char *)z->weights[r]) : 0;
    }
    return ABAR_OK;
}

/* Hands out the memory, or only counts it. */
static size_t place(abar__zero *z, char *base)
{
    const size_t ranks = (size_t)z->ranks.ranks;
    const abar__piece pieces[] = {{&z->first, (ranks + 1) * sizeof *z->first}, {&z->weights, ranks * sizeof *z->weights},
                                  {&z->bytes, ranks * sizeof *z->bytes},       {&z->send, ranks * sizeof *z->send},
                                  {&z->send_bytes, ranks * sizeof(size_t)},    {&z->recv, ranks * sizeof *z->recv},
                                  {&z->recv_bytes, ranks * sizeof(size_t)},    {&z->events, 3 * ranks * sizeof *z->events}};
    return abar__hand_out(pieces, (int)(sizeof pieces / sizeof *pieces), base);
}

abar_status abar__zero_make(abar_optim *o, const abar__owners *ranks)
{
    abar_context *ctx = o->dev->ctx;
    if (o->dev->ops->stream)
        return abar__fail(ctx, ABAR_E_UNSUPPORTED, "--zero 1: not on %s yet, use --zero 0 or --device cpu", o->dev->ops->name);
    if (o->two_passes)
        return abar__fail(ctx, ABAR_E_UNSUPPORTED,
                          "--zero 1: the method needs the momentum of all parameters on every rank, use --zero 0");
    ABAR_TRY(abar__alloc(ctx, sizeof *o->zero, (void **)&o->zero));
    abar__zero *z = o->zero;
    *z = (abar__zero){.ranks = *ranks, .n = o->n};
    z->memory_bytes = place(z, NULL);
    ABAR_TRY(abar__alloc(ctx, z->memory_bytes, &z->memory));
    place(z, z->memory);
    cut_shares(o, z);
    return find_weights(o, z);
}

void abar__zero_free(abar_optim *o)
{
    abar_context *ctx = o->dev->ctx;
    if (!o->zero) return;
    abar__zero_close(o);
    abar__free(ctx, o->zero->memory, o->zero->memory_bytes);
    abar__free(ctx, o->zero, sizeof *o->zero);
}

size_t abar__zero_bytes(const abar_optim *o) { return o->zero ? sizeof *o->zero + o->zero->memory_bytes : 0; }

static bool owns(const abar__zero *z, int r, int i) { return i >= z->first[r] && i < z->first[r + 1]; }

bool abar__zero_owns(const abar_optim *o, int i) { return !o->zero || owns(o->zero, o->zero->ranks.rank, i); }

/* ---- a step ------------------------------------------------------------------------------------------------------------- */

abar_status abar__zero_gather_weights(abar_optim *o)
{
    const abar__zero *z = o->zero;
    if (!z) return ABAR_OK;
    return z->ranks.gather(z->ranks.comm, z->weights[z->ranks.rank], z->bytes[z->ranks.rank], z->weights, z->bytes);
}

static void read_events(const abar_optim *o, int64_t out[3])
{
    out[0] = o->step_state.dropped;
    out[1] = o->step_state.small;
    out[2] = o->step_state.kept;
}

static bool has_blocks(const abar_optim *o) { return o->blocks_capacity > 0 || o->tensors_capacity > 0; }

abar_status abar__zero_begin_step(abar_optim *o)
{
    if (!o->zero || !has_blocks(o)) return ABAR_OK;
    ABAR_TRY(abar__optim_pull(o));
    read_events(o, o->zero->before);
    return ABAR_OK;
}

/* Events in blocks are seen where the blocks are; all ranks count those of all. */
static abar_status add_events(abar_optim *o)
{
    abar__zero *z = o->zero;
    int64_t *own = &z->events[3 * z->ranks.rank], sum[3] = {0, 0, 0};
    ABAR_TRY(abar__optim_pull(o));
    read_events(o, own);
    for (int k = 0; k < 3; k++) own[k] -= z->before[k];
    for (int r = 0; r < z->ranks.ranks; r++) {
        z->recv[r] = &z->events[3 * r];
        z->recv_bytes[r] = 3 * sizeof *own;
    }
    ABAR_TRY(z->ranks.gather(z->ranks.comm, own, 3 * sizeof *own, z->recv, z->recv_bytes));
    for (int r = 0; r < z->ranks.ranks; r++)
        for (int k = 0; k < 3; k++) sum[k] += z->events[3 * r + k];
    o->step_state.dropped = z->before[0] + sum[0];
    o->step_state.small = z->before[1] + sum[1];
    o->step_state.kept = z->before[2] + sum[2];
    return abar__optim_push(o);
}

abar_status abar__zero_end_step(abar_optim *o)
{
    if (!o->zero || *o->dev->ops->step->skipped(o->step)) return ABAR_OK;
    ABAR_TRY(abar__zero_gather_weights(o));
    return has_blocks(o) ? add_events(o) : ABAR_OK;
}

/* ---- whole states ---------------------------------------------------------------------------------------------------------
 */

static size_t bytes_of_share(const abar_optim *o, int k, int first, int end)
{
    size_t sum = 0;
    for (int i = first; i < end; i++) sum += abar__optim_slot_bytes(o, i, k);
    return sum;
}

void *abar__zero_whole(const abar_optim *o, int i, int k)
{
    const abar__zero *z = o->zero;
    return z->open ? z->whole[k] + bytes_of_share(o, k, 0, i) : NULL;
}

abar_status abar__zero_open(abar_optim *o)
{
    abar__zero *z = o->zero;
    if (!z || z->ranks.rank > 0 || z->open) return ABAR_OK;
    z->open = true;
    for (int k = 0; k < ABAR_PARAM_STATES; k++) {
        z->whole_bytes[k] = bytes_of_share(o, k, 0, o->n);
        const abar_status status = abar__alloc(o->dev->ctx, z->whole_bytes[k], (void **)&z->whole[k]);
        if (status == ABAR_OK) continue;
        z->whole_bytes[k] = 0;
        abar__zero_close(o);
        return status;
    }
    return ABAR_OK;
}

void abar__zero_close(abar_optim *o)
{
    abar__zero *z = o->zero;
    if (!z || !z->open) return;
    for (int k = 0; k < ABAR_PARAM_STATES; k++) {
        abar__free(o->dev->ctx, z->whole[k], z->whole_bytes[k]);
        z->whole[k] = NULL;
        z->whole_bytes[k] = 0;
    }
    z->open = false;
}

/* State k between rank 0, which has it whole, and the owners of its parts. */
static abar_status move_state(abar_optim *o, int k, bool collects)
{
    abar__zero *z = o->zero;
    const int own = z->ranks.rank;
    for (int r = 0; r < z->ranks.ranks; r++) {
        const size_t bytes = bytes_of_share(o, k, z->first[r], z->first[r + 1]);
        const bool mine = r == own, at_first = own == 0; /* the owner's end, and rank 0's */
        char *part = at_first ? z->whole[k] + bytes_of_share(o, k, 0, z->first[r]) : NULL;
        /* with each other rank r: rank 0 exchanges r's part, an owner its own with rank 0 */
        const size_t with = at_first ? bytes : r == 0 ? bytes_of_share(o, k, z->first[own], z->first[own + 1]) : 0;
        void *here = at_first ? part : o->state[k];
        const bool sends = collects != at_first;
        z->send[r] = z->recv[r] = here;
        z->send_bytes[r] = sends && !mine ? with : 0;
        z->recv_bytes[r] = !sends && !mine ? with : 0;
        if (mine && at_first && bytes > 0) memcpy(collects ? part : o->state[k], collects ? o->state[k] : part, bytes);
    }
    return z->ranks.exchange(z->ranks.comm, z->send, z->send_bytes, z->recv, z->recv_bytes);
}

abar_status abar__zero_move(abar_optim *o, bool collects)
{
    if (!o->zero) return ABAR_OK;
    for (int k = 0; k < ABAR_PARAM_STATES; k++) ABAR_TRY(move_state(o, k, collects));
    return ABAR_OK;
}
