/* Ranks on a queued device without a GPU: the device is cpu with a queue whose work is done at once, and with sums in plain C.
 * Its ranks exchange through the host, or over tests/fake/nccl.c; weights and state are compared with those of cpu's own join.
 */
#ifndef QUEUED_SUPPORT_H
#define QUEUED_SUPPORT_H

#include "data/data_impl.h"
#include "optim/optim_impl.h"
#include "train_engine.h"

#include <math.h>
#include <sys/wait.h>

#define RUN "device=cpu threads=1 workers=0 limit-train=96 limit-test=10 batch=24 lr=0.02 warmup=0 "
#define STEPS 6

/* ---- a queue that does at once what it is given ------------------------------------------------------------------------- */

static inline abar_status wait_queue(abar_device *dev)
{
    (void)dev;
    return ABAR_OK;
}

static inline abar_status alloc_shared(abar_device *dev, size_t bytes, void **out)
{
    *out = NULL;
    return bytes ? abar__alloc(dev->ctx, bytes, out) : ABAR_OK;
}

static inline void free_shared(abar_device *dev, void *memory, size_t bytes) { abar__free(dev->ctx, memory, bytes); }

static inline void settle_bytes(abar_device *dev, void *dst, void *src, size_t bytes, const int32_t *skipped)
{
    (void)dev;
    memcpy(*skipped ? src : dst, *skipped ? dst : src, bytes);
}

static inline abar_status copy_at_once(abar_device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    if (bytes) memmove(dst, src, bytes);
    return ABAR_OK;
}

static bool events_end = true;

static inline bool is_done(abar_device *dev, void *mark)
{
    (void)dev, (void)mark;
    return events_end;
}

static inline abar_status make_event(abar_device *dev, void **mark)
{
    *mark = dev;
    return ABAR_OK;
}

static inline abar_status with_event(abar_device *dev, void *mark)
{
    (void)dev, (void)mark;
    return ABAR_OK;
}

static inline void without(abar_device *dev, void *thing) { (void)dev, (void)thing; }

/* What is captured runs at once and leaves nothing to replay: it is captured anew in every step. */
static inline abar_status end_capture(abar_device *dev, void **graph)
{
    (void)dev;
    *graph = NULL;
    return ABAR_OK;
}

static int sides_begun[ABAR_SIDES], sides_open[ABAR_SIDES];

/* What is given to a side is done at once; it ends before it is waited for. */
static inline abar_status begin_side(abar_device *dev, abar__side side)
{
    (void)dev;
    sides_begun[side]++;
    return sides_open[side]++ ? ABAR_E_STATE : ABAR_OK;
}

static inline abar_status end_side(abar_device *dev, abar__side side)
{
    (void)dev;
    return --sides_open[side] ? ABAR_E_STATE : ABAR_OK;
}

static inline abar_status join_side(abar_device *dev, abar__side side)
{
    (void)dev;
    return sides_open[side] || !sides_begun[side] ? ABAR_E_STATE : ABAR_OK;
}

static inline void *no_queue(abar_device *dev)
{
    (void)dev;
    return NULL;
}

static const abar__stream_ops queue = {.wait = wait_queue,
                                       .shared_alloc = alloc_shared,
                                       .shared_free = free_shared,
                                       .side_begin = begin_side,
                                       .side_end = end_side,
                                       .side_join = join_side,
                                       .current = no_queue,
                                       .capture_begin = wait_queue,
                                       .capture_end = end_capture,
                                       .replay = with_event,
                                       .forget = without,
                                       .event_create = make_event,
                                       .event_destroy = without,
                                       .event_record = with_event,
                                       .event_wait = with_event,
                                       .event_done = is_done,
                                       .settle = settle_bytes,
                                       .copy_bytes = copy_at_once};

/* ---- sums in plain C ------------------------------------------------------------------------------------------------------
 */

static int64_t noted, bad_one = -1; /* micro-batches of this step so far; which of the batch has no finite loss, -1: none */

