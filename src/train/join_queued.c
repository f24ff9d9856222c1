/* Micro-batches joined on a queued device: join.c's sums in its memory, enqueued.
 *
 *                        enqueued (or captured)             host                   enqueued (or captured)
 *     one rank           sums of micro-batches              –                      totals, update
 *     NCCL               sums of micro-batches; gradients   –                      exchange of the rest, totals,
 *                        of the last are exchanged beside                          update
 *                        its backward pass
 *     through the host   ... copies to pinned memory        meet: waits,           copies back, totals, update
 *                                                           exchanges
 *
 * A step of one micro-batch on one rank joins nothing but results: its gradients and statistics are the batch's already. */
#include "optim/optim_impl.h"
#include "train/train_impl.h"

#include <string.h>
#include <time.h>

static const abar__stream_ops *join_stream(const abar__join *j) { return j->config.dev->ops->stream; }
static const abar__join_ops *join_ops(const abar__join *j) { return j->config.dev->ops->join; }
static void *join_queue(const abar__join *j) { return join_stream(j)->current(j->config.dev); }
static bool has_parts(const abar__join *j) { return j->config.n > 1; }

static abar_status copy_there(const abar__join *j, void *to, const void *from, size_t bytes)
{
    return join_stream(j)->copy_bytes(j->config.dev, to, from, bytes);
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

abar_status abar__join_take_memory(abar__join *j)
{
    void *memory;
    ABAR_TRY(abar_device_alloc(j->config.dev, j->bytes, &memory));
    j->memory = memory;
    if (j->host_bytes == 0) return ABAR_OK;
    ABAR_TRY(join_stream(j)->shared_alloc(j->config.dev, j->host_bytes, &memory));
    j->host = memory;
    return ABAR_OK;
}

void abar__join_free_memory(abar__join *j)
{
    abar_device_free(j->config.dev, j->memory, j->bytes);
    if (j->host) join_stream(j)->shared_free(j->config.dev, j->host, j->host_bytes);
}

/* Where pinned memory has what the device has at this address. */
static void *mirror(const abar__join *j, const void *device) { return j->host + ((const char *)device - j->memory); }

static size_t slot_bytes(const abar__stack_sum *s) { return abar__round_up((size_t)s->capacity * s->type, ABAR_ALIGN); }
static void *slot_there(const abar__stack_sum *s, int i) { return s->slots + (size_t)i * slot_bytes(s); }

/* Elements `at` to at + n of sums, of all nodes alike. */
typedef struct range {
    int64_t at, n;
} range;

static range whole_of(const abar__stack_sum *s) { return (range){0, s->length}; }

static void *element(const abar__stack_sum *s, const void *base, int64_t at)
{
    return (char *)(uintptr_t)base + (size_t)at * s->type;
}
static size_t sum_bytes(const abar__stack_sum *s) { return (size_t)s->length * s->type; }
static bool holds_doubles(const abar__stack_sum *s) { return s->type == ABAR_TREE_DOUBLE; }

static char *statistics_there(const abar__join *j, int64_t i) { return j->statistics + (size_t)i * j->config.statistics_bytes; }
static double *numbers_of(const abar__join *j, int rank, int64_t i)
{
    return j->numbers + (rank * (j->count + 1) + i) * ABAR_RESULT_NUMBERS;
}

/* ---- sums of ranks over NCCL ------------------------------------------------------------------------------------------- */

static abar_status place_alloc(void *user, size_t bytes, void **out)
{
    const abar__join *j = user;
    return abar_device_alloc(j->config.dev, bytes, out);
}

static void place_release(void *user, void *memory, size_t bytes)
{
    const abar__join *j = user;
    abar_device_free(j->config.dev, memory, bytes);
}

static abar_status place_copy(void *user, void *to, const void *from, size_t bytes)
{
    return copy_there((const abar__join *)user, to, from, bytes);
}

static abar_status place_add(void *user, void *to, const void *from, int64_t n, abar__tree_type type)
{
    const abar__join *j = user;
    return join_ops(j)->add(j->config.dev, to, from, n, type == ABAR_TREE_DOUBLE);
}

static abar_status place_exchange(void *user, const void *const *send, const size_t *send_bytes, void *const *recv,
                                  const size_t *recv_bytes)
{
    const abar__join *j = user;
    return abar__nccl_exchange(j->config.nccl, send, send_bytes, recv, recv_bytes, join_queue(j));
}

void abar__join_place_tree(const abar__join *j, abar__tree_place *out)
{
    *out = (abar__tree_place){.user = (void *)(uintptr_t)j,
                              .alloc = place_alloc,
                              .release = place_release,
                              .copy = place_copy,
                              .add = place_add,
                              .exchange = place_exchange};
}

/* ---- micro-batches ---------------------------------------------------------------------------------------------------- */

abar_status abar__join_plan(abar__join *j, const abar__stepper *s)
{
    j->grads.length = j->grads.capacity;
    j->extra.length = abar_optim_extra(s->optim) == ABAR_EXTRA_DIFFERENCE ? j->extra.capacity : 0;
    j->pending.length = has_parts(j) ? abar_optim_pending_count(s->optim) : 0;
    if (j->pending.length > j->pending.capacity)
        return abar__fail(j->ctx, ABAR_E_STATE, "join: %lld pending statistics, there is memory for %lld",
                          (long long)j->pending.length, (long long)j->pending.capacity);
    if (j->config.nccl && j->host) { /* read by the device when the step runs */
        abar__part_result *word = j->results + j->rank * (j->count + 1) + j->count;
        *word = (abar__part_result){.loss = j->config.stop && atomic_load(j->config.stop)};
    }
    return ABAR_OK;
}

static void begin_stack(abar__stack_sum *s, const abar__join *j)
{
    s->next = j->first;
    s->filled = 0;
}

abar_status abar__join_enqueue_begin(abar__join *j, const abar__stepper *s)
{
    begin_stack(&j->grads, j);
    begin_stack(&j->extra, j);
    begin_stack(&j->pending, j);
    return has_parts(j) ? abar__join_statistics_begin(j, s) : ABAR_OK;
}

static abar_status add_there(const abar__join *j, const abar__stack_sum *s, void *to, const void *from, range r)
{
    return join_ops(j)->add(j->config.dev, element(s, to, r.at), element(s, from, r.at), r.n, holds_doubles(s));
}

/* join.c's add_term, of a range; the stack stays as it is. Returns how many nodes it then has by *filled. */
static abar_status push_range(const abar__join *j, const abar__stack_sum *s, const void *term, range r, int *filled)
{
    *filled = s->filled;
    if (j->direct || r.n == 0) return ABAR_OK;
    int merges = abar__tree_merges(j->config.n, j->first, s->next);
    if (merges == 0)
        return copy_there(j, element(s, slot_there(s, (*filled)++), r.at), element(s, term, r.at), (size_t)r.n * s->type);
    ABAR_TRY(add_there(j, s, slot_there(s, *filled - 1), term, r));
    for (merges--; merges > 0; merges--, --*filled)
        ABAR_TRY(add_there(j, s, slot_there(s, *filled - 2), slot_there(s, *filled - 1), r));
    return ABAR_OK;
}

static abar_status push_term(const abar__join *j, abar__stack_sum *s, const void *term)
{
    int filled;
    ABAR_TRY(push_range(j, s, term, whole_of(s), &filled));
    s->filled = filled;
    s->next++;
    return ABAR_OK;
}

static abar_status pack_span(void *user, const abar__pending_span *span)
{
    const abar__join *j = user;
    return join_ops(j)->pack(j->config.dev, span, j->pending_own);
}

static abar_status unpack_span(void *user, const abar__pending_span *span)
{
    const abar__join *j = user;
    return join_ops(j)->unpack(j->config.dev, span, j->pending_own);
}

static void *grads_there(const abar_net *net) { return abar__net_blocks_of(net).grads; }

abar_status abar__join_enqueue_add(abar__join *j, const abar__stepper *s, int64_t i)
{
    ABAR_TRY(join_ops(j)->note(j->config.dev, numbers_of(j, j->rank, i), abar_net_loss(s->net)));
    if (!abar__join_watches(j, i)) ABAR_TRY(push_term(j, &j->grads, grads_there(s->net)));
    if (j->extra.length) ABAR_TRY(push_term(j, &j->extra, grads_there(s->extra)));
    if (has_parts(j)) ABAR_TRY(abar__join_statistics_add(j, s, i));
    if (j->pending.length == 0) return ABAR_OK;
    ABAR_TRY(abar__optim_visit_pending(s->optim, pack_span, j));
    return push_term(j, &j->pending, j->pending_own);
}

/* ---- through the host ------------------------------------------------------------------------------------------------- */

/* The nodes of a sum to pinned memory; whole: where the only term is, where there is one. */
static abar_status send_sum(const abar__join *j, const abar__stack_sum *s, const void *whole)
{
    for (int k = 0; k < j->nodes && s->length > 0; k++)
        ABAR_TRY(copy_there(j, mirror(j, slot_there(s, k)), j->direct ? whole : slot_there(s, k), sum_bytes(s)));
    return ABAR_OK;
}

static abar_status send_statistics(const abar__join *j)
{
    char *own = statistics_there(j, j->first);
    return copy_there(j, mirror(j, own), own, (size_t)j->count * j->config.statistics_bytes);
}

abar_status abar__join_send(abar__join *j, const abar__stepper *s)
{
    const double *own = numbers_of(j, j->rank, 0);
    ABAR_TRY(send_sum(j, &j->grads, grads_there(s->net)));
    if (j->extra.length) ABAR_TRY(send_sum(j, &j->extra, grads_there(s->extra)));
    ABAR_TRY(send_sum(j, &j->pending, j->pending_own));
    ABAR_TRY(send_statistics(j));
    return copy_there(j, mirror(j, own), own, (size_t)j->count * ABAR_RESULT_NUMBERS * sizeof *own);
}

/* Host: all ranks' sum, into the first slot of pinned memory. */
static abar_status meet_sum(const abar__join *j, const abar__stack_sum *s)
{
    abar__stack_sum here = *s;
    if (s->length == 0) return ABAR_OK;
    here.slots = mirror(j, s->slots);
    here.filled = j->nodes;
    return abar__join_reduce(j, &here, here.slots);
}

static abar_status meet_statistics(const abar__join *j)
{
    const size_t own = (size_t)j->count * j->config.statistics_bytes;
    if (own == 0) return ABAR_OK;
    return abar__comm_gather(j->config.comm, mirror(j, statistics_there(j, j->first)), own, mirror(j, j->statistics));
}

abar_status abar__join_meet(abar__join *j, abar_status status)
{
    const abar_status waited = abar_device_wait(j->config.dev);
    ABAR_TRY(abar__join_fail(j, status < 0 ? status : waited));
    ABAR_TRY(meet_statistics(j));
    ABAR_TRY(meet_sum(j, &j->grads));
    ABAR_TRY(meet_sum(j, &j->extra));
    return meet_sum(j, &j->pending);
}

/* ---- what all ranks have ---------------------------------------------------------------------------------------------- */

/* Adds the nodes that are left, in any order: for --reduce fast. */
static abar_status fold(const abar__join *j, const abar__stack_sum *s, range r)
{
    for (int k = j->nodes - 1; k > 0; k--) ABAR_TRY(add_there(j, s, slot_there(s, k - 1), slot_there(s, k), r));
    return ABAR_OK;
}

static abar_status reduce_over_nccl(const abar__join *j, const abar__stack_sum *s, void *sum, range r)
{
    const void *nodes[ABAR_TREE_NODES];
    void *to = element(s, sum, r.at);
    const size_t bytes = (size_t)r.n * s->type;
    for (int k = 0; k < j->nodes; k++) nodes[k] = j->direct ? to : element(s, slot_there(s, k), r.at);
    if (j->ranks > 1 && !j->config.fast) return abar__tree_sum_run(s->tree, nodes, to, r.n);
    if (!j->direct) ABAR_TRY(fold(j, s, r));
    if (!j->direct) ABAR_TRY(copy_there(j, to, nodes[0], bytes));
    if (j->config.fast) return abar__nccl_sum(j->config.nccl, to, r.n, holds_doubles(s), join_queue(j));
    return abar__nccl_gather(j->config.nccl, to, bytes, to, join_queue(j)); /* of one rank: what several do, in the queue */
}

/* ---- gradients in buckets, beside the backward pass ------------------------------------------------------------------------
 *
 * Every element is summed by itself: buckets change no bit. Their exchanges are in order, on the side of ranks; those that come
 * later wait for them. */

bool abar__join_watches(const abar__join *j, int64_t i) { return j->bucket > 0 && j->grads.length > 0 && i == j->count - 1; }

void abar__join_begin_watching(abar__join *j, const abar__stepper *s)
{
    j->joined = j->grads.length;
    j->joining = grads_there(s->net);
}

static abar_status join_bucket(const abar__join *j, range r)
{
    int filled;
    ABAR_TRY(push_range(j, &j->grads, j->joining, r, &filled));
    return reduce_over_nccl(j, &j->grads, j->joining, r);
}

abar_status abar__join_watch(void *join, size_t from)
{
    abar__join *j = join;
    const int64_t complete = (int64_t)(from / j->grads.type);
    if (j->joined - complete < j->bucket && complete > 0) return ABAR_OK; /* too few yet */
    ABAR_TRY(join_stream(j)->side_begin(j->config.dev, ABAR_SIDE_RANKS));
    abar_status status = ABAR_OK;
    while (status == ABAR_OK && j->joined > 0 && (j->joined - complete >= j->bucket || complete == 0)) {
        const int64_t n = j->joined < j->bucket ? j->joined : j->bucket;
        j->joined -= n;
        status = join_bucket(j, (range){j->joined, n});
    }
    const abar_status ended = join_stream(j)->side_end(j->config.dev, ABAR_SIDE_RANKS);
    return status < 0 ? status : ended;
}

/* ---- all that is joined ------------------------------------------------------------------------------------------------ */

/* The sum of all ranks to where the only term would be. */
static abar_status take_sum(abar__join *j, abar__stack_sum *s, void *to)
{
    if (s->length == 0) return ABAR_OK;
    if (j->config.nccl) return reduce_over_nccl(j, s, to, whole_of(s));
    if (j->staged) return copy_there(j, to, mirror(j, slot_there(s, 0)), sum_bytes(s));
    return j->direct ? ABAR_OK : copy_there(j, to, slot_there(s, 0), sum_bytes(s));
}

/* This rank's records, with its word, and all others'. */
static abar_status take_results(abar__join *j)
{
    const size_t own = (size_t)(j->count + 1) * ABAR_RESULT_NUMBERS * sizeof *j->numbers;
    double *word = numbers_of(j, j->rank, j->count);
    if (j->staged) return copy_there(j, j->numbers, mirror(j, j->numbers), (size_t)j->ranks * own);
    if (!j->config.nccl) return ABAR_OK;
    if (j->host) ABAR_TRY(copy_there(j, word, mirror(j, word), ABAR_RESULT_NUMBERS * sizeof *word));
    return abar__nccl_gather(j->config.nccl, numbers_of(j, j->rank, 0), own, j->numbers, join_queue(j));
}

/* The net goes on from its statistics before the step, through the batches of all ranks. */
static abar_status take_statistics(abar__join *j, const abar__stepper *s)
{
    const size_t each = j->config.statistics_bytes, own = (size_t)j->count * each, all = (size_t)j->config.n * each;
    if (each == 0) return ABAR_OK;
    if (j->staged) ABAR_TRY(copy_there(j, j->statistics, mirror(j, j->statistics), all));
    if (j->config.nccl)
        ABAR_TRY(abar__nccl_gather(j->config.nccl, statistics_there(j, j->first), own, j->statistics, join_queue(j)));
    ABAR_TRY(copy_there(j, abar__net_blocks_of(s->net).pending, statistics_there(j, j->config.n), each));
    return abar__net_enqueue_statistics(s->net, j->statistics, j->config.n);
}

/* What is left of the gradients, where a net has some that no pass writes; then all exchanges wait for theirs. */
static abar_status take_grads(abar__join *j, const abar__stepper *s)
{
    if (!abar__join_watches(j, j->count - 1)) return take_sum(j, &j->grads, grads_there(s->net));
    if (j->joined > 0) ABAR_TRY(abar__join_watch(j, 0));
    return join_stream(j)->side_join(j->config.dev, ABAR_SIDE_RANKS);
}

abar_status abar__join_take(abar__join *j, const abar__stepper *s)
{
    ABAR_TRY(take_grads(j, s));
    ABAR_TRY(take_results(j));
    ABAR_TRY(join_ops(j)->total(j->config.dev, abar__optim_losses(s->optim), j->numbers, j->config.n, j->count));
    if (has_parts(j)) ABAR_TRY(take_statistics(j, s));
    if (j->extra.length) ABAR_TRY(take_sum(j, &j->extra, grads_there(s->extra)));
    if (j->pending.length == 0) return ABAR_OK;
    ABAR_TRY(take_sum(j, &j->pending, j->pending_own));
    ABAR_TRY(abar__optim_visit_pending(s->optim, unpack_span, j));
    abar__optim_scale_counts(s->optim, j->ranks);
    return ABAR_OK;
}

abar_status abar__join_statistics_take(abar__join *j, const abar__stepper *s)
{
    if (j->staged) {
        ABAR_TRY(send_statistics(j));
        ABAR_TRY(abar_device_wait(j->config.dev));
        ABAR_TRY(meet_statistics(j));
    }
    return take_statistics(j, s);
}

/* ---- further passes --------------------------------------------------------------------------------------------------- */

void abar__join_extra_enqueue_begin(abar__join *j)
{
    j->extra.length = j->extra.capacity;
    begin_stack(&j->extra, j);
}

abar_status abar__join_extra_push(abar__join *j, const abar__stepper *s)
{
    return push_term(j, &j->extra, grads_there(s->extra));
}
abar_status abar__join_extra_send(abar__join *j, const abar__stepper *s)
{
    return send_sum(j, &j->extra, grads_there(s->extra));
}

abar_status abar__join_extra_meet(abar__join *j)
{
    ABAR_TRY(abar_device_wait(j->config.dev));
    j->extra.length = j->extra.capacity;
    return meet_sum(j, &j->extra);
}

abar_status abar__join_extra_take(abar__join *j, const abar__stepper *s)
{
    j->extra.length = j->extra.capacity;
    return take_sum(j, &j->extra, grads_there(s->extra));
}

/* ---- waiting ---------------------------------------------------------------------------------------------------------- */

#define HEARS 0.02     /* seconds between two looks at what other ranks tell */
#define LAST_WORDS 1.0 /* that a rank which has ended others' steps may take to tell why */

/* What another rank tells of its failure; its words count more than what NCCL sees of it. Returns ABAR_OK where it tells
 * nothing within so many seconds. */
static abar_status hear(abar__join *j, double seconds)
{
    const struct timespec nap = {.tv_nsec = 2000000};
    const double end = abar__seconds() + seconds;
    abar_status status = abar__comm_hear(j->config.comm);
    while (status == ABAR_OK && abar__seconds() < end) {
        nanosleep(&nap, NULL);
        status = abar__comm_hear(j->config.comm);
    }
    if (status < 0) abar__nccl_abort(j->config.nccl); /* steps that wait for that rank end */
    return status;
}

abar_status abar__join_tell(abar__join *j, abar_status status)
{
    if (status >= 0 || status == ABAR_E_PEER || j->ranks == 1) return status;
    abar__comm_tell_error(j->config.comm, j->ctx);
    if (j->config.nccl) abar__nccl_abort(j->config.nccl);
    return status;
}

/* A rank that is gone leaves the others' exchanges in the queue for ever. */
abar_status abar__join_wait(abar__join *j, void *event)
{
    const struct timespec nap = {.tv_nsec = 50000};
    const double began = abar__seconds(), most = abar__nccl_timeout(j->config.nccl);
    double heard = began;
    while (!join_stream(j)->event_done(j->config.dev, event)) {
        const double now = abar__seconds();
        if (now - heard > HEARS) {
            ABAR_TRY(hear(j, 0.0));
            heard = now;
        }
        if (abar__nccl_has_failed(j->config.nccl)) {
            ABAR_TRY(hear(j, LAST_WORDS));
            return abar__nccl_failure(j->config.nccl);
        }
        if (now - began > most) return abar__nccl_give_up(j->config.nccl);
        nanosleep(&nap, NULL);
    }
    return join_stream(j)->event_wait(j->config.dev, event);
}
