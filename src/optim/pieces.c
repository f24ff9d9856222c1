/* Pieces of memory that go from their owners to all ranks: pieces.h says by which ways. */
#include "optim/pieces.h"

/* Hands out the memory, or only counts it. */
static size_t place(abar__pieces *p, char *base)
{
    const size_t ranks = (size_t)p->ranks.ranks;
    const abar__piece parts[] = {{&p->list, (size_t)p->capacity * sizeof *p->list},
                                 {&p->next, ranks * sizeof *p->next},
                                 {&p->first, (ranks + 1) * sizeof *p->first},
                                 {&p->recv, ranks * sizeof *p->recv},
                                 {&p->recv_bytes, ranks * sizeof *p->recv_bytes}};
    return abar__hand_out(parts, (int)(sizeof parts / sizeof *parts), base);
}

abar_status abar__pieces_make(abar_device *dev, const abar__owners *ranks, int capacity, size_t bytes, abar__pieces *out)
{
    void *memory;
    *out = (abar__pieces){.dev = dev, .ranks = *ranks, .staged = dev->ops->stream && !ranks->queued};
    if (capacity == 0) return ABAR_OK;
    out->capacity = capacity;
    out->memory_bytes = place(out, NULL);
    ABAR_TRY(abar__alloc(dev->ctx, out->memory_bytes, &out->memory));
    place(out, out->memory);
    if (!out->staged) return ABAR_OK;
    ABAR_TRY(dev->ops->stream->shared_alloc(dev, bytes, &memory));
    out->host = memory;
    out->host_bytes = bytes;
    return ABAR_OK;
}

void abar__pieces_release(abar__pieces *p)
{
    if (p->host) p->dev->ops->stream->shared_free(p->dev, p->host, p->host_bytes);
    if (p->memory) abar__free(p->dev->ctx, p->memory, p->memory_bytes);
    *p = (abar__pieces){0};
}

size_t abar__pieces_bytes(const abar__pieces *p) { return p->memory_bytes + p->host_bytes; }

void abar__pieces_begin(abar__pieces *p) { p->n = 0; }

abar_status abar__pieces_add(void *pieces, int owner, void *memory, size_t bytes)
{
    abar__pieces *p = pieces;
    if (bytes == 0) return ABAR_OK;
    if (p->n == p->capacity)
        return abar__fail(p->dev->ctx, ABAR_E_STATE, "ranks: more than %d pieces are shared in a step", p->capacity);
    p->list[p->n++] = (abar__shared_piece){.owner = owner, .memory = memory, .bytes = bytes};
    return ABAR_OK;
}

static abar_status gather(abar__pieces *p, const void *own, size_t bytes)
{
    return p->ranks.gather(p->ranks.comm, own, bytes, p->recv, p->recv_bytes);
}

/* ---- where they are ------------------------------------------------------------------------------------------------------ */

/* The next piece of rank r, and its bytes; 0: there is none. */
static void next_piece(abar__pieces *p, int r)
{
    while (p->next[r] < p->n && p->list[p->next[r]].owner != r) p->next[r]++;
    const bool any = p->next[r] < p->n;
    p->recv[r] = any ? p->list[p->next[r]].memory : NULL;
    p->recv_bytes[r] = any ? p->list[p->next[r]].bytes : 0;
    p->next[r] += any;
}

/* In each round a piece of every rank. */
static abar_status exchange(abar__pieces *p)
{
    for (int r = 0; r < p->ranks.ranks; r++) p->next[r] = 0;
    for (;;) {
        bool any = false;
        for (int r = 0; r < p->ranks.ranks; r++) {
            next_piece(p, r);
            any = any || p->recv_bytes[r] > 0;
        }
        if (!any) return ABAR_OK;
        ABAR_TRY(gather(p, p->recv[p->ranks.rank], p->recv_bytes[p->ranks.rank]));
    }
}

/* ---- through the host ---------------------------------------------------------------------------------------------------- */

/* Those of a rank are one behind the other. */
static abar_status place_pieces(abar__pieces *p)
{
    size_t at = 0;
    for (int r = 0; r < p->ranks.ranks; r++) {
        p->first[r] = at;
        for (int i = 0; i < p->n; i++) {
            if (p->list[i].owner != r) continue;
            p->list[i].at = at;
            at += p->list[i].bytes;
        }
    }
    p->first[p->ranks.ranks] = at;
    if (at <= p->host_bytes) return ABAR_OK;
    return abar__fail(p->dev->ctx, ABAR_E_STATE, "ranks: %zu bytes are shared in a step, there is memory for %zu", at,
                      p->host_bytes);
}

abar_status abar__pieces_send(abar__pieces *p)
{
    if (!p->staged) return exchange(p);
    ABAR_TRY(place_pieces(p));
    for (int i = 0; i < p->n; i++) {
        const abar__shared_piece *s = &p->list[i];
        if (s->owner == p->ranks.rank) ABAR_TRY(p->dev->ops->stream->copy_bytes(p->dev, p->host + s->at, s->memory, s->bytes));
    }
    return ABAR_OK;
}

abar_status abar__pieces_meet(abar__pieces *p)
{
    ABAR_TRY(abar_device_wait(p->dev));
    for (int r = 0; r < p->ranks.ranks; r++) {
        p->recv[r] = p->host + p->first[r];
        p->recv_bytes[r] = p->first[r + 1] - p->first[r];
    }
    return gather(p, p->recv[p->ranks.rank], p->recv_bytes[p->ranks.rank]);
}

abar_status abar__pieces_take(const abar__pieces *p)
{
    for (int i = 0; p->staged && i < p->n; i++) {
        const abar__shared_piece *s = &p->list[i];
        if (s->owner != p->ranks.rank) ABAR_TRY(p->dev->ops->stream->copy_bytes(p->dev, s->memory, p->host + s->at, s->bytes));
    }
    return ABAR_OK;
}
