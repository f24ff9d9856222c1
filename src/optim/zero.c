/* --zero 1: each of several ranks keeps the state of the parameters that it owns, and updates those alone. After a step all
 * ranks have all weights: each sends what it owns (pieces.h). Gradients, and what a method keeps, are on every rank.
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
    void *memory;
    size_t memory_bytes;
    abar__pieces pieces; /* of a step */
    int64_t *events;     /* the device's, (1 + ranks, ABAR_BLOCK_EVENTS): all events in blocks before the step, and as each rank
                          * has counted on; NULL: there are no blocks */
    size_t events_bytes;
    /* Host memory, while a checkpoint is written or read: rank 0 has the state of all parameters; the others, where the host
     * does not read the device's, a copy of their own. */
    char *whole[ABAR_PARAM_STATES];
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
                                  {&z->recv_bytes, ranks * sizeof(size_t)}};
    return abar__hand_out(pieces, (int)(sizeof pieces / sizeof *pieces), base);
}

abar_status abar__zero_make(abar_optim *o, const abar__owners *ranks)
{
    abar_context *ctx = o->dev->ctx;
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

static bool has_blocks(const abar_optim *o) { return o->blocks_capacity > 0 || o->tensors_capacity > 0; }

static int64_t *events_of(const abar__zero *z, int rank) { return z->events + (1 + rank) * ABAR_BLOCK_EVENTS; }

abar_status abar__zero_connect(abar_optim *o, const abar__owners *ranks)
{
    abar__zero *z = o->zero;
    const size_t each = ABAR_BLOCK_EVENTS * sizeof *z->events, all = (size_t)ranks->ranks * each;
    size_t bytes = all;
    void *memory;
    if (!z) return ABAR_OK;
    for (int r = 0; r < ranks->ranks; r++) bytes += z->bytes[r];
    abar__pieces_release(&z->pieces);
    z->ranks = *ranks;
    ABAR_TRY(abar__pieces_make(o->dev, ranks, 2 * ranks->ranks, bytes, &z->pieces));
    if (z->events || !has_blocks(o)) return ABAR_OK;
    ABAR_TRY(abar_device_alloc(o->dev, each + all, &memory));
    z->events = memory;
    z->events_bytes = each + all;
    return ABAR_OK;
}

void abar__zero_free(abar_optim *o)
{
    abar_context *ctx = o->dev->ctx;
    abar__zero *z = o->zero;
    if (!z) return;
    abar__zero_close(o);
    abar__pieces_release(&z->pieces);
    abar_device_free(o->dev, z->events, z->events_bytes);
    abar__free(ctx, z->memory, z->memory_bytes);
    abar__free(ctx, z, sizeof *z);
}

size_t abar__zero_bytes(const abar_optim *o)
{
    const abar__zero *z = o->zero;
    return z ? sizeof *z + z->memory_bytes + z->events_bytes + abar__pieces_bytes(&z->pieces) : 0;
}

static bool owns(const abar__zero *z, int r, int i) { return i >= z->first[r] && i < z->first[r + 1]; }

bool abar__zero_owns(const abar_optim *o, int i) { return !o->zero || owns(o->zero, o->zero->ranks.rank, i); }

/* ---- a step ------------------------------------------------------------------------------------------------------------- */

static abar_status copy_there(const abar_optim *o, void *to, const void *from, size_t bytes)
{
    const abar__stream_ops *stream = o->dev->ops->stream;
    if (stream) return stream->copy_bytes(o->dev, to, from, bytes);
    memcpy(to, from, bytes);
    return ABAR_OK;
}

static int64_t *own_events(const abar_optim *o) { return o->dev->ops->step->block_events(o->step); }

abar_status abar__zero_begin_step(abar_optim *o)
{
    const abar__zero *z = o->zero;
    if (!z || !z->events) return ABAR_OK;
    return copy_there(o, z->events, own_events(o), ABAR_BLOCK_EVENTS * sizeof *z->events);
}

static abar_status list_pieces(abar__zero *z)
{
    abar__pieces_begin(&z->pieces);
    for (int r = 0; r < z->ranks.ranks; r++) {
        ABAR_TRY(abar__pieces_add(&z->pieces, r, z->weights[r], z->bytes[r]));
        if (z->events) ABAR_TRY(abar__pieces_add(&z->pieces, r, events_of(z, r), ABAR_BLOCK_EVENTS * sizeof *z->events));
    }
    return ABAR_OK;
}

/* A step that was skipped has changed nothing: where the host knows, nothing is sent. */
static bool was_skipped(const abar_optim *o) { return !o->dev->ops->stream && *o->dev->ops->step->skipped(o->step) != 0; }

abar_status abar__zero_send(abar_optim *o)
{
    abar__zero *z = o->zero;
    if (!z || was_skipped(o)) return ABAR_OK;
    if (z->events) ABAR_TRY(copy_there(o, events_of(z, z->ranks.rank), own_events(o), ABAR_BLOCK_EVENTS * sizeof *z->events));
    ABAR_TRY(list_pieces(z));
    return abar__pieces_send(&z->pieces);
}

bool abar__zero_meets(const abar_optim *o) { return o->zero && o->zero->pieces.staged; }

abar_status abar__zero_meet(abar_optim *o) { return abar__pieces_meet(&o->zero->pieces); }

/* Events in blocks are seen where the blocks are; all ranks count those of all. */
static abar_status count_events(const abar_optim *o)
{
    const abar__zero *z = o->zero;
    const abar__join_ops *join = o->dev->ops->join;
    int64_t *own = own_events(o);
    if (!z->events) return ABAR_OK;
    if (join) return join->count(o->dev, own, z->events, events_of(z, 0), ABAR_BLOCK_EVENTS, z->ranks.ranks);
    for (int i = 0; i < ABAR_BLOCK_EVENTS; i++)
        own[i] = abar__join_counted(z->events[i], events_of(z, 0), i, ABAR_BLOCK_EVENTS, z->ranks.ranks);
    return ABAR_OK;
}

/* The bf16 copies of weights that other ranks have updated. */
static abar_status renew_shadows(const abar_optim *o)
{
    for (int i = 0; i < o->n; i++) {
        abar_tensor shadow = o->params[i].value;
        shadow.dtype = ABAR_BF16;
        shadow.data = o->items[i].shadow;
        if (shadow.data && !abar__zero_owns(o, i)) ABAR_TRY(abar_tensor_copy(o->dev->ctx, &shadow, &o->params[i].value));
    }
    return ABAR_OK;
}

abar_status abar__zero_take(abar_optim *o)
{
    if (!o->zero || was_skipped(o)) return ABAR_OK;
    ABAR_TRY(abar__pieces_take(&o->zero->pieces));
    ABAR_TRY(count_events(o));
    return renew_shadows(o);
}

abar_status abar__zero_gather_weights(abar_optim *o)
{
    if (!o->zero) return ABAR_OK;
    ABAR_TRY(list_pieces(o->zero)); /* events are those of the last step, which all have counted */
    ABAR_TRY(abar__pieces_send(&o->zero->pieces));
    if (abar__zero_meets(o)) ABAR_TRY(abar__zero_meet(o));
    ABAR_TRY(abar__pieces_take(&o->zero->pieces));
    return renew_shadows(o);
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
    return z->open && z->ranks.rank == 0 ? z->whole[k] + bytes_of_share(o, k, 0, i) : NULL;
}

/* Whether this rank needs host memory for what it sends or receives. */
static bool takes_copies(const abar_optim *o) { return o->zero->ranks.rank == 0 || o->dev->ops->stream; }

abar_status abar__zero_open(abar_optim *o)
{
    abar__zero *z = o->zero;
    if (!z || z->open || !takes_copies(o)) return ABAR_OK;
    const int own = z->ranks.rank, first = own == 0 ? 0 : z->first[own], end = own == 0 ? o->n : z->first[own + 1];
    z->open = true;
    for (int k = 0; k < ABAR_PARAM_STATES; k++) {
        z->whole_bytes[k] = bytes_of_share(o, k, first, end);
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

/* This rank's part of state k in host memory; on rank 0 that of any rank. */
static void *part_here(const abar_optim *o, int k, int r)
{
    const abar__zero *z = o->zero;
    if (z->ranks.rank == 0) return z->whole[k] + bytes_of_share(o, k, 0, z->first[r]);
    return z->open ? z->whole[k] : o->state[k];
}

/* Between this rank's part in host memory and the device. */
static abar_status move_own(const abar_optim *o, int k, bool collects)
{
    const abar__zero *z = o->zero;
    const int own = z->ranks.rank;
    const size_t bytes = bytes_of_share(o, k, z->first[own], z->first[own + 1]);
    void *here = part_here(o, k, own);
    if (bytes == 0 || here == o->state[k]) return ABAR_OK;
    ABAR_TRY(copy_there(o, collects ? here : o->state[k], collects ? o->state[k] : here, bytes));
    return abar_device_wait(o->dev);
}

/* State k between rank 0, which has it whole, and the owners of its parts. */
static abar_status move_state(abar_optim *o, int k, bool collects)
{
    abar__zero *z = o->zero;
    const int own = z->ranks.rank;
    const bool at_first = own == 0, sends = collects != at_first; /* rank 0's end, or an owner's */
    for (int r = 0; r < z->ranks.ranks; r++) {
        const int of = at_first ? r : own; /* rank 0 exchanges r's part with each other r, an owner its own with rank 0 */
        const size_t bytes = r != own && (at_first || r == 0) ? bytes_of_share(o, k, z->first[of], z->first[of + 1]) : 0;
        z->send[r] = z->recv[r] = part_here(o, k, of);
        z->send_bytes[r] = sends ? bytes : 0;
        z->recv_bytes[r] = sends ? 0 : bytes;
    }
    return z->ranks.exchange(z->ranks.comm, z->send, z->send_bytes, z->recv, z->recv_bytes);
}

abar_status abar__zero_move(abar_optim *o, bool collects)
{
    if (!o->zero) return ABAR_OK;
    for (int k = 0; k < ABAR_PARAM_STATES; k++) {
        if (collects) ABAR_TRY(move_own(o, k, true));
        ABAR_TRY(move_state(o, k, collects));
        if (!collects) ABAR_TRY(move_own(o, k, false));
    }
    if (o->zero->ranks.rank > 0) abar__zero_close(o);
    return ABAR_OK;
}