static inline abar_status add(abar_device *dev, void *to, const void *from, int64_t n, bool wide)
{
    (void)dev;
    if (wide)
        abar__tree_add_doubles(to, from, n);
    else
        abar__tree_add_floats(to, from, n);
    return ABAR_OK;
}

static inline abar_status note(abar_device *dev, double *to, const void *result)
{
    const abar_loss *loss = result;
    (void)dev;
    const bool bad = noted++ == bad_one;
    to[0] = bad ? NAN : loss->loss * (double)loss->count;
    to[1] = (double)loss->correct;
    to[2] = (double)loss->count;
    to[3] = bad ? 0.0 : 1.0;
    return ABAR_OK;
}

/* losses: the step itself. */
static inline abar_status total(abar_device *dev, void *losses, const double *results, int64_t n, int64_t each)
{
    double sum[3][64] = {{0.0}};
    bool finite = true;
    int filled = 0;
    for (int64_t i = 0; i < n; i++, filled++) {
        const double *r = results + (i / each * (each + 1) + i % each) * ABAR_RESULT_NUMBERS;
        finite = finite && r[3] != 0.0;
        for (int k = 0; k < 3; k++) sum[k][filled] = r[k];
        for (int m = abar__join_merges(n, i); m > 0; m--, filled--)
            for (int k = 0; k < 3; k++) sum[k][filled - 1] += sum[k][filled];
    }
    assert_int_equal(filled, 1);
    const abar_loss loss = {
        .loss = finite ? sum[0][0] / sum[2][0] : NAN, .correct = (int64_t)sum[1][0], .count = (int64_t)sum[2][0]};
    return abar__host_step.add_loss(dev, losses, &loss);
}

static inline void *losses_of(const abar__compiled_step *s) { return (void *)(uintptr_t)s; }

static inline abar_status move_span(const abar__pending_span *s, double *packed, bool back)
{
    double *at = packed + s->at, *doubles = s->memory;
    float *floats = s->memory;
    const int64_t rows = s->kind == ABAR_PENDING_TRIANGLE ? s->n : 1;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < (rows > 1 || s->kind == ABAR_PENDING_TRIANGLE ? row + 1 : s->n); i++, at++) {
            float *number = s->kind == ABAR_PENDING_DOUBLES ? NULL : floats + row * s->n + i;
            if (back && number) *number = (float)*at;
            if (back && !number) doubles[i] = *at;
            if (back) continue;
            *at = number ? (double)*number : doubles[i];
            if (number) *number = 0.0f;
            if (!number) doubles[i] = 0.0;
        }
    return ABAR_OK;
}

static inline abar_status pack(abar_device *dev, const abar__pending_span *span, double *packed)
{
    (void)dev;
    return move_span(span, packed, false);
}

static inline abar_status unpack(abar_device *dev, const abar__pending_span *span, const double *packed)
{
    (void)dev;
    return move_span(span, (double *)(uintptr_t)packed, true);
}

static inline abar_status average(abar_device *dev, int64_t length, double momentum, void *running, const void *batches,
                                  int64_t n, size_t stride)
{
    float *to = running;
    (void)dev;
    for (int64_t b = 0; b < n; b++)
        for (int64_t i = 0; i < length; i++) {
            const float *batch = (const float *)(const void *)((const char *)batches + (size_t)b * stride);
            to[i] = (float)((1.0 - momentum) * (double)to[i] + momentum * (double)batch[i]);
        }
    return ABAR_OK;
}

static inline abar_status count(abar_device *dev, int64_t *counters, const int64_t *before, const int64_t *all, int n,
                                int ranks)
{
    (void)dev;
    for (int i = 0; i < n; i++) {
        counters[i] = before[i];
        for (int r = 0; r < ranks; r++) counters[i] += all[r * n + i] - before[i];
    }
    return ABAR_OK;
}

static const abar__join_ops sums = {add, note, total, pack, unpack, average, count};

static abar_device_ops queued_ops;
static abar__step_ops queued_step;

static inline void make_queued(abar_device *dev)
{
    queued_ops = *dev->ops;
    queued_step = *dev->ops->step;
    queued_step.losses = losses_of;
    queued_ops.step = &queued_step;
    queued_ops.stream = &queue;
    queued_ops.join = &sums;
    dev->ops = &queued_ops;
}

