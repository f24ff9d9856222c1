/* Joining the micro-batches of a step: join.h says what is joined and how. */
#include "train/join.h"

#include "train/train_impl.h"

#include <string.h>

/* ---- sums ------------------------------------------------------------------------------------------------------------- */

static size_t slot_size(const abar__stack_sum *s) { return abar__round_up((size_t)s->capacity * s->type, ABAR_ALIGN); }
static void *slot_of(const abar__stack_sum *s, int i) { return s->slots + (size_t)i * slot_size(s); }

static abar_status make_tree(abar_context *ctx, const abar__join *j, abar__tree_type type, int64_t capacity,
                             abar__tree_sum **out)
{
    void *memory;
    const size_t bytes = 2 * (size_t)j->ranks * sizeof(int64_t);
    ABAR_TRY(abar__alloc(ctx, bytes, &memory));
    int64_t *first = memory, *count = first + j->ranks;
    for (int r = 0; r < j->ranks; r++) {
        first[r] = r * j->count;
        count[r] = j->count;
    }
    abar__tree_place place;
    const bool there = j->config.dev && !j->staged;
    if (there) abar__join_place_tree(j, &place);
    const abar_status status =
        abar__tree_sum_create_in(ctx, j->config.comm, there ? &place : NULL, j->config.n, first, count, type, capacity, out);
    abar__free(ctx, memory, bytes);
    return status;
}

/* run: elements that are summed at once, at most; 0: all. */
static abar_status make_sum(abar__join *j, abar__tree_type type, size_t bytes, int64_t run, abar__stack_sum *out)
{
    *out = (abar__stack_sum){.type = type, .capacity = (int64_t)(bytes / type)};
    if (bytes == 0) return ABAR_OK;
    out->depth = abar__tree_depth(j->config.n, j->first, j->count);
    out->bytes = (size_t)out->depth * slot_size(out);
    if (j->config.dev && (j->ranks == 1 || (j->config.nccl && j->config.fast))) return ABAR_OK; /* nothing else to add */
    return make_tree(j->ctx, j, type, run > 0 && run < out->capacity ? run : out->capacity, &out->tree);
}

static void begin_sum(abar__stack_sum *s, const abar__join *j, int64_t length)
{
    s->length = length;
    s->next = j->first;
    s->filled = 0;
}

static void add_to(const abar__stack_sum *s, void *to, const void *from)
{
    if (s->type == ABAR_TREE_FLOAT)
        abar__tree_add_floats(to, from, s->length);
    else
        abar__tree_add_doubles(to, from, s->length);
}

/* The term is added to the top where it completes that node: no copy of it is needed. */
static void add_term(abar__stack_sum *s, const abar__join *j, const void *term)
{
    int merges = abar__tree_merges(j->config.n, j->first, s->next++);
    if (merges == 0) {
        memcpy(slot_of(s, s->filled++), term, (size_t)s->length * s->type);
        return;
    }
    add_to(s, slot_of(s, s->filled - 1), term);
    for (merges--; merges > 0; merges--, s->filled--) add_to(s, slot_of(s, s->filled - 2), slot_of(s, s->filled - 1));
}

static abar_status end_fast(abar__stack_sum *s, abar_comm *comm, void *out)
{
    for (; s->filled > 1; s->filled--) add_to(s, slot_of(s, s->filled - 2), slot_of(s, s->filled - 1));
    if (out != slot_of(s, 0)) memcpy(out, slot_of(s, 0), (size_t)s->length * s->type);
    return s->type == ABAR_TREE_FLOAT ? abar__comm_sum_floats(comm, out, s->length)
                                      : abar__comm_sum_doubles(comm, out, s->length);
}

static abar_status end_sum(abar__stack_sum *s, const abar__join *j, void *out)
{
    const void *nodes[ABAR_TREE_NODES];
    if (s->length == 0) return ABAR_OK;
    if (j->config.fast && j->ranks > 1) return end_fast(s, j->config.comm, out);
    for (int i = 0; i < s->filled; i++) nodes[i] = slot_of(s, i);
    return abar__tree_sum_run(s->tree, nodes, out, s->length);
}

abar_status abar__join_reduce(const abar__join *j, abar__stack_sum *s, void *out) { return end_sum(s, j, out); }

/* The sum of n numbers in the same order. */
static double total(const abar__join *j, double (*get)(const abar__join *j, int64_t i))
{
    double stack[ABAR_TREE_NODES] = {0.0};
    int filled = 0;
    for (int64_t i = 0; i < j->config.n; i++) {
        stack[filled++] = get(j, i);
        for (int m = abar__tree_merges(j->config.n, 0, i); m > 0; m--, filled--) stack[filled - 2] += stack[filled - 1];
    }
    return stack[0];
}

/* ---- creating --------------------------------------------------------------------------------------------------------- */

