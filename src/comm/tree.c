/* Sums in a fixed order: which nodes of the tree a rank's terms fill, and the sum of all ranks' nodes. Node (level, j) has the
 * terms from j 2^level to (j + 1) 2^level - 1, as far as there are such terms. */
#include "comm/comm_impl.h"

#include <math.h>
#include <string.h>

#define WORKSPACE ((size_t)4 << 20)        /* bytes of the nodes' parts, about: longer sums are made in pieces */
#define PLACE_WORKSPACE ((size_t)64 << 20) /* where exchanges are enqueued: fewer and longer ones */

struct abar__tree_sum {
    abar_context *ctx;
    abar_comm *c;
    abar__tree_type type;
    int64_t length;                /* of a run, at most */
    int64_t part, piece;           /* elements of a rank's part of a piece; of a piece */
    int size, rounds;              /* ranks; nodes of the rank that has most */
    int64_t nodes;                 /* of all ranks */
    int *has;                      /* nodes of each rank, (size) */
    int *start;                    /* the place of each rank's first node in `order`, (size) */
    int *merges;                   /* (nodes): additions after each node of `order` */
    const abar__tree_place *place; /* NULL: the host's memory; else in: */
    abar__tree_place in;
    uint8_t *work; /* (nodes, part): the parts that this rank sums, in the order of their terms */
};

/* ---- one rank's nodes -------------------------------------------------------------------------------------------------- */

/* The highest level of a node that begins with term `at` and ends before `end`; the last node of all may have fewer terms. */
static int level_at(int64_t n, int64_t at, int64_t end)
{
    int level = 0;
    for (;;) {
        const int64_t width = (int64_t)2 << level;
        if (width / 2 >= n || at % width != 0) return level;
        if (at + width > end && end < n) return level;
        level++;
    }
}

int abar__tree_cover(int64_t n, int64_t first, int64_t count, abar__tree_node out[ABAR_TREE_NODES])
{
    int nodes = 0;
    for (int64_t at = first; at < first + count; nodes++) {
        const int level = level_at(n, at, first + count);
        out[nodes] = (abar__tree_node){level, at >> level};
        at += (int64_t)1 << level;
    }
    return nodes;
}

static int nodes_of(int64_t n, int64_t first, int64_t count)
{
    abar__tree_node nodes[ABAR_TREE_NODES];
    return abar__tree_cover(n, first, count, nodes);
}

int abar__tree_depth(int64_t n, int64_t first, int64_t count)
{
    int depth = 0;
    for (int64_t i = 1; i <= count; i++) {
        const int nodes = nodes_of(n, first, i);
        depth = nodes > depth ? nodes : depth;
    }
    return depth;
}

int abar__tree_merges(int64_t n, int64_t first, int64_t term)
{
    return nodes_of(n, first, term - first) + 1 - nodes_of(n, first, term + 1 - first);
}

void abar__tree_add_floats(float *to, const float *from, int64_t length)
{
    for (int64_t i = 0; i < length; i++) to[i] += from[i];
}

void abar__tree_add_doubles(double *to, const double *from, int64_t length)
{
    for (int64_t i = 0; i < length; i++) to[i] += from[i];
}

/* ---- creating ---------------------------------------------------------------------------------------------------------- */

/* The rank whose terms begin with `at`; -1: none. */
static int rank_at(int size, int64_t at, const int64_t *first, const int64_t *count)
{
    for (int r = 0; r < size; r++)
        if (count[r] > 0 && first[r] == at) return r;
    return -1;
}

/* Counts the nodes of all ranks and puts them into the order of their terms. */
static abar_status plan(abar__tree_sum *s, int64_t n, const int64_t *first, const int64_t *count)
{
    for (int64_t at = 0; at < n;) {
        const int r = rank_at(s->size, at, first, count);
        if (r < 0 || count[r] > n - at)
            return abar__fail(s->ctx, ABAR_E_ARGUMENT, "tree sum: term %lld of %lld belongs to no rank or to two",
                              (long long)at, (long long)n);
        s->start[r] = (int)s->nodes;
        s->has[r] = nodes_of(n, at, count[r]);
        s->nodes += s->has[r];
        s->rounds = s->has[r] > s->rounds ? s->has[r] : s->rounds;
        at += count[r];
    }
    int64_t terms = 0;
    for (int r = 0; r < s->size; r++) terms += count[r];
    if (terms != n) return abar__fail(s->ctx, ABAR_E_ARGUMENT, "tree sum: %lld terms of %lld", (long long)terms, (long long)n);
    return ABAR_OK;
}