/* ---- a feed that has the whole batch ----------------------------------------------------------------------------------------
 */

static struct {
    engine *e;
    abar_batch batch;
} fed;

static inline abar_status next_batch(abar_device *dev, abar__feed *f)
{
    (void)dev, (void)f;
    fed.batch = (abar_batch){.size = sizeof fed.batch};
    noted = 0;
    return abar_loader_next(fed.e->loader, &fed.batch);
}

static inline abar_status begin_epoch(abar_device *dev, abar__feed *f, int64_t epoch, int64_t first, const int32_t *order,
                                      int64_t n)
{
    (void)order, (void)n;
    ABAR_TRY(abar_loader_seek(fed.e->loader, epoch, first));
    return next_batch(dev, f);
}

static inline abar_status fill(abar_device *dev, abar__feed *f, int64_t first, const abar_tensor *input,
                               const abar_tensor *target, const abar_tensor *share)
{
    const abar__stepper *s = &fed.e->stepper;
    const abar_batch part = abar__batch_part(s->info, &fed.batch, first);
    (void)dev, (void)f, (void)share;
    memcpy(target->data, part.labels, (size_t)s->micro * sizeof *part.labels);
    return abar_batch_normalise(s->ctx, s->info, &part, s->micro, input);
}

static const abar__feed_ops feed_ops = {.epoch = begin_epoch, .fill = fill, .advance = next_batch};

/* ---- an engine with a join
 * ---------------------------------------------------------------------------------------------------- */

typedef struct joined {
    engine e;
    abar__join join;
    abar__nccl *nccl;
    abar__exchange exchange;
    int32_t order[128];
} joined;

/* cpu as it is; queued, ranks exchange through the host; over NCCL; queued in the pipeline's parts */
typedef enum way { HOST, QUEUED, NCCL, PIPED } way;

static atomic_bool wants_stop; /* this rank */
static size_t bucket_bytes;    /* over NCCL; 0: as usual */

static inline void build(joined *j, fixture *f, abar_setup *setup, abar_comm *comm, way how)
{
    engine *e = &j->e;
    const bool queued = how != HOST;
    *e = (engine){.f = f, .setup = setup};
    const abar__net_request request = {.batch = abar__micro_of(&setup->train), .training = true};
    need(f, abar__data_open(f->ctx, setup, false, NULL, &e->data));
    const abar_loader_config loader = abar__loader_request(setup, false);
    const abar_dataset_info *info = abar_dataset_info_of(e->data);
    need(f, abar_loader_create(f->ctx, e->data, &loader, &e->loader));
    need(f, abar__device_open(f->ctx, setup, &e->dev));
    if (queued) make_queued(e->dev);
    need(f, abar__net_build(f->ctx, setup, info, e->dev, &request, &e->net));
    need(f, abar__extra_net_build(f->ctx, setup, info, e->dev, e->net, false, &e->extra));
    if (how == NCCL) need(f, abar__exchange_over_nccl(f->ctx, abar_comm_size(comm) > 1 ? comm : NULL, e->dev, &j->nccl));
    j->exchange = (abar__exchange){comm, j->nccl, e->dev};
    const abar__owners owners = abar__owners_of(&j->exchange);
    need(f, abar__optim_build_on(f->ctx, setup, e->dev, e->net, e->extra, setup->train.zero ? &owners : NULL, &e->optim));
    need(f, abar__optim_divide(e->optim, &owners));
    abar__join_config config = abar__join_request(setup, e->dev, e->net, e->extra, abar_optim_pending_count(e->optim));
    config.comm = comm;
    config.nccl = j->nccl;
    config.stop = &wants_stop;
    config.bucket_bytes = bucket_bytes;
    need(f, abar__join_create(f->ctx, &config, &j->join));
    e->stepper = (abar__stepper){.ctx = f->ctx,
                                 .net = e->net,
                                 .extra = e->extra,
                                 .optim = e->optim,
                                 .info = info,
                                 .micro = request.batch,
                                 .accumulate = j->join.count,
                                 .join = &j->join,
                                 .clip = setup->train.clip,
                                 .seed = (uint64_t)setup->train.seed};
    if (!queued) return;
    e->feed = (abar__data_feed){.dev = e->dev,
                                .ops = &feed_ops,
                                .batches = (abar__feed *)(void *)&fed,
                                .resident = true,
                                .order = j->order,
                                .order_bytes = (size_t)abar_loader_order_count(e->loader) * sizeof *j->order};
    assert_true(e->feed.order_bytes <= sizeof j->order);
    e->stepper.feed = &e->feed;
    fed.e = e;
}