static void place_part(size_t *at, size_t bytes, size_t *out)
{
    *out = *at;
    *at = abar__round_up(*at + bytes, ABAR_ALIGN);
}

typedef struct join_places {
    size_t grads, extra, pending, pending_own, results, tests, statistics, total;
    size_t front, slots; /* where pending_own begins, and the slots */
} join_places;

static join_places places_of_join(const abar__join *j)
{
    const abar__join_config *c = &j->config;
    join_places p = {0};
    place_part(&p.total, (size_t)(j->ranks * (j->count + 1)) * sizeof *j->results, &p.results);
    place_part(&p.total, (size_t)(j->ranks * j->test_share) * sizeof *j->tests, &p.tests);
    place_part(&p.total, (size_t)c->pending * sizeof(double), &p.pending_own);
    place_part(&p.total, (size_t)(c->n + 1) * c->statistics_bytes, &p.statistics);
    p.slots = p.total;
    place_part(&p.total, j->grads.bytes, &p.grads);
    place_part(&p.total, j->extra.bytes, &p.extra);
    place_part(&p.total, j->pending.bytes, &p.pending);
    p.front = p.pending_own;
    return p;
}

/* All but the memory. */
static abar_status plan_sums(abar_context *ctx, const abar__join_config *config, abar__join *j)
{
    *j = (abar__join){
        .ctx = ctx, .config = *config, .ranks = abar_comm_size(config->comm), .rank = abar_comm_rank(config->comm)};
    const abar__tree_type type = config->wide ? ABAR_TREE_DOUBLE : ABAR_TREE_FLOAT;
    j->count = config->n / j->ranks;
    j->first = j->rank * j->count;
    abar__tree_node nodes[ABAR_TREE_NODES];
    j->nodes = abar__tree_cover(config->n, j->first, j->count, nodes);
    j->staged = config->dev && j->ranks > 1 && !config->nccl;
    j->direct = config->dev && j->count == 1;
    if (j->ranks > 1) j->test_share = (config->test_batches + j->ranks - 1) / j->ranks;
    if (config->nccl) j->bucket = (int64_t)((config->bucket_bytes ? config->bucket_bytes : ABAR_BUCKET) / type);
    ABAR_TRY(make_sum(j, type, config->grad_bytes, j->bucket, &j->grads));
    ABAR_TRY(make_sum(j, type, config->extra_bytes, 0, &j->extra));
    ABAR_TRY(make_sum(j, ABAR_TREE_DOUBLE, (size_t)config->pending * sizeof(double), 0, &j->pending));
    const join_places p = places_of_join(j);
    j->bytes = j->direct ? p.slots : p.total;
    j->host_bytes = !config->dev || j->ranks == 1 ? 0 : j->staged ? p.total : p.front;
    return ABAR_OK;
}

abar_status abar__join_create(abar_context *ctx, const abar__join_config *config, abar__join *out)
{
    void *memory = NULL;
    ABAR_TRY(plan_sums(ctx, config, out));
    ABAR_TRY(config->dev ? abar__join_take_memory(out) : abar__alloc(ctx, out->bytes, &memory));
    if (memory) out->memory = memory;
    const join_places p = places_of_join(out);
    char *base = out->memory, *results = config->dev ? out->host : base; /* one rank's: in the device alone */
    out->grads.slots = base + p.grads;
    out->extra.slots = base + p.extra;
    out->pending.slots = base + p.pending;
    out->pending_own = (double *)(void *)(base + p.pending_own);
    if (config->dev) out->numbers = (double *)(void *)(base + p.results);
    if (results) out->results = (abar__part_result *)(void *)(results + p.results);
    if (results) out->tests = (abar__part_result *)(void *)(results + p.tests);
    out->statistics = base + p.statistics;
    return ABAR_OK;
}

void abar__join_release(abar__join *j)
{
    if (!j->ctx) return;
    abar__tree_sum_destroy(j->grads.tree);
    abar__tree_sum_destroy(j->extra.tree);
    abar__tree_sum_destroy(j->pending.tree);
    if (j->config.dev)
        abar__join_free_memory(j);
    else if (j->memory)
        abar__free(j->ctx, j->memory, j->bytes);
    *j = (abar__join){0};
}

abar_status abar__join_bytes(abar_context *ctx, const abar__join_config *config, size_t *out)
{
    abar__join j;
    const size_t before = abar_context_memory(ctx).now;
    const abar_status status = plan_sums(ctx, config, &j);
    *out = j.bytes + j.host_bytes + abar_context_memory(ctx).now - before;
    abar__join_release(&j);
    return status;
}

/* ---- a micro-batch ---------------------------------------------------------------------------------------------------- */