/* After which node how many sums are complete. The nodes come in the order of their terms. */
static void plan_merges(abar__tree_sum *s, int64_t n, const int64_t *first, const int64_t *count)
{
    int64_t at = 0;
    int unfinished = 0, place = 0;
    while (at < n) {
        const int r = rank_at(s->size, at, first, count);
        abar__tree_node nodes[ABAR_TREE_NODES];
        const int has = abar__tree_cover(n, at, count[r], nodes);
        for (int k = 0; k < has; k++, place++) {
            const int64_t end = (nodes[k].index + 1) << nodes[k].level;
            const int left = nodes_of(n, 0, end < n ? end : n);
            s->merges[place] = unfinished + 1 - left;
            unfinished = left;
        }
        at += count[r];
    }
}

static abar_status alloc_workspace(abar__tree_sum *s)
{
    const size_t element = (size_t)s->type, align = ABAR_ALIGN / element, nodes = (size_t)s->nodes;
    size_t part = abar__round_up(((size_t)s->length + (size_t)s->size - 1) / (size_t)s->size, align);
    const size_t workspace = s->place ? PLACE_WORKSPACE : WORKSPACE;
    const size_t most = abar__round_up(workspace / (nodes * element) + 1, align);
    part = part < most ? part : most;
    s->part = (int64_t)(part ? part : align);
    s->piece = s->part * s->size;
    void *memory;
    const size_t bytes = abar__tree_sum_bytes(s);
    ABAR_TRY(s->place ? s->place->alloc(s->place->user, bytes, &memory) : abar__alloc(s->ctx, bytes, &memory));
    s->work = memory;
    return ABAR_OK;
}

static abar_status create(abar__tree_sum *s, int64_t n, const int64_t *first, const int64_t *count)
{
    void *memory;
    ABAR_TRY(abar__alloc(s->ctx, 2 * (size_t)s->size * sizeof *s->has, &memory));
    s->has = memory;
    s->start = s->has + s->size;
    ABAR_TRY(plan(s, n, first, count));
    ABAR_TRY(abar__alloc(s->ctx, (size_t)s->nodes * sizeof *s->merges, &memory));
    s->merges = memory;
    plan_merges(s, n, first, count);
    return alloc_workspace(s);
}

abar_status abar__tree_sum_create(abar_context *ctx, abar_comm *c, int64_t n, const int64_t *first, const int64_t *count,
                                  abar__tree_type type, int64_t length, abar__tree_sum **out)
{
    return abar__tree_sum_create_in(ctx, c, NULL, n, first, count, type, length, out);
}

abar_status abar__tree_sum_create_in(abar_context *ctx, abar_comm *c, const abar__tree_place *place, int64_t n,
                                     const int64_t *first, const int64_t *count, abar__tree_type type, int64_t length,
                                     abar__tree_sum **out)
{
    *out = NULL;
    if (n < 1 || n > (int64_t)1 << 31 || length < 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "tree sum: %lld terms of %lld elements, give 1 to 2^31 terms", (long long)n,
                          (long long)length);
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof **out, &memory));
    abar__tree_sum *s = memory;
    *s = (abar__tree_sum){.ctx = ctx, .c = c, .type = type, .length = length, .size = abar_comm_size(c)};
    if (place) s->in = *place, s->place = &s->in;
    const abar_status status = create(s, n, first, count);
    if (status < 0) {
        abar__tree_sum_destroy(s);
        return status;
    }
    *out = s;
    return ABAR_OK;
}

size_t abar__tree_sum_bytes(const abar__tree_sum *s) { return (size_t)s->nodes * (size_t)s->part * (size_t)s->type; }

void abar__tree_sum_destroy(abar__tree_sum *s)
{
    if (!s) return;
    abar__free(s->ctx, s->has, 2 * (size_t)s->size * sizeof *s->has);
    abar__free(s->ctx, s->merges, (size_t)s->nodes * sizeof *s->merges);
    if (s->work && s->place) s->place->release(s->place->user, s->work, abar__tree_sum_bytes(s));
    if (s->work && !s->place) abar__free(s->ctx, s->work, abar__tree_sum_bytes(s));
    abar__free(s->ctx, s, sizeof *s);
}

/* ---- running ----------------------------------------------------------------------------------------------------------- */

/* Rank r's part of a piece of `length` elements. */
static int64_t part_begin(const abar__tree_sum *s, int64_t length, int r)
{
    const int64_t at = s->part * r;
    return at < length ? at : length;
}

static uint8_t *work_of(const abar__tree_sum *s, int64_t node) { return s->work + (size_t)(node * s->part) * (size_t)s->type; }

static abar_status copy(const abar__tree_sum *s, void *to, const void *from, size_t bytes)
{
    if (bytes == 0 || to == from) return ABAR_OK;
    if (s->place) return s->place->copy(s->place->user, to, from, bytes);
    memcpy(to, from, bytes);
    return ABAR_OK;
}

static abar_status exchange(const abar__tree_sum *s)
{
    abar_comm *c = s->c;
    if (s->place) return s->place->exchange(s->place->user, c->send, c->send_bytes, c->recv, c->recv_bytes);
    return abar__comm_exchange_scratch(c);
}