static inline void drop(joined *j)
{
    engine *e = &j->e;
    abar__join_release(&j->join);
    abar__nccl_close(j->nccl);
    abar_optim_destroy(e->optim);
    abar_net_destroy(e->extra);
    abar_net_destroy(e->net);
    abar_device_close(e->dev);
    abar_loader_destroy(e->loader);
    abar_dataset_close(e->data);
}

/* Step k; bad: the micro-batch whose loss is not finite. Returns whether the step was skipped. */
static inline bool queued_step_of(joined *j, int64_t k, int64_t bad)
{
    engine *e = &j->e;
    const double lr = e->setup->train.lr;
    bad_one = bad < j->join.first || bad >= j->join.first + j->join.count ? -1 : bad - j->join.first;
    need(e->f, abar_optim_rates(e->optim, k, &lr, 1));
    need(e->f, abar__stepper_enqueue(&e->stepper));
    const bool skipped = abar_optim_note(e->optim, k)->skipped;
    abar_net_count_batches(e->net, skipped ? 0 : abar__stepper_passes(&e->stepper));
    return skipped;
}

static inline void keep_block(snapshot *s, const void *data, size_t bytes)
{
    s->bytes = realloc(s->bytes, s->used + bytes + 1);
    if (bytes) memcpy(s->bytes + s->used, data, bytes);
    s->used += bytes;
}

/* The same steps as the trainer gives them: enqueued once, then captured, in the parts between which ranks exchange. */
static inline void run_pipeline(joined *j)
{
    engine *e = &j->e;
    abar__pipeline p;
    const int64_t each = abar_loader_batches(e->loader);
    const abar_schedule schedule = {.size = sizeof schedule,
                                    .kind = ABAR_SCHEDULE_CONSTANT,
                                    .lr = e->setup->train.lr,
                                    .epochs = 2,
                                    .steps_per_epoch = each};
    need(e->f, abar__pipeline_create(&e->stepper, e->dev, e->loader, &p));
    bad_one = -1;
    for (int64_t k = 0; k < STEPS; k++) {
        abar__step_result r;
        bool got;
        if (k % each == 0) need(e->f, abar__pipeline_seek(&p, &schedule, k / each, 0));
        need(e->f, abar__pipeline_enqueue(&p, schedule.lr, false));
        need(e->f, abar__pipeline_collect(&p, true, &r, &got));
        assert_true(got && !r.skipped);
        assert_int_equal(r.loss.count, e->setup->train.batch);
    }
    abar__pipeline_release(e->f->ctx, &p);
}

/* The sum of the losses of micro-batches from i on, of a node of so many: of (level, j) from (level - 1, 2j) and (level - 1, 2j
 * + 1). */
static inline double sum_losses(const abar__join *j, int64_t i, int64_t width)
{
    if (width == 1) return j->results[i].loss;
    const double left = sum_losses(j, i, width / 2);
    return i + width / 2 < j->config.n ? left + sum_losses(j, i + width / 2, width / 2) : left;
}

/* cpu's own step on one rank, or on several: its loss is the mean in the tree's order. */
static inline void host_step_of(joined *j, int64_t k)
{
    const abar__step_result r = train_on(&j->e, k);
    int64_t width = 1;
    while (width < j->join.config.n) width *= 2;
    assert_false(r.skipped);
    if (j->join.ranks == 1) assert_true(r.loss.loss == sum_losses(&j->join, 0, width) / (double)r.loss.count);
}