static abar__part_result *own_results(const abar__join *j) { return j->results + j->rank * (j->count + 1); }
/* What rank r says of itself: loss 1 where it wants to stop, correct 1 where it has failed. */
static abar__part_result *word_of(const abar__join *j, int r) { return j->results + r * (j->count + 1) + j->count; }
static const abar__part_result *result_at(const abar__join *j, int64_t i)
{
    return j->results + i / j->count * (j->count + 1) + i % j->count;
}

static void *grads_of(const abar_net *net) { return abar__net_blocks_of(net).grads; }

static void clear_results(abar__join *j)
{
    for (int64_t i = 0; i < j->count; i++) own_results(j)[i] = (abar__part_result){.finite = 1.0};
}

void abar__join_begin(abar__join *j, const abar__stepper *s)
{
    begin_sum(&j->grads, j, j->grads.capacity);
    begin_sum(&j->extra, j, abar_optim_extra(s->optim) == ABAR_EXTRA_DIFFERENCE ? j->extra.capacity : 0);
    begin_sum(&j->pending, j, abar_optim_pending_count(s->optim));
    (void)abar__join_statistics_begin(j, s); /* host memory: cannot fail */
    clear_results(j);
}

static char *statistics_at(const abar__join *j, int64_t i) { return j->statistics + (size_t)i * j->config.statistics_bytes; }

static abar_status copy_pending(const abar__join *j, const abar__stepper *s, bool to_net, int64_t i)
{
    void *const net = abar__net_blocks_of(s->net).pending, *const own = statistics_at(j, i);
    void *const to = to_net ? net : own, *const from = to_net ? own : net;
    const size_t bytes = j->config.statistics_bytes;
    if (j->config.dev) return j->config.dev->ops->stream->copy_bytes(j->config.dev, to, from, bytes);
    if (bytes) memcpy(to, from, bytes);
    return ABAR_OK;
}

abar_status abar__join_statistics_begin(abar__join *j, const abar__stepper *s)
{
    return copy_pending(j, s, false, j->config.n);
}

abar_status abar__join_statistics_add(abar__join *j, const abar__stepper *s, int64_t i)
{
    return copy_pending(j, s, false, j->first + i);
}

/* What was observed of the micro-batch, which the next one begins without. */
static abar_status add_pending(abar__join *j, const abar__stepper *s)
{
    if (j->pending.length == 0) return ABAR_OK;
    ABAR_TRY(abar_optim_pending_read(s->optim, j->pending_own));
    abar_optim_forget(s->optim);
    add_term(&j->pending, j, j->pending_own);
    return ABAR_OK;
}

abar_status abar__join_add(abar__join *j, const abar__stepper *s, int64_t i, const abar_loss *loss)
{
    own_results(j)[i] = (abar__part_result){.loss = loss->loss * (double)loss->count,
                                            .correct = (double)loss->correct,
                                            .count = (double)loss->count,
                                            .finite = 1.0};
    add_term(&j->grads, j, grads_of(s->net));
    if (j->extra.length) add_term(&j->extra, j, grads_of(s->extra));
    ABAR_TRY(abar__join_statistics_add(j, s, i));
    return add_pending(j, s);
}

void abar__join_spoil(abar__join *j, int64_t i) { own_results(j)[i].finite = 0.0; }

/* ---- all ranks -------------------------------------------------------------------------------------------------------- */

static bool any_failed(const abar__join *j)
{
    for (int r = 0; r < j->ranks; r++)
        if (word_of(j, r)->correct != 0.0) return true;
    return false;
}

/* Results of all micro-batches, and what the ranks have to say. */
static abar_status exchange_results(abar__join *j, abar_status status)
{
    abar__part_result *own = own_results(j);
    const bool stop = j->config.stop && atomic_load(j->config.stop);
    *word_of(j, j->rank) = (abar__part_result){.loss = stop, .correct = status < 0};
    if (status == ABAR_E_PEER) return status; /* nobody listens */
    if (j->ranks == 1 && status < 0) return status;
    ABAR_TRY(abar__comm_gather(j->config.comm, own, (size_t)(j->count + 1) * sizeof *own, j->results));
    if (any_failed(j)) return abar_ranks_agree(j->ctx, j->config.comm, status, NULL);
    for (int r = 0; r < j->ranks; r++) j->stops = j->stops || word_of(j, r)->loss != 0.0;
    return ABAR_OK;
}

abar_status abar__join_fail(abar__join *j, abar_status status) { return exchange_results(j, status); }

static double loss_at(const abar__join *j, int64_t i) { return result_at(j, i)->loss; }
static double correct_at(const abar__join *j, int64_t i) { return result_at(j, i)->correct; }
static double count_at(const abar__join *j, int64_t i) { return result_at(j, i)->count; }

static bool all_finite(const abar__join *j)
{
    for (int64_t i = 0; i < j->config.n; i++)
        if (result_at(j, i)->finite == 0.0) return false;
    return true;
}