/* Round k: node k of every rank, cut into parts, each to its owner. */
static abar_status scatter(abar__tree_sum *s, const uint8_t *node, int k, int64_t length)
{
    abar_comm *c = s->c;
    const size_t e = (size_t)s->type;
    const int rank = abar_comm_rank(c);
    const int64_t own = part_begin(s, length, rank), own_length = part_begin(s, length, rank + 1) - own;
    if (k < s->has[rank]) ABAR_TRY(copy(s, work_of(s, s->start[rank] + k), node + (size_t)own * e, (size_t)own_length * e));
    abar__comm_clear(c);
    for (int r = 0; r < s->size; r++) {
        if (r == rank) continue;
        const int64_t begin = part_begin(s, length, r), end = part_begin(s, length, r + 1);
        if (k < s->has[rank]) c->send[r] = node + (size_t)begin * e, c->send_bytes[r] = (size_t)(end - begin) * e;
        if (k < s->has[r]) c->recv[r] = work_of(s, s->start[r] + k), c->recv_bytes[r] = (size_t)own_length * e;
    }
    return exchange(s);
}

static abar_status add(const abar__tree_sum *s, void *to, const void *from, int64_t length)
{
    if (s->place) return s->place->add(s->place->user, to, from, length, s->type);
    if (s->type == ABAR_TREE_FLOAT)
        abar__tree_add_floats(to, from, length);
    else
        abar__tree_add_doubles(to, from, length);
    return ABAR_OK;
}

/* Adds the nodes of the own part: a stack whose buffers stay where they were received. The result is in the first. */
static abar_status add_nodes(const abar__tree_sum *s, int64_t length)
{
    int64_t stack[ABAR_TREE_NODES + 1];
    int depth = 0;
    for (int64_t i = 0; i < s->nodes; i++) {
        stack[depth++] = i;
        for (int m = 0; m < s->merges[i]; m++, depth--)
            ABAR_TRY(add(s, work_of(s, stack[depth - 2]), work_of(s, stack[depth - 1]), length));
    }
    return ABAR_OK;
}

/* The sign and payload of a NaN that an addition makes depend on the order of its operands, which a compiler may change. */
static void unify_nans(const abar__tree_sum *s, void *data, int64_t length)
{
    if (s->place) return;
    if (s->type == ABAR_TREE_FLOAT) {
        float *x = data;
        for (int64_t i = 0; i < length; i++) x[i] = x[i] != x[i] ? NAN : x[i];
    } else {
        double *x = data;
        for (int64_t i = 0; i < length; i++) x[i] = x[i] != x[i] ? (double)NAN : x[i];
    }
}

static abar_status share(abar__tree_sum *s, uint8_t *sum, int64_t length)
{
    abar_comm *c = s->c;
    const size_t e = (size_t)s->type;
    const int rank = abar_comm_rank(c);
    const int64_t own = part_begin(s, length, rank), own_length = part_begin(s, length, rank + 1) - own;
    ABAR_TRY(copy(s, sum + (size_t)own * e, s->work, (size_t)own_length * e));
    abar__comm_clear(c);
    for (int r = 0; r < s->size; r++) {
        if (r == rank) continue;
        const int64_t begin = part_begin(s, length, r), end = part_begin(s, length, r + 1);
        c->send[r] = s->work, c->send_bytes[r] = (size_t)own_length * e;
        c->recv[r] = sum + (size_t)begin * e, c->recv_bytes[r] = (size_t)(end - begin) * e;
    }
    return exchange(s);
}

abar_status abar__tree_sum_run(abar__tree_sum *s, const void *const *nodes, void *sum, int64_t length)
{
    if (length < 0 || length > s->length)
        return abar__fail(s->ctx, ABAR_E_ARGUMENT, "tree sum: %lld elements, created for %lld", (long long)length,
                          (long long)s->length);
    const int rank = abar_comm_rank(s->c);
    if (s->size == 1) { /* its only node is the root */
        ABAR_TRY(copy(s, sum, nodes[0], (size_t)length * (size_t)s->type));
        unify_nans(s, sum, length);
        return ABAR_OK;
    }
    for (int64_t at = 0; at < length; at += s->piece) {
        const int64_t here = length - at < s->piece ? length - at : s->piece;
        const size_t offset = (size_t)at * (size_t)s->type;
        for (int k = 0; k < s->rounds; k++)
            ABAR_TRY(scatter(s, k < s->has[rank] ? (const uint8_t *)nodes[k] + offset : NULL, k, here));
        const int64_t own = part_begin(s, here, rank + 1) - part_begin(s, here, rank);
        ABAR_TRY(add_nodes(s, own));
        unify_nans(s, s->work, own);
        ABAR_TRY(share(s, (uint8_t *)sum + offset, here));
    }
    return s->c && s->c->failed ? abar__comm_lost(s->c, s->c->failure) : ABAR_OK;
}