/* Rank 0 has the state of all parameters then. */
static inline snapshot take_whole(joined *j)
{
    engine *e = &j->e;
    snapshot s = {.f = e->f};
    need(e->f, abar__zero_open(e->optim));
    need(e->f, abar__zero_move(e->optim, true));
    if (j->join.rank == 0) s = take(e);
    abar__zero_close(e->optim);
    return s;
}

/* All state after some steps, the weights that are tested, and the running statistics that the training set has at the end. */
static inline snapshot train(fixture *f, abar_setup *setup, abar_comm *comm, way how, int64_t bad)
{
    const bool queued = how != HOST;
    joined *j = calloc(1, sizeof *j);
    assert_non_null(j);
    build(j, f, setup, comm, how);
    engine *e = &j->e;
    need(f, abar_loader_seek(e->loader, 0, 0));
    if (queued) need(f, abar__data_feed_seek(&e->feed, e->loader, 0, 0));
    if (how == PIPED) run_pipeline(j);
    for (int64_t k = how == PIPED ? STEPS : 0; k < STEPS; k++) {
        const bool skips = bad >= 0 && k == 2;
        if (queued)
            assert_int_equal(queued_step_of(j, k, skips ? bad : -1), skips);
        else
            host_step_of(j, k);
    }
    snapshot s = take_whole(j);
    const abar__net_blocks blocks = abar__net_blocks_of(e->net);
    need(f, abar_optim_average(e->optim));
    keep_block(&s, blocks.values, blocks.value_bytes);
    if (blocks.running_bytes) need(f, abar__stepper_estimate(&e->stepper, e->loader, 0, 2));
    keep_block(&s, blocks.pending, blocks.running_bytes);
    drop(j);
    free(j);
    return s;
}

/* In processes of their own, of which rank 0 writes what it has come to. This one must stay without threads until then. */
static inline snapshot train_apart(fixture *f, abar_setup *setup, int ranks, way how, int64_t bad)
{
    char path[PATH_MAX_TEST];
    int status = 0;
    snprintf(path, sizeof path, "%s/snapshot", f->dir);
    remove(path);
    const pid_t child = fork_test();
    if (child == 0) {
        abar_comm *comm;
        const abar_comm_config config = {.size = sizeof config, .ranks = ranks};
        if (abar_comm_open(f->ctx, &config, &comm) < 0) _exit(2);
        const snapshot s = train(f, setup, comm, how, bad);
        FILE *file = abar_comm_rank(comm) == 0 ? fopen(path, "w") : NULL;
        if (file && (fwrite(s.bytes, 1, s.used, file) != s.used || fclose(file))) _exit(3);
        abar_comm_close(comm);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    snapshot s = {.f = f};
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    s.used = (size_t)ftell(file);
    rewind(file);
    s.bytes = malloc(s.used + 1);
    assert_int_equal(fread(s.bytes, 1, s.used, file), s.used);
    fclose(file);
    return s;
}

static inline void compare(snapshot a, snapshot b, const char *what)
{
    assert_int_equal(a.used, b.used);
    size_t differ = 0;
    for (size_t i = 0; i < a.used; i++) differ += a.bytes[i] != b.bytes[i];
    if (differ) fail_msg("%s: %zu of %zu bytes differ", what, differ, a.used);
    free(b.bytes);
}

/* One, two and three ranks, as far as they divide the micro-batches, have what cpu's own join leaves. */
static inline void check_way(fixture *f, way how, const char *model, const char *optim, const char *options)
{
    char what[64];
    abar_setup *setup = make_setup(f, model, optim, options);
    const snapshot own = train_apart(f, setup, 1, HOST, -1);
    for (int ranks = 1; ranks <= 4; ranks++) {
        if (abar__passes_of(&setup->train) % ranks) continue;
        snprintf(what, sizeof what, "%s, %s on %d ranks", model, optim, ranks);
        compare(own, train_apart(f, setup, ranks, how, -1), what);
    }
    free(own.bytes);
    abar_setup_destroy(f->ctx, setup);
}

static inline void check(fixture *f, const char *model, const char *optim, const char *options)
{
    check_way(f, QUEUED, model, optim, options);
}

#endif