abar_status abar__join_statistics_end(abar__join *j, const abar__stepper *s, abar_status status)
{
    const size_t own = (size_t)j->count * j->config.statistics_bytes;
    if (status < 0 || own == 0) return status;
    if (j->config.dev) return abar__join_statistics_take(j, s);
    ABAR_TRY(abar__comm_gather(j->config.comm, statistics_at(j, j->first), own, j->statistics));
    ABAR_TRY(copy_pending(j, s, true, j->config.n));
    abar__net_add_statistics(s->net, j->statistics, j->config.n);
    return ABAR_OK;
}

typedef struct rows_walk {
    const abar__join *j;
    int64_t micro;
} rows_walk;

static abar_status gather_rows(void *user, void *rows, size_t bytes)
{
    const rows_walk *w = user;
    const size_t own = (size_t)(w->j->count * w->micro) * bytes;
    return abar__comm_gather(w->j->config.comm, (char *)rows + (size_t)w->j->rank * own, own, rows);
}

static abar_status end_pending(abar__join *j, const abar__stepper *s)
{
    rows_walk w = {j, s->micro};
    if (j->pending.length == 0) return ABAR_OK;
    ABAR_TRY(end_sum(&j->pending, j, j->pending_own));
    ABAR_TRY(abar_optim_pending_write(s->optim, j->pending_own));
    return abar_optim_visit_rows(s->optim, gather_rows, &w);
}

abar_status abar__join_end(abar__join *j, const abar__stepper *s, abar_status status, abar__step_result *out)
{
    ABAR_TRY(exchange_results(j, status));
    out->skipped = !all_finite(j);
    if (out->skipped) return ABAR_OK;
    out->loss.correct = (int64_t)total(j, correct_at);
    out->loss.count = (int64_t)total(j, count_at);
    out->loss.loss = total(j, loss_at) / (double)out->loss.count;
    ABAR_TRY(abar__join_statistics_end(j, s, ABAR_OK));
    ABAR_TRY(end_sum(&j->grads, j, grads_of(s->net)));
    if (j->extra.length) ABAR_TRY(end_sum(&j->extra, j, grads_of(s->extra)));
    return end_pending(j, s);
}

/* ---- further passes --------------------------------------------------------------------------------------------------- */

void abar__join_extra_begin(abar__join *j) { begin_sum(&j->extra, j, j->extra.capacity); }
void abar__join_extra_add(abar__join *j, const abar__stepper *s) { add_term(&j->extra, j, grads_of(s->extra)); }
abar_status abar__join_extra_end(abar__join *j, const abar__stepper *s) { return end_sum(&j->extra, j, grads_of(s->extra)); }

void abar__join_second_begin(abar__join *j, const abar__stepper *s)
{
    begin_sum(&j->pending, j, abar_optim_pending_count(s->optim));
    clear_results(j);
}

abar_status abar__join_second_add(abar__join *j, const abar__stepper *s) { return add_pending(j, s); }

abar_status abar__join_second_end(abar__join *j, const abar__stepper *s, abar_status status, bool *finite)
{
    ABAR_TRY(exchange_results(j, status));
    *finite = all_finite(j);
    return *finite ? end_pending(j, s) : ABAR_OK;
}

/* ---- an evaluation ---------------------------------------------------------------------------------------------------- */

static int64_t test_first(const abar__join *j, int rank)
{
    const int64_t at = rank * j->test_share;
    return at < j->config.test_batches ? at : j->config.test_batches;
}

int64_t abar__join_tests(const abar__join *j, int64_t *first)
{
    *first = test_first(j, j->rank);
    return test_first(j, j->rank + 1) - *first;
}

void abar__join_test_add(abar__join *j, int64_t i, const abar_loss *loss)
{
    j->tests[j->rank * j->test_share + i] = (abar__part_result){
        .loss = loss->loss * (double)loss->count, .correct = (double)loss->correct, .count = (double)loss->count};
}

abar_status abar__join_tests_end(abar__join *j, abar_status status, abar_loss *out)
{
    double sum = 0.0;
    const abar__part_result *own = j->tests + j->rank * j->test_share;
    ABAR_TRY(exchange_results(j, status));
    if (j->stops) return ABAR_STOPPED;
    ABAR_TRY(abar__comm_gather(j->config.comm, own, (size_t)j->test_share * sizeof *own, j->tests));
    for (int64_t i = 0; i < j->config.test_batches; i++) { /* the shares of all ranks, but the last ones, are equally large */
        sum += j->tests[i].loss;
        out->correct += (int64_t)j->tests[i].correct;
        out->count += (int64_t)j->tests[i].count;
    }
    out->loss = sum / (double)out->count;
    return ABAR_OK;
}
